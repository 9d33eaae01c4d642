//! Carrying out a plan: what is missing is made, what fits is kept, what conflicts is refused.
//!
//! Everything is prepared in memory first; only when no file conflicts is anything written. A second apply of the same
//! plan makes nothing. The only files ever replaced are bundles, by newer ones of the same fabric.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use glocal_core::time::UnixTime;

use crate::bundle::SignError;
use crate::files::{self, Lock};
use crate::pki::PkiError;
use crate::plan::Plan;

mod prepare;

/// What happened, or would happen, to one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It was missing and is made.
    Made,
    /// It was there and fits the plan.
    Kept,
    /// An older bundle gave way to a newer one.
    Updated,
}

impl Action {
    /// The word of progress lines and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Kept => "kept",
            Self::Updated => "updated",
        }
    }
}

/// One file of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened to it.
    pub action: Action,
    /// Its path below the output directory.
    pub path: PathBuf,
    /// What it is, in words.
    pub what: String,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<7} {}  {}", self.action.as_str(), self.path.display(), self.what)
    }
}

/// What an apply did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Files made.
    pub made: usize,
    /// Files kept.
    pub kept: usize,
    /// Bundles replaced by newer ones.
    pub updated: usize,
    /// Epoch of the bundle.
    pub bundle_epoch: u64,
    /// Version of the bundle.
    pub bundle_version: u64,
    /// When the bundle expires.
    pub bundle_expires: UnixTime,
}

impl Applied {
    /// Whether nothing had to be done.
    #[must_use]
    pub const fn is_unchanged(&self) -> bool {
        self.made == 0 && self.updated == 0
    }
}

/// A file that is there and does not fit the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it, and what to do.
    pub text: String,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.text)
    }
}

/// Why a plan was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Files are there that do not fit the plan; nothing was written.
    #[error("{}", lines(.0))]
    Conflicts(Vec<Conflict>),
    /// Another apply is at work in the directory.
    #[error("{0}: another apply is at work in this directory")]
    Busy(PathBuf),
    /// A file or directory could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A certificate could not be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The bundle could not be signed.
    #[error("cannot sign the bundle: {0}")]
    Sign(#[from] SignError),
}

fn lines(conflicts: &[Conflict]) -> String {
    conflicts.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// One file to be written, or found as it should be.
struct Item {
    path: PathBuf,
    what: String,
    /// `None` for a file that is kept.
    write: Option<Write>,
}

struct Write {
    bytes: Vec<u8>,
    mode: u32,
    replace: bool,
}

impl Item {
    const fn action(&self) -> Action {
        match &self.write {
            None => Action::Kept,
            Some(Write { replace: false, .. }) => Action::Made,
            Some(Write { replace: true, .. }) => Action::Updated,
        }
    }
}

/// The current time.
#[must_use]
pub fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixTime(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Carries out a plan in a directory, which is made when missing. `progress` hears of every file in turn, after it is
/// safely there.
///
/// # Errors
/// [`ApplyError::Conflicts`] before anything is written; otherwise what stopped it. Applying again continues.
pub fn apply(plan: &Plan, out: &Path, progress: &mut dyn FnMut(Event)) -> Result<Applied, ApplyError> {
    apply_above(plan, out, 0, progress)
}

/// As [`apply`], with a bundle whose version is greater than `above`: that of the bundle in force, where a re-signer has
/// signed since the last apply.
///
/// # Errors
/// As [`apply`].
pub fn apply_above(
    plan: &Plan,
    out: &Path,
    above: u64,
    progress: &mut dyn FnMut(Event),
) -> Result<Applied, ApplyError> {
    carry_out(plan, out, above, now(), progress)
}

/// As [`apply`], at a given time.
///
/// # Errors
/// As [`apply`].
pub fn apply_at(
    plan: &Plan,
    out: &Path,
    now: UnixTime,
    progress: &mut dyn FnMut(Event),
) -> Result<Applied, ApplyError> {
    carry_out(plan, out, 0, now, progress)
}

fn carry_out(
    plan: &Plan,
    out: &Path,
    above: u64,
    now: UnixTime,
    progress: &mut dyn FnMut(Event),
) -> Result<Applied, ApplyError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| ApplyError::Io { path, source }
    };
    let existed = out.exists();
    if existed {
        // A directory that conflicts is found out before anything is made in it.
        prepare::prepare(plan, Some(out), above, now)?;
    }
    files::make_directory(out, 0o755).map_err(io(out))?;
    let _lock = Lock::take(out).map_err(io(out))?.ok_or_else(|| ApplyError::Busy(out.to_owned()))?;
    let prepared = prepare::prepare(plan, Some(out), above, now)?;
    let mut ready = BTreeSet::new();
    for item in &prepared.items {
        let path = out.join(&item.path);
        if let Some(write) = &item.write {
            if let Some(directory) = path.parent().filter(|d| ready.insert(d.to_path_buf())) {
                files::make_directory(directory, files::SECRET_DIRECTORY).map_err(io(directory))?;
            }
            let written = if write.replace {
                files::replace(&path, &write.bytes, write.mode)
            } else {
                files::write_new(&path, &write.bytes, write.mode)
            };
            written.map_err(io(&path))?;
        }
        progress(Event { action: item.action(), path: item.path.clone(), what: item.what.clone() });
    }
    Ok(prepared.applied())
}

/// What [`apply_above`] would do, without writing anything.
///
/// # Errors
/// As [`apply`].
pub fn preview(plan: &Plan, out: &Path, above: u64) -> Result<(Applied, Vec<Event>), ApplyError> {
    previewed(plan, Some(out), above)
}

/// What [`apply`] would do in an empty directory.
///
/// # Errors
/// As [`apply`].
pub fn preview_empty(plan: &Plan) -> Result<(Applied, Vec<Event>), ApplyError> {
    previewed(plan, None, 0)
}

fn previewed(plan: &Plan, out: Option<&Path>, above: u64) -> Result<(Applied, Vec<Event>), ApplyError> {
    let prepared = prepare::prepare(plan, out, above, now())?;
    let event = |item: &Item| Event { action: item.action(), path: item.path.clone(), what: item.what.clone() };
    Ok((prepared.applied(), prepared.items.iter().map(event).collect()))
}

#[cfg(test)]
mod tests;
