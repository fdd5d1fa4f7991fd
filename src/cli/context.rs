//! What every verb needs: the places, the chosen project, the way to print, and the way to ask: the daemon where one
//! runs, else the same rules in this process.

use super::When;
use super::render::{Style, line};
use crate::client::{self, ClientError};
use crate::config::files::FileError;
use crate::config::{Places, Project, Registry, Surroundings};
use crate::domain::{ProjectId, TaskPath};
use crate::error::{CliError, json_line};
use crate::protocol::view::StatusView;
use crate::protocol::{ErrorKind, Reply, Request};
use serde::Serialize;
use std::io::{self, IsTerminal as _, Write as _};

/// The surroundings of one command.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) places: Places,
    pub(super) json: bool,
    pub(super) style: Style,
    /// Standard output is a terminal.
    pub(super) on_terminal: bool,
    /// Both ends of a conversation with a person are there.
    pub(super) at_terminal: bool,
    /// The run that this process belongs to, if an agent started it.
    run: Option<String>,
    project: Option<ProjectId>,
}

/// A reply and who gave it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) reply: Reply,
    /// A daemon gave it; else this process did.
    pub(super) by_daemon: bool,
}

impl Context {
    pub(super) fn new(
        places: Places,
        around: &Surroundings,
        project: Option<&str>,
        json: bool,
        color: When,
    ) -> Result<Self, CliError> {
        let project = project.map(|name| {
            ProjectId::parse(name).map_err(|e| {
                CliError::usage(format!("{name:?} is no project's name: {e}"))
                    .hint("`overnight project list` shows them")
            })
        });
        let out = io::stdout().is_terminal();
        let colour = color.on(out, around);
        let width = out.then(terminal_size::terminal_size).flatten().map(|(width, _)| usize::from(width.0));
        let offset = time::UtcOffset::current_local_offset().unwrap_or(time::UtcOffset::UTC);
        Ok(Self {
            places,
            json,
            style: Style { colour, width, offset },
            on_terminal: out,
            at_terminal: out && io::stdin().is_terminal() && io::stderr().is_terminal(),
            run: around.run.clone(),
            project: project.transpose()?,
        })
    }

    /// Writes to standard output.
    pub(super) fn print(&self, text: &str) -> Result<(), CliError> {
        self.print_bytes(text.as_bytes())
    }

    /// Writes bytes to standard output as they are.
    #[expect(clippy::unused_self, reason = "printing is the context's, whether or not it needs its fields")]
    pub(super) fn print_bytes(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush()).map_err(|e| CliError::from_output(&e))
    }

    /// Writes a line to standard error, for a person and not for a pipe; nothing follows from its failing.
    #[expect(clippy::unused_self, reason = "printing is the context's, whether or not it needs its fields")]
    pub(super) fn note(&self, text: &str) {
        let _ = io::stderr().lock().write_all(format!("{}\n", line(text)).as_bytes());
    }

    /// Prints a document: over several lines on a terminal, else on one.
    pub(super) fn print_json<T: Serialize>(&self, value: &T) -> Result<(), CliError> {
        let text = if self.on_terminal { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
        let text = text.map_err(|e| CliError::from_error(ErrorKind::Unexpected, &e))?;
        self.print(&json_line(&text))
    }

    /// Prints the text for people, or the document for programs.
    pub(super) fn show<T: Serialize>(&self, value: &T, text: impl FnOnce() -> String) -> Result<(), CliError> {
        if self.json { self.print_json(value) } else { self.print(&text()) }
    }

    /// Asks the daemon, or serves the request here where none runs. An error in the reply becomes this command's.
    pub(super) fn ask(&self, request: Request) -> Result<Answer, CliError> {
        match client::call(&self.places, &request) {
            Ok(reply) => settled(reply).map(|reply| Answer { reply, by_daemon: true }),
            Err(ClientError::NoDaemon) => {
                let reply = crate::daemon::serve(&self.places, request);
                settled(reply).map(|reply| Answer { reply, by_daemon: false })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Asks the daemon; `None` where none runs.
    pub(super) fn ask_daemon(&self, request: &Request) -> Result<Option<Reply>, CliError> {
        match client::call(&self.places, request) {
            Ok(reply) => settled(reply).map(Some),
            Err(ClientError::NoDaemon) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Tells a running daemon that configurations or projects changed.
    pub(super) fn reload(&self) {
        if let Err(error) = self.ask_daemon(&Request::Reload) {
            self.note(&format!("the daemon was not told of the change: {}", error.message));
        }
    }

    pub(super) fn status(&self, project: Option<ProjectId>) -> Result<StatusView, CliError> {
        match self.ask(Request::Status { project })?.reply {
            Reply::Status(view) => Ok(*view),
            reply => Err(unexpected(&reply)),
        }
    }

    pub(super) fn registry(&self) -> Registry {
        Registry::new(self.places.data.clone())
    }

    /// The project that `--project` names or the present folder is in.
    pub(super) fn project(&self) -> Result<Project, CliError> {
        if let Some(project) = self.chosen()? {
            return Ok(project);
        }
        let known = self.registry().list().map_err(|e| file_error(&e))?;
        let hint = match known.as_slice() {
            [] => "`overnight init` makes the present repository one".to_owned(),
            known => {
                let names: Vec<&str> = known.iter().map(|p| p.id.as_str()).collect();
                format!("go to its folder, or name it with --project: {}", names.join(", "))
            }
        };
        Err(CliError::new(ErrorKind::NotFound, "the present folder belongs to no project").hint(hint))
    }

    /// The same, or `None` where neither says one: then all are meant.
    pub(super) fn chosen(&self) -> Result<Option<Project>, CliError> {
        let registry = self.registry();
        let Some(id) = &self.project else {
            let Ok(here) = std::env::current_dir() else { return Ok(None) };
            return registry.find(&here).map_err(|e| file_error(&e));
        };
        match registry.get(id).map_err(|e| file_error(&e))? {
            Some(project) => Ok(Some(project)),
            None => {
                let error = CliError::new(ErrorKind::NotFound, format!("there is no project `{id}`"));
                Err(error.hint("`overnight project list` shows them"))
            }
        }
    }

    /// Refuses verbs that work on files of this user when an agent's run calls them.
    pub(super) fn a_persons(&self, verb: &str) -> Result<(), CliError> {
        // A variable can be taken away; whom a process descends from cannot.
        let above = || i32::try_from(std::process::id()).ok().and_then(crate::daemon::peer::run_of);
        match &self.run.clone().or_else(above) {
            None => Ok(()),
            Some(run) => {
                let message = format!("`{verb}` is a person's to use, and this process belongs to run {run}");
                Err(CliError::new(ErrorKind::NotAllowed, message))
            }
        }
    }

    /// Asks a person; `None` where nobody is there to ask.
    pub(super) fn confirm(&self, question: &str) -> Result<Option<bool>, CliError> {
        if !self.at_terminal {
            return Ok(None);
        }
        let mut err = io::stderr().lock();
        let asked = err.write_all(format!("{} [y/N] ", line(question)).as_bytes()).and_then(|()| err.flush());
        asked.map_err(|e| CliError::from_output(&e))?;
        let mut reply = String::new();
        io::stdin().read_line(&mut reply).map_err(|e| CliError::from_error(ErrorKind::Failed, &e))?;
        Ok(Some(matches!(reply.trim(), "y" | "Y" | "yes" | "Yes")))
    }

    /// Sends the request that `make` builds for the task `text`. A bare slug that is no path from the root means the one
    /// task of that name, at whatever depth.
    pub(super) fn on_task(
        &self,
        text: &str,
        make: impl Fn(ProjectId, TaskPath) -> Request,
    ) -> Result<(TaskPath, Answer), CliError> {
        let path = task_path(text)?;
        let project = self.project()?.id;
        let error = match self.ask(make(project.clone(), path.clone())) {
            Ok(answer) => return Ok((path, answer)),
            Err(error) if error.kind == ErrorKind::NotFound => error,
            Err(error) => return Err(error),
        };
        let near = match path.parent() {
            None => self.named(&project, path.as_str())?,
            Some(_) => Vec::new(),
        };
        match near.as_slice() {
            [one] if *one != path => Ok((one.clone(), self.ask(make(project, one.clone()))?)),
            [] | [_] if error.hint.is_none() => Err(error.hint("`overnight task list` shows the tasks")),
            [] | [_] => Err(error),
            several => {
                let paths: Vec<&str> = several.iter().map(TaskPath::as_str).collect();
                let message = format!("`{path}` could be any of {}", paths.join(", "));
                Err(CliError::usage(message).hint("write the whole path"))
            }
        }
    }

    /// The tasks that are in sight and have this slug.
    fn named(&self, project: &ProjectId, slug: &str) -> Result<Vec<TaskPath>, CliError> {
        let view = self.status(Some(project.clone()))?;
        let tasks = view.projects.into_iter().filter(|p| p.project == *project).flat_map(|p| p.tasks);
        Ok(tasks.map(|task| task.path).filter(|path| path.slug() == slug).collect())
    }
}

/// A task path as typed, refused before anything is made of it.
pub(super) fn task_path(text: &str) -> Result<TaskPath, CliError> {
    TaskPath::parse(text)
        .map_err(|e| CliError::usage(format!("{text:?} is no task: {e}")).hint("`overnight task list` shows the tasks"))
}

/// A file of ours that could not be used.
pub(super) fn file_error(error: &FileError) -> CliError {
    CliError::from_error(ErrorKind::Failed, error).hint("`overnight doctor` looks into it")
}

/// A reply of another kind than the request calls for.
pub(super) fn unexpected(reply: &Reply) -> CliError {
    let word = serde_json::to_value(reply).ok().and_then(|v| Some(v.get("reply")?.as_str()?.to_owned()));
    let message = format!("the daemon's reply `{}` does not belong to the question", word.unwrap_or_default());
    CliError::new(ErrorKind::Unexpected, message).hint("`overnight restart` starts a daemon of this version")
}

fn settled(reply: Reply) -> Result<Reply, CliError> {
    match reply {
        Reply::Error(failure) => Err(failure.into()),
        reply => Ok(reply),
    }
}
