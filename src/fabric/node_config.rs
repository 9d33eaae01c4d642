//! The configuration of a broker, as a plan gives it.

use std::fmt::Write;

use crate::pki;
use crate::plan::{EdgePlan, NodePlan, NodeRole, Plan};

/// Names of the re-signer's own bundle key and its certificate, in its directory.
pub(crate) const SIGNING_KEY: &str = "bundle-signing.key";
pub(crate) const SIGNING_CERTIFICATE: &str = "bundle-signing.pem";
/// Stands before the hash of what follows in a file: a later apply replaces the file only while the two agree.
const MARK: &str = "# As written (remove this line, or change anything, to keep the file as it is): ";

/// The text of `node.toml`. Paths are relative to its directory.
#[must_use]
pub fn render(plan: &Plan, node: &NodePlan) -> String {
    let body = body(plan, node);
    format!("{MARK}{}\n{body}", hash(&body))
}

/// Whether a file is as an apply has written it, by whatever plan.
#[must_use]
pub fn is_as_written(text: &str) -> bool {
    let marked = text.strip_prefix(MARK).and_then(|rest| rest.split_once('\n'));
    marked.is_some_and(|(mark, body)| mark == hash(body))
}

fn hash(body: &str) -> String {
    pki::sha256(body.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn body(plan: &Plan, node: &NodePlan) -> String {
    let mut text = format!(
        "# Configuration of {} in fabric '{}', written by 'glocal fabric apply'.\n\
         # Paths are relative to this file's directory. 'glocal check' reads it without starting anything.\n\n",
        node.id, plan.fabric
    );
    let role = |role| node.role == role;
    let signing = |file: &str| if plan.resigner.as_ref() == Some(&node.id) { quoted(file) } else { String::new() };
    let lines = [
        ("regionname", quoted(node.id.region().as_str())),
        ("agentname", quoted(node.id.agent().as_str())),
        ("is_global", role(NodeRole::Global).to_string()),
        ("is_region", role(NodeRole::Region).to_string()),
        ("is_agent", role(NodeRole::Agent).to_string()),
        ("tenant_id", quoted(plan.operator.as_str())),
        ("", String::new()),
        ("listen_address", quoted(&node.listen.to_string())),
        ("broker_port", node.broker_port.to_string()),
        ("quic_port", node.quic_port.to_string()),
        ("bridge_port", node.bridge_port.to_string()),
        ("nats_port", optional(node.nats_port)),
        ("nats_ws_port", optional(node.nats_ws_port)),
        ("ops_listen", quoted(&node.ops_listen)),
        ("", String::new()),
        ("fabric_root", quoted("root.pem")),
        ("bundle", quoted("bundle.glocal")),
        ("node_certificate", quoted("node.pem")),
        ("node_key_file", quoted("node.key")),
        ("bundle_signing_certificate", signing(SIGNING_CERTIFICATE)),
        ("bundle_signing_key_file", signing(SIGNING_KEY)),
        ("state_dir", quoted("state")),
    ];
    for (key, value) in lines {
        if key.is_empty() {
            text.push('\n');
        } else if !value.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{key} = {value}");
        }
    }
    for edge in plan.edges_of(&node.id) {
        push_edge(&mut text, node, edge);
    }
    text
}

fn push_edge(text: &mut String, node: &NodePlan, edge: &EdgePlan) {
    let dials = edge.dial == node.id;
    let peer = if dials { &edge.accept } else { &edge.dial };
    let tenants: Vec<String> = edge.patterns.iter().map(|p| quoted(p)).collect();
    let comment = if dials { "" } else { "# The peer dials; this side accepts.\n" };
    let addresses = if dials { format!("addresses = [{}]\n", quoted(&edge.address)) } else { String::new() };
    let _ = write!(
        text,
        "\n{comment}[[edges]]\nname = {}\npeer = {}\n{addresses}tenants = [{}]\n",
        quoted(edge.name.as_str()),
        quoted(&peer.to_string()),
        tenants.join(", ")
    );
}

/// A port, or nothing when its listener is not wanted.
fn optional(port: Option<u16>) -> String {
    port.map_or_else(String::new, |port| port.to_string())
}

/// A TOML string. Everything that reaches it is of a checked grammar; escaping is for hosts all the same.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
