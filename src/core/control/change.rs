//! Changes of the control half while it runs: a newer bundle, and edges that carry other tenants than before.
//!
//! What is taken away is gone in the same commit: nothing is routed, told or accepted by the older bundle afterwards.
//! What is added comes edge by edge, as the two ends agree. Tenants that nothing changed for keep their lanes and tables.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::routing::{Carried, carried};
use super::{Control, EdgeState, Reach, SubRecord, weigh};
use crate::bundle::Head;
use crate::deny::Deny;
use crate::edge::{Edge, EdgeKey, TenantSet};
use crate::interest::presence::View;
use crate::policy::{Policy, Read};
use crate::port::SessionPort;
use crate::routes::{BrokerIndex, Brokers};
use crate::tenant::TenantKey;
use crate::time::Time;

/// A standing subscription that the newer policy does not permit; it has ended.
#[derive(Debug)]
pub struct Refused {
    /// The session.
    pub port: Arc<SessionPort>,
    /// The client's number for the subscription.
    pub sid: u32,
    /// Its filter.
    pub filter: String,
    /// Why.
    pub reason: Deny,
}

/// A tenant that an edge does not carry any more: what is queued for it there must go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Narrowed {
    /// The edge.
    pub edge: EdgeKey,
    /// The tenant.
    pub tenant: TenantKey,
}

impl Control {
    /// Takes a newer bundle: its head, its brokers and tenants, and this node's edges as they are now. `policy` is over
    /// these tenants. Every live edge is narrowed to what the bundle allows; standing subscriptions are asked for again, and
    /// the classes of their sessions weigh what the tenant says now.
    pub fn renew(
        &mut self,
        head: &Head,
        brokers: Arc<Brokers>,
        edges: Vec<Arc<Edge>>,
        policy: &Policy,
        now: Time,
    ) -> (Vec<Refused>, Vec<Narrowed>) {
        let before = Arc::clone(&self.tenants);
        let tenants = Arc::clone(policy.tenants());
        let carried = carried(&tenants);
        if self.version != (head.epoch, head.version) {
            self.version = (head.epoch, head.version);
            self.moved.clear();
        }
        let same = |(key, now): &(&TenantKey, &Carried)| self.carried.get(key).is_some_and(|c| c.edges == now.edges);
        self.moved.extend(carried.iter().filter(|of| !same(of)).map(|(key, _)| *key));
        self.carried = carried;
        self.topology.renew(head, Arc::clone(&brokers));
        let gone = missing(&self.brokers, &brokers);
        self.brokers = brokers;
        self.tenants = tenants;
        let mut narrowed = self.replace_edges(edges);
        let keys: Vec<_> = self.edges.keys().copied().collect();
        for key in keys {
            narrowed.extend(self.narrow_to_bundle(key, now));
        }
        gone.into_iter().for_each(|origin| self.forget_origin(origin));
        let refused = self.reauthorize(policy);
        let tenants = Arc::clone(&self.tenants);
        for tenant in before.iter().filter(|t| tenants.by_id(t.id().as_str()).is_none()) {
            self.forget_tenant(tenant.key());
            self.outgoing.retain(|record| record.tenant != tenant.key());
            self.pending.insert(tenant.key(), tenant.table().emptied());
        }
        self.states.iter_mut().for_each(|(key, state)| match self.carried.get(key) {
            Some(carried) => state.cuts.keep_edges(&carried.edges),
            None => state.cuts = View::default(),
        });
        self.reroute();
        let edges: Vec<_> = self.edges.keys().copied().collect();
        edges.into_iter().for_each(|edge| self.tell_cuts(edge));
        (refused, narrowed)
    }

    /// What the bridge of a live edge carries has changed: `sends` is what the peer is known to accept, `accepts` what
    /// both ends allow. Returns the tenants that it does not send any more.
    pub fn edge_change(&mut self, edge: EdgeKey, sends: TenantSet, accepts: TenantSet, now: Time) -> Vec<Narrowed> {
        let Some(handle) = self.edges.get(&edge).map(|state| Arc::clone(&state.edge)) else { return Vec::new() };
        let accepts = self.allowed(&handle, &accepts);
        let sends = sends.and(&accepts);
        let Some(state) = self.edges.get_mut(&edge).filter(|state| state.up) else { return Vec::new() };
        let (sent, accepted) = (state.edge.effective(), state.edge.accepted());
        let lost: Vec<_> = accepted.minus(&accepts).iter().collect();
        let unsent: Vec<_> = sent.minus(&sends).iter().collect();
        let come: Vec<_> = accepts.minus(&accepted).iter().collect();
        let to_tell: Vec<_> = sends.minus(&sent).iter().collect();
        state.edge.change(sends, accepts, now);
        if !lost.is_empty() {
            state.complete |= state.has_all();
        }
        for tenant in &lost {
            state.finished.remove(tenant);
            state.awaited.remove(tenant);
        }
        for tenant in &come {
            state.finished.remove(tenant);
            state.awaited.insert(*tenant);
        }
        for tenant in lost.iter().chain(&unsent) {
            self.interrupt_of(edge, *tenant);
        }
        if !(lost.is_empty() && come.is_empty()) {
            self.reroute();
            self.tell_cuts(edge);
        }
        for tenant in to_tell {
            self.interrupt_of(edge, tenant);
            self.send_lists(edge, tenant, true);
        }
        unsent.into_iter().map(|tenant| Narrowed { edge, tenant }).collect()
    }

    /// The peer of `edge` has taken the bundle that is in force here: what it could not place before is told again.
    pub fn peer_has_bundle(&mut self, edge: EdgeKey) {
        let sends = self.edges.get(&edge).filter(|state| state.up).map(|state| state.edge.effective());
        let moved: Vec<_> =
            self.moved.iter().copied().filter(|t| sends.as_ref().is_some_and(|s| s.contains(*t))).collect();
        for tenant in moved {
            self.send_lists(edge, tenant, false);
        }
    }

    /// Adds the edges that are new and takes down those that are not there any more.
    fn replace_edges(&mut self, edges: Vec<Arc<Edge>>) -> Vec<Narrowed> {
        let kept: BTreeSet<_> = edges.iter().map(|edge| edge.key()).collect();
        let gone: Vec<_> = self.edges.keys().copied().filter(|key| !kept.contains(key)).collect();
        let mut narrowed = Vec::new();
        for key in gone {
            let carried = self.edges.get(&key).map(|state| state.edge.effective());
            narrowed.extend(carried.iter().flat_map(|set| set.iter()).map(|tenant| Narrowed { edge: key, tenant }));
            self.edge_down(key);
            self.edges.remove(&key);
            self.topology.remove_own(key);
        }
        for edge in edges {
            self.topology.add_own(edge.key(), edge.name(), edge.metric());
            self.edges.entry(edge.key()).or_insert_with(|| EdgeState::new(edge));
        }
        narrowed
    }

    fn narrow_to_bundle(&mut self, key: EdgeKey, now: Time) -> Vec<Narrowed> {
        let Some(state) = self.edges.get(&key).filter(|state| state.up) else { return Vec::new() };
        let (sent, accepted) = (state.edge.effective(), state.edge.accepted());
        let (sends, accepts) = (self.allowed(&state.edge, &sent), self.allowed(&state.edge, &accepted));
        if accepted.minus(&accepts).is_empty() && sent.minus(&sends).is_empty() {
            // The peer may have the older bundle all the same.
            state.edge.excuse(now);
            return Vec::new();
        }
        self.edge_change(key, sends, accepts, now)
    }

    /// What of a set the bundle in force allows on an edge. Sets are made by others, perhaps by an older bundle.
    pub(super) fn allowed(&self, edge: &Edge, set: &TenantSet) -> TenantSet {
        let allows = |tenant: &TenantKey| {
            let held = self.tenants.by_key(*tenant).filter(|t| self.tenants.by_id(t.id().as_str()).is_some());
            held.is_some_and(|tenant| tenant.section().edges.contains(edge.name()))
        };
        set.iter().filter(allows).collect()
    }

    /// Asks policy again for every standing subscription; what it refuses has ended. Sessions that keep some get the weights
    /// that their tenant has now.
    fn reauthorize(&mut self, policy: &Policy) -> Vec<Refused> {
        let mut refused = Vec::new();
        for (session, mut subs) in std::mem::take(&mut self.sessions) {
            let numbers: Vec<_> = subs.keys().copied().collect();
            for sid in numbers {
                let Some(record) = subs.get_mut(&sid) else { continue };
                let port = record.sub.port();
                match policy.authorize(port.principal(), Read(record.sub.filter())) {
                    Ok(permit) => {
                        let told = record.reach.is_advertised() || record.reach.is_everywhere();
                        let reach = Reach::new(permit.scope(), policy.tenants(), told);
                        self.rescope(session, sid, record, reach);
                    }
                    Err(reason) => {
                        let (port, filter) = (Arc::clone(port), record.sub.filter().to_string());
                        self.forget(session, sid, record);
                        subs.remove(&sid);
                        refused.push(Refused { port, sid, filter, reason });
                    }
                }
            }
            if let Some(record) = subs.values().next() {
                weigh(&self.tenants, record.sub.port());
            }
            self.sessions.insert(session, subs);
        }
        refused
    }

    /// A subscription reaches other tenants than before.
    fn rescope(&mut self, session: u64, sid: u32, record: &mut SubRecord, reach: Reach) {
        let set = |reach: &Reach| reach.tenants().iter().copied().collect::<BTreeSet<_>>();
        let (was, is) = (set(&record.reach), set(&reach));
        let advertised = record.reach.is_advertised();
        for tenant in was.difference(&is) {
            self.reach_no_more(*tenant, (session, sid), &record.sub, advertised);
        }
        for tenant in is.difference(&was) {
            self.reach(*tenant, &record.sub, advertised);
        }
        record.reach = reach;
    }
}

/// The brokers that the newer bundle does not have any more.
fn missing(before: &Brokers, after: &Brokers) -> Vec<BrokerIndex> {
    before.iter().filter(|(name, _)| after.index(name).is_none()).map(|(_, index)| index).collect()
}
