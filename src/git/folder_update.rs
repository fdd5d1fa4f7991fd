//! Bringing a person's folder up to our tip, or leaving it alone and saying why. What a person has edited, staged, added
//! or removed stays as it is; where that does not go together with what is new, nothing is touched.
//!
//! ```text
//!  record ─▶ index.lock ─▶ copy of the index ─▶ files (read-tree -m -u) ─▶ copy becomes index ─▶ HEAD moves ─▶ unlock
//! ```
//!
//! The lock is held from the first look to the last write. The index moves before `HEAD`: should everything stop between
//! the two, a person's commit holds what the machine wrote, and never reverts it. The record in our data folder lets the
//! next call finish or take back what a kill left half done.

use super::folder::{Folder, hash_of, open, open_below};
use super::state_commit::put_entries;
use super::state_repo::{Doing as _, FileKind, MAIN, Result, StateError, StateRepo, from_gix, to_gix};
use super::state_tree::{Differs, entry_at, tree_diff, tree_of};
use super::{Git, GitError};
use crate::domain::{Oid, safe};
use gix::index::entry::Stage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Commits looked through to find that an imported file went into the state repo.
const HISTORY_LIMIT: usize = 2000;

/// The end of the name that an update's folder gets when the update is over and its daemon gone.
pub(super) const OVER: &str = ".over";

/// Larger files are not compared with what is new.
const LOOK_LIMIT: u64 = 64 * 1024 * 1024;

/// A file whose uncommitted text was read from this folder and committed by us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// From the top of the repo.
    pub path: Vec<u8>,
    pub blob: Oid,
}

/// What bringing up came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BroughtUp {
    /// It is there already.
    UpToDate,
    /// Files, index and branch are at the new tip, with the person's own edits on top.
    Moved { from: Oid },
    /// Nothing was touched.
    LeftAlone(LeftAlone),
}

/// Why a folder was left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeftAlone {
    /// Edits in these files do not go together with what is new there. Empty when git alone knows.
    Clash(Vec<Vec<u8>>),
    /// Another git is at work, or was ended in the middle.
    IndexLocked,
    /// A merge, rebase or the like is half done.
    Busy(&'static str),
    Detached,
    /// This other branch is checked out.
    OtherBranch(String),
    /// The folder has commits that our tip does not contain yet.
    Diverged,
    /// Nothing was ever committed there.
    Unborn,
    /// Somebody moved the branch while it was being brought up. Files and index are new; the branch is as they left it.
    HeadMoved,
}

impl fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clash(files) if files.is_empty() => f.write_str("edits there do not go together with what is new"),
            Self::Clash(files) => {
                let names: Vec<String> = files.iter().take(5).map(|f| safe::bytes(f)).collect();
                write!(f, "edits in {} do not go together with what is new", names.join(", "))
            }
            Self::IndexLocked => f.write_str("another git is at work there"),
            Self::Busy(what) => write!(f, "a {what} is unfinished there"),
            Self::Detached => f.write_str("its HEAD is detached"),
            Self::OtherBranch(name) => write!(f, "{} is checked out there", safe::line(name)),
            Self::Diverged => f.write_str("it has commits that are not taken in yet"),
            Self::Unborn => f.write_str("nothing was ever committed there"),
            Self::HeadMoved => f.write_str("its branch was moved in the same moment"),
        }
    }
}

/// An update under way.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// The first line of our lock file; no other program's lock has it.
    pub(super) token: String,
    pub(super) pid: u32,
    /// The tree that files and index had in the paths that change.
    pub(super) from: Oid,
    pub(super) old: Oid,
    pub(super) new: Oid,
    /// A folder of this update alone, for the copy of the index: a git of ours that comes late finds it gone.
    pub(super) work: PathBuf,
}

impl Record {
    /// The copy of the index.
    pub(super) fn copy(&self) -> PathBuf {
        self.work.join("index")
    }
}

impl Folder {
    /// Brings files, index and branch to `new`, a commit of `state`'s `main`. `imported` are files that we read here as
    /// uncommitted edits and whose text has gone into `new`'s history.
    pub async fn bring_up(&self, state: &StateRepo, new: &Oid, imported: &[Imported]) -> Result<BroughtUp> {
        if !self.repair().await? {
            return Ok(BroughtUp::LeftAlone(LeftAlone::IndexLocked));
        }
        let old = match self.may_move(state, new)? {
            Ok(old) => old,
            Err(answer) => return Ok(answer),
        };
        self.fetch_from(state).await?;
        let imported = state.imported_since(&old, new, imported)?;
        let record = Record {
            token: format!("overnight {:016x}{:016x}", random(), random()),
            pid: std::process::id(),
            from: self.start_tree(&old, &imported)?,
            old,
            new: new.clone(),
            work: self.git_dir.join(format!("overnight-update-{:016x}", random())),
        };
        if !self.lock(&record, state.durable)? {
            remove(&self.record)?;
            return Ok(BroughtUp::LeftAlone(LeftAlone::IndexLocked));
        }
        let done = self.update(&record, &imported).await;
        let cleared = self.unlock(&record);
        let answer = done?;
        cleared?;
        Ok(answer)
    }

    /// The commit to move from, or why there is nothing to move.
    fn may_move(&self, state: &StateRepo, new: &Oid) -> Result<Result<Oid, BroughtUp>> {
        let status = self.status(None)?;
        let alone = |why| Ok(Err(BroughtUp::LeftAlone(why)));
        if let Some(what) = status.busy {
            return alone(LeftAlone::Busy(what));
        }
        match status.branch {
            None => return alone(LeftAlone::Detached),
            Some(branch) if branch != self.branch => return alone(LeftAlone::OtherBranch(branch)),
            Some(_) => {}
        }
        let Some(head) = status.head else { return alone(LeftAlone::Unborn) };
        if head == *new {
            return Ok(Err(BroughtUp::UpToDate));
        }
        if !state.is_ancestor(&head, new)? {
            return alone(LeftAlone::Diverged);
        }
        Ok(Ok(head))
    }

    /// Gets the objects of our tip. No ref, hook or maintenance of the folder takes part.
    async fn fetch_from(&self, state: &StateRepo) -> Result<()> {
        let words = ["fetch", "-q", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-prune"];
        let rest = ["--no-recurse-submodules", "--end-of-options"];
        Git::at(&self.at).args(state.synced()).args(words).args(rest).arg(state.path()).arg(MAIN).run().await?;
        Ok(())
    }

    /// The tree we start from: that of `old`, with the imported files as they were read here.
    fn start_tree(&self, old: &Oid, imported: &BTreeMap<Vec<u8>, Oid>) -> Result<Oid> {
        let repo = open(&self.at)?;
        let tree = tree_of(&repo, old)?;
        let index = repo.open_index().doing("read the folder's index")?;
        let mut entries = Vec::new();
        for (path, blob) in imported {
            let is = entry_at(&repo, tree, path)?;
            let staged = index.entry_by_path(path.as_slice().into()).map(|entry| entry.id);
            let blob = to_gix(blob)?;
            // A third text in the index is the person's, and stays.
            if staged == is.map(|(_, id)| id) || staged == Some(blob) {
                let mode = is.map_or(gix::objs::tree::EntryKind::Blob.into(), |(mode, _)| mode);
                entries.push((path.clone(), Some((mode, blob))));
            }
        }
        put_entries(&repo, Some(tree), entries, &mut Vec::new()).map(from_gix)
    }

    /// Everything under the lock.
    async fn update(&self, record: &Record, imported: &BTreeMap<Vec<u8>, Oid>) -> Result<BroughtUp> {
        let alone = |why| Ok(BroughtUp::LeftAlone(why));
        let status = self.status(None)?;
        if status.branch.as_ref() != Some(&self.branch) || status.head.as_ref() != Some(&record.old) {
            return alone(LeftAlone::HeadMoved);
        }
        if let Some(what) = status.busy {
            return alone(LeftAlone::Busy(what));
        }
        let made = std::fs::create_dir(&record.work);
        made.map_err(|source| StateError::Io { what: "make a folder", at: record.work.clone(), source })?;
        copy_with_times(&self.git_dir.join("index"), &record.copy())?;
        let plan = self.plan(record, imported)?;
        if !plan.clash.is_empty() {
            return alone(LeftAlone::Clash(plan.clash));
        }
        let git = || Git::at(&self.at).env("GIT_INDEX_FILE", record.copy());
        if !plan.index_info.is_empty() {
            git().args(["update-index", "-z", "--index-info"]).stdin(plan.index_info).run().await?;
        }
        // Files that were only touched count as unchanged after this. It fails when some are changed, which is fine.
        git().args(["update-index", "-q", "--refresh"]).output().await?;
        let clash = self.edited(record)?;
        if !clash.is_empty() {
            return alone(LeftAlone::Clash(clash));
        }
        let two = ["read-tree", "-m", "-u", record.from.as_str(), record.new.as_str()];
        match git().args(two).run().await {
            Ok(_) => {}
            // It looks at everything before it writes anything.
            Err(GitError::Failed { .. }) => return alone(LeftAlone::Clash(Vec::new())),
            Err(e) => return Err(e.into()),
        }
        self.rename(&record.copy(), &self.git_dir.join("index"))?;
        self.move_head(record).await
    }

    pub(super) async fn move_head(&self, record: &Record) -> Result<BroughtUp> {
        let words = ["update-ref", "-m", "overnight: bring up", "--", "HEAD", record.new.as_str(), record.old.as_str()];
        match Git::at(&self.at).args(words).identity("overnight", "overnight@localhost").run().await {
            Ok(_) => Ok(BroughtUp::Moved { from: record.old.clone() }),
            Err(GitError::Failed { .. }) => Ok(BroughtUp::LeftAlone(LeftAlone::HeadMoved)),
            Err(e) => Err(e.into()),
        }
    }

    /// What has to be put into the copy of the index first, and where a person's edits are in the way.
    fn plan(&self, record: &Record, imported: &BTreeMap<Vec<u8>, Oid>) -> Result<Plan> {
        let repo = open(&self.at)?;
        let index = read_index(&repo, &record.copy())?;
        let (from, new) = (to_gix(&record.from)?, tree_of(&repo, &record.new)?);
        let mut plan = Plan::default();
        for path in imported.keys() {
            let staged = index.entry_by_path(path.as_slice().into());
            if let Some((mode, blob)) = entry_at(&repo, from, path)?
                && imported.get(path) == Some(&from_gix(blob))
                && staged.map(|entry| entry.id) != Some(blob)
            {
                plan.stage(path, mode, blob);
            }
        }
        for Differs { path, old, new } in tree_diff(&repo, Some(from), Some(new))? {
            let staged = index.entry_by_path(path.as_slice().into()).is_some();
            let there = self.look(&path);
            match (old, new, there) {
                // Something untracked is where a new file is to be. If it is that file already, nothing is lost.
                (None, Some((mode, blob)), There::File(bytes)) if !staged => {
                    if mode.is_blob() && hash_of(&repo, &bytes)? == blob {
                        plan.stage(&path, mode, blob);
                    } else {
                        plan.clash.push(path);
                    }
                }
                (None, Some(_), There::Other) if !staged => plan.clash.push(path),
                // A person's file that they have removed does not come back by itself.
                (Some(_), Some(_), There::Nothing) if !FileKind::of(&path).is_machines() => plan.clash.push(path),
                (_, Some(_), There::Blocked) => plan.clash.push(path),
                _ => {}
            }
        }
        Ok(plan)
    }

    /// Paths that are to change and that a person has changed too, in the index or on disk.
    fn edited(&self, record: &Record) -> Result<Vec<Vec<u8>>> {
        let repo = open(&self.at)?;
        let index = read_index(&repo, &record.copy())?;
        let (from, new) = (to_gix(&record.from)?, tree_of(&repo, &record.new)?);
        let mut edited = Vec::new();
        for Differs { path, old, new } in tree_diff(&repo, Some(from), Some(new))? {
            let staged = index.entry_by_path_and_stage(path.as_slice().into(), Stage::Unconflicted).map(|e| e.id);
            let (old, new) = (old.map(|(_, id)| id), new.map(|(_, id)| id));
            if staged != old && staged != new {
                edited.push(path);
            }
        }
        Ok(edited)
    }

    /// What is at a path of the work tree, without following links.
    pub(super) fn look(&self, path: &[u8]) -> There {
        let mut at = self.at.clone();
        let parts: Vec<_> = path.split(|b| *b == b'/').collect();
        for (i, part) in parts.iter().enumerate() {
            at.push(OsStr::from_bytes(part));
            match std::fs::symlink_metadata(&at) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return There::Nothing,
                Ok(stat) if i + 1 < parts.len() && stat.is_dir() => {}
                Ok(_) if i + 1 < parts.len() => return There::Blocked,
                Ok(stat) if stat.is_file() && stat.len() <= LOOK_LIMIT => {}
                Ok(_) | Err(_) => return There::Other,
            }
        }
        let mut bytes = Vec::new();
        match open_below(&self.at, path, false).map(|fd| std::fs::File::from(fd).read_to_end(&mut bytes)) {
            Ok(Ok(_)) => There::File(bytes),
            _ => There::Other,
        }
    }

    /// Notes the update and takes the index lock; false when somebody else has it.
    pub(super) fn lock(&self, record: &Record, sync: bool) -> Result<bool> {
        let json = serde_json::to_vec(record).unwrap_or_default();
        replace(&self.record, &json, sync)?;
        let at = self.git_dir.join("index.lock");
        // Made whole and then linked: a kill never leaves a lock of ours without its token.
        let whole = beside(&record.work, ".token");
        let made = std::fs::write(&whole, format!("{}\n", record.token)).and_then(|()| std::fs::hard_link(&whole, &at));
        remove(&whole)?;
        match made {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(StateError::Io { what: "lock the folder's index", at, source }),
        }
    }

    /// Removes the lock, if it is ours, and all that belongs to it.
    pub(super) fn unlock(&self, record: &Record) -> Result<()> {
        remove(&beside(&record.work, ".token"))?;
        for folder in [record.work.clone(), beside(&record.work, OVER)] {
            match std::fs::remove_dir_all(&folder) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StateError::Io { what: "remove", at: folder, source });
                }
                _ => {}
            }
        }
        let lock = self.git_dir.join("index.lock");
        if self.lock_is(record) {
            remove(&lock)?;
        }
        remove(&self.record)
    }

    pub(super) fn lock_is(&self, record: &Record) -> bool {
        let mut head = Vec::new();
        let lock = std::fs::File::open(self.git_dir.join("index.lock"));
        let read = lock.and_then(|file| file.take(200).read_to_end(&mut head));
        read.is_ok() && head == format!("{}\n", record.token).as_bytes()
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::rename(from, to).map_err(|source| StateError::Io { what: "replace", at: to.into(), source })
    }
}

impl StateRepo {
    /// Those of `imported` whose text is in `new`, or was in a commit since `old`: only then may it be replaced.
    fn imported_since(&self, old: &Oid, new: &Oid, imported: &[Imported]) -> Result<BTreeMap<Vec<u8>, Oid>> {
        let repo = self.repo.to_thread_local();
        let mut open: BTreeMap<_, _> = imported.iter().map(|i| (i.path.clone(), i.blob.clone())).collect();
        let mut found = BTreeMap::new();
        let walk = repo.rev_walk([to_gix(new)?]).with_hidden([to_gix(old)?]).all().doing("look through commits")?;
        for commit in walk.take(HISTORY_LIMIT) {
            if open.is_empty() {
                break;
            }
            let tree = tree_of(&repo, &from_gix(commit.doing("look through commits")?.id))?;
            for (path, blob) in open.clone() {
                if entry_at(&repo, tree, &path)?.is_some_and(|(_, id)| from_gix(id) == blob) {
                    open.remove(&path);
                    found.insert(path, blob);
                }
            }
        }
        Ok(found)
    }
}

/// What is at a path of the work tree.
pub(super) enum There {
    Nothing,
    File(Vec<u8>),
    Other,
    /// A file or link is where a folder on the way should be.
    Blocked,
}

#[derive(Default)]
struct Plan {
    /// For `git update-index -z --index-info`.
    index_info: Vec<u8>,
    clash: Vec<Vec<u8>>,
}

impl Plan {
    fn stage(&mut self, path: &[u8], mode: gix::objs::tree::EntryMode, blob: gix::ObjectId) {
        self.index_info.extend_from_slice(format!("{:o} {blob} 0\t", mode.value()).as_bytes());
        self.index_info.extend_from_slice(path);
        self.index_info.push(0);
    }
}

fn read_index(repo: &gix::Repository, at: &Path) -> Result<gix::index::File> {
    gix::index::File::at(at, repo.object_hash(), false, gix::index::decode::Options::default())
        .doing("read a copy of the folder's index")
}

/// Copies the index with its time: files changed in the same tick as it count as possibly changed only by that.
fn copy_with_times(from: &Path, to: &Path) -> Result<()> {
    let copy = || {
        let stat = std::fs::metadata(from)?;
        std::fs::copy(from, to)?;
        let file = std::fs::OpenOptions::new().append(true).open(to)?;
        file.set_modified(stat.modified()?)
    };
    copy().map_err(|source| StateError::Io { what: "copy the folder's index", at: from.into(), source })
}

/// Replaces a file whole.
pub(super) fn replace(at: &Path, bytes: &[u8], sync: bool) -> Result<()> {
    let beside = beside(at, &format!(".{:016x}.tmp", random()));
    let write = || {
        let mut file = std::fs::File::create_new(&beside)?;
        file.write_all(bytes)?;
        if sync {
            file.sync_all()?;
        }
        std::fs::rename(&beside, at)
    };
    write().map_err(|source| StateError::Io { what: "write", at: at.into(), source })
}

/// The file's name with more at its end.
pub(super) fn beside(at: &Path, end: &str) -> PathBuf {
    let mut name = at.to_owned().into_os_string();
    name.push(end);
    name.into()
}

pub(super) fn remove(at: &Path) -> Result<()> {
    match std::fs::remove_file(at) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(StateError::Io { what: "remove", at: at.into(), source })
        }
        _ => Ok(()),
    }
}

pub(super) fn random() -> u64 {
    getrandom::u64().unwrap_or_default()
}
