//! Signatures of the world: they need no randomness, and nobody makes one by accident. They keep out no attacker; liars of
//! the world do not know how they are made.

use glocal_core::name::NodeId;
use glocal_core::topology::{LinkCrypto, LinkKey, PublicKey, Signature};

use crate::random::Trace;

/// The link key of one broker in one life.
#[derive(Debug)]
pub struct Toy {
    node: NodeId,
    incarnation: u64,
}

impl Toy {
    /// The key of `node` in its life `incarnation`.
    #[must_use]
    pub fn boxed(node: &NodeId, incarnation: u64) -> Box<dyn LinkCrypto> {
        Box::new(Self { node: node.clone(), incarnation })
    }

    fn key(node: &NodeId, incarnation: u64) -> PublicKey {
        let mut trace = Trace::default();
        trace.bytes(node.to_string().as_bytes());
        trace.number(incarnation);
        let mut key = [0; 32];
        key.iter_mut().zip(trace.hash().to_le_bytes()).for_each(|(slot, byte)| *slot = byte);
        key
    }

    fn mark(key: &PublicKey, bytes: &[u8]) -> Signature {
        let mut trace = Trace::default();
        trace.bytes(key);
        trace.bytes(bytes);
        let mut mark = [0; 64];
        mark.iter_mut().zip(trace.hash().to_le_bytes()).for_each(|(slot, byte)| *slot = byte);
        mark
    }
}

impl LinkCrypto for Toy {
    fn own_key(&self) -> LinkKey {
        let key = Self::key(&self.node, self.incarnation);
        let (node, incarnation) = (self.node.clone(), self.incarnation);
        LinkKey { node, incarnation, key, chain: vec![vec![0x30]], signature: key.to_vec() }
    }

    fn sign(&self, bytes: &[u8]) -> Signature {
        Self::mark(&Self::key(&self.node, self.incarnation), bytes)
    }

    fn verify_key(&self, key: &LinkKey, _: &[u8]) -> bool {
        key.signature == Self::key(&key.node, key.incarnation)
    }

    fn verify(&self, key: &PublicKey, bytes: &[u8], signature: &Signature) -> bool {
        Self::mark(key, bytes) == *signature
    }
}
