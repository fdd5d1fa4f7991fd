//! Bringing a branch of ours from the mirror to the user's repository: objects by a fetch there without destination and
//! with hooks off (a push would run their receive hooks), then the ref by a compare-and-swap. A branch that is checked
//! out there, or that somebody moved there, is left as it is and said.

use super::mirror::{Mirror, MirrorError};
use super::worktree::plain_file;
use super::{Git, GitError};
use crate::domain::Oid;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// What became of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivered {
    Done,
    /// It stood there already.
    Already,
    /// Checked out (or being rebased or bisected) in this git dir of theirs; nothing was moved.
    CheckedOut {
        at: PathBuf,
    },
    /// It holds something else than what we left there; nothing was moved.
    MovedThere {
        now: Option<Oid>,
    },
}

impl fmt::Display for Delivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("it was moved"),
            Self::Already => f.write_str("it stood there already"),
            Self::CheckedOut { at } => write!(f, "it is checked out in {}", at.display()),
            Self::MovedThere { now: Some(now) } => write!(f, "it stands at {} there", now.short()),
            Self::MovedThere { now: None } => f.write_str("it is gone there"),
        }
    }
}

/// Moves `refs/heads/<branch>` of the user's repository from `old` (`None`: it does not exist) to `new`. No command where
/// there is nothing to do, else two.
pub async fn deliver(mirror: &Mirror, branch: &str, new: &Oid, old: Option<&Oid>) -> Result<Delivered, MirrorError> {
    let user = mirror.user_repo();
    let name = format!("refs/heads/{branch}");
    let now = mirror.user_tip(&name).await?;
    if now.as_ref() == Some(new) {
        return Ok(Delivered::Already);
    }
    if now.as_ref() != old {
        return Ok(Delivered::MovedThere { now });
    }
    if let Some(at) = checked_out(user, &name) {
        return Ok(Delivered::CheckedOut { at });
    }
    bring_objects(mirror, new).await?;
    match update_ref(user, &name, new, old, "overnight: delivered").await {
        Ok(()) => Ok(Delivered::Done),
        Err(e) => {
            let now = mirror.user_tip(&name).await?;
            if now.as_ref() == old { Err(e.into()) } else { Ok(Delivered::MovedThere { now }) }
        }
    }
}

/// Gives the user's repository the objects of `commit`, which no ref there names yet. One command, also where the commit
/// is there already: a fetch that was killed may have left it without its files, and git's own fetch looks whether all
/// that it leads to is there before it takes nothing.
pub(super) async fn bring_objects(mirror: &Mirror, commit: &Oid) -> Result<(), MirrorError> {
    mirror.verify_seal()?;
    Git::bare(mirror.user_repo())
        .args(["-c", "core.fsync=committed", "-c", "core.fsyncMethod=batch"])
        .args(["fetch", "--quiet", "--no-write-fetch-head", "--no-auto-maintenance", "--no-tags"])
        .args(["--no-recurse-submodules", "--refmap=", "--"])
        .arg(mirror.git_dir())
        .arg(commit.as_str())
        .run_patiently()
        .await?;
    Ok(())
}

pub(super) async fn update_ref(
    repo: &Path,
    name: &str,
    new: &Oid,
    old: Option<&Oid>,
    why: &str,
) -> Result<(), GitError> {
    let absent = "0".repeat(new.as_str().len());
    Git::bare(repo)
        .identity("overnight", "overnight@localhost")
        // The branch is on record as moved after this: it must survive a power cut.
        .args(["-c", "core.fsync=reference", "update-ref", "--no-deref", "-m", why])
        .arg(name)
        .arg(new.as_str())
        .arg(old.map_or(absent.as_str(), Oid::as_str))
        .run_patiently()
        .await?;
    Ok(())
}

/// The git dir of theirs whose HEAD, rebase or bisection is on `name`.
pub(super) fn checked_out(common: &Path, name: &str) -> Option<PathBuf> {
    let mut dirs = vec![common.to_owned()];
    if let Ok(entries) = std::fs::read_dir(common.join("worktrees")) {
        dirs.extend(entries.flatten().map(|e| e.path()));
    }
    dirs.into_iter().find(|dir| {
        // A bare repository's own HEAD is only a default.
        let bare = dir == common && is_bare(common);
        !bare && on_branch(dir, name)
    })
}

pub(super) fn on_branch(git_dir: &Path, name: &str) -> bool {
    let text = |file: &str| plain_file(&git_dir.join(file)).unwrap_or_default();
    let short = name.strip_prefix("refs/heads/").unwrap_or(name);
    let head = text("HEAD");
    head.strip_prefix(b"ref: ").is_some_and(|r| r.trim_ascii_end() == name.as_bytes())
        || ["rebase-merge/head-name", "rebase-apply/head-name"]
            .iter()
            .any(|f| text(f).trim_ascii_end() == name.as_bytes())
        || text("BISECT_START").trim_ascii_end() == short.as_bytes()
}

fn is_bare(common: &Path) -> bool {
    let config = plain_file(&common.join("config")).unwrap_or_default();
    config.split(|b| *b == b'\n').any(|line| {
        let line: Vec<u8> = line.iter().filter(|b| !b.is_ascii_whitespace()).map(u8::to_ascii_lowercase).collect();
        line == b"bare=true"
    }) && OsStr::from_bytes(b".git") != common.file_name().unwrap_or_default()
}
