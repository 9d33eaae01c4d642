//! Routing what a session publishes: the decision cache, and the copies that follow from a decision.

use std::sync::Arc;

use glocal_core::data::{Member, choose};
use glocal_core::deny::Deny;
use glocal_core::identity::Principal;
use glocal_core::limits::{MATCH_CACHE_MAX, MATCH_CACHE_WEIGHT_MAX, TARGETS_BYTES_MAX, TARGETS_MAX};
use glocal_core::name::{Class, Destination, QueueGroup};
use glocal_core::policy::{Permit, Rule, Scope, Write};
use glocal_core::port::{SessionPort, Sub};
use glocal_core::routes::BrokerIndex;
use glocal_core::table::Match;
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::batch::{Batch, Message, TargetGroups};
use crate::shared::Shared;

/// A permitted destination with everybody who wants it. Made from a permit alone; holds for one policy epoch and one
/// generation of the tenant's table.
#[derive(Debug)]
pub(crate) struct Route {
    tenant: Arc<Tenant>,
    rule: Rule,
    class: Class,
    raw_offset: usize,
    epoch: u64,
    found: Match,
}

impl Route {
    fn new(permit: &Permit<Write<'_>>, text: &[u8]) -> Option<Self> {
        let Scope::One(tenant) = permit.scope() else { return None };
        let destination = permit.object().0;
        let raw = destination.raw();
        let found = tenant.table().find(destination.class(), raw, &tenant.section());
        Some(Self {
            tenant: Arc::clone(tenant),
            rule: permit.rule().clone(),
            class: destination.class(),
            raw_offset: text.len() - raw.as_str().len(),
            epoch: permit.epoch(),
            found,
        })
    }

    fn holds(&self, shared: &Shared) -> bool {
        self.epoch == shared.policy().epoch() && self.found.generation == self.tenant.table().generation()
    }

    /// The tenant whose message it is.
    pub(crate) const fn tenant(&self) -> &Arc<Tenant> {
        &self.tenant
    }

    /// The line of the policy that allowed it.
    pub(crate) const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The class.
    pub(crate) const fn class(&self) -> Class {
        self.class
    }

    /// Where the raw name begins in the text the client wrote.
    pub(crate) const fn raw_offset(&self) -> usize {
        self.raw_offset
    }

    /// Who wants it.
    pub(crate) const fn found(&self) -> &Match {
        &self.found
    }
}

/// Decisions of one session by class and name as written, bounded by their number and by what they hold together.
#[derive(Debug, Default)]
pub(crate) struct MatchCache {
    routes: [HashMap<Box<[u8]>, Route>; 4],
    weight: usize,
}

impl MatchCache {
    /// The route of a name, from the cache while it holds, else decided afresh; the flag says which.
    pub(crate) fn find(
        &mut self,
        shared: &Shared,
        principal: &Arc<Principal>,
        class: Class,
        text: &[u8],
    ) -> Result<(&Route, bool), Deny> {
        let fresh = !self.of(class).get(text).is_some_and(|route| route.holds(shared));
        if fresh {
            let destination = Destination::qualify(principal.tenant(), class, text)?;
            let permit = shared.policy().authorize(principal, Write(destination))?;
            let route = Route::new(&permit, text).ok_or(Deny::AllTenants)?;
            let weight = route.found.weight();
            if self.of(class).len() >= MATCH_CACHE_MAX || self.weight + weight > MATCH_CACHE_WEIGHT_MAX {
                self.routes = Default::default();
                self.weight = 0;
            }
            self.weight += weight;
            let replaced = self.of(class).insert(Box::from(text), route);
            self.weight -= replaced.map_or(0, |route| route.found.weight());
        }
        self.of(class).get(text).map(|route| (route, fresh)).ok_or(Deny::Limit)
    }
}

impl MatchCache {
    fn of(&mut self, class: Class) -> &mut HashMap<Box<[u8]>, Route> {
        let [live, ctrl, tele, bulk] = &mut self.routes;
        match class {
            Class::Live => live,
            Class::Ctrl => ctrl,
            Class::Tele => tele,
            Class::Bulk => bulk,
        }
    }
}

/// Who was given a copy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reached {
    /// Sessions here and brokers elsewhere that were given a copy. Observers are not counted: that they exist is not the
    /// tenant's to know.
    pub(crate) targets: usize,
    /// Whether anyone who counts as a responder was among them.
    pub(crate) responders: bool,
}

/// Collects the copies of one message: one per session here, one per next hop with the list of target brokers.
pub(crate) fn publish(
    shared: &Shared,
    route: &Route,
    message: &Message<'_>,
    own: &SessionPort,
    turn: u64,
    now: Time,
    batch: &mut Batch,
) -> Reached {
    let found = &route.found;
    let takes = |sub: &Sub| !sub.is_over() && (own.echo() || sub.port().id() != own.id());
    let mut reached = Reached::default();
    batch.begin();
    for target in &found.ports {
        if target.port.id() == own.id() && !own.echo() {
            continue;
        }
        if batch.deliver(&target.port, target.qualified, target.subs.iter(), message) {
            let counts = target.subs.iter().any(|s| !s.is_observer());
            reached.targets += usize::from(counts);
            reached.responders |= counts;
        }
    }
    let mut chosen: SmallVec<[(BrokerIndex, &QueueGroup); 2]> = SmallVec::new();
    for group in &found.groups {
        match choose(group, turn, takes) {
            Some(Member::Local(sub)) => {
                let delivered = batch.deliver(sub.port(), sub.is_qualified(), std::iter::once(sub), message);
                reached.targets += usize::from(delivered);
                reached.responders |= delivered;
            }
            Some(Member::Remote(broker)) => chosen.push((broker, &group.name)),
            None => {}
        }
    }
    let reply_to = message.tenant.replies().find(message.destination.raw().as_str(), now);
    let extra = reply_to.map(|reply| reply.origin);
    let token = reply_to.map(|reply| reply.token).or(message.reply_token);
    let message = Message { reply_token: token, ..*message };
    let remote = relay(shared, found, &chosen, extra, &message, batch);
    reached.targets += remote;
    reached.responders |= remote > 0 && (found.far_responders || !chosen.is_empty() || extra.is_some());
    reached
}

/// Collects one copy per next hop; returns the number of target brokers, without those that only observe.
fn relay(
    shared: &Shared,
    found: &Match,
    chosen: &[(BrokerIndex, &QueueGroup)],
    reply_to: Option<BrokerIndex>,
    message: &Message<'_>,
    batch: &mut Batch,
) -> usize {
    let mut targets: SmallVec<[TargetGroups<'_>; 4]> =
        found.edges.iter().flat_map(|e| e.brokers.iter().map(|b| (*b, SmallVec::new()))).collect();
    for (broker, group) in chosen {
        match targets.iter_mut().find(|(b, _)| b == broker) {
            Some((_, groups)) => groups.push(group),
            None => targets.push((*broker, SmallVec::from_slice(&[*group]))),
        }
    }
    if let Some(origin) = reply_to.filter(|origin| targets.iter().all(|(b, _)| b != origin)) {
        targets.push((origin, SmallVec::new()));
    }
    let observes = |broker: &BrokerIndex| {
        found.observers.contains(broker) && reply_to != Some(*broker) && chosen.iter().all(|(b, _)| b != broker)
    };
    relay_to(shared, &found.routes, targets, message, batch, observes)
}

/// Sorts target brokers by next hop and collects one copy for each edge that allows the tenant. Returns how many of
/// them, without those that only observe, were reached.
pub(crate) fn relay_to(
    shared: &Shared,
    routes: &glocal_core::routes::Routes,
    mut targets: SmallVec<[TargetGroups<'_>; 4]>,
    message: &Message<'_>,
    batch: &mut Batch,
    observes: impl Fn(&BrokerIndex) -> bool,
) -> usize {
    use glocal_core::count::Drop as DropReason;
    let counters = message.tenant.counters().class(message.destination.class());
    let mut reached = 0;
    while let Some((first, _)) = targets.first() {
        let Some(hop) = routes.hop(*first) else {
            counters.dropped(DropReason::NoRoute, 1);
            targets.remove(0);
            continue;
        };
        let key = hop.edge.key();
        let (here, rest): (SmallVec<[TargetGroups<'_>; 4]>, _) =
            targets.into_iter().partition(|(b, _)| routes.hop(*b).is_some_and(|h| h.edge.key() == key));
        targets = rest;
        if !hop.edge.may_send(message.tenant.key()) {
            counters.dropped(DropReason::EdgeTenant, here.len() as u64);
            continue;
        }
        let Some(link) = shared.link(key) else { continue };
        let mut rest = here.as_slice();
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(frame_targets(rest));
            batch.relay(&link, chunk, message);
            reached += chunk.iter().filter(|(broker, _)| !observes(broker)).count();
            rest = after;
        }
    }
    reached
}

/// How many of `targets` go into one frame; at least one.
fn frame_targets(targets: &[TargetGroups<'_>]) -> usize {
    let mut bytes = 0;
    let fitting = targets.iter().take(TARGETS_MAX).take_while(|(_, groups)| {
        bytes += 5 + groups.iter().map(|g| 1 + g.as_str().len()).sum::<usize>();
        bytes <= TARGETS_BYTES_MAX
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NOW, Node, principal};
    use glocal_core::limits::MATCH_CACHE_WEIGHT_MAX;

    #[test]
    fn a_cache_is_bounded_by_what_its_matches_hold() {
        let mut node = Node::new(1);
        let principal = principal("tenantA", "alice", glocal_core::identity::Role::Tenant);
        let inbox = glocal_core::inbox::Inbox::new(glocal_core::sched::SessionLanes::default());
        let port = Arc::new(SessionPort::new(1, Arc::clone(&principal), true, inbox));
        let filter = || glocal_core::name::Filter::qualify(principal.tenant(), b">").unwrap();
        for sid in 0..1000 {
            let permit = node.shared.policy().authorize(&principal, glocal_core::policy::Read(filter())).unwrap();
            let (port, tag, queue) = (Arc::clone(&port), Box::default(), None);
            node.driver.apply(crate::driver::Command::Subscribe { port, sid, tag, permit, queue, local_only: false });
        }
        node.driver.commit(NOW);
        let mut cache = MatchCache::default();
        for name in 0..200 {
            cache.find(&node.shared, &principal, Class::Live, format!("n{name}").as_bytes()).unwrap();
            assert!(cache.weight <= MATCH_CACHE_WEIGHT_MAX);
        }
        let held: usize = cache.routes.iter().flat_map(HashMap::values).map(|route| route.found.weight()).sum();
        assert_eq!(cache.weight, held);
        assert!(cache.of(Class::Live).len() < 70 && !cache.of(Class::Live).is_empty());
    }
}
