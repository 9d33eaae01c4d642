//! The presence part of the control half: who has subscribers of a tenant, and which edges are cut for it, told from
//! neighbour to neighbour in the tenant's own lanes.

use super::{Control, Outgoing, RecordError};
use crate::edge::EdgeKey;
use crate::interest::presence::{Cut, Heard, Presence, Record};
use crate::routes::BrokerIndex;
use crate::tenant::TenantKey;

impl Control {
    /// Tells what one broker has said to every edge that allows the tenant, but the one it came by.
    pub(super) fn flood(
        &mut self,
        tenant: TenantKey,
        origin: BrokerIndex,
        incarnation: u64,
        record: &Record,
        from: Option<EdgeKey>,
    ) {
        let edges = self.edges.values().filter(|e| e.up && Some(e.edge.key()) != from && e.edge.may_send(tenant));
        let edges: Vec<EdgeKey> = edges.map(|e| e.edge.key()).collect();
        for edge in edges {
            self.say(edge, tenant, origin, incarnation, record.clone());
        }
    }

    /// Tells what one broker has said over one edge, unless it can only be beyond that edge: whoever is there knows
    /// better, and does not believe it.
    pub(super) fn say(
        &mut self,
        edge: EdgeKey,
        tenant: TenantKey,
        origin: BrokerIndex,
        incarnation: u64,
        record: Record,
    ) {
        if origin == self.own || self.routes(tenant).may_tell(edge, origin) {
            self.outgoing.push(Outgoing { edge, tenant, origin, incarnation, record });
        }
    }

    /// Sends over `edge` whom is known to have subscribers of `tenant`. Nothing is sent when nobody is known of, unless the
    /// peer waits for it.
    pub(super) fn send_lists(&mut self, edge: EdgeKey, tenant: TenantKey, awaited: bool) -> bool {
        let state = self.states.get(&tenant);
        let own = state.map(|state| (self.own, state.own_presence(self.incarnation)));
        let own = own.filter(|(_, said)| said.seq > 0);
        let present = state.into_iter().flat_map(|state| state.view.iter()).chain(own);
        let present = present.map(|(origin, presence)| (origin, presence.incarnation, presence.record()));
        let cuts = state.into_iter().flat_map(|state| state.cuts.iter());
        let cuts = cuts.map(|(cut, word)| (cut.end, word.incarnation, word.cut_record(cut.edge)));
        let known: Vec<_> = present.chain(cuts).collect();
        if known.is_empty() && !awaited {
            return false;
        }
        let before = self.outgoing.len();
        for (origin, incarnation, record) in known {
            self.say(edge, tenant, origin, incarnation, record);
        }
        let record = Record::End { told: u32::try_from(self.outgoing.len() - before).unwrap_or(u32::MAX) };
        self.outgoing.push(Outgoing { edge, tenant, origin: self.own, incarnation: self.incarnation, record });
        true
    }

    /// Sends the full list of `tenant` over `edge` again, after records were lost on the way out.
    pub fn resend(&mut self, edge: EdgeKey, tenant: TenantKey) {
        self.send_lists(edge, tenant, true);
    }

    /// The peer of `edge` has said how many tenants' full lists it sends.
    pub fn edge_ready(&mut self, edge: EdgeKey, lists: u32) {
        if let Some(state) = self.edges.get_mut(&edge) {
            state.expected = Some(lists);
        }
        self.refresh_sync();
    }

    /// Drops what was to be told over a bridge that has ended.
    pub(super) fn interrupt(&mut self, edge: EdgeKey) {
        self.outgoing.retain(|record| record.edge != edge);
    }

    /// As [`Self::interrupt`], for one tenant that the edge does not carry any more.
    pub(super) fn interrupt_of(&mut self, edge: EdgeKey, tenant: TenantKey) {
        self.outgoing.retain(|record| record.edge != edge || record.tenant != tenant);
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
        if origin == self.own || !self.routes(tenant).is_behind(edge, origin) {
            return Err(RecordError::Origin);
        }
        match record {
            Record::Presence { seq, present } => {
                let told = Presence { incarnation, seq, present };
                self.presence(edge, tenant, origin, told);
            }
            Record::Cut { edge: name, seq, cut } => {
                self.cut(edge, tenant, Cut { end: origin, edge: name }, Presence { incarnation, seq, present: cut })?;
            }
            Record::Sum { digest } => self.compared_of(edge, tenant, digest),
            Record::End { .. } => {
                if let Some(state) = self.edges.get_mut(&edge) {
                    state.finished.insert(tenant);
                    state.awaited.remove(&tenant);
                }
                self.refresh_sync();
            }
        }
        Ok(())
    }

    fn presence(&mut self, edge: EdgeKey, tenant: TenantKey, origin: BrokerIndex, told: Presence) {
        if self.noted.get(&origin).is_some_and(|life| told.incarnation < *life) {
            return;
        }
        let view = &mut self.states.entry(tenant).or_default().view;
        let before = view.of(&origin);
        match view.hear(origin, told) {
            Heard::News => {
                self.flood(tenant, origin, told.incarnation, &told.record(), Some(edge));
                self.moved(tenant, origin, before, told);
            }
            Heard::Repeat => {}
            Heard::Stale(known) => self.say(edge, tenant, origin, known.incarnation, known.record()),
        }
    }
}
