//! What an attempt made, taken up after its agent ended: the git link and the branch are verified, leftovers are committed
//! on the task's branch, and what no machine may commit by itself (secrets, huge and special files, nested repositories)
//! is left out and named.

use super::mirror::MirrorError;
use super::nested;
use super::odb::{Cas, ChangedFile, Expect, OdbError};
use super::pool::Lease;
use super::status::{Entry, Status};
use super::worktree::{Head, WorktreeError, stage};
use super::{GitError, Who};
use crate::domain::{Oid, safe};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// How many commits of one attempt are looked at.
const COMMITS: usize = 10_000;
/// How many folder entries are searched for pipes and sockets, which git passes over in silence.
const SPECIALS: usize = 50_000;

/// What a commit of ours may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitRules {
    /// Larger files are left out, in bytes.
    pub max_file: u64,
}

impl Default for CommitRules {
    fn default() -> Self {
        Self { max_file: 10 << 20 }
    }
}

/// Why a file was left out of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Its name says that it holds keys or passwords; see [`is_secret`].
    Secret,
    Large {
        size: u64,
    },
    /// A pipe, socket or device.
    Special,
    /// A repository in the repository, which git would store as an empty reference.
    NestedRepository,
    /// In a `node_modules` folder that the project does not ignore.
    Dependencies,
    /// An agent's own settings folder that the project does not have.
    AgentFiles,
    /// Memory of a crashed program.
    CoreDump,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret => f.write_str("its name says that it holds secrets"),
            Self::Large { size } => write!(f, "too large: {} MB", size.div_ceil(1 << 20)),
            Self::Special => f.write_str("no regular file"),
            Self::NestedRepository => f.write_str("a repository of its own"),
            Self::Dependencies => f.write_str("installed dependencies"),
            Self::AgentFiles => f.write_str("the agent's own settings"),
            Self::CoreDump => f.write_str("memory of a crashed program"),
        }
    }
}

/// A file that was left out, by its exact name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    pub path: Vec<u8>,
    pub why: Why,
}

/// Where HEAD of a worktree was instead of on its task's branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strayed {
    Detached(Oid),
    OtherBranch(String),
    /// The branch does not exist any more.
    Gone,
    /// Somebody moved the branch from outside the worktree.
    MovedByOthers {
        left_at: Oid,
        now: Oid,
    },
    /// The commit that the attempt started from is not in the branch's history any more.
    Rewritten {
        base: Oid,
        tip: Oid,
    },
}

impl fmt::Display for Strayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Detached(at) => write!(f, "HEAD is detached at {}", at.short()),
            Self::OtherBranch(name) => write!(f, "HEAD is on {}", safe::line(name)),
            Self::Gone => f.write_str("the branch is gone"),
            Self::MovedByOthers { left_at, now } => {
                write!(f, "somebody moved the branch from outside, from {} to {}", left_at.short(), now.short())
            }
            Self::Rewritten { base, tip } => {
                write!(f, "{}, where it started, is not in the history of {}", base.short(), tip.short())
            }
        }
    }
}

/// A git operation that was begun and not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    Merge,
    Rebase,
    CherryPick,
    Revert,
    Bisect,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Merge => "a merge",
            Self::Rebase => "a rebase",
            Self::CherryPick => "a cherry-pick",
            Self::Revert => "a revert",
            Self::Bisect => "a bisect",
        })
    }
}

/// Why an attempt's work was not taken up. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    #[error("the work is not on branch {branch:?}: {found}")]
    WrongBranch { branch: String, found: Strayed, unfinished: Option<Unfinished> },
    #[error("branch {branch:?} moved{} while its leftovers were committed", now.as_ref().map_or_else(String::new, |now| format!(" to {}", now.short())))]
    Overtaken { branch: String, now: Option<Oid> },
    /// The git link or the registration was rewritten, among others.
    #[error(transparent)]
    Worktree(#[from] WorktreeError),
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Odb(#[from] OdbError),
    #[error(transparent)]
    Mirror(#[from] MirrorError),
}

/// An attempt's work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    pub tip: Oid,
    pub tree: Oid,
    /// Against the commit that the attempt started from.
    pub changed: Vec<ChangedFile>,
    /// The tree is the one that it started from.
    pub no_change: bool,
    /// The commit that we made of leftovers, if any.
    pub committed_by_us: Option<Oid>,
    pub left_out: Vec<LeftOut>,
    /// Begun by the agent and not ended; then leftovers are not committed, only rescued.
    pub unfinished: Option<Unfinished>,
    /// Commits of other repositories in the tree that no `.gitmodules` names, or that no remote of the module is known to
    /// have: whoever merges them gets no content.
    pub stray_gitlinks: Vec<Vec<u8>>,
}

/// Files that a check wrote into the worktree: not the agent's work for as long as they stay as the check left them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leftovers(BTreeMap<Vec<u8>, Option<Fingerprint>>);

/// Size, and the instant of the last change of content or attributes (seconds, nanoseconds).
type Fingerprint = (u64, i64, i64);

impl Leftovers {
    fn hold(&self, top: &Path, path: &[u8]) -> bool {
        self.0.get(path).is_some_and(|then| *then == fingerprint(top, path))
    }
}

/// What is in the worktree and in no commit, right after a check of what was collected.
pub async fn leftovers(lease: &Lease) -> Result<Leftovers, CollectError> {
    let w = &lease.worktree;
    w.mirror().verify_seal()?;
    w.verify()?;
    let state = w.status(false).await?;
    let paths = state.changed.into_iter().map(|e| e.path).chain(state.untracked);
    Ok(Leftovers(paths.map(|path| (path.clone(), fingerprint(w.path(), &path))).collect()))
}

/// `None` for a file that is not there.
fn fingerprint(top: &Path, path: &[u8]) -> Option<Fingerprint> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = top.join(OsStr::from_bytes(path)).symlink_metadata().ok()?;
    Some((meta.len(), meta.ctime(), meta.ctime_nsec()))
}

/// Takes up the work in `lease`, less what its checks left there. Only for when no process of the attempt lives any more.
///
/// One command where the agent committed everything, three where it left something.
pub async fn collect(
    lease: &Lease,
    message: &str,
    committer: &Who,
    rules: CommitRules,
    leftovers: &Leftovers,
) -> Result<Collected, CollectError> {
    let w = &lease.worktree;
    w.mirror().verify_seal()?;
    w.verify()?;
    w.drop_locks(Some(lease.branch()));
    let unfinished = unfinished(w.git_dir());
    let mut tip = on_own_branch(lease, unfinished, message)?;
    w.unhide().await?;
    // What git may not read it passes over in silence.
    w.open_up().await?;
    let state = w.status(false).await?;
    let mut left_out = Vec::new();
    let mut committed_by_us = None;
    if state.is_dirty() {
        let mut sorted = sort(w.path(), &state, rules, &mut left_out);
        sorted.take.retain(|path| !leftovers.hold(w.path(), path));
        if unfinished.is_none() && !sorted.take.is_empty() {
            let commit = commit(lease, &tip, &sorted, message, committer).await?;
            if let Some(commit) = commit {
                committed_by_us = Some(commit.clone());
                tip = commit;
            }
        }
    }
    let odb = w.mirror().odb()?;
    let (tree, base) = (odb.info(&tip)?.tree, odb.info(lease.base())?.tree);
    let changed = odb.changes(Some(&base), &tree)?;
    let mut stray_gitlinks: Vec<_> = changed.iter().filter(|c| c.gitlink).map(|c| c.path.clone()).collect();
    if !stray_gitlinks.is_empty() {
        let modules = odb.blob_at(&tip, b".gitmodules")?.unwrap_or_default();
        let place = |path: &[u8]| w.path().join(OsStr::from_bytes(path));
        let is_local = |path: &[u8]| match odb.gitlink_at(&tip, path) {
            Ok(Some(commit)) => nested::only_here(&place(path), &commit),
            _ => false,
        };
        stray_gitlinks.retain(|path| !names_module(&modules, path) || is_local(path));
    }
    Ok(Collected { no_change: tree == base, tip, tree, changed, committed_by_us, left_out, unfinished, stray_gitlinks })
}

/// What a log of a ref says of our own commit.
const LEFTOVERS: &str = "commit (overnight): leftovers";

/// The commits in `tip`'s history that belong to other tasks: for each of `others` (name and tip of an unmerged branch)
/// its commits that `tip` contains and `known` (the base, the target's tip) do not. No command.
pub fn foreign(
    mirror: &super::mirror::Mirror,
    tip: &Oid,
    known: &[Oid],
    others: &[(String, Oid)],
) -> Result<Vec<(String, Vec<Oid>)>, CollectError> {
    let odb = mirror.odb()?;
    let mine: std::collections::HashSet<Oid> =
        odb.between(std::slice::from_ref(tip), known, COMMITS)?.into_iter().collect();
    let mut found = Vec::new();
    for (name, other) in others.iter().filter(|(_, o)| odb.is_commit(o)) {
        let shared: Vec<Oid> = odb
            .between(std::slice::from_ref(other), known, COMMITS)?
            .into_iter()
            .filter(|c| mine.contains(c))
            .collect();
        if !shared.is_empty() {
            found.push((name.clone(), shared));
        }
    }
    Ok(found)
}

/// True for names that by custom hold keys or passwords. Examples and public halves are not secret.
pub fn is_secret(path: &[u8]) -> bool {
    const NAMES: &[&str] = &[
        ".env",
        ".envrc",
        ".netrc",
        "_netrc",
        ".pgpass",
        ".pypirc",
        ".npmrc",
        ".git-credentials",
        ".htpasswd",
        "id_rsa",
        "id_dsa",
        "id_ecdsa",
        "id_ed25519",
        "credentials.json",
        "secrets.json",
        "secrets.yaml",
        "secrets.yml",
        "secrets.toml",
    ];
    const ENDINGS: &[&str] = &[".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".ppk", ".asc.key"];
    const EXAMPLES: &[&str] = &[".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults"];
    let path = String::from_utf8_lossy(path).to_lowercase();
    let name = path.rsplit('/').next().unwrap_or(&path);
    if EXAMPLES.contains(&name) {
        return false;
    }
    NAMES.contains(&name)
        || name.starts_with(".env.")
        || ENDINGS.iter().any(|e| name.ends_with(e))
        || path.ends_with(".aws/credentials")
        || path.ends_with(".docker/config.json")
        || (name.starts_with("service-account") && name.ends_with(".json"))
}

/// True below a `node_modules` folder.
pub(super) fn in_dependencies(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').any(|part| part == b"node_modules")
}

/// The operation that a git dir says is under way.
pub(super) fn unfinished(git_dir: &Path) -> Option<Unfinished> {
    let has = |name: &str| git_dir.join(name).symlink_metadata().is_ok();
    if has("rebase-merge") || has("rebase-apply") {
        Some(Unfinished::Rebase)
    } else if has("MERGE_HEAD") {
        Some(Unfinished::Merge)
    } else if has("CHERRY_PICK_HEAD") {
        Some(Unfinished::CherryPick)
    } else if has("REVERT_HEAD") {
        Some(Unfinished::Revert)
    } else if has("BISECT_START") {
        Some(Unfinished::Bisect)
    } else {
        None
    }
}

/// The branch's tip, when HEAD is on it, HEAD's own log ends at it, and it contains the base.
fn on_own_branch(lease: &Lease, unfinished: Option<Unfinished>, message: &str) -> Result<Oid, CollectError> {
    let w = &lease.worktree;
    let stray = |found| Err(CollectError::WrongBranch { branch: lease.branch().to_owned(), found, unfinished });
    match w.head() {
        Head::Branch(b) if b == lease.branch() => {}
        Head::Branch(b) => return stray(Strayed::OtherBranch(b)),
        Head::Detached(at) => return stray(Strayed::Detached(at)),
        Head::Unreadable => return stray(Strayed::Gone),
    }
    let odb = w.mirror().odb()?;
    let Some(tip) = odb.tip(&format!("refs/heads/{}", lease.branch()))? else { return stray(Strayed::Gone) };
    // Every move made in the worktree stands in HEAD's log too. A log that is gone says nothing.
    if let Some(left_at) = w.log().last()
        && *left_at != tip
    {
        // Our own commit, when we were killed after the branch moved and before the log said so.
        let ours = odb
            .info(&tip)
            .is_ok_and(|c| c.parents == std::slice::from_ref(left_at) && c.message.trim_end() == message.trim_end());
        if !ours {
            return stray(Strayed::MovedByOthers { left_at: left_at.clone(), now: tip });
        }
        w.append_log(left_at, &tip, LEFTOVERS)?;
    }
    if !odb.is_ancestor(lease.base(), &tip)? {
        return stray(Strayed::Rewritten { base: lease.base().clone(), tip });
    }
    Ok(tip)
}

/// Paths to add, and paths to take out of the index because somebody staged what we leave out.
#[derive(Default)]
struct Sorted {
    take: Vec<Vec<u8>>,
    unstage: Vec<Vec<u8>>,
}

fn sort(top: &Path, state: &Status, rules: CommitRules, left_out: &mut Vec<LeftOut>) -> Sorted {
    let mut sorted = Sorted::default();
    for entry in &state.changed {
        let fresh = entry.head_mode == 0;
        match refuse(top, &entry.path, fresh, is_new_gitlink(entry), rules) {
            None => sorted.take.push(entry.path.clone()),
            Some(why) => {
                if fresh {
                    sorted.unstage.push(entry.path.clone());
                }
                left_out.push(LeftOut { path: entry.path.clone(), why });
            }
        }
    }
    for path in &state.untracked {
        match refuse(top, path, true, path.ends_with(b"/"), rules) {
            None => sorted.take.push(path.clone()),
            Some(why) => left_out.push(LeftOut { path: path.clone(), why }),
        }
    }
    sorted.take.extend(state.unmerged.iter().cloned());
    specials(top, left_out);
    sorted
}

fn is_new_gitlink(entry: &Entry) -> bool {
    entry.index_mode == 0o160_000 && entry.head_mode != 0o160_000
}

/// Why `path` may not be committed by us. Rules on names are for files that the history does not have yet.
fn refuse(top: &Path, path: &[u8], fresh: bool, nested: bool, rules: CommitRules) -> Option<Why> {
    if nested {
        return Some(Why::NestedRepository);
    }
    let place = top.join(OsStr::from_bytes(path));
    // Absent: a deletion, which is taken.
    let meta = place.symlink_metadata().ok()?;
    if !(meta.is_file() || meta.is_symlink() || meta.is_dir()) {
        return Some(Why::Special);
    }
    if meta.is_file() && meta.len() > rules.max_file {
        return Some(Why::Large { size: meta.len() });
    }
    if !fresh {
        return None;
    }
    if is_secret(path) {
        return Some(Why::Secret);
    }
    if in_dependencies(path) {
        return Some(Why::Dependencies);
    }
    let first = path.split(|b| *b == b'/').next().unwrap_or_default();
    if [&b".claude"[..], b".codex", b".gemini", b".opencode", b".qwen"].contains(&first) || first.starts_with(b".aider")
    {
        return Some(Why::AgentFiles);
    }
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    (meta.is_file() && name.starts_with(b"core") && is_core(&place)).then_some(Why::CoreDump)
}

/// An ELF file of the type "core".
fn is_core(path: &Path) -> bool {
    use std::io::Read as _;
    let mut head = [0_u8; 18];
    std::fs::File::open(path).and_then(|mut f| f.read_exact(&mut head)).is_ok()
        && head.starts_with(b"\x7fELF")
        && (head[16..] == [4, 0] || head[16..] == [0, 4])
}

/// Names pipes, sockets and devices, which git does not report as untracked.
fn specials(top: &Path, left_out: &mut Vec<LeftOut>) {
    let mut todo = vec![top.to_owned()];
    let mut seen = 0_usize;
    while let Some(dir) = todo.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            seen += 1;
            if seen > SPECIALS {
                return;
            }
            let Ok(kind) = entry.file_type() else { continue };
            let name = entry.file_name();
            if kind.is_dir() {
                if name != ".git" && name != "node_modules" && name != "target" {
                    todo.push(entry.path());
                }
            } else if !kind.is_file() && !kind.is_symlink() {
                let path = entry.path();
                let path = path.strip_prefix(top).unwrap_or(&path).as_os_str().as_bytes().to_vec();
                if !left_out.iter().any(|l| l.path == path) {
                    left_out.push(LeftOut { path, why: Why::Special });
                }
            }
        }
    }
}

/// Commits the sorted paths on the branch: `add`, `write-tree`, and the commit and its ref in process.
async fn commit(
    lease: &Lease,
    tip: &Oid,
    sorted: &Sorted,
    message: &str,
    committer: &Who,
) -> Result<Option<Oid>, CollectError> {
    let w = &lease.worktree;
    if !sorted.unstage.is_empty() {
        w.git()
            .args(["update-index", "--force-remove", "-z", "--stdin"])
            .stdin(sorted.unstage.join(&0))
            .run_patiently()
            .await?;
    }
    stage(|| w.git(), w.path(), &sorted.take).await?;
    let tree = super::rescue::parse_oid(&w.git().arg("write-tree").run_patiently().await?)?;
    let odb = w.mirror().odb()?;
    if odb.info(tip)?.tree == tree {
        return Ok(None);
    }
    let commit = odb.commit(&tree, std::slice::from_ref(tip), message, committer)?;
    let name = format!("refs/heads/{}", lease.branch());
    match odb.swap(&name, Some(&commit), Expect::Is(tip), LEFTOVERS)? {
        Cas::Done => {}
        Cas::Holds(now) => return Err(CollectError::Overtaken { branch: lease.branch().to_owned(), now }),
    }
    w.append_log(tip, &commit, LEFTOVERS)?;
    Ok(Some(commit))
}

/// Whether a `.gitmodules` file has a module at `path`.
fn names_module(modules: &[u8], path: &[u8]) -> bool {
    modules.split(|b| *b == b'\n').any(|line| {
        let line = line.trim_ascii();
        let value = line.strip_prefix(b"path").map(<[u8]>::trim_ascii).and_then(|r| r.strip_prefix(b"="));
        value.map(<[u8]>::trim_ascii).is_some_and(|v| v == path || v == [b"\"", path, b"\""].concat())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_name() {
        for path in [".env", "a/.env.local", "id_rsa", "k/x.pem", "TLS.KEY", "x/.aws/credentials", ".npmrc"] {
            assert!(is_secret(path.as_bytes()), "{path}");
        }
        for path in [".env.example", "id_rsa.pub", "src/key.rs", "env", "environment.ts", "keys/readme"] {
            assert!(!is_secret(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn modules_are_found_by_exact_path() {
        let modules = b"[submodule \"x\"]\n\tpath = vendor/lib\n\turl = ../x\n";
        assert!(names_module(modules, b"vendor/lib"));
        assert!(!names_module(modules, b"vendor"));
        assert!(!names_module(b"", b"vendor"));
    }
}
