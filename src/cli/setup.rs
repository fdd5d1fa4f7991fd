//! Setting up: `init`, `doctor`, `demo`, and the list of projects. The work is done in `setup` and `config`.

use super::context::{Context, file_error, unexpected};
use super::{Outcome, approval, render};
use crate::config::registry::RegistryError;
use crate::config::{self, Approvals, Project};
use crate::daemon::How;
use crate::domain::ProjectId;
use crate::error::CliError;
use crate::protocol::{ErrorKind, Reply, Request};
use crate::setup::demo::DemoOptions;
use crate::setup::doctor::Level;
use crate::setup::init::{InitOptions, SetupError};
use clap::{Args, Subcommand};
use render::{Paint, columns, line, pad};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `init`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cd my-repo && overnight init")]
pub(super) struct Init {
    /// The repository; the present folder where nothing is said.
    #[arg(default_value = ".")]
    repo: PathBuf,
    /// The project's name; the folder's where nothing is said.
    #[arg(long)]
    name: Option<String>,
    /// The branch that work starts from.
    #[arg(long, value_name = "BRANCH")]
    base: Option<String>,
    /// The folder of the state repo; beside the repository where nothing is said.
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight demo\n  overnight demo --agent claude --dir ./demo")]
pub(super) struct Demo {
    /// Work with this agent instead of the built-in script agent.
    #[arg(long)]
    agent: Option<String>,
    /// Where to make it; a new folder in your cache where nothing is said.
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

/// `project …`.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// All projects of this machine.
    #[command(after_help = "Example:\n  overnight project list --json")]
    List,
    /// Take up a repository that has an overnight.toml and a state repo already.
    Add(AddProject),
    /// Take a project off the list; its folders and data stay.
    Remove(Remove),
    /// Where a project's things are.
    #[command(after_help = "Example:\n  overnight project info --project my-repo")]
    Info,
}

/// Arguments of `project add`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight project add ~/src/my-repo")]
pub(super) struct AddProject {
    /// The code repository.
    #[arg(default_value = ".")]
    repo: PathBuf,
}

/// Arguments of `project remove`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight project remove my-repo")]
pub(super) struct Remove {
    /// The project's name.
    name: String,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

pub(super) fn init(cx: &Context, args: &Init) -> Outcome {
    cx.a_persons("init")?;
    if let Some(name) = &args.name {
        ProjectId::parse(name).map_err(|e| CliError::usage(format!("{name:?} is no project's name: {e}")))?;
    }
    let options = InitOptions {
        repo: args.repo.clone(),
        name: args.name.clone(),
        base: args.base.clone(),
        state: args.state.clone(),
        places: cx.places.clone(),
    };
    let done = crate::setup::init::init(&options).map_err(setup_error)?;
    cx.reload();
    let facts: Vec<_> =
        done.lines.iter().map(|(label, text)| serde_json::json!({ "label": label, "text": text })).collect();
    cx.show(&facts, || {
        let mut out = String::new();
        for (label, text) in &done.lines {
            let label = cx.style.paint(Paint::Quiet, &pad(&line(label), 10));
            out.push_str(&format!("  {label} {}\n", line(text)));
        }
        out
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn setup_error(error: SetupError) -> CliError {
    CliError { hint: error.hint, ..CliError::new(error.kind, error.message) }
}

pub(super) fn doctor(cx: &Context) -> Outcome {
    let project = cx.chosen()?.map(|project| project.id);
    let findings = crate::setup::doctor::doctor(&cx.places, project.as_ref());
    let word = |level: Level| match level {
        Level::Good => "good",
        Level::Warn => "warn",
        Level::Bad => "bad",
    };
    let facts: Vec<_> = findings
        .iter()
        .map(|f| serde_json::json!({ "level": word(f.level), "text": f.text, "mend": f.mend }))
        .collect();
    cx.show(&facts, || {
        let mut out = String::new();
        for finding in &findings {
            let (sign, paint) = match finding.level {
                Level::Good => ("✓", Paint::Good),
                Level::Warn => ("!", Paint::Attention),
                Level::Bad => ("✗", Paint::Bad),
            };
            out.push_str(&format!("  {} {}\n", cx.style.paint(paint, sign), line(&finding.text)));
            if let Some(mend) = &finding.mend {
                out.push_str(&format!("    {} {}\n", cx.style.paint(Paint::Quiet, "→"), line(mend)));
            }
        }
        out
    })?;
    Ok(ExitCode::from(u8::from(findings.iter().any(|finding| finding.level == Level::Bad))))
}

/// The shell line after which `overnight` speaks of the demonstration. From a build folder its name is no command yet.
fn go_there(home: &std::path::Path, code: &std::path::Path) -> String {
    let quoted = |path: &std::path::Path| format!("'{}'", path.to_string_lossy().replace('\'', "'\\''"));
    let this = std::env::current_exe().ok();
    let path = crate::config::environment().remove("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path)
        .filter_map(|folder| folder.join("overnight").canonicalize().ok())
        .any(|found| Some(found) == this);
    let alias = this.filter(|_| !installed).map_or_else(String::new, |at| format!("alias overnight={}; ", quoted(&at)));
    format!("{alias}export OVERNIGHT_HOME={}; cd {}", quoted(home), quoted(code))
}

/// A night in small: the daemon itself on a small project, then its report, and where everything lies.
pub(super) fn demo(cx: &Context, args: &Demo) -> Outcome {
    let options = DemoOptions { agent: args.agent.clone(), dir: args.dir.clone() };
    let demo = crate::setup::demo::prepare(&options).map_err(setup_error)?;
    cx.print(&format!(
        "  A small project with {} tasks is in {}.\n  The daemon works on them now; this takes some seconds.\n\n",
        demo.tasks,
        line(&demo.dir.to_string_lossy())
    ))?;
    // Its exit code tells that not everything was merged, which is as it should be here.
    let _ = crate::daemon::run(&demo.places, How::Foreground { until_idle: true, project: None, verbose: false });
    let reply = crate::daemon::serve(&demo.places, Request::Report { project: None, night: None });
    let Reply::Report(report) = reply else { return Err(unexpected(&reply)) };
    cx.print("\n")?;
    cx.show(&report, || render::report::report(&report, &cx.style))?;
    let show = |path: &std::path::Path| line(&path.to_string_lossy());
    let home = demo.dir.join("home");
    cx.print(&format!(
        "\n  the project          {}   (git log --graph overnight/main)\n  its tasks            {}   (state.json, log.jsonl)\n  \
         logs, worktrees, db  {}\n  remove it all        rm -rf {}\n\n  To type the commands above, or `overnight why \
         greet-warmly`, go there:\n\n      {}\n",
        show(&demo.code),
        show(&demo.state),
        show(&demo.places.data),
        show(&demo.dir),
        line(&go_there(&home, &demo.code))
    ))?;
    let report_ok = report.projects.iter().all(|p| p.merged.len() >= 5 || args.agent.is_some());
    Ok(ExitCode::from(u8::from(!report_ok)))
}

pub(super) fn project(cx: &Context, verb: &Verb) -> Outcome {
    match verb {
        Verb::List => list(cx),
        Verb::Add(args) => add(cx, args),
        Verb::Remove(args) => remove(cx, args),
        Verb::Info => info(cx),
    }
}

fn list(cx: &Context) -> Outcome {
    let projects = cx.registry().list().map_err(|e| file_error(&e))?;
    cx.show(&projects, || {
        let widest = projects.iter().map(|p| columns(p.id.as_str())).max().unwrap_or(0);
        let mut out = String::new();
        for project in &projects {
            let code = line(&project.code.to_string_lossy());
            out.push_str(&format!("  {}   {code}\n", pad(project.id.as_str(), widest)));
        }
        if projects.is_empty() {
            out.push_str("  no projects · overnight init makes a repository one\n");
        }
        out
    })?;
    Ok(ExitCode::SUCCESS)
}

fn add(cx: &Context, args: &AddProject) -> Outcome {
    cx.a_persons("project add")?;
    let repo = args.repo.canonicalize().map_err(|e| {
        let mut error = CliError::new(ErrorKind::NotFound, format!("there is no folder {}", args.repo.display()));
        error.causes.push(e.to_string());
        error
    })?;
    let config = config::load(&repo.join(config::FILE)).map_err(|e| approval::config_error(&e))?;
    let state = config.state_folder(&repo);
    if !state.is_dir() {
        let message = format!("its state repo is not there: {}", state.display());
        return Err(CliError::new(ErrorKind::NotFound, message).hint("clone it there, or `overnight init` makes one"));
    }
    let project = cx.registry().add(config.name, &repo, &state).map_err(|e| registry_error(&e))?;
    cx.reload();
    let approved = Approvals::new(&cx.places.data).approved(&project.id).ok().flatten();
    let same = config::read(&repo.join(config::FILE)).ok().zip(approved).is_some_and(|(now, then)| now == then.bytes);
    let next = if same { "" } else { " · `overnight config approve` lets its settings run" };
    cx.show(&project, || format!("  {}   added{next}\n", project.id))?;
    Ok(ExitCode::SUCCESS)
}

fn remove(cx: &Context, args: &Remove) -> Outcome {
    cx.a_persons("project remove")?;
    let not_there = || {
        let error = CliError::new(ErrorKind::NotFound, format!("there is no project {:?}", args.name));
        error.hint("`overnight project list` shows them")
    };
    let id = ProjectId::parse(&args.name).map_err(|e| CliError::usage(e.to_string()))?;
    cx.registry().get(&id).map_err(|e| file_error(&e))?.ok_or_else(not_there)?;
    if !args.yes {
        match cx.confirm(&format!("Take {id} off the list? Its folders and data stay."))? {
            Some(true) => {}
            Some(false) => return Ok(ExitCode::from(1)),
            None => {
                let error = CliError::usage("nobody is there to say yes");
                return Err(error.hint(format!("overnight project remove {id} --yes")));
            }
        }
    }
    let gone = cx.registry().remove(&id).map_err(|e| registry_error(&e))?.ok_or_else(not_there)?;
    cx.reload();
    cx.show(&gone, || format!("  {id}   removed; {} and its data stay\n", line(&gone.code.to_string_lossy())))?;
    Ok(ExitCode::SUCCESS)
}

fn info(cx: &Context) -> Outcome {
    let Project { id, code, state } = cx.project()?;
    let data = cx.places.project(&id);
    let document = serde_json::json!({ "id": id, "code": code, "state": state, "data": data });
    cx.show(&document, || {
        let row = |label: &str, path: &std::path::Path| {
            format!("  {} {}\n", cx.style.paint(Paint::Quiet, &pad(label, 6)), line(&path.to_string_lossy()))
        };
        format!("  {}\n{}{}{}", id, row("code", &code), row("state", &state), row("data", &data))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn registry_error(error: &RegistryError) -> CliError {
    let kind = match error {
        RegistryError::File(_) => ErrorKind::Failed,
        RegistryError::Path { .. } => ErrorKind::Usage,
        RegistryError::IdTaken { .. } | RegistryError::PathTaken { .. } => ErrorKind::WrongState,
    };
    CliError::from_error(kind, error)
}
