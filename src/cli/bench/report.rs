//! What the modes share of flags and of printing.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::process::ExitCode;

use anyhow::Context as _;
use glocal_core::limits::MAX_PAYLOAD_BYTES_CEILING;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::head::HEAD_BYTES;
use crate::cli::output::Out;

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
