//! Everything that can happen, as one closed enum. The daemon turns signals, files, sockets, timers and the answers of the
//! hands into these; the board handles them one at a time.

use crate::domain::lease::Held;
use crate::domain::policy::Policy;
use crate::domain::status::{Outcome, Reason};
use crate::domain::task::{Invalid, Wish};
use crate::domain::verdict::{AgentEvent, AgentReport, RunEnd};
use crate::domain::{Epoch, Oid, ProjectId, RunId, TaskId, TaskPath};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Names a request until it is replied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

#[expect(clippy::large_enum_variant, reason = "events are few at a time and are moved once")]
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The daemon has its lock and has looked around. Comes once, before everything else.
    Started(Started),
    /// The time named by `next_wake` has come.
    Wake,
    Request {
        id: RequestId,
        request: Request,
    },
    /// A project's approved configuration, at start and after each change.
    Configured {
        project: ProjectId,
        policy: Box<Policy>,
    },
    /// What is wished, as read from the state repo.
    Wishes {
        project: ProjectId,
        news: WishNews,
    },
    /// The answer to a task's ask.
    Answer {
        task: TaskId,
        epoch: Epoch,
        answer: Answer,
    },
    /// The answer to a project's ask.
    Side {
        project: ProjectId,
        epoch: Epoch,
        answer: SideAnswer,
    },
    /// A run's output, folded and coalesced.
    Progress {
        task: TaskId,
        epoch: Epoch,
        progress: Progress,
    },
    /// A signal asks the daemon to end.
    Terminate {
        stop_agents: bool,
    },
}

/// What the daemon found at its start.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Started {
    /// False after a reboot: stamps of the monotonic clock mean nothing any more.
    pub same_boot: bool,
    /// True when a request is served without a running daemon: nothing is adopted or started.
    pub only_serve: bool,
    /// All run folders that are not settled.
    pub runs: Vec<RunId>,
    /// Agents at once over all projects.
    pub slots: u32,
    /// Epochs up to this one were used by a board that is lost: their run folders and records are still there.
    pub used: Epoch,
}

/// What people ask of the daemon. Verbs on a task are edits of its wish, made on a person's behalf.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// No new starts, in one project or everywhere.
    Pause {
        project: Option<ProjectId>,
    },
    Resume {
        project: Option<ProjectId>,
    },
    /// End the daemon; agents go on under their shims or are stopped.
    Stop {
        stop_agents: bool,
    },
    /// Edit the wish; the board judges whether the task's state allows it.
    Edit {
        project: ProjectId,
        path: TaskPath,
        edit: WishEdit,
    },
    /// Bring the base forward to what was merged.
    Land {
        project: ProjectId,
    },
    /// Nothing: the reply comes when everything published so far is acknowledged.
    Settle,
}

/// An edit of one task's README.
#[derive(Debug, Clone, PartialEq)]
pub enum WishEdit {
    /// A new task; the text is its whole README.
    Create {
        text: String,
    },
    Enqueue,
    Abort,
    Retry,
    Priority(i32),
    /// Answer to the task's question; it is kept in the README and goes on.
    Answer(String),
    /// A person's yes before the merge.
    Approve,
}

/// What was read from the state repo: everything, or what changed since the last reading.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WishNews {
    /// True when `wishes` is everything there is: what it lacks is gone.
    pub whole: bool,
    /// New or changed wishes; `None` where a task's README is gone or no longer valid.
    pub wishes: BTreeMap<TaskPath, Option<Wish>>,
    /// All task files that cannot be used.
    pub invalid: Vec<Invalid>,
    /// What `state.json` says of tasks that this board does not know: concluded earlier, or elsewhere.
    pub concluded: BTreeMap<TaskPath, Concluded>,
}

/// A conclusion found in the state repo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concluded {
    pub outcome: Outcome,
    pub epoch: Epoch,
    /// Generation of `retry` that it was made for.
    pub retry: u32,
}

/// Answers to the asks of tasks.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    ClaimWon {
        held: Held,
    },
    /// Somebody else has it.
    ClaimLost {
        by: String,
    },
    /// Nothing was claimed: its agent cannot be started here.
    NoProgram {
        why: String,
    },
    ClaimUnknown {
        why: String,
    },
    WorktreeReady {
        worktree: Worktree,
    },
    Briefed,
    /// The child ended; `agent` is the adapter's report where the child was an agent.
    RunEnded {
        run: RunId,
        end: RunEnd,
        agent: Option<AgentReport>,
    },
    Collected {
        work: Work,
    },
    /// The branch is not what was handed out.
    Refused {
        reason: Reason,
        /// Set when branches of the person's own repository moved meanwhile, which may have been the agent's doing.
        strayed: Option<String>,
    },
    Merged {
        commit: Oid,
        tree: Oid,
        onto: Oid,
    },
    AlreadyIn {
        commit: Oid,
    },
    Conflict {
        files: Vec<String>,
    },
    Moved,
    Overtaken {
        now: Oid,
    },
    Rescued,
    Concluded,
    /// The claim was no longer ours: nothing was published.
    ClaimGone,
    GivenBack,
    /// A record of the present state has been published.
    Published,
    /// The hand could not do it, for a reason that may pass.
    Failed {
        why: String,
    },
    BackgroundEnded {
        step: String,
        why: Option<String>,
    },
}

/// Answers to the asks of projects.
#[derive(Debug, Clone, PartialEq)]
pub enum SideAnswer {
    /// The target branch stands at `tip` (whose tree is `tree`) and holds the whole base.
    TargetReady {
        tip: Oid,
        base: Oid,
        tree: Oid,
    },
    /// The base went on by itself; `commit` is both together and must be checked first.
    TargetNeedsMerge {
        commit: Oid,
        tree: Oid,
        onto: Oid,
        base: Oid,
    },
    TargetBlocked {
        reason: Reason,
    },
    RunEnded {
        run: RunId,
        end: RunEnd,
    },
    TargetMoved,
    TargetOvertaken,
    Delivered {
        tip: Oid,
    },
    /// The user's repository could not take the branch; said, and tried again with the next one.
    NotDelivered {
        tip: Oid,
        why: String,
    },
    Landed {
        base: String,
        tip: Oid,
        how: String,
    },
    LandRefused {
        why: String,
    },
    BoardPublished,
    /// A wish was edited; the request is answered and the news follow.
    Edited {
        id: RequestId,
    },
    EditRefused {
        id: RequestId,
        why: String,
    },
    Failed {
        why: String,
    },
}

/// A worktree handed out for an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worktree {
    /// Absolute path, as text: the data folder's path is UTF-8 by rule.
    pub path: String,
    pub branch: String,
    pub base: Oid,
    /// Where the person's own branches stood when it was handed out: HEAD and the base.
    pub theirs: Theirs,
}

/// Commits of the person's repository; an agent has no business there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Theirs {
    pub head: Option<Oid>,
    pub base: Option<Oid>,
}

/// What an attempt's branch holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    pub tip: Oid,
    pub tree: Oid,
    /// Tree of the base: equal to `tree` when nothing was changed.
    pub base_tree: Oid,
    /// Changed files, escaped for showing; at most a few hundred.
    pub files: Vec<String>,
    pub changed: usize,
    /// Files that were kept out of the commit (secrets, huge or special files, nested repositories).
    pub left_out: Vec<String>,
    /// What it did that needs a person's yes, as ends of a sentence ("removes the test file a"), escaped for showing.
    pub protected: Vec<String>,
}

/// What a run's output came to since the last time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Progress {
    pub bytes: u64,
    pub events: Vec<AgentEvent>,
    /// Set when the worktree's files or refs changed.
    pub touched: bool,
}
