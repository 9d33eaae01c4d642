//! Neighbours compare what they know of who is present: one number for each edge, and where that differs one for each tenant
//! in the tenant's own lane, and where that differs the whole list. Floods leave nothing out and bridges begin with whole
//! lists, so this finds what should not be there; it is the last resort against drift.

use std::collections::BTreeMap;

use super::Control;
use crate::edge::EdgeKey;
use crate::interest::presence::{Presence, Record};
use crate::limits::PRESENCE_COMPARE_MS;
use crate::routes::BrokerIndex;
use crate::tenant::TenantKey;
use crate::topology::NeighbourWord;
use crate::topology::digest::hash;

impl Control {
    /// What is known of who is present, over all tenants that an edge carries.
    #[must_use]
    pub fn presence_root(&self, edge: EdgeKey) -> u64 {
        self.presence_root_of(edge, |tenant| self.presence_share(tenant))
    }

    fn presence_root_of(&self, edge: EdgeKey, share: impl FnMut(TenantKey) -> u64) -> u64 {
        let tenants = self.edges.get(&edge).map(|state| state.edge.effective());
        tenants.iter().flat_map(|set| set.iter()).map(share).fold(0, u64::wrapping_add)
    }

    /// What one tenant adds to the number of every edge that carries it; zero of one of whom nothing is known.
    fn presence_share(&self, tenant: TenantKey) -> u64 {
        let known = self.tenants.by_key(tenant).map(|known| (known.id(), self.presence_sum(tenant)));
        known.filter(|(_, sum)| *sum != 0).map_or(0, |(id, sum)| hash(id.as_str(), &[sum]))
    }

    /// What is known of one tenant: who has subscribers, and which edges are cut.
    fn presence_sum(&self, tenant: TenantKey) -> u64 {
        let Some(state) = self.states.get(&tenant) else { return 0 };
        let own = state.own_presence(self.incarnation);
        let name = |broker: BrokerIndex| self.brokers.name(broker).map(ToString::to_string).unwrap_or_default();
        let numbers = |said: &Presence| [said.incarnation, said.seq, u64::from(said.present)];
        let present = state.view.iter().chain(std::iter::once((self.own, own)));
        // Number zero was never said: what is void since its broker began a new life.
        let present =
            present.filter(|(_, said)| said.seq > 0).map(|(broker, said)| hash(&name(broker), &numbers(&said)));
        let cut = |cut: crate::interest::presence::Cut, said: Presence| {
            hash(&format!("{} {}", name(cut.end), cut.edge), &numbers(&said))
        };
        let cuts = state.cuts.iter().map(|(of, said)| cut(of, said));
        present.chain(cuts).fold(0, u64::wrapping_add)
    }

    /// Tells every neighbour what is known, from time to time.
    pub(super) fn compare(&mut self) {
        if self.now < self.compared.plus_millis(PRESENCE_COMPARE_MS) {
            return;
        }
        self.compared = self.now;
        let up: Vec<EdgeKey> = self.edges.iter().filter(|(_, state)| state.up).map(|(key, _)| *key).collect();
        let mut shares = BTreeMap::new();
        for edge in up {
            let share = |tenant| *shares.entry(tenant).or_insert_with(|| self.presence_share(tenant));
            let root = self.presence_root_of(edge, share);
            self.topology.say(edge, NeighbourWord::Presence { root });
        }
    }

    /// The neighbour has told what it knows. What differs twice in a row is no news that is on its way.
    pub(super) fn compared(&mut self, edge: EdgeKey, root: u64) {
        let differs = root != self.presence_root(edge);
        let Some(state) = self.edges.get_mut(&edge).filter(|state| state.up) else { return };
        if !differs || !std::mem::replace(&mut state.differs, true) {
            state.differs = differs;
            return;
        }
        state.differs = false;
        let tenants = state.edge.effective();
        for tenant in tenants.iter() {
            let record = Record::Sum { digest: self.presence_sum(tenant) };
            self.say(edge, tenant, self.own, self.incarnation, record);
        }
    }

    /// The neighbour has told what it knows of one tenant: where that is something else, it is told everything.
    pub(super) fn compared_of(&mut self, edge: EdgeKey, tenant: TenantKey, digest: u64) {
        if digest != self.presence_sum(tenant) {
            self.send_lists(edge, tenant, true);
        }
    }
}
