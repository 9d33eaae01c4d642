//! Senders: who published a message, as stamped by the broker at which it entered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use glocal_core::identity::Principal;
use glocal_core::limits::DELIVERED_SENDERS_MAX;
use glocal_core::name::Class;
use glocal_core::routes::BrokerIndex;
use glocal_core::tenant::TenantKey;
use glocal_wire::control::AnnounceSender;
use hashbrown::HashMap;
use parking_lot::Mutex;

/// The number of the last message of one sender that was delivered here, by class: the same for every edge its messages
/// come by, so that none is delivered after a later one when the way changes.
#[derive(Debug, Default)]
pub struct Delivered([AtomicU64; 4]);

impl Delivered {
    /// Notes a message; `false` when it, or a later one, was delivered before.
    pub fn note(&self, class: Class, seq: u64) -> bool {
        self.0.get(class.index()).is_some_and(|last| last.fetch_max(seq, Ordering::Relaxed) < seq)
    }
}

/// One sender elsewhere: its tenant, its broker in one life, and its session there.
type Elsewhere = (TenantKey, BrokerIndex, u64, u64);

/// What was delivered of each sender elsewhere, as long as a lane knows the sender.
#[derive(Debug, Default)]
pub struct DeliveredSenders(Mutex<HashMap<Elsewhere, Weak<Delivered>>>);

impl DeliveredSenders {
    /// What was delivered of one sender. When there are too many, one that no other edge knows of.
    #[must_use]
    pub fn of(&self, tenant: TenantKey, origin: BrokerIndex, life: u64, session: u64) -> Arc<Delivered> {
        let mut known = self.0.lock();
        let key = (tenant, origin, life, session);
        if let Some(delivered) = known.get(&key).and_then(Weak::upgrade) {
            return delivered;
        }
        let delivered = Arc::new(Delivered::default());
        if known.len() >= DELIVERED_SENDERS_MAX {
            known.retain(|_, delivered| delivered.strong_count() > 0);
        }
        if known.len() < DELIVERED_SENDERS_MAX {
            known.insert(key, Arc::downgrade(&delivered));
        }
        delivered
    }

    /// Forgets senders that no lane knows any more.
    pub fn sweep(&self) {
        let mut known = self.0.lock();
        known.retain(|_, delivered| delivered.strong_count() > 0);
        if known.is_empty() {
            known.shrink_to_fit();
        }
    }
}

/// One publishing session, here or on another broker.
#[derive(Debug)]
pub struct Sender {
    handle: u32,
    origin: BrokerIndex,
    info: AnnounceSender,
    text: String,
}

impl Sender {
    /// A session of this broker; `handle` is unique on this node.
    #[must_use]
    pub fn local(handle: u32, own: BrokerIndex, session: u64, principal: &Principal) -> Arc<Self> {
        let info = AnnounceSender {
            handle,
            session,
            tenant: principal.tenant().to_string(),
            region: principal.region().map(ToString::to_string),
            agent: principal.agent().map(ToString::to_string),
            uid: principal.uid(),
        };
        Arc::new(Self { handle, origin: own, text: text(&info), info })
    }

    /// A session of another broker, as that broker announced it, under a handle of this node.
    #[must_use]
    pub fn remote(handle: u32, origin: BrokerIndex, info: AnnounceSender) -> Arc<Self> {
        let info = AnnounceSender { handle, ..info };
        Arc::new(Self { handle, origin, text: text(&info), info })
    }

    /// The handle on this node, used in every lane it sends on.
    #[must_use]
    pub const fn handle(&self) -> u32 {
        self.handle
    }

    /// The broker at which the sender's messages enter.
    #[must_use]
    pub const fn origin(&self) -> BrokerIndex {
        self.origin
    }

    /// The announcement of this sender under its handle.
    #[must_use]
    pub const fn info(&self) -> &AnnounceSender {
        &self.info
    }

    /// How subscribers of `tenant` are told of it: region and agent within the tenant, the tenant's name otherwise.
    #[must_use]
    pub fn text(&self, tenant: &str) -> &str {
        if self.info.tenant == tenant { &self.text } else { &self.info.tenant }
    }
}

fn text(info: &AnnounceSender) -> String {
    match (&info.region, &info.agent) {
        (Some(region), Some(agent)) => format!("{region}/{agent}"),
        _ => info.tenant.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sender_is_one_whatever_the_edge_and_forgotten_with_its_last_lane() {
        let senders = DeliveredSenders::default();
        let of = |life, session| senders.of(TenantKey(1), BrokerIndex(2), life, session);
        let (one, other) = (of(7, 1), of(7, 1));
        assert!(one.note(Class::Live, 5));
        assert!(!other.note(Class::Live, 5) && !other.note(Class::Live, 4), "over the other edge");
        assert!(other.note(Class::Tele, 4), "another class");
        assert!(of(8, 1).note(Class::Live, 1), "another life");
        drop((one, other));
        senders.sweep();
        assert!(senders.0.lock().is_empty());
        assert!(of(7, 1).note(Class::Live, 1));
    }

    #[test]
    fn too_many_senders_are_each_on_their_own() {
        let senders = DeliveredSenders::default();
        let held: Vec<_> = (0..DELIVERED_SENDERS_MAX as u64)
            .map(|session| senders.of(TenantKey(0), BrokerIndex(0), 1, session))
            .collect();
        let more = || senders.of(TenantKey(0), BrokerIndex(1), 1, 1);
        assert!(!Arc::ptr_eq(&more(), &more()));
        assert_eq!(senders.0.lock().len(), held.len());
        drop(held);
        let (one, other) = (more(), more());
        assert!(Arc::ptr_eq(&one, &other), "room again");
    }
}
