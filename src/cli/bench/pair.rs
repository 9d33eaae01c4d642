//! `glocal bench pair`: as much as goes through from one publisher to one subscriber, with a bounded number of messages on
//! their way, so that nothing is dropped: a closed loop, which measures throughput and CPU, not latency.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use glocal_core::name::Class;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::ends::{first, fits, same_tenant};
use super::link::{Arrived, Feed, Link, LinkArgs, Wants};
use super::progress::Progress;
use super::report::{
    self, CpuArgs, ReportArgs, cpu_json, cpu_lines, per_second, rounds_json, run_number, runtime, watching,
};
use super::spread::{ends, median};
use crate::cli::{context, message};

const EXAMPLES: &str = "\
Examples:
  glocal bench pair                                     on one broker
  glocal bench pair --context here --to there --size 16 --size 256 --size 1KiB
  glocal bench pair --broker-pid broker=$(pidof glocal) --rounds 5 --json

Each round sends --messages of each size in turn; medians and spreads are over rounds, after one that does not count.";

/// How long nothing may arrive.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most messages for one turn of the window.
const BURST: u32 = 64;
/// Most bytes on their way, so that a full window fits the lane of any class.
const WINDOW_BYTES: usize = 1024 * 1024;

/// Arguments of `glocal bench pair`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The saved context of the subscriber; by default it connects as the publisher does.
    #[arg(long, value_name = "CONTEXT", value_parser = context::name)]
    to: Option<String>,
    /// Bytes of each payload; repeat for more, they take turns.
    #[arg(long = "size", value_name = "BYTES", default_value = "256", value_parser = report::size)]
    sizes: Vec<usize>,
    /// Messages of one size in one round.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Rounds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Most messages on their way; fewer when they are large.
    #[arg(long, value_name = "N", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    window: u32,
    /// The class.
    #[arg(long, value_name = "CLASS", default_value = "live", value_parser = message::class)]
    class: Class,
    /// Threads of both connections.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    cpu: CpuArgs,
    #[command(flatten)]
    link: LinkArgs,
}

/// The figures of one size, round by round.
#[derive(Clone, Debug, Default)]
struct Figures {
    size: usize,
    messages_per_s: Vec<f64>,
    /// Seconds of each process for a million messages.
    cpu: Vec<Vec<(String, f64)>>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.cpu.check()?;
    let (from, to) = (args.link.place()?, args.link.saved_or_place(args.to.as_deref())?);
    let runtime = runtime("load", usize::from(args.threads))?;
    let mut progress = Progress::start(args.report.progress);
    let (figures, nodes) = runtime.block_on(async {
        let wants = Wants::once(args.class);
        let subscriber = to.connect(wants).await.context("the subscriber")?;
        let publisher = from.connect(wants).await.context("the publisher")?;
        same_tenant(&publisher, &subscriber)?;
        let largest = args.sizes.iter().copied().max().unwrap_or_default();
        fits(&publisher, largest, "--size")?;
        let nodes = (publisher.node(), subscriber.node());
        let figures = measure(args, &publisher, &subscriber, &mut progress).await?;
        publisher.close().await;
        subscriber.close().await;
        anyhow::Ok((figures, nodes))
    })?;
    progress.end();
    runtime.shutdown_background();
    tell(args, &figures, &nodes)
}

async fn measure(
    args: &Args,
    publisher: &Link,
    subscriber: &Link,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Figures>> {
    let subject = format!("bench.pair.{:x}", run_number());
    let mut figures: Vec<Figures> =
        args.sizes.iter().map(|size| Figures { size: *size, ..Figures::default() }).collect();
    for round in 0..=args.rounds {
        for (index, of_size) in figures.iter_mut().enumerate() {
            // A subject for each transfer: what is late of one is not counted in the next.
            let subject = format!("{subject}.{round}.{index}");
            let mut feed = subscriber.subscribe(&subject).await?;
            first(publisher, &mut feed, &subject, 0).await?;
            settle(&mut feed).await;
            let done = AtomicU64::new(0);
            let text = format!("round {round} of {}, {} B", args.rounds, of_size.size);
            let (cpu, start) = (args.cpu.read(), Instant::now());
            let transfer = transfer(args, publisher, &mut feed, (&subject, of_size.size), &done);
            watching(progress, &text, (&done, args.messages), transfer).await?;
            let took = start.elapsed().as_secs_f64();
            let million = args.messages as f64 / 1e6;
            // The first is a warm-up.
            if round > 0 {
                of_size.messages_per_s.push(args.messages as f64 / took);
                of_size.cpu.push(cpu.since().into_iter().map(|(name, seconds)| (name, seconds / million)).collect());
            }
        }
    }
    Ok(figures)
}

/// Takes what is still on its way of the first message, which may have been sent more than once.
async fn settle(feed: &mut Feed) {
    while tokio::time::timeout(Duration::from_millis(20), feed.next()).await.is_ok_and(|message| message.is_some()) {}
}

async fn transfer(
    args: &Args,
    publisher: &Link,
    feed: &mut Feed,
    (subject, size): (&str, usize),
    done: &AtomicU64,
) -> anyhow::Result<()> {
    let places = u32::try_from(WINDOW_BYTES / size.max(1)).unwrap_or(u32::MAX).clamp(2, args.window.max(2));
    let burst = BURST.min(places / 2);
    let window = Arc::new(Semaphore::new(places as usize));
    let sending = {
        let (publisher, window, subject) = (publisher.clone(), Arc::clone(&window), subject.to_owned());
        let mut left = args.messages;
        tokio::spawn(async move {
            let payload = vec![0x2e; size];
            while left > 0 {
                let now = u32::try_from(left).unwrap_or(u32::MAX).min(burst);
                window.acquire_many(now).await?.forget();
                for _ in 0..now {
                    publisher.publish(&subject, &payload).await?;
                }
                left -= u64::from(now);
            }
            anyhow::Ok(())
        })
    };
    let mut received = 0u64;
    while received < args.messages {
        let next = tokio::time::timeout(PATIENCE, feed.next()).await;
        let Ok(Some(message)) = next else {
            sending.abort();
            anyhow::bail!("{} of {} messages of {size} B are missing", args.messages - received, args.messages);
        };
        let mut arrived = 1;
        is_of(&message, size)?;
        while arrived < burst
            && let Some(another) = feed.try_next()
        {
            is_of(&another, size)?;
            arrived += 1;
        }
        received += u64::from(arrived);
        done.store(received, Ordering::Relaxed);
        window.add_permits(arrived as usize);
    }
    sending.await?
}

fn is_of(message: &Arrived, size: usize) -> anyhow::Result<()> {
    let bytes = message.payload().len();
    anyhow::ensure!(bytes == size, "a message of {bytes} B came instead of one of {size} B");
    Ok(())
}

fn tell(args: &Args, figures: &[Figures], (from, to): &(String, String)) -> anyhow::Result<ExitCode> {
    let json = json!({
        "mode": "pair", "protocol": args.link.protocol.as_str(), "class": args.class.as_str(), "from": from, "to": to,
        "messages": args.messages, "rounds": args.rounds, "window": args.window,
        "sizes": figures.iter().map(Figures::json).collect::<Vec<_>>(),
    });
    let mut lines = vec![format!(
        "{from} → {to}: {} rounds of {} messages in {}, medians with least and greatest",
        args.rounds,
        args.messages,
        args.class.as_str()
    )];
    lines.extend(figures.iter().flat_map(Figures::lines));
    report::print(args.report, &json, &lines)
}

impl Figures {
    fn json(&self) -> Value {
        let bytes: Vec<f64> = self.messages_per_s.iter().map(|rate| rate * self.size as f64).collect();
        json!({
            "size_bytes": self.size,
            "messages_per_s": rounds_json(&self.messages_per_s),
            "bytes_per_s": rounds_json(&bytes),
            "cpu_s_per_million": cpu_json(&self.cpu),
        })
    }

    fn lines(&self) -> Vec<String> {
        let (least, greatest) = ends(&self.messages_per_s);
        let middle = median(&self.messages_per_s);
        let mut lines = vec![format!(
            "{} B: {} ({} to {}), {}",
            self.size,
            per_second(middle, "msg"),
            per_second(least, "msg"),
            per_second(greatest, "msg"),
            per_second(middle * self.size as f64, "B")
        )];
        lines.extend(cpu_lines(&self.cpu, "a million messages"));
        lines
    }
}
