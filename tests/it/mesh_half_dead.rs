//! RB-43: the half-dead bridge. A peer answers every probe on the control stream and reads no data stream: the edge is
//! shown to be down for what it is, its own reason is counted, and a bridge that works takes its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use glocal_core::limits::PATH_DEAD_MS_MIN;
use glocal_node::edge_status::Failure;
use glocal_wire::control::FEATURE_PATH_PROBE;

use crate::support::bridge::{Hostile, Manner, Opening};
use crate::support::eventually;
use crate::support::fabric::Fabric;
use crate::support::node::{GLOBAL, Local, Mesh, REGION_A};

const EDGE: &str = "global-region-a";
const REGION: Opening<'static> = Opening { node: REGION_A, edge: EDGE, tenants: &["tenantA"] };

async fn open(fabric: &Fabric, global: &Local, dial: u64, features: u64, reads: &Arc<AtomicBool>) -> Hostile {
    let at = global.at().bridge;
    let manner = Manner { dial, features, reads: Arc::clone(reads), ..Manner::default() };
    let opened = Hostile::try_open_with(fabric, GLOBAL, at, &REGION, manner).await;
    opened.expect("the bridge to come up")
}

/// Gives the broker something to send in a data stream of the edge, again and again.
async fn traffic(fabric: &Fabric, global: &Local) -> tokio::task::JoinHandle<()> {
    let client = fabric.client(global.at(), "alice").await;
    tokio::spawn(async move {
        for number in 0u64.. {
            // Presence comes and goes with it, which the edge is told.
            let subscription = client.subscribe(&format!("half.{number}"), None).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(subscription);
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_answers_and_reads_no_data_is_shown_down_and_healed() {
    let fabric = Fabric::new();
    let global = Local::start(&fabric, GLOBAL).await;
    let traffic = traffic(&fabric, &global).await;
    let reads = Arc::new(AtomicBool::new(true));
    let hostile = open(&fabric, &global, 1, FEATURE_PATH_PROBE, &reads).await;
    global.up(EDGE).await;
    eventually("data", || (!hostile.heard.lock().unwrap().is_empty()).then_some(())).await;
    let ups = global.edge(EDGE).ups.value();
    // While it reads, it is left alone, for longer than a stuck one would be.
    let since = Instant::now();
    let patience = Duration::from_millis(PATH_DEAD_MS_MIN * 3 / 2);
    eventually("a while", || (since.elapsed() > patience).then_some(())).await;
    assert!(global.edge(EDGE).edge().is_up() && global.edge(EDGE).ups.value() == ups);
    reads.store(false, Ordering::Relaxed);
    let since = Instant::now();
    assert_eq!(hostile.closed().await, "half-dead");
    let took = since.elapsed();
    assert!(took < Duration::from_secs(6), "found after {took:?}, not by the limit of a write");
    eventually("the edge to be down", || (!global.edge(EDGE).edge().is_up()).then_some(())).await;
    assert_eq!(global.edge(EDGE).state().failure, Some(Failure::HalfDead));
    assert_eq!(global.metric("glocal_edge_up", &["edge=\"global-region-a\""]).await, 0);
    assert_eq!(global.metric("glocal_edge_failures_total", &["state=\"half-dead\""]).await, 1);
    // Dialled again, with readers that work.
    reads.store(true, Ordering::Relaxed);
    let healed = open(&fabric, &global, 2, FEATURE_PATH_PROBE, &reads).await;
    global.up(EDGE).await;
    eventually("data", || (!healed.heard.lock().unwrap().is_empty()).then_some(())).await;
    assert_eq!(global.metric("glocal_edge_up", &["edge=\"global-region-a\""]).await, 1);
    traffic.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_know_the_probe_is_sent_none() {
    let fabric = Fabric::new();
    let global = Local::start(&fabric, GLOBAL).await;
    let traffic = traffic(&fabric, &global).await;
    let reads = Arc::new(AtomicBool::new(true));
    let old = open(&fabric, &global, 1, 0, &reads).await;
    global.up(EDGE).await;
    eventually("data", || (!old.heard.lock().unwrap().is_empty()).then_some(())).await;
    // It would answer one, and then be found out once it stops; as it is, nobody asks it.
    reads.store(false, Ordering::Relaxed);
    let since = Instant::now();
    let patience = Duration::from_millis(PATH_DEAD_MS_MIN * 2);
    eventually("a while", || (since.elapsed() > patience).then_some(())).await;
    assert!(global.edge(EDGE).edge().is_up());
    traffic.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_that_read_are_never_taken_for_half_dead() {
    let fabric = Fabric::new();
    let mesh = Mesh::start(&fabric).await;
    let traffic = traffic(&fabric, &mesh.a).await;
    let since = Instant::now();
    let patience = Duration::from_millis(PATH_DEAD_MS_MIN * 2);
    eventually("a while", || (since.elapsed() > patience).then_some(())).await;
    traffic.abort();
    for (node, edge) in [(&mesh.a, EDGE), (&mesh.b, "global-region-b"), (&mesh.global, EDGE)] {
        assert!(node.edge(edge).edge().is_up());
        assert_eq!(node.edge(edge).failures(Failure::HalfDead), 0);
    }
}
