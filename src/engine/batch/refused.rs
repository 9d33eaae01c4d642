//! Frames of reliable classes that found no room on an edge.

use std::sync::Arc;

use glocal_core::name::Class;
use glocal_core::routes::BrokerIndex;
use glocal_core::tenant::Tenant;

use crate::link::Handles;

/// A frame for an edge in a reliable class that found no room.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) tenant: Arc<Tenant>,
    pub(super) class: Class,
    pub(super) origin: BrokerIndex,
    pub(super) incarnation: u64,
    pub(super) seq: u64,
}

impl Refused {
    /// Notes a refused frame, but for those that follow another one of the same origin: they are sent again with it.
    pub(super) fn first(
        tenant: Arc<Tenant>,
        class: Class,
        handles: &Handles,
        seq: u64,
        last: Option<&Self>,
    ) -> Option<Self> {
        let (origin, incarnation) = *handles.brokers.first()?;
        let follows = |last: &Self| {
            (last.origin, last.incarnation, last.class) == (origin, incarnation, class)
                && Arc::ptr_eq(&last.tenant, &tenant)
                && last.seq <= seq
        };
        (!last.is_some_and(follows)).then_some(Self { tenant, class, origin, incarnation, seq })
    }
}
