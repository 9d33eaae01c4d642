//! What a node keeps on disk: its incarnation, stored before it is used (DESIGN section 5), and the versions it has set aside
//! for signing, stored before they are signed (section 3).

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("state_dir: {}: {what}", path.display())]
pub struct StateError {
    path: PathBuf,
    what: &'static str,
    source: Option<std::io::Error>,
}

/// Longest stored incarnation, in bytes: twenty digits and a newline.
const INCARNATION_BYTES: u64 = 32;

/// Keeps other brokers off a state directory for as long as it lives, however its process ends.
#[derive(Debug)]
pub struct StateLock {
    _directory: File,
}

/// Makes the directory where it is missing, readable by its owner only, and takes it for this broker.
///
/// # Errors
/// [`StateError`] naming the directory, also when another broker has it.
pub fn prepare(dir: &Path) -> Result<StateLock, StateError> {
    let failed = |what, source| StateError { path: dir.to_owned(), what, source };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|source| failed("cannot be made", Some(source)))?;
    let directory = File::open(dir).map_err(|source| failed("cannot be read", Some(source)))?;
    match lock_patiently(&directory) {
        Ok(()) => Ok(StateLock { _directory: directory }),
        Err(TryLockError::WouldBlock) => Err(failed("another broker runs on it", None)),
        Err(TryLockError::Error(source)) => Err(failed("cannot be locked", Some(source))),
    }
}

/// Milliseconds since 1970 by the clock, zero before.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The next incarnation: max(stored + 1, milliseconds since 1970), on disk before it is returned.
///
/// # Errors
/// [`StateError`] naming the file; the node must not start with an incarnation it could not store.
pub fn next_incarnation(dir: &Path) -> Result<u64, StateError> {
    let path = dir.join("incarnation");
    let failed = |what| {
        let path = path.clone();
        move |source| StateError { path, what, source: Some(source) }
    };
    let mut text = String::new();
    match File::open(&path) {
        Ok(file) => {
            file.take(INCARNATION_BYTES).read_to_string(&mut text).map_err(failed("cannot be read"))?;
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("cannot be read")(error)),
    }
    let stored = match text.trim() {
        "" => 0,
        digits => digits.parse::<u64>().map_err(|_| {
            let what = "not a number; remove it to start afresh";
            failed("cannot be read")(std::io::Error::new(std::io::ErrorKind::InvalidData, what))
        })?,
    };
    let next = stored.saturating_add(1).max(unix_ms());
    store_incarnation(dir, next)?;
    Ok(next)
}

/// Stores an incarnation, so that it may be used.
///
/// # Errors
/// [`StateError`] naming the file; then the node must go on in the one it has.
pub fn store_incarnation(dir: &Path, incarnation: u64) -> Result<(), StateError> {
    store(dir.join("incarnation"), &format!("{incarnation}\n"))
}

fn store(path: PathBuf, text: &str) -> Result<(), StateError> {
    write_atomically(&path, text.as_bytes()).map_err(|source| StateError {
        path,
        what: "cannot be written",
        source: Some(source),
    })
}

/// Longest stored bundle version, in bytes: two numbers of twenty digits, a blank and a newline.
const VERSION_BYTES: u64 = 64;

/// Epoch and version of the bundle that was set aside for signing last; zeros while none was.
///
/// # Errors
/// [`StateError`] naming the file; without it nothing may be signed.
pub fn version_set_aside(dir: &Path) -> Result<(u64, u64), StateError> {
    let path = dir.join("signed-version");
    let failed = |source| StateError { path: path.clone(), what: "cannot be read", source: Some(source) };
    let mut text = String::new();
    match File::open(&path) {
        Ok(file) => file.take(VERSION_BYTES).read_to_string(&mut text).map_err(failed)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((0, 0)),
        Err(error) => return Err(failed(error)),
    };
    let parsed =
        text.trim().split_once(' ').and_then(|(epoch, version)| Some((epoch.parse().ok()?, version.parse().ok()?)));
    parsed.ok_or_else(|| {
        failed(std::io::Error::new(std::io::ErrorKind::InvalidData, "not an epoch and a version of a bundle"))
    })
}

/// Sets a version of the bundle aside: once this has returned, nothing else is ever signed under it.
///
/// # Errors
/// [`StateError`] naming the file; then nothing may be signed.
pub fn set_version_aside(dir: &Path, epoch: u64, version: u64) -> Result<(), StateError> {
    store(dir.join("signed-version"), &format!("{epoch} {version}\n"))
}

/// Replaces a file as a whole: written beside it, synced, renamed.
///
/// # Errors
/// Whatever the file system says.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let beside = path.with_extension("tmp");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

/// Takes the lock; waits a moment for a broker that was killed just now, whose last threads still hold it.
fn lock_patiently(directory: &std::fs::File) -> Result<(), TryLockError> {
    /// How often it is tried, and the pause between tries in milliseconds: two seconds in all.
    const TRIES: u32 = 40;
    const PAUSE_MS: u64 = 50;
    for _ in 1..TRIES {
        match directory.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(std::time::Duration::from_millis(PAUSE_MS)),
            result => return result,
        }
    }
    directory.try_lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incarnations_grow_over_restarts_and_clock_steps() {
        let dir = tempfile::tempdir().unwrap();
        let first = next_incarnation(dir.path()).unwrap();
        let second = next_incarnation(dir.path()).unwrap();
        assert!(second > first);
        let future = u64::MAX - 10;
        std::fs::write(dir.path().join("incarnation"), format!("{future}\n")).unwrap();
        assert_eq!(next_incarnation(dir.path()).unwrap(), future + 1, "a clock that was set back changes nothing");
    }

    #[test]
    fn versions_set_aside_are_kept_and_what_is_no_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(version_set_aside(dir.path()).unwrap(), (0, 0));
        set_version_aside(dir.path(), 2, u64::MAX).unwrap();
        assert_eq!(version_set_aside(dir.path()).unwrap(), (2, u64::MAX));
        for broken in ["", "2", "2 x", "x 2", "2 3 4"] {
            std::fs::write(dir.path().join("signed-version"), broken).unwrap();
            let error = version_set_aside(dir.path()).unwrap_err();
            assert!(error.to_string().contains("signed-version: cannot be read"), "{error}");
        }
        assert!(set_version_aside(&dir.path().join("missing"), 1, 1).is_err());
    }

    #[test]
    fn a_directory_is_one_brokers_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let held = prepare(dir.path()).unwrap();
        let error = prepare(dir.path()).unwrap_err().to_string();
        assert_eq!(error, format!("state_dir: {}: another broker runs on it", dir.path().display()));
        drop(held);
        prepare(dir.path()).unwrap();
    }

    #[test]
    fn a_broken_file_is_named_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("incarnation"), "x").unwrap();
        let error = next_incarnation(dir.path()).unwrap_err();
        let error = format!("{error}: {}", std::error::Error::source(&error).unwrap());
        assert!(error.contains("incarnation") && error.contains("not a number"), "{error}");
        assert_eq!(std::fs::read_to_string(dir.path().join("incarnation")).unwrap(), "x");
    }
}
