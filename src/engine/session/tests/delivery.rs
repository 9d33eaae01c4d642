//! What policy refuses, and who gets what on one broker.

use super::*;

const UID: &str = "0707070707070707";

fn line(access: &str, dest: &str, reason: &str) -> String {
    format!(
        "DENY {access} '{dest}' for CrescoIdentity{{tenant=tenantA, region=region-a, agent=alice, uid={UID}}} : {reason}"
    )
}

#[test]
fn composite_and_foreign_names_are_refused_both_ways() {
    let mut node = Node::new(1);
    let mut b = node.client("tenantB", "bob");
    b.say(&mut node, subscribe(1, ">"));
    let mut a = node.client("tenantA", "alice");
    let cross = "cross-tenant namespaced dest (own tenant 'tenantA')";
    let cases = [
        ("T.tenantA.live.x,T.tenantB.live.y", "composite-destination", "composite destination"),
        ("T.tenantB.live.x", "cross-tenant", cross),
        ("T.nobody.live.x", "cross-tenant", cross),
        ("T.tenantA.slow.x", "unknown-class", "unknown class"),
        ("a..b", "malformed-name", "malformed destination"),
    ];
    for (sid, (name, code, reason)) in (1..).zip(cases) {
        let got = a.say(&mut node, subscribe(sid, name));
        assert_eq!(denied(&got), [(0, u64::from(sid), code.to_owned())], "{name}");
        assert_eq!(a.effects.denials.drain(..).collect::<Vec<_>>(), [line("READ", name, reason)]);
        let got = a.send(&mut node, &publish(Some(Class::Ctrl), Some(77), name, "", b"p"));
        assert_eq!(denied(&got), [(1, 77, code.to_owned())], "{name}");
        assert_eq!(got.len(), 1, "no ack");
        assert_eq!(a.effects.denials.drain(..).collect::<Vec<_>>(), [line("WRITE", name, reason)]);
    }
    let got = a.say(&mut node, subscribe(1, "T.*.>"));
    assert_eq!(denied(&got), [(0, 1, "all-tenants".to_owned())]);
    assert_eq!(node.driver.control().subscriptions(), 1, "only b's own");
    assert!(b.read().is_empty() && counted(&node, "tenantB") == 0);
    let tenant = node.tenant("tenantA");
    assert_eq!(tenant.counters().denials(Access::Write, Deny::CrossTenant), 2);
    assert_eq!(tenant.counters().denials(Access::Read, Deny::CompositeDestination), 1);
    assert_eq!(tenant.counters().class(Class::Ctrl).published.value(), 0);
    assert_eq!(messages(&a.publish(&mut node, "still.open", b"p")), [""; 0]);
}

#[test]
fn a_comma_in_a_raw_name_is_a_letter_of_the_own_tenant() {
    let mut node = Node::new(1);
    let (mut a, mut b) = (node.client("tenantA", "alice"), node.client("tenantB", "bob"));
    a.say(&mut node, subscribe(1, "x,T.tenantB.live.y"));
    b.say(&mut node, subscribe(1, ">"));
    assert_eq!(messages(&a.publish(&mut node, "x,T.tenantB.live.y", b"1")), ["x,T.tenantB.live.y=1"]);
    assert!(b.read().is_empty());
}

#[test]
fn reply_subjects_stay_in_the_tenant() {
    let mut node = Node::new(1);
    let mut a = node.client("tenantA", "alice");
    a.say(&mut node, subscribe(1, ">"));
    for (reply, code) in [("T.tenantB.live.x", "cross-tenant"), ("a..b", "malformed-name"), ("a b", "malformed-name")] {
        let got = a.send(&mut node, &publish(None, Some(3), "x", reply, b"p"));
        assert_eq!(denied(&got), [(1, 3, code.to_owned())], "{reply}");
        assert!(messages(&got).is_empty());
    }
    let got = a.send(&mut node, &publish(None, None, "x", "_INBOX.1.2", b"p"));
    assert_eq!(messages(&got), ["x=p"]);
}

#[test]
fn advisories_and_denied_subjects_are_refused() {
    let mut node = Node::new(1);
    let mut a = node.client("tenantA", "alice");
    let got = a.send(&mut node, &publish(Some(Class::Ctrl), Some(1), "advisory.x", "", b"p"));
    assert_eq!(denied(&got), [(1, 1, "advisory-write".to_owned())]);
    let got = a.publish(&mut node, "T.tenantA.ctrl.advisory.x", b"p");
    assert_eq!(denied(&got), [(1, 0, "advisory-write".to_owned())]);
    let mut root = node.client("cresco-system", "root");
    let got = root.publish(&mut node, "T.tenantA.ctrl.advisory.x", b"p");
    assert_eq!(denied(&got).len(), 1, "superusers neither");
    let mut p = node.client("private", "alice");
    assert_eq!(denied(&p.publish(&mut node, "forbidden.x", b"p")), [(1, 0, "deny-list".to_owned())]);
    let got = p.say(&mut node, subscribe(1, "_INBOX.region-a.bob.>"));
    assert_eq!(denied(&got), [(0, 1, "reply-owner".to_owned())]);
}

#[test]
fn an_acknowledgement_tells_nothing_of_observers_or_of_other_tenants() {
    let mut node = Node::new(1);
    let (mut a, mut root) = (node.client("tenantA", "alice"), node.client("cresco-system", "root"));
    root.say(&mut node, subscribe(1, "T.tenantA.>"));
    let got = a.send(&mut node, &publish(Some(Class::Ctrl), Some(1), "x", "", b"p"));
    assert!(matches!(&got[..], [Got::Control(Control::Ack(Ack { seq: 1, targets: 0 }))]), "{got:?}");
    assert_eq!(messages(&root.read()).len(), 1, "it observes all the same");

    let (mut b, mut p) = (node.client("tenantB", "bob"), node.client("private", "alice"));
    for seq in 1..=2 {
        let frame = publish(Some(Class::Ctrl), Some(seq), "T.private.ctrl.intake.x", "intake.answers", b"p");
        let got = b.send(&mut node, &frame);
        assert!(matches!(&got[..], [Got::Control(Control::Ack(Ack { targets: 1, .. }))]), "with and without: {got:?}");
        assert_eq!(messages(&p.read()).len(), usize::from(seq == 2));
        p.say(&mut node, subscribe(1, "intake.x"));
    }
    let frame = publish(Some(Class::Ctrl), Some(3), "T.private.ctrl.intake.x", "orders.delete", b"p");
    assert_eq!(denied(&b.send(&mut node, &frame)), [(1, 3, "cross-tenant".to_owned())]);
}

#[test]
fn an_oversize_payload_is_named_and_ends_the_session() {
    let mut node = Node::new(1);
    let mut a = node.client("tenantA", "alice");
    let frame = publish(Some(Class::Bulk), Some(9), "x", "", &vec![0; 64 * 1024 + 1]);
    let end = a.feed(&mut node, &frame[..64]).unwrap_err();
    assert_eq!(end.code(), "payload-too-large");
    assert_eq!(denied(&a.read()), [(1, 9, "payload-too-large".to_owned())]);
    assert_eq!(node.tenant("tenantA").counters().class(Class::Bulk).published.value(), 0);
}

#[test]
fn echo_decides_whether_a_session_hears_itself() {
    let mut node = Node::new(1);
    let mut loud = node.client("tenantA", "loud");
    loud.say(&mut node, subscribe(1, "x"));
    assert_eq!(messages(&loud.publish(&mut node, "x", b"1")), ["x=1"]);
    let mut quiet = node.connect("tenantA", "quiet", Role::Tenant);
    quiet.say(&mut node, hello(false));
    quiet.say(&mut node, subscribe(1, "x"));
    quiet.say(&mut node, in_group(2, "g", "workers"));
    assert!(quiet.publish(&mut node, "x", b"2").is_empty());
    assert_eq!(messages(&loud.read()), ["x=2"]);
    assert!(quiet.publish(&mut node, "g", b"3").is_empty(), "nor as a member of a group");
    loud.say(&mut node, in_group(2, "g", "workers"));
    for _ in 0..3 {
        assert!(quiet.publish(&mut node, "g", b"4").is_empty());
    }
    assert_eq!(messages(&loud.read()).len(), 3);
}

fn no_responders(got: &[Got]) -> usize {
    got.iter().filter(|g| matches!(g, Got::Control(Control::NoResponders(_)))).count()
}

#[test]
fn no_responders_is_told_only_by_a_complete_view_and_observers_do_not_count() {
    let mut node = Node::new(1);
    let mut a = node.client("tenantA", "alice");
    let request = publish(None, Some(4), "svc", "_INBOX.1.r", b"?");
    assert_eq!(no_responders(&a.send(&mut node, &request)), 0, "the edge has not had its time");
    node.driver.apply(Command::Settle);
    node.driver.commit(NOW);
    assert_eq!(no_responders(&a.send(&mut node, &request)), 1);
    let mut root = node.client("cresco-system", "root");
    root.say(&mut node, subscribe(1, "T.*.>"));
    assert_eq!(no_responders(&a.send(&mut node, &request)), 1, "an observer answers nothing");
    assert_eq!(messages(&root.read()), ["T.tenantA.live.svc=?"], "and is given its copy");
    let mut worker = node.client("tenantA", "worker");
    worker.say(&mut node, in_group(1, "svc", "w"));
    assert_eq!(no_responders(&a.send(&mut node, &request)), 0);
    assert_eq!(messages(&worker.read()), ["svc=?"]);
    worker.say(&mut node, Unsubscribe { sid: 1, max: None }.into());
    assert_eq!(no_responders(&a.send(&mut node, &request)), 1, "the decision was cached, the table changed");
    node.up(0, 3);
    assert_eq!(no_responders(&a.send(&mut node, &request)), 0, "lists of the new edge are awaited");
}

#[test]
fn the_own_muted_subscription_and_a_far_observer_do_not_hide_no_responders() {
    use crate::testing::{arrive, slice};
    let mut node = Node::new(1);
    node.up(0, 0);
    let mut reader = node.reader(0);
    let mut lane = encode(&AnnounceBroker { handle: 9, node: "region-b/b".into(), incarnation: 7 }.into());
    lane.unsplit(encode(
        &Interest { origin: 9, seq: 1, add: true, filter: ">".into(), classes: 15, queue: None, observer: true }.into(),
    ));
    arrive(&mut node, &mut reader, &slice(1, Some((Class::Ctrl, "tenantA")), &lane)).unwrap();
    let mut quiet = node.connect("tenantA", "quiet", Role::Tenant);
    quiet.say(&mut node, hello(false));
    quiet.say(&mut node, subscribe(1, "svc"));
    let got = quiet.send(&mut node, &publish(None, Some(4), "svc", "_INBOX.1.r", b"?"));
    assert_eq!(no_responders(&got), 1);
}

#[test]
fn a_publish_sees_the_subscriptions_sent_before_it() {
    let mut node = Node::new(1);
    let mut a = node.client("tenantA", "alice");
    let mut bytes = encode(&subscribe(1, "x"));
    bytes.unsplit(publish(None, None, "x", "", b"1"));
    bytes.unsplit(encode(&Unsubscribe { sid: 1, max: None }.into()));
    bytes.unsplit(publish(None, None, "x", "", b"2"));
    bytes.unsplit(encode(&Ping { token: 8 }.into()));
    let mut effects = Effects::default();
    let used = a.session.on_bytes(&bytes, NOW, &mut effects).unwrap();
    assert_eq!(used, encode(&subscribe(1, "x")).len(), "it stops before data while a command waits");
    assert!(effects.batch.is_empty() && effects.commands.len() == 1);
    let mut a = node.client("tenantA", "again");
    let got = a.send(&mut node, &bytes);
    assert_eq!(messages(&got), ["x=1"]);
    let controls: Vec<_> = got.iter().filter(|g| matches!(g, Got::Control(_))).cloned().collect();
    assert_eq!(controls, [Got::Control(Subscribed { sid: 1 }.into()), Got::Control(Pong { token: 8 }.into())]);
}

#[test]
fn a_cached_decision_does_not_outlive_the_table() {
    let mut node = Node::new(1);
    let (mut a, mut b) = (node.client("tenantA", "alice"), node.client("tenantA", "bob"));
    assert!(a.publish(&mut node, "x.y", b"0").is_empty());
    b.say(&mut node, subscribe(1, "x.*"));
    a.publish(&mut node, "x.y", b"1");
    let got = b.say(&mut node, Unsubscribe { sid: 1, max: None }.into());
    a.publish(&mut node, "x.y", b"2");
    node.driver.apply(Command::CloseSession { session: b.session.id() });
    node.driver.commit(NOW);
    assert_eq!(messages(&got), ["x.y=1"]);
    assert!(b.read().is_empty());
}

#[test]
fn a_queue_group_is_served_once_and_plain_subscribers_always() {
    let mut node = Node::new(1);
    let mut clients: Vec<_> = (0..3).map(|i| node.client("tenantA", &format!("w{i}"))).collect();
    for client in &mut clients {
        client.say(&mut node, in_group(1, "jobs.*", "w"));
        client.say(&mut node, in_group(2, "jobs.>", "w"));
        client.say(&mut node, in_group(3, "jobs.>", "other"));
    }
    clients[2].say(&mut node, subscribe(4, "jobs.>"));
    let mut a = node.client("tenantA", "alice");
    let mut served = [0; 3];
    for _ in 0..30 {
        let got = a.send(&mut node, &publish(Some(Class::Ctrl), Some(1), "jobs.1", "", b"j"));
        assert!(matches!(&got[..], [Got::Control(Control::Ack(Ack { seq: 1, targets: 3 }))]), "{got:?}");
        let mut sids: Vec<u32> = Vec::new();
        for (client, served) in clients.iter_mut().zip(&mut served) {
            for got in client.read() {
                let Got::Message { sids: of, .. } = got else { panic!("{got:?}") };
                *served += of.iter().filter(|sid| **sid < 3).count();
                sids.extend(of);
            }
        }
        sids.sort_unstable();
        assert!(matches!(sids[..], [1 | 2, 3, 4]), "{sids:?}");
    }
    assert!(served.iter().all(|n| *n > 0), "spread: {served:?}");
}

#[test]
fn a_subscription_ends_after_its_maximum() {
    let mut node = Node::new(1);
    let (mut a, mut b) = (node.client("tenantA", "alice"), node.client("tenantA", "bob"));
    b.say(&mut node, subscribe(1, "x"));
    b.say(&mut node, Unsubscribe { sid: 1, max: Some(2) }.into());
    for n in 0..5 {
        a.publish(&mut node, "x", n.to_string().as_bytes());
    }
    assert_eq!(messages(&b.read()), ["x=0", "x=1"]);
    assert_eq!(node.driver.control().subscriptions(), 0);
    assert_eq!(node.tenant("tenantA").table().filters(), 0, "nothing is left in the table");
}

#[test]
fn ten_thousand_matching_subscriptions_of_one_session_are_all_told() {
    let mut node = Node::new(1);
    let (mut a, mut b) = (node.client("tenantA", "alice"), node.client("tenantA", "bob"));
    for sid in 0..10_000 {
        b.feed(&mut node, &encode(&subscribe(sid, "x"))).unwrap();
        b.read();
    }
    a.publish(&mut node, "x", b"1");
    let mut told: Vec<u32> = Vec::new();
    for got in b.read() {
        let Got::Message { sids, .. } = got else { panic!() };
        told.extend(sids);
    }
    told.sort_unstable();
    assert!(told.iter().copied().eq(0..10_000), "{} told", told.len());
}

/// A chunk is made for all that was read; what little comes of it must not keep it.
#[test]
fn a_delivery_does_not_hold_the_memory_of_a_large_read() {
    let mut node = Node::new(1);
    let (mut a, mut b) = (node.client("tenantA", "alice"), node.client("tenantA", "bob"));
    b.say(&mut node, subscribe(1, "x"));
    a.publish(&mut node, "other", b"p");
    let mut burst = publish(None, None, "x", "", b"p");
    (0..1_000).for_each(|_| burst.unsplit(publish(None, None, "nobody", "", &[0; 64])));
    a.feed(&mut node, &burst).unwrap();
    let mut parts = Vec::new();
    let port = b.session.port().unwrap();
    port.inbox().with(|lanes| lanes.fill(usize::MAX, NOW, &mut parts, &mut glocal_core::sched::Drops::new()));
    let part = BytesMut::from(parts.pop().unwrap());
    assert!(parts.is_empty() && part.capacity() <= 2 * part.len(), "{} bytes for {}", part.capacity(), part.len());
}

#[test]
fn a_burst_to_many_subscriptions_does_not_pile_up_before_the_lanes() {
    let mut node = Node::new(1);
    let (mut a, mut b) = (node.client("tenantA", "alice"), node.client("tenantA", "bob"));
    for sid in 0..4_000 {
        b.feed(&mut node, &encode(&subscribe(sid, "x"))).unwrap();
        b.read();
    }
    assert!(a.publish(&mut node, "other", b"p").is_empty(), "the first publish of a session waits");
    let mut burst = BytesMut::new();
    (0..200).for_each(|_| burst.unsplit(publish(None, None, "x", "", b"p")));
    let used = a.session.on_bytes(&burst, NOW, &mut a.effects).unwrap();
    assert_eq!(used, burst.len());
    let held = a.effects.batch.held();
    assert!((1..=glocal_core::limits::BATCH_BYTES_MAX).contains(&held), "{held} bytes wait for the flush");
    a.effects.batch.flush(&node.shared, NOW);
    assert_eq!(messages(&b.read()).len(), 200);
    assert_eq!(node.tenant("tenantA").counters().class(Class::Live).delivered.value(), 200);
}

#[test]
fn subscribers_are_told_the_true_sender_and_the_form_they_asked_for() {
    let mut node = Node::new(1);
    let (mut a, mut b) = (node.client("tenantA", "alice"), node.client("tenantA", "bob"));
    b.say(&mut node, subscribe(1, "x"));
    b.say(&mut node, subscribe(2, "T.tenantA.bulk.x"));
    a.send(&mut node, &publish(Some(Class::Bulk), None, "x", "r", b"1"));
    let got = b.read();
    assert_eq!(messages(&got), ["x=1", "T.tenantA.bulk.x=1"]);
    for message in got {
        let Got::Message { sender, class, reply, .. } = message else { panic!() };
        assert_eq!((sender.as_str(), class, reply.as_str()), ("region-a/alice", Class::Bulk, "r"));
    }
    let mut root = node.client("cresco-system", "root");
    root.publish(&mut node, "T.tenantA.live.x", b"2");
    let got = b.read();
    let [Got::Message { sender, .. }] = &got[..] else { panic!("{got:?}") };
    assert_eq!(sender, "cresco-system", "a foreign writer is known by its tenant");
    assert_eq!(root.effects.allowances.len(), 1, "and logged");
}

#[test]
fn how_much_an_incomplete_frame_needs_is_known_from_its_prefix_on() {
    let mut node = Node::new(1);
    let mut a = node.client("tenantA", "alice");
    a.say(&mut node, subscribe(1, "orders"));
    assert!(a.effects.needs < 100, "nothing is known of what comes next");
    let frame = publish(None, None, "orders", "", &[7; 60_000]);
    assert!(a.send(&mut node, &frame[..30_000]).is_empty());
    assert_eq!(a.effects.needs, frame.len());
    assert_eq!(a.send(&mut node, &frame[30_000..]).len(), 1);
    assert!(a.effects.needs < 100);
}
