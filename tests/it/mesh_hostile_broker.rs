//! A broker of the fabric that is hostile: a genuine certificate, a bridge, and frames it may not send (attacks 3, 12, 28
//! and 30). What it sends is skipped and counted, and who repeats it loses the bridge.

use std::time::Duration;

use bytes::BytesMut;
use glocal_client::Subscription;
use glocal_core::limits::BRIDGE_REFUSALS_MAX;
use glocal_core::name::Class;
use glocal_node::edge_status::Failure;
use glocal_wire::control::{AllowedSet, Control, Ping, Presence, Subscribe};

use crate::support::bridge::{
    Hostile, Manner, Opening, announce, bridge_hello, connect, everything, macs, next, relay,
};
use crate::support::fabric::{Fabric, Shape};
use crate::support::node::{GLOBAL, Local, REGION_A};
use crate::support::peer::{frame, hello, publish};
use crate::support::{eventually, message, soon};

const EDGE: &str = "global-region-a";

/// An edge that allows tenantA and the superusers, but not tenantB.
fn narrow() -> Fabric {
    Fabric::shaped(&Shape { edge_tenants: ["\"tenantA\", \"cresco-system\"", "\"*\""], ..Shape::default() })
}

const EVERYBODY: Opening<'static> =
    Opening { node: REGION_A, edge: EDGE, tenants: &["tenantA", "tenantB", "cresco-system", "guests"] };

/// The global, and a hostile region a with a bridge to it.
async fn attacked(fabric: &Fabric) -> (Local, Hostile) {
    let global = Local::start(fabric, GLOBAL).await;
    let hostile = Hostile::open(fabric, GLOBAL, global.at().bridge, &EVERYBODY).await;
    global.up(EDGE).await;
    (global, hostile)
}

/// Two subscribers at the global, by the superuser's door.
async fn watch(fabric: &Fabric, global: &Local) -> (glocal_client::Client, Subscription) {
    let admin = fabric.client(global.at(), "admin").await;
    let all = admin.subscribe("T.*.*.>", None).await.unwrap();
    (admin, all)
}

async fn subjects(admin: &glocal_client::Client, subscription: &mut Subscription, mark: &str) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        let message = message(subscription).await;
        if message.subject().ends_with(mark) {
            admin.flush().await.unwrap();
            return found;
        }
        found.push(format!("{} {}", message.subject(), String::from_utf8_lossy(message.payload())));
    }
}

async fn refusals(global: &Local, least: u64) {
    eventually("refusals", || (global.edge(EDGE).edge().refused.value() >= least).then_some(())).await;
}

/// Case RB-31.
#[tokio::test(flavor = "multi_thread")]
async fn attack_12_a_lane_of_a_tenant_outside_the_edges_set_is_skipped_and_repeats_close_the_bridge() {
    let fabric = narrow();
    let (global, mut hostile) = attacked(&fabric).await;
    assert_eq!(global.edge(EDGE).edge().effective().len(), 2, "what this side did not allow is not effective");
    let (admin, mut all) = watch(&fabric, &global).await;
    let forged = |tenant: &str, seq: u64, text: &str| {
        let mut out = announce(&[REGION_A, GLOBAL], tenant, "region-a", "eve");
        out.extend_from_slice(&relay(Class::Live, "news", seq, 1, &[2], text.as_bytes()));
        out
    };
    hostile.lane("tenantB", Class::Live, &forged("tenantB", 1, "forged")).await;
    hostile.lane("nobody", Class::Live, &forged("nobody", 1, "forged")).await;
    hostile.lane("guests", Class::Ctrl, b"").await;
    // Its own tenant's lane works beside them.
    let good = hostile.lane("tenantA", Class::Live, &forged("tenantA", 1, "true")).await;
    hostile.data(good, &relay(Class::Live, "mark", 2, 1, &[2], b"")).await;
    assert_eq!(subjects(&admin, &mut all, "mark").await, ["T.tenantA.live.news true"]);
    refusals(&global, 3).await;
    assert!(global.edge(EDGE).edge().is_up(), "one of each may be a race with a reload");
    assert_eq!(global.metric("glocal_relayed_in_total", &["tenantB"]).await, 0);
    let repeated = hostile.lane("tenantB", Class::Live, b"").await;
    for number in 0..=BRIDGE_REFUSALS_MAX {
        hostile.data(repeated, &forged("tenantB", number + 2, "forged")).await;
    }
    assert_eq!(hostile.closed().await, "fault");
    eventually("the edge to be down", || (!global.edge(EDGE).edge().is_up()).then_some(())).await;
    eventually("the state", || (global.edge(EDGE).state().failure == Some(Failure::Fault)).then_some(())).await;
    assert!(global.edge(EDGE).state().detail.contains("edge-refusals"), "{}", global.edge(EDGE).state().detail);
    assert_eq!(global.metric("glocal_bridge_faults_total", &[]).await, 1);
    assert_eq!(global.metric("glocal_relayed_in_total", &["tenantB"]).await, 0);
    admin.publish("T.tenantA.live.mark", "").await.unwrap();
    assert_eq!(subjects(&admin, &mut all, "mark").await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_12_a_message_speaks_only_for_brokers_behind_its_edge() {
    let fabric = Fabric::new();
    let (global, mut hostile) = attacked(&fabric).await;
    let (admin, mut all) = watch(&fabric, &global).await;
    // Handles: 1 itself, 2 the global, 3 the other region, which is not behind this edge.
    let lane = hostile
        .lane("tenantA", Class::Live, &announce(&[REGION_A, GLOBAL, "region-b/broker-b"], "tenantA", "region-a", "eve"))
        .await;
    for (what, bytes) in [
        ("from another region", relay(Class::Live, "x", 1, 3, &[2], b"forged")),
        ("from the receiver itself", relay(Class::Live, "x", 2, 2, &[2], b"forged")),
        ("from a broker never announced", relay(Class::Live, "x", 3, 77, &[2], b"forged")),
        ("of another class than its lane", relay(Class::Ctrl, "x", 4, 1, &[2], b"forged")),
        ("with a qualified name", relay(Class::Live, "T.tenantB.live.x", 5, 1, &[2], b"forged")),
        ("with a malformed name", relay(Class::Live, "a..b", 6, 1, &[2], b"forged")),
        ("with number 0", relay(Class::Live, "x", 0, 1, &[2], b"forged")),
    ] {
        let before = global.edge(EDGE).edge().refused.value();
        hostile.data(lane, &bytes).await;
        eventually(what, || (global.edge(EDGE).edge().refused.value() > before).then_some(())).await;
    }
    // Records that are not of the one who tells them.
    let ctrl = hostile
        .lane("tenantA", Class::Ctrl, &announce(&[REGION_A, GLOBAL, "region-b/broker-b"], "tenantA", "region-a", "eve"))
        .await;
    let presence = |origin| {
        let mut out = BytesMut::new();
        Control::from(Presence { origin, incarnation: u64::MAX / 2, seq: 1, present: true })
            .encode_into(&mut out)
            .unwrap();
        out
    };
    for origin in [2, 3, 77] {
        let before = global.edge(EDGE).edge().refused.value();
        hostile.data(ctrl, &presence(origin)).await;
        eventually("a record to be refused", || (global.edge(EDGE).edge().refused.value() > before).then_some(()))
            .await;
    }
    global.knows_present("tenantA", 0).await;
    hostile.data(ctrl, &presence(1)).await;
    global.knows_present("tenantA", 1).await;
    assert!(global.edge(EDGE).edge().is_up());
    hostile.data(lane, &relay(Class::Live, "mark", 9, 1, &[2], b"")).await;
    assert_eq!(subjects(&admin, &mut all, "mark").await, [""; 0], "nothing of it was delivered");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_28_hostile_target_lists_cost_their_own_frame() {
    let fabric = Fabric::new();
    let (global, mut hostile) = attacked(&fabric).await;
    let (admin, mut all) = watch(&fabric, &global).await;
    let lane = hostile
        .lane("tenantA", Class::Live, &announce(&[REGION_A, GLOBAL, "region-b/broker-b"], "tenantA", "region-a", "eve"))
        .await;
    // The receiver five times is once; the sender itself and strangers are dropped.
    hostile.data(lane, &relay(Class::Live, "five", 1, 1, &[2, 2, 2, 2, 2], b"")).await;
    hostile.data(lane, &relay(Class::Live, "back", 2, 1, &[1, 2], b"")).await;
    hostile.data(lane, &relay(Class::Live, "unknown", 3, 1, &[900, 901, 2], b"")).await;
    hostile.data(lane, &relay(Class::Live, "nobody", 4, 1, &[], b"")).await;
    hostile.data(lane, &relay(Class::Live, "repeated", 5, 1, &[2], b"")).await;
    hostile.data(lane, &relay(Class::Live, "repeated", 5, 1, &[2], b"")).await;
    hostile.data(lane, &relay(Class::Live, "older", 3, 1, &[2], b"")).await;
    hostile.data(lane, &relay(Class::Live, "mark", 6, 1, &[2], b"")).await;
    let found = subjects(&admin, &mut all, "mark").await;
    let expected = ["five", "back", "unknown", "repeated"].map(|name| format!("T.tenantA.live.{name} "));
    assert_eq!(found, expected);
    assert_eq!(global.edge(EDGE).edge().refused.value(), 4 + 1 + 2);
    assert_eq!(global.metric("glocal_dropped_total", &["tenantA", "reason=\"bad-target\""]).await, 7);
    assert_eq!(global.metric("glocal_dropped_total", &["tenantA", "reason=\"late\""]).await, 2);
    // Ten thousand entries are no frame; a thousand strangers are one too many refusals.
    let strangers: Vec<u32> = (1000..2000).collect();
    hostile.data(lane, &relay(Class::Live, "thousand", 7, 1, &strangers, b"")).await;
    assert_eq!(hostile.closed().await, "fault");
    let (global, mut hostile) = {
        global.0.leave().await;
        attacked(&fabric).await
    };
    let lane = hostile.lane("tenantA", Class::Live, &announce(&[REGION_A, GLOBAL], "tenantA", "region-a", "eve")).await;
    let mut list = BytesMut::new();
    let mut ext = glocal_wire::ext::ExtBuilder::new();
    let entries: Vec<u8> = (0..1025u32).flat_map(|_| [2, 0, 0, 0, 0]).collect();
    ext.raw(glocal_wire::ext::TARGETS, &entries).origin(1).sender(1);
    let bytes = ext.bytes().unwrap();
    list.extend_from_slice(&frame_of_relay(bytes));
    hostile.data(lane, &list).await;
    assert_eq!(hostile.closed().await, "fault");
    eventually("the state", || global.edge(EDGE).state().detail.contains("too-many-targets").then_some(())).await;
}

/// A relayed message with these bytes as extensions, whatever they are.
fn frame_of_relay(ext: &[u8]) -> Vec<u8> {
    let len = u32::try_from(12 + 8 + ext.len() + 1).unwrap();
    let mut out = len.to_le_bytes().to_vec();
    out.extend_from_slice(&[0x42, 1, 0, 1, 1, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&u16::try_from(ext.len()).unwrap().to_le_bytes());
    out.extend_from_slice(&8u64.to_le_bytes());
    out.extend_from_slice(ext);
    out.push(b'x');
    out
}

/// Case RB-19.
#[tokio::test(flavor = "multi_thread")]
async fn attack_3_and_18_frames_that_are_not_a_bridges_close_it() {
    let fabric = Fabric::new();
    let global = Local::start(&fabric, GLOBAL).await;
    let mut sub = BytesMut::new();
    sub.extend_from_slice(&frame(Subscribe { sid: 1, filter: ">".to_owned(), queue: None, local_only: false }));
    // On the control stream, before and instead of a hello.
    let opening = Opening { node: REGION_A, edge: EDGE, tenants: &[] };
    let wrong = |change: fn(&mut glocal_wire::control::BridgeHello)| {
        let mut body = bridge_hello(&opening);
        change(&mut body);
        frame(body)
    };
    for (what, bytes, code) in [
        ("a client's hello", frame(hello()), "fault"),
        ("a client's subscription", sub.clone(), "fault"),
        ("a client's message", publish(Class::Live, b"x", b"", b"x"), "fault"),
        ("noise", BytesMut::from(&[0xff; 64][..]), "fault"),
        ("another broker's name", wrong(|h| h.node = "region-b/broker-b".to_owned()), "handshake"),
        ("the receiver's name", wrong(|h| h.node = GLOBAL.to_owned()), "handshake"),
        ("another edge", wrong(|h| h.edge = "global-region-b".to_owned()), "handshake"),
        ("no edge", wrong(|h| h.edge = "none".to_owned()), "handshake"),
        ("another fabric", wrong(|h| h.fabric = "other".to_owned()), "handshake"),
        ("another version", wrong(|h| h.versions = vec![99]), "handshake"),
        ("opaque ids", wrong(|h| h.tenant_id_form = 1), "handshake"),
        ("another payload", wrong(|h| h.max_payload = 1 << 23), "handshake"),
    ] {
        let connection = connect(&fabric, REGION_A, GLOBAL, global.at().bridge).await;
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&bytes).await.unwrap();
        let mut buffer = BytesMut::new();
        let answer = soon("an answer", next(&mut receive, &mut buffer)).await;
        assert!(matches!(answer, None | Some(Control::BridgeError(_))), "{what}: {answer:?}");
        let reason = match soon("an end", connection.closed()).await {
            quinn::ConnectionError::ApplicationClosed(close) => String::from_utf8_lossy(&close.reason).into_owned(),
            other => panic!("{what}: {other}"),
        };
        assert_eq!(reason, code, "{what}");
        assert!(!global.edge(EDGE).edge().is_up(), "{what}");
    }
    // After the hello, on the control stream and in lanes.
    let lane_of = |bytes: &[u8]| {
        let mut out = announce(&[REGION_A, GLOBAL], "tenantA", "region-a", "eve");
        out.extend_from_slice(bytes);
        out
    };
    for (what, bytes) in [
        ("a client's message", lane_of(&publish(Class::Live, b"x", b"", b"x"))),
        ("a client's hello", lane_of(&frame(hello()))),
        ("a client's subscription", lane_of(&sub)),
        ("a ping", lane_of(&frame(Ping { token: 1 }))),
        ("a second hello", lane_of(&frame(bridge_hello(&opening)))),
        ("noise", lane_of(&[0xff; 64])),
        (
            "a payload of 4 GiB",
            lane_of(&[0xff, 0xff, 0xff, 0xff, 0x42, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
        ),
    ] {
        let mut hostile = Hostile::open(&fabric, GLOBAL, global.at().bridge, &EVERYBODY).await;
        println!("{what} in a lane");
        hostile.lane("tenantA", Class::Live, &bytes).await;
        assert_eq!(hostile.closed().await, "fault");
    }
    for (what, bytes) in [
        ("a slice of lane 0", vec![0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]),
        ("a slice of 4 GiB", vec![1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
        ("a slice of a lane never opened", vec![9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]),
        ("unknown flags", vec![1, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 1]),
        ("a lane of no tenant", vec![1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 1, b'.']),
        ("a lane of an unknown class", vec![1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 9, 1, b'a']),
    ] {
        let mut hostile = Hostile::open(&fabric, GLOBAL, global.at().bridge, &EVERYBODY).await;
        hostile.raw(&bytes).await;
        assert_eq!(hostile.closed().await, "fault", "{what}");
    }
    // On the control stream of a bridge that is up.
    for (what, bytes) in [
        ("a second hello", frame(bridge_hello(&opening))),
        ("a second allowed set", frame(AllowedSet { macs: Vec::new(), last: true })),
        ("a client's subscription", sub.clone()),
        ("a client's message", publish(Class::Live, b"x", b"", b"x")),
        ("a record", everything("tenantA")),
        ("noise", BytesMut::from(&[0xfe; 64][..])),
    ] {
        let hostile = Hostile::open(&fabric, GLOBAL, global.at().bridge, &EVERYBODY).await;
        println!("{what} on the control stream");
        hostile.control.send(bytes.freeze()).await.unwrap();
        assert_eq!(hostile.closed().await, "fault");
    }
    // A lane is opened once, and a new one has a higher number.
    let mut hostile = Hostile::open(&fabric, GLOBAL, global.at().bridge, &EVERYBODY).await;
    hostile.lane("tenantA", Class::Live, b"").await;
    hostile.raw(&[1, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 7]).await;
    hostile.raw(b"tenantA").await;
    assert_eq!(hostile.closed().await, "fault");
    assert_eq!(global.metric("glocal_published_total", &[]).await, 0);
    assert_eq!(global.metric("glocal_delivered_total", &[]).await, 0);
}

/// Case RB-37.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_bridge_takes_the_edge_at_once_and_one_that_falls_silent_is_given_up() {
    let fabric = Fabric::new();
    let (global, first) = attacked(&fabric).await;
    // The same broker with a later dial, as after a restart that the other side has not noticed.
    let mut second = Hostile::open_as(&fabric, GLOBAL, global.at().bridge, &EVERYBODY, 2).await;
    first.closed().await;
    global.up(EDGE).await;
    let (admin, mut all) = watch(&fabric, &global).await;
    let lane = second.lane("tenantA", Class::Live, &announce(&[REGION_A, GLOBAL], "tenantA", "region-a", "eve")).await;
    second.data(lane, &relay(Class::Live, "mark", 1, 1, &[2], b"")).await;
    assert_eq!(subjects(&admin, &mut all, "mark").await, [""; 0]);
    // A dial from before does not win.
    let old = Hostile::try_open(&fabric, GLOBAL, global.at().bridge, &EVERYBODY, 1).await;
    assert!(old.is_none(), "the older dial is turned away");
    assert!(global.edge(EDGE).edge().is_up());
    // A peer that is there, and answers no probe.
    second.answers.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(second.closed().await, "silent");
    eventually("the state", || (global.edge(EDGE).state().failure == Some(Failure::Silent)).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_30_more_streams_than_a_bridge_has_are_not_taken() {
    let fabric = Fabric::new();
    let (global, mut hostile) = attacked(&fabric).await;
    let mut streams = Vec::new();
    let brief = Duration::from_millis(300);
    while let Ok(Ok(mut stream)) = tokio::time::timeout(brief, hostile.connection.open_uni()).await {
        // Half a slice header, and nothing more for ever.
        stream.write_all(&[1, 0, 0]).await.unwrap();
        streams.push(stream);
    }
    assert_eq!(streams.len(), 15, "sixteen streams, and no more");
    assert!(tokio::time::timeout(brief, hostile.connection.open_bi()).await.is_err());
    // The bridge stands, and what comes on the one honest stream is read.
    let (admin, mut all) = watch(&fabric, &global).await;
    let lane = hostile.lane("tenantA", Class::Live, &announce(&[REGION_A, GLOBAL], "tenantA", "region-a", "eve")).await;
    hostile.data(lane, &relay(Class::Live, "mark", 1, 1, &[2], b"")).await;
    assert_eq!(subjects(&admin, &mut all, "mark").await, [""; 0]);
}

/// RB-21: what one connection and edge have agreed on is worth nothing on another. The codes of an allowed set are replayed
/// from an earlier bridge of the same edge, and made under the name of another edge: neither opens the edge to anybody.
/// Heads of other versions and other issuers: `older_forged_and_equivocating_heads_are_refused_by_name_and_change_nothing`;
/// words of other edges: `no_two_words_have_the_same_bytes`.
#[tokio::test(flavor = "multi_thread")]
async fn an_allowed_set_of_another_connection_or_edge_opens_nothing() {
    let fabric = Fabric::new();
    let (global, first) = attacked(&fabric).await;
    assert!(!global.edge(EDGE).edge().effective().is_empty());
    let of_before = macs(&first.connection, &EVERYBODY);
    let elsewhere = Opening { edge: "global-region-b", ..EVERYBODY };
    for (dial, replayed) in [(2, of_before), (3, macs(&first.connection, &elsewhere))] {
        let manner = Manner { dial, macs: Some(replayed), ..Manner::default() };
        let at = global.at().bridge;
        let second = Hostile::try_open_with(&fabric, GLOBAL, at, &EVERYBODY, manner).await.expect("an empty bridge");
        eventually("the edge to carry nobody", || global.edge(EDGE).edge().effective().is_empty().then_some(())).await;
        drop(second);
    }
    let manner = Manner { dial: 4, ..Manner::default() };
    let honest = Hostile::try_open_with(&fabric, GLOBAL, global.at().bridge, &EVERYBODY, manner).await;
    assert!(honest.is_some());
    eventually("the edge to carry them", || (!global.edge(EDGE).edge().effective().is_empty()).then_some(())).await;
}

/// RB-38: two brokers with one name, here as far as the one that is dialled can tell; the back-off of the second is in
/// `two_brokers_of_one_name_leave_the_first_alone_and_the_second_waits`.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_broker_with_the_name_of_one_that_lives_is_refused() {
    let fabric = Fabric::new();
    let (global, first) = attacked(&fabric).await;
    let twin = fabric.twin(REGION_A);
    let second = Hostile::try_open(&twin, GLOBAL, global.at().bridge, &EVERYBODY, 9).await;
    assert!(second.is_none(), "though its dial is newer");
    assert!(global.edge(EDGE).edge().is_up(), "the first one stays");
    assert_eq!(global.metric("glocal_duplicate_nodes_total", &[]).await, 1);
    // When the first one has gone, there is no other.
    first.connection.close(0u32.into(), b"bye");
    eventually("the edge to be down", || (!global.edge(EDGE).edge().is_up()).then_some(())).await;
    assert!(Hostile::try_open(&twin, GLOBAL, global.at().bridge, &EVERYBODY, 10).await.is_some());
}
