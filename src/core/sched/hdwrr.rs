//! Hierarchical deficit-weighted round robin: tenants by weight, then each tenant's classes.
//!
//! As in DRR++ and fq_codel (RFC 8290) a newly backlogged tenant is served before the round goes on, for one quantum,
//! and then joins the round's tail. Two things are stricter here. A tenant whose queue empties keeps a place at the tail
//! until that place comes up, so sending in small bursts never earns a second quantum in one round; its unused credit is
//! gone at once, and its debt (less than a packet) with the place. And a quantum is spent to the byte, because slices
//! end inside frames: shares do not depend on frame sizes.
//!
//! Cost: a slice visits its tenant and the places of tenants that emptied since, each of which is visited once. When
//! the last byte leaves, every place is given up.
//!
//! The bound over all lanes is fair as well. When it is reached, a tenant above its part (by weight, among those with a
//! place) is refused by its class's rule; otherwise frames leave from the front of a tenant within a factor of two of
//! the longest queue for its weight, lossy classes first, never a frame that is partly sent. The pushed frame is refused
//! only if nothing of that tenant may be dropped.
//!
//! Where tenants have ways of their own ([`Hdwrr::gate`]), one whose way is not there or is busy is held: what it has
//! stays queued and counts against every bound, it takes no turn, and nobody waits for it. So it is with a tenant above a
//! cap ([`Hdwrr::set_terms`]) until the cap gives more. A tenant with nothing but a class above its cap rests, too; with
//! other classes, these go on. Who pushes never puts a tenant to rest: that is found at its turn, so that whoever drains
//! knows when to come back ([`Hdwrr::wakes_at`]).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use hashbrown::{HashMap, HashSet};

use super::bare::Fifo;
use super::classes::{ClassConfig, ClassQueue, Pressure, quantum};
use super::fattest::Fattest;
use super::lane::Lost;
use super::pace::Pace;
use super::{DropReason, Drops, Lanes, Pushed, QueuedFrame};
use crate::limits::{
    EDGE_BYTES_DEFAULT, EDGE_LANE_BYTES_MAX, LABEL_BYTES_MAX, SLICE_BYTES_MAX, SPARE_LANES_MAX, TENANT_WEIGHT_MAX,
};
use crate::memory::Pool;
use crate::name::Class;
use crate::rate::TokenBucket;
use crate::tenant::TenantKey;
use crate::time::Time;

mod memory;
mod turns;

use memory::Share;

/// Largest slice, leaving room for the header of a slice that opens its lane (DESIGN section 6).
const SLICE_BYTES_DEFAULT: usize = SLICE_BYTES_MAX - 2 - LABEL_BYTES_MAX;
/// Slices per second of a busy slow edge: one lasts half a millisecond (DESIGN section 7).
const SLICES_PER_SECOND: u64 = 2000;

/// Limits and units of one edge's scheduler.
#[derive(Clone, Debug)]
pub struct HdwrrConfig {
    /// Limits and weights of every tenant's lanes, and the packet that quanta and slices are measured in.
    pub classes: ClassConfig,
    /// Largest slice; at least one packet, whatever is set.
    pub slice_bytes_max: usize,
    /// What all lanes together may hold, counted like the lane limits.
    pub held_bytes_max: usize,
}

impl Default for HdwrrConfig {
    fn default() -> Self {
        Self {
            classes: ClassConfig::new(EDGE_LANE_BYTES_MAX),
            slice_bytes_max: SLICE_BYTES_DEFAULT,
            held_bytes_max: EDGE_BYTES_DEFAULT,
        }
    }
}

/// One slice of one lane of one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The tenant.
    pub tenant: TenantKey,
    /// The class.
    pub class: Class,
    /// Bytes added to the output; never zero.
    pub bytes: usize,
    /// Whether it begins with the first byte of a frame.
    pub starts_frame: bool,
    /// Whether it ends with the last byte of a frame.
    pub ends_frame: bool,
}

/// What a purge left behind on the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Classes, by index, of which a part of a frame was already sent: their lanes must be reset.
    pub mid_frame: [bool; 4],
}

/// Everything one edge has still to send.
#[derive(Debug)]
pub struct Hdwrr {
    config: HdwrrConfig,
    flows: HashMap<TenantKey, Box<Flow>>,
    /// Tenants that became backlogged and were not served since, oldest first.
    new: VecDeque<TenantKey>,
    /// The round.
    old: VecDeque<TenantKey>,
    /// Weights other than one.
    weights: HashMap<TenantKey, u32>,
    /// Terms other than the default ones.
    paces: HashMap<TenantKey, Box<Pace>>,
    /// Those that rest, by the time until which they do.
    resting: BTreeSet<(Time, TenantKey)>,
    fattest: Fattest,
    shaper: Option<TokenBucket>,
    /// Where what is queued is charged; nowhere without one.
    pool: Option<Arc<Pool>>,
    /// Whether the last frame was refused, or others dropped for it, for want of memory.
    is_short: bool,
    /// Emptied flows for reuse, boxed as in `flows`, so that neither admitting nor forgetting moves lanes.
    #[expect(clippy::vec_box, reason = "the boxes go back into the map")]
    spare: Vec<Box<Flow>>,
    /// The tenants that may take their turns; everybody where there is no gate.
    open: Option<HashSet<TenantKey>>,
    /// Tenants with bytes queued that are neither held nor at rest.
    active: usize,
    /// Weights of all flows.
    weight_sum: u64,
    bytes: usize,
    held: usize,
    /// Everything, in a bare build.
    bare: Fifo,
}

/// One tenant with a place in `new` or `old`.
#[derive(Debug, Default)]
struct Flow {
    lanes: ClassQueue,
    credit: i64,
    weight: u32,
    rank: u8,
    /// As of the last `settle`.
    bytes: usize,
    held: usize,
    /// Whether its tenant takes no turns now.
    is_held: bool,
    /// Until when it takes none since it is above a cap; then it is among the resting.
    rests: Option<Time>,
    /// Whether it has a cap.
    is_capped: bool,
    /// What is charged to the tenant.
    share: Option<Share>,
    /// Whether it lost its place in `new` or `old` while it took no turns.
    is_off: bool,
}

impl Flow {
    /// Whether it counts as active, as of the last `settle`.
    const fn is_active(&self) -> bool {
        self.bytes > 0 && self.takes_turns()
    }

    const fn takes_turns(&self) -> bool {
        !self.is_held && self.rests.is_none()
    }
}

impl Default for Hdwrr {
    fn default() -> Self {
        Self::new(HdwrrConfig::default())
    }
}

impl Hdwrr {
    /// An empty scheduler.
    #[must_use]
    pub fn new(config: HdwrrConfig) -> Self {
        Self {
            config,
            flows: HashMap::new(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            weights: HashMap::new(),
            paces: HashMap::new(),
            resting: BTreeSet::new(),
            fattest: Fattest::default(),
            shaper: None,
            pool: None,
            is_short: false,
            spare: Vec::new(),
            open: None,
            active: 0,
            weight_sum: 0,
            bytes: 0,
            held: 0,
            bare: Fifo::default(),
        }
    }

    /// Queues a frame. What its own lane lost for it is in the result; what other lanes lost, of whatever tenant, is
    /// added to `drops` as `LaneFull`.
    pub fn push(
        &mut self,
        tenant: TenantKey,
        class: Class,
        frame: QueuedFrame,
        now: Time,
        drops: &mut Drops,
    ) -> Pushed {
        if frame.is_empty() {
            return Pushed::Queued;
        }
        if crate::IS_BARE {
            return self.bare.push(tenant, class, frame, self.config.held_bytes_max);
        }
        self.is_short = false;
        if let Some(flow) = self.flows.get_mut(&tenant)
            && flow.is_short_of(&frame, tenant, self.pool.as_ref())
        {
            self.is_short = true;
            let pushed = flow.lanes.push_in_place(&self.config.classes, class, frame, now);
            self.settle(tenant);
            return pushed;
        }
        let mut excess = self.excess(frame.held());
        let mut own = Lost::default();
        if excess > 0 && !self.is_above_part(tenant, frame.held()) {
            own = self.make_room(frame.held(), (tenant, class), drops);
            if self.excess(frame.held()) > 0 {
                drops.add(Some(tenant), class, DropReason::LaneFull, own);
                return Pushed::DroppedNewest;
            }
            excess = 0;
        }
        if excess > 0 && !self.flows.contains_key(&tenant) {
            return Pushed::DroppedNewest;
        }
        self.admit(tenant);
        let Some(flow) = self.flows.get_mut(&tenant) else { return Pushed::DroppedNewest };
        let pressure = Pressure { excess, is_short: self.held > self.config.held_bytes_max / 2 };
        let pushed = flow.lanes.push(&self.config.classes, class, frame, pressure, now);
        let rests = flow.rests.is_some();
        self.settle(tenant);
        if rests {
            self.look_again(tenant, now);
        }
        if pushed == Pushed::Queued {
            return own.pushed();
        }
        drops.add(Some(tenant), class, DropReason::LaneFull, own);
        pushed
    }

    /// Moves the next slice to the end of `out`; drops of aged frames are added to `drops`. `None` when nothing is left,
    /// when the edge is shaped and [`Self::ready_at`] says until when, or when all are above their caps, see [`Self::wakes_at`].
    pub fn next_slice(&mut self, now: Time, out: &mut Vec<Bytes>, drops: &mut Drops) -> Option<Slice> {
        self.wake(now);
        if self.shaper.as_mut().is_some_and(|bucket| bucket.wait_micros(1, now) > 0) {
            return None;
        }
        let packet_bytes = self.config.classes.packet_bytes.max(1);
        let slice_bytes_max = self.config.slice_bytes_max.max(packet_bytes);
        if crate::IS_BARE {
            return self.bare.next_slice(slice_bytes_max, out);
        }
        loop {
            let tenant = self.new.front().or_else(|| self.old.front()).copied()?;
            let Some(flow) = self.flows.get_mut(&tenant).filter(|flow| !flow.lanes.is_empty()) else {
                self.forget(tenant);
                continue;
            };
            if !flow.takes_turns() {
                flow.is_off = true;
                self.pop_front();
                continue;
            }
            if flow.is_capped
                && let Some(until) = self.paces.get(&tenant).and_then(|pace| pace.settle(&mut flow.lanes, now))
            {
                self.rest(tenant, until);
                continue;
            }
            let alone = self.active == 1;
            if flow.credit <= 0 && !alone {
                self.requeue(tenant);
                continue;
            }
            let credit = usize::try_from(flow.credit).unwrap_or(0).max(packet_bytes);
            let budget = if alone { slice_bytes_max } else { credit.min(slice_bytes_max) };
            let slice = flow.lanes.pop_slice(&self.config.classes, budget, Some(tenant), now, out, drops);
            let spent = slice.map_or(0, |slice| i64::try_from(slice.bytes).unwrap_or(i64::MAX));
            if flow.is_capped
                && let (Some(slice), Some(pace)) = (slice, self.paces.get_mut(&tenant))
            {
                pace.charge(slice.class, slice.bytes, now);
            }
            // Debt against nobody is forgotten: the next tenant to come is served at once anyway.
            flow.credit = if alone { 0 } else { flow.credit.saturating_sub(spent) };
            let ends_turn = flow.credit <= 0 || flow.lanes.is_empty();
            self.settle(tenant);
            if ends_turn {
                self.requeue(tenant);
            }
            if self.active == 0 {
                self.forget_all();
            }
            if let Some(slice) = slice {
                self.charge(slice.bytes, now);
                return Some(Slice {
                    tenant,
                    class: slice.class,
                    bytes: slice.bytes,
                    starts_frame: slice.starts_frame,
                    ends_frame: slice.ends_frame,
                });
            }
        }
    }

    /// When a shaped edge with bytes queued may send again; `None` when it may now, or when there is nothing to send.
    pub fn ready_at(&mut self, now: Time) -> Option<Time> {
        let bucket = self.shaper.as_mut().filter(|_| self.active > 0)?;
        let wait = bucket.wait_micros(1, now);
        (wait > 0).then(|| now.plus_micros(wait))
    }

    /// Charges bytes sent beside the lanes (control, headers) to the shaped rate.
    pub fn charge(&mut self, bytes: usize, now: Time) {
        if let Some(bucket) = &mut self.shaper {
            bucket.charge(bytes as u64, now);
        }
    }

    /// Shapes the edge to the rate of a bucket of bytes, or no longer.
    pub fn set_shaper(&mut self, shaper: Option<TokenBucket>) {
        self.shaper = shaper;
    }

    /// The rate the edge is shaped to, in bytes per second.
    #[must_use]
    pub fn shaped_rate(&self) -> Option<u64> {
        self.shaper.as_ref().map(TokenBucket::rate)
    }

    /// The packet that quanta are measured in, in bytes.
    #[must_use]
    pub const fn packet_bytes(&self) -> usize {
        self.config.classes.packet_bytes
    }

    /// Fits slices to the edge's rate: half a millisecond, at least a packet, at most what the wire allows. Returns what the
    /// rate gives in half a millisecond, in bytes.
    pub fn set_rate(&mut self, bytes_per_second: u64) -> usize {
        let bytes = usize::try_from(bytes_per_second / SLICES_PER_SECOND).unwrap_or(usize::MAX);
        self.config.slice_bytes_max = bytes.min(SLICE_BYTES_DEFAULT).max(self.config.classes.packet_bytes);
        bytes
    }

    /// Changes what each lane, and all lanes together, may hold. What is queued stays; the rule of a class applies to what comes.
    pub const fn set_limits(&mut self, lane_bytes_max: usize, held_bytes_max: usize) {
        self.config.classes.lane_bytes_max = [lane_bytes_max; 4];
        self.config.held_bytes_max = held_bytes_max;
    }

    /// Changes the packet that quanta are measured in, as the path's datagram size is learned.
    pub fn set_packet_bytes(&mut self, packet_bytes: usize) {
        self.config.classes.packet_bytes = packet_bytes.clamp(1, SLICE_BYTES_DEFAULT);
    }

    /// Changes the weights of the classes, for every tenant.
    pub fn set_class_weights(&mut self, weights: [u32; 4]) {
        self.config.classes.weights = weights;
    }

    /// Changes a tenant's weight, from its next turn on. Zero counts as one.
    pub fn set_weight(&mut self, tenant: TenantKey, weight: u32) {
        let weight = weight.clamp(1, TENANT_WEIGHT_MAX);
        if weight == 1 {
            self.weights.remove(&tenant);
        } else {
            self.weights.insert(tenant, weight);
        }
        if let Some(flow) = self.flows.get_mut(&tenant) {
            self.weight_sum = self.weight_sum - u64::from(flow.weight) + u64::from(weight);
            flow.weight = weight;
            self.settle(tenant);
        }
    }

    /// Drops all that is queued for a tenant, reported as `Gone`.
    pub fn purge(&mut self, tenant: TenantKey, drops: &mut Drops) -> Purged {
        let Some(flow) = self.flows.get_mut(&tenant) else { return Purged::default() };
        let purged = Purged { mid_frame: flow.lanes.mid_frame() };
        flow.lanes.clear(Some(tenant), drops);
        self.settle(tenant);
        self.look_after(tenant);
        purged
    }

    /// Gives up the places of those who have nothing queued any more, as far as nobody would see it.
    fn look_after(&mut self, tenant: TenantKey) {
        if self.flows.get(&tenant).is_some_and(|flow| flow.is_off && flow.lanes.is_empty()) {
            self.remove(tenant);
        }
        if self.active == 0 {
            self.forget_all();
        }
    }

    /// Bytes queued for all tenants.
    #[must_use]
    pub const fn backlog_bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes queued for one tenant.
    #[must_use]
    pub fn tenant_backlog(&self, tenant: TenantKey) -> usize {
        self.flows.get(&tenant).map_or(0, |flow| flow.bytes)
    }

    /// Bytes queued in one lane.
    #[must_use]
    pub fn lane_backlog(&self, tenant: TenantKey, class: Class) -> usize {
        self.flows.get(&tenant).map_or(0, |flow| flow.lanes.lane(class).bytes())
    }

    /// When the frame was queued that leaves a lane next, or has left in part.
    #[must_use]
    pub fn lane_since(&self, tenant: TenantKey, class: Class) -> Option<Time> {
        self.flows.get(&tenant).and_then(|flow| flow.lanes.lane(class).since())
    }

    /// What all lanes hold against the bound: bytes and the bookkeeping of every frame.
    #[must_use]
    pub const fn held_bytes(&self) -> usize {
        self.held
    }

    /// Tenants that cost memory: those with bytes queued, and those that emptied within the current round.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.flows.len()
    }

    fn excess(&self, held: usize) -> usize {
        (self.held + held).saturating_sub(self.config.held_bytes_max)
    }

    /// Whether the tenant would hold more than its part of the bound with `held` bytes more.
    fn is_above_part(&self, tenant: TenantKey, held: usize) -> bool {
        let flow = self.flows.get(&tenant);
        let weight = flow.map_or_else(|| self.weight(tenant), |flow| flow.weight);
        let weight_sum = self.weight_sum + if flow.is_some() { 0 } else { u64::from(weight) };
        let total = (flow.map_or(0, |flow| flow.held) + held) as u128;
        total * u128::from(weight_sum) > self.config.held_bytes_max as u128 * u128::from(weight)
    }

    /// Makes room at the cost of a queue that is among the longest, and returns what the lane lost that it is for, where that
    /// is such a one and of a lossy class.
    fn make_room(&mut self, held: usize, own: (TenantKey, Class), drops: &mut Drops) -> Lost {
        let mut lost_itself = Lost::default();
        while self.excess(held) > 0
            && let Some(tenant) = self.fattest.top()
            && let Some(flow) = self.flows.get_mut(&tenant)
            && let Some((class, lost)) = flow.lanes.drop_for_others()
        {
            if (tenant, class) == own && !class.is_reliable() {
                lost_itself += lost;
            } else {
                drops.add(Some(tenant), class, DropReason::LaneFull, lost);
            }
            self.settle(tenant);
        }
        lost_itself
    }

    /// A tenant's weight, at least one.
    #[must_use]
    pub fn weight(&self, tenant: TenantKey) -> u32 {
        self.weights.get(&tenant).copied().unwrap_or(1)
    }

    /// Gives a tenant without a place one among the new.
    fn admit(&mut self, tenant: TenantKey) {
        if self.flows.contains_key(&tenant) {
            return;
        }
        let mut flow = self.spare.pop().unwrap_or_default();
        flow.is_held = self.open.as_ref().is_some_and(|open| !open.contains(&tenant));
        flow.is_off = false;
        let pace = self.paces.get(&tenant).map(|pace| pace.terms());
        flow.agree(pace);
        flow.weight = self.weight(tenant);
        flow.credit = quantum(flow.weight, self.config.classes.packet_bytes);
        self.weight_sum += u64::from(flow.weight);
        self.flows.insert(tenant, flow);
        self.new.push_back(tenant);
    }

    /// Brings totals, the count of active tenants and the rank up to date after a tenant's lanes changed.
    fn settle(&mut self, tenant: TenantKey) {
        let Some(flow) = self.flows.get_mut(&tenant) else { return };
        let (bytes, held) = (flow.lanes.bytes(), flow.lanes.held());
        self.bytes = self.bytes - flow.bytes + bytes;
        self.held = self.held - flow.held + held;
        let was_active = flow.is_active();
        (flow.bytes, flow.held) = (bytes, held);
        flow.charge(tenant, self.pool.as_ref());
        self.active = self.active + usize::from(flow.is_active()) - usize::from(was_active);
        let rank = Fattest::rank(held, flow.weight);
        if rank != flow.rank {
            self.fattest.set(tenant, flow.rank, rank);
            flow.rank = rank;
        }
    }

    /// Ends the turn of the tenant at the front: to the round's tail with the next turn's quantum. Unused credit is gone.
    fn requeue(&mut self, tenant: TenantKey) {
        self.pop_front();
        if let Some(flow) = self.flows.get_mut(&tenant) {
            flow.credit = flow.credit.min(0).saturating_add(quantum(flow.weight, self.config.classes.packet_bytes));
            self.old.push_back(tenant);
        }
    }

    /// Takes the empty tenant at the front off the round.
    fn forget(&mut self, tenant: TenantKey) {
        self.pop_front();
        self.remove(tenant);
    }

    fn remove(&mut self, tenant: TenantKey) {
        if let Some(mut flow) = self.flows.remove(&tenant) {
            if let Some(until) = flow.rests.take() {
                self.resting.remove(&(until, tenant));
            }
            flow.share = None;
            self.weight_sum -= u64::from(flow.weight);
            if self.spare.len() < SPARE_LANES_MAX {
                self.spare.push(flow);
            }
        }
    }

    fn forget_all(&mut self) {
        while let Some(tenant) = self.new.front().or_else(|| self.old.front()).copied() {
            match self.flows.get_mut(&tenant).filter(|flow| !flow.lanes.is_empty()) {
                // Only those that take no turns have anything left.
                Some(flow) => {
                    flow.is_off = true;
                    self.pop_front();
                }
                None => self.forget(tenant),
            }
        }
        self.flows.shrink_to(SPARE_LANES_MAX);
        self.new.shrink_to(SPARE_LANES_MAX);
        self.old.shrink_to(SPARE_LANES_MAX);
    }

    /// Checks what must hold between calls.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let lanes = || self.flows.values().map(|flow| &flow.lanes);
        assert_eq!(
            self.active,
            self.flows.values().filter(|flow| flow.takes_turns() && !flow.lanes.is_empty()).count()
        );
        assert_eq!(self.bytes, lanes().map(ClassQueue::bytes).sum::<usize>());
        assert_eq!(self.held, lanes().map(ClassQueue::held).sum::<usize>());
        let off = self.flows.values().filter(|flow| flow.is_off).count();
        assert_eq!(self.flows.len(), self.new.len() + self.old.len() + off);
        assert!(self.new.iter().chain(&self.old).all(|tenant| self.flows.contains_key(tenant)));
        assert_eq!(self.weight_sum, self.flows.values().map(|flow| u64::from(flow.weight)).sum::<u64>());
        assert_eq!(self.fattest.len(), self.flows.values().filter(|flow| flow.rank > 0).count());
        assert!(self.active > 0 || self.flows.values().all(|flow| !flow.takes_turns()));
        let resting = self.flows.iter().filter_map(|(tenant, flow)| Some((flow.rests?, *tenant)));
        assert_eq!(self.resting, resting.collect());
    }

    fn pop_front(&mut self) {
        if self.new.pop_front().is_none() {
            self.old.pop_front();
        }
    }
}

impl Lanes for Hdwrr {
    /// Whether there is nothing to take: what is held or rests does not count.
    fn is_empty(&self) -> bool {
        self.active == 0 && self.bare.is_empty()
    }
}
