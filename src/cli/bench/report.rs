//! What the modes share of flags and of printing.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use glocal_core::limits::MAX_PAYLOAD_BYTES_CEILING;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use super::cpu::Cpu;
use super::head::HEAD_BYTES;
use super::progress::Progress;
use super::spread::{ends, median, spread};
use crate::cli::output::Out;
use crate::cli::usage;

/// Flags about output.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct ReportArgs {
    /// Prints one JSON object; its keys name their units.
    #[arg(long)]
    pub(crate) json: bool,
    /// Tells progress on standard error even when it is no terminal.
    #[arg(long)]
    pub(crate) progress: bool,
}

/// Processes whose CPU is reported, on Linux.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct CpuArgs {
    /// A process on this machine whose CPU is reported; repeat for more.
    #[arg(long = "broker-pid", value_name = "NAME=PID", value_parser = named_process)]
    pub(crate) brokers: Vec<(String, u32)>,
}

impl CpuArgs {
    /// They must be there.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.brokers.iter().try_for_each(|(_, pid)| check_process(*pid))
    }

    /// Reads their counters, and this program's.
    pub(crate) fn read(&self) -> Cpu {
        Cpu::read(&self.brokers)
    }
}

fn named_process(text: &str) -> Result<(String, u32), String> {
    let (name, pid) = text.split_once('=').ok_or("NAME=PID is needed")?;
    Ok((name.to_owned(), pid.parse().map_err(|_| format!("'{pid}' is no process number"))?))
}

/// A process that is to be looked at must be there.
pub(crate) fn check_process(pid: u32) -> anyhow::Result<()> {
    if std::path::Path::new(&format!("/proc/{pid}/status")).exists() {
        return Ok(());
    }
    Err(usage(format!("there is no process {pid} to look at"), "CPU and memory are read from /proc on this machine"))
}

/// A figure of several rounds as a JSON object.
pub(crate) fn rounds_json(values: &[f64]) -> Value {
    let (least, greatest) = ends(values);
    json!({ "median": median(values), "min": least, "max": greatest, "rounds": values })
}

/// CPU of processes for each million of something, by name: what rounds used, one list of processes each.
pub(crate) fn cpu_json(rounds: &[Vec<(String, f64)>]) -> Value {
    let names = rounds.first().into_iter().flatten().map(|(name, _)| name);
    Value::Object(names.map(|name| (name.clone(), rounds_json(&cpu_of(rounds, name)))).collect::<Map<_, _>>())
}

/// The same for people.
pub(crate) fn cpu_lines(rounds: &[Vec<(String, f64)>], unit: &str) -> Vec<String> {
    let names = rounds.first().into_iter().flatten().map(|(name, _)| name);
    names.map(|name| format!("  CPU of {name}: {} s {unit}", spread(&cpu_of(rounds, name), 2))).collect()
}

fn cpu_of(rounds: &[Vec<(String, f64)>], name: &str) -> Vec<f64> {
    rounds.iter().flatten().filter(|(known, _)| known == name).map(|(_, seconds)| *seconds).collect()
}

/// Prints lines, or the JSON object where that was asked for.
pub(crate) fn print(args: ReportArgs, json: &Value, lines: &[String]) -> anyhow::Result<ExitCode> {
    let mut out = Out::new();
    if args.json {
        out.json(json)?;
    } else {
        lines.iter().try_for_each(|line| out.line(line))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Tells progress while a future runs, by a counter that it moves.
pub(crate) async fn watching<T>(
    progress: &mut Progress,
    text: &str,
    (done, all): (&AtomicU64, u64),
    future: impl Future<Output = T>,
) -> T {
    tokio::pin!(future);
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            output = &mut future => return output,
            _ = tick.tick() => progress.tell(text, done.load(Ordering::Relaxed), all),
        }
    }
}

/// A runtime of its own for one part of the load, so that the parts do not wait for each other.
pub(crate) fn runtime(name: &str, threads: usize) -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name(name)
        .enable_all()
        .build()
        .context("cannot start a runtime")
}

/// A number that another run does not have, for subjects and flows.
pub(crate) fn run_number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Parses a payload's size: bytes, or a number of KiB or MiB.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let (number, unit) = match (text.strip_suffix("KiB"), text.strip_suffix("MiB")) {
        (Some(number), _) => (number, 1024),
        (_, Some(number)) => (number, 1024 * 1024),
        _ => (text.strip_suffix('B').unwrap_or(text), 1),
    };
    number
        .trim()
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .filter(|bytes| *bytes <= MAX_PAYLOAD_BYTES_CEILING as usize)
        .ok_or_else(|| format!("a size such as 256 or 64KiB is needed, at most {MAX_PAYLOAD_BYTES_CEILING} bytes"))
}

/// As [`size`], for payloads that carry a number and a time.
pub(crate) fn size_with_head(text: &str) -> Result<usize, String> {
    match size(text)? {
        bytes if bytes < HEAD_BYTES => {
            Err(format!("at least {HEAD_BYTES} bytes are needed: each message carries its number and when it was due"))
        }
        bytes => Ok(bytes),
    }
}

/// A count with a unit that fits.
pub(crate) fn per_second(value: f64, unit: &str) -> String {
    match value {
        v if v >= 1e9 => format!("{:.2} G{unit}/s", v / 1e9),
        v if v >= 1e6 => format!("{:.2} M{unit}/s", v / 1e6),
        v if v >= 1e3 => format!("{:.1} k{unit}/s", v / 1e3),
        v => format!("{v:.0} {unit}/s").replace("  ", " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_a_ceiling() {
        for (text, bytes) in [("16", 16), ("16B", 16), ("1KiB", 1024), ("1 MiB", 1_048_576), ("0", 0)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "-1", "1.5", "1KB", "9999999999999999999MiB", "17MiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(size_with_head("16"), Ok(16));
        assert!(size_with_head("15").unwrap_err().contains("at least 16 bytes"));
    }

    #[test]
    fn rates_are_short() {
        assert_eq!(per_second(12_345_678.0, "B"), "12.35 MB/s");
        assert_eq!((per_second(99.6, "B"), per_second(1_500.0, "")), ("100 B/s".to_owned(), "1.5 k/s".to_owned()));
    }
}
