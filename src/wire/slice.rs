//! Slices of a bridge's data streams (DESIGN section 6):
//! `lane u32 · len u32 · flags u8 (1 open, 2 reset) · 0[3]`, little-endian, then `len` bytes. An open slice begins with
//! `class u8 · tenant_len u8 · tenant`, which `len` includes; a reset slice is empty. A probe (flag 4, lane 0) has 8 bytes, its
//! number.
//!
//! [`SliceReader`] takes one stream apart without holding back or copying payload. [`LaneBuffer`] puts the frames of
//! one lane together and copies only a frame that is spread over several chunks. Both grow only by what has arrived.
//! Which lanes exist, whether a tenant is allowed, and the memory of all lanes together are the bridge's business.

use bytes::{Buf, Bytes, BytesMut};
use glocal_core::limits::{LABEL_BYTES_MAX, SLICE_BYTES_MAX};
use glocal_core::name::Class;

use crate::frame::{FrameLimits, Peek, peek};
use crate::{EncodeError, FrameError};

/// Bytes of a slice's header.
pub const SLICE_HEADER_BYTES: usize = 12;
/// Bytes of the longest open header.
pub const OPEN_HEADER_BYTES_MAX: usize = 2 + LABEL_BYTES_MAX;

const FLAG_OPEN: u8 = 1;
const FLAG_RESET: u8 = 2;
const FLAG_PROBE: u8 = 4;
/// Bytes of a probe's number.
const PROBE_BYTES: usize = 8;

/// What a slice does to its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceKind {
    /// Carries bytes of the lane.
    Data,
    /// Opens the lane, and may carry its first bytes.
    Open,
    /// Ends the lane and discards a partial frame.
    Reset,
    /// Is of no lane: the peer answers its number on the control stream once it has read it.
    Probe,
}

impl SliceKind {
    const fn flags(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::Open => FLAG_OPEN,
            Self::Reset => FLAG_RESET,
            Self::Probe => FLAG_PROBE,
        }
    }
}

/// The header of one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceHeader {
    /// The lane; 0 for a probe and nothing else.
    pub lane: u32,
    /// Bytes after this header: an open header and data.
    pub len: u32,
    /// What the slice does.
    pub kind: SliceKind,
}

impl SliceHeader {
    /// Decodes and checks a header.
    ///
    /// # Errors
    /// [`FrameError::BadSliceFlags`], [`FrameError::Reserved`], [`FrameError::LaneZero`] or
    /// [`FrameError::BadSliceLength`].
    pub fn decode(bytes: &[u8; SLICE_HEADER_BYTES]) -> Result<Self, FrameError> {
        let [a0, a1, a2, a3, l0, l1, l2, l3, flags, z0, z1, z2] = *bytes;
        let header = Self {
            lane: u32::from_le_bytes([a0, a1, a2, a3]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            kind: match flags {
                0 => SliceKind::Data,
                FLAG_OPEN => SliceKind::Open,
                FLAG_RESET => SliceKind::Reset,
                FLAG_PROBE => SliceKind::Probe,
                _ => return Err(FrameError::BadSliceFlags(flags)),
            },
        };
        if (z0 | z1 | z2) != 0 {
            return Err(FrameError::Reserved);
        }
        if !header.has_good_lane() {
            return Err(FrameError::LaneZero);
        }
        if header.has_good_length() { Ok(header) } else { Err(FrameError::BadSliceLength(header.len)) }
    }

    /// Appends the header.
    ///
    /// # Errors
    /// [`EncodeError::BadSlice`] for a lane or a length that does not fit the kind.
    pub fn encode_into(&self, out: &mut BytesMut) -> Result<(), EncodeError> {
        if !self.has_good_lane() || !self.has_good_length() {
            return Err(EncodeError::BadSlice);
        }
        let ([a0, a1, a2, a3], [l0, l1, l2, l3]) = (self.lane.to_le_bytes(), self.len.to_le_bytes());
        out.extend_from_slice(&[a0, a1, a2, a3, l0, l1, l2, l3, self.kind.flags(), 0, 0, 0]);
        Ok(())
    }

    fn has_good_lane(&self) -> bool {
        (self.lane == 0) == (self.kind == SliceKind::Probe)
    }

    fn has_good_length(&self) -> bool {
        let shortest = match self.kind {
            SliceKind::Data => 1,
            SliceKind::Open => 3,
            SliceKind::Reset => return self.len == 0,
            SliceKind::Probe => return self.len as usize == PROBE_BYTES,
        };
        (shortest..=SLICE_BYTES_MAX).contains(&(self.len as usize))
    }
}

/// Appends a probe.
pub fn probe_slice(id: u64, out: &mut BytesMut) {
    // Lane 0, and the length of the number.
    out.extend_from_slice(&[0, 0, 0, 0, 8, 0, 0, 0, FLAG_PROBE, 0, 0, 0]);
    out.extend_from_slice(&id.to_le_bytes());
}

/// What a lane is opened for: one class of one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHeader<'a> {
    /// The class of every data frame in the lane.
    pub class: Class,
    /// The tenant, in the form of tenant ids, plain or opaque.
    pub tenant: &'a str,
}

impl<'a> OpenHeader<'a> {
    /// Decodes an open header from the start of a slice's bytes; also returns the data after it.
    ///
    /// # Errors
    /// [`FrameError::Truncated`], [`FrameError::BadClass`] or [`FrameError::BadLaneTenant`].
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), FrameError> {
        let (&[class, len], rest) = bytes.split_first_chunk::<2>().ok_or(FrameError::Truncated)?;
        let (tenant, rest) = rest.split_at_checked(usize::from(len)).ok_or(FrameError::Truncated)?;
        let class = Class::from_code(class).ok_or(FrameError::BadClass(class))?;
        let tenant = tenant_form(tenant).ok_or(FrameError::BadLaneTenant)?;
        Ok((Self { class, tenant }, rest))
    }

    /// Bytes of the encoded open header.
    #[must_use]
    pub const fn encoded_bytes(&self) -> usize {
        2 + self.tenant.len()
    }

    /// Appends the open header.
    ///
    /// # Errors
    /// [`EncodeError::BadSlice`] for a tenant outside the grammar of ids.
    pub fn encode_into(&self, out: &mut BytesMut) -> Result<(), EncodeError> {
        let len = tenant_form(self.tenant.as_bytes()).and_then(|tenant| u8::try_from(tenant.len()).ok());
        let len = len.ok_or(EncodeError::BadSlice)?;
        out.extend_from_slice(&[self.class.code(), len]);
        out.extend_from_slice(self.tenant.as_bytes());
        Ok(())
    }
}

/// The grammar of tenant ids, opaque ones included; whether the tenant exists is for the bridge.
fn tenant_form(bytes: &[u8]) -> Option<&str> {
    let good = bytes.len() <= LABEL_BYTES_MAX
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if good { std::str::from_utf8(bytes).ok() } else { None }
}

/// Something that happened on a data stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SliceEvent<'a> {
    /// The peer opened a lane. Whether it was open already is for the bridge.
    Open {
        /// The lane, never 0.
        lane: u32,
        /// Its class.
        class: Class,
        /// Its tenant.
        tenant: &'a str,
    },
    /// Bytes of a lane, shared with the chunk they came in; never empty.
    Data {
        /// The lane.
        lane: u32,
        /// The bytes.
        bytes: Bytes,
    },
    /// The lane has ended.
    Reset {
        /// The lane.
        lane: u32,
    },
    /// The peer asks whether this stream is read.
    Probe {
        /// What to answer.
        id: u64,
    },
}

/// A push parser for one data stream.
#[derive(Debug)]
pub struct SliceReader {
    state: State,
    /// A header that has not arrived as a whole, or the open header last reported.
    scratch: [u8; OPEN_HEADER_BYTES_MAX],
    filled: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Header,
    Open { lane: u32, len: usize },
    Data { lane: u32, left: usize },
    Probe,
}

impl Default for SliceReader {
    fn default() -> Self {
        Self::new()
    }
}

impl SliceReader {
    /// A reader at the start of a stream.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: State::Header, scratch: [0; OPEN_HEADER_BYTES_MAX], filled: 0 }
    }

    /// Takes the next event off the front of `chunk`; `None` when the chunk is used up. After an error the stream is
    /// lost, and the reader must not be used again.
    ///
    /// # Errors
    /// Those of [`SliceHeader::decode`] and [`OpenHeader::decode`].
    pub fn next_event(&mut self, chunk: &mut Bytes) -> Result<Option<SliceEvent<'_>>, FrameError> {
        loop {
            match self.state {
                State::Header => {
                    let Some(header) = self.fill::<SLICE_HEADER_BYTES>(chunk) else { return Ok(None) };
                    let SliceHeader { lane, len, kind } = SliceHeader::decode(&header)?;
                    self.filled = 0;
                    let len = len as usize;
                    match kind {
                        SliceKind::Data => self.state = State::Data { lane, left: len },
                        SliceKind::Open => self.state = State::Open { lane, len },
                        SliceKind::Reset => return Ok(Some(SliceEvent::Reset { lane })),
                        SliceKind::Probe => self.state = State::Probe,
                    }
                }
                State::Open { lane, len } => {
                    let Some(open_bytes) = self.fill_open(chunk, len)? else { return Ok(None) };
                    self.filled = 0;
                    self.state = State::after(lane, len - open_bytes);
                    let bytes = self.scratch.get(..open_bytes).ok_or(FrameError::Truncated)?;
                    let (OpenHeader { class, tenant }, _) = OpenHeader::decode(bytes)?;
                    return Ok(Some(SliceEvent::Open { lane, class, tenant }));
                }
                State::Probe => {
                    let Some(id) = self.fill::<PROBE_BYTES>(chunk) else { return Ok(None) };
                    self.filled = 0;
                    self.state = State::Header;
                    return Ok(Some(SliceEvent::Probe { id: u64::from_le_bytes(id) }));
                }
                State::Data { lane, left } => {
                    if chunk.is_empty() {
                        return Ok(None);
                    }
                    let bytes = chunk.split_to(left.min(chunk.len()));
                    self.state = State::after(lane, left - bytes.len());
                    return Ok(Some(SliceEvent::Data { lane, bytes }));
                }
            }
        }
    }

    /// Whether the stream is between two slices, where alone it may end.
    #[must_use]
    pub const fn is_between_slices(&self) -> bool {
        matches!(self.state, State::Header) && self.filled == 0
    }

    /// Collects `N` bytes in the scratch space.
    fn fill<const N: usize>(&mut self, chunk: &mut Bytes) -> Option<[u8; N]> {
        self.fill_to(N, chunk).then(|| self.scratch.first_chunk::<N>().copied()).flatten()
    }

    /// Collects a whole open header in the scratch space; returns its length.
    fn fill_open(&mut self, chunk: &mut Bytes, slice_bytes: usize) -> Result<Option<usize>, FrameError> {
        let Some([_, tenant_bytes]) = self.fill::<2>(chunk) else { return Ok(None) };
        let open_bytes = 2 + usize::from(tenant_bytes);
        if open_bytes > OPEN_HEADER_BYTES_MAX {
            return Err(FrameError::BadLaneTenant);
        }
        if open_bytes > slice_bytes {
            return Err(FrameError::Truncated);
        }
        Ok(self.fill_to(open_bytes, chunk).then_some(open_bytes))
    }

    /// Moves bytes from the chunk until `wanted` are in the scratch space; whether they are.
    fn fill_to(&mut self, wanted: usize, chunk: &mut Bytes) -> bool {
        let missing = wanted.saturating_sub(self.filled).min(chunk.len());
        if let Some(slot) = self.scratch.get_mut(self.filled..self.filled + missing) {
            chunk.copy_to_slice(slot);
            self.filled += missing;
        }
        self.filled >= wanted
    }
}

impl State {
    const fn after(lane: u32, left: usize) -> Self {
        if left == 0 { Self::Header } else { Self::Data { lane, left } }
    }
}

/// Puts together the frames of one lane.
#[derive(Debug)]
pub struct LaneBuffer {
    limits: FrameLimits,
    /// The beginning of a frame whose end has not arrived.
    partial: BytesMut,
}

impl LaneBuffer {
    /// An empty buffer.
    #[must_use]
    pub fn new(limits: FrameLimits) -> Self {
        Self { limits, partial: BytesMut::new() }
    }

    /// Takes the next complete frame off the lane's bytes, for [`crate::frame::next_frame`]; `None` when `chunk` is
    /// used up. A frame that lies in one chunk shares its memory; another is copied once. After an error the lane is
    /// lost.
    ///
    /// # Errors
    /// A [`FrameError`] as soon as the head of a frame shows it.
    pub fn next_frame(&mut self, chunk: &mut Bytes) -> Result<Option<Bytes>, FrameError> {
        if self.partial.is_empty() {
            if chunk.is_empty() {
                return Ok(None);
            }
            if let Peek::Frame(frame_bytes) = peek(chunk, &self.limits)? {
                return Ok(Some(chunk.split_to(frame_bytes)));
            }
        }
        loop {
            match peek(&self.partial, &self.limits)? {
                Peek::Frame(_) => return Ok(Some(std::mem::take(&mut self.partial).freeze())),
                Peek::Need(_) if chunk.is_empty() => return Ok(None),
                Peek::Need(bytes) => {
                    let missing = bytes - self.partial.len();
                    let arrived = chunk.split_to(missing.min(chunk.len()));
                    self.partial.extend_from_slice(&arrived);
                }
            }
        }
    }

    /// Bytes held for a frame that is not complete.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.partial.len()
    }

    /// Discards a partial frame, as a reset demands; returns its bytes.
    pub fn discard(&mut self) -> usize {
        std::mem::take(&mut self.partial).len()
    }
}

#[cfg(test)]
mod tests;
