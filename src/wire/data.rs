//! Data frames: a fixed little-endian prefix of 16 bytes, then optional numbers, extensions, name, reply subject,
//! headers and payload (DESIGN section 10).
//!
//! ```text
//! len u32 (bytes after it) · kind u8 · flags u8 · class u8 · hops u8 · name_len u16 · reply_len u16 · headers_len u16
//! · ext_len u16 · [seq u64] · [ttl_ms u32] · ext · name · reply · headers · payload
//! ```
//!
//! Decoding borrows, allocates nothing and checks every length once; encoding reserves once and appends. A relay
//! rewrites prefix and extensions and copies the rest in one piece. Names are bytes here: their grammar is checked by
//! whoever turns them into destinations.

use bytes::BytesMut;
use glocal_core::limits::{
    EXT_BYTES_MAX, HEADERS_BYTES_MAX, MAX_PAYLOAD_BYTES_CEILING, QUALIFIED_BYTES_MAX, RAW_BYTES_MAX,
};
use glocal_core::name::Class;

use crate::ext::ExtBlock;
use crate::{EncodeError, FrameError};

/// Bytes of the fixed prefix, length field included.
pub const PREFIX_BYTES: usize = 16;
/// Bytes of the prefix and both optional numbers.
pub const HEAD_BYTES_MAX: usize = PREFIX_BYTES + 8 + 4;
/// The class byte of a publish that leaves the class to the session's default.
pub const CLASS_DEFAULT: u8 = 0xff;

const FLAG_SEQ: u8 = 0x01;
const FLAG_TTL: u8 = 0x02;

/// What a data frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DataKind {
    /// A client publishes; the name is raw or qualified.
    Publish = 0x40,
    /// A broker delivers to a client; the name is raw, or qualified where the subscription was.
    Deliver = 0x41,
    /// A broker sends to a broker in the tenant's lane; the name is raw.
    Relay = 0x42,
}

impl DataKind {
    /// The kind of a code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0x40 => Some(Self::Publish),
            0x41 => Some(Self::Deliver),
            0x42 => Some(Self::Relay),
            _ => None,
        }
    }

    /// The code on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The longest name in a frame of this kind, in bytes.
    #[must_use]
    pub const fn name_bytes_max(self) -> usize {
        match self {
            Self::Publish | Self::Deliver => QUALIFIED_BYTES_MAX,
            Self::Relay => RAW_BYTES_MAX,
        }
    }
}

/// The fixed prefix, read but for the relation of its lengths to limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefix {
    /// Bytes of the whole frame, length field included.
    pub(crate) frame_bytes: usize,
    /// Bytes of the payload.
    pub(crate) payload_bytes: usize,
    kind: DataKind,
    flags: u8,
    class: Option<Class>,
    hops: u8,
    name_bytes: usize,
    reply_bytes: usize,
    headers_bytes: usize,
    ext_bytes: usize,
}

impl Prefix {
    /// Reads and checks the prefix: known kind, flags and class; parts within their limits and within the frame.
    #[inline]
    pub(crate) fn read(bytes: &[u8; PREFIX_BYTES]) -> Result<Self, FrameError> {
        let [l0, l1, l2, l3, kind, flags, class, hops, n0, n1, r0, r1, h0, h1, e0, e1] = *bytes;
        let kind = DataKind::from_code(kind).ok_or(FrameError::UnknownKind(kind))?;
        if flags & !(FLAG_SEQ | FLAG_TTL) != 0 {
            return Err(FrameError::UnknownFlags(flags));
        }
        let class = match Class::from_code(class) {
            None if class != CLASS_DEFAULT || kind != DataKind::Publish => return Err(FrameError::BadClass(class)),
            class => class,
        };
        if hops != 0 && kind != DataKind::Relay {
            return Err(FrameError::BadHops);
        }
        let frame_bytes = (u32::from_le_bytes([l0, l1, l2, l3]) as usize).saturating_add(4);
        let name_bytes = part("name", [n0, n1], kind.name_bytes_max())?;
        let reply_bytes = part("reply", [r0, r1], QUALIFIED_BYTES_MAX)?;
        let headers_bytes = part("headers", [h0, h1], HEADERS_BYTES_MAX)?;
        let ext_bytes = part("ext", [e0, e1], EXT_BYTES_MAX)?;
        let before_payload = head_bytes(flags) + ext_bytes + name_bytes + reply_bytes + headers_bytes;
        let payload_bytes = frame_bytes.checked_sub(before_payload).ok_or(FrameError::Truncated)?;
        Ok(Self {
            frame_bytes,
            payload_bytes,
            kind,
            flags,
            class,
            hops,
            name_bytes,
            reply_bytes,
            headers_bytes,
            ext_bytes,
        })
    }

    /// Whether a sequence number follows the prefix.
    pub(crate) const fn has_seq(&self) -> bool {
        self.flags & FLAG_SEQ != 0
    }
}

const fn head_bytes(flags: u8) -> usize {
    PREFIX_BYTES + if flags & FLAG_SEQ == 0 { 0 } else { 8 } + if flags & FLAG_TTL == 0 { 0 } else { 4 }
}

#[inline]
fn part(part: &'static str, len: [u8; 2], max: usize) -> Result<usize, FrameError> {
    let bytes = usize::from(u16::from_le_bytes(len));
    if bytes > max { Err(FrameError::PartTooLong { part, bytes, max }) } else { Ok(bytes) }
}

/// A borrowed view of one complete data frame; every length and extension is validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataFrame<'a> {
    /// What the frame is.
    pub kind: DataKind,
    /// The class; `None` only in a publish that leaves it to the session's default.
    pub class: Option<Class>,
    /// Brokers passed so far; 0 unless relayed. Whether that is too many is decided by the router.
    pub hops: u8,
    /// The sequence number, where there is one.
    pub seq: Option<u64>,
    /// Time to live in milliseconds, where there is one.
    pub ttl_ms: Option<u32>,
    /// The extensions.
    pub ext: ExtBlock<'a>,
    /// The name: raw or qualified text as the kind says, not yet checked against the grammar of names.
    pub name: &'a [u8],
    /// The reply subject; empty for none; not yet checked against the grammar of names.
    pub reply: &'a [u8],
    /// A NATS header block, verbatim; empty for none.
    pub headers: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
    /// Name, reply, headers and payload in one piece.
    tail: &'a [u8],
}

impl<'a> DataFrame<'a> {
    /// Decodes exactly one complete frame. The payload's size is bounded by the caller, who found the frame's end.
    ///
    /// # Errors
    /// Every [`FrameError`] about data frames and extensions.
    pub fn decode(frame: &'a [u8]) -> Result<Self, FrameError> {
        let prefix = Prefix::read(frame.first_chunk().ok_or(FrameError::Truncated)?)?;
        match frame.len().cmp(&prefix.frame_bytes) {
            std::cmp::Ordering::Less => Err(FrameError::Truncated),
            std::cmp::Ordering::Greater => Err(FrameError::Trailing),
            std::cmp::Ordering::Equal => Self::from_parts(&prefix, frame),
        }
    }

    /// The view of `frame`, which begins with `prefix` and has at least its length.
    #[inline]
    pub(crate) fn from_parts(prefix: &Prefix, frame: &'a [u8]) -> Result<Self, FrameError> {
        let (_, mut rest) = frame.split_first_chunk::<PREFIX_BYTES>().ok_or(FrameError::Truncated)?;
        let mut seq = None;
        if prefix.flags & FLAG_SEQ != 0 {
            let (number, after) = rest.split_first_chunk::<8>().ok_or(FrameError::Truncated)?;
            (seq, rest) = (Some(u64::from_le_bytes(*number)), after);
        }
        let mut ttl_ms = None;
        if prefix.flags & FLAG_TTL != 0 {
            let (number, after) = rest.split_first_chunk::<4>().ok_or(FrameError::Truncated)?;
            (ttl_ms, rest) = (Some(u32::from_le_bytes(*number)), after);
        }
        let (ext, rest) = take(rest, prefix.ext_bytes)?;
        let tail_bytes = prefix.name_bytes + prefix.reply_bytes + prefix.headers_bytes + prefix.payload_bytes;
        let (tail, _) = take(rest, tail_bytes)?;
        let (name, rest) = take(tail, prefix.name_bytes)?;
        let (reply, rest) = take(rest, prefix.reply_bytes)?;
        let (headers, payload) = take(rest, prefix.headers_bytes)?;
        Ok(Self {
            kind: prefix.kind,
            class: prefix.class,
            hops: prefix.hops,
            seq,
            ttl_ms,
            ext: ExtBlock::parse(prefix.kind, ext)?,
            name,
            reply,
            headers,
            payload,
            tail,
        })
    }

    /// Name, reply, headers and payload in one piece: what relays never change.
    #[must_use]
    pub const fn tail(&self) -> &'a [u8] {
        self.tail
    }

    /// The lengths of the parts of the tail.
    #[must_use]
    pub const fn tail_lengths(&self) -> TailLengths {
        TailLengths {
            name: self.name.len(),
            reply: self.reply.len(),
            headers: self.headers.len(),
            payload: self.payload.len(),
        }
    }

    /// The head with which this frame was encoded.
    #[must_use]
    pub const fn head(&self) -> DataHead {
        DataHead { kind: self.kind, class: self.class, hops: self.hops, seq: self.seq, ttl_ms: self.ttl_ms }
    }
}

#[inline]
fn take(bytes: &[u8], len: usize) -> Result<(&[u8], &[u8]), FrameError> {
    bytes.split_at_checked(len).ok_or(FrameError::Truncated)
}

/// The lengths in bytes of what follows the extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TailLengths {
    /// Of the name.
    pub name: usize,
    /// Of the reply subject.
    pub reply: usize,
    /// Of the header block.
    pub headers: usize,
    /// Of the payload.
    pub payload: usize,
}

impl TailLengths {
    /// Their sum.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.name + self.reply + self.headers + self.payload
    }
}

/// The scalar fields of a data frame, from which its prefix is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHead {
    /// What the frame is.
    pub kind: DataKind,
    /// The class; `None` only in a publish.
    pub class: Option<Class>,
    /// Brokers passed so far; 0 unless relayed.
    pub hops: u8,
    /// The sequence number.
    pub seq: Option<u64>,
    /// Time to live in milliseconds.
    pub ttl_ms: Option<u32>,
}

impl DataHead {
    /// A head without sequence number and time to live.
    #[must_use]
    pub const fn new(kind: DataKind, class: Option<Class>) -> Self {
        Self { kind, class, hops: 0, seq: None, ttl_ms: None }
    }

    /// Appends a whole frame.
    ///
    /// # Errors
    /// [`EncodeError::PartTooLong`] or [`EncodeError::BadHead`]; `out` is unchanged then.
    pub fn encode_into(
        &self,
        out: &mut BytesMut,
        ext: &[u8],
        name: &[u8],
        reply: &[u8],
        headers: &[u8],
        payload: &[u8],
    ) -> Result<(), EncodeError> {
        let lengths =
            TailLengths { name: name.len(), reply: reply.len(), headers: headers.len(), payload: payload.len() };
        self.prefix_into(out, ext, &lengths, lengths.total())?;
        for part in [name, reply, headers, payload] {
            if !part.is_empty() {
                out.extend_from_slice(part);
            }
        }
        Ok(())
    }

    /// Appends prefix and extensions only, for a tail that is sent from where it lies.
    ///
    /// # Errors
    /// [`EncodeError::PartTooLong`] or [`EncodeError::BadHead`]; `out` is unchanged then.
    pub fn encode_prefix_into(&self, out: &mut BytesMut, ext: &[u8], tail: &TailLengths) -> Result<(), EncodeError> {
        self.prefix_into(out, ext, tail, 0)
    }

    /// Appends a frame with a new head and extensions and the tail of `view`, copied in one piece.
    ///
    /// # Errors
    /// [`EncodeError::PartTooLong`] or [`EncodeError::BadHead`]; `out` is unchanged then.
    pub fn reencode_into(&self, out: &mut BytesMut, ext: &[u8], view: &DataFrame<'_>) -> Result<(), EncodeError> {
        self.prefix_into(out, ext, &view.tail_lengths(), view.tail.len())?;
        out.extend_from_slice(view.tail);
        Ok(())
    }

    /// Bytes of a whole frame with this head.
    #[must_use]
    pub const fn frame_bytes(&self, ext_bytes: usize, tail: &TailLengths) -> usize {
        head_bytes(self.flags()) + ext_bytes + tail.total()
    }

    const fn flags(&self) -> u8 {
        (if self.seq.is_some() { FLAG_SEQ } else { 0 }) | (if self.ttl_ms.is_some() { FLAG_TTL } else { 0 })
    }

    /// Appends prefix, numbers and extensions, after one reservation for them and `reserve` bytes more.
    fn prefix_into(
        &self,
        out: &mut BytesMut,
        ext: &[u8],
        tail: &TailLengths,
        reserve: usize,
    ) -> Result<(), EncodeError> {
        let class = match self.class {
            Some(class) => class.code(),
            None if self.kind == DataKind::Publish => CLASS_DEFAULT,
            None => return Err(EncodeError::BadHead),
        };
        if self.hops != 0 && self.kind != DataKind::Relay {
            return Err(EncodeError::BadHead);
        }
        debug_assert!(ExtBlock::parse(self.kind, ext).is_ok(), "extensions that the receiver would refuse");
        let name = length("name", tail.name, self.kind.name_bytes_max())?;
        let reply = length("reply", tail.reply, QUALIFIED_BYTES_MAX)?;
        let headers = length("headers", tail.headers, HEADERS_BYTES_MAX)?;
        let ext_len = length("ext", ext.len(), EXT_BYTES_MAX)?;
        if tail.payload > MAX_PAYLOAD_BYTES_CEILING as usize {
            return Err(EncodeError::PartTooLong { part: "payload", bytes: tail.payload });
        }
        let len = u32::try_from(self.frame_bytes(ext.len(), tail) - 4)
            .map_err(|_| EncodeError::PartTooLong { part: "payload", bytes: tail.payload })?;

        let [l0, l1, l2, l3] = len.to_le_bytes();
        let ([n0, n1], [r0, r1]) = (name.to_le_bytes(), reply.to_le_bytes());
        let ([h0, h1], [e0, e1]) = (headers.to_le_bytes(), ext_len.to_le_bytes());
        let kind = self.kind.code();
        out.reserve(HEAD_BYTES_MAX + ext.len() + reserve);
        out.extend_from_slice(&[l0, l1, l2, l3, kind, self.flags(), class, self.hops, n0, n1, r0, r1, h0, h1, e0, e1]);
        if let Some(seq) = self.seq {
            out.extend_from_slice(&seq.to_le_bytes());
        }
        if let Some(ttl_ms) = self.ttl_ms {
            out.extend_from_slice(&ttl_ms.to_le_bytes());
        }
        out.extend_from_slice(ext);
        Ok(())
    }
}

/// Changes the length in `head`, which is everything of a frame before its payload, from that of a frame with a payload of
/// `from` bytes to that of one with `to`. `false` where it is neither such a head nor would be one: it is unchanged then.
#[must_use]
pub fn fit_payload(head: &mut [u8], from: usize, to: usize) -> bool {
    let bytes = head.len();
    let Some(field) = head.first_chunk_mut::<4>() else { return false };
    let len = |payload: usize| u32::try_from(bytes.checked_add(payload)?.checked_sub(4)?).ok();
    match (len(from), len(to)) {
        (Some(from), Some(len)) if u32::from_le_bytes(*field) == from && to <= MAX_PAYLOAD_BYTES_CEILING as usize => {
            *field = len.to_le_bytes();
            true
        }
        _ => false,
    }
}

/// Changes the sequence number in `head`, which is what a frame begins with. `false` where it has none.
#[must_use]
pub fn renumber(head: &mut [u8], seq: u64) -> bool {
    let has_seq = head.get(5).is_some_and(|flags| flags & FLAG_SEQ != 0);
    let Some(field) = head.get_mut(PREFIX_BYTES..PREFIX_BYTES + 8).filter(|_| has_seq) else { return false };
    field.copy_from_slice(&seq.to_le_bytes());
    true
}

/// The frame at the front of `bytes`, by its length alone.
#[inline]
fn first_frame(bytes: &[u8]) -> Option<&[u8]> {
    let (length, _) = bytes.split_first_chunk::<4>()?;
    bytes.get(..usize::try_from(u32::from_le_bytes(*length)).ok()?.checked_add(4)?)
}

/// Payload and sequence number of the frame at the front of `bytes`, where nothing but these and its length is other than in
/// `head`, which is everything before the payload of a frame with a sequence number. `None` where it is another one, or is not
/// complete.
#[must_use]
pub fn like<'b>(bytes: &'b [u8], head: &[u8]) -> Option<(&'b [u8], u64)> {
    let (before, payload) = first_frame(bytes)?.split_at_checked(head.len())?;
    let (prefix, rest) = before.split_first_chunk::<PREFIX_BYTES>()?;
    let (same_prefix, same_rest) = head.split_first_chunk::<PREFIX_BYTES>()?;
    let (seq, rest) = rest.split_first_chunk::<8>()?;
    let is_like = prefix[4..] == same_prefix[4..] && Some(rest) == same_rest.get(8..) && prefix[5] & FLAG_SEQ != 0;
    is_like.then(|| (payload, u64::from_le_bytes(*seq)))
}

/// The payload of the frame at the front of `bytes`, where nothing but it and its length is other than in `head`, which is
/// everything before the payload of a frame without a sequence number. `None` where it is another one, or is not complete.
#[inline]
#[must_use]
pub fn like_unnumbered<'b>(bytes: &'b [u8], head: &[u8]) -> Option<&'b [u8]> {
    let (before, payload) = first_frame(bytes)?.split_at_checked(head.len())?;
    let (same, flags) = (head.get(4..)?, *head.get(5)?);
    (before.get(4..) == Some(same) && flags & FLAG_SEQ == 0).then_some(payload)
}

#[inline]
fn length(part: &'static str, bytes: usize, max: usize) -> Result<u16, EncodeError> {
    match u16::try_from(bytes) {
        Ok(len) if bytes <= max => Ok(len),
        _ => Err(EncodeError::PartTooLong { part, bytes }),
    }
}

#[cfg(test)]
mod tests;
