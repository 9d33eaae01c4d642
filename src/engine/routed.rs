//! Control frames from broker to broker within a tenant, over any number of hops.
//!
//! They travel in the tenant's own lanes, `ctrl` but for what has to stay behind messages of another class, at its expense,
//! and over edges that allow it alone. Brokers on the way pass
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
    pass_on(shared, tenant, Class::Ctrl, (target, shared.own, shared.incarnation()), routed, now)
}

/// Sends what `make` says to another broker, behind everything that was put into the tenant's lane of `class` for the next
/// hop before; `make` is called under the lock of that lane. Whether it was queued.
pub(crate) fn send_behind(
    shared: &Shared,
    tenant: &Tenant,
    class: Class,
    target: BrokerIndex,
    make: impl FnOnce() -> Control,
    now: Time,
) -> bool {
    let ends = (target, shared.own, shared.incarnation());
    let make = || {
        let (kind, body) = make().to_body().ok()?;
        Some(Routed { target: target.0, origin: shared.own.0, hops: 1, kind, body })
    };
    queue(shared, tenant, class, ends, make, now)
}

/// Passes a frame on towards its target, one hop further, in the tenant's lane of `class`. Whether it was queued.
pub(crate) fn pass_on(
    shared: &Shared,
    tenant: &Tenant,
    class: Class,
    ends: (BrokerIndex, BrokerIndex, u64),
    routed: Routed,
    now: Time,
) -> bool {
    if routed.hops >= HOPS_MAX {
        return lose(tenant, class, DropReason::HopLimit);
    }
    let make = || Some(Routed { target: ends.0.0, origin: ends.1.0, hops: routed.hops + 1, ..routed });
    queue(shared, tenant, class, ends, make, now)
}

/// Counts a frame that goes no further; in the lane of another class it is no message of that class that is lost. `false`.
fn lose(tenant: &Tenant, class: Class, reason: DropReason) -> bool {
    let reason = if class == Class::Ctrl { reason } else { DropReason::Unsaid };
    tenant.counters().class(class).dropped(reason, 1);
    false
}

/// Puts a frame into the lane towards its target. Whether there was room; the loss is counted.
fn queue(
    shared: &Shared,
    tenant: &Tenant,
    class: Class,
    (target, origin, incarnation): (BrokerIndex, BrokerIndex, u64),
    make: impl FnOnce() -> Option<Routed>,
    now: Time,
) -> bool {
    let lost = |reason| lose(tenant, class, reason);
    let routes = Arc::clone(tenant.table().routes());
    let Some(hop) = routes.hop(target) else { return lost(DropReason::NoRoute) };
    let Some(link) = shared.link(hop.edge.key()) else { return lost(DropReason::NoRoute) };
    if !link.edge().may_send(tenant.key()) {
        return lost(DropReason::Unsaid);
    }
    let mut handles = Handles::default();
    handles.brokers.push((origin, incarnation));
    handles.brokers.push((target, 0));
    let brokers = shared.brokers();
    let pushed = link.inbox().push_batch(|lanes| {
        let Some(routed) = make() else { return Pushed::DroppedNewest };
        let mut frame = BytesMut::new();
        append(&mut frame, &routed.into());
        let frame = QueuedFrame::new(frame.freeze()).pinned();
        let pushed = lanes.push(tenant.key(), class, frame, &handles, &brokers, now);
        if let Pushed::DroppedOldest { frames, .. } = pushed {
            let reason = lanes.sched().lost_by();
            lanes.note_lost(tenant.key(), class, reason, frames);
            tenant.counters().class(class).dropped(reason, frames);
        }
        pushed
    });
    match pushed {
        Some(Pushed::DroppedNewest) | None => lost(DropReason::Unsaid),
        Some(Pushed::DroppedOldest { .. } | Pushed::Queued) => true,
    }
}
