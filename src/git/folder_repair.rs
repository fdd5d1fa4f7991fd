//! A person's folder after a kill in the middle of an update: the record in our data folder says what was under way, and
//! the index whether its files were all written. Then the branch follows; else the files go back to what they were.

#![expect(clippy::disallowed_methods, reason = "processes of others end without telling us")]

use super::folder::{Folder, open};
use super::folder_update::{OVER, Record, There, beside, random, remove, replace};
use super::state_repo::{Doing as _, Result, StateError, to_gix};
use super::state_tree::{Differs, tree_diff, tree_of};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// How long a git that outlived its daemon may go on.
const ORPHAN_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

impl Folder {
    /// Finishes or takes back what a kill left half done. False when another program holds the lock meanwhile: then
    /// nothing was touched. Call it before the folder is read after a start.
    pub async fn repair(&self) -> Result<bool> {
        let record = match std::fs::read(&self.record) {
            Ok(bytes) => bytes,
            Err(_) => return Ok(true),
        };
        let Ok(mut record) = serde_json::from_slice::<Record>(&record) else {
            // Written before the lock was taken, and not whole: nothing had begun.
            remove(&self.record)?;
            return Ok(true);
        };
        // A git of the daemon before us that has not yet begun finds no place for its lock, and writes nothing.
        let _ = std::fs::rename(&record.work, beside(&record.work, OVER));
        if !self.lock_is(&record) {
            // A person removed the lock by hand, or it was never made.
            record.token = format!("overnight {:016x}{:016x}", random(), random());
            if self.git_dir.join("index.lock").exists() {
                return Ok(false);
            }
            if !self.lock(&record, true)? {
                return Ok(false);
            }
        }
        self.outlive(&record).await;
        let status = self.status(None)?;
        if status.branch.as_ref() == Some(&self.branch) && status.head.as_ref() == Some(&record.old) {
            let repo = open(&self.at)?;
            let changes = match tree_of(&repo, &record.new) {
                Ok(new) => tree_diff(&repo, Some(to_gix(&record.from)?), Some(new))?,
                // The objects did not get here, so nothing else did.
                Err(_) => Vec::new(),
            };
            if index_is_new(&repo, &changes)? {
                drop(repo);
                self.move_head(&record).await?;
            } else {
                self.take_back(&repo, &changes)?;
            }
        }
        self.unlock(&record)?;
        Ok(true)
    }

    /// Waits for a git that outlived the daemon which started it and had begun: it would write on while we take back. It
    /// is known by the copy of the index, whose name is in its environment and nobody else's; after the limit it is ended.
    async fn outlive(&self, record: &Record) {
        let start = std::time::Instant::now();
        loop {
            let left = gits_with(record);
            if left.is_empty() {
                return;
            }
            if start.elapsed() > ORPHAN_LIMIT {
                for pid in left {
                    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
                }
            }
            if start.elapsed() > ORPHAN_LIMIT * 2 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Puts files back that an update had begun to write: what is missing, or is the new text or a beginning of it.
    fn take_back(&self, repo: &gix::Repository, changes: &[Differs]) -> Result<()> {
        let text = |entry: Option<(gix::objs::tree::EntryMode, gix::ObjectId)>| {
            let blob = entry.filter(|(mode, _)| mode.is_blob());
            blob.map(|(_, id)| repo.find_object(id).doing("read a file").map(|o| o.detach().data)).transpose()
        };
        for change in changes {
            let (old, new) = (text(change.old)?, text(change.new)?);
            let begun = match (self.look(&change.path), &old, &new) {
                (There::Nothing, Some(_), _) => true,
                (There::File(is), old, Some(new)) => old.as_ref() != Some(&is) && new.starts_with(&is),
                _ => false,
            };
            let at = self.at.join(OsStr::from_bytes(&change.path));
            match old {
                Some(old) if begun => {
                    if let Some(above) = at.parent() {
                        let made = std::fs::create_dir_all(above);
                        made.map_err(|source| StateError::Io { what: "make a folder", at: above.into(), source })?;
                    }
                    replace(&at, &old, true)?;
                }
                None if begun => {
                    remove(&at)?;
                    // Folders that are empty now were made by the update.
                    at.ancestors()
                        .skip(1)
                        .take_while(|above| *above != self.at)
                        .all(|a| std::fs::remove_dir(a).is_ok());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether the index already has all that an update was to bring.
fn index_is_new(repo: &gix::Repository, changes: &[Differs]) -> Result<bool> {
    let index = repo.open_index().doing("read the folder's index")?;
    let is_new = |change: &Differs| {
        let entry = index
            .entry_by_path(change.path.as_slice().into())
            .filter(|e| !e.mode.contains(gix::index::entry::Mode::DIR));
        entry.map(|entry| entry.id) == change.new.map(|(_, id)| id)
    };
    Ok(!changes.is_empty() && changes.iter().all(is_new))
}

/// Processes that work on this copy of the index.
#[cfg(target_os = "linux")]
fn gits_with(record: &Record) -> Vec<i32> {
    let wanted = [b"GIT_INDEX_FILE=", record.copy().as_os_str().as_bytes()].concat();
    let pid_of = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    let works_on = |pid: &i32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|b| *b == 0).any(|variable| variable == wanted)
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(pid_of).filter(works_on).collect()
}

/// Where no environment can be read, the lock that such a git holds is taken for it while it is young.
#[cfg(not(target_os = "linux"))]
fn gits_with(record: &Record) -> Vec<i32> {
    let lock = beside(&record.work, OVER).join("index.lock");
    let age = std::fs::metadata(lock).and_then(|stat| stat.modified()).ok().and_then(|at| at.elapsed().ok());
    // 0 would be our own group to `kill`; no pid is above this one.
    if age.is_some_and(|age| age < ORPHAN_LIMIT) { vec![i32::MAX] } else { Vec::new() }
}
