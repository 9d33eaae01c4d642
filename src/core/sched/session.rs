//! A session's egress: its control frames, then its class lanes, as one byte stream.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{ClassConfig, ClassLanes, Drops, Lanes, Pushed, QueuedFrame};
use crate::limits::{QUEUED_FRAME_OVERHEAD_BYTES, SESSION_CONTROL_QUEUE_BYTES_MAX, SESSION_LANE_BYTES_MAX};
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
        Self { control: VecDeque::new(), control_held: 0, control_split: false, overflowed: false, classes }
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
        self.classes.push(class, frame, now)
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
