//! The warm pool of worktrees of one mirror: numbered folders below one root, never named by a task. A worktree is lent
//! to one attempt on a fresh branch, and comes back only with the proof that its content is kept.
//!
//! ```text
//!    (new) ──▶ leased ──give_back──▶ idle ──take──▶ leased
//!                 └── cannot be cleaned or removed ──▶ aside (never lent again; removal is retried)
//! ```
//!
//! What stands where is noted in a folder beside the root that no worktree can write by git.

pub use super::lease::{Found, Lease};
use super::mirror::{Mirror, MirrorError, TASK_BRANCHES};
use super::nested;
use super::notes::{Note, Notes};
use super::odb::{Cas, Expect, OdbError};
use super::remove::{self, RemoveError};
use super::rescue::{self, RescueError, Rescued};
use super::worktree::{Head, Worktree, WorktreeError};
use crate::domain::Oid;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The pool could not lend or take back a worktree.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// `n` is the worktree that holds it; `None` while another lending prepares one.
    #[error("branch {branch:?} is in use in another worktree")]
    InUse { branch: String, n: Option<u32> },
    #[error("branch {branch:?} was moved while it was prepared")]
    BranchMoved { branch: String, now: Option<Oid> },
    #[error("the proof that was shown is of another worktree than {}", .0.display())]
    WrongProof(PathBuf),
    #[error("worktree {n} holds nothing that is known to be lent")]
    NotLeased { n: u32 },
    #[error("worktree {n} was set aside: {reason}")]
    SetAside { n: u32, reason: String },
    #[error("could not read or write {}", path.display())]
    Files {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("former work on the branch could not be kept")]
    Rescue(#[source] Box<RescueError>),
    #[error(transparent)]
    Worktree(#[from] WorktreeError),
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    #[error(transparent)]
    Odb(#[from] OdbError),
}

/// The pool. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pool {
    mirror: Mirror,
    root: PathBuf,
    notes: Notes,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Number and the commit it stands at, where known.
    idle: Vec<(u32, Option<Oid>)>,
    leased: BTreeMap<u32, String>,
    /// Branches that a lending under way will be on.
    reserved: BTreeSet<String>,
    next: u32,
}

/// Keeps a second lending from the same branch until the first is over.
struct Reservation<'a>(&'a Pool, &'a str);

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.0.lock().reserved.remove(self.1);
    }
}

impl Pool {
    /// The pool at `root`, made where it is missing. Call [`Pool::inventory`] before the first lending.
    pub fn open(mirror: &Mirror, root: &Path) -> Result<Self, PoolError> {
        let files = |source| PoolError::Files { path: root.to_owned(), source };
        std::fs::create_dir_all(root).map_err(files)?;
        let root = root.canonicalize().map_err(files)?;
        let notes = Notes::beside(&root).map_err(files)?;
        Ok(Self { mirror: mirror.clone(), root, notes, state: Arc::default() })
    }

    /// Where its worktrees come from.
    pub fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// Lends a worktree on the fresh branch `branch` at `base`, proven clean. Two commands on an aged worktree, one where
    /// it stands at `base` already. Commits of a former attempt on that branch are rescued first.
    pub async fn take(&self, branch: &str, base: &Oid) -> Result<Lease, PoolError> {
        self.mirror.verify_seal()?;
        let _reservation = self.reserve(branch)?;
        self.claim_branch(branch, base)?;
        let mut last = None;
        for _ in 0..3 {
            let (n, worktree, at) = match self.pick(base) {
                Some((n, at)) => (n, self.usable(n, base).await?, at),
                None => {
                    let (n, w) = self.make(base)?;
                    (n, Some(w), None)
                }
            };
            let Some(worktree) = worktree else { continue };
            self.lock().leased.insert(n, branch.to_owned());
            let (branch, base, nonce) = (branch.to_owned(), base.clone(), nonce());
            let note = Note::Leased { branch: branch.clone(), base: base.clone(), nonce: nonce.clone() };
            if let Err(e) = self.note(n, &note) {
                // Nobody gets this lease, so nobody will give it back (a full disk, most likely).
                let mut state = self.lock();
                state.leased.remove(&n);
                state.idle.push((n, at));
                return Err(e);
            }
            let lease = Lease { worktree, n, branch, base, nonce };
            match self.prepare(&lease, at.as_ref()).await {
                Ok(()) => return Ok(lease),
                Err(e) => {
                    tracing::warn!(n, error = %e, "a worktree could not be prepared and is rebuilt");
                    last = Some(e);
                    // Nothing of an attempt is in it: it was idle or just made.
                    let _ = lease.worktree.set_head(&Head::Detached(lease.base.clone()));
                    let _ = self.discard(n).await;
                }
            }
        }
        let _ = self.mirror.odb()?.swap(&full(branch), None, Expect::Is(base), "not used");
        let reason = "no idle worktree could be used or rebuilt".to_owned();
        Err(last.map_or(PoolError::SetAside { n: 0, reason }, PoolError::Worktree))
    }

    /// Takes a worktree back: everything in it is removed, its branch too, and it waits for the next attempt. The proof
    /// says that the content is kept or merged. No command where the rescue found it spotless, else two.
    pub async fn give_back(&self, lease: Lease, proof: &Rescued) -> Result<(), PoolError> {
        if proof.lease_nonce() != Some(&lease.nonce) {
            return Err(PoolError::WrongProof(lease.path().to_owned()));
        }
        self.mirror.verify_seal()?;
        let n = lease.n;
        for nested in nested::registrations(&self.mirror, lease.path()).into_iter().rev() {
            if let Some(name) = nested.file_name() {
                remove::remove(&self.mirror.git_dir().join("worktrees"), name)
                    .map_err(|e| self.aside(n, &e.to_string()))?;
            }
        }
        let at = match self.clear(&lease, proof).await {
            Ok(at) => at,
            Err(e) => {
                tracing::warn!(n, error = %e, "a returned worktree is not the one that was lent; it is removed");
                self.discard(n).await?;
                None
            }
        };
        if let Some(tip) = proof.tip()
            && let Cas::Holds(Some(now)) =
                self.mirror.odb()?.swap(&full(&lease.branch), None, Expect::Is(tip), "given back")?
        {
            tracing::warn!(branch = lease.branch, %now, "a branch moved after its rescue and is left");
        }
        self.drop_strays(proof)?;
        if let Some(at) = at {
            self.note(n, &Note::Idle(Some(at.clone())))?;
            let mut state = self.lock();
            state.leased.remove(&n);
            state.idle.push((n, Some(at)));
        }
        Ok(())
    }

    /// Looks at everything below the root after a start: nothing is removed but registrations whose folder is gone.
    /// Then the pool knows what is idle and what is lent. No command.
    pub fn inventory(&self) -> Result<Vec<Found>, PoolError> {
        self.mirror.verify_seal()?;
        let mut numbers: Vec<u32> = Vec::new();
        let mut found = Vec::new();
        for entry in self.read_dir(&self.root)? {
            match entry.file_name().to_str().and_then(number) {
                Some(n) if self.notes.read(n).is_some() || self.worktree(n).git_dir().exists() => numbers.push(n),
                _ => found.push(Found::Foreign { path: entry.path() }),
            }
        }
        let registered = self.mirror.git_dir().join("worktrees");
        for entry in self.read_dir(&registered)? {
            numbers.extend(entry.file_name().to_str().and_then(|n| n.strip_prefix("wt-")).and_then(number));
        }
        numbers
            .extend(self.read_dir(self.notes.folder())?.iter().filter_map(|e| e.file_name().to_str().and_then(number)));
        numbers.sort_unstable();
        numbers.dedup();
        *self.lock() = State::default();
        for n in numbers {
            found.push(self.look(n)?);
        }
        Ok(found)
    }

    /// The lease of a worktree that was lent before a restart, as the inventory found it.
    pub fn adopt(&self, n: u32) -> Result<Lease, PoolError> {
        match self.notes.read(n) {
            Some(Note::Leased { branch, base, nonce }) => {
                self.lock().leased.insert(n, branch.clone());
                Ok(Lease { worktree: self.worktree(n), n, branch, base, nonce })
            }
            _ => Err(PoolError::NotLeased { n }),
        }
    }

    /// Removes idle worktrees until `keep` are left.
    pub async fn drain(&self, keep: usize) -> Result<(), PoolError> {
        loop {
            let n = {
                let mut state = self.lock();
                if state.idle.len() <= keep {
                    return Ok(());
                }
                state.idle.pop().map(|(n, _)| n)
            };
            if let Some(n) = n {
                self.discard(n).await?;
            }
        }
    }

    /// Tries again to remove what could not be removed; gives what is still there, with the reason.
    pub async fn retry_aside(&self) -> Result<Vec<(u32, String)>, PoolError> {
        let mut left = Vec::new();
        for entry in self.read_dir(self.notes.folder())? {
            let Some(n) = entry.file_name().to_str().and_then(number) else { continue };
            if let Some(Note::Aside(reason)) = self.notes.read(n)
                && let Err(e) = self.discard(n).await
            {
                left.push((n, format!("{reason}; {e}")));
            }
        }
        Ok(left)
    }

    async fn prepare(&self, lease: &Lease, at: Option<&Oid>) -> Result<(), WorktreeError> {
        lease.worktree.begin_log(&lease.base)?;
        lease.worktree.settle(&Head::Branch(lease.branch.clone()), &lease.base, at).await
    }

    fn reserve<'a>(&'a self, branch: &'a str) -> Result<Reservation<'a>, PoolError> {
        let mut state = self.lock();
        let holder = state.leased.iter().find(|(_, b)| *b == branch).map(|(n, _)| *n);
        if holder.is_some() || !state.reserved.insert(branch.to_owned()) {
            return Err(PoolError::InUse { branch: branch.to_owned(), n: holder });
        }
        Ok(Reservation(self, branch))
    }

    /// Creates the branch at `base`, or moves a leftover of that name there once its commits are kept.
    fn claim_branch(&self, branch: &str, base: &Oid) -> Result<(), PoolError> {
        let odb = self.mirror.odb()?;
        let now = odb.tip(&full(branch))?;
        let expect = match &now {
            None => Expect::Absent,
            Some(tip) => {
                if !odb.is_ancestor(tip, base)? {
                    let dotted = branch.strip_prefix(TASK_BRANCHES).unwrap_or(branch);
                    rescue::keep_commit(&self.mirror, dotted, "left", tip)
                        .map_err(|e| PoolError::Rescue(Box::new(e)))?;
                }
                Expect::Is(tip)
            }
        };
        match odb.swap(&full(branch), Some(base), expect, "overnight: taken")? {
            Cas::Done => Ok(()),
            Cas::Holds(now) => Err(PoolError::BranchMoved { branch: branch.to_owned(), now }),
        }
    }

    /// Deletes the branches that the attempt made beside its own; their commits are kept.
    fn drop_strays(&self, proof: &Rescued) -> Result<(), PoolError> {
        for (name, tip) in proof.strays() {
            if super::deliver::checked_out(self.mirror.git_dir(), name).is_none() {
                self.mirror.odb()?.swap(name, None, Expect::Is(tip), "overnight: kept elsewhere")?;
            }
        }
        Ok(())
    }

    fn pick(&self, base: &Oid) -> Option<(u32, Option<Oid>)> {
        let mut state = self.lock();
        let best = state.idle.iter().position(|(_, at)| at.as_ref() == Some(base));
        let best = best.or_else(|| state.idle.len().checked_sub(1))?;
        Some(state.idle.swap_remove(best))
    }

    /// An idle worktree as it is, or built anew where somebody changed it. `None` when it had to be set aside.
    async fn usable(&self, n: u32, base: &Oid) -> Result<Option<Worktree>, PoolError> {
        let w = self.worktree(n);
        let intact = w.verify().is_ok() && w.index_facts().is_ok_and(|f| f.hidden.is_empty()) && w.scrub().is_ok();
        if intact {
            return Ok(Some(w));
        }
        tracing::warn!(n, "an idle worktree was changed and is rebuilt");
        if self.discard(n).await.is_err() {
            return Ok(None);
        }
        match Worktree::register(&self.mirror, &self.root.join(n.to_string()), &registered(n), base) {
            Ok(w) => Ok(Some(w)),
            Err(WorktreeError::Taken(_)) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Registers a new worktree under the next number that nothing stands in the way of.
    fn make(&self, commit: &Oid) -> Result<(u32, Worktree), PoolError> {
        loop {
            let n = {
                let mut state = self.lock();
                state.next += 1;
                state.next
            };
            if self.notes.read(n).is_some() {
                continue;
            }
            match Worktree::register(&self.mirror, &self.root.join(n.to_string()), &registered(n), commit) {
                Ok(w) => {
                    if let Err(e) = self.note(n, &Note::Idle(None)) {
                        // Without a note nobody would know after a restart that nothing of worth is in it.
                        let _ = remove::remove(&self.root, n.to_string().as_ref());
                        let _ = remove::remove(&self.mirror.git_dir().join("worktrees"), registered(n).as_ref());
                        return Err(e);
                    }
                    return Ok((n, w));
                }
                Err(WorktreeError::Taken(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Empties a returned worktree; where it stands afterwards.
    async fn clear(&self, lease: &Lease, proof: &Rescued) -> Result<Option<Oid>, PoolError> {
        let w = &lease.worktree;
        w.verify()?;
        w.drop_locks(Some(&lease.branch));
        if !w.index_facts()?.hidden.is_empty() {
            let why = super::worktree::Broken::Index;
            return Err(WorktreeError::Broken { path: lease.path().to_owned(), why }.into());
        }
        w.scrub()?;
        let at = match w.head() {
            Head::Detached(at) => at,
            Head::Branch(b) => self.mirror.odb()?.tip(&full(&b))?.unwrap_or_else(|| lease.base.clone()),
            Head::Unreadable => lease.base.clone(),
        };
        w.set_head(&Head::Detached(at.clone()))?;
        if !proof.spotless() {
            w.git().args(["reset", "--quiet", "--hard"]).run_patiently().await.map_err(WorktreeError::from)?;
            w.clean().await?;
        }
        Ok(Some(at))
    }

    /// Removes folder, registration and note. What cannot be removed is set aside, which is an error.
    async fn discard(&self, n: u32) -> Result<(), PoolError> {
        let (root, registered) = (self.root.clone(), self.mirror.git_dir().join("worktrees"));
        let removed = super::blocking(move || -> Result<(), RemoveError> {
            remove::remove(&root, n.to_string().as_ref())?;
            remove::remove(&registered, self::registered(n).as_ref())?;
            Ok(())
        });
        match removed.await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Err(self.aside(n, &e.to_string())),
            Err(e) => return Err(self.aside(n, &e.to_string())),
        }
        self.notes.forget(n);
        self.lock().leased.remove(&n);
        Ok(())
    }

    fn aside(&self, n: u32, reason: &str) -> PoolError {
        tracing::error!(n, reason, "a worktree could not be removed and is set aside");
        let _ = self.note(n, &Note::Aside(reason.to_owned()));
        let mut state = self.lock();
        state.leased.remove(&n);
        state.idle.retain(|(i, _)| *i != n);
        PoolError::SetAside { n, reason: reason.to_owned() }
    }

    fn look(&self, n: u32) -> Result<Found, PoolError> {
        let w = self.worktree(n);
        {
            let mut state = self.lock();
            state.next = state.next.max(n);
        }
        let note = self.notes.read(n);
        if w.path().symlink_metadata().is_err() && !matches!(note, Some(Note::Aside(_))) {
            return self.forget_missing(n, &w);
        }
        Ok(match note {
            Some(Note::Aside(reason)) => Found::Aside { n, reason },
            Some(Note::Idle(at)) => {
                self.lock().idle.push((n, at));
                Found::Idle { n }
            }
            Some(Note::Leased { branch, base, nonce }) => {
                self.lock().leased.insert(n, branch.clone());
                let lease = Box::new(Lease { worktree: w, n, branch, base, nonce });
                match lease.worktree.verify() {
                    Ok(()) => Found::Leased(lease),
                    Err(e) => Found::Broken { lease, why: e.to_string() },
                }
            }
            // A registration of ours whose note was lost: what it holds is unknown, so it is kept.
            None => Found::Aside { n, reason: "no note says what it holds".into() },
        })
    }

    fn forget_missing(&self, n: u32, w: &Worktree) -> Result<Found, PoolError> {
        let head = match w.head() {
            Head::Detached(at) => Some(at),
            Head::Branch(_) | Head::Unreadable => None,
        };
        let kept = head.filter(|at| self.mirror.odb().is_ok_and(|o| o.is_commit(at)));
        if let Some(at) = &kept {
            rescue::keep_commit(&self.mirror, "-pool-", "missing", at).map_err(|e| PoolError::Rescue(Box::new(e)))?;
        }
        if w.git_dir().symlink_metadata().is_ok() {
            remove::remove(&self.mirror.git_dir().join("worktrees"), registered(n).as_ref())
                .map_err(|e| PoolError::Files { path: w.git_dir().to_owned(), source: io::Error::other(e) })?;
        }
        self.notes.forget(n);
        Ok(Found::Missing { n, kept })
    }

    fn worktree(&self, n: u32) -> Worktree {
        Worktree::at(&self.mirror, &self.root.join(n.to_string()), &registered(n))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, n: u32, note: &Note) -> Result<(), PoolError> {
        let at = || self.notes.place(n);
        self.notes.write(n, note).map_err(|source| PoolError::Files { path: at(), source })
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<std::fs::DirEntry>, PoolError> {
        match std::fs::read_dir(path) {
            Ok(entries) => {
                entries.collect::<io::Result<_>>().map_err(|source| PoolError::Files { path: path.to_owned(), source })
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(PoolError::Files { path: path.to_owned(), source }),
        }
    }
}

fn nonce() -> String {
    let mut bytes = [0_u8; 8];
    if getrandom::fill(&mut bytes).is_err() {
        // Never seen; two lendings of one worktree differ by their time too.
        let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        bytes = since.as_nanos().to_le_bytes()[..8].try_into().unwrap_or_default();
    }
    format!("{:016x}", u64::from_le_bytes(bytes))
}

fn full(branch: &str) -> String {
    format!("refs/heads/{branch}")
}

fn registered(n: u32) -> String {
    format!("wt-{n}")
}

/// A number as we write it: no sign, no leading zero.
fn number(name: &str) -> Option<u32> {
    name.parse().ok().filter(|n: &u32| n.to_string() == name)
}
