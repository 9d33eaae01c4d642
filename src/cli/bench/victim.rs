//! `glocal bench flood-and-victim`: a steady trickle of one tenant, alone and beside other tenants' floods.
//!
//! The victim's publisher follows the clock on a thread of its own, and each of its ends has a runtime of its own; the
//! floods share another. What remains of the tool's own influence is measured and reported.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use glocal_core::name::Class;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use super::ends::{FIRST, fits, same_tenant, silent};
use super::flood::{Flood, Flooded, Reading, Shape};
use super::head::{Ear, Head};
use super::latency::{Latency, shown};
use super::link::{Counts, Feed, Link, LinkArgs, Place, Wants};
use super::pace::{Clock, Schedule};
use super::progress::Progress;
use super::report::{self, ReportArgs, run_number, runtime};
use super::watch::{Watch, starved};
use crate::cli::connect::seconds;
use crate::cli::output::complain;
use crate::cli::{context, message, publish, usage};

const EXAMPLES: &str = "\
Examples:
  glocal bench flood-and-victim --context a-here --to a-there --flood b-here:b-there
  glocal bench flood-and-victim --context a-here --flood b-here --flood c-here --duration 30
  glocal bench flood-and-victim --context a-here --to a-there --flood b-here:b-there \\
         --flood-class bulk --flood-size 64KiB --json | jq '.alone.p99_us, .beside.p99_us'

The connection flags, or --context, name the victim's publisher. Each phase begins with a warm-up that is not counted.
A latency counts from the moment the message was due. When the tool itself woke late, the output says so. What a flood
delivered is a rate of whole messages: from the last that came before the phase to the last that came in it.";

/// Between two looks at what has arrived.
const LOOK: Duration = Duration::from_millis(10);
/// The flow of warm-ups, which nobody counts.
const WARM_UP: u16 = 0;
const ALONE: u16 = 1;
const BESIDE: u16 = 2;

/// Arguments of `glocal bench flood-and-victim`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The saved context of the victim's subscriber; by default it connects as the publisher does.
    #[arg(long, value_name = "CONTEXT", value_parser = context::name)]
    to: Option<String>,
    /// The saved contexts of a flooding tenant's publisher and subscriber; repeat for more tenants.
    #[arg(long, value_name = "FROM[:TO]", required = true, value_parser = from_and_to)]
    flood: Vec<(String, String)>,
    /// The victim's messages per second.
    #[arg(long, value_name = "N/s", default_value = "100", value_parser = publish::rate)]
    rate: f64,
    /// Bytes of each of the victim's payloads.
    #[arg(long, value_name = "BYTES", default_value = "256", value_parser = report::size_with_head)]
    size: usize,
    /// The victim's class.
    #[arg(long, value_name = "CLASS", default_value = "live", value_parser = message::class)]
    victim_class: Class,
    /// Seconds of each phase.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    duration: Duration,
    /// Seconds before each phase that are not counted.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    warm_up: Duration,
    /// Seconds after each phase in which late messages still count, with the flood going on.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    grace: Duration,
    /// Bytes of each of a flood's payloads.
    #[arg(long, value_name = "BYTES", default_value = "1024", value_parser = report::size)]
    flood_size: usize,
    /// The floods' class.
    #[arg(long, value_name = "CLASS", default_value = "live", value_parser = message::class)]
    flood_class: Class,
    /// Publishing connections of each flooding tenant.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    flood_publishers: u16,
    /// Threads that the floods share.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    flood_threads: u16,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    link: LinkArgs,
}

fn from_and_to(text: &str) -> Result<(String, String), String> {
    let (from, to) = text.split_once(':').unwrap_or((text, text));
    Ok((context::name(from)?, context::name(to)?))
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.duration.is_zero() {
        return Err(usage("--duration 0 measures nothing", "give it some seconds"));
    }
    let (from, to) = (args.link.place()?, args.link.saved_or_place(args.to.as_deref())?);
    let floods = args
        .flood
        .iter()
        .map(|(from, to)| Ok((args.link.saved(from)?, args.link.saved(to)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut progress = Progress::start(args.report.progress);
    let victim = Victim::connect(args, &from, &to)?;
    let flood_runtime = runtime("flood", usize::from(args.flood_threads))?;
    let mut floods = flood_runtime.block_on(connect_floods(args, &floods, victim.run))?;
    warn_of_own_floods(&victim, &floods);
    let watch = Watch::start();
    let alone = victim.phase(args, &watch, ALONE, &mut progress, || {})?;
    {
        let _inside = flood_runtime.enter();
        floods.iter_mut().for_each(Flood::begin);
    }
    let mut readings: Vec<Vec<Reading>> = Vec::new();
    let read = || readings.push(floods.iter().map(Flood::read).collect());
    let beside = victim.phase(args, &watch, BESIDE, &mut progress, read)?;
    let flooded = match readings.as_slice() {
        [before, after] => {
            let pairs = before.iter().zip(after);
            floods.iter().zip(pairs).map(|(flood, (before, after))| flood.between(before, after)).collect()
        }
        _ => Vec::new(),
    };
    floods.iter_mut().for_each(Flood::end);
    progress.end();
    let found = Found { alone, beside, flooded };
    let code = report::print(args.report, &found.json(args, &victim), &found.lines(args, &victim));
    flood_runtime.shutdown_background();
    victim.end();
    code
}

async fn connect_floods(args: &Args, floods: &[(Place, Place)], run: u64) -> anyhow::Result<Vec<Flood>> {
    let shape = shape(args);
    let mut connected = Vec::new();
    for (number, (from, to)) in floods.iter().enumerate() {
        let subject = format!("bench.flood.{run:x}.{number}");
        connected.push(Flood::connect(from, to, subject, shape).await?);
    }
    Ok(connected)
}

fn shape(args: &Args) -> Shape {
    Shape { size: args.flood_size, class: args.flood_class, publishers: usize::from(args.flood_publishers) }
}

fn warn_of_own_floods(victim: &Victim, floods: &[Flood]) {
    let own = victim.publisher.tenant();
    if own.is_some() && floods.iter().any(|flood| flood.tenant() == own) {
        complain(
            "warning",
            "a flood is of the victim's own tenant: tenants are isolated from each other, not from themselves",
        );
    }
}

/// The victim's two ends.
struct Victim {
    run: u64,
    speaking: Runtime,
    listening: Runtime,
    publisher: Link,
    subscriber: Link,
    subject: String,
    ear: Arc<Mutex<Ear>>,
    clock: Clock,
}

/// What one phase came to.
struct Phase {
    published: u64,
    ear: Ear,
    counts: Counts,
    /// How late the publisher's thread woke.
    ticks_late: Latency,
    /// How late any thread wakes.
    tool_late: Latency,
}

impl Victim {
    fn connect(args: &Args, from: &Place, to: &Place) -> anyhow::Result<Self> {
        let (speaking, listening) = (runtime("victim-out", 1)?, runtime("victim-in", 1)?);
        let wants = Wants::once(args.victim_class);
        let publisher = speaking.block_on(from.connect(wants)).context("the victim's publisher")?;
        let subscriber = listening.block_on(to.connect(wants)).context("the victim's subscriber")?;
        same_tenant(&publisher, &subscriber)?;
        fits(&publisher, args.size, "--size")?;
        let run = run_number();
        let (subject, clock) = (format!("bench.victim.{run:x}"), Clock::start());
        let feed = listening.block_on(subscriber.subscribe(&subject)).context("the victim's subscriber")?;
        let ear = Arc::<Mutex<Ear>>::default();
        listening.spawn(listen(feed, clock, Arc::clone(&ear)));
        let victim = Self { run, speaking, listening, publisher, subscriber, subject, ear, clock };
        victim.await_first(args.size)?;
        Ok(victim)
    }

    fn ear<T>(&self, look: impl FnOnce(&mut Ear) -> T) -> T {
        look(&mut self.ear.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Publishes until something arrives: interest has to cross the mesh.
    fn await_first(&self, size: usize) -> anyhow::Result<()> {
        let deadline = Instant::now() + FIRST;
        while self.ear(|ear| ear.heard) == 0 {
            anyhow::ensure!(Instant::now() < deadline, silent(&self.publisher).context("the victim"));
            self.speak(WARM_UP, size, Schedule::new(Instant::now(), 20.0), 2, &mut |_| {})?;
        }
        Ok(())
    }

    /// Publishes `count` messages when they are due; returns how late this thread woke for them.
    fn speak(
        &self,
        flow: u16,
        size: usize,
        schedule: Schedule,
        count: u64,
        tell: &mut dyn FnMut(u64),
    ) -> anyhow::Result<Latency> {
        let mut late = Latency::default();
        let mut payload = vec![0x2e; size];
        let mut look = Instant::now();
        self.speaking.block_on(async {
            for number in 0..count {
                let due = schedule.due(number);
                if due > look + LOOK {
                    tell(number);
                    look = Instant::now();
                }
                // This thread runs nothing else: the connection has a thread of its runtime.
                if let Some(woke) = schedule.wait(number) {
                    late.record_duration(woke);
                }
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                Head { flow, number, due: self.clock.at_ns(due) }.write(&mut payload);
                self.publisher.publish(&self.subject, &payload).await.context("the victim cannot publish")?;
            }
            anyhow::Ok(late)
        })
    }

    /// Warms up, publishes at the rate, and waits for what is late. `at` is called when counting begins and ends.
    fn phase(
        &self,
        args: &Args,
        watch: &Watch,
        flow: u16,
        progress: &mut Progress,
        mut at: impl FnMut(),
    ) -> anyhow::Result<Phase> {
        let name = if flow == ALONE { "alone" } else { "beside the flood" };
        let warm_up = Schedule::new(Instant::now(), args.rate);
        progress.tell("warming up", 0, 1);
        self.speak(WARM_UP, args.size, warm_up, warm_up.within(args.warm_up), &mut |_| {})?;
        self.ear(|ear| *ear = Ear::of(flow));
        let before = self.counts();
        watch.take();
        at();
        let schedule = Schedule::new(Instant::now(), args.rate);
        let count = schedule.within(args.duration);
        let ticks_late = self.speak(flow, args.size, schedule, count, &mut |done| progress.tell(name, done, count))?;
        at();
        let tool_late = watch.take();
        let deadline = Instant::now() + args.grace;
        while self.ear(|ear| ear.tally.arrived) < count && Instant::now() < deadline {
            progress.tell("waiting for what is late", self.ear(|ear| ear.tally.arrived), count);
            std::thread::sleep(LOOK);
        }
        // A second copy comes after the first.
        std::thread::sleep(LOOK);
        let ear = self.ear(|ear| std::mem::replace(ear, Ear::of(WARM_UP)));
        Ok(Phase { published: count, ear, counts: self.counts().minus(before), ticks_late, tool_late })
    }

    fn counts(&self) -> Counts {
        self.publisher.counts().plus(Counts { published: 0, ..self.subscriber.counts() })
    }

    fn end(self) {
        self.speaking.block_on(self.publisher.close());
        self.listening.block_on(self.subscriber.close());
        self.speaking.shutdown_background();
        self.listening.shutdown_background();
    }
}

async fn listen(mut feed: Feed, clock: Clock, ear: Arc<Mutex<Ear>>) {
    while let Some(message) = feed.next().await {
        let now = clock.now_ns();
        ear.lock().unwrap_or_else(PoisonError::into_inner).add(message.payload(), now);
    }
}

impl Phase {
    fn lost(&self) -> u64 {
        self.ear.tally.lost(self.published)
    }

    fn starved(&self) -> bool {
        starved(&self.tool_late, &self.ear.latency) || starved(&self.ticks_late, &self.ear.latency)
    }

    fn json(&self) -> Value {
        let mut object = Map::new();
        self.ear.latency.put(&mut object);
        let tally = &self.ear.tally;
        for (key, value) in [
            ("published", self.published),
            ("arrived", tally.arrived),
            ("lost", self.lost()),
            ("doubled", tally.doubled),
            ("misordered", tally.misordered),
            ("refused", self.counts.refused),
            ("dropped_by_client", self.counts.dropped),
        ] {
            object.insert(key.to_owned(), value.into());
        }
        for (key, late) in [("ticks_late", &self.ticks_late), ("tool_late", &self.tool_late)] {
            object.insert(format!("{key}_p99_us"), super::latency::micros(late.quantile_ns(0.99)).into());
            object.insert(format!("{key}_max_us"), super::latency::micros(late.max_ns()).into());
        }
        object.insert("tool_starved".to_owned(), self.starved().into());
        Value::Object(object)
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let tally = &self.ear.tally;
        let mut lines = vec![
            format!("{name}: {}", self.ear.latency.line()),
            format!(
                "  {} published, {} lost, {} doubled, {} out of order, {} refused, {} dropped by this tool",
                self.published,
                self.lost(),
                tally.doubled,
                tally.misordered,
                self.counts.refused,
                self.counts.dropped
            ),
            format!(
                "  this tool woke late by p99 {} in its publisher and p99 {} elsewhere{}",
                shown(self.ticks_late.quantile_ns(0.99)),
                shown(self.tool_late.quantile_ns(0.99)),
                if self.starved() { ": it was STARVED, the latencies are partly its own" } else { "" }
            ),
        ];
        lines.extend(self.ear.latency.plot());
        lines
    }
}

/// What was found.
struct Found {
    alone: Phase,
    beside: Phase,
    flooded: Vec<Flooded>,
}

impl Found {
    /// Beside the flood over alone; of nothing there is none.
    fn ratio(&self, of: fn(&Latency) -> u64) -> Option<f64> {
        let (alone, beside) = (&self.alone.ear.latency, &self.beside.ear.latency);
        (alone.count() > 0 && beside.count() > 0).then(|| of(beside) as f64 / of(alone).max(1) as f64)
    }

    fn ratios(&self) -> [(&'static str, Option<f64>); 4] {
        [
            ("p50", self.ratio(|latency| latency.quantile_ns(0.5))),
            ("p99", self.ratio(|latency| latency.quantile_ns(0.99))),
            ("p999", self.ratio(|latency| latency.quantile_ns(0.999))),
            ("max", self.ratio(Latency::max_ns)),
        ]
    }

    fn json(&self, args: &Args, victim: &Victim) -> Value {
        json!({
            "mode": "flood-and-victim",
            "protocol": args.link.protocol.as_str(),
            "victim": {
                "tenant": victim.publisher.tenant(), "from": victim.publisher.node(), "to": victim.subscriber.node(),
                "rate_per_s": args.rate, "size_bytes": args.size, "class": args.victim_class.as_str(),
                "duration_s": args.duration.as_secs_f64(),
            },
            "alone": self.alone.json(),
            "beside": self.beside.json(),
            "ratio": self.ratios().into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect::<Map<_, _>>(),
            "flood": Flooded::json_of_all(&self.flooded, &shape(args)),
            "tool_starved": self.alone.starved() || self.beside.starved(),
        })
    }

    fn lines(&self, args: &Args, victim: &Victim) -> Vec<String> {
        let mut lines = vec![format!(
            "victim: {}/s of {} B in {} for {} s, {} → {}",
            args.rate,
            args.size,
            args.victim_class.as_str(),
            args.duration.as_secs_f64(),
            victim.publisher.node(),
            victim.subscriber.node()
        )];
        lines.extend(self.alone.lines("alone"));
        lines.extend(self.beside.lines("beside the flood"));
        let ratio = |(name, value): (&str, Option<f64>)| value.map(|value| format!("{name} {value:.2}"));
        let ratios: Vec<String> = self.ratios().into_iter().filter_map(ratio).collect();
        lines.push(format!("ratio: {}", ratios.join("  ")));
        lines.push(format!("flood: {} B in {}", args.flood_size, args.flood_class.as_str()));
        lines.extend(self.flooded.iter().map(|flood| format!("  {}", flood.line())));
        lines
    }
}
