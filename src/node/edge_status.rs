//! How each edge is, for logs, `status` and metrics: the truth of the last attempt, in words a script can test.

use std::collections::BTreeMap;
use std::sync::Arc;

use glocal_core::count::Counter;
use glocal_core::edge::{Edge, EdgeKey};
use glocal_core::identity::KeyId;
use glocal_core::tenant::TenantKey;
use glocal_core::time::Time;
use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;

use crate::bridge::AttachPoint;

/// Why there is no bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// Nothing answers at any address.
    NobodyThere,
    /// The peer's certificate is not of this fabric, or ours not of the peer's.
    WrongCa,
    /// A certificate has expired or is not valid yet.
    Expired,
    /// The peer is another node than configured.
    WrongName,
    /// The certificates were refused for another reason.
    Refused,
    /// The hellos do not fit.
    Handshake,
    /// The peer fell silent.
    Silent,
    /// The peer broke the protocol, or sent what the edge does not allow.
    Fault,
    /// The peer closed the bridge.
    Closed,
    /// Another broker with a key of its own bears the same name, and lives.
    DuplicateNode,
    /// The edge has another mode at the other end.
    EdgeMode,
    /// The peer answers, but does not read a stream that carries data.
    HalfDead,
}

impl Failure {
    /// Every failure.
    pub const ALL: [Self; 12] = [
        Self::NobodyThere,
        Self::WrongCa,
        Self::Expired,
        Self::WrongName,
        Self::Refused,
        Self::Handshake,
        Self::Silent,
        Self::Fault,
        Self::Closed,
        Self::DuplicateNode,
        Self::EdgeMode,
        Self::HalfDead,
    ];

    /// The stable code: log field, metric label, `status` field.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::NobodyThere => "nobody-there",
            Self::WrongCa => "wrong-ca",
            Self::Expired => "expired",
            Self::WrongName => "wrong-name",
            Self::Refused => "refused",
            Self::Handshake => "handshake",
            Self::Silent => "silent",
            Self::Fault => "fault",
            Self::Closed => "closed",
            Self::DuplicateNode => "duplicate-node",
            Self::EdgeMode => "edge-mode",
            Self::HalfDead => "half-dead",
        }
    }
}

/// The state of one edge.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Why it is not up; `None` while up or before the first attempt.
    pub failure: Option<Failure>,
    /// The failure in words.
    pub detail: String,
    /// When it came up or went down.
    pub since: Time,
    /// Whether this side dialled the bridge that is up.
    pub dialled: bool,
    /// The peer's address.
    pub remote: String,
    /// Smoothed round-trip time, in microseconds.
    pub rtt_micros: u64,
    /// Tenants configured here that the bundle allows.
    pub allowed: usize,
}

/// The connection of one tenant of a dedicated edge whose bridge is up.
#[derive(Clone, Debug, Default)]
pub struct TenantState {
    /// Whether it is up.
    pub up: bool,
    /// Why it is not up; `None` while up or before the first attempt.
    pub failure: Option<Failure>,
    /// The failure in words.
    pub detail: String,
    /// When it came up or went down.
    pub since: Time,
    /// The peer's address, which for one that this side accepted is also its own.
    pub remote: String,
    /// Whether the peer is there under a certificate of the tenant, and not under its own.
    pub under_tenant: bool,
    /// Smoothed round-trip time, in microseconds.
    pub rtt_micros: u64,
    /// How often it came up while the bridge was up.
    pub ups: u64,
}

impl TenantState {
    /// The state in one word that scripts can test: `up`, `connecting`, or why not.
    #[must_use]
    pub fn word(&self) -> &'static str {
        if self.up { "up" } else { self.failure.map_or("connecting", |failure| failure.code()) }
    }
}

/// The bridge that holds an edge now.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The peer's life and the number of its dial.
    pub age: (u64, u64),
    /// Whether this side dialled.
    pub dialled: bool,
    /// Ends the bridge.
    pub cancel: CancellationToken,
    /// When it took the edge.
    pub since: Time,
    /// Tells bridges of one edge apart.
    pub number: u64,
    /// The key in the peer's certificate.
    pub key: Option<KeyId>,
}

/// One edge's state and counters.
#[derive(Debug)]
pub struct EdgeStatus {
    edge: Arc<Edge>,
    state: Mutex<State>,
    /// The bridge that holds the edge.
    pub holder: Mutex<Option<Holder>>,
    /// Held while a bridge of this edge is up, so that the next one waits until it has gone.
    pub turn: tokio::sync::Mutex<()>,
    /// Attempts to dial.
    pub dials: Counter,
    /// Bridges that came up.
    pub ups: Counter,
    failures: [Counter; Failure::ALL.len()],
    numbers: Counter,
    /// The tenants' connections of a dedicated edge, while its bridge is up.
    tenants: Mutex<BTreeMap<TenantKey, TenantState>>,
    /// Connections of tenants that came up.
    pub tenant_ups: Counter,
    /// Connections of tenants that ended or did not come up.
    pub tenant_failures: Counter,
    /// Where tenants' connections are attached, while a bridge of a dedicated edge is up that this side accepted.
    pub(crate) attach: Mutex<Option<AttachPoint>>,
}

impl EdgeStatus {
    /// The edge.
    #[must_use]
    pub const fn edge(&self) -> &Arc<Edge> {
        &self.edge
    }

    /// The state now.
    #[must_use]
    pub fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// `state` in one word that scripts can test: `up`, `connecting`, or why not.
    #[must_use]
    pub fn word(&self, state: &State) -> &'static str {
        if self.edge.is_up() { "up" } else { state.failure.map_or("connecting", |failure| failure.code()) }
    }

    /// Notes that a bridge is up.
    pub fn up(&self, state: State) {
        self.ups.add(1);
        *self.state.lock() = state;
    }

    /// Notes a round-trip time.
    pub fn rtt(&self, micros: u64) {
        self.state.lock().rtt_micros = micros;
    }

    /// Notes a failure; `true` when it differs from the last one, and so deserves a log line.
    pub fn down(&self, failure: Failure, detail: &str, now: Time) -> bool {
        if let Some(counter) = self.failures.get(failure as usize) {
            counter.add(1);
        }
        let mut state = self.state.lock();
        let news = state.failure != Some(failure);
        *state = State {
            failure: Some(failure),
            detail: detail.to_owned(),
            since: if news { now } else { state.since },
            allowed: state.allowed,
            ..State::default()
        };
        news
    }

    /// How often it failed for `failure`.
    #[must_use]
    pub fn failures(&self, failure: Failure) -> u64 {
        self.failures.get(failure as usize).map_or(0, Counter::value)
    }

    /// The tenants' connections, while the bridge of a dedicated edge is up.
    #[must_use]
    pub fn tenants(&self) -> BTreeMap<TenantKey, TenantState> {
        self.tenants.lock().clone()
    }

    /// Changes what is known of one tenant's connection.
    pub(crate) fn tenant(&self, tenant: TenantKey, change: impl FnOnce(&mut TenantState)) {
        change(self.tenants.lock().entry(tenant).or_default());
    }

    /// Forgets the connections of tenants that are not among these.
    pub(crate) fn retain_tenants(&self, keep: impl Fn(TenantKey) -> bool) {
        self.tenants.lock().retain(|tenant, _| keep(*tenant));
    }

    /// A number no other bridge of this edge has.
    pub fn next_number(&self) -> u64 {
        self.numbers.add(1);
        self.numbers.value()
    }
}

/// All edges of the node, those that were taken from it included.
#[derive(Debug, Default)]
pub struct EdgeStatuses(RwLock<Vec<Arc<EdgeStatus>>>);

impl EdgeStatuses {
    /// The edges in the order of their keys, none of which has been tried.
    #[must_use]
    pub fn new(edges: impl IntoIterator<Item = Arc<Edge>>) -> Self {
        let statuses = Self::default();
        statuses.add(edges);
        statuses
    }

    /// Adds edges; their keys follow those that are there.
    pub(crate) fn add(&self, edges: impl IntoIterator<Item = Arc<Edge>>) {
        let status = |edge| EdgeStatus {
            edge,
            state: Mutex::default(),
            holder: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            dials: Counter::default(),
            ups: Counter::default(),
            failures: std::array::from_fn(|_| Counter::default()),
            numbers: Counter::default(),
            tenants: Mutex::default(),
            tenant_ups: Counter::default(),
            tenant_failures: Counter::default(),
            attach: Mutex::default(),
        };
        self.0.write().extend(edges.into_iter().map(|edge| Arc::new(status(edge))));
    }

    /// One edge.
    #[must_use]
    pub fn get(&self, edge: EdgeKey) -> Option<Arc<EdgeStatus>> {
        self.0.read().get(usize::try_from(edge.0).ok()?).cloned()
    }

    /// The edges that this node has.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<EdgeStatus>> {
        self.0.read().iter().filter(|status| !status.edge.is_retired()).cloned().collect()
    }
}
