//! The task that looks after acknowledged delivery.

use std::time::Duration;

use glocal_core::limits::RELIABLE_TICK_MS;
use glocal_engine::batch::Batch;
use glocal_engine::driver::Command;
use glocal_engine::reliable;
use tokio::time::MissedTickBehavior;

use crate::context::Context;

/// Runs until the node ends.
pub(crate) async fn run(context: Context) {
    let mut batch = Batch::default();
    let mut ticks = tokio::time::interval(Duration::from_millis(RELIABLE_TICK_MS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = context.stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let now = context.clock.now();
        reliable::tick(&context.shared, now, &mut batch);
        batch.flush(&context.shared, now);
        let ended = batch.finished.drain(..);
        let commands: Vec<_> = ended.map(|(session, sid)| Command::Unsubscribe { session, sid, max: None }).collect();
        if !commands.is_empty() {
            context.control.apply(commands).await;
        }
    }
}
