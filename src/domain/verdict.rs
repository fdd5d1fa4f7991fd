//! How a child program ended and what that means: the plain facts of an exit, what an agent's stream and exit say
//! together, and what it used.

use super::time::Wall;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a child ended, as its shim saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum Exit {
    /// It ended by itself with this status.
    Exited { code: i32 },
    /// A signal ended it.
    Signalled { signal: i32 },
    /// It was never executed; the text names the program and the system's reason. Never exit code 127.
    SpawnFailed { error: String },
    /// Nothing was executed, for a reason of the world around (a full disk, no memory, a shim killed at its birth): it says
    /// nothing of the program, and it may pass.
    NeverStarted { why: String },
    /// The shim's dead-man limit ended it: the daemon had not extended its time.
    DeadMan,
    /// The shim is gone and left no record (power cut, `kill -9` of shim and child).
    Lost,
}

/// A process that outlived the child and was ended by us.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivor {
    pub pid: i32,
    /// Command line, cut to a few hundred bytes; hostile text.
    pub command: String,
    /// False when it could not be ended either.
    pub ended: bool,
}

/// The end of one child program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    pub exit: Exit,
    #[serde(with = "super::time::ms")]
    pub took: Duration,
    pub survivors: Vec<Survivor>,
    /// The end of its output (both streams as they came), a few kilobytes, lossily as UTF-8; hostile text.
    pub tail: String,
    /// Bytes written in all, and how many of them the transcript's cap left out.
    pub bytes: u64,
    pub cut: u64,
}

impl RunEnd {
    /// True for an exit with status 0.
    pub fn ok(&self) -> bool {
        self.exit == Exit::Exited { code: 0 }
    }
}

/// Tokens and money of one run, that run alone (differences where a CLI counts over a whole session).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub input: u64,
    pub output: u64,
    /// Input tokens read from a cache, not counted in `input`.
    pub cached: u64,
    /// US dollars; `None` where the CLI tells no price: unknown is not zero.
    pub cost: Option<f64>,
    pub turns: u32,
    /// False when the run ended before it told what it used.
    pub known: bool,
}

/// Sums over several runs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageSum {
    pub input: u64,
    pub output: u64,
    pub cached: u64,
    pub cost: f64,
    /// True when a run in the sum told no tokens or no price.
    pub partial: bool,
    pub runs: u32,
}

impl UsageSum {
    pub fn add(&mut self, u: &Usage) {
        self.input = self.input.saturating_add(u.input);
        self.output = self.output.saturating_add(u.output);
        self.cached = self.cached.saturating_add(u.cached);
        self.cost += u.cost.unwrap_or(0.0);
        self.partial |= !u.known || u.cost.is_none();
        self.runs += 1;
    }

    pub fn merge(&mut self, other: &Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cached = self.cached.saturating_add(other.cached);
        self.cost += other.cost;
        self.partial |= other.partial;
        self.runs += other.runs;
    }
}

/// What an agent's stream and its exit say together. Never taken from the exit code alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// Ended its turn of its own accord. Whether it did anything is for the diff to say.
    Finished,
    /// The CLI refused the agent a tool that nobody was there to allow.
    PermissionDenied {
        what: String,
    },
    /// Too many requests for now.
    RateLimited {
        until: Option<Wall>,
    },
    /// The account's allowance is spent.
    UsageLimit {
        until: Option<Wall>,
    },
    Overloaded,
    LoginNeeded {
        message: String,
    },
    NoCredit {
        message: String,
    },
    ModelUnknown {
        message: String,
    },
    ContextTooLong,
    /// The model's answer ended at its length limit.
    OutputCut,
    /// The model or its provider declined to answer.
    Refused {
        message: String,
    },
    /// Answers that the CLI could not read.
    Malformed {
        message: String,
    },
    /// A turn or budget limit given to the CLI was reached.
    LimitReached {
        what: String,
    },
    /// The session to go on with does not exist (any more).
    SessionLost,
    /// The CLI reported an error of another kind.
    Failed {
        message: String,
    },
    /// The CLI ended without saying how the work went.
    Crashed {
        message: String,
    },
    /// The program could not be started at all.
    SpawnFailed {
        message: String,
    },
    /// No command line can be made of this task's prompt, model or commands: other tasks of the profile can run.
    Unfit {
        message: String,
    },
    /// We ended it; the reason is with whoever asked.
    Stopped,
}

/// Whom an outcome is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The attempt is spent.
    Task,
    /// The profile (agent and account) is held; the task keeps its place and its attempt.
    Profile,
    /// Neither; the attempt is not spent.
    World,
}

impl Verdict {
    pub fn fault(&self) -> Fault {
        match self {
            Self::Finished
            | Self::PermissionDenied { .. }
            | Self::ContextTooLong
            | Self::OutputCut
            | Self::Refused { .. }
            | Self::LimitReached { .. }
            | Self::Malformed { .. }
            | Self::Failed { .. }
            | Self::Crashed { .. }
            | Self::Unfit { .. } => Fault::Task,
            Self::RateLimited { .. }
            | Self::UsageLimit { .. }
            | Self::Overloaded
            | Self::LoginNeeded { .. }
            | Self::NoCredit { .. }
            | Self::ModelUnknown { .. }
            | Self::SpawnFailed { .. } => Fault::Profile,
            Self::SessionLost | Self::Stopped => Fault::World,
        }
    }

    /// One word for tables and logs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::PermissionDenied { .. } => "permission_denied",
            Self::RateLimited { .. } => "rate_limited",
            Self::UsageLimit { .. } => "usage_limit",
            Self::Overloaded => "overloaded",
            Self::LoginNeeded { .. } => "login_needed",
            Self::NoCredit { .. } => "no_credit",
            Self::ModelUnknown { .. } => "model_unknown",
            Self::ContextTooLong => "context_too_long",
            Self::OutputCut => "output_cut",
            Self::Refused { .. } => "refused",
            Self::Malformed { .. } => "malformed",
            Self::LimitReached { .. } => "limit_reached",
            Self::SessionLost => "session_lost",
            Self::Failed { .. } => "agent_error",
            Self::Crashed { .. } => "crashed",
            Self::SpawnFailed { .. } => "spawn_error",
            Self::Unfit { .. } => "unfit",
            Self::Stopped => "stopped",
        }
    }

    /// What happened, for people; may quote the CLI's own words, which are hostile text.
    pub fn sentence(&self) -> String {
        let what = match self {
            Self::Finished => "the agent finished",
            Self::PermissionDenied { .. } => "the agent was refused a permission",
            Self::RateLimited { .. } | Self::UsageLimit { .. } => "its provider's limit is reached",
            Self::Overloaded => "its provider is overloaded",
            Self::LoginNeeded { .. } => "the agent is not logged in",
            Self::NoCredit { .. } => "the account has no credit",
            Self::ModelUnknown { .. } => "the model is not known",
            Self::ContextTooLong => "the agent's context is full",
            Self::OutputCut => "the model's answer was cut off at its length limit",
            Self::Refused { .. } => "the model declined to answer",
            Self::Malformed { .. } => "the agent's program could not read the model's answers",
            Self::LimitReached { .. } => "the agent reached a limit that it was given",
            Self::SessionLost => "the agent's session does not exist any more",
            Self::Failed { .. } => "the agent reported an error",
            Self::Crashed { .. } => "the agent ended without a result",
            Self::SpawnFailed { .. } => "the agent could not be started",
            Self::Unfit { .. } => "the agent cannot be given this task",
            Self::Stopped => "the agent was stopped",
        };
        self.message().filter(|m| !m.is_empty()).map_or_else(|| what.to_owned(), |m| format!("{what}: {m}"))
    }

    /// The CLI's own words, where it had any; hostile text.
    pub fn message(&self) -> Option<&str> {
        match self {
            Self::PermissionDenied { what: m }
            | Self::LoginNeeded { message: m }
            | Self::NoCredit { message: m }
            | Self::ModelUnknown { message: m }
            | Self::Refused { message: m }
            | Self::Malformed { message: m }
            | Self::LimitReached { what: m }
            | Self::Failed { message: m }
            | Self::Crashed { message: m }
            | Self::SpawnFailed { message: m }
            | Self::Unfit { message: m } => Some(m),
            Self::Finished
            | Self::RateLimited { .. }
            | Self::UsageLimit { .. }
            | Self::Overloaded
            | Self::ContextTooLong
            | Self::OutputCut
            | Self::SessionLost
            | Self::Stopped => None,
        }
    }
}

/// What an adapter makes of one agent run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentReport {
    pub verdict: Verdict,
    /// The id to go on with; `None` where the CLI has no sessions.
    pub session: Option<String>,
    /// The agent's last words, cut to a few kilobytes; hostile text.
    pub text: String,
    /// The question, where the last words are one and little else.
    pub asks: Option<String>,
    pub usage: Usage,
    /// Running totals of the session after this run, for CLIs that count so; fed back at the next resume.
    pub session_total: Option<Usage>,
}

/// What an agent is doing, folded from its stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum AgentEvent {
    /// The session's id became known.
    Session {
        id: String,
        model: Option<String>,
    },
    Text {
        text: String,
    },
    /// A tool was called: its name and its file or command.
    ToolBegin {
        tool: String,
        what: String,
    },
    /// A tool ended.
    ToolEnd {
        tool: String,
        ok: bool,
    },
    /// The CLI retries by itself; alive, but no progress.
    Retry {
        reason: String,
    },
    Usage {
        usage: Usage,
    },
    Error {
        message: String,
    },
    /// The turn is over; the process should end soon.
    Result {
        ok: bool,
    },
}

impl AgentEvent {
    /// Progress resets the no-progress clock; chatter and retries do not.
    pub fn is_progress(&self) -> bool {
        match self {
            Self::ToolEnd { ok, .. } => *ok,
            Self::Session { .. } | Self::Result { .. } => true,
            Self::Text { .. }
            | Self::ToolBegin { .. }
            | Self::Retry { .. }
            | Self::Usage { .. }
            | Self::Error { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_told_nothing_makes_the_sum_partial_and_costs_nothing_by_itself() {
        let mut sum = UsageSum::default();
        sum.add(&Usage { input: 10, output: 2, cost: Some(0.5), known: true, ..Usage::default() });
        assert!(!sum.partial);
        sum.add(&Usage::default());
        assert_eq!((sum.partial, sum.input, sum.cost, sum.runs), (true, 10, 0.5, 2));
        let mut all = UsageSum::default();
        all.merge(&sum);
        assert!(all.partial);
    }
}
