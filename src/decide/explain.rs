//! Why things are as they are, in words: the public status, its reason, and the sentence that `why` prints. Computed from
//! the same gates that hold a task back, never stored.

use super::board::{Board, Project, Target, Task};
use super::schedule::{self, Counts, Hold};
use crate::domain::phase::{Again, Child, MergeStage, Phase, StopCause, WaitFor};
use crate::domain::status::{AttemptEnd, Reason, ReasonClass, Status};
use crate::domain::task::WishStatus;
use crate::domain::time::human;
use crate::domain::{Now, TaskId};

/// The public status of an open task.
pub fn status(board: &Board, task: &Task) -> Status {
    match (&task.phase, &task.end) {
        (Phase::Finally { .. } | Phase::Cleaning { .. } | Phase::Ended, Some(AttemptEnd::Over { outcome })) => {
            outcome.status()
        }
        (Phase::Backoff { again: Again::Clean { .. } }, Some(AttemptEnd::Over { outcome })) => outcome.status(),
        (Phase::Cleaning { .. }, Some(AttemptEnd::Requeue)) => Status::Queued,
        (Phase::Queued, _) if task.wish.wish.is_some() => Status::Aborted,
        (Phase::Queued, _) if task.wish.status == WishStatus::Planning => Status::Planning,
        (Phase::Queued, _) if parent_stuck(board, task) => Status::Blocked,
        (Phase::Queued, _) if parent_started(board, task) => Status::InProgress,
        (Phase::Queued | Phase::Claiming, _) => Status::Queued,
        (Phase::Preparing | Phase::Briefing | Phase::Backoff { again: Again::Prepare | Again::Claim }, _) => {
            Status::Claimed
        }
        (Phase::Waiting { .. }, _) => Status::Blocked,
        _ => Status::InProgress,
    }
}

fn parent_started(board: &Board, task: &Task) -> bool {
    let (all, open, _) = schedule::children(board, &task.id);
    all > 0 && open < all
}

/// A sub-task failed or waits for a person, and none of the others moves.
fn parent_stuck(board: &Board, task: &Task) -> bool {
    let Some(project) = board.projects.get(&task.id.project) else { return false };
    let (all, _, failed) = schedule::children(board, &task.id);
    let mut waits = failed.is_some();
    for path in project.graph.children(&task.id.path) {
        let id = TaskId { project: task.id.project.clone(), path: path.clone() };
        match board.tasks.get(&id) {
            Some(child) if matches!(child.phase, Phase::Waiting { .. }) => waits = true,
            Some(_) if !is_stuck(board, task, path) => return false,
            Some(_) | None => {}
        }
    }
    all > 0 && waits
}

/// The status and reason that are written to the state repo.
pub(super) fn published(board: &Board, task: &Task) -> (Status, Option<Reason>) {
    let reason = match (&task.phase, &task.end) {
        (_, Some(AttemptEnd::Over { outcome })) if outcome.reason().is_some() => outcome.reason(),
        (Phase::Waiting { on }, _) => Some(waiting_reason(task, on)),
        _ => None,
    };
    (status(board, task), reason)
}

/// Why a task waits for a person.
pub fn waiting_reason(task: &Task, on: &WaitFor) -> Reason {
    match on {
        WaitFor::Block { reason } => reason.clone(),
        WaitFor::Question => Reason::new(ReasonClass::NeedsInput, task.question.clone().unwrap_or_default()),
        WaitFor::Review => review_reason(task),
    }
}

/// Why a person has to look at a task's work.
pub(super) fn review_reason(task: &Task) -> Reason {
    let found = task.work.as_ref().map(|w| w.protected.as_slice()).unwrap_or_default();
    let text = match (task.wish.review, found) {
        (None, [one]) => format!("waits for a person's review: it {one}"),
        (None, [rest @ .., last]) => format!("waits for a person's review: it {} and {last}", rest.join(", ")),
        _ => "waits for a person's review".into(),
    };
    Reason::new(ReasonClass::Review, text)
}

/// A profile's hold that no clock ends.
pub(super) fn held_for_good(board: &Board, task: &Task) -> bool {
    let Some(plan) = &task.plan else { return false };
    let Some(project) = board.projects.get(&task.id.project) else { return false };
    project.holds.get(&plan.profile_name).is_some_and(|h| h.until.is_none() && !h.trial)
}

/// The reason that stands behind a queued task's waiting, where it is more than its turn.
pub fn queued_reason(board: &Board, task: &Task) -> Option<Reason> {
    let project = board.projects.get(&task.id.project)?;
    let (_, open, failed) = schedule::children(board, &task.id);
    if let Some(child) = failed.filter(|_| task.phase == Phase::Queued) {
        return Some(Reason::new(
            ReasonClass::ChildFailed,
            format!("its sub-task {child} did not succeed; {open} still open"),
        ));
    }
    let hold = schedule::own_hold(board, task, project).err()?;
    if let Hold::Parent { .. } = hold {
        let stuck = project.graph.children(&task.id.path).find(|path| is_stuck(board, task, path))?;
        return Some(Reason::new(ReasonClass::ChildFailed, format!("its sub-task {stuck} cannot start")));
    }
    schedule::reason_of(&hold)
}

/// A sub-task that stays where it is until a person does something.
fn is_stuck(board: &Board, parent: &Task, path: &crate::domain::TaskPath) -> bool {
    let id = TaskId { project: parent.id.project.clone(), path: path.clone() };
    let Some(child) = board.tasks.get(&id) else { return false };
    let waits = child.wish.status == WishStatus::Planning || child.wish.wish.is_some();
    child.phase == Phase::Queued && (waits || queued_reason(board, child).is_some())
}

/// One sentence: what the task does or waits for, and what comes next.
pub fn why(board: &Board, task: &Task, now: Now) -> String {
    match &task.phase {
        Phase::Queued => queued(board, task, now),
        Phase::Waiting { on } => waiting(task, on),
        Phase::Backoff { again } => backoff(board, task, *again, now),
        Phase::MergeQueued => merge_queued(board, task),
        phase @ (Phase::Claiming
        | Phase::Preparing
        | Phase::Briefing
        | Phase::Before { .. }
        | Phase::Running
        | Phase::Stopping { .. }
        | Phase::Collecting { .. }
        | Phase::Checking { .. }
        | Phase::After { .. }
        | Phase::Merging { .. }
        | Phase::Finally { .. }
        | Phase::Cleaning { .. }
        | Phase::Ended) => doing(task, phase, now),
    }
}

fn queued(board: &Board, task: &Task, now: Now) -> String {
    if let Some(reason) = queued_reason(board, task) {
        let hints = [
            (ReasonClass::DependencyFailed, " It starts when that task is retried and merged."),
            (ReasonClass::DependencyCycle, " Take one of these edges out."),
            (ReasonClass::ChildFailed, " It is done when all of them are."),
        ];
        let hint = hints.iter().find(|(class, _)| *class == reason.class).map_or("", |(_, hint)| hint);
        let word = status(board, task).word().replace('_', " ");
        return format!("{word}: {}.{hint}", reason.text.trim_end_matches('.'));
    }
    match schedule::gate(board, task, &Counts::of(board), now) {
        Ok(plan) => format!("queued: all gates are open, {} starts next.", plan.profile_name),
        Err(hold) => hold_sentence(board, task, &hold, now),
    }
}

fn hold_sentence(board: &Board, task: &Task, hold: &Hold, now: Now) -> String {
    let wait = |at: crate::domain::Mono| human(at.since(now.mono));
    match hold {
        Hold::Planning => format!("planning: not enqueued yet; `overnight task enqueue {}` queues it.", task.id.path),
        Hold::Aborted => "aborted: a person stopped it before it started.".into(),
        Hold::Paused => "queued: starts are paused; `overnight resume` lets them go on.".into(),
        Hold::NotWorking => "queued: no daemon is running; `overnight start` starts one.".into(),
        Hold::NotRead => "queued: the state repo is being read.".into(),
        Hold::NoConfiguration => {
            "queued: the project has no approved configuration; see `overnight config approve`.".into()
        }
        Hold::Parent { open } => format!("a parent: done when its {open} open sub-tasks are; it runs no agent itself."),
        Hold::Needs(path) => {
            let id = TaskId { project: task.id.project.clone(), path: path.clone() };
            let stands = board.tasks.get(&id).map_or_else(String::new, |t| format!(" ({})", short(board, t, now)));
            format!("queued: waits for {path}{stands}. It starts when that is merged.")
        }
        Hold::Elsewhere(by) => format!("queued here: {by} works on it."),
        Hold::Until { at, why } => format!("queued: {why}, for {} more.", wait(*at)),
        Hold::Halted(what) => format!("queued: {what}. Look at it; `overnight resume` goes on."),
        Hold::Target(text) => format!("queued: the target branch cannot be used: {text}"),
        Hold::BaselineRunning => "queued: the target branch and the base's checks are being looked at first.".into(),
        Hold::Profile { name, why, until: Some(at) } if *at > now.mono => {
            format!("queued: agent {name} is held ({why}) for {} more; no attempt is spent.", wait(*at))
        }
        Hold::Profile { name, why, until: Some(_) } => {
            format!("queued: agent {name} was held ({why}); one task tries it first.")
        }
        Hold::Profile { name, why, until: None } => {
            format!("queued: agent {name} cannot be used ({why}). Mend that, then `overnight resume`.")
        }
        Hold::ProfileSlots { name, slots } => format!("queued: waits for a slot; {name} has {slots}, all in use."),
        Hold::ProjectSlots(slots) => format!("queued: waits for a slot; the project has {slots}, all in use."),
        Hold::Slots(slots) => format!("queued: waits for a slot; there are {slots}, all in use."),
        Hold::Baseline(reason) => {
            let said = reason.text.trim_end();
            format!("queued: {said}\nNo task is charged for it. Mend the base, then `overnight resume`.")
        }
        Hold::CannotRun(reason) => format!("queued: {}", reason.text),
        Hold::Cycle(_) | Hold::Missing(_) | Hold::Doomed { .. } => "queued.".into(),
    }
}

fn waiting(task: &Task, on: &WaitFor) -> String {
    let path = &task.id.path;
    match on {
        WaitFor::Question => format!(
            "blocked: it asks: {} Answer with `overnight answer {path} \"…\"`.",
            task.question.as_deref().unwrap_or("?")
        ),
        WaitFor::Review => format!(
            "blocked: {}. `overnight approve {path}` merges it, `overnight answer {path} \"…\"` sends it back.",
            review_reason(task).text
        ),
        WaitFor::Block { reason } => format!(
            "blocked: {}. Its branch {} stays; `overnight task retry {path}` tries it anew on what is merged.",
            reason.text.trim_end_matches('.'),
            path.branch()
        ),
    }
}

fn backoff(board: &Board, task: &Task, again: Again, now: Now) -> String {
    let wait = task.not_before.map_or_else(String::new, |at| format!(" in {}", human(at.since(now.mono))));
    match again {
        Again::Run => {
            let name = task.plan.as_ref().map_or("its agent", |p| p.profile_name.as_str());
            let hold = board.projects.get(&task.id.project).and_then(|p| p.holds.get(name));
            match hold {
                Some(h) => {
                    let left = h.until.map_or_else(
                        || "until that is mended and `overnight resume` says so".into(),
                        |at| format!("for {}", human(at.since(now.mono))),
                    );
                    let why = h.in_short();
                    format!("in progress: waits for agent {name} ({why}) {left}; no attempt is spent.")
                }
                None if task.not_before.is_some() => {
                    format!("in progress: it could not begin and is tried again{wait}.")
                }
                None => format!("in progress: goes on with {name} as soon as a slot is free."),
            }
        }
        Again::Child { .. } => format!("in progress: its step is run again{wait}."),
        Again::Claim => format!("claimed: the claim is asked for again{wait}."),
        Again::Prepare if task.tries == 0 => "claimed: its worktree is made when the target branch is there.".into(),
        Again::Prepare => format!("claimed: its worktree is tried again{wait}."),
        Again::Collect { .. } => format!("in progress: its work is collected again{wait}."),
        Again::Merge => format!("in progress: its merge is tried again{wait}."),
        Again::Clean { .. } => format!("its end is being recorded; tried again{wait}."),
    }
}

fn merge_queued(board: &Board, task: &Task) -> String {
    let busy = board
        .tasks
        .values()
        .find(|t| t.id.project == task.id.project && matches!(t.phase, Phase::Merging { .. }))
        .map(|t| t.id.path.to_string());
    let project = board.projects.get(&task.id.project);
    if let Some(what) = project.and_then(|p| p.halted.as_ref()) {
        return format!("in progress: done, waits for its merge: {what}. Look at it; `overnight resume` goes on.");
    }
    match (busy, project.map(|p: &Project| &p.target)) {
        (Some(path), _) => format!("in progress: done, waits for its merge; {path} is merging."),
        (None, Some(Target::Blocked { reason, .. })) => {
            format!("in progress: done, waits for its merge; the target branch cannot be used: {}", reason.text)
        }
        (None, _) => "in progress: done, waits for its merge.".into(),
    }
}

fn doing(task: &Task, phase: &Phase, now: Now) -> String {
    let plan = task.plan.as_ref();
    let agent = plan.map_or("its agent", |p| p.profile_name.as_str());
    let since = human(now.mono.since(task.since));
    let name = |list: Option<&Vec<crate::domain::chain::Check>>, n: usize| {
        list.and_then(|l| l.get(n)).map_or_else(|| "a check".to_owned(), |c| c.name.clone())
    };
    match phase {
        Phase::Claiming => "claiming it.".into(),
        Phase::Preparing => "claimed: its worktree is being made.".into(),
        Phase::Briefing => "claimed: its brief is being written.".into(),
        Phase::Before { n } | Phase::After { n } => format!("in progress: step {} of its chain, {since}.", n + 1),
        Phase::Running => {
            let of = plan.map_or(1, |p| p.attempts);
            let doing = task.run.as_ref().map(|r| r.doing.as_str()).filter(|d| !d.is_empty());
            let doing = doing.map(|d| format!(", {d}")).unwrap_or_default();
            format!("in progress: {agent} works on it, {since}{doing}; attempt {} of {of}.", task.attempts + 1)
        }
        Phase::Stopping { cause, child, .. } => {
            let who = if matches!(child, Child::Agent) { agent } else { "its step" };
            let why = if *cause == StopCause::Abort { "you aborted it" } else { cause.word() };
            format!("{who} is being stopped: {why}.")
        }
        Phase::Collecting { .. } => "in progress: its work is being collected.".into(),
        Phase::Checking { n } => format!("in progress: check {} runs, {since}.", name(plan.map(|p| &p.checks), *n)),
        Phase::Merging { stage: MergeStage::Check { n } } => {
            format!("in progress: check {} runs on the merged tree, {since}.", name(plan.map(|p| &p.merge_checks), *n))
        }
        Phase::Merging { .. } => "in progress: being merged.".into(),
        Phase::Finally { .. } => "its last steps run.".into(),
        Phase::Cleaning { .. } => "its end is being recorded.".into(),
        Phase::Queued | Phase::Waiting { .. } | Phase::MergeQueued | Phase::Backoff { .. } | Phase::Ended => {
            String::new()
        }
    }
}

/// A few words for use inside another task's sentence.
pub fn short(board: &Board, task: &Task, now: Now) -> String {
    let word = status(board, task).word().replace('_', " ");
    match (&task.phase, &task.plan) {
        (Phase::Running, Some(plan)) => {
            format!("running, {}, {}", plan.profile_name, human(now.mono.since(task.since)))
        }
        _ => word,
    }
}
