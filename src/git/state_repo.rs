//! The state repo: our own bare clone of it, and reading from it. All reading is in process: the tip, a file, every task
//! file of a commit, and what differs between two commits, so that one changed file costs no reading of the whole tree.
//!
//! Writing is in `state_commit`, bringing both to the authority in `state_publish`, what others wrote in `state_absorb`.

use super::state_tree::{ENTRY_LIMIT, TaskFiles, entry_at, is_ancestor, load, tree_diff, tree_of};
use super::{Git, GitError, stale_locks};
use crate::domain::Oid;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The one branch of a state repo.
pub const MAIN: &str = "refs/heads/main";
/// What the state remote's `main` was when we last looked.
pub const ORIGIN_MAIN: &str = "refs/remotes/origin/main";
/// What the person's folder's branch was when we last looked.
pub const FOLDER_MAIN: &str = "refs/remotes/folder/main";
/// Claims as last seen at a remote authority; the rest of the name is that of the claim ref.
pub const SEEN_CLAIMS: &str = "refs/overnight/seen/";
/// Larger files in a commit are named but not loaded.
pub const FILE_LIMIT: u64 = 1024 * 1024;
/// A state repo that could not be read or written. Remotes that fail are outcomes, not errors.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(transparent)]
    Git(#[from] GitError),
    #[error("could not {what} in the state repo")]
    Repo {
        what: &'static str,
        #[source]
        source: gix::Error,
    },
    #[error("could not {what} at {}", at.display())]
    Io {
        what: &'static str,
        at: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{0:?} is no path that may be written")]
    BadPath(String),
    #[error("{0:?} is in the way: a file where a folder is needed, or the reverse")]
    InTheWay(String),
    #[error("{0:?} has no legal form in the state repo")]
    Malformed(String),
    #[error("more than {ENTRY_LIMIT} entries in one state repo")]
    TooMany,
    #[error("the state repo has no commit yet")]
    Unborn,
    #[error("a local ref changed while it was being moved, again and again")]
    Contended,
}

pub(super) type Result<T, E = StateError> = std::result::Result<T, E>;

/// Names the failed operation of a gix call.
pub(super) trait Doing<T> {
    fn doing(self, what: &'static str) -> Result<T>;
}

impl<T, E: Into<gix::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: &'static str) -> Result<T> {
        self.map_err(|e| StateError::Repo { what, source: e.into() })
    }
}

/// How one exchange is tried again after another writer was faster, or nothing could be learned.
#[derive(Debug, Clone, Copy)]
pub struct Tries {
    /// At most so many pushes for one call.
    pub most: u32,
    /// The first pause is a random part of this, each later one of twice as much.
    pub pause: Duration,
    /// No pause is longer.
    pub cap: Duration,
    /// Time limit of one exchange with the remote.
    pub limit: Duration,
}

impl Default for Tries {
    fn default() -> Self {
        Self { most: 30, pause: Duration::from_millis(25), cap: Duration::from_secs(3), limit: super::NETWORK_LIMIT }
    }
}

/// Our own bare clone of a project's state repo. One call that moves refs is under way at a time.
pub struct StateRepo {
    pub(super) at: PathBuf,
    pub(super) repo: gix::ThreadSafeRepository,
    pub(super) remote: Option<String>,
    pub(super) tries: Tries,
    /// Whether what is recorded is synced to disk before it counts.
    pub(super) durable: bool,
    pub(super) gate: tokio::sync::Mutex<()>,
}

/// What a file below `tasks/` is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// `README.md` in a task's folder.
    Wish,
    /// `state.json`.
    State,
    /// `log.jsonl`.
    Log,
    /// `tasks/README.md` or `BOARD.md`.
    Board,
    /// Anything else; belongs to people.
    Other,
}

impl FileKind {
    /// The kind of the file `path` (from the top of the repo, `/` between parts).
    pub fn of(path: &[u8]) -> Self {
        let top = path.split(|b| *b == b'/').next().unwrap_or_default();
        if !matches!(top, b"tasks" | b"archive") || top.len() == path.len() {
            return Self::Other;
        }
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
        match name {
            b"README.md" if path.len() == top.len() + 1 + name.len() => Self::Board,
            b"README.md" => Self::Wish,
            b"state.json" => Self::State,
            b"log.jsonl" => Self::Log,
            b"BOARD.md" => Self::Board,
            _ => Self::Other,
        }
    }

    /// Whether only the machine writes such files.
    pub fn is_machines(self) -> bool {
        match self {
            Self::State | Self::Log | Self::Board => true,
            Self::Wish | Self::Other => false,
        }
    }
}

/// What a commit has at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Bytes(Vec<u8>),
    /// Larger than [`FILE_LIMIT`]; its size in bytes.
    TooLarge(u64),
    /// A symbolic link, a submodule, or a folder.
    NotAFile,
}

/// One file below `tasks/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFile {
    /// Its folder below `tasks/`, as it stands in the tree: possibly no legal task path, nor UTF-8.
    pub folder: Vec<u8>,
    pub kind: FileKind,
    pub content: Content,
}

/// How two commits stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relation {
    /// Commits that only the first has.
    pub ahead: usize,
    /// Commits that only the second has.
    pub behind: usize,
}

impl StateRepo {
    /// Makes an empty bare clone in `folder`, with `remote` as its authority if there is one. Nothing is fetched yet.
    pub async fn create(folder: &Path, remote: Option<&str>) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(|source| StateError::Io {
            what: "make a folder",
            at: folder.into(),
            source,
        })?;
        Git::at(folder)
            .args(["init", "-q", "--bare", "--template=", "--object-format=sha1", "-b", "main"])
            .run()
            .await?;
        let config = |key: &'static str, value: &str| Git::bare(folder).args(["config", key, value]);
        config("core.logAllRefUpdates", "false").run().await?;
        config("uploadpack.hideRefs", "refs/overnight/seen").run().await?;
        if let Some(url) = remote {
            config("remote.origin.url", url).run().await?;
        }
        Self::open(folder)
    }

    /// Opens the clone at `folder`.
    pub fn open(folder: &Path) -> Result<Self> {
        let repo = super::odb::options().open_path_as_is(true).open(folder).doing("open the repository")?;
        let remote = repo
            .to_thread_local()
            .config_snapshot()
            .string("remote.origin.url")
            .map(|url| url.to_string())
            .filter(|url| !url.is_empty());
        Ok(Self {
            at: folder.to_owned(),
            repo,
            remote,
            tries: Tries::default(),
            durable: true,
            gate: tokio::sync::Mutex::new(()),
        })
    }

    /// Sets how often and how long remotes are tried.
    pub fn with_tries(mut self, tries: Tries) -> Self {
        self.tries = tries;
        self
    }

    /// Leaves syncing to the system: for throw-away repositories only.
    pub fn without_sync(mut self) -> Self {
        self.durable = false;
        self
    }

    /// Removes ref locks that a kill left in our clone; gives how many. Call it after a start; it blocks for a moment where
    /// there are some, for a git of the killed daemon may still be at work.
    pub fn clear_stale_locks(&self) -> Result<usize> {
        let cleared = stale_locks::clear(&self.at, stale_locks::PATIENCE);
        let cleared = cleared.map_err(|source| StateError::Io { what: "clear locks", at: self.at.clone(), source })?;
        Ok(cleared.len())
    }

    /// A setting for git commands that write what a ref will name.
    pub(super) fn synced(&self) -> [&'static str; 4] {
        let what = if self.durable { "core.fsync=all" } else { "core.fsync=none" };
        ["-c", what, "-c", "core.fsyncMethod=batch"]
    }

    /// Packs what has gathered; reading from a clone that nobody maintains costs many times as much. Takes nothing away:
    /// what no ref names yet may belong to a push under way.
    pub async fn maintain(&self) -> Result<()> {
        let _one = self.gate.lock().await;
        Git::bare(&self.at).args(["repack", "-d", "-l", "-q", "--geometric=2"]).run().await?;
        Git::bare(&self.at).args(self.synced()).args(["pack-refs"]).run().await?;
        Ok(())
    }

    /// Where the bare clone is.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// The state remote's URL, when there is one; it is the claim authority then.
    pub fn remote(&self) -> Option<&str> {
        self.remote.as_deref()
    }

    /// The tip of our `main`: what the authority had, as far as we know, with what peers added. `None` before the first.
    pub fn tip(&self) -> Result<Option<Oid>> {
        self.ref_value(MAIN)
    }

    /// What the ref `name` points to, unpeeled.
    pub fn ref_value(&self, name: &str) -> Result<Option<Oid>> {
        let repo = self.repo.to_thread_local();
        let found = repo.try_find_reference(name).doing("read a ref")?;
        Ok(found.and_then(|r| r.try_id().map(|id| from_gix(id.detach()))))
    }

    /// The refs whose names start with `prefix` (which ends in `/`), with their values.
    pub(super) fn refs_below(&self, prefix: &str) -> Result<Vec<(String, Oid)>> {
        let repo = self.repo.to_thread_local();
        let platform = repo.references().doing("list refs")?;
        let mut found = Vec::new();
        for entry in platform.prefixed(prefix).doing("list refs")? {
            let entry = entry.doing("list refs")?;
            if let Some(id) = entry.try_id() {
                found.push((entry.name().as_bstr().to_string(), from_gix(id.detach())));
            }
        }
        Ok(found)
    }

    /// The file `path` in the commit `tip`; `None` where there is nothing.
    pub fn read_file(&self, tip: &Oid, path: &[u8]) -> Result<Option<Content>> {
        let repo = self.repo.to_thread_local();
        match entry_at(&repo, tree_of(&repo, tip)?, path)? {
            None => Ok(None),
            Some((mode, id)) => load(&repo, mode, id).map(Some),
        }
    }

    /// Every file below `tasks/` of the commit `tip` whose kind `want` names, in tree order, loaded as it is asked for.
    pub fn read_tasks(&self, tip: &Oid, want: fn(FileKind) -> bool) -> Result<TaskFiles> {
        let mut repo = self.repo.to_thread_local();
        repo.object_cache_size_if_unset(4 * 1024 * 1024);
        let tree = tree_of(&repo, tip)?;
        TaskFiles::new(repo, tree, want)
    }

    /// Every path at which the trees of the two commits differ; all paths of `new` when there is no `old`.
    pub fn changed_since(&self, old: Option<&Oid>, new: &Oid) -> Result<BTreeSet<Vec<u8>>> {
        let repo = self.repo.to_thread_local();
        let old = old.map(|old| tree_of(&repo, old)).transpose()?;
        let changed = tree_diff(&repo, old, Some(tree_of(&repo, new)?))?;
        Ok(changed.into_iter().map(|c| c.path).collect())
    }

    /// How many commits each of the two has that the other lacks.
    pub fn relation(&self, one: &Oid, two: &Oid) -> Result<Relation> {
        let repo = self.repo.to_thread_local();
        relation(&repo, one, two)
    }

    /// True when `old` is `new` or an ancestor of it; false also when either is not here.
    pub fn is_ancestor(&self, old: &Oid, new: &Oid) -> Result<bool> {
        is_ancestor(&self.repo.to_thread_local(), to_gix(old)?, to_gix(new)?)
    }
}

/// Makes a person's state repo in `folder` (which may hold files, but no repository): `files` and a `.gitignore` for what
/// editors leave behind, in one first commit on `main`. Gives that commit.
pub async fn init_folder(folder: &Path, files: &[(&str, Vec<u8>)], name: &str, mail: &str) -> Result<Oid> {
    let io = |what, at: PathBuf| move |source| StateError::Io { what, at, source };
    std::fs::create_dir_all(folder).map_err(io("make a folder", folder.into()))?;
    Git::at(folder).args(["init", "-q", "--object-format=sha1", "-b", "main"]).run().await?;
    let ignore = (".gitignore", GITIGNORE.to_vec());
    let mut added = Vec::new();
    for (path, bytes) in files.iter().chain([&ignore]) {
        let at = folder.join(path);
        if let Some(above) = at.parent() {
            std::fs::create_dir_all(above).map_err(io("make a folder", above.into()))?;
        }
        // What a person already has there stays.
        match std::fs::OpenOptions::new().write(true).create_new(true).open(&at) {
            Ok(mut file) => {
                std::io::Write::write_all(&mut file, bytes).map_err(io("write a file", at.clone()))?;
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(io("write a file", at)(e)),
        }
        added.push(*path);
    }
    Git::at(folder).args(["add", "-f", "--"]).args(&added).run().await?;
    let commit = ["commit", "-q", "--no-verify", "-m", "Start the state repo", "--"];
    Git::at(folder).args(commit).args(&added).identity(name, mail).run().await?;
    let head = Git::at(folder).args(["rev-parse", "HEAD"]).run().await?.text();
    Oid::parse(&head).map_err(|_| StateError::Malformed(head))
}

/// What editors leave behind must never look like a task.
const GITIGNORE: &[u8] = b"*~\n\\#*\\#\n.\\#*\n*.swp\n*.swo\n*.swx\n4913\n.DS_Store\n*.tmp\n*.orig\n*.rej\n";

pub(super) fn relation(repo: &gix::Repository, one: &Oid, two: &Oid) -> Result<Relation> {
    Ok(Relation { ahead: only_in(repo, one, two)?, behind: only_in(repo, two, one)? })
}

fn only_in(repo: &gix::Repository, one: &Oid, not_in: &Oid) -> Result<usize> {
    let walk = repo.rev_walk([to_gix(one)?]).with_hidden([to_gix(not_in)?]).all().doing("count commits")?;
    let mut n = 0;
    for commit in walk {
        commit.doing("count commits")?;
        n += 1;
    }
    Ok(n)
}

pub(super) fn to_gix(oid: &Oid) -> Result<gix::ObjectId> {
    gix::ObjectId::from_hex(oid.as_str().as_bytes()).map_err(|_| StateError::Malformed(oid.to_string()))
}

pub(super) fn from_gix(id: gix::ObjectId) -> Oid {
    Oid::parse(&id.to_string()).expect("the hexadecimal form of an object id is one")
}
