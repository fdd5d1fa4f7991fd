//! A person's folder after a kill in the middle of an update: the record in our data folder says what was under way, and
//! the index whether its files were all written. Then the branch follows; else the files go back to what they were.

use super::folder::{Folder, open};
use super::folder_update::{Record, There, random, remove, write_synced};
use super::state_repo::{Doing as _, Result, StateError, to_gix};
use super::state_tree::{Differs, tree_diff, tree_of};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

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
        if !self.lock_is(&record) {
            // A person removed the lock by hand, or it was never made.
            let before = record.copy.clone();
            record.token = format!("overnight {:016x}{:016x}", random(), random());
            if self.git_dir.join("index.lock").exists() {
                return Ok(false);
            }
            if !self.lock(&record)? {
                return Ok(false);
            }
            remove(&before)?;
        }
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
                    write_synced(&at, &old)?;
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
