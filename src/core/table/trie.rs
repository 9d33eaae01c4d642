//! The persistent trie of filters, with a map of literal filters in front of it.

use std::sync::Arc;

use super::leaf::Leaf;
use super::tree::{Key, Tree, Value};
use crate::name::{RawFilter, RawName};

impl Key for RawFilter {
    fn text(&self) -> &[u8] {
        self.as_str().as_bytes()
    }
}

/// Bytes of a token that needs no memory of its own.
const SHORT_BYTES: usize = 22;

/// One token of a filter.
#[derive(Clone, Debug)]
enum Token {
    Short { len: u8, bytes: [u8; SHORT_BYTES] },
    Long(Arc<[u8]>),
}

impl Token {
    fn new(text: &[u8]) -> Self {
        let mut bytes = [0; SHORT_BYTES];
        match (bytes.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(start), Ok(len)) => {
                start.copy_from_slice(text);
                Self::Short { len, bytes }
            }
            _ => Self::Long(Arc::from(text)),
        }
    }
}

impl Key for Token {
    fn text(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Self::Long(bytes) => bytes,
        }
    }
}

/// What comes after a token. Most filters end soon after the first token that is theirs alone: ends need no node.
#[derive(Clone, Debug, Default)]
enum Child {
    #[default]
    Nothing,
    /// Only filters that end here.
    Here(Leaf),
    /// Only filters that end with `>` after this.
    Tail(Leaf),
    Node(Arc<Node>),
}

#[derive(Clone, Debug, Default)]
struct Node {
    here: Leaf,
    tail: Leaf,
    star: Child,
    children: Tree<Token, Child>,
}

impl Value for Child {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Nothing)
    }
}

impl Child {
    /// Changes the leaf of the filter that goes on with `rest`, if it goes on.
    fn update(&mut self, rest: Option<&str>, change: &mut dyn FnMut(&mut Leaf)) {
        match (&mut *self, rest) {
            (Self::Nothing, None) => *self = Self::Here(Leaf::default()),
            (Self::Nothing, Some(">")) => *self = Self::Tail(Leaf::default()),
            _ => {}
        }
        match (&mut *self, rest) {
            (Self::Here(leaf), None) | (Self::Tail(leaf), Some(">")) => {
                change(leaf);
                if leaf.is_empty() {
                    *self = Self::Nothing;
                }
            }
            _ => {
                let mut node = self.take_node();
                Arc::make_mut(&mut node).update(rest, change);
                *self = Self::of(node);
            }
        }
    }

    /// What it holds as a node.
    fn take_node(&mut self) -> Arc<Node> {
        match std::mem::take(self) {
            Self::Nothing => Arc::default(),
            Self::Here(here) => Arc::new(Node { here, ..Node::default() }),
            Self::Tail(tail) => Arc::new(Node { tail, ..Node::default() }),
            Self::Node(node) => node,
        }
    }

    /// A node, or less where that is enough.
    fn of(node: Arc<Node>) -> Self {
        if !(node.star.is_empty() && node.children.is_empty()) {
            return Self::Node(node);
        }
        match (node.here.is_empty(), node.tail.is_empty()) {
            (true, true) => Self::Nothing,
            (false, true) => Self::Here(node.here.clone()),
            (true, false) => Self::Tail(node.tail.clone()),
            (false, false) => Self::Node(node),
        }
    }

    fn walk(&self, rest: Option<&str>, visit: &mut dyn FnMut(&Leaf)) {
        match (self, rest) {
            (Self::Here(leaf), None) | (Self::Tail(leaf), Some(_)) => visit(leaf),
            (Self::Node(node), rest) => node.walk(rest, visit),
            _ => {}
        }
    }
}

/// The first token of a text, and what follows it.
fn split(text: &str) -> (&str, Option<&str>) {
    text.split_once('.').map_or((text, None), |(token, rest)| (token, Some(rest)))
}

impl Node {
    fn update(&mut self, rest: Option<&str>, change: &mut dyn FnMut(&mut Leaf)) {
        let Some(rest) = rest else { return change(&mut self.here) };
        match split(rest) {
            (">", None) => change(&mut self.tail),
            ("*", rest) => self.star.update(rest, change),
            (word, rest) => {
                let word = word.as_bytes();
                self.children.update(word, &|| Token::new(word), &mut |child| child.update(rest, change));
            }
        }
    }

    fn walk(&self, rest: Option<&str>, visit: &mut dyn FnMut(&Leaf)) {
        let visit_some = |leaf: &Leaf, visit: &mut dyn FnMut(&Leaf)| {
            if !leaf.is_empty() {
                visit(leaf);
            }
        };
        let Some(rest) = rest else { return visit_some(&self.here, visit) };
        let (token, rest) = split(rest);
        visit_some(&self.tail, visit);
        if let Some(child) = self.children.get(token.as_bytes()) {
            child.walk(rest, visit);
        }
        self.star.walk(rest, visit);
    }
}

/// Filters of one tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct Trie {
    literals: Tree<RawFilter, Leaf>,
    wild: Child,
    len: usize,
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
            self.literals.update(filter.text(), &|| filter.clone(), &mut counted);
        } else {
            self.wild.update(Some(filter.as_str()), &mut counted);
        }
        match (before, after) {
            (true, false) => self.len += 1,
            (false, true) => self.len -= 1,
            _ => {}
        }
    }

    /// Visits the leaf of every filter that matches `raw`, literal first.
    pub(super) fn walk(&self, raw: RawName<'_>, visit: &mut dyn FnMut(&Leaf)) {
        if let Some(leaf) = self.literals.get(raw.as_str().as_bytes()) {
            visit(leaf);
        }
        self.wild.walk(Some(raw.as_str()), visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is counted here is what a broker holds a million times.
    #[test]
    fn entries_are_small() {
        assert_eq!((size_of::<Leaf>(), size_of::<Token>(), size_of::<Child>()), (16, 24, 24));
        assert!(size_of::<Node>() <= 80);
    }
}
