//! Tenants as the node holds them: one handle each, with the tenant's own routing table and counters.
//!
//! A session holds its own tenant's handle and nothing else, so an ordinary cross-tenant match cannot be written down.
//! [`Tenants`] is immutable and is replaced as a whole when the bundle changes. A tenant keeps its number and its handle for
//! the life of the node: numbers of tenants that have left the bundle are given to nobody else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};

use crate::bundle::Section;
use crate::count::Counters;
use crate::data::ReplyRoutes;
use crate::limits::TENANT_KEYS_MAX;
use crate::memory::{Account, MemoryBounds, Pool};
use crate::name::TenantId;
use crate::rate::{Ingress, RateBounds};
use crate::table::Table;
use crate::tally::Tallies;

/// The node-local number of a tenant; never on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantKey(pub u32);

/// One tenant on this node.
#[derive(Debug)]
pub struct Tenant {
    key: TenantKey,
    id: TenantId,
    section: ArcSwap<Section>,
    table: ArcSwap<Table>,
    /// The table's generation, set when it is in its place.
    generation: AtomicU64,
    counters: Counters,
    replies: ReplyRoutes,
    tallies: Tallies,
    sessions: AtomicU32,
    ingress: Arc<Ingress>,
    memory: Arc<Account>,
}

impl Tenant {
    /// A tenant with an empty table, whose sessions hold what they hold from this pool.
    #[must_use]
    pub fn new(key: TenantKey, section: Arc<Section>, pool: &Arc<Pool>) -> Self {
        let memory = pool.open(key);
        memory.set_own(section.memory_bytes);
        Self {
            key,
            id: section.tenant.clone(),
            ingress: Arc::new(Ingress::new(section.limits)),
            memory,
            section: ArcSwap::new(section),
            table: ArcSwap::from_pointee(Table::default()),
            generation: AtomicU64::new(Table::default().generation()),
            counters: Counters::default(),
            replies: ReplyRoutes::default(),
            tallies: Tallies::default(),
            sessions: AtomicU32::new(0),
        }
    }

    /// The node-local number.
    #[must_use]
    pub const fn key(&self) -> TenantKey {
        self.key
    }

    /// The tenant's id.
    #[must_use]
    pub const fn id(&self) -> &TenantId {
        &self.id
    }

    /// The tenant's section of the bundle in force; the last one it had, once it has left the bundle.
    #[must_use]
    pub fn section(&self) -> Guard<Arc<Section>> {
        self.section.load()
    }

    /// The routing table now.
    #[must_use]
    pub fn table(&self) -> Guard<Arc<Table>> {
        self.table.load()
    }

    /// Publishes a new table; the control half's right alone.
    pub(crate) fn publish(&self, table: Table) {
        let generation = table.generation();
        self.table.store(Arc::new(table));
        self.generation.store(generation, Ordering::Release);
    }

    /// The generation of the table now: what was found in a table holds as long as it is of this one.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The tenant's counters on this node.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counts one more session; `false` when the tenant has as many on this node as its section allows.
    #[must_use]
    pub fn enter(&self) -> bool {
        let max = self.section.load().sessions_max;
        let more = |sessions: u32| sessions.checked_add(1).filter(|more| max == 0 || *more <= max);
        self.sessions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts one session less, which had entered.
    pub fn leave(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    /// What its sessions may publish.
    #[must_use]
    pub const fn ingress(&self) -> &Arc<Ingress> {
        &self.ingress
    }

    /// What its sessions hold, what edges hold of it, and what is kept of it until it is acknowledged.
    #[must_use]
    pub const fn memory(&self) -> &Arc<Account> {
        &self.memory
    }

    /// What became of copies that nobody acknowledges.
    #[must_use]
    pub const fn tallies(&self) -> &Tallies {
        &self.tallies
    }

    /// Where replies to remote requesters go.
    #[must_use]
    pub const fn replies(&self) -> &ReplyRoutes {
        &self.replies
    }
}

/// The tenants of the bundle, and the numbers of those that have left it.
#[derive(Debug, Default)]
pub struct Tenants {
    by_id: BTreeMap<TenantId, Arc<Tenant>>,
    /// Every tenant since the node's start, in the order of their numbers.
    by_key: Vec<Arc<Tenant>>,
    /// Those that are not in the bundle any more.
    gone: BTreeMap<TenantId, TenantKey>,
    /// What this broker lets any of them have.
    bounds: RateBounds,
    /// What all their sessions hold together.
    pool: Arc<Pool>,
}

/// More tenants have come and gone than one life of a node numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {TENANT_KEYS_MAX} tenants have come and gone: restart the node")]
pub struct TooManyTenants;

impl Tenants {
    /// A handle per section, numbered in the order given.
    #[must_use]
    pub fn new(sections: impl IntoIterator<Item = Arc<Section>>) -> Self {
        let pool = Arc::default();
        let by_key: Vec<_> = sections
            .into_iter()
            .zip(0u32..)
            .map(|(section, key)| Arc::new(Tenant::new(TenantKey(key), section, &pool)))
            .collect();
        let by_id = by_key.iter().map(|t| (t.id().clone(), Arc::clone(t))).collect();
        Self { by_id, by_key, gone: BTreeMap::new(), bounds: RateBounds::default(), pool }
    }

    /// The tenants of a newer bundle. Whoever had a number keeps it, with table and counters, and gets its new section at
    /// once; tenants that are new get the next numbers; those that are missing lose their names here, and nothing else.
    ///
    /// # Errors
    /// [`TooManyTenants`]; nothing has changed then.
    pub fn renew(&self, sections: impl IntoIterator<Item = Arc<Section>>) -> Result<Self, TooManyTenants> {
        let mut by_key = self.by_key.clone();
        let mut by_id = BTreeMap::new();
        let mut renewed = Vec::new();
        for section in sections {
            let known = self.ever(section.tenant.as_str());
            let tenant = match known {
                Some(tenant) => {
                    renewed.push((Arc::clone(tenant), section));
                    Arc::clone(tenant)
                }
                None => {
                    let key = u32::try_from(by_key.len()).ok().filter(|_| by_key.len() < TENANT_KEYS_MAX);
                    let tenant = Arc::new(Tenant::new(TenantKey(key.ok_or(TooManyTenants)?), section, &self.pool));
                    by_key.push(Arc::clone(&tenant));
                    tenant
                }
            };
            by_id.insert(tenant.id().clone(), tenant);
        }
        for (tenant, section) in renewed {
            tenant.memory.set_own(section.memory_bytes);
            tenant.section.store(section);
        }
        let gone = by_key.iter().filter(|t| !by_id.contains_key(t.id())).map(|t| (t.id().clone(), t.key())).collect();
        Ok(Self { by_id, by_key, gone, bounds: self.bounds, pool: Arc::clone(&self.pool) }.bounded(self.bounds))
    }

    /// The same tenants, none of which may publish more than the bounds of this broker. It holds for sessions that are
    /// connected, too, and for whoever follows by [`Self::renew`].
    #[must_use]
    pub fn bounded(self, bounds: RateBounds) -> Self {
        for tenant in self.by_id.values() {
            tenant.ingress.set(tenant.section.load().limits.within(&bounds));
        }
        Self { bounds, ..self }
    }

    /// What all their sessions hold together.
    #[must_use]
    pub const fn memory(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The same tenants, whose sessions may hold so much. It holds for those that are connected, too.
    #[must_use]
    pub fn holding(self, bounds: MemoryBounds) -> Self {
        self.pool.set(bounds);
        self
    }

    /// The tenant with this id.
    #[must_use]
    pub fn by_id(&self, id: &str) -> Option<&Arc<Tenant>> {
        self.by_id.get(id)
    }

    /// The tenant with this number, also when it has left the bundle.
    #[must_use]
    pub fn by_key(&self, key: TenantKey) -> Option<&Arc<Tenant>> {
        self.by_key.get(usize::try_from(key.0).ok()?)
    }

    /// The tenant with this id, also when it has left the bundle: for what is still on its way.
    #[must_use]
    pub fn ever(&self, id: &str) -> Option<&Arc<Tenant>> {
        self.by_id.get(id).or_else(|| self.by_key(*self.gone.get(id)?))
    }

    /// Every tenant of the bundle, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        self.by_id.values()
    }

    /// How many tenants there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

#[cfg(test)]
mod tests;
