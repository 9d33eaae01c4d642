//! A crowd of idle sessions at one broker, to see how long it takes until all are back after a restart.
//!
//! Lines taken on standard input: `check` publishes one message to every session and answers how many have got theirs;
//! `end` ends. Answers are lines of JSON.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use glocal_client::Client;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::Semaphore;

use crate::options::{Crowd, Options};

/// Handshakes at once.
const AT_ONCE: usize = 64;
/// How long everybody may take to get one message.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn run(options: &Options, crowd: &Crowd) -> anyhow::Result<()> {
    let gate = Arc::new(Semaphore::new(AT_ONCE));
    let got: Arc<Vec<AtomicU64>> = Arc::new((0..crowd.sessions).map(|_| AtomicU64::new(0)).collect());
    let start = Instant::now();
    let joining = (0..crowd.sessions).map(|number| {
        let (gate, got, options, who) = (Arc::clone(&gate), Arc::clone(&got), options.clone(), crowd.who.clone());
        tokio::spawn(async move {
            let _turn = gate.acquire().await?;
            let client = who.connect(&options).await.with_context(|| format!("session {number}"))?;
            let mut subscription = client.subscribe(&format!("crowd.{number}"), None).await?;
            tokio::spawn(async move {
                while subscription.next().await.is_some() {
                    got[number].fetch_add(1, Ordering::Relaxed);
                }
            });
            anyhow::Ok(client)
        })
    });
    let joining: Vec<_> = joining.collect();
    let mut clients: Vec<Client> = Vec::new();
    for joined in joining {
        clients.push(joined.await??);
    }
    let speaker = crowd.who.connect(options).await.context("the publisher")?;
    println!("{}", serde_json::json!({ "ready": clients.len(), "ms": start.elapsed().as_millis() as u64 }));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match line.trim() {
            "check" => {
                let before: Vec<u64> = got.iter().map(|n| n.load(Ordering::Relaxed)).collect();
                for number in 0..crowd.sessions {
                    speaker.publish(&format!("crowd.{number}"), b"here?").await?;
                }
                let heard =
                    || got.iter().zip(&before).filter(|(n, before)| n.load(Ordering::Relaxed) > **before).count();
                let deadline = Instant::now() + PATIENCE;
                while heard() < crowd.sessions && Instant::now() < deadline {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                println!("{}", serde_json::json!({ "heard": heard() }));
            }
            "end" => break,
            other => anyhow::bail!("'{other}' is neither check nor end"),
        }
    }
    Ok(())
}
