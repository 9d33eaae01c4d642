//! Messages of one tenant between brokers: real sockets, real certificates, two hops.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use glocal_client::{Client, Publish, RequestError, Scheme, Subscription};
use glocal_core::name::Class;

use crate::support::fabric::Fabric;
use crate::support::node::{Mesh, http};
use crate::support::soon;

const MANY: usize = 500;

async fn payload(subscription: &mut Subscription) -> String {
    let message = soon("a message", subscription.next()).await.expect("the subscription to live");
    String::from_utf8(message.payload().to_vec()).unwrap()
}

/// What all brokers have dropped, but for what was dropped because it came again.
async fn drops(mesh: &Mesh) -> Vec<String> {
    let mut drops = Vec::new();
    for node in [&mesh.a, &mesh.global, &mesh.b] {
        let at = node.at().ops.unwrap();
        let (_, body) = tokio::task::spawn_blocking(move || http(at, "/metrics").unwrap()).await.unwrap();
        let is_drop = |line: &&str| line.starts_with("glocal_dropped_total{") && !line.contains("repeat");
        let lines = body.lines().filter(is_drop).filter(|line| !line.ends_with(" 0"));
        drops.extend(lines.map(|line| format!("{}: {line}", node.at().node)));
    }
    drops
}

/// Nothing more is on its way to a client once a later message of the same publisher has come.
async fn nothing_else(from: &Client, to: &mut Subscription, mark: &str) {
    from.publish(mark, "mark").await.unwrap();
    assert_eq!(payload(to).await, "mark");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_every_class_cross_two_hops_once_and_in_order() {
    let fabric = Fabric::new();
    let mesh = Mesh::start(&fabric).await;
    let anna = fabric.client(mesh.b.at(), "anna").await;
    let berta = fabric.client(mesh.b.at(), "berta").await;
    let mut of_anna = anna.subscribe("orders.>", None).await.unwrap();
    let mut of_berta = berta.subscribe("orders.>", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 1).await;
    mesh.a.knows_filters("tenantB", 1).await;
    // What brokers tell each other while they start may find no way yet, and is told again.
    let before = drops(&mesh).await;
    let alice = fabric.client(mesh.a.at(), "alice").await;
    for class in Class::ALL {
        for number in 0..MANY {
            let publish = Publish { class: Some(class), ..Publish::new("orders.new", format!("{class} {number}")) };
            alice.publish_with(publish).await.unwrap();
        }
        for number in 0..MANY {
            assert_eq!(payload(&mut of_anna).await, format!("{class} {number}"));
        }
    }
    nothing_else(&alice, &mut of_anna, "orders.mark").await;
    // The same raw name of another tenant is another destination.
    let bob = fabric.client(mesh.a.at(), "bob").await;
    nothing_else(&bob, &mut of_berta, "orders.mark").await;
    assert_eq!(of_anna.try_next().map(|m| m.subject().to_owned()), None);
    for name in ["glocal_relayed_out_total", "glocal_relayed_in_total"] {
        let expected = 4 * MANY as u64 + 1;
        // A busy machine may answer later than a copy waits; then it is sent again, and dropped at its target.
        assert!(mesh.global.metric(name, &["tenantA"]).await >= expected, "{name}");
    }
    assert_eq!(drops(&mesh).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_says_who_sent_it_and_carries_everything() {
    let fabric = Fabric::new();
    let mesh = Mesh::start(&fabric).await;
    let anna = Client::connect(fabric.options(mesh.b.at(), Scheme::Quic, Some(&fabric.agent("anna")))).await.unwrap();
    let mut subscription = anna.subscribe("T.tenantA.ctrl.jobs.*", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 1).await;
    let alice = Client::connect(fabric.options(mesh.a.at(), Scheme::Quic, Some(&fabric.agent("alice")))).await.unwrap();
    let mut publish = Publish { class: Some(Class::Ctrl), ack: true, ..Publish::new("jobs.one", vec![7; 700_000]) };
    publish.reply = Some("answers.here".to_owned());
    let published = alice.publish_with(publish).await.unwrap();
    assert_eq!(published, glocal_client::Published::Acknowledged { targets: 1 });
    let message = soon("the message", subscription.next()).await.unwrap();
    assert_eq!(message.subject(), "T.tenantA.ctrl.jobs.one");
    assert_eq!(message.payload().len(), 700_000);
    assert_eq!(message.reply(), Some("answers.here"));
    assert_eq!(message.sender(), Some("region-a/alice"));
    assert_eq!(message.class(), Class::Ctrl);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_over_two_hops_and_nobody_is_told_at_once() {
    let fabric = Fabric::new();
    let mesh = Mesh::start(&fabric).await;
    let anna = fabric.client(mesh.b.at(), "anna").await;
    let mut service = anna.subscribe("service.time", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 1).await;
    let alice = fabric.client(mesh.a.at(), "alice").await;
    let serve = tokio::spawn(async move {
        while let Some(request) = service.next().await {
            let text = String::from_utf8(request.payload().to_vec()).unwrap();
            request.respond(format!("re: {text}")).await.unwrap();
        }
    });
    for number in 0..20 {
        let reply = alice.request("service.time", format!("{number}"), Duration::from_secs(10)).await.unwrap();
        assert_eq!(reply.payload(), format!("re: {number}").as_bytes());
    }
    let patience = Duration::from_secs(10);
    let nobody = alice.request("service.none", "", patience).await.unwrap_err();
    assert_eq!(nobody, RequestError::NoResponders("service.none".to_owned()));
    // Another tenant's responder on the same name is nobody.
    let bob = fabric.client(mesh.a.at(), "bob").await;
    let nobody = bob.request("service.time", "", patience).await.unwrap_err();
    assert_eq!(nobody, RequestError::NoResponders("service.time".to_owned()));
    serve.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_group_is_one_in_the_whole_mesh() {
    let fabric = Fabric::new();
    let mesh = Mesh::start(&fabric).await;
    let anna = fabric.client(mesh.b.at(), "anna").await;
    let second = fabric.client(mesh.b.at(), "anna").await;
    let mut members = [
        anna.subscribe("work.>", Some("crew")).await.unwrap(),
        second.subscribe("work.>", Some("crew")).await.unwrap(),
    ];
    let mut watcher = anna.subscribe("work.>", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 2).await;
    let alice = fabric.client(mesh.a.at(), "alice").await;
    for number in 0..MANY {
        let publish = Publish { class: Some(Class::Ctrl), ..Publish::new("work.item", number.to_string()) };
        alice.publish_with(publish).await.unwrap();
    }
    for number in 0..MANY {
        assert_eq!(payload(&mut watcher).await, number.to_string());
    }
    anna.flush().await.unwrap();
    second.flush().await.unwrap();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut each = [0, 0];
    // The answer to a flush may overtake messages.
    let until = Instant::now() + Duration::from_secs(10);
    while each.iter().sum::<usize>() < MANY && Instant::now() < until {
        for (member, count) in members.iter_mut().zip(&mut each) {
            while let Some(message) = member.try_next() {
                *count += 1;
                *counts.entry(String::from_utf8(message.payload().to_vec()).unwrap()).or_default() += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(counts.len(), MANY, "every message reached the group");
    assert!(counts.values().all(|n| *n == 1), "and one member of it");
    assert!(each.iter().all(|n| *n > 0), "the work is spread: {each:?}");
    // A member beside the publisher is preferred, and the others get nothing.
    let andy = fabric.client(mesh.a.at(), "andy").await;
    let mut near = andy.subscribe("work.>", Some("crew")).await.unwrap();
    alice.publish("work.item", "near").await.unwrap();
    assert_eq!(payload(&mut near).await, "near");
    assert_eq!(payload(&mut watcher).await, "near");
    anna.flush().await.unwrap();
    assert!(members.iter_mut().all(|m| m.try_next().is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn unsubscribing_ends_messages_and_interest() {
    let fabric = Fabric::new();
    let mesh = Mesh::start(&fabric).await;
    let anna = fabric.client(mesh.b.at(), "anna").await;
    let mut limited = anna.subscribe("news.*", None).await.unwrap();
    limited.unsubscribe_after(2);
    let mut steady = anna.subscribe("news.*", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 1).await;
    let alice = fabric.client(mesh.a.at(), "alice").await;
    for number in 0..4 {
        alice.publish("news.today", number.to_string()).await.unwrap();
    }
    for number in 0..4 {
        assert_eq!(payload(&mut steady).await, number.to_string());
    }
    assert_eq!(payload(&mut limited).await, "0");
    assert_eq!(payload(&mut limited).await, "1");
    assert!(soon("the end", limited.next()).await.is_none());
    steady.unsubscribe();
    mesh.a.knows_filters("tenantA", 0).await;
    mesh.global.knows_filters("tenantA", 0).await;
    let before = mesh.global.metric("glocal_relayed_in_total", &["tenantA"]).await;
    alice.publish("news.today", "late").await.unwrap();
    alice.flush().await.unwrap();
    let nobody = alice.request("news.today", "", Duration::from_secs(10)).await.unwrap_err();
    assert!(matches!(nobody, RequestError::NoResponders(_)), "{nobody}");
    assert_eq!(mesh.global.metric("glocal_relayed_in_total", &["tenantA"]).await, before);
    // A client that goes away takes its interest with it.
    let gone = anna.subscribe("gone.*", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 1).await;
    drop((gone, limited, steady));
    anna.close().await;
    mesh.a.knows_filters("tenantA", 0).await;
}
