//! Control frames for one broker, here or further on.

use std::sync::Arc;

use glocal_core::count::Drop as DropReason;
use glocal_core::limits::CONTROL_BYTES_MAX;
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;
use glocal_wire::control::{Control, Routed};

use super::{Arrivals, BridgeFault, Incoming, Lane};
use crate::driver::Command;
use crate::reliable;
use crate::routed::{Letter, pass_on};
use crate::tally;

impl Lane {
    /// Takes a frame that is for this broker, or passes it on; never back, and only from an origin that can be there.
    pub(super) fn on_routed(
        &self,
        incoming: &Incoming,
        tenant: &Arc<Tenant>,
        routed: Routed,
        now: Time,
        arrivals: &mut Arrivals,
    ) -> Result<(), BridgeFault> {
        let shared = &incoming.shared;
        let counters = tenant.counters().class(self.class);
        let known = |handle| self.brokers.get(&handle).copied();
        let ends = known(routed.target).zip(known(routed.origin));
        let routes = Arc::clone(tenant.table().routes());
        let Some(((target, _), (origin, incarnation))) =
            ends.filter(|(_, (origin, _))| *origin != shared.own && routes.is_behind(incoming.edge.key(), *origin))
        else {
            counters.dropped(DropReason::BadTarget, 1);
            let has_circled = self.has_circled(incoming, tenant, Some(routed.origin), routed.hops);
            return if has_circled { Ok(()) } else { incoming.refuse() };
        };
        if target != shared.own {
            if routes.leads_over(incoming.edge.key(), target) {
                // What the peer has not heard of yet: the way it knows has ended.
                counters.dropped(DropReason::NoRoute, 1);
                return Ok(());
            }
            if !self.class.is_reliable() {
                // It stays behind the messages before it.
                arrivals.batch.push(shared, now);
            }
            pass_on(shared, tenant, self.class, (target, origin, incarnation), routed, now);
            return Ok(());
        }
        match Control::decode(routed.kind, &routed.body, CONTROL_BYTES_MAX) {
            Ok(Some(control)) if !matches!(control, Control::Routed(_)) => {
                let from = (origin, incarnation);
                // What is said of this broker's messages concerns no decision of the control half.
                let left = tally::on_letter(shared, tenant, from, control, now)
                    .and_then(|control| reliable::on_letter(shared, tenant, from, control, now, &mut arrivals.batch));
                let tenant = Arc::clone(tenant);
                let letter = left.map(|control| Command::Letter(Letter { tenant, origin, incarnation, control }));
                arrivals.commands.extend(letter);
                Ok(())
            }
            Ok(None) => Ok(()),
            Ok(Some(_)) | Err(_) => {
                // The origin's fault, not the peer's, which could not know: no reason to close the bridge at once.
                counters.dropped(DropReason::Malformed, 1);
                incoming.refuse()
            }
        }
    }

    /// Whether what came may have passed this broker before. While brokers hold different edges to be up, ways may lead in a
    /// circle, and what comes back is no lie of the peer; from the peer itself it would have come over one hop.
    pub(super) fn has_circled(&self, incoming: &Incoming, tenant: &Tenant, origin: Option<u32>, hops: u8) -> bool {
        let origin = origin.and_then(|handle| self.brokers.get(&handle));
        let is_behind = |origin| tenant.table().routes().is_behind(incoming.edge.key(), origin);
        hops > 1 && origin.is_some_and(|(origin, _)| !is_behind(*origin))
    }
}
