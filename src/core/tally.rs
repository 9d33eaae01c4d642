//! What became of copies that nobody acknowledges: `live` and `tele`, end to end.
//!
//! A broker that dies, and a bridge that falls silent, take with them what they held, and the counters of a dead broker
//! with it. So the broker at which messages entered counts the copies that it put into its lanes for each other broker,
//! and from time to time asks there, behind them in the same lanes, how many have arrived. What is missing in two answers
//! in a row is lost, and counted once, wherever it was lost. [`Sent`] is the side that asks, [`Counts`] the other one.
//!
//! Never touches a message, never slows one: a copy costs one addition at either end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::count::Counter;
use crate::limits::{TALLY_AGAIN_MS, TALLY_GIVE_UP_MS, TALLY_MS};
use crate::name::Class;
use crate::routes::BrokerIndex;
use crate::time::Time;

/// The classes whose copies nobody acknowledges.
pub const CLASSES: [Class; 2] = [Class::Live, Class::Tele];

/// Copies for one other broker.
#[derive(Debug, Default)]
pub struct Sent {
    copies: u64,
    /// The target's life, as it said; zero before it has.
    life: u64,
    /// Copies that arrived there: in earlier lives, and in all.
    earlier: u64,
    arrived: u64,
    lost: u64,
    /// Missing by the last answer, and not counted as lost yet.
    missing: u64,
    /// How many copies the last answer spoke of.
    told: u64,
    asked: Time,
    /// Since when an answer is awaited.
    waiting: Option<Time>,
}

impl Sent {
    /// Notes `copies` that go into a lane, ahead of whatever is asked next over it.
    pub const fn add(&mut self, copies: u64) {
        self.copies += copies;
    }

    /// Whether every copy is known to have arrived or to be lost.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.open() == 0
    }

    /// Copies that are neither known to have arrived nor lost.
    const fn open(&self) -> u64 {
        self.copies.saturating_sub(self.arrived.saturating_add(self.lost))
    }

    /// Copies in all, those known to have arrived, and those lost.
    #[must_use]
    pub const fn account(&self) -> (u64, u64, u64) {
        (self.copies, self.arrived, self.lost)
    }

    /// Whether to ask now: after a while, sooner where something is missing.
    #[must_use]
    pub const fn is_due(&self, now: Time) -> bool {
        let pause = if self.missing > 0 { TALLY_AGAIN_MS } else { TALLY_MS };
        !self.is_settled() && now.0 >= self.asked.plus_millis(pause).0
    }

    /// What to ask with: how many copies there are so far. To be called under the lock of the lane that the question goes
    /// into.
    pub fn ask(&mut self, now: Time) -> u64 {
        self.asked = now;
        self.waiting.get_or_insert(now);
        self.copies
    }

    /// The target, in its life `life`, has `received` copies after a question with `copies`. How many are lost; `None` when
    /// the answer cannot be.
    pub fn answer(&mut self, life: u64, copies: u64, received: u64) -> Option<u64> {
        if copies > self.copies || received > self.copies {
            return None;
        }
        if life < self.life || copies < self.told {
            return Some(0);
        }
        if life > self.life {
            (self.life, self.earlier) = (life, self.arrived);
        }
        (self.told, self.waiting) = (copies, None);
        self.arrived = self.arrived.max(self.earlier.saturating_add(received)).min(self.copies);
        let missing = copies.saturating_sub(self.arrived.saturating_add(self.lost));
        // What came by another way may still be on it: only what is missing twice is lost.
        let lost = missing.min(self.missing);
        self.lost += lost;
        self.missing = missing - lost;
        Some(lost)
    }

    /// How many are lost since nobody has answered for so long.
    pub fn give_up(&mut self, now: Time) -> u64 {
        if self.waiting.is_none_or(|since| now < since.plus_millis(TALLY_GIVE_UP_MS)) {
            return 0;
        }
        let lost = self.open();
        self.lost += lost;
        (self.missing, self.waiting) = (0, None);
        lost
    }
}

/// Copies that have arrived of one life of a broker, in the order of [`CLASSES`].
pub type Received = [Counter; CLASSES.len()];

/// The same, shared by those who count.
pub type Counts = Arc<Received>;

/// The tallies of one tenant on one node.
#[derive(Debug, Default)]
pub struct Tallies {
    sent: [Mutex<BTreeMap<BrokerIndex, Sent>>; CLASSES.len()],
    /// With the life that it is of.
    received: Mutex<HashMap<BrokerIndex, (u64, Counts)>>,
    active: AtomicBool,
}

/// The place of a class among [`CLASSES`]; `None` of one whose messages are acknowledged.
fn place(class: Class) -> Option<usize> {
    CLASSES.iter().position(|known| *known == class)
}

impl Tallies {
    /// Notes `copies` that go into a lane for each of `targets`. Whether somebody has to look after this tenant from now on.
    pub fn send(&self, class: Class, targets: impl Iterator<Item = BrokerIndex>, copies: u64) -> bool {
        let Some(sent) = place(class).and_then(|place| self.sent.get(place)) else { return false };
        let mut sent = sent.lock();
        targets.for_each(|target| sent.entry(target).or_default().add(copies));
        !self.active.swap(true, Ordering::Relaxed)
    }

    /// What is known of the copies of one class, by target.
    pub fn sent<R>(&self, class: Class, look: impl FnOnce(&mut BTreeMap<BrokerIndex, Sent>) -> R) -> Option<R> {
        place(class).and_then(|place| self.sent.get(place)).map(|sent| look(&mut sent.lock()))
    }

    /// Whether nothing is open; then the next [`Self::send`] says so again.
    #[must_use]
    pub fn rest(&self) -> bool {
        let is_open = |sent: &Mutex<BTreeMap<BrokerIndex, Sent>>| sent.lock().values().any(|sent| !sent.is_settled());
        // First, so that a copy that comes meanwhile is not forgotten.
        self.active.store(false, Ordering::Relaxed);
        let rests = !self.sent.iter().any(is_open);
        self.active.store(!rests, Ordering::Relaxed);
        rests
    }

    /// This broker begins another life, of which others count anew. How many copies of the life before are not known to
    /// have arrived, in the order of [`CLASSES`].
    #[must_use]
    pub fn begin_life(&self) -> [u64; CLASSES.len()] {
        let open = |sent: &Mutex<BTreeMap<BrokerIndex, Sent>>| {
            std::mem::take(&mut *sent.lock()).values().map(Sent::open).sum()
        };
        self.sent.each_ref().map(open)
    }

    /// Whether every copy is known to have arrived or to be lost.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.sent.iter().all(|sent| sent.lock().values().all(Sent::is_settled))
    }

    /// Where to note what arrives of one life of a broker. A later life begins anew; an earlier one is counted for nobody.
    #[must_use]
    pub fn of(&self, origin: BrokerIndex, life: u64) -> Counts {
        let mut received = self.received.lock();
        match received.get(&origin) {
            Some((known, _)) if *known > life => Arc::default(),
            Some((known, counts)) if *known == life => Arc::clone(counts),
            _ => Arc::clone(&received.entry(origin).insert((life, Arc::default())).get().1),
        }
    }

    /// How many copies of a class have arrived of one life of a broker.
    #[must_use]
    pub fn received(&self, class: Class, origin: BrokerIndex, life: u64) -> u64 {
        let received = self.received.lock();
        let counts = received.get(&origin).filter(|(known, _)| *known == life);
        counts.zip(place(class)).and_then(|((_, counts), place)| counts.get(place)).map_or(0, Counter::value)
    }
}

/// Notes one copy of a class that is not acknowledged.
pub fn arrived(counts: &Received, class: Class) {
    if let Some(count) = place(class).and_then(|place| counts.get(place)) {
        count.add(1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LATER: Time = Time(1);

    fn sent(copies: u64) -> Sent {
        Sent { copies, ..Sent::default() }
    }

    #[test]
    fn only_what_is_missing_twice_is_lost() {
        let mut sent = sent(10);
        assert!(sent.is_due(Time::from_millis(TALLY_MS)) && !sent.is_due(LATER));
        assert_eq!(sent.ask(Time(7)), 10);
        assert_eq!(sent.answer(1, 10, 8), Some(0), "they may be on another way");
        assert!(sent.is_due(Time(7).plus_millis(TALLY_AGAIN_MS)));
        assert_eq!(sent.answer(1, 10, 9), Some(1), "one came late, one is lost");
        assert!(sent.is_settled() && !sent.is_due(Time::from_millis(TALLY_MS * 9)));
        sent.add(5);
        assert_eq!((sent.answer(1, 15, 14), sent.is_settled()), (Some(0), true), "the lost one is counted once");
    }

    #[test]
    fn a_new_life_of_the_target_begins_to_count_anew() {
        let mut sent = sent(10);
        assert_eq!(sent.answer(1, 10, 10), Some(0));
        sent.add(10);
        assert_eq!(sent.answer(2, 20, 4), Some(0));
        assert_eq!(sent.answer(1, 20, 10), Some(0), "an answer of the dead");
        assert_eq!(sent.answer(2, 20, 4), Some(6));
        assert!(sent.is_settled());
    }

    #[test]
    fn answers_that_cannot_be_change_nothing_and_silence_has_an_end() {
        let mut sent = sent(3);
        sent.ask(Time(5));
        assert_eq!((sent.answer(1, 4, 0), sent.answer(1, 3, 4)), (None, None));
        assert_eq!(sent.give_up(Time(5).plus_millis(TALLY_GIVE_UP_MS - 1)), 0);
        assert_eq!(sent.give_up(Time(5).plus_millis(TALLY_GIVE_UP_MS)), 3);
        assert_eq!((sent.give_up(Time(u64::MAX)), sent.is_settled()), (0, true));
        assert_eq!(sent.answer(1, 3, 3), Some(0), "they came after all: nothing is taken back, nothing counted twice");
        sent.add(1);
        assert_eq!(sent.answer(1, 4, 4), Some(0));
    }

    #[test]
    fn a_tenant_is_looked_after_while_anything_is_open() {
        let tallies = Tallies::default();
        let target = || std::iter::once(BrokerIndex(3));
        assert!(!tallies.send(Class::Ctrl, target(), 1), "these are acknowledged");
        assert!(tallies.send(Class::Live, target(), 2) && !tallies.send(Class::Tele, target(), 1));
        assert!(!tallies.rest());
        let answer = |class, copies| {
            tallies.sent(class, |sent| sent.get_mut(&BrokerIndex(3)).and_then(|sent| sent.answer(1, copies, copies)))
        };
        assert_eq!((answer(Class::Live, 2), answer(Class::Tele, 1)), (Some(Some(0)), Some(Some(0))));
        assert!(tallies.rest() && tallies.is_settled());
        assert!(tallies.send(Class::Live, target(), 1), "again");
    }

    #[test]
    fn what_is_open_when_another_life_begins_is_lost() {
        let tallies = Tallies::default();
        let _ = tallies.send(Class::Live, [BrokerIndex(3), BrokerIndex(4)].into_iter(), 2);
        let arrived =
            |sent: &mut BTreeMap<_, Sent>| sent.get_mut(&BrokerIndex(3)).and_then(|sent| sent.answer(1, 2, 2));
        assert_eq!(tallies.sent(Class::Live, arrived).flatten(), Some(0));
        assert_eq!((tallies.begin_life(), tallies.begin_life()), ([2, 0], [0, 0]));
        assert!(tallies.is_settled());
    }

    #[test]
    fn what_arrives_is_counted_by_life() {
        let tallies = Tallies::default();
        let origin = BrokerIndex(1);
        let (old, new) = (tallies.of(origin, 1), tallies.of(origin, 2));
        for (counts, class) in [(&old, Class::Live), (&new, Class::Live), (&new, Class::Tele), (&new, Class::Bulk)] {
            arrived(counts, class);
        }
        assert_eq!((tallies.received(Class::Live, origin, 1), tallies.received(Class::Live, origin, 2)), (0, 1));
        assert_eq!(tallies.received(Class::Tele, origin, 2), 1);
        arrived(&tallies.of(origin, 1), Class::Live);
        assert_eq!(tallies.received(Class::Live, origin, 2), 1, "a straggler of the earlier life");
    }

    proptest! {
        /// Copies go in batches; some are lost, and now and then a batch comes by a slower way. In the end every copy has
        /// arrived or is counted as lost, once.
        #[test]
        fn every_copy_is_accounted_for_once(steps in proptest::collection::vec((0u64..20, 0u64..20, any::<bool>()), 1..40)) {
            let mut sent = Sent::default();
            let (mut received, mut late, mut counted, mut truly) = (0, 0, 0, 0);
            let ask = |sent: &mut Sent, received| {
                let copies = sent.ask(LATER);
                sent.answer(1, copies, received).unwrap()
            };
            for (copies, lost, slow) in steps {
                let lost = lost.min(copies);
                sent.add(copies);
                truly += lost;
                let slower = if slow && late == 0 { copies - lost } else { 0 };
                received += late + copies - lost - slower;
                late = slower;
                counted += ask(&mut sent, received);
            }
            received += late;
            counted += ask(&mut sent, received) + ask(&mut sent, received);
            prop_assert!(sent.is_settled());
            prop_assert_eq!((received + truly, counted), (sent.copies, truly));
        }
    }
}
