//! Many topologies that tell each other of their edges, over links that lose everything when they break.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::bundle::{EdgeEntry, NodeEntry};
use crate::name::{NodeId, TenantId};
use crate::time::UnixTime;

/// Signatures that anybody could make, but nobody makes by accident.
#[derive(Debug)]
pub(crate) struct Toy {
    pub(crate) node: NodeId,
    pub(crate) incarnation: u64,
}

impl Toy {
    pub(crate) fn boxed(node: &NodeId, incarnation: u64) -> Box<dyn LinkCrypto> {
        Box::new(Self { node: node.clone(), incarnation })
    }

    fn key(node: &NodeId, incarnation: u64) -> PublicKey {
        let mut key = [0; 32];
        let text = format!("{incarnation}:{node}");
        key.iter_mut().zip(text.bytes()).for_each(|(slot, byte)| *slot = byte);
        key
    }

    fn mark(key: &PublicKey, bytes: &[u8]) -> Signature {
        let sum = key.iter().chain(bytes).fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        let mut out = [0; 64];
        out[..8].copy_from_slice(&sum.to_le_bytes());
        out
    }
}

impl LinkCrypto for Toy {
    fn own_key(&self) -> LinkKey {
        let key = Self::key(&self.node, self.incarnation);
        let (node, incarnation) = (self.node.clone(), self.incarnation);
        LinkKey { node, incarnation, key, chain: vec![vec![1]], signature: key.to_vec() }
    }

    fn sign(&self, bytes: &[u8]) -> Signature {
        Self::mark(&Self::key(&self.node, self.incarnation), bytes)
    }

    fn verify_key(&self, key: &LinkKey, _: &[u8]) -> bool {
        key.signature == Self::key(&key.node, key.incarnation)
    }

    fn verify(&self, key: &PublicKey, bytes: &[u8], signature: &Signature) -> bool {
        Self::mark(key, bytes) == *signature
    }
}

fn label(text: &str) -> Label {
    Label::parse(text).unwrap()
}

/// Brokers and the edges between them; each edge has a queue in both directions while it is up.
struct Mesh {
    head: Head,
    brokers: Arc<Brokers>,
    edges: Vec<[usize; 2]>,
    nodes: Vec<Option<Topology>>,
    lives: Vec<u64>,
    up: Vec<bool>,
    queues: Vec<[VecDeque<LinkMessage>; 2]>,
    records: u64,
}

impl Mesh {
    fn new(count: usize, edges: &[[usize; 2]]) -> Self {
        let mut head = Head::empty(label("f"), UnixTime(0), UnixTime(1));
        let node = |n: usize| NodeId::parse(&format!("r/n{n:04}")).unwrap();
        let entry = |n| NodeEntry { node: node(n), tenant: TenantId::parse("ops").unwrap(), issuers: Vec::new() };
        head.nodes = (0..count).map(entry).collect();
        head.edges = edges
            .iter()
            .enumerate()
            .map(|(i, [a, b])| EdgeEntry { name: label(&format!("e{i}")), a: node(*a.min(b)), b: node(*a.max(b)) })
            .collect();
        let brokers = Arc::new(Brokers::new(head.nodes.iter().map(|n| n.node.clone()), &node(0)));
        let mut mesh = Self {
            head,
            brokers,
            edges: edges.iter().map(|[a, b]| [*a.min(b), *a.max(b)]).collect(),
            nodes: (0..count).map(|_| None).collect(),
            lives: vec![0; count],
            up: vec![false; edges.len()],
            queues: edges.iter().map(|_| Default::default()).collect(),
            records: 0,
        };
        (0..count).for_each(|n| mesh.start(n));
        mesh
    }

    fn start(&mut self, n: usize) {
        self.lives[n] += 10;
        let index = BrokerIndex(u32::try_from(n).unwrap());
        let crypto = Toy::boxed(&self.head.nodes[n].node, self.lives[n]);
        let mut node = Topology::new(&self.head, index, self.lives[n], Arc::clone(&self.brokers), crypto);
        for (i, edge) in self.edges.iter().enumerate().filter(|(_, edge)| edge.contains(&n)) {
            assert!(node.add_own(key(i), &label(&format!("e{i}")), 0), "{edge:?}");
        }
        self.nodes[n] = Some(node);
    }

    fn set(&mut self, edge: usize, up: bool) {
        let alive = self.edges[edge].iter().all(|n| self.nodes[*n].is_some());
        if self.up[edge] == up || (up && !alive) {
            return;
        }
        self.up[edge] = up;
        self.queues[edge] = Default::default();
        for end in self.edges[edge] {
            if let Some(node) = &mut self.nodes[end] {
                if up { node.edge_up(key(edge)) } else { node.edge_down(key(edge)) }
            }
        }
    }

    fn kill(&mut self, n: usize) {
        self.nodes[n] = None;
        for edge in 0..self.edges.len() {
            if self.edges[edge].contains(&n) {
                self.set(edge, false);
            }
        }
    }

    /// Moves one step over one edge in one direction; whether there was anything.
    fn step(&mut self, edge: usize, end: usize) -> bool {
        if !self.up[edge] {
            return false;
        }
        let [from, to] = [self.edges[edge][end], self.edges[edge][1 - end]];
        let sent = self.nodes[from].as_mut().map_or_else(Vec::new, |node| node.take(key(edge), 2));
        self.records +=
            sent.iter().filter(|m| matches!(m, LinkMessage::Record(LinkRecord::State { .. }))).count() as u64;
        self.queues[edge][end].extend(sent);
        let Some(message) = self.queues[edge][end].pop_front() else { return false };
        if let Some(node) = &mut self.nodes[to] {
            match node.on_message(key(edge), message.clone()) {
                Ok(()) | Err(LinkError::NoKey) => {}
                Err(error) => panic!("an honest message is refused: {error}: {message:?}"),
            }
        }
        true
    }

    fn settle(&mut self) {
        while (0..self.edges.len()).fold(false, |any, edge| self.step(edge, 0) | self.step(edge, 1) | any) {}
    }

    fn tick(&mut self, millis: u64) {
        for node in self.nodes.iter_mut().flatten() {
            node.tick(Time::from_millis(millis));
        }
    }

    /// Brokers reachable from one over edges that are up.
    fn reach(&self, from: usize) -> Vec<usize> {
        let mut seen = vec![from];
        let mut next = 0;
        while next < seen.len() {
            for (edge, ends) in self.edges.iter().enumerate().filter(|(edge, _)| self.up[*edge]) {
                let [a, b] = *ends;
                for (x, y) in [(a, b), (b, a)] {
                    if x == seen[next] && !seen.contains(&y) {
                        assert!(self.up[edge]);
                        seen.push(y);
                    }
                }
            }
            next += 1;
        }
        seen
    }

    /// Whether everybody knows the truth of all edges of brokers in reach.
    fn check(&self) {
        for (n, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let reach = self.reach(n);
            for ((name, _, cost), (edge, ends)) in node.edges().zip(self.edges.iter().enumerate()) {
                let of_reach = ends.iter().any(|end| reach.contains(end));
                let own_view = ends.contains(&n) && !node.own_edges.values().any(|own| own.up && own.place == edge);
                if of_reach || own_view {
                    assert_eq!(cost.is_some(), self.up[edge], "n{n} of {name}: {ends:?} {:?}", node.edges[edge].state);
                }
            }
        }
    }
}

fn key(edge: usize) -> EdgeKey {
    EdgeKey(u32::try_from(edge).unwrap())
}

fn ring(count: usize) -> Vec<[usize; 2]> {
    (0..count).map(|n| [n, (n + 1) % count]).collect()
}

fn full(count: usize) -> Vec<[usize; 2]> {
    (0..count).flat_map(|a| (a + 1..count).map(move |b| [a, b])).collect()
}

fn all_up(count: usize, edges: &[[usize; 2]]) -> Mesh {
    let mut mesh = Mesh::new(count, edges);
    (0..edges.len()).for_each(|edge| mesh.set(edge, true));
    mesh.settle();
    mesh.check();
    mesh
}

#[test]
fn everybody_learns_of_every_edge() {
    for (count, edges) in [(2, vec![[0, 1]]), (5, ring(5)), (6, full(6)), (3, vec![[0, 1], [0, 1], [1, 2]])] {
        let mesh = all_up(count, &edges);
        for node in mesh.nodes.iter().flatten() {
            assert!(node.edges().all(|(_, _, cost)| cost == Some(1)));
            assert!(node.incarnations().all(|(_, life)| life == 10));
        }
    }
}

#[test]
fn an_edge_costs_two_records_per_edge_and_a_broker_that_for_each_of_its_edges() {
    for (count, edges) in [(5, ring(5)), (12, ring(12)), (6, full(6)), (8, full(8))] {
        let mut mesh = all_up(count, &edges);
        let bound = 2 * edges.len() as u64;
        let before = mesh.records;
        mesh.set(0, false);
        mesh.settle();
        mesh.check();
        assert!(mesh.records - before <= bound, "down: {} of {bound}", mesh.records - before);
        let before = mesh.records;
        mesh.set(0, true);
        mesh.settle();
        mesh.check();
        assert!(mesh.records - before <= bound, "up: {} of {bound}", mesh.records - before);
        let degree = edges.iter().filter(|edge| edge.contains(&1)).count() as u64;
        let before = mesh.records;
        mesh.kill(1);
        mesh.settle();
        mesh.check();
        assert!(mesh.records - before <= degree * bound, "death: {}", mesh.records - before);
    }
}

#[test]
fn brokers_that_die_together_and_come_back_say_that_their_edge_is_down() {
    let mut mesh = all_up(6, &ring(6));
    mesh.kill(1);
    mesh.kill(2);
    mesh.settle();
    mesh.start(1);
    mesh.set(0, true);
    mesh.settle();
    mesh.tick(20_000);
    mesh.settle();
    mesh.check();
}

#[test]
fn what_was_lost_is_told_when_digests_differ() {
    let mut mesh = all_up(5, &ring(5));
    let lost = mesh.nodes[3].as_mut().unwrap();
    lost.edges[0].state = None;
    lost.edges[1].state = None;
    mesh.tick(20_000);
    mesh.settle();
    mesh.check();
    let before = mesh.records;
    mesh.tick(40_000);
    mesh.settle();
    assert_eq!(mesh.records, before, "nothing is told when nothing differs");
}

#[test]
fn costs_follow_what_is_measured_and_not_every_jitter() {
    let mut mesh = all_up(3, &ring(3));
    let cost = |mesh: &Mesh, n: usize| mesh.nodes[n].as_ref().unwrap().edges().next().unwrap().2;
    let once = |mesh: &mut Mesh, rtt_millis: u64| {
        for end in mesh.edges[0] {
            mesh.nodes[end].as_mut().unwrap().measured(key(0), rtt_millis * 1000);
        }
    };
    let measure = |mesh: &mut Mesh, rtt_millis: u64, at: u64| {
        (0..crate::limits::LINK_RTTS).for_each(|_| once(mesh, rtt_millis));
        mesh.tick(at);
        mesh.settle();
    };
    // A machine that is busy starting takes long at first.
    once(&mut mesh, 40);
    mesh.tick(100);
    mesh.settle();
    assert_eq!(cost(&mesh, 2), Some(1), "measured once");
    measure(&mut mesh, 4, 500);
    assert_eq!(cost(&mesh, 2), Some(1), "one site");
    measure(&mut mesh, 40, 1_000);
    assert_eq!([0, 1, 2].map(|n| cost(&mesh, n)), [Some(9); 3]);
    measure(&mut mesh, 80, 2_000);
    assert_eq!(cost(&mesh, 2), Some(9), "told a moment ago");
    measure(&mut mesh, 46, 12_000);
    assert_eq!(cost(&mesh, 2), Some(9), "jitter");
    once(&mut mesh, 500);
    mesh.tick(12_500);
    mesh.settle();
    assert_eq!(cost(&mesh, 2), Some(9), "a moment's delay");
    measure(&mut mesh, 80, 13_000);
    assert_eq!(cost(&mesh, 2), Some(17));
    mesh.check();
}

#[test]
fn metrics_of_both_sides_count() {
    let mut mesh = Mesh::new(2, &[[0, 1]]);
    for (n, metric) in [(0, 3), (1, 9)] {
        mesh.nodes[n].as_mut().unwrap().add_own(key(0), &label("e0"), metric);
    }
    mesh.set(0, true);
    mesh.settle();
    assert_eq!(mesh.nodes[0].as_ref().unwrap().edges().next().unwrap().2, Some(10));
}

/// A forged or unfit record of edge e2, between n2 and n3, told to n0 by its neighbour.
fn lie(mesh: &mut Mesh, state: LinkState) -> Result<(), LinkError> {
    let record = LinkRecord::State { edge: label("e2"), state };
    let node = mesh.nodes[0].as_mut().unwrap();
    node.on_message(key(0), LinkMessage::Record(record))
}

#[test]
fn nobody_speaks_for_the_edges_of_others() {
    let mut mesh = all_up(5, &ring(5));
    let word = |n: usize, epoch: u64, word: Word| {
        let node = NodeId::parse(&format!("r/n{n:04}")).unwrap();
        let bytes = word.signed_bytes(&label("f"), &label("e2"), epoch, 10);
        Consent { incarnation: 10, signature: Toy { node, incarnation: 10 }.sign(&bytes) }
    };
    let refused = [
        // The neighbour in the middle signs for an end.
        LinkState::Down { epoch: 10, by: 0, end: word(1, 10, Word::Down) },
        // An end says "up" where it should say "down".
        LinkState::Down { epoch: 10, by: 0, end: word(2, 10, Word::Up) },
        // For another epoch than it was said.
        LinkState::Down { epoch: 11, by: 0, end: word(2, 10, Word::Down) },
        // One end alone.
        LinkState::Up {
            epoch: 11,
            revision: 0,
            cost: 1,
            ends: [word(2, 11, Word::Cost { revision: 0, cost: 1 }), word(2, 11, Word::Up)],
        },
        // Another cost than was said.
        LinkState::Up {
            epoch: 11,
            revision: 0,
            cost: 2,
            ends: [word(2, 11, Word::Cost { revision: 0, cost: 1 }), word(3, 11, Word::Up)],
        },
    ];
    for state in refused {
        assert_eq!(lie(&mut mesh, state.clone()), Err(LinkError::Signature), "{state:?}");
    }
    let free = LinkState::Up {
        epoch: 11,
        revision: 0,
        cost: 0,
        ends: [word(2, 11, Word::Cost { revision: 0, cost: 0 }), word(3, 11, Word::Up)],
    };
    assert_eq!(lie(&mut mesh, free), Err(LinkError::Range), "a free edge would make circles");
    let of_later = Consent { incarnation: 99, ..word(2, 10, Word::Down) };
    assert_eq!(lie(&mut mesh, LinkState::Down { epoch: 10, by: 0, end: of_later }), Err(LinkError::NoKey));
    assert_eq!(
        lie(&mut mesh, LinkState::Down { epoch: 10, by: 7, end: word(2, 10, Word::Down) }),
        Err(LinkError::Range)
    );
    mesh.settle();
    mesh.check();
    // What an end says itself is believed: it may bring down its own edge.
    assert_eq!(lie(&mut mesh, LinkState::Down { epoch: 10, by: 0, end: word(2, 10, Word::Down) }), Ok(()));
    assert_eq!(mesh.nodes[0].as_ref().unwrap().edges().nth(2).unwrap().2, None);
    // And while its bridge is up, both ends agree on a later epoch.
    mesh.settle();
    mesh.tick(1_000);
    mesh.settle();
    mesh.check();
}

#[test]
fn an_old_state_told_again_changes_nothing() {
    let mut mesh = all_up(4, &ring(4));
    let old = mesh.nodes[0].as_ref().unwrap().edges[2].state.clone().unwrap();
    mesh.set(2, false);
    mesh.settle();
    assert_eq!(lie(&mut mesh, old.clone()), Ok(()));
    mesh.settle();
    mesh.check();
    mesh.set(2, true);
    mesh.settle();
    assert_eq!(lie(&mut mesh, old), Ok(()));
    mesh.check();
}

#[test]
fn an_end_cannot_end_all_epochs_of_its_edge() {
    let mut mesh = all_up(4, &ring(4));
    let bytes = Word::Down.signed_bytes(&label("f"), &label("e2"), u64::MAX, 10);
    let toy = Toy { node: NodeId::parse("r/n0002").unwrap(), incarnation: 10 };
    let end = Consent { incarnation: 10, signature: toy.sign(&bytes) };
    assert_eq!(lie(&mut mesh, LinkState::Down { epoch: u64::MAX, by: 0, end }), Err(LinkError::Range));
    mesh.set(2, false);
    mesh.settle();
    mesh.set(2, true);
    mesh.settle();
    mesh.check();
}

#[test]
fn keys_are_taken_from_brokers_of_the_fabric_alone() {
    let mut mesh = all_up(3, &ring(3));
    let toy = |name: &str, incarnation| Toy { node: NodeId::parse(name).unwrap(), incarnation }.own_key();
    let tell = |mesh: &mut Mesh, key_of: LinkKey| {
        mesh.nodes[0].as_mut().unwrap().on_message(key(0), LinkMessage::Record(LinkRecord::Key(key_of)))
    };
    assert_eq!(tell(&mut mesh, toy("r/stranger", 11)), Err(LinkError::Unknown));
    assert_eq!(tell(&mut mesh, LinkKey { signature: vec![0], ..toy("r/n0002", 11) }), Err(LinkError::Signature));
    assert_eq!(tell(&mut mesh, toy("r/n0000", 11)), Err(LinkError::LaterLife(11)), "by its own leaf");
    let other_leaf = LinkKey { chain: vec![vec![2]], ..toy("r/n0000", 11) };
    assert_eq!(tell(&mut mesh, other_leaf), Err(LinkError::OwnName));
    let forged = LinkKey { signature: vec![0], ..toy("r/n0000", 12) };
    assert_eq!(tell(&mut mesh, forged), Err(LinkError::Signature), "nobody else moves it");
    assert_eq!(tell(&mut mesh, toy("r/n0002", u64::MAX)), Err(LinkError::Range));
    assert_eq!(tell(&mut mesh, toy("r/n0002", 9)), Ok(()), "an older life changes nothing");
    mesh.settle();
    mesh.check();
    let far = NeighbourWord::Propose { epoch: u64::MAX, metric: 0 };
    let node = mesh.nodes[0].as_mut().unwrap();
    assert_eq!(node.on_message(key(0), LinkMessage::Word(far)), Err(LinkError::Range));
}

#[test]
fn only_a_broker_itself_says_that_it_observes_and_a_new_life_takes_it_back() {
    let mut mesh = all_up(4, &ring(4));
    mesh.nodes[2].as_mut().unwrap().observe(true);
    mesh.settle();
    let observing = |mesh: &Mesh, node: usize| mesh.nodes[node].as_ref().unwrap().observing().collect::<Vec<_>>();
    assert_eq!(observing(&mesh, 0), [BrokerIndex(2)]);
    assert!(observing(&mesh, 2).is_empty(), "of others alone");
    let word = |name: &str, seq, signer: &str| {
        let (node, signer) = (NodeId::parse(name).unwrap(), NodeId::parse(signer).unwrap());
        let bytes = Observer::signed_bytes(&mesh.head.fabric, &node, 10, seq, true);
        let end = Consent { incarnation: 10, signature: Toy { node: signer, incarnation: 10 }.sign(&bytes) };
        LinkMessage::Record(LinkRecord::Observer(Observer { node, seq, present: true, end }))
    };
    let forged = [
        (word("r/n0001", 1, "r/n0003"), Err(LinkError::Signature)),
        (word("r/stranger", 1, "r/n0003"), Err(LinkError::Unknown)),
        (word("r/n0000", 1, "r/n0000"), Ok(())),
        (word("r/n0002", 1, "r/n0003"), Ok(())),
    ];
    for (message, expected) in forged {
        assert_eq!(mesh.nodes[0].as_mut().unwrap().on_message(key(0), message.clone()), expected, "{message:?}");
        assert_eq!(observing(&mesh, 0), [BrokerIndex(2)], "nothing has changed");
    }
    mesh.nodes[2].as_mut().unwrap().observe(false);
    mesh.settle();
    assert!(observing(&mesh, 0).is_empty());
    mesh.nodes[2].as_mut().unwrap().observe(true);
    mesh.settle();
    let reborn = Toy { node: NodeId::parse("r/n0002").unwrap(), incarnation: 11 }.own_key();
    let told = LinkMessage::Record(LinkRecord::Key(reborn));
    assert_eq!(mesh.nodes[0].as_mut().unwrap().on_message(key(0), told), Ok(()));
    assert!(observing(&mesh, 0).is_empty(), "a new life has not said so yet");
}

#[test]
fn a_newer_bundle_keeps_what_is_known_of_edges_that_stay() {
    let mut mesh = all_up(4, &ring(4));
    let mut head = mesh.head.clone();
    head.edges.remove(1);
    let node = mesh.nodes[0].as_mut().unwrap();
    node.renew(&head, Arc::clone(&mesh.brokers));
    let known: Vec<_> = node.edges().map(|(name, _, cost)| (name.to_string(), cost)).collect();
    assert_eq!(known, ["e0", "e2", "e3"].map(|name| (name.to_owned(), Some(1))));
    assert_eq!(
        lie(&mut mesh, LinkState::Down { epoch: 9, by: 0, end: Consent { incarnation: 1, signature: [0; 64] } }),
        Ok(())
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_everybody_knows_the_truth_in_the_end(
        count in 2usize..8,
        chords in proptest::collection::vec((0usize..8, 0usize..8), 0..8),
        events in proptest::collection::vec((0u8..6, any::<prop::sample::Index>(), 0usize..40), 1..60),
    ) {
        let mut edges: Vec<[usize; 2]> = (1..count).map(|n| [n - 1, n]).collect();
        edges.extend(chords.into_iter().map(|(a, b)| [a % count, b % count]).filter(|[a, b]| a != b));
        let mut mesh = Mesh::new(count, &edges);
        let mut millis = 0;
        for (what, which, steps) in events {
            match what {
                0..=1 => mesh.set(which.index(edges.len()), true),
                2 => mesh.set(which.index(edges.len()), false),
                3 => mesh.kill(which.index(count)),
                4 => {
                    let node = which.index(count);
                    if mesh.nodes[node].is_none() {
                        mesh.start(node);
                    }
                }
                _ => {
                    millis += 1_000;
                    mesh.tick(millis);
                }
            }
            for step in 0..steps {
                mesh.step((step * 7 + which.index(97)) % edges.len(), step % 2);
            }
        }
        for _ in 0..3 {
            mesh.settle();
            millis += 20_000;
            mesh.tick(millis);
        }
        mesh.settle();
        mesh.check();
    }
}
