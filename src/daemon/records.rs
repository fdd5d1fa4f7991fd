//! What the daemon writes to the state repo: `state.json` and `log.jsonl` of a task, edits of a README on a person's
//! behalf, and rendered boards. Built from a tip, so that it can be built anew on another.

use crate::decide::ask::Record;
use crate::decide::event::WishEdit;
use crate::domain::status::Outcome;
use crate::domain::task::WishVerb;
use crate::domain::{Epoch, Oid, TaskId, TaskPath, Wall};
use crate::git::state_commit::Change;
use crate::git::state_repo::{Content, StateRepo};
use crate::store::HistoryRow;
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

/// What stands at `path` in a commit.
pub(super) fn file_at(state: &StateRepo, commit: &Oid, path: &[u8]) -> Option<Vec<u8>> {
    bytes_at(state, Some(commit), path)
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

/// What the state repo says a task came to, for one whose end our own history does not know: it ended on another machine,
/// or before a database that is lost.
pub(super) fn history_of(state: &StateRepo, task: &TaskId) -> Option<HistoryRow> {
    let tip = super::project::tip(state)?;
    let doc = state_file::read(&bytes_at(state, Some(&tip), &state_path(&task.path))?).ok()?;
    let outcome = doc.outcome?;
    let wish = bytes_at(state, Some(&tip), &readme_path(&task.path));
    let wish = wish.and_then(|bytes| task_file::read(&bytes, &task.path, &|_| true).ok());
    let ended = doc.ended.or(doc.started).unwrap_or(Wall(0));
    Some(HistoryRow {
        task: task.clone(),
        epoch: doc.epoch,
        retry: doc.observed.retry,
        night: None,
        title: wish.map_or_else(|| task.path.slug().to_owned(), |wish| wish.title),
        outcome: outcome.word().to_owned(),
        status: outcome.status().word().to_owned(),
        reason: outcome.reason().map(|r| (r.class.word().to_owned(), r.text)),
        question: doc.question,
        attempts: doc.attempts,
        usage: doc.usage,
        agent: doc.agent,
        model: doc.model,
        queued: doc.claimed.unwrap_or(ended),
        started: doc.started,
        ended,
        branch: doc.branch,
        target: None,
        merge_commit: doc.merged.map(|commit| commit.as_str().to_owned()),
        tip: None,
        files: Vec::new(),
        changed: 0,
        left_out: Vec::new(),
    })
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
    // A record that was sent again after a failure may come behind a newer one, or a conclusion: that stays. A conclusion
    // stands under its claim, so it is never behind anything. A later claim comes first, whoever's: epochs begin anew with
    // another data folder.
    let behind = |doc: &StateDoc| (doc.claimed, doc.epoch) > (record.started, epoch);
    if record.outcome.is_none() && before.as_ref().is_some_and(behind) {
        return vec![];
    }
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
        sound(text.as_bytes(), path)?;
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
        WishEdit::Approve => (vec![(Key::Approved, Value::Number(retry))], None),
    };
    let mut after = task_file::edit(&before, &changes).map_err(|e| format!("{path}: {e}"))?;
    if let Some(text) = text {
        after.extend_from_slice(answer_section(&before, text).as_bytes());
    }
    sound(&after, path)?;
    Ok((after != before).then(|| Change::write(file, after)))
}

/// Refuses a README that could not be read back: it would take its task off the board.
fn sound(readme: &[u8], path: &TaskPath) -> Result<(), String> {
    match task_file::read(readme, path, &|_| true) {
        Ok(_) => Ok(()),
        Err(faults) => {
            let why = faults.first().map_or_else(String::new, |fault| format!(": {}", fault.reason));
            Err(format!("{path}: its README could not be read afterwards, so it stays as it is{why}"))
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::status::Status;
    use crate::git::state_commit::Identity;
    use crate::git::state_publish::{Batch, Pending};

    fn record(status: Status, outcome: Option<Outcome>) -> Record {
        Record {
            status,
            outcome,
            reason: None,
            question: None,
            attempts: 1,
            agent: None,
            model: None,
            branch: None,
            base: None,
            session: None,
            queued: None,
            started: None,
            ended: None,
            usage: crate::domain::verdict::UsageSum::default(),
            left_out: vec![],
            retry: 0,
            held: None,
            log: vec![],
        }
    }

    async fn put(state: &StateRepo, changes: Vec<Change>) {
        let by = Identity { name: "Test".into(), mail: "test@localhost".into(), at: crate::host::clock::now().wall };
        let build = |_: Option<&Oid>, _: &[usize]| Ok(Batch { changes: changes.clone(), message: "Write".into() });
        state.publish(&[], &by, Pending::default(), build).await.unwrap();
    }

    async fn repo() -> (tempfile::TempDir, StateRepo, TaskId) {
        let dir = tempfile::tempdir().unwrap();
        let state = StateRepo::create(&dir.path().join("state.git"), None).await.unwrap().without_sync();
        let project = crate::domain::ProjectId::parse("p").unwrap();
        (dir, state, TaskId { project, path: TaskPath::parse("t1").unwrap() })
    }

    #[tokio::test]
    async fn a_record_that_comes_late_leaves_a_newer_one_alone() {
        let (_dir, state, task) = repo().await;
        let make = |tip: Option<Oid>, epoch, record: &Record| {
            changes(&state, tip.as_ref(), &task, Epoch(epoch), record, "me", None)
        };
        let begun = record(Status::InProgress, None);
        put(&state, make(None, 3, &begun)).await;
        assert!(!make(state.tip().unwrap(), 5, &begun).is_empty());
        let over = record(Status::Completed, Some(Outcome::NoChanges));
        put(&state, make(state.tip().unwrap(), 9, &over)).await;
        assert_eq!(make(state.tip().unwrap(), 5, &begun), vec![]);
        // A board that began anew counts from the start; what it concludes counts all the same.
        assert!(!make(state.tip().unwrap(), 2, &over).is_empty());
    }

    #[tokio::test]
    async fn an_edit_after_which_a_readme_could_not_be_read_is_refused() {
        let (_dir, state, task) = repo().await;
        let readme = "---\ntitle: a\nstatus: queued\n---\n\nText.\n";
        put(&state, vec![Change::write(readme_path(&task.path), readme)]).await;
        let tip = state.tip().unwrap();
        let edit = |wish: WishEdit| edit(&state, tip.as_ref(), &task.path, &wish, 1);
        assert!(edit(WishEdit::Answer("yes".into())).is_ok_and(|change| change.is_some()));
        for bad in ["a\0b".to_owned(), "x\n".repeat(500_000)] {
            assert!(edit(WishEdit::Answer(bad)).is_err_and(|why| why.contains("could not be read")));
        }
        let new = WishEdit::Create { text: "x".repeat(2 << 20) };
        let other = TaskPath::parse("t2").unwrap();
        assert!(super::edit(&state, tip.as_ref(), &other, &new, 0).is_err());
    }
}
