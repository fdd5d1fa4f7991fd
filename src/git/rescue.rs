//! Keeping what an attempt made before anything of it is removed: its branch, what it left uncommitted, other commits it
//! made on the way, and nested repositories, as refs `refs/overnight/rescue/<task with dots>/<attempt>[-what]` of the
//! mirror. These refs never leave the mirror, so files that are left out of commits (secrets) are kept here too.
//!
//! Only this file makes a [`Rescued`], without which the pool takes no worktree back.

use super::collect::{self, LeftOut, Why};
use super::mirror::{Mirror, MirrorError, TASK_BRANCHES};
use super::nested;
use super::odb::{Cas, Expect, Odb, OdbError};
use super::pool::Lease;
use super::status::{self, Status};
use super::worktree::{Head, WorktreeError, plain_file, stage};
use super::{Git, GitError, Who};
use crate::domain::{Oid, TaskPath};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Where rescued commits stand in a mirror.
pub const RESCUE_REFS: &str = "refs/overnight/rescue/";
/// Larger files are not put into commits; they are hard-linked into the mirror's `.kept` folder.
pub const HUGE: u64 = 64 << 20;
/// How many commits apart from the branch are kept for one attempt.
pub(super) const OTHERS: usize = 200;

/// Something could not be kept; nothing was removed.
#[derive(Debug, thiserror::Error)]
pub enum RescueError {
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
    #[error(transparent)]
    Worktree(#[from] WorktreeError),
}

/// The proof that a worktree's content is kept or merged.
#[derive(Debug, Clone)]
pub struct Rescued {
    place: Option<PathBuf>,
    nonce: Option<String>,
    branch: String,
    tip: Option<Oid>,
    refs: Vec<(String, Oid)>,
    not_kept: Vec<LeftOut>,
    set_aside: Vec<PathBuf>,
    strays: Vec<(String, Oid)>,
    spotless: bool,
}

impl Rescued {
    /// The worktree's folder, `None` for a branch alone.
    pub fn place(&self) -> Option<&Path> {
        self.place.as_deref()
    }

    /// The lending that was rescued: a proof of an earlier one of the same worktree proves nothing.
    pub(super) fn lease_nonce(&self) -> Option<&String> {
        self.nonce.as_ref()
    }

    /// The branch that was kept, without `refs/heads/`.
    pub fn branch(&self) -> &str {
        &self.branch
    }

    /// Where the branch stood when it was kept.
    pub fn tip(&self) -> Option<&Oid> {
        self.tip.as_ref()
    }

    /// The refs that hold the content; empty where all of it was merged.
    pub fn refs(&self) -> &[(String, Oid)] {
        &self.refs
    }

    /// What is in no ref and no kept file: ignored files, dependency folders, pipes and sockets are not listed one by one.
    pub fn not_kept(&self) -> &[LeftOut] {
        &self.not_kept
    }

    /// Files too large for a commit, as they are kept beside the mirror.
    pub fn set_aside(&self) -> &[PathBuf] {
        &self.set_aside
    }

    /// Branches that the attempt made beside its own, by full name; their commits are kept.
    pub(super) fn strays(&self) -> &[(String, Oid)] {
        &self.strays
    }

    /// The worktree held nothing that a commit does not.
    pub(super) fn spotless(&self) -> bool {
        self.spotless
    }
}

/// One kept commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Full ref name.
    pub name: String,
    pub commit: Oid,
}

/// Keeps everything of one lease. `seen_on` is a commit on the target that may contain the work already: what it
/// contains needs no ref. Safe to repeat: equal content makes no second ref.
///
/// One command where nothing is uncommitted, three more where something is, two for each nested repository.
pub async fn rescue(
    lease: &Lease,
    task: &TaskPath,
    attempt: u32,
    seen_on: Option<&Oid>,
) -> Result<Rescued, RescueError> {
    let mirror = lease.worktree.mirror().clone();
    mirror.verify_seal()?;
    let mut job = Job::new(&mirror, task, attempt);
    job.top = lease.path().to_owned();
    let tip = job.mirror.branch_tip(lease.branch())?;
    let mut known = vec![lease.base().clone()];
    known.extend(seen_on.cloned());
    let nested_trees = nested::registrations(&mirror, lease.path());
    if let Some(tip) = &tip {
        job.keep_if_new("", tip, &mut known)?;
    }
    for commit in job.others(lease, &nested_trees)? {
        job.keep_if_new("-other", &commit, &mut known)?;
        job.note_strays(&commit, lease.base())?;
    }
    let intact = lease.worktree.verify().is_ok() && lease.worktree.unhide().await.is_ok();
    let parent = tip.clone().unwrap_or_else(|| lease.base().clone());
    let mut spotless = false;
    if intact {
        lease.worktree.drop_locks(Some(lease.branch()));
        lease.worktree.open_up().await?;
        let state = lease.worktree.status(true).await?;
        spotless = state.is_spotless();
        let index = plain_file(&lease.git_dir().join("index"));
        let mut nested: Vec<Vec<u8>> = state.untracked.iter().filter(|p| p.ends_with(b"/")).cloned().collect();
        nested.extend(lease.worktree.index_facts()?.gitlinks);
        job.snapshot(lease.path(), index, &state, &parent, "-left").await?;
        job.nested_repositories(lease.path(), nested, &nested_trees, 0).await?;
    } else if lease.path().symlink_metadata().is_ok_and(|m| m.is_dir()) {
        job.loose_folder(lease.path(), &parent, &nested_trees).await?;
    }
    Ok(job.done(Some(lease), lease.branch(), tip, spotless))
}

/// Keeps a branch that no worktree holds. No command.
pub fn rescue_branch(mirror: &Mirror, branch: &str, task: &TaskPath, attempt: u32) -> Result<Rescued, RescueError> {
    let mut job = Job::new(mirror, task, attempt);
    let tip = mirror.branch_tip(branch)?;
    if let Some(tip) = &tip {
        job.keep_if_new("", tip, &mut Vec::new())?;
    }
    Ok(job.done(None, branch, tip, false))
}

/// Everything that is kept of a task, by name.
pub fn rescues(mirror: &Mirror, task: &TaskPath) -> Result<Vec<Kept>, RescueError> {
    let prefix = format!("{RESCUE_REFS}{}/", task.dotted());
    let refs = mirror.odb()?.refs(&prefix)?;
    Ok(refs.into_iter().map(|(name, commit)| Kept { name: name.to_string(), commit }).collect())
}

/// Writes `refs/overnight/rescue/<dotted>/<label>`, with a number where the name holds another commit. The name.
pub(super) fn keep_commit(mirror: &Mirror, dotted: &str, label: &str, commit: &Oid) -> Result<String, RescueError> {
    let odb = mirror.odb()?;
    let mut n = 1_u32;
    loop {
        let suffix = if n == 1 { String::new() } else { format!(".{n}") };
        let name = format!("{RESCUE_REFS}{dotted}/{label}{suffix}");
        match odb.swap(&name, Some(commit), Expect::Absent, "overnight: rescue")? {
            Cas::Done => return Ok(name),
            Cas::Holds(now) if now.as_ref() == Some(commit) => return Ok(name),
            Cas::Holds(_) => n += 1,
        }
    }
}

/// One rescue under way.
pub(super) struct Job {
    pub(super) mirror: Mirror,
    pub(super) dotted: String,
    pub(super) attempt: u32,
    pub(super) refs: Vec<(String, Oid)>,
    pub(super) not_kept: Vec<LeftOut>,
    pub(super) set_aside: Vec<PathBuf>,
    pub(super) nested: u32,
    /// The folder that will be emptied.
    pub(super) top: PathBuf,
    strays: Vec<(String, Oid)>,
}

impl Job {
    fn new(mirror: &Mirror, task: &TaskPath, attempt: u32) -> Self {
        Self {
            mirror: mirror.clone(),
            dotted: task.dotted(),
            attempt,
            refs: Vec::new(),
            not_kept: Vec::new(),
            set_aside: Vec::new(),
            nested: 0,
            top: mirror.git_dir().to_owned(),
            strays: Vec::new(),
        }
    }

    fn done(self, lease: Option<&Lease>, branch: &str, tip: Option<Oid>, spotless: bool) -> Rescued {
        Rescued {
            place: lease.map(|l| l.path().to_owned()),
            nonce: lease.map(|l| l.nonce.clone()),
            branch: branch.to_owned(),
            tip,
            refs: self.refs,
            not_kept: self.not_kept,
            set_aside: self.set_aside,
            strays: self.strays,
            spotless,
        }
    }

    fn keep(&mut self, what: &str, commit: &Oid) -> Result<(), RescueError> {
        let label = format!("{}{what}", self.attempt);
        let name = keep_commit(&self.mirror, &self.dotted, &label, commit)?;
        self.refs.push((name, commit.clone()));
        Ok(())
    }

    /// Keeps `commit` unless `known` commits contain it, and knows it from then on.
    fn keep_if_new(&mut self, what: &str, commit: &Oid, known: &mut Vec<Oid>) -> Result<(), RescueError> {
        let odb = self.mirror.odb()?;
        let present: Vec<Oid> = known.iter().filter(|k| odb.is_commit(k)).cloned().collect();
        if !odb.between(std::slice::from_ref(commit), &present, 1)?.is_empty() {
            self.keep(what, commit)?;
        }
        known.push(commit.clone());
        Ok(())
    }

    /// Commits that the attempt made outside its branch: all that HEAD was at, here and in worktrees made inside; branches
    /// that stand at one of these; stashes made on its branch. Newest first.
    fn others(&self, lease: &Lease, nested: &[PathBuf]) -> Result<Vec<Oid>, RescueError> {
        let odb = self.mirror.odb()?;
        let mut seen = lease.worktree.log();
        if let Head::Detached(at) = lease.worktree.head() {
            seen.push(at);
        }
        if let Head::Branch(other) = lease.worktree.head()
            && other != lease.branch()
        {
            seen.extend(odb.tip(&format!("refs/heads/{other}"))?);
        }
        for admin in nested {
            seen.extend(log_of(&admin.join("logs/HEAD")).into_iter().map(|(oid, _)| oid));
            let head = plain_file(&admin.join("HEAD")).unwrap_or_default();
            let head = String::from_utf8_lossy(&head).trim_end().to_owned();
            match head.strip_prefix("ref: ") {
                Some(name) => seen.extend(odb.tip(name).unwrap_or_default()),
                None => seen.extend(Oid::parse(&head)),
            }
        }
        for (oid, message) in log_of(&self.mirror.git_dir().join("logs/refs/stash")) {
            let ours = ["WIP on ", "On "].iter().any(|p| message.starts_with(&format!("{p}{}:", lease.branch())));
            seen.extend(ours.then_some(oid));
        }
        seen.reverse();
        seen.truncate(OTHERS);
        Ok(seen.into_iter().filter(|o| odb.is_commit(o)).collect())
    }

    /// Branches outside our namespaces at a commit of this attempt. One at the base may be anybody's.
    fn note_strays(&mut self, commit: &Oid, base: &Oid) -> Result<(), RescueError> {
        if commit == base {
            return Ok(());
        }
        let ours = |name: &str| {
            name.strip_prefix("refs/heads/")
                .is_some_and(|n| n.starts_with("overnight/") || n.starts_with(TASK_BRANCHES))
        };
        for (name, tip) in self.mirror.odb()?.refs("refs/heads/")? {
            let name = name.to_string();
            if tip == *commit && !ours(&name) && !self.strays.iter().any(|(n, _)| *n == name) {
                self.strays.push((name, tip));
            }
        }
        Ok(())
    }

    /// A commit of what stands in `folder` beyond `parent`, under a ref named `what`.
    pub(super) async fn snapshot(
        &mut self,
        folder: &Path,
        index: Option<Vec<u8>>,
        state: &Status,
        parent: &Oid,
        what: &str,
    ) -> Result<(), RescueError> {
        // What is tracked below a folder of dependencies is the project's own.
        let changed = state.changed.iter().map(|e| &e.path).chain(&state.unmerged).map(|path| (path, true));
        let untracked = state.untracked.iter().map(|path| (path, false));
        let mut paths: Vec<Vec<u8>> = Vec::new();
        for (path, tracked) in changed.chain(untracked).filter(|(p, _)| !p.ends_with(b"/")) {
            match self.sort_out(folder, path, tracked)? {
                None => paths.push(path.clone()),
                Some(left) => self.not_kept.push(left),
            }
        }
        if paths.is_empty() {
            return Ok(());
        }
        let temporary = Temporary::new(&self.mirror, &format!("{}-{}{what}", self.dotted, self.attempt))?;
        if let Some(bytes) = index {
            temporary.write(&bytes)?;
        }
        let git = || {
            Git::at(folder)
                .env("GIT_DIR", self.mirror.git_dir())
                .env("GIT_WORK_TREE", folder)
                .env("GIT_INDEX_FILE", &temporary.0)
        };
        let both = state.changed.iter().any(|e| e.index != b'.' && e.tree != b'.') && state.unmerged.is_empty();
        let mut parents = vec![parent.clone()];
        if both {
            // Staged content that the work tree does not have any more.
            let tree = parse_oid(&git().arg("write-tree").run().await?)?;
            parents.push(self.mirror.odb()?.commit(&tree, &parents[..1], "overnight: what was staged\n", &ours())?);
        }
        stage(git, folder, &paths).await?;
        let tree = parse_oid(&git().arg("write-tree").run().await?)?;
        self.keep_tree(&tree, &parents, what)
    }

    fn keep_tree(&mut self, tree: &Oid, parents: &[Oid], what: &str) -> Result<(), RescueError> {
        let odb = self.mirror.odb()?;
        for kept in self.earlier(&odb, what)? {
            let info = odb.info(&kept.commit)?;
            if info.tree == *tree && info.parents.first() == parents.first() {
                self.refs.push((kept.name, kept.commit));
                return Ok(());
            }
        }
        let message = format!("overnight: left uncommitted by attempt {} of {}\n", self.attempt, self.dotted);
        let commit = odb.commit(tree, parents, &message, &ours())?;
        self.keep(what, &commit)
    }

    fn earlier(&self, odb: &Odb, what: &str) -> Result<Vec<Kept>, RescueError> {
        let prefix = format!("{RESCUE_REFS}{}/", self.dotted);
        let label = format!("{prefix}{}{what}", self.attempt);
        let refs = odb.refs(&prefix)?;
        let same = |name: &str| name.strip_prefix(&label).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let kept = refs.into_iter().map(|(name, commit)| Kept { name: name.to_string(), commit });
        Ok(kept.filter(|k| same(&k.name)).collect())
    }

    /// What is not put into a commit even here; a huge file is linked aside.
    fn sort_out(&mut self, folder: &Path, path: &[u8], tracked: bool) -> Result<Option<LeftOut>, RescueError> {
        let place = folder.join(OsStr::from_bytes(path));
        let left = |why| Ok(Some(LeftOut { path: path.to_vec(), why }));
        match place.symlink_metadata() {
            Ok(m) if m.is_file() && m.len() > HUGE => {
                let draft = self.aside_top().join(".keeping").join(format!("{}-{}", self.dotted, self.attempt));
                let kept = keep_file(&place, &self.aside_place(path), &draft);
                let aside = kept.map_err(|source| RescueError::Files { path: place, source })?;
                self.set_aside.push(aside);
                left(Why::Large { size: m.len() })
            }
            Ok(m) if !(m.is_file() || m.is_symlink() || m.is_dir()) => left(Why::Special),
            _ if !tracked && collect::in_dependencies(path) => left(Why::Dependencies),
            _ => Ok(None),
        }
    }

    fn aside_top(&self) -> PathBuf {
        let mut name = self.mirror.git_dir().file_name().unwrap_or_default().to_owned();
        name.push(".kept");
        self.mirror.git_dir().with_file_name(name)
    }

    pub(super) fn aside_place(&self, path: &[u8]) -> PathBuf {
        self.aside_top().join(&self.dotted).join(self.attempt.to_string()).join(OsStr::from_bytes(path))
    }

    /// The files of `folder` against a commit (or against nothing), whatever repository the folder claims to be.
    pub(super) async fn against(
        &self,
        folder: &Path,
        commit: Option<&Oid>,
    ) -> Result<(Status, Option<Vec<u8>>), RescueError> {
        let temporary = Temporary::new(&self.mirror, &format!("{}-{}-look", self.dotted, self.attempt))?;
        let git = || {
            Git::at(folder)
                .env("GIT_DIR", self.mirror.git_dir())
                .env("GIT_WORK_TREE", folder)
                .env("GIT_INDEX_FILE", &temporary.0)
        };
        if let Some(commit) = commit {
            git().args(["read-tree", commit.as_str()]).run().await?;
        }
        let out = git().args(status::ARGS).run().await?;
        let mut state = status::parse(&out.stdout);
        // HEAD of a mirror is never born, so all of the index counts as added; only the work tree's side says anything.
        state.changed.retain(|e| e.tree != b'.');
        for entry in &mut state.changed {
            entry.index = b'.';
        }
        Ok((state, plain_file(&temporary.0)))
    }
}

/// An index file of our own, in the mirror, removed at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(mirror: &Mirror, name: &str) -> Result<Self, RescueError> {
        let folder = mirror.git_dir().join("overnight-index");
        std::fs::create_dir_all(&folder).map_err(|source| RescueError::Files { path: folder.clone(), source })?;
        let temporary = Self(folder.join(name));
        let _ = std::fs::remove_file(&temporary.0);
        let _ = std::fs::remove_file(folder.join(format!("{name}.lock")));
        Ok(temporary)
    }

    fn write(&self, bytes: &[u8]) -> Result<(), RescueError> {
        super::seal::write(&self.0, bytes).map_err(|source| RescueError::Files { path: self.0.clone(), source })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Keeps a file as `to`, or as the first numbered name beside it that is free or holds the same: attempts of a task that
/// was queued anew are numbered from 1 again, and what an earlier one left there is not to be taken for this file. It is
/// whole before it has its name. The name.
fn keep_file(from: &Path, to: &Path, draft: &Path) -> io::Result<PathBuf> {
    for folder in [to.parent(), draft.parent()].into_iter().flatten() {
        std::fs::create_dir_all(folder)?;
    }
    let drop_draft = || match std::fs::remove_file(draft) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        Ok(()) | Err(_) => Ok(()),
    };
    // What a kill left.
    drop_draft()?;
    if std::fs::hard_link(from, draft).is_err() {
        std::fs::copy(from, draft)?;
        std::fs::File::open(draft)?.sync_all()?;
    }
    for n in 1_u32.. {
        let place = numbered(to, n);
        match std::fs::hard_link(draft, &place) {
            Ok(()) => {}
            Err(_) if place.symlink_metadata().is_ok() => {
                if !same_content(draft, &place)? {
                    continue;
                }
            }
            // A file system without links.
            Err(_) => std::fs::rename(draft, &place)?,
        }
        drop_draft()?;
        return Ok(place);
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// `path` itself, then `path.2` and so on.
pub(super) fn numbered(path: &Path, n: u32) -> PathBuf {
    if n == 1 {
        return path.to_owned();
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{n}"));
    path.with_file_name(name)
}

fn same_content(one: &Path, other: &Path) -> io::Result<bool> {
    use std::io::BufRead as _;
    use std::os::unix::fs::MetadataExt as _;
    let (a, b) = (one.symlink_metadata()?, other.symlink_metadata()?);
    if !b.is_file() || a.len() != b.len() {
        return Ok(false);
    }
    if (a.dev(), a.ino()) == (b.dev(), b.ino()) {
        return Ok(true);
    }
    let open = |path| Ok::<_, io::Error>(io::BufReader::with_capacity(1 << 16, std::fs::File::open(path)?));
    let (mut a, mut b) = (open(one)?, open(other)?);
    loop {
        let (left, right) = (a.fill_buf()?, b.fill_buf()?);
        let n = left.len().min(right.len());
        if n == 0 {
            return Ok(left.len() == right.len());
        }
        if left[..n] != right[..n] {
            return Ok(false);
        }
        a.consume(n);
        b.consume(n);
    }
}

/// New object and message of each line of a reflog.
pub(super) fn log_of(path: &Path) -> Vec<(Oid, String)> {
    let bytes = plain_file(path).unwrap_or_default();
    let line = |l: &[u8]| {
        let text = String::from_utf8_lossy(l);
        let (head, message) = text.split_once('\t').unwrap_or((&text, ""));
        Some((Oid::parse(head.split(' ').nth(1)?).ok()?, message.to_owned()))
    };
    bytes.split(|b| *b == b'\n').filter_map(line).collect()
}

pub(super) fn parse_oid(out: &super::Output) -> Result<Oid, GitError> {
    Oid::parse(&out.text()).map_err(|e| GitError::Failed {
        command: "write-tree".into(),
        status: "exit 0".into(),
        code: Some(0),
        stderr: e.to_string(),
    })
}

pub(super) fn ours() -> Who {
    Who { name: "overnight".into(), mail: "overnight@localhost".into() }
}
