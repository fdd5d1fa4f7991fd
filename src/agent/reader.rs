//! The reader of one agent run: splits both streams into lines, gives each to the adapter, and makes the report when the
//! child has ended. Its memory is bounded whatever is printed, and no input can make it panic.

use super::claude::Claude;
use super::codex::Codex;
use super::custom::Custom;
use super::lines::{Lines, Long};
use super::script::Script;
use super::{clip, failure};
use crate::domain::policy::{AgentKind, OutputFormat, Profile};
use crate::domain::verdict::{AgentEvent, AgentReport, Exit, RunEnd, Usage, Verdict};

/// Which of a child's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

/// Reads one run. Feed it every byte in order, then finish it with the run's end.
#[derive(Debug)]
pub struct Reader {
    out: Lines,
    err: Lines,
    agent: Agent,
    shared: Shared,
}

/// The longest JSON line that is read; lines of 2 MB were seen.
const JSON_LINE: usize = 8 << 20;
/// Plain text is read in pieces of at most so many bytes.
const TEXT_LINE: usize = 64 << 10;

#[derive(Debug)]
enum Agent {
    Claude(Box<Claude>),
    Codex(Box<Codex>),
    Custom(Box<Custom>),
    Script(Script),
}

/// What all adapters keep while they read.
#[derive(Debug)]
pub(super) struct Shared {
    /// The agent's last words.
    pub(super) text: clip::Tail,
    /// The end of standard error.
    pub(super) err: clip::Tail,
    /// Totals of the session before this run.
    pub(super) previous: Option<Usage>,
    session: Option<String>,
    gap: bool,
    after_gap: bool,
}

/// What an adapter concludes.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) verdict: Verdict,
    pub(super) usage: Usage,
    pub(super) session_total: Option<Usage>,
    pub(super) asks: Option<String>,
}

impl Reader {
    /// A reader for a run of `profile`. `previous_total` is the `session_total` of the session's last report when the
    /// run goes on with a session.
    pub fn new(kind: AgentKind, profile: &Profile, previous_total: Option<Usage>) -> Self {
        let json = match kind {
            AgentKind::Claude | AgentKind::Codex => true,
            AgentKind::Custom => profile.output != OutputFormat::Text,
            AgentKind::Script => false,
        };
        let out = if json { Lines::new(JSON_LINE, Long::Drop) } else { Lines::new(TEXT_LINE, Long::Split) };
        let agent = match kind {
            AgentKind::Claude => Agent::Claude(Box::default()),
            AgentKind::Codex => Agent::Codex(Box::default()),
            AgentKind::Custom => Agent::Custom(Box::new(Custom::new(&profile.output))),
            AgentKind::Script => Agent::Script(Script::default()),
        };
        let shared = Shared {
            text: clip::Tail::new(clip::TEXT),
            err: clip::Tail::new(clip::STDERR),
            previous: previous_total,
            session: None,
            gap: false,
            after_gap: false,
        };
        Self { out, err: Lines::new(TEXT_LINE, Long::Split), agent, shared }
    }

    /// Reads some bytes of one stream, cut anywhere, and appends what they tell to `out`.
    pub fn feed(&mut self, stream: Stream, bytes: &[u8], out: &mut Vec<AgentEvent>) {
        let Self { out: stdout, err: stderr, agent, shared } = self;
        let lines = match stream {
            Stream::Out => stdout,
            Stream::Err => stderr,
        };
        lines.feed(bytes, |line| agent.line(stream, line, shared, out));
    }

    /// Output was left out here: an unfinished line is forgotten, and a missing result will be explained by it.
    pub fn gap(&mut self) {
        self.out.gap();
        self.err.gap();
        self.shared.gap = true;
        self.shared.after_gap = true;
    }

    /// Lines that were too long to be read.
    pub fn dropped_lines(&self) -> u64 {
        self.out.dropped()
    }

    /// What the stream and the end say together. Unterminated last lines are read here.
    pub fn finish(mut self, end: &RunEnd) -> AgentReport {
        let mut rest = Vec::new();
        for (stream, line) in [(Stream::Out, self.out.end()), (Stream::Err, self.err.end())] {
            if let Some(line) = line {
                self.agent.line(stream, &line, &mut self.shared, &mut rest);
            }
        }
        self.shared.gap |= self.out.dropped() > 0;
        let shared = &self.shared;
        let ended = match self.agent {
            Agent::Claude(agent) => agent.finish(end, shared),
            Agent::Codex(agent) => agent.finish(end, shared),
            Agent::Custom(agent) => agent.finish(end, shared),
            Agent::Script(agent) => agent.finish(end, shared),
        };
        // A session that does not exist is none to go on with.
        let lost = ended.verdict == Verdict::SessionLost;
        AgentReport {
            session: if lost { None } else { shared.session.clone() },
            text: shared.text.get(),
            asks: if ended.verdict == Verdict::Finished { ended.asks } else { None },
            verdict: ended.verdict,
            usage: ended.usage,
            session_total: if lost { None } else { ended.session_total },
        }
    }

    /// Bytes of buffers held now.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.out.capacity() + self.err.capacity() + self.shared.text.held() + self.shared.err.held()
    }
}

impl Agent {
    fn line(&mut self, stream: Stream, line: &[u8], shared: &mut Shared, out: &mut Vec<AgentEvent>) {
        if stream == Stream::Err {
            let text = clip::printed(line);
            if !text.trim().is_empty() {
                shared.err.push_line(&text);
            }
        }
        match (self, stream) {
            (Self::Claude(agent), Stream::Out) => agent.line(line, shared, out),
            (Self::Codex(agent), Stream::Out) => agent.line(line, shared, out),
            (Self::Claude(_), Stream::Err) => shared.complaint(line, out),
            (Self::Codex(agent), Stream::Err) => agent.complaint(line, shared, out),
            (Self::Custom(agent), Stream::Out | Stream::Err) => agent.line(stream, line, shared, out),
            (Self::Script(agent), Stream::Out | Stream::Err) => agent.line(stream, line, shared, out),
        }
    }
}

impl Shared {
    /// Takes a session id over, once per id; one that could not stand on a command line is none.
    pub(super) fn session(&mut self, id: &str, model: Option<&str>, out: &mut Vec<AgentEvent>) {
        if clip::is_id(id) && self.session.as_deref() != Some(id) {
            self.session = Some(id.to_owned());
            out.push(AgentEvent::Session { id: id.to_owned(), model: model.map(clip::event) });
        }
    }

    /// A line of standard output that is no JSON: shown, unless it is the fragment after a gap.
    pub(super) fn unreadable(&mut self, line: &[u8], out: &mut Vec<AgentEvent>) {
        let text = clip::printed(line);
        if !std::mem::take(&mut self.after_gap) && !text.trim().is_empty() {
            out.push(AgentEvent::Text { text: clip::event(&text) });
        }
    }

    /// A line of standard error of a CLI whose words are on standard output.
    pub(super) fn complaint(&mut self, line: &[u8], out: &mut Vec<AgentEvent>) {
        let text = clip::printed(line);
        if !text.trim().is_empty() {
            out.push(AgentEvent::Error { message: clip::event(&text) });
        }
    }

    /// `what`, and the end of the output.
    pub(super) fn failure(&self, what: &str, end: &RunEnd) -> String {
        let (err, text) = (self.err.get(), self.text.get());
        let output = [end.tail.trim(), err.as_str(), text.as_str()].into_iter().find(|t| !t.is_empty()).unwrap_or("");
        let room = clip::EVENT.saturating_sub(what.len() + 2);
        if output.is_empty() { what.to_owned() } else { format!("{what}: {}", clip::tail(output, room)) }
    }

    /// The verdict of a run that ended without telling a result.
    pub(super) fn untold(&self, end: &RunEnd) -> Verdict {
        let err = self.err.get();
        let why = match &end.exit {
            Exit::SpawnFailed { error } => return Verdict::SpawnFailed { message: clip::event(error) },
            Exit::DeadMan => return Verdict::Stopped,
            Exit::NeverStarted { why } => format!("could not begin: {why}"),
            Exit::Lost => "its end was not recorded: its shim is gone too".to_owned(),
            Exit::Signalled { signal } => format!("ended by signal {signal} without a result"),
            Exit::Exited { code } => {
                if *code != 0
                    && let Some(verdict) = failure::classify(&err)
                {
                    return verdict;
                }
                if *code != 0 && refused_to_start(&err) {
                    return Verdict::SpawnFailed { message: clip::event(&err) };
                }
                if *code != 0 && self.session.is_none() && !err.is_empty() {
                    let message = format!("exit status {code}: {}", clip::tail(&err, clip::EVENT - 32));
                    return Verdict::Failed { message };
                }
                format!("exit status {code} without a result")
            }
        };
        let gap = if self.gap { " (a part of the output was left out, and perhaps the result with it)" } else { "" };
        let last = if err.is_empty() { String::new() } else { format!(": {}", clip::tail(&err, clip::EVENT - 256)) };
        Verdict::Crashed { message: format!("{why}{gap}{last}") }
    }

    /// The child itself ended and not well: not by the dead-man limit, nor out of sight.
    pub(super) fn gave_up(end: &RunEnd) -> bool {
        match end.exit {
            Exit::Exited { code } => code != 0,
            Exit::Signalled { .. } => true,
            Exit::SpawnFailed { .. } | Exit::NeverStarted { .. } | Exit::DeadMan | Exit::Lost => false,
        }
    }

    /// A line was understood: what follows is in step again.
    pub(super) fn in_step(&mut self) {
        self.after_gap = false;
    }
}

/// A CLI that does not take its own command line, place or user would not take them for any other task either.
fn refused_to_start(err: &str) -> bool {
    [
        "cannot be used with root/sudo privileges",
        "Not inside a trusted directory",
        "error: unknown option",
        "error: unexpected argument",
        "error: unrecognized subcommand",
        "Error loading config",
    ]
    .iter()
    .any(|phrase| err.contains(phrase))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::Duration;

    pub(in crate::agent) fn end(exit: Exit, tail: &str) -> RunEnd {
        let tail = tail.to_owned();
        RunEnd { exit, took: Duration::from_secs(1), survivors: Vec::new(), tail, bytes: 0, cut: 0 }
    }

    pub(in crate::agent) fn read(
        kind: AgentKind,
        out: &str,
        err: &str,
        end: &RunEnd,
    ) -> (Vec<AgentEvent>, AgentReport) {
        read_with(&Profile::bare(kind), out, err, end)
    }

    pub(in crate::agent) fn read_with(
        p: &Profile,
        out: &str,
        err: &str,
        end: &RunEnd,
    ) -> (Vec<AgentEvent>, AgentReport) {
        let mut reader = Reader::new(p.kind, p, None);
        let mut events = Vec::new();
        reader.feed(Stream::Out, out.as_bytes(), &mut events);
        reader.feed(Stream::Err, err.as_bytes(), &mut events);
        (events, reader.finish(end))
    }

    #[test]
    fn memory_is_bounded_for_a_line_of_50_mb() {
        for kind in AgentKind::ALL {
            for (chunk, times) in [("x", 800), ("12%\r", 20), ("{\"a\":[", 150)] {
                let chunk = chunk.repeat((64 << 10) / chunk.len()).into_bytes();
                let mut reader = Reader::new(kind, &Profile::bare(kind), None);
                let mut events = Vec::new();
                for stream in [Stream::Out, Stream::Err] {
                    for _ in 0..times {
                        reader.feed(stream, &chunk, &mut events);
                        assert!(reader.held() <= (16 << 20) + (256 << 10), "{kind:?}: {}", reader.held());
                        assert!(events.len() <= 2 && events.iter().all(|e| format!("{e:?}").len() < 4 * clip::EVENT));
                        events.clear();
                    }
                    reader.feed(stream, b"\n", &mut events);
                }
                assert!(reader.held() <= 512 << 10, "{kind:?} holds {} after the line", reader.held());
                let report = reader.finish(&end(Exit::Exited { code: 0 }, ""));
                assert!(report.text.len() <= clip::TEXT);
            }
        }
    }

    #[test]
    fn how_a_run_without_a_result_ended() {
        for kind in [AgentKind::Claude, AgentKind::Codex] {
            let table = [
                (Exit::Exited { code: 0 }, "", "crashed"),
                (Exit::Exited { code: 143 }, "", "crashed"),
                (Exit::Signalled { signal: 15 }, "", "crashed"),
                (Exit::Lost, "", "crashed"),
                (Exit::DeadMan, "", "stopped"),
                (Exit::SpawnFailed { error: "claude: not found".into() }, "", "spawn_error"),
                (Exit::Exited { code: 1 }, "boom", "agent_error"),
                (Exit::Exited { code: 1 }, "error: unknown option '--verbose'", "spawn_error"),
                (Exit::Exited { code: 1 }, "--x cannot be used with root/sudo privileges for security", "spawn_error"),
                (Exit::Exited { code: 1 }, "Please run /login", "login_needed"),
                (Exit::Exited { code: 0 }, "Please run /login", "crashed"),
            ];
            for (exit, err, word) in table {
                let (_, report) = read(kind, "", err, &end(exit.clone(), err));
                assert_eq!(report.verdict.word(), word, "{kind:?} {exit:?} {err}");
                assert!(!report.usage.known);
            }
        }
    }

    #[test]
    fn a_gap_is_told_and_its_fragment_is_not_shown() {
        let p = Profile::bare(AgentKind::Codex);
        let mut reader = Reader::new(p.kind, &p, None);
        let mut events = Vec::new();
        reader.feed(
            Stream::Out,
            b"{\"type\":\"thread.started\",\"thread_id\":\"t1\"}\n{\"type\":\"turn.c",
            &mut events,
        );
        reader.gap();
        reader.feed(Stream::Out, b"ompleted\"}\n", &mut events);
        assert_eq!(events, [AgentEvent::Session { id: "t1".into(), model: None }]);
        let report = reader.finish(&end(Exit::Exited { code: 0 }, ""));
        assert!(matches!(&report.verdict, Verdict::Crashed { message } if message.contains("left out")), "{report:?}");
    }
}
