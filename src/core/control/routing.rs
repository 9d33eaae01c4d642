//! Routes of every tenant, kept in step with the topology.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Control, EdgeState};
use crate::edge::{Edge, EdgeKey};
use crate::guard::{Guard, off};
use crate::name::Label;
use crate::routes::{Behind, BrokerIndex, Link, Routes, behind, compute};
use crate::tenant::{Tenant, TenantKey, Tenants};
use crate::topology::{LinkError, LinkMessage, NeighbourWord, Topology};

/// The edges one tenant's section names.
#[derive(Debug)]
pub(super) struct Carried {
    pub(super) edges: Arc<BTreeSet<Label>>,
    /// The same for tenants with the same edges.
    number: usize,
}

/// The edges of all tenants; tenants with the same ones share them.
pub(super) fn carried(tenants: &Tenants) -> BTreeMap<TenantKey, Carried> {
    let mut sets: BTreeMap<BTreeSet<Label>, (usize, Arc<BTreeSet<Label>>)> = BTreeMap::new();
    let carried = |tenant: &Arc<Tenant>| {
        let edges: BTreeSet<Label> = tenant.section().edges.iter().cloned().collect();
        let number = sets.len();
        let (number, edges) = sets.entry(edges.clone()).or_insert_with(|| (number, Arc::new(edges))).clone();
        (tenant.key(), Carried { edges, number })
    };
    tenants.iter().map(carried).collect()
}

/// What decides a tenant's routes: the edges of the bundle, without those that are cut; and of this node's own those that
/// carry it now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Usable {
    allowed: usize,
    own: BTreeSet<EdgeKey>,
    cut: BTreeSet<Label>,
}

/// The tenants that may use the same edges.
#[derive(Debug)]
pub(super) struct Group {
    allowed: Arc<BTreeSet<Label>>,
    behind: Arc<Behind>,
    routes: Arc<Routes>,
    tenants: BTreeSet<TenantKey>,
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
        if let LinkMessage::Word(NeighbourWord::Presence { root }) = message {
            self.compared(edge, root);
            return Ok(());
        }
        self.topology.on_message(edge, message)
    }

    /// New routes where the topology has changed since the last call. Tenants whose ways stay the same keep their tables.
    pub(super) fn follow_topology(&mut self) {
        if self.topology.take_observers_changed() {
            self.refresh_all();
        }
        if self.topology.take_changed() {
            self.note_lives();
            let lives = self.lives();
            self.regroup(|control, usable, group| {
                let routes = control.routes_over(usable, group, &lives).after(&group.routes, control.now);
                (!routes.is_same(&group.routes)).then_some(routes)
            });
        }
        let recut = std::mem::take(&mut self.recut);
        if !recut.is_empty() {
            self.groups.values_mut().for_each(|group| group.tenants.retain(|tenant| !recut.contains(tenant)));
            self.groups.retain(|_, group| !group.tenants.is_empty());
            self.place(recut);
        }
    }

    /// Gives groups other routes, where `change` has any.
    fn regroup(&mut self, change: impl Fn(&Self, &Usable, &Group) -> Option<Routes>) {
        let mut groups = std::mem::take(&mut self.groups);
        for (usable, group) in &mut groups {
            let Some(routes) = change(self, usable, group) else { continue };
            group.routes = Arc::new(routes);
            for tenant in &group.tenants {
                self.set_routes(*tenant, &group.routes);
            }
        }
        self.groups = groups;
    }

    /// Sorts the tenants by the edges that they may use, and gives each its routes: after an edge of this node came or
    /// went, or carries others than before.
    pub(super) fn reroute(&mut self) {
        self.topology.take_changed();
        self.note_lives();
        self.groups.clear();
        self.recut.clear();
        self.place(self.tenants.iter().map(|tenant| tenant.key()).collect());
        self.refresh_sync();
    }

    /// What decides the routes of a tenant now.
    fn usable(&self, tenant: TenantKey) -> Option<(Usable, Arc<BTreeSet<Label>>)> {
        let unguarded = off(Guard::EdgeSender);
        // By what the edge carries, not by the receiver's check: each must hold without the other.
        let carries = |edge: &Edge| edge.accepted().contains(tenant) || unguarded;
        let own = self.edges.values().filter(|state| state.up && carries(&state.edge));
        let own = own.map(|state| state.edge.key()).collect();
        if unguarded {
            let all = Arc::new(self.topology.edges().map(|(name, ..)| name.clone()).collect());
            return Some((Usable { allowed: usize::MAX, own, cut: BTreeSet::new() }, all));
        }
        let Carried { edges, number } = self.carried.get(&tenant)?;
        let cuts = self.states.get(&tenant).into_iter().flat_map(|state| state.cuts.present());
        // Of its own edges a broker knows better.
        let cut =
            cuts.map(|cut| cut.edge).filter(|edge| !self.topology.ends(edge).is_some_and(|e| e.contains(&self.own)));
        Some((Usable { allowed: *number, own, cut: cut.collect() }, Arc::clone(edges)))
    }

    /// Puts tenants that are in no group where they belong, and computes the routes there.
    fn place(&mut self, tenants: BTreeSet<TenantKey>) {
        let lives = self.lives();
        let mut newcomers: BTreeMap<Usable, (Arc<BTreeSet<Label>>, BTreeSet<TenantKey>)> = BTreeMap::new();
        for tenant in tenants {
            if let Some((usable, allowed)) = self.usable(tenant) {
                newcomers.entry(usable).or_insert_with(|| (allowed, BTreeSet::new())).1.insert(tenant);
            }
        }
        for (usable, (allowed, mut tenants)) in newcomers {
            tenants.extend(self.groups.remove(&usable).into_iter().flat_map(|group| group.tenants));
            let behind = Arc::new(self.behind(&allowed, &usable.own));
            let mut group = Group { allowed, behind, routes: Arc::default(), tenants };
            let mut routes = self.routes_over(&usable, &group, &lives);
            let mut seen: Option<Arc<Routes>> = None;
            for before in group.tenants.iter().map(|tenant| self.routes(*tenant)) {
                // Most of them had the same.
                if seen.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, &before)) {
                    routes = routes.after(&before, self.now);
                    seen = Some(before);
                }
            }
            group.routes = Arc::new(routes);
            for tenant in &group.tenants {
                self.set_routes(*tenant, &group.routes);
            }
            self.groups.insert(usable, group);
        }
    }

    /// Misses nobody for longer than is good; to be called about once a second.
    pub(super) fn miss_no_more(&mut self) {
        let lives = self.lives();
        self.regroup(|control, usable, group| {
            let is_outdated = group.routes.is_outdated(control.now);
            is_outdated.then(|| control.routes_over(usable, group, &lives).after(&group.routes, control.now))
        });
    }

    fn set_routes(&mut self, tenant: TenantKey, routes: &Arc<Routes>) {
        if !self.routes(tenant).is_same(routes)
            && let Some(table) = self.table(tenant)
        {
            table.set_routes(Arc::clone(routes));
            self.rerouted(tenant);
        }
    }

    /// The next hops over edges that are allowed, not cut, and up.
    fn routes_over(&self, usable: &Usable, group: &Group, lives: &Arc<Vec<u64>>) -> Routes {
        let Usable { own, cut, .. } = usable;
        let links = self.links(&group.allowed, cut, own, |told, is_own| match told {
            None if is_own => Some(1),
            told => told,
        });
        Routes::new(compute(self.brokers.len(), self.own, &links), Arc::clone(&group.behind), Arc::clone(lives))
    }

    /// By the bundle: an edge that is down or cut now may have been in use when something was sent.
    fn behind(&self, allowed: &BTreeSet<Label>, carrying: &BTreeSet<EdgeKey>) -> Behind {
        let may = |(key, state): &(&EdgeKey, &EdgeState)| !state.up || carrying.contains(*key);
        let own = self.edges.iter().filter(may).map(|(key, _)| *key).collect();
        behind(self.brokers.len(), self.own, &self.links(allowed, &BTreeSet::new(), &own, |_, _| Some(1)))
    }

    /// The edges that may be used, with their costs; this node's own only where they carry the tenants now.
    fn links(
        &self,
        allowed: &BTreeSet<Label>,
        cut: &BTreeSet<Label>,
        own: &BTreeSet<EdgeKey>,
        cost: impl Fn(Option<u32>, bool) -> Option<u32>,
    ) -> Vec<Link> {
        let handles: BTreeMap<&Label, &Arc<Edge>> =
            own.iter().filter_map(|key| self.edges.get(key)).map(|state| (state.edge.name(), &state.edge)).collect();
        let usable = self.topology.edges().filter(|(name, ..)| allowed.contains(*name) && !cut.contains(*name));
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
