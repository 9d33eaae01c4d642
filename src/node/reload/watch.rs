//! What is looked at every second: files that have changed, outdated sections whose time is over, and whether the bundle is to
//! be signed afresh.

use std::path::Path;
use std::time::{Duration, SystemTime};

use glocal_core::bundle::BundleState;

use crate::context::Context;
use crate::trust::unix_now;

/// How often files and sections are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What tells that a file has changed: its time and its size.
type Look = Option<(SystemTime, u64)>;

fn look(file: &Path) -> Look {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn files(context: &Context) -> [Look; 2] {
    let config = context.config();
    [look(&config.file), look(&config.bundle)]
}

/// Says when the bundle in force has grown older than it was.
fn warn_of_age(context: &Context, before: BundleState) -> BundleState {
    let trust = context.trust();
    let (state, expires) = (trust.bundle_state(unix_now()), trust.bundle().head().expires);
    if state > before {
        match state {
            BundleState::Fresh => {}
            BundleState::Ageing => {
                tracing::warn!(%expires, "the bundle is past half of its life: have it signed afresh");
            }
            BundleState::Grace => tracing::error!(%expires, "the bundle has expired: no new sessions and bridges"),
            BundleState::Dead => {
                tracing::error!(%expires, "the bundle expired a day ago: all sessions and bridges end");
            }
        }
    }
    state
}

/// Reloads whenever the configuration or the bundle file has changed, until the node ends.
pub(crate) async fn watch(context: Context) {
    let mut seen = files(&context);
    let mut aged = BundleState::Fresh;
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = context.stop.cancelled() => return,
        }
        context.reloader.expire(&context).await;
        context.reloader.resign(&context).await;
        aged = warn_of_age(&context, aged);
        let now = files(&context);
        if now == seen {
            continue;
        }
        seen = now;
        tracing::info!("a file has changed: reloading");
        // What was refused is logged, and looked at again when the file changes again.
        let _ = context.reloader.reload(&context).await;
    }
}
