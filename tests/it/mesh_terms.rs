//! What a tenant gets of edges: caps hold, cost others nothing, lose nothing that is acknowledged, and change while they hold.

use std::time::{Duration, Instant};

use glocal_client::{Client, Publish, Subscription};
use glocal_core::name::Class;
use glocal_core::sched::EdgeTerms;

use crate::support::fabric::Fabric;
use crate::support::node::{Local, Mesh};
use crate::support::{PATIENCE, eventually, message};

const EDGE_A: &str = "global-region-a";
const CAP: u64 = 128 * 1024;
const PAYLOAD: usize = 4 * 1024;

/// Signs a bundle with these terms of tenantA instead of those before.
fn sign(fabric: &Fabric, lines: &str) {
    fabric.edit_plan(|text| {
        let other = |line: &&str| !line.starts_with("edge_") && !line.starts_with("class_weights");
        let kept = text.lines().filter(other).collect::<Vec<_>>().join("\n") + "\n";
        kept.replacen("id = \"tenantA\"\n", &format!("id = \"tenantA\"\n{lines}\n"), 1)
    });
}

/// The terms of tenantA on an edge of a broker.
fn terms(node: &Local, edge: &str) -> EdgeTerms {
    let shared = &node.0.context().shared;
    let link = shared.link(node.edge(edge).edge().key()).unwrap();
    let key = shared.tenant("tenantA").unwrap().key();
    link.inbox().with(|lanes| lanes.sched().terms(key))
}

async fn publish(client: &Client, class: Class, count: u32) {
    for number in 0..count {
        let payload = [&number.to_le_bytes()[..], &vec![1; PAYLOAD - 4]].concat();
        client.publish_with(Publish { class: Some(class), ..Publish::new("x", payload) }).await.unwrap();
    }
    client.flush().await.unwrap();
}

/// Reads messages in their order until told to stop, or until all are there.
async fn read(subscription: &mut Subscription, numbers: std::ops::Range<u32>, until: Option<Instant>) -> u32 {
    let mut next = numbers.start;
    while next < numbers.end {
        let received = match until {
            Some(until) => match tokio::time::timeout_at(until.into(), subscription.next()).await {
                Ok(received) => received.unwrap(),
                Err(_) => break,
            },
            None => message(subscription).await,
        };
        assert_eq!(received.payload()[..4], next.to_le_bytes());
        next += 1;
    }
    next - numbers.start
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cap_holds_for_its_tenant_alone_and_changes_under_what_is_queued() {
    const COUNT: u32 = 160;
    let fabric = Fabric::new();
    sign(&fabric, &format!("edge_bytes_per_s = {CAP}\nclass_weights = {{ bulk = 4 }}"));
    let mesh = Mesh::start(&fabric).await;
    mesh.up().await;
    assert_eq!(terms(&mesh.a, EDGE_A).bytes_per_s, Some(CAP));
    let (alice, anna) = (fabric.client(mesh.a.at(), "alice").await, fabric.client(mesh.b.at(), "anna").await);
    let (bob, berta) = (fabric.client(mesh.a.at(), "bob").await, fabric.client(mesh.b.at(), "berta").await);
    let mut of_anna = anna.subscribe("x", None).await.unwrap();
    let mut of_berta = berta.subscribe("y", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 1).await;
    mesh.a.knows_filters("tenantB", 1).await;
    let began = Instant::now();
    // 640 KiB: five seconds at the cap.
    let flood = tokio::spawn(async move {
        publish(&alice, Class::Bulk, COUNT).await;
        alice
    });
    let until = began + Duration::from_secs(2);
    let beside = async {
        let mut slowest = Duration::ZERO;
        let mut count = 0u32;
        while Instant::now() < until {
            let sent = Instant::now();
            bob.publish("y", count.to_string()).await.unwrap();
            assert_eq!(message(&mut of_berta).await.payload(), count.to_string().as_bytes());
            slowest = slowest.max(sent.elapsed());
            count += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        (count, slowest)
    };
    let above = async {
        let labels = ["edge=\"global-region-a\""];
        while mesh.a.metric("glocal_edge_capped_tenants", &labels).await == 0 {
            assert!(Instant::now() < until, "nobody was ever above a cap");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (got, (count, slowest), ()) = tokio::join!(read(&mut of_anna, 0..COUNT, Some(until)), beside, above);
    let took = began.elapsed();
    println!("{got} of {COUNT} in {took:?}; {count} beside them, the slowest took {slowest:?}");
    // What the cap gives, its burst of 50 ms and a slice; and at least half of it on a busy machine.
    let of_cap = CAP * u64::try_from(took.as_millis()).unwrap() / 1000 / PAYLOAD as u64;
    assert!(u64::from(got) <= of_cap + 8 && u64::from(got) >= of_cap / 2, "{got} of {of_cap}");
    assert!(count > 50 && slowest < Duration::from_millis(500), "{count}, {slowest:?}");
    // The cap goes: the rest comes at once, all of it and in order.
    sign(&fabric, "class_weights = { live = 1, bulk = 9 }");
    let lifted = Instant::now();
    assert_eq!(read(&mut of_anna, got..COUNT, None).await, COUNT - got);
    println!("the other {} in {:?}", COUNT - got, lifted.elapsed());
    let alice = flood.await.unwrap();
    alice.acknowledged(PATIENCE).await.unwrap();
    let expected = EdgeTerms { class_weights: [1, 4, 2, 9], ..EdgeTerms::DEFAULT };
    for (node, edge) in [(&mesh.a, EDGE_A), (&mesh.global, EDGE_A), (&mesh.global, "global-region-b")] {
        eventually("the new weights", || (terms(node, edge) == expected).then_some(())).await;
    }
    assert_eq!(mesh.a.edge(EDGE_A).ups.value(), 1, "without another bridge");
    assert_eq!(mesh.a.metric("glocal_edge_capped_tenants", &["edge=\"global-region-a\""]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capped_class_loses_by_its_rule_and_its_tenants_other_classes_do_not_notice() {
    let fabric = Fabric::new();
    sign(&fabric, "edge_class_bytes_per_s = { tele = 8192 }");
    let mesh = Mesh::start(&fabric).await;
    mesh.up().await;
    let (alice, anna) = (fabric.client(mesh.a.at(), "alice").await, fabric.client(mesh.b.at(), "anna").await);
    let mut flooded = anna.subscribe("T.tenantA.tele.x", None).await.unwrap();
    let mut steady = anna.subscribe("T.tenantA.live.y", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 2).await;
    // 16 MiB: twice what a lane holds, and half an hour at the cap.
    publish(&alice, Class::Tele, 4_096).await;
    let mut slowest = Duration::ZERO;
    for number in 0..100 {
        let sent = Instant::now();
        let publish = Publish { class: Some(Class::Live), ..Publish::new("y", number.to_string()) };
        alice.publish_with(publish).await.unwrap();
        assert_eq!(message(&mut steady).await.payload(), number.to_string().as_bytes());
        slowest = slowest.max(sent.elapsed());
    }
    println!("the slowest took {slowest:?}");
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
    let labels = ["edge=\"global-region-a\"", "class=\"tele\"", "reason=\"lane-full\""];
    assert!(mesh.a.metric("glocal_edge_dropped_total", &labels).await > 1_000);
    assert!(mesh.a.metric("glocal_edge_queued_bytes", &labels[..1]).await <= 8 * 1024 * 1024);
    let first = message(&mut flooded).await;
    assert_eq!(first.payload()[..4], 0u32.to_le_bytes());
}
