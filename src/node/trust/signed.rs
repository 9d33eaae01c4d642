//! From the bytes of a bundle file to a checked bundle.
//!
//! The order is fixed: the bundle key's certificate under a root, its signature over the head's stored bytes, then the
//! head is decoded; each section's digest, then the section is decoded. Nothing unsigned is decoded but the envelope.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use glocal_core::bundle::{Bundle, BundleError, Head, Piece, SignedHead};
use glocal_core::deny::Deny;
use glocal_core::identity::KeyId;
use glocal_core::limits::{BUNDLE_BYTES_MAX, CERTIFICATE_BYTES_MAX};
use glocal_core::name::Label;
use glocal_core::time::UnixTime;
use glocal_wire::bundle::{BundleCodecError, Envelope, decode_head, decode_section};
use rustls_pki_types::CertificateDer;
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter, spki_for_anchor};

use super::chain::{Roots, deny_of_webpki, key_id, pki_time, sha256};

/// What stands before `<fabric>/<epoch>` in the URI SAN of a bundle key's certificate.
const BUNDLE_KEY_URI: &str = "glocal://bundle-key/";

/// Why a bundle file is refused.
#[derive(Debug, thiserror::Error)]
pub enum BundleFileError {
    /// The file cannot be read.
    #[error("cannot be read")]
    Unreadable(#[source] io::Error),
    /// The bytes are no bundle.
    #[error(transparent)]
    Codec(#[from] BundleCodecError),
    /// No root of this node issued the bundle key's certificate, or it is not valid now.
    #[error("bundle key: {}", .0.template())]
    Key(Deny),
    /// The bundle key's certificate has not exactly one URI name, of the right form.
    #[error("bundle key: its certificate is not that of a bundle key")]
    KeyName,
    /// The head was not signed by the bundle key, or was changed.
    #[error("the bundle's signature is wrong")]
    Signature,
    /// The bundle key is certified for another fabric or epoch.
    #[error("the bundle key is of fabric '{fabric}' and epoch {epoch}, the bundle of '{head_fabric}' and {head_epoch}")]
    KeyScope {
        /// The key's fabric.
        fabric: Label,
        /// The key's epoch.
        epoch: u64,
        /// The head's fabric.
        head_fabric: Label,
        /// The head's epoch.
        head_epoch: u64,
    },
    /// The root that certified the bundle key is not a root of the bundle.
    #[error("the root of the bundle key, {0}, is not in the bundle")]
    Root(KeyId),
    /// A section was changed, or belongs to another bundle.
    #[error("section {index} of the bundle file is not one the head lists")]
    SectionDigest {
        /// Its place in the file, from 0.
        index: usize,
    },
    /// The contents break an invariant.
    #[error(transparent)]
    Contents(#[from] BundleError),
    /// The bundle is older than local configuration demands.
    #[error("bundle version {version} is below the configured minimum {minimum}")]
    BelowMinimum {
        /// Its version.
        version: u64,
        /// The least allowed.
        minimum: u64,
    },
    /// The bundle has expired.
    #[error("the bundle expired at {0}")]
    Expired(UnixTime),
}

/// A bundle file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: bundle refused")]
pub struct BundleLoadError {
    /// The file.
    pub file: String,
    /// Why.
    pub source: BundleFileError,
}

/// Reads, verifies and checks a bundle file.
///
/// # Errors
/// The first thing that is wrong, with the file's name.
pub fn load_bundle_file(
    file: &Path,
    roots: &Roots,
    minimum_version: u64,
    now: UnixTime,
) -> Result<Bundle, BundleLoadError> {
    read(file)
        .and_then(|bytes| load_bundle(&bytes, roots, minimum_version, now))
        .map_err(|source| BundleLoadError { file: file.display().to_string(), source })
}

/// At most one byte more than a bundle may have; decoding refuses that.
fn read(file: &Path) -> Result<Vec<u8>, BundleFileError> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|opened| opened.take(BUNDLE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
        .map_err(BundleFileError::Unreadable)?;
    Ok(bytes)
}

/// Verifies and checks the bytes of a bundle file.
///
/// # Errors
/// The first thing that is wrong.
pub fn load_bundle(file: &[u8], roots: &Roots, minimum_version: u64, now: UnixTime) -> Result<Bundle, BundleFileError> {
    let (signed, pieces) = read_bundle(file, roots, minimum_version, now)?;
    let sections = pieces.into_iter().map(|piece| (piece.digest, piece.section)).collect();
    Ok(Bundle::assemble(signed.head, sections)?)
}

/// Reads a bundle file and verifies its head and sections; whether they fit together is not checked yet.
///
/// # Errors
/// The first thing that is wrong, with the file's name.
pub fn read_bundle_file(
    file: &Path,
    roots: &Roots,
    minimum_version: u64,
    now: UnixTime,
) -> Result<(SignedHead, Vec<Piece>), BundleLoadError> {
    read(file)
        .and_then(|bytes| read_bundle(&bytes, roots, minimum_version, now))
        .map_err(|source| BundleLoadError { file: file.display().to_string(), source })
}

fn read_bundle(
    file: &[u8],
    roots: &Roots,
    minimum_version: u64,
    now: UnixTime,
) -> Result<(SignedHead, Vec<Piece>), BundleFileError> {
    let Envelope { bundle_key_cert, head, signature, sections } = Envelope::decode(file)?;
    let unsigned = Unsigned { certificate: bundle_key_cert.into(), head: head.into(), signature: signature.into() };
    let signed = verify_head(unsigned, roots, minimum_version, now)?;
    let mut pieces = Vec::with_capacity(sections.len());
    for (index, bytes) in sections.into_iter().enumerate() {
        pieces.push(section_piece(&signed.head, bytes.into())?.ok_or(BundleFileError::SectionDigest { index })?);
    }
    Ok((signed, pieces))
}

/// What claims to be a signed head.
#[derive(Clone, Debug)]
pub struct Unsigned {
    /// DER of the bundle key's certificate.
    pub certificate: Bytes,
    /// Bytes of the head.
    pub head: Bytes,
    /// The signature over them.
    pub signature: Bytes,
}

/// Verifies a head as at the start: bundle key under a root, signature, name and epoch of the key, least version, expiry.
///
/// # Errors
/// The first thing that is wrong.
pub fn verify_head(
    unsigned: Unsigned,
    roots: &Roots,
    minimum_version: u64,
    now: UnixTime,
) -> Result<SignedHead, BundleFileError> {
    let head = verified_head(&unsigned, roots, now)?;
    if head.version < minimum_version {
        return Err(BundleFileError::BelowMinimum { version: head.version, minimum: minimum_version });
    }
    if now >= head.expires {
        return Err(BundleFileError::Expired(head.expires));
    }
    let Unsigned { certificate, head: bytes, signature } = unsigned;
    Ok(SignedHead { digest: sha256(&bytes), head, bytes, signature, certificate })
}

/// A section of `head`; `None` where the head does not list its digest, before anything of it is decoded.
///
/// # Errors
/// What is wrong with its bytes.
pub fn section_piece(head: &Head, bytes: Bytes) -> Result<Option<Piece>, BundleFileError> {
    let digest = sha256(&bytes);
    // The order is checked with the other invariants; an unsorted list only refuses more.
    if head.sections.binary_search(&digest).is_err() {
        return Ok(None);
    }
    let section = Arc::new(decode_section(&bytes)?);
    Ok(Some(Piece { section, digest, bytes }))
}

fn verified_head(unsigned: &Unsigned, roots: &Roots, now: UnixTime) -> Result<Head, BundleFileError> {
    if unsigned.certificate.len() > CERTIFICATE_BYTES_MAX {
        return Err(BundleFileError::Key(Deny::Limit));
    }
    let certificate = CertificateDer::from(unsigned.certificate.as_ref());
    let key = BundleKey::verify(&certificate, roots, now)?;
    if !key.has_signed(&unsigned.head, &unsigned.signature) {
        return Err(BundleFileError::Signature);
    }
    let head = decode_head(&unsigned.head)?;
    let BundleKey { root, fabric, epoch, .. } = key;
    if head.fabric != fabric || head.epoch != epoch {
        return Err(BundleFileError::KeyScope { fabric, epoch, head_fabric: head.fabric, head_epoch: head.epoch });
    }
    if !head.roots.contains(&root) {
        return Err(BundleFileError::Root(root));
    }
    Ok(head)
}

/// The verified certificate of a bundle key.
pub(super) struct BundleKey<'c> {
    certificate: EndEntityCert<'c>,
    root: KeyId,
    /// The fabric whose bundles it signs.
    pub(super) fabric: Label,
    /// The epoch of these bundles.
    pub(super) epoch: u64,
}

impl<'c> BundleKey<'c> {
    /// Verifies that a root itself certified the key, now, and for which fabric and epoch.
    pub(super) fn verify(
        certificate: &'c CertificateDer<'_>,
        roots: &Roots,
        now: UnixTime,
    ) -> Result<Self, BundleFileError> {
        let refused = |error: webpki::Error| BundleFileError::Key(deny_of_webpki(&error));
        let key = EndEntityCert::try_from(certificate).map_err(refused)?;
        // No intermediates: the root itself must have issued it.
        let path = key
            .verify_for_usage(
                super::tls::signature_algorithms().all,
                roots.anchors(),
                &[],
                pki_time(now),
                AnyUsage,
                None,
                None,
            )
            .map_err(refused)?;
        let root = key_id(&spki_for_anchor(path.anchor()));
        let (root_from, root_until) = roots.dates(root).ok_or(BundleFileError::Key(Deny::CertUntrusted))?;
        if now < root_from || now > root_until {
            return Err(BundleFileError::Key(Deny::CertExpired));
        }
        let (fabric, epoch) = key_scope(&key).ok_or(BundleFileError::KeyName)?;
        Ok(Self { certificate: key, root, fabric, epoch })
    }

    /// Whether the key has signed these bytes.
    pub(super) fn has_signed(&self, bytes: &[u8], signature: &[u8]) -> bool {
        self.certificate.verify_signature(webpki::aws_lc_rs::ED25519, bytes, signature).is_ok()
    }
}

/// The fabric and epoch a bundle key's certificate names by its only URI.
fn key_scope(key: &EndEntityCert<'_>) -> Option<(Label, u64)> {
    let mut uris = key.valid_uri_names();
    let uri = uris.next()?;
    if uris.next().is_some() {
        return None;
    }
    let (fabric, digits) = uri.strip_prefix(BUNDLE_KEY_URI)?.split_once('/')?;
    let epoch: u64 = digits.parse().ok()?;
    // One spelling per number: "01" and "+1" are no epochs.
    (epoch.to_string() == digits).then_some(())?;
    Some((Label::parse(fabric).ok()?, epoch))
}

/// The URI says what the key is for; there is no extended key usage for it.
struct AnyUsage;

impl ExtendedKeyUsageValidator for AnyUsage {
    fn validate(&self, _usages: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        Ok(())
    }
}
