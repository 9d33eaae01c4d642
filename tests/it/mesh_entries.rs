//! Every way into a broker by which something is read or written, each with the test that another tenant is denied (case
//! RB-23). The lists are read from the sources and the types: what is added there fails here until it has its row.

use std::collections::BTreeSet;

use bytes::BytesMut;
use glocal_client::Subscription;
use glocal_core::name::Class;
use glocal_node::Listening;
use glocal_wire::control::{
    AnnounceBroker, AnnounceSender, Control, Delivered, EdgeCut, ForgetHandles, Interest, InterestNews, InterestPull,
    InterestSum, InterestSync, Memberless, NoMember, Overflowed, Ping, Presence, PresenceEnd, PresenceSum, Subscribe,
    Tallied, Tally, Unserved, Unsubscribe,
};
use glocal_wire::data::{DataHead, DataKind};
use glocal_wire::nats::{NatsLimits, Next, Op, next_op};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::bridge::{Hostile, Opening, announce, relay, routed};
use crate::support::fabric::{Fabric, Shape};
use crate::support::node::{GLOBAL, Local, REGION_A, ask};
use crate::support::peer::{NATIVE, Peer, frame, publish, server_name, tls_of};
use crate::support::{arrived, eventually, message, soon};
use crate::tidy::{every_test, text};

const EDGE: &str = "global-region-a";

/// Where a control frame is welcome, and so which test denies it to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Sent by clients: [`clients`] tries it.
    Client,
    /// Said to clients or before a session: from a client it ends the session, which `states.rs` tries for every kind.
    Told,
    /// On a bridge's control stream: of no tenant, but for sections, which `a_section_crosses_only_edges_it_names` guards.
    Stream,
    /// First on a tenant's own connection beside a bridge: `mesh_dedicated_hostile.rs` tries it for tenants that are not allowed.
    Connection,
    /// In a lane, of that lane's tenant: [`lanes`] tries it.
    Lane,
    /// In a lane, inside `Routed`: [`lanes`] tries it, too.
    Letter,
}

/// Every control frame.
const FRAMES: &[(u8, Place)] = &[
    (0x01, Place::Told),
    (0x02, Place::Told),
    (0x03, Place::Client),
    (0x04, Place::Told),
    (0x05, Place::Client),
    (0x06, Place::Told),
    (0x07, Place::Told),
    (0x08, Place::Told),
    (0x09, Place::Client),
    (0x0a, Place::Client),
    (0x0b, Place::Told),
    (0x0c, Place::Told),
    (0x10, Place::Stream),
    (0x11, Place::Stream),
    (0x12, Place::Stream),
    (0x13, Place::Stream),
    (0x14, Place::Stream),
    (0x15, Place::Stream),
    (0x16, Place::Connection),
    (0x17, Place::Connection),
    (0x18, Place::Lane),
    (0x19, Place::Lane),
    (0x1a, Place::Lane),
    (0x1b, Place::Lane),
    (0x1c, Place::Lane),
    (0x1d, Place::Lane),
    (0x1e, Place::Lane),
    (0x20, Place::Stream),
    (0x21, Place::Stream),
    (0x22, Place::Stream),
    (0x23, Place::Stream),
    (0x24, Place::Stream),
    (0x25, Place::Stream),
    (0x26, Place::Stream),
    (0x27, Place::Stream),
    (0x28, Place::Letter),
    (0x29, Place::Letter),
    (0x2a, Place::Letter),
    (0x2b, Place::Letter),
    (0x2c, Place::Letter),
    (0x2d, Place::Letter),
    (0x30, Place::Stream),
    (0x31, Place::Stream),
    (0x32, Place::Stream),
    (0x33, Place::Stream),
    (0x34, Place::Stream),
    (0x35, Place::Stream),
    (0x36, Place::Stream),
    (0x38, Place::Lane),
    (0x39, Place::Lane),
    (0x3a, Place::Letter),
    (0x3b, Place::Letter),
    (0x3c, Place::Lane),
    (0x3d, Place::Lane),
];

/// What policy decides, and the tests that one tenant is refused another's.
const OPERATIONS: &[(&str, &[&str])] = &[
    ("Write", &["as_one_tenant_no_entry_point_leads_to_another", "a_tenant_has_its_own_subtree_and_no_other"]),
    ("Read", &["as_one_tenant_no_entry_point_leads_to_another", "a_tenant_has_its_own_subtree_and_no_other"]),
    ("Relay", &["no_frame_in_a_lane_of_a_tenant_that_is_not_allowed_does_anything"]),
    ("Administer", &["administration_shows_a_tenant_its_own_and_a_superuser_all"]),
];

/// What the operators' socket is asked; [`operators`] tries each for another tenant.
const REQUESTS: &[&str] = &["status", "edges", "routes", "reload"];

/// Pages of the operators' HTTP listener, which shows all tenants and is no tenant's.
const PAGES: &[&str] = &["/metrics", "/healthz", "/readyz"];

/// Protocols of clients: each a machine over the one `Client`.
const MACHINES: &[&str] = &["NativeSession", "NatsSession"];

/// The words that follow `before` in a source, up to `after`.
fn words(file: &str, before: &str, after: char) -> BTreeSet<String> {
    let text = text(file).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap().to_owned();
    code.split(before).skip(1).map(|rest| rest.split(after).next().unwrap().to_owned()).collect()
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Case RB-23: the rows are all there is.
#[test]
fn every_entry_point_has_its_row() {
    let kinds: Vec<u8> = FRAMES.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, Control::KINDS, "a new control frame needs a row, and its test");
    let operations: Vec<&str> = OPERATIONS.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        words("src/core/policy.rs", "impl Sealed for super::", '{')
            .iter()
            .map(|w| w.trim_end().trim_end_matches("<'_>").to_owned())
            .collect::<BTreeSet<_>>(),
        set(&operations)
    );
    assert_eq!(words("src/node/admin.rs", "(Some(\"", '"'), set(REQUESTS));
    assert_eq!(words("src/node/ops.rs", ".route(\"", '"'), set(PAGES));
    let machines: BTreeSet<String> =
        crate::tidy::sources_of("src/engine/").iter().flat_map(|file| words(file, "impl Machine for ", ' ')).collect();
    assert_eq!(machines, set(MACHINES));
    let tests = every_test();
    for name in OPERATIONS.iter().flat_map(|(_, tests)| *tests) {
        assert!(tests.contains(*name), "{name}");
    }
    let samples: BTreeSet<u8> = lane_frames().iter().chain(&letters()).map(Control::kind).collect();
    let in_lanes = |place| matches!(place, Place::Lane | Place::Letter);
    let expected: BTreeSet<u8> = FRAMES.iter().filter(|(_, place)| in_lanes(*place)).map(|(kind, _)| *kind).collect();
    // `Routed` itself is around every letter.
    assert_eq!(samples, &expected - &BTreeSet::from([0x1e]));
}

/// The name of an operation of NATS clients. A new one does not compile until it has a name, and then has no attack.
const fn name_of(op: &Op<'_>) -> &'static str {
    match op {
        Op::Connect(_) => "CONNECT",
        Op::Pub { .. } => "PUB",
        Op::Hpub { .. } => "HPUB",
        Op::Sub { .. } => "SUB",
        Op::Unsub { .. } => "UNSUB",
        Op::Ping => "PING",
        Op::Pong => "PONG",
    }
}

/// Lines of a NATS client of another tenant, and whether each is refused or is about the client's own.
const NATS: &[(&str, bool)] = &[
    ("CONNECT {\"verbose\":false,\"headers\":true,\"user\":\"tenantB\",\"account\":\"tenantB\"}\r\n", false),
    ("SUB T.tenantB.live.> 1\r\n", true),
    ("SUB T.tenantB.> crew 2\r\n", true),
    ("SUB T.*.live.> 3\r\n", true),
    ("SUB T.tenantB.ctrl.advisory.> 4\r\n", true),
    ("SUB > 5\r\n", false),
    ("SUB $SYS.ACCOUNT.tenantB.> 6\r\n", false),
    ("SUB $ADV.> 7\r\n", false),
    ("UNSUB 2\r\n", false),
    ("PUB T.tenantB.live.orders 1\r\nx\r\n", true),
    ("PUB orders T.tenantB.live.reply 1\r\nx\r\n", true),
    // Answered to this session's own subscriptions, and of those none is there.
    ("PUB $SYS.REQ.USER.INFO T.tenantB.live.reply 0\r\n\r\n", false),
    ("PUB $SYS.REQ.ACCOUNT.tenantB.CONNZ _INBOX.x 0\r\n\r\n", false),
    ("HPUB T.tenantB.bulk.orders 12 13\r\nNATS/1.0\r\n\r\nx\r\n", true),
    ("HPUB orders T.tenantB.bulk.reply 12 13\r\nNATS/1.0\r\n\r\nx\r\n", true),
    ("PONG\r\n", false),
    ("PING\r\n", false),
];

/// Subscribes of a native client; all are refused.
fn subscribes() -> Vec<Subscribe> {
    let plain = |filter: &str| Subscribe { sid: 1, filter: filter.to_owned(), queue: None, local_only: false };
    vec![
        plain("T.tenantB.live.>"),
        plain("T.tenantB.>"),
        plain("T.*.live.orders"),
        plain("T.*.*.>"),
        plain("T.tenantB.ctrl.advisory.>"),
        plain("T.tenantB.live.inbox.region-a.bob"),
        Subscribe { queue: Some("crew".to_owned()), ..plain("T.tenantB.live.orders") },
        Subscribe { queue: Some("T.tenantB".to_owned()), ..plain("T.tenantB.live.orders") },
        Subscribe { local_only: true, ..plain("T.tenantB.live.orders") },
    ]
}

/// What a native client of tenantA tries, and what it is told.
async fn clients(node: &Local, mut alice: Peer) {
    for (sid, subscribe) in (1..).zip(subscribes()) {
        alice.send(Subscribe { sid, ..subscribe.clone() }).await.unwrap();
        match alice.control().await {
            Control::Denied(denied) => {
                let code = if subscribe.filter.starts_with("T.*") { "all-tenants" } else { "cross-tenant" };
                assert_eq!((denied.id, denied.code.as_str()), (u64::from(sid), code), "{subscribe:?}");
            }
            other => panic!("{subscribe:?}: {other:?}"),
        }
    }
    // Numbers of subscriptions are the session's own: nobody else's can be ended.
    for sid in 0..32 {
        alice.send(Unsubscribe { sid, max: None }).await.unwrap();
    }
    for class in Class::ALL {
        let foreign = format!("T.tenantB.{class}.orders");
        let reply = format!("T.tenantB.{class}.reply");
        for bytes in [
            publish(class, foreign.as_bytes(), b"", b"attack"),
            publish(class, foreign.as_bytes(), b"_INBOX.x", b"attack"),
            publish(class, b"orders", reply.as_bytes(), b"attack"),
        ] {
            alice.send_bytes(&bytes).await.unwrap();
            match alice.control().await {
                Control::Denied(denied) => assert_eq!(denied.code, "cross-tenant"),
                other => panic!("{class}: {other:?}"),
            }
        }
    }
    alice.send(Ping { token: 3 }).await.unwrap();
    assert_eq!(alice.control().await, Control::Pong(glocal_wire::control::Pong { token: 3 }));
    assert_eq!(node.metric("glocal_published_total", &["tenantA"]).await, 0);
}

/// What a NATS client of tenantA tries, and what it is told.
async fn nats(fabric: &Fabric, node: &Local) {
    let verbs: BTreeSet<&str> = NATS
        .iter()
        .map(|(line, _)| match next_op(line.as_bytes(), &NatsLimits::open(1024, true)) {
            Ok(Next::Op { op, .. }) => name_of(&op),
            other => panic!("{line:?}: {other:?}"),
        })
        .collect();
    assert_eq!(verbs, BTreeSet::from(["CONNECT", "PUB", "HPUB", "SUB", "UNSUB", "PING", "PONG"]));
    let mut tls = tls_of(fabric, Some(&fabric.agent("alice")), NATIVE);
    tls.alpn_protocols.clear();
    let tcp = tokio::net::TcpStream::connect(node.at().nats.unwrap()).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(tls));
    let mut stream = connector.connect(server_name(), tcp).await.unwrap();
    for (line, is_refused) in NATS {
        stream.write_all(line.as_bytes()).await.unwrap();
        stream.write_all(b"PING\r\n").await.unwrap();
        stream.flush().await.unwrap();
        let mut told = Vec::new();
        while !told.ends_with(b"PONG\r\n") {
            let bytes = soon("an answer", stream.read_buf(&mut told)).await.unwrap();
            assert!(bytes > 0, "{line:?} ends the session: {}", String::from_utf8_lossy(&told));
        }
        let told = String::from_utf8_lossy(&told);
        assert_eq!(told.contains("-ERR 'Permissions Violation"), *is_refused, "{line:?}: {told}");
        assert!(!told.contains("secret"), "{line:?}: {told}");
    }
}

/// What the operator of tenantA's broker asks of tenantB.
async fn operators(node: &Local) {
    let socket = node.at().socket.clone();
    for request in REQUESTS {
        let asked = |of: &str| {
            let (socket, request) = (socket.clone(), format!("{request} {of}"));
            tokio::task::spawn_blocking(move || ask(&socket, &request).unwrap())
        };
        let (foreign, missing) = (asked("tenantB").await.unwrap(), asked("tenantX").await.unwrap());
        // The operator of a broker sees all of it; of one that is not there nothing is told.
        assert!(missing["error"].is_string(), "{request}: {missing}");
        if foreign["error"].is_null() {
            assert!(!foreign.to_string().contains("tenantA"), "{request}: {foreign}");
        }
    }
}

/// Every listener of a broker; a new one does not compile until it is named, and looked at in
/// [`as_one_tenant_no_entry_point_leads_to_another`].
fn listeners(at: &Listening) -> Vec<std::net::SocketAddr> {
    let Listening { node: _, pid: _, native_tcp, native_quic, nats, nats_ws, bridge, ops, socket: _ } = at;
    // Over WebSocket it is the same machine as over TCP; the bridge's is tried by `lanes`, the operators' is not a tenant's.
    let others = [*nats_ws, Some(*bridge), *ops];
    assert!(others.iter().flatten().all(|other| other != native_tcp));
    [Some(*native_tcp), Some(*native_quic), *nats].into_iter().flatten().collect()
}

/// Case RB-23: as tenantA, by every verb of every protocol, to what is tenantB's.
#[tokio::test(flavor = "multi_thread")]
async fn as_one_tenant_no_entry_point_leads_to_another() {
    let fabric = Fabric::new();
    let node = Local::start_with(&fabric, REGION_A, &[("nats_port", "0")]).await;
    assert_eq!(listeners(node.at()).len(), 3);
    let bob = fabric.client(node.at(), "bob").await;
    let mut of_bob = bob.subscribe(">", None).await.unwrap();
    let mut answers = bob.subscribe("orders", Some("crew")).await.unwrap();
    bob.publish("orders", "secret").await.unwrap();
    for subscription in [&mut of_bob, &mut answers] {
        assert_eq!(message(subscription).await.payload(), b"secret");
    }
    let tls = || tls_of(&fabric, Some(&fabric.agent("alice")), NATIVE);
    for mut alice in
        [Peer::tcp(node.at().native_tcp, tls()).await.unwrap(), Peer::quic(node.at().native_quic, tls()).await.unwrap()]
    {
        alice.hello().await.unwrap();
        clients(&node, alice).await;
    }
    nats(&fabric, &node).await;
    operators(&node).await;
    // Bob has heard nothing of it, his subscriptions are there, and nobody else has heard of him.
    quiet(&bob, &mut of_bob).await;
    quiet(&bob, &mut answers).await;
    assert_eq!(node.metric("glocal_delivered_total", &["tenantB"]).await, 2 + 2 * 2, "his own");
    assert!(node.metric("glocal_denied_total", &["tenantA", "cross-tenant"]).await >= 2 * (7 + 12));
}

/// The next message is one's own.
async fn quiet(client: &glocal_client::Client, subscription: &mut Subscription) {
    client.publish("orders", "own").await.unwrap();
    assert_eq!(message(subscription).await.payload(), b"own");
    client.flush().await.unwrap();
    let _ = arrived(subscription);
}

/// One of every control frame of a lane.
fn lane_frames() -> Vec<Control> {
    let (uid, tenant) = ("0123456789abcdef".to_owned(), "tenantB".to_owned());
    vec![
        AnnounceBroker { handle: 9, node: REGION_A.to_owned(), incarnation: 1 }.into(),
        AnnounceSender { handle: 9, session: 1, tenant, region: None, agent: None, uid }.into(),
        Interest { origin: 1, seq: 1, add: true, filter: ">".into(), classes: 15, queue: None, observer: false }.into(),
        InterestSync { origin: 1, seq: 1, reset: true, last: true }.into(),
        NoMember { target: 2, origin: 1, seq: 1, group: None }.into(),
        ForgetHandles { count: 0 }.into(),
        Presence { origin: 1, incarnation: u64::MAX / 2, seq: 1, present: true }.into(),
        PresenceEnd { told: 1 }.into(),
        EdgeCut { origin: 1, incarnation: u64::MAX / 2, seq: 1, edge: EDGE.into(), cut: true }.into(),
        PresenceSum { digest: 1 }.into(),
    ]
}

/// One of every control frame that travels inside `Routed`.
fn letters() -> Vec<Control> {
    let sum = InterestSum { digest: 0, count: 0 };
    vec![
        Delivered { class: 1, incarnation: 1, through: 1, gap: true }.into(),
        Overflowed { class: 1, incarnation: 1, seq: 1 }.into(),
        Memberless { class: 1, incarnation: 1, seq: 1, group: "crew".into() }.into(),
        Tally { class: 0, incarnation: 1, copies: 1 }.into(),
        Tallied { class: 0, incarnation: 1, copies: 0, received: 0 }.into(),
        Unserved { class: 0, incarnation: 1, session: 1, seq: 1, groups: vec!["crew".into()], plain: false }.into(),
        InterestPull { stream: 1, taken: 0, have: sum, end: false }.into(),
        InterestNews { stream: 1, number: 0, start: 1, changes: vec![], complete: Some(sum) }.into(),
    ]
}

/// Every frame of a lane, as bytes, and what it is.
fn lanes() -> Vec<(String, BytesMut)> {
    let mut frames: Vec<_> = lane_frames().into_iter().map(|f| (f.name().to_owned(), frame(f))).collect();
    frames.extend(letters().into_iter().map(|f| (format!("Routed {}", f.name()), routed(2, 1, f))));
    let kinds = [DataKind::Publish, DataKind::Deliver, DataKind::Relay];
    for kind in kinds {
        // A new kind of data frame does not compile until it is here.
        match kind {
            DataKind::Publish | DataKind::Deliver => {
                let mut bytes = BytesMut::new();
                let head = DataHead::new(kind, Some(Class::Live));
                head.encode_into(&mut bytes, &[], b"orders", b"", b"", b"attack").unwrap();
                frames.push((format!("{kind:?}"), bytes));
            }
            DataKind::Relay => frames.push(("Relay".to_owned(), relay(Class::Live, "orders", 1, 1, &[2], b"attack"))),
        }
    }
    frames
}

/// Case RB-23, bridges: as a broker whose edge carries tenantA, by every frame of a lane, to what is tenantB's.
#[tokio::test(flavor = "multi_thread")]
async fn no_frame_in_a_lane_of_a_tenant_that_is_not_allowed_does_anything() {
    let tenants = ["\"tenantA\"", "\"*\""];
    let fabric = Fabric::shaped(&Shape { edge_tenants: tenants, ..Shape::default() });
    let global = Local::start(&fabric, GLOBAL).await;
    let opening = Opening { node: REGION_A, edge: EDGE, tenants: &["tenantA", "tenantB"] };
    let mut hostile = Hostile::open(&fabric, GLOBAL, global.at().bridge, &opening).await;
    global.up(EDGE).await;
    let bob = fabric.client(global.at(), "bob").await;
    let mut of_bob = bob.subscribe(">", None).await.unwrap();
    bob.publish("orders", "secret").await.unwrap();
    assert_eq!(message(&mut of_bob).await.payload(), b"secret");
    for (what, bytes) in lanes() {
        for class in [Class::Live, Class::Ctrl] {
            let before = global.edge(EDGE).edge().refused.value();
            let mut frames = announce(&[REGION_A, GLOBAL], "tenantB", "region-a", "eve");
            frames.extend_from_slice(&bytes);
            hostile.lane("tenantB", class, &frames).await;
            eventually(&what, || (global.edge(EDGE).edge().refused.value() > before).then_some(())).await;
        }
        global.knows_present("tenantB", 0).await;
    }
    assert!(global.edge(EDGE).edge().is_up());
    bob.publish("orders", "own").await.unwrap();
    assert_eq!(message(&mut of_bob).await.payload(), b"own", "nothing of it was delivered");
    assert_eq!(global.metric("glocal_relayed_in_total", &["tenantB"]).await, 0);
    assert_eq!(global.metric("glocal_relayed_out_total", &["tenantB"]).await, 0);
    assert!(hostile.heard.lock().unwrap().keys().all(|(tenant, _)| tenant != "tenantB"), "and it is told nothing");
}
