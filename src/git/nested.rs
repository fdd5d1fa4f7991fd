//! Repositories within a worktree: clones and worktrees that an agent made inside its own, and folders that it turned into
//! a repository by themselves. Git would keep an empty reference of them; a rescue keeps their commits and their files.

use super::mirror::Mirror;
use super::rescue::{Job, RESCUE_REFS, RescueError, ours};
use super::status::Status;
use super::worktree::plain_file;
use crate::domain::Oid;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How deep repositories within repositories are looked into.
const NESTING: u32 = 6;

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

    async fn fetch_all(&mut self, place: &Path, what: &str) -> Result<(), RescueError> {
        let prefix = format!("{RESCUE_REFS}{}/{}{what}/", self.dotted, self.attempt);
        let fetched = self
            .mirror
            .git()?
            .args(["fetch", "--quiet", "--no-write-fetch-head", "--no-auto-maintenance", "--no-tags"])
            .args(["--no-recurse-submodules", "--refmap=", "--"])
            .arg(place)
            .arg(format!("+refs/*:{prefix}*"))
            .limit(Duration::from_secs(120))
            .run_patiently()
            .await;
        if fetched.is_ok() {
            let refs = self.mirror.odb()?.refs(&prefix)?;
            self.refs.extend(refs.into_iter().map(|(n, c)| (n.to_string(), c)));
            return Ok(());
        }
        // Not readable as a repository: its git dir is kept as it is, if it is a folder of its own.
        let git_dir = place.join(".git");
        if git_dir.symlink_metadata().is_ok_and(|m| m.is_dir()) {
            let aside = self.aside_place(format!("{}.git", &what[1..]).as_bytes());
            let moved = std::fs::create_dir_all(aside.parent().unwrap_or(Path::new("/")))
                .and_then(|()| std::fs::rename(&git_dir, &aside));
            moved.map_err(|source| RescueError::Files { path: git_dir, source })?;
            self.set_aside.push(aside);
        }
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
