//! `glocal edges`: the edges of a broker on this machine.

use std::process::ExitCode;

use serde_json::Value;

use super::output::Out;
use super::status::{Asked, list, report, text};

const EXAMPLES: &str = "\
Examples:
  glocal edges --state-dir state
  glocal edges --state-dir state --tenant acme
  glocal edges --state-dir state --json | jq '.edges[] | select(.state != \"up\") | {name, state, detail}'

A tenant crosses an edge when this side's configuration, the peer's and the bundle allow it.

Exit codes: 0 the broker answered, 1 it did not, 2 wrong usage.";

/// Tenants named in one cell of the table.
const NAMED: usize = 4;

/// Arguments of `glocal edges`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    asked: Asked,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    report(args.asked, "edges", show)
}

fn show(out: &mut Out, answer: &Value) -> anyhow::Result<()> {
    let edges = list(answer, "edges");
    let rows: Vec<_> = edges.iter().map(row).collect();
    let header = ["EDGE", "PEER", "MODE", "STATE", "SINCE s", "RTT ms", "COST", "CROSSES", "QUEUED B", "REFUSED"];
    out.table(&header, &rows)?;
    for edge in edges {
        let detail = text(edge, "detail");
        if !detail.is_empty() {
            out.line(&format!("{}: {detail}", text(edge, "name")))?;
        }
        let tenants = edge.get("tenants").cloned().unwrap_or_default();
        let missing = names(&tenants, "not_by_peer", usize::MAX);
        if !missing.is_empty() {
            out.line(&format!("{}: not allowed by the peer: {missing}", text(edge, "name")))?;
        }
    }
    let connections: Vec<_> = edges.iter().flat_map(connections).collect();
    if !connections.is_empty() {
        out.line("")?;
        out.table(&["EDGE", "TENANT", "STATE", "SINCE s", "RTT ms", "UNDER", "REMOTE", "DETAIL"], &connections)?;
    }
    let waiting: Vec<_> = edges.iter().flat_map(lanes).collect();
    if !waiting.is_empty() {
        out.line("")?;
        out.table(&["EDGE", "TENANT", "CLASS", "QUEUED B", "ABOVE ITS CAP"], &waiting)?;
    }
    let windows: Vec<_> = list(answer, "windows").iter().map(window).collect();
    if !windows.is_empty() {
        out.line("")?;
        let head = ["TENANT", "CLASS", "TO", "OVER", "IN FLIGHT B", "WINDOW B", "UNACKED", "OLDEST ms"];
        out.table(&head, &windows)?;
    }
    let lost: Vec<_> = edges.iter().flat_map(drops).collect();
    if !lost.is_empty() {
        out.line("")?;
        out.table(&["EDGE", "TENANT", "CLASS", "DROPPED", "REASON"], &lost)?;
    }
    Ok(())
}

fn row(edge: &Value) -> Vec<String> {
    let rtt = edge.get("rtt_us").and_then(Value::as_f64).unwrap_or(0.0) / 1000.0;
    let tenants = edge.get("tenants").cloned().unwrap_or_default();
    vec![
        text(edge, "name"),
        text(edge, "peer"),
        text(edge, "mode"),
        text(edge, "state"),
        text(edge, "since_s"),
        format!("{rtt:.2}"),
        text(edge, "cost"),
        names(&tenants, "effective", NAMED),
        text(edge, "queued_bytes"),
        text(edge, "refused"),
    ]
}

/// The tenants' own connections of a dedicated edge.
fn connections(edge: &Value) -> Vec<Vec<String>> {
    let name = text(edge, "name");
    let connection = |one: &Value| {
        let rtt = one.get("rtt_us").and_then(Value::as_f64).unwrap_or(0.0) / 1000.0;
        let (state, since) = (text(one, "state"), text(one, "since_s"));
        let (under, remote) = (text(one, "certificate"), text(one, "remote"));
        vec![name.clone(), text(one, "tenant"), state, since, format!("{rtt:.2}"), under, remote, text(one, "detail")]
    };
    list(edge, "connections").iter().map(connection).collect()
}

fn lanes(edge: &Value) -> Vec<Vec<String>> {
    let name = text(edge, "name");
    let of = |lane: &Value| {
        let cell = |key| text(lane, key);
        vec![name.clone(), cell("tenant"), cell("class"), cell("bytes"), cell("above_cap")]
    };
    list(edge, "lanes").iter().map(of).collect()
}

fn window(window: &Value) -> Vec<String> {
    let over = match window.get("edge") {
        Some(Value::String(_)) => text(window, "edge"),
        _ => "no way".to_owned(),
    };
    let of = |key| text(window, key);
    vec![
        of("tenant"),
        of("class"),
        of("target"),
        over,
        of("in_flight_bytes"),
        of("window_bytes"),
        of("unacknowledged"),
        of("oldest_ms"),
    ]
}

fn drops(edge: &Value) -> Vec<Vec<String>> {
    let name = text(edge, "name");
    let of = |loss: &Value| {
        let cell = |key| text(loss, key);
        vec![name.clone(), cell("tenant"), cell("class"), cell("frames"), cell("reason")]
    };
    list(edge, "drops").iter().map(of).collect()
}

/// A list of names in one cell, at most `most` of them.
fn names(value: &Value, key: &str, most: usize) -> String {
    let all: Vec<&str> = list(value, key).iter().filter_map(Value::as_str).collect();
    let named = all.iter().take(most).map(|name| super::output::escape(name.as_bytes())).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(most) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut_and_say_so() {
        let value = serde_json::json!({ "effective": ["a", "b", "c"] });
        assert_eq!(names(&value, "effective", 4), "a, b, c");
        assert_eq!(names(&value, "effective", 1), "a and 2 more");
        assert_eq!(names(&value, "other", 1), "");
    }
}
