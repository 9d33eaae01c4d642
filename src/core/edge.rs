//! Edges: the configured adjacency to another broker, and the set of tenants it may carry (DESIGN section 6).
//!
//! The effective set is this side's configuration, the peer's and the bundle's, intersected. The sender checks it
//! before it queues, the receiver before it routes; each from its own copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;

use crate::count::Counter;
use crate::guard::{Guard, off};
use crate::name::{Label, NodeId};
use crate::tenant::TenantKey;

/// A set of tenants of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TenantSet(Vec<u64>);

impl TenantSet {
    /// Adds a tenant.
    pub fn insert(&mut self, key: TenantKey) {
        let (word, bit) = Self::place(key);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        if let Some(slot) = self.0.get_mut(word) {
            *slot |= bit;
        }
    }

    /// Whether the tenant is in the set.
    #[must_use]
    pub fn contains(&self, key: TenantKey) -> bool {
        let (word, bit) = Self::place(key);
        self.0.get(word).is_some_and(|slot| slot & bit != 0)
    }

    /// The tenants, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = TenantKey> + '_ {
        self.0.iter().zip(0u32..).flat_map(|(slot, word)| {
            (0..64u32).filter(move |bit| slot & (1u64 << bit) != 0).map(move |bit| TenantKey(word * 64 + bit))
        })
    }

    /// How many tenants are in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|slot| slot.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|slot| *slot == 0)
    }

    fn place(key: TenantKey) -> (usize, u64) {
        ((key.0 / 64) as usize, 1u64 << (key.0 % 64))
    }
}

impl FromIterator<TenantKey> for TenantSet {
    fn from_iter<I: IntoIterator<Item = TenantKey>>(keys: I) -> Self {
        let mut set = Self::default();
        keys.into_iter().for_each(|key| set.insert(key));
        set
    }
}

/// The node-local number of an edge; never on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EdgeKey(pub u32);

/// What routing knows of one edge: who is behind it and what it may carry now.
#[derive(Debug)]
pub struct Edge {
    key: EdgeKey,
    name: Label,
    peer: NodeId,
    effective: ArcSwap<TenantSet>,
    up: AtomicBool,
    /// Slices and lanes of tenants outside the effective set, skipped on receipt.
    pub refused: Counter,
}

impl Edge {
    /// An edge that is down and carries nobody.
    #[must_use]
    pub fn new(key: EdgeKey, name: Label, peer: NodeId) -> Self {
        Self {
            key,
            name,
            peer,
            effective: ArcSwap::from_pointee(TenantSet::default()),
            up: AtomicBool::new(false),
            refused: Counter::default(),
        }
    }

    /// The node-local number.
    #[must_use]
    pub const fn key(&self) -> EdgeKey {
        self.key
    }

    /// The edge's name.
    #[must_use]
    pub const fn name(&self) -> &Label {
        &self.name
    }

    /// The broker at the other end.
    #[must_use]
    pub const fn peer(&self) -> &NodeId {
        &self.peer
    }

    /// Whether a bridge is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// The effective set now; empty while the edge is down.
    #[must_use]
    pub fn effective(&self) -> Arc<TenantSet> {
        self.effective.load_full()
    }

    /// The sender's check, before a message is queued.
    #[must_use]
    pub fn may_send(&self, tenant: TenantKey) -> bool {
        self.effective.load().contains(tenant) || (self.is_up() && off(Guard::EdgeSender))
    }

    /// The receiver's check, before anything of a lane is routed.
    #[must_use]
    pub fn may_receive(&self, tenant: TenantKey) -> bool {
        self.effective.load().contains(tenant) || (self.is_up() && off(Guard::EdgeReceiver))
    }

    /// Sets what the edge carries; the control half's right alone.
    pub(crate) fn set_effective(&self, set: TenantSet, up: bool) {
        self.effective.store(Arc::new(set));
        self.up.store(up, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in() {
        let set: TenantSet = [3, 64, 200].into_iter().map(TenantKey).collect();
        assert_eq!(set.iter().map(|k| k.0).collect::<Vec<_>>(), [3, 64, 200]);
        assert_eq!(set.len(), 3);
        assert!(!set.contains(TenantKey(4)) && !set.contains(TenantKey(9999)));
        assert!(TenantSet::default().is_empty());
    }

    #[test]
    fn a_new_edge_carries_nobody() {
        let edge = Edge::new(EdgeKey(0), Label::parse("e").unwrap(), NodeId::parse("r/a").unwrap());
        assert!(!edge.may_send(TenantKey(0)) && !edge.may_receive(TenantKey(0)));
    }
}
