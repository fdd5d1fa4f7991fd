//! The person's folder as a peer, beside the state worker: commits and saved task files go from it into our clone, wishes
//! are read from there, and the folder is brought up to what we have.

#![expect(clippy::disallowed_methods, reason = "how long the folder is behind concerns this worker alone")]

use super::project;
use super::records;
use super::state_worker::StateWorker;
use crate::decide::Event;
use crate::domain::{Oid, TaskPath};
use crate::git::folder::Folder;
use crate::git::folder_update::{BroughtUp, Imported};
use crate::git::state_absorb::Peer;
use crate::git::state_commit::Change;
use crate::git::state_publish::{Batch, Pending, PublishOutcome};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use tokio::time::Instant;

/// How often refused files are judged anew in one look; each time brings one more step of a chain of references.
const ROUNDS: usize = 20;

/// A valid task file as it is saved in the folder.
struct Saved {
    task: TaskPath,
    path: Vec<u8>,
    bytes: Vec<u8>,
}

/// What is to be done with a saved file.
#[derive(PartialEq)]
enum Import {
    Write,
    /// It stands there, or was taken in already.
    Known,
    /// Both sides changed it.
    Clash,
}

/// Tells one text from another.
pub(super) type Digest = [u8; 32];

fn digest(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

impl StateWorker {
    /// Takes in what the person's folder has, and reads the wishes.
    pub(super) async fn look(&mut self, whole: bool) {
        self.take_in_commits().await;
        self.import_edits(None).await;
        self.read_wishes(whole);
        self.look_at_refused().await;
    }

    /// Takes in the person's commits and these files alone: a look at all files takes as long as there are many.
    pub(super) async fn look_at(&mut self, files: BTreeSet<Vec<u8>>) {
        self.take_in_commits().await;
        // A branch that is back may make up for a look that was owed.
        if !files.is_empty() || self.skipped {
            self.import_edits(Some(&files)).await;
        }
        self.read_wishes(false);
        self.look_at_refused().await;
    }

    /// A file may name a task that was saved with it, or after it: as long as there are new tasks, those that were refused
    /// are judged once more.
    async fn look_at_refused(&mut self) {
        let mut tasks = self.reader.tasks();
        for _ in 0..ROUNDS {
            let files: BTreeSet<_> =
                self.reader.folder_invalid.keys().map(|place| place.clone().into_bytes()).collect();
            if files.is_empty() || std::mem::replace(&mut self.tasks, tasks) == tasks {
                return;
            }
            self.import_edits(Some(&files)).await;
            self.read_wishes(false);
            tasks = self.reader.tasks();
        }
    }

    /// Tells the board what is wished now. The folder has to follow.
    pub(super) fn read_wishes(&mut self, whole: bool) {
        let ctx = self.ctx.clone();
        match self.reader.read(&ctx.state, whole) {
            Ok(Some(news)) => {
                let _ = self.events.send(Event::Wishes { project: ctx.id.clone(), news });
            }
            Ok(None) => {}
            Err(e) => tracing::error!(project = %ctx.id, "the state repo could not be read: {}", super::chain(&e)),
        }
        self.behind.get_or_insert_with(Instant::now);
    }

    /// Commits of the person's folder go into our clone, and from there to the authority.
    async fn take_in_commits(&mut self) {
        let ctx = self.ctx.clone();
        let Some(folder) = &ctx.folder else { return };
        let tip = project::tip(&ctx.state);
        match folder.status(tip.as_ref()) {
            Ok(status) if status.busy.is_none() && status.branch.as_deref() == Some("refs/heads/main") => {
                let known = match (&status.head, &tip) {
                    (Some(head), Some(tip)) => ctx.state.is_ancestor(head, tip).unwrap_or(false),
                    (None, _) => true,
                    (Some(_), None) => false,
                };
                if !known && let Ok(theirs) = ctx.state.fetch_folder(folder.path(), "refs/heads/main").await {
                    self.take_in(&theirs, Peer::Folder).await;
                    self.push_taken_in().await;
                }
            }
            Ok(_) => {}
            Err(e) => {
                tracing::warn!(project = %ctx.id, "the state folder could not be looked at: {}", super::chain(&e))
            }
        }
    }

    /// What was taken in goes to the remote, if there is one.
    async fn push_taken_in(&mut self) {
        if self.ctx.state.remote().is_none() {
            return;
        }
        let by = self.ctx.identity();
        let build = |_: Option<&Oid>, _: &[usize]| Ok(Batch::default());
        if let Ok(PublishOutcome::Failed(trouble) | PublishOutcome::Unknown(trouble, _)) =
            self.ctx.state.publish(&[], &by, Pending::default(), build).await
        {
            self.note_trouble(&trouble.text);
        }
    }

    /// Valid task files that are saved in the folder and not committed there.
    /// All, or these only.
    async fn import_edits(&mut self, files: Option<&BTreeSet<Vec<u8>>>) {
        let ctx = self.ctx.clone();
        let Some(folder) = &ctx.folder else { return };
        let Some(head) = self.stands_at(folder) else {
            self.skipped = true;
            return;
        };
        // What was passed over meanwhile is looked at now.
        let files = if std::mem::take(&mut self.skipped) { None } else { files };
        let scan = match folder.scan_wishes(files.map(|f| f.iter().cloned().collect::<Vec<_>>()).as_deref()) {
            Ok(scan) => scan,
            Err(e) => {
                tracing::warn!(project = %ctx.id, "the state folder could not be read: {}", super::chain(&e));
                return;
            }
        };
        self.forget(files);
        for (path, why) in &scan.skipped {
            self.reader.refuse_folder_file(path, why);
        }
        let mut saved = Vec::new();
        for edit in scan.edits {
            if let Ok(task) = self.reader.judge(&edit.path, &edit.bytes) {
                self.imported.push(Imported { path: edit.path.clone(), blob: edit.blob });
                saved.push(Saved { task, path: edit.path, bytes: edit.bytes });
            }
        }
        self.put_in(head.as_ref(), saved).await;
    }

    /// What was known of these files, or of all, is found anew.
    fn forget(&mut self, files: Option<&BTreeSet<Vec<u8>>>) {
        let Some(files) = files else {
            self.reader.folder_invalid.clear();
            self.imported.clear();
            return;
        };
        for file in files {
            self.reader.folder_invalid.remove(&crate::domain::safe::bytes(file));
        }
        self.imported.retain(|i| !files.contains(&i.path));
    }

    /// The commit that the folder stands at, where its files can be compared with ours: our branch, nothing half done,
    /// and no commit that we have not. `Some(None)` before the first commit.
    fn stands_at(&self, folder: &Folder) -> Option<Option<Oid>> {
        let status = folder.status(None).ok()?;
        if status.busy.is_some() || status.branch.as_deref() != Some("refs/heads/main") {
            return None;
        }
        let Some(head) = status.head else { return Some(None) };
        let tip = project::tip(&self.ctx.state)?;
        self.ctx.state.is_ancestor(&head, &tip).unwrap_or(false).then_some(Some(head))
    }

    /// Writes saved files to our tip, each as far as it is based on what stands there.
    async fn put_in(&mut self, head: Option<&Oid>, saved: Vec<Saved>) {
        let ctx = self.ctx.clone();
        let tip = project::tip(&ctx.state);
        // Without news there is nothing to publish, and no commit of others to fetch for it.
        if !saved.iter().any(|one| self.judge_saved(head, tip.as_ref(), one) == Import::Write) {
            return self.note_clashes(head, tip.as_ref(), &saved);
        }
        let by = ctx.identity();
        let mut written: Vec<(Vec<u8>, Digest)> = Vec::new();
        let build = |tip: Option<&Oid>, _: &[usize]| {
            // Asked anew for every tip: another host may have been faster.
            let new: Vec<&Saved> =
                saved.iter().filter(|one| self.judge_saved(head, tip, one) == Import::Write).collect();
            written = new.iter().map(|one| (one.path.clone(), digest(&one.bytes))).collect();
            let names: Vec<String> = new.iter().map(|one| one.task.to_string()).collect();
            let changes = new.iter().map(|one| Change::write(one.path.clone(), one.bytes.clone())).collect();
            Ok(Batch { changes, message: format!("Take in {} as saved in the folder", names.join(", ")) })
        };
        match ctx.state.publish(&[], &by, Pending::default(), build).await {
            Ok(PublishOutcome::Published(_)) => self.taken.extend(written),
            Ok(PublishOutcome::Failed(trouble) | PublishOutcome::Unknown(trouble, _)) => {
                self.note_trouble(&trouble.text)
            }
            Ok(PublishOutcome::GaveUp { .. }) => {}
            Err(e) => tracing::error!(project = %ctx.id, "task files could not be taken in: {}", super::chain(&e)),
        }
        self.note_clashes(head, project::tip(&ctx.state).as_ref(), &saved);
    }

    /// Whether a saved file may replace what stands at `tip`. It may where that is what the person had before them: the
    /// text at the folder's own commit, or the text that was taken in from there last. Else a change by somebody else
    /// (another machine, or an edit made by a verb) would be taken back without a word.
    fn judge_saved(&self, head: Option<&Oid>, tip: Option<&Oid>, one: &Saved) -> Import {
        let state = &self.ctx.state;
        let there = tip.and_then(|tip| records::file_at(state, tip, &one.path));
        let taken = self.taken.get(&one.path);
        if there.as_ref() == Some(&one.bytes) || taken == Some(&digest(&one.bytes)) {
            return Import::Known;
        }
        let base = || head.and_then(|head| records::file_at(state, head, &one.path));
        let ours = there.as_ref().is_some_and(|there| taken == Some(&digest(there)));
        if ours || base() == there { Import::Write } else { Import::Clash }
    }

    /// Files that were left are said once, for as long as they are.
    fn note_clashes(&mut self, head: Option<&Oid>, tip: Option<&Oid>, saved: &[Saved]) {
        for one in saved {
            if self.judge_saved(head, tip, one) != Import::Clash {
                self.clashes.remove(&one.path);
            } else if self.clashes.insert(one.path.clone()) {
                let file = crate::domain::safe::bytes(&one.path);
                tracing::warn!(
                    project = %self.ctx.id,
                    "{file} was changed elsewhere since the state folder was brought up: what is saved there is not taken \
                     in. Commit it there, and neither is lost"
                );
            }
        }
    }

    /// Brings the person's folder up to what we have.
    pub(super) async fn bring_up(&mut self) {
        self.behind = None;
        let ctx = self.ctx.clone();
        let (Some(folder), Some(tip)) = (&ctx.folder, project::tip(&ctx.state)) else { return };
        let said = match folder.bring_up(&ctx.state, &tip, &self.imported).await {
            Ok(BroughtUp::LeftAlone(why)) => Some(why.to_string()),
            Ok(BroughtUp::UpToDate | BroughtUp::Moved { .. }) => {
                // The folder stands at our tip: what is saved there from now on is based on it.
                self.taken.clear();
                self.clashes.clear();
                None
            }
            Err(e) => Some(super::chain(&e)),
        };
        if said != *project::lock(&ctx.left_alone) {
            if let Some(why) = &said {
                tracing::warn!(project = %ctx.id, "the state folder is left as it is for now: {}", crate::domain::safe::line(why));
            }
            *project::lock(&ctx.left_alone) = said;
        }
    }
}
