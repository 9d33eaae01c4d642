//! A persistent map from texts, made for millions of small ones.
//!
//! A hash tree whose leaves are buckets of a few entries in one piece of memory: next to nothing is spent beside keys and
//! values, and a change copies a path of four-way branches and one bucket. A shared version is never touched.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;

/// Seed of the hash, mixed with nothing secret: a tenant that searches for collisions slows its own table only.
const HASHER: FixedState = FixedState::with_seed(0x676c_6f63_616c_0001);
/// Ways of a branch, and bits of the hash that choose one.
const WAYS: usize = 4;
const WAY_BITS: u32 = 2;
/// Entries of a bucket before it becomes a branch: few, since a change copies all of them.
const BUCKET_ENTRIES: usize = 8;
/// Entries below a branch that become one bucket again: half as many, so that nothing goes to and fro.
const MERGE_ENTRIES: usize = BUCKET_ENTRIES / 2;

/// A key: a text, however it is kept.
pub(super) trait Key: Clone {
    /// The text.
    fn text(&self) -> &[u8];
}

/// A value; one that is empty is not kept.
pub(super) trait Value: Clone + Default {
    /// Whether nothing is there.
    fn is_empty(&self) -> bool;
}

#[derive(Clone, Debug)]
struct Entry<K, V> {
    hash: u32,
    key: K,
    value: V,
}

impl<K: Key, V> Entry<K, V> {
    fn is(&self, hash: u32, text: &[u8]) -> bool {
        self.hash == hash && self.key.text() == text
    }
}

/// The map.
#[derive(Clone, Debug, Default)]
pub(super) enum Tree<K, V> {
    /// Nothing.
    #[default]
    Empty,
    /// A few entries, in no order; more than a few where their hashes are the same.
    Bucket(Bucket<K, V>),
    /// More, by the next bits of their hash.
    Branch(Arc<[Self; WAYS]>),
}

/// Entries in one piece of memory.
#[derive(Clone, Debug)]
pub(super) struct Bucket<K, V>(Arc<[Entry<K, V>]>);

fn hash(text: &[u8]) -> u32 {
    // The lower half, on every machine.
    u32::try_from(HASHER.hash_one(text) & u64::from(u32::MAX)).unwrap_or(0)
}

/// The way to go at a branch; `None` when all bits of the hash are used up.
fn way(hash: u32, depth: u32) -> Option<usize> {
    let shifted = hash.checked_shr(depth * WAY_BITS)?;
    usize::try_from(shifted).ok().map(|bits| bits % WAYS)
}

impl<K: Key, V: Value> Tree<K, V> {
    /// Whether nothing is in it.
    pub(super) const fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// The value of a text.
    pub(super) fn get(&self, text: &[u8]) -> Option<&V> {
        if self.is_empty() {
            return None;
        }
        let hash = hash(text);
        let (mut tree, mut depth) = (self, 0);
        loop {
            match tree {
                Self::Empty => return None,
                Self::Bucket(Bucket(entries)) => {
                    return entries.iter().find(|entry| entry.is(hash, text)).map(|entry| &entry.value);
                }
                Self::Branch(ways) => tree = ways.get(way(hash, depth)?)?,
            }
            depth += 1;
        }
    }

    /// Changes the value of a text, an empty one where it has none; `key` makes its key where one is needed. A value that
    /// is empty afterwards is not kept.
    pub(super) fn update(&mut self, text: &[u8], key: &dyn Fn() -> K, change: &mut dyn FnMut(&mut V)) {
        self.update_at(0, hash(text), text, key, change);
    }

    fn update_at(&mut self, depth: u32, hash: u32, text: &[u8], key: &dyn Fn() -> K, change: &mut dyn FnMut(&mut V)) {
        match self {
            Self::Branch(ways) => {
                let Some(tree) = way(hash, depth).and_then(|way| Arc::make_mut(ways).get_mut(way)) else { return };
                tree.update_at(depth + 1, hash, text, key, change);
                let few = matches!(tree, Self::Empty | Self::Bucket(_));
                if few {
                    self.merge();
                }
                return;
            }
            Self::Bucket(Bucket(entries)) => {
                if let Some(at) = entries.iter().position(|entry| entry.is(hash, text)) {
                    self.change_at(at, change);
                    return;
                }
            }
            Self::Empty => {}
        }
        let mut value = V::default();
        change(&mut value);
        if !value.is_empty() {
            self.insert(depth, Entry { hash, key: key(), value });
        }
    }

    /// Changes an entry of this bucket.
    fn change_at(&mut self, at: usize, change: &mut dyn FnMut(&mut V)) {
        let Self::Bucket(Bucket(entries)) = self else { return };
        let Some(entry) = Arc::make_mut(entries).get_mut(at) else { return };
        change(&mut entry.value);
        if entry.value.is_empty() {
            let others = entries.iter().enumerate().filter(|(other, _)| *other != at);
            let rest: Arc<[_]> = others.map(|(_, entry)| entry.clone()).collect();
            *self = if rest.is_empty() { Self::Empty } else { Self::Bucket(Bucket(rest)) };
        }
    }

    /// Adds an entry with a text that is not in this bucket.
    fn insert(&mut self, depth: u32, entry: Entry<K, V>) {
        match self {
            Self::Empty => *self = Self::Bucket(Bucket(Arc::from([entry]))),
            Self::Bucket(Bucket(entries)) if entries.len() < BUCKET_ENTRIES || way(0, depth).is_none() => {
                let more = entries.iter().cloned().chain(std::iter::once(entry));
                *self = Self::Bucket(Bucket(more.collect()));
            }
            Self::Bucket(Bucket(entries)) => {
                let mut parts: [Vec<Entry<K, V>>; WAYS] = Default::default();
                for entry in entries.iter().cloned().chain(std::iter::once(entry)) {
                    if let Some(part) = way(entry.hash, depth).and_then(|way| parts.get_mut(way)) {
                        part.push(entry);
                    }
                }
                *self = Self::Branch(Arc::new(parts.map(|part| Self::of(depth + 1, part))));
            }
            Self::Branch(ways) => {
                if let Some(tree) = way(entry.hash, depth).and_then(|way| Arc::make_mut(ways).get_mut(way)) {
                    tree.insert(depth + 1, entry);
                }
            }
        }
    }

    /// A tree of some entries of one bucket.
    fn of(depth: u32, entries: Vec<Entry<K, V>>) -> Self {
        if entries.is_empty() {
            return Self::Empty;
        }
        if entries.len() <= BUCKET_ENTRIES {
            return Self::Bucket(Bucket(entries.into()));
        }
        let mut tree = Self::Empty;
        entries.into_iter().for_each(|entry| tree.insert(depth, entry));
        tree
    }

    /// Makes this branch a bucket where few entries are left.
    fn merge(&mut self) {
        let Self::Branch(ways) = self else { return };
        let mut left = 0;
        for tree in ways.iter() {
            match tree {
                Self::Empty => {}
                Self::Bucket(Bucket(entries)) => left += entries.len(),
                Self::Branch(_) => return,
            }
        }
        if left > MERGE_ENTRIES {
            return;
        }
        let entries = ways.iter().flat_map(|tree| match tree {
            Self::Bucket(Bucket(entries)) => entries.iter().cloned().collect(),
            _ => Vec::new(),
        });
        let entries: Vec<_> = entries.collect();
        *self = if entries.is_empty() { Self::Empty } else { Self::Bucket(Bucket(entries.into())) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use proptest::prelude::*;

    use super::*;

    impl Key for Arc<str> {
        fn text(&self) -> &[u8] {
            self.as_bytes()
        }
    }

    impl Value for u32 {
        fn is_empty(&self) -> bool {
            *self == 0
        }
    }

    type Numbers = Tree<Arc<str>, u32>;

    fn set(tree: &mut Numbers, text: &str, number: u32) {
        tree.update(text.as_bytes(), &|| Arc::from(text), &mut |value| *value = number);
    }

    fn entries(tree: &Numbers) -> usize {
        match tree {
            Tree::Empty => 0,
            Tree::Bucket(Bucket(entries)) => {
                assert!(!entries.is_empty(), "an empty bucket is nothing");
                entries.len()
            }
            Tree::Branch(ways) => {
                let below = ways.iter().map(entries).sum();
                assert!(below > MERGE_ENTRIES, "few entries are one bucket");
                below
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn it_is_a_map_whose_older_versions_stay(
            steps in prop::collection::vec((0..400u32, prop_oneof![Just(0u32), 1..9u32]), 1..1500),
        ) {
            let (mut tree, mut held) = (Numbers::default(), BTreeMap::new());
            let mut older = Vec::new();
            for (at, (text, number)) in steps.iter().enumerate() {
                set(&mut tree, &format!("t{text}"), *number);
                if *number == 0 { held.remove(text); } else { held.insert(*text, *number); }
                if at % 100 == 0 {
                    older.push((tree.clone(), held.clone()));
                }
            }
            older.push((tree.clone(), held.clone()));
            for (tree, held) in &older {
                prop_assert_eq!(entries(tree), held.len());
                for text in 0..400 {
                    prop_assert_eq!(tree.get(format!("t{text}").as_bytes()), held.get(&text));
                }
            }
            for text in held.keys() {
                set(&mut tree, &format!("t{text}"), 0);
            }
            prop_assert!(tree.is_empty(), "nothing is left of it");
        }
    }

    #[test]
    fn texts_of_the_same_hash_are_told_apart() {
        let mut seen = HashMap::new();
        let mut pairs = Vec::new();
        for number in 0..400_000u32 {
            let text = number.to_string();
            if let Some(other) = seen.insert(hash(text.as_bytes()), text.clone()) {
                pairs.push((other, text));
            }
        }
        assert!(!pairs.is_empty(), "some texts share the bits of a hash");
        let mut tree = Numbers::default();
        for (number, (a, b)) in (1u32..).zip(&pairs) {
            set(&mut tree, a, number);
            set(&mut tree, b, number + 1_000);
        }
        for (number, (a, b)) in (1u32..).zip(&pairs) {
            assert_eq!((tree.get(a.as_bytes()), tree.get(b.as_bytes())), (Some(&number), Some(&(number + 1_000))));
            set(&mut tree, a, 0);
            assert_eq!((tree.get(a.as_bytes()), tree.get(b.as_bytes())), (None, Some(&(number + 1_000))));
        }
    }

    #[test]
    fn more_than_a_bucket_of_one_hash_is_one_bucket() {
        let mut tree = Numbers::default();
        let count = u32::try_from(2 * BUCKET_ENTRIES).unwrap();
        for value in 1..=count {
            tree.insert(0, Entry { hash: 7, key: Arc::from(value.to_string()), value });
        }
        assert_eq!(entries(&tree), 2 * BUCKET_ENTRIES);
        let (mut at, mut depth) = (&tree, 0);
        while let Tree::Branch(ways) = at {
            at = &ways[way(7, depth).unwrap()];
            depth += 1;
        }
        assert!(matches!(at, Tree::Bucket(Bucket(entries)) if entries.len() == 2 * BUCKET_ENTRIES));
    }
}
