//! A session's egress: its control frames, then its class lanes, as one byte stream.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{ClassConfig, ClassLanes, Drops, Lanes, Pushed, QueuedFrame};
use crate::limits::{
    QUEUED_FRAME_OVERHEAD_BYTES, SESSION_CONTROL_QUEUE_BYTES_MAX, SESSION_LANE_BYTES_MAX, SLOW_CONSUMER_MS_MAX,
};
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
    /// Since when a reliable lane refuses frames without having sent one.
    full_since: Option<Time>,
    classes: ClassLanes,
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
        }
    }

    /// Queues a control frame ahead of all classes, in order with other control frames.
    ///
    /// # Errors
    /// [`ControlOverflow`] when too many wait already, now and from then on.
    pub fn push_control(&mut self, frame: Bytes) -> Result<(), ControlOverflow> {
        let held = frame.len() + QUEUED_FRAME_OVERHEAD_BYTES;
        self.overflowed |= self.control_held + held > SESSION_CONTROL_QUEUE_BYTES_MAX;
        if self.overflowed {
            return Err(ControlOverflow);
        }
        if !frame.is_empty() {
            self.control_held += held;
            self.control.push_back(frame);
        }
        Ok(())
    }

    /// Whether a control frame was refused: the session must be closed.
    #[must_use]
    pub const fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Queues a frame in its class's lane; see [`ClassLanes::push`].
    pub fn push(&mut self, class: Class, frame: QueuedFrame, now: Time) -> Pushed {
        // Nobody waits for who is about to be closed, and nothing more is kept for them.
        let frame = if frame.admitted && self.is_stuck(now) { frame.admitted(false) } else { frame };
        let pushed = self.classes.push(class, frame, now);
        if class.is_reliable() && pushed != Pushed::Queued {
            self.full_since.get_or_insert(now);
        }
        pushed
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
        if free < bytes && reserved == 0 {
            self.full_since.get_or_insert(now);
        }
        free
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
mod tests {
    use super::*;

    #[test]
    fn a_reliable_lane_that_stays_full_is_stuck() {
        let mut lanes = SessionLanes::new(ClassConfig::new(1024));
        let frame = || QueuedFrame::new(Bytes::from_static(&[0; 512]));
        let start = Time::from_millis(7);
        while lanes.push(Class::Tele, frame(), start) == Pushed::Queued {}
        assert!(!lanes.is_stuck(start.plus_millis(SLOW_CONSUMER_MS_MAX)), "other classes drop, and that is all");
        while lanes.push(Class::Ctrl, frame(), start) == Pushed::Queued {}
        assert!(!lanes.is_stuck(start.plus_millis(SLOW_CONSUMER_MS_MAX - 1)));
        assert!(lanes.is_stuck(start.plus_millis(SLOW_CONSUMER_MS_MAX)));
        let late = start.plus_millis(SLOW_CONSUMER_MS_MAX);
        assert_eq!(lanes.ask(Class::Ctrl, 512, 0, late), usize::MAX, "nobody waits for it");
        assert_eq!(lanes.push(Class::Ctrl, frame().admitted(true), late), Pushed::DroppedNewest);
        // Whoever reads again is not stuck.
        let (mut out, mut drops) = (Vec::new(), Drops::new());
        lanes.fill(usize::MAX, start.plus_millis(SLOW_CONSUMER_MS_MAX), &mut out, &mut drops);
        assert!(!lanes.is_stuck(start.plus_millis(2 * SLOW_CONSUMER_MS_MAX)));
    }

    #[test]
    fn room_that_was_asked_for_is_kept_and_a_refusal_starts_the_clock() {
        let mut lanes = SessionLanes::new(ClassConfig::new(1024));
        let frame = || QueuedFrame::new(Bytes::from_static(&[0; 512])).admitted(true);
        let (start, all) = (Time::from_millis(7), usize::MAX);
        assert_eq!(lanes.ask(Class::Bulk, 4096, 0, start), all, "an empty lane takes any one");
        assert_eq!(lanes.ask(Class::Bulk, 512, 640, start), 1024 - 640, "not beside what is still to come");
        assert!(
            (0..3).all(|_| lanes.push(Class::Bulk, frame(), start) == Pushed::Queued),
            "over the limit, as promised"
        );
        assert_eq!(lanes.ask(Class::Bulk, 512, 0, start), 0);
        assert!(lanes.is_stuck(start.plus_millis(SLOW_CONSUMER_MS_MAX)));
    }
}
