//! Why a bundle or a section was not taken: counted by reason, logged once a minute each.

use glocal_core::bundle::Standing;
use glocal_core::count::Counter;
use glocal_core::deny::Escaped;
use glocal_core::time::Time;
use parking_lot::Mutex;

use crate::trust::{BundleFileError, TrustError};

/// Why a bundle or a section was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleRefusal {
    /// It comes before the one in force.
    Older,
    /// It is of another fabric.
    Foreign,
    /// It has the version of the one in force and other bytes.
    Equivocation,
    /// It has expired.
    Expired,
    /// It is below the configured least version.
    BelowMinimum,
    /// It is not signed by a bundle key of a configured root.
    Signature,
    /// Its bytes or contents are wrong.
    Malformed,
    /// It does not admit this node.
    OwnCertificate,
    /// A section that this edge may not carry, or that the head does not list.
    Section,
    /// More tenants, brokers or edges have come and gone than one life of a node numbers.
    TooMany,
    /// The file could not be read, or what was taken not be stored.
    File,
}

impl BundleRefusal {
    /// Every reason.
    pub const ALL: [Self; 11] = [
        Self::Older,
        Self::Foreign,
        Self::Equivocation,
        Self::Expired,
        Self::BelowMinimum,
        Self::Signature,
        Self::Malformed,
        Self::OwnCertificate,
        Self::Section,
        Self::TooMany,
        Self::File,
    ];

    /// The stable code: metric label and log field.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Older => "older",
            Self::Foreign => "foreign",
            Self::Equivocation => "equivocation",
            Self::Expired => "expired",
            Self::BelowMinimum => "below-minimum",
            Self::Signature => "signature",
            Self::Malformed => "malformed",
            Self::OwnCertificate => "own-certificate",
            Self::Section => "section",
            Self::TooMany => "too-many",
            Self::File => "file",
        }
    }

    /// What a standing means for a head that is offered; `None` for one to be taken, or the same again.
    #[must_use]
    pub const fn of_standing(standing: Standing) -> Option<Self> {
        match standing {
            Standing::Newer | Standing::Same => None,
            Standing::Older => Some(Self::Older),
            Standing::Equivocates => Some(Self::Equivocation),
            Standing::Foreign => Some(Self::Foreign),
        }
    }

    /// What an error of verification means.
    #[must_use]
    pub const fn of_file(error: &BundleFileError) -> Self {
        match error {
            BundleFileError::Unreadable(_) => Self::File,
            BundleFileError::Key(_)
            | BundleFileError::KeyName
            | BundleFileError::Signature
            | BundleFileError::KeyScope { .. }
            | BundleFileError::Root(_) => Self::Signature,
            BundleFileError::BelowMinimum { .. } => Self::BelowMinimum,
            BundleFileError::Expired(_) => Self::Expired,
            BundleFileError::Codec(_) | BundleFileError::SectionDigest { .. } | BundleFileError::Contents(_) => {
                Self::Malformed
            }
        }
    }

    /// What a trust epoch that cannot begin means.
    #[must_use]
    pub const fn of_trust(error: &TrustError) -> Self {
        match error {
            TrustError::NoCommonRoot => Self::Signature,
            TrustError::OwnCertificate { .. } | TrustError::Anonymous { .. } => Self::OwnCertificate,
            TrustError::OtherFabric => Self::Foreign,
            TrustError::OlderBundle { .. } => Self::Older,
            TrustError::Equivocation { .. } => Self::Equivocation,
        }
    }
}

/// A bundle, section or configuration that was not taken, in words.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct Refused {
    /// The reason that is counted.
    pub reason: BundleRefusal,
    /// What was wrong.
    pub text: String,
}

impl Refused {
    pub(crate) fn new(reason: BundleRefusal, error: impl std::fmt::Display) -> Self {
        Self { reason, text: error.to_string() }
    }
}

/// How long one reason is not logged again, in milliseconds.
const LOG_PAUSE_MS: u64 = 60_000;

/// Refusals by reason.
#[derive(Debug, Default)]
pub struct BundleRefusals {
    counts: [Counter; BundleRefusal::ALL.len()],
    logged: Mutex<[Option<Time>; BundleRefusal::ALL.len()]>,
    /// Two different bundles of one version were seen: somebody has signed twice.
    pub alarms: Counter,
}

impl BundleRefusals {
    /// Counts a refusal, and logs it unless one of its kind was logged lately. `from` is a file or a peer.
    pub(crate) fn record(&self, refused: &Refused, from: &str, now: Time) {
        let index = refused.reason as usize;
        if let Some(counter) = self.counts.get(index) {
            counter.add(1);
        }
        let is_alarm = refused.reason == BundleRefusal::Equivocation;
        if is_alarm {
            self.alarms.add(1);
        }
        let mut logged = self.logged.lock();
        let Some(last) = logged.get_mut(index) else { return };
        if last.is_some_and(|last| now < last.plus_millis(LOG_PAUSE_MS)) {
            return;
        }
        *last = Some(now);
        drop(logged);
        let text = Escaped(refused.text.as_bytes());
        if is_alarm {
            tracing::error!(from, reason = refused.reason.code(), "bundle alarm: somebody has signed twice: {text}");
        } else {
            tracing::warn!(from, reason = refused.reason.code(), "bundle refused: {text}");
        }
    }

    /// How often a reason has come about.
    #[must_use]
    pub fn count(&self, reason: BundleRefusal) -> u64 {
        self.counts.get(reason as usize).map_or(0, Counter::value)
    }
}
