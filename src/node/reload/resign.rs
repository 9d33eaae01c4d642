//! Signing the bundle's contents afresh, where this node is the one re-signer (DESIGN section 3).
//!
//! Core says when and what (`glocal_core::bundle::resign`). Here it is carried out in an order that no crash can turn against
//! the fabric: what is in force is verified again, its next version is set aside on disk, then signed, verified as if a
//! peer had told it, and taken like any newer bundle: stored, put in force, handed on. So a version that was set aside is
//! signed once or never.

use glocal_core::bundle::{Resign, ResignHold, SignedHead, SignerState, resign, resign_pause_ms};
use glocal_core::count::Counter;
use glocal_core::time::{Time, UnixTime};
use parking_lot::Mutex;

use super::{Held, Reloader};
use crate::context::Context;
use crate::state;
use crate::trust::{BundleSigner, Roots, Unsigned, unix_now, verify_head};

/// Why signing failed, beside the reasons to hold: the rest of the metric's labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The bundle in force, or what was signed, does not verify.
    Unverified,
    /// The version could not be set aside.
    State,
    /// What was signed was not taken.
    NotTaken,
}

impl Fault {
    const ALL: [Self; 3] = [Self::Unverified, Self::State, Self::NotTaken];

    const fn code(self) -> &'static str {
        match self {
            Self::Unverified => "unverified",
            Self::State => "state",
            Self::NotTaken => "not-taken",
        }
    }
}

const FAILURES: usize = Fault::ALL.len() + ResignHold::ALL.len();

/// A node that may sign bundles, and how it fares.
#[derive(Debug)]
pub struct Resigner {
    signer: BundleSigner,
    /// Bundles that were signed and taken.
    pub signed: Counter,
    failures: [Counter; FAILURES],
    tries: Mutex<Tries>,
}

#[derive(Debug, Default)]
struct Tries {
    failures: u32,
    not_before: Time,
    /// What was wrong last, so that it is said once.
    said: Option<String>,
    next: Option<UnixTime>,
}

impl Resigner {
    pub(crate) fn new(signer: BundleSigner) -> Self {
        Self { signer, signed: Counter::default(), failures: Default::default(), tries: Mutex::default() }
    }

    /// How often signing has failed, by reason.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let codes = Fault::ALL.map(Fault::code).into_iter().chain(ResignHold::ALL.map(ResignHold::code));
        codes.zip(self.failures.iter().map(Counter::value))
    }

    /// When it signs next, as far as is known; `None` while it cannot.
    #[must_use]
    pub fn next(&self) -> Option<UnixTime> {
        self.tries.lock().next
    }

    /// Whether it has been found out at least once whether to sign.
    #[must_use]
    pub fn has_looked(&self) -> bool {
        let tries = self.tries.lock();
        tries.next.is_some() || tries.said.is_some() || self.signed.value() > 0
    }

    fn failed(&self, failed: Failed, now: Time) {
        let (index, code, text) = match failed {
            Failed::Fault(fault, text) => (fault as usize, fault.code(), text),
            Failed::Hold(hold) => (Fault::ALL.len() + hold as usize, hold.code(), hold.text().to_owned()),
        };
        if let Some(counter) = self.failures.get(index) {
            counter.add(1);
        }
        let mut tries = self.tries.lock();
        tries.failures = tries.failures.saturating_add(1);
        let pause_ms = resign_pause_ms(tries.failures);
        tries.not_before = now.plus_millis(pause_ms);
        tries.next = None;
        if tries.said.as_ref() != Some(&text) {
            tracing::error!(reason = code, retry_ms = pause_ms, "the bundle was not signed afresh: {text}");
            tries.said = Some(text);
        }
    }

    fn waits(&self, until: UnixTime) {
        *self.tries.lock() = Tries { next: Some(until), ..Tries::default() };
    }
}

impl Reloader {
    /// Lets the node sign bundles.
    pub(crate) fn set_resigner(&mut self, signer: BundleSigner) {
        self.resigner = Some(Resigner::new(signer));
    }

    /// What signs bundles here, where configured.
    #[must_use]
    pub const fn resigner(&self) -> Option<&Resigner> {
        self.resigner.as_ref()
    }

    /// Signs the contents of the bundle afresh, if this node is to and it is time.
    pub(crate) async fn resign(&self, context: &Context) {
        let (Some(resigner), now) = (&self.resigner, context.clock.now()) else { return };
        if now < resigner.tries.lock().not_before {
            return;
        }
        let mut held = self.held.lock().await;
        match held.resign(context, &resigner.signer).await {
            Ok(Done::Waits(until)) => resigner.waits(until),
            Ok(Done::Signed(signed)) => {
                let (epoch, version, expires) = (signed.head.epoch, signed.head.version, signed.head.expires);
                let half = signed.head.half_life();
                let result = held.offer(context, *signed, Vec::new(), false).await;
                match self.settle(&held, result, context, "the re-signer") {
                    Ok(_) => {
                        resigner.signed.add(1);
                        resigner.waits(half);
                        tracing::info!(epoch, version, %expires, "bundle {epoch}.{version} was signed afresh");
                    }
                    Err(refused) => resigner.failed(Failed::Fault(Fault::NotTaken, refused.to_string()), now),
                }
            }
            // Only a bundle changes that, and it is said once.
            Err(Failed::Hold(ResignHold::NotNamed)) => {
                let mut tries = resigner.tries.lock();
                let text = ResignHold::NotNamed.text().to_owned();
                if tries.said.as_ref() != Some(&text) {
                    tracing::warn!("there is a bundle_signing_key, but {text}: it signs nothing");
                }
                *tries = Tries { said: Some(text), ..Tries::default() };
            }
            Err(failed) => resigner.failed(failed, now),
        }
    }
}

enum Done {
    Waits(UnixTime),
    Signed(Box<SignedHead>),
}

enum Failed {
    Hold(ResignHold),
    Fault(Fault, String),
}

impl Held {
    /// Sets the next version aside and signs it, if it is time. Nothing of it is in force yet.
    async fn resign(&self, context: &Context, signer: &BundleSigner) -> Result<Done, Failed> {
        let fault = |fault| move |error: &dyn std::fmt::Display| Failed::Fault(fault, error.to_string());
        let (signed, now) = (self.holding.signed(), unix_now());
        let set_aside = state::version_set_aside(&self.raw.state_dir).map_err(|error| fault(Fault::State)(&error))?;
        let state = SignerState {
            key_epoch: signer.epoch(),
            newest_seen: self.newest_seen,
            set_aside,
            up_for_seconds: context.clock.now().as_millis() / 1000,
        };
        let next = match resign(&self.raw.node, &signed.head, &state, now) {
            Resign::Wait(until) => return Ok(Done::Waits(until)),
            Resign::Hold(hold) => return Err(Failed::Hold(hold)),
            Resign::Sign(next) => next,
        };
        let trust = context.trust();
        let roots = trust.configured_roots();
        let in_force = Unsigned {
            certificate: signed.certificate.clone(),
            head: signed.bytes.clone(),
            signature: signed.signature.clone(),
        };
        let unverified = fault(Fault::Unverified);
        let verified = self.verify(in_force, roots, now).map_err(|error| unverified(&error))?;
        if verified.digest != signed.digest || verified.head != signed.head {
            return Err(unverified(&"the bundle in force is not what was verified"));
        }
        let set = state::set_version_aside(&self.raw.state_dir, next.epoch, next.version);
        set.map_err(|error| fault(Fault::State)(&error))?;
        let unsigned = signer.sign(&next).map_err(|error| unverified(&error))?;
        let made = self.verify(unsigned, roots, now).map_err(|error| unverified(&error))?;
        if made.head != *next {
            return Err(unverified(&"what was signed is not what was decided"));
        }
        Ok(Done::Signed(Box::new(made)))
    }

    fn verify(
        &self,
        head: Unsigned,
        roots: &Roots,
        now: UnixTime,
    ) -> Result<SignedHead, crate::trust::BundleFileError> {
        verify_head(head, roots, self.raw.bundle_min_version, now)
    }
}
