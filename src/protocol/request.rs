//! What a face may ask. Verbs on a task carry a project and a path, checked when they are read; nothing here is a shell
//! word or a file name yet.

use crate::domain::{ProjectId, TaskPath};
use serde::{Deserialize, Serialize};

/// The protocol's version. A daemon answers any version it knows; a newer client's unknown request is refused by name.
pub const VERSION: u32 = 1;

/// One line from a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// `VERSION` of the client.
    pub v: u32,
    pub request: Request,
}

impl Call {
    pub fn new(request: Request) -> Self {
        Self { v: VERSION, request }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verb")]
pub enum Request {
    /// Answered with the daemon's version, pid and data folder.
    Ping,
    /// How everything stands; `project` narrows it.
    Status {
        project: Option<ProjectId>,
    },
    /// One task with all its facts.
    Show {
        project: ProjectId,
        path: TaskPath,
    },
    Why {
        project: ProjectId,
        path: TaskPath,
    },
    /// A night in review; the last one where no number is given.
    Report {
        project: Option<ProjectId>,
        night: Option<u64>,
    },
    /// Journal lines from sequence number `since` on (or the last `limit`); `follow` keeps the connection open and sends
    /// each new line as it comes.
    Events {
        project: Option<ProjectId>,
        path: Option<TaskPath>,
        since: Option<u64>,
        limit: u32,
        follow: bool,
    },
    /// A new task; `text` is its README.
    Add {
        project: ProjectId,
        path: TaskPath,
        text: String,
    },
    Enqueue {
        project: ProjectId,
        path: TaskPath,
    },
    Abort {
        project: ProjectId,
        path: TaskPath,
    },
    Retry {
        project: ProjectId,
        path: TaskPath,
    },
    Priority {
        project: ProjectId,
        path: TaskPath,
        priority: i32,
    },
    Answer {
        project: ProjectId,
        path: TaskPath,
        text: String,
    },
    Approve {
        project: ProjectId,
        path: TaskPath,
    },
    Pause {
        project: Option<ProjectId>,
    },
    Resume {
        project: Option<ProjectId>,
    },
    /// End the daemon; `agents` stops what runs, else it goes on under its shims and is adopted at the next start.
    Stop {
        agents: bool,
    },
    /// Read configurations, approvals and the list of projects afresh.
    Reload,
    Land {
        project: ProjectId,
    },
    /// What the base would gain, or what one task's branch holds: files with their counts, and the patch where `patch` is
    /// set.
    Diff {
        project: ProjectId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<TaskPath>,
        patch: bool,
    },
    /// What is kept under rescue refs for a task.
    Rescues {
        project: ProjectId,
        path: TaskPath,
    },
    /// Bring a rescued attempt back as a branch of the user's repository.
    Undo {
        project: ProjectId,
        path: TaskPath,
        attempt: Option<u32>,
    },
    /// Waits until everything so far has reached the state repo.
    Settle,
}

impl Request {
    /// Verbs that only a person (or a program outside every run) may use.
    pub fn is_a_persons(&self) -> bool {
        match self {
            Self::Ping
            | Self::Status { .. }
            | Self::Show { .. }
            | Self::Why { .. }
            | Self::Report { .. }
            | Self::Events { .. }
            | Self::Diff { .. }
            | Self::Rescues { .. }
            | Self::Settle => false,
            Self::Add { .. }
            | Self::Enqueue { .. }
            | Self::Abort { .. }
            | Self::Retry { .. }
            | Self::Priority { .. }
            | Self::Answer { .. }
            | Self::Approve { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Stop { .. }
            | Self::Reload
            | Self::Land { .. }
            | Self::Undo { .. } => true,
        }
    }

    /// True when a request changes nothing, so that no ring is needed to serve it without a daemon.
    pub fn is_reading(&self) -> bool {
        !self.is_a_persons() && *self != Self::Settle
    }
}
