//! The receiving half of a bridge: the slices of one data stream in, messages for sessions and next hops out.
//!
//! The tenant of everything in a lane is the one it was opened for, checked against the receiving side's own effective
//! set before anything is routed; frames carry none. What the peer may not send is skipped and counted; who repeats it
//! is a liar and loses the bridge. Reading never waits for anybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::{Buf, Bytes};
use glocal_core::edge::Edge;
use glocal_core::identity::Principal;
use glocal_core::interest::presence::Record;
use glocal_core::limits::{
    BRIDGE_LANES_MAX, BRIDGE_REASSEMBLY_BYTES_MAX, BRIDGE_REFUSALS_MAX, CONTROL_BYTES_MAX, LANE_HANDLES_MAX,
    PATH_ANSWERS_MAX,
};
use glocal_core::name::{Class, Label, NodeId};
use glocal_core::reliable::incoming::Bringer;
use glocal_core::routes::BrokerIndex;
use glocal_core::tally::Counts;
use glocal_core::tenant::{Tenant, TenantKey};
use glocal_core::time::Time;
use glocal_wire::FrameError;
use glocal_wire::control::{self as wire, Control};
use glocal_wire::frame::{FrameLimits, Next, next_frame};
use glocal_wire::slice::{LaneBuffer, SliceEvent, SliceReader};
use hashbrown::HashMap;

use crate::batch::{Batch, Wanted};
use crate::driver::Command;
use crate::sender::{Delivered, Sender};
use crate::shared::Shared;

use again::Like;

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

/// Whose lanes a connection may carry, of those that its edge allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// Everybody's: the bridge of a shared edge.
    Everybody,
    /// One tenant's: its own connection beside the bridge of a dedicated edge.
    One(TenantKey),
    /// Nobody's: the bridge of a dedicated edge itself.
    Nobody,
}

impl Carries {
    fn has(self, tenant: TenantKey) -> bool {
        match self {
            Self::Everybody => true,
            Self::One(one) => one == tenant,
            Self::Nobody => false,
        }
    }
}

/// What all data streams of one bridge share, or of one tenant's connection.
#[derive(Debug)]
pub struct Incoming {
    /// The node's facts.
    pub shared: Arc<Shared>,
    /// The edge the bridge belongs to.
    pub edge: Arc<Edge>,
    /// The broker at the other end.
    pub peer: Arc<Principal>,
    carries: Carries,
    lanes: AtomicUsize,
    partial_bytes: AtomicUsize,
    refusals: AtomicU64,
    /// When something arrived last.
    now: AtomicU64,
}

impl Incoming {
    /// A connection that carries these lanes, on which nothing has arrived.
    #[must_use]
    pub const fn new(shared: Arc<Shared>, edge: Arc<Edge>, peer: Arc<Principal>, carries: Carries) -> Self {
        Self {
            shared,
            edge,
            peer,
            carries,
            lanes: AtomicUsize::new(0),
            partial_bytes: AtomicUsize::new(0),
            refusals: AtomicU64::new(0),
            now: AtomicU64::new(0),
        }
    }

    /// Whether a lane of this tenant is read here.
    fn may_receive(&self, tenant: TenantKey) -> bool {
        self.carries.has(tenant) && self.edge.may_receive(tenant)
    }

    /// Counts a lane, or a slice of one, that is not read here. A tenant's lane on another one's connection is nothing that
    /// a change at one end explains.
    fn refuse_lane(&self, is_misplaced: bool) -> Result<(), BridgeFault> {
        if is_misplaced { self.hold_against_it() } else { self.refuse() }
    }

    /// Counts something the peer should not have sent. While the two ends may know different bundles, it is not held against
    /// it.
    ///
    /// # Errors
    /// [`BridgeFault::Refusals`] when it has happened too often.
    pub fn refuse(&self) -> Result<(), BridgeFault> {
        if self.edge.is_excused(Time(self.now.load(Ordering::Relaxed))) {
            self.edge.refused.add(1);
            return Ok(());
        }
        self.hold_against_it()
    }

    fn hold_against_it(&self) -> Result<(), BridgeFault> {
        self.edge.refused.add(1);
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
    /// Probes to be answered on the control stream, at most [`PATH_ANSWERS_MAX`]; a peer that sends more is answered less.
    pub probes: Vec<u64>,
}

impl Arrivals {
    /// Hands on what a broker has said, in its life.
    fn record(&mut self, on: &Incoming, tenant: &Tenant, (origin, incarnation): (BrokerIndex, u64), record: Record) {
        let (edge, tenant) = (on.edge.key(), tenant.key());
        self.commands.push(Command::Record { edge, tenant, origin, incarnation, record });
    }

    /// Hands on what the peer says of itself, for which no life is needed.
    fn record_of_peer(&mut self, on: &Incoming, tenant: &Tenant, record: Record) {
        if let Some(peer) = on.shared.brokers().index(on.edge.peer()) {
            self.record(on, tenant, (peer, 0), record);
        }
    }
}

#[derive(Debug)]
struct RemoteSender {
    sender: Option<(Arc<Sender>, Arc<Delivered>, Counts)>,
    info: wire::AnnounceSender,
    /// A message with more targets than one frame holds comes in several, so its number may repeat on the way.
    last_seq: u64,
}

#[derive(Debug)]
struct Lane {
    /// `None` where the tenant is not allowed on this edge: everything in the lane is skipped.
    tenant: Option<Arc<Tenant>>,
    /// Whether it belongs on another connection.
    is_misplaced: bool,
    /// Which sets of the edge were asked last whether it is allowed.
    allowed_at: Option<u64>,
    class: Class,
    buffer: LaneBuffer,
    brokers: HashMap<u32, (BrokerIndex, u64)>,
    senders: HashMap<u32, RemoteSender>,
    cache: HashMap<Box<[u8]>, Wanted>,
    /// What the cached matches hold together.
    cache_weight: usize,
    /// What the last message shows of one more like it, with all that came before its payload.
    like: Option<Like>,
    head: Vec<u8>,
    /// Messages of which so much was noted.
    decisions: u64,
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
    bringer: Bringer,
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
        let (slices, lanes, bringer) = (SliceReader::new(), HashMap::new(), incoming.shared.reliable().bringer());
        Self { incoming, slices, lanes, newest_lane: 0, buffered: 0, turn: 0, bringer }
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
                Some(SliceEvent::Probe { id }) => {
                    if arrivals.probes.len() < PATH_ANSWERS_MAX {
                        arrivals.probes.push(id);
                    }
                    continue;
                }
                Some(SliceEvent::Data { lane, bytes }) => (lane, bytes),
            };
            let state = self.lanes.get_mut(&lane).ok_or(BridgeFault::Lane(lane))?;
            let before = state.buffer.buffered_bytes();
            let taken = state.on_bytes(&self.incoming, bytes, (&mut self.turn, self.bringer), now, arrivals);
            let after = state.buffer.buffered_bytes();
            let refused = state.tenant.is_none().then_some(state.is_misplaced);
            self.account(before, after)?;
            let ended = std::mem::take(&mut arrivals.batch.finished).into_iter();
            arrivals.commands.extend(ended.map(|(session, sid)| Command::Unsubscribe { session, sid, max: None }));
            taken?;
            if let Some(is_misplaced) = refused.filter(|_| self.slices.is_between_slices()) {
                // Counted by slice, however the stream was cut into chunks.
                self.incoming.refuse_lane(is_misplaced)?;
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
        let is_misplaced = known.as_ref().is_some_and(|t| !self.incoming.carries.has(t.key()));
        let allowed = known.filter(|t| self.incoming.may_receive(t.key()));
        let refused = allowed.is_none();
        let limits = FrameLimits::open(shared.max_payload_bytes);
        self.lanes.insert(
            id,
            Lane {
                tenant: allowed,
                is_misplaced,
                allowed_at: None,
                class,
                buffer: LaneBuffer::new(limits),
                brokers: HashMap::new(),
                senders: HashMap::new(),
                cache: HashMap::new(),
                cache_weight: 0,
                like: None,
                head: Vec::new(),
                decisions: 0,
            },
        );
        if refused {
            arrivals.refused.push(tenant.to_owned());
            self.incoming.refuse_lane(is_misplaced)?;
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
        (turn, bringer): (&mut u64, Bringer),
        now: Time,
        arrivals: &mut Arrivals,
    ) -> Result<(), BridgeFault> {
        let Some(tenant) = self.tenant.clone() else { return Ok(()) };
        let version = incoming.edge.version();
        if self.allowed_at != Some(version) {
            if !incoming.may_receive(tenant.key()) {
                // Narrowed while the lane was open.
                self.buffer.discard();
                self.tenant = None;
                return Ok(());
            }
            self.allowed_at = Some(version);
        }
        loop {
            let batch = &mut arrivals.batch;
            if self.buffer.buffered_bytes() == 0
                && let Some(taken) = self.take_again(incoming, &tenant, &bytes, turn, now, batch)
            {
                bytes.advance(taken);
                continue;
            }
            let Some(frame) = self.buffer.next_frame(&mut bytes)? else { return Ok(()) };
            // It may be like the last one, but come in several pieces.
            if self.take_again(incoming, &tenant, &frame, turn, now, batch).is_some() {
                continue;
            }
            self.like = None;
            match next_frame(&frame, &FrameLimits::open(incoming.shared.max_payload_bytes))? {
                Next::Need(_) => return Err(FrameError::Truncated.into()),
                Next::Control { kind, body, .. } => {
                    if let Some(control) = Control::decode(kind, body, CONTROL_BYTES_MAX)? {
                        self.on_control(incoming, &tenant, control, now, arrivals)?;
                    }
                }
                Next::Data { frame: data, .. } => {
                    *turn = turn.wrapping_add(1);
                    self.on_relay(incoming, &tenant, &data, (*turn, bringer), now, &mut arrivals.batch)?;
                    let before = frame.len().saturating_sub(data.payload.len());
                    if self.like.is_some() {
                        self.head.clear();
                        self.head.extend_from_slice(frame.get(..before).unwrap_or_default());
                    }
                }
            }
        }
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
                self.senders.insert(info.handle, RemoteSender { sender: None, info, last_seq: 0 });
                Ok(())
            }
            Control::ForgetHandles(_) => {
                self.brokers.clear();
                self.senders.clear();
                Ok(())
            }
            Control::Presence(body) => {
                let Some((origin, _)) = self.brokers.get(&body.origin).copied() else { return incoming.refuse() };
                let record = Record::Presence { seq: body.seq, present: body.present };
                arrivals.record(incoming, tenant, (origin, body.incarnation), record);
                Ok(())
            }
            Control::EdgeCut(body) => {
                let origin = self.brokers.get(&body.origin).copied();
                let Some(((origin, _), name)) = origin.zip(Label::parse(&body.edge).ok()) else {
                    return incoming.refuse();
                };
                let record = Record::Cut { edge: name, seq: body.seq, cut: body.cut };
                arrivals.record(incoming, tenant, (origin, body.incarnation), record);
                Ok(())
            }
            Control::PresenceSum(body) => {
                arrivals.record_of_peer(incoming, tenant, Record::Sum { digest: body.digest });
                Ok(())
            }
            Control::PresenceEnd(body) => {
                arrivals.record_of_peer(incoming, tenant, Record::End { told: body.told });
                Ok(())
            }
            // What neighbours of an earlier release say of interest: they are asked instead.
            Control::Interest(_) | Control::InterestSync(_) | Control::NoMember(_) => Ok(()),
            Control::Routed(routed) => self.on_routed(incoming, tenant, routed, now, arrivals),
            other => Err(BridgeFault::Unexpected(other.name())),
        }
    }

    const fn room(held: usize) -> Result<(), BridgeFault> {
        if held >= LANE_HANDLES_MAX { Err(BridgeFault::TooMany("handles")) } else { Ok(()) }
    }
}

mod again;
mod relay;
mod routed;
#[cfg(test)]
mod tests;
