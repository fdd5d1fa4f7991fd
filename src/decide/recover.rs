//! What a start does to the saved phases. Each phase asks again under the same name; the hands find out what was done
//! already. Runs that belong to no phase are ended. Only when all that has been asked is anything new admitted.

use super::ask::Ask;
use super::board::{Board, Mode, Target};
use super::event::Started;
use crate::domain::phase::Phase;
use crate::domain::{Epoch, Mono, Now, ProjectId, RunId, TaskId};
use std::collections::BTreeSet;

pub(super) fn started(board: &mut Board, started: &Started, now: Now) {
    board.slots = started.slots;
    board.used = started.used;
    board.mode = Some(if started.only_serve { Mode::Serving } else { Mode::Working });
    board.promised = None;
    board.last_turn = Some(now.mono);
    let ids: Vec<ProjectId> = board.projects.keys().cloned().collect();
    for id in &ids {
        super::requests::rebuild_graph(board, id, now);
    }
    restamp(board, started.same_boot, now);
    if started.only_serve {
        return;
    }
    let known = known_runs(board);
    for run in started.runs.iter().filter(|run| !known.contains(*run)) {
        board.asks.push(Ask::EndOrphan { run: run.clone() });
    }
    let tasks: Vec<TaskId> = board.tasks.values().filter(|t| t.phase.is_active()).map(|t| t.id.clone()).collect();
    for id in tasks {
        resume(board, &id, now);
    }
    for id in ids {
        resume_project(board, &id);
    }
}

/// Every run that some phase waits for.
fn known_runs(board: &Board) -> BTreeSet<RunId> {
    let tasks = board
        .tasks
        .values()
        .filter(|t| t.phase.child().is_some())
        .filter_map(|t| Some(RunId::new(&t.id, t.run.as_ref()?.epoch)));
    let checks = board.projects.iter().filter_map(|(id, p)| {
        let check = p.check.as_ref().filter(|c| !c.void)?;
        Some(super::orders::tree_check_run(id, check))
    });
    tasks.chain(checks).collect()
}

/// The phase's ask once more, under the same epoch. A child is followed first, whatever else is asked of it: whoever
/// stops a run also wants its end.
fn resume(board: &mut Board, id: &TaskId, now: Now) {
    if let Some(task) = board.task_soft(id) {
        // Background runs ended with the daemon that had started them.
        task.background = false;
    }
    super::advance::ask_again(board, id, now);
}

fn resume_project(board: &mut Board, id: &ProjectId) {
    let project = board.project_mut(id);
    // A red base is looked at once more: somebody may have mended it.
    if project.baseline.as_ref().is_some_and(|b| b.red.is_some()) {
        project.baseline = None;
    }
    match &mut project.target {
        // The answer to that ask is lost; its effects are found again.
        Target::Preparing { .. } | Target::Blocked { .. } | Target::Ready { .. } => project.target = Target::Unknown,
        Target::Joining { epoch, .. } => *epoch = Epoch(0),
        Target::Unknown => {}
    }
    // Its run is ended with the other orphans.
    project.check.take_if(|check| check.void);
    super::target::ask_check(board, id);
}

/// Stamps of the monotonic clock. After a reboot they mean nothing; in the same boot what ran went on running, but its
/// progress was not seen, so the clock of silence starts afresh.
fn restamp(board: &mut Board, same_boot: bool, now: Now) {
    let ids: Vec<TaskId> = board.tasks.keys().cloned().collect();
    for id in ids {
        // Stamps of another boot must not be found again on disk: in its own boot they would pass for true.
        let task = if same_boot { board.task_soft(&id) } else { board.task_mut(&id) };
        let Some(task) = task else { continue };
        // A record whose acknowledgement was lost is sent again.
        task.publishing = None;
        if !same_boot || task.since > now.mono {
            task.since = now.mono;
            task.not_before = task.not_before.map(|_| now.mono);
            if let Some(run) = &mut task.run {
                run.started = now.mono;
            }
        }
        if let Some(run) = &mut task.run {
            run.taken_up = Some(now.mono);
            run.last_output = now.mono;
            run.last_progress = now.mono;
            run.first_event = true;
        }
        if matches!(task.phase, Phase::Stopping { .. }) {
            task.since = now.mono;
        }
    }
    let ids: Vec<ProjectId> = board.projects.keys().cloned().collect();
    for id in ids {
        let project = if same_boot { board.project_soft(&id) } else { board.project_mut(&id) };
        for hold in project.holds.values_mut() {
            hold.trial = false;
            if !same_boot {
                let left = hold.until_wall.map_or(0, |at| at.0.saturating_sub(now.wall.0)).max(0);
                hold.until = hold.until.map(|_| Mono(now.mono.0.saturating_add(u64::try_from(left).unwrap_or(0))));
            }
        }
        if let Some(check) = &mut project.check {
            check.since = now.mono;
        }
    }
}
