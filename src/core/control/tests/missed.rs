//! Brokers that no way leads to for a moment.

use super::*;

fn wanted(world: &World, class: Class) -> (usize, usize, bool) {
    let tenant = world.tenants[1].by_id("tenantA").unwrap();
    let found = tenant.table().find(class, RawName::parse(b"x").unwrap(), &tenant.section());
    (found.edges.iter().map(|edge| edge.brokers.len()).sum(), found.missed.len(), found.responders)
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
