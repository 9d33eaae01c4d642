//! The key with which this node signs bundles, for the one re-signer (DESIGN section 3).
//!
//! A key is taken only with a certificate by one of the roots, exactly as bundles are verified with: what others would not
//! believe is found out at the start, not when half of a bundle's life has passed.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aws_lc_rs::signature::Ed25519KeyPair;
use bytes::Bytes;
use glocal_core::bundle::Head;
use glocal_core::name::Label;
use glocal_core::time::UnixTime;
use glocal_wire::bundle::{BundleCodecError, encode_head};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;

use super::chain::Roots;
use super::credential::{CredentialError, certificates, read_file};
use super::signed::{BundleFileError, BundleKey, Unsigned};

/// A key that signs bundles, with its certificate.
pub struct BundleSigner {
    pair: Ed25519KeyPair,
    certificate: Bytes,
    fabric: Label,
    epoch: u64,
}

impl std::fmt::Debug for BundleSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BundleSigner").field("fabric", &self.fabric).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// Why a key does not sign bundles.
#[derive(Debug, thiserror::Error)]
pub enum SignerError {
    /// The certificate's file.
    #[error(transparent)]
    Certificate(#[from] CredentialError),
    /// The certificate is not by a root, has expired, or is not that of a bundle key.
    #[error("{file}: not certified to sign bundles")]
    Uncertified {
        /// The certificate's file.
        file: String,
        /// Why not.
        source: BundleFileError,
    },
    /// The certificate is for another fabric.
    #[error("{file}: certified for fabric '{found}', the bundle is of '{wanted}'")]
    Fabric {
        /// The certificate's file.
        file: String,
        /// What it is certified for.
        found: Label,
        /// The bundle's.
        wanted: Label,
    },
    /// The certificate is for an epoch that is over.
    #[error("{file}: certified for epoch {found}, which is retired: the bundle is of epoch {wanted}")]
    Retired {
        /// The certificate's file.
        file: String,
        /// What it is certified for.
        found: u64,
        /// The bundle's.
        wanted: u64,
    },
    /// The file of the key cannot be read.
    #[error("{file}: cannot be read")]
    Unreadable {
        /// The file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// Others can read the key.
    #[error("{file}: is a private key that others can read (mode {mode:04o}); chmod 600 it")]
    Exposed {
        /// The file.
        file: String,
        /// Its permissions.
        mode: u32,
    },
    /// The key is not an Ed25519 key in PEM form.
    #[error("{file}: holds no Ed25519 private key in PEM form")]
    NoKey {
        /// The file.
        file: String,
    },
    /// The key belongs to another certificate.
    #[error("{key}: key does not match certificate {certificate}")]
    Mismatch {
        /// The file of the key.
        key: String,
        /// The file of the certificate.
        certificate: String,
    },
}

impl SignerError {
    /// Whether it is about the private key, not about its certificate.
    #[must_use]
    pub const fn is_of_key(&self) -> bool {
        matches!(self, Self::Unreadable { .. } | Self::Exposed { .. } | Self::NoKey { .. } | Self::Mismatch { .. })
    }
}

/// Refuses the file of a private key that others than its owner can read.
///
/// # Errors
/// [`SignerError::Exposed`], or that it cannot be looked at.
pub fn check_private(file: &Path) -> Result<(), SignerError> {
    let name = || file.display().to_string();
    let metadata = std::fs::metadata(file).map_err(|source| SignerError::Unreadable { file: name(), source })?;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 == 0 { Ok(()) } else { Err(SignerError::Exposed { file: name(), mode }) }
}

impl BundleSigner {
    /// Takes the certificate from a PEM file and the key as PEM text with a name that stands for it in errors, for a node
    /// whose bundle is of `head`'s fabric and epoch. A key of a later epoch is taken: it waits for a bundle of its own.
    ///
    /// # Errors
    /// What is wrong, naming the file.
    pub fn load(
        certificate: &Path,
        key: (&str, &str),
        roots: &Roots,
        head: &Head,
        now: UnixTime,
    ) -> Result<Self, SignerError> {
        let file = certificate.display().to_string();
        let found = certificates(&file, &read_file(certificate)?)?;
        let der = found.first().ok_or_else(|| CredentialError::NoCertificate { file: file.clone() })?;
        let verified = BundleKey::verify(der, roots, now)
            .map_err(|source| SignerError::Uncertified { file: file.clone(), source })?;
        let (key_file, pem) = key;
        let private = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).ok();
        let pair = private.and_then(|der| Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der()).ok());
        let pair = pair.ok_or_else(|| SignerError::NoKey { file: key_file.to_owned() })?;
        // Only a signature shows that key and certificate belong together.
        let proof = b"glocal bundle key";
        if !verified.has_signed(proof, pair.sign(proof).as_ref()) {
            return Err(SignerError::Mismatch { key: key_file.to_owned(), certificate: file });
        }
        let (fabric, epoch) = (verified.fabric.clone(), verified.epoch);
        if fabric != head.fabric {
            return Err(SignerError::Fabric { file, found: fabric, wanted: head.fabric.clone() });
        }
        if epoch < head.epoch {
            return Err(SignerError::Retired { file, found: epoch, wanted: head.epoch });
        }
        Ok(Self { pair, certificate: Bytes::copy_from_slice(der), fabric, epoch })
    }

    /// The epoch the key is certified for.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Signs a head. Nothing is checked here: the caller verifies what comes out like any other head.
    ///
    /// # Errors
    /// When it does not fit its form.
    pub fn sign(&self, head: &Head) -> Result<Unsigned, BundleCodecError> {
        let head = encode_head(head)?;
        let signature = Bytes::copy_from_slice(self.pair.sign(&head).as_ref());
        Ok(Unsigned { certificate: self.certificate.clone(), head: head.into(), signature })
    }
}
