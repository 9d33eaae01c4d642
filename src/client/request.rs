//! Requests: every request of a connection shares one reply subscription, `<inbox><token>.*`, and is told apart by its
//! number, the last token.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use glocal_core::limits::CLIENT_REQUESTS_MAX;
use tokio::time::Instant;

use crate::Client;
use crate::error::RequestError;
use crate::message::{Message, Publish};
use crate::options::{Buffering, Overflow};
use crate::publish::{Outgoing, send};
use crate::queue::{End, Queue};
use crate::state::{Inner, Mux, Sink};
use crate::subscription::{Subscribe, subscribe_entry};
use crate::sync::lock;

/// The replies to one request; dropping it takes no more.
pub struct Replies {
    queue: Arc<Queue>,
    number: u64,
    subject: String,
    deadline: Instant,
    remaining: usize,
    client: Client,
}

impl Client {
    /// Sends a request in the client's default class and waits for the first reply.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn request(
        &self,
        subject: &str,
        payload: impl Into<Bytes>,
        timeout: Duration,
    ) -> Result<Message, RequestError> {
        self.request_with(Publish::new(subject, payload), timeout).await
    }

    /// As [`Client::request`], for a message with headers, a class or a time to live; its reply subject is replaced.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn request_with(&self, publish: Publish, timeout: Duration) -> Result<Message, RequestError> {
        self.request_many(publish, 1, timeout).await?.next().await
    }

    /// Sends a request and yields up to `replies_max` replies that come within `timeout`, each
    /// buffered as [`crate::ConnectOptions::buffering`] allows.
    ///
    /// # Errors
    /// [`RequestError`], when the request cannot be sent.
    pub async fn request_many(
        &self,
        publish: Publish,
        replies_max: usize,
        timeout: Duration,
    ) -> Result<Replies, RequestError> {
        let inner = self.inner();
        let deadline = Instant::now() + timeout;
        let prefix = tokio::time::timeout_at(deadline, mux(inner)).await.map_err(|_| RequestError::Timeout)??;
        let number = inner.number();
        let queue = Arc::new(Queue::new(Buffering {
            messages_max: replies_max.clamp(1, inner.options.buffering.messages_max),
            overflow: Overflow::DropNewest,
            ..inner.options.buffering.clone()
        }));
        {
            let mut state = lock(&inner.state);
            if state.requests.len() >= CLIENT_REQUESTS_MAX {
                return Err(RequestError::TooMany);
            }
            if state.mux.as_ref().is_none_or(|mux| mux.prefix != prefix) {
                return Err(RequestError::Disconnected);
            }
            state.requests.insert(number, Arc::clone(&queue));
        }
        let replies =
            Replies { queue, number, subject: publish.subject, deadline, remaining: replies_max, client: self.clone() };
        let (headers, reply) = (publish.headers.encode(), format!("{prefix}{number}"));
        let outgoing = Outgoing {
            reply: &reply,
            headers: &headers,
            class: publish.class,
            ttl: publish.ttl,
            number: Some(number),
            ..Outgoing::new(&replies.subject, &publish.payload)
        };
        let sent = tokio::time::timeout_at(deadline, send(inner, outgoing)).await;
        sent.map_err(|_| RequestError::Timeout)?.map_err(RequestError::Publish)?;
        Ok(replies)
    }
}

impl Replies {
    /// The next reply.
    ///
    /// # Errors
    /// [`RequestError::Timeout`] when the time is up or all wanted replies are here, otherwise what the broker said.
    pub async fn next(&mut self) -> Result<Message, RequestError> {
        if self.remaining == 0 {
            return Err(RequestError::Timeout);
        }
        match tokio::time::timeout_at(self.deadline, self.queue.next()).await {
            Err(_) => Err(RequestError::Timeout),
            Ok(Ok(delivery)) => {
                self.remaining -= 1;
                Ok(Message::new(delivery, self.client.clone()))
            }
            Ok(Err(end)) => Err(match end {
                End::NoResponders => RequestError::NoResponders(self.subject.clone()),
                End::Denied(denied) => RequestError::Denied(denied),
                End::Closed | End::Disconnected => RequestError::Disconnected,
            }),
        }
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        lock(&self.client.inner().state).requests.remove(&self.number);
    }
}

impl fmt::Debug for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replies").field("subject", &self.subject).field("remaining", &self.remaining).finish()
    }
}

/// What a request's number is appended to; subscribes on the first use of a connection.
async fn mux(inner: &Inner) -> Result<Arc<str>, RequestError> {
    if let Some(prefix) = standing(inner) {
        return Ok(prefix);
    }
    let _one_at_a_time = inner.mux_gate.lock().await;
    if let Some(prefix) = standing(inner) {
        return Ok(prefix);
    }
    let (epoch, session) = {
        let state = lock(&inner.state);
        (state.epoch, Arc::clone(&state.session))
    };
    // Several sessions of one agent may share an inbox prefix.
    let prefix: Arc<str> = format!("{}{}.", session.inbox, token()).into();
    let subscribe = Subscribe { filter: format!("{prefix}*"), queue: None, buffering: None };
    let subscribed = subscribe_entry(inner, subscribe, Sink::Replies, true).await;
    let mut state = lock(&inner.state);
    if state.epoch != epoch {
        return Err(RequestError::Disconnected);
    }
    subscribed.map_err(RequestError::Subscribe)?;
    state.mux = Some(Mux { epoch, prefix: Arc::clone(&prefix) });
    Ok(prefix)
}

fn standing(inner: &Inner) -> Option<Arc<str>> {
    let state = lock(&inner.state);
    state.mux.as_ref().filter(|mux| mux.epoch == state.epoch).map(|mux| Arc::clone(&mux.prefix))
}

/// 64 unpredictable bits as hex digits.
fn token() -> String {
    let mut bytes = [0u8; 8];
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    if provider.secure_random.fill(&mut bytes).is_err() {
        // The seed of hash maps is random, too, if less carefully so.
        bytes = crate::establish::random().to_le_bytes();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
