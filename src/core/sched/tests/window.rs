//! The send window on a path with a deep buffer: it keeps the path busy, and its own queue there stays short.

use std::collections::VecDeque;

use super::Random;
use crate::sched::{Delivered, SendWindow};
use crate::time::Time;

const PACKET: u64 = 1_200;
const STEP_MICROS: u64 = 50;
const MBIT: u64 = 1_000_000 / 8;

/// A path of a rate and a length, and an end that sends on it whatever the window lets it.
struct Path {
    window: SendWindow,
    /// Bytes per second.
    rate: u64,
    rtt_micros: u64,
    /// The sender gets its processor every so often, in microseconds, and not before.
    pause_micros: u64,
    /// Every so many times it gets it only after such a pause, and else at once; zero for always.
    pause_every: u64,
    /// What the sender has to send, in bytes per second; `None` for more than goes through.
    offered: Option<u64>,
    now: u64,
    free_at: u64,
    budget: u64,
    in_flight: u64,
    idle: bool,
    runs_at: u64,
    /// When each packet was sent and when its acknowledgement is there.
    packets: VecDeque<(u64, u64)>,
    random: Random,
}

/// What was seen in a stretch of time.
#[derive(Debug, Default)]
struct Seen {
    delivered: u64,
    micros: u64,
    waits: Vec<u64>,
}

impl Seen {
    /// Part of the path's rate that was used, in percent.
    fn percent(&self, rate: u64) -> u64 {
        self.delivered * 100 * 1_000_000 / self.micros / rate
    }

    /// What 99 of 100 packets waited for others before them at most, in microseconds.
    fn wait(&mut self) -> u64 {
        self.waits.sort_unstable();
        self.waits.get(self.waits.len() * 99 / 100).copied().unwrap_or(0)
    }
}

impl Path {
    fn new(rate: u64, rtt_micros: u64) -> Self {
        Self {
            window: SendWindow::new(PACKET),
            rate,
            rtt_micros,
            pause_micros: 0,
            pause_every: 0,
            offered: None,
            now: 0,
            free_at: 0,
            budget: 0,
            in_flight: 0,
            idle: false,
            runs_at: 0,
            packets: VecDeque::new(),
            random: Random(7),
        }
    }

    fn run(&mut self, millis: u64) -> Seen {
        let mut seen = Seen { micros: millis * 1_000, ..Seen::default() };
        let end = self.now + millis * 1_000;
        while self.now < end {
            self.now += STEP_MICROS;
            if let Some(offered) = self.offered {
                self.budget = (self.budget + offered * STEP_MICROS / 1_000_000).min(100 * PACKET);
            }
            if self.now >= self.runs_at {
                self.acknowledge(&mut seen);
                self.send(&mut seen);
                let pauses = self.pause_every == 0 || self.random.next().is_multiple_of(self.pause_every);
                let pause_micros = if pauses { self.pause_micros } else { 0 };
                self.runs_at = self.now + pause_micros * (50 + self.random.next() % 100) / 100;
            }
        }
        seen
    }

    fn acknowledge(&mut self, seen: &mut Seen) {
        let (mut bytes, mut rtt_micros) = (0, 0);
        while let Some((sent, _)) = self.packets.front().copied().filter(|(_, there)| *there <= self.now) {
            self.packets.pop_front();
            bytes += PACKET;
            rtt_micros = self.now - sent;
        }
        if bytes > 0 {
            let limited = std::mem::replace(&mut self.idle, false);
            self.window.on_delivered(Delivered { bytes, rtt_micros, limited }, Time(self.now));
            self.in_flight -= bytes;
            seen.delivered += bytes;
        }
    }

    fn send(&mut self, seen: &mut Seen) {
        while self.in_flight + PACKET <= self.window.window() {
            if self.offered.is_some() {
                if self.budget < PACKET {
                    self.idle = true;
                    break;
                }
                self.budget -= PACKET;
            }
            let begins = self.free_at.max(self.now);
            self.free_at = begins + PACKET * 1_000_000 / self.rate;
            self.packets.push_back((self.now, self.free_at + self.rtt_micros));
            self.in_flight += PACKET;
            seen.waits.push(begins - self.now);
        }
    }
}

#[test]
fn a_path_is_kept_busy_with_a_queue_of_about_a_millisecond() {
    for (rate, rtt_micros) in [(100 * MBIT, 200), (100 * MBIT, 10_000), (1_000 * MBIT, 1_000), (20 * MBIT, 50_000)] {
        let mut path = Path::new(rate, rtt_micros);
        path.run(3_000);
        let mut seen = path.run(20_000);
        assert!(seen.percent(rate) >= 97, "{rate} B/s, {rtt_micros} us: {} %", seen.percent(rate));
        // Eight packets are more than a millisecond on the slowest of these.
        let bound = 2_500.max(10 * PACKET * 1_000_000 / rate);
        assert!(seen.wait() <= bound, "{rate} B/s, {rtt_micros} us: waits {} us", seen.wait());
    }
}

#[test]
fn the_start_takes_few_round_trips_and_no_long_queue() {
    let (rate, rtt_micros) = (100 * MBIT, 50_000);
    let mut path = Path::new(rate, rtt_micros);
    let mut seen = path.run(1_000);
    assert!(seen.wait() <= 60_000, "at most a path's length is queued: {} us", seen.wait());
    assert!(path.run(1_000).percent(rate) >= 80, "filled after twenty round trips");
    let mut path = Path::new(rate, rtt_micros);
    path.run(300);
    assert!(path.run(200).percent(rate) >= 80, "filled after six round trips");
}

#[test]
fn a_configured_rate_needs_no_measuring() {
    let rate = 100 * MBIT;
    let mut path = Path::new(rate, 500);
    path.window.set_rate(Some(rate));
    let mut seen = path.run(1_000);
    assert!(seen.percent(rate) >= 97 && seen.wait() <= 1_800, "{} %, {} us", seen.percent(rate), seen.wait());
}

#[test]
fn a_path_that_changes_is_followed() {
    let mut path = Path::new(100 * MBIT, 2_000);
    path.run(3_000);
    path.rate = 10 * MBIT;
    path.run(3_000);
    let mut seen = path.run(3_000);
    assert!(seen.percent(path.rate) >= 95 && seen.wait() <= 10 * PACKET * 1_000_000 / path.rate, "{seen:?}");
    path.rate = 200 * MBIT;
    path.run(6_000);
    let mut seen = path.run(3_000);
    assert!(seen.percent(path.rate) >= 95 && seen.wait() <= 2_500, "{} {}", seen.percent(path.rate), seen.wait());
    // Longer by far: the least round trip of before must not be believed for ever.
    path.rtt_micros = 40_000;
    path.run(25_000);
    let mut seen = path.run(10_000);
    assert!(seen.percent(path.rate) >= 90 && seen.wait() <= 6_000, "{} {}", seen.percent(path.rate), seen.wait());
}

#[test]
fn a_sender_that_gets_its_processor_now_and_then_does_not_starve_itself() {
    for pause_micros in [2_000, 5_000] {
        let mut path = Path::new(1_000 * MBIT, 100);
        path.pause_micros = pause_micros;
        path.run(3_000);
        let mut seen = path.run(10_000);
        assert!(seen.percent(path.rate) >= 70, "{pause_micros}: {} %", seen.percent(path.rate));
        assert!(seen.wait() <= 12_000, "{pause_micros}: {} us", seen.wait());
    }
}

#[test]
fn bursts_that_do_not_lower_the_rate_are_not_waited_for() {
    let mut path = Path::new(1_000 * MBIT, 100);
    (path.pause_micros, path.pause_every) = (3_000, 64);
    path.run(3_000);
    let mut seen = path.run(10_000);
    assert!(seen.percent(path.rate) >= 60 && seen.wait() <= 1_500, "{} % {} us", seen.percent(path.rate), seen.wait());
}

#[test]
fn acknowledgements_that_come_late_in_clumps_do_not_make_the_window_small() {
    // The least round trip is seen between the pauses, and is far shorter than what the window has to last for.
    let mut path = Path::new(1_000 * MBIT, 100);
    (path.pause_micros, path.pause_every) = (3_000, 4);
    path.run(3_000);
    let mut seen = path.run(10_000);
    assert!(seen.percent(path.rate) >= 70, "{} %", seen.percent(path.rate));
    assert!(seen.wait() <= 12_000, "{} us", seen.wait());
}

#[test]
fn a_time_with_little_to_send_says_nothing_about_the_path() {
    let rate = 100 * MBIT;
    let mut path = Path::new(rate, 5_000);
    path.run(3_000);
    let before = path.window.rate();
    path.offered = Some(rate / 50);
    path.run(10_000);
    assert!(path.window.rate() >= before * 9 / 10, "{} of {before}", path.window.rate());
    path.offered = None;
    assert!(path.run(200).percent(rate) >= 90);
}

#[test]
fn bounds_hold_whatever_is_delivered() {
    let mut window = SendWindow::new(PACKET);
    let mut random = Random(3);
    let mut now = 0;
    for _ in 0..20_000 {
        now += random.next() % 10_000;
        let delivered = Delivered {
            bytes: random.next() << (random.next() % 20),
            rtt_micros: random.next(),
            limited: random.next().is_multiple_of(2),
        };
        window.on_delivered(delivered, Time(now));
        assert!((8 * PACKET..=4 * 1024 * 1024).contains(&window.window()));
    }
}
