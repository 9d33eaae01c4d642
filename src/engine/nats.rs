//! The machine of one NATS client session: the NATS text protocol over the same client core as native sessions.
//!
//! The tenant comes from the certificate; what CONNECT says of users, passwords, tokens and keys grants nothing. A
//! subject is qualified like any other raw name, so that a client sees a private subject space that is its tenant's. A
//! refusal reads as a permissions violation and leaves the session open; a protocol error ends it.

use std::sync::Arc;

use bytes::BytesMut;
use glocal_core::count::Drop as DropReason;
use glocal_core::deny::{Access, Deny};
use glocal_core::identity::Principal;
use glocal_core::limits::{HEADERS_BYTES_MAX, NATS_CONNECT_MS_MAX, SESSION_SUBSCRIPTIONS_MAX};
use glocal_core::name::{Class, RawFilter, RawName};
use glocal_core::policy::REPLY_TOKEN;
use glocal_core::port::{Dialect, SessionPort};
use glocal_core::time::Time;
use glocal_wire::nats::{
    CLASS_HEADER, ConnectOptions, NatsError, NatsLimits, Next, OK, Op, PING, Refusal, ServerInfo, encode_msg_into,
    encode_no_responders_into, header_value, like_pub, next_op, pub_head,
};
use hashbrown::HashMap;

use crate::client::like::Like;
use crate::client::{Client, Effects, Identity, Outgoing, Unpublished};
use crate::driver::Command;
use crate::machine::{Farewell, Machine};
use crate::shared::Shared;

/// The version told in INFO: clients choose features by it, and above 2.10 they ask for what is not served here.
const ADVERTISED_VERSION: &str = "2.10.29";
/// The request that is answered with who the caller is.
const USER_INFO: &[u8] = b"$SYS.REQ.USER.INFO";
/// Where clients see their tenant's advisories, and where those really are.
const ADVISORY_ALIAS: &[u8] = b"$ADV.";

/// Why a NATS session ends.
pub type NatsEnd = NatsError;

/// Where the node listens for NATS clients, as INFO tells it.
#[derive(Clone, Debug)]
pub struct Listening {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// The INFO line of this node for one connection. `client_id` is random, so that it does not tell how many others there
/// are.
#[must_use]
pub fn info(shared: &Shared, listening: &Listening, client_id: u64, client_ip: &str) -> ServerInfo {
    ServerInfo {
        server_id: shared.node.to_string(),
        server_name: shared.node.to_string(),
        version: ADVERTISED_VERSION.to_owned(),
        go: "rust".to_owned(),
        host: listening.host.clone(),
        port: listening.port,
        headers: true,
        max_payload: shared.max_payload_bytes,
        proto: 1,
        tls_required: true,
        tls_verify: true,
        client_id,
        client_ip: client_ip.to_owned(),
        jetstream: false,
        connect_urls: Vec::new(),
        ldm: false,
    }
}

#[derive(Debug)]
struct Subscription {
    sid: u32,
    /// The raw filter in the session's own tenant; `None` for filters that reach elsewhere.
    own: Option<RawFilter>,
}

/// One NATS session.
#[derive(Debug)]
pub struct NatsSession {
    identity: Identity,
    info: ServerInfo,
    /// Whether INFO is to be sent inside TLS, since the client began with TLS.
    tls_first: bool,
    client: Option<Client>,
    options: ConnectOptions,
    subscriptions: HashMap<Box<[u8]>, Subscription>,
    /// Subscriptions to reply inboxes, by which most requesters wait.
    inboxes: Vec<(RawFilter, Box<[u8]>)>,
    next_sid: u32,
    like: Like,
}

impl NatsSession {
    /// A session of `principal` that has not sent CONNECT. With `tls_first`, INFO has not been sent either.
    #[must_use]
    pub fn new(shared: Arc<Shared>, principal: Arc<Principal>, info: ServerInfo, tls_first: bool, now: Time) -> Self {
        Self {
            identity: Identity::new(shared, principal, now),
            info,
            tls_first,
            client: None,
            options: ConnectOptions::default(),
            subscriptions: HashMap::new(),
            inboxes: Vec::new(),
            next_sid: 1,
            like: Like::default(),
        }
    }

    /// Whether the operation is done with; otherwise it is to be taken again, later.
    fn on_op(&mut self, op: Op<'_>, now: Time, effects: &mut Effects) -> Result<bool, NatsEnd> {
        match op {
            Op::Connect(json) => self.on_connect(json, now, effects)?,
            Op::Ping => match &self.client {
                Some(client) => effects.commands.push(Command::Ping { port: Arc::clone(client.port()), token: 0 }),
                None => return Err(NatsError::BeforeConnect),
            },
            Op::Pong => {}
            Op::Sub { subject, queue, sid } => self.on_sub(subject, queue, sid, now, effects),
            Op::Unsub { sid, max } => self.on_unsub(sid, max, effects),
            Op::Pub { subject, reply, payload } => {
                let outgoing = Outgoing { name: subject, reply, payload, ..Outgoing::default() };
                return Ok(self.on_publish(&outgoing, now, effects));
            }
            Op::Hpub { subject, reply, headers, payload } => {
                let outgoing = Outgoing { name: subject, reply, headers, payload, ..Outgoing::default() };
                return Ok(self.on_publish(&outgoing, now, effects));
            }
        }
        Ok(true)
    }

    fn on_connect(&mut self, json: &[u8], now: Time, effects: &mut Effects) -> Result<(), NatsEnd> {
        if self.client.is_some() {
            return Err(NatsError::UnknownOperation);
        }
        self.options = ConnectOptions::parse(json)?;
        if self.identity.tenant().is_none() {
            return Err(NatsError::BeforeConnect);
        }
        let dialect = Dialect::Nats { headers: self.options.headers };
        self.client = Some(Client::open(&self.identity, dialect, Class::Live, self.options.echo, now));
        self.ok(effects);
        Ok(())
    }

    fn ok(&self, effects: &mut Effects) {
        if self.options.verbose {
            effects.replies.extend_from_slice(OK);
        }
    }

    fn on_sub(&mut self, subject: &[u8], queue: &[u8], sid: &[u8], now: Time, effects: &mut Effects) {
        let Some(client) = &self.client else { return };
        if self.subscriptions.contains_key(sid) {
            return self.ok(effects);
        }
        let qualified = advisory_filter(self.identity.principal.tenant().as_str(), subject);
        let text = qualified.as_deref().unwrap_or(subject);
        let queue_text = std::str::from_utf8(queue);
        let queue_name = queue_text.ok().filter(|q| !q.is_empty());
        let is_inbox = subject.split(|b| *b == b'.').next() == Some(REPLY_TOKEN.as_bytes());
        let asked = if queue_text.is_err() || self.subscriptions.len() >= SESSION_SUBSCRIPTIONS_MAX {
            Err(Deny::Limit)
        } else {
            client.subscribe(&self.identity, text, queue_name, self.next_sid, sid, is_inbox, effects)
        };
        match asked {
            Ok(()) => {
                let own = RawFilter::parse(subject).ok();
                if let Some(filter) = own.clone().filter(|_| is_inbox) {
                    self.inboxes.push((filter, Box::from(sid)));
                }
                self.subscriptions.insert(Box::from(sid), Subscription { sid: self.next_sid, own });
                self.next_sid = self.next_sid.wrapping_add(1);
                self.ok(effects);
            }
            Err(reason) => {
                let text = self.identity.refuse(Access::Read, subject, reason, now, effects);
                let refusal = Refusal::Subscription { subject, queue, reason: &text };
                refusal.encode_into(&mut effects.replies);
            }
        }
    }

    fn on_unsub(&mut self, sid: &[u8], max: Option<u64>, effects: &mut Effects) {
        if let Some(subscription) = self.subscriptions.get(sid) {
            let session = self.identity.id;
            effects.commands.push(Command::Unsubscribe { session, sid: subscription.sid, max });
            if max.is_none() {
                self.subscriptions.remove(sid);
                self.inboxes.retain(|(_, tag)| **tag != *sid);
            }
        }
        self.ok(effects);
    }

    /// Whether the publish is done with; otherwise it is to be taken again, later.
    fn on_publish(&mut self, outgoing: &Outgoing<'_>, now: Time, effects: &mut Effects) -> bool {
        let (subject, reply) = (outgoing.name, outgoing.reply);
        if subject == USER_INFO && !reply.is_empty() {
            self.answer_user_info(reply, effects);
            self.ok(effects);
            return true;
        }
        let class = class_of(outgoing.headers);
        let outgoing = Outgoing { class: class.ok().flatten(), ..*outgoing };
        let invalid = self.options.pedantic && has_wildcard(subject);
        let Some(client) = &mut self.client else { return true };
        // Whatever comes of it, it is paid first.
        let published = client.pay(&outgoing, now).and_then(|()| match class {
            Ok(_) if !invalid => client.offer(&self.identity, &outgoing, now, effects),
            _ => {
                client.done();
                Err(Unpublished::Denied(subject, class.err().filter(|_| !invalid).unwrap_or(Deny::MalformedName)))
            }
        });
        match published {
            Ok(published) => {
                self.ok(effects);
                if published.no_responders && self.options.no_responders {
                    self.answer_no_responders(subject, reply, effects);
                }
            }
            Err(Unpublished::Wait(until)) => {
                effects.wait(until);
                return false;
            }
            Err(Unpublished::Unsynced) => return false,
            Err(Unpublished::Denied(..)) if invalid => {
                Refusal::InvalidPublishSubject.encode_into(&mut effects.replies);
            }
            Err(Unpublished::Denied(subject, reason)) => self.refuse_publish(subject, reason, now, effects),
            Err(Unpublished::Over { retry_after_ms, told: true }) => {
                let text = self.identity.refuse(Access::Write, subject, Deny::Rate, now, effects);
                let reason = &format!("{text}, try again in {retry_after_ms} ms");
                Refusal::Publish { subject, reason }.encode_into(&mut effects.replies);
            }
            Err(Unpublished::Over { .. }) => {}
        }
        true
    }

    fn refuse_publish(&mut self, subject: &[u8], reason: Deny, now: Time, effects: &mut Effects) {
        let text = self.identity.refuse(Access::Write, subject, reason, now, effects);
        if self.options.pedantic && reason == Deny::MalformedName {
            return Refusal::InvalidPublishSubject.encode_into(&mut effects.replies);
        }
        Refusal::Publish { subject, reason: &text }.encode_into(&mut effects.replies);
    }

    /// The id of the session's own subscription that waits on `reply`.
    fn waiting(&self, reply: &[u8]) -> Option<&[u8]> {
        let name = RawName::parse(reply).ok()?;
        let inbox = self.inboxes.iter().find(|(filter, _)| filter.matches(name)).map(|(_, tag)| &**tag);
        inbox.or_else(|| {
            let waits = |s: &Subscription| s.own.as_ref().is_some_and(|filter| filter.matches(name));
            // Any of them will do, and the least is always the same.
            self.subscriptions.iter().filter(|(_, s)| waits(s)).min_by_key(|(_, s)| s.sid).map(|(tag, _)| &**tag)
        })
    }

    fn answer_no_responders(&self, subject: &[u8], reply: &[u8], effects: &mut Effects) {
        if let Some(sid) = self.waiting(reply) {
            let encoded = encode_no_responders_into(&mut effects.replies, reply, sid, subject);
            debug_assert!(encoded.is_ok(), "names that were parsed can be written: {encoded:?}");
        }
    }

    fn answer_user_info(&self, reply: &[u8], effects: &mut Effects) {
        let principal = &self.identity.principal;
        let name = |label: Option<&glocal_core::name::Label>| label.map(ToString::to_string);
        let body = serde_json::json!({
            "server": { "name": self.identity.shared.node.to_string(), "ver": ADVERTISED_VERSION },
            "data": {
                "user": principal.agent().map_or_else(|| principal.uid(), ToString::to_string),
                "account": principal.tenant().to_string(),
                "tenant": principal.tenant().to_string(),
                "role": principal.role().to_string(),
                "region": name(principal.region()),
                "agent": name(principal.agent()),
                "uid": principal.uid(),
                "max_payload": self.identity.shared.max_payload_bytes,
                "max_subscriptions": SESSION_SUBSCRIPTIONS_MAX,
            },
        });
        if let Some(sid) = self.waiting(reply) {
            let body = body.to_string();
            let encoded = encode_msg_into(&mut effects.replies, reply, sid, b"", b"", body.as_bytes());
            debug_assert!(encoded.is_ok(), "names that were parsed can be written: {encoded:?}");
        }
    }
}

impl Machine for NatsSession {
    type End = NatsEnd;

    fn id(&self) -> u64 {
        self.identity.id
    }

    fn principal(&self) -> &Arc<Principal> {
        &self.identity.principal
    }

    fn port(&self) -> Option<&Arc<SessionPort>> {
        self.client.as_ref().map(Client::port)
    }

    fn patience_ms(&self) -> u64 {
        NATS_CONNECT_MS_MAX
    }

    fn greet(&mut self, out: &mut BytesMut) {
        if self.tls_first {
            let encoded = self.info.encode_into(out);
            debug_assert!(encoded.is_ok(), "INFO is plain JSON: {encoded:?}");
        }
    }

    fn on_bytes(&mut self, buffer: &[u8], now: Time, effects: &mut Effects) -> Result<usize, NatsEnd> {
        effects.begin(buffer.len());
        let used = self.take(buffer, now, effects);
        if let Some(client) = &mut self.client {
            client.settle();
        }
        used
    }

    fn probe(&self, _number: u64, out: &mut BytesMut) {
        out.extend_from_slice(PING);
    }

    fn leaving(&self, _grace_ms: u32, out: &mut BytesMut) {
        let info = ServerInfo { ldm: true, ..self.info.clone() };
        let encoded = info.encode_into(out);
        debug_assert!(encoded.is_ok(), "INFO is plain JSON: {encoded:?}");
    }

    fn reproach(&self, end: &NatsEnd, out: &mut BytesMut) {
        end.refusal().encode_into(out);
    }

    fn farewell(&self, reason: Farewell, out: &mut BytesMut) {
        let refusal = match reason {
            Farewell::Silent => Refusal::StaleConnection,
            Farewell::Late => Refusal::AuthenticationTimeout,
            // Clients only report lame duck mode; the close itself needs no words.
            Farewell::Deny(Deny::ShuttingDown) => return,
            Farewell::Deny(Deny::CertExpired | Deny::BundleExpired) => Refusal::AuthenticationExpired,
            Farewell::Deny(Deny::CertRevoked) => Refusal::AuthenticationRevoked,
            Farewell::Deny(Deny::Limit) => Refusal::TooManyTenantConnections,
            Farewell::Deny(Deny::Memory) => Refusal::InsufficientResources,
            Farewell::Deny(_) => Refusal::AuthorizationViolation,
        };
        refusal.encode_into(out);
    }
}

impl NatsSession {
    fn take(&mut self, buffer: &[u8], now: Time, effects: &mut Effects) -> Result<usize, NatsEnd> {
        let mut used = 0;
        loop {
            let limits = match self.client {
                Some(_) => NatsLimits::open(self.identity.shared.max_payload_bytes, self.options.headers),
                None => NatsLimits::BEFORE_CONNECT,
            };
            used += self.take_again(buffer.get(used..).unwrap_or_default(), now, effects);
            let rest = buffer.get(used..).unwrap_or_default();
            match next_op(rest, &limits) {
                Ok(Next::Need(bytes)) => {
                    effects.needs = bytes;
                    return Ok(used);
                }
                Ok(Next::Op { op, bytes }) => {
                    let publishes = matches!(op, Op::Pub { .. } | Op::Hpub { .. });
                    if publishes && !effects.commands.is_empty() {
                        return Ok(used);
                    }
                    self.like.forget();
                    if !self.on_op(op, now, effects)? {
                        return Ok(used);
                    }
                    self.note_like(&op, rest.get(..bytes).unwrap_or_default());
                    used += bytes;
                }
                Err(error) => match error.skip_bytes() {
                    Some(bytes) => {
                        error.refusal().encode_into(&mut effects.replies);
                        used += bytes;
                    }
                    None => {
                        self.count_fault(&error);
                        return Err(error);
                    }
                },
            }
        }
    }

    /// Takes publishes that are like the last one but for their payloads, and returns their bytes.
    fn take_again(&mut self, bytes: &[u8], now: Time, effects: &mut Effects) -> usize {
        let Some(client) = &mut self.client else { return 0 };
        self.like.take((client, &self.identity.shared), bytes, like_pub, now, effects)
    }

    /// Notes what the publish in `bytes` began with, where another one may be like it and nothing is answered to it.
    fn note_like(&mut self, op: &Op<'_>, bytes: &[u8]) {
        let (Some(client), Op::Pub { subject, reply: b"", payload }) = (&self.client, op) else { return };
        if !self.options.verbose
            && let Some(head) = pub_head(bytes, payload.len())
        {
            self.like.note(client, subject, head);
        }
    }

    fn count_fault(&self, error: &NatsError) {
        if let (NatsError::PayloadTooLarge { .. }, Some(tenant)) = (error, self.identity.tenant()) {
            tenant.counters().deny(Access::Write, Deny::PayloadTooLarge);
            tenant.counters().class(Class::Live).dropped(DropReason::TooLarge, 1);
        }
    }
}

/// The class a header block asks for.
fn class_of(headers: &[u8]) -> Result<Option<Class>, Deny> {
    if headers.is_empty() {
        return Ok(None);
    }
    if headers.len() > HEADERS_BYTES_MAX {
        return Err(Deny::PayloadTooLarge);
    }
    match header_value(headers, CLASS_HEADER) {
        None => Ok(None),
        Some(name) => std::str::from_utf8(name).ok().and_then(Class::from_name).map(Some).ok_or(Deny::UnknownClass),
    }
}

fn has_wildcard(subject: &[u8]) -> bool {
    subject.split(|b| *b == b'.').any(|token| token == b"*" || token == b">")
}

/// The filter behind the alias under which clients see their tenant's advisories.
fn advisory_filter(tenant: &str, subject: &[u8]) -> Option<Vec<u8>> {
    let rest = subject.strip_prefix(ADVISORY_ALIAS)?;
    Some([format!("T.{tenant}.ctrl.advisory.").as_bytes(), rest].concat())
}

#[cfg(test)]
mod tests;
