//! A mirror: our own bare clone of a user's repository, from which all worktrees come. Its objects are hard links, its
//! refs are laid out so that nothing of ours meets a branch of the user's: `refs/remotes/user/*` and
//! `refs/remotes/origin/*` for theirs, `refs/heads/overnight/*` and `refs/heads/overnight-task/*` for ours.

use super::odb::{Odb, OdbError};
use super::seal::{self, Restored};
use super::source::{Source, for_each_ref};
use super::{Git, GitError, blocking};
use crate::domain::{Oid, safe};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Where the user's branches stand in a mirror.
pub const USER_REFS: &str = "refs/remotes/user/";
/// What a worktree's tasks are branched to, below `refs/heads/`.
pub const TASK_BRANCHES: &str = "overnight-task/";

/// A mirror could not be made or used as asked.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    #[error("{} is no git repository: {text}", path.display())]
    NotARepository { path: PathBuf, text: String },
    #[error("{} has no commit on any branch yet: make a first commit", .0.display())]
    NoCommits(PathBuf),
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    #[error("{} holds a line break, which git cannot have in a worktree's place", .0.display())]
    BadPlace(PathBuf),
    #[error("{} is {what} and could not be completed from its remote: {reason}", path.display())]
    Incomplete { path: PathBuf, what: &'static str, reason: String },
    #[error("the repository has no branch {0:?}")]
    NoSuchBranch(String),
    #[error("{0:?} is no branch name that git accepts")]
    BadBranch(String),
    #[error("branch {blocker:?} in {place} is in the way of {wanted:?}: git cannot keep both names")]
    NameTaken { blocker: String, wanted: String, place: &'static str },
    #[error("branch {branch:?} is yours already{}: finished work goes to a branch of its own", checkout(at.as_deref()))]
    Theirs { branch: String, at: Option<String> },
    #[error("could not read or write the mirror's files")]
    Files(#[from] io::Error),
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Odb(#[from] OdbError),
}

/// Whether a refresh found anything new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refreshed {
    Unchanged,
    Fetched,
}

/// One project's mirror. Cheap to clone; clones share the lock for files that all worktrees share.
#[derive(Debug, Clone)]
pub struct Mirror {
    git_dir: PathBuf,
    seal_dir: PathBuf,
    user_repo: PathBuf,
    /// Held while shared files of the mirror (worktree registrations, fetches) are written.
    pub(super) shared: Arc<tokio::sync::Mutex<()>>,
    /// Taken while the seal is compared; what was restored since somebody last asked.
    restored: Arc<Mutex<Vec<Restored>>>,
}

impl Mirror {
    /// Makes the mirror of `user_repo` (a checkout, one of its linked worktrees, or a bare repository) at `at`.
    /// Three git commands; the network only for a shallow or partial source.
    pub async fn create(user_repo: &Path, at: &Path) -> Result<Self, MirrorError> {
        let source = Source::inspect(user_repo).await?;
        let parent = at.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(parent)?;
        let at = parent.canonicalize()?.join(at.file_name().unwrap_or_default());
        if at.as_os_str().as_bytes().contains(&b'\n') {
            return Err(MirrorError::BadPlace(at));
        }
        if at.symlink_metadata().is_ok() {
            return Err(MirrorError::Exists(at));
        }
        let mut draft = at.file_name().unwrap_or_default().to_owned();
        draft.push(".making");
        let draft = at.with_file_name(draft);
        if draft.is_dir() {
            // What a killed predecessor left.
            std::fs::remove_dir_all(&draft)?;
        }
        if source.shallow || source.partial {
            source.complete_into(&draft).await?;
        } else {
            source.clone_into(&draft).await?;
        }
        let refs = source.remote_refs().await?;
        let (from, to, last) = (source.clone(), draft.clone(), at.clone());
        let mirror = Self::unsealed(&at, &source.common);
        let seal_dir = mirror.seal_dir.clone();
        // Sealed before it appears under its name: a mirror without a seal is never found.
        let finish = move || -> Result<(), MirrorError> {
            from.furnish(&to, refs)?;
            seal::make(&to, &seal_dir)?;
            Ok(std::fs::rename(&to, &last)?)
        };
        blocking(finish).await??;
        Ok(mirror)
    }

    /// A mirror that exists at `at`, of the user's repository at `user_repo` (asked for its common dir: one command).
    pub async fn open(at: &Path, user_repo: &Path) -> Result<Self, MirrorError> {
        let at = at.canonicalize()?;
        let source = Source::inspect(user_repo).await?;
        let mirror = Self::unsealed(&at, &source.common);
        mirror.verify_seal()?;
        Ok(mirror)
    }

    fn unsealed(at: &Path, user_common: &Path) -> Self {
        let mut seal = at.file_name().unwrap_or_default().to_owned();
        seal.push(".sealed");
        Self {
            git_dir: at.to_owned(),
            seal_dir: at.with_file_name(seal),
            user_repo: user_common.to_owned(),
            shared: Arc::default(),
            restored: Arc::default(),
        }
    }

    /// The mirror itself: a bare repository.
    pub fn git_dir(&self) -> &Path {
        &self.git_dir
    }

    /// The common git dir of the user's repository.
    pub fn user_repo(&self) -> &Path {
        &self.user_repo
    }

    /// Puts back what an agent changed of the sealed files. Every operation of ours does this first; what it found is
    /// told here and once more by [`Mirror::take_restored`].
    pub fn verify_seal(&self) -> Result<Vec<Restored>, MirrorError> {
        let mut kept = self.restored.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let found = seal::verify(&self.git_dir, &self.seal_dir)?;
        for r in &found {
            tracing::warn!(path = %r.path.display(), tamper = ?r.tamper, "a sealed file of the mirror was put back");
        }
        kept.extend(found.iter().cloned());
        Ok(found)
    }

    /// What has been put back since the last call, for the ledger.
    pub fn take_restored(&self) -> Vec<Restored> {
        std::mem::take(&mut *self.restored.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// A git command on the mirror itself, after the seal was compared.
    pub(super) fn git(&self) -> Result<Git, MirrorError> {
        self.verify_seal()?;
        Ok(Git::bare(&self.git_dir))
    }

    pub fn odb(&self) -> Result<Odb, OdbError> {
        Odb::open(&self.git_dir).or_else(|e| {
            // Most likely a configuration that an agent left unreadable.
            let restored = self.verify_seal().is_ok_and(|r| !r.is_empty());
            if restored { Odb::open(&self.git_dir) } else { Err(e) }
        })
    }

    /// Brings `refs/remotes/user/*` up to the user's branches, without any command where nothing moved, else one fetch.
    /// Prunes only there. Unborn and unreadable sources answer as git does.
    pub async fn refresh(&self) -> Result<Refreshed, MirrorError> {
        let theirs = user_heads(&self.user_repo).await?;
        let ours = self.odb()?.refs(USER_REFS)?;
        let same = theirs.len() == ours.len()
            && theirs.iter().all(|(name, tip)| {
                let name = [USER_REFS.as_bytes(), &name[b"refs/heads/".len()..]].concat();
                ours.get(gix::bstr::BStr::new(&name)) == Some(tip)
            });
        if same {
            return Ok(Refreshed::Unchanged);
        }
        let _guard = self.shared.lock().await;
        self.git()?
            .args(["fetch", "--quiet", "--prune", "--no-write-fetch-head", "--no-auto-maintenance"])
            .args(["--no-recurse-submodules", "--refmap=", "--"])
            .arg(&self.user_repo)
            .arg("+refs/heads/*:refs/remotes/user/*")
            .run_patiently()
            .await?;
        Ok(Refreshed::Fetched)
    }

    /// Where the user's branch `base` stood at the last refresh. No command.
    pub fn base_tip(&self, base: &str) -> Result<Oid, MirrorError> {
        let name = format!("{USER_REFS}{base}");
        check_branch(base)?;
        self.odb()?.tip(&name)?.ok_or_else(|| MirrorError::NoSuchBranch(base.to_owned()))
    }

    /// The tip of a branch of ours in the mirror. No command.
    pub fn branch_tip(&self, branch: &str) -> Result<Option<Oid>, MirrorError> {
        Ok(self.odb()?.tip(&format!("refs/heads/{branch}"))?)
    }

    /// Where HEAD or a branch of the user's repository stands now. No command, but one where the repository is of a kind
    /// that we do not read ourselves (reftable).
    pub async fn user_tip(&self, name: &str) -> Result<Option<Oid>, MirrorError> {
        if !self.user_repo.join("reftable").is_dir()
            && let Ok(tip) = Odb::open(&self.user_repo).and_then(|o| o.tip(name))
        {
            return Ok(tip);
        }
        let ask = Git::bare(&self.user_repo).args(["rev-parse", "--verify", "--quiet"]).arg(name);
        match ask.clone().output().await?.code {
            // Quiet, it says by this alone that there is no such ref.
            Some(1) => Ok(None),
            // Asked once more for the words of its failure.
            _ => Ok(Oid::parse(&ask.run().await?.text()).ok()),
        }
    }

    /// Whether finished work may go to the branch `into`: its name fits, and where it is in the user's repository it is
    /// there by us. A branch of theirs would never be moved, so nothing would arrive.
    pub async fn may_receive(&self, into: &str, is_default: bool) -> Result<(), MirrorError> {
        self.names_fit(into).await?;
        let name = format!("refs/heads/{into}");
        let is_ours = is_default || self.odb()?.tip(&name)?.is_some();
        if is_ours || self.user_tip(&name).await?.is_none() {
            return Ok(());
        }
        let at = super::deliver::checked_out(&self.user_repo, &name).map(|at| safe::line(&at.to_string_lossy()));
        Err(MirrorError::Theirs { branch: into.to_owned(), at })
    }

    /// Tries that the branch `into` and `overnight-task/…` can exist beside what the user's repository and the mirror
    /// hold. Letter case is ignored: on some file systems it makes no difference, and the names would be confusing.
    pub async fn names_fit(&self, into: &str) -> Result<(), MirrorError> {
        check_branch(into)?;
        let wanted = [into.to_owned(), format!("{TASK_BRANCHES}x")];
        let ours = self.odb()?.refs("refs/heads/")?.into_keys().map(|k| k.to_vec()).collect();
        let theirs = user_heads(&self.user_repo).await?.into_keys().collect();
        for (place, names) in [("the user's repository", theirs), ("the mirror", ours)] {
            let names: Vec<Vec<u8>> = names;
            for name in names {
                let blocker = String::from_utf8_lossy(&name[b"refs/heads/".len()..]).into_owned();
                let lower = blocker.to_lowercase();
                for wanted in &wanted {
                    let want = wanted.to_lowercase();
                    let above = want.strip_prefix(&lower).is_some_and(|rest| rest.starts_with('/'));
                    let below = lower.strip_prefix(&want).is_some_and(|rest| rest.starts_with('/'));
                    if above || below || (lower == want && blocker != *wanted) {
                        return Err(MirrorError::NameTaken { blocker, wanted: wanted.clone(), place });
                    }
                }
            }
        }
        Ok(())
    }
}

fn checkout(at: Option<&str>) -> String {
    at.map_or_else(String::new, |at| format!(" (checked out in {at})"))
}

/// All branches of the user's repository, read in process, or by git where the repository is of a kind that we do not
/// read ourselves (reftable).
pub(super) async fn user_heads(common: &Path) -> Result<BTreeMap<Vec<u8>, Oid>, MirrorError> {
    let reftable = common.join("reftable").is_dir();
    if let Ok(refs) = Odb::open(common).and_then(|o| o.refs("refs/heads/"))
        && !reftable
    {
        return Ok(refs.into_iter().map(|(k, v)| (k.to_vec(), v)).collect());
    }
    for_each_ref(common, &["refs/heads/"]).await
}

/// Refuses what git would not take as a branch, before a ref is built from it.
fn check_branch(name: &str) -> Result<(), MirrorError> {
    let full = format!("refs/heads/{name}");
    match gix::validate::reference::name(gix::bstr::BStr::new(&full)) {
        Ok(_) if !name.starts_with('-') => Ok(()),
        _ => Err(MirrorError::BadBranch(name.chars().take(200).collect())),
    }
}
