//! Repositories within a worktree: clones and worktrees that an agent made inside its own, and folders that it turned into
//! a repository by themselves. Git would keep an empty reference of them; a rescue keeps their commits and their files.

use super::mirror::Mirror;
use super::odb::{Cas, Expect, Odb};
use super::rescue::{Job, OTHERS, RESCUE_REFS, RescueError, log_of, numbered, ours};
use super::status::Status;
use super::worktree::plain_file;
use crate::domain::Oid;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How deep repositories within repositories are looked into.
const NESTING: u32 = 6;
/// Where fetched commits stand until they have the names of a rescue.
const RESCUE_DRAFTS: &str = "refs/overnight/rescue-draft/";

/// Registrations in the mirror of worktrees that somebody made inside `place`, outermost first.
pub(super) fn registrations(mirror: &Mirror, place: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(mirror.git_dir().join("worktrees")) else { return Vec::new() };
    let mut found: Vec<(PathBuf, PathBuf)> = entries
        .flatten()
        .filter_map(|e| {
            let text = plain_file(&e.path().join("gitdir"))?;
            let folder = Path::new(OsStr::from_bytes(text.strip_suffix(b"\n").unwrap_or(&text))).parent()?.to_owned();
            (folder != place && folder.starts_with(place)).then(|| (folder, e.path()))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, admin)| admin).collect()
}

/// The git dir of the repository at `place`, by its own `.git`: git would go on to look in the folders above.
pub(super) fn git_dir_of(place: &Path) -> Option<PathBuf> {
    let own = place.join(".git");
    let git_dir = match own.symlink_metadata() {
        Ok(meta) if meta.is_dir() => own,
        _ => {
            let link = plain_file(&own)?;
            let target = link.strip_prefix(b"gitdir: ").map(<[u8]>::trim_ascii_end)?;
            place.join(OsStr::from_bytes(target)).canonicalize().ok()?
        }
    };
    git_dir.is_dir().then_some(git_dir)
}

/// What to ask a repository for beside its refs: commits that HEAD and the stash are and were at, newest first, as far as
/// they are still there; HEAD by its name where we cannot read it ourselves.
fn beside_refs(git_dir: &Path) -> Vec<String> {
    let odb = match Odb::open(git_dir) {
        Ok(odb) if !git_dir.join("reftable").exists() => odb,
        _ => return vec!["HEAD".into()],
    };
    let mut seen: Vec<Oid> = odb.tip("HEAD").ok().flatten().into_iter().collect();
    for log in ["logs/HEAD", "logs/refs/stash"] {
        seen.extend(log_of(&git_dir.join(log)).into_iter().rev().map(|(at, _)| at));
    }
    let mut known = BTreeSet::new();
    seen.retain(|at| odb.is_commit(at) && known.insert(at.clone()));
    seen.iter().take(OTHERS).map(Oid::to_string).collect()
}

/// Whether the repository at `place` alone is known to have `commit`: nothing that it ever got from a remote leads there.
/// False where that cannot be told: it is not filled, does not have the commit, or its history is cut.
pub(super) fn only_here(place: &Path, commit: &Oid) -> bool {
    let Some(git_dir) = git_dir_of(place) else { return false };
    let Ok(odb) = Odb::open(&git_dir) else { return false };
    if !odb.is_commit(commit) || git_dir.join("shallow").exists() {
        return false;
    }
    let mut theirs: Vec<Oid> = Vec::new();
    for prefix in ["refs/remotes/", "refs/tags/"] {
        theirs.extend(odb.refs(prefix).unwrap_or_default().into_values());
    }
    let fetched = plain_file(&git_dir.join("FETCH_HEAD")).unwrap_or_default();
    let first = |line: &[u8]| Oid::parse(&String::from_utf8_lossy(line.split(|b| *b == b'\t').next()?)).ok();
    theirs.extend(fetched.split(|b| *b == b'\n').filter_map(first));
    theirs.retain(|at| odb.is_commit(at));
    odb.between(std::slice::from_ref(commit), &theirs, 1).is_ok_and(|beyond| !beyond.is_empty())
}

impl Job {
    /// Each nested repository: its refs by a fetch, its uncommitted files by a snapshot.
    pub(super) async fn nested_repositories(
        &mut self,
        folder: &Path,
        paths: Vec<Vec<u8>>,
        registered: &[PathBuf],
        depth: u32,
    ) -> Result<(), RescueError> {
        for path in paths {
            let place = folder.join(OsStr::from_bytes(path.strip_suffix(b"/").unwrap_or(&path)));
            let is_dir = place.symlink_metadata().is_ok_and(|m| m.is_dir());
            if depth >= NESTING || !is_dir || place.join(".git").symlink_metadata().is_err() {
                continue;
            }
            Box::pin(self.nested_one(&place, registered, depth)).await?;
        }
        Ok(())
    }

    async fn nested_one(&mut self, place: &Path, registered: &[PathBuf], depth: u32) -> Result<(), RescueError> {
        self.nested += 1;
        let what = format!("-nested-{}", self.nested);
        // A worktree of the mirror has its commits here already.
        let link = plain_file(&place.join(".git")).unwrap_or_default();
        let ours = registered.iter().any(|a| link == [b"gitdir: ", a.as_os_str().as_bytes(), b"\n"].concat());
        if !ours {
            self.fetch_all(place, &what).await?;
        }
        let state = self.state_of(place).await?;
        let root = self.empty_root()?;
        self.snapshot(place, None, &state, &root, &format!("{what}-files")).await?;
        let deeper = state.untracked.into_iter().filter(|p| p.ends_with(b"/")).collect();
        self.nested_repositories(place, deeper, registered, depth + 1).await
    }

    /// Keeps the commits of the repository at `place`: what its refs hold, and what its HEAD and stash have been at, which
    /// no ref need hold (a submodule's HEAD is detached). First under names of this fetch alone: under its own names an
    /// earlier life of the task may have kept another repository.
    async fn fetch_all(&mut self, place: &Path, what: &str) -> Result<(), RescueError> {
        let Some(git_dir) = git_dir_of(place) else { return Ok(()) };
        let draft = format!("{RESCUE_DRAFTS}{}/{}{what}/", self.dotted, self.attempt);
        self.drop_draft(&draft)?;
        let fetched = self
            .mirror
            .git()?
            .args(["fetch", "--quiet", "--no-write-fetch-head", "--no-auto-maintenance", "--no-tags"])
            .args(["--no-recurse-submodules", "--refmap=", "--"])
            .arg(place)
            .arg(format!("+refs/*:{draft}refs/*"))
            .args(beside_refs(&git_dir).iter().map(|c| format!("+{c}:{draft}commits/{c}")))
            .limit(Duration::from_secs(120))
            .run_patiently()
            .await;
        let kept =
            if fetched.is_ok() { self.keep_fetched(&draft, what) } else { self.keep_git_dir(place, &git_dir, what) };
        self.drop_draft(&draft)?;
        kept
    }

    fn drop_draft(&self, draft: &str) -> Result<(), RescueError> {
        let odb = self.mirror.odb()?;
        for (name, at) in odb.refs(draft)? {
            odb.swap(&name.to_string(), None, Expect::Is(&at), "overnight: kept")?;
        }
        Ok(())
    }

    /// Gives what was fetched its names: of the numbered ones the first that hold nothing else.
    fn keep_fetched(&mut self, draft: &str, what: &str) -> Result<(), RescueError> {
        let odb = self.mirror.odb()?;
        let mut got: BTreeMap<String, Oid> = BTreeMap::new();
        let mut held: Vec<Oid> = Vec::new();
        for (name, at) in odb.refs(&format!("{draft}refs/"))? {
            let name = name.to_string();
            held.extend(odb.is_commit(&at).then(|| at.clone()));
            got.insert(name.strip_prefix(&format!("{draft}refs/")).unwrap_or(&name).to_owned(), at);
        }
        for commit in odb.refs(&format!("{draft}commits/"))?.into_values() {
            if !odb.between(std::slice::from_ref(&commit), &held, 1)?.is_empty() {
                held.push(commit.clone());
                got.insert(format!("commits/{commit}"), commit);
            }
        }
        for n in 1_u32.. {
            let suffix = if n == 1 { String::new() } else { format!(".{n}") };
            let prefix = format!("{RESCUE_REFS}{}/{}{what}{suffix}/", self.dotted, self.attempt);
            let there = odb.refs(&prefix)?;
            if !there.iter().all(|(name, at)| got.get(&name.to_string()[prefix.len()..]) == Some(at)) {
                continue;
            }
            for (name, at) in got {
                let name = format!("{prefix}{name}");
                if let Cas::Holds(now) = odb.swap(&name, Some(&at), Expect::Absent, "overnight: rescue")?
                    && now.as_ref() != Some(&at)
                {
                    let source = std::io::Error::other(format!("{name} was moved meanwhile"));
                    return Err(RescueError::Files { path: self.mirror.git_dir().to_owned(), source });
                }
                self.refs.push((name, at));
            }
            break;
        }
        Ok(())
    }

    /// What git cannot read as a repository, or not all of it: its git dir is kept as it is, where it would go with the
    /// worktree. One that stands elsewhere (a worktree of somebody's repository) is nothing that is removed.
    fn keep_git_dir(&mut self, place: &Path, git_dir: &Path, what: &str) -> Result<(), RescueError> {
        let goes = git_dir.starts_with(&self.top) || git_dir.starts_with(self.mirror.git_dir().join("worktrees"));
        if !goes {
            tracing::warn!(place = %place.display(), "a repository inside could not be read; its commits are where they were");
            return Ok(());
        }
        let wanted = self.aside_place(format!("{}.git", &what[1..]).as_bytes());
        let free = (1_u32..).map(|n| numbered(&wanted, n)).find(|p| p.symlink_metadata().is_err());
        let aside = free.unwrap_or(wanted);
        let moved = std::fs::create_dir_all(aside.parent().unwrap_or(Path::new("/")))
            .and_then(|()| std::fs::rename(git_dir, &aside));
        moved.map_err(|source| RescueError::Files { path: git_dir.to_owned(), source })?;
        self.set_aside.push(aside);
        Ok(())
    }

    /// A folder whose git link is not ours any more: compared with `parent` through an index of our own.
    pub(super) async fn loose_folder(
        &mut self,
        folder: &Path,
        parent: &Oid,
        registered: &[PathBuf],
    ) -> Result<(), RescueError> {
        if folder.join(".git").symlink_metadata().is_ok_and(|m| m.is_dir()) {
            self.nested += 1;
            let what = format!("-nested-{}", self.nested);
            self.fetch_all(folder, &what).await?;
        }
        let (state, index) = self.against(folder, Some(parent)).await?;
        let nested = state.untracked.iter().filter(|p| p.ends_with(b"/")).cloned().collect();
        self.snapshot(folder, index, &state, parent, "-left").await?;
        self.nested_repositories(folder, nested, registered, 0).await
    }

    async fn state_of(&self, folder: &Path) -> Result<Status, RescueError> {
        Ok(self.against(folder, None).await?.0)
    }

    /// A commit without files, as the parent of snapshots that have no history here.
    fn empty_root(&self) -> Result<Oid, RescueError> {
        let odb = self.mirror.odb()?;
        Ok(odb.commit(&odb.empty_tree()?, &[], "overnight: nothing\n", &ours())?)
    }
}
