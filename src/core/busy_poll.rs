//! Busy polling: whether a task that waits for its peer's next message polls on for a moment, or sleeps until it is woken.
//!
//! To be put to sleep and woken costs more processor time than a moment of polling, and most of the wait (the idea is that of
//! `SO_BUSY_POLL` in Linux). It pays off in a dialogue only: the peer has said something, was answered, and is about to go
//! on. So nothing is tried out: how soon a peer goes on after an answer is seen without polling, too, and polling begins
//! once it was soon enough several times in a row. Each time it was not, more times in a row are needed. A stream in one
//! direction is no dialogue and never polls.

use crate::limits::{BUSY_POLL_QUICK_MAX, BUSY_POLL_QUICK_MIN};
use crate::time::Time;

/// What is known of the dialogue with one peer.
#[derive(Clone, Debug)]
pub struct BusyPoll {
    /// Whether the peer has said something since it was last written to.
    heard: bool,
    /// Until when it counts as quick that it goes on.
    until: Option<Time>,
    polls: bool,
    /// How often in a row it was quick.
    quick: u32,
    /// How often it has to be.
    needed: u32,
}

/// What came of polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer went on in time.
    Hit,
    /// It did not.
    Miss,
}

impl Default for BusyPoll {
    fn default() -> Self {
        Self { heard: false, until: None, polls: false, quick: 0, needed: BUSY_POLL_QUICK_MIN }
    }
}

impl BusyPoll {
    /// The peer has said something. What came of polling for it, if that was done.
    pub fn on_read(&mut self, now: Time) -> Option<Outcome> {
        self.heard = true;
        let is_quick = now < self.until.take()?;
        self.quick = if is_quick { self.quick.saturating_add(1) } else { 0 };
        if !std::mem::take(&mut self.polls) {
            return None;
        }
        Some(self.came_of_it(if is_quick { Outcome::Hit } else { Outcome::Miss }))
    }

    /// Something was written to the peer. Whether it is worth polling for `window_micros` from now on: when this was an
    /// answer, and what came after the last ones came as soon as that.
    pub fn on_written(&mut self, window_micros: u64, now: Time) -> bool {
        if !std::mem::take(&mut self.heard) || window_micros == 0 {
            return false;
        }
        self.until = Some(now.plus_micros(window_micros));
        self.quick >= self.needed
    }

    /// Begins to poll, as [`Self::on_written`] suggests.
    pub const fn begin(&mut self) {
        self.polls = self.until.is_some();
    }

    /// Whether the peer is polled for.
    #[must_use]
    pub const fn polls(&self) -> bool {
        self.polls
    }

    /// Ends polling when the time for it is over. What came of it, then.
    pub fn look(&mut self, now: Time) -> Option<Outcome> {
        if !self.polls || self.until.is_some_and(|until| now < until) {
            return None;
        }
        (self.polls, self.until, self.quick) = (false, None, 0);
        Some(self.came_of_it(Outcome::Miss))
    }

    fn came_of_it(&mut self, outcome: Outcome) -> Outcome {
        self.needed = match outcome {
            Outcome::Hit => (self.needed / 2).max(BUSY_POLL_QUICK_MIN),
            Outcome::Miss => (self.needed * 2).min(BUSY_POLL_QUICK_MAX),
        };
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 100;

    /// A peer that goes on so many microseconds after each answer. Whether it was polled for, each time.
    fn dialogue(busy: &mut BusyPoll, now: &mut Time, gaps: impl IntoIterator<Item = u64>) -> Vec<Option<Outcome>> {
        let turn = |gap: u64| {
            if busy.on_written(WINDOW, *now) {
                busy.begin();
            }
            let end = now.plus_micros(gap);
            while *now < end {
                if let Some(miss) = busy.look(*now) {
                    *now = end;
                    busy.on_read(end);
                    return Some(miss);
                }
                *now = if busy.polls() { now.plus_micros(1) } else { end };
            }
            busy.on_read(end)
        };
        gaps.into_iter().map(turn).collect()
    }

    fn heard() -> (BusyPoll, Time) {
        let mut busy = BusyPoll::default();
        assert_eq!(busy.on_read(Time(0)), None);
        (busy, Time(0))
    }

    #[test]
    fn a_quick_dialogue_is_polled_for_once_it_was_seen_to_be_quick() {
        let (mut busy, mut now) = heard();
        let outcomes = dialogue(&mut busy, &mut now, [30; 10]);
        let seen = usize::try_from(BUSY_POLL_QUICK_MIN).unwrap();
        assert!(outcomes[..seen].iter().all(Option::is_none), "{outcomes:?}");
        assert!(outcomes[seen..].iter().all(|outcome| *outcome == Some(Outcome::Hit)), "{outcomes:?}");
    }

    #[test]
    fn a_slow_dialogue_and_a_stream_in_one_direction_are_never_polled_for() {
        let (mut busy, mut now) = heard();
        assert_eq!(dialogue(&mut busy, &mut now, [WINDOW; 1000]), [None; 1000]);
        for n in 0..1000 {
            busy.on_read(Time(n));
        }
        let mut busy = BusyPoll::default();
        assert!((0..1000).all(|n| !busy.on_written(WINDOW, Time(n))), "only written to");
        let (mut busy, _) = heard();
        assert!(
            !(0..1000).any(|n| {
                busy.on_read(Time(n));
                busy.on_written(0, Time(n))
            }),
            "switched off"
        );
    }

    #[test]
    fn a_dialogue_that_stops_costs_one_window_and_wrong_guesses_become_rare() {
        let (mut busy, mut now) = heard();
        dialogue(&mut busy, &mut now, [30; 10]);
        let mut polled = 0;
        // Again and again quick for a while, and then not.
        for _ in 0..100 {
            let outcomes = dialogue(&mut busy, &mut now, [30, 30, 30, 10_000]);
            polled += outcomes.iter().filter(|outcome| **outcome == Some(Outcome::Miss)).count();
        }
        assert!((1..=3).contains(&polled), "{polled} windows in vain");
        // Whoever keeps to it is polled for again.
        let quick = usize::try_from(BUSY_POLL_QUICK_MAX).unwrap();
        let outcomes = dialogue(&mut busy, &mut now, std::iter::repeat_n(30, quick + 10));
        assert_eq!(*outcomes.last().unwrap(), Some(Outcome::Hit));
    }

    #[test]
    fn what_was_not_begun_is_not_polled_for() {
        let (mut busy, mut now) = heard();
        dialogue(&mut busy, &mut now, [30; 10]);
        assert!(busy.on_written(WINDOW, now));
        assert_eq!((busy.look(now), busy.polls()), (None, false));
        assert_eq!(busy.on_read(now), None);
    }
}
