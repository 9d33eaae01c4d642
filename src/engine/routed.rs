//! Control frames from broker to broker within a tenant, over any number of hops.
//!
//! They travel in the tenant's own `ctrl` lane, at its expense, and over edges that allow it alone. Brokers on the way pass
//! them on without looking inside. They may be lost like any frame: what must arrive is said again by whoever says it.

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use glocal_core::count::Drop as DropReason;
use glocal_core::limits::HOPS_MAX;
use glocal_core::name::Class;
use glocal_core::routes::BrokerIndex;
use glocal_core::sched::{Pushed, QueuedFrame};
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;
use glocal_wire::control::{Control, Routed};

use crate::link::{Handles, append};
use crate::shared::Shared;

/// A control frame that has reached the broker it is for.
#[derive(Clone)]
pub struct Letter {
    /// The tenant of its lane.
    pub tenant: Arc<Tenant>,
    /// The broker it is from.
    pub origin: BrokerIndex,
    /// That broker's life.
    pub incarnation: u64,
    /// What it says.
    pub control: Control,
}

impl fmt::Debug for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tenant, origin, incarnation, control } = self;
        write!(f, "Letter of {} for tenant {}: {control:?}", origin.0, tenant.id())?;
        write!(f, " in life {incarnation}")
    }
}

/// Sends `control` to another broker on behalf of `tenant`. Whether it was queued for the next hop; where it was not, the
/// loss is counted.
pub fn send(shared: &Shared, tenant: &Tenant, target: BrokerIndex, control: &Control, now: Time) -> bool {
    let Ok((kind, body)) = control.to_body() else {
        debug_assert!(false, "own control frames are within their limits: {}", control.name());
        return false;
    };
    let routed = Routed { target: target.0, origin: shared.own.0, hops: 0, kind, body };
    pass_on(shared, tenant, (target, shared.own, shared.incarnation()), routed, now)
}

/// Passes a frame on towards its target, one hop further. Whether it was queued.
pub(crate) fn pass_on(
    shared: &Shared,
    tenant: &Tenant,
    (target, origin, incarnation): (BrokerIndex, BrokerIndex, u64),
    routed: Routed,
    now: Time,
) -> bool {
    let lost = |reason| {
        tenant.counters().class(Class::Ctrl).dropped(reason, 1);
        false
    };
    if routed.hops >= HOPS_MAX {
        return lost(DropReason::HopLimit);
    }
    let routes = Arc::clone(tenant.table().routes());
    let Some(hop) = routes.hop(target) else { return lost(DropReason::NoRoute) };
    let Some(link) = shared.link(hop.edge.key()) else { return lost(DropReason::NoRoute) };
    if !link.edge().may_send(tenant.key()) {
        return lost(DropReason::Unsaid);
    }
    let mut frame = BytesMut::new();
    append(&mut frame, &Routed { target: target.0, origin: origin.0, hops: routed.hops + 1, ..routed }.into());
    let mut handles = Handles::default();
    handles.brokers.push((origin, incarnation));
    handles.brokers.push((target, 0));
    let frame = QueuedFrame::new(frame.freeze()).pinned();
    let brokers = shared.brokers();
    let pushed = link.inbox().push_batch(|lanes| lanes.push(tenant.key(), Class::Ctrl, frame, &handles, &brokers, now));
    match pushed {
        Some(Pushed::DroppedNewest) | None => lost(DropReason::Unsaid),
        Some(_) => true,
    }
}
