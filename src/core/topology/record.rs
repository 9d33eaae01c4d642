//! What the ends of an edge say of it, and the exact bytes they sign.
//!
//! An edge is up by the word of both its ends, each for itself, and down by the word of either. Both words are for one
//! epoch of the edge: one bridge. Nothing here names a tenant.

use super::Observer;
use crate::name::{Label, NodeId};

/// An Ed25519 signature.
pub type Signature = [u8; 64];
/// An Ed25519 public key.
pub type PublicKey = [u8; 32];

/// The word of one end of an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consent {
    /// The life of the broker that gives it.
    pub incarnation: u64,
    /// Its signature under the link key of that life.
    pub signature: Signature,
}

/// The state of one edge, as told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Both ends say that it is up.
    Up {
        /// The bridge, newer ones have greater numbers.
        epoch: u64,
        /// How often the cost was told, within the epoch.
        revision: u32,
        /// The cost of crossing it.
        cost: u32,
        /// The word of the lesser end, which tells the cost, and of the other end.
        ends: [Consent; 2],
    },
    /// One end says that it is down.
    Down {
        /// The bridge that ended.
        epoch: u64,
        /// The end that says so: 0 for the lesser one.
        by: usize,
        /// Its word.
        end: Consent,
    },
}

impl LinkState {
    /// What orders the states of one edge: the later one is believed. Down ends its epoch.
    #[must_use]
    pub const fn order(&self) -> (u64, bool, u32) {
        match self {
            Self::Up { epoch, revision, .. } => (*epoch, false, *revision),
            Self::Down { epoch, .. } => (*epoch, true, 0),
        }
    }

    /// Whether it says that the edge is up.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self, Self::Up { .. })
    }
}

/// A record that floods over the control streams of bridges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkRecord {
    /// A broker's link key in one of its lives.
    Key(LinkKey),
    /// The state of an edge.
    State {
        /// The edge.
        edge: Label,
        /// Its state.
        state: LinkState,
    },
    /// Whether a broker has an observer of all tenants.
    Observer(Observer),
}

/// The key by which a broker signs for its edges in one life, certified by its leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkKey {
    /// The broker.
    pub node: NodeId,
    /// Its life.
    pub incarnation: u64,
    /// The key.
    pub key: PublicKey,
    /// The broker's certificate and what leads to a root, DER, leaf first.
    pub chain: Vec<Vec<u8>>,
    /// The leaf's signature over [`LinkKey::signed_bytes`].
    pub signature: Vec<u8>,
}

impl LinkKey {
    /// The bytes that the leaf signs.
    #[must_use]
    pub fn signed_bytes(fabric: &Label, node: &NodeId, incarnation: u64, key: &PublicKey) -> Vec<u8> {
        let mut bytes = begin(b"glocal link key 1", fabric);
        field(&mut bytes, node.to_string().as_bytes());
        bytes.extend_from_slice(&incarnation.to_le_bytes());
        bytes.extend_from_slice(key);
        bytes
    }
}

/// What one end of an edge says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// It is up, and crossing it costs this much: for the lesser end alone.
    Cost {
        /// How often the cost was told.
        revision: u32,
        /// The cost.
        cost: u32,
    },
    /// It is up.
    Up,
    /// It is down.
    Down,
}

impl Word {
    /// The bytes that the end signs.
    #[must_use]
    pub fn signed_bytes(self, fabric: &Label, edge: &Label, epoch: u64, incarnation: u64) -> Vec<u8> {
        let mut bytes = begin(b"glocal link state 1", fabric);
        field(&mut bytes, edge.as_str().as_bytes());
        bytes.extend_from_slice(&epoch.to_le_bytes());
        bytes.extend_from_slice(&incarnation.to_le_bytes());
        match self {
            Self::Cost { revision, cost } => {
                bytes.push(0);
                bytes.extend_from_slice(&revision.to_le_bytes());
                bytes.extend_from_slice(&cost.to_le_bytes());
            }
            Self::Up => bytes.push(1),
            Self::Down => bytes.push(2),
        }
        bytes
    }
}

pub(super) fn begin(purpose: &[u8], fabric: &Label) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    field(&mut bytes, purpose);
    field(&mut bytes, fabric.as_str().as_bytes());
    bytes
}

/// Fields carry their lengths, so that no two contents have the same bytes.
pub(super) fn field(bytes: &mut Vec<u8>, value: &[u8]) {
    bytes.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(value);
}

/// The cryptography of link records, which the node does: signatures over bytes that this module makes.
pub trait LinkCrypto: Send + std::fmt::Debug {
    /// This broker's link key in this life, certified.
    fn own_key(&self) -> LinkKey;

    /// Signs with this broker's link key.
    fn sign(&self, bytes: &[u8]) -> Signature;

    /// Whether a leaf of the broker that the fabric admits has certified the key, over `bytes`.
    fn verify_key(&self, key: &LinkKey, bytes: &[u8]) -> bool;

    /// Whether the leaf that has certified the key is this broker's own.
    fn is_own(&self, key: &LinkKey) -> bool {
        let leaf = key.chain.first();
        leaf.is_some() && leaf == self.own_key().chain.first()
    }

    /// Whether `signature` over `bytes` was made with `key`.
    fn verify(&self, key: &PublicKey, bytes: &[u8], signature: &Signature) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RB-21: a word of one edge, epoch or life is none of another.
    #[test]
    fn no_two_words_have_the_same_bytes() {
        let label = |text: &str| Label::parse(text).unwrap();
        let words = [Word::Up, Word::Down, Word::Cost { revision: 0, cost: 1 }, Word::Cost { revision: 1, cost: 0 }];
        let mut all: Vec<_> = words
            .into_iter()
            .flat_map(|word| [("f", "ab", 1, 2), ("fa", "b", 1, 2), ("f", "ab", 2, 1)].map(|at| (word, at)))
            .map(|(word, (fabric, edge, epoch, life))| word.signed_bytes(&label(fabric), &label(edge), epoch, life))
            .collect();
        all.push(LinkKey::signed_bytes(&label("f"), &NodeId::parse("r/n").unwrap(), 1, &[0; 32]));
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
