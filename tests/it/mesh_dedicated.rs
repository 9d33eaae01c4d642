//! Edges that give each tenant a connection of its own, between honest brokers.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use glocal_client::Publish;
use glocal_core::name::Class;
use glocal_fabric::pki::LeafKind;
use glocal_node::edge_status::{Failure, TenantState};

use crate::support::fabric::{Fabric, Shape};
use crate::support::node::{GLOBAL, Local, REGION_A};
use crate::support::{arrived, eventually, message};

const EDGE: &str = "global-region-a";
const BOTH: [&str; 2] = ["tenantA", "tenantB"];

fn fabric() -> Fabric {
    Fabric::shaped(&Shape { edge_tenants: ["\"tenantA\", \"tenantB\"", "\"*\""], ..Shape::default() })
}

/// The connections of an edge by tenant.
fn states(node: &Local) -> Vec<(String, TenantState)> {
    let tenants = node.0.context().shared.tenants();
    let known = node.edge(EDGE).tenants().into_iter();
    known.map(|(key, state)| (tenants.by_key(key).unwrap().id().to_string(), state)).collect()
}

fn ups(node: &Local) -> BTreeSet<String> {
    states(node).into_iter().filter(|(_, state)| state.up).map(|(tenant, _)| tenant).collect()
}

async fn have(nodes: &[&Local], wanted: &[&str]) {
    let wanted: BTreeSet<_> = wanted.iter().map(|tenant| (*tenant).to_owned()).collect();
    for node in nodes {
        eventually(&format!("{}: connections of {wanted:?}", node.at().node), || (ups(node) == wanted).then_some(()))
            .await;
    }
}

/// The global and region a with a dedicated edge, its connections up.
async fn pair(fabric: &Fabric, more: [&str; 2]) -> (Local, Local) {
    fabric.dedicate(GLOBAL, EDGE, more[0]);
    fabric.dedicate(REGION_A, EDGE, more[1]);
    let global = Local::start(fabric, GLOBAL).await;
    fabric.point(REGION_A, global.at().bridge);
    let a = Local::start(fabric, REGION_A).await;
    (global, a)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_tenant_has_a_connection_and_every_message_comes_once() {
    const MANY: u64 = 200;
    let fabric = fabric();
    let (global, a) = pair(&fabric, ["", ""]).await;
    have(&[&global, &a], &BOTH).await;
    let remotes: BTreeSet<String> = states(&global).into_iter().map(|(_, state)| state.remote).collect();
    assert_eq!(remotes.len(), 2, "each from a port of its own");
    assert!(!remotes.contains(&global.edge(EDGE).state().remote), "and none is the bridge's");
    let far = fabric.client(global.at(), "admin").await;
    let (alice, bob) = (fabric.client(a.at(), "alice").await, fabric.client(a.at(), "bob").await);
    let mut of_far = far.subscribe("T.*.*.orders", None).await.unwrap();
    let (mut of_alice, mut of_bob) =
        (alice.subscribe("plans", None).await.unwrap(), bob.subscribe("plans", None).await.unwrap());
    for tenant in BOTH {
        global.knows_filters(tenant, 1).await;
        a.knows_filters(tenant, 1).await;
    }
    for class in Class::ALL {
        for number in 0..MANY {
            let publish = |subject: &str, text: String| Publish { class: Some(class), ..Publish::new(subject, text) };
            alice.publish_with(publish("orders", format!("a {class} {number}"))).await.unwrap();
            bob.publish_with(publish("orders", format!("b {class} {number}"))).await.unwrap();
        }
        for client in [&alice, &bob] {
            client.flush().await.unwrap();
        }
        // One class after the other, so that no lane has to drop anything.
        let mut seen: BTreeSet<String> = BTreeSet::new();
        for _ in 0..2 * MANY {
            let text = String::from_utf8(message(&mut of_far).await.payload().to_vec()).unwrap();
            assert!(seen.insert(text.clone()), "{text} twice");
        }
    }
    for tenant in BOTH {
        far.publish(&format!("T.{tenant}.ctrl.plans"), tenant).await.unwrap();
    }
    assert_eq!(message(&mut of_alice).await.payload(), b"tenantA");
    assert_eq!(message(&mut of_bob).await.payload(), b"tenantB");
    for client in [&alice, &bob, &far] {
        client.flush().await.unwrap();
    }
    for subscription in [&mut of_far, &mut of_alice, &mut of_bob] {
        assert_eq!(arrived(subscription), [""; 0]);
    }
    for node in [&global, &a] {
        assert_eq!(node.edge(EDGE).edge().refused.value(), 0);
        assert_eq!(node.metric("glocal_edge_tenant_up", &[]).await, 2);
        assert_eq!(node.metric("glocal_edge_tenant_ups_total", &[]).await, 2);
    }
    // What operators see.
    let report = |node: &Local| {
        let socket = node.at().socket.clone();
        tokio::task::spawn_blocking(move || crate::support::node::ask(&socket, "edges").unwrap())
    };
    let of_global = report(&global).await.unwrap();
    let edges = of_global["edges"].as_array().unwrap();
    let edge = edges.iter().find(|edge| edge["name"] == EDGE).unwrap();
    assert_eq!(edge["mode"], "dedicated");
    assert_eq!(edges.iter().find(|edge| edge["name"] != EDGE).unwrap()["mode"], "shared");
    let shown: Vec<_> = edge["connections"].as_array().unwrap().iter().map(|c| (&c["tenant"], &c["state"])).collect();
    assert_eq!(shown, [(&"tenantA".into(), &"up".into()), (&"tenantB".into(), &"up".into())]);
    // With the bridge they all go.
    a.0.leave().await;
    eventually("the edge to be down", || (!global.edge(EDGE).edge().is_up()).then_some(())).await;
    eventually("no connection is known", || global.edge(EDGE).tenants().is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_of_different_modes_say_so_and_carry_nothing() {
    for dedicated in [GLOBAL, REGION_A] {
        let fabric = fabric();
        fabric.dedicate(dedicated, EDGE, "");
        let global = Local::start(&fabric, GLOBAL).await;
        fabric.point(REGION_A, global.at().bridge);
        let a = Local::start(&fabric, REGION_A).await;
        for node in [&global, &a] {
            eventually("the state", || (node.edge(EDGE).state().failure == Some(Failure::EdgeMode)).then_some(()))
                .await;
            let detail = node.edge(EDGE).state().detail;
            let is_clear = ["edge-mode", EDGE, "\"dedicated\"", "\"shared\""].iter().all(|word| detail.contains(word));
            assert!(is_clear, "{}: {detail}", node.at().node);
            assert!(!node.edge(EDGE).edge().is_up());
            assert!(node.metric("glocal_edge_failures_total", &["state=\"edge-mode\""]).await > 0);
        }
        // The same mode at both ends, by a reload of the one that differs.
        let other = if dedicated == GLOBAL { REGION_A } else { GLOBAL };
        fabric.dedicate(other, EDGE, "");
        let node = if dedicated == GLOBAL { &a } else { &global };
        let report = node.0.context().reloader.reload(node.0.context()).await;
        assert!(report.is_whole() && !report.changed.is_empty(), "{report:?}");
        have(&[&global, &a], &BOTH).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_the_edge_loses_its_connection_alone_and_who_comes_gets_one() {
    let fabric = fabric();
    let (global, a) = pair(&fabric, ["", ""]).await;
    have(&[&global, &a], &BOTH).await;
    let far = fabric.client(global.at(), "admin").await;
    let alice = fabric.client(a.at(), "alice").await;
    let mut of_far = far.subscribe("T.*.*.orders", None).await.unwrap();
    a.knows_filters("tenantA", 1).await;
    let since = |node: &Local| states(node).into_iter().find(|(tenant, _)| tenant == "tenantA").unwrap().1.since;
    let before = since(&global);
    let narrow = |tenants: &str| {
        let file = fabric.config(REGION_A);
        let text = std::fs::read_to_string(&file).unwrap();
        let lines = text.lines().map(|line| if line.starts_with("tenants = ") { tenants } else { line });
        std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
    };
    for (tenants, wanted) in [("tenants = [\"tenantA\"]", &BOTH[..1]), ("tenants = [\"tenant*\"]", &BOTH[..])] {
        narrow(tenants);
        let report = a.0.context().reloader.reload(a.0.context()).await;
        assert!(report.is_whole() && !report.changed.is_empty(), "{report:?}");
        have(&[&global, &a], wanted).await;
        for number in 0..20 {
            alice.publish("orders", number.to_string()).await.unwrap();
        }
        for number in 0..20 {
            assert_eq!(message(&mut of_far).await.payload(), number.to_string().as_bytes());
        }
    }
    assert_eq!(since(&global), before, "tenantA's connection is the one that was there");
    let bob = fabric.client(a.at(), "bob").await;
    a.knows_filters("tenantB", 1).await;
    bob.publish("orders", "back").await.unwrap();
    assert_eq!(message(&mut of_far).await.payload(), b"back");
    // What the bundle takes goes, too.
    fabric.reshape(&Shape { edge_tenants: ["\"tenantB\"", "\"*\""], ..Shape::default() });
    let report = global.0.context().reloader.reload(global.0.context()).await;
    assert!(report.refused.is_empty(), "{report:?}");
    have(&[&global, &a], &BOTH[1..]).await;
    assert!(a.edge(EDGE).edge().is_up());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_connection_is_under_its_certificate_at_both_ends() {
    let fabric = fabric();
    let mut lines = [String::new(), String::new()];
    for (lines, node) in lines.iter_mut().zip([GLOBAL, REGION_A]) {
        let (region, agent) = node.split_once('/').unwrap();
        let leaf = fabric.short_lived(region, "tenantA", agent, LeafKind::Node { hosts: Vec::new() }, 3600);
        let dir = fabric.node_dir(node);
        std::fs::write(dir.join("a.pem"), &leaf.pem).unwrap();
        std::fs::write(dir.join("a.key"), &leaf.key_pem).unwrap();
        let _ =
            write!(lines, "[[edges.certificates]]\ntenant = \"tenantA\"\ncertificate = \"a.pem\"\nkey = \"a.key\"\n");
    }
    let (global, a) = pair(&fabric, [&lines[0], &lines[1]]).await;
    have(&[&global, &a], &BOTH).await;
    for node in [&global, &a] {
        for (tenant, state) in states(node) {
            assert_eq!(state.under_tenant, tenant == "tenantA", "{}: {tenant}", node.at().node);
        }
    }
    // It is revoked: its connection goes within moments and does not come back; nobody else's does.
    fabric.edit_plan(|plan| {
        plan + "\n[[revocation]]\ntenant = \"tenantA\"\nregion = \"region-a\"\nagent = \"broker-a\"\n\
                before = \"2099-01-01T00:00:00Z\"\n"
    });
    let report = global.0.context().reloader.reload(global.0.context()).await;
    assert!(report.refused.is_empty(), "{report:?}");
    have(&[&global, &a], &BOTH[1..]).await;
    assert!(global.edge(EDGE).edge().is_up());
}

#[test]
fn a_certificate_of_another_tenant_or_node_is_named_before_the_start() {
    let fabric = fabric();
    let dir = fabric.node_dir(REGION_A);
    let lines = "[[edges.certificates]]\ntenant = \"tenantA\"\ncertificate = \"a.pem\"\nkey = \"a.key\"\n";
    fabric.dedicate(REGION_A, EDGE, lines);
    let start = || {
        let loaded = glocal_node::config::Config::load(&fabric.config(REGION_A), &[], []).unwrap();
        let error = glocal_node::prepare(loaded.config).unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        format!("{error}: {source}")
    };
    assert!(start().contains("a.key: cannot be read"), "{}", start());
    for (region, tenant, agent, expected) in [
        ("region-a", "tenantB", "broker-a", "is of tenant 'tenantB', not of 'tenantA'"),
        ("region-b", "tenantA", "broker-b", "is of region-b/broker-b, not of this node, region-a/broker-a"),
    ] {
        let leaf = fabric.short_lived(region, tenant, agent, LeafKind::Node { hosts: Vec::new() }, 3600);
        std::fs::write(dir.join("a.pem"), &leaf.pem).unwrap();
        std::fs::write(dir.join("a.key"), &leaf.key_pem).unwrap();
        let text = start();
        assert!(text.contains(expected) && text.contains("node.toml") && text.contains(EDGE), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_without_a_connection_leaves_everybody_elses_view_complete() {
    let fabric = fabric();
    // tenantB's certificate is revoked from the start, so that its connection never comes up.
    fabric.edit_plan(|plan| {
        plan + "\n[[revocation]]\ntenant = \"tenantB\"\nregion = \"region-a\"\nagent = \"broker-a\"\n\
                before = \"2099-01-01T00:00:00Z\"\n"
    });
    let leaf = fabric.short_lived("region-a", "tenantB", "broker-a", LeafKind::Node { hosts: Vec::new() }, 3600);
    let dir = fabric.node_dir(REGION_A);
    std::fs::write(dir.join("b.pem"), &leaf.pem).unwrap();
    std::fs::write(dir.join("b.key"), &leaf.key_pem).unwrap();
    let lines = "[[edges.certificates]]\ntenant = \"tenantB\"\ncertificate = \"b.pem\"\nkey = \"b.key\"\n";
    fabric.dedicate(GLOBAL, EDGE, "");
    fabric.dedicate(REGION_A, EDGE, lines);
    let global = Local::start(&fabric, GLOBAL).await;
    // There is something to tell of the one that never comes, and nothing of the other.
    let berta = fabric.client(global.at(), "berta").await;
    let _of_berta = berta.subscribe("plans", None).await.unwrap();
    fabric.point(REGION_A, global.at().bridge);
    let a = Local::start(&fabric, REGION_A).await;
    have(&[&global, &a], &BOTH[..1]).await;
    let failed = |node: &Local| states(node).into_iter().find(|(tenant, _)| tenant == "tenantB").unwrap().1;
    eventually("why tenantB has none", || failed(&a).detail.contains("our own certificate").then_some(())).await;
    let key = a.0.context().shared.tenant("tenantB").unwrap().key();
    eventually("the end of the wait", || (!a.edge(EDGE).edge().effective().contains(key)).then_some(())).await;
    let alice = fabric.client(a.at(), "alice").await;
    let nobody = alice.request("orders", "", std::time::Duration::from_secs(15)).await.unwrap_err();
    assert!(matches!(nobody, glocal_client::RequestError::NoResponders(_)), "{nobody}");
    a.knows_present("tenantB", 0).await;
}
