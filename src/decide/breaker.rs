//! The breaker of a profile. An agent that fails run after run, whatever the task, would spend the attempts of the whole
//! queue before the morning: after a few failures in a row it is given rest, then one task tries it, and the first run
//! that goes well lets all others go on. Limits and outages that it tells of itself are holds of their own and count
//! here for nothing.
//!
//! ```text
//! closed ──three failures in a row──▶ open (a while) ──▶ one trial ──well──▶ closed
//!                                       ▲──────failed, longer──┘
//! ```

use super::board::{Board, ProfileHold};
use crate::domain::policy::AgentKind;
use crate::domain::status::{Reason, ReasonClass};
use crate::domain::{Now, ProjectId, TaskId, time};

/// Failures in a row that open it.
const BREAK_AFTER: u32 = 3;

/// The task's agent failed by itself. A script is the task's own doing and says nothing of others.
pub(super) fn failed(board: &mut Board, id: &TaskId, reason: &Reason, now: Now) {
    let Some(plan) = board.tasks.get(id).and_then(|t| t.plan.as_ref()) else { return };
    let counts = matches!(reason.class, ReasonClass::AgentError | ReasonClass::Stalled);
    if plan.profile.kind == AgentKind::Script || !counts {
        return;
    }
    let name = plan.profile_name.clone();
    let project = board.project_mut(&id.project);
    let failures = project.failing.entry(name.clone()).or_default();
    *failures += 1;
    let failures = *failures;
    let before = project.holds.get(&name);
    let trial = before.is_some_and(|h| h.trial);
    if failures < BREAK_AFTER || before.is_some() && !trial {
        return;
    }
    let times = before.map_or(0, |h| h.times) + 1;
    let wait = super::verdicts::ladder(times);
    let why = format!("{failures} runs in a row failed, the last one so: {}", reason.text);
    project.holds.insert(name.clone(), ProfileHold::new("failing", &why, Some(wait), times, now));
    let text = format!("{name} rests for {}: {why}", time::human(wait));
    board.note_project(&id.project, "profile_held", text, now);
}

/// The profile's agent came to its end well.
pub(super) fn worked(board: &mut Board, project: &ProjectId, name: &str) {
    if board.projects.get(project).is_some_and(|p| p.failing.contains_key(name)) {
        board.project_mut(project).failing.remove(name);
    }
}

/// Whether the task's profile rests now.
pub(super) fn rests(board: &Board, id: &TaskId) -> bool {
    let name = board.tasks.get(id).and_then(|t| t.plan.as_ref()).map(|p| &p.profile_name);
    let project = board.projects.get(&id.project);
    name.zip(project).is_some_and(|(name, project)| project.holds.contains_key(name))
}
