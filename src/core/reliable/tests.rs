//! One origin, some targets, and a network that loses, doubles and reorders: exactly once, in order, nothing lost.

use std::sync::Arc;

use proptest::prelude::*;
use smallvec::SmallVec;

use super::Budget;
use super::incoming::{Bringer, Incoming, Place, Verdict};
use super::outgoing::{AckError, Finished, Outgoing, Receipt, Sending, Step, Wanted, Way};
use crate::edge::EdgeKey;
use crate::limits::{
    MEMORY_STEP_BYTES, RELIABLE_EARLY_BYTES_MAX, RELIABLE_EARLY_MESSAGES_MAX, RELIABLE_FLOWS_MAX, RELIABLE_GIVE_UP_MS,
    RELIABLE_IDLE_MS, RELIABLE_KEPT_BYTES_MAX, RELIABLE_NODE_BYTES_MAX, RELIABLE_TICK_MS, RELIABLE_TIMEOUT_MS_FIRST,
    RELIABLE_TIMEOUT_MS_MAX, RELIABLE_TIMEOUT_MS_MIN, RELIABLE_WINDOW_BYTES_FIRST,
};
use crate::memory::{Account, MemoryBounds, Pool};
use crate::name::QueueGroup;
use crate::routes::BrokerIndex;
use crate::time::Time;

mod hostile;

const ORIGIN: BrokerIndex = BrokerIndex(9);
const TARGETS: u32 = 3;
const BYTES: usize = 1_000;

fn budget() -> Budget {
    budget_of(RELIABLE_NODE_BYTES_MAX)
}

/// A budget in a pool of its own.
fn budget_of(bytes: usize) -> Budget {
    let pool = Arc::new(Pool::new(MemoryBounds { node_bytes: bytes, tenant_bytes: bytes }));
    Budget::new([Arc::new(Account::new(pool))])
}

fn way(bridge: u64) -> Option<Way> {
    Some(Way { edge: EdgeKey(0), bridge })
}

fn wanted(broker: u32, bridge: u64) -> Wanted {
    Wanted {
        broker: BrokerIndex(broker),
        groups: SmallVec::new(),
        plain: true,
        counts: true,
        life: 0,
        way: way(bridge),
    }
}

fn in_group(broker: u32, group: &str) -> Wanted {
    let groups = SmallVec::from_iter([QueueGroup::parse(group).unwrap()]);
    Wanted { groups, plain: false, ..wanted(broker, 0) }
}

/// A copy on its way: number, what goes with it.
type Frame = (u64, Step);

/// One target with what is on its way to and from it.
struct Far {
    life: u64,
    incoming: Incoming<u64>,
    budget: Budget,
    coming: Vec<Frame>,
    acks: Vec<(u64, u64, bool)>,
    /// Delivered by each bringer and not yet in the lanes.
    unflushed: [Vec<u64>; 2],
    /// In the lanes, by life.
    lanes: Vec<(u64, u64)>,
}

impl Far {
    fn new() -> Self {
        Self {
            life: 1,
            incoming: Incoming::default(),
            budget: budget(),
            coming: Vec::new(),
            acks: Vec::new(),
            unflushed: [Vec::new(), Vec::new()],
            lanes: Vec::new(),
        }
    }

    fn take(&mut self, (seq, step): Frame, by: usize, now: Time) {
        if step.life != self.life {
            // Meant for another life: only the answer tells.
            return self.acks.push((self.life, 0, false));
        }
        let place = Place { origin: ORIGIN, incarnation: 1, seq, back: step.back, bytes: BYTES };
        let bringer = Bringer(by as u64);
        match self.incoming.offer(&place, bringer, &self.budget, now, &mut Vec::new()) {
            Verdict::Deliver => {
                self.incoming.delivered(ORIGIN, seq, bringer, &self.budget, now);
                self.unflushed[by].push(seq);
            }
            Verdict::Early => self.incoming.keep(&place, seq, &self.budget),
            Verdict::Repeat => {}
            other => panic!("{other:?}"),
        }
    }

    fn flush(&mut self, by: usize, now: Time) {
        let bringer = Bringer(by as u64);
        loop {
            let life = self.life;
            self.lanes.extend(self.unflushed[by].drain(..).map(|seq| (life, seq)));
            if let Some(ack) = self.incoming.settle(ORIGIN, bringer) {
                self.acks.push((self.life, ack.through, ack.gap));
            }
            let Some((seq, message)) = self.incoming.ready(ORIGIN, bringer, now) else { return };
            let message = *message;
            self.incoming.delivered(ORIGIN, seq, bringer, &self.budget, now);
            self.unflushed[by].push(message);
        }
    }
}

struct World {
    outgoing: Outgoing<u64, u64>,
    budget: Budget,
    far: Vec<Far>,
    now: Time,
    bridge: u64,
    next: u64,
    /// Messages by target: number, and the life of the target that the origin knew.
    chosen: Vec<(usize, u64)>,
    finished: Vec<u64>,
    orphans: Vec<u64>,
    /// Whether any target had the other lose copies to a new life.
    reborn: Vec<bool>,
}

impl World {
    fn new() -> Self {
        Self {
            outgoing: Outgoing::default(),
            budget: budget(),
            far: (0..TARGETS).map(|_| Far::new()).collect(),
            now: Time::from_millis(1),
            bridge: 0,
            next: 0,
            chosen: Vec::new(),
            finished: Vec::new(),
            orphans: Vec::new(),
            reborn: vec![false; TARGETS as usize],
        }
    }

    fn publish(&mut self, mask: u32) {
        let wanted: Vec<_> = (0..TARGETS).filter(|t| mask & 1 << t != 0).map(|t| wanted(t, self.bridge)).collect();
        if wanted.is_empty() || !self.outgoing.room(wanted.iter().map(|w| w.broker), BYTES, &self.budget) {
            return;
        }
        self.next += 1;
        let receipt = self.outgoing.receipt(self.next, u32::try_from(wanted.len()).unwrap());
        let (seq, steps) = self.outgoing.accept(self.next, BYTES, &wanted, receipt, &self.budget, self.now);
        assert_eq!(seq, self.next);
        for (wanted, step) in wanted.iter().zip(steps) {
            self.chosen.push((wanted.broker.0 as usize, seq));
            if let Some(step) = step {
                self.far[wanted.broker.0 as usize].coming.push((seq, step));
            }
        }
        assert_eq!(self.outgoing.release(receipt), None);
    }

    fn due(&mut self) {
        let bridge = self.bridge;
        let due = self.outgoing.due(self.now, &self.budget, |_| way(bridge));
        for Sending { seq, target, step, message, .. } in due.sendings {
            assert_eq!(seq, message);
            self.far[target.0 as usize].coming.push((seq, step));
        }
        self.give_up(due.orphans.into_iter().map(|(_, orphan)| orphan).collect());
    }

    fn give_up(&mut self, orphans: Vec<super::outgoing::Orphan<u64>>) {
        for orphan in orphans {
            self.outgoing.missed(orphan.receipt);
            self.orphans.push(orphan.message);
            let finished = self.outgoing.release(orphan.receipt);
            self.finished.extend(finished.map(|f| f.to));
        }
    }

    fn hear(&mut self, target: usize, at: usize) {
        let acks = &mut self.far[target].acks;
        if acks.is_empty() {
            return;
        }
        let (life, through, gap) = acks.remove(at % acks.len());
        let broker = BrokerIndex(u32::try_from(target).unwrap());
        let orphans = self.outgoing.reborn(broker, life, &self.budget);
        self.give_up(orphans);
        let mut finished = Vec::new();
        let heard = self.outgoing.acknowledged(broker, life, (through, gap), &self.budget, self.now, &mut finished);
        assert!(!matches!(heard, Err(AckError::NeverSent)), "an honest target");
        self.finished.extend(finished.into_iter().map(|Finished { to, .. }| to));
    }

    fn restart(&mut self, target: usize) {
        let far = &mut self.far[target];
        let lanes = std::mem::take(&mut far.lanes);
        let (life, coming, acks) = (far.life + 1, std::mem::take(&mut far.coming), std::mem::take(&mut far.acks));
        *far = Far { life, coming, acks, lanes, ..Far::new() };
        self.reborn[target] = true;
    }

    fn act(&mut self, (kind, a, b): (u8, u8, u8)) {
        let target = usize::from(a) % TARGETS as usize;
        let at = usize::from(b);
        self.now = self.now.plus_micros(700);
        let (now, by) = (self.now, at % 2);
        let coming = self.far[target].coming.len();
        match kind {
            0..25 => self.publish(u32::from(b)),
            25..50 if coming > 0 => {
                let frame = self.far[target].coming.remove(at % coming);
                self.far[target].take(frame, by, now);
            }
            50..54 if coming > 0 => {
                let frame = self.far[target].coming[at % coming];
                self.far[target].take(frame, by, now);
            }
            54..60 if coming > 0 => drop(self.far[target].coming.remove(at % coming)),
            60..75 => self.far[target].flush(by, now),
            75..85 => self.hear(target, at),
            85..88 if !self.far[target].acks.is_empty() => drop(self.far[target].acks.pop()),
            88..95 => {
                self.now = self.now.plus_millis(u64::from(b));
                self.due();
            }
            95..97 => self.bridge += 1,
            97..98 => self.outgoing.dropped(u64::from(b), now),
            98 => self.restart(target),
            _ => {}
        }
    }

    fn heal(&mut self) {
        for _ in 0..200 {
            self.now = self.now.plus_millis(RELIABLE_TIMEOUT_MS_MIN);
            self.due();
            for target in 0..self.far.len() {
                for frame in std::mem::take(&mut self.far[target].coming) {
                    self.far[target].take(frame, 0, self.now);
                }
                (0..2).for_each(|by| self.far[target].flush(by, self.now));
                while !self.far[target].acks.is_empty() {
                    self.hear(target, 0);
                }
            }
            if self.outgoing.is_idle() {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    fn check(&mut self) {
        for (target, far) in self.far.iter().enumerate() {
            for life in 1..=far.life {
                let lane: Vec<u64> = far.lanes.iter().filter(|(l, _)| *l == life).map(|(_, seq)| *seq).collect();
                assert!(lane.is_sorted_by(|a, b| a < b), "target {target}: {lane:?}");
                assert!(lane.iter().all(|seq| self.chosen.contains(&(target, *seq))));
            }
            if !self.reborn[target] {
                for (_, seq) in self.chosen.iter().filter(|(t, _)| *t == target) {
                    assert!(far.lanes.contains(&(1, *seq)), "target {target} lost {seq}");
                }
            }
            assert!(far.incoming.is_idle() && far.budget.used() == 0);
        }
        for (target, seq) in &self.chosen {
            let times = self.far[*target].lanes.iter().filter(|(_, s)| s == seq).count();
            assert!(times <= 1, "{seq} was doubled by target {target}");
            assert!(times == 1 || self.orphans.contains(seq), "{seq} vanished before target {target}");
        }
        self.finished.sort_unstable();
        assert!(self.finished.iter().copied().eq(1..=self.next), "every receipt once");
        assert_eq!((self.budget.used(), self.outgoing.kept_bytes()), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn exactly_once_in_order_and_nothing_lost(
        events in proptest::collection::vec((0u8..99, any::<u8>(), any::<u8>()), 0..400),
        restarts in any::<bool>(),
    ) {
        let mut world = World::new();
        for event in events {
            if restarts || event.0 != 98 {
                world.act(event);
            }
        }
        world.heal();
        world.check();
    }
}

fn send(outgoing: &mut Outgoing<u64, u64>, wanted: &[Wanted], budget: &Budget, now: Time) -> (u64, Vec<Option<Step>>) {
    let (seq, steps) = outgoing.accept(0, BYTES, wanted, Receipt::default(), budget, now);
    (seq, steps.to_vec())
}

#[test]
fn steps_lead_back_to_the_targets_own_previous_message() {
    let (mut outgoing, budget, now) = (Outgoing::default(), budget(), Time(5));
    let back = |step: &Option<Step>| step.map(|step| step.back);
    let (both, one) = ([wanted(0, 0), wanted(1, 0)], [wanted(1, 0)]);
    assert_eq!(send(&mut outgoing, &both, &budget, now).1.iter().map(back).collect::<Vec<_>>(), [Some(0), Some(0)]);
    assert_eq!(send(&mut outgoing, &one, &budget, now).1.iter().map(back).collect::<Vec<_>>(), [Some(1)]);
    assert_eq!(send(&mut outgoing, &both, &budget, now).1.iter().map(back).collect::<Vec<_>>(), [Some(2), Some(1)]);
    // What is acknowledged need not be waited for.
    outgoing.acknowledged(BrokerIndex(0), 1, (3, false), &budget, now, &mut Vec::new()).unwrap();
    assert_eq!(send(&mut outgoing, &both, &budget, now).1.iter().map(back).collect::<Vec<_>>(), [Some(0), Some(1)]);
}

#[test]
fn a_full_window_has_no_room_and_opens_with_acknowledgements() {
    let (mut outgoing, budget, now) = (Outgoing::<u64, u64>::default(), budget(), Time(5));
    let target = [wanted(0, 0)];
    let room = |outgoing: &Outgoing<u64, u64>, bytes| outgoing.room([BrokerIndex(0)], bytes, &budget);
    assert!(room(&outgoing, 64 << 20), "one message of any size");
    while room(&outgoing, BYTES) {
        send(&mut outgoing, &target, &budget, now);
    }
    let (load, window) = outgoing.load(BrokerIndex(0)).unwrap();
    assert!(load + BYTES > window && window == RELIABLE_WINDOW_BYTES_FIRST);
    assert!(outgoing.room([BrokerIndex(1)], BYTES, &budget), "another target has its own");
    let mut finished = Vec::new();
    assert_eq!(outgoing.acknowledged(BrokerIndex(0), 1, (1, false), &budget, now, &mut finished), Ok(true));
    assert!(room(&outgoing, BYTES));
    assert_eq!(outgoing.acknowledged(BrokerIndex(0), 1, (1, false), &budget, now, &mut finished), Ok(false));
}

#[test]
fn what_is_kept_is_bounded_over_all_targets_and_the_node() {
    let (mut outgoing, node, now) = (Outgoing::<u64, u64>::default(), budget(), Time(5));
    let big = 1 << 20;
    for target in 0..u32::try_from(RELIABLE_KEPT_BYTES_MAX / big).unwrap() {
        assert!(outgoing.room([BrokerIndex(target)], big, &node));
        outgoing.accept(0, big, &[wanted(target, 0)], Receipt::default(), &node, now);
    }
    assert!(!outgoing.room([BrokerIndex(1000)], 1, &node), "full");
    let small = budget_of(2 * MEMORY_STEP_BYTES);
    let mut outgoing = Outgoing::<u64, u64>::default();
    assert!(outgoing.room([BrokerIndex(1)], big, &small), "whoever keeps nothing has room for one");
    outgoing.accept(0, 2 * MEMORY_STEP_BYTES, &[wanted(1, 0)], Receipt::default(), &small, now);
    assert!(!small.take_short() && !outgoing.room([BrokerIndex(2)], 1, &small) && small.take_short());
}

#[test]
fn whoever_keeps_most_of_a_scarce_node_gives_way_first() {
    const STEP: usize = MEMORY_STEP_BYTES;
    let pool = Arc::new(Pool::new(MemoryBounds { node_bytes: 64 * STEP, tenant_bytes: 64 * STEP }));
    let tenants = [(); 2].map(|()| Arc::new(Account::new(Arc::clone(&pool))));
    let [noisy, calm] = tenants.each_ref().map(|tenant| Budget::new([Arc::clone(tenant)]));
    while noisy.fits(1_000) {
        noisy.take(1_000);
    }
    assert!((63 * STEP..=65 * STEP).contains(&noisy.used()), "alone, it may have all: {}", noisy.used());
    assert!(calm.fits(STEP));
    calm.take(STEP);
    assert!(!calm.fits(STEP), "all is used up");
    // As it is acknowledged the other one gets its half, and the first one no more than that.
    while noisy.used() > 34 * STEP {
        noisy.give(1_000);
        let _ = noisy.fits(1_000) && {
            noisy.take(1_000);
            true
        };
        while calm.fits(1_000) && calm.used() < 30 * STEP {
            calm.take(1_000);
        }
    }
    assert!(calm.used() >= 28 * STEP, "{}", calm.used() / STEP);
    noisy.give(noisy.used());
    calm.give(calm.used());
    assert_eq!(pool.used(), 0);
}

#[test]
fn time_outs_and_new_ways_send_again_and_full_lanes_pause() {
    let (mut outgoing, budget, now) = (Outgoing::<u64, u64>::default(), budget(), Time(5));
    let due = |outgoing: &mut Outgoing<u64, u64>, now, bridge| {
        let due = outgoing.due(now, &budget, |_| way(bridge));
        due.sendings.iter().map(|sending| (sending.seq, sending.step.back)).collect::<Vec<_>>()
    };
    (0..3).for_each(|_| drop(send(&mut outgoing, &[wanted(0, 0)], &budget, now)));
    assert_eq!(due(&mut outgoing, now, 0), []);
    let later = now.plus_millis(RELIABLE_TIMEOUT_MS_FIRST);
    assert_eq!(due(&mut outgoing, later, 0), [(1, 0), (2, 1), (3, 1)], "in sequence");
    assert_eq!(due(&mut outgoing, later.plus_millis(RELIABLE_TIMEOUT_MS_FIRST), 0), [], "it backs off");
    assert_eq!(due(&mut outgoing, later.plus_millis(2 * RELIABLE_TIMEOUT_MS_FIRST), 0), [(1, 0), (2, 1), (3, 1)]);
    let soon = later.plus_millis(2 * RELIABLE_TIMEOUT_MS_FIRST + 1);
    assert_eq!(due(&mut outgoing, soon, 1), [(1, 0), (2, 1), (3, 1)], "at once over another bridge");
    outgoing.dropped(2, soon);
    assert_eq!(due(&mut outgoing, soon.plus_millis(1), 1), [], "not into the full lane");
    assert_eq!(due(&mut outgoing, soon.plus_millis(50), 1), [(2, 1), (3, 1)]);
}

/// A queue that has grown on the way makes everything late, and loses nothing of it.
#[test]
fn what_is_late_is_not_sent_again_while_acknowledgements_come() {
    let (mut outgoing, budget, now) = (Outgoing::<u64, u64>::default(), budget(), Time(5));
    let mut finished = Vec::new();
    let mut acknowledge = |outgoing: &mut Outgoing<u64, u64>, through, now| {
        outgoing.acknowledged(BrokerIndex(0), 1, (through, false), &budget, now, &mut finished).unwrap();
    };
    let sent = |outgoing: &mut Outgoing<u64, u64>, now| outgoing.due(now, &budget, |_| way(0)).sendings.len();
    // A short way, so that the wait is the shortest.
    send(&mut outgoing, &[wanted(0, 0)], &budget, now);
    acknowledge(&mut outgoing, 1, now.plus_millis(1));
    let mut now = now.plus_millis(2);
    (0..10).for_each(|_| drop(send(&mut outgoing, &[wanted(0, 0)], &budget, now)));
    for through in 2..=6 {
        now = now.plus_millis(RELIABLE_TIMEOUT_MS_MIN - 10);
        assert_eq!(sent(&mut outgoing, now), 0, "message {through} is late");
        acknowledge(&mut outgoing, through, now);
    }
    // Then nothing more comes.
    assert_eq!(sent(&mut outgoing, now.plus_millis(RELIABLE_TIMEOUT_MS_MIN - 10)), 0);
    assert_eq!(sent(&mut outgoing, now.plus_millis(RELIABLE_TIMEOUT_MS_MAX)), 5, "what is missing");
}

#[test]
fn what_is_still_in_a_lane_here_is_neither_late_nor_given_up() {
    let (mut outgoing, budget, start) = (Outgoing::<u64, u64>::default(), budget(), Time(5));
    (0..2).for_each(|_| drop(send(&mut outgoing, &[wanted(0, 0)], &budget, start)));
    // It is queued a moment later than it is sent, and takes a minute.
    let queued = start.plus_millis(1);
    let mut now = start;
    for _ in 0..3_000 {
        now = now.plus_millis(RELIABLE_TICK_MS);
        outgoing.hold(now, |of| (Some(of) == way(0)).then_some(queued));
        let due = outgoing.due(now, &budget, |_| way(0));
        assert!(due.sendings.is_empty() && due.orphans.is_empty(), "at {now:?}");
    }
    // It has left. Of what came into the lane later nothing is told about it, and neither is of other lanes.
    let mut later = |millis, since: Option<Time>| {
        let at = now.plus_millis(millis);
        outgoing.hold(at, |_| since);
        outgoing.due(at, &budget, |_| way(0)).sendings.len()
    };
    assert_eq!(later(RELIABLE_TIMEOUT_MS_FIRST - 1, Some(now)), 0, "the wait begins when it leaves");
    assert_eq!(later(RELIABLE_TIMEOUT_MS_FIRST, Some(now)), 2);
    assert_eq!(later(2 * RELIABLE_TIMEOUT_MS_FIRST, None), 0);
    assert_eq!(later(RELIABLE_TIMEOUT_MS_FIRST + RELIABLE_TIMEOUT_MS_MAX, None), 2);
}

#[test]
fn a_gap_is_closed_before_the_time_out() {
    let (mut outgoing, budget, now) = (Outgoing::<u64, u64>::default(), budget(), Time(5));
    let mut finished = Vec::new();
    send(&mut outgoing, &[wanted(0, 0)], &budget, now);
    outgoing.acknowledged(BrokerIndex(0), 1, (1, false), &budget, now.plus_millis(10), &mut finished).unwrap();
    let now = now.plus_millis(20);
    (0..3).for_each(|_| drop(send(&mut outgoing, &[wanted(0, 0)], &budget, now)));
    let seqs = |outgoing: &mut Outgoing<u64, u64>, now| {
        outgoing.due(now, &budget, |_| way(0)).sendings.iter().map(|s| s.seq).collect::<Vec<_>>()
    };
    let mut gap = |outgoing: &mut Outgoing<u64, u64>, now| {
        outgoing.acknowledged(BrokerIndex(0), 1, (1, true), &budget, now, &mut finished).unwrap();
    };
    gap(&mut outgoing, now.plus_millis(10));
    assert_eq!(seqs(&mut outgoing, now.plus_millis(10)), [], "it may still come");
    gap(&mut outgoing, now.plus_millis(20));
    assert_eq!(seqs(&mut outgoing, now.plus_millis(20)), [2], "the one that is missing");
    assert_eq!(seqs(&mut outgoing, now.plus_millis(21)), []);
}

#[test]
fn a_target_out_of_reach_or_silent_is_given_up_in_the_end() {
    for reachable in [false, true] {
        let (mut outgoing, budget, now) = (Outgoing::<u64, u64>::default(), budget(), Time(5));
        let receipt = outgoing.receipt(7, 2);
        outgoing.accept(0, BYTES, &[wanted(0, 0), in_group(0, "g")][..1], receipt, &budget, now);
        assert_eq!(outgoing.release(receipt), None);
        let route = |_| way(0).filter(|_| reachable);
        assert!(outgoing.due(now, &budget, route).orphans.is_empty());
        assert!(outgoing.due(now.plus_millis(RELIABLE_GIVE_UP_MS - 1), &budget, route).orphans.is_empty());
        let mut orphans = outgoing.due(now.plus_millis(RELIABLE_GIVE_UP_MS), &budget, route).orphans;
        assert_eq!(orphans.len(), 1);
        let orphans = [orphans.remove(0).1];
        assert!(orphans[0].plain && outgoing.is_idle() && budget.used() == 0);
        outgoing.missed(orphans[0].receipt);
        assert_eq!(outgoing.release(orphans[0].receipt), Some(Finished { to: 7, targets: 1 }));
    }
}

#[test]
fn members_of_a_new_life_and_no_members_are_chosen_again_under_the_same_receipt() {
    let (mut outgoing, budget, now) = (Outgoing::<u64, u64>::default(), budget(), Time(5));
    let group = QueueGroup::parse("g").unwrap();
    assert!(outgoing.reborn(BrokerIndex(0), 9, &budget).is_empty(), "no target yet");
    let receipt = outgoing.receipt(7, 1);
    let known = Wanted { life: 4, ..in_group(0, "g") };
    let (seq, steps) = outgoing.accept(0, BYTES, &[known], receipt, &budget, now);
    assert_eq!(steps[0], Some(Step { back: 0, life: 4 }));
    outgoing.release(receipt);
    assert!(outgoing.reborn(BrokerIndex(0), 4, &budget).is_empty());
    assert!(outgoing.reborn(BrokerIndex(0), 3, &budget).is_empty(), "old news");
    let orphans = outgoing.reborn(BrokerIndex(0), 5, &budget);
    assert_eq!(orphans[0].groups.as_slice(), std::slice::from_ref(&group));
    let (second, _) = outgoing.accept(0, BYTES, &[in_group(1, "g")], orphans[0].receipt, &budget, now);
    assert!(second > seq && outgoing.release(orphans[0].receipt).is_none());
    // The second one has nobody left; the third takes it.
    assert!(outgoing.no_member(BrokerIndex(0), second, &group).is_none(), "it was not asked");
    let orphan = outgoing.no_member(BrokerIndex(1), second, &group).unwrap();
    assert!(outgoing.no_member(BrokerIndex(1), second, &group).is_none(), "once");
    let (third, _) = outgoing.accept(0, BYTES, &[in_group(2, "g")], orphan.receipt, &budget, now);
    assert!(outgoing.release(orphan.receipt).is_none());
    let mut finished = Vec::new();
    outgoing.acknowledged(BrokerIndex(1), 1, (second, false), &budget, now, &mut finished).unwrap();
    assert!(finished.is_empty());
    outgoing.acknowledged(BrokerIndex(2), 1, (third, false), &budget, now, &mut finished).unwrap();
    assert_eq!(finished, [Finished { to: 7, targets: 1 }]);
    assert!(outgoing.is_idle());
}

#[test]
fn a_message_for_nobody_is_not_kept() {
    let (mut outgoing, budget, now) = (Outgoing::<u64, u64>::default(), budget(), Time(5));
    let receipt = outgoing.receipt(7, 0);
    let (seq, steps) = outgoing.accept(0, BYTES, &[], receipt, &budget, now);
    assert_eq!((seq, steps.len(), outgoing.is_idle(), budget.used()), (1, 0, true, 0));
    assert_eq!(outgoing.release(receipt), Some(Finished { to: 7, targets: 0 }));
    let (next, steps) = outgoing.accept(0, BYTES, &[wanted(0, 1)], Receipt::default(), &budget, now);
    assert_eq!((next, steps[0].map(|step| step.back)), (2, Some(0)), "its number is not waited for");
}

#[test]
fn what_came_too_early_of_a_life_that_is_over_is_not_kept() {
    let (mut incoming, budget, now) = (Incoming::<u64>::default(), budget(), Time(5));
    let place = |incarnation, seq, back| Place { origin: BrokerIndex(1), incarnation, seq, back, bytes: BYTES };
    let offer = |incoming: &mut Incoming<u64>, place: &Place| {
        let verdict = incoming.offer(place, Bringer(1), &budget, now, &mut Vec::new());
        if verdict == Verdict::Early {
            incoming.keep(place, 7, &budget);
        }
        verdict
    };
    assert_eq!(offer(&mut incoming, &place(1, 3, 1)), Verdict::Early);
    assert_eq!((incoming.is_idle(), budget.used()), (false, BYTES));
    assert_eq!(incoming.reborn(BrokerIndex(1), 1, &budget), [], "it lives on");
    assert_eq!(incoming.reborn(BrokerIndex(1), 2, &budget), [7]);
    assert_eq!((incoming.is_idle(), budget.used()), (true, 0));
    assert_eq!(offer(&mut incoming, &place(1, 4, 1)), Verdict::Stale, "a straggler");
    assert_eq!(offer(&mut incoming, &place(2, 1, 0)), Verdict::Deliver);
}
