//! The send buffer: publishers append encoded frames, one writer takes all of them at once.
//!
//! It guarantees that frames leave in the order they were appended, that nothing is appended while there is no
//! connection, and that memory is bounded: publishers wait at [`CLIENT_OUTBOX_BYTES_MAX`]; what cannot wait (pongs,
//! cancellations) fails at [`CLIENT_OUTBOX_BYTES_CEILING`]. One message larger than the limit passes when the buffer is
//! empty.

use std::sync::Mutex;
use std::time::Duration;

use bytes::BytesMut;
use glocal_core::limits::{CLIENT_OUTBOX_BYTES_CEILING, CLIENT_OUTBOX_BYTES_MAX};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::sync::lock;

/// The send buffer of one client, over all its connections.
pub(crate) struct Outbox {
    buffer: Mutex<Buffer>,
    /// Wakes the writer: there is something to write, or to close.
    filled: Notify,
    /// Wakes publishers: there is space, or the state changed.
    changed: Notify,
}

struct Buffer {
    bytes: BytesMut,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// No connection; it may come back.
    Offline,
    /// Frames go to the current connection.
    Open,
    /// What is there is written, then the connection is closed.
    Closing,
    /// For ever.
    Closed,
}

/// Why nothing was appended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PushError<E> {
    /// No space, or no connection, within the time given.
    Timeout,
    /// There is no connection, and the caller did not want to wait for one.
    Offline,
    /// The client is closed.
    Closed,
    /// The frame cannot be encoded; the buffer is as it was.
    Encode(E),
}

/// What the writer does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Write what was taken.
    Bytes,
    /// Wait for [`Outbox::filled`].
    Nothing,
    /// Close the connection: everything is written.
    Close,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            buffer: Mutex::new(Buffer { bytes: BytesMut::new(), state: State::Offline }),
            filled: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// Appends a frame, waiting up to `patience` for space and for a connection. `encode` runs under the lock, at most
    /// once successfully: what it notes elsewhere is in step with the buffer.
    pub(crate) async fn push<E>(
        &self,
        patience: Duration,
        mut encode: impl FnMut(&mut BytesMut) -> Result<(), E>,
    ) -> Result<(), PushError<E>> {
        // The fast path takes no timer.
        if let Some(done) = self.try_push(CLIENT_OUTBOX_BYTES_MAX, &mut encode) {
            return done;
        }
        let deadline = Instant::now() + patience;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(done) = self.try_push(CLIENT_OUTBOX_BYTES_MAX, &mut encode) {
                return done;
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                return Err(PushError::Timeout);
            }
        }
    }

    /// Appends a frame that cannot wait.
    pub(crate) fn push_now<E>(
        &self,
        mut encode: impl FnMut(&mut BytesMut) -> Result<(), E>,
    ) -> Result<(), PushError<E>> {
        self.try_push(CLIENT_OUTBOX_BYTES_CEILING, &mut encode).unwrap_or(Err(PushError::Offline))
    }

    /// `None` when it is worth waiting.
    fn try_push<E>(
        &self,
        limit: usize,
        encode: &mut impl FnMut(&mut BytesMut) -> Result<(), E>,
    ) -> Option<Result<(), PushError<E>>> {
        let mut buffer = lock(&self.buffer);
        match buffer.state {
            State::Offline => return None,
            State::Closing | State::Closed => return Some(Err(PushError::Closed)),
            State::Open if buffer.bytes.len() >= limit => return None,
            State::Open => {}
        }
        let was_empty = buffer.bytes.is_empty();
        let encoded = encode(&mut buffer.bytes);
        drop(buffer);
        if was_empty && encoded.is_ok() {
            self.filled.notify_one();
        }
        Some(encoded.map_err(PushError::Encode))
    }

    /// Swaps what is buffered into `into`, which must be empty.
    pub(crate) fn take(&self, into: &mut BytesMut) -> Taken {
        let mut buffer = lock(&self.buffer);
        if buffer.bytes.is_empty() {
            return if buffer.state == State::Open { Taken::Nothing } else { Taken::Close };
        }
        std::mem::swap(&mut buffer.bytes, into);
        drop(buffer);
        self.changed.notify_waiters();
        Taken::Bytes
    }

    /// Waits until there may be something to take.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Opens the buffer for a new connection. `first` is sent before anything else.
    pub(crate) fn open(&self, first: BytesMut) {
        let mut buffer = lock(&self.buffer);
        if buffer.state == State::Offline {
            buffer.bytes = first;
            buffer.state = State::Open;
        }
        drop(buffer);
        self.filled.notify_one();
        self.changed.notify_waiters();
    }

    /// Ends the current connection; what is buffered is lost.
    pub(crate) fn go_offline(&self) {
        let mut buffer = lock(&self.buffer);
        buffer.bytes.clear();
        if buffer.state == State::Open {
            buffer.state = State::Offline;
        }
    }

    /// Refuses further frames; the writer sends what is there and closes.
    pub(crate) fn close(&self) {
        let mut buffer = lock(&self.buffer);
        buffer.state = match buffer.state {
            State::Open | State::Closing => State::Closing,
            State::Offline | State::Closed => State::Closed,
        };
        drop(buffer);
        self.filled.notify_one();
        self.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(outbox: &Outbox, bytes: usize) -> Result<(), PushError<()>> {
        outbox.push_now(|buffer| {
            buffer.extend_from_slice(&vec![0; bytes]);
            Ok(())
        })
    }

    #[tokio::test(start_paused = true)]
    async fn publishers_wait_for_space_and_give_up_in_time() {
        let outbox = Outbox::new();
        let push = |patience| {
            outbox.push::<()>(Duration::from_millis(patience), |b| {
                b.extend_from_slice(b"x");
                Ok(())
            })
        };
        assert_eq!(push(5).await, Err(PushError::Timeout));
        outbox.open(BytesMut::new());
        put(&outbox, CLIENT_OUTBOX_BYTES_MAX).unwrap();
        assert_eq!(push(5).await, Err(PushError::Timeout));
        let mut taken = BytesMut::new();
        let (pushed, ()) = tokio::join!(push(1000), async {
            assert_eq!(outbox.take(&mut taken), Taken::Bytes);
        });
        assert_eq!(pushed, Ok(()));
        assert_eq!(taken.len(), CLIENT_OUTBOX_BYTES_MAX);
    }

    #[test]
    fn what_cannot_wait_is_bounded() {
        let outbox = Outbox::new();
        assert_eq!(put(&outbox, 1), Err(PushError::Offline));
        outbox.open(BytesMut::new());
        put(&outbox, CLIENT_OUTBOX_BYTES_CEILING).unwrap();
        assert_eq!(put(&outbox, 1), Err(PushError::Offline));
    }

    #[test]
    fn closing_writes_what_is_there_first() {
        let outbox = Outbox::new();
        outbox.open(BytesMut::new());
        put(&outbox, 3).unwrap();
        outbox.close();
        assert_eq!(put(&outbox, 1), Err(PushError::Closed));
        let mut taken = BytesMut::new();
        assert_eq!(outbox.take(&mut taken), Taken::Bytes);
        assert_eq!(outbox.take(&mut BytesMut::new()), Taken::Close);
    }

    #[test]
    fn a_failed_encoding_leaves_no_trace_and_offline_loses_all() {
        let outbox = Outbox::new();
        outbox.open(BytesMut::new());
        assert_eq!(outbox.push_now(|_| Err("no")), Err(PushError::Encode("no")));
        put(&outbox, 3).unwrap();
        outbox.go_offline();
        outbox.open(BytesMut::new());
        assert_eq!(outbox.take(&mut BytesMut::new()), Taken::Nothing);
    }
}
