//! Messages of reliable classes that have reached their target: in sequence into the sessions' lanes, or kept.

use std::sync::Arc;

use glocal_core::count::Drop as DropReason;
use glocal_core::data::{ReplyRoute, choose_local};
use glocal_core::limits::QUEUED_FRAME_OVERHEAD_BYTES;
use glocal_core::name::{Class, QueueGroup, RawName};
use glocal_core::port::Sub;
use glocal_core::reliable::incoming::{Bringer, Place, Verdict};
use glocal_core::reliable::outgoing::Step;
use glocal_core::table::Match;
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;
use glocal_wire::control::Memberless;
use smallvec::SmallVec;

use super::{Flow, Parcel, Unsettled};
use crate::batch::{Batch, Message};
use crate::routed;
use crate::shared::Shared;

/// One message for this broker.
pub(crate) struct Arrived<'a, 'm> {
    pub(crate) shared: &'a Shared,
    pub(crate) message: &'a Message<'m>,
    pub(crate) groups: &'a [QueueGroup],
    pub(crate) step: Step,
    pub(crate) bringer: Bringer,
    /// By whose turn members of groups are chosen.
    pub(crate) turn: u64,
}

/// Takes a message for this broker; `found` is who wants it. `false` when it cannot be what its origin sent.
pub(crate) fn arrive<'f>(
    arrived: &Arrived<'_, '_>,
    found: impl FnOnce() -> Option<&'f Match>,
    now: Time,
    batch: &mut Batch,
) -> bool {
    let Arrived { shared, message, groups, step, bringer, turn } = *arrived;
    let (tenant, class, origin) = (message.tenant, message.destination.class(), message.sender.origin());
    let counters = tenant.counters().class(class);
    let flow = Arc::clone(shared.reliable().flows(tenant.key()).of(class));
    if !shared.reliable().may_be(origin, message.incarnation) {
        // It may be ahead of its origin's signature; if it is true it comes again.
        counters.dropped(DropReason::Early, 1);
        return true;
    }
    if step.life != shared.incarnation() {
        // Meant for an earlier life, or by one who does not know any: the answer tells.
        counters.dropped(DropReason::Late, 1);
        unsettle(batch, &flow, tenant, arrived, Some(message.incarnation));
        return true;
    }
    let whole = message.payload.len() + message.headers.len() + message.reply.len();
    let bytes = whole + message.destination.raw().as_str().len() + QUEUED_FRAME_OVERHEAD_BYTES;
    let place = Place { origin, incarnation: message.incarnation, seq: message.seq, back: step.back, bytes };
    let budget = &flow.budget;
    let mut ended = Vec::new();
    let mut incoming = flow.incoming.lock();
    let verdict = incoming.offer(&place, bringer, budget, now, &mut ended);
    counters.dropped(DropReason::OriginGone, ended.len() as u64);
    match verdict {
        Verdict::Deliver => {
            let Some(found) = found() else { return true };
            if deliver(shared, found, groups, message, turn, now, batch) {
                incoming.delivered(origin, message.seq, bringer, budget, now);
            } else {
                let parcel = Parcel { groups: groups.iter().cloned().collect(), ..Parcel::of(message, batch) };
                incoming.keep(&place, Arc::new(parcel), budget);
            }
        }
        Verdict::Early => {
            let parcel = Parcel { groups: groups.iter().cloned().collect(), ..Parcel::of(message, batch) };
            incoming.keep(&place, Arc::new(parcel), budget);
        }
        Verdict::Repeat => counters.dropped(DropReason::Repeat, 1),
        Verdict::Stale => counters.dropped(DropReason::Late, 1),
        Verdict::Full | Verdict::TooMany => counters.dropped(DropReason::Early, 1),
        Verdict::Malformed => counters.dropped(DropReason::Malformed, 1),
    }
    drop(incoming);
    match verdict {
        Verdict::Malformed => return false,
        Verdict::Stale | Verdict::TooMany => {}
        _ => unsettle(batch, &flow, tenant, arrived, None),
    }
    true
}

/// Notes that an origin is to be told how far its messages have got, once for each batch.
fn unsettle(
    batch: &mut Batch,
    flow: &Arc<Flow>,
    tenant: &Arc<Tenant>,
    arrived: &Arrived<'_, '_>,
    stranger: Option<u64>,
) {
    let origin = arrived.message.sender.origin();
    match batch.unsettled.iter_mut().find(|one| one.origin == origin && Arc::ptr_eq(&one.flow, flow)) {
        Some(one) => one.stranger = one.stranger.or(stranger),
        None => batch.unsettled.push(Unsettled {
            flow: Arc::clone(flow),
            tenant: Arc::clone(tenant),
            origin,
            bringer: arrived.bringer,
            stranger,
        }),
    }
}

/// Delivers a message that was kept; `false` when a lane has no room.
pub(super) fn deliver_kept(
    shared: &Shared,
    tenant: &Arc<Tenant>,
    class: Class,
    seq: u64,
    parcel: &Parcel,
    now: Time,
    batch: &mut Batch,
) -> bool {
    let Some(message) = parcel.message(tenant, class, seq) else { return true };
    let found = tenant.table().find(class, message.destination.raw(), &tenant.section());
    deliver(shared, &found, &parcel.groups, &message, seq, now, batch)
}

/// A group with the member that serves it, if there is one.
type Served<'m> = (&'m QueueGroup, Option<&'m Arc<Sub>>);

/// Delivers to everybody here, if all their lanes have room; observers are not asked.
fn deliver(
    shared: &Shared,
    found: &Match,
    groups: &[QueueGroup],
    message: &Message<'_>,
    turn: u64,
    now: Time,
    batch: &mut Batch,
) -> bool {
    batch.begin();
    let member = |name: &QueueGroup| {
        let group = found.groups.iter().find(|group| group.name == *name)?;
        choose_local(group, turn, |sub| !sub.is_over())
    };
    let members: SmallVec<[Served<'_>; 2]> = groups.iter().map(|g| (g, member(g))).collect();
    // What is sent again is for a member that was chosen instead: everybody else had a copy of their own.
    let ports = if message.redelivered { &[] } else { found.ports.as_slice() };
    let plain = ports.iter().filter(|target| target.subs.iter().any(|sub| !sub.is_observer()));
    let members_of = members.iter().filter_map(|(_, sub)| Some(sub.as_ref()?.port()));
    if !batch.have_room(plain.map(|target| &target.port).chain(members_of), message, now) {
        return false;
    }
    let mut responders = false;
    for target in ports {
        let delivered = batch.deliver(&target.port, target.qualified, target.subs.iter(), message);
        responders |= delivered && target.subs.iter().any(|s| !s.is_observer());
    }
    for (name, sub) in members {
        let served =
            sub.is_some_and(|sub| batch.deliver(sub.port(), sub.is_qualified(), std::iter::once(sub), message));
        responders |= served;
        if !served {
            without_member(shared, message, name, now);
        }
    }
    if responders && let Ok(reply) = RawName::parse(message.reply) {
        let route = ReplyRoute { origin: message.sender.origin(), token: message.reply_token.unwrap_or(0) };
        message.tenant.replies().remember(reply.as_str(), route, now);
    }
    true
}

/// Counts that a group has nobody here any more, and tells the origin, which picks again.
fn without_member(shared: &Shared, message: &Message<'_>, group: &QueueGroup, now: Time) {
    let class = message.destination.class();
    message.tenant.counters().class(class).dropped(DropReason::NoMember, 1);
    let (incarnation, seq) = (message.incarnation, message.seq);
    let body = Memberless { class: class.code(), incarnation, seq, group: group.as_str().to_owned() };
    routed::send(shared, message.tenant, message.sender.origin(), &body.into(), now);
}
