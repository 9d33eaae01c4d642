//! Request/reply on one node and over a bridge, in turns, so that what else the machine does weighs on both alike.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use glocal_client::Client;
use hdrhistogram::Histogram;

use crate::cpu::Cpu;
use crate::figures::{Goals, median, spread};
use crate::options::{Latency, Options};

/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) async fn run(options: &Options, latency: &Latency, goals: &mut Goals) -> anyhow::Result<()> {
    let requester = latency.requester.connect(options).await.context("the requester")?;
    let near = latency.near.connect(options).await.context("the responder on the same node")?;
    let far = latency.far.connect(options).await.context("the responder behind the bridge")?;
    answer(&near, "bench.near").await?;
    answer(&far, "bench.far").await?;
    let payload = vec![7; latency.size];
    await_responder(&requester, "bench.far", &payload).await?;

    let mut nowhere = Histogram::new(3)?;
    for subject in ["bench.near", "bench.far"] {
        ask(&requester, subject, &payload, latency.warm_up, &mut nowhere).await?;
    }
    let cpu = Cpu::read(&options.brokers);
    let mut all = [Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?];
    let mut p50s = [Vec::new(), Vec::new()];
    let mut p99s = [Vec::new(), Vec::new()];
    for _ in 0..latency.rounds {
        for (index, subject) in ["bench.near", "bench.far"].into_iter().enumerate() {
            let mut round = Histogram::new(3)?;
            ask(&requester, subject, &payload, latency.requests, &mut round).await?;
            p50s[index].push(micros(&round, 0.5));
            p99s[index].push(micros(&round, 0.99));
            all[index].add(&round)?;
        }
    }
    println!("request/reply, {} B, {} rounds of {} of each kind, µs", latency.size, latency.rounds, latency.requests);
    for (index, name) in ["one node", "one bridge"].into_iter().enumerate() {
        println!(
            "  {name:<12} p50 {:<22} p99 {:<24} all: min {:.0}  p50 {:.0}  p90 {:.0}  p99 {:.0}  max {:.0}",
            spread(&p50s[index], 0),
            spread(&p99s[index], 0),
            all[index].min() as f64 / 1e3,
            micros(&all[index], 0.5),
            micros(&all[index], 0.9),
            micros(&all[index], 0.99),
            all[index].max() as f64 / 1e3,
        );
    }
    let differences: Vec<f64> = p50s[0].iter().zip(&p50s[1]).map(|(near, far)| far - near).collect();
    println!("  one bridge costs, p50: {} µs", spread(&differences, 0));
    let requests = (latency.rounds * latency.requests * 2) as f64;
    for (name, seconds) in cpu.since() {
        println!("  CPU of {name:<20} {:.1} µs a request", seconds / requests * 1e6);
    }
    goals.at_most("hop.p50_difference_us", median(&differences).round() as i64, latency.bound_us);
    Ok(())
}

fn micros(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e3
}

/// Answers every request with its own payload, for as long as the program runs.
async fn answer(client: &Client, subject: &str) -> anyhow::Result<()> {
    let mut requests = client.subscribe(subject, None).await?;
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let payload = request.payload_shared();
            if request.respond(payload).await.is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Interest takes its time to cross a bridge.
async fn await_responder(requester: &Client, subject: &str, payload: &[u8]) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match requester.request(subject, payload.to_vec(), PATIENCE).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error).context(subject.to_owned()),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn ask(
    requester: &Client,
    subject: &str,
    payload: &[u8],
    count: usize,
    into: &mut Histogram<u64>,
) -> anyhow::Result<()> {
    let payload = bytes::Bytes::copy_from_slice(payload);
    for _ in 0..count {
        let asked = Instant::now();
        let reply = requester.request(subject, payload.clone(), PATIENCE).await.with_context(|| subject.to_owned())?;
        into.record(asked.elapsed().as_nanos() as u64)?;
        anyhow::ensure!(reply.payload() == payload, "{subject}: another payload came back");
    }
    Ok(())
}
