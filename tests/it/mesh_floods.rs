//! Clients with good certificates that send what costs them nothing: key updates, records of one byte and of none, alerts,
//! pings (case RB-65). Either the broker closes the connection by a rule, or it carries all of it out in bounded memory and on
//! one core; another client notices nothing.
//!
//! `GLOCAL_FLOOD_RECORDS` says how many records of each kind are sent (100 000 in a long run).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use glocal_client::Client;
use glocal_wire::control::{Ping, Pong};
use rustls::{ClientConnection, ConnectionTrafficSecrets};

use crate::support::fabric::Fabric;
use crate::support::node::{GLOBAL, Process};
use crate::support::peer::{BRIDGE, NATIVE, frame, hello, server_name, tls_of};
use crate::support::{PATIENCE, eventually, resident, soon};

const MIB: u64 = 1024 * 1024;

fn records() -> u64 {
    std::env::var("GLOCAL_FLOOD_RECORDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000)
}

/// CPU time that a process has used.
fn cpu(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // After the name in parentheses; user and system time are fields 14 and 15 of all, in hundredths of a second.
    let (_, rest) = text.rsplit_once(')').unwrap();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks: u64 = [fields[11], fields[12]].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// One session over TLS/TCP that is up: the certificate is accepted, and the first frames are exchanged.
struct Session {
    tcp: TcpStream,
    tls: ClientConnection,
}

impl Session {
    fn open(fabric: &Fabric, at: SocketAddr, nats: bool) -> Self {
        let mut config = tls_of(fabric, Some(&fabric.agent("alice")), NATIVE);
        config.enable_secret_extraction = true;
        config.enable_early_data = false;
        if nats {
            config.alpn_protocols.clear();
        }
        let mut tls = ClientConnection::new(Arc::new(config), server_name()).unwrap();
        let mut tcp = TcpStream::connect(at).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        tcp.set_write_timeout(Some(PATIENCE)).unwrap();
        let first = if nats { b"CONNECT {\"verbose\":false}\r\nPING\r\n".to_vec() } else { frame(hello()).to_vec() };
        let mut stream = rustls::Stream::new(&mut tls, &mut tcp);
        stream.write_all(&first).unwrap();
        let mut answer = Vec::new();
        let mut part = [0; 4096];
        while answer.is_empty() || nats && !answer.ends_with(b"PONG\r\n") {
            let bytes = stream.read(&mut part).unwrap();
            assert!(bytes > 0, "closed after {answer:?}");
            answer.extend_from_slice(&part[..bytes]);
        }
        Self { tcp, tls }
    }

    /// Sends what the TLS connection holds; whether the broker still takes it.
    fn push(&mut self) -> bool {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.tcp) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// Seals records by hand: what no TLS library sends.
struct Sealer {
    tcp: TcpStream,
    key: LessSafeKey,
    iv: [u8; 12],
    number: u64,
}

impl Sealer {
    fn new(session: Session) -> Self {
        let secrets = session.tls.dangerous_extract_secrets().unwrap();
        let (number, secret) = secrets.tx;
        let (algorithm, key, iv) = match &secret {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => panic!("a cipher suite that is not offered"),
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).unwrap());
        Self { tcp: session.tcp, key, iv: iv.as_ref().try_into().unwrap(), number }
    }

    /// A record of this content type (RFC 8446 section 5.2).
    fn seal(&mut self, kind: u8, content: &[u8], padding: usize, out: &mut Vec<u8>) {
        let mut nonce = self.iv;
        nonce.iter_mut().skip(4).zip(self.number.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        self.number += 1;
        let mut inner = [content, &[kind]].concat();
        inner.resize(inner.len() + padding, 0);
        let len = u16::try_from(inner.len() + 16).unwrap().to_be_bytes();
        let head = [23, 3, 3, len[0], len[1]];
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce, Aad::from(head), &mut inner).unwrap();
        out.extend_from_slice(&head);
        out.extend_from_slice(&inner);
    }
}

/// Whether the broker has closed.
fn is_closed(tcp: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match tcp.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }
}

/// What a flood came to.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The broker closed the connection.
    Closed,
    /// It took everything.
    Taken,
}

/// One kind of flood: sends so many of its records.
type Flood = fn(Session, u64, bool) -> Outcome;

/// Each update asks for one in return.
fn key_updates(mut session: Session, count: u64, _: bool) -> Outcome {
    for _ in 0..count {
        session.tls.refresh_traffic_keys().unwrap();
        if !session.push() {
            return Outcome::Closed;
        }
    }
    if is_closed(&mut session.tcp) { Outcome::Closed } else { Outcome::Taken }
}

fn a_ping(nats: bool) -> Vec<u8> {
    if nats { b"PING\r\n".to_vec() } else { frame(Ping { token: 7 }).to_vec() }
}

/// With a ping between any two, so that no rule about many in a row applies; and nothing is read for a long time.
fn key_updates_and_pings(mut session: Session, count: u64, nats: bool) -> Outcome {
    for _ in 0..count {
        session.tls.refresh_traffic_keys().unwrap();
        session.tls.writer().write_all(&a_ping(nats)).unwrap();
        if !session.push() {
            return Outcome::Closed;
        }
    }
    answers(session, count, nats)
}

/// Good frames, one byte in each record.
fn single_bytes(mut session: Session, count: u64, nats: bool) -> Outcome {
    let ping = a_ping(nats);
    let pings = count / ping.len() as u64;
    for _ in 0..pings {
        for byte in &ping {
            session.tls.writer().write_all(&[*byte]).unwrap();
        }
        if !session.push() {
            return Outcome::Closed;
        }
    }
    answers(session, pings, nats)
}

/// Reads the answer to every ping.
fn answers(mut session: Session, pings: u64, nats: bool) -> Outcome {
    let answer = if nats { b"PONG\r\n".to_vec() } else { frame(Pong { token: 7 }).to_vec() };
    let mut left = usize::try_from(pings).unwrap() * answer.len();
    let mut part = vec![0; 64 * 1024];
    while left > 0 {
        let most = left.min(part.len());
        match rustls::Stream::new(&mut session.tls, &mut session.tcp).read(&mut part[..most]) {
            Ok(bytes @ 1..) => left -= bytes,
            other => panic!("{left} bytes of answers are missing: {other:?}"),
        }
    }
    Outcome::Taken
}

/// Records by hand, until the broker closes or all are sent.
fn sealed(session: Session, count: u64, kind: u8, content: &[u8], padding: usize) -> Outcome {
    let mut sealer = Sealer::new(session);
    let mut out = Vec::new();
    for number in 0..count {
        sealer.seal(kind, content, padding, &mut out);
        if number % 64 == 63 || number + 1 == count {
            if sealer.tcp.write_all(&out).is_err() {
                return Outcome::Closed;
            }
            out.clear();
        }
    }
    if is_closed(&mut sealer.tcp) { Outcome::Closed } else { Outcome::Taken }
}

fn empty_records(session: Session, count: u64, _: bool) -> Outcome {
    sealed(session, count, 23, b"", 0)
}

fn records_of_padding(session: Session, count: u64, _: bool) -> Outcome {
    sealed(session, count, 23, b"", 16_000)
}

fn warnings(session: Session, count: u64, _: bool) -> Outcome {
    sealed(session, count, 21, &[1, 90], 0)
}

fn parts_of_a_handshake_message(session: Session, count: u64, _: bool) -> Outcome {
    // The head of a message of 16 MiB, byte by byte: what follows is kept until it is whole, if anything is.
    sealed(session, count, 22, &[0xff; 1024], 0)
}

/// Each flood alone, in its own session; memory, CPU and a witness beside it.
#[tokio::test(flavor = "multi_thread")]
async fn floods_of_records_are_cut_or_cost_little() {
    let fabric = Arc::new(Fabric::new());
    let node = Process::start_with(&fabric, GLOBAL, &[("nats_port", "0")], &[]);
    let witness = fabric.client(&node.at, "andy").await;
    let floods: [(&str, Flood, u64, Outcome); 7] = [
        ("key updates", key_updates, records(), Outcome::Closed),
        ("key updates between pings", key_updates_and_pings, records(), Outcome::Taken),
        ("records of one byte", single_bytes, records() * 4, Outcome::Taken),
        ("empty records", empty_records, records(), Outcome::Closed),
        ("records of padding", records_of_padding, records() / 10, Outcome::Closed),
        ("warnings", warnings, records(), Outcome::Closed),
        ("parts of a handshake message", parts_of_a_handshake_message, records(), Outcome::Closed),
    ];
    for (at, nats) in [(node.at.native_tcp, false), (node.at.nats.unwrap(), true)] {
        for (what, flood, count, expected) in &floods {
            let (what, flood, count) = (*what, *flood, *count);
            let before = (resident(node.child.id()), cpu(node.child.id()), Instant::now());
            let held = Arc::clone(&fabric);
            let flooding = tokio::task::spawn_blocking(move || flood(Session::open(&held, at, nats), count, nats));
            let most = watch(&node, &witness, || flooding.is_finished()).await;
            let outcome = flooding.await.unwrap();
            let (grown, used) = (most.saturating_sub(before.0), cpu(node.child.id()) - before.1);
            println!(
                "{what}, NATS {nats}: {outcome:?}, {} KiB more, {used:?} of {:?}",
                grown / 1024,
                before.2.elapsed()
            );
            assert_eq!(outcome, *expected, "{what}, NATS {nats}");
            assert!(grown < 16 * MIB, "{what}, NATS {nats}: {} MiB more", grown / MIB);
            // One core, and what the witness and the clock's grain add.
            assert!(used < before.2.elapsed() + Duration::from_millis(200), "{what}, NATS {nats}: {used:?}");
        }
    }
    assert_eq!(witness.statistics().reconnects, 0);
    assert!(!node.log().contains("panicked"));
}

/// Looks at memory while a flood goes on, with another client that is answered in time; the most that was resident.
async fn watch(node: &Process, witness: &Client, is_over: impl Fn() -> bool) -> u64 {
    let mut most = 0;
    let deadline = Instant::now() + 6 * PATIENCE;
    while !is_over() {
        assert!(Instant::now() < deadline, "a flood that does not end");
        most = most.max(resident(node.child.id()));
        let asked = Instant::now();
        soon("the witness", witness.flush()).await.unwrap();
        assert!(asked.elapsed() < Duration::from_secs(1), "the witness waited {:?}", asked.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    most.max(resident(node.child.id()))
}

/// QUIC's own pings and key updates, as fast as they are acknowledged, at the ports of clients and of brokers.
#[tokio::test(flavor = "multi_thread")]
async fn floods_of_quic_pings_and_key_updates_cost_little() {
    let fabric = Fabric::new();
    let node = Process::start(&fabric, GLOBAL);
    let witness = fabric.client(&node.at, "andy").await;
    let agent = tls_of(&fabric, Some(&fabric.agent("alice")), NATIVE);
    let broker = tls_of(&fabric, Some(&fabric.node_credential("region-a/broker-a")), BRIDGE);
    let before = (resident(node.child.id()), cpu(node.child.id()), Instant::now());
    let mut flooders = Vec::new();
    for (at, tls) in [(node.at.native_quic, agent), (node.at.bridge, broker)] {
        for _ in 0..4 {
            let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls.clone()).unwrap();
            let mut config = quinn::ClientConfig::new(Arc::new(crypto));
            let mut transport = quinn::TransportConfig::default();
            transport.keep_alive_interval(Some(Duration::from_micros(1)));
            config.transport_config(Arc::new(transport));
            let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
            flooders.push(soon("a connection", endpoint.connect_with(config, at, "localhost").unwrap()).await.unwrap());
        }
    }
    // Whoever says no hello is cut after ten seconds; until then it may ping.
    let (pings, began) = (records(), Instant::now());
    let sent = || flooders.iter().map(|flooder| flooder.stats().frame_tx.ping).sum::<u64>();
    let mut updates = 0u64;
    let over = || sent() >= pings || began.elapsed() > Duration::from_secs(8);
    let mut most = 0;
    eventually("a flood of pings", || {
        flooders.iter().for_each(quinn::Connection::force_key_update);
        updates += flooders.len() as u64;
        most = most.max(resident(node.child.id()));
        over().then_some(())
    })
    .await;
    let asked = Instant::now();
    soon("the witness", witness.flush()).await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(1), "the witness waited {:?}", asked.elapsed());
    let (grown, used) = (most.saturating_sub(before.0), cpu(node.child.id()) - before.1);
    println!(
        "{} pings, {updates} key updates: {} KiB more, {used:?} of {:?}",
        sent(),
        grown / 1024,
        before.2.elapsed()
    );
    assert!(sent() >= 1_000, "{} pings", sent());
    assert!(grown < 16 * MIB, "{} MiB more", grown / MIB);
    assert_eq!(witness.statistics().reconnects, 0);
    assert!(!node.log().contains("panicked"));
}
