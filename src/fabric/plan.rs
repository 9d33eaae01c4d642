//! The plan of a fabric: one readable file, `fabric.toml`, that says which regions, brokers, tenants, agents and edges
//! there are.
//!
//! [`Plan::parse`] reports every mistake at once, each with its line and the path of its key; unknown and duplicate keys
//! are mistakes at every depth, and every name that is used must be declared. A [`Plan`] that exists can be applied. It
//! never touches files.

use std::net::IpAddr;

use glocal_core::name::{Label, NodeId, RawFilter, TenantId};
use glocal_core::rate::RateLimits;
use glocal_core::sched::EdgeTerms;
use glocal_core::time::UnixTime;

mod check;
mod parse;
mod read;

pub use read::{PlanError, Problem};

/// Default validity of leaves, in days.
pub const LEAF_DAYS_DEFAULT: u32 = 90;
/// Default validity of the bundle, in days (DESIGN section 3).
pub const BUNDLE_DAYS_DEFAULT: u32 = 30;
/// Default port of native clients over TLS/TCP.
pub const BROKER_PORT_DEFAULT: u16 = 32010;
/// Default port of native clients over QUIC.
pub const QUIC_PORT_DEFAULT: u16 = 32011;
/// Default port of bridges, UDP.
pub const BRIDGE_PORT_DEFAULT: u16 = 32010;
/// Default address of metrics and health.
pub const OPS_LISTEN_DEFAULT: &str = "127.0.0.1:0";

/// A checked plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The fabric's name.
    pub fabric: Label,
    /// The organisation in the brokers' certificates.
    pub operator: TenantId,
    /// Tenants whose agents see everything.
    pub superusers: Vec<TenantId>,
    /// Largest payload of one message, in bytes.
    pub max_payload_bytes: u32,
    /// Validity of leaves, in days.
    pub leaf_days: u32,
    /// Validity of the bundle, in days.
    pub bundle_days: u32,
    /// The broker that signs the bundle afresh by itself.
    pub resigner: Option<NodeId>,
    /// Regions, each with a CA of its own.
    pub regions: Vec<Label>,
    /// Brokers.
    pub nodes: Vec<NodePlan>,
    /// Tenants.
    pub tenants: Vec<TenantPlan>,
    /// Agents that get a certificate.
    pub agents: Vec<AgentPlan>,
    /// Edges between brokers.
    pub edges: Vec<EdgePlan>,
    /// What tenants allow one another.
    pub grants: Vec<GrantPlan>,
    /// Who is revoked.
    pub revocations: Vec<RevocationPlan>,
}

/// What a broker is in the hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// Joins regions.
    Global,
    /// Serves one region.
    Region,
    /// A leaf broker below a region.
    Agent,
}

impl NodeRole {
    /// The word used in plans.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Region => "region",
            Self::Agent => "agent",
        }
    }
}

/// One broker.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// Its name.
    pub id: NodeId,
    /// Its place in the hierarchy.
    pub role: NodeRole,
    /// DNS names and addresses clients and peers dial, for its certificate.
    pub hosts: Vec<String>,
    /// Address it listens on.
    pub listen: IpAddr,
    /// Port of native clients over TLS/TCP; 0 lets the system choose.
    pub broker_port: u16,
    /// Port of native clients over QUIC; 0 lets the system choose.
    pub quic_port: u16,
    /// Port of bridges; 0 lets the system choose.
    pub bridge_port: u16,
    /// Port of NATS clients over mutual TLS; `None` for no such listener, 0 lets the system choose.
    pub nats_port: Option<u16>,
    /// Port of NATS clients over WebSocket; `None` for no such listener, 0 lets the system choose.
    pub nats_ws_port: Option<u16>,
    /// Address of metrics and health.
    pub ops_listen: String,
}

impl NodePlan {
    /// Name of its directory under `nodes/`.
    #[must_use]
    pub fn directory(&self) -> String {
        format!("{}-{}", self.id.region(), self.id.agent())
    }
}

/// One tenant.
#[derive(Clone, Debug)]
pub struct TenantPlan {
    /// Its id, the `O=` of its agents.
    pub id: TenantId,
    /// Its share of every edge.
    pub weight: u32,
    /// Regions whose CAs may issue its agents.
    pub regions: Vec<Label>,
    /// Whether reply subjects belong to their agent only.
    pub owner_only_replies: bool,
    /// Most sessions on one node; 0 for no limit beyond the node's.
    pub sessions_max: u32,
    /// What it and each of its sessions may publish through one node.
    pub limits: RateLimits,
    /// Weights of its classes, and the most it may send over any edge.
    pub terms: EdgeTerms,
    /// Most bytes that all its sessions on one node may hold together; `None` for no limit beyond the node's.
    pub memory_bytes: Option<u64>,
}

/// One agent with a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPlan {
    /// Its name, the `CN=`.
    pub name: Label,
    /// Its region, the `OU=`.
    pub region: Label,
    /// Its tenant, the `O=`.
    pub tenant: TenantId,
}

/// One edge.
#[derive(Clone, Debug)]
pub struct EdgePlan {
    /// Its name.
    pub name: Label,
    /// The broker that dials.
    pub dial: NodeId,
    /// The broker that accepts.
    pub accept: NodeId,
    /// Where the accepting broker is reached, `host:port`.
    pub address: String,
    /// The tenants as written: ids, or globs with `*`.
    pub patterns: Vec<String>,
    /// The tenants that may cross, in the order of the plan.
    pub tenants: Vec<TenantId>,
}

/// One grant: `from` lets agents of `to` read or write some of its names.
#[derive(Clone, Debug)]
pub struct GrantPlan {
    /// Its name.
    pub name: Label,
    /// The tenant whose names they are.
    pub from: TenantId,
    /// The tenant that receives the right.
    pub to: TenantId,
    /// Whether it may publish; otherwise it may subscribe.
    pub write: bool,
    /// The names, as a raw filter.
    pub filter: RawFilter,
}

/// One revocation, in one tenant; in the operator, it is of brokers.
#[derive(Clone, Debug)]
pub struct RevocationPlan {
    /// The tenant, or the operator.
    pub tenant: TenantId,
    /// The region whose CA issued.
    pub region: Label,
    /// What of it.
    pub what: Revoked,
}

/// What is revoked.
#[derive(Clone, Debug)]
pub enum Revoked {
    /// One certificate by its serial number, without leading zeros.
    Serial(Vec<u8>),
    /// Certificates of one agent, or of all of the region, issued before a date.
    IssuedBefore {
        /// The agent; `None` for all.
        agent: Option<Label>,
        /// The date.
        before: UnixTime,
    },
}

impl Plan {
    /// Parses and checks a plan. `file` is the name used in messages.
    ///
    /// # Errors
    /// Every mistake, each with its line and key.
    pub fn parse(text: &str, file: &str) -> Result<Self, PlanError> {
        parse::parse(text, file)
    }

    /// The edges of a broker, in the order of the plan.
    pub fn edges_of<'a>(&'a self, node: &'a NodeId) -> impl Iterator<Item = &'a EdgePlan> {
        self.edges.iter().filter(move |e| e.dial == *node || e.accept == *node)
    }
}

#[cfg(test)]
mod tests;
