//! `task …`: the verbs on single tasks under one word, and the list of them.

use super::context::{Context, unexpected};
use super::{Outcome, TaskArg, queue, render, see, steer};
use crate::domain::status::Status;
use crate::error::CliError;
use crate::protocol::view::TaskLine;
use crate::protocol::{Reply, Request};
use clap::{Args, Subcommand};
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Write a task down without queueing it.
    New(queue::Add),
    /// Queue a task that is in planning.
    #[command(after_help = "Example:\n  overnight task enqueue rename-config")]
    Enqueue(TaskArg),
    /// The open tasks, and those that ended this night.
    List(List),
    /// All facts about a task.
    #[command(after_help = "Example:\n  overnight task info rename-config")]
    Info(TaskArg),
    /// A task's status in one word.
    #[command(after_help = "Example:\n  test \"$(overnight task status rename-config)\" = completed")]
    Status(TaskArg),
    /// Stop a task and keep its work under a rescue ref.
    #[command(after_help = "Example:\n  overnight task abort rename-config")]
    Abort(TaskArg),
    /// Try a task that ended or is stuck once more.
    #[command(after_help = "Example:\n  overnight task retry rename-config")]
    Retry(TaskArg),
}

/// Arguments of `task list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight task list --status failed")]
pub(super) struct List {
    /// Only tasks of this status: planning, queued, claimed, in_progress, blocked, completed, failed or aborted.
    #[arg(long, value_name = "STATUS", value_parser = status)]
    status: Option<Status>,
}

fn status(word: &str) -> Result<Status, String> {
    let known = "planning, queued, claimed, in_progress, blocked, completed, failed and aborted";
    Status::parse(&word.replace('-', "_")).ok_or_else(|| format!("the statuses are {known}"))
}

pub(super) fn run(cx: &Context, verb: &Verb) -> Outcome {
    match verb {
        Verb::New(args) => queue::create(cx, args, true),
        Verb::Enqueue(arg) => steer::enqueue(cx, &arg.task),
        Verb::List(args) => list(cx, args),
        Verb::Info(arg) => see::show(cx, &arg.task),
        Verb::Status(arg) => word(cx, &arg.task),
        Verb::Abort(arg) => steer::abort(cx, &arg.task),
        Verb::Retry(arg) => steer::retry(cx, &arg.task),
    }
}

fn list(cx: &Context, args: &List) -> Outcome {
    let project = cx.project()?.id;
    let view = cx.status(Some(project.clone()))?;
    let tasks = view.projects.iter().filter(|one| one.project == project).flat_map(|one| &one.tasks);
    let mut tasks: Vec<&TaskLine> =
        tasks.filter(|task| args.status.is_none_or(|status| task.status == status)).collect();
    tasks.sort_by(|a, b| a.path.cmp(&b.path));
    cx.show(&tasks, || render::task::list(&tasks, &cx.style))?;
    Ok(ExitCode::SUCCESS)
}

fn word(cx: &Context, task: &str) -> Result<ExitCode, CliError> {
    let (path, answer) = cx.on_task(task, |project, path| Request::Show { project, path })?;
    let Reply::Task(view) = answer.reply else { return Err(unexpected(&answer.reply)) };
    let status = view.line.status;
    let document = serde_json::json!({ "path": path, "status": status, "phase": view.line.phase });
    cx.show(&document, || format!("{}\n", status.word()))?;
    Ok(ExitCode::SUCCESS)
}
