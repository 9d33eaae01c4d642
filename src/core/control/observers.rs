//! Observers of all tenants: one record here, whatever the number of tenants.

use super::Control;
use crate::interest::{Change, Interest, Local};

impl Control {
    /// One more observer of all tenants. It is one record here; brokers that follow a tenant are told of it in that
    /// tenant's lanes, and all others only that this broker observes.
    pub(super) fn observe(&mut self, interest: Interest) {
        let was_none = self.observers.is_empty();
        let count = self.observers.entry(interest.clone()).or_default();
        *count += 1;
        if *count == 1 {
            self.joined(|local| local.add(interest.clone()));
        }
        if was_none {
            self.topology.observe(true);
        }
    }

    /// One observer of all tenants less.
    pub(super) fn observe_no_more(&mut self, interest: &Interest) {
        let Some(count) = self.observers.get_mut(interest) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.observers.remove(interest);
        self.joined(|local| local.remove(interest.clone()));
        if self.observers.is_empty() {
            self.topology.observe(false);
        }
    }

    /// Changes the lists that hold what observers of all tenants want.
    fn joined(&mut self, change: impl Fn(&mut Local) -> Option<Change>) {
        for (tenant, state) in self.states.iter_mut().filter(|(_, state)| state.joined) {
            if let Some(change) = change(&mut state.local) {
                state.streams.changed(change);
                self.busy.insert(*tenant);
            }
        }
    }
}
