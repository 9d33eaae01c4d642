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
use crate::guard::{Guard, off};
use crate::interest::{Applied, Interest, Local, Record, Remote};
use crate::limits::{INTEREST_FILTERS_MAX, SESSION_SUBSCRIPTIONS_MAX};
use crate::name::{Class, Filter, Label, NodeId, QueueGroup};
use crate::policy::{Permit, Read, Scope};
use crate::port::{SessionPort, Sub};
use crate::routes::{BrokerIndex, Brokers, Link, Routes, compute};
use crate::table::{RemoteInterest, Table};
use crate::tenant::{Tenant, TenantKey, Tenants};

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
}

#[derive(Debug)]
struct SubRecord {
    filter: Filter,
    sub: Arc<Sub>,
    scope: Vec<TenantKey>,
    advertised: bool,
}

#[derive(Debug)]
struct EdgeState {
    edge: Arc<Edge>,
    up: bool,
    expected: Option<u32>,
    finished: BTreeSet<TenantKey>,
    /// What was told over earlier bridges by brokers behind this edge, and not yet over this bridge.
    unconfirmed: BTreeSet<(TenantKey, BrokerIndex)>,
}

impl EdgeState {
    const fn new(edge: Arc<Edge>) -> Self {
        Self { edge, up: false, expected: None, finished: BTreeSet::new(), unconfirmed: BTreeSet::new() }
    }

    fn reset(&mut self, up: bool) {
        self.up = up;
        self.expected = None;
        self.finished.clear();
        self.unconfirmed.clear();
    }

    /// Whether everything the peer knew when the bridge came up has been told.
    fn has_all(&self) -> bool {
        self.expected.is_some_and(|n| self.finished.len() >= n as usize)
    }

    fn in_sync(&self, tenant: TenantKey) -> bool {
        self.has_all() || self.finished.contains(&tenant)
    }
}

#[derive(Debug, Default)]
struct TenantState {
    local: Local,
    remote: BTreeMap<BrokerIndex, Remote>,
}

/// The owner of this node's routing state.
#[derive(Debug)]
pub struct Control {
    own: BrokerIndex,
    incarnation: u64,
    brokers: Arc<Brokers>,
    tenants: Arc<Tenants>,
    fabric_edges: Vec<(Label, BrokerIndex, BrokerIndex)>,
    edges: BTreeMap<EdgeKey, EdgeState>,
    states: BTreeMap<TenantKey, TenantState>,
    sessions: BTreeMap<u64, BTreeMap<u32, SubRecord>>,
    pending: BTreeMap<TenantKey, Table>,
    outgoing: Vec<Outgoing>,
    routes: BTreeMap<Vec<Label>, Arc<Routes>>,
    settled: bool,
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
    ) -> Option<Self> {
        let brokers = Arc::new(Brokers::new(head.nodes.iter().map(|n| n.node.clone()), own));
        let fabric_edges = head
            .edges
            .iter()
            .filter_map(|e| Some((e.name.clone(), brokers.index(&e.a)?, brokers.index(&e.b)?)))
            .collect();
        let edges = edges.into_iter().map(|edge| (edge.key(), EdgeState::new(edge))).collect();
        Some(Self {
            own: brokers.own()?,
            incarnation,
            brokers,
            tenants,
            fabric_edges,
            edges,
            states: BTreeMap::new(),
            sessions: BTreeMap::new(),
            pending: BTreeMap::new(),
            outgoing: Vec::new(),
            routes: BTreeMap::new(),
            settled: false,
        })
    }

    /// The fabric's brokers.
    #[must_use]
    pub const fn brokers(&self) -> &Arc<Brokers> {
        &self.brokers
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
        let filter = permit.object().0.clone();
        let sub = Sub::new(Arc::clone(port), sid, &filter, queue, permit.rule().is_observer());
        let sub = Arc::new(sub.tagged(tag));
        let scope: Vec<TenantKey> = match permit.scope() {
            Scope::One(tenant) => vec![tenant.key()],
            Scope::All => self.tenants.iter().map(|t| t.key()).collect(),
        };
        subs.insert(
            sid,
            SubRecord { filter: filter.clone(), sub: Arc::clone(&sub), scope: scope.clone(), advertised: !local_only },
        );
        for tenant in scope {
            if let Some(table) = self.table(tenant) {
                table.add_local(filter.raw(), Arc::clone(&sub));
            }
            if !local_only {
                let record = self.states.entry(tenant).or_default().local.add(wish(&filter, &sub));
                self.tell(tenant, record);
            }
        }
        Ok(())
    }

    /// Ends a subscription, at once or after `max` deliveries in all. Unknown numbers are ignored.
    pub fn unsubscribe(&mut self, session: u64, sid: u32, max: Option<u64>) {
        let Some(subs) = self.sessions.get_mut(&session) else { return };
        match (max, subs.get(&sid)) {
            (Some(max), Some(record)) if !record.sub.limit(max) => return,
            _ => {}
        }
        if let Some(record) = subs.remove(&sid) {
            self.forget(session, sid, &record);
        }
    }

    /// Ends everything of a session.
    pub fn close_session(&mut self, session: u64) {
        for (sid, record) in self.sessions.remove(&session).unwrap_or_default() {
            self.forget(session, sid, &record);
        }
    }

    fn forget(&mut self, session: u64, sid: u32, record: &SubRecord) {
        for tenant in &record.scope {
            if let Some(table) = self.table(*tenant) {
                table.remove_local(record.filter.raw(), session, sid);
            }
            if record.advertised {
                let wish = wish(&record.filter, &record.sub);
                let change = self.states.get_mut(tenant).and_then(|state| state.local.remove(wish));
                self.tell(*tenant, change);
            }
        }
    }

    /// Tells one record of this broker's own to every edge that allows the tenant.
    fn tell(&mut self, tenant: TenantKey, record: Option<Record>) {
        if let Some(record) = record {
            self.flood(tenant, self.own, self.incarnation, &[record], None);
        }
    }

    fn flood(
        &mut self,
        tenant: TenantKey,
        origin: BrokerIndex,
        incarnation: u64,
        records: &[Record],
        from: Option<EdgeKey>,
    ) {
        // The origin itself is never told, over whichever edge.
        let is_origin = |edge: &Edge| self.brokers.index(edge.peer()) == Some(origin);
        let targets = self
            .edges
            .values()
            .filter(|e| e.up && Some(e.edge.key()) != from && !is_origin(&e.edge) && e.edge.may_send(tenant));
        for edge in targets.map(|e| e.edge.key()) {
            self.outgoing.extend(records.iter().map(|record| Outgoing {
                edge,
                tenant,
                origin,
                incarnation,
                record: record.clone(),
            }));
        }
    }

    /// A bridge came up on `edge` and may carry `effective`; `peer_incarnation` is the life of the broker behind it.
    /// Returns how many tenants' full lists will be sent, which the peer is told so that it knows when it has all.
    pub fn edge_up(&mut self, edge: EdgeKey, effective: TenantSet, peer_incarnation: u64) -> u32 {
        let Some(state) = self.edges.get_mut(&edge) else { return 0 };
        state.edge.set_effective(effective.clone(), true);
        state.reset(true);
        let peer = self.brokers.index(state.edge.peer());
        // Changes meant for the bridge before this one: told now, they would make the full lists look like old news.
        self.interrupt(edge);
        self.reroute();
        if let Some(peer) = peer {
            self.reborn(peer, peer_incarnation, edge);
        }
        self.doubt(edge);
        let mut lists = 0;
        for tenant in effective.iter() {
            lists += u32::from(self.send_lists(edge, tenant));
        }
        lists
    }

    /// Sends everything known of `tenant` over `edge`, this broker's own list last. Nothing is sent when nothing is known.
    fn send_lists(&mut self, edge: EdgeKey, tenant: TenantKey) -> bool {
        let routes = self.routes(tenant);
        let peer = self.edges.get(&edge).and_then(|state| self.brokers.index(state.edge.peer()));
        let Some(state) = self.states.get(&tenant) else { return false };
        let remotes = state.remote.iter().filter(|(origin, remote)| {
            // Brokers out of reach are told of, too: they may come back without anything new to say.
            let is_ahead = Some(**origin) == peer || routes.leads_over(edge, **origin);
            !remote.is_untouched() && !is_ahead
        });
        let mut lists: Vec<_> =
            remotes.map(|(origin, remote)| (*origin, remote.incarnation(), remote.sync())).collect();
        if lists.is_empty() && state.local.is_untouched() {
            return false;
        }
        lists.push((self.own, self.incarnation, state.local.sync()));
        self.outgoing.extend(lists.into_iter().flat_map(|(origin, incarnation, records)| {
            records.into_iter().map(move |record| Outgoing { edge, tenant, origin, incarnation, record })
        }));
        true
    }

    /// Sends the full lists of `tenant` over `edge` again, after records were lost on the way out.
    pub fn resend(&mut self, edge: EdgeKey, tenant: TenantKey) {
        self.send_lists(edge, tenant);
    }

    /// The peer of `edge` has said how many tenants' full lists it sends.
    pub fn edge_ready(&mut self, edge: EdgeKey, lists: u32) {
        if let Some(state) = self.edges.get_mut(&edge) {
            state.expected = Some(lists);
        }
        self.forget_unconfirmed(edge);
        self.refresh_sync();
    }

    /// Whatever brokers reached over the edge told before this bridge is to be told again; the peer may have restarted
    /// and not know it any more, or know better. Of brokers reached over other edges the peer need not tell.
    fn doubt(&mut self, edge: EdgeKey) {
        let tenants: Vec<_> = self.states.keys().copied().collect();
        let mut doubted = BTreeSet::new();
        for tenant in tenants {
            let routes = self.routes(tenant);
            let remotes = self.states.get(&tenant).into_iter().flat_map(|state| &state.remote);
            let told = remotes.filter(|(origin, remote)| !remote.is_untouched() && routes.leads_over(edge, **origin));
            doubted.extend(told.map(|(origin, _)| (tenant, *origin)));
        }
        if let Some(state) = self.edges.get_mut(&edge) {
            state.unconfirmed = doubted;
        }
    }

    /// Forgets what the peer did not tell again, tenant by tenant as its lists are complete.
    fn forget_unconfirmed(&mut self, edge: EdgeKey) {
        let Some(state) = self.edges.get_mut(&edge) else { return };
        let doubted = std::mem::take(&mut state.unconfirmed);
        let (gone, kept): (BTreeSet<_>, _) = doubted.into_iter().partition(|(tenant, _)| state.in_sync(*tenant));
        state.unconfirmed = kept;
        for (tenant, origin) in gone {
            let remote = self.states.get_mut(&tenant).and_then(|s| s.remote.get_mut(&origin));
            if let Some(applied) = remote.map(Remote::forget) {
                self.apply(tenant, origin, 0, applied, Some(edge));
            }
        }
    }

    /// The bridge of `edge` is gone.
    pub fn edge_down(&mut self, edge: EdgeKey) {
        let Some(state) = self.edges.get_mut(&edge) else { return };
        state.edge.set_effective(TenantSet::default(), false);
        state.reset(false);
        self.interrupt(edge);
        self.reroute();
    }

    /// Drops what was on its way over a bridge that has ended, in either direction.
    fn interrupt(&mut self, edge: EdgeKey) {
        self.outgoing.retain(|record| record.edge != edge);
        let remotes = self.states.values_mut().flat_map(|state| state.remote.values_mut());
        remotes.for_each(|remote| remote.interrupt(edge));
    }

    /// The edges have had their time to come up: from now on a tenant's view counts as complete without those that are
    /// down.
    pub fn settle(&mut self) {
        if !self.settled {
            self.settled = true;
            self.refresh_sync();
        }
    }

    /// Takes a record that came over `edge` in a lane of `tenant`.
    ///
    /// # Errors
    /// Why it was not taken; nothing has changed then.
    pub fn record(
        &mut self,
        edge: EdgeKey,
        tenant: TenantKey,
        origin: BrokerIndex,
        incarnation: u64,
        record: Record,
    ) -> Result<(), RecordError> {
        let state = self.edges.get(&edge).filter(|e| e.up).ok_or(RecordError::EdgeDown)?;
        if !state.edge.may_receive(tenant) {
            return Err(RecordError::Tenant);
        }
        let peer = self.brokers.index(state.edge.peer());
        let routes = self.routes(tenant);
        if origin == self.own || !routes.is_behind(edge, origin) {
            return Err(RecordError::Origin);
        }
        if record == Record::Forget && !routes.leads_over(edge, origin) {
            // The peer has lost sight of a broker that this one reaches without it.
            return Ok(());
        }
        let finished = matches!(record, Record::SyncEnd { .. }) && Some(origin) == peer;
        let remote = self.states.entry(tenant).or_default().remote.entry(origin).or_default();
        let applied = remote.apply(incarnation, edge, record, INTEREST_FILTERS_MAX);
        self.apply(tenant, origin, incarnation, applied, Some(edge));
        if let Some(state) = self.edges.get_mut(&edge) {
            state.unconfirmed.remove(&(tenant, origin));
            if finished {
                state.finished.insert(tenant);
                self.forget_unconfirmed(edge);
                self.refresh_sync();
            }
        }
        Ok(())
    }

    fn apply(
        &mut self,
        tenant: TenantKey,
        origin: BrokerIndex,
        incarnation: u64,
        applied: Applied,
        from: Option<EdgeKey>,
    ) {
        let of = |interest: &Interest| RemoteInterest {
            broker: origin,
            queue: interest.queue.clone(),
            classes: interest.classes,
            observer: interest.observer,
        };
        let changed = !(applied.added.is_empty() && applied.removed.is_empty());
        if let Some(table) = changed.then(|| self.table(tenant)).flatten() {
            // A new life may take away and bring the same filter at once.
            applied.removed.iter().for_each(|i| table.remove_remote(&i.filter, &of(i)));
            applied.added.iter().for_each(|i| table.add_remote(&i.filter, &of(i)));
        }
        if !applied.forward.is_empty() {
            self.flood(tenant, origin, incarnation, &applied.forward, from);
        }
    }

    fn reborn(&mut self, origin: BrokerIndex, incarnation: u64, from: EdgeKey) {
        let tenants: Vec<_> = self.states.keys().copied().collect();
        for tenant in tenants {
            let remote = self.states.get_mut(&tenant).and_then(|s| s.remote.get_mut(&origin));
            if let Some(applied) = remote.map(|r| r.reborn(incarnation)) {
                self.apply(tenant, origin, incarnation, applied, Some(from));
            }
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

    /// Filters told by other brokers for `tenant`.
    #[must_use]
    pub fn remote_filters(&self, tenant: TenantKey) -> usize {
        self.states.get(&tenant).map_or(0, |s| s.remote.values().map(Remote::len).sum())
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

    /// New routes for every tenant, after an edge came or went.
    fn reroute(&mut self) {
        self.routes.clear();
        let keys: Vec<_> = self.tenants.iter().map(|t| t.key()).collect();
        for key in keys {
            let routes = self.routes_of(key);
            let in_sync = self.in_sync(key);
            if let Some(table) = self.table(key) {
                table.set_routes(routes);
                table.set_in_sync(in_sync);
            }
        }
    }

    fn refresh_sync(&mut self) {
        let keys: Vec<_> = self.tenants.iter().map(|t| t.key()).collect();
        for key in keys {
            let in_sync = self.in_sync(key);
            let current = self.pending.get(&key).map(Table::in_sync);
            let current = current.or_else(|| self.tenants.by_key(key).map(|t| t.table().in_sync()));
            if current != Some(in_sync)
                && let Some(table) = self.table(key)
            {
                table.set_in_sync(in_sync);
            }
        }
    }

    fn in_sync(&self, tenant: TenantKey) -> bool {
        self.edges.values().all(|state| match state.up {
            true => !state.edge.may_send(tenant) || state.in_sync(tenant),
            false => self.settled,
        })
    }

    /// The routes over the edges that `tenant` may use now, computed once per distinct set.
    fn routes_of(&mut self, tenant: TenantKey) -> Arc<Routes> {
        let Some(section) = self.tenants.by_key(tenant).map(Arc::clone) else { return Arc::default() };
        let section = section.section();
        let mut names = Vec::new();
        let mut links = Vec::new();
        for (name, a, b) in &self.fabric_edges {
            if !section.edges.contains(name) && !off(Guard::EdgeSender) {
                continue;
            }
            let own = self.edges.values().find(|e| e.edge.name() == name);
            let is_own = *a == self.own || *b == self.own;
            if is_own && !own.is_some_and(|e| e.up && e.edge.may_send(tenant)) {
                continue;
            }
            names.push(name.clone());
            let own = own.filter(|_| is_own).map(|e| Arc::clone(&e.edge));
            links.push(Link { name: name.clone(), a: *a, b: *b, own });
        }
        let (count, own) = (self.brokers.len(), self.own);
        Arc::clone(self.routes.entry(names).or_insert_with(|| Arc::new(compute(count, own, &links))))
    }
}

fn wish(filter: &Filter, sub: &Sub) -> Interest {
    Interest {
        filter: filter.raw().clone(),
        classes: filter.classes(),
        queue: sub.queue().cloned(),
        observer: sub.is_observer(),
    }
}

#[cfg(test)]
mod tests;
