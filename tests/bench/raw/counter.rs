//! Counting messages of one length with as little work as possible.

use std::io::{ErrorKind, Read, Write};

use anyhow::{Context, Result, bail, ensure};

use crate::tls::ClientStream;
use crate::wire::{Protocol, Seen};

/// Counts what arrives on one connection. Only the first bytes of a message are looked at.
pub(crate) struct Counter {
    protocol: Protocol,
    message_bytes: usize,
    buffer: Vec<u8>,
    filled: usize,
    /// Messages so far.
    pub(crate) received: u64,
}

impl Counter {
    pub(crate) fn new(protocol: Protocol, message_bytes: usize, buffer_bytes: usize) -> Self {
        let buffer = vec![0; buffer_bytes.max(2 * message_bytes)];
        Self { protocol, message_bytes, buffer, filled: 0, received: 0 }
    }

    /// Reads once. `false` when the socket has nothing now.
    pub(crate) fn read(&mut self, stream: &mut ClientStream) -> Result<bool> {
        match stream.read(&mut self.buffer[self.filled..]) {
            Ok(0) => bail!("the broker has closed the subscriber"),
            Ok(bytes) => self.filled += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error).context("the subscriber"),
        }
        let mut at = 0;
        while at < self.filled {
            let rest = &self.buffer[at..self.filled];
            if rest.len() >= self.message_bytes && self.protocol.is_message(rest) {
                at += self.message_bytes;
                self.received += 1;
                continue;
            }
            if self.protocol.is_message(rest) {
                break;
            }
            match self.protocol.next(rest)? {
                Some((Seen::Message(_), bytes)) => {
                    ensure!(bytes == self.message_bytes, "a message of {bytes} bytes, not {}", self.message_bytes);
                }
                Some((Seen::Ping(answer), bytes)) => {
                    stream.write_all(&answer)?;
                    at += bytes;
                }
                Some((_, bytes)) => at += bytes,
                None => break,
            }
        }
        self.buffer.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(true)
    }
}
