//! `glocal routes`: which way a broker on this machine sends what is for another one.

use std::process::ExitCode;

use serde_json::Value;

use super::output::Out;
use super::status::{Asked, list, report, text};

const EXAMPLES: &str = "\
Examples:
  glocal routes --state-dir state
  glocal routes --state-dir state --tenant acme
  glocal routes --state-dir state --json | jq '.edges[] | select(.cost == null) | .name'

Every tenant has routes of its own, over the edges that are up and allow it.

Exit codes: 0 the broker answered, 1 it did not, 2 wrong usage.";

/// Arguments of `glocal routes`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    asked: Asked,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    report(args.asked, "routes", show)
}

fn show(out: &mut Out, answer: &Value) -> anyhow::Result<()> {
    out.line(&format!("what {} knows of the fabric's edges", text(answer, "node")))?;
    let edges: Vec<_> = list(answer, "edges").iter().map(edge_row).collect();
    out.table(&["EDGE", "FROM", "TO", "STATE", "COST"], &edges)?;
    out.line("")?;
    let routes: Vec<_> = list(answer, "tenants").iter().flat_map(route_rows).collect();
    out.table(&["TENANT", "TO", "OVER", "COST"], &routes)?;
    let behind: Vec<_> =
        list(answer, "tenants").iter().filter(|t| t.get("in_sync") == Some(&Value::Bool(false))).collect();
    if !behind.is_empty() {
        let names: Vec<_> = behind.iter().map(|tenant| text(tenant, "tenant")).collect();
        out.line(&format!("not in sync yet: {}", names.join(", ")))?;
    }
    Ok(())
}

fn edge_row(edge: &Value) -> Vec<String> {
    let end = |n: usize| list(edge, "ends").get(n).and_then(Value::as_str).unwrap_or_default().to_owned();
    let state = if edge.get("cost").is_some_and(Value::is_u64) { "up" } else { "down" };
    vec![text(edge, "name"), end(0), end(1), state.to_owned(), text(edge, "cost")]
}

fn route_rows(tenant: &Value) -> Vec<Vec<String>> {
    let name = text(tenant, "tenant");
    let row = |route: &Value| {
        let edge = text(route, "edge");
        let edge = if edge.is_empty() { "no way".to_owned() } else { edge };
        vec![name.clone(), text(route, "broker"), edge, text(route, "cost")]
    };
    list(tenant, "brokers").iter().map(row).collect()
}
