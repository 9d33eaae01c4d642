//! The life of brokers and bridges: restarts, states of an edge that is down, certificates that end, and leaving.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use glocal_client::{Event, Publish, Scheme, Subscription};
use glocal_core::name::{Class, Label, TenantId};
use glocal_fabric::pki::LeafKind;
use glocal_fabric::testing::{Forge, Oddity};
use glocal_node::edge_status::Failure;
use glocal_wire::control::Control;

use crate::support::fabric::{Credential, Fabric, Shape};
use crate::support::node::{GLOBAL, Local, Mesh, Process, REGION_A, REGION_B, ask, http};
use crate::support::peer::{BRIDGE, NATIVE, Peer, tls_of};
use crate::support::{eventually, eventually_blocking, soon};

fn node_kind() -> LeafKind {
    LeafKind::Node { hosts: vec!["localhost".to_owned(), "127.0.0.1".to_owned()] }
}

async fn payload(subscription: &mut Subscription) -> String {
    let message = soon("a message", subscription.next()).await.unwrap();
    String::from_utf8(message.payload().to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_global_comes_back_and_interest_with_it() {
    let fabric = Fabric::new();
    let (a, b, anna, mut news, alice, port);
    let mut global = Process::start(&fabric, GLOBAL);
    port = global.at.bridge.port().to_string();
    for node in [REGION_A, REGION_B] {
        fabric.point(node, global.at.bridge);
    }
    a = Local::start(&fabric, REGION_A).await;
    b = Local::start(&fabric, REGION_B).await;
    a.up("global-region-a").await;
    b.up("global-region-b").await;
    anna = fabric.client(b.at(), "anna").await;
    news = anna.subscribe("news", None).await.unwrap();
    a.knows_filters("tenantA", 1).await;
    alice = fabric.client(a.at(), "alice").await;
    let mut later = Vec::new();
    for round in 0..3 {
        let text = format!("round {round}");
        let publish = Publish { class: Some(Class::Ctrl), ack: true, ..Publish::new("news", text.clone()) };
        alice.publish_with(publish).await.unwrap();
        assert_eq!(payload(&mut news).await, text);
        global.kill();
        for node in [(&a, "global-region-a"), (&b, "global-region-b")] {
            let state = || node.0.edge(node.1).state();
            eventually("nobody there", || (state().failure == Some(Failure::NobodyThere)).then_some(())).await;
            assert!(!node.0.edge(node.1).edge().is_up());
        }
        let status = tokio::task::spawn_blocking({
            let socket = a.at().socket.clone();
            move || ask(&socket, "status").unwrap()
        });
        let status = status.await.unwrap();
        assert_eq!(status["edges"][0]["state"], "nobody-there");
        assert_eq!(status["edges"][0]["up"], false);
        // Clients of the regions do not notice: they reach each other, and nobody beyond.
        assert_eq!(alice.statistics().reconnects, 0);
        global = Process::start_with(&fabric, GLOBAL, &[("bridge_port", &port)], &[]);
        a.up("global-region-a").await;
        b.up("global-region-b").await;
        eventually_blocking("the global to say up", || {
            (global.edge_state("global-region-a") == "up" && global.edge_state("global-region-b") == "up").then_some(())
        });
        // What region a remembers may still be from before; a new filter comes with all that is told anew.
        later.push(anna.subscribe(&format!("later.{round}"), None).await.unwrap());
        a.knows_filters("tenantA", 1 + later.len()).await;
    }
    alice.publish("news", "last").await.unwrap();
    assert_eq!(payload(&mut news).await, "last", "and no message came twice");
    assert!(news.try_next().is_none());
    assert_eq!(a.edge("global-region-a").ups.value(), 4);
}

/// A QUIC server on a bridge's protocol with a certificate of the test's choice.
fn impostor(credential: &Credential) -> (quinn::Endpoint, SocketAddr) {
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(credential.chain.clone(), credential.key.clone_key())
        .unwrap();
    tls.alpn_protocols = vec![BRIDGE.to_vec()];
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(std::sync::Arc::new(crypto));
    let endpoint = quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
    let at = endpoint.local_addr().unwrap();
    let accepting = endpoint.clone();
    tokio::spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            tokio::spawn(async move {
                if let Ok(connection) = incoming.await {
                    let _ = connection.accept_bi().await;
                    connection.closed().await;
                }
            });
        }
    });
    (endpoint, at)
}

/// RB-45: wrong CA, expired, wrong name and nobody there are states of their own in `status` and metrics. How often an edge
/// is tried, and what the log says of it: `an_edge_that_stays_down_is_tried_less_and_less_and_logged_once`; the jitter and
/// the cap: `pauses_double_up_to_a_cap_and_are_jittered`.
#[tokio::test(flavor = "multi_thread")]
async fn why_an_edge_is_down_has_a_state_of_its_own() {
    let fabric = Fabric::new();
    let tenant = TenantId::parse("operator").unwrap();
    let (trial, global, region_a) =
        (Label::parse("trial").unwrap(), Label::parse("global").unwrap(), Label::parse("region-a").unwrap());
    let foreign = Forge::foreign(&trial, &global).unwrap();
    let agent = |name: &str| Label::parse(name).unwrap();
    let cases: Vec<(&str, Option<Credential>, Failure)> = vec![
        ("nobody", None, Failure::NobodyThere),
        (
            "of another fabric",
            Some(foreign.leaf(&tenant, &agent("broker-g"), Oddity::NodeName).unwrap().into()),
            Failure::WrongCa,
        ),
        ("expired", Some(fabric.short_lived("global", "operator", "broker-g", node_kind(), -30)), Failure::Expired),
        ("another broker", Some(fabric.node_credential(REGION_B)), Failure::WrongName),
        (
            "an agent that may serve",
            Some(fabric.forge("global").leaf(&tenant, &agent("broker-g"), Oddity::ServerAuth).unwrap().into()),
            Failure::WrongName,
        ),
        // Attack 20: an agent's certificate, which is not for serving at all.
        ("an agent", Some(fabric.agent("alice")), Failure::Refused),
        (
            "the right name by the wrong CA",
            Some(
                fabric
                    .forge("region-a")
                    .leaf_in(&tenant, &global, &agent("broker-g"), Oddity::NodeName)
                    .unwrap()
                    .into(),
            ),
            Failure::Refused,
        ),
    ];
    let _ = region_a;
    for (what, credential, expected) in cases {
        let server = credential.as_ref().map(impostor);
        let at = match &server {
            Some((_, at)) => *at,
            // A port that was free a moment ago.
            None => std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap(),
        };
        fabric.point(REGION_A, at);
        let node = Local::start(&fabric, REGION_A).await;
        let state =
            eventually(what, || Some(node.edge("global-region-a").state()).filter(|s| s.failure.is_some())).await;
        assert_eq!(state.failure, Some(expected), "{what}: {}", state.detail);
        assert!(!state.detail.is_empty());
        let label = format!("state=\"{}\"", expected.code());
        assert!(node.metric("glocal_edge_failures_total", &[&label]).await > 0, "{what}");
        let socket = node.at().socket.clone();
        let status = tokio::task::spawn_blocking(move || ask(&socket, "status").unwrap()).await.unwrap();
        assert_eq!(status["edges"][0]["state"], expected.code(), "{what}");
        assert_eq!(node.metric("glocal_edge_up", &[]).await, 0);
        node.0.leave().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_refused_side_of_a_dial_knows_why() {
    // The dialler's own certificate is over: the accepting broker refuses it, and the dialler says so.
    let fabric = Fabric::new();
    let global = Local::start(&fabric, GLOBAL).await;
    fabric.point(REGION_A, global.at().bridge);
    fabric.short_lived("region-a", "operator", "broker-a", node_kind(), 4).install(&fabric, REGION_A);
    let a = Local::start(&fabric, REGION_A).await;
    a.up("global-region-a").await;
    let up = Instant::now();
    // The live bridge ends with the certificate, and the next dial is refused for it.
    let down = || !a.edge("global-region-a").edge().is_up() && !global.edge("global-region-a").edge().is_up();
    eventually("the bridge to end with the certificate", || down().then_some(())).await;
    assert!(up.elapsed() < Duration::from_secs(4 + 5), "{:?}", up.elapsed());
    let expired = || a.edge("global-region-a").state().failure == Some(Failure::Expired);
    eventually("the reason", || expired().then_some(())).await;
    assert!(a.edge("global-region-a").state().detail.contains("expired"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_its_certificate() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let began = Instant::now();
    let short = fabric.short_lived("region-a", "tenantA", "brief", LeafKind::Agent, 3);
    let mut peers = [
        Peer::tcp(node.at().native_tcp, tls_of(&fabric, Some(&short), NATIVE)).await.unwrap(),
        Peer::quic(node.at().native_quic, tls_of(&fabric, Some(&short), NATIVE)).await.unwrap(),
    ];
    let steady = fabric.client(node.at(), "alice").await;
    for peer in &mut peers {
        peer.hello().await.unwrap();
        assert!(matches!(peer.subscribe(1, "x").await, Control::Subscribed(_)));
    }
    for peer in &mut peers {
        assert_eq!(peer.refused_with().await.as_deref(), Some("cert-expired"));
    }
    let took = began.elapsed();
    assert!(took > Duration::from_secs(2) && took < Duration::from_secs(3 + 5), "{took:?}");
    let refused = fabric.try_client(node.at(), Scheme::Tls, Some(&short)).await.unwrap_err();
    assert!(refused.to_string().contains("expired"), "{refused}");
    steady.flush().await.unwrap();
    assert_eq!(steady.statistics().reconnects, 0);
    eventually("its subscription to go", || (node.0.context().counters.sessions.value() == 1).then_some(())).await;
}

#[test]
fn a_broker_that_is_told_to_leave_says_goodbye_first() {
    let fabric = Fabric::new();
    let mut node = Process::start_with(&fabric, REGION_A, &[("lame_duck_ms", "1500")], &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (at, ops) = (node.at.clone(), node.at.ops.unwrap());
    assert_eq!(http(ops, "/readyz").unwrap().0, 200);
    assert_eq!(http(ops, "/healthz").unwrap(), (200, "ok\n".to_owned()));
    assert_eq!(http(ops, "/nothing").unwrap().0, 404);
    runtime.block_on(async {
        let tls = tls_of(&fabric, Some(&fabric.agent("alice")), NATIVE);
        let mut peers = [
            Peer::tcp(at.native_tcp, tls.clone()).await.unwrap(),
            Peer::quic(at.native_quic, tls.clone()).await.unwrap(),
        ];
        for peer in &mut peers {
            peer.hello().await.unwrap();
        }
        let client = fabric.client(&at, "andy").await;
        let mut events = client.events();
        node.signal("TERM");
        for peer in &mut peers {
            match peer.control().await {
                Control::Goodbye(goodbye) => {
                    assert_eq!(goodbye.code, "shutting-down");
                    assert!((750..=1500).contains(&goodbye.grace_ms), "{}", goodbye.grace_ms);
                }
                other => panic!("{other:?}"),
            }
            // Until the grace is over the session works.
            assert!(matches!(peer.subscribe(1, "x").await, Control::Subscribed(_)));
        }
        loop {
            let event = soon("an event", events.recv()).await.unwrap();
            if matches!(event, Event::Goodbye { .. }) {
                break;
            }
        }
        assert_eq!(tokio::task::spawn_blocking(move || http(ops, "/readyz").unwrap()).await.unwrap().0, 503);
        // Nobody new.
        let late = tokio::time::timeout(Duration::from_secs(5), Peer::tcp(at.native_tcp, tls)).await;
        assert!(!matches!(late, Ok(Ok(_))), "no new session");
        client.close().await;
    });
    let status = node.ended();
    assert_eq!(status.code(), Some(0), "{}", node.log());
    assert!(!fabric.node_dir(REGION_A).join("ready.json").exists());
    assert!(!fabric.node_dir(REGION_A).join("state/glocal.sock").exists());
    assert!(node.log().contains("stopped"));
}

#[test]
fn a_broker_that_is_told_twice_ends_at_once() {
    let fabric = Fabric::new();
    let mut node = Process::start_with(&fabric, REGION_A, &[("lame_duck_ms", "600000")], &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let tls = tls_of(&fabric, Some(&fabric.agent("alice")), NATIVE);
        let mut peer = Peer::tcp(node.at.native_tcp, tls).await.unwrap();
        peer.hello().await.unwrap();
        node.signal("INT");
        assert!(matches!(peer.control().await, Control::Goodbye(_)));
        assert!(node.child.try_wait().unwrap().is_none(), "it waits for its client");
        let told = Instant::now();
        node.signal("TERM");
        let status = node.ended();
        assert!(told.elapsed() < Duration::from_secs(3), "{:?}", told.elapsed());
        assert_eq!(status.code(), Some(0));
    });
    assert!(!fabric.node_dir(REGION_A).join("ready.json").exists());
    assert!(!fabric.node_dir(REGION_A).join("state/glocal.sock").exists());
}

#[test]
fn two_brokers_on_any_free_ports_and_the_status_of_one_tenant() {
    let fabric = Fabric::new();
    let global = Process::start(&fabric, GLOBAL);
    fabric.point(REGION_A, global.at.bridge);
    let a = Process::start(&fabric, REGION_A);
    let ports = |p: &Process| {
        let at = &p.at;
        [at.native_tcp.port(), at.native_quic.port(), at.bridge.port(), at.ops.unwrap().port()]
    };
    assert!(ports(&global).iter().chain(&ports(&a)).all(|port| *port != 0));
    eventually_blocking("the bridge", || (a.edge_state("global-region-a") == "up").then_some(()));
    eventually_blocking("the bridge", || (global.edge_state("global-region-a") == "up").then_some(()));
    assert_eq!(global.edge_state("global-region-b"), "connecting", "nobody has dialled it yet");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = fabric.client(&a.at, "alice").await;
        let _subscription = client.subscribe("x", None).await.unwrap();
        for number in 0..3 {
            client.publish("x", number.to_string()).await.unwrap();
        }
        client.flush().await.unwrap();
        let status = a.status().unwrap();
        assert_eq!(status["node"], "region-a/broker-a");
        assert_eq!(status["role"], "region");
        assert_eq!(status["fabric"], "trial");
        assert_eq!((&status["sessions"], &status["subscriptions"]), (&1.into(), &1.into()));
        assert_eq!(status["bundle"]["state"], "fresh");
        assert_eq!(status["edges"][0]["peer"], GLOBAL);
        let tenants = status["edges"][0]["tenants"].as_array().unwrap();
        assert!(tenants.contains(&"tenantA".into()) && tenants.contains(&"tenantB".into()), "{tenants:?}");
        let of_a = ask(&a.at.socket, "status tenantA").unwrap();
        assert_eq!(of_a["tenants"][0]["limits"], "none");
        let class = &of_a["tenants"][0]["classes"][0];
        assert_eq!((&class["class"], &class["published"], &class["delivered"]), (&"live".into(), &3.into(), &3.into()));
        assert_eq!(ask(&a.at.socket, "status tenantB").unwrap()["tenants"].as_array().unwrap().len(), 0);
    });
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_glocal"))
        .args(["status", "--tenant", "tenantA", "--socket"])
        .arg(&a.at.socket)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("tenantA") && !text.contains("tenantB"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_in_its_grace_takes_nobody_and_frees_its_ports() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let at = node.at().clone();
    node.0.leave().await;
    // The same ports again, at once, and the same state directory.
    let define = [("broker_port", at.native_tcp.port().to_string()), ("quic_port", at.native_quic.port().to_string())];
    let define: Vec<_> = define.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let again = Local::start_with(&fabric, REGION_A, &define).await;
    assert_eq!(again.at().native_tcp, at.native_tcp);
    let client = fabric.client(again.at(), "alice").await;
    client.flush().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_as_many_sessions_on_a_broker_as_its_section_allows() {
    let fabric = Fabric::shaped(&Shape { sessions_max: 2, ..Shape::default() });
    let node = Local::start(&fabric, REGION_A).await;
    let alice = fabric.client(node.at(), "alice").await;
    let andy = fabric.client(node.at(), "andy").await;
    let refused = fabric.try_client(node.at(), Scheme::Tls, Some(&fabric.agent("alice"))).await;
    assert!(refused.unwrap_err().to_string().contains("limit reached"));
    let over_quic = fabric.try_client(node.at(), Scheme::Quic, Some(&fabric.agent("alice"))).await;
    assert!(over_quic.is_err(), "whatever carries it");
    let bob = fabric.client(node.at(), "bob").await;
    bob.flush().await.unwrap();
    alice.flush().await.unwrap();
    andy.close().await;
    eventually("andy's place", || (node.0.context().counters.sessions.value() == 2).then_some(())).await;
    fabric.client(node.at(), "andy").await.flush().await.unwrap();
}

/// The disk of region a's broker is wiped and its clock goes back: it starts in a life that the fabric has seen the end of.
/// It exceeds that, and has its edges and traffic back; sessions stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_whose_disk_and_clock_went_back_exceeds_its_later_life() {
    /// An hour ahead of the clock, in milliseconds.
    const AHEAD_MS: u64 = 3_600_000;
    const EDGE: &str = "global-region-a";
    let fabric = Fabric::new();
    let state = fabric.node_dir(REGION_A).join("state");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("incarnation"), (glocal_node::state::unix_ms() + AHEAD_MS).to_string()).unwrap();
    let mesh = Mesh::start(&fabric).await;
    let known = mesh.a.0.context().shared.incarnation();
    mesh.global.knows_way_to(&mesh.a, "tenantA").await;
    let anna = fabric.client(mesh.b.at(), "anna").await;
    let mut news = anna.subscribe("news", None).await.unwrap();
    let Mesh { global, a, b } = mesh;
    a.0.leave().await;
    std::fs::remove_dir_all(&state).unwrap();
    fabric.point(REGION_A, crate::support::fabric::NO_PORT.parse().unwrap());
    let a = Local::start(&fabric, REGION_A).await;
    assert!(a.0.context().shared.incarnation() < known);
    let (alice, andy) = (fabric.client(a.at(), "alice").await, fabric.client(a.at(), "andy").await);
    let mut own = andy.subscribe("own", None).await.unwrap();
    let sessions = a.0.context().counters.sessions_opened.value();
    fabric.point(REGION_A, global.at().bridge);
    let report = a.0.context().reloader.reload(a.0.context()).await;
    assert!(report.is_whole(), "{report:?}");
    let since = Instant::now();
    eventually("a life above the one known", || (a.0.context().shared.incarnation() > known).then_some(())).await;
    let stored = std::fs::read_to_string(state.join("incarnation")).unwrap();
    assert_eq!(stored.trim().parse(), Ok(a.0.context().shared.incarnation()), "stored before it is used");
    a.up(EDGE).await;
    global.up(EDGE).await;
    a.knows_filters("tenantA", 1).await;
    let publish = |text: &str| Publish { class: Some(Class::Ctrl), ack: true, ..Publish::new("news", text.to_owned()) };
    alice.publish_with(publish("back")).await.unwrap();
    assert_eq!(payload(&mut news).await, "back");
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    alice.publish("own", "still here").await.unwrap();
    assert_eq!(payload(&mut own).await, "still here");
    assert_eq!(a.0.context().counters.sessions_opened.value(), sessions, "no session has noticed");
    assert_eq!(a.metric("glocal_lives_exceeded_total", &[]).await, 1);
    assert_eq!(global.metric("glocal_duplicate_nodes_total", &[]).await, 0);
    drop(b);
}

/// RB-45: the first failure is a warning with its reason; as long as nothing else happens it is counted and not said again.
#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_stays_down_is_tried_less_and_less_and_logged_once() {
    const EDGE_DIALS: &str = "glocal_edge_dials_total";
    let fabric = Fabric::new();
    // A port that was free a moment ago.
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    fabric.point(REGION_A, nobody);
    let node = Process::start(&fabric, REGION_A);
    let ops = node.at.ops.unwrap();
    let dials = || crate::support::node::metric(ops, EDGE_DIALS, &[]);
    let since = Instant::now();
    // It waits for an answer for a while each time.
    let first = eventually_blocking("the first attempt to fail", || {
        (crate::support::node::metric(ops, "glocal_edge_failures_total", &["nobody-there"]) > 0)
            .then(|| since.elapsed())
    });
    eventually_blocking("further attempts", || (dials() >= 3).then_some(()));
    let warnings =
        |log: &str| log.lines().filter(|line| line.contains("bridge down")).map(str::to_owned).collect::<Vec<_>>();
    let said = warnings(&node.log());
    assert_eq!(said.len(), 1, "{said:?} after {first:?}");
    assert!(said[0].contains("WARN") && said[0].contains("nobody-there"), "{}", said[0]);
}

/// RB-38: the second of two brokers with one name, each with a key of its own, is refused once and waits; the first does not
/// notice. That it waits for at least 30 s: `a_duplicate_waits_for_half_a_minute_at_least`.
#[tokio::test(flavor = "multi_thread")]
async fn two_brokers_of_one_name_leave_the_first_alone_and_the_second_waits() {
    const EDGE: &str = "global-region-a";
    let fabric = Fabric::new();
    let global = Local::start(&fabric, GLOBAL).await;
    fabric.point(REGION_A, global.at().bridge);
    let first = Local::start(&fabric, REGION_A).await;
    first.up(EDGE).await;
    global.up(EDGE).await;
    let twin = fabric.twin(REGION_A);
    twin.point(REGION_A, global.at().bridge);
    let second = Local::start(&twin, REGION_A).await;
    let refused = || second.edge(EDGE).state().failure == Some(Failure::DuplicateNode);
    eventually("the second to be told why", || refused().then_some(())).await;
    // Ordinary pauses would have it dial again long before.
    let since = Instant::now();
    let pause = Duration::from_millis(glocal_core::limits::REDIAL_MS_MAX);
    eventually("a while", || (since.elapsed() > pause).then_some(())).await;
    assert_eq!(second.metric("glocal_edge_dials_total", &[]).await, 1, "once");
    assert!(refused());
    assert_eq!(global.metric("glocal_duplicate_nodes_total", &[]).await, 1);
    assert!(first.edge(EDGE).edge().is_up());
    assert_eq!((first.edge(EDGE).ups.value(), global.edge(EDGE).ups.value()), (1, 1), "undisturbed");
}

/// Where glibc's copies are slow a broker asks it for others: in the same process, and never against what is asked already.
#[test]
fn a_broker_is_replaced_by_itself_once_where_copies_are_slow() {
    let environment = |process: &Process| {
        let text = std::fs::read(format!("/proc/{}/environ", process.child.id())).unwrap();
        let found = text.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"GLIBC_TUNABLES="));
        found.map(|value| String::from_utf8(value.to_vec()).unwrap())
    };
    let is_slow = cfg!(all(target_arch = "x86_64", target_env = "gnu"))
        && std::fs::read_to_string("/proc/cpuinfo").unwrap().contains("AuthenticAMD");
    let fabric = Fabric::new();
    let broker = Process::start(&fabric, GLOBAL);
    let set = environment(&broker);
    assert_eq!(set.is_some(), is_slow, "{set:?}");
    assert!(set.is_none_or(|value| value.contains("x86_rep_movsb_threshold")));
    let asked = Process::start_with(&fabric, REGION_A, &[], &[("GLIBC_TUNABLES", "glibc.malloc.arena_max=2")]);
    assert_eq!(environment(&asked).as_deref(), Some("glibc.malloc.arena_max=2"));
}
