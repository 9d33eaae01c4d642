//! What happens after a first attempt: sending again, choosing again, and what other brokers say about it.

use std::sync::Arc;

use bytes::BytesMut;
use glocal_core::count::Drop as DropReason;
use glocal_core::data::choose_local;
use glocal_core::limits::QUALIFIED_BYTES_MAX;
use glocal_core::name::{Class, QueueGroup};
use glocal_core::port::Dialect;
use glocal_core::reliable::outgoing::{AckError, Groups, Orphan, Sending, Wanted, Way};
use glocal_core::routes::{BrokerIndex, Routes};
use glocal_core::tenant::{Tenant, TenantKey};
use glocal_core::time::Time;
use glocal_wire::control::{Control, Delivered, Memberless, NoResponders, clip};
use smallvec::SmallVec;

use super::request::on_unserved;
use super::{Flow, Flows, Parcel, TICK, Unsettled, tell, way};
use crate::batch::{Batch, Message, TargetGroups};
use crate::client::route::relay_to;
use crate::link::append;
use crate::shared::Shared;

/// Sends again what is due, looks after what waits for a lane's room, and gives up what has waited too long.
pub fn tick(shared: &Shared, now: Time, batch: &mut Batch) {
    let flows: Vec<_> = {
        let tenants = shared.reliable().tenants.read();
        tenants.iter().map(|(key, flows)| (*key, Arc::clone(flows))).collect()
    };
    let tenants = shared.tenants();
    for (key, flows) in flows {
        flows.requests.lock().sweep(now);
        let Some(tenant) = tenants.by_key(key) else { continue };
        for flow in flows.both() {
            send_due(shared, tenant, flow, &flows, now, batch);
            wake_kept(tenant, flow, now, batch);
            if flow.budget.take_short() {
                // What others of the tenant have given back wakes nobody.
                flow.wake();
            }
        }
        batch.relieve(shared, now);
    }
}

/// When the frame was queued that leaves the lane of a flow over an edge next.
fn lane_since(shared: &Shared, tenant: &Tenant, flow: &Flow, way: Way) -> Option<Time> {
    let link = shared.link(way.edge)?;
    link.inbox().with(|lanes| lanes.sched().lane_since(tenant.key(), flow.class))
}

fn send_due(shared: &Shared, tenant: &Arc<Tenant>, flow: &Arc<Flow>, flows: &Flows, now: Time, batch: &mut Batch) {
    let orphans = std::mem::take(&mut *flow.orphans.lock());
    for (broker, orphan) in orphans {
        adopt(shared, tenant, flow, flows, (broker, orphan), now, batch);
    }
    let routes = Arc::clone(tenant.table().routes());
    let mut outgoing = flow.outgoing.lock();
    if outgoing.is_idle() {
        return outgoing.sweep(now);
    }
    outgoing.hold(now, |way| lane_since(shared, tenant, flow, way));
    let due = outgoing.due(now, &flow.budget, |broker| way(shared, &routes, tenant.key(), broker));
    drop(outgoing);
    for sending in &due.sendings {
        send(shared, tenant, flow.class, &routes, sending, batch);
    }
    let given_up = !due.orphans.is_empty();
    for (broker, orphan) in due.orphans {
        adopt(shared, tenant, flow, flows, (broker, orphan), now, batch);
    }
    if given_up {
        flow.wake();
    }
}

/// Messages whose turn has come and that found no room, or whose bringer has ended.
fn wake_kept(tenant: &Arc<Tenant>, flow: &Arc<Flow>, now: Time, batch: &mut Batch) {
    let mut incoming = flow.incoming.lock();
    let mut ended = Vec::new();
    incoming.give_up(now, &flow.budget, &mut ended);
    tenant.counters().class(flow.class).dropped(DropReason::OriginGone, ended.len() as u64);
    let waiting: SmallVec<[BrokerIndex; 4]> = incoming.waiting().collect();
    let ready = waiting.into_iter().filter(|origin| incoming.ready(*origin, TICK, now).is_some());
    batch.unsettled.extend(ready.map(|origin| Unsettled {
        flow: Arc::clone(flow),
        tenant: Arc::clone(tenant),
        origin,
        bringer: TICK,
        stranger: None,
    }));
    if incoming.flows() > 0 {
        incoming.sweep(now);
    }
}

/// A broker was heard of in some life: by a lane of `tenant`, which is believed as far as it goes, or without one by its own
/// signature or over its own bridge.
pub(crate) fn heard(shared: &Shared, tenant: Option<TenantKey>, broker: BrokerIndex, life: u64) {
    if tenant.is_none() {
        let mut signed = shared.reliable().signed.write();
        let known = signed.entry(broker).or_insert(0);
        *known = life.max(*known);
    } else if !shared.reliable().may_be(broker, life) {
        return;
    }
    let flows: Vec<(TenantKey, Arc<Flows>)> = match tenant {
        Some(key) => vec![(key, shared.reliable().flows(key))],
        None => shared.reliable().tenants.read().iter().map(|(key, flows)| (*key, Arc::clone(flows))).collect(),
    };
    for (tenant, flows) in flows {
        let newer = {
            let mut lives = flows.lives.lock();
            let known = lives.entry(broker).or_insert(0);
            let newer = *known < life;
            *known = life.max(*known);
            newer
        };
        if newer {
            flows.both().into_iter().for_each(|flow| reborn(shared, tenant, flow, broker, life));
        }
    }
}

/// Takes back what an earlier life of a broker has not acknowledged, and forgets what came of it too early.
fn reborn(shared: &Shared, tenant: TenantKey, flow: &Flow, broker: BrokerIndex, life: u64) {
    let ended = flow.incoming.lock().reborn(broker, life, &flow.budget).len();
    if let Some(tenant) = shared.tenants().by_key(tenant) {
        tenant.counters().class(flow.class).dropped(DropReason::OriginGone, ended as u64);
    }
    let orphans = flow.outgoing.lock().reborn(broker, life, &flow.budget);
    if !orphans.is_empty() {
        flow.orphans.lock().extend(orphans.into_iter().map(|orphan| (broker, orphan)));
        flow.wake();
    }
}

/// This broker begins another life: what its targets have not acknowledged is theirs under new numbers.
pub(crate) fn begin_life(shared: &Shared, incarnation: u64, now: Time) {
    let tenants: Vec<_> = shared.reliable().tenants.read().values().cloned().collect();
    for flows in tenants {
        for flow in flows.both() {
            let budget = &flow.budget;
            let mut outgoing = flow.outgoing.lock();
            for (broker, orphan) in outgoing.restart(budget) {
                let Orphan { message: parcel, bytes, groups, plain, counts, receipt } = orphan;
                let life = shared.reliable().life(&flows, broker);
                let wanted = Wanted { broker, groups, plain, counts, life, way: None };
                outgoing.accept(Arc::new(parcel.in_life(incarnation)), bytes, &[wanted], receipt, budget, now);
                // Never the last: the copy that was accepted holds the receipt.
                let _ = outgoing.release(receipt);
            }
        }
    }
}

/// Takes what another broker says of this one's messages; anything else comes back.
pub(crate) fn on_letter(
    shared: &Shared,
    tenant: &Arc<Tenant>,
    (from, life): (BrokerIndex, u64),
    control: Control,
    now: Time,
    batch: &mut Batch,
) -> Option<Control> {
    match control {
        Control::Delivered(body) => on_delivered(shared, tenant, (from, life), &body, now),
        Control::Overflowed(body) => {
            if let Some((_, flow)) = own_flow(shared, tenant, body.class, body.incarnation) {
                flow.outgoing.lock().dropped(body.seq, now);
            }
        }
        Control::Unserved(body) => {
            let known = body.incarnation == shared.incarnation() && on_unserved(shared, tenant, from, &body, batch);
            if let Some(class) = Class::from_code(body.class).filter(|_| !known) {
                tenant.counters().class(class).dropped(DropReason::BadTarget, 1);
            }
        }
        Control::Memberless(body) => on_memberless(shared, tenant, from, &body, now, batch),
        other => return Some(other),
    }
    None
}

/// The flow that a letter speaks of, if it is of this life.
fn own_flow(shared: &Shared, tenant: &Tenant, class: u8, incarnation: u64) -> Option<(Arc<Flows>, Arc<Flow>)> {
    let class = Class::from_code(class).filter(|class| class.is_reliable())?;
    let flows = shared.reliable().known(tenant.key()).filter(|_| incarnation == shared.incarnation())?;
    let flow = Arc::clone(flows.of(class));
    Some((flows, flow))
}

fn on_delivered(shared: &Shared, tenant: &Arc<Tenant>, (from, life): (BrokerIndex, u64), body: &Delivered, now: Time) {
    let Some((_, flow)) = own_flow(shared, tenant, body.class, body.incarnation) else { return };
    if !shared.reliable().may_be(from, life) {
        return tenant.counters().class(flow.class).dropped(DropReason::BadTarget, 1);
    }
    let counters = tenant.counters().class(flow.class);
    if !flow.outgoing.lock().is_target(from) {
        return counters.dropped(DropReason::BadTarget, 1);
    }
    heard(shared, Some(tenant.key()), from, life);
    reborn(shared, tenant.key(), &flow, from, life);
    let mut finished = Vec::new();
    let budget = &flow.budget;
    let through = (body.through, body.gap);
    let acknowledged = flow.outgoing.lock().acknowledged(from, life, through, budget, now, &mut finished);
    match acknowledged {
        Ok(true) => flow.wake(),
        Ok(false) | Err(AckError::Stale) => {}
        Err(AckError::NoTarget | AckError::NeverSent) => counters.dropped(DropReason::BadTarget, 1),
    }
    tell(finished);
}

fn on_memberless(
    shared: &Shared,
    tenant: &Arc<Tenant>,
    from: BrokerIndex,
    body: &Memberless,
    now: Time,
    batch: &mut Batch,
) {
    let Some((flows, flow)) = own_flow(shared, tenant, body.class, body.incarnation) else { return };
    let Ok(group) = QueueGroup::parse(&body.group) else { return };
    let orphan = flow.outgoing.lock().no_member(from, body.seq, &group);
    match orphan {
        Some(orphan) => adopt(shared, tenant, &flow, &flows, (from, orphan), now, batch),
        None => tenant.counters().class(flow.class).dropped(DropReason::BadTarget, 1),
    }
}

/// Looks after a copy that its target will not deliver: plain subscribers there are left without, and counted; of every
/// group another member is chosen.
fn adopt(
    shared: &Shared,
    tenant: &Arc<Tenant>,
    flow: &Arc<Flow>,
    flows: &Flows,
    (broker, orphan): (BrokerIndex, Orphan<Arc<Parcel>>),
    now: Time,
    batch: &mut Batch,
) {
    let Orphan { message: parcel, bytes, groups, plain, counts, receipt } = orphan;
    let counters = tenant.counters().class(flow.class);
    let lose = || {
        counters.dropped(DropReason::TargetGone, 1);
        flow.outgoing.lock().missed(receipt);
    };
    let mut lost = usize::from(plain && counts);
    if plain {
        lose();
    }
    let parcel = Arc::new(parcel.again(broker));
    for group in &groups {
        match choose_again(shared, tenant, flow.class, 0, &parcel, group, batch) {
            Some(Instead::Here) => {}
            Some(Instead::There(other)) => {
                let routes = Arc::clone(tenant.table().routes());
                let groups = Groups::from_iter([group.clone()]);
                let wanted = Wanted {
                    broker: other,
                    groups: groups.clone(),
                    plain: false,
                    counts: true,
                    life: shared.reliable().life(flows, other),
                    way: way(shared, &routes, tenant.key(), other),
                };
                let budget = &flow.budget;
                let (seq, steps) =
                    flow.outgoing.lock().accept(Arc::clone(&parcel), bytes, &[wanted], receipt, budget, now);
                if let Some(step) = steps.first().copied().flatten() {
                    let sending = Sending { seq, target: other, groups, step, message: Arc::clone(&parcel) };
                    send(shared, tenant, flow.class, &routes, &sending, batch);
                }
            }
            None => {
                lose();
                lost += 1;
            }
        }
    }
    if parcel.asker.as_ref().is_some_and(|asker| asker.lose(lost)) {
        no_responders(tenant, flow.class, &parcel, batch);
    }
    let finished = flow.outgoing.lock().release(receipt);
    tell(finished);
}

/// Sends one copy to one broker.
pub(super) fn send(
    shared: &Shared,
    tenant: &Arc<Tenant>,
    class: Class,
    routes: &Routes,
    sending: &Sending<Arc<Parcel>>,
    batch: &mut Batch,
) {
    let Some(message) = sending.message.message(tenant, class, sending.seq) else { return };
    batch.begin();
    let groups = sending.groups.iter().collect();
    let target = TargetGroups { groups, step: sending.step, ..TargetGroups::plain(sending.target) };
    relay_to(shared, routes, SmallVec::from_iter([target]), &message, batch, |_| false);
}

/// Where a member of a group was found instead.
pub(super) enum Instead {
    Here,
    There(BrokerIndex),
}

/// Picks another member: here first, where it is delivered to at once, then at the nearest broker not tried yet.
pub(super) fn choose_again(
    shared: &Shared,
    tenant: &Arc<Tenant>,
    class: Class,
    seq: u64,
    parcel: &Parcel,
    group: &QueueGroup,
    batch: &mut Batch,
) -> Option<Instead> {
    let message: Message<'_> = parcel.message(tenant, class, seq)?;
    let found = tenant.table().find(class, message.destination.raw(), &tenant.section());
    let members = found.groups.iter().find(|members| members.name == *group)?;
    batch.begin();
    let turn = shared.next_turn();
    if let Some(sub) = choose_local(members, turn, |sub| !sub.is_over())
        && batch.deliver(sub.port(), sub.is_qualified(), std::iter::once(sub), &message)
    {
        return Some(Instead::Here);
    }
    members.remotes.iter().find(|broker| !parcel.tried.contains(broker)).copied().map(Instead::There)
}

/// Tells whoever sent a request that nobody is left to answer it, if the tenant's view is complete.
pub(super) fn no_responders(tenant: &Arc<Tenant>, class: Class, parcel: &Parcel, batch: &mut Batch) {
    let Some((asker, message)) = parcel.asker.as_ref().zip(parcel.message(tenant, class, 0)) else { return };
    if !tenant.table().in_sync() {
        return;
    }
    let name = message.destination.raw().as_str().as_bytes();
    match asker.port.dialect() {
        Dialect::Native => {
            let (subject, reply) = (clip(name, QUALIFIED_BYTES_MAX), clip(message.reply, QUALIFIED_BYTES_MAX));
            let mut frame = BytesMut::new();
            append(&mut frame, &NoResponders { seq: asker.number, subject, reply }.into());
            let _ = asker.port.inbox().push_batch(|lanes| lanes.push_control(frame.freeze()));
        }
        Dialect::Nats { headers } if headers => {
            /// What clients of the text protocol take for it.
            const STATUS: &[u8] = b"NATS/1.0 503\r\n\r\n";
            let Ok(raw) = glocal_core::name::RawName::parse(message.reply) else { return };
            let found = tenant.table().find(Class::Live, raw, &tenant.section());
            let destination = glocal_core::name::Destination::of(tenant.id(), Class::Live, raw);
            let status = Message { destination, reply: b"", headers: STATUS, payload: b"", ..message };
            batch.begin();
            for target in found.ports.iter().filter(|target| target.port.id() == asker.port.id()) {
                batch.deliver(&target.port, target.qualified, target.subs.iter(), &status);
            }
        }
        Dialect::Nats { .. } => {}
    }
}
