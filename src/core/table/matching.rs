//! Resolving a name to sessions, queue groups and next hops.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Leaf, RemoteInterest, Table};
use crate::bundle::Section;
use crate::edge::Edge;
use crate::name::{Class, QueueGroup, RawName};
use crate::policy::may_deliver;
use crate::port::{SessionPort, Sub};
use crate::routes::{BrokerIndex, Routes};

/// One session with the plain subscriptions of it that matched.
#[derive(Debug)]
pub struct PortTarget {
    /// The session.
    pub port: Arc<SessionPort>,
    /// Whether these subscriptions asked by the qualified form, and so are given qualified names.
    pub qualified: bool,
    /// The subscriptions.
    pub subs: SmallVec<[Arc<Sub>; 2]>,
}

/// One queue group with its members.
#[derive(Debug)]
pub struct GroupMatch {
    /// The group's name.
    pub name: QueueGroup,
    /// Members on this broker.
    pub locals: Vec<Arc<Sub>>,
    /// Brokers with members, nearest first, then by name.
    pub remotes: Vec<BrokerIndex>,
    /// How many of `remotes` share the nearest cost.
    pub nearest: usize,
}

/// One next hop with the brokers behind it that have plain subscribers.
#[derive(Debug)]
pub struct EdgeTargets {
    /// The next hop.
    pub edge: Arc<Edge>,
    /// The target brokers behind it, by name.
    pub brokers: Vec<BrokerIndex>,
}

/// Everybody who wants one name.
#[derive(Debug, Default)]
pub struct Match {
    /// The table's generation.
    pub generation: u64,
    /// Sessions with plain subscriptions.
    pub ports: Vec<PortTarget>,
    /// Queue groups; one member of each is to be chosen.
    pub groups: Vec<GroupMatch>,
    /// Next hops towards brokers with plain subscribers.
    pub edges: Vec<EdgeTargets>,
    /// Brokers with plain subscribers that no way leads to at the moment; for classes that are kept until one does.
    pub missed: Vec<BrokerIndex>,
    /// Brokers with plain subscribers, and groups without another member, that no way leads to since a moment ago; for
    /// classes that are not kept. What is published to them is lost.
    pub unreached: usize,
    /// The brokers among them behind which only observers want it.
    pub observers: Vec<BrokerIndex>,
    /// Whether anyone who counts as a responder matched; observers do not.
    pub responders: bool,
    /// Whether a plain subscriber behind another broker is among the responders.
    pub far_responders: bool,
    /// Whether the tenant's view was complete.
    pub in_sync: bool,
    /// The next hops, for the chosen members of groups.
    pub routes: Arc<Routes>,
}

impl Match {
    /// How much it holds, in entries of a few words each: what a cache of matches is bounded by.
    #[must_use]
    pub fn weight(&self) -> usize {
        let ports = self.ports.iter().map(|port| 1 + port.subs.len());
        let groups = self.groups.iter().map(|group| 1 + group.locals.len() + group.remotes.len());
        let edges = self.edges.iter().map(|edge| 1 + edge.brokers.len());
        1 + ports.chain(groups).chain(edges).sum::<usize>()
    }
}

pub(super) struct Builder<'t> {
    table: &'t Table,
    class: Class,
    raw: RawName<'t>,
    section: &'t Section,
    ports: BTreeMap<(u64, bool), PortTarget>,
    groups: BTreeMap<QueueGroup, GroupMatch>,
    brokers: Vec<BrokerIndex>,
    responding: Vec<BrokerIndex>,
    responders: bool,
    unreached: BTreeSet<BrokerIndex>,
    unreached_groups: BTreeSet<QueueGroup>,
}

impl<'t> Builder<'t> {
    pub(super) const fn new(table: &'t Table, class: Class, raw: RawName<'t>, section: &'t Section) -> Self {
        Self {
            table,
            class,
            raw,
            section,
            ports: BTreeMap::new(),
            groups: BTreeMap::new(),
            brokers: Vec::new(),
            responding: Vec::new(),
            responders: false,
            unreached: BTreeSet::new(),
            unreached_groups: BTreeSet::new(),
        }
    }

    pub(super) fn add(&mut self, leaf: &Leaf) {
        let class = self.class;
        for sub in leaf.locals().filter(|s| s.classes().contains(class)) {
            if !may_deliver(self.section, sub.port().principal(), self.raw) {
                continue;
            }
            self.responders |= !sub.is_observer();
            match sub.queue() {
                Some(name) => self.group(name).locals.push(Arc::clone(sub)),
                None => self.port(sub).subs.push(Arc::clone(sub)),
            }
        }
        for interest in leaf.remotes() {
            if !interest.classes.contains(self.class) {
                continue;
            }
            if !self.is_wanted(interest.broker) {
                self.note_unreached(interest);
                continue;
            }
            self.responders |= !interest.observer;
            match &interest.queue {
                Some(name) => self.group(name).remotes.push(interest.broker),
                None => {
                    self.brokers.push(interest.broker);
                    if !interest.observer {
                        self.responding.push(interest.broker);
                    }
                }
            }
        }
    }

    /// Whether messages are taken for a broker: a way leads there, or did a moment ago and the class is kept until it does.
    fn is_wanted(&self, broker: BrokerIndex) -> bool {
        let routes = &self.table.routes;
        routes.hop(broker).is_some() || (self.class.is_reliable() && routes.is_missed(broker))
    }

    /// Notes who wants it where no way leads since a moment ago. Observers miss nothing that would be counted.
    fn note_unreached(&mut self, interest: &RemoteInterest) {
        if interest.observer || !self.table.routes.is_missed(interest.broker) {
            return;
        }
        match &interest.queue {
            Some(name) => drop(self.unreached_groups.insert(name.clone())),
            None => drop(self.unreached.insert(interest.broker)),
        }
    }

    fn group(&mut self, name: &QueueGroup) -> &mut GroupMatch {
        self.groups.entry(name.clone()).or_insert_with(|| GroupMatch {
            name: name.clone(),
            locals: Vec::new(),
            remotes: Vec::new(),
            nearest: 0,
        })
    }

    fn port(&mut self, sub: &Arc<Sub>) -> &mut PortTarget {
        self.ports.entry((sub.port().id(), sub.is_qualified())).or_insert_with(|| PortTarget {
            port: Arc::clone(sub.port()),
            qualified: sub.is_qualified(),
            subs: SmallVec::new(),
        })
    }

    pub(super) fn finish(mut self) -> Match {
        // Where it is not known what they want, they decide; whether anybody answers is not known then.
        let unsynced = self.table.unsynced().iter().filter(|broker| self.table.routes.hop(**broker).is_some());
        let unsynced: Vec<BrokerIndex> = unsynced.copied().collect();
        self.brokers.extend(&unsynced);
        self.responding.extend(unsynced);
        let routes = &self.table.routes;
        let cost = |b: &BrokerIndex| routes.hop(*b).map_or(u32::MAX, |hop| hop.cost);
        for group in self.groups.values_mut() {
            group.remotes.sort_by_key(|b| (cost(b), *b));
            group.remotes.dedup();
            let best = group.remotes.first().map(cost);
            group.nearest = group.remotes.iter().take_while(|b| Some(cost(b)) == best).count();
        }
        self.unreached_groups.retain(|name| !self.groups.contains_key(name));
        self.brokers.sort_unstable();
        self.brokers.dedup();
        self.responding.sort_unstable();
        let observes = |broker: &&BrokerIndex| self.responding.binary_search(broker).is_err();
        let observers = self.brokers.iter().filter(observes).copied().collect();
        Match {
            generation: self.table.generation,
            ports: self.ports.into_values().collect(),
            groups: self.groups.into_values().collect(),
            missed: self.brokers.iter().copied().filter(|broker| routes.hop(*broker).is_none()).collect(),
            unreached: self.unreached.len() + self.unreached_groups.len(),
            edges: routes.by_edge(&self.brokers),
            observers,
            responders: self.responders,
            far_responders: !self.responding.is_empty(),
            in_sync: self.table.in_sync,
            routes: Arc::clone(routes),
        }
    }
}
