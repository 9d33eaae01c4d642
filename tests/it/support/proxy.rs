//! Links between brokers, and between clients and brokers, that a test holds in its hand: a UDP proxy whose datagrams it sees,
//! swallows and sends from another port, and a TCP proxy that falls silent after some bytes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::{AbortHandle, JoinSet};

/// Larger than any datagram that is sent here.
const DATAGRAM_BYTES: usize = 65_536;

/// Which way a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From whoever dialled.
    Up,
    /// From whoever was dialled.
    Down,
}

/// One datagram at the proxy.
pub(crate) struct Datagram<'a> {
    pub(crate) way: Way,
    /// How many came before it, both ways, from and to the same dialling address.
    pub(crate) before: u64,
    pub(crate) bytes: &'a [u8],
}

type Rule = Box<dyn FnMut(&Datagram<'_>) -> bool + Send>;

/// One dialling address, with the socket that stands for it towards the other side.
struct Flow {
    back: Arc<UdpSocket>,
    reader: AbortHandle,
    count: Arc<AtomicU64>,
}

struct Udp {
    front: UdpSocket,
    to: SocketAddr,
    rule: Mutex<Rule>,
    flows: Mutex<HashMap<SocketAddr, Flow>>,
}

/// A UDP proxy in front of one address.
pub(crate) struct UdpProxy {
    pub(crate) at: SocketAddr,
    inner: Arc<Udp>,
    task: AbortHandle,
}

impl UdpProxy {
    /// Passes everything on.
    pub(crate) async fn start(to: SocketAddr) -> Self {
        Self::with(to, |_| true).await
    }

    /// Passes on what `rule` says yes to.
    pub(crate) async fn with(to: SocketAddr, rule: impl FnMut(&Datagram<'_>) -> bool + Send + 'static) -> Self {
        let front = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let at = front.local_addr().unwrap();
        let inner = Arc::new(Udp { front, to, rule: Mutex::new(Box::new(rule)), flows: Mutex::default() });
        let task = tokio::spawn(Arc::clone(&inner).serve()).abort_handle();
        Self { at, inner, task }
    }

    /// Another rule from now on.
    pub(crate) fn rule(&self, rule: impl FnMut(&Datagram<'_>) -> bool + Send + 'static) {
        *self.inner.rule.lock().unwrap() = Box::new(rule);
    }

    /// What dials is seen at another port from now on, and what is still sent to the old one is lost: as behind a NAT that
    /// has forgotten.
    pub(crate) async fn rebind(&self) {
        let clients: Vec<SocketAddr> = self.inner.flows.lock().unwrap().keys().copied().collect();
        for client in clients {
            let back = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
            let mut flows = self.inner.flows.lock().unwrap();
            let flow = flows.get_mut(&client).unwrap();
            flow.reader.abort();
            flow.reader = self.inner.read(client, &back, &flow.count);
            flow.back = back;
        }
    }

    /// The addresses at which those who dial are seen now.
    pub(crate) fn seen_as(&self) -> Vec<SocketAddr> {
        let flows = self.inner.flows.lock().unwrap();
        flows.values().map(|flow| flow.back.local_addr().unwrap()).collect()
    }
}

impl Drop for UdpProxy {
    fn drop(&mut self) {
        self.task.abort();
        self.inner.flows.lock().unwrap().values().for_each(|flow| flow.reader.abort());
    }
}

impl Udp {
    async fn serve(self: Arc<Self>) {
        let mut datagram = vec![0; DATAGRAM_BYTES];
        loop {
            // An error is that of an earlier datagram, whose receiver has gone.
            let Ok((bytes, client)) = self.front.recv_from(&mut datagram).await else { continue };
            let known = self.flows.lock().unwrap().get(&client).map(|f| (Arc::clone(&f.back), Arc::clone(&f.count)));
            let (back, count) = match known {
                Some(known) => known,
                None => {
                    let back = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
                    let count = Arc::new(AtomicU64::new(0));
                    let reader = self.read(client, &back, &count);
                    let flow = Flow { back: Arc::clone(&back), reader, count: Arc::clone(&count) };
                    self.flows.lock().unwrap().insert(client, flow);
                    (back, count)
                }
            };
            if self.passes(Way::Up, &count, &datagram[..bytes]) {
                let _ = back.send_to(&datagram[..bytes], self.to).await;
            }
        }
    }

    fn read(self: &Arc<Self>, client: SocketAddr, back: &Arc<UdpSocket>, count: &Arc<AtomicU64>) -> AbortHandle {
        let (inner, back, count) = (Arc::clone(self), Arc::clone(back), Arc::clone(count));
        let task = tokio::spawn(async move {
            let mut datagram = vec![0; DATAGRAM_BYTES];
            loop {
                let Ok((bytes, _)) = back.recv_from(&mut datagram).await else { continue };
                if inner.passes(Way::Down, &count, &datagram[..bytes]) {
                    let _ = inner.front.send_to(&datagram[..bytes], client).await;
                }
            }
        });
        task.abort_handle()
    }

    fn passes(&self, way: Way, count: &AtomicU64, bytes: &[u8]) -> bool {
        let before = count.fetch_add(1, Ordering::Relaxed);
        (self.rule.lock().unwrap())(&Datagram { way, before, bytes })
    }
}

/// A TCP proxy in front of one address. Each connection carries so many bytes, both ways together, and then nothing more:
/// it stays open and silent, as when a link has died.
pub(crate) struct TcpProxy {
    pub(crate) at: SocketAddr,
    budget: Arc<AtomicU64>,
    accepted: Arc<AtomicU64>,
    carried: Arc<AtomicU64>,
    /// Grows when all connections that exist are to be reset.
    resets: tokio::sync::watch::Sender<u64>,
    task: AbortHandle,
}

impl TcpProxy {
    pub(crate) async fn start(to: SocketAddr, budget: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let budget = Arc::new(AtomicU64::new(budget));
        let (accepted, carried) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (resets, _) = tokio::sync::watch::channel(0);
        let (limit, count, sum, hear) =
            (Arc::clone(&budget), Arc::clone(&accepted), Arc::clone(&carried), resets.clone());
        let task = tokio::spawn(async move {
            // Connections end with the proxy.
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let left = Arc::new(AtomicU64::new(limit.load(Ordering::Relaxed)));
                let (sum, mut reset) = (Arc::clone(&sum), hear.subscribe());
                connections.spawn(async move {
                    let Ok(far) = TcpStream::connect(to).await else { return };
                    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                    let up = pass(near_read, far_write, Arc::clone(&left), Arc::clone(&sum));
                    let down = pass(far_read, near_write, left, sum);
                    tokio::select! {
                        _ = async { tokio::join!(up, down) } => {}
                        _ = reset.changed() => {}
                    }
                });
            }
        });
        Self { at, budget, accepted, carried, resets, task: task.abort_handle() }
    }

    /// What connections carry from now on that are made from now on.
    pub(crate) fn limit(&self, budget: u64) {
        self.budget.store(budget, Ordering::Relaxed);
    }

    /// Ends all connections that exist.
    pub(crate) fn reset(&self) {
        self.resets.send_modify(|resets| *resets += 1);
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Bytes carried by all connections, both ways.
    pub(crate) fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    left: Arc<AtomicU64>,
    carried: Arc<AtomicU64>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
        let taken = |left: u64| Some(left.saturating_sub(bytes as u64));
        let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).unwrap_or_default();
        let passed = bytes.min(usize::try_from(before).unwrap_or(usize::MAX));
        carried.fetch_add(passed as u64, Ordering::Relaxed);
        // Beyond its bytes the link is dead: what is sent is taken, and arrives nowhere.
        if to.write_all(&buffer[..passed]).await.is_err() {
            break;
        }
    }
    let silent = left.load(Ordering::Relaxed) == 0;
    if silent {
        std::future::pending::<()>().await;
    }
    let _ = to.shutdown().await;
}
