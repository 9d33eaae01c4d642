//! What a target remembers of every origin: how far its messages were delivered, and what came before its turn.
//!
//! A message is delivered when the one its step points to was, whatever way either came. Several readers may bring
//! messages of one origin at once: while one of them has delivered something that is not yet in the sessions' lanes, the
//! others only keep what they bring, so that the order in the lanes is the order of the numbers. Acknowledged is what is in
//! all lanes.

use std::collections::BTreeMap;
use std::fmt;

use super::Budget;
use crate::limits::{
    RELIABLE_EARLY_BYTES_MAX, RELIABLE_EARLY_MESSAGES_MAX, RELIABLE_FLOWS_MAX, RELIABLE_GIVE_UP_MS, RELIABLE_IDLE_MS,
    RELIABLE_WAIT_MS_MAX,
};
use crate::routes::BrokerIndex;
use crate::time::Time;

/// Where a message stands among its origin's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The broker where it entered.
    pub origin: BrokerIndex,
    /// That broker's life.
    pub incarnation: u64,
    /// Its number.
    pub seq: u64,
    /// How far back the previous message for this target lies; zero when none needs to be waited for.
    pub back: u32,
    /// Its size against limits.
    pub bytes: usize,
}

/// Who brings messages: a reader of one stream, or whoever looks after what waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bringer(pub u64);

/// What is to be done with a message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is its turn: deliver it and say so, or keep it.
    Deliver,
    /// It came before its turn: keep it.
    Early,
    /// It was here before.
    Repeat,
    /// It is of an earlier life of its origin.
    Stale,
    /// It came before its turn and there is no room; it will be sent again.
    Full,
    /// Its number and step cannot be.
    Malformed,
    /// There are more origins than are remembered.
    TooMany,
}

/// What an origin is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The life of the origin.
    pub incarnation: u64,
    /// Everything up to here is in all lanes.
    pub through: u64,
    /// Whether later messages wait for one that has not come.
    pub gap: bool,
}

#[derive(Debug)]
struct Early<M> {
    back: u32,
    bytes: usize,
    message: M,
}

#[derive(Debug)]
struct Flow<M> {
    incarnation: u64,
    /// The last delivered, and the last of which it is known that it is in all lanes.
    delivered: u64,
    settled: u64,
    early: BTreeMap<u64, Early<M>>,
    early_bytes: usize,
    /// Who has delivered what is not yet in the lanes, and since when.
    busy: Option<(Bringer, Time)>,
    heard: Time,
}

/// The messages of one tenant and class that have come from other brokers.
#[derive(Debug)]
pub struct Incoming<M> {
    flows: BTreeMap<BrokerIndex, Flow<M>>,
}

impl<M> Default for Incoming<M> {
    fn default() -> Self {
        Self { flows: BTreeMap::new() }
    }
}

impl<M> Incoming<M> {
    /// Looks at a message that has arrived. What a new life of its origin puts an end to goes to `ended`.
    pub fn offer(
        &mut self,
        place: &Place,
        bringer: Bringer,
        budget: &Budget,
        now: Time,
        ended: &mut Vec<M>,
    ) -> Verdict {
        if place.seq == 0 || place.seq == u64::MAX || u64::from(place.back) >= place.seq {
            return Verdict::Malformed;
        }
        if !self.flows.contains_key(&place.origin) && self.flows.len() >= RELIABLE_FLOWS_MAX {
            self.sweep(now);
            if self.flows.len() >= RELIABLE_FLOWS_MAX {
                return Verdict::TooMany;
            }
        }
        let flow = self.flows.entry(place.origin).or_insert_with(|| Flow::new(place.incarnation, now));
        if place.incarnation < flow.incarnation {
            return Verdict::Stale;
        }
        if place.incarnation > flow.incarnation {
            std::mem::replace(flow, Flow::new(place.incarnation, now)).end(budget, ended);
        }
        flow.heard = now;
        if place.seq <= flow.delivered || flow.early.contains_key(&place.seq) {
            return Verdict::Repeat;
        }
        if flow.is_free(bringer, now) && flow.is_turn(place.seq, place.back) {
            return Verdict::Deliver;
        }
        let fits = flow.early.is_empty() || flow.early_bytes + place.bytes <= RELIABLE_EARLY_BYTES_MAX;
        if fits && flow.early.len() < RELIABLE_EARLY_MESSAGES_MAX && budget.fits(place.bytes) {
            Verdict::Early
        } else {
            Verdict::Full
        }
    }

    /// Keeps a message whose turn it is not, or that finds no room in a lane; [`Self::offer`] has said so.
    pub fn keep(&mut self, place: &Place, message: M, budget: &Budget) {
        let Some(flow) = self.flows.get_mut(&place.origin) else { return };
        budget.take(place.bytes);
        flow.early_bytes += place.bytes;
        let early = Early { back: place.back, bytes: place.bytes, message };
        if let Some(replaced) = flow.early.insert(place.seq, early) {
            flow.early_bytes -= replaced.bytes;
            budget.give(replaced.bytes);
        }
    }

    /// A message was delivered by `bringer`, who says when it is in all lanes by [`Self::settle`].
    pub fn delivered(&mut self, origin: BrokerIndex, seq: u64, bringer: Bringer, budget: &Budget, now: Time) {
        let Some(flow) = self.flows.get_mut(&origin) else { return };
        flow.delivered = flow.delivered.max(seq);
        flow.busy = Some((bringer, now));
        while let Some(entry) = flow.early.first_entry().filter(|entry| *entry.key() <= flow.delivered) {
            let bytes = entry.remove().bytes;
            flow.early_bytes -= bytes;
            budget.give(bytes);
        }
    }

    /// The kept message whose turn it is, if `bringer` may deliver it. It stays until it is delivered.
    pub fn ready(&self, origin: BrokerIndex, bringer: Bringer, now: Time) -> Option<(u64, &M)> {
        let flow = self.flows.get(&origin).filter(|flow| flow.is_free(bringer, now))?;
        let (seq, early) = flow.early.first_key_value()?;
        flow.is_turn(*seq, early.back).then_some((*seq, &early.message))
    }

    /// What `bringer` has delivered of `origin` is in all lanes. What the origin is to be told.
    pub fn settle(&mut self, origin: BrokerIndex, bringer: Bringer) -> Option<Acknowledgement> {
        let flow = self.flows.get_mut(&origin)?;
        if flow.busy.is_some_and(|(busy, _)| busy == bringer) {
            flow.busy = None;
        }
        if flow.busy.is_none() {
            flow.settled = flow.delivered;
        }
        let gap = flow.early.first_key_value().is_some_and(|(seq, early)| !flow.is_turn(*seq, early.back));
        Some(Acknowledgement { incarnation: flow.incarnation, through: flow.settled, gap })
    }

    /// The origin lives in a newer life: nobody sends any more what messages of an earlier one wait for. Those messages.
    pub fn reborn(&mut self, origin: BrokerIndex, life: u64, budget: &Budget) -> Vec<M> {
        let Some(flow) = self.flows.get_mut(&origin).filter(|flow| flow.incarnation < life) else { return Vec::new() };
        let new = Flow::new(life, flow.heard);
        let old = std::mem::replace(flow, new);
        budget.give(old.early_bytes);
        old.early.into_values().map(|early| early.message).collect()
    }

    /// Origins of which something waits, for whoever looks after it.
    pub fn waiting(&self) -> impl Iterator<Item = BrokerIndex> + '_ {
        self.flows.iter().filter(|(_, flow)| !flow.early.is_empty()).map(|(origin, _)| *origin)
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.flows.values().all(|flow| flow.early.is_empty() && flow.busy.is_none())
    }

    /// Origins remembered.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Bytes kept.
    #[must_use]
    pub fn early_bytes(&self) -> usize {
        self.flows.values().map(|flow| flow.early_bytes).sum()
    }

    /// Gives up what has waited too long for what comes before it, since its origin says nothing any more.
    pub fn give_up(&mut self, now: Time, budget: &Budget, ended: &mut Vec<M>) {
        for flow in self.flows.values_mut() {
            if !flow.early.is_empty() && now >= flow.heard.plus_millis(RELIABLE_GIVE_UP_MS) {
                let gone = Flow { early: std::mem::take(&mut flow.early), ..Flow::new(flow.incarnation, now) };
                Flow { early_bytes: std::mem::take(&mut flow.early_bytes), ..gone }.end(budget, ended);
            }
        }
    }

    /// Forgets origins that were silent for long.
    pub fn sweep(&mut self, now: Time) {
        let idle = |flow: &Flow<M>| flow.early.is_empty() && now >= flow.heard.plus_millis(RELIABLE_IDLE_MS);
        self.flows.retain(|_, flow| !idle(flow));
    }
}

impl<M> fmt::Display for Incoming<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (origin, flow) in self.flows.iter().filter(|(_, flow)| !flow.early.is_empty() || flow.busy.is_some()) {
            let (early, first) =
                (flow.early.len(), flow.early.first_key_value().map(|(seq, early)| (*seq, early.back)));
            let Flow { delivered, busy, .. } = flow;
            write!(f, "from {}: {delivered} delivered, {early} early, the first {first:?}, {busy:?};", origin.0)?;
        }
        Ok(())
    }
}

impl<M> Flow<M> {
    const fn new(incarnation: u64, now: Time) -> Self {
        Self { incarnation, delivered: 0, settled: 0, early: BTreeMap::new(), early_bytes: 0, busy: None, heard: now }
    }

    /// Gives everything back that was kept.
    fn end(self, budget: &Budget, ended: &mut Vec<M>) {
        budget.give(self.early_bytes);
        ended.extend(self.early.into_values().map(|early| early.message));
    }

    /// Whether everything that message `seq` has to wait for is delivered. The step is zero when it waits for nothing.
    fn is_turn(&self, seq: u64, back: u32) -> bool {
        back == 0 || seq.saturating_sub(u64::from(back)) <= self.delivered
    }

    /// Whether nobody else is delivering. A bringer that has ended in the middle is not waited for.
    fn is_free(&self, bringer: Bringer, now: Time) -> bool {
        self.busy.is_none_or(|(busy, since)| busy == bringer || now >= since.plus_millis(RELIABLE_WAIT_MS_MAX))
    }
}
