//! The decision cache of a session: what policy has said of a name, and who wants it.
//!
//! A decision holds for one policy epoch and one generation of its tenant's table, and is found by class and name as
//! written, byte for byte. A session that goes on with one name does not even look it up.

use std::hash::BuildHasher;
use std::sync::Arc;

use glocal_core::deny::Deny;
use glocal_core::identity::Principal;
use glocal_core::limits::{MATCH_CACHE_MAX, MATCH_CACHE_WEIGHT_MAX};
use glocal_core::name::{Class, Destination, OwnedName, RawName};
use glocal_core::policy::{Permit, Rule, Scope, Write};
use glocal_core::port::Sub;
use glocal_core::table::Match;
use glocal_core::tenant::Tenant;
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::batch::{Only, SINGLE_FRAME_BROKERS, Wanted};
use crate::shared::Shared;

/// A permitted destination with everybody who wants it. Made from a permit alone; holds for one policy epoch and one
/// generation of the tenant's table.
#[derive(Debug)]
pub(crate) struct Route {
    tenant: Arc<Tenant>,
    rule: Rule,
    class: Class,
    name: OwnedName,
    epoch: u64,
    wanted: Wanted,
    /// Which of the session's decisions it was.
    number: u64,
    /// Where the only copy goes, if there is one copy.
    single: Option<Single>,
}

/// Where the only copy of a message goes.
#[derive(Clone, Copy, Debug)]
enum Single {
    /// To the only subscription of the only session; it is no observer.
    Sub,
    /// Over the only edge, in one frame, and not only to observers.
    Edge,
}

impl Single {
    fn of(found: &Match) -> Option<Self> {
        let is_sub = |subs: &[Arc<Sub>]| matches!(subs, [sub] if !sub.is_observer());
        let is_whole = found.missed.is_empty() && found.unreached == 0;
        if !found.groups.is_empty() || !is_whole || !found.observers.is_empty() {
            return None;
        }
        match (&*found.ports, &*found.edges) {
            ([target], []) if is_sub(&target.subs) => Some(Self::Sub),
            ([], [edge]) if edge.brokers.len() <= SINGLE_FRAME_BROKERS => Some(Self::Edge),
            _ => None,
        }
    }
}

impl Route {
    fn new(permit: &Permit<Write<'_>>, number: u64, own: Option<u64>) -> Option<Self> {
        let Scope::One(tenant) = permit.scope() else { return None };
        let destination = permit.object().0;
        let raw = destination.raw();
        let found = tenant.table().find(destination.class(), raw, &tenant.section());
        let single = Single::of(&found);
        Some(Self {
            tenant: Arc::clone(tenant),
            rule: permit.rule().clone(),
            class: destination.class(),
            name: OwnedName::from(raw),
            epoch: permit.epoch(),
            wanted: Wanted::new(found, own),
            number,
            single,
        })
    }

    fn holds(&self, shared: &Shared) -> bool {
        self.epoch == shared.policy_epoch() && self.found().generation == self.tenant.generation()
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

    /// The raw name, as it was parsed when it was decided on.
    pub(crate) const fn name(&self) -> RawName<'_> {
        self.name.name()
    }

    /// Where the only copy of a message goes, where there is but one, with which decision this is: what is in the copy follows
    /// from it, apart from what its sender says of the single message.
    pub(super) fn only(&self) -> Option<(Only<'_>, u64)> {
        let only = match self.single? {
            Single::Sub => Only::Sub(self.found().ports.first()?.subs.first()?),
            Single::Edge => Only::Edge(&self.found().edges.first()?.edge),
        };
        Some((only, self.number))
    }

    /// Who wants it.
    pub(crate) const fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Who wants it, one by one.
    pub(crate) const fn found(&self) -> &Match {
        self.wanted.found()
    }
}

/// One decision, under the class and the name as a client has written it.
#[derive(Debug)]
struct Entry {
    class: Class,
    text: Box<[u8]>,
    route: Route,
}

impl Entry {
    fn is(&self, class: Class, text: &[u8]) -> bool {
        self.class == class && *self.text == *text
    }
}

/// Decisions of one session by class and name as written, bounded by their number and by what they hold together.
#[derive(Debug, Default)]
pub(crate) struct MatchCache {
    entries: Vec<Entry>,
    /// Places in `entries`.
    index: HashTable<usize>,
    hasher: DefaultHashBuilder,
    /// The session, which does not share with others what it is given of its own messages.
    own: Option<u64>,
    /// The entry that was found last.
    last: usize,
    /// Decisions made.
    decisions: u64,
    weight: usize,
}

impl MatchCache {
    /// An empty cache of a session.
    pub(crate) fn of(own: u64) -> Self {
        Self { own: Some(own), ..Self::default() }
    }

    /// The route of a name, from the cache while it holds, else decided afresh; the flag says which.
    pub(crate) fn find(
        &mut self,
        shared: &Shared,
        principal: &Arc<Principal>,
        class: Class,
        text: &[u8],
    ) -> Result<(&Route, bool), Deny> {
        let known = self.place(class, text);
        let holds = |at: &usize| self.entries.get(*at).is_some_and(|entry| entry.route.holds(shared));
        let held = known.filter(holds);
        let at = match held {
            Some(at) => at,
            None => self.decide(shared, principal, class, text, known)?,
        };
        self.last = at;
        self.entries.get(at).map(|entry| (&entry.route, held.is_none())).ok_or(Deny::Limit)
    }

    /// Whether a name is the one that was found last.
    pub(super) fn is_last(&self, class: Class, text: &[u8]) -> bool {
        self.entries.get(self.last).is_some_and(|entry| entry.is(class, text))
    }

    /// The route of the name that was found last, while it holds.
    pub(super) fn last(&self, shared: &Shared) -> Option<&Route> {
        let route = self.entries.get(self.last).map(|entry| &entry.route);
        route.filter(|route| route.holds(shared))
    }

    /// Where a name is, whether or not what is there holds.
    fn place(&self, class: Class, text: &[u8]) -> Option<usize> {
        let is = |at: &usize| self.entries.get(*at).is_some_and(|entry| entry.is(class, text));
        Some(self.last).filter(is).or_else(|| self.index.find(self.hash(class, text), is).copied())
    }

    /// Asks policy and the table, and keeps the answer. A refusal is not kept.
    fn decide(
        &mut self,
        shared: &Shared,
        principal: &Arc<Principal>,
        class: Class,
        text: &[u8],
        known: Option<usize>,
    ) -> Result<usize, Deny> {
        let destination = Destination::qualify(principal.tenant(), class, text)?;
        let permit = shared.policy().authorize(principal, Write(destination))?;
        self.decisions += 1;
        let route = Route::new(&permit, self.decisions, self.own).ok_or(Deny::AllTenants)?;
        let weight = route.wanted.weight();
        let is_full = self.entries.len() >= MATCH_CACHE_MAX || self.weight + weight > MATCH_CACHE_WEIGHT_MAX;
        if is_full {
            *self = Self { decisions: self.decisions, own: self.own, ..Self::default() };
        }
        self.weight += weight;
        let known = known.filter(|_| !is_full);
        if let Some((at, entry)) = known.and_then(|at| Some((at, self.entries.get_mut(at)?))) {
            self.weight -= entry.route.wanted.weight();
            entry.route = route;
            return Ok(at);
        }
        let (at, hash) = (self.entries.len(), self.hash(class, text));
        self.entries.push(Entry { class, text: Box::from(text), route });
        let (entries, hasher) = (&self.entries, &self.hasher);
        let again = |at: &usize| entries.get(*at).map_or(0, |entry| hasher.hash_one((entry.class, &*entry.text)));
        self.index.insert_unique(hash, at, again);
        Ok(at)
    }

    fn hash(&self, class: Class, text: &[u8]) -> u64 {
        self.hasher.hash_one((class, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NOW, Node, principal};
    use glocal_core::port::SessionPort;

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
        let held: usize = cache.entries.iter().map(|entry| entry.route.wanted.weight()).sum();
        assert_eq!(cache.weight, held);
        assert!(cache.entries.len() < 70 && !cache.entries.is_empty() && cache.entries.len() == cache.index.len());
    }

    #[test]
    fn a_name_is_found_again_by_class_and_bytes_while_its_decision_holds() {
        let mut node = Node::new(1);
        let alice = principal("tenantA", "alice", glocal_core::identity::Role::Tenant);
        let mut cache = MatchCache::default();
        let mut fresh = |node: &Node, class, text: &str| {
            let (route, fresh) = cache.find(&node.shared, &alice, class, text.as_bytes()).unwrap();
            assert_eq!((route.name().as_str(), route.class()), (text.trim_start_matches("T.tenantA.ctrl."), class));
            fresh
        };
        for text in ["a", "b", "c"] {
            assert!(fresh(&node, Class::Live, text) && !fresh(&node, Class::Live, text));
        }
        assert!(fresh(&node, Class::Ctrl, "a") && fresh(&node, Class::Ctrl, "T.tenantA.ctrl.a"));
        for text in ["a", "c", "b", "b", "a"] {
            assert!(!fresh(&node, Class::Live, text), "{text}");
        }
        let inbox = glocal_core::inbox::Inbox::new(glocal_core::sched::SessionLanes::default());
        let port = Arc::new(SessionPort::new(1, Arc::clone(&alice), true, inbox));
        let filter = glocal_core::name::Filter::qualify(alice.tenant(), b"b").unwrap();
        let permit = node.shared.policy().authorize(&alice, glocal_core::policy::Read(filter)).unwrap();
        let (sid, tag, queue) = (1, Box::default(), None);
        node.driver.apply(crate::driver::Command::Subscribe { port, sid, tag, permit, queue, local_only: false });
        node.driver.commit(NOW);
        assert!(fresh(&node, Class::Live, "b") && !fresh(&node, Class::Live, "b"), "another generation");
        assert!(fresh(&node, Class::Live, "a") && !fresh(&node, Class::Live, "a"));
        assert_eq!((cache.entries.len(), cache.index.len()), (5, 5));
    }

    #[test]
    fn a_full_cache_begins_anew() {
        let node = Node::new(1);
        let alice = principal("tenantA", "alice", glocal_core::identity::Role::Tenant);
        let mut cache = MatchCache::default();
        for name in 0..=MATCH_CACHE_MAX {
            let text = format!("n{name}");
            assert!(cache.find(&node.shared, &alice, Class::Live, text.as_bytes()).unwrap().1);
            assert!(!cache.find(&node.shared, &alice, Class::Live, text.as_bytes()).unwrap().1);
            assert!(cache.entries.len() <= MATCH_CACHE_MAX);
        }
        assert_eq!((cache.entries.len(), cache.index.len()), (1, 1));
    }
}
