//! Whether overnight.toml is what the user approved, asked before work starts: a difference is shown and asked about at a
//! terminal, and said elsewhere, where the approved copy goes on being what runs.

use super::context::{Context, file_error};
use super::render;
use crate::config::approve::DiffLine;
use crate::config::{self, Approvals, ConfigError, Project, Status};
use crate::error::CliError;
use crate::protocol::ErrorKind;

/// The error of a configuration that is not sound: one problem a line.
pub(super) fn config_error(error: &ConfigError) -> CliError {
    CliError::usage(error.to_string()).hint("`overnight config edit` opens it")
}

/// Checks before `start` and `run`: of `here` strictly, of the other projects with a word where something is amiss.
pub(super) fn before_work(cx: &Context, here: Option<&Project>) -> Result<(), CliError> {
    if let Some(project) = here {
        settle(cx, project)?;
    }
    let all = cx.registry().list().map_err(|e| file_error(&e))?;
    if all.is_empty() {
        let error = CliError::new(ErrorKind::NotFound, "there is no project to work on");
        return Err(error.hint("`overnight init` makes the present repository one"));
    }
    for other in all.iter().filter(|one| here.is_none_or(|here| here.id != one.id)) {
        if let Err(error) = look(cx, other) {
            cx.note(&format!("{}: {}", other.id, error.message));
        }
    }
    Ok(())
}

/// One project's approval. An error only where nothing was ever approved, so that nothing could run.
fn settle(cx: &Context, project: &Project) -> Result<(), CliError> {
    let approvals = Approvals::new(&cx.places.data);
    let file = project.code.join(config::FILE);
    let go_on = "going on with what you approved last; `overnight config approve` approves the file as it is";
    let bytes = match config::read(&file) {
        Ok(bytes) => bytes,
        Err(error) => {
            if approvals.approved(&project.id).map_err(|e| file_error(&e))?.is_none() {
                return Err(config_error(&error));
            }
            cx.note(&format!("{error}: going on with what you approved last"));
            return Ok(());
        }
    };
    let diff = match approvals.status(&project.id, &bytes).map_err(|e| file_error(&e))? {
        Status::Same => return Ok(()),
        Status::Never => return Err(never(project)),
        Status::Changed { diff } => diff,
    };
    if let Err(error) = config::parse(&file, &bytes) {
        cx.note("overnight.toml was changed and is not sound:");
        error.to_string().lines().for_each(|line| cx.note(&format!("  {line}")));
        cx.note("going on with what you approved last; mend the file, then `overnight config approve`");
        return Ok(());
    }
    if cx.at_terminal {
        cx.note("overnight.toml is not what you approved:");
        show(cx, &diff);
    }
    match cx.confirm("Approve this change?")? {
        Some(true) => {
            cx.a_persons("approve")?;
            judge_target(cx, project, &bytes)?;
            approvals.approve(&project.id, &bytes).map_err(|e| file_error(&e))?;
            cx.reload();
        }
        Some(false) | None => cx.note(&format!("{}: overnight.toml was changed: {go_on}", project.id)),
    }
    Ok(())
}

/// Whether finished work may go where the file says, looked at before it is approved; not where it went there before.
pub(super) fn judge_target(cx: &Context, project: &Project, bytes: &[u8]) -> Result<(), CliError> {
    let file = project.code.join(config::FILE);
    let new = config::parse(&file, bytes).map_err(|e| config_error(&e))?.policy;
    let now = Approvals::new(&cx.places.data).approved(&project.id).ok().flatten();
    let now = now.and_then(|now| config::parse(&file, &now.bytes).ok());
    if now.is_some_and(|now| now.policy.merge.into == new.merge.into) {
        return Ok(());
    }
    crate::setup::init::judge_target(&cx.places, project, &new).map_err(super::setup::setup_error)
}

/// The same without asking: what is amiss is the error.
fn look(cx: &Context, project: &Project) -> Result<(), CliError> {
    let approvals = Approvals::new(&cx.places.data);
    let bytes = config::read(&project.code.join(config::FILE)).map_err(|e| config_error(&e))?;
    match approvals.status(&project.id, &bytes).map_err(|e| file_error(&e))? {
        Status::Same => Ok(()),
        Status::Never => Err(never(project)),
        Status::Changed { .. } => Err(CliError::usage("overnight.toml was changed; the approved copy is what runs")),
    }
}

fn never(project: &Project) -> CliError {
    CliError::usage(format!("the overnight.toml of `{}` was never approved", project.id)).hint(
        "read it, then `overnight config approve`; elsewhere than at a terminal `overnight config approve --hash …`",
    )
}

/// Shows a difference on standard error, beside the question that belongs to it.
pub(super) fn show(cx: &Context, diff: &[DiffLine]) {
    for line in diff {
        cx.note(&format!("  {}", render::line(&line.to_string())));
    }
}
