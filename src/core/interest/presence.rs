//! Presence: that a broker has any subscriber of a tenant, one bit that every broker of the tenant's mesh holds.
//!
//! Only the broker itself says so, with its life and a number that grows; the newest wins, whatever way it came, and only
//! news is passed on. Who is told something older than it knows answers with what it knows, so that two sides that
//! exchange what they have end up with the same.

use std::collections::BTreeMap;

use crate::routes::BrokerIndex;

/// What one broker said of itself last, for one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Its life.
    pub incarnation: u64,
    /// Grows with every change in that life.
    pub seq: u64,
    /// Whether it has any subscriber.
    pub present: bool,
}

/// A record of an origin, as it travels from neighbour to neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// What it said of itself.
    Presence {
        /// Its number.
        seq: u64,
        /// Whether it has any subscriber.
        present: bool,
    },
    /// The neighbour has told all it knew of the tenant.
    End {
        /// How many brokers that were.
        told: u32,
    },
}

/// What a record was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Newer than what was known, and to be passed on.
    News,
    /// Known.
    Repeat,
    /// Older than what is known: this.
    Stale(Presence),
}

/// What all other brokers have said, for one tenant.
#[derive(Debug, Default)]
pub struct View {
    known: BTreeMap<BrokerIndex, Presence>,
}

impl View {
    /// Takes what `origin` has said.
    pub fn hear(&mut self, origin: BrokerIndex, told: Presence) -> Heard {
        let age = |presence: &Presence| (presence.incarnation, presence.seq);
        match self.known.get(&origin) {
            Some(known) if age(known) > age(&told) => Heard::Stale(*known),
            Some(known) if age(known) == age(&told) => Heard::Repeat,
            _ => {
                self.known.insert(origin, told);
                Heard::News
            }
        }
    }

    /// Takes note that `origin` lives as `incarnation`: what an older life said is void. The record to pass on, if any.
    pub fn reborn(&mut self, origin: BrokerIndex, incarnation: u64) -> Option<Presence> {
        let known = self.known.get_mut(&origin).filter(|known| known.incarnation < incarnation)?;
        let was_present = known.present;
        *known = Presence { incarnation, seq: 0, present: false };
        was_present.then_some(*known)
    }

    /// Forgets a broker that is no part of the fabric any more. Whether it was present.
    pub fn forget(&mut self, origin: BrokerIndex) -> bool {
        self.known.remove(&origin).is_some_and(|known| known.present)
    }

    /// What a broker said last.
    #[must_use]
    pub fn of(&self, origin: BrokerIndex) -> Option<Presence> {
        self.known.get(&origin).copied()
    }

    /// Whether a broker has subscribers, as far as is known.
    #[must_use]
    pub fn is_present(&self, origin: BrokerIndex) -> bool {
        self.of(origin).is_some_and(|presence| presence.present)
    }

    /// Everything known, by broker.
    pub fn iter(&self) -> impl Iterator<Item = (BrokerIndex, Presence)> {
        self.known.iter().map(|(origin, presence)| (*origin, *presence))
    }

    /// The brokers that have subscribers, in order.
    pub fn present(&self) -> impl Iterator<Item = BrokerIndex> {
        self.iter().filter(|(_, presence)| presence.present).map(|(origin, _)| origin)
    }
}
