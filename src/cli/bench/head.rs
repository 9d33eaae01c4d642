//! What a measured message carries, and the account of what arrived.
//!
//! A payload begins with [`HEAD_BYTES`] bytes, little-endian: `mark u16 · flow u16 · number u32 · due u64`. A flow is one
//! publisher in one phase; numbers begin at 0 and have no gaps; `due` is the moment the message should have been
//! published, in nanoseconds since 1970, whether or not it could be then.

use std::collections::HashMap;

use glocal_core::limits::{BENCH_FLOW_MESSAGES_MAX, BENCH_FLOWS_MAX};

use super::latency::Latency;

/// Bytes at the beginning of every measured payload.
pub(crate) const HEAD_BYTES: usize = 16;
/// First bytes of a measured payload, so that what others publish is not taken for one.
const MARK: u16 = 0x6762;

/// The head of a measured payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// One publisher in one phase.
    pub(crate) flow: u16,
    /// The message's number in its flow, from 0.
    pub(crate) number: u32,
    /// When it was due, in nanoseconds since 1970.
    pub(crate) due: u64,
}

impl Head {
    /// Writes the head over the first bytes of `payload`, which must have room for it.
    pub(crate) fn write(self, payload: &mut [u8]) {
        let mut head = [0; HEAD_BYTES];
        let fields = MARK
            .to_le_bytes()
            .into_iter()
            .chain(self.flow.to_le_bytes())
            .chain(self.number.to_le_bytes())
            .chain(self.due.to_le_bytes());
        head.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        payload.iter_mut().zip(head).for_each(|(byte, field)| *byte = field);
    }

    /// Reads a payload's head; `None` when it has none.
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let (mark, rest) = payload.split_first_chunk()?;
        let (flow, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let head = Self {
            flow: u16::from_le_bytes(*flow),
            number: u32::from_le_bytes(*number),
            due: u64::from_le_bytes(*rest.first_chunk()?),
        };
        (u16::from_le_bytes(*mark) == MARK).then_some(head)
    }
}

/// What arrived of one flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// A bit for every number.
    seen: Vec<u64>,
    /// Numbers that arrived at least once.
    pub(crate) arrived: u64,
    /// Messages whose number had arrived before.
    pub(crate) doubled: u64,
    /// First arrivals after a greater number.
    pub(crate) misordered: u64,
    least: Option<u32>,
    greatest: Option<u32>,
}

impl Tally {
    /// Notes one arrival; whether its number is new. Numbers that no publisher gives are passed over.
    pub(crate) fn add(&mut self, number: u32) -> bool {
        if number >= BENCH_FLOW_MESSAGES_MAX {
            return false;
        }
        let (word, bit) = ((number / u64::BITS) as usize, 1u64 << (number % u64::BITS));
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        let Some(word) = self.seen.get_mut(word) else { return false };
        if *word & bit != 0 {
            self.doubled += 1;
            return false;
        }
        *word |= bit;
        self.arrived += 1;
        self.misordered += u64::from(self.greatest.is_some_and(|greatest| number < greatest));
        self.greatest = self.greatest.max(Some(number));
        self.least = Some(self.least.map_or(number, |least| least.min(number)));
        true
    }

    /// Of the first `published` numbers, those that did not arrive.
    pub(crate) const fn lost(&self, published: u64) -> u64 {
        published.saturating_sub(self.arrived)
    }

    /// Numbers between the least and the greatest that did not arrive: what a subscriber can know of what it lost.
    pub(crate) fn gaps(&self) -> u64 {
        let between = self.least.zip(self.greatest).map_or(0, |(least, greatest)| u64::from(greatest - least) + 1);
        self.lost(between)
    }
}

/// One flow as its subscriber sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ear {
    /// The flow that counts; others are passed over.
    pub(crate) flow: u16,
    /// What arrived.
    pub(crate) tally: Tally,
    /// From the moment each message was due to its arrival.
    pub(crate) latency: Latency,
    /// Messages of whatever flow.
    pub(crate) heard: u64,
}

impl Ear {
    /// An ear for one flow.
    pub(crate) fn of(flow: u16) -> Self {
        Self { flow, ..Self::default() }
    }

    /// Takes in a payload that arrived at `now`, in nanoseconds since 1970.
    pub(crate) fn add(&mut self, payload: &[u8], now: u64) {
        let Some(head) = Head::read(payload) else { return };
        self.heard += 1;
        if head.flow == self.flow && self.tally.add(head.number) {
            self.latency.record(now.saturating_sub(head.due));
        }
    }
}

/// All flows that one subscriber hears.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flows {
    tallies: HashMap<u16, Tally>,
    /// From the moment each message was due, by its publisher's clock.
    pub(crate) latency: Latency,
    /// Messages.
    pub(crate) messages: u64,
    /// Their payloads' bytes.
    pub(crate) bytes: u64,
    /// Messages without a number, or of more flows than are told apart.
    pub(crate) unnumbered: u64,
}

impl Flows {
    /// Takes in a payload that arrived at `now`, in nanoseconds since 1970.
    pub(crate) fn add(&mut self, payload: &[u8], now: u64) {
        self.messages += 1;
        self.bytes += payload.len() as u64;
        let head = Head::read(payload);
        let known = head.filter(|h| self.tallies.len() < BENCH_FLOWS_MAX || self.tallies.contains_key(&h.flow));
        let Some(head) = known else {
            self.unnumbered += 1;
            return;
        };
        if self.tallies.entry(head.flow).or_default().add(head.number) {
            self.latency.record(now.saturating_sub(head.due));
        }
    }

    /// How many flows there are.
    pub(crate) fn len(&self) -> usize {
        self.tallies.len()
    }

    /// A sum over all flows.
    pub(crate) fn sum(&self, of: impl Fn(&Tally) -> u64) -> u64 {
        self.tallies.values().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let head = Head { flow: 513, number: 70_000, due: 1 << 60 };
        let mut payload = [9; 20];
        head.write(&mut payload);
        assert_eq!(Head::read(&payload), Some(head));
        assert_eq!(payload, [0x62, 0x67, 1, 2, 0x70, 0x11, 1, 0, 0, 0, 0, 0, 0, 0, 0, 16, 9, 9, 9, 9]);
        assert_eq!(Head::read(&payload[..15]), None);
        assert_eq!(Head::read(b"something of others"), None);
    }

    #[test]
    fn lost_doubled_and_misordered_messages_are_counted_once_each() {
        let mut tally = Tally::default();
        let new: Vec<bool> = [0, 1, 1, 5, 3, 3, 200].into_iter().map(|number| tally.add(number)).collect();
        assert_eq!(new, [true, true, false, true, true, false, true]);
        assert_eq!((tally.arrived, tally.doubled, tally.misordered), (5, 2, 1));
        assert_eq!((tally.lost(300), tally.lost(0)), (295, 0));
        assert_eq!((tally.gaps(), Tally::default().gaps()), (196, 0));
        assert!(!tally.add(BENCH_FLOW_MESSAGES_MAX) && tally.add(BENCH_FLOW_MESSAGES_MAX - 1));
    }

    #[test]
    fn an_ear_hears_its_own_flow_and_counts_latency_from_when_a_message_was_due() {
        let mut ear = Ear::of(7);
        let mut payload = [0; HEAD_BYTES];
        for (flow, number, due, now) in [(7, 0, 1_000, 2_500), (8, 1, 0, 9_000), (7, 0, 1_000, 50_000)] {
            Head { flow, number, due }.write(&mut payload);
            ear.add(&payload, now);
        }
        ear.add(b"another's", 5);
        assert_eq!((ear.heard, ear.tally.arrived, ear.tally.doubled), (3, 1, 1));
        assert_eq!((ear.latency.count(), ear.latency.max_ns()), (1, 1_500));
    }

    #[test]
    fn flows_are_told_apart_up_to_a_limit() {
        let mut flows = Flows::default();
        let mut payload = [0; 20];
        let last = u16::try_from(BENCH_FLOWS_MAX).unwrap();
        for (flow, number) in (0..=last).map(|flow| (flow, 5)).chain([(0, 7), (0, 7), (last, 6)]) {
            Head { flow, number, due: 10 }.write(&mut payload);
            flows.add(&payload, 30);
        }
        flows.add(b"hello", 30);
        assert_eq!((flows.len(), flows.unnumbered), (BENCH_FLOWS_MAX, 3));
        assert_eq!((flows.messages, flows.bytes), (BENCH_FLOWS_MAX as u64 + 5, 20 * (BENCH_FLOWS_MAX as u64 + 4) + 5));
        assert_eq!((flows.sum(Tally::gaps), flows.sum(|tally| tally.doubled)), (1, 1));
        assert_eq!((flows.latency.count(), flows.latency.max_ns()), (BENCH_FLOWS_MAX as u64 + 1, 20));
    }
}
