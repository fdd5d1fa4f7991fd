//! How things stand, as faces show it. Every text may quote hostile content and is escaped where it is shown, never here;
//! times are milliseconds since 1970, durations milliseconds.

use crate::domain::status::{Reason, ReasonClass, Status};
use crate::domain::verdict::UsageSum;
use crate::domain::{Oid, ProjectId, TaskPath, Wall};
use serde::{Deserialize, Serialize};

/// All projects, alarms first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StatusView {
    /// `working`, `leaving`, or `none` where no daemon runs and the saved board is shown.
    pub daemon: String,
    pub alarms: Vec<String>,
    pub paused: bool,
    pub slots: u32,
    pub night: Option<NightView>,
    pub projects: Vec<ProjectView>,
    /// How new task files are noticed: `watching` or `polling`.
    pub sources: String,
    /// Whether nothing moves and nothing will by itself, in all projects; `None` from a daemon that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NightView {
    pub number: u64,
    pub started: Wall,
    pub ended: Option<Wall>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProjectView {
    pub project: ProjectId,
    pub code: String,
    pub state: String,
    pub base: Option<String>,
    pub into: Option<String>,
    pub tip: Option<Oid>,
    pub paused: bool,
    pub alarms: Vec<String>,
    pub counts: Counts,
    pub usage: UsageSum,
    /// Agents at once in this project; 0 where it has no approved configuration.
    #[serde(default)]
    pub slots: u32,
    /// Open tasks, and those that ended in the present night; those that move or need somebody first, where there are more
    /// than one reply can carry.
    pub tasks: Vec<TaskLine>,
    /// Tasks that are counted but not listed.
    #[serde(default)]
    pub more: u32,
    pub invalid: Vec<InvalidLine>,
    pub cycles: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    pub planning: u32,
    pub queued: u32,
    pub running: u32,
    pub merging: u32,
    /// Waits for a person.
    pub needs_you: u32,
    /// Cannot start until something else is mended.
    pub doomed: u32,
    pub merged: u32,
    pub failed: u32,
    pub aborted: u32,
}

/// One task in a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskLine {
    pub path: TaskPath,
    pub title: String,
    pub status: Status,
    /// The phase's word, finer than the status.
    pub phase: String,
    pub agent: Option<String>,
    /// How long the phase has lasted.
    pub for_ms: u64,
    pub attempt: u32,
    pub attempts: u32,
    pub doing: String,
    pub why: String,
    pub reason: Option<Reason>,
    pub last_output_ms: Option<u64>,
    pub last_progress_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvalidLine {
    pub place: String,
    pub line: Option<u32>,
    pub reason: String,
}

/// One task with its facts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskView {
    pub project: ProjectId,
    pub line: TaskLine,
    pub depends_on: Vec<TaskPath>,
    pub requester: Option<String>,
    pub labels: Vec<String>,
    pub priority: i32,
    pub branch: Option<String>,
    pub base: Option<Oid>,
    pub worktree: Option<String>,
    pub merged: Option<Oid>,
    pub session: Option<String>,
    pub question: Option<String>,
    pub files: Vec<String>,
    pub left_out: Vec<String>,
    pub usage: UsageSum,
    pub queued: Option<Wall>,
    pub started: Option<Wall>,
    pub ended: Option<Wall>,
    /// Run folders of this task, oldest first.
    pub runs: Vec<String>,
    pub rescues: Vec<RescueView>,
    /// The last journal lines.
    pub journal: Vec<EventLine>,
    pub body: String,
}

/// One journal line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLine {
    /// Rising for ever; the place to resume a stream from.
    pub seq: u64,
    pub at: Wall,
    pub project: Option<ProjectId>,
    pub task: Option<TaskPath>,
    pub epoch: u64,
    pub kind: String,
    pub text: String,
}

/// A night in review.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ReportView {
    pub night: Option<NightView>,
    pub projects: Vec<ProjectReport>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProjectReport {
    pub project: ProjectId,
    pub base: Option<String>,
    pub into: Option<String>,
    /// Commits that the target has and the base has not.
    pub ahead: Option<u32>,
    pub alarms: Vec<String>,
    pub merged: Vec<ReportLine>,
    pub needs_you: Vec<ReportLine>,
    pub failed: Vec<ReportLine>,
    /// Aborted on request.
    pub aborted: Vec<ReportLine>,
    /// Still queued or running, with the reason.
    pub open: Vec<ReportLine>,
    pub invalid: Vec<InvalidLine>,
    pub usage: UsageSum,
    pub by_agent: Vec<(String, UsageSum)>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportLine {
    pub path: TaskPath,
    pub title: String,
    pub status: Status,
    /// The reason, question or merge in a sentence.
    pub text: String,
    /// The reason's class, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ReasonClass>,
    /// The command that goes on from here, without its program's name.
    pub next: Option<String>,
    pub agent: Option<String>,
    pub attempts: u32,
    pub took_ms: Option<u64>,
    pub usage: UsageSum,
    pub commit: Option<Oid>,
    pub files: u32,
    pub left_out: Vec<String>,
}

/// What landing would bring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffView {
    pub base: String,
    pub into: String,
    pub files: Vec<FileLine>,
    pub patch: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLine {
    /// Escaped reversibly where it is not plain text.
    pub path: String,
    /// `None` for a binary file.
    pub added: Option<u64>,
    pub removed: Option<u64>,
}

/// Work kept under a rescue ref.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RescueView {
    pub name: String,
    pub commit: Oid,
    pub attempt: Option<u32>,
}
