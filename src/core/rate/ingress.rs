//! The buckets of one tenant on one broker, from which all its sessions take (DESIGN section 7).
//!
//! A session takes a little more than the message at hand and gives the rest back when it has worked on what it had read,
//! so that the lock is taken once for many messages. What a class may take of the rates is a second pair of buckets, asked
//! together with the first: both grant, or neither is charged. Guarantees: in no stretch of time more is granted than the
//! rate gives in it and one burst, as long as no message is larger than a burst and who waits comes back when told.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use super::{Dual, RateLimits};
use crate::limits::RATE_LEASE_MICROS;
use crate::name::Class;
use crate::time::Time;

/// Bit of [`Ingress::state`] that says whether anything is limited.
const LIMITED: u32 = 1;
/// What one change of the limits adds to [`Ingress::state`].
const CHANGE: u32 = 2;

/// The buckets of one tenant on one broker.
#[derive(Debug)]
pub struct Ingress {
    /// A count of changes, and in the lowest bit whether anything is limited: all that a message costs without limits.
    state: AtomicU32,
    buckets: Mutex<Buckets>,
}

#[derive(Debug)]
struct Buckets {
    limits: RateLimits,
    /// Whether the buckets are still those of earlier limits: they change when they are asked next, at a known time.
    stale: bool,
    all: Dual,
    live: Dual,
    ctrl: Dual,
}

/// Which buckets a class is paid from beside the tenant's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Live,
    Ctrl,
    Other,
}

impl Kind {
    pub(super) const fn of(class: Class) -> Self {
        match class {
            Class::Live => Self::Live,
            Class::Ctrl => Self::Ctrl,
            Class::Tele | Class::Bulk => Self::Other,
        }
    }
}

/// What a session has taken and not used; `None` for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) messages: Option<u64>,
    pub(super) bytes: Option<u64>,
}

impl Lease {
    /// Uses one message of some bytes, if that much is there.
    pub(super) fn spend(&mut self, bytes: u64) -> bool {
        let rest = |have: Option<u64>, need: u64| have.map_or(Some(None), |have| have.checked_sub(need).map(Some));
        match (rest(self.messages, 1), rest(self.bytes, bytes)) {
            (Some(messages), Some(bytes)) => {
                *self = Self { messages, bytes };
                true
            }
            _ => false,
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) class: Class,
    pub(super) bytes: u64,
    /// How long the session's own limits let it wait anyway, in microseconds.
    pub(super) own_micros: u64,
    /// How long the session would wait, in microseconds; zero for not at all.
    pub(super) patience_micros: u64,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is paid, and this much more was taken.
    Granted(Lease),
    /// It is paid, and good after so many microseconds.
    Reserved(u64),
    /// It would be granted after so many microseconds, which is too long. Nothing was taken.
    Over(u64),
}

impl Ingress {
    /// Full buckets of these limits.
    #[must_use]
    pub fn new(limits: RateLimits) -> Self {
        let (all, live, ctrl) = (Dual::default(), Dual::default(), Dual::default());
        let buckets = Buckets { limits, stale: true, all, live, ctrl };
        Self { state: AtomicU32::new(u32::from(limits.is_limited())), buckets: Mutex::new(buckets) }
    }

    /// Changes the limits; sessions go by them from their next message on. What was earned stays, up to the new bursts.
    pub fn set(&self, limits: RateLimits) {
        let mut buckets = self.buckets.lock();
        if buckets.limits != limits {
            buckets.limits = limits;
            buckets.stale = true;
            if !limits.is_limited() {
                (buckets.all, buckets.live, buckets.ctrl) = Default::default();
            }
            let changes = self.state.load(Ordering::Relaxed) & !LIMITED;
            self.state.store(changes.wrapping_add(CHANGE) | u32::from(limits.is_limited()), Ordering::Release);
        }
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> RateLimits {
        self.buckets.lock().limits
    }

    /// A number that is another after each change.
    pub(super) fn state(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    /// Whether anything is limited in that state.
    pub(super) const fn is_limited(state: u32) -> bool {
        state & LIMITED != 0
    }

    /// Takes for one message, and gives back first what `held` has left.
    pub(super) fn ask(&self, ask: &Ask, held: Lease, now: Time) -> Answer {
        let mut buckets = self.buckets.lock();
        buckets.renew(now);
        let kind = Kind::of(ask.class);
        buckets.refund(kind, held);
        let leaves = ask.class.is_reliable();
        let Buckets { all, live, ctrl, .. } = &mut *buckets;
        let by_all = all.wait_micros(1, ask.bytes, leaves, now);
        let by_class = of(kind, live, ctrl).map_or(0, |dual| dual.wait_micros(1, ask.bytes, false, now));
        let wait = by_all.max(by_class).max(ask.own_micros);
        if wait > ask.patience_micros {
            return Answer::Over(wait);
        }
        buckets.charge(kind, 1, ask.bytes, now);
        if wait > 0 { Answer::Reserved(wait) } else { Answer::Granted(buckets.lease(kind, leaves, now)) }
    }

    /// Takes back what was not used.
    pub(super) fn refund(&self, kind: Kind, lease: Lease) {
        self.buckets.lock().refund(kind, lease);
    }
}

impl Buckets {
    fn renew(&mut self, now: Time) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let limits = self.limits;
        let pair = |percent: u8| {
            let part = |rate: Option<u64>| rate.map(|rate| limit(share(rate, percent), limits.burst_ms));
            (part(limits.messages_per_s), part(limits.bytes_per_s))
        };
        let capped = |percent: u8| if percent < 100 { pair(percent) } else { (None, None) };
        let ((messages, bytes), live, ctrl) = (pair(100), capped(limits.live_percent), capped(limits.ctrl_percent));
        self.all.adapt(messages, bytes, now);
        self.live.adapt(live.0, live.1, now);
        self.ctrl.adapt(ctrl.0, ctrl.1, now);
    }

    fn charge(&mut self, kind: Kind, messages: u64, bytes: u64, now: Time) {
        self.all.charge(messages, bytes, now);
        if let Some(dual) = of(kind, &mut self.live, &mut self.ctrl) {
            dual.charge(messages, bytes, now);
        }
    }

    fn refund(&mut self, kind: Kind, lease: Lease) {
        let (messages, bytes) = (lease.messages.unwrap_or(0), lease.bytes.unwrap_or(0));
        self.all.refund(messages, bytes);
        if let Some(dual) = of(kind, &mut self.live, &mut self.ctrl) {
            dual.refund(messages, bytes);
        }
    }

    fn lease(&mut self, kind: Kind, leaves: bool, now: Time) -> Lease {
        let by_all = self.all.spare(RATE_LEASE_MICROS, leaves, now);
        let dual = of(kind, &mut self.live, &mut self.ctrl);
        let by_class = dual.map_or((None, None), |dual| dual.spare(RATE_LEASE_MICROS, false, now));
        let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        let lease = Lease { messages: least(by_all.0, by_class.0), bytes: least(by_all.1, by_class.1) };
        self.charge(kind, lease.messages.unwrap_or(0), lease.bytes.unwrap_or(0), now);
        lease
    }
}

const fn of<'d>(kind: Kind, live: &'d mut Dual, ctrl: &'d mut Dual) -> Option<&'d mut Dual> {
    match kind {
        Kind::Live => Some(live),
        Kind::Ctrl => Some(ctrl),
        Kind::Other => None,
    }
}

/// A part of a rate, at least one.
fn share(rate: u64, percent: u8) -> u64 {
    (rate.saturating_mul(u64::from(percent)) / 100).max(1)
}

/// A rate with the burst it saves up in some milliseconds.
pub(super) fn limit(rate: u64, burst_ms: u32) -> (u64, u64) {
    (rate, rate.saturating_mul(u64::from(burst_ms)) / 1000)
}
