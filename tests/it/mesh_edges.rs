//! Edges that carry some tenants: what the others say never crosses, seen at both ends and on the wire between them.

use glocal_client::Publish;
use glocal_core::name::Class;

use crate::support::bridge::{Hostile, Opening, everything};
use crate::support::fabric::{Fabric, Shape};
use crate::support::node::{GLOBAL, Local, Mesh, REGION_A};
use crate::support::{arrived, eventually, message};

const MANY: u64 = 50;

/// Messages of a tenant that may not cross, each beside one that may: `GLOCAL_EDGE_MESSAGES`, or a thousand.
fn many_more() -> u64 {
    std::env::var("GLOCAL_EDGE_MESSAGES").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_without_a_tenant_carries_none_of_its_frames() {
    // The edge to region b carries tenantA and nobody else.
    let fabric = Fabric::shaped(&Shape { edge_tenants: ["\"*\"", "\"tenantA\""], ..Shape::default() });
    let mesh = Mesh::start(&fabric).await;
    let anna = fabric.client(mesh.b.at(), "anna").await;
    let berta = fabric.client(mesh.b.at(), "berta").await;
    let mut of_anna = anna.subscribe("orders", None).await.unwrap();
    let mut of_berta = berta.subscribe("orders", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 1).await;
    let (alice, bob) = (fabric.client(mesh.a.at(), "alice").await, fabric.client(mesh.a.at(), "bob").await);
    let far = fabric.client(mesh.global.at(), "admin").await;
    for number in 0..MANY {
        for class in Class::ALL {
            let publish = |text: String| Publish { class: Some(class), ..Publish::new("orders", text) };
            bob.publish_with(publish(format!("b {number}"))).await.unwrap();
            alice.publish_with(publish(format!("a {number}"))).await.unwrap();
        }
        far.publish("T.tenantB.live.orders", "from above").await.unwrap();
        berta.publish("elsewhere", "from below").await.unwrap();
    }
    for client in [&bob, &far, &berta] {
        client.flush().await.unwrap();
    }
    for _ in 0..4 * MANY {
        assert!(message(&mut of_anna).await.payload().starts_with(b"a "));
    }
    berta.flush().await.unwrap();
    assert_eq!(arrived(&mut of_berta), [""; 0]);
    // Nobody beyond is known to want anything of tenantB, so a request says so at once.
    mesh.global.knows_filters("tenantB", 0).await;
    let nobody = bob.request("orders", "", std::time::Duration::from_secs(15)).await.unwrap_err();
    assert!(matches!(nobody, glocal_client::RequestError::NoResponders(_)), "{nobody}");
    for (node, name) in [(&mesh.global, "glocal_relayed_out_total"), (&mesh.b, "glocal_relayed_in_total")] {
        assert_eq!(node.metric(name, &["tenant=\"tenantB\""]).await, 0, "{name}");
        assert!(node.metric(name, &["tenant=\"tenantA\""]).await >= 4 * MANY, "{name}");
    }
    assert_eq!(mesh.b.metric("glocal_relayed_out_total", &["tenant=\"tenantB\""]).await, 0);
    for node in [&mesh.global, &mesh.b] {
        assert_eq!(node.edge("global-region-b").edge().refused.value(), 0, "nothing had to be refused");
        assert_eq!(node.edge("global-region-b").edge().effective().len(), 1);
    }
    // The other edge carries both.
    assert_eq!(mesh.a.edge("global-region-a").edge().effective().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn local_configuration_narrows_and_never_widens() {
    // The bundle allows both on both edges, region a's own file only tenantA; and where the bundle allows one, '*' is one.
    for (edges, own, expected) in [
        (["\"*\"", "\"*\""], "tenants = [\"tenantA\"]", 1),
        (["\"tenantA\"", "\"*\""], "tenants = [\"*\"]", 1),
        (["\"tenantA\"", "\"*\""], "tenants = [\"tenantB\"]", 0),
    ] {
        let fabric = Fabric::shaped(&Shape { edge_tenants: edges, ..Shape::default() });
        let file = fabric.config(REGION_A);
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<_> = text.lines().map(|line| if line.starts_with("tenants = ") { own } else { line }).collect();
        std::fs::write(&file, lines.join("\n")).unwrap();
        let global = Local::start(&fabric, GLOBAL).await;
        fabric.point(REGION_A, global.at().bridge);
        let a = Local::start(&fabric, REGION_A).await;
        for node in [&a, &global] {
            node.up("global-region-a").await;
            assert_eq!(node.edge("global-region-a").edge().effective().len(), expected, "{own} at {}", node.at().node);
        }
    }
}

/// Case RB-31.
#[tokio::test(flavor = "multi_thread")]
async fn on_the_wire_there_is_not_a_byte_of_a_tenant_that_is_not_allowed() {
    // The test is the other end of the edge, claims to allow everybody and asks for everything.
    for (edges, carried) in [(["\"tenantA\"", "\"*\""], false), (["\"*\"", "\"*\""], true)] {
        let fabric = Fabric::shaped(&Shape { edge_tenants: edges, ..Shape::default() });
        let global = Local::start(&fabric, GLOBAL).await;
        let opening = Opening { node: REGION_A, edge: "global-region-a", tenants: &["tenantA", "tenantB"] };
        let mut far = Hostile::open(&fabric, GLOBAL, global.at().bridge, &opening).await;
        for tenant in ["tenantA", "tenantB"] {
            far.lane(tenant, Class::Ctrl, &everything(tenant)).await;
        }
        global.knows_present("tenantA", 1).await;
        global.knows_present("tenantB", usize::from(carried)).await;
        let admin = fabric.client(global.at(), "admin").await;
        for tenant in ["tenantB", "tenantA"] {
            for _ in 0..MANY {
                admin.publish(&format!("T.{tenant}.bulk.plans"), vec![0; 1000]).await.unwrap();
            }
        }
        let bytes = |tenant: &str, class| far.heard.lock().unwrap().get(&(tenant.to_owned(), class)).copied();
        let all = usize::try_from(MANY * 1000).unwrap();
        eventually("tenantA's messages", || bytes("tenantA", Class::Bulk).filter(|n| *n >= all)).await;
        if carried {
            eventually("tenantB's messages", || bytes("tenantB", Class::Bulk).filter(|n| *n >= all)).await;
        } else {
            let before = bytes("tenantA", Class::Live).unwrap_or(0);
            for _ in 0..many_more() {
                admin.publish("T.tenantB.live.plans", [7; 16]).await.unwrap();
                admin.publish("T.tenantA.live.plans", [7; 16]).await.unwrap();
            }
            admin.flush().await.unwrap();
            eventually("tenantA's messages", || bytes("tenantA", Class::Live).filter(|n| *n > before)).await;
            for class in Class::ALL {
                assert_eq!(bytes("tenantB", class), None, "not even an empty lane of {class}");
            }
        }
    }
}
