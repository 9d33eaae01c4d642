//! Busy polling of sessions: where there is a slot for it, and how the runtime is asked for another look.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context as TaskContext;

use glocal_core::busy_poll::{BusyPoll, Outcome};
use glocal_core::count::Counter;
use glocal_core::limits::BUSY_POLL_SESSIONS_MAX;

use crate::clock::Clock;

/// What a node's sessions share of busy polling.
#[derive(Debug, Default)]
pub struct BusyPolls {
    sessions: AtomicUsize,
    /// Times a session was polled for, and its client went on in time.
    pub hits: Counter,
    /// Times it did not.
    pub misses: Counter,
}

impl BusyPolls {
    fn enter(&self) -> bool {
        let more = |now: usize| (now < BUSY_POLL_SESSIONS_MAX).then_some(now + 1);
        self.sessions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn leave(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Busy polling of one session.
#[derive(Debug)]
pub(super) struct Polling {
    dialogue: BusyPoll,
    window_micros: u64,
    all: Arc<BusyPolls>,
}

impl Polling {
    pub(super) fn new(all: Arc<BusyPolls>) -> Self {
        Self { dialogue: BusyPoll::default(), window_micros: 0, all }
    }

    /// How long to poll at most; zero for not at all.
    pub(super) const fn set_window(&mut self, micros: u64) {
        self.window_micros = micros;
    }

    /// Something was written to the client.
    pub(super) fn on_written(&mut self, clock: Clock) {
        if self.window_micros > 0 && self.dialogue.on_written(self.window_micros, clock.now()) && self.all.enter() {
            self.dialogue.begin();
        }
    }

    /// Something was read.
    pub(super) fn on_read(&mut self, clock: Clock) {
        if (self.window_micros > 0 || self.dialogue.polls())
            && let Some(outcome) = self.dialogue.on_read(clock.now())
        {
            self.ended(outcome);
        }
    }

    /// There is nothing to read: has the task polled again once the worker has nothing else to do and has looked at its
    /// sockets, while that is worth it.
    pub(super) fn on_nothing(&mut self, cx: &mut TaskContext<'_>, clock: Clock) {
        if !self.dialogue.polls() {
            return;
        }
        match self.dialogue.look(clock.now()) {
            Some(outcome) => self.ended(outcome),
            // The first poll of it asks for another turn in this way; it ends here.
            None => drop(pin!(tokio::task::yield_now()).poll(cx)),
        }
    }

    fn ended(&self, outcome: Outcome) {
        match outcome {
            Outcome::Hit => self.all.hits.add(1),
            Outcome::Miss => self.all.misses.add(1),
        }
        self.all.leave();
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        if self.dialogue.polls() {
            self.all.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session whose client goes on at once after each answer, up to the last answer.
    fn quick(all: &Arc<BusyPolls>, clock: Clock) -> Polling {
        let mut polling = Polling::new(Arc::clone(all));
        polling.set_window(1_000_000);
        for _ in 0..3 {
            polling.on_read(clock);
            polling.on_written(clock);
        }
        polling
    }

    #[test]
    fn no_more_sessions_are_polled_for_than_there_are_slots_and_a_slot_is_given_back() {
        let (all, clock) = (Arc::new(BusyPolls::default()), Clock::start());
        let now = || all.sessions.load(Ordering::Relaxed);
        let mut polled: Vec<_> = (0..BUSY_POLL_SESSIONS_MAX).map(|_| quick(&all, clock)).collect();
        assert_eq!(now(), BUSY_POLL_SESSIONS_MAX);
        let mut late = quick(&all, clock);
        assert!(!late.dialogue.polls(), "there is no slot for it");
        // Heard of in time, ended in the middle, switched off and then heard of: each gives its slot back once.
        polled[0].on_read(clock);
        assert_eq!((now(), all.hits.value()), (BUSY_POLL_SESSIONS_MAX - 1, 1));
        drop(polled.pop());
        polled[1].set_window(0);
        polled[1].on_read(clock);
        polled[1].on_written(clock);
        assert_eq!((now(), all.hits.value(), all.misses.value()), (BUSY_POLL_SESSIONS_MAX - 3, 2, 0));
        late.on_read(clock);
        late.on_written(clock);
        assert!(late.dialogue.polls());
        drop((polled, late));
        assert_eq!(now(), 0);
    }
}
