//! Publishing: what was concluded goes to the authority together with the claim refs that it was concluded under, all or
//! nothing. What is published is a rule that makes changes from whatever the tip is, not a text: when another writer was
//! faster, the rule is asked again on the new tip.
//!
//! ```text
//!  tip ─build─▶ commit ─push/transaction─▶ done
//!   ▲             read back │ ├─ main moved: take it in ──┐
//!   │                       │ ├─ a claim is lost: drop it ┤
//!   └───────────────────────┴─┴───────────────────────────┘   … nothing moved three times: refused
//! ```

use super::claim_ref::{ClaimMove, ref_edit};
use super::state_absorb::Peer;
use super::state_commit::{Change, Identity};
use super::state_remote::{Flag, Guard, RefMove, Trouble, TroubleKind};
use super::state_repo::{MAIN, ORIGIN_MAIN, Result, StateError, StateRepo};
use crate::domain::Oid;
use crate::domain::lease::{Claim, Held, claim_ref};

/// How often a push is tried again that was refused although nothing had moved.
const REFUSALS: u32 = 3;

/// One thing to be published; its number is its place in the list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Op {
    /// The claim it stands under: it is published only if this still holds, and moves or releases it.
    pub claim: Option<ClaimMove>,
}

/// What one commit shall say and do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    pub changes: Vec<Change>,
    pub message: String,
}

/// What became of one op.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpResult {
    /// Recorded at the authority; with the claim as it is now, unless it was released or there was none.
    Done(Option<Held>),
    /// The claim is another's, or gone. Nothing of this op was recorded.
    ClaimLost { by: Option<Claim> },
}

/// What was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The authority's `main`, and ours.
    pub tip: Oid,
    /// One for each op.
    pub ops: Vec<OpResult>,
    /// How many pushes or local transactions it took; 0 when there was nothing to do.
    pub pushes: u32,
}

/// How publishing ended.
#[derive(Debug)]
pub enum PublishOutcome {
    Published(Published),
    /// Nothing was recorded.
    Failed(Trouble),
    /// It may have been recorded. [`StateRepo::settle`] finds out.
    Unknown(Trouble, Pending),
    /// Others were faster every time. Nothing was recorded; the tip is taken in.
    GaveUp {
        pushes: u32,
    },
}

/// Pushes whose outcome is not known yet.
#[derive(Debug, Clone, Default)]
pub struct Pending {
    attempts: Vec<Attempt>,
    pushes: u32,
}

/// One push: what it would have made of `main` and of the claims.
#[derive(Debug, Clone)]
struct Attempt {
    base: Option<Oid>,
    tip: Oid,
    live: Vec<Live>,
    lost: Vec<(usize, Option<Claim>)>,
}

/// An op that took part in a push.
#[derive(Debug, Clone)]
struct Live {
    op: usize,
    claim: Option<Moving>,
}

/// A claim ref on its way from one value to the next.
#[derive(Debug, Clone)]
struct Moving {
    name: String,
    old: Option<Oid>,
    /// `None` releases it.
    to: Option<Held>,
}

/// What one round came to.
enum Round {
    Done(Published),
    Again,
    End(PublishOutcome),
}

/// The state of one call.
struct Run<'a> {
    ops: &'a [Op],
    by: &'a Identity,
    /// Ops whose claim was lost, with who has it.
    lost: Vec<(usize, Option<Claim>)>,
    pending: Pending,
    /// Refusals in a row with nothing moved.
    refusals: u32,
}

impl StateRepo {
    /// Publishes `ops`. `build` gives the changes from a tip and the numbers of those ops whose claims still hold; it may
    /// read the tip with [`Self::read_file`] and is asked anew for every tip. Peers' commits that were taken in go along.
    ///
    /// After an unknown outcome, call again with the same ops and what came back as `earlier`: should one of those pushes
    /// turn out to be recorded, that is the answer.
    pub async fn publish(
        &self,
        ops: &[Op],
        by: &Identity,
        earlier: Pending,
        mut build: impl FnMut(Option<&Oid>, &[usize]) -> Result<Batch> + Send,
    ) -> Result<PublishOutcome> {
        let _one = self.gate.lock().await;
        let mut run = Run { ops, by, lost: Vec::new(), pending: earlier, refusals: 0 };
        for round in 0..self.tries.most.max(1) {
            if round > 0 && self.remote.is_some() {
                self.pause(round.min(run.pending.pushes)).await;
            }
            let step = if self.remote.is_some() {
                self.round_there(&mut run, &mut build).await?
            } else {
                self.round_here(&mut run, &mut build)?
            };
            match step {
                Round::Done(published) => return Ok(PublishOutcome::Published(published)),
                Round::End(outcome) => return Ok(outcome),
                Round::Again => {}
            }
        }
        Ok(PublishOutcome::GaveUp { pushes: run.pending.pushes })
    }

    /// Finds out what became of pushes with an unknown outcome: `Published` if one of them is recorded, `GaveUp` if none
    /// is, `Unknown` again if the remote cannot be asked.
    pub async fn settle(&self, pending: Pending, by: &Identity) -> Result<PublishOutcome> {
        let _one = self.gate.lock().await;
        if let Err(trouble) = self.fetch_gated().await? {
            return Ok(PublishOutcome::Unknown(trouble, pending));
        }
        let landed = self.landed(&pending).await?;
        self.take_in_origin(by).await?;
        Ok(landed.map_or(PublishOutcome::GaveUp { pushes: pending.pushes }, PublishOutcome::Published))
    }

    /// Makes the commit for what is still to be published. `None` when there is nothing to do.
    fn prepare(
        &self,
        run: &mut Run<'_>,
        build: &mut (impl FnMut(Option<&Oid>, &[usize]) -> Result<Batch> + Send),
    ) -> Result<Option<Attempt>> {
        let base = self.tip()?;
        let mut live = Vec::new();
        let mut written = Vec::new();
        for (i, op) in run.ops.iter().enumerate().filter(|(i, _)| !run.lost.iter().any(|(lost, _)| lost == i)) {
            let mut moving = |m: &ClaimMove| -> Result<Moving> {
                let to = self.claim_commit(m, run.by, &mut written)?;
                Ok(Moving { name: claim_ref(&m.task), old: m.old.clone(), to })
            };
            live.push(Live { op: i, claim: op.claim.as_ref().map(&mut moving).transpose()? });
        }
        let numbers: Vec<_> = live.iter().map(|live| live.op).collect();
        if numbers.is_empty() && !run.ops.is_empty() {
            return Ok(None);
        }
        let batch = build(base.as_ref(), &numbers)?;
        let tip = match (&base, batch.changes.is_empty()) {
            (Some(base), true) => base.clone(),
            _ => self.commit_noting(base.as_ref(), &batch.changes, &batch.message, run.by, &mut written)?,
        };
        self.sync_objects(&written)?;
        Ok(Some(Attempt { base, tip, live, lost: run.lost.clone() }))
    }

    /// The local authority: `main` and the claim refs in one transaction.
    fn round_here(
        &self,
        run: &mut Run<'_>,
        build: &mut (impl FnMut(Option<&Oid>, &[usize]) -> Result<Batch> + Send),
    ) -> Result<Round> {
        self.drop_lost(run)?;
        let was = self.tip()?;
        let Some(attempt) = self.prepare(run, build)? else { return self.nothing_left(run) };
        let mut edits = Vec::new();
        let mut names = Vec::new();
        if was.as_ref() != Some(&attempt.tip) {
            edits.push(ref_edit(MAIN, was.as_ref(), Some(&attempt.tip))?);
            names.push(MAIN.to_owned());
        }
        for m in attempt.claims() {
            edits.push(ref_edit(&m.name, m.old.as_ref(), m.to.as_ref().map(|h| &h.commit))?);
            names.push(m.name.clone());
        }
        if edits.is_empty() {
            return Ok(Round::Done(attempt.published(run.ops.len(), run.pending.pushes)));
        }
        run.pending.pushes += 1;
        match self.edit_refs(edits) {
            Ok(()) => {
                self.sync_refs(names.iter().map(String::as_str))?;
                Ok(Round::Done(attempt.published(run.ops.len(), run.pending.pushes)))
            }
            // Whatever the reason was, the refs tell: something moved, or the disk does not take it.
            Err(e) => {
                let moved = self.tip()? != was || self.drop_lost(run)?;
                run.refusals = if moved { 0 } else { run.refusals + 1 };
                if run.refusals >= REFUSALS { Err(e) } else { Ok(Round::Again) }
            }
        }
    }

    /// A remote authority: one atomic push, and where that is not plainly done, reading back.
    async fn round_there(
        &self,
        run: &mut Run<'_>,
        build: &mut (impl FnMut(Option<&Oid>, &[usize]) -> Result<Batch> + Send),
    ) -> Result<Round> {
        let Some(attempt) = self.prepare(run, build)? else { return self.nothing_left(run) };
        let known = self.ref_value(ORIGIN_MAIN)?;
        let mut moves = Vec::new();
        if known.as_ref() != Some(&attempt.tip) {
            moves.push(RefMove { name: MAIN.into(), to: Some(attempt.tip.clone()), guard: Guard::FastForward });
        }
        moves.extend(attempt.claims().map(Moving::push));
        if moves.is_empty() {
            return Ok(Round::Done(attempt.published(run.ops.len(), run.pending.pushes)));
        }
        run.pending.pushes += 1;
        let pushed = self.push(&moves, true).await?;
        let done = |to: &RefMove| matches!(pushed.flags.get(&to.name), Some(Flag::Done | Flag::Same));
        if moves.iter().all(done) {
            let published = attempt.published(run.ops.len(), run.pending.pushes);
            // It is recorded; should our refs not follow now, the next fetch makes them.
            let _ = self.acknowledge(&attempt);
            return Ok(Round::Done(published));
        }
        run.pending.attempts.push(attempt);
        self.read_back(run, known, pushed.trouble).await
    }

    async fn read_back(&self, run: &mut Run<'_>, known: Option<Oid>, trouble: Trouble) -> Result<Round> {
        let main = match self.fetch_gated().await? {
            Ok(fetched) => fetched.main,
            Err(now) => return Ok(Round::End(PublishOutcome::Unknown(now, std::mem::take(&mut run.pending)))),
        };
        if let Some(published) = self.landed(&run.pending).await? {
            self.take_in_origin(run.by).await?;
            return Ok(Round::Done(published));
        }
        let moved = self.drop_lost(run)? | (main != known);
        self.take_in_origin(run.by).await?;
        run.refusals = if moved { 0 } else { run.refusals + 1 };
        if run.refusals < REFUSALS {
            return Ok(Round::Again);
        }
        Ok(Round::End(match trouble.kind {
            // It ended before a status came, but the remote may still be working on it.
            TroubleKind::TimedOut => PublishOutcome::Unknown(trouble, std::mem::take(&mut run.pending)),
            _ => PublishOutcome::Failed(trouble),
        }))
    }

    /// Marks ops as lost whose claim is no longer what they say. True when there are new ones.
    fn drop_lost(&self, run: &mut Run<'_>) -> Result<bool> {
        let before = run.lost.len();
        for (i, op) in run.ops.iter().enumerate() {
            let Some(m) = &op.claim else { continue };
            let name = claim_ref(&m.task);
            let is = self.seen_ref(&name)?;
            if is != m.old && !run.lost.iter().any(|(lost, _)| *lost == i) {
                let by = is.map(|is| self.read_claim(&name, &is)).transpose()?.and_then(std::result::Result::ok);
                run.lost.push((i, by));
            }
        }
        Ok(run.lost.len() > before)
    }

    /// Every op lost its claim.
    fn nothing_left(&self, run: &Run<'_>) -> Result<Round> {
        let tip = self.tip()?.ok_or(StateError::Unborn)?;
        let attempt = Attempt { base: None, tip, live: Vec::new(), lost: run.lost.clone() };
        Ok(Round::Done(attempt.published(run.ops.len(), run.pending.pushes)))
    }

    /// Which of the pushes the remote has recorded after all, as of the last fetch.
    async fn landed(&self, pending: &Pending) -> Result<Option<Published>> {
        let main = self.ref_value(ORIGIN_MAIN)?;
        for attempt in &pending.attempts {
            let recorded = match &main {
                Some(main) if attempt.base.as_ref() != Some(&attempt.tip) => self.is_ancestor(&attempt.tip, main)?,
                // Only claims were to be moved; they move together, so one new value proves all.
                _ => self.claims_moved(attempt)?,
            };
            if recorded {
                self.finish_claims(attempt).await?;
                let ops = attempt.live.len() + attempt.lost.len();
                let tip = main.unwrap_or_else(|| attempt.tip.clone());
                return Ok(Some(Published { tip, ..attempt.published(ops, pending.pushes) }));
            }
        }
        Ok(None)
    }

    fn claims_moved(&self, attempt: &Attempt) -> Result<bool> {
        let mut all_gone = attempt.claims().next().is_some();
        for m in attempt.claims() {
            let is = self.seen_ref(&m.name)?;
            if m.to.is_some() && is.as_ref() == m.to.as_ref().map(|held| &held.commit) {
                return Ok(true);
            }
            all_gone &= m.to.is_none() && is.is_none();
        }
        Ok(all_gone)
    }

    /// A remote that was stopped in the middle may have moved `main` alone: git's refs are not crash-atomic. What it had
    /// accepted with that is done now, as far as the claims still are what they were.
    async fn finish_claims(&self, attempt: &Attempt) -> Result<()> {
        let mut left = Vec::new();
        for m in attempt.claims() {
            if self.seen_ref(&m.name)? == m.old && m.old.is_some() {
                left.push(m.push());
            }
        }
        if !left.is_empty() {
            self.push(&left, false).await?;
        }
        Ok(())
    }

    /// The remote said yes: our refs follow.
    fn acknowledge(&self, attempt: &Attempt) -> Result<()> {
        let mut names = vec![MAIN, ORIGIN_MAIN];
        names.retain(|name| self.ref_value(name).is_ok_and(|is| is.as_ref() != Some(&attempt.tip)));
        let edits: Vec<_> = names
            .iter()
            .map(|name| ref_edit(name, self.ref_value(name)?.as_ref(), Some(&attempt.tip)))
            .collect::<Result<_>>()?;
        self.edit_refs(edits)?;
        self.sync_refs(names)?;
        let seen: Vec<_> =
            attempt.claims().map(|m| (m.name.clone(), m.to.as_ref().map(|h| h.commit.clone()))).collect();
        self.note_seen(&seen)
    }

    /// Makes our `main` contain the remote's.
    async fn take_in_origin(&self, by: &Identity) -> Result<()> {
        match self.ref_value(ORIGIN_MAIN)? {
            Some(theirs) => self.take_in_gated(&theirs, Peer::Authority, by).await.map(|_| ()),
            None => Ok(()),
        }
    }
}

impl Moving {
    fn push(&self) -> RefMove {
        let to = self.to.as_ref().map(|held| held.commit.clone());
        RefMove { name: self.name.clone(), to, guard: Guard::From(self.old.clone()) }
    }
}

impl Attempt {
    fn claims(&self) -> impl Iterator<Item = &Moving> {
        self.live.iter().filter_map(|live| live.claim.as_ref())
    }

    fn published(&self, ops: usize, pushes: u32) -> Published {
        let mut results = vec![OpResult::ClaimLost { by: None }; ops];
        for live in &self.live {
            results[live.op] = OpResult::Done(live.claim.as_ref().and_then(|m| m.to.clone()));
        }
        for (i, by) in &self.lost {
            results[*i] = OpResult::ClaimLost { by: by.clone() };
        }
        Published { tip: self.tip.clone(), ops: results, pushes }
    }
}
