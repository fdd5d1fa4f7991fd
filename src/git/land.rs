//! Landing: the user's base branch goes forward to what was integrated, in their own repository, only as a fast-forward
//! and only where no checkout of theirs is dirty or busy. Also what `diff` shows, and whether a base has the integrated
//! content already.

use super::collect::{Unfinished, unfinished};
use super::deliver::{bring_objects, checked_out, on_branch, update_ref};
use super::merge::{MergeError, merge_tree};
use super::mirror::{Mirror, MirrorError};
use super::odb::OdbError;
use super::{Git, GitError, status};
use crate::domain::Oid;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Landing could not be tried.
#[derive(Debug, thiserror::Error)]
pub enum LandError {
    #[error("the user's repository has no branch {0:?}")]
    NoSuchBranch(String),
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Odb(#[from] OdbError),
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    #[error(transparent)]
    Merge(#[from] MergeError),
}

/// How landing came out. Nothing was changed in any case but the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Landed {
    /// The base moved; `at` is the checkout that was updated with it.
    Forward { old: Oid, new: Oid, at: Option<PathBuf> },
    /// The base contains it already.
    Already,
    /// The base has commits that were not integrated.
    NotForward { base: Oid },
    /// The checkout has changes to tracked files, some of which are named.
    Dirty { at: PathBuf, files: Vec<Vec<u8>> },
    /// The checkout is in the middle of something, or the branch is checked out more than once.
    Busy { at: PathBuf, what: Busy },
    /// Git refused to update the checkout (an untracked file in the way, a held lock), in its own words.
    Refused { at: PathBuf, text: String },
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unfinished(what) => write!(f, "{what} is unfinished there"),
            Self::CheckedOutTwice => f.write_str("the branch is checked out in more than one worktree"),
            Self::Missing => f.write_str("its folder cannot be found"),
        }
    }
}

/// What keeps a checkout from being updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Busy {
    Unfinished(Unfinished),
    CheckedOutTwice,
    /// Registered with this branch, and its folder cannot be found.
    Missing,
}

/// Fast-forwards `refs/heads/<base>` in the user's repository to `tip`. Three commands where it is checked out nowhere,
/// four where it is.
pub async fn land(mirror: &Mirror, base: &str, tip: &Oid) -> Result<Landed, LandError> {
    mirror.refresh().await?;
    let user = mirror.user_repo();
    let name = format!("refs/heads/{base}");
    let old = mirror.user_tip(&name).await?.ok_or_else(|| LandError::NoSuchBranch(base.to_owned()))?;
    {
        let odb = mirror.odb()?;
        if odb.is_ancestor(tip, &old)? {
            return Ok(Landed::Already);
        }
        if !odb.is_ancestor(&old, tip)? {
            return Ok(Landed::NotForward { base: old });
        }
    }
    let places = checkouts(mirror, &name).await?;
    let Some(at) = places.first().cloned() else {
        if let Some(at) = checked_out(user, &name) {
            // A rebase or bisection, which the list of worktrees does not tell.
            let what = unfinished(&at).map_or(Busy::Missing, Busy::Unfinished);
            return Ok(Landed::Busy { at, what });
        }
        bring_objects(mirror, tip).await?;
        update_ref(user, &name, tip, Some(&old), "overnight: landed").await?;
        return Ok(Landed::Forward { old, new: tip.clone(), at: None });
    };
    if places.len() > 1 {
        return Ok(Landed::Busy { at, what: Busy::CheckedOutTwice });
    }
    in_checkout(mirror, &name, at, old, tip).await
}

/// Updates a clean checkout and its branch in one git command, which holds the index lock meanwhile.
async fn in_checkout(mirror: &Mirror, name: &str, at: PathBuf, old: Oid, tip: &Oid) -> Result<Landed, LandError> {
    if !at.is_dir() {
        return Ok(Landed::Busy { at, what: Busy::Missing });
    }
    let out = Git::at(&at).args(["rev-parse", "--absolute-git-dir"]).run().await?;
    let git_dir = PathBuf::from(OsStr::from_bytes(out.stdout.strip_suffix(b"\n").unwrap_or(&out.stdout)));
    if let Some(what) = unfinished(&git_dir) {
        return Ok(Landed::Busy { at, what: Busy::Unfinished(what) });
    }
    let git =
        || Git::at(&at).env("GIT_DIR", &git_dir).env("GIT_WORK_TREE", &at).identity("overnight", "overnight@localhost");
    // Untracked files stay; where one is in the way, git refuses below.
    let out = git().args(status::ARGS).arg("--untracked-files=no").run().await?;
    let state = status::parse(&out.stdout);
    let dirty: Vec<_> = state.changed.into_iter().map(|e| e.path).chain(state.unmerged).take(20).collect();
    if !dirty.is_empty() {
        return Ok(Landed::Dirty { at, files: dirty });
    }
    bring_objects(mirror, tip).await?;
    if !on_branch(&git_dir, name) {
        return Ok(Landed::Refused { at, text: "another branch was checked out meanwhile".into() });
    }
    let merged = git()
        .args(["-c", "merge.autoStash=false", "-c", "merge.verifySignatures=false", "-c", "core.fsync=reference"])
        .args(["merge", "--ff-only", "--quiet", "--no-verify"])
        .arg(tip.as_str())
        .output()
        .await?;
    let now = mirror.user_tip(name).await?;
    if now.as_ref() == Some(tip) {
        return Ok(Landed::Forward { old, new: tip.clone(), at: Some(at) });
    }
    let text = String::from_utf8_lossy(&merged.stderr).trim().to_owned();
    Ok(Landed::Refused { at, text })
}

/// The checkouts of theirs whose HEAD is on `name`.
async fn checkouts(mirror: &Mirror, name: &str) -> Result<Vec<PathBuf>, LandError> {
    let out = Git::bare(mirror.user_repo()).args(["worktree", "list", "--porcelain", "-z"]).run().await?;
    let mut found = Vec::new();
    let mut place: Option<PathBuf> = None;
    let mut bare = false;
    for record in out.stdout.split(|b| *b == 0) {
        if let Some(path) = record.strip_prefix(b"worktree ") {
            (place, bare) = (Some(PathBuf::from(OsStr::from_bytes(path))), false);
        } else if record == b"bare" {
            bare = true;
        } else if record.strip_prefix(b"branch ") == Some(name.as_bytes()) && !bare {
            found.extend(place.clone());
        }
    }
    Ok(found)
}

/// Whether `base` holds everything that `integration` would bring: the same tree, or a merge of the two that changes
/// nothing (a pull request squashed it, other commits may have come since). One command at most.
pub async fn squashed(mirror: &Mirror, base: &Oid, integration: &Oid) -> Result<bool, LandError> {
    let tree = mirror.odb()?.info(base)?.tree;
    if mirror.odb()?.info(integration)?.tree == tree {
        return Ok(true);
    }
    Ok(merge_tree(mirror, base, integration).await?.is_ok_and(|merged| merged == tree))
}

/// The two ends of what landing `tip` would bring to `base`, for [`diff_stat`] and [`diff_patch`]: where the base went on,
/// what it has by itself is no part of it. One command at most.
pub async fn would_land(mirror: &Mirror, base: &Oid, tip: &Oid) -> Result<(Oid, Oid), LandError> {
    let start = mirror.odb()?.merge_base(base, tip)?;
    if start.as_ref() == Some(base) {
        return Ok((base.clone(), tip.clone()));
    }
    Ok(match merge_tree(mirror, base, tip).await? {
        Ok(merged) => (base.clone(), merged),
        // Nobody knows how a person will mend the conflict: what was done since the two parted.
        Err(_) => (start.unwrap_or_else(|| base.clone()), tip.clone()),
    })
}

/// Lines added and removed in one file; `None` for binary content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStat {
    pub path: Vec<u8>,
    /// Its former name, when renamed.
    pub from: Option<Vec<u8>>,
    pub lines: Option<(u64, u64)>,
}

/// What differs between two commits or trees, in lines. One command.
pub async fn diff_stat(mirror: &Mirror, base: &Oid, tip: &Oid) -> Result<Vec<FileStat>, LandError> {
    let out = diff(mirror)?.args(["--numstat", "-z"]).arg(base.as_str()).arg(tip.as_str()).run().await?;
    let mut records = out.stdout.split(|b| *b == 0);
    let mut stats = Vec::new();
    while let Some(record) = records.next() {
        let mut parts = record.splitn(3, |b| *b == b'\t');
        let (Some(added), Some(removed), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let count = |t: &[u8]| std::str::from_utf8(t).ok()?.parse().ok();
        let lines = count(added).zip(count(removed));
        // A rename has an empty name here and its two names in the next records.
        let (from, path) = if path.is_empty() {
            (records.next().map(<[u8]>::to_vec), records.next().unwrap_or_default())
        } else {
            (None, path)
        };
        stats.push(FileStat { path: path.to_vec(), from, lines });
    }
    Ok(stats)
}

/// The patch between two commits or trees, the same whatever a user's configuration says. One command.
pub async fn diff_patch(mirror: &Mirror, base: &Oid, tip: &Oid) -> Result<Vec<u8>, LandError> {
    Ok(diff(mirror)?.arg("--unified=3").arg(base.as_str()).arg(tip.as_str()).run().await?.stdout)
}

fn diff(mirror: &Mirror) -> Result<Git, MirrorError> {
    Ok(mirror
        .git()?
        .args(["diff-tree", "-r", "--no-commit-id", "--no-ext-diff", "--no-textconv", "--no-color", "--find-renames"])
        .args(["--src-prefix=a/", "--dst-prefix=b/", "--diff-algorithm=histogram", "--full-index"]))
}
