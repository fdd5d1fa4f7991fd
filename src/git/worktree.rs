//! One linked worktree of a mirror: a folder, and its registration in the mirror's `worktrees/`. The registration is
//! written here as files, built aside and renamed into place, so that any number can be made at once without a lock; git
//! fills the folder.
//!
//! Git runs in a worktree only with git dir, common dir and work tree given and checked, never by the tree's own `.git`
//! file: an agent can write that.

use super::mirror::{Mirror, MirrorError};
use super::odb::{Odb, OdbError};
use super::status::{self, Status};
use super::{Git, GitError, blocking, remove, seal};
use crate::domain::Oid;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// A worktree could not be made, read or brought to a commit.
#[derive(Debug, thiserror::Error)]
pub enum WorktreeError {
    #[error("{} is not the worktree that was made there: {why}", path.display())]
    Broken { path: PathBuf, why: Broken },
    #[error("{} exists and is not ours", .0.display())]
    Taken(PathBuf),
    #[error("{} could not be brought to {want}: {found}", path.display())]
    NotClean { path: PathBuf, want: Oid, found: String },
    #[error("could not read or write {}", path.display())]
    Files {
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

/// How a worktree differs from the one that was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("the folder is gone")]
    Gone,
    #[error("a link or file stands in its place")]
    NotAFolder,
    #[error("its .git file was removed or rewritten")]
    Link,
    #[error("its registration was changed ({0})")]
    Registration(String),
    #[error("its index hides changes or cannot be read")]
    Index,
}

/// What HEAD of a worktree names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    Branch(String),
    Detached(Oid),
    Unreadable,
}

/// A registered worktree.
#[derive(Debug, Clone)]
pub struct Worktree {
    mirror: Mirror,
    path: PathBuf,
    admin: PathBuf,
}

/// What the index of a worktree holds beside plain files.
#[derive(Debug, Default)]
pub(super) struct IndexFacts {
    /// Paths whose changes git was told not to look for.
    pub(super) hidden: Vec<Vec<u8>>,
    pub(super) gitlinks: Vec<Vec<u8>>,
}

/// Files of a registration that outlive an attempt; all others are traces of what the agent's git was doing.
const KEPT: &[&str] = &["HEAD", "gitdir", "commondir", "locked", "index", "logs"];

impl Worktree {
    /// The worktree registered as `name`, whose folder is `path`; nothing is checked.
    pub(super) fn at(mirror: &Mirror, path: &Path, name: &str) -> Self {
        let admin = mirror.git_dir().join("worktrees").join(name);
        Self { mirror: mirror.clone(), path: path.to_owned(), admin }
    }

    /// Makes folder and registration, HEAD detached at `commit`, files not yet there. No command.
    /// The folder's parent must exist and be its own real path.
    pub(super) fn register(mirror: &Mirror, path: &Path, name: &str, commit: &Oid) -> Result<Self, WorktreeError> {
        let w = Self::at(mirror, path, name);
        let files = |source| WorktreeError::Files { path: path.to_owned(), source };
        if w.admin.symlink_metadata().is_ok() {
            return Err(WorktreeError::Taken(w.admin));
        }
        if w.is_half_made() {
            remove_half_made(path).map_err(files)?;
        }
        match std::fs::create_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(WorktreeError::Taken(path.to_owned())),
            other => other.map_err(files)?,
        }
        let made = (|| {
            seal::write(&path.join(".git"), &w.link_text())?;
            // Outside `worktrees/` until complete: a prune by anybody's git would take half a registration for garbage.
            let draft = mirror.git_dir().join("worktrees-making").join(name);
            if draft.exists() {
                std::fs::remove_dir_all(&draft)?;
            }
            std::fs::create_dir_all(&draft)?;
            seal::write(&draft.join("gitdir"), &w.back_text())?;
            seal::write(&draft.join("commondir"), b"../..\n")?;
            seal::write(&draft.join("HEAD"), format!("{commit}\n").as_bytes())?;
            // No other git prunes or removes a locked worktree.
            seal::write(&draft.join("locked"), b"kept by overnight\n")?;
            std::fs::create_dir_all(mirror.git_dir().join("worktrees"))?;
            std::fs::rename(&draft, &w.admin)
        })();
        if let Err(e) = made {
            let _ = std::fs::remove_file(path.join(".git"));
            let _ = std::fs::remove_dir(path);
            return Err(files(e));
        }
        Ok(w)
    }

    /// Whether the folder is what a kill left of `register`: without a registration, and with nothing in it but its link
    /// to one, so that nothing is lost with it.
    fn is_half_made(&self) -> bool {
        let is_folder = self.path.symlink_metadata().is_ok_and(|m| m.is_dir());
        let is_ours = |entry: io::Result<std::fs::DirEntry>| {
            let Ok(entry) = entry else { return false };
            HALF_MADE.iter().any(|name| entry.file_name() == *name)
                && std::fs::read(entry.path()).is_ok_and(|text| self.link_text().starts_with(&text))
        };
        let only_ours = || std::fs::read_dir(&self.path).is_ok_and(|mut all| all.all(is_ours));
        is_folder && self.admin.symlink_metadata().is_err() && only_ours()
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The worktree's own git dir inside the mirror.
    pub fn git_dir(&self) -> &Path {
        &self.admin
    }

    pub(super) fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    fn link_text(&self) -> Vec<u8> {
        [b"gitdir: ", self.admin.as_os_str().as_bytes(), b"\n"].concat()
    }

    fn back_text(&self) -> Vec<u8> {
        [self.path.as_os_str().as_bytes(), b"/.git\n"].concat()
    }

    /// Compares folder, link and registration with what was made. A few small reads.
    pub fn verify(&self) -> Result<(), WorktreeError> {
        let broken = |why| Err(WorktreeError::Broken { path: self.path.clone(), why });
        match self.path.symlink_metadata() {
            Ok(m) if m.is_dir() => {}
            Ok(_) => return broken(Broken::NotAFolder),
            Err(_) => return broken(Broken::Gone),
        }
        if self.path.canonicalize().ok().as_deref() != Some(&self.path) {
            return broken(Broken::NotAFolder);
        }
        if plain_file(&self.path.join(".git")).as_deref() != Some(&self.link_text()[..]) {
            return broken(Broken::Link);
        }
        if !self.admin.symlink_metadata().is_ok_and(|m| m.is_dir()) {
            return broken(Broken::Registration("it is gone".into()));
        }
        for (name, want) in [("gitdir", self.back_text()), ("commondir", b"../..\n".to_vec())] {
            if plain_file(&self.admin.join(name)).as_deref() != Some(&want[..]) {
                return broken(Broken::Registration(name.into()));
            }
        }
        if self.admin.join("config.worktree").symlink_metadata().is_ok() {
            return broken(Broken::Registration("config.worktree".into()));
        }
        if self.head() == Head::Unreadable {
            return broken(Broken::Registration("HEAD".into()));
        }
        Ok(())
    }

    /// What HEAD names, read from its file.
    pub fn head(&self) -> Head {
        let Some(bytes) = plain_file(&self.admin.join("HEAD")) else { return Head::Unreadable };
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        if let Some(branch) = text.strip_prefix("ref: refs/heads/") {
            return Head::Branch(branch.to_owned());
        }
        Oid::parse(text).map_or(Head::Unreadable, Head::Detached)
    }

    pub(super) fn set_head(&self, head: &Head) -> Result<(), WorktreeError> {
        let text = match head {
            Head::Branch(branch) => format!("ref: refs/heads/{branch}\n"),
            Head::Detached(commit) => format!("{commit}\n"),
            Head::Unreadable => return Ok(()),
        };
        self.write("HEAD", text.as_bytes())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), WorktreeError> {
        let path = self.admin.join(name);
        seal::write(&path, bytes).map_err(|source| WorktreeError::Files { path, source })
    }

    /// Begins a new log of HEAD with `commit`, so that the log of an attempt holds that attempt alone.
    pub(super) fn begin_log(&self, commit: &Oid) -> Result<(), WorktreeError> {
        let zero = "0".repeat(commit.as_str().len());
        self.write("logs/HEAD", format!("{zero} {commit} overnight <overnight@localhost> 0 +0000\ttaken\n").as_bytes())
    }

    /// Notes in the log of HEAD that we moved its branch.
    pub(super) fn append_log(&self, old: &Oid, new: &Oid, what: &str) -> Result<(), WorktreeError> {
        let mut log = plain_file(&self.admin.join("logs/HEAD")).unwrap_or_default();
        log.extend(format!("{old} {new} overnight <overnight@localhost> 0 +0000\t{what}\n").into_bytes());
        self.write("logs/HEAD", &log)
    }

    /// The commits that HEAD has been at, oldest first. Empty where the log is gone.
    pub(super) fn log(&self) -> Vec<Oid> {
        let bytes = plain_file(&self.admin.join("logs/HEAD")).unwrap_or_default();
        let new = |line: &[u8]| Oid::parse(&String::from_utf8_lossy(line.split(|b| *b == b' ').nth(1)?)).ok();
        bytes.split(|b| *b == b'\n').filter_map(new).collect()
    }

    /// A git command here, with the git dir given. Callers have verified the worktree and the seal.
    pub(super) fn git(&self) -> Git {
        Git::at(&self.path)
            .env("GIT_DIR", &self.admin)
            .env("GIT_COMMON_DIR", self.mirror.git_dir())
            .env("GIT_WORK_TREE", &self.path)
            .env("GIT_LITERAL_PATHSPECS", "1")
            .identity("overnight", "overnight@localhost")
    }

    /// The state against HEAD; one command.
    pub async fn status(&self, ignored: bool) -> Result<Status, WorktreeError> {
        self.mirror.verify_seal()?;
        let how = if ignored { "--ignored=matching" } else { "--ignored=no" };
        let out = self.git().args(status::ARGS).arg(how).run().await?;
        Ok(status::parse(&out.stdout))
    }

    /// Reads the index in process.
    pub(super) fn index_facts(&self) -> Result<IndexFacts, WorktreeError> {
        use gix::index::entry::{Flags, Mode};
        let path = self.admin.join("index");
        match path.symlink_metadata() {
            Ok(m) if m.is_file() => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(IndexFacts::default()),
            _ => return Err(WorktreeError::Broken { path: self.path.clone(), why: Broken::Index }),
        }
        let hash = Odb::open(self.mirror.git_dir())?.hash();
        let index = gix::index::File::at(&path, hash, true, gix::index::decode::Options::default())
            .map_err(|_| WorktreeError::Broken { path: self.path.clone(), why: Broken::Index })?;
        let mut facts = IndexFacts::default();
        for entry in index.entries() {
            // The monitor's flag counts for nothing: it is off in every command of ours.
            if entry.flags.intersects(Flags::ASSUME_VALID | Flags::SKIP_WORKTREE) {
                facts.hidden.push(entry.path(&index).to_vec());
            }
            if entry.mode == Mode::COMMIT {
                facts.gitlinks.push(entry.path(&index).to_vec());
            }
        }
        Ok(facts)
    }

    /// Makes git look at every file again where an agent had told it not to. No command where it had not, else two.
    pub(super) async fn unhide(&self) -> Result<(), WorktreeError> {
        let hidden = self.index_facts()?.hidden;
        if hidden.is_empty() {
            return Ok(());
        }
        let list = hidden.join(&0);
        for flag in ["--no-assume-unchanged", "--no-skip-worktree"] {
            self.git().args(["update-index", "-z", flag, "--stdin"]).stdin(list.clone()).run().await?;
        }
        Ok(())
    }

    /// Removes the lock files that a killed git of this worktree left. Only for when no process works here any more.
    pub(super) fn drop_locks(&self, branch: Option<&str>) {
        for name in ["index.lock", "HEAD.lock"] {
            let _ = std::fs::remove_file(self.admin.join(name));
        }
        if let Some(branch) = branch {
            let _ = std::fs::remove_file(self.mirror.git_dir().join("refs/heads").join(format!("{branch}.lock")));
        }
    }

    /// Takes away what an ended attempt left in the registration and in submodules. No command.
    pub(super) fn scrub(&self) -> Result<(), WorktreeError> {
        let files = |source| WorktreeError::Files { path: self.admin.clone(), source };
        for entry in std::fs::read_dir(&self.admin).map_err(files)? {
            let name = entry.map_err(files)?.file_name();
            if !KEPT.iter().any(|k| name == *k) {
                remove::remove(&self.admin, &name).map_err(|e| files(io::Error::other(e)))?;
            }
        }
        for link in self.index_facts()?.gitlinks {
            let place = self.path.join(std::ffi::OsStr::from_bytes(&link));
            let filled = place.symlink_metadata().is_ok_and(|m| m.is_dir())
                && std::fs::read_dir(&place).is_ok_and(|mut d| d.next().is_some());
            if let (true, Some(parent), Some(name)) = (filled, place.parent(), place.file_name()) {
                remove::remove(parent, name).map_err(|e| files(io::Error::other(e)))?;
                std::fs::create_dir(&place).map_err(files)?;
            }
        }
        Ok(())
    }

    /// Brings the worktree to `commit` under `head` with nothing else in it, and proves it: HEAD, branch, and a status
    /// that is empty, ignored files included. Build caches go too: they were made by an agent's code, and a stale or
    /// planted one could turn a check green.
    ///
    /// One command where it was there already, two on an aged worktree (`reset --hard`, never `checkout -f`, which was
    /// measured hundreds of times slower), five where something had to be cleaned.
    pub(super) async fn settle(&self, head: &Head, commit: &Oid, at: Option<&Oid>) -> Result<(), WorktreeError> {
        self.verify()?;
        self.mirror.verify_seal()?;
        let old = self.commit();
        self.set_head(head)?;
        if at != Some(commit) {
            let converts = self.converts_anew(old.as_ref(), commit)?;
            self.reset(commit).await?;
            if converts {
                // The attributes are in place now. Without an index every file is written.
                let index = std::fs::remove_file(self.admin.join("index"));
                index.map_err(|source| WorktreeError::Files { path: self.path.clone(), source })?;
                self.reset(commit).await?;
            }
            self.sweep().await?;
        }
        let mut state = self.status(true).await?;
        if !self.is_at(&state, head, commit) {
            self.reset(commit).await?;
            self.clean().await?;
            self.sweep().await?;
            state = self.status(true).await?;
        }
        if self.is_at(&state, head, commit) {
            return Ok(());
        }
        let names = state.changed.iter().map(|e| &e.path).chain(&state.untracked).chain(&state.ignored);
        let names: Vec<_> = names.take(5).map(|n| String::from_utf8_lossy(n).into_owned()).collect();
        Err(WorktreeError::NotClean {
            path: self.path.clone(),
            want: commit.clone(),
            found: format!("HEAD is {:?}, left over: {names:?}", state.head.as_ref().map(Oid::as_str)),
        })
    }

    fn is_at(&self, state: &Status, head: &Head, commit: &Oid) -> bool {
        state.is_spotless() && state.head.as_ref() == Some(commit) && self.head() == *head
    }

    async fn reset(&self, commit: &Oid) -> Result<(), WorktreeError> {
        let workers = "checkout.workers=0";
        let reset = || self.git().args(["-c", workers, "reset", "--quiet", "--hard"]).arg(commit.as_str());
        if reset().run_patiently().await.is_err() {
            // A folder without write permission, most likely.
            self.open_up().await?;
            reset().run_patiently().await?;
        }
        Ok(())
    }

    /// Removes all that is untracked, ignored and nested repositories too. A mount below is refused.
    pub(super) async fn clean(&self) -> Result<(), WorktreeError> {
        if let Some(mount) = remove::mount_below(&self.path) {
            let source = io::Error::other(remove::RemoveError::Mounted(mount));
            return Err(WorktreeError::Files { path: self.path.clone(), source });
        }
        let clean = || self.git().args(["clean", "--quiet", "-ffdx"]);
        if clean().run().await.is_err() {
            self.open_up().await?;
            clean().run().await?;
        }
        tracing::info!(path = %self.path.display(), "removed everything untracked in the worktree");
        Ok(())
    }

    /// Where it stands, where that can be told.
    fn commit(&self) -> Option<Oid> {
        match self.head() {
            Head::Detached(commit) => Some(commit),
            Head::Branch(branch) => self.mirror.branch_tip(&branch).ok().flatten(),
            Head::Unreadable => None,
        }
    }

    /// Whether attributes change from `old` to `new`: they may give other line ends or filters to files that do not change,
    /// and those a reset leaves as they are.
    fn converts_anew(&self, old: Option<&Oid>, new: &Oid) -> Result<bool, WorktreeError> {
        if old == Some(new) {
            return Ok(false);
        }
        let odb = self.mirror.odb()?;
        Ok(match old.and_then(|old| odb.info(old).ok()) {
            Some(old) => odb.attributes_change(&old.tree, &odb.info(new)?.tree)?,
            // Its branch is gone with its task; the file at the top tells most of it.
            None => plain_file(&self.path.join(".gitattributes")) != odb.blob_at(new, b".gitattributes")?,
        })
    }

    async fn sweep(&self) -> Result<(), WorktreeError> {
        let path = self.path.clone();
        let swept = blocking(move || {
            remove::sweep(&path).or_else(|_| {
                // A folder without permissions, most likely.
                remove::open_up(&path);
                remove::sweep(&path)
            })
        });
        let files = |source| WorktreeError::Files { path: self.path.clone(), source };
        swept.await.map_err(files)?.map_err(files)
    }

    pub(super) async fn open_up(&self) -> Result<(), WorktreeError> {
        let path = self.path.clone();
        blocking(move || remove::open_up(&path))
            .await
            .map_err(|source| WorktreeError::Files { path: self.path.clone(), source })
    }
}

/// A worktree for checks on merged trees: `commit` checked out detached at `path`, which is made on first use and
/// cleaned between uses (build caches included, for the reason given at `settle`). Two commands on an aged one.
pub async fn integration(mirror: &Mirror, path: &Path, commit: &Oid) -> Result<Worktree, WorktreeError> {
    let files = |source| WorktreeError::Files { path: path.to_owned(), source };
    let (parent, name) = match (path.parent(), path.file_name()) {
        (Some(p), Some(n)) => (p, n),
        _ => return Err(WorktreeError::Taken(path.to_owned())),
    };
    std::fs::create_dir_all(parent).map_err(files)?;
    let parent = parent.canonicalize().map_err(files)?;
    let path = parent.join(name);
    let registered = check_name(&path);
    let w = Worktree::at(mirror, &path, &registered);
    let intact = w.verify().is_ok() && w.index_facts().is_ok_and(|f| f.hidden.is_empty()) && w.scrub().is_ok();
    let w = if intact {
        w
    } else {
        let ours = w.admin.symlink_metadata().is_ok();
        if !ours && path.symlink_metadata().is_ok() && !w.is_half_made() {
            return Err(WorktreeError::Taken(path));
        }
        let gone = |e| files(io::Error::other(e));
        remove::remove(&parent, name).map_err(gone)?;
        remove::remove(&mirror.git_dir().join("worktrees"), registered.as_ref()).or_else(|e| match e {
            remove::RemoveError::Io { .. } if !ours => Ok(false),
            e => Err(gone(e)),
        })?;
        Worktree::register(mirror, &path, &registered, commit)?
    };
    let head = Head::Detached(commit.clone());
    w.settle(&head, commit, None).await?;
    Ok(w)
}

/// Removes a worktree that `integration` made at `path`, when no process works there any more: folder and registration.
/// What is not registered as one is left. No command.
pub fn remove_integration(mirror: &Mirror, path: &Path) -> Result<bool, WorktreeError> {
    let files = |source| WorktreeError::Files { path: path.to_owned(), source };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
    let parent = match parent.canonicalize() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(files)?,
    };
    let registered = check_name(&parent.join(name));
    let worktrees = mirror.git_dir().join("worktrees");
    if worktrees.join(&registered).symlink_metadata().is_err() {
        return Ok(false);
    }
    let gone = |e| files(io::Error::other(e));
    remove::remove(&parent, name).map_err(gone)?;
    remove::remove(&worktrees, registered.as_ref()).map_err(gone)
}

/// The registration of a worktree for checks.
fn check_name(path: &Path) -> String {
    format!("check-{}", hex_name(path.as_os_str().as_bytes()))
}

/// Takes `paths` of the tree at `top` into the index that `git` names: what is there is added, what is gone is removed.
/// Not `git add`: it refuses a path that was removed from index and tree, or that a link now leads to. One command, two
/// where a folder became a link.
pub(super) async fn stage(git: impl Fn() -> Git, top: &Path, paths: &[Vec<u8>]) -> Result<(), GitError> {
    let beyond_link = |path: &[u8]| {
        let inside = Path::new(std::ffi::OsStr::from_bytes(path));
        let above = inside.ancestors().skip(1).filter(|a| !a.as_os_str().is_empty());
        above.into_iter().any(|a| top.join(a).is_symlink())
    };
    let (gone, here): (Vec<&Vec<u8>>, Vec<&Vec<u8>>) = paths.iter().partition(|p| beyond_link(p));
    for (how, list) in [(&["--force-remove"][..], gone), (&["--add", "--remove", "--replace"][..], here)] {
        if !list.is_empty() {
            let list: Vec<&[u8]> = list.into_iter().map(Vec::as_slice).collect();
            let update = git().args(["-c", "core.safecrlf=false", "update-index"]).args(how).args(["-z", "--stdin"]);
            update.stdin(list.join(&0)).run_patiently().await?;
        }
    }
    Ok(())
}

/// What `register` puts into a new folder: its link, under the name it is written under first.
const HALF_MADE: [&str; 2] = [".git", ".git.overnight-new"];

fn remove_half_made(path: &Path) -> io::Result<()> {
    for name in HALF_MADE {
        match std::fs::remove_file(path.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            Ok(()) | Err(_) => {}
        }
    }
    std::fs::remove_dir(path)
}

fn hex_name(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    use std::fmt::Write as _;
    sha2::Sha256::digest(bytes)[..8].iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// The content of a regular file; `None` for links and everything else.
pub(super) fn plain_file(path: &Path) -> Option<Vec<u8>> {
    if path.symlink_metadata().is_ok_and(|m| m.is_file()) { std::fs::read(path).ok() } else { None }
}
