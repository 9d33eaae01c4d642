//! Beginning another life while the node runs: the fabric knows a later one of its own (DESIGN section 5, Incarnation).
//!
//! A broker whose disk was wiped and whose clock was set back starts in a life that others hold for over, and no edge of it
//! is believed to be up. When its own record comes back to it, signed by its own leaf key, it exceeds it: the new life is
//! stored, every bridge ends, the control half changes over while none can come up, and they are dialled again. Sessions
//! stay. Core says when (`glocal_core::topology::Lives`).

use glocal_core::topology::{Exceed, Lives};
use glocal_engine::driver::{Change, Command, Life};
use tokio::sync::watch;

use crate::context::Context;
use crate::state;
use crate::trust::{NodeLinkCrypto, admit_by};

/// Where bridges tell of a later life of this node.
#[derive(Debug)]
pub struct LaterLife(watch::Sender<u64>);

impl Default for LaterLife {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl LaterLife {
    /// A record of a later life has come, signed by this node's own key.
    pub(crate) fn heard(&self, life: u64) {
        self.0.send_if_modified(|known| life > std::mem::replace(known, life.max(*known)));
    }
}

/// Exceeds every later life of this node that is heard of, until the node ends.
pub(crate) async fn watch(context: Context) {
    let mut heard = context.later_life.0.subscribe();
    let mut lives = Lives::default();
    loop {
        lives.heard(*heard.borrow_and_update());
        let now = context.clock.now();
        let wait = match lives.next(context.shared.incarnation(), state::unix_ms(), now) {
            Exceed::Stay => None,
            Exceed::Exhausted => {
                tracing::error!("this broker is known in the last of all lives: its key has been misused, replace it");
                None
            }
            Exceed::Wait(until) => Some(until),
            Exceed::Begin(incarnation) => {
                // Whether it works or not, the next one is a pause away.
                lives.begun(now);
                match begin(&context, incarnation).await {
                    Ok(()) => context.counters.lives_exceeded.add(1),
                    Err(error) => tracing::error!(incarnation, "a later life could not be begun: {error}"),
                }
                continue;
            }
        };
        let pause = async {
            match wait {
                Some(until) => tokio::time::sleep_until(context.clock.instant(until)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = heard.changed() => if changed.is_err() { return },
            () = pause => {}
            () = context.stop.cancelled() => return,
        }
    }
}

/// Why a life was not begun; the node goes on in the one it has.
#[derive(Debug, thiserror::Error)]
enum BeginError {
    #[error(transparent)]
    State(#[from] state::StateError),
    #[error(transparent)]
    Key(#[from] crate::trust::LinkKeyError),
}

async fn begin(context: &Context, incarnation: u64) -> Result<(), BeginError> {
    let before = context.shared.incarnation();
    tracing::warn!(
        before,
        incarnation,
        "this broker is known in a later life: its disk or its clock has gone back; it begins another, bridges are dialled again"
    );
    state::store_incarnation(&context.config().state_dir, incarnation)?;
    let live = context.trust.clone();
    let admit = admit_by(move || live.now());
    let crypto = NodeLinkCrypto::make(&context.shared.fabric, context.trust().identity(), incarnation, admit)?;
    let statuses = context.edges.list();
    let end_bridges = || {
        for status in &statuses {
            if let Some(holder) = status.holder.lock().as_ref() {
                holder.cancel.cancel();
            }
        }
    };
    end_bridges();
    let mut turns = Vec::with_capacity(statuses.len());
    for status in &statuses {
        turns.push(status.turn.lock().await);
    }
    let life = Life { incarnation, crypto: Box::new(crypto), now: context.clock.now() };
    context.control.apply(vec![Command::Change(Change::Life(Box::new(life)))]).await;
    // Whoever waits for a turn has said hello in the life before.
    end_bridges();
    Ok(())
}
