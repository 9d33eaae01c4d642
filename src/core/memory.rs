//! Memory that queues may take: one pool for the node, and in it an account for each tenant.
//!
//! Lanes bound what one session or edge holds, but nothing else bounds how many sessions do not read, or how many edges a
//! tenant fills. Each session charges what its lanes hold to its own tenant, in steps of [`MEMORY_STEP_BYTES`], once for a
//! batch and not for a message; so does each edge for every tenant it has something of, each flow of messages that are
//! kept until they are acknowledged, and each session that reads a large message ([`Reading`]). Whoever charges is a holder.
//! When a tenant holds more than it may, those of its holders that hold more than their part of it find their lanes full, by
//! the rule of each class; the others go on as before. When the pool is nearly used up, what a tenant may hold is its part of
//! the pool, so that whoever holds most gives way first. When it is used up, every holder is held to one step.
//!
//! Guarantees: what is charged is given back with the lanes; a tenant below its part is never limited before the pool is
//! used up, but for what it reads, which is half of that; beyond the pool there is at most a step for every holder, what was
//! promised room before, one message of each lane and flow that has nothing else, and one that is read of each tenant. A
//! payload that many wait for is charged to each of them in full.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use parking_lot::RwLock;

use crate::limits::{MEMORY_BYTES_DEFAULT, MEMORY_STEP_BYTES};
use crate::tenant::TenantKey;

mod reading;

pub use reading::{Reading, Room};

/// What the holders of a node and of any one tenant may hold, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBounds {
    /// All of the node together.
    pub node_bytes: usize,
    /// All of one tenant together.
    pub tenant_bytes: usize,
}

impl MemoryBounds {
    /// So much for the node, and half of it for any one tenant.
    #[must_use]
    pub const fn of_node(node_bytes: usize) -> Self {
        Self { node_bytes, tenant_bytes: node_bytes / 2 }
    }
}

impl Default for MemoryBounds {
    fn default() -> Self {
        Self::of_node(MEMORY_BYTES_DEFAULT)
    }
}

/// What all holders of a node hold.
#[derive(Debug)]
pub struct Pool {
    used: AtomicUsize,
    /// What sessions read of it.
    reading: AtomicUsize,
    /// Tenants that hold anything.
    holders: AtomicUsize,
    node_max: AtomicUsize,
    tenant_max: AtomicUsize,
    /// The accounts of tenants by their numbers, for those who know no more of a tenant than that.
    accounts: RwLock<HashMap<TenantKey, Weak<Account>>>,
}

impl Default for Pool {
    fn default() -> Self {
        Self::new(MemoryBounds::default())
    }
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new(bounds: MemoryBounds) -> Self {
        Self {
            used: AtomicUsize::new(0),
            reading: AtomicUsize::new(0),
            holders: AtomicUsize::new(0),
            node_max: AtomicUsize::new(bounds.node_bytes),
            tenant_max: AtomicUsize::new(bounds.tenant_bytes),
            accounts: RwLock::default(),
        }
    }

    /// An account of a tenant, found by its number from now on.
    #[must_use]
    pub fn open(self: &Arc<Self>, tenant: TenantKey) -> Arc<Account> {
        let account = Arc::new(Account::new(Arc::clone(self)));
        self.accounts.write().insert(tenant, Arc::downgrade(&account));
        account
    }

    /// The account of a tenant.
    #[must_use]
    pub fn account(&self, tenant: TenantKey) -> Option<Arc<Account>> {
        self.accounts.read().get(&tenant)?.upgrade()
    }

    /// Changes the bounds; sessions go by them from their next batch on.
    pub fn set(&self, bounds: MemoryBounds) {
        self.node_max.store(bounds.node_bytes, Ordering::Relaxed);
        self.tenant_max.store(bounds.tenant_bytes, Ordering::Relaxed);
    }

    /// The bounds in force.
    #[must_use]
    pub fn bounds(&self) -> MemoryBounds {
        MemoryBounds {
            node_bytes: self.node_max.load(Ordering::Relaxed),
            tenant_bytes: self.tenant_max.load(Ordering::Relaxed),
        }
    }

    /// Bytes charged.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// What one tenant may hold now: its part of the pool where little is left, in any case no more than its bound.
    fn budget(&self, used: usize) -> usize {
        let bounds = self.bounds();
        if used <= bounds.node_bytes / 8 * 7 {
            return bounds.tenant_bytes;
        }
        bounds.tenant_bytes.min(bounds.node_bytes / self.holders.load(Ordering::Relaxed).max(1))
    }
}

/// What the holders of one tenant hold.
#[derive(Debug)]
pub struct Account {
    pool: Arc<Pool>,
    used: AtomicUsize,
    /// What sessions read of it.
    reading: AtomicUsize,
    /// Those that have charged anything.
    holders: AtomicUsize,
    /// What they may hold by the tenant's section, beside what the node lets any tenant have.
    own_max: AtomicUsize,
}

impl Account {
    /// An empty account in a pool, bounded by that alone.
    #[must_use]
    pub const fn new(pool: Arc<Pool>) -> Self {
        let (used, reading, holders) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        Self { pool, used, reading, holders, own_max: AtomicUsize::new(usize::MAX) }
    }

    /// Changes what the tenant's section lets them hold, in bytes; `None` for no bound beside the node's. Sessions go by it from
    /// their next batch on.
    pub fn set_own(&self, bytes: Option<u64>) {
        let bytes = bytes.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        self.own_max.store(bytes, Ordering::Relaxed);
    }

    /// What they may hold together where nothing else is short: the lesser of what the node and the section allow, in bytes.
    #[must_use]
    pub fn max(&self) -> usize {
        self.pool.bounds().tenant_bytes.min(self.own_max.load(Ordering::Relaxed))
    }

    /// Bytes charged.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// What one holder may hold before its lanes count as full; the greatest number where nothing is short.
    #[must_use]
    pub fn room(&self) -> usize {
        let in_all = self.pool.used();
        if in_all >= self.pool.bounds().node_bytes { MEMORY_STEP_BYTES } else { self.part(in_all) }
    }

    /// What one holder may keep that gives nothing off; the greatest number where its tenant holds no more than it may.
    #[must_use]
    pub fn keep(&self) -> usize {
        self.part(self.pool.used())
    }

    fn budget(&self, in_all: usize) -> usize {
        self.pool.budget(in_all).min(self.own_max.load(Ordering::Relaxed))
    }

    fn part(&self, in_all: usize) -> usize {
        let budget = self.budget(in_all);
        if self.used() <= budget {
            return usize::MAX;
        }
        (budget / self.holders.load(Ordering::Relaxed).max(1)).max(MEMORY_STEP_BYTES)
    }

    fn charge(&self, bytes: usize) {
        // Whoever takes the last of it is ordered behind whoever brought the first.
        if self.used.fetch_add(bytes, Ordering::AcqRel) == 0 {
            self.pool.holders.fetch_add(1, Ordering::AcqRel);
        }
        self.pool.used.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: usize) {
        if self.used.fetch_sub(bytes, Ordering::AcqRel) == bytes {
            self.pool.holders.fetch_sub(1, Ordering::AcqRel);
        }
        self.pool.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What one holder has charged to its tenant; given back when it is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    charged: usize,
}

impl Charge {
    /// Nothing yet.
    #[must_use]
    pub const fn new(account: Arc<Account>) -> Self {
        Self { account, charged: 0 }
    }

    /// The tenant's account.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Charges what is held now, in whole steps: less than one costs nothing.
    pub fn settle(&mut self, held: usize) {
        let due = held - held % MEMORY_STEP_BYTES;
        let before = std::mem::replace(&mut self.charged, due);
        if due > before {
            self.account.holders.fetch_add(usize::from(before == 0), Ordering::Relaxed);
            self.account.charge(due - before);
        } else if due < before {
            self.account.holders.fetch_sub(usize::from(due == 0), Ordering::Relaxed);
            self.account.give_back(before - due);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.settle(0);
    }
}

#[cfg(test)]
mod tests;
