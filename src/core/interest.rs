//! Interest: what subscribers behind a broker want, per tenant and origin (DESIGN section 5).
//!
//! Local filters are reference-counted, so ten thousand equal subscriptions are one. Other brokers hear of them only when
//! they ask: a broker with a publisher of the tenant pulls the list of each origin and is then sent what changes
//! ([`stream`] at the origin, [`pulled`] at the one that asks). Everybody else is told one bit per tenant and origin, that
//! it has any subscriber ([`presence`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::name::{ClassSet, QueueGroup, RawFilter};

pub mod presence;
pub mod pulled;
pub mod stream;

/// One distinct wish.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interest {
    /// The filter.
    pub filter: RawFilter,
    /// The classes wanted.
    pub classes: ClassSet,
    /// The queue group; `None` for plain subscribers.
    pub queue: Option<QueueGroup>,
    /// Only observers are behind it.
    pub observer: bool,
}

impl Interest {
    /// A number that differs for different wishes, the same on every broker: FNV-1a, then mixed so that sums of them
    /// stay apart.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let queue = self.queue.as_ref().map_or("", QueueGroup::as_str).bytes();
        let tail = [0xff, self.classes.bits(), u8::from(self.queue.is_some()), u8::from(self.observer)];
        let bytes = self.filter.as_str().bytes().chain(tail).chain(queue);
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        mix(hash)
    }

    /// What it adds to a frame at most, in bytes.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.filter.as_str().len() + self.queue.as_ref().map_or(0, |queue| queue.as_str().len()) + 16
    }
}

/// The finalizer of `MurmurHash3`.
const fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The sum of a list: equal for equal lists, in whatever order they came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// The digests of all wishes, added up.
    pub digest: u64,
    /// How many there are.
    pub count: u64,
}

impl Sum {
    const fn add(&mut self, digest: u64) {
        self.digest = self.digest.wrapping_add(digest);
        self.count = self.count.wrapping_add(1);
    }

    const fn remove(&mut self, digest: u64) {
        self.digest = self.digest.wrapping_sub(digest);
        self.count = self.count.wrapping_sub(1);
    }
}

/// One change of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whether it came.
    pub add: bool,
    /// The wish.
    pub interest: Interest,
}

/// This broker's own interest in one tenant.
#[derive(Debug, Default)]
pub struct Local {
    sum: Sum,
    counts: BTreeMap<Interest, u32>,
}

impl Local {
    /// Counts one more holder; a change when it is the first.
    pub fn add(&mut self, interest: Interest) -> Option<Change> {
        let count = self.counts.entry(interest.clone()).or_default();
        *count += 1;
        if *count > 1 {
            return None;
        }
        self.sum.add(interest.digest());
        Some(Change { add: true, interest })
    }

    /// Counts one holder less; a change when it was the last.
    pub fn remove(&mut self, interest: Interest) -> Option<Change> {
        let count = self.counts.get_mut(&interest)?;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        self.counts.remove(&interest);
        self.sum.remove(interest.digest());
        Some(Change { add: false, interest })
    }

    /// The sum of the list.
    #[must_use]
    pub const fn sum(&self) -> Sum {
        self.sum
    }

    /// The wishes after `last` in order, or all.
    pub fn after(&self, last: Option<&Interest>) -> impl Iterator<Item = &Interest> {
        let start = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.counts.range::<Interest, _>((start, Bound::Unbounded)).map(|(interest, _)| interest)
    }
}

/// A set of wishes with its sum.
#[derive(Clone, Debug, Default)]
pub struct List {
    sum: Sum,
    wishes: BTreeSet<Interest>,
}

impl List {
    /// Whether it was not there before.
    pub fn insert(&mut self, interest: Interest) -> bool {
        let digest = interest.digest();
        let fresh = self.wishes.insert(interest);
        if fresh {
            self.sum.add(digest);
        }
        fresh
    }

    /// Whether it was there.
    pub fn remove(&mut self, interest: &Interest) -> bool {
        let known = self.wishes.remove(interest);
        if known {
            self.sum.remove(interest.digest());
        }
        known
    }

    /// The sum of the list.
    #[must_use]
    pub const fn sum(&self) -> Sum {
        self.sum
    }

    /// The wishes, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Interest> {
        self.wishes.iter()
    }

    /// How many wishes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.wishes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wishes.is_empty()
    }

    /// The wishes that are here and not there.
    pub fn difference<'l>(&'l self, other: &'l Self) -> impl Iterator<Item = &'l Interest> {
        self.wishes.difference(&other.wishes)
    }
}

#[cfg(test)]
mod tests;
