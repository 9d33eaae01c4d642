//! Graphs of brokers: which are drawn, and the cheapest ways through them.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use glocal_core::bundle::{EdgeEntry, Head, NodeEntry};
use glocal_core::name::{Label, NodeId, TenantId};
use glocal_core::time::UnixTime;

use crate::random::Random;

/// Two brokers that an edge joins, the lesser number first.
pub type Ends = [usize; 2];

/// Most brokers of a full mesh: their edges grow with the square.
const FULL_MESH: usize = 6;

/// The edges of one graph that joins all of `nodes` brokers.
#[must_use]
pub fn draw(random: &mut Random, nodes: usize) -> Vec<Ends> {
    match random.below(7) {
        0 => line(nodes),
        1 => (1..nodes).map(|node| [0, node]).collect(),
        2 => tree(random, nodes),
        3 => ring(nodes),
        4 => more(random, ring(nodes), nodes),
        5 if nodes <= FULL_MESH => full(nodes),
        _ => {
            let tree = tree(random, nodes);
            more(random, tree, nodes)
        }
    }
}

/// The head of a bundle of `nodes` brokers joined by `edges`, and the names of both.
pub(crate) fn fabric(name: &str, nodes: usize, edges: &[Ends]) -> Option<(Head, Vec<NodeId>, Vec<Label>)> {
    let mut head = Head::empty(Label::parse(name).ok()?, UnixTime(0), UnixTime(1));
    let operator = TenantId::parse("ops").ok()?;
    let names: Vec<NodeId> = (0..nodes).filter_map(|n| NodeId::parse(&format!("r/n{n:05}")).ok()).collect();
    let entry = |node: &NodeId| NodeEntry { node: node.clone(), tenant: operator.clone(), issuers: Vec::new() };
    head.nodes = names.iter().map(entry).collect();
    let labels: Vec<Label> = (0..edges.len()).filter_map(|e| Label::parse(&format!("e{e:06}")).ok()).collect();
    for (label, [a, b]) in labels.iter().zip(edges) {
        head.edges.push(EdgeEntry { name: label.clone(), a: names.get(*a)?.clone(), b: names.get(*b)?.clone() });
    }
    Some((head, names, labels))
}

fn line(nodes: usize) -> Vec<Ends> {
    (1..nodes).map(|node| [node - 1, node]).collect()
}

fn tree(random: &mut Random, nodes: usize) -> Vec<Ends> {
    (1..nodes).map(|node| [random.below(node), node]).collect()
}

/// A ring; of two brokers, two edges side by side.
#[must_use]
pub fn ring(nodes: usize) -> Vec<Ends> {
    let mut edges = line(nodes);
    edges.extend((nodes > 1).then(|| [0, nodes - 1]));
    edges
}

fn full(nodes: usize) -> Vec<Ends> {
    (0..nodes).flat_map(|a| (a + 1..nodes).map(move |b| [a, b])).collect()
}

/// Chords and edges side by side.
fn more(random: &mut Random, mut edges: Vec<Ends>, nodes: usize) -> Vec<Ends> {
    for _ in 0..random.between(1, nodes) {
        let (a, b) = (random.below(nodes), random.below(nodes));
        if a != b {
            edges.push([a.min(b), a.max(b)]);
        }
    }
    edges
}

/// A ring of rings: `rings` rings of `size` brokers each, whose first brokers form a ring, too, and whose middle ones
/// another, so that no single broker joins two parts.
#[must_use]
pub fn ring_of_rings(rings: usize, size: usize) -> Vec<Ends> {
    let within = |r: usize| ring(size).into_iter().map(move |[a, b]| [r * size + a, r * size + b]);
    let between = |at: usize| ring(rings).into_iter().map(move |[a, b]| [a * size + at, b * size + at]);
    (0..rings).flat_map(within).chain(between(0)).chain(between(size / 2)).collect()
}

/// A graph in which every broker has about `degree` edges: a ring, and random rings over it.
#[must_use]
pub fn regular(random: &mut Random, nodes: usize, degree: usize) -> Vec<Ends> {
    let mut edges: BTreeSet<Ends> = ring(nodes).into_iter().collect();
    for _ in 1..degree.div_ceil(2) {
        let mut order: Vec<usize> = (0..nodes).collect();
        for last in (1..nodes).rev() {
            order.swap(last, random.below(last + 1));
        }
        let next = order.iter().skip(1).chain(order.first());
        edges.extend(order.iter().zip(next).filter(|(a, b)| a != b).map(|(a, b)| [*a.min(b), *a.max(b)]));
    }
    edges.into_iter().collect()
}

/// The cost of the cheapest way from `from` to every broker over `edges`; `None` where there is no way.
pub fn ways(nodes: usize, from: usize, edges: impl Iterator<Item = (Ends, u32)>) -> Vec<Option<u32>> {
    let mut around: Vec<Vec<(usize, u32)>> = vec![Vec::new(); nodes];
    for ([a, b], cost) in edges {
        for (end, other) in [(a, b), (b, a)] {
            around.get_mut(end).into_iter().for_each(|list| list.push((other, cost)));
        }
    }
    let mut out = vec![None; nodes];
    let mut heap = BinaryHeap::from([Reverse((0, from))]);
    while let Some(Reverse((cost, node))) = heap.pop() {
        match out.get_mut(node) {
            Some(slot @ None) => *slot = Some(cost),
            _ => continue,
        }
        let onward = around.get(node).into_iter().flatten();
        heap.extend(onward.map(|(other, more)| Reverse((cost + more, *other))));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_way_need_not_be_the_shortest() {
        let edges = [([0, 1], 10), ([1, 2], 1), ([0, 2], 30), ([0, 1], 9)];
        assert_eq!(ways(4, 0, edges.into_iter()), [Some(0), Some(9), Some(10), None]);
    }

    #[test]
    fn every_graph_joins_all_brokers() {
        let mut random = Random::new(1);
        let joined = |nodes: usize, edges: &[Ends]| {
            assert!(edges.iter().all(|[a, b]| a < b && *b < nodes), "{edges:?}");
            ways(nodes, 0, edges.iter().map(|ends| (*ends, 1))).iter().all(Option::is_some)
        };
        for nodes in 2..8 {
            for _ in 0..50 {
                assert!(joined(nodes, &draw(&mut random, nodes)));
            }
        }
        assert!(joined(200, &ring_of_rings(10, 20)));
        let edges = regular(&mut random, 100, 4);
        assert!(joined(100, &edges) && (190..=200).contains(&edges.len()), "{}", edges.len());
    }
}
