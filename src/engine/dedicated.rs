//! Whom a dedicated edge carries: of those that both ends allow, the tenants whose own connections are up (DESIGN
//! section 6).
//!
//! When the bridge comes up, everybody counts as carried for a moment, so that the first connections are waited for as the
//! bridge of a shared edge is: lanes fill within their bounds, and nobody's view of the mesh counts as complete. After that
//! moment, or when its connection is lost, a tenant is not carried until it has one, and its routes lead elsewhere.

use std::collections::BTreeSet;

use glocal_core::edge::TenantSet;
use glocal_core::limits::TENANT_CONNECTION_MS_MAX;
use glocal_core::tenant::TenantKey;
use glocal_core::time::Time;

/// The tenants' connections of one bridge, as far as routing is concerned.
#[derive(Debug)]
pub struct Dedicated {
    /// Tenants that have had no connection yet, while they are waited for.
    waiting: BTreeSet<TenantKey>,
    until: Time,
    up: BTreeSet<TenantKey>,
}

impl Dedicated {
    /// A bridge that has just come up and may carry `allowed`.
    #[must_use]
    pub fn new(allowed: &TenantSet, now: Time) -> Self {
        let until = now.plus_millis(TENANT_CONNECTION_MS_MAX);
        Self { waiting: allowed.iter().collect(), until, up: BTreeSet::new() }
    }

    /// The tenant's connection is up.
    pub fn up(&mut self, tenant: TenantKey) {
        self.waiting.remove(&tenant);
        self.up.insert(tenant);
    }

    /// The tenant's connection is lost; whether it was up.
    pub fn down(&mut self, tenant: TenantKey) -> bool {
        self.up.remove(&tenant)
    }

    /// Whether the tenant's connection is up.
    #[must_use]
    pub fn is_up(&self, tenant: TenantKey) -> bool {
        self.up.contains(&tenant)
    }

    /// Ends the wait when it is over; whether tenants are not carried any more for that.
    pub fn tick(&mut self, now: Time) -> bool {
        let is_over = now >= self.until && !self.waiting.is_empty();
        if is_over {
            self.waiting.clear();
        }
        is_over
    }

    /// When [`Self::tick`] has something to do.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then_some(self.until)
    }

    /// The tenants of `set` that are carried.
    #[must_use]
    pub fn carried(&self, set: &TenantSet) -> TenantSet {
        set.iter().filter(|tenant| self.up.contains(tenant) || self.waiting.contains(tenant)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TenantKey = TenantKey(1);
    const TWO: TenantKey = TenantKey(2);

    fn carried(dedicated: &Dedicated) -> Vec<TenantKey> {
        dedicated.carried(&[ONE, TWO].into_iter().collect()).iter().collect()
    }

    #[test]
    fn a_tenant_is_waited_for_a_moment_and_then_carried_only_while_it_has_a_connection() {
        let mut dedicated = Dedicated::new(&[ONE, TWO].into_iter().collect(), Time(0));
        assert_eq!(carried(&dedicated), [ONE, TWO]);
        dedicated.up(ONE);
        let until = dedicated.wake_at().unwrap();
        assert_eq!(until, Time::from_millis(TENANT_CONNECTION_MS_MAX));
        assert!(!dedicated.tick(Time(until.0 - 1)));
        assert!(dedicated.tick(until) && !dedicated.tick(until), "once");
        assert_eq!((carried(&dedicated), dedicated.wake_at()), (vec![ONE], None));
        dedicated.up(TWO);
        assert!(dedicated.down(ONE) && !dedicated.down(ONE) && !dedicated.is_up(ONE));
        assert_eq!(carried(&dedicated), [TWO], "a lost connection is not waited for");
        assert!(dedicated.carried(&TenantSet::default()).is_empty(), "and nobody who is not allowed");
    }

    #[test]
    fn who_comes_to_a_live_edge_is_carried_with_its_connection() {
        let mut dedicated = Dedicated::new(&[ONE].into_iter().collect(), Time(0));
        assert_eq!(carried(&dedicated), [ONE]);
        dedicated.up(TWO);
        assert_eq!(carried(&dedicated), [ONE, TWO]);
    }
}
