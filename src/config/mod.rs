//! Settings: `overnight.toml` read into a `Policy`, the bytes of it that the user approved, and the places on this
//! machine where everything is kept. The only module that reads the environment.

pub mod approve;
mod branch;
pub mod files;
mod machine;
mod parse;
pub mod places;
mod profile;
pub mod registry;
mod walk;

pub use approve::{Approvals, Approved, Status};
pub use branch::check_branch;
pub use machine::{Machine, MachineError};
pub use places::{Places, Surroundings, environment};
pub use registry::{Project, Registry};

use crate::domain::ProjectId;
use crate::domain::policy::Policy;
use crate::domain::safe::shown;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// Name of the file in the user's code repository.
pub const FILE: &str = "overnight.toml";
/// The commented default configuration, shipped in the binary. Every setting is in it with its default.
pub const SHIPPED: &str = include_str!("../../config/overnight.toml");
/// Largest configuration that is read, in bytes.
pub const MAX_BYTES: usize = 1 << 20;

/// One project's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectConfig {
    pub name: ProjectId,
    /// The state repo's folder as written; relative ones start at the code repo.
    pub state: PathBuf,
    pub policy: Policy,
}

impl ProjectConfig {
    /// The state repo's folder for a code repo at `repo`, without `.` and `..` where that needs no look at the disk.
    pub fn state_folder(&self, repo: &Path) -> PathBuf {
        let mut out = PathBuf::new();
        for part in repo.join(&self.state).components() {
            match part {
                Component::ParentDir if matches!(out.components().next_back(), Some(Component::Normal(_))) => {
                    out.pop();
                }
                Component::CurDir => {}
                part => out.push(part),
            }
        }
        out
    }
}

/// One thing wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line and column (in characters), from 1; both 0 where the file as a whole is meant.
    pub line: usize,
    pub column: usize,
    /// The key with its tables, as in `limits.wall` or `checks[2].run`; empty where none can be named.
    pub key: String,
    pub text: String,
    /// What to do about it.
    pub help: Option<String>,
}

/// Everything wrong with one configuration file, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    pub file: PathBuf,
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.to_string_lossy();
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            f.write_str(&shown(&file))?;
            if problem.line > 0 {
                write!(f, ":{}:{}", problem.line, problem.column)?;
            }
            if !problem.key.is_empty() {
                write!(f, ": {}", shown(&problem.key))?;
            }
            write!(f, ": {}", shown(&problem.text))?;
            if let Some(help) = &problem.help {
                write!(f, " ({})", shown(help))?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// The name under which `bytes` are approved: `sha256:` and 64 hexadecimal digits.
pub fn hash(bytes: &[u8]) -> String {
    let mut out = String::from("sha256:");
    for byte in Sha256::digest(bytes) {
        out.push_str(&format!("{byte:02x}"));
    }
    out
}

/// Reads `bytes` as the configuration `file` (which is only named, never opened). All problems are collected.
pub fn parse(file: &Path, bytes: &[u8]) -> Result<ProjectConfig, ConfigError> {
    parse::parse(bytes).map_err(|problems| ConfigError { file: file.to_owned(), problems })
}

/// The bytes of the configuration at `file`. A missing, unreadable or oversized file and a folder in its place are
/// problems like any other.
pub fn read(file: &Path) -> Result<Vec<u8>, ConfigError> {
    use std::io::Read as _;
    let problem = |text: String, help: Option<&str>| ConfigError {
        file: file.to_owned(),
        problems: vec![Problem { line: 0, column: 0, key: String::new(), text, help: help.map(str::to_owned) }],
    };
    // A pipe or device in its place would hold a plain open for ever.
    match std::fs::metadata(file) {
        Ok(meta) if !meta.is_file() => return Err(problem("is no regular file".into(), None)),
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(problem("does not exist".into(), Some("`overnight init` writes one")));
        }
        Err(e) => return Err(problem(format!("cannot be read: {e}"), None)),
    }
    let mut bytes = Vec::new();
    std::fs::File::open(file)
        .and_then(|f| f.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(|e| problem(format!("cannot be read: {e}"), None))?;
    if bytes.len() > MAX_BYTES {
        return Err(problem(format!("is larger than {MAX_BYTES} bytes"), None));
    }
    Ok(bytes)
}

/// `read` and `parse` in one.
pub fn load(file: &Path) -> Result<ProjectConfig, ConfigError> {
    parse(file, &read(file)?)
}

#[cfg(test)]
mod tests;
