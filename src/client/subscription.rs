//! Subscriptions.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use glocal_core::limits::SESSION_SUBSCRIPTIONS_MAX;
use glocal_wire::control::{self, Control};
use tokio::sync::oneshot;

use crate::Client;
use crate::error::{Denied, FlushError, SubscribeError};
use crate::message::Message;
use crate::options::Buffering;
use crate::outbox::PushError;
use crate::queue::{End, Queue};
use crate::state::{Entry, Inner, Sink};
use crate::sync::lock;

/// What to subscribe to; see [`Client::subscribe_with`].
#[derive(Clone, Debug, Default)]
pub struct Subscribe {
    /// The filter, raw or qualified; `*` is one token, a final `>` is one or more.
    pub filter: String,
    /// The queue group: each message goes to one member in the whole mesh.
    pub queue: Option<String>,
    /// Bounds of the buffer; the client's by default.
    pub buffering: Option<Buffering>,
}

/// A standing subscription. Dropping it unsubscribes.
pub struct Subscription {
    entry: Arc<Entry>,
    client: Client,
}

impl Client {
    /// Subscribes and waits until the broker has confirmed it: a message published afterwards is delivered.
    ///
    /// # Errors
    /// [`SubscribeError`].
    pub async fn subscribe(&self, filter: &str, queue: Option<&str>) -> Result<Subscription, SubscribeError> {
        let queue = queue.map(str::to_owned);
        self.subscribe_with(Subscribe { filter: filter.to_owned(), queue, buffering: None }).await
    }

    /// As [`Client::subscribe`], with bounds of its own.
    ///
    /// # Errors
    /// [`SubscribeError`].
    pub async fn subscribe_with(&self, subscribe: Subscribe) -> Result<Subscription, SubscribeError> {
        let entry = subscribe_entry(self.inner(), subscribe, Sink::Subscription, false).await?;
        Ok(Subscription { entry, client: self.clone() })
    }
}

/// Subscribes, with messages going where `sink` says, and waits for the broker's answer.
pub(crate) async fn subscribe_entry(
    inner: &Inner,
    subscribe: Subscribe,
    sink: fn(Arc<Entry>) -> Sink,
    local_only: bool,
) -> Result<Arc<Entry>, SubscribeError> {
    let (waiter, answer) = oneshot::channel();
    let entry = Arc::new(Entry {
        sid: inner.next_sid.fetch_add(1, Ordering::Relaxed),
        filter: subscribe.filter,
        group: subscribe.queue,
        queue: Queue::new(subscribe.buffering.unwrap_or_else(|| inner.options.buffering.clone())),
        received: AtomicU64::new(0),
        remaining: AtomicU64::new(u64::MAX),
        answer: Mutex::new(Some(waiter)),
    });
    let frame = entry.frame(local_only);
    let patience = inner.options.timeouts.answer;
    // Given up before the answer, by timeout or because this future is dropped, it must not stand at the broker.
    let mut undo = Undo { inner, sid: entry.sid, is_armed: true };
    let pushed = inner.outbox.push(patience, |buffer| {
        let mut state = lock(&inner.state);
        if state.sinks.len() >= SESSION_SUBSCRIPTIONS_MAX {
            return Err(format!("more than {SESSION_SUBSCRIPTIONS_MAX} subscriptions"));
        }
        frame.encode_into(buffer).map_err(|error| error.to_string())?;
        state.sinks.insert(entry.sid, sink(Arc::clone(&entry)));
        Ok(())
    });
    pushed.await.map_err(|error| match error {
        PushError::Closed => SubscribeError::Closed,
        PushError::Timeout | PushError::Offline => SubscribeError::Timeout,
        PushError::Encode(text) => SubscribeError::Malformed(text),
    })?;
    match tokio::time::timeout(patience, answer).await {
        Ok(Ok(Ok(()))) => {
            undo.is_armed = false;
            Ok(entry)
        }
        Ok(Ok(Err(denied))) => Err(SubscribeError::Denied(denied)),
        Ok(Err(_)) => Err(SubscribeError::Closed),
        Err(_) => Err(SubscribeError::Timeout),
    }
}

struct Undo<'a> {
    inner: &'a Inner,
    sid: u32,
    is_armed: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            forget(self.inner, self.sid);
        }
    }
}

/// Forgets a subscription here and at the broker.
pub(crate) fn forget(inner: &Inner, sid: u32) {
    let known = lock(&inner.state).sinks.remove(&sid).is_some();
    if known {
        tell_unsubscribe(inner, sid, None);
    }
}

/// Tells the broker to end a subscription, at once or after `max` messages. Without a connection there is nothing to
/// end: the next one subscribes only what is known then.
pub(crate) fn tell_unsubscribe(inner: &Inner, sid: u32, max: Option<u64>) {
    let frame = Control::from(control::Unsubscribe { sid, max });
    let _ = inner.outbox.push_now(|buffer| frame.encode_into(buffer));
}

impl Subscription {
    /// The next message; `None` when no more come: unsubscribed, refused ([`Subscription::denied`]) or closed.
    pub async fn next(&mut self) -> Option<Message> {
        self.entry.queue.next().await.ok().map(|delivery| Message::new(delivery, self.client.clone()))
    }

    /// The next message if one is here already.
    pub fn try_next(&mut self) -> Option<Message> {
        let delivery = self.entry.queue.try_next()?.ok()?;
        Some(Message::new(delivery, self.client.clone()))
    }

    /// The filter as it was given.
    #[must_use]
    pub fn filter(&self) -> &str {
        &self.entry.filter
    }

    /// The queue group.
    #[must_use]
    pub fn queue(&self) -> Option<&str> {
        self.entry.group.as_deref()
    }

    /// Messages that a full buffer dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.entry.queue.dropped()
    }

    /// Messages that wait in the buffer.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.entry.queue.len()
    }

    /// Why the broker ended the subscription, if it did: a change of policy, or a refusal after reconnecting.
    #[must_use]
    pub fn denied(&self) -> Option<Denied> {
        match self.entry.queue.ended() {
            Some(End::Denied(denied)) => Some(denied),
            _ => None,
        }
    }

    /// Ends after `max` more messages.
    pub fn unsubscribe_after(&self, max: u64) {
        if max == 0 {
            return self.unsubscribe();
        }
        self.entry.remaining.store(max, Ordering::Relaxed);
        let in_all = max.saturating_add(self.entry.received.load(Ordering::Relaxed));
        tell_unsubscribe(self.client.inner(), self.entry.sid, Some(in_all));
    }

    /// Ends the subscription now; what is buffered can still be read.
    pub fn unsubscribe(&self) {
        forget(self.client.inner(), self.entry.sid);
        self.entry.queue.end(End::Closed);
    }

    /// Ends the subscription at the broker and waits until everything it sent before is in the buffer, which can still
    /// be read.
    ///
    /// # Errors
    /// [`FlushError`]; the subscription has ended all the same.
    pub async fn drain(&self) -> Result<(), FlushError> {
        tell_unsubscribe(self.client.inner(), self.entry.sid, None);
        let result = self.client.flush().await;
        lock(&self.client.inner().state).sinks.remove(&self.entry.sid);
        self.entry.queue.end(End::Closed);
        result
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.unsubscribe();
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("filter", &self.filter()).field("queue", &self.queue()).finish()
    }
}
