//! The handle of one client.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use glocal_core::limits::CLIENT_PINGS_MAX;
use glocal_wire::EncodeError;
use glocal_wire::control::{Control, Ping};
use tokio::sync::{broadcast, oneshot};
use tokio_util::sync::CancellationToken;

use crate::connection::supervise;
use crate::error::{ConnectError, FlushError};
use crate::establish::{establish, random};
use crate::options::ConnectOptions;
use crate::outbox::PushError;
use crate::state::{Event, Inner, Session, Sink, Statistics};
use crate::sync::lock;

/// One client of a mesh; clones are the same client. When the last clone, subscription and message is dropped, the
/// connection is closed after what was published has been sent; [`Client::close`] waits for that.
#[derive(Clone)]
pub struct Client(Arc<Handle>);

/// Ends the connection task when the last handle goes.
struct Handle {
    inner: Arc<Inner>,
    closing: CancellationToken,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

impl Client {
    /// Connects to one of the brokers, each tried once, and waits for its welcome. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`ConnectError`], which names the file or address; [`ConnectError::Exhausted`] when several addresses failed.
    pub async fn connect(options: ConnectOptions) -> Result<Self, ConnectError> {
        let start = usize::try_from(random() >> 32).unwrap_or(0);
        let established = establish(&options, start).await?;
        let inner = Arc::new(Inner::new(options, established.session.clone()));
        inner.go_online(&established.session);
        let closing = inner.closing.clone();
        tokio::spawn(supervise(Arc::clone(&inner), established));
        Ok(Self(Arc::new(Handle { inner, closing })))
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0.inner
    }

    /// Who the broker takes this client for; what it said last, while there is no connection.
    #[must_use]
    pub fn whoami(&self) -> Arc<Session> {
        Arc::clone(&lock(&self.inner().state).session)
    }

    /// What was counted so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let counters = &self.inner().counters;
        Statistics {
            published: counters.published.load(Ordering::Relaxed),
            acknowledged: counters.acknowledged.load(Ordering::Relaxed),
            unacknowledged: counters.unacknowledged.load(Ordering::Relaxed),
            denied: counters.denied.load(Ordering::Relaxed),
            delivered: counters.delivered.load(Ordering::Relaxed),
            dropped: counters.dropped.load(Ordering::Relaxed),
            reconnects: counters.reconnects.load(Ordering::Relaxed),
        }
    }

    /// Listens to what happens from now on. A receiver does not keep the client alive; it ends after
    /// [`Event::Closed`].
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.inner().events.subscribe()
    }

    /// Waits until the broker has carried out everything sent before: publishes are accepted or refused, subscriptions
    /// stand.
    ///
    /// # Errors
    /// [`FlushError`]; a refusal is not one of them, see [`Client::events`] and [`Client::statistics`].
    pub async fn flush(&self) -> Result<(), FlushError> {
        let inner = self.inner();
        let token = inner.number();
        let ping = Control::from(Ping { token });
        let (waiter, answer) = oneshot::channel();
        let mut waiter = Some(waiter);
        let patience = inner.options.timeouts.answer;
        let pushed = inner.outbox.push(patience, |buffer| {
            let mut state = lock(&inner.state);
            if state.pings.len() >= CLIENT_PINGS_MAX {
                // Those whose waiter is gone make room.
                state.pings.retain(|_, waiter| !waiter.is_closed());
            }
            if state.pings.len() >= CLIENT_PINGS_MAX {
                return Err(None);
            }
            ping.encode_into(buffer).map_err(Some)?;
            state.pings.extend(waiter.take().map(|waiter| (token, waiter)));
            Ok(())
        });
        pushed.await.map_err(|error: PushError<Option<EncodeError>>| match error {
            PushError::Closed => FlushError::Closed,
            PushError::Offline => FlushError::Disconnected,
            PushError::Timeout | PushError::Encode(_) => FlushError::Timeout,
        })?;
        match tokio::time::timeout(patience, answer).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(FlushError::Disconnected),
            Err(_) => {
                lock(&inner.state).pings.remove(&token);
                Err(FlushError::Timeout)
            }
        }
    }

    /// Waits until no `ctrl` or `bulk` publish is without an answer. Whether one was lost on the way is in
    /// [`Statistics::unacknowledged`], whether one was refused in [`Statistics::denied`].
    ///
    /// # Errors
    /// [`FlushError::Timeout`].
    pub async fn acknowledged(&self, patience: Duration) -> Result<(), FlushError> {
        let all = self.inner().options.in_flight_max.clamp(1, tokio::sync::Semaphore::MAX_PERMITS);
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        match tokio::time::timeout(patience, self.inner().in_flight.acquire_many(all)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(FlushError::Timeout),
        }
    }

    /// Ends all subscriptions, waits until their messages are in their buffers and everything published was taken by
    /// the broker, and closes. Buffered messages can still be read.
    ///
    /// # Errors
    /// [`FlushError`]; the client is closed all the same.
    pub async fn drain(&self) -> Result<(), FlushError> {
        let inner = self.inner();
        let sids: Vec<u32> = {
            let state = lock(&inner.state);
            let subscribed = state.sinks.iter().filter(|(_, sink)| matches!(sink, Sink::Subscription(_)));
            subscribed.map(|(sid, _)| *sid).collect()
        };
        for sid in sids {
            crate::subscription::tell_unsubscribe(inner, sid, None);
        }
        let mut result = self.flush().await;
        if result.is_ok() {
            result = self.acknowledged(inner.options.timeouts.answer).await;
        }
        self.close().await;
        result
    }

    /// Sends what is buffered, closes the connection and waits for it. Every clone is closed with this one.
    pub async fn close(&self) {
        self.0.closing.cancel();
        self.inner().closed.cancelled().await;
    }

    /// Whether the client is closed for good: by [`Client::close`], or because reconnecting gave up.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner().closed.is_cancelled()
    }

    /// Waits until the client is closed for good.
    pub async fn closed(&self) {
        self.inner().closed.cancelled().await;
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let session = self.whoami();
        f.debug_struct("Client").field("node", &session.node).field("session", &session.session).finish()
    }
}
