//! Reading trees: the files below `tasks/` one by one, one entry by its path, and where two trees differ. Trees come from
//! other people, so depth, number and size are bounded.

use super::state_repo::{Content, Doing as _, FILE_LIMIT, FileKind, Result, StateError, TaskFile, to_gix};
use crate::domain::Oid;
use gix::bstr::{BStr, ByteSlice as _};
use gix::objs::tree::{EntryKind, EntryMode, EntryRef};

/// A tree with more entries below `tasks/` is not read to its end.
pub(super) const ENTRY_LIMIT: usize = 4_000_000;
/// Folders below this depth are not entered: no legal task path is that deep.
const DEPTH_LIMIT: usize = 128;

/// Reads the files below `tasks/` one by one; made by [`StateRepo::read_tasks`].
pub struct TaskFiles {
    repo: gix::Repository,
    want: fn(FileKind) -> bool,
    /// What is still to be looked at, the next at the end.
    todo: Vec<Todo>,
    seen: usize,
}

struct Todo {
    path: Vec<u8>,
    mode: EntryMode,
    id: gix::ObjectId,
    depth: usize,
}

impl Iterator for TaskFiles {
    type Item = Result<TaskFile>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(todo) = self.todo.pop() {
            if todo.mode.is_tree() {
                if let Err(e) = self.enter(&todo) {
                    self.todo.clear();
                    return Some(Err(e));
                }
                continue;
            }
            let cut = todo.path.rfind_byte(b'/');
            let kind = FileKind::of(&[b"tasks/", todo.path.as_slice()].concat());
            if (self.want)(kind) {
                let folder = todo.path[..cut.unwrap_or(0)].to_vec();
                let content = load(&self.repo, todo.mode, todo.id);
                return Some(content.map(|content| TaskFile { folder, kind, content }));
            }
        }
        None
    }
}

impl TaskFiles {
    /// Over the folder `tasks` of a root tree.
    pub(super) fn new(repo: gix::Repository, root: gix::ObjectId, want: fn(FileKind) -> bool) -> Result<Self> {
        let mut files = Self { repo, want, todo: Vec::new(), seen: 0 };
        if let Some((mode, id)) = entry_at(&files.repo, root, b"tasks")?
            && mode.is_tree()
        {
            files.todo.push(Todo { path: Vec::new(), mode, id, depth: 0 });
        }
        Ok(files)
    }

    fn enter(&mut self, folder: &Todo) -> Result<()> {
        if folder.depth >= DEPTH_LIMIT {
            return Ok(());
        }
        let tree = self.repo.find_object(folder.id).doing("read a tree")?;
        let from = self.todo.len();
        for entry in gix::objs::TreeRefIter::from_bytes(&tree.data, folder.id.kind()) {
            let entry = entry.doing("read a tree")?;
            let mut path = folder.path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(entry.filename);
            self.todo.push(Todo { path, mode: entry.mode, id: entry.oid.into(), depth: folder.depth + 1 });
        }
        self.seen += self.todo.len() - from;
        if self.seen > ENTRY_LIMIT {
            return Err(StateError::TooMany);
        }
        self.todo[from..].reverse();
        Ok(())
    }
}

/// One path at which two trees differ: mode and object before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Differs {
    pub(super) path: Vec<u8>,
    pub(super) old: Option<(EntryMode, gix::ObjectId)>,
    pub(super) new: Option<(EntryMode, gix::ObjectId)>,
}

/// The files at which two trees differ; equal folders are not entered.
pub(super) fn tree_diff(
    repo: &gix::Repository,
    old: Option<gix::ObjectId>,
    new: Option<gix::ObjectId>,
) -> Result<Vec<Differs>> {
    let mut found = Vec::new();
    let mut todo = vec![(Vec::new(), old, new)];
    while let Some((at, old, new)) = todo.pop() {
        if old == new {
            continue;
        }
        let read = |id: Option<gix::ObjectId>| id.map(|id| repo.find_object(id).doing("read a tree")).transpose();
        let (old, new) = (read(old)?, read(new)?);
        let entries = |tree: &Option<gix::Object<'_>>| -> Result<Vec<(Vec<u8>, EntryMode, gix::ObjectId)>> {
            let Some(tree) = tree else { return Ok(Vec::new()) };
            gix::objs::TreeRefIter::from_bytes(&tree.data, tree.id.kind())
                .map(|e| e.map(|e| (key_of(&e), e.mode, e.oid.into())))
                .collect::<std::result::Result<_, _>>()
                .doing("read a tree")
        };
        let (old, new) = (entries(&old)?, entries(&new)?);
        let (mut i, mut j) = (0, 0);
        while i < old.len() || j < new.len() {
            let order = match (old.get(i), new.get(j)) {
                (Some(a), Some(b)) => a.0.cmp(&b.0),
                (Some(_), None) => std::cmp::Ordering::Less,
                _ => std::cmp::Ordering::Greater,
            };
            let a = order.is_le().then(|| &old[i]);
            let b = order.is_ge().then(|| &new[j]);
            i += usize::from(a.is_some());
            j += usize::from(b.is_some());
            if a.map(|a| (a.1, a.2)) == b.map(|b| (b.1, b.2)) {
                continue;
            }
            let Some(key) = a.or(b).map(|e| &e.0) else { continue };
            let mut path: Vec<u8> = at.clone();
            path.extend_from_slice(key);
            if key.ends_with(b"/") {
                todo.push((path, a.map(|e| e.2), b.map(|e| e.2)));
            } else {
                found.push(Differs { path, old: a.map(|e| (e.1, e.2)), new: b.map(|e| (e.1, e.2)) });
            }
        }
    }
    Ok(found)
}

/// A tree entry's name as git sorts it: folders end in `/`, so a file and a folder of one name are two things.
fn key_of(entry: &EntryRef<'_>) -> Vec<u8> {
    let mut key = entry.filename.to_vec();
    if entry.mode.is_tree() {
        key.push(b'/');
    }
    key
}

/// Mode and object at `path` in the tree `tree`.
pub(super) fn entry_at(
    repo: &gix::Repository,
    tree: gix::ObjectId,
    path: &[u8],
) -> Result<Option<(EntryMode, gix::ObjectId)>> {
    let mut at = (EntryMode::from(EntryKind::Tree), tree);
    for part in path.split(|b| *b == b'/') {
        if !at.0.is_tree() {
            return Ok(None);
        }
        let tree = repo.find_object(at.1).doing("read a tree")?;
        let mut found = None;
        for entry in gix::objs::TreeRefIter::from_bytes(&tree.data, at.1.kind()) {
            let entry = entry.doing("read a tree")?;
            if entry.filename == BStr::new(part) {
                found = Some((entry.mode, entry.oid.to_owned()));
                break;
            }
        }
        match found {
            Some(next) => at = next,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

pub(super) fn load(repo: &gix::Repository, mode: EntryMode, id: gix::ObjectId) -> Result<Content> {
    if !mode.is_blob() {
        return Ok(Content::NotAFile);
    }
    let size = repo.find_header(id).doing("read a file's size")?.size();
    if size > FILE_LIMIT {
        return Ok(Content::TooLarge(size));
    }
    let mut blob = repo.find_object(id).doing("read a file")?;
    Ok(Content::Bytes(std::mem::take(&mut blob.data)))
}

/// The tree of a commit.
pub(super) fn tree_of(repo: &gix::Repository, commit: &Oid) -> Result<gix::ObjectId> {
    let commit = repo.find_commit(to_gix(commit)?).doing("read a commit")?;
    Ok(commit.tree_id().doing("read a commit")?.detach())
}

pub(super) fn is_ancestor(repo: &gix::Repository, old: gix::ObjectId, new: gix::ObjectId) -> Result<bool> {
    if old == new {
        return Ok(true);
    }
    if !repo.has_object(old) || !repo.has_object(new) {
        return Ok(false);
    }
    let base = repo.merge_base(old, new).doing("look for a common ancestor")?;
    Ok(base.is_some_and(|base| base == old))
}
