//! The rules of the house, held over the sources: layers, sizes, dependencies, limits, the deny catalogue, and what may
//! lie in the repository.
//!
//! Each test collects every breach before it fails, one line each, with the file and line. Exceptions are lists in the
//! tests, each with its reason.

mod cases;
mod catalogue;
mod layers;
mod repository;
mod scan;
mod sizes;

pub(crate) use cases::{every_test, sources_of};

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file that belongs to the repository, sorted, relative to its root: what git tracks or would add; without git,
/// as in an unpacked archive, everything but build results.
fn files() -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let mut files: Vec<String> = match listed {
        Ok(output) if output.status.success() && root().join(".git").exists() => String::from_utf8(output.stdout)
            .expect("file names are UTF-8")
            .split('\0')
            .filter(|name| !name.is_empty() && root().join(name).is_file())
            .map(str::to_owned)
            .collect(),
        _ => {
            let mut found = Vec::new();
            walk(root(), &mut found);
            found.iter().map(|path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()).collect()
        }
    };
    files.sort();
    files.dedup();
    assert!(files.iter().any(|f| f == "Cargo.toml"), "the listing has no Cargo.toml: {files:?}");
    files
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            if !["target", ".git", ".state", "node_modules", ".venv"].contains(&name.as_str()) {
                walk(&path, found);
            }
        } else {
            found.push(path);
        }
    }
}

/// The text of a file of the repository; `None` when it is not text.
pub(crate) fn text(file: &str) -> Option<String> {
    String::from_utf8(std::fs::read(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))).ok()
}

/// Fails with one line per breach.
fn report(rule: &str, breaches: &[String]) {
    assert!(breaches.is_empty(), "{rule}:\n  {}\n", breaches.join("\n  "));
}
