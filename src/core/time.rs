//! Time as a value.
//!
//! The core never reads a clock. [`Time`] is monotonic, in microseconds from an arbitrary start chosen by the caller;
//! [`UnixTime`] is wall-clock seconds, used only where certificates and bundles carry dates.

use std::fmt;

/// A monotonic instant in microseconds since a start the caller chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The instant `millis` milliseconds after the start.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// Whole milliseconds since the start.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1000
    }

    /// Microseconds from `earlier` to `self`, zero when `earlier` is later.
    #[must_use]
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This instant moved `micros` microseconds forward.
    #[must_use]
    pub const fn plus_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// This instant moved `millis` milliseconds forward.
    #[must_use]
    pub const fn plus_millis(self, millis: u64) -> Self {
        self.plus_micros(millis.saturating_mul(1000))
    }
}

/// Wall-clock time in whole seconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(pub i64);

impl fmt::Display for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
