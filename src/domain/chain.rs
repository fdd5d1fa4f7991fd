//! The micro-task chain around an agent: steps before and after it, beside it and at the very end, and what the end of
//! a step means for the chain.

use super::time::ms;
use super::verdict::{Exit, RunEnd};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Exit status that asks for the step to be tried again (sysexits.h, EX_TEMPFAIL).
pub const EXIT_AGAIN: i32 = 75;
/// Exit status that says the step does not apply here (sysexits.h, EX_CONFIG).
pub const EXIT_NOT_APPLICABLE: i32 = 78;
/// How often a step that asks for it, or that has `on_failure = "retry"`, is run in all.
pub const STEP_TRIES: u32 = 3;
/// What the kernel ends a process with when memory runs out; its number is the same on every system we run on.
const SIGNAL_KILL: i32 = 9;

/// What a step or check runs. A string goes to `sh -c`; a list is executed as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Command {
    Shell(String),
    Argv(Vec<String>),
}

impl Command {
    pub fn argv(&self) -> Vec<String> {
        match self {
            Self::Shell(text) => vec!["/bin/sh".into(), "-c".into(), text.clone()],
            Self::Argv(list) => list.clone(),
        }
    }

    /// As a person would type it, for messages.
    pub fn shown(&self) -> String {
        match self {
            Self::Shell(text) => text.clone(),
            Self::Argv(list) => list.join(" "),
        }
    }
}

/// What a step does when it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The attempt ends as failed.
    Stop,
    /// It is noted and the chain goes on.
    Log,
    /// Up to `STEP_TRIES` runs, then as `Stop`.
    Retry,
}

/// When a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    #[default]
    Always,
    /// Only when the attempt has changed something (after steps), or ended well (finally steps).
    Success,
    /// Only when the attempt failed (finally steps).
    Failure,
}

/// One step of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub name: String,
    /// Runs this command, or (instead) the task's agent with `prompt`.
    pub run: Option<Command>,
    pub prompt: Option<String>,
    #[serde(with = "ms")]
    pub timeout: Duration,
    pub on_failure: OnFailure,
    #[serde(default)]
    pub when: When,
}

/// A check: a command that says whether a tree is good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub run: Command,
    #[serde(with = "ms")]
    pub timeout: Duration,
}

/// The four lists of a project.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Chain {
    pub before: Vec<Step>,
    pub after: Vec<Step>,
    /// Beside the agent, in a snapshot of their own; their failure is only noted.
    pub background: Vec<Step>,
    /// At the end of each attempt, however it ended.
    pub finally: Vec<Step>,
}

/// What the end of a step means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepVerdict {
    Next,
    /// Run it once more.
    Again,
    /// The chain stops: the step failed and says so.
    Stop {
        why: String,
    },
}

/// Judges one run of `step`; `tries` counts this run.
pub fn judge_step(step: &Step, end: &RunEnd, timed_out: bool, tries: u32) -> StepVerdict {
    let again = tries < STEP_TRIES;
    let exit = &end.exit;
    let code = if let Exit::Exited { code } = exit { Some(*code) } else { None };
    if !timed_out && matches!(code, Some(0 | EXIT_NOT_APPLICABLE)) {
        return StepVerdict::Next;
    }
    if !timed_out && again && (code == Some(EXIT_AGAIN) || was_cut_off(exit, tries.saturating_sub(1))) {
        return StepVerdict::Again;
    }
    let why = describe(exit, timed_out, step.timeout);
    match step.on_failure {
        OnFailure::Log => StepVerdict::Next,
        OnFailure::Retry if again => StepVerdict::Again,
        OnFailure::Retry | OnFailure::Stop => StepVerdict::Stop { why },
    }
}

/// Whether a run that nobody here stopped was cut off from outside, so that its end says nothing of what it ran: its
/// record is lost, or it was killed, as the kernel does when memory runs out. `before` counts runs cut off before it: a
/// second kill is what running it comes to.
pub fn was_cut_off(exit: &Exit, before: u32) -> bool {
    match exit {
        Exit::Lost | Exit::DeadMan | Exit::NeverStarted { .. } => true,
        Exit::Signalled { signal } => *signal == SIGNAL_KILL && before == 0,
        Exit::Exited { .. } | Exit::SpawnFailed { .. } => false,
    }
}

/// What the end of a check means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum CheckVerdict {
    Pass,
    /// Not applicable here (exit 78).
    Skipped,
    Fail {
        why: String,
    },
    /// A missing command, a lost run: never a pass, and never the task's failure.
    CouldNotRun {
        why: String,
    },
}

/// Judges one run of a check.
pub fn judge_check(check: &Check, end: &RunEnd, timed_out: bool) -> CheckVerdict {
    if timed_out {
        return CheckVerdict::Fail { why: describe(&end.exit, true, check.timeout) };
    }
    match &end.exit {
        Exit::Exited { code: 0 } => CheckVerdict::Pass,
        Exit::Exited { code: EXIT_NOT_APPLICABLE } => CheckVerdict::Skipped,
        // What a shell answers for a command it cannot find or may not execute.
        Exit::Exited { code: code @ (126 | 127) } if matches!(check.run, Command::Shell(_)) => {
            CheckVerdict::CouldNotRun { why: format!("exit {code}: command not found or not executable") }
        }
        exit @ (Exit::SpawnFailed { .. } | Exit::NeverStarted { .. } | Exit::Lost | Exit::DeadMan) => {
            CheckVerdict::CouldNotRun { why: describe(exit, false, check.timeout) }
        }
        exit @ (Exit::Exited { .. } | Exit::Signalled { .. }) => {
            CheckVerdict::Fail { why: describe(exit, false, check.timeout) }
        }
    }
}

/// An ending in words.
pub fn describe(exit: &Exit, timed_out: bool, limit: Duration) -> String {
    if timed_out {
        return format!("stopped after its limit of {}", super::time::human(limit));
    }
    match exit {
        Exit::Exited { code } => format!("exit {code}"),
        Exit::Signalled { signal } => format!("ended by signal {signal}"),
        Exit::SpawnFailed { error } => format!("could not be started: {error}"),
        Exit::NeverStarted { why } => format!("could not begin: {why}"),
        Exit::DeadMan => "ended by its dead-man limit".into(),
        Exit::Lost => "lost without a record".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(exit: Exit) -> RunEnd {
        RunEnd { exit, took: Duration::ZERO, survivors: vec![], tail: String::new(), bytes: 0, cut: 0 }
    }

    fn step(on_failure: OnFailure) -> Step {
        Step {
            name: "s".into(),
            run: Some(Command::Shell("x".into())),
            prompt: None,
            timeout: Duration::from_secs(1),
            on_failure,
            when: When::Always,
        }
    }

    #[test]
    fn exit_codes_of_steps() {
        let code = |code| end(Exit::Exited { code });
        let stop = step(OnFailure::Stop);
        assert_eq!(judge_step(&stop, &code(0), false, 1), StepVerdict::Next);
        assert_eq!(judge_step(&stop, &code(78), false, 1), StepVerdict::Next);
        assert_eq!(judge_step(&stop, &code(75), false, 1), StepVerdict::Again);
        assert!(matches!(judge_step(&stop, &code(75), false, STEP_TRIES), StepVerdict::Stop { .. }));
        assert!(matches!(judge_step(&stop, &code(1), false, 1), StepVerdict::Stop { .. }));
        assert_eq!(judge_step(&step(OnFailure::Log), &code(1), false, 1), StepVerdict::Next);
        assert_eq!(judge_step(&step(OnFailure::Retry), &code(1), false, 1), StepVerdict::Again);
        assert!(matches!(judge_step(&stop, &code(0), true, 1), StepVerdict::Stop { .. }), "a time-out is no success");
    }

    #[test]
    fn a_kill_from_outside_says_nothing_the_first_time() {
        assert!(was_cut_off(&Exit::Lost, 4));
        assert!(was_cut_off(&Exit::Signalled { signal: 9 }, 0));
        assert!(!was_cut_off(&Exit::Signalled { signal: 9 }, 1));
        assert!(!was_cut_off(&Exit::Signalled { signal: 11 }, 0));
        let killed = end(Exit::Signalled { signal: 9 });
        assert_eq!(judge_step(&step(OnFailure::Stop), &killed, false, 1), StepVerdict::Again);
        assert!(matches!(judge_step(&step(OnFailure::Stop), &killed, false, 2), StepVerdict::Stop { .. }));
    }

    #[test]
    fn a_missing_command_is_never_a_pass_nor_a_failure() {
        let check = Check { name: "t".into(), run: Command::Shell("x".into()), timeout: Duration::from_secs(1) };
        let run = |exit| judge_check(&check, &end(exit), false);
        assert!(matches!(run(Exit::Exited { code: 127 }), CheckVerdict::CouldNotRun { .. }));
        assert!(matches!(run(Exit::SpawnFailed { error: "x".into() }), CheckVerdict::CouldNotRun { .. }));
        assert!(matches!(run(Exit::Exited { code: 2 }), CheckVerdict::Fail { .. }));
        assert_eq!(run(Exit::Exited { code: 0 }), CheckVerdict::Pass);
        assert!(matches!(judge_check(&check, &end(Exit::Signalled { signal: 15 }), true), CheckVerdict::Fail { .. }));
    }
}
