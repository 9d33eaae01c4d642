//! Verifying a certificate's path with webpki, and the catalogued reason when it does not hold.

use std::time::Duration;

use glocal_core::deny::Deny;
use glocal_core::identity::KeyId;
use glocal_core::time::UnixTime;
use rustls_pki_types::{CertificateDer, TrustAnchor};
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, Error, KeyUsage, anchor_from_trusted_cert};

use crate::pki::{self, sha256};

/// What the certificate is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// The end that dials.
    Client,
    /// The end that accepts.
    Server,
}

/// A path that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The key that signed the certificate, from the verified path and never from what was presented.
    pub issuer: KeyId,
}

/// Why a path does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ChainError {
    /// The catalogued reason.
    pub deny: Deny,
    /// What exactly was wrong.
    pub text: String,
}

/// Verifies that `leaf` leads to one of `roots`, over certificates of `others`.
///
/// # Errors
/// The reason, and what webpki says.
pub fn verify(
    leaf: &CertificateDer<'_>,
    others: &[CertificateDer<'_>],
    roots: &[CertificateDer<'_>],
    usage: Usage,
    now: UnixTime,
) -> Result<Verified, ChainError> {
    let anchors: Vec<TrustAnchor<'_>> =
        roots.iter().map(anchor_from_trusted_cert).collect::<Result<_, _>>().map_err(|error| ChainError {
            deny: Deny::CertUntrusted,
            text: format!("a root certificate is unusable: {error:?}"),
        })?;
    let end = EndEntityCert::try_from(leaf).map_err(|error| refused(&error))?;
    let seconds = u64::try_from(now.0).unwrap_or(0);
    let time = rustls_pki_types::UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let usage = match usage {
        Usage::Client => KeyUsage::client_auth(),
        Usage::Server => KeyUsage::server_auth(),
    };
    let path = end
        .verify_for_usage(ALL_VERIFICATION_ALGS, &anchors, others, time, usage, None, None)
        .map_err(|error| refused(&error))?;
    Ok(Verified { issuer: KeyId(sha256(&path.issuer_spki())) })
}

fn refused(error: &Error) -> ChainError {
    let (deny, text) = match error {
        Error::CertExpired { .. } => (Deny::CertExpired, "it, or a CA above it, has expired".to_owned()),
        Error::CertNotValidYet { .. } => {
            (Deny::CertNotYetValid, "it, or a CA above it, is not valid yet; check the local clock".to_owned())
        }
        Error::RequiredEkuNotFoundContext(_) => {
            (Deny::CertUsage, "its extended key usage does not cover this".to_owned())
        }
        Error::UnknownIssuer => (
            Deny::CertUntrusted,
            "no path to the root: the region CA is missing from the file, or it is of another fabric".to_owned(),
        ),
        Error::BadDer | Error::BadDerTime | Error::TrailingData(_) => {
            (Deny::CertMalformed, format!("it cannot be parsed ({error:?})"))
        }
        Error::CaUsedAsEndEntity => (Deny::CertUsage, "it is a CA's certificate, not a leaf".to_owned()),
        other => (Deny::CertUntrusted, format!("the path does not hold ({other:?})")),
    };
    ChainError { deny, text }
}

/// Certificates of `others` that the path of `leaf` did not need: decoys, or leftovers.
#[must_use]
pub fn unused<'a>(others: &'a [CertificateDer<'a>], issuer: KeyId) -> Vec<&'a CertificateDer<'a>> {
    others.iter().filter(|der| pki::key_id(der).is_ok_and(|id| id != issuer)).collect()
}

/// Whether the certificate is for this host name or address.
#[must_use]
pub fn names_host(der: &CertificateDer<'_>, host: &str) -> bool {
    let Ok(name) = rustls_pki_types::ServerName::try_from(host) else { return false };
    EndEntityCert::try_from(der).is_ok_and(|end| end.verify_is_valid_for_subject_name(&name).is_ok())
}
