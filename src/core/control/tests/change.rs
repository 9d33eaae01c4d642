//! What a newer bundle changes while bridges and sessions live.

use super::super::{Narrowed, Refused};
use super::*;
use crate::bundle::Grant;
use crate::name::RawFilter;
use crate::time::Time;

const BOTH: [&str; 5] = ["a-global", "a-global-2", "b-global", "a-c", "b-c"];

fn sections(tenants: &[(&str, &[&str])]) -> Vec<Arc<Section>> {
    tenants.iter().map(|(tenant, edges)| section(tenant, edges)).collect()
}

impl World {
    /// The broker takes a newer bundle with these sections.
    fn renew(&mut self, node: usize, sections: Vec<Arc<Section>>) -> (Vec<Refused>, Vec<Narrowed>) {
        self.renew_with(node, head(self.layout), sections)
    }

    fn renew_with(&mut self, node: usize, head: Head, sections: Vec<Arc<Section>>) -> (Vec<Refused>, Vec<Narrowed>) {
        let tenants = Arc::new(self.tenants[node].renew(sections).unwrap());
        self.tenants[node] = Arc::clone(&tenants);
        let brokers = self.nodes[node].brokers().renew(head.nodes.iter().map(|n| n.node.clone())).unwrap();
        let policy = Policy::new(2, tenants);
        let edges = self.edges[node].clone();
        self.nodes[node].renew(&head, Arc::new(brokers), edges, &policy, Time(0))
    }

    /// Both ends of an edge have agreed on what its sections allow at both.
    fn agree(&mut self, edge: usize) {
        let (_, a, b) = self.layout[edge];
        let key = EdgeKey(u32::try_from(edge).unwrap());
        let allows = |world: &Self, node: usize, id: &str| {
            let held = world.tenants[node].by_id(id);
            held.is_some_and(|t| t.section().edges.iter().any(|e| e.as_str() == world.layout[edge].0))
        };
        for node in [a, b] {
            let both = |t: &&Arc<Tenant>| allows(self, a, t.id().as_str()) && allows(self, b, t.id().as_str());
            let set: TenantSet = self.tenants[node].iter().filter(both).map(|t| t.key()).collect();
            self.nodes[node].edge_change(key, set.clone(), set, Time(0));
        }
        self.run();
    }
}

fn widened() -> Vec<Arc<Section>> {
    sections(&[("tenantA", &BOTH), ("tenantB", &["a-global", "b-global"]), ("cresco-system", &[])])
}

#[test]
fn a_widening_brings_what_both_ends_know_and_a_narrowing_takes_it_at_once() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let (far, near) = (world.session(2, "tenantB", Role::Tenant), world.session(1, "tenantB", Role::Tenant));
    world.subscribe(2, &far, 1, "x", None);
    world.subscribe(1, &near, 1, "y", None);
    let steady = world.session(2, "tenantA", Role::Tenant);
    world.subscribe(2, &steady, 1, "a", None);
    assert!(world.remote_targets(1, "tenantB", "x").is_empty());
    for node in 0..4 {
        let (refused, narrowed) = world.renew(node, widened());
        assert!(refused.is_empty() && narrowed.is_empty());
    }
    world.run();
    assert!(world.remote_targets(1, "tenantB", "x").is_empty(), "nothing crosses before both ends agree");
    world.agree(0);
    assert_eq!(world.remote_targets(1, "tenantB", "x").len(), 1, "the far subscriber is known");
    assert_eq!(world.remote_targets(2, "tenantB", "y").len(), 1, "and knows of the near one");
    assert!(world.find(1, "tenantB", "z").in_sync, "the view is complete again");
    let narrow = sections(&[("tenantA", &BOTH), ("tenantB", &["b-global"]), ("cresco-system", &[])]);
    let (_, narrowed) = world.renew(1, narrow.clone());
    world.nodes[1].commit();
    let tenant = world.tenants[1].by_id("tenantB").unwrap().key();
    assert_eq!(narrowed, [Narrowed { edge: EdgeKey(0), tenant }]);
    let edge = Arc::clone(&world.edges[1][0]);
    assert!(!edge.may_send(tenant) && !edge.may_receive(tenant), "one end is enough");
    assert!(edge.is_excused(Time(0)), "the peer may not know yet");
    assert!(world.remote_targets(1, "tenantB", "x").is_empty());
    assert_eq!(world.remote_targets(1, "tenantA", "a").len(), 1, "the other tenant is as it was");
    for node in [0, 2, 3] {
        world.renew(node, narrow.clone());
    }
    world.agree(0);
    let before = world.crossed.len();
    world.nodes[2].unsubscribe(far.id(), 1, None);
    world.run();
    assert!(world.crossed[before..].iter().all(|(edge, tenant)| *edge == 1 && tenant == "tenantB"));
    for node in 0..4 {
        world.renew(node, widened());
    }
    world.agree(0);
    assert!(world.remote_targets(1, "tenantB", "x").is_empty(), "what went meanwhile is not remembered");
}

#[test]
fn a_tenant_that_just_came_to_an_edge_is_not_in_sync_before_the_peer_has_told() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    for node in 0..4 {
        world.renew(node, widened());
    }
    let set: TenantSet = world.tenants[1].iter().map(|t| t.key()).filter(|key| key.0 < 2).collect();
    world.nodes[1].edge_change(EdgeKey(0), set.clone(), set, Time(0));
    world.nodes[1].commit();
    assert!(!world.find(1, "tenantB", "x").in_sync);
    assert!(world.find(1, "tenantA", "x").in_sync);
}

#[test]
fn an_end_accepts_before_it_sends() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let far = world.session(2, "tenantB", Role::Tenant);
    world.subscribe(2, &far, 1, "x", None);
    (0..4).for_each(|node| drop(world.renew(node, widened())));
    world.run();
    let (both, one): (TenantSet, TenantSet) =
        ([0, 1].map(TenantKey).into_iter().collect(), [TenantKey(0)].into_iter().collect());
    // Region-a accepts already, but does not know whether the global does.
    world.nodes[1].edge_change(EdgeKey(0), one, both.clone(), Time(0));
    world.nodes[0].edge_change(EdgeKey(0), both.clone(), both.clone(), Time(0));
    world.run();
    assert_eq!(world.remote_targets(1, "tenantB", "x").len(), 1, "what it was told is not lost");
    let near = world.session(1, "tenantB", Role::Tenant);
    world.subscribe(1, &near, 1, "y", None);
    assert!(world.remote_targets(0, "tenantB", "y").is_empty(), "but tells nothing itself");
    world.nodes[1].edge_change(EdgeKey(0), both.clone(), both, Time(0));
    world.run();
    assert_eq!(world.remote_targets(0, "tenantB", "y").len(), 1);
}

#[test]
fn a_broker_that_takes_the_bundle_late_is_told_again_what_it_could_not_place() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let near = world.session(1, "tenantB", Role::Tenant);
    world.subscribe(1, &near, 1, "y", None);
    for node in [0, 1] {
        world.renew(node, widened());
    }
    let both: TenantSet = [0, 1].map(TenantKey).into_iter().collect();
    for node in [0, 1] {
        world.nodes[node].edge_change(EdgeKey(0), both.clone(), both.clone(), Time(0));
    }
    for out in world.nodes[1].commit() {
        world.nodes[0].record(out.edge, out.tenant, out.origin, out.incarnation, out.record).unwrap();
    }
    let told = world.nodes[0].commit();
    let late: Vec<_> = told
        .into_iter()
        .filter(|out| out.edge == EdgeKey(1))
        .map(|out| world.nodes[2].record(out.edge, out.tenant, out.origin, out.incarnation, out.record))
        .collect();
    assert!(late.contains(&Err(RecordError::Origin)), "by its bundle region-a cannot be there: {late:?}");
    world.renew(2, widened());
    world.run();
    assert!(world.remote_targets(2, "tenantB", "y").is_empty());
    world.nodes[0].peer_has_bundle(EdgeKey(1));
    world.run();
    assert_eq!(world.remote_targets(2, "tenantB", "y").len(), 1);
}

#[test]
fn standing_subscriptions_are_asked_for_again() {
    let mut world = World::new();
    let granting = |granted: bool| {
        let mut acme = Section::new(TenantId::parse("tenantB").unwrap(), [0; 16]);
        if granted {
            acme.grants.push(Grant {
                name: Label::parse("watch").unwrap(),
                tenant: TenantId::parse("tenantA").unwrap(),
                write: false,
                filter: RawFilter::parse(b"open.>").unwrap(),
            });
        }
        vec![section("tenantA", &BOTH), Arc::new(acme), section("cresco-system", &[])]
    };
    world.renew(1, granting(true));
    let reader = world.session(1, "tenantA", Role::Tenant);
    world.subscribe(1, &reader, 1, "T.tenantB.*.open.>", None);
    world.subscribe(1, &reader, 2, "own", None);
    assert_eq!(world.find(1, "tenantB", "open.x").ports.len(), 1);
    let (refused, _) = world.renew(1, granting(false));
    world.run();
    let told: Vec<_> = refused.iter().map(|r| (r.sid, r.reason)).collect();
    assert_eq!(told, [(1, Deny::CrossTenant)]);
    assert!(world.find(1, "tenantB", "open.x").ports.is_empty());
    assert_eq!(world.find(1, "tenantA", "own").ports.len(), 1, "what is still permitted goes on");
    assert_eq!(world.nodes[1].subscriptions(), 1);
}

#[test]
fn a_superusers_filter_reaches_new_tenants_and_leaves_old_ones() {
    let mut world = World::new();
    let god = world.session(1, "cresco-system", Role::Superuser);
    world.subscribe(1, &god, 1, "T.*.*.>", None);
    let own = world.session(1, "tenantB", Role::Tenant);
    world.subscribe(1, &own, 1, "x", None);
    let (refused, _) = world.renew(1, sections(&[("tenantA", &BOTH), ("tenantC", &BOTH), ("cresco-system", &[])]));
    world.run();
    assert_eq!(refused.iter().map(|r| r.reason).collect::<Vec<_>>(), [Deny::UnknownTenant]);
    assert_eq!(world.find(1, "tenantC", "x").ports.len(), 1);
    assert_eq!(world.find(1, "tenantA", "x").ports.len(), 1);
    let gone = world.tenants[1].ever("tenantB").unwrap();
    assert_eq!(gone.table().filters(), 0, "nothing of a tenant that has left is kept");
    world.nodes[1].close_session(god.id());
    world.nodes[1].close_session(own.id());
    world.run();
    assert_eq!(world.find(1, "tenantC", "x").ports.len(), 0);
}

#[test]
fn brokers_and_edges_come_and_go() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let far = world.session(2, "tenantA", Role::Tenant);
    world.subscribe(2, &far, 1, "x", None);
    let number = world.nodes[1].brokers().index(&NodeId::parse("region-b/b").unwrap()).unwrap();
    let mut without = head(&EDGES[..1]);
    without.nodes.retain(|entry| entry.node.to_string() != "region-b/b");
    let only = || sections(&[("tenantA", &["a-global"]), ("tenantB", &[]), ("cresco-system", &[])]);
    world.renew_with(1, without, only());
    world.run();
    assert!(world.remote_targets(1, "tenantA", "x").is_empty());
    assert_eq!(world.nodes[1].remote_filters(world.tenants[1].by_id("tenantA").unwrap().key()), 0);
    assert_eq!(world.nodes[1].brokers().index(&NodeId::parse("region-b/b").unwrap()), None);
    world.renew(1, widened());
    assert_eq!(world.nodes[1].brokers().index(&NodeId::parse("region-b/b").unwrap()), Some(number));
    // This node loses its own edge: what it carried is told, so that its queue can go.
    world.edges[1].clear();
    let (_, narrowed) = world.renew(1, widened());
    assert_eq!(narrowed.len(), 1);
    assert!(narrowed.iter().all(|n| n.edge == EdgeKey(0)));
    world.nodes[1].commit();
    assert!(world.find(1, "tenantA", "x").edges.is_empty());
}
