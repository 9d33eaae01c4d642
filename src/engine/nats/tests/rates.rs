//! What a NATS session may publish in a time, and how it is told.

use glocal_core::limits::RATE_TEXTS_PER_SECOND;
use glocal_core::rate::RateLimits;

use super::*;

fn limit(node: &Node, messages_per_s: u64) {
    node.limit("tenantA", RateLimits { messages_per_s: Some(messages_per_s), ..RateLimits::NONE });
}

#[test]
fn what_is_above_the_rate_reads_as_a_violation_a_few_times_a_second() {
    let mut node = Node::new(1);
    let mut a = Nats::quiet(&mut node, "tenantA", "alice");
    limit(&node, 10);
    let told = a.say(&mut node, &"PUB x 1\r\np\r\n".repeat(500));
    let text = "-ERR 'Permissions Violation for Publish to \"x\": rate limit exceeded, try again in 100 ms'\r\n";
    assert_eq!(told, text.repeat(usize::try_from(RATE_TEXTS_PER_SECOND).unwrap()));
    let tenant = node.tenant("tenantA");
    let live = tenant.counters().class(Class::Live);
    assert_eq!((live.published.value(), live.drops(DropReason::Rate)), (10, 490));
    assert_eq!(tenant.counters().denials(Access::Write, Deny::Rate), 490);
    assert_eq!(a.say(&mut node, "SUB x 1\r\nPING\r\n"), "PONG\r\n", "the session is open and hears the rest");
}

#[test]
fn what_is_refused_for_other_reasons_is_paid_for() {
    let mut node = Node::new(1);
    let mut a = Nats::connected(&mut node, "tenantA", "alice", r#"{"verbose":false,"pedantic":true,"headers":true}"#);
    limit(&node, 3);
    let class = "NATS/1.0\r\nGlocal-Class: nonsense\r\n\r\n";
    let (length, total) = (class.len(), class.len() + 1);
    let unknown = format!("HPUB x {length} {total}\r\n{class}p\r\n");
    let told =
        a.say(&mut node, &format!("PUB x.* 1\r\np\r\n{unknown}PUB T.tenantB.live.x 1\r\np\r\nPUB x.* 1\r\np\r\n"));
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines[0], "-ERR 'Invalid Publish Subject'");
    assert!(lines[1].contains("unknown class") && lines[2].contains("cross-tenant"), "{told}");
    assert!(lines[3].contains("rate limit exceeded"), "{told}");
}

#[test]
fn reliable_publishes_wait_and_go_on_when_told() {
    let mut node = Node::new(1);
    let mut a = Nats::quiet(&mut node, "tenantA", "alice");
    limit(&node, 10);
    assert_eq!(a.say(&mut node, &"PUB T.tenantA.bulk.x 1\r\np\r\n".repeat(11)), "");
    assert_eq!((a.effects.waits, a.effects.until), (true, Some(NOW.plus_millis(100))));
    node.tenant("tenantA").ingress().set(RateLimits::NONE);
    assert_eq!(a.say(&mut node, "PING\r\n"), "PONG\r\n");
    assert_eq!(node.tenant("tenantA").counters().class(Class::Bulk).published.value(), 11);
}
