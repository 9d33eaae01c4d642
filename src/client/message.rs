//! Messages: what a subscription yields, and what a publish sends.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use glocal_core::name::Class;
use glocal_wire::data::DataFrame;

use crate::Client;
use crate::error::PublishError;
use crate::headers::Headers;

/// A message to publish; see [`crate::Client::publish_with`].
#[derive(Clone, Debug, Default)]
pub struct Publish {
    /// The subject: a raw name of the own tenant, or a qualified name.
    pub subject: String,
    /// The payload.
    pub payload: Bytes,
    /// The headers.
    pub headers: Headers,
    /// The class; `None` is the client's default. A qualified subject names its own.
    pub class: Option<Class>,
    /// Where replies go.
    pub reply: Option<String>,
    /// How long the message is worth delivering.
    pub ttl: Option<Duration>,
    /// Whether to wait for the broker's acknowledgement.
    pub ack: bool,
}

impl Publish {
    /// A message without headers, reply subject and time to live, in the client's default class.
    pub fn new(subject: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self { subject: subject.into(), payload: payload.into(), ..Self::default() }
    }
}

/// What is known of a publish when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// The message is in the send buffer.
    Buffered,
    /// `ctrl` and `bulk`: the message is in the memory of this many target brokers.
    Acknowledged {
        /// How many; 0 when nobody subscribes.
        targets: u32,
    },
    /// `live` and `tele`: the broker has taken the message and did not refuse it.
    Accepted,
}

/// A message as it lies in a queue: one allocation that holds every part.
#[derive(Clone)]
pub(crate) struct Delivery {
    /// Subject, reply subject, headers, payload, sender.
    body: Bytes,
    reply_at: u32,
    headers_at: u32,
    payload_at: u32,
    sender_at: u32,
    pub(crate) class: Class,
    redelivered: bool,
    seq: Option<u64>,
}

impl Delivery {
    /// Copies a frame out of the read buffer, so that a small message never pins a large buffer; `None` when subject
    /// or reply subject is not text.
    pub(crate) fn from_frame(frame: &DataFrame<'_>) -> Option<Self> {
        std::str::from_utf8(frame.name).ok()?;
        std::str::from_utf8(frame.reply).ok()?;
        let fields = frame.ext.fields();
        let sender = fields.sender_text.unwrap_or_default().as_bytes();
        let mut body = Vec::with_capacity(frame.tail().len() + sender.len());
        body.extend_from_slice(frame.tail());
        body.extend_from_slice(sender);
        let lengths = frame.tail_lengths();
        let reply_at = u32::try_from(lengths.name).ok()?;
        let headers_at = reply_at.checked_add(u32::try_from(lengths.reply).ok()?)?;
        let payload_at = headers_at.checked_add(u32::try_from(lengths.headers).ok()?)?;
        let sender_at = payload_at.checked_add(u32::try_from(lengths.payload).ok()?)?;
        Some(Self {
            body: Bytes::from(body),
            reply_at,
            headers_at,
            payload_at,
            sender_at,
            class: frame.class?,
            redelivered: fields.redelivered,
            seq: frame.seq,
        })
    }

    /// What it costs to keep, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.body.len() + size_of::<Self>()
    }

    pub(crate) fn subject(&self) -> &str {
        self.text(0..self.reply_at)
    }

    fn part(&self, range: Range<u32>) -> &[u8] {
        self.body.get(range.start as usize..range.end as usize).unwrap_or_default()
    }

    fn text(&self, range: Range<u32>) -> &str {
        std::str::from_utf8(self.part(range)).unwrap_or_default()
    }
}

/// One received message.
#[derive(Clone)]
pub struct Message {
    delivery: Delivery,
    client: Client,
}

impl Message {
    pub(crate) const fn new(delivery: Delivery, client: Client) -> Self {
        Self { delivery, client }
    }

    /// The subject: a raw name, or a qualified one where the subscription was qualified.
    #[must_use]
    pub fn subject(&self) -> &str {
        self.delivery.subject()
    }

    /// Where a reply goes.
    #[must_use]
    pub fn reply(&self) -> Option<&str> {
        let reply = self.delivery.text(self.delivery.reply_at..self.delivery.headers_at);
        (!reply.is_empty()).then_some(reply)
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> Headers {
        Headers::decode(self.delivery.part(self.delivery.headers_at..self.delivery.payload_at))
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.delivery.part(self.delivery.payload_at..self.delivery.sender_at)
    }

    /// The payload, shared instead of copied.
    #[must_use]
    pub fn payload_shared(&self) -> Bytes {
        // The offsets add up to lengths that were in one frame.
        self.delivery.body.slice(self.delivery.payload_at as usize..self.delivery.sender_at as usize)
    }

    /// The class.
    #[must_use]
    pub const fn class(&self) -> Class {
        self.delivery.class
    }

    /// The true sender as the ingress broker stamped it: `<region>/<agent>`, or a tenant for a granted message.
    #[must_use]
    pub fn sender(&self) -> Option<&str> {
        let sender = self.delivery.text(self.delivery.sender_at..u32::try_from(self.delivery.body.len()).ok()?);
        (!sender.is_empty()).then_some(sender)
    }

    /// The sequence number, where the broker gives one.
    #[must_use]
    pub const fn seq(&self) -> Option<u64> {
        self.delivery.seq
    }

    /// Whether another member of the queue group may have had this message already.
    #[must_use]
    pub const fn is_redelivered(&self) -> bool {
        self.delivery.redelivered
    }

    /// Sends a reply, in the class of this message. Without a reply subject nothing is sent.
    ///
    /// # Errors
    /// As [`crate::Client::publish_with`].
    pub async fn respond(&self, payload: impl Into<Bytes>) -> Result<(), PublishError> {
        let Some(reply) = self.reply() else { return Ok(()) };
        let publish = Publish { class: Some(self.class()), ..Publish::new(reply, payload) };
        self.client.publish_with(publish).await.map(drop)
    }
}

impl fmt::Debug for Message {
    /// Without the payload, which is never logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("subject", &self.subject())
            .field("reply", &self.reply())
            .field("class", &self.class())
            .field("payload_bytes", &self.payload().len())
            .finish()
    }
}
