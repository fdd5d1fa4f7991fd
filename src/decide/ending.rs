//! The end of an attempt, however it came: last steps, then the work is kept, the end recorded and the claim released, and
//! the worktree goes back. What follows is the end of the task, or its place in the queue again.

use super::advance::{TRIES, enter, stop};
use super::board::{Board, Task};
use super::event::{Answer, Concluded};
use super::facts::{Failure, Told};
use crate::domain::chain::{Step, When};
use crate::domain::phase::{Again, CleanStage, Phase, StopCause};
use crate::domain::status::{AttemptEnd, Outcome, Reason};
use crate::domain::task::Wish;
use crate::domain::{Epoch, Now, TaskId};
use std::time::Duration;

/// The attempt failed for good.
pub(super) fn fail(board: &mut Board, id: &TaskId, reason: Reason, now: Now) {
    let text = reason.to_string();
    end_attempt(board, id, AttemptEnd::Over { outcome: Outcome::Failed { reason } }, &text, now);
}

/// The attempt failed where nothing more may run, not even its last steps.
pub(super) fn clean_failed(board: &mut Board, id: &TaskId, reason: Reason, now: Now) {
    let text = reason.to_string();
    let Some(task) = board.task_mut(id) else { return };
    task.end = Some(AttemptEnd::Over { outcome: Outcome::Failed { reason } });
    task.tries = 0;
    clean(board, id, CleanStage::Rescue, &text, now);
}

/// How the attempt ends is settled: its last steps, then rescue, conclusion and the worktree's way back.
pub(super) fn end_attempt(board: &mut Board, id: &TaskId, end: AttemptEnd, why: &str, now: Now) {
    let Some(task) = board.task_mut(id) else { return };
    task.end = Some(end);
    task.tries = 0;
    finally(board, id, 0, why, now);
}

pub(super) fn finally(board: &mut Board, id: &TaskId, n: usize, why: &str, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    let good = matches!(&task.end, Some(AttemptEnd::Over { outcome }) if outcome.satisfies());
    let applies = |step: &Step| match step.when {
        When::Always => true,
        When::Success => good,
        When::Failure => !good,
    };
    let steps: &[Step] = match (&task.plan, &task.worktree) {
        (Some(plan), Some(_)) => &plan.chain.finally,
        _ => &[],
    };
    match (n..steps.len()).find(|i| applies(&steps[*i])) {
        Some(n) => enter(board, id, Phase::Finally { n }, why, now),
        None => clean(board, id, CleanStage::Rescue, why, now),
    }
}

/// The stages of cleaning that have something to do.
fn clean(board: &mut Board, id: &TaskId, stage: CleanStage, why: &str, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    match stage {
        // Asked for is as good as made here: a worktree whose answer was lost is found by its branch.
        CleanStage::Rescue if !task.prepared => clean(board, id, CleanStage::Publish, why, now),
        CleanStage::Remove if !task.prepared => finish(board, id, now),
        // Whoever has the claim now does the telling.
        CleanStage::Publish if task.claim_lost() => clean(board, id, CleanStage::Remove, why, now),
        CleanStage::Rescue | CleanStage::Publish | CleanStage::Remove => {
            enter(board, id, Phase::Cleaning { stage }, why, now);
        }
    }
}

pub(super) fn cleaned(board: &mut Board, id: &TaskId, stage: CleanStage, answer: &Answer, now: Now) {
    match (stage, answer) {
        (CleanStage::Rescue, Answer::Rescued) => clean(board, id, CleanStage::Publish, "all work is kept", now),
        (CleanStage::Publish, Answer::Concluded) => {
            if let Some(task) = board.task_mut(id) {
                task.held = None;
                task.log.clear();
                task.published = Some(Told { epoch: task.epoch, waits: false });
            }
            clean(board, id, CleanStage::Remove, "concluded and released", now);
        }
        (CleanStage::Remove, Answer::GivenBack) => finish(board, id, now),
        (_, Answer::Failed { why }) => {
            let Some(task) = board.task_mut(id) else { return };
            task.tries += 1;
            // A worktree that cannot be removed is set aside by the pool and said there; the task does not wait for it.
            if stage == CleanStage::Remove && task.tries >= TRIES {
                board.note(id, Epoch(0), "alarm", format!("its worktree could not be given back: {why}"), now);
                return finish(board, id, now);
            }
            // Work that could not be kept yet, and a conclusion nobody has acknowledged, are tried for as long as it takes.
            task.not_before = Some(now.mono.after(Duration::from_secs(u64::from(task.tries.min(12)) * 5)));
            enter(board, id, Phase::Backoff { again: Again::Clean { stage } }, why, now);
        }
        _ => {}
    }
}

/// The claim is no longer ours: nothing of this attempt is published, its work is kept, its agent has been stopped.
pub(super) fn claim_gone(board: &mut Board, id: &TaskId, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    if task.phase.child().is_some() && !matches!(task.phase, Phase::Stopping { .. }) {
        return stop(board, id, StopCause::ClaimLost, now);
    }
    if let Some(task) = board.task_mut(id) {
        task.held = None;
        task.end = Some(AttemptEnd::Requeue);
        // Whoever has it now has its own attempts; should it come back, it comes back fresh.
        task.attempts = 0;
        task.failure = None;
        task.elsewhere = Some("another holder".into());
        task.not_before = Some(now.mono.after(Duration::from_secs(30)));
    }
    clean(board, id, CleanStage::Rescue, "the claim was lost", now);
}

/// The attempt is cleaned up: the task is over, or back in the queue.
fn finish(board: &mut Board, id: &TaskId, now: Now) {
    let Some(task) = board.task_mut(id) else { return };
    let lost = task.claim_lost();
    let end = task.end.take().unwrap_or(AttemptEnd::Requeue);
    task.reset_attempt();
    match end {
        AttemptEnd::Requeue => {
            if !lost {
                task.not_before = None;
            }
            enter(board, id, Phase::Queued, "back in the queue", now);
        }
        AttemptEnd::Over { outcome } if task.wish.retry > task.retry && task.wish.wish.is_none() => {
            // A person asked for a new try while this one was ending.
            task.new_life(outcome.reason(), now);
            enter(board, id, Phase::Queued, &format!("{} before; tried again on request", outcome.status()), now);
        }
        AttemptEnd::Over { outcome } => over(board, id, outcome, now),
    }
}

fn over(board: &mut Board, id: &TaskId, outcome: Outcome, now: Now) {
    enter(board, id, Phase::Ended, outcome.status().word(), now);
    let Some(task) = board.task_mut(id) else { return };
    let concluded = Concluded { outcome, epoch: task.epoch, retry: task.retry };
    board.put_ended(id, Some(concluded));
    board.drop_task(id);
}

/// A parent whose sub-tasks are all done is done; there is nothing to claim or clean.
pub(super) fn conclude_parent(board: &mut Board, id: &TaskId, now: Now) {
    if let Some(task) = board.task_mut(id) {
        task.end = Some(AttemptEnd::Over { outcome: Outcome::ChildrenDone });
    }
    clean(board, id, CleanStage::Publish, "all its sub-tasks are done", now);
}

/// A task that was never started is over without more ado than its record.
pub(super) fn abort_queued(board: &mut Board, id: &TaskId, now: Now) {
    if let Some(task) = board.task_mut(id) {
        task.end = Some(AttemptEnd::Over { outcome: Outcome::Aborted });
    }
    clean(board, id, CleanStage::Publish, "aborted before it started", now);
}

impl Task {
    /// This attempt ends because somebody else has the claim.
    fn claim_lost(&self) -> bool {
        self.held.is_none() && self.elsewhere.is_some() && self.end == Some(AttemptEnd::Requeue)
    }

    /// A task that is over and is tried again.
    pub(super) fn again(id: &TaskId, wish: Wish, ended: &Concluded, epoch: Epoch, now: Now) -> Self {
        let failure = ended.outcome.reason().map(Failure::of_earlier);
        Self { failure, ..Self::new(id.clone(), wish, epoch, now) }
    }

    /// Forgets everything that belongs to one attempt only.
    fn reset_attempt(&mut self) {
        self.plan = None;
        self.worktree = None;
        self.run = None;
        self.work = None;
        self.merge = None;
        self.follow = None;
        self.tries = 0;
        self.background = false;
        self.prepared = false;
        // A session belongs to the worktree it was held in.
        self.session = None;
        self.session_total = None;
    }

    /// A new try on a person's request: all counters start afresh. The brief tells how the last one ended.
    pub(super) fn new_life(&mut self, last: Option<Reason>, now: Now) {
        self.retry = self.wish.retry;
        self.attempts = 0;
        self.failure = last.map(Failure::of_earlier);
        self.question = None;
        self.answer = None;
        self.queued = now.wall;
        self.started = None;
        self.not_before = None;
    }
}
