//! What brokers tell operators of edges and routes: the truth, by tenant, and in a form for people.

use std::process::Command;

use glocal_client::Publish;
use glocal_core::name::Class;
use serde_json::Value;

use crate::support::fabric::{Fabric, Shape};
use crate::support::message;
use crate::support::node::{GLOBAL, Local, Mesh, Process, REGION_A, REGION_B, ask};

async fn asked(mesh_node: &crate::support::node::Local, request: &str) -> Value {
    let (socket, request) = (mesh_node.at().socket.clone(), request.to_owned());
    tokio::task::spawn_blocking(move || ask(&socket, &request).unwrap()).await.unwrap()
}

fn route<'r>(report: &'r Value, tenant: &str, broker: &str) -> &'r Value {
    let of = |list: &'r Value, key: &str, name: &str| -> &'r Value {
        list.as_array().unwrap().iter().find(|item| item[key] == name).unwrap_or(&Value::Null)
    };
    of(&of(&report["tenants"], "tenant", tenant)["brokers"], "broker", broker)
}

#[tokio::test(flavor = "multi_thread")]
async fn edges_and_routes_say_who_may_cross_and_which_way() {
    // The edge to region b carries tenantA and nobody else.
    let fabric = Fabric::shaped(&Shape { edge_tenants: ["\"*\"", "\"tenantA\""], ..Shape::default() });
    let mesh = Mesh::start(&fabric).await;
    let known = |report: &Value| report["edges"].as_array().unwrap().iter().all(|edge| edge["cost"].is_u64());
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    let routes = loop {
        let report = asked(&mesh.a, "routes").await;
        if known(&report) {
            break report;
        }
        assert!(tokio::time::Instant::now() < deadline, "region a does not learn of both edges: {report}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    assert_eq!(routes["node"], REGION_A);
    assert_eq!(route(&routes, "tenantA", REGION_B)["edge"], "global-region-a");
    assert!(route(&routes, "tenantA", REGION_B)["cost"].as_u64() > route(&routes, "tenantA", GLOBAL)["cost"].as_u64());
    assert_ne!(route(&routes, "tenantA", REGION_B)["incarnation"], 0);
    assert_eq!(route(&routes, "tenantB", GLOBAL)["edge"], "global-region-a");
    assert_eq!(route(&routes, "tenantB", REGION_B)["edge"], Value::Null, "there is no way for tenantB");
    let one = asked(&mesh.a, "routes tenantB").await;
    assert_eq!(one["tenants"].as_array().unwrap().len(), 1);

    let edges = asked(&mesh.global, "edges").await;
    let edge = |name: &str| edges["edges"].as_array().unwrap().iter().find(|edge| edge["name"] == name).unwrap();
    let to_b = edge("global-region-b");
    assert_eq!((&to_b["state"], &to_b["peer"], &to_b["refused"]), (&"up".into(), &REGION_B.into(), &0.into()));
    assert_eq!(to_b["tenants"]["effective"], serde_json::json!(["tenantA"]));
    assert_eq!(to_b["tenants"]["bundle"], serde_json::json!(["tenantA"]));
    assert_eq!(to_b["tenants"]["not_by_peer"], serde_json::json!([]));
    assert!(edge("global-region-a")["tenants"]["effective"].as_array().unwrap().contains(&"tenantB".into()));
    let of_b = asked(&mesh.global, "edges tenantB").await;
    assert!(!of_b.to_string().contains("tenantA\"]"), "nothing of tenantA: {of_b}");
    assert_eq!(asked(&mesh.a, "routes nobody").await["error"], asked(&mesh.a, "edges nobody").await["error"]);

    for (command, expected) in [("edges", "global-region-b"), ("routes", "no way")] {
        let node = if command == "edges" { &mesh.global } else { &mesh.a };
        let output = Command::new(env!("CARGO_BIN_EXE_glocal"))
            .args([command, "--socket"])
            .arg(&node.at().socket)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains(expected), "{command}: {text}");
    }
}

/// What `glocal edges` prints for people.
fn printed(node: &Local) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_glocal")).args(["edges", "--socket"]).arg(&node.at().socket).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// Asks again until the answer has what is looked for.
async fn shows(node: &Local, request: &str, what: &str, found: impl Fn(&Value) -> bool) -> Value {
    let deadline = tokio::time::Instant::now() + crate::support::PATIENCE;
    loop {
        let report = asked(node, request).await;
        if found(&report) {
            return report;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain for {what}: {report}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// A target that stands still acknowledges nothing: what waits for it shows, to its own tenant alone, until it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn windows_show_what_is_not_acknowledged_and_since_when() {
    let fabric = Fabric::new();
    let global = Local::start(&fabric, GLOBAL).await;
    for node in [REGION_A, REGION_B] {
        fabric.point(node, global.at().bridge);
    }
    let a = Local::start(&fabric, REGION_A).await;
    let b = Process::start(&fabric, REGION_B);
    a.up("global-region-a").await;
    global.up("global-region-b").await;
    let anna = fabric.client(&b.at, "anna").await;
    let mut news = anna.subscribe("news", None).await.unwrap();
    a.knows_filters("tenantA", 1).await;
    let alice = fabric.client(a.at(), "alice").await;
    let publish = |text: &str| Publish { class: Some(Class::Ctrl), ..Publish::new("news", text.to_owned()) };
    alice.publish_with(publish("first")).await.unwrap();
    assert_eq!(message(&mut news).await.payload(), b"first");
    shows(&a, "edges", "an empty window", |report| report["windows"] == serde_json::json!([])).await;
    b.signal("STOP");
    alice.publish_with(publish("second")).await.unwrap();
    let report =
        shows(&a, "edges tenantA", "a window", |report| report["windows"][0]["oldest_ms"].as_u64() > Some(50)).await;
    let window = &report["windows"][0];
    assert_eq!((&window["tenant"], &window["class"]), (&"tenantA".into(), &"ctrl".into()));
    assert_eq!((&window["origin"], &window["target"]), (&REGION_A.into(), &REGION_B.into()));
    assert_eq!(window["unacknowledged"], 1);
    assert_eq!(window["unacknowledged_bytes"], window["in_flight_bytes"]);
    assert!(
        window["in_flight_bytes"].as_u64() >= Some(6) && window["window_bytes"].as_u64() >= Some(64 * 1024),
        "{window}"
    );
    let of_b = asked(&a, "edges tenantB").await;
    assert_eq!(of_b["windows"], serde_json::json!([]), "nothing of another tenant's");
    let text = printed(&a);
    assert!(text.contains("ctrl") && text.contains(REGION_B), "{text}");
    b.signal("CONT");
    shows(&a, "edges", "an empty window", |report| report["windows"] == serde_json::json!([])).await;
}

/// An edge that is shaped to little loses what its lane does not hold, and says of whom and why.
#[tokio::test(flavor = "multi_thread")]
async fn drops_of_an_edge_are_shown_by_tenant_class_and_reason() {
    /// More than a lane holds, in messages of this many bytes.
    const MESSAGES: usize = 24;
    const BYTES: usize = 512 * 1024;
    let fabric = Fabric::new();
    let global = Local::start(&fabric, GLOBAL).await;
    for node in [REGION_A, REGION_B] {
        fabric.point(node, global.at().bridge);
    }
    let file = fabric.config(REGION_A);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        text.replace("peer = \"global/broker-g\"", "peer = \"global/broker-g\"\nrate = \"1 Mbit/s\""),
    )
    .unwrap();
    let a = Local::start(&fabric, REGION_A).await;
    let b = Local::start(&fabric, REGION_B).await;
    a.up("global-region-a").await;
    b.up("global-region-b").await;
    let anna = fabric.client(b.at(), "anna").await;
    let _news = anna.subscribe("bulky", None).await.unwrap();
    a.knows_filters("tenantA", 1).await;
    let alice = fabric.client(a.at(), "alice").await;
    for _ in 0..MESSAGES {
        let publish = Publish { class: Some(Class::Tele), ..Publish::new("bulky", vec![7u8; BYTES]) };
        alice.publish_with(publish).await.unwrap();
    }
    let lost = |report: &Value| report["edges"][0]["drops"][0]["frames"].as_u64() > Some(0);
    let report = shows(&a, "edges tenantA", "drops", lost).await;
    let edge = &report["edges"][0];
    let loss = &edge["drops"][0];
    assert_eq!(
        (&loss["tenant"], &loss["class"], &loss["reason"]),
        (&"tenantA".into(), &"tele".into(), &"lane-full".into())
    );
    assert!(edge["lanes"].as_array().unwrap().iter().any(|lane| lane["class"] == "tele"), "{edge}");
    assert_eq!(asked(&a, "edges tenantB").await["edges"][0]["drops"], serde_json::json!([]));
    let labels = ["edge=\"global-region-a\"", "tenant=\"tenantA\"", "class=\"tele\"", "reason=\"lane-full\""];
    assert!(a.metric("glocal_edge_dropped_total", &labels).await > 0);
    let text = printed(&a);
    assert!(text.contains("lane-full"), "{text}");
}
