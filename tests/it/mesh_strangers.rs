//! Connections that break the protocol, say nothing, or say it one byte at a time: each is closed, with the reason where
//! there is somebody to hear it, and a session beside them notices nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use glocal_client::Client;
use glocal_core::limits::HANDSHAKE_MS_MAX;
use glocal_core::name::Class;
use glocal_wire::control::{Control, Goodbye, Ping, Subscribe};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};

use crate::support::bridge::{Opening, bridge_hello};
use crate::support::fabric::Fabric;
use crate::support::node::{Local, REGION_A};
use crate::support::peer::{BRIDGE, Heard, NATIVE, Peer, frame, hello, publish, quic, tls_of};
use crate::support::soon;

/// Slack over the deadline: two busy cores.
const SLACK: Duration = Duration::from_secs(4);

/// A session that behaves, and asks itself all the time how long an answer takes.
struct Witness {
    task: JoinHandle<(usize, Duration)>,
    stop: Arc<AtomicBool>,
}

impl Witness {
    async fn start(fabric: &Fabric, node: &Local) -> Self {
        let (client, server) = (fabric.client(node.at(), "alice").await, fabric.client(node.at(), "andy").await);
        let mut service = server.subscribe("echo", None).await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            tokio::spawn(async move {
                let _server: Client = server;
                while let Some(request) = service.next().await {
                    request.respond("yes").await.unwrap();
                }
            });
            let (mut asked, mut slowest) = (0, Duration::ZERO);
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                client.request("echo", "", Duration::from_secs(10)).await.unwrap();
                slowest = slowest.max(began.elapsed());
                asked += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(client.statistics().reconnects, 0);
            (asked, slowest)
        });
        Self { task, stop }
    }

    /// Nothing was lost, and no answer took as long as a stall would.
    async fn was_undisturbed(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (asked, slowest) = soon("the witness", self.task).await.unwrap();
        assert!(asked > 10, "{asked}");
        assert!(slowest < Duration::from_secs(2), "an answer took {slowest:?}");
    }
}

/// Reads until the end of the connection; how long that took.
async fn held(mut stream: TcpStream) -> Duration {
    let began = Instant::now();
    let mut sink = [0; 4096];
    while stream.read(&mut sink).await.is_ok_and(|n| n > 0) {}
    began.elapsed()
}

/// The first bytes of a real TLS client.
fn client_hello(fabric: &Fabric) -> Vec<u8> {
    let config = tls_of(fabric, None, NATIVE);
    let name = crate::support::peer::server_name();
    let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

async fn say_nothing(at: SocketAddr) -> Duration {
    held(TcpStream::connect(at).await.unwrap()).await
}

async fn say_half(at: SocketAddr, hello: Vec<u8>) -> Duration {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(&hello[..hello.len() / 2]).await.unwrap();
    held(stream).await
}

async fn say_it_slowly(at: SocketAddr, hello: Vec<u8>) -> Duration {
    let stream = TcpStream::connect(at).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let writer = tokio::spawn(async move {
        for byte in hello {
            if write.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let began = Instant::now();
    let mut sink = [0; 64];
    while read.read(&mut sink).await.is_ok_and(|n| n > 0) {}
    writer.abort();
    began.elapsed()
}

/// A whole handshake and no hello.
async fn say_no_hello(mut peer: Peer) -> Duration {
    let began = Instant::now();
    let code = peer.refused_with().await;
    assert_eq!(code.as_deref(), Some("no-hello"));
    began.elapsed()
}

/// A handshake that takes half of the time, and no hello: there is one deadline for both.
async fn say_no_hello_late(at: SocketAddr, tls: rustls::ClientConfig) -> Duration {
    let tcp = TcpStream::connect(at).await.unwrap();
    let began = Instant::now();
    tokio::time::sleep(Duration::from_millis(HANDSHAKE_MS_MAX / 2)).await;
    let mut peer = Peer::over(tcp, tls).await.unwrap();
    assert_eq!(peer.refused_with().await.as_deref(), Some("no-hello"));
    began.elapsed()
}

/// A whole handshake and a hello that comes one byte a second.
async fn say_hello_slowly(mut peer: Peer) -> Duration {
    let began = Instant::now();
    let bytes = frame(hello());
    loop {
        let sent = usize::try_from(began.elapsed().as_secs()).unwrap();
        if peer.send_bytes(&bytes[sent..=sent]).await.is_err() {
            break;
        }
        match tokio::time::timeout(Duration::from_secs(1), peer.next()).await {
            Err(_) => {}
            Ok(Ok(Some(Heard::Control(Control::Error(error))))) => {
                assert_eq!(error.code, "no-hello");
                break;
            }
            Ok(other) => panic!("{other:?}"),
        }
    }
    began.elapsed()
}

/// A QUIC connection on which nothing is opened, or only an empty stream.
async fn quic_without_stream(connection: quinn::Connection, open: bool) -> Duration {
    let began = Instant::now();
    let _stream = if open { Some(connection.open_bi().await.unwrap()) } else { None };
    soon("the broker to close", connection.closed()).await;
    began.elapsed()
}

/// A QUIC client's first datagram, and nothing after it.
async fn quic_first_datagram(fabric: &Fabric, at: SocketAddr) {
    let catcher = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let to = catcher.local_addr().unwrap();
    let tls = tls_of(fabric, None, NATIVE);
    let dial = tokio::spawn(async move { quic(to, tls).await });
    let mut datagram = vec![0; 2048];
    let bytes = soon("a datagram", catcher.recv(&mut datagram)).await.unwrap();
    dial.abort();
    for _ in 0..20 {
        catcher.send_to(&datagram[..bytes], at).await.unwrap();
    }
    catcher.send_to(&[0xff; 1200], at).await.unwrap();
    catcher.send_to(&[0; 3], at).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_and_slow_connections_are_cut_at_the_deadline_and_disturb_nobody() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let witness = Witness::start(&fabric, &node).await;
    let (tcp, udp, bridge) = (node.at().native_tcp, node.at().native_quic, node.at().bridge);
    let alice = fabric.agent("alice");
    let native = || tls_of(&fabric, Some(&alice), NATIVE);
    let hello = client_hello(&fabric);
    let mut strangers = JoinSet::new();
    for _ in 0..50 {
        strangers.spawn(say_nothing(tcp));
        strangers.spawn(say_half(tcp, hello.clone()));
    }
    strangers.spawn(say_it_slowly(tcp, hello.clone()));
    for _ in 0..3 {
        strangers.spawn(say_no_hello(Peer::tcp(tcp, native()).await.unwrap()));
    }
    strangers.spawn(say_no_hello_late(tcp, native()));
    strangers.spawn(say_hello_slowly(Peer::tcp(tcp, native()).await.unwrap()));
    strangers.spawn(say_hello_slowly(Peer::quic(udp, native()).await.unwrap()));
    for open in [false, true] {
        strangers.spawn(quic_without_stream(quic(udp, native()).await.unwrap(), open));
        let node_tls = tls_of(&fabric, Some(&fabric.node_credential("global/broker-g")), BRIDGE);
        strangers.spawn(quic_without_stream(quic(bridge, node_tls).await.unwrap(), open));
    }
    quic_first_datagram(&fabric, udp).await;
    quic_first_datagram(&fabric, bridge).await;
    // New clients get in meanwhile.
    for _ in 0..20 {
        let began = Instant::now();
        let client = fabric.client(node.at(), "alice").await;
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        client.close().await;
    }
    let expected = strangers.len();
    let deadline = Duration::from_millis(HANDSHAKE_MS_MAX);
    let mut cut = 0;
    while let Some(held) = strangers.join_next().await {
        let held = held.unwrap();
        assert!(held > deadline - SLACK && held < deadline + SLACK, "cut after {held:?}");
        cut += 1;
    }
    assert_eq!(cut, expected);
    witness.was_undisturbed().await;
    // The bridge connections without a hello are told by their edge.
    let failed = node.metric("glocal_handshakes_failed_total", &[]).await;
    assert!(failed > 100 + 1 + 3 + 2, "{failed}");
}

/// Frames that nobody may send after a hello, each with the code of the refusal.
fn bad_frames() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let data = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = publish(Class::Live, b"a.b", b"", b"x").to_vec();
        change(&mut bytes);
        bytes
    };
    let control = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = frame(Ping { token: 300 }).to_vec();
        change(&mut bytes);
        bytes
    };
    let subscribe = |change: &dyn Fn(&mut Vec<u8>)| {
        let body = Subscribe { sid: 1, filter: "a".to_owned(), queue: None, local_only: false };
        let mut bytes = frame(body).to_vec();
        change(&mut bytes);
        bytes
    };
    let length = |bytes: &mut Vec<u8>, len: u32| bytes[..4].copy_from_slice(&len.to_le_bytes());
    let relen = |bytes: &mut Vec<u8>| {
        let len = u32::try_from(bytes.len() - 4).unwrap();
        bytes[..4].copy_from_slice(&len.to_le_bytes());
    };
    vec![
        ("unknown control kind", vec![4, 0, 0, 0, 0x0f, 0, 0, 0], "unknown-kind"),
        ("unknown data kind", data(&|b| b[4] = 0x7f), "unknown-kind"),
        ("kind 0", vec![4, 0, 0, 0, 0, 0, 0, 0], "unknown-kind"),
        ("reserved bytes", control(&|b| b[7] = 1), "reserved-not-zero"),
        ("length 0", control(&|b| length(b, 0)), "frame-truncated"),
        ("a control frame of 4 GiB", control(&|b| length(b, u32::MAX)), "control-too-large"),
        ("a control frame of 64 KiB and one", control(&|b| length(b, 65_536 + 5)), "control-too-large"),
        ("a payload of 4 GiB", data(&|b| length(b, u32::MAX)), "payload-too-large"),
        ("a payload of 1 MiB and one", data(&|b| length(b, 1_048_577 + 12 + 8 + 3)), "payload-too-large"),
        ("a name longer than its frame", data(&|b| b[8] = 200), "frame-truncated"),
        ("a name longer than names are", data(&|b| b[9] = 0xff), "part-too-long"),
        ("unknown flags", data(&|b| b[5] |= 0x80), "unknown-flags"),
        ("an unknown class", data(&|b| b[6] = 9), "bad-class"),
        ("hops of a client", data(&|b| b[7] = 1), "bad-hops"),
        ("a body of nothing", frame_of(0x09, &[]), "bad-body"),
        ("a body with a number that never ends", frame_of(0x09, &[0xfd, 1]), "bad-body"),
        ("bytes after the body", frame_of(0x09, &[1, 1]), "frame-trailing"),
        ("a string of 2^63 bytes", frame_of(0x03, &[1, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0x80]), "bad-body"),
        (
            "bad UTF-8",
            subscribe(&|b| {
                let at = b.len() - 3;
                b[at] = 0xff;
            }),
            "bad-body",
        ),
        (
            "a string cut off",
            subscribe(&|b| {
                b.truncate(b.len() - 3);
                relen(b);
            }),
            "bad-body",
        ),
    ]
}

fn frame_of(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 4).unwrap();
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend_from_slice(&[kind, 0, 0, 0]);
    bytes.extend_from_slice(body);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_frames_are_refused_by_name_over_tcp_and_quic() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let witness = Witness::start(&fabric, &node).await;
    let bob = fabric.agent("bob");
    let native = || tls_of(&fabric, Some(&bob), NATIVE);
    let before = node.metric("glocal_protocol_errors_total", &[]).await;
    let frames = bad_frames();
    for (what, bytes, code) in &frames {
        let mut peers = [
            Peer::tcp(node.at().native_tcp, native()).await.unwrap(),
            Peer::quic(node.at().native_quic, native()).await.unwrap(),
        ];
        for peer in &mut peers {
            peer.hello().await.unwrap();
            peer.send_bytes(bytes).await.unwrap();
            let heard = peer.until_closed().await;
            let last = heard.last().unwrap_or_else(|| panic!("{what}: closed without a word"));
            assert!(matches!(last, Heard::Control(Control::Error(e)) if e.code == *code), "{what}: {heard:?}");
        }
    }
    let after = node.metric("glocal_protocol_errors_total", &[]).await;
    assert_eq!(after - before, 2 * frames.len() as u64);
    assert_eq!(node.metric("glocal_published_total", &["tenantB"]).await, 0, "nothing of it was carried out");
    // Every frame before the hello, and a second hello.
    for (what, bytes, code) in [
        (
            "a subscription",
            frame(Subscribe { sid: 1, filter: "a".to_owned(), queue: None, local_only: false }),
            "unexpected-frame",
        ),
        ("a ping", frame(Ping { token: 1 }), "unexpected-frame"),
        ("a message", publish(Class::Live, b"a", b"", b"x"), "unexpected-data"),
        ("a goodbye", frame(Goodbye { code: "x".to_owned(), text: String::new(), grace_ms: 0 }), "unexpected-frame"),
        ("more than a hello may be", frame_of(0x01, &[0; 4097])[..].into(), "control-too-large"),
    ] {
        let mut peer = Peer::tcp(node.at().native_tcp, native()).await.unwrap();
        peer.send_bytes(&bytes).await.unwrap();
        assert_eq!(peer.refused_with().await.as_deref(), Some(code), "{what} before the hello");
    }
    let mut peer = Peer::tcp(node.at().native_tcp, native()).await.unwrap();
    peer.hello().await.unwrap();
    peer.send(hello()).await.unwrap();
    assert_eq!(peer.refused_with().await.as_deref(), Some("unexpected-frame"), "a second hello");
    witness.was_undisturbed().await;
}

/// Case RB-19.
#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_frame_in_every_state_is_carried_out_or_refused() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let bob = fabric.agent("bob");
    // What a client may send after its hello, and what is skipped.
    let welcome = [0x03u8, 0x05, 0x09, 0x0a];
    let skipped = |kind: u8| (0x20..0x40).contains(&kind) && !Control::KINDS.contains(&kind);
    for kind in 0u8..=255 {
        for greeted in [false, true] {
            let mut peer = Peer::tcp(node.at().native_tcp, tls_of(&fabric, Some(&bob), NATIVE)).await.unwrap();
            if greeted {
                peer.hello().await.unwrap();
            }
            // A body that is none, for every kind that has one: it must be refused, too.
            peer.send_bytes(&frame_of(kind, &[0xff; 12])).await.unwrap();
            let goes_on = greeted && skipped(kind);
            if goes_on {
                peer.send(Ping { token: 5 }).await.unwrap();
                assert!(matches!(peer.control().await, Control::Pong(p) if p.token == 5), "{kind:#04x}");
            } else {
                let code = peer.refused_with().await;
                assert!(code.is_some(), "kind {kind:#04x}, greeted {greeted}: closed without a word");
            }
        }
    }
    // The well-formed frames of brokers, on a client's connection.
    let opening = Opening { node: "global/broker-g", edge: "global-region-a", tenants: &[] };
    for kind in [frame(bridge_hello(&opening)), frame(glocal_wire::control::Probe { id: 1 })] {
        assert!(!welcome.contains(&kind[4]));
        for greeted in [false, true] {
            let mut peer = Peer::tcp(node.at().native_tcp, tls_of(&fabric, Some(&bob), NATIVE)).await.unwrap();
            if greeted {
                peer.hello().await.unwrap();
            }
            peer.send_bytes(&kind).await.unwrap();
            assert_eq!(peer.refused_with().await.as_deref(), Some("unexpected-frame"));
        }
    }
    assert_eq!(node.metric("glocal_published_total", &[]).await, 0);
    assert_eq!(node.0.context().control.inspect().await.subscriptions, 0);
}

/// Case RB-19 and RB-31.
#[tokio::test(flavor = "multi_thread")]
async fn other_protocols_are_not_spoken_here() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let (alice, broker) = (fabric.agent("alice"), fabric.node_credential("global/broker-g"));
    let before = node.metric("glocal_handshakes_failed_total", &[]).await;
    let mut refused = 0;
    for alpn in [BRIDGE, b"h2", b"glocal/2", b""] {
        for credential in [&alice, &broker] {
            let mut tls = tls_of(&fabric, Some(credential), alpn);
            if alpn.is_empty() {
                tls.alpn_protocols.clear();
            }
            let mut quic_tls = tls.clone();
            quic_tls.alpn_protocols.retain(|p| !p.is_empty());
            for connect in
                [Peer::tcp(node.at().native_tcp, tls).await, Peer::quic(node.at().native_quic, quic_tls).await]
            {
                let Ok(mut peer) = connect else {
                    refused += 1;
                    continue;
                };
                assert!(peer.hello().await.is_err(), "{alpn:?}");
                refused += 1;
            }
        }
    }
    // Of clients, on the bridge port.
    for (credential, alpn) in [(&alice, NATIVE), (&alice, BRIDGE), (&broker, NATIVE)] {
        let Ok(connection) = quic(node.at().bridge, tls_of(&fabric, Some(credential), alpn)).await else {
            refused += 1;
            continue;
        };
        soon("the bridge port to close", connection.closed()).await;
        refused += 1;
    }
    assert_eq!(refused, 4 * 2 * 2 + 3);
    let failed = || node.metric("glocal_handshakes_failed_total", &[]);
    let deadline = Instant::now() + Duration::from_secs(10);
    while failed().await - before < refused {
        assert!(Instant::now() < deadline, "{} of {refused} are counted", failed().await - before);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A plain HTTP client learns nothing, and costs nothing.
    let mut stream = TcpStream::connect(node.at().native_tcp).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = soon("an end", stream.read_to_end(&mut answer)).await;
    assert!(answer.len() < 16, "{answer:?}");
}
