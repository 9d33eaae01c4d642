//! The task that owns the control half.

use glocal_core::limits::CONTROL_QUEUE_MAX;
use glocal_engine::driver::{Command, Driver, FOLLOW_MS, Outcome};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::context::{Inspection, KnownEdge, Request};

/// Requests applied before the tables are published once.
const BATCH_REQUESTS: usize = 256;
/// How long it works without letting other tasks of its thread have their turn, in microseconds.
const TURN_MICROS: u64 = 1_000;
/// How soon records that found no room are tried again, in milliseconds.
const PUMP_MS: u64 = 20;
/// How long edges have to come up before "nobody wants it" is believed without them, in milliseconds.
const SETTLE_MS: u64 = 1_500;
/// How often expired reply routes are forgotten, in milliseconds.
const SWEEP_MS: u64 = 1_000;

/// The queue to the control half.
#[must_use]
pub(crate) fn queue() -> (mpsc::Sender<Request>, mpsc::Receiver<Request>) {
    mpsc::channel(CONTROL_QUEUE_MAX)
}

/// Runs the control half until `stop`.
pub(crate) async fn run(
    mut driver: Driver,
    mut requests: mpsc::Receiver<Request>,
    clock: Clock,
    stop: CancellationToken,
) {
    let mut batch = Vec::with_capacity(BATCH_REQUESTS);
    let mut answers = Vec::new();
    let mut held: Vec<Answer> = Vec::new();
    let mut follow = tokio::time::interval(std::time::Duration::from_millis(FOLLOW_MS));
    follow.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut waiting = false;
    let mut sweep = tokio::time::interval(std::time::Duration::from_millis(SWEEP_MS));
    let settle = tokio::time::sleep(std::time::Duration::from_millis(SETTLE_MS));
    tokio::pin!(settle);
    // A node without edges has nobody to wait for.
    let mut settled = driver.is_alone();
    if settled {
        driver.apply(Command::Settle);
        driver.commit(clock.now());
    }
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            count = requests.recv_many(&mut batch, BATCH_REQUESTS) => {
                if count == 0 {
                    return;
                }
            }
            () = tokio::time::sleep(std::time::Duration::from_millis(PUMP_MS)), if waiting => {}
            () = &mut settle, if !settled => {
                settled = true;
                driver.apply(Command::Settle);
            }
            _ = sweep.tick() => driver.tick(clock.now()),
            _ = follow.tick() => driver.follow(clock.now()),
        }
        let mut since = clock.now();
        for request in batch.drain(..) {
            if clock.now().micros_since(since) > TURN_MICROS {
                // A flood of subscriptions must not keep liveness and other sessions from their turn.
                tokio::task::yield_now().await;
                since = clock.now();
            }
            match request {
                Request::Apply(commands, done) => {
                    let outcomes = commands.into_iter().map(|command| driver.apply(command)).collect();
                    answers.extend(done.map(|done| (done, outcomes)));
                }
                Request::Inspect(done) => {
                    // A caller that has gone away needs no answer.
                    let _ = done.send(inspect(&driver));
                }
            }
        }
        driver.commit(clock.now());
        driver.take_denials().iter().for_each(|line| tracing::warn!("{line}"));
        waiting = driver.is_waiting();
        held.append(&mut answers);
        for (done, outcomes) in held.extract_if(.., |(_, outcomes)| is_ready(&driver, outcomes)) {
            let _: Result<_, Vec<_>> = done.send(outcomes);
        }
    }
}

/// Who asked, and what it is told.
type Answer = (tokio::sync::oneshot::Sender<Vec<Outcome>>, Vec<Outcome>);

/// Whether nothing that was asked has still to be waited for.
fn is_ready(driver: &Driver, outcomes: &[Outcome]) -> bool {
    outcomes.iter().all(|outcome| match outcome {
        Outcome::Awaits(tenant) => driver.is_ready(*tenant),
        _ => true,
    })
}

fn inspect(driver: &Driver) -> Inspection {
    let control = driver.control();
    let tenants = driver.tenants();
    let filters = tenants.iter().map(|t| (t.id().to_string(), control.remote_filters(t.key())));
    let remote_filters = filters.filter(|(_, n)| *n > 0).collect();
    let name = |broker| control.brokers().name(broker).map(ToString::to_string).unwrap_or_default();
    let edges = control.topology().edges();
    let edges = edges.map(|(edge, ends, cost)| KnownEdge { name: edge.to_string(), ends: ends.map(name), cost });
    let present = tenants.iter().map(|t| (t.id().to_string(), control.present(t.key()).len()));
    let present = present.filter(|(_, n)| *n > 0).collect();
    Inspection { subscriptions: control.subscriptions(), remote_filters, present, edges: edges.collect() }
}
