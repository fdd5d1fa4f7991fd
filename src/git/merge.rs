//! Merging a task's branch into an integration branch without a worktree: git's own `merge-tree` decides in the bare
//! mirror, with the attributes of the target's tip and drivers from the sealed configuration only. So no merge can be
//! left half done, and nobody's checkout is touched.

use super::deliver::update_ref;
use super::mirror::{Mirror, MirrorError};
use super::odb::OdbError;
use super::{GitError, Who, blocking};
use crate::domain::{Epoch, Oid, TaskPath};
use std::io;
use std::path::{Path, PathBuf};

/// The trailer that says which attempt a merge commit brought in.
pub const TRAILER: &str = "Overnight-Task";
/// What git ends with for an option that it does not know.
const UNKNOWN_OPTION: i32 = 129;
/// How far down the target's first parents a trailer is searched.
const SEARCHED: usize = 5000;
/// How many commits are synced one by one; a longer history syncs the file system.
const SYNCED: usize = 2000;

/// A merge could not be tried, or a branch not moved.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    #[error("could not sync {}", path.display())]
    Sync {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Odb(#[from] OdbError),
    #[error(transparent)]
    Mirror(#[from] MirrorError),
}

/// One merge to try.
#[derive(Debug, Clone)]
pub struct Candidate<'a> {
    pub target: &'a Oid,
    pub work: &'a Oid,
    /// Subject and body, without the trailer.
    pub message: &'a str,
    pub committer: &'a Who,
    pub task: &'a TaskPath,
    pub epoch: Epoch,
    /// Where the search for the trailer may stop: a commit of the target from before the attempt.
    pub since: Option<&'a Oid>,
}

/// How a merge came out. Nothing was moved in any case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merged {
    /// A commit with two parents, target and work, and its tree.
    Clean { commit: Oid, tree: Oid },
    /// The paths that both sides changed, exact bytes.
    Conflict { files: Vec<Vec<u8>> },
    /// This attempt was merged before, by that commit.
    AlreadyIn { commit: Oid },
    /// Git could not merge for another reason, in its own words.
    Error { text: String },
}

/// The answer of a compare-and-swap of a branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    Moved,
    /// It stood elsewhere; nothing was moved.
    Overtaken {
        now: Option<Oid>,
    },
}

/// Merges in the mirror and writes the commit. One command.
///
/// A fast-forward is made a merge commit too: the trailer and the order of the train are to be seen in history.
pub async fn try_merge(mirror: &Mirror, ask: Candidate<'_>) -> Result<Merged, MergeError> {
    let trailer = format!("{TRAILER}: {}@{}", ask.task, ask.epoch);
    if let Some(commit) = find_trailer(mirror, ask.target, ask.since, &trailer)? {
        return Ok(Merged::AlreadyIn { commit });
    }
    let tree = match merge_tree(mirror, ask.target, ask.work).await? {
        Ok(tree) => tree,
        Err(refused) => return Ok(refused),
    };
    let message = format!("{}\n\n{trailer}\n", ask.message.trim_end());
    let parents = [ask.target.clone(), ask.work.clone()];
    let commit = mirror.odb()?.commit(&tree, &parents, &message, ask.committer)?;
    Ok(Merged::Clean { commit, tree })
}

/// Merges `base` into an integration branch that it is no ancestor of, without a trailer. One command.
pub async fn try_merge_base(
    mirror: &Mirror,
    target: &Oid,
    base: &Oid,
    message: &str,
    committer: &Who,
) -> Result<Merged, MergeError> {
    let tree = match merge_tree(mirror, target, base).await? {
        Ok(tree) => tree,
        Err(refused) => return Ok(refused),
    };
    let commit = mirror.odb()?.commit(&tree, &[target.clone(), base.clone()], message, committer)?;
    Ok(Merged::Clean { commit, tree })
}

/// Moves `refs/heads/<branch>` of the mirror from `old` (`None`: it does not exist) to `new`, so that it survives a power
/// cut: the objects that `new` brings are synced first, the ref by git, its folder last. One command.
pub async fn move_branch(mirror: &Mirror, branch: &str, new: &Oid, old: Option<&Oid>) -> Result<Moved, MergeError> {
    mirror.verify_seal()?;
    let name = format!("refs/heads/{branch}");
    let now = mirror.branch_tip(branch)?;
    if now.as_ref() != old {
        return Ok(Moved::Overtaken { now });
    }
    make_durable(mirror, new, old).await?;
    let done = update_ref(mirror.git_dir(), &name, new, old, "overnight: merged").await;
    let now = mirror.branch_tip(branch)?;
    match done {
        Err(e) if now.as_ref() == old => Err(e.into()),
        Err(_) if now.as_ref() != Some(new) => Ok(Moved::Overtaken { now }),
        // Also where git was ended after it had moved the ref.
        _ => {
            let folder = mirror.git_dir().join(&name);
            let folder = folder.parent().unwrap_or(mirror.git_dir());
            sync(folder)?;
            Ok(Moved::Moved)
        }
    }
}

/// The merged tree, or how git refused.
pub(super) async fn merge_tree(mirror: &Mirror, ours: &Oid, theirs: &Oid) -> Result<Result<Oid, Merged>, MergeError> {
    let run = async |source: Option<String>| {
        let ask = mirror.git()?.args(source);
        let ask = ask.args(["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages"]);
        Ok::<_, MergeError>(ask.arg(ours.as_str()).arg(theirs.as_str()).output().await?)
    };
    let mut out = run(Some(format!("--attr-source={ours}"))).await?;
    if out.code == Some(UNKNOWN_OPTION) {
        // Before 2.41 git finds no attributes for a merge without a work tree; where there are none, none are missed.
        if has_attributes(mirror, ours).await? {
            let text = "git 2.41 or newer is needed to merge in a repository with .gitattributes".to_owned();
            return Ok(Err(Merged::Error { text }));
        }
        out = run(None).await?;
    }
    let mut records = out.records();
    let tree = records.next().and_then(|r| Oid::parse(&String::from_utf8_lossy(r)).ok());
    match (out.code, tree) {
        (Some(0), Some(tree)) => Ok(Ok(tree)),
        (Some(1), Some(_)) => Ok(Err(Merged::Conflict { files: records.map(<[u8]>::to_vec).collect() })),
        _ => {
            let text = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            let text = if text.is_empty() { format!("git merge-tree ended with {:?}", out.code) } else { text };
            Ok(Err(Merged::Error { text }))
        }
    }
}

/// Whether any folder of a commit has attributes of its own.
async fn has_attributes(mirror: &Mirror, commit: &Oid) -> Result<bool, MergeError> {
    let list =
        mirror.git()?.args(["ls-tree", "-r", "-z", "--name-only", "--full-tree"]).arg(commit.as_str()).run().await?;
    Ok(list.records().any(|path| path == b".gitattributes" || path.ends_with(b"/.gitattributes")))
}

/// The first-parent commit of `target` that carries `trailer` as a line of its own.
fn find_trailer(mirror: &Mirror, target: &Oid, since: Option<&Oid>, trailer: &str) -> Result<Option<Oid>, OdbError> {
    let messages = mirror.odb()?.first_parent_messages(target, since, SEARCHED)?;
    Ok(messages.into_iter().find(|(_, m)| m.lines().any(|l| l == trailer)).map(|(commit, _)| commit))
}

/// Syncs the loose objects that `new` brings beyond `old`; neither git nor an agent's git did. Packs are synced by git.
async fn make_durable(mirror: &Mirror, new: &Oid, old: Option<&Oid>) -> Result<(), MergeError> {
    let (mirror, new, old) = (mirror.clone(), new.clone(), old.cloned());
    let work = move || -> Result<(), MergeError> {
        let odb = mirror.odb()?;
        let known: Vec<Oid> = old.into_iter().collect();
        let objects = mirror.git_dir().join("objects");
        if known.is_empty() || odb.between(std::slice::from_ref(&new), &known, SYNCED + 1)?.len() > SYNCED {
            return sync_all(&objects);
        }
        let mut files = Vec::new();
        for id in odb.brought(&new, &known, SYNCED)? {
            let hex = id.to_hex().to_string();
            let path = objects.join(&hex[..2]).join(&hex[2..]);
            if path.exists() {
                files.push(path);
            }
            if files.len() > 512 {
                return sync_all(&objects);
            }
        }
        super::sync::new_files(files, &objects).map_err(|(path, source)| MergeError::Sync { path, source })
    };
    blocking(work).await.map_err(|source| MergeError::Sync { path: PathBuf::from("objects"), source })?
}

fn sync(folder: &Path) -> Result<(), MergeError> {
    let synced = std::fs::File::open(folder).and_then(|f| f.sync_all());
    synced.map_err(|source| MergeError::Sync { path: folder.to_owned(), source })
}

/// Syncs the whole file system that holds `folder`; for histories too long to name object by object.
#[cfg(target_os = "linux")]
fn sync_all(folder: &Path) -> Result<(), MergeError> {
    use std::os::fd::AsRawFd as _;
    let fail = |source| MergeError::Sync { path: folder.to_owned(), source };
    let file = std::fs::File::open(folder).map_err(fail)?;
    // SAFETY: the descriptor is open for the length of the call, which touches no memory of ours.
    if unsafe { libc::syncfs(file.as_raw_fd()) } == 0 { Ok(()) } else { Err(fail(io::Error::last_os_error())) }
}

#[cfg(not(target_os = "linux"))]
fn sync_all(folder: &Path) -> Result<(), MergeError> {
    nix::unistd::sync();
    sync(folder)
}
