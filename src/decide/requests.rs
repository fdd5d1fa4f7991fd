//! What people want: requests judged at once against the task's state, and wishes taken in as they change.

use super::ask::{Ask, NoticeKind, ProjectAsk, Reply};
use super::board::{Board, Mode, Project, Target, Task};
use super::event::{Concluded, Request, RequestId, WishEdit, WishNews};
use crate::domain::graph::Graph;
use crate::domain::phase::{Again, MergeStage, Phase, StopCause, StopStage, WaitFor};
use crate::domain::policy::Policy;
use crate::domain::status::{AttemptEnd, Outcome};
use crate::domain::task::{Wish, WishStatus, WishVerb};
use crate::domain::{Now, ProjectId, TaskId, TaskPath};

pub(super) fn request(board: &mut Board, id: RequestId, request: Request, now: Now) {
    let reply = match request {
        Request::Pause { project } => pause(board, project.as_ref(), true, now),
        Request::Resume { project } => pause(board, project.as_ref(), false, now),
        Request::Stop { stop_agents } => {
            board.stop_reply = Some(id);
            return terminate(board, stop_agents, now);
        }
        Request::Settle => {
            board.settling.push(id);
            return;
        }
        Request::Land { project } => match land(board, id, &project) {
            Some(reply) => reply,
            None => return,
        },
        Request::Edit { project, path, edit } => match edit_wish(board, id, &project, &path, edit) {
            Some(reply) => reply,
            None => return,
        },
    };
    board.asks.push(Ask::Reply { id, reply });
}

fn pause(board: &mut Board, project: Option<&ProjectId>, on: bool, now: Now) -> Reply {
    let word = if on { "paused: nothing new is started" } else { "resumed" };
    match project {
        Some(id) if !board.projects.contains_key(id) => return Reply::NotFound { what: format!("project {id}") },
        Some(id) => {
            board.project_mut(id).paused = on;
            if !on {
                clear_holds(board, id, now);
            }
            board.note_project(id, "pause", word, now);
        }
        None => {
            board.touch_globals();
            board.paused = on;
            board.note_all("pause", word, now);
            let ids: Vec<ProjectId> = board.projects.keys().cloned().collect();
            for id in ids.iter().filter(|_| !on) {
                board.project_mut(id).paused = false;
                clear_holds(board, id, now);
            }
        }
    }
    Reply::Done { text: word.into() }
}

/// A person says go on: profiles and a red base get another try.
fn clear_holds(board: &mut Board, id: &ProjectId, now: Now) {
    let project = board.project_mut(id);
    project.holds.clear();
    project.failing.clear();
    project.halted = None;
    if project.undelivered.is_some() {
        project.delivered = None;
    }
    for kind in [NoticeKind::ProfileUnusable, NoticeKind::BaseRed, NoticeKind::Alarm] {
        board.clear_notice(id, None, kind);
    }
    let project = board.project_mut(id);
    if project.baseline.as_ref().is_some_and(|b| b.red.is_some()) {
        project.baseline = None;
        // Mended means a commit on the base that the target does not have yet.
        if matches!(project.target, Target::Ready { .. }) {
            project.target = Target::Unknown;
        }
    }
    if matches!(project.target, Target::Blocked { .. }) {
        project.target = Target::Unknown;
    }
    board.note_project(id, "resume", "holds lifted", now);
}

/// A landing waits until nothing is merging, then looks at base and target afresh.
fn land(board: &mut Board, id: RequestId, project: &ProjectId) -> Option<Reply> {
    let Some(one) = board.projects.get(project) else {
        return Some(Reply::NotFound { what: format!("project {project}") });
    };
    if let Some(what) = &one.halted {
        return Some(Reply::Refused { why: format!("{what}; `overnight resume` goes on") });
    }
    if one.land.is_some() {
        return Some(Reply::WrongState { why: "a landing is under way already".into() });
    }
    // A train under way needs no target any more but for its compare-and-swap, and the next look waits until it has passed.
    if matches!(one.target, Target::Ready { .. } | Target::Blocked { .. }) {
        board.project_mut(project).target = Target::Unknown;
    }
    board.project_soft(project).land = Some(id);
    None
}

fn edit_wish(board: &mut Board, id: RequestId, project: &ProjectId, path: &TaskPath, edit: WishEdit) -> Option<Reply> {
    if !board.projects.contains_key(project) {
        return Some(Reply::NotFound { what: format!("project {project}") });
    }
    let key = TaskId { project: project.clone(), path: path.clone() };
    let task = board.tasks.get(&key);
    let ended = board.ended.get(&key);
    if let Some(reply) = judge_edit(path, task, ended, &edit) {
        return Some(reply);
    }
    let present = task.map_or_else(|| ended.map_or(0, |e| e.retry), |t| t.retry.max(t.wish.retry));
    // A yes is to what was done in the present generation; what asks for another try begins the next one.
    let retry = if edit == WishEdit::Approve { present } else { present + 1 };
    let said = match &edit {
        WishEdit::Answer(text) => Some(Some(text.clone())),
        // An answer of earlier is none to what waits now.
        WishEdit::Retry => Some(None),
        WishEdit::Create { .. } | WishEdit::Enqueue | WishEdit::Abort | WishEdit::Priority(_) | WishEdit::Approve => {
            None
        }
    };
    if let (Some(said), true) = (said, task.is_some())
        && let Some(task) = board.task_mut(&key)
    {
        task.answer = said;
    }
    board.ask_project(project, ProjectAsk::Edit { id, path: path.clone(), edit, retry });
    None
}

/// Accept (`None`), or say at once why not.
fn judge_edit(path: &TaskPath, task: Option<&Task>, ended: Option<&Concluded>, edit: &WishEdit) -> Option<Reply> {
    let wrong = |why: String| Some(Reply::WrongState { why });
    match (edit, task, ended) {
        (WishEdit::Create { .. }, None, None) => None,
        (WishEdit::Create { .. }, _, _) => wrong(format!("{path} exists already; a used path is never used again")),
        (_, None, None) => Some(Reply::NotFound { what: format!("task {path}") }),
        (WishEdit::Enqueue, Some(t), _) if t.wish.status == WishStatus::Planning => None,
        (WishEdit::Enqueue, _, _) => wrong(format!("{path} is not in planning")),
        (WishEdit::Abort, Some(_), _) => None,
        (WishEdit::Abort, None, Some(e)) => wrong(format!("{path} is {} already", e.outcome.status())),
        (WishEdit::Retry, Some(t), _) => {
            let aborted = t.phase == Phase::Queued && t.wish.wish.is_some();
            let open = aborted || matches!(t.phase, Phase::Waiting { .. });
            let why = || format!("{path} is {}: there is nothing to try again", t.phase.word());
            (!open).then(|| Reply::WrongState { why: why() })
        }
        (WishEdit::Retry, None, Some(e)) if e.outcome.satisfies() => wrong(format!("{path} is completed")),
        (WishEdit::Retry, None, Some(_)) => None,
        (WishEdit::Priority(_), Some(_), _) => None,
        (WishEdit::Answer(_), Some(t), _)
            if matches!(t.phase, Phase::Waiting { on: WaitFor::Question | WaitFor::Review }) =>
        {
            None
        }
        (WishEdit::Answer(_), _, _) => wrong(format!("{path} asks nothing")),
        (WishEdit::Approve, Some(t), _) if t.phase == (Phase::Waiting { on: WaitFor::Review }) => None,
        (WishEdit::Approve, _, _) => wrong(format!("{path} does not wait for a review")),
        (WishEdit::Priority(_), None, Some(e)) => wrong(format!("{path} is {} already", e.outcome.status())),
    }
}

/// The approved configuration came or changed.
pub(super) fn configured(board: &mut Board, id: &ProjectId, policy: Policy, now: Now) {
    let old = board
        .projects
        .get(id)
        .and_then(|p| p.policy.as_ref())
        .map(|p| (p.hash.clone(), p.merge.into.clone(), p.base.clone()));
    let used = board.used;
    let project = board.project_mut(id);
    project.epoch = project.epoch.max(used);
    let same = old.as_ref().is_some_and(|(hash, _, _)| *hash == policy.hash);
    if same {
        project.policy = Some(policy);
        return;
    }
    let moved = old.is_some_and(|(_, into, base)| into != policy.merge.into || base != policy.base);
    let hash = policy.hash.clone();
    let check = project.check.as_mut().filter(|c| !c.void).map(|check| {
        check.void = true;
        check.stop = Some((StopStage::Kill, now.mono));
        check.clone()
    });
    if moved || check.is_some() || matches!(project.target, Target::Joining { .. }) {
        project.target = Target::Unknown;
    }
    project.policy = Some(policy);
    // A profile that was mended by this change is worth a new try.
    project.holds.retain(|_, hold| hold.until.is_some());
    if let Some(check) = check {
        let run = super::orders::tree_check_run(id, &check);
        let what = ProjectAsk::StopCheck { run, stage: StopStage::Kill };
        board.asks.push(Ask::Project { project: id.clone(), epoch: check.epoch, what });
    }
    board.note_project(id, "configured", format!("configuration {}", &hash[..hash.len().min(19)]), now);
}

/// What is wished, as far as it changed.
pub(super) fn wishes(board: &mut Board, id: &ProjectId, news: WishNews, now: Now) {
    board.project_soft(id).read = true;
    if board.projects.get(id).is_some_and(|p| p.invalid != news.invalid) {
        board.project_mut(id).invalid = news.invalid.clone();
    }
    // A file that is there and cannot be read is no wish to end anything.
    let invalid = news.invalid.clone();
    let is_gone = |path: &TaskPath| {
        let file = format!("tasks/{path}/README.md");
        invalid.iter().all(|i| i.place != file)
    };
    let mut graph_changed = news.whole;
    if news.whole {
        let gone: Vec<TaskId> =
            board.tasks.keys().filter(|t| t.project == *id && !news.wishes.contains_key(&t.path)).cloned().collect();
        for task in gone {
            let gone = is_gone(&task.path);
            withdrawn(board, &task, gone, now);
        }
    }
    for (path, wish) in news.wishes {
        let key = TaskId { project: id.clone(), path };
        graph_changed |= match wish {
            Some(wish) => wished(board, &key, wish, news.concluded.get(&key.path), now),
            None => {
                let gone = is_gone(&key.path);
                withdrawn(board, &key, gone, now)
            }
        };
    }
    for (path, concluded) in news.concluded {
        let key = TaskId { project: id.clone(), path };
        graph_changed |= concluded_elsewhere(board, &key, concluded, now);
    }
    if graph_changed {
        rebuild_graph(board, id, now);
    }
}

/// A task that waits here was brought to its end by another daemon. One that is at work here has its claim here, so what
/// the record says of it is our own word.
fn concluded_elsewhere(board: &mut Board, key: &TaskId, concluded: Concluded, now: Now) -> bool {
    let Some(task) = board.tasks.get(key) else { return false };
    let covers = concluded.retry >= task.wish.retry || concluded.outcome.satisfies();
    if task.phase != Phase::Queued || !covers {
        return false;
    }
    let text = format!("{} by another daemon", concluded.outcome.status());
    board.note(key, concluded.epoch, "concluded", text, now);
    board.put_ended(key, Some(concluded));
    board.drop_task(key);
    true
}

/// Works out the graph anew and says each new cycle once.
pub(super) fn rebuild_graph(board: &mut Board, id: &ProjectId, now: Now) {
    let graph = Graph::build(board.tasks.values().filter(|t| t.id.project == *id).map(|t| (&t.id.path, &t.wish)));
    let cycles = graph.cycles();
    let order = graph.order();
    let project = board.project_soft(id);
    let new: Vec<_> = cycles.iter().filter(|c| !project.cycles.contains(c)).cloned().collect();
    project.graph = graph;
    project.order = order;
    project.cycles = cycles;
    for cycle in new {
        board.note_project(id, "cycle", format!("dependency cycle: {}", super::schedule::show_cycle(&cycle)), now);
    }
}

/// A wish as it stands now. True when the graph may have changed.
fn wished(board: &mut Board, key: &TaskId, wish: Wish, concluded: Option<&Concluded>, now: Now) -> bool {
    if let Some(task) = board.tasks.get(key) {
        if task.wish == wish {
            return false;
        }
        let graph = task.wish.depends_on != wish.depends_on;
        changed(board, key, wish, now);
        return graph;
    }
    if let Some(ended) = board.ended.get(key).cloned() {
        if wish.retry <= ended.retry || ended.outcome.satisfies() || wish.wish.is_some() {
            return false;
        }
        board.put_ended(key, None);
        board.put_task(Task::again(key, wish, &ended, ended.epoch.next(), now));
        board.note(key, ended.epoch, "retry", "tried again on request", now);
        return true;
    }
    match concluded {
        Some(c) if c.retry >= wish.retry || c.outcome.satisfies() => {
            board.put_ended(key, Some(c.clone()));
            true
        }
        other => {
            let epoch = other.map_or(board.used, |c| c.epoch.next().max(board.used));
            let task = match concluded {
                Some(ended) => Task::again(key, wish, ended, epoch, now),
                None => Task::new(key.clone(), wish, epoch, now),
            };
            board.put_task(task);
            true
        }
    }
}

/// The wish of an open task changed.
fn changed(board: &mut Board, key: &TaskId, wish: Wish, now: Now) {
    let Some(task) = board.task_mut(key) else { return };
    let retry = wish.retry > task.retry && wish.wish.is_none();
    task.wish = wish;
    let approved = !task.needs_review();
    let sent_back = task.phase == (Phase::Waiting { on: WaitFor::Review }) && task.answer.is_some();
    match task.phase.clone() {
        Phase::Queued if retry => {
            let last = task.failure.take().map(|f| f.reason);
            task.new_life(last, now);
        }
        Phase::Waiting { on: WaitFor::Question } if retry => answered(board, key, now),
        Phase::Waiting { on: WaitFor::Review } if retry && sent_back => answered(board, key, now),
        Phase::Waiting { on: WaitFor::Block { .. } | WaitFor::Review } if retry => {
            let reason = if let Phase::Waiting { on: WaitFor::Block { reason } } = &task.phase {
                Some(reason.clone())
            } else {
                None
            };
            task.new_life(reason, now);
            super::ending::end_attempt(board, key, AttemptEnd::Requeue, "tried again on request", now);
        }
        Phase::Waiting { on: WaitFor::Review } if approved => {
            super::advance::enter(board, key, Phase::MergeQueued, "approved", now);
        }
        Phase::MergeQueued if !approved => super::children::ready_to_merge(board, key, "", now),
        // The rest is taken up where it is asked for: the wish as it stands then.
        Phase::Queued
        | Phase::Claiming
        | Phase::Preparing
        | Phase::Briefing
        | Phase::Before { .. }
        | Phase::Running
        | Phase::Stopping { .. }
        | Phase::Collecting { .. }
        | Phase::Checking { .. }
        | Phase::After { .. }
        | Phase::Waiting { .. }
        | Phase::MergeQueued
        | Phase::Merging { .. }
        | Phase::Backoff { .. }
        | Phase::Finally { .. }
        | Phase::Cleaning { .. }
        | Phase::Ended => {}
    }
}

/// A person answered: the agent goes on in its own session, or from the brief with the answer in it.
fn answered(board: &mut Board, key: &TaskId, now: Now) {
    let Some(task) = board.task_mut(key) else { return };
    task.retry = task.wish.retry;
    task.attempts = 0;
    let question = task.question.take();
    let answer =
        task.answer.clone().unwrap_or_else(|| format!("The task was edited; it now reads:\n\n{}", task.wish.body));
    let (follow, why) = match question {
        Some(question) => (format!("You asked: {question}\n\nThe answer: {answer}"), "its question was answered"),
        None => (format!("A person looked at your work and says:\n\n{answer}"), "a person sent it back"),
    };
    task.follow = Some(format!("{follow}\n\nGo on with the task.").into());
    // It goes on when there is a slot for it, like every agent that was put aside.
    super::advance::enter(board, key, Phase::Backoff { again: Again::Run }, why, now);
}

/// A person's stop is a wish that stands: it ends the task and everything it contains, whenever they come to a place where
/// they can be ended.
pub(super) fn levels(board: &mut Board, now: Now) {
    let stopped: Vec<TaskId> =
        board.tasks.values().filter(|t| t.wish.wish == Some(WishVerb::Abort)).map(|t| t.id.clone()).collect();
    for id in stopped {
        let (from, to) = id.path.bounds_below();
        let bound = |path| TaskId { project: id.project.clone(), path };
        let below: Vec<TaskId> = board.tasks.range(bound(from)..bound(to)).map(|(id, _)| id.clone()).collect();
        for id in &below {
            abort_one(board, id, now);
        }
        // What it contains comes first: once it is over, nobody speaks for that any more.
        let queued = board.tasks.get(&id).is_some_and(|t| t.phase == Phase::Queued);
        if !queued || below.is_empty() {
            abort_one(board, &id, now);
        }
    }
}

/// Whatever the phase, the task ends as aborted, its work kept under rescue refs.
fn abort_one(board: &mut Board, key: &TaskId, now: Now) {
    let Some(task) = board.tasks.get(key) else { return };
    // What it comes to is settled already.
    if matches!(task.end, Some(AttemptEnd::Over { .. })) {
        return;
    }
    let over = AttemptEnd::Over { outcome: Outcome::Aborted };
    match &task.phase {
        Phase::Stopping { cause: StopCause::Abort | StopCause::ClaimLost, .. } => {}
        // Its last steps lead to where it can be ended.
        Phase::Finally { .. } => {}
        // Another holder has it and sees the same wish; ours is looked at again when the claim is.
        Phase::Queued if task.elsewhere.is_some() && task.not_before.is_some_and(|at| at > now.mono) => {}
        Phase::Queued => super::ending::abort_queued(board, key, now),
        Phase::Stopping { stage, child, .. } => {
            // The grace that runs already is not started anew.
            let phase = Phase::Stopping { stage: *stage, cause: StopCause::Abort, child: *child };
            if let Some(task) = board.task_mut(key) {
                task.phase = phase;
            }
        }
        Phase::Before { .. }
        | Phase::Running
        | Phase::Checking { .. }
        | Phase::After { .. }
        | Phase::Merging { stage: MergeStage::Check { .. } } => {
            super::advance::stop(board, key, StopCause::Abort, now);
        }
        // The branch may have moved already: what the answer says decides.
        Phase::Merging { stage: MergeStage::Move } | Phase::Cleaning { .. } | Phase::Ended => {}
        Phase::Claiming
        | Phase::Preparing
        | Phase::Briefing
        | Phase::Collecting { .. }
        | Phase::Waiting { .. }
        | Phase::MergeQueued
        | Phase::Merging { stage: MergeStage::Try }
        | Phase::Backoff {
            again:
                Again::Claim | Again::Prepare | Again::Run | Again::Child { .. } | Again::Collect { .. } | Again::Merge,
        } => super::ending::end_attempt(board, key, over, "aborted", now),
        Phase::Backoff { again: Again::Clean { .. } } => {}
    }
}

/// The task's README is gone or can no longer be read. A task under way goes on with the last good one; one that waits for
/// a person, who has taken its file away, is over.
fn withdrawn(board: &mut Board, key: &TaskId, gone: bool, now: Now) -> bool {
    let Some(task) = board.tasks.get(key) else { return false };
    if gone && matches!(task.phase, Phase::Waiting { .. }) {
        let over = AttemptEnd::Over { outcome: Outcome::Aborted };
        super::ending::end_attempt(board, key, over, "its file was deleted", now);
        return true;
    }
    if task.phase != Phase::Queued {
        return false;
    }
    let epoch = task.epoch;
    board.drop_task(key);
    board.note(key, epoch, "withdrawn", "its file is gone or no longer valid", now);
    true
}

/// The daemon is to end.
pub(super) fn terminate(board: &mut Board, stop_agents: bool, now: Now) {
    if !stop_agents {
        if board.mode != Some(Mode::Stopping) {
            board.mode = Some(Mode::Leaving);
        }
        return;
    }
    board.mode = Some(Mode::Stopping);
    let busy: Vec<TaskId> = board.tasks.values().filter(|t| t.phase.child().is_some()).map(|t| t.id.clone()).collect();
    for id in busy {
        super::advance::stop(board, &id, StopCause::Shutdown, now);
    }
    let ids: Vec<ProjectId> = board.projects.keys().cloned().collect();
    for id in ids {
        let Some(check) = board.projects.get(&id).and_then(|p: &Project| p.check.clone()) else { continue };
        let run = super::orders::tree_check_run(&id, &check);
        let what = ProjectAsk::StopCheck { run, stage: StopStage::Kill };
        board.asks.push(Ask::Project { project: id.clone(), epoch: check.epoch, what });
        let project = board.project_mut(&id);
        project.check = None;
        project.target = Target::Unknown;
    }
}
