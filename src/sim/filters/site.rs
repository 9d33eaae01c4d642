//! One broker with sessions that subscribe by the thousand, as its control task would see them.

use std::sync::Arc;

use glocal_core::bundle::{Head, Section};
use glocal_core::control::Control;
use glocal_core::edge::{Edge, EdgeKey};
use glocal_core::identity::Role;
use glocal_core::inbox::Inbox;
use glocal_core::name::{Filter, Label, NodeId, QueueGroup, TenantId};
use glocal_core::policy::{Permit, Policy, Read};
use glocal_core::port::SessionPort;
use glocal_core::sched::{Drops, HdwrrConfig, SessionLanes};
use glocal_core::tenant::{Tenant, Tenants};
use glocal_core::time::Time;
use glocal_engine::driver::{Command, Driver};
use glocal_engine::link::Link;
use glocal_engine::shared::Shared;

use super::filter;
use crate::broker::client_principal;
use crate::graph::{self, Ends};
use crate::oracle::{Violation, ensure};
use crate::toy::Toy;

/// Commands between two commits, as in a node's control task.
pub const COMMANDS: usize = 256;

/// What all brokers of a fabric know: who they are, how they are joined, and the tenants, all of which every edge carries.
#[derive(Debug)]
pub struct Fabric {
    pub(super) head: Head,
    pub(super) sections: Vec<Arc<Section>>,
    pub(super) names: Vec<NodeId>,
    pub(super) labels: Vec<Label>,
    pub(super) edges: Vec<Ends>,
}

impl Fabric {
    /// `nodes` brokers joined by `edges`, for `tenants` tenants.
    #[must_use]
    pub fn new(nodes: usize, edges: Vec<Ends>, tenants: usize) -> Option<Self> {
        let (head, names, labels) = graph::fabric("filters", nodes, &edges)?;
        let section = |tenant: usize| {
            let mut section = Section::new(TenantId::parse(&format!("tenant{tenant:06}")).ok()?, [0; 16]);
            section.edges.clone_from(&labels);
            Some(Arc::new(section))
        };
        let sections = (0..tenants).filter_map(section).collect();
        Some(Self { head, sections, names, labels, edges })
    }
}

/// One broker.
#[derive(Debug)]
pub struct Site {
    /// Its facts.
    pub shared: Arc<Shared>,
    /// Its control half.
    pub driver: Driver,
    /// Its edges in the fabric, in the order of their keys.
    pub edges: Vec<usize>,
    ports: Vec<Arc<SessionPort>>,
    /// Commands since the last commit.
    uncommitted: usize,
    touched: Vec<Arc<SessionPort>>,
}

impl Site {
    /// Broker `number` of the fabric.
    #[must_use]
    pub fn new(fabric: &Fabric, number: usize) -> Option<Self> {
        let name = fabric.names.get(number)?.clone();
        let tenants = Arc::new(Tenants::new(fabric.sections.iter().cloned()));
        let (mut links, mut edges) = (Vec::new(), Vec::new());
        for (at, (label, ends)) in fabric.labels.iter().zip(&fabric.edges).enumerate() {
            let Some(side) = ends.iter().position(|end| *end == number) else { continue };
            let peer = fabric.names.get(*ends.get(1 - side)?)?.clone();
            let key = EdgeKey(u32::try_from(links.len()).ok()?);
            links.push(Arc::new(Link::new(Arc::new(Edge::new(key, label.clone(), peer)), HdwrrConfig::default())));
            edges.push(at);
        }
        let own_edges = links.iter().map(|link| Arc::clone(link.edge())).collect();
        let crypto = Toy::boxed(&name, 1);
        let control = Control::new(&name, 1, &fabric.head, Arc::clone(&tenants), own_edges, crypto)?;
        let brokers = Arc::clone(control.brokers());
        let own = brokers.own()?;
        let policy = Arc::new(Policy::new(1, tenants));
        let shared = Arc::new(Shared::new(name, own, 1, &fabric.head, policy, brokers, links, false));
        let driver = Driver::new(control, Arc::clone(&shared));
        Some(Self { shared, driver, edges, ports: Vec::new(), uncommitted: 0, touched: Vec::new() })
    }

    /// The tenant with this number.
    #[must_use]
    pub fn tenant(&self, number: usize) -> Option<Arc<Tenant>> {
        self.shared.tenant(&format!("tenant{number:06}"))
    }

    /// The key of an edge of the fabric.
    #[must_use]
    pub fn key(&self, edge: usize) -> Option<EdgeKey> {
        self.edges.iter().position(|known| *known == edge).and_then(|at| u32::try_from(at).ok()).map(EdgeKey)
    }

    /// A session of the tenant with this number.
    #[must_use]
    pub fn session(&mut self, tenant: usize) -> Option<Arc<SessionPort>> {
        let number = u32::try_from(self.ports.len()).ok()?;
        let id = TenantId::parse(&format!("tenant{tenant:06}")).ok()?;
        let principal = client_principal(&id, &self.shared.node, number, Role::Tenant)?;
        let inbox = Inbox::new(SessionLanes::default());
        let port = Arc::new(SessionPort::new(self.shared.next_session(), principal, false, inbox));
        self.ports.push(Arc::clone(&port));
        Some(port)
    }

    /// Subscribes a session to the filter `number`, under the number `sid`; commits when as much is due.
    ///
    /// # Errors
    /// When policy refuses it.
    pub fn subscribe(&mut self, port: &Arc<SessionPort>, sid: u32, number: u64, now: Time) -> Result<(), Violation> {
        let (permit, queue) = permit(&self.shared, port, number)?;
        let port = Arc::clone(port);
        self.touched.push(Arc::clone(&port));
        let command = Command::Subscribe { port, sid, tag: Box::default(), permit, queue, local_only: false };
        self.driver.apply(command);
        self.count(now);
        Ok(())
    }

    /// Ends one subscription; commits when as much is due.
    pub fn unsubscribe(&mut self, port: &SessionPort, sid: u32, now: Time) {
        self.driver.apply(Command::Unsubscribe { session: port.id(), sid, max: None });
        self.count(now);
    }

    fn count(&mut self, now: Time) {
        self.uncommitted += 1;
        if self.uncommitted >= COMMANDS {
            self.commit(now);
        }
    }

    /// Publishes what has changed; clients read their answers.
    pub fn commit(&mut self, now: Time) {
        self.uncommitted = 0;
        self.driver.commit(now);
        let mut parts = Vec::new();
        for port in self.touched.drain(..) {
            port.inbox().with(|lanes| lanes.fill(usize::MAX, now, &mut parts, &mut Drops::new()));
            parts.clear();
        }
    }

    /// Filters in the table of a tenant.
    #[must_use]
    pub fn held(&self, tenant: usize) -> usize {
        self.tenant(tenant).map_or(0, |tenant| tenant.table().filters())
    }

    /// Checks that the tenants hold so many filters each.
    ///
    /// # Errors
    /// Which one does not.
    pub fn check_held(&self, tenants: usize, filters: usize) -> Result<(), Violation> {
        for tenant in 0..tenants {
            let held = self.held(tenant);
            ensure!(held == filters, "tenant {tenant} holds {held} filters, not {filters}");
        }
        Ok(())
    }
}

fn permit(shared: &Shared, port: &SessionPort, number: u64) -> Result<(Permit<Read>, Option<QueueGroup>), Violation> {
    let (text, queue) = filter(number);
    let bad = |what: String| Violation(format!("filter {text}: {what}"));
    let principal = port.principal();
    let parsed = Filter::qualify(principal.tenant(), text.as_bytes()).map_err(|error| bad(error.to_string()))?;
    let permit = shared.policy().authorize(principal, Read(parsed)).map_err(|reason| bad(format!("{reason:?}")))?;
    let queue = queue.map(|queue| QueueGroup::parse(&queue)).transpose().map_err(|error| bad(error.to_string()))?;
    Ok((permit, queue))
}
