//! Batches: what one read buffer produced, collected per target and appended to each once (DESIGN section 11).
//!
//! A small message is copied once, into the target's chunk; a large payload is copied once for all targets and shared.
//! [`Batch::flush`] takes one lock per target, appends, and wakes it at most once.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use glocal_core::count::Drop as DropReason;
use glocal_core::limits::{
    BATCH_BYTES_MAX, CHUNK_BYTES_MAX, DELIVERY_SUBS_MAX, QUEUED_FRAME_OVERHEAD_BYTES, SHARED_PAYLOAD_BYTES_MIN,
};
use glocal_core::name::{Class, Destination, QueueGroup};
use glocal_core::port::{Delivery, Dialect, SessionPort, Sub};
use glocal_core::reliable::outgoing::Step;
use glocal_core::routes::BrokerIndex;
use glocal_core::sched::Pushed;
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;
use glocal_wire::data::{DataHead, DataKind, TailLengths};
use glocal_wire::nats::{LastLine, encode_msg_prefix_into};
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::link::{Handles, Link};
use crate::reliable::{self, Unsettled};
use crate::sender::Sender;
use crate::shared::Shared;
use crate::tally;

mod again;
mod crowd;
mod delivery_ext;
mod encode;
mod item;
mod refused;
mod room;

#[cfg(test)]
pub(crate) use again::testing;
pub(crate) use again::{Decided, Only, SINGLE_FRAME_BROKERS};
use again::{Head, Written};
use crowd::Open;
pub(crate) use crowd::{Crowds, Wanted};
use delivery_ext::DeliveryExt;
use encode::{NameBytes, encode, encode_native, joined, lengths, nats_subject};
use item::{Frame, Item, append};
use refused::Refused;
use room::Room;

/// One message on its way: what is the same for all its targets.
#[derive(Debug)]
pub struct Message<'m> {
    /// The tenant it belongs to.
    pub tenant: &'m Arc<Tenant>,
    /// Its destination within the tenant.
    pub destination: Destination<'m>,
    /// Reply subject, empty for none.
    pub reply: &'m [u8],
    /// Header block, verbatim.
    pub headers: &'m [u8],
    /// Payload.
    pub payload: &'m [u8],
    /// Milliseconds it is worth something, if it says so.
    pub ttl_ms: Option<u32>,
    /// Who published it.
    pub sender: &'m Arc<Sender>,
    /// The life of the broker at which it entered.
    pub incarnation: u64,
    /// Its place among the sender's messages of this class.
    pub seq: u64,
    /// The requester's token at its broker, when it has a reply subject or is a reply.
    pub reply_token: Option<u64>,
    /// Brokers passed before this one.
    pub hops: u8,
    /// Whether it was sent to somebody else before, who may have got it.
    pub redelivered: bool,
}

/// One target broker with the queue groups it is to serve.
#[derive(Clone, Debug)]
pub struct TargetGroups<'g> {
    /// The broker.
    pub broker: BrokerIndex,
    /// The groups.
    pub groups: SmallVec<[&'g QueueGroup; 1]>,
    /// What goes with its copy in a reliable class.
    pub step: Step,
}

impl TargetGroups<'_> {
    /// A target without groups.
    #[must_use]
    pub fn plain(broker: BrokerIndex) -> Self {
        Self { broker, groups: SmallVec::new(), step: Step { back: 0, life: 0 } }
    }
}

#[derive(Debug)]
struct Target<T, H> {
    to: T,
    chunk: BytesMut,
    items: Vec<Item<H>>,
    /// Of the reliable classes: what was collected, and how much more is known to find room.
    reserved: [usize; 2],
    free: [usize; 2],
}

impl<T, H> Target<T, H> {
    fn new(to: T, expected: usize) -> Self {
        Self { to, chunk: BytesMut::with_capacity(expected), items: Vec::new(), reserved: [0; 2], free: [0; 2] }
    }

    /// The chunk with what is noted of its frames. It holds no more memory than twice what it needs.
    fn take(&mut self) -> (Bytes, Vec<Item<H>>) {
        (shrunk(std::mem::take(&mut self.chunk)), std::mem::take(&mut self.items))
    }

    /// The places of a reliable class in `reserved` and `free`.
    const fn reliable(&mut self, class: Class) -> (&mut usize, &mut usize) {
        let ([ctrl_reserved, bulk_reserved], [ctrl_free, bulk_free]) = (&mut self.reserved, &mut self.free);
        match class {
            Class::Bulk => (bulk_reserved, bulk_free),
            _ => (ctrl_reserved, ctrl_free),
        }
    }
}

/// Frames collected for many targets.
#[derive(Debug, Default)]
pub struct Batch {
    ports: Vec<Target<Arc<SessionPort>, ()>>,
    port_index: HashMap<u64, usize>,
    /// The place of the session that was given something last.
    last_port: usize,
    /// What was collected for crowds, after what the same sessions have been given in `ports`.
    open: Option<Open>,
    /// Whether the message at hand is in there, so that its other sessions are none of those.
    beside: bool,
    links: Vec<Target<Arc<Link>, Handles>>,
    link_index: HashMap<u32, usize>,
    /// The extensions of the frame that was written last.
    ext: DeliveryExt,
    /// The line of the last message for a session of the text protocol.
    line: LastLine,
    /// What the last message was written with, for one more like it.
    head: Head,
    /// Frames that the message at hand was written in, and where the last of them is.
    frames: u32,
    written: Written,
    /// The shared tail of the message at hand, made for its first target that wants one.
    shared_tail: Option<Bytes>,
    /// The same for sessions of the text protocol.
    shared_text_tail: Option<Bytes>,
    /// What has been collected, in bytes, with the bookkeeping of every frame.
    held: usize,
    /// How much is expected for the first target.
    expected: usize,
    /// Frames of reliable classes that found no room on an edge.
    refused: Vec<Refused>,
    /// How targets took what they were given since [`Self::take_lost`].
    room: Room,
    /// Whose messages of reliable classes are among them, to be acknowledged when they are in all lanes.
    pub(crate) unsettled: Vec<Unsettled>,
    /// Sessions of which a subscription has had its last delivery, to be unsubscribed.
    pub finished: Vec<(u64, u32)>,
}

impl Batch {
    /// Begins a message; what was shared of the last one is let go.
    pub fn begin(&mut self) {
        self.shared_tail = None;
        self.shared_text_tail = None;
        self.frames = 0;
        self.beside = false;
    }

    /// Says how many bytes are about to be worked on. What comes of them is mostly for one target, whose chunk is made for
    /// all of it at once and not grown step by step.
    pub(crate) fn foresee(&mut self, bytes: usize) {
        self.expected = (bytes + bytes / 2).min(CHUNK_BYTES_MAX);
    }

    /// Bytes collected, with the bookkeeping of every frame.
    #[cfg(test)]
    pub(crate) const fn held(&self) -> usize {
        self.held
    }

    /// Whether nothing was collected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.links.is_empty() && self.open.is_none()
    }

    /// Collects the message for the subscriptions of one session; `false` when none of them takes it any more.
    pub fn deliver<'s>(
        &mut self,
        port: &Arc<SessionPort>,
        qualified: bool,
        subs: impl Iterator<Item = &'s Arc<Sub>>,
        message: &Message<'_>,
    ) -> bool {
        if !self.beside {
            self.scatter();
        }
        let mut taking: SmallVec<[&Arc<Sub>; 4]> = SmallVec::new();
        for sub in subs {
            match sub.deliver() {
                Delivery::Yes => taking.push(sub),
                Delivery::Last => {
                    taking.push(sub);
                    self.finished.push((port.id(), sub.sid()));
                }
                Delivery::Over => {}
            }
        }
        if taking.is_empty() {
            return false;
        }
        match port.dialect() {
            Dialect::Native => {
                for subs in taking.chunks(DELIVERY_SUBS_MAX) {
                    self.deliver_native(port, qualified, subs, message);
                }
            }
            Dialect::Nats { headers } => {
                let headers = if headers { message.headers } else { b"" };
                self.deliver_nats(port, qualified, &taking, headers, message);
            }
        }
        true
    }

    /// Collects one native frame for some subscriptions of one session.
    fn deliver_native(&mut self, port: &Arc<SessionPort>, qualified: bool, subs: &[&Arc<Sub>], message: &Message<'_>) {
        let index = self.port_target(port);
        let Some(target) = self.ports.get_mut(index) else { return };
        let (ext, tail) = (&mut self.ext, &mut self.shared_tail);
        let encoded = encode_native(&mut target.chunk, (ext, tail), port, qualified, subs, message);
        self.collect(index, encoded, is_admitted(subs, message), message);
    }

    /// Collects one NATS message per subscription: the protocol has no other way.
    fn deliver_nats(
        &mut self,
        port: &Arc<SessionPort>,
        qualified: bool,
        subs: &[&Arc<Sub>],
        headers: &[u8],
        message: &Message<'_>,
    ) {
        let subject = nats_subject(port, qualified, message);
        let index = self.port_target(port);
        let admitted = is_admitted(subs, message);
        for sub in subs {
            let Some(target) = self.ports.get_mut(index) else { return };
            let (start, sid, reply, payload) = (target.chunk.len(), sub.tag(), message.reply, message.payload);
            let encoded = if payload.len() >= SHARED_PAYLOAD_BYTES_MIN && headers.len() == message.headers.len() {
                let prefix = (headers.len(), payload.len());
                encode_msg_prefix_into(&mut target.chunk, subject.as_bytes(), sid, reply, prefix.0, prefix.1).map(
                    |()| {
                        let tail = self.shared_text_tail.get_or_insert_with(|| joined(&[headers, payload, b"\r\n"]));
                        Some(tail.clone())
                    },
                )
            } else {
                let line = &mut self.line;
                line.encode_msg_into(&mut target.chunk, subject.as_bytes(), sid, reply, headers, payload).map(|()| None)
            };
            let bytes = target.chunk.len() - start;
            self.collect(index, encoded.ok().map(|tail| (bytes, tail)), admitted, message);
        }
    }

    fn port_target(&mut self, port: &Arc<SessionPort>) -> usize {
        // Messages in a row go to the same session, or to the same ones in the same order.
        let next = if self.last_port + 1 < self.ports.len() { self.last_port + 1 } else { 0 };
        let is = |at: &usize| self.ports.get(*at).is_some_and(|target| Arc::ptr_eq(&target.to, port));
        let guess = Some(self.last_port).filter(is).or_else(|| Some(next).filter(is));
        self.last_port = guess.unwrap_or_else(|| {
            *self.port_index.entry(port.id()).or_insert_with(|| {
                self.ports.push(Target::new(Arc::clone(port), std::mem::take(&mut self.expected)));
                self.ports.len() - 1
            })
        });
        self.last_port
    }

    /// Whether the lanes of all sessions have room. All are asked, so that each one's patience begins to run out.
    pub fn have_room<'p>(
        &mut self,
        ports: impl Iterator<Item = &'p Arc<SessionPort>>,
        message: &Message<'_>,
        now: Time,
    ) -> bool {
        let mut all = true;
        for port in ports {
            all &= self.has_room(port, message, now);
        }
        all
    }

    /// Whether a session's lane has room for one more message in a reliable class, beside what was collected for it.
    fn has_room(&mut self, port: &Arc<SessionPort>, message: &Message<'_>, now: Time) -> bool {
        /// What a delivery has beside the message's own parts: its head, its extensions, a qualified name.
        const AROUND_BYTES: usize = 512;
        let class = message.destination.class();
        let parts = message.payload.len() + message.headers.len() + message.reply.len();
        let bytes = parts + 2 * message.destination.raw().as_str().len() + AROUND_BYTES + QUEUED_FRAME_OVERHEAD_BYTES;
        let index = self.port_target(port);
        let Some(target) = self.ports.get_mut(index) else { return true };
        let (reserved, free) = target.reliable(class);
        if *free < bytes {
            *free = port.inbox().with(|lanes| lanes.ask(class, bytes, *reserved, now));
        }
        *free >= bytes
    }

    /// The parts of a message that are the same for every broker, in one piece; shared where it is large.
    pub fn tail(&mut self, message: &Message<'_>) -> (Bytes, TailLengths) {
        let raw = message.destination.raw().as_str().as_bytes();
        let make = || joined(&[raw, message.reply, message.headers, message.payload]);
        let tail = if message.payload.len() >= SHARED_PAYLOAD_BYTES_MIN {
            self.shared_tail.get_or_insert_with(make).clone()
        } else {
            make()
        };
        (tail, lengths(raw, message))
    }

    /// Notes a frame that was appended to a session's chunk, or counts one that could not be.
    fn collect(
        &mut self,
        index: usize,
        encoded: Option<(usize, Option<Bytes>)>,
        admitted: bool,
        message: &Message<'_>,
    ) {
        let class = message.destination.class();
        match (encoded, self.ports.get_mut(index)) {
            (Some((bytes, tail)), Some(target)) => {
                self.held += bytes + QUEUED_FRAME_OVERHEAD_BYTES;
                if admitted {
                    let whole = bytes + tail.as_ref().map_or(0, Bytes::len) + QUEUED_FRAME_OVERHEAD_BYTES;
                    let (reserved, free) = target.reliable(class);
                    *reserved += whole;
                    *free = free.saturating_sub(whole);
                }
                (self.frames, self.written) = (self.frames + 1, Written::Port(index));
                let frame = Frame { bytes, tail, admitted, seq: 0 };
                append(&mut target.items, frame, message, |()| true, || ());
            }
            _ => message.tenant.counters().class(class).dropped(DropReason::TooLarge, 1),
        }
    }

    /// Collects the message for the brokers behind one edge. The caller has checked that the edge allows the tenant.
    pub fn relay(&mut self, link: &Arc<Link>, targets: &[TargetGroups<'_>], message: &Message<'_>) {
        let class = message.destination.class();
        let ext = self.ext.others();
        ext.origin(message.sender.origin().0).incarnation(message.incarnation).sender(message.sender.handle());
        ext.redelivered(message.redelivered);
        if class.is_reliable() {
            ext.steps(targets.iter().map(|target| target.step.back));
            ext.lives(targets.iter().map(|target| target.step.life));
        }
        if let Some(token) = message.reply_token {
            ext.reply_token(token);
        }
        let mut builder = ext.targets();
        for target in targets {
            builder.target(target.broker.0);
            for group in &target.groups {
                builder.group(group.as_str());
            }
        }
        drop(builder);
        let head = DataHead {
            hops: message.hops,
            seq: Some(message.seq),
            ttl_ms: message.ttl_ms,
            ..DataHead::new(DataKind::Relay, Some(class))
        };
        let index = *self.link_index.entry(link.edge().key().0).or_insert_with(|| {
            self.links.push(Target::new(Arc::clone(link), std::mem::take(&mut self.expected)));
            self.links.len() - 1
        });
        let Some(target) = self.links.get_mut(index) else { return };
        let name = NameBytes::Raw;
        let encoded = encode(&mut target.chunk, head, &self.ext.ext, message, &name, &mut self.shared_tail);
        if let Some((bytes, tail)) = encoded {
            self.held += bytes + QUEUED_FRAME_OVERHEAD_BYTES;
            let used = || {
                let origin = (message.sender.origin(), message.incarnation);
                std::iter::once(origin).chain(targets.iter().map(|target| (target.broker, 0)))
            };
            let same = |last: &Handles| last.are(message.sender, used());
            let handles = || Handles { brokers: used().collect(), sender: Some(Arc::clone(message.sender)) };
            (self.frames, self.written) = (self.frames + 1, Written::Link(index));
            let frame = Frame { bytes, tail, admitted: false, seq: message.seq };
            append(&mut target.items, frame, message, same, handles);
        } else {
            message.tenant.counters().class(class).dropped(DropReason::TooLarge, 1);
        }
    }

    /// Whether much was collected.
    pub(crate) const fn is_heavy(&self) -> bool {
        self.held > BATCH_BYTES_MAX
    }

    /// Appends everything to its targets when it has become much: a burst of small messages to many subscriptions
    /// must not pile up before the lanes, which are bounded, see it.
    pub fn relieve(&mut self, shared: &Shared, now: Time) {
        if self.held > BATCH_BYTES_MAX {
            self.flush(shared, now);
        }
    }

    /// Appends everything to its targets, one lock and at most one wake each; then tells origins what of theirs has been
    /// delivered, or was refused.
    pub fn flush(&mut self, shared: &Shared, now: Time) {
        self.push(shared, now);
        reliable::settle(self, shared, now);
        for refused in std::mem::take(&mut self.refused) {
            let Refused { tenant, class, origin, incarnation, seq } = refused;
            reliable::overflowed(shared, &tenant, class, (origin, incarnation), seq, now);
        }
    }

    /// Whether most of what was flushed since the last call was lost, on every edge it was for, and nothing of it was for a
    /// session here.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.room).is_nowhere()
    }

    /// Appends everything to its targets.
    pub(crate) fn push(&mut self, shared: &Shared, now: Time) {
        self.begin();
        self.scatter();
        self.head.forget();
        self.held = 0;
        self.room.anywhere |= !self.ports.is_empty();
        for mut target in self.ports.drain(..) {
            let (mut chunk, items) = target.take();
            items.iter().for_each(|item| item.counters().delivered.add(u64::from(item.frames)));
            let mut items = Some(items);
            let pushed = target.to.inbox().push_batch(|lanes| {
                lanes.begin();
                for item in items.take().into_iter().flatten() {
                    let (class, frame, tenant) = item.into_frame(&mut chunk);
                    let frames = frame.frames;
                    let pushed = lanes.push(class, frame, now);
                    target.to.lost.add(count(&tenant, class, pushed, lanes.lost_by(), frames));
                }
                lanes.settle();
            });
            if pushed.is_none() {
                items.into_iter().flatten().for_each(|item| item.gone());
            }
        }
        self.port_index.clear();
        for mut target in self.links.drain(..) {
            let (mut chunk, items) = target.take();
            items.iter().for_each(|item| item.counters().relayed_out.add(u64::from(item.frames)));
            let mut items = Some(items);
            let link = &target.to;
            let refused = &mut self.refused;
            let (mut given, mut taken_out) = (0, 0);
            let pushed = link.inbox().push_batch(|lanes| {
                for mut item in items.take().into_iter().flatten() {
                    let handles = std::mem::take(&mut item.handles);
                    let seq = item.seq;
                    let (class, frame, tenant) = item.into_frame(&mut chunk);
                    let frames = frame.frames;
                    tally::note(shared, &tenant, class, &handles, frames);
                    if link.edge().may_send(tenant.key()) {
                        let pushed = lanes.push(tenant.key(), class, frame, &handles, &shared.brokers(), now);
                        let reason = lanes.sched().lost_by();
                        let lost = count(&tenant, class, pushed, reason, frames);
                        lanes.note_lost(tenant.key(), class, reason, lost);
                        given += u64::from(frames);
                        taken_out += lost;
                        if pushed != Pushed::Queued && class.is_reliable() {
                            refused.extend(Refused::first(tenant, class, &handles, seq, refused.last()));
                        }
                    } else {
                        // As if it had been in the lane when the bridge ended: its origin counts it as lost.
                        let reason = link.edge().reason(DropReason::Gone);
                        tenant.counters().class(class).dropped(reason, u64::from(frames));
                        lanes.note_lost(tenant.key(), class, reason, u64::from(frames));
                    }
                }
                lanes.count_drops(&shared.tenants());
            });
            self.room.add(given, taken_out);
            if pushed.is_none() {
                items.into_iter().flatten().for_each(|item| {
                    tally::note(shared, &item.tenant, item.class, &item.handles, item.frames);
                    item.gone();
                });
            }
        }
        self.link_index.clear();
    }
}

/// A chunk as what shares its memory, of which there is no more than twice what it needs.
fn shrunk(chunk: BytesMut) -> Bytes {
    let spacious = chunk.capacity() / 2 > chunk.len();
    if spacious { Bytes::copy_from_slice(&chunk) } else { chunk.freeze() }
}

/// Whether a delivery was asked room for: in reliable classes, but for observers, who never slow anybody.
fn is_admitted(subs: &[&Arc<Sub>], message: &Message<'_>) -> bool {
    message.destination.class().is_reliable() && subs.iter().any(|sub| !sub.is_observer())
}

/// Counts what a push has lost, and returns how many messages that were.
fn count(tenant: &Tenant, class: Class, pushed: Pushed, reason: DropReason, frames: u32) -> u64 {
    let counters = tenant.counters().class(class);
    let lost = match pushed {
        Pushed::Queued => return 0,
        Pushed::DroppedNewest => u64::from(frames),
        Pushed::DroppedOldest { frames, .. } => frames,
    };
    counters.dropped(reason, lost);
    lost
}
