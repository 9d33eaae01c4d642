//! The bundle of a plan and the keys that sign it.

use std::path::{Path, PathBuf};

use glocal_core::bundle::{Bundle, BundleState};
use glocal_core::limits::BUNDLE_BYTES_MAX;
use glocal_core::name::NodeId;
use glocal_wire::bundle::Envelope;
use rcgen::KeyPair;
use rustls_pki_types::CertificateDer;

use super::super::{ApplyError, Item, Write};
use super::{Authority, Work};
use crate::bundle::{self, Contents, EPOCH, Keys};
use crate::chain::{self, Usage};
use crate::files::{PUBLIC, SECRET};
use crate::pki::{self, PkiError};

/// Length of the salt of section nonces, in bytes.
const SALT_BYTES: usize = 32;

impl Work<'_> {
    /// Finds the bundle up to date, or signs a new version.
    pub(super) fn bundle(&mut self, root: &Authority, keys: &Keys) -> Result<Option<Envelope>, ApplyError> {
        let files = ["bundle/bundle-key.pem", "bundle/bundle.key"].map(PathBuf::from);
        let Some((certificate, key)) = self.bundle_key(root, files, "private key that signs bundles")? else {
            return Ok(None);
        };
        let Some(salt) = self.salt()? else { return Ok(None) };
        let contents = Contents::of(self.plan, keys, &salt).map_err(crate::bundle::SignError::Codec)?;
        let path = PathBuf::from("bundle/bundle.glocal");
        let existing = match self.envelope(&path, root)? {
            Ok(existing) => existing,
            Err(text) => {
                self.conflict(&path, text);
                return Ok(None);
            }
        };
        let replace = existing.is_some();
        let version = match existing {
            Some((envelope, bundle)) => {
                let is_above = bundle.head().version > self.above;
                if is_above && contents.equals(bundle.head()) && bundle.state(self.now) == BundleState::Fresh {
                    let what = format!("signed bundle, version {}", bundle.head().version);
                    self.keep(path, what);
                    return Ok(Some(envelope));
                }
                bundle.head().version.max(self.above).saturating_add(1)
            }
            None => self.above.saturating_add(1),
        };
        let Some(key) = key else {
            self.conflict(&path, "a new version is needed, but bundle/bundle.key is not there to sign it".to_owned());
            return Ok(None);
        };
        let envelope = contents.sign(version, self.plan.bundle_days, &certificate, &key, self.now)?;
        let bytes = envelope.encode().map_err(crate::bundle::SignError::Codec)?;
        let write = Write { bytes, mode: SECRET, replace };
        self.items.push(Item { path, what: format!("signed bundle, version {version}"), write: Some(write) });
        Ok(Some(envelope))
    }

    /// Finds or makes a key that signs bundles, and its certificate, in these two files.
    pub(super) fn bundle_key(
        &mut self,
        root: &Authority,
        [pem_path, key_path]: [PathBuf; 2],
        what: &str,
    ) -> Result<Option<(CertificateDer<'static>, Option<KeyPair>)>, ApplyError> {
        let before = self.conflicts.len();
        let found = self.certificate(&pem_path)?;
        let key = self.key(&key_path)?;
        if self.conflicts.len() > before {
            return Ok(None);
        }
        if let Some(chain) = found {
            let Some(der) = chain.into_iter().next() else { return Ok(None) };
            if key.as_ref().is_some_and(|key| !pki::key_fits(key, &der)) {
                self.conflict(&key_path, PkiError::Mismatch.to_string());
                return Ok(None);
            }
            let verified = chain::verify(&der, &[], std::slice::from_ref(&root.der), Usage::Client, self.now);
            if let Err(error) = verified {
                self.conflict(&pem_path, format!("does not verify against root/root.pem: {error}"));
                return Ok(None);
            }
            if key.is_some() {
                self.keep(key_path, what.to_owned());
            }
            self.keep(pem_path, format!("certificate of the bundle key, epoch {EPOCH}"));
            return Ok(Some((der, key)));
        }
        let Some(ca) = &root.ca else {
            let text = format!("cannot be made: the private key of the {} is needed", root.name);
            self.conflict(&pem_path, text);
            return Ok(None);
        };
        let was_there = key.is_some();
        let key = if let Some(key) = key { key } else { pki::new_bundle_key()? };
        let der = pki::make_bundle_certificate(ca, &self.plan.fabric, EPOCH, &key, self.now)?;
        if was_there {
            self.keep(key_path, what.to_owned());
        } else {
            self.make(key_path, what.to_owned(), key.serialize_pem().into_bytes(), SECRET);
        }
        let certificate = format!("certificate of the bundle key, epoch {EPOCH}");
        self.make(pem_path, certificate, pki::to_pem(&der).into_bytes(), PUBLIC);
        Ok(Some((der, Some(key))))
    }

    fn salt(&mut self) -> Result<Option<Vec<u8>>, ApplyError> {
        let path = PathBuf::from("bundle/salt");
        let what = "secret from which the nonces of sections follow".to_owned();
        match self.read(&path, SALT_BYTES)? {
            Some(salt) if salt.len() == SALT_BYTES => {
                self.keep(path, what);
                Ok(Some(salt))
            }
            Some(salt) => {
                self.conflict(&path, format!("has {} bytes instead of {SALT_BYTES}", salt.len()));
                Ok(None)
            }
            None => {
                let salt: [u8; SALT_BYTES] = pki::random()?;
                self.make(path, what, salt.to_vec(), SECRET);
                Ok(Some(salt.to_vec()))
            }
        }
    }

    fn envelope(
        &self,
        path: &Path,
        root: &Authority,
    ) -> Result<Result<Option<(Envelope, Bundle)>, String>, ApplyError> {
        let Some(bytes) = self.read(path, BUNDLE_BYTES_MAX)? else { return Ok(Ok(None)) };
        let envelope = match Envelope::decode(&bytes) {
            Ok(envelope) => envelope,
            Err(error) => return Ok(Err(error.to_string())),
        };
        Ok(match bundle::verify(&envelope, std::slice::from_ref(&root.der), self.now) {
            Ok(bundle) if bundle.head().fabric != self.plan.fabric => {
                Err(format!("is of fabric '{}', not '{}'", bundle.head().fabric, self.plan.fabric))
            }
            Ok(bundle) => Ok(Some((envelope, bundle))),
            Err(error) => Err(error.to_string()),
        })
    }

    /// A node's own bundle: the sections it may need.
    pub(super) fn narrowed(
        &mut self,
        path: &Path,
        node: &NodeId,
        envelope: &Envelope,
        root: &Authority,
    ) -> Result<(), ApplyError> {
        let narrowed = bundle::narrow(envelope, &bundle::tenants_of(self.plan, node))
            .and_then(|e| e.encode())
            .map_err(crate::bundle::SignError::Codec)?;
        let what = format!("bundle for {node}");
        let existing = self.read(path, BUNDLE_BYTES_MAX)?;
        if existing.as_ref() == Some(&narrowed) {
            self.keep(path.to_owned(), what);
            return Ok(());
        }
        if existing.is_some() {
            let problem = match self.envelope(path, root)? {
                Err(text) => Some(text),
                Ok(Some((_, bundle))) => {
                    let ours = glocal_wire::bundle::decode_head(&envelope.head)
                        .map_err(|e| ApplyError::Sign(crate::bundle::SignError::Codec(e)))?;
                    let newer = (bundle.head().epoch, bundle.head().version) > (ours.epoch, ours.version);
                    newer.then(|| format!("is version {}, newer than bundle/bundle.glocal", bundle.head().version))
                }
                Ok(None) => None,
            };
            if let Some(text) = problem {
                self.conflict(path, text);
                return Ok(());
            }
        }
        let write = Write { bytes: narrowed, mode: PUBLIC, replace: existing.is_some() };
        self.items.push(Item { path: path.to_owned(), what, write: Some(write) });
        Ok(())
    }
}
