//! The byte pump of one session: reads and writes of one stream in one task, neither waiting for the other.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use bytes::{Buf, Bytes};
use glocal_core::port::SessionPort;
use glocal_core::sched::Drops;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::polling::{BusyPolls, Polling};
use super::read_buffer::ReadBuffer;
use crate::clock::Clock;

/// Bytes taken from the lanes for one write (DESIGN section 11).
const WRITE_BYTES: usize = 64 * 1024;
/// Parts handed to the stream in one call.
const WRITE_PARTS: usize = 1024;
/// How long the last frames may take to be written when a session ends, in milliseconds.
const FINISH_MS: u64 = 1_000;

/// What happened.
#[derive(Debug)]
pub(super) enum Event {
    /// Bytes were added to the buffer, and there may be more.
    Read {
        /// Whether reading stopped at a full batch and not because the stream had no more.
        full: bool,
    },
    /// The client has closed its side.
    Closed,
    /// A deadline has come.
    Timer,
    /// The bundle or the configuration has changed, or the node begins to leave.
    Changed,
    /// The stream has begun to take no more.
    Blocked,
    /// What waits for room may be tried again.
    Retry,
}

/// One stream with what is to be written next.
#[derive(Debug)]
pub(super) struct Pump<S> {
    stream: S,
    out: VecDeque<Bytes>,
    parts: Vec<Bytes>,
    drops: Drops,
    unflushed: bool,
    /// Whether the stream takes no more, and that was told.
    blocked: bool,
    /// Why reading failed after bytes that came before.
    failed: Option<io::Error>,
    polling: Polling,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Pump<S> {
    pub(super) fn new(stream: S, busy_polls: Arc<BusyPolls>) -> Self {
        Self {
            stream,
            out: VecDeque::new(),
            parts: Vec::new(),
            drops: Drops::new(),
            unflushed: false,
            blocked: false,
            failed: None,
            polling: Polling::new(busy_polls),
        }
    }

    /// What the lanes have lost since the last call.
    pub(super) const fn drops(&mut self) -> &mut Drops {
        &mut self.drops
    }

    /// Whether the stream took no more at the last attempt.
    pub(super) const fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// How long to poll for a client that is about to go on, in microseconds; zero for not at all.
    pub(super) const fn set_busy_poll(&mut self, micros: u64) {
        self.polling.set_window(micros);
    }

    /// Queues a frame ahead of everything that is still in the lanes.
    pub(super) fn write(&mut self, frame: Bytes) {
        if !frame.is_empty() {
            self.out.push_back(frame);
        }
    }

    /// Writes what there is to write until something was read, or only writes unless it `reads`. Cancel-safe: nothing is
    /// lost between calls.
    pub(super) async fn next(
        &mut self,
        port: Option<&SessionPort>,
        buffer: &mut ReadBuffer,
        reads: bool,
        clock: Clock,
    ) -> io::Result<Event> {
        poll_fn(|cx| {
            match self.poll_write(cx, port, clock) {
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            if !std::mem::replace(&mut self.blocked, !self.out.is_empty()) && self.blocked {
                return Poll::Ready(Ok(Event::Blocked));
            }
            if port.is_some_and(SessionPort::take_retry) {
                return Poll::Ready(Ok(Event::Retry));
            }
            let read = if reads { self.poll_read(cx, buffer) } else { Poll::Pending };
            match read {
                Poll::Ready(_) => self.polling.on_read(clock),
                Poll::Pending => self.polling.on_nothing(cx, clock),
            }
            read
        })
        .await
    }

    fn poll_read(&mut self, cx: &mut TaskContext<'_>, buffer: &mut ReadBuffer) -> Poll<io::Result<Event>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(match std::task::ready!(buffer.poll_fill(cx, &mut self.stream)) {
            (0, _, None) => Ok(Event::Closed),
            (0, _, Some(error)) => Err(error),
            (_, full, failed) => {
                self.failed = failed;
                Ok(Event::Read { full })
            }
        })
    }

    /// `Ready(Ok)` never: it writes until the stream takes no more or the lanes are empty, and both wake the task.
    fn poll_write(
        &mut self,
        cx: &mut TaskContext<'_>,
        port: Option<&SessionPort>,
        clock: Clock,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.out.is_empty() {
                let Some(port) = port else { return self.poll_flush(cx) };
                let (parts, drops) = (&mut self.parts, &mut self.drops);
                let filled = port.inbox().poll_drain(cx, |lanes| {
                    let bytes = lanes.fill(WRITE_BYTES, clock.now(), parts, drops);
                    (bytes > 0).then_some(bytes)
                });
                match filled {
                    Poll::Ready(Some(_)) => self.out.extend(self.parts.drain(..)),
                    Poll::Ready(None) | Poll::Pending => return self.poll_flush(cx),
                }
            }
            let mut slices = [IoSlice::new(&[]); WRITE_PARTS];
            let mut used = 0;
            for (slot, part) in slices.iter_mut().zip(&self.out) {
                *slot = IoSlice::new(part);
                used += 1;
            }
            let slices = slices.get(..used).unwrap_or_default();
            let written = std::task::ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices))?;
            if written == 0 && used > 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unflushed = true;
            self.consume(written);
            if self.out.is_empty() {
                self.polling.on_written(clock);
            }
        }
    }

    fn poll_flush(&mut self, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        if self.unflushed {
            std::task::ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Pending
    }

    fn consume(&mut self, mut written: usize) {
        while let Some(front) = self.out.front_mut().filter(|_| written > 0) {
            let part = written.min(front.len());
            front.advance(part);
            written -= part;
            if front.is_empty() {
                self.out.pop_front();
            }
        }
    }

    /// Writes what is queued and one last frame, for a bounded time, and closes the stream.
    pub(super) async fn finish(&mut self, port: Option<&SessionPort>, last: Bytes, clock: Clock) {
        let write = async {
            if let Some(port) = port {
                port.inbox().with(|lanes| {
                    lanes.fill(WRITE_BYTES, clock.now(), &mut self.parts, &mut self.drops);
                    // The last words must not stand in the middle of another frame.
                    lanes.fill(lanes.unfinished_bytes(), clock.now(), &mut self.parts, &mut self.drops);
                });
                self.out.extend(self.parts.drain(..));
            }
            self.write(last);
            while let Some(part) = self.out.front_mut() {
                self.stream.write_all_buf(part).await?;
                self.out.pop_front();
            }
            self.stream.shutdown().await
        };
        // A client that does not read loses the last words, and nothing else.
        let _ = tokio::time::timeout(std::time::Duration::from_millis(FINISH_MS), write).await;
    }
}
