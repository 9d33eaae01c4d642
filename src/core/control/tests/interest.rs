//! Presence, pulled interest, and observers of all tenants.

use super::*;
use crate::limits::{INTEREST_LEASE_MS, PUBLISH_WAIT_MS, PUBLISHER_IDLE_MS};

#[test]
fn without_a_publisher_only_presence_is_known_and_everything_is_sent() {
    let mut world = World::of(&RING);
    (0..RING.len()).for_each(|edge| world.up(edge));
    let tenant = world.key("tenantA");
    world.nodes[1].publish_no_more(7);
    let b = world.session(2, "tenantA", Role::Tenant);
    for sid in 1..=100 {
        world.subscribe(2, &b, sid, &format!("f{sid}"), Some("g"));
    }
    world.pass(PUBLISHER_IDLE_MS - 1);
    assert!(world.nodes[1].is_following(tenant), "an agent may come back");
    assert_eq!(world.nodes[1].remote_filters(tenant), 100);
    world.pass(1);
    assert!(!world.nodes[1].is_following(tenant));
    assert_eq!(world.nodes[1].remote_filters(tenant), 0);
    assert_eq!(world.nodes[1].present(tenant), [BrokerIndex(2)]);
    assert_eq!(world.find(1, "tenantA", "f1").edges.len(), 1);
    assert_eq!(world.find(1, "tenantA", "anything").edges.len(), 1, "whoever is present decides");
    assert!(!world.find(1, "tenantA", "anything").in_sync);
    assert_eq!(world.nodes[2].pullers(tenant), 2, "and follows no more there");
    let letters = world.letters;
    world.nodes[1].publish_from(8, tenant);
    world.run();
    assert_eq!(world.nodes[1].remote_filters(tenant), 100);
    assert!(world.nodes[1].is_ready(tenant) && world.find(1, "tenantA", "f1").in_sync);
    assert_eq!(world.letters - letters, 2, "a pull and a list");
}

#[test]
fn a_publisher_waits_for_an_origin_that_does_not_answer_but_not_for_ever() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let tenant = world.key("tenantA");
    let b = world.session(2, "tenantA", Role::Tenant);
    world.restart(1, 2);
    world.cut = vec![(2, 1)];
    world.up(0);
    world.subscribe(2, &b, 1, "x", None);
    assert!(!world.nodes[1].is_ready(tenant));
    world.pass(PUBLISH_WAIT_MS);
    assert!(world.nodes[1].is_ready(tenant), "waited for long enough");
    assert!(!world.find(1, "tenantA", "y").in_sync, "and yet nobody is told that nobody answers");
    assert_eq!(world.remote_targets(1, "tenantA", "y").len(), 1);
    world.cut.clear();
    world.pass(10_000);
    assert!(world.find(1, "tenantA", "y").in_sync);
    assert!(world.remote_targets(1, "tenantA", "y").is_empty());
}

#[test]
fn changes_lost_on_the_way_are_told_again() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let b = world.session(2, "tenantA", Role::Tenant);
    world.subscribe(2, &b, 1, "x", None);
    world.pass(1_000);
    world.cut = vec![(2, 1)];
    world.subscribe(2, &b, 2, "y", None);
    assert!(world.remote_targets(1, "tenantA", "y").is_empty());
    world.pass(INTEREST_LEASE_MS);
    world.cut.clear();
    world.pass(10_000);
    assert_eq!(world.remote_targets(1, "tenantA", "y").len(), 1);
    assert!(
        world.nodes.iter().all(Control::is_quiet) || {
            world.pass(300);
            world.nodes.iter().all(Control::is_quiet)
        }
    );
}

#[test]
fn one_bit_is_told_however_many_subscribe() {
    let mut world = World::of(&RING);
    (0..RING.len()).for_each(|edge| world.up(edge));
    (0..NODES.len()).for_each(|node| world.nodes[node].publish_no_more(7));
    world.pass(PUBLISHER_IDLE_MS);
    let before = world.crossed.len();
    let b = world.session(2, "tenantA", Role::Tenant);
    for sid in 1..=500 {
        world.subscribe(2, &b, sid, &format!("f{sid}"), None);
    }
    let told = world.crossed.len() - before;
    assert!(told <= 2 * RING.len(), "at most once over each edge in each direction: {told}");
    let letters = world.letters;
    world.nodes[2].close_session(b.id());
    world.run();
    assert!((0..NODES.len()).all(|node| world.nodes[node].present(world.key("tenantA")).is_empty()));
    assert_eq!(world.letters, letters, "nobody asked, nobody is told");
}

#[test]
fn an_observer_of_all_tenants_is_one_record_and_told_in_the_lanes_of_each() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let crossed = world.crossed.len();
    (0..NODES.len()).for_each(|node| world.nodes[node].publish_no_more(7));
    world.pass(PUBLISHER_IDLE_MS);
    let root = world.session(1, "cresco-system", Role::Superuser);
    for sid in 1..=3 {
        world.subscribe(1, &root, sid, &format!("T.*.live.x{sid}.>"), None);
    }
    assert_eq!(world.crossed.len(), crossed, "no record of any tenant");
    let own = BrokerIndex(1);
    for node in [0, 2] {
        assert_eq!(world.nodes[node].topology().observing().collect::<Vec<_>>(), [own]);
        assert!(world.find(node, "tenantA", "any").edges.is_empty(), "nobody publishes there who would ask");
    }
    let (a, b) = (world.key("tenantA"), world.key("tenantB"));
    world.nodes[2].publish_from(9, a);
    world.nodes[2].publish_from(9, b);
    world.run();
    assert_eq!(world.remote_targets(2, "tenantA", "x1.y").len(), 1);
    assert!(world.remote_targets(2, "tenantA", "other").is_empty(), "its filters are known now");
    assert!(!world.find(2, "tenantA", "x1.y").responders, "it never counts");
    assert_eq!(world.nodes[2].remote_filters(b), 0, "its filters reach nobody for tenantB");
    assert!(world.find(2, "tenantB", "x1.y").edges.is_empty());
    // What comes and goes is told to who follows, and the flag falls with the last.
    world.nodes[1].unsubscribe(root.id(), 1, None);
    world.run();
    assert!(world.remote_targets(2, "tenantA", "x1.y").is_empty());
    assert_eq!(world.remote_targets(2, "tenantA", "x2.y").len(), 1);
    // An observer of this one tenant with the same filter is the same wish, held twice.
    world.subscribe(1, &root, 9, "T.tenantA.live.x2.>", None);
    world.nodes[1].close_session(root.id());
    world.run();
    assert_eq!(world.nodes[2].remote_filters(a), 0);
    assert_eq!(world.nodes[2].topology().observing().count(), 0);
    assert!(world.nodes[1].is_quiet() || world.nodes[1].pullers(a) > 0);
}

#[test]
fn a_broker_that_lives_anew_observes_nothing_until_it_says_so() {
    let mut world = World::new();
    world.up(0);
    world.up(1);
    let root = world.session(1, "cresco-system", Role::Superuser);
    world.subscribe(1, &root, 1, "T.*.>", None);
    assert_eq!(world.nodes[2].topology().observing().count(), 1);
    world.down(0);
    world.restart(1, 2);
    world.up(0);
    assert_eq!(world.nodes[2].topology().observing().count(), 0);
    assert!(world.remote_targets(2, "tenantA", "x").is_empty());
}
