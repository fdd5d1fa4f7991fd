//! Changing overnight.toml: one setting by its name, or the whole file in an editor. What comes out is read as a whole
//! before it replaces anything, and approved as the person's own change.

#![expect(clippy::disallowed_methods, reason = "the person's own editor is started, in their terminal")]

use super::value::{self, Path};
use super::{Present, Set, settle, write};
use crate::cli::Outcome;
use crate::cli::approval;
use crate::cli::context::Context;
use crate::config::{self, Status};
use crate::error::CliError;
use crate::protocol::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Command, ExitCode};

pub(super) fn set(cx: &Context, args: &Set) -> Outcome {
    cx.a_persons("config set")?;
    let key = Path::parse(&args.key)?;
    let now = Present::read(cx)?;
    nothing_waits(&now)?;
    let text = value::set(now.text()?, &key, &args.value)?;
    replace(cx, &now, text.as_bytes())
}

pub(super) fn edit(cx: &Context) -> Outcome {
    cx.a_persons("config edit")?;
    let now = Present::read(cx)?;
    if !cx.at_terminal {
        return Err(CliError::usage("an editor needs a terminal").hint("overnight config set KEY VALUE"));
    }
    nothing_waits(&now)?;
    let folder = tempdir(cx)?;
    let draft = folder.join(config::FILE);
    let outcome = edit_draft(cx, &now, &draft);
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

fn edit_draft(cx: &Context, now: &Present, draft: &std::path::Path) -> Outcome {
    let failed = |e: std::io::Error| CliError::from_error(ErrorKind::Failed, &e);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft).map_err(failed)?;
    std::io::Write::write_all(&mut file, &now.bytes).map_err(failed)?;
    drop(file);
    loop {
        // The shell reads the variables and splits what they hold, as every program does with them.
        let status = Command::new("/bin/sh")
            .args(["-c", "exec ${VISUAL:-${EDITOR:-vi}} \"$1\"", "editor"])
            .arg(draft)
            .status()
            .map_err(failed)?;
        if !status.success() {
            return Err(CliError::new(
                ErrorKind::Failed,
                format!("the editor ended with {status}; nothing was changed"),
            ));
        }
        let bytes = config::read(draft).map_err(|e| approval::config_error(&e))?;
        if bytes == now.bytes {
            cx.note("nothing was changed");
            return Ok(ExitCode::SUCCESS);
        }
        match config::parse(&now.file, &bytes) {
            Ok(_) => return replace(cx, now, &bytes),
            Err(error) => error.to_string().lines().for_each(|line| cx.note(line)),
        }
        if cx.confirm("Edit it again? Otherwise nothing is changed.")? != Some(true) {
            return Ok(ExitCode::from(ErrorKind::Usage.exit_code()));
        }
    }
}

/// A folder of this process alone, below the data folder.
fn tempdir(cx: &Context) -> Result<std::path::PathBuf, CliError> {
    let folder = cx.places.data.join(format!("edit-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    config::files::private_folder(&folder).map_err(|e| super::file_error(&e))?;
    Ok(folder)
}

/// A change made here approves the whole file; so nothing else in it may wait for approval.
fn nothing_waits(now: &Present) -> Result<(), CliError> {
    let what = match now.status {
        Status::Same => return Ok(()),
        Status::Changed { .. } => "overnight.toml holds changes that you have not approved",
        Status::Never => "this overnight.toml was never approved",
    };
    let hint = match config::parse(&now.file, &now.bytes) {
        Ok(_) => "`overnight config approve` first: it shows them and asks",
        Err(_) => "mend the file first (`overnight config check` says what is wrong), then `overnight config approve`",
    };
    Err(CliError::new(ErrorKind::WrongState, what).hint(hint))
}

fn replace(cx: &Context, now: &Present, bytes: &[u8]) -> Outcome {
    let config = config::parse(&now.file, bytes).map_err(|e| approval::config_error(&e))?;
    if config.name != now.project.id {
        let message = format!("the project is known as `{}`; its name cannot be changed here", now.project.id);
        return Err(
            CliError::usage(message).hint("`overnight project remove`, then `overnight init` with the new name")
        );
    }
    if bytes != now.bytes {
        // Somebody else's change since it was read must not be lost, nor approved.
        let present = config::read(&now.file).map_err(|e| approval::config_error(&e))?;
        if present != now.bytes {
            return Err(CliError::new(ErrorKind::Failed, "overnight.toml was changed in between; nothing was written"));
        }
        approval::judge_target(cx, &now.project, bytes)?;
        write(&now.file, bytes).map_err(|e| {
            let mut error = CliError::new(ErrorKind::Failed, "could not write overnight.toml");
            error.causes.push(e.to_string());
            error
        })?;
    }
    settle(cx, &now.project, bytes)
}
