//! The one place where time is read: monotonic microseconds since the node's start.

use std::time::Instant;

use glocal_core::time::Time;

/// A clock that started with the node.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// The instant at which the clock shows `time`.
    #[must_use]
    pub fn instant(&self, time: Time) -> tokio::time::Instant {
        let after = std::time::Duration::from_micros(time.0);
        tokio::time::Instant::from_std(self.0.checked_add(after).unwrap_or_else(Instant::now))
    }
}
