//! Streams: TCP connections, each of which has another towards the other side.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

use crate::line::{Line, sleep_until};

/// Payload of a full packet on the wire: 1 500 bytes without the heads of IPv4 and TCP, with its time stamps.
const SEGMENT_BYTES: usize = 1_448;
/// Heads of a packet: TCP with time stamps, IPv4, Ethernet.
const HEADS_BYTES: u64 = 32 + 20 + 14;
/// Bytes that are read at a time: four packets, half a millisecond at 100 Mbit/s.
const PIECE_BYTES: usize = 4 * SEGMENT_BYTES;
/// Bytes that the system may hold of what was not read, so that a sender soon sees that the link is slow.
const RECEIVE_BYTES: usize = 64 * 1024;
/// Connections that wait to be taken.
const BACKLOG: i32 = 128;
/// Pieces of one connection that wait for their moment: what the bucket lets in is less.
const PIECES_MAX: usize = 64 * 1024;

/// The two directions.
#[derive(Debug)]
pub(crate) struct Ways {
    pub(crate) forward: Arc<Line>,
    pub(crate) back: Arc<Line>,
}

/// Bytes on the wire of a piece that is sent at once.
pub(crate) fn wire_bytes(bytes: usize) -> u64 {
    bytes as u64 + bytes.div_ceil(SEGMENT_BYTES) as u64 * HEADS_BYTES
}

/// Listens, with little room for what is not read.
pub(crate) fn listen(at: SocketAddr) -> Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_recv_buffer_size(RECEIVE_BYTES)?;
    socket.bind(&at.into()).with_context(|| format!("streams at {at}"))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Begins to carry, on threads of its own.
pub(crate) fn start(listener: TcpListener, to: SocketAddr, ways: Ways) {
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            // Where nobody listens, whoever connects sees that the connection ends.
            let _ = connect(&near, to, &ways);
        }
    });
}

fn connect(near: &TcpStream, to: SocketAddr, ways: &Ways) -> Result<()> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_recv_buffer_size(RECEIVE_BYTES)?;
    socket.connect(&to.into())?;
    let far: TcpStream = socket.into();
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near, far) = (Arc::new(near.try_clone()?), Arc::new(far));
    carry(Arc::clone(&near), Arc::clone(&far), Arc::clone(&ways.forward));
    carry(far, near, Arc::clone(&ways.back));
    Ok(())
}

/// One direction of one connection.
fn carry(from: Arc<TcpStream>, to: Arc<TcpStream>, line: Arc<Line>) {
    let (waiting, due) = sync_channel(PIECES_MAX);
    let reading = Arc::clone(&from);
    thread::spawn(move || read_as_there_is_room(&reading, &line, &waiting));
    thread::spawn(move || {
        if write_when_due(&to, &due).is_err() {
            // Nobody reads there any more, and whoever writes here is to see it.
            let _ = from.shutdown(Shutdown::Both);
        }
    });
}

fn read_as_there_is_room(mut from: &TcpStream, line: &Line, waiting: &SyncSender<(Instant, Vec<u8>)>) {
    let mut buffer = vec![0; PIECE_BYTES];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        let due = line.take(bytes, wire_bytes(bytes));
        if waiting.send((due, buffer.get(..bytes).unwrap_or_default().to_vec())).is_err() {
            return;
        }
    }
}

/// Up to the stream's end, which is passed on.
fn write_when_due(mut to: &TcpStream, waiting: &Receiver<(Instant, Vec<u8>)>) -> std::io::Result<()> {
    while let Ok((due, piece)) = waiting.recv() {
        sleep_until(due);
        to.write_all(&piece)?;
    }
    to.shutdown(Shutdown::Write)
}
