//! Files that appear whole or not at all, and are never overwritten by accident.
//!
//! A file is written under a temporary name with its final mode, synced, and then linked or renamed into place; its
//! directory is synced after it. A private key is never readable by others, not even for a moment.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::pki;

/// Mode of private keys and other secrets.
pub(crate) const SECRET: u32 = 0o600;
/// Mode of everything else.
pub(crate) const PUBLIC: u32 = 0o644;
/// Mode of directories with keys in them.
pub(crate) const SECRET_DIRECTORY: u32 = 0o700;

/// Reads a file of at most `limit` bytes; `None` when there is none.
pub(crate) fn read(path: &Path, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("is larger than {limit} bytes")));
    }
    Ok(Some(bytes))
}

/// Reads a file that must be there.
pub(crate) fn read_existing(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    read(path, limit)?.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such file"))
}

/// The permission bits of a file.
pub(crate) fn mode(path: &Path) -> io::Result<u32> {
    Ok(fs::metadata(path)?.mode() & 0o777)
}

/// Makes a directory and those above it; what exists is left as it is.
pub(crate) fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => make_directory(parent, 0o755)?,
        _ => {}
    }
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

/// Writes a file that must not exist yet.
pub(crate) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let temporary = write_temporary(path, bytes, mode)?;
    let placed = place(&temporary, path);
    // After a rename there is nothing left to remove.
    let _ = fs::remove_file(&temporary);
    placed?;
    sync_directory(path)
}

/// Gives a file its final name, which must be free.
fn place(temporary: &Path, path: &Path) -> io::Result<()> {
    // A link fails where a rename would replace what somebody else has put there meanwhile.
    match fs::hard_link(temporary, path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied) => {
            // Some file systems have no links; the lock keeps other applies out.
            if path.symlink_metadata().is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            fs::rename(temporary, path)
        }
        other => other,
    }
}

/// Writes a file in place of what is there.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let temporary = write_temporary(path, bytes, mode)?;
    if let Err(error) = fs::rename(&temporary, path) {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_directory(path)
}

fn write_temporary(path: &Path, bytes: &[u8], mode: u32) -> io::Result<PathBuf> {
    let unique: [u8; 8] = pki::random().map_err(|error| io::Error::other(error.to_string()))?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{:016x}", u64::from_le_bytes(unique)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    Ok(temporary)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// Keeps other applies out of a directory while it lives.
pub(crate) struct Lock(#[expect(dead_code, reason = "held, not read: the lock goes with the file")] File);

impl Lock {
    /// Takes the lock; `None` when another process has it.
    pub(crate) fn take(directory: &Path) -> io::Result<Option<Self>> {
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(SECRET).open(directory.join(".lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }
}
