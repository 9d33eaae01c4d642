//! What every client session does, whatever protocol it speaks: subscribing, publishing, being refused.
//!
//! The protocol machines ([`crate::session`] and others) turn bytes into calls of [`Client`] and results into bytes. The
//! principal is fixed before the first byte; nothing a client says changes it. Every publish and subscription passes
//! policy; what is refused is counted and logged here, once, and the session goes on.

use std::sync::Arc;

use bytes::BytesMut;
use glocal_core::deny::{Access, Deny, DenyLine, Escaped};
use glocal_core::identity::Principal;
use glocal_core::inbox::Inbox;
use glocal_core::limits::{DENY_LOGS_PER_SECOND, RELIABLE_WAIT_MS_MAX};
use glocal_core::name::{Class, Destination, Filter, QueueGroup, RawName};
use glocal_core::policy::{Policy, Read, Rule, Write};
use glocal_core::port::{Dialect, SessionPort};
use glocal_core::rate::LogLimiter;
use glocal_core::sched::SessionLanes;
use glocal_core::tenant::{Tenant, TenantKey};
use glocal_core::time::Time;
use hashbrown::HashSet;

use crate::advisory::Event;
use crate::batch::{Batch, Message, Only};
use crate::driver::Command;
use crate::sender::Sender;
use crate::shared::Shared;

mod accepted;
mod cache;
pub(crate) mod like;
pub(crate) mod route;
mod toll;

use accepted::Accepted;
use cache::{MatchCache, Route};
use route::Publisher;
use toll::Toll;

/// What a session machine brought about, for its caller to carry out.
#[derive(Debug, Default)]
pub struct Effects {
    /// Commands for the control half, in order. Nothing further of this session may be read before they took effect.
    pub commands: Vec<Command>,
    /// Bytes for this client, ahead of its lanes.
    pub replies: BytesMut,
    /// Frames for other sessions and edges.
    pub batch: Batch,
    /// Log lines of refusals, already escaped and limited.
    pub denials: Vec<String>,
    /// What the session's tenant is to be told of it.
    pub events: Vec<Event>,
    /// Log lines of permits, where they are wanted.
    pub allowances: Vec<String>,
    /// Whether the session waits for room: the rest of its bytes is to be given to it again, soon or when its port says so.
    pub waits: bool,
    /// When it is to be given them at the latest, where that is known: it waits for its rate.
    pub until: Option<Time>,
    /// Bytes of the first operation that is not complete, as far as they are known; zero for nothing.
    pub needs: usize,
}

impl Effects {
    /// Begins a turn of a session, which is to work on so many bytes.
    pub(crate) fn begin(&mut self, bytes: usize) {
        (self.waits, self.until, self.needs) = (false, None, 0);
        self.batch.foresee(bytes);
    }

    /// Has the session given the rest of its bytes again: soon or, where that is known, at the latest then.
    pub(crate) const fn wait(&mut self, until: Option<Time>) {
        (self.waits, self.until) = (true, until);
    }
}

/// A message as a client publishes it, its names unchecked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing<'m> {
    /// Raw or qualified name.
    pub name: &'m [u8],
    /// Reply subject, empty for none.
    pub reply: &'m [u8],
    /// Header block, verbatim.
    pub headers: &'m [u8],
    /// Payload, within the fabric's limit.
    pub payload: &'m [u8],
    /// The class a raw name is published in; the session's default without.
    pub class: Option<Class>,
    /// Milliseconds it is worth something.
    pub ttl_ms: Option<u32>,
    /// The client's own number for it, by which it is told of an acknowledgement.
    pub number: Option<u64>,
}

/// Why a publish was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpublished<'m> {
    /// What was refused, the name or the reply subject, and why; nothing is counted or logged yet.
    Denied(&'m [u8], Deny),
    /// It is to be tried again, and nothing of the session before: somebody who must get it has no room or, with a time, it
    /// is above its rate until then.
    Wait(Option<Time>),
    /// It is the first one of the session in its tenant: it is to be tried again when the command that was left has taken effect.
    Unsynced,
    /// It is above its rate, and was counted.
    Over {
        /// When trying again makes sense, in milliseconds.
        retry_after_ms: u32,
        /// Whether the client is to be told; the refusal is counted among all others when it is.
        told: bool,
    },
}

impl<'m> From<(&'m [u8], Deny)> for Unpublished<'m> {
    fn from((name, reason): (&'m [u8], Deny)) -> Self {
        Self::Denied(name, reason)
    }
}

/// What became of a publish.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// The class it was published in.
    pub class: Class,
    /// Sessions here and brokers elsewhere that were given a copy, observers not counted; always 1 over a grant.
    pub targets: u32,
    /// Whether it asked for a reply and certainly nobody who could give one was reached.
    pub no_responders: bool,
    /// Whether the acknowledgement comes later.
    pub pending: bool,
}

/// Who is connected, before it may do anything.
#[derive(Debug)]
pub struct Identity {
    /// The node's facts.
    pub shared: Arc<Shared>,
    /// Who.
    pub principal: Arc<Principal>,
    /// The session's number.
    pub id: u64,
    limiter: LogLimiter,
}

impl Identity {
    /// A new session of `principal`.
    #[must_use]
    pub fn new(shared: Arc<Shared>, principal: Arc<Principal>, now: Time) -> Self {
        let id = shared.next_session();
        Self { shared, principal, id, limiter: LogLimiter::new(DENY_LOGS_PER_SECOND, now) }
    }

    /// The tenant's handle; `None` for a tenant that is not in the fabric.
    #[must_use]
    pub fn tenant(&self) -> Option<Arc<Tenant>> {
        self.shared.tenant(self.principal.tenant().as_str())
    }

    /// Where the session's reply subjects begin: its own name where only owners may read replies, else `random`.
    #[must_use]
    pub fn inbox_prefix(&self, random: u64) -> String {
        let owner_only = self.tenant().is_some_and(|tenant| tenant.section().owner_only_replies);
        match self.principal.named().filter(|_| owner_only) {
            Some((region, agent)) => format!("_INBOX.{region}.{agent}."),
            None => format!("_INBOX.{random:016x}."),
        }
    }

    /// Counts and logs a refusal, and returns its text for the client.
    pub fn refuse(&mut self, access: Access, subject: &[u8], reason: Deny, now: Time, effects: &mut Effects) -> String {
        if let Some(tenant) = self.tenant() {
            tenant.counters().deny(access, reason);
        }
        if self.limiter.allow(now).is_some() {
            let line = DenyLine { access, destination: subject, principal: &self.principal, reason };
            effects.denials.push(line.to_string());
            let (access, subject) = (if access == Access::Read { "read" } else { "write" }, Escaped(subject));
            effects.events.push(Event::Denied { access, subject: subject.to_string(), code: reason.code() });
        }
        reason.text(self.principal.tenant().as_str())
    }

    fn log_allowance(&self, access: Access, name: &[u8], rule: &Rule, effects: &mut Effects) {
        // Doors between tenants are always logged; the rest only where the operator wants it.
        if self.shared.log_allow() || rule.is_observer() {
            let (access, name) = (access.as_str(), Escaped(name));
            effects.allowances.push(format!("ALLOW {access} '{name}' for {} : {}", self.principal, rule.as_str()));
        }
    }
}

/// A session that may subscribe and publish.
#[derive(Debug)]
pub struct Client {
    port: Arc<SessionPort>,
    sender: Arc<Sender>,
    default_class: Class,
    seqs: [u64; 4],
    turn: u64,
    cache: MatchCache,
    /// Since when a publish waits for room.
    waiting: Option<Time>,
    toll: Option<Toll>,
    accepted: Accepted,
    /// What became of the last publish that another one can be like, and while which sets of the edge that it went over.
    again: Option<(Published, u64)>,
    /// Whether the publish at hand was taken as one more like the one before it.
    repeats: bool,
    /// Tenants for which this session has said that it publishes.
    publishes: HashSet<TenantKey>,
    /// Whether its own tenant is among them.
    publishes_at_home: bool,
}

impl Client {
    /// Opens a session; `echo` says whether it gets its own messages back.
    #[must_use]
    pub fn open(identity: &Identity, dialect: Dialect, default_class: Class, echo: bool, now: Time) -> Self {
        let shared = &identity.shared;
        let handle = shared.next_sender();
        let tenant = identity.tenant();
        let account = tenant.as_ref().map(|tenant| Arc::clone(tenant.memory()));
        let inbox = Inbox::new(SessionLanes::default().charged_to(account));
        let principal = Arc::clone(&identity.principal);
        Self {
            sender: Sender::local(handle, shared.own, identity.id, &principal),
            port: Arc::new(SessionPort::new(identity.id, principal, echo, inbox).speaking(dialect)),
            default_class,
            seqs: [0; 4],
            turn: u64::from(handle),
            cache: MatchCache::of(identity.id),
            waiting: None,
            toll: tenant.map(|tenant| Toll::new(tenant, now)),
            accepted: Accepted::default(),
            again: None,
            repeats: false,
            publishes: HashSet::new(),
            publishes_at_home: false,
        }
    }

    /// The session's egress.
    #[must_use]
    pub const fn port(&self) -> &Arc<SessionPort> {
        &self.port
    }

    /// The class of publishes that name none.
    #[must_use]
    pub const fn default_class(&self) -> Class {
        self.default_class
    }

    /// Asks policy for a subscription and, when it is permitted, leaves the command to make it in `effects`.
    /// `tag` is the text by which the client knows it, where that is not a number. `local_only` subscriptions are not told to other brokers.
    ///
    /// # Errors
    /// Why not; nothing is counted or logged yet.
    #[expect(clippy::too_many_arguments, reason = "called once per protocol, each argument a fact of its own type")]
    pub fn subscribe(
        &self,
        identity: &Identity,
        text: &[u8],
        queue: Option<&str>,
        sid: u32,
        tag: &[u8],
        local_only: bool,
        effects: &mut Effects,
    ) -> Result<(), Deny> {
        let filter = Filter::qualify(identity.principal.tenant(), text)?;
        let queue = queue.map(QueueGroup::parse).transpose()?;
        let permit = identity.shared.policy().authorize(&identity.principal, Read(filter))?;
        identity.log_allowance(Access::Read, text, permit.rule(), effects);
        let port = Arc::clone(&self.port);
        effects.commands.push(Command::Subscribe { port, sid, tag: Box::from(tag), permit, queue, local_only });
        Ok(())
    }

    /// Takes a publish of the client: pays for it, and then publishes it. To be called again for the same one after
    /// [`Unpublished::Wait`] and [`Unpublished::Unsynced`], for which it has been paid, or will be just once.
    ///
    /// # Errors
    /// [`Unpublished`].
    pub fn offer<'m>(
        &mut self,
        identity: &Identity,
        outgoing: &Outgoing<'m>,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Published, Unpublished<'m>> {
        self.pay(outgoing, now)?;
        if self.must_wait(identity, outgoing, effects) {
            return Err(Unpublished::Unsynced);
        }
        let published = self.publish(identity, outgoing, now, effects);
        if !matches!(published, Err(Unpublished::Wait(_))) {
            self.done();
        }
        published
    }

    /// Pays for a publish that may be refused before it is offered; see [`Self::done`].
    ///
    /// # Errors
    /// [`Unpublished::Wait`] or [`Unpublished::Over`].
    pub fn pay(&mut self, outgoing: &Outgoing<'_>, now: Time) -> Result<(), Unpublished<'static>> {
        // Another publish is at hand, whatever comes of it.
        self.repeats = false;
        let class = outgoing.class.unwrap_or(self.default_class);
        self.toll.as_mut().map_or(Ok(()), |toll| toll.pay(outgoing, class, now))
    }

    /// A publish that was paid is refused without being offered: the next one is another one.
    pub fn done(&mut self) {
        if let Some(toll) = &mut self.toll {
            toll.done();
        }
    }

    /// Everything that was read is worked on: it is counted, and what was taken of the tenant's rate in stock goes back.
    pub fn settle(&mut self) {
        self.accepted.settle();
        if let Some(toll) = &mut self.toll {
            toll.settle();
        }
    }

    /// Whether a publish must wait until the interest of other brokers in its tenant is known here: it is the session's
    /// first one there, and the command that asks is left in `effects`. What policy refuses asks for nothing.
    fn must_wait(&mut self, identity: &Identity, outgoing: &Outgoing<'_>, effects: &mut Effects) -> bool {
        let at_home = !outgoing.name.starts_with(b"T.");
        if at_home && self.publishes_at_home {
            return false;
        }
        let class = outgoing.class.unwrap_or(self.default_class);
        let Ok(destination) = Destination::qualify(identity.principal.tenant(), class, outgoing.name) else {
            return false;
        };
        let Ok(permit) = identity.shared.policy().authorize(&identity.principal, Write(destination)) else {
            return false;
        };
        let Some(tenant) = permit.tenant().map(|tenant| tenant.key()) else { return false };
        self.publishes_at_home |= at_home;
        let waits = self.publishes.insert(tenant);
        if waits {
            effects.commands.push(Command::PublishFrom { session: identity.id, tenant });
        }
        waits
    }

    /// Asks policy for a publish and, when it is permitted, collects its copies in `effects`.
    ///
    /// # Errors
    /// [`Unpublished`]. A publish waits for [`RELIABLE_WAIT_MS_MAX`] at most; then it is refused, and so are those that
    /// follow until there is room.
    pub fn publish<'m>(
        &mut self,
        identity: &Identity,
        outgoing: &Outgoing<'m>,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Published, Unpublished<'m>> {
        let shared = &identity.shared;
        let class = outgoing.class.unwrap_or(self.default_class);
        let again = self.publish_again(shared, outgoing, class, now, effects);
        self.repeats = again.is_some();
        if let Some(published) = again {
            return Ok(published);
        }
        let found = self.cache.find(shared, &identity.principal, class, outgoing.name);
        let (route, fresh) = found.map_err(|reason| (outgoing.name, reason))?;
        if fresh {
            identity.log_allowance(Access::Write, outgoing.name, route.rule(), effects);
        }
        check_reply(identity, route, outgoing.reply).map_err(|reason| (outgoing.reply, reason))?;
        self.turn = self.turn.wrapping_add(1);
        let seq = self.seqs.get_mut(route.class().index()).map_or(0, |seq| {
            *seq += 1;
            *seq
        });
        let message = Message {
            tenant: route.tenant(),
            destination: Destination::of(route.tenant().id(), route.class(), route.name()),
            reply: outgoing.reply,
            headers: outgoing.headers,
            payload: outgoing.payload,
            ttl_ms: outgoing.ttl_ms,
            sender: &self.sender,
            incarnation: shared.incarnation(),
            seq,
            reply_token: (!outgoing.reply.is_empty()).then_some(identity.id),
            hops: 1,
            redelivered: false,
        };
        let own = Publisher { port: &self.port, turn: self.turn, number: outgoing.number };
        let Ok(reached) = route::publish(shared, route, &message, &own, now, &mut effects.batch) else {
            let since = *self.waiting.get_or_insert(now);
            let patient = now < since.plus_millis(RELIABLE_WAIT_MS_MAX);
            return Err(if patient { Unpublished::Wait(None) } else { (outgoing.name, Deny::Congested).into() });
        };
        self.waiting = None;
        self.accepted.add(route.tenant(), route.class(), outgoing.payload.len(), reached.wanted);
        for (session, sid) in effects.batch.finished.drain(..) {
            effects.commands.push(Command::Unsubscribe { session, sid, max: None });
        }
        let published = published(outgoing, route, reached);
        let repeats = !fresh && reached.targets > 0 && is_plain(outgoing) && !route.class().is_reliable();
        if let Some((only, number)) = route.only().filter(|_| repeats) {
            let version = only.version();
            if only.may_take(route.tenant().key()) {
                effects.batch.keep_head((self.sender.handle(), number), only, outgoing.payload.len());
                self.again = Some((published, version));
            }
        }
        effects.batch.relieve(shared, now);
        Ok(published)
    }

    /// Publishes what differs from the last message in its payload at most, where that goes to one subscription here or over
    /// one edge: what [`Self::publish`] would do, for a third of the work. `None` where it is not so, and nothing was done.
    fn publish_again(
        &mut self,
        shared: &Shared,
        outgoing: &Outgoing<'_>,
        class: Class,
        now: Time,
        effects: &mut Effects,
    ) -> Option<Published> {
        let is_like = self.cache.is_last(class, outgoing.name) && is_plain(outgoing);
        if is_like { self.write_again(shared, outgoing.payload, now, effects) } else { None }
    }

    /// Writes one message more of the name that was published to last, of which all but the payload is the same.
    fn write_again(&mut self, shared: &Shared, payload: &[u8], now: Time, effects: &mut Effects) -> Option<Published> {
        let route = self.cache.last(shared)?;
        let (only, number) = route.only()?;
        let (tenant, class) = (route.tenant(), route.class());
        let (published, version) = self.again?;
        let is_own = matches!(only, Only::Sub(sub) if !self.port.echo() && sub.port().id() == self.port.id());
        if is_own || only.version() != version || class.is_reliable() || !tenant.replies().is_empty() {
            return None;
        }
        let seq = self.seqs.get_mut(class.index())?;
        effects.batch.again((self.sender.handle(), number), only, payload, *seq + 1)?.write();
        *seq += 1;
        self.turn = self.turn.wrapping_add(1);
        self.waiting = None;
        self.accepted.add(tenant, class, payload.len(), true);
        effects.batch.relieve(shared, now);
        Some(published)
    }

    /// Whether another publish like the one at hand, to `name`, may be given to [`Self::offer_again`]: this one was like the
    /// one before it, and in the session's own tenant, in whose name it publishes already.
    fn may_repeat(&self, name: &[u8]) -> bool {
        self.repeats && self.publishes_at_home && !name.starts_with(b"T.")
    }

    /// Takes a publish that is like the last one, but for its payload, as [`Self::offer`] would. `name_bytes` is the length of
    /// its name as written. `false` where that is not to be had so simply: it is to be offered then, for which it may have
    /// been paid.
    fn offer_again(
        &mut self,
        shared: &Shared,
        (name_bytes, payload): (usize, &[u8]),
        now: Time,
        effects: &mut Effects,
    ) -> bool {
        let Some(class) = self.cache.last(shared).map(Route::class) else { return false };
        let bytes = (name_bytes + payload.len()) as u64;
        let has_paid = self.toll.as_mut().is_none_or(|toll| toll.has_paid(class, bytes, now));
        let is_taken = has_paid && self.write_again(shared, payload, now, effects).is_some();
        if is_taken {
            self.done();
        }
        is_taken
    }
}

/// Whether a message is a name and a payload.
const fn is_plain(outgoing: &Outgoing<'_>) -> bool {
    let Outgoing { name: _, reply, headers, payload: _, class: _, ttl_ms, number: _ } = outgoing;
    reply.is_empty() && headers.is_empty() && ttl_ms.is_none()
}

fn published(outgoing: &Outgoing<'_>, route: &Route, reached: route::Reached) -> Published {
    if matches!(route.rule(), Rule::Grant(_)) {
        // How many subscribers another tenant has, or whether it has any, is not the sender's to know.
        return Published { class: route.class(), targets: 1, no_responders: false, pending: reached.pending };
    }
    Published {
        class: route.class(),
        targets: u32::try_from(reached.targets).unwrap_or(u32::MAX),
        no_responders: !outgoing.reply.is_empty() && !reached.responders && route.found().in_sync,
        pending: reached.pending,
    }
}

/// A reply subject is a raw name of the tenant the message goes to, where its sender may write, or empty.
fn check_reply(identity: &Identity, route: &Route, reply: &[u8]) -> Result<(), Deny> {
    match reply {
        [] => Ok(()),
        [b'T', b'.', ..] => Err(Deny::CrossTenant),
        _ => Policy::check_reply(&identity.principal, route.tenant(), route.rule(), RawName::parse(reply)?),
    }
}

#[cfg(test)]
mod tests;
