//! What a world looks like before anything happens: brokers, edges and tenants, drawn from the seed.

use std::collections::BTreeSet;
use std::sync::Arc;

use glocal_core::bundle::{EdgeEntry, Head, NodeEntry, Section};
use glocal_core::limits::EDGE_LANE_BYTES_MAX;
use glocal_core::name::{Label, NodeId, TenantId};
use glocal_core::sched::{ClassConfig, HdwrrConfig};
use glocal_core::time::UnixTime;

use crate::random::Random;

/// Tenants by number.
pub type Tenants = BTreeSet<usize>;

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
}

impl PlannedEdge {
    /// What may cross it: the ground truth that every check is made against.
    #[must_use]
    pub fn effective(&self) -> Tenants {
        let [a, b] = &self.configured;
        self.bundle.iter().filter(|t| a.contains(t) && b.contains(t)).copied().collect()
    }
}

/// A drawn world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Brokers by number.
    pub nodes: Vec<NodeId>,
    /// Edges by number; a tree.
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
    /// By tenant and broker: the hops to every broker.
    ways: Vec<Vec<Vec<Option<u32>>>>,
}

impl Plan {
    /// The plan of one seed.
    #[must_use]
    pub fn draw(random: &mut Random) -> Self {
        let node_count = random.between(2, 6);
        let tenants: Vec<TenantId> = (0..random.between(2, 4))
            .map(|i| format!("tenant{i}"))
            .chain(["root".to_owned()])
            .filter_map(|id| TenantId::parse(&id).ok())
            .collect();
        let shape = random.below(3);
        let edges = (1..node_count)
            .map(|node| {
                // A line, a star, or any tree.
                let parent = match shape {
                    0 => node - 1,
                    1 => 0,
                    _ => random.below(node),
                };
                let mut subset = |percent| (0..tenants.len()).filter(|_| random.chance(percent)).collect::<Tenants>();
                PlannedEdge {
                    name: format!("e{node}"),
                    ends: [parent, node],
                    bundle: subset(75),
                    configured: [subset(90), subset(90)],
                }
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
        let edge =
            PlannedEdge { name: "e1".to_owned(), ends: [0, 1], bundle: both.clone(), configured: [both.clone(), both] };
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

    /// Hops from one broker to every other along edges that carry `tenant`; `None` where there is no way.
    #[must_use]
    pub fn distances(&self, from: usize, tenant: usize) -> &[Option<u32>] {
        self.ways.get(tenant).and_then(|ways| ways.get(from)).map_or(&[], Vec::as_slice)
    }

    fn find_ways(&self, from: usize, tenant: usize) -> Vec<Option<u32>> {
        let mut out = vec![None; self.nodes.len()];
        let mut stack = vec![(from, 0)];
        while let Some((node, hops)) = stack.pop() {
            match out.get_mut(node) {
                Some(slot @ None) => *slot = Some(hops),
                _ => continue,
            }
            for edge in self.edges.iter().filter(|e| e.effective().contains(&tenant)) {
                let [a, b] = edge.ends;
                if a == node {
                    stack.push((b, hops + 1));
                } else if b == node {
                    stack.push((a, hops + 1));
                }
            }
        }
        out
    }
}
