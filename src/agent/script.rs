//! The script agent: runs the commands that a task carries, one after the other, and stops at the first that fails. The
//! commands are arguments of one fixed program and are never pasted into it; a marker line before each lets the reader
//! tell them apart.

use super::launch::{AgentError, CommandLine, Launch};
use super::reader::{Ended, Shared, Stream};
use super::{clip, question};
use crate::domain::verdict::{AgentEvent, Exit, RunEnd, Usage, Verdict};

/// Marker, then the command in a shell of its own; `--` keeps a command that begins with `-` from being an option.
const PROGRAM: &str = r#"for c in "$@"; do printf '$ %s\n' "$c"; /bin/sh -c -- "$c" || exit $?; done"#;

/// What the marker line begins with.
const MARKER: &str = "$ ";

/// Builds the command line. The prompt (on a later attempt: the feedback) is standard input.
pub(super) fn command(launch: &Launch<'_>, line: &mut CommandLine) -> Result<(), AgentError> {
    if launch.script.is_empty() {
        return Err(AgentError::NoCommands);
    }
    line.argv.extend(["/bin/sh", "-c", PROGRAM, "overnight-script"].map(String::from));
    line.argv.extend(launch.script.iter().cloned());
    line.stdin = Some(launch.prompt.as_bytes().to_vec());
    Ok(())
}

/// Reads the output of [`PROGRAM`].
#[derive(Debug, Default)]
pub(super) struct Script {
    running: bool,
}

impl Script {
    pub(super) fn line(&mut self, from: Stream, line: &[u8], shared: &mut Shared, out: &mut Vec<AgentEvent>) {
        let text = clip::printed(line);
        if text.trim().is_empty() {
            return;
        }
        if from == Stream::Out {
            shared.text.push_line(&text);
        }
        match text.strip_prefix(MARKER) {
            Some(command) if from == Stream::Out => {
                if self.running {
                    out.push(AgentEvent::ToolEnd { tool: "sh".into(), ok: true });
                }
                self.running = true;
                out.push(AgentEvent::ToolBegin { tool: "sh".into(), what: clip::event(command) });
            }
            Some(_) | None => out.push(AgentEvent::Text { text: clip::event(&text) }),
        }
    }

    pub(super) fn finish(self, end: &RunEnd, shared: &Shared) -> Ended {
        let verdict = match &end.exit {
            Exit::Exited { code: 0 } => Verdict::Finished,
            Exit::Exited { code } => Verdict::Failed { message: shared.failure(&format!("exit status {code}"), end) },
            Exit::Signalled { .. }
            | Exit::SpawnFailed { .. }
            | Exit::NeverStarted { .. }
            | Exit::DeadMan
            | Exit::Lost => shared.untold(end),
        };
        let usage = Usage { cost: Some(0.0), turns: 1, known: true, ..Usage::default() };
        Ended { verdict, usage, session_total: None, asks: question::marked(&shared.text.get()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::launch::tests::launch;
    use super::super::reader::tests::{end, read};
    use super::super::{Launch, command};
    use super::*;
    use crate::domain::policy::{AgentKind, Profile};

    #[test]
    fn commands_are_arguments() {
        let p = Profile::bare(AgentKind::Script);
        let script = ["echo \"$HOME\"; rm -rf '/x'".to_owned(), "-x".to_owned()];
        let line = command(&Launch { script: &script, prompt: "feedback", attempt: 2, ..launch(&p) }).expect("command");
        assert_eq!(line.argv[..4], ["/bin/sh", "-c", PROGRAM, "overnight-script"]);
        assert_eq!(line.argv[4..], script);
        assert_eq!(line.stdin.as_deref(), Some(b"feedback".as_slice()));
        assert_eq!(line.env.get("OVERNIGHT_ATTEMPT").map(String::as_str), Some("2"));
        assert_eq!(command(&launch(&p)), Err(AgentError::NoCommands));
    }

    #[test]
    fn output_and_exit_make_the_verdict() {
        let out = "$ echo one\none\n$ false\nboom\n";
        let (events, report) = read(AgentKind::Script, out, "", &end(Exit::Exited { code: 1 }, out));
        assert!(
            matches!(&report.verdict, Verdict::Failed { message } if message.contains("exit status 1") && message.ends_with("boom")),
            "{report:?}"
        );
        assert_eq!(events[0], AgentEvent::ToolBegin { tool: "sh".into(), what: "echo one".into() });
        assert_eq!(events[2], AgentEvent::ToolEnd { tool: "sh".into(), ok: true });
        let out = "$ ask\nQUESTION: Which colour?\n";
        let (_, report) = read(AgentKind::Script, out, "$ noise\n", &end(Exit::Exited { code: 0 }, out));
        assert_eq!((report.verdict, report.asks.as_deref()), (Verdict::Finished, Some("Which colour?")));
        assert_eq!(report.usage.cost, Some(0.0));
        let (_, report) = read(AgentKind::Script, "", "", &end(Exit::Exited { code: 75 }, ""));
        assert_eq!(report.verdict.word(), "agent_error");
        let (_, report) = read(AgentKind::Script, "", "", &end(Exit::Signalled { signal: 9 }, ""));
        assert_eq!(report.verdict.word(), "crashed");
    }
}
