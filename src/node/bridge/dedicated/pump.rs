//! From the edge's scheduler to the tenants' connections.
//!
//! There is one scheduler for the edge: weights hold where its rate or its memory is what is short. A tenant whose
//! connection is not there, or still has what it was given last, is held there and keeps nobody waiting; so each connection
//! goes at the pace of its own path.

use glocal_core::limits::TENANT_BATCHES_MAX;
use glocal_core::tenant::TenantKey;
use glocal_engine::lane_writer::{Due, LaneWriter, StreamWrite};
use glocal_engine::link::{EdgeLanes, Link};
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::writer::{self, SWEEP};
use crate::context::Context;

/// What goes to one connection at once.
pub(super) type Batch = Vec<StreamWrite>;

/// The way to each tenant's connection that is up.
#[derive(Debug, Default)]
pub(in super::super) struct Ways {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    ways: HashMap<TenantKey, (mpsc::Sender<Batch>, CancellationToken)>,
    /// Tenants whose connection is another one than before.
    fresh: Vec<TenantKey>,
}

impl Ways {
    /// A connection may be sent to: its batches come out here. `cancel` ends it if it leaves them.
    pub(super) fn open(&self, link: &Link, tenant: TenantKey, cancel: CancellationToken) -> mpsc::Receiver<Batch> {
        let (sender, batches) = mpsc::channel(TENANT_BATCHES_MAX);
        {
            let mut inner = self.inner.lock();
            inner.ways.insert(tenant, (sender, cancel));
            inner.fresh.push(tenant);
        }
        Self::go_on(link, tenant);
        batches
    }

    /// The connection has written what it was given.
    pub(super) fn go_on(link: &Link, tenant: TenantKey) {
        link.inbox().with(|lanes| lanes.sched_mut().release(tenant));
        link.inbox().wake();
    }

    /// The connection is gone.
    pub(super) fn close(&self, link: &Link, tenant: TenantKey) {
        self.inner.lock().ways.remove(&tenant);
        link.inbox().with(|lanes| lanes.sched_mut().hold(tenant));
    }

    fn take_fresh(&self) -> Vec<TenantKey> {
        std::mem::take(&mut self.inner.lock().fresh)
    }

    /// Hands on what was taken for each tenant. What is for a connection that has just gone is lost with it.
    fn hand(&self, writes: Vec<StreamWrite>) {
        let mut batches: Vec<(TenantKey, Batch)> = Vec::new();
        for write in writes {
            match batches.iter_mut().find(|(tenant, _)| *tenant == write.tenant) {
                Some((_, batch)) => batch.push(write),
                None => batches.push((write.tenant, vec![write])),
            }
        }
        let inner = self.inner.lock();
        for (tenant, batch) in batches {
            if let Some((way, cancel)) = inner.ways.get(&tenant)
                && let Err(mpsc::error::TrySendError::Full(_)) = way.try_send(batch)
            {
                // Slices are missing from its stream now.
                cancel.cancel();
            }
        }
    }
}

/// Hands what the lanes hold to the tenants' connections, in the scheduler's order; never ends by itself.
pub(in super::super) async fn run(context: &Context, link: &Link, ways: &Ways) -> std::convert::Infallible {
    let mut writer = LaneWriter::default();
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        let writes = tokio::select! {
            due = writer::next(context, link, None, |lanes| take(context, link, ways, &mut writer, lanes)) => match due {
                Due::Writes(writes) => writes,
                Due::Later(until) => {
                    tokio::time::sleep_until(context.clock.instant(until)).await;
                    continue;
                }
            },
            _ = sweep.tick() => link.inbox().with(|lanes| {
                ways.take_fresh().into_iter().for_each(|tenant| writer.forget(tenant));
                writer.sweep(lanes, &context.shared, context.clock.now())
            }),
        };
        ways.hand(writes);
    }
}

/// Takes what comes next, and holds those it is for until their connections have written it.
fn take(context: &Context, link: &Link, ways: &Ways, writer: &mut LaneWriter, lanes: &mut EdgeLanes) -> Option<Due> {
    ways.take_fresh().into_iter().for_each(|tenant| writer.forget(tenant));
    let due = writer.next(link, lanes, &context.shared, context.clock.now(), writer::FILL_BYTES)?;
    if let Due::Writes(writes) = &due {
        writes.iter().for_each(|write| lanes.sched_mut().hold(write.tenant));
    }
    Some(due)
}
