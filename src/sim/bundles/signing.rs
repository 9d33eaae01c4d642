//! The fabric of the world of bundles: it signs versions, and now and then two of one.

use std::sync::Arc;

use bytes::Bytes;
use glocal_core::bundle::{EdgeEntry, Head, NodeEntry, Piece, Section, SignedHead};
use glocal_core::identity::KeyId;
use glocal_core::name::{Label, NodeId, TenantId};
use glocal_core::time::UnixTime;
use glocal_wire::bundle::{encode_head, encode_section};

use super::{World, digest, name, signature};

impl World {
    pub(super) fn head(nodes: &[NodeId], ends: &[[usize; 2]], version: u64, pieces: &[Piece]) -> Option<SignedHead> {
        let mut head = Head::empty(Label::parse("sim").ok()?, UnixTime(0), UnixTime(1_000_000));
        let operator = TenantId::parse("ops").ok()?;
        let entry =
            |node: &NodeId| NodeEntry { node: node.clone(), tenant: operator.clone(), issuers: vec![KeyId([1; 32])] };
        head.version = version;
        head.roots = vec![KeyId([2; 32])];
        head.nodes = nodes.iter().map(entry).collect();
        for (number, [a, b]) in ends.iter().enumerate() {
            head.edges.push(EdgeEntry { name: name(number), a: nodes.get(*a)?.clone(), b: nodes.get(*b)?.clone() });
        }
        head.sections = pieces.iter().map(|piece| piece.digest).collect();
        head.sections.sort_unstable();
        let bytes = Bytes::from(encode_head(&head).ok()?);
        let (digest, signature) = (digest(&bytes), signature(&bytes));
        Some(SignedHead { head, digest, bytes, signature, certificate: Bytes::from_static(b"bundle key") })
    }

    /// The newest sections.
    pub(super) fn listed(&self) -> Vec<Piece> {
        self.newest.head.sections.iter().filter_map(|digest| self.pieces.get(digest).cloned()).collect()
    }

    /// Signs the next version, in which some tenants are on other edges; a twin has the version of the last one.
    pub(super) fn sign(&mut self, twin: bool) {
        let ends: Vec<[usize; 2]> = self.edges.iter().map(|edge| edge.ends).collect();
        let last = self.newest.clone();
        if self.sign_for(&ends).is_some() && twin {
            let pieces = self.listed();
            let version = last.head.version;
            // Only the twin exists; the next version is for another day.
            self.heads.remove(&self.newest.digest);
            if let Some(other) = Self::head(&self.nodes, &ends, version, &pieces) {
                self.heads.insert(other.digest, other);
            }
            self.newest = last;
        }
    }

    pub(super) fn sign_for(&mut self, ends: &[[usize; 2]]) -> Option<()> {
        let old = self.listed();
        let mut pieces = Vec::new();
        for (number, tenant) in self.tenants.clone().into_iter().enumerate() {
            let known = old.iter().find(|piece| piece.section.tenant == tenant);
            if self.random.chance(10) && !ends.is_empty() && known.is_some() {
                // It leaves the fabric.
                continue;
            }
            if let Some(known) = known.filter(|_| self.random.chance(50)) {
                pieces.push(known.clone());
                continue;
            }
            let mut section = Section::new(tenant, [self.random.byte(); 16]);
            section.edges = (0..ends.len()).filter(|_| self.random.chance(60)).map(name).collect();
            self.named.entry(number).or_default().extend(section.edges.iter().cloned());
            let bytes = Bytes::from(encode_section(&section).ok()?);
            let piece = Piece { section: Arc::new(section), digest: digest(&bytes), bytes };
            self.pieces.insert(piece.digest, piece.clone());
            pieces.push(piece);
        }
        self.newest = Self::head(&self.nodes, ends, self.newest.head.version + 1, &pieces)?;
        self.heads.insert(self.newest.digest, self.newest.clone());
        self.tale.signed += 1;
        Some(())
    }
}
