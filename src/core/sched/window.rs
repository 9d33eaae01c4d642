//! How much of an edge may lie below its scheduler: enough to keep the path busy, and no more (DESIGN section 7).
//!
//! What has been handed to the transport leaves in the order in which it was handed over, whoever it belongs to. So the
//! send window is kept at `rate × (least round trip + 0.5 ms)`, between [`SEND_WINDOW_PACKETS_MIN`] packets and
//! [`SEND_WINDOW_BYTES_MAX`]: everything else waits where turns are taken. The rate is the configured one of the edge, or
//! the greatest at which bytes were delivered lately. Measured as BBR does (draft-cardwell-iccrg-bbr-congestion-control):
//!
//! - a round is at least a round trip; one in which there was not always something to send counts only when it is faster
//!   than what is known, since it says nothing about the path;
//! - until three rounds in a row have brought no quarter more, the window is twice as large, so that a long path is filled
//!   in a few round trips;
//! - acknowledgements that come in bursts, from a peer that gets its processor only now and then, would make the path look
//!   longer than its least round trip and the window too small, and so on downwards: what came beyond the rate lately is
//!   added to the window, up to [`SEND_BURST_MICROS_MIN`] of it, and as far as the rate falls without it up to
//!   [`SEND_BURST_MICROS_MAX`];
//! - a least round trip that was not seen again for [`RTT_AGE_MICROS`] is measured afresh, with the window made small for
//!   that time, so that the edge's own queue is not in it.

use crate::limits::{
    SEND_BURST_MICROS_MAX, SEND_BURST_MICROS_MIN, SEND_WINDOW_BYTES_INITIAL, SEND_WINDOW_BYTES_MAX,
    SEND_WINDOW_PACKETS_MIN,
};
use crate::time::Time;

/// What the path may hold beyond its own length.
const QUEUE_MICROS: u64 = 500;
/// Least length of a round: shorter ones measure how acknowledgements are bundled, by a peer that waits for its processor too.
const ROUND_MICROS_MIN: u64 = 20_000;
/// How long the greatest rate and the greatest burst are remembered, at least; and in round trips. Twice as long at most.
const REMEMBERED_MICROS_MIN: u64 = 500_000;
const REMEMBERED_ROUND_TRIPS: u64 = 5;
/// Rounds without a quarter more after which the path counts as filled.
const FULL_ROUNDS: u8 = 3;
/// How long more is added to the window for bursts before less is tried, in periods of [`REMEMBERED_MICROS_MIN`] or more.
const BURST_PERIODS: u8 = 8;
/// Age at which the least round trip is measured afresh.
const RTT_AGE_MICROS: u64 = 10_000_000;
/// Least time for which the window is small while it is.
const RTT_PROBE_MICROS_MIN: u64 = 10_000;

/// What acknowledgements that were processed together say.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    /// Bytes acknowledged.
    pub bytes: u64,
    /// Round trip of the packet that was sent last among them, in microseconds.
    pub rtt_micros: u64,
    /// Whether, since the acknowledgements before, there was a time with nothing to send.
    pub limited: bool,
}

/// The send window of one connection.
#[derive(Clone, Debug)]
pub struct SendWindow {
    packet_bytes: u64,
    /// Bytes per second, where the edge's rate is configured.
    configured: Option<u64>,
    rate: Greatest,
    burst: Greatest,
    needed: NeededBurst,
    rtt: Option<LeastRtt>,
    round: Option<Round>,
    /// Rounds without a quarter more than `full_rate`; [`FULL_ROUNDS`] ends the start.
    full_rounds: u8,
    full_rate: u64,
    epoch: Round,
}

/// Bytes delivered since a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    since: Time,
    bytes: u64,
    limited: bool,
}

#[derive(Clone, Copy, Debug)]
struct LeastRtt {
    micros: u64,
    seen: Time,
    /// While it is measured afresh: until when, and the least so far.
    probe: Option<(Time, u64)>,
}

impl SendWindow {
    /// The window of a connection of which nothing is known yet.
    #[must_use]
    pub fn new(packet_bytes: u64) -> Self {
        Self {
            packet_bytes: packet_bytes.max(1),
            configured: None,
            rate: Greatest::default(),
            burst: Greatest::default(),
            needed: NeededBurst::default(),
            rtt: None,
            round: None,
            full_rounds: 0,
            full_rate: 0,
            epoch: Round::default(),
        }
    }

    /// The rate the edge is configured for, in bytes per second; `None` has it measured.
    pub const fn set_rate(&mut self, configured: Option<u64>) {
        self.configured = configured;
    }

    /// The size of packets, as the path's is learned.
    pub fn set_packet_bytes(&mut self, packet_bytes: u64) {
        self.packet_bytes = packet_bytes.max(1);
    }

    /// Takes in what was acknowledged.
    pub fn on_delivered(&mut self, delivered: Delivered, now: Time) {
        self.on_rtt(delivered.rtt_micros.max(1), now);
        self.on_burst(delivered.bytes, now);
        let round_micros = delivered.rtt_micros.max(ROUND_MICROS_MIN);
        let Some(round) = &mut self.round else {
            self.round = Some(Round { since: now, ..Round::default() });
            return;
        };
        round.bytes += delivered.bytes;
        round.limited |= delivered.limited;
        let elapsed = now.micros_since(round.since);
        if elapsed < round_micros {
            return;
        }
        let (rate, limited) = (per_second(round.bytes, elapsed), round.limited);
        self.round = Some(Round { since: now, ..Round::default() });
        self.on_round(rate, limited, now);
    }

    fn on_round(&mut self, rate: u64, limited: bool, now: Time) {
        if limited && rate <= self.rate.value() {
            return;
        }
        self.rate.add(rate, now, self.remembered());
        if limited {
            return;
        }
        if self.is_full() {
            self.needed.add(rate, now, self.remembered());
            return;
        }
        if self.rate.value() >= self.full_rate.saturating_add(self.full_rate / 4) {
            (self.full_rate, self.full_rounds) = (self.rate.value(), 0);
        } else {
            self.full_rounds += 1;
        }
    }

    fn on_rtt(&mut self, micros: u64, now: Time) {
        let Some(rtt) = &mut self.rtt else {
            self.rtt = Some(LeastRtt { micros, seen: now, probe: None });
            return;
        };
        if micros <= rtt.micros.saturating_add(rtt.micros / 16) {
            *rtt = LeastRtt { micros: rtt.micros.min(micros), seen: now, probe: None };
            return;
        }
        match &mut rtt.probe {
            Some((until, least)) => {
                *least = micros.min(*least);
                if now >= *until {
                    *rtt = LeastRtt { micros: *least, seen: now, probe: None };
                }
            }
            None if now.micros_since(rtt.seen) > RTT_AGE_MICROS => {
                let lasts = micros.saturating_mul(2).max(RTT_PROBE_MICROS_MIN);
                rtt.probe = Some((now.plus_micros(lasts), micros));
            }
            None => {}
        }
    }

    /// How far acknowledgements run ahead of the rate, from a moment at which they did not.
    fn on_burst(&mut self, bytes: u64, now: Time) {
        let expected = in_micros(self.rate(), now.micros_since(self.epoch.since));
        if self.epoch.bytes <= expected || !self.is_full() {
            self.epoch = Round { since: now, ..Round::default() };
        }
        self.epoch.bytes += bytes;
        if !self.is_full() {
            return;
        }
        let expected = in_micros(self.rate(), now.micros_since(self.epoch.since));
        let ahead = self.epoch.bytes.saturating_sub(expected).min(self.window());
        self.burst.add(ahead, now, self.remembered());
    }

    fn remembered(&self) -> u64 {
        let rtt = self.rtt.map_or(0, |rtt| rtt.micros);
        rtt.saturating_mul(REMEMBERED_ROUND_TRIPS).max(REMEMBERED_MICROS_MIN)
    }

    /// Whether the rate is known: configured, or no longer growing.
    const fn is_full(&self) -> bool {
        self.configured.is_some() || self.full_rounds >= FULL_ROUNDS
    }

    /// The rate in bytes per second: the configured one, or the measured one; zero while it is not known.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.configured.unwrap_or_else(|| self.rate.value())
    }

    /// The rate, unless it is only a lower bound since there was never enough to send.
    #[must_use]
    pub fn known_rate(&self) -> Option<u64> {
        self.is_full().then(|| self.rate())
    }

    /// How many bytes may have been handed to the transport and not been acknowledged.
    #[must_use]
    pub fn window(&self) -> u64 {
        let least = self.packet_bytes.saturating_mul(SEND_WINDOW_PACKETS_MIN);
        let (Some(rtt), rate @ 1..) = (self.rtt, self.rate()) else {
            return SEND_WINDOW_BYTES_INITIAL.max(least);
        };
        let filled = in_micros(rate, rtt.micros.saturating_add(QUEUE_MICROS));
        let window = if rtt.probe.is_some() {
            in_micros(rate, rtt.micros).saturating_mul(3) / 4
        } else if self.is_full() {
            let burst_micros = if self.configured.is_some() { SEND_BURST_MICROS_MIN } else { self.needed.micros() };
            filled.saturating_add(self.burst.value().min(in_micros(rate, burst_micros)))
        } else {
            filled.saturating_mul(2).max(SEND_WINDOW_BYTES_INITIAL)
        };
        window.max(least).min(SEND_WINDOW_BYTES_MAX)
    }
}

/// The greatest of what was added lately: within one to two periods, of which only those count in which something was
/// added, since a time without additions says nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Greatest {
    before: u64,
    now: u64,
    since: Time,
}

impl Greatest {
    fn add(&mut self, value: u64, now: Time, period_micros: u64) {
        if now.micros_since(self.since) > period_micros {
            *self = Self { before: self.now, now: 0, since: now };
        }
        self.now = self.now.max(value);
    }

    fn value(&self) -> u64 {
        self.now.max(self.before)
    }
}

/// Whether all that acknowledgements in bursts would add is needed.
///
/// A window that is too small for them lowers the rate, and with it itself. So less is added only as long as the rate is more than
/// half of what it is with all of it; after it was not, all is added for [`BURST_PERIODS`], in which the rate is learned afresh: it may
/// be the path that has become slower.
#[derive(Clone, Copy, Debug, Default)]
struct NeededBurst {
    /// Whether less is added.
    sparing: bool,
    /// Periods before that is tried.
    keep: u8,
    /// The greatest rate of those periods and since.
    known: u64,
    period: Greatest,
}

impl NeededBurst {
    /// Takes in the rate of a round in which there was always something to send.
    fn add(&mut self, rate: u64, now: Time, period_micros: u64) {
        let ends = now.micros_since(self.period.since) > period_micros;
        self.period.add(rate, now, period_micros);
        if !ends {
            return;
        }
        let seen = self.period.before;
        if self.sparing && seen < self.known / 2 {
            *self = Self { keep: BURST_PERIODS, period: self.period, ..Self::default() };
            return;
        }
        self.known = self.known.max(seen);
        self.sparing = self.keep == 0 && self.known > 0;
        self.keep = self.keep.saturating_sub(1);
    }

    /// How much of the rate it may add, in microseconds.
    const fn micros(&self) -> u64 {
        if self.sparing { SEND_BURST_MICROS_MIN } else { SEND_BURST_MICROS_MAX }
    }
}

fn per_second(bytes: u64, micros: u64) -> u64 {
    bytes.saturating_mul(1_000_000) / micros.max(1)
}

fn in_micros(rate: u64, micros: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(micros) / 1_000_000).unwrap_or(u64::MAX)
}
