//! What an edge holds of each tenant, charged to that tenant.
//!
//! A tenant's queue looks at what its tenant may hold when a step of bytes has come since it looked last, and charges whole steps.
//! So a message costs a comparison, what is shared with others is touched once in a step, and light traffic touches nothing.

use std::sync::Arc;

use super::super::{DropReason, Drops, QueuedFrame};
use super::{Flow, Hdwrr};
use crate::limits::{MEMORY_STEP_BYTES, SESSION_CONTROL_QUEUE_BYTES_MIN};
use crate::memory::{Charge, Pool};
use crate::tenant::TenantKey;

/// The charge of one tenant's queue.
#[derive(Debug)]
pub(super) struct Share {
    charge: Charge,
    /// What may come before it looks again.
    credit: usize,
}

impl Share {
    const fn new(charge: Charge) -> Self {
        Self { charge, credit: 0 }
    }

    /// Whether the tenant may not hold `bytes` more here.
    fn is_short(&mut self, held: usize, bytes: usize, least: usize) -> bool {
        if let Some(left) = self.credit.checked_sub(bytes) {
            self.credit = left;
            return false;
        }
        let room = self.charge.account().room().max(least);
        let left = room.checked_sub(held + bytes);
        self.credit = left.map_or(0, |left| left.min(MEMORY_STEP_BYTES));
        left.is_none()
    }
}

impl Flow {
    /// Whether there is no memory for a frame. A tenant that has nothing queued is given room for any one frame, so that all go
    /// on; records and answers of brokers have the room that answers to clients have.
    pub(super) fn is_short_of(&mut self, frame: &QueuedFrame, tenant: TenantKey, pool: Option<&Arc<Pool>>) -> bool {
        if self.held + frame.held() <= MEMORY_STEP_BYTES {
            return false;
        }
        self.open_share(tenant, pool);
        let least = if frame.pinned { SESSION_CONTROL_QUEUE_BYTES_MIN } else { MEMORY_STEP_BYTES };
        self.held > 0 && self.share.as_mut().is_some_and(|share| share.is_short(self.held, frame.held(), least))
    }

    /// Charges what is held now.
    pub(super) fn charge(&mut self, tenant: TenantKey, pool: Option<&Arc<Pool>>) {
        let held = self.held;
        if held >= MEMORY_STEP_BYTES {
            self.open_share(tenant, pool);
        }
        if let Some(share) = &mut self.share {
            share.charge.settle(held);
        }
    }

    fn open_share(&mut self, tenant: TenantKey, pool: Option<&Arc<Pool>>) {
        if self.share.is_none() {
            let account = pool.and_then(|pool| pool.account(tenant));
            self.share = account.map(|account| Share::new(Charge::new(account)));
        }
    }
}

impl Hdwrr {
    /// What is queued is charged to its tenants' accounts in this pool; to be called before anything is.
    pub fn charge_to(&mut self, pool: Arc<Pool>) {
        self.pool = Some(pool);
    }

    /// Why the last push has lost something.
    #[must_use]
    pub const fn lost_by(&self) -> DropReason {
        if self.is_short { DropReason::Memory } else { DropReason::LaneFull }
    }

    /// Gives up what is queued in the lossy lanes of tenants that hold more than they may, beyond what they may keep here;
    /// reported as [`DropReason::Memory`].
    pub fn shed(&mut self, drops: &mut Drops) {
        let mut tenants = Vec::new();
        for (tenant, flow) in &self.flows {
            let keep = flow.share.as_ref().map_or(usize::MAX, |share| share.charge.account().keep());
            if flow.held > keep {
                tenants.push((*tenant, keep));
            }
        }
        // The map's order is another in every process.
        tenants.sort_unstable();
        for (tenant, keep) in tenants {
            let Some(flow) = self.flows.get_mut(&tenant) else { continue };
            flow.lanes.shed(keep, Some(tenant), drops);
            self.settle(tenant);
            self.look_after(tenant);
        }
    }
}
