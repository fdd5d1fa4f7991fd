//! The public words for how a task stands, and the reasons behind them. Statuses are computed from phases and facts, and
//! only shown; outcomes and reasons are facts and are kept.

use super::id::Oid;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The public status of a task, as written to `state.json` and boards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Planning,
    Queued,
    Claimed,
    InProgress,
    Blocked,
    Completed,
    Failed,
    Aborted,
}

impl Status {
    pub fn word(self) -> &'static str {
        match self {
            Self::Planning => "planning",
            Self::Queued => "queued",
            Self::Claimed => "claimed",
            Self::InProgress => "in_progress",
            Self::Blocked => "blocked",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
        }
    }

    /// Reads the word, and `complete` as other tools write it.
    pub fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "planning" => Self::Planning,
            "queued" => Self::Queued,
            "claimed" => Self::Claimed,
            "in_progress" => Self::InProgress,
            "blocked" => Self::Blocked,
            "completed" | "complete" => Self::Completed,
            "failed" => Self::Failed,
            "aborted" => Self::Aborted,
            _ => return None,
        })
    }

    /// The sign that boards show before the word.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Planning => "📋",
            Self::Queued => "⏳",
            Self::Claimed => "🔒",
            Self::InProgress => "🔵",
            Self::Blocked => "🟡",
            Self::Completed => "✅",
            Self::Failed => "❌",
            Self::Aborted => "⛔",
        }
    }

    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Aborted)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What a task came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// Its work is on the target branch, in this merge commit.
    Merged {
        commit: Oid,
    },
    /// A parent whose sub-tasks are all done.
    ChildrenDone,
    /// The agent ended well and changed nothing.
    NoChanges,
    Failed {
        reason: Reason,
    },
    Aborted,
}

impl Outcome {
    pub fn status(&self) -> Status {
        match self {
            Self::Merged { .. } | Self::ChildrenDone => Status::Completed,
            Self::NoChanges | Self::Failed { .. } => Status::Failed,
            Self::Aborted => Status::Aborted,
        }
    }

    /// The word that the history keeps.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Merged { .. } => "merged",
            Self::ChildrenDone => "children_done",
            Self::NoChanges => "no_changes",
            Self::Failed { .. } => "failed",
            Self::Aborted => "aborted",
        }
    }

    /// Why it came to no more than this, where there is a reason to tell.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Failed { reason } => Some(reason.clone()),
            Self::NoChanges => Some(Reason::new(ReasonClass::NoChanges, "the agent ended well and changed nothing")),
            Self::Merged { .. } | Self::ChildrenDone | Self::Aborted => None,
        }
    }

    /// Whether tasks that depend on this one may start.
    pub fn satisfies(&self) -> bool {
        matches!(self, Self::Merged { .. } | Self::ChildrenDone)
    }
}

/// How the tail of an attempt (finally, cleaning) leaves the task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "end")]
pub enum AttemptEnd {
    /// The task is over.
    Over { outcome: Outcome },
    /// It goes back to the queue.
    Requeue,
}

/// Why a task failed or stands still: a class for programs and a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    pub class: ReasonClass,
    /// May quote hostile text; escape before showing.
    pub text: String,
}

impl Reason {
    pub fn new(class: ReasonClass, text: impl Into<String>) -> Self {
        Self { class, text: text.into() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

macro_rules! reason_classes {
    ($($(#[$doc:meta])* $name:ident = $word:literal),* $(,)?) => {
        /// The classes of reasons, told apart by what a person would do about each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum ReasonClass { $($(#[$doc])* $name),* }

        impl ReasonClass {
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word),* }
            }
        }
    };
}

reason_classes! {
    /// No progress for too long.
    Stalled = "stalled",
    /// It did the same over and over.
    Looping = "looping",
    /// Its wall time is over.
    Timeout = "timeout",
    /// The agent ended with an error.
    AgentError = "agent_error",
    /// The agent asked and nobody has answered.
    NeedsInput = "needs_input",
    /// Waits for a person's yes.
    Review = "review",
    NoChanges = "no_changes",
    /// The same failure again without a new change.
    NoProgress = "no_progress",
    /// The branch is not the one that was handed out, or holds what is not the task's.
    WrongBranch = "wrong_branch",
    /// A check failed on the task's own tree.
    ValidationFailed = "validation_failed",
    /// A step of the chain failed.
    StepFailed = "step_failed",
    MergeConflict = "merge_conflict",
    /// A check failed on the merged tree.
    MergeRed = "merge_red",
    MergeError = "merge_error",
    SpawnError = "spawn_error",
    DependencyFailed = "dependency_failed",
    DependencyCycle = "dependency_cycle",
    DependencyMissing = "dependency_missing",
    InvalidTask = "invalid_task",
    /// Refused by a rule of the project.
    Policy = "policy",
    /// Not the task's fault.
    Infra = "infra",
    /// A sub-task failed.
    ChildFailed = "child_failed",
}
