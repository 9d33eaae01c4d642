//! Routes: the next hop towards every broker, for one set of edges (DESIGN section 5).
//!
//! The bundle says which edges exist and which tenants each may carry; this node knows which of its own are up. Routes
//! are computed once per distinct set of usable edges and shared by all tenants that have the same. Cost is one per hop
//! for now, ties go to the lesser edge name. Brokers are numbered in the order of their names, so that every broker
//! computes the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::edge::{Edge, EdgeKey};
use crate::limits::BROKER_INDEXES_MAX;
use crate::name::{Label, NodeId};
use crate::table::EdgeTargets;

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

/// The next hops of one set of usable edges.
#[derive(Debug, Default)]
pub struct Routes {
    hops: Vec<Option<Hop>>,
    behind: BTreeMap<EdgeKey, Vec<bool>>,
}

impl Routes {
    /// The next hop towards `broker`; `None` for this node and for brokers out of reach.
    #[must_use]
    pub fn hop(&self, broker: BrokerIndex) -> Option<&Hop> {
        self.hops.get(usize::try_from(broker.0).ok()?)?.as_ref()
    }

    /// Whether the next hop towards `broker` is `edge`.
    #[must_use]
    pub fn leads_over(&self, edge: EdgeKey, broker: BrokerIndex) -> bool {
        self.hop(broker).is_some_and(|hop| hop.edge.key() == edge)
    }

    /// Whether a message that entered at `origin` can reach this node over `edge` without passing it before.
    #[must_use]
    pub fn is_behind(&self, edge: EdgeKey, origin: BrokerIndex) -> bool {
        let index = usize::try_from(origin.0).unwrap_or(usize::MAX);
        self.behind.get(&edge).and_then(|set| set.get(index)).copied().unwrap_or(false)
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

/// One usable edge of the fabric as routing sees it.
#[derive(Clone, Debug)]
pub struct Link {
    /// The edge's name; breaks ties.
    pub name: Label,
    /// One end.
    pub a: BrokerIndex,
    /// The other end.
    pub b: BrokerIndex,
    /// This node's handle when it is one of the ends.
    pub own: Option<Arc<Edge>>,
}

/// Computes the next hops from `own` over `links`, which hold only edges that may be used: allowed for the tenants in
/// question and, where they are this node's own, up.
#[must_use]
pub fn compute(brokers: usize, own: BrokerIndex, links: &[Link]) -> Routes {
    let mut neighbours: Vec<Vec<(BrokerIndex, &Link)>> = vec![Vec::new(); brokers];
    for link in links {
        for (from, to) in [(link.a, link.b), (link.b, link.a)] {
            if let Some(list) = neighbours.get_mut(from.0 as usize) {
                list.push((to, link));
            }
        }
    }
    neighbours.iter_mut().for_each(|list| list.sort_by(|x, y| x.1.name.cmp(&y.1.name)));
    let around = |broker: BrokerIndex| neighbours.get(broker.0 as usize).map_or(&[][..], Vec::as_slice);
    let mut hops: Vec<Option<Hop>> = vec![None; brokers];
    let mut queue: std::collections::VecDeque<(BrokerIndex, Hop)> = around(own)
        .iter()
        .filter_map(|(to, link)| Some((*to, Hop { edge: Arc::clone(link.own.as_ref()?), cost: 1 })))
        .collect();
    while let Some((broker, hop)) = queue.pop_front() {
        let Some(slot) = hops.get_mut(broker.0 as usize) else { continue };
        if broker == own || slot.is_some() {
            continue;
        }
        *slot = Some(hop.clone());
        let onward = Hop { edge: hop.edge, cost: hop.cost + 1 };
        queue.extend(around(broker).iter().map(|(to, _)| (*to, onward.clone())));
    }
    let behind = around(own)
        .iter()
        .filter_map(|(peer, link)| Some((link.own.as_ref()?.key(), reach(brokers, own, *peer, &around))))
        .collect();
    Routes { hops, behind }
}

/// The brokers that `peer` can reach without `own`.
fn reach<'l>(
    brokers: usize,
    own: BrokerIndex,
    peer: BrokerIndex,
    around: &impl Fn(BrokerIndex) -> &'l [(BrokerIndex, &'l Link)],
) -> Vec<bool> {
    let mut seen = vec![false; brokers];
    let mut stack = vec![peer];
    while let Some(broker) = stack.pop() {
        match seen.get_mut(broker.0 as usize) {
            Some(mark) if !*mark && broker != own => *mark = true,
            _ => continue,
        }
        stack.extend(around(broker).iter().map(|(to, _)| *to));
    }
    seen
}
