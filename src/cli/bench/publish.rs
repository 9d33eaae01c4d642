//! `glocal bench pub`: publishes at a rate, or as fast as the system takes it.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use glocal_core::limits::BENCH_FLOW_MESSAGES_MAX;
use glocal_core::name::Class;
use serde_json::{Map, json};
use tokio::runtime::Runtime;

use super::ends::fits;
use super::head::Head;
use super::latency::Latency;
use super::link::{Counts, Link, LinkArgs, Wants};
use super::pace::{Clock, Schedule};
use super::progress::Progress;
use super::report::{self, ReportArgs, per_second, run_number, runtime, watching};
use crate::cli::connect::seconds;
use crate::cli::{WithHint as _, message, publish, usage};

const EXAMPLES: &str = "\
Examples:
  glocal bench pub --count 1000000                      as fast as the broker takes them
  glocal bench pub --rate 20000/s --duration 30 --publishers 4
  glocal bench pub --class bulk --size 64KiB --json

Each payload begins with its number and the moment it was due, which 'glocal bench sub' reads.";

/// How long a run without --count and --duration takes.
const DURATION: Duration = Duration::from_secs(10);
/// How long acknowledgements may take after the last message.
const SETTLE: Duration = Duration::from_secs(30);

/// Arguments of `glocal bench pub`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The subject.
    #[arg(default_value = "bench.pub")]
    subject: String,
    /// Bytes of each payload.
    #[arg(long, value_name = "BYTES", default_value = "256", value_parser = report::size_with_head)]
    size: usize,
    /// Messages of all publishers together.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=u64::from(BENCH_FLOW_MESSAGES_MAX)))]
    count: Option<u64>,
    /// Seconds to publish; 10 when there is no --count.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Messages per second of all publishers together; without it as fast as the system takes them.
    #[arg(long, value_name = "N/s", value_parser = publish::rate)]
    rate: Option<f64>,
    /// Publishers, each with a connection of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    publishers: u16,
    /// The class.
    #[arg(long, value_name = "CLASS", default_value = "live", value_parser = message::class)]
    class: Class,
    /// Threads of the connections.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    link: LinkArgs,
}

/// One publisher's part.
#[derive(Clone, Debug)]
struct Part {
    link: Link,
    subject: String,
    size: usize,
    flow: u16,
    /// Most messages.
    count: u64,
    /// When it ends at the latest.
    until: Instant,
    clock: Clock,
    done: Arc<AtomicU64>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.duration.is_some_and(|duration| duration.is_zero()) {
        return Err(usage("--duration 0 measures nothing", "give it some seconds"));
    }
    let place = args.link.place()?;
    let runtime = runtime("load", usize::from(args.threads))?;
    let mut links = Vec::new();
    for _ in 0..args.publishers {
        let link = runtime.block_on(place.connect(Wants::once(args.class)))?;
        fits(&link, args.size, "--size")?;
        links.push(link);
    }
    let mut progress = Progress::start(args.report.progress);
    let start = Instant::now();
    let late = publish_all(args, &runtime, &links, start, &mut progress)?;
    runtime.block_on(async {
        for link in &links {
            link.settle(SETTLE).await.context("the broker did not confirm the messages")?;
        }
        anyhow::Ok(())
    })?;
    let took = start.elapsed().as_secs_f64();
    progress.end();
    let counts = links.iter().map(Link::counts).fold(Counts::default(), Counts::plus);
    runtime.block_on(async {
        for link in &links {
            link.close().await;
        }
    });
    runtime.shutdown_background();
    if counts.refused >= counts.published {
        let all = Err::<(), _>(anyhow::anyhow!("all {} messages were refused", counts.published));
        all.hint("'glocal pub' to the same subject says why")?;
    }
    tell(args, &counts, took, &late)
}

fn publish_all(
    args: &Args,
    runtime: &Runtime,
    links: &[Link],
    start: Instant,
    progress: &mut Progress,
) -> anyhow::Result<Latency> {
    let (publishers, done) = (u64::from(args.publishers), Arc::<AtomicU64>::default());
    let duration = args.duration.or_else(|| args.count.is_none().then_some(DURATION));
    let until = duration.and_then(|duration| start.checked_add(duration));
    let all = match (args.count, args.rate, duration) {
        (count, Some(rate), Some(duration)) => {
            Schedule::new(start, rate).within(duration).min(count.unwrap_or(u64::MAX))
        }
        (Some(count), ..) => count,
        (None, ..) => u64::from(BENCH_FLOW_MESSAGES_MAX) * publishers,
    };
    let base = run_number().to_le_bytes();
    let base = u16::from_le_bytes([base[0], base[1]]);
    let mut threads = Vec::new();
    for (number, link) in (0..publishers).zip(links) {
        let part = Part {
            link: link.clone(),
            subject: args.subject.clone(),
            size: args.size,
            flow: base.wrapping_add(u16::try_from(number).unwrap_or_default()),
            count: (all + publishers - 1 - number) / publishers,
            until: until.unwrap_or_else(|| start + Duration::from_secs(365 * 86_400)),
            clock: Clock::start(),
            done: Arc::clone(&done),
        };
        // Each publisher's messages lie evenly between those of the others.
        let schedule = args.rate.map(|rate| {
            let rate_each = rate / publishers as f64;
            Schedule::new(start + Duration::from_secs_f64(number as f64 / rate), rate_each)
        });
        let handle = runtime.handle().clone();
        threads.push(std::thread::spawn(move || match schedule {
            Some(schedule) => handle.block_on(part.paced(schedule)),
            None => handle.block_on(part.unpaced()),
        }));
    }
    runtime.block_on(watching(progress, "publishing", (&done, all), async {
        while threads.iter().any(|thread| !thread.is_finished()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }));
    let mut late = Latency::default();
    for thread in threads {
        late.merge(&thread.join().map_err(|_| anyhow::anyhow!("a publisher has failed"))??);
    }
    Ok(late)
}

impl Part {
    /// Follows the clock; this thread runs nothing else. Returns how long after it was due each message was taken by its
    /// connection.
    async fn paced(self, schedule: Schedule) -> anyhow::Result<Latency> {
        let mut late = Latency::default();
        let mut payload = vec![0x2e; self.size];
        for number in 0..self.count {
            let due = schedule.due(number);
            schedule.wait(number);
            self.publish(&mut payload, number, due).await?;
            late.record_duration(due.elapsed());
        }
        Ok(late)
    }

    async fn unpaced(self) -> anyhow::Result<Latency> {
        let mut payload = vec![0x2e; self.size];
        for number in 0..self.count {
            let now = Instant::now();
            if now >= self.until {
                break;
            }
            self.publish(&mut payload, number, now).await?;
        }
        Ok(Latency::default())
    }

    async fn publish(&self, payload: &mut [u8], number: u64, due: Instant) -> anyhow::Result<()> {
        let head =
            Head { flow: self.flow, number: u32::try_from(number).unwrap_or(u32::MAX), due: self.clock.at_ns(due) };
        head.write(payload);
        self.link.publish(&self.subject, payload).await.with_context(|| format!("message {}", number + 1))?;
        self.done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn tell(args: &Args, counts: &Counts, took: f64, late: &Latency) -> anyhow::Result<ExitCode> {
    let rate = counts.published as f64 / took.max(1e-6);
    let bytes = rate * args.size as f64;
    let mut object = Map::new();
    late.put(&mut object);
    let json = json!({
        "mode": "pub", "protocol": args.link.protocol.as_str(), "class": args.class.as_str(), "size_bytes": args.size,
        "publishers": args.publishers, "rate_per_s": args.rate, "seconds": took,
        "published": counts.published, "refused": counts.refused, "unacknowledged": counts.unacknowledged,
        "messages_per_s": rate, "bytes_per_s": bytes, "taken_after_due": args.rate.map(|_| object),
    });
    let mut lines = vec![format!(
        "published {} messages of {} B in {took:.3} s: {}, {}",
        counts.published,
        args.size,
        per_second(rate, "msg"),
        per_second(bytes, "B")
    )];
    if counts.refused + counts.unacknowledged > 0 {
        lines.push(format!("  {} refused, {} without an acknowledgement", counts.refused, counts.unacknowledged));
    }
    if args.rate.is_some() {
        lines.push(format!("  taken by the connection after each was due: {}", late.line()));
    }
    report::print(args.report, &json, &lines)
}
