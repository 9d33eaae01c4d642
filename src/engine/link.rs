//! Links: an edge with everything queued for it.
//!
//! Frames in a lane speak of brokers and senders by handle. A link announces each handle in the lane before the first
//! frame that uses it, under the same lock, as a frame that is never dropped; so a receiver can always resolve what it
//! reads, and a lane that is reset or refilled starts from nothing.

use std::sync::Arc;

use bytes::BytesMut;
use glocal_core::count::Drop as DropReason;
use glocal_core::edge::Edge;
use glocal_core::inbox::Inbox;
use glocal_core::limits::LANE_HANDLES_MAX;
use glocal_core::name::Class;
use glocal_core::routes::{BrokerIndex, Brokers};
use glocal_core::sched::{Drops, Hdwrr, HdwrrConfig, Lanes, Pushed, QueuedFrame};
use glocal_core::tenant::{TenantKey, Tenants};
use glocal_core::time::Time;
use glocal_wire::control::{AnnounceBroker, Control, ForgetHandles};
use hashbrown::{HashMap, HashSet};

use crate::link_state::Outbox;
use crate::sender::Sender;

/// One edge with its egress.
#[derive(Debug)]
pub struct Link {
    edge: Arc<Edge>,
    inbox: Inbox<EdgeLanes>,
    outbox: Inbox<Outbox>,
}

impl Link {
    /// A link with nothing queued.
    #[must_use]
    pub fn new(edge: Arc<Edge>, config: HdwrrConfig) -> Self {
        Self { edge, inbox: Inbox::new(EdgeLanes::new(config)), outbox: Inbox::new(Outbox::default()) }
    }

    /// The edge.
    #[must_use]
    pub const fn edge(&self) -> &Arc<Edge> {
        &self.edge
    }

    /// What is queued.
    #[must_use]
    pub const fn inbox(&self) -> &Inbox<EdgeLanes> {
        &self.inbox
    }

    /// What waits for the control stream.
    #[must_use]
    pub const fn outbox(&self) -> &Inbox<Outbox> {
        &self.outbox
    }
}

/// The handles a frame uses.
#[derive(Clone, Debug, Default)]
pub struct Handles {
    /// Brokers with their incarnations; zero where only the name matters.
    pub brokers: smallvec::SmallVec<[(BrokerIndex, u64); 3]>,
    /// The sender.
    pub sender: Option<Arc<Sender>>,
}

impl Handles {
    /// Whether they are those of a sender and these brokers, in this order.
    #[must_use]
    pub fn are(&self, sender: &Arc<Sender>, brokers: impl Iterator<Item = (BrokerIndex, u64)>) -> bool {
        self.sender.as_ref().is_some_and(|own| Arc::ptr_eq(own, sender)) && self.brokers.iter().copied().eq(brokers)
    }
}

#[derive(Debug, Default)]
struct Announced {
    brokers: HashMap<u32, u64>,
    senders: HashSet<u32>,
}

impl Announced {
    fn knows_broker(&self, handle: u32, incarnation: u64) -> bool {
        self.brokers.get(&handle).is_some_and(|life| *life >= incarnation)
    }
}

/// The lanes of one edge, with what was announced in each.
#[derive(Debug)]
pub struct EdgeLanes {
    sched: Hdwrr,
    announced: HashMap<(TenantKey, Class), Announced>,
    drops: Drops,
    displaced: Vec<(TenantKey, Class, DropReason, u64)>,
    /// Frames lost here since the start, by reason; a place is made at its first loss.
    lost: Lost,
    /// Tenants whose lanes were emptied by [`Self::purge`] and are not reset on the wire yet.
    purged: Vec<TenantKey>,
}

impl Lanes for EdgeLanes {
    fn is_empty(&self) -> bool {
        self.sched.is_empty()
    }
}

impl EdgeLanes {
    /// Empty lanes.
    #[must_use]
    pub fn new(config: HdwrrConfig) -> Self {
        Self {
            sched: Hdwrr::new(config),
            announced: HashMap::new(),
            drops: Drops::new(),
            displaced: Vec::new(),
            lost: HashMap::new(),
            purged: Vec::new(),
        }
    }

    /// The scheduler.
    #[must_use]
    pub const fn sched(&self) -> &Hdwrr {
        &self.sched
    }

    /// The scheduler, to change weights and shaping or to take slices.
    pub const fn sched_mut(&mut self) -> &mut Hdwrr {
        &mut self.sched
    }

    /// Queues one frame after announcing the handles it uses. When the announcement finds no room, neither is queued.
    pub fn push(
        &mut self,
        tenant: TenantKey,
        class: Class,
        frame: QueuedFrame,
        handles: &Handles,
        brokers: &Brokers,
        now: Time,
    ) -> Pushed {
        let announced = self.announce(tenant, class, handles, brokers, now);
        if announced == Pushed::DroppedNewest {
            return announced;
        }
        if let Pushed::DroppedOldest { frames, .. } = announced {
            // Lost to the announcement, not to the frame whose result the caller sees: counted with other lanes' drops.
            self.displaced.push((tenant, class, self.sched.lost_by(), frames));
        }
        self.sched.push(tenant, class, frame, now, &mut self.drops)
    }

    fn announce(&mut self, tenant: TenantKey, class: Class, handles: &Handles, brokers: &Brokers, now: Time) -> Pushed {
        let lane = self.announced.entry((tenant, class)).or_default();
        if handles.brokers.iter().all(|(b, life)| lane.knows_broker(b.0, *life))
            && handles.sender.as_ref().is_none_or(|s| lane.senders.contains(&s.handle()))
        {
            return Pushed::Queued;
        }
        let mut frames = BytesMut::new();
        let fresh = Announced::default();
        let full = lane.senders.len() + lane.brokers.len() + handles.brokers.len() + 1 > LANE_HANDLES_MAX;
        if full {
            let count = u32::try_from(lane.senders.len() + lane.brokers.len()).unwrap_or(u32::MAX);
            append(&mut frames, &ForgetHandles { count }.into());
        }
        let known = if full { &fresh } else { &*lane };
        for (broker, incarnation) in &handles.brokers {
            if let Some(name) = brokers.name(*broker).filter(|_| !known.knows_broker(broker.0, *incarnation)) {
                let body = AnnounceBroker { handle: broker.0, node: name.to_string(), incarnation: *incarnation };
                append(&mut frames, &body.into());
            }
        }
        if let Some(sender) = handles.sender.as_ref().filter(|s| !known.senders.contains(&s.handle())) {
            append(&mut frames, &sender.info().clone().into());
        }
        let pushed = self.sched.push(tenant, class, QueuedFrame::new(frames.freeze()).pinned(), now, &mut self.drops);
        if pushed != Pushed::DroppedNewest {
            if full {
                *lane = fresh;
            }
            for (broker, life) in &handles.brokers {
                let known = lane.brokers.entry(broker.0).or_insert(*life);
                *known = (*known).max(*life);
            }
            lane.senders.extend(handles.sender.iter().map(|s| s.handle()));
        }
        pushed
    }

    /// Forgets what was announced in a lane that is being reset. Only an empty lane may be reset.
    pub fn forget_lane(&mut self, tenant: TenantKey, class: Class) {
        self.announced.remove(&(tenant, class));
    }

    /// Empties everything, as the bridge is gone; drops are counted as [`DropReason::Gone`].
    pub fn clear(&mut self, tenants: &Tenants) {
        let keys: HashSet<TenantKey> = self.announced.keys().map(|(tenant, _)| *tenant).collect();
        for tenant in keys {
            let _ = self.sched.purge(tenant, &mut self.drops);
        }
        self.announced.clear();
        self.purged.clear();
        self.count_drops(tenants);
    }

    /// Empties the lanes of a tenant that the edge no longer allows; counted as [`DropReason::EdgeTenant`]. Whoever writes
    /// the link's streams resets them before anything else of the tenant.
    pub fn purge(&mut self, tenant: TenantKey, tenants: &Tenants) {
        self.count_drops(tenants);
        let _ = self.sched.purge(tenant, &mut self.drops);
        for record in self.drops.drain() {
            count(tenants, &mut self.lost, record.tenant, record.class, DropReason::EdgeTenant, record.frames);
        }
        self.announced.retain(|(t, _), _| *t != tenant);
        if !self.purged.contains(&tenant) {
            self.purged.push(tenant);
        }
    }

    /// The tenants whose lanes are to be reset on the wire.
    pub fn take_purged(&mut self) -> Vec<TenantKey> {
        std::mem::take(&mut self.purged)
    }

    /// Gives every tenant the weight and the terms of its section, from its next turn on.
    pub fn agree(&mut self, tenants: &Tenants, now: Time) {
        for tenant in tenants.iter() {
            let section = tenant.section();
            self.sched.set_weight(tenant.key(), section.weight);
            self.sched.set_terms(tenant.key(), section.terms, now);
        }
    }

    /// Gives up, counted, what is queued of tenants that hold more than they may; see [`Hdwrr::shed`].
    pub fn shed(&mut self, tenants: &Tenants) {
        self.sched.shed(&mut self.drops);
        self.count_drops(tenants);
    }

    /// Takes the next slice; see [`Hdwrr::next_slice`].
    pub fn next_slice(&mut self, now: Time, out: &mut Vec<bytes::Bytes>) -> Option<glocal_core::sched::Slice> {
        self.sched.next_slice(now, out, &mut self.drops)
    }

    /// Counts the drops that have come about.
    pub fn count_drops(&mut self, tenants: &Tenants) {
        for record in self.drops.drain() {
            count(tenants, &mut self.lost, record.tenant, record.class, record.reason, record.frames);
        }
        for (tenant, class, reason, frames) in self.displaced.drain(..) {
            count(tenants, &mut self.lost, Some(tenant), class, reason, frames);
        }
    }

    /// Notes frames of a tenant that were lost at this edge and that the caller counts for the tenant.
    pub(crate) fn note_lost(&mut self, tenant: TenantKey, class: Class, reason: DropReason, frames: u64) {
        note(&mut self.lost, tenant, class, reason, frames);
    }

    /// Frames lost at this edge since the start, by tenant, class and reason, in no order.
    pub fn lost(&self) -> impl Iterator<Item = (TenantKey, Class, &'static str, u64)> + '_ {
        self.lost.iter().map(|((tenant, class, reason), frames)| (*tenant, *class, *reason, *frames))
    }
}

type Lost = HashMap<(TenantKey, Class, &'static str), u64>;

/// Notes a loss for the edge.
fn note(lost: &mut Lost, tenant: TenantKey, class: Class, reason: DropReason, frames: u64) {
    if frames > 0 {
        *lost.entry((tenant, class, reason.code())).or_default() += frames;
    }
}

/// Counts a loss for the tenant, and notes it for the edge.
fn count(tenants: &Tenants, lost: &mut Lost, tenant: Option<TenantKey>, class: Class, reason: DropReason, frames: u64) {
    let Some(key) = tenant else { return };
    if let Some(tenant) = tenants.by_key(key) {
        tenant.counters().class(class).dropped(reason, frames);
    }
    note(lost, key, class, reason, frames);
}

/// Appends a control frame of our own making; one that cannot be encoded is left out, which the encoder's limits rule out.
pub(crate) fn append(out: &mut BytesMut, control: &Control) {
    let encoded = control.encode_into(out);
    debug_assert!(encoded.is_ok(), "own control frames are within their limits: {encoded:?}");
}

#[cfg(test)]
mod tests;
