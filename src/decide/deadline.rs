//! The clocks. Each phase with a child has its own limits; back-offs, holds and waits have theirs. Everything is compared
//! with the one instant that came in, and `next_wake` names the earliest of all.

use super::ask::NoticeKind;
use super::board::{Board, Mode, PULSE, Task};
use crate::domain::phase::{Again, Child, Phase, StopCause, StopStage};
use crate::domain::status::{Reason, ReasonClass};
use crate::domain::verdict::{Exit, RunEnd};
use crate::domain::{Mono, Now, TaskId};
use std::time::Duration;

/// How long the end of a run that was over already may take to be told after a start.
const TAKE_UP: Duration = Duration::from_secs(15);
/// How often the calendar is looked at while a limit is waited for.
const CALENDAR: Duration = Duration::from_secs(60);

/// What is due for a task, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Its child has used up this clock.
    Stop(StopCause),
    /// TERM was not enough.
    Kill,
    /// KILL was not enough either: settle it and say so.
    GiveUp,
    /// A back-off is over.
    Again(Again),
    /// A queued task may be looked at once more.
    Look,
}

/// The next thing that is due for `task`.
pub fn due(task: &Task) -> Option<(Mono, Due)> {
    match &task.phase {
        Phase::Queued => task.not_before.map(|at| (at, Due::Look)),
        // The profile's hold decides, see `schedule`; an instant of its own only delays the look.
        Phase::Backoff { again: Again::Run } => task.not_before.map(|at| (at, Due::Look)),
        Phase::Backoff { again } => Some((task.not_before.unwrap_or(task.since), Due::Again(*again))),
        Phase::Stopping { stage, .. } => {
            let grace = task.plan.as_ref().map_or(Duration::from_secs(10), |p| p.limits.kill_grace);
            Some(match stage {
                StopStage::Term => (task.since.after(grace), Due::Kill),
                // Killing a large tree takes a moment; give the hand twice the grace before the task is settled without it.
                StopStage::Kill => (task.since.after(grace * 2 + Duration::from_secs(5)), Due::GiveUp),
            })
        }
        phase @ (Phase::Before { .. }
        | Phase::Running
        | Phase::Checking { .. }
        | Phase::After { .. }
        | Phase::Merging { .. }
        | Phase::Finally { .. }) => child_due(task, phase.child()?),
        Phase::Claiming
        | Phase::Preparing
        | Phase::Briefing
        | Phase::Collecting { .. }
        | Phase::Waiting { .. }
        | Phase::MergeQueued
        | Phase::Cleaning { .. }
        | Phase::Ended => None,
    }
}

fn child_due(task: &Task, child: Child) -> Option<(Mono, Due)> {
    let plan = task.plan.as_ref()?;
    let run = task.run.as_ref()?;
    // What ended while nobody looked is told of first: no clock that ran meanwhile judges it.
    let taken_up = run.taken_up.map(|at| at.after(TAKE_UP));
    let wall = |limit: Duration| {
        let at = run.started.after(limit);
        taken_up.map_or(at, |first| first.max(at))
    };
    let step = |limit: Duration| Some((wall(limit), Due::Stop(StopCause::WallLimit)));
    match child {
        Child::Agent => {
            let limits = &plan.limits;
            let mut clocks = vec![(wall(limits.wall), StopCause::WallLimit)];
            match run.result {
                Some(at) => clocks.push((at.after(limits.exit_grace), StopCause::AfterResult)),
                None if !run.first_event => {
                    clocks.push((run.started.after(limits.first_event), StopCause::NoFirstEvent))
                }
                None => clocks.push((run.last_progress.after(limits.no_progress), StopCause::NoProgress)),
            }
            clocks.into_iter().min_by_key(|(at, _)| *at).map(|(at, cause)| (at, Due::Stop(cause)))
        }
        Child::Before { n } => step(plan.chain.before.get(n)?.timeout),
        Child::After { n } => step(plan.chain.after.get(n)?.timeout),
        Child::Finally { n } => step(plan.chain.finally.get(n)?.timeout),
        Child::Check { n } => step(plan.checks.get(n)?.timeout),
        Child::MergeCheck { n } => step(plan.merge_checks.get(n)?.timeout),
    }
}

fn follows(board: &Board) -> bool {
    matches!(board.mode, Some(Mode::Working | Mode::Stopping))
}

/// Does what is due.
pub(super) fn apply(board: &mut Board, now: Now) {
    let over: Vec<(TaskId, Due)> = board
        .tasks
        .values()
        .filter_map(|t| due(t).filter(|(at, _)| *at <= now.mono).map(|(_, due)| (t.id.clone(), due)))
        .collect();
    for (id, due) in over {
        match due {
            // Where nobody follows runs it is not known what became of them.
            Due::Stop(_) | Due::Kill | Due::GiveUp if !follows(board) => {}
            Due::Stop(cause) => super::advance::stop(board, &id, cause, now),
            Due::Kill => super::advance::kill(board, &id, now),
            Due::GiveUp => give_up(board, &id, now),
            Due::Again(again) => super::advance::again(board, &id, again, now),
            Due::Look if board.mode != Some(Mode::Working) => {}
            Due::Look => {
                if let Some(task) = board.task_mut(&id) {
                    task.not_before = None;
                    task.elsewhere = None;
                }
            }
        }
    }
    super::target::deadlines(board, now);
}

/// A tree that cannot be ended must not hold the night: the task is settled, the worktree stays, and it is said.
fn give_up(board: &mut Board, id: &TaskId, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    let Some(run) = &task.run else { return };
    let end = RunEnd {
        exit: Exit::Lost,
        took: now.mono.since(run.started),
        survivors: vec![],
        tail: "the processes of this run could not be ended".into(),
        bytes: run.bytes,
        cut: 0,
    };
    let epoch = run.epoch;
    let text = "its processes could not be ended; the task is settled without them";
    board.note(id, epoch, "alarm", text, now);
    board.notify(&id.project, Some(&id.path), NoticeKind::Alarm, format!("{}: {text}", id.path));
    match task_cause(board, id) {
        // They are still in its worktree: nothing more may run there.
        Some((
            StopCause::WallLimit
            | StopCause::NoProgress
            | StopCause::NoFirstEvent
            | StopCause::Looping
            | StopCause::AfterResult,
            child,
        )) if !matches!(child, Child::MergeCheck { .. } | Child::Finally { .. }) => {
            super::ending::clean_failed(board, id, Reason::new(ReasonClass::Infra, text), now);
        }
        _ => super::children::run_ended(board, id, epoch, end, None, now),
    }
}

fn task_cause(board: &Board, id: &TaskId) -> Option<(StopCause, Child)> {
    let Phase::Stopping { cause, child, .. } = board.tasks.get(id)?.phase else { return None };
    Some((cause, child))
}

/// The earliest instant at which something is due, and the pulse while anything runs.
pub(super) fn next_wake(board: &Board, now: Now) -> Option<Mono> {
    board.mode?;
    let mut wake: Option<Mono> = None;
    let mut want = |at: Mono| wake = Some(wake.map_or(at, |w| w.min(at)));
    let mut alive = false;
    for task in board.tasks.values() {
        match due(task) {
            Some((_, Due::Stop(_) | Due::Kill | Due::GiveUp)) if !follows(board) => {}
            // Nothing is taken up again while the daemon ends.
            Some((_, Due::Again(_) | Due::Look)) if board.mode != Some(Mode::Working) => {}
            Some((at, _)) => want(at),
            None => {}
        }
        alive |= task.phase.child().is_some();
    }
    for project in board.projects.values() {
        for at in super::target::wakes(project) {
            want(at);
        }
        alive |= project.check.is_some();
        if board.mode == Some(Mode::Working) {
            for at in project.holds.values().filter(|h| !h.trial).filter_map(|h| h.until) {
                // A hold that is over and has nobody to try it must not wake us for ever.
                if at > now.mono {
                    // By the calendar it may be over sooner: nothing tells us that the machine slept.
                    want(at.min(now.mono.after(CALENDAR)));
                }
            }
        }
    }
    if alive {
        want(now.mono.after(PULSE));
    }
    wake
}
