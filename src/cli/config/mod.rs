//! `config …`: overnight.toml seen, changed and approved. A change made here is approved with it, but only where nothing
//! else in the file waits for approval: what somebody else wrote is never taken along unseen.

mod change;
mod value;

use super::context::{Context, file_error};
use super::{Outcome, approval, render};
use crate::config::{self, Approvals, Project, ProjectConfig, Status};
use crate::error::CliError;
use crate::protocol::ErrorKind;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// The file, and how it stands to what was approved.
    #[command(after_help = "Example:\n  overnight config show --json")]
    Show,
    /// One setting.
    #[command(after_help = "Example:\n  overnight config get project.slots")]
    Get(Key),
    /// Change one setting and approve the change.
    #[command(
        after_help = "Examples:\n  overnight config set project.slots 4\n  overnight config set agents.claude.model opus\n  overnight config set limits.wall 2h"
    )]
    Set(Set),
    /// Open the file in your editor and approve the change.
    #[command(after_help = "Example:\n  EDITOR=nano overnight config edit")]
    Edit,
    /// Say everything that is wrong with the file.
    Check(Check),
    /// Let the file as it is be what runs.
    Approve(Approve),
}

/// A setting by its name.
#[derive(Debug, Args)]
pub(super) struct Key {
    /// Name with its tables, as in `limits.wall` or `agents.claude.model`.
    key: String,
}

/// Arguments of `config set`.
#[derive(Debug, Args)]
pub(super) struct Set {
    /// Name with its tables, as in `limits.wall` or `agents.claude.model`.
    key: String,
    /// The value: TOML, or plain text.
    #[arg(allow_hyphen_values = true)]
    value: String,
}

/// Arguments of `config check`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight config check")]
pub(super) struct Check {
    /// Another file than the project's.
    file: Option<PathBuf>,
}

/// Arguments of `config approve`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight config approve\n  overnight config approve --hash sha256:9f86d0…")]
pub(super) struct Approve {
    /// Approve without asking, if the file has this hash.
    #[arg(long, value_name = "HASH")]
    hash: Option<String>,
}

/// The configuration file of a project as it is now.
struct Present {
    project: Project,
    file: PathBuf,
    bytes: Vec<u8>,
    status: Status,
}

impl Present {
    fn read(cx: &Context) -> Result<Self, CliError> {
        let project = cx.project()?;
        let file = project.code.join(config::FILE);
        let bytes = config::read(&file).map_err(|e| approval::config_error(&e))?;
        let status = approvals(cx).status(&project.id, &bytes).map_err(|e| file_error(&e))?;
        Ok(Self { project, file, bytes, status })
    }

    fn parse(&self) -> Result<ProjectConfig, CliError> {
        config::parse(&self.file, &self.bytes).map_err(|e| approval::config_error(&e))
    }

    fn text(&self) -> Result<&str, CliError> {
        std::str::from_utf8(&self.bytes).map_err(|_| CliError::usage("overnight.toml is not UTF-8"))
    }
}

fn approvals(cx: &Context) -> Approvals {
    Approvals::new(&cx.places.data)
}

pub(super) fn run(cx: &Context, verb: &Verb) -> Outcome {
    match verb {
        Verb::Show => show(cx),
        Verb::Get(args) => get(cx, args),
        Verb::Set(args) => change::set(cx, args),
        Verb::Edit => change::edit(cx),
        Verb::Check(args) => check(cx, args),
        Verb::Approve(args) => approve(cx, args),
    }
}

fn show(cx: &Context) -> Outcome {
    let now = Present::read(cx)?;
    let word = match now.status {
        Status::Same => "approved",
        Status::Changed { .. } => "changed since it was approved",
        Status::Never => "never approved",
    };
    let hash = config::hash(&now.bytes);
    let approved = approvals(cx).approved(&now.project.id).map_err(|e| file_error(&e))?;
    let parsed = config::parse(&now.file, &now.bytes);
    let document = serde_json::json!({
        "project": now.project.id,
        "file": now.file,
        "hash": hash,
        "approved": approved.map(|copy| copy.hash),
        "is_approved": now.status == Status::Same,
        "policy": parsed.as_ref().ok().map(|config| &config.policy),
        "problems": parsed.as_ref().err().map(ToString::to_string),
    });
    cx.show(&document, || {
        let path = render::line(&now.file.to_string_lossy());
        let head = cx.style.paint(render::Paint::Quiet, &format!("# {path}\n# {word}: {hash}"));
        let mut out = format!("{head}\n{}", render::block(&String::from_utf8_lossy(&now.bytes)));
        if !out.ends_with('\n') {
            out.push('\n');
        }
        if let Err(error) = &parsed {
            error.to_string().lines().for_each(|line| out.push_str(&format!("# {}\n", render::line(line))));
        }
        if let Status::Changed { .. } = now.status {
            out.push_str("# what runs is the approved copy; `overnight config approve` shows the difference\n");
        }
        out
    })?;
    Ok(ExitCode::SUCCESS)
}

fn get(cx: &Context, args: &Key) -> Outcome {
    let now = Present::read(cx)?;
    let key = value::Path::parse(&args.key)?;
    let Some(found) = value::get(now.text()?, &key)? else {
        // A file that says it is refused for its name, or for something else.
        let tried = value::set(now.text()?, &key, "1").ok().and_then(|t| config::parse(&now.file, t.as_bytes()).err());
        let unknown = tried.is_some_and(|e| e.to_string().contains("unknown key"));
        if unknown && config::parse(&now.file, &now.bytes).is_ok() {
            let error = CliError::new(ErrorKind::NotFound, format!("{key} is an unknown key"));
            return Err(error.hint("`overnight config show` shows the file"));
        }
        let error = CliError::new(ErrorKind::NotFound, format!("{key} is not set and has no default"));
        return Err(error.hint("`overnight config show` shows the file"));
    };
    cx.show(&found.json, || format!("{}\n", render::block(&found.text)))?;
    Ok(ExitCode::SUCCESS)
}

fn check(cx: &Context, args: &Check) -> Outcome {
    let file = match &args.file {
        Some(file) => file.clone(),
        None => cx.project()?.code.join(config::FILE),
    };
    let bytes = config::read(&file).map_err(|e| approval::config_error(&e))?;
    if let Err(error) = config::parse(&file, &bytes) {
        if cx.json {
            let problems: Vec<_> = error.problems.iter().map(problem_json).collect();
            cx.print_json(&serde_json::json!({ "file": file, "problems": problems }))?;
            return Ok(ExitCode::from(ErrorKind::Usage.exit_code()));
        }
        return Err(CliError::usage(error.to_string()));
    }
    let document = serde_json::json!({ "file": file, "problems": [], "hash": config::hash(&bytes) });
    cx.show(&document, || format!("  {} is sound\n", render::line(&file.to_string_lossy())))?;
    Ok(ExitCode::SUCCESS)
}

fn problem_json(problem: &config::Problem) -> serde_json::Value {
    serde_json::json!({
        "line": problem.line, "column": problem.column, "key": problem.key, "text": problem.text, "help": problem.help,
    })
}

fn approve(cx: &Context, args: &Approve) -> Outcome {
    cx.a_persons("config approve")?;
    let now = Present::read(cx)?;
    now.parse()?;
    let hash = config::hash(&now.bytes);
    if let Some(wanted) = &args.hash {
        if *wanted != hash {
            let message = format!("the file has another hash than the one you approve: {hash}");
            return Err(CliError::new(ErrorKind::WrongState, message).hint("read the file again before you approve it"));
        }
    } else if now.status != Status::Same {
        present(cx, &now);
        match cx.confirm("Let this be what runs?")? {
            Some(true) => {}
            Some(false) => {
                cx.note("nothing was approved");
                return Ok(ExitCode::from(1));
            }
            None => {
                let error = CliError::usage("nobody is there to approve it");
                return Err(error.hint(format!("read the file, then: overnight config approve --hash {hash}")));
            }
        }
    }
    settle(cx, &now.project, &now.bytes)
}

/// Shows what is about to be approved.
fn present(cx: &Context, now: &Present) {
    match &now.status {
        Status::Same => {}
        Status::Changed { diff } => approval::show(cx, diff),
        Status::Never => String::from_utf8_lossy(&now.bytes).lines().for_each(|line| cx.note(&format!("  {line}"))),
    }
}

/// Approves these bytes, tells the daemon and the person.
fn settle(cx: &Context, project: &Project, bytes: &[u8]) -> Outcome {
    approval::judge_target(cx, project, bytes)?;
    let hash = approvals(cx).approve(&project.id, bytes).map_err(|e| file_error(&e))?;
    cx.reload();
    cx.show(&serde_json::json!({ "project": project.id, "approved": hash }), || format!("  approved   {hash}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the user's file whole or not at all, through links and with the mode that it had.
fn write(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let file = file.canonicalize()?;
    let mode = std::fs::metadata(&file)?.permissions();
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let new = file.with_file_name(format!(".{name}.{}.new", std::process::id()));
    let written = std::fs::write(&new, bytes)
        .and_then(|()| std::fs::set_permissions(&new, mode))
        .and_then(|()| std::fs::rename(&new, &file));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}
