//! All task files of one tree of the state repo. Names come as raw bytes and are judged before anything is made of
//! them; what cannot be taken is listed with its place, and the other tasks go on.

use super::{SIZE_MAX, read};
use crate::domain::TaskPath;
use crate::domain::safe;
use crate::domain::task::{Invalid, WishSet};
use std::collections::{BTreeMap, BTreeSet};

/// The file that makes a folder a task.
const README: &[u8] = b"README.md";
/// Below a task, the folder for what it produced; nothing in it is a task.
const ARTIFACTS: &[u8] = b"artifacts";

/// What an entry of the tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    Regular,
    Symlink,
    /// A submodule.
    Gitlink,
    /// A file that was not loaded for its size, in bytes.
    TooLarge {
        size: u64,
    },
}

/// One entry of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileEntry<'a> {
    pub kind: EntryKind,
    /// Content of a regular file; may be empty for files that `classify` does not call a task.
    pub bytes: &'a [u8],
}

/// What a path below `tasks/` stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The README of this task.
    Task(TaskPath),
    /// `tasks/README.md`, the board.
    Board,
    /// A README in a folder that can be no task.
    Illegal(Invalid),
    /// Everything else: states, logs, sub-boards, artifacts, leftovers of editors.
    Other,
}

/// Says what the raw `path`, relative to `tasks/`, stands for. Reads no content.
pub fn classify(path: &[u8]) -> Place {
    if path == README {
        return Place::Board;
    }
    let Some(folder) = path.strip_suffix(README).and_then(|rest| rest.strip_suffix(b"/")) else { return Place::Other };
    if is_artifact(folder) {
        return Place::Other;
    }
    let place = safe::bytes(folder);
    let Ok(name) = std::str::from_utf8(folder) else {
        return Place::Illegal(Invalid { place, line: None, reason: "the name is not UTF-8".to_owned() });
    };
    match TaskPath::parse(name) {
        Ok(task) => Place::Task(task),
        Err(error) => Place::Illegal(Invalid { place, line: None, reason: safe::line(&error.to_string()) }),
    }
}

/// Reads every task of a tree given as raw paths relative to `tasks/`. Symbolic links and submodules are refused
/// wherever they stand, and never followed; places that are no task path are shown escaped (`safe::bytes`).
pub fn read_all<'a>(entries: impl IntoIterator<Item = (&'a [u8], FileEntry<'a>)>) -> WishSet {
    let mut set = WishSet::default();
    let mut files: BTreeMap<TaskPath, FileEntry<'a>> = BTreeMap::new();
    let mut doubled = BTreeSet::new();
    for (path, entry) in entries {
        let link = matches!(entry.kind, EntryKind::Symlink | EntryKind::Gitlink);
        match classify(path) {
            Place::Task(task) => {
                if files.insert(task.clone(), entry).is_some() {
                    doubled.insert(task);
                }
            }
            Place::Illegal(invalid) => set.invalid.push(invalid),
            Place::Board | Place::Other if link && !is_artifact(path) => {
                set.invalid.push(Invalid { place: safe::bytes(path), line: None, reason: link_reason(entry.kind) });
            }
            Place::Board | Place::Other => {}
        }
    }
    let exists = |path: &TaskPath| files.contains_key(path);
    for (path, entry) in &files {
        let refuse = |reason| vec![Invalid { place: path.to_string(), line: None, reason }];
        let wish = match entry.kind {
            _ if doubled.contains(path) => Err(refuse("two files of this name in one folder".to_owned())),
            EntryKind::Regular => read(entry.bytes, path, &exists),
            EntryKind::Symlink | EntryKind::Gitlink => Err(refuse(link_reason(entry.kind))),
            EntryKind::TooLarge { size } => {
                Err(refuse(format!("{size} bytes are more than the {SIZE_MAX} that a task file may have")))
            }
        };
        match wish {
            Ok(wish) => {
                set.wishes.insert(path.clone(), wish);
            }
            Err(invalid) => set.invalid.extend(invalid),
        }
    }
    set.invalid.sort_by(|a, b| (&a.place, a.line, &a.reason).cmp(&(&b.place, b.line, &b.reason)));
    set
}

/// In (or itself) the artifacts folder of a task.
fn is_artifact(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').skip(1).any(|part| part == ARTIFACTS)
}

fn link_reason(kind: EntryKind) -> String {
    let what = if kind == EntryKind::Gitlink { "a submodule" } else { "a symbolic link" };
    format!("{what}, which is never followed below tasks/")
}
