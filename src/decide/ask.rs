//! Everything the board wants done, as data that leaves the hands no choice. Each ask is named by (task, epoch) or
//! (project, epoch), may be handed out again after a crash, and is answered by one event that carries the same name.

use super::event::{RequestId, WishEdit, Worktree};
use crate::domain::chain::Step;
use crate::domain::follow::Follow;
use crate::domain::lease::Held;
use crate::domain::phase::StopStage;
use crate::domain::policy::{Profile, Protect};
use crate::domain::status::{Outcome, Reason, Status};
use crate::domain::time::Wall;
use crate::domain::verdict::{Usage, UsageSum};
use crate::domain::{Epoch, Oid, ProjectId, RunId, TaskId, TaskPath};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    Task {
        task: TaskId,
        epoch: Epoch,
        what: TaskAsk,
    },
    Project {
        project: ProjectId,
        epoch: Epoch,
        what: ProjectAsk,
    },
    Reply {
        id: RequestId,
        reply: Reply,
    },
    /// Tell a person; one per cause.
    Notice {
        project: ProjectId,
        task: Option<TaskPath>,
        kind: NoticeKind,
        text: String,
    },
    /// A run that belongs to no phase of any task: end it and settle its folder.
    EndOrphan {
        run: RunId,
    },
    /// Nothing is left to wait for: the daemon may end.
    Exit,
}

#[derive(Debug, Clone, PartialEq)]
pub enum TaskAsk {
    /// Claims the task, unless the program of its agent is not there.
    Claim {
        program: Option<String>,
    },
    MakeWorktree {
        branch: String,
        base: Oid,
    },
    WriteBrief(Box<Brief>),
    /// Start the child, or follow it where it was started before.
    Run(Box<RunOrder>),
    /// End the child's whole tree and go on following it.
    Stop {
        run: RunId,
        stage: StopStage,
    },
    Collect {
        worktree: Worktree,
        message: String,
        max_file: u64,
        protect: Protect,
    },
    TryMerge {
        tip: Oid,
        into: String,
        onto: Oid,
        message: String,
        trailer: String,
    },
    Move {
        into: String,
        new: Oid,
        old: Oid,
    },
    Rescue {
        worktree: Option<Worktree>,
        branch: String,
        attempt: u32,
    },
    Conclude(Box<Record>),
    /// The worktree that has this branch, if there is one, goes back to the pool.
    GiveBack {
        branch: String,
    },
    /// Publish how the task stands; nobody waits for it.
    Publish(Box<Record>),
    StartBackground {
        worktree: Worktree,
        steps: Vec<Step>,
    },
    StopBackground,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ProjectAsk {
    /// Bring the target branch up to date with the base.
    PrepareTarget {
        base: String,
        into: String,
    },
    /// Run one check on a clean checkout of `commit`.
    RunCheck(Box<RunOrder>),
    StopCheck {
        run: RunId,
        stage: StopStage,
    },
    MoveTarget {
        into: String,
        new: Oid,
        old: Oid,
    },
    /// Let the user's repository have the target branch.
    Deliver {
        into: String,
        tip: Oid,
    },
    Land {
        base: String,
        into: String,
        tip: Oid,
    },
    /// Edit a wish on a person's behalf.
    Edit {
        id: RequestId,
        path: TaskPath,
        edit: WishEdit,
        /// The generation that a yes is for, or that another try is to be.
        retry: u32,
    },
    /// Render the boards anew.
    PublishBoard,
}

/// Where a child runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// An attempt's own worktree.
    Worktree(String),
    /// The project's integration worktree, reset to this commit first.
    Integration(Oid),
}

/// One child program to be run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOrder {
    pub run: RunId,
    pub place: Place,
    pub program: Program,
    /// Values for the child, by name; nothing of them is ever pasted into shell text.
    pub values: BTreeMap<String, String>,
    /// Variables handed on from the daemon's environment.
    pub env_pass: Vec<String>,
    /// The shim ends the run by itself after this long unless the daemon extends it.
    pub alive_for: Duration,
    pub kill_grace: Duration,
    pub transcript: u64,
}

/// The variable that tells a check its name; no other child has it.
pub const CHECK: &str = "OVERNIGHT_CHECK";

#[expect(clippy::large_enum_variant, reason = "it is always boxed with the rest of its order")]
#[derive(Debug, Clone, PartialEq)]
pub enum Program {
    Agent {
        profile: Profile,
        model: Option<String>,
        /// Go on with this session.
        session: Option<String>,
        /// The session's running totals before this run.
        session_total: Option<Usage>,
        prompt: Prompt,
        script: Vec<String>,
        max_wall: Duration,
    },
    Command {
        name: String,
        argv: Vec<String>,
    },
}

/// What an agent is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// The brief kept for this attempt.
    Brief,
    /// A message that follows the brief, in at most `budget` bytes; sent alone where the session is resumed, else below
    /// the brief.
    Follow { follow: Follow, title: String, budget: usize },
    /// The prompt of a chain step.
    Step(String),
}

/// What goes into a brief; the hand adds what stands in the repositories.
#[derive(Debug, Clone, PartialEq)]
pub struct Brief {
    pub title: String,
    /// Which attempt this is, from 1, and how many there may be.
    pub attempt: (u32, u32),
    pub body: String,
    pub budget: usize,
    /// Nearest first.
    pub ancestors: Vec<(TaskPath, String, String)>,
    /// Path, title, status.
    pub siblings: Vec<(TaskPath, String, Status)>,
    /// Path, title and merge commit of what this task depends on.
    pub needs: Vec<(TaskPath, String, Option<Oid>)>,
    pub answer: Option<String>,
    pub last_failure: Option<String>,
}

/// What the state repo shall say of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub status: Status,
    pub outcome: Option<Outcome>,
    pub reason: Option<Reason>,
    pub question: Option<String>,
    pub attempts: u32,
    pub agent: Option<String>,
    pub model: Option<String>,
    pub branch: Option<String>,
    pub base: Option<Oid>,
    pub session: Option<String>,
    pub queued: Option<Wall>,
    pub started: Option<Wall>,
    pub ended: Option<Wall>,
    pub usage: UsageSum,
    pub left_out: Vec<String>,
    /// Generation of the wish's `retry` that was observed.
    pub retry: u32,
    /// The claim under which this is written; a conclusion gives it back in the same push.
    pub held: Option<Held>,
    /// Transitions since the last record.
    pub log: Vec<LogEntry>,
}

/// One transition, as it goes to `log.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogEntry {
    pub at: Wall,
    pub epoch: Epoch,
    pub from: String,
    pub to: String,
    pub why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoticeKind {
    NeedsYou,
    ProfileUnusable,
    BaseRed,
    NightDone,
    Alarm,
}

/// How a request went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Done {
        text: String,
    },
    /// The task's state does not allow it.
    WrongState {
        why: String,
    },
    NotFound {
        what: String,
    },
    Refused {
        why: String,
    },
}
