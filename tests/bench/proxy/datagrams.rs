//! Datagrams, such as those of QUIC. Each sender has a socket of its own towards the other side, so that answers find back.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use anyhow::Result;

use crate::line::{Line, sleep_until};

/// Heads of a datagram on the wire: UDP, IPv4, Ethernet.
pub(crate) const HEADS_BYTES: u64 = 8 + 20 + 14;
/// Heads of UDP and IPv4, which are part of a packet's size.
const PACKET_HEADS_BYTES: u64 = 8 + 20;
/// Largest datagram there is.
const DATAGRAM_BYTES_MAX: usize = 64 * 1024;
/// Senders that are told apart.
const SENDERS_MAX: usize = 256;
/// Datagrams that wait for their moment in one direction, whatever their size.
const WAITING_MAX: usize = 64 * 1024;

/// The two directions.
#[derive(Debug)]
pub(crate) struct Ways {
    pub(crate) forward: Arc<Line>,
    pub(crate) back: Arc<Line>,
}

/// A datagram on its way.
struct Packet {
    due: Instant,
    bytes: Vec<u8>,
    out: Arc<UdpSocket>,
    /// Where it goes, unless its socket is connected.
    to: Option<SocketAddr>,
}

/// What takes datagrams in one direction.
#[derive(Clone)]
struct Entry {
    line: Arc<Line>,
    mtu: u64,
    waiting: SyncSender<Packet>,
}

impl Entry {
    fn new(line: Arc<Line>, mtu: u64) -> Self {
        let (waiting, due) = sync_channel(WAITING_MAX);
        let leaving = Arc::clone(&line);
        thread::spawn(move || send_when_due(&due, &leaving));
        Self { line, mtu, waiting }
    }

    fn take(&self, bytes: &[u8], out: &Arc<UdpSocket>, to: Option<SocketAddr>) {
        let payload = bytes.len() as u64;
        if payload + PACKET_HEADS_BYTES > self.mtu {
            self.line.too_large();
        } else if let Some(due) = self.line.take_or_drop(bytes.len(), payload + HEADS_BYTES) {
            let packet = Packet { due, bytes: bytes.to_vec(), out: Arc::clone(out), to };
            if self.waiting.try_send(packet).is_err() {
                self.line.unheard();
            }
        }
    }
}

/// All of a direction leave in the order in which they came.
fn send_when_due(waiting: &Receiver<Packet>, line: &Line) {
    while let Ok(packet) = waiting.recv() {
        sleep_until(packet.due);
        let sent = match packet.to {
            Some(to) => packet.out.send_to(&packet.bytes, to),
            None => packet.out.send(&packet.bytes),
        };
        if sent.is_err() {
            line.unheard();
        }
    }
}

/// Begins to carry, on threads of its own.
pub(crate) fn start(socket: UdpSocket, to: SocketAddr, ways: Ways, mtu: u64) -> Result<()> {
    let socket = Arc::new(socket);
    let (forward, back) = (Entry::new(ways.forward, mtu), Entry::new(ways.back, mtu));
    let any = SocketAddr::new(socket.local_addr()?.ip(), 0);
    thread::spawn(move || {
        let mut senders: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            // An error is that of a datagram that nobody took before.
            let Ok((bytes, from)) = socket.recv_from(&mut buffer) else { continue };
            let datagram = buffer.get(..bytes).unwrap_or_default();
            if let Some(out) = senders.get(&from) {
                forward.take(datagram, out, None);
                continue;
            }
            if senders.len() >= SENDERS_MAX {
                forward.line.unheard();
                continue;
            }
            let Ok(out) = UdpSocket::bind(any).and_then(|out| out.connect(to).map(|()| Arc::new(out))) else {
                forward.line.unheard();
                continue;
            };
            let (answers, home, back) = (Arc::clone(&out), Arc::clone(&socket), back.clone());
            thread::spawn(move || carry_back(&answers, &home, from, &back));
            forward.take(datagram, &out, None);
            senders.insert(from, out);
        }
    });
    Ok(())
}

fn carry_back(answers: &UdpSocket, home: &Arc<UdpSocket>, to: SocketAddr, back: &Entry) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        // As above: nobody listened there then, which may change.
        let Ok(bytes) = answers.recv(&mut buffer) else { continue };
        back.take(buffer.get(..bytes).unwrap_or_default(), home, Some(to));
    }
}
