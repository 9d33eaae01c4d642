//! The library against a small broker.

use std::sync::atomic::Ordering;
use std::time::Duration;

use glocal_core::deny::Access;
use glocal_core::name::Class;
use tokio::sync::broadcast;

use crate::*;

mod broker;
mod pki;

use broker::{Broker, MAX_PAYLOAD};
use pki::Pki;

const NODE: &str = "glocal://node/region-a/broker";
const SECOND: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_secs(20);

fn options(pki: &Pki, broker: &Broker) -> ConnectOptions {
    let agent = pki.agent("agent");
    let mut options = ConnectOptions::new(vec![broker.address.parse().unwrap()], pki.root_source())
        .identity(agent.chain_source(), agent.key_source());
    options.reconnect.pause_min = Duration::from_millis(5);
    options.reconnect.pause_max = Duration::from_millis(20);
    options
}

async fn world() -> (Pki, Broker, Client) {
    let pki = Pki::new();
    let broker = Broker::tls(&pki, &pki.broker(&[NODE], &["127.0.0.1"])).await;
    let client = Client::connect(options(&pki, &broker)).await.unwrap();
    (pki, broker, client)
}

/// The first event that `wanted` accepts.
async fn event(events: &mut broadcast::Receiver<Event>, wanted: impl Fn(&Event) -> bool) -> Event {
    let found = async {
        loop {
            let event = events.recv().await.unwrap();
            if wanted(&event) {
                return event;
            }
        }
    };
    tokio::time::timeout(DEADLINE, found).await.expect("the event comes")
}

async fn next(subscription: &mut Subscription) -> Message {
    tokio::time::timeout(DEADLINE, subscription.next()).await.expect("in time").expect("a message")
}

fn reliable(subject: &str, ack: bool) -> Publish {
    Publish { class: Some(Class::Ctrl), ack, ..Publish::new(subject, "x") }
}

#[tokio::test]
async fn a_message_arrives_with_all_its_parts() {
    let (_pki, _broker, client) = world().await;
    assert_eq!(client.whoami().tenant, "acme");
    assert_eq!(client.whoami().node, "region-a/broker");
    let mut subscription = client.subscribe("a.*", None).await.unwrap();
    let mut headers = Headers::new();
    headers.add("K", "V").unwrap();
    let publish = Publish {
        headers: headers.clone(),
        reply: Some("r.s".to_owned()),
        class: Some(Class::Tele),
        ttl: Some(SECOND),
        ..Publish::new("a.b", "payload")
    };
    assert_eq!(client.publish_with(publish).await, Ok(Published::Buffered));
    let message = next(&mut subscription).await;
    assert_eq!((message.subject(), message.reply(), message.payload()), ("a.b", Some("r.s"), &b"payload"[..]));
    assert_eq!((message.class(), message.sender()), (Class::Tele, Some("region-a/agent")));
    assert_eq!(message.headers(), headers);
    assert_eq!(message.payload_shared(), "payload");
}

#[tokio::test]
async fn quic_carries_the_same_session() {
    let pki = Pki::new();
    let broker = Broker::quic(&pki, &pki.broker(&[NODE], &["127.0.0.1"])).await;
    let client = Client::connect(options(&pki, &broker)).await.unwrap();
    let mut subscription = client.subscribe("a", None).await.unwrap();
    let payload = vec![7; MAX_PAYLOAD as usize];
    for _ in 0..20 {
        client.publish("a", &payload).await.unwrap();
    }
    for _ in 0..20 {
        assert_eq!(next(&mut subscription).await.payload(), payload);
    }
    client.close().await;
}

#[tokio::test]
async fn refusals_reach_whoever_asked_and_the_session_goes_on() {
    let (_pki, _broker, client) = world().await;
    let mut events = client.events();
    let Err(SubscribeError::Denied(denied)) = client.subscribe("denied.>", None).await else { panic!("allowed") };
    assert_eq!((denied.access, denied.code.as_str()), (Access::Read, "cross-tenant"));
    assert_eq!(denied.to_string(), "DENY READ 'denied.>' : not yours (cross-tenant)");
    for class in [Class::Live, Class::Ctrl] {
        let publish = Publish { class: Some(class), ack: true, ..Publish::new("denied.x", "") };
        assert!(matches!(client.publish_with(publish).await, Err(PublishError::Denied(_))), "{class}");
    }
    assert!(matches!(client.request("denied.x", "", DEADLINE).await, Err(RequestError::Denied(_))));
    client.publish("denied.quiet", "").await.unwrap();
    let refused = |event: &Event| matches!(event, Event::Denied(denied) if denied.subject == "denied.quiet");
    event(&mut events, refused).await;
    assert_eq!(client.statistics().denied, 5);
    client.flush().await.unwrap();
}

#[tokio::test]
async fn acknowledgements_count_targets_and_bound_what_is_in_flight() {
    let (pki, broker, client) = world().await;
    assert_eq!(client.publish_with(reliable("a", true)).await, Ok(Published::Acknowledged { targets: 0 }));
    let _subscription = client.subscribe("a", None).await.unwrap();
    assert_eq!(client.publish_with(reliable("a", true)).await, Ok(Published::Acknowledged { targets: 1 }));
    let live = Publish { ack: true, ..Publish::new("a", "x") };
    assert_eq!(client.publish_with(live).await, Ok(Published::Accepted));
    for _ in 0..1000 {
        client.publish_with(reliable("b", false)).await.unwrap();
    }
    client.acknowledged(DEADLINE).await.unwrap();
    assert_eq!(client.statistics().acknowledged, 1002);

    let mut narrow = options(&pki, &broker);
    narrow.in_flight_max = 2;
    narrow.timeouts.publish = Duration::from_millis(20);
    let client = Client::connect(narrow).await.unwrap();
    for expected in [Ok(Published::Buffered), Ok(Published::Buffered), Err(PublishError::Timeout)] {
        assert_eq!(client.publish_with(reliable("lost.x", false)).await, expected);
    }
    assert_eq!(client.acknowledged(Duration::from_millis(5)).await, Err(FlushError::Timeout));
}

#[tokio::test]
async fn requests_are_answered_or_told_that_nobody_answers() {
    let (_pki, broker, client) = world().await;
    let started = std::time::Instant::now();
    let nobody = client.request("nobody", "", DEADLINE).await;
    assert_eq!(nobody.err(), Some(RequestError::NoResponders("nobody".to_owned())));
    assert!(started.elapsed() < DEADLINE);

    let mut service = client.subscribe("double", None).await.unwrap();
    let server = tokio::spawn(async move {
        while let Some(request) = service.next().await {
            let twice = [request.payload(), request.payload()].concat();
            request.respond(twice.clone()).await.unwrap();
            request.respond(twice).await.unwrap();
        }
    });
    let replies = (0..50).map(|n| {
        let client = client.clone();
        tokio::spawn(async move { (n, client.request("double", n.to_string(), DEADLINE).await) })
    });
    for reply in replies.collect::<Vec<_>>() {
        let (n, reply) = reply.await.unwrap();
        assert_eq!(reply.unwrap().payload(), format!("{n}{n}").as_bytes());
    }
    let mut many = client.request_many(Publish::new("double", "x"), 2, DEADLINE).await.unwrap();
    for _ in 0..2 {
        assert_eq!(many.next().await.unwrap().payload(), b"xx");
    }
    assert_eq!(many.next().await.err(), Some(RequestError::Timeout));
    server.abort();
    let inboxes = broker.seen.all().iter().filter(|seen| seen.starts_with("subscribe _INBOX.x.")).count();
    assert_eq!(inboxes, 1, "every request shares one subscription");
}

#[tokio::test]
async fn a_request_without_a_reply_times_out_and_leaves_nothing() {
    let (_pki, _broker, client) = world().await;
    let _silent = client.subscribe("silent", None).await.unwrap();
    let reply = client.request("silent", "", Duration::from_millis(20)).await;
    assert_eq!(reply.err(), Some(RequestError::Timeout));
    assert!(sync::lock(&client.inner().state).requests.is_empty());
}

#[tokio::test]
async fn a_lost_connection_comes_back_with_its_subscriptions() {
    let (_pki, broker, client) = world().await;
    let mut events = client.events();
    let mut subscription = client.subscribe("a", None).await.unwrap();
    let _first = client.request("nobody", "", DEADLINE).await;
    for _ in 0..3 {
        client.publish_with(reliable("lost.x", false)).await.unwrap();
    }
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.publish_with(reliable("lost.y", true)).await }
    });
    while broker.seen.count("publish lost.y") == 0 {
        tokio::task::yield_now().await;
    }
    client.publish("cmd.kill", "").await.unwrap();
    assert_eq!(waiting.await.unwrap(), Err(PublishError::Disconnected));
    assert_eq!(
        event(&mut events, |e| matches!(e, Event::Unacknowledged { .. })).await,
        Event::Unacknowledged { count: 4 }
    );
    event(&mut events, |e| matches!(e, Event::Disconnected { .. })).await;
    event(&mut events, |e| matches!(e, Event::Connected { .. })).await;
    client.publish("a", "again").await.unwrap();
    assert_eq!(next(&mut subscription).await.payload(), b"again");
    assert_eq!(broker.seen.count("subscribe a"), 2);
    // The reply subscription is made anew as well.
    assert!(matches!(client.request("nobody", "", DEADLINE).await, Err(RequestError::NoResponders(_))));
    let statistics = client.statistics();
    assert_eq!((statistics.reconnects, statistics.unacknowledged), (1, 4));
}

#[tokio::test]
async fn publishing_waits_for_a_broker_that_is_away() {
    let (_pki, broker, client) = world().await;
    let mut events = client.events();
    broker.is_away.store(true, Ordering::SeqCst);
    client.publish("cmd.kill", "").await.unwrap();
    event(&mut events, |e| matches!(e, Event::Disconnected { .. })).await;
    let publishing = tokio::spawn({
        let client = client.clone();
        async move { client.publish_with(reliable("a", true)).await }
    });
    broker.is_away.store(false, Ordering::SeqCst);
    assert_eq!(publishing.await.unwrap(), Ok(Published::Acknowledged { targets: 0 }));
}

#[tokio::test]
async fn a_broker_that_breaks_the_protocol_is_left() {
    let (_pki, _broker, client) = world().await;
    let mut events = client.events();
    for (subject, reason) in [("cmd.garbage", "broke the protocol"), ("cmd.error", "told to (protocol)")] {
        client.publish(subject, "").await.unwrap();
        let lost = event(&mut events, |e| matches!(e, Event::Disconnected { .. })).await;
        assert!(matches!(&lost, Event::Disconnected { reason: text } if text.contains(reason)), "{lost:?}");
        event(&mut events, |e| matches!(e, Event::Connected { .. })).await;
    }
}

#[tokio::test]
async fn a_broker_that_falls_silent_is_left() {
    let (pki, broker, _client) = world().await;
    let mut options = options(&pki, &broker);
    options.timeouts.silence = Duration::from_millis(150);
    let client = Client::connect(options).await.unwrap();
    let mut events = client.events();
    client.publish("cmd.mute", "").await.unwrap();
    let lost = event(&mut events, |e| matches!(e, Event::Disconnected { .. })).await;
    assert_eq!(lost, Event::Disconnected { reason: "the broker does not answer".to_owned() });
    event(&mut events, |e| matches!(e, Event::Connected { .. })).await;
}

#[tokio::test]
async fn a_slow_reader_of_a_reliable_class_slows_the_connection_and_loses_nothing() {
    let (_pki, _broker, client) = world().await;
    let buffering = Buffering { messages_max: 2, bytes_max: usize::MAX, overflow: Overflow::ByClass };
    let subscribe = Subscribe { filter: "a".to_owned(), queue: None, buffering: Some(buffering) };
    let mut subscription = client.subscribe_with(subscribe).await.unwrap();
    for n in 0..100u8 {
        let publish = Publish { class: Some(Class::Bulk), ..Publish::new("a", vec![n]) };
        client.publish_with(publish).await.unwrap();
    }
    for n in 0..100u8 {
        assert_eq!(next(&mut subscription).await.payload(), [n]);
    }
    assert_eq!(subscription.dropped(), 0);
}

#[tokio::test]
async fn a_goodbye_is_told_and_the_session_goes_on_until_it_ends() {
    let (_pki, _broker, client) = world().await;
    let mut events = client.events();
    client.publish("cmd.goodbye", "").await.unwrap();
    let goodbye = event(&mut events, |e| matches!(e, Event::Goodbye { .. })).await;
    let (code, text) = ("shutting-down".to_owned(), "bye".to_owned());
    assert_eq!(goodbye, Event::Goodbye { code, text, grace: Duration::from_millis(50) });
    client.flush().await.unwrap();
}

#[tokio::test]
async fn without_reconnecting_the_client_closes_and_says_so() {
    let (pki, broker, _client) = world().await;
    let mut options = options(&pki, &broker);
    options.reconnect.enabled = false;
    let client = Client::connect(options).await.unwrap();
    let mut subscription = client.subscribe("a", None).await.unwrap();
    client.publish("cmd.kill", "").await.unwrap();
    assert!(subscription.next().await.is_none());
    client.closed().await;
    assert_eq!(client.publish("a", "").await, Err(PublishError::Closed));
    assert_eq!(client.flush().await, Err(FlushError::Closed));
    assert!(matches!(client.subscribe("a", None).await, Err(SubscribeError::Closed)));
    let reply = client.request("a", "", SECOND).await;
    assert!(matches!(reply, Err(RequestError::Subscribe(SubscribeError::Closed))), "{reply:?}");
}

#[tokio::test]
async fn draining_delivers_what_was_sent_and_closes() {
    let (_pki, broker, client) = world().await;
    let mut subscription = client.subscribe("a", None).await.unwrap();
    for n in 0..100u8 {
        client.publish("a", [n]).await.unwrap();
    }
    client.drain().await.unwrap();
    for n in 0..100u8 {
        assert_eq!(next(&mut subscription).await.payload(), [n]);
    }
    assert!(subscription.next().await.is_none());
    assert!(client.is_closed());
    assert_eq!(broker.seen.count("publish a"), 100);
}

#[tokio::test]
async fn closing_sends_what_is_buffered() {
    let (_pki, broker, client) = world().await;
    for _ in 0..1000 {
        client.publish("a", vec![0; 1000]).await.unwrap();
    }
    client.close().await;
    while broker.seen.count("closed") == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(broker.seen.count("publish a"), 1000);
}

#[tokio::test]
async fn a_subscription_ends_when_dropped_and_after_its_messages() {
    let (_pki, broker, client) = world().await;
    let mut some = client.subscribe("a", None).await.unwrap();
    client.publish("a", "").await.unwrap();
    next(&mut some).await;
    some.unsubscribe_after(2);
    for _ in 0..3 {
        client.publish("a", "").await.unwrap();
    }
    next(&mut some).await;
    next(&mut some).await;
    assert!(some.next().await.is_none());
    drop(client.subscribe("b", None).await.unwrap());
    client.flush().await.unwrap();
    // The broker counts from its subscription on.
    assert_eq!(broker.seen.count("unsubscribe after 3"), 1);
    assert_eq!(broker.seen.count("unsubscribe"), 1);
}

#[tokio::test]
async fn a_limit_survives_a_lost_connection() {
    let (_pki, broker, client) = world().await;
    let mut events = client.events();
    let mut some = client.subscribe("a", None).await.unwrap();
    some.unsubscribe_after(2);
    client.publish("a", "1").await.unwrap();
    next(&mut some).await;
    client.publish("cmd.kill", "").await.unwrap();
    event(&mut events, |e| matches!(e, Event::Connected { .. })).await;
    client.publish("a", "2").await.unwrap();
    client.publish("a", "3").await.unwrap();
    assert_eq!(next(&mut some).await.payload(), b"2");
    assert!(some.next().await.is_none());
    assert_eq!(broker.seen.count("unsubscribe after 1"), 1);
}

#[tokio::test]
async fn a_slow_subscription_drops_by_its_rule_and_is_reported() {
    let (_pki, _broker, client) = world().await;
    let mut events = client.events();
    let buffering = Buffering { messages_max: 2, bytes_max: usize::MAX, overflow: Overflow::DropNewest };
    let subscribe = Subscribe { filter: "a".to_owned(), queue: None, buffering: Some(buffering) };
    let mut subscription = client.subscribe_with(subscribe).await.unwrap();
    for n in 0..5u8 {
        client.publish("a", [n]).await.unwrap();
    }
    client.flush().await.unwrap();
    let slow = event(&mut events, |e| matches!(e, Event::SlowConsumer { .. })).await;
    assert_eq!(slow, Event::SlowConsumer { filter: "a".to_owned(), dropped: 1 });
    assert_eq!((subscription.dropped(), subscription.buffered(), client.statistics().dropped), (3, 2, 3));
    assert_eq!(next(&mut subscription).await.payload(), [0]);
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_here() {
    let (_pki, _broker, client) = world().await;
    let (bytes, max) = (MAX_PAYLOAD as usize + 1, MAX_PAYLOAD as usize);
    assert_eq!(client.publish("a", vec![0; bytes]).await, Err(PublishError::TooLarge { bytes, max }));
    let long = "x".repeat(10_000);
    assert!(matches!(client.publish(&long, "").await, Err(PublishError::Malformed(_))));
    assert!(matches!(client.subscribe(&long, None).await, Err(SubscribeError::Malformed(_))));
    client.flush().await.unwrap();
}

#[tokio::test]
async fn dropping_every_handle_closes_the_connection() {
    let (_pki, broker, client) = world().await;
    let subscription = client.subscribe("a", None).await.unwrap();
    drop(client);
    drop(subscription);
    while broker.seen.count("closed") == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

mod trust;
