//! The machine of one native session (DESIGN section 10): bytes in, effects out.
//!
//! It turns frames into calls of [`crate::client`] and results into frames. A refusal is answered and the session stays
//! open; a protocol error ends it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use glocal_core::count::Drop as DropReason;
use glocal_core::deny::{Access, Deny};
use glocal_core::identity::Principal;
use glocal_core::limits::{CONTROL_BYTES_MAX, QUALIFIED_BYTES_MAX, TEXT_BYTES_MAX};
use glocal_core::name::Class;
use glocal_core::port::{Dialect, SessionPort};
use glocal_core::time::Time;
use glocal_wire::FrameError;
use glocal_wire::control::{
    Ack, Control, Denied, Error, Goodbye, Hello, NoResponders, PROTOCOL_VERSION, Ping, Subscribe, Welcome, clip,
};
use glocal_wire::data::{DataFrame, DataKind, like_unnumbered};
use glocal_wire::frame::{FrameLimits, Next, next_frame};

use crate::client::like::Like;
use crate::client::{Client, Identity, Outgoing, Published, Unpublished};
use crate::driver::Command;
use crate::link::append;
use crate::machine::{Farewell, Machine};
use crate::shared::Shared;

pub use crate::client::Effects;

/// When a client that was told of congestion does well to try again, in milliseconds.
const RETRY_AFTER_MS: u32 = 1_000;

/// Why a session ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionEnd {
    /// The client broke the protocol.
    #[error("protocol error: {0}")]
    Frame(#[from] FrameError),
    /// A frame of a kind that this state does not admit.
    #[error("protocol error: unexpected {0}")]
    Unexpected(&'static str),
    /// No protocol version in common.
    #[error("no protocol version in common, this node speaks {PROTOCOL_VERSION}")]
    Version,
    /// The principal's tenant is not in the fabric.
    #[error("tenant is not in the fabric")]
    UnknownTenant,
}

impl SessionEnd {
    /// The stable code: log field and `code` of the error frame.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Frame(error) => error.code(),
            Self::Unexpected(_) => "unexpected-frame",
            Self::Version => "version",
            Self::UnknownTenant => "unknown-tenant",
        }
    }
}

/// One native session.
#[derive(Debug)]
pub struct NativeSession {
    identity: Identity,
    inbox_prefix: String,
    client: Option<Client>,
    like: Like,
}

impl NativeSession {
    /// A session of `principal` that has not said hello. `random` is 64 random bits for its reply inbox prefix.
    #[must_use]
    pub fn new(shared: Arc<Shared>, principal: Arc<Principal>, random: u64, now: Time) -> Self {
        let identity = Identity::new(shared, principal, now);
        Self { inbox_prefix: identity.inbox_prefix(random), identity, client: None, like: Like::default() }
    }
}

impl Machine for NativeSession {
    type End = SessionEnd;

    fn id(&self) -> u64 {
        self.identity.id
    }

    fn principal(&self) -> &Arc<Principal> {
        &self.identity.principal
    }

    fn port(&self) -> Option<&Arc<SessionPort>> {
        self.client.as_ref().map(Client::port)
    }

    /// Stops before a data frame while commands are waiting, so that a publish sees the subscriptions sent before it.
    fn on_bytes(&mut self, buffer: &[u8], now: Time, effects: &mut Effects) -> Result<usize, SessionEnd> {
        effects.begin(buffer.len());
        let used = self.take(buffer, now, effects);
        if let Some(client) = &mut self.client {
            client.settle();
        }
        used
    }

    fn probe(&self, number: u64, out: &mut BytesMut) {
        append(out, &Ping { token: number }.into());
    }

    fn leaving(&self, grace_ms: u32, out: &mut BytesMut) {
        goodbye(Deny::ShuttingDown.code(), Deny::ShuttingDown.template(), grace_ms, out);
    }

    fn reproach(&self, end: &SessionEnd, out: &mut BytesMut) {
        let text = end.to_string();
        append(out, &Error { code: end.code().to_owned(), text: clip(text.as_bytes(), TEXT_BYTES_MAX) }.into());
    }

    fn farewell(&self, reason: Farewell, out: &mut BytesMut) {
        match reason {
            Farewell::Deny(reason) => {
                goodbye(reason.code(), &reason.text(self.identity.principal.tenant().as_str()), 0, out);
            }
            Farewell::Silent => goodbye("silent", "silent for too long", 0, out),
            Farewell::Late => {
                append(out, &Error { code: "no-hello".to_owned(), text: "no hello in time".to_owned() }.into());
            }
        }
    }
}

fn goodbye(code: &str, text: &str, grace_ms: u32, out: &mut BytesMut) {
    let text = clip(text.as_bytes(), TEXT_BYTES_MAX);
    append(out, &Goodbye { code: code.to_owned(), text, grace_ms }.into());
}

impl NativeSession {
    fn take(&mut self, buffer: &[u8], now: Time, effects: &mut Effects) -> Result<usize, SessionEnd> {
        let mut used = 0;
        loop {
            used += self.take_again(buffer.get(used..).unwrap_or_default(), now, effects);
            let rest = buffer.get(used..).unwrap_or_default();
            let limits = match self.client {
                Some(_) => FrameLimits::open(self.identity.shared.max_payload_bytes),
                None => FrameLimits::BEFORE_HELLO,
            };
            match next_frame(rest, &limits) {
                Ok(Next::Need(bytes)) => {
                    effects.needs = bytes;
                    return Ok(used);
                }
                Ok(Next::Control { kind, body, frame_bytes }) => {
                    match Control::decode(kind, body, limits.control_bytes_max)? {
                        Some(control) => self.on_control(control, now, effects)?,
                        None if self.client.is_none() => return Err(SessionEnd::Unexpected("frame before hello")),
                        None => {}
                    }
                    used += frame_bytes;
                }
                Ok(Next::Data { frame, frame_bytes }) => {
                    if !effects.commands.is_empty() {
                        return Ok(used);
                    }
                    self.like.forget();
                    if !self.on_data(&frame, now, effects)? {
                        return Ok(used);
                    }
                    self.note_like(&frame, rest.get(..frame_bytes).unwrap_or_default());
                    used += frame_bytes;
                }
                Err(error) => {
                    self.refuse_oversize(&error, now, effects);
                    return Err(error.into());
                }
            }
        }
    }

    /// Takes publishes that are like the last one but for their payloads, and returns their bytes.
    fn take_again(&mut self, bytes: &[u8], now: Time, effects: &mut Effects) -> usize {
        let Some(client) = &mut self.client else { return 0 };
        let read =
            |bytes, head: &[u8]| like_unnumbered(bytes, head).map(|payload| (payload, head.len() + payload.len()));
        self.like.take((client, &self.identity.shared), bytes, read, now, effects)
    }

    /// Notes what the publish in `bytes` began with, where another one may be like it.
    fn note_like(&mut self, frame: &DataFrame<'_>, bytes: &[u8]) {
        let Some(client) = self.client.as_ref().filter(|_| frame.seq.is_none()) else { return };
        let before = bytes.len().checked_sub(frame.payload.len()).and_then(|before| bytes.get(..before));
        self.like.note(client, frame.name, before.unwrap_or_default());
    }

    fn refuse_oversize(&mut self, error: &FrameError, now: Time, effects: &mut Effects) {
        let FrameError::PayloadTooLarge { seq, .. } = error else { return };
        if let (Some(client), Some(tenant)) = (&self.client, self.identity.tenant()) {
            tenant.counters().class(client.default_class()).dropped(DropReason::TooLarge, 1);
        }
        self.deny(Access::Write, b"", seq.unwrap_or(0), (Deny::PayloadTooLarge, None), now, effects);
    }

    fn on_control(&mut self, control: Control, now: Time, effects: &mut Effects) -> Result<(), SessionEnd> {
        match (control, &self.client) {
            (Control::Hello(hello), None) => self.on_hello(&hello, now, effects),
            (Control::Subscribe(subscribe), Some(_)) => {
                self.on_subscribe(&subscribe, now, effects);
                Ok(())
            }
            (Control::Unsubscribe(body), Some(_)) => {
                effects.commands.push(Command::Unsubscribe { session: self.id(), sid: body.sid, max: body.max });
                Ok(())
            }
            (Control::Ping(ping), Some(client)) => {
                effects.commands.push(Command::Ping { port: Arc::clone(client.port()), token: ping.token });
                Ok(())
            }
            (Control::Pong(_), Some(_)) => Ok(()),
            (control, _) => Err(SessionEnd::Unexpected(control.name())),
        }
    }

    fn on_hello(&mut self, hello: &Hello, now: Time, effects: &mut Effects) -> Result<(), SessionEnd> {
        if !hello.versions.contains(&PROTOCOL_VERSION) {
            return Err(SessionEnd::Version);
        }
        if self.identity.tenant().is_none() {
            return Err(SessionEnd::UnknownTenant);
        }
        let class = Class::from_code(hello.default_class).unwrap_or(Class::Live);
        self.client = Some(Client::open(&self.identity, Dialect::Native, class, hello.echo, now));
        let (shared, principal) = (&self.identity.shared, &self.identity.principal);
        let welcome = Welcome {
            version: PROTOCOL_VERSION,
            features: 0,
            node: shared.node.to_string(),
            session: self.identity.id,
            tenant: principal.tenant().to_string(),
            role: principal.role().to_string(),
            region: principal.region().map(ToString::to_string),
            agent: principal.agent().map(ToString::to_string),
            uid: principal.uid(),
            max_payload: shared.max_payload_bytes,
            inbox: self.inbox_prefix.clone(),
        };
        append(&mut effects.replies, &welcome.into());
        Ok(())
    }

    fn on_subscribe(&mut self, subscribe: &Subscribe, now: Time, effects: &mut Effects) {
        let Some(client) = &self.client else { return };
        let (text, queue) = (subscribe.filter.as_bytes(), subscribe.queue.as_deref());
        let asked = client.subscribe(&self.identity, text, queue, subscribe.sid, &[], subscribe.local_only, effects);
        if let Err(reason) = asked {
            self.deny(Access::Read, text, u64::from(subscribe.sid), (reason, None), now, effects);
        }
    }

    /// Whether the frame is done with; otherwise it is to be taken again, later.
    fn on_data(&mut self, frame: &DataFrame<'_>, now: Time, effects: &mut Effects) -> Result<bool, SessionEnd> {
        if frame.kind != DataKind::Publish {
            return Err(SessionEnd::Unexpected("data frame of a broker"));
        }
        let Some(client) = &mut self.client else { return Err(SessionEnd::Unexpected("data frame")) };
        let outgoing = Outgoing {
            name: frame.name,
            reply: frame.reply,
            headers: frame.headers,
            payload: frame.payload,
            class: frame.class,
            ttl_ms: frame.ttl_ms,
            number: frame.seq,
        };
        let id = frame.seq.unwrap_or(0);
        match client.offer(&self.identity, &outgoing, now, effects) {
            Ok(published) => answer(frame, published, effects),
            Err(Unpublished::Wait(until)) => {
                effects.wait(until);
                return Ok(false);
            }
            Err(Unpublished::Unsynced) => return Ok(false),
            Err(Unpublished::Denied(subject, reason)) => {
                let retry_after_ms = (reason == Deny::Congested).then_some(RETRY_AFTER_MS);
                self.deny(Access::Write, subject, id, (reason, retry_after_ms), now, effects);
            }
            Err(Unpublished::Over { retry_after_ms, told: true }) => {
                self.deny(Access::Write, frame.name, id, (Deny::Rate, Some(retry_after_ms)), now, effects);
            }
            Err(Unpublished::Over { .. }) => {}
        }
        Ok(true)
    }

    fn deny(
        &mut self,
        access: Access,
        subject: &[u8],
        id: u64,
        (reason, retry_after_ms): (Deny, Option<u32>),
        now: Time,
        effects: &mut Effects,
    ) {
        let text = self.identity.refuse(access, subject, reason, now, effects);
        let denied = Denied {
            access: access as u8,
            id,
            subject: clip(subject, QUALIFIED_BYTES_MAX),
            code: reason.code().to_owned(),
            text: clip(text.as_bytes(), TEXT_BYTES_MAX),
            retry_after_ms,
        };
        append(&mut effects.replies, &denied.into());
    }
}

fn answer(frame: &DataFrame<'_>, published: Published, effects: &mut Effects) {
    if let Some(seq) = frame.seq.filter(|_| published.class.is_reliable() && !published.pending) {
        append(&mut effects.replies, &Ack { seq, targets: published.targets }.into());
    }
    if published.no_responders {
        let body = NoResponders {
            seq: frame.seq.unwrap_or(0),
            subject: clip(frame.name, QUALIFIED_BYTES_MAX),
            reply: clip(frame.reply, QUALIFIED_BYTES_MAX),
        };
        append(&mut effects.replies, &body.into());
    }
}

/// Takes the replies out, to be queued ahead of the session's lanes.
#[must_use]
pub fn take_replies(effects: &mut Effects) -> Option<Bytes> {
    if effects.replies.is_empty() { None } else { Some(effects.replies.split().freeze()) }
}

const _: () = assert!(CONTROL_BYTES_MAX >= QUALIFIED_BYTES_MAX * 2 + TEXT_BYTES_MAX);

#[cfg(test)]
mod tests;
