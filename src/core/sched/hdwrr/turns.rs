//! Who takes no turns for a while: tenants whose way is not there, and tenants above a cap.

use hashbrown::HashSet;

use super::super::pace::Pace;
use super::super::{CLASS_WEIGHTS_DEFAULT, EdgeTerms};
use super::{Flow, Hdwrr};
use crate::name::Class;
use crate::tenant::TenantKey;
use crate::time::Time;

impl Flow {
    /// Takes over the tenant's terms, which are the default ones where it has none.
    pub(super) fn agree(&mut self, terms: Option<&EdgeTerms>) {
        self.is_capped = terms.is_some_and(EdgeTerms::is_capped);
        let weights = terms.map(|terms| terms.class_weights).filter(|weights| *weights != CLASS_WEIGHTS_DEFAULT);
        self.lanes.set_weights(weights);
        self.lanes.set_resting([false; 4]);
    }
}

impl Hdwrr {
    /// Changes what a tenant gets of the edge beside its weight, from its next turn on. What is queued stays, and what it
    /// has saved up or owes to a cap, too. Whoever drains is to be woken, since it may have something to take now.
    pub fn set_terms(&mut self, tenant: TenantKey, terms: EdgeTerms, now: Time) {
        if terms == EdgeTerms::DEFAULT {
            if self.paces.remove(&tenant).is_none() {
                return;
            }
        } else {
            match self.paces.get_mut(&tenant) {
                Some(pace) if *pace.terms() == terms => return,
                Some(pace) => pace.set(terms, now),
                None => {
                    self.paces.insert(tenant, Box::new(Pace::new(terms, now)));
                }
            }
        }
        if let Some(flow) = self.flows.get_mut(&tenant) {
            flow.agree(Some(&terms));
            // Whether it is to rest all the same is found at its turn.
            self.end_rest(tenant);
        }
    }

    /// A tenant's terms.
    #[must_use]
    pub fn terms(&self, tenant: TenantKey) -> EdgeTerms {
        self.paces.get(&tenant).map_or(EdgeTerms::DEFAULT, |pace| *pace.terms())
    }

    /// Whether a lane waits since its class or its tenant was found above a cap.
    #[must_use]
    pub fn rests(&self, tenant: TenantKey, class: Class) -> bool {
        self.flows.get(&tenant).is_some_and(|flow| flow.lanes.rests(class) || flow.rests.is_some())
    }

    /// How many tenants wait since all that they have is above a cap.
    #[must_use]
    pub fn resting(&self) -> usize {
        self.resting.len()
    }

    /// When the first of those that rest since they are above a cap may go on. Whoever drains comes back by itself then,
    /// and calls [`Self::wake`].
    #[must_use]
    pub fn wakes_at(&self) -> Option<Time> {
        self.resting.first().map(|(until, _)| *until)
    }

    /// Ends the rest of those whose time has come.
    pub fn wake(&mut self, now: Time) {
        while let Some((_, tenant)) = self.resting.first().copied().filter(|(until, _)| *until <= now) {
            self.end_rest(tenant);
        }
    }

    /// The tenant takes no turns until then.
    pub(super) fn rest(&mut self, tenant: TenantKey, until: Time) {
        self.resting.insert((until, tenant));
        self.mark(tenant, |flow| flow.rests = Some(until));
    }

    /// Ends the rest of a tenant that has something now which may go earlier: how much earlier is found at its turn.
    pub(super) fn look_again(&mut self, tenant: TenantKey, now: Time) {
        let (Some(flow), Some(pace)) = (self.flows.get_mut(&tenant), self.paces.get(&tenant)) else { return };
        if flow.rests.is_some_and(|until| pace.settle(&mut flow.lanes, now).is_none_or(|earlier| earlier < until)) {
            self.end_rest(tenant);
        }
    }

    fn end_rest(&mut self, tenant: TenantKey) {
        if let Some(until) = self.flows.get_mut(&tenant).and_then(|flow| flow.rests) {
            self.resting.remove(&(until, tenant));
            self.mark(tenant, |flow| flow.rests = None);
        }
    }

    /// With `on`, every tenant is held until [`Self::release`]; without, none is.
    pub fn gate(&mut self, on: bool) {
        self.open = on.then(HashSet::new);
        let tenants: Vec<_> = self.flows.keys().copied().collect();
        for tenant in tenants {
            self.mark(tenant, |flow| flow.is_held = on);
        }
    }

    /// The tenant takes no turns until [`Self::release`]. Without a gate nobody is held.
    pub fn hold(&mut self, tenant: TenantKey) {
        if self.open.as_mut().is_some_and(|open| open.remove(&tenant)) {
            self.mark(tenant, |flow| flow.is_held = true);
        }
    }

    /// The tenant takes its turns; one that is backlogged joins the round's tail.
    pub fn release(&mut self, tenant: TenantKey) {
        if self.open.as_mut().is_some_and(|open| open.insert(tenant)) {
            self.mark(tenant, |flow| flow.is_held = false);
        }
    }

    /// Changes whether a tenant takes its turns.
    fn mark(&mut self, tenant: TenantKey, change: impl FnOnce(&mut Flow)) {
        let Some(flow) = self.flows.get_mut(&tenant) else { return };
        let was_active = flow.is_active();
        change(flow);
        let takes_turns = flow.takes_turns();
        self.active = self.active + usize::from(flow.is_active()) - usize::from(was_active);
        if takes_turns && std::mem::take(&mut flow.is_off) {
            if flow.lanes.is_empty() {
                self.remove(tenant);
            } else {
                self.old.push_back(tenant);
            }
        }
        if self.active == 0 {
            self.forget_all();
        }
    }
}
