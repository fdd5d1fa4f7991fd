//! What to merge: one train per project, in topological order, then by priority, then by age. A merge is tried in memory,
//! checked on exactly the tree that will land, and moved by compare-and-swap.

use super::ask::NoticeKind;
use super::board::{Board, MergeTry, Mode, Target, Task};
use super::event::Answer;
use super::target;
use crate::domain::chain::{CheckVerdict, judge_check, was_cut_off};
use crate::domain::phase::{Again, MergeStage, Phase, WaitFor};
use crate::domain::status::{AttemptEnd, Outcome, Reason, ReasonClass};
use crate::domain::verdict::RunEnd;
use crate::domain::{Now, ProjectId, TaskId};
use std::time::Duration;

/// How often a merge that failed for no reason of the task is tried again.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(5);

pub(super) fn levels(board: &mut Board, now: Now) {
    if board.mode != Some(Mode::Working) {
        return;
    }
    let ids: Vec<ProjectId> = board
        .projects
        .iter()
        .filter(|(id, p)| target::open_for_merges(p) && !target::train(board, id))
        .map(|(id, _)| id.clone())
        .collect();
    for id in ids {
        if let Some(task) = next(board, &id) {
            // A person may have asked for a review since it was queued here.
            if board.tasks.get(&task).is_some_and(Task::needs_review) {
                super::children::ready_to_merge(board, &task, "", now);
                continue;
            }
            take_present_rules(board, &task);
            super::advance::enter(
                board,
                &task,
                Phase::Merging { stage: MergeStage::Try },
                "first of the merge queue",
                now,
            );
        }
    }
}

/// Where a merge goes and what it must pass is what the configuration says now, not what it said when the task was claimed.
fn take_present_rules(board: &mut Board, id: &TaskId) {
    let Some(policy) = board.projects.get(&id.project).and_then(|p| p.policy.as_ref()) else { return };
    let (into, hash) = (policy.merge.into.clone(), policy.hash.clone());
    let checks = if policy.merge.checks { policy.checks.clone() } else { Vec::new() };
    let Some(plan) = board.task_mut(id).and_then(|t| t.plan.as_mut()) else { return };
    plan.into = into;
    plan.policy = hash;
    plan.merge_checks = checks;
}

/// The task that merges next.
pub fn next(board: &Board, id: &ProjectId) -> Option<TaskId> {
    let project = board.projects.get(id)?;
    let waiting = || board.tasks.values().filter(|t| t.id.project == *id && t.phase == Phase::MergeQueued);
    // What a task needs was merged before it started, but for needs that were written down while it was at work. They go
    // first; on a cycle nobody waits.
    let behind = |t: &Task| waiting().any(|other| project.graph.needs(&t.id.path).any(|need| *need == other.id.path));
    waiting()
        .min_by_key(|t| (behind(t), -i64::from(t.wish.priority), t.queued, t.id.path.clone()))
        .map(|t| t.id.clone())
}

/// The answer to an ask of the merging phases; `None` hands it back as not understood here.
pub(super) fn answered(board: &mut Board, id: &TaskId, stage: MergeStage, answer: Answer, now: Now) {
    match (stage, answer) {
        (MergeStage::Try, Answer::Merged { commit, tree, onto }) => {
            let Some(task) = board.task_mut(id) else { return };
            // Tries are not counted afresh: a move that fails each time after a merge that works would never end.
            task.merge = Some(MergeTry { commit, tree: tree.clone(), onto });
            let checks = task.plan.as_ref().is_some_and(|p| !p.merge_checks.is_empty());
            let green = board.projects.get(&id.project).is_some_and(|p| p.is_green(&tree));
            let (stage, why) = match (checks, green) {
                (true, false) => (MergeStage::Check { n: 0 }, "merged in memory"),
                (true, true) => (MergeStage::Move, "merged in memory; this very tree was green before"),
                (false, _) => (MergeStage::Move, "merged in memory; no checks are configured for it"),
            };
            super::advance::enter(board, id, Phase::Merging { stage }, why, now);
        }
        (MergeStage::Try, Answer::AlreadyIn { commit }) => {
            let end = AttemptEnd::Over { outcome: Outcome::Merged { commit } };
            super::ending::end_attempt(board, id, end, "its work is on the target already", now);
        }
        (MergeStage::Try, Answer::Conflict { files }) => {
            let text = format!("conflicts with what was merged meanwhile in {}", list(&files, 8));
            block(board, id, Reason::new(ReasonClass::MergeConflict, text), now);
        }
        (MergeStage::Move, Answer::Moved) => {
            let Some(task) = board.tasks.get(id) else { return };
            let Some(merge) = task.merge.clone() else { return };
            // A train that was under way when the configuration named another branch has moved the old one.
            let policy = board.projects.get(&id.project).and_then(|p| p.policy.as_ref());
            if policy.is_some_and(|p| task.plan.as_ref().is_some_and(|plan| plan.into == p.merge.into)) {
                target::moved(board, &id.project, merge.commit.clone(), merge.tree);
            }
            let end = AttemptEnd::Over { outcome: Outcome::Merged { commit: merge.commit } };
            super::ending::end_attempt(board, id, end, "merged", now);
        }
        (MergeStage::Try | MergeStage::Move, Answer::Overtaken { now: _ }) => {
            // Somebody moved the target: look at it afresh, then merge onto theirs.
            board.project_mut(&id.project).target = Target::Unknown;
            super::advance::enter(board, id, Phase::MergeQueued, "the target was moved by somebody else", now);
        }
        (MergeStage::Try | MergeStage::Move, Answer::Failed { why }) => {
            let Some(task) = board.task_mut(id) else { return };
            task.tries += 1;
            if task.tries >= TRIES {
                block(board, id, Reason::new(ReasonClass::MergeError, why), now);
            } else {
                task.not_before = Some(now.mono.after(PAUSE * task.tries));
                super::advance::enter(board, id, Phase::Backoff { again: Again::Merge }, &why, now);
            }
        }
        _ => {}
    }
}

/// A check of the merged tree is over.
pub(super) fn check_ended(board: &mut Board, id: &TaskId, n: usize, end: &RunEnd, timed_out: bool, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    let Some(check) = task.plan.as_ref().and_then(|p| p.merge_checks.get(n)).cloned() else { return };
    let Some(tree) = task.merge.as_ref().map(|m| m.tree.clone()) else { return };
    let policy = task.plan.as_ref().map(|p| p.policy.clone()).unwrap_or_default();
    let last = task.plan.as_ref().is_none_or(|p| n + 1 >= p.merge_checks.len());
    if !timed_out && was_cut_off(&end.exit, task.tries) && task.tries < TRIES {
        let Some(task) = board.task_mut(id) else { return };
        task.tries += 1;
        return super::advance::enter(
            board,
            id,
            Phase::Merging { stage: MergeStage::Check { n } },
            "the check was cut off and runs anew",
            now,
        );
    }
    let tail = target::last_lines(&end.tail, 20);
    match judge_check(&check, end, timed_out) {
        CheckVerdict::Pass | CheckVerdict::Skipped if !last => {
            let stage = MergeStage::Check { n: n + 1 };
            super::advance::enter(board, id, Phase::Merging { stage }, &format!("{} passes merged", check.name), now);
        }
        CheckVerdict::Pass | CheckVerdict::Skipped => {
            board.project_mut(&id.project).record_green(&tree, &policy);
            if let Some(task) = board.task_mut(id) {
                task.tries = 0;
            }
            let why = format!("{} passes merged: the tree is green", check.name);
            super::advance::enter(board, id, Phase::Merging { stage: MergeStage::Move }, &why, now);
        }
        CheckVerdict::Fail { why } => {
            let text = format!("merged with what landed meanwhile, check {} fails ({why})\n{tail}", check.name);
            block(board, id, Reason::new(ReasonClass::MergeRed, text), now);
        }
        CheckVerdict::CouldNotRun { why } => {
            let text = format!("check {} could not run on the merged tree ({why})\n{tail}", check.name);
            block(board, id, Reason::new(ReasonClass::MergeRed, text), now);
        }
    }
}

/// The task waits for a person; its branch stays and the others go on.
pub(super) fn block(board: &mut Board, id: &TaskId, reason: Reason, now: Now) {
    let text = reason.text.clone();
    if let Some(task) = board.task_mut(id) {
        task.merge = None;
    }
    board.notify(&id.project, Some(&id.path), NoticeKind::NeedsYou, text.clone());
    super::advance::enter(board, id, Phase::Waiting { on: WaitFor::Block { reason } }, &text, now);
}

/// A few names and how many more there are.
pub(super) fn list(names: &[String], most: usize) -> String {
    let shown = names.iter().take(most).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
