use super::*;
use crate::name::Label;

fn edge(key: u32, name: &str) -> Arc<Edge> {
    Arc::new(Edge::new(EdgeKey(key), Label::parse(name).unwrap(), NodeId::parse("r/peer").unwrap()))
}

fn link(a: u32, b: u32, cost: u32, own: Option<&Arc<Edge>>) -> Link {
    Link { a: BrokerIndex(a), b: BrokerIndex(b), cost, own: own.map(Arc::clone) }
}

fn ways(hops: &[Option<Hop>]) -> Vec<Option<(u32, u32)>> {
    hops.iter().map(|hop| hop.as_ref().map(|hop| (hop.edge.key().0, hop.cost))).collect()
}

#[test]
fn the_cheaper_way_is_taken_and_ties_go_by_the_edges_name() {
    let (b, c) = (edge(0, "b"), edge(1, "a"));
    // 0 is this node: 0-1 (b), 0-2 (a), 1-3, 2-3.
    let links = |far| [link(0, 1, 1, Some(&b)), link(0, 2, 1, Some(&c)), link(1, 3, 1, None), link(2, 3, far, None)];
    assert_eq!(ways(&compute(4, BrokerIndex(0), &links(1))), [None, Some((0, 1)), Some((1, 1)), Some((1, 2))]);
    assert_eq!(ways(&compute(4, BrokerIndex(0), &links(5))), [None, Some((0, 1)), Some((1, 1)), Some((0, 2))]);
    assert_eq!(ways(&compute(5, BrokerIndex(0), &links(1)))[4], None, "out of reach");
}

#[test]
fn of_parallel_edges_the_cheaper_one_is_taken() {
    let (slow, fast) = (edge(0, "a"), edge(1, "b"));
    let links = [link(0, 1, 9, Some(&slow)), link(0, 1, 2, Some(&fast))];
    assert_eq!(ways(&compute(2, BrokerIndex(0), &links)), [None, Some((1, 2))]);
}

#[test]
fn what_is_behind_an_edge_needs_no_way_through_this_node() {
    let (left, right) = (edge(0, "left"), edge(1, "right"));
    // 1 - 0 - 2 - 3, where 0 is this node.
    let links = [link(0, 1, 1, Some(&left)), link(0, 2, 1, Some(&right)), link(2, 3, 1, None)];
    let behind = behind(4, BrokerIndex(0), &links);
    let routes = Routes::new(compute(4, BrokerIndex(0), &links), Arc::new(behind), Arc::default());
    let over = |key| (0..4).map(|n| routes.is_behind(EdgeKey(key), BrokerIndex(n))).collect::<Vec<_>>();
    assert_eq!(over(0), [false, true, false, false]);
    assert_eq!(over(1), [false, false, true, true]);
    assert_eq!(over(7), [false; 4]);
    let told = |key| (0..4).map(|n| routes.may_tell(EdgeKey(key), BrokerIndex(n))).collect::<Vec<_>>();
    assert_eq!(told(0), [true, false, true, true]);
    assert_eq!(told(1), [true, true, false, false]);
}

proptest::proptest! {
    /// Following next hops from anywhere comes nearer with every step, so that messages never go in circles.
    #[test]
    fn every_hop_leads_nearer(
        count in 2u32..10,
        chords in proptest::collection::vec((0u32..10, 0u32..10, 1u32..50), 1..30),
    ) {
        let edges: Vec<_> = (0..).zip(chords.iter()).map(|(key, (a, b, cost))| (edge(key, &format!("e{key}")), a % count, b % count, *cost)).collect();
        let routes_of = |own: u32| {
            let links: Vec<_> = edges.iter().filter(|(_, a, b, _)| a != b).map(|(edge, a, b, cost)| {
                link(*a, *b, *cost, (*a == own || *b == own).then_some(edge))
            }).collect();
            compute(count as usize, BrokerIndex(own), &links)
        };
        let all: Vec<_> = (0..count).map(routes_of).collect();
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                let Some(hop) = &all[from as usize][to as usize] else { continue };
                let (_, a, b, cost) = &edges[hop.edge.key().0 as usize];
                let next = if *a == from { *b } else { *a };
                let rest = if next == to { 0 } else { all[next as usize][to as usize].as_ref().unwrap().cost };
                proptest::prop_assert_eq!(hop.cost, cost + rest);
                proptest::prop_assert!(rest < hop.cost);
            }
        }
    }
}
