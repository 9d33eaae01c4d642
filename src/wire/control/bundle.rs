//! Bodies by which neighbours follow changes of the bundle, and the range of each field. All travel on a bridge's control
//! stream, and a peer that does not know them passes over them.

use bincode::{Decode, Encode};
use glocal_core::limits::{ALLOWED_SET_MACS_MAX, BUNDLE_DIGESTS_MAX, BUNDLE_PART_BYTES_MAX, BUNDLE_TRANSFER_BYTES_MAX};

/// A part of the sender's allowed tenants for this edge, after a change, each as an HMAC under the bridge's TLS exporter.
/// Answered by [`AllowedApplied`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AllowedUpdate {
    /// Grows with every set on this bridge.
    pub generation: u64,
    /// The epoch of the bundle that the set is by.
    pub epoch: u64,
    /// Its version.
    pub version: u64,
    /// The codes.
    pub macs: Vec<[u8; 16]>,
    /// Whether the set is complete.
    pub last: bool,
}

impl AllowedUpdate {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.macs.len() > ALLOWED_SET_MACS_MAX { Err("macs") } else { Ok(()) }
    }
}

/// The sender goes by the peer's set of this generation: it accepts what both allow.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AllowedApplied {
    /// From the set.
    pub generation: u64,
}

impl AllowedApplied {
    pub(super) const fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// Which bundle the sender goes by.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BundleNews {
    /// Its epoch.
    pub epoch: u64,
    /// Its version.
    pub version: u64,
    /// SHA-256 of the bytes of its head.
    pub digest: [u8; 32],
}

impl BundleNews {
    pub(super) const fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// Sections that the sender holds and that may cross this edge.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SectionOffer {
    /// SHA-256 of each one's bytes.
    pub digests: Vec<[u8; 32]>,
}

impl SectionOffer {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.digests.len() > BUNDLE_DIGESTS_MAX { Err("digests") } else { Ok(()) }
    }
}

/// Asks for a head or for sections that the peer has told of.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BundleGet {
    /// SHA-256 of the bytes of each.
    pub digests: Vec<[u8; 32]>,
}

impl BundleGet {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.digests.len() > BUNDLE_DIGESTS_MAX { Err("digests") } else { Ok(()) }
    }
}

/// A part of what the peer has asked for: of a section's bytes, or of a bundle file without sections for a head. Parts
/// follow each other in order.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BundlePart {
    /// From the request.
    pub digest: [u8; 32],
    /// Length of the whole, in bytes; zero when the sender does not have it any more, or may not give it.
    pub total: u32,
    /// Where this part begins.
    pub offset: u32,
    /// The part.
    pub bytes: Vec<u8>,
}

impl BundlePart {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let total = usize::try_from(self.total).unwrap_or(usize::MAX);
        if total > BUNDLE_TRANSFER_BYTES_MAX {
            return Err("total");
        }
        let end = usize::try_from(self.offset).unwrap_or(usize::MAX).saturating_add(self.bytes.len());
        if self.bytes.len() > BUNDLE_PART_BYTES_MAX || end > total { Err("bytes") } else { Ok(()) }
    }
}
