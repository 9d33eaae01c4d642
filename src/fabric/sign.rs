//! Signing the same contents afresh: the next version with new dates, for a bundle that ages.
//!
//! No section changes by a byte, so that brokers which have them need only the new head. The bundles of the brokers'
//! directories are renewed with it; each keeps the sections it has.

use std::path::{Path, PathBuf};

use glocal_core::limits::{PEM_BYTES_MAX, VALIDITY_DAYS_MAX};
use glocal_core::time::UnixTime;
use glocal_wire::bundle::{Envelope, decode_head, decode_section, encode_head};
use rcgen::SigningKey;

use crate::bundle::{self, BundleFileError, DAY_SECONDS, ReadError, SignError};
use crate::files::{self, Lock};
use crate::issue;
use crate::pki::{self, PkiError};

/// What a signing has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The files that were renewed, below the directory.
    pub files: Vec<PathBuf>,
    /// Epoch of the bundle.
    pub epoch: u64,
    /// Its new version.
    pub version: u64,
    /// When it expires.
    pub expires: UnixTime,
}

/// Why nothing was signed.
#[derive(Debug, thiserror::Error)]
pub enum ResignError {
    /// Another apply or signing is at work in the directory.
    #[error("{0}: another apply is at work in this directory")]
    Busy(PathBuf),
    /// A bundle or certificate cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A bundle is not believed.
    #[error("{path}: {source}", path = path.display())]
    Bundle {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: BundleFileError,
    },
    /// A broker's bundle is newer than the one to be signed.
    #[error("{path}: is newer than bundle/bundle.glocal", path = .0.display())]
    Newer(PathBuf),
    /// The bundle key is missing or unfit.
    #[error("{path}: {text}", path = path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        text: String,
    },
    /// The validity is out of range.
    #[error("--days: {0} is not between 1 and {VALIDITY_DAYS_MAX}")]
    Days(u32),
    /// It could not be signed.
    #[error("cannot sign the bundle: {0}")]
    Sign(#[from] SignError),
    /// A file could not be written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// Signs the bundle of a fabric directory afresh, for `days` or for as long as before, with a version greater than `above`.
///
/// # Errors
/// Why not; what was renewed before a file failed is valid by itself, and signing again continues.
pub fn resign(out: &Path, days: Option<u32>, above: u64, now: UnixTime) -> Result<Signed, ResignError> {
    if let Some(days) = days.filter(|days| !(1..=VALIDITY_DAYS_MAX).contains(days)) {
        return Err(ResignError::Days(days));
    }
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| ResignError::Io { path, source }
    };
    let _lock = Lock::take(out).map_err(io(out))?.ok_or_else(|| ResignError::Busy(out.to_owned()))?;
    let roots = issue::read_certificates(&out.join("root/root.pem"))?;
    let verified = |path: &Path| {
        let envelope = bundle::read(path)?;
        let checked = bundle::verify(&envelope, &roots, now);
        let checked = checked.map_err(|source| ResignError::Bundle { path: path.to_owned(), source })?;
        Ok::<_, ResignError>((envelope, checked.head().version))
    };
    let main = PathBuf::from("bundle/bundle.glocal");
    let (envelope, version) = verified(&out.join(&main))?;
    // The main one first: should it stop there, the others are merely older.
    let mut writes = vec![(main, None)];
    for path in node_bundles(out).map_err(io(out))? {
        let (held, of) = verified(&out.join(&path))?;
        if of > version {
            return Err(ResignError::Newer(out.join(path)));
        }
        let tenants = held.sections.iter().filter_map(|bytes| Some(decode_section(bytes).ok()?.tenant)).collect();
        writes.push((path, Some::<Vec<_>>(tenants)));
    }
    let fresh = signed_afresh(out, &envelope, days, above, now)?;
    let mut files = Vec::new();
    for (path, tenants) in writes {
        let narrowed = match &tenants {
            Some(tenants) => bundle::narrow(&fresh, tenants).map_err(SignError::Codec)?,
            None => fresh.clone(),
        };
        let mode = if tenants.is_some() { files::PUBLIC } else { files::SECRET };
        let file = out.join(&path);
        let bytes = narrowed.encode().map_err(SignError::Codec)?;
        files::replace(&file, &bytes, mode).map_err(io(&file))?;
        files.push(path);
    }
    let head = decode_head(&fresh.head).map_err(SignError::Codec)?;
    Ok(Signed { files, epoch: head.epoch, version: head.version, expires: head.expires })
}

fn signed_afresh(
    out: &Path,
    envelope: &Envelope,
    days: Option<u32>,
    above: u64,
    now: UnixTime,
) -> Result<Envelope, ResignError> {
    let path = out.join("bundle/bundle.key");
    let wrong = |text: String| ResignError::Key { path: path.clone(), text };
    let pem = files::read_existing(&path, PEM_BYTES_MAX).map_err(|error| wrong(error.to_string()))?;
    let mode = files::mode(&path).map_err(|error| wrong(error.to_string()))?;
    if mode & 0o077 != 0 {
        return Err(wrong(format!("is a private key that others can read (mode {mode:04o}); chmod 600 it")));
    }
    let key = pki::key_from_pem(&String::from_utf8_lossy(&pem)).map_err(|error| wrong(error.to_string()))?;
    if !pki::key_fits(&key, &envelope.bundle_key_cert) {
        return Err(wrong("is not the key that signed the bundle".to_owned()));
    }
    let mut head = decode_head(&envelope.head).map_err(SignError::Codec)?;
    let seconds = days.map_or(head.expires.0 - head.issued.0, |days| i64::from(days) * DAY_SECONDS);
    head.version = head.version.max(above).saturating_add(1);
    head.issued = now;
    head.expires = UnixTime(now.0.saturating_add(seconds));
    let bytes = encode_head(&head).map_err(SignError::Codec)?;
    let signature = key.sign(&bytes).map_err(PkiError::Certificate).map_err(SignError::Key)?;
    Ok(Envelope { head: bytes, signature, ..envelope.clone() })
}

/// The bundles of the brokers' directories, in order.
fn node_bundles(out: &Path) -> std::io::Result<Vec<PathBuf>> {
    let nodes = out.join("nodes");
    if !nodes.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(nodes)? {
        let path = PathBuf::from("nodes").join(entry?.file_name()).join("bundle.glocal");
        if out.join(&path).exists() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests;
