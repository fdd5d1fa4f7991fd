//! A person's folder: a normal checkout of the state repo, a peer of our own clone. Reading it must be safe whatever lies
//! there: no link is followed, nothing blocks, nothing large is loaded. What a person has saved but not committed is
//! found by comparing with `HEAD`, with the index's stat data as a short cut. Updating it is in `folder_update`.

use super::state_repo::{Doing as _, FILE_LIMIT, FileKind, Relation, Result, StateError, from_gix};
use super::state_tree::{entry_at, is_ancestor};
use crate::domain::Oid;
use gix::index::entry::stat::Options as StatOptions;
use gix::objs::tree::EntryMode;
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Folders below `tasks/` deeper than this are not entered.
const DEPTH_LIMIT: usize = 128;

/// A person's checkout of the state repo.
pub struct Folder {
    pub(super) at: PathBuf,
    pub(super) git_dir: PathBuf,
    /// The branch that we keep up to date, as a full ref name.
    pub(super) branch: String,
    /// Where an update under way is noted; in our data folder.
    pub(super) record: PathBuf,
}

/// How a folder stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderStatus {
    /// The branch that is checked out, as a full ref name; `None` when `HEAD` is detached.
    pub branch: Option<String>,
    /// The commit that is checked out; `None` before the first.
    pub head: Option<Oid>,
    /// What git operation is half done there (`merge`, `rebase`, …).
    pub busy: Option<&'static str>,
    /// How `HEAD` stands to the commit asked about; `None` when that is not in the folder, or there is no `HEAD`.
    pub relation: Option<Relation>,
}

/// A task file that differs from `HEAD`: edited, staged or new, and not committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderEdit {
    /// From the top of the repo: `tasks/<path>/README.md`, as it stands, possibly no legal task path.
    pub path: Vec<u8>,
    pub bytes: Vec<u8>,
    /// The blob that these bytes are in git.
    pub blob: Oid,
}

/// What a look at the task files came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    pub edits: Vec<FolderEdit>,
    /// Task files that `HEAD` has and the folder has not.
    pub deleted: Vec<Vec<u8>>,
    /// What has the name of a task file and is not read, and why.
    pub skipped: Vec<(Vec<u8>, &'static str)>,
}

impl Folder {
    /// Opens the checkout at `path`, whose branch `branch` (a full ref name) is ours to keep up to date. `record` is a
    /// file of our data folder, for this folder alone.
    pub fn open(path: &Path, branch: &str, record: &Path) -> Result<Self> {
        let repo = open(path)?;
        let git_dir = repo.git_dir().to_owned();
        if repo.workdir().is_none() {
            return Err(StateError::Malformed(path.display().to_string()));
        }
        let absolute = |what, at: &Path| {
            std::path::absolute(at).map_err(|source| StateError::Io { what, at: at.to_owned(), source })
        };
        Ok(Self {
            at: absolute("find", path)?,
            git_dir: absolute("find", &git_dir)?,
            branch: branch.to_owned(),
            record: absolute("find", record)?,
        })
    }

    /// The top of the checkout.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// How the folder stands, also to `against` (our tip).
    pub fn status(&self, against: Option<&Oid>) -> Result<FolderStatus> {
        let repo = open(&self.at)?;
        let head = repo.head().doing("read HEAD")?;
        let branch = head.referent_name().map(|name| name.as_bstr().to_string());
        let head = head.id().map(|id| from_gix(id.detach()));
        let relation = match (&head, against) {
            (Some(head), Some(against)) if repo.has_object(super::state_repo::to_gix(against)?) => {
                Some(super::state_repo::relation(&repo, head, against)?)
            }
            _ => None,
        };
        Ok(FolderStatus { branch, head, busy: self.busy(), relation })
    }

    /// Whether `old` is `new` or an ancestor of it, as far as the folder knows.
    pub fn contains(&self, old: &Oid, new: &Oid) -> Result<bool> {
        is_ancestor(&open(&self.at)?, super::state_repo::to_gix(old)?, super::state_repo::to_gix(new)?)
    }

    fn busy(&self) -> Option<&'static str> {
        let marks = [
            ("MERGE_HEAD", "merge"),
            ("rebase-merge", "rebase"),
            ("rebase-apply", "rebase"),
            ("CHERRY_PICK_HEAD", "cherry-pick"),
            ("REVERT_HEAD", "revert"),
            ("sequencer", "sequence of picks"),
            ("BISECT_LOG", "bisect"),
        ];
        marks.into_iter().find(|(file, _)| self.git_dir.join(file).exists()).map(|(_, what)| what)
    }

    /// Looks at the task files at `paths` (from the top of the repo), or at all, and gives those that differ from `HEAD`.
    pub fn scan_wishes(&self, paths: Option<&[Vec<u8>]>) -> Result<Scan> {
        let mut look = Look::new(self)?;
        match paths {
            Some(paths) => {
                for path in paths.iter().collect::<BTreeSet<_>>() {
                    if FileKind::of(path) == FileKind::Wish {
                        look.file(path)?;
                    }
                }
            }
            None => {
                let found = match open_below(&self.at, b"tasks", true) {
                    Ok(tasks) => look.folder(tasks, b"tasks", 0)?,
                    Err(_) => BTreeSet::new(),
                };
                look.note_deleted(&found)?;
            }
        }
        Ok(look.scan)
    }
}

/// One look at a folder, with what git knows about it.
struct Look<'a> {
    folder: &'a Folder,
    repo: gix::Repository,
    tree: Option<gix::ObjectId>,
    index: Option<gix::index::File>,
    /// Whether the index is exactly the tree of `HEAD`, by its own account.
    index_is_head: bool,
    /// Task files of `HEAD`, once they were needed.
    known: Option<HashMap<Vec<u8>, gix::ObjectId>>,
    scan: Scan,
}

impl<'a> Look<'a> {
    fn new(folder: &'a Folder) -> Result<Self> {
        let mut repo = open(&folder.at)?;
        repo.object_cache_size_if_unset(4 * 1024 * 1024);
        let tree = match repo.head().doing("read HEAD")?.id() {
            Some(id) => {
                let commit = repo.find_commit(id).doing("read HEAD")?;
                Some(commit.tree_id().doing("read HEAD")?.detach())
            }
            None => None,
        };
        let index = repo.open_index().ok();
        let whole = index.as_ref().and_then(|index| index.tree()).filter(|tree| tree.num_entries.is_some());
        let index_is_head = whole.map(|whole| whole.id) == tree && tree.is_some();
        Ok(Self { folder, repo, tree, index, index_is_head, known: None, scan: Scan::default() })
    }

    /// Every task file below an open folder; gives the paths that are there, read or not.
    fn folder(&mut self, fd: OwnedFd, at: &[u8], depth: usize) -> Result<BTreeSet<Vec<u8>>> {
        let mut found = BTreeSet::new();
        let mut names = Vec::new();
        let io = |source: Errno| StateError::Io {
            what: "list a folder",
            at: self.folder.at.join(OsStr::from_bytes(at)),
            source: source.into(),
        };
        let own = fd.try_clone().map_err(|_| io(Errno::EMFILE))?;
        for entry in Dir::from_fd(own).map_err(io)?.iter() {
            let entry = entry.map_err(io)?;
            names.push((entry.file_name().to_bytes().to_vec(), entry.file_type()));
        }
        names.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, kind) in names {
            if name.starts_with(b".") {
                continue;
            }
            let path = [at, b"/", name.as_slice()].concat();
            let is_task_file = FileKind::of(&path) == FileKind::Wish;
            let may_be_folder = matches!(kind, Some(Type::Directory) | None) && !is_task_file;
            if is_task_file {
                let file = open_one(&fd, &name, false);
                self.opened(&path, file)?;
                found.insert(path);
            } else if may_be_folder
                && depth < DEPTH_LIMIT
                && let Ok(below) = open_one(&fd, &name, true)
            {
                found.extend(self.folder(below, &path, depth + 1)?);
            }
        }
        Ok(found)
    }

    fn file(&mut self, path: &[u8]) -> Result<()> {
        let file = open_below(&self.folder.at, path, false);
        if matches!(file, Err(Errno::ENOENT | Errno::ENOTDIR)) {
            if self.in_head(path)?.is_some() {
                self.scan.deleted.push(path.to_vec());
            }
            return Ok(());
        }
        self.opened(path, file)
    }

    /// Compares one opened task file with `HEAD`.
    fn opened(&mut self, path: &[u8], file: Result<OwnedFd, Errno>) -> Result<()> {
        let skip = |why| (path.to_vec(), why);
        let mut file = match file {
            Ok(file) => std::fs::File::from(file),
            Err(Errno::ELOOP) => {
                self.scan.skipped.push(skip("a symbolic link"));
                return Ok(());
            }
            Err(_) => {
                self.scan.skipped.push(skip("not readable"));
                return Ok(());
            }
        };
        let io =
            |source| StateError::Io { what: "read a file", at: self.folder.at.join(OsStr::from_bytes(path)), source };
        let stat = file.metadata().map_err(io)?;
        if !stat.is_file() {
            self.scan.skipped.push(skip("no regular file"));
            return Ok(());
        }
        if stat.len() > FILE_LIMIT {
            self.scan.skipped.push(skip("larger than 1 MiB"));
            return Ok(());
        }
        let indexed = self.unchanged_since_indexed(path, &file);
        if indexed.is_some() && indexed == self.in_head(path)? {
            return Ok(());
        }
        let mut bytes = Vec::new();
        file.by_ref().take(FILE_LIMIT + 1).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > FILE_LIMIT {
            self.scan.skipped.push(skip("larger than 1 MiB"));
            return Ok(());
        }
        let blob = hash_of(&self.repo, &bytes)?;
        if Some(blob) != self.in_head(path)? {
            self.scan.edits.push(FolderEdit { path: path.to_vec(), bytes, blob: from_gix(blob) });
        }
        Ok(())
    }

    /// The blob that the index has for a file, when the file's stat data prove that it was not touched since.
    fn unchanged_since_indexed(&self, path: &[u8], file: &std::fs::File) -> Option<gix::ObjectId> {
        let index = self.index.as_ref()?;
        let entry = index.entry_by_path(path.into())?;
        let now = gix::index::entry::Stat::from_fs(&gix::index::fs::Metadata::from_file(file).ok()?).ok()?;
        let options = StatOptions { trust_ctime: true, check_stat: true, use_nsec: true, use_stdev: false };
        let same = entry.stat.matches(&now, options) && !entry.stat.is_racy(index.timestamp(), options);
        same.then_some(entry.id)
    }

    /// The blob that `HEAD` has at `path`.
    fn in_head(&mut self, path: &[u8]) -> Result<Option<gix::ObjectId>> {
        if self.index_is_head
            && let Some(index) = &self.index
        {
            return Ok(index.entry_by_path(path.into()).map(|entry| entry.id));
        }
        Ok(self.known()?.get(path).copied())
    }

    fn known(&mut self) -> Result<&HashMap<Vec<u8>, gix::ObjectId>> {
        if self.known.is_none() {
            let mut known = HashMap::new();
            if let Some(tree) = self.tree
                && let Some((mode, tasks)) = entry_at(&self.repo, tree, b"tasks")?
                && mode.is_tree()
            {
                for change in super::state_tree::tree_diff(&self.repo, None, Some(tasks))? {
                    let path = [b"tasks/", change.path.as_slice()].concat();
                    let blob = change.new.filter(|(mode, _): &(EntryMode, _)| mode.is_blob());
                    if let (FileKind::Wish, Some((_, id))) = (FileKind::of(&path), blob) {
                        known.insert(path, id);
                    }
                }
            }
            self.known = Some(known);
        }
        Ok(self.known.get_or_insert_default())
    }

    fn note_deleted(&mut self, found: &BTreeSet<Vec<u8>>) -> Result<()> {
        let mut gone: Vec<Vec<u8>> = if let (true, Some(index)) = (self.index_is_head, &self.index) {
            let all = index.entries().iter().map(|entry| entry.path(index).to_vec());
            all.filter(|path| FileKind::of(path) == FileKind::Wish && !found.contains(path)).collect()
        } else {
            self.known()?.keys().filter(|path| !found.contains(*path)).cloned().collect()
        };
        gone.retain(|path| path.starts_with(b"tasks/"));
        gone.sort();
        self.scan.deleted = gone;
        Ok(())
    }
}

pub(super) fn open(path: &Path) -> Result<gix::Repository> {
    Ok(super::odb::options().open(path).doing("open the folder's repository")?.to_thread_local())
}

/// The blob id of some bytes.
pub(super) fn hash_of(repo: &gix::Repository, bytes: &[u8]) -> Result<gix::ObjectId> {
    gix::objs::compute_hash(repo.object_hash(), gix::objs::Kind::Blob, bytes).doing("hash a file")
}

/// Opens `path` below `top` without following a link on the way, and without waiting for a pipe's other end.
pub(super) fn open_below(top: &Path, path: &[u8], folder: bool) -> Result<OwnedFd, Errno> {
    let mut fd = nix::fcntl::open(top, OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut parts = path.split(|b| *b == b'/').peekable();
    while let Some(part) = parts.next() {
        if part.is_empty() || part == b".." || part == b"." {
            return Err(Errno::EINVAL);
        }
        fd = open_one(&fd, part, folder || parts.peek().is_some())?;
    }
    Ok(fd)
}

fn open_one(at: &impl AsFd, name: &[u8], folder: bool) -> Result<OwnedFd, Errno> {
    let kind = if folder { OFlag::O_DIRECTORY } else { OFlag::O_NONBLOCK | OFlag::O_NOCTTY };
    let flags = kind | OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(at.as_fd(), OsStr::from_bytes(name), flags, Mode::empty())
}
