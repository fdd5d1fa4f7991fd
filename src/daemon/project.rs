//! One project as the daemon works on it: the mirror of the code, the pool of worktrees, our clone of the state repo and
//! the person's folder of it. Everything here is opened from what `init` has written, and made where it is missing.

use super::state_worker::StateOp;
use crate::config::{Approvals, Places, registry};
use crate::domain::policy::Policy;
use crate::domain::{Oid, ProjectId};
use crate::git::collect::Leftovers;
use crate::git::folder::Folder;
use crate::git::mirror::Mirror;
use crate::git::pool::{Found, Lease, Pool};
use crate::git::rescue::Rescued;
use crate::git::state_commit::Identity;
use crate::git::state_repo::StateRepo;
use crate::git::{Git, Who, stale_locks};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Idle worktrees that are kept over a start.
const IDLE: usize = 8;

/// Why a project cannot be worked on.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    #[error("the mirror of {} could not be opened", code.display())]
    Mirror { code: PathBuf, source: crate::git::mirror::MirrorError },
    #[error("locks left in {} could not be cleared", at.display())]
    Locks { at: PathBuf, source: std::io::Error },
    #[error("the pool of worktrees could not be opened")]
    Pool(#[source] crate::git::pool::PoolError),
    #[error("the remote of {} cannot be told, and so not who gives out its tasks", folder.display())]
    Remote { folder: PathBuf, source: crate::git::GitError },
    #[error("the state repo could not be opened")]
    State(#[source] crate::git::state_repo::StateError),
    #[error("the approved configuration could not be read")]
    Approved(#[source] crate::config::files::FileError),
}

/// An open project.
pub struct ProjectCtx {
    pub id: ProjectId,
    pub code: PathBuf,
    /// The person's folder of the state repo.
    pub state_folder: PathBuf,
    /// Our own data of this project.
    pub data: PathBuf,
    pub mirror: Mirror,
    pub pool: Pool,
    pub state: Arc<StateRepo>,
    pub folder: Option<Folder>,
    pub ops: mpsc::UnboundedSender<StateOp>,
    pub leases: Mutex<BTreeMap<String, Lease>>,
    pub proofs: Mutex<BTreeMap<String, Rescued>>,
    /// What checks left in the worktrees, by branch.
    pub leftovers: Mutex<BTreeMap<String, Leftovers>>,
    policy: Mutex<Option<Policy>>,
    /// What is wrong with the state remote, while something is.
    pub trouble: Mutex<Option<String>>,
    /// Why the person's folder of the state repo is behind and stays so, while it does.
    pub left_alone: Mutex<Option<String>>,
    /// The user's own name and mail, as git in their repository has them.
    author: Option<Who>,
}

impl ProjectCtx {
    /// Opens the project, making mirror and clone where they are missing. The receiver is for its state worker.
    pub async fn open(
        places: &Places,
        entry: &registry::Project,
    ) -> Result<(Self, mpsc::UnboundedReceiver<StateOp>), ProjectError> {
        let data = places.project(&entry.id);
        clear_locks(&data).await?;
        let mirror = open_mirror(&entry.code, &data.join("code.git")).await?;
        let pool = Pool::open(&mirror, &data.join("wt")).map_err(ProjectError::Pool)?;
        let state = open_state(&data.join("state.git"), &entry.state).await?;
        let folder = Folder::open(&entry.state, "refs/heads/main", &data.join("folder-update.json")).ok();
        let (ops, receiver) = mpsc::unbounded_channel();
        let ctx = Self {
            id: entry.id.clone(),
            code: entry.code.clone(),
            state_folder: entry.state.clone(),
            data,
            mirror,
            pool,
            state: Arc::new(state),
            folder,
            ops,
            leases: Mutex::default(),
            proofs: Mutex::default(),
            leftovers: Mutex::default(),
            policy: Mutex::default(),
            trouble: Mutex::default(),
            left_alone: Mutex::default(),
            author: author_of(&entry.code).await,
        };
        ctx.tidy().await;
        Ok((ctx, receiver))
    }

    /// The approved configuration, if there is one, as a policy.
    pub fn load_policy(&self, places: &Places) -> Result<Option<Policy>, ProjectError> {
        let approvals = Approvals::new(places.data.clone());
        let Some(approved) = approvals.approved(&self.id).map_err(ProjectError::Approved)? else { return Ok(None) };
        let file = self.code.join(crate::config::FILE);
        // What was approved was read without a fault then; a newer program may be stricter.
        match crate::config::parse(&file, &approved.bytes) {
            Ok(config) => {
                *lock(&self.policy) = Some(config.policy.clone());
                Ok(Some(config.policy))
            }
            Err(e) => {
                tracing::error!(project = %self.id, "the approved configuration is no longer valid: {e}");
                Ok(None)
            }
        }
    }

    /// The policy that was loaded last.
    pub fn policy(&self) -> Option<Policy> {
        lock(&self.policy).clone()
    }

    /// Who our commits are by.
    pub fn who(&self) -> Who {
        let (name, mail) =
            self.policy().map_or_else(|| ("Overnight".to_owned(), "overnight@localhost".to_owned()), |p| p.committer);
        Who { name, mail }
    }

    /// Author and committer for what an agent commits, so that its commits work whatever its HOME says.
    pub fn author_env(&self) -> BTreeMap<String, String> {
        let who = self.author.clone().unwrap_or_else(|| self.who());
        let mut env = BTreeMap::new();
        for role in ["AUTHOR", "COMMITTER"] {
            env.insert(format!("GIT_{role}_NAME"), who.name.clone());
            env.insert(format!("GIT_{role}_EMAIL"), who.mail.clone());
        }
        env
    }

    /// Author and time of a commit in the state repo.
    pub fn identity(&self) -> Identity {
        let who = self.who();
        Identity { name: who.name, mail: who.mail, at: crate::host::clock::now().wall }
    }

    pub fn lease(&self, branch: &str) -> Option<Lease> {
        lock(&self.leases).get(branch).cloned()
    }

    pub fn integration(&self) -> PathBuf {
        self.data.join("integration")
    }

    /// Where background steps have their snapshots.
    pub fn snapshots(&self) -> PathBuf {
        self.data.join("bg")
    }

    pub fn brief(&self, dotted: &str) -> PathBuf {
        self.data.join("briefs").join(format!("{dotted}.md"))
    }

    /// What an earlier daemon left: worktrees that could not be removed are tried again, then those that were lent are
    /// found; idle ones beyond what a start needs and the snapshots of background steps go.
    async fn tidy(&self) {
        if let Err(e) = self.pool.retry_aside().await {
            tracing::warn!(project = %self.id, "worktrees that were set aside stay: {}", super::chain(&e));
        }
        self.find_leases();
        if let Err(e) = self.pool.drain(IDLE).await {
            tracing::warn!(project = %self.id, "idle worktrees stay: {}", super::chain(&e));
        }
        let (mirror, snapshots) = (self.mirror.clone(), self.snapshots());
        let left = tokio::task::spawn_blocking(move || super::background::drop_left(&mirror, &snapshots));
        if let Err(e) = left.await {
            tracing::warn!(project = %self.id, "snapshots of background steps stay: {e}");
        }
    }

    /// Worktrees that were lent when an earlier daemon ended.
    fn find_leases(&self) {
        let found = match self.pool.inventory() {
            Ok(found) => found,
            Err(e) => return tracing::error!(project = %self.id, "worktrees could not be listed: {}", super::chain(&e)),
        };
        for one in found {
            match one {
                Found::Leased(lease) | Found::Broken { lease, .. } => {
                    lock(&self.leases).insert(lease.branch().to_owned(), *lease);
                }
                Found::Aside { n, reason } => {
                    tracing::warn!(project = %self.id, worktree = n, "a worktree is still set aside: {reason}");
                }
                Found::Foreign { path } => {
                    tracing::warn!(project = %self.id, "{} is not ours and stays", path.display());
                }
                Found::Missing { n, .. } => {
                    tracing::warn!(project = %self.id, worktree = n, "a worktree's folder was gone");
                }
                Found::Idle { .. } => {}
            }
        }
    }
}

/// A lock whose holder cannot have left anything half done.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a killed daemon left locked, in both repositories of ours.
async fn clear_locks(data: &Path) -> Result<(), ProjectError> {
    let places: Vec<_> = ["code.git", "state.git"].map(|n| data.join(n)).into_iter().filter(|p| p.is_dir()).collect();
    let clear = move || places.iter().try_for_each(|p| stale_locks::clear(p, stale_locks::PATIENCE).map(drop));
    let cleared = tokio::task::spawn_blocking(clear).await.map_err(std::io::Error::other);
    cleared.and_then(|done| done).map_err(|source| ProjectError::Locks { at: data.to_owned(), source })
}

async fn open_mirror(code: &Path, at: &Path) -> Result<Mirror, ProjectError> {
    let error = |source| ProjectError::Mirror { code: code.to_owned(), source };
    if at.join("HEAD").exists() {
        Mirror::open(at, code).await.map_err(error)
    } else {
        Mirror::create(code, at).await.map_err(error)
    }
}

/// Our clone at `at` of the person's `folder`. Its remote is the authority for claims: another one counts only where the
/// folder says so, since a second authority would give tasks out that are held at the first.
async fn open_state(at: &Path, folder: &Path) -> Result<StateRepo, ProjectError> {
    let remote = remote_of(folder).await;
    let exists = at.join("HEAD").exists();
    if !exists {
        let remote = remote.map_err(|source| ProjectError::Remote { folder: folder.to_owned(), source })?;
        return StateRepo::create(at, remote.as_deref()).await.map_err(ProjectError::State);
    }
    let repo = StateRepo::open(at).map_err(ProjectError::State)?;
    let remote = match &remote {
        Ok(remote) => remote.as_deref(),
        Err(e) => {
            let known = repo.remote().map_or("none", |url| url);
            tracing::warn!("the remote of {} cannot be told and stays as it was ({known}): {e}", folder.display());
            return Ok(repo);
        }
    };
    if repo.remote() == remote {
        return Ok(repo);
    }
    // The person gave their folder another remote, or its first one: the authority moves with it.
    let config = Git::bare(at).args(["config", "--replace-all", "remote.origin.url", remote.unwrap_or("")]);
    config.run().await.map_err(|e| ProjectError::State(e.into()))?;
    StateRepo::open(at).map_err(ProjectError::State)
}

async fn author_of(code: &Path) -> Option<Who> {
    let get =
        async |key: &str| Some(Git::at(code).args(["config", key]).run().await.ok()?.text()).filter(|t| !t.is_empty());
    Some(Who { name: get("user.name").await?, mail: get("user.email").await? })
}

/// The `origin` of the person's folder, as the authority's URL; relative paths are taken from the folder. `None` where git
/// says that it has none.
async fn remote_of(folder: &Path) -> Result<Option<String>, crate::git::GitError> {
    let ask = Git::at(folder).args(["remote", "get-url", "origin"]);
    // What is no repository must not be answered for by one around it.
    let ask = ask.env("GIT_CEILING_DIRECTORIES", folder.parent().unwrap_or(folder));
    let url = match ask.run().await {
        Ok(out) => out.text(),
        Err(crate::git::GitError::Failed { code: Some(NO_SUCH_REMOTE), .. }) => return Ok(None),
        Err(e) => return Err(e),
    };
    if url.is_empty() {
        return Ok(None);
    }
    let local = !url.contains("://") && !url.split('/').next().unwrap_or("").contains(':');
    Ok(Some(if local { folder.join(&url).to_string_lossy().into_owned() } else { url }))
}

/// How `git remote` ends where there is no remote of that name.
const NO_SUCH_REMOTE: i32 = 2;

/// The tip of the state repo, for readers that take what there is.
pub fn tip(state: &StateRepo) -> Option<Oid> {
    state.tip().ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_authority_moves_only_where_the_folder_says_so() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path().canonicalize().unwrap();
        let (folder, at) = (top.join("state"), top.join("data/state.git"));
        let git = async |args: &[&str]| Git::at(&folder).args(args).run().await.unwrap();
        assert!(matches!(open_state(&at, &folder).await, Err(ProjectError::Remote { .. })), "nobody can tell yet");
        assert!(!at.exists());
        std::fs::create_dir_all(&folder).unwrap();
        git(&["init", "-q"]).await;
        git(&["remote", "add", "origin", "ssh://host/one"]).await;
        assert_eq!(open_state(&at, &folder).await.unwrap().remote(), Some("ssh://host/one"));
        // Unreadable, no repository, gone: what was known stays.
        std::fs::rename(folder.join(".git/HEAD"), folder.join(".git/away")).unwrap();
        assert_eq!(open_state(&at, &folder).await.unwrap().remote(), Some("ssh://host/one"));
        std::fs::rename(&folder, top.join("away")).unwrap();
        assert_eq!(open_state(&at, &folder).await.unwrap().remote(), Some("ssh://host/one"));
        std::fs::rename(top.join("away"), &folder).unwrap();
        std::fs::rename(folder.join(".git/away"), folder.join(".git/HEAD")).unwrap();
        git(&["remote", "set-url", "origin", "../two"]).await;
        let two = folder.join("../two").to_string_lossy().into_owned();
        assert_eq!(open_state(&at, &folder).await.unwrap().remote(), Some(&*two));
        git(&["remote", "remove", "origin"]).await;
        assert_eq!(open_state(&at, &folder).await.unwrap().remote(), None);
    }
}
