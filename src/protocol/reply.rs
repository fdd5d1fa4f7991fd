//! What comes back: one document a request, an error with its kind, cause and remedy, or a stream of lines for `events`.

use super::view::{DiffView, EventLine, ReportView, RescueView, StatusView, TaskView};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reply")]
pub enum Reply {
    Pong {
        version: String,
        protocol: u32,
        pid: u32,
        data: String,
    },
    /// It was done; the text says what, where there is something to say.
    Done {
        text: String,
    },
    Status(Box<StatusView>),
    Task(Box<TaskView>),
    Why {
        text: String,
    },
    Report(Box<ReportView>),
    Events {
        lines: Vec<EventLine>,
        next: u64,
    },
    /// One line of a followed stream.
    Event(EventLine),
    Diff(DiffView),
    Rescues {
        rescues: Vec<RescueView>,
    },
    Error(Failure),
}

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub kind: ErrorKind,
    /// What happened, with the cause; may quote hostile text.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// The classes of errors, each with its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// It was tried and did not succeed, or somebody else was first.
    Failed,
    /// Bad arguments or configuration.
    Usage,
    NotFound,
    /// The task's or daemon's state does not allow it.
    WrongState,
    /// The peer may not use this verb.
    NotAllowed,
    /// Something that should not happen.
    Unexpected,
}

impl ErrorKind {
    /// The process's exit code for this class.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage | Self::NotAllowed => 2,
            Self::NotFound => 3,
            Self::WrongState => 4,
            Self::Unexpected => 10,
        }
    }
}

impl Reply {
    pub fn error(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Error(Failure { kind, message: message.into(), hint: None })
    }
}
