//! Clients that do not read: they lose their own messages, cost a bounded amount of memory, and slow nobody.

use std::time::{Duration, Instant};

use glocal_client::Publish;
use glocal_core::name::Class;
use glocal_wire::control::Control;

use crate::support::fabric::Fabric;
use crate::support::node::{Process, REGION_A, metric};
use crate::support::peer::{NATIVE, Peer, tls_of};
use crate::support::{eventually_blocking, message, resident, soon};

/// Lanes of one session that reads nothing, twice over, and what the system's buffers and the allocator hold.
const BUDGET: u64 = 2 * 8 * 1024 * 1024 + 48 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_never_reads_slows_nobody_and_holds_little() {
    let fabric = Fabric::new();
    let node = Process::start(&fabric, REGION_A);
    let ops = node.at.ops.unwrap();
    let mut stuck = Vec::new();
    for (quic, agent) in [(false, "andy"), (true, "andy")] {
        let tls = tls_of(&fabric, Some(&fabric.agent(agent)), NATIVE);
        let peer =
            if quic { Peer::quic(node.at.native_quic, tls).await } else { Peer::tcp(node.at.native_tcp, tls).await };
        let mut peer = peer.unwrap();
        peer.hello().await.unwrap();
        assert!(matches!(peer.subscribe(1, "flood.*").await, Control::Subscribed(_)));
        stuck.push(peer);
    }
    let (alice, andy) = (fabric.client(&node.at, "alice").await, fabric.client(&node.at, "andy").await);
    let mut reader = andy.subscribe("flood.*", None).await.unwrap();
    let before = resident(node.child.id());
    let began = Instant::now();
    let mut most = 0;
    // 120 MiB on classes that may drop: every message reaches the reader, one by one.
    for number in 0..1920u32 {
        let class = if number % 2 == 0 { Class::Live } else { Class::Tele };
        let payload = [&number.to_le_bytes()[..], &[1; 64 * 1024]].concat();
        let publish = Publish { class: Some(class), ..Publish::new("flood.x", payload) };
        alice.publish_with(publish).await.unwrap();
        let got = message(&mut reader).await;
        assert_eq!(got.payload()[..4], number.to_le_bytes());
        if number % 64 == 0 {
            most = most.max(resident(node.child.id()).saturating_sub(before));
        }
    }
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert!(most < 2 * BUDGET, "{} MiB more", most / 1024 / 1024);
    let dropped = tokio::task::block_in_place(|| metric(ops, "glocal_dropped_total", &["tenantA", "lane-full"]));
    assert!(dropped > 500, "{dropped}");
    // Acknowledged classes do not drop: who does not read them is disconnected, and others go on meanwhile.
    for number in 0..600u32 {
        let payload = [&number.to_le_bytes()[..], &[1; 64 * 1024]].concat();
        let publish = Publish { class: Some(Class::Ctrl), ack: true, ..Publish::new("flood.x", payload) };
        soon("an acknowledgement", alice.publish_with(publish)).await.unwrap();
        assert_eq!(message(&mut reader).await.payload()[..4], number.to_le_bytes());
    }
    let sessions = || metric(ops, "glocal_sessions", &[]);
    tokio::task::block_in_place(|| {
        eventually_blocking("the ones that do not read to be cut", || (sessions() == 2).then_some(()));
    });
    let got = tokio::task::block_in_place(|| resident(node.child.id())).saturating_sub(before);
    assert!(got < 2 * BUDGET, "{} MiB more", got / 1024 / 1024);
    assert_eq!(andy.statistics().reconnects + alice.statistics().reconnects, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_that_are_only_announced_cost_nothing() {
    let fabric = Fabric::new();
    let node = Process::start(&fabric, REGION_A);
    let before = resident(node.child.id());
    let alice = fabric.agent("alice");
    let tls = tls_of(&fabric, Some(&alice), NATIVE);
    let mut peers = Vec::new();
    for _ in 0..50 {
        let mut peer = Peer::tcp(node.at.native_tcp, tls.clone()).await.unwrap();
        peer.hello().await.unwrap();
        // A message of the largest allowed payload that never comes.
        let head = crate::support::peer::publish(Class::Live, b"x", b"", &[0; 64]);
        let mut head = head.to_vec();
        head[..4].copy_from_slice(&(1024 * 1024 + 20u32).to_le_bytes());
        peer.send_bytes(&head).await.unwrap();
        peers.push(peer);
    }
    let client = fabric.client(&node.at, "alice").await;
    client.flush().await.unwrap();
    let got = resident(node.child.id()).saturating_sub(before);
    assert!(got < 32 * 1024 * 1024, "{} MiB for fifty announcements of 1 MiB", got / 1024 / 1024);
}
