//! Batches: what one read buffer produced, collected per target and appended to each once (DESIGN section 11).
//!
//! A small message is copied once, into the target's chunk; a large payload is copied once for all targets and shared.
//! [`Batch::flush`] takes one lock per target, appends, and wakes it at most once.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use glocal_core::count::Drop as DropReason;
use glocal_core::identity::Role;
use glocal_core::limits::{
    BATCH_BYTES_MAX, DELIVERY_SUBS_MAX, QUEUED_FRAME_OVERHEAD_BYTES, RUN_BYTES_MAX, SHARED_PAYLOAD_BYTES_MIN,
};
use glocal_core::name::{Class, Destination, QueueGroup};
use glocal_core::port::{Delivery, Dialect, SessionPort, Sub};
use glocal_core::routes::BrokerIndex;
use glocal_core::sched::{Pushed, QueuedFrame};
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;
use glocal_wire::data::{DataHead, DataKind, TailLengths};
use glocal_wire::ext::ExtBuilder;
use glocal_wire::nats::{encode_msg_into, encode_msg_prefix_into};
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::link::{Handles, Link};
use crate::sender::Sender;
use crate::shared::Shared;

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
}

/// One target broker with the queue groups it is to serve.
pub type TargetGroups<'g> = (BrokerIndex, SmallVec<[&'g QueueGroup; 1]>);

#[derive(Debug)]
struct Item<H> {
    class: Class,
    bytes: usize,
    tail: Option<Bytes>,
    ttl_ms: Option<u32>,
    tenant: Arc<Tenant>,
    handles: H,
    /// Small frames in a row that are queued as one.
    frames: u32,
}

#[derive(Debug)]
struct Target<T, H> {
    to: T,
    chunk: BytesMut,
    items: Vec<Item<H>>,
}

impl<T, H> Target<T, H> {
    fn new(to: T) -> Self {
        Self { to, chunk: BytesMut::new(), items: Vec::new() }
    }
}

/// Frames collected for many targets.
#[derive(Debug, Default)]
pub struct Batch {
    ports: Vec<Target<Arc<SessionPort>, ()>>,
    port_index: HashMap<u64, usize>,
    links: Vec<Target<Arc<Link>, Handles>>,
    link_index: HashMap<u32, usize>,
    ext: ExtBuilder,
    /// The shared tail of the message at hand, made for its first target that wants one.
    shared_tail: Option<Bytes>,
    /// The same for sessions of the text protocol.
    shared_text_tail: Option<Bytes>,
    /// What has been collected, in bytes, with the bookkeeping of every frame.
    held: usize,
    /// Sessions of which a subscription has had its last delivery, to be unsubscribed.
    pub finished: Vec<(u64, u32)>,
}

impl Batch {
    /// Begins a message; what was shared of the last one is let go.
    pub fn begin(&mut self) {
        self.shared_tail = None;
        self.shared_text_tail = None;
    }

    /// Bytes collected, with the bookkeeping of every frame.
    #[cfg(test)]
    pub(crate) const fn held(&self) -> usize {
        self.held
    }

    /// Whether nothing was collected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.links.is_empty()
    }

    /// Collects the message for the subscriptions of one session; `false` when none of them takes it any more.
    pub fn deliver<'s>(
        &mut self,
        port: &Arc<SessionPort>,
        qualified: bool,
        subs: impl Iterator<Item = &'s Arc<Sub>>,
        message: &Message<'_>,
    ) -> bool {
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
        let class = message.destination.class();
        let sender = message.sender.text(viewer(port, message));
        self.ext.clear();
        self.ext.subs(subs.iter().map(|sub| sub.sid())).sender_text(sender);
        let head = DataHead { ttl_ms: message.ttl_ms, ..DataHead::new(DataKind::Deliver, Some(class)) };
        let name = if qualified { NameBytes::Qualified(message.destination.to_string()) } else { NameBytes::Raw };
        let index = self.port_target(port);
        let Some(target) = self.ports.get_mut(index) else { return };
        let encoded = encode(&mut target.chunk, head, &self.ext, message, &name, &mut self.shared_tail);
        self.collect(index, encoded, message);
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
                encode_msg_into(&mut target.chunk, subject.as_bytes(), sid, reply, headers, payload).map(|()| None)
            };
            let bytes = target.chunk.len() - start;
            self.collect(index, encoded.ok().map(|tail| (bytes, tail)), message);
        }
    }

    fn port_target(&mut self, port: &Arc<SessionPort>) -> usize {
        *self.port_index.entry(port.id()).or_insert_with(|| {
            self.ports.push(Target::new(Arc::clone(port)));
            self.ports.len() - 1
        })
    }

    /// Notes a frame that was appended to a session's chunk, or counts one that could not be.
    fn collect(&mut self, index: usize, encoded: Option<(usize, Option<Bytes>)>, message: &Message<'_>) {
        let class = message.destination.class();
        let counters = message.tenant.counters().class(class);
        match (encoded, self.ports.get_mut(index)) {
            (Some((bytes, tail)), Some(target)) => {
                let tenant = Arc::clone(message.tenant);
                counters.delivered.add(1);
                self.held += bytes + QUEUED_FRAME_OVERHEAD_BYTES;
                let item = Item { class, bytes, tail, ttl_ms: message.ttl_ms, tenant, handles: (), frames: 1 };
                append(&mut target.items, item, |_, _| true);
            }
            _ => counters.dropped(DropReason::TooLarge, 1),
        }
    }

    /// Collects the message for the brokers behind one edge. The caller has checked that the edge allows the tenant.
    pub fn relay(&mut self, link: &Arc<Link>, targets: &[TargetGroups<'_>], message: &Message<'_>) {
        let class = message.destination.class();
        self.ext.clear();
        self.ext.origin(message.sender.origin().0).incarnation(message.incarnation).sender(message.sender.handle());
        if let Some(token) = message.reply_token {
            self.ext.reply_token(token);
        }
        let mut builder = self.ext.targets();
        for (broker, groups) in targets {
            builder.target(broker.0);
            for group in groups {
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
            self.links.push(Target::new(Arc::clone(link)));
            self.links.len() - 1
        });
        let Some(target) = self.links.get_mut(index) else { return };
        let name = NameBytes::Raw;
        let encoded = encode(&mut target.chunk, head, &self.ext, message, &name, &mut self.shared_tail);
        if let Some((bytes, tail)) = encoded {
            let tenant = Arc::clone(message.tenant);
            tenant.counters().class(class).relayed_out.add(1);
            self.held += bytes + QUEUED_FRAME_OVERHEAD_BYTES;
            let mut handles = Handles { brokers: SmallVec::new(), sender: Some(Arc::clone(message.sender)) };
            handles.brokers.push((message.sender.origin(), message.incarnation));
            handles.brokers.extend(targets.iter().map(|(broker, _)| (*broker, 0)));
            let item = Item { class, bytes, tail, ttl_ms: message.ttl_ms, tenant, handles, frames: 1 };
            append(&mut target.items, item, Handles::same);
        } else {
            message.tenant.counters().class(class).dropped(DropReason::TooLarge, 1);
        }
    }

    /// Appends everything to its targets when it has become much: a burst of small messages to many subscriptions
    /// must not pile up before the lanes, which are bounded, see it.
    pub fn relieve(&mut self, shared: &Shared, now: Time) {
        if self.held > BATCH_BYTES_MAX {
            self.flush(shared, now);
        }
    }

    /// Appends everything to its targets, one lock and at most one wake each.
    pub fn flush(&mut self, shared: &Shared, now: Time) {
        self.begin();
        self.held = 0;
        for target in self.ports.drain(..) {
            let mut chunk = target.chunk.freeze();
            let mut items = Some(target.items);
            let pushed = target.to.inbox().push_batch(|lanes| {
                for item in items.take().into_iter().flatten() {
                    let (class, frame, tenant) = item.into_frame(&mut chunk);
                    let frames = frame.frames;
                    target.to.lost.add(count(&tenant, class, lanes.push(class, frame, now), frames));
                }
            });
            if pushed.is_none() {
                items.into_iter().flatten().for_each(|item| item.gone());
            }
        }
        self.port_index.clear();
        for target in self.links.drain(..) {
            let mut chunk = target.chunk.freeze();
            let mut items = Some(target.items);
            let link = &target.to;
            let pushed = link.inbox().push_batch(|lanes| {
                for mut item in items.take().into_iter().flatten() {
                    let handles = std::mem::take(&mut item.handles);
                    let (class, frame, tenant) = item.into_frame(&mut chunk);
                    let frames = frame.frames;
                    if link.edge().may_send(tenant.key()) {
                        let pushed = lanes.push(tenant.key(), class, frame, &handles, &shared.brokers(), now);
                        count(&tenant, class, pushed, frames);
                    } else {
                        tenant.counters().class(class).dropped(DropReason::EdgeTenant, u64::from(frames));
                    }
                }
                lanes.count_drops(&shared.tenants());
            });
            if pushed.is_none() {
                items.into_iter().flatten().for_each(|item| item.gone());
            }
        }
        self.link_index.clear();
    }
}

impl<H> Item<H> {
    fn into_frame(self, chunk: &mut Bytes) -> (Class, QueuedFrame, Arc<Tenant>) {
        let bytes = chunk.split_to(self.bytes.min(chunk.len()));
        let frame = QueuedFrame { tail: self.tail, ..QueuedFrame::new(bytes) };
        (self.class, frame.with_ttl_ms(self.ttl_ms).with_frames(self.frames), self.tenant)
    }

    fn gone(&self) {
        self.tenant.counters().class(self.class).dropped(DropReason::Gone, u64::from(self.frames));
    }
}

/// Notes a frame that was appended to a target's chunk; small ones in a row become one entry of the queue.
fn append<H>(items: &mut Vec<Item<H>>, item: Item<H>, same: impl Fn(&H, &H) -> bool) {
    let joins = |last: &&mut Item<H>| {
        last.class == item.class
            && last.bytes + item.bytes <= RUN_BYTES_MAX
            && last.tail.is_none()
            && item.tail.is_none()
            && last.ttl_ms.is_none()
            && item.ttl_ms.is_none()
            && Arc::ptr_eq(&last.tenant, &item.tenant)
            && same(&last.handles, &item.handles)
    };
    match items.last_mut().filter(joins) {
        Some(last) => {
            last.bytes += item.bytes;
            last.frames += item.frames;
        }
        None => items.push(item),
    }
}

/// Counts what a push has lost, and returns how many messages that were.
fn count(tenant: &Tenant, class: Class, pushed: Pushed, frames: u32) -> u64 {
    let counters = tenant.counters().class(class);
    let lost = match pushed {
        Pushed::Queued => return 0,
        Pushed::DroppedNewest => u64::from(frames),
        Pushed::DroppedOldest { frames, .. } => frames,
    };
    counters.dropped(DropReason::LaneFull, lost);
    lost
}

/// The subject a NATS client is given: the raw name, the qualified one where it asked so, and its own alias for what the
/// node itself tells its tenant.
fn nats_subject<'m>(port: &SessionPort, qualified: bool, message: &'m Message<'_>) -> Cow<'m, str> {
    let raw = message.destination.raw().as_str();
    if !qualified {
        return Cow::Borrowed(raw);
    }
    let own = port.principal().tenant() == message.tenant.id() && message.destination.class() == Class::Ctrl;
    match raw.strip_prefix("advisory.").filter(|_| own) {
        Some(rest) => Cow::Owned(format!("$ADV.{rest}")),
        None => Cow::Owned(message.destination.to_string()),
    }
}

/// The tenant whose eyes see the sender's name: the reader's own, but a superuser sees as the tenant itself does.
fn viewer<'m>(port: &'m SessionPort, message: &'m Message<'_>) -> &'m str {
    match port.principal().role() {
        Role::Tenant => port.principal().tenant().as_str(),
        Role::Superuser | Role::Internal | Role::Node => message.tenant.id().as_str(),
    }
}

fn joined(parts: &[&[u8]]) -> Bytes {
    let mut out = BytesMut::with_capacity(parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.freeze()
}

enum NameBytes {
    Raw,
    Qualified(String),
}

/// Appends one frame to a chunk; a large tail is made once and shared. Returns the bytes in the chunk and the tail.
fn encode(
    chunk: &mut BytesMut,
    head: DataHead,
    ext: &ExtBuilder,
    message: &Message<'_>,
    name: &NameBytes,
    shared_tail: &mut Option<Bytes>,
) -> Option<(usize, Option<Bytes>)> {
    let start = chunk.len();
    let ext = ext.bytes().ok()?;
    let raw = message.destination.raw().as_str().as_bytes();
    let (name, shareable) = match name {
        NameBytes::Raw => (raw, true),
        NameBytes::Qualified(text) => (text.as_bytes(), false),
    };
    let tail = if shareable && message.payload.len() >= SHARED_PAYLOAD_BYTES_MIN {
        let lengths = TailLengths {
            name: name.len(),
            reply: message.reply.len(),
            headers: message.headers.len(),
            payload: message.payload.len(),
        };
        head.encode_prefix_into(chunk, ext, &lengths).ok()?;
        let tail = shared_tail.get_or_insert_with(|| joined(&[name, message.reply, message.headers, message.payload]));
        Some(tail.clone())
    } else {
        head.encode_into(chunk, ext, name, message.reply, message.headers, message.payload).ok()?;
        None
    };
    Some((chunk.len() - start, tail))
}
