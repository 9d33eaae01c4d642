//! Publishing: from a message to its frame in the send buffer, and to its acknowledgement.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use glocal_core::name::{Class, Destination};
use glocal_wire::EncodeError;
use glocal_wire::data::{DataHead, DataKind};
use tokio::sync::oneshot;

use crate::Client;
use crate::error::{FlushError, PublishError};
use crate::message::{Publish, Published};
use crate::outbox::PushError;
use crate::state::{Inner, Pending, count};
use crate::sync::lock;

/// A publish on its way into the send buffer.
pub(crate) struct Outgoing<'a> {
    pub(crate) subject: &'a str,
    pub(crate) reply: &'a str,
    pub(crate) headers: &'a str,
    pub(crate) payload: &'a [u8],
    pub(crate) class: Option<Class>,
    pub(crate) ttl: Option<Duration>,
    /// The number under which the broker speaks about it; `ctrl` and `bulk` always get one.
    pub(crate) number: Option<u64>,
    /// Told when the broker answers.
    pub(crate) waiter: Option<oneshot::Sender<Result<u32, PublishError>>>,
}

impl Client {
    /// Publishes a payload in the client's default class. Returns when it is in the send buffer; waits while that is
    /// full, or while there is no connection.
    ///
    /// # Errors
    /// [`PublishError`]. A refusal by the broker comes later, as [`crate::Event::Denied`].
    pub async fn publish(&self, subject: &str, payload: impl AsRef<[u8]>) -> Result<(), PublishError> {
        let outgoing = Outgoing::new(subject, payload.as_ref());
        send(self.inner(), outgoing).await
    }

    /// Publishes a message. With [`Publish::ack`] it returns after the broker's answer, otherwise when the message is
    /// in the send buffer. `ctrl` and `bulk` wait while too many are without an acknowledgement.
    ///
    /// # Errors
    /// [`PublishError`]. Without `ack` a refusal by the broker comes later, as [`crate::Event::Denied`].
    pub async fn publish_with(&self, publish: Publish) -> Result<Published, PublishError> {
        let headers = publish.headers.encode();
        let mut outgoing = Outgoing {
            reply: publish.reply.as_deref().unwrap_or_default(),
            headers: &headers,
            class: publish.class,
            ttl: publish.ttl,
            ..Outgoing::new(&publish.subject, &publish.payload)
        };
        let inner = self.inner();
        if !publish.ack {
            return send(inner, outgoing).await.map(|()| Published::Buffered);
        }
        let number = inner.number();
        let is_reliable = outgoing.is_reliable(inner);
        let (waiter, mut answer) = oneshot::channel();
        (outgoing.number, outgoing.waiter) = (Some(number), Some(waiter));
        // Also when this future is dropped.
        let _forget = Forget { inner, number, is_reliable };
        send(inner, outgoing).await?;
        if is_reliable {
            let targets = tokio::time::timeout(inner.options.timeouts.answer, answer)
                .await
                .map_err(|_| PublishError::Timeout)?
                .map_err(|_| PublishError::Closed)??;
            return Ok(Published::Acknowledged { targets });
        }
        // The pong comes after a refusal.
        let flushed = self.flush().await;
        match (answer.try_recv(), flushed) {
            (Ok(Err(error)), _) => Err(error),
            (_, Ok(())) => Ok(Published::Accepted),
            (_, Err(FlushError::Timeout)) => Err(PublishError::Timeout),
            (_, Err(FlushError::Disconnected)) => Err(PublishError::Disconnected),
            (_, Err(FlushError::Closed)) => Err(PublishError::Closed),
        }
    }
}

/// Forgets a publish that gets no acknowledgement; one that does is forgotten by it.
struct Forget<'a> {
    inner: &'a Inner,
    number: u64,
    is_reliable: bool,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if !self.is_reliable {
            lock(&self.inner.state).pending.remove(&self.number);
        }
    }
}

impl<'a> Outgoing<'a> {
    pub(crate) const fn new(subject: &'a str, payload: &'a [u8]) -> Self {
        Self { subject, reply: "", headers: "", payload, class: None, ttl: None, number: None, waiter: None }
    }

    /// Whether the broker acknowledges it. A qualified subject names its class.
    fn is_reliable(&self, inner: &Inner) -> bool {
        let named = if self.subject.starts_with("T.") {
            Destination::parse(self.subject.as_bytes()).ok().map(|destination| destination.class())
        } else {
            None
        };
        named.or(self.class).unwrap_or(inner.options.default_class).is_reliable()
    }

    fn encode(&self, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        let head = DataHead {
            seq: self.number,
            ttl_ms: self.ttl.map(|ttl| u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX)),
            ..DataHead::new(DataKind::Publish, self.class)
        };
        let (name, reply, headers) = (self.subject.as_bytes(), self.reply.as_bytes(), self.headers.as_bytes());
        head.encode_into(buffer, &[], name, reply, headers, self.payload)
    }
}

/// Puts a publish into the send buffer.
pub(crate) async fn send(inner: &Inner, mut outgoing: Outgoing<'_>) -> Result<(), PublishError> {
    let max = inner.max_payload.load(Ordering::Relaxed) as usize;
    if outgoing.payload.len() > max {
        return Err(PublishError::TooLarge { bytes: outgoing.payload.len(), max });
    }
    let patience = inner.options.timeouts.publish;
    let is_reliable = outgoing.is_reliable(inner);
    let mut place = None;
    if is_reliable {
        outgoing.number.get_or_insert_with(|| inner.number());
        place = Some(match inner.in_flight.try_acquire() {
            Ok(place) => place,
            // The fast path takes no timer. The semaphore is never closed.
            Err(_) => match tokio::time::timeout(patience, inner.in_flight.acquire()).await {
                Ok(place) => place.map_err(|_| PublishError::Closed)?,
                Err(_) => return Err(PublishError::Timeout),
            },
        });
    }
    let pushed = inner.outbox.push(patience, |buffer| {
        outgoing.encode(buffer)?;
        let waiter = outgoing.waiter.take();
        if let Some(number) = outgoing.number.filter(|_| is_reliable || waiter.is_some()) {
            lock(&inner.state).pending.insert(number, Pending { waiter, is_reliable });
        }
        if let Some(place) = place.take() {
            // The acknowledgement gives it back.
            place.forget();
        }
        Ok(())
    });
    pushed.await.map_err(|error: PushError<EncodeError>| match error {
        PushError::Timeout => PublishError::Timeout,
        PushError::Offline => PublishError::Disconnected,
        PushError::Closed => PublishError::Closed,
        PushError::Encode(error) => PublishError::Malformed(error.to_string()),
    })?;
    count(&inner.counters.published);
    Ok(())
}
