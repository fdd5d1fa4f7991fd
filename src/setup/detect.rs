//! What a repository is made of and what this machine has to work on it: languages with their checks, the branch that
//! work starts from, and agents. Looks at files and walks PATH; runs nothing (versions are asked for apart).

use super::ecosystems::ecosystems;
use super::probe;
use crate::config::check_branch;
use crate::domain::chain::Check;
use crate::domain::policy::AgentKind;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Branches that are taken for the base without a further look.
const USUAL_BASES: [&str; 4] = ["main", "master", "trunk", "develop"];
/// Most of a project file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detected {
    /// In the order they were looked for.
    pub languages: Vec<Found>,
    /// In the order they should run; names differ.
    pub checks: Vec<Check>,
    /// The branch that work starts from; `None` when a person must name it.
    pub base: Option<String>,
    /// Branches that could be the base, the most likely first.
    pub bases: Vec<String>,
    pub agents: Vec<FoundAgent>,
    /// What a person should know: a tool that is missing, a file that cannot be read.
    pub warnings: Vec<String>,
}

/// A language and the tool that was found for it, as in rust (cargo).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub language: Language,
    pub tool: String,
}

/// What a part of the repository is written in, or run by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Language {
    Rust,
    Go,
    Node,
    Python,
    Java,
    JavaScript,
    Make,
    Shell,
}

impl Language {
    pub fn word(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Go => "go",
            Self::Node => "node",
            Self::Python => "python",
            Self::Java => "java",
            Self::JavaScript => "javascript",
            Self::Make => "make",
            Self::Shell => "shell",
        }
    }
}

/// An agent's program on PATH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundAgent {
    pub kind: AgentKind,
    pub bin: PathBuf,
    /// Only after `Detected::ask_versions`, and where the program answered in time.
    pub version: Option<String>,
}

/// Looks at the repository whose work tree is `repo`. `path_var` is a PATH; its relative entries and those inside the
/// repository are passed over, since what stands there is the repository's and not the user's choice.
pub fn detect(repo: &Path, path_var: &str) -> Detected {
    let mut out = Detected::default();
    let look = Look::new(repo, path_var);
    ecosystems(&look, &mut out);
    bases(repo, &mut out);
    for kind in [AgentKind::Claude, AgentKind::Codex] {
        if let Some(bin) = look.tool(kind.word()) {
            out.agents.push(FoundAgent { kind, bin, version: None });
        }
    }
    if out.agents.is_empty() {
        out.warnings.push(
            "neither claude nor codex is on PATH: install one, or set up another agent as docs/agents.md says".into(),
        );
    }
    out
}

impl Detected {
    /// Asks every agent for its version, all at once; none may take longer than `limit`.
    pub fn ask_versions(&mut self, path_var: &str, limit: Duration) {
        std::thread::scope(|scope| {
            for agent in &mut self.agents {
                scope.spawn(|| agent.version = probe::version(&agent.bin, path_var, limit));
            }
        });
    }
}

/// A repository and a PATH to look at.
pub(super) struct Look<'a> {
    pub(super) repo: &'a Path,
    folders: Vec<PathBuf>,
}

impl<'a> Look<'a> {
    fn new(repo: &'a Path, path_var: &str) -> Self {
        let real = repo.canonicalize().unwrap_or_else(|_| repo.to_owned());
        let inside = |folder: &Path| folder.canonicalize().is_ok_and(|folder| folder.starts_with(&real));
        let folders = std::env::split_paths(path_var).filter(|f| f.is_absolute() && !inside(f)).collect();
        Self { repo, folders }
    }

    /// The program `name` on PATH.
    pub(super) fn tool(&self, name: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(name)).find(|path| executable(path))
    }

    /// Whether the repository has the file `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.repo.join(name).is_file()
    }

    /// Whether the repository has `name` as a program.
    pub(super) fn runs(&self, name: &str) -> bool {
        executable(&self.repo.join(name))
    }

    /// The text of a file of the repository. One that is there and cannot be used is warned of.
    pub(super) fn read(&self, name: &str, warnings: &mut Vec<String>) -> Option<String> {
        let path = self.repo.join(name);
        let meta = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        if meta.len() > MAX_FILE {
            warnings.push(format!("{name} is larger than {MAX_FILE} bytes and was not read"));
            return None;
        }
        match fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) => {
                warnings.push(format!("{name} could not be read: {error}"));
                None
            }
        }
    }
}

fn executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The current branch when it is a usual one, else the remote's default where it is here too, else the current one.
fn bases(repo: &Path, out: &mut Detected) {
    let repo = match gix::open_opts(repo, gix::open::Options::isolated()) {
        Ok(repo) => repo,
        Err(_) => {
            out.warnings.push("this folder is no git repository that could be opened".into());
            return;
        }
    };
    let branch = |name: gix::refs::FullName| {
        let name = name.as_bstr().to_string();
        name.strip_prefix("refs/heads/").map(str::to_owned)
    };
    let here = |name: &str| matches!(repo.try_find_reference(&format!("refs/heads/{name}")), Ok(Some(_)));
    let current = repo.head_name().ok().flatten().and_then(branch).filter(|name| usable(name));
    let remote = repo
        .try_find_reference("refs/remotes/origin/HEAD")
        .ok()
        .flatten()
        .and_then(|head| head.target().try_name().map(|name| name.as_bstr().to_string()))
        .and_then(|name| name.strip_prefix("refs/remotes/origin/").map(str::to_owned))
        .filter(|name| usable(name) && here(name));
    let usual = current.clone().filter(|name| USUAL_BASES.contains(&name.as_str()));
    let others = USUAL_BASES.into_iter().filter(|name| here(name)).map(str::to_owned);
    for name in usual.into_iter().chain(remote).chain(current.clone()).chain(others) {
        if !out.bases.contains(&name) {
            out.bases.push(name);
        }
    }
    match &current {
        Some(current) => {
            out.base = out.bases.first().cloned();
            if !here(current) {
                out.warnings.push(format!("branch {current} has no commit yet"));
            }
        }
        None => out.warnings.push("no branch is checked out that work could start from: name one".into()),
    }
}

fn usable(name: &str) -> bool {
    check_branch(name).is_ok() && !name.starts_with("overnight/") && name != "overnight"
}

#[cfg(test)]
mod tests;
