//! From a settled plan to the exact command line of an agent CLI. The prompt travels by standard input wherever the CLI
//! takes it there, so that no prompt can be read as an option or meet a limit on arguments; a shell never sees it.

use super::{claude, clip, codex, custom, script};
use crate::domain::policy::{AgentKind, Profile};
use crate::domain::verdict::Verdict;
use std::collections::BTreeMap;
use thiserror::Error;

/// The longest single argument or variable in bytes that Linux takes, without its closing NUL (`MAX_ARG_STRLEN`).
pub const MAX_ARGUMENT: usize = 131_072 - 1;

/// One agent run to be started.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    pub profile: &'a Profile,
    /// The model, where the task or the profile names one.
    pub model: Option<&'a str>,
    /// The brief, or the feedback when a session goes on.
    pub prompt: &'a str,
    /// Where the prompt is stored, for profiles that take a file.
    pub prompt_file: Option<&'a str>,
    /// The session to go on with.
    pub session: Option<&'a str>,
    /// Number of this agent run within its task, from 1; told as `OVERNIGHT_ATTEMPT`.
    pub attempt: u32,
    /// The commands of a script task.
    pub script: &'a [String],
    /// Whether the daemon runs as root: Claude Code then refuses to work without `IS_SANDBOX`.
    pub is_root: bool,
    /// The run's own temporary folder.
    pub tmp_dir: &'a str,
}

/// What is to be executed. The working directory is the worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// Program and arguments; the program is looked up on the PATH where it has no slash.
    pub argv: Vec<String>,
    /// Variables set outright.
    pub env: BTreeMap<String, String>,
    /// Names to take from the daemon's environment where present, each once; nothing else of it goes through.
    pub env_pass: Vec<String>,
    /// Bytes for standard input, then its end; `None` is /dev/null.
    pub stdin: Option<Vec<u8>>,
}

/// Why no command line can be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AgentError {
    #[error("{what} is {size} bytes long; one argument holds at most {limit} (take the prompt by stdin or as a file)")]
    TooLong { what: String, size: usize, limit: usize },
    #[error("{what} contains a NUL byte")]
    Nul { what: String },
    #[error("{name:?} is no usable model name")]
    BadModel { name: String },
    #[error("{id:?} is no usable session id")]
    BadSession { id: String },
    #[error("the profile's arguments name {placeholder}, but there is no {what}")]
    Missing { placeholder: &'static str, what: &'static str },
    #[error("the profile names no program")]
    NoProgram,
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("the task carries no commands")]
    NoCommands,
}

impl AgentError {
    /// What it means for the run: the task's own prompt, model or commands are at fault, the session cannot be gone on
    /// with, or the profile is such that no task can run with it.
    pub fn verdict(&self, profile: &Profile) -> Verdict {
        let message = self.to_string();
        match self {
            Self::BadSession { .. } => Verdict::SessionLost,
            Self::BadModel { name } if profile.model.as_deref() == Some(name) => Verdict::SpawnFailed { message },
            Self::Missing { .. } | Self::NoProgram => Verdict::SpawnFailed { message },
            Self::TooLong { .. } | Self::Nul { .. } | Self::BadModel { .. } | Self::EmptyPrompt | Self::NoCommands => {
                Verdict::Unfit { message }
            }
        }
    }
}

/// What every child needs to find its home, its programs and its words; by name, from the daemon's environment.
pub const EVERY_CHILD: [&str; 12] = [
    "HOME",
    "PATH",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
];

/// What an agent needs beyond that: where it keeps its sessions, and its way to the network.
const EVERY_AGENT: [&str; 6] =
    ["XDG_STATE_HOME", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE"];

/// The command line for `launch`, or why there is none.
pub fn command(launch: &Launch<'_>) -> Result<CommandLine, AgentError> {
    let profile = launch.profile;
    if let Some(model) = launch.model
        && (model.trim().is_empty()
            || model.starts_with('-')
            || model.len() > 200
            || model.chars().any(char::is_control))
    {
        return Err(AgentError::BadModel { name: clip::event(model) });
    }
    if let Some(id) = launch.session
        && !clip::is_id(id)
    {
        return Err(AgentError::BadSession { id: clip::event(id) });
    }
    if profile.bin.is_empty() && profile.kind != AgentKind::Script {
        return Err(AgentError::NoProgram);
    }
    if launch.prompt.trim().is_empty() && profile.kind != AgentKind::Script {
        return Err(AgentError::EmptyPrompt);
    }
    let mut line = CommandLine { argv: Vec::new(), env: BTreeMap::new(), env_pass: Vec::new(), stdin: None };
    line.env.insert("TERM".into(), "dumb".into());
    line.env_pass.extend(EVERY_CHILD.iter().chain(&EVERY_AGENT).map(|name| (*name).to_owned()));
    match profile.kind {
        AgentKind::Claude => claude::command(launch, &mut line),
        AgentKind::Codex => codex::command(launch, &mut line),
        AgentKind::Custom => custom::command(launch, &mut line)?,
        AgentKind::Script => script::command(launch, &mut line)?,
    }
    line.env_pass.extend(profile.env_pass.iter().cloned());
    for (name, value) in &profile.env {
        if may_set(name) {
            line.env.insert(name.clone(), value.clone());
        }
    }
    line.env.insert("TMPDIR".into(), launch.tmp_dir.into());
    line.env.insert("OVERNIGHT_ATTEMPT".into(), launch.attempt.to_string());
    let mut passed: Vec<String> = Vec::new();
    for name in line.env_pass {
        if may_pass(&name) && !line.env.contains_key(&name) && !passed.contains(&name) {
            passed.push(name);
        }
    }
    line.env_pass = passed;
    fits(&line)?;
    Ok(line)
}

/// Never git's variables (they lead it out of the worktree) nor our own of an outer run.
fn may_pass(name: &str) -> bool {
    is_variable(name) && !name.starts_with("GIT_") && !name.starts_with("OVERNIGHT_")
}

/// Who writes a commit may be set outright; where git looks may not.
fn may_set(name: &str) -> bool {
    let identity = name.starts_with("GIT_AUTHOR_") || name.starts_with("GIT_COMMITTER_");
    is_variable(name) && (identity || may_pass(name))
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Refuses what the system would refuse, while it can still be said which part it is.
fn fits(line: &CommandLine) -> Result<(), AgentError> {
    let arguments = line.argv.iter().enumerate().map(|(n, arg)| (format!("argument {n}"), arg.len(), arg));
    let variables =
        line.env.iter().map(|(name, value)| (format!("variable {name}"), name.len() + 1 + value.len(), value));
    for (what, size, text) in arguments.chain(variables) {
        if text.contains('\0') {
            return Err(AgentError::Nul { what });
        }
        if size > MAX_ARGUMENT {
            return Err(AgentError::TooLong { what, size, limit: MAX_ARGUMENT });
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::domain::policy::PromptBy;

    pub(in crate::agent) fn launch(profile: &Profile) -> Launch<'_> {
        Launch {
            profile,
            model: None,
            prompt: "do it",
            prompt_file: None,
            session: None,
            attempt: 1,
            script: &[],
            is_root: false,
            tmp_dir: "/run/r1/tmp",
        }
    }

    #[test]
    fn nothing_of_git_and_of_an_outer_run_is_passed() {
        let mut p = Profile::bare(AgentKind::Claude);
        p.env_pass =
            ["GIT_DIR", "OVERNIGHT_TOKEN", "HOME", "MY_KEY", "MY_KEY", "", "A=B", "SET"].map(String::from).into();
        p.env = [("GIT_DIR", "/x"), ("GIT_AUTHOR_NAME", "a"), ("OVERNIGHT_RUN", "r"), ("SET", "1")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        for kind in AgentKind::ALL {
            p.kind = kind;
            let script = ["true".to_owned()];
            let line = command(&Launch { script: &script, ..launch(&p) }).expect("command");
            assert!(line.env_pass.iter().all(|n| !n.starts_with("GIT_") && !n.starts_with("OVERNIGHT_")), "{line:?}");
            assert!(line.env_pass.iter().all(|n| !n.starts_with("AI_AGENT") && n != "CLAUDECODE"), "{line:?}");
            assert_eq!(line.env_pass.iter().filter(|n| *n == "HOME" || *n == "MY_KEY").count(), 2);
            assert!(!line.env_pass.iter().any(|n| n == "SET" || n.is_empty() || n.contains('=')));
            assert_eq!(line.env.get("GIT_AUTHOR_NAME").map(String::as_str), Some("a"));
            assert_eq!(line.env.get("SET").map(String::as_str), Some("1"));
            assert_eq!(line.env.get("TMPDIR").map(String::as_str), Some("/run/r1/tmp"));
            assert_eq!(line.env.get("OVERNIGHT_ATTEMPT").map(String::as_str), Some("1"));
            assert!(!line.env.contains_key("GIT_DIR") && !line.env.contains_key("OVERNIGHT_RUN"));
        }
    }

    #[test]
    fn what_cannot_be_started_is_said_before() {
        let p = Profile::bare(AgentKind::Claude);
        for model in ["", "-p", "--help", "a\nb", &"x".repeat(201)] {
            let error = command(&Launch { model: Some(model), ..launch(&p) }).expect_err(model);
            assert!(matches!(error, AgentError::BadModel { .. }), "{error}");
        }
        for id in ["", "--last", "a b", "../x/"] {
            let error = command(&Launch { session: Some(id), ..launch(&p) }).expect_err(id);
            assert!(matches!(error, AgentError::BadSession { .. }), "{error}");
        }
        assert_eq!(command(&Launch { prompt: " \n", ..launch(&p) }), Err(AgentError::EmptyPrompt));
        let p = Profile { bin: String::new(), ..p };
        assert_eq!(command(&launch(&p)), Err(AgentError::NoProgram));
        let p = Profile { args: vec!["a\0b".into()], ..Profile::bare(AgentKind::Codex) };
        assert!(matches!(command(&launch(&p)), Err(AgentError::Nul { .. })));
    }

    #[test]
    fn a_task_that_does_not_fit_says_nothing_against_its_profile() {
        let p = Profile { prompt_by: PromptBy::Argument, ..Profile::bare(AgentKind::Custom) };
        let long = "x".repeat(MAX_ARGUMENT + 1);
        let error = command(&Launch { prompt: &long, ..launch(&p) }).expect_err("too long");
        assert!(matches!(error.verdict(&p), Verdict::Unfit { message } if message.contains("131072")));
        assert_eq!(
            command(&Launch { session: Some("--x"), ..launch(&p) }).expect_err("id").verdict(&p),
            Verdict::SessionLost
        );
        let error = command(&Launch { model: Some("-m"), ..launch(&p) }).expect_err("model");
        assert!(matches!(error.verdict(&p), Verdict::Unfit { .. }));
        let own = Profile { model: Some("-m".into()), ..p };
        assert!(matches!(error.verdict(&own), Verdict::SpawnFailed { .. }), "every task of the profile would fail so");
    }
}
