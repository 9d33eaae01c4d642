//! Routes of every tenant, kept in step with the topology.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Control, EdgeState};
use crate::edge::{Edge, EdgeKey};
use crate::guard::{Guard, off};
use crate::name::Label;
use crate::routes::{Behind, BrokerIndex, Link, Routes, behind, compute};
use crate::tenant::TenantKey;
use crate::topology::{LinkError, LinkMessage, Topology};

/// The tenants that may use the same edges: those of the bundle, and of this node's own those that carry them now.
#[derive(Debug)]
pub(super) struct Group {
    allowed: BTreeSet<Label>,
    own: BTreeSet<EdgeKey>,
    behind: Arc<Behind>,
    routes: Arc<Routes>,
    tenants: Vec<TenantKey>,
}

impl Control {
    /// What is known of the fabric's edges.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What is known of the fabric's edges, to be told or asked.
    pub const fn topology_mut(&mut self) -> &mut Topology {
        &mut self.topology
    }

    /// Takes what came over the control stream of an edge.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn link_message(&mut self, edge: EdgeKey, message: LinkMessage) -> Result<(), LinkError> {
        self.topology.on_message(edge, message)
    }

    /// New routes where the topology has changed since the last call. Tenants whose ways stay the same keep their tables.
    pub(super) fn follow_topology(&mut self) {
        if self.topology.take_observers_changed() {
            self.refresh_all();
        }
        if !self.topology.take_changed() {
            return;
        }
        self.note_lives();
        let lives = self.lives();
        for mut group in std::mem::take(&mut self.groups) {
            let routes = self.routes_over(&group.allowed, &group.own, &group.behind, &lives);
            let routes = routes.after(&group.routes, self.now);
            if !routes.is_same(&group.routes) {
                group.routes = Arc::new(routes);
                for tenant in &group.tenants {
                    self.set_routes(*tenant, &group.routes);
                }
            }
            self.groups.push(group);
        }
    }

    /// Sorts the tenants by the edges that they may use, and gives each its routes: after an edge of this node came or
    /// went, or carries others than before.
    pub(super) fn reroute(&mut self) {
        self.topology.take_changed();
        self.note_lives();
        let lives = self.lives();
        let mut tenants: BTreeMap<(BTreeSet<Label>, BTreeSet<EdgeKey>), Vec<TenantKey>> = BTreeMap::new();
        for tenant in self.tenants.iter() {
            let allowed = if off(Guard::EdgeSender) {
                self.topology.edges().map(|(name, ..)| name.clone()).collect()
            } else {
                tenant.section().edges.iter().cloned().collect()
            };
            // By what the edge carries, not by the receiver's check: each must hold without the other.
            let carries = |edge: &Edge| edge.accepted().contains(tenant.key()) || off(Guard::EdgeSender);
            let own = self.edges.values().filter(|state| state.up && carries(&state.edge));
            let own = own.map(|state| state.edge.key()).collect();
            tenants.entry((allowed, own)).or_default().push(tenant.key());
        }
        self.groups.clear();
        for ((allowed, own), tenants) in tenants {
            let behind = Arc::new(self.behind(&allowed, &own));
            let mut routes = self.routes_over(&allowed, &own, &behind, &lives);
            let before: Vec<_> = tenants.iter().map(|tenant| self.routes(*tenant)).collect();
            let mut seen: Option<&Arc<Routes>> = None;
            for before in &before {
                // Most of them had the same.
                if seen.is_none_or(|seen| !Arc::ptr_eq(seen, before)) {
                    routes = routes.after(before, self.now);
                    seen = Some(before);
                }
            }
            let routes = Arc::new(routes);
            for tenant in &tenants {
                self.set_routes(*tenant, &routes);
            }
            self.groups.push(Group { allowed, own, behind, routes, tenants });
        }
        self.refresh_sync();
    }

    /// Misses nobody for longer than is good; to be called about once a second.
    pub(super) fn miss_no_more(&mut self) {
        let lives = self.lives();
        for mut group in std::mem::take(&mut self.groups) {
            if group.routes.is_outdated(self.now) {
                let routes = self.routes_over(&group.allowed, &group.own, &group.behind, &lives);
                group.routes = Arc::new(routes.after(&group.routes, self.now));
                for tenant in &group.tenants {
                    self.set_routes(*tenant, &group.routes);
                }
            }
            self.groups.push(group);
        }
    }

    fn set_routes(&mut self, tenant: TenantKey, routes: &Arc<Routes>) {
        if !self.routes(tenant).is_same(routes)
            && let Some(table) = self.table(tenant)
        {
            table.set_routes(Arc::clone(routes));
            self.rerouted(tenant);
        }
    }

    /// The next hops over edges that are allowed and up.
    fn routes_over(
        &self,
        allowed: &BTreeSet<Label>,
        own: &BTreeSet<EdgeKey>,
        behind: &Arc<Behind>,
        lives: &Arc<Vec<u64>>,
    ) -> Routes {
        let links = self.links(allowed, own, |told, is_own| if is_own { Some(told.unwrap_or(1)) } else { told });
        Routes::new(compute(self.brokers.len(), self.own, &links), Arc::clone(behind), Arc::clone(lives))
    }

    /// By the bundle: an edge that is down now may have been up when something was sent.
    fn behind(&self, allowed: &BTreeSet<Label>, carrying: &BTreeSet<EdgeKey>) -> Behind {
        let may = |(key, state): &(&EdgeKey, &EdgeState)| !state.up || carrying.contains(*key);
        let own = self.edges.iter().filter(may).map(|(key, _)| *key).collect();
        behind(self.brokers.len(), self.own, &self.links(allowed, &own, |_, _| Some(1)))
    }

    /// The edges that may be used, with their costs; this node's own only where they carry the tenants now.
    fn links(
        &self,
        allowed: &BTreeSet<Label>,
        own: &BTreeSet<EdgeKey>,
        cost: impl Fn(Option<u32>, bool) -> Option<u32>,
    ) -> Vec<Link> {
        let handles: BTreeMap<&Label, &Arc<Edge>> =
            own.iter().filter_map(|key| self.edges.get(key)).map(|state| (state.edge.name(), &state.edge)).collect();
        let usable = self.topology.edges().filter(|(name, ..)| allowed.contains(*name));
        let link = |(name, [a, b], told): (&Label, [BrokerIndex; 2], Option<u32>)| {
            let is_own = a == self.own || b == self.own;
            let own = handles.get(name).map(|edge| Arc::clone(edge));
            let cost = cost(told, is_own)?;
            (!is_own || own.is_some()).then_some(Link { a, b, cost, own })
        };
        usable.filter_map(link).collect()
    }

    fn lives(&self) -> Arc<Vec<u64>> {
        let mut lives = vec![0; self.brokers.len()];
        for (broker, life) in self.topology.incarnations() {
            if let Some(slot) = usize::try_from(broker.0).ok().and_then(|index| lives.get_mut(index)) {
                *slot = life;
            }
        }
        Arc::new(lives)
    }
}
