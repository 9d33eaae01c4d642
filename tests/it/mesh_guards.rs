//! Each guard alone: with it the attack is refused, without it the attack succeeds. A test that passes both ways proves
//! nothing. Only in the test build, `GLOCAL_GUARDS_BUILD=1 cargo test --test it mesh_guards`.

use bytes::BytesMut;
use glocal_client::{Publish, PublishError, Published, SubscribeError};
use glocal_core::name::{Class, Label, TenantId};
use glocal_fabric::testing::Oddity;
use glocal_wire::control::Control;

use crate::support::bridge::{Hostile, Opening, announce, bridge_hello, everything, next, relay};
use crate::support::fabric::{Credential, Fabric, Shape};
use crate::support::node::{GLOBAL, Process, REGION_A, metric};
use crate::support::peer::{BRIDGE, frame, quic, tls_of};
use crate::support::{arrived, eventually, message, soon};

const EDGE: &str = "global-region-a";

fn start(fabric: &Fabric, node: &str, off: &str) -> Process {
    Process::start_with(fabric, node, &[], &[("GLOCAL_GUARDS_OFF", off)])
}

fn acknowledged(subject: &str) -> Publish {
    Publish { ack: true, ..Publish::new(subject, "attack") }
}

#[tokio::test(flavor = "multi_thread")]
async fn cross_tenant_policy_is_what_keeps_tenants_apart() {
    let fabric = Fabric::new();
    for off in ["", "cross-tenant"] {
        let node = start(&fabric, REGION_A, off);
        let (alice, bob) = (fabric.client(&node.at, "alice").await, fabric.client(&node.at, "bob").await);
        let mut of_bob = bob.subscribe("plans", None).await.unwrap();
        let written = alice.publish_with(acknowledged("T.tenantB.live.plans")).await;
        let read = alice.subscribe("T.tenantB.live.secret", None).await;
        if off.is_empty() {
            assert!(matches!(written, Err(PublishError::Denied(_))), "{written:?}");
            assert!(matches!(read, Err(SubscribeError::Denied(_))), "{read:?}");
            bob.flush().await.unwrap();
            assert_eq!(arrived(&mut of_bob), [""; 0]);
        } else {
            assert_eq!(written.unwrap(), Published::Accepted);
            assert_eq!(message(&mut of_bob).await.payload(), b"attack", "without the guard it gets through");
            bob.publish("secret", "stolen").await.unwrap();
            assert_eq!(message(&mut read.unwrap()).await.payload(), b"stolen");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn issuer_binding_is_what_keeps_cas_to_their_tenants() {
    let fabric = Fabric::new();
    let eve = Label::parse("eve").unwrap();
    let region = Label::parse("region-b").unwrap();
    let superuser = TenantId::parse("cresco-system").unwrap();
    let (forge_a, forge_b) = (fabric.forge("region-a"), fabric.forge("region-b"));
    // Attack 11: another region's CA makes a superuser. Attack 19: with a decoy beside it.
    let leaf: Credential = forge_b.leaf_in(&superuser, &region, &eve, Oddity::None).unwrap().into();
    let decoy: Credential = forge_b.decoy(&forge_a, &superuser, &eve).unwrap().into();
    for off in ["", "issuer-binding"] {
        let node = start(&fabric, REGION_A, off);
        for credential in [&leaf, &decoy] {
            let session = fabric.try_client(&node.at, glocal_client::Scheme::Tls, Some(credential)).await;
            if off.is_empty() {
                assert!(session.is_err());
            } else {
                let who = session.unwrap().whoami();
                assert_eq!((who.tenant.as_str(), who.role.as_str()), ("cresco-system", "SUPERUSER"));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_name_is_what_makes_a_broker() {
    let fabric = Fabric::new();
    // Attack 3: an agent whose OU and CN are those of a broker, but without its node name.
    let (tenant, agent) = (TenantId::parse("operator").unwrap(), Label::parse("broker-a").unwrap());
    let forged: Credential = fabric.forge("region-a").leaf(&tenant, &agent, Oddity::None).unwrap().into();
    for off in ["", "node-name"] {
        let node = start(&fabric, GLOBAL, off);
        let connection = quic(node.at.bridge, tls_of(&fabric, Some(&forged), BRIDGE)).await;
        let answer = async {
            let connection = connection.ok()?;
            let (mut send, mut receive) = connection.open_bi().await.ok()?;
            let opening = Opening { node: REGION_A, edge: EDGE, tenants: &[] };
            send.write_all(&frame(bridge_hello(&opening))).await.ok()?;
            next(&mut receive, &mut BytesMut::new()).await
        };
        let answer = soon("an answer", answer).await;
        assert_eq!(matches!(answer, Some(Control::BridgeHello(_))), !off.is_empty(), "{off:?}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_guard_a_composite_name_is_one_literal_name() {
    // Attack 1 cannot succeed by design: nothing behind the guard splits a name. It refuses what would otherwise be a
    // surprising name of one's own.
    let fabric = Fabric::new();
    let composite = "T.tenantA.live.x,T.tenantB.live.y";
    for off in ["", "composite"] {
        let node = start(&fabric, REGION_A, off);
        let (alice, bob) = (fabric.client(&node.at, "alice").await, fabric.client(&node.at, "bob").await);
        let mut of_alice = alice.subscribe(">", None).await.unwrap();
        let mut of_bob = bob.subscribe(">", None).await.unwrap();
        let written = alice.publish_with(acknowledged(composite)).await;
        let read = alice.subscribe(composite, None).await;
        for client in [&alice, &bob] {
            client.flush().await.unwrap();
        }
        assert_eq!(arrived(&mut of_bob), [""; 0], "never another tenant's");
        if off.is_empty() {
            assert!(matches!(written, Err(PublishError::Denied(d)) if d.code == "composite-destination"));
            assert!(matches!(read, Err(SubscribeError::Denied(d)) if d.code == "composite-destination"));
        } else {
            assert_eq!(written.unwrap(), Published::Accepted);
            assert_eq!(arrived(&mut of_alice), ["x,T.tenantB.live.y"]);
            bob.publish("y", "secret").await.unwrap();
            bob.flush().await.unwrap();
            alice.flush().await.unwrap();
            assert_eq!(arrived(&mut read.unwrap()), [""; 0]);
        }
    }
}

/// An edge that allows tenantA only.
fn narrow() -> Fabric {
    Fabric::shaped(&Shape { edge_tenants: ["\"tenantA\"", "\"*\""], ..Shape::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receiver_alone_stops_a_lane_that_is_not_allowed() {
    let fabric = narrow();
    for off in ["", "edge-receiver"] {
        // Attack 12, against a sender that checks nothing.
        let global = start(&fabric, GLOBAL, off);
        let admin = fabric.client(&global.at, "admin").await;
        let mut of_b = admin.subscribe("T.tenantB.live.>", None).await.unwrap();
        let opening = Opening { node: REGION_A, edge: EDGE, tenants: &["tenantA", "tenantB"] };
        let mut hostile = Hostile::open(&fabric, GLOBAL, global.at.bridge, &opening).await;
        let mut bytes = announce(&[REGION_A, GLOBAL], "tenantB", "region-a", "eve");
        bytes.extend_from_slice(&relay(Class::Live, "plans", 1, 1, &[2], b"attack"));
        hostile.lane("tenantB", Class::Live, &bytes).await;
        let ops = global.at.ops.unwrap();
        let count = |name: &'static str, label: &'static str| metric(ops, name, &[label]);
        if off.is_empty() {
            let refused = || tokio::task::block_in_place(|| count("glocal_edge_refused_total", EDGE) > 0);
            eventually("a refusal", || refused().then_some(())).await;
            admin.flush().await.unwrap();
            assert_eq!(arrived(&mut of_b), [""; 0]);
            assert_eq!(tokio::task::block_in_place(|| count("glocal_relayed_in_total", "tenantB")), 0);
        } else {
            let came = || tokio::task::block_in_place(|| count("glocal_relayed_in_total", "tenantB") == 1);
            eventually("the lane to be read", || came().then_some(())).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sender_alone_stops_what_its_edge_may_not_carry() {
    let fabric = narrow();
    for off in ["", "edge-sender", "edge-sender,edge-receiver"] {
        let global = start(&fabric, GLOBAL, off);
        let opening = Opening { node: REGION_A, edge: EDGE, tenants: &["tenantA", "tenantB"] };
        let mut far = Hostile::open(&fabric, GLOBAL, global.at.bridge, &opening).await;
        // The far end asks for everything of both.
        for tenant in ["tenantA", "tenantB"] {
            far.lane(tenant, Class::Ctrl, &everything(tenant)).await;
        }
        let clients = [fabric.client(&global.at, "alice").await, fabric.client(&global.at, "bob").await];
        let mut kept = Vec::new();
        for client in &clients {
            kept.push(client.subscribe("plans", None).await.unwrap());
        }
        let carried = |tenant: &str, class| far.heard.lock().unwrap().contains_key(&(tenant.to_owned(), class));
        eventually("tenantA's interest", || carried("tenantA", Class::Ctrl).then_some(())).await;
        let mut number = 0;
        eventually("tenantA's messages", || {
            for client in &clients {
                let publish = client.publish("plans", format!("{number}"));
                tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(publish)).unwrap();
                number += 1;
            }
            carried("tenantA", Class::Live).then_some(())
        })
        .await;
        for client in &clients {
            client.flush().await.unwrap();
        }
        if off.is_empty() {
            assert!(!far.heard.lock().unwrap().keys().any(|(tenant, _)| tenant == "tenantB"));
        } else {
            eventually("tenantB's interest, without the guard", || carried("tenantB", Class::Ctrl).then_some(())).await;
        }
        if off.contains("edge-receiver") {
            eventually("tenantB's messages, without both", || carried("tenantB", Class::Live).then_some(())).await;
        }
    }
}
