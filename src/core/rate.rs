//! Rates: token buckets, and a limiter for log lines.
//!
//! For ingress limits per tenant and session ([`Ingress`], [`Meter`]), for shaping an edge, and for keeping logs readable
//! under attack. All arithmetic is in whole millionths of a token, so that a bucket neither gains nor loses over any length
//! of time. Time is an argument; a time before the last one counts as no time passed. Nothing here sleeps or decides what a
//! refusal means.

use crate::limits::RATE_FLOOR_MICROS;
use crate::time::Time;

mod ingress;
mod limits;
mod meter;
mod rest;

pub use ingress::Ingress;
pub use limits::{RateBounds, RateLimits};
pub use meter::{Meter, Over};
pub use rest::Rest;

/// Millionths of a token per token: a rate per second times microseconds is then exact.
const SCALE: i64 = 1_000_000;
/// Largest balance in tokens, far above any burst and far from overflow.
const TOKENS_MAX: u64 = 1 << 42;

/// A bucket of tokens (bytes or messages) that fills at a steady rate up to a burst.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: u64,
    burst: u64,
    /// Millionths of a token; negative after a charge larger than the balance.
    balance: i64,
    last: Time,
}

impl TokenBucket {
    /// A full bucket: `rate` tokens per second, at most `burst` at once (at least one). A rate of zero never refills.
    #[must_use]
    pub fn new(rate: u64, burst: u64, now: Time) -> Self {
        let rate = rate.min(TOKENS_MAX);
        let burst = burst.clamp(1, TOKENS_MAX);
        Self { rate, burst, balance: scaled(burst), last: now }
    }

    /// Tokens per second.
    #[must_use]
    pub const fn rate(&self) -> u64 {
        self.rate
    }

    /// Changes rate and burst from `now` on; what was earned until then stays, up to the new burst.
    pub fn set(&mut self, rate: u64, burst: u64, now: Time) {
        self.refill(now);
        self.rate = rate.min(TOKENS_MAX);
        self.burst = burst.clamp(1, TOKENS_MAX);
        self.balance = self.balance.min(scaled(self.burst));
    }

    /// Takes `n` tokens, or takes nothing and says in how many microseconds it is worth asking again (`u64::MAX`: never).
    ///
    /// More than a burst is granted when the bucket is full, and leaves a debt: it is slow, but never impossible.
    ///
    /// # Errors
    /// The wait in microseconds.
    pub fn take(&mut self, n: u64, now: Time) -> Result<(), u64> {
        let wait = self.wait_micros(n, now);
        if wait > 0 {
            return Err(wait);
        }
        self.charge(n, now);
        Ok(())
    }

    /// Microseconds until `take(n)` would succeed; zero when it would now.
    pub fn wait_micros(&mut self, n: u64, now: Time) -> u64 {
        self.refill(now);
        let missing = scaled(n.min(self.burst)).saturating_sub(self.balance);
        match (u64::try_from(missing), self.rate) {
            (Ok(0) | Err(_), _) => 0,
            (Ok(_), 0) => u64::MAX,
            (Ok(missing), rate) => missing.div_ceil(rate),
        }
    }

    /// Takes `n` tokens whatever the balance, which may become negative: for what has been sent already.
    pub fn charge(&mut self, n: u64, now: Time) {
        self.refill(now);
        self.balance = self.balance.saturating_sub(scaled(n));
    }

    /// Gives back `n` tokens that were taken and not used, up to the burst.
    pub fn refund(&mut self, n: u64) {
        self.balance = self.balance.saturating_add(scaled(n)).min(scaled(self.burst));
    }

    /// Whole tokens there are now.
    pub fn tokens(&mut self, now: Time) -> u64 {
        self.refill(now);
        u64::try_from(self.balance / SCALE).unwrap_or(0)
    }

    /// What those who can wait leave to those who cannot: an eighth of the burst, of [`RATE_FLOOR_MICROS`] at most.
    const fn floor(&self) -> u64 {
        let (burst, rate) = (self.burst / 8, self.earned_in(RATE_FLOOR_MICROS));
        if burst < rate { burst } else { rate }
    }

    /// Whole tokens that come in some microseconds.
    const fn earned_in(&self, micros: u64) -> u64 {
        self.rate.saturating_mul(micros) / 1_000_000
    }

    fn refill(&mut self, now: Time) {
        let micros = now.micros_since(self.last);
        self.last = self.last.max(now);
        let earned = i64::try_from(micros.saturating_mul(self.rate)).unwrap_or(i64::MAX);
        self.balance = self.balance.saturating_add(earned).min(scaled(self.burst));
    }
}

fn scaled(tokens: u64) -> i64 {
    i64::try_from(tokens.min(TOKENS_MAX)).unwrap_or(i64::MAX).saturating_mul(SCALE)
}

/// Two buckets that grant together or not at all: messages per second and bytes per second.
#[derive(Clone, Debug, Default)]
pub struct Dual {
    messages: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
}

impl Dual {
    /// Limits by messages, by bytes, by both or, with neither, not at all.
    #[must_use]
    pub const fn new(messages: Option<TokenBucket>, bytes: Option<TokenBucket>) -> Self {
        Self { messages, bytes }
    }

    /// Takes from both buckets, or from neither.
    ///
    /// # Errors
    /// Microseconds until both would grant it (`u64::MAX`: never).
    pub fn take(&mut self, messages: u64, bytes: u64, now: Time) -> Result<(), u64> {
        let wait = self.wait_micros(messages, bytes, false, now);
        if wait > 0 {
            return Err(wait);
        }
        self.charge(messages, bytes, now);
        Ok(())
    }

    /// Microseconds until both would grant it; with `leaves`, and have something left for those who cannot wait.
    pub fn wait_micros(&mut self, messages: u64, bytes: u64, leaves: bool, now: Time) -> u64 {
        let wait = |bucket: &mut Option<TokenBucket>, n: u64| {
            let Some(bucket) = bucket else { return 0 };
            let floor = if leaves { bucket.floor() } else { 0 };
            bucket.wait_micros(n.saturating_add(floor), now)
        };
        wait(&mut self.messages, messages).max(wait(&mut self.bytes, bytes))
    }

    /// Takes from both whatever the balance.
    pub fn charge(&mut self, messages: u64, bytes: u64, now: Time) {
        if let Some(bucket) = &mut self.messages {
            bucket.charge(messages, now);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.charge(bytes, now);
        }
    }

    /// Gives back what was taken and not used.
    pub fn refund(&mut self, messages: u64, bytes: u64) {
        if let Some(bucket) = &mut self.messages {
            bucket.refund(messages);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.refund(bytes);
        }
    }

    /// Messages and bytes that could be taken now beside others, of at most what comes in `micros`; `None` for no limit. With
    /// `leaves` as [`Self::wait_micros`].
    fn spare(&mut self, micros: u64, leaves: bool, now: Time) -> (Option<u64>, Option<u64>) {
        let spare = |bucket: &mut Option<TokenBucket>| {
            let bucket = bucket.as_mut()?;
            let floor = if leaves { bucket.floor() } else { 0 };
            Some(bucket.tokens(now).saturating_sub(floor).min(bucket.earned_in(micros)))
        };
        (spare(&mut self.messages), spare(&mut self.bytes))
    }

    /// Changes the limits, each a rate and a burst. What was earned stays, up to the new burst; what was not limited begins full.
    fn adapt(&mut self, messages: Option<(u64, u64)>, bytes: Option<(u64, u64)>, now: Time) {
        let adapt = |bucket: &mut Option<TokenBucket>, limit: Option<(u64, u64)>| match (&mut *bucket, limit) {
            (Some(bucket), Some((rate, burst))) => bucket.set(rate, burst, now),
            (None, Some((rate, burst))) => *bucket = Some(TokenBucket::new(rate, burst, now)),
            (_, None) => *bucket = None,
        };
        adapt(&mut self.messages, messages);
        adapt(&mut self.bytes, bytes);
    }
}

/// Lets some log lines per second through and counts the others.
#[derive(Clone, Debug)]
pub struct LogLimiter {
    bucket: TokenBucket,
    suppressed: u64,
}

impl LogLimiter {
    /// At most `per_second` lines per second, and as many at once.
    #[must_use]
    pub fn new(per_second: u32, now: Time) -> Self {
        Self { bucket: TokenBucket::new(u64::from(per_second), u64::from(per_second), now), suppressed: 0 }
    }

    /// `Some(suppressed lines since the last allowed one)` when a line may be written, `None` when it may not.
    pub fn allow(&mut self, now: Time) -> Option<u64> {
        if self.bucket.take(1, now).is_err() {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Lines suppressed since the last allowed one.
    #[must_use]
    pub const fn suppressed(&self) -> u64 {
        self.suppressed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn grants_the_burst_then_the_rate() {
        let mut bucket = TokenBucket::new(10, 5, Time(0));
        for _ in 0..5 {
            bucket.take(1, Time(0)).unwrap();
        }
        assert_eq!(bucket.take(1, Time(0)), Err(100_000));
        assert_eq!(bucket.take(1, Time(99_999)), Err(1));
        bucket.take(1, Time(100_000)).unwrap();
        assert_eq!(bucket.take(3, Time(100_000)), Err(300_000));
    }

    #[test]
    fn more_than_a_burst_needs_a_full_bucket_and_leaves_a_debt() {
        let mut bucket = TokenBucket::new(100, 10, Time(0));
        bucket.take(60, Time(0)).unwrap();
        assert_eq!(bucket.take(1, Time(0)), Err(510_000));
        assert_eq!(bucket.take(1000, Time(SECOND / 2)), Err(SECOND / 10));
        bucket.take(1000, Time(SECOND * 6 / 10)).unwrap();
    }

    #[test]
    fn neither_huge_numbers_nor_clocks_running_back_break_it() {
        let mut bucket = TokenBucket::new(u64::MAX, u64::MAX, Time(5));
        bucket.charge(u64::MAX, Time(0));
        bucket.charge(u64::MAX, Time(9));
        bucket.take(1, Time(u64::MAX)).unwrap();
        assert_eq!(TokenBucket::new(0, 0, Time(0)).take(1, Time(0)), Ok(()));
        let mut dry = TokenBucket::new(0, 1, Time(0));
        dry.take(1, Time(0)).unwrap();
        assert_eq!(dry.take(1, Time(u64::MAX)), Err(u64::MAX));
    }

    #[test]
    fn a_new_rate_counts_from_now_on() {
        let mut bucket = TokenBucket::new(10, 10, Time(0));
        bucket.charge(10, Time(0));
        bucket.set(1000, 1000, Time(SECOND / 2));
        assert_eq!(bucket.wait_micros(6, Time(SECOND / 2)), 1000);
    }

    #[test]
    fn dual_takes_from_both_or_neither() {
        let mut dual = Dual::new(Some(TokenBucket::new(10, 2, Time(0))), Some(TokenBucket::new(100, 100, Time(0))));
        dual.take(1, 90, Time(0)).unwrap();
        assert_eq!(dual.take(1, 20, Time(0)), Err(100_000));
        dual.take(1, 10, Time(0)).unwrap();
        assert_eq!(dual.take(1, 0, Time(0)), Err(100_000));
        assert_eq!(Dual::default().take(u64::MAX, u64::MAX, Time(0)), Ok(()));
    }

    #[test]
    fn log_limiter_counts_what_it_holds_back() {
        let mut limiter = LogLimiter::new(2, Time(0));
        assert_eq!(limiter.allow(Time(0)), Some(0));
        assert_eq!(limiter.allow(Time(0)), Some(0));
        assert_eq!(limiter.allow(Time(1)), None);
        assert_eq!(limiter.allow(Time(2)), None);
        assert_eq!(limiter.suppressed(), 2);
        assert_eq!(limiter.allow(Time(SECOND / 2)), Some(2));
    }

    proptest! {
        /// Whatever the steps in time, what is granted is what was earned, to the token.
        #[test]
        fn never_drifts(rate in 1u64..2_000_000_000, steps in prop::collection::vec(1u64..50_000, 1..300)) {
            let mut bucket = TokenBucket::new(rate, rate, Time(0));
            bucket.charge(rate, Time(0));
            let (mut now, mut granted) = (0u64, 0u64);
            for step in steps {
                now += step;
                while bucket.take(rate / 1000 + 1, Time(now)).is_ok() {
                    granted += rate / 1000 + 1;
                }
            }
            let earned = u64::try_from(u128::from(rate) * u128::from(now) / 1_000_000).unwrap();
            prop_assert!(granted <= earned);
            prop_assert!(earned - granted <= rate / 1000 + 1);
        }

        /// A caller that waits as told is granted.
        #[test]
        fn the_wait_is_enough_and_not_too_long(rate in 1u64..1_000_000, burst in 1u64..10_000, n in 1u64..20_000) {
            let mut bucket = TokenBucket::new(rate, burst, Time(0));
            bucket.charge(burst + n, Time(0));
            let wait = bucket.take(n, Time(0)).unwrap_err();
            prop_assert!(bucket.clone().take(n, Time(wait - 1)).is_err());
            prop_assert!(bucket.take(n, Time(wait)).is_ok());
        }
    }
}
