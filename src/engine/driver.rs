//! The driver of the control half: commands in, tables and frames out.
//!
//! One task owns it. A batch of commands is applied, the tables are published once, and only then are the answers put
//! into the sessions' lanes, so that a client that reads "subscribed" is subscribed. Records for other brokers go into
//! the tenant's own `ctrl` lane, in order; what finds no room waits here and goes first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use glocal_core::control::{Control, Outgoing, RecordError};
use glocal_core::count::Drop as DropReason;
use glocal_core::deny::{Access, Deny};
use glocal_core::edge::{EdgeKey, TenantSet};
use glocal_core::interest::presence::Record;
use glocal_core::limits::PRESENCE_PENDING_MAX;
use glocal_core::name::{Class, QueueGroup};
use glocal_core::policy::{Permit, Read};
use glocal_core::port::{Dialect, SessionPort};
use glocal_core::routes::BrokerIndex;
use glocal_core::sched::{Pushed, QueuedFrame};
use glocal_core::tenant::TenantKey;
use glocal_core::time::Time;
use glocal_core::topology::{LinkError, LinkMessage, LinkRecord};
use glocal_wire::control as wire;
use glocal_wire::nats;

use crate::interest;
use crate::link::append;
use crate::link_state::Outbox;
use crate::reliable;
use crate::routed::{self, Letter};
use crate::shared::Shared;
use crate::tally;

mod change;

pub use change::{Change, Life, Renewal};

/// How often [`Driver::follow`] is to be called, in milliseconds.
pub const FOLLOW_MS: u64 = 100;

/// How often what edges hold of tenants that hold too much is given up, in milliseconds: as often as sessions do it.
const SHED_MS: u64 = 1_000;

/// Something for the control half to do.
#[derive(Debug)]
pub enum Command {
    /// Add a permitted subscription.
    Subscribe {
        /// The session.
        port: Arc<SessionPort>,
        /// The client's number.
        sid: u32,
        /// The text by which the client knows it, where that is not a number.
        tag: Box<[u8]>,
        /// The permit.
        permit: Permit<Read>,
        /// The queue group.
        queue: Option<QueueGroup>,
        /// Whether other brokers are not told.
        local_only: bool,
    },
    /// End a subscription, now or after some deliveries.
    Unsubscribe {
        /// The session.
        session: u64,
        /// The client's number.
        sid: u32,
        /// Deliveries in all after which it ends.
        max: Option<u64>,
    },
    /// Answer a ping, after everything before it.
    Ping {
        /// The session.
        port: Arc<SessionPort>,
        /// Comes back.
        token: u64,
    },
    /// The session is gone.
    CloseSession {
        /// The session.
        session: u64,
    },
    /// A bridge is up.
    EdgeUp {
        /// The edge.
        edge: EdgeKey,
        /// What it may carry.
        effective: TenantSet,
        /// The life of the broker behind it.
        peer_incarnation: u64,
    },
    /// The peer has said how many tenants' full lists it sends.
    EdgeReady {
        /// The edge.
        edge: EdgeKey,
        /// Their number.
        lists: u32,
    },
    /// The bridge is gone.
    EdgeDown {
        /// The edge.
        edge: EdgeKey,
    },
    /// A record came over an edge.
    Record {
        /// The edge.
        edge: EdgeKey,
        /// The tenant of its lane.
        tenant: TenantKey,
        /// The broker it speaks for.
        origin: BrokerIndex,
        /// That broker's life.
        incarnation: u64,
        /// The record.
        record: Record,
    },
    /// A message about the fabric's edges came over the control stream of an edge.
    LinkState {
        /// The edge.
        edge: EdgeKey,
        /// The message.
        message: LinkMessage,
    },
    /// The round-trip time of an edge was measured.
    Rtt {
        /// The edge.
        edge: EdgeKey,
        /// In microseconds.
        micros: u64,
    },
    /// A session is about to publish for a tenant, for the first time. It may when [`Driver::is_ready`] says so.
    PublishFrom {
        /// The session.
        session: u64,
        /// The tenant.
        tenant: TenantKey,
    },
    /// A control frame for this broker came from another one of the tenant's mesh.
    Letter(Letter),
    /// The bundle, the configuration or what an edge carries has changed.
    Change(Change),
    /// The edges have had their time to come up.
    Settle,
}

/// What a command brought about that its sender must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to tell.
    Done,
    /// After [`Command::EdgeUp`]: how many tenants' full lists will be sent.
    Lists(u32),
    /// After [`Command::PublishFrom`]: whoever sent it waits until [`Driver::is_ready`].
    Awaits(TenantKey),
    /// A record was refused: the peer is out of date, or lies.
    RecordRefused(RecordError),
    /// A message about the fabric's edges was refused.
    LinkRefused(LinkError),
}

/// The control half with what it has still to say.
#[derive(Debug)]
pub struct Driver {
    control: Control,
    shared: Arc<Shared>,
    answers: Vec<(Arc<SessionPort>, wire::Control)>,
    pending: BTreeMap<(EdgeKey, TenantKey), VecDeque<Outgoing>>,
    denials: Vec<String>,
    /// When what edges hold of tenants that hold too much is given up next.
    shed_at: Time,
}

impl Driver {
    /// A driver of `control` on the node described by `shared`.
    #[must_use]
    pub const fn new(control: Control, shared: Arc<Shared>) -> Self {
        Self { control, shared, answers: Vec::new(), pending: BTreeMap::new(), denials: Vec::new(), shed_at: Time(0) }
    }

    /// The control half, to be looked at.
    #[must_use]
    pub const fn control(&self) -> &Control {
        &self.control
    }

    /// The tenants of the fabric, as far as this node knows them.
    #[must_use]
    pub fn tenants(&self) -> Arc<glocal_core::tenant::Tenants> {
        self.shared.tenants()
    }

    /// Whether this node has no edges.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.shared.links().is_empty()
    }

    /// Whether records wait for room, so that [`Driver::pump`] is to be called again soon.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
            || self.shared.links().iter().any(|l| self.control.topology().is_waiting(l.edge().key()))
    }

    /// What comes with time; to be called about once a second, before [`Driver::commit`].
    pub fn tick(&mut self, now: Time) {
        self.control.topology_mut().tick(now);
        self.sweep(now);
        self.shared.delivered.sweep();
        tally::tick(&self.shared, now);
    }

    /// Forgets reply routes that have expired.
    fn sweep(&self, now: Time) {
        self.tenants().iter().for_each(|tenant| tenant.replies().sweep(now));
    }

    /// Applies one command. Nothing is seen of it until [`Driver::commit`].
    pub fn apply(&mut self, command: Command) -> Outcome {
        match command {
            Command::Subscribe { port, sid, tag, permit, queue, local_only } => {
                let filter = permit.object().0.to_string();
                let added = self.control.subscribe(&port, sid, tag, permit, queue, local_only);
                self.answer_subscribe(port, sid, filter, added);
            }
            Command::Unsubscribe { session, sid, max } => self.control.unsubscribe(session, sid, max),
            Command::Ping { port, token } => self.answers.push((port, wire::Pong { token }.into())),
            Command::CloseSession { session } => self.control.close_session(session),
            Command::EdgeUp { edge, effective, peer_incarnation } => {
                if self.shared.link(edge).is_some_and(|link| link.edge().is_up()) {
                    // A newer bridge takes over: what was announced and queued belongs to the old one's lanes.
                    self.apply(Command::EdgeDown { edge });
                }
                self.pending.retain(|(e, _), _| *e != edge);
                if let Some(link) = self.shared.link(edge) {
                    link.outbox().with(Outbox::clear);
                }
                let peer = self.shared.link(edge).and_then(|l| self.shared.brokers().index(l.edge().peer()));
                if let Some(peer) = peer {
                    reliable::heard(&self.shared, None, peer, peer_incarnation);
                }
                return Outcome::Lists(self.control.edge_up(edge, effective, peer_incarnation));
            }
            Command::EdgeReady { edge, lists } => self.control.edge_ready(edge, lists),
            Command::EdgeDown { edge } => {
                self.control.edge_down(edge);
                self.pending.retain(|(e, _), _| *e != edge);
                if let Some(link) = self.shared.link(edge) {
                    link.inbox().with(|lanes| lanes.clear(&self.shared.tenants()));
                }
            }
            Command::Record { edge, tenant, origin, incarnation, record } => {
                if let Err(error) = self.control.record(edge, tenant, origin, incarnation, record) {
                    return Outcome::RecordRefused(error);
                }
                reliable::heard(&self.shared, Some(tenant), origin, incarnation);
            }
            Command::LinkState { edge, message } => {
                let of = match &message {
                    LinkMessage::Record(LinkRecord::Key(key)) => self.shared.brokers().index(&key.node),
                    _ => None,
                };
                if let Err(error) = self.control.link_message(edge, message) {
                    return Outcome::LinkRefused(error);
                }
                let life = |broker| Some((broker, self.control.topology().incarnation_of(broker)));
                if let Some((broker, life @ 1..)) = of.and_then(life) {
                    reliable::heard(&self.shared, None, broker, life);
                }
            }
            Command::Rtt { edge, micros } => self.control.topology_mut().measured(edge, micros),
            Command::Change(change) => self.change(change),
            Command::PublishFrom { session, tenant } => {
                self.control.publish_from(session, tenant);
                return Outcome::Awaits(tenant);
            }
            Command::Letter(letter) => self.open(&letter),
            Command::Settle => self.control.settle(),
        }
        Outcome::Done
    }

    /// Hands a letter to whom it concerns. What is wrong with it is its origin's fault, not the peer's: counted, no more.
    fn open(&mut self, letter: &Letter) {
        let (tenant, origin, incarnation) = (letter.tenant.key(), letter.origin, letter.incarnation);
        match &letter.control {
            wire::Control::InterestPull(body) => {
                let _counted_there = self.control.pull(tenant, origin, incarnation, interest::pull(body));
            }
            wire::Control::InterestNews(body) => match interest::news(body) {
                Some(news) => self.control.news(tenant, origin, incarnation, news),
                None => self.control.count_drop(tenant, Class::Ctrl, DropReason::Malformed),
            },
            _ => self.control.count_drop(tenant, Class::Ctrl, DropReason::Malformed),
        }
    }

    /// Whether who publishes for `tenant` need not wait: the interest of others is known, or was waited for long enough.
    #[must_use]
    pub fn is_ready(&self, tenant: TenantKey) -> bool {
        self.control.is_ready(tenant)
    }

    /// Asks again for interest that was not told, and tells again what was not taken; to be called about every
    /// [`FOLLOW_MS`] milliseconds, before [`Self::commit`].
    pub fn follow(&mut self, now: Time) {
        self.control.tick(now);
        if now >= self.shed_at {
            self.shed_at = now.plus_millis(SHED_MS);
            let tenants = self.shared.tenants();
            self.shared.links().iter().for_each(|link| link.inbox().with(|lanes| lanes.shed(&tenants)));
        }
    }

    fn answer_subscribe(&mut self, port: Arc<SessionPort>, sid: u32, filter: String, added: Result<(), Deny>) {
        let answer = match added {
            Ok(()) => wire::Subscribed { sid }.into(),
            Err(reason) => {
                self.count_refusal(&port, reason);
                not_subscribed(&port, sid, filter, reason).into()
            }
        };
        self.answers.push((port, answer));
    }

    fn count_refusal(&self, port: &SessionPort, reason: Deny) {
        if let Some(tenant) = self.shared.tenant(port.principal().tenant().as_str()) {
            tenant.counters().deny(Access::Read, reason);
        }
    }

    /// Publishes what has changed, then answers, then passes records on.
    pub fn commit(&mut self, now: Time) {
        self.control.at(now);
        let outgoing = self.control.commit();
        for (port, answer) in self.answers.drain(..) {
            give(&port, &answer, now);
        }
        for record in outgoing {
            self.pending.entry((record.edge, record.tenant)).or_default().push_back(record);
        }
        for letter in self.control.letters() {
            let tenants = self.shared.tenants();
            let Some(tenant) = tenants.by_key(letter.tenant) else { continue };
            // What is lost is counted, and said again by whoever misses the answer.
            let _sent = routed::send(&self.shared, tenant, letter.target, &interest::body(&letter.message), now);
        }
        self.pump(now);
        self.pump_link_state();
    }

    /// Gives the control streams what neighbours have still to be told of the fabric's edges.
    fn pump_link_state(&mut self) {
        let topology = self.control.topology_mut();
        for link in self.shared.links().iter() {
            if !topology.is_waiting(link.edge().key()) {
                continue;
            }
            let _ = link.outbox().push_batch(|outbox| {
                topology.take(link.edge().key(), outbox.room()).into_iter().for_each(|message| outbox.push(message));
            });
        }
    }

    /// Passes on records that waited for room. Whether any are left; then the driver is to be called again soon.
    pub fn pump(&mut self, now: Time) -> bool {
        let shared = &self.shared;
        let control = &mut self.control;
        let mut overflowed = Vec::new();
        self.pending.retain(|(edge, tenant), queue| {
            let Some(link) = shared.link(*edge).filter(|l| l.edge().may_send(*tenant)) else { return false };
            let sent = link.inbox().push_batch(|lanes| {
                while let Some(record) = queue.front() {
                    let (frame, handles) = interest::frame(record);
                    let frame = QueuedFrame::new(frame.freeze()).pinned();
                    if lanes.push(*tenant, Class::Ctrl, frame, &handles, &shared.brokers(), now)
                        == Pushed::DroppedNewest
                    {
                        break;
                    }
                    queue.pop_front();
                }
            });
            if queue.len() > PRESENCE_PENDING_MAX {
                overflowed.push((*edge, *tenant));
            }
            sent.is_some() && !queue.is_empty()
        });
        for (edge, tenant) in overflowed {
            // Nothing after the gap was sent, so a full list as of now heals it.
            self.pending.remove(&(edge, tenant));
            control.resend(edge, tenant);
            for record in control.commit() {
                self.pending.entry((record.edge, record.tenant)).or_default().push_back(record);
            }
        }
        !self.pending.is_empty()
    }
}

/// The answer to a subscription that is refused, or has to end.
fn not_subscribed(port: &SessionPort, sid: u32, filter: String, reason: Deny) -> wire::Denied {
    wire::Denied {
        access: Access::Read as u8,
        id: u64::from(sid),
        subject: filter,
        code: reason.code().to_owned(),
        text: reason.text(port.principal().tenant().as_str()),
        retry_after_ms: None,
    }
}

/// Puts an answer into a session's egress, in its dialect. A session that does not read its answers is closed by its own
/// task, which sees the overflow.
fn give(port: &SessionPort, answer: &wire::Control, now: Time) {
    match (port.dialect(), answer) {
        (Dialect::Native, answer) => {
            let mut frame = BytesMut::new();
            append(&mut frame, answer);
            let _ = port.inbox().push_batch(|lanes| lanes.push_control(frame.freeze()));
        }
        (Dialect::Nats { .. }, wire::Control::Pong(_)) => {
            // After the messages before it: clients take a PONG for the proof that those have come.
            let frame = QueuedFrame::new(Bytes::from_static(nats::PONG)).pinned();
            let _ = port.inbox().push_batch(|lanes| {
                lanes.begin();
                let pushed = lanes.push(Class::Live, frame, now);
                lanes.settle();
                match pushed {
                    Pushed::DroppedNewest => lanes.push_control(Bytes::from_static(nats::PONG)),
                    _ => Ok(()),
                }
            });
        }
        (Dialect::Nats { .. }, wire::Control::Denied(denied)) => {
            let mut line = BytesMut::new();
            let subject = denied.subject.as_bytes();
            nats::Refusal::Subscription { subject, queue: b"", reason: &denied.text }.encode_into(&mut line);
            let _ = port.inbox().push_batch(|lanes| lanes.push_control(line.freeze()));
        }
        // The session itself has said +OK where the client wants it.
        (Dialect::Nats { .. }, _) => {}
    }
}
