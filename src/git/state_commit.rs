//! Writing to the state repo in process: a list of changes becomes blobs, the trees above them, and one commit. Only the
//! folders on the way to a change are read and written, so the cost does not grow with the number of tasks (as long as
//! no folder holds very many). What counts is synced: git and gix leave that to the system.

use super::state_repo::{Doing as _, Result, StateError, StateRepo, from_gix, to_gix};
use super::state_tree::{entry_at, tree_of};
use crate::domain::{Oid, Wall};
use gix::bstr::BString;
use gix::objs::tree::{EntryKind, EntryMode};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

/// One change to the tree of the state repo. Paths go from its top, with `/` between the parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub path: Vec<u8>,
    pub what: Edit,
}

/// What becomes of one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// The file has these bytes; an existing one keeps its mode.
    Write(Vec<u8>),
    /// The file has these bytes more at its end; it is made when there is none.
    Append(Vec<u8>),
    /// The file or folder is gone, as are folders left empty. Nothing there is fine.
    Delete,
    /// The file or folder is at this path instead, whatever its size; nothing may be there. Nothing to move is fine.
    MoveTo(Vec<u8>),
}

impl Change {
    /// The file at `path` has these bytes.
    pub fn write(path: impl Into<Vec<u8>>, bytes: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), what: Edit::Write(bytes.into()) }
    }

    /// The file at `path` has these bytes more.
    pub fn append(path: impl Into<Vec<u8>>, bytes: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), what: Edit::Append(bytes.into()) }
    }

    /// Nothing is at `path` any more.
    pub fn delete(path: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), what: Edit::Delete }
    }

    /// What is at `path` is at `to` instead.
    pub fn move_to(path: impl Into<Vec<u8>>, to: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), what: Edit::MoveTo(to.into()) }
    }
}

/// Author and committer, and the time the commit carries: equal input gives an equal commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    pub mail: String,
    pub at: Wall,
}

impl Identity {
    pub(super) fn signature(&self) -> gix::actor::Signature {
        // A line end or an angle bracket would break the commit's header.
        let clean = |text: &str| BString::from(text.replace(['\n', '\r', '\0', '<', '>'], " ").trim());
        gix::actor::Signature {
            name: clean(&self.name),
            email: clean(&self.mail),
            time: gix::date::Time { seconds: self.at.0.div_euclid(1000), offset: 0 },
        }
    }
}

impl StateRepo {
    /// Makes a commit on `base` with `changes`, in their order; gives `base` itself when they change nothing. Moves no
    /// ref, and syncs nothing: what moves a ref to it does.
    pub fn commit(&self, base: Option<&Oid>, changes: &[Change], message: &str, by: &Identity) -> Result<Oid> {
        self.commit_noting(base, changes, message, by, &mut Vec::new())
    }

    /// As `commit`, and names the objects that were written.
    pub(super) fn commit_noting(
        &self,
        base: Option<&Oid>,
        changes: &[Change],
        message: &str,
        by: &Identity,
        written: &mut Vec<gix::ObjectId>,
    ) -> Result<Oid> {
        let repo = self.repo.to_thread_local();
        let old = base.map(|base| tree_of(&repo, base)).transpose()?;
        let tree = edit_tree(&repo, old, changes, written)?;
        match base {
            Some(base) if old == Some(tree) => Ok(base.clone()),
            _ => {
                let parents = base.map(to_gix).transpose()?;
                let commit = new_commit(tree, parents, message.into(), by);
                put(&repo, &commit, written).map(from_gix)
            }
        }
    }

    /// Brings objects to disk before a ref may name them.
    pub(super) fn sync_objects(&self, ids: &[gix::ObjectId]) -> Result<()> {
        if !self.durable {
            return Ok(());
        }
        let objects = self.at.join("objects");
        let new = ids.iter().collect::<BTreeSet<_>>().into_iter().map(|id| {
            let hex = id.to_string();
            objects.join(&hex[..2]).join(&hex[2..])
        });
        super::sync::new_files(new, &objects).map_err(|(at, source)| StateError::Io {
            what: "sync an object",
            at,
            source,
        })
    }

    /// Brings refs to disk that were just moved or deleted.
    pub(super) fn sync_refs<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        if !self.durable {
            return Ok(());
        }
        let mut folders: BTreeSet<PathBuf> = BTreeSet::new();
        for name in names {
            let at = self.at.join(name);
            match super::sync::renamed(&at) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(StateError::Io { what: "sync a ref", at, source }),
            }
            folders.extend(at.parent().filter(|folder| folder.exists()).map(Path::to_owned));
        }
        folders.iter().try_for_each(|folder| sync_folder(folder))
    }
}

fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|source| StateError::Io {
        what: "sync a folder",
        at: folder.into(),
        source,
    })
}

pub(super) fn new_commit(
    tree: gix::ObjectId,
    parents: impl IntoIterator<Item = gix::ObjectId>,
    message: BString,
    by: &Identity,
) -> gix::objs::Commit {
    gix::objs::Commit {
        tree,
        parents: parents.into_iter().collect(),
        author: by.signature(),
        committer: by.signature(),
        encoding: None,
        message,
        extra_headers: Vec::new(),
    }
}

/// Writes an object and notes it.
pub(super) fn put(
    repo: &gix::Repository,
    object: impl gix::objs::WriteTo,
    written: &mut Vec<gix::ObjectId>,
) -> Result<gix::ObjectId> {
    let id = repo.write_object(object).doing("write an object")?.detach();
    written.push(id);
    Ok(id)
}

/// What is to happen below one folder.
#[derive(Default)]
struct Folder(BTreeMap<Vec<u8>, Node>);

enum Node {
    Folder(Folder),
    Leaf(Leaf),
}

enum Leaf {
    Write(Vec<u8>),
    Append(Vec<u8>),
    Delete,
    /// This object; `true` when a file there is replaced.
    Put(EntryMode, gix::ObjectId, bool),
}

/// A change that cannot stand beside those collected so far (one path is a part of the other's).
struct Clash(Leaf);

/// Applies `changes` to the tree `old` and writes the result.
pub(super) fn edit_tree(
    repo: &gix::Repository,
    old: Option<gix::ObjectId>,
    changes: &[Change],
    written: &mut Vec<gix::ObjectId>,
) -> Result<gix::ObjectId> {
    let mut tree = old;
    let mut todo = Folder::default();
    for change in changes {
        let mut leaves = Vec::new();
        match &change.what {
            Edit::Write(bytes) => leaves.push((&change.path, Leaf::Write(bytes.clone()))),
            Edit::Append(bytes) => leaves.push((&change.path, Leaf::Append(bytes.clone()))),
            Edit::Delete => leaves.push((&change.path, Leaf::Delete)),
            Edit::MoveTo(to) => {
                // What is moved is what the changes so far have made of it.
                tree = apply(repo, tree, std::mem::take(&mut todo), &mut Vec::new(), written)?;
                let found = tree.map(|tree| entry_at(repo, tree, &change.path)).transpose()?.flatten();
                if let Some((mode, id)) = found {
                    leaves.push((&change.path, Leaf::Delete));
                    leaves.push((to, Leaf::Put(mode, id, false)));
                }
            }
        }
        for (path, leaf) in leaves {
            let parts = checked_parts(path)?;
            if let Err(Clash(leaf)) = todo.add(&parts, leaf) {
                tree = apply(repo, tree, std::mem::take(&mut todo), &mut Vec::new(), written)?;
                todo = Folder::default();
                let _ = todo.add(&parts, leaf);
            }
        }
    }
    tree = apply(repo, tree, todo, &mut Vec::new(), written)?;
    match tree {
        Some(tree) => Ok(tree),
        None => put(repo, gix::objs::Tree { entries: Vec::new() }, written),
    }
}

/// Puts objects that exist already into the tree `old`, or takes entries out of it.
pub(super) fn put_entries(
    repo: &gix::Repository,
    old: Option<gix::ObjectId>,
    entries: impl IntoIterator<Item = (Vec<u8>, Option<(EntryMode, gix::ObjectId)>)>,
    written: &mut Vec<gix::ObjectId>,
) -> Result<gix::ObjectId> {
    // What goes makes room first: a folder may take the place of a file.
    let (gone, put_in): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(_, entry)| entry.is_none());
    let mut tree = old;
    for entries in [gone, put_in] {
        let mut todo = Folder::default();
        for (path, entry) in entries {
            let leaf = entry.map_or(Leaf::Delete, |(mode, id)| Leaf::Put(mode, id, true));
            if todo.add(&checked_parts(&path)?, leaf).is_err() {
                return Err(StateError::InTheWay(String::from_utf8_lossy(&path).into_owned()));
            }
        }
        tree = apply(repo, tree, todo, &mut Vec::new(), written)?;
    }
    match tree {
        Some(tree) => Ok(tree),
        None => put(repo, gix::objs::Tree { entries: Vec::new() }, written),
    }
}

/// The parts of a path that may be written.
fn checked_parts(path: &[u8]) -> Result<Vec<&[u8]>> {
    let parts: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
    let bad = |part: &&[u8]| {
        part.is_empty() || *part == b"." || *part == b".." || part.eq_ignore_ascii_case(b".git") || part.contains(&0)
    };
    if parts.iter().any(bad) {
        return Err(StateError::BadPath(String::from_utf8_lossy(path).into_owned()));
    }
    Ok(parts)
}

impl Folder {
    fn add(&mut self, parts: &[&[u8]], leaf: Leaf) -> std::result::Result<(), Clash> {
        let [first, rest @ ..] = parts else { return Ok(()) };
        if !rest.is_empty() {
            let node = self.0.entry(first.to_vec()).or_insert_with(|| Node::Folder(Self::default()));
            return match node {
                Node::Folder(below) => below.add(rest, leaf),
                Node::Leaf(_) => Err(Clash(leaf)),
            };
        }
        match (self.0.get_mut(*first), leaf) {
            (Some(Node::Folder(_)), leaf) => Err(Clash(leaf)),
            (Some(Node::Leaf(Leaf::Write(before) | Leaf::Append(before))), Leaf::Append(more)) => {
                before.extend_from_slice(&more);
                Ok(())
            }
            (Some(Node::Leaf(_)), leaf @ Leaf::Append(_)) => Err(Clash(leaf)),
            (_, leaf) => {
                self.0.insert(first.to_vec(), Node::Leaf(leaf));
                Ok(())
            }
        }
    }
}

/// Applies what is to happen below one folder to its tree; `None` is an empty folder.
fn apply(
    repo: &gix::Repository,
    old: Option<gix::ObjectId>,
    todo: Folder,
    at: &mut Vec<u8>,
    written: &mut Vec<gix::ObjectId>,
) -> Result<Option<gix::ObjectId>> {
    if todo.0.is_empty() {
        return Ok(old);
    }
    let data = old.map(|old| repo.find_object(old).doing("read a tree")).transpose()?;
    let (bytes, hash) = data.as_ref().map_or((&[][..], repo.object_hash()), |o| (&o.data[..], o.id.kind()));
    let mut entries = gix::objs::TreeRef::from_bytes(bytes, hash).doing("read a tree")?.entries;
    let mut fresh: Vec<(Vec<u8>, EntryMode, gix::ObjectId)> = Vec::new();
    let mut gone: Vec<usize> = Vec::new();
    for (name, node) in todo.0 {
        let found = position(&entries, &name);
        let is = found.map(|i| (entries[i].mode, entries[i].oid.to_owned()));
        let len = at.len();
        at.extend_from_slice(&name);
        let new = match node {
            Node::Folder(below) => {
                let tree = match is {
                    Some((mode, id)) if mode.is_tree() => Some(id),
                    None => None,
                    Some(_) if below.only_deletes() => {
                        at.truncate(len);
                        continue;
                    }
                    Some(_) => return Err(StateError::InTheWay(String::from_utf8_lossy(at).into_owned())),
                };
                at.push(b'/');
                apply(repo, tree, below, at, written)?.map(|id| (EntryKind::Tree.into(), id))
            }
            Node::Leaf(leaf) => leaf.entry(repo, is, at, written)?,
        };
        at.truncate(len);
        if new != is {
            gone.extend(found);
            fresh.extend(new.map(|(mode, id)| (name, mode, id)));
        }
    }
    if gone.is_empty() && fresh.is_empty() {
        return Ok(old);
    }
    gone.sort_unstable();
    for i in gone.into_iter().rev() {
        entries.remove(i);
    }
    entries.extend(fresh.iter().map(|(name, mode, id)| gix::objs::tree::EntryRef {
        mode: *mode,
        filename: name.as_slice().into(),
        oid: id,
    }));
    entries.sort();
    if entries.is_empty() {
        return Ok(None);
    }
    put(repo, gix::objs::TreeRef { entries }, written).map(Some)
}

impl Folder {
    fn only_deletes(&self) -> bool {
        self.0.values().all(|node| match node {
            Node::Folder(below) => below.only_deletes(),
            Node::Leaf(leaf) => matches!(leaf, Leaf::Delete),
        })
    }
}

impl Leaf {
    fn entry(
        self,
        repo: &gix::Repository,
        is: Option<(EntryMode, gix::ObjectId)>,
        at: &[u8],
        written: &mut Vec<gix::ObjectId>,
    ) -> Result<Option<(EntryMode, gix::ObjectId)>> {
        let mut blob = |bytes: &[u8]| put(repo, gix::objs::BlobRef { data: bytes }, written);
        let in_the_way = || StateError::InTheWay(String::from_utf8_lossy(at).into_owned());
        match (self, is) {
            (Self::Delete, _) => Ok(None),
            (Self::Put(mode, id, _), None) => Ok(Some((mode, id))),
            (Self::Put(mode, id, true), Some((was, _))) if !was.is_tree() && !mode.is_tree() => Ok(Some((mode, id))),
            (Self::Write(bytes), Some((mode, _))) if mode.is_blob() => Ok(Some((mode, blob(&bytes)?))),
            (Self::Append(more), Some((mode, id))) if mode.is_blob() => {
                let mut bytes = repo.find_object(id).doing("read a file")?.detach().data;
                bytes.extend_from_slice(&more);
                Ok(Some((mode, blob(&bytes)?)))
            }
            (Self::Write(bytes) | Self::Append(bytes), None) => Ok(Some((EntryKind::Blob.into(), blob(&bytes)?))),
            _ => Err(in_the_way()),
        }
    }
}

/// Where `name` is among a tree's entries, which are sorted as if folders ended in `/`.
fn position(entries: &[gix::objs::tree::EntryRef<'_>], name: &[u8]) -> Option<usize> {
    [false, true].into_iter().find_map(|folder| {
        let wanted = name.iter().copied().chain(folder.then_some(b'/'));
        let order = |e: &gix::objs::tree::EntryRef<'_>| {
            let has = e.filename.iter().copied().chain(e.mode.is_tree().then_some(b'/'));
            has.cmp(wanted.clone())
        };
        entries.binary_search_by(order).ok()
    })
}
