//! A hostile broker at the other end of a dedicated edge: with a bridge and without, with another's certificate, and with
//! lanes on connections where they do not belong.

use std::net::SocketAddr;

use bytes::BytesMut;
use glocal_core::limits::BRIDGE_REFUSALS_MAX;
use glocal_core::name::Class;
use glocal_fabric::pki::LeafKind;
use glocal_wire::control::{BridgeHello, Control, FEATURE_DEDICATED, TenantAttach, TenantAttached};

use crate::support::bridge::{
    Hostile, Manner, Opening, announce, bridge_hello, connect, connect_for, mac, next, proof, relay,
};
use crate::support::fabric::{Credential, Fabric, Shape};
use crate::support::node::{GLOBAL, Local, REGION_A};
use crate::support::peer::frame;
use crate::support::{arrived, eventually, message, soon};

const EDGE: &str = "global-region-a";
const EVERYBODY: Opening<'static> =
    Opening { node: REGION_A, edge: EDGE, tenants: &["tenantA", "tenantB", "cresco-system", "guests"] };

/// A fabric whose edge to region a is dedicated and carries the two tenants and the superusers, but not the guests.
fn fabric() -> Fabric {
    let tenants = "\"tenantA\", \"tenantB\", \"cresco-system\"";
    let fabric = Fabric::shaped(&Shape { edge_tenants: [tenants, "\"*\""], ..Shape::default() });
    fabric.dedicate(GLOBAL, EDGE, "");
    fabric.dedicate(REGION_A, EDGE, "");
    fabric
}

/// The global, and a bridge of the hostile region a to it.
async fn attacked(fabric: &Fabric) -> (Local, Hostile) {
    let global = Local::start(fabric, GLOBAL).await;
    let bridge = bridge(fabric, global.at().bridge, 1).await.expect("the bridge");
    global.up(EDGE).await;
    (global, bridge)
}

async fn bridge(fabric: &Fabric, at: SocketAddr, dial: u64) -> Option<Hostile> {
    let manner = Manner { dial, features: FEATURE_DEDICATED, ..Manner::default() };
    Hostile::try_open_with(fabric, GLOBAL, at, &EVERYBODY, manner).await
}

/// Attaches a connection; what the broker said, when it refused.
async fn attach(
    connection: quinn::Connection,
    bridge: &quinn::Connection,
    tenant: &str,
    number: u64,
    spoil: impl FnOnce(&mut TenantAttach),
) -> Result<Hostile, String> {
    let mut attach = TenantAttach {
        edge: EDGE.to_owned(),
        incarnation: u64::MAX / 2,
        dial: 1,
        number,
        tenant: mac(&connection, EDGE, tenant),
        proof: proof(bridge, EDGE, &connection),
    };
    spoil(&mut attach);
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(&frame(attach)).await.unwrap();
    let mut buffer = BytesMut::new();
    match soon("an answer", next(&mut receive, &mut buffer)).await {
        Some(Control::TenantAttached(body)) => {
            assert_eq!(body.number, number);
            send.write_all(&frame(TenantAttached { number })).await.unwrap();
            Ok(Hostile::beside(connection, send, (receive, buffer)).await)
        }
        Some(Control::BridgeError(error)) => {
            assert!(soon("the end", connection.closed()).await.to_string().contains("refused"));
            Err(error.code)
        }
        other => panic!("{other:?}"),
    }
}

/// As [`attach`], over a connection under the broker's own certificate.
async fn attach_own(
    fabric: &Fabric,
    global: &Local,
    bridge: &Hostile,
    tenant: &str,
    number: u64,
) -> Result<Hostile, String> {
    let connection = connect(fabric, REGION_A, GLOBAL, global.at().bridge).await;
    attach(connection, &bridge.connection, tenant, number, |_| {}).await
}

fn state(global: &Local, tenant: &str) -> Option<&'static str> {
    let key = global.0.context().shared.tenant(tenant).unwrap().key();
    global.edge(EDGE).tenants().get(&key).map(glocal_node::edge_status::TenantState::word)
}

async fn is_up(global: &Local, tenant: &str) {
    eventually(&format!("the connection of {tenant}"), || (state(global, tenant) == Some("up")).then_some(())).await;
}

fn forged(tenant: &str, seq: u64, name: &str) -> BytesMut {
    let mut out = announce(&[REGION_A, GLOBAL], tenant, "region-a", "eve");
    out.extend_from_slice(&relay(Class::Live, name, seq, 1, &[2], b"x"));
    out
}

async fn refused(global: &Local, reason: &str) -> u64 {
    global.metric("glocal_attaches_refused_total", &[&format!("reason=\"{reason}\"")]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_of_another_tenant_is_skipped_and_repeats_close_that_connection_alone() {
    let fabric = fabric();
    let (global, bridge) = attacked(&fabric).await;
    let mut a = attach_own(&fabric, &global, &bridge, "tenantA", 1).await.unwrap();
    let mut b = attach_own(&fabric, &global, &bridge, "tenantB", 1).await.unwrap();
    is_up(&global, "tenantA").await;
    is_up(&global, "tenantB").await;
    let admin = fabric.client(global.at(), "admin").await;
    let mut all = admin.subscribe("T.*.*.>", None).await.unwrap();
    // Its own lane works; another tenant's beside it does not, though the edge allows that tenant.
    a.lane("tenantB", Class::Live, &forged("tenantB", 1, "forged")).await;
    a.lane("tenantA", Class::Live, &forged("tenantA", 1, "true")).await;
    assert_eq!(message(&mut all).await.subject(), "T.tenantA.live.true");
    b.lane("tenantB", Class::Live, &forged("tenantB", 2, "true")).await;
    assert_eq!(message(&mut all).await.subject(), "T.tenantB.live.true");
    let refused = || global.edge(EDGE).edge().refused.value();
    eventually("a refusal", || (refused() >= 1).then_some(())).await;
    assert_eq!(global.metric("glocal_relayed_in_total", &["tenantB"]).await, 1, "only what came on its own");
    let repeated = a.lane("tenantB", Class::Live, b"").await;
    for number in 0..=BRIDGE_REFUSALS_MAX {
        a.data(repeated, &forged("tenantB", number + 10, "forged")).await;
    }
    assert_eq!(a.closed().await, "fault");
    eventually("its state", || (state(&global, "tenantA") == Some("fault")).then_some(())).await;
    assert!(global.edge(EDGE).edge().is_up() && state(&global, "tenantB") == Some("up"), "nobody else is touched");
    let tenant_a = global.0.context().shared.tenant("tenantA").unwrap().key();
    let carried = || global.edge(EDGE).edge().effective().contains(tenant_a);
    eventually("the edge to carry it no more", || (!carried()).then_some(())).await;
    b.lane("tenantB", Class::Bulk, b"").await;
    b.lane("tenantB", Class::Live, &forged("tenantB", 30, "after")).await;
    assert_eq!(message(&mut all).await.subject(), "T.tenantB.live.after");
    assert_eq!(arrived(&mut all), [""; 0], "nothing forged was delivered");
    assert_eq!(global.metric("glocal_edge_tenant_up", &["tenant=\"tenantB\""]).await, 1);
    assert_eq!(global.metric("glocal_edge_tenant_up", &["tenant=\"tenantA\""]).await, 0);
    // It may come back.
    let _again = attach_own(&fabric, &global, &bridge, "tenantA", 2).await.unwrap();
    is_up(&global, "tenantA").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bridge_of_a_dedicated_edge_carries_nobodys_lanes() {
    let fabric = fabric();
    let (global, mut bridge) = attacked(&fabric).await;
    let a = attach_own(&fabric, &global, &bridge, "tenantA", 1).await.unwrap();
    is_up(&global, "tenantA").await;
    let admin = fabric.client(global.at(), "admin").await;
    let mut all = admin.subscribe("T.*.*.>", None).await.unwrap();
    let lane = bridge.lane("tenantA", Class::Live, &forged("tenantA", 1, "forged")).await;
    eventually("a refusal", || (global.edge(EDGE).edge().refused.value() >= 1).then_some(())).await;
    for number in 0..=BRIDGE_REFUSALS_MAX {
        bridge.data(lane, &forged("tenantA", number + 2, "forged")).await;
    }
    assert_eq!(bridge.closed().await, "fault");
    // The death of the bridge ends them all.
    a.closed().await;
    eventually("the edge to be down", || (!global.edge(EDGE).edge().is_up()).then_some(())).await;
    eventually("no connection is known", || global.edge(EDGE).tenants().is_empty().then_some(())).await;
    assert_eq!(arrived(&mut all), [""; 0]);
    // Nothing was ever sent on the bridge, either.
    assert!(bridge.heard.lock().unwrap().is_empty(), "{:?}", bridge.heard);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_of_a_tenant_goes_on_its_connection_and_waits_for_it() {
    let fabric = fabric();
    let (global, bridge) = attacked(&fabric).await;
    let key = global.0.context().shared.tenant("tenantA").unwrap().key();
    assert!(global.edge(EDGE).edge().effective().contains(key), "it is waited for");
    // That it has a subscriber here is told as soon as there is a connection, on that connection.
    let alice = fabric.client(global.at(), "alice").await;
    let _orders = alice.subscribe("orders", None).await.unwrap();
    let a = attach_own(&fabric, &global, &bridge, "tenantA", 1).await.unwrap();
    let bytes = |way: &Hostile, tenant: &str| way.heard.lock().unwrap().get(&(tenant.to_owned(), Class::Ctrl)).copied();
    eventually("tenantA's records", || bytes(&a, "tenantA").filter(|bytes| *bytes > 0)).await;
    let heard: Vec<_> = a.heard.lock().unwrap().keys().map(|(tenant, _)| tenant.clone()).collect();
    assert!(heard.iter().all(|tenant| tenant == "tenantA"), "{heard:?}");
    assert!(bridge.heard.lock().unwrap().is_empty());
    // Who gets none is not carried after a while, and its way leads elsewhere.
    let other = global.0.context().shared.tenant("tenantB").unwrap().key();
    eventually("the end of the wait", || (!global.edge(EDGE).edge().effective().contains(other)).then_some(())).await;
    assert!(global.edge(EDGE).edge().effective().contains(key));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_holds_the_bridge_attaches_and_only_to_that_one() {
    let fabric = fabric();
    let (global, bridge) = attacked(&fabric).await;
    let open = || connect(&fabric, REGION_A, GLOBAL, global.at().bridge);
    for (what, spoil, code) in [
        ("a proof of nothing", (|a: &mut TenantAttach| a.proof = [7; 32]) as fn(&mut TenantAttach), "proof"),
        ("another life", |a| a.incarnation += 1, "no-bridge"),
        ("another dial", |a| a.dial = 2, "no-bridge"),
        ("another edge", |a| a.edge = "global-region-b".to_owned(), "no-bridge"),
        ("no edge", |a| a.edge = "none".to_owned(), "no-bridge"),
        ("a code of nobody", |a| a.tenant = [9; 16], "edge-tenant"),
    ] {
        let before = refused(&global, code).await;
        let found = attach(open().await, &bridge.connection, "tenantA", 1, spoil).await.err();
        assert_eq!(found.as_deref(), Some(code), "{what}");
        assert_eq!(refused(&global, code).await, before + 1, "{what} is counted");
    }
    // A proof is of one connection: one that was seen on another is worth nothing.
    let (first, second) = (open().await, open().await);
    let stolen = proof(&bridge.connection, EDGE, &first);
    let found = attach(second, &bridge.connection, "tenantA", 1, |a| a.proof = stolen).await.err();
    assert_eq!(found.as_deref(), Some("proof"));
    // Tenants that the edge does not allow, or that are not there, look alike.
    for tenant in ["guests", "nobody"] {
        let found = attach_own(&fabric, &global, &bridge, tenant, 1).await.err();
        assert_eq!(found.as_deref(), Some("edge-tenant"), "{tenant}");
    }
    assert_eq!(global.edge(EDGE).tenants().values().filter(|state| state.up).count(), 0);
    // Without a bridge there is nothing to attach to, whatever was known of it.
    bridge.connection.close(0u32.into(), b"bye");
    eventually("the edge to be down", || (!global.edge(EDGE).edge().is_up()).then_some(())).await;
    let found = attach(open().await, &bridge.connection, "tenantA", 1, |_| {}).await.err();
    assert_eq!(found.as_deref(), Some("no-bridge"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_connection_takes_the_place_and_an_older_one_does_not() {
    let fabric = fabric();
    let (global, bridge) = attacked(&fabric).await;
    let first = attach_own(&fabric, &global, &bridge, "tenantA", 5).await.unwrap();
    is_up(&global, "tenantA").await;
    for number in [5, 4] {
        let found = attach_own(&fabric, &global, &bridge, "tenantA", number).await.err();
        assert_eq!(found.as_deref(), Some("older"));
    }
    assert!(first.connection.close_reason().is_none() && state(&global, "tenantA") == Some("up"));
    let mut second = attach_own(&fabric, &global, &bridge, "tenantA", 6).await.unwrap();
    first.closed().await;
    is_up(&global, "tenantA").await;
    let admin = fabric.client(global.at(), "admin").await;
    let mut all = admin.subscribe("T.*.*.>", None).await.unwrap();
    second.lane("tenantA", Class::Live, &forged("tenantA", 1, "true")).await;
    assert_eq!(message(&mut all).await.subject(), "T.tenantA.live.true");
    // What comes and goes all the time is not followed for ever.
    let mut kept = vec![second];
    let refusal = loop {
        let number = 7 + kept.len() as u64;
        match attach_own(&fabric, &global, &bridge, "tenantA", number).await {
            Ok(next) => kept.push(next),
            Err(code) => break code,
        }
    };
    assert_eq!(refusal, "too-often");
    assert!(global.edge(EDGE).edge().is_up());
    // A silent one is given up, alone.
    let last = kept.last().unwrap();
    last.answers.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(last.closed().await, "silent");
    assert!(global.edge(EDGE).edge().is_up());
}

/// A leaf of the broker of region a for a tenant.
fn leaf(fabric: &Fabric, region: &str, tenant: &str) -> Credential {
    fabric.short_lived(region, tenant, "broker-a", LeafKind::Node { hosts: Vec::new() }, 3600)
}

#[tokio::test(flavor = "multi_thread")]
async fn another_key_attaches_nothing_but_its_own_tenants_connection() {
    let fabric = fabric();
    let (global, bridge) = attacked(&fabric).await;
    let at = global.at().bridge;
    // The operator's certificate with another key, though whoever has it holds the bridge, too.
    let twin = leaf(&fabric, "region-a", "operator");
    let connection = connect_for(&fabric, REGION_A, GLOBAL, at, ("tenantA", &twin)).await;
    assert_eq!(
        attach(connection, &bridge.connection, "tenantA", 1, |_| {}).await.err().as_deref(),
        Some("certificate")
    );
    // Another tenant's.
    let of_b = leaf(&fabric, "region-a", "tenantB");
    let connection = connect_for(&fabric, REGION_A, GLOBAL, at, ("tenantA", &of_b)).await;
    assert_eq!(
        attach(connection, &bridge.connection, "tenantA", 1, |_| {}).await.err().as_deref(),
        Some("certificate")
    );
    // The right one, without the bridge.
    let of_a = leaf(&fabric, "region-a", "tenantA");
    let connection = connect_for(&fabric, REGION_A, GLOBAL, at, ("tenantA", &of_a)).await;
    let found = attach(connection, &bridge.connection, "tenantA", 1, |a| a.proof = [0; 32]).await.err();
    assert_eq!(found.as_deref(), Some("proof"));
    // The right one.
    let connection = connect_for(&fabric, REGION_A, GLOBAL, at, ("tenantA", &of_a)).await;
    let _good = attach(connection, &bridge.connection, "tenantA", 1, |_| {}).await.unwrap();
    is_up(&global, "tenantA").await;
    let key = global.0.context().shared.tenant("tenantA").unwrap().key();
    assert!(global.edge(EDGE).tenants().get(&key).unwrap().under_tenant);
    // Such a certificate opens no bridge.
    let connection = connect_for(&fabric, REGION_A, GLOBAL, at, ("tenantA", &of_a)).await;
    let (mut send, _receive) = connection.open_bi().await.unwrap();
    send.write_all(&frame(BridgeHello { dial: 9, features: FEATURE_DEDICATED, ..bridge_hello(&EVERYBODY) }))
        .await
        .unwrap();
    assert!(soon("the end", connection.closed()).await.to_string().contains("refused"));
    assert!(bridge.connection.close_reason().is_none());
    // One from another region's CA does not even connect.
    let foreign = leaf(&fabric, "region-b", "tenantA");
    let connection = connect_for(&fabric, REGION_A, GLOBAL, at, ("tenantA", &foreign)).await;
    assert!(soon("the end", connection.closed()).await.to_string().contains("certificate"), "refused by TLS");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_edge_takes_no_connections_of_tenants() {
    let fabric = Fabric::new();
    let global = Local::start(&fabric, GLOBAL).await;
    let bridge = Hostile::open(&fabric, GLOBAL, global.at().bridge, &EVERYBODY).await;
    global.up(EDGE).await;
    let found = attach_own(&fabric, &global, &bridge, "tenantA", 1).await.err();
    assert_eq!(found.as_deref(), Some("no-bridge"));
    assert!(global.edge(EDGE).edge().is_up());
}
