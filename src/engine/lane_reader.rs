//! The receiving half of a bridge: the slices of one data stream in, messages for sessions and next hops out.
//!
//! The tenant of everything in a lane is the one it was opened for, checked against the receiving side's own effective
//! set before anything is routed; frames carry none. What the peer may not send is skipped and counted; who repeats it
//! is a liar and loses the bridge. Reading never waits for anybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use glocal_core::count::Drop as DropReason;
use glocal_core::data::{ReplyRoute, choose_local};
use glocal_core::edge::Edge;
use glocal_core::identity::Principal;
use glocal_core::interest::{Interest, Record};
use glocal_core::limits::{
    BRIDGE_LANES_MAX, BRIDGE_REASSEMBLY_BYTES_MAX, BRIDGE_REFUSALS_MAX, CONTROL_BYTES_MAX, HOPS_MAX, LANE_HANDLES_MAX,
    MATCH_CACHE_MAX, MATCH_CACHE_WEIGHT_MAX,
};
use glocal_core::name::{Class, ClassSet, Destination, Label, NodeId, QueueGroup, RawFilter, RawName};
use glocal_core::policy::Relay;
use glocal_core::routes::BrokerIndex;
use glocal_core::table::Match;
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;
use glocal_wire::FrameError;
use glocal_wire::control::{self as wire, Control};
use glocal_wire::data::{DataFrame, DataKind};
use glocal_wire::frame::{FrameLimits, Next, next_frame};
use glocal_wire::slice::{LaneBuffer, SliceEvent, SliceReader};
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::batch::{Batch, Message, TargetGroups};
use crate::client::route::relay_to;
use crate::driver::Command;
use crate::sender::Sender;
use crate::shared::Shared;

/// Why a bridge must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BridgeFault {
    /// The peer broke the protocol.
    #[error("protocol error: {0}")]
    Frame(#[from] FrameError),
    /// A frame of a kind that a lane does not admit.
    #[error("protocol error: unexpected {0} in a lane")]
    Unexpected(&'static str),
    /// A slice of a lane that is not open, or an opening of one that was.
    #[error("protocol error: lane {0} is opened out of order or not open")]
    Lane(u32),
    /// More lanes or handles than a bridge may have.
    #[error("more {0} than a bridge may have")]
    TooMany(&'static str),
    /// More bytes of partial frames than a bridge may hold.
    #[error("more than {BRIDGE_REASSEMBLY_BYTES_MAX} bytes of partial frames")]
    Reassembly,
    /// The peer keeps sending what this edge does not allow.
    #[error("more than {BRIDGE_REFUSALS_MAX} refusals: the peer sends what this edge does not allow")]
    Refusals,
}

impl BridgeFault {
    /// The stable code: log field, metric label and `code` of the error frame.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Frame(error) => error.code(),
            Self::Unexpected(_) => "unexpected-frame",
            Self::Lane(_) => "lane-order",
            Self::TooMany(_) => "too-many",
            Self::Reassembly => "reassembly-full",
            Self::Refusals => "edge-refusals",
        }
    }
}

/// What all data streams of one bridge share.
#[derive(Debug)]
pub struct Incoming {
    /// The node's facts.
    pub shared: Arc<Shared>,
    /// The edge the bridge belongs to.
    pub edge: Arc<Edge>,
    /// The broker at the other end.
    pub peer: Arc<Principal>,
    lanes: AtomicUsize,
    partial_bytes: AtomicUsize,
    refusals: AtomicU64,
    /// When something arrived last.
    now: AtomicU64,
}

impl Incoming {
    /// A bridge on which nothing has arrived.
    #[must_use]
    pub const fn new(shared: Arc<Shared>, edge: Arc<Edge>, peer: Arc<Principal>) -> Self {
        Self {
            shared,
            edge,
            peer,
            lanes: AtomicUsize::new(0),
            partial_bytes: AtomicUsize::new(0),
            refusals: AtomicU64::new(0),
            now: AtomicU64::new(0),
        }
    }

    /// Counts something the peer should not have sent. While the two ends may know different bundles, it is not held against
    /// it.
    ///
    /// # Errors
    /// [`BridgeFault::Refusals`] when it has happened too often.
    pub fn refuse(&self) -> Result<(), BridgeFault> {
        self.edge.refused.add(1);
        if self.edge.is_excused(Time(self.now.load(Ordering::Relaxed))) {
            return Ok(());
        }
        if self.refusals.fetch_add(1, Ordering::Relaxed) >= BRIDGE_REFUSALS_MAX {
            return Err(BridgeFault::Refusals);
        }
        Ok(())
    }
}

/// What one chunk brought about.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// Frames for sessions and next hops.
    pub batch: Batch,
    /// Commands for the control half, in order.
    pub commands: Vec<Command>,
    /// Tenants whose lanes were refused, for the log; escaped by their grammar.
    pub refused: Vec<String>,
}

#[derive(Debug)]
struct RemoteSender {
    sender: Option<Arc<Sender>>,
    info: wire::AnnounceSender,
    /// A message with more targets than one frame holds comes in several, so its number may repeat on the way.
    last_seq: u64,
    /// At its target it may not.
    delivered_seq: u64,
}

/// Whose message a frame is, and where it stands among theirs.
struct Source {
    sender: Arc<Sender>,
    incarnation: u64,
    last_seq: u64,
    delivered_seq: u64,
}

#[derive(Debug)]
struct Lane {
    /// `None` where the tenant is not allowed on this edge: everything in the lane is skipped.
    tenant: Option<Arc<Tenant>>,
    class: Class,
    buffer: LaneBuffer,
    brokers: HashMap<u32, (BrokerIndex, u64)>,
    senders: HashMap<u32, RemoteSender>,
    cache: HashMap<Box<[u8]>, Match>,
    /// What the cached matches hold together.
    cache_weight: usize,
}

/// One data stream of a bridge.
#[derive(Debug)]
pub struct LaneReader {
    incoming: Arc<Incoming>,
    slices: SliceReader,
    lanes: HashMap<u32, Lane>,
    newest_lane: u32,
    buffered: usize,
    turn: u64,
}

impl Drop for LaneReader {
    fn drop(&mut self) {
        self.incoming.lanes.fetch_sub(self.lanes.len(), Ordering::Relaxed);
        self.incoming.partial_bytes.fetch_sub(self.buffered, Ordering::Relaxed);
    }
}

impl LaneReader {
    /// A stream on which nothing has arrived.
    #[must_use]
    pub fn new(incoming: Arc<Incoming>) -> Self {
        Self { incoming, slices: SliceReader::new(), lanes: HashMap::new(), newest_lane: 0, buffered: 0, turn: 0 }
    }

    /// Takes what arrived.
    ///
    /// # Errors
    /// Why the bridge must be closed; what came before is in `arrivals`.
    pub fn on_chunk(&mut self, mut chunk: Bytes, now: Time, arrivals: &mut Arrivals) -> Result<(), BridgeFault> {
        self.incoming.now.store(now.0, Ordering::Relaxed);
        loop {
            let (lane, bytes) = match self.slices.next_event(&mut chunk)? {
                None => return Ok(()),
                Some(SliceEvent::Open { lane, class, tenant }) => {
                    let tenant = tenant.to_owned();
                    self.open(lane, class, &tenant, arrivals)?;
                    continue;
                }
                Some(SliceEvent::Reset { lane }) => {
                    self.close(lane)?;
                    continue;
                }
                Some(SliceEvent::Data { lane, bytes }) => (lane, bytes),
            };
            let state = self.lanes.get_mut(&lane).ok_or(BridgeFault::Lane(lane))?;
            let before = state.buffer.buffered_bytes();
            let taken = state.on_bytes(&self.incoming, bytes, &mut self.turn, now, arrivals);
            let after = state.buffer.buffered_bytes();
            let refused = state.tenant.is_none();
            self.account(before, after)?;
            let ended = std::mem::take(&mut arrivals.batch.finished).into_iter();
            arrivals.commands.extend(ended.map(|(session, sid)| Command::Unsubscribe { session, sid, max: None }));
            taken?;
            if refused && self.slices.is_between_slices() {
                // Counted by slice, however the stream was cut into chunks.
                self.incoming.refuse()?;
            }
        }
    }

    fn open(&mut self, id: u32, class: Class, tenant: &str, arrivals: &mut Arrivals) -> Result<(), BridgeFault> {
        if id <= self.newest_lane {
            return Err(BridgeFault::Lane(id));
        }
        self.newest_lane = id;
        if self.incoming.lanes.fetch_add(1, Ordering::Relaxed) >= BRIDGE_LANES_MAX {
            self.incoming.lanes.fetch_sub(1, Ordering::Relaxed);
            return Err(BridgeFault::TooMany("lanes"));
        }
        let shared = &self.incoming.shared;
        let known = shared.tenant(tenant);
        let allowed = known.filter(|t| self.incoming.edge.may_receive(t.key()));
        let refused = allowed.is_none();
        let limits = FrameLimits::open(shared.max_payload_bytes);
        self.lanes.insert(
            id,
            Lane {
                tenant: allowed,
                class,
                buffer: LaneBuffer::new(limits),
                brokers: HashMap::new(),
                senders: HashMap::new(),
                cache: HashMap::new(),
                cache_weight: 0,
            },
        );
        if refused {
            arrivals.refused.push(tenant.to_owned());
            self.incoming.refuse()?;
        }
        Ok(())
    }

    fn close(&mut self, id: u32) -> Result<(), BridgeFault> {
        let mut lane = self.lanes.remove(&id).ok_or(BridgeFault::Lane(id))?;
        self.incoming.lanes.fetch_sub(1, Ordering::Relaxed);
        let discarded = lane.buffer.discard();
        self.account(discarded, 0)
    }

    fn account(&mut self, before: usize, after: usize) -> Result<(), BridgeFault> {
        self.buffered = self.buffered + after - before;
        let total = &self.incoming.partial_bytes;
        if after >= before {
            let held = total.fetch_add(after - before, Ordering::Relaxed) + (after - before);
            if held > BRIDGE_REASSEMBLY_BYTES_MAX {
                return Err(BridgeFault::Reassembly);
            }
        } else {
            total.fetch_sub(before - after, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn is_named_well(info: &wire::AnnounceSender) -> bool {
    // Tenant ids have the grammar of labels; whether this one exists is the announcing broker's to know.
    let is_label = |text: &str| Label::parse(text).is_ok();
    is_label(&info.tenant) && [&info.region, &info.agent].into_iter().flatten().all(|text| is_label(text))
}

impl Lane {
    fn on_bytes(
        &mut self,
        incoming: &Incoming,
        mut bytes: Bytes,
        turn: &mut u64,
        now: Time,
        arrivals: &mut Arrivals,
    ) -> Result<(), BridgeFault> {
        let Some(tenant) = self.tenant.clone() else { return Ok(()) };
        if !incoming.edge.may_receive(tenant.key()) {
            // Narrowed while the lane was open.
            self.buffer.discard();
            self.tenant = None;
            return Ok(());
        }
        while let Some(frame) = self.buffer.next_frame(&mut bytes)? {
            match next_frame(&frame, &FrameLimits::open(incoming.shared.max_payload_bytes))? {
                Next::Need(_) => return Err(FrameError::Truncated.into()),
                Next::Control { kind, body, .. } => {
                    if let Some(control) = Control::decode(kind, body, CONTROL_BYTES_MAX)? {
                        self.on_control(incoming, &tenant, control, now, arrivals)?;
                    }
                }
                Next::Data { frame, .. } => {
                    *turn = turn.wrapping_add(1);
                    self.on_relay(incoming, &tenant, &frame, *turn, now, &mut arrivals.batch)?;
                }
            }
        }
        Ok(())
    }

    fn on_control(
        &mut self,
        incoming: &Incoming,
        tenant: &Arc<Tenant>,
        control: Control,
        now: Time,
        arrivals: &mut Arrivals,
    ) -> Result<(), BridgeFault> {
        match control {
            Control::AnnounceBroker(body) => {
                let node = NodeId::parse(&body.node).ok();
                match node.and_then(|node| incoming.shared.brokers().index(&node)) {
                    Some(index) => {
                        Self::room(self.brokers.len())?;
                        self.brokers.insert(body.handle, (index, body.incarnation));
                        Ok(())
                    }
                    None => incoming.refuse(),
                }
            }
            // Names outside the grammar would make frames that subscribers refuse.
            Control::AnnounceSender(info) if !is_named_well(&info) => incoming.refuse(),
            Control::AnnounceSender(info) => {
                Self::room(self.senders.len())?;
                self.senders.insert(info.handle, RemoteSender { sender: None, info, last_seq: 0, delivered_seq: 0 });
                Ok(())
            }
            Control::ForgetHandles(_) => {
                self.brokers.clear();
                self.senders.clear();
                Ok(())
            }
            Control::Interest(body) => {
                let record = Self::interest(&body).ok_or(FrameError::BadField { kind: 0x1a, field: "filter" })?;
                self.on_record(incoming, tenant, body.origin, record, arrivals)
            }
            Control::InterestSync(body) => {
                let record = match body {
                    wire::InterestSync { reset: true, last: true, .. } => Record::Forget,
                    wire::InterestSync { reset: true, seq, .. } => Record::SyncStart { seq },
                    wire::InterestSync { seq, .. } => Record::SyncEnd { seq },
                };
                self.on_record(incoming, tenant, body.origin, record, arrivals)
            }
            Control::NoMember(_) => Ok(()),
            Control::Routed(routed) => self.on_routed(incoming, tenant, routed, now, arrivals),
            other => Err(BridgeFault::Unexpected(other.name())),
        }
    }

    const fn room(held: usize) -> Result<(), BridgeFault> {
        if held >= LANE_HANDLES_MAX { Err(BridgeFault::TooMany("handles")) } else { Ok(()) }
    }

    fn interest(body: &wire::Interest) -> Option<Record> {
        let interest = Interest {
            filter: RawFilter::parse(body.filter.as_bytes()).ok()?,
            classes: ClassSet::from_bits(body.classes)?,
            queue: body.queue.as_deref().map(QueueGroup::parse).transpose().ok()?,
            observer: body.observer,
        };
        // Observers are in no queue group.
        let is_whole = !(interest.observer && interest.queue.is_some());
        is_whole.then_some(Record::Change { seq: body.seq, add: body.add, interest })
    }

    fn on_record(
        &self,
        incoming: &Incoming,
        tenant: &Arc<Tenant>,
        origin: u32,
        record: Record,
        arrivals: &mut Arrivals,
    ) -> Result<(), BridgeFault> {
        let Some((origin, incarnation)) = self.brokers.get(&origin).copied() else { return incoming.refuse() };
        let (edge, tenant) = (incoming.edge.key(), tenant.key());
        arrivals.commands.push(Command::Record { edge, tenant, origin, incarnation, record });
        Ok(())
    }

    fn on_relay(
        &mut self,
        incoming: &Incoming,
        tenant: &Arc<Tenant>,
        frame: &DataFrame<'_>,
        turn: u64,
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
        let Source { sender, incarnation, last_seq, delivered_seq } = match self.source(incoming, tenant, frame) {
            Some(source) => source,
            None => {
                counters.dropped(DropReason::BadTarget, 1);
                return incoming.refuse();
            }
        };
        if seq < last_seq {
            counters.dropped(DropReason::Late, 1);
            return Ok(());
        }
        let turn = (seq > delivered_seq).then_some(turn);
        let message = Message {
            tenant,
            destination: Destination::of(tenant.id(), self.class, raw),
            reply: frame.reply,
            headers: frame.headers,
            payload: frame.payload,
            ttl_ms: frame.ttl_ms,
            sender: &sender,
            incarnation,
            seq,
            reply_token: fields.reply_token,
            hops: frame.hops + 1,
        };
        let is_target = self.dispatch(incoming, frame, &message, turn, now, batch)?;
        if let Some(known) = fields.sender.and_then(|handle| self.senders.get_mut(&handle)) {
            known.last_seq = seq;
            known.delivered_seq = if is_target { seq } else { delivered_seq };
        }
        batch.relieve(&incoming.shared, now);
        Ok(())
    }

    /// Whose message a frame is; `None` where the origin cannot be behind this edge, or a handle means nothing.
    fn source(&mut self, incoming: &Incoming, tenant: &Tenant, frame: &DataFrame<'_>) -> Option<Source> {
        let fields = frame.ext.fields();
        let (origin, incarnation) = self.brokers.get(&fields.origin?).copied()?;
        if !tenant.table().routes().is_behind(incoming.edge.key(), origin) {
            return None;
        }
        let known = self.senders.get_mut(&fields.sender?)?;
        let (last_seq, delivered_seq) = (known.last_seq, known.delivered_seq);
        let info = &known.info;
        let make = || Sender::remote(incoming.shared.next_sender(), origin, info.clone());
        let sender = Arc::clone(known.sender.get_or_insert_with(make));
        (sender.origin() == origin).then_some(Source { sender, incarnation, last_seq, delivered_seq })
    }

    /// Splits the target list: this broker delivers, unless it has already (no `turn`), other brokers get one copy per
    /// next hop, never back. Whether this broker was among the targets.
    fn dispatch(
        &mut self,
        incoming: &Incoming,
        frame: &DataFrame<'_>,
        message: &Message<'_>,
        turn: Option<u64>,
        now: Time,
        batch: &mut Batch,
    ) -> Result<bool, BridgeFault> {
        let counters = message.tenant.counters().class(self.class);
        let table = message.tenant.table();
        let routes = Arc::clone(table.routes());
        drop(table);
        let shared = &incoming.shared;
        let groups: Vec<(BrokerIndex, Vec<QueueGroup>)> = {
            let mut seen: SmallVec<[BrokerIndex; 8]> = SmallVec::new();
            let mut list = Vec::new();
            for target in frame.ext.fields().targets.iter().flat_map(|targets| targets.iter()) {
                let index = self.brokers.get(&target.handle).map(|(index, _)| *index);
                let back = index.is_some_and(|index| routes.leads_over(incoming.edge.key(), index));
                match index.filter(|index| !back && !seen.contains(index)) {
                    Some(index) => {
                        seen.push(index);
                        list.push((index, target.groups.iter().filter_map(|g| QueueGroup::parse(g).ok()).collect()));
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
            list
        };
        batch.begin();
        let mut onward: SmallVec<[TargetGroups<'_>; 4]> = SmallVec::new();
        for (broker, groups) in &groups {
            match (*broker == shared.own, turn) {
                (true, Some(turn)) => self.deliver(groups, message, turn, now, batch),
                (true, None) => counters.dropped(DropReason::Late, 1),
                (false, _) => onward.push((*broker, groups.iter().collect())),
            }
        }
        relay_to(shared, &routes, onward, message, batch, |_| false);
        Ok(groups.iter().any(|(broker, _)| *broker == shared.own))
    }

    fn deliver(&mut self, groups: &[QueueGroup], message: &Message<'_>, turn: u64, now: Time, batch: &mut Batch) {
        let raw = message.destination.raw();
        let key = raw.as_str().as_bytes();
        let generation = message.tenant.table().generation();
        if self.cache.get(key).is_none_or(|found| found.generation != generation) {
            let found = message.tenant.table().find(self.class, raw, &message.tenant.section());
            let weight = found.weight();
            if self.cache.len() >= MATCH_CACHE_MAX || self.cache_weight + weight > MATCH_CACHE_WEIGHT_MAX {
                self.cache = HashMap::new();
                self.cache_weight = 0;
            }
            self.cache_weight += weight;
            let replaced = self.cache.insert(Box::from(key), found);
            self.cache_weight -= replaced.map_or(0, |found| found.weight());
        }
        let Some(found) = self.cache.get(key) else { return };
        let mut responders = false;
        for target in &found.ports {
            let delivered = batch.deliver(&target.port, target.qualified, target.subs.iter(), message);
            responders |= delivered && target.subs.iter().any(|s| !s.is_observer());
        }
        for name in groups {
            let group = found.groups.iter().find(|g| g.name == *name);
            match group.and_then(|g| choose_local(g, turn, |sub| !sub.is_over())) {
                Some(sub) => {
                    responders |= batch.deliver(sub.port(), sub.is_qualified(), std::iter::once(sub), message);
                }
                None => message.tenant.counters().class(self.class).dropped(DropReason::NoMember, 1),
            }
        }
        if responders && let Ok(reply) = RawName::parse(message.reply) {
            let route = ReplyRoute { origin: message.sender.origin(), token: message.reply_token.unwrap_or(0) };
            message.tenant.replies().remember(reply.as_str(), route, now);
        }
    }
}

mod routed;
#[cfg(test)]
mod tests;
