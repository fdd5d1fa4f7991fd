//! What others should see: the state repo brought up to what the board says, boards rendered, the night's beginning and
//! end, and the moment at which nothing is left to wait for.

use super::ask::{Ask, NoticeKind, ProjectAsk, Reply, TaskAsk};
use super::board::{Board, Mode, Night, Target};
use super::event::SideAnswer;
use super::facts::Told;
use super::{explain, orders};
use crate::domain::phase::{Again, Phase};
use crate::domain::{Epoch, Now, ProjectId, TaskId};
use std::collections::BTreeSet;
use std::time::Duration;

/// Work that starts so soon after a night goes on with it, and is told of in its report.
const SAME_NIGHT: Duration = Duration::from_secs(6 * 3600);
/// Boards are views: they follow at this pace.
const BOARD_PACE: Duration = Duration::from_secs(10);

/// Publishes what the state repo does not know yet, and ends the daemon when it is to end.
pub(super) fn levels(board: &mut Board, now: Now) {
    publish_tasks(board);
    boards(board, now);
    settle_requests(board);
    leave(board);
}

/// A task that runs or is blocked tells so once per phase that changes the public word.
fn publish_tasks(board: &mut Board) {
    let behind: Vec<TaskId> = board
        .tasks
        .values()
        .filter(|t| t.publishing.is_none())
        .filter(|t| match (&t.phase, t.published) {
            (Phase::Running, told) => told.is_none_or(|told| told.epoch < t.claimed || told.waits),
            (Phase::Waiting { .. }, told) => told.is_none_or(|told| told.epoch != t.epoch),
            _ => false,
        })
        .map(|t| t.id.clone())
        .collect();
    for id in behind {
        let Some(task) = board.tasks.get(&id) else { continue };
        let record = orders::record(board, task);
        let epoch = task.epoch;
        let waits = matches!(task.phase, Phase::Waiting { .. });
        if let Some(task) = board.task_soft(&id) {
            task.publishing = Some(Told { epoch, waits });
        }
        board.ask_task(&id, epoch, TaskAsk::Publish(Box::new(record)));
    }
}

/// A record was acknowledged.
pub(super) fn published(board: &mut Board, id: &TaskId, epoch: Epoch) {
    let Some(task) = board.task_mut(id) else { return };
    if let Some(told) = task.publishing.take_if(|told| told.epoch == epoch) {
        task.published = Some(told);
        // Entries up to the acknowledged epoch are in the state repo now.
        task.log.retain(|e| e.epoch >= epoch);
    }
}

fn boards(board: &mut Board, now: Now) {
    // Whatever was journalled may have changed a row. While tasks move a board follows at its pace; when they rest it is
    // brought up at once. What is said of the board itself changes no row.
    let touched: BTreeSet<ProjectId> =
        board.journal.iter().filter(|l| l.kind != "board").filter_map(|l| l.project.clone()).collect();
    let moving = board.mode == Some(Mode::Working) && board.tasks.values().any(|t| t.phase.is_active());
    let ids: Vec<ProjectId> = board.projects.keys().cloned().collect();
    for id in ids {
        let project = board.project_soft(&id);
        if touched.contains(&id) && project.board_due.is_none() {
            project.board_due = Some(now.mono.after(BOARD_PACE));
        }
        let due = project.board_due.is_some_and(|at| at <= now.mono || !moving);
        if !due || project.board_busy.is_some() {
            continue;
        }
        project.board_due = None;
        let epoch = board.ask_project(&id, ProjectAsk::PublishBoard);
        board.project_soft(&id).board_busy = Some(epoch);
    }
}

/// Answers of the state repo's hand.
#[expect(clippy::wildcard_enum_match_arm, reason = "the answer to another ask is none to this one")]
pub(super) fn answered(board: &mut Board, id: &ProjectId, epoch: Epoch, answer: SideAnswer, now: Now) {
    match answer {
        SideAnswer::BoardPublished => board_done(board, id, epoch),
        SideAnswer::Edited { id: request } => {
            board.asks.push(Ask::Reply { id: request, reply: Reply::Done { text: String::new() } });
        }
        SideAnswer::EditRefused { id: request, why } => {
            board.asks.push(Ask::Reply { id: request, reply: Reply::Refused { why } });
        }
        SideAnswer::Failed { why } if board.projects.get(id).and_then(|p| p.board_busy) == Some(epoch) => {
            board.note_project(id, "board", format!("the board could not be published: {why}"), now);
            board_done(board, id, epoch);
        }
        _ => {}
    }
}

fn board_done(board: &mut Board, id: &ProjectId, epoch: Epoch) {
    let project = board.project_soft(id);
    if project.board_busy == Some(epoch) {
        project.board_busy = None;
    }
}

/// Requests that wait until everything so far has reached the state repo.
fn settle_requests(board: &mut Board) {
    let busy = board
        .projects
        .values()
        .any(|p| p.board_busy.is_some() || (p.board_due.is_some() && board.mode != Some(Mode::Working)))
        || board.tasks.values().any(|t| t.publishing.is_some());
    if busy {
        return;
    }
    for id in std::mem::take(&mut board.settling) {
        board.asks.push(Ask::Reply { id, reply: Reply::Done { text: String::new() } });
    }
}

fn leave(board: &mut Board) {
    let done = match board.mode {
        // What is being done in the person's own repository is not cut off.
        Some(Mode::Leaving) => board.projects.values().all(|p| p.landing.is_none() && p.delivering.is_none()),
        // Stopped attempts go through their cleaning, so that their claims are released.
        Some(Mode::Stopping) => {
            !board.tasks.values().any(|t| t.phase.child().is_some() || matches!(t.phase, Phase::Cleaning { .. }))
        }
        Some(Mode::Working | Mode::Serving) | None => false,
    };
    if done {
        if let Some(id) = board.stop_reply.take() {
            board.asks.push(Ask::Reply { id, reply: Reply::Done { text: "stopped".into() } });
        }
        board.asks.push(Ask::Exit);
    }
}

/// The first start after idle begins a night.
pub(super) fn night_begins(board: &mut Board, now: Now) {
    if board.night.as_ref().is_some_and(|n| n.ended.is_none()) {
        return;
    }
    board.touch_globals();
    // What a person answers or retries in the morning still belongs to the night before.
    if let Some(night) = &mut board.night
        && night.ended.is_some_and(|at| now.wall.since(at) < SAME_NIGHT)
    {
        night.ended = None;
        return;
    }
    let number = board.night.as_ref().map_or(1, |n| n.number + 1);
    board.night = Some(Night { number, started: now.wall, ended: None });
}

/// Idle again: the night is over.
pub(super) fn night(board: &mut Board, now: Now) {
    if board.mode != Some(Mode::Working) || !is_idle(board, now) {
        return;
    }
    let ids: Vec<ProjectId> = board.projects.keys().cloned().collect();
    if board.night.as_ref().is_some_and(|n| n.ended.is_none()) {
        board.touch_globals();
        if let Some(night) = &mut board.night {
            night.ended = Some(now.wall);
        }
        for id in &ids {
            board.notify(id, None, NoticeKind::NightDone, "the night is done".into());
            board.clear_notice(id, None, NoticeKind::NightDone);
        }
        // The next night looks at the base afresh before its first start.
        for id in &ids {
            if matches!(board.projects.get(id).map(|p| &p.target), Some(Target::Ready { .. })) {
                board.project_mut(id).target = Target::Unknown;
            }
        }
    }
}

/// Whether a task in this phase waits for a target that stays as it is until a person has looked.
fn stuck(project: &super::board::Project, phase: &Phase) -> bool {
    let blocked = matches!(project.target, Target::Blocked { .. });
    let unknown = project.halted.is_some() && project.tip().is_none();
    blocked || if *phase == Phase::MergeQueued { project.halted.is_some() } else { unknown }
}

/// True when nothing moves and nothing will by itself: every task is over, waits for a person, or is held by something
/// that only a person can change.
pub fn is_idle(board: &Board, now: Now) -> bool {
    let counts = super::schedule::Counts::of(board);
    let busy_project = board.projects.values().any(|p| {
        !p.read
            || p.check.is_some()
            || p.land.is_some()
            || p.delivering.is_some()
            || matches!(p.target, Target::Preparing { .. } | Target::Joining { .. })
    });
    if busy_project {
        return false;
    }
    board.tasks.values().all(|t| {
        let waits_for_target = matches!(t.phase, Phase::MergeQueued | Phase::Backoff { again: Again::Prepare });
        if t.phase == (Phase::Backoff { again: Again::Run }) {
            explain::held_for_good(board, t)
        } else if t.phase == Phase::Queued {
            // A target that was never looked at will be, for a task that could start.
            super::schedule::gate(board, t, &counts, now).is_err_and(|hold| !hold.passes())
        } else if waits_for_target && board.projects.get(&t.id.project).is_some_and(|p| stuck(p, &t.phase)) {
            // Only a person can help the target.
            t.publishing.is_none()
        } else {
            !t.phase.is_active() && t.publishing.is_none()
        }
    })
}
