//! The truth of the fabric's edges: what every broker must know of them once nothing breaks any more, and by which edge it
//! must then reach every other, from a computation that shares nothing with the engine's.

use glocal_core::limits::LINK_DIGEST_MS;
use glocal_core::name::Label;
use glocal_core::routes::BrokerIndex;

use crate::graph;
use crate::oracle::{Violation, ensure};
use crate::world::World;

/// How long after the last fault everybody must know the truth: two comparisons with neighbours, and a second for the way.
pub const TRUTH_MS: u64 = 2 * LINK_DIGEST_MS + 1_000;

impl World {
    /// Waits until every broker knows the state of every edge.
    ///
    /// # Errors
    /// When one does not in time, or a promise breaks on the way.
    pub(crate) fn learn(&mut self) -> Result<(), Violation> {
        let latest = self.now.plus_millis(TRUTH_MS);
        loop {
            self.drain()?;
            let Some(untruth) = self.untruth() else { return Ok(()) };
            ensure!(self.now < latest, "after {TRUTH_MS} ms of peace, {untruth}");
            self.sleep(self.next_tick);
        }
    }

    /// A broker that knows an edge otherwise than it is.
    fn untruth(&self) -> Option<String> {
        for (node, broker) in self.brokers.iter().enumerate() {
            let control = broker.as_ref()?.driver.control();
            let told = control.topology().edges().map(|(name, _, cost)| (name, cost));
            let told: std::collections::BTreeMap<&Label, Option<u32>> = told.collect();
            for (planned, bridge) in self.plan.edges.iter().zip(&self.bridges) {
                let up = bridge.as_ref().is_some_and(|bridge| !bridge.broken);
                let name = Label::parse(&planned.name).ok()?;
                let known = told.get(&name).copied().flatten();
                if known != up.then(|| planned.cost()) {
                    return Some(format!("node {node} holds edge {name} to cost {known:?}, while up is {up}"));
                }
            }
            for (other, life) in self.lives.iter().enumerate() {
                let index = BrokerIndex(u32::try_from(other).unwrap_or(u32::MAX));
                let known = control.topology().incarnation_of(index);
                if known != *life {
                    return Some(format!("node {node} holds node {other} to be in its life {known}, which is {life}"));
                }
            }
        }
        None
    }

    /// Checks the routes of one broker for one tenant: each costs what the cheapest way does, and begins with an edge that
    /// lies on one.
    pub(crate) fn check_routes(&self, node: usize, tenant: usize) -> Result<(), Violation> {
        let Some(broker) = self.brokers.get(node).and_then(Option::as_ref) else { return Ok(()) };
        let Some(held) = self.plan.tenants.get(tenant).and_then(|id| broker.tenants.by_id(id.as_str())) else {
            return Ok(());
        };
        let table = held.table();
        let carrying = || self.plan.edges.iter().filter(|edge| edge.effective().contains(&tenant));
        let nodes = self.plan.nodes.len();
        let ways = graph::ways(nodes, node, carrying().map(|edge| (edge.ends, edge.cost())));
        for (target, cost) in ways.iter().enumerate().filter(|(target, _)| *target != node) {
            let place = format!("node {node}, tenant {tenant}, towards node {target}");
            let hop = table.routes().hop(BrokerIndex(u32::try_from(target).unwrap_or(u32::MAX)));
            ensure!(hop.map(|hop| hop.cost) == *cost, "{place}: {hop:?}, while the cheapest way costs {cost:?}");
            let Some(hop) = hop else { continue };
            let edge = carrying().find(|edge| edge.name == hop.edge.name().as_str());
            let Some(edge) = edge.filter(|edge| edge.ends.contains(&node)) else {
                return Err(Violation(format!("{place}: {hop:?} does not carry the tenant")));
            };
            let [a, b] = edge.ends;
            let peer = if a == node { b } else { a };
            // Without this broker: the rest of the way does not come back.
            let onward = carrying().filter(|edge| !edge.ends.contains(&node));
            let onward = graph::ways(nodes, peer, onward.map(|edge| (edge.ends, edge.cost())));
            let rest = onward.get(target).copied().flatten();
            ensure!(rest.map(|rest| rest + edge.cost()) == *cost, "{place}: {hop:?} is not on a cheapest way");
        }
        Ok(())
    }
}
