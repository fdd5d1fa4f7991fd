//! Taking in what a peer committed: the state remote, or a person's folder. The result is a commit that contains both, so
//! that both can move forward to it. Files that belong to people come from whoever changed them, merged by lines where
//! both did; files of the machine stay ours when a folder changed them. No bytes are lost and no conflict marker is ever
//! written: where two versions do not merge, the second one stands beside the first.

use super::state_commit::{Identity, new_commit, put, put_entries};
use super::state_repo::{Doing as _, FOLDER_MAIN, FileKind, MAIN, Result, StateError, StateRepo, from_gix, to_gix};
use super::state_tree::{Differs, entry_at, is_ancestor, tree_diff, tree_of};
use super::{Git, claim_ref};
use crate::domain::Oid;
use gix::objs::tree::EntryMode;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Whose commits are taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The state remote: what other daemons recorded there counts.
    Authority,
    /// A person's folder: the machine's files in it are a copy, and changes there are undone.
    Folder,
}

/// What taking in came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absorbed {
    pub tip: Oid,
    /// Files that both sides changed in ways that do not merge, and where the version that gave way is kept.
    pub kept: Vec<Kept>,
    /// The machine's files that a folder had changed and that were put back.
    pub restored: Vec<Vec<u8>>,
}

/// One file of which two versions are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub path: Vec<u8>,
    pub beside: Vec<u8>,
}

type Entry = Option<(EntryMode, gix::ObjectId)>;

/// A text merge may not need more than this of memory; longer files are kept in two versions.
const MERGE_LIMIT: usize = 1024 * 1024;

impl StateRepo {
    /// Fetches the branch `branch` (a full ref name) of a person's folder here; gives its tip. Nothing there changes.
    pub async fn fetch_folder(&self, folder: &Path, branch: &str) -> Result<Oid> {
        let _one = self.gate.lock().await;
        let words = ["fetch", "-q", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--end-of-options"];
        let spec = format!("+{branch}:{FOLDER_MAIN}");
        Git::bare(&self.at).args(self.synced()).args(words).arg(folder).arg(spec).run().await?;
        self.ref_value(FOLDER_MAIN)?.ok_or(StateError::Unborn)
    }

    /// Makes our `main` contain `theirs`, which is here already. With a remote, fetch the folder first and the remote
    /// after that, and take in the remote's `main` first: then what a person pulled from there is not taken for theirs.
    pub async fn take_in(&self, theirs: &Oid, peer: Peer, by: &Identity) -> Result<Absorbed> {
        let _one = self.gate.lock().await;
        self.take_in_gated(theirs, peer, by).await
    }

    pub(super) async fn take_in_gated(&self, theirs: &Oid, peer: Peer, by: &Identity) -> Result<Absorbed> {
        for _ in 0..5 {
            let ours = self.tip()?;
            let mut written = Vec::new();
            let absorbed = match &ours {
                Some(ours) => self.absorb_noting(theirs, ours, peer, by, &mut written).await?,
                None => Absorbed { tip: theirs.clone(), kept: Vec::new(), restored: Vec::new() },
            };
            if ours.as_ref() == Some(&absorbed.tip) {
                return Ok(absorbed);
            }
            self.sync_objects(&written)?;
            if self.edit_refs([claim_ref::ref_edit(MAIN, ours.as_ref(), Some(&absorbed.tip))?]).is_ok() {
                self.sync_refs([MAIN])?;
                return Ok(absorbed);
            }
        }
        Err(StateError::Contended)
    }

    /// The commit that contains both `ours` and `theirs`; moves no ref. Either of them when it contains the other.
    pub async fn absorb(&self, theirs: &Oid, ours: &Oid, peer: Peer, by: &Identity) -> Result<Absorbed> {
        self.absorb_noting(theirs, ours, peer, by, &mut Vec::new()).await
    }

    async fn absorb_noting(
        &self,
        theirs: &Oid,
        ours: &Oid,
        peer: Peer,
        by: &Identity,
        written: &mut Vec<gix::ObjectId>,
    ) -> Result<Absorbed> {
        let (ours_id, theirs_id) = (to_gix(ours)?, to_gix(theirs)?);
        let mut merge = {
            let repo = self.repo.to_thread_local();
            if is_ancestor(&repo, theirs_id, ours_id)? {
                return Ok(Absorbed { tip: ours.clone(), kept: Vec::new(), restored: Vec::new() });
            }
            Merge::plan(&repo, ours, theirs, peer)?
        };
        for both in std::mem::take(&mut merge.both) {
            self.merge_file(both, &mut merge, written).await?;
        }
        let repo = self.repo.to_thread_local();
        let theirs_tree = tree_of(&repo, theirs)?;
        let tree = put_entries(&repo, Some(merge.ours_tree), merge.result, written)?;
        let contains_ours = is_ancestor(&repo, ours_id, theirs_id)?;
        let tip = if contains_ours && tree == theirs_tree {
            theirs.clone()
        } else {
            let parents = if contains_ours { vec![theirs_id] } else { vec![ours_id, theirs_id] };
            let message = match peer {
                Peer::Authority => "Bring together with the state remote\n",
                Peer::Folder => "Bring together with the folder\n",
            };
            from_gix(put(&repo, new_commit(tree, parents, message.into(), by), written)?)
        };
        Ok(Absorbed { tip, kept: merge.kept, restored: merge.restored })
    }

    /// Both sides changed a file in different ways.
    async fn merge_file(&self, both: Both, merge: &mut Merge, written: &mut Vec<gix::ObjectId>) -> Result<()> {
        let Both { path, base, ours, theirs } = both;
        let (Some((mode, our_id)), Some((their_mode, their_id))) = (ours, theirs) else {
            // One side removed what the other changed: the change stays.
            return merge.take_theirs(&self.repo.to_thread_local(), path, ours.or(theirs));
        };
        let machines = FileKind::of(&path).is_machines();
        if mode.is_blob() && their_mode.is_blob() {
            let texts = {
                let repo = self.repo.to_thread_local();
                let text = |id| repo.find_object(id).doing("read a file").map(|mut o| std::mem::take(&mut o.data));
                let base = base.filter(|(mode, _)| mode.is_blob()).map(|(_, id)| text(id)).transpose()?;
                (text(our_id)?, base.unwrap_or_default(), text(their_id)?)
            };
            // A log only grows, so the lines of both belong in it.
            let fuller = fuller(&texts.0, &texts.2);
            let union = FileKind::of(&path) == FileKind::Log;
            if (!machines || union)
                && let Some(merged) = self.merge_text(texts, union).await?
            {
                let repo = self.repo.to_thread_local();
                let id = put(&repo, gix::objs::BlobRef { data: &merged }, written)?;
                merge.result.insert(path, Some((their_mode, id)));
                return Ok(());
            }
            // An edit that we had read and committed, and that was then edited further and committed there.
            if !machines && let Some(fuller) = fuller {
                merge.result.insert(path, if fuller == Side::Ours { ours } else { theirs });
                return Ok(());
            }
        }
        if machines {
            return Ok(());
        }
        let beside = merge.free_name(&path, our_id);
        merge.result.insert(beside.clone(), ours);
        merge.result.insert(path.clone(), theirs);
        merge.kept.push(Kept { path, beside });
        Ok(())
    }

    /// Merges three texts by lines, with git's own rules; `None` when they do not merge or are no texts.
    async fn merge_text(&self, texts: (Vec<u8>, Vec<u8>, Vec<u8>), union: bool) -> Result<Option<Vec<u8>>> {
        let (ours, base, theirs) = texts;
        let all = [&ours, &base, &theirs];
        if all.iter().any(|text| text.len() > MERGE_LIMIT || text.contains(&0)) {
            return Ok(None);
        }
        let failed = |at: &Path| {
            let at = at.to_owned();
            move |source| StateError::Io { what: "merge a file", at, source }
        };
        let folder =
            self.at.join(format!("overnight-merge-{}-{:016x}", std::process::id(), getrandom::u64().unwrap_or(0)));
        std::fs::create_dir(&folder).map_err(failed(&folder))?;
        let write = |(name, text): (&str, &Vec<u8>)| std::fs::write(folder.join(name), text);
        let wrote = ["ours", "base", "theirs"].into_iter().zip(all).try_for_each(write);
        let mut command = Git::at(&folder).args(["merge-file", "-p", "-q"]);
        if union {
            command = command.arg("--union");
        }
        let out = command.args(["ours", "base", "theirs"]).output().await;
        let _ = std::fs::remove_dir_all(&folder);
        wrote.map_err(failed(&folder))?;
        let out = out?;
        Ok((out.code == Some(0)).then_some(out.stdout))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Ours,
    Theirs,
}

/// The side whose text has every line of the other's, in its order.
fn fuller(ours: &[u8], theirs: &[u8]) -> Option<Side> {
    let within = |part: &[u8], whole: &[u8]| {
        let mut lines = whole.split(|b| *b == b'\n');
        part.split(|b| *b == b'\n').all(|line| lines.any(|other| other == line))
    };
    if within(ours, theirs) { Some(Side::Theirs) } else { within(theirs, ours).then_some(Side::Ours) }
}

/// A file that both sides changed.
struct Both {
    path: Vec<u8>,
    base: Entry,
    ours: Entry,
    theirs: Entry,
}

/// What is put into our tree to bring both sides together.
struct Merge {
    ours_tree: gix::ObjectId,
    result: BTreeMap<Vec<u8>, Entry>,
    both: Vec<Both>,
    kept: Vec<Kept>,
    restored: Vec<Vec<u8>>,
    taken: BTreeSet<Vec<u8>>,
}

impl Merge {
    fn plan(repo: &gix::Repository, ours: &Oid, theirs: &Oid, peer: Peer) -> Result<Self> {
        let base = repo.merge_base(to_gix(ours)?, to_gix(theirs)?).doing("look for a common ancestor")?;
        let base = base.map(|base| tree_of(repo, &from_gix(base.detach()))).transpose()?;
        let (ours_tree, theirs_tree) = (tree_of(repo, ours)?, tree_of(repo, theirs)?);
        let by_path = |changes: Vec<Differs>| changes.into_iter().map(|c| (c.path.clone(), c)).collect();
        let our_changes: BTreeMap<_, _> = by_path(tree_diff(repo, base, Some(ours_tree))?);
        let their_changes: BTreeMap<_, _> = by_path(tree_diff(repo, base, Some(theirs_tree))?);
        let mut merge = Self {
            ours_tree,
            result: BTreeMap::new(),
            both: Vec::new(),
            kept: Vec::new(),
            restored: Vec::new(),
            taken: our_changes.keys().chain(their_changes.keys()).cloned().collect(),
        };
        for (path, change) in their_changes {
            if peer == Peer::Folder && FileKind::of(&path).is_machines() {
                let is = entry_at(repo, ours_tree, &path)?;
                if is != change.new {
                    merge.restored.push(path);
                }
                continue;
            }
            match our_changes.get(&path) {
                None => merge.take_theirs(repo, path, change.new)?,
                Some(our) if our.new == change.new => {}
                Some(our) => merge.both.push(Both { path, base: change.old, ours: our.new, theirs: change.new }),
            }
        }
        Ok(merge)
    }

    /// Their version of a file that we did not touch. Where our tree has a folder in its place, or a file in place of
    /// one of its folders, it goes beside.
    fn take_theirs(&mut self, repo: &gix::Repository, path: Vec<u8>, new: Entry) -> Result<()> {
        let Some((_, id)) = new else {
            self.result.insert(path, None);
            return Ok(());
        };
        let is_tree = |at: &[u8]| entry_at(repo, self.ours_tree, at).map(|e| e.map(|(mode, _)| mode.is_tree()));
        let mut blocked = is_tree(&path)? == Some(true);
        let cuts: Vec<_> = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(i, _)| i).collect();
        let mut flat = path.clone();
        for cut in cuts {
            let stays = !matches!(self.result.get(&path[..cut]), Some(None));
            if is_tree(&path[..cut])? == Some(false) && stays {
                blocked = true;
                flat[cut..].iter_mut().filter(|b| **b == b'/').for_each(|b| *b = b'.');
                break;
            }
        }
        if !blocked {
            self.result.insert(path, new);
            return Ok(());
        }
        let beside = self.free_name(&flat, id);
        self.result.insert(beside.clone(), new);
        self.kept.push(Kept { path, beside });
        Ok(())
    }

    /// A name beside `path` that nobody has: `README.kept-0123456789.md`.
    fn free_name(&mut self, path: &[u8], id: gix::ObjectId) -> Vec<u8> {
        let name = path.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
        let dot = path[name..].iter().rposition(|b| *b == b'.').filter(|i| *i > 0).map_or(path.len(), |i| name + i);
        let hex = id.to_string();
        let mut n = 0;
        loop {
            let extra = if n == 0 { String::new() } else { format!("-{n}") };
            let tag = format!(".kept-{}{extra}", &hex[..10]);
            let candidate = [&path[..dot], tag.as_bytes(), &path[dot..]].concat();
            if self.taken.insert(candidate.clone()) {
                return candidate;
            }
            n += 1;
        }
    }
}
