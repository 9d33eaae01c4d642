//! The floor: what it costs to take bytes from one TLS connection and to put them into another, with no broker between.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::client::BUFFER_BYTES;
use crate::options::Relay;
use crate::tls::{self, Wide};

type ServerStream = StreamOwned<ServerConnection, Wide>;

pub(crate) fn run(relay: &Relay) -> Result<()> {
    let config = tls::server(&relay.cert, &relay.key, &relay.root)?;
    let listener = TcpListener::bind(&relay.listen)?;
    std::fs::write(&relay.ready_file, format!("{}\n", listener.local_addr()?))?;
    loop {
        let (mut subscriber, mut publisher) = (accept(&listener, &config)?, accept(&listener, &config)?);
        // A pair that ends in whatever way makes room for the next.
        if let Err(error) = copy(&mut publisher, &mut subscriber) {
            eprintln!("{error:#}");
        }
    }
}

fn accept(listener: &TcpListener, config: &Arc<ServerConfig>) -> Result<ServerStream> {
    let (tcp, _): (TcpStream, _) = listener.accept()?;
    tcp.set_nodelay(true)?;
    let connection = ServerConnection::new(Arc::clone(config))?;
    let mut stream = StreamOwned::new(connection, Wide::new(tcp, BUFFER_BYTES));
    stream.conn.set_buffer_limit(Some(2 * BUFFER_BYTES));
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).context("a handshake")?;
    }
    Ok(stream)
}

/// Copies until the publisher closes: everything that one read of the socket brought goes into one write.
fn copy(from: &mut ServerStream, to: &mut ServerStream) -> Result<()> {
    let mut buffer = vec![0; 2 * BUFFER_BYTES];
    loop {
        let mut filled = 0;
        while filled == 0 || (from.sock.holds_bytes() && filled < BUFFER_BYTES) {
            if from.conn.read_tls(&mut from.sock)? == 0 {
                return Ok(());
            }
            from.conn.process_new_packets()?;
            loop {
                match from.conn.reader().read(&mut buffer[filled..]) {
                    Ok(0) => return Ok(()),
                    Ok(bytes) => filled += bytes,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        to.write_all(&buffer[..filled])?;
        to.flush()?;
    }
}
