//! QUIC as strangers, thieves of packets and networks treat it: gaps in streams, garbage at the ports, replayed flights, and
//! addresses that change (cases RB-61, RB-62, RB-63, RB-64).
//!
//! `GLOCAL_FUZZ_DATAGRAMS` says how many datagrams of garbage each port gets (1 000 000 in a long run), `GLOCAL_REBINDS` how
//! often a bridge's address changes (50 in a long run).

use std::any::Any;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use glocal_client::{Address, Client, Publish, Scheme, Subscription};
use glocal_core::limits::{BRIDGE_STREAM_WINDOW_BYTES, BRIDGE_WINDOW_BYTES, NATIVE_STREAM_WINDOW_BYTES, REDIAL_MS_MAX};
use glocal_core::name::Class;
use glocal_node::trust::tls::BRIDGE_SERVER_NAME;
use quinn::congestion::{Controller, ControllerFactory};
use tokio::net::UdpSocket;

use crate::support::fabric::Fabric;
use crate::support::initial::{Dice, bad_parameters, crypto, first_flight, number, packet, parameter};
use crate::support::node::{GLOBAL, Local, Process, REGION_A};
use crate::support::peer::{BRIDGE, NATIVE, tls_of};
use crate::support::proxy::{UdpProxy, Way};
use crate::support::{eventually, message, resident, soon};

const EDGE: &str = "global-region-a";
const MIB: u64 = 1024 * 1024;

/// A number from the environment, or what continuous tests use.
fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// What is on its way at once: as much as the sockets between take, whatever is lost.
const RECKLESS_BYTES: u64 = 128 * 1024;

/// Congestion control of one who does not care.
#[derive(Clone, Debug)]
struct Reckless;

impl Controller for Reckless {
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}
    fn on_mtu_update(&mut self, _: u16) {}
    fn window(&self) -> u64 {
        RECKLESS_BYTES
    }
    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
    fn initial_window(&self) -> u64 {
        RECKLESS_BYTES
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl ControllerFactory for Reckless {
    fn build(self: Arc<Self>, _: Instant, _: u16) -> Box<dyn Controller> {
        Box::new(Self)
    }
}

/// A connection with a broker's certificate that sends as much as it is let.
async fn reckless(fabric: &Fabric, at: SocketAddr) -> quinn::Connection {
    let tls = tls_of(fabric, Some(&fabric.node_credential(REGION_A)), BRIDGE);
    let mut config =
        quinn::ClientConfig::new(Arc::new(quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap()));
    let mut transport = quinn::TransportConfig::default();
    transport
        .congestion_controller_factory(Arc::new(Reckless))
        .send_window(256 * MIB)
        .initial_mtu(6_000)
        .mtu_discovery_config(None);
    config.transport_config(Arc::new(transport));
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    soon("a connection", endpoint.connect_with(config, at, "localhost").unwrap()).await.unwrap()
}

#[test]
fn quinn_is_one_that_bounds_gaps_and_survives_bad_parameters() {
    // Case RB-61 and RB-62: RUSTSEC-2026-0185 and RUSTSEC-2026-0037.
    let lock = include_str!("../../Cargo.lock");
    let (_, entry) = lock.split_once("name = \"quinn-proto\"\nversion = \"").unwrap();
    let version: Vec<u32> = entry.split('"').next().unwrap().split('.').map(|part| part.parse().unwrap()).collect();
    assert!(version >= vec![0, 11, 15], "{version:?}");
    for window in [BRIDGE_WINDOW_BYTES, BRIDGE_STREAM_WINDOW_BYTES, NATIVE_STREAM_WINDOW_BYTES] {
        assert!(u64::from(window) <= 16 * MIB);
    }
}

/// Case RB-61.
#[tokio::test(flavor = "multi_thread")]
async fn gaps_in_streams_hold_no_more_than_the_connections_window() {
    let fabric = Fabric::new();
    let global = Process::start(&fabric, GLOBAL);
    let pid = global.child.id();
    let passed = Arc::new(AtomicU64::new(0));
    let link = UdpProxy::start(global.at.bridge).await;
    let connection = reckless(&fabric, link.at).await;
    let (count, mut odd) = (Arc::clone(&passed), false);
    // Every second datagram of streams is lost, so that what arrives has gaps.
    link.rule(move |datagram| {
        if datagram.way == Way::Down || datagram.bytes[0] & 0x80 != 0 {
            return true;
        }
        odd = !odd;
        if odd {
            count.fetch_add(datagram.bytes.len() as u64, Ordering::Relaxed);
        }
        odd
    });
    let before = resident(pid);
    let flood = |connection: quinn::Connection| async move {
        let Ok(mut stream) = connection.open_uni().await else { return };
        let block = vec![1; 64 * 1024];
        while stream.write_all(&block).await.is_ok() {}
    };
    let sending: Vec<_> = (0..16).map(|_| tokio::spawn(flood(connection.clone()))).collect();
    // Until nothing more arrives, since the window is used up, or far more has than a window.
    let (mut most, mut before_that, mut since) = (0, 0, Instant::now());
    eventually("the window to be used up", || {
        most = most.max(resident(pid).saturating_sub(before));
        let arrived = passed.load(Ordering::Relaxed);
        if std::mem::replace(&mut before_that, arrived) != arrived {
            since = Instant::now();
        }
        let is_over = since.elapsed() > Duration::from_millis(400) || arrived > 64 * MIB;
        (is_over || connection.close_reason().is_some()).then_some(())
    })
    .await;
    sending.iter().for_each(tokio::task::JoinHandle::abort);
    let arrived = passed.load(Ordering::Relaxed);
    println!("{} KiB arrived, {} KiB more resident", arrived / 1024, most / 1024);
    assert!(arrived > 8 * MIB, "{} MiB arrived", arrived / MIB);
    // The window, what the allocator and the sockets' buffers add, and not the 128 MiB that the streams would take.
    assert!(most < 16 * MIB + 24 * MIB, "{} MiB more", most / MIB);
    // And the port takes others.
    let a = {
        fabric.point(REGION_A, global.at.bridge);
        Local::start(&fabric, REGION_A).await
    };
    a.up(EDGE).await;
}

/// Case RB-61, by one without a certificate: in the handshake's own stream, where each byte has a gap before it.
#[tokio::test(flavor = "multi_thread")]
async fn gaps_in_a_strangers_handshake_hold_little() {
    let fabric = Fabric::new();
    let global = Process::start(&fabric, GLOBAL);
    let before = resident(global.child.id());
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (mut dice, mut most) = (Dice::new(61), 0);
    for port in [global.at.bridge, global.at.native_quic] {
        for _ in 0..50 {
            let id = dice.bytes(8);
            for number in 0..5u32 {
                let bytes = (0..180u64).map(|n| crypto(1 + 2 * (180 * u64::from(number) + n), b"x"));
                let frames: Vec<u8> = bytes.flatten().collect();
                socket.send_to(&packet(&id, 1, b"", number, &frames), port).await.unwrap();
            }
        }
        most = most.max(resident(global.child.id()).saturating_sub(before));
    }
    // The broker answers others: it has taken what was sent.
    fabric.point(REGION_A, global.at.bridge);
    let a = Local::start(&fabric, REGION_A).await;
    a.up(EDGE).await;
    most = most.max(resident(global.child.id()).saturating_sub(before));
    println!("{} KiB more resident", most / 1024);
    assert!(most < 32 * MIB, "{} MiB more for a hundred strangers", most / MIB);
}

/// Garbage for a QUIC port: the `n`th datagram of it, or several.
fn garbage(dice: &mut Dice, genuine: &[Vec<u8>], flights: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
    let mut base = genuine[dice.below(genuine.len())].clone();
    match dice.below(10) {
        // A genuine first packet with some bytes changed.
        0 => {
            for _ in 0..=dice.below(8) {
                let at = dice.below(base.len());
                base[at] ^= u8::try_from(1 + dice.below(255)).unwrap();
            }
        }
        1 => base.truncate(dice.below(base.len())),
        // Version 0 is a list of versions, which no client sends; reserved and unknown ones.
        2 => {
            let version = [0, 0x0a0a_0a0a, 0x6b33_43cf, u32::MAX, u32::try_from(dice.next() >> 32).unwrap()];
            base[1..5].copy_from_slice(&version[dice.below(version.len())].to_be_bytes());
        }
        // Lengths of connection ids and tokens beyond what there is.
        3 => base[5 + dice.below(30)] = 0xff,
        // Several packets in one datagram, of which the first alone is one.
        4 => {
            base.truncate(600);
            let more = 1 + dice.below(600);
            base.extend_from_slice(&dice.bytes(more));
        }
        5 => {
            let count = dice.below(1500);
            base = dice.bytes(count);
        }
        // Looks like a packet of a connection.
        6 => {
            base = dice.bytes(40);
            base[0] = 0x40 | base[0] & 0x3f;
        }
        // Well protected, with frames that do not belong there or are none.
        7 => {
            let (id, count) = (dice.bytes(8), dice.below(1000));
            base = packet(&id, 1, b"", u32::try_from(dice.next() >> 40).unwrap(), &dice.bytes(count));
        }
        8 => {
            let id = dice.bytes(20);
            let frames = [
                crypto((1 << 62) - 5, &[0; 100]),
                crypto(0, &[0xff; 900]),
                [vec![0x02], number((1 << 62) - 1), number(0), number(1 << 20), number(1)].concat(),
                vec![0x1c, 0x40, 0xff],
                vec![0x08, 0, 1, 2, 3],
                vec![0x18, 0, 0, 8],
            ];
            base = packet(&id, 1, &dice.bytes(40), 0, &frames[dice.below(frames.len())]);
        }
        // A whole first flight with transport parameters that no client may send.
        _ => return flights[dice.below(flights.len())].clone(),
    }
    vec![base]
}

/// The first datagrams of a genuine client.
async fn genuine(fabric: &Fabric) -> Vec<Vec<u8>> {
    let catcher = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (to, tls) = (catcher.local_addr().unwrap(), tls_of(fabric, None, NATIVE));
    let dial = tokio::spawn(async move { crate::support::peer::quic(to, tls).await });
    let mut found = Vec::new();
    while found.len() < 2 {
        let mut datagram = vec![0; 2048];
        let bytes = soon("a datagram", catcher.recv(&mut datagram)).await.unwrap();
        datagram.truncate(bytes);
        found.push(datagram);
    }
    dial.abort();
    found
}

/// Publishes at a steady rate until told to stop, and says how much was published and how much has arrived.
struct Steady {
    published: Arc<AtomicU64>,
    arrived: Arc<AtomicU64>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Steady {
    const EACH: u64 = 50;
    const EVERY: Duration = Duration::from_millis(50);

    fn start(from: Client, mut to: Subscription) -> Self {
        let (published, arrived) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (out, back) = (Arc::clone(&published), Arc::clone(&arrived));
        let publish = tokio::spawn(async move {
            let mut beat = tokio::time::interval(Self::EVERY);
            loop {
                beat.tick().await;
                for _ in 0..Self::EACH {
                    from.publish("steady", [7; 1024]).await.unwrap();
                }
                out.fetch_add(Self::EACH, Ordering::Relaxed);
            }
        });
        let receive = tokio::spawn(async move {
            while to.next().await.is_some() {
                back.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { published, arrived, tasks: [publish, receive] }
    }

    fn now(&self) -> (u64, u64) {
        (self.published.load(Ordering::Relaxed), self.arrived.load(Ordering::Relaxed))
    }
}

impl Drop for Steady {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// Case RB-62.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_at_the_quic_ports_ends_nothing_and_costs_others_little() {
    let fabric = Fabric::new();
    let mut global = Process::start(&fabric, GLOBAL);
    fabric.point(REGION_A, global.at.bridge);
    let a = Local::start(&fabric, REGION_A).await;
    a.up(EDGE).await;
    let anna = fabric.client(&global.at, "anna").await;
    let to = anna.subscribe("steady", None).await.unwrap();
    a.knows_filters("tenantA", 1).await;
    let traffic = Steady::start(fabric.client(a.at(), "alice").await, to);
    // What is carried without garbage, in messages a second.
    let rate = |from: (u64, u64), until: (u64, u64), took: Duration| (until.1 - from.1) as f64 / took.as_secs_f64();
    let (began, from) = (Instant::now(), traffic.now());
    eventually("a second of traffic", || (began.elapsed() > Duration::from_secs(1)).then_some(())).await;
    let before = rate(from, traffic.now(), began.elapsed());

    let genuine = genuine(&fabric).await;
    let tls = |alpn| {
        let mut tls = tls_of(&fabric, None, alpn);
        tls.enable_early_data = false;
        Arc::new(tls)
    };
    let mut dice = Dice::new(62);
    let mut flights = Vec::new();
    for alpn in [BRIDGE, NATIVE] {
        let tls = tls(alpn);
        for (_, parameters) in bad_parameters() {
            flights.push(first_flight(&tls, &dice.bytes(8), &parameters));
        }
        // The best a stranger has: a good first flight, and nothing after it.
        flights.push(first_flight(&tls, &dice.bytes(8), &parameter(0x0f, &[1, 2, 3, 4])));
    }
    let datagrams = setting("GLOCAL_FUZZ_DATAGRAMS", 4_000);
    let (began, from) = (Instant::now(), traffic.now());
    let mut sockets = Vec::new();
    for _ in 0..8 {
        sockets.push(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    }
    let ports = [global.at.bridge, global.at.native_quic];
    let mut sent = [0, 0];
    while sent.iter().any(|sent| *sent < datagrams) {
        for (port, sent) in ports.iter().zip(&mut sent) {
            for datagram in garbage(&mut dice, &genuine, &flights) {
                let socket = &sockets[dice.below(sockets.len())];
                let _ = socket.send_to(&datagram, port).await;
                *sent += 1;
            }
        }
        // The machine is shared with what makes the garbage: about 6 000 datagrams a second.
        if sent[0] % 16 == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let during = rate(from, traffic.now(), began.elapsed());
    println!(
        "{datagrams} datagrams at each port in {:?}: {during:.0} messages a second, {before:.0} before",
        began.elapsed()
    );
    assert!(during >= before * 0.9, "{during} messages a second, {before} before");
    assert!(global.child.try_wait().unwrap().is_none(), "the broker lives");
    let (_, arrived) = traffic.now();
    eventually("traffic to go on", || (traffic.now().1 > arrived).then_some(())).await;
    // In a run of minutes, other work on the machine may keep a bridge from answering for a second.
    let ups = a.edge(EDGE).ups.value();
    assert!(ups == 1 || datagrams > 10_000, "the bridge that was there is there: {ups}");
    // Others come in at once: a broker and a client.
    drop(traffic);
    fabric.point("region-b/broker-b", global.at.bridge);
    let b = Local::start(&fabric, "region-b/broker-b").await;
    b.up("global-region-b").await;
    fabric.try_client(&global.at, Scheme::Quic, Some(&fabric.agent("alice"))).await.unwrap().flush().await.unwrap();
    assert!(!global.log().contains("panicked"), "nothing panicked");
}

/// Datagrams that went up through a proxy.
type Record = Arc<Mutex<Vec<Vec<u8>>>>;

fn recorder(link: &UdpProxy, count: usize) -> Record {
    let record = Record::default();
    let into = Arc::clone(&record);
    link.rule(move |datagram| {
        let mut record = into.lock().unwrap();
        if datagram.way == Way::Up && record.len() < count {
            record.push(datagram.bytes.to_vec());
        }
        true
    });
    record
}

/// Sends what was recorded ten times from another address; the bytes sent, and the socket.
async fn replay(record: &Record, to: SocketAddr) -> (u64, UdpSocket) {
    let thief = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let datagrams = record.lock().unwrap().clone();
    let mut bytes = 0;
    for _ in 0..10 {
        for datagram in &datagrams {
            bytes += thief.send_to(datagram, to).await.unwrap() as u64;
        }
    }
    (bytes, thief)
}

/// What has come back to whoever replayed, in bytes.
fn answered(thief: &UdpSocket) -> u64 {
    let mut datagram = vec![0; 65_536];
    let mut bytes = 0;
    while let Ok(count) = thief.try_recv(&mut datagram) {
        bytes += count as u64;
    }
    bytes
}

/// Case RB-63.
#[tokio::test(flavor = "multi_thread")]
async fn a_bridges_first_flight_replayed_brings_nothing_about() {
    let fabric = Fabric::new();
    let global = Local::start(&fabric, GLOBAL).await;
    let link = UdpProxy::start(global.at().bridge).await;
    let record = recorder(&link, 40);
    fabric.point(REGION_A, link.at);
    let a = Local::start(&fabric, REGION_A).await;
    a.up(EDGE).await;
    global.up(EDGE).await;
    let anna = fabric.client(global.at(), "anna").await;
    let mut orders = anna.subscribe("orders", None).await.unwrap();
    a.knows_filters("tenantA", 1).await;
    let alice = fabric.client(a.at(), "alice").await;
    alice.publish("orders", "1").await.unwrap();
    assert_eq!(message(&mut orders).await.payload(), b"1");
    assert!(record.lock().unwrap().len() > 5);
    let counts = || {
        let (there, here) = (global.edge(EDGE), a.edge(EDGE));
        (there.ups.value(), here.ups.value(), here.dials.value(), there.edge().refused.value())
    };
    let (before, relayed) = (counts(), global.metric("glocal_relayed_in_total", &["tenantA"]).await);
    let (sent, thief) = replay(&record, global.at().bridge).await;
    // Whoever comes later is served: then what was replayed has been looked at.
    drop(reckless(&fabric, global.at().bridge).await);
    alice.publish("orders", "2").await.unwrap();
    assert_eq!(message(&mut orders).await.payload(), b"2");
    assert_eq!(counts(), before);
    assert_eq!(global.metric("glocal_relayed_in_total", &["tenantA"]).await, relayed + 1);
    let answer = answered(&thief);
    assert!(answer <= 3 * sent, "{answer} bytes for {sent}");
    // Nor do dial and listen of this program have what early data needs.
    let credential = fabric.node_credential(REGION_A);
    let mut tls = tls_of(&fabric, Some(&credential), BRIDGE);
    tls.resumption = rustls::client::Resumption::in_memory_sessions(8);
    let crypto = Arc::new(quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap());
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    for _ in 0..2 {
        let config = quinn::ClientConfig::new(Arc::clone(&crypto) as Arc<dyn quinn::crypto::ClientConfig>);
        let connecting = endpoint.connect_with(config, global.at().bridge, BRIDGE_SERVER_NAME);
        // The name is not the broker's: only the certificate counts there.
        let Ok(connecting) = connecting else { continue };
        assert!(connecting.into_0rtt().is_err(), "there are keys for early data");
    }
}

/// Case RB-64, bridges: migration is off, and the bridge comes up again in less than two seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_whose_address_changes_is_up_again_in_two_seconds_for_the_same_tenants() {
    let fabric = Fabric::new();
    let global = Local::start(&fabric, GLOBAL).await;
    let link = UdpProxy::start(global.at().bridge).await;
    fabric.point(REGION_A, link.at);
    let a = Local::start(&fabric, REGION_A).await;
    a.up(EDGE).await;
    global.up(EDGE).await;
    let anna = fabric.client(global.at(), "anna").await;
    let mut orders = anna.subscribe("T.tenantA.ctrl.orders", None).await.unwrap();
    a.knows_filters("tenantA", 1).await;
    let alice = fabric.client(a.at(), "alice").await;
    let (carried, publishing) = (global.edge(EDGE).edge().effective().len(), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&publishing);
    let publisher = tokio::spawn(async move {
        let mut beat = tokio::time::interval(Duration::from_millis(20));
        loop {
            beat.tick().await;
            let text = count.fetch_add(1, Ordering::Relaxed).to_string();
            let publish = Publish { class: Some(Class::Ctrl), ..Publish::new("orders", text) };
            alice.publish_with(publish).await.unwrap();
        }
    });
    let (mut expected, mut longest) = (0u64, Duration::ZERO);
    for round in 0..setting("GLOCAL_REBINDS", 2) {
        // Bridges that die young are dialled again later each time; here an address changes now and then.
        let old = Instant::now() + Duration::from_millis(if round < 2 { 0 } else { REDIAL_MS_MAX + 500 });
        while Instant::now() < old {
            assert_eq!(soon("a message", orders.next()).await.unwrap().payload(), expected.to_string().as_bytes());
            expected += 1;
        }
        let (ups, began) = (global.edge(EDGE).ups.value(), Instant::now());
        link.rebind().await;
        // Until messages that were published after the change have come.
        let after = publishing.load(Ordering::Relaxed) + 5;
        let mut last = began;
        while expected <= after {
            let message = soon("a message", orders.next()).await.unwrap();
            assert_eq!(message.payload(), expected.to_string().as_bytes(), "none is lost, doubled or out of order");
            assert_eq!((message.subject(), message.sender()), ("T.tenantA.ctrl.orders", Some("region-a/alice")));
            longest = longest.max(last.elapsed());
            (last, expected) = (Instant::now(), expected + 1);
        }
        assert!(longest < Duration::from_secs(2), "round {round}: {longest:?}");
        assert_eq!(global.edge(EDGE).ups.value(), ups + 1, "one bridge more, and no storm");
        assert_eq!(global.edge(EDGE).edge().effective().len(), carried, "the same tenants");
        let remote = global.edge(EDGE).state().remote;
        assert!(link.seen_as().iter().any(|at| at.to_string() == remote), "{remote} is shown");
    }
    println!("longest pause {longest:?}");
    publisher.abort();
    // What was captured, from elsewhere, changes nothing either.
    let record = recorder(&link, 100);
    let recorded = || (record.lock().unwrap().len() >= 20).then_some(());
    eventually("packets to steal", recorded).await;
    let (ups, remote) = (global.edge(EDGE).ups.value(), global.edge(EDGE).state().remote);
    let (sent, thief) = replay(&record, global.at().bridge).await;
    drop(reckless(&fabric, global.at().bridge).await);
    assert_eq!((global.edge(EDGE).ups.value(), global.edge(EDGE).state().remote), (ups, remote));
    assert!(a.edge(EDGE).edge().is_up());
    assert!(answered(&thief) <= 3 * sent);
}

/// Case RB-64, clients, who live behind address translation: the session goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_over_quic_whose_address_changes_keeps_its_session() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let link = UdpProxy::start(node.at().native_quic).await;
    let mut options = fabric.options(node.at(), Scheme::Quic, Some(&fabric.agent("alice")));
    options.addresses = vec![Address::new(Scheme::Quic, "127.0.0.1", link.at.port())];
    let alice = Client::connect(options).await.unwrap();
    let andy = fabric.client(node.at(), "andy").await;
    let bob = fabric.client(node.at(), "bob").await;
    let (mut near, mut of_bob) =
        (andy.subscribe("orders", None).await.unwrap(), bob.subscribe(">", None).await.unwrap());
    let mut own = alice.subscribe("orders", None).await.unwrap();
    let (before, mut longest) = (alice.whoami().session, Duration::ZERO);
    for number in 0..50u32 {
        let payload = [&number.to_le_bytes()[..], &[1; 20_000]].concat();
        // In the middle of a transfer: part of it goes one way, part the other.
        alice.publish("orders", &payload).await.unwrap();
        let began = Instant::now();
        link.rebind().await;
        alice.publish("orders", &payload).await.unwrap();
        for _ in 0..2 {
            for subscription in [&mut near, &mut own] {
                assert_eq!(message(subscription).await.payload()[..4], number.to_le_bytes());
            }
        }
        longest = longest.max(began.elapsed());
    }
    println!("longest pause {longest:?}");
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    let who = alice.whoami();
    assert_eq!((who.session, who.tenant.as_str(), alice.statistics().reconnects), (before, "tenantA", 0));
    // Stolen packets from elsewhere move nothing.
    let record = recorder(&link, 50);
    for number in 0..20u32 {
        alice.publish("orders", number.to_le_bytes()).await.unwrap();
        message(&mut near).await;
        message(&mut own).await;
    }
    let sessions = node.metric("glocal_sessions", &[]).await;
    let (sent, thief) = replay(&record, node.at().native_quic).await;
    alice.publish("orders", "after").await.unwrap();
    assert_eq!(message(&mut near).await.payload(), b"after", "nothing was doubled");
    assert_eq!(message(&mut own).await.payload(), b"after");
    assert_eq!((node.metric("glocal_sessions", &[]).await, alice.statistics().reconnects), (sessions, 0));
    assert!(answered(&thief) <= 3 * sent);
    bob.flush().await.unwrap();
    assert_eq!(crate::support::arrived(&mut of_bob), [""; 0]);
}
