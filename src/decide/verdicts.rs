//! What follows from how an agent ended: its work is collected, it is sent back with the failure, its profile is held, or
//! the attempt is over. What is not the task's fault spends none of its attempts.

use super::ask::NoticeKind;
use super::board::{Board, ProfileHold};
use super::event::Work;
use crate::domain::chain::was_cut_off;
use crate::domain::follow::{FailedCheck, Follow};
use crate::domain::phase::{Again, Child, Phase, StopCause, Then, WaitFor};
use crate::domain::status::{AttemptEnd, Outcome, Reason, ReasonClass};
use crate::domain::verdict::{AgentReport, Exit, Fault, RunEnd, Verdict};
use crate::domain::{Mono, Now, ProjectId, TaskId, Wall, time};
use std::time::Duration;

/// Runs in a row that were lost or went nowhere for no fault of the task, before it is charged all the same.
const LOST_MAX: u32 = 5;
/// Runs in a row that could not even begin: with their pauses that is most of a night.
const NEVER_STARTED_MAX: u32 = 40;
/// After a run that could not begin, and longer each time, up to a limit.
const PAUSE: Duration = Duration::from_secs(3);
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Added to a reset time that a provider names.
const AFTER_RESET: Duration = Duration::from_secs(60);
/// No hold is longer, whatever a provider says.
const HOLD_MAX: Duration = Duration::from_secs(24 * 3600);

/// The agent's process is gone.
pub(super) fn agent_ended(
    board: &mut Board,
    id: &TaskId,
    end: &RunEnd,
    agent: Option<AgentReport>,
    cause: Option<StopCause>,
    now: Now,
) {
    // A clock that ended a run which could get nowhere, as its provider did not answer, says nothing of the task.
    if let (Some(StopCause::NoProgress | StopCause::NoFirstEvent | StopCause::WallLimit), Some(report)) =
        (cause, &agent)
        && report.verdict.fault() == Fault::Profile
    {
        return hold_profile(board, id, &report.verdict.clone(), now);
    }
    if let Some((reason, fresh)) = cause.and_then(|cause| stopped(board, id, cause)) {
        return charge(board, id, reason, fresh, now);
    }
    if matches!(end.exit, Exit::Lost | Exit::DeadMan) {
        return lost(board, id, end, now);
    }
    let before = board.tasks.get(id).map_or(0, |t| t.tries);
    if cause.is_none() && matches!(end.exit, Exit::Signalled { .. }) && was_cut_off(&end.exit, before) {
        // Killed from outside, as the kernel does when memory runs out.
        return lost(board, id, end, now);
    }
    let verdict = match &agent {
        Some(report) => report.verdict.clone(),
        // It had given its result to a daemon before this one; its work tells what that was.
        None if cause == Some(StopCause::AfterResult) => Verdict::Finished,
        None => plain_verdict(end),
    };
    if verdict == Verdict::Finished {
        return finished(board, id, agent, now);
    }
    if let Verdict::Unfit { message } = verdict {
        // The same prompt would not fit the next time either.
        return super::ending::fail(board, id, Reason::new(ReasonClass::SpawnError, message), now);
    }
    if let (Verdict::ModelUnknown { .. }, true) = (&verdict, names_its_model(board, id)) {
        // The task asked for it, and others of this profile do not.
        let reason = Reason::new(ReasonClass::AgentError, verdict.sentence());
        return super::ending::fail(board, id, reason, now);
    }
    match verdict.fault() {
        Fault::Profile => hold_profile(board, id, &verdict, now),
        Fault::World => {
            if let (Verdict::SessionLost, Some(task)) = (&verdict, board.task_mut(id)) {
                task.session = None;
                task.session_total = None;
            }
            lost(board, id, end, now);
        }
        Fault::Task => {
            let fresh = matches!(verdict, Verdict::ContextTooLong | Verdict::Malformed { .. });
            charge(board, id, Reason::new(ReasonClass::AgentError, verdict.sentence()), fresh, now);
        }
    }
}

/// Why a run that a limit has stopped is charged, and whether the next one begins a new session; nothing where the stop says
/// nothing of the agent.
fn stopped(board: &Board, id: &TaskId, cause: StopCause) -> Option<(Reason, bool)> {
    let task = board.tasks.get(id)?;
    let limits = task.plan.as_ref().map(|p| &p.limits);
    let human = |limit: Option<Duration>| time::human(limit.unwrap_or_default());
    let (class, text, fresh) = match cause {
        StopCause::NoFirstEvent => {
            let limit = human(limits.map(|l| l.first_event));
            (ReasonClass::Stalled, format!("the agent said nothing at all for {limit} and was stopped"), true)
        }
        StopCause::NoProgress => {
            let limit = human(limits.map(|l| l.no_progress));
            (ReasonClass::Stalled, format!("the agent made no progress for {limit} and was stopped"), true)
        }
        StopCause::Looping => {
            let doing = task.run.as_ref().map_or("", |run| run.doing.as_str());
            let text = format!("the agent did the same over and over and was stopped: {doing}");
            (ReasonClass::Looping, text, true)
        }
        StopCause::WallLimit => {
            let limit = human(limits.map(|l| l.wall));
            (ReasonClass::Timeout, format!("the agent was stopped after its limit of {limit}"), false)
        }
        StopCause::AfterResult | StopCause::Abort | StopCause::Shutdown | StopCause::ClaimLost => return None,
    };
    Some((Reason::new(class, text), fresh))
}

fn names_its_model(board: &Board, id: &TaskId) -> bool {
    let Some(plan) = board.tasks.get(id).and_then(|t| t.plan.as_ref()) else { return false };
    plan.model.is_some() && plan.model != plan.profile.model
}

/// A verdict from the exit alone, for agents without an adapter's report.
fn plain_verdict(end: &RunEnd) -> Verdict {
    match &end.exit {
        Exit::Exited { code: 0 } => Verdict::Finished,
        Exit::SpawnFailed { error } => Verdict::SpawnFailed { message: error.clone() },
        exit @ (Exit::Exited { .. }
        | Exit::Signalled { .. }
        | Exit::NeverStarted { .. }
        | Exit::DeadMan
        | Exit::Lost) => Verdict::Crashed { message: crate::domain::chain::describe(exit, false, Duration::ZERO) },
    }
}

fn finished(board: &mut Board, id: &TaskId, agent: Option<AgentReport>, now: Now) {
    let Some(task) = board.task_mut(id) else { return };
    task.attempts += 1;
    task.tries = 0;
    task.follow = None;
    task.question = agent.and_then(|a| a.asks);
    // An answer of earlier is none to what comes now; the task's file keeps it.
    task.answer = None;
    let name = task.plan.as_ref().map(|p| p.profile_name.clone());
    if let Some(name) = name {
        lift_hold(board, &id.project, &name);
    }
    super::advance::enter(board, id, Phase::Collecting { then: Then::Check }, "the agent ended its turn", now);
}

/// A run that went well shows that its profile can be used.
fn lift_hold(board: &mut Board, project: &ProjectId, name: &str) {
    super::breaker::worked(board, project, name);
    if board.projects.get(project).is_some_and(|p| p.holds.contains_key(name)) {
        board.project_mut(project).holds.remove(name);
        board.clear_notice(project, None, NoticeKind::ProfileUnusable);
    }
}

/// The branch holds nothing that the base has not.
pub(super) fn no_changes(board: &mut Board, id: &TaskId, now: Now) {
    let Some(task) = board.tasks.get(id) else { return };
    if let Some(question) = task.question.clone() {
        let text = format!("{} asks: {question}", id.path);
        board.notify(&id.project, Some(&id.path), NoticeKind::NeedsYou, text);
        return super::advance::enter(board, id, Phase::Waiting { on: WaitFor::Question }, &question, now);
    }
    let why = "the agent ended well and changed nothing";
    super::ending::end_attempt(board, id, AttemptEnd::Over { outcome: Outcome::NoChanges }, why, now);
}

/// A check failed: the agent mends it, while it has attempts left.
pub(super) fn send_back(board: &mut Board, id: &TaskId, reason: Reason, check: FailedCheck, why: &str, now: Now) {
    let Some(task) = board.task_mut(id) else { return };
    let left = task.plan.as_ref().map_or(0, |p| p.attempts).saturating_sub(task.attempts);
    if left == 0 {
        return super::ending::fail(board, id, reason, now);
    }
    task.follow = Some(Follow::Failed(Box::new(FailedCheck { left, ..check })));
    super::advance::enter(board, id, Phase::Running, &format!("{why}: back to the agent"), now);
}

/// An attempt is spent; the agent gets another one where there is one left.
fn charge(board: &mut Board, id: &TaskId, reason: Reason, fresh_session: bool, now: Now) {
    let Some(task) = board.task_mut(id) else { return };
    task.attempts += 1;
    task.tries = 0;
    if fresh_session {
        task.session = None;
        task.session_total = None;
    }
    let left = task.plan.as_ref().map_or(0, |p| p.attempts).saturating_sub(task.attempts);
    super::breaker::failed(board, id, &reason, now);
    if left == 0 {
        return super::ending::fail(board, id, reason, now);
    }
    let rests = super::breaker::rests(board, id);
    let Some(task) = board.task_mut(id) else { return };
    let said = reason.text.clone();
    task.follow = Some(format!(
        "An earlier try at this task did not come to its end: {said}. What it left is in the working tree. Go on from \
         there. Attempts left, this one included: {left}."
    ).into());
    let phase = if rests { Phase::Backoff { again: Again::Run } } else { Phase::Running };
    super::advance::enter(board, id, phase, &said, now);
}

/// The run is gone for no fault of the task: it goes on in its session, and nothing is charged.
fn lost(board: &mut Board, id: &TaskId, end: &RunEnd, now: Now) {
    let Some(task) = board.task_mut(id) else { return };
    task.tries += 1;
    let how = crate::domain::chain::describe(&end.exit, false, Duration::ZERO);
    if task.tries >= LOST_MAX {
        let text = format!("{LOST_MAX} runs in a row were lost ({how})");
        return super::ending::fail(board, id, Reason::new(ReasonClass::Infra, text), now);
    }
    if task.tries > 1 {
        // A session that was lost twice may be what cannot be resumed.
        task.session = None;
        task.session_total = None;
    }
    interrupted(board, id);
    super::advance::enter(board, id, Phase::Running, &format!("interrupted ({how}); not charged"), now);
}

/// A child never began: whatever kept it from beginning is given time to pass, and nothing is charged.
pub(super) fn never_started(board: &mut Board, id: &TaskId, child: Child, why: &str, now: Now) {
    let Some(task) = board.task_mut(id) else { return };
    task.tries += 1;
    if task.tries >= NEVER_STARTED_MAX {
        let text = format!("{NEVER_STARTED_MAX} runs in a row could not begin ({why})");
        return super::ending::fail(board, id, Reason::new(ReasonClass::Infra, text), now);
    }
    task.not_before = Some(now.mono.after((PAUSE * task.tries * task.tries).min(PAUSE_MAX)));
    if child == Child::Agent {
        interrupted(board, id);
    }
    let why = format!("could not begin ({}); not charged", super::target::last_lines(why, 1));
    super::advance::enter(board, id, Phase::Backoff { again: child.again() }, &why, now);
}

/// What an agent that was cut off is told when it goes on.
pub(super) fn interrupted(board: &mut Board, id: &TaskId) {
    let Some(task) = board.task_mut(id) else { return };
    if task.follow.is_none() && task.session.is_some() {
        task.follow = Some("You were interrupted. Go on with the task from where you stopped.".to_owned().into());
    }
}

/// The profile cannot be used for now. The task keeps its place, its worktree, its session and its attempts, and gives up
/// its slot.
fn hold_profile(board: &mut Board, id: &TaskId, verdict: &Verdict, now: Now) {
    if let Some((why, _)) = hold(board, id, verdict, now) {
        super::advance::enter(board, id, Phase::Backoff { again: Again::Run }, &why, now);
    }
}

/// The same where the profile runs a step of the chain: it is the step that waits.
pub(super) fn hold_step(board: &mut Board, id: &TaskId, child: Child, verdict: &Verdict, now: Now) {
    let Some((why, until)) = hold(board, id, verdict, now) else { return };
    if let Some(task) = board.task_mut(id) {
        // The agent's own turn waits for a free place too; a step that is due tries the profile by itself.
        task.not_before = Some(until.unwrap_or_else(|| now.mono.after(PAUSE_MAX)));
    }
    super::advance::enter(board, id, Phase::Backoff { again: Again::Child { child } }, &why, now);
}

/// The same before anything was claimed: the task stays in the queue.
pub(super) fn hold_unclaimed(board: &mut Board, id: &TaskId, verdict: &Verdict, now: Now) {
    let Some((why, _)) = hold(board, id, verdict, now) else { return };
    if let Some(task) = board.task_mut(id) {
        task.plan = None;
    }
    super::advance::enter(board, id, Phase::Queued, &why, now);
}

/// Holds the task's profile, and says why the task waits and for how long.
fn hold(board: &mut Board, id: &TaskId, verdict: &Verdict, now: Now) -> Option<(String, Option<Mono>)> {
    let task = board.task_mut(id)?;
    let name = task.plan.as_ref().map(|p| p.profile_name.clone())?;
    task.tries = 0;
    let project = board.project_mut(&id.project);
    let before = project.holds.get(&name).cloned();
    // One storm of equal answers is one hold: only the answer of a trial makes it longer.
    let present = before.as_ref().filter(|h| h.until.is_some_and(|at| at > now.mono) && !h.trial);
    let hold = match present {
        Some(hold) => hold.clone(),
        None => new_hold(verdict, before.map_or(0, |h| h.times) + 1, now),
    };
    let (text, until) = (hold.why.clone(), hold.until);
    let first = project.holds.insert(name.clone(), hold).is_none();
    let word = verdict.word();
    if first {
        let wait =
            until.map_or_else(|| "until you mend it".into(), |at| format!("for {}", time::human(at.since(now.mono))));
        board.note_project(&id.project, "profile_held", format!("{name} is held {wait}: {text}"), now);
        if until.is_none() {
            board.notify(
                &id.project,
                None,
                NoticeKind::ProfileUnusable,
                format!("{name} cannot be used: {}", text.lines().next().unwrap_or_default()),
            );
        }
    }
    Some((format!("{word}: waits for {name}, no attempt is spent"), until))
}

fn new_hold(verdict: &Verdict, times: u32, now: Now) -> ProfileHold {
    let ladder = ladder(times);
    let told =
        |until: &Option<Wall>| until.map_or(ladder, |at| at.since(now.wall).saturating_add(AFTER_RESET).min(HOLD_MAX));
    let wait = match verdict {
        Verdict::RateLimited { until } | Verdict::UsageLimit { until } => Some(told(until)),
        Verdict::Overloaded => Some(ladder),
        Verdict::LoginNeeded { .. }
        | Verdict::NoCredit { .. }
        | Verdict::ModelUnknown { .. }
        | Verdict::SpawnFailed { .. } => None,
        Verdict::Finished
        | Verdict::PermissionDenied { .. }
        | Verdict::ContextTooLong
        | Verdict::OutputCut
        | Verdict::Refused { .. }
        | Verdict::Malformed { .. }
        | Verdict::LimitReached { .. }
        | Verdict::SessionLost
        | Verdict::Failed { .. }
        | Verdict::Crashed { .. }
        | Verdict::Unfit { .. }
        | Verdict::Stopped => Some(ladder),
    };
    let word = verdict.word().replace('_', " ");
    let why = verdict.message().map_or_else(|| word.clone(), |m| format!("{word}: {m}"));
    ProfileHold::new(verdict.word(), &why, wait, times, now)
}

/// How long a profile rests where nobody says how long: 1, 2, 4 … 30 minutes.
pub(super) fn ladder(times: u32) -> Duration {
    Duration::from_secs(60).saturating_mul(1 << times.min(6).saturating_sub(1)).min(Duration::from_secs(1800))
}

/// True when a piece of work is empty: its tree is its base's.
pub fn is_empty(work: &Work) -> bool {
    work.tree == work.base_tree
}
