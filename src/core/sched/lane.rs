//! One lane: the bounded FIFO of one class of one tenant.

use std::collections::VecDeque;
use std::ops::AddAssign;

use bytes::Bytes;

use super::{Pushed, QueuedFrame};
use crate::limits::{LANE_KEEP_FRAMES, LIVE_AGE_MS_MAX, QUEUED_FRAME_OVERHEAD_BYTES};
use crate::time::Time;

/// Frames taken out of a lane without being sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) frames: u64,
    pub(super) bytes: u64,
}

impl Lost {
    fn add(&mut self, frame: &QueuedFrame) {
        self.frames += u64::from(frame.frames);
        self.bytes += frame.len() as u64;
    }

    /// What became of a frame that is queued, for which this was dropped from its lane.
    pub(super) const fn pushed(self) -> Pushed {
        if self.frames > 0 { Pushed::DroppedOldest { frames: self.frames, bytes: self.bytes } } else { Pushed::Queued }
    }
}

impl AddAssign for Lost {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
    }
}

/// How much of a lane one slice may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// A further frame is begun only below this many bytes.
    pub(super) begin_below: usize,
    /// The slice ends here, even inside a frame.
    pub(super) end_at: usize,
}

/// A FIFO of frames whose first may be partly sent.
///
/// `ahead` holds pinned frames that stood before dropped ones: they are older than all of `frames`, so the order of what
/// survives is the order of arrival, and dropping the oldest stays O(1) amortised.
#[derive(Debug, Default)]
pub(super) struct Lane {
    partial: Option<QueuedFrame>,
    ahead: VecDeque<QueuedFrame>,
    frames: VecDeque<QueuedFrame>,
    bytes: usize,
    pinned_held: usize,
}

impl Lane {
    pub(super) const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// When the frame was queued that leaves next, or has left in part.
    pub(super) fn since(&self) -> Option<Time> {
        let next = self.partial.as_ref().or_else(|| self.ahead.front()).or_else(|| self.frames.front());
        next.map(|frame| frame.queued)
    }

    /// Bytes with the bookkeeping of every frame: what limits are compared with.
    pub(super) fn held(&self) -> usize {
        let frames = usize::from(self.partial.is_some()) + self.ahead.len() + self.frames.len();
        self.bytes + frames * QUEUED_FRAME_OVERHEAD_BYTES
    }

    /// Whether the next byte is inside a frame.
    pub(super) const fn is_mid_frame(&self) -> bool {
        self.partial.is_some()
    }

    /// What is left of the frame that is partly sent, in bytes.
    pub(super) fn unfinished_bytes(&self) -> usize {
        self.partial.as_ref().map_or(0, QueuedFrame::len)
    }

    /// The part of [`Self::held`] that no drop can free: what is partly sent or pinned.
    pub(super) fn kept(&self) -> usize {
        self.pinned_held + self.partial.as_ref().map_or(0, QueuedFrame::held)
    }

    pub(super) fn push(&mut self, frame: QueuedFrame) {
        self.bytes += frame.len();
        if frame.pinned {
            self.pinned_held += frame.held();
        }
        self.frames.push_back(frame);
    }

    /// Drops the oldest frame that is neither pinned nor partly sent; `None` when there is none.
    pub(super) fn drop_oldest(&mut self) -> Option<Lost> {
        while let Some(frame) = self.frames.pop_front() {
            if frame.pinned {
                self.ahead.push_back(frame);
                continue;
            }
            self.bytes -= frame.len();
            let mut lost = Lost::default();
            lost.add(&frame);
            return Some(lost);
        }
        None
    }

    /// Drops everything, a partly sent frame included.
    pub(super) fn clear(&mut self) -> Lost {
        let mut lost = Lost::default();
        for frame in self.partial.take().iter().chain(&self.ahead).chain(&self.frames) {
            lost.add(frame);
        }
        self.bytes = 0;
        self.pinned_held = 0;
        self.ahead.clear();
        self.frames.clear();
        self.give_back();
        lost
    }

    /// Moves one slice to `out` and returns its bytes; where `ages`, frames too old to begin go to `aged` instead.
    pub(super) fn take(&mut self, cut: Cut, ages: bool, now: Time, out: &mut Vec<Bytes>, aged: &mut Lost) -> usize {
        let mut taken = 0;
        while let Some(mut frame) = self.next_frame(taken < cut.begin_below, ages, now, aged) {
            taken += frame.split_to(cut.end_at.saturating_sub(taken), out);
            if !frame.is_empty() {
                self.partial = Some(frame);
                break;
            }
        }
        self.bytes -= taken;
        if self.bytes == 0 {
            self.give_back();
        }
        taken
    }

    fn next_frame(&mut self, begin: bool, ages: bool, now: Time, aged: &mut Lost) -> Option<QueuedFrame> {
        if let Some(frame) = self.partial.take() {
            return Some(frame);
        }
        if !begin {
            return None;
        }
        while let Some(frame) = self.ahead.pop_front().or_else(|| self.frames.pop_front()) {
            if frame.pinned {
                self.pinned_held -= frame.held();
                return Some(frame);
            }
            if !(ages && frame.is_old(now)) {
                return Some(frame);
            }
            self.bytes -= frame.len();
            aged.add(&frame);
        }
        None
    }

    fn give_back(&mut self) {
        for queue in [&mut self.ahead, &mut self.frames] {
            if queue.capacity() > LANE_KEEP_FRAMES {
                queue.shrink_to(LANE_KEEP_FRAMES);
            }
        }
    }
}

impl QueuedFrame {
    /// What the frame costs against limits.
    pub(super) fn held(&self) -> usize {
        self.len() + QUEUED_FRAME_OVERHEAD_BYTES
    }

    fn is_old(&self, now: Time) -> bool {
        let age_ms_max = self.ttl_ms.map_or(LIVE_AGE_MS_MAX, |ttl| LIVE_AGE_MS_MAX.min(u64::from(ttl)));
        now.micros_since(self.queued) > age_ms_max.saturating_mul(1000)
    }

    /// Moves up to `max` bytes from the front to `out` and returns how many.
    pub(super) fn split_to(&mut self, max: usize, out: &mut Vec<Bytes>) -> usize {
        let mut taken = 0;
        for part in std::iter::once(&mut self.bytes).chain(&mut self.tail) {
            let size = part.len().min(max - taken);
            if size > 0 {
                out.push(part.split_to(size));
                taken += size;
            }
        }
        taken
    }
}
