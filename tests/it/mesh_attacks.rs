//! Attacks by clients with genuine certificates of their own tenant (attacks 1, 2, 5 to 8, 14, 16, 17, 25, 27, 31).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use glocal_client::{ConnectError, Publish, PublishError, RequestError, Scheme, SubscribeError};
use glocal_core::name::Class;
use glocal_wire::control::{Control, Denied, Ping, Subscribe};

use crate::support::fabric::{Credential, Fabric, Shape};
use crate::support::node::{Local, Mesh, Process, REGION_A, ask, http};
use crate::support::peer::{NATIVE, Peer, tls_of};
use crate::support::{arrived, message, soon};

async fn peer(fabric: &Fabric, node: &Local, agent: &str) -> Peer {
    let tls = tls_of(fabric, Some(&fabric.agent(agent)), NATIVE);
    let mut peer = Peer::tcp(node.at().native_tcp, tls).await.unwrap();
    peer.hello().await.unwrap();
    peer
}

/// Publishes, and returns the code of the refusal, if it was refused.
async fn publish(peer: &mut Peer, name: &[u8], reply: &[u8]) -> Option<Denied> {
    peer.publish(Class::Live, name, reply, b"attack").await;
    peer.send(Ping { token: 99 }).await.unwrap();
    let mut denied = None;
    loop {
        match peer.control().await {
            Control::Denied(refusal) => denied = Some(refusal),
            Control::Pong(_) => return denied,
            Control::NoResponders(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn subscribe(peer: &mut Peer, filter: &str) -> Result<(), Denied> {
    static SIDS: AtomicU32 = AtomicU32::new(100);
    match peer.subscribe(SIDS.fetch_add(1, Ordering::Relaxed), filter).await {
        Control::Subscribed(_) => Ok(()),
        Control::Denied(denied) => Err(denied),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_1_and_17_no_name_reaches_another_tenant() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let (bob, admin) = (fabric.client(node.at(), "bob").await, fabric.client(node.at(), "chief").await);
    let mut of_bob = bob.subscribe("T.tenantB.>", None).await.unwrap();
    let mut of_all = admin.subscribe("T.*.*.>", None).await.unwrap();
    let mut alice = peer(&fabric, &node, "alice").await;
    for (name, code) in [
        ("T.tenantA.live.x,T.tenantB.live.y", "composite-destination"),
        ("T.tenantB.live.y,T.tenantA.live.x", "composite-destination"),
        ("T.tenantB.live.x", "cross-tenant"),
        ("T.tenantB.ctrl.x", "cross-tenant"),
        ("T.cresco-system.live.x", "cross-tenant"),
        ("T.nobody.live.x", "cross-tenant"),
        ("T.tenantA.live.T.tenantB.live.y", "malformed-name"),
        ("T.tenantA.x", "malformed-name"),
        ("T.tenantA.fast.x", "unknown-class"),
        ("T", "malformed-name"),
        ("T.", "malformed-name"),
        ("T..live.x", "malformed-name"),
        ("T.tenantB .live.x", "malformed-name"),
        ("T. tenantB.live.x", "malformed-name"),
        ("T.ténantB.live.x", "malformed-name"),
        ("T.*.live.x", "malformed-name"),
        ("T.>", "malformed-name"),
        ("", "no-destination"),
        (".", "malformed-name"),
        ("a..b", "malformed-name"),
        (" T.tenantB.live.x", "malformed-name"),
        ("\u{a0}T.tenantB.live.x", "malformed-name"),
        ("a b", "malformed-name"),
        ("a\nb", "malformed-name"),
        ("a\0b", "malformed-name"),
    ] {
        let denied =
            publish(&mut alice, name.as_bytes(), b"").await.unwrap_or_else(|| panic!("{name:?} was let through"));
        assert_eq!(denied.code, code, "{name:?}");
        assert!(!denied.text.contains("tenantB"), "the answer names nobody else: {}", denied.text);
    }
    assert_eq!(publish(&mut alice, b"\xff\xfe", b"").await.unwrap().code, "malformed-name");
    // Names that look like it are literal names of the own tenant.
    let literal = [
        "t.tenantB.live.y",
        "x.T.tenantB.live.y",
        "a,T.tenantB.live.y",
        "Tx.tenantB.live.y",
        "a.*.b",
        "a.>",
        "T-tenantB",
    ];
    for name in literal {
        assert_eq!(publish(&mut alice, name.as_bytes(), b"").await, None, "{name:?}");
    }
    bob.flush().await.unwrap();
    admin.flush().await.unwrap();
    assert_eq!(arrived(&mut of_bob), [""; 0]);
    let expected: Vec<_> = literal.iter().map(|name| format!("T.tenantA.live.{name}")).collect();
    assert_eq!(arrived(&mut of_all), expected);
    let denied = node.metric("glocal_denied_total", &["tenant=\"tenantA\"", "access=\"write\""]).await;
    assert_eq!(denied, 26, "each refusal is counted under the tenant that tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_2_no_filter_reaches_another_tenant() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let mut alice = peer(&fabric, &node, "alice").await;
    for (filter, code) in [
        ("T.tenantA.live.x,T.tenantB.live.>", "composite-destination"),
        ("T.tenantB.>", "cross-tenant"),
        ("T.tenantB.*.>", "cross-tenant"),
        ("T.tenantB.live.x", "cross-tenant"),
        ("T.nobody.live.x", "cross-tenant"),
        ("T.*.live.>", "all-tenants"),
        ("T.*.*.>", "all-tenants"),
        ("T.*.>", "all-tenants"),
        ("T.>", "all-tenants"),
        ("T.tenant*.live.x", "malformed-name"),
        ("T.tenantA.live.T.tenantB.>", "malformed-name"),
        ("T", "malformed-name"),
        ("", "no-destination"),
        ("a..>", "malformed-name"),
        (">.a", "malformed-name"),
    ] {
        let denied = subscribe(&mut alice, filter).await.expect_err(filter);
        assert_eq!(denied.code, code, "{filter:?}");
    }
    // A queue group is no way around a rule, and has no grammar of names.
    for (filter, queue) in [("T.tenantB.>", "g"), ("T.*.*.>", "T.tenantA")] {
        let body = Subscribe { sid: 7, filter: filter.to_owned(), queue: Some(queue.to_owned()), local_only: true };
        alice.send(body).await.unwrap();
        assert!(matches!(alice.control().await, Control::Denied(_)), "{filter} in {queue}");
    }
    // The widest filter of one's own sees one's own.
    subscribe(&mut alice, ">").await.unwrap();
    let bob = fabric.client(node.at(), "bob").await;
    for name in ["x", "T.tenantB.ctrl.x", "a.b.c"] {
        bob.publish(name, "secret").await.unwrap();
    }
    bob.flush().await.unwrap();
    let andy = fabric.client(node.at(), "andy").await;
    andy.publish("x", "ours").await.unwrap();
    assert_eq!(alice.message().await, ("x".to_owned(), b"ours".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_5_tenants_whose_names_nest_are_strangers() {
    let more = "\n[[tenant]]\nid = \"acme\"\nregions = [\"region-a\"]\n[[tenant]]\nid = \"acme-eu\"\nregions = [\"region-a\"]\n\
                [[tenant]]\nid = \"Acme\"\nregions = [\"region-a\"]\n[[tenant]]\nid = \"acme_\"\nregions = [\"region-a\"]\n";
    let fabric = Fabric::shaped(&Shape { more, ..Shape::default() });
    let node = Local::start(&fabric, REGION_A).await;
    let forge = fabric.forge("region-a");
    let agent = glocal_core::name::Label::parse("a").unwrap();
    let credential = |tenant: &str| {
        let tenant = glocal_core::name::TenantId::parse(tenant).unwrap();
        Credential::from(forge.leaf(&tenant, &agent, glocal_fabric::testing::Oddity::None).unwrap())
    };
    let names = ["acme", "acme-eu", "Acme", "acme_"];
    let mut clients = Vec::new();
    for name in names {
        clients.push(fabric.try_client(node.at(), Scheme::Tls, Some(&credential(name))).await.unwrap());
    }
    let mut subscriptions = Vec::new();
    for client in &clients {
        subscriptions.push(client.subscribe(">", None).await.unwrap());
    }
    for (client, own) in clients.iter().zip(names) {
        assert_eq!(client.whoami().tenant, own, "the tenant is exactly the O");
        client.publish("hello", own).await.unwrap();
        for other in names.iter().chain(&["acme.eu", "acme ", "ACME"]).filter(|other| **other != own) {
            let publish = Publish { ack: true, ..Publish::new(format!("T.{other}.live.x"), "") };
            let refused = client.publish_with(publish).await.unwrap_err();
            assert!(matches!(refused, PublishError::Denied(_)), "{own} to {other:?}: {refused:?}");
            let refused = client.subscribe(&format!("T.{other}.live.>"), None).await.unwrap_err();
            assert!(matches!(refused, SubscribeError::Denied(_)), "{own} of {other:?}: {refused:?}");
        }
    }
    for (subscription, own) in subscriptions.iter_mut().zip(names) {
        assert_eq!(message(subscription).await.payload(), own.as_bytes());
    }
    for (client, subscription) in clients.iter().zip(&mut subscriptions) {
        client.flush().await.unwrap();
        assert_eq!(arrived(subscription), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_6_what_is_foreign_looks_like_what_is_missing() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let bob = fabric.client(node.at(), "bob").await;
    let _secret = bob.subscribe("secret.plans", None).await.unwrap();
    bob.publish("secret.plans", "x").await.unwrap();
    bob.flush().await.unwrap();
    let mut alice = peer(&fabric, &node, "alice").await;
    let same = |foreign: Denied, missing: Denied| {
        let neutral =
            |denied: Denied, name: &str| Denied { id: 0, subject: denied.subject.replace(name, "?"), ..denied };
        assert_eq!(neutral(foreign, "tenantB"), neutral(missing, "tenantX"));
    };
    for rest in ["live.secret.plans", "ctrl.advisory.x", "live.inbox.region-a.bob", "bulk._INBOX.x"] {
        let foreign = publish(&mut alice, format!("T.tenantB.{rest}").as_bytes(), b"").await.unwrap();
        let missing = publish(&mut alice, format!("T.tenantX.{rest}").as_bytes(), b"").await.unwrap();
        same(foreign, missing);
        let foreign = subscribe(&mut alice, &format!("T.tenantB.{rest}")).await.unwrap_err();
        let missing = subscribe(&mut alice, &format!("T.tenantX.{rest}")).await.unwrap_err();
        same(foreign, missing);
    }
    // Subjects that elsewhere tell of everybody are ordinary names of one's own tenant here.
    for filter in ["$SYS.>", "$SYS.ACCOUNT.tenantB.>", "advisory.>", "_INBOX.>", "metrics.>"] {
        subscribe(&mut alice, filter).await.unwrap();
    }
    bob.publish("$SYS.x", "x").await.unwrap();
    bob.flush().await.unwrap();
    alice.send(Ping { token: 1 }).await.unwrap();
    assert!(matches!(alice.control().await, Control::Pong(_)), "nothing of another tenant came before it");
    // Metrics are the operators': not on the ports of clients, and the operators' port speaks no native protocol.
    let ops = node.at().ops.unwrap();
    let (status, body) = tokio::task::spawn_blocking(move || http(ops, "/metrics").unwrap()).await.unwrap();
    assert_eq!(status, 200);
    assert!(body.contains("tenant=\"tenantB\""));
    assert!(Peer::tcp(ops, tls_of(&fabric, Some(&fabric.agent("alice")), NATIVE)).await.is_err());
    let socket = node.at().socket.clone();
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "the operators' socket is the operator's alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_6_the_operator_of_a_tenant_sees_that_tenant() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    for agent in ["alice", "bob"] {
        let client = fabric.client(node.at(), agent).await;
        client.publish("x", "x").await.unwrap();
        client.flush().await.unwrap();
    }
    let socket = node.at().socket.clone();
    let asked = |request: &'static str| {
        let socket = socket.clone();
        tokio::task::spawn_blocking(move || ask(&socket, request).unwrap())
    };
    let of_a = asked("status tenantA").await.unwrap();
    let tenants: Vec<_> = of_a["tenants"].as_array().unwrap().iter().map(|t| t["tenant"].as_str().unwrap()).collect();
    assert_eq!(tenants, ["tenantA"]);
    assert!(!of_a.to_string().contains("tenantB"), "{of_a}");
    let (missing, other) = (asked("status tenantX").await.unwrap(), asked("delete tenantA").await.unwrap());
    assert!(missing["error"].is_string() && other["error"].is_string(), "{missing} {other}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_7_and_25_without_a_good_certificate_there_is_no_session() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    for scheme in [Scheme::Tls, Scheme::Quic] {
        let mut options = fabric.options(node.at(), scheme, None);
        options.client_name = "cresco-system".to_owned();
        let refused = glocal_client::Client::connect(options).await.unwrap_err();
        assert!(matches!(refused, ConnectError::RefusedCertificate { .. }), "{refused:?}");
    }
    assert_eq!(node.metric("glocal_sessions_opened_total", &[]).await, 0);
    node.0.leave().await;
    // With an anonymous tenant, no certificate is that tenant, and a bad one is still refused.
    let define = [("broker_require_client_auth", "false"), ("anonymous_tenant", "guests")];
    let node = Local::start_with(&fabric, REGION_A, &define).await;
    let tenant = glocal_core::name::TenantId::parse("tenantA").unwrap();
    let guests = glocal_core::name::TenantId::parse("guests").unwrap();
    let agent = glocal_core::name::Label::parse("mallory").unwrap();
    let region = glocal_core::name::Label::parse("region-a").unwrap();
    let fabric_name = glocal_core::name::Label::parse("trial").unwrap();
    use glocal_fabric::testing::{Forge, Oddity};
    let foreign = Forge::foreign(&fabric_name, &region).unwrap();
    let bad: Vec<(&str, Credential)> = vec![
        ("expired", fabric.forge("region-a").leaf(&tenant, &agent, Oddity::Expired).unwrap().into()),
        ("foreign", foreign.leaf(&tenant, &agent, Oddity::None).unwrap().into()),
        ("foreign, of the anonymous tenant", foreign.leaf(&guests, &agent, Oddity::None).unwrap().into()),
        ("of the anonymous tenant", fabric.forge("region-a").leaf(&guests, &agent, Oddity::None).unwrap().into()),
        ("without a tenant", fabric.forge("region-a").leaf(&tenant, &agent, Oddity::NoTenant).unwrap().into()),
        ("a broker's", fabric.node_credential("global/broker-g")),
    ];
    for scheme in [Scheme::Tls, Scheme::Quic] {
        let guest = fabric.try_client(node.at(), scheme, None).await.unwrap();
        let who = guest.whoami();
        assert_eq!((who.tenant.as_str(), who.role.as_str(), &who.agent), ("guests", "TENANT", &None));
        let refused = guest.subscribe("T.tenantA.>", None).await.unwrap_err();
        assert!(matches!(refused, SubscribeError::Denied(_)), "{refused:?}");
        for (what, credential) in &bad {
            let refused = fabric.try_client(node.at(), scheme, Some(credential)).await;
            assert!(refused.is_err(), "{what}: {:?} was let in", refused.map(|c| c.whoami()));
        }
        let alice = fabric.try_client(node.at(), scheme, Some(&fabric.agent("alice"))).await.unwrap();
        assert_eq!(alice.whoami().tenant, "tenantA");
    }
    assert_eq!(node.metric("glocal_sessions_opened_total", &[]).await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_8_and_16_nothing_in_a_message_names_its_tenant() {
    let fabric = Fabric::new();
    let mesh = Mesh::start(&fabric).await;
    let (anna, berta) = (fabric.client(mesh.b.at(), "anna").await, fabric.client(mesh.b.at(), "berta").await);
    let mut of_anna = anna.subscribe(">", None).await.unwrap();
    let mut of_berta = berta.subscribe(">", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 1).await;
    let alice = fabric.client(mesh.a.at(), "alice").await;
    let mut publish = Publish::new("claims", "{\"tenant\":\"tenantB\",\"cresco_tenant\":\"tenantB\"}");
    for (name, value) in [("cresco_tenant", "tenantB"), ("Nats-Subject", "T.tenantB.live.x"), ("role", "superuser")] {
        publish.headers.add(name, value).unwrap();
    }
    alice.publish_with(publish).await.unwrap();
    let message = message(&mut of_anna).await;
    assert_eq!((message.subject(), message.sender()), ("claims", Some("region-a/alice")));
    // A reply subject is a name of one's own tenant, or the message is refused.
    let mut raw = peer(&fabric, &mesh.a, "alice").await;
    for reply in ["T.tenantB.live.x", "T.tenantA.live.x", "T.tenantA.live.x,T.tenantB.live.y", "a b", "a..b"] {
        let denied = self::publish(&mut raw, b"service", reply.as_bytes()).await;
        assert!(denied.is_some(), "{reply}");
    }
    anna.flush().await.unwrap();
    berta.flush().await.unwrap();
    assert_eq!(arrived(&mut of_anna), [""; 0]);
    assert_eq!(arrived(&mut of_berta), [""; 0]);
    // A responder of another tenant on the same reply subject cannot answer in its place.
    let mut service = anna.subscribe("service", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 2).await;
    let asking = tokio::spawn({
        let alice = alice.clone();
        async move { alice.request("service", "q", Duration::from_secs(15)).await }
    });
    let request = soon("the request", service.next()).await.unwrap();
    let inbox = request.reply().unwrap().to_owned();
    let bob = fabric.client(mesh.a.at(), "bob").await;
    bob.publish(&inbox, "forged").await.unwrap();
    berta.publish(&inbox, "forged").await.unwrap();
    bob.flush().await.unwrap();
    berta.flush().await.unwrap();
    request.respond("true").await.unwrap();
    assert_eq!(asking.await.unwrap().unwrap().payload(), b"true");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_14_replies_are_their_owners_alone() {
    let fabric = Fabric::shaped(&Shape { owner_only: true, ..Shape::default() });
    let node = Local::start(&fabric, REGION_A).await;
    let alice = fabric.client(node.at(), "alice").await;
    assert_eq!(alice.whoami().inbox, "_INBOX.region-a.alice.");
    let mut andy = peer(&fabric, &node, "andy").await;
    for filter in [
        "_INBOX.region-a.alice.>",
        "_INBOX.region-a.alice.x",
        "_INBOX.>",
        "_INBOX.*.alice.>",
        "_INBOX.region-a.*.>",
        "_INBOX.*.*.*.*",
        "T.tenantA.live._INBOX.region-a.alice.>",
        "inbox.region-a.alice",
        "inbox.region-a.alice.>",
    ] {
        let denied = subscribe(&mut andy, filter).await.expect_err(filter);
        assert!(["reply-owner", "inbox-owner"].contains(&denied.code.as_str()), "{filter}: {}", denied.code);
    }
    // A filter that is wider than inboxes is allowed, and does not see them.
    for filter in [">", "*.region-a.>", "*.*.*.*.*", "*.*.*"] {
        subscribe(&mut andy, filter).await.unwrap();
    }
    let server = fabric.client(node.at(), "andy").await;
    let mut service = server.subscribe("service", None).await.unwrap();
    let serve = tokio::spawn(async move {
        let request = service.next().await.unwrap();
        request.respond("answer").await.unwrap();
        server.publish("inbox.region-a.alice", "direct").await.unwrap();
        server.flush().await.unwrap();
    });
    let mut direct = alice.subscribe("inbox.region-a.alice", None).await.unwrap();
    let reply = alice.request("service", "q", Duration::from_secs(15)).await.unwrap();
    assert_eq!(reply.payload(), b"answer");
    assert_eq!(soon("direct", direct.next()).await.unwrap().payload(), b"direct");
    serve.await.unwrap();
    alice.publish("mark.x.y", "mark").await.unwrap();
    loop {
        let (name, _) = andy.message().await;
        if name == "mark.x.y" {
            break;
        }
        assert_eq!(name, "service", "andy saw what is not his");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_31_advisories_are_the_nodes() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let alice = fabric.client(node.at(), "alice").await;
    let mut seen = alice.subscribe("T.tenantA.ctrl.advisory.>", None).await.unwrap();
    for (agent, tenant, code) in [
        ("alice", "tenantA", "advisory-write"),
        ("andy", "tenantA", "advisory-write"),
        ("bob", "tenantA", "cross-tenant"),
        ("chief", "cresco-system", "advisory-write"),
        ("chief", "tenantA", "cross-tenant"),
    ] {
        let mut peer = peer(&fabric, &node, agent).await;
        for name in [format!("T.{tenant}.ctrl.advisory.edge.up"), format!("T.{tenant}.ctrl.advisory")] {
            let denied = publish(&mut peer, name.as_bytes(), b"").await;
            assert_eq!(denied.map(|d| d.code).as_deref(), Some(code), "{agent}: {name}");
        }
    }
    // Nor in the class byte.
    let mut peer = peer(&fabric, &node, "alice").await;
    peer.publish(Class::Ctrl, b"advisory.edge.up", b"", b"x").await;
    assert!(matches!(peer.control().await, Control::Denied(d) if d.code == "advisory-write"));
    alice.flush().await.unwrap();
    while let Some(message) = seen.try_next() {
        assert!(![&b"attack"[..], b"x"].contains(&message.payload()), "{}", message.subject());
    }
}

#[test]
fn attack_27_names_cannot_forge_or_flood_the_log() {
    let fabric = Fabric::new();
    let node = Process::start_with(&fabric, REGION_A, &[("log_format", "text")], &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let tls = tls_of(&fabric, Some(&fabric.agent("alice")), NATIVE);
        let mut peer = Peer::tcp(node.at.native_tcp, tls).await.unwrap();
        peer.hello().await.unwrap();
        let forged =
            "T.tenantB.live.x\n2026-01-01T00:00:00.000000Z  INFO forged: session of superuser\r\x1b[2J\u{202e}\u{2028}";
        assert!(publish(&mut peer, forged.as_bytes(), b"").await.is_some());
        assert!(subscribe(&mut peer, forged).await.is_err());
        let long = format!("T.tenantB.live.{}", "y".repeat(900));
        assert!(publish(&mut peer, long.as_bytes(), b"").await.is_some());
        for number in 0..500 {
            assert!(publish(&mut peer, format!("T.tenantB.live.flood{number}").as_bytes(), b"").await.is_some());
        }
        // Also in what a client calls itself.
        let tls = tls_of(&fabric, Some(&fabric.agent("andy")), NATIVE);
        let mut second = Peer::tcp(node.at.native_tcp, tls).await.unwrap();
        let name = "x\n2026-01-01T00:00:00.000000Z  INFO forged: y".to_owned();
        second.send(glocal_wire::control::Hello { client: name, ..crate::support::peer::hello() }).await.unwrap();
        let _ = second.control().await;
    });
    let log = node.log();
    assert!(log.lines().all(|line| line.starts_with("20") && !line.starts_with("2026-01-01")), "{log}");
    assert!(log.contains("forged: session of superuser"), "it is told, escaped");
    assert!(log.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}' && c != '\u{2028}'), "{log:?}");
    let denials: Vec<_> = log.lines().filter(|line| line.contains("DENY")).collect();
    assert!(denials.iter().all(|line| line.len() < 1000), "{denials:?}");
    assert!(denials.len() < 200, "{} lines of one principal", denials.len());
    assert!(denials.iter().any(|line| line.contains("tenantA") && line.contains("cross-tenant namespaced dest")));
    assert!(denials.iter().all(|line| !line.contains("attack")), "payloads are never logged");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_superusers_only_observe() {
    let fabric = Fabric::new();
    let mesh = Mesh::start(&fabric).await;
    let admin = fabric.client(mesh.global.at(), "admin").await;
    let chief = fabric.client(mesh.a.at(), "chief").await;
    let _far = admin.subscribe("T.*.*.>", None).await.unwrap();
    let _near = chief.subscribe("T.tenantA.>", None).await.unwrap();
    let _queue = chief.subscribe("T.tenantA.live.service", Some("crew")).await;
    mesh.a.knows_filters("tenantA", 1).await;
    let alice = fabric.client(mesh.a.at(), "alice").await;
    let nobody = alice.request("service", "", Duration::from_secs(15)).await.unwrap_err();
    assert_eq!(nobody, RequestError::NoResponders("service".to_owned()), "an observer answers nothing");
    // Nor does it take a place in somebody else's queue group.
    let andy = fabric.client(mesh.a.at(), "andy").await;
    let mut member = andy.subscribe("service", Some("crew")).await.unwrap();
    for number in 0..20 {
        alice.publish("service", format!("{number}")).await.unwrap();
    }
    for number in 0..20 {
        assert_eq!(soon("work", member.next()).await.unwrap().payload(), format!("{number}").as_bytes());
    }
    // A superuser that reads nothing, while one publisher fills its lane, slows nobody.
    let tls = tls_of(&fabric, Some(&fabric.agent("chief")), NATIVE);
    let mut stuck = Peer::tcp(mesh.a.at().native_tcp, tls).await.unwrap();
    stuck.hello().await.unwrap();
    assert!(matches!(stuck.subscribe(1, "T.*.*.>").await, Control::Subscribed(_)));
    let mut reader = andy.subscribe("flood", None).await.unwrap();
    let block = vec![1; 64 * 1024];
    for number in 0..600u32 {
        let payload = [&number.to_le_bytes()[..], &block].concat();
        let publish = Publish { class: Some(Class::Ctrl), ack: true, ..Publish::new("flood", payload) };
        soon("an acknowledgement", alice.publish_with(publish)).await.unwrap();
        let got = soon("the message", reader.next()).await.unwrap();
        assert_eq!(got.payload()[..4], number.to_le_bytes());
    }
    assert!(mesh.a.metric("glocal_published_total", &["tenantA", "ctrl"]).await >= 600);
    // What it missed is counted, and its session stands: observers are not cut for being slow.
    assert!(mesh.a.metric("glocal_dropped_total", &["tenant=\"tenantA\"", "reason=\"lane-full\""]).await > 0);
    assert_eq!(mesh.a.0.context().counters.sessions.value(), 4);
}
