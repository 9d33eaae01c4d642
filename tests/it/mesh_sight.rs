//! What brokers tell operators of edges and routes: the truth, by tenant, and in a form for people.

use std::process::Command;

use serde_json::Value;

use crate::support::fabric::{Fabric, Shape};
use crate::support::node::{GLOBAL, Mesh, REGION_A, REGION_B, ask};

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
