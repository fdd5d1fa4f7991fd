//! `service …`: the daemon as a service of the machine.

use super::context::Context;
use super::setup::setup_error;
use super::{Outcome, render};
use crate::error::CliError;
use crate::protocol::ErrorKind;
use crate::setup::service::{self, Scope, Surround, launchd};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// `service …`.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Let the machine start the daemon, and start it again when it ends.
    #[command(after_help = "Example:\n  overnight service install --now")]
    Install(Install),
    /// Take it out of the machine's hands; agents that run go on.
    #[command(after_help = "Example:\n  overnight service uninstall")]
    Uninstall(Which),
    /// Whether it is installed, and how it runs.
    #[command(after_help = "Example:\n  overnight service status --json")]
    Status(Which),
    /// Print the definition that `install` writes.
    #[command(after_help = "Example:\n  overnight service show | systemd-analyze --user verify /dev/stdin")]
    Show(Show),
}

/// Whose service.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// A service of the system instead of your own; takes root.
    #[arg(long)]
    system: bool,
    /// The user that a service of the system runs as; whoever called sudo where nothing is said.
    #[arg(long = "as", value_name = "USER", requires = "system")]
    user: Option<String>,
}

/// Arguments of `service install`.
#[derive(Debug, Args)]
pub(super) struct Install {
    #[command(flatten)]
    which: Which,
    /// Start it now, too.
    #[arg(long)]
    now: bool,
}

/// Arguments of `service show`.
#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    which: Which,
    /// The definition for launchd.
    #[arg(long, conflicts_with_all = ["system", "user"])]
    launchd: bool,
}

impl Which {
    fn scope(&self) -> Scope {
        if !self.system {
            return Scope::User;
        }
        let user = self.user.clone().or_else(|| crate::config::environment().get("SUDO_USER").cloned());
        Scope::System { user: user.unwrap_or_default() }
    }

    /// The same where the unit is to be written, and whom it runs as must be known.
    fn scope_with_user(&self) -> Result<Scope, CliError> {
        match self.scope() {
            Scope::System { user } if user.is_empty() => {
                Err(CliError::usage("a service of the system runs as a user").hint("name the user with --as"))
            }
            scope => Ok(scope),
        }
    }
}

pub(super) fn run(cx: &Context, verb: &Verb) -> Outcome {
    match verb {
        Verb::Install(args) => install(cx, args),
        Verb::Uninstall(which) => {
            cx.a_persons("service uninstall")?;
            let done = if cfg!(target_os = "macos") {
                launchd::uninstall(&home()?)
            } else {
                let scope = which.scope();
                service::uninstall(&scope, &config_folder(&scope)?)
            };
            told(cx, &done.map_err(setup_error)?)
        }
        Verb::Status(which) => status(cx, which),
        Verb::Show(args) => {
            let around = surround(cx)?;
            let text = if args.launchd {
                service::plist(&around)
            } else {
                service::unit(&around, &args.which.scope_with_user()?)
            };
            cx.print(&text.map_err(setup_error)?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn install(cx: &Context, args: &Install) -> Outcome {
    cx.a_persons("service install")?;
    let around = surround(cx)?;
    let done = if cfg!(target_os = "macos") {
        launchd::install(&around, &home()?)
    } else {
        let scope = args.which.scope_with_user()?;
        service::install(&around, &scope, &config_folder(&scope)?, args.now)
    };
    told(cx, &done.map_err(setup_error)?)
}

fn told(cx: &Context, lines: &[String]) -> Outcome {
    cx.show(&serde_json::json!({ "done": lines }), || {
        lines.iter().map(|text| format!("  {}\n", render::line(text))).collect()
    })?;
    Ok(ExitCode::SUCCESS)
}

fn status(cx: &Context, which: &Which) -> Outcome {
    let scope = which.scope();
    let state = service::status(&scope, &config_folder(&scope)?);
    cx.show(&serde_json::json!(state), || {
        if !state.installed {
            return "  not installed · overnight service install\n".to_owned();
        }
        let active = if state.active.is_empty() { "unknown to the service manager" } else { &state.active };
        let pid = if state.pid > 0 { format!(" · pid {}", state.pid) } else { String::new() };
        let again =
            if state.restarts > 0 { format!(" · started again {} times", state.restarts) } else { String::new() };
        let linger =
            if state.lingers == Some(false) { "  it ends when you log out · loginctl enable-linger\n" } else { "" };
        format!("  {}{pid}{again}\n{linger}", render::line(active))
    })?;
    Ok(if state.active == "active" { ExitCode::SUCCESS } else { ExitCode::from(ErrorKind::WrongState.exit_code()) })
}

/// Starts the daemon where it is a service of the user's; false where it is none, or the manager cannot be had.
pub(super) fn start(cx: &Context) -> bool {
    let (Ok(around), Ok(config)) = (surround(cx), config_folder(&Scope::User)) else { return false };
    if cfg!(target_os = "macos") || !service::is_for(&around, &config) {
        return false;
    }
    match service::start() {
        Ok(()) => true,
        Err(error) => {
            cx.note(&format!("the service cannot be started ({}); started without it", render::line(&error.message)));
            false
        }
    }
}

fn surround(cx: &Context) -> Result<Surround, CliError> {
    let program = std::env::current_exe().and_then(|program| program.canonicalize()).map_err(|e| {
        let mut error = CliError::new(ErrorKind::Failed, "could not find this program's own file");
        error.causes.push(e.to_string());
        error
    })?;
    let environment = crate::config::environment();
    Ok(Surround {
        program,
        path: environment.get("PATH").cloned().unwrap_or_default(),
        home: environment.get("OVERNIGHT_HOME").cloned(),
        logs: cx.places.logs(),
    })
}

fn home() -> Result<PathBuf, CliError> {
    let home = crate::config::environment().get("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    home.ok_or_else(|| CliError::usage("HOME is not set, and a service belongs to a home"))
}

/// The user's folder for settings; a service of the system needs none.
fn config_folder(scope: &Scope) -> Result<PathBuf, CliError> {
    if *scope != Scope::User {
        return Ok(PathBuf::new());
    }
    let set = crate::config::environment().get("XDG_CONFIG_HOME").map(PathBuf::from).filter(|at| at.is_absolute());
    match set {
        Some(set) => Ok(set),
        None => Ok(home()?.join(".config")),
    }
}
