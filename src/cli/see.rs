//! Seeing: `status`, `why`, `show`, `events`, `report`. Each asks for one view and prints it.

use super::context::{Context, unexpected};
use super::{Outcome, render};
use crate::config::files::write_whole;
use crate::error::CliError;
use crate::protocol::{ErrorKind, Reply, Request};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `status`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  overnight status --all\n\nSigns: ● runs  ○ waits for its turn  ? needs you  ✓ merged  ✗ failed"
)]
pub(super) struct Status {
    /// All projects, and every task that ended this night.
    #[arg(long)]
    all: bool,
}

/// Arguments of `events`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight events --follow\n  overnight events --since 120 --json")]
pub(super) struct Events {
    /// Go on with each new line as it comes.
    #[arg(short, long)]
    pub(super) follow: bool,
    /// From this sequence number on.
    #[arg(long, value_name = "N")]
    pub(super) since: Option<u64>,
    /// At most so many lines.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(super) limit: u32,
    /// Of this task only.
    #[arg(long, value_name = "TASK")]
    pub(super) task: Option<String>,
}

/// Arguments of `report`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight report --html report.html")]
pub(super) struct Report {
    /// The night's number; the last one where nothing is said.
    #[arg(long, value_name = "N")]
    night: Option<u64>,
    /// Write one HTML file instead; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(super) fn status(cx: &Context, args: &Status) -> Outcome {
    let project = if args.all { None } else { cx.chosen()?.map(|project| project.id) };
    let view = cx.status(project)?;
    cx.show(&view, || render::status::status(&view, args.all, &cx.style))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn why(cx: &Context, task: &str) -> Outcome {
    let (path, answer) = cx.on_task(task, |project, path| Request::Why { project, path })?;
    let Reply::Why { text } = answer.reply else { return Err(unexpected(&answer.reply)) };
    let document = serde_json::json!({ "path": path, "why": text });
    // Quoted output goes below, set in: no line of it can pass for one of ours.
    cx.show(&document, || format!("{}\n", render::block(text.trim_end()).replace('\n', "\n    ")))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn show(cx: &Context, task: &str) -> Outcome {
    let (_, answer) = cx.on_task(task, |project, path| Request::Show { project, path })?;
    let Reply::Task(view) = answer.reply else { return Err(unexpected(&answer.reply)) };
    cx.show(&view, || render::task::task(&view, &cx.style))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn events(cx: &Context, args: &Events) -> Outcome {
    let chosen = cx.chosen()?.map(|project| project.id);
    let (project, path) = match &args.task {
        None => (chosen, None),
        Some(text) => {
            let (path, answer) = cx.on_task(text, |project, path| Request::Show { project, path })?;
            let Reply::Task(view) = answer.reply else { return Err(unexpected(&answer.reply)) };
            (Some(view.project), Some(path))
        }
    };
    let known = project.is_some();
    let print =
        |line: &crate::protocol::view::EventLine| cx.show(line, || render::events::event(line, known, &cx.style));
    let request = |follow: bool| Request::Events {
        project: project.clone(),
        path: path.clone(),
        since: args.since,
        limit: args.limit,
        follow,
    };
    if args.follow && super::follow::events(cx, &request(true), &mut |line| line.map_or(Ok(()), print).map(|()| true))?
    {
        return Ok(ExitCode::SUCCESS);
    }
    let Reply::Events { lines, .. } = cx.ask(request(false))?.reply else {
        return Err(CliError::new(ErrorKind::Unexpected, "the reply to a question for events holds none"));
    };
    lines.iter().try_for_each(print)?;
    if args.follow {
        cx.note("no daemon is running: nothing new can come");
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn report(cx: &Context, args: &Report) -> Outcome {
    if cx.json && args.html.is_some() {
        return Err(CliError::usage("--html and --json are two ways to say the same: choose one"));
    }
    let project = cx.chosen()?.map(|project| project.id);
    let reply = cx.ask(Request::Report { project, night: args.night })?.reply;
    let Reply::Report(view) = reply else { return Err(unexpected(&reply)) };
    match &args.html {
        None => cx.show(&view, || render::report::report(&view, &cx.style))?,
        Some(file) => {
            let page = render::html::page(&view, &cx.style);
            if file == Path::new("-") {
                cx.print(&page)?;
            } else {
                let whole = std::path::absolute(file).map_err(|e| CliError::from_error(ErrorKind::Usage, &e))?;
                write_whole(&whole, page.as_bytes()).map_err(|e| CliError::from_error(ErrorKind::Failed, &e))?;
                cx.print(&format!("  wrote {}\n", render::line(&file.to_string_lossy())))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
