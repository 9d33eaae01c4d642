//! What a world looks like before anything happens: brokers, edges and tenants, drawn from the seed.

use std::collections::BTreeSet;
use std::sync::Arc;

use glocal_core::bundle::{EdgeEntry, Head, NodeEntry, Section};
use glocal_core::limits::EDGE_LANE_BYTES_MAX;
use glocal_core::name::{Label, NodeId, TenantId};
use glocal_core::sched::{ClassConfig, HdwrrConfig};
use glocal_core::time::UnixTime;

use crate::graph;
use crate::random::Random;

/// Tenants by number.
pub type Tenants = BTreeSet<usize>;

/// The greatest delay of an edge in one direction, in microseconds: through the whole world and back in a second, which a
/// first publish waits for what others want.
const DELAY_MICROS: usize = 60_000;

/// An edge of the plan: two brokers, and what each side and the bundle allow.
#[derive(Clone, Debug)]
pub struct PlannedEdge {
    /// Its name.
    pub name: String,
    /// Its ends, the lesser number first.
    pub ends: [usize; 2],
    /// What the bundle allows.
    pub bundle: Tenants,
    /// What each end's own configuration allows.
    pub configured: [Tenants; 2],
    /// What each end's configuration adds to the cost.
    pub metrics: [u32; 2],
    /// What anything takes over it at least, in microseconds, in one direction.
    pub delay_micros: u64,
}

impl PlannedEdge {
    /// What may cross it: the ground truth that every check is made against.
    #[must_use]
    pub fn effective(&self) -> Tenants {
        let [a, b] = &self.configured;
        self.bundle.iter().filter(|t| a.contains(t) && b.contains(t)).copied().collect()
    }

    /// What crossing it costs: one for the hop, and the greater metric.
    #[must_use]
    pub const fn cost(&self) -> u32 {
        let [a, b] = self.metrics;
        1 + if a > b { a } else { b }
    }
}

/// A drawn world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Brokers by number.
    pub nodes: Vec<NodeId>,
    /// Edges by number.
    pub edges: Vec<PlannedEdge>,
    /// Tenant ids by number; the last one is the superusers'.
    pub tenants: Vec<TenantId>,
    /// Bytes of one lane of one edge; small ones overflow.
    pub lane_bytes_max: usize,
    /// Whether superusers take part.
    pub superusers: bool,
    /// Whether bridges break and brokers die.
    pub faults: bool,
    /// Whether peers lie.
    pub liars: bool,
    /// By tenant and broker: the cost to every broker.
    ways: Vec<Vec<Vec<Option<u32>>>>,
}

impl Plan {
    /// The plan of one seed.
    #[must_use]
    pub fn draw(random: &mut Random) -> Self {
        let node_count = random.between(2, 7);
        let tenants: Vec<TenantId> = (0..random.between(2, 4))
            .map(|i| format!("tenant{i}"))
            .chain(["root".to_owned()])
            .filter_map(|id| TenantId::parse(&id).ok())
            .collect();
        let ends = graph::draw(random, node_count);
        let far = random.chance(20);
        let narrowed = random.chance(50);
        let edges = ends
            .into_iter()
            .enumerate()
            .map(|(number, ends)| {
                let mut metric = || if random.chance(30) { u32::try_from(random.below(50)).unwrap_or(0) } else { 0 };
                let metrics = [metric(), metric()];
                let delay_micros = if far { random.below(DELAY_MICROS) as u64 } else { 0 };
                let mut subset = |percent| (0..tenants.len()).filter(|_| random.chance(percent)).collect::<Tenants>();
                let bundle = subset(75);
                let configured = if narrowed { [subset(90), subset(90)] } else { [subset(100), subset(100)] };
                PlannedEdge { name: format!("e{number}"), ends, bundle, configured, metrics, delay_micros }
            })
            .collect();
        let nodes = (0..node_count).filter_map(|i| NodeId::parse(&format!("r{i}/n{i}")).ok()).collect();
        let tight = random.chance(25);
        let mut plan = Self {
            nodes,
            edges,
            tenants,
            lane_bytes_max: if tight { random.between(2_000, 30_000) } else { EDGE_LANE_BYTES_MAX },
            superusers: random.chance(40),
            faults: random.chance(60),
            liars: random.chance(40),
            ways: Vec::new(),
        };
        plan.measure();
        plan
    }

    /// Two brokers and one edge that carries two tenants; nothing fails.
    #[must_use]
    pub fn pair() -> Self {
        let both: Tenants = [0, 1].into();
        let edge = PlannedEdge {
            name: "e1".to_owned(),
            ends: [0, 1],
            bundle: both.clone(),
            configured: [both.clone(), both],
            metrics: [0; 2],
            delay_micros: 0,
        };
        let mut plan = Self {
            nodes: ["r0/n0", "r1/n1"].iter().filter_map(|name| NodeId::parse(name).ok()).collect(),
            edges: vec![edge],
            tenants: ["tenant0", "tenant1", "root"].iter().filter_map(|id| TenantId::parse(id).ok()).collect(),
            lane_bytes_max: EDGE_LANE_BYTES_MAX,
            superusers: false,
            faults: false,
            liars: false,
            ways: Vec::new(),
        };
        plan.measure();
        plan
    }

    fn measure(&mut self) {
        let nodes = 0..self.nodes.len();
        self.ways =
            (0..self.tenants.len()).map(|t| nodes.clone().map(|from| self.find_ways(from, t)).collect()).collect();
    }

    /// Whether lanes are large enough to lose nothing.
    #[must_use]
    pub const fn is_roomy(&self) -> bool {
        self.lane_bytes_max == EDGE_LANE_BYTES_MAX
    }

    /// The number of the superusers' tenant.
    #[must_use]
    pub const fn root(&self) -> usize {
        self.tenants.len() - 1
    }

    /// The head of the bundle.
    #[must_use]
    pub fn head(&self) -> Option<Head> {
        let mut head = Head::empty(Label::parse("sim").ok()?, UnixTime(0), UnixTime(1));
        let operator = TenantId::parse("ops").ok()?;
        head.max_payload_bytes = 256 * 1024;
        head.nodes = self
            .nodes
            .iter()
            .map(|node| NodeEntry { node: node.clone(), tenant: operator.clone(), issuers: Vec::new() })
            .collect();
        for edge in &self.edges {
            let [a, b] = edge.ends.map(|end| self.nodes.get(end));
            head.edges.push(EdgeEntry { name: Label::parse(&edge.name).ok()?, a: a?.clone(), b: b?.clone() });
        }
        Some(head)
    }

    /// The sections of the bundle.
    #[must_use]
    pub fn sections(&self) -> Vec<Arc<Section>> {
        let section = |(number, id): (usize, &TenantId)| {
            let mut section = Section::new(id.clone(), [0; 16]);
            let carrying = self.edges.iter().filter(|e| e.bundle.contains(&number));
            section.edges = carrying.filter_map(|e| Label::parse(&e.name).ok()).collect();
            Arc::new(section)
        };
        self.tenants.iter().enumerate().map(section).collect()
    }

    /// The scheduler of every edge.
    #[must_use]
    pub fn lanes(&self) -> HdwrrConfig {
        HdwrrConfig { classes: ClassConfig::new(self.lane_bytes_max), ..HdwrrConfig::default() }
    }

    /// The cost from one broker to every other along edges that carry `tenant`; `None` where there is no way.
    #[must_use]
    pub fn distances(&self, from: usize, tenant: usize) -> &[Option<u32>] {
        self.ways.get(tenant).and_then(|ways| ways.get(from)).map_or(&[], Vec::as_slice)
    }

    fn find_ways(&self, from: usize, tenant: usize) -> Vec<Option<u32>> {
        let carrying = self.edges.iter().filter(|edge| edge.effective().contains(&tenant));
        graph::ways(self.nodes.len(), from, carrying.map(|edge| (edge.ends, edge.cost())))
    }
}
