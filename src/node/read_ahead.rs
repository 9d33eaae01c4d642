//! Reading a socket in few large pieces.
//!
//! rustls asks its socket for 4 KiB at a time, which would be a system call for a dozen small messages. This layer asks
//! for more and hands it out. It holds memory only while it holds bytes, so an idle connection costs none, and it never
//! delays a byte: what was read is handed out before the socket is asked again.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Bytes asked for at once: four full TLS records.
const AHEAD_BYTES: usize = 64 * 1024;

/// A stream that is read ahead; writes pass through.
#[derive(Debug)]
pub(crate) struct ReadAhead<S> {
    stream: S,
    ahead: BytesMut,
}

impl<S> ReadAhead<S> {
    /// Nothing of `stream` has been read.
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, ahead: BytesMut::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ahead.is_empty() {
            if buf.remaining() >= AHEAD_BYTES {
                return Pin::new(&mut this.stream).poll_read(cx, buf);
            }
            let mut ahead = BytesMut::with_capacity(AHEAD_BYTES);
            let read = std::pin::pin!(this.stream.read_buf(&mut ahead));
            ready!(read.poll(cx))?;
            this.ahead = ahead;
        }
        let taken = this.ahead.len().min(buf.remaining());
        buf.put_slice(this.ahead.get(..taken).unwrap_or_default());
        this.ahead.advance(taken);
        if this.ahead.is_empty() {
            this.ahead = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn bytes_come_in_order_whatever_the_pieces_and_then_the_end() {
        let sent: Vec<u8> = (0..300_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let (mut near, far) = tokio::io::duplex(50_000);
        let mut reader = ReadAhead::new(far);
        let writing = {
            let sent = sent.clone();
            tokio::spawn(async move {
                for piece in sent.chunks(7_001) {
                    near.write_all(piece).await.unwrap();
                }
            })
        };
        let mut got = Vec::new();
        let mut piece = vec![0; 40_000];
        for size in [1, 5, 4_096, 40_000].into_iter().cycle() {
            match reader.read(&mut piece[..size]).await.unwrap() {
                0 => break,
                n => got.extend_from_slice(&piece[..n]),
            }
        }
        writing.await.unwrap();
        assert!(got == sent);
    }

    #[tokio::test]
    async fn memory_is_held_only_with_bytes_in_it() {
        let (mut near, far) = tokio::io::duplex(1_000);
        let mut reader = ReadAhead::new(far);
        near.write_all(b"abc").await.unwrap();
        let mut two = [0; 2];
        reader.read_exact(&mut two).await.unwrap();
        assert_eq!(reader.ahead.as_ref(), b"c");
        reader.read_exact(&mut two[..1]).await.unwrap();
        assert_eq!(reader.ahead.capacity(), 0);
        let mut buf = ReadBuf::new(&mut two);
        let waiting =
            std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut reader).poll_read(cx, &mut buf).is_pending()));
        assert!(waiting.await);
        assert_eq!(reader.ahead.capacity(), 0);
    }
}
