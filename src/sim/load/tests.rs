//! Every shape of the load carries its messages; that they are all there is checked by the load itself.

use super::fanout::FanOut;
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
        let sites = [0, usize::from(far)].map(|site| world.net.sites[site].held(world.tenant()));
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
    world.net.sites[0].unsubscribe(&port, 1, world.net.now);
    world.net.sites[0].commit(world.net.now);
    let error = world.carry().unwrap_err();
    assert_eq!(error.0, format!("pair 0: 0 bytes of {} have come", 64 * world.delivery_bytes()));
}

#[test]
fn a_subscription_that_passes_makes_decisions_anew() {
    let mut world = World::new(Shape::default()).unwrap();
    let generation = |world: &World| world.net.sites[0].tenant(0).unwrap().generation();
    let before = generation(&world);
    world.change().unwrap();
    assert_eq!(generation(&world), before + 2);
}

/// Every broker but the first has its parent at half of its number.
fn tree(brokers: usize) -> Vec<Ends> {
    (1..brokers).map(|node| [(node - 1) / 2, node]).collect()
}

fn star(brokers: usize) -> Vec<Ends> {
    (1..brokers).map(|node| [0, node]).collect()
}

#[test]
fn one_publish_crosses_each_edge_of_a_hundred_brokers_once() {
    for (edges, publisher) in [(star(100), 0), (star(100), 42), (tree(100), 0), (tree(100), 99)] {
        let mut fan = FanOut::new(100, edges, publisher, 10).unwrap();
        for _ in 0..3 {
            let sent = fan.publish(1_024).unwrap();
            assert_eq!((sent.delivered, sent.copies.len()), (1_000, 99), "from {publisher}");
            assert!(sent.copies.iter().all(|copies| *copies == 1), "from {publisher}: {:?}", sent.copies);
        }
    }
}

#[test]
fn no_copy_goes_where_nobody_subscribes() {
    let mut fan = FanOut::new(7, tree(7), 0, 0).unwrap();
    fan.subscribe(5, 3).unwrap();
    let sent = fan.publish(1_024).unwrap();
    // From 0 over 2 to 5.
    assert_eq!((sent.delivered, sent.copies), (3, vec![0, 1, 0, 0, 1, 0]));
}
