//! When the one re-signer signs the same contents afresh, and what it signs (DESIGN section 3).
//!
//! It decides and signs nothing itself. What it gives out differs from what is held in version and dates alone, and bears a
//! version that nobody can have seen: above the one in force, and above every one that was set aside for signing before,
//! whether anything came of that or not. Where a newer bundle is known that could not be taken, or the clock is plainly
//! wrong, it gives out nothing: signing on would undo what the operator has decided.

use super::Head;
use crate::limits::{RESIGN_RETRY_MS_MAX, RESIGN_RETRY_MS_MIN, RESIGN_SETTLE_SECONDS_MAX};
use crate::name::NodeId;
use crate::time::UnixTime;

/// Parts of a bundle's life that a re-signer waits after its start, so that it hears of a newer bundle before it signs.
const SETTLE_PART: i64 = 8;

/// What a re-signer knows beside the head that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignerState {
    /// Epoch its key is certified for.
    pub key_epoch: u64,
    /// Epoch and version of the newest bundle whose signature it has verified, whether it could be taken or not.
    pub newest_seen: (u64, u64),
    /// Epoch and version it has set aside last, on disk and before it signed.
    pub set_aside: (u64, u64),
    /// For how long it has been running, in whole seconds.
    pub up_for_seconds: u64,
}

/// What a re-signer does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resign {
    /// Nothing before this time.
    Wait(UnixTime),
    /// Set the version of this head aside, then sign it.
    Sign(Box<Head>),
    /// Nothing, for a reason that may pass.
    Hold(ResignHold),
}

/// Why a re-signer signs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResignHold {
    /// The head in force names another re-signer, or none.
    NotNamed,
    /// The clock shows a time before the bundle was issued.
    ClockBehind,
    /// The bundle has expired: either the clock is wrong or nobody has signed in time, and both are for people to decide.
    Expired,
    /// The key is certified for another epoch than the bundle's.
    OtherEpoch,
    /// A newer bundle is known and could not be taken.
    Outrun,
    /// There is no higher version.
    Exhausted,
}

impl ResignHold {
    /// Every reason.
    pub const ALL: [Self; 6] =
        [Self::NotNamed, Self::ClockBehind, Self::Expired, Self::OtherEpoch, Self::Outrun, Self::Exhausted];

    /// The stable code: metric label and log field.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::NotNamed => "not-named",
            Self::ClockBehind => "clock-behind",
            Self::Expired => "expired",
            Self::OtherEpoch => "other-epoch",
            Self::Outrun => "outrun",
            Self::Exhausted => "exhausted",
        }
    }

    /// What it means, for people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotNamed => "the bundle does not name this broker as its re-signer",
            Self::ClockBehind => "the clock shows a time before the bundle was issued",
            Self::Expired => "the bundle has expired; an operator must sign it, or set the clock",
            Self::OtherEpoch => "the signing key is of another epoch than the bundle",
            Self::Outrun => "a newer bundle is known that could not be taken",
            Self::Exhausted => "there is no higher version",
        }
    }
}

/// What `own`, with a certified key, does about the head in force at `now`.
#[must_use]
pub fn resign(own: &NodeId, held: &Head, state: &SignerState, now: UnixTime) -> Resign {
    if held.resigner.as_ref() != Some(own) {
        return Resign::Hold(ResignHold::NotNamed);
    }
    if state.key_epoch != held.epoch {
        return Resign::Hold(ResignHold::OtherEpoch);
    }
    if now < held.issued {
        return Resign::Hold(ResignHold::ClockBehind);
    }
    let lifetime = held.expires.0.saturating_sub(held.issued.0);
    let half = held.half_life();
    if now < half {
        return Resign::Wait(half);
    }
    if now >= held.expires {
        return Resign::Hold(ResignHold::Expired);
    }
    let settle = RESIGN_SETTLE_SECONDS_MAX.min(lifetime / SETTLE_PART);
    let unsettled = settle.saturating_sub(i64::try_from(state.up_for_seconds).unwrap_or(i64::MAX));
    if unsettled > 0 {
        return Resign::Wait(UnixTime(now.0.saturating_add(unsettled)));
    }
    if state.newest_seen > (held.epoch, held.version) {
        return Resign::Hold(ResignHold::Outrun);
    }
    let set_aside = if state.set_aside.0 == held.epoch { state.set_aside.1 } else { 0 };
    let Some(version) = held.version.max(set_aside).checked_add(1) else {
        return Resign::Hold(ResignHold::Exhausted);
    };
    let expires = UnixTime(now.0.saturating_add(lifetime));
    Resign::Sign(Box::new(Head { version, issued: now, expires, ..held.clone() }))
}

/// The pause before the next try after `failures` of them in a row, in milliseconds: it doubles up to a bound.
#[must_use]
pub const fn resign_pause_ms(failures: u32) -> u64 {
    let doublings = if failures > 20 { 20 } else { failures.saturating_sub(1) };
    let pause = RESIGN_RETRY_MS_MIN << doublings;
    if pause > RESIGN_RETRY_MS_MAX { RESIGN_RETRY_MS_MAX } else { pause }
}

#[cfg(test)]
mod tests;
