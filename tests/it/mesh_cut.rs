//! Links that die in the middle of a handshake, at twenty points of it: whoever dials is told in time, and tries again (case
//! RB-75). A dead link takes what is sent and brings nothing; nobody is told that it has died.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use glocal_client::{Address, Client, ConnectError, ConnectOptions, Event, Scheme};
use glocal_core::limits::DIAL_MS_MAX;

use crate::support::fabric::Fabric;
use crate::support::node::{GLOBAL, Local, REGION_A};
use crate::support::proxy::{TcpProxy, UdpProxy};
use crate::support::{eventually, soon};

const EDGE: &str = "global-region-a";
const POINTS: u64 = 20;
/// How long a client of these tests waits for a connection.
const CONNECT: Duration = Duration::from_millis(1_000);
/// What a busy machine may add to a deadline.
const SLACK: Duration = Duration::from_millis(2_500);

fn options(fabric: &Fabric, scheme: Scheme, at: std::net::SocketAddr, node: &Local) -> ConnectOptions {
    let mut options = fabric.options(node.at(), scheme, Some(&fabric.agent("alice")));
    options.addresses = vec![Address::new(scheme, "127.0.0.1", at.port())];
    options.timeouts.connect = CONNECT;
    options.reconnect.pause_max = Duration::from_millis(200);
    options
}

/// A client's attempt over a link that dies: it ends in time, well or badly.
async fn attempt(what: &str, options: ConnectOptions) -> Option<ConnectError> {
    let began = Instant::now();
    let connected = soon(what, Client::connect(options)).await;
    assert!(began.elapsed() < CONNECT + SLACK, "{what}: {:?}", began.elapsed());
    connected.err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_link_dies_in_the_tls_handshake_is_told_in_time_and_comes_back() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let at = node.at().native_tcp;
    // What a whole handshake carries, up to the welcome.
    let whole = TcpProxy::start(at, u64::MAX).await;
    Client::connect(options(&fabric, Scheme::Tls, whole.at, &node)).await.unwrap().close().await;
    let bytes = whole.carried();
    assert!(bytes > 2_000, "{bytes} bytes");
    let cut = |point: u64| {
        let (fabric, node) = (&fabric, &node);
        async move {
            let link = TcpProxy::start(at, u64::MAX).await;
            let client = Client::connect(options(fabric, Scheme::Tls, link.at, node)).await.unwrap();
            let mut events = client.events();
            // From now on every new connection dies at the same point. The last tenth is the goodbye of the whole one.
            let budget = bytes * 9 / 10 * point / POINTS;
            link.limit(budget);
            let error = attempt(&format!("{budget} bytes"), options(fabric, Scheme::Tls, link.at, node)).await;
            assert!(matches!(error, Some(ConnectError::Timeout { .. })), "{budget} of {bytes} bytes: {error:?}");
            // A client that was connected tries again and again, and is back once the link is.
            let before = link.accepted();
            link.reset();
            eventually("a second attempt", || (link.accepted() > before + 1).then_some(())).await;
            link.limit(u64::MAX);
            loop {
                if let Event::Connected { .. } = soon("to be connected again", events.recv()).await.unwrap() {
                    break;
                }
            }
            client.flush().await.unwrap();
        }
    };
    futures(POINTS, cut).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_link_dies_in_the_quic_handshake_is_told_in_time_and_comes_back() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let at = node.at().native_quic;
    let failed = AtomicU64::new(0);
    let cut = |point: u64| {
        let (fabric, node, failed) = (&fabric, &node, &failed);
        async move {
            let link = UdpProxy::with(at, move |datagram| datagram.before < point).await;
            let what = format!("{point} datagrams");
            match attempt(&what, options(fabric, Scheme::Quic, link.at, node)).await {
                Some(ConnectError::Timeout { .. }) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                }
                // The handshake was over.
                None => {}
                Some(other) => panic!("{what}: {other}"),
            }
            link.rule(|_| true);
            let client = Client::connect(options(fabric, Scheme::Quic, link.at, node)).await.unwrap();
            client.flush().await.unwrap();
        }
    };
    futures(POINTS, cut).await;
    let failed = failed.into_inner();
    assert!(failed >= 5, "{failed} of {POINTS} points lie in the handshake");
}

/// Runs `test` for every point from 0 on, all at once.
async fn futures<F: Future<Output = ()>>(points: u64, test: impl Fn(u64) -> F) {
    let mut running: Vec<_> = (0..points).map(|point| Box::pin(test(point))).collect();
    std::future::poll_fn(|cx| {
        running.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_whose_link_dies_while_it_dials_gives_up_in_time_and_dials_again() {
    let late = Arc::new(AtomicU64::new(0));
    let every = Fabric::new();
    let cut = |point: u64| {
        let (late, fabric) = (Arc::clone(&late), every.fork());
        async move {
            let global = Local::start(&fabric, GLOBAL).await;
            // Twenty points: in the handshake at first one by one, then in what is said on the connection.
            let point = if point < 14 { point } else { 14 + (point - 14) * 3 };
            let link = UdpProxy::with(global.at().bridge, move |datagram| datagram.before < point).await;
            fabric.point(REGION_A, link.at);
            let began = Instant::now();
            let a = Local::start(&fabric, REGION_A).await;
            let what = format!("a failure after {point} datagrams");
            eventually(&what, || a.edge(EDGE).state().failure).await;
            let bound = Duration::from_millis(2 * DIAL_MS_MAX) + SLACK;
            assert!(began.elapsed() < bound, "{what}: {:?}", began.elapsed());
            late.fetch_max(u64::try_from(began.elapsed().as_millis()).unwrap(), Ordering::Relaxed);
            assert!(!a.edge(EDGE).edge().is_up(), "{what}");
            let dials = a.edge(EDGE).dials.value();
            eventually("another attempt", || (a.edge(EDGE).dials.value() > dials).then_some(())).await;
            link.rule(|_| true);
            a.up(EDGE).await;
            global.up(EDGE).await;
        }
    };
    futures(POINTS, cut).await;
    println!("the latest was told after {} ms", late.load(Ordering::Relaxed));
}
