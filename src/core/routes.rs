//! Routes: the next hop towards every broker, for one set of edges (DESIGN section 5).
//!
//! The bundle says which edges exist and which tenants each may carry, the topology which are up and what they cost. Routes
//! are computed once per distinct set of usable edges and shared by all tenants that have the same. Every edge costs
//! something, so that every broker's next hop is nearer to the target than itself: messages do not go in circles once all
//! know the same.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use crate::edge::{Edge, EdgeKey};
use crate::limits::{BROKER_INDEXES_MAX, MISSED_MS_MAX};
use crate::name::NodeId;
use crate::table::EdgeTargets;
use crate::time::Time;

/// The number of a broker on this node; on the wire it is a handle, announced per lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerIndex(pub u32);

/// The brokers of the fabric. Those of the first bundle are numbered in the order of their names; whoever comes later gets
/// the next number, and the number of one that has gone is given to nobody else.
#[derive(Debug, Default)]
pub struct Brokers {
    /// Every broker since the node's start, in the order of their numbers.
    names: Vec<NodeId>,
    /// Those of the bundle in force.
    numbers: BTreeMap<NodeId, BrokerIndex>,
    own: Option<BrokerIndex>,
}

impl Brokers {
    /// Numbers `names`; `own` is this node.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = NodeId>, own: &NodeId) -> Self {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort();
        names.dedup();
        let numbers: BTreeMap<_, _> = names.iter().cloned().zip((0..).map(BrokerIndex)).collect();
        Self { own: numbers.get(own).copied(), names, numbers }
    }

    /// The brokers of a newer bundle: whoever had a number keeps or regains it. `None` when this node is not among them,
    /// or more have come and gone than one life of a node numbers.
    #[must_use]
    pub fn renew(&self, names: impl IntoIterator<Item = NodeId>) -> Option<Self> {
        let ever: BTreeMap<&NodeId, BrokerIndex> = self.names.iter().zip((0..).map(BrokerIndex)).collect();
        let mut all = self.names.clone();
        let mut numbers = BTreeMap::new();
        for name in names {
            let number = match ever.get(&name).or_else(|| numbers.get(&name)) {
                Some(number) => *number,
                None => {
                    let next = u32::try_from(all.len()).ok().filter(|_| all.len() < BROKER_INDEXES_MAX)?;
                    all.push(name.clone());
                    BrokerIndex(next)
                }
            };
            numbers.insert(name, number);
        }
        let own = self.own.filter(|own| numbers.values().any(|number| number == own))?;
        Some(Self { names: all, numbers, own: Some(own) })
    }

    /// The number of `name`, where the bundle has it.
    #[must_use]
    pub fn index(&self, name: &NodeId) -> Option<BrokerIndex> {
        self.numbers.get(name).copied()
    }

    /// The name of number `index`, also when it has left the bundle.
    #[must_use]
    pub fn name(&self, index: BrokerIndex) -> Option<&NodeId> {
        self.names.get(usize::try_from(index.0).ok()?)
    }

    /// The brokers of the bundle, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeId, BrokerIndex)> {
        self.numbers.iter().map(|(name, index)| (name, *index))
    }

    /// This node's number.
    #[must_use]
    pub const fn own(&self) -> Option<BrokerIndex> {
        self.own
    }

    /// How many numbers were given; those of brokers that have gone included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

/// The next hop towards one broker.
#[derive(Clone, Debug)]
pub struct Hop {
    /// The edge to take.
    pub edge: Arc<Edge>,
    /// The cost of the whole way.
    pub cost: u32,
}

/// From where messages may come over each of this node's edges, for one set of edges of the bundle. It does not follow
/// which edges are up: what is on its way may have taken an edge that has failed since.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Behind {
    /// Brokers that the peer of an edge can reach without this node.
    from: BTreeMap<EdgeKey, Vec<bool>>,
    /// Brokers that this node can reach without the peer of an edge.
    without: BTreeMap<EdgeKey, Vec<bool>>,
}

/// The next hops of one set of usable edges.
#[derive(Debug, Default)]
pub struct Routes {
    hops: Vec<Option<Hop>>,
    behind: Arc<Behind>,
    lives: Arc<Vec<u64>>,
    /// Brokers that a way led to a moment ago, and since when none does.
    missed: BTreeMap<BrokerIndex, Time>,
}

impl Routes {
    /// Routes of these next hops. `lives` are the incarnations of the brokers as far as they are known.
    #[must_use]
    pub const fn new(hops: Vec<Option<Hop>>, behind: Arc<Behind>, lives: Arc<Vec<u64>>) -> Self {
        Self { hops, behind, lives, missed: BTreeMap::new() }
    }

    /// The same, following `before`: brokers out of reach now that were in reach then are missed for [`MISSED_MS_MAX`].
    #[must_use]
    pub fn after(mut self, before: &Self, now: Time) -> Self {
        let indexes = (0u32..).map(BrokerIndex);
        let lost = before.hops.iter().zip(indexes).filter_map(|(hop, broker)| hop.as_ref().map(|_| (broker, now)));
        let missing = before.missed.iter().map(|(broker, since)| (*broker, *since)).chain(lost);
        let gone =
            missing.filter(|(broker, since)| self.hop(*broker).is_none() && now < since.plus_millis(MISSED_MS_MAX));
        let gone: Vec<_> = gone.collect();
        for (broker, since) in gone {
            self.missed.entry(broker).or_insert(since);
        }
        self
    }

    /// Whether a way led to `broker` until a moment ago, and may again: what is acknowledged end to end is kept for it.
    #[must_use]
    pub fn is_missed(&self, broker: BrokerIndex) -> bool {
        self.missed.contains_key(&broker)
    }

    /// Whether somebody is not to be missed any longer.
    #[must_use]
    pub fn is_outdated(&self, now: Time) -> bool {
        self.missed.values().any(|since| now >= since.plus_millis(MISSED_MS_MAX))
    }

    /// Whether a message finds the same way by both, and the brokers at its end are the same.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let same = |(a, b): (&Option<Hop>, &Option<Hop>)| match (a, b) {
            (Some(a), Some(b)) => a.cost == b.cost && a.edge.key() == b.edge.key(),
            (None, None) => true,
            _ => false,
        };
        self.hops.len() == other.hops.len()
            && self.hops.iter().zip(&other.hops).all(same)
            && self.behind == other.behind
            && self.missed.keys().eq(other.missed.keys())
            && self.lives == other.lives
    }

    /// The next hop towards `broker`; `None` for this node and for brokers out of reach.
    #[must_use]
    pub fn hop(&self, broker: BrokerIndex) -> Option<&Hop> {
        self.hops.get(usize::try_from(broker.0).ok()?)?.as_ref()
    }

    /// The incarnation of `broker`; zero where it is not known.
    #[must_use]
    pub fn life(&self, broker: BrokerIndex) -> u64 {
        usize::try_from(broker.0).ok().and_then(|index| self.lives.get(index)).copied().unwrap_or(0)
    }

    /// Whether the next hop towards `broker` is `edge`.
    #[must_use]
    pub fn leads_over(&self, edge: EdgeKey, broker: BrokerIndex) -> bool {
        self.hop(broker).is_some_and(|hop| hop.edge.key() == edge)
    }

    /// Whether a message that entered at `origin` can reach this node over `edge` without passing it before.
    #[must_use]
    pub fn is_behind(&self, edge: EdgeKey, origin: BrokerIndex) -> bool {
        contains(&self.behind.from, edge, origin)
    }

    /// Whether what is known of `origin` may be told over `edge`: whether this node can have it without the peer. The peer
    /// checks the same from its side with [`Self::is_behind`].
    #[must_use]
    pub fn may_tell(&self, edge: EdgeKey, origin: BrokerIndex) -> bool {
        contains(&self.behind.without, edge, origin)
    }

    /// Sorts target brokers by their next hop; brokers out of reach are left out.
    #[must_use]
    pub fn by_edge(&self, brokers: &[BrokerIndex]) -> Vec<EdgeTargets> {
        let mut out: BTreeMap<EdgeKey, EdgeTargets> = BTreeMap::new();
        for broker in brokers {
            if let Some(hop) = self.hop(*broker) {
                out.entry(hop.edge.key())
                    .or_insert_with(|| EdgeTargets { edge: Arc::clone(&hop.edge), brokers: Vec::new() })
                    .brokers
                    .push(*broker);
            }
        }
        out.into_values().collect()
    }
}

/// One edge of the fabric as routing sees it.
#[derive(Clone, Debug)]
pub struct Link {
    /// One end.
    pub a: BrokerIndex,
    /// The other end.
    pub b: BrokerIndex,
    /// What crossing it costs, at least 1, so that every hop leads nearer.
    pub cost: u32,
    /// This node's handle when it is one of the ends.
    pub own: Option<Arc<Edge>>,
}

/// Edges by their ends.
struct Around<'l>(Vec<Vec<(BrokerIndex, &'l Link)>>);

impl<'l> Around<'l> {
    fn new(brokers: usize, links: &'l [Link]) -> Self {
        let mut neighbours = vec![Vec::new(); brokers];
        for link in links {
            for (from, to) in [(link.a, link.b), (link.b, link.a)] {
                if let Some(list) = neighbours.get_mut(from.0 as usize) {
                    list.push((to, link));
                }
            }
        }
        Self(neighbours)
    }

    fn of(&self, broker: BrokerIndex) -> &[(BrokerIndex, &'l Link)] {
        self.0.get(broker.0 as usize).map_or(&[], Vec::as_slice)
    }
}

/// Computes the next hops from `own` over `links`, which hold only edges that may be used: allowed for the tenants in
/// question, and up. Of ways that cost the same, the one over the edge with the lesser name is taken.
#[must_use]
pub fn compute(brokers: usize, own: BrokerIndex, links: &[Link]) -> Vec<Option<Hop>> {
    let around = Around::new(brokers, links);
    let mut exits: Vec<(BrokerIndex, u32, &Arc<Edge>)> =
        around.of(own).iter().filter_map(|(to, link)| Some((*to, link.cost, link.own.as_ref()?))).collect();
    exits.sort_by(|x, y| x.2.name().cmp(y.2.name()));
    let mut hops: Vec<Option<Hop>> = vec![None; brokers];
    // By cost, then by the place of the edge taken first.
    let mut heap: BinaryHeap<Reverse<(u32, usize, BrokerIndex)>> =
        exits.iter().enumerate().map(|(exit, (to, cost, _))| Reverse((*cost, exit, *to))).collect();
    while let Some(Reverse((cost, exit, broker))) = heap.pop() {
        let Some(slot @ None) = hops.get_mut(broker.0 as usize) else { continue };
        let Some((_, _, edge)) = exits.get(exit) else { continue };
        if broker == own {
            continue;
        }
        *slot = Some(Hop { edge: Arc::clone(edge), cost });
        let onward = around.of(broker).iter().filter(|(to, _)| *to != own);
        heap.extend(onward.map(|(to, link)| Reverse((cost.saturating_add(link.cost), exit, *to))));
    }
    hops
}

/// From where messages may come over each of this node's edges, when they may use `links`.
#[must_use]
pub fn behind(brokers: usize, own: BrokerIndex, links: &[Link]) -> Behind {
    let around = Around::new(brokers, links);
    let mut behind = Behind::default();
    for (peer, link) in around.of(own) {
        if let Some(edge) = &link.own {
            behind.from.insert(edge.key(), reach(*peer, own, &around));
            behind.without.insert(edge.key(), reach(own, *peer, &around));
        }
    }
    behind
}

fn contains(sets: &BTreeMap<EdgeKey, Vec<bool>>, edge: EdgeKey, broker: BrokerIndex) -> bool {
    let index = usize::try_from(broker.0).unwrap_or(usize::MAX);
    sets.get(&edge).and_then(|set| set.get(index)).copied().unwrap_or(false)
}

/// The brokers that `from` can reach without `without`; itself included.
fn reach(from: BrokerIndex, without: BrokerIndex, around: &Around<'_>) -> Vec<bool> {
    let mut seen = vec![false; around.0.len()];
    let mut stack = vec![from];
    while let Some(broker) = stack.pop() {
        match seen.get_mut(broker.0 as usize) {
            Some(mark) if !*mark && broker != without => *mark = true,
            _ => continue,
        }
        stack.extend(around.of(broker).iter().map(|(to, _)| *to));
    }
    seen
}

#[cfg(test)]
mod tests;
