//! One attempt's way: what each answer means in the phase it comes in. Stale answers (of an older epoch, or of a run that
//! is not the task's) are dropped here and nowhere else.

use super::ask::{NoticeKind, TaskAsk};
use super::board::{Board, Failure, Mode, RunFacts, Task};
use super::event::{Answer, Event, Progress, Work};
use super::orders;
use crate::domain::chain::{CheckVerdict, Step, StepVerdict, When, judge_check, judge_step};
use crate::domain::phase::{Again, Child, CleanStage, Phase, StopCause, StopStage, Then, WaitFor};
use crate::domain::status::{AttemptEnd, Outcome, Reason, ReasonClass};
use crate::domain::verdict::{AgentEvent, AgentReport, Exit, RunEnd};
use crate::domain::{Epoch, Mono, Now, RunId, TaskId};
use std::time::Duration;

/// How often an ask that failed outside the task is tried before the attempt is given up.
pub(super) const TRIES: u32 = 5;
/// Transitions kept for the next record at most.
const LOG_MAX: usize = 60;

pub(super) fn handle(board: &mut Board, event: Event, now: Now) {
    match event {
        Event::Started(started) => super::recover::started(board, &started, now),
        Event::Wake => {}
        Event::Request { id, request } => super::requests::request(board, id, request, now),
        Event::Configured { project, policy } => super::requests::configured(board, &project, *policy, now),
        Event::Wishes { project, news } => super::requests::wishes(board, &project, news, now),
        Event::Answer { task, epoch, answer } => answered(board, &task, epoch, answer, now),
        Event::Side { project, epoch, answer } => super::target::answered(board, &project, epoch, answer, now),
        Event::Progress { task, epoch, progress } => progressed(board, &task, epoch, progress, now),
        Event::Terminate { stop_agents } => super::requests::terminate(board, stop_agents, now),
    }
}

/// Enters a phase: a new epoch, a journal line, and the phase's one ask.
pub(super) fn enter(board: &mut Board, id: &TaskId, phase: Phase, why: &str, now: Now) {
    // While agents are being stopped no new child is started; the task keeps its place, its tree and its session.
    let starts = phase.child().is_some() && !matches!(phase, Phase::Stopping { .. });
    if let (true, Some(Mode::Stopping), Some(child)) = (starts, board.mode, phase.child()) {
        return enter(board, id, Phase::Backoff { again: child.again() }, "the daemon is stopping", now);
    }
    let Some(task) = board.task_mut(id) else { return };
    let entry = orders::entry(task, &phase, why, now);
    task.log.push(entry);
    if task.log.len() > LOG_MAX {
        task.log.remove(0);
    }
    task.epoch = task.epoch.next();
    task.prepared |= phase == Phase::Preparing;
    if starts {
        task.run = Some(RunFacts::new(task.epoch, now.mono));
    }
    task.phase = phase;
    task.since = now.mono;
    task.since_wall = now.wall;
    let (epoch, word) = (task.epoch, task.phase.word());
    board.note(id, epoch, word, why, now);
    ask_again(board, id, now);
}

/// Hands out the present phase's ask, at its entry or once more after a restart.
pub(super) fn ask_again(board: &mut Board, id: &TaskId, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    let epoch = task.epoch;
    if let Some(what) = orders::ask_for(board, id) {
        if task.phase == Phase::Running && task.background_due() {
            start_background(board, id, epoch);
        }
        return board.ask_task(id, epoch, what);
    }
    // A phase that asks, in a state that gives it nothing to ask with: it waits for that, or has nothing to do.
    match task.phase.clone() {
        Phase::Preparing => {
            if let Some(task) = board.task_mut(id) {
                task.not_before = Some(now.mono.after(Duration::from_secs(1)));
            }
            enter(board, id, Phase::Backoff { again: Again::Prepare }, "the target branch is being looked at", now);
        }
        Phase::Merging { .. } => enter(board, id, Phase::MergeQueued, "the target branch is being looked at", now),
        Phase::Before { .. }
        | Phase::Running
        | Phase::Checking { .. }
        | Phase::After { .. }
        | Phase::Collecting { .. }
        | Phase::Finally { .. } => {
            let reason = Reason::new(ReasonClass::Infra, "its worktree or plan is gone");
            fail(board, id, reason, now);
        }
        Phase::Queued
        | Phase::Claiming
        | Phase::Briefing
        | Phase::Stopping { .. }
        | Phase::Waiting { .. }
        | Phase::MergeQueued
        | Phase::Backoff { .. }
        | Phase::Cleaning { .. }
        | Phase::Ended => {}
    }
}

fn start_background(board: &mut Board, id: &TaskId, epoch: Epoch) {
    let Some(task) = board.task_mut(id) else { return };
    let (Some(worktree), Some(plan)) = (task.worktree.clone(), &task.plan) else { return };
    let steps = plan.chain.background.clone();
    task.background = true;
    board.ask_task(id, epoch, TaskAsk::StartBackground { worktree, steps });
}

fn answered(board: &mut Board, id: &TaskId, epoch: Epoch, answer: Answer, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    match answer {
        // The end of a child is known by its run: the task may have gone on to `Stopping` meanwhile.
        Answer::RunEnded { run, end, agent } => {
            let expected = task.run.as_ref().map(|r| r.epoch);
            if Some(epoch) == expected && run == RunId::new(id, epoch) && task.phase.child().is_some() {
                run_ended(board, id, epoch, end, agent, now);
            }
        }
        Answer::Published => super::publish::published(board, id, epoch),
        Answer::BackgroundEnded { step, why } => {
            let text = why.map_or_else(
                || format!("background step {step} ended well"),
                |w| format!("background step {step}: {w}"),
            );
            board.note(id, epoch, "background", text, now);
        }
        _ if epoch != task.epoch => {}
        Answer::ClaimGone => claim_gone(board, id, now),
        answer => match task.phase.clone() {
            Phase::Claiming => claiming(board, id, answer, now),
            Phase::Preparing => preparing(board, id, answer, now),
            Phase::Briefing => briefing(board, id, &answer, now),
            Phase::Collecting { then } => collected(board, id, then, answer, now),
            Phase::Merging { stage } => super::merge::answered(board, id, stage, answer, now),
            Phase::Cleaning { stage } => cleaned(board, id, stage, &answer, now),
            Phase::Queued
            | Phase::Before { .. }
            | Phase::Running
            | Phase::Stopping { .. }
            | Phase::Checking { .. }
            | Phase::After { .. }
            | Phase::Waiting { .. }
            | Phase::MergeQueued
            | Phase::Backoff { .. }
            | Phase::Finally { .. }
            | Phase::Ended => {}
        },
    }
}

fn claiming(board: &mut Board, id: &TaskId, answer: Answer, now: Now) {
    match answer {
        Answer::ClaimWon { held } => {
            let Some(task) = board.task_mut(id) else { return };
            task.held = Some(held);
            task.tries = 0;
            task.started.get_or_insert(now.wall);
            enter(board, id, Phase::Preparing, "claim won", now);
        }
        Answer::ClaimLost { by } => {
            let Some(task) = board.task_mut(id) else { return };
            task.plan = None;
            task.not_before = Some(now.mono.after(Duration::from_secs(30)));
            task.elsewhere = Some(by.clone());
            enter(board, id, Phase::Queued, &format!("claimed by {by}"), now);
        }
        Answer::ClaimUnknown { why } | Answer::Failed { why } => {
            // Nothing is started on an unknown claim; the same ask reads it back.
            let Some(task) = board.task_mut(id) else { return };
            task.tries += 1;
            task.plan = None;
            task.not_before = Some(now.mono.after(Duration::from_secs(u64::from(task.tries.min(6)) * 5)));
            enter(board, id, Phase::Queued, &format!("the claim's fate is not known yet: {why}"), now);
        }
        _ => {}
    }
}

fn preparing(board: &mut Board, id: &TaskId, answer: Answer, now: Now) {
    match answer {
        Answer::WorktreeReady { worktree } => {
            let Some(task) = board.task_mut(id) else { return };
            task.worktree = Some(worktree);
            task.tries = 0;
            enter(board, id, Phase::Briefing, "worktree ready", now);
        }
        Answer::Failed { why } => try_again(board, id, Again::Prepare, &why, now),
        _ => {}
    }
}

fn briefing(board: &mut Board, id: &TaskId, answer: &Answer, now: Now) {
    match answer {
        Answer::Briefed => before(board, id, 0, "briefed", now),
        Answer::Failed { why } => fail(board, id, Reason::new(ReasonClass::Infra, why.clone()), now),
        _ => {}
    }
}

/// Step `n` of the before chain, or the agent where there are no more.
fn before(board: &mut Board, id: &TaskId, n: usize, why: &str, now: Now) {
    let more = board.tasks.get(id).and_then(|t| t.plan.as_ref()).is_some_and(|p| n < p.chain.before.len());
    enter(board, id, if more { Phase::Before { n } } else { Phase::Running }, why, now);
}

/// A back-off of a hand's ask, bounded.
pub(super) fn try_again(board: &mut Board, id: &TaskId, again: Again, why: &str, now: Now) {
    let Some(task) = board.task_mut(id) else { return };
    task.tries += 1;
    if task.tries >= TRIES {
        task.tries = 0;
        return fail(board, id, Reason::new(ReasonClass::Infra, why), now);
    }
    task.not_before = Some(now.mono.after(Duration::from_secs(2) * task.tries * task.tries));
    enter(board, id, Phase::Backoff { again }, why, now);
}

/// A back-off is over.
pub(super) fn again(board: &mut Board, id: &TaskId, again: Again, now: Now) {
    if board.mode != Some(Mode::Working) {
        return;
    }
    if let Some(task) = board.task_mut(id) {
        task.not_before = None;
    }
    let phase = match again {
        Again::Claim => Phase::Claiming,
        Again::Prepare => Phase::Preparing,
        Again::Run => Phase::Running,
        Again::Child { child } => child.phase(),
        Again::Collect { then } => Phase::Collecting { then },
        Again::Merge => Phase::MergeQueued,
        Again::Clean { stage } => Phase::Cleaning { stage },
    };
    enter(board, id, phase, "tried again", now);
}

/// A child is to be ended.
pub(super) fn stop(board: &mut Board, id: &TaskId, cause: StopCause, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    if matches!(task.phase, Phase::Stopping { .. }) {
        return;
    }
    let Some(child) = task.phase.child() else { return };
    let phase = Phase::Stopping { stage: StopStage::Term, cause, child };
    enter(board, id, phase, cause.word(), now);
}

/// TERM was not obeyed in time.
pub(super) fn kill(board: &mut Board, id: &TaskId, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    if let Phase::Stopping { cause, child, .. } = task.phase {
        let phase = Phase::Stopping { stage: StopStage::Kill, cause, child };
        enter(board, id, phase, "TERM was not enough", now);
    }
}

fn progressed(board: &mut Board, id: &TaskId, epoch: Epoch, progress: Progress, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    if task.run.as_ref().map(|r| r.epoch) != Some(epoch) {
        return;
    }
    // A session's id is worth a save: it is what a crash would lose. The rest is found out again.
    let session = progress.events.iter().find_map(|e| match e {
        AgentEvent::Session { id, .. } => Some(id.clone()),
        _ => None,
    });
    if session.is_some() && session != task.session && matches!(task.phase.child(), Some(Child::Agent)) {
        if let Some(task) = board.task_mut(id) {
            task.session = session;
        }
    }
    let Some(run) = board.task_soft(id).and_then(|t| t.run.as_mut()) else { return };
    if progress.bytes > run.bytes {
        run.bytes = progress.bytes;
        run.last_output = now.mono;
    }
    let mut moved = progress.touched;
    for event in &progress.events {
        run.first_event = true;
        moved |= event.is_progress();
        match event {
            AgentEvent::Result { .. } => run.result = Some(now.mono),
            AgentEvent::ToolBegin { tool, what } => run.doing = format!("{tool} {what}"),
            AgentEvent::Retry { reason } => run.doing = format!("its CLI retries: {reason}"),
            AgentEvent::Text { .. } => run.doing = "thinking".into(),
            AgentEvent::Session { .. }
            | AgentEvent::ToolEnd { .. }
            | AgentEvent::Usage { .. }
            | AgentEvent::Error { .. } => {}
        }
        // A CLI that waits for its provider is not hanging: its own retry starts the clock afresh, the wall limit stands.
        moved |= matches!(event, AgentEvent::Retry { .. });
    }
    if moved {
        run.last_progress = now.mono;
    }
}

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
    let (child, cause) = match task.phase {
        Phase::Stopping { child, cause, .. } => (child, Some(cause)),
        ref phase => match phase.child() {
            Some(child) => (child, None),
            None => return,
        },
    };
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
        Some(StopCause::WallLimit | StopCause::NoProgress | StopCause::NoFirstEvent | StopCause::AfterResult)
        | None => {}
    }
    match child {
        Child::Agent => super::verdicts::agent_ended(board, id, &end, agent, cause, now),
        Child::Before { n } => step_ended(board, id, child, n, &end, timed_out, now),
        Child::After { n } => step_ended(board, id, child, n, &end, timed_out, now),
        Child::Finally { n } => {
            let next = n + 1;
            finally(board, id, next, &format!("finally step {n}: {how}"), now);
        }
        Child::Check { n } => check_ended(board, id, n, &end, timed_out, now),
        Child::MergeCheck { n } => super::merge::check_ended(board, id, n, &end, timed_out, now),
    }
}

fn step_ended(board: &mut Board, id: &TaskId, child: Child, n: usize, end: &RunEnd, timed_out: bool, now: Now) {
    let Some(task) = board.task_mut(id) else { return };
    let Some(plan) = &task.plan else { return };
    let list = if matches!(child, Child::Before { .. }) { &plan.chain.before } else { &plan.chain.after };
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
            let text = format!("step {name} failed ({why})\n{}", super::target::last_lines(&end.tail, 12));
            fail(board, id, Reason::new(ReasonClass::StepFailed, text), now);
        }
    }
}

fn collected(board: &mut Board, id: &TaskId, then: Then, answer: Answer, now: Now) {
    match answer {
        Answer::Collected { work } => {
            let Some(task) = board.task_mut(id) else { return };
            task.tries = 0;
            let changed = work.tree != work.base_tree || work.changed > 0;
            let files = work.changed;
            task.work = Some(work);
            match then {
                Then::Merge => ready_to_merge(board, id, "after steps are in", now),
                Then::Check if changed => checking(board, id, 0, &format!("{files} files changed"), now),
                Then::Check => super::verdicts::no_changes(board, id, now),
            }
        }
        Answer::Refused { reason } => {
            super::merge::block(board, id, reason, now);
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
    if !timed_out && matches!(end.exit, Exit::Lost | Exit::DeadMan) && task.tries < TRIES {
        task.tries += 1;
        return enter(board, id, Phase::Checking { n }, "the check was lost and runs anew", now);
    }
    task.tries = 0;
    let tail = super::target::last_lines(&end.tail, 60);
    let what = check.name.clone();
    let command = check.run.shown();
    let why = match judge_check(&check, end, timed_out) {
        CheckVerdict::Pass => return checking(board, id, n + 1, &format!("check {what} passes"), now),
        CheckVerdict::Skipped => return checking(board, id, n + 1, &format!("check {what} does not apply"), now),
        CheckVerdict::Fail { why } => format!("check {what} fails ({why})"),
        CheckVerdict::CouldNotRun { why } => format!("check {what} could not run ({why})"),
    };
    let tree = task.work.as_ref().map(|w| w.tree.clone());
    let reason = Reason::new(ReasonClass::ValidationFailed, format!("{why}\n$ {command}\n{tail}"));
    let first_line = why.clone();
    task.failure = Some(Failure { what, tree, reason: reason.clone() });
    super::verdicts::send_back(board, id, reason, &first_line, now);
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

fn ready_to_merge(board: &mut Board, id: &TaskId, why: &str, now: Now) {
    stop_background(board, id);
    let Some(task) = board.tasks.get(id) else { return };
    if task.plan.as_ref().is_some_and(|p| p.review) && task.wish.review {
        let text = format!("{} waits for your review", id.path);
        board.notify(&id.project, Some(&id.path), NoticeKind::NeedsYou, text);
        return enter(board, id, Phase::Waiting { on: WaitFor::Review }, "the task asks for a person's review", now);
    }
    enter(board, id, Phase::MergeQueued, why, now);
}

fn stop_background(board: &mut Board, id: &TaskId) {
    let Some(task) = board.task_mut(id) else { return };
    if std::mem::take(&mut task.background) {
        let epoch = task.epoch;
        board.ask_task(id, epoch, TaskAsk::StopBackground);
    }
}

/// The attempt failed for good.
pub(super) fn fail(board: &mut Board, id: &TaskId, reason: Reason, now: Now) {
    let text = reason.to_string();
    end_attempt(board, id, AttemptEnd::Over { outcome: Outcome::Failed { reason } }, &text, now);
}

/// How the attempt ends is settled: its last steps, then rescue, conclusion and the worktree's way back.
pub(super) fn end_attempt(board: &mut Board, id: &TaskId, end: AttemptEnd, why: &str, now: Now) {
    stop_background(board, id);
    let Some(task) = board.task_mut(id) else { return };
    task.end = Some(end);
    task.tries = 0;
    finally(board, id, 0, why, now);
}

fn finally(board: &mut Board, id: &TaskId, n: usize, why: &str, now: Now) {
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
        CleanStage::Rescue | CleanStage::Publish | CleanStage::Remove => {
            enter(board, id, Phase::Cleaning { stage }, why, now);
        }
    }
}

fn cleaned(board: &mut Board, id: &TaskId, stage: CleanStage, answer: &Answer, now: Now) {
    match (stage, answer) {
        (CleanStage::Rescue, Answer::Rescued) => clean(board, id, CleanStage::Publish, "all work is kept", now),
        (CleanStage::Publish, Answer::Concluded) => {
            if let Some(task) = board.task_mut(id) {
                task.held = None;
                task.log.clear();
                task.published = Some(task.epoch);
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
fn claim_gone(board: &mut Board, id: &TaskId, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    if task.phase.child().is_some() && !matches!(task.phase, Phase::Stopping { .. }) {
        return stop(board, id, StopCause::ClaimLost, now);
    }
    if let Some(task) = board.task_mut(id) {
        task.held = None;
        task.end = Some(AttemptEnd::Requeue);
        task.elsewhere = Some("another holder".into());
        task.not_before = Some(now.mono.after(Duration::from_secs(30)));
    }
    let stage = match board.tasks.get(id).map(|t| &t.phase) {
        Some(Phase::Cleaning { stage: CleanStage::Publish }) => CleanStage::Remove,
        _ => CleanStage::Rescue,
    };
    clean(board, id, stage, "the claim was lost", now);
}

/// The attempt is cleaned up: the task is over, or back in the queue.
fn finish(board: &mut Board, id: &TaskId, now: Now) {
    let Some(task) = board.task_mut(id) else { return };
    let end = task.end.take().unwrap_or(AttemptEnd::Requeue);
    let lost = task.held.is_none() && task.elsewhere.is_some();
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
            task.new_life(now);
            enter(board, id, Phase::Queued, &format!("{} before; tried again on request", outcome.status()), now);
        }
        AttemptEnd::Over { outcome } => over(board, id, outcome, now),
    }
}

fn over(board: &mut Board, id: &TaskId, outcome: Outcome, now: Now) {
    enter(board, id, Phase::Ended, outcome.status().word(), now);
    let Some(task) = board.task_mut(id) else { return };
    let concluded = super::event::Concluded { outcome, epoch: task.epoch, retry: task.retry };
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
    fn background_due(&self) -> bool {
        !self.background && self.plan.as_ref().is_some_and(|p| !p.chain.background.is_empty())
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
    }

    /// A new try on a person's request: all counters start afresh.
    pub(super) fn new_life(&mut self, now: Now) {
        self.retry = self.wish.retry;
        self.attempts = 0;
        self.session = None;
        self.session_total = None;
        self.failure = None;
        self.question = None;
        self.queued = now.wall;
        self.started = None;
        self.not_before = None;
    }
}

impl RunFacts {
    pub(super) fn new(epoch: Epoch, now: Mono) -> Self {
        Self {
            epoch,
            started: now,
            last_output: now,
            last_progress: now,
            bytes: 0,
            first_event: false,
            result: None,
            doing: String::new(),
        }
    }
}
