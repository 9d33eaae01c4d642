//! What a node tells of itself: the report behind `glocal status`.

use glocal_core::count::Drop as DropReason;
use glocal_core::deny::{Access, Deny};
use glocal_core::name::Class;
use glocal_core::policy::{Administer, Permit};
use glocal_core::tenant::{Tenant, TenantKey};
use serde::Serialize;

use crate::context::Context;

/// One node's report.
#[derive(Debug, Serialize)]
pub struct Status {
    /// The node's id.
    pub node: String,
    /// `global`, `region` or `agent`.
    pub role: &'static str,
    /// The fabric.
    pub fabric: String,
    /// This release.
    pub version: &'static str,
    /// The node's life.
    pub incarnation: u64,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Whether it is leaving.
    pub lame_duck: bool,
    /// Epoch and version of the bundle, and how old it is.
    pub bundle: BundleStatus,
    /// Sessions now.
    pub sessions: usize,
    /// Bytes that wait for these sessions, as far as they are charged; a tenant is told of its own only.
    pub memory_used_bytes: usize,
    /// Bytes that may wait for all sessions.
    pub memory_bytes_max: usize,
    /// Bytes that may wait for the sessions of any one tenant.
    pub tenant_memory_bytes_max: usize,
    /// Subscriptions of these sessions.
    pub subscriptions: usize,
    /// The edges.
    pub edges: Vec<EdgeReport>,
    /// The tenants that have been active here.
    pub tenants: Vec<TenantReport>,
}

/// The bundle in force.
#[derive(Debug, Serialize)]
pub struct BundleStatus {
    /// Its epoch.
    pub epoch: u64,
    /// Its version.
    pub version: u64,
    /// When it expires, in seconds since 1970.
    pub expires: i64,
    /// `fresh`, `ageing`, `grace` or `dead`.
    pub state: String,
}

/// One edge.
#[derive(Debug, Serialize)]
pub struct EdgeReport {
    /// Its name.
    pub name: String,
    /// The broker at the other end.
    pub peer: String,
    /// Whether a bridge is up.
    pub up: bool,
    /// `up`, `connecting`, or why not: `nobody-there`, `wrong-ca`, `expired`, `wrong-name`, …
    pub state: &'static str,
    /// The failure in words.
    pub detail: String,
    /// Seconds in this state.
    pub since_s: u64,
    /// The peer's address.
    pub remote: String,
    /// Whether this side dialled.
    pub dialled: bool,
    /// `shared` or `dedicated`.
    pub mode: &'static str,
    /// Round-trip time in microseconds.
    pub rtt_us: u64,
    /// Tenants it carries now.
    pub tenants: Vec<String>,
    /// Bytes queued for it.
    pub queued_bytes: usize,
    /// What the peer sent that the edge does not allow.
    pub refused: u64,
    /// Attempts to dial.
    pub dials: u64,
}

/// One tenant.
#[derive(Debug, Serialize)]
pub struct TenantReport {
    /// Its id.
    pub tenant: String,
    /// Filters of its table, local and remote.
    pub filters: usize,
    /// Filters of other brokers, held while somebody here publishes.
    pub remote_filters: usize,
    /// Other brokers known to have subscribers.
    pub present: usize,
    /// Operations refused.
    pub denied: u64,
    /// What it and its sessions may publish here, bundle and configuration taken together, in words.
    pub limits: String,
    /// Its share of every edge.
    pub weight: u32,
    /// The weights of its classes and its caps on every edge, in words.
    pub edge_terms: String,
    /// Bytes that wait for its sessions here, as far as they are charged.
    pub memory_used_bytes: usize,
    /// What may wait for them: the lesser of what bundle and configuration allow.
    pub memory_bytes_max: usize,
    /// Per class, in the order live, ctrl, tele, bulk; silent classes are left out.
    pub classes: Vec<ClassReport>,
}

/// One class of one tenant.
#[derive(Debug, Serialize)]
pub struct ClassReport {
    /// The class.
    pub class: &'static str,
    /// Messages accepted from clients here.
    pub published: u64,
    /// Copies made for sessions here; those that a lane lost are among the drops, too.
    pub delivered: u64,
    /// Copies made for other brokers; those that a lane lost are among the drops, too.
    pub relayed_out: u64,
    /// Copies received from other brokers.
    pub relayed_in: u64,
    /// Drops of all reasons.
    pub dropped: u64,
    /// Drops by reason, those that happened.
    pub drops: Vec<(&'static str, u64)>,
}

/// Gathers the report a permit allows.
pub async fn gather(context: &Context, permit: &Permit<Administer<'_>>) -> Status {
    let now = context.clock.now();
    let trust = context.trust();
    let head = trust.bundle().head();
    let inspection = context.control.inspect().await;
    let of = |counts: &[(String, usize)], id: &str| counts.iter().find(|(t, _)| t == id).map_or(0, |(_, n)| *n);
    let remote = |id: &str| (of(&inspection.remote_filters, id), of(&inspection.present, id));
    let one = permit.tenant().map(|t| t.key());
    let tenants = context.shared.tenants();
    let seen = tenants.iter().filter(|t| one.is_none_or(|key| key == t.key()));
    let reports = seen.map(|t| tenant_report(t, remote(t.id().as_str())));
    Status {
        node: context.shared.node.to_string(),
        role: context.config().role.as_str(),
        fabric: head.fabric.to_string(),
        version: env!("CARGO_PKG_VERSION"),
        incarnation: context.shared.incarnation(),
        uptime_s: now.as_millis() / 1000,
        lame_duck: context.lame_duck.is_cancelled(),
        bundle: BundleStatus {
            epoch: head.epoch,
            version: head.version,
            expires: head.expires.0,
            state: format!("{:?}", context.trust().bundle_state(crate::trust::unix_now())).to_lowercase(),
        },
        sessions: context.counters.sessions.value(),
        memory_used_bytes: permit.tenant().map_or_else(|| tenants.memory().used(), |tenant| tenant.memory().used()),
        memory_bytes_max: tenants.memory().bounds().node_bytes,
        tenant_memory_bytes_max: tenants.memory().bounds().tenant_bytes,
        subscriptions: inspection.subscriptions,
        edges: context.edges.list().iter().map(|status| edge_report(context, status, one)).collect(),
        tenants: reports.filter(|t| t.filters > 0 || t.denied > 0 || !t.classes.is_empty()).collect(),
    }
}

/// What is said of an edge; of its tenants only the `one` that was asked about.
fn edge_report(context: &Context, status: &crate::edge_status::EdgeStatus, one: Option<TenantKey>) -> EdgeReport {
    let edge = status.edge();
    let state = status.state();
    let link = context.shared.link(edge.key());
    let tenants = context.shared.tenants();
    let name = |key| tenants.by_key(key).map(|t| t.id().to_string());
    EdgeReport {
        name: edge.name().to_string(),
        peer: edge.peer().to_string(),
        up: edge.is_up(),
        state: status.word(&state),
        detail: state.detail,
        since_s: context.clock.now().micros_since(state.since) / 1_000_000,
        remote: state.remote,
        dialled: state.dialled,
        mode: glocal_engine::handshake::mode(edge.is_dedicated()),
        rtt_us: state.rtt_micros,
        tenants: edge.effective().iter().filter(|key| one.is_none_or(|one| one == *key)).filter_map(name).collect(),
        queued_bytes: link.map_or(0, |link| link.inbox().with(|lanes| lanes.sched().backlog_bytes())),
        refused: edge.refused.value(),
        dials: status.dials.value(),
    }
}

fn tenant_report(tenant: &Tenant, (remote_filters, present): (usize, usize)) -> TenantReport {
    let counters = tenant.counters();
    let denied = [Access::Read, Access::Write]
        .iter()
        .flat_map(|access| Deny::ALL.iter().map(|reason| counters.denials(*access, *reason)))
        .sum();
    let class = |class: Class| {
        let counters = counters.class(class);
        let drops: Vec<_> =
            DropReason::ALL.iter().map(|r| (r.code(), counters.drops(*r))).filter(|(_, n)| *n > 0).collect();
        ClassReport {
            class: class.as_str(),
            published: counters.published.value(),
            delivered: counters.delivered.value(),
            relayed_out: counters.relayed_out.value(),
            relayed_in: counters.relayed_in.value(),
            dropped: drops.iter().map(|(_, n)| n).sum(),
            drops,
        }
    };
    let active = |c: &ClassReport| c.published + c.delivered + c.relayed_out + c.relayed_in + c.dropped > 0;
    TenantReport {
        tenant: tenant.id().to_string(),
        filters: tenant.table().filters(),
        remote_filters,
        present,
        denied,
        memory_used_bytes: tenant.memory().used(),
        memory_bytes_max: tenant.memory().max(),
        limits: tenant.ingress().limits().to_string(),
        weight: tenant.section().weight,
        edge_terms: tenant.section().terms.to_string(),
        classes: Class::ALL.into_iter().map(class).filter(active).collect(),
    }
}
