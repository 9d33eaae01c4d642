//! What tenants and sessions may publish: a limit holds to the message, costs nobody else anything, slows what is reliable
//! without losing it, and changes under live sessions.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use glocal_client::{Client, Event, Publish};
use glocal_core::count::Drop as DropReason;
use glocal_core::deny::{Access, Deny};
use glocal_core::name::Class;
use glocal_core::rate::RateLimits;

use crate::support::fabric::{Credential, Fabric};
use crate::support::node::{Local, REGION_A};
use crate::support::peer::{NATIVE, server_name, tls_of};
use crate::support::{PATIENCE, eventually, message};

/// A fabric whose tenantA has these limits.
fn limited(lines: &str) -> Fabric {
    let fabric = Fabric::new();
    limit(&fabric, lines);
    fabric
}

/// Signs a bundle with these limits of tenantA instead of those before.
fn limit(fabric: &Fabric, lines: &str) {
    fabric.edit_plan(|text| {
        let rate = |line: &&str| !line.contains("_per_s = ") && !line.starts_with("burst_ms = ");
        let kept = text.lines().filter(rate).collect::<Vec<_>>().join("\n") + "\n";
        kept.replacen("id = \"tenantA\"\n", &format!("id = \"tenantA\"\n{lines}\n"), 1)
    });
}

/// Published and refused of a tenant in a class, and refused in all.
fn counts(node: &Local, tenant: &str, class: Class) -> (u64, u64, u64) {
    let tenant = node.0.context().shared.tenant(tenant).unwrap();
    let counters = tenant.counters();
    let of = counters.class(class);
    (of.published.value(), of.drops(DropReason::Rate), counters.denials(Access::Write, Deny::Rate))
}

async fn flood(client: &Client, class: Class, name: &str, count: u64) {
    for number in 0..count {
        let publish = Publish { class: Some(class), ..Publish::new(name, number.to_string()) };
        client.publish_with(publish).await.unwrap();
    }
    client.flush().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_above_the_rate_is_refused_to_the_message_and_nobody_else_notices() {
    let fabric = limited("messages_per_s = 1000");
    let node = Local::start(&fabric, REGION_A).await;
    let (alice, andy) = (fabric.client(node.at(), "alice").await, fabric.client(node.at(), "andy").await);
    let bob = fabric.client(node.at(), "bob").await;
    let mut of_bob = bob.subscribe("steady", None).await.unwrap();
    let mut told = alice.events();
    let began = Instant::now();
    let floods =
        async { tokio::join!(flood(&alice, Class::Live, "x", 40_000), flood(&andy, Class::Tele, "y", 20_000)) };
    let steady = async {
        for number in 0..200 {
            bob.publish("steady", number.to_string()).await.unwrap();
            assert_eq!(message(&mut of_bob).await.payload(), number.to_string().as_bytes());
        }
    };
    tokio::join!(floods, steady);
    let took = began.elapsed();
    let (live, live_refused, _) = counts(&node, "tenantA", Class::Live);
    let (tele, tele_refused, refused) = counts(&node, "tenantA", Class::Tele);
    assert_eq!((live + live_refused, tele + tele_refused), (40_000, 20_000), "every message is one or the other");
    assert_eq!(refused, live_refused + tele_refused);
    let most = 1_000 + u64::try_from(took.as_millis()).unwrap() + 1;
    assert!((1_000..=most).contains(&(live + tele)), "{} of at most {most} in {took:?}", live + tele);
    assert_eq!(counts(&node, "tenantB", Class::Live), (200, 0, 0));
    let labels = ["tenant=\"tenantA\"", "class=\"live\"", "reason=\"rate-limited\""];
    assert_eq!(node.metric("glocal_dropped_total", &labels).await, live_refused);
    assert_eq!(node.metric("glocal_denied_total", &[labels[0], labels[2]]).await, refused);
    let denied = loop {
        if let Event::Denied(denied) = told.recv().await.unwrap() {
            break denied;
        }
    };
    assert_eq!(denied.code, "rate-limited");
    assert!(
        denied.retry_after.is_some_and(|after| after >= Duration::from_millis(1) && after < PATIENCE),
        "{denied:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_ctrl_is_slowed_and_nothing_of_it_is_lost() {
    let fabric = limited("messages_per_s = 1000\nburst_ms = 100");
    let node = Local::start(&fabric, REGION_A).await;
    let (alice, andy) = (fabric.client(node.at(), "alice").await, fabric.client(node.at(), "andy").await);
    let mut of_andy = andy.subscribe("x", None).await.unwrap();
    let began = Instant::now();
    let slowed = async {
        flood(&alice, Class::Ctrl, "x", 2_000).await;
        began.elapsed()
    };
    let read = async {
        for number in 0..2_000 {
            assert_eq!(message(&mut of_andy).await.payload(), number.to_string().as_bytes());
        }
    };
    let (took, ()) = tokio::join!(slowed, read);
    assert!(took >= Duration::from_millis(1_900), "{took:?}");
    assert_eq!(counts(&node, "tenantA", Class::Ctrl), (2_000, 0, 0));
    alice.acknowledged(PATIENCE).await.unwrap();
    // And it is not slower than the rate by much, on a busy machine either.
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_change_under_live_sessions() {
    let fabric = limited("messages_per_s = 1\nsession_bytes_per_s = 500");
    let node = Local::start(&fabric, REGION_A).await;
    let alice = fabric.client(node.at(), "alice").await;
    let limits = || node.0.context().shared.tenant("tenantA").unwrap().ingress().limits();
    assert_eq!((limits().messages_per_s, limits().session_bytes_per_s), (Some(1), Some(500)));
    let published = || counts(&node, "tenantA", Class::Bulk).0;
    for number in 0..500 {
        let publish = Publish { class: Some(Class::Bulk), ..Publish::new("x", number.to_string()) };
        alice.publish_with(publish).await.unwrap();
    }
    eventually("the burst", || (published() > 0).then_some(())).await;
    assert!(published() < 100);
    // A newer bundle without limits: whoever waits goes on at once.
    limit(&fabric, "");
    alice.acknowledged(PATIENCE).await.unwrap();
    assert_eq!((published(), limits()), (500, RateLimits::NONE));
    // The node's own bounds hold for everybody, and only narrow.
    let file = fabric.config(REGION_A);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("tenant_messages_per_s = 10\n{text}")).unwrap();
    let context = node.0.context();
    let report = context.reloader.reload(context).await;
    assert_eq!((report.changed, report.restart.is_empty()), (vec!["tenant_messages_per_s changed".to_owned()], true));
    assert_eq!(limits().messages_per_s, Some(10));
    flood(&alice, Class::Live, "x", 1_000).await;
    let (live, refused, _) = counts(&node, "tenantA", Class::Live);
    assert!((10..500).contains(&live) && live + refused == 1_000, "{live} and {refused}");
    limit(&fabric, "messages_per_s = 7");
    eventually("the lesser of both", || (limits().messages_per_s == Some(7)).then_some(())).await;
    limit(&fabric, "messages_per_s = 20");
    eventually("the lesser of both", || (limits().messages_per_s == Some(10)).then_some(())).await;
}

/// Connects as a NATS client, says `text` and a ping, and reads until its answer.
fn nats(fabric: &Fabric, at: std::net::SocketAddr, who: &Credential, text: &str) -> String {
    let mut config = tls_of(fabric, Some(who), NATIVE);
    config.alpn_protocols.clear();
    let mut tls = rustls::ClientConnection::new(Arc::new(config), server_name()).unwrap();
    let mut tcp = TcpStream::connect(at).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = rustls::Stream::new(&mut tls, &mut tcp);
    stream.write_all(b"CONNECT {\"verbose\":false}\r\n").unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut got = Vec::new();
    let mut part = [0; 4096];
    while !got.ends_with(b"PONG\r\n") {
        let read = stream.read(&mut part).unwrap();
        assert_ne!(read, 0, "closed after {}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&part[..read]);
    }
    String::from_utf8(got).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_clients_are_told_and_stay_connected() {
    let fabric = limited("messages_per_s = 10");
    let node = Local::start_with(&fabric, REGION_A, &[("nats_port", "0")]).await;
    let at = node.at().nats.unwrap();
    let who = fabric.agent("alice");
    let mut text = String::new();
    (0..1_000).for_each(|_| text.push_str("PUB x 1\r\np\r\n"));
    (0..12).for_each(|n| write!(text, "PUB T.tenantA.ctrl.y 2\r\n{n:02}\r\n").unwrap());
    let began = Instant::now();
    let got = tokio::task::spawn_blocking(move || nats(&fabric, at, &who, &text)).await.unwrap();
    let most = 5 + 4 * usize::try_from(began.elapsed().as_secs() + 1).unwrap();
    let violations: Vec<_> = got.lines().filter(|line| line.starts_with("-ERR")).collect();
    assert!((1..=most).contains(&violations.len()), "{got}");
    let text = "-ERR 'Permissions Violation for Publish to \"x\": rate limit exceeded, try again in ";
    assert!(violations.iter().all(|line| line.starts_with(text)), "{got}");
    let (live, refused, _) = counts(&node, "tenantA", Class::Live);
    assert_eq!(live + refused, 1_000);
    assert_eq!(counts(&node, "tenantA", Class::Ctrl).0, 12, "they waited");
}
