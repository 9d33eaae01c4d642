//! Roots, path building, and the memory of verified chains.
//!
//! Sizes are checked before anything is parsed. The issuer is that of webpki's verified path: what else a peer presents
//! beside it is ignored.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256, digest};
use glocal_core::deny::Deny;
use glocal_core::identity::{Fingerprint, KeyId, LeafName, certificate_facts, leaf_name};
use glocal_core::limits::{CERTIFICATE_BYTES_MAX, CHAIN_CACHE_MAX, CHAIN_CERTIFICATES_MAX};
use glocal_core::time::UnixTime;
use hashbrown::HashMap;
use parking_lot::Mutex;
use rustls_pki_types::{CertificateDer, TrustAnchor};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert, spki_for_anchor};

use super::credential::{self, CredentialError};

/// What the peer's certificate is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// The peer dialled: clientAuth.
    Client,
    /// The peer was dialled: serverAuth.
    Server,
}

/// The fabric's roots as trust anchors. Never empty.
#[derive(Clone, Debug)]
pub struct Roots {
    roots: Vec<Root>,
    anchors: Vec<TrustAnchor<'static>>,
}

#[derive(Clone, Debug)]
struct Root {
    key: KeyId,
    not_before: UnixTime,
    not_after: UnixTime,
    anchor: TrustAnchor<'static>,
}

impl Roots {
    /// Reads the roots from a PEM file.
    ///
    /// # Errors
    /// What is wrong with the file or a certificate in it.
    pub fn load(file: &Path, now: UnixTime) -> Result<Self, CredentialError> {
        let name = file.display().to_string();
        Self::from_pem(&name, &credential::read_file(file)?, now)
    }

    /// Reads the roots from PEM text; `name` stands for it in errors.
    ///
    /// Around a succession one root may be over and another not yet begun: at least one must be in force.
    ///
    /// # Errors
    /// As [`Roots::load`].
    pub fn from_pem(name: &str, pem: &[u8], now: UnixTime) -> Result<Self, CredentialError> {
        let mut roots = Vec::new();
        let mut in_force = Err(CredentialError::NoCertificate { file: name.to_owned() });
        for certificate in credential::certificates(name, pem)? {
            let bad = |reason| CredentialError::BadCertificate { file: name.to_owned(), reason };
            let facts = certificate_facts(&certificate).map_err(bad)?;
            if !facts.authority {
                return Err(CredentialError::NotAnAuthority { file: name.to_owned() });
            }
            if in_force.is_err() {
                in_force = credential::check_dates(name, facts.not_before, facts.not_after, now);
            }
            let anchor = anchor_from_trusted_cert(&certificate).map_err(|_| bad(Deny::CertMalformed))?.to_owned();
            let key = key_id(&spki_for_anchor(&anchor));
            roots.push(Root { key, not_before: facts.not_before, not_after: facts.not_after, anchor });
        }
        in_force.map(|()| Self::new(roots))
    }

    fn new(roots: Vec<Root>) -> Self {
        let anchors = roots.iter().map(|root| root.anchor.clone()).collect();
        Self { roots, anchors }
    }

    /// The keys of the roots.
    pub fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.roots.iter().map(|root| root.key)
    }

    /// The roots whose keys are listed; `None` when there is none.
    pub(super) fn listed_in(&self, keys: &[KeyId]) -> Option<Self> {
        let listed: Vec<_> = self.roots.iter().filter(|root| keys.contains(&root.key)).cloned().collect();
        (!listed.is_empty()).then(|| Self::new(listed))
    }

    pub(super) fn anchors(&self) -> &[TrustAnchor<'static>] {
        &self.anchors
    }

    /// Dates of the root with this key, the widest when it has several certificates.
    pub(super) fn dates(&self, key: KeyId) -> Option<(UnixTime, UnixTime)> {
        let dates = self.roots.iter().filter(|root| root.key == key).map(|root| (root.not_before, root.not_after));
        dates.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    fn contains(&self, key: KeyId) -> bool {
        self.roots.iter().any(|root| root.key == key)
    }
}

/// What a chain that was verified says. It holds as long as its root is trusted and its dates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedChain {
    /// The leaf's names; `not_after` is that of the first certificate of the path to expire.
    pub leaf: LeafName,
    /// The key that issued the leaf.
    pub issuer: KeyId,
    /// SHA-256 of the leaf.
    pub fingerprint: Fingerprint,
    /// Key of the root the path leads to.
    pub root: KeyId,
    /// When the last certificate of the path became valid.
    pub not_before: UnixTime,
}

pub(super) fn key_id(spki: &[u8]) -> KeyId {
    KeyId(sha256(spki))
}

pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

/// The time as webpki takes it; times before 1970 are 1970.
pub(super) fn pki_time(now: UnixTime) -> rustls_pki_types::UnixTime {
    rustls_pki_types::UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now.0).unwrap_or_default()))
}

fn check_sizes(chain: &[CertificateDer<'_>]) -> Result<(), Deny> {
    if chain.is_empty() {
        return Err(Deny::NoCertificate);
    }
    let too_large = chain.iter().any(|certificate| certificate.len() > CERTIFICATE_BYTES_MAX);
    if chain.len() > CHAIN_CERTIFICATES_MAX || too_large { Err(Deny::Limit) } else { Ok(()) }
}

fn verify(roots: &Roots, chain: &[CertificateDer<'_>], usage: Usage, now: UnixTime) -> Result<VerifiedChain, Deny> {
    let [leaf, intermediates @ ..] = chain else { return Err(Deny::NoCertificate) };
    let end_entity = EndEntityCert::try_from(leaf).map_err(|error| deny_of_webpki(&error))?;
    let key_usage = match usage {
        Usage::Client => KeyUsage::client_auth(),
        Usage::Server => KeyUsage::server_auth(),
    };
    let path = end_entity
        .verify_for_usage(
            super::tls::signature_algorithms().all,
            roots.anchors(),
            intermediates,
            pki_time(now),
            key_usage,
            None,
            None,
        )
        .map_err(|error| deny_of_webpki(&error))?;
    let mut name = leaf_name(leaf)?;
    // webpki does not look at dates of trust anchors, and tells no dates of a path: both are bounded here.
    let root = key_id(&spki_for_anchor(path.anchor()));
    let (root_from, root_until) = roots.dates(root).ok_or(Deny::CertUntrusted)?;
    let mut not_before = name.not_before.max(root_from);
    name.not_after = name.not_after.min(root_until);
    for intermediate in path.intermediate_certificates() {
        let facts = certificate_facts(&intermediate.der())?;
        name.not_after = name.not_after.min(facts.not_after);
        not_before = not_before.max(facts.not_before);
    }
    if now < not_before {
        return Err(Deny::CertNotYetValid);
    }
    if now > name.not_after {
        return Err(Deny::CertExpired);
    }
    Ok(VerifiedChain {
        leaf: name,
        issuer: key_id(&path.issuer_spki()),
        fingerprint: Fingerprint(sha256(leaf)),
        root,
        not_before,
    })
}

pub(super) fn deny_of_webpki(error: &webpki::Error) -> Deny {
    use webpki::Error;
    match error {
        Error::CertExpired { .. } => Deny::CertExpired,
        Error::CertNotValidYet { .. } => Deny::CertNotYetValid,
        Error::CertRevoked => Deny::CertRevoked,
        Error::RequiredEkuNotFoundContext(_)
        | Error::EmptyEkuExtension
        | Error::CaUsedAsEndEntity
        | Error::EndEntityUsedAsCa => Deny::CertUsage,
        Error::BadDer
        | Error::BadDerTime
        | Error::InvalidSerialNumber
        | Error::InvalidCertValidity
        | Error::ExtensionValueInvalid
        | Error::MalformedExtensions
        | Error::TrailingData(_)
        | Error::UnsupportedCertVersion => Deny::CertMalformed,
        _ => Deny::CertUntrusted,
    }
}

type ChainKey = ([u8; 32], Usage);

/// Chains verified so far, so that the handshake, the session and every reload do not pay for signatures again.
///
/// An entry says nothing of admission, which is asked of the bundle every time. It is used only while its root is
/// trusted and its dates hold, so it may outlive a trust epoch. When half of the limit is reached, the older half is
/// forgotten; a forgotten chain is verified again.
#[derive(Debug, Default)]
pub(super) struct ChainCache(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<ChainKey, Arc<VerifiedChain>>,
    old: HashMap<ChainKey, Arc<VerifiedChain>>,
}

impl ChainCache {
    pub(super) fn verify(
        &self,
        roots: &Roots,
        chain: &[CertificateDer<'_>],
        usage: Usage,
        now: UnixTime,
    ) -> Result<Arc<VerifiedChain>, Deny> {
        check_sizes(chain)?;
        let key = (chain_hash(chain), usage);
        let found = self.0.lock().find(&key);
        if let Some(known) = found.filter(|known| roots.contains(known.root))
            && known.not_before <= now
            && now <= known.leaf.not_after
        {
            return Ok(known);
        }
        let verified = Arc::new(verify(roots, chain, usage, now)?);
        self.0.lock().insert(key, verified.clone());
        Ok(verified)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let generations = self.0.lock();
        generations.young.len() + generations.old.len()
    }
}

impl Generations {
    fn find(&mut self, key: &ChainKey) -> Option<Arc<VerifiedChain>> {
        if let Some(known) = self.young.get(key) {
            return Some(known.clone());
        }
        let known = self.old.remove(key)?;
        self.insert(*key, known.clone());
        Some(known)
    }

    fn insert(&mut self, key: ChainKey, verified: Arc<VerifiedChain>) {
        if self.young.len() >= CHAIN_CACHE_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, verified);
    }
}

/// Hash of the whole chain; lengths keep certificates apart.
fn chain_hash(chain: &[CertificateDer<'_>]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for certificate in chain {
        context.update(&(certificate.len() as u64).to_be_bytes());
        context.update(certificate);
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}
