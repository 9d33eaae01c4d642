//! Relayed messages: for this broker, for others further on, or both.

use std::sync::Arc;

use glocal_core::count::Drop as DropReason;
use glocal_core::data::{ReplyRoute, choose_local};
use glocal_core::limits::{HOPS_MAX, MATCH_CACHE_MAX, MATCH_CACHE_WEIGHT_MAX};
use glocal_core::name::{Destination, QueueGroup, RawName};
use glocal_core::policy::Relay;
use glocal_core::reliable::incoming::Bringer;
use glocal_core::reliable::outgoing::Step;
use glocal_core::routes::{BrokerIndex, Routes};
use glocal_core::table::{Match, PortTarget};
use glocal_core::tally::{self, Counts, Received};
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;
use glocal_wire::data::{DataFrame, DataKind};
use hashbrown::HashMap;
use smallvec::SmallVec;

use super::{BridgeFault, Incoming, Lane};
use crate::batch::{Batch, Message, TargetGroups, Wanted};
use crate::client::route::relay_to;
use crate::reliable::{self, Arrived};
use crate::sender::{Delivered, Sender};
use crate::shared::Shared;

/// Whose message a frame is, and where it stands among theirs.
pub(super) struct Source {
    sender: Arc<Sender>,
    incarnation: u64,
    last_seq: u64,
    pub(super) delivered: Arc<Delivered>,
    pub(super) received: Counts,
}

/// One target of a frame, with its groups.
pub(super) type Addressed = (BrokerIndex, Vec<QueueGroup>, Step);

/// How this broker delivers what is for itself.
#[derive(Clone, Copy)]
enum Own<'d> {
    /// In the turn of the reader, unless it has delivered this one or a later one.
    Turn(u64, &'d Delivered, &'d Received),
    /// In the sequence of the origin.
    Sequence(u64, Bringer),
}

impl Lane {
    pub(super) fn on_relay(
        &mut self,
        incoming: &Incoming,
        tenant: &Arc<Tenant>,
        frame: &DataFrame<'_>,
        (turn, bringer): (u64, Bringer),
        now: Time,
        batch: &mut Batch,
    ) -> Result<(), BridgeFault> {
        if frame.kind != DataKind::Relay {
            return Err(BridgeFault::Unexpected("data frame of a client"));
        }
        let counters = tenant.counters().class(self.class);
        let reply = if frame.reply.is_empty() { Ok(()) } else { RawName::parse(frame.reply).map(|_| ()) };
        let raw = match reply.and_then(|()| RawName::parse(frame.name)) {
            Ok(raw) if frame.class == Some(self.class) && frame.seq.is_some_and(|seq| seq > 0) => raw,
            _ => {
                counters.dropped(DropReason::Malformed, 1);
                return incoming.refuse();
            }
        };
        let relay = Relay { tenant, edge: &incoming.edge, class: self.class, raw };
        let Ok(permit) = incoming.shared.policy().authorize(&incoming.peer, relay) else {
            counters.dropped(DropReason::EdgeTenant, 1);
            return incoming.refuse();
        };
        counters.relayed_in.add(1);
        if frame.hops >= HOPS_MAX {
            counters.dropped(DropReason::HopLimit, 1);
            return Ok(());
        }
        let fields = frame.ext.fields();
        let tenant = permit.tenant().unwrap_or(tenant);
        let seq = frame.seq.unwrap_or(0);
        let Some(source) = self.source(incoming, tenant, frame) else {
            counters.dropped(DropReason::BadTarget, 1);
            let origin = fields.origin;
            return if self.has_circled(incoming, tenant, origin, frame.hops) { Ok(()) } else { incoming.refuse() };
        };
        let Source { sender, incarnation, last_seq, delivered, received } = &source;
        // What nobody took elsewhere comes after later ones.
        if !self.class.is_reliable() && seq < *last_seq && !fields.redelivered {
            self.drop_late(incoming, tenant, frame, received);
            return Ok(());
        }
        let is_ordered = self.class.is_reliable();
        let own = if is_ordered { Own::Sequence(turn, bringer) } else { Own::Turn(turn, delivered, received) };
        let message = Message {
            tenant,
            destination: Destination::of(tenant.id(), self.class, raw),
            reply: frame.reply,
            headers: frame.headers,
            payload: frame.payload,
            ttl_ms: frame.ttl_ms,
            sender,
            incarnation: *incarnation,
            seq,
            reply_token: fields.reply_token,
            hops: frame.hops + 1,
            redelivered: fields.redelivered,
        };
        let targets = self.dispatch(incoming, frame, &message, own, now, batch)?;
        self.note_like(incoming, frame, &message, &targets, &source, batch);
        if let Some(known) = fields.sender.and_then(|handle| self.senders.get_mut(&handle)) {
            known.last_seq = known.last_seq.max(seq);
        }
        batch.relieve(&incoming.shared, now);
        Ok(())
    }

    /// Whose message a frame is; `None` where the origin cannot be behind this edge, or a handle means nothing, or it says
    /// to be of a life of its origin that nobody announced.
    fn source(&mut self, incoming: &Incoming, tenant: &Tenant, frame: &DataFrame<'_>) -> Option<Source> {
        let fields = frame.ext.fields();
        let (origin, announced) = self.brokers.get(&fields.origin?).copied()?;
        if !tenant.table().routes().is_behind(incoming.edge.key(), origin) {
            return None;
        }
        // An announcement is of the newest life; a message that is still on its way may be of an earlier one.
        let incarnation = fields.incarnation.unwrap_or(announced);
        if incarnation > announced {
            return None;
        }
        let known = self.senders.get_mut(&fields.sender?)?;
        let (last_seq, info) = (known.last_seq, &known.info);
        let (sender, delivered, received) = known.sender.get_or_insert_with(|| {
            let sender = Sender::remote(incoming.shared.next_sender(), origin, info.clone());
            let delivered = incoming.shared.delivered.of(tenant.key(), origin, incarnation, info.session);
            (sender, delivered, tenant.tallies().of(origin, incarnation))
        });
        let (sender, delivered, received) = (Arc::clone(sender), Arc::clone(delivered), Arc::clone(received));
        (sender.origin() == origin).then_some(Source { sender, incarnation, last_seq, delivered, received })
    }

    /// Splits the target list and returns it: this broker delivers, other brokers get one copy per next hop, never back.
    fn dispatch(
        &mut self,
        incoming: &Incoming,
        frame: &DataFrame<'_>,
        message: &Message<'_>,
        own: Own<'_>,
        now: Time,
        batch: &mut Batch,
    ) -> Result<SmallVec<[Addressed; 2]>, BridgeFault> {
        let counters = message.tenant.counters().class(self.class);
        let table = message.tenant.table();
        let routes = Arc::clone(table.routes());
        drop(table);
        let shared = &incoming.shared;
        let targets = self.targets(incoming, frame, message, &routes)?;
        batch.begin();
        let mut onward: SmallVec<[TargetGroups<'_>; 4]> = SmallVec::new();
        let mut here = None;
        for target in &targets {
            match target {
                (broker, groups, step) if *broker == shared.own => here = Some((groups, *step)),
                (broker, groups, step) => {
                    onward.push(TargetGroups { broker: *broker, groups: groups.iter().collect(), step: *step });
                }
            }
        }
        relay_to(shared, &routes, onward, message, batch, |_| false);
        match (here, own) {
            (None, _) => {}
            (Some((groups, _)), Own::Turn(turn, delivered, received)) => {
                tally::arrived(received, self.class);
                if message.redelivered || delivered.note(self.class, message.seq) {
                    self.deliver(shared, groups, message, turn, now, batch);
                } else {
                    counters.dropped(DropReason::Late, 1);
                }
            }
            (Some((groups, step)), Own::Sequence(turn, bringer)) => {
                let arrived = Arrived { shared, message, groups, step, bringer, turn };
                if !reliable::arrive(&arrived, || self.found(message), now, batch) {
                    incoming.refuse()?;
                }
            }
        }
        Ok(targets)
    }

    /// Drops a message that a later one of its sender has overtaken; where it was for this broker, it has arrived.
    fn drop_late(&self, incoming: &Incoming, tenant: &Tenant, frame: &DataFrame<'_>, received: &Received) {
        tenant.counters().class(self.class).dropped(DropReason::Late, 1);
        if self.is_for(incoming.shared.own, frame) {
            tally::arrived(received, self.class);
        }
    }

    /// Whether a broker is among the targets of a frame.
    fn is_for(&self, broker: BrokerIndex, frame: &DataFrame<'_>) -> bool {
        let mut targets = frame.ext.fields().targets.into_iter().flat_map(|targets| targets.iter());
        targets.any(|target| self.brokers.get(&target.handle).is_some_and(|(index, _)| *index == broker))
    }

    /// The target list of a frame: each known broker once, never back. The others are counted and in the end cost the bridge.
    fn targets(
        &self,
        incoming: &Incoming,
        frame: &DataFrame<'_>,
        message: &Message<'_>,
        routes: &Routes,
    ) -> Result<SmallVec<[Addressed; 2]>, BridgeFault> {
        let counters = message.tenant.counters().class(self.class);
        let (shared, fields) = (&incoming.shared, frame.ext.fields());
        let mut list: SmallVec<[Addressed; 2]> = SmallVec::new();
        let mut backs = fields.steps.into_iter().flat_map(|steps| steps.iter());
        let mut lives = fields.lives.into_iter().flat_map(|lives| lives.iter());
        for target in fields.targets.iter().flat_map(|targets| targets.iter()) {
            let step = Step { back: backs.next().unwrap_or(0), life: lives.next().unwrap_or(0) };
            let index = self.brokers.get(&target.handle).map(|(index, _)| *index);
            let back = index.is_some_and(|index| routes.leads_over(incoming.edge.key(), index));
            match index.filter(|index| !back && list.iter().all(|(seen, ..)| seen != index)) {
                Some(index) => {
                    let groups = target.groups.iter().filter_map(|g| QueueGroup::parse(g).ok()).collect();
                    list.push((index, groups, step));
                }
                None => {
                    counters.dropped(DropReason::BadTarget, 1);
                    // In a ring the peer may not know what this broker has lost: then it is no lie, but no way either.
                    let is_self = index.is_some() && index == shared.brokers().index(incoming.edge.peer());
                    let is_only = shared.links().iter().filter(|link| !link.edge().is_retired()).count() == 1;
                    if !back || is_self || is_only {
                        incoming.refuse()?;
                    }
                }
            }
        }
        Ok(list)
    }

    /// Who wants a message here, from the lane's cache while the table is the same.
    pub(super) fn found(&mut self, message: &Message<'_>) -> Option<&Match> {
        self.wanted(message).map(Wanted::found)
    }

    fn wanted(&mut self, message: &Message<'_>) -> Option<&Wanted> {
        let raw = message.destination.raw();
        let key = raw.as_str().as_bytes();
        let generation = message.tenant.generation();
        if self.cache.get(key).is_none_or(|wanted| wanted.found().generation != generation) {
            let found = message.tenant.table().find(self.class, raw, &message.tenant.section());
            let wanted = Wanted::new(found, None);
            let weight = wanted.weight();
            if self.cache.len() >= MATCH_CACHE_MAX || self.cache_weight + weight > MATCH_CACHE_WEIGHT_MAX {
                self.cache = HashMap::new();
                self.cache_weight = 0;
            }
            self.cache_weight += weight;
            let replaced = self.cache.insert(Box::from(key), wanted);
            self.cache_weight -= replaced.map_or(0, |wanted| wanted.weight());
        }
        self.cache.get(key)
    }

    fn deliver(
        &mut self,
        shared: &Shared,
        groups: &[QueueGroup],
        message: &Message<'_>,
        turn: u64,
        now: Time,
        batch: &mut Batch,
    ) {
        let class = self.class;
        let Some(wanted) = self.wanted(message) else { return };
        let found = wanted.found();
        let mut plain = false;
        let mut deliver = |target: &PortTarget, batch: &mut Batch| {
            let delivered = batch.deliver(&target.port, target.qualified, target.subs.iter(), message);
            plain |= delivered && target.subs.iter().any(|s| !s.is_observer());
        };
        match wanted.crowds(message) {
            // A second choice is for a group alone: plain subscribers have had their own copy.
            _ if message.redelivered => {}
            None => found.ports.iter().for_each(|target| deliver(target, batch)),
            Some(crowds) => {
                batch.deliver_to_crowds(crowds, message);
                crowds.others(found).for_each(|target| deliver(target, batch));
                plain = true;
            }
        }
        let mut responders = plain;
        let mut memberless = Vec::new();
        for name in groups {
            let group = found.groups.iter().find(|g| g.name == *name);
            let member = group.and_then(|g| choose_local(g, turn, |sub| !sub.is_over()));
            let delivered =
                member.is_some_and(|sub| batch.deliver(sub.port(), sub.is_qualified(), std::iter::once(sub), message));
            responders |= delivered;
            if !delivered {
                message.tenant.counters().class(class).dropped(DropReason::NoMember, 1);
                memberless.push(name.as_str().to_owned());
            }
        }
        if !message.reply.is_empty() && (!memberless.is_empty() || !responders) {
            reliable::unserved(shared, message, memberless, plain, now);
        }
        if responders && let Ok(reply) = RawName::parse(message.reply) {
            let route = ReplyRoute { origin: message.sender.origin(), token: message.reply_token.unwrap_or(0) };
            message.tenant.replies().remember(reply.as_str(), route, now);
        }
    }
}
