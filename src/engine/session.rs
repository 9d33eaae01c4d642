//! The machine of one native session (DESIGN section 10): bytes in, effects out.
//!
//! The principal is fixed before the first byte; nothing a client says changes it. Every publish and subscription passes
//! policy; what is refused is answered, counted and logged, and the session stays open. A protocol error ends it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use glocal_core::count::Drop as DropReason;
use glocal_core::deny::{Access, Deny, DenyLine, Escaped};
use glocal_core::identity::Principal;
use glocal_core::inbox::Inbox;
use glocal_core::limits::{CONTROL_BYTES_MAX, DENY_LOGS_PER_SECOND, QUALIFIED_BYTES_MAX, TEXT_BYTES_MAX};
use glocal_core::name::{Class, Destination, Filter, QueueGroup, RawName};
use glocal_core::policy::{Operation, Read, Rule};
use glocal_core::port::SessionPort;
use glocal_core::rate::LogLimiter;
use glocal_core::sched::SessionLanes;
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;
use glocal_wire::FrameError;
use glocal_wire::control::{
    Ack, Control, Denied, Error, Goodbye, Hello, NoResponders, PROTOCOL_VERSION, Subscribe, Welcome, clip,
};
use glocal_wire::data::{DataFrame, DataKind};
use glocal_wire::frame::{FrameLimits, Next, next_frame};

use crate::batch::{Batch, Message};
use crate::driver::Command;
use crate::link::append;
use crate::sender::Sender;
use crate::shared::Shared;

mod route;

pub(crate) use route::relay_to;
use route::{MatchCache, Published, Route};

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

/// What a call of [`NativeSession::on_bytes`] brought about, for the caller to carry out.
#[derive(Debug, Default)]
pub struct Effects {
    /// Commands for the control half, in order. Nothing further of this session may be read before they took effect.
    pub commands: Vec<Command>,
    /// Frames for this client, ahead of its lanes.
    pub replies: BytesMut,
    /// Frames for other sessions and edges.
    pub batch: Batch,
    /// Log lines of refusals, already escaped and limited.
    pub denials: Vec<String>,
    /// Log lines of permits, where they are wanted.
    pub allowances: Vec<String>,
}

/// One native session.
#[derive(Debug)]
pub struct NativeSession {
    shared: Arc<Shared>,
    principal: Arc<Principal>,
    id: u64,
    inbox_prefix: String,
    open: Option<Open>,
    limiter: LogLimiter,
}

#[derive(Debug)]
struct Open {
    port: Arc<SessionPort>,
    sender: Arc<Sender>,
    tenant: Arc<Tenant>,
    default_class: Class,
    seqs: [u64; 4],
    turn: u64,
    cache: MatchCache,
}

impl NativeSession {
    /// A session of `principal` that has not said hello. `random` is 64 random bits for its reply inbox prefix.
    #[must_use]
    pub fn new(shared: Arc<Shared>, principal: Arc<Principal>, random: u64, now: Time) -> Self {
        let id = shared.next_session();
        let owner_only =
            shared.policy.tenants().by_id(principal.tenant().as_str()).is_some_and(|t| t.section().owner_only_replies);
        let inbox_prefix = match principal.named().filter(|_| owner_only) {
            Some((region, agent)) => format!("_INBOX.{region}.{agent}."),
            None => format!("_INBOX.{random:016x}."),
        };
        Self { shared, principal, id, inbox_prefix, open: None, limiter: LogLimiter::new(DENY_LOGS_PER_SECOND, now) }
    }

    /// The session's number.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Who is connected.
    #[must_use]
    pub const fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// The session's egress, once it has said hello.
    #[must_use]
    pub fn port(&self) -> Option<&Arc<SessionPort>> {
        self.open.as_ref().map(|open| &open.port)
    }

    /// Takes the complete frames at the front of `buffer` and returns how many bytes they had. Stops before a data frame
    /// while commands are waiting, so that a publish sees the subscriptions sent before it.
    ///
    /// # Errors
    /// Why the session must end; what it had sent before is in `effects`.
    pub fn on_bytes(&mut self, buffer: &[u8], now: Time, effects: &mut Effects) -> Result<usize, SessionEnd> {
        let mut used = 0;
        loop {
            let limits = match self.open {
                Some(_) => FrameLimits::open(self.shared.max_payload_bytes),
                None => FrameLimits::BEFORE_HELLO,
            };
            match next_frame(buffer.get(used..).unwrap_or_default(), &limits) {
                Ok(Next::Need(_)) => return Ok(used),
                Ok(Next::Control { kind, body, frame_bytes }) => {
                    match Control::decode(kind, body, limits.control_bytes_max)? {
                        Some(control) => self.on_control(control, now, effects)?,
                        None if self.open.is_none() => return Err(SessionEnd::Unexpected("frame before hello")),
                        None => {}
                    }
                    used += frame_bytes;
                }
                Ok(Next::Data { frame, frame_bytes }) => {
                    if !effects.commands.is_empty() {
                        return Ok(used);
                    }
                    self.on_data(&frame, now, effects)?;
                    used += frame_bytes;
                }
                Err(error) => {
                    self.refuse_oversize(&error, effects);
                    return Err(error.into());
                }
            }
        }
    }

    /// Appends the frame that tells the client why its session ends.
    pub fn farewell(end: &SessionEnd, out: &mut BytesMut) {
        let text = end.to_string();
        append(out, &Error { code: end.code().to_owned(), text: clip(text.as_bytes(), TEXT_BYTES_MAX) }.into());
    }

    /// Appends the frame that tells the client that its session will end for a reason of ours.
    pub fn goodbye(reason: Deny, grace_ms: u32, out: &mut BytesMut) {
        let text = clip(reason.text("").as_bytes(), TEXT_BYTES_MAX);
        append(out, &Goodbye { code: reason.code().to_owned(), text, grace_ms }.into());
    }

    fn refuse_oversize(&self, error: &FrameError, effects: &mut Effects) {
        if let FrameError::PayloadTooLarge { seq, .. } = error {
            let own = self.principal.tenant();
            if let Some(open) = &self.open {
                open.tenant.counters().deny(Access::Write, Deny::PayloadTooLarge);
                open.tenant.counters().class(open.default_class).dropped(DropReason::TooLarge, 1);
            }
            let denied = Denied {
                access: 1,
                id: seq.unwrap_or(0),
                subject: String::new(),
                code: Deny::PayloadTooLarge.code().to_owned(),
                text: Deny::PayloadTooLarge.text(own.as_str()),
                retry_after_ms: None,
            };
            append(&mut effects.replies, &denied.into());
        }
    }

    fn on_control(&mut self, control: Control, now: Time, effects: &mut Effects) -> Result<(), SessionEnd> {
        match (control, self.open.is_some()) {
            (Control::Hello(hello), false) => self.on_hello(&hello, effects),
            (Control::Subscribe(subscribe), true) => {
                self.on_subscribe(&subscribe, now, effects);
                Ok(())
            }
            (Control::Unsubscribe(body), true) => {
                effects.commands.push(Command::Unsubscribe { session: self.id, sid: body.sid, max: body.max });
                Ok(())
            }
            (Control::Ping(ping), true) => {
                if let Some(open) = &self.open {
                    effects.commands.push(Command::Ping { port: Arc::clone(&open.port), token: ping.token });
                }
                Ok(())
            }
            (Control::Pong(_), true) => Ok(()),
            (control, _) => Err(SessionEnd::Unexpected(control.name())),
        }
    }

    fn on_hello(&mut self, hello: &Hello, effects: &mut Effects) -> Result<(), SessionEnd> {
        if !hello.versions.contains(&PROTOCOL_VERSION) {
            return Err(SessionEnd::Version);
        }
        let id = self.principal.tenant().as_str();
        let tenant = self.shared.policy.tenants().by_id(id).ok_or(SessionEnd::UnknownTenant)?;
        let inbox = Inbox::new(SessionLanes::default());
        let handle = self.shared.next_sender();
        self.open = Some(Open {
            port: Arc::new(SessionPort::new(self.id, Arc::clone(&self.principal), hello.echo, inbox)),
            sender: Sender::local(handle, self.shared.own, self.id, &self.principal),
            tenant: Arc::clone(tenant),
            default_class: Class::from_code(hello.default_class).unwrap_or(Class::Live),
            seqs: [0; 4],
            turn: u64::from(handle),
            cache: MatchCache::default(),
        });
        let welcome = Welcome {
            version: PROTOCOL_VERSION,
            features: 0,
            node: self.shared.node.to_string(),
            session: self.id,
            tenant: id.to_owned(),
            role: self.principal.role().to_string(),
            region: self.principal.region().map(ToString::to_string),
            agent: self.principal.agent().map(ToString::to_string),
            uid: self.principal.uid(),
            max_payload: self.shared.max_payload_bytes,
            inbox: self.inbox_prefix.clone(),
        };
        append(&mut effects.replies, &welcome.into());
        Ok(())
    }

    fn on_subscribe(&mut self, subscribe: &Subscribe, now: Time, effects: &mut Effects) {
        let text = subscribe.filter.as_bytes();
        let decided = Filter::qualify(self.principal.tenant(), text).map_err(Deny::from).and_then(|filter| {
            let queue = subscribe.queue.as_deref().map(QueueGroup::parse).transpose().map_err(Deny::from)?;
            Ok((self.shared.policy.authorize(&self.principal, Read(filter))?, queue))
        });
        let Some(open) = &self.open else { return };
        match decided {
            Ok((permit, queue)) => {
                log_allowance(&self.shared, Access::Read, text, &self.principal, permit.rule(), effects);
                effects.commands.push(Command::Subscribe {
                    port: Arc::clone(&open.port),
                    sid: subscribe.sid,
                    permit,
                    queue,
                    local_only: subscribe.local_only,
                });
            }
            Err(reason) => self.deny(Read::ACCESS, text, u64::from(subscribe.sid), reason, now, effects),
        }
    }

    fn on_data(&mut self, frame: &DataFrame<'_>, now: Time, effects: &mut Effects) -> Result<(), SessionEnd> {
        if frame.kind != DataKind::Publish {
            return Err(SessionEnd::Unexpected("data frame of a broker"));
        }
        let Some(open) = &mut self.open else { return Err(SessionEnd::Unexpected("data frame")) };
        let class = frame.class.unwrap_or(open.default_class);
        let route = match open.cache.find(&self.shared, &self.principal, class, frame.name) {
            Ok((route, fresh)) => {
                if fresh {
                    log_allowance(&self.shared, Access::Write, frame.name, &self.principal, route.rule(), effects);
                }
                route
            }
            Err(reason) => {
                self.deny(Access::Write, frame.name, frame.seq.unwrap_or(0), reason, now, effects);
                return Ok(());
            }
        };
        if let Err(reason) = check_reply(frame.reply) {
            self.deny(Access::Write, frame.reply, frame.seq.unwrap_or(0), reason, now, effects);
            return Ok(());
        }
        let name = frame.name.get(route.raw_offset()..).unwrap_or_default();
        let Ok(raw) = RawName::parse(name) else { return Ok(()) };
        open.turn = open.turn.wrapping_add(1);
        let seq = open.seqs.get_mut(route.class().index()).map_or(0, |seq| {
            *seq += 1;
            *seq
        });
        let counters = route.tenant().counters().class(route.class());
        counters.published.add(1);
        counters.published_bytes.add(frame.payload.len() as u64);
        let message = Message {
            tenant: route.tenant(),
            destination: Destination::of(route.tenant().id(), route.class(), raw),
            reply: frame.reply,
            headers: frame.headers,
            payload: frame.payload,
            ttl_ms: frame.ttl_ms,
            sender: &open.sender,
            incarnation: self.shared.incarnation,
            seq,
            reply_token: (!frame.reply.is_empty()).then_some(self.id),
            hops: 1,
        };
        let published = route::publish(&self.shared, route, &message, &open.port, open.turn, now, &mut effects.batch);
        for (session, sid) in effects.batch.finished.drain(..) {
            effects.commands.push(Command::Unsubscribe { session, sid, max: None });
        }
        answer(frame, route, published, effects);
        Ok(())
    }

    fn deny(&mut self, access: Access, subject: &[u8], id: u64, reason: Deny, now: Time, effects: &mut Effects) {
        let own = self.principal.tenant();
        if let Some(open) = &self.open {
            open.tenant.counters().deny(access, reason);
        }
        if self.limiter.allow(now).is_some() {
            let line = DenyLine { access, destination: subject, principal: &self.principal, reason };
            effects.denials.push(line.to_string());
        }
        let denied = Denied {
            access: access as u8,
            id,
            subject: clip(subject, QUALIFIED_BYTES_MAX),
            code: reason.code().to_owned(),
            text: clip(reason.text(own.as_str()).as_bytes(), TEXT_BYTES_MAX),
            retry_after_ms: None,
        };
        append(&mut effects.replies, &denied.into());
    }
}

fn log_allowance(
    shared: &Shared,
    access: Access,
    name: &[u8],
    principal: &Principal,
    rule: &Rule,
    effects: &mut Effects,
) {
    // Doors between tenants are always logged; the rest only where the operator wants it.
    if shared.log_allow || rule.is_observer() {
        let (access, name) = (access.as_str(), Escaped(name));
        effects.allowances.push(format!("ALLOW {access} '{name}' for {principal} : {}", rule.as_str()));
    }
}

/// A reply subject is a raw name of the same tenant, or empty.
fn check_reply(reply: &[u8]) -> Result<(), Deny> {
    match reply {
        [] => Ok(()),
        [b'T', b'.', ..] => Err(Deny::CrossTenant),
        _ => RawName::parse(reply).map(|_| ()).map_err(Deny::from),
    }
}

fn answer(frame: &DataFrame<'_>, route: &Route, published: Published, effects: &mut Effects) {
    let counters = route.tenant().counters().class(route.class());
    if published.targets == 0 {
        counters.unmatched.add(1);
    }
    if let Some(seq) = frame.seq.filter(|_| route.class().is_reliable()) {
        let targets = u32::try_from(published.targets).unwrap_or(u32::MAX);
        append(&mut effects.replies, &Ack { seq, targets }.into());
    }
    if !frame.reply.is_empty() && !published.responders && route.found().in_sync {
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
