//! `glocal bench request`: how long replies take, at a rate (open loop) or with so many requests under way.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use glocal_core::limits::BENCH_FLOW_MESSAGES_MAX;
use glocal_core::name::Class;
use serde_json::{Map, json};

use super::ends::{FIRST, fits, same_tenant};
use super::latency::{Latency, shown};
use super::link::{Link, LinkArgs, Wants};
use super::pace::Schedule;
use super::progress::Progress;
use super::report::{self, CpuArgs, ReportArgs, cpu_json, cpu_lines, per_second, run_number, runtime, watching};
use super::watch::{Watch, starved};
use crate::cli::connect::seconds;
use crate::cli::{WithHint as _, context, message, publish};

const EXAMPLES: &str = "\
Examples:
  glocal bench request --rate 1000/s --duration 30      open loop, its own responder at the same broker
  glocal bench request --context here --to there --requests 10000
  glocal bench request --subject time.now --in-flight 16 --json

With --rate a latency counts from the moment the request was due. Without --subject it answers its own requests.";

/// How long a run without --requests and --duration takes.
const DURATION: Duration = Duration::from_secs(10);
/// Between two tries of the first request.
const AGAIN: Duration = Duration::from_millis(50);

/// Arguments of `glocal bench request`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The saved context of the responder; by default it connects as the requester does.
    #[arg(long, value_name = "CONTEXT", value_parser = context::name)]
    to: Option<String>,
    /// Asks those who answer this subject already, and answers nothing itself.
    #[arg(long, value_name = "SUBJECT", conflicts_with = "to")]
    subject: Option<String>,
    /// Bytes of requests, and of replies where it answers itself.
    #[arg(long, value_name = "BYTES", default_value = "256", value_parser = report::size)]
    size: usize,
    /// Requests.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=u64::from(BENCH_FLOW_MESSAGES_MAX)))]
    requests: Option<u64>,
    /// Seconds to ask; 10 when there is no --requests.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Requests per second, whether or not earlier ones are answered.
    #[arg(long, value_name = "N/s", value_parser = publish::rate, conflicts_with = "in_flight")]
    rate: Option<f64>,
    /// Requests under way at any time; each begins when an earlier one is answered.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    in_flight: u16,
    /// Seconds to wait for a reply.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: Duration,
    /// The class.
    #[arg(long, value_name = "CLASS", default_value = "live", value_parser = message::class)]
    class: Class,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    cpu: CpuArgs,
    #[command(flatten)]
    link: LinkArgs,
}

/// What is asked, by whom.
#[derive(Clone, Debug)]
struct Asker {
    link: Link,
    subject: String,
    payload: Bytes,
    timeout: Duration,
    told: Arc<Told>,
}

/// What became of requests.
#[derive(Debug, Default)]
struct Told {
    begun: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
    latency: Mutex<Latency>,
    failure: Mutex<Option<anyhow::Error>>,
}

impl Asker {
    /// Asks once; the time counts from `due`.
    async fn ask(&self, due: Instant) {
        match self.link.request(&self.subject, self.payload.clone(), self.timeout).await {
            Ok(()) => self.told.latency.lock().unwrap_or_else(PoisonError::into_inner).record_duration(due.elapsed()),
            Err(error) => {
                self.told.failed.fetch_add(1, Ordering::Relaxed);
                self.told.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
        self.told.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the first reply comes: interest has to cross the mesh.
    async fn first(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + FIRST;
        loop {
            match self.link.request(&self.subject, self.payload.clone(), self.timeout).await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    let error = error.context(format!("nobody answers '{}'", self.subject));
                    return Err(error).hint("start one with 'glocal reply', or leave out --subject");
                }
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.cpu.check()?;
    let (from, to) = (args.link.place()?, args.link.saved_or_place(args.to.as_deref())?);
    let (asking, answering) = (runtime("ask", 1)?, runtime("answer", 1)?);
    let link = asking.block_on(from.connect(Wants::once(args.class))).context("the requester")?;
    fits(&link, args.size, "--size")?;
    let subject = args.subject.clone().unwrap_or_else(|| format!("bench.request.{:x}", run_number()));
    if args.subject.is_none() {
        let responder = answering.block_on(to.connect(Wants::once(args.class))).context("the responder")?;
        same_tenant(&link, &responder)?;
        let mut feed = answering.block_on(responder.subscribe(&subject)).context("the responder")?;
        answering.spawn(async move {
            while let Some(request) = feed.next().await {
                if responder.answer(request).await.is_err() {
                    return;
                }
            }
        });
    }
    let payload = Bytes::from(vec![0x2e; args.size]);
    let asker = Asker { link, subject, payload, timeout: args.timeout, told: Arc::default() };
    asking.block_on(async {
        asker.link.open_inbox().await?;
        asker.first().await
    })?;
    let mut progress = Progress::start(args.report.progress);
    let (watch, cpu, start) = (Watch::start(), args.cpu.read(), Instant::now());
    let ticks_late = match args.rate {
        Some(rate) => open_loop(args, &asking, &asker, Schedule::new(start, rate), &mut progress),
        None => {
            asking.block_on(closed_loop(args, &asker, start, &mut progress))?;
            Latency::default()
        }
    };
    let took = start.elapsed().as_secs_f64();
    let (cpu, tool_late) = (cpu.since(), watch.take());
    progress.end();
    asking.block_on(asker.link.close());
    asking.shutdown_background();
    answering.shutdown_background();
    tell(args, &asker.told, took, cpu, (&ticks_late, &tool_late))
}

/// Asks when a request is due, whatever became of those before; returns how late this thread woke.
fn open_loop(
    args: &Args,
    asking: &tokio::runtime::Runtime,
    asker: &Asker,
    schedule: Schedule,
    progress: &mut Progress,
) -> Latency {
    let duration = args.duration.or_else(|| args.requests.is_none().then_some(DURATION));
    let within = duration.map_or(u64::MAX, |duration| schedule.within(duration));
    let count = within.min(args.requests.unwrap_or(u64::MAX));
    let (mut late, mut shown_at) = (Latency::default(), Instant::now());
    for number in 0..count {
        let due = schedule.due(number);
        if let Some(woke) = schedule.wait(number) {
            late.record_duration(woke);
        }
        asker.told.begun.fetch_add(1, Ordering::Relaxed);
        let asker = asker.clone();
        asking.spawn(async move { asker.ask(due).await });
        if shown_at.elapsed() > Duration::from_millis(100) {
            progress.tell("asking", number, count);
            shown_at = Instant::now();
        }
    }
    // Each ends in time, answered or not.
    while asker.told.ended.load(Ordering::Relaxed) < count {
        std::thread::sleep(Duration::from_millis(1));
    }
    late
}

async fn closed_loop(args: &Args, asker: &Asker, start: Instant, progress: &mut Progress) -> anyhow::Result<()> {
    let duration = args.duration.or_else(|| args.requests.is_none().then_some(DURATION));
    let until = duration.and_then(|duration| start.checked_add(duration));
    let count = args.requests.unwrap_or(u64::from(BENCH_FLOW_MESSAGES_MAX));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..args.in_flight {
        let asker = asker.clone();
        tasks.spawn(async move {
            while until.is_none_or(|until| Instant::now() < until)
                && asker
                    .told
                    .begun
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < count).then_some(n + 1))
                    .is_ok()
            {
                asker.ask(Instant::now()).await;
            }
        });
    }
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        anyhow::Ok(())
    };
    watching(progress, "asking", (&asker.told.ended, count), all).await
}

fn tell(
    args: &Args,
    told: &Told,
    took: f64,
    cpu: Vec<(String, f64)>,
    (ticks_late, tool_late): (&Latency, &Latency),
) -> anyhow::Result<ExitCode> {
    let latency = told.latency.lock().unwrap_or_else(PoisonError::into_inner);
    let (requests, failed) = (told.begun.load(Ordering::Relaxed), told.failed.load(Ordering::Relaxed));
    let failure = told.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(error) = failure.filter(|_| latency.count() == 0) {
        return Err(error.context("no request was answered"));
    }
    let starved = args.rate.is_some() && (starved(tool_late, &latency) || starved(ticks_late, &latency));
    let million = requests as f64 / 1e6;
    let cpu = [cpu.into_iter().map(|(name, seconds)| (name, seconds / million)).collect::<Vec<_>>()];
    let mut object = Map::new();
    latency.put(&mut object);
    let json = json!({
        "mode": "request", "protocol": args.link.protocol.as_str(), "class": args.class.as_str(),
        "size_bytes": args.size, "rate_per_s": args.rate, "in_flight": args.rate.is_none().then_some(args.in_flight),
        "requests": requests, "answered": latency.count(), "failed": failed, "seconds": took,
        "answered_per_s": latency.count() as f64 / took.max(1e-6), "latency": object,
        "ticks_late_p99_us": super::latency::micros(ticks_late.quantile_ns(0.99)),
        "tool_late_p99_us": super::latency::micros(tool_late.quantile_ns(0.99)), "tool_starved": starved,
        "cpu_s_per_million": cpu_json(&cpu),
    });
    let mut lines = vec![
        format!(
            "{requests} requests of {} B in {took:.3} s: {}, {failed} failed",
            args.size,
            per_second(latency.count() as f64 / took.max(1e-6), "replies")
        ),
        format!("  {}", latency.line()),
    ];
    lines.extend(latency.plot());
    if args.rate.is_some() {
        lines.push(format!(
            "  this tool woke late by p99 {} for its requests and p99 {} elsewhere{}",
            shown(ticks_late.quantile_ns(0.99)),
            shown(tool_late.quantile_ns(0.99)),
            if starved { ": it was STARVED, the latencies are partly its own" } else { "" }
        ));
    }
    lines.extend(cpu_lines(&cpu, "a million requests"));
    report::print(args.report, &json, &lines)
}
