//! Background steps: beside an agent, each in a snapshot of its own, so that two writers never meet in one tree. Their end
//! is noted and decides nothing; they are ended when their attempt is.

#![expect(clippy::disallowed_methods, reason = "a background step is asked once, and ended soon after")]

use super::Shared;
use super::project::{ProjectCtx, lock};
use crate::decide::Event;
use crate::decide::event::{Answer, Worktree};
use crate::domain::chain::{Command, Step, describe};
use crate::domain::verdict::RunEnd;
use crate::domain::{Epoch, RunId, TaskId};
use crate::git::mirror::Mirror;
use crate::git::worktree;
use crate::process::{self, Runs, Stop};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Starts all background steps of an attempt.
pub(super) fn start(
    shared: &Arc<Shared>,
    ctx: &Arc<ProjectCtx>,
    task: &TaskId,
    epoch: Epoch,
    tree: &Worktree,
    steps: Vec<Step>,
) {
    for (n, step) in steps.into_iter().enumerate() {
        let run = RunId::side(task, epoch, &format!("bg{n}"));
        lock(&shared.background).entry(task.clone()).or_default().push(run.clone());
        let (shared, ctx, task, base) = (shared.clone(), ctx.clone(), task.clone(), tree.base.clone());
        tokio::spawn(async move {
            // Of this run alone: an earlier attempt's may be on its way out.
            let place = ctx.snapshots().join(run.as_str());
            let why = match one(&shared, &ctx, &task, &run, &step, &place, &base).await {
                Ok(end) if end.ok() => None,
                Ok(end) => Some(describe(&end.exit, false, Duration::ZERO)),
                Err(why) => Some(why),
            };
            drop_tree(&shared, &ctx, &run, place).await;
            let answer = Answer::BackgroundEnded { step: step.name, why };
            shared.send(Event::Answer { task, epoch, answer });
        });
    }
}

async fn one(
    shared: &Shared,
    ctx: &ProjectCtx,
    task: &TaskId,
    run: &RunId,
    step: &Step,
    place: &Path,
    base: &crate::domain::Oid,
) -> Result<RunEnd, String> {
    let tree = worktree::integration(&ctx.mirror, place, base).await.map_err(|e| super::chain(&e))?;
    let mut env = shared.base_env(&ctx.policy().map(|p| p.env_pass).unwrap_or_default());
    env.insert("OVERNIGHT_PROJECT".into(), task.project.to_string());
    env.insert("OVERNIGHT_TASK".into(), task.path.to_string());
    env.insert("TMPDIR".into(), shared.runs.tmp(run).to_string_lossy().into_owned());
    let order = process::RunOrder {
        run: run.clone(),
        argv: step.run.as_ref().map_or_else(|| vec!["true".into()], Command::argv),
        cwd: tree.path().to_owned(),
        env,
        stdin: None,
        transcript_cap: 8 << 20,
        alive_until_ms: Runs::boottime_ms() + crate::domain::time::millis(step.timeout),
        kill_grace: Duration::from_secs(5),
        drain_grace: Duration::from_secs(1),
    };
    shared.runs.spawn(&order).map_err(|e| super::chain(&e))?;
    shared.runs.follow(run, Box::new(|_| {})).await.map_err(|e| super::chain(&e))
}

/// Removes the snapshot of a step of which nothing lives any more; it would be a whole checkout for each.
async fn drop_tree(shared: &Shared, ctx: &ProjectCtx, run: &RunId, place: PathBuf) {
    if !super::runs::is_over(shared, run).await {
        return tracing::warn!(%run, "{} stays: its step may live", place.display());
    }
    let mirror = ctx.mirror.clone();
    let removed = tokio::task::spawn_blocking(move || worktree::remove_integration(&mirror, &place));
    match removed.await {
        Ok(Ok(_)) => {}
        Ok(Err(e)) => tracing::warn!(%run, "a background step's snapshot stays: {}", super::chain(&e)),
        Err(e) => tracing::warn!(%run, "a background step's snapshot stays: {e}"),
    }
}

/// Removes the snapshots that an earlier daemon left in `folder`. Only for before any step is started.
pub(super) fn drop_left(mirror: &Mirror, folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if let Err(e) = worktree::remove_integration(mirror, &entry.path()) {
            tracing::warn!("a background step's snapshot stays: {}", super::chain(&e));
        }
    }
}

/// Ends what is still running beside a task's attempt.
pub(super) async fn stop(shared: &Shared, task: &TaskId) {
    let runs = lock(&shared.background).remove(task).unwrap_or_default();
    for run in &runs {
        // One that has ended by itself is no error.
        let _ = shared.runs.stop(run, Stop::Term);
    }
    if !runs.is_empty() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for run in &runs {
        let _ = shared.runs.stop(run, Stop::Kill);
    }
}
