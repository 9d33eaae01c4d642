//! `glocal bench idle`: opens sessions and holds them, to see what they cost a broker that has nothing to do.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use glocal_core::limits::BENCH_SESSIONS_MAX;
use glocal_core::name::Class;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::cpu::Cpu;
use super::link::{Link, LinkArgs, Place, Wants};
use super::progress::Progress;
use super::report::{self, ReportArgs, check_process, runtime, watching};
use crate::cli::connect::seconds;
use crate::cli::{WithHint as _, usage};

const EXAMPLES: &str = "\
Examples:
  glocal bench idle --sessions 5000 --pid $(pidof glocal)
  glocal bench idle --sessions 100 --hold 60 --json

With --pid, on Linux, it reads the broker's resident memory before and after, and its CPU while the sessions are held:
start the broker afresh for each run, since memory that it had before is used again, and let nobody else use it meanwhile.
Many sessions need 'ulimit -n' to be high, at both ends.";

/// Handshakes at once.
const AT_ONCE: usize = 64;
/// How long memory may settle before and after.
const SETTLE: Duration = Duration::from_millis(500);

/// Arguments of `glocal bench idle`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Sessions.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_SESSIONS_MAX)))]
    sessions: u32,
    /// Seconds to hold them.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    hold: Duration,
    /// The broker's process on this machine.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    link: LinkArgs,
}

/// What it came to.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    opened: u64,
    lost: u64,
    opened_in_s: f64,
    /// Resident memory of the broker before and after.
    resident: Option<(u64, u64)>,
    /// Seconds of CPU while they were held.
    cpu_s: Option<f64>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.hold.is_zero() {
        return Err(usage("--hold 0 measures nothing", "give it some seconds"));
    }
    args.pid.map_or(Ok(()), check_process)?;
    let place = args.link.place()?;
    let runtime = runtime("load", 2)?;
    let mut progress = Progress::start(args.report.progress);
    let figures = runtime.block_on(hold(args, &place, &mut progress))?;
    progress.end();
    runtime.shutdown_background();
    tell(args, &figures)
}

async fn hold(args: &Args, place: &Place, progress: &mut Progress) -> anyhow::Result<Figures> {
    // The first pays for what is made once.
    let first = place.connect(Wants::once(Class::Live)).await?;
    tokio::time::sleep(SETTLE).await;
    let before = args.pid.map(resident).transpose()?;
    let start = Instant::now();
    let links = open_all(args, place, progress).await?;
    let opened_in_s = start.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    let cpu = args.pid.map(|pid| Cpu::read(&[("broker".to_owned(), pid)]));
    let held = AtomicU64::new(0);
    watching(progress, "holding", (&held, 1), tokio::time::sleep(args.hold)).await;
    let cpu_s = cpu.and_then(|cpu| cpu.since().into_iter().find(|(name, _)| name == "broker")).map(|(_, used)| used);
    let after = args.pid.map(resident).transpose()?;
    let lost = links.iter().filter(|link| link.is_closed()).count() as u64;
    let figures = Figures { opened: links.len() as u64, lost, opened_in_s, resident: before.zip(after), cpu_s };
    first.close().await;
    let mut closing = JoinSet::new();
    for link in links {
        closing.spawn(async move { link.close().await });
    }
    closing.join_all().await;
    Ok(figures)
}

async fn open_all(args: &Args, place: &Place, progress: &mut Progress) -> anyhow::Result<Vec<Link>> {
    let (gate, done) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::<AtomicU64>::default());
    let mut opening = JoinSet::new();
    for number in 1..=args.sessions {
        let (gate, done, place) = (Arc::clone(&gate), Arc::clone(&done), place.clone());
        opening.spawn(async move {
            let _turn = gate.acquire().await?;
            let link = place.connect(Wants::once(Class::Live)).await.with_context(|| format!("session {number}"))?;
            done.fetch_add(1, Ordering::Relaxed);
            anyhow::Ok(link)
        });
    }
    let all = async {
        let mut links = Vec::new();
        while let Some(opened) = opening.join_next().await {
            let hint = "the broker, the tenant or 'ulimit -n' may allow fewer sessions";
            links.push(opened?.hint(hint)?);
        }
        anyhow::Ok(links)
    };
    watching(progress, "opening", (&done, u64::from(args.sessions)), all).await
}

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> anyhow::Result<u64> {
    let file = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read '{file}'"))?;
    resident_of(&text).with_context(|| format!("'{file}' does not tell resident memory"))
}

/// `VmRSS` of the text of `/proc/<pid>/status`, in bytes.
fn resident_of(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn tell(args: &Args, figures: &Figures) -> anyhow::Result<ExitCode> {
    let sessions = figures.opened.max(1) as f64;
    let growth = figures.resident.map(|(before, after)| after as f64 - before as f64);
    let per_session = growth.map(|growth| growth / sessions);
    let cpu = figures.cpu_s.map(|seconds| seconds / args.hold.as_secs_f64() / sessions * 1e6);
    let json = json!({
        "mode": "idle", "protocol": args.link.protocol.as_str(), "sessions": figures.opened, "lost": figures.lost,
        "opened_in_s": figures.opened_in_s, "held_s": args.hold.as_secs_f64(),
        "resident_before_bytes": figures.resident.map(|(before, _)| before),
        "resident_after_bytes": figures.resident.map(|(_, after)| after),
        "resident_per_session_bytes": per_session, "cpu_us_per_session_per_s": cpu,
    });
    let mut lines = vec![format!(
        "{} sessions opened in {:.3} s and held for {} s, {} lost",
        figures.opened,
        figures.opened_in_s,
        args.hold.as_secs_f64(),
        figures.lost
    )];
    if let (Some((before, after)), Some(per_session)) = (figures.resident, per_session) {
        let mib = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
        lines.push(format!(
            "  the broker's memory grew from {:.1} to {:.1} MiB: {per_session:.0} bytes a session",
            mib(before),
            mib(after)
        ));
    }
    if let Some(cpu) = cpu {
        lines.push(format!("  it used {cpu:.2} µs of CPU a session and second"));
    }
    report::print(args.report, &json, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident_of("Name:\tglocal\nVmRSS:\t    1020 kB\nThreads: 3\n"), Some(1_044_480));
        assert_eq!((resident_of("Name:\tx\n"), resident_of("VmRSS: many kB\n")), (None, None));
    }
}
