//! The delivery contract of `ctrl` and `bulk`: broker to broker, end to end (DESIGN section 5).
//!
//! The origin numbers the messages of a (tenant, class) with one sequence and keeps each until every target broker has
//! acknowledged it ([`outgoing`]). With every copy goes, per target, the step back to that target's previous message which
//! may still be missing there; so a target delivers in sequence whatever the ways were, and drops repeats ([`incoming`]).
//! A window per target, in bytes, slows the publishers of that tenant on that class and nobody else ([`window`]).
//!
//! Guarantees, while origin and target live: none lost, none doubled, in order. Everything kept has a bound; time comes in
//! as a value. Never reads a clock, never knows a frame: messages are whatever the caller makes of them.

pub mod incoming;
pub mod outgoing;
pub mod window;

use std::sync::atomic::{AtomicUsize, Ordering};

/// What all flows of one node hold together, against one bound.
#[derive(Debug)]
pub struct Budget {
    used: AtomicUsize,
    max: usize,
}

impl Budget {
    /// Room for `max` bytes.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { used: AtomicUsize::new(0), max }
    }

    /// Takes room; `false`, and nothing taken, when there is not enough.
    #[must_use]
    pub fn take(&self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|more| *more <= self.max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Takes room that must not be refused, over the bound if need be.
    pub fn force(&self, bytes: usize) -> bool {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Gives room back.
    pub fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether `bytes` would fit.
    #[must_use]
    pub fn fits(&self, bytes: usize) -> bool {
        self.used().checked_add(bytes).is_some_and(|more| more <= self.max)
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
