//! A session's egress: its control frames, then its class lanes, as one byte stream.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::{ClassConfig, ClassLanes, DropReason, Drops, Lanes, Pushed, QueuedFrame};
use crate::limits::{
    QUEUED_FRAME_OVERHEAD_BYTES, SESSION_CONTROL_QUEUE_BYTES_MAX, SESSION_CONTROL_QUEUE_BYTES_MIN,
    SESSION_LANE_BYTES_MAX, SLOW_CONSUMER_MS_MAX,
};
use crate::memory::{Account, Charge};
use crate::name::Class;
use crate::time::Time;

/// The session has more control frames waiting than it may: it does not read, and must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client does not read its acknowledgements")]
pub struct ControlOverflow;

/// Bounded egress of one session. Frames never interleave: the stream has no slices.
#[derive(Debug)]
pub struct SessionLanes {
    control: VecDeque<Bytes>,
    control_held: usize,
    /// Whether the first control frame is partly sent.
    control_split: bool,
    overflowed: bool,
    /// Since when a reliable lane has had no room for what it was asked, without having sent a frame.
    full_since: Option<Time>,
    classes: ClassLanes,
    /// What is charged to the session's tenant; lanes without a tenant charge nothing.
    charge: Option<Charge>,
    /// What the session may hold before its lanes count as full, beside their own limits, as of the last look.
    room: usize,
    /// Whether the last frame was refused, or others dropped for it, for want of memory.
    is_short: bool,
}

impl Default for SessionLanes {
    fn default() -> Self {
        Self::new(ClassConfig::new(SESSION_LANE_BYTES_MAX))
    }
}

impl SessionLanes {
    /// Empty lanes; whatever the configuration says, frames are not split.
    #[must_use]
    pub fn new(config: ClassConfig) -> Self {
        let classes = ClassLanes::new(ClassConfig { split_frames: false, ..config });
        Self {
            control: VecDeque::new(),
            control_held: 0,
            control_split: false,
            overflowed: false,
            full_since: None,
            classes,
            charge: None,
            room: usize::MAX,
            is_short: false,
        }
    }

    /// The same lanes, whose memory is charged to a tenant.
    #[must_use]
    pub fn charged_to(self, account: Option<Arc<Account>>) -> Self {
        Self { charge: account.map(Charge::new), ..self }
    }

    /// Begins a batch of pushes: looks at what the session's tenant and the node have left. To be followed by
    /// [`Self::settle`].
    pub fn begin(&mut self) {
        self.room = self.charge.as_ref().map_or(usize::MAX, |charge| charge.account().room());
    }

    /// Charges what the lanes hold now.
    pub fn settle(&mut self) {
        let held = self.held();
        if let Some(charge) = &mut self.charge {
            charge.settle(held);
        }
    }

    /// Gives up what a session holds that does not read, beyond its part, where its tenant holds more than it may: `live`
    /// and `tele` at once, and whoever still holds too much has [`SLOW_CONSUMER_MS_MAX`] to read some of the rest.
    pub fn shed(&mut self, now: Time, drops: &mut Drops) {
        let Some(charge) = &self.charge else { return };
        let keep = charge.account().keep();
        if self.held() <= keep {
            return;
        }
        self.classes.shed(keep.saturating_sub(self.control_held), drops);
        if self.promised_held() > 0 && self.held() > keep {
            self.full_since.get_or_insert(now);
        }
        self.settle();
    }

    /// Why the last push has lost something.
    #[must_use]
    pub const fn lost_by(&self) -> DropReason {
        if self.is_short { DropReason::Memory } else { DropReason::LaneFull }
    }

    /// Bytes of everything that waits, with the bookkeeping of frames.
    fn held(&self) -> usize {
        self.classes.held() + self.control_held
    }

    /// The part of it that is never dropped.
    fn promised_held(&self) -> usize {
        self.classes.lane_held(Class::Ctrl) + self.classes.lane_held(Class::Bulk)
    }

    /// Queues a control frame ahead of all classes, in order with other control frames.
    ///
    /// # Errors
    /// [`ControlOverflow`] when too many wait already, now and from then on.
    pub fn push_control(&mut self, frame: Bytes) -> Result<(), ControlOverflow> {
        let held = frame.len() + QUEUED_FRAME_OVERHEAD_BYTES;
        self.begin();
        let max = self.room.clamp(SESSION_CONTROL_QUEUE_BYTES_MIN, SESSION_CONTROL_QUEUE_BYTES_MAX);
        self.overflowed |= self.control_held + held > max;
        if self.overflowed {
            return Err(ControlOverflow);
        }
        if !frame.is_empty() {
            self.control_held += held;
            self.control.push_back(frame);
            self.settle();
        }
        Ok(())
    }

    /// Whether a control frame was refused: the session must be closed.
    #[must_use]
    pub const fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Queues a frame in its class's lane; see [`ClassLanes::push`]. A refusal is a drop and nothing else: whoever is promised
    /// something is asked before, see [`Self::ask`], and an observer is promised nothing.
    pub fn push(&mut self, class: Class, frame: QueuedFrame, now: Time) -> Pushed {
        // Nobody waits for who is about to be closed, and nothing more is kept for them.
        let frame = if frame.admitted && self.is_stuck(now) { frame.admitted(false) } else { frame };
        let may_be_short = self.room != usize::MAX && !frame.admitted;
        // An answer in a lane has the room that answers have.
        let room = if frame.pinned { self.room.max(SESSION_CONTROL_QUEUE_BYTES_MIN) } else { self.room };
        self.is_short = may_be_short && self.held() + frame.held() > room;
        if self.is_short {
            self.classes.push_in_place(class, frame, now)
        } else {
            self.classes.push_apart(class, frame, may_be_short, now)
        }
    }

    /// Asks room of a reliable lane for `bytes` more, with the bookkeeping of frames, beside `reserved` that are still to
    /// come. How much there is; less than was asked for counts as a refused frame, see [`Self::is_stuck`]. Who is stuck is
    /// not waited for.
    pub fn ask(&mut self, class: Class, bytes: usize, reserved: usize, now: Time) -> usize {
        if self.is_stuck(now) {
            return usize::MAX;
        }
        let free = match self.classes.free(class) {
            usize::MAX if reserved == 0 => usize::MAX,
            usize::MAX => self.classes.lane_max(class).saturating_sub(reserved),
            free => free.saturating_sub(reserved),
        };
        self.begin();
        let free = match self.room {
            usize::MAX => free,
            // What is lossy makes room for it, at the latest when the session sheds.
            room => free.min(room.saturating_sub(self.promised_held() + reserved)),
        };
        if free < bytes && reserved == 0 && self.may_fill_up(class) {
            self.full_since.get_or_insert(now);
        }
        free
    }

    /// Whether a refusal in this lane says that the session does not read: there is something reliable for it to read.
    fn may_fill_up(&self, class: Class) -> bool {
        class.is_reliable() && self.classes.lane_backlog(class) > 0
    }

    /// Whether a reliable lane has stayed full for longer than is tolerated: the session must be closed, since what it
    /// was promised is being lost.
    #[must_use]
    pub fn is_stuck(&self, now: Time) -> bool {
        self.full_since.is_some_and(|since| now >= since.plus_millis(SLOW_CONSUMER_MS_MAX))
    }

    /// Moves up to `max_bytes` of the stream to the end of `out`, for one write, and returns how many.
    pub fn fill(&mut self, max_bytes: usize, now: Time, out: &mut Vec<Bytes>, drops: &mut Drops) -> usize {
        let mut filled = 0;
        while filled < max_bytes {
            let left = max_bytes - filled;
            if !self.classes.is_mid_frame() && !self.control.is_empty() {
                filled += self.take_control(left, out);
                continue;
            }
            let Some(slice) = self.classes.pop_slice(left, now, out, drops) else { break };
            filled += slice.bytes;
            if slice.class.is_reliable() {
                self.full_since = None;
            }
        }
        self.settle();
        filled
    }

    /// What is left of the frame in whose middle the last write ended, in bytes; zero between frames.
    #[must_use]
    pub fn unfinished_bytes(&self) -> usize {
        let control = self.control.front().filter(|_| self.control_split).map_or(0, Bytes::len);
        control + self.classes.unfinished_bytes()
    }

    /// The class lanes, to ask for backlogs and room.
    #[must_use]
    pub const fn classes(&self) -> &ClassLanes {
        &self.classes
    }

    /// Changes the weights of the classes.
    pub fn set_weights(&mut self, weights: [u32; 4]) {
        self.classes.set_weights(weights);
    }

    /// Drops all frames of the class lanes, reported as `Gone`. Control frames stay.
    pub fn clear_classes(&mut self, drops: &mut Drops) {
        self.classes.clear(drops);
        self.settle();
    }

    /// Moves one control frame, or the front of it where the write ends.
    fn take_control(&mut self, max_bytes: usize, out: &mut Vec<Bytes>) -> usize {
        let Some(frame) = self.control.front_mut() else { return 0 };
        let part = frame.split_to(frame.len().min(max_bytes));
        let taken = part.len();
        out.push(part);
        self.control_held -= taken;
        self.control_split = !frame.is_empty();
        if frame.is_empty() {
            self.control_held -= QUEUED_FRAME_OVERHEAD_BYTES;
            self.control.pop_front();
        }
        taken
    }
}

impl Lanes for SessionLanes {
    fn is_empty(&self) -> bool {
        self.control.is_empty() && self.classes.is_empty()
    }
}

#[cfg(test)]
mod tests;
