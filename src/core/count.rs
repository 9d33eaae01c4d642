//! Counters: every drop, refusal and delivery by tenant, class and reason.
//!
//! Plain atomics, read by whoever renders metrics. Nothing here decides anything. Those of reasons are made when the first
//! of them counts: of a hundred thousand tenants, most are idle.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::deny::Deny;
use crate::name::Class;

macro_rules! drops {
    ($($(#[$doc:meta])+ $variant:ident = $code:literal;)*) => {
        /// Why an accepted message, or a frame of a peer, went no further.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Drop { $($(#[$doc])+ $variant,)* }

        impl Drop {
            /// Every reason.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The metric label.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }
        }
    };
}

drops! {
    /// The egress lane was full and the class drops.
    LaneFull = "lane-full";
    /// The tenant's sessions here hold more than they may, and this one more than its part.
    Memory = "memory";
    /// It waited in a `live` lane longer than the class allows, or past its own ttl.
    Aged = "aged";
    /// Older than the last delivered of its publisher, or a repeat.
    Late = "late";
    /// It passed too many brokers.
    HopLimit = "hop-limit";
    /// The next edge does not allow the tenant.
    EdgeTenant = "edge-tenant";
    /// A target broker is not reachable for the tenant.
    NoRoute = "no-route";
    /// A target, origin or sender handle that was never announced, or a target that is self or back.
    BadTarget = "bad-target";
    /// The target had no member of the queue group any more.
    NoMember = "no-member";
    /// The session or edge went away with the message in its lane.
    Gone = "gone";
    /// The message is larger than the fabric allows.
    TooLarge = "too-large";
    /// The tenant or its session publishes more than it may; the client was refused.
    Rate = "rate-limited";
    /// More interest of a peer than is kept, or more brokers that ask for it.
    Interest = "interest-full";
    /// A frame of a peer could not be decoded.
    Malformed = "malformed";
    /// The target broker began a new life, or was out of reach for too long, before it acknowledged.
    TargetGone = "target-gone";
    /// The broker at which it entered began a new life before what comes first had arrived.
    OriginGone = "origin-gone";
    /// It came before its turn and found no room; its origin sends it again.
    Early = "early";
    /// A repeat of what was delivered, or is kept until its turn.
    Repeat = "repeat";
    /// What one broker says to another found no room; it is no message, and is said again.
    Unsaid = "unsaid";
    /// What the node itself tells its tenants, or an observer's copy for another broker, found no room.
    Congested = "congested";
}

/// One counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The value now.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one class of one tenant on one node.
#[derive(Debug, Default)]
pub struct ClassCounters {
    /// Messages accepted from clients.
    pub published: Counter,
    /// Bytes of payload accepted from clients.
    pub published_bytes: Counter,
    /// Message copies made for sessions here; those that a lane refuses or loses are among the drops, too.
    pub delivered: Counter,
    /// Message copies made for edges; those that a lane refuses or loses are among the drops, too.
    pub relayed_out: Counter,
    /// Message copies received over edges.
    pub relayed_in: Counter,
    /// Accepted messages that matched nothing in the mesh.
    pub unmatched: Counter,
    /// Copies that were sent to other brokers and have not arrived there, wherever they were lost; of classes that nobody
    /// acknowledges.
    pub lost: Counter,
    drops: Reasons<{ Drop::ALL.len() }>,
}

impl ClassCounters {
    /// Counts `n` drops.
    pub fn dropped(&self, reason: Drop, n: u64) {
        self.drops.add(reason as usize, n);
    }

    /// Drops for `reason` so far.
    #[must_use]
    pub fn drops(&self, reason: Drop) -> u64 {
        self.drops.value(reason as usize)
    }
}

/// A counter for each of `N` reasons, which take memory once one has counted.
#[derive(Debug, Default)]
struct Reasons<const N: usize>(OnceLock<Box<[Counter; N]>>);

impl<const N: usize> Reasons<N> {
    fn add(&self, reason: usize, n: u64) {
        let counters = self.0.get_or_init(|| Box::new(std::array::from_fn(|_| Counter::default())));
        if let Some(counter) = counters.get(reason) {
            counter.add(n);
        }
    }

    fn value(&self, reason: usize) -> u64 {
        self.0.get().and_then(|counters| counters.get(reason)).map_or(0, Counter::value)
    }
}

/// Counters of one tenant on one node.
#[derive(Debug, Default)]
pub struct Counters {
    classes: [ClassCounters; 4],
    denied: [Reasons<{ Deny::ALL.len() }>; 2],
}

impl Counters {
    /// The counters of one class.
    #[must_use]
    pub fn class(&self, class: Class) -> &ClassCounters {
        let [live, ctrl, tele, bulk] = &self.classes;
        match class {
            Class::Live => live,
            Class::Ctrl => ctrl,
            Class::Tele => tele,
            Class::Bulk => bulk,
        }
    }

    /// Counts one refusal of an operation by this tenant's principal.
    pub fn deny(&self, access: crate::deny::Access, reason: Deny) {
        if let Some(denied) = self.denied.get(access as usize) {
            denied.add(reason.index(), 1);
        }
    }

    /// Refusals so far.
    #[must_use]
    pub fn denials(&self, access: crate::deny::Access, reason: Deny) -> u64 {
        self.denied.get(access as usize).map_or(0, |denied| denied.value(reason.index()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deny::Access;

    #[test]
    fn reasons_are_counted_apart_and_take_no_memory_before() {
        let counters = Counters::default();
        let live = counters.class(Class::Live);
        for reason in Drop::ALL {
            assert_eq!(live.drops(*reason), 0);
        }
        for (n, reason) in (1..).zip(Drop::ALL) {
            live.dropped(*reason, n);
            live.dropped(*reason, 1);
        }
        for (n, reason) in (1..).zip(Drop::ALL) {
            assert_eq!((live.drops(*reason), counters.class(Class::Bulk).drops(*reason)), (n + 1, 0), "{reason:?}");
        }
        assert!(counters.class(Class::Bulk).drops.0.get().is_none(), "reading makes nothing");
        for reason in Deny::ALL {
            counters.deny(Access::Write, *reason);
            assert_eq!((counters.denials(Access::Write, *reason), counters.denials(Access::Read, *reason)), (1, 0));
        }
        assert!(counters.denied.iter().any(|denied| denied.0.get().is_none()));
        assert!(size_of::<Counters>() < 400, "{} bytes for every idle tenant", size_of::<Counters>());
    }
}
