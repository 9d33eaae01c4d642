//! How neighbours tell each other of newer bundles (DESIGN section 3): one machine per bridge, on its control stream.
//!
//! Each end says which head it goes by. Who has the older one asks for the newer head; who has the same offers the sections
//! that may cross this edge, and is asked for those the other lacks. Bytes travel as they were signed; the node verifies
//! them. A section crosses only an edge that its version held here, or the one before, names, and that local configuration
//! allows. One head or section arrives at a time, and only what was asked for.

use std::collections::{BTreeSet, HashSet, VecDeque};

use bytes::{Bytes, BytesMut};
use glocal_core::bundle::{Holding, SectionDigest};
use glocal_core::limits::{BUNDLE_DIGESTS_MAX, BUNDLE_PART_BYTES_MAX, BUNDLE_TRANSFER_MS_MAX};
use glocal_core::name::{Label, TenantId};
use glocal_core::time::Time;
use glocal_wire::bundle::Envelope;
use glocal_wire::control::{BundleGet, BundleNews, BundlePart, Control, SectionOffer};

/// Why a bridge must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GossipFault {
    /// A part of something nobody asked for, or out of order.
    #[error("protocol error: a part of a bundle that was not asked for")]
    Unasked,
    /// More requests than one end may have open.
    #[error("protocol error: more than {BUNDLE_DIGESTS_MAX} parts of a bundle asked for at once")]
    TooMany,
}

/// Something that was asked for and has arrived as a whole. Nothing in it has been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// What it was asked for by.
    pub digest: [u8; 32],
    /// Whether it is to be a head, as a bundle file without sections, or else a section.
    pub is_head: bool,
    /// Its bytes.
    pub bytes: Bytes,
}

#[derive(Debug)]
struct Arriving {
    digest: [u8; 32],
    total: usize,
    bytes: BytesMut,
}

#[derive(Debug)]
struct Leaving {
    digest: [u8; 32],
    bytes: Bytes,
    offset: usize,
}

/// What one bridge has told and heard of bundles.
#[derive(Debug)]
pub struct Gossip {
    edge: Label,
    told: Option<[u8; 32]>,
    offered: HashSet<SectionDigest>,
    peer: Option<BundleNews>,
    /// A head of the peer that was not taken: it is not asked for again.
    rejected: Option<[u8; 32]>,
    wanted: BTreeSet<SectionDigest>,
    /// What was asked for and has not come, and since when nothing has come.
    asked: HashSet<[u8; 32]>,
    asked_head: Option<[u8; 32]>,
    since: Time,
    arriving: Option<Arriving>,
    requests: VecDeque<[u8; 32]>,
    leaving: Option<Leaving>,
    out: VecDeque<Control>,
    /// Requests for what this edge may not carry.
    pub refused: u64,
}

impl Gossip {
    /// A bridge of `edge` on which nothing was told.
    #[must_use]
    pub fn new(edge: Label, now: Time) -> Self {
        Self {
            edge,
            told: None,
            offered: HashSet::new(),
            peer: None,
            rejected: None,
            wanted: BTreeSet::new(),
            asked: HashSet::new(),
            asked_head: None,
            since: now,
            arriving: None,
            requests: VecDeque::new(),
            leaving: None,
            out: VecDeque::new(),
            refused: 0,
        }
    }

    /// Looks at what is held now: to be called when the bridge is up, after every change, and from time to time.
    /// `configured` says which tenants local configuration allows on the edge.
    pub fn look(&mut self, holding: &Holding, configured: impl Fn(&TenantId) -> bool, now: Time) {
        let signed = holding.signed();
        if self.told != Some(signed.digest) {
            self.told = Some(signed.digest);
            let (epoch, version) = (signed.head.epoch, signed.head.version);
            self.out.push_back(BundleNews { epoch, version, digest: signed.digest }.into());
        }
        if now >= self.since.plus_millis(BUNDLE_TRANSFER_MS_MAX) {
            // What has not come by now is asked for again, if it is offered again or still newer.
            self.wanted.extend(self.asked.drain());
            (self.asked_head, self.arriving, self.since) = (None, None, now);
        }
        self.wanted.retain(|digest| holding.wants(digest));
        if self.is_level(holding) {
            let fresh: Vec<_> =
                holding.offers(&self.edge, configured).into_iter().filter(|d| self.offered.insert(*d)).collect();
            let offers = fresh.chunks(BUNDLE_DIGESTS_MAX).map(|part| SectionOffer { digests: part.to_vec() }.into());
            self.out.extend(offers);
        }
        self.ask(holding, now);
    }

    /// Whether the peer goes by the head that is held here.
    #[must_use]
    pub fn is_level(&self, holding: &Holding) -> bool {
        self.peer.as_ref().is_some_and(|news| news.digest == holding.signed().digest)
    }

    /// Whether the peer says that it goes by a newer bundle.
    #[must_use]
    pub fn is_behind(&self, holding: &Holding) -> bool {
        let held = &holding.signed().head;
        self.peer.as_ref().is_some_and(|news| (news.epoch, news.version) > (held.epoch, held.version))
    }

    /// Whether nothing is on its way to this end.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.asked.is_empty() && self.asked_head.is_none()
    }

    /// The peer goes by this head.
    pub fn on_news(&mut self, news: BundleNews, holding: &Holding, now: Time) {
        if self.peer.as_ref().is_none_or(|known| known.digest != news.digest) {
            // By another head other sections are listed: what was offered before says nothing.
            self.offered.clear();
        }
        self.peer = Some(news);
        self.ask(holding, now);
    }

    /// The peer holds these sections.
    pub fn on_offer(&mut self, offer: &SectionOffer, holding: &Holding, now: Time) {
        self.wanted.extend(offer.digests.iter().filter(|digest| holding.wants(digest)));
        self.ask(holding, now);
    }

    /// The peer asks for these.
    ///
    /// # Errors
    /// [`GossipFault::TooMany`].
    pub fn on_get(&mut self, get: BundleGet) -> Result<(), GossipFault> {
        if self.requests.len() + get.digests.len() > BUNDLE_DIGESTS_MAX {
            return Err(GossipFault::TooMany);
        }
        self.requests.extend(get.digests);
        Ok(())
    }

    /// A part of what was asked for; what has arrived when it was the last one.
    ///
    /// # Errors
    /// [`GossipFault::Unasked`].
    pub fn on_part(&mut self, part: BundlePart, now: Time) -> Result<Option<Arrival>, GossipFault> {
        let BundlePart { digest, total, offset, bytes } = part;
        let is_head = self.asked_head == Some(digest);
        if !is_head && !self.asked.contains(&digest) {
            return Err(GossipFault::Unasked);
        }
        self.since = now;
        let (total, offset) = (total as usize, offset as usize);
        if total == 0 {
            // The peer does not have it any more, or may not give it; a head is told of again when there is another.
            self.received(&digest);
            if is_head {
                self.rejected = Some(digest);
            }
            return Ok(None);
        }
        let arriving = self.arriving.get_or_insert_with(|| Arriving { digest, total, bytes: BytesMut::new() });
        let in_order = arriving.digest == digest && arriving.total == total && arriving.bytes.len() == offset;
        if !in_order || bytes.is_empty() {
            return Err(GossipFault::Unasked);
        }
        arriving.bytes.extend_from_slice(&bytes);
        if arriving.bytes.len() < total {
            return Ok(None);
        }
        let bytes = self.arriving.take().map(|whole| whole.bytes.freeze()).unwrap_or_default();
        self.received(&digest);
        Ok(Some(Arrival { digest, is_head, bytes }))
    }

    /// A head that arrived was not taken.
    pub const fn reject(&mut self, digest: [u8; 32]) {
        self.rejected = Some(digest);
    }

    /// What is to be sent next, a part of a bundle at most; `None` when there is nothing.
    pub fn next(&mut self, holding: &Holding, configured: impl Fn(&TenantId) -> bool) -> Option<Control> {
        if let Some(control) = self.out.pop_front() {
            return Some(control);
        }
        if self.leaving.is_none() {
            let digest = self.requests.pop_front()?;
            let Some(bytes) = self.give(&digest, holding, configured) else {
                return Some(BundlePart { digest, total: 0, offset: 0, bytes: Vec::new() }.into());
            };
            self.leaving = Some(Leaving { digest, bytes, offset: 0 });
        }
        let leaving = self.leaving.as_mut()?;
        let rest = leaving.bytes.get(leaving.offset..).unwrap_or_default();
        let part = rest.get(..rest.len().min(BUNDLE_PART_BYTES_MAX)).unwrap_or_default();
        let body = BundlePart {
            digest: leaving.digest,
            total: u32::try_from(leaving.bytes.len()).unwrap_or(u32::MAX),
            offset: u32::try_from(leaving.offset).unwrap_or(u32::MAX),
            bytes: part.to_vec(),
        };
        leaving.offset += part.len();
        if leaving.offset >= leaving.bytes.len() {
            self.leaving = None;
        }
        Some(body.into())
    }

    /// Whether [`Self::next`] has something.
    #[must_use]
    pub fn has_next(&self) -> bool {
        !(self.out.is_empty() && self.requests.is_empty() && self.leaving.is_none())
    }

    fn give(&mut self, digest: &[u8; 32], holding: &Holding, configured: impl Fn(&TenantId) -> bool) -> Option<Bytes> {
        let signed = holding.signed();
        if *digest == signed.digest {
            let envelope = Envelope {
                bundle_key_cert: signed.certificate.to_vec(),
                head: signed.bytes.to_vec(),
                signature: signed.signature.to_vec(),
                sections: Vec::new(),
            };
            return envelope.encode().ok().map(Bytes::from);
        }
        let piece = holding.piece(digest)?;
        if !configured(&piece.section.tenant) || !holding.may_cross(&piece.section, &self.edge) {
            self.refused += 1;
            return None;
        }
        Some(piece.bytes.clone())
    }

    fn received(&mut self, digest: &[u8; 32]) {
        self.asked.remove(digest);
        if self.asked_head == Some(*digest) {
            self.asked_head = None;
        }
    }

    /// Asks for a newer head, or for the sections that are wanted by the head both ends go by.
    fn ask(&mut self, holding: &Holding, now: Time) {
        if !self.is_quiet() {
            return;
        }
        let Some(news) = &self.peer else { return };
        let (held, signed) = (&holding.signed().head, holding.signed());
        // One of the same version and other bytes is asked for, too: only its signature tells whether somebody lies.
        let is_due = (news.epoch, news.version) >= (held.epoch, held.version) && news.digest != signed.digest;
        if is_due && self.rejected != Some(news.digest) {
            self.asked_head = Some(news.digest);
            self.since = now;
            self.out.push_back(BundleGet { digests: vec![news.digest] }.into());
            return;
        }
        let digests: Vec<_> = self.wanted.iter().take(BUNDLE_DIGESTS_MAX).copied().collect();
        if digests.is_empty() {
            return;
        }
        for digest in &digests {
            self.wanted.remove(digest);
        }
        self.asked.extend(digests.iter().copied());
        self.since = now;
        self.out.push_back(BundleGet { digests }.into());
    }
}

#[cfg(test)]
mod tests;
