//! Sessions as routing sees them: a place to put frames, and the subscriptions that lead there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::count::Counter;
use crate::identity::Principal;
use crate::inbox::Inbox;
use crate::name::{ClassSet, Filter, QueueGroup, RawFilter, TenantPattern};
use crate::sched::SessionLanes;

/// How frames for a session are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The native protocol.
    #[default]
    Native,
    /// The NATS text protocol.
    Nats {
        /// Whether the client reads header blocks.
        headers: bool,
    },
}

/// One connected client: its principal and its egress.
#[derive(Debug)]
pub struct SessionPort {
    id: u64,
    principal: Arc<Principal>,
    echo: bool,
    dialect: Dialect,
    inbox: Inbox<SessionLanes>,
    /// Whether it waits for room to publish, and whether there may be some.
    waits: AtomicBool,
    retries: AtomicBool,
    /// Messages that found no room in its lanes.
    pub lost: Counter,
}

impl SessionPort {
    /// A native session with an empty egress; `echo` says whether it gets its own messages back.
    #[must_use]
    pub fn new(id: u64, principal: Arc<Principal>, echo: bool, inbox: Inbox<SessionLanes>) -> Self {
        Self {
            id,
            principal,
            echo,
            dialect: Dialect::Native,
            inbox,
            waits: AtomicBool::new(false),
            retries: AtomicBool::new(false),
            lost: Counter::default(),
        }
    }

    /// The same session, written to in another dialect.
    #[must_use]
    pub fn speaking(self, dialect: Dialect) -> Self {
        Self { dialect, ..self }
    }

    /// How frames for it are written.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The session's number, unique within the node's incarnation.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Who is connected.
    #[must_use]
    pub const fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// Whether it gets its own messages back.
    #[must_use]
    pub const fn echo(&self) -> bool {
        self.echo
    }

    /// Notes that the session waits for room to publish; `false` when it did already.
    pub fn wait(&self) -> bool {
        !self.waits.swap(true, Ordering::AcqRel)
    }

    /// There may be room: the session's task is woken to try again.
    pub fn retry(&self) {
        self.waits.store(false, Ordering::Release);
        self.retries.store(true, Ordering::Release);
        self.inbox.wake();
    }

    /// Whether there may be room since the last call.
    #[must_use]
    pub fn take_retry(&self) -> bool {
        self.retries.load(Ordering::Acquire) && self.retries.swap(false, Ordering::AcqRel)
    }

    /// The session's egress.
    #[must_use]
    pub const fn inbox(&self) -> &Inbox<SessionLanes> {
        &self.inbox
    }
}

/// One subscription of one session.
#[derive(Debug)]
pub struct Sub {
    port: Arc<SessionPort>,
    sid: u32,
    tag: Box<[u8]>,
    raw: RawFilter,
    classes: ClassSet,
    qualified: bool,
    observer: bool,
    /// The tenants of the filter, where they are not the session's own one: rare, and so in a place of its own.
    tenants: Option<Box<TenantPattern>>,
    queue: Option<QueueGroup>,
    max: AtomicU64,
    delivered: AtomicU64,
}

/// What one more delivery means for a subscription with a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Deliver.
    Yes,
    /// Deliver; it was the last one.
    Last,
    /// Do not deliver: the maximum was reached before.
    Over,
}

impl Sub {
    /// A subscription without a maximum. An observer joins no queue group.
    #[must_use]
    pub fn new(port: Arc<SessionPort>, sid: u32, filter: &Filter, queue: Option<QueueGroup>, observer: bool) -> Self {
        let is_own = matches!(filter.tenant(), TenantPattern::One(id) if id == port.principal.tenant());
        Self {
            port,
            sid,
            tag: Box::default(),
            raw: filter.raw().clone(),
            classes: filter.classes(),
            qualified: filter.is_qualified(),
            observer,
            tenants: (!is_own).then(|| Box::new(filter.tenant().clone())),
            queue: if observer { None } else { queue },
            max: AtomicU64::new(u64::MAX),
            delivered: AtomicU64::new(0),
        }
    }

    /// The session.
    #[must_use]
    pub const fn port(&self) -> &Arc<SessionPort> {
        &self.port
    }

    /// The client's number for it.
    #[must_use]
    pub const fn sid(&self) -> u32 {
        self.sid
    }

    /// The same subscription with the text by which its client knows it, where that is not a number.
    #[must_use]
    pub fn tagged(self, tag: Box<[u8]>) -> Self {
        Self { tag, ..self }
    }

    /// The text by which its client knows it, where that is not a number.
    #[must_use]
    pub const fn tag(&self) -> &[u8] {
        &self.tag
    }

    /// The filter, as its client has asked for it.
    #[must_use]
    pub fn filter(&self) -> Filter {
        let own = || TenantPattern::One(self.port.principal.tenant().clone());
        let tenants = self.tenants.as_ref().map_or_else(own, |tenants| TenantPattern::clone(tenants));
        Filter::of(tenants, self.classes, self.raw.clone(), self.qualified)
    }

    /// The names wanted.
    #[must_use]
    pub const fn raw(&self) -> &RawFilter {
        &self.raw
    }

    /// The classes wanted.
    #[must_use]
    pub const fn classes(&self) -> ClassSet {
        self.classes
    }

    /// The queue group.
    #[must_use]
    pub const fn queue(&self) -> Option<&QueueGroup> {
        self.queue.as_ref()
    }

    /// Whether the client asked by the qualified form and so wants qualified names back.
    #[must_use]
    pub const fn is_qualified(&self) -> bool {
        self.qualified
    }

    /// Whether it only observes.
    #[must_use]
    pub const fn is_observer(&self) -> bool {
        self.observer
    }

    /// Ends the subscription after `max` deliveries in all; `true` when that many have happened already.
    pub fn limit(&self, max: u64) -> bool {
        self.max.store(max, Ordering::Relaxed);
        self.delivered.load(Ordering::Relaxed) >= max
    }

    /// Whether the maximum was reached: it takes nothing more, and must not be chosen for its group.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.delivered.load(Ordering::Relaxed) >= self.max.load(Ordering::Relaxed)
    }

    /// Whether it has no maximum.
    #[must_use]
    pub fn is_endless(&self) -> bool {
        self.max.load(Ordering::Relaxed) == u64::MAX
    }

    /// Counts `count` deliveries. How many of them are within the maximum, and whether the last one was among them.
    #[must_use]
    pub fn deliver_many(&self, count: u64) -> (u64, bool) {
        let max = self.max.load(Ordering::Relaxed);
        let before = self.delivered.fetch_add(count, Ordering::Relaxed);
        let taken = max.saturating_sub(before).min(count);
        (taken, taken > 0 && before + taken == max)
    }

    /// Counts one delivery.
    #[must_use]
    pub fn deliver(&self) -> Delivery {
        let max = self.max.load(Ordering::Relaxed);
        let before = self.delivered.fetch_add(1, Ordering::Relaxed);
        match before.checked_add(1) {
            _ if before >= max => Delivery::Over,
            Some(now) if now == max => Delivery::Last,
            _ => Delivery::Yes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A broker holds a million of them.
    #[test]
    fn a_subscription_is_small() {
        assert!(size_of::<Sub>() <= 88);
    }
}
