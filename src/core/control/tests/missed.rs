//! Brokers that no way leads to for a moment.

use super::*;

fn wanted(world: &World, class: Class) -> (usize, usize, bool) {
    let tenant = world.tenants[1].by_id("tenantA").unwrap();
    let found = tenant.table().find(class, RawName::parse(b"x").unwrap(), &tenant.section());
    (found.edges.iter().map(|edge| edge.brokers.len()).sum(), found.missed.len(), found.responders)
}

fn unreached(world: &World, class: Class) -> usize {
    let tenant = world.tenants[1].by_id("tenantA").unwrap();
    tenant.table().find(class, RawName::parse(b"x").unwrap(), &tenant.section()).unreached
}

#[test]
fn what_nobody_keeps_is_known_to_be_lost_while_its_broker_is_out_of_reach() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let b = world.session(2, "tenantA", Role::Tenant);
    world.subscribe(2, &b, 1, "x", None);
    world.subscribe(2, &b, 2, "x", Some("q"));
    let a = world.session(1, "tenantA", Role::Tenant);
    world.subscribe(1, &a, 1, "x", Some("r"));
    world.pass(1_000);
    assert_eq!([Class::Live, Class::Ctrl].map(|class| unreached(&world, class)), [0, 0]);
    world.down(1);
    // The broker, and the group that has no other member; what is kept is not lost.
    assert_eq!([Class::Live, Class::Tele].map(|class| unreached(&world, class)), [2, 2]);
    assert_eq!([Class::Ctrl, Class::Bulk].map(|class| unreached(&world, class)), [0, 0]);
    world.subscribe(1, &a, 2, "x", Some("q"));
    assert_eq!(unreached(&world, Class::Live), 1, "the group is served here");
    world.pass(6_000);
    assert_eq!(unreached(&world, Class::Live), 0, "gone");
}

#[test]
fn what_is_acknowledged_is_taken_for_a_broker_out_of_reach_for_a_moment_and_no_longer() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let b = world.session(2, "tenantA", Role::Tenant);
    world.subscribe(2, &b, 1, "x", None);
    world.pass(1_000);
    assert_eq!([Class::Live, Class::Ctrl].map(|class| wanted(&world, class)), [(1, 0, true); 2]);
    // The way breaks beyond the next broker.
    world.down(1);
    assert_eq!([Class::Live, Class::Tele].map(|class| wanted(&world, class)), [(0, 0, false); 2]);
    assert_eq!([Class::Ctrl, Class::Bulk].map(|class| wanted(&world, class)), [(0, 1, true); 2]);
    // Its own edge, too.
    world.down(0);
    assert_eq!(wanted(&world, Class::Ctrl), (0, 1, true));
    world.pass(4_000);
    assert_eq!(wanted(&world, Class::Ctrl), (0, 1, true));
    world.up(0);
    world.up(1);
    assert_eq!(wanted(&world, Class::Ctrl), (1, 0, true), "back in time");
    world.down(1);
    world.pass(6_000);
    assert_eq!(wanted(&world, Class::Ctrl), (0, 0, false), "gone");
}
