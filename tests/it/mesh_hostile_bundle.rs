//! A broker with a genuine certificate that lies about bundles (attack 22): what it tells is verified, refused and counted, and
//! what nobody asked for costs it the bridge.

use glocal_core::limits::ALLOWED_UPDATES_PER_MINUTE_MAX;
use glocal_wire::bundle::Envelope;
use glocal_wire::control::{AllowedUpdate, BundleNews, BundlePart};

use crate::support::bridge::{Hostile, Opening};
use crate::support::eventually;
use crate::support::fabric::{Fabric, Shape};
use crate::support::node::{GLOBAL, Local, REGION_A};
use crate::support::peer::frame;

const EDGE: &str = "global-region-a";
const REGION: Opening<'static> = Opening { node: REGION_A, edge: EDGE, tenants: &["tenantA"] };

/// The global, and a hostile region a with a bridge to it.
async fn attacked(fabric: &Fabric) -> (Local, Hostile) {
    let global = Local::start(fabric, GLOBAL).await;
    let hostile = Hostile::open(fabric, GLOBAL, global.at().bridge, &REGION).await;
    global.up(EDGE).await;
    (global, hostile)
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref().try_into().unwrap()
}

/// The head that a fabric has signed for the global, as it travels, and its digest.
fn head_of(fabric: &Fabric) -> (Vec<u8>, [u8; 32]) {
    let file = std::fs::read(fabric.node_dir(GLOBAL).join("bundle.glocal")).unwrap();
    let envelope = Envelope { sections: Vec::new(), ..Envelope::decode(&file).unwrap() };
    let digest = digest(&envelope.head);
    (envelope.encode().unwrap(), digest)
}

/// Claims that `version` is what this end goes by, and gives `bytes` for it, which is asked for at once.
async fn tell(hostile: &Hostile, version: u64, digest: [u8; 32], bytes: Vec<u8>) {
    hostile.control.send(frame(BundleNews { epoch: 1, version, digest }).freeze()).await.unwrap();
    let total = u32::try_from(bytes.len()).unwrap();
    for (part, offset) in bytes.chunks(1000).zip((0u32..).step_by(1000)) {
        let body = BundlePart { digest, total, offset, bytes: part.to_vec() };
        hostile.control.send(frame(body).freeze()).await.unwrap();
    }
}

async fn refused(global: &Local, reason: &str) {
    let label = format!("reason=\"{reason}\"");
    for _ in 0..500 {
        if global.metric("glocal_bundle_refused_total", &[&label]).await > 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("no bundle was refused for '{reason}'");
}

/// RB-21: a signed head of an older version, by another issuer, or a second one of the same version.
#[tokio::test(flavor = "multi_thread")]
async fn older_forged_and_equivocating_heads_are_refused_by_name_and_change_nothing() {
    let fabric = Fabric::new();
    let (first, first_digest) = head_of(&fabric);
    let twin = fabric.fork();
    twin.edit_plan(|text| text + "\n[[tenant]]\nid = \"more\"\nregions = []\n");
    fabric.reshape(&Shape { edge_tenants: ["\"*\"", "\"tenantA\""], ..Shape::default() });
    let (global, hostile) = attacked(&fabric).await;
    let bundle = || global.0.context().shared.bundle();
    assert_eq!(bundle(), (1, 2));
    // The end of all versions, made up.
    tell(&hostile, u64::MAX, [7; 32], vec![9; 5000]).await;
    refused(&global, "malformed").await;
    // A genuine old one, said to be newer.
    tell(&hostile, 3, first_digest, first).await;
    refused(&global, "older").await;
    // One with its signature cut off and another's put on.
    let (genuine, _) = head_of(&fabric);
    let mut forged = Envelope::decode(&genuine).unwrap();
    forged.signature = vec![1; 64];
    let forged_digest = [8; 32];
    tell(&hostile, 4, forged_digest, forged.encode().unwrap()).await;
    refused(&global, "signature").await;
    assert_eq!(global.metric("glocal_bundle_alarms_total", &[]).await, 0);
    // Two of one version, both rightly signed: the first is kept, and there is an alarm.
    let (other, other_digest) = head_of(&twin);
    tell(&hostile, 2, other_digest, other).await;
    refused(&global, "equivocation").await;
    assert_eq!(global.metric("glocal_bundle_alarms_total", &[]).await, 1);
    assert_eq!(bundle(), (1, 2));
    assert!(global.edge(EDGE).edge().is_up(), "a rumour is no fault");
    assert!(global.0.context().shared.tenants().by_id("more").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_asked_for_and_endless_changes_cost_the_bridge() {
    let fabric = Fabric::new();
    let (global, hostile) = attacked(&fabric).await;
    let part = BundlePart { digest: [5; 32], total: 1 << 20, offset: 0, bytes: vec![0; 1000] };
    hostile.control.send(frame(part).freeze()).await.unwrap();
    assert_eq!(hostile.closed().await, "fault");
    eventually("the bridge to go", || (!global.edge(EDGE).edge().is_up()).then_some(())).await;
    let hostile = Hostile::open_as(&fabric, GLOBAL, global.at().bridge, &REGION, 2).await;
    global.up(EDGE).await;
    for generation in 0..=u64::from(ALLOWED_UPDATES_PER_MINUTE_MAX) {
        let macs = vec![[u8::try_from(generation % 200).unwrap(); 16]];
        let update = AllowedUpdate { generation, epoch: 1, version: 1, macs, last: true };
        // It may be closed before the last one.
        let _ = hostile.control.send(frame(update).freeze()).await;
    }
    assert_eq!(hostile.closed().await, "handshake");
    assert_eq!(global.edge(EDGE).edge().effective().len(), 0);
}
