//! Which life a broker begins when it hears of a later one of its own (DESIGN section 5).
//!
//! A broker whose disk was wiped while its clock went back starts in a life that the fabric has seen the end of, and nobody
//! believes its word. Only a record that its own leaf key has signed moves it, so the climb ends at what it has once been,
//! and two brokers that share one key climb no faster than a pause allows.

use crate::limits::REBIRTH_PAUSE_MS;
use crate::time::Time;

/// When a broker may leave its life for a later one.
#[derive(Debug, Default)]
pub struct Lives {
    heard: u64,
    begun: Option<Time>,
}

/// What is to be done about a later life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceed {
    /// Nothing: none is known.
    Stay,
    /// Nothing before this time.
    Wait(Time),
    /// Begin this life, once it is stored.
    Begin(u64),
    /// Nothing is higher than the life that was heard of.
    Exhausted,
}

impl Lives {
    /// A later life of this broker was heard of, signed by its own key.
    pub const fn heard(&mut self, life: u64) {
        if life > self.heard {
            self.heard = life;
        }
    }

    /// What the broker does, in the life `own` at `now`, when the wall clock shows `unix_ms` milliseconds since 1970.
    #[must_use]
    pub fn next(&self, own: u64, unix_ms: u64, now: Time) -> Exceed {
        if self.heard <= own {
            return Exceed::Stay;
        }
        let Some(above) = self.heard.checked_add(1) else { return Exceed::Exhausted };
        match self.begun.map(|begun| begun.plus_millis(REBIRTH_PAUSE_MS)) {
            Some(until) if now < until => Exceed::Wait(until),
            _ => Exceed::Begin(above.max(unix_ms)),
        }
    }

    /// A life was begun at `now`, or could not be.
    pub const fn begun(&mut self, now: Time) {
        self.begun = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_life_is_exceeded_once_and_by_the_clock_where_that_is_ahead() {
        let mut lives = Lives::default();
        assert_eq!(lives.next(5, 100, Time(0)), Exceed::Stay);
        lives.heard(5);
        lives.heard(4);
        assert_eq!(lives.next(5, 100, Time(0)), Exceed::Stay, "its own");
        lives.heard(500);
        assert_eq!(lives.next(5, 100, Time(0)), Exceed::Begin(501));
        assert_eq!(lives.next(5, 900, Time(0)), Exceed::Begin(900));
        lives.begun(Time(0));
        assert_eq!(lives.next(501, 900, Time(0)), Exceed::Stay, "a record of the past is told again and moves nothing");
    }

    #[test]
    fn two_that_share_a_key_climb_no_faster_than_the_pause() {
        let mut lives = Lives::default();
        let (mut own, mut begun) = (1, 0);
        for millis in 0..10 * REBIRTH_PAUSE_MS {
            lives.heard(own + 1);
            if let Exceed::Begin(next) = lives.next(own, 0, Time::from_millis(millis)) {
                lives.begun(Time::from_millis(millis));
                (own, begun) = (next, begun + 1);
            }
        }
        assert_eq!(begun, 10);
    }

    #[test]
    fn there_is_nothing_above_the_last() {
        let mut lives = Lives::default();
        lives.heard(u64::MAX);
        assert_eq!(lives.next(1, 0, Time(0)), Exceed::Exhausted);
    }
}
