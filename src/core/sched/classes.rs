//! The four class lanes of one tenant, shared by deficit round robin in bytes.

use bytes::Bytes;

use super::lane::{Cut, Lane, Lost};
use super::{DropReason, Drops, Lanes, Pushed, QueuedFrame};
use crate::limits::{PACKET_BYTES_DEFAULT, QUEUED_FRAME_OVERHEAD_BYTES};
use crate::name::Class;
use crate::tenant::TenantKey;
use crate::time::Time;

/// Weights of `live`, `ctrl`, `tele` and `bulk` within a tenant: news and control before measurements before files,
/// but a file always moves.
pub const CLASS_WEIGHTS_DEFAULT: [u32; 4] = [4, 4, 2, 1];

/// Limits and weights of class lanes, indexed by class.
#[derive(Clone, Debug)]
pub struct ClassConfig {
    /// Bytes each lane may hold, counting [`QUEUED_FRAME_OVERHEAD_BYTES`] per frame. An empty lane takes any one frame.
    pub lane_bytes_max: [usize; 4],
    /// Weights; zero counts as one.
    pub weights: [u32; 4],
    /// The unit of a quantum, and the least a slice is worth cutting to; at least one.
    pub packet_bytes: usize,
    /// Whether another lane may continue in the middle of a frame. False for a byte stream without slices.
    pub split_frames: bool,
}

impl ClassConfig {
    /// Default weights and packet, the same limit for every lane, frames may be split over slices.
    #[must_use]
    pub const fn new(lane_bytes_max: usize) -> Self {
        Self {
            lane_bytes_max: [lane_bytes_max; 4],
            weights: CLASS_WEIGHTS_DEFAULT,
            packet_bytes: PACKET_BYTES_DEFAULT,
            split_frames: true,
        }
    }

    fn lane_max(&self, class: Class) -> usize {
        self.lane_bytes_max.get(class.index()).copied().unwrap_or(0)
    }

    fn quantum(&self, class: Class) -> i64 {
        quantum(self.weights.get(class.index()).copied().unwrap_or(1), self.packet_bytes)
    }
}

/// Weight times one packet, in bytes of credit.
pub(super) fn quantum(weight: u32, packet_bytes: usize) -> i64 {
    i64::from(weight.max(1)).saturating_mul(i64::try_from(packet_bytes.max(1)).unwrap_or(i64::MAX).min(1 << 24))
}

/// What lies on a lane beside its own limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pressure {
    /// What it must give up besides, where a bound over all lanes is reached.
    pub(super) excess: usize,
    /// Whether memory is short, so that nothing must be kept but what is queued.
    pub(super) is_short: bool,
}

/// One slice of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSlice {
    /// The lane.
    pub class: Class,
    /// Bytes added to the output; never zero.
    pub bytes: usize,
    /// Whether it begins with the first byte of a frame.
    pub starts_frame: bool,
    /// Whether it ends with the last byte of a frame.
    pub ends_frame: bool,
}

/// One tenant's four bounded lanes.
#[derive(Debug)]
pub struct ClassLanes {
    config: ClassConfig,
    queue: ClassQueue,
}

impl ClassLanes {
    /// Empty lanes.
    #[must_use]
    pub fn new(config: ClassConfig) -> Self {
        Self { config, queue: ClassQueue::default() }
    }

    /// Queues a frame, by the rule of its class when the lane is full: `live` drops its oldest (never one that is partly
    /// sent), the others refuse the newest.
    pub fn push(&mut self, class: Class, frame: QueuedFrame, now: Time) -> Pushed {
        self.push_apart(class, frame, false, now)
    }

    /// As [`Self::push`]; where memory `is_short`, a frame that is kept gets memory of its own.
    pub(super) fn push_apart(&mut self, class: Class, frame: QueuedFrame, is_short: bool, now: Time) -> Pushed {
        self.queue.push(&self.config, class, frame, Pressure { excess: 0, is_short }, now)
    }

    /// Queues a frame where no more memory is to be had: a `live` lane gives up twice as much of its oldest as comes, or
    /// all it can; everything else is refused.
    pub(super) fn push_in_place(&mut self, class: Class, frame: QueuedFrame, now: Time) -> Pushed {
        self.queue.push_in_place(&self.config, class, frame, now)
    }

    /// Drops the oldest of the lossy lanes until all lanes hold at most `held_max`, or nothing of that is left.
    pub(super) fn shed(&mut self, held_max: usize, drops: &mut Drops) {
        self.queue.shed(held_max, None, drops);
    }

    /// Bytes in all lanes with the bookkeeping of every frame.
    #[must_use]
    pub fn held(&self) -> usize {
        self.queue.held()
    }

    /// Bytes in one lane with the bookkeeping of every frame.
    #[must_use]
    pub(super) fn lane_held(&self, class: Class) -> usize {
        self.queue.lane(class).held()
    }

    /// Moves the next slice, of one lane and at most `max_bytes`, to the end of `out`. Drops of aged frames are added to
    /// `drops`. `None` when nothing is left (or `max_bytes` is zero).
    pub fn pop_slice(
        &mut self,
        max_bytes: usize,
        now: Time,
        out: &mut Vec<Bytes>,
        drops: &mut Drops,
    ) -> Option<ClassSlice> {
        self.queue.pop_slice(&self.config, max_bytes, None, now, out, drops)
    }

    /// Changes the weights; each class feels it at its next turn.
    pub fn set_weights(&mut self, weights: [u32; 4]) {
        self.config.weights = weights;
    }

    /// Bytes queued in all lanes.
    #[must_use]
    pub fn backlog_bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// Bytes queued in one lane.
    #[must_use]
    pub fn lane_backlog(&self, class: Class) -> usize {
        self.queue.lane(class).bytes()
    }

    /// Whether a frame of `len` bytes would be queued without any drop: reliable publishers wait for it.
    #[must_use]
    pub fn has_room(&self, class: Class, len: usize) -> bool {
        self.queue.has_room(&self.config, class, len)
    }

    /// How much a lane may hold.
    #[must_use]
    pub fn lane_max(&self, class: Class) -> usize {
        self.config.lane_max(class)
    }

    /// How much more a lane takes, in bytes with the bookkeeping of frames; an empty one takes any one frame.
    #[must_use]
    pub fn free(&self, class: Class) -> usize {
        let lane = self.queue.lane(class);
        if lane.is_empty() { usize::MAX } else { self.config.lane_max(class).saturating_sub(lane.held()) }
    }

    /// Whether the last slice ended inside a frame, which without splitting means that only its rest may follow.
    #[must_use]
    pub fn is_mid_frame(&self) -> bool {
        self.queue.lanes.iter().any(Lane::is_mid_frame)
    }

    /// What is left of frames that are partly sent, in bytes.
    #[must_use]
    pub fn unfinished_bytes(&self) -> usize {
        self.queue.lanes.iter().map(Lane::unfinished_bytes).sum()
    }

    /// Drops everything, partly sent frames included, reported as `Gone`.
    pub fn clear(&mut self, drops: &mut Drops) {
        self.queue.clear(None, drops);
    }
}

impl Lanes for ClassLanes {
    fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// The lanes without their configuration, which one scheduler shares among all its tenants.
#[derive(Debug, Default)]
pub(super) struct ClassQueue {
    lanes: [Lane; 4],
    credits: [i64; 4],
    ring: Ring,
    /// The tenant's own weights, where they are not those of everybody.
    weights: Option<[u32; 4]>,
    /// Classes that take no turns now: a bit for each, by index.
    resting: u8,
}

impl ClassQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.iter().all(Lane::is_empty)
    }

    /// Gives the tenant weights of its own, or those of everybody; each class feels it at its next turn.
    pub(super) const fn set_weights(&mut self, weights: Option<[u32; 4]>) {
        self.weights = weights;
    }

    /// Says which classes take no turns. What they have stays queued, and they neither earn nor lose credit.
    pub(super) fn set_resting(&mut self, resting: [bool; 4]) {
        self.resting = Class::ALL.iter().zip(resting).filter(|(_, rests)| *rests).fold(0, |set, (c, _)| set | bit(*c));
    }

    /// Whether a class has something that is to wait.
    pub(super) fn rests(&self, class: Class) -> bool {
        self.resting & bit(class) != 0 && !self.lane(class).is_empty()
    }

    /// Whether a class has something that may go now.
    fn is_ready(&self, class: Class) -> bool {
        self.resting & bit(class) == 0 && !self.lane(class).is_empty()
    }

    fn quantum(&self, config: &ClassConfig, class: Class) -> i64 {
        match self.weights.and_then(|weights| weights.get(class.index()).copied()) {
            Some(weight) => quantum(weight, config.packet_bytes),
            None => config.quantum(class),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.lanes.iter().map(Lane::bytes).sum()
    }

    pub(super) fn held(&self) -> usize {
        self.lanes.iter().map(Lane::held).sum()
    }

    /// Classes whose lane stopped inside a frame.
    pub(super) fn mid_frame(&self) -> [bool; 4] {
        self.lanes.each_ref().map(Lane::is_mid_frame)
    }

    /// Queues a frame. What is kept of many that came together must not keep those that are not: where that is likely, in
    /// lanes that refuse their newest as soon as they are half full, it gets memory of its own.
    pub(super) fn push(
        &mut self,
        config: &ClassConfig,
        class: Class,
        mut frame: QueuedFrame,
        Pressure { excess, is_short }: Pressure,
        now: Time,
    ) -> Pushed {
        if frame.is_empty() {
            return Pushed::Queued;
        }
        let mut lost = Lost::default();
        if !frame.admitted && (excess > 0 || !self.has_room(config, class, frame.len())) {
            let lane = self.lane(class);
            let fits = lane.kept() == 0 || lane.kept() + frame.held() <= config.lane_max(class);
            if class != Class::Live || !fits || lane.held() - lane.kept() < excess {
                return Pushed::DroppedNewest;
            }
            lost = self.drop_until(config, class, frame.len(), lane.held().saturating_sub(excess));
        }
        if is_short || class != Class::Live && self.lane(class).held() > config.lane_max(class) / 2 {
            frame = frame.detached();
        }
        frame.queued = now;
        self.lane_mut(class).push(frame);
        if !self.ring.contains(class) {
            self.ring.push_back(class);
            *self.credit_mut(class) = self.quantum(config, class);
        }
        lost.pushed()
    }

    /// As [`ClassLanes::push_in_place`].
    pub(super) fn push_in_place(
        &mut self,
        config: &ClassConfig,
        class: Class,
        frame: QueuedFrame,
        now: Time,
    ) -> Pushed {
        let lane = self.lane(class);
        let excess = (lane.held() - lane.kept()).min(2 * frame.held());
        if class == Class::Live && excess >= frame.held() {
            self.push(config, class, frame, Pressure { excess, is_short: true }, now)
        } else {
            Pushed::DroppedNewest
        }
    }

    /// As [`ClassLanes::shed`].
    pub(super) fn shed(&mut self, held_max: usize, tenant: Option<TenantKey>, drops: &mut Drops) {
        for class in [Class::Live, Class::Tele] {
            while self.held() > held_max {
                let Some(lost) = self.drop_oldest(class) else { break };
                drops.add(tenant, class, DropReason::Memory, lost);
            }
        }
    }

    pub(super) fn has_room(&self, config: &ClassConfig, class: Class, len: usize) -> bool {
        let lane = self.lane(class);
        lane.is_empty() || lane.held() + len + QUEUED_FRAME_OVERHEAD_BYTES <= config.lane_max(class)
    }

    /// Drops the oldest until the lane holds at most `held_max` and has room. It keeps its turn: a frame follows at once.
    fn drop_until(&mut self, config: &ClassConfig, class: Class, len: usize, held_max: usize) -> Lost {
        let mut lost = Lost::default();
        while self.lane(class).held() > held_max || !self.has_room(config, class, len) {
            let Some(one) = self.lane_mut(class).drop_oldest() else { break };
            lost += one;
        }
        lost
    }

    /// Drops the oldest unpinned frame of `class` that is not partly sent.
    fn drop_oldest(&mut self, class: Class) -> Option<Lost> {
        let lost = self.lane_mut(class).drop_oldest()?;
        if self.is_empty() {
            self.ring = Ring::default();
        } else if self.lane(class).is_empty() && self.credit(class) > 0 {
            self.ring.remove(class);
        }
        Some(lost)
    }

    /// Drops one frame to make room for another tenant: from the longer of the lossy lanes, else of the reliable ones.
    pub(super) fn drop_for_others(&mut self) -> Option<(Class, Lost)> {
        for [first, second] in [[Class::Live, Class::Tele], [Class::Bulk, Class::Ctrl]] {
            let swap = self.lane(first).bytes() < self.lane(second).bytes();
            for class in if swap { [second, first] } else { [first, second] } {
                if let Some(lost) = self.drop_oldest(class) {
                    return Some((class, lost));
                }
            }
        }
        None
    }

    pub(super) fn pop_slice(
        &mut self,
        config: &ClassConfig,
        max_bytes: usize,
        tenant: Option<TenantKey>,
        now: Time,
        out: &mut Vec<Bytes>,
        drops: &mut Drops,
    ) -> Option<ClassSlice> {
        while max_bytes > 0 && Class::ALL.iter().any(|class| self.is_ready(*class)) {
            let class = self.next_class(config)?;
            let alone = self.is_alone();
            let budget = if alone { max_bytes } else { self.budget(config, class).min(max_bytes) };
            let cut = Cut { begin_below: budget, end_at: if config.split_frames { budget } else { max_bytes } };
            let lane = self.lane_mut(class);
            let starts_frame = !lane.is_mid_frame();
            let mut aged = Lost::default();
            let bytes = lane.take(cut, class == Class::Live, now, out, &mut aged);
            let ends_frame = !lane.is_mid_frame();
            let emptied = lane.is_empty();
            drops.add(tenant, class, DropReason::Aged, aged);
            self.spend(class, bytes, emptied);
            if bytes > 0 {
                return Some(ClassSlice { class, bytes, starts_frame, ends_frame });
            }
        }
        None
    }

    /// Charges a slice. Unused credit goes with the backlog; debt keeps its place in the ring until it is paid by the
    /// rounds of the others, else one large frame at a time would take any share.
    fn spend(&mut self, class: Class, bytes: usize, emptied: bool) {
        let spent = i64::try_from(bytes).unwrap_or(i64::MAX);
        let credit = self.credit(class).saturating_sub(spent);
        // Debt against nobody is forgotten: whoever comes next is served at once.
        let others = self.ring.iter().filter(|other| *other != class && !self.rests(*other)).count();
        *self.credit_mut(class) = if others == 0 { 0 } else { credit };
        if self.is_empty() {
            self.ring = Ring::default();
        } else if emptied && credit > 0 {
            self.ring.remove(class);
        }
    }

    pub(super) fn clear(&mut self, tenant: Option<TenantKey>, drops: &mut Drops) {
        for class in Class::ALL {
            let lost = self.lane_mut(class).clear();
            drops.add(tenant, class, DropReason::Gone, lost);
        }
        self.ring = Ring::default();
    }

    pub(super) fn lane(&self, class: Class) -> &Lane {
        let [live, ctrl, tele, bulk] = &self.lanes;
        match class {
            Class::Live => live,
            Class::Ctrl => ctrl,
            Class::Tele => tele,
            Class::Bulk => bulk,
        }
    }

    fn lane_mut(&mut self, class: Class) -> &mut Lane {
        let [live, ctrl, tele, bulk] = &mut self.lanes;
        match class {
            Class::Live => live,
            Class::Ctrl => ctrl,
            Class::Tele => tele,
            Class::Bulk => bulk,
        }
    }

    fn credit_mut(&mut self, class: Class) -> &mut i64 {
        let [live, ctrl, tele, bulk] = &mut self.credits;
        match class {
            Class::Live => live,
            Class::Ctrl => ctrl,
            Class::Tele => tele,
            Class::Bulk => bulk,
        }
    }

    fn credit(&self, class: Class) -> i64 {
        self.credits.get(class.index()).copied().unwrap_or(0)
    }

    fn is_alone(&self) -> bool {
        Class::ALL.iter().filter(|class| self.is_ready(**class)).count() == 1
    }

    /// The lane whose turn it is: the one inside a frame where frames are not split, else the first with credit.
    fn next_class(&mut self, config: &ClassConfig) -> Option<Class> {
        if !config.split_frames
            && let Some(class) = self.ring.iter().find(|class| self.lane(*class).is_mid_frame())
        {
            return Some(class);
        }
        self.skip_empty_rounds(config);
        // After that one pass leaves somebody with credit at most one pass away.
        for _ in 0..3 * Class::ALL.len() {
            let class = self.ring.front()?;
            match (self.credit(class) > 0, self.lane(class).is_empty()) {
                _ if self.rests(class) => self.ring.rotate(),
                (true, true) => self.ring.remove(class),
                (true, false) => return Some(class),
                (false, _) => {
                    *self.credit_mut(class) += self.quantum(config, class);
                    self.ring.rotate();
                }
            }
        }
        self.ring.iter().find(|class| self.is_ready(*class))
    }

    /// Grants at once the rounds in which nobody could be served, after slices or frames far larger than a quantum.
    fn skip_empty_rounds(&mut self, config: &ClassConfig) {
        let ring = self.ring;
        let rounds = ring
            .iter()
            .filter(|class| self.is_ready(*class))
            .map(|class| rounds_to_credit(self.credit(class), self.quantum(config, class)))
            .min();
        let skipped = rounds.unwrap_or(0).saturating_sub(1);
        if skipped > 0 {
            for class in ring.iter() {
                let quantum = if self.rests(class) { 0 } else { self.quantum(config, class) };
                *self.credit_mut(class) = self.credit(class).saturating_add(quantum.saturating_mul(skipped));
            }
        }
    }

    fn budget(&self, config: &ClassConfig, class: Class) -> usize {
        usize::try_from(self.credit(class)).unwrap_or(0).max(config.packet_bytes.max(1))
    }
}

/// A class as a bit.
const fn bit(class: Class) -> u8 {
    1 << class.index()
}

/// Quanta needed until the credit is positive; zero when it is.
const fn rounds_to_credit(credit: i64, quantum: i64) -> i64 {
    if credit > 0 { 0 } else { credit.saturating_neg() / quantum + 1 }
}

/// The classes that are backlogged or in debt, in the order of their turns.
#[derive(Clone, Copy, Debug)]
struct Ring {
    turns: [Class; 4],
    len: usize,
}

impl Default for Ring {
    fn default() -> Self {
        Self { turns: Class::ALL, len: 0 }
    }
}

impl Ring {
    fn iter(&self) -> impl Iterator<Item = Class> {
        self.turns.into_iter().take(self.len)
    }

    fn front(&self) -> Option<Class> {
        self.iter().next()
    }

    fn contains(&self, class: Class) -> bool {
        self.iter().any(|other| other == class)
    }

    fn push_back(&mut self, class: Class) {
        if let Some(turn) = self.turns.get_mut(self.len) {
            *turn = class;
            self.len += 1;
        }
    }

    fn rotate(&mut self) {
        if let Some(turns) = self.turns.get_mut(..self.len)
            && !turns.is_empty()
        {
            turns.rotate_left(1);
        }
    }

    fn remove(&mut self, class: Class) {
        let before = *self;
        self.len = 0;
        for other in before.iter().filter(|other| *other != class) {
            self.push_back(other);
        }
    }
}
