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

use super::status::Reason;
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
    /// A child is being ended; its end is judged in the light of `cause`.
    Stopping {
        stage: StopStage,
        cause: StopCause,
        child: Child,
    },
    /// Uncommitted work is committed, and what the attempt changed is read from its branch.
    Collecting {
        then: Then,
    },
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
    /// Until the task's `not_before`, then `again` is entered anew.
    Backoff {
        again: Again,
    },
    /// Step `n` of the finally chain.
    Finally {
        n: usize,
    },
    Cleaning {
        stage: CleanStage,
    },
    Ended,
}

/// Which child of a task a stop is meant for: the phase to judge its end in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "child")]
pub enum Child {
    Agent,
    Before { n: usize },
    Check { n: usize },
    After { n: usize },
    MergeCheck { n: usize },
    Finally { n: usize },
}

/// What follows once the work has been collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    Check,
    /// The after steps may have changed something more.
    Merge,
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
    /// It did the same over and over.
    Looping,
    /// It had given its result and did not end; not a failure.
    AfterResult,
    /// A person wants the task ended.
    Abort,
    /// A person wants the daemon and its agents stopped; the task goes back to its place.
    Shutdown,
    /// The claim is no longer ours.
    ClaimLost,
}

impl Child {
    /// The phase in which this child runs.
    pub fn phase(self) -> Phase {
        match self {
            Self::Agent => Phase::Running,
            Self::Before { n } => Phase::Before { n },
            Self::Check { n } => Phase::Checking { n },
            Self::After { n } => Phase::After { n },
            Self::MergeCheck { n } => Phase::Merging { stage: MergeStage::Check { n } },
            Self::Finally { n } => Phase::Finally { n },
        }
    }

    /// How to come back to it after the daemon was stopped: an agent waits for a slot, a merge starts afresh.
    pub fn again(self) -> Again {
        match self {
            Self::Agent => Again::Run,
            Self::MergeCheck { .. } => Again::Merge,
            Self::Before { .. } | Self::Check { .. } | Self::After { .. } | Self::Finally { .. } => {
                Again::Child { child: self }
            }
        }
    }
}

impl StopCause {
    pub fn word(self) -> &'static str {
        match self {
            Self::WallLimit => "wall limit",
            Self::NoProgress => "no progress",
            Self::NoFirstEvent => "no first event",
            Self::Looping => "does the same over and over",
            Self::AfterResult => "did not end after its result",
            Self::Abort => "aborted",
            Self::Shutdown => "shutdown",
            Self::ClaimLost => "claim lost",
        }
    }
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
    Claim,
    Prepare,
    /// The agent, when its profile may be used again and a slot is free.
    Run,
    /// A step or check that was stopped with the daemon.
    Child {
        child: Child,
    },
    Collect {
        then: Then,
    },
    Merge,
    Clean {
        stage: CleanStage,
    },
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
    /// The child program that is (or shall be) alive in this phase.
    pub fn child(&self) -> Option<Child> {
        match self {
            Self::Before { n } => Some(Child::Before { n: *n }),
            Self::Running => Some(Child::Agent),
            Self::Stopping { child, .. } => Some(*child),
            Self::Checking { n } => Some(Child::Check { n: *n }),
            Self::After { n } => Some(Child::After { n: *n }),
            Self::Merging { stage: MergeStage::Check { n } } => Some(Child::MergeCheck { n: *n }),
            Self::Finally { n } => Some(Child::Finally { n: *n }),
            Self::Queued
            | Self::Claiming
            | Self::Preparing
            | Self::Briefing
            | Self::Collecting { .. }
            | Self::Waiting { .. }
            | Self::MergeQueued
            | Self::Merging { .. }
            | Self::Backoff { .. }
            | Self::Cleaning { .. }
            | Self::Ended => None,
        }
    }

    /// True while the task occupies one of the agent slots.
    pub fn holds_slot(&self) -> bool {
        match self {
            Self::Claiming
            | Self::Preparing
            | Self::Briefing
            | Self::Before { .. }
            | Self::Running
            | Self::Collecting { .. }
            | Self::Checking { .. }
            | Self::After { .. }
            | Self::Backoff { again: Again::Claim | Again::Prepare | Again::Collect { .. } } => true,
            Self::Backoff { again: Again::Child { child } } => {
                !matches!(child, Child::Agent | Child::MergeCheck { .. } | Child::Finally { .. })
            }
            Self::Stopping { child, .. } => !matches!(child, Child::MergeCheck { .. } | Child::Finally { .. }),
            Self::Queued
            | Self::Waiting { .. }
            | Self::MergeQueued
            | Self::Merging { .. }
            | Self::Backoff { .. }
            | Self::Finally { .. }
            | Self::Cleaning { .. }
            | Self::Ended => false,
        }
    }

    /// True when the task moves by itself: the night is not over.
    pub fn is_active(&self) -> bool {
        !matches!(self, Self::Queued | Self::Waiting { .. } | Self::Ended)
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
            Self::Collecting { .. } => "collecting",
            Self::Checking { .. } => "checking",
            Self::After { .. } => "after",
            Self::Waiting { .. } => "waiting",
            Self::MergeQueued => "merge_queued",
            Self::Merging { .. } => "merging",
            Self::Backoff { .. } => "backoff",
            Self::Finally { .. } => "finally",
            Self::Cleaning { .. } => "cleaning",
            Self::Ended => "ended",
        }
    }
}
