//! Asks, journal lines and statuses in the short form of the `.out` files.

use overnight::decide::ask::{Ask, Place, Program, ProjectAsk, Prompt, Reply, RunOrder, TaskAsk};
use overnight::decide::board::JournalLine;
use overnight::domain::ProjectId;
use overnight::domain::follow::Follow;
use overnight::domain::status::Outcome;

/// One line of text of bounded length.
pub fn short(text: &str) -> String {
    let line = text.replace('\n', "⏎");
    match line.char_indices().nth(200) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// Tasks of the first project go by their path alone.
pub fn name(project: &ProjectId, path: Option<&str>) -> String {
    match path {
        Some(path) if project.as_str() == "p" => path.to_owned(),
        Some(path) => format!("{project}:{path}"),
        None => format!("@{project}"),
    }
}

pub fn journal(line: &JournalLine) -> String {
    let who = line.project.as_ref().map(|p| name(p, line.task.as_ref().map(|t| t.as_str())));
    format!("  {} {}: {}", who.unwrap_or_else(|| "*".into()), line.kind, short(&line.text))
}

pub fn ask(ask: &Ask) -> String {
    match ask {
        Ask::Task { task, epoch, what } => {
            format!("  ask {}#{epoch} {}", name(&task.project, Some(task.path.as_str())), task_ask(what))
        }
        Ask::Project { project, epoch, what } => format!("  ask {}#{epoch} {}", name(project, None), project_ask(what)),
        Ask::Reply { id, reply } => format!("  reply {}: {}", id.0, self::reply(reply)),
        Ask::Notice { project, task, kind, text } => {
            format!("  tell {} {kind:?}: {}", name(project, task.as_ref().map(|t| t.as_str())), short(text))
        }
        Ask::EndOrphan { run } => format!("  ask end orphan {run}"),
        Ask::Exit => "  exit".into(),
    }
}

fn task_ask(what: &TaskAsk) -> String {
    match what {
        TaskAsk::Claim { .. } => "claim".into(),
        TaskAsk::MakeWorktree { base, .. } => format!("make worktree from {}", base.short()),
        TaskAsk::WriteBrief(brief) => {
            let answer = brief.answer.as_ref().map(|a| format!(" with the answer {a:?}")).unwrap_or_default();
            let last = brief.last_failure.as_ref().map(|f| format!(" after {}", short(f))).unwrap_or_default();
            format!("write brief{answer}{last}")
        }
        TaskAsk::Run(order) => run(order),
        TaskAsk::Stop { run, stage } => format!("{stage:?} {run}").to_lowercase(),
        TaskAsk::Collect { .. } => "collect".into(),
        TaskAsk::TryMerge { onto, trailer, .. } => format!("try merge onto {} ({trailer})", onto.short()),
        TaskAsk::Move { new, old, .. } => format!("move target {} to {}", old.short(), new.short()),
        TaskAsk::Rescue { .. } => "rescue".into(),
        TaskAsk::Conclude(record) => {
            let held = if record.held.is_some() { "" } else { ", no claim held" };
            let outcome = record.outcome.as_ref().map_or_else(|| "none".into(), outcome);
            format!("conclude {} (outcome {outcome}{held})", record.status)
        }
        TaskAsk::GiveBack { .. } => "give worktree back".into(),
        TaskAsk::Publish(record) => format!("publish {}", record.status),
        TaskAsk::StartBackground { steps, .. } => {
            format!("start background {}", steps.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "))
        }
        TaskAsk::StopBackground => "stop background".into(),
    }
}

pub fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Merged { .. } => "merged".into(),
        Outcome::ChildrenDone => "children done".into(),
        Outcome::NoChanges => "no changes".into(),
        Outcome::Failed { reason } => format!("failed, {}: {}", reason.class.word(), short(&reason.text)),
        Outcome::Aborted => "aborted".into(),
    }
}

fn run(order: &RunOrder) -> String {
    let place = if matches!(order.place, Place::Integration(_)) { " on the integration worktree" } else { "" };
    match &order.program {
        Program::Command { name, .. } => format!("run {name}{place}"),
        Program::Agent { profile: _, session, prompt, .. } => {
            let session = session.as_ref().map_or_else(|| "new session".into(), |s| format!("session {s}"));
            match prompt {
                Prompt::Brief => format!("run agent, {session}, brief"),
                Prompt::Follow { follow: Follow::Said(text), .. } => {
                    format!("run agent, {session}, told: {}", short(text))
                }
                Prompt::Follow { follow: Follow::Failed(check), .. } => format!(
                    "run agent, {session}, told: check {} fails ({}), as {} shows; attempts left: {}",
                    check.check, check.ended, check.run, check.left
                ),
                Prompt::Step(text) => format!("run agent step: {}", short(text)),
            }
        }
    }
}

fn project_ask(what: &ProjectAsk) -> String {
    match what {
        ProjectAsk::PrepareTarget { .. } => "prepare target".into(),
        ProjectAsk::RunCheck(order) => run(order),
        ProjectAsk::StopCheck { run, stage } => format!("{stage:?} {run}").to_lowercase(),
        ProjectAsk::MoveTarget { new, old, .. } => format!("move target {} to {}", old.short(), new.short()),
        ProjectAsk::Deliver { tip, .. } => format!("deliver {}", tip.short()),
        ProjectAsk::Land { tip, .. } => format!("land {}", tip.short()),
        ProjectAsk::Edit { path, edit, retry, .. } => format!("edit {path}: {edit:?} (retry {retry})"),
        ProjectAsk::PublishBoard => "publish board".into(),
    }
}

fn reply(reply: &Reply) -> String {
    match reply {
        Reply::Done { text } if text.is_empty() => "done".into(),
        Reply::Done { text } => format!("done, {text}"),
        Reply::WrongState { why } => format!("wrong state, {why}"),
        Reply::NotFound { what } => format!("not found, {what}"),
        Reply::Refused { why } => format!("refused, {why}"),
    }
}
