//! Finding the next frame in a receive buffer.
//!
//! [`next_frame`] looks at the fixed head of a frame first, and refuses by kind and size before it asks for more bytes.
//! It never allocates: it borrows from the buffer, which holds only what has arrived, and says how many bytes it must
//! hold before another call is worth while. A reader grows its buffer by what it reads, not by what is announced.

use glocal_core::limits::{CONTROL_BYTES_MAX, CONTROL_BYTES_MAX_BEFORE_HELLO};

use crate::FrameError;
use crate::control::is_control_kind;
use crate::data::{DataFrame, PREFIX_BYTES, Prefix};

/// Bytes before the body of a control frame: `len u32 · kind u8 · 0[3]`.
pub const CONTROL_HEAD_BYTES: usize = 8;

/// What a stream may carry now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Largest body of a control frame, in bytes.
    pub control_bytes_max: usize,
    /// Largest payload of a data frame, in bytes; `None` while data frames are refused, that is, before the hello and
    /// on control streams.
    pub payload_bytes_max: Option<usize>,
}

impl FrameLimits {
    /// Limits for a peer that has not sent its hello: small control frames and no data.
    pub const BEFORE_HELLO: Self = Self { control_bytes_max: CONTROL_BYTES_MAX_BEFORE_HELLO, payload_bytes_max: None };

    /// Limits for a bridge's control stream after the hello: no data.
    pub const CONTROL_ONLY: Self = Self { control_bytes_max: CONTROL_BYTES_MAX, payload_bytes_max: None };

    /// Limits for a native session or a lane after the hello.
    #[must_use]
    pub const fn open(max_payload: u32) -> Self {
        Self { control_bytes_max: CONTROL_BYTES_MAX, payload_bytes_max: Some(max_payload as usize) }
    }
}

/// What the buffer begins with, its size known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// The frame is not complete: the buffer must hold at least this many bytes.
    Need(usize),
    /// A complete frame of this many bytes.
    Frame(usize),
}

/// The next frame of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a view lives on the stack of the loop that reads the buffer")]
pub enum Next<'a> {
    /// The frame is not complete: the buffer must hold at least this many bytes.
    Need(usize),
    /// A control frame, to be decoded by [`crate::control::Control::decode`].
    Control {
        /// The frame's kind: known, or skippable.
        kind: u8,
        /// The encoded body.
        body: &'a [u8],
        /// Bytes of the whole frame, by which the buffer is to be advanced.
        frame_bytes: usize,
    },
    /// A data frame.
    Data {
        /// The decoded view.
        frame: DataFrame<'a>,
        /// Bytes of the whole frame, by which the buffer is to be advanced.
        frame_bytes: usize,
    },
}

/// Takes the frame that `buffer` begins with.
///
/// # Errors
/// A [`FrameError`] as soon as enough has arrived to know it.
#[inline]
pub fn next_frame<'a>(buffer: &'a [u8], limits: &FrameLimits) -> Result<Next<'a>, FrameError> {
    match head(buffer, limits)? {
        Head::Need(bytes) => Ok(Next::Need(bytes)),
        Head::Control { kind, frame_bytes } => match buffer.get(CONTROL_HEAD_BYTES..frame_bytes) {
            Some(body) => Ok(Next::Control { kind, body, frame_bytes }),
            None => Ok(Next::Need(frame_bytes)),
        },
        Head::Data(prefix) => match buffer.get(..prefix.frame_bytes) {
            Some(bytes) => {
                Ok(Next::Data { frame: DataFrame::from_parts(&prefix, bytes)?, frame_bytes: prefix.frame_bytes })
            }
            None => Ok(Next::Need(prefix.frame_bytes)),
        },
    }
}

/// Says how long the frame is that `buffer` begins with, without decoding what follows its head.
///
/// # Errors
/// A [`FrameError`] as soon as enough has arrived to know it.
pub fn peek(buffer: &[u8], limits: &FrameLimits) -> Result<Peek, FrameError> {
    let frame_bytes = match head(buffer, limits)? {
        Head::Need(bytes) => return Ok(Peek::Need(bytes)),
        Head::Control { frame_bytes, .. } => frame_bytes,
        Head::Data(prefix) => prefix.frame_bytes,
    };
    Ok(if buffer.len() < frame_bytes { Peek::Need(frame_bytes) } else { Peek::Frame(frame_bytes) })
}

enum Head {
    Need(usize),
    Control { kind: u8, frame_bytes: usize },
    Data(Prefix),
}

/// Reads and checks the head of a frame.
#[inline]
fn head(buffer: &[u8], limits: &FrameLimits) -> Result<Head, FrameError> {
    let Some(&[l0, l1, l2, l3, kind, z0, z1, z2]) = buffer.first_chunk::<CONTROL_HEAD_BYTES>() else {
        return Ok(Head::Need(CONTROL_HEAD_BYTES));
    };
    if kind >= 0x40 {
        return data_head(buffer, kind, limits);
    }
    if !is_control_kind(kind) {
        return Err(FrameError::UnknownKind(kind));
    }
    if (z0 | z1 | z2) != 0 {
        return Err(FrameError::Reserved);
    }
    let frame_bytes = (u32::from_le_bytes([l0, l1, l2, l3]) as usize).saturating_add(4);
    let bytes = frame_bytes.checked_sub(CONTROL_HEAD_BYTES).ok_or(FrameError::Truncated)?;
    if bytes > limits.control_bytes_max {
        return Err(FrameError::ControlTooLarge { bytes, max: limits.control_bytes_max });
    }
    Ok(Head::Control { kind, frame_bytes })
}

#[inline]
fn data_head(buffer: &[u8], kind: u8, limits: &FrameLimits) -> Result<Head, FrameError> {
    let Some(max) = limits.payload_bytes_max else {
        return Err(crate::data::DataKind::from_code(kind)
            .map_or(FrameError::UnknownKind(kind), |_| FrameError::UnexpectedData));
    };
    let Some(bytes) = buffer.first_chunk::<PREFIX_BYTES>() else {
        return Ok(Head::Need(PREFIX_BYTES));
    };
    let prefix = Prefix::read(bytes)?;
    if prefix.payload_bytes <= max {
        return Ok(Head::Data(prefix));
    }
    // The refusal names the publish, so its sequence number is waited for.
    let seq = buffer.get(PREFIX_BYTES..).and_then(|rest| rest.first_chunk()).map(|seq| u64::from_le_bytes(*seq));
    if prefix.has_seq() && seq.is_none() {
        return Ok(Head::Need(PREFIX_BYTES + 8));
    }
    Err(FrameError::PayloadTooLarge {
        bytes: prefix.payload_bytes,
        max,
        seq: seq.filter(|_| prefix.has_seq()),
        frame_bytes: prefix.frame_bytes,
    })
}

#[cfg(test)]
mod tests;
