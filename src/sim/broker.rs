//! One broker of the world: the engine's control half with its links, and a queue of commands before it.

use std::collections::VecDeque;
use std::sync::Arc;

use glocal_core::control::Control;
use glocal_core::edge::{Edge, EdgeKey};
use glocal_core::identity::{Fingerprint, KeyId, LeafName, Principal, Role};
use glocal_core::name::{Label, NodeId, TenantId};
use glocal_core::policy::Policy;
use glocal_core::tenant::{TenantKey, Tenants};
use glocal_core::time::{Time, UnixTime};
use glocal_engine::batch::Batch;
use glocal_engine::driver::{Command, Driver};
use glocal_engine::link::Link;
use glocal_engine::shared::Shared;

use crate::oracle::Violation;
use crate::plan::Plan;
use crate::toy::Toy;

/// A command on its way to the control half, with what is to be done after it.
#[derive(Debug)]
pub enum Todo {
    /// Of a client, which reads on once it took effect.
    Client(u32, Command),
    /// Of a bridge's reader.
    Reader(Command),
    /// Of an end of a bridge that has finished its handshake: (edge, end, connection).
    Up(usize, usize, u64, Command),
    /// Of an end of a bridge that was lost: (edge, end, connection).
    Down(usize, usize, u64, Command),
}

/// One life of one broker.
#[derive(Debug)]
pub struct Broker {
    /// Its facts.
    pub shared: Arc<Shared>,
    /// Its control half.
    pub driver: Driver,
    /// Its tenants, with counters.
    pub tenants: Arc<Tenants>,
    /// What the control half has still to do.
    pub todo: VecDeque<Todo>,
    /// Clients that wait until the interest of others in a tenant is known.
    pub held: Vec<(u32, TenantKey)>,
    /// When it looks next at what was asked of others.
    pub follow: Time,
    /// Numbers of its edges in the plan, by their keys.
    pub edges: Vec<usize>,
}

impl Broker {
    /// Broker `node` of the plan in its life `incarnation`, all bridges down.
    ///
    /// # Errors
    /// When the plan cannot be carried out, which is a mistake of the simulator.
    pub fn start(plan: &Plan, node: usize, incarnation: u64) -> Result<Self, Violation> {
        Self::build(plan, node, incarnation).ok_or_else(|| Violation(format!("the plan has no broker {node}")))
    }

    fn build(plan: &Plan, node: usize, incarnation: u64) -> Option<Self> {
        let name = plan.nodes.get(node)?.clone();
        let head = plan.head()?;
        let tenants = Arc::new(Tenants::new(plan.sections()));
        let (mut links, mut edges) = (Vec::new(), Vec::new());
        for (number, edge) in plan.edges.iter().enumerate() {
            let [a, b] = edge.ends;
            if a != node && b != node {
                continue;
            }
            let peer = plan.nodes.get(if a == node { b } else { a })?.clone();
            let key = EdgeKey(u32::try_from(links.len()).ok()?);
            let metric = edge.metrics.get(usize::from(b == node)).copied()?;
            let edge = Edge::new(key, Label::parse(&edge.name).ok()?, peer);
            edge.set_metric(metric);
            let edge = Arc::new(edge);
            links.push(Arc::new(Link::new(edge, plan.lanes())));
            edges.push(number);
        }
        let own_edges = links.iter().map(|link| Arc::clone(link.edge())).collect();
        let control = Control::new(
            &name,
            incarnation,
            &head,
            Arc::clone(&tenants),
            own_edges,
            Toy::boxed(plan.nodes.get(node)?, incarnation),
        )?;
        let brokers = Arc::clone(control.brokers());
        let own = brokers.own()?;
        let policy = Arc::new(Policy::new(1, Arc::clone(&tenants)));
        let shared = Arc::new(Shared::new(name, own, incarnation, &head, policy, brokers, links, false));
        let driver = Driver::new(control, Arc::clone(&shared));
        let (todo, held, follow) = (VecDeque::new(), Vec::new(), Time::default());
        Some(Self { shared, driver, tenants, todo, held, follow, edges })
    }

    /// Ends the subscriptions that had their last delivery in a batch.
    pub fn end(&mut self, batch: &mut Batch) {
        let ended = batch.finished.drain(..);
        let command = |(session, sid)| Command::Unsubscribe { session, sid, max: None };
        self.todo.extend(ended.map(|ended| Todo::Reader(command(ended))));
    }

    /// The link of an edge of the plan.
    #[must_use]
    pub fn link(&self, edge: usize) -> Option<Arc<Link>> {
        self.shared.link(self.key(edge)?)
    }

    /// The key of an edge of the plan.
    #[must_use]
    pub fn key(&self, edge: usize) -> Option<EdgeKey> {
        self.edges.iter().position(|e| *e == edge).and_then(|i| u32::try_from(i).ok()).map(EdgeKey)
    }
}

/// The principal of a client.
#[must_use]
pub fn client_principal(tenant: &TenantId, node: &NodeId, number: u32, role: Role) -> Option<Arc<Principal>> {
    let agent = Label::parse(&format!("agent{number}")).ok()?;
    Some(principal(tenant.clone(), node.region().clone(), agent, None, role, number))
}

/// The principal of a broker.
#[must_use]
pub fn node_principal(node: &NodeId) -> Option<Arc<Principal>> {
    let operator = TenantId::parse("ops").ok()?;
    let (region, agent) = (node.region().clone(), node.agent().clone());
    Some(principal(operator, region, agent, Some(node.clone()), Role::Node, 0))
}

fn principal(
    tenant: TenantId,
    region: Label,
    agent: Label,
    node: Option<NodeId>,
    role: Role,
    number: u32,
) -> Arc<Principal> {
    let (region, agent) = (Some(region), Some(agent));
    let leaf =
        LeafName { tenant, region, agent, node, serial: vec![1], not_before: UnixTime(0), not_after: UnixTime(1) };
    let mut print = [0; 32];
    print.iter_mut().zip(number.to_le_bytes()).for_each(|(slot, byte)| *slot = byte);
    Arc::new(Principal::from_leaf(leaf, role, KeyId([0; 32]), Fingerprint(print)))
}
