//! As much as goes through from one publisher to one subscriber: closed loop, with a bounded number of messages on their
//! way, so that nothing is dropped. What counts on a shared machine is the CPU a message costs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use glocal_client::{Client, Subscription};
use tokio::sync::Semaphore;

use crate::cpu::Cpu;
use crate::figures::{median, spread};
use crate::options::{Options, Pair};

/// How long nothing may arrive.
const PATIENCE: Duration = Duration::from_secs(5);
/// Messages per acquisition of the window.
const BURST: u32 = 64;

pub(crate) async fn run(options: &Options, pair: &Pair) -> anyhow::Result<()> {
    let subscriber = pair.subscriber.connect(options).await.context("the subscriber")?;
    let publisher = pair.publisher.connect(options).await.context("the publisher")?;
    let mut subscription = subscriber.subscribe("bench.pair", None).await?;
    await_interest(&publisher, &mut subscription).await?;
    let mut rates = vec![Vec::new(); pair.sizes.len()];
    let mut costs = vec![Vec::<Vec<f64>>::new(); pair.sizes.len()];
    let mut names = Vec::new();
    for round in 0..=pair.rounds {
        for (index, size) in pair.sizes.iter().enumerate() {
            let cpu = Cpu::read(&options.brokers);
            let start = Instant::now();
            transfer(&publisher, &mut subscription, pair, *size).await?;
            let took = start.elapsed().as_secs_f64();
            let used = cpu.since();
            if round == 0 {
                // A warm-up.
                names = used.into_iter().map(|(name, _)| name).collect();
                continue;
            }
            rates[index].push(pair.messages as f64 / took / 1e3);
            costs[index].push(used.into_iter().map(|(_, s)| s / pair.messages as f64 * 1e6).collect());
        }
    }
    println!("pair, {} rounds of {} messages, window {}", pair.rounds, pair.messages, pair.window);
    for (index, size) in pair.sizes.iter().enumerate() {
        println!("  {size:>6} B  {} thousand messages/s", spread(&rates[index], 0));
        for (process, name) in names.iter().enumerate() {
            let values: Vec<f64> = costs[index].iter().map(|round| round[process]).collect();
            println!("            CPU of {name:<20} {} s a million", spread(&values, 2));
        }
    }
    let all = median(&rates.concat());
    println!("  median over all sizes: {all:.0} thousand messages/s");
    Ok(())
}

async fn await_interest(publisher: &Client, subscription: &mut Subscription) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        publisher.publish("bench.pair", b"hello").await?;
        if tokio::time::timeout(Duration::from_millis(100), subscription.next()).await.is_ok() {
            break;
        }
        anyhow::ensure!(Instant::now() < deadline, "nothing arrives");
    }
    while tokio::time::timeout(Duration::from_millis(50), subscription.next()).await.is_ok() {}
    Ok(())
}

async fn transfer(publisher: &Client, subscription: &mut Subscription, pair: &Pair, size: usize) -> anyhow::Result<()> {
    let window = Arc::new(Semaphore::new(pair.window as usize));
    let count = pair.messages / u64::from(BURST) * u64::from(BURST);
    let sending = {
        let (publisher, window) = (publisher.clone(), Arc::clone(&window));
        tokio::spawn(async move {
            let payload = vec![7; size];
            for _ in 0..count / u64::from(BURST) {
                window.acquire_many(BURST).await?.forget();
                for _ in 0..BURST {
                    publisher.publish("bench.pair", &payload).await?;
                }
            }
            anyhow::Ok(())
        })
    };
    let mut received = 0;
    while received < count {
        let next = tokio::time::timeout(PATIENCE, subscription.next()).await;
        anyhow::ensure!(matches!(next, Ok(Some(_))), "{} of {count} messages are missing", count - received);
        let mut arrived = 1;
        while arrived < u64::from(BURST) && subscription.try_next().is_some() {
            arrived += 1;
        }
        received += arrived;
        window.add_permits(arrived as usize);
    }
    sending.await?
}
