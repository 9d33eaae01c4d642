//! What a node tells of its edges and routes: the reports behind `glocal edges` and `glocal routes`.

use std::sync::Arc;

use glocal_core::name::Class;
use glocal_core::policy::{Administer, Permit};
use glocal_core::reliable::outgoing::Sight;
use glocal_core::tenant::{Tenant, TenantKey};
use glocal_engine::handshake::mode;
use serde::Serialize;

use crate::config::{TenantGlob, TenantSet};
use crate::context::{Context, KnownEdge};
use crate::edge_status::EdgeStatus;

/// Every edge of one node.
#[derive(Debug, Serialize)]
pub struct EdgesReport {
    /// The node.
    pub node: String,
    /// Its edges, by name.
    pub edges: Vec<EdgeSight>,
    /// What of `ctrl` and `bulk` has entered here and is not acknowledged.
    pub windows: Vec<WindowSight>,
}

/// One edge of this node.
#[derive(Debug, Serialize)]
pub struct EdgeSight {
    /// Its name.
    pub name: String,
    /// The broker at the other end.
    pub peer: String,
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
    /// The tenants' connections of a dedicated edge whose bridge is up, by tenant.
    pub connections: Vec<TenantSight>,
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u64,
    /// What crossing it costs, as both ends have told; `null` while they have not.
    pub cost: Option<u32>,
    /// What this side's configuration adds to the cost.
    pub metric: u32,
    /// Who may cross.
    pub tenants: Allowed,
    /// What waits in its lanes.
    pub lanes: Vec<LaneSight>,
    /// Bytes in all lanes.
    pub queued_bytes: usize,
    /// What was lost here on its way to the peer.
    pub drops: Vec<LossSight>,
    /// What the peer sent that the edge does not allow.
    pub refused: u64,
    /// Attempts to dial.
    pub dials: u64,
    /// Bridges that came up.
    pub ups: u64,
}

/// The connection of one tenant.
#[derive(Debug, Serialize)]
pub struct TenantSight {
    /// The tenant.
    pub tenant: String,
    /// `up`, `connecting`, or why not, as for edges.
    pub state: &'static str,
    /// The failure in words.
    pub detail: String,
    /// Seconds in this state.
    pub since_s: u64,
    /// The peer's address.
    pub remote: String,
    /// What the peer is there under: `node`, its own certificate, or `tenant`, one of the tenant; `null` while it is not up.
    pub certificate: Option<&'static str>,
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u64,
    /// How often it came up since the bridge did.
    pub ups: u64,
}

/// The tenants of an edge, by who allows them.
#[derive(Debug, Serialize)]
pub struct Allowed {
    /// This side's configuration: names and prefixes as they are written there.
    pub configured: Vec<String>,
    /// The bundle's.
    pub bundle: Vec<String>,
    /// Those of both that the peer does not allow, or has not agreed to yet; empty while the edge is down.
    pub not_by_peer: Vec<String>,
    /// Those that cross now.
    pub effective: Vec<String>,
}

/// What of one tenant and class is on its way from here to one broker.
#[derive(Debug, Serialize)]
pub struct WindowSight {
    /// The tenant.
    pub tenant: String,
    /// The class.
    pub class: &'static str,
    /// The broker where it entered: this one.
    pub origin: String,
    /// The broker that has to acknowledge it.
    pub target: String,
    /// The edge it takes now; `null` where no way leads there.
    pub edge: Option<String>,
    /// Bytes that were sent and are not acknowledged.
    pub in_flight_bytes: usize,
    /// Bytes that may be in flight.
    pub window_bytes: usize,
    /// Messages that are not acknowledged, sent or not.
    pub unacknowledged: usize,
    /// Their bytes.
    pub unacknowledged_bytes: usize,
    /// For how long the oldest of them has been kept, in milliseconds.
    pub oldest_ms: u64,
}

/// Frames of one tenant and class that an edge has lost.
#[derive(Debug, Serialize)]
pub struct LossSight {
    /// The tenant.
    pub tenant: String,
    /// The class.
    pub class: &'static str,
    /// Why.
    pub reason: &'static str,
    /// How many since the start.
    pub frames: u64,
}

/// One lane with something in it.
#[derive(Debug, Serialize)]
pub struct LaneSight {
    /// The tenant.
    pub tenant: String,
    /// The class.
    pub class: &'static str,
    /// Bytes that wait.
    pub bytes: usize,
    /// Whether they wait since the class or the tenant is above a cap.
    pub above_cap: bool,
}

/// The fabric and the routes of tenants as one node knows them.
#[derive(Debug, Serialize)]
pub struct RoutesReport {
    /// The node.
    pub node: String,
    /// Every edge of the fabric.
    pub edges: Vec<KnownEdge>,
    /// The routes, by tenant.
    pub tenants: Vec<TenantRoutes>,
}

/// The routes of one tenant.
#[derive(Debug, Serialize)]
pub struct TenantRoutes {
    /// The tenant.
    pub tenant: String,
    /// Whether its view of the mesh is complete, so that "nobody answers" can be believed.
    pub in_sync: bool,
    /// Every other broker of the fabric.
    pub brokers: Vec<BrokerRoute>,
}

/// The way to one broker.
#[derive(Debug, Serialize)]
pub struct BrokerRoute {
    /// The broker.
    pub broker: String,
    /// The edge to take; `null` where no way leads there.
    pub edge: Option<String>,
    /// The cost of the whole way.
    pub cost: Option<u32>,
    /// The broker's life, zero where it is not known.
    pub incarnation: u64,
}

/// Gathers the edges a permit allows to see; of their tenants the one that was asked about.
pub async fn edges(context: &Context, permit: &Permit<Administer<'_>>) -> EdgesReport {
    let one = permit.tenant().map(|tenant| tenant.key());
    let known = context.control.inspect().await.edges;
    let mut edges: Vec<_> = context.edges.list().iter().map(|status| edge(context, status, one, &known)).collect();
    edges.sort_by(|a, b| a.name.cmp(&b.name));
    EdgesReport { node: context.shared.node.to_string(), edges, windows: windows(context, one) }
}

fn edge(context: &Context, status: &EdgeStatus, one: Option<TenantKey>, known: &[KnownEdge]) -> EdgeSight {
    let edge = status.edge();
    let state = status.state();
    let (config, trust) = (context.config(), context.trust());
    let configured = config.edges.iter().find(|e| e.name == *edge.name());
    let tenants = context.shared.tenants();
    let asked: Vec<_> = tenants.iter().filter(|t| one.is_none_or(|one| one == t.key())).collect();
    let by_bundle = |t: &&&Arc<Tenant>| trust.bundle().edge_allows(edge.name(), t.id().as_str());
    let names = |list: Vec<&&Arc<Tenant>>| list.into_iter().map(|t| t.id().to_string()).collect::<Vec<_>>();
    let effective = edge.effective();
    let crosses = |t: &&&Arc<Tenant>| effective.contains(t.key());
    let by_configuration = |t: &&&Arc<Tenant>| configured.is_none_or(|e| e.tenants.matches(t.id()));
    let open = asked.iter().filter(by_bundle).filter(by_configuration).filter(|t| edge.is_up() && !crosses(t));
    let link = context.shared.link(edge.key());
    let (lanes, drops) = link.map_or_else(Default::default, |link| (lanes(&link, &asked), drops(&link, &asked)));
    EdgeSight {
        name: edge.name().to_string(),
        peer: edge.peer().to_string(),
        state: status.word(&state),
        detail: state.detail,
        since_s: context.clock.now().micros_since(state.since) / 1_000_000,
        remote: state.remote,
        dialled: state.dialled,
        mode: mode(edge.is_dedicated()),
        connections: connections(context, status, &asked),
        rtt_us: state.rtt_micros,
        cost: known.iter().find(|k| k.name == edge.name().as_str()).and_then(|k| k.cost),
        metric: edge.metric(),
        tenants: Allowed {
            configured: configured
                .map_or_else(Vec::new, |e| globs(&e.tenants, one.and_then(|_| asked.first().copied()))),
            bundle: names(asked.iter().filter(by_bundle).collect()),
            not_by_peer: names(open.collect()),
            effective: names(asked.iter().filter(crosses).collect()),
        },
        queued_bytes: lanes.iter().map(|lane| lane.bytes).sum(),
        lanes,
        drops,
        refused: edge.refused.value(),
        dials: status.dials.value(),
        ups: status.ups.value(),
    }
}

/// The connections of the tenants that were asked about.
fn connections(context: &Context, status: &EdgeStatus, asked: &[&Arc<Tenant>]) -> Vec<TenantSight> {
    let (states, now) = (status.tenants(), context.clock.now());
    let of = |tenant: &&Arc<Tenant>| {
        let state = states.get(&tenant.key())?;
        Some(TenantSight {
            tenant: tenant.id().to_string(),
            state: state.word(),
            detail: state.detail.clone(),
            since_s: now.micros_since(state.since) / 1_000_000,
            remote: state.remote.clone(),
            certificate: state.up.then_some(if state.under_tenant { "tenant" } else { "node" }),
            rtt_us: state.rtt_micros,
            ups: state.ups,
        })
    };
    let mut found: Vec<_> = asked.iter().filter_map(of).collect();
    found.sort_by(|a, b| a.tenant.cmp(&b.tenant));
    found
}

/// What the configuration says, where it is about the `one` tenant that was asked about.
fn globs(configured: &TenantSet, one: Option<&Arc<Tenant>>) -> Vec<String> {
    let about = |glob: &&TenantGlob| one.is_none_or(|tenant| glob.matches(tenant.id()));
    configured.globs().iter().filter(about).map(ToString::to_string).collect()
}

fn lanes(link: &glocal_engine::link::Link, asked: &[&Arc<Tenant>]) -> Vec<LaneSight> {
    link.inbox().with(|lanes| {
        let sched = lanes.sched();
        let busy = asked.iter().filter(|tenant| sched.tenant_backlog(tenant.key()) > 0);
        let of = |tenant: &&Arc<Tenant>| {
            let (key, name) = (tenant.key(), tenant.id().to_string());
            Class::ALL.into_iter().map(move |class| (key, class, name.clone()))
        };
        let sized = busy.flat_map(of).map(|(key, class, tenant)| LaneSight {
            tenant,
            class: class.as_str(),
            bytes: sched.lane_backlog(key, class),
            above_cap: sched.rests(key, class),
        });
        sized.filter(|lane| lane.bytes > 0).collect()
    })
}

fn drops(link: &glocal_engine::link::Link, asked: &[&Arc<Tenant>]) -> Vec<LossSight> {
    let lost: Vec<_> = link.inbox().with(|lanes| lanes.lost().collect());
    let of = |(key, class, reason, frames): (TenantKey, Class, _, _)| {
        let tenant = asked.iter().find(|tenant| tenant.key() == key)?;
        Some(LossSight { tenant: tenant.id().to_string(), class: class.as_str(), reason, frames })
    };
    let mut found: Vec<_> = lost.into_iter().filter_map(of).collect();
    found.sort_by(|a, b| (&a.tenant, a.class, a.reason).cmp(&(&b.tenant, b.class, b.reason)));
    found
}

/// The windows of one tenant, or of all.
fn windows(context: &Context, one: Option<TenantKey>) -> Vec<WindowSight> {
    let (shared, now) = (&context.shared, context.clock.now());
    let (tenants, brokers) = (shared.tenants(), shared.brokers());
    let of = |tenant: &Arc<Tenant>| {
        let (table, id) = (tenant.table(), tenant.id().to_string());
        let sight = |(class, sight): (Class, Sight)| WindowSight {
            tenant: id.clone(),
            class: class.as_str(),
            origin: shared.node.to_string(),
            target: brokers.name(sight.target).map(ToString::to_string).unwrap_or_default(),
            edge: table.routes().hop(sight.target).map(|hop| hop.edge.name().to_string()),
            in_flight_bytes: sight.in_flight_bytes,
            window_bytes: sight.window_bytes,
            unacknowledged: sight.unacknowledged,
            unacknowledged_bytes: sight.unacknowledged_bytes,
            oldest_ms: sight.oldest_micros / 1000,
        };
        shared.reliable().windows(tenant.key(), now).into_iter().map(sight).collect::<Vec<_>>()
    };
    tenants.iter().filter(|tenant| one.is_none_or(|one| one == tenant.key())).flat_map(of).collect()
}

/// Gathers the routes a permit allows to see.
pub async fn routes(context: &Context, permit: &Permit<Administer<'_>>) -> RoutesReport {
    let one = permit.tenant().map(|tenant| tenant.key());
    let edges = context.control.inspect().await.edges;
    let brokers = context.shared.brokers();
    let of = |tenant: &Arc<Tenant>| {
        let table = tenant.table();
        let others = brokers.iter().filter(|(_, index)| *index != context.shared.own);
        let route = |(name, index): (&glocal_core::name::NodeId, _)| {
            let hop = table.routes().hop(index);
            BrokerRoute {
                broker: name.to_string(),
                edge: hop.map(|hop| hop.edge.name().to_string()),
                cost: hop.map(|hop| hop.cost),
                incarnation: table.routes().life(index),
            }
        };
        TenantRoutes { tenant: tenant.id().to_string(), in_sync: table.in_sync(), brokers: others.map(route).collect() }
    };
    let tenants = context.shared.tenants();
    let asked = tenants.iter().filter(|tenant| one.is_none_or(|one| one == tenant.key()));
    RoutesReport { node: context.shared.node.to_string(), edges, tenants: asked.map(of).collect() }
}
