//! What a project's approved configuration says, as values with all defaults filled in.

use super::chain::{Chain, Check};
use super::time::ms;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Which adapter drives a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentKind {
    Claude,
    Codex,
    /// Any other program, described by its profile.
    Custom,
    /// Runs the commands that the task carries.
    Script,
}

impl AgentKind {
    pub const ALL: [Self; 4] = [Self::Claude, Self::Codex, Self::Custom, Self::Script];

    pub fn word(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Custom => "custom",
            Self::Script => "script",
        }
    }
}

/// How a custom agent takes its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptBy {
    #[default]
    Stdin,
    /// In place of `{prompt}` in its argv, or as the last argument.
    Argument,
    /// As a file whose path takes the place of `{prompt_file}` in its argv.
    File,
}

/// What a custom agent prints.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "format")]
pub enum OutputFormat {
    #[default]
    Text,
    /// JSON lines; each path (`a.b.c`) names a field to read where a line has it.
    JsonLines {
        session: Option<String>,
        text: Option<String>,
        input_tokens: Option<String>,
        output_tokens: Option<String>,
        cost: Option<String>,
        error: Option<String>,
    },
}

/// One way to run an agent: `[agents.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    pub kind: AgentKind,
    /// Program to run; a name is looked up on the daemon's PATH.
    pub bin: String,
    pub model: Option<String>,
    /// Arguments added at the end of the adapter's own (custom: the whole argument list).
    pub args: Vec<String>,
    pub prompt_by: PromptBy,
    pub output: OutputFormat,
    /// Arguments that go on with session `{session}`; empty where the CLI cannot.
    pub resume: Vec<String>,
    /// Variables handed on from the daemon's environment, by name.
    pub env_pass: Vec<String>,
    /// Variables set outright.
    pub env: BTreeMap<String, String>,
    /// At most so many at once.
    pub slots: u32,
    pub max_turns: Option<u32>,
}

impl Profile {
    /// The program that must be there before a task is claimed; none for scripts, nor where the profile has a PATH of its
    /// own.
    pub fn program(&self) -> Option<String> {
        let elsewhere = self.kind == AgentKind::Script || self.env.contains_key("PATH");
        (!elsewhere).then(|| self.bin.clone())
    }

    /// The profile that says least: `kind`'s own program under its plain name, the prompt on stdin, one at once.
    pub fn bare(kind: AgentKind) -> Self {
        Self {
            kind,
            bin: kind.word().into(),
            model: None,
            args: Vec::new(),
            prompt_by: PromptBy::Stdin,
            output: OutputFormat::Text,
            resume: Vec::new(),
            env_pass: Vec::new(),
            env: BTreeMap::new(),
            slots: 1,
            max_turns: None,
        }
    }
}

/// Limits on one agent run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Wall time of the run.
    #[serde(with = "ms")]
    pub wall: Duration,
    /// Time without progress.
    #[serde(with = "ms")]
    pub no_progress: Duration,
    /// Spawn to first event of the agent.
    #[serde(with = "ms")]
    pub first_event: Duration,
    /// The agent's result to its process's end.
    #[serde(with = "ms")]
    pub exit_grace: Duration,
    /// TERM to KILL.
    #[serde(with = "ms")]
    pub kill_grace: Duration,
    /// Most bytes of one run's transcript on disk.
    pub transcript: u64,
    /// Tool calls that repeat one another without a change in between, before the run is stopped as looping; 0 for never.
    #[serde(default = "repeats")]
    pub repeats: u32,
}

fn repeats() -> u32 {
    10
}

impl Default for Limits {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            wall: s(3600),
            no_progress: s(1200),
            first_event: s(180),
            exit_grace: s(10),
            kill_grace: s(10),
            transcript: 64 << 20,
            repeats: repeats(),
        }
    }
}

/// `[merge]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergePolicy {
    /// Branch that receives the work; `overnight/<base>` where nothing is said.
    pub into: String,
    pub checks: bool,
}

/// One project's settled rules. Made only from bytes that the local user approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// `sha256:…` of the approved file.
    pub hash: String,
    /// Name of the base branch, without `refs/heads/`.
    pub base: String,
    pub slots: u32,
    /// Agent runs of one task in all.
    pub attempts: u32,
    /// Profile for tasks that name none.
    pub agent: String,
    pub agents: BTreeMap<String, Profile>,
    pub limits: Limits,
    /// In the order they run.
    pub checks: Vec<Check>,
    pub chain: Chain,
    pub merge: MergePolicy,
    /// Whether tasks may carry commands for the script agent.
    pub script_allowed: bool,
    /// Name and mail of the daemon's own commits.
    pub committer: (String, String),
    /// Bytes of the brief.
    pub brief_budget: usize,
    /// Largest new file that the daemon commits for an agent, in bytes.
    pub max_file: u64,
    pub protect: Protect,
    /// Variables (by name) handed on to checks and steps.
    pub env_pass: Vec<String>,
}

/// What an agent may change only with a person's yes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protect {
    /// Tests: none may be removed or skipped.
    pub tests: bool,
    /// Patterns of paths, as in `.gitignore`.
    pub paths: Vec<String>,
}

impl Default for Protect {
    fn default() -> Self {
        Self { tests: true, paths: Vec::new() }
    }
}
