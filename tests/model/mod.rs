//! What simulated nights and stories both stand on: the disk that rows are saved to, and the edit of a wish.

use overnight::decide::board::{Changes, Night};
use overnight::decide::event::{Concluded, WishEdit};
use overnight::decide::{Board, Project, Task};
use overnight::domain::task::{Wish, WishStatus, WishVerb};
use overnight::domain::{ProjectId, TaskId};
use std::collections::BTreeMap;

/// Rows as values; they go through their written form when they are loaded, which is when it matters.
#[derive(Default)]
pub struct Disk {
    pub tasks: BTreeMap<TaskId, Task>,
    pub ended: BTreeMap<TaskId, Concluded>,
    pub projects: BTreeMap<ProjectId, Project>,
    pub paused: bool,
    pub night: Option<Night>,
}

impl Disk {
    pub fn save(&mut self, changes: Changes<'_>) {
        for (id, task) in changes.tasks {
            match task {
                Some(task) => drop(self.tasks.insert(id.clone(), task.clone())),
                None => drop(self.tasks.remove(id)),
            }
        }
        for (id, ended, _) in changes.ended {
            match ended {
                Some(one) => drop(self.ended.insert(id.clone(), one.clone())),
                None => drop(self.ended.remove(id)),
            }
        }
        for (id, project) in changes.projects {
            if let Some(project) = project {
                self.projects.insert(id.clone(), project.clone());
            }
        }
        if let Some(paused) = changes.paused {
            self.paused = paused;
        }
        if let Some(night) = changes.night {
            self.night = night.clone();
        }
    }

    /// The board as a new process finds it.
    pub fn load(&self) -> Board {
        Board::load(
            self.tasks.values().map(loaded),
            self.ended.iter().map(|(id, one)| (id.clone(), loaded(one))),
            self.projects.iter().map(|(id, project)| (id.clone(), loaded(project))),
            self.paused,
            self.night.clone(),
        )
    }
}

/// A row as it comes back from disk.
pub fn loaded<T: serde::Serialize + serde::de::DeserializeOwned>(row: &T) -> T {
    serde_json::from_str(&serde_json::to_string(row).unwrap()).unwrap()
}

/// Does to a task's file what a verb asks for.
pub fn edit(wish: &mut Wish, edit: &WishEdit, retry: u32) {
    match edit {
        WishEdit::Abort => wish.wish = Some(WishVerb::Abort),
        WishEdit::Retry | WishEdit::Answer(_) => (wish.retry, wish.wish) = (retry, None),
        WishEdit::Approve => wish.approved = Some(retry),
        WishEdit::Enqueue => wish.status = WishStatus::Queued,
        WishEdit::Priority(n) => wish.priority = *n,
        WishEdit::Create { text } => {
            *wish = Wish { title: text.clone(), status: WishStatus::Queued, ..Wish::default() };
        }
    }
}
