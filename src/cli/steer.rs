//! Steering: one request each for `answer`, `approve`, `abort`, `retry`, `priority`, `undo`, `pause` and `resume`, and
//! `rescues`, which shows what `undo` can bring back.

use super::context::{Answer, Context, unexpected};
use super::{Outcome, render};
use crate::domain::{ProjectId, TaskPath};
use crate::error::CliError;
use crate::protocol::{Reply, Request};
use clap::Args;
use std::io::Read as _;
use std::process::ExitCode;

/// Longest answer that is read from standard input, in bytes.
const ANSWER_MAX: u64 = 1 << 20;

/// Arguments of `answer`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight answer rename-config \"yes, one release\"")]
pub(super) struct AnswerVerb {
    /// Slug or path of the task.
    task: String,
    /// The answer; `-` reads it from standard input.
    text: String,
}

/// Arguments of `priority`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight priority add-health-endpoint 10")]
pub(super) struct Priority {
    /// Slug or path of the task.
    task: String,
    /// The new priority; 0 is the usual one, larger goes first.
    #[arg(allow_negative_numbers = true, value_name = "N")]
    priority: i32,
}

/// Arguments of `undo`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight rescues rename-config\n  overnight undo rename-config --attempt 1")]
pub(super) struct Undo {
    /// Slug or path of the task.
    task: String,
    /// Which attempt; the last one where nothing is said.
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
}

pub(super) fn answer(cx: &Context, args: &AnswerVerb) -> Outcome {
    let text = if args.text == "-" { from_stdin()? } else { args.text.clone() };
    if text.trim().is_empty() {
        return Err(CliError::usage("an answer may not be empty"));
    }
    no_nul(&text, "an answer")?;
    on_task(cx, &args.task, "answered", |project, path| Request::Answer { project, path, text: text.clone() })
}

pub(super) fn approve(cx: &Context, task: &str) -> Outcome {
    on_task(cx, task, "approved", |project, path| Request::Approve { project, path })
}

pub(super) fn abort(cx: &Context, task: &str) -> Outcome {
    on_task(cx, task, "aborted", |project, path| Request::Abort { project, path })
}

pub(super) fn retry(cx: &Context, task: &str) -> Outcome {
    on_task(cx, task, "queued again", |project, path| Request::Retry { project, path })
}

pub(super) fn enqueue(cx: &Context, task: &str) -> Outcome {
    on_task(cx, task, "queued", |project, path| Request::Enqueue { project, path })
}

pub(super) fn priority(cx: &Context, args: &Priority) -> Outcome {
    let priority = args.priority;
    on_task(cx, &args.task, &format!("priority {priority}"), |project, path| Request::Priority {
        project,
        path,
        priority,
    })
}

pub(super) fn undo(cx: &Context, args: &Undo) -> Outcome {
    let attempt = args.attempt;
    on_task(cx, &args.task, "brought back", |project, path| Request::Undo { project, path, attempt })
}

pub(super) fn rescues(cx: &Context, task: &str) -> Outcome {
    let (path, answer) = cx.on_task(task, |project, path| Request::Rescues { project, path })?;
    let Reply::Rescues { rescues } = answer.reply else { return Err(unexpected(&answer.reply)) };
    cx.show(&rescues, || {
        if rescues.is_empty() {
            format!("  nothing is kept of {path}\n")
        } else {
            format!(
                "{}  overnight undo {path} --attempt N brings one back as a branch\n",
                render::task::rescues(&rescues, &cx.style)
            )
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn pause(cx: &Context) -> Outcome {
    let project = cx.chosen()?.map(|project| project.id);
    done(cx, None, cx.ask(Request::Pause { project })?, "paused")
}

pub(super) fn resume(cx: &Context) -> Outcome {
    let project = cx.chosen()?.map(|project| project.id);
    done(cx, None, cx.ask(Request::Resume { project })?, "resumed")
}

fn on_task(cx: &Context, task: &str, did: &str, make: impl Fn(ProjectId, TaskPath) -> Request) -> Outcome {
    let (path, answer) = cx.on_task(task, make)?;
    done(cx, Some(&path), answer, did)
}

/// Prints what was done: the daemon's words where it has some, else `did`.
pub(super) fn done(cx: &Context, path: Option<&TaskPath>, answer: Answer, did: &str) -> Outcome {
    let Reply::Done { text } = answer.reply else { return Err(unexpected(&answer.reply)) };
    let text = if text.is_empty() { did.to_owned() } else { text };
    let document = serde_json::json!({ "path": path, "done": text });
    cx.show(&document, || {
        let path = path.map_or_else(String::new, |path| format!("{path}   "));
        format!("  {path}{}\n", render::block(&text).trim_end().replace('\n', "\n  "))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A task file with a NUL byte in it can no longer be read.
pub(super) fn no_nul(text: &str, what: &str) -> Result<(), CliError> {
    if text.contains('\0') { Err(CliError::usage(format!("{what} may not hold a NUL byte"))) } else { Ok(()) }
}

/// Text from standard input, of bounded length.
pub(super) fn from_stdin() -> Result<String, CliError> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(ANSWER_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|e| CliError::usage(format!("could not read standard input: {e}")))?;
    if bytes.len() as u64 > ANSWER_MAX {
        return Err(CliError::usage(format!("standard input is longer than {ANSWER_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| CliError::usage("standard input is not UTF-8"))
}
