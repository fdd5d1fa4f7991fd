//! The person's folder as a peer, beside the state worker: commits and saved task files go from it into our clone, wishes
//! are read from there, and the folder is brought up to what we have.

#![expect(clippy::disallowed_methods, reason = "how long the folder is behind concerns this worker alone")]

use super::project;
use super::records;
use super::state_worker::StateWorker;
use crate::decide::Event;
use crate::domain::Oid;
use crate::git::folder_update::{BroughtUp, Imported};
use crate::git::state_absorb::Peer;
use crate::git::state_commit::Change;
use crate::git::state_publish::{Batch, Pending, PublishOutcome};
use std::collections::BTreeSet;
use tokio::time::Instant;

/// How often refused files are judged anew in one look; each time brings one more step of a chain of references.
const ROUNDS: usize = 20;

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
        if !files.is_empty() {
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
        let scan = match folder.scan_wishes(files.map(|f| f.iter().cloned().collect::<Vec<_>>()).as_deref()) {
            Ok(scan) => scan,
            Err(e) => {
                tracing::warn!(project = %ctx.id, "the state folder could not be read: {}", super::chain(&e));
                return;
            }
        };
        let tip = project::tip(&ctx.state);
        let mut changes = Vec::new();
        let mut names = Vec::new();
        match files {
            None => {
                self.reader.folder_invalid.clear();
                self.imported.clear();
            }
            Some(files) => {
                files
                    .iter()
                    .for_each(|file| drop(self.reader.folder_invalid.remove(&crate::domain::safe::bytes(file))));
                self.imported.retain(|i| !files.contains(&i.path));
            }
        }
        for (path, why) in &scan.skipped {
            self.reader.refuse_folder_file(path, why);
        }
        for edit in scan.edits {
            if let Ok(task) = self.reader.judge(&edit.path, &edit.bytes) {
                let same = tip.as_ref().is_some_and(|tip| records::has(&ctx.state, tip, &edit.path, &edit.bytes));
                if !same {
                    changes.push(Change::write(edit.path.clone(), edit.bytes));
                    names.push(task.to_string());
                }
                self.imported.push(Imported { path: edit.path, blob: edit.blob });
            }
        }
        if !changes.is_empty() {
            let by = ctx.identity();
            let message = format!("Take in {} as saved in the folder", names.join(", "));
            let build = |_: Option<&Oid>, _: &[usize]| Ok(Batch { changes: changes.clone(), message: message.clone() });
            match ctx.state.publish(&[], &by, Pending::default(), build).await {
                Ok(PublishOutcome::Published(_)) => {}
                Ok(PublishOutcome::Failed(trouble) | PublishOutcome::Unknown(trouble, _)) => {
                    self.note_trouble(&trouble.text)
                }
                Ok(PublishOutcome::GaveUp { .. }) => {}
                Err(e) => tracing::error!(project = %ctx.id, "task files could not be taken in: {}", super::chain(&e)),
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
            Ok(_) => None,
            Err(e) => Some(super::chain(&e)),
        };
        if said != self.left_alone {
            if let Some(why) = &said {
                tracing::warn!(project = %ctx.id, "the state folder is left as it is for now: {}", crate::domain::safe::line(why));
            }
            self.left_alone = said;
        }
    }
}
