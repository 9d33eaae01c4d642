//! Whether this tool itself got the processor when it wanted it: a thread that wants to wake every millisecond and notes
//! how late it does. Latencies that are no longer than that say nothing about a mesh.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::latency::Latency;

/// Between two wakes.
const PERIOD: Duration = Duration::from_millis(1);
/// A lateness that the timer alone explains, in nanoseconds.
const USUAL_NS: u64 = 500_000;

/// The thread, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    late: Arc<Mutex<Latency>>,
    going: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts watching.
    pub(crate) fn start() -> Self {
        let (late, going) = (Arc::<Mutex<Latency>>::default(), Arc::new(AtomicBool::new(true)));
        let thread = {
            let (late, going) = (Arc::clone(&late), Arc::clone(&going));
            std::thread::spawn(move || {
                while going.load(Ordering::Relaxed) {
                    let wanted = Instant::now() + PERIOD;
                    std::thread::sleep(PERIOD);
                    late.lock().unwrap_or_else(PoisonError::into_inner).record_duration(wanted.elapsed());
                }
            })
        };
        Self { late, going, thread: Some(thread) }
    }

    /// How late the wakes were since the last call.
    pub(crate) fn take(&self) -> Latency {
        std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.going.store(false, Ordering::Relaxed);
        // It cannot have failed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Whether `late`, the tool's own lateness, is a good part of the `measured` latency: a quarter at the 99th percentile.
pub(crate) fn starved(late: &Latency, measured: &Latency) -> bool {
    let late = late.quantile_ns(0.99);
    late > USUAL_NS && late > measured.quantile_ns(0.99) / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ns: u64) -> Latency {
        let mut latency = Latency::default();
        latency.record(ns);
        latency
    }

    #[test]
    fn a_tool_is_starved_when_its_own_lateness_could_be_what_it_measures() {
        assert!(starved(&of(1_000_000), &of(2_000_000)));
        assert!(!starved(&of(1_000_000), &of(20_000_000)));
        assert!(!starved(&of(100_000), &of(150_000)), "a timer is never exact");
    }

    #[test]
    fn wakes_are_noted_until_they_are_taken() {
        let watch = Watch::start();
        let deadline = Instant::now() + Duration::from_secs(20);
        while watch.take().count() == 0 {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }
}
