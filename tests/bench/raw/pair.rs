//! As much as goes through from one publisher to one subscriber, the publisher at most a window ahead.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::client::{BUFFER_BYTES, Client, Dialer, SILENCE};
use crate::counter::Counter;
use crate::options::Pair;
use crate::report::Measured;

pub(crate) const SUBJECT: &str = "bench.subject.one";
/// Bytes the publisher may be ahead of the subscriber.
const WINDOW_BYTES: u64 = 4 * 1024 * 1024;
/// Messages the publisher may be ahead of the subscriber.
const WINDOW_MESSAGES: u64 = 20_000;

pub(crate) fn run(pair: &Pair) -> Result<()> {
    let dialer = Dialer::new(&pair.target)?;
    let at = pair.target.subscribe_at.as_deref().unwrap_or(&pair.target.server);
    let mut subscriber = dialer.connect(at).context("the subscriber")?;
    subscriber.subscribe(SUBJECT, 1, false)?;
    let mut publisher = dialer.connect(&pair.target.server).context("the publisher")?;
    let message = dialer.protocol.message(SUBJECT, b"", &vec![b'x'; pair.size])?;
    let message_bytes = await_path(&mut publisher, &mut subscriber, &message)?;
    let mut counter = Counter::new(dialer.protocol, message_bytes, BUFFER_BYTES);

    let progress = Progress::default();
    let (release, held) = mpsc::channel::<()>();
    let measured = Measured::begin(&pair.target);
    let report = std::thread::scope(|scope| {
        let (publisher, message, progress) = (&mut publisher, &message, &progress);
        let sending = scope.spawn(move || {
            let sent = publish(publisher, message, pair.count, progress);
            progress.failed.fetch_or(sent.is_err(), Ordering::Release);
            // The CPU of a thread that has ended is not counted.
            let _ = held.recv();
            sent
        });
        let received = receive(&mut subscriber, &mut counter, pair.count, progress);
        progress.failed.fetch_or(received.is_err(), Ordering::Release);
        let report = measured.end(pair.count);
        drop(release);
        sending.join().map_err(|_| anyhow!("the publisher has failed"))?.and(received).map(|()| report)
    })?;
    report.with("size", pair.size).print()
}

#[derive(Debug, Default)]
struct Progress {
    received: AtomicU64,
    failed: AtomicBool,
}

/// Publishes until something arrives, lets everything arrive, and says how long a message is at the subscriber.
pub(crate) fn await_path(publisher: &mut Client, subscriber: &mut Client, message: &[u8]) -> Result<usize> {
    let began = Instant::now();
    let mut found = None;
    while found.is_none() {
        ensure!(began.elapsed() < SILENCE, "nothing arrives");
        publisher.send(message)?;
        found = subscriber.message_within(Duration::from_millis(200))?;
    }
    while subscriber.message_within(Duration::from_millis(100))?.is_some() {}
    found.ok_or_else(|| anyhow!("nothing arrives"))
}

fn publish(publisher: &mut Client, one: &[u8], count: u64, progress: &Progress) -> Result<()> {
    let per_write = (BUFFER_BYTES / one.len()).max(1) as u64;
    let window = (WINDOW_BYTES / one.len() as u64).clamp(per_write, WINDOW_MESSAGES.max(per_write));
    let batch: Vec<u8> = one.repeat(usize::try_from(per_write)?);
    let (mut sent, mut seen, mut moved) = (0, 0, Instant::now());
    while sent < count {
        let now = progress.received.load(Ordering::Acquire);
        if now != seen {
            (seen, moved) = (now, Instant::now());
        }
        ensure!(!progress.failed.load(Ordering::Acquire), "the subscriber has failed");
        ensure!(moved.elapsed() < SILENCE, "nothing has arrived for {SILENCE:?}: {now} of {sent}");
        if sent - now + per_write > window {
            std::thread::sleep(Duration::from_micros(50));
            continue;
        }
        let messages = per_write.min(count - sent);
        publisher.send(&batch[..usize::try_from(messages)? * one.len()])?;
        sent += messages;
    }
    Ok(())
}

fn receive(subscriber: &mut Client, counter: &mut Counter, count: u64, progress: &Progress) -> Result<()> {
    while counter.received < count {
        ensure!(!progress.failed.load(Ordering::Acquire), "the publisher has failed");
        ensure!(counter.read(&mut subscriber.stream)?, "nothing comes any more: {} of {count}", counter.received);
        progress.received.store(counter.received, Ordering::Release);
    }
    ensure!(counter.received == count, "{} messages arrived, not {count}", counter.received);
    Ok(())
}
