//! What each phase asks for. Entering a phase and recovering it use the same function, so a saved phase is all that a
//! restart needs: it asks again under the same name.

use super::ask::{Brief, CHECK, LogEntry, Place, Program, Prompt, Record, RunOrder, TaskAsk};
use super::board::{Board, Project, Task, TreeCheck};
use crate::domain::chain::{Check, Step};
use crate::domain::phase::{Child, CleanStage, MergeStage, Phase};
use crate::domain::plan::Plan;
use crate::domain::status::{AttemptEnd, Outcome};
use crate::domain::{RunId, TaskId, safe};
use std::collections::BTreeMap;
use std::time::Duration;

/// What the shim grants a run beyond its own limit before it ends it without a daemon. Its clock goes on while the machine
/// sleeps, and a night's sleep in the middle of a run is no reason to end it.
const DEAD_MAN_SLACK: Duration = Duration::from_secs(12 * 3600);

/// Longest value of a variable, in bytes: the system takes 128 KiB, and a child that is told less starts all the same.
const VALUE_MAX: usize = 64 << 10;

/// The one ask of the phase that `id` is in; `None` in phases that wait.
pub fn ask_for(board: &Board, id: &TaskId) -> Option<TaskAsk> {
    let task = board.tasks.get(id)?;
    let project = board.projects.get(&id.project)?;
    match &task.phase {
        Phase::Queued | Phase::Waiting { .. } | Phase::MergeQueued | Phase::Backoff { .. } | Phase::Ended => None,
        Phase::Claiming => Some(TaskAsk::Claim { program: task.plan.as_ref().and_then(|p| p.profile.program()) }),
        Phase::Preparing => Some(TaskAsk::MakeWorktree { branch: id.path.branch(), base: project.tip().cloned()? }),
        Phase::Briefing => Some(TaskAsk::WriteBrief(Box::new(brief(board, task, project)))),
        Phase::Before { .. }
        | Phase::Running
        | Phase::Checking { .. }
        | Phase::After { .. }
        | Phase::Finally { .. }
        | Phase::Merging { stage: MergeStage::Check { .. } } => {
            run_order(task, project).map(|o| TaskAsk::Run(Box::new(o)))
        }
        Phase::Stopping { stage, .. } => {
            Some(TaskAsk::Stop { run: RunId::new(id, task.run.as_ref()?.epoch), stage: *stage })
        }
        Phase::Collecting { .. } => Some(TaskAsk::Collect {
            worktree: task.worktree.clone()?,
            message: commit_message(task),
            max_file: project.policy.as_ref()?.max_file,
            protect: project.policy.as_ref()?.protect.clone(),
        }),
        Phase::Merging { stage: MergeStage::Try } => Some(TaskAsk::TryMerge {
            tip: task.work.as_ref()?.tip.clone(),
            into: task.plan.as_ref()?.into.clone(),
            onto: project.tip().cloned()?,
            message: merge_message(task),
            trailer: trailer(task),
        }),
        Phase::Merging { stage: MergeStage::Move } => {
            let merge = task.merge.as_ref()?;
            Some(TaskAsk::Move {
                into: task.plan.as_ref()?.into.clone(),
                new: merge.commit.clone(),
                old: merge.onto.clone(),
            })
        }
        Phase::Cleaning { stage: CleanStage::Rescue } => Some(TaskAsk::Rescue {
            worktree: task.worktree.clone(),
            branch: id.path.branch(),
            attempt: task.attempts.max(1),
        }),
        Phase::Cleaning { stage: CleanStage::Publish } => Some(TaskAsk::Conclude(Box::new(record(board, task)))),
        Phase::Cleaning { stage: CleanStage::Remove } => Some(TaskAsk::GiveBack { branch: id.path.branch() }),
    }
}

/// The child of the present phase, if the phase has one.
fn run_order(task: &Task, project: &Project) -> Option<RunOrder> {
    let plan = task.plan.as_ref()?;
    let policy = project.policy.as_ref()?;
    let tree = || task.worktree.as_ref().map(|w| Place::Worktree(w.path.clone()));
    let (place, program, limit) = match task.phase.child()? {
        Child::Agent => (tree()?, agent(task, plan, feedback_budget(policy.brief_budget)), plan.limits.wall),
        Child::Before { n } => step(task, plan, plan.chain.before.get(n)?, tree()?),
        Child::After { n } => step(task, plan, plan.chain.after.get(n)?, tree()?),
        Child::Finally { n } => step(task, plan, plan.chain.finally.get(n)?, tree()?),
        Child::Check { n } => check(plan.checks.get(n)?, tree()?),
        Child::MergeCheck { n } => {
            check(plan.merge_checks.get(n)?, Place::Integration(task.merge.as_ref()?.commit.clone()))
        }
    };
    let agent = matches!(program, Program::Agent { .. });
    let mut values = values(task, &place);
    if let (Child::Check { .. } | Child::MergeCheck { .. }, Program::Command { name, .. }) =
        (task.phase.child()?, &program)
    {
        values.insert(CHECK.to_owned(), name.clone());
    }
    Some(RunOrder {
        run: RunId::new(&task.id, task.epoch),
        values,
        place,
        env_pass: if agent { plan.profile.env_pass.clone() } else { policy.env_pass.clone() },
        program,
        alive_for: limit.saturating_add(DEAD_MAN_SLACK),
        kill_grace: plan.limits.kill_grace,
        transcript: plan.limits.transcript,
    })
}

/// What of the bytes that an agent is told is kept for how its work failed.
fn feedback_budget(brief: usize) -> usize {
    brief / 4
}

fn agent(task: &Task, plan: &Plan, budget: usize) -> Program {
    let follow = |follow| Prompt::Follow { follow, title: task.title().to_owned(), budget };
    Program::Agent {
        profile: plan.profile.clone(),
        model: plan.model.clone(),
        session: task.session.clone(),
        session_total: task.session_total,
        prompt: task.follow.clone().map_or(Prompt::Brief, follow),
        script: plan.script.clone(),
        max_wall: plan.limits.wall,
    }
}

fn step(_task: &Task, plan: &Plan, step: &Step, place: Place) -> (Place, Program, Duration) {
    let program = match (&step.run, &step.prompt) {
        (None, Some(prompt)) => Program::Agent {
            profile: plan.profile.clone(),
            model: plan.model.clone(),
            session: None,
            session_total: None,
            prompt: Prompt::Step(prompt.clone()),
            script: vec![],
            max_wall: step.timeout,
        },
        (run, _) => Program::Command {
            name: step.name.clone(),
            argv: run.as_ref().map_or_else(|| vec!["true".into()], crate::domain::chain::Command::argv),
        },
    };
    (place, program, step.timeout)
}

fn check(check: &Check, place: Place) -> (Place, Program, Duration) {
    (place, Program::Command { name: check.name.clone(), argv: check.run.argv() }, check.timeout)
}

/// What every child of a task is told about it, by name. No text is longer than what one variable holds, nor has a NUL.
fn values(task: &Task, place: &Place) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let mut put = |key: &str, value: String| {
        let value = if value.contains('\0') { value.replace('\0', "\u{fffd}") } else { value };
        values.insert(key.to_owned(), safe::cut(&value, VALUE_MAX).into_owned());
    };
    put("OVERNIGHT_PROJECT", task.id.project.to_string());
    put("OVERNIGHT_TASK", task.id.path.to_string());
    put("OVERNIGHT_TITLE", task.title().to_owned());
    put("OVERNIGHT_ATTEMPT", (task.attempts + 1).to_string());
    put("OVERNIGHT_EPOCH", task.epoch.to_string());
    if let Some(tree) = &task.worktree {
        put("OVERNIGHT_BRANCH", tree.branch.clone());
        put("OVERNIGHT_BASE", tree.base.to_string());
    }
    if let Some(work) = &task.work {
        put("OVERNIGHT_CHANGED", work.files.join("\n"));
    }
    if let Place::Integration(commit) = place {
        put("OVERNIGHT_COMMIT", commit.to_string());
    }
    match &task.end {
        Some(AttemptEnd::Over { outcome }) => put("OVERNIGHT_OUTCOME", outcome.status().word().to_owned()),
        Some(AttemptEnd::Requeue) => put("OVERNIGHT_OUTCOME", "queued".to_owned()),
        None => {}
    }
    values
}

/// The order for one check of a tree that belongs to no task.
pub(super) fn tree_check_order(
    id: &crate::domain::ProjectId,
    project: &Project,
    check: &TreeCheck,
) -> Option<RunOrder> {
    let policy = project.policy.as_ref()?;
    let one = policy.checks.get(check.n)?;
    let what = match check.purpose {
        super::board::CheckPurpose::Baseline => "baseline",
        super::board::CheckPurpose::Join => "join",
    };
    let mut values = BTreeMap::new();
    values.insert("OVERNIGHT_PROJECT".to_owned(), id.to_string());
    values.insert("OVERNIGHT_COMMIT".to_owned(), check.commit.to_string());
    Some(RunOrder {
        run: RunId::of_project(id, what, check.epoch),
        place: Place::Integration(check.commit.clone()),
        program: Program::Command { name: one.name.clone(), argv: one.run.argv() },
        values,
        env_pass: policy.env_pass.clone(),
        alive_for: one.timeout.saturating_add(DEAD_MAN_SLACK),
        kill_grace: policy.limits.kill_grace,
        transcript: policy.limits.transcript,
    })
}

pub(super) fn tree_check_run(id: &crate::domain::ProjectId, check: &TreeCheck) -> RunId {
    let what = match check.purpose {
        super::board::CheckPurpose::Baseline => "baseline",
        super::board::CheckPurpose::Join => "join",
    };
    RunId::of_project(id, what, check.epoch)
}

fn brief(board: &Board, task: &Task, project: &Project) -> Brief {
    let of = |path: &crate::domain::TaskPath| {
        board.tasks.get(&TaskId { project: task.id.project.clone(), path: path.clone() })
    };
    let mut ancestors = Vec::new();
    let mut at = task.id.path.parent();
    while let Some(path) = at {
        if let Some(t) = of(&path) {
            ancestors.push((path.clone(), t.title().to_owned(), t.wish.body.clone()));
        }
        at = path.parent();
    }
    let siblings = match task.id.path.parent() {
        Some(parent) => project.graph.children(&parent).filter(|p| **p != task.id.path).collect(),
        None => Vec::new(),
    };
    let siblings = siblings
        .into_iter()
        .filter_map(|p| Some((p.clone(), of(p)?.title().to_owned(), super::explain::status(board, of(p)?))))
        .collect();
    let needs = project
        .graph
        .needs(&task.id.path)
        .map(|path| {
            let id = TaskId { project: task.id.project.clone(), path: path.clone() };
            let title = of(path).map_or_else(|| path.slug().to_owned(), |t| t.title().to_owned());
            let commit = board.ended.get(&id).and_then(|e| match &e.outcome {
                Outcome::Merged { commit } => Some(commit.clone()),
                Outcome::ChildrenDone | Outcome::NoChanges | Outcome::Failed { .. } | Outcome::Aborted => None,
            });
            (path.clone(), title, commit)
        })
        .collect();
    let attempt = task.attempts + 1;
    let budget = project.policy.as_ref().map_or(24 << 10, |p| p.brief_budget);
    Brief {
        title: task.title().to_owned(),
        attempt: (attempt, task.plan.as_ref().map_or(attempt, |p| p.attempts.max(attempt))),
        body: task.wish.body.clone(),
        budget: budget - feedback_budget(budget),
        ancestors,
        siblings,
        needs,
        answer: task.answer.clone(),
        last_failure: task.failure.as_ref().map(|f| f.reason.text.clone()),
    }
}

/// What the state repo shall say of a task as it stands.
pub(super) fn record(board: &Board, task: &Task) -> Record {
    let (status, reason) = super::explain::published(board, task);
    let outcome = match &task.end {
        Some(AttemptEnd::Over { outcome }) => Some(outcome.clone()),
        Some(AttemptEnd::Requeue) | None => None,
    };
    Record {
        status,
        outcome,
        reason,
        question: task.question.clone(),
        attempts: task.attempts,
        agent: task.plan.as_ref().map(|p| p.profile_name.clone()),
        model: task.plan.as_ref().and_then(|p| p.model.clone()),
        branch: task.worktree.as_ref().map(|w| w.branch.clone()),
        base: task.worktree.as_ref().map(|w| w.base.clone()),
        session: task.session.clone(),
        queued: Some(task.queued),
        started: task.started,
        ended: status.is_final().then_some(task.since_wall),
        usage: task.usage,
        left_out: task.work.as_ref().map(|w| w.left_out.clone()).unwrap_or_default(),
        retry: task.retry,
        held: task.held.clone(),
        log: task.log.clone(),
    }
}

fn commit_message(task: &Task) -> String {
    format!("{}\n\nOvernight-Work: {}@{}\n", one_line(task.title()), task.id.path, task.epoch)
}

fn merge_message(task: &Task) -> String {
    format!("Merge {}: {}\n", task.id.path, one_line(task.title()))
}

/// The trailer by which a merge is known again: the epoch of the claim, so that a merge tried twice is one merge.
pub(super) fn trailer(task: &Task) -> String {
    format!("Overnight-Task: {}@{}", task.id.path, task.claimed)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A log entry for the way from one phase to the next.
pub(super) fn entry(task: &Task, to: &Phase, why: &str, now: crate::domain::Now) -> LogEntry {
    LogEntry {
        at: now.wall,
        epoch: task.epoch,
        from: task.phase.word().to_owned(),
        to: to.word().to_owned(),
        why: why.to_owned(),
    }
}
