//! What is wrong with a configuration, where, and how it reads.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where a value came from. Orders as errors are shown: the file by line, the environment, the overrides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A line of the file, from 1; 0 means the file as a whole.
    File {
        /// The file as it was named.
        file: PathBuf,
        /// The line, from 1, or 0.
        line: usize,
    },
    /// The environment variable of this name.
    Variable(String),
    /// A `-D` override.
    Override(String),
}

impl Place {
    /// The file as a whole.
    #[must_use]
    pub fn file(file: &Path) -> Self {
        Self::line(file, 0)
    }

    /// A line of the file.
    #[must_use]
    pub fn line(file: &Path, line: usize) -> Self {
        Self::File { file: file.to_owned(), line }
    }

    /// The line, when it is one of the file.
    #[must_use]
    pub const fn line_number(&self) -> Option<usize> {
        match self {
            Self::File { line, .. } if *line > 0 => Some(*line),
            _ => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line: 0 } => write!(f, "{}", file.display()),
            Self::File { file, line } => write!(f, "{}:{line}", file.display()),
            Self::Variable(name) => write!(f, "environment {}", name.escape_debug()),
            Self::Override(name) => write!(f, "-D {}", name.escape_debug()),
        }
    }
}

/// One thing to say about one key: shown as `file:line: key: message`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// The key's path, such as `edges[0].peer`; empty for the file as a whole.
    pub path: String,
    /// What, with no secret in it.
    pub message: String,
}

impl Problem {
    /// Joins the three.
    #[must_use]
    pub fn new(place: Place, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place, path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = matches!(&self.place, Place::Override(name) if *name == self.path);
        if self.path.is_empty() || said {
            write!(f, "{}: {}", self.place, self.message)
        } else {
            write!(f, "{}: {}: {}", self.place, self.path, self.message)
        }
    }
}

/// A remark on a configuration that compiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it weakens the node and must be logged at start as a warning.
    pub warning: bool,
    /// The remark.
    pub what: Problem,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)
    }
}

/// Every error of one configuration, in the order of the file; never empty. Displays one error a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    problems: Vec<Problem>,
}

impl ConfigErrors {
    /// The one error.
    #[must_use]
    pub fn one(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }

    /// The errors in the order they are shown; repeats are dropped.
    pub(super) fn sorted(mut problems: Vec<Problem>) -> Self {
        problems.sort();
        problems.dedup();
        Self { problems }
    }

    /// The errors.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
