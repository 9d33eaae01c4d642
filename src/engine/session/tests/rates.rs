//! What a session and its tenant may publish in a time.

use glocal_core::limits::{RATE_TEXTS_PER_SECOND, RELIABLE_WAIT_MS_MAX};
use glocal_core::rate::RateLimits;

use super::*;

fn limit(node: &Node, tenant: &str, messages_per_s: u64) {
    node.limit(tenant, RateLimits { messages_per_s: Some(messages_per_s), ..RateLimits::NONE });
}

fn counts(node: &Node, tenant: &str, class: Class) -> (u64, u64, u64) {
    let tenant = node.tenant(tenant);
    let counters = tenant.counters();
    let class = counters.class(class);
    (class.published.value(), class.drops(DropReason::Rate), counters.denials(Access::Write, Deny::Rate))
}

fn retries(got: &[Got]) -> Vec<(u64, Option<u32>)> {
    let denied = got.iter().filter_map(|got| match got {
        Got::Control(Control::Denied(d)) if d.code == "rate-limited" => Some((d.id, d.retry_after_ms)),
        _ => None,
    });
    denied.collect()
}

#[test]
fn what_is_above_the_rate_is_refused_counted_and_told_when_to_come_back() {
    let mut node = Node::new(1);
    let (mut a, mut b) = (node.client("tenantA", "alice"), node.client("tenantB", "bob"));
    limit(&node, "tenantA", 10);
    let mut burst = BytesMut::new();
    (0..15).for_each(|n| burst.unsplit(publish(None, Some(n), "x", "", b"p")));
    let got = a.send(&mut node, &burst);
    assert_eq!(retries(&got), (10..15).map(|n| (n, Some(100))).collect::<Vec<_>>(), "each that has a number is told");
    assert_eq!(counts(&node, "tenantA", Class::Live), (10, 5, 5));
    let mut flood = BytesMut::new();
    (0..1_000).for_each(|_| flood.unsplit(publish(Some(Class::Tele), None, "x", "", b"p")));
    let told = retries(&a.send(&mut node, &flood)).len();
    assert_eq!(told, usize::try_from(RATE_TEXTS_PER_SECOND).unwrap(), "of others, a few in a second");
    assert_eq!(counts(&node, "tenantA", Class::Tele), (0, 1_000, 1_005));
    // What is no publish goes on, and so does everybody else.
    let got = a.say(&mut node, subscribe(7, "x"));
    assert!(matches!(got[..], [Got::Control(Control::Subscribed(_))]), "{got:?}");
    assert!(matches!(a.say(&mut node, Ping { token: 3 }.into())[..], [Got::Control(Control::Pong(_))]));
    b.publish(&mut node, "x", b"p");
    assert_eq!(counts(&node, "tenantB", Class::Live), (1, 0, 0));
    a.feed_at(&mut node, &publish(None, None, "x", "", b"later"), NOW.plus_millis(100)).unwrap();
    assert_eq!(messages(&a.read()), ["x=later"]);
}

#[test]
fn names_that_are_refused_are_paid_for() {
    let mut node = Node::new(1);
    let mut a = node.client("tenantA", "alice");
    limit(&node, "tenantA", 5);
    let mut flood = BytesMut::new();
    (0..4).for_each(|n| flood.unsplit(publish(None, Some(n), "T.tenantB.live.x", "", b"p")));
    (4..8).for_each(|n| flood.unsplit(publish(None, Some(n), "a..b", "", b"p")));
    let codes: Vec<_> = denied(&a.send(&mut node, &flood)).into_iter().map(|(_, _, code)| code).collect();
    assert_eq!(codes[..5], ["cross-tenant", "cross-tenant", "cross-tenant", "cross-tenant", "malformed-name"]);
    assert_eq!(codes[5..], ["rate-limited"; 3]);
}

#[test]
fn reliable_publishes_wait_for_their_turn_and_are_paid_once() {
    let mut node = Node::new(1);
    let (mut a, mut b) = (node.client("tenantA", "alice"), node.client("tenantA", "bob"));
    b.say(&mut node, subscribe(1, "x"));
    limit(&node, "tenantA", 10);
    let mut burst = BytesMut::new();
    (0..30).for_each(|n: u64| {
        burst.unsplit(publish(Some(Class::Ctrl), Some(n), "x", "", n.to_string().as_bytes()));
    });
    burst.unsplit(BytesMut::from(&encode(&Ping { token: 9 }.into())[..]));
    a.feed(&mut node, &burst).unwrap();
    let mut now = NOW;
    let mut waits = 0;
    while a.effects.waits {
        let until = a.effects.until.unwrap();
        assert_eq!(until, now.plus_millis(100), "an exact time, of which a little was saved up at first");
        a.feed_at(&mut node, b"", Time(until.0 - 1)).unwrap();
        assert!(a.effects.waits && a.effects.until == Some(until), "not before");
        now = until;
        a.feed_at(&mut node, b"", now).unwrap();
        waits += 1;
    }
    // Of the ten saved up, one is left to those who cannot wait.
    assert_eq!(waits, 21);
    let acks = a.read().into_iter().filter(|got| matches!(got, Got::Control(Control::Ack(_)))).count();
    assert_eq!((acks, counts(&node, "tenantA", Class::Ctrl)), (30, (30, 0, 0)));
    assert_eq!(messages(&b.read()), (0..30).map(|n| format!("x={n}")).collect::<Vec<_>>(), "all, once, in order");
}

#[test]
fn who_waits_in_vain_is_refused_and_the_session_reads_on() {
    let mut node = Node::new(1);
    let mut a = node.client("tenantA", "alice");
    let limits = RateLimits { bytes_per_s: Some(100), ..RateLimits::NONE };
    node.tenant("tenantA").ingress().set(limits);
    a.send(&mut node, &publish(Some(Class::Bulk), Some(1), "x", "", &[b'm'; 999]));
    a.feed(&mut node, &publish(Some(Class::Bulk), Some(2), "x", "", b"")).unwrap();
    let end = NOW.plus_millis(RELIABLE_WAIT_MS_MAX);
    assert_eq!((a.effects.waits, a.effects.until), (true, Some(end)));
    a.feed_at(&mut node, &publish(None, Some(3), "x", "", b""), end).unwrap();
    let got = a.read();
    let told: Vec<_> = retries(&got).into_iter().map(|(id, ms)| (id, ms.is_some_and(|ms| ms > 3_000))).collect();
    assert_eq!(told, [(2, true), (3, true)]);
    assert!(!a.effects.waits);
}

#[test]
fn a_change_of_the_limits_reaches_a_session_that_waits() {
    let mut node = Node::new(1);
    let mut a = node.client("tenantA", "alice");
    limit(&node, "tenantA", 1);
    let mut burst = BytesMut::new();
    (0..10).for_each(|n| burst.unsplit(publish(Some(Class::Ctrl), Some(n), "x", "", b"p")));
    a.feed(&mut node, &burst).unwrap();
    assert!(a.effects.waits);
    node.tenant("tenantA").ingress().set(RateLimits::NONE);
    a.feed(&mut node, b"").unwrap();
    assert!(!a.effects.waits);
    assert_eq!(counts(&node, "tenantA", Class::Ctrl), (10, 0, 0));
}

#[test]
fn who_publishes_elsewhere_pays_at_home() {
    let mut node = Node::new(1);
    let mut root = node.client("cresco-system", "root");
    limit(&node, "cresco-system", 3);
    limit(&node, "tenantA", 1);
    let mut burst = BytesMut::new();
    (0..5).for_each(|n| burst.unsplit(publish(None, Some(n), "T.tenantA.live.x", "", b"p")));
    assert_eq!(retries(&root.send(&mut node, &burst)).len(), 2);
    assert_eq!(counts(&node, "cresco-system", Class::Live), (0, 2, 2));
    assert_eq!(counts(&node, "tenantA", Class::Live), (3, 0, 0), "the message is the receiving tenant's");
    assert!(retries(&node.client("tenantA", "alice").publish(&mut node, "x", b"p")).is_empty());
}
