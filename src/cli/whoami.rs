//! `glocal whoami`: who the broker takes this certificate for.

use std::process::ExitCode;

use glocal_client::Session;

use super::connect::{ConnectArgs, block_on};
use super::output::Out;

const EXAMPLES: &str = "\
Examples:
  glocal whoami
  glocal whoami --json | jq -r .tenant
  glocal whoami --server quic://broker.example:32011 --root root.pem --cert a.pem --key a.key";

/// Arguments of `glocal whoami`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Prints a JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let session = block_on(async {
        let client = args.connect.connect(false).await?;
        let session = client.whoami();
        client.close().await;
        anyhow::Ok(session)
    })?;
    let mut out = Out::new();
    if args.json {
        out.json(&json(&session))?;
    } else {
        out.table(&["", ""], &rows(&session))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn json(session: &Session) -> serde_json::Value {
    serde_json::json!({
        "tenant": session.tenant,
        "role": session.role,
        "region": session.region,
        "agent": session.agent,
        "uid": session.uid,
        "node": session.node,
        "address": session.address.to_string(),
        "session": session.session,
        "max_payload": session.max_payload,
        "inbox": session.inbox,
    })
}

fn rows(session: &Session) -> Vec<Vec<String>> {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    [
        ("tenant", session.tenant.clone()),
        ("role", session.role.clone()),
        ("region", or_dash(&session.region)),
        ("agent", or_dash(&session.agent)),
        ("uid", session.uid.clone()),
        ("node", session.node.clone()),
        ("address", session.address.to_string()),
        ("session", session.session.to_string()),
        ("max_payload", session.max_payload.to_string()),
        ("inbox", session.inbox.clone()),
    ]
    .map(|(key, value)| vec![key.to_owned(), value])
    .to_vec()
}
