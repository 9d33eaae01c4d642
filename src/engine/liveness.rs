//! Liveness of a bridge: probes every 200 ms, dead after max(1 s, 4 × RTT) of silence (DESIGN section 5).

use glocal_core::limits::{DEAD_MS_MIN, PROBE_MS};
use glocal_core::time::Time;

/// What is known of the peer's life.
#[derive(Clone, Copy, Debug)]
pub struct Liveness {
    heard: Time,
    next_probe: Time,
    sent: Time,
    id: u64,
    rtt_micros: u64,
}

impl Liveness {
    /// A peer heard of now.
    #[must_use]
    pub const fn new(now: Time) -> Self {
        Self { heard: now, next_probe: now, sent: now, id: 0, rtt_micros: 0 }
    }

    /// The number of the probe to send now, if one is due.
    pub fn probe(&mut self, now: Time) -> Option<u64> {
        if now < self.next_probe {
            return None;
        }
        self.id += 1;
        self.sent = now;
        self.next_probe = now.plus_millis(PROBE_MS);
        Some(self.id)
    }

    /// The peer answered a probe.
    pub fn on_ack(&mut self, id: u64, now: Time) {
        if id == self.id {
            let sample = now.micros_since(self.sent);
            self.rtt_micros = if self.rtt_micros == 0 { sample } else { (self.rtt_micros * 7 + sample) / 8 };
        }
        if id <= self.id {
            self.heard = now;
        }
    }

    /// Smoothed round-trip time in microseconds; zero before the first answer.
    #[must_use]
    pub const fn rtt_micros(&self) -> u64 {
        self.rtt_micros
    }

    /// When the peer counts as dead if nothing is heard.
    #[must_use]
    pub fn dead_at(&self) -> Time {
        self.heard.plus_micros((DEAD_MS_MIN * 1000).max(self.rtt_micros * 4))
    }

    /// Whether the peer is dead.
    #[must_use]
    pub fn is_dead(&self, now: Time) -> bool {
        now >= self.dead_at()
    }

    /// When to look again.
    #[must_use]
    pub fn wake_at(&self) -> Time {
        self.next_probe.min(self.dead_at())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_dead_after_a_second_and_a_slow_one_after_four_round_trips() {
        let mut life = Liveness::new(Time(0));
        assert_eq!(life.probe(Time(0)), Some(1));
        assert_eq!(life.probe(Time(1)), None, "not due");
        life.on_ack(1, Time::from_millis(400));
        assert_eq!(life.rtt_micros(), 400_000);
        assert!(!life.is_dead(Time::from_millis(1_999)));
        assert!(life.is_dead(Time::from_millis(2_000)), "400 + 4 × 400");
        let quick = Liveness::new(Time(0));
        assert!(!quick.is_dead(Time::from_millis(999)) && quick.is_dead(Time::from_millis(1_000)));
    }

    #[test]
    fn answers_to_probes_never_sent_prove_nothing() {
        let mut life = Liveness::new(Time(0));
        life.on_ack(99, Time::from_millis(900));
        assert!(life.is_dead(Time::from_millis(1_000)));
    }
}
