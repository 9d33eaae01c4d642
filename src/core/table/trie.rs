//! The persistent trie of filters, with a hash map of literal filters in front of it.

use std::sync::Arc;

use foldhash::fast::FixedState;
use rpds::{HashTrieMap, RedBlackTreeMapSync};
type ArcKind = archery::ArcTK;

use super::RemoteInterest;
use crate::name::{RawFilter, RawName};
use crate::port::Sub;

type Map<V> = HashTrieMap<Arc<str>, V, ArcKind, FixedState>;

/// Seed of the maps' hash, mixed with nothing secret: a tenant that searches for collisions slows its own table only.
const HASH_SEED: u64 = 0x676c_6f63_616c_0001;

fn empty_map<V>() -> Map<V> {
    Map::new_with_hasher_and_ptr_kind(FixedState::with_seed(HASH_SEED))
}

/// Everybody who holds one filter.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaf {
    /// Local subscriptions by (session, subscription id).
    pub(super) locals: RedBlackTreeMapSync<(u64, u32), Arc<Sub>>,
    /// Remote interest.
    pub(super) remotes: RedBlackTreeMapSync<RemoteInterest, ()>,
}

impl Leaf {
    fn is_empty(&self) -> bool {
        self.locals.is_empty() && self.remotes.is_empty()
    }
}

#[derive(Clone, Debug)]
struct Node {
    here: Leaf,
    tail: Leaf,
    star: Option<Arc<Node>>,
    children: Map<Arc<Node>>,
}

impl Default for Node {
    fn default() -> Self {
        Self { here: Leaf::default(), tail: Leaf::default(), star: None, children: empty_map() }
    }
}

impl Node {
    fn is_empty(&self) -> bool {
        self.here.is_empty() && self.tail.is_empty() && self.star.is_none() && self.children.is_empty()
    }

    fn update<'t>(&mut self, mut tokens: impl Iterator<Item = &'t str>, change: &mut dyn FnMut(&mut Leaf)) {
        let Some(token) = tokens.next() else { return change(&mut self.here) };
        match token {
            ">" => change(&mut self.tail),
            "*" => {
                let mut child = self.star.take().unwrap_or_default();
                Arc::make_mut(&mut child).update_dyn(&mut tokens, change);
                self.star = (!child.is_empty()).then_some(child);
            }
            word => {
                let mut child = self.children.get(word).cloned().unwrap_or_default();
                Arc::make_mut(&mut child).update_dyn(&mut tokens, change);
                if child.is_empty() {
                    self.children.remove_mut(word);
                } else {
                    self.children.insert_mut(Arc::from(word), child);
                }
            }
        }
    }

    fn update_dyn(&mut self, tokens: &mut dyn Iterator<Item = &str>, change: &mut dyn FnMut(&mut Leaf)) {
        self.update(tokens, change);
    }

    fn walk(&self, rest: Option<&str>, visit: &mut dyn FnMut(&Leaf)) {
        let Some(rest) = rest else { return visit(&self.here) };
        let (token, rest) = rest.split_once('.').map_or((rest, None), |(token, rest)| (token, Some(rest)));
        visit(&self.tail);
        if let Some(child) = self.children.get(token) {
            child.walk(rest, visit);
        }
        if let Some(star) = &self.star {
            star.walk(rest, visit);
        }
    }
}

/// Filters of one tenant.
#[derive(Clone, Debug)]
pub(super) struct Trie {
    literals: Map<Leaf>,
    wild: Arc<Node>,
    len: usize,
}

impl Default for Trie {
    fn default() -> Self {
        Self { literals: empty_map(), wild: Arc::default(), len: 0 }
    }
}

impl Trie {
    /// Distinct filters held.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Changes the leaf of `filter`; a leaf left empty is removed.
    pub(super) fn update(&mut self, filter: &RawFilter, mut change: impl FnMut(&mut Leaf)) {
        let (mut before, mut after) = (true, true);
        let mut counted = |leaf: &mut Leaf| {
            before = leaf.is_empty();
            change(leaf);
            after = leaf.is_empty();
        };
        if filter.is_literal() {
            let mut leaf = self.literals.get(filter.as_str()).cloned().unwrap_or_default();
            counted(&mut leaf);
            if leaf.is_empty() {
                self.literals.remove_mut(filter.as_str());
            } else {
                self.literals.insert_mut(Arc::from(filter.as_str()), leaf);
            }
        } else {
            Arc::make_mut(&mut self.wild).update_dyn(&mut filter.tokens(), &mut counted);
        }
        match (before, after) {
            (true, false) => self.len += 1,
            (false, true) => self.len -= 1,
            _ => {}
        }
    }

    /// Visits the leaf of every filter that matches `raw`, literal first.
    pub(super) fn walk(&self, raw: RawName<'_>, visit: &mut dyn FnMut(&Leaf)) {
        if let Some(leaf) = self.literals.get(raw.as_str()) {
            visit(leaf);
        }
        if !self.wild.is_empty() {
            self.wild.walk(Some(raw.as_str()), visit);
        }
    }
}
