//! What one session feels while another floods. Routers of zenoh know no tenants: both are clients with keys of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use zenoh::bytes::ZBytes;
use zenoh::pubsub::Publisher;
use zenoh::qos::CongestionControl;
use zenoh::{Session, Wait};

use crate::flood::{FloodProcess, Totals, serve};
use crate::victim::{Hearing, measure};
use crate::{Options, SILENCE, open};

const VICTIM: &str = "bench/victim";
const FLOOD: &str = "bench/flood";

pub(crate) fn run(options: &Options) -> Result<()> {
    let (near, far) = ends(options)?;
    let hearing = Hearing::start();
    let heard = hearing.clone();
    let _subscriber = far
        .declare_subscriber(VICTIM)
        .callback(move |sample| heard.add(&sample.payload().to_bytes()))
        .wait()
        .map_err(|error| anyhow!("{error}"))?;
    let publisher = publisher(&near, VICTIM)?;
    let mut publish =
        |payload: &[u8]| publisher.put(ZBytes::from(payload.to_vec())).wait().map_err(|error| anyhow!("{error}"));
    let mut found = measure(&options.trickle, &hearing, &mut publish, || FloodProcess::start(&flood(options)?))?;
    found.insert("protocol".to_owned(), "zenoh".into());
    println!("{}", Value::Object(found));
    std::process::exit(0)
}

/// The arguments of the flood's process.
fn flood(options: &Options) -> Result<Vec<String>> {
    let cert = options.flood_cert.as_ref().context("--flood-cert is missing")?.display().to_string();
    let key = options.flood_key.as_ref().context("--flood-key is missing")?.display().to_string();
    let size = options.trickle.flood_size.to_string();
    let mut arguments = vec!["flood".to_owned()];
    for (name, value) in [
        ("--server", Some(&options.server)),
        ("--subscribe-at", options.subscribe_at.as_ref()),
        ("--cert", Some(&cert)),
        ("--key", Some(&key)),
        ("--size", Some(&size)),
    ] {
        arguments.extend(value.map(|value| [name.to_owned(), value.clone()]).into_iter().flatten());
    }
    Ok(arguments)
}

/// The flood's process.
pub(crate) fn run_flood(options: &Options) -> Result<()> {
    let (near, far) = ends(options)?;
    let totals = Arc::new(Totals::default());
    let counted = Arc::clone(&totals);
    let _subscriber = far
        .declare_subscriber(FLOOD)
        .callback(move |_| {
            counted.delivered.fetch_add(1, Ordering::Relaxed);
        })
        .wait()
        .map_err(|error| anyhow!("{error}"))?;
    let publisher = publisher(&near, FLOOD)?;
    let payload = ZBytes::from(vec![b'x'; options.trickle.size]);
    let began = Instant::now();
    while totals.delivered.load(Ordering::Relaxed) == 0 {
        ensure!(began.elapsed() < SILENCE, "nothing of the flood arrives");
        publisher.put(payload.clone()).wait().map_err(|error| anyhow!("{error}"))?;
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::scope(|scope| {
        serve(&totals, || {
            scope.spawn(|| {
                let published: &AtomicU64 = &totals.published;
                while publisher.put(payload.clone()).wait().is_ok() {
                    published.fetch_add(1, Ordering::Relaxed);
                }
            });
        })?;
        // The flood has no end of its own.
        std::process::exit(0)
    })
}

fn ends(options: &Options) -> Result<(Session, Session)> {
    let far = open(options, options.subscribe_at.as_deref().unwrap_or(&options.server))?;
    Ok((open(options, &options.server)?, far))
}

/// One that waits where there is no room, and whose messages are not dropped there.
fn publisher<'a>(session: &'a Session, key: &'static str) -> Result<Publisher<'a>> {
    session
        .declare_publisher(key)
        .congestion_control(CongestionControl::Block)
        .wait()
        .map_err(|error| anyhow!("{error}"))
}
