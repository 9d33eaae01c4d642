//! What the scheduler of an edge is measured against: one queue for everybody, first come first served.
//!
//! Only a build with `--cfg glocal_bare` uses it, of which no node can be made; see [`crate::IS_BARE`].

use std::collections::VecDeque;

use bytes::Bytes;

use super::{Pushed, QueuedFrame, Slice};
use crate::name::Class;
use crate::tenant::TenantKey;

/// Frames in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Fifo {
    frames: VecDeque<(TenantKey, Class, QueuedFrame)>,
    /// Whether a part of the first one has gone.
    started: bool,
    held: usize,
}

impl Fifo {
    /// Whether nothing is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Queues a frame, unless more than `held_bytes_max` would be held.
    pub(super) fn push(
        &mut self,
        tenant: TenantKey,
        class: Class,
        frame: QueuedFrame,
        held_bytes_max: usize,
    ) -> Pushed {
        if self.held + frame.held() > held_bytes_max {
            return Pushed::DroppedNewest;
        }
        self.held += frame.held();
        self.frames.push_back((tenant, class, frame));
        Pushed::Queued
    }

    /// Moves the next frames of one tenant and class, and of the last one a part, to the end of `out`.
    pub(super) fn next_slice(&mut self, bytes_max: usize, out: &mut Vec<Bytes>) -> Option<Slice> {
        let (tenant, class) = self.frames.front().map(|(tenant, class, _)| (*tenant, *class))?;
        let starts_frame = !self.started;
        let mut bytes = 0;
        while let Some((_, _, frame)) = self.frames.front_mut().filter(|(t, c, _)| (*t, *c) == (tenant, class)) {
            let held = frame.held();
            bytes += frame.split_to(bytes_max - bytes, out);
            self.started = !frame.is_empty();
            if self.started {
                self.held -= held - frame.held();
                break;
            }
            self.held -= held;
            self.frames.pop_front();
        }
        Some(Slice { tenant, class, bytes, starts_frame, ends_frame: !self.started })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_whole_and_in_order_whoever_they_are_of() {
        let mut fifo = Fifo::default();
        let (one, two) = (TenantKey(1), TenantKey(2));
        for (tenant, byte, len) in [(one, 1u8, 10), (one, 2, 30), (two, 3, 5), (one, 4, 5)] {
            let frame = QueuedFrame::new(Bytes::from(vec![byte; len]));
            assert_eq!(fifo.push(tenant, Class::Live, frame, 100_000), Pushed::Queued);
        }
        let mut slices = Vec::new();
        let mut out = Vec::new();
        while let Some(slice) = fifo.next_slice(25, &mut out) {
            slices.push((slice.tenant, slice.bytes, slice.starts_frame, slice.ends_frame));
        }
        let expected = [(one, 25, true, false), (one, 15, false, true), (two, 5, true, true), (one, 5, true, true)];
        assert_eq!(slices, expected);
        let bytes: Vec<u8> = out.iter().flat_map(|part| part.iter().copied()).collect();
        assert_eq!(bytes, [vec![1; 10], vec![2; 30], vec![3; 5], vec![4; 5]].concat());
        assert!(fifo.is_empty() && fifo.held == 0);
    }

    #[test]
    fn it_is_bounded() {
        let mut fifo = Fifo::default();
        let frame = || QueuedFrame::new(Bytes::from_static(&[0; 100]));
        let most = 2 * frame().held();
        let pushed: Vec<_> = (0..3).map(|_| fifo.push(TenantKey(0), Class::Bulk, frame(), most)).collect();
        assert_eq!(pushed, [Pushed::Queued, Pushed::Queued, Pushed::DroppedNewest]);
    }
}
