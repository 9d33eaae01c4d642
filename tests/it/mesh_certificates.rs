//! Certificates that are odd, of somebody else, or used where they do not belong: on the TLS port, the QUIC port and the
//! bridge port (attacks 3, 9, 11, 15, 19, 20, 21).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use glocal_client::{Client, ConnectError, ServerError};
use glocal_core::name::{Label, TenantId};
use glocal_fabric::testing::{Forge, Oddity};
use rcgen::{CustomExtension, DnType, DnValue};
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls_pki_types::ServerName;

use crate::support::fabric::{Credential, Fabric, Shape};
use crate::support::node::{GLOBAL, Local, REGION_A, REGION_B};
use crate::support::peer::{BRIDGE, NATIVE, Peer, quic, server_name, tls_of};
use crate::support::soon;

/// Whom a broker takes a certificate for: tenant, region and agent; `None` when it is refused.
type Taken = Option<(String, Option<String>, Option<String>)>;

async fn taken(peer: std::io::Result<Peer>) -> Taken {
    let welcome = soon("an answer", peer.ok()?.hello()).await.ok()?;
    assert_ne!(welcome.role, "NODE");
    Some((welcome.tenant, welcome.region, welcome.agent))
}

/// Presents a certificate on both ports of clients, which must agree, and on the bridge port, which must refuse it.
async fn present(fabric: &Fabric, node: &Local, what: &str, credential: &Credential) -> Taken {
    let tls = tls_of(fabric, Some(credential), NATIVE);
    let tcp = taken(Peer::tcp(node.at().native_tcp, tls.clone()).await).await;
    let over_quic = taken(Peer::quic(node.at().native_quic, tls).await).await;
    assert_eq!(tcp, over_quic, "{what}: both ports decide alike");
    assert!(!is_bridge(fabric, node.at().bridge, credential).await, "{what}: on the bridge port");
    tcp
}

/// Whether the bridge port lets a certificate open a stream that it answers on.
async fn is_bridge(fabric: &Fabric, at: SocketAddr, credential: &Credential) -> bool {
    let Ok(connection) = quic(at, tls_of(fabric, Some(credential), BRIDGE)).await else { return false };
    let Ok((mut send, mut receive)) = connection.open_bi().await else { return false };
    let opening = crate::support::bridge::Opening { node: REGION_A, edge: "global-region-a", tenants: &[] };
    let hello = crate::support::peer::frame(crate::support::bridge::bridge_hello(&opening));
    if send.write_all(&hello).await.is_err() {
        return false;
    }
    let mut buffer = bytes::BytesMut::new();
    soon("an answer", crate::support::bridge::next(&mut receive, &mut buffer)).await.is_some()
}

fn label(text: &str) -> Label {
    Label::parse(text).unwrap()
}

fn tenant(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}

fn as_agent(tenant: &str, region: Option<&str>, agent: Option<&str>) -> Taken {
    Some((tenant.to_owned(), region.map(str::to_owned), agent.map(str::to_owned)))
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_9_odd_certificates_are_refused_or_are_who_they_are() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let forge = fabric.forge("region-a");
    let mut before = 0;
    for oddity in Oddity::ALL {
        let forged = Credential::from(forge.leaf(&tenant("tenantA"), &label("eve"), *oddity).unwrap());
        let (expected, reason) = match oddity {
            Oddity::None => (as_agent("tenantA", Some("region-a"), Some("eve")), "client-on-bridge-port"),
            Oddity::CommaInName | Oddity::WildcardName => {
                (as_agent("tenantA", Some("region-a"), None), "client-on-bridge-port")
            }
            Oddity::ServerAuth => (as_agent("tenantA", Some("region-a"), Some("eve")), "client-on-bridge-port"),
            Oddity::NoTenant => (None, "cert-no-tenant"),
            Oddity::TwoTenants => (None, "ambiguous-tenant"),
            Oddity::BmpTenant => (None, "unsupported-string-type"),
            Oddity::NulInTenant => (None, "cert-bad-tenant"),
            Oddity::TwoRegions => (None, "ambiguous-name"),
            Oddity::Expired => (None, "cert-expired"),
            Oddity::NotYetValid => (None, "cert-not-yet-valid"),
            Oddity::NodeName => (None, "node-on-client-port"),
            _ => continue,
        };
        let found = present(&fabric, &node, &format!("{oddity:?}"), &forged).await;
        assert_eq!(found, expected, "{oddity:?}");
        let label = format!("reason=\"{reason}\"");
        assert!(node.metric("glocal_handshakes_refused_total", &[&label]).await > 0, "{oddity:?}: {reason} is counted");
        let all = node.metric("glocal_handshakes_refused_total", &[]).await;
        assert_eq!(all - before, if expected.is_some() { 1 } else { 3 }, "{oddity:?}");
        before = all;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_9_and_21_a_name_is_what_its_one_attribute_says() {
    let fabric = Fabric::shaped(&Shape { owner_only: true, ..Shape::default() });
    let node = Local::start(&fabric, REGION_A).await;
    let (cn, ou, o) = (DnType::CommonName, DnType::OrganizationalUnitName, DnType::OrganizationName);
    let again = |number| DnType::CustomDnType(vec![2, 5, 4, number]);
    let text = |value: &str| DnValue::Utf8String(value.to_owned());
    let print = |value: &str| DnValue::PrintableString(value.try_into().unwrap());
    let a = |agent| as_agent("tenantA", Some("region-a"), agent);
    type Name = Vec<(DnType, DnValue)>;
    let names: Vec<(&str, Name, Taken)> = vec![
        (
            "O first",
            vec![(o.clone(), text("tenantA")), (ou.clone(), text("region-a")), (cn.clone(), text("eve"))],
            a(Some("eve")),
        ),
        ("O alone", vec![(o.clone(), text("tenantA"))], as_agent("tenantA", None, None)),
        ("an empty subject", vec![], None),
        (
            "PrintableString",
            vec![(cn.clone(), print("eve")), (ou.clone(), text("region-a")), (o.clone(), print("tenantA"))],
            a(Some("eve")),
        ),
        ("T61String", vec![(o.clone(), DnValue::TeletexString("tenantA".try_into().unwrap()))], None),
        ("IA5String", vec![(o.clone(), DnValue::Ia5String("tenantA".try_into().unwrap()))], None),
        (
            "the superuser after the tenant",
            vec![(o.clone(), text("tenantA")), (again(10), text("cresco-system"))],
            None,
        ),
        (
            "the superuser before the tenant",
            vec![(o.clone(), text("cresco-system")), (again(10), text("tenantA"))],
            None,
        ),
        ("twice the same", vec![(o.clone(), text("tenantA")), (again(10), text("tenantA"))], None),
        ("a blank before", vec![(o.clone(), text(" tenantA"))], None),
        ("a blank after", vec![(o.clone(), text("tenantA "))], None),
        ("another case", vec![(o.clone(), text("tenanta"))], None),
        ("a dot", vec![(o.clone(), text("tenantA.eu"))], None),
        ("a star", vec![(o.clone(), text("*"))], None),
        ("a greater-than", vec![(o.clone(), text(">"))], None),
        ("the reserved prefix", vec![(o.clone(), text("tn-abcdefgh"))], None),
        ("nothing in it", vec![(o.clone(), text(""))], None),
        ("a newline", vec![(o.clone(), text("tenantA\n"))], None),
        ("a look-alike", vec![(o.clone(), text("t\u{435}nantA"))], None),
        ("64 letters", vec![(o.clone(), text(&"x".repeat(64)))], None),
        ("CN *", vec![(o.clone(), text("tenantA")), (ou.clone(), text("region-a")), (cn.clone(), text("*"))], a(None)),
        ("CN >", vec![(o.clone(), text("tenantA")), (ou.clone(), text("region-a")), (cn.clone(), text(">"))], a(None)),
        (
            "CN with a dot",
            vec![(o.clone(), text("tenantA")), (ou.clone(), text("region-a")), (cn.clone(), text("x.alice"))],
            a(None),
        ),
        (
            "CN with an O",
            vec![
                (o.clone(), text("tenantA")),
                (ou.clone(), text("region-a")),
                (cn.clone(), text("eve,O=cresco-system")),
            ],
            a(None),
        ),
        ("two CN", vec![(o.clone(), text("tenantA")), (cn.clone(), text("alice")), (again(3), text("eve"))], None),
        (
            "two OU",
            vec![(o.clone(), text("tenantA")), (ou.clone(), text("region-a")), (again(11), text("region-b"))],
            None,
        ),
        (
            "OU with a dot",
            vec![(o.clone(), text("tenantA")), (ou.clone(), text("region-a.alice")), (cn.clone(), text("b"))],
            as_agent("tenantA", None, Some("b")),
        ),
        ("OU of another region", vec![(o, text("tenantA")), (ou, text("region-b")), (cn, text("eve"))], None),
    ];
    for (what, name, expected) in names {
        let credential = fabric.named_leaf("region-a", name);
        let found = present(&fabric, &node, what, &credential).await;
        assert_eq!(found, expected, "{what}");
        let Some((_, region, agent)) = found else { continue };
        if region.is_some() && agent.is_some() {
            continue;
        }
        // Nameless: no inbox, and nobody's owner.
        let tls = tls_of(&fabric, Some(&credential), NATIVE);
        let mut peer = Peer::tcp(node.at().native_tcp, tls).await.unwrap();
        let welcome = peer.hello().await.unwrap();
        assert!(!welcome.inbox.contains("region-a"), "{what}: {}", welcome.inbox);
        for filter in ["inbox.region-a.alice", "_INBOX.region-a.alice.>", "_INBOX.>"] {
            let answer = peer.subscribe(1, filter).await;
            assert!(matches!(answer, glocal_wire::control::Control::Denied(_)), "{what}: {filter}");
        }
    }
    assert_eq!(node.metric("glocal_sessions_opened_total", &[]).await % 2, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_11_and_19_a_trusted_ca_issues_only_what_it_may() {
    let fabric = Fabric::new();
    let (global, a) = (Local::start(&fabric, GLOBAL).await, Local::start(&fabric, REGION_A).await);
    let (forge_a, forge_b, forge_g) = (fabric.forge("region-a"), fabric.forge("region-b"), fabric.forge("global"));
    let eve = label("eve");
    let leaf = |forge: &Forge, of: &str, region: &str| -> Credential {
        forge.leaf_in(&tenant(of), &label(region), &eve, Oddity::None).unwrap().into()
    };
    let chains = [
        ("another region's agent", leaf(&forge_b, "tenantA", "region-a"), None),
        ("a superuser", leaf(&forge_b, "cresco-system", "region-b"), None),
        ("a superuser of a region that may", leaf(&forge_b, "cresco-system", "region-a"), None),
        ("a tenant by a CA that has none", leaf(&forge_g, "tenantA", "global"), None),
        ("the anonymous tenant", leaf(&forge_a, "guests", "region-a"), None),
        ("the operator", leaf(&forge_a, "operator", "region-a"), None),
        ("a tenant that is not in the fabric", leaf(&forge_a, "nobody", "region-a"), None),
        ("what it may", leaf(&forge_b, "tenantA", "region-b"), as_agent("tenantA", Some("region-b"), Some("eve"))),
        ("decoy of region a", forge_b.decoy(&forge_a, &tenant("tenantA"), &eve).unwrap().into(), None),
        (
            "decoy of the superusers' region",
            forge_b.decoy(&forge_g, &tenant("cresco-system"), &eve).unwrap().into(),
            None,
        ),
    ];
    for (what, credential, expected) in &chains {
        for node in [&global, &a] {
            assert_eq!(present(&fabric, node, what, credential).await, *expected, "{what} at {}", node.at().node);
        }
    }
    assert!(a.metric("glocal_handshakes_refused_total", &["reason=\"issuer-binding\""]).await >= 10);
    // Certificates of brokers by the wrong CA, on the bridge port of a neighbour; the right one is let in.
    let broker = |forge: &Forge, region: &str, agent: &str| -> Credential {
        forge.leaf_in(&tenant("operator"), &label(region), &label(agent), Oddity::NodeName).unwrap().into()
    };
    for (what, credential) in [
        ("region-b's CA names region-a's broker", broker(&forge_b, "region-a", "broker-a")),
        ("region-a's CA names the global", broker(&forge_a, "global", "broker-g")),
        ("an unknown broker", broker(&forge_a, "region-a", "broker-x")),
        ("the broker of another tenant", {
            let forged = forge_a.leaf_in(&tenant("tenantA"), &label("region-a"), &label("broker-a"), Oddity::NodeName);
            forged.unwrap().into()
        }),
        ("itself", fabric.node_credential(GLOBAL)),
    ] {
        assert!(!is_bridge(&fabric, global.at().bridge, &credential).await, "{what}");
        let tls = tls_of(&fabric, Some(&credential), NATIVE);
        assert_eq!(taken(Peer::tcp(a.at().native_tcp, tls).await).await, None, "{what}, as a client");
    }
    assert!(is_bridge(&fabric, global.at().bridge, &fabric.node_credential(REGION_A)).await);
    // A broker without an edge to this one is nobody here, whatever its certificate says.
    assert!(!is_bridge(&fabric, a.at().bridge, &fabric.node_credential(REGION_B)).await);
    // Attack 3: a broker's certificate is no client's.
    let tls = tls_of(&fabric, Some(&fabric.node_credential(REGION_A)), NATIVE);
    assert_eq!(taken(Peer::tcp(global.at().native_tcp, tls.clone()).await).await, None);
    assert_eq!(taken(Peer::quic(global.at().native_quic, tls).await).await, None);
    // A fabric of the same names under another root is another fabric.
    let foreign = Forge::foreign(&label("trial"), &label("region-a")).unwrap();
    let forged = foreign.leaf(&tenant("tenantA"), &eve, Oddity::None).unwrap().into();
    assert_eq!(present(&fabric, &a, "foreign", &forged).await, None);
}

/// Remembers how many tickets a server gave.
#[derive(Debug, Default)]
struct Tickets(AtomicUsize);

/// Case RB-63.
#[tokio::test(flavor = "multi_thread")]
async fn attack_15_nothing_is_resumed_and_nothing_is_early() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let store = Arc::new(Tickets::default());
    let mut tls = tls_of(&fabric, Some(&fabric.agent("alice")), NATIVE);
    tls.resumption = rustls::client::Resumption::store(Arc::clone(&store) as Arc<dyn ClientSessionStore>);
    let config = Arc::new(tls.clone());
    for _ in 0..3 {
        let tcp = tokio::net::TcpStream::connect(node.at().native_tcp).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&config));
        let mut stream = connector.connect(server_name(), tcp).await.unwrap();
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        stream.write_all(&crate::support::peer::frame(crate::support::peer::hello())).await.unwrap();
        stream.flush().await.unwrap();
        let mut bytes = [0; 256];
        assert!(soon("a welcome", stream.read(&mut bytes)).await.unwrap() > 0);
        let (_, connection) = stream.get_ref();
        assert_eq!(connection.handshake_kind(), Some(rustls::HandshakeKind::Full));
        assert!(!connection.is_early_data_accepted());
    }
    let crypto = Arc::new(quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap());
    for (at, alpn) in [(node.at().native_quic, NATIVE), (node.at().bridge, BRIDGE)] {
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let crypto = if alpn == NATIVE {
            Arc::clone(&crypto)
        } else {
            let mut tls = tls_of(&fabric, Some(&fabric.node_credential(GLOBAL)), BRIDGE);
            tls.resumption = rustls::client::Resumption::store(Arc::clone(&store) as Arc<dyn ClientSessionStore>);
            Arc::new(quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap())
        };
        for _ in 0..2 {
            let config = quinn::ClientConfig::new(Arc::clone(&crypto) as Arc<dyn quinn::crypto::ClientConfig>);
            let connecting = endpoint.connect_with(config, at, "localhost").unwrap();
            let connecting = match connecting.into_0rtt() {
                Ok(_) => panic!("there are keys for early data"),
                Err(connecting) => connecting,
            };
            let connection = soon("a connection", connecting).await.unwrap();
            // Whatever tickets there were have come before a stream is answered.
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(b"\xff\xff\xff\xff\xff\xff\xff\xff").await.unwrap();
            let _ = soon("an end", receive.read_to_end(1024)).await;
        }
    }
    assert_eq!(store.0.load(Ordering::Relaxed), 0, "no ticket was given");
}

/// A TLS server with a certificate of a test's choice that answers nothing.
async fn serve(credential: &Credential) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(credential.chain.clone(), credential.key.clone_key())
        .unwrap();
    config.alpn_protocols = vec![NATIVE.to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(tcp).await else { continue };
            use tokio::io::AsyncReadExt as _;
            let mut sink = [0; 256];
            while stream.read(&mut sink).await.is_ok_and(|n| n > 0) {}
        }
    });
    at
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_20_an_agents_leaf_is_no_broker_to_clients() {
    let fabric = Fabric::new();
    let forge = fabric.forge("region-a");
    let forged = |oddity| Credential::from(forge.leaf(&tenant("tenantA"), &label("eve"), oddity).unwrap());
    let foreign = Forge::foreign(&label("trial"), &label("region-a")).unwrap();
    let alice = fabric.agent("alice");
    for (what, credential, expected) in [
        ("an agent", fabric.agent("bob"), ServerError::Usage),
        ("an agent that may serve", forged(Oddity::ServerAuth), ServerError::NotABroker),
        (
            "a broker of another fabric",
            foreign.leaf(&tenant("operator"), &label("broker-a"), Oddity::NodeName).unwrap().into(),
            ServerError::Untrusted,
        ),
        (
            "a broker, but not of this host",
            fabric.short_lived("region-a", "operator", "broker-a", node_kind("elsewhere.example"), 3600),
            ServerError::Host("localhost".to_owned()),
        ),
        (
            "a broker whose certificate is over",
            fabric.short_lived("region-a", "operator", "broker-a", node_kind("localhost"), -60),
            ServerError::Expired,
        ),
        (
            "another broker than meant",
            fabric.node_credential(REGION_B),
            ServerError::OtherBroker { expected: REGION_A.to_owned(), found: REGION_B.to_owned() },
        ),
    ] {
        let at = serve(&credential).await;
        let address = format!("tls://localhost:{}", at.port()).parse().unwrap();
        let root = glocal_client::PemSource::Text(fabric.root_pem());
        let text = |text: &String| glocal_client::PemSource::Text(text.clone());
        let mut options =
            glocal_client::ConnectOptions::new(vec![address], root).identity(text(&alice.pem), text(&alice.key_pem));
        options.expected_node = Some(REGION_A.to_owned());
        match soon("a refusal", Client::connect(options)).await {
            Err(ConnectError::Server { source, .. }) => assert_eq!(source, expected, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
}

fn node_kind(host: &str) -> glocal_fabric::pki::LeafKind {
    glocal_fabric::pki::LeafKind::Node { hosts: vec![host.to_owned()] }
}

#[tokio::test(flavor = "multi_thread")]
async fn chains_that_are_too_large_cost_nothing() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let alice = fabric.agent("alice");
    let ca = alice.chain[1].clone();
    let long = Credential {
        chain: std::iter::once(alice.chain[0].clone()).chain(std::iter::repeat_n(ca.clone(), 20)).collect(),
        key: alice.key.clone_key(),
        pem: String::new(),
        key_pem: String::new(),
    };
    assert_eq!(present(&fabric, &node, "twenty CAs", &long).await, None);
    let fat = fabric.leaf_with("region-a", "tenantA", |params| {
        params.custom_extensions.push(CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![0; 20_000]));
    });
    assert_eq!(present(&fabric, &node, "a certificate of 20 KiB", &fat).await, None);
    let many = fabric.leaf_with("region-a", "tenantA", |params| {
        for number in 0..300 {
            params.subject_alt_names.push(rcgen::SanType::DnsName(format!("h{number}.example").try_into().unwrap()));
        }
    });
    assert_eq!(
        present(&fabric, &node, "three hundred names", &many).await,
        as_agent("tenantA", Some("region-a"), Some("eve"))
    );
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, _: rustls::NamedGroup) {}
    fn kx_hint(&self, _: &ServerName<'_>) -> Option<rustls::NamedGroup> {
        None
    }
    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}
    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }
    fn remove_tls12_session(&self, _: &ServerName<'static>) {}
    fn insert_tls13_ticket(&self, _: ServerName<'static>, _: Tls13ClientSessionValue) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        None
    }
}
