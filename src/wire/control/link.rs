//! Bodies about the edges of the fabric, on the control stream of a bridge.
//!
//! All kinds are skippable: a neighbour of the last release passes over them.

use bincode::{Decode, Encode};
use glocal_core::limits::{
    CERTIFICATE_BYTES_MAX, CHAIN_CERTIFICATES_MAX, LABEL_BYTES_MAX, LEAF_SIGNATURE_BYTES_MAX, NODE_ID_BYTES_MAX,
};
use glocal_core::topology::BUCKETS;

use super::body::{at_most, ensure};

/// The epoch that this side proposes for its new bridge.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LinkPropose {
    /// The epoch; both sides take the greater one.
    pub epoch: u64,
    /// What this side's configuration adds to the measured cost.
    pub metric: u32,
}

impl LinkPropose {
    pub(super) const fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// Answers a probe that came in a data stream.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PathProbeAck {
    /// The probe's number.
    pub id: u64,
}

impl PathProbeAck {
    pub(super) const fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// The greater end's word that the edge is up.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LinkAgree {
    /// The epoch.
    pub epoch: u64,
    /// The life of the broker that says so.
    pub incarnation: u64,
    /// Its signature.
    pub signature: [u8; 64],
}

impl LinkAgree {
    pub(super) const fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// A broker's link key in one of its lives.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LinkKey {
    /// The broker.
    pub node: String,
    /// Its life.
    pub incarnation: u64,
    /// Its Ed25519 public key.
    pub key: [u8; 32],
    /// Its certificates, DER, leaf first.
    pub chain: Vec<Vec<u8>>,
    /// The leaf's signature over the key.
    pub signature: Vec<u8>,
}

impl LinkKey {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("node", &self.node, NODE_ID_BYTES_MAX)?;
        ensure("chain", (1..=CHAIN_CERTIFICATES_MAX).contains(&self.chain.len()))?;
        ensure("chain", self.chain.iter().map(Vec::len).sum::<usize>() <= 3 * CERTIFICATE_BYTES_MAX)?;
        ensure("signature", self.signature.len() <= LEAF_SIGNATURE_BYTES_MAX)
    }
}

/// Both ends of an edge say that it is up.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LinkUp {
    /// The edge.
    pub edge: String,
    /// The epoch.
    pub epoch: u64,
    /// How often the cost was told within the epoch.
    pub revision: u32,
    /// What crossing it costs.
    pub cost: u32,
    /// The lives of the lesser end and the other.
    pub incarnations: [u64; 2],
    /// Their signatures.
    pub signatures: [[u8; 64]; 2],
}

impl LinkUp {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("edge", &self.edge, LABEL_BYTES_MAX)
    }
}

/// One end of an edge says that it is down.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LinkDown {
    /// The edge.
    pub edge: String,
    /// The epoch that is over.
    pub epoch: u64,
    /// The end that says so: 0 for the lesser one, 1 for the other.
    pub by: u8,
    /// Its life.
    pub incarnation: u64,
    /// Its signature.
    pub signature: [u8; 64],
}

impl LinkDown {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("edge", &self.edge, LABEL_BYTES_MAX)?;
        ensure("by", self.by <= 1)
    }
}

/// What the sender knows of the fabric's edges, in short.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LinkDigest {
    /// Over everything.
    pub root: u64,
    /// Over each of 64 parts; empty where the root alone is told.
    pub buckets: Vec<u64>,
    /// Whether it answers a digest.
    pub answer: bool,
}

impl LinkDigest {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        ensure("buckets", self.buckets.is_empty() || self.buckets.len() == BUCKETS)
    }
}

/// Whether a broker has an observer of all tenants.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LinkObserver {
    /// The broker.
    pub node: String,
    /// Its life.
    pub incarnation: u64,
    /// The number of what it says, in that life.
    pub seq: u64,
    /// Whether it has one.
    pub present: bool,
    /// Its signature.
    pub signature: [u8; 64],
}

impl LinkObserver {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("node", &self.node, NODE_ID_BYTES_MAX)
    }
}
