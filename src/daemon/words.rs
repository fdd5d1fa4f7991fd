//! The words of the protocol for what the ring says, and the ring's for what the protocol asks.

use crate::decide::ask::Reply as Judged;
use crate::decide::board::JournalLine;
use crate::decide::event::{Request as Asked, WishEdit};
use crate::protocol::reply::{ErrorKind, Failure};
use crate::protocol::view::EventLine;
use crate::protocol::{Reply, Request};

/// A line of the journal, as followers are given it.
pub(super) fn event_line(seq: u64, line: &JournalLine) -> EventLine {
    EventLine {
        seq,
        at: line.at,
        project: line.project.clone(),
        task: line.task.clone(),
        epoch: line.epoch.0,
        kind: line.kind.to_owned(),
        text: line.text.clone(),
    }
}

/// What a requester is told.
pub(super) fn judged(reply: Judged) -> Reply {
    let error = |kind, message| Reply::Error(Failure { kind, message, hint: None });
    match reply {
        Judged::Done { text } => Reply::Done { text },
        Judged::WrongState { why } => error(ErrorKind::WrongState, why),
        Judged::NotFound { what } => error(ErrorKind::NotFound, format!("there is no {what}")),
        Judged::Refused { why } => error(ErrorKind::Failed, why),
    }
}

/// The ring's word for a request that changes something.
pub(super) fn asked(request: Request) -> Option<Asked> {
    let edit = |project, path, edit| Some(Asked::Edit { project, path, edit });
    match request {
        Request::Add { project, path, text } => edit(project, path, WishEdit::Create { text }),
        Request::Enqueue { project, path } => edit(project, path, WishEdit::Enqueue),
        Request::Abort { project, path } => edit(project, path, WishEdit::Abort),
        Request::Retry { project, path } => edit(project, path, WishEdit::Retry),
        Request::Priority { project, path, priority } => edit(project, path, WishEdit::Priority(priority)),
        Request::Answer { project, path, text } => edit(project, path, WishEdit::Answer(text)),
        Request::Approve { project, path } => edit(project, path, WishEdit::Approve),
        Request::Pause { project } => Some(Asked::Pause { project }),
        Request::Resume { project } => Some(Asked::Resume { project }),
        Request::Stop { agents } => Some(Asked::Stop { stop_agents: agents }),
        Request::Land { project } => Some(Asked::Land { project }),
        Request::Settle => Some(Asked::Settle),
        Request::Ping
        | Request::Status { .. }
        | Request::Show { .. }
        | Request::Why { .. }
        | Request::Report { .. }
        | Request::Events { .. }
        | Request::Reload
        | Request::Diff { .. }
        | Request::Rescues { .. }
        | Request::Undo { .. } => None,
    }
}
