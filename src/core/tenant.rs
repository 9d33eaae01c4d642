//! Tenants as the node holds them: one handle each, with the tenant's own routing table and counters.
//!
//! A session holds its own tenant's handle and nothing else, so an ordinary cross-tenant match cannot be written down.
//! [`Tenants`] is immutable and is replaced as a whole when the bundle changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::ArcSwap;

use crate::bundle::Section;
use crate::count::Counters;
use crate::data::ReplyRoutes;
use crate::name::TenantId;
use crate::table::Table;

/// The node-local number of a tenant; never on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantKey(pub u32);

/// One tenant on this node.
#[derive(Debug)]
pub struct Tenant {
    key: TenantKey,
    section: Arc<Section>,
    table: ArcSwap<Table>,
    counters: Counters,
    replies: ReplyRoutes,
    sessions: AtomicU32,
}

impl Tenant {
    /// A tenant with an empty table.
    #[must_use]
    pub fn new(key: TenantKey, section: Arc<Section>) -> Self {
        Self {
            key,
            section,
            table: ArcSwap::from_pointee(Table::default()),
            counters: Counters::default(),
            replies: ReplyRoutes::default(),
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
    pub fn id(&self) -> &TenantId {
        &self.section.tenant
    }

    /// The tenant's section of the bundle.
    #[must_use]
    pub fn section(&self) -> &Section {
        &self.section
    }

    /// The routing table now.
    #[must_use]
    pub fn table(&self) -> arc_swap::Guard<Arc<Table>> {
        self.table.load()
    }

    /// Publishes a new table; the control half's right alone.
    pub(crate) fn publish(&self, table: Table) {
        self.table.store(Arc::new(table));
    }

    /// The tenant's counters on this node.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counts one more session; `false` when the tenant has as many on this node as its section allows.
    #[must_use]
    pub fn enter(&self) -> bool {
        let max = self.section.sessions_max;
        let more = |sessions: u32| sessions.checked_add(1).filter(|more| max == 0 || *more <= max);
        self.sessions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts one session less, which had entered.
    pub fn leave(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    /// Where replies to remote requesters go.
    #[must_use]
    pub const fn replies(&self) -> &ReplyRoutes {
        &self.replies
    }
}

/// The tenants of the bundle.
#[derive(Debug, Default)]
pub struct Tenants {
    by_id: BTreeMap<TenantId, Arc<Tenant>>,
    by_key: Vec<Arc<Tenant>>,
}

impl Tenants {
    /// A handle per section, numbered in the order given.
    #[must_use]
    pub fn new(sections: impl IntoIterator<Item = Arc<Section>>) -> Self {
        let by_key: Vec<_> = sections
            .into_iter()
            .zip(0u32..)
            .map(|(section, key)| Arc::new(Tenant::new(TenantKey(key), section)))
            .collect();
        let by_id = by_key.iter().map(|t| (t.id().clone(), Arc::clone(t))).collect();
        Self { by_id, by_key }
    }

    /// The tenant with this id.
    #[must_use]
    pub fn by_id(&self, id: &str) -> Option<&Arc<Tenant>> {
        self.by_id.get(id)
    }

    /// The tenant with this number.
    #[must_use]
    pub fn by_key(&self, key: TenantKey) -> Option<&Arc<Tenant>> {
        self.by_key.get(usize::try_from(key.0).ok()?)
    }

    /// Every tenant, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        self.by_id.values()
    }

    /// How many tenants there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_as_many_sessions_as_its_section_allows() {
        let mut section = Section::new(TenantId::parse("acme").unwrap(), [0; 16]);
        let free = Tenant::new(TenantKey(0), Arc::new(section.clone()));
        assert!((0..1000).all(|_| free.enter()), "zero is no limit");
        section.sessions_max = 2;
        let tenant = Tenant::new(TenantKey(0), Arc::new(section));
        assert_eq!([tenant.enter(), tenant.enter(), tenant.enter()], [true, true, false]);
        tenant.leave();
        assert_eq!([tenant.enter(), tenant.enter()], [true, false]);
    }
}
