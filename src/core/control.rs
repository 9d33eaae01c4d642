//! The control half: one owner of subscriptions, interest and topology, publishing immutable tables (DESIGN section 11).
//!
//! Everything that changes routing passes through one [`Control`]; [`Control::commit`] publishes the changed tables at
//! once and hands out the records to send to other brokers. Records of a tenant are only ever given to edges whose
//! effective set holds it, and only accepted from origins that can reach this node over the edge they came by.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::bundle::Head;
use crate::count::Drop;
use crate::deny::Deny;
use crate::edge::{Edge, EdgeKey, TenantSet};
use crate::interest::Interest;
use crate::interest::presence::Record;
use crate::limits::SESSION_SUBSCRIPTIONS_MAX;
use crate::name::{Class, NodeId, QueueGroup};
use crate::policy::{Permit, Read, Scope};
use crate::port::{SessionPort, Sub};
use crate::routes::{BrokerIndex, Brokers, Routes};
use crate::sched::EdgeTerms;
use crate::table::Table;
use crate::tenant::{Tenant, TenantKey, Tenants};
use crate::time::Time;
use crate::topology::{LinkCrypto, Topology};

/// A record to send over an edge, in the tenant's own `ctrl` lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The edge.
    pub edge: EdgeKey,
    /// The tenant.
    pub tenant: TenantKey,
    /// The broker it speaks for.
    pub origin: BrokerIndex,
    /// That broker's incarnation.
    pub incarnation: u64,
    /// The record.
    pub record: Record,
}

/// Why a record of a peer was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The edge is unknown or down.
    #[error("no bridge is up on this edge")]
    EdgeDown,
    /// The tenant is not effective on the edge.
    #[error("the tenant is not allowed on this edge")]
    Tenant,
    /// The origin is this node, or cannot reach it over this edge for this tenant.
    #[error("the origin is not behind this edge")]
    Origin,
    /// As many brokers as may follow the tenant's interest do so already.
    #[error("too many brokers ask for the interest of this tenant")]
    Full,
}

#[derive(Clone, Debug)]
struct SubRecord {
    sub: Arc<Sub>,
    reach: Reach,
}

/// The tenants that a subscription reaches, and who else hears of it. Nearly always it is one tenant: more than that take a
/// place of their own.
#[derive(Clone, Debug)]
enum Reach {
    /// One tenant; whether brokers elsewhere are told.
    One(TenantKey, bool),
    /// All tenants of the bundle.
    All(Box<Everywhere>),
}

#[derive(Clone, Debug)]
struct Everywhere {
    tenants: Vec<TenantKey>,
    /// Whether brokers elsewhere are told that here is an observer.
    told: bool,
}

impl Reach {
    fn new(scope: &Scope, tenants: &Tenants, told: bool) -> Self {
        match scope {
            Scope::One(tenant) => Self::One(tenant.key(), told),
            Scope::All => Self::All(Box::new(Everywhere { tenants: tenants.iter().map(|t| t.key()).collect(), told })),
        }
    }

    fn tenants(&self) -> &[TenantKey] {
        match self {
            Self::One(tenant, _) => std::slice::from_ref(tenant),
            Self::All(all) => &all.tenants,
        }
    }

    /// Whether brokers elsewhere are told of it, tenant by tenant.
    const fn is_advertised(&self) -> bool {
        matches!(self, Self::One(_, true))
    }

    /// Whether it observes all tenants, and is told as one.
    fn is_everywhere(&self) -> bool {
        matches!(self, Self::All(all) if all.told)
    }
}

/// Gives a session's classes the weights that its tenant has, or those of a tenant that says nothing.
fn weigh(tenants: &Tenants, port: &SessionPort) {
    let tenant = tenants.by_id(port.principal().tenant().as_str());
    let weights = tenant.map_or(EdgeTerms::DEFAULT, |tenant| tenant.section().terms).class_weights;
    port.inbox().with(|lanes| lanes.set_weights(weights));
}

#[derive(Debug)]
struct EdgeState {
    edge: Arc<Edge>,
    up: bool,
    expected: Option<u32>,
    finished: BTreeSet<TenantKey>,
    /// Whether everything the peer knew when the bridge came up has been told, whatever was narrowed since.
    complete: bool,
    /// Tenants that came to the edge while the bridge was up, whose lists the peer has not told yet.
    awaited: BTreeSet<TenantKey>,
    /// Whether the peer knew something else of who is present when it said so last.
    differs: bool,
}

impl EdgeState {
    const fn new(edge: Arc<Edge>) -> Self {
        Self {
            edge,
            up: false,
            expected: None,
            finished: BTreeSet::new(),
            complete: false,
            awaited: BTreeSet::new(),
            differs: false,
        }
    }

    fn reset(&mut self, up: bool) {
        *self = Self { up, ..Self::new(Arc::clone(&self.edge)) };
    }

    /// Whether everything the peer knew when the bridge came up has been told.
    fn has_all(&self) -> bool {
        self.complete || self.expected.is_some_and(|n| self.finished.len() >= n as usize)
    }

    fn in_sync(&self, tenant: TenantKey) -> bool {
        !self.awaited.contains(&tenant) && (self.has_all() || self.finished.contains(&tenant))
    }
}

/// How far apart the numbers of streams of two lives begin, in bits.
const STREAMS_PER_LIFE_BITS: u32 = 20;

/// The owner of this node's routing state.
#[derive(Debug)]
pub struct Control {
    own: BrokerIndex,
    incarnation: u64,
    brokers: Arc<Brokers>,
    tenants: Arc<Tenants>,
    topology: Topology,
    groups: BTreeMap<Usable, Group>,
    edges: BTreeMap<EdgeKey, EdgeState>,
    states: BTreeMap<TenantKey, TenantState>,
    sessions: BTreeMap<u64, BTreeMap<u32, SubRecord>>,
    /// Tenants whose edges the last bundle changed: their lists are told again to peers that take the bundle later.
    moved: BTreeSet<TenantKey>,
    /// Epoch and version of the bundle in force.
    version: (u64, u64),
    /// The edges each tenant's section names, as of the bundle in force.
    carried: BTreeMap<TenantKey, Carried>,
    /// Tenants of which edges were cut, or are not any more, since their routes were computed.
    recut: BTreeSet<TenantKey>,
    pending: BTreeMap<TenantKey, Table>,
    outgoing: Vec<Outgoing>,
    settled: bool,
    now: Time,
    /// When neighbours were last told what is known of who is present.
    compared: Time,
    /// The lives of brokers that were taken note of.
    noted: BTreeMap<BrokerIndex, u64>,
    /// Tenants of which other brokers are to be told something.
    busy: BTreeSet<TenantKey>,
    /// Tenants of which other brokers may have to be asked something.
    curious: BTreeSet<TenantKey>,
    letters: Vec<Letter>,
    /// The tenants for which sessions publish.
    publishing: BTreeMap<u64, BTreeSet<TenantKey>>,
    next_stream: u64,
    /// What observers of all tenants want here, counted.
    observers: BTreeMap<Interest, u32>,
}

impl Control {
    /// The control half of node `own` in its life `incarnation`; `None` when the head does not name it.
    #[must_use]
    pub fn new(
        own: &NodeId,
        incarnation: u64,
        head: &Head,
        tenants: Arc<Tenants>,
        edges: Vec<Arc<Edge>>,
        crypto: Box<dyn LinkCrypto>,
    ) -> Option<Self> {
        let brokers = Arc::new(Brokers::new(head.nodes.iter().map(|n| n.node.clone()), own));
        let own = brokers.own()?;
        let mut topology = Topology::new(head, own, incarnation, Arc::clone(&brokers), crypto);
        for edge in &edges {
            topology.add_own(edge.key(), edge.name(), edge.metric());
        }
        let carried = carried(&tenants);
        let edges = edges.into_iter().map(|edge| (edge.key(), EdgeState::new(edge))).collect();
        Some(Self {
            own,
            incarnation,
            brokers,
            tenants,
            topology,
            groups: BTreeMap::new(),
            recut: BTreeSet::new(),
            edges,
            states: BTreeMap::new(),
            sessions: BTreeMap::new(),
            moved: BTreeSet::new(),
            version: (head.epoch, head.version),
            carried,
            pending: BTreeMap::new(),
            outgoing: Vec::new(),
            settled: false,
            now: Time::default(),
            compared: Time::default(),
            noted: BTreeMap::new(),
            busy: BTreeSet::new(),
            curious: BTreeSet::new(),
            letters: Vec::new(),
            publishing: BTreeMap::new(),
            // Greater in every life, and far enough apart for a thousand streams a millisecond.
            next_stream: incarnation.wrapping_shl(STREAMS_PER_LIFE_BITS),
            observers: BTreeMap::new(),
        })
    }

    /// The fabric's brokers.
    #[must_use]
    pub const fn brokers(&self) -> &Arc<Brokers> {
        &self.brokers
    }

    /// Begins another life of this node; its edges must be down. What others hold of the life before is void to them, and is
    /// told and asked for anew as the edges come up.
    pub fn begin_life(&mut self, incarnation: u64, crypto: Box<dyn crate::topology::LinkCrypto>) {
        self.incarnation = incarnation;
        self.next_stream = incarnation.wrapping_shl(STREAMS_PER_LIFE_BITS);
        self.topology.begin_life(incarnation, crypto);
        // Said anew, in this life, as the edges come up.
        let own = self.own;
        for state in self.states.values_mut() {
            let _ = state.cuts.forget_end(own);
        }
    }

    /// This node's incarnation.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Adds a subscription that policy has permitted; `tag` is the client's text for it where it has one. `local_only` subscriptions, such as reply inboxes, are not told to
    /// other brokers.
    ///
    /// # Errors
    /// [`Deny::Limit`] when the session holds too many, or already one with this number.
    pub fn subscribe(
        &mut self,
        port: &Arc<SessionPort>,
        sid: u32,
        tag: Box<[u8]>,
        permit: Permit<Read>,
        queue: Option<QueueGroup>,
        local_only: bool,
    ) -> Result<(), Deny> {
        let subs = self.sessions.entry(port.id()).or_default();
        if subs.len() >= SESSION_SUBSCRIPTIONS_MAX || subs.contains_key(&sid) {
            return Err(Deny::Limit);
        }
        let sub = Sub::new(Arc::clone(port), sid, &permit.object().0, queue, permit.rule().is_observer());
        let sub = Arc::new(sub.tagged(tag));
        if subs.is_empty() {
            weigh(&self.tenants, port);
        }
        let reach = Reach::new(permit.scope(), &self.tenants, !local_only);
        subs.insert(sid, SubRecord { sub: Arc::clone(&sub), reach: reach.clone() });
        if reach.is_everywhere() {
            self.observe(wish(&sub));
        }
        for tenant in reach.tenants() {
            self.reach(*tenant, &sub, reach.is_advertised());
        }
        Ok(())
    }

    /// Lets a subscription reach one tenant.
    fn reach(&mut self, tenant: TenantKey, sub: &Arc<Sub>, advertised: bool) {
        if let Some(table) = self.table(tenant) {
            table.add_local(sub.raw(), Arc::clone(sub));
        }
        if advertised {
            self.hold(tenant, wish(sub));
        }
    }

    /// Ends a subscription, at once or after `max` deliveries in all. Unknown numbers are ignored.
    pub fn unsubscribe(&mut self, session: u64, sid: u32, max: Option<u64>) {
        let Some(subs) = self.sessions.get_mut(&session) else { return };
        match (max, subs.get(&sid)) {
            (Some(max), Some(record)) if !record.sub.limit(max) => {
                // Whether it has a maximum is part of decisions that hold for a generation of the table.
                let tenants = record.reach.tenants().to_vec();
                for tenant in tenants {
                    let _ = self.table(tenant);
                }
                return;
            }
            _ => {}
        }
        if let Some(record) = subs.remove(&sid) {
            self.forget(session, sid, &record);
        }
    }

    /// Ends everything of a session.
    pub fn close_session(&mut self, session: u64) {
        self.publish_no_more(session);
        for (sid, record) in self.sessions.remove(&session).unwrap_or_default() {
            self.forget(session, sid, &record);
        }
    }

    fn forget(&mut self, session: u64, sid: u32, record: &SubRecord) {
        for tenant in record.reach.tenants() {
            self.reach_no_more(*tenant, (session, sid), &record.sub, record.reach.is_advertised());
        }
        if record.reach.is_everywhere() {
            self.observe_no_more(&wish(&record.sub));
        }
    }

    /// Lets a subscription reach one tenant no more.
    fn reach_no_more(&mut self, tenant: TenantKey, (session, sid): (u64, u32), sub: &Sub, advertised: bool) {
        if let Some(table) = self.table(tenant) {
            table.remove_local(sub.raw(), session, sid);
        }
        if advertised {
            self.release(tenant, wish(sub));
        }
    }

    /// A bridge came up on `edge` and may carry `effective`; `peer_incarnation` is the life of the broker behind it.
    /// Returns how many tenants' full lists will be sent, which the peer is told so that it knows when it has all.
    pub fn edge_up(&mut self, edge: EdgeKey, effective: TenantSet, peer_incarnation: u64) -> u32 {
        let Some(handle) = self.edges.get(&edge).map(|state| Arc::clone(&state.edge)) else { return 0 };
        let effective = self.allowed(&handle, &effective);
        let Some(state) = self.edges.get_mut(&edge) else { return 0 };
        state.edge.set_effective(effective.clone(), true);
        state.reset(true);
        // Where each tenant has a connection of its own they come one by one, or not at all: each is awaited by itself.
        let apart = state.edge.is_dedicated();
        if apart {
            state.complete = true;
            state.awaited = effective.iter().collect();
        }
        let peer = self.brokers.index(state.edge.peer());
        // Changes meant for the bridge before this one: told now, they would make the full lists look like old news.
        self.interrupt(edge);
        self.topology.edge_up(edge);
        self.reroute();
        self.tell_cuts(edge);
        // What was said just now is part of the lists.
        self.interrupt(edge);
        if let Some(peer) = peer {
            self.reborn(peer, peer_incarnation);
        }
        let mut lists = 0;
        for tenant in effective.iter() {
            lists += u32::from(self.send_lists(edge, tenant, apart));
        }
        lists
    }

    /// The bridge of `edge` is gone.
    pub fn edge_down(&mut self, edge: EdgeKey) {
        let Some(state) = self.edges.get_mut(&edge) else { return };
        state.edge.set_effective(TenantSet::default(), false);
        state.reset(false);
        self.interrupt(edge);
        self.topology.edge_down(edge);
        self.reroute();
    }

    /// The edges have had their time to come up: from now on a tenant's view counts as complete without those that are
    /// down.
    pub fn settle(&mut self) {
        if !self.settled {
            self.settled = true;
            self.refresh_sync();
        }
    }

    /// Counts a drop that belongs to a tenant rather than to one message's class.
    pub fn count_drop(&self, tenant: TenantKey, class: Class, reason: Drop) {
        if let Some(tenant) = self.tenants.by_key(tenant) {
            tenant.counters().class(class).dropped(reason, 1);
        }
    }

    /// Publishes what has changed and hands out the records to send.
    pub fn commit(&mut self) -> Vec<Outgoing> {
        self.follow_topology();
        for (key, table) in std::mem::take(&mut self.pending) {
            if let Some(tenant) = self.tenants.by_key(key) {
                tenant.publish(table);
            }
        }
        std::mem::take(&mut self.outgoing)
    }

    /// Subscriptions held by sessions here.
    #[must_use]
    pub fn subscriptions(&self) -> usize {
        self.sessions.values().map(BTreeMap::len).sum()
    }

    fn table(&mut self, key: TenantKey) -> Option<&mut Table> {
        let tenant: &Arc<Tenant> = self.tenants.by_key(key)?;
        Some(self.pending.entry(key).or_insert_with(|| tenant.table().next()))
    }

    /// The routes of `tenant` as of the last change of an edge.
    fn routes(&self, tenant: TenantKey) -> Arc<Routes> {
        let published = || self.tenants.by_key(tenant).map(|t| Arc::clone(t.table().routes()));
        let pending = self.pending.get(&tenant).map(|table| Arc::clone(table.routes()));
        pending.or_else(published).unwrap_or_default()
    }
}

fn wish(sub: &Sub) -> Interest {
    Interest {
        filter: sub.raw().clone(),
        classes: sub.classes(),
        queue: sub.queue().cloned(),
        observer: sub.is_observer(),
    }
}

mod change;
mod compare;
mod cuts;
mod interest;
mod observers;
mod presence;
mod routing;

use interest::TenantState;
use routing::{Carried, Group, Usable, carried};

pub use change::{Narrowed, Refused};
pub use interest::{Letter, Message};

#[cfg(test)]
mod tests;
