//! What the daemon writes to the state repo: `state.json` and `log.jsonl` of a task, edits of a README on a person's
//! behalf, and rendered boards. Built from a tip, so that it can be built anew on another.

use crate::decide::ask::Record;
use crate::decide::event::WishEdit;
use crate::domain::status::Outcome;
use crate::domain::task::WishVerb;
use crate::domain::{Epoch, Oid, TaskId, TaskPath};
use crate::git::state_commit::Change;
use crate::git::state_repo::{Content, StateRepo};
use crate::text::board_file::{self, Row};
use crate::text::state_file::{self, LogLine, StateDoc};
use crate::text::task_file::{self, Key, Value};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// The nonce of the claim that `epoch` of a task asks for.
pub(super) fn nonce(daemon: &str, task: &TaskId, epoch: Epoch) -> String {
    let mut out = String::new();
    for byte in &Sha256::digest(format!("{daemon} {task} {epoch}").as_bytes())[..16] {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

fn state_path(task: &TaskPath) -> Vec<u8> {
    format!("tasks/{task}/state.json").into_bytes()
}

fn readme_path(task: &TaskPath) -> Vec<u8> {
    format!("tasks/{task}/README.md").into_bytes()
}

fn bytes_at(state: &StateRepo, tip: Option<&Oid>, path: &[u8]) -> Option<Vec<u8>> {
    match state.read_file(tip?, path) {
        Ok(Some(Content::Bytes(bytes))) => Some(bytes),
        _ => None,
    }
}

/// Whether `tip` has exactly these bytes at `path`.
pub(super) fn has(state: &StateRepo, tip: &Oid, path: &[u8], bytes: &[u8]) -> bool {
    bytes_at(state, Some(tip), path).is_some_and(|there| there == bytes)
}

/// The nonce under which the state repo says that `task` was last concluded.
pub(super) fn concluded_nonce(state: &StateRepo, tip: &Oid, task: &TaskPath) -> Option<String> {
    let bytes = bytes_at(state, Some(tip), &state_path(task))?;
    state_file::read(&bytes).ok()?.concluded_nonce
}

/// Whether the state repo says that `task` is over, and nobody has asked for a new try since.
pub(super) fn is_over(state: &StateRepo, tip: &Oid, task: &TaskPath) -> bool {
    let doc = bytes_at(state, Some(tip), &state_path(task)).and_then(|bytes| state_file::read(&bytes).ok());
    let Some((doc, outcome)) = doc.and_then(|doc| Some((doc.clone(), doc.outcome?))) else { return false };
    let wish = || task_file::read(&bytes_at(state, Some(tip), &readme_path(task))?, task, &|_| true).ok();
    outcome.satisfies() || wish().is_none_or(|wish| wish.retry <= doc.observed.retry)
}

/// Whether the state repo holds this very record, written by this daemon.
pub(super) fn says(
    state: &StateRepo,
    tip: Option<&Oid>,
    task: &TaskPath,
    epoch: Epoch,
    record: &Record,
    owner: &str,
) -> bool {
    let doc = bytes_at(state, tip, &state_path(task)).and_then(|bytes| state_file::read(&bytes).ok());
    doc.is_some_and(|doc| {
        let ours = doc.owner.as_deref() == Some(owner) && doc.epoch == epoch;
        ours && doc.status == record.status && doc.outcome == record.outcome
    })
}

/// `state.json` and `log.jsonl` of one record.
pub(super) fn changes(
    state: &StateRepo,
    tip: Option<&Oid>,
    task: &TaskId,
    epoch: Epoch,
    record: &Record,
    owner: &str,
    nonce: Option<&str>,
) -> Vec<Change> {
    let path = state_path(&task.path);
    let before = bytes_at(state, tip, &path).and_then(|bytes| state_file::read(&bytes).ok());
    let mut doc = before.unwrap_or_else(|| StateDoc::new(record.status));
    let fresh = doc.epoch < epoch;
    doc.status = record.status;
    doc.reason.clone_from(&record.reason);
    doc.outcome.clone_from(&record.outcome);
    doc.epoch = epoch;
    doc.attempts = record.attempts;
    doc.agent.clone_from(&record.agent);
    doc.model.clone_from(&record.model);
    doc.owner = Some(owner.to_owned());
    doc.branch.clone_from(&record.branch);
    doc.base.clone_from(&record.base);
    doc.merged = match &record.outcome {
        Some(Outcome::Merged { commit }) => Some(commit.clone()),
        _ => None,
    };
    doc.claimed = record.started;
    doc.started = record.started;
    doc.ended = record.ended;
    doc.question.clone_from(&record.question);
    doc.usage = record.usage;
    doc.observed.retry = record.retry;
    doc.session.clone_from(&record.session);
    if record.outcome.is_some() {
        doc.concluded_nonce = nonce.map(str::to_owned);
        doc.observed.wish = matches!(record.outcome, Some(Outcome::Aborted)).then_some(WishVerb::Abort);
    }
    let mut changes = vec![Change::write(path, state_file::write(&doc))];
    // A record that was written before (its acknowledgement was lost) brings no line twice.
    if fresh {
        let lines: Vec<LogLine> = record.log.iter().map(|e| log_line(e, owner)).collect();
        if !lines.is_empty() {
            let text = state_file::append_log(&[], &lines);
            changes.push(Change::append(format!("tasks/{}/log.jsonl", task.path).into_bytes(), text));
        }
    }
    changes
}

fn log_line(entry: &crate::decide::ask::LogEntry, owner: &str) -> LogLine {
    LogLine {
        ts: entry.at,
        from: Some(entry.from.clone()),
        to: entry.to.clone(),
        epoch: entry.epoch,
        actor: owner.to_owned(),
        reason: Some(entry.why.clone()),
    }
}

/// One word for the commit's trailer.
pub(super) fn edit_word(edit: &WishEdit) -> &'static str {
    match edit {
        WishEdit::Create { .. } => "create",
        WishEdit::Enqueue => "enqueue",
        WishEdit::Abort => "abort",
        WishEdit::Retry => "retry",
        WishEdit::Priority(_) => "priority",
        WishEdit::Answer(_) => "answer",
        WishEdit::Approve => "approve",
    }
}

/// The edit of one README on `tip`: `None` when it says so already, an error in words when it cannot be made.
pub(super) fn edit(
    state: &StateRepo,
    tip: Option<&Oid>,
    path: &TaskPath,
    edit: &WishEdit,
    retry: u32,
) -> Result<Option<Change>, String> {
    let file = readme_path(path);
    let before = bytes_at(state, tip, &file);
    if let WishEdit::Create { text } = edit {
        return match before {
            // The same text: the answer to an earlier try was lost.
            Some(bytes) if bytes == text.as_bytes() => Ok(None),
            Some(_) => Err(format!("{path} exists already")),
            None => Ok(Some(Change::write(file, text.clone()))),
        };
    }
    let Some(before) = before else { return Err(format!("{path} has no README in the state repo")) };
    let retry = i64::from(retry);
    let (changes, text): (Vec<(Key, Value)>, Option<&str>) = match edit {
        WishEdit::Create { .. } => (vec![], None),
        WishEdit::Enqueue => (vec![(Key::Status, Value::Text("queued".into()))], None),
        WishEdit::Abort => (vec![(Key::Wish, Value::Text("abort".into()))], None),
        WishEdit::Retry => (vec![(Key::Retry, Value::Number(retry)), (Key::Wish, Value::Remove)], None),
        WishEdit::Priority(n) => (vec![(Key::Priority, Value::Number(i64::from(*n)))], None),
        WishEdit::Answer(text) => (vec![(Key::Retry, Value::Number(retry))], Some(text)),
        // Said outright: where it is not, the project's rules may ask for the review again.
        WishEdit::Approve => (vec![(Key::Review, Value::Text("false".into()))], None),
    };
    let mut after = task_file::edit(&before, &changes).map_err(|e| format!("{path}: {e}"))?;
    if let Some(text) = text {
        after.extend_from_slice(answer_section(&before, text).as_bytes());
    }
    Ok((after != before).then(|| Change::write(file, after)))
}

/// An answer as a section at the end of the README, quoted so that it opens no section of its own.
fn answer_section(before: &[u8], text: &str) -> String {
    let mut out = String::new();
    if !before.ends_with(b"\n") {
        out.push('\n');
    }
    out.push_str("\n## Answer\n\n");
    for line in text.lines() {
        out.push_str("> ");
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// The board files: the root's, and one for each task that has sub-tasks.
pub(super) fn boards(boards: &[(Option<TaskPath>, Vec<Row>)]) -> Vec<Change> {
    boards
        .iter()
        .map(|(of, rows)| match of {
            None => Change::write("tasks/README.md", board_file::render(rows, None)),
            Some(path) => {
                let file = format!("tasks/{path}/{}", board_file::SUB_BOARD);
                Change::write(file, board_file::render(rows, Some(path.as_str())))
            }
        })
        .collect()
}
