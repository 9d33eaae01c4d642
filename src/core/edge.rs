//! Edges: the configured adjacency to another broker, and the set of tenants it may carry (DESIGN section 6).
//!
//! The effective set is this side's configuration, the peer's and the bundle's, intersected. The sender checks it
//! before it queues, the receiver before it routes; each from its own copy. While the bundle changes on a live bridge the
//! two copies differ for a moment: a side accepts what both allow, and sends of it what the peer is known to accept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::count::{Counter, Drop};
use crate::guard::{Guard, off};
use crate::limits::NARROWING_MS_MAX;
use crate::name::{Label, NodeId};
use crate::tenant::TenantKey;
use crate::time::Time;

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

    /// The tenants that are in this set and not in `other`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let others = other.0.iter().copied().chain(std::iter::repeat(0));
        Self(self.0.iter().zip(others).map(|(mine, other)| mine & !other).collect())
    }

    /// The tenants that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(mine, other)| mine & other).collect())
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
    metric: AtomicU32,
    /// Whether each tenant has a connection of its own.
    dedicated: AtomicBool,
    effective: ArcSwap<TenantSet>,
    accepted: ArcSwap<TenantSet>,
    /// How often either was set.
    version: AtomicU64,
    /// Until when the two ends may know different bundles, in the clock of this node.
    excused_until: AtomicU64,
    up: AtomicBool,
    retired: AtomicBool,
    bridges: AtomicU64,
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
            metric: AtomicU32::new(0),
            dedicated: AtomicBool::new(false),
            effective: ArcSwap::from_pointee(TenantSet::default()),
            accepted: ArcSwap::from_pointee(TenantSet::default()),
            version: AtomicU64::new(0),
            excused_until: AtomicU64::new(0),
            up: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            bridges: AtomicU64::new(0),
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

    /// What this side's configuration adds to the measured cost.
    #[must_use]
    pub fn metric(&self) -> u32 {
        self.metric.load(Ordering::Relaxed)
    }

    /// Sets what this side's configuration adds to the measured cost; the control half reads it when it takes the edge.
    pub fn set_metric(&self, metric: u32) {
        self.metric.store(metric, Ordering::Relaxed);
    }

    /// Whether this side's configuration gives each tenant a connection of its own. A bridge goes by what it was opened
    /// with: it ends when this changes.
    #[must_use]
    pub fn is_dedicated(&self) -> bool {
        self.dedicated.load(Ordering::Acquire)
    }

    /// Sets whether each tenant has a connection of its own.
    pub fn set_dedicated(&self, dedicated: bool) {
        self.dedicated.store(dedicated, Ordering::Release);
    }

    /// Whether a bridge is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// How many bridges have ended: what the last of them had not carried to its end is lost.
    #[must_use]
    pub fn bridge(&self) -> u64 {
        self.bridges.load(Ordering::Acquire)
    }

    /// The effective set now; empty while the edge is down.
    #[must_use]
    pub fn effective(&self) -> Arc<TenantSet> {
        self.effective.load_full()
    }

    /// The sender's check, before a message is queued.
    #[must_use]
    pub fn may_send(&self, tenant: TenantKey) -> bool {
        (crate::IS_BARE && self.is_up())
            || self.effective.load().contains(tenant)
            || (self.is_up() && off(Guard::EdgeSender))
    }

    /// Why [`Self::may_send`] says no: while the edge is down it carries nobody, `down` says what becomes of a message then.
    #[must_use]
    pub fn reason(&self, down: Drop) -> Drop {
        if self.is_up() { Drop::EdgeTenant } else { down }
    }

    /// The receiver's check, before anything of a lane is routed.
    #[must_use]
    pub fn may_receive(&self, tenant: TenantKey) -> bool {
        (crate::IS_BARE && self.is_up())
            || self.accepted.load().contains(tenant)
            || (self.is_up() && off(Guard::EdgeReceiver))
    }

    /// What is accepted from the peer now; empty while the edge is down.
    #[must_use]
    pub fn accepted(&self) -> Arc<TenantSet> {
        self.accepted.load_full()
    }

    /// Whether the two ends may know different bundles, so that what does not fit is skipped and counted but not held
    /// against the peer.
    #[must_use]
    pub fn is_excused(&self, now: Time) -> bool {
        now.0 < self.excused_until.load(Ordering::Relaxed)
    }

    /// From now on the two ends may know different bundles, for [`NARROWING_MS_MAX`].
    pub fn excuse(&self, now: Time) {
        self.excused_until.fetch_max(now.plus_millis(NARROWING_MS_MAX).0, Ordering::Relaxed);
    }

    /// Whether the edge has been taken from this node; its number is given to no other.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Takes the edge from this node, or gives it back.
    pub fn retire(&self, retired: bool) {
        self.retired.store(retired, Ordering::Release);
    }

    /// Which sets are in force: what was asked of them after this was read holds as long as it is the same. It changes after
    /// the sets have.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Sets what the edge carries; the control half's right alone.
    pub(crate) fn set_effective(&self, set: TenantSet, up: bool) {
        if !up {
            // First, so that whoever finds nobody allowed finds out why.
            self.up.store(false, Ordering::Release);
            self.bridges.fetch_add(1, Ordering::AcqRel);
        }
        self.accepted.store(Arc::new(set.clone()));
        self.effective.store(Arc::new(set));
        self.excused_until.store(0, Ordering::Relaxed);
        self.up.store(up, Ordering::Release);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Changes what a live bridge carries; the control half's right alone. What is not accepted any more may be on its way.
    pub(crate) fn change(&self, sends: TenantSet, accepts: TenantSet, now: Time) {
        // First the excuse, then the narrowing, so that nothing is held against the peer in between.
        self.excuse(now);
        self.effective.store(Arc::new(sends));
        self.accepted.store(Arc::new(accepts));
        self.version.fetch_add(1, Ordering::Release);
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
    fn sets_are_compared_whatever_their_length() {
        let (small, large) = (TenantSet::from_iter([TenantKey(1)]), TenantSet::from_iter([1, 900].map(TenantKey)));
        assert_eq!(large.minus(&small).iter().collect::<Vec<_>>(), [TenantKey(900)]);
        assert!(small.minus(&large).is_empty());
        assert_eq!(large.and(&small).iter().collect::<Vec<_>>(), [TenantKey(1)]);
    }

    #[test]
    fn what_was_narrowed_is_refused_at_once_and_excused_for_a_while() {
        let edge = Edge::new(EdgeKey(0), Label::parse("e").unwrap(), NodeId::parse("r/a").unwrap());
        let (one, two) = (TenantKey(1), TenantKey(2));
        let version = edge.version();
        edge.set_effective(TenantSet::from_iter([one, two]), true);
        assert_ne!(edge.version(), version);
        assert!(!edge.is_excused(Time(0)));
        edge.change(TenantSet::from_iter([one]), TenantSet::from_iter([one]), Time(0));
        assert!(edge.may_send(one) && !edge.may_send(two) && !edge.may_receive(two));
        assert!(edge.is_excused(Time::from_millis(NARROWING_MS_MAX - 1)));
        assert!(!edge.is_excused(Time::from_millis(NARROWING_MS_MAX)), "then it is a lie");
        edge.change(TenantSet::default(), TenantSet::default(), Time(0));
        edge.set_effective(TenantSet::default(), false);
        assert!(!edge.is_excused(Time(0)), "a bridge that has ended excuses nothing");
    }

    #[test]
    fn a_new_edge_carries_nobody() {
        let edge = Edge::new(EdgeKey(0), Label::parse("e").unwrap(), NodeId::parse("r/a").unwrap());
        assert!(!edge.may_send(TenantKey(0)) && !edge.may_receive(TenantKey(0)));
    }
}
