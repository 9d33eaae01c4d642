//! Tests of the control half: brokers in a line or a ring, records passed by hand.

use std::collections::VecDeque;

use super::*;
use crate::bundle::{EdgeEntry, NodeEntry, Section};
use crate::identity::{Fingerprint, KeyId, LeafName, Principal, Role};
use crate::inbox::Inbox;
use crate::limits::INTEREST_RETRY_MS;
use crate::name::{Destination, Filter, Label, RawName, TenantId};
use crate::policy::Policy;
use crate::sched::{ClassConfig, SessionLanes};
use crate::time::UnixTime;
use crate::topology::LinkError;
use crate::topology::tests::Toy;

mod change;
mod compare;
mod cuts;
mod interest;
mod limits;
mod missed;

const NODES: [&str; 4] = ["global/g", "region-a/a", "region-b/b", "region-c/c"];
const EDGES: [(&str, usize, usize); 2] = [("a-global", 0, 1), ("b-global", 0, 2)];

/// Four brokers in a ring, two of them joined twice.
const RING: [(&str, usize, usize); 5] =
    [("a-global", 0, 1), ("a-global-2", 0, 1), ("b-global", 0, 2), ("a-c", 1, 3), ("b-c", 2, 3)];

struct World {
    layout: &'static [(&'static str, usize, usize)],
    nodes: Vec<Control>,
    tenants: Vec<Arc<Tenants>>,
    edges: Vec<Vec<Arc<Edge>>>,
    sessions: u64,
    crossed: Vec<(usize, String)>,
    letters: usize,
    now: Time,
    /// Pairs of brokers between which messages are lost.
    cut: Vec<(usize, usize)>,
}

fn head(layout: &[(&str, usize, usize)]) -> Head {
    let mut head = Head::empty(Label::parse("demo").unwrap(), UnixTime(0), UnixTime(1));
    let node = |n: &str| NodeId::parse(n).unwrap();
    head.nodes = NODES
        .iter()
        .map(|n| NodeEntry { node: node(n), tenant: TenantId::parse("ops").unwrap(), issuers: Vec::new() })
        .collect();
    head.edges = layout
        .iter()
        .map(|(name, a, b)| EdgeEntry { name: Label::parse(name).unwrap(), a: node(NODES[*a]), b: node(NODES[*b]) })
        .collect();
    head
}

fn section(tenant: &str, edges: &[&str]) -> Arc<Section> {
    let mut section = Section::new(TenantId::parse(tenant).unwrap(), [0; 16]);
    section.edges = edges.iter().map(|e| Label::parse(e).unwrap()).collect();
    Arc::new(section)
}

/// A broker with a publisher of every tenant.
fn followed(mut control: Control) -> Control {
    (0..3).for_each(|tenant| control.publish_from(7, TenantKey(tenant)));
    control
}

impl World {
    /// Global in the middle; tenantA on both edges, tenantB on b-global only.
    fn new() -> Self {
        Self::of(&EDGES)
    }

    fn of(layout: &'static [(&'static str, usize, usize)]) -> Self {
        let (nodes, tenants, edges, crossed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut world = Self {
            layout,
            nodes,
            tenants,
            edges,
            sessions: 0,
            crossed,
            letters: 0,
            now: Time::default(),
            cut: Vec::new(),
        };
        for (i, node) in NODES.iter().enumerate() {
            let tenants = Arc::new(Tenants::new([
                section("tenantA", &["a-global", "a-global-2", "b-global", "a-c", "b-c"]),
                section("tenantB", &["b-global"]),
                section("cresco-system", &[]),
            ]));
            let edges: Vec<_> = layout
                .iter()
                .zip(0u32..)
                .filter(|((_, a, b), _)| *a == i || *b == i)
                .map(|((name, a, b), key)| {
                    let peer = NodeId::parse(NODES[if *a == i { *b } else { *a }]).unwrap();
                    Arc::new(Edge::new(EdgeKey(key), Label::parse(name).unwrap(), peer))
                })
                .collect();
            let own = NodeId::parse(node).unwrap();
            let control =
                Control::new(&own, 1, &head(layout), Arc::clone(&tenants), edges.clone(), Toy::boxed(&own, 1)).unwrap();
            world.nodes.push(followed(control));
            world.tenants.push(tenants);
            world.edges.push(edges);
        }
        world
    }

    fn allowed(&self, edge: usize) -> TenantSet {
        let sections =
            self.tenants[0].iter().filter(|t| t.section().edges.iter().any(|e| e.as_str() == self.layout[edge].0));
        sections.map(|t| t.key()).collect()
    }

    fn up(&mut self, edge: usize) {
        let (_, a, b) = self.layout[edge];
        let key = EdgeKey(u32::try_from(edge).unwrap());
        let set = self.allowed(edge);
        let incarnation = |w: &Self, n: usize| w.nodes[n].incarnation();
        let (ia, ib) = (incarnation(self, a), incarnation(self, b));
        let from_a = self.nodes[a].edge_up(key, set.clone(), ib);
        let from_b = self.nodes[b].edge_up(key, set, ia);
        self.nodes[a].edge_ready(key, from_b);
        self.nodes[b].edge_ready(key, from_a);
        self.run();
    }

    fn down(&mut self, edge: usize) {
        let (_, a, b) = self.layout[edge];
        let key = EdgeKey(u32::try_from(edge).unwrap());
        self.nodes[a].edge_down(key);
        self.nodes[b].edge_down(key);
        self.run();
    }

    fn run(&mut self) {
        let mut queue: VecDeque<(usize, Outgoing)> = VecDeque::new();
        let mut letters: VecDeque<(usize, Letter)> = VecDeque::new();
        loop {
            self.tell_link_state();
            for (i, node) in self.nodes.iter_mut().enumerate() {
                queue.extend(node.commit().into_iter().map(|out| (i, out)));
                letters.extend(node.letters().into_iter().map(|letter| (i, letter)));
            }
            let Some((from, out)) = queue.pop_front() else {
                match letters.pop_front() {
                    Some((from, letter)) => self.carry(from, letter),
                    None => return,
                }
                continue;
            };
            let (_, a, b) = self.layout[out.edge.0 as usize];
            let to = if a == from { b } else { a };
            let tenant = self.tenants[from].by_key(out.tenant).unwrap().id().to_string();
            self.crossed.push((out.edge.0 as usize, tenant));
            self.nodes[to].record(out.edge, out.tenant, out.origin, out.incarnation, out.record).unwrap();
        }
    }

    /// Passes on what neighbours tell each other of the fabric's edges, until nobody has anything to tell.
    fn tell_link_state(&mut self) {
        let mut told = true;
        while std::mem::take(&mut told) {
            for (key, (_, a, b)) in (0u32..).map(EdgeKey).zip(self.layout) {
                for (from, to) in [(*a, *b), (*b, *a)] {
                    for message in self.nodes[from].topology_mut().take(key, 100) {
                        told = true;
                        let taken = self.nodes[to].link_message(key, message);
                        // A word of an earlier life, whose key is not known any more, proves nothing.
                        assert!(matches!(taken, Ok(()) | Err(LinkError::NoKey)), "{taken:?}");
                    }
                }
            }
        }
    }

    /// Carries a message from broker to broker, where there is a way.
    fn carry(&mut self, from: usize, letter: Letter) {
        let tenant = self.tenants[from].by_key(letter.tenant).unwrap();
        let to = letter.target.0 as usize;
        if tenant.table().routes().hop(letter.target).is_none() || self.cut.contains(&(from, to)) {
            return;
        }
        self.letters += 1;
        let (origin, life) = (self.nodes[from].own, self.nodes[from].incarnation());
        match letter.message {
            Message::Pull(pull) => self.nodes[to].pull(letter.tenant, origin, life, pull).unwrap(),
            Message::News(news) => self.nodes[to].news(letter.tenant, origin, life, news),
        }
    }

    /// Lets time pass.
    fn pass(&mut self, millis: u64) {
        self.now = self.now.plus_millis(millis);
        for node in &mut self.nodes {
            node.tick(self.now);
        }
        self.run();
    }

    /// A broker dies and lives again, with its bridges down.
    fn restart(&mut self, node: usize, life: u64) {
        let own = NodeId::parse(NODES[node]).unwrap();
        let edges = self.edges[node].clone();
        let tenants = Arc::clone(&self.tenants[node]);
        tenants.iter().for_each(|tenant| tenant.publish(Table::default()));
        self.nodes[node] =
            followed(Control::new(&own, life, &head(self.layout), tenants, edges, Toy::boxed(&own, life)).unwrap());
    }

    fn key(&self, tenant: &str) -> TenantKey {
        self.tenants[0].by_id(tenant).unwrap().key()
    }

    fn session(&mut self, node: usize, tenant: &str, role: Role) -> Arc<SessionPort> {
        let _ = node;
        self.sessions += 1;
        let leaf = LeafName {
            tenant: TenantId::parse(tenant).unwrap(),
            region: Label::parse("r").ok(),
            agent: Label::parse(&format!("agent{}", self.sessions)).ok(),
            node: None,
            serial: vec![1],
            not_before: UnixTime(0),
            not_after: UnixTime(1),
        };
        let principal = Arc::new(Principal::from_leaf(leaf, role, KeyId([0; 32]), Fingerprint([0; 32])));
        let inbox = Inbox::new(SessionLanes::new(ClassConfig::new(1 << 20)));
        Arc::new(SessionPort::new(self.sessions, principal, true, inbox))
    }

    fn subscribe(&mut self, node: usize, port: &Arc<SessionPort>, sid: u32, filter: &str, queue: Option<&str>) {
        let policy = Policy::new(1, Arc::clone(&self.tenants[node]));
        let filter = Filter::qualify(port.principal().tenant(), filter.as_bytes()).unwrap();
        let permit = policy.authorize(port.principal(), Read(filter)).unwrap();
        let queue = queue.map(|q| QueueGroup::parse(q).unwrap());
        self.nodes[node].subscribe(port, sid, Box::default(), permit, queue, false).unwrap();
        self.run();
    }

    fn find(&self, node: usize, tenant: &str, name: &str) -> crate::table::Match {
        let tenant = self.tenants[node].by_id(tenant).unwrap();
        tenant.table().find(Class::Live, RawName::parse(name.as_bytes()).unwrap(), &tenant.section())
    }

    fn remote_targets(&self, node: usize, tenant: &str, name: &str) -> Vec<(String, Vec<String>)> {
        let brokers = self.nodes[node].brokers();
        let names = |list: &[BrokerIndex]| list.iter().map(|b| brokers.name(*b).unwrap().to_string()).collect();
        let found = self.find(node, tenant, name);
        found.edges.iter().map(|e| (e.edge.name().to_string(), names(&e.brokers))).collect()
    }
}

#[test]
fn interest_crosses_two_hops_and_dies_with_the_last_subscriber() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let (s1, s2) = (world.session(2, "tenantA", Role::Tenant), world.session(2, "tenantA", Role::Tenant));
    world.subscribe(2, &s1, 1, "orders.*", None);
    world.subscribe(2, &s2, 1, "orders.*", None);
    let expected = vec![("a-global".to_owned(), vec!["region-b/b".to_owned()])];
    assert_eq!(world.remote_targets(1, "tenantA", "orders.new"), expected);
    assert_eq!(world.remote_targets(1, "tenantA", "other"), vec![]);
    assert!(world.find(1, "tenantA", "orders.new").responders);
    world.nodes[2].close_session(s1.id());
    world.run();
    assert_eq!(world.remote_targets(1, "tenantA", "orders.new"), expected);
    world.nodes[2].close_session(s2.id());
    world.run();
    assert_eq!(world.remote_targets(1, "tenantA", "orders.new"), vec![]);
}

#[test]
fn an_edge_carries_no_record_of_a_tenant_it_forbids() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let b = world.session(2, "tenantB", Role::Tenant);
    world.subscribe(2, &b, 1, ">", None);
    assert_eq!(world.remote_targets(0, "tenantB", "x").len(), 1, "the global may know");
    assert!(world.remote_targets(1, "tenantB", "x").is_empty(), "region-a may not");
    assert!(world.crossed.iter().all(|(edge, tenant)| *edge == 1 || tenant != "tenantB"));
}

#[test]
fn subscriptions_made_before_the_edge_are_synced_and_the_view_knows_when() {
    let mut world = World::new();
    let b = world.session(2, "tenantA", Role::Tenant);
    world.subscribe(2, &b, 1, "x", None);
    assert!(!world.find(1, "tenantA", "x").in_sync, "no edge has had its time yet");
    world.up(1);
    world.up(0);
    assert_eq!(world.remote_targets(1, "tenantA", "x").len(), 1);
    assert!(world.find(1, "tenantA", "x").in_sync);
    world.down(0);
    assert!(world.remote_targets(1, "tenantA", "x").is_empty(), "no next hop without the edge");
    assert!(!world.find(1, "tenantA", "x").responders);
    assert!(!world.find(1, "tenantA", "x").in_sync, "unsettled");
    world.nodes[1].settle();
    world.run();
    assert!(world.find(1, "tenantA", "x").in_sync, "an edge that stays down does not hold the view for ever");
    world.nodes[2].unsubscribe(b.id(), 1, None);
    world.run();
    world.up(0);
    assert!(world.remote_targets(1, "tenantA", "x").is_empty(), "what went while the edge was down is gone");
}

#[test]
fn records_from_where_an_origin_cannot_be_are_refused() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let key = |t: &str| world.tenants[0].by_id(t).unwrap().key();
    let (a, b) = (key("tenantA"), key("tenantB"));
    let record = || Record::Presence { seq: 1, present: true };
    let own = world.nodes[1].brokers().own().unwrap();
    let far = world.nodes[1].brokers().index(&NodeId::parse(NODES[2]).unwrap()).unwrap();
    let at = &mut world.nodes[1];
    assert_eq!(at.record(EdgeKey(0), a, own, 1, record()), Err(RecordError::Origin), "one's own name");
    assert_eq!(at.record(EdgeKey(0), b, far, 1, record()), Err(RecordError::Tenant));
    assert_eq!(at.record(EdgeKey(9), a, far, 1, record()), Err(RecordError::EdgeDown));
    assert_eq!(at.record(EdgeKey(0), a, far, 1, record()), Ok(()));
    let region_a = world.nodes[0].brokers().index(&NodeId::parse(NODES[1]).unwrap()).unwrap();
    let hub = &mut world.nodes[0];
    assert_eq!(hub.record(EdgeKey(1), a, region_a, 1, record()), Err(RecordError::Origin), "not behind that edge");
}

#[test]
fn a_restarted_neighbour_is_forgotten_and_learned_again() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let b = world.session(2, "tenantA", Role::Tenant);
    world.subscribe(2, &b, 1, "x", None);
    assert_eq!(world.remote_targets(1, "tenantA", "x").len(), 1);
    world.down(1);
    world.restart(2, 2);
    world.up(1);
    assert!(world.remote_targets(0, "tenantA", "x").is_empty(), "the new life has no subscriber");
    assert!(world.remote_targets(1, "tenantA", "x").is_empty(), "and everybody behind learns it");
}

#[test]
fn a_superuser_observes_every_tenant_and_is_no_responder() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let root = world.session(0, "cresco-system", Role::Superuser);
    world.subscribe(0, &root, 1, "T.*.>", Some("workers"));
    let found = world.find(1, "tenantA", "x");
    assert_eq!(found.edges.len(), 1, "a copy goes to the observer");
    assert!(!found.responders && found.groups.is_empty());
    assert!(world.remote_targets(1, "tenantB", "x").is_empty(), "narrowed by the edge");
    assert_eq!(world.remote_targets(2, "tenantB", "x").len(), 1);
}

#[test]
fn queue_groups_prefer_members_here_and_go_by_name() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let near = world.session(1, "tenantA", Role::Tenant);
    let far = world.session(2, "tenantA", Role::Tenant);
    world.subscribe(2, &far, 1, "o.*", Some("g"));
    let group = |world: &World| world.find(1, "tenantA", "o.x").groups.into_iter().next().unwrap();
    let found = group(&world);
    assert!(matches!(crate::data::choose(&found, 0, |_| true), Some(crate::data::Member::Remote(_))));
    world.subscribe(1, &near, 1, "o.>", Some("g"));
    world.subscribe(1, &near, 2, "o.x", Some("g"));
    let found = group(&world);
    assert_eq!((found.locals.len(), found.remotes.len()), (2, 1), "one group over all matching filters");
    for turn in 0..4 {
        assert!(matches!(crate::data::choose(&found, turn, |_| true), Some(crate::data::Member::Local(_))));
    }
}

#[test]
fn limits_hold_and_maxima_end_subscriptions() {
    let mut world = World::new();
    let a = world.session(0, "tenantA", Role::Tenant);
    world.subscribe(0, &a, 1, "x", None);
    let policy = Policy::new(1, Arc::clone(&world.tenants[0]));
    let own = TenantId::parse("tenantA").unwrap();
    let permit = policy.authorize(a.principal(), Read(Filter::qualify(&own, b"y").unwrap())).unwrap();
    assert_eq!(
        world.nodes[0].subscribe(&a, 1, Box::default(), permit, None, false),
        Err(Deny::Limit),
        "a number in use"
    );
    world.nodes[0].unsubscribe(a.id(), 1, Some(2));
    world.run();
    let found = world.find(0, "tenantA", "x");
    let sub = &found.ports[0].subs[0];
    use crate::port::Delivery::{Last, Over, Yes};
    assert_eq!([sub.deliver(), sub.deliver(), sub.deliver()], [Yes, Last, Over]);
    world.nodes[0].unsubscribe(a.id(), 1, Some(2));
    world.run();
    assert!(world.find(0, "tenantA", "x").ports.is_empty(), "reached before: ends at once");
    world.nodes[0].unsubscribe(a.id(), 99, None);
    let destination = Destination::qualify(&own, Class::Live, b"x").unwrap();
    assert_eq!(destination.to_string(), "T.tenantA.live.x");
}

#[test]
fn in_a_ring_nobody_is_told_of_itself_and_an_edge_that_comes_back_costs_nothing() {
    let mut world = World::of(&RING);
    (0..RING.len()).for_each(|edge| world.up(edge));
    for node in 0..NODES.len() {
        let session = world.session(node, "tenantA", Role::Tenant);
        world.subscribe(node, &session, 1, &format!("at.{node}"), None);
        world.subscribe(node, &session, 2, "at.*.x", None);
    }
    for (edge, (name, ..)) in RING.iter().enumerate() {
        world.down(edge);
        world.up(edge);
        for (from, to) in (0..NODES.len()).flat_map(|from| (0..NODES.len()).map(move |to| (from, to))) {
            let targets = world.remote_targets(from, "tenantA", &format!("at.{to}"));
            assert_eq!(targets.len(), usize::from(from != to), "{from} to {to} after {name} came back");
        }
    }
}

#[test]
fn brokers_out_of_reach_are_told_of_and_found_when_they_are_back() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let b = world.session(2, "tenantA", Role::Tenant);
    world.subscribe(2, &b, 1, "x", None);
    world.down(1);
    world.down(0);
    // Region-a restarts while region-b cannot be reached.
    world.restart(1, 2);
    world.up(0);
    world.up(1);
    assert_eq!(world.remote_targets(1, "tenantA", "x").len(), 1);
}

#[test]
fn what_a_restarted_neighbour_does_not_tell_again_is_forgotten_by_all() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let b = world.session(2, "tenantA", Role::Tenant);
    world.subscribe(2, &b, 1, "x", None);
    assert_eq!(world.remote_targets(1, "tenantA", "x").len(), 1);
    world.down(0);
    world.down(1);
    // Both the global and region-b restart; nobody in region-b wants anything now.
    [0, 2].into_iter().for_each(|node| world.restart(node, 2));
    world.up(0);
    world.up(1);
    world.pass(INTEREST_RETRY_MS);
    assert!(world.remote_targets(1, "tenantA", "x").is_empty(), "and not sent there for ever");
    assert!(world.find(1, "tenantA", "x").in_sync);
}

#[test]
fn changes_meant_for_a_lost_bridge_are_not_told_over_the_next() {
    let mut world = World::new();
    world.up(1);
    let b = world.session(2, "tenantA", Role::Tenant);
    world.subscribe(2, &b, 1, "first", None);
    let policy = Policy::new(1, Arc::clone(&world.tenants[2]));
    let own = TenantId::parse("tenantA").unwrap();
    for (sid, filter) in [(2, "second"), (3, "third")] {
        let permit = policy.authorize(b.principal(), Read(Filter::qualify(&own, filter.as_bytes()).unwrap())).unwrap();
        world.nodes[2].subscribe(&b, sid, Box::default(), permit, None, false).unwrap();
        if sid == 2 {
            let _lost_with_the_old_bridge = (world.nodes[2].commit(), world.nodes[2].letters());
        }
    }
    // The third is still to be handed out when a new bridge takes over.
    world.up(1);
    assert_eq!(world.remote_targets(0, "tenantA", "second").len(), 1);
    assert_eq!(world.remote_targets(0, "tenantA", "third").len(), 1);
}
