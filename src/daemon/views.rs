//! Views: the board's facts, the history and the repositories put into the shapes that faces show. Read only.

use super::project::{ProjectCtx, lock};
use super::turn::Ring;
use super::{Shared, chain};
use crate::decide::board::{Board, Mode, Project, Target, Task};
use crate::decide::explain;
use crate::domain::phase::{Phase, WaitFor};
use crate::domain::status::{Reason, ReasonClass, Status};
use crate::domain::time::millis;
use crate::domain::verdict::UsageSum;
use crate::domain::{Now, Oid, ProjectId, TaskId, TaskPath};
use crate::protocol::reply::{ErrorKind, Failure};
use crate::protocol::view::{Counts, EventLine, InvalidLine, NightView, ProjectView, StatusView, TaskLine, TaskView};
use crate::protocol::{Reply, Request, VERSION};
use crate::store::{HistoryRow, JournalFilter, JournalRow, StoreError};
use crate::text::board_file::Row;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Open tasks on a rendered board at most, and ended ones.
const ROWS: usize = 2000;
const ROWS_ENDED: usize = 50;
/// Tasks of one project in a status at most: a reply has a longest line.
const LISTED: usize = 3000;
/// Journal lines of one reply at most.
const LINES: u32 = 10_000;

/// The reply to a request that only looks; `None` for those that are the ring's.
pub(super) async fn answer(ring: &Ring, request: &Request) -> Option<Reply> {
    Some(match request {
        Request::Ping => Reply::Pong {
            version: env!("CARGO_PKG_VERSION").into(),
            protocol: VERSION,
            pid: std::process::id(),
            data: ring.shared.places.data.to_string_lossy().into_owned(),
        },
        Request::Status { project } => Reply::Status(Box::new(status(ring, project.as_ref()).await)),
        Request::Why { project, path } => why(ring, &key(project, path)).await,
        Request::Show { project, path } => show(ring, &key(project, path)).await,
        Request::Report { project, night } => super::views::report::report(ring, project.as_ref(), *night).await,
        _ => return None,
    })
}

mod report;
pub(super) mod repos;

fn key(project: &ProjectId, path: &TaskPath) -> TaskId {
    TaskId { project: project.clone(), path: path.clone() }
}

fn not_found(id: &TaskId) -> Reply {
    Reply::error(ErrorKind::NotFound, format!("there is no task {} in project {}", id.path, id.project))
}

fn unknown_project(id: &ProjectId) -> Reply {
    Reply::error(ErrorKind::NotFound, format!("there is no project {id}"))
}

async fn status(ring: &Ring, only: Option<&ProjectId>) -> StatusView {
    let now = crate::host::clock::now();
    let board = &ring.board;
    let mut view = StatusView {
        daemon: match board.mode {
            Some(Mode::Working) => "working",
            Some(Mode::Leaving | Mode::Stopping) => "leaving",
            Some(Mode::Serving) | None => "none",
        }
        .into(),
        alarms: ring.alarms.values().cloned().chain(ring.shared.disk_full()).collect(),
        paused: board.paused,
        slots: board.slots,
        night: board.night.as_ref().map(night_view),
        projects: Vec::new(),
        sources: if ring.watched.values().all(|w| *w) { "watching".into() } else { "polling".into() },
        idle: Some(ring.is_done()),
    };
    let rows = history(&ring.shared, board.night.as_ref().map(|n| n.number)).await;
    for ctx in ring.shared.all_projects() {
        if only.is_some_and(|id| *id != ctx.id) {
            continue;
        }
        view.projects.push(project_view(board, &ctx, &rows, now));
    }
    view
}

pub(super) fn night_view(night: &crate::decide::board::Night) -> NightView {
    NightView { number: night.number, started: night.started, ended: night.ended }
}

pub(super) async fn history(shared: &Shared, night: Option<u64>) -> Vec<HistoryRow> {
    let Some(night) = night else { return vec![] };
    match shared.store.night(night).await {
        Ok(rows) => rows,
        Err(e) => {
            tracing::warn!("the history cannot be read: {}", chain(&e));
            vec![]
        }
    }
}

fn project_view(board: &Board, ctx: &ProjectCtx, rows: &[HistoryRow], now: Now) -> ProjectView {
    let empty = Project::default();
    let project = board.projects.get(&ctx.id).unwrap_or(&empty);
    let mut tasks: Vec<TaskLine> = Vec::new();
    let mut counts = Counts::default();
    let mut usage = UsageSum::default();
    for task in board.tasks.values().filter(|t| t.id.project == ctx.id) {
        let line = task_line(board, task, now);
        count(&mut counts, task, &line);
        usage.merge(&task.usage);
        tasks.push(line);
    }
    for row in rows.iter().filter(|r| r.task.project == ctx.id) {
        usage.merge(&row.usage);
    }
    for row in last_of_each(rows).filter(|r| r.task.project == ctx.id && !board.tasks.contains_key(&r.task)) {
        let line = ended_line(row);
        match line.status {
            Status::Completed => counts.merged += 1,
            Status::Aborted => counts.aborted += 1,
            _ => counts.failed += 1,
        }
        tasks.push(line);
    }
    let more = bound(&mut tasks);
    let policy = project.policy.as_ref();
    ProjectView {
        slots: policy.map_or(0, |p| p.slots.min(board.slots.max(1))),
        more,
        project: ctx.id.clone(),
        code: ctx.code.to_string_lossy().into_owned(),
        state: ctx.state_folder.to_string_lossy().into_owned(),
        base: policy.map(|p| p.base.clone()),
        into: policy.map(|p| p.merge.into.clone()),
        tip: project.tip().cloned(),
        paused: project.paused,
        alarms: alarms(project, ctx, now),
        counts,
        usage,
        tasks,
        invalid: invalid(project),
        cycles: project.cycles.iter().map(|c| crate::decide::schedule::show_cycle(c)).collect(),
    }
}

/// Cuts a list of tasks to what one reply can carry, and gives how many were left out. Queued ones are the least news.
fn bound(tasks: &mut Vec<TaskLine>) -> u32 {
    if tasks.len() <= LISTED {
        return 0;
    }
    tasks.sort_by_key(|t| (t.phase == "queued", t.phase == "ended"));
    let more = tasks.len() - LISTED;
    tasks.truncate(LISTED);
    u32::try_from(more).unwrap_or(u32::MAX)
}

/// What keeps a whole project or profile from going on.
pub(super) fn alarms(project: &Project, ctx: &ProjectCtx, now: Now) -> Vec<String> {
    let mut alarms = Vec::new();
    if let Some(text) = &*super::project::lock(&ctx.trouble) {
        alarms.push(format!("the state remote cannot be used, so nothing is started or concluded: {text}"));
    }
    if let Some(why) = &*super::project::lock(&ctx.left_alone) {
        alarms.push(format!("your folder of the state repo is left as it is: {}", first_line(why)));
    }
    if let Some(what) = &project.halted {
        alarms.push(format!("nothing is started or merged: {what}. Look at it; `overnight resume` goes on"));
    }
    if let Some(reason) = project.baseline.as_ref().and_then(|b| b.red.as_ref()) {
        let again = "mend that and commit it, or `overnight resume` to have the checks run again";
        alarms.push(format!("nothing is started: {}; {again}", first_line(&reason.text)));
    }
    if let Target::Blocked { reason, .. } = &project.target {
        let again = "mend that, then `overnight resume`";
        alarms.push(format!("the target branch cannot be used: {}; {again}", first_line(&reason.text)));
    }
    if let Some(why) = &project.undelivered {
        alarms.push(format!(
            "your repository does not have what was merged last: {}. `overnight resume` tries again",
            first_line(why)
        ));
    }
    for (name, hold) in &project.holds {
        let until = hold.until.map_or_else(
            || "until you mend it and say `overnight resume`".into(),
            |at| format!("for {}", crate::domain::time::human(at.since(now.mono))),
        );
        alarms.push(format!("agent {name} is held {until}: {}", hold.in_short()));
    }
    alarms
}

pub(super) fn invalid(project: &Project) -> Vec<InvalidLine> {
    let line = |i: &crate::domain::task::Invalid| InvalidLine {
        place: i.place.clone(),
        line: i.line,
        reason: i.reason.clone(),
    };
    project.invalid.iter().map(line).collect()
}

fn count(counts: &mut Counts, task: &Task, line: &TaskLine) {
    match &task.phase {
        Phase::Queued if line.status == Status::Planning => counts.planning += 1,
        Phase::Queued if line.reason.is_some() => counts.doomed += 1,
        // Put aside for its agent or for a while: it runs no more than one in the queue.
        Phase::Queued | Phase::Backoff { .. } => counts.queued += 1,
        Phase::Waiting { .. } => counts.needs_you += 1,
        Phase::MergeQueued | Phase::Merging { .. } => counts.merging += 1,
        _ => counts.running += 1,
    }
}

/// Of each task only its last end: one that failed and was tried again ended once as far as anybody cares.
pub(super) fn last_of_each(rows: &[HistoryRow]) -> impl Iterator<Item = &HistoryRow> {
    let last: BTreeMap<&TaskId, u64> = rows.iter().map(|r| (&r.task, r.epoch.0)).collect();
    rows.iter().filter(move |r| last.get(&r.task) == Some(&r.epoch.0))
}

/// A sentence for a list; the rest of it (the end of some output) is for `why` and `show`.
pub(super) fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("").trim_end().to_owned()
}

/// One open task in a line.
pub(super) fn task_line(board: &Board, task: &Task, now: Now) -> TaskLine {
    let reason = match &task.phase {
        Phase::Waiting { on } => Some(explain::waiting_reason(task, on)),
        Phase::Queued => explain::queued_reason(board, task),
        _ => None,
    };
    let since = |at: crate::domain::Mono| millis(now.mono.since(at));
    let run = task.run.as_ref().filter(|_| task.phase.child().is_some());
    TaskLine {
        path: task.id.path.clone(),
        title: task.title().to_owned(),
        status: explain::status(board, task),
        phase: task.phase.word().to_owned(),
        agent: task.plan.as_ref().map(|p| p.profile_name.clone()).or_else(|| task.wish.agent.clone()),
        for_ms: millis(now.mono.since(task.since)),
        attempt: task.attempts + u32::from(task.phase == Phase::Running),
        attempts: task.plan.as_ref().map_or(0, |p| p.attempts),
        doing: run.map(|r| r.doing.clone()).unwrap_or_default(),
        why: first_line(&explain::why(board, task, now)),
        reason,
        last_output_ms: run.map(|r| since(r.last_output)),
        last_progress_ms: run.map(|r| since(r.last_progress)),
    }
}

fn parse_status(word: &str) -> Status {
    Status::parse(word).unwrap_or(Status::Failed)
}

pub(super) fn reason_of(row: &HistoryRow) -> Option<Reason> {
    let (class, text) = row.reason.as_ref()?;
    let class = ReasonClass::ALL.iter().copied().find(|c| c.word() == class).unwrap_or(ReasonClass::Infra);
    Some(Reason::new(class, text.clone()))
}

/// A task that has ended, from the history.
pub(super) fn ended_line(row: &HistoryRow) -> TaskLine {
    let status = parse_status(&row.status);
    let reason = reason_of(row);
    TaskLine {
        path: row.task.path.clone(),
        title: row.title.clone(),
        status,
        phase: "ended".into(),
        agent: row.agent.clone(),
        for_ms: row.started.map_or(0, |s| millis(row.ended.since(s))),
        attempt: row.attempts,
        attempts: row.attempts,
        doing: String::new(),
        why: ended_sentence(row),
        reason,
        last_output_ms: None,
        last_progress_ms: None,
    }
}

/// What a task came to, in a sentence.
pub(super) fn ended_sentence(row: &HistoryRow) -> String {
    match row.outcome.as_str() {
        "merged" => {
            let commit = row.merge_commit.as_deref().map_or("", |c| &c[..c.len().min(10)]);
            format!("merged into {} as {commit}", row.target.as_deref().unwrap_or("the target"))
        }
        "children_done" => "all its sub-tasks are done".into(),
        "no_changes" => "the agent ended well and changed nothing".into(),
        "aborted" => "aborted on request".into(),
        _ => row.reason.as_ref().map_or_else(|| row.outcome.clone(), |(_, text)| first_line(text)),
    }
}

async fn why(ring: &Ring, id: &TaskId) -> Reply {
    let now = crate::host::clock::now();
    if let Some(task) = ring.board.tasks.get(id) {
        return Reply::Why { text: explain::why(&ring.board, task, now) };
    }
    if let Some(invalid) = invalid_of(&ring.board, id) {
        return Reply::Why { text: invalid };
    }
    match last_row(ring, id).await {
        Ok(Some(row)) => Reply::Why { text: format!("{}: {}", row.status, ended_sentence(&row)) },
        Ok(None) => not_found(id),
        Err(e) => Reply::error(ErrorKind::Unexpected, chain(&e)),
    }
}

/// How a task ended last: as our own history says, else as the state repo does.
async fn last_row(ring: &Ring, id: &TaskId) -> Result<Option<HistoryRow>, StoreError> {
    let row = ring.shared.store.task_history(id).await?.pop();
    if row.is_some() || !ring.board.ended.contains_key(id) {
        return Ok(row);
    }
    Ok(ring.shared.project(&id.project).and_then(|ctx| super::records::history_of(&ctx.state, id)))
}

fn invalid_of(board: &Board, id: &TaskId) -> Option<String> {
    let named = |place: &str| {
        let place = place.strip_prefix("tasks/").unwrap_or(place);
        place.strip_suffix("/README.md").unwrap_or(place) == id.path.as_str()
    };
    let one = board.projects.get(&id.project)?.invalid.iter().find(|i| named(&i.place))?;
    let line = one.line.map(|n| format!(" line {n}")).unwrap_or_default();
    Some(format!("invalid: {}{line}: {}", one.place, one.reason))
}

async fn show(ring: &Ring, id: &TaskId) -> Reply {
    let now = crate::host::clock::now();
    let Some(ctx) = ring.shared.project(&id.project) else { return unknown_project(&id.project) };
    let (journal, _) = events(&ring.shared, Some(&id.project), Some(&id.path), None, 20).await;
    let row = last_row(ring, id).await.unwrap_or_default();
    let mut view = if let Some(task) = ring.board.tasks.get(id) {
        open_view(&ring.board, task, now)
    } else if let Some(row) = row {
        ended_view(&row)
    } else if let Some(text) = invalid_of(&ring.board, id) {
        return Reply::Error(Failure {
            kind: ErrorKind::WrongState,
            message: text,
            hint: Some("mend the file and save it".into()),
        });
    } else {
        return not_found(id);
    };
    view.journal = journal;
    view.rescues = repos::rescues(&ctx, &id.path);
    view.runs = runs_of(&ring.shared, id);
    Reply::Task(Box::new(view))
}

fn open_view(board: &Board, task: &Task, now: Now) -> TaskView {
    let work = task.work.as_ref();
    TaskView {
        project: task.id.project.clone(),
        line: task_line(board, task, now),
        depends_on: task.wish.depends_on.clone(),
        requester: task.wish.requester.clone(),
        labels: task.wish.labels.clone(),
        priority: task.wish.priority,
        branch: task.worktree.as_ref().map(|w| w.branch.clone()),
        base: task.worktree.as_ref().map(|w| w.base.clone()),
        worktree: task.worktree.as_ref().map(|w| w.path.clone()),
        merged: None,
        session: task.session.clone(),
        question: task.question.clone().filter(|_| matches!(task.phase, Phase::Waiting { on: WaitFor::Question })),
        files: work.map(|w| w.files.clone()).unwrap_or_default(),
        left_out: work.map(|w| w.left_out.clone()).unwrap_or_default(),
        usage: task.usage,
        queued: Some(task.queued),
        started: task.started,
        ended: None,
        runs: vec![],
        rescues: vec![],
        journal: vec![],
        body: task.wish.body.clone(),
    }
}

fn ended_view(row: &HistoryRow) -> TaskView {
    TaskView {
        project: row.task.project.clone(),
        line: ended_line(row),
        depends_on: vec![],
        requester: None,
        labels: vec![],
        priority: 0,
        branch: row.branch.clone(),
        base: None,
        worktree: None,
        merged: row.merge_commit.as_deref().and_then(|c| Oid::parse(c).ok()),
        session: None,
        question: row.question.clone(),
        files: row.files.clone(),
        left_out: row.left_out.clone(),
        usage: row.usage,
        queued: Some(row.queued),
        started: row.started,
        ended: Some(row.ended),
        runs: vec![],
        rescues: vec![],
        journal: vec![],
        body: String::new(),
    }
}

/// Run folders of a task, by epoch.
fn runs_of(shared: &Shared, id: &TaskId) -> Vec<String> {
    let prefix = format!("{}.{}.", id.project, id.path.dotted());
    let Ok(entries) = std::fs::read_dir(shared.places.runs()) else { return vec![] };
    let mut runs: Vec<(u64, String)> = entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .filter_map(|name| {
            let rest = name.strip_prefix(&prefix)?;
            Some((rest.split('.').next()?.parse().ok()?, name))
        })
        .collect();
    runs.sort();
    runs.into_iter().map(|(_, name)| name).collect()
}

/// Journal lines, and the number to go on from.
pub(super) async fn events(
    shared: &Shared,
    project: Option<&ProjectId>,
    path: Option<&TaskPath>,
    since: Option<u64>,
    limit: u32,
) -> (Vec<EventLine>, u64) {
    let filter = JournalFilter {
        project: project.cloned(),
        task: path.cloned(),
        since_seq: since.unwrap_or(0),
        kinds: vec![],
        limit: usize::try_from(limit.clamp(1, LINES)).unwrap_or(1),
        tail: since.is_none(),
    };
    let rows = shared.store.journal(&filter).await.unwrap_or_default();
    let next = match rows.last() {
        Some(row) => row.seq,
        None => shared.store.last_seq().await.unwrap_or(0),
    };
    (rows.into_iter().map(line_of).collect(), next)
}

fn line_of(row: JournalRow) -> EventLine {
    EventLine {
        seq: row.seq,
        at: row.at,
        project: row.project,
        task: row.task,
        epoch: row.epoch.0,
        kind: row.kind,
        text: row.text,
    }
}

/// The boards of a project: the root's, and one for each task with sub-tasks.
pub(super) async fn boards(
    board: &Board,
    shared: &Arc<Shared>,
    project: &ProjectId,
) -> Vec<(Option<TaskPath>, Vec<Row>)> {
    let mut boards: BTreeMap<Option<TaskPath>, Vec<Row>> = BTreeMap::from([(None, vec![])]);
    for task in board.tasks.values().filter(|t| t.id.project == *project).take(ROWS) {
        boards.entry(task.id.path.parent()).or_default().push(Row {
            task: task.id.path.slug().to_owned(),
            title: task.title().to_owned(),
            status: explain::status(board, task),
            depends_on: task.wish.depends_on.iter().map(ToString::to_string).collect(),
            branch: task.worktree.as_ref().map(|w| w.branch.clone()),
            agent: task.plan.as_ref().map(|p| p.profile_name.clone()).or_else(|| task.wish.agent.clone()),
            requester: task.wish.requester.clone(),
            time: Some(task.since_wall),
        });
    }
    let night = *lock(&shared.night);
    let rows = history(shared, night).await;
    for row in rows.iter().rev().filter(|r| r.task.project == *project).take(ROWS_ENDED) {
        if board.tasks.contains_key(&row.task) {
            continue;
        }
        boards.entry(row.task.path.parent()).or_default().push(Row {
            task: row.task.path.slug().to_owned(),
            title: row.title.clone(),
            status: parse_status(&row.status),
            depends_on: vec![],
            branch: row.branch.clone(),
            agent: row.agent.clone(),
            requester: None,
            time: Some(row.ended),
        });
    }
    boards.into_iter().collect()
}
