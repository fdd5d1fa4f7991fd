//! Claude Code in print mode: `claude -p --output-format stream-json`. The format is the vendor's and is described by
//! recorded runs (`tests/transcripts/claude`); a result line is the only proof of an end, and its `subtype` says
//! "success" for most failures, so the verdict rests on `is_error`, `terminal_reason` and `api_error_status`.

use super::json::{self, List, Obj, Scalar};
use super::launch::{CommandLine, Launch};
use super::reader::{Ended, Shared};
use super::{clip, failure, question};
use crate::domain::time::Wall;
use crate::domain::verdict::{AgentEvent, RunEnd, Usage, Verdict};
use serde::Deserialize;
use std::collections::{BTreeMap, VecDeque};

/// Turns of one run where the profile names no number: the CLI loops for ever on tool calls that it cannot parse.
const MAX_TURNS: u32 = 300;

/// The account, the endpoint and its ways; not what Claude Code sets for the tools of an outer run.
const PASS: [&str; 13] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_BETAS",
    "ANTHROPIC_CUSTOM_HEADERS",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CONFIG_DIR",
    "NODE_EXTRA_CA_CERTS",
];

/// Tools that change files.
const EDITS: [&str; 4] = ["Write", "Edit", "MultiEdit", "NotebookEdit"];

/// Tool calls whose names are remembered until they end.
const CALLS: usize = 64;

/// Builds the command line.
pub(super) fn command(launch: &Launch<'_>, line: &mut CommandLine) {
    let profile = launch.profile;
    let mut argv: Vec<String> = vec![profile.bin.clone()];
    argv.extend(
        ["-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"].map(String::from),
    );
    if let Some(model) = launch.model {
        argv.extend(["--model".to_owned(), model.to_owned()]);
    }
    argv.extend(["--max-turns".to_owned(), profile.max_turns.unwrap_or(MAX_TURNS).to_string()]);
    if let Some(session) = launch.session {
        argv.extend(["--resume".to_owned(), session.to_owned()]);
    }
    argv.extend(profile.args.iter().cloned());
    line.argv = argv;
    for name in [
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
        "DISABLE_AUTOUPDATER",
        "DISABLE_ERROR_REPORTING",
        "DISABLE_TELEMETRY",
    ] {
        line.env.insert(name.into(), "1".into());
    }
    if launch.is_root {
        line.env.insert("IS_SANDBOX".into(), "1".into());
    }
    line.env_pass.extend(PASS.map(String::from));
    line.stdin = Some(launch.prompt.as_bytes().to_vec());
}

/// Reads the stream.
#[derive(Debug, Default)]
pub(super) struct Claude {
    /// Tool calls that have not ended: id and name.
    calls: VecDeque<(String, String)>,
    told: Option<Verdict>,
    usage: Usage,
    /// `total_cost_usd` of the last result: the session's running total.
    total_cost: Option<f64>,
    /// Prices of this run alone, where told.
    own_cost: Option<f64>,
    limit_until: Option<Wall>,
    limit_rejected: bool,
    billing: bool,
    /// The failure that the CLI was retrying when last heard.
    retrying: Option<Verdict>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    r#type: Scalar,
    subtype: Scalar,
    session_id: Scalar,
    model: Scalar,
    parent_tool_use_id: Scalar,
    message: Obj<Message>,
    tool_name: Scalar,
    // api_retry; `error` also on assistant lines that the CLI made itself
    error: Scalar,
    error_status: Scalar,
    attempt: Scalar,
    max_retries: Scalar,
    rate_limit_info: Obj<LimitInfo>,
    // result
    is_error: Scalar,
    result: Scalar,
    errors: List<Scalar>,
    terminal_reason: Scalar,
    stop_reason: Scalar,
    api_error: Scalar,
    api_error_status: Scalar,
    num_turns: Scalar,
    total_cost_usd: Scalar,
    usage: Obj<Tokens>,
    model_usage_since_last_result: Obj<BTreeMap<String, Obj<ModelTokens>>>,
    permission_denials: List<Obj<Call>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Message {
    content: List<Obj<Block>>,
}

/// One block of a message's content.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Block {
    r#type: Scalar,
    text: Scalar,
    id: Scalar,
    name: Scalar,
    input: Obj<Input>,
    tool_use_id: Scalar,
    is_error: Scalar,
}

/// A denied call.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Call {
    tool_name: Scalar,
    tool_input: Obj<Input>,
}

/// What tools work on, the fields that say most.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Input {
    file_path: Scalar,
    notebook_path: Scalar,
    command: Scalar,
    pattern: Scalar,
    path: Scalar,
    url: Scalar,
    query: Scalar,
    description: Scalar,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Tokens {
    input_tokens: Scalar,
    cache_creation_input_tokens: Scalar,
    cache_read_input_tokens: Scalar,
    output_tokens: Scalar,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ModelTokens {
    input_tokens: Scalar,
    cache_creation_input_tokens: Scalar,
    cache_read_input_tokens: Scalar,
    output_tokens: Scalar,
    #[serde(rename = "costUSD")]
    cost: Scalar,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LimitInfo {
    status: Scalar,
    #[serde(rename = "resetsAt")]
    resets_at: Scalar,
}

impl Claude {
    pub(super) fn line(&mut self, line: &[u8], shared: &mut Shared, out: &mut Vec<AgentEvent>) {
        let Some(line) = json::line::<Line>(line) else { return shared.unreadable(line, out) };
        shared.in_step();
        let lost = line.r#type.is("result") && self.judge(&line) == Verdict::SessionLost;
        if !lost && let Some(id) = line.session_id.text() {
            shared.session(id, line.model.text(), out);
        }
        match line.r#type.text() {
            Some("system") => self.system(&line, out),
            Some("rate_limit_event") => self.limit(&line.rate_limit_info.0, out),
            Some("assistant") => self.assistant(&line, shared, out),
            Some("user") => self.user(&line, out),
            Some("result") => self.result(&line, shared, out),
            // Kinds of lines come and go with versions; the rest is chatter.
            Some(_) | None => {}
        }
    }

    fn system(&mut self, line: &Line, out: &mut Vec<AgentEvent>) {
        match line.subtype.text() {
            Some("api_retry") => {
                let error = line.error.text().unwrap_or("error");
                let status = line.error_status.uint();
                self.retrying = status
                    .and_then(|s| failure::by_status(s, error))
                    .or_else(|| failure::classify(error))
                    .or(Some(Verdict::Overloaded));
                let status = status.map(|s| format!("{s} ")).unwrap_or_default();
                let (attempt, of) = (line.attempt.uint().unwrap_or(0), line.max_retries.uint().unwrap_or(0));
                out.push(AgentEvent::Retry { reason: clip::event(&format!("{status}{error}, {attempt} of {of}")) });
            }
            Some("permission_denied") => {
                let tool = line.tool_name.text().unwrap_or("a tool");
                out.push(AgentEvent::Error { message: clip::event(&format!("permission denied: {tool}")) });
            }
            Some(_) | None => {}
        }
    }

    fn limit(&mut self, info: &LimitInfo, out: &mut Vec<AgentEvent>) {
        if info.status.is("rejected") {
            self.limit_rejected = true;
            self.limit_until = info.resets_at.uint().and_then(failure::epoch);
            // It may wait for the reset in silence, and be stopped for that.
            self.retrying = Some(Verdict::UsageLimit { until: self.limit_until });
            out.push(AgentEvent::Error { message: "the account's limit is reached".into() });
        }
    }

    fn assistant(&mut self, line: &Line, shared: &mut Shared, out: &mut Vec<AgentEvent>) {
        self.billing |= line.error.is("billing_error");
        if line.error == Scalar::None {
            self.retrying = None;
        }
        for Obj(block) in &line.message.0.content.0 {
            match block.r#type.text() {
                Some("text") => {
                    let text = block.text.text().unwrap_or_default();
                    if line.parent_tool_use_id == Scalar::None && !text.trim().is_empty() {
                        shared.text.set(text);
                    }
                    out.push(AgentEvent::Text { text: clip::event(text) });
                }
                Some("tool_use") => {
                    let tool = clip::head(block.name.text().unwrap_or("tool"), 100);
                    if let Some(id) = block.id.text() {
                        if self.calls.len() == CALLS {
                            self.calls.pop_front();
                        }
                        self.calls.push_back((clip::head(id, 200), tool.clone()));
                    }
                    out.push(AgentEvent::ToolBegin { tool, what: block.input.0.what() });
                }
                Some(_) | None => {}
            }
        }
    }

    fn user(&mut self, line: &Line, out: &mut Vec<AgentEvent>) {
        self.retrying = None;
        for Obj(block) in &line.message.0.content.0 {
            if !block.r#type.is("tool_result") {
                continue;
            }
            let id = clip::head(block.tool_use_id.text().unwrap_or_default(), 200);
            let at = self.calls.iter().position(|(known, _)| *known == id);
            let tool = at.and_then(|at| self.calls.remove(at)).map_or_else(|| "tool".to_owned(), |(_, name)| name);
            out.push(AgentEvent::ToolEnd { tool, ok: !block.is_error.yes() });
        }
    }

    fn result(&mut self, line: &Line, shared: &mut Shared, out: &mut Vec<AgentEvent>) {
        self.count(line);
        if let Some(text) = line.result.text()
            && !text.trim().is_empty()
        {
            shared.text.set(text);
        }
        let verdict = self.judge(line);
        out.push(AgentEvent::Usage { usage: self.run_usage(shared) });
        if let Some(message) = verdict.message() {
            out.push(AgentEvent::Error { message: message.to_owned() });
        }
        out.push(AgentEvent::Result { ok: verdict == Verdict::Finished });
        self.told = Some(verdict);
    }

    /// Adds what one result line says of this run; the line's cost is the session's running total.
    fn count(&mut self, line: &Line) {
        let models = &line.model_usage_since_last_result.0;
        let tokens = &line.usage.0;
        let counted: Vec<[u64; 4]> = if models.is_empty() {
            vec![four([
                &tokens.input_tokens,
                &tokens.cache_creation_input_tokens,
                &tokens.cache_read_input_tokens,
                &tokens.output_tokens,
            ])]
        } else {
            let of = |m: &ModelTokens| {
                four([&m.input_tokens, &m.cache_creation_input_tokens, &m.cache_read_input_tokens, &m.output_tokens])
            };
            models.values().map(|Obj(m)| of(m)).collect()
        };
        for [fresh, written, read, output] in counted {
            self.usage.input = self.usage.input.saturating_add(fresh).saturating_add(written);
            self.usage.cached = self.usage.cached.saturating_add(read);
            self.usage.output = self.usage.output.saturating_add(output);
        }
        for Obj(model) in models.values() {
            if let Some(cost) = model.cost.amount() {
                self.own_cost = Some(self.own_cost.unwrap_or(0.0) + cost);
            }
        }
        let turns = line.num_turns.uint().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        self.usage.turns = self.usage.turns.saturating_add(turns);
        self.total_cost = line.total_cost_usd.amount().or(self.total_cost);
        self.usage.known = true;
    }

    /// This run's use, its cost as the difference of the session's totals.
    fn run_usage(&self, shared: &Shared) -> Usage {
        let before = shared.previous.and_then(|p| p.cost);
        let cost = match (self.total_cost, before) {
            (Some(total), Some(before)) if total >= before => Some(total - before),
            // A total below the one before is that of a run that never reached its session.
            (Some(total), _) => Some(self.own_cost.unwrap_or(total)),
            (None, _) => self.own_cost,
        };
        Usage { cost, ..self.usage }
    }

    fn session_total(&self, run: &Usage, shared: &Shared) -> Option<Usage> {
        if !self.usage.known {
            return shared.previous;
        }
        let before = shared.previous.unwrap_or_default();
        let cost = match (self.total_cost, before.cost) {
            (Some(total), Some(before)) => Some(total.max(before)),
            (total, before) => total.or(before),
        };
        Some(Usage {
            input: before.input.saturating_add(run.input),
            output: before.output.saturating_add(run.output),
            cached: before.cached.saturating_add(run.cached),
            cost,
            turns: before.turns.saturating_add(run.turns),
            known: true,
        })
    }

    /// The verdict of one result line.
    fn judge(&self, line: &Line) -> Verdict {
        let reason = line.terminal_reason.text().unwrap_or("completed");
        let message = line.message_text();
        if reason.starts_with("aborted") {
            return Verdict::Crashed { message: format!("the run was interrupted ({})", clip::event(reason)) };
        }
        if !line.is_error.yes() {
            return match denied(&line.permission_denials.0) {
                Some(what) => Verdict::PermissionDenied { what },
                None if reason == "completed" => Verdict::Finished,
                None => Verdict::Failed { message: format!("ended with {}", clip::event(reason)) },
            };
        }
        match (reason, line.subtype.text().unwrap_or_default()) {
            ("max_turns", _) | (_, "error_max_turns") => return Verdict::LimitReached { what: message },
            ("budget_exhausted", _) | (_, "error_max_budget_usd") => return Verdict::LimitReached { what: message },
            ("prompt_too_long", _) => return Verdict::ContextTooLong,
            (_, _) => {}
        }
        match line.api_error.text() {
            Some("usage_limit_reached") => return Verdict::UsageLimit { until: self.until(&message) },
            Some("max_output_tokens") => return Verdict::OutputCut,
            Some("connection_failed") => return Verdict::Overloaded,
            Some(_) | None => {}
        }
        if line.stop_reason.is("refusal") {
            return Verdict::Refused { message };
        }
        if self.billing {
            return Verdict::NoCredit { message };
        }
        // A status says what kind of failure it is; the words say which one, but carry the server's own text.
        let verdict = match line.api_error_status.uint() {
            Some(429) if self.limit_rejected => Some(Verdict::UsageLimit { until: self.until(&message) }),
            Some(status) => failure::by_status(status, &message),
            None => None,
        };
        verdict.or_else(|| failure::classify(&message)).unwrap_or(Verdict::Failed { message })
    }

    fn until(&self, message: &str) -> Option<Wall> {
        self.limit_until.or_else(|| failure::until(message))
    }

    pub(super) fn finish(self, end: &RunEnd, shared: &Shared) -> Ended {
        let usage = self.run_usage(shared);
        let session_total = self.session_total(&usage, shared);
        let verdict = match (self.told, self.retrying) {
            (Some(told), _) => told,
            // Stopped by a clock while it retried for ever: the cause is what it retried.
            (None, Some(retrying)) if Shared::gave_up(end) => retrying,
            (None, _) => shared.untold(end),
        };
        Ended { verdict, usage, session_total, asks: question::asks(&shared.text.get()) }
    }
}

impl Line {
    /// The result's words, or its list of errors.
    fn message_text(&self) -> String {
        let errors: Vec<&str> = self.errors.0.iter().filter_map(Scalar::text).collect();
        let text = self.result.text().filter(|t| !t.trim().is_empty()).map_or_else(|| errors.join("; "), str::to_owned);
        if text.is_empty() { "the CLI gave no reason".to_owned() } else { clip::event(&text) }
    }
}

impl Input {
    fn what(&self) -> String {
        let fields = [
            &self.file_path,
            &self.notebook_path,
            &self.command,
            &self.pattern,
            &self.path,
            &self.url,
            &self.query,
            &self.description,
        ];
        fields.into_iter().find_map(Scalar::text).map(clip::event).unwrap_or_default()
    }
}

/// The denied calls, where an edit is among them. A refused look-up alone does not spoil a run that ended well.
fn denied(calls: &[Obj<Call>]) -> Option<String> {
    let name = |call: &Obj<Call>| call.0.tool_name.text().unwrap_or_default().to_owned();
    if !calls.iter().any(|call| EDITS.contains(&name(call).as_str()) || name(call) == "Bash") {
        return None;
    }
    let list: Vec<_> = calls.iter().map(|call| format!("{} {}", name(call), call.0.tool_input.0.what())).collect();
    Some(clip::event(&list.join(", ")))
}

fn four(values: [&Scalar; 4]) -> [u64; 4] {
    values.map(|v| v.uint().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::launch::tests::launch;
    use super::super::reader::tests::{end, read};
    use super::super::{Launch, command};
    use super::*;
    use crate::domain::policy::{AgentKind, Profile};
    use crate::domain::verdict::Exit;

    #[test]
    fn a_new_run() {
        let p = Profile { max_turns: Some(40), ..Profile::bare(AgentKind::Claude) };
        let base = Launch { model: Some("claude-sonnet-4-5"), prompt: "--help me", ..launch(&p) };
        let line = command(&base).expect("command");
        let argv = "claude -p --output-format stream-json --verbose --dangerously-skip-permissions --model claude-sonnet-4-5 --max-turns 40";
        assert_eq!(line.argv.join(" "), argv);
        assert_eq!(line.stdin.as_deref(), Some(b"--help me".as_slice()));
        let env: Vec<_> = line.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            env.join(" "),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1 DISABLE_ERROR_REPORTING=1 \
             DISABLE_TELEMETRY=1 OVERNIGHT_ATTEMPT=1 TERM=dumb TMPDIR=/run/r1/tmp"
        );
        let own: Vec<_> = line.env_pass.iter().filter(|n| n.starts_with("CLAUDE")).map(String::as_str).collect();
        assert_eq!(own, ["CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CONFIG_DIR"]);
        assert!(["ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"].iter().all(|n| line.env_pass.iter().any(|p| p == n)));
        let line = command(&Launch { is_root: true, ..base }).expect("command");
        assert_eq!(line.env.get("IS_SANDBOX").map(String::as_str), Some("1"));
    }

    #[test]
    fn a_resumed_run() {
        let p = Profile { args: vec!["--add-dir".into(), "/x".into()], ..Profile::bare(AgentKind::Claude) };
        let line = command(&Launch { session: Some("d96df940-1aa5"), ..launch(&p) }).expect("command");
        let argv = "claude -p --output-format stream-json --verbose --dangerously-skip-permissions --max-turns 300 --resume d96df940-1aa5 --add-dir /x";
        assert_eq!(line.argv.join(" "), argv);
        assert_eq!(line.stdin.as_deref(), Some(b"do it".as_slice()));
    }

    fn verdict(result: &str, exit: Exit) -> Verdict {
        let line = format!("{{\"type\":\"result\",\"session_id\":\"s1\",{result}}}\n");
        read(AgentKind::Claude, &line, "", &end(exit, "")).1.verdict
    }

    #[test]
    fn waiting_for_a_limit_in_silence_is_the_limit() {
        let limit = r#"{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":1700000000}}"#;
        let until = Some(Wall(1_700_000_000_000));
        for exit in [Exit::Signalled { signal: 15 }, Exit::Exited { code: 143 }] {
            let ended = read(AgentKind::Claude, &format!("{limit}\n"), "", &end(exit, ""));
            assert_eq!(ended.1.verdict, Verdict::UsageLimit { until });
        }
        // It went on: the limit is over.
        let on = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"on"}]}}"#;
        let ended = read(AgentKind::Claude, &format!("{limit}\n{on}\n"), "", &end(Exit::Signalled { signal: 15 }, ""));
        assert!(!matches!(ended.1.verdict, Verdict::UsageLimit { .. }), "{:?}", ended.1.verdict);
    }

    #[test]
    fn results_that_no_recording_has() {
        let ok = || Exit::Exited { code: 0 };
        let interrupted = r#""subtype":"error_during_execution","is_error":false,"terminal_reason":"aborted_tools""#;
        assert_eq!(verdict(interrupted, ok()).word(), "crashed");
        let odd = r#""is_error":false,"terminal_reason":"hook_stopped""#;
        assert_eq!(verdict(odd, ok()).word(), "agent_error");
        let older = r#""subtype":"success","is_error":false,"result":"Fine.""#;
        assert_eq!(verdict(older, ok()), Verdict::Finished);
        assert_eq!(verdict(older, Exit::Signalled { signal: 15 }), Verdict::Finished, "lingered after its result");
        let looked = r#""is_error":false,"result":"x","permission_denials":[{"tool_name":"WebFetch"}]"#;
        assert_eq!(verdict(looked, ok()), Verdict::Finished);
        let edit = r#""is_error":false,"result":"x","permission_denials":[{"tool_name":"Edit","tool_input":{"file_path":"/a"}}]"#;
        assert_eq!(verdict(edit, ok()), Verdict::PermissionDenied { what: "Edit /a".into() });
        let unknown = r#""is_error":true,"api_error_status":400,"result":"API Error: 400 odd""#;
        assert_eq!(verdict(unknown, ok()).word(), "agent_error");
    }
}
