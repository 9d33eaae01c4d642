//! What an origin keeps: every message until each of its targets has acknowledged it.
//!
//! Copies of one target leave in sequence, within its window. What was lost is sent again: after a time-out, at once when
//! the way is another, soon when somebody on the way says that it had no room or the target misses something. A target
//! that begins a new life, or stays away too long, gives its copies back as [`Orphan`]s, of which the caller sends what
//! went to a queue group to another member.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::Budget;
use super::window::Window;
use crate::edge::EdgeKey;
use crate::limits::{RELIABLE_FULL_LANE_MS, RELIABLE_GIVE_UP_MS, RELIABLE_IDLE_MS, RELIABLE_KEPT_BYTES_MAX};
use crate::name::QueueGroup;
use crate::routes::BrokerIndex;
use crate::time::Time;

mod held;

/// The queue groups one target serves a member of.
pub type Groups = SmallVec<[QueueGroup; 1]>;

/// The first hop towards a target: another bridge of the same edge is another way, since what the old one carried is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The edge.
    pub edge: EdgeKey,
    /// Which of its bridges.
    pub bridge: u64,
}

/// One target of a message.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The broker.
    pub broker: BrokerIndex,
    /// The groups it serves a member of.
    pub groups: Groups,
    /// Whether plain subscribers are behind it.
    pub plain: bool,
    /// Whether the receipt waits for it.
    pub counts: bool,
    /// Its life, as far as it was heard of; zero otherwise.
    pub life: u64,
    /// The way there; `None` while there is none.
    pub way: Option<Way>,
}

/// What goes with one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How far back the previous message lies that this target may not have; zero when there is none.
    pub back: u32,
    /// The life of the target that it is meant for; zero when that is not known: then the target only tells it.
    pub life: u64,
}

/// A copy to be sent now.
#[derive(Clone, Debug)]
pub struct Sending<M> {
    /// Its number.
    pub seq: u64,
    /// Where to.
    pub target: BrokerIndex,
    /// The groups the target serves a member of.
    pub groups: Groups,
    /// What goes with it.
    pub step: Step,
    /// The message.
    pub message: M,
}

/// A copy whose target is gone, or has nobody of a group any more.
#[derive(Clone, Debug)]
pub struct Orphan<M> {
    /// The message.
    pub message: M,
    /// Its size against limits.
    pub bytes: usize,
    /// The groups that still wait for a member.
    pub groups: Groups,
    /// Whether plain subscribers of the target are left without it.
    pub plain: bool,
    /// Whether anybody else than observers is.
    pub counts: bool,
    /// To be handed to [`Outgoing::accept`] for what is sent instead, then to [`Outgoing::release`].
    pub receipt: Receipt,
}

/// A receipt somebody waits for; the default one is nobody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt(u64);

/// Every copy of a message is acknowledged, or given up.
#[derive(Debug, PartialEq, Eq)]
pub struct Finished<R> {
    /// Who waits for it.
    pub to: R,
    /// How many it reached.
    pub targets: u32,
}

/// Why an acknowledgement changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AckError {
    /// Nothing was ever sent to this broker.
    #[error("the broker is no target")]
    NoTarget,
    /// It is of an earlier life of the broker.
    #[error("the broker has begun a new life since")]
    Stale,
    /// It is for a message that was not sent to this broker.
    #[error("the message was never sent to this broker")]
    NeverSent,
}

/// What is due now.
#[derive(Debug)]
pub struct Due<M> {
    /// Copies to send, those of one target in sequence.
    pub sendings: Vec<Sending<M>>,
    /// What was given up, and whose it was.
    pub orphans: Vec<(BrokerIndex, Orphan<M>)>,
}

/// What is on its way to one target, for whoever looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// The target.
    pub target: BrokerIndex,
    /// Bytes that were sent and are not acknowledged.
    pub in_flight_bytes: usize,
    /// Bytes that may be in flight.
    pub window_bytes: usize,
    /// Messages that are not acknowledged, sent or not.
    pub unacknowledged: usize,
    /// Their bytes.
    pub unacknowledged_bytes: usize,
    /// For how long the oldest of them has been kept, in microseconds.
    pub oldest_micros: u64,
}

#[derive(Debug)]
struct Letter<M> {
    message: M,
    bytes: usize,
    waiting: u32,
    receipt: Receipt,
}

#[derive(Debug)]
struct Waiting<R> {
    to: R,
    copies: u32,
    targets: u32,
}

#[derive(Debug)]
struct Copied {
    seq: u64,
    bytes: usize,
    groups: Groups,
    plain: bool,
    counts: bool,
    /// When it was accepted.
    since: Time,
    /// When it was sent last.
    sent: Option<Time>,
    again: bool,
}

#[derive(Debug, Default)]
struct Target {
    life: u64,
    copies: VecDeque<Copied>,
    /// How many of `copies` are under way, from the first.
    sent: usize,
    /// Bytes of all copies, and of those under way.
    bytes: usize,
    flight: usize,
    newest_sent: u64,
    window: Window,
    way: Option<Way>,
    lost_sight: Option<Time>,
    /// When it acknowledged last, or got its first copy after a rest.
    heard: Time,
    /// When it last acknowledged something new: the wait for the rest begins there (RFC 6298 section 5, rule 5.3).
    progressed: Time,
    /// Nothing is sent before: a lane on the way was full.
    not_before: Time,
    /// The first copy is missing at the target and goes out again.
    missing: bool,
}

/// The messages of one tenant and class that have entered here.
#[derive(Debug)]
pub struct Outgoing<M, R> {
    newest: u64,
    letters: HashMap<u64, Letter<M>>,
    receipts: HashMap<u64, Waiting<R>>,
    newest_receipt: u64,
    targets: BTreeMap<BrokerIndex, Target>,
    kept: usize,
}

impl<M, R> Default for Outgoing<M, R> {
    fn default() -> Self {
        Self {
            newest: 0,
            letters: HashMap::new(),
            receipts: HashMap::new(),
            newest_receipt: 0,
            targets: BTreeMap::new(),
            kept: 0,
        }
    }
}

impl<M: Clone, R> Outgoing<M, R> {
    /// Whether every message is acknowledged or given up.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.letters.is_empty()
    }

    /// Bytes kept.
    #[must_use]
    pub const fn kept_bytes(&self) -> usize {
        self.kept
    }

    /// Bytes under way or waiting for a target, and its window.
    #[must_use]
    pub fn load(&self, broker: BrokerIndex) -> Option<(usize, usize)> {
        self.targets.get(&broker).map(|target| (target.bytes, target.window.bytes()))
    }

    /// What is on its way to every target that has not acknowledged all, by target.
    pub fn sights(&self, now: Time) -> impl Iterator<Item = Sight> + '_ {
        self.targets.iter().filter_map(move |(broker, target)| {
            let oldest = target.copies.front()?;
            Some(Sight {
                target: *broker,
                in_flight_bytes: target.flight,
                window_bytes: target.window.bytes(),
                unacknowledged: target.copies.len(),
                unacknowledged_bytes: target.bytes,
                oldest_micros: now.micros_since(oldest.since),
            })
        })
    }

    /// Whether anything was sent to a broker lately.
    #[must_use]
    pub fn is_target(&self, broker: BrokerIndex) -> bool {
        self.targets.contains_key(&broker)
    }

    /// Whether a message of `bytes` finds room in the windows of all its targets. A target with nothing under way takes any
    /// one message.
    #[must_use]
    pub fn room(&self, brokers: impl IntoIterator<Item = BrokerIndex>, bytes: usize, budget: &Budget) -> bool {
        let fits = |target: &Target| target.copies.is_empty() || target.bytes + bytes <= target.window.bytes();
        let kept = self.kept == 0 || self.kept + bytes <= RELIABLE_KEPT_BYTES_MAX;
        kept && budget.fits(bytes) && brokers.into_iter().all(|b| self.targets.get(&b).is_none_or(fits))
    }

    /// Opens a receipt for somebody who waits for a message that reached `targets`.
    pub fn receipt(&mut self, to: R, targets: u32) -> Receipt {
        self.newest_receipt += 1;
        self.receipts.insert(self.newest_receipt, Waiting { to, copies: 1, targets });
        Receipt(self.newest_receipt)
    }

    /// Nothing more is sent under a receipt by its holder; what it means when it was the last.
    pub fn release(&mut self, receipt: Receipt) -> Option<Finished<R>> {
        let waiting = self.receipts.get_mut(&receipt.0)?;
        waiting.copies = waiting.copies.saturating_sub(1);
        if waiting.copies > 0 {
            return None;
        }
        self.receipts.remove(&receipt.0).map(|waiting| Finished { to: waiting.to, targets: waiting.targets })
    }

    /// A target of a receipt's message got nothing after all.
    pub fn missed(&mut self, receipt: Receipt) {
        if let Some(waiting) = self.receipts.get_mut(&receipt.0) {
            waiting.targets = waiting.targets.saturating_sub(1);
        }
    }

    /// Takes a message for `wanted`. Returns its number and, in the order of `wanted`, what goes with the copies that are to
    /// be sent now; the others follow from [`Self::due`]. A message for nobody is numbered and not kept: no
    /// acknowledgement would ever end it.
    pub fn accept(
        &mut self,
        message: M,
        bytes: usize,
        wanted: &[Wanted],
        receipt: Receipt,
        budget: &Budget,
        now: Time,
    ) -> (u64, SmallVec<[Option<Step>; 4]>) {
        self.newest += 1;
        let seq = self.newest;
        if wanted.is_empty() {
            return (seq, SmallVec::new());
        }
        let copies = u32::try_from(wanted.len()).unwrap_or(u32::MAX);
        let counting = wanted.iter().fold(0u32, |sum, wanted| sum.saturating_add(u32::from(wanted.counts)));
        self.kept += bytes;
        budget.take(bytes);
        self.letters.insert(seq, Letter { message, bytes, waiting: copies, receipt });
        if let Some(waiting) = self.receipts.get_mut(&receipt.0) {
            waiting.copies = waiting.copies.saturating_add(counting);
        }
        let steps =
            wanted.iter().map(|wanted| self.targets.entry(wanted.broker).or_default().add(seq, bytes, wanted, now));
        (seq, steps.collect())
    }

    /// `from`, in its life `life`, has everything up to `through`; with `gap`, later messages wait for the next one there.
    /// The new life must have been told to [`Self::reborn`]. What is finished goes to `finished`; whether there is more
    /// room now.
    ///
    /// # Errors
    /// [`AckError`]; nothing has changed then.
    pub fn acknowledged(
        &mut self,
        from: BrokerIndex,
        life: u64,
        (through, gap): (u64, bool),
        budget: &Budget,
        now: Time,
        finished: &mut Vec<Finished<R>>,
    ) -> Result<bool, AckError> {
        let target = self.targets.get_mut(&from).ok_or(AckError::NoTarget)?;
        if target.life != 0 && life < target.life {
            return Err(AckError::Stale);
        }
        if through > target.newest_sent {
            return Err(AckError::NeverSent);
        }
        target.life = life;
        target.heard = now;
        let used = target.bytes * 2 >= target.window.bytes();
        let mut freed = 0;
        let mut measured = None;
        let mut done: SmallVec<[(u64, bool); 16]> = SmallVec::new();
        while target.copies.front().is_some_and(|copy| copy.seq <= through) {
            let Some(copy) = target.copies.pop_front() else { break };
            if target.sent > 0 {
                target.sent -= 1;
                target.flight -= copy.bytes;
            }
            target.bytes -= copy.bytes;
            freed += copy.bytes;
            measured = copy.sent.filter(|_| !copy.again).or(measured);
            done.push((copy.seq, copy.counts));
        }
        if let Some(sent) = measured {
            target.window.measured(now.micros_since(sent));
        }
        if freed > 0 {
            target.progressed = now;
            target.window.acknowledged(freed, used);
        }
        target.missing = gap && target.is_overdue(now);
        for (seq, counts) in done {
            let receipt = self.copy_done(seq, counts, budget);
            finished.extend(self.release(receipt));
        }
        Ok(freed > 0)
    }

    /// One copy of a message is done with; the receipt it was under.
    fn copy_done(&mut self, seq: u64, counts: bool, budget: &Budget) -> Receipt {
        let Some(letter) = self.letters.get_mut(&seq) else { return Receipt::default() };
        let receipt = if counts { letter.receipt } else { Receipt::default() };
        letter.waiting = letter.waiting.saturating_sub(1);
        if letter.waiting == 0 {
            let bytes = letter.bytes;
            self.kept -= bytes;
            budget.give(bytes);
            self.letters.remove(&seq);
        }
        receipt
    }

    /// A broker has begun a life: what its earlier one has not acknowledged comes back. Older news changes nothing.
    pub fn reborn(&mut self, broker: BrokerIndex, life: u64, budget: &Budget) -> Vec<Orphan<M>> {
        let Some(target) = self.targets.get_mut(&broker).filter(|target| target.life < life) else { return Vec::new() };
        if std::mem::replace(&mut target.life, life) == 0 {
            // What was sent so far only made it tell its life.
            target.rewind(0);
            return Vec::new();
        }
        target.newest_sent = 0;
        target.window = Window::default();
        self.give_up(broker, budget)
    }

    /// Takes back everything of one target.
    fn give_up(&mut self, broker: BrokerIndex, budget: &Budget) -> Vec<Orphan<M>> {
        let Some(target) = self.targets.get_mut(&broker) else { return Vec::new() };
        (target.sent, target.bytes, target.flight, target.missing) = (0, 0, 0, false);
        let copies = std::mem::take(&mut target.copies);
        let mut orphans = Vec::with_capacity(copies.len());
        for Copied { seq, bytes, groups, plain, counts, .. } in copies {
            let Some(message) = self.letters.get(&seq).map(|letter| letter.message.clone()) else { continue };
            let receipt = self.copy_done(seq, counts, budget);
            orphans.push(Orphan { message, bytes, groups, plain, counts, receipt });
        }
        orphans
    }

    /// This broker begins another life: everything comes back, of each target in sequence, to be accepted anew.
    pub fn restart(&mut self, budget: &Budget) -> Vec<(BrokerIndex, Orphan<M>)> {
        let brokers: Vec<_> = self.targets.keys().copied().collect();
        let mut orphans = Vec::new();
        for broker in brokers {
            orphans.extend(self.give_up(broker, budget).into_iter().map(|orphan| (broker, orphan)));
        }
        self.targets.clear();
        orphans
    }

    /// `from` has no member of `group` for message `seq`, which it has to acknowledge all the same. `None` when it was not
    /// asked for one.
    pub fn no_member(&mut self, from: BrokerIndex, seq: u64, group: &QueueGroup) -> Option<Orphan<M>> {
        let target = self.targets.get_mut(&from)?;
        let at = target.copies.binary_search_by_key(&seq, |copy| copy.seq).ok()?;
        let copy = target.copies.get_mut(at)?;
        let found = copy.groups.iter().position(|g| g == group)?;
        let groups = SmallVec::from_iter([copy.groups.remove(found)]);
        let letter = self.letters.get(&seq)?;
        let (receipt, bytes) = (letter.receipt, letter.bytes);
        if let Some(waiting) = self.receipts.get_mut(&receipt.0) {
            waiting.copies = waiting.copies.saturating_add(1);
        }
        Some(Orphan { message: letter.message.clone(), bytes, groups, plain: false, counts: true, receipt })
    }

    /// A lane on the way had no room for message `seq`. It and what follows goes out again after a short pause.
    pub fn dropped(&mut self, seq: u64, now: Time) {
        for target in self.targets.values_mut() {
            if let Ok(at) = target.copies.binary_search_by_key(&seq, |copy| copy.seq)
                && at < target.sent
            {
                target.window.lost(seq, target.newest_sent);
                target.rewind(at);
                let pause = target.window.round_trip_micros().unwrap_or(0).max(RELIABLE_FULL_LANE_MS * 1000);
                target.not_before = now.plus_micros(pause);
            }
        }
    }

    /// Everything that is to be sent now, and what is given up. `way` tells the first hop towards a broker.
    pub fn due(&mut self, now: Time, budget: &Budget, way: impl Fn(BrokerIndex) -> Option<Way>) -> Due<M> {
        let mut due = Due { sendings: Vec::new(), orphans: Vec::new() };
        let mut lost = Vec::new();
        for (broker, target) in &mut self.targets {
            if target.copies.is_empty() {
                continue;
            }
            if target.look(way(*broker), now) {
                lost.push(*broker);
                continue;
            }
            let mut again = std::mem::take(&mut target.missing) && target.sent > 0;
            while let Some((copy, step)) = target.next(std::mem::take(&mut again), now) {
                let message = self.letters.get(&copy.seq).map(|letter| letter.message.clone());
                due.sendings.extend(message.map(|message| Sending {
                    seq: copy.seq,
                    target: *broker,
                    groups: copy.groups.clone(),
                    step,
                    message,
                }));
            }
        }
        for broker in lost {
            due.orphans.extend(self.give_up(broker, budget).into_iter().map(|orphan| (broker, orphan)));
        }
        due
    }

    /// Forgets targets that nothing was sent to for long.
    pub fn sweep(&mut self, now: Time) {
        let idle = |target: &Target| target.copies.is_empty() && now >= target.heard.plus_millis(RELIABLE_IDLE_MS);
        self.targets.retain(|_, target| !idle(target));
    }
}

impl<M, R> fmt::Display for Outgoing<M, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (broker, target) in self.targets.iter().filter(|(_, target)| !target.copies.is_empty()) {
            let (first, copies) = (target.copies.front().map_or(0, |copy| copy.seq), target.copies.len());
            let Target { life, sent, way, .. } = target;
            write!(f, "to {} in life {life}: {copies} from {first}, {sent} under way over {way:?};", broker.0)?;
        }
        Ok(())
    }
}

impl Target {
    /// Adds a copy; what goes with it when it is to be sent at once.
    fn add(&mut self, seq: u64, bytes: usize, wanted: &Wanted, now: Time) -> Option<Step> {
        if self.copies.is_empty() {
            self.heard = now;
            self.way = wanted.way;
            self.lost_sight = None;
        }
        if self.life == 0 {
            self.life = wanted.life;
        }
        let (groups, plain, counts) = (wanted.groups.clone(), wanted.plain, wanted.counts);
        self.copies.push_back(Copied { seq, bytes, groups, plain, counts, since: now, sent: None, again: false });
        self.bytes += bytes;
        if wanted.way.is_none() || self.way != wanted.way {
            return None;
        }
        // Only if it is the next: those before it leave first.
        if self.sent + 1 < self.copies.len() { None } else { self.next(false, now).map(|(_, step)| step) }
    }

    /// Takes note of the way as it is now; `true` when the target is to be given up.
    fn look(&mut self, way: Option<Way>, now: Time) -> bool {
        let Some(way) = way else {
            let since = *self.lost_sight.get_or_insert(now);
            return now >= since.plus_millis(RELIABLE_GIVE_UP_MS);
        };
        if self.lost_sight.take().is_some() {
            self.heard = now;
        }
        if self.way != Some(way) {
            self.way = Some(way);
            self.window.rerouted();
            self.not_before = now;
            self.rewind(0);
            return false;
        }
        let first = self.copies.front().filter(|_| self.sent > 0);
        if let Some((seq, sent)) = first.and_then(|copy| Some((copy.seq, copy.sent?)))
            && now >= sent.max(self.progressed).plus_micros(self.window.timeout_micros())
        {
            self.window.lost(seq, self.newest_sent);
            self.window.timed_out();
            self.rewind(0);
        }
        now >= self.heard.plus_millis(RELIABLE_GIVE_UP_MS)
    }

    /// Copies from `at` on are not under way any more.
    fn rewind(&mut self, at: usize) {
        self.sent = self.sent.min(at);
        self.flight = self.copies.iter().take(self.sent).map(|copy| copy.bytes).sum();
    }

    /// The next copy to send, if the window has room for it; the first one `again`.
    fn next(&mut self, again: bool, now: Time) -> Option<(&Copied, Step)> {
        if now < self.not_before {
            return None;
        }
        let at = if again { 0 } else { self.sent };
        let before = at.checked_sub(1).and_then(|before| self.copies.get(before)).map(|copy| copy.seq);
        let copy = self.copies.get_mut(at)?;
        // A step that does not fit its field waits until it is the first.
        let back = u32::try_from(before.map_or(0, |before| copy.seq - before)).ok()?;
        if at == self.sent {
            if self.flight > 0 && self.flight + copy.bytes > self.window.bytes() {
                return None;
            }
            self.sent += 1;
            self.flight += copy.bytes;
        }
        copy.again = copy.sent.is_some();
        copy.sent = Some(now);
        self.newest_sent = self.newest_sent.max(copy.seq);
        Some((copy, Step { back, life: self.life }))
    }

    /// Whether the first copy is under way for longer than a round trip takes.
    fn is_overdue(&self, now: Time) -> bool {
        let sent = self.copies.front().filter(|_| self.sent > 0).and_then(|copy| copy.sent);
        let patience = self.window.round_trip_micros().unwrap_or(0);
        sent.is_some_and(|sent| now >= sent.plus_micros(patience + patience / 2 + 1))
    }
}
