//! Deny reasons through rustls errors, and the count of refused handshakes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use glocal_core::count::Counter;
use glocal_core::deny::Deny;
use glocal_core::limits::REFUSAL_LOGS_PER_SECOND;
use glocal_core::time::UnixTime;
use rustls::{AlertDescription, CertificateError, OtherError};

/// Stands before the code of a deny reason in texts that pass through rustls and quinn.
const MARK: &str = "deny:";

/// A deny reason as the source of a rustls error.
#[derive(Clone, Copy)]
struct Refused(Deny);

/// rustls shows errors of others by `Debug`, and quinn tells that text to the peer: the code and nothing else.
impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}{}", self.0.code())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.template())
    }
}

impl std::error::Error for Refused {}

/// The rustls error of a refusal: a standard one where TLS has an alert for it, so that the peer learns what to mend.
pub(super) fn refuse(reason: Deny) -> rustls::Error {
    rustls::Error::InvalidCertificate(match reason {
        Deny::CertExpired => CertificateError::Expired,
        Deny::CertNotYetValid => CertificateError::NotValidYet,
        Deny::CertRevoked => CertificateError::Revoked,
        Deny::CertUntrusted => CertificateError::UnknownIssuer,
        Deny::CertUsage => CertificateError::InvalidPurpose,
        Deny::CertMalformed => CertificateError::BadEncoding,
        Deny::IssuerBinding => CertificateError::ApplicationVerificationFailure,
        other => CertificateError::Other(OtherError(Arc::new(Refused(other)))),
    })
}

/// Why our side refused the peer's certificate, when `error` says that it did.
#[must_use]
pub fn deny_of(error: &rustls::Error) -> Option<Deny> {
    match error {
        rustls::Error::NoCertificatesPresented => Some(Deny::NoCertificate),
        rustls::Error::InvalidCertificate(error) => Some(match error {
            CertificateError::Expired => Deny::CertExpired,
            CertificateError::NotValidYet => Deny::CertNotYetValid,
            CertificateError::Revoked => Deny::CertRevoked,
            CertificateError::UnknownIssuer => Deny::CertUntrusted,
            CertificateError::InvalidPurpose => Deny::CertUsage,
            CertificateError::ApplicationVerificationFailure => Deny::IssuerBinding,
            // It holds no key of that certificate.
            CertificateError::BadSignature => Deny::CertUntrusted,
            CertificateError::Other(OtherError(source)) => source.downcast_ref::<Refused>()?.0,
            _ => Deny::CertMalformed,
        }),
        _ => None,
    }
}

/// Why the peer refused our certificate, as far as its TLS alert tells.
#[must_use]
pub const fn deny_of_alert(alert: AlertDescription) -> Option<Deny> {
    Some(match alert {
        // One alert for "expired" and "not yet valid" (RFC 8446 section 6.2).
        AlertDescription::CertificateExpired => Deny::CertExpired,
        AlertDescription::CertificateRevoked => Deny::CertRevoked,
        AlertDescription::UnknownCA => Deny::CertUntrusted,
        AlertDescription::UnsupportedCertificate => Deny::CertUsage,
        AlertDescription::BadCertificate => Deny::CertMalformed,
        AlertDescription::AccessDenied => Deny::IssuerBinding,
        AlertDescription::CertificateRequired => Deny::NoCertificate,
        AlertDescription::CertificateUnknown => Deny::Unidentified,
        _ => return None,
    })
}

/// Which end of a connection refused the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This one.
    Local,
    /// The peer.
    Peer,
}

/// Who refused whom, and why, when a QUIC connection failed over a certificate.
///
/// What the peer says of itself is only its word: fit for a log line and a state, not for a decision.
#[must_use]
pub fn deny_of_quic(error: &quinn::ConnectionError) -> Option<(Side, Deny)> {
    let (side, code, reason) = match error {
        quinn::ConnectionError::TransportError(error) => (Side::Local, error.code, error.reason.as_str()),
        quinn::ConnectionError::ConnectionClosed(close) => {
            (Side::Peer, close.error_code, std::str::from_utf8(&close.reason).unwrap_or_default())
        }
        _ => return None,
    };
    // A crypto error is 0x100 and the alert (RFC 9001 section 4.8).
    let alert = u64::from(code).checked_sub(0x100).and_then(|alert| u8::try_from(alert).ok())?;
    let told = reason.split_once(MARK).and_then(|(_, rest)| {
        let code = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next()?;
        Deny::ALL.iter().copied().find(|reason| reason.code() == code)
    });
    Some((side, told.or_else(|| deny_of_alert(AlertDescription::from(alert)))?))
}

/// Refused handshakes by reason, counted always and logged within a limit.
#[derive(Debug)]
pub struct Refusals {
    counters: [Counter; Deny::ALL.len()],
    /// The second that is being counted, and the lines logged in it.
    second: AtomicU64,
    logged: AtomicU64,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            counters: std::array::from_fn(|_| Counter::default()),
            second: AtomicU64::new(0),
            logged: AtomicU64::new(0),
        }
    }
}

impl Refusals {
    /// Counts a refused handshake. The verifiers do; who accepts connections does only for a missing certificate, of
    /// which they are not told. `uid` is the first digits of the leaf's fingerprint: a stranger's names are not
    /// worth a log line.
    pub fn record(&self, reason: Deny, port: &'static str, uid: &str, now: UnixTime) {
        if let Some(counter) = self.counters.get(reason.index()) {
            counter.add(1);
        }
        let second = now.0.unsigned_abs();
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.logged.store(0, Ordering::Relaxed);
        }
        if self.logged.fetch_add(1, Ordering::Relaxed) < REFUSAL_LOGS_PER_SECOND {
            tracing::warn!(reason = reason.code(), port, uid, "handshake refused: {}", reason.template());
        }
    }

    /// Handshakes refused for `reason` so far.
    #[must_use]
    pub fn count(&self, reason: Deny) -> u64 {
        self.counters.get(reason.index()).map_or(0, Counter::value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_rustls() {
        for reason in Deny::ALL {
            assert_eq!(deny_of(&refuse(*reason)), Some(*reason));
        }
        assert_eq!(deny_of(&rustls::Error::NoCertificatesPresented), Some(Deny::NoCertificate));
        assert_eq!(deny_of(&rustls::Error::DecryptError), None);
    }

    #[test]
    fn refusals_are_counted_by_reason() {
        let refusals = Refusals::default();
        for second in 0..3 {
            refusals.record(Deny::CertExpired, "native", "-", UnixTime(second));
        }
        assert_eq!(refusals.count(Deny::CertExpired), 3);
        assert_eq!(refusals.count(Deny::CertRevoked), 0);
    }
}
