//! A tenant's routing table: which sessions here and which brokers elsewhere want a name.
//!
//! Each tenant has its own. A table is immutable once published; the control half makes the next one with structural
//! sharing, so that one subscription copies a path and never the table. Literal filters are found by one look-up;
//! only a tenant that uses wildcards pays for the trie. It never knows other tenants.

use std::sync::Arc;

use crate::name::{Class, ClassSet, QueueGroup, RawFilter, RawName};
use crate::port::Sub;
use crate::routes::{BrokerIndex, Routes};

mod leaf;
mod matching;
mod tree;
mod trie;

use leaf::Leaf;
pub use matching::{EdgeTargets, GroupMatch, Match, PortTarget};
use trie::Trie;

/// What a remote broker told of one filter; a broker holds at most one entry per distinct value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteInterest {
    /// The broker.
    pub broker: BrokerIndex,
    /// The queue group, `None` for plain subscribers.
    pub queue: Option<QueueGroup>,
    /// The classes wanted.
    pub classes: ClassSet,
    /// Only observers are behind it: they get copies but never count as responders.
    pub observer: bool,
}

/// An immutable routing table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    generation: u64,
    trie: Trie,
    routes: Arc<Routes>,
    in_sync: bool,
    unsynced: Arc<[BrokerIndex]>,
}

impl Table {
    /// Grows by one with every change; cached matches hold for one generation.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the tenant's view of the mesh is complete, so that "nobody wants it" can be believed.
    #[must_use]
    pub const fn in_sync(&self) -> bool {
        self.in_sync
    }

    /// Brokers that have subscribers, and of which it is not known here what these want: they are sent everything.
    #[must_use]
    pub fn unsynced(&self) -> &[BrokerIndex] {
        &self.unsynced
    }

    /// The next hops of this tenant.
    #[must_use]
    pub const fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// How many distinct filters it holds.
    #[must_use]
    pub fn filters(&self) -> usize {
        self.trie.len()
    }

    /// This table with another generation, ready to be changed and published.
    #[must_use]
    pub(crate) fn next(&self) -> Self {
        Self { generation: self.generation + 1, ..self.clone() }
    }

    /// An empty table in its place, for a tenant that has left the bundle.
    #[must_use]
    pub(crate) fn emptied(&self) -> Self {
        Self { generation: self.generation + 1, ..Self::default() }
    }

    pub(crate) fn set_routes(&mut self, routes: Arc<Routes>) {
        self.routes = routes;
    }

    pub(crate) const fn set_in_sync(&mut self, in_sync: bool) {
        self.in_sync = in_sync;
    }

    pub(crate) fn set_unsynced(&mut self, unsynced: Vec<BrokerIndex>) {
        self.unsynced = unsynced.into();
    }

    pub(crate) fn add_local(&mut self, filter: &RawFilter, sub: Arc<Sub>) {
        self.trie.update(filter, |leaf| leaf.insert_local(Arc::clone(&sub)));
    }

    pub(crate) fn remove_local(&mut self, filter: &RawFilter, session: u64, sid: u32) {
        self.trie.update(filter, |leaf| leaf.remove_local(session, sid));
    }

    pub(crate) fn add_remote(&mut self, filter: &RawFilter, interest: &RemoteInterest) {
        self.trie.update(filter, |leaf| leaf.insert_remote(interest));
    }

    pub(crate) fn remove_remote(&mut self, filter: &RawFilter, interest: &RemoteInterest) {
        self.trie.update(filter, |leaf| leaf.remove_remote(interest));
    }

    /// Everybody who wants `raw` in `class`, resolved to sessions, queue groups and next hops.
    #[must_use]
    pub fn find(&self, class: Class, raw: RawName<'_>, section: &crate::bundle::Section) -> Match {
        let mut builder = matching::Builder::new(self, class, raw, section);
        self.trie.walk(raw, &mut |leaf: &Leaf| builder.add(leaf));
        builder.finish()
    }
}

#[cfg(test)]
mod tests;
