//! Copies that have not left this broker yet.

use super::{Outgoing, Way};
use crate::limits::RELIABLE_TICK_MS;
use crate::time::Time;

impl<M, R> Outgoing<M, R> {
    /// Has copies wait no time that are still in a lane of this broker: no acknowledgement can come of them, a second one
    /// would only stand behind the first, and it is not their target that stays away. `since` tells when the frame was queued
    /// that leaves the lane of a way next. To be called before [`Self::due`].
    pub fn hold(&mut self, now: Time, since: impl Fn(Way) -> Option<Time>) {
        for target in self.targets.values_mut() {
            let first = target.copies.front().filter(|_| target.sent > 0);
            let Some((sent, way)) = first.and_then(|copy| copy.sent.zip(target.way)) else { continue };
            // Lanes are first in, first out. What is sent at a time is in its lane a moment later.
            if since(way).is_some_and(|since| since <= sent.plus_millis(RELIABLE_TICK_MS)) {
                (target.progressed, target.heard) = (now, now);
            }
        }
    }
}
