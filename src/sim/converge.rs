//! Scale: a thousand brokers that learn of each other's edges and compute routes for many tenants, without clients.
//!
//! Brokers are core's control halves. They tell each other of edges over queues with delay; each takes what came within a
//! millisecond at once, as a node takes what waits for its control half. When it is quiet, every broker must know the truth.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use glocal_core::bundle::{Head, Section};
use glocal_core::control::Control;
use glocal_core::edge::{Edge, EdgeKey, TenantSet};
use glocal_core::limits::{DEAD_MS_MIN, LINK_RECORDS_AT_ONCE};
use glocal_core::name::{Label, NodeId, TenantId};
use glocal_core::routes::BrokerIndex;
use glocal_core::tenant::{TenantKey, Tenants};
use glocal_core::topology::{LinkMessage, LinkRecord};

use crate::graph::{self, Ends};
use crate::oracle::{Violation, ensure};
use crate::random::Random;
use crate::toy::Toy;

/// Distinct sets of edges among the tenants: so many sets of routes has every broker.
const SETS: usize = 8;
/// Share of the edges that a set holds, in percent.
const SET_PERCENT: usize = 90;
/// Greatest delay of an edge in one direction, in milliseconds.
const DELAY_MS: usize = 20;
/// Brokers whose routes are compared with the truth.
const SAMPLES: usize = 20;

/// What one event took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Time until nobody had anything to tell any more, in milliseconds of the world.
    pub millis: u64,
    /// States of edges sent.
    pub records: u64,
    /// Times that a broker had news, and routes were computed.
    pub commits: u64,
}

/// One broker with its edges in the order of their keys.
#[derive(Debug)]
struct Node {
    control: Control,
    tenants: Arc<Tenants>,
    edges: Vec<usize>,
}

/// A link record on its way over an edge, towards one of its ends.
type Queue = VecDeque<(u64, LinkMessage)>;

/// All brokers, and what is on its way.
#[derive(Debug)]
pub struct Mesh {
    edges: Vec<Ends>,
    delays: Vec<u64>,
    up: Vec<bool>,
    sets: Vec<BTreeSet<usize>>,
    nodes: Vec<Option<Node>>,
    queues: Vec<[Queue; 2]>,
    due: BinaryHeap<Reverse<(u64, usize, usize)>>,
    now: u64,
    cost: Cost,
}

impl Mesh {
    /// Brokers joined by `edges`, all of them down, with `tenants` tenants.
    #[must_use]
    pub fn build(random: &mut Random, nodes: usize, edges: Vec<Ends>, tenants: usize) -> Option<Self> {
        let (head, names, labels) = graph::fabric("scale", nodes, &edges)?;
        let mut set = || (0..edges.len()).filter(|_| random.chance(SET_PERCENT)).collect();
        let sets: Vec<BTreeSet<usize>> = (0..SETS.min(tenants)).map(|_| set()).collect();
        let section = |tenant: usize| {
            let mut section = Section::new(TenantId::parse(&format!("tenant{tenant}")).ok()?, [0; 16]);
            let allowed = sets.get(tenant % SETS)?.iter();
            section.edges = allowed.filter_map(|edge| labels.get(*edge).cloned()).collect();
            Some(Arc::new(section))
        };
        let sections: Vec<Arc<Section>> = (0..tenants).filter_map(section).collect();
        let node = |number: usize| build_node(number, &names, &edges, &labels, &head, &sections);
        let built: Vec<Option<Node>> = (0..nodes).map(node).collect();
        let delays = edges.iter().map(|_| random.between(1, DELAY_MS) as u64).collect();
        Some(Self {
            delays,
            up: vec![false; edges.len()],
            sets,
            nodes: built.into_iter().map(|node| node.map(Some)).collect::<Option<_>>()?,
            queues: edges.iter().map(|_| Default::default()).collect(),
            due: BinaryHeap::new(),
            now: 0,
            cost: Cost::default(),
            edges,
        })
    }

    /// How many edges there are.
    #[must_use]
    pub const fn edges(&self) -> usize {
        self.edges.len()
    }

    /// How many edges a broker has.
    #[must_use]
    pub fn degree(&self, node: usize) -> usize {
        self.edges.iter().filter(|ends| ends.contains(&node)).count()
    }

    /// Brings all edges up at once.
    ///
    /// # Errors
    /// When brokers do not learn the truth.
    pub fn bring_up(&mut self) -> Result<Cost, Violation> {
        for edge in 0..self.edges.len() {
            self.set(edge, true);
        }
        // Routes are computed once, at the end: what matters here is what is told.
        self.settle(false)?;
        self.nodes.iter_mut().flatten().for_each(|node| drop(node.control.commit()));
        self.check()?;
        Ok(std::mem::take(&mut self.cost))
    }

    /// One edge fails, and both its ends are told.
    ///
    /// # Errors
    /// When brokers do not learn the truth.
    pub fn cut(&mut self, edge: usize) -> Result<Cost, Violation> {
        self.set(edge, false);
        self.settle(true)?;
        self.check()?;
        Ok(std::mem::take(&mut self.cost))
    }

    /// One edge comes back.
    ///
    /// # Errors
    /// When brokers do not learn the truth.
    pub fn mend(&mut self, edge: usize) -> Result<Cost, Violation> {
        self.set(edge, true);
        self.settle(true)?;
        self.check()?;
        Ok(std::mem::take(&mut self.cost))
    }

    /// A broker dies without a word; its neighbours notice its silence.
    ///
    /// # Errors
    /// When brokers do not learn the truth.
    pub fn kill(&mut self, node: usize) -> Result<Cost, Violation> {
        if let Some(slot) = self.nodes.get_mut(node) {
            *slot = None;
        }
        self.now += DEAD_MS_MIN;
        let of = |(edge, ends): (usize, &Ends)| ends.contains(&node).then_some(edge);
        let edges: Vec<usize> = self.edges.iter().enumerate().filter_map(of).collect();
        edges.into_iter().for_each(|edge| self.set(edge, false));
        self.settle(true)?;
        self.check()?;
        let cost = std::mem::take(&mut self.cost);
        Ok(Cost { millis: cost.millis + DEAD_MS_MIN, ..cost })
    }

    fn set(&mut self, edge: usize, up: bool) {
        let Some((ends, state)) = self.edges.get(edge).copied().zip(self.up.get_mut(edge)) else { return };
        *state = up;
        if let Some(queues) = self.queues.get_mut(edge) {
            *queues = Default::default();
        }
        for node in ends {
            let Some(Some(broker)) = self.nodes.get_mut(node) else { continue };
            let Some(key) = key_of(broker, edge) else { continue };
            if up {
                let carries = |tenant: &u32| {
                    let set = usize::try_from(*tenant).ok().and_then(|tenant| self.sets.get(tenant % SETS));
                    set.is_some_and(|set| set.contains(&edge))
                };
                let all = 0..u32::try_from(broker.tenants.iter().count()).unwrap_or(0);
                let effective: TenantSet = all.filter(carries).map(TenantKey).collect();
                broker.control.edge_up(key, effective, 1);
            } else {
                broker.control.edge_down(key);
            }
            self.due.push(Reverse((self.now, usize::MAX, node)));
        }
    }

    /// Lets brokers talk until none has anything to tell; `routing` says whether they compute routes on the way.
    fn settle(&mut self, routing: bool) -> Result<(), Violation> {
        let begun = self.now;
        while let Some(Reverse((time, ..))) = self.due.peek().copied() {
            self.now = self.now.max(time);
            let mut touched = BTreeSet::new();
            while let Some(Reverse((time, edge, at))) = self.due.peek().copied()
                && time <= self.now
            {
                self.due.pop();
                if edge == usize::MAX {
                    touched.insert(at);
                } else {
                    touched.extend(self.arrive(edge, at)?);
                }
            }
            for node in touched {
                self.speak(node, routing);
            }
        }
        self.cost.millis = self.now - begun;
        Ok(())
    }

    /// Takes what has come over an edge to one end; the broker there.
    fn arrive(&mut self, edge: usize, side: usize) -> Result<Option<usize>, Violation> {
        let Some(node) = self.edges.get(edge).and_then(|ends| ends.get(side)).copied() else { return Ok(None) };
        let Some(queue) = self.queues.get_mut(edge).and_then(|sides| sides.get_mut(side)) else { return Ok(None) };
        let Some(Some(broker)) = self.nodes.get_mut(node) else { return Ok(None) };
        let Some(key) = key_of(broker, edge) else { return Ok(None) };
        while queue.front().is_some_and(|(time, _)| *time <= self.now) {
            let Some((_, message)) = queue.pop_front() else { break };
            let taken = broker.control.link_message(key, message);
            ensure!(taken.is_ok(), "broker {node} refuses link state: {taken:?}");
        }
        Ok(Some(node))
    }

    /// A broker publishes its routes and tells its neighbours what is new.
    fn speak(&mut self, node: usize, routing: bool) {
        let Some(Some(broker)) = self.nodes.get_mut(node) else { return };
        if routing {
            drop(broker.control.commit());
            self.cost.commits += 1;
        }
        for (number, edge) in (0u32..).zip(&broker.edges) {
            let key = EdgeKey(number);
            let Some(side) = self.edges.get(*edge).and_then(|ends| ends.iter().position(|end| *end != node)) else {
                continue;
            };
            let Some((delay, queues)) = self.delays.get(*edge).zip(self.queues.get_mut(*edge)) else { continue };
            let Some(queue) = queues.get_mut(side) else { continue };
            let arrival = self.now + delay;
            while broker.control.topology().is_waiting(key) {
                for message in broker.control.topology_mut().take(key, LINK_RECORDS_AT_ONCE) {
                    let is_state = matches!(message, LinkMessage::Record(LinkRecord::State { .. }));
                    self.cost.records += u64::from(is_state);
                    queue.push_back((arrival, message));
                    self.due.push(Reverse((arrival, *edge, side)));
                }
            }
        }
    }

    /// Checks that every broker knows every edge as it is, and that some have the routes of a computation of its own.
    fn check(&self) -> Result<(), Violation> {
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            for ((name, _, cost), up) in node.control.topology().edges().zip(&self.up) {
                ensure!(cost.is_some() == *up, "broker {number} holds {name} to cost {cost:?}, while up is {up}");
            }
            if number % self.nodes.len().div_ceil(SAMPLES) == 0 {
                self.check_routes(number, node)?;
            }
        }
        Ok(())
    }

    fn check_routes(&self, number: usize, node: &Node) -> Result<(), Violation> {
        for (set, tenant) in self.sets.iter().zip(node.tenants.iter()) {
            let usable = self.edges.iter().enumerate().filter(|(edge, _)| set.contains(edge));
            let usable = usable.filter(|(edge, _)| self.up.get(*edge).copied().unwrap_or(false));
            let ways = graph::ways(self.nodes.len(), number, usable.map(|(_, ends)| (*ends, 1)));
            let table = tenant.table();
            for (target, cost) in ways.iter().enumerate().filter(|(target, _)| *target != number) {
                let index = BrokerIndex(u32::try_from(target).unwrap_or(u32::MAX));
                let known = table.routes().hop(index).map(|hop| hop.cost);
                ensure!(known == *cost, "broker {number} reaches {target} at {known:?}, not at {cost:?}");
            }
        }
        Ok(())
    }
}

fn key_of(node: &Node, edge: usize) -> Option<EdgeKey> {
    node.edges.iter().position(|known| *known == edge).and_then(|at| u32::try_from(at).ok()).map(EdgeKey)
}

fn build_node(
    number: usize,
    names: &[NodeId],
    edges: &[Ends],
    labels: &[Label],
    head: &Head,
    sections: &[Arc<Section>],
) -> Option<Node> {
    let own = names.get(number)?;
    let mine: Vec<usize> =
        edges.iter().enumerate().filter(|(_, ends)| ends.contains(&number)).map(|(edge, _)| edge).collect();
    let handle = |(key, edge): (u32, &usize)| {
        let peer = edges.get(*edge)?.iter().find(|end| **end != number)?;
        Some(Arc::new(Edge::new(EdgeKey(key), labels.get(*edge)?.clone(), names.get(*peer)?.clone())))
    };
    let handles: Vec<Arc<Edge>> = (0u32..).zip(&mine).filter_map(handle).collect();
    let tenants = Arc::new(Tenants::new(sections.to_vec()));
    let control = Control::new(own, 1, head, Arc::clone(&tenants), handles, Toy::boxed(own, 1))?;
    Some(Node { control, tenants, edges: mine })
}
