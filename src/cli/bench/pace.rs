//! When messages are due: open loop, by the clock and not by what came back, so that what makes one message late does not
//! hide the others that should have been sent meanwhile (coordinated omission).

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use glocal_core::limits::BENCH_FLOW_MESSAGES_MAX;

/// The timer of the system wakes threads about this late.
const SLACK: Duration = Duration::from_micros(60);
/// Messages each second up to which a thread yields its way to the exact moment: at most a sixteenth of a core.
const YIELDING_RATE: f64 = 1_000.0;

/// Nanoseconds since 1970 that never run back: the wall clock is read once, then only a monotonic one. Two processes on
/// one machine agree as far as the wall clock was not set in between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    start_ns: u64,
}

impl Clock {
    /// Reads both clocks.
    pub(crate) fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_ns: nanos(since) }
    }

    /// Now.
    pub(crate) fn now_ns(&self) -> u64 {
        self.at_ns(Instant::now())
    }

    /// A moment, not before the start.
    pub(crate) fn at_ns(&self, moment: Instant) -> u64 {
        self.start_ns.saturating_add(nanos(moment.saturating_duration_since(self.start)))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A number of messages each second, from a start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    start: Instant,
    rate: f64,
}

impl Schedule {
    /// `rate` messages each second, the first at `start`; the rate must be positive.
    pub(crate) const fn new(start: Instant, rate: f64) -> Self {
        Self { start, rate }
    }

    /// When message `number` is due.
    pub(crate) fn due(&self, number: u64) -> Instant {
        let after = Duration::try_from_secs_f64(number as f64 / self.rate).unwrap_or(Duration::MAX);
        self.start.checked_add(after).unwrap_or(self.start)
    }

    /// Sleeps on this thread until message `number` is due; returns how late it woke, or nothing when there was nothing to
    /// wait for: what is overdue was held up by something else than this thread's sleep.
    pub(crate) fn wait(&self, number: u64) -> Option<Duration> {
        let due = self.due(number);
        let mut waited = false;
        loop {
            let now = Instant::now();
            match due.checked_duration_since(now).filter(|left| !left.is_zero()) {
                None => return waited.then(|| now.saturating_duration_since(due)),
                // Between many messages there is no time to be exact: several go together, and no core is spent on waiting.
                Some(left) if self.rate > YIELDING_RATE => std::thread::sleep(left.max(SLACK)),
                Some(left) if left > SLACK => std::thread::sleep(left - SLACK),
                // A few yields are closer to the moment than the timer is.
                Some(_) => std::thread::yield_now(),
            }
            waited = true;
        }
    }

    /// Messages that are due before `duration` is over.
    pub(crate) fn within(&self, duration: Duration) -> u64 {
        let messages = (duration.as_secs_f64() * self.rate).ceil().min(f64::from(BENCH_FLOW_MESSAGES_MAX));
        // Neither negative nor above a limit that fits.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let messages = messages as u64;
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_due_at_even_distances_whatever_happened_before() {
        let start = Instant::now();
        let schedule = Schedule::new(start, 250.0);
        let after = |number| schedule.due(number) - start;
        assert_eq!(
            (after(0), after(1), after(1_000)),
            (Duration::ZERO, Duration::from_millis(4), Duration::from_secs(4))
        );
        assert_eq!(Schedule::new(start, 0.5).due(3) - start, Duration::from_secs(6));
        // The four thousand millionth is still due to the microsecond.
        let far = Schedule::new(start, 1e6).due(4_000_000_001) - start;
        assert!(far.abs_diff(Duration::from_micros(4_000_000_001)) < Duration::from_micros(1), "{far:?}");
    }

    #[test]
    fn a_duration_holds_what_is_due_before_its_end() {
        let schedule = Schedule::new(Instant::now(), 100.0);
        assert_eq!(schedule.within(Duration::from_secs(10)), 1_000);
        assert_eq!(schedule.within(Duration::from_millis(1)), 1);
        assert_eq!(
            Schedule::new(Instant::now(), 1e9).within(Duration::from_secs(100)),
            u64::from(BENCH_FLOW_MESSAGES_MAX)
        );
    }

    #[test]
    fn what_is_overdue_is_late_and_not_waited_for() {
        let before = Instant::now();
        for rate in [2.0, 1e6] {
            let past = Schedule::new(before - Duration::from_secs(60), rate);
            assert_eq!((past.wait(0), past.wait(1)), (None, None));
            let coming = Schedule::new(Instant::now() + Duration::from_millis(5), rate);
            assert!(coming.wait(0).is_some() && Instant::now() >= coming.due(0), "{rate}");
        }
        assert!(before.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn the_clock_follows_the_monotonic_one() {
        let clock = Clock::start();
        assert_eq!(clock.at_ns(clock.start + Duration::from_nanos(7)), clock.start_ns + 7);
        assert!(clock.now_ns() >= clock.start_ns && clock.start_ns > 1_600_000_000_000_000_000);
    }
}
