//! The state repo: our own bare clone of it, and reading from it. All reading is in process: the tip, a file, every task
//! file of a commit, and what differs between two commits, so that one changed file costs no reading of the whole tree.
//!
//! Writing is in `state_commit`, bringing both to the authority in `state_publish`, what others wrote in `state_absorb`.

use super::{Git, GitError};
use crate::domain::Oid;
use gix::bstr::{BStr, ByteSlice as _};
use gix::objs::tree::{EntryKind, EntryRef};
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
/// A tree with more entries below `tasks/` is not read to its end.
const ENTRY_LIMIT: usize = 4_000_000;
/// Folders below this depth are not entered: no legal task path is that deep.
const DEPTH_LIMIT: usize = 128;

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
        Git::at(folder).args(["init", "-q", "--bare", "--template=", "-b", "main"]).run().await?;
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
        let repo = gix::open::Options::isolated().open_path_as_is(true).open(folder).doing("open the repository")?;
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
        let mut files = TaskFiles { repo, want, todo: Vec::new(), seen: 0 };
        if let Some((mode, id)) = entry_at(&files.repo, tree, b"tasks")?
            && mode.is_tree()
        {
            files.todo.push(Todo { path: Vec::new(), mode, id, depth: 0 });
        }
        Ok(files)
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
        Ok(Relation { ahead: only_in(&repo, one, two)?, behind: only_in(&repo, two, one)? })
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
    Git::at(folder).args(["init", "-q", "-b", "main"]).run().await?;
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

/// Reads the files below `tasks/` one by one; made by [`StateRepo::read_tasks`].
pub struct TaskFiles {
    repo: gix::Repository,
    want: fn(FileKind) -> bool,
    /// What is still to be looked at, the next at the end.
    todo: Vec<Todo>,
    seen: usize,
}

struct Todo {
    path: Vec<u8>,
    mode: gix::objs::tree::EntryMode,
    id: gix::ObjectId,
    depth: usize,
}

impl Iterator for TaskFiles {
    type Item = Result<TaskFile>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(todo) = self.todo.pop() {
            if todo.mode.is_tree() {
                if let Err(e) = self.enter(&todo) {
                    self.todo.clear();
                    return Some(Err(e));
                }
                continue;
            }
            let cut = todo.path.rfind_byte(b'/');
            let kind = FileKind::of(&[b"tasks/", todo.path.as_slice()].concat());
            if (self.want)(kind) {
                let folder = todo.path[..cut.unwrap_or(0)].to_vec();
                let content = load(&self.repo, todo.mode, todo.id);
                return Some(content.map(|content| TaskFile { folder, kind, content }));
            }
        }
        None
    }
}

impl TaskFiles {
    fn enter(&mut self, folder: &Todo) -> Result<()> {
        if folder.depth >= DEPTH_LIMIT {
            return Ok(());
        }
        let tree = self.repo.find_object(folder.id).doing("read a tree")?;
        let from = self.todo.len();
        for entry in gix::objs::TreeRefIter::from_bytes(&tree.data, folder.id.kind()) {
            let entry = entry.doing("read a tree")?;
            let mut path = folder.path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(entry.filename);
            self.todo.push(Todo { path, mode: entry.mode, id: entry.oid.into(), depth: folder.depth + 1 });
        }
        self.seen += self.todo.len() - from;
        if self.seen > ENTRY_LIMIT {
            return Err(StateError::TooMany);
        }
        self.todo[from..].reverse();
        Ok(())
    }
}

/// One path at which two trees differ: mode and object before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Differs {
    pub(super) path: Vec<u8>,
    pub(super) old: Option<(gix::objs::tree::EntryMode, gix::ObjectId)>,
    pub(super) new: Option<(gix::objs::tree::EntryMode, gix::ObjectId)>,
}

/// The files at which two trees differ; equal folders are not entered.
pub(super) fn tree_diff(
    repo: &gix::Repository,
    old: Option<gix::ObjectId>,
    new: Option<gix::ObjectId>,
) -> Result<Vec<Differs>> {
    let mut found = Vec::new();
    let mut todo = vec![(Vec::new(), old, new)];
    while let Some((at, old, new)) = todo.pop() {
        if old == new {
            continue;
        }
        let read = |id: Option<gix::ObjectId>| id.map(|id| repo.find_object(id).doing("read a tree")).transpose();
        let (old, new) = (read(old)?, read(new)?);
        let entries =
            |tree: &Option<gix::Object<'_>>| -> Result<Vec<(Vec<u8>, gix::objs::tree::EntryMode, gix::ObjectId)>> {
                let Some(tree) = tree else { return Ok(Vec::new()) };
                gix::objs::TreeRefIter::from_bytes(&tree.data, tree.id.kind())
                    .map(|e| e.map(|e| (key_of(&e), e.mode, e.oid.into())))
                    .collect::<std::result::Result<_, _>>()
                    .doing("read a tree")
            };
        let (old, new) = (entries(&old)?, entries(&new)?);
        let (mut i, mut j) = (0, 0);
        while i < old.len() || j < new.len() {
            let order = match (old.get(i), new.get(j)) {
                (Some(a), Some(b)) => a.0.cmp(&b.0),
                (Some(_), None) => std::cmp::Ordering::Less,
                _ => std::cmp::Ordering::Greater,
            };
            let a = order.is_le().then(|| &old[i]);
            let b = order.is_ge().then(|| &new[j]);
            i += usize::from(a.is_some());
            j += usize::from(b.is_some());
            if a.map(|a| (a.1, a.2)) == b.map(|b| (b.1, b.2)) {
                continue;
            }
            let Some(key) = a.or(b).map(|e| &e.0) else { continue };
            let mut path: Vec<u8> = at.clone();
            path.extend_from_slice(key);
            if key.ends_with(b"/") {
                todo.push((path, a.map(|e| e.2), b.map(|e| e.2)));
            } else {
                found.push(Differs { path, old: a.map(|e| (e.1, e.2)), new: b.map(|e| (e.1, e.2)) });
            }
        }
    }
    Ok(found)
}

/// A tree entry's name as git sorts it: folders end in `/`, so a file and a folder of one name are two things.
fn key_of(entry: &EntryRef<'_>) -> Vec<u8> {
    let mut key = entry.filename.to_vec();
    if entry.mode.is_tree() {
        key.push(b'/');
    }
    key
}

/// Mode and object at `path` in the tree `tree`.
pub(super) fn entry_at(
    repo: &gix::Repository,
    tree: gix::ObjectId,
    path: &[u8],
) -> Result<Option<(gix::objs::tree::EntryMode, gix::ObjectId)>> {
    let mut at = (gix::objs::tree::EntryMode::from(EntryKind::Tree), tree);
    for part in path.split(|b| *b == b'/') {
        if !at.0.is_tree() {
            return Ok(None);
        }
        let tree = repo.find_object(at.1).doing("read a tree")?;
        let mut found = None;
        for entry in gix::objs::TreeRefIter::from_bytes(&tree.data, at.1.kind()) {
            let entry = entry.doing("read a tree")?;
            if entry.filename == BStr::new(part) {
                found = Some((entry.mode, entry.oid.to_owned()));
                break;
            }
        }
        match found {
            Some(next) => at = next,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

fn load(repo: &gix::Repository, mode: gix::objs::tree::EntryMode, id: gix::ObjectId) -> Result<Content> {
    if !mode.is_blob() {
        return Ok(Content::NotAFile);
    }
    let size = repo.find_header(id).doing("read a file's size")?.size();
    if size > FILE_LIMIT {
        return Ok(Content::TooLarge(size));
    }
    let mut blob = repo.find_object(id).doing("read a file")?;
    Ok(Content::Bytes(std::mem::take(&mut blob.data)))
}

/// The tree of a commit.
pub(super) fn tree_of(repo: &gix::Repository, commit: &Oid) -> Result<gix::ObjectId> {
    let commit = repo.find_commit(to_gix(commit)?).doing("read a commit")?;
    Ok(commit.tree_id().doing("read a commit")?.detach())
}

pub(super) fn is_ancestor(repo: &gix::Repository, old: gix::ObjectId, new: gix::ObjectId) -> Result<bool> {
    if old == new {
        return Ok(true);
    }
    if !repo.has_object(old) || !repo.has_object(new) {
        return Ok(false);
    }
    let base = repo.merge_base(old, new).doing("look for a common ancestor")?;
    Ok(base.is_some_and(|base| base == old))
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
