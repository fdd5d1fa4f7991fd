//! One attempt's way: what each answer means in the phase it comes in. Stale answers (of an older epoch, or of a run that
//! is not the task's) are dropped here and nowhere else.

use super::ask::{NoticeKind, TaskAsk};
use super::board::{Board, Mode, RunFacts, Task};
use super::children::{collected, run_ended};
use super::ending::{claim_gone, cleaned, fail};
use super::event::{Answer, Event, Progress};
use super::habits::{Habits, Noticed};
use super::orders;
use crate::domain::phase::{Again, Child, Phase, StopCause, StopStage};
use crate::domain::policy::AgentKind;
use crate::domain::status::{Reason, ReasonClass};
use crate::domain::verdict::{AgentEvent, Verdict};
use crate::domain::{Epoch, Mono, Now, RunId, TaskId};
use std::time::Duration;

/// How often an ask that failed outside the task is tried before the attempt is given up.
pub(super) const TRIES: u32 = 5;
/// Transitions kept for the next record at most.
const LOG_MAX: usize = 60;
/// How long a claimed task waits for a target that is being looked at.
const TARGET_WAIT: Duration = Duration::from_secs(600);

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
    // While agents are being stopped, and where only requests are served, no new child is started; the task keeps its
    // place, its tree and its session.
    let starts = phase.child().is_some() && !matches!(phase, Phase::Stopping { .. });
    if let (true, Some(Mode::Stopping | Mode::Serving), Some(child)) = (starts, board.mode, phase.child()) {
        let why = if board.mode == Some(Mode::Serving) { "no daemon is running" } else { "the daemon is stopping" };
        return enter(board, id, Phase::Backoff { again: child.again() }, why, now);
    }
    // Background steps run beside the work and end with it, wherever that stops.
    if !phase.holds_slot() {
        stop_background(board, id);
    }
    let Some(task) = board.task_mut(id) else { return };
    let waited = matches!(task.phase, Phase::Waiting { .. });
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
    if waited {
        // What it waits for the next time is told anew.
        board.clear_notice(&id.project, Some(&id.path), NoticeKind::NeedsYou);
    }
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
                // `target` wakes it; this is for a target that never comes.
                task.not_before = Some(now.mono.after(TARGET_WAIT));
                task.tries = 0;
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

fn stop_background(board: &mut Board, id: &TaskId) {
    let Some(task) = board.task_mut(id) else { return };
    if std::mem::take(&mut task.background) {
        let epoch = task.epoch;
        board.ask_task(id, epoch, TaskAsk::StopBackground);
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the answer to another ask is none to this one")]
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

#[expect(clippy::wildcard_enum_match_arm, reason = "the answer to another ask is none to this one")]
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
        Answer::NoProgram { why } => {
            super::verdicts::hold_unclaimed(board, id, &Verdict::SpawnFailed { message: why }, now);
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

#[expect(clippy::wildcard_enum_match_arm, reason = "the answer to another ask is none to this one")]
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

#[expect(clippy::wildcard_enum_match_arm, reason = "the answer to another ask is none to this one")]
fn briefing(board: &mut Board, id: &TaskId, answer: &Answer, now: Now) {
    match answer {
        Answer::Briefed => before(board, id, 0, "briefed", now),
        Answer::Failed { why } => fail(board, id, Reason::new(ReasonClass::Infra, why.clone()), now),
        _ => {}
    }
}

/// Step `n` of the before chain, or the agent where there are no more.
pub(super) fn before(board: &mut Board, id: &TaskId, n: usize, why: &str, now: Now) {
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
    let session = progress
        .events
        .iter()
        .find_map(|e| if let AgentEvent::Session { id, .. } = e { Some(id.clone()) } else { None });
    if session.is_some()
        && session != task.session
        && matches!(task.phase.child(), Some(Child::Agent))
        && let Some(task) = board.task_mut(id)
    {
        task.session = session;
    }
    let plan = board.tasks.get(id).and_then(|t| t.plan.as_ref());
    // The commands of a script are the task's own.
    let repeats = plan.filter(|p| p.profile.kind != AgentKind::Script).map_or(0, |p| p.limits.repeats);
    let Some(run) = board.task_soft(id).and_then(|t| t.run.as_mut()) else { return };
    let mut noticed = None;
    if progress.touched {
        run.habits.changed();
    }
    if progress.bytes > run.bytes {
        run.bytes = progress.bytes;
        run.last_output = now.mono;
    }
    // The clock of silence begins with the first word, however long that took.
    let mut moved = progress.touched || !run.first_event && !progress.events.is_empty();
    run.first_event |= !progress.events.is_empty();
    for event in &progress.events {
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
        noticed = run.habits.saw(event, repeats, now.mono).or(noticed);
        // A CLI that waits for its provider is not hanging: its own retry starts the clock afresh, the wall limit stands.
        moved |= matches!(event, AgentEvent::Retry { .. });
    }
    if moved {
        run.last_progress = now.mono;
    }
    let doing = run.doing.clone();
    match noticed {
        Some(Noticed::Loop { calls }) if board.tasks.get(id).is_some_and(|t| t.phase == Phase::Running) => {
            board.note(id, epoch, "looping", format!("{calls} times in a row without a change: {doing}"), now);
            stop(board, id, StopCause::Looping, now);
        }
        Some(Noticed::RabbitHole { calls }) => {
            board.note(id, epoch, "rabbit_hole", format!("{calls} tool calls, and one file changed by them"), now);
        }
        Some(Noticed::Loop { .. }) | None => {}
    }
}

impl Task {
    fn background_due(&self) -> bool {
        !self.background && self.plan.as_ref().is_some_and(|p| !p.chain.background.is_empty())
    }
}

impl RunFacts {
    pub(super) fn new(epoch: Epoch, now: Mono) -> Self {
        Self {
            epoch,
            started: now,
            taken_up: None,
            last_output: now,
            last_progress: now,
            bytes: 0,
            first_event: false,
            result: None,
            doing: String::new(),
            habits: Habits::default(),
        }
    }
}
