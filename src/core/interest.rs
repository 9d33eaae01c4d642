//! Interest: what subscribers behind a broker want, per tenant and origin (DESIGN section 5).
//!
//! Local filters are reference-counted, so ten thousand equal subscriptions are one record. Records of an origin carry
//! its incarnation and a sequence: a repeat changes nothing and is not passed on, so that floods end in any topology.

use std::collections::{BTreeMap, BTreeSet};

use crate::edge::EdgeKey;
use crate::name::{ClassSet, QueueGroup, RawFilter};

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

/// One record of an origin, as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A filter came or went.
    Change {
        /// Position in the origin's sequence.
        seq: u64,
        /// Whether it came.
        add: bool,
        /// The filter.
        interest: Interest,
    },
    /// A full list follows, as of `seq`.
    SyncStart {
        /// Position in the origin's sequence.
        seq: u64,
    },
    /// The full list is complete.
    SyncEnd {
        /// Position in the origin's sequence.
        seq: u64,
    },
    /// Nothing is known of the origin on the way to it any more; what it wants is told anew when it is heard of again.
    Forget,
}

/// This broker's own interest in one tenant.
#[derive(Debug, Default)]
pub struct Local {
    seq: u64,
    counts: BTreeMap<Interest, u32>,
}

impl Local {
    /// Counts one more holder; a record when it is the first.
    pub fn add(&mut self, interest: Interest) -> Option<Record> {
        let count = self.counts.entry(interest.clone()).or_insert(0);
        *count += 1;
        (*count == 1).then(|| self.change(true, interest))
    }

    /// Counts one holder less; a record when it was the last.
    pub fn remove(&mut self, interest: Interest) -> Option<Record> {
        let count = self.counts.get_mut(&interest)?;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        self.counts.remove(&interest);
        Some(self.change(false, interest))
    }

    fn change(&mut self, add: bool, interest: Interest) -> Record {
        self.seq += 1;
        Record::Change { seq: self.seq, add, interest }
    }

    /// The full list, as records.
    #[must_use]
    pub fn sync(&self) -> Vec<Record> {
        sync_records(self.seq, self.counts.keys())
    }

    /// Whether anything was ever wanted.
    #[must_use]
    pub const fn is_untouched(&self) -> bool {
        self.seq == 0
    }
}

fn sync_records<'i>(seq: u64, interests: impl Iterator<Item = &'i Interest>) -> Vec<Record> {
    let changes = interests.map(|interest| Record::Change { seq, add: true, interest: interest.clone() });
    std::iter::once(Record::SyncStart { seq }).chain(changes).chain(std::iter::once(Record::SyncEnd { seq })).collect()
}

/// What a record changed in the view of its origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Filters that came.
    pub added: Vec<Interest>,
    /// Filters that went.
    pub removed: Vec<Interest>,
    /// Records to pass on to other edges.
    pub forward: Vec<Record>,
}

/// Another broker's interest in one tenant, as told by records.
#[derive(Debug, Default)]
pub struct Remote {
    incarnation: u64,
    seq: u64,
    interests: BTreeSet<Interest>,
    /// Full lists that have begun, each with its place in the sequence. Several neighbours may tell one at a time.
    staging: BTreeMap<EdgeKey, (u64, BTreeSet<Interest>)>,
}

impl Remote {
    /// The origin's incarnation that was told last.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The filters known.
    pub fn interests(&self) -> impl Iterator<Item = &Interest> {
        self.interests.iter()
    }

    /// Whether nothing was ever told.
    #[must_use]
    pub const fn is_untouched(&self) -> bool {
        self.incarnation == 0
    }

    /// How many filters are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.interests.len()
    }

    /// Whether no filter is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.interests.is_empty()
    }

    /// The full list, as records.
    #[must_use]
    pub fn sync(&self) -> Vec<Record> {
        sync_records(self.seq, self.interests.iter())
    }

    /// Takes note that the origin lives as `incarnation`. A newer life forgets everything of the older one.
    pub fn reborn(&mut self, incarnation: u64) -> Applied {
        if incarnation <= self.incarnation {
            return Applied::default();
        }
        self.incarnation = incarnation;
        self.seq = 0;
        self.staging.clear();
        let removed: Vec<_> = std::mem::take(&mut self.interests).into_iter().collect();
        let forward = if removed.is_empty() { Vec::new() } else { self.sync() };
        Applied { added: Vec::new(), removed, forward }
    }

    /// Forgets the origin altogether, so that whatever life it has when it is heard of again is news.
    pub fn forget(&mut self) -> Applied {
        let known = std::mem::take(self);
        let forward = if known.is_untouched() { Vec::new() } else { vec![Record::Forget] };
        Applied { added: Vec::new(), removed: known.interests.into_iter().collect(), forward }
    }

    /// The bridge of `from` has ended: a list that began to come over it will not be completed.
    pub fn interrupt(&mut self, from: EdgeKey) {
        self.staging.remove(&from);
    }

    /// Applies one record of the life `incarnation` that came over `from`; records of an older life change nothing.
    pub fn apply(&mut self, incarnation: u64, from: EdgeKey, record: Record, filters_max: usize) -> Applied {
        if record == Record::Forget {
            return self.forget();
        }
        let mut applied = self.reborn(incarnation);
        if incarnation < self.incarnation {
            return applied;
        }
        match record {
            Record::Forget => {}
            Record::SyncStart { seq } => {
                // A list as of what is known is compared, too, since a change may have been missed before the last one.
                self.staging.remove(&from);
                if seq >= self.seq {
                    self.staging.insert(from, (seq, BTreeSet::new()));
                }
            }
            Record::SyncEnd { seq } => {
                // Another neighbour may have told of later changes meanwhile.
                let staged = self.staging.remove(&from).filter(|(staged, _)| *staged == seq && seq >= self.seq);
                if let Some((_, list)) = staged {
                    applied.added.extend(list.difference(&self.interests).cloned());
                    applied.removed.extend(self.interests.difference(&list).cloned());
                    self.interests = list;
                    let is_news = seq > self.seq || !(applied.added.is_empty() && applied.removed.is_empty());
                    self.seq = seq;
                    if is_news {
                        applied.forward = self.sync();
                    }
                }
            }
            Record::Change { seq, add, interest } => {
                if let Some((_, list)) = self.staging.get_mut(&from).filter(|(staged, _)| *staged == seq) {
                    if add && list.len() < filters_max {
                        list.insert(interest);
                    }
                } else if seq > self.seq && (!add || self.interests.len() < filters_max) {
                    self.seq = seq;
                    let changed =
                        if add { self.interests.insert(interest.clone()) } else { self.interests.remove(&interest) };
                    if changed {
                        let side = if add { &mut applied.added } else { &mut applied.removed };
                        side.push(interest.clone());
                    }
                    applied.forward.push(Record::Change { seq, add, interest });
                }
            }
        }
        applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGE: EdgeKey = EdgeKey(0);

    fn interest(filter: &str) -> Interest {
        Interest {
            filter: RawFilter::parse(filter.as_bytes()).unwrap(),
            classes: ClassSet::ALL,
            queue: None,
            observer: false,
        }
    }

    #[test]
    fn equal_subscriptions_are_one_record() {
        let mut local = Local::default();
        assert!(local.add(interest("a")).is_some());
        for _ in 0..10_000 {
            assert!(local.add(interest("a")).is_none());
        }
        for _ in 0..10_000 {
            assert!(local.remove(interest("a")).is_none());
        }
        assert!(matches!(local.remove(interest("a")), Some(Record::Change { seq: 2, add: false, .. })));
        assert!(local.remove(interest("a")).is_none(), "what was never added cannot go");
    }

    #[test]
    fn repeats_change_nothing_and_are_not_passed_on() {
        let mut local = Local::default();
        let mut remote = Remote::default();
        let record = local.add(interest("a")).unwrap();
        let first = remote.apply(1, EDGE, record.clone(), 10);
        assert_eq!((first.added.len(), first.forward.len()), (1, 1));
        assert_eq!(remote.apply(1, EDGE, record, 10), Applied::default());
        for record in local.sync() {
            assert_eq!(remote.apply(1, EDGE, record, 10), Applied::default(), "a sync of what is known is silent");
        }
    }

    #[test]
    fn a_sync_replaces_what_was_missed() {
        let mut local = Local::default();
        let mut remote = Remote::default();
        let early = local.add(interest("gone")).unwrap();
        remote.apply(7, EDGE, early, 10);
        local.remove(interest("gone"));
        local.add(interest("new.>"));
        let mut changes = Applied::default();
        for record in local.sync() {
            let applied = remote.apply(7, EDGE, record, 10);
            changes.added.extend(applied.added);
            changes.removed.extend(applied.removed);
        }
        assert_eq!(changes.added, [interest("new.>")]);
        assert_eq!(changes.removed, [interest("gone")]);
        let again = local.add(interest("x")).unwrap();
        assert_eq!(remote.apply(7, EDGE, again, 10).added.len(), 1, "changes go on after a sync");
    }

    #[test]
    fn a_new_life_forgets_the_old_and_an_old_life_is_ignored() {
        let mut remote = Remote::default();
        let record = Record::Change { seq: 9, add: true, interest: interest("a") };
        remote.apply(5, EDGE, record.clone(), 10);
        let reborn = remote.reborn(6);
        assert_eq!(reborn.removed, [interest("a")]);
        assert_eq!(reborn.forward.len(), 2, "an empty list is passed on");
        assert_eq!(remote.apply(5, EDGE, record, 10), Applied::default());
        let small = Record::Change { seq: 1, add: true, interest: interest("b") };
        assert_eq!(remote.apply(6, EDGE, small, 10).added, [interest("b")]);
    }

    #[test]
    fn an_origin_that_was_forgotten_is_news_again() {
        let mut remote = Remote::default();
        let record = Record::Change { seq: 9, add: true, interest: interest("a") };
        remote.apply(5, EDGE, record.clone(), 10);
        let forgotten = remote.apply(5, EDGE, Record::Forget, 10);
        assert_eq!((forgotten.removed, forgotten.forward), (vec![interest("a")], vec![Record::Forget]));
        assert_eq!(remote.apply(5, EDGE, Record::Forget, 10), Applied::default(), "and passed on once");
        assert_eq!(remote.apply(5, EDGE, record, 10).added, [interest("a")], "the same life, heard of again");
    }

    #[test]
    fn a_full_list_of_filters_can_shrink() {
        let mut remote = Remote::default();
        for seq in 1..=4u64 {
            let record = Record::Change { seq, add: true, interest: interest(&format!("f{seq}")) };
            remote.apply(1, EDGE, record, 3);
        }
        let gone = Record::Change { seq: 9, add: false, interest: interest("f1") };
        assert_eq!(remote.apply(1, EDGE, gone, 3).removed, [interest("f1")]);
    }

    #[test]
    fn lists_of_two_neighbours_do_not_mix() {
        let mut local = Local::default();
        ["a", "b", "c"].iter().for_each(|filter| drop(local.add(interest(filter))));
        let list = local.sync();
        let mut remote = Remote::default();
        // One neighbour is in the middle of its list when the other begins the same one, and each goes on in turn.
        let (first, second) = list.split_at(2);
        let told = [(EDGE, first), (EdgeKey(1), first), (EDGE, second), (EdgeKey(1), second)];
        for (edge, record) in told.into_iter().flat_map(|(edge, part)| part.iter().map(move |r| (edge, r.clone()))) {
            remote.apply(1, edge, record, 10);
        }
        assert_eq!(remote.len(), 3);
    }

    #[test]
    fn a_list_that_was_overtaken_takes_nothing_back() {
        let mut local = Local::default();
        local.add(interest("a"));
        let list = local.sync();
        let later = local.add(interest("b")).unwrap();
        let mut remote = Remote::default();
        let (begin, end) = list.split_at(1);
        begin.iter().for_each(|record| drop(remote.apply(1, EDGE, record.clone(), 10)));
        list.iter().for_each(|record| drop(remote.apply(1, EdgeKey(1), record.clone(), 10)));
        remote.apply(1, EdgeKey(1), later, 10);
        end.iter().for_each(|record| drop(remote.apply(1, EDGE, record.clone(), 10)));
        assert_eq!(remote.len(), 2);
    }

    #[test]
    fn the_number_of_filters_is_bounded() {
        let mut remote = Remote::default();
        for seq in 1..=5u64 {
            let record = Record::Change { seq, add: true, interest: interest(&format!("f{seq}")) };
            remote.apply(1, EDGE, record, 3);
        }
        assert_eq!(remote.len(), 3);
    }
}
