//! A steady trickle of one tenant, alone and beside the flood of another: the part that is the same for every protocol.
//! `raw-load` and `zenoh-load` share it.
//!
//! Latencies count from the moment a message was due. The trickle's ends have threads of their own, and the flood is
//! another process, so that what it costs to make a flood does not delay what is measured more than any process would.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::flood::{FloodProcess, Reading};
use crate::head::{Ear, HEAD_BYTES, Head};
use crate::pace::{Clock, Schedule};
use crate::watch::{Watch, starved};

/// Between two looks at what has arrived.
const LOOK: Duration = Duration::from_millis(10);
/// How long the first message may take to arrive.
const FIRST: Duration = Duration::from_secs(20);
/// The flow of what nobody counts, and those of the phases.
const WARM_UP: u16 = 0;
const ALONE: u16 = 1;
const BESIDE: u16 = 2;

/// What the trickle is.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Trickle {
    /// Messages a second.
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// Bytes of each payload.
    #[arg(long, default_value_t = 256)]
    pub(crate) size: usize,
    /// Seconds of each phase, alone and beside the flood.
    #[arg(long, default_value_t = 5.0)]
    duration: f64,
    /// Seconds before each phase that are not counted.
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Seconds after each phase in which late messages still count.
    #[arg(long, default_value_t = 10.0)]
    grace: f64,
    /// Bytes of each of the flood's payloads.
    #[arg(long, default_value_t = 1024)]
    pub(crate) flood_size: usize,
}

/// What the trickle's subscriber has heard; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Hearing {
    clock: Clock,
    ear: Arc<Mutex<Ear>>,
}

impl Hearing {
    /// Nothing was heard so far.
    pub(crate) fn start() -> Self {
        Self { clock: Clock::start(), ear: Arc::default() }
    }

    /// Takes in a payload that has just arrived.
    pub(crate) fn add(&self, payload: &[u8]) {
        let now = self.clock.now_ns();
        self.ear().add(payload, now);
    }

    fn ear(&self) -> MutexGuard<'_, Ear> {
        self.ear.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes one payload, and waits while the broker does not take it.
pub(crate) type Publish<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// Measures both phases. `flood` begins and is told to connect before the first, to flood before the second.
pub(crate) fn measure(
    trickle: &Trickle,
    hearing: &Hearing,
    publish: Publish<'_>,
    flood: impl FnOnce() -> Result<FloodProcess>,
) -> Result<Map<String, Value>> {
    ensure!(trickle.size >= HEAD_BYTES, "--size {} has no room for a time: at least {HEAD_BYTES}", trickle.size);
    ensure!(trickle.rate > 0.0 && trickle.duration > 0.0, "--rate and --duration must be positive");
    await_first(trickle, hearing, publish)?;
    let mut flood = flood()?;
    let watch = Watch::start();
    let alone = phase(trickle, hearing, publish, &watch, ALONE, &mut || Ok(()))?;
    flood.begin()?;
    let mut readings: Vec<Reading> = Vec::new();
    let mut read = || {
        readings.push(flood.read()?);
        Ok(())
    };
    let beside = phase(trickle, hearing, publish, &watch, BESIDE, &mut read)?;
    let mut report = Map::new();
    report.insert("alone".to_owned(), alone);
    report.insert("beside".to_owned(), beside);
    if let [before, after] = readings.as_slice() {
        report.insert("flood".to_owned(), before.until(after, trickle.flood_size));
    }
    Ok(report)
}

/// Publishes until something arrives: interest has to cross the link.
fn await_first(trickle: &Trickle, hearing: &Hearing, publish: Publish<'_>) -> Result<()> {
    let began = Instant::now();
    while hearing.ear().heard == 0 {
        ensure!(began.elapsed() < FIRST, "nothing arrives within {} s, without any flood", FIRST.as_secs());
        speak(trickle, hearing, publish, WARM_UP, Schedule::new(Instant::now(), 20.0), 2)?;
    }
    Ok(())
}

/// Publishes so many messages when they are due.
fn speak(
    trickle: &Trickle,
    hearing: &Hearing,
    publish: Publish<'_>,
    flow: u16,
    schedule: Schedule,
    count: u64,
) -> Result<()> {
    let mut payload = vec![b'x'; trickle.size];
    for number in 0..count {
        schedule.wait(number);
        let due = hearing.clock.at_ns(schedule.due(number));
        Head { flow, number: u32::try_from(number)?, due }.write(&mut payload);
        publish(&payload)?;
    }
    Ok(())
}

/// Warms up, publishes at the rate, and waits for what is late. `at` is called when counting begins and ends.
fn phase(
    trickle: &Trickle,
    hearing: &Hearing,
    publish: Publish<'_>,
    watch: &Watch,
    flow: u16,
    at: &mut dyn FnMut() -> Result<()>,
) -> Result<Value> {
    let warm_up = Schedule::new(Instant::now(), trickle.rate);
    speak(trickle, hearing, publish, WARM_UP, warm_up, warm_up.within(Duration::from_secs_f64(trickle.warm_up)))?;
    *hearing.ear() = Ear::of(flow);
    watch.take();
    at()?;
    let schedule = Schedule::new(Instant::now(), trickle.rate);
    let count = schedule.within(Duration::from_secs_f64(trickle.duration));
    speak(trickle, hearing, publish, flow, schedule, count)?;
    at()?;
    let late = watch.take();
    let deadline = Instant::now() + Duration::from_secs_f64(trickle.grace);
    while hearing.ear().tally.arrived < count && Instant::now() < deadline {
        std::thread::sleep(LOOK);
    }
    // A second copy comes after the first.
    std::thread::sleep(LOOK);
    let ear = std::mem::replace(&mut *hearing.ear(), Ear::of(WARM_UP));
    let mut found = Map::new();
    ear.latency.put(&mut found);
    let tally = &ear.tally;
    for (key, value) in [
        ("published", count),
        ("arrived", tally.arrived),
        ("lost", tally.lost(count)),
        ("doubled", tally.doubled),
        ("misordered", tally.misordered),
    ] {
        found.insert(key.to_owned(), json!(value));
    }
    found.insert("tool_late_p99_us".to_owned(), json!(late.quantile_ns(0.99) / 1_000));
    found.insert("tool_starved".to_owned(), json!(starved(&late, &ear.latency)));
    Ok(Value::Object(found))
}
