//! The agent CLIs, one file each: from a settled plan to a command line, and from the bytes a CLI prints and its end to
//! typed events and one verdict. Everything here is pure; `process` runs the command and feeds the reader.
//!
//! ```text
//!   Launch ──command──▶ CommandLine        bytes ──Reader::feed──▶ AgentEvent…  ──Reader::finish──▶ AgentReport
//! ```
//!
//! What must not be here: I/O, clocks, the environment, and any text of a task inside a shell string.

mod claude;
mod clip;
mod codex;
mod custom;
mod failure;
mod json;
mod launch;
mod lines;
pub mod question;
mod reader;
mod script;

pub use launch::{AgentError, CommandLine, EVERY_CHILD, Launch, MAX_ARGUMENT, command};
pub use reader::{Reader, Stream};

use crate::domain::verdict::AgentEvent;

/// One readable line for an event, as `overnight logs` shows it. The words come from the agent and are hostile: line
/// breaks become spaces here, everything else is the caller's to escape.
pub fn describe(event: &AgentEvent) -> String {
    let line = match event {
        AgentEvent::Session { id, model: Some(model) } => format!("session {id} on {model}"),
        AgentEvent::Session { id, model: None } => format!("session {id}"),
        AgentEvent::Text { text } => text.clone(),
        AgentEvent::ToolBegin { tool, what } if what.is_empty() => format!("{tool} …"),
        AgentEvent::ToolBegin { tool, what } => format!("{tool}: {what}"),
        AgentEvent::ToolEnd { tool, ok: true } => format!("{tool}: ok"),
        AgentEvent::ToolEnd { tool, ok: false } => format!("{tool}: failed"),
        AgentEvent::Retry { reason } => format!("retrying: {reason}"),
        AgentEvent::Usage { usage } => {
            let cost = match usage.cost {
                Some(cost) => format!(", ${cost:.4}"),
                None => String::new(),
            };
            let (input, cached, output) = (usage.input, usage.cached, usage.output);
            format!("used {input} tokens in, {cached} from cache, {output} out{cost}")
        }
        AgentEvent::Error { message } => format!("error: {message}"),
        AgentEvent::Result { ok: true } => "the agent ended its turn".into(),
        AgentEvent::Result { ok: false } => "the agent ended its turn with an error".into(),
    };
    line.split(['\n', '\r']).map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::verdict::Usage;

    #[test]
    fn every_event_is_one_line() {
        let usage = Usage { input: 10, output: 2, cached: 5, cost: Some(0.5), turns: 1, known: true };
        let table = [
            (AgentEvent::Session { id: "a1".into(), model: Some("m".into()) }, "session a1 on m"),
            (AgentEvent::Session { id: "a1".into(), model: None }, "session a1"),
            (AgentEvent::Text { text: "one\r\n\n  two".into() }, "one two"),
            (AgentEvent::ToolBegin { tool: "Write".into(), what: "/w/a.txt".into() }, "Write: /w/a.txt"),
            (AgentEvent::ToolBegin { tool: "Task".into(), what: String::new() }, "Task …"),
            (AgentEvent::ToolEnd { tool: "Write".into(), ok: true }, "Write: ok"),
            (AgentEvent::ToolEnd { tool: "Write".into(), ok: false }, "Write: failed"),
            (AgentEvent::Retry { reason: "429".into() }, "retrying: 429"),
            (AgentEvent::Usage { usage }, "used 10 tokens in, 5 from cache, 2 out, $0.5000"),
            (AgentEvent::Usage { usage: Usage { cost: None, ..usage } }, "used 10 tokens in, 5 from cache, 2 out"),
            (AgentEvent::Error { message: "no".into() }, "error: no"),
            (AgentEvent::Result { ok: true }, "the agent ended its turn"),
            (AgentEvent::Result { ok: false }, "the agent ended its turn with an error"),
        ];
        for (event, line) in table {
            assert_eq!(describe(&event), line);
        }
    }
}
