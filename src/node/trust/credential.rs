//! Certificates and keys from PEM files, with errors that name the file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use glocal_core::deny::Deny;
use glocal_core::identity::leaf_name;
use glocal_core::limits::{CERTIFICATE_BYTES_MAX, CHAIN_CERTIFICATES_MAX, PEM_BYTES_MAX, PEM_CERTIFICATES_MAX};
use glocal_core::name::NodeId;
use glocal_core::time::UnixTime;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// What is wrong with a certificate or key.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The file cannot be read.
    #[error("{file}: cannot be read")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system says.
        source: io::Error,
    },
    /// The file is larger than any PEM file should be.
    #[error("{file}: too large")]
    TooLarge {
        /// The file.
        file: String,
    },
    /// The file is not PEM.
    #[error("{file}: not a PEM file: {reason}")]
    NotPem {
        /// The file.
        file: String,
        /// What the parser says.
        reason: String,
    },
    /// There is no certificate in the file.
    #[error("{file}: holds no certificate in PEM form")]
    NoCertificate {
        /// The file.
        file: String,
    },
    /// There are more certificates in the file than are used.
    #[error("{file}: too many certificates")]
    TooMany {
        /// The file.
        file: String,
    },
    /// There is no private key in the file.
    #[error("{file}: holds no private key in PEM form")]
    NoKey {
        /// The file.
        file: String,
    },
    /// The file of the private key is not PEM.
    #[error("{file}: not a PEM file: {reason}")]
    KeyNotPem {
        /// The file.
        file: String,
        /// What the parser says.
        reason: String,
    },
    /// The private key is of a kind that cannot be used.
    #[error("{file}: private key cannot be used")]
    UnusableKey {
        /// The file.
        file: String,
        /// Why not.
        source: rustls::Error,
    },
    /// The private key belongs to another certificate.
    #[error("{key}: key does not match certificate {certificate}")]
    KeyMismatch {
        /// Where the key is from.
        key: String,
        /// The certificate's file.
        certificate: String,
    },
    /// A certificate cannot be used.
    #[error("{file}: {}", reason.template())]
    BadCertificate {
        /// The file.
        file: String,
        /// Why not.
        reason: Deny,
    },
    /// A root is no certificate authority.
    #[error("{file}: not a certificate authority")]
    NotAnAuthority {
        /// The file.
        file: String,
    },
    /// A certificate has expired.
    #[error("{file}: certificate expired at {at}")]
    Expired {
        /// The file.
        file: String,
        /// When.
        at: UnixTime,
    },
    /// A certificate is not valid yet.
    #[error("{file}: certificate is not valid before {at}; check the local clock")]
    NotYetValid {
        /// The file.
        file: String,
        /// When it will be.
        at: UnixTime,
    },
    /// The certificate names no broker.
    #[error("{file}: not a node certificate (no URI name glocal://node/<region>/<agent>)")]
    NotANode {
        /// The file.
        file: String,
    },
}

impl CredentialError {
    /// Whether it is about the private key, not about a certificate.
    #[must_use]
    pub const fn is_of_key(&self) -> bool {
        matches!(
            self,
            Self::NoKey { .. } | Self::UnusableKey { .. } | Self::KeyMismatch { .. } | Self::KeyNotPem { .. }
        )
    }
}

/// This node's certificate chain and private key.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    node: NodeId,
    key: Arc<CertifiedKey>,
}

impl NodeIdentity {
    /// Reads the chain (leaf first) and the key from PEM files.
    ///
    /// # Errors
    /// What is wrong, naming the file.
    pub fn load(certificate: &Path, key: &Path, now: UnixTime) -> Result<Self, CredentialError> {
        let key_pem = read_file(key)?;
        Self::load_with_key(certificate, (&key.display().to_string(), &key_pem), now)
    }

    /// Reads the chain from a PEM file and takes the key as PEM text with a name that stands for it in errors.
    ///
    /// # Errors
    /// What is wrong, naming the file.
    pub fn load_with_key(certificate: &Path, key: (&str, &[u8]), now: UnixTime) -> Result<Self, CredentialError> {
        let name = certificate.display().to_string();
        Self::from_pem((&name, &read_file(certificate)?), key, now)
    }

    /// Takes chain and key as PEM texts, each with a name that stands for it in errors.
    ///
    /// # Errors
    /// What is wrong.
    pub fn from_pem(certificate: (&str, &[u8]), key: (&str, &[u8]), now: UnixTime) -> Result<Self, CredentialError> {
        let (file, pem) = certificate;
        let chain = certificates(file, pem)?;
        if chain.len() > CHAIN_CERTIFICATES_MAX {
            return Err(CredentialError::TooMany { file: file.to_owned() });
        }
        let leaf = chain.first().ok_or_else(|| CredentialError::NoCertificate { file: file.to_owned() })?;
        let leaf =
            leaf_name(leaf).map_err(|reason| CredentialError::BadCertificate { file: file.to_owned(), reason })?;
        let node = leaf.node.ok_or_else(|| CredentialError::NotANode { file: file.to_owned() })?;
        check_dates(file, leaf.not_before, leaf.not_after, now)?;

        let (key_file, pem) = key;
        let private = PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
            pem::Error::NoItemsFound => CredentialError::NoKey { file: key_file.to_owned() },
            error => CredentialError::KeyNotPem { file: key_file.to_owned(), reason: error.to_string() },
        })?;
        let certified =
            CertifiedKey::from_der(chain, private, &super::tls::provider()).map_err(|source| match source {
                rustls::Error::InconsistentKeys(_) => {
                    CredentialError::KeyMismatch { key: key_file.to_owned(), certificate: file.to_owned() }
                }
                source => CredentialError::UnusableKey { file: key_file.to_owned(), source },
            })?;
        Ok(Self { node, key: Arc::new(certified) })
    }

    /// The broker the certificate names.
    #[must_use]
    pub const fn node(&self) -> &NodeId {
        &self.node
    }

    /// The chain, leaf first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key.cert
    }

    pub(super) fn certified_key(&self) -> Arc<CertifiedKey> {
        self.key.clone()
    }
}

/// Reads a whole PEM file, which must be of reasonable size.
pub(super) fn read_file(file: &Path) -> Result<Vec<u8>, CredentialError> {
    let name = || file.display().to_string();
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|opened| opened.take(PEM_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
        .map_err(|source| CredentialError::Unreadable { file: name(), source })?;
    if bytes.len() > PEM_BYTES_MAX { Err(CredentialError::TooLarge { file: name() }) } else { Ok(bytes) }
}

/// All certificates of a PEM text; at least one.
pub(super) fn certificates(name: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    let file = || name.to_owned();
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate =
            certificate.map_err(|error| CredentialError::NotPem { file: file(), reason: error.to_string() })?;
        if certificate.len() > CERTIFICATE_BYTES_MAX {
            return Err(CredentialError::BadCertificate { file: file(), reason: Deny::Limit });
        }
        if found.len() >= PEM_CERTIFICATES_MAX {
            return Err(CredentialError::TooMany { file: file() });
        }
        found.push(certificate);
    }
    if found.is_empty() { Err(CredentialError::NoCertificate { file: file() }) } else { Ok(found) }
}

pub(super) fn check_dates(
    name: &str,
    not_before: UnixTime,
    not_after: UnixTime,
    now: UnixTime,
) -> Result<(), CredentialError> {
    if now < not_before {
        Err(CredentialError::NotYetValid { file: name.to_owned(), at: not_before })
    } else if now > not_after {
        Err(CredentialError::Expired { file: name.to_owned(), at: not_after })
    } else {
        Ok(())
    }
}
