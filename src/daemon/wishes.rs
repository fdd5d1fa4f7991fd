//! Reading what is wished: all of it once, then only what a new commit changed. Keeps what is needed to tell the board
//! news, and which files cannot be used and why.

use crate::decide::event::{Concluded, WishNews};
use crate::domain::task::{Invalid, Wish};
use crate::domain::{Oid, TaskPath};
use crate::git::state_repo::{Content, FileKind, StateError, StateRepo};
use crate::text::state_file;
use crate::text::task_file::{self, EntryKind, FileEntry, Place};
use std::collections::{BTreeMap, BTreeSet};

/// What was read so far.
#[derive(Default)]
pub(super) struct WishReader {
    read: Option<Oid>,
    known: BTreeSet<TaskPath>,
    invalid: BTreeMap<String, Vec<Invalid>>,
    /// Faults of files that are only in the person's folder; they were not taken in.
    pub folder_invalid: BTreeMap<String, Vec<Invalid>>,
    told: Vec<Invalid>,
}

impl WishReader {
    /// How many tasks there are.
    pub(super) fn tasks(&self) -> usize {
        self.known.len()
    }

    /// The news since the last reading; `None` when there is none. `whole` reads everything afresh.
    pub(super) fn read(&mut self, state: &StateRepo, whole: bool) -> Result<Option<WishNews>, StateError> {
        let Some(tip) = state.tip()? else { return Ok(Some(WishNews { whole: true, ..WishNews::default() })) };
        let news = match &self.read {
            Some(old) if !whole && *old == tip => WishNews::default(),
            Some(old) if !whole => {
                let old = old.clone();
                self.changed(state, &old, &tip)?
            }
            _ => self.everything(state, &tip)?,
        };
        self.read = Some(tip);
        let mut news = news;
        news.invalid = self.invalid.values().chain(self.folder_invalid.values()).flatten().cloned().collect();
        let quiet = !news.whole && news.wishes.is_empty() && news.concluded.is_empty() && news.invalid == self.told;
        self.told.clone_from(&news.invalid);
        Ok((!quiet).then_some(news))
    }

    fn everything(&mut self, state: &StateRepo, tip: &Oid) -> Result<WishNews, StateError> {
        let mut files = Vec::new();
        let mut concluded = BTreeMap::new();
        for file in state.read_tasks(tip, |kind| matches!(kind, FileKind::Wish | FileKind::State))? {
            let file = file?;
            match file.kind {
                FileKind::State => {
                    if let (Some(path), Content::Bytes(bytes)) = (path_of(&file.folder), &file.content) {
                        concluded.extend(conclusion(bytes).map(|c| (path, c)));
                    }
                }
                FileKind::Wish | FileKind::Log | FileKind::Board | FileKind::Other => {
                    let mut path = file.folder;
                    path.extend_from_slice(b"/README.md");
                    files.push((path, file.content));
                }
            }
        }
        let entries = files.iter().map(|(path, content)| (path.as_slice(), entry(content)));
        let set = task_file::read_all(entries);
        self.known = set.wishes.keys().cloned().collect();
        self.invalid.clear();
        for one in set.invalid {
            self.invalid.entry(one.place.clone()).or_default().push(one);
        }
        let wishes = set.wishes.into_iter().map(|(path, wish)| (path, Some(wish))).collect();
        Ok(WishNews { whole: true, wishes, invalid: vec![], concluded })
    }

    fn changed(&mut self, state: &StateRepo, old: &Oid, new: &Oid) -> Result<WishNews, StateError> {
        let mut news = WishNews::default();
        let mut changed: Vec<Vec<u8>> = Vec::new();
        for path in state.changed_since(Some(old), new)?.into_iter().filter(|path| path.starts_with(b"tasks/")) {
            match FileKind::of(&path) {
                FileKind::Wish => changed.push(path),
                // Somebody else may have concluded what waits here.
                FileKind::State => {
                    let task = path.strip_prefix(b"tasks/").and_then(|p| path_of(p.strip_suffix(b"/state.json")?));
                    news.concluded.extend(task.and_then(|task| self.conclusion_of(state, new, &task)));
                }
                FileKind::Log | FileKind::Board | FileKind::Other => {}
            }
        }
        // First which there are, then what they say: new tasks may name each other.
        let mut read: Vec<(Vec<u8>, Option<Content>)> = Vec::new();
        for path in changed {
            let content = state.read_file(new, &path)?;
            if let (Some(task), Some(Content::Bytes(_))) = (task_of(&path), &content) {
                self.known.insert(task);
            }
            read.push((path, content));
        }
        for (path, content) in read {
            let place = crate::domain::safe::bytes(&path);
            self.invalid.remove(&place);
            match (task_of(&path), content) {
                (Some(task), None) => {
                    self.known.remove(&task);
                    news.wishes.insert(task, None);
                }
                (Some(task), Some(Content::Bytes(bytes))) => {
                    let wish = self.one(&place, &task, &bytes);
                    if wish.is_none() {
                        self.known.remove(&task);
                    }
                    news.concluded.extend(self.conclusion_of(state, new, &task));
                    news.wishes.insert(task, wish);
                }
                (task, Some(other)) => {
                    let set = task_file::read_all([(path.strip_prefix(b"tasks/").unwrap_or(&path), entry(&other))]);
                    self.invalid.insert(place, set.invalid);
                    if let Some(task) = task {
                        self.known.remove(&task);
                        news.wishes.insert(task, None);
                    }
                }
                (None, None) => {}
            }
        }
        Ok(news)
    }

    fn conclusion_of(&self, state: &StateRepo, tip: &Oid, task: &TaskPath) -> Option<(TaskPath, Concluded)> {
        match state.read_file(tip, format!("tasks/{task}/state.json").as_bytes()) {
            Ok(Some(Content::Bytes(bytes))) => conclusion(&bytes).map(|c| (task.clone(), c)),
            _ => None,
        }
    }

    fn one(&mut self, place: &str, task: &TaskPath, bytes: &[u8]) -> Option<Wish> {
        let exists = |path: &TaskPath| self.known.contains(path);
        match task_file::read(bytes, task, &exists) {
            Ok(wish) => Some(wish),
            Err(faults) => {
                self.invalid.insert(place.to_owned(), faults);
                None
            }
        }
    }

    /// Whether a file of the person's folder may be taken in, and whose it is. What is wrong with it is kept.
    pub(super) fn judge(&mut self, path: &[u8], bytes: &[u8]) -> Result<TaskPath, ()> {
        let place = crate::domain::safe::bytes(path);
        let Some(task) = task_of(path) else {
            let set = task_file::read_all([(
                path.strip_prefix(b"tasks/").unwrap_or(path),
                FileEntry { kind: EntryKind::Regular, bytes },
            )]);
            self.folder_invalid.insert(place, set.invalid);
            return Err(());
        };
        // References to tasks that are saved together with this one resolve when all are in.
        match task_file::read(bytes, &task, &|path| self.known.contains(path)) {
            Ok(_) => Ok(task),
            Err(faults) => {
                self.folder_invalid.insert(place, faults);
                Err(())
            }
        }
    }

    /// A file of the folder that was not even read.
    pub(super) fn refuse_folder_file(&mut self, path: &[u8], why: &str) {
        let place = crate::domain::safe::bytes(path);
        let one = Invalid { place: place.clone(), line: None, reason: why.to_owned() };
        self.folder_invalid.insert(place, vec![one]);
    }
}

/// `tasks/<path>/README.md` → the task's path.
fn task_of(path: &[u8]) -> Option<TaskPath> {
    match task_file::classify(path.strip_prefix(b"tasks/")?) {
        Place::Task(task) => Some(task),
        Place::Board | Place::Illegal(_) | Place::Other => None,
    }
}

fn path_of(folder: &[u8]) -> Option<TaskPath> {
    TaskPath::parse(std::str::from_utf8(folder).ok()?).ok()
}

fn entry(content: &Content) -> FileEntry<'_> {
    match content {
        Content::Bytes(bytes) => FileEntry { kind: EntryKind::Regular, bytes },
        Content::TooLarge(size) => FileEntry { kind: EntryKind::TooLarge { size: *size }, bytes: &[] },
        Content::NotAFile => FileEntry { kind: EntryKind::Symlink, bytes: &[] },
    }
}

/// A final state, as another board should take it.
fn conclusion(bytes: &[u8]) -> Option<Concluded> {
    let doc = state_file::read(bytes).ok()?;
    Some(Concluded { outcome: doc.outcome?, epoch: doc.epoch, retry: doc.observed.retry })
}
