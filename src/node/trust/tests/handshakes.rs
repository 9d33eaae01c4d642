//! Whole handshakes: TLS in memory, QUIC over the loopback interface.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConfig, ServerConnection};

use super::super::tls::*;
use super::*;

/// A client as `glocal-client` would be: it checks the broker's chain and name.
fn client_config(fabric: &Fabric, leaf: Option<&Leaf>, alpn: &[u8]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(fabric.root.der().clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match leaf {
        Some(leaf) => builder.with_client_auth_cert(leaf.chain.clone(), leaf.key()).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    config
}

struct Outcome {
    client: ClientConnection,
    server: ServerConnection,
    client_error: Option<rustls::Error>,
    server_error: Option<rustls::Error>,
}

impl Outcome {
    fn up(&self) -> bool {
        let handshaking = self.client.is_handshaking() || self.server.is_handshaking();
        self.client_error.is_none() && self.server_error.is_none() && !handshaking
    }

    /// Why the server refused.
    fn refusal(&self) -> Option<Deny> {
        deny_of(self.server_error.as_ref()?)
    }
}

/// All that one side has to send.
fn outgoing(from: &mut dyn FnMut(&mut dyn std::io::Write) -> std::io::Result<usize>) -> Vec<u8> {
    let mut bytes = Vec::new();
    while from(&mut bytes).unwrap() > 0 {}
    bytes
}

fn handshake(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Outcome {
    let mut client = ClientConnection::new(client.clone(), "localhost".try_into().unwrap()).unwrap();
    let mut server = ServerConnection::new(server.clone()).unwrap();
    let (mut client_error, mut server_error) = (None, None);
    loop {
        let to_server = outgoing(&mut |out| if client.wants_write() { client.write_tls(out) } else { Ok(0) });
        let mut unread = to_server.as_slice();
        while server_error.is_none() && !unread.is_empty() {
            server.read_tls(&mut unread).unwrap();
            server_error = server.process_new_packets().err();
        }
        let to_client = outgoing(&mut |out| if server.wants_write() { server.write_tls(out) } else { Ok(0) });
        let mut unread = to_client.as_slice();
        while client_error.is_none() && !unread.is_empty() {
            client.read_tls(&mut unread).unwrap();
            client_error = client.process_new_packets().err();
        }
        if to_server.is_empty() && to_client.is_empty() {
            return Outcome { client, server, client_error, server_error };
        }
    }
}

fn native(fabric: &Fabric, trust: &Arc<Trust>, leaf: Option<&Leaf>) -> Outcome {
    let server = native_tcp_server_config(trust).unwrap();
    handshake(&Arc::new(client_config(fabric, leaf, ALPN_NATIVE)), &server)
}

#[test]
fn a_good_client_gets_in() {
    let fabric = Fabric::new();
    let trust = fabric.trust("region-a/a1", plain());
    let outcome = native(&fabric, &trust, Some(&fabric.agent("acme", "region-a", "x")));
    assert!(outcome.up());
    assert_eq!(require_alpn(outcome.server.alpn_protocol(), ALPN_NATIVE), Ok(()));
    assert_eq!(outcome.server.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    let group = outcome.server.negotiated_key_exchange_group().unwrap().name();
    assert_eq!(group, rustls::NamedGroup::X25519MLKEM768, "post-quantum by default");
    let remembered = trust.cache.len();
    let principal = trust.identify_client(outcome.server.peer_certificates().unwrap(), unix_now()).unwrap();
    assert_eq!(principal.tenant().as_str(), "acme");
    assert_eq!(trust.cache.len(), remembered, "the session does not verify what the handshake has");
}

#[test]
fn bad_clients_are_refused_counted_and_told() {
    let fabric = Fabric::new();
    let trust = fabric.trust("region-a/a1", plain());
    let foreign = issue(&agent("acme", "region-a", "x"), &fabric.region_b);
    let mut decoy = foreign.clone();
    decoy.chain.insert(1, fabric.region_a.der().clone());
    let mut long = fabric.agent("acme", "region-a", "x");
    long.chain.extend(std::iter::repeat_n(fabric.region_b.der().clone(), 98));
    let cases = [
        (foreign, Deny::IssuerBinding),
        (decoy, Deny::IssuerBinding),
        (long, Deny::Limit),
        (fabric.broker("global/g1"), Deny::NodeOnClientPort),
        (issue(&valid(agent("acme", "region-a", "x"), -7_200, -1), &fabric.region_a), Deny::CertExpired),
        (issue(&valid(agent("acme", "region-a", "x"), 60, 7_200), &fabric.region_a), Deny::CertNotYetValid),
        (fabric.agent("gamma", "region-a", "x"), Deny::UnknownTenant),
        (Fabric::new().agent("acme", "region-a", "x"), Deny::CertUntrusted),
    ];
    for (leaf, reason) in &cases {
        let before = trust.refusals().count(*reason);
        let outcome = native(&fabric, &trust, Some(leaf));
        assert_eq!(outcome.refusal(), Some(*reason));
        assert_eq!(trust.refusals().count(*reason), before + 1);
        assert!(matches!(outcome.client_error, Some(rustls::Error::AlertReceived(_))), "the client learns of it");
    }
    let none = native(&fabric, &trust, None);
    assert_eq!(none.refusal(), Some(Deny::NoCertificate));
    let told = native(&fabric, &trust, Some(&cases[4].0)).client_error;
    let Some(rustls::Error::AlertReceived(alert)) = told else { panic!("no alert") };
    assert_eq!(deny_of_alert(alert), Some(Deny::CertExpired));
}

#[test]
fn a_bad_certificate_is_not_anonymous() {
    // Attacks 7 and 25.
    let fabric = Fabric::new();
    let open = fabric.trust("region-a/a1", TrustOptions { anonymous: Some(tenant("public")), ..plain() });
    let none = native(&fabric, &open, None);
    assert!(none.up());
    assert_eq!(none.server.peer_certificates(), None);
    let expired = issue(&valid(agent("acme", "region-a", "x"), -7_200, -1), &fabric.region_a);
    assert_eq!(native(&fabric, &open, Some(&expired)).refusal(), Some(Deny::CertExpired));
    let stranger = Fabric::new().agent("public", "region-a", "x");
    assert_eq!(native(&fabric, &open, Some(&stranger)).refusal(), Some(Deny::CertUntrusted));
    let forged = fabric.agent("public", "region-a", "x");
    assert_eq!(native(&fabric, &open, Some(&forged)).refusal(), Some(Deny::IssuerBinding), "no CA issues it");
}

#[test]
fn sessions_are_never_resumed() {
    // Attack 15: a ticket would outlive a revocation.
    let fabric = Fabric::new();
    let trust = fabric.trust("region-a/a1", plain());
    let leaf = fabric.agent("acme", "region-a", "x");
    let mut config = client_config(&fabric, Some(&leaf), ALPN_NATIVE);
    config.enable_early_data = true;
    let config = Arc::new(config);
    let server = native_tcp_server_config(&trust).unwrap();
    for _ in 0..3 {
        let mut outcome = handshake(&config, &server);
        assert!(outcome.up());
        assert_eq!(outcome.server.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(outcome.client.tls13_tickets_received(), 0);
        assert!(!outcome.client.is_early_data_accepted() && outcome.client.early_data().is_none());
    }
}

#[test]
fn early_data_and_tickets_are_off_in_every_configuration() {
    // Case RB-63.
    let fabric = Fabric::new();
    let trust = fabric.trust("region-a/a1", plain());
    for server in [native_tcp_server_config(&trust).unwrap(), nats_server_config(&trust).unwrap()] {
        assert_eq!((server.max_early_data_size, server.send_tls13_tickets), (0, 0));
        assert!(!server.session_storage.can_cache() && !server.ticketer.enabled());
        assert!(!server.send_half_rtt_data, "nothing is said before the peer's certificate is known");
    }
    let dialler = bridge_client_tls(&trust, NodeId::parse("region-a/a1").unwrap()).unwrap();
    assert!(!dialler.enable_early_data && !dialler.enable_sni);
    assert!(format!("{:?}", dialler.resumption).contains("NoClientSessionStorage"), "{:?}", dialler.resumption);
}

#[test]
fn the_wrong_protocol_is_refused() {
    let fabric = Fabric::new();
    let trust = fabric.trust("region-a/a1", plain());
    let leaf = fabric.agent("acme", "region-a", "x");
    let server = native_tcp_server_config(&trust).unwrap();
    let bridge = handshake(&Arc::new(client_config(&fabric, Some(&leaf), ALPN_BRIDGE)), &server);
    assert_eq!(bridge.server_error, Some(rustls::Error::NoApplicationProtocol), "attack 3");
    let mut silent = client_config(&fabric, Some(&leaf), ALPN_NATIVE);
    silent.alpn_protocols.clear();
    let silent = handshake(&Arc::new(silent), &server);
    assert_eq!(require_alpn(silent.server.alpn_protocol(), ALPN_NATIVE), Err(Deny::Protocol));
}

#[test]
fn a_dialler_accepts_only_the_broker_it_meant() {
    // Attack 20, over TLS in memory: the server shows another certificate.
    let fabric = Fabric::new();
    let trust = fabric.trust("region-a/a1", plain());
    let dial = |leaf: &Leaf, expected: &str| {
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(leaf.chain.clone(), leaf.key())
            .unwrap();
        server.alpn_protocols = vec![ALPN_BRIDGE.to_vec()];
        let client = bridge_client_tls(&trust, node(expected)).unwrap();
        let outcome = handshake(&Arc::new(client), &Arc::new(server));
        outcome.client_error.as_ref().and_then(deny_of)
    };
    assert_eq!(dial(&fabric.broker("global/g1"), "global/g1"), None);
    assert_eq!(dial(&fabric.broker("global/g1"), "region-b/b1"), Some(Deny::UnknownNode));
    assert_eq!(dial(&fabric.broker("region-b/b1"), "region-b/b1"), Some(Deny::UnknownNode), "no edge to it");
    assert_eq!(dial(&fabric.agent("acme", "region-a", "x"), "global/g1"), Some(Deny::CertUsage));
    let forged = issue(&broker("global/g1"), &fabric.region_b);
    assert_eq!(dial(&forged, "global/g1"), Some(Deny::IssuerBinding));
    let expired = issue(&valid(broker("global/g1"), -7_200, -1), &fabric.global);
    assert_eq!(dial(&expired, "global/g1"), Some(Deny::CertExpired));
    assert_eq!(dial(&Fabric::new().broker("global/g1"), "global/g1"), Some(Deny::CertUntrusted));
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// Dials a bridge endpoint; true when both ends agree that it is up, which takes a byte from the server.
async fn bridge_up(server: quinn::ServerConfig, client: quinn::ClientConfig) -> bool {
    let listener = quinn::Endpoint::server(server, loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move {
        let connection = listener.accept().await.unwrap().await.ok()?;
        let mut stream = connection.open_uni().await.ok()?;
        stream.write_all(b"x").await.ok()?;
        stream.finish().ok()?;
        connection.closed().await;
        Some(())
    });
    let dialler = quinn::Endpoint::client(loopback()).unwrap();
    let dialled = async {
        let connection = dialler.connect_with(client, address, BRIDGE_SERVER_NAME).unwrap().await.ok()?;
        let byte = connection.accept_uni().await.ok()?.read_to_end(1).await.ok()?;
        assert!(crate::congestion::Window::of(&connection).is_watched(), "a bridge's window follows its path");
        connection.close(0u32.into(), b"");
        Some(byte == b"x")
    };
    let up = tokio::time::timeout(Duration::from_secs(20), dialled).await.expect("no answer") == Some(true);
    let accepted = tokio::time::timeout(Duration::from_secs(20), accepting).await.expect("no end").unwrap();
    assert_eq!(up, accepted.is_some(), "both ends agree");
    up
}

#[tokio::test]
async fn bridges_come_up_between_neighbours_only() {
    let fabric = Fabric::new();
    let (global, region_a) = (fabric.trust("global/g1", plain()), fabric.trust("region-a/a1", plain()));
    let region_b = fabric.trust("region-b/b1", plain());
    let server = |trust: &Arc<Trust>| bridge_server_config(trust).unwrap();
    let to = |trust: &Arc<Trust>, peer: &str| bridge_client_config(trust, node(peer)).unwrap();
    assert!(bridge_up(server(&global), to(&region_a, "global/g1")).await);
    assert!(bridge_up(server(&region_a), to(&global, "region-a/a1")).await);
    assert!(!bridge_up(server(&region_b), to(&region_a, "region-b/b1")).await, "no edge");
    assert!(!bridge_up(server(&global), to(&region_a, "region-b/b1")).await, "not the broker that was meant");
    assert_eq!(region_a.refusals().count(Deny::UnknownNode), 2);
}

#[tokio::test]
async fn clients_cannot_open_bridges() {
    // Attack 3: the right ALPN with an agent's certificate, and a broker on the native port.
    let fabric = Fabric::new();
    let global = fabric.trust("global/g1", plain());
    let quic = |leaf: &Leaf, alpn: &[u8]| {
        let tls = client_config(&fabric, Some(leaf), alpn);
        quinn::ClientConfig::new(Arc::new(quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap()))
    };
    type Answer = Result<(), Option<(Side, Deny)>>;
    let dial = async |server: quinn::ServerConfig, client: quinn::ClientConfig| -> (Answer, Answer) {
        let listener = quinn::Endpoint::server(server, loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let dialler = quinn::Endpoint::client(loopback()).unwrap();
        let connecting = dialler.connect_with(client, address, "localhost").unwrap();
        let accepted = async {
            let connection = listener.accept().await.unwrap().await.map_err(|error| deny_of_quic(&error))?;
            let principal = global.identify_client(PeerChain::of_quic(&connection).certificates(), unix_now());
            assert_eq!(principal.unwrap().tenant().as_str(), "acme");
            connection.close(1u32.into(), b"");
            Ok(())
        };
        // The client believes itself connected before the server has looked at its certificate.
        let connected = async {
            let closed = match connecting.await {
                Ok(connection) => connection.closed().await,
                Err(error) => error,
            };
            match closed {
                quinn::ConnectionError::ApplicationClosed(_) => Ok(()),
                error => Err(deny_of_quic(&error)),
            }
        };
        let both = async { tokio::join!(accepted, connected) };
        tokio::time::timeout(Duration::from_secs(20), both).await.expect("no answer")
    };
    let refused = |reason| (Err(Some((Side::Local, reason))), Err(Some((Side::Peer, reason))));
    let (agent, broker) = (fabric.agent("acme", "global", "x"), fabric.broker("region-a/a1"));
    let outcome = dial(bridge_server_config(&global).unwrap(), quic(&agent, ALPN_BRIDGE)).await;
    assert_eq!(outcome, refused(Deny::ClientOnBridgePort));
    assert_eq!(global.refusals().count(Deny::ClientOnBridgePort), 1);
    let outcome = dial(native_quic_server_config(&global).unwrap(), quic(&broker, ALPN_NATIVE)).await;
    assert_eq!(outcome, refused(Deny::NodeOnClientPort));
    assert_eq!(global.refusals().count(Deny::NodeOnClientPort), 1);
    let outcome = dial(native_quic_server_config(&global).unwrap(), quic(&agent, ALPN_BRIDGE)).await;
    assert_eq!(outcome, (Err(None), Err(None)), "wrong ALPN");
    let expired = issue(&valid(testing::agent("acme", "region-a", "x"), -7_200, -1), &fabric.region_a);
    let outcome = dial(native_quic_server_config(&global).unwrap(), quic(&expired, ALPN_NATIVE)).await;
    assert_eq!(outcome, refused(Deny::CertExpired));
    let good = fabric.agent("acme", "region-a", "x");
    assert_eq!(dial(native_quic_server_config(&global).unwrap(), quic(&good, ALPN_NATIVE)).await, (Ok(()), Ok(())));
}
