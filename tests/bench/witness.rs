//! A stream that goes on while a mesh breaks: every class at a steady rate, every message accounted for, and the longest
//! silence of each subscriber since it was last asked. Whoever breaks the mesh asks over standard input.
//!
//! Lines taken: `gap` answers the longest silence since the last `gap`, in milliseconds; `end` stops publishing, waits for
//! what is on its way and answers the totals. Answers are lines of JSON.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use glocal_client::{Client, Event, Publish, Subscription};
use glocal_core::name::Class;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::options::{Options, Witness};

/// How long after the last publish the last message may arrive.
const PATIENCE: Duration = Duration::from_secs(8);
const CLASSES: [Class; 4] = [Class::Live, Class::Ctrl, Class::Tele, Class::Bulk];

/// What one subscriber has got of one class.
#[derive(Debug, Default)]
struct Seen {
    numbers: Vec<u8>,
    last: Option<u64>,
    arrived: u64,
    doubled: u64,
    misordered: u64,
    redelivered: u64,
}

impl Seen {
    fn add(&mut self, number: u64, redelivered: bool) {
        let at = number as usize;
        if self.numbers.len() <= at {
            self.numbers.resize(at + 1, 0);
        }
        self.redelivered += u64::from(redelivered);
        self.doubled += u64::from(self.numbers[at] > 0);
        self.misordered += u64::from(self.last.is_some_and(|last| number < last));
        self.numbers[at] = self.numbers[at].saturating_add(1);
        self.last = self.last.max(Some(number));
        self.arrived += 1;
    }

    fn lost(&self, published: u64) -> u64 {
        published - self.numbers.iter().filter(|times| **times > 0).count() as u64
    }
}

/// One subscriber.
#[derive(Debug)]
struct Ear {
    name: String,
    seen: [Seen; 4],
    last: Instant,
    gap: Duration,
}

pub(crate) async fn run(options: &Options, witness: &Witness) -> anyhow::Result<()> {
    let publisher = witness.publisher.connect(options).await.context("the publisher")?;
    let mut ears = Vec::new();
    let mut clients = Vec::new();
    for (number, who) in witness.subscribers.iter().enumerate() {
        let client = who.connect(options).await.with_context(|| format!("subscriber {number}"))?;
        let subscription = client.subscribe("bench.witness.*", None).await?;
        let ear = Ear { name: who.to_string(), seen: Default::default(), last: Instant::now(), gap: Duration::ZERO };
        let ear = Arc::new(Mutex::new(ear));
        tokio::spawn(listen(subscription, Arc::clone(&ear)));
        clients.push(client);
        ears.push(ear);
    }
    await_all(&publisher, &ears).await?;
    let refused = count_refusals(&publisher);
    let going = Arc::new(AtomicBool::new(true));
    let published: Arc<[AtomicU64; 4]> = Arc::default();
    let tasks: Vec<_> = CLASSES
        .into_iter()
        .filter(|class| witness.classes.is_empty() || witness.classes.iter().any(|name| name == class.as_str()))
        .map(|class| {
            let period = Duration::from_secs(1) / witness.rate;
            let (publisher, going, published) = (publisher.clone(), Arc::clone(&going), Arc::clone(&published));
            tokio::spawn(async move { speak(&publisher, class, period, &going, &published).await })
        })
        .collect();
    println!("{}", serde_json::json!({ "ready": true }));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match line.trim() {
            "gap" => println!("{}", gaps(&ears)),
            "end" => break,
            other => anyhow::bail!("'{other}' is neither gap nor end"),
        }
    }
    going.store(false, Ordering::Relaxed);
    for task in tasks {
        task.await??;
    }
    // What has no answer yet may still come.
    let settled = publisher.acknowledged(PATIENCE).await.is_ok();
    let published: Vec<u64> = published.iter().map(|n| n.load(Ordering::Relaxed)).collect();
    let deadline = Instant::now() + PATIENCE;
    let whole =
        |ear: &Arc<Mutex<Ear>>| ear.lock().unwrap().seen.iter().zip(&published).all(|(seen, n)| seen.lost(*n) == 0);
    while Instant::now() < deadline && !ears.iter().all(whole) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("{}", totals(&ears, &published, settled, refused.load(Ordering::Relaxed)));
    Ok(())
}

/// Counts what the broker refuses of the publisher.
fn count_refusals(publisher: &Client) -> Arc<AtomicU64> {
    let refused = Arc::new(AtomicU64::new(0));
    let (mut events, count) = (publisher.events(), Arc::clone(&refused));
    tokio::spawn(async move {
        while let Ok(event) = events.recv().await {
            count.fetch_add(u64::from(matches!(event, Event::Denied(_))), Ordering::Relaxed);
        }
    });
    refused
}

/// Until everybody has heard the publisher.
async fn await_all(publisher: &Client, ears: &[Arc<Mutex<Ear>>]) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let deaf = |ear: &Arc<Mutex<Ear>>| ear.lock().unwrap().seen[0].arrived == 0;
    while ears.iter().any(deaf) {
        anyhow::ensure!(Instant::now() < deadline, "nothing arrives");
        publisher.publish("bench.witness.live", u64::MAX.to_le_bytes()).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    for ear in ears {
        let mut ear = ear.lock().unwrap();
        ear.seen = Default::default();
        ear.last = Instant::now();
        ear.gap = Duration::ZERO;
    }
    Ok(())
}

async fn listen(mut subscription: Subscription, ear: Arc<Mutex<Ear>>) {
    while let Some(message) = subscription.next().await {
        let class =
            message.subject().rsplit('.').next().and_then(|name| CLASSES.iter().position(|c| c.as_str() == name));
        let number = message.payload().first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let (Some(class), Some(number)) = (class, number) else { continue };
        let mut ear = ear.lock().unwrap();
        let silence = ear.last.elapsed();
        ear.gap = ear.gap.max(silence);
        ear.last = Instant::now();
        if number == u64::MAX {
            ear.seen[0].arrived += 1;
        } else {
            ear.seen[class].add(number, message.is_redelivered());
        }
    }
}

async fn speak(
    publisher: &Client,
    class: Class,
    period: Duration,
    going: &AtomicBool,
    published: &[AtomicU64; 4],
) -> anyhow::Result<()> {
    let mut tick = tokio::time::interval(period);
    let mut number = 0u64;
    while going.load(Ordering::Relaxed) {
        tick.tick().await;
        let subject = format!("bench.witness.{}", class.as_str());
        let publish = Publish { class: Some(class), ..Publish::new(subject, number.to_le_bytes().to_vec()) };
        publisher.publish_with(publish).await?;
        number += 1;
        published[class as usize].store(number, Ordering::Relaxed);
    }
    Ok(())
}

fn gaps(ears: &[Arc<Mutex<Ear>>]) -> serde_json::Value {
    let gap = |ear: &Arc<Mutex<Ear>>| {
        let mut ear = ear.lock().unwrap();
        let gap = ear.gap.max(ear.last.elapsed());
        ear.gap = Duration::ZERO;
        (ear.name.clone(), gap.as_millis() as u64)
    };
    let by_subscriber: BTreeMap<String, u64> = ears.iter().map(gap).collect();
    serde_json::json!({ "gap_ms": by_subscriber.values().max(), "by_subscriber": by_subscriber })
}

fn totals(ears: &[Arc<Mutex<Ear>>], published: &[u64], settled: bool, refused: u64) -> serde_json::Value {
    let of = |ear: &Arc<Mutex<Ear>>| {
        let ear = ear.lock().unwrap();
        let class = |(class, seen): (&Class, &Seen)| {
            let n = published[*class as usize];
            let row = serde_json::json!({
                "published": n, "arrived": seen.arrived, "lost": seen.lost(n), "doubled": seen.doubled,
                "misordered": seen.misordered, "redelivered": seen.redelivered,
            });
            (class.as_str().to_owned(), row)
        };
        let rows: serde_json::Map<_, _> = CLASSES.iter().zip(&ear.seen).map(class).collect();
        (ear.name.clone(), serde_json::Value::Object(rows))
    };
    let ears: serde_json::Map<_, _> = ears.iter().map(of).collect();
    serde_json::json!({ "subscribers": ears, "acknowledged": settled, "refused": refused })
}
