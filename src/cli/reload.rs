//! `glocal reload`: a broker on this machine reads its configuration and its bundle again.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use super::output::{Out, escape};
use super::status::{answer, socket_of};

const EXAMPLES: &str = "\
Examples:
  glocal reload --state-dir state
  glocal reload --state-dir state --json | jq .changed

It takes edges, broker_superuser_tenants, broker_security_log_allow, bundle, bundle_min_version,
lame_duck_ms, nats_ws_allowed_origins and the rates of tenants and sessions. Other keys need a
restart: they are named, and then nothing of the configuration is taken. The bundle is taken when it is newer and rightly signed.

Exit codes: 0 everything was taken, 1 something was not, 2 wrong usage.";

/// How long a reload may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Arguments of `glocal reload`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The broker's `state_dir`.
    #[arg(long, value_name = "DIR", required_unless_present = "socket", conflicts_with = "socket")]
    state_dir: Option<PathBuf>,

    /// The operators' socket itself.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Prints the answer as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { state_dir, socket, json } = args;
    let report = answer(&socket_of(socket, state_dir)?, "reload", DEADLINE)?;
    let lines = |key: &str| -> Vec<String> {
        let list = report.get(key).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(|line| escape(line.as_bytes())).collect()
    };
    let (changed, refused, restart) = (lines("changed"), lines("refused"), lines("restart"));
    let mut out = Out::new();
    if json {
        out.json(&report)?;
    } else {
        for line in &changed {
            out.line(line)?;
        }
        if changed.is_empty() {
            out.line("nothing changed")?;
        }
    }
    out.flush()?;
    for line in &refused {
        super::output::complain("error", line);
    }
    if !restart.is_empty() {
        let text = format!("these keys need a restart, nothing of the configuration was taken: {}", restart.join(", "));
        super::output::complain("error", &text);
    }
    Ok(if refused.is_empty() && restart.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
