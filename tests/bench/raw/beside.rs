//! What one tenant feels while another floods.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::client::{BUFFER_BYTES, Client, Dialer};
use crate::counter::Counter;
use crate::flood::{FloodProcess, Totals, serve};
use crate::options::{Flood, FloodAndVictim, Target};
use crate::pair::await_path;
use crate::report::Report;
use crate::victim::{Hearing, measure};

const VICTIM: &str = "bench.victim";
const FLOOD: &str = "bench.flood";
/// Publishers, who otherwise read nothing, look so often whether the broker wants a sign of life.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) fn run(options: &FloodAndVictim) -> Result<()> {
    let target = &options.target;
    let (mut publisher, mut subscriber) = ends(target, VICTIM).context("the victim")?;
    let hearing = Hearing::start();
    let heard = hearing.clone();
    thread::spawn(move || {
        if let Err(error) = subscriber.listen(|payload| heard.add(payload)) {
            // What it does not hear counts as lost.
            eprintln!("warning: the victim's subscriber: {error:#}");
        }
    });
    let mut looked = Instant::now();
    let mut publish = |payload: &[u8]| {
        publisher.send(&target.protocol.message(VICTIM, b"", payload)?)?;
        if looked.elapsed() > LOOK {
            looked = Instant::now();
            publisher.take_arrived()?;
        }
        Ok(())
    };
    let found = measure(&options.trickle, &hearing, &mut publish, || FloodProcess::start(&flood(options)))?;
    let mut report = Report::default().with("protocol", format!("{:?}", target.protocol).to_lowercase());
    for (name, value) in found {
        report = report.with(&name, value);
    }
    report.print()?;
    // The threads that read would wait for ever.
    std::process::exit(0)
}

/// The arguments of the flood's process.
fn flood(options: &FloodAndVictim) -> Vec<String> {
    use clap::ValueEnum as _;
    let Target { protocol, server, subscribe_at, .. } = &options.target;
    let protocol = protocol.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let (cert, key) = (options.flood_cert.display().to_string(), options.flood_key.display().to_string());
    let mut arguments = vec!["flood".to_owned()];
    for (name, value) in [
        ("--protocol", Some(&protocol)),
        ("--server", Some(server)),
        ("--subscribe-at", subscribe_at.as_ref()),
        ("--cert", Some(&cert)),
        ("--key", Some(&key)),
        ("--size", Some(&options.trickle.flood_size.to_string())),
    ] {
        arguments.extend(value.map(|value| [name.to_owned(), value.clone()]).into_iter().flatten());
    }
    arguments
}

/// The flood's process.
pub(crate) fn run_flood(flood: &Flood) -> Result<()> {
    let (mut publisher, mut subscriber) = ends(&flood.target, FLOOD).context("the flood")?;
    let protocol = flood.target.protocol;
    let message = protocol.message(FLOOD, b"", &vec![b'x'; flood.size])?;
    let message_bytes = await_path(&mut publisher, &mut subscriber, &message).context("the flood")?;
    let totals = Arc::new(Totals::default());
    let (counted, published) = (Arc::clone(&totals), Arc::clone(&totals));
    thread::spawn(move || {
        let mut counter = Counter::new(protocol, message_bytes, BUFFER_BYTES);
        loop {
            // Silence is no end of it: a flood may be stopped for long.
            match counter.read(&mut subscriber.stream) {
                Ok(_) => counted.delivered.store(counter.received, Ordering::Relaxed),
                Err(error) => return eprintln!("warning: the flood's subscriber: {error:#}"),
            }
        }
    });
    serve(&totals, move || {
        thread::spawn(move || {
            if let Err(error) = publish(&mut publisher, &message, &published) {
                eprintln!("warning: the flood: {error:#}");
            }
        });
    })?;
    std::process::exit(0)
}

fn publish(publisher: &mut Client, message: &[u8], totals: &Totals) -> Result<()> {
    let messages = (BUFFER_BYTES / message.len()).max(1);
    let batch = message.repeat(messages);
    let mut looked = Instant::now();
    loop {
        publisher.send(&batch)?;
        totals.published.fetch_add(messages as u64, Ordering::Relaxed);
        if looked.elapsed() > LOOK {
            looked = Instant::now();
            publisher.take_arrived()?;
        }
    }
}

/// A publisher, and a subscriber of this name.
fn ends(target: &Target, name: &str) -> Result<(Client, Client)> {
    let dialer = Dialer::new(target)?;
    let mut subscriber = dialer.connect(target.subscribe_at.as_deref().unwrap_or(&target.server))?;
    subscriber.subscribe(name, 1, false)?;
    Ok((dialer.connect(&target.server)?, subscriber))
}
