//! Cuts: edges that the bundle allows for a tenant and an end of which does not, by its own configuration or its peer's.
//!
//! The bundle and the link state name no such thing, so the end says it itself, in the tenant's own lanes, and every broker
//! of the tenant's mesh leaves the edge out of the tenant's routes. Held and told like presence; of an edge of its own a
//! broker believes nobody but itself.

use super::{Control, RecordError};
use crate::edge::EdgeKey;
use crate::interest::presence::{Cut, Heard, Presence};
use crate::tenant::TenantKey;

impl Control {
    /// Says of an edge that is up for which tenants it is cut here, where that differs from what was said last.
    pub(super) fn tell_cuts(&mut self, edge: EdgeKey) {
        let Some(state) = self.edges.get(&edge).filter(|state| state.up) else { return };
        let (name, accepted) = (state.edge.name().clone(), state.edge.accepted());
        let allowed = self.carried.iter().filter(|(_, carried)| carried.edges.contains(&name));
        let tenants: Vec<(TenantKey, bool)> = allowed.map(|(key, _)| (*key, !accepted.contains(*key))).collect();
        for (tenant, cut) in tenants {
            let of = Cut { end: self.own, edge: name.clone() };
            let known = self.states.get(&tenant).and_then(|state| state.cuts.of(&of));
            if known.map_or(!cut, |known| known.present == cut) {
                continue;
            }
            let seq = known.map_or(1, |known| known.seq + 1);
            let word = Presence { incarnation: self.incarnation, seq, present: cut };
            self.states.entry(tenant).or_default().cuts.hear(of, word);
            self.flood(tenant, self.own, self.incarnation, &word.cut_record(name.clone()), None);
        }
    }

    /// An end of an edge has said, over `from`, whether it is cut.
    pub(super) fn cut(&mut self, from: EdgeKey, tenant: TenantKey, of: Cut, told: Presence) -> Result<(), RecordError> {
        // Another bundle may have it.
        let Some(ends) = self.topology.ends(&of.edge) else { return Ok(()) };
        if !ends.contains(&of.end) {
            return Err(RecordError::Origin);
        }
        let is_old = self.noted.get(&of.end).is_some_and(|life| told.incarnation < *life);
        let carried = self.carried.get(&tenant).is_some_and(|carried| carried.edges.contains(&of.edge));
        if is_old || !carried {
            return Ok(());
        }
        self.reborn_in(tenant, of.end, told.incarnation);
        let cuts = &mut self.states.entry(tenant).or_default().cuts;
        let was = cuts.of(&of).is_some_and(|known| known.present);
        match cuts.hear(of.clone(), told) {
            Heard::News => {
                self.flood(tenant, of.end, told.incarnation, &told.cut_record(of.edge), Some(from));
                if was != told.present {
                    self.recut.insert(tenant);
                }
            }
            Heard::Repeat => {}
            Heard::Stale(known) => self.say(from, tenant, of.end, known.incarnation, known.cut_record(of.edge)),
        }
        Ok(())
    }
}
