//! What all tasks of one node share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use glocal_core::count::Counter;
use glocal_core::edge::EdgeKey;
use glocal_engine::advisory::Advisor;
use glocal_engine::driver::{Command, Outcome};
use glocal_engine::shared::Shared;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bridge::AttachRefusal;
use crate::bridge_runtime::BridgeHandle;
use crate::clock::Clock;
use crate::config::Config;
use crate::edge_status::EdgeStatuses;
use crate::live::Live;
use crate::rebirth::LaterLife;
use crate::reload::Reloader;
use crate::session::BusyPolls;
use crate::trust::{BridgeCertificates, Trust};

/// Handles of one running node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    /// The configuration in force.
    pub config: Live<Config>,
    /// The trust epoch in force.
    pub trust: Live<Trust>,
    /// What machines share.
    pub shared: Arc<Shared>,
    /// The clock.
    pub clock: Clock,
    /// The control half.
    pub control: ControlHandle,
    /// The node's voice towards its tenants.
    pub advisor: Arc<Advisor>,
    /// How the edges are.
    pub edges: Arc<EdgeStatuses>,
    /// What changes bundle and configuration.
    pub reloader: Arc<Reloader>,
    /// Told after every change, and when the node begins to leave: whoever holds a connection asks again.
    pub changes: Changes,
    /// The endpoint of bridges.
    pub bridges: quinn::Endpoint,
    /// Where bridges run.
    pub bridge_threads: BridgeHandle,
    /// What the endpoint of bridges presents.
    pub bridge_certificates: Arc<BridgeCertificates>,
    /// Where bridges tell of a later life of this node.
    pub later_life: Arc<LaterLife>,
    /// Counters of the node itself.
    pub counters: Arc<NodeCounters>,
    /// Busy polling of sessions.
    pub busy_polls: Arc<BusyPolls>,
    /// Cancelled when the node begins to leave: no new sessions.
    pub lame_duck: CancellationToken,
    /// Cancelled when everything must end.
    pub stop: CancellationToken,
    /// Sessions and bridges.
    pub tasks: TaskTracker,
}

/// Tells those who hold a connection that something has changed.
#[derive(Clone, Debug)]
pub struct Changes(Arc<watch::Sender<u64>>);

impl Default for Changes {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Changes {
    /// Says that something has changed.
    pub fn tell(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Hears of every change from now on; of several at once only once.
    #[must_use]
    pub fn hear(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// Counters of the node that belong to no tenant.
#[derive(Debug, Default)]
pub struct NodeCounters {
    /// Sessions accepted.
    pub sessions_opened: Counter,
    /// Sessions now.
    pub sessions: Gauge,
    /// Handshakes that failed or took too long.
    pub handshakes_failed: Counter,
    /// Connections turned away because a limit was reached.
    pub connections_refused: Counter,
    /// Sessions closed for breaking the protocol.
    pub protocol_errors: Counter,
    /// Bridges closed for breaking the protocol or the edge's set.
    pub bridge_faults: Counter,
    /// Later lives of this node that were heard of and exceeded.
    pub lives_exceeded: Counter,
    /// Bridges refused since another broker bears the same name.
    pub duplicate_nodes: Counter,
    /// Connections of single tenants that were not attached to a bridge, by reason.
    pub attaches_refused: [Counter; AttachRefusal::ALL.len()],
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicUsize);

impl Gauge {
    /// Adds one and returns the value after.
    pub fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Takes one away.
    pub fn subtract(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// The value now.
    #[must_use]
    pub fn value(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// One request to the control half.
#[derive(Debug)]
pub enum Request {
    /// Apply commands; answered once they took effect.
    Apply(Vec<Command>, Option<oneshot::Sender<Vec<Outcome>>>),
    /// Tell what it holds.
    Inspect(oneshot::Sender<Inspection>),
}

/// What the control half holds.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// Subscriptions of sessions here.
    pub subscriptions: usize,
    /// Filters told by other brokers, by tenant.
    pub remote_filters: Vec<(String, usize)>,
    /// Other brokers known to have subscribers, by tenant.
    pub present: Vec<(String, usize)>,
    /// The edges of the fabric, as this node believes them to be.
    pub edges: Vec<KnownEdge>,
}

/// One edge of the fabric.
#[derive(Clone, Debug, serde::Serialize)]
pub struct KnownEdge {
    /// Its name.
    pub name: String,
    /// Its ends.
    pub ends: [String; 2],
    /// What crossing it costs; `null` when it is not up.
    pub cost: Option<u32>,
}

/// The way to the control half.
#[derive(Clone, Debug)]
pub struct ControlHandle(pub mpsc::Sender<Request>);

impl ControlHandle {
    /// Applies commands and waits until they took effect. Empty once the node is ending.
    pub async fn apply(&self, commands: Vec<Command>) -> Vec<Outcome> {
        if commands.is_empty() {
            return Vec::new();
        }
        let (done, outcomes) = oneshot::channel();
        if self.0.send(Request::Apply(commands, Some(done))).await.is_err() {
            return Vec::new();
        }
        outcomes.await.unwrap_or_default()
    }

    /// What the control half holds.
    pub async fn inspect(&self) -> Inspection {
        let (done, inspection) = oneshot::channel();
        if self.0.send(Request::Inspect(done)).await.is_err() {
            return Inspection::default();
        }
        inspection.await.unwrap_or_default()
    }
}

impl Context {
    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        self.config.now()
    }

    /// The trust epoch in force.
    #[must_use]
    pub fn trust(&self) -> Arc<Trust> {
        self.trust.now()
    }

    /// The edge with this key, in the configuration.
    #[must_use]
    pub fn edge_name(&self, edge: EdgeKey) -> String {
        self.shared.link(edge).map_or_else(String::new, |link| link.edge().name().to_string())
    }
}
