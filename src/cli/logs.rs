//! `logs`: what a task's agent and checks printed, in readable lines or as the bytes that came; without a task, the
//! daemon's own log.

#![expect(
    clippy::disallowed_methods,
    reason = "a followed log file is looked at again and again, as `tail -f` does where it has no watch"
)]

use super::context::{Context, unexpected};
use super::{Outcome, render};
use crate::daemon::logs::{Describer, LogReader, task_log};
use crate::domain::status::Status;
use crate::domain::{RunId, TaskPath};
use crate::error::CliError;
use crate::protocol::view::{EventLine, TaskView};
use crate::protocol::{ErrorKind, Reply, Request};
use clap::Args;
use render::{Paint, line};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How long one wait for more lasts.
const WAIT: Duration = Duration::from_secs(1);
/// Bytes at the end of the daemon's log from which its last lines are taken.
const TAIL: u64 = 256 << 10;
/// Journal lines that are read to tell attempts apart.
const JOURNAL: u32 = 10_000;

/// Arguments of `logs`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  overnight logs -f add-a-health-endpoint-that-returns-build-info\n  overnight logs --lines 200"
)]
pub(super) struct Logs {
    /// Slug or path of the task; the daemon's own log without one.
    task: Option<String>,
    /// Which attempt; the last one where nothing is said (`overnight show` has their number).
    #[arg(long, value_name = "N", requires = "task")]
    attempt: Option<usize>,
    /// Go on as more is written: a task's log until the task is over or needs you.
    #[arg(short, long)]
    follow: bool,
    /// The bytes as they came, escape sequences included.
    #[arg(long)]
    raw: bool,
    /// Last lines of the daemon's log.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50, conflicts_with = "task")]
    lines: usize,
}

pub(super) fn logs(cx: &Context, args: &Logs) -> Outcome {
    match &args.task {
        None => daemon(cx, args),
        Some(task) => of_task(cx, task, args),
    }
}

fn of_task(cx: &Context, task: &str, args: &Logs) -> Outcome {
    let mut shown: BTreeSet<String> = BTreeSet::new();
    loop {
        let (path, answer) = cx.on_task(task, |project, path| Request::Show { project, path })?;
        let by_daemon = answer.by_daemon;
        let Reply::Task(view) = answer.reply else { return Err(unexpected(&answer.reply)) };
        if view.runs.is_empty() && !args.follow {
            let error = CliError::new(ErrorKind::WrongState, format!("`{path}` has run nothing yet"));
            return Err(error.hint(format!("`overnight why {path}` says why")));
        }
        let journal = journal(cx, &view, &path)?;
        let attempts = attempts(&view.runs, &journal);
        // Once some of it was shown, whatever comes after is shown too, other attempts included.
        let first = if shown.is_empty() { args.attempt.unwrap_or(attempts.len()) } else { 1 };
        if first > attempts.len() || (first == 0 && !attempts.is_empty()) {
            let what = if attempts.len() == 1 { "1 attempt".into() } else { format!("{} attempts", attempts.len()) };
            return Err(CliError::new(ErrorKind::NotFound, format!("`{path}` has {what}, no attempt {first}")));
        }
        let last = args.attempt.filter(|_| !args.follow).unwrap_or(attempts.len());
        let wanted = attempts.iter().enumerate().take(last).skip(first.saturating_sub(1));
        let mut news = false;
        for (n, run) in wanted.flat_map(|(n, runs)| runs.iter().map(move |run| (n + 1, run))) {
            if shown.insert(run.clone()) {
                news = true;
                print_run(cx, n, run, &journal, args)?;
            }
        }
        if !args.follow {
            return Ok(ExitCode::SUCCESS);
        }
        // What was there before the first attempt shown is not asked for.
        shown.extend(view.runs.iter().cloned());
        // How it ended is known once that is on record.
        let ended = view.line.status.is_final() && view.line.phase == "ended";
        let over = ended || view.line.status == Status::Blocked || !by_daemon;
        if over && !news {
            cx.note(&format!("{path}: {}", line(&view.line.why)));
            return Ok(ExitCode::SUCCESS);
        }
        if !news {
            std::thread::sleep(WAIT);
        }
    }
}

/// Prints what one run has printed; with `-f` until it ends.
fn print_run(cx: &Context, n: usize, run: &str, journal: &[EventLine], args: &Logs) -> Result<(), CliError> {
    let mut reader = task_log(&cx.places, run).map_err(|e| {
        let kind = if e.kind() == std::io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Failed };
        CliError::from_error(kind, &e).hint(format!("the run folder is {run}"))
    })?;
    if !args.raw && !cx.json {
        let what = journal.iter().find(|e| epoch(run) == Some(e.epoch)).map_or("run", |e| e.kind.as_str());
        let head = format!("── attempt {n} · {} · {}", line(what), line(run));
        cx.print(&format!("{}\n", cx.style.paint(Paint::Quiet, &head)))?;
    }
    let mut describer = Describer::new(reader.kind());
    copy(cx, &mut reader, &mut describer, args)?;
    // A reader waits only where more can come.
    while args.follow && reader.follow(WAIT) {
        copy(cx, &mut reader, &mut describer, args)?;
    }
    // What came between the last look and the end.
    copy(cx, &mut reader, &mut describer, args)?;
    if let Some(rest) = describer.finish().filter(|_| !args.raw) {
        print_line(cx, 0, &rest)?;
    }
    Ok(())
}

/// Prints what is there now.
fn copy(cx: &Context, reader: &mut LogReader, describer: &mut Describer, args: &Logs) -> Result<(), CliError> {
    for piece in reader {
        let piece = piece.map_err(|e| CliError::from_error(ErrorKind::Failed, &e))?;
        if args.raw {
            cx.print_bytes(&piece.bytes)?;
            continue;
        }
        for text in describer.feed(&piece) {
            print_line(cx, piece.at_ms, &text)?;
        }
    }
    Ok(())
}

fn print_line(cx: &Context, at_ms: u64, text: &str) -> Result<(), CliError> {
    if cx.json {
        cx.print_json(&serde_json::json!({ "at_ms": at_ms, "text": text }))
    } else {
        cx.print(&format!("{}\n", line(text)))
    }
}

fn journal(cx: &Context, view: &TaskView, path: &TaskPath) -> Result<Vec<EventLine>, CliError> {
    let request = Request::Events {
        project: Some(view.project.clone()),
        path: Some(path.clone()),
        since: None,
        limit: JOURNAL,
        follow: false,
    };
    match cx.ask(request)?.reply {
        Reply::Events { lines, .. } => Ok(lines),
        reply => Err(unexpected(&reply)),
    }
}

/// The runs of each attempt, oldest first. An attempt begins where the journal says that an agent was started; steps
/// before the first belong to it. Without such lines every run counts as one.
fn attempts(runs: &[String], journal: &[EventLine]) -> Vec<Vec<String>> {
    let starts: Vec<u64> = journal.iter().filter(|line| line.kind == "running").map(|line| line.epoch).collect();
    if starts.is_empty() {
        return runs.iter().map(|run| vec![run.clone()]).collect();
    }
    let mut out: Vec<Vec<String>> = vec![Vec::new(); starts.len()];
    for run in runs {
        let at = epoch(run).unwrap_or(0);
        let nth = starts.iter().filter(|start| **start <= at).count().max(1);
        out[nth - 1].push(run.clone());
    }
    out.retain(|runs| !runs.is_empty());
    out
}

fn epoch(run: &str) -> Option<u64> {
    RunId::from_folder(run)?.epoch().map(|epoch| epoch.0)
}

fn daemon(cx: &Context, args: &Logs) -> Outcome {
    let folder = cx.places.logs();
    let Some(mut path) = newest(&folder) else {
        let error = CliError::new(ErrorKind::NotFound, "there is no log of a daemon yet");
        return Err(error.hint("`overnight start` starts one"));
    };
    let failed = |e: &std::io::Error| CliError::from_error(ErrorKind::Failed, e);
    let mut file = File::open(&path).map_err(|e| failed(&e))?;
    let length = file.metadata().map_err(|e| failed(&e))?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).map_err(|e| failed(&e))?;
    let mut held = Vec::new();
    file.read_to_end(&mut held).map_err(|e| failed(&e))?;
    let mut lines: Vec<&[u8]> = held.split_inclusive(|b| *b == b'\n').collect();
    if length > TAIL && lines.len() > 1 {
        lines.remove(0);
    }
    for one in &lines[lines.len().saturating_sub(args.lines)..] {
        print_record(cx, one, args.raw)?;
    }
    if !args.follow {
        return Ok(ExitCode::SUCCESS);
    }
    let mut rest = Vec::new();
    loop {
        let mut more = Vec::new();
        file.read_to_end(&mut more).map_err(|e| failed(&e))?;
        rest.extend_from_slice(&more);
        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
            let one: Vec<u8> = rest.drain(..=end).collect();
            print_record(cx, &one, args.raw)?;
        }
        if more.is_empty() {
            // The daemon begins a new file at midnight and at a size; the old one is renamed or stays.
            let is_now = newest(&folder).filter(|now| *now != path || replaced(&file, now));
            if let Some(now) = is_now {
                file = File::open(&now).map_err(|e| failed(&e))?;
                path = now;
                continue;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// The file of today's log, or the last one: names carry the day, and sort by it.
fn newest(folder: &Path) -> Option<PathBuf> {
    let names = std::fs::read_dir(folder).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let current = |name: &String| {
        let day = name.strip_prefix("daemon.").and_then(|rest| rest.strip_suffix(".jsonl"));
        day.is_some_and(|day| day.len() == 10 && !day.contains('.'))
    };
    names.filter(current).max().map(|name| folder.join(name))
}

fn replaced(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) != (there.dev(), there.ino()),
        (Ok(_) | Err(_), _) => false,
    }
}

fn print_record(cx: &Context, record: &[u8], raw: bool) -> Result<(), CliError> {
    if raw {
        return cx.print_bytes(record);
    }
    let text = String::from_utf8_lossy(record);
    let text = text.trim_end();
    if text.is_empty() {
        return Ok(());
    }
    match serde_json::from_str::<Value>(text) {
        Ok(value) if cx.json => cx.print_json(&value),
        Ok(value) => cx.print(&format!("{}\n", line(&readable(&value)))),
        Err(_) => cx.print(&format!("{}\n", line(text))),
    }
}

/// `2026-11-30T23:04:05Z WARN overnight::daemon: message key=value`.
fn readable(record: &Value) -> String {
    let word = |key: &str| record.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut out = format!("{} {:5} {}:", word("timestamp"), word("level"), word("target"));
    let fields = record.get("fields").and_then(Value::as_object);
    if let Some(message) = fields.and_then(|f| f.get("message")).and_then(Value::as_str) {
        out.push_str(&format!(" {message}"));
    }
    for (key, value) in fields.into_iter().flatten().filter(|(key, _)| *key != "message") {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        out.push_str(&format!(" {key}={value}"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::render::fixtures::event;

    #[test]
    fn runs_are_told_apart_by_attempt() {
        let runs: Vec<String> = [2, 4, 5, 9, 11].iter().map(|n| format!("p.a.{n}")).collect();
        let journal: Vec<EventLine> = [(4, "running"), (5, "checking"), (9, "running"), (11, "checking")]
            .map(|(epoch, kind)| EventLine { epoch, kind: kind.into(), ..event("") })
            .into();
        assert_eq!(attempts(&runs, &journal), [vec!["p.a.2", "p.a.4", "p.a.5"], vec!["p.a.9", "p.a.11"]]);
        assert_eq!(attempts(&runs, &[]).len(), 5);
    }

    #[test]
    fn a_record_of_the_log_is_one_readable_line() {
        let record = serde_json::json!({
            "timestamp": "2026-11-30T23:04:05Z", "level": "WARN", "target": "overnight::daemon",
            "fields": { "message": "held", "task": "a\n\u{1b}[2J", "n": 3 },
        });
        assert_eq!(
            line(&readable(&record)),
            "2026-11-30T23:04:05Z WARN  overnight::daemon: held task=a\\n\\u{1b}[2J n=3"
        );
    }

    #[test]
    fn the_newest_file_of_the_family_is_the_log() {
        let top = tempfile::tempdir().unwrap();
        for name in [
            "daemon.2026-11-29.jsonl",
            "daemon.2026-11-30.jsonl",
            "daemon.2026-11-30.0001.jsonl",
            "daemon.out",
            "cli.2026-12-01.jsonl",
        ] {
            std::fs::write(top.path().join(name), "").unwrap();
        }
        assert_eq!(newest(top.path()), Some(top.path().join("daemon.2026-11-30.jsonl")));
        assert_eq!(newest(&top.path().join("none")), None);
    }
}
