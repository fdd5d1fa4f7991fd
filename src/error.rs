//! What a person or program is told when a command did not do its work: a kind with its exit code, what happened, the
//! causes behind it, and what to do next. Texts may quote hostile content; they are escaped here, where they are shown.

use crate::domain::safe;
use crate::protocol::{ErrorKind, Failure};
use serde_json::json;
use std::error::Error;
use std::fmt::Write as _;

/// Why a command ended without doing its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// Its class, which settles the exit code.
    pub kind: ErrorKind,
    /// What happened.
    pub message: String,
    /// What lies behind it, nearest first.
    pub causes: Vec<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// The reader of our output is gone: nothing is left to say.
    pub quiet: bool,
}

impl CliError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), causes: Vec::new(), hint: None, quiet: false }
    }

    /// Bad arguments or configuration.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// The same with a remedy.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// An error of another module: its text, and its sources as causes.
    pub fn from_error(kind: ErrorKind, error: &(dyn Error + 'static)) -> Self {
        let mut out = Self::new(kind, error.to_string());
        let mut next = error.source();
        while let Some(cause) = next {
            out.causes.push(cause.to_string());
            next = cause.source();
        }
        out
    }

    /// Output that could not be written. A closed pipe is the reader's wish and no error to speak of.
    pub fn from_output(error: &std::io::Error) -> Self {
        let quiet = error.kind() == std::io::ErrorKind::BrokenPipe;
        let mut out = Self::new(ErrorKind::Failed, "could not write the output");
        out.causes.push(error.to_string());
        out.quiet = quiet;
        out
    }

    /// The status that the process ends with.
    pub fn exit_code(&self) -> u8 {
        if self.quiet { 0 } else { self.kind.exit_code() }
    }

    /// Lines for a person, fit for a terminal: `error: …`, causes, and the remedy.
    pub fn for_people(&self, colour: bool) -> String {
        let (red, dim, end) = if colour { ("\x1b[1;31m", "\x1b[2m", "\x1b[0m") } else { ("", "", "") };
        let mut out = String::new();
        for (i, line) in self.message.lines().enumerate() {
            let label = if i == 0 { format!("{red}error{end}: ") } else { "       ".to_owned() };
            let _ = writeln!(out, "{label}{}", safe::line(line));
        }
        for cause in &self.causes {
            let _ = writeln!(out, "       {dim}because{end} {}", safe::line(cause));
        }
        for hint in self.hint.iter().flat_map(|hint| hint.lines()) {
            let _ = writeln!(out, "       {dim}→{end} {}", safe::line(hint));
        }
        out
    }

    /// One line of JSON for programs.
    pub fn for_programs(&self) -> String {
        let error = json!({ "error": {
            "kind": self.kind,
            "message": self.message,
            "causes": self.causes,
            "hint": self.hint,
            "exit_code": self.exit_code(),
        }});
        json_line(&error.to_string())
    }
}

impl From<Failure> for CliError {
    fn from(failure: Failure) -> Self {
        Self { hint: failure.hint, ..Self::new(failure.kind, failure.message) }
    }
}

/// JSON text over one or more lines, each ended, fit for a terminal: line feeds are those between values.
pub fn json_line(text: &str) -> String {
    text.split('\n').map(|line| safe::json(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_why_and_what_to_do() {
        let mut error = CliError::new(ErrorKind::NotFound, "no task `x\u{1b}[2J`").hint("overnight status\nor this");
        error.causes.push("two\nlines".into());
        assert_eq!(
            error.for_people(false),
            "error: no task `x\\u{1b}[2J`\n       because two\\nlines\n       → overnight status\n       → or this\n"
        );
        assert_eq!(
            error.for_programs(),
            "{\"error\":{\"kind\":\"not_found\",\"message\":\"no task `x\\u001b[2J`\",\"causes\":[\"two\\nlines\"],\
             \"hint\":\"overnight status\\nor this\",\"exit_code\":3}}\n"
        );
        assert!(error.for_people(true).starts_with("\u{1b}[1;31merror\u{1b}[0m: "));
    }

    #[test]
    fn exit_codes_follow_the_kind_and_a_closed_pipe_is_quiet() {
        let code = |kind| CliError::new(kind, "").exit_code();
        use ErrorKind::{Failed, NotAllowed, NotFound, Unexpected, Usage, WrongState};
        let codes = [Failed, Usage, NotAllowed, NotFound, WrongState, Unexpected].map(code);
        assert_eq!(codes, [1, 2, 2, 3, 4, 10]);
        assert_eq!(CliError::from_output(&std::io::ErrorKind::BrokenPipe.into()).exit_code(), 0);
        assert_eq!(CliError::from_output(&std::io::ErrorKind::StorageFull.into()).exit_code(), 1);
    }

    #[test]
    fn json_escapes_what_terminals_act_upon() {
        assert_eq!(json_line("{\"a\":\"\u{9b}\u{202e}\u{e0041}ä\"}"), "{\"a\":\"\\u009b\\u202e\\udb40\\udc41ä\"}\n");
    }
}
