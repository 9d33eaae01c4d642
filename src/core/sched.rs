//! Fairness: which bytes leave next (DESIGN section 7).
//!
//! Two levels of deficit-weighted round robin, both in bytes: [`Hdwrr`] shares an edge among tenants by their weights,
//! and [`ClassLanes`] shares what one tenant gets among its four classes, so nobody buys another tenant's share by
//! calling a flood `live`. A session's egress has one tenant and uses [`ClassLanes`] directly, through
//! [`SessionLanes`], which puts the session's control frames in front.
//!
//! Guarantees: FIFO within a lane; every byte pushed comes out, is reported as dropped, or is still queued; every queue
//! is bounded in memory; work-conserving; the cost of a slice does not depend on the number of tenants, and an idle
//! tenant costs nothing. Never reads a clock, never looks into a frame, never copies one.

mod bare;
mod classes;
mod fattest;
mod hdwrr;
mod lane;
mod pace;
mod session;
mod terms;
#[cfg(test)]
mod tests;
mod window;

use bytes::Bytes;

pub use crate::count::Drop as DropReason;
pub use classes::{CLASS_WEIGHTS_DEFAULT, ClassConfig, ClassLanes, ClassSlice};
pub use hdwrr::{Hdwrr, HdwrrConfig, Purged, Slice};
pub use session::{ControlOverflow, SessionLanes};
pub use terms::EdgeTerms;
pub use window::{Delivered, SendWindow};

use crate::name::Class;
use crate::tenant::TenantKey;
use crate::time::Time;

/// Something frames are queued in, as far as an [`crate::inbox::Inbox`] needs to know it.
pub trait Lanes {
    /// Whether nothing is queued.
    fn is_empty(&self) -> bool;
}

/// One encoded frame in a lane, or a short run of small ones that came together and live or go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedFrame {
    /// The frame, or its first part.
    pub bytes: Bytes,
    /// A large payload shared with other targets, sent after `bytes`.
    pub tail: Option<Bytes>,
    /// When it was queued; set by the push.
    pub queued: Time,
    /// Milliseconds after `queued` at which a `live` frame is worthless, if it says so itself.
    pub ttl_ms: Option<u32>,
    /// Whether later frames of the lane depend on it (an announcement of a handle): it neither ages nor makes room.
    pub pinned: bool,
    /// Whether room was asked for before: it is queued even if others have taken that room since.
    pub admitted: bool,
    /// How many frames the run has.
    pub frames: u32,
}

impl QueuedFrame {
    /// A frame in one piece.
    #[must_use]
    pub const fn new(bytes: Bytes) -> Self {
        Self { bytes, tail: None, queued: Time(0), ttl_ms: None, pinned: false, admitted: false, frames: 1 }
    }

    /// The same frame, continued by a shared payload.
    #[must_use]
    pub fn with_tail(mut self, tail: Bytes) -> Self {
        self.tail = Some(tail);
        self
    }

    /// The same frame with memory of its own, where it was a part of something larger.
    #[must_use]
    fn detached(mut self) -> Self {
        self.bytes = Bytes::copy_from_slice(&self.bytes);
        self
    }

    /// The same frame with a time to live.
    #[must_use]
    pub const fn with_ttl_ms(mut self, ttl_ms: Option<u32>) -> Self {
        self.ttl_ms = ttl_ms;
        self
    }

    /// The same bytes, known to be `frames` frames.
    #[must_use]
    pub const fn with_frames(mut self, frames: u32) -> Self {
        self.frames = frames;
        self
    }

    /// The same frame, which was asked room for.
    #[must_use]
    pub const fn admitted(mut self, admitted: bool) -> Self {
        self.admitted = admitted;
        self
    }

    /// The same frame, never aged nor dropped to make room for others.
    #[must_use]
    pub const fn pinned(mut self) -> Self {
        self.pinned = true;
        self
    }

    /// Bytes of both parts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.tail.as_ref().map_or(0, Bytes::len)
    }

    /// Whether the frame has no bytes; such a frame is never queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What became of a pushed frame.
#[must_use = "a dropped frame is counted, and a refused reliable one slows its publisher"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It is queued.
    Queued,
    /// It was not queued: the lane is full. For `tele` that is the drop; for `ctrl` and `bulk` the caller holds it back.
    DroppedNewest,
    /// It is queued, and older frames of its own lane, `live` or `tele`, were dropped to make room. They are not in any [`Drops`].
    DroppedOldest {
        /// Dropped frames.
        frames: u64,
        /// Dropped bytes.
        bytes: u64,
    },
}

/// Frames of one lane lost for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropRecord {
    /// The tenant; `None` where the lanes belong to one session, whose tenant the caller knows.
    pub tenant: Option<TenantKey>,
    /// The class.
    pub class: Class,
    /// Why: `Aged`, `LaneFull`, `Memory` or `Gone`.
    pub reason: DropReason,
    /// Frames.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Drops to be counted by the caller. Records that repeat the one before are merged.
#[derive(Clone, Debug, Default)]
pub struct Drops {
    records: Vec<DropRecord>,
}

impl Drops {
    /// No drops.
    #[must_use]
    pub const fn new() -> Self {
        Self { records: Vec::new() }
    }

    /// Whether nothing was dropped.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The records, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &DropRecord> {
        self.records.iter()
    }

    /// Takes the records out, oldest first, and keeps the memory for the next use.
    pub fn drain(&mut self) -> impl Iterator<Item = DropRecord> + '_ {
        self.records.drain(..)
    }

    /// Frames of all records.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.records.iter().map(|record| record.frames).sum()
    }

    /// Bytes of all records.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.records.iter().map(|record| record.bytes).sum()
    }

    fn add(&mut self, tenant: Option<TenantKey>, class: Class, reason: DropReason, lost: lane::Lost) {
        if lost.frames == 0 {
            return;
        }
        if let Some(last) = self.records.last_mut()
            && (last.tenant, last.class, last.reason) == (tenant, class, reason)
        {
            last.frames += lost.frames;
            last.bytes += lost.bytes;
            return;
        }
        self.records.push(DropRecord { tenant, class, reason, frames: lost.frames, bytes: lost.bytes });
    }
}
