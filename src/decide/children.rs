//! What the end of a child means: a step of the chain, a check of the task's own tree, or the agent itself; and what
//! comes next on the way from the agent's work to the merge queue.

use super::advance::{TRIES, before, enter, try_again};
use super::ask::NoticeKind;
use super::board::{Board, Failure};
use super::ending::{claim_gone, end_attempt, fail, finally};
use super::event::{Answer, Work};
use crate::domain::chain::{CheckVerdict, Step, StepVerdict, When, judge_check, judge_step, was_cut_off};
use crate::domain::follow::FailedCheck;
use crate::domain::phase::{Again, Child, Phase, StopCause, Then, WaitFor};
use crate::domain::status::{AttemptEnd, Outcome, Reason, ReasonClass};
use crate::domain::verdict::{AgentReport, Exit, Fault, RunEnd, Verdict};
use crate::domain::{Epoch, Now, RunId, TaskId};
use std::time::Duration;

/// The end of the child that the task has.
pub(super) fn run_ended(
    board: &mut Board,
    id: &TaskId,
    epoch: Epoch,
    end: RunEnd,
    agent: Option<AgentReport>,
    now: Now,
) {
    let Some(task) = board.task_mut(id) else { return };
    let Some(child) = task.phase.child() else { return };
    let cause = if let Phase::Stopping { cause, .. } = task.phase { Some(cause) } else { None };
    if let Some(report) = &agent {
        task.usage.add(&report.usage);
        if report.session.is_some() && child == Child::Agent {
            task.session.clone_from(&report.session);
            task.session_total = report.session_total;
        }
    }
    let took = crate::domain::time::human(end.took);
    let timed_out = cause == Some(StopCause::WallLimit);
    let how = crate::domain::chain::describe(&end.exit, false, Duration::ZERO);
    board.note(id, epoch, "run_ended", format!("{how} after {took}"), now);
    for one in &end.survivors {
        let text = format!(
            "left process {} behind ({}){}",
            one.pid,
            one.command,
            if one.ended { "" } else { ", still alive" }
        );
        board.note(id, epoch, "survivor", text, now);
    }
    match cause {
        Some(StopCause::Abort) => {
            return end_attempt(board, id, AttemptEnd::Over { outcome: Outcome::Aborted }, "aborted", now);
        }
        Some(StopCause::Shutdown) => {
            super::verdicts::interrupted(board, id);
            return enter(board, id, Phase::Backoff { again: child.again() }, "stopped with the daemon", now);
        }
        Some(StopCause::ClaimLost) => return claim_gone(board, id, now),
        Some(
            StopCause::WallLimit
            | StopCause::NoProgress
            | StopCause::NoFirstEvent
            | StopCause::Looping
            | StopCause::AfterResult,
        )
        | None => {}
    }
    if let (Exit::NeverStarted { why }, false) = (&end.exit, matches!(child, Child::Finally { .. })) {
        return super::verdicts::never_started(board, id, child, why, now);
    }
    match child {
        Child::Agent => super::verdicts::agent_ended(board, id, &end, agent, cause, now),
        Child::Before { .. } | Child::After { .. } => match agent.map(|report| report.verdict) {
            Some(verdict) if verdict != Verdict::Finished && !timed_out => {
                step_agent_ended(board, id, child, &end, &verdict, now);
            }
            Some(_) | None => step_ended(board, id, child, &end, timed_out, None, now),
        },
        Child::Finally { n } => {
            let next = n + 1;
            finally(board, id, next, &format!("finally step {n}: {how}"), now);
        }
        Child::Check { n } => check_ended(board, id, n, &end, timed_out, now),
        Child::MergeCheck { n } => super::merge::check_ended(board, id, n, &end, timed_out, now),
    }
}

/// A step that an agent does did not come to its end, whatever its CLI's exit says.
fn step_agent_ended(board: &mut Board, id: &TaskId, child: Child, end: &RunEnd, verdict: &Verdict, now: Now) {
    if verdict.fault() == Fault::Profile {
        return super::verdicts::hold_step(board, id, child, verdict, now);
    }
    let failed = RunEnd { exit: if end.ok() { Exit::Exited { code: 1 } } else { end.exit.clone() }, ..end.clone() };
    step_ended(board, id, child, &failed, false, Some(verdict.sentence()), now);
}

/// A step is over; `said` is why it failed where that is known better than by its exit.
fn step_ended(
    board: &mut Board,
    id: &TaskId,
    child: Child,
    end: &RunEnd,
    timed_out: bool,
    said: Option<String>,
    now: Now,
) {
    let Some(task) = board.task_mut(id) else { return };
    let Some(plan) = &task.plan else { return };
    let (list, n) = match child {
        Child::Before { n } => (&plan.chain.before, n),
        Child::After { n } => (&plan.chain.after, n),
        Child::Agent | Child::Finally { .. } | Child::Check { .. } | Child::MergeCheck { .. } => return,
    };
    let Some(step) = list.get(n).cloned() else { return };
    task.tries += 1;
    let verdict = judge_step(&step, end, timed_out, task.tries);
    if verdict != StepVerdict::Again {
        task.tries = 0;
    }
    let name = step.name;
    match (verdict, child) {
        (StepVerdict::Next, Child::Before { .. }) => before(board, id, n + 1, &format!("step {name} is done"), now),
        (StepVerdict::Next, _) => after(board, id, n + 1, true, &format!("step {name} is done"), now),
        (StepVerdict::Again, Child::Before { .. }) => {
            enter(board, id, Phase::Before { n }, &format!("step {name} is tried again"), now);
        }
        (StepVerdict::Again, _) => enter(board, id, Phase::After { n }, &format!("step {name} is tried again"), now),
        (StepVerdict::Stop { why }, _) => {
            let why = said.unwrap_or(why);
            let text = format!("step {name} failed ({why})\n{}", super::target::last_lines(&end.tail, 12));
            fail(board, id, Reason::new(ReasonClass::StepFailed, text.trim_end()), now);
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the answer to another ask is none to this one")]
pub(super) fn collected(board: &mut Board, id: &TaskId, then: Then, answer: Answer, now: Now) {
    match answer {
        Answer::Collected { work } => {
            let Some(task) = board.task_mut(id) else { return };
            task.tries = 0;
            let changed = work.tree != work.base_tree || work.changed > 0;
            let files = work.changed;
            task.work = Some(work);
            match then {
                Then::Merge => ready_to_merge(board, id, "after steps are in", now),
                Then::Check if changed => {
                    // It asked and did the work all the same: the work is judged, the question is void.
                    task.question = None;
                    let s = if files == 1 { "" } else { "s" };
                    checking(board, id, 0, &format!("{files} file{s} changed"), now);
                }
                Then::Check => super::verdicts::no_changes(board, id, now),
            }
        }
        Answer::Refused { reason, strayed } => {
            super::merge::block(board, id, reason, now);
            if let Some(what) = strayed {
                super::target::halt(board, &id.project, format!("while {} worked, {what}", id.path), now);
            }
        }
        Answer::Failed { why } => try_again(board, id, Again::Collect { then }, &why, now),
        _ => {}
    }
}

/// Check `n` of the task's own tree, or what follows the last one.
fn checking(board: &mut Board, id: &TaskId, n: usize, why: &str, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    let Some(plan) = &task.plan else { return };
    if n >= plan.checks.len() {
        return after(board, id, 0, false, why, now);
    }
    // The tree that failed last time cannot pass now: the agent got nowhere.
    let same = |w: &Work| task.failure.as_ref().is_some_and(|f| f.tree.as_ref() == Some(&w.tree));
    if n == 0 && task.work.as_ref().is_some_and(same) {
        let last = task.failure.as_ref().map(|f| f.reason.text.clone()).unwrap_or_default();
        let text = format!("the agent ran again and changed nothing, so this still stands: {last}");
        return fail(board, id, Reason::new(ReasonClass::NoProgress, text), now);
    }
    enter(board, id, Phase::Checking { n }, why, now);
}

fn check_ended(board: &mut Board, id: &TaskId, n: usize, end: &RunEnd, timed_out: bool, now: Now) {
    let Some(task) = board.task_mut(id) else { return };
    let Some(check) = task.plan.as_ref().and_then(|p| p.checks.get(n)).cloned() else { return };
    if !timed_out && was_cut_off(&end.exit, task.tries) && task.tries < TRIES {
        task.tries += 1;
        return enter(board, id, Phase::Checking { n }, "the check was cut off and runs anew", now);
    }
    task.tries = 0;
    let tail = super::target::last_lines(&end.tail, 60);
    let what = check.name.clone();
    let command = check.run.shown();
    let (why, ended) = match judge_check(&check, end, timed_out) {
        CheckVerdict::Pass => return checking(board, id, n + 1, &format!("check {what} passes"), now),
        CheckVerdict::Skipped => return checking(board, id, n + 1, &format!("check {what} does not apply"), now),
        CheckVerdict::Fail { why } => (format!("check {what} fails ({why})"), why),
        // Nothing the agent can do about it, and no word on its work.
        CheckVerdict::CouldNotRun { why } if !matches!(end.exit, Exit::Exited { .. }) => {
            let text = format!("check {what} could not run ({why})\n{tail}");
            return super::merge::block(board, id, Reason::new(ReasonClass::Infra, text), now);
        }
        CheckVerdict::CouldNotRun { why } => (format!("check {what} could not run ({why})"), why),
    };
    let rest: Vec<&str> = task.plan.iter().flat_map(|p| p.checks.iter().skip(n + 1)).map(|c| c.name.as_str()).collect();
    let why = if rest.is_empty() { why } else { format!("{why}; not run: {}", rest.join(", ")) };
    let tree = task.work.as_ref().map(|w| w.tree.clone());
    let reason = Reason::new(ReasonClass::ValidationFailed, format!("{why}\n$ {command}\n{tail}"));
    let failed = FailedCheck {
        check: what.clone(),
        command,
        ended,
        run: RunId::new(id, task.run.as_ref().map_or(task.epoch, |run| run.epoch)),
        tail: end.tail.clone(),
        bytes: end.bytes,
        left: 0,
    };
    task.failure = Some(Failure { what, tree, reason: reason.clone() });
    super::verdicts::send_back(board, id, reason, failed, &why, now);
}

/// After step `n` where one is left, else on to the merge; `ran` says that one has run, which may have changed files.
fn after(board: &mut Board, id: &TaskId, n: usize, ran: bool, why: &str, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    let steps: &[Step] = task.plan.as_ref().map_or(&[], |p| &p.chain.after);
    let next = (n..steps.len()).find(|i| steps[*i].when != When::Failure);
    match next {
        Some(n) => enter(board, id, Phase::After { n }, why, now),
        None if ran => enter(board, id, Phase::Collecting { then: Then::Merge }, why, now),
        None => ready_to_merge(board, id, why, now),
    }
}

pub(super) fn ready_to_merge(board: &mut Board, id: &TaskId, why: &str, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    if task.needs_review() {
        let why = super::explain::review_reason(task).text;
        board.notify(&id.project, Some(&id.path), NoticeKind::NeedsYou, format!("{} {why}", id.path));
        return enter(board, id, Phase::Waiting { on: WaitFor::Review }, &why, now);
    }
    enter(board, id, Phase::MergeQueued, why, now);
}
