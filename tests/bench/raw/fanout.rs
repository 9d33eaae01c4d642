//! One publisher, many subscribers. One thread writes a burst and reads all subscribers in turns, so that what it costs
//! is the same for every broker.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::client::{Client, Dialer, SILENCE, keep_alive};
use crate::counter::Counter;
use crate::options::Fanout;
use crate::pair::{SUBJECT, await_path};
use crate::report::Measured;

/// Bytes that one subscriber reads at a time.
const READ_BYTES: usize = 16 * 1024;
/// Pause when no subscriber has anything.
const PAUSE: Duration = Duration::from_micros(100);

pub(crate) fn run(fanout: &Fanout) -> Result<()> {
    let dialer = Dialer::new(&fanout.target)?.reading(READ_BYTES);
    let at = fanout.target.subscribe_at.as_deref().unwrap_or(&fanout.target.server);
    let mut subscribers = Vec::with_capacity(fanout.subscribers);
    for number in 0..fanout.subscribers {
        let mut subscriber = dialer.connect(at).with_context(|| format!("subscriber {number}"))?;
        subscriber.subscribe(SUBJECT, 1, false)?;
        subscribers.push(subscriber);
        keep_alive(&mut subscribers)?;
    }
    let mut publisher = dialer.connect(&fanout.target.server).context("the publisher")?;
    let message = dialer.protocol.message(SUBJECT, b"", &vec![b'x'; fanout.size])?;
    let (first, others) = subscribers.split_first_mut().context("no subscribers")?;
    let message_bytes = await_path(&mut publisher, first, &message)?;
    // What the first one got, all others got as well.
    others.iter_mut().try_for_each(Client::take_arrived)?;
    let mut all = Vec::with_capacity(fanout.subscribers);
    for subscriber in subscribers {
        subscriber.stream.sock.tcp.set_nonblocking(true)?;
        all.push((subscriber, Counter::new(dialer.protocol, message_bytes, READ_BYTES)));
    }
    let measured = Measured::begin(&fanout.target);
    deliver(fanout, &mut publisher, &message, &mut all)?;
    let report = measured.end(fanout.count * fanout.subscribers as u64);
    report.with("size", fanout.size).with("subscribers", fanout.subscribers).print()
}

fn deliver(fanout: &Fanout, publisher: &mut Client, message: &[u8], all: &mut [(Client, Counter)]) -> Result<()> {
    let burst = fanout.burst.max(1);
    let batch = message.repeat(usize::try_from(burst)?);
    let (mut sent, mut moved) = (0, Instant::now());
    loop {
        let least = all.iter().map(|(_, counter)| counter.received).min().unwrap_or_default();
        if least >= fanout.count {
            return Ok(());
        }
        while sent < fanout.count && sent < least + 2 * burst {
            let messages = burst.min(fanout.count - sent);
            publisher.send(&batch[..usize::try_from(messages)? * message.len()])?;
            sent += messages;
        }
        let mut any = false;
        for (client, counter) in all.iter_mut().filter(|(_, counter)| counter.received < sent) {
            while counter.received < sent && counter.read(&mut client.stream)? {
                any = true;
            }
        }
        if any {
            moved = Instant::now();
        } else {
            ensure!(moved.elapsed() < SILENCE, "nothing arrives any more: {least} of {sent} for the slowest");
            std::thread::sleep(PAUSE);
        }
    }
}
