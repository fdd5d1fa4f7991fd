//! The command line: its definitions, and the way from words to one group of verbs. Verbs turn arguments into requests
//! and replies into text; what they decide beyond that is only how to ask the person at the terminal.

mod approval;
mod config;
mod context;
mod daemon;
mod follow;
mod itself;
mod launch;
mod logs;
mod merge;
mod queue;
pub mod render;
mod see;
mod service;
mod setup;
mod steer;
mod task;

use crate::config::{Places, Surroundings};
use crate::error::CliError;
use crate::protocol::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use context::Context;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

/// Works through a queue of coding-agent tasks while nobody watches, and merges what passes.
#[derive(Debug, Parser)]
#[command(name = "overnight", version, about, long_about = None, max_term_width = 110, subcommand_required = true,
    arg_required_else_help = true, after_help = FIRST_STEPS)]
pub struct Cli {
    /// The project, where it is not the one of the present folder.
    #[arg(long, global = true, value_name = "NAME")]
    project: Option<String>,
    /// Facts and errors as JSON.
    #[arg(long, global = true)]
    json: bool,
    /// When to use colours.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = false)]
    color: When,
    #[command(subcommand)]
    command: Command,
}

const FIRST_STEPS: &str = "First steps:
  overnight init                 in a git repository: writes overnight.toml, makes the state repo
  overnight add \"Add a /health endpoint\"
  overnight start                the daemon works through the queue
  overnight status               how it goes; `overnight why TASK` explains
  overnight report               in the morning; `overnight diff` and `overnight land` bring it home";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum When {
    Auto,
    Always,
    Never,
}

impl When {
    /// Whether a stream gets colours.
    fn on(self, terminal: bool, around: &Surroundings) -> bool {
        match self {
            Self::Auto => terminal && !around.no_color,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    // Setting up.
    /// Make this git repository a project.
    Init(setup::Init),
    /// Look for what is missing or wrong on this machine.
    #[command(after_help = "Example:\n  overnight doctor")]
    Doctor,
    /// See, change and approve overnight.toml.
    #[command(subcommand, after_help = "Example:\n  overnight config set project.slots 4")]
    Config(config::Verb),
    /// The projects on this machine.
    #[command(subcommand, after_help = "Example:\n  overnight project list")]
    Project(setup::Verb),
    /// Print a script that completes commands in your shell.
    Completions(itself::Completions),

    // Queueing.
    /// Queue a task.
    Add(queue::Add),
    /// Work on single tasks.
    #[command(subcommand, after_help = "Example:\n  overnight task list")]
    Task(task::Verb),

    // The daemon.
    /// Start the daemon.
    #[command(after_help = "Example:\n  overnight start && overnight status")]
    Start,
    /// End the daemon; agents go on and are taken up at the next start.
    Stop(daemon::Stop),
    /// End the daemon and start this version of it; agents go on.
    #[command(after_help = "Example:\n  overnight restart")]
    Restart,
    /// Start nothing new; what runs goes on.
    #[command(after_help = "Example:\n  overnight pause && git rebase main && overnight resume")]
    Pause,
    /// Go on after a pause or a held agent.
    #[command(after_help = "Example:\n  overnight resume")]
    Resume,
    /// Work in the foreground until the queue is empty.
    Run(daemon::Run),
    /// What a task's agent and checks printed; the daemon's own log without a task.
    Logs(logs::Logs),

    // Seeing.
    /// How everything stands.
    Status(see::Status),
    /// Why a task is where it is.
    #[command(after_help = "Example:\n  overnight why document-endpoints")]
    Why(TaskArg),
    /// All facts about a task.
    #[command(after_help = "Example:\n  overnight show document-endpoints")]
    Show(TaskArg),
    /// What happened, line by line.
    Events(see::Events),
    /// A night in review.
    Report(see::Report),
    /// What the base branch would gain.
    Diff(merge::Diff),

    // Steering.
    /// Answer a task's question.
    Answer(steer::AnswerVerb),
    /// Let a task that waits for review be merged.
    #[command(after_help = "Example:\n  overnight approve rename-config")]
    Approve(TaskArg),
    /// Stop a task and keep its work under a rescue ref.
    #[command(visible_alias = "cancel", after_help = "Example:\n  overnight abort rename-config")]
    Abort(TaskArg),
    /// Try a task that ended or is stuck once more.
    #[command(after_help = "Example:\n  overnight retry rename-config")]
    Retry(TaskArg),
    /// Change a task's place in the queue: larger numbers go first.
    Priority(steer::Priority),
    /// Bring a rescued attempt back as a branch.
    Undo(steer::Undo),
    /// What is kept of a task's attempts.
    #[command(after_help = "Example:\n  overnight rescues rename-config")]
    Rescues(TaskArg),

    /// Let the machine run the daemon: systemd or launchd.
    #[command(subcommand, after_help = "Example:\n  overnight service install --now")]
    Service(service::Verb),

    // Merging.
    /// Move the base branch forward to the finished work.
    Land(merge::Land),

    // Itself.
    /// See it work on a small project made for it.
    Demo(setup::Demo),
    /// Versions of this program and of the daemon.
    #[command(after_help = "Example:\n  overnight version --json")]
    Version,
    /// What a detached daemon runs.
    #[command(name = "__daemon", hide = true)]
    Daemon,
}

/// One task by its slug or path.
#[derive(Debug, clap::Args)]
struct TaskArg {
    /// Slug or path of the task.
    task: String,
}

/// What a verb comes to: done with an exit status of its own, or an error to tell.
type Outcome = Result<ExitCode, CliError>;

/// Runs the command line `args` (the program's name first) and tells its errors.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let json = args.iter().skip(1).take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    let around = Surroundings::from_env();
    let parsed = definition().try_get_matches_from(&args).and_then(|matches| Cli::from_arg_matches(&matches));
    let mut color = When::Auto;
    let outcome = match parsed {
        Ok(cli) => {
            color = cli.color;
            run(cli, &around)
        }
        Err(error) => no_command(&error, json),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if error.quiet => ExitCode::from(error.exit_code()),
        Err(error) => {
            let colour = color.on(std::io::stderr().is_terminal(), &around);
            let text = if json { error.for_programs() } else { error.for_people(colour) };
            let _ = std::io::stderr().write_all(text.as_bytes());
            ExitCode::from(error.exit_code())
        }
    }
}

/// All commands with their arguments and help, as clap knows them.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Help and version are output; everything else is a usage error in clap's own words.
fn no_command(error: &clap::Error, json: bool) -> Outcome {
    let plain = error.render().to_string();
    if !error.use_stderr() {
        error.print().map_err(|e| CliError::from_output(&e))?;
        return Ok(ExitCode::SUCCESS);
    }
    let bare = error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if json && !bare {
        return Err(CliError::usage(plain.trim_start_matches("error: ").trim_end()));
    }
    // Arguments are quoted in it, and they may come from anywhere.
    let safe = render::block(&plain);
    let shown = if safe == plain { error.print() } else { std::io::stderr().write_all(safe.as_bytes()) };
    shown.map_err(|e| CliError::from_output(&e))?;
    Ok(ExitCode::from(ErrorKind::Usage.exit_code()))
}

fn run(cli: Cli, around: &Surroundings) -> Outcome {
    if let Command::Completions(verb) = &cli.command {
        return itself::completions(verb);
    }
    let project = cli.project.clone();
    // What a hint says can be typed as it stands, also where it is the project's name that was typed before.
    carry_out(cli, around).map_err(|mut error| {
        if let (Some(hint), Some(name)) = (&mut error.hint, &project) {
            let named = format!("`overnight --project {name} ");
            // Verbs about projects are about all of them.
            *hint = hint.replace("`overnight ", &named).replace(&format!("{named}project "), "`overnight project ");
        }
        error
    })
}

fn carry_out(cli: Cli, around: &Surroundings) -> Outcome {
    let places = Places::from_env().map_err(|e| CliError::from_error(ErrorKind::Usage, &e))?;
    let cx = Context::new(places, around, cli.project.as_deref(), cli.json, cli.color)?;
    match cli.command {
        Command::Init(verb) => setup::init(&cx, &verb),
        Command::Doctor => setup::doctor(&cx),
        Command::Config(verb) => config::run(&cx, &verb),
        Command::Project(verb) => setup::project(&cx, &verb),
        Command::Completions(verb) => itself::completions(&verb),
        Command::Add(verb) => queue::add(&cx, &verb),
        Command::Task(verb) => task::run(&cx, &verb),
        Command::Start => daemon::start(&cx),
        Command::Stop(verb) => daemon::stop(&cx, &verb),
        Command::Restart => daemon::restart(&cx),
        Command::Pause => steer::pause(&cx),
        Command::Resume => steer::resume(&cx),
        Command::Run(verb) => daemon::run(&cx, &verb),
        Command::Logs(verb) => logs::logs(&cx, &verb),
        Command::Status(verb) => see::status(&cx, &verb),
        Command::Why(arg) => see::why(&cx, &arg.task),
        Command::Show(arg) => see::show(&cx, &arg.task),
        Command::Events(verb) => see::events(&cx, &verb),
        Command::Report(verb) => see::report(&cx, &verb),
        Command::Diff(verb) => merge::diff(&cx, &verb),
        Command::Answer(verb) => steer::answer(&cx, &verb),
        Command::Approve(arg) => steer::approve(&cx, &arg.task),
        Command::Abort(arg) => steer::abort(&cx, &arg.task),
        Command::Retry(arg) => steer::retry(&cx, &arg.task),
        Command::Priority(verb) => steer::priority(&cx, &verb),
        Command::Undo(verb) => steer::undo(&cx, &verb),
        Command::Rescues(arg) => steer::rescues(&cx, &arg.task),
        Command::Land(verb) => merge::land(&cx, &verb),
        Command::Service(verb) => service::run(&cx, &verb),
        Command::Demo(verb) => setup::demo(&cx, &verb),
        Command::Version => itself::version(&cx),
        Command::Daemon => Ok(daemon::detached(&cx)),
    }
}
