//! One client connection.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::options::Target;
use crate::tls::{self, ClientStream, Wide};
use crate::wire::{Protocol, Seen};

/// Bytes of one write, and of one read from a socket.
pub(crate) const BUFFER_BYTES: usize = 64 * 1024;
/// After so many new connections the others are looked at.
const KEEP_ALIVE_EVERY: usize = 50;
/// Silence after which a run is given up.
pub(crate) const SILENCE: Duration = Duration::from_secs(20);

/// Whom to connect to, and how.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    pub(crate) protocol: Protocol,
    tls: Arc<ClientConfig>,
    read_bytes: usize,
}

impl Dialer {
    pub(crate) fn new(target: &Target) -> Result<Self> {
        let tls = tls::client(&target.cert, &target.key, target.protocol.alpn())?;
        Ok(Self { protocol: target.protocol, tls, read_bytes: BUFFER_BYTES })
    }

    /// Reads so many bytes at a time: less than the usual where there are many connections.
    pub(crate) fn reading(mut self, read_bytes: usize) -> Self {
        self.read_bytes = read_bytes;
        self
    }

    /// Connects, up to the broker's welcome.
    pub(crate) fn connect(&self, server: &str) -> Result<Client> {
        let mut tcp = TcpStream::connect(server).with_context(|| server.to_owned())?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(SILENCE))?;
        let mut byte = [0; 1];
        // Up to the line's end; nothing after it is read in clear.
        while self.protocol.greets_in_clear() && byte != *b"\n" {
            tcp.read_exact(&mut byte)?;
        }
        let connection = ClientConnection::new(Arc::clone(&self.tls), tls::server_name()?)?;
        let mut stream = StreamOwned::new(connection, Wide::new(tcp, self.read_bytes));
        stream.conn.set_buffer_limit(Some(2 * BUFFER_BYTES));
        let mut client =
            Client { protocol: self.protocol, stream, inbox: String::new(), buffer: vec![0; 4096], at: 0, filled: 0 };
        if self.protocol.has_sessions() {
            client.send(&self.protocol.opening()?)?;
            client.await_welcome()?;
        } else {
            while client.stream.conn.is_handshaking() {
                client.stream.conn.complete_io(&mut client.stream.sock)?;
            }
        }
        Ok(client)
    }
}

/// A connection that the broker has welcomed.
pub(crate) struct Client {
    pub(crate) protocol: Protocol,
    pub(crate) stream: ClientStream,
    /// The prefix of its reply subjects; empty where the protocol gives none.
    pub(crate) inbox: String,
    buffer: Vec<u8>,
    at: usize,
    filled: usize,
}

impl Client {
    /// Writes everything, down to the socket.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()?;
        Ok(())
    }

    fn await_welcome(&mut self) -> Result<()> {
        while !self.receive(|seen| matches!(seen, Seen::Welcome(_) | Seen::Confirmed))? {}
        Ok(())
    }

    /// Subscribes, and returns when the broker has confirmed.
    pub(crate) fn subscribe(&mut self, name: &str, sid: u32, answers: bool) -> Result<()> {
        let line = self.protocol.subscribe(name, sid, answers)?;
        if !line.is_empty() {
            self.send(&line)?;
            while !self.receive(|seen| *seen == Seen::Confirmed)? {}
        }
        Ok(())
    }

    /// Waits for what comes next, answers when asked for a sign of life, and says what `wanted` says of it.
    pub(crate) fn receive<T>(&mut self, wanted: impl FnOnce(&Seen<'_>) -> T) -> Result<T> {
        loop {
            if let Some((seen, bytes)) = self.protocol.next(&self.buffer[self.at..self.filled])? {
                self.at += bytes;
                if let Seen::Welcome(inbox) = &seen {
                    self.inbox.clone_from(inbox);
                }
                let told = wanted(&seen);
                if let Seen::Ping(answer) = seen {
                    self.send(&answer)?;
                }
                return Ok(told);
            }
            self.fill()?;
        }
    }

    /// Tells of every message, until the connection ends; silence is no end of it.
    pub(crate) fn listen(&mut self, mut heard: impl FnMut(&[u8])) -> Result<()> {
        loop {
            let told = self.receive(|seen| {
                if let Seen::Message(payload) = seen {
                    heard(payload);
                }
            });
            match told {
                Err(error) if is_silence(&error) => {}
                other => other?,
            }
        }
    }

    fn fill(&mut self) -> Result<()> {
        self.buffer.copy_within(self.at..self.filled, 0);
        (self.at, self.filled) = (0, self.filled - self.at);
        if self.filled == self.buffer.len() {
            self.buffer.resize(2 * self.filled, 0);
        }
        let read = self.stream.read(&mut self.buffer[self.filled..]).context("nothing came from the broker")?;
        ensure!(read > 0, "the broker has closed the connection");
        self.filled += read;
        Ok(())
    }

    /// The length of the next message, when one comes within the time.
    pub(crate) fn message_within(&mut self, patience: Duration) -> Result<Option<usize>> {
        self.stream.sock.tcp.set_read_timeout(Some(patience))?;
        let found = self.message();
        self.stream.sock.tcp.set_read_timeout(Some(SILENCE))?;
        found
    }

    /// Takes what has arrived, does not wait, and answers when asked for a sign of life. Fails when the broker has closed.
    pub(crate) fn take_arrived(&mut self) -> Result<()> {
        self.stream.sock.tcp.set_nonblocking(true)?;
        while self.message()?.is_some() {}
        self.stream.sock.tcp.set_nonblocking(false)?;
        Ok(())
    }

    /// The length of the next message, unless the socket has nothing more.
    fn message(&mut self) -> Result<Option<usize>> {
        loop {
            if let Some((seen, bytes)) = self.protocol.next(&self.buffer[self.at..self.filled])? {
                self.at += bytes;
                match seen {
                    Seen::Message(_) => return Ok(Some(bytes)),
                    Seen::Ping(answer) => self.send(&answer)?,
                    Seen::Welcome(_) | Seen::Confirmed | Seen::Other => {}
                }
                continue;
            }
            match self.fill() {
                Ok(()) => {}
                Err(error) if is_silence(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_silence(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

/// Lets connections that wait for others to be opened answer their broker now and then.
pub(crate) fn keep_alive(clients: &mut [Client]) -> Result<()> {
    if clients.len().is_multiple_of(KEEP_ALIVE_EVERY) {
        clients.iter_mut().try_for_each(Client::take_arrived)?;
    }
    Ok(())
}
