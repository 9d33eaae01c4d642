//! The interest part of the control half: what brokers elsewhere want, told and learned record by record.

use std::collections::BTreeSet;

use super::{Control, Outgoing, RecordError, TenantState};
use crate::edge::{Edge, EdgeKey};
use crate::interest::{Applied, Interest, Record, Remote};
use crate::limits::INTEREST_FILTERS_MAX;
use crate::routes::{BrokerIndex, Routes};
use crate::table::{RemoteInterest, Table};
use crate::tenant::TenantKey;

impl Control {
    /// Tells one record of this broker's own to every edge that allows the tenant.
    pub(super) fn tell(&mut self, tenant: TenantKey, record: Option<Record>) {
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
        // The origin itself is never told, nor whoever stands between it and this broker, over whichever edge.
        let routes = self.routes(tenant);
        let may_tell = |edge: &Edge| routes.may_tell(edge.key(), origin) && edge.may_send(tenant);
        let targets = self.edges.values().filter(|e| e.up && Some(e.edge.key()) != from && may_tell(&e.edge));
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

    /// Sends everything known of `tenant` over `edge`, this broker's own list last. Nothing is sent when nothing is known,
    /// unless the peer waits for it.
    pub(super) fn send_lists(&mut self, edge: EdgeKey, tenant: TenantKey, awaited: bool) -> bool {
        let routes = self.routes(tenant);
        let peer = self.edges.get(&edge).and_then(|state| self.brokers.index(state.edge.peer()));
        let untouched = TenantState::default();
        let state = self.states.get(&tenant).unwrap_or(&untouched);
        let remotes = state.remote.iter().filter(|(origin, remote)| {
            // Brokers out of reach are told of, too: they may come back without anything new to say.
            let is_ahead = Some(**origin) == peer || !routes.may_tell(edge, **origin);
            !remote.is_untouched() && !is_ahead
        });
        let mut lists: Vec<_> =
            remotes.map(|(origin, remote)| (*origin, remote.incarnation(), remote.sync())).collect();
        if !awaited && lists.is_empty() && state.local.is_untouched() {
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
        self.send_lists(edge, tenant, false);
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
    pub(super) fn doubt(&mut self, edge: EdgeKey) {
        let tenants: Vec<_> = self.states.keys().copied().collect();
        self.doubt_of(edge, &tenants);
    }

    /// As [`Self::doubt`], for these tenants.
    pub(super) fn doubt_of(&mut self, edge: EdgeKey, tenants: &[TenantKey]) {
        let mut doubted = BTreeSet::new();
        for tenant in tenants {
            let routes = self.routes(*tenant);
            let remotes = self.states.get(tenant).into_iter().flat_map(|state| &state.remote);
            let told = remotes.filter(|(origin, remote)| !remote.is_untouched() && is_of(&routes, edge, **origin));
            doubted.extend(told.map(|(origin, _)| (*tenant, *origin)));
        }
        if let Some(state) = self.edges.get_mut(&edge) {
            state.unconfirmed.extend(doubted);
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

    /// Drops what was on its way over a bridge that has ended, in either direction.
    pub(super) fn interrupt(&mut self, edge: EdgeKey) {
        self.outgoing.retain(|record| record.edge != edge);
        let remotes = self.states.values_mut().flat_map(|state| state.remote.values_mut());
        remotes.for_each(|remote| remote.interrupt(edge));
    }

    /// As [`Self::interrupt`], for one tenant that the edge does not carry any more.
    pub(super) fn interrupt_of(&mut self, edge: EdgeKey, tenant: TenantKey) {
        self.outgoing.retain(|record| record.edge != edge || record.tenant != tenant);
        let remotes = self.states.get_mut(&tenant).into_iter().flat_map(|state| state.remote.values_mut());
        remotes.for_each(|remote| remote.interrupt(edge));
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
        if record == Record::Forget && !is_of(&routes, edge, origin) {
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
                state.awaited.remove(&tenant);
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

    /// Forgets a broker that has left the bundle. Nobody is told: everybody gets the same bundle.
    pub(super) fn forget_origin(&mut self, origin: BrokerIndex) {
        let tenants: Vec<_> = self.states.keys().copied().collect();
        for tenant in tenants {
            let remote = self.states.get_mut(&tenant).and_then(|state| state.remote.remove(&origin));
            if let Some(mut remote) = remote {
                let applied = Applied { forward: Vec::new(), ..remote.forget() };
                self.apply(tenant, origin, 0, applied, None);
            }
        }
    }

    pub(super) fn reborn(&mut self, origin: BrokerIndex, incarnation: u64, from: EdgeKey) {
        let tenants: Vec<_> = self.states.keys().copied().collect();
        for tenant in tenants {
            let remote = self.states.get_mut(&tenant).and_then(|s| s.remote.get_mut(&origin));
            if let Some(applied) = remote.map(|r| r.reborn(incarnation)) {
                self.apply(tenant, origin, incarnation, applied, Some(from));
            }
        }
    }

    /// Filters told by other brokers for `tenant`.
    #[must_use]
    pub fn remote_filters(&self, tenant: TenantKey) -> usize {
        self.states.get(&tenant).map_or(0, |s| s.remote.values().map(Remote::len).sum())
    }

    pub(super) fn refresh_sync(&mut self) {
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

    pub(super) fn in_sync(&self, tenant: TenantKey) -> bool {
        self.edges.values().all(|state| match state.up {
            true => !state.edge.may_receive(tenant) || state.in_sync(tenant),
            false => self.settled,
        })
    }
}

/// Whether what is known of `origin` came, or can only come, over `edge`.
fn is_of(routes: &Routes, edge: EdgeKey, origin: BrokerIndex) -> bool {
    routes.leads_over(edge, origin) || (routes.is_behind(edge, origin) && !routes.may_tell(edge, origin))
}
