//! What one session has read and not worked on yet.

use std::io;
use std::pin::pin;
use std::task::{Context as TaskContext, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes read before they are worked on.
const BATCH_BYTES: usize = 64 * 1024;
/// Least room made for one read: what one TLS record holds.
const RECORD_BYTES: usize = 16 * 1024;
/// What a buffer takes of memory, unless one operation needs more. A batch goes over its bytes by what the TLS layer has decrypted
/// at once, as much again: what finds no room becomes a small batch of its own (measured: with 80 KiB, a half more wakes).
const SPACE_BYTES: usize = 2 * BATCH_BYTES;
/// What it may take without asking for it: a batch behind an operation of which a record is missing.
const FREE_BYTES: usize = SPACE_BYTES + RECORD_BYTES;

/// The bytes, in a piece of memory that is made for what the first of them need and no more.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    bytes: BytesMut,
    /// What it takes of memory.
    allocated: usize,
    /// Bytes of the first operation, as far as it is known; zero for none.
    needs: usize,
}

impl ReadBuffer {
    /// What was read and not consumed.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes of memory that are to be charged: what was asked for.
    pub(super) const fn held(&self) -> usize {
        if self.allocated > FREE_BYTES { self.allocated } else { 0 }
    }

    /// `used` bytes were worked on; the operation behind them takes `needs` bytes, of which there are too few.
    pub(super) fn consume(&mut self, used: usize, needs: usize) {
        self.bytes.advance(used);
        self.needs = needs;
        // One large message does not cost its memory for ever.
        if self.allocated > FREE_BYTES {
            let wanted = self.wanted();
            if self.is_empty() {
                self.release();
            } else if wanted <= FREE_BYTES && self.bytes.len() + RECORD_BYTES <= wanted {
                self.move_to(wanted);
            }
        }
    }

    /// The memory to ask for before more is read, where the first operation needs much: all that it will take. A
    /// [batch](BATCH_BYTES) of it must have come before.
    pub(super) fn lacks(&self) -> Option<usize> {
        let wanted = self.wanted();
        (wanted > FREE_BYTES.max(self.allocated) && self.bytes.len() >= BATCH_BYTES).then_some(wanted)
    }

    /// Reads until the stream has no more, a batch has come or a large first operation is complete, so that what arrived together
    /// is worked on together; the number of bytes, and whether it stopped before the stream had no more. While nothing is
    /// there, an empty buffer holds no memory. The error is for after what came before it.
    pub(super) fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut TaskContext<'_>,
        stream: &mut S,
    ) -> Poll<(usize, bool, Option<io::Error>)> {
        let before = self.bytes.len();
        loop {
            let read = self.bytes.len() - before;
            let complete = self.needs > BATCH_BYTES && before < self.needs && self.bytes.len() >= self.needs;
            if read >= BATCH_BYTES || read > 0 && (complete || self.lacks().is_some()) {
                return Poll::Ready((read, true, None));
            }
            self.make_room();
            match pin!(stream.read_buf(&mut self.bytes)).poll(cx) {
                Poll::Ready(Ok(1..)) => {}
                // What came before the end is worked on first; the stream says again that it has ended.
                Poll::Ready(Ok(0)) => return Poll::Ready((read, false, None)),
                Poll::Ready(Err(error)) => return Poll::Ready((read, false, Some(error))),
                Poll::Pending if read > 0 => return Poll::Ready((read, false, None)),
                Poll::Pending => {
                    if self.is_empty() {
                        self.release();
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    fn wanted(&self) -> usize {
        SPACE_BYTES.max(self.needs.saturating_add(RECORD_BYTES))
    }

    /// Room for a record at least.
    fn make_room(&mut self) {
        if self.bytes.capacity() - self.bytes.len() >= RECORD_BYTES || self.bytes.try_reclaim(RECORD_BYTES) {
            return;
        }
        let wanted = Some(self.wanted()).filter(|wanted| *wanted <= FREE_BYTES).unwrap_or(SPACE_BYTES);
        self.move_to(wanted.max(self.bytes.len() + RECORD_BYTES));
    }

    /// Moves what was read to a piece of memory of so many bytes.
    pub(super) fn move_to(&mut self, allocated: usize) {
        let mut bytes = BytesMut::with_capacity(allocated);
        bytes.extend_from_slice(&self.bytes);
        (self.bytes, self.allocated) = (bytes, allocated);
    }

    fn release(&mut self) {
        (self.bytes, self.allocated) = (BytesMut::new(), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use glocal_core::limits::MAX_PAYLOAD_BYTES_CEILING;
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// An operation of `size` bytes: its size, then bytes that tell where they are.
    fn operation(size: usize) -> Vec<u8> {
        let mut bytes = u32::try_from(size).unwrap().to_le_bytes().to_vec();
        bytes.extend((4..size).map(|at| u8::try_from(at % 251).unwrap()));
        bytes
    }

    /// The size of the operation at the front: complete, or what it needs.
    fn first(bytes: &[u8]) -> Result<usize, usize> {
        let Some(head) = bytes.first_chunk() else { return Err(4) };
        let size = u32::from_le_bytes(*head) as usize;
        if bytes.len() < size { Err(size) } else { Ok(size) }
    }

    /// Reads `sizes` that come in pieces of `piece` bytes as a session does; the most memory that was taken.
    async fn read(sizes: &[usize], piece: usize) -> usize {
        let sent: Vec<u8> = sizes.iter().flat_map(|size| operation(*size)).collect();
        let (mut near, mut far) = tokio::io::duplex(piece);
        let (mut buffer, mut most, mut rest) = (ReadBuffer::default(), 0, &sent[..]);
        let write = sent.clone();
        let writing = tokio::spawn(async move { near.write_all(&write).await.unwrap() });
        loop {
            let (read, _, error) = poll_fn(|cx| buffer.poll_fill(cx, &mut far)).await;
            assert!(error.is_none());
            most = most.max(buffer.allocated);
            let (mut used, mut needs) = (0, 0);
            while used < buffer.bytes().len() {
                match first(&buffer.bytes()[used..]) {
                    Ok(size) => {
                        assert!(rest.starts_with(&buffer.bytes()[used..used + size]), "an operation of {size} bytes");
                        (rest, used) = (&rest[size..], used + size);
                    }
                    Err(bytes) => {
                        needs = bytes;
                        break;
                    }
                }
            }
            buffer.consume(used, needs);
            if let Some(wanted) = buffer.lacks() {
                assert_eq!(wanted, needs + RECORD_BYTES, "all of it at once");
                buffer.move_to(wanted);
                assert!(buffer.lacks().is_none());
            }
            assert!(buffer.bytes.capacity() <= buffer.allocated);
            most = most.max(buffer.allocated);
            if read == 0 {
                break;
            }
        }
        assert!(rest.is_empty() && buffer.is_empty());
        assert!(buffer.held() == 0 && buffer.allocated <= FREE_BYTES, "{} bytes are kept", buffer.allocated);
        writing.await.unwrap();
        most
    }

    #[tokio::test]
    async fn a_large_operation_takes_what_it_needs_and_one_read() {
        for size in [200_000, 1 << 20, MAX_PAYLOAD_BYTES_CEILING as usize] {
            for piece in [16_384, 300_000] {
                assert_eq!(read(&[size, 100, size, size], piece).await, size + RECORD_BYTES, "{size} in {piece}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_small_takes_nothing_that_would_have_to_be_asked_for() {
        assert!(read(&[300; 2_000], 50_000).await <= SPACE_BYTES);
        assert!(read(&[70_000, 5, 90_000, 110_000, 5], 50_000).await <= FREE_BYTES);
    }

    #[tokio::test]
    async fn little_of_a_large_operation_takes_little() {
        let (mut near, mut far) = tokio::io::duplex(1 << 20);
        let mut buffer = ReadBuffer::default();
        near.write_all(&operation(1 << 20)[..BATCH_BYTES - 1]).await.unwrap();
        poll_fn(|cx| buffer.poll_fill(cx, &mut far)).await;
        buffer.consume(0, 1 << 20);
        assert_eq!((buffer.lacks(), buffer.allocated, buffer.held()), (None, SPACE_BYTES, 0));
        near.write_all(&[0; 2]).await.unwrap();
        poll_fn(|cx| buffer.poll_fill(cx, &mut far)).await;
        assert_eq!(buffer.lacks(), Some((1 << 20) + RECORD_BYTES));
        assert_eq!((buffer.allocated, buffer.held()), (SPACE_BYTES, 0), "until it has been given more");
        buffer.move_to((1 << 20) + RECORD_BYTES);
        assert_eq!(buffer.held(), (1 << 20) + RECORD_BYTES);
        assert_eq!(buffer.bytes().len(), BATCH_BYTES + 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn whatever_the_sizes_all_comes_in_order_and_takes_no_more_than_the_largest_needs(
            sizes in prop::collection::vec(prop_oneof![4usize..2_000, 4usize..200_000, 50_000usize..600_000], 1..12),
            piece in 1usize..200_000,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let most = runtime.block_on(read(&sizes, piece.max(sizes.iter().sum::<usize>() / 2_000)));
            let largest = sizes.iter().max().unwrap() + RECORD_BYTES;
            prop_assert!(most <= largest.max(FREE_BYTES), "{most} for {sizes:?} in {piece}");
        }
    }
}
