//! The daemon's life: `start`, `stop`, `restart`, and `run`, which is the same daemon at a terminal, or a look at the one
//! that works already.

#![expect(clippy::disallowed_methods, reason = "a daemon that ends can only be asked again until nobody answers")]

use super::context::{Context, unexpected};
use super::{Outcome, approval, follow, launch, render, service};
use crate::client;
use crate::daemon::{self, How};
use crate::domain::ProjectId;
use crate::error::CliError;
use crate::protocol::view::StatusView;
use crate::protocol::{ErrorKind, Reply, Request};
use clap::Args;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a daemon may take to end: it settles what it has begun, and agents that are stopped get their grace.
const ENDING: Duration = Duration::from_secs(60);

/// Arguments of `stop`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight stop\n  overnight stop --keep-agents")]
pub(super) struct Stop {
    /// Let the agents that run go on; the next start takes them up.
    #[arg(long)]
    keep_agents: bool,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight run && overnight land --yes\n\nExit: 0 when all is merged, 1 otherwise.")]
pub(super) struct Run {
    /// Show the daemon's log beside what happens.
    #[arg(short, long)]
    verbose: bool,
}

/// What `start` left behind it runs.
pub(super) fn detached(cx: &Context) -> ExitCode {
    // It fails only where this process leads a session already, which is as good.
    let _ = nix::unistd::setsid();
    daemon::run(&cx.places, How::Background)
}

pub(super) fn start(cx: &Context) -> Outcome {
    cx.a_persons("start")?;
    let here = cx.chosen()?;
    approval::before_work(cx, here.as_ref())?;
    if let Some(project) = &here
        && let Some(policy) = super::queue::policy(cx, project)?
    {
        crate::setup::doctor::before_start(&policy).iter().for_each(|text| cx.note(&format!("{}: {text}", project.id)));
    }
    let (pid, new) = match cx.ask_daemon(&Request::Ping)? {
        Some(Reply::Pong { pid, .. }) => (pid, false),
        Some(reply) => return Err(unexpected(&reply)),
        None => match service::start(cx).then(|| client::ping(&cx.places, client::PATIENCE)) {
            Some(Ok(Reply::Pong { pid, .. })) => (pid, true),
            Some(_) | None => (launch::detached(cx)?, true),
        },
    };
    let view = cx.status(None)?;
    let document = serde_json::json!({ "pid": pid, "started": new, "status": view });
    cx.show(&document, || {
        let already = if new { String::new() } else { format!("  a daemon is running already (pid {pid})\n") };
        format!("{already}{}", render::status::watching(&view))
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn stop(cx: &Context, args: &Stop) -> Outcome {
    let was = end(cx, !args.keep_agents)?;
    let text = match (was, args.keep_agents) {
        (false, _) => "no daemon is running",
        (true, false) => "stopped, and its agents with it; their tasks go on at the next start",
        (true, true) => "stopped; agents that run go on and are taken up at the next start",
    };
    cx.show(&serde_json::json!({ "was_running": was, "done": text }), || format!("  {text}\n"))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn restart(cx: &Context) -> Outcome {
    cx.a_persons("restart")?;
    end(cx, false)?;
    start(cx)
}

/// Ends the daemon and waits until it is gone; false where none ran.
fn end(cx: &Context, agents: bool) -> Result<bool, CliError> {
    let Some(reply) = cx.ask_daemon(&Request::Stop { agents })? else { return Ok(false) };
    let Reply::Done { .. } = reply else { return Err(unexpected(&reply)) };
    let end = Instant::now() + ENDING;
    loop {
        match client::ping(&cx.places, Duration::from_secs(1)) {
            Err(client::ClientError::NoDaemon) => return Ok(true),
            // One that is ending may take connections and answer none.
            Ok(_) | Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
            Ok(_) | Err(_) => {
                let error = CliError::new(ErrorKind::Failed, "the daemon was told to end and is still there");
                return Err(error.hint("`overnight logs` shows what it waits for"));
            }
        }
    }
}

pub(super) fn run(cx: &Context, args: &Run) -> Outcome {
    cx.a_persons("run")?;
    let here = cx.chosen()?;
    approval::before_work(cx, here.as_ref())?;
    let project = here.map(|project| project.id);
    match cx.ask_daemon(&Request::Ping)? {
        None => Ok(daemon::run(&cx.places, How::Foreground { until_idle: true, project, verbose: args.verbose })),
        Some(_) => beside(cx, project.as_ref()),
    }
}

/// Shows what the daemon that works already does, until nothing is left to do.
fn beside(cx: &Context, project: Option<&ProjectId>) -> Outcome {
    cx.note("a daemon works already: following it");
    let mut view = cx.status(project.cloned())?;
    if !idle(&view) {
        let request = Request::Events { project: project.cloned(), path: None, since: None, limit: 1, follow: true };
        follow::events(cx, &request, &mut |line| {
            if let Some(line) = line {
                cx.show(line, || render::events::event(line, project.is_some(), &cx.style))?;
            }
            view = cx.status(project.cloned())?;
            Ok(!idle(&view))
        })?;
    }
    let well = view.projects.iter().all(|p| {
        let open = p.counts.queued + p.counts.running + p.counts.merging;
        open + p.counts.failed + p.counts.needs_you + p.counts.doomed == 0
    });
    Ok(ExitCode::from(u8::from(!well)))
}

/// True when nothing is left that goes on by itself: nothing at all of what was asked for, or as the daemon's own rules
/// say, which know what waits for a person.
fn idle(view: &StatusView) -> bool {
    view.idle == Some(true) || view.projects.iter().all(|p| p.counts.queued + p.counts.running + p.counts.merging == 0)
}
