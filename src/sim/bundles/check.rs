//! What must hold in the world of bundles after a rest.

use glocal_core::name::TenantId;

use super::{World, key};
use crate::oracle::{Violation, ensure};

impl World {
    /// After a rest: the newest bundle everywhere, and both ends of every edge agree with it.
    pub(super) fn check(&self) -> Result<(), Violation> {
        for (node, holding) in self.holdings.iter().enumerate() {
            let version = holding.signed().head.version;
            ensure!(holding.signed().digest == self.newest.digest, "broker {node} stays at version {version}");
            ensure!(holding.stale() == 0, "broker {node} holds by outdated sections");
        }
        for edge in &self.edges {
            let holds = |side: usize, tenant: &TenantId| {
                self.holdings.get(edge.node(side)).is_some_and(|h| h.bundle().section(tenant.as_str()).is_some())
            };
            for (number, tenant) in self.tenants.iter().enumerate() {
                let newest = self.listed().into_iter().find(|piece| piece.section.tenant == *tenant);
                let named = newest.is_some_and(|piece| piece.section.edges.contains(&edge.name));
                let configured = edge.configured.iter().all(|set| set.contains(&number));
                // Who has a section hands it on where it may: both have it or neither.
                ensure!(
                    !(named && configured) || holds(0, tenant) == holds(1, tenant),
                    "{}: one end lacks the section of {tenant}",
                    edge.name
                );
                let truth = named && configured && holds(0, tenant) && holds(1, tenant);
                for end in &edge.bridge {
                    let (sends, accepts) = (end.sends.contains(key(number)), end.accepts.contains(key(number)));
                    ensure!(sends == truth, "{}: sends {tenant}: {sends}, should be {truth}", edge.name);
                    ensure!(accepts == truth, "{}: accepts {tenant}: {accepts}, should be {truth}", edge.name);
                }
            }
        }
        Ok(())
    }
}
