//! The morning's report: what is merged, what waits for a person and how to go on, what failed and why, and what it took.

use super::super::turn::Ring;
use super::{alarms, ended_sentence, history, invalid, night_view, reason_of, task_line};
use crate::decide::board::Project;
use crate::domain::phase::{Phase, WaitFor};
use crate::domain::status::Status;
use crate::domain::time::millis;
use crate::domain::verdict::UsageSum;
use crate::domain::{Oid, ProjectId, TaskPath};
use crate::protocol::Reply;
use crate::protocol::reply::ErrorKind;
use crate::protocol::view::{NightView, ProjectReport, ReportLine, ReportView};
use crate::store::HistoryRow;
use std::collections::BTreeMap;

/// The report of one night: the present or last one where no number is given.
pub(in super::super) async fn report(ring: &Ring, only: Option<&ProjectId>, night: Option<u64>) -> Reply {
    let nights = ring.shared.store.nights().await.unwrap_or_default();
    let present = ring.board.night.as_ref().map(night_view);
    let chosen: Option<NightView> = match night {
        None => present.clone(),
        Some(n) if present.as_ref().is_some_and(|p| p.number == n) => present.clone(),
        Some(n) => match nights.iter().find(|x| x.number == n) {
            Some(one) => Some(NightView { number: n, started: one.started, ended: one.ended }),
            None => return Reply::error(ErrorKind::NotFound, format!("there is no night {n}")),
        },
    };
    let rows = history(&ring.shared, chosen.as_ref().map(|n| n.number)).await;
    // What is open now belongs to the present night only.
    let now_too = night.is_none() || chosen.as_ref().map(|n| n.number) == present.as_ref().map(|n| n.number);
    let mut projects = Vec::new();
    for ctx in ring.shared.all_projects() {
        if only.is_some_and(|id| *id != ctx.id) {
            continue;
        }
        let mut one = of_project(ring, &ctx, &rows, now_too);
        one.ahead = ahead(&ctx, &one);
        projects.push(one);
    }
    Reply::Report(Box::new(ReportView { night: chosen, projects }))
}

fn ahead(ctx: &super::ProjectCtx, one: &ProjectReport) -> Option<u32> {
    let base = ctx.mirror.base_tip(one.base.as_deref()?).ok()?;
    let tip = ctx.mirror.branch_tip(one.into.as_deref()?).ok()??;
    let commits = ctx.mirror.odb().ok()?.between(&[tip], &[base], 10_000).ok()?;
    u32::try_from(commits.len()).ok()
}

fn of_project(ring: &Ring, ctx: &super::ProjectCtx, rows: &[HistoryRow], now_too: bool) -> ProjectReport {
    let id = &ctx.id;
    let now = crate::host::clock::now();
    let empty = Project::default();
    let project = ring.board.projects.get(id).unwrap_or(&empty);
    let policy = project.policy.as_ref();
    let mut report = ProjectReport {
        project: id.clone(),
        base: policy.map(|p| p.base.clone()),
        into: policy.map(|p| p.merge.into.clone()),
        ahead: None,
        alarms: alarms(project, ctx, now),
        merged: vec![],
        needs_you: vec![],
        failed: vec![],
        aborted: vec![],
        open: vec![],
        invalid: invalid(project),
        usage: UsageSum::default(),
        by_agent: vec![],
    };
    let mut agents: BTreeMap<String, UsageSum> = BTreeMap::new();
    for row in rows.iter().filter(|r| r.task.project == *id) {
        report.usage.merge(&row.usage);
        agents.entry(row.agent.clone().unwrap_or_default()).or_default().merge(&row.usage);
    }
    for row in super::last_of_each(rows).filter(|r| r.task.project == *id) {
        // A task that was tried again and is open now is told of once, as it stands now.
        if now_too && ring.board.tasks.contains_key(&row.task) {
            continue;
        }
        let line = ended(row);
        match line.status {
            Status::Completed => report.merged.push(line),
            Status::Aborted => report.aborted.push(line),
            _ => report.failed.push(line),
        }
    }
    if now_too {
        add_open(ring, id, &mut report, &mut agents);
    }
    report.by_agent = agents.into_iter().filter(|(name, u)| !name.is_empty() && u.runs > 0).collect();
    report
}

/// Adds what is open now.
fn add_open(ring: &Ring, id: &ProjectId, report: &mut ProjectReport, agents: &mut BTreeMap<String, UsageSum>) {
    let now = crate::host::clock::now();
    for task in ring.board.tasks.values().filter(|t| t.id.project == *id) {
        report.usage.merge(&task.usage);
        if let Some(plan) = &task.plan {
            agents.entry(plan.profile_name.clone()).or_default().merge(&task.usage);
        }
        let line = task_line(&ring.board, task, now);
        if line.status == Status::Planning {
            continue;
        }
        let needs_you = matches!(task.phase, Phase::Waiting { .. });
        let text = match (&task.phase, &line.reason) {
            (Phase::Waiting { on: WaitFor::Question }, _) => {
                format!("asks: {}", task.question.as_deref().unwrap_or("?"))
            }
            (_, Some(reason)) => super::first_line(&reason.text),
            (_, None) => line.why.clone(),
        };
        let entry = ReportLine {
            next: next_step(task),
            path: line.path,
            title: line.title,
            status: line.status,
            text,
            class: line.reason.as_ref().map(|r| r.class),
            agent: line.agent,
            attempts: task.attempts,
            took_ms: None,
            usage: task.usage,
            commit: None,
            files: task.work.as_ref().map_or(0, |w| u32::try_from(w.changed).unwrap_or(u32::MAX)),
            left_out: task.work.as_ref().map(|w| w.left_out.clone()).unwrap_or_default(),
        };
        if needs_you { report.needs_you.push(entry) } else { report.open.push(entry) }
    }
}

/// The command that goes on from where a task waits.
fn next_step(task: &crate::decide::Task) -> Option<String> {
    let path = &task.id.path;
    match &task.phase {
        Phase::Waiting { on: WaitFor::Question } => Some(format!("answer {path} \"…\"")),
        Phase::Waiting { on: WaitFor::Review } => Some(format!("approve {path}")),
        Phase::Waiting { on: WaitFor::Block { .. } } => Some(format!("task retry {path}")),
        _ => None,
    }
}

fn ended(row: &HistoryRow) -> ReportLine {
    let status = Status::parse(&row.status).unwrap_or(Status::Failed);
    let reason = reason_of(row);
    let next = (status == Status::Failed).then(|| retry(&row.task.path));
    ReportLine {
        path: row.task.path.clone(),
        title: row.title.clone(),
        status,
        text: super::first_line(&reason.as_ref().map_or_else(|| ended_sentence(row), |r| r.text.clone())),
        class: reason.map(|r| r.class),
        next,
        agent: row.agent.clone(),
        attempts: row.attempts,
        took_ms: row.started.map(|s| millis(row.ended.since(s))),
        usage: row.usage,
        commit: row.merge_commit.as_deref().and_then(|c| Oid::parse(c).ok()),
        files: u32::try_from(row.changed).unwrap_or(u32::MAX),
        left_out: row.left_out.clone(),
    }
}

fn retry(path: &TaskPath) -> String {
    format!("task retry {path}")
}
