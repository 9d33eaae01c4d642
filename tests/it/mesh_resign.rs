//! The one re-signer: a mesh lives past the expiry of its bundle without an operator, and nothing is signed that should not
//! be. Lives of bundles are a few seconds here; what is decided in them is core's, which is tested by value.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use glocal_client::Scheme;
use glocal_core::time::UnixTime;
use glocal_fabric::apply::now;
use glocal_fabric::pki;
use glocal_node::config::Config;
use glocal_wire::bundle::{Envelope, decode_head};

use crate::support::fabric::Fabric;
use crate::support::node::{GLOBAL, Local, Mesh, REGION_A};
use crate::support::{eventually, message};

const EDGE: &str = "global-region-a";

/// A fabric whose plan names region a's broker as the re-signer.
fn with_resigner() -> Fabric {
    let fabric = Fabric::new();
    fabric.edit_plan(|text| format!("resigner = \"{REGION_A}\"\n{text}"));
    fabric
}

/// Lets the bundle be issued `since` seconds ago and live for `seconds` altogether; says when it expires.
fn live_for(fabric: &Fabric, since: i64, seconds: i64) -> UnixTime {
    let issued = now().0 - since;
    fabric.sign_heads(|head| (head.issued, head.expires) = (UnixTime(issued), UnixTime(issued + seconds)));
    UnixTime(issued + seconds)
}

fn version(node: &Local) -> u64 {
    node.0.context().shared.bundle().1
}

fn version_on_file(fabric: &Fabric) -> u64 {
    let file = std::fs::read(fabric.node_dir(GLOBAL).join("bundle.glocal")).unwrap();
    decode_head(&Envelope::decode(&file).unwrap().head).unwrap().version
}

/// Waits until a failure of the re-signer was counted.
async fn failed(node: &Local, reason: &str) {
    let label = format!("reason=\"{reason}\"");
    for _ in 0..2000 {
        if node.metric("glocal_bundle_resign_failures_total", &[&label]).await > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no failure to sign for '{reason}'");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mesh_lives_past_the_expiry_of_its_bundle_by_itself() {
    let fabric = with_resigner();
    let first = version_on_file(&fabric);
    let expires = live_for(&fabric, 0, 8);
    let Mesh { global, a, b } = Mesh::start(&fabric).await;
    let sections = |node: &Local| {
        let holding = node.0.context().reloader.holding();
        holding.pieces().map(|piece| piece.digest).collect::<Vec<_>>()
    };
    let before = sections(&global);
    eventually("the bundle's first life to end", || (now() > expires).then_some(())).await;
    for node in [&global, &a, &b] {
        eventually("a newer bundle everywhere", || (version(node) > first).then_some(())).await;
        let head = node.0.context().reloader.holding().signed().head.clone();
        assert_eq!(head.expires.0 - head.issued.0, 8, "as long as before");
    }
    assert_eq!(sections(&global), before, "no section changes by a byte");
    assert!(a.metric("glocal_bundle_resigned_total", &[]).await >= 1);
    assert!(a.metric("glocal_bundle_resign_seconds", &[]).await >= expires.0.unsigned_abs() - 4);
    assert_eq!(a.metric("glocal_bundle_resign_failures_total", &[]).await, 0);
    assert_eq!(global.metric("glocal_bundle_alarms_total", &[]).await, 0);
    // New sessions and traffic, at both ends.
    let anna = fabric.client(b.at(), "anna").await;
    let mut inbox = anna.subscribe("after", None).await.unwrap();
    a.knows_filters("tenantA", 1).await;
    fabric.client(a.at(), "alice").await.publish("after", "the first expiry").await.unwrap();
    assert_eq!(message(&mut inbox).await.payload(), b"the first expiry");
    // Started again, its configured file has expired; it goes on from what it stored.
    a.0.leave().await;
    let a = Local::start(&fabric, REGION_A).await;
    let was = version(&a);
    assert!(was > first);
    eventually("the re-signer to go on", || (version(&b) > was && version(&global) > was).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_re_signer_it_ends() {
    let fabric = with_resigner();
    let file = fabric.config(REGION_A);
    let text = std::fs::read_to_string(&file).unwrap();
    let kept: Vec<_> = text.lines().filter(|line| !line.starts_with("bundle_signing")).collect();
    std::fs::write(&file, kept.join("\n")).unwrap();
    let expires = live_for(&fabric, 0, 6);
    let Mesh { global, a, b } = Mesh::start(&fabric).await;
    assert!(fabric.try_client(b.at(), Scheme::Tls, Some(&fabric.agent("anna"))).await.is_ok());
    eventually("the bundle to expire", || (now() >= expires).then_some(())).await;
    for node in [&a, &b] {
        let refused = fabric.try_client(node.at(), Scheme::Tls, Some(&fabric.agent("anna"))).await;
        assert!(refused.is_err(), "no new session after the expiry");
        assert_eq!(version(node), version_on_file(&fabric));
    }
    assert_eq!(a.metric("glocal_bundle_resigned_total", &[]).await, 0);
    drop(global);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_set_aside_before_a_crash_is_never_signed_and_a_lost_file_signs_nothing() {
    let fabric = with_resigner();
    let set_aside = fabric.node_dir(REGION_A).join("state").join("signed-version");
    std::fs::create_dir_all(set_aside.parent().unwrap()).unwrap();
    std::fs::write(&set_aside, "half a").unwrap();
    live_for(&fabric, 10, 18);
    let a = Local::start(&fabric, REGION_A).await;
    failed(&a, "state").await;
    assert_eq!(version(&a), version_on_file(&fabric));
    // As a crash between setting aside and storing leaves it.
    std::fs::write(&set_aside, "1 7\n").unwrap();
    eventually("the next version", || (version(&a) == 8).then_some(())).await;
    assert_eq!(std::fs::read_to_string(&set_aside).unwrap(), "1 8\n");
    let stored = std::fs::read(fabric.node_dir(REGION_A).join("state").join("bundle.glocal")).unwrap();
    assert_eq!(decode_head(&Envelope::decode(&stored).unwrap().head).unwrap().version, 8, "stored, and so in force");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_clock_and_a_bundle_that_cannot_be_taken_sign_nothing_and_say_so() {
    let fabric = with_resigner();
    live_for(&fabric, -1000, 5000);
    let a = Local::start(&fabric, REGION_A).await;
    failed(&a, "clock-behind").await;
    assert_eq!(version(&a), version_on_file(&fabric));
    a.0.leave().await;
    // The operator has taken this broker out, which it cannot take: signing on would bring it back.
    live_for(&fabric, 17, 32);
    let a = Local::start_with(&fabric, REGION_A, &[("log_level", "info")]).await;
    let before = version(&a);
    fabric.sign_heads(|head| {
        head.version += 1;
        head.nodes.retain(|entry| entry.node.to_string() != REGION_A);
        head.edges.clear();
        head.sections.clear();
        head.resigner = None;
    });
    failed(&a, "outrun").await;
    assert_eq!(version(&a), before);
    assert_eq!(a.metric("glocal_bundle_resigned_total", &[]).await, 0);
}

/// What a start says, with its cause.
fn refusal(fabric: &Fabric, define: &[(&str, &str)]) -> String {
    let define: Vec<_> = define.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let loaded = match Config::load(&fabric.config(REGION_A), &define, []) {
        Ok(loaded) => loaded,
        Err(errors) => return errors.to_string(),
    };
    let error = glocal_node::prepare(loaded.config).unwrap_err();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

#[test]
fn a_key_that_nobody_would_believe_is_refused_at_the_start() {
    let (fabric, other) = (with_resigner(), with_resigner());
    let dir = fabric.node_dir(REGION_A);
    let (key, pem) = (dir.join("bundle-signing.key"), dir.join("bundle-signing.pem"));
    let name = |path: &Path| path.display().to_string();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o640)).unwrap();
    let exposed =
        format!("bundle_signing_key: {}: is a private key that others can read (mode 0640); chmod 600 it", name(&key));
    assert_eq!(refusal(&fabric, &[]), exposed);
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    // Another fabric's root.
    let foreign = other.node_dir(REGION_A).join("bundle-signing.pem");
    let untrusted = refusal(&fabric, &[("bundle_signing_certificate", &name(&foreign))]);
    assert_eq!(
        untrusted,
        format!(
            "bundle_signing_certificate: {}: not certified to sign bundles: bundle key: certificate is not issued by this fabric",
            name(&foreign)
        )
    );
    // Certified, but to be a broker.
    let node = refusal(&fabric, &[("bundle_signing_certificate", &name(&dir.join("node.pem")))]);
    assert!(
        node.starts_with("bundle_signing_certificate: ") && node.contains("not certified to sign bundles"),
        "{node}"
    );
    // A key of the same kind that is not the certificate's.
    let mismatch = refusal(&fabric, &[("bundle_signing_key", &name(&fabric.path().join("bundle/bundle.key")))]);
    assert!(mismatch.contains("bundle.key: key does not match certificate"), "{mismatch}");
    let kind = refusal(&fabric, &[("bundle_signing_key", &name(&dir.join("node.key")))]);
    assert!(kind.ends_with("node.key: holds no Ed25519 private key in PEM form"), "{kind}");
    // One without the other.
    let half = fabric.config(REGION_A);
    let text = std::fs::read_to_string(&half).unwrap();
    std::fs::write(&half, text.replace("bundle_signing_key_file = \"bundle-signing.key\"\n", "")).unwrap();
    let alone = refusal(&fabric, &[]);
    assert!(alone.ends_with("bundle_signing_certificate: needs bundle_signing_key, too"), "{alone}");
    std::fs::write(&half, text).unwrap();
    // A key of an epoch that is over.
    let ca = {
        let read = |file: &str| std::fs::read_to_string(fabric.path().join("root").join(file)).unwrap();
        pki::Ca::from_pem(read("root.pem").as_bytes(), &read("root.key")).unwrap()
    };
    let next = pki::new_bundle_key().unwrap();
    let label = glocal_core::name::Label::parse("trial").unwrap();
    let certificate = pki::make_bundle_certificate(&ca, &label, 2, &next, now()).unwrap();
    fabric.sign_heads_with(&next, certificate.as_ref(), |head| head.epoch = 2);
    let retired = refusal(&fabric, &[]);
    assert_eq!(
        retired,
        format!(
            "bundle_signing_certificate: {}: certified for epoch 1, which is retired: the bundle is of epoch 2",
            name(&pem)
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_with_a_key_that_the_bundle_does_not_name_signs_nothing() {
    let fabric = with_resigner();
    fabric.sign_heads(|head| {
        head.resigner = None;
        (head.issued, head.expires) = (UnixTime(now().0 - 600), UnixTime(now().0 + 400));
    });
    let a = Local::start(&fabric, REGION_A).await;
    let resigner = a.0.context().reloader.resigner().unwrap();
    eventually("it to have looked", || resigner.has_looked().then_some(())).await;
    assert_eq!((version(&a), resigner.next()), (version_on_file(&fabric), None));
    assert!(!a.edge(EDGE).edge().is_up());
}
