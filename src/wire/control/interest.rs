//! The bodies of presence, which go from neighbour to neighbour, and of pulled interest, which are carried inside
//! [`super::Routed`].

use bincode::{Decode, Encode};
use glocal_core::limits::{LABEL_BYTES_MAX, QUEUE_GROUP_BYTES_MAX, RAW_BYTES_MAX};
use glocal_core::name::ClassSet;

use super::body::{at_most, ensure, option_at_most};

/// That a broker has any subscriber of the lane's tenant, or none any more.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Presence {
    /// The broker's handle.
    pub origin: u32,
    /// The broker's incarnation when it said so.
    pub incarnation: u64,
    /// The number of what it said, in that incarnation.
    pub seq: u64,
    /// Whether it has any.
    pub present: bool,
}

impl Presence {
    pub(super) const fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// That an end of an edge does not let the lane's tenant over it, although the bundle would; or does again.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct EdgeCut {
    /// The handle of the end that says so.
    pub origin: u32,
    /// That broker's incarnation when it said so.
    pub incarnation: u64,
    /// The number of what it said of this edge, in that incarnation.
    pub seq: u64,
    /// The name of the edge.
    pub edge: String,
    /// Whether it is cut.
    pub cut: bool,
}

impl EdgeCut {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("edge", &self.edge, LABEL_BYTES_MAX)
    }
}

/// What the sender knows of who is present of all tenants that the edge carries, in one number; on the control stream.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PresenceRoot {
    /// The digest.
    pub root: u64,
}

impl PresenceRoot {
    pub(super) const fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// What the sender knows of who is present of the lane's tenant, in one number.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PresenceSum {
    /// The digest.
    pub digest: u64,
}

impl PresenceSum {
    pub(super) const fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// The sender has told of every broker it knew of, in the lane of this tenant.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PresenceEnd {
    /// How many brokers it told of.
    pub told: u32,
}

impl PresenceEnd {
    pub(super) const fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// The sum of a list of interest, by which two sides see whether theirs are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct InterestSum {
    /// The digests of all its entries, added up.
    pub digest: u64,
    /// How many entries there are.
    pub count: u64,
}

/// Asks an origin for its interest in the lane's tenant, and for its changes from then on; said again before the lease ends.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct InterestPull {
    /// The number of the stream of messages; a greater one is newer.
    pub stream: u64,
    /// How many messages of the stream were taken.
    pub taken: u64,
    /// The list that is held.
    pub have: InterestSum,
    /// Whether nothing more is wanted.
    pub end: bool,
}

impl InterestPull {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        ensure("stream", self.stream > 0)
    }
}

/// One thing that subscribers of an origin want, or want no more.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct InterestChange {
    /// Whether it came, or went.
    pub add: bool,
    /// The raw filter.
    pub filter: String,
    /// The classes, one bit each; at least one.
    pub classes: u8,
    /// The queue group.
    pub queue: Option<String>,
    /// Whether it is an observer's, who never counts as a responder.
    pub observer: bool,
}

/// One message of a stream of interest, from its origin to one broker that asked.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct InterestNews {
    /// The stream.
    pub stream: u64,
    /// The place in the stream; the first is 0.
    pub number: u64,
    /// 1 where the list begins here, 2 where the list that is held is right, else 0.
    pub start: u8,
    /// What came and went, in order.
    pub changes: Vec<InterestChange>,
    /// After these changes the list is complete, and this is its sum.
    pub complete: Option<InterestSum>,
}

impl InterestNews {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        ensure("start", self.start <= 2)?;
        self.changes.iter().try_for_each(|change| {
            at_most("filter", &change.filter, RAW_BYTES_MAX)?;
            ensure("classes", ClassSet::from_bits(change.classes).is_some())?;
            option_at_most("queue", change.queue.as_deref(), QUEUE_GROUP_BYTES_MAX)
        })
    }
}
