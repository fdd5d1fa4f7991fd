//! `add`: a new task from a title and a few words more. Names, agents, checks and dependencies are looked up first, so
//! that a slip of the pen is told here and not by a task that cannot start.

use super::context::{Context, file_error, task_path};
use super::{Outcome, steer};
use crate::config::{self, Approvals, Project};
use crate::domain::id::SLUG_MAX;
use crate::domain::policy::Policy;
use crate::domain::task::WishStatus;
use crate::domain::{ProjectId, Slug, TaskPath};
use crate::error::CliError;
use crate::protocol::{ErrorKind, Reply, Request};
use crate::text::task_file::{self, NewTask};
use clap::Args;
use std::io::IsTerminal as _;
use std::process::ExitCode;

/// Most tasks of one title.
const SAME: u32 = 999;

/// Arguments of `add` and `task new`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  overnight add \"Add a /health endpoint that returns build info\"
  overnight add \"Document the endpoints\" --after add-a-health-endpoint-that-returns-build-info --agent codex
  overnight add \"Tidy the parser\" --body - < notes.md")]
pub(super) struct Add {
    /// What shall be done, in a line.
    title: String,
    /// Tasks that must be merged before it starts.
    #[arg(long, value_name = "TASK", value_delimiter = ',')]
    after: Vec<String>,
    /// Who works on it: an agent of overnight.toml.
    #[arg(long)]
    agent: Option<String>,
    /// The agent's model.
    #[arg(long)]
    model: Option<String>,
    /// Larger goes first; 0 is the usual one.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Its name, where the title shall not give it.
    #[arg(long)]
    slug: Option<String>,
    /// The task that it becomes a part of.
    #[arg(long, value_name = "TASK")]
    parent: Option<String>,
    /// Which checks of overnight.toml must pass; all of them where nothing is said.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    checks: Option<Vec<String>>,
    /// Wait for a person's yes before merging.
    #[arg(long)]
    review: bool,
    /// A command of the built-in script agent; may be given several times.
    #[arg(long, value_name = "CMD", num_args = 1)]
    script: Vec<String>,
    /// All that the title does not say, as Markdown; `-` reads it from standard input.
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
    /// Only write it down; `overnight task enqueue` queues it later.
    #[arg(long)]
    planning: bool,
}

/// Adds the task; one that is new by `task new` starts in planning.
pub(super) fn add(cx: &Context, args: &Add) -> Outcome {
    create(cx, args, args.planning)
}

pub(super) fn create(cx: &Context, args: &Add, planning: bool) -> Outcome {
    let title = args.title.trim();
    if title.is_empty() {
        return Err(CliError::usage("a task needs a title"));
    }
    // Everything that is refused as an argument comes before the first look at a file.
    let slug = args.slug.as_deref().map(Slug::parse).transpose().map_err(|e| CliError::usage(e.to_string()))?;
    let parent = args.parent.as_deref().map(task_path).transpose()?;
    args.after.iter().try_for_each(|text| task_path(text).map(drop))?;

    let project = cx.project()?;
    check_names(cx, &project, args)?;
    let parent = parent.map(|path| known(cx, path.as_str())).transpose()?;
    let after = args.after.iter().map(|text| known(cx, text)).collect::<Result<Vec<_>, _>>()?;
    let body = match args.body.as_deref() {
        Some("-") => steer::from_stdin()?,
        Some(text) => text.to_owned(),
        None => String::new(),
    };
    steer::no_nul(&body, "a task's text")?;
    let depth = parent.as_ref().map_or(0, |path| path.parts().count());
    let text = task_file::create(&NewTask {
        title: title.to_owned(),
        status: if planning { WishStatus::Planning } else { WishStatus::Queued },
        depends_on: after.iter().map(|path| reference(path, depth)).collect(),
        priority: args.priority,
        agent: args.agent.clone().or_else(|| (!args.script.is_empty()).then(|| "script".to_owned())),
        model: args.model.clone(),
        checks: args.checks.clone(),
        review: args.review,
        script: args.script.clone(),
        description: body,
        ..NewTask::default()
    });
    let (path, said) = send(cx, &project.id, parent.as_ref(), slug, title, &text)?;
    tell(cx, &path, planning, &after, said.as_deref())
}

/// Sends it under a free name; gives the words of whoever served it without a daemon.
fn send(
    cx: &Context,
    project: &ProjectId,
    parent: Option<&TaskPath>,
    slug: Option<Slug>,
    title: &str,
    text: &str,
) -> Result<(TaskPath, Option<String>), CliError> {
    let fixed = slug.is_some();
    // Other scripts in Latin letters; a title of signs alone gives no slug of its own.
    let base = match slug.or_else(|| Slug::from_title(&deunicode::deunicode(title))) {
        Some(slug) => slug,
        None => Slug::parse("task").map_err(|e| CliError::usage(e.to_string()))?,
    };
    for n in 1..=SAME {
        let path = below(parent, &numbered(&base, n)?)?;
        match cx.ask(Request::Add { project: project.clone(), path: path.clone(), text: text.to_owned() }) {
            Ok(answer) => {
                let Reply::Done { text } = answer.reply else { return Err(super::context::unexpected(&answer.reply)) };
                return Ok((path, (!answer.by_daemon).then_some(text)));
            }
            Err(error) if fixed || error.kind != ErrorKind::WrongState || !exists(cx, project, &path)? => {
                return Err(error);
            }
            Err(_) => {}
        }
    }
    Err(CliError::new(ErrorKind::WrongState, format!("there are {SAME} tasks of this title"))
        .hint("name it with --slug"))
}

fn below(parent: Option<&TaskPath>, slug: &Slug) -> Result<TaskPath, CliError> {
    let path = match parent {
        Some(parent) => parent.child(slug),
        None => TaskPath::parse(slug.as_str()),
    };
    path.map_err(|e| CliError::usage(e.to_string()))
}

/// `base`, `base-2`, `base-3`, cut so that the number fits.
fn numbered(base: &Slug, n: u32) -> Result<Slug, CliError> {
    if n == 1 {
        return Ok(base.clone());
    }
    let end = format!("-{n}");
    // Slugs are ASCII.
    let room = base.as_str().len().min(SLUG_MAX - end.len());
    let start = base.as_str()[..room].trim_end_matches('-');
    Slug::parse(&format!("{start}{end}")).map_err(|e| CliError::usage(e.to_string()))
}

fn exists(cx: &Context, project: &ProjectId, path: &TaskPath) -> Result<bool, CliError> {
    match cx.ask(Request::Show { project: project.clone(), path: path.clone() }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The path of a task that there is.
fn known(cx: &Context, text: &str) -> Result<TaskPath, CliError> {
    let found = cx.on_task(text, |project, path| Request::Show { project, path });
    found.map(|(path, _)| path).map_err(|mut error| {
        if error.kind == ErrorKind::NotFound {
            error.hint = Some("add the task that comes first before the one that waits for it".into());
        }
        error
    })
}

/// `path` from the root as written in the file of a task `depth` levels below the root, where a bare slug could also be
/// a sibling.
fn reference(path: &TaskPath, depth: usize) -> String {
    if depth > 0 && path.parent().is_none() { format!("{}{path}", "../".repeat(depth)) } else { path.to_string() }
}

/// Agents and checks that the approved configuration does not have. Without one, whoever serves the request judges.
fn check_names(cx: &Context, project: &Project, args: &Add) -> Result<(), CliError> {
    let Some(policy) = policy(cx, project)? else { return Ok(()) };
    if let Some(agent) = args.agent.as_deref().filter(|agent| !policy.agents.contains_key(*agent)) {
        let file = project.code.join(config::FILE);
        let now = config::read(&file).ok().and_then(|bytes| config::parse(&file, &bytes).ok());
        if now.is_some_and(|now| now.policy.agents.contains_key(agent)) {
            return Err(CliError::usage(format!("the agent {agent:?} of overnight.toml is not approved yet"))
                .hint("`overnight config approve` shows what was changed and asks"));
        }
        let names: Vec<&str> = policy.agents.keys().map(String::as_str).collect();
        return Err(CliError::usage(format!("overnight.toml has no agent {agent:?}"))
            .hint(format!("it has {}", names.join(", "))));
    }
    for check in args.checks.iter().flatten() {
        if !policy.checks.iter().any(|known| known.name == *check) {
            let names: Vec<&str> = policy.checks.iter().map(|check| check.name.as_str()).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(CliError::usage(format!("overnight.toml has no check {check:?}")).hint(format!("it has {has}")));
        }
    }
    let kind = args.agent.as_ref().and_then(|agent| policy.agents.get(agent)).map(|profile| profile.kind);
    let scripted = !args.script.is_empty() || kind == Some(crate::domain::policy::AgentKind::Script);
    if scripted && !policy.script_allowed {
        let hint = "overnight config set agents.script true (whoever can push a task then runs commands here)";
        return Err(CliError::usage("this project does not allow tasks with commands of their own").hint(hint));
    }
    Ok(())
}

/// The approved policy of a project, where there is a sound one.
pub(super) fn policy(cx: &Context, project: &Project) -> Result<Option<Policy>, CliError> {
    let approved = Approvals::new(&cx.places.data).approved(&project.id).map_err(|e| file_error(&e))?;
    Ok(approved.and_then(|copy| config::parse(&project.code.join(config::FILE), &copy.bytes).ok()).map(|c| c.policy))
}

fn tell(cx: &Context, path: &TaskPath, planning: bool, after: &[TaskPath], said: Option<&str>) -> Outcome {
    let word = if planning { "planning" } else { "queued" };
    let document = serde_json::json!({ "path": path, "status": word, "after": after });
    cx.show(&document, || {
        let after: Vec<&str> = after.iter().map(TaskPath::as_str).collect();
        let after = if after.is_empty() { String::new() } else { format!("   after {}", after.join(", ")) };
        format!("  {path}   {word}{after}\n")
    })?;
    if let Some(text) = said.filter(|_| std::io::stderr().is_terminal()) {
        if !text.is_empty() {
            cx.note(&format!("  {text}"));
        }
        cx.note("  no daemon is running: `overnight start` sets it to work");
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_name_gets_a_number_that_fits() {
        let name = |text: &str, n| numbered(&Slug::parse(text).unwrap(), n).unwrap().as_str().to_owned();
        assert_eq!((name("a", 1), name("a", 2), name("a-1", 10)), ("a".into(), "a-2".into(), "a-1-10".into()));
        let long = "x".repeat(SLUG_MAX);
        assert_eq!(name(&long, 12), format!("{}-12", "x".repeat(61)));
        let cut = format!("{}-yy", "x".repeat(61));
        assert_eq!(name(&cut, 2), format!("{}-2", "x".repeat(61)));
    }

    #[test]
    fn references_mean_what_was_looked_up_wherever_the_task_stands() {
        let p = |text: &str| TaskPath::parse(text).unwrap();
        for (from, to) in [("new", "b"), ("a/new", "b"), ("a/c/new", "b"), ("a/new", "a/b"), ("new", "a/b")] {
            let depth = p(from).parent().map_or(0, |path| path.parts().count());
            let resolved = p(from).resolve(&reference(&p(to), depth), |_| true);
            assert_eq!(resolved, Ok(p(to)), "{from} → {to}");
        }
    }
}
