//! Extensions of data frames: a list of `type u8 · len u16 · value`, little-endian (DESIGN section 10).
//!
//! [`ExtBlock`] is validated in one pass when its frame is decoded, and that same pass yields the typed
//! [`ExtFields`]; nothing is re-checked or re-parsed afterwards. Each extension appears at most once, in frames of
//! the kinds it is for: a client cannot set an origin, a target or a sender, because a publish that carries one is
//! refused here. Types from [`SKIPPABLE_MIN`] on are skipped when unknown; unknown types below are refused.

use glocal_core::limits::{EXT_BYTES_MAX, NODE_ID_BYTES_MAX, QUEUE_GROUP_BYTES_MAX, TARGETS_MAX};
use smallvec::SmallVec;

mod list;

pub use list::{List, U32List, U64List};

use crate::data::DataKind;
use crate::{EncodeError, FrameError};

/// Target brokers and, per target, the queue groups that it serves one member of. RELAY only.
pub const TARGETS: u8 = 1;
/// Handle (u32) of the broker where the message entered. RELAY only.
pub const ORIGIN: u8 = 2;
/// Incarnation (u64) of the origin. RELAY only.
pub const INCARNATION: u8 = 3;
/// Per target (u32 each, in the order of the targets): how far back that target's previous message lies in the
/// sequence, 0 for none. RELAY only.
pub const STEPS: u8 = 4;
/// Handle (u32) of the true sender, stamped by the ingress broker. RELAY only.
pub const SENDER: u8 = 5;
/// Token (u64) under which the origin awaits replies. RELAY only.
pub const REPLY_TOKEN: u8 = 6;
/// Whether this is a second delivery (u8, 0 or 1). RELAY and DELIVER.
pub const REDELIVERED: u8 = 7;
/// Parameters of a sealed payload, opaque here. Every kind.
pub const SEAL: u8 = 8;
/// Ids (u32 each) of the session's subscriptions that this delivery is for. DELIVER only.
pub const SUBS: u8 = 9;
/// The true sender as text: `<region>/<agent>`, or a tenant for a granted message. DELIVER only.
pub const SENDER_TEXT: u8 = 10;
/// First type that a receiver skips when it does not know it.
pub const SKIPPABLE_MIN: u8 = 64;
/// Per target (u64 each, in the order of the targets): the life of the target that the message is meant for, 0 when the
/// origin does not know it. RELAY only.
pub const LIVES: u8 = 65;

const ENTRY_BYTES: usize = 3;

/// Extensions that a frame of `kind` may carry, one bit per type.
const fn allowed(kind: DataKind) -> u16 {
    match kind {
        DataKind::Publish => 1 << SEAL,
        DataKind::Deliver => 1 << REDELIVERED | 1 << SEAL | 1 << SUBS | 1 << SENDER_TEXT,
        DataKind::Relay => {
            1 << TARGETS
                | 1 << ORIGIN
                | 1 << INCARNATION
                | 1 << STEPS
                | 1 << SENDER
                | 1 << REPLY_TOKEN
                | 1 << REDELIVERED
                | 1 << SEAL
        }
    }
}

/// The extensions of one data frame, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtBlock<'a> {
    bytes: &'a [u8],
    fields: ExtFields<'a>,
}

impl<'a> ExtBlock<'a> {
    /// Validates the extensions of a frame of `kind`.
    ///
    /// # Errors
    /// Every [`FrameError`] about extensions and targets.
    #[inline]
    pub fn parse(kind: DataKind, bytes: &'a [u8]) -> Result<Self, FrameError> {
        // Most publishes have none.
        if bytes.is_empty() { Ok(Self { bytes, fields: ExtFields::default() }) } else { Self::parse_some(kind, bytes) }
    }

    fn parse_some(kind: DataKind, bytes: &'a [u8]) -> Result<Self, FrameError> {
        let mut fields = ExtFields::default();
        let allowed = allowed(kind);
        let mut seen = [0u64; 4];
        let mut entries = ExtIter { rest: bytes };
        while !entries.rest.is_empty() {
            let (ext, value) = entries.next().ok_or(FrameError::Truncated)?;
            if let Some(word) = seen.get_mut(usize::from(ext >> 6)) {
                let bit = 1u64 << (ext & 63);
                if *word & bit != 0 {
                    return Err(FrameError::DuplicateExt(ext));
                }
                *word |= bit;
            }
            if ext == LIVES && kind == DataKind::Relay {
                fields.lives = Some(U64List::parse(value).ok_or(FrameError::BadExt(ext))?);
            }
            if ext >= SKIPPABLE_MIN {
                continue;
            }
            if ext == 0 || ext > SENDER_TEXT {
                return Err(FrameError::UnknownExt(ext));
            }
            if allowed & (1 << ext) == 0 {
                return Err(FrameError::MisplacedExt(ext));
            }
            fields.set(ext, value)?;
        }
        if let Some(steps) = fields.steps
            && fields.targets.map_or(0, |targets| targets.len()) != steps.len()
        {
            return Err(FrameError::BadExt(STEPS));
        }
        if let Some(lives) = fields.lives
            && fields.targets.map_or(0, |targets| targets.len()) != lives.len()
        {
            return Err(FrameError::BadExt(LIVES));
        }
        Ok(Self { bytes, fields })
    }

    /// The extensions as they were sent.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The known extensions.
    #[must_use]
    pub const fn fields(&self) -> &ExtFields<'a> {
        &self.fields
    }

    /// All extensions, unknown ones included, as (type, value) in the order sent.
    #[must_use]
    pub const fn iter(&self) -> ExtIter<'a> {
        ExtIter { rest: self.bytes }
    }
}

impl<'a> IntoIterator for &ExtBlock<'a> {
    type Item = (u8, &'a [u8]);
    type IntoIter = ExtIter<'a>;

    fn into_iter(self) -> ExtIter<'a> {
        self.iter()
    }
}

/// Iterates over (type, value).
#[derive(Clone, Debug)]
pub struct ExtIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for ExtIter<'a> {
    type Item = (u8, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (&[ext, low, high], rest) = self.rest.split_first_chunk::<ENTRY_BYTES>()?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([low, high])))?;
        self.rest = rest;
        Some((ext, value))
    }
}

/// The known extensions of one data frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtFields<'a> {
    /// See [`TARGETS`].
    pub targets: Option<Targets<'a>>,
    /// See [`ORIGIN`].
    pub origin: Option<u32>,
    /// See [`INCARNATION`].
    pub incarnation: Option<u64>,
    /// See [`STEPS`]; as many as targets.
    pub steps: Option<U32List<'a>>,
    /// See [`LIVES`]; as many as targets.
    pub lives: Option<U64List<'a>>,
    /// See [`SENDER`].
    pub sender: Option<u32>,
    /// See [`REPLY_TOKEN`].
    pub reply_token: Option<u64>,
    /// See [`REDELIVERED`].
    pub redelivered: bool,
    /// See [`SEAL`].
    pub seal: Option<&'a [u8]>,
    /// See [`SUBS`].
    pub subs: Option<U32List<'a>>,
    /// See [`SENDER_TEXT`].
    pub sender_text: Option<&'a str>,
}

impl<'a> ExtFields<'a> {
    fn set(&mut self, ext: u8, value: &'a [u8]) -> Result<(), FrameError> {
        let bad = FrameError::BadExt(ext);
        match ext {
            TARGETS => self.targets = Some(Targets::parse(value)?),
            ORIGIN => self.origin = Some(u32_of(value).ok_or(bad)?),
            INCARNATION => self.incarnation = Some(u64_of(value).ok_or(bad)?),
            STEPS => self.steps = Some(U32List::parse(value).ok_or(bad)?),
            SENDER => self.sender = Some(u32_of(value).ok_or(bad)?),
            REPLY_TOKEN => self.reply_token = Some(u64_of(value).ok_or(bad)?),
            REDELIVERED => match value {
                [flag @ (0 | 1)] => self.redelivered = *flag == 1,
                _ => return Err(bad),
            },
            SEAL if !value.is_empty() => self.seal = Some(value),
            SUBS => self.subs = Some(U32List::parse(value).ok_or(bad)?),
            SENDER_TEXT => self.sender_text = Some(sender_text(value).ok_or(bad)?),
            _ => return Err(bad),
        }
        Ok(())
    }
}

fn u32_of(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_le_bytes)
}

fn u64_of(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_le_bytes)
}

fn sender_text(value: &[u8]) -> Option<&str> {
    if value.is_empty() || value.len() > NODE_ID_BYTES_MAX || !value.iter().all(u8::is_ascii_graphic) {
        return None;
    }
    std::str::from_utf8(value).ok()
}

/// The target brokers of one relayed message: `handle u32 · groups u8 · groups × (len u8 · name)` each; never empty,
/// at most [`TARGETS_MAX`]. Handles are not checked here, neither for repeats: what they mean is known to the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> Targets<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let mut count = 0;
        let mut rest = bytes;
        while !rest.is_empty() {
            count += 1;
            if count > TARGETS_MAX {
                return Err(FrameError::TooManyTargets);
            }
            let (&[_, _, _, _, groups], tail) = rest.split_first_chunk::<5>().ok_or(FrameError::BadExt(TARGETS))?;
            rest = skip_groups(tail, groups).ok_or(FrameError::BadExt(TARGETS))?;
        }
        if count == 0 {
            return Err(FrameError::BadExt(TARGETS));
        }
        Ok(Self { bytes, count })
    }

    /// How many.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(self) -> usize {
        self.count
    }

    /// The targets in the order sent.
    #[must_use]
    pub const fn iter(self) -> TargetIter<'a> {
        TargetIter { rest: self.bytes }
    }
}

impl<'a> IntoIterator for Targets<'a> {
    type Item = Target<'a>;
    type IntoIter = TargetIter<'a>;

    fn into_iter(self) -> TargetIter<'a> {
        self.iter()
    }
}

/// Passes `count` group names, each checked; `None` when one is malformed.
fn skip_groups(mut bytes: &[u8], count: u8) -> Option<&[u8]> {
    for _ in 0..count {
        let (name, rest) = take_group(bytes)?;
        if name.is_empty() || name.len() > QUEUE_GROUP_BYTES_MAX {
            return None;
        }
        std::str::from_utf8(name).ok()?;
        bytes = rest;
    }
    Some(bytes)
}

fn take_group(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

/// One target broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The broker's handle in this lane.
    pub handle: u32,
    /// The queue groups that the broker delivers to one member of; plain subscribers are always delivered to.
    pub groups: Groups<'a>,
}

/// Iterates over targets.
#[derive(Clone, Debug)]
pub struct TargetIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for TargetIter<'a> {
    type Item = Target<'a>;

    fn next(&mut self) -> Option<Target<'a>> {
        let (&[a, b, c, d, count], tail) = self.rest.split_first_chunk::<5>()?;
        let mut rest = tail;
        for _ in 0..count {
            rest = take_group(rest)?.1;
        }
        let (names, _) = tail.split_at_checked(tail.len() - rest.len())?;
        self.rest = rest;
        Some(Target { handle: u32::from_le_bytes([a, b, c, d]), groups: Groups { bytes: names } })
    }
}

/// The queue group names of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups<'a> {
    bytes: &'a [u8],
}

impl<'a> Groups<'a> {
    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// The names in the order sent.
    #[must_use]
    pub const fn iter(self) -> GroupIter<'a> {
        GroupIter { rest: self.bytes }
    }
}

impl<'a> IntoIterator for Groups<'a> {
    type Item = &'a str;
    type IntoIter = GroupIter<'a>;

    fn into_iter(self) -> GroupIter<'a> {
        self.iter()
    }
}

/// Iterates over queue group names.
#[derive(Clone, Debug)]
pub struct GroupIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for GroupIter<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let (name, rest) = take_group(self.rest)?;
        self.rest = rest;
        std::str::from_utf8(name).ok()
    }
}

/// Writes extensions; reused from frame to frame with [`ExtBuilder::clear`]. The first error is kept until then and
/// given out by [`ExtBuilder::bytes`]. It writes what it is told: whether the extensions fit the frame is checked by
/// the receiver, and in debug builds by the encoder.
#[derive(Clone, Debug, Default)]
pub struct ExtBuilder {
    bytes: SmallVec<[u8; 128]>,
    error: Option<EncodeError>,
}

impl ExtBuilder {
    /// No extensions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all extensions, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.error = None;
    }

    /// The encoded extensions.
    ///
    /// # Errors
    /// [`EncodeError::PartTooLong`], [`EncodeError::TooManyTargets`] or [`EncodeError::BadExt`] for what was added.
    pub fn bytes(&self) -> Result<&[u8], EncodeError> {
        match &self.error {
            Some(error) => Err(error.clone()),
            None => Ok(&self.bytes),
        }
    }

    /// Adds [`ORIGIN`].
    pub fn origin(&mut self, handle: u32) -> &mut Self {
        self.raw(ORIGIN, &handle.to_le_bytes())
    }

    /// Adds [`INCARNATION`].
    pub fn incarnation(&mut self, incarnation: u64) -> &mut Self {
        self.raw(INCARNATION, &incarnation.to_le_bytes())
    }

    /// Adds [`STEPS`].
    pub fn steps(&mut self, steps: impl IntoIterator<Item = u32>) -> &mut Self {
        self.list(STEPS, steps)
    }

    /// Adds [`LIVES`].
    pub fn lives(&mut self, lives: impl IntoIterator<Item = u64>) -> &mut Self {
        let start = self.begin(LIVES);
        for life in lives {
            self.bytes.extend_from_slice(&life.to_le_bytes());
        }
        self.end(start);
        self
    }

    /// Adds [`SENDER`].
    pub fn sender(&mut self, handle: u32) -> &mut Self {
        self.raw(SENDER, &handle.to_le_bytes())
    }

    /// Adds [`REPLY_TOKEN`].
    pub fn reply_token(&mut self, token: u64) -> &mut Self {
        self.raw(REPLY_TOKEN, &token.to_le_bytes())
    }

    /// Adds [`REDELIVERED`] when `redelivered`; absent means no.
    pub fn redelivered(&mut self, redelivered: bool) -> &mut Self {
        if redelivered { self.raw(REDELIVERED, &[1]) } else { self }
    }

    /// Adds [`SEAL`].
    pub fn seal(&mut self, seal: &[u8]) -> &mut Self {
        self.raw(SEAL, seal)
    }

    /// Adds [`SUBS`].
    pub fn subs(&mut self, subs: impl IntoIterator<Item = u32>) -> &mut Self {
        self.list(SUBS, subs)
    }

    /// Adds [`SENDER_TEXT`].
    pub fn sender_text(&mut self, text: &str) -> &mut Self {
        self.raw(SENDER_TEXT, text.as_bytes())
    }

    /// Begins [`TARGETS`]; they end when the returned value is dropped.
    pub fn targets(&mut self) -> TargetsBuilder<'_> {
        let start = self.begin(TARGETS);
        TargetsBuilder { ext: self, start, count: 0, groups_at: None }
    }

    /// Adds one extension, known or not.
    pub fn raw(&mut self, ext: u8, value: &[u8]) -> &mut Self {
        let start = self.begin(ext);
        self.bytes.extend_from_slice(value);
        self.end(start);
        self
    }

    fn list(&mut self, ext: u8, items: impl IntoIterator<Item = u32>) -> &mut Self {
        let start = self.begin(ext);
        for item in items {
            self.bytes.extend_from_slice(&item.to_le_bytes());
        }
        self.end(start);
        self
    }

    fn begin(&mut self, ext: u8) -> usize {
        self.bytes.extend_from_slice(&[ext, 0, 0]);
        self.bytes.len()
    }

    /// Patches the length of the value that began at `start`.
    fn end(&mut self, start: usize) {
        let bytes = self.bytes.len();
        let len = u16::try_from(bytes - start).ok().filter(|_| bytes <= EXT_BYTES_MAX);
        match (len, self.bytes.get_mut(start - 2..start)) {
            (Some(len), Some(slot)) => slot.copy_from_slice(&len.to_le_bytes()),
            _ => self.fail(EncodeError::PartTooLong { part: "ext", bytes }),
        }
    }

    fn fail(&mut self, error: EncodeError) {
        self.error.get_or_insert(error);
    }
}

/// Writes the targets of one extension block.
#[derive(Debug)]
pub struct TargetsBuilder<'a> {
    ext: &'a mut ExtBuilder,
    start: usize,
    count: usize,
    groups_at: Option<usize>,
}

impl TargetsBuilder<'_> {
    /// Adds a target without queue groups.
    pub fn target(&mut self, handle: u32) -> &mut Self {
        self.count += 1;
        if self.count > TARGETS_MAX {
            self.ext.fail(EncodeError::TooManyTargets);
            return self;
        }
        self.ext.bytes.extend_from_slice(&handle.to_le_bytes());
        self.groups_at = Some(self.ext.bytes.len());
        self.ext.bytes.push(0);
        self
    }

    /// Adds a queue group to the target added last.
    pub fn group(&mut self, name: &str) -> &mut Self {
        let len = u8::try_from(name.len()).ok().filter(|len| (1..=QUEUE_GROUP_BYTES_MAX).contains(&usize::from(*len)));
        let count = self.groups_at.and_then(|at| self.ext.bytes.get_mut(at)).filter(|count| **count < u8::MAX);
        if let (Some(len), Some(count)) = (len, count) {
            *count += 1;
            self.ext.bytes.push(len);
            self.ext.bytes.extend_from_slice(name.as_bytes());
        } else {
            self.ext.fail(EncodeError::BadExt);
        }
        self
    }
}

impl Drop for TargetsBuilder<'_> {
    fn drop(&mut self) {
        if self.count == 0 {
            self.ext.fail(EncodeError::BadExt);
        }
        self.ext.end(self.start);
    }
}

#[cfg(test)]
mod tests;
