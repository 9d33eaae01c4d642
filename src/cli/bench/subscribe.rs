//! `glocal bench sub`: counts what arrives, finds gaps, and how old messages are.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use glocal_core::name::Class;
use serde_json::{Map, json};

use super::head::{Flows, Tally};
use super::link::{Counts, Feed, LinkArgs, Wants};
use super::pace::Clock;
use super::progress::Progress;
use super::report::{self, ReportArgs, per_second, runtime, watching};
use crate::cli::connect::{interrupted, seconds};
use crate::cli::message::tell_ready;

const EXAMPLES: &str = "\
Examples:
  glocal bench sub --count 1000000                      until a million has come
  glocal bench sub 'bench.>' --duration 30 --json
  glocal bench sub --count 1000 --duration 10 --ready-file /tmp/ready

Payloads of 'glocal bench pub' carry numbers and times: gaps between the numbers of each publisher are counted, and
latencies are true where publisher and subscriber share a clock. It ends at --count, after --duration or at Ctrl-C;
fewer than --count is exit code 1.";

/// Messages between two looks at the clock.
const BURST: usize = 256;

/// Arguments of `glocal bench sub`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The filter.
    #[arg(default_value = "bench.pub")]
    filter: String,
    /// Ends after this many messages.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Ends after so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Writes this file when the subscription stands.
    #[arg(long, value_name = "PATH")]
    ready_file: Option<PathBuf>,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    link: LinkArgs,
}

/// What was heard, and when the first and the last came.
#[derive(Debug, Default)]
struct Heard {
    flows: Flows,
    span: Option<(Instant, Instant)>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let place = args.link.place()?;
    let runtime = runtime("load", 2)?;
    let mut progress = Progress::start(args.report.progress);
    let (heard, counts) = runtime.block_on(async {
        let link = place.connect(Wants::once(Class::Live)).await?;
        let mut feed = link.subscribe(&args.filter).await?;
        tell_ready(args.ready_file.as_deref())?;
        let (mut heard, done) = (Heard::default(), AtomicU64::new(0));
        let listening = async {
            tokio::select! {
                ended = listen(&mut feed, &mut heard, args.count, &done) => ended,
                () = interrupted() => Ok(()),
                () = sleep_or_never(args.duration) => Ok(()),
            }
        };
        watching(&mut progress, "heard", (&done, args.count.unwrap_or(u64::MAX)), listening).await?;
        let counts = link.counts();
        link.close().await;
        anyhow::Ok((heard, counts))
    })?;
    progress.end();
    runtime.shutdown_background();
    tell(args, &heard, &counts)?;
    let all = args.count.is_none_or(|count| heard.flows.messages >= count);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn listen(feed: &mut Feed, heard: &mut Heard, count: Option<u64>, done: &AtomicU64) -> anyhow::Result<()> {
    let clock = Clock::start();
    while count.is_none_or(|count| heard.flows.messages < count) {
        let Some(message) = feed.next().await else { anyhow::bail!("the subscription has ended") };
        let now = Instant::now();
        let now_ns = clock.at_ns(now);
        heard.flows.add(message.payload(), now_ns);
        for _ in 1..BURST {
            if count.is_some_and(|count| heard.flows.messages >= count) {
                break;
            }
            let Some(message) = feed.try_next() else { break };
            heard.flows.add(message.payload(), clock.now_ns());
        }
        let last = Instant::now();
        heard.span = Some((heard.span.map_or(now, |(first, _)| first), last));
        done.store(heard.flows.messages, Ordering::Relaxed);
    }
    Ok(())
}

/// Waits `duration`, or for ever.
async fn sleep_or_never(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

fn tell(args: &Args, heard: &Heard, counts: &Counts) -> anyhow::Result<ExitCode> {
    let flows = &heard.flows;
    let seconds = heard.span.map_or(0.0, |(first, last)| (last - first).as_secs_f64());
    let per = |value: u64| if seconds > 0.0 { value as f64 / seconds } else { 0.0 };
    let (gaps, doubled, misordered) =
        (flows.sum(Tally::gaps), flows.sum(|tally| tally.doubled), flows.sum(|tally| tally.misordered));
    let mut latency = Map::new();
    flows.latency.put(&mut latency);
    let json = json!({
        "mode": "sub", "protocol": args.link.protocol.as_str(), "messages": flows.messages, "bytes": flows.bytes,
        "seconds": seconds, "messages_per_s": per(flows.messages), "bytes_per_s": per(flows.bytes),
        "publishers": flows.len(), "gaps": gaps, "doubled": doubled, "misordered": misordered,
        "unnumbered": flows.unnumbered, "dropped_by_client": counts.dropped, "latency": latency,
    });
    let mut lines = vec![
        format!(
            "{} messages, {} bytes in {seconds:.3} s: {}, {}",
            flows.messages,
            flows.bytes,
            per_second(per(flows.messages), "msg"),
            per_second(per(flows.bytes), "B")
        ),
        format!(
            "  of {} publishers: {gaps} missing between the first and the last, {doubled} doubled, {misordered} out of \
             order; {} without a number, {} dropped by this tool",
            flows.len(),
            flows.unnumbered,
            counts.dropped
        ),
    ];
    if flows.latency.count() > 0 {
        lines.push(format!("  since each was due, by its publisher's clock: {}", flows.latency.line()));
        lines.extend(flows.latency.plot());
    }
    report::print(args.report, &json, &lines)
}
