//! What a broker holds of the bundle while it runs: the signed head, the sections it has met, and for a moment the ones
//! that a newer head has outdated (DESIGN section 3).
//!
//! It takes heads and sections whose signature and digest the caller has verified, keeps their bytes as they were stored,
//! and says which section may cross which edge. An outdated section holds for [`BUNDLE_STALE_MS_MAX`], so that a broker
//! that has the head and not yet the section does not cut a tenant off; after that the tenant is allowed nowhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::{Bundle, BundleError, Head, Section, SectionDigest};
use crate::limits::BUNDLE_STALE_MS_MAX;
use crate::name::{Label, TenantId};
use crate::time::Time;

/// A head with the bytes that were signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedHead {
    /// What it says.
    pub head: Head,
    /// SHA-256 of its bytes.
    pub digest: [u8; 32],
    /// The head as it was signed.
    pub bytes: Bytes,
    /// Ed25519 signature over these bytes.
    pub signature: Bytes,
    /// DER of the bundle key's certificate.
    pub certificate: Bytes,
}

/// A section with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it says.
    pub section: Arc<Section>,
    /// SHA-256 of its bytes.
    pub digest: SectionDigest,
    /// The section as it was signed for.
    pub bytes: Bytes,
}

/// How a head stands to the one that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It comes after.
    Newer,
    /// It is the same, byte for byte.
    Same,
    /// It comes before.
    Older,
    /// It has the same epoch and version and other bytes: somebody signed twice.
    Equivocates,
    /// It is of another fabric.
    Foreign,
}

impl Standing {
    /// The stable code: metric label and log field.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Newer => "newer",
            Self::Same => "same",
            Self::Older => "older",
            Self::Equivocates => "equivocation",
            Self::Foreign => "foreign",
        }
    }
}

#[derive(Clone, Debug)]
struct Stale {
    piece: Piece,
    until: Time,
}

/// The bundle as one broker holds it.
#[derive(Clone, Debug)]
pub struct Holding {
    signed: Arc<SignedHead>,
    pieces: BTreeMap<TenantId, Piece>,
    by_digest: BTreeMap<SectionDigest, TenantId>,
    stale: BTreeMap<TenantId, Stale>,
    /// The edges of each tenant's section before the one that is held: whoever is there must hear of a narrowing.
    before: BTreeMap<TenantId, Vec<Label>>,
    bundle: Arc<Bundle>,
}

impl Holding {
    /// What was read at the start.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn new(signed: SignedHead, pieces: Vec<Piece>) -> Result<Self, BundleError> {
        let listed = pieces.iter().map(|piece| (piece.digest, Arc::clone(&piece.section))).collect();
        let bundle = Arc::new(Bundle::assemble(signed.head.clone(), listed)?);
        let by_digest = pieces.iter().map(|piece| (piece.digest, piece.section.tenant.clone())).collect();
        let pieces = pieces.into_iter().map(|piece| (piece.section.tenant.clone(), piece)).collect();
        let (stale, before) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { signed: Arc::new(signed), pieces, by_digest, stale, before, bundle })
    }

    /// The head.
    #[must_use]
    pub const fn signed(&self) -> &Arc<SignedHead> {
        &self.signed
    }

    /// The bundle in force.
    #[must_use]
    pub const fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// The sections that the head lists, by tenant.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.values()
    }

    /// The section with this digest, where the head lists it and it is held.
    #[must_use]
    pub fn piece(&self, digest: &SectionDigest) -> Option<&Piece> {
        self.pieces.get(self.by_digest.get(digest)?)
    }

    /// How many tenants hold by an outdated section.
    #[must_use]
    pub fn stale(&self) -> usize {
        self.stale.len()
    }

    /// How a head stands to the one that is held.
    #[must_use]
    pub fn standing(&self, head: &Head, digest: &[u8; 32]) -> Standing {
        let held = &self.signed.head;
        if head.fabric != held.fabric {
            return Standing::Foreign;
        }
        match (head.epoch, head.version).cmp(&(held.epoch, held.version)) {
            std::cmp::Ordering::Greater => Standing::Newer,
            std::cmp::Ordering::Less => Standing::Older,
            std::cmp::Ordering::Equal if *digest == self.signed.digest => Standing::Same,
            std::cmp::Ordering::Equal => Standing::Equivocates,
        }
    }

    /// This holding with a newer head and the sections that came with it. Sections that are held and still listed stay.
    /// Others are outdated: where `complete`, all that this broker should have came with the head, and they end at once.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn renewed(
        &self,
        signed: SignedHead,
        pieces: Vec<Piece>,
        complete: bool,
        now: Time,
    ) -> Result<Self, BundleError> {
        let mut next = self.clone();
        next.signed = Arc::new(signed);
        let mut new: BTreeMap<TenantId, Piece> = BTreeMap::new();
        for piece in pieces {
            new.insert(piece.section.tenant.clone(), piece);
        }
        for (tenant, piece) in &self.pieces {
            let listed = next.signed.head.sections.binary_search(&piece.digest).is_ok();
            if listed && !new.contains_key(tenant) {
                new.insert(tenant.clone(), piece.clone());
            } else if new.get(tenant).is_none_or(|new| new.digest != piece.digest) {
                next.before.insert(tenant.clone(), piece.section.edges.clone());
                if !new.contains_key(tenant) {
                    let until = now.plus_millis(BUNDLE_STALE_MS_MAX);
                    next.stale.entry(tenant.clone()).or_insert_with(|| Stale { piece: piece.clone(), until });
                }
            }
        }
        next.stale.retain(|tenant, _| !complete && !new.contains_key(tenant));
        next.pieces = new;
        next.reassembled()
    }

    /// This holding with these sections more.
    ///
    /// # Errors
    /// [`BundleError::UnlistedSection`] where the head does not list it, or the invariant that does not hold.
    pub fn with(&self, pieces: impl IntoIterator<Item = Piece>) -> Result<Self, BundleError> {
        let mut next = self.clone();
        for piece in pieces {
            let tenant = piece.section.tenant.clone();
            if next.pieces.get(&tenant).is_some_and(|known| known.digest != piece.digest) {
                return Err(BundleError::RepeatedSection(tenant));
            }
            next.stale.remove(&tenant);
            next.pieces.insert(tenant, piece);
        }
        next.reassembled()
    }

    /// This holding without the outdated sections whose time is over; `None` while there are none.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn expired(&self, now: Time) -> Option<Result<Self, BundleError>> {
        self.stale.values().any(|stale| now >= stale.until).then(|| {
            let mut next = self.clone();
            next.stale.retain(|_, stale| now < stale.until);
            next.reassembled()
        })
    }

    fn reassembled(mut self) -> Result<Self, BundleError> {
        let of = |piece: &Piece| (piece.digest, Arc::clone(&piece.section));
        let listed = self.pieces.values().map(of).collect();
        let stale = self.stale.values().map(|stale| of(&stale.piece)).collect();
        self.by_digest = self.pieces.values().map(|piece| (piece.digest, piece.section.tenant.clone())).collect();
        self.bundle = Arc::new(Bundle::assemble_with_stale(self.signed.head.clone(), listed, stale)?);
        Ok(self)
    }

    /// Whether the head lists a section with this digest that is not held.
    #[must_use]
    pub fn wants(&self, digest: &SectionDigest) -> bool {
        self.signed.head.sections.binary_search(digest).is_ok() && self.piece(digest).is_none()
    }

    /// Whether a section may cross an edge: it, or the version before it as far as this broker knows, names the edge.
    #[must_use]
    pub fn may_cross(&self, section: &Section, edge: &Label) -> bool {
        let tenant = &section.tenant;
        let earlier = self.before.get(tenant).is_some_and(|edges| edges.contains(edge));
        let held = self.pieces.get(tenant).is_some_and(|piece| piece.section.edges.contains(edge));
        let stale = self.stale.get(tenant).is_some_and(|stale| stale.piece.section.edges.contains(edge));
        section.edges.contains(edge) || earlier || held || stale
    }

    /// Whether a section that came over an edge is taken: the head lists it, it is not held yet, and it may cross the edge,
    /// whose configuration has the tenant (`configured`).
    #[must_use]
    pub fn admits(&self, piece: &Piece, edge: &Label, configured: bool) -> bool {
        configured && self.wants(&piece.digest) && self.may_cross(&piece.section, edge)
    }

    /// The sections held here that may cross an edge whose configuration has these tenants.
    #[must_use]
    pub fn offers(&self, edge: &Label, configured: impl Fn(&TenantId) -> bool) -> Vec<SectionDigest> {
        let fits = |piece: &&Piece| configured(&piece.section.tenant) && self.may_cross(&piece.section, edge);
        self.pieces.values().filter(fits).map(|piece| piece.digest).collect()
    }
}

#[cfg(test)]
mod tests;
