//! What one client knows, shared by its handles and its connection task.
//!
//! Lock order: the send buffer before [`State`]. Whatever belongs to a frame on its way (a pending publish, a ping, a
//! subscription) is noted while the send buffer is locked and open, and forgotten after it was taken offline: nothing
//! waits for an answer that a lost connection owed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use glocal_core::deny::Access;
use glocal_core::limits::CLIENT_EVENTS_MAX;
use glocal_wire::control::{self, Control};
use tokio::sync::{Semaphore, broadcast, oneshot};
use tokio_util::sync::CancellationToken;

use crate::error::{Denied, PublishError};
use crate::message::Delivery;
use crate::options::{Address, ConnectOptions};
use crate::outbox::Outbox;
use crate::queue::{End, Queue};
use crate::sync::lock;

/// Who the broker takes this client for, and what it told about the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The address that was dialled.
    pub address: Address,
    /// The broker, `<region>/<agent>`, as its certificate says.
    pub node: String,
    /// The session's number on that broker.
    pub session: u64,
    /// The tenant.
    pub tenant: String,
    /// The role: `TENANT` or `SUPERUSER`.
    pub role: String,
    /// The region; absent for a nameless principal.
    pub region: Option<String>,
    /// The agent; absent for a nameless principal.
    pub agent: Option<String>,
    /// The first 16 hex digits of the certificate's fingerprint.
    pub uid: String,
    /// The largest payload, in bytes.
    pub max_payload: u32,
    /// The prefix of the session's reply subjects.
    pub inbox: String,
}

/// What happens to a connection. Listeners that are slow lose the oldest events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Connected again; everything is subscribed again.
    Connected {
        /// The broker.
        node: String,
    },
    /// The connection was lost.
    Disconnected {
        /// Why.
        reason: String,
    },
    /// The broker refused an operation.
    Denied(Denied),
    /// The broker is about to leave; the client reconnects when it does.
    Goodbye {
        /// The catalogued code.
        code: String,
        /// The text.
        text: String,
        /// How long the broker stays.
        grace: Duration,
    },
    /// A subscription's buffer is full and drops; reported once until there is space again.
    SlowConsumer {
        /// The subscription's filter.
        filter: String,
        /// Messages it dropped so far.
        dropped: u64,
    },
    /// `ctrl` and `bulk` publishes of a lost connection that were not acknowledged; they may or may not have arrived.
    Unacknowledged {
        /// How many.
        count: u64,
    },
    /// The client is closed; nothing follows.
    Closed,
}

/// What a client counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages put into the send buffer.
    pub published: u64,
    /// Publishes acknowledged by a broker.
    pub acknowledged: u64,
    /// Publishes whose acknowledgement a lost connection took along.
    pub unacknowledged: u64,
    /// Refusals by a broker, of publishes and subscriptions.
    pub denied: u64,
    /// Messages received.
    pub delivered: u64,
    /// Messages dropped by full buffers of subscriptions.
    pub dropped: u64,
    /// Connections made after the first.
    pub reconnects: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) published: AtomicU64,
    pub(crate) acknowledged: AtomicU64,
    pub(crate) unacknowledged: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) delivered: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) reconnects: AtomicU64,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// One subscription as its handle and the connection share it.
pub(crate) struct Entry {
    pub(crate) sid: u32,
    pub(crate) filter: String,
    pub(crate) group: Option<String>,
    pub(crate) queue: Queue,
    /// Messages received over the current connection: a broker counts from its subscription on.
    pub(crate) received: AtomicU64,
    /// Messages still wanted; `u64::MAX` for all.
    pub(crate) remaining: AtomicU64,
    /// Told when the broker answers the first time.
    pub(crate) answer: Mutex<Option<oneshot::Sender<Result<(), Denied>>>>,
}

impl Entry {
    /// The frame that asks for it.
    pub(crate) fn frame(&self, local_only: bool) -> Control {
        control::Subscribe { sid: self.sid, filter: self.filter.clone(), queue: self.group.clone(), local_only }.into()
    }

    fn answer(&self, answer: Result<(), Denied>) -> bool {
        lock(&self.answer).take().is_some_and(|waiter| waiter.send(answer).is_ok())
    }
}

/// Where messages of a subscription id go.
#[derive(Clone)]
pub(crate) enum Sink {
    /// To a subscription.
    Subscription(Arc<Entry>),
    /// To open requests, by the last token of the subject; the entry's own queue is unused.
    Replies(Arc<Entry>),
}

impl Sink {
    const fn entry(&self) -> &Arc<Entry> {
        match self {
            Self::Subscription(entry) | Self::Replies(entry) => entry,
        }
    }
}

/// A publish the broker may still speak about.
pub(crate) struct Pending {
    pub(crate) waiter: Option<oneshot::Sender<Result<u32, PublishError>>>,
    /// Whether it holds one of the places in flight, that is, whether an acknowledgement comes.
    pub(crate) is_reliable: bool,
}

/// The reply subscription of one connection.
#[derive(Clone)]
pub(crate) struct Mux {
    /// The connection it belongs to.
    pub(crate) epoch: u64,
    /// What a request's number is appended to.
    pub(crate) prefix: Arc<str>,
}

pub(crate) struct State {
    pub(crate) session: Arc<Session>,
    /// Counts connections made and lost.
    pub(crate) epoch: u64,
    pub(crate) sinks: HashMap<u32, Sink>,
    pub(crate) pending: HashMap<u64, Pending>,
    pub(crate) requests: HashMap<u64, Arc<Queue>>,
    pub(crate) pings: HashMap<u64, oneshot::Sender<()>>,
    pub(crate) mux: Option<Mux>,
}

/// See the module.
pub(crate) struct Inner {
    pub(crate) options: ConnectOptions,
    pub(crate) outbox: Outbox,
    pub(crate) state: Mutex<State>,
    pub(crate) in_flight: Semaphore,
    pub(crate) events: broadcast::Sender<Event>,
    pub(crate) counters: Counters,
    /// Numbers publishes, requests and pings.
    pub(crate) next_number: AtomicU64,
    pub(crate) next_sid: AtomicU32,
    /// The fabric's largest payload, in bytes, as the last broker said.
    pub(crate) max_payload: AtomicU32,
    /// One at a time subscribes to replies.
    pub(crate) mux_gate: tokio::sync::Mutex<()>,
    /// Somebody wants the client closed, or its last handle is gone.
    pub(crate) closing: CancellationToken,
    /// The connection task has ended.
    pub(crate) closed: CancellationToken,
}

impl Inner {
    pub(crate) fn new(options: ConnectOptions, session: Session) -> Self {
        let in_flight = options.in_flight_max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            max_payload: AtomicU32::new(session.max_payload),
            options,
            outbox: Outbox::new(),
            state: Mutex::new(State {
                session: Arc::new(session),
                epoch: 0,
                sinks: HashMap::new(),
                pending: HashMap::new(),
                requests: HashMap::new(),
                pings: HashMap::new(),
                mux: None,
            }),
            in_flight: Semaphore::new(in_flight),
            events: broadcast::Sender::new(CLIENT_EVENTS_MAX),
            counters: Counters::default(),
            next_number: AtomicU64::new(1),
            next_sid: AtomicU32::new(1),
            mux_gate: tokio::sync::Mutex::new(()),
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn emit(&self, event: Event) {
        // Nobody listens: nobody misses it.
        let _ = self.events.send(event);
    }

    /// A connection stands: what belonged to the last one is forgotten, everything is subscribed again, oldest first, and
    /// frames may follow.
    pub(crate) fn go_online(&self, session: &Session) {
        self.max_payload.store(session.max_payload, Ordering::Relaxed);
        let mut state = lock(&self.state);
        state.session = Arc::new(session.clone());
        state.epoch += 1;
        state.mux = None;
        state.sinks.retain(|_, sink| matches!(sink, Sink::Subscription(_)));
        let mut entries: Vec<_> = state.sinks.values().map(|sink| Arc::clone(sink.entry())).collect();
        drop(state);
        entries.sort_by_key(|entry| entry.sid);
        let mut frames = BytesMut::new();
        for entry in entries {
            // It was encoded once, so it can be encoded again.
            if entry.frame(false).encode_into(&mut frames).is_err() {
                entry.queue.end(End::Closed);
            }
            entry.received.store(0, Ordering::Relaxed);
            let remaining = entry.remaining.load(Ordering::Relaxed);
            if remaining != u64::MAX {
                let limit = Control::from(control::Unsubscribe { sid: entry.sid, max: Some(remaining) });
                // Only a body with text can fail; and the limit is kept here, too.
                let _ = limit.encode_into(&mut frames);
            }
        }
        self.outbox.open(frames);
    }

    /// The connection is lost: everyone who waits for an answer is told.
    pub(crate) fn go_offline(&self) {
        self.outbox.go_offline();
        let mut state = lock(&self.state);
        state.epoch += 1;
        state.mux = None;
        let pending = std::mem::take(&mut state.pending);
        let requests = std::mem::take(&mut state.requests);
        state.pings.clear();
        drop(state);
        for queue in requests.into_values() {
            queue.end(End::Disconnected);
        }
        let mut unacknowledged = 0;
        for pending in pending.into_values() {
            if pending.is_reliable {
                self.in_flight.add_permits(1);
                unacknowledged += 1;
            }
            if let Some(waiter) = pending.waiter {
                let _ = waiter.send(Err(PublishError::Disconnected));
            }
        }
        if unacknowledged > 0 {
            self.counters.unacknowledged.fetch_add(unacknowledged, Ordering::Relaxed);
            self.emit(Event::Unacknowledged { count: unacknowledged });
        }
    }

    /// The client is closed for good: subscriptions end.
    pub(crate) fn finish(&self) {
        self.outbox.close();
        self.go_offline();
        let sinks = std::mem::take(&mut lock(&self.state).sinks);
        for sink in sinks.into_values() {
            sink.entry().queue.end(End::Closed);
        }
        self.emit(Event::Closed);
        self.closed.cancel();
    }

    /// A publish got its answer.
    pub(crate) fn resolve(&self, seq: u64, answer: Result<u32, PublishError>) {
        let Some(pending) = lock(&self.state).pending.remove(&seq) else { return };
        if pending.is_reliable {
            self.in_flight.add_permits(1);
            if answer.is_ok() {
                count(&self.counters.acknowledged);
            }
        }
        if let Some(waiter) = pending.waiter {
            let _ = waiter.send(answer);
        }
    }

    pub(crate) fn subscribed(&self, sid: u32) {
        let sink = lock(&self.state).sinks.get(&sid).cloned();
        if let Some(sink) = sink {
            sink.entry().answer(Ok(()));
        }
    }

    pub(crate) fn no_responders(&self, body: &control::NoResponders) {
        let number = match body.seq {
            0 => number_of(&body.reply),
            seq => Some(seq),
        };
        if let Some(number) = number {
            let queue = lock(&self.state).requests.remove(&number);
            if let Some(queue) = queue {
                queue.end(End::NoResponders);
            }
            self.resolve(number, Ok(0));
        }
    }

    pub(crate) fn denied(&self, body: control::Denied) {
        count(&self.counters.denied);
        let denied = Denied {
            access: if body.access == 0 { Access::Read } else { Access::Write },
            subject: body.subject,
            code: body.code,
            text: body.text,
            retry_after: body.retry_after_ms.map(|ms| Duration::from_millis(u64::from(ms))),
        };
        match denied.access {
            Access::Write if body.id != 0 => {
                let request = lock(&self.state).requests.remove(&body.id);
                if let Some(queue) = request {
                    queue.end(End::Denied(denied.clone()));
                }
                self.resolve(body.id, Err(PublishError::Denied(denied.clone())));
            }
            Access::Read => {
                let sink = u32::try_from(body.id).ok().and_then(|sid| lock(&self.state).sinks.remove(&sid));
                if let Some(sink) = sink {
                    sink.entry().answer(Err(denied.clone()));
                    sink.entry().queue.end(End::Denied(denied.clone()));
                }
            }
            Access::Write => {}
        }
        self.emit(Event::Denied(denied));
    }

    /// The request a reply belongs to.
    pub(crate) fn request_of(&self, reply: &Delivery) -> Option<Arc<Queue>> {
        let number = number_of(reply.subject())?;
        lock(&self.state).requests.get(&number).cloned()
    }
}

/// The number a reply subject ends with.
fn number_of(reply: &str) -> Option<u64> {
    reply.rsplit('.').next()?.parse().ok()
}
