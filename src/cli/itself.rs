//! The program about itself: which version it is and which one the daemon is, and scripts that complete its commands.

use super::context::Context;
use super::{Outcome, definition, render};
use crate::client::{self, ClientError};
use crate::error::CliError;
use crate::protocol::{Reply, VERSION};
use clap::Args;
use clap_complete::Shell;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overnight completions fish > ~/.config/fish/completions/overnight.fish")]
pub(super) struct Completions {
    /// The shell.
    shell: Shell,
}

pub(super) fn completions(args: &Completions) -> Outcome {
    // The generator writes piece by piece and takes no error; a buffer does.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut for_people(), "overnight", &mut script);
    let mut out = std::io::stdout().lock();
    out.write_all(&script).and_then(|()| out.flush()).map_err(|e| CliError::from_output(&e))?;
    Ok(ExitCode::SUCCESS)
}

/// The commands without those that the program calls itself: generators offer hidden ones too.
fn for_people() -> clap::Command {
    let whole = definition();
    let bare = clap::Command::new("overnight").version(env!("CARGO_PKG_VERSION"));
    let bare = whole.get_arguments().fold(bare, |command, arg| command.arg(arg.clone()));
    whole.get_subcommands().filter(|one| !one.is_hide_set()).fold(bare, |command, one| command.subcommand(one.clone()))
}

pub(super) fn version(cx: &Context) -> Outcome {
    let own = env!("CARGO_PKG_VERSION");
    let daemon = match client::ping(&cx.places, Duration::from_secs(2)) {
        Ok(Reply::Pong { version, protocol, pid, data }) => Ok(Some((version, protocol, pid, data))),
        Ok(_) | Err(ClientError::NoDaemon) => Ok(None),
        Err(error) => Err(error.to_string()),
    };
    let document = serde_json::json!({
        "version": own,
        "protocol": VERSION,
        "daemon": daemon.as_ref().ok().and_then(Option::as_ref).map(|(version, protocol, pid, data)| {
            serde_json::json!({ "version": version, "protocol": protocol, "pid": pid, "data": data })
        }),
    });
    cx.show(&document, || {
        let mut out = format!("overnight {own} (protocol {VERSION})\n");
        match &daemon {
            Ok(None) => out.push_str("no daemon is running\n"),
            Ok(Some((version, protocol, pid, _))) => {
                out.push_str(&format!("daemon    {} (protocol {protocol}, pid {pid})\n", render::line(version)));
                if version != own {
                    out.push_str("they differ: `overnight restart` starts a daemon of this version\n");
                }
            }
            Err(text) => out.push_str(&format!("{}\n", render::line(text))),
        }
        out
    })?;
    Ok(ExitCode::SUCCESS)
}
