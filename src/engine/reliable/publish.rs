//! Publishing in a reliable class: room first, then copies.

use std::sync::Arc;

use glocal_core::limits::QUEUED_FRAME_OVERHEAD_BYTES;
use glocal_core::reliable::outgoing::{Receipt, Wanted};
use glocal_core::routes::Routes;
use glocal_core::time::Time;
use smallvec::SmallVec;

use super::{Asker, Flow, Flows, Parcel, Waiting, way};
use crate::batch::{Batch, Message, TargetGroups};
use crate::client::route::relay_to;
use crate::shared::Shared;
use glocal_core::port::SessionPort;

/// A window or a lane has no room: the publisher has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// One target broker of a publish.
#[derive(Clone, Debug)]
pub(crate) struct Chosen<'g> {
    pub(crate) target: TargetGroups<'g>,
    /// Whether plain subscribers are behind it.
    pub(crate) plain: bool,
    /// Whether only observers are.
    pub(crate) observes: bool,
}

/// What a message costs its windows.
pub(super) fn cost(message: &Message<'_>) -> usize {
    let parts = message.payload.len() + message.headers.len() + message.reply.len();
    parts + message.destination.raw().as_str().len() + QUEUED_FRAME_OVERHEAD_BYTES
}

/// Whether every target's window has room for the message; else `port` is told when there may be some.
///
/// # Errors
/// [`Full`].
pub(crate) fn take_room(
    shared: &Shared,
    message: &Message<'_>,
    chosen: &[Chosen<'_>],
    port: &Arc<SessionPort>,
) -> Result<(), Full> {
    let flows = shared.reliable().flows(message.tenant.key());
    let flow = flows.of(message.destination.class());
    let waited_for = chosen.iter().filter(|chosen| !chosen.observes).map(|chosen| chosen.target.broker);
    let outgoing = flow.outgoing.lock();
    if outgoing.room(waited_for, cost(message), &flow.budget) {
        return Ok(());
    }
    if port.wait() {
        // Under the lock of the windows: what opens them comes after.
        flow.waiters.lock().push(Arc::clone(port));
    }
    Err(Full)
}

/// Who published a message, and what they are told of it.
pub(crate) struct Asked<'p> {
    pub(crate) port: &'p Arc<SessionPort>,
    /// Their own number for it, where they want an acknowledgement.
    pub(crate) number: Option<u64>,
    /// How many it has reached when all have acknowledged it.
    pub(crate) targets: u32,
    /// What they are told instead.
    pub(crate) told: Option<u32>,
    /// How many sessions here have got it.
    pub(crate) here: usize,
}

/// Keeps a message for its targets and collects the copies that may leave now. Whether the acknowledgement comes later,
/// since somebody who counts is among them.
pub(crate) fn publish(
    shared: &Shared,
    routes: &Routes,
    message: &Message<'_>,
    chosen: SmallVec<[Chosen<'_>; 4]>,
    asked: &Asked<'_>,
    now: Time,
    batch: &mut Batch,
) -> bool {
    let flows = shared.reliable().flows(message.tenant.key());
    let flow = Arc::clone(flows.of(message.destination.class()));
    let bytes = cost(message);
    let waiting = asked.number.map(|number| Waiting { port: Arc::clone(asked.port), number, told: asked.told });
    // Whether another tenant has anybody who could answer is not the sender's to know.
    let asks = !message.reply.is_empty() && asked.told.is_none();
    let asker = asks.then(|| Asker::new(asked.port, asked.number, &chosen, asked.here));
    let parcel = Arc::new(Parcel { asker, ..Parcel::of(message, batch) });
    let (wanted, mut chosen) = wanted(shared, routes, message, chosen, &flow, &flows, bytes);
    let budget = &flow.budget;
    let mut outgoing = flow.outgoing.lock();
    let receipt = waiting.map_or(Receipt::default(), |waiting| outgoing.receipt(waiting, asked.targets));
    let (seq, steps) = outgoing.accept(parcel, bytes, &wanted, receipt, budget, now);
    let finished = outgoing.release(receipt);
    drop(outgoing);
    let mut steps = steps.into_iter();
    chosen.retain_mut(|chosen| {
        let step = steps.next().flatten();
        chosen.target.step = step.unwrap_or(chosen.target.step);
        step.is_some()
    });
    let message = Message { seq, ..*message };
    relay_to(shared, routes, chosen.into_iter().map(|chosen| chosen.target).collect(), &message, batch, |_| false);
    finished.is_none() && wanted.iter().any(|wanted| wanted.counts)
}

/// The targets as the flow sees them. An observer's copy that finds no room is left out, and counted.
fn wanted<'g>(
    shared: &Shared,
    routes: &Routes,
    message: &Message<'_>,
    chosen: SmallVec<[Chosen<'g>; 4]>,
    flow: &Flow,
    flows: &Flows,
    bytes: usize,
) -> (SmallVec<[Wanted; 4]>, SmallVec<[Chosen<'g>; 4]>) {
    use glocal_core::count::Drop as DropReason;
    let tenant = message.tenant;
    let (mut wanted, mut kept) = (SmallVec::new(), SmallVec::new());
    for one in chosen {
        let broker = one.target.broker;
        if one.observes && !flow.outgoing.lock().room([broker], bytes, &flow.budget) {
            tenant.counters().class(flow.class).dropped(DropReason::Congested, 1);
            continue;
        }
        wanted.push(Wanted {
            broker,
            groups: one.target.groups.iter().map(|group| (*group).clone()).collect(),
            plain: one.plain,
            counts: !one.observes,
            life: shared.reliable().life(flows, broker),
            way: way(shared, routes, tenant.key(), broker),
        });
        kept.push(one);
    }
    (wanted, kept)
}
