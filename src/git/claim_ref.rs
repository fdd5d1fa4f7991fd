//! Claims at their authority: one ref per task, made by a create-only update and moved by compare-and-swap. A ref points
//! to a commit with the empty tree whose message is the [`Claim`] as one JSON line.
//!
//! A batch is one push without `--atomic`, so that a lost claim costs the others nothing. What a push leaves unclear is
//! read back; what cannot be read back is unknown, never lost.

#![expect(clippy::disallowed_methods, reason = "a random pause between two tries at a contended ref")]

use super::state_commit::{Identity, new_commit, put};
use super::state_remote::{Flag, Guard, RefMove, Trouble, TroubleKind};
use super::state_repo::{Doing as _, Result, SEEN_CLAIMS, StateError, StateRepo, from_gix, to_gix};
use crate::domain::lease::{CLAIM_REFS, Claim, Held, claim_ref};
use crate::domain::{Oid, TaskPath};
use gix::refs::transaction::{Change, LogChange, PreviousValue, RefEdit, RefLog};
use std::collections::{BTreeMap, BTreeSet};

/// Version of [`Claim`] that this program writes; others are left alone.
pub const CLAIM_VERSION: u32 = 1;
/// Claims pushed at once: more would make the command line too long.
const AT_ONCE: usize = 400;
/// A larger claim is not looked into.
const PAYLOAD_LIMIT: usize = 64 * 1024;
/// How often a ref is tried again that was refused although nobody else moved it.
const REFUSALS: u32 = 3;

/// What became of one claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimAnswer {
    Won(Held),
    /// Somebody else has it; `None` when their claim cannot be read.
    Lost {
        by: Option<Claim>,
    },
    /// The authority could not be asked: it may be ours or not. Claim again with the same nonce to find out.
    Unknown(Trouble),
    /// The authority says no although nobody holds it.
    Refused(Trouble),
}

/// What became of a claim that was to be moved or released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoveAnswer {
    /// It has its new value.
    Moved(Held),
    Released,
    /// It was no longer what we took it for. Nothing was changed.
    Lost {
        by: Option<Claim>,
    },
    Unknown(Trouble),
    Refused(Trouble),
}

/// A claim ref that is to be made, moved or deleted, if it still is what we take it for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimMove {
    pub task: TaskPath,
    /// The commit it points to; `None` when it must not exist.
    pub old: Option<Oid>,
    /// `None` releases it.
    pub to: Option<Claim>,
}

/// A claim ref as it stands at the authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub name: String,
    pub commit: Oid,
    /// What it says, or why it says nothing that we may act on. A malformed claim is nobody's to take.
    pub claim: Result<Claim, String>,
}

impl StateRepo {
    /// Claims tasks, with one answer for each in the same order. `concluded` gives the nonce under which the state repo
    /// says a task was last concluded: a claim with that nonce is what a crash left behind, and is replaced.
    pub async fn claim(
        &self,
        batch: &[Claim],
        by: &Identity,
        concluded: impl Fn(&TaskPath) -> Option<String>,
    ) -> Result<Vec<ClaimAnswer>> {
        let moves: Vec<_> = batch
            .iter()
            .map(|claim| ClaimMove { task: claim.task.clone(), old: None, to: Some(claim.clone()) })
            .collect();
        let mut answers = self.move_claims(&moves, by).await?;
        // Void claims are replaced by compare-and-swap, which removes and claims in one.
        let mut again = Vec::new();
        for (i, answer) in answers.iter().enumerate() {
            let MoveAnswer::Lost { by: Some(other) } = answer else { continue };
            if concluded(&other.task).is_some_and(|nonce| nonce == other.nonce) && other.nonce != batch[i].nonce {
                let old = self.seen_ref(&claim_ref(&batch[i].task))?;
                again.push((i, ClaimMove { old, ..moves[i].clone() }));
            }
        }
        if !again.is_empty() {
            let moves: Vec<_> = again.iter().map(|(_, to)| to.clone()).collect();
            for ((i, _), answer) in again.iter().zip(self.move_claims(&moves, by).await?) {
                answers[*i] = answer;
            }
        }
        Ok(answers.into_iter().map(ClaimAnswer::from).collect())
    }

    /// Renews a claim: `claim` is what it says from now on.
    pub async fn renew(&self, held: &Held, claim: &Claim, by: &Identity) -> Result<MoveAnswer> {
        self.one_move(&claim.task, Some(&held.commit), Some(claim), by).await
    }

    /// Takes over another's claim that is still what `seen` says. Whether it has run out is the caller's to judge.
    pub async fn take_over(&self, seen: &Seen, claim: &Claim, by: &Identity) -> Result<MoveAnswer> {
        self.one_move(&claim.task, Some(&seen.commit), Some(claim), by).await
    }

    /// Releases a claim that still points to `commit`.
    pub async fn release(&self, task: &TaskPath, commit: &Oid, by: &Identity) -> Result<MoveAnswer> {
        self.one_move(task, Some(commit), None, by).await
    }

    async fn one_move(
        &self,
        task: &TaskPath,
        old: Option<&Oid>,
        to: Option<&Claim>,
        by: &Identity,
    ) -> Result<MoveAnswer> {
        let to = ClaimMove { task: task.clone(), old: old.cloned(), to: to.cloned() };
        let answer = self.move_claims(&[to], by).await?.pop();
        Ok(answer.unwrap_or(MoveAnswer::Lost { by: None }))
    }

    /// Moves claims, each on its own, with one answer for each in the same order.
    pub async fn move_claims(&self, moves: &[ClaimMove], by: &Identity) -> Result<Vec<MoveAnswer>> {
        let _one = self.gate.lock().await;
        let mut written = Vec::new();
        let to: Vec<_> = moves.iter().map(|m| self.claim_commit(m, by, &mut written)).collect::<Result<_>>()?;
        self.sync_objects(&written)?;
        if self.remote.is_none() {
            return self.move_here(moves, &to);
        }
        let mut answers = Vec::new();
        for (moves, to) in moves.chunks(AT_ONCE).zip(to.chunks(AT_ONCE)) {
            answers.extend(self.move_there(moves, to).await?);
        }
        Ok(answers)
    }

    /// Deletes a claim ref by its name, whatever it says, if it still points to `commit`: for a person who clears a claim
    /// that nothing can read. True when it is gone.
    pub async fn clear(&self, name: &str, commit: &Oid) -> Result<Result<bool, Trouble>> {
        let _one = self.gate.lock().await;
        if !name.starts_with(CLAIM_REFS) {
            return Ok(Ok(false));
        }
        if self.remote.is_none() {
            let gone = self.edit_refs([ref_edit(name, Some(commit), None)?]).is_ok();
            self.sync_refs([name])?;
            return Ok(Ok(gone));
        }
        let to = RefMove { name: name.into(), to: None, guard: Guard::From(Some(commit.clone())) };
        let pushed = self.push(&[to], false).await?;
        if pushed.flags.get(name) == Some(&Flag::Done) {
            return Ok(Ok(true));
        }
        let read = self.fetch_gated().await?;
        let left = self.seen_ref(name)?;
        Ok(read.map(|_| left.is_none()))
    }

    /// All claims at the authority, as of now.
    pub async fn list(&self) -> Result<Result<Vec<Seen>, Trouble>> {
        let _one = self.gate.lock().await;
        if self.remote.is_some()
            && let Err(trouble) = self.fetch_gated().await?
        {
            return Ok(Err(trouble));
        }
        let here = self.seen_prefix();
        let refs = self.refs_below(here)?.into_iter();
        refs.map(|(name, commit)| {
            let name = format!("{CLAIM_REFS}{}", &name[here.len()..]);
            let claim = self.read_claim(&name, &commit)?;
            Ok(Seen { name, commit, claim })
        })
        .collect::<Result<_>>()
        .map(Ok)
    }

    /// The commit for a claim's new value; `None` for a release.
    pub(super) fn claim_commit(
        &self,
        to: &ClaimMove,
        by: &Identity,
        written: &mut Vec<gix::ObjectId>,
    ) -> Result<Option<Held>> {
        let Some(claim) = &to.to else { return Ok(None) };
        let repo = self.repo.to_thread_local();
        let tree = put(&repo, gix::objs::Tree { entries: Vec::new() }, written)?;
        let line = serde_json::to_string(claim).unwrap_or_default() + "\n";
        let mut commit = new_commit(tree, None, line.into(), by);
        // No two claim commits are ever one object: a ref that does not change is not sent, and would fence nothing.
        commit.extra_headers.push(("overnight-update".into(), random_hex().into()));
        let id = put(&repo, &commit, written)?;
        Ok(Some(Held { nonce: claim.nonce.clone(), commit: from_gix(id), renew_by: None }))
    }

    /// The local authority: one transaction per claim, each with its own answer.
    fn move_here(&self, moves: &[ClaimMove], to: &[Option<Held>]) -> Result<Vec<MoveAnswer>> {
        let mut names = Vec::new();
        let mut answers = Vec::new();
        for (m, to) in moves.iter().zip(to) {
            let name = claim_ref(&m.task);
            let edit = ref_edit(&name, m.old.as_ref(), to.as_ref().map(|h| &h.commit))?;
            let done = self.edit_refs([edit]);
            let is = self.ref_value(&name)?;
            // An edit may fail when the ref has moved already; what it holds decides.
            let moved = is.is_some() && is.as_ref() == to.as_ref().map(|h| &h.commit);
            answers.push(match done {
                _ if moved => {
                    names.push(name);
                    done_answer(to)
                }
                Ok(()) => {
                    names.push(name);
                    done_answer(to)
                }
                Err(_) if is != m.old => self.moved_by_another(&name, m, is.as_ref())?,
                Err(e) => return Err(e),
            });
        }
        self.sync_refs(names.iter().map(String::as_str))?;
        Ok(answers)
    }

    /// A remote authority: one push for all; what it leaves open is read back, and tried again while nobody moved it.
    async fn move_there(&self, moves: &[ClaimMove], to: &[Option<Held>]) -> Result<Vec<MoveAnswer>> {
        let mut answers: BTreeMap<usize, MoveAnswer> = BTreeMap::new();
        let names: Vec<_> = moves.iter().map(|m| claim_ref(&m.task)).collect();
        // Two claims of one ref in one push would be refused as a whole; the later ones go into the next.
        for round in 0..REFUSALS {
            let mut taken = BTreeSet::new();
            let open: Vec<usize> =
                (0..moves.len()).filter(|i| !answers.contains_key(i) && taken.insert(&names[*i])).collect();
            if open.is_empty() {
                break;
            }
            if round > 0 {
                self.pause(round).await;
            }
            let refs: Vec<_> = open
                .iter()
                .map(|&i| RefMove {
                    name: names[i].clone(),
                    to: to[i].as_ref().map(|h| h.commit.clone()),
                    guard: Guard::From(moves[i].old.clone()),
                })
                .collect();
            let pushed = self.push(&refs, false).await?;
            let mut unclear = Vec::new();
            let mut seen = Vec::new();
            for i in open {
                match pushed.flags.get(&names[i]) {
                    Some(Flag::Done | Flag::Same) => {
                        seen.push((names[i].clone(), to[i].as_ref().map(|h| h.commit.clone())));
                        answers.insert(i, done_answer(&to[i]));
                    }
                    Some(Flag::Unclear) | None => unclear.push(i),
                }
            }
            self.note_seen(&seen)?;
            if unclear.is_empty() {
                continue;
            }
            if let Err(trouble) = self.fetch_gated().await? {
                answers.extend(unclear.into_iter().map(|i| (i, MoveAnswer::Unknown(trouble.clone()))));
                continue;
            }
            for i in unclear {
                let is = self.seen_ref(&names[i])?;
                if is.as_ref() == to[i].as_ref().map(|h| &h.commit) {
                    answers.insert(i, done_answer(&to[i]));
                } else if is != moves[i].old {
                    answers.insert(i, self.moved_by_another(&names[i], &moves[i], is.as_ref())?);
                } else if round + 1 == REFUSALS {
                    answers.insert(i, refused(&pushed.trouble));
                }
            }
        }
        Ok((0..moves.len()).map(|i| answers.remove(&i).unwrap_or(MoveAnswer::Lost { by: None })).collect())
    }

    /// The answer for a ref that is not what we took it for. A claim with our own nonce is ours: the push that made it
    /// was one whose outcome we never learned.
    fn moved_by_another(&self, name: &str, wanted: &ClaimMove, is: Option<&Oid>) -> Result<MoveAnswer> {
        let Some(is) = is else { return Ok(MoveAnswer::Lost { by: None }) };
        let by = self.read_claim(name, is)?.ok();
        if let (Some(ours), Some(found), None) = (&wanted.to, &by, &wanted.old)
            && ours.nonce == found.nonce
            && ours.daemon == found.daemon
        {
            return Ok(MoveAnswer::Moved(Held { nonce: ours.nonce.clone(), commit: is.clone(), renew_by: None }));
        }
        Ok(MoveAnswer::Lost { by })
    }

    /// Where claims of the authority are among our refs.
    fn seen_prefix(&self) -> &'static str {
        if self.remote.is_some() { SEEN_CLAIMS } else { CLAIM_REFS }
    }

    /// What the claim ref `name` was at the authority when we last looked.
    pub(super) fn seen_ref(&self, name: &str) -> Result<Option<Oid>> {
        let rest = name.strip_prefix(CLAIM_REFS).unwrap_or(name);
        self.ref_value(&format!("{}{rest}", self.seen_prefix()))
    }

    /// What the claim at `commit` says, under the ref `name`.
    pub(super) fn read_claim(&self, name: &str, commit: &Oid) -> Result<Result<Claim, String>> {
        let repo = self.repo.to_thread_local();
        let object = match repo.find_object(to_gix(commit)?) {
            Ok(object) => object,
            Err(e) => return Ok(Err(format!("not readable: {e}"))),
        };
        let Ok(commit) = object.try_into_commit() else { return Ok(Err("no commit".into())) };
        let message = commit.message_raw().doing("read a claim")?;
        Ok(parse_claim(name, message))
    }

    /// Keeps our picture of the authority's claims in step with what it just told us.
    pub(super) fn note_seen(&self, refs: &[(String, Option<Oid>)]) -> Result<()> {
        for (name, to) in refs {
            let here = name.replacen(CLAIM_REFS, SEEN_CLAIMS, 1);
            let old = self.ref_value(&here)?;
            if old != *to {
                self.edit_refs([ref_edit(&here, old.as_ref(), to.as_ref())?])?;
            }
        }
        Ok(())
    }

    /// One transaction over local refs.
    pub(super) fn edit_refs(&self, edits: impl IntoIterator<Item = RefEdit>) -> Result<()> {
        let repo = self.repo.to_thread_local();
        let edits: Vec<_> = edits.into_iter().collect();
        let Err(error) = repo.edit_references_as(edits.clone(), None) else { return Ok(()) };
        // A lock that a kill has left would refuse every edit from now on.
        if self.clear_stale_locks()? == 0 {
            return Err(error).doing("move refs");
        }
        repo.edit_references_as(edits, None).doing("move refs").map(|_| ())
    }

    /// Waits a random time that grows with each round.
    pub(super) async fn pause(&self, round: u32) {
        let most = self.tries.pause.saturating_mul(1 << round.min(16)).min(self.tries.cap);
        let part = f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX);
        tokio::time::sleep(most.mul_f64(part)).await;
    }
}

impl From<MoveAnswer> for ClaimAnswer {
    fn from(answer: MoveAnswer) -> Self {
        match answer {
            MoveAnswer::Moved(held) => Self::Won(held),
            MoveAnswer::Released => Self::Lost { by: None },
            MoveAnswer::Lost { by } => Self::Lost { by },
            MoveAnswer::Unknown(trouble) => Self::Unknown(trouble),
            MoveAnswer::Refused(trouble) => Self::Refused(trouble),
        }
    }
}

fn done_answer(to: &Option<Held>) -> MoveAnswer {
    to.clone().map_or(MoveAnswer::Released, MoveAnswer::Moved)
}

/// Asked and answered, but not done, and nobody else did anything: whatever the words were, it is a refusal.
fn refused(trouble: &Trouble) -> MoveAnswer {
    match trouble.kind {
        TroubleKind::Refused | TroubleKind::AuthNeeded | TroubleKind::ReadOnly => MoveAnswer::Refused(trouble.clone()),
        TroubleKind::Unreachable | TroubleKind::TimedOut => MoveAnswer::Unknown(trouble.clone()),
    }
}

fn parse_claim(name: &str, message: &[u8]) -> Result<Claim, String> {
    if message.len() > PAYLOAD_LIMIT {
        return Err("too large".into());
    }
    let claim: Claim = serde_json::from_slice(message).map_err(|e| e.to_string())?;
    if claim.version != CLAIM_VERSION {
        return Err(format!("version {} is not known here", claim.version));
    }
    if claim_ref(&claim.task) != name {
        return Err(format!("names {}, which has another ref", claim.task));
    }
    Ok(claim)
}

/// A compare-and-swap of one local ref; `None` is "does not exist", before or after.
pub(super) fn ref_edit(name: &str, old: Option<&Oid>, new: Option<&Oid>) -> Result<RefEdit> {
    let expected = match old {
        Some(old) => PreviousValue::MustExistAndMatch(to_gix(old)?.into()),
        None => PreviousValue::MustNotExist,
    };
    let log = LogChange { mode: RefLog::AndReference, force_create_reflog: false, message: "overnight".into() };
    let change = match new {
        Some(new) => Change::Update { log, expected, new: to_gix(new)?.into() },
        None if old.is_none() => return Err(StateError::Malformed(name.to_owned())),
        None => Change::Delete { expected, log: RefLog::AndReference },
    };
    let name = gix::refs::FullName::try_from(name).map_err(|_| StateError::Malformed(name.to_owned()))?;
    Ok(RefEdit { change, name, deref: false })
}

fn random_hex() -> String {
    let mut bytes = [0; 16];
    // Without a random source, the nonce inside still tells two claims apart.
    let _ = getrandom::fill(&mut bytes);
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
