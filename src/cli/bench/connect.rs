//! `glocal bench connect`: new connections each second, and how long each takes from the first packet to the welcome.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use glocal_core::limits::BENCH_CONCURRENCY_MAX;
use glocal_core::name::Class;
use serde_json::{Map, json};
use tokio::task::JoinSet;

use super::latency::Latency;
use super::link::{LinkArgs, Place, Wants};
use super::progress::Progress;
use super::report::{self, CpuArgs, ReportArgs, cpu_json, cpu_lines, per_second, runtime, watching};

const EXAMPLES: &str = "\
Examples:
  glocal bench connect                                  1000 connections, eight at a time
  glocal bench connect -n 5000 --concurrency 32 --broker-pid broker=$(pidof glocal)
  glocal bench connect --protocol nats --server localhost:4222 --json

Each connection is a full handshake with both certificates, and is closed when it is welcomed. A broker may limit
connections, of one tenant or of all: what it turns away counts as failed.";

/// Arguments of `glocal bench connect`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Connections.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Handshakes under way at once.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=i64::from(BENCH_CONCURRENCY_MAX)))]
    concurrency: u16,
    /// Threads.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    cpu: CpuArgs,
    #[command(flatten)]
    link: LinkArgs,
}

/// What one task's connections came to.
#[derive(Debug, Default)]
struct Dialled {
    latency: Latency,
    failed: u64,
    failure: Option<anyhow::Error>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.cpu.check()?;
    let place = args.link.place()?;
    let runtime = runtime("load", usize::from(args.threads))?;
    let mut progress = Progress::start(args.report.progress);
    let (cpu, start) = (args.cpu.read(), Instant::now());
    let mut dialled = runtime.block_on(dial_all(args, &place, &mut progress))?;
    let took = start.elapsed().as_secs_f64();
    let cpu = cpu.since();
    progress.end();
    runtime.shutdown_background();
    if let Some(error) = dialled.failure.take().filter(|_| dialled.latency.count() == 0) {
        return Err(error);
    }
    tell(args, &dialled, took, cpu)
}

async fn dial_all(args: &Args, place: &Place, progress: &mut Progress) -> anyhow::Result<Dialled> {
    let (begun, done) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let (wants, count) = (Wants::once(Class::Live), u64::from(args.connections));
    let mut tasks = JoinSet::new();
    for _ in 0..args.concurrency {
        let (begun, done, place) = (Arc::clone(&begun), Arc::clone(&done), place.clone());
        tasks.spawn(async move {
            let mut dialled = Dialled::default();
            while begun.fetch_add(1, Ordering::Relaxed) < count {
                let start = Instant::now();
                match place.connect(wants).await {
                    Ok(link) => {
                        dialled.latency.record_duration(start.elapsed());
                        // Its end is not measured, and does not hold up the next.
                        tokio::spawn(async move { link.close().await });
                    }
                    Err(error) => {
                        dialled.failed += 1;
                        dialled.failure.get_or_insert(error);
                    }
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            dialled
        });
    }
    let all = async {
        let mut all = Dialled::default();
        while let Some(dialled) = tasks.join_next().await {
            let dialled = dialled?;
            all.latency.merge(&dialled.latency);
            all.failed += dialled.failed;
            all.failure = all.failure.or(dialled.failure);
        }
        anyhow::Ok(all)
    };
    watching(progress, "connecting", (&done, count), all).await
}

fn tell(args: &Args, dialled: &Dialled, took: f64, cpu: Vec<(String, f64)>) -> anyhow::Result<ExitCode> {
    let (made, each) = (dialled.latency.count(), f64::from(args.connections));
    // Those that were turned away have cost, too.
    let cpu = [cpu.into_iter().map(|(name, seconds)| (name, seconds / each * 1e6)).collect::<Vec<_>>()];
    let mut object = Map::new();
    dialled.latency.put(&mut object);
    let rate = made as f64 / took.max(1e-6);
    let json = json!({
        "mode": "connect", "protocol": args.link.protocol.as_str(), "concurrency": args.concurrency,
        "connections": made, "failed": dialled.failed, "seconds": took, "connections_per_s": rate,
        "handshake": object, "cpu_s_per_million": cpu_json(&cpu),
    });
    let mut lines = vec![
        format!("{made} connections in {took:.3} s: {}, {} failed", per_second(rate, ""), dialled.failed),
        format!("  each took {}", dialled.latency.line()),
    ];
    lines.extend(dialled.latency.plot());
    lines.extend(cpu_lines(&cpu, "a million connections"));
    report::print(args.report, &json, &lines)
}
