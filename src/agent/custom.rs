//! Any other agent program, described by its profile: arguments with placeholders, the prompt by standard input,
//! argument or file, and output that is plain text or JSON lines with named fields.

use super::launch::{AgentError, CommandLine, Launch};
use super::reader::{Ended, Shared, Stream};
use super::{clip, failure, json, question};
use crate::domain::policy::{OutputFormat, PromptBy};
use crate::domain::verdict::{AgentEvent, Exit, RunEnd, Usage, Verdict};

/// Builds the command line. `{prompt}`, `{prompt_file}`, `{model}` and `{session}` are replaced once, wherever they
/// stand; an argument `{resume}` is the place of the arguments that go on with a session, which else come last.
pub(super) fn command(launch: &Launch<'_>, line: &mut CommandLine) -> Result<(), AgentError> {
    let profile = launch.profile;
    let resume: &[String] = if launch.session.is_some() { &profile.resume } else { &[] };
    let mut template: Vec<&str> = Vec::new();
    let mut placed = false;
    for arg in &profile.args {
        if arg == "{resume}" {
            placed = true;
            template.extend(resume.iter().map(String::as_str));
        } else {
            template.push(arg);
        }
    }
    if !placed {
        template.extend(resume.iter().map(String::as_str));
    }
    let last = match profile.prompt_by {
        PromptBy::Stdin => {
            line.stdin = Some(launch.prompt.as_bytes().to_vec());
            None
        }
        PromptBy::Argument => Some("{prompt}"),
        PromptBy::File => Some("{prompt_file}"),
    };
    if let Some(placeholder) = last
        && !template.iter().any(|arg| arg.contains(placeholder))
    {
        template.push(placeholder);
    }
    line.argv.push(profile.bin.clone());
    for arg in template {
        line.argv.push(fill(arg, launch)?);
    }
    Ok(())
}

/// One argument with its placeholders replaced in a single pass: what a prompt contains is never replaced again.
fn fill(template: &str, launch: &Launch<'_>) -> Result<String, AgentError> {
    let values = [
        ("{prompt}", Some(launch.prompt), "prompt"),
        ("{prompt_file}", launch.prompt_file, "prompt file"),
        ("{model}", launch.model, "model: name one in the profile or the task"),
        ("{session}", launch.session, "session"),
    ];
    let mut out = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        match values.iter().find(|(placeholder, _, _)| rest.starts_with(placeholder)) {
            Some((placeholder, Some(value), _)) => {
                // A prompt that begins like an option would be taken for one; a line break before it is no part of an
                // option to any parser and nothing to a reader.
                if out.is_empty() && *placeholder == "{prompt}" && value.starts_with('-') {
                    out.push('\n');
                }
                out.push_str(value);
                rest = &rest[placeholder.len()..];
            }
            Some((placeholder, None, what)) => return Err(AgentError::Missing { placeholder, what }),
            None => {
                out.push('{');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Reads the output by the profile's format.
#[derive(Debug)]
pub(super) struct Custom {
    output: OutputFormat,
    usage: Usage,
    /// The last error told since the last text.
    error: Option<String>,
}

impl Custom {
    pub(super) fn new(output: &OutputFormat) -> Self {
        Self { output: output.clone(), usage: Usage::default(), error: None }
    }

    pub(super) fn line(&mut self, from: Stream, line: &[u8], shared: &mut Shared, out: &mut Vec<AgentEvent>) {
        match &self.output {
            OutputFormat::JsonLines { session, text, input_tokens, output_tokens, cost, error }
                if from == Stream::Out =>
            {
                let fields = [session, text, input_tokens, output_tokens, cost, error];
                // A field without a path is looked for at a key that no one writes.
                let paths = fields.map(|path| path.as_deref().unwrap_or("\u{0}"));
                match json::pick(line, &paths) {
                    Some(found) => self.fields(&found, shared, out),
                    None => shared.unreadable(line, out),
                }
            }
            OutputFormat::JsonLines { .. } | OutputFormat::Text => {
                let text = clip::printed(line);
                if !text.trim().is_empty() {
                    if from == Stream::Out {
                        shared.text.push_line(&text);
                    }
                    out.push(AgentEvent::Text { text: clip::event(&text) });
                }
            }
        }
    }

    /// Takes over the values of one line, in the order of the paths. Tokens and cost are sums over lines.
    fn fields(&mut self, found: &[json::Scalar], shared: &mut Shared, out: &mut Vec<AgentEvent>) {
        let [session, text, input, output, cost, error] = found else { return };
        if let Some(id) = session.text() {
            shared.session(id, None, out);
        }
        if let Some(text) = text.shown() {
            self.error = None;
            shared.text.set(&text);
            out.push(AgentEvent::Text { text: clip::event(&text) });
        }
        let before = self.usage;
        self.usage.input = self.usage.input.saturating_add(input.uint().unwrap_or(0));
        self.usage.output = self.usage.output.saturating_add(output.uint().unwrap_or(0));
        if let Some(cost) = cost.amount() {
            self.usage.cost = Some(self.usage.cost.unwrap_or(0.0) + cost);
        }
        if self.usage != before {
            self.usage.known = true;
            self.usage.turns = self.usage.turns.saturating_add(1);
            out.push(AgentEvent::Usage { usage: self.usage });
        }
        if let Some(message) = error.shown() {
            let message = clip::event(&message);
            out.push(AgentEvent::Error { message: message.clone() });
            self.error = Some(message);
        }
    }

    pub(super) fn finish(self, end: &RunEnd, shared: &Shared) -> Ended {
        let text = shared.text.get();
        let verdict = match (&end.exit, self.error) {
            (Exit::Exited { .. }, Some(message)) => failure::classify(&message).unwrap_or(Verdict::Failed { message }),
            (Exit::Exited { code: 0 }, None) => Verdict::Finished,
            (Exit::Exited { code }, None) => failure::classify(&shared.err.get())
                .unwrap_or_else(|| Verdict::Failed { message: shared.failure(&format!("exit status {code}"), end) }),
            (
                Exit::Signalled { .. }
                | Exit::SpawnFailed { .. }
                | Exit::NeverStarted { .. }
                | Exit::DeadMan
                | Exit::Lost,
                _,
            ) => shared.untold(end),
        };
        Ended { verdict, usage: self.usage, session_total: None, asks: question::asks(&text) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::launch::tests::launch;
    use super::super::reader::tests::{end, read_with};
    use super::super::{MAX_ARGUMENT, command};
    use super::*;
    use crate::domain::policy::{AgentKind, Profile};

    fn args(list: &[&str]) -> Vec<String> {
        list.iter().map(|a| (*a).to_owned()).collect()
    }

    fn custom(by: PromptBy, list: &[&str]) -> Profile {
        Profile { prompt_by: by, args: args(list), bin: "ag".into(), ..Profile::bare(AgentKind::Custom) }
    }

    #[test]
    fn placeholders_are_replaced_once() {
        let p = Profile { resume: args(&["-s", "{session}"]), ..custom(PromptBy::Argument, &["run", "-m", "{model}"]) };
        let base = Launch { model: Some("m1"), prompt: "say {model}", ..launch(&p) };
        let line = command(&base).expect("command");
        assert_eq!((line.argv, line.stdin), (args(&["ag", "run", "-m", "m1", "say {model}"]), None));
        let line = command(&Launch { session: Some("s1"), ..base }).expect("command");
        assert_eq!(line.argv, args(&["ag", "run", "-m", "m1", "-s", "s1", "say {model}"]));
        let p = Profile { args: args(&["{resume}", "--", "{prompt}", "{x}{"]), ..p.clone() };
        let line = command(&Launch { profile: &p, session: Some("s1"), ..base }).expect("command");
        assert_eq!(line.argv, args(&["ag", "-s", "s1", "--", "say {model}", "{x}{"]));
        let line = command(&Launch { profile: &p, ..base }).expect("command");
        assert_eq!(line.argv, args(&["ag", "--", "say {model}", "{x}{"]));
    }

    #[test]
    fn a_prompt_like_an_option_stays_a_prompt() {
        for prompt in ["--help", "-x"] {
            let p = custom(PromptBy::Argument, &[]);
            let line = command(&Launch { prompt, ..launch(&p) }).expect("command");
            assert_eq!(line.argv, args(&["ag", &format!("\n{prompt}")]));
            let p = custom(PromptBy::Argument, &["--message={prompt}"]);
            let line = command(&Launch { prompt, ..launch(&p) }).expect("command");
            assert_eq!(line.argv, args(&["ag", &format!("--message={prompt}")]));
            let p = custom(PromptBy::Stdin, &["go"]);
            let line = command(&Launch { prompt, ..launch(&p) }).expect("command");
            assert_eq!((line.argv, line.stdin.as_deref()), (args(&["ag", "go"]), Some(prompt.as_bytes())));
        }
    }

    #[test]
    fn files_models_and_sizes_are_checked() {
        let p = custom(PromptBy::File, &["--file={prompt_file}"]);
        let line = command(&Launch { prompt_file: Some("/r/prompt.md"), ..launch(&p) }).expect("command");
        assert_eq!((line.argv, line.stdin), (args(&["ag", "--file=/r/prompt.md"]), None));
        let error = command(&launch(&p)).expect_err("no file");
        assert_eq!(error.to_string(), "the profile's arguments name {prompt_file}, but there is no prompt file");
        let p = custom(PromptBy::Stdin, &["{model}"]);
        assert!(matches!(command(&launch(&p)), Err(AgentError::Missing { placeholder: "{model}", .. })));
        let p = custom(PromptBy::Argument, &[]);
        let fits = "x".repeat(MAX_ARGUMENT);
        assert!(command(&Launch { prompt: &fits, ..launch(&p) }).is_ok());
        let error = command(&Launch { prompt: &format!("{fits}x"), ..launch(&p) }).expect_err("too long");
        assert_eq!(error, AgentError::TooLong { what: "argument 1".into(), size: 131_072, limit: 131_071 });
        let p = custom(PromptBy::Stdin, &[]);
        assert!(command(&Launch { prompt: &"x".repeat(3 << 20), ..launch(&p) }).is_ok());
    }

    #[test]
    fn text_output() {
        let p = custom(PromptBy::Stdin, &[]);
        let ok = Exit::Exited { code: 0 };
        let (events, report) =
            read_with(&p, "10%\r100%\rworking\r\nWhich database should I use?\n", "", &end(ok.clone(), ""));
        assert_eq!(events[0], AgentEvent::Text { text: "working".into() });
        assert_eq!((report.verdict, report.asks.as_deref()), (Verdict::Finished, Some("Which database should I use?")));
        assert!(!report.usage.known);
        let (_, report) = read_with(&p, "see https://x.example/?q=1\ndone\n", "", &end(ok, ""));
        assert_eq!((report.verdict, report.asks), (Verdict::Finished, None));
        let failed = Exit::Exited { code: 7 };
        let (_, report) = read_with(&p, "edited\n", "", &end(failed.clone(), "edited"));
        assert_eq!(report.verdict, Verdict::Failed { message: "exit status 7: edited".into() });
        let (_, report) = read_with(&p, "invalid api key\n", "", &end(failed.clone(), ""));
        assert_eq!(report.verdict.word(), "agent_error", "an agent's words decide nothing");
        let (_, report) = read_with(&p, "", "Error: not logged in\n", &end(failed, ""));
        assert_eq!(report.verdict.word(), "login_needed");
    }

    #[test]
    fn json_output() {
        let path = |p: &str| Some(p.to_owned());
        let output = OutputFormat::JsonLines {
            session: path("sessionID"),
            text: path("part.text"),
            input_tokens: path("part.tokens.input"),
            output_tokens: path("part.tokens.output"),
            cost: path("part.cost"),
            error: path("error.data.message"),
        };
        let p = Profile { output, ..custom(PromptBy::Stdin, &[]) };
        let out = concat!(
            r#"{"type":"step_start","sessionID":"ses_1"}"#,
            "\n",
            r#"{"type":"text","sessionID":"ses_1","part":{"text":"Hello."}}"#,
            "\n",
            r#"{"type":"step_finish","sessionID":"ses_1","part":{"tokens":{"input":5,"output":2},"cost":0.25}}"#,
            "\n",
            r#"{"type":"step_finish","part":{"tokens":{"input":1,"output":1},"cost":0.25}}"#,
        );
        let (events, report) = read_with(&p, out, "", &end(Exit::Exited { code: 0 }, ""));
        assert_eq!(events[0], AgentEvent::Session { id: "ses_1".into(), model: None });
        assert_eq!(
            (report.verdict, report.session.as_deref(), report.text.as_str()),
            (Verdict::Finished, Some("ses_1"), "Hello.")
        );
        assert_eq!(report.usage, Usage { input: 6, output: 3, cost: Some(0.5), turns: 2, known: true, cached: 0 });
        let out = r#"{"type":"error","error":{"data":{"message":"429 Too Many Requests"}}}"#;
        let (_, report) = read_with(&p, out, "", &end(Exit::Exited { code: 0 }, ""));
        assert_eq!(report.verdict.word(), "rate_limited");
    }
}
