//! Whom the client trusts, and what it says when it is not trusted.

use std::io;

use tokio::net::TcpListener;

use super::*;

async fn refusal(options: ConnectOptions) -> ConnectError {
    Client::connect(options).await.expect_err("refused")
}

#[tokio::test]
async fn only_a_broker_of_this_fabric_for_this_host_is_trusted() {
    let pki = Pki::new();
    let other = Pki::new();
    let cases = [
        (pki.broker(&[NODE], &["other.example"]), ServerError::Host("127.0.0.1".to_owned())),
        (pki.broker(&[], &["127.0.0.1"]), ServerError::NotABroker),
        (pki.broker(&["glocal://node/x"], &["127.0.0.1"]), ServerError::NotABroker),
        (pki.broker(&["glocal://node/a/b", NODE], &["127.0.0.1"]), ServerError::NotABroker),
        (pki.broker(&["https://node/a/b"], &["127.0.0.1"]), ServerError::NotABroker),
        (pki.agent("agent"), ServerError::Usage),
        (other.broker(&[NODE], &["127.0.0.1"]), ServerError::Untrusted),
    ];
    for (leaf, expected) in cases {
        for broker in [Broker::tls(&pki, &leaf).await, Broker::quic(&pki, &leaf).await] {
            let error = refusal(options(&pki, &broker)).await;
            assert!(
                matches!(&error, ConnectError::Server { source, .. } if *source == expected),
                "{}: {error:?} instead of {expected:?}",
                broker.address
            );
        }
    }
}

#[tokio::test]
async fn an_expected_node_is_the_only_one() {
    let (pki, broker, _client) = world().await;
    let mut options = options(&pki, &broker);
    options.expected_node = Some("region-a/broker".to_owned());
    Client::connect(options.clone()).await.unwrap();
    options.expected_node = Some("region-a/other".to_owned());
    let error = refusal(options.clone()).await;
    assert!(matches!(&error, ConnectError::Server { source: ServerError::OtherBroker { .. }, .. }), "{error:?}");
    options.expected_node = Some("nonsense".to_owned());
    assert!(matches!(refusal(options).await, ConnectError::NodeName(_)));
}

#[tokio::test]
async fn a_refused_certificate_is_explained_though_tls_13_says_so_late() {
    let pki = Pki::new();
    let leaf = pki.broker(&[NODE], &["127.0.0.1"]);
    for broker in [Broker::tls(&pki, &leaf).await, Broker::quic(&pki, &leaf).await] {
        let mut without = options(&pki, &broker);
        without.identity = None;
        let text = refusal(without).await.to_string();
        assert!(text.contains("refused this certificate (it requires one and none was sent)"), "{text}");
        assert!(text.contains(&broker.address), "{text}");

        let stranger = Pki::new().agent("agent");
        let foreign = options(&pki, &broker).identity(stranger.chain_source(), stranger.key_source());
        let text = refusal(foreign).await.to_string();
        assert!(text.contains("refused this certificate (it is not issued by this fabric"), "{text}");
    }
}

#[tokio::test]
async fn another_protocol_is_named() {
    let pki = Pki::new();
    let leaf = pki.broker(&[NODE], &["127.0.0.1"]);
    let broker = Broker::tls_alpn(&pki, &leaf, b"glocal-bridge/1").await;
    let error = refusal(options(&pki, &broker)).await;
    assert!(matches!(error, ConnectError::RefusedProtocol { .. }), "{error:?}");
}

#[tokio::test]
async fn files_are_named_when_they_are_wrong() {
    let pki = Pki::new();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        PemSource::File(path)
    };
    let (agent, other) = (pki.agent("agent"), pki.agent("other"));
    let base = ConnectOptions::new(vec!["127.0.0.1:1".parse().unwrap()], file("root.pem", &pki.root_pem));
    let (cert, key) = (file("agent.pem", &agent.chain_pem), file("agent.key", &agent.key_pem()));
    base.clone().identity(cert.clone(), key.clone()).check().unwrap();

    let missing = PemSource::File(dir.path().join("missing.pem"));
    let cases = [
        (base.clone().identity(missing.clone(), key.clone()), "missing.pem"),
        (base.clone().identity(cert.clone(), missing), "missing.pem"),
        (base.clone().identity(file("empty.pem", ""), key.clone()), "empty.pem"),
        (base.clone().identity(cert.clone(), cert.clone()), "agent.pem"),
        (base.clone().identity(cert, file("other.key", &other.key_pem())), "other.key"),
        (ConnectOptions { root: file("bad.pem", "-----BEGIN CERTIFICATE-----\n?"), ..base }, "bad.pem"),
    ];
    for (options, name) in cases {
        let text = options.check().expect_err(name).to_string();
        assert!(text.contains(name), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
}

#[tokio::test]
async fn who_does_not_answer_is_named_and_others_are_tried() {
    let (pki, broker, _client) = world().await;
    // Bound and closed again: nobody listens there.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = options(&pki, &broker);
    options.timeouts.connect = Duration::from_millis(300);
    let good = options.addresses.clone();
    let closed: Address = closed.to_string().parse().unwrap();
    let silent: Address = silent.local_addr().unwrap().to_string().parse().unwrap();

    options.addresses = vec![closed.clone()];
    let error = refusal(options.clone()).await;
    let ConnectError::Unreachable { address, source } = &error else { panic!("{error:?}") };
    assert_eq!((address, source.kind()), (&closed, io::ErrorKind::ConnectionRefused));

    options.addresses = vec![silent.clone()];
    assert!(matches!(refusal(options.clone()).await, ConnectError::Timeout { .. }));

    options.addresses = vec![closed.clone(), silent.clone()];
    let text = refusal(options.clone()).await.to_string();
    assert!(text.contains(&closed.to_string()) && text.contains(&silent.to_string()), "{text}");

    options.addresses = [vec![closed], good].concat();
    for _ in 0..4 {
        Client::connect(options.clone()).await.unwrap();
    }
    options.addresses.clear();
    assert!(matches!(refusal(options).await, ConnectError::NoAddress));
}

#[tokio::test]
async fn what_does_not_speak_tls_is_named() {
    let (pki, broker, _client) = world().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = options(&pki, &broker);
    options.addresses = vec![listener.local_addr().unwrap().to_string().parse().unwrap()];
    let plain = tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let _ = tokio::io::AsyncWriteExt::write_all(&mut tcp, b"INFO {}\r\n").await;
        // The peer closes.
        let _ = tokio::io::AsyncReadExt::read(&mut tcp, &mut [0; 16384]).await;
        tcp
    });
    let text = refusal(options).await.to_string();
    assert!(text.contains("does not speak TLS"), "{text}");
    drop(plain.await);
}
