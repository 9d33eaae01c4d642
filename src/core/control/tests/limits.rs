//! What happens to interest at its limits: it is refused or sent more than it needs, and never cut short in silence.

use super::*;
use crate::limits::SESSION_SUBSCRIPTIONS_MAX;

#[test]
fn a_full_session_is_told_so_and_keeps_what_it_has() {
    let mut world = World::new();
    let port = world.session(2, "tenantA", Role::Tenant);
    let (own, policy) = (port.principal().tenant().clone(), Policy::new(1, Arc::clone(&world.tenants[2])));
    let subscribe = |world: &mut World, number: u32| {
        let filter = Filter::qualify(&own, format!("f{number}").as_bytes()).unwrap();
        let permit = policy.authorize(port.principal(), Read(filter)).unwrap();
        world.nodes[2].subscribe(&port, number, Box::default(), permit, None, false)
    };
    let max = u32::try_from(SESSION_SUBSCRIPTIONS_MAX).unwrap();
    (0..max).for_each(|number| subscribe(&mut world, number).unwrap());
    assert_eq!(subscribe(&mut world, max), Err(Deny::Limit));
    world.up(0);
    world.up(1);
    let local = |world: &World, number| world.find(2, "tenantA", &format!("f{number}")).ports.len();
    assert_eq!([local(&world, 0), local(&world, max - 1), local(&world, max)], [1, 1, 0]);
    // Others know the whole list, over as many messages as it takes.
    let tenant = world.tenants[1].by_id("tenantA").unwrap().key();
    assert_eq!(world.nodes[1].remote_filters(tenant), SESSION_SUBSCRIPTIONS_MAX);
    assert!(!world.remote_targets(1, "tenantA", &format!("f{}", max - 1)).is_empty());
    // One that ends makes room for another.
    world.nodes[2].unsubscribe(port.id(), 0, None);
    subscribe(&mut world, max).unwrap();
    world.run();
    assert_eq!([local(&world, 0), local(&world, max)], [0, 1]);
}
