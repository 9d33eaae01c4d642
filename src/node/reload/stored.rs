//! The bundle on disk: the file of the configuration, and the newest one heard of since, in `state_dir`.

use std::path::{Path, PathBuf};

use glocal_core::bundle::{Holding, Piece, SignedHead, Standing};
use glocal_core::time::UnixTime;
use glocal_wire::bundle::Envelope;

use crate::config::Config;
use crate::state::write_atomically;
use crate::trust::{BundleFileError, BundleLoadError, Roots, read_bundle_file};

/// The newest bundle's name in `state_dir`.
const FILE: &str = "bundle.glocal";

fn path(config: &Config) -> PathBuf {
    config.state_dir.join(FILE)
}

/// The newest of the configured file and the one stored in `state_dir`, with the sections of both that it lists.
///
/// # Errors
/// What is wrong with the configured file. One that is only too old gives way to a stored one that is not.
pub(crate) fn newest(config: &Config, roots: &Roots, now: UnixTime) -> Result<Holding, BundleLoadError> {
    let read = |file: &Path| read_bundle_file(file, roots, config.bundle_min_version, now);
    let stored = stored(&path(config), read);
    let configured = read(&config.bundle);
    let ((signed, pieces), file) = match (configured, stored) {
        (Ok(configured), None) => (configured, config.bundle.clone()),
        (Ok(configured), Some(stored)) => join(configured, stored, config),
        (Err(error), Some(stored)) if is_only_old(&error.source) => {
            tracing::warn!("{error}: {}; the newer one in state_dir is used", error.source);
            (stored, path(config))
        }
        (Err(error), _) => return Err(error),
    };
    Holding::new(signed, pieces)
        .map_err(|error| BundleLoadError { file: file.display().to_string(), source: BundleFileError::Contents(error) })
}

type Read = (SignedHead, Vec<Piece>);

fn stored(file: &Path, read: impl Fn(&Path) -> Result<Read, BundleLoadError>) -> Option<Read> {
    if !file.exists() {
        return None;
    }
    match read(file) {
        Ok(stored) => Some(stored),
        Err(error) => {
            tracing::warn!("{error}: {}; the configured bundle is used", error.source);
            None
        }
    }
}

const fn is_only_old(error: &BundleFileError) -> bool {
    matches!(error, BundleFileError::Expired(_) | BundleFileError::BelowMinimum { .. })
}

fn join(configured: Read, stored: Read, config: &Config) -> (Read, PathBuf) {
    let Ok(held) = Holding::new(configured.0.clone(), Vec::new()) else { return (configured, config.bundle.clone()) };
    let (signed, file, pieces, others) = match held.standing(&stored.0.head, &stored.0.digest) {
        Standing::Newer => (stored.0, path(config), stored.1, configured.1),
        Standing::Equivocates => {
            tracing::error!(
                epoch = stored.0.head.epoch,
                version = stored.0.head.version,
                "bundle alarm: two different bundles of one version: the first, in state_dir, is kept"
            );
            (stored.0, path(config), stored.1, configured.1)
        }
        Standing::Same => (configured.0, config.bundle.clone(), configured.1, stored.1),
        Standing::Older | Standing::Foreign => (configured.0, config.bundle.clone(), configured.1, stored.1),
    };
    let mut all = pieces;
    for piece in others {
        let known = all.iter().any(|held| held.digest == piece.digest);
        if !known && signed.head.sections.binary_search(&piece.digest).is_ok() {
            all.push(piece);
        }
    }
    ((signed, all), file)
}

/// Stores what is held, as a whole or not at all, so that a restart does not fall behind.
///
/// # Errors
/// Whatever the file system says, or that it is too large for a bundle file.
pub(crate) fn store(config: &Config, holding: &Holding) -> std::io::Result<()> {
    let signed = holding.signed();
    let envelope = Envelope {
        bundle_key_cert: signed.certificate.to_vec(),
        head: signed.bytes.to_vec(),
        signature: signed.signature.to_vec(),
        sections: holding.pieces().map(|piece| piece.bytes.to_vec()).collect(),
    };
    let bytes = envelope.encode().map_err(std::io::Error::other)?;
    write_atomically(&path(config), &bytes)
}
