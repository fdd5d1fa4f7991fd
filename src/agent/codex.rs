//! Codex in exec mode: `codex exec --json`. The format is the vendor's and is described by recorded runs
//! (`tests/transcripts/codex`); the turn's last line is the only proof of an end, failures are told in words, and token
//! counts run over the whole thread.

use super::json::{self, List, Obj, Scalar};
use super::launch::{CommandLine, Launch};
use super::reader::{Ended, Shared};
use super::{clip, failure, question};
use crate::domain::verdict::{AgentEvent, RunEnd, Usage, Verdict};
use serde::Deserialize;
use std::collections::VecDeque;

/// The account, the endpoint and its settings.
const PASS: [&str; 4] = ["CODEX_API_KEY", "CODEX_HOME", "OPENAI_API_KEY", "OPENAI_BASE_URL"];

/// Items whose begin is remembered until they end.
const ITEMS: usize = 64;

/// Builds the command line. The profile's arguments stand before `resume`, where the options of `exec` belong.
pub(super) fn command(launch: &Launch<'_>, line: &mut CommandLine) {
    let profile = launch.profile;
    let mut argv: Vec<String> = vec![profile.bin.clone()];
    argv.extend(
        [
            "exec",
            "--json",
            "--dangerously-bypass-approvals-and-sandbox",
            "-c",
            "check_for_update_on_startup=false",
            "-c",
            "analytics.enabled=false",
        ]
        .map(String::from),
    );
    if let Some(model) = launch.model {
        argv.extend(["-m".to_owned(), model.to_owned()]);
    }
    argv.extend(profile.args.iter().cloned());
    if let Some(session) = launch.session {
        argv.extend(["resume".to_owned(), session.to_owned()]);
    }
    argv.push("-".into());
    line.argv = argv;
    line.env_pass.extend(PASS.map(String::from));
    line.stdin = Some(launch.prompt.as_bytes().to_vec());
}

/// Reads the stream.
#[derive(Debug, Default)]
pub(super) struct Codex {
    /// Items that have begun and not ended.
    begun: VecDeque<String>,
    told: Option<Verdict>,
    turns: u32,
    /// The thread's running total.
    total: Option<Usage>,
    denied: Option<String>,
    /// The failure that the CLI was retrying when last heard.
    retrying: Option<Verdict>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    r#type: Scalar,
    thread_id: Scalar,
    item: Obj<Item>,
    message: Scalar,
    error: Obj<ErrorText>,
    usage: Obj<Tokens>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Item {
    id: Scalar,
    r#type: Scalar,
    text: Scalar,
    message: Scalar,
    command: Scalar,
    exit_code: Scalar,
    status: Scalar,
    changes: List<Obj<Change>>,
    server: Scalar,
    tool: Scalar,
    query: Scalar,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Change {
    path: Scalar,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ErrorText {
    message: Scalar,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Tokens {
    input_tokens: Scalar,
    cached_input_tokens: Scalar,
    output_tokens: Scalar,
}

impl Codex {
    pub(super) fn line(&mut self, line: &[u8], shared: &mut Shared, out: &mut Vec<AgentEvent>) {
        let Some(line) = json::line::<Line>(line) else { return shared.unreadable(line, out) };
        shared.in_step();
        match line.r#type.text() {
            Some("thread.started") => {
                if let Some(id) = line.thread_id.text() {
                    shared.session(id, None, out);
                }
            }
            Some("item.started") => self.begin(&line.item.0, out),
            Some("item.completed") => self.complete(&line.item.0, shared, out),
            Some("error") => {
                let message = clip::event(line.message.text().unwrap_or("an error without words"));
                if message.starts_with("Reconnecting...") {
                    self.retrying = failure::classify(&message).or(Some(Verdict::Overloaded));
                    out.push(AgentEvent::Retry { reason: message });
                } else {
                    out.push(AgentEvent::Error { message });
                }
            }
            Some("turn.completed") => self.completed(&line.usage.0, shared, out),
            Some("turn.failed") => {
                let message = clip::event(line.error.0.message.text().unwrap_or("the CLI gave no reason"));
                self.told = Some(failure::classify(&message).unwrap_or(Verdict::Failed { message }));
                out.push(AgentEvent::Result { ok: false });
            }
            // Kinds of lines come and go with versions; the rest is chatter.
            Some(_) | None => {}
        }
    }

    /// A line of standard error: the sandbox's refusals appear nowhere else.
    pub(super) fn complaint(&mut self, line: &[u8], shared: &mut Shared, out: &mut Vec<AgentEvent>) {
        let text = clip::printed(line);
        if text.contains("Reading additional input from stdin") || text.contains("Reading prompt from stdin") {
            return;
        }
        if text.contains("rejected by user approval settings") {
            let what = text.rsplit_once("error=").map_or(text.as_str(), |(_, what)| what);
            self.denied = Some(clip::event(what));
        }
        shared.complaint(line, out);
    }

    fn begin(&mut self, item: &Item, out: &mut Vec<AgentEvent>) {
        let Some((tool, what)) = item.tool() else { return };
        if let Some(id) = item.id.text() {
            if self.begun.len() == ITEMS {
                self.begun.pop_front();
            }
            self.begun.push_back(clip::head(id, 200));
        }
        out.push(AgentEvent::ToolBegin { tool, what });
    }

    fn complete(&mut self, item: &Item, shared: &mut Shared, out: &mut Vec<AgentEvent>) {
        self.retrying = None;
        if let Some((tool, what)) = item.tool() {
            let id = clip::head(item.id.text().unwrap_or_default(), 200);
            match self.begun.iter().position(|known| *known == id) {
                Some(at) => drop(self.begun.remove(at)),
                None => out.push(AgentEvent::ToolBegin { tool: tool.clone(), what }),
            }
            out.push(AgentEvent::ToolEnd { tool, ok: item.went_well() });
            return;
        }
        match item.r#type.text() {
            Some("agent_message") => {
                let text = item.text.text().unwrap_or_default();
                if !text.trim().is_empty() {
                    shared.text.set(text);
                }
                out.push(AgentEvent::Text { text: clip::event(text) });
            }
            Some("error") => {
                let message = clip::event(item.message.text().unwrap_or("an error without words"));
                out.push(AgentEvent::Error { message });
            }
            Some(_) | None => {}
        }
    }

    fn completed(&mut self, tokens: &Tokens, shared: &Shared, out: &mut Vec<AgentEvent>) {
        self.turns = self.turns.saturating_add(1);
        if let Some(input) = tokens.input_tokens.uint() {
            let cached = tokens.cached_input_tokens.uint().unwrap_or(0);
            self.total = Some(Usage {
                input: input.saturating_sub(cached),
                cached,
                output: tokens.output_tokens.uint().unwrap_or(0),
                cost: None,
                turns: shared.previous.map_or(0, |p| p.turns).saturating_add(self.turns),
                known: true,
            });
        }
        self.told = Some(Verdict::Finished);
        out.push(AgentEvent::Usage { usage: self.run_usage(shared) });
        out.push(AgentEvent::Result { ok: true });
    }

    /// This run's use as the difference of the thread's totals; a total below the one before began anew.
    fn run_usage(&self, shared: &Shared) -> Usage {
        let Some(total) = self.total else { return Usage { turns: self.turns, ..Usage::default() } };
        let before = shared.previous.unwrap_or_default();
        let all = |u: &Usage| u.input.saturating_add(u.cached);
        let grown = all(&total) >= all(&before) && total.output >= before.output;
        let before = if grown { before } else { Usage::default() };
        Usage {
            input: total.input.saturating_sub(before.input),
            cached: total.cached.saturating_sub(before.cached),
            output: total.output.saturating_sub(before.output),
            turns: self.turns,
            ..total
        }
    }

    pub(super) fn finish(self, end: &RunEnd, shared: &Shared) -> Ended {
        let usage = self.run_usage(shared);
        let session_total = self.total.or(shared.previous);
        let verdict = match (self.told, self.denied, self.retrying) {
            (Some(Verdict::Finished), Some(what), _) => Verdict::PermissionDenied { what },
            (Some(told), _, _) => told,
            // Stopped by a clock while it retried for ever: the cause is what it retried.
            (None, _, Some(retrying)) if Shared::gave_up(end) => retrying,
            (None, _, _) => shared.untold(end),
        };
        Ended { verdict, usage, session_total, asks: question::asks(&shared.text.get()) }
    }
}

impl Item {
    /// The tool that an item stands for and what it works on.
    fn tool(&self) -> Option<(String, String)> {
        let (tool, what) = match self.r#type.text()? {
            "command_execution" => ("shell".to_owned(), self.command.text().unwrap_or_default().to_owned()),
            "file_change" => {
                let paths: Vec<_> = self.changes.0.iter().filter_map(|c| c.0.path.text()).collect();
                ("edit".to_owned(), paths.join(", "))
            }
            "mcp_tool_call" => {
                let (server, tool) = (self.server.text().unwrap_or("mcp"), self.tool.text().unwrap_or("tool"));
                (clip::head(&format!("{server}.{tool}"), 100), String::new())
            }
            "web_search" => ("search".to_owned(), self.query.text().unwrap_or_default().to_owned()),
            _ => return None,
        };
        Some((tool, clip::event(&what)))
    }

    fn went_well(&self) -> bool {
        let failed = ["failed", "declined", "error"].iter().any(|word| self.status.is(word));
        let code = match self.exit_code {
            Scalar::Uint(code) => code == 0,
            Scalar::Num(_) => false,
            Scalar::None | Scalar::Bool(_) | Scalar::Text(_) | Scalar::Other => true,
        };
        !failed && code
    }
}

#[cfg(test)]
mod tests {
    use super::super::launch::tests::launch;
    use super::super::reader::tests::{end, read};
    use super::super::{Launch, command};
    use super::*;
    use crate::domain::policy::{AgentKind, Profile};
    use crate::domain::verdict::Exit;

    const HEAD: &str = "codex exec --json --dangerously-bypass-approvals-and-sandbox -c check_for_update_on_startup=false -c analytics.enabled=false";

    #[test]
    fn a_new_and_a_resumed_run() {
        let p = Profile { env_pass: vec!["SCRIPTED_KEY".into()], ..Profile::bare(AgentKind::Codex) };
        let base = Launch { model: Some("gpt-5.5"), prompt: "- first", ..launch(&p) };
        let line = command(&base).expect("command");
        assert_eq!(line.argv.join(" "), format!("{HEAD} -m gpt-5.5 -"));
        assert_eq!(line.stdin.as_deref(), Some(b"- first".as_slice()));
        for name in ["CODEX_HOME", "OPENAI_API_KEY", "SCRIPTED_KEY"] {
            assert!(line.env_pass.iter().any(|n| n == name), "{name}");
        }
        assert!(!line.env.contains_key("IS_SANDBOX"));
        let p = Profile { args: vec!["-p".into(), "night".into()], ..p.clone() };
        let line = command(&Launch { profile: &p, session: Some("01a22e9b-ce25"), ..base }).expect("command");
        assert_eq!(line.argv.join(" "), format!("{HEAD} -m gpt-5.5 -p night resume 01a22e9b-ce25 -"));
    }

    #[test]
    fn a_retry_for_ever_names_its_cause() {
        let out = concat!(
            r#"{"type":"thread.started","thread_id":"t1"}"#,
            "\n",
            r#"{"type":"error","message":"Reconnecting... waiting for network (Connection failed: error sending request)"}"#,
            "\n",
        );
        let stopped = end(Exit::Signalled { signal: 15 }, "");
        assert_eq!(read(AgentKind::Codex, out, "", &stopped).1.verdict, Verdict::Overloaded);
        let healed =
            format!("{out}{}", r#"{"type":"item.completed","item":{"id":"i","type":"agent_message","text":"x"}}"#);
        assert_eq!(read(AgentKind::Codex, &healed, "", &stopped).1.verdict.word(), "crashed");
    }
}
