//! Drift between neighbours is found and mended, and costs nothing where there is none.

use super::*;
use crate::limits::PRESENCE_COMPARE_MS;

/// Three brokers in a line, of which region-b has subscribers of both tenants.
fn world() -> World {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    for tenant in ["tenantA", "tenantB"] {
        let subscriber = world.session(2, tenant, Role::Tenant);
        world.subscribe(2, &subscriber, 1, "x", None);
    }
    world
}

/// Loses what a broker has to tell its neighbours now.
fn lose(world: &mut World, node: usize) {
    world.nodes[node].commit();
    world.nodes[node].letters();
}

#[test]
fn who_knows_the_same_tells_one_number() {
    let mut world = world();
    for edge in 0..2 {
        let (_, a, b) = world.layout[edge];
        let root = |node: usize| world.nodes[node].presence_root(EdgeKey(u32::try_from(edge).unwrap()));
        assert!(root(a) == root(b) && root(a) != 0);
    }
    world.crossed.clear();
    (0..5).for_each(|_| world.pass(PRESENCE_COMPARE_MS));
    assert_eq!(world.crossed, []);
}

#[test]
fn what_was_lost_is_told_again_for_the_tenant_it_belongs_to() {
    let mut world = world();
    let near = world.session(1, "tenantA", Role::Tenant);
    let policy = Policy::new(1, Arc::clone(&world.tenants[1]));
    let filter = Filter::qualify(near.principal().tenant(), b"y").unwrap();
    let permit = policy.authorize(near.principal(), Read(filter)).unwrap();
    world.nodes[1].subscribe(&near, 1, Box::default(), permit, None, false).unwrap();
    lose(&mut world, 1);
    assert!(world.remote_targets(2, "tenantA", "y").is_empty());
    world.crossed.clear();
    world.pass(PRESENCE_COMPARE_MS);
    assert!(world.remote_targets(2, "tenantA", "y").is_empty(), "it may be on its way");
    world.pass(PRESENCE_COMPARE_MS);
    world.pass(1);
    assert_eq!(world.remote_targets(2, "tenantA", "y").len(), 1);
    let of_b = |edge| world.crossed.iter().filter(|(e, tenant)| *e == edge && tenant == "tenantB").count();
    assert_eq!(of_b(0), 0, "nothing of a tenant that the edge does not carry");
    assert!(of_b(1) <= 2, "no more than its number: {:?}", world.crossed);
    world.crossed.clear();
    (0..3).for_each(|_| world.pass(PRESENCE_COMPARE_MS));
    assert_eq!(world.crossed, [], "all is said");
}
