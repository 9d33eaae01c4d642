//! A stream at a fixed rate, open loop: publishers follow the clock and not the broker, and every message is accounted
//! for by its publisher and number.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use glocal_client::{Client, Subscription};
use hdrhistogram::Histogram;

use crate::cpu::Cpu;
use crate::figures::Goals;
use crate::options::{Options, Stream};

/// How long after the last publish the last message may arrive.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often publishers look at the clock.
const TICK: Duration = Duration::from_millis(1);
/// Publisher, number, and nanoseconds since the start at which it was due.
const HEAD_BYTES: usize = 20;

/// What arrived.
struct Seen {
    next: Vec<u64>,
    seen: Vec<Vec<bool>>,
    arrived: u64,
    doubled: u64,
    misordered: u64,
    strange: u64,
    late: Histogram<u64>,
}

impl Seen {
    fn new(publishers: u32, each: u64) -> anyhow::Result<Self> {
        Ok(Self {
            next: vec![0; publishers as usize],
            seen: vec![vec![false; each as usize]; publishers as usize],
            arrived: 0,
            doubled: 0,
            misordered: 0,
            strange: 0,
            late: Histogram::new(3)?,
        })
    }

    fn add(&mut self, payload: &[u8], start: Instant) -> anyhow::Result<()> {
        let fields = (|| {
            let publisher = u32::from_le_bytes(*payload.first_chunk()?) as usize;
            let number = u64::from_le_bytes(*payload.get(4..)?.first_chunk()?);
            let due = u64::from_le_bytes(*payload.get(12..)?.first_chunk()?);
            Some((publisher, number, due))
        })();
        let known = fields.filter(|(p, n, _)| self.seen.get(*p).is_some_and(|seen| (*n as usize) < seen.len()));
        let Some((publisher, number, due)) = known else {
            self.strange += 1;
            return Ok(());
        };
        let seen = &mut self.seen[publisher][number as usize];
        if *seen {
            self.doubled += 1;
            return Ok(());
        }
        *seen = true;
        self.arrived += 1;
        self.misordered += u64::from(number < self.next[publisher]);
        self.next[publisher] = self.next[publisher].max(number + 1);
        self.late.record((start.elapsed().as_nanos() as u64).saturating_sub(due))?;
        Ok(())
    }
}

pub(crate) async fn run(options: &Options, stream: &Stream, goals: &mut Goals) -> anyhow::Result<()> {
    anyhow::ensure!(stream.size >= HEAD_BYTES, "a payload has at least {HEAD_BYTES} bytes");
    let each = stream.messages / u64::from(stream.publishers);
    let total = each * u64::from(stream.publishers);
    let subscriber = stream.subscriber.connect(options).await.context("the subscriber")?;
    let mut subscription = subscriber.subscribe("bench.stream.*", None).await?;
    let mut clients = Vec::new();
    for _ in 0..stream.publishers {
        let client = stream.publisher.connect(options).await.context("a publisher")?;
        await_interest(&client, &mut subscription).await?;
        clients.push(client);
    }
    let cpu = Cpu::read(&options.brokers);
    let start = Instant::now();
    let period = Duration::from_secs(1) * stream.publishers / u32::try_from(stream.rate).context("--rate")?;
    let publishing = clients.iter().zip(0..).map(|(client, number)| {
        let (client, size) = (client.clone(), stream.size);
        tokio::spawn(async move { publish(&client, number, each, period, size, start).await })
    });
    let publishing: Vec<_> = publishing.collect();
    let mut seen = Seen::new(stream.publishers, each)?;
    let give_up = period * u32::try_from(each)? + PATIENCE;
    while seen.arrived < total {
        let Ok(Some(message)) =
            tokio::time::timeout(give_up.saturating_sub(start.elapsed()), subscription.next()).await
        else {
            break;
        };
        seen.add(message.payload(), start)?;
        while let Some(message) = subscription.try_next() {
            seen.add(message.payload(), start)?;
        }
    }
    let took = start.elapsed().as_secs_f64();
    let used = cpu.since();
    let mut published_in: f64 = 0.0;
    for task in publishing {
        published_in = published_in.max(task.await??.as_secs_f64());
    }
    // What is doubled comes after its first copy: wait for what is still on its way.
    subscriber.flush().await?;
    while let Some(message) = subscription.try_next() {
        seen.add(message.payload(), start)?;
    }
    report(stream, total, took, published_in, &used, &seen);
    let rate = (total as f64 / published_in).round() as i64;
    goals.at_least("stream.published_per_s", rate, (stream.rate as f64 * 0.97) as i64);
    goals.at_most("stream.lost", (total - seen.arrived) as i64, 0);
    goals.at_most("stream.doubled", (seen.doubled + seen.strange) as i64, 0);
    goals.at_most("stream.misordered", seen.misordered as i64, 0);
    goals.at_most("stream.dropped_by_client", subscription.dropped() as i64, 0);
    Ok(())
}

fn report(stream: &Stream, total: u64, took: f64, published_in: f64, used: &[(String, f64)], seen: &Seen) {
    println!(
        "stream, {total} messages of {} B from {} publishers at {}/s: published in {published_in:.2} s, arrived in {took:.2} s",
        stream.size, stream.publishers, stream.rate
    );
    println!(
        "  arrived {}, lost {}, doubled {}, out of order {}, strange {}",
        seen.arrived,
        total - seen.arrived,
        seen.doubled,
        seen.misordered,
        seen.strange
    );
    let late = |quantile| seen.late.value_at_quantile(quantile) as f64 / 1e6;
    println!(
        "  from the moment each was due, ms: p50 {:.2}  p90 {:.2}  p99 {:.2}  p99.9 {:.2}  max {:.2}",
        late(0.5),
        late(0.9),
        late(0.99),
        late(0.999),
        seen.late.max() as f64 / 1e6
    );
    for (name, seconds) in used {
        println!("  CPU of {name:<20} {:.2} s, {:.2} s a million messages", seconds, seconds / total as f64 * 1e6);
    }
}

/// Publishes until the other side has heard of this connection.
async fn await_interest(client: &Client, subscription: &mut Subscription) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        client.publish("bench.stream.hello", [0; 4]).await?;
        if tokio::time::timeout(Duration::from_millis(100), subscription.next()).await.is_ok() {
            break;
        }
        anyhow::ensure!(Instant::now() < deadline, "nothing arrives");
    }
    // More than one may have been sent before the first arrived.
    while tokio::time::timeout(Duration::from_millis(20), subscription.next()).await.is_ok() {}
    Ok(())
}

/// Publishes message `n` when it is due, at `n * period`; returns when the last was published.
async fn publish(
    client: &Client,
    publisher: u32,
    count: u64,
    period: Duration,
    size: usize,
    start: Instant,
) -> anyhow::Result<Duration> {
    let subject = format!("bench.stream.{publisher}");
    let mut payload = vec![0; size];
    payload[..4].copy_from_slice(&publisher.to_le_bytes());
    let mut tick = tokio::time::interval(TICK);
    let mut number = 0;
    while number < count {
        tick.tick().await;
        let due = start.elapsed().as_nanos() / period.as_nanos();
        while number < count && u128::from(number) <= due {
            let at = (period.as_nanos() * u128::from(number)) as u64;
            payload[4..12].copy_from_slice(&number.to_le_bytes());
            payload[12..HEAD_BYTES].copy_from_slice(&at.to_le_bytes());
            client.publish(&subject, &payload).await?;
            number += 1;
        }
    }
    Ok(start.elapsed())
}
