//! Objects and refs in process: what needs neither network nor worktree is read and written here with gix, without
//! starting git. A handle is opened for each operation (a tenth of a millisecond), so nothing is cached across changes
//! that others make to the repository.

#![expect(clippy::disallowed_methods, reason = "a lock of another git ends without telling us")]

use super::{Who, stale_locks};
use crate::domain::Oid;
use gix::bstr::{BString, ByteSlice as _};
use gix::refs::transaction::{Change, LogChange, PreviousValue, RefEdit, RefLog};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// A read or write of objects or refs that failed.
#[derive(Debug, thiserror::Error)]
#[error("could not {what}")]
pub struct OdbError {
    what: String,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

type Result<T> = std::result::Result<T, OdbError>;

trait Doing<T> {
    fn doing(self, what: &str) -> Result<T>;
}

impl<T, E: Into<Box<dyn std::error::Error + Send + Sync>>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| OdbError { what: what.to_owned(), source: e.into() })
    }
}

/// What a ref must hold for a change to be made.
#[derive(Debug, Clone, Copy)]
pub enum Expect<'a> {
    Absent,
    Is(&'a Oid),
}

/// How a compare-and-swap of a ref ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cas {
    Done,
    /// The ref held this instead; nothing was changed.
    Holds(Option<Oid>),
}

/// What became of a file between two trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Deleted,
    Modified,
    /// Only the executable bit.
    Mode,
    /// File, link or submodule became another of these.
    Type,
    /// Same content under another name, which is given.
    Renamed {
        from: Vec<u8>,
    },
}

/// One file of a difference. Paths are the bytes that git stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedFile {
    pub path: Vec<u8>,
    pub kind: ChangeKind,
    /// The new entry is a submodule (a commit of another repository).
    pub gitlink: bool,
}

/// A commit's parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitInfo {
    pub tree: Oid,
    pub parents: Vec<Oid>,
    pub message: String,
}

/// An opened repository. Not for keeping across an await.
pub struct Odb {
    repo: gix::Repository,
}

impl Odb {
    /// Opens exactly this git dir; of the configuration only the repository's own is read, no variable counts.
    pub fn open(git_dir: &Path) -> Result<Self> {
        let repo = gix::open_opts(git_dir, options().open_path_as_is(true).strict_config(false))
            .doing("open the repository")?;
        Ok(Self { repo })
    }

    /// The object that a ref leads to, symbolic refs followed.
    pub fn tip(&self, name: &str) -> Result<Option<Oid>> {
        match self.repo.try_find_reference(name).doing("read a ref")? {
            None => Ok(None),
            Some(mut r) => match r.follow_to_object() {
                Ok(id) => Ok(Some(oid(&id.detach()))),
                // A symbolic ref to a branch that is not born yet.
                Err(_) => Ok(None),
            },
        }
    }

    /// All refs below `prefix` that hold an object directly, by name.
    pub fn refs(&self, prefix: &str) -> Result<BTreeMap<BString, Oid>> {
        let platform = self.repo.references().doing("list refs")?;
        let mut out = BTreeMap::new();
        for r in platform.prefixed(prefix).doing("list refs")? {
            let r = r.doing("list refs")?;
            if let Some(id) = r.try_id() {
                out.insert(r.name().as_bstr().to_owned(), oid(&id.detach()));
            }
        }
        Ok(out)
    }

    /// Moves `name` to `new`, or deletes it for `None`, if it holds what is expected.
    pub fn swap(&self, name: &str, new: Option<&Oid>, expect: Expect<'_>, why: &str) -> Result<Cas> {
        let expected = match expect {
            Expect::Absent => PreviousValue::MustNotExist,
            Expect::Is(old) => PreviousValue::MustExistAndMatch(gix::refs::Target::Object(id(old)?)),
        };
        let change = match new {
            Some(new) => Change::Update {
                log: LogChange { mode: RefLog::AndReference, force_create_reflog: false, message: why.into() },
                expected,
                new: gix::refs::Target::Object(id(new)?),
            },
            None => Change::Delete { expected, log: RefLog::AndReference },
        };
        let name_full = name.try_into().doing("use a ref name")?;
        let edit = RefEdit { change, name: name_full, deref: false };
        let who = signature(&OURSELVES);
        let mut buf = gix::date::parse::TimeBuf::default();
        let mut last = None;
        // A lock held by an agent's git for a moment is no answer yet; one that a kill has left would be one for ever.
        for round in 0..20 {
            if round == 5 {
                let cleared = stale_locks::clear(self.repo.git_dir(), stale_locks::PATIENCE);
                cleared.doing("clear locks")?;
            }
            match self.repo.edit_references_as([edit.clone()], Some(who.to_ref(&mut buf))) {
                Ok(_) => return Ok(Cas::Done),
                Err(e) => last = Some(e),
            }
            let now = Self::open(self.repo.git_dir())?.tip(name)?;
            // An edit may fail when the ref has moved already: over its log, or a lock beside it.
            if matches!(expect, Expect::Is(old) if Some(old) != new) && new.is_some() && now.as_ref() == new {
                return Ok(Cas::Done);
            }
            let as_expected = match expect {
                Expect::Absent => now.is_none(),
                Expect::Is(old) => now.as_ref() == Some(old),
            };
            if !as_expected {
                return Ok(Cas::Holds(now));
            }
            std::thread::sleep(std::time::Duration::from_millis(25));
        }
        match last {
            Some(e) => Err(e).doing("move a ref"),
            None => Ok(Cas::Done),
        }
    }

    /// Writes a commit by `who` at the current time.
    pub fn commit(&self, tree: &Oid, parents: &[Oid], message: &str, who: &Who) -> Result<Oid> {
        let who = signature(who);
        let commit = gix::objs::Commit {
            message: message.into(),
            tree: id(tree)?,
            author: who.clone(),
            committer: who,
            encoding: None,
            parents: parents.iter().map(id).collect::<Result<_>>()?,
            extra_headers: Vec::new(),
        };
        Ok(oid(&self.repo.write_object(commit).doing("write a commit")?.detach()))
    }

    /// Tree, parents and message of a commit.
    pub fn info(&self, commit: &Oid) -> Result<CommitInfo> {
        let c = self.repo.find_commit(id(commit)?).doing("read a commit")?;
        Ok(CommitInfo {
            tree: oid(&c.tree_id().doing("read a commit")?.detach()),
            parents: c.parent_ids().map(|p| oid(&p.detach())).collect(),
            message: c.message_raw_sloppy().to_str_lossy().into_owned(),
        })
    }

    /// True where the object is in the repository.
    pub fn has(&self, object: &Oid) -> bool {
        id(object).is_ok_and(|i| self.repo.has_object(i))
    }

    /// True where the object exists and is a commit.
    pub fn is_commit(&self, object: &Oid) -> bool {
        id(object).is_ok_and(|i| self.repo.find_header(i).is_ok_and(|h| h.kind() == gix::object::Kind::Commit))
    }

    /// True where `old` is `new` or one of its ancestors.
    pub fn is_ancestor(&self, old: &Oid, new: &Oid) -> Result<bool> {
        if old == new {
            return Ok(true);
        }
        let old = id(old)?;
        let bases = self.repo.merge_bases_many(old, &[id(new)?]).doing("compare two histories")?;
        Ok(bases.iter().any(|b| b.detach() == old))
    }

    /// The best common ancestor of two commits, the first where there are several.
    pub fn merge_base(&self, a: &Oid, b: &Oid) -> Result<Option<Oid>> {
        let bases = self.repo.merge_bases_many(id(a)?, &[id(b)?]).doing("compare two histories")?;
        Ok(bases.first().map(|base| oid(&base.detach())))
    }

    /// The commits reachable from `tips` and not from `hidden`, at most `limit`.
    pub fn between(&self, tips: &[Oid], hidden: &[Oid], limit: usize) -> Result<Vec<Oid>> {
        let ids = |list: &[Oid]| list.iter().map(id).collect::<Result<Vec<_>>>();
        let walk = self.repo.rev_walk(ids(tips)?).with_hidden(ids(hidden)?).all().doing("walk commits")?;
        walk.take(limit).map(|i| Ok(oid(&i.doing("walk commits")?.id))).collect()
    }

    /// Messages along the first parents from `tip` down to, without, `stop`; at most `limit` commits.
    pub fn first_parent_messages(&self, tip: &Oid, stop: Option<&Oid>, limit: usize) -> Result<Vec<(Oid, String)>> {
        let mut out = Vec::new();
        let mut at = Some(tip.clone());
        while let Some(commit) = at.filter(|c| Some(c) != stop) {
            if out.len() == limit {
                break;
            }
            let info = self.info(&commit)?;
            at = info.parents.first().cloned();
            out.push((commit, info.message));
        }
        Ok(out)
    }

    /// Every file that differs between two trees (`None`: the empty tree), ordered by path; a deletion and an addition
    /// of the same content are one rename.
    pub fn changes(&self, old: Option<&Oid>, new: &Oid) -> Result<Vec<ChangedFile>> {
        use gix::diff::tree::recorder::Change as C;
        let mut files = Vec::new();
        let mut gone: BTreeMap<gix::ObjectId, Vec<Vec<u8>>> = BTreeMap::new();
        for record in self.records(old, new)? {
            match record {
                C::Addition { entry_mode, oid, path, .. } if !entry_mode.is_tree() => {
                    files.push((path.to_vec(), ChangeKind::Added, entry_mode.is_commit(), Some(oid)));
                }
                C::Deletion { entry_mode, oid, path, .. } if !entry_mode.is_tree() => {
                    gone.entry(oid).or_default().push(path.to_vec());
                }
                C::Modification { previous_entry_mode: was, previous_oid, entry_mode: is, oid, path }
                    if !is.is_tree() && !was.is_tree() =>
                {
                    let kind = if was.kind() == is.kind() {
                        ChangeKind::Modified
                    } else if was.is_blob() && is.is_blob() {
                        if previous_oid == oid { ChangeKind::Mode } else { ChangeKind::Modified }
                    } else {
                        ChangeKind::Type
                    };
                    files.push((path.to_vec(), kind, is.is_commit(), None));
                }
                _ => {}
            }
        }
        let mut out: Vec<ChangedFile> = files
            .into_iter()
            .map(|(path, kind, gitlink, added)| {
                let from = added.and_then(|oid| gone.get_mut(&oid)).and_then(Vec::pop);
                let kind = from.map_or(kind, |from| ChangeKind::Renamed { from });
                ChangedFile { path, kind, gitlink }
            })
            .collect();
        let deleted = gone.into_values().flatten();
        out.extend(deleted.map(|path| ChangedFile { path, kind: ChangeKind::Deleted, gitlink: false }));
        out.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(out)
    }

    /// Whether a `.gitattributes` differs between two trees.
    pub fn attributes_change(&self, old: &Oid, new: &Oid) -> Result<bool> {
        let is_one = |path: &[u8]| path.rsplit(|b| *b == b'/').next() == Some(b".gitattributes");
        Ok(self.changes(Some(old), new)?.iter().any(|file| is_one(&file.path)))
    }

    /// The content of the file at `path` in the tree of `commit`.
    pub fn blob_at(&self, commit: &Oid, path: &[u8]) -> Result<Option<Vec<u8>>> {
        let tree = self.repo.find_commit(id(commit)?).doing("read a commit")?.tree().doing("read a tree")?;
        match tree.lookup_entry(path.split(|b| *b == b'/')).doing("read a tree")? {
            Some(entry) if entry.mode().is_blob() => Ok(Some(entry.object().doing("read a file")?.data.clone())),
            _ => Ok(None),
        }
    }

    /// The commit of another repository at `path` in the tree of `commit`.
    pub fn gitlink_at(&self, commit: &Oid, path: &[u8]) -> Result<Option<Oid>> {
        let tree = self.repo.find_commit(id(commit)?).doing("read a commit")?.tree().doing("read a tree")?;
        let entry = tree.lookup_entry(path.split(|b| *b == b'/')).doing("read a tree")?;
        Ok(entry.filter(|e| e.mode().is_commit()).map(|e| oid(&e.object_id())))
    }

    /// The objects that `new` brings beyond `old`: commits, trees and files, at most `limit` commits back.
    pub fn brought(&self, new: &Oid, old: &[Oid], limit: usize) -> Result<HashSet<gix::ObjectId>> {
        use gix::diff::tree::recorder::Change as C;
        let mut out = HashSet::new();
        for commit in self.between(std::slice::from_ref(new), old, limit)? {
            let info = self.info(&commit)?;
            out.insert(id(&commit)?);
            out.insert(id(&info.tree)?);
            let parent = info.parents.first().map(|p| self.info(p)).transpose()?;
            for record in self.records(parent.as_ref().map(|p| &p.tree), &info.tree)? {
                match record {
                    C::Addition { oid, entry_mode, .. } | C::Modification { oid, entry_mode, .. }
                        if !entry_mode.is_commit() =>
                    {
                        out.insert(oid);
                    }
                    _ => {}
                }
            }
        }
        Ok(out)
    }

    fn records(&self, old: Option<&Oid>, new: &Oid) -> Result<Vec<gix::diff::tree::recorder::Change>> {
        let tree = |o: &Oid| self.repo.find_tree(id(o)?).doing("read a tree");
        let old = match old {
            Some(o) => tree(o)?,
            None => self.repo.empty_tree(),
        };
        let new = tree(new)?;
        let mut recorder = gix::diff::tree::Recorder::default();
        let kind = self.repo.object_hash();
        gix::diff::tree(
            gix::objs::TreeRefIter::from_bytes(&old.data, kind),
            gix::objs::TreeRefIter::from_bytes(&new.data, kind),
            gix::diff::tree::State::default(),
            &self.repo.objects,
            &mut recorder,
        )
        .doing("compare two trees")?;
        Ok(recorder.records)
    }

    /// The tree without entries, written where it is not there yet.
    pub fn empty_tree(&self) -> Result<Oid> {
        Ok(oid(&self.repo.write_object(gix::objs::Tree::empty()).doing("write a tree")?.detach()))
    }

    /// The hash that this repository names its objects by.
    pub fn hash(&self) -> gix::hash::Kind {
        self.repo.object_hash()
    }
}

/// How every repository is opened: of the configuration only its own, of variables none. Replacements (`git replace`) do
/// not count, as in every git command of ours: what is looked at must be what is merged.
pub(super) fn options() -> gix::open::Options {
    gix::open::Options::isolated().config_overrides(["core.useReplaceRefs=false"])
}

/// Whom reflogs name.
static OURSELVES: std::sync::LazyLock<Who> =
    std::sync::LazyLock::new(|| Who { name: "overnight".into(), mail: "overnight@localhost".into() });

fn signature(who: &Who) -> gix::actor::Signature {
    // These would end the field in a commit object.
    let clean = |t: &str| -> BString { t.replace(['<', '>', '\n', '\0'], " ").trim().into() };
    gix::actor::Signature { name: clean(&who.name), email: clean(&who.mail), time: gix::date::Time::now_local_or_utc() }
}

fn id(oid: &Oid) -> Result<gix::ObjectId> {
    gix::ObjectId::from_hex(oid.as_str().as_bytes()).doing("read an object id")
}

/// Our spelling of gix's object id.
pub(crate) fn oid(id: &gix::oid) -> Oid {
    #[expect(clippy::expect_used, reason = "a hash in hexadecimal is an object id")]
    Oid::parse(&id.to_hex().to_string()).expect("a hexadecimal hash")
}
