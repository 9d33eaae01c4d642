//! How much may be on its way to one target: a congestion window in bytes (RFC 5681), and when to send again (RFC 6298).

use crate::limits::{
    RELIABLE_QUEUE_MS, RELIABLE_TIMEOUT_MS_FIRST, RELIABLE_TIMEOUT_MS_MAX, RELIABLE_TIMEOUT_MS_MIN,
    RELIABLE_WINDOW_BYTES_FIRST, RELIABLE_WINDOW_BYTES_MAX, RELIABLE_WINDOW_BYTES_MIN, SLICE_BYTES_MAX,
};

/// The window of one target.
#[derive(Clone, Debug)]
pub struct Window {
    bytes: usize,
    threshold: usize,
    /// The newest message that was under way at the last loss: older losses are the same event.
    recover: u64,
    smoothed_micros: Option<u64>,
    variance_micros: u64,
    /// The least and the last round trip on this way.
    least_micros: u64,
    last_micros: u64,
    backoff: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            bytes: RELIABLE_WINDOW_BYTES_FIRST,
            threshold: RELIABLE_WINDOW_BYTES_MAX,
            recover: 0,
            smoothed_micros: None,
            variance_micros: 0,
            least_micros: u64::MAX,
            last_micros: 0,
            backoff: 0,
        }
    }
}

impl Window {
    /// Bytes that may be under way.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The smoothed round-trip time in microseconds, once there is one.
    #[must_use]
    pub const fn round_trip_micros(&self) -> Option<u64> {
        self.smoothed_micros
    }

    /// `bytes` were acknowledged. The window grows only where it was `used`: doubling per round trip below the
    /// threshold, a slice per round trip above it. It stops growing while what is under way waits in a queue of its own: more
    /// would only wait longer, until it is taken for lost and sent twice.
    pub fn acknowledged(&mut self, bytes: usize, used: bool) {
        self.backoff = 0;
        if self.waits_in_queue() {
            self.threshold = self.threshold.min(self.bytes);
            return;
        }
        if !used {
            return;
        }
        let more =
            if self.bytes < self.threshold { bytes } else { SLICE_BYTES_MAX.saturating_mul(bytes) / self.bytes.max(1) };
        self.bytes = self.bytes.saturating_add(more).min(RELIABLE_WINDOW_BYTES_MAX);
    }

    /// Message `seq` was lost while `newest` was the last under way: the window halves, once per event.
    pub fn lost(&mut self, seq: u64, newest: u64) {
        if seq > self.recover {
            self.bytes = (self.bytes / 2).max(RELIABLE_WINDOW_BYTES_MIN);
            self.threshold = self.bytes;
            self.recover = newest;
        }
    }

    /// Nothing came in time: the next wait is longer.
    pub fn timed_out(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// The way is another: what was learned of waiting is forgotten.
    pub const fn rerouted(&mut self) {
        self.backoff = 0;
        self.least_micros = u64::MAX;
        self.last_micros = 0;
    }

    /// Whether the last round trip was longer than the way explains.
    const fn waits_in_queue(&self) -> bool {
        self.last_micros > self.least_micros.saturating_mul(2).saturating_add(RELIABLE_QUEUE_MS * 1000)
    }

    /// A message that was sent once was acknowledged after `micros`.
    pub fn measured(&mut self, micros: u64) {
        self.last_micros = micros;
        self.least_micros = self.least_micros.min(micros);
        match self.smoothed_micros {
            None => {
                self.smoothed_micros = Some(micros);
                self.variance_micros = micros / 2;
            }
            Some(smoothed) => {
                self.variance_micros = (3 * self.variance_micros + smoothed.abs_diff(micros)) / 4;
                self.smoothed_micros = Some((7 * smoothed + micros) / 8);
            }
        }
    }

    /// How long to wait for an acknowledgement before sending again, in microseconds.
    #[must_use]
    pub fn timeout_micros(&self) -> u64 {
        let max = RELIABLE_TIMEOUT_MS_MAX * 1000;
        let smoothed = self.smoothed_micros.unwrap_or(RELIABLE_TIMEOUT_MS_FIRST * 1000).min(max);
        let once = smoothed.saturating_add(4 * self.variance_micros.min(max)).max(RELIABLE_TIMEOUT_MS_MIN * 1000);
        once.saturating_mul(1 << self.backoff.min(8)).min(max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_doubles_then_creeps_and_halves_once_per_event() {
        let mut window = Window::default();
        window.acknowledged(RELIABLE_WINDOW_BYTES_FIRST, false);
        assert_eq!(window.bytes(), RELIABLE_WINDOW_BYTES_FIRST, "what is not used does not grow");
        window.acknowledged(RELIABLE_WINDOW_BYTES_FIRST, true);
        assert_eq!(window.bytes(), 2 * RELIABLE_WINDOW_BYTES_FIRST);
        window.lost(5, 9);
        window.lost(7, 9);
        assert_eq!(window.bytes(), RELIABLE_WINDOW_BYTES_FIRST, "5 to 9 were lost together");
        window.acknowledged(window.bytes(), true);
        assert_eq!(window.bytes(), RELIABLE_WINDOW_BYTES_FIRST + SLICE_BYTES_MAX);
        for seq in 10..100 {
            window.lost(seq, seq);
        }
        assert_eq!(window.bytes(), RELIABLE_WINDOW_BYTES_MIN);
        (0..100_000).for_each(|_| window.acknowledged(1 << 20, true));
        assert_eq!(window.bytes(), RELIABLE_WINDOW_BYTES_MAX);
    }

    #[test]
    fn a_window_stops_growing_while_its_own_queue_makes_the_way_long() {
        let mut window = Window::default();
        window.measured(5_000);
        window.acknowledged(window.bytes(), true);
        let doubled = window.bytes();
        assert_eq!(doubled, 2 * RELIABLE_WINDOW_BYTES_FIRST);
        window.measured(10_000 + RELIABLE_QUEUE_MS * 1000);
        window.acknowledged(doubled, true);
        assert!(window.bytes() > doubled, "a way may take twice as long");
        let before = window.bytes();
        window.measured(20_000 + RELIABLE_QUEUE_MS * 1000);
        (0..100).for_each(|_| window.acknowledged(before, true));
        assert_eq!(window.bytes(), before);
        window.measured(6_000);
        window.acknowledged(before, true);
        assert_eq!(window.bytes(), before + SLICE_BYTES_MAX, "and then it creeps");
        window.rerouted();
        window.measured(400_000);
        window.acknowledged(window.bytes(), true);
        assert_eq!(window.bytes(), before + 2 * SLICE_BYTES_MAX, "a longer way is no queue");
    }

    #[test]
    fn waiting_follows_the_round_trip_between_its_bounds() {
        let mut window = Window::default();
        assert_eq!(window.timeout_micros(), RELIABLE_TIMEOUT_MS_FIRST * 1000);
        window.measured(10);
        assert_eq!(window.timeout_micros(), RELIABLE_TIMEOUT_MS_MIN * 1000);
        (0..50).for_each(|_| window.measured(300_000));
        let steady = window.timeout_micros();
        assert!((300_000..400_000).contains(&steady), "{steady}");
        window.timed_out();
        assert_eq!(window.timeout_micros(), 2 * steady);
        (0..80).for_each(|_| window.timed_out());
        assert_eq!(window.timeout_micros(), RELIABLE_TIMEOUT_MS_MAX * 1000);
        window.rerouted();
        assert_eq!(window.timeout_micros(), steady);
        window.measured(u64::MAX / 16);
        assert_eq!(window.timeout_micros(), RELIABLE_TIMEOUT_MS_MAX * 1000);
    }
}
