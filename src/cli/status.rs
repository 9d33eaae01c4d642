//! `glocal status`: asks a broker on this machine how it is.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use super::output::{Out, escape};
use super::{WithHint, usage};

const EXAMPLES: &str = "\
Examples:
  glocal status --state-dir state
  glocal status --socket state/glocal.sock --tenant acme
  glocal status --state-dir state --json | jq '.edges[] | {name, state}'

Exit codes: 0 the broker answered, 1 it did not, 2 wrong usage.";

/// How long a broker may take to answer.
const DEADLINE: Duration = Duration::from_secs(5);

/// Arguments of `glocal status`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    asked: Asked,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    report(args.asked, "status", show)
}

/// The operators' socket that the arguments mean.
pub(crate) fn socket_of(socket: Option<PathBuf>, state_dir: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    match (socket, state_dir) {
        (Some(socket), _) => Ok(socket),
        (None, Some(dir)) => Ok(dir.join(glocal_node::admin::SOCKET)),
        (None, None) => Err(usage("no broker given", "use --state-dir or --socket")),
    }
}

/// A broker's answer to one request on its operators' socket.
pub(crate) fn answer(socket: &Path, request: &str, deadline: Duration) -> anyhow::Result<Value> {
    let answer = exchange(socket, request, deadline)
        .map_err(|error| anyhow::anyhow!("{}: {error}", socket.display()))
        .hint("is the broker running, and is this its state_dir?")?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => anyhow::bail!("the broker refuses: {error}"),
        None => Ok(answer),
    }
}

/// Asks a broker over its operators' socket.
pub(crate) fn ask(socket: &Path, tenant: Option<&str>) -> std::io::Result<Value> {
    exchange(socket, &format!("status {}", tenant.unwrap_or_default()), DEADLINE)
}

fn exchange(socket: &Path, request: &str, deadline: Duration) -> std::io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(deadline))?;
    stream.set_write_timeout(Some(deadline))?;
    writeln!(stream, "{request}")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    serde_json::from_str(&line).map_err(std::io::Error::other)
}

/// Where a broker is, and what of it is asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Asked {
    /// The broker's `state_dir`.
    #[arg(long, value_name = "DIR", required_unless_present = "socket", conflicts_with = "socket")]
    state_dir: Option<PathBuf>,

    /// The operators' socket itself.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Only this tenant.
    #[arg(long)]
    tenant: Option<String>,

    /// Prints the answer as JSON.
    #[arg(long)]
    json: bool,
}

/// Asks a broker for the report `what` and prints it, as JSON or by `show`.
pub(crate) fn report(
    asked: Asked,
    what: &str,
    show: impl FnOnce(&mut Out, &Value) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let Asked { state_dir, socket, tenant, json } = asked;
    let socket = socket_of(socket, state_dir)?;
    if tenant.as_deref().is_some_and(|t| t.split_whitespace().count() != 1) {
        return Err(usage("--tenant is not a tenant id", "it is one word, such as acme"));
    }
    let answer = answer(&socket, &format!("{what} {}", tenant.as_deref().unwrap_or_default()), DEADLINE)?;
    let mut out = Out::new();
    if json {
        out.json(&answer)?;
    } else {
        show(&mut out, &answer)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn text(value: &Value, key: &str) -> String {
    match value.get(key) {
        Some(Value::String(text)) => escape(text.as_bytes()),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

pub(crate) fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn show(out: &mut Out, status: &Value) -> anyhow::Result<()> {
    let get = |key| text(status, key);
    let bundle = status.get("bundle").cloned().unwrap_or_default();
    out.line(&format!("{} ({}) of fabric {}, glocal {}", get("node"), get("role"), get("fabric"), get("version")))?;
    out.line(&format!(
        "up {} s, {} sessions, {} subscriptions, bundle {}.{} {}{}",
        get("uptime_s"),
        get("sessions"),
        get("subscriptions"),
        text(&bundle, "epoch"),
        text(&bundle, "version"),
        text(&bundle, "state"),
        if status.get("lame_duck") == Some(&Value::Bool(true)) { ", LEAVING" } else { "" },
    ))?;
    out.line("")?;
    let edges: Vec<Vec<String>> = list(status, "edges").iter().map(edge_row).collect();
    out.table(&["EDGE", "PEER", "STATE", "SINCE s", "RTT ms", "TENANTS", "QUEUED B", "REFUSED"], &edges)?;
    out.line("")?;
    let tenants: Vec<Vec<String>> = list(status, "tenants").iter().flat_map(tenant_rows).collect();
    out.table(&["TENANT", "CLASS", "FILTERS", "PUBLISHED", "DELIVERED", "OUT", "IN", "DROPPED", "DENIED"], &tenants)
}

fn edge_row(edge: &Value) -> Vec<String> {
    let rtt = edge.get("rtt_us").and_then(Value::as_f64).unwrap_or(0.0) / 1000.0;
    let tenants: Vec<String> = list(edge, "tenants").iter().filter_map(|t| t.as_str().map(str::to_owned)).collect();
    let shown = if tenants.len() > 8 { format!("{} tenants", tenants.len()) } else { tenants.join(",") };
    let detail = text(edge, "detail");
    let state = if detail.is_empty() { text(edge, "state") } else { format!("{}: {detail}", text(edge, "state")) };
    vec![
        text(edge, "name"),
        text(edge, "peer"),
        state,
        text(edge, "since_s"),
        format!("{rtt:.2}"),
        shown,
        text(edge, "queued_bytes"),
        text(edge, "refused"),
    ]
}

fn tenant_rows(tenant: &Value) -> Vec<Vec<String>> {
    let head = |class: String, of: &dyn Fn(&str) -> String| {
        let drops = of("drops");
        let dropped =
            if drops == "[]" || drops.is_empty() { of("dropped") } else { format!("{} {drops}", of("dropped")) };
        vec![
            text(tenant, "tenant"),
            class,
            text(tenant, "filters"),
            of("published"),
            of("delivered"),
            of("relayed_out"),
            of("relayed_in"),
            dropped,
            text(tenant, "denied"),
        ]
    };
    let classes = list(tenant, "classes");
    if classes.is_empty() {
        return vec![head("-".to_owned(), &|_| "0".to_owned())];
    }
    classes.iter().map(|class| head(text(class, "class"), &|key| text(class, key))).collect()
}
