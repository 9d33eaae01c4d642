//! The fabric of the demo: its plan, its agents, and where their files are.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use glocal_core::name::{Label, TenantId};
use glocal_fabric::Plan;

/// The broker in the middle.
pub(super) const GLOBAL: &str = "global/broker-g";
/// The broker of region-a.
pub(super) const REGION_A: &str = "region-a/broker-a";
/// The broker of region-b.
pub(super) const REGION_B: &str = "region-b/broker-b";
/// Every broker, in the order of their start.
pub(super) const NODES: [&str; 3] = [GLOBAL, REGION_A, REGION_B];
/// The tenant whose agents see everything.
pub(super) const SUPERUSER: &str = "cresco-system";
/// The organisation in the brokers' certificates.
pub(super) const OPERATOR: &str = "operator";

/// One agent of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agent {
    /// The `CN=` of its certificate.
    pub(super) name: &'static str,
    /// The `OU=`, and the region whose broker it connects to.
    pub(super) region: &'static str,
    /// The `O=`.
    pub(super) tenant: &'static str,
}

const fn agent(name: &'static str, region: &'static str, tenant: &'static str) -> Agent {
    Agent { name, region, tenant }
}

pub(super) const ALICE: Agent = agent("alice", "region-a", "tenantA");
pub(super) const ANNA: Agent = agent("anna", "region-b", "tenantA");
pub(super) const AMOS: Agent = agent("amos", "global", "tenantA");
pub(super) const BOB: Agent = agent("bob", "region-a", "tenantB");
pub(super) const BERTA: Agent = agent("berta", "region-b", "tenantB");
pub(super) const CAROL: Agent = agent("carol", "region-a", "tenantC");
pub(super) const CHRIS: Agent = agent("chris", "global", "tenantC");
pub(super) const CLEO: Agent = agent("cleo", "region-b", "tenantC");
pub(super) const ADMIN: Agent = agent("admin", "global", SUPERUSER);
/// Everybody, in the order in which they connect.
pub(super) const AGENTS: [Agent; 9] = [ALICE, ANNA, AMOS, BOB, BERTA, CAROL, CHRIS, CLEO, ADMIN];

impl Agent {
    /// `alice@region-a`.
    pub(super) fn address(self) -> String {
        format!("{}@{}", self.name, self.region)
    }

    /// The broker of its region.
    pub(super) fn node(self) -> &'static str {
        NODES.into_iter().find(|node| node.split('/').next() == Some(self.region)).unwrap_or(GLOBAL)
    }
}

/// The plan. Only the port that other brokers dial must be known beforehand; the rest are the system's choice.
fn text(bridge_port: u16) -> String {
    let mut text = format!(
        "fabric = \"demo\"\noperator = \"{OPERATOR}\"\nsuperusers = [\"{SUPERUSER}\"]\nleaf_days = 2\nbundle_days = 2\n"
    );
    for region in ["global", "region-a", "region-b"] {
        text += &format!("\n[[region]]\nname = \"{region}\"\n");
    }
    for node in NODES {
        let (role, bridge_port) = if node == GLOBAL { ("global", bridge_port) } else { ("region", 0) };
        text += &format!(
            "\n[[node]]\nname = \"{node}\"\nrole = \"{role}\"\nhosts = [\"localhost\", \"127.0.0.1\"]\n\
             listen = \"127.0.0.1\"\nbroker_port = 0\nquic_port = 0\nbridge_port = {bridge_port}\n\
             ops_listen = \"127.0.0.1:0\"\n"
        );
    }
    // Region-a's CA may issue tenantA to tenantC; tenantD and the superuser are for others to issue.
    for (tenant, regions) in [
        ("tenantA", "\"global\", \"region-a\", \"region-b\""),
        ("tenantB", "\"region-a\", \"region-b\""),
        ("tenantC", "\"global\", \"region-a\", \"region-b\""),
        ("tenantD", "\"region-b\""),
        (SUPERUSER, "\"global\""),
    ] {
        text += &format!("\n[[tenant]]\nid = \"{tenant}\"\nregions = [{regions}]\n");
    }
    for (name, dial, tenants) in [
        ("edge-a", REGION_A, "\"*\""),
        ("edge-b", REGION_B, "\"tenantA\", \"tenantB\", \"tenantD\", \"cresco-system\""),
    ] {
        text += &format!(
            "\n[[edge]]\nname = \"{name}\"\ndial = \"{dial}\"\naccept = \"{GLOBAL}\"\ntenants = [{tenants}]\n"
        );
    }
    for Agent { name, region, tenant } in AGENTS {
        text += &format!("\n[[agent]]\nname = \"{name}\"\nregion = \"{region}\"\ntenant = \"{tenant}\"\n");
    }
    text
}

/// The files of the fabric.
pub(super) struct Fabric {
    out: PathBuf,
    files: usize,
}

impl Fabric {
    /// Makes the certificates, the signed bundle and a configuration per broker below `dir`.
    pub(super) fn make(dir: &Path) -> anyhow::Result<Self> {
        let port =
            UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).context("no free port")?.port();
        let text = text(port);
        let (file, out) = (dir.join("fabric.toml"), dir.join("fabric"));
        std::fs::write(&file, &text).with_context(|| format!("cannot write '{}'", file.display()))?;
        let plan = Plan::parse(&text, "fabric.toml")?;
        let applied = glocal_fabric::apply(&plan, &out, &mut |_| ())?;
        Ok(Self { out, files: applied.made })
    }

    /// How many files were made.
    pub(super) const fn files(&self) -> usize {
        self.files
    }

    /// The directory that the plan was applied in.
    pub(super) fn out(&self) -> &Path {
        &self.out
    }

    /// The configuration file of a broker.
    pub(super) fn config(&self, node: &str) -> PathBuf {
        self.out.join("nodes").join(node.replace('/', "-")).join("node.toml")
    }

    /// The root certificate.
    pub(super) fn root(&self) -> PathBuf {
        self.out.join("root").join("root.pem")
    }

    /// An agent's certificate chain and key.
    pub(super) fn identity(&self, agent: Agent) -> (PathBuf, PathBuf) {
        let stem = self.out.join("agents").join(agent.tenant).join(agent.address());
        let with = |suffix| PathBuf::from(format!("{}.{suffix}", stem.display()));
        (with("pem"), with("key"))
    }
}

/// A label of the demo's own.
pub(super) fn label(text: &str) -> anyhow::Result<Label> {
    Label::parse(text).map_err(|error| anyhow::anyhow!("{text}: {error}"))
}

/// A tenant id of the demo's own.
pub(super) fn tenant(text: &str) -> anyhow::Result<TenantId> {
    TenantId::parse(text).map_err(|error| anyhow::anyhow!("{text}: {error}"))
}
