//! The phases of one attempt. A phase is one ask in flight: entering it emits that ask, numbered by the task's epoch, and
//! only its answer, a request or a deadline leaves it.
//!
//! ```text
//! Queued ▶ Claiming ▶ Preparing ▶ Briefing ▶ Before(n) ▶ Running ▶ Collecting ▶ Checking(n) ▶ After(n) ▶ MergeQueued
//!    ▲         │           │          │          │       │  ▲  ▲         │          │  │          │            ▼
//!    │         ▼           └──────────┴──────────┴───────┤  │  └─────────┴──────────┘  │          │   Merging(Try ▶
//!    ├──── Backoff ◀─────────────────────────────────────┤  │   feedback               │          │   Check(n) ▶ Move)
//!    │                                         Stopping ◀┘  └── Waiting(question) ◀────┴──────────┴────────────┤
//!    └────────── Cleaning(Rescue ▶ Publish ▶ Remove) ◀── Finally(n) ◀── every end of an attempt ◀──────────────┘
//!                                                 ▼
//!                                               Ended
//! ```

use super::status::{Outcome, Reason};
use serde::{Deserialize, Serialize};

/// Where an attempt stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "phase")]
pub enum Phase {
    Queued,
    Claiming,
    Preparing,
    Briefing,
    /// Step `n` of the before chain.
    Before {
        n: usize,
    },
    Running,
    Stopping {
        stage: StopStage,
        cause: StopCause,
    },
    /// Uncommitted work is committed, and what the attempt changed is read from its branch.
    Collecting,
    Checking {
        n: usize,
    },
    After {
        n: usize,
    },
    Waiting {
        on: WaitFor,
    },
    MergeQueued,
    Merging {
        stage: MergeStage,
    },
    /// Until the task's deadline, then the phase it came from is entered anew.
    Backoff {
        again: Again,
    },
    /// Step `n` of the finally chain; `end` is what the attempt comes to.
    Finally {
        n: usize,
        end: AttemptEnd,
    },
    Cleaning {
        stage: CleanStage,
        end: AttemptEnd,
    },
    Ended {
        outcome: Outcome,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopStage {
    Term,
    Kill,
}

/// Why a run was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    WallLimit,
    NoProgress,
    NoFirstEvent,
    /// It had given its result and did not end; not a failure.
    AfterResult,
    /// A person wants the task ended.
    Abort,
    /// A person wants the daemon and its agents stopped; the task goes back to its place.
    Shutdown,
    /// The claim is no longer ours.
    ClaimLost,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "wait")]
pub enum WaitFor {
    /// A person's answer.
    Question,
    /// A person's yes before the merge.
    Review,
    /// A conflict, a red merge, foreign commits: a person mends it, then `retry`.
    Block { reason: Reason },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "merge")]
pub enum MergeStage {
    /// Merge in memory.
    Try,
    /// Check `n` on the merged tree.
    Check { n: usize },
    /// Compare-and-swap of the target branch.
    Move,
}

/// What a back-off goes back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Again {
    Queue,
    Prepare,
    Merge,
    Clean,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CleanStage {
    /// Everything the attempt made is put under rescue refs.
    Rescue,
    /// The conclusion is recorded and the claim released, in one push.
    Publish,
    /// The worktree goes back to the pool.
    Remove,
}

impl Phase {
    /// True while a child program of the task may be alive.
    pub fn has_child(&self) -> bool {
        matches!(
            self,
            Self::Before { .. }
                | Self::Running
                | Self::Stopping { .. }
                | Self::Checking { .. }
                | Self::After { .. }
                | Self::Merging { stage: MergeStage::Check { .. } }
                | Self::Finally { .. }
        )
    }

    /// True while the task occupies one of the agent slots.
    pub fn holds_slot(&self) -> bool {
        matches!(
            self,
            Self::Claiming
                | Self::Preparing
                | Self::Briefing
                | Self::Before { .. }
                | Self::Running
                | Self::Stopping { .. }
                | Self::Collecting
                | Self::Checking { .. }
                | Self::After { .. }
        )
    }

    /// True when the task moves by itself: the night is not over.
    pub fn is_active(&self) -> bool {
        !matches!(self, Self::Queued | Self::Waiting { .. } | Self::Ended { .. })
    }

    /// True in the phases that own a claim at the authority.
    pub fn owns_claim(&self) -> bool {
        !matches!(
            self,
            Self::Queued
                | Self::Claiming
                | Self::Ended { .. }
                | Self::Backoff { again: Again::Queue }
                | Self::Cleaning { stage: CleanStage::Remove, .. }
        )
    }

    /// One word for logs and journals.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Claiming => "claiming",
            Self::Preparing => "preparing",
            Self::Briefing => "briefing",
            Self::Before { .. } => "before",
            Self::Running => "running",
            Self::Stopping { .. } => "stopping",
            Self::Collecting => "collecting",
            Self::Checking { .. } => "checking",
            Self::After { .. } => "after",
            Self::Waiting { .. } => "waiting",
            Self::MergeQueued => "merge_queued",
            Self::Merging { .. } => "merging",
            Self::Backoff { .. } => "backoff",
            Self::Finally { .. } => "finally",
            Self::Cleaning { .. } => "cleaning",
            Self::Ended { .. } => "ended",
        }
    }
}
