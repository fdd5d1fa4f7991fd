//! Bringing the night's work home: `diff` shows what the base branch would gain, `land` moves it there.

use super::context::{Context, unexpected};
use super::{Outcome, render, steer};
use crate::domain::ProjectId;
use crate::error::CliError;
use crate::protocol::view::DiffView;
use crate::protocol::{Reply, Request};
use clap::Args;
use std::process::ExitCode;

/// Arguments of `diff`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  overnight diff\n  overnight diff --patch | git apply --check\n  overnight diff rename-config --patch"
)]
pub(super) struct Diff {
    /// The work of this task alone, also before it is merged.
    task: Option<String>,
    /// The changes themselves; in a pipe nothing but them, byte for byte.
    #[arg(long)]
    patch: bool,
}

/// Arguments of `land`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight diff && overnight land --yes")]
pub(super) struct Land {
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

pub(super) fn diff(cx: &Context, args: &Diff) -> Outcome {
    let patch = args.patch;
    let view = match &args.task {
        None => ask(cx, cx.project()?.id, patch)?,
        Some(task) => {
            let (_, answer) = cx.on_task(task, |project, path| Request::Diff { project, path: Some(path), patch })?;
            let Reply::Diff(view) = answer.reply else { return Err(unexpected(&answer.reply)) };
            view
        }
    };
    if args.patch && !cx.json && !cx.on_terminal {
        cx.print(view.patch.as_deref().unwrap_or_default())?;
    } else {
        cx.show(&view, || render::diff::diff(&view, &cx.style))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn land(cx: &Context, args: &Land) -> Outcome {
    let project = cx.project()?.id;
    if !args.yes {
        let view = ask(cx, project.clone(), false)?;
        if !cx.json {
            cx.print(&render::diff::diff(&view, &cx.style))?;
        }
        if view.files.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        match cx.confirm(&format!("Move {} forward to {}?", view.base, view.into))? {
            Some(true) => {}
            Some(false) => {
                cx.note("nothing was moved");
                return Ok(ExitCode::from(1));
            }
            None => return Err(CliError::usage("nobody is there to say yes").hint("overnight land --yes")),
        }
    }
    steer::done(cx, None, cx.ask(Request::Land { project })?, "landed")
}

fn ask(cx: &Context, project: ProjectId, patch: bool) -> Result<DiffView, CliError> {
    match cx.ask(Request::Diff { project, path: None, patch })?.reply {
        Reply::Diff(view) => Ok(view),
        reply => Err(unexpected(&reply)),
    }
}
