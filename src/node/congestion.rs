//! How much of a bridge lies in the transport, below its scheduler: a congestion controller that watches what is
//! delivered and sets the send window by it (DESIGN section 7).
//!
//! Cubic (RFC 9438, as quinn has it) says how much may be in flight; [`SendWindow`] says how much may have been handed over and
//! not been acknowledged, which on a path with a deep buffer is far less. quinn keeps the controller to itself, so that
//! both ends of this share a few numbers: [`Below`].

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use glocal_core::sched::{Delivered, SendWindow};
use glocal_core::time::Time;
use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, Cubic, CubicConfig};
use quinn_proto::RttEstimator;

/// Makes the controllers of bridges.
#[derive(Debug, Default)]
pub(crate) struct Controllers;

impl ControllerFactory for Controllers {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let cubic = Cubic::new(Arc::new(CubicConfig::default()), now, current_mtu);
        let window = SendWindow::new(u64::from(current_mtu));
        let below = Below { window: AtomicU64::new(window.window()), ..Below::default() };
        let since = now;
        Box::new(Bounded { cubic, window, since, delivered: 0, rtt_micros: u64::MAX, below: Arc::new(below) })
    }
}

/// What the controller of a connection and the task that writes to it tell each other.
#[derive(Debug, Default)]
struct Below {
    /// Bytes that may have been handed over and not been acknowledged.
    window: AtomicU64,
    /// Bytes per second that are delivered; zero while it is not known.
    rate: AtomicU64,
    /// The size of packets; zero while it is not known.
    packet_bytes: AtomicU64,
    /// The configured rate in bytes per second; zero for none.
    configured: AtomicU64,
    is_idle: AtomicBool,
    was_idle: AtomicBool,
}

/// Cubic, and the send window beside it.
#[derive(Clone)]
struct Bounded {
    cubic: Cubic,
    window: SendWindow,
    since: Instant,
    /// Of the acknowledgements that are being processed: their bytes, and the shortest round trip.
    delivered: u64,
    rtt_micros: u64,
    below: Arc<Below>,
}

impl Controller for Bounded {
    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
        self.delivered += bytes;
        self.rtt_micros = self.rtt_micros.min(micros(now, sent));
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.cubic.on_end_acks(now, in_flight, app_limited, largest);
        if self.delivered == 0 {
            return;
        }
        let delivered = Delivered {
            bytes: std::mem::take(&mut self.delivered),
            rtt_micros: std::mem::replace(&mut self.rtt_micros, u64::MAX),
            limited: self.below.was_idle.swap(self.below.is_idle.load(Ordering::Relaxed), Ordering::Relaxed),
        };
        let configured = self.below.configured.load(Ordering::Relaxed);
        self.window.set_rate((configured > 0).then_some(configured));
        self.window.on_delivered(delivered, Time(micros(now, self.since)));
        self.below.window.store(self.window.window(), Ordering::Relaxed);
        self.below.rate.store(self.window.known_rate().unwrap_or(0), Ordering::Relaxed);
    }

    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.cubic.on_sent(now, bytes, last_packet_number);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.cubic.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.cubic.on_mtu_update(new_mtu);
        self.window.set_packet_bytes(u64::from(new_mtu));
        self.below.packet_bytes.store(u64::from(new_mtu), Ordering::Relaxed);
    }

    fn window(&self) -> u64 {
        self.cubic.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

fn micros(now: Instant, before: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(before).as_micros()).unwrap_or(u64::MAX)
}

/// The writing task's end of one connection's send window.
#[derive(Debug)]
pub(crate) struct Window {
    connection: quinn::Connection,
    below: Arc<Below>,
    /// As the connection has it.
    set: u64,
}

impl Window {
    /// The window of a connection whose controller [`Controllers`] made; of any other one it stays as it is.
    pub(crate) fn of(connection: &quinn::Connection) -> Self {
        let controller = connection.congestion_state().into_any().downcast::<Bounded>();
        let below = controller.map(|bounded| bounded.below).unwrap_or_default();
        Self { connection: connection.clone(), below, set: 0 }
    }

    /// Whether the connection's controller is one of these.
    #[cfg(test)]
    pub(crate) fn is_watched(&self) -> bool {
        self.below.window.load(Ordering::Relaxed) > 0
    }

    /// The edge's configured rate in bytes per second.
    pub(crate) fn set_rate(&self, configured: Option<u64>) {
        self.below.configured.store(configured.unwrap_or(0), Ordering::Relaxed);
    }

    /// Gives the connection its window, where that has changed by a sixteenth: it takes the connection's lock.
    pub(crate) fn apply(&mut self) {
        let window = self.below.window.load(Ordering::Relaxed);
        if window > 0 && window.abs_diff(self.set) > self.set / 16 {
            self.connection.set_send_window(window);
            self.set = window;
        }
    }

    /// The rate that is configured or was measured, in bytes per second; `None` while it is not known.
    pub(crate) fn rate(&self) -> Option<u64> {
        Some(self.below.rate.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }

    /// The size of packets, once it has been found out.
    pub(crate) fn packet_bytes(&self) -> Option<usize> {
        usize::try_from(self.below.packet_bytes.load(Ordering::Relaxed)).ok().filter(|bytes| *bytes > 0)
    }

    /// Whether there is nothing to write: what is delivered meanwhile does not tell what could be.
    pub(crate) fn mark_idle(&self, is_idle: bool) {
        self.below.is_idle.store(is_idle, Ordering::Relaxed);
        if is_idle {
            self.below.was_idle.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_with_nothing_to_write_is_told_with_the_next_bytes_that_are_delivered() {
        let now = Instant::now();
        let built = Arc::new(Controllers).build(now, 1_200).into_any().downcast::<Bounded>();
        let mut bounded = built.unwrap_or_else(|_| panic!("another controller"));
        let was_idle = |bounded: &Bounded| bounded.below.was_idle.load(Ordering::Relaxed);
        bounded.below.was_idle.store(true, Ordering::Relaxed);
        bounded.on_end_acks(now, 0, false, None);
        assert!(was_idle(&bounded), "nothing was delivered that it could be told with");
        (bounded.delivered, bounded.rtt_micros) = (1_200, 500);
        bounded.on_end_acks(now, 0, false, Some(1));
        assert!(!was_idle(&bounded) && bounded.delivered == 0);
    }
}
