//! What people read: the daemon's own log, the lines of a run in the foreground, and the transcripts of tasks.

#![expect(clippy::disallowed_methods, reason = "a follower of logs waits with a deadline; no rule sees this clock")]

use super::How;
use crate::agent;
use crate::config::{Places, Surroundings};
use crate::decide::Board;
use crate::decide::board::JournalLine;
use crate::domain::policy::{AgentKind, Profile};
use crate::domain::safe;
use crate::domain::{RunId, TaskId};
use crate::logging::{self, Guard, Options};
use crate::process::{self, Piece, Runs};
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// The family of log files that the daemon writes.
pub const FAMILY: &str = "daemon";

/// Sets up logging for this process; keep the guard.
pub(super) fn init(places: &Places, how: &How) -> Result<Guard, String> {
    let around = Surroundings::from_env();
    let verbose = matches!(how, How::Foreground { verbose: true, .. });
    let options = Options {
        family: FAMILY,
        folder: Some(places.logs()),
        stderr: verbose,
        no_color: around.no_color,
        levels: around.log,
    };
    logging::init(&options).map_err(|e| super::chain(&e))
}

/// Which of a run's streams a piece came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStream {
    Out,
    Err,
}

/// Bytes of a transcript as they came, cut anywhere; `bytes` is empty where output is no longer there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPiece {
    pub stream: LogStream,
    pub bytes: Vec<u8>,
    /// The run's age, in milliseconds.
    pub at_ms: u64,
    /// So many bytes are missing before this piece.
    pub missing: u64,
}

/// A task's transcript, from its beginning.
pub struct LogReader {
    reader: process::Reader,
    runs: Runs,
    run: RunId,
    kind: Option<String>,
}

/// Opens the transcript of the run folder `run`, as `show` lists them.
pub fn task_log(places: &Places, run: &str) -> io::Result<LogReader> {
    let unknown = || io::Error::new(io::ErrorKind::NotFound, format!("there is no run {}", safe::line(run)));
    let run = RunId::from_folder(run).ok_or_else(unknown)?;
    let root = places.runs();
    if !root.join(run.as_str()).is_dir() {
        return Err(unknown());
    }
    let runs = Runs::open(&root, process::own_binary()?).map_err(io::Error::other)?;
    let kind = std::fs::read_to_string(root.join(run.as_str()).join("kind")).ok();
    Ok(LogReader { reader: runs.transcript(&run, 0), runs, run, kind })
}

impl LogReader {
    /// What kind of program wrote it: an adapter's word, or `command`.
    pub fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or("command")
    }

    /// Waits up to `timeout` for more; false when the run has ended and everything was read.
    pub fn follow(&mut self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut seen = self.runs.beat(&self.run).map(|b| b.bytes);
        loop {
            if self.runs.has_ended(&self.run) {
                return false;
            }
            let now = self.runs.beat(&self.run).map(|b| b.bytes);
            if now != seen || Instant::now() >= until {
                return true;
            }
            seen = now;
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }
}

impl Iterator for LogReader {
    type Item = io::Result<LogPiece>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.reader.read(64 << 10) {
            Ok(None) => None,
            Err(e) => Some(Err(e)),
            Ok(Some(Piece::Bytes { stream, ms, data, .. })) => {
                let stream = match stream {
                    process::Stream::Out => LogStream::Out,
                    process::Stream::Err => LogStream::Err,
                };
                Some(Ok(LogPiece { stream, bytes: data, at_ms: ms, missing: 0 }))
            }
            Ok(Some(Piece::Gap { bytes, .. })) => {
                Some(Ok(LogPiece { stream: LogStream::Out, bytes: vec![], at_ms: 0, missing: bytes }))
            }
        }
    }
}

/// Turns a transcript into lines that a person can read, safe for a terminal.
pub struct Describer {
    reader: Option<agent::Reader>,
    held: Vec<u8>,
}

impl Describer {
    /// For output of this kind of program.
    pub fn new(kind: &str) -> Self {
        let kind = AgentKind::ALL.into_iter().find(|k| k.word() == kind);
        // A script's or custom agent's own words are what one wants to read.
        let kind = kind.filter(|k| matches!(k, AgentKind::Claude | AgentKind::Codex));
        Self { reader: kind.map(|kind| agent::Reader::new(kind, &Profile::bare(kind), None)), held: Vec::new() }
    }

    /// The lines that a piece completes.
    pub fn feed(&mut self, piece: &LogPiece) -> Vec<String> {
        if piece.missing > 0 {
            if let Some(reader) = &mut self.reader {
                reader.gap();
            }
            return vec![format!("… {} bytes are not kept …", piece.missing)];
        }
        if let Some(reader) = &mut self.reader {
            let stream = match piece.stream {
                LogStream::Out => agent::Stream::Out,
                LogStream::Err => agent::Stream::Err,
            };
            let mut events = Vec::new();
            reader.feed(stream, &piece.bytes, &mut events);
            return events.iter().map(|e| safe::line(&agent::describe(e))).collect();
        }
        let mut lines = Vec::new();
        for part in piece.bytes.split_inclusive(|b| *b == b'\n') {
            self.held.extend_from_slice(part);
            if part.ends_with(b"\n") || self.held.len() > 1 << 16 {
                lines.extend(self.finish());
            }
        }
        lines
    }

    /// What is left when nothing more comes.
    pub fn finish(&mut self) -> Option<String> {
        if self.held.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.held);
        let text = String::from_utf8_lossy(&bytes);
        // Of a progress bar only the last state is worth a line.
        let text = text.trim_end_matches(['\n', '\r']);
        Some(safe::line(text.rsplit('\r').next().unwrap_or(text)))
    }
}

/// Prints what happens in a run in the foreground: one line per fact, on standard error.
pub(super) struct Printer {
    color: bool,
    width: usize,
}

impl Printer {
    pub(super) fn of(how: &How) -> Option<Self> {
        match how {
            How::Background | How::Foreground { verbose: true, .. } => None,
            How::Foreground { .. } => {
                let color = io::stderr().is_terminal() && !Surroundings::from_env().no_color;
                Some(Self { color, width: 0 })
            }
        }
    }

    pub(super) fn line(&mut self, board: &Board, line: &JournalLine) {
        let (Some(project), Some(path)) = (&line.project, &line.task) else {
            return self.project_line(line);
        };
        let task = board.tasks.get(&TaskId { project: project.clone(), path: path.clone() });
        let Some((sign, word, code)) = word_of(line.kind) else { return };
        self.width = self.width.max(path.as_str().len());
        let agent = task.and_then(|t| t.plan.as_ref()).map(|p| p.profile_name.clone()).unwrap_or_default();
        let why = safe::line(line.text.lines().next().unwrap_or(""));
        let why = safe::cut(&why, 110);
        let text = match line.kind {
            // One line for a merge: its stages follow each other in moments.
            "merging" if !line.text.starts_with("first of") => return,
            "running" if line.text == "briefed" => agent,
            "running" => format!("{agent}  {why}"),
            "ended" | "merging" => String::new(),
            _ => why.into_owned(),
        };
        let (on, off) = if self.color { (format!("\x1b[{code}m"), "\x1b[0m") } else { (String::new(), "") };
        let (sign, word) = if line.kind == "ended" { ended(&line.text) } else { (sign, word.to_owned()) };
        let row = format!("  {on}{sign} {:width$}  {word:<10}{off}  {text}", path.as_str(), width = self.width);
        let _ = writeln!(io::stderr(), "{}", row.trim_end());
    }

    fn project_line(&self, line: &JournalLine) {
        if matches!(
            line.kind,
            "base_red" | "base_green" | "cycle" | "profile_held" | "target" | "gap" | "not_delivered"
        ) {
            let text = safe::line(&line.text);
            let _ = writeln!(io::stderr(), "  · {}", safe::cut(&text, 160));
        }
    }
}

/// Sign, word and colour of the phases that are worth a line.
fn word_of(kind: &str) -> Option<(&'static str, &'static str, &'static str)> {
    Some(match kind {
        "running" => ("●", "running", "36"),
        "checking" => ("●", "checking", "36"),
        "stopping" => ("●", "stopping", "33"),
        "waiting" => ("?", "needs you", "33"),
        "merging" => ("●", "merging", "36"),
        "backoff" => ("○", "waits", "33"),
        "ended" => ("✓", "ended", "32"),
        _ => return None,
    })
}

fn ended(status: &str) -> (&'static str, String) {
    match status {
        "completed" => ("✓", "merged".to_owned()),
        "aborted" => ("⊘", "aborted".to_owned()),
        other => ("✗", other.to_owned()),
    }
}
