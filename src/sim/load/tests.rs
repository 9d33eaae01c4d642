//! Every shape of the load carries its messages; that they are all there is checked by the load itself.

use super::*;

fn carry(shape: Shape, batches: usize) -> u64 {
    let mut world = World::new(shape).unwrap();
    (0..batches).for_each(|_| world.carry().unwrap());
    world.delivery_bytes()
}

#[test]
fn both_protocols_carry_on_one_broker_and_over_an_edge() {
    for protocol in [Protocol::Native, Protocol::Nats] {
        for far in [false, true] {
            for payload_bytes in [16, 1024] {
                let bytes = carry(Shape { protocol, far, payload_bytes, ..Shape::default() }, 10);
                let least = payload_bytes as u64 + "load.unit000000.name000000".len() as u64;
                assert!((least..least + 80).contains(&bytes), "{protocol:?} {far} {payload_bytes}: {bytes}");
            }
        }
    }
}

#[test]
fn what_is_beside_changes_nothing_of_what_is_delivered() {
    let alone = carry(Shape::default(), 4);
    let shape = Shape { tenants: 50, subscriptions: 1_000, pairs: 7, names: 200, ..Shape::default() };
    for far in [false, true] {
        let mut world = World::new(Shape { far, ..shape }).unwrap();
        for _ in 0..30 {
            world.carry().unwrap();
            world.change().unwrap();
        }
        let sites = [0, usize::from(far)].map(|site| world.sites[site].held(world.tenant()));
        assert_eq!(sites, [1_007; 2], "every subscription that passed has gone");
        if !far {
            assert_eq!(world.delivery_bytes(), alone);
        }
    }
}

#[test]
fn a_message_that_does_not_come_is_found_out() {
    let mut world = World::new(Shape::default()).unwrap();
    let port = Arc::clone(world.subscribers[0].port().unwrap());
    world.carry().unwrap();
    world.sites[0].unsubscribe(&port, 1, world.now);
    world.sites[0].commit(world.now);
    let error = world.carry().unwrap_err();
    assert_eq!(error.0, format!("pair 0: 0 bytes of {} have come", 64 * world.delivery_bytes()));
}

#[test]
fn a_subscription_that_passes_makes_decisions_anew() {
    let mut world = World::new(Shape::default()).unwrap();
    let generation = |world: &World| world.sites[0].tenant(0).unwrap().generation();
    let before = generation(&world);
    world.change().unwrap();
    assert_eq!(generation(&world), before + 2);
}
