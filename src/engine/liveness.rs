//! Liveness of a bridge: probes every 200 ms, dead after max(1 s, 4 × RTT) of silence; and of the way its data takes: a probe in
//! each data stream that is used, half-dead after max(2 s, 4 × RTT) without an answer (DESIGN section 5).

use glocal_core::limits::{BRIDGE_STREAMS, DEAD_MS_MIN, PATH_DEAD_MS_MIN, PATH_PROBE_MS, PROBE_MS};
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

/// Probes in the data streams of one bridge.
///
/// A probe stands in its stream behind the data that was written before, and a slow link may take long to carry that. So its
/// time begins only when as many bytes have left this machine as were waiting when it was written; from then on it takes
/// what a round trip takes, and a peer that does not answer does not read that stream.
#[derive(Debug)]
pub struct PathProbes {
    streams: [PathProbe; BRIDGE_STREAMS],
    newest: u64,
    written: u64,
    /// Bytes written and transmitted when the newest probe that was answered was written.
    base: (u64, u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct PathProbe {
    used: bool,
    due: Time,
    asked: Option<Asked>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    id: u64,
    /// Bytes written and transmitted before it.
    before: (u64, u64),
    /// It has left when this many bytes are transmitted.
    left_at: u64,
    /// When it had.
    left: Option<Time>,
}

impl PathProbes {
    /// A bridge that has transmitted so many bytes, none of them in data streams.
    #[must_use]
    pub fn new(transmitted: u64) -> Self {
        Self { streams: [PathProbe::default(); BRIDGE_STREAMS], newest: 0, written: 0, base: (0, transmitted) }
    }

    /// Bytes were written to a stream: it is used from now on.
    pub fn wrote(&mut self, stream: usize, bytes: usize) {
        self.written = self.written.saturating_add(bytes as u64);
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.used = true;
        }
    }

    /// The streams to write a probe to now, and the probes' numbers: of those that are used, one at a time each.
    pub fn ask(&mut self, transmitted: u64, now: Time) -> Vec<(usize, u64)> {
        let before = (self.written, transmitted);
        let sent = transmitted.saturating_sub(self.base.1);
        let waiting = self.written.saturating_sub(self.base.0).saturating_sub(sent);
        // A quarter more, for headers and what is sent again.
        let left_at = transmitted.saturating_add(waiting).saturating_add(waiting / 4);
        let mut asked = Vec::new();
        for (place, stream) in self.streams.iter_mut().enumerate() {
            if stream.used && stream.asked.is_none() && now >= stream.due {
                self.newest += 1;
                stream.asked = Some(Asked { id: self.newest, before, left_at, left: None });
                asked.push((place, self.newest));
            }
        }
        asked
    }

    /// The peer has read a probe; an answer to one that is not out changes nothing.
    pub fn on_answer(&mut self, id: u64, now: Time) {
        let of = |stream: &&mut PathProbe| stream.asked.is_some_and(|asked| asked.id == id);
        let Some(stream) = self.streams.iter_mut().find(of) else { return };
        if let Some(asked) = stream.asked.take() {
            stream.due = now.plus_millis(PATH_PROBE_MS);
            self.base = self.base.max(asked.before);
        }
    }

    /// Whether a probe has been out for too long.
    pub fn is_stuck(&mut self, transmitted: u64, rtt_micros: u64, now: Time) -> bool {
        let patience = (PATH_DEAD_MS_MIN * 1000).max(rtt_micros.saturating_mul(4));
        self.streams.iter_mut().filter_map(|stream| stream.asked.as_mut()).any(|asked| {
            if asked.left.is_none() && transmitted >= asked.left_at {
                asked.left = Some(now);
            }
            asked.left.is_some_and(|left| now >= left.plus_micros(patience))
        })
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

    #[test]
    fn a_used_stream_whose_probe_is_not_answered_is_stuck_after_two_seconds() {
        let mut path = PathProbes::new(1_000);
        let ms = Time::from_millis;
        assert_eq!(path.ask(1_000, ms(0)), [], "no stream is used");
        path.wrote(3, 100);
        path.wrote(5, 100);
        assert_eq!(path.ask(1_300, ms(10)), [(3, 1), (5, 2)]);
        assert_eq!(path.ask(1_400, ms(600)), [], "one at a time");
        assert!(!path.is_stuck(1_400, 0, ms(10)));
        path.on_answer(1, ms(20));
        assert_eq!(path.ask(1_400, ms(519)), []);
        assert_eq!(path.ask(1_400, ms(520)), [(3, 3)]);
        path.on_answer(3, ms(530));
        path.on_answer(99, ms(540));
        assert!(!path.is_stuck(1_500, 0, ms(2_009)), "the other one answers, this one has time yet");
        assert!(path.is_stuck(1_500, 0, ms(2_010)));
        assert!(!path.is_stuck(1_500, 1_000_000, ms(3_000)), "a long way takes its time");
        assert!(path.is_stuck(1_500, 1_000_000, ms(4_010)));
        path.on_answer(2, ms(4_020));
        assert!(!path.is_stuck(1_500, 0, ms(60_000)));
    }

    #[test]
    fn what_waits_before_a_probe_on_a_slow_link_is_not_held_against_the_peer() {
        let (mut path, ms) = (PathProbes::new(0), Time::from_millis);
        path.wrote(0, 1_000_000);
        assert_eq!(path.ask(200_000, ms(0)), [(0, 1)], "800 000 bytes wait before it");
        for second in 1..20u64 {
            let transmitted = 200_000 + second * 50_000;
            assert!(!path.is_stuck(transmitted, 0, ms(second * 1000)), "after {second} s");
        }
        assert!(!path.is_stuck(1_200_000, 0, ms(20_000)), "now it has left");
        assert!(path.is_stuck(1_200_000, 0, ms(22_000)));
        // An answer shows that what was written before it has arrived.
        path.on_answer(1, ms(22_100));
        path.wrote(0, 10);
        assert_eq!(path.ask(1_200_100, ms(23_000)), [(0, 2)]);
        assert!(!path.is_stuck(1_200_100, 0, ms(23_000)));
        assert!(path.is_stuck(1_200_100, 0, ms(25_000)));
    }
}
