//! Presence: that a broker has any subscriber of a tenant, one bit that every broker of the tenant's mesh holds. And cuts:
//! that an end of an edge does not let a tenant over it that the bundle allows there, told and held in the same way.
//!
//! Only the broker itself says so, with its life and a number that grows; the newest wins, whatever way it came, and only
//! news is passed on. Who is told something older than it knows answers with what it knows, so that two sides that
//! exchange what they have end up with the same.

use std::collections::BTreeMap;

use crate::name::Label;
use crate::routes::BrokerIndex;

/// What one broker said of itself last, for one tenant: whether it has subscribers, or one of its edges is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Its life.
    pub incarnation: u64,
    /// Grows with every change in that life.
    pub seq: u64,
    /// Whether it has any subscriber; of a cut, whether it is there.
    pub present: bool,
}

impl Presence {
    /// As it is told.
    #[must_use]
    pub const fn record(&self) -> Record {
        Record::Presence { seq: self.seq, present: self.present }
    }

    /// As it is told of an edge.
    #[must_use]
    pub const fn cut_record(&self, edge: Label) -> Record {
        Record::Cut { edge, seq: self.seq, cut: self.present }
    }
}

/// An end of an edge that may not let a tenant over it: by its own configuration or its peer's, the bundle would.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cut {
    /// The end that says so.
    pub end: BrokerIndex,
    /// The edge.
    pub edge: Label,
}

/// A record of an origin, as it travels from neighbour to neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// What it said of itself.
    Presence {
        /// Its number.
        seq: u64,
        /// Whether it has any subscriber.
        present: bool,
    },
    /// Whether an edge of its own is cut for the tenant.
    Cut {
        /// The edge.
        edge: Label,
        /// Its number.
        seq: u64,
        /// Whether it is.
        cut: bool,
    },
    /// What the neighbour knows of the tenant, in one number.
    Sum {
        /// The digest.
        digest: u64,
    },
    /// The neighbour has told all it knew of the tenant.
    End {
        /// How many records that were.
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

/// What brokers have said, for one tenant, by broker or by what they speak of.
#[derive(Debug)]
pub struct View<K = BrokerIndex> {
    known: BTreeMap<K, Presence>,
}

impl<K> Default for View<K> {
    fn default() -> Self {
        Self { known: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> View<K> {
    /// Takes what was said of `origin`.
    pub fn hear(&mut self, origin: K, told: Presence) -> Heard {
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

    /// What was said last.
    #[must_use]
    pub fn of(&self, origin: &K) -> Option<Presence> {
        self.known.get(origin).copied()
    }

    /// Everything known, in order.
    pub fn iter(&self) -> impl Iterator<Item = (K, Presence)> {
        self.known.iter().map(|(origin, presence)| (origin.clone(), *presence))
    }

    /// What is there, in order.
    pub fn present(&self) -> impl Iterator<Item = K> {
        self.iter().filter(|(_, presence)| presence.present).map(|(origin, _)| origin)
    }
}

impl View {
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

    /// Whether a broker has subscribers, as far as is known.
    #[must_use]
    pub fn is_present(&self, origin: BrokerIndex) -> bool {
        self.of(&origin).is_some_and(|presence| presence.present)
    }
}

impl View<Cut> {
    /// Takes note that `end` lives as `incarnation`: what an older life said of its edges is void. Whether any cut was.
    pub fn reborn_end(&mut self, end: BrokerIndex, incarnation: u64) -> bool {
        self.lose(|cut, known| cut.end == end && known.incarnation < incarnation)
    }

    /// Forgets an end that is no part of the fabric any more. Whether any cut was its.
    pub fn forget_end(&mut self, end: BrokerIndex) -> bool {
        self.lose(|cut, _| cut.end == end)
    }

    /// Keeps what is said of the edges that carry the tenant; of others it means nothing.
    pub fn keep_edges(&mut self, edges: &std::collections::BTreeSet<Label>) {
        self.lose(|cut, _| !edges.contains(&cut.edge));
    }

    fn lose(&mut self, goes: impl Fn(&Cut, &Presence) -> bool) -> bool {
        let mut lost = false;
        self.known.retain(|cut, known| {
            let stays = !goes(cut, known);
            lost |= !stays && known.present;
            stays
        });
        lost
    }
}
