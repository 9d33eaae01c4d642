//! The CPU that processes have used, from `/proc`.

use std::fs;

/// One reading of this program and of the brokers.
#[derive(Debug)]
pub(crate) struct Cpu {
    processes: Vec<(String, u32)>,
    seconds: Vec<f64>,
}

impl Cpu {
    /// Reads the counters of this program and of the brokers.
    pub(crate) fn read(brokers: &[(String, u32)]) -> Self {
        let mut processes = vec![("load".to_owned(), std::process::id())];
        processes.extend_from_slice(brokers);
        let seconds = processes.iter().map(|(_, pid)| used(*pid)).collect();
        Self { processes, seconds }
    }

    /// Seconds used since, by name, this program first.
    pub(crate) fn since(&self) -> Vec<(String, f64)> {
        let used_since =
            self.processes.iter().zip(&self.seconds).map(|((name, pid), before)| (name, used(*pid) - before));
        used_since.map(|(name, seconds)| (name.clone(), seconds)).collect()
    }
}

/// Nanoseconds on a CPU of all threads, which is finer than the clock ticks of `/proc/<pid>/stat`.
fn used(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1e9
}
