//! A new task file: front matter with what was said, and the sections that people and agents look for. Texts are quoted
//! so that reading the file gives them back byte for byte, whatever they hold.

use super::edit::{flow_list, scalar};
use super::key::Key;
use crate::domain::task::WishStatus;
use crate::text::markdown;

/// What a new task file shall say; what is empty or `None` is left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewTask {
    pub title: String,
    pub status: WishStatus,
    /// References as in front matter, resolved when the file is read.
    pub depends_on: Vec<String>,
    pub priority: i32,
    pub agent: Option<String>,
    pub model: Option<String>,
    pub requester: Option<String>,
    pub labels: Vec<String>,
    pub attempts: Option<u32>,
    /// A duration in words, as in `30m`.
    pub timeout: Option<String>,
    pub checks: Option<Vec<String>>,
    pub review: bool,
    pub script: Vec<String>,
    /// Markdown.
    pub description: String,
    /// Markdown, most often a list.
    pub acceptance: String,
    /// Markdown, most often a list.
    pub questions: String,
}

/// The text of a new task file.
pub fn create(task: &NewTask) -> String {
    let mut out = String::from("---\n");
    let mut put = |key: Key, value: Option<String>| {
        if let Some(value) = value {
            out.push_str(&format!("{}: {value}\n", key.word()));
        }
    };
    let text = |value: &Option<String>| value.as_deref().map(scalar);
    let list = |items: &[String]| (!items.is_empty()).then(|| flow_list(items.iter().map(String::as_str)));
    let status = match task.status {
        WishStatus::Planning => "planning",
        WishStatus::Queued => "queued",
    };
    put(Key::Title, (!task.title.is_empty()).then(|| scalar(&task.title)));
    put(Key::Status, Some(status.to_owned()));
    put(Key::DependsOn, list(&task.depends_on));
    put(Key::Priority, (task.priority != 0).then(|| task.priority.to_string()));
    put(Key::Agent, text(&task.agent));
    put(Key::Model, text(&task.model));
    put(Key::Requester, text(&task.requester));
    put(Key::Labels, list(&task.labels));
    put(Key::Attempts, task.attempts.map(|n| n.to_string()));
    put(Key::Timeout, text(&task.timeout));
    put(Key::Checks, task.checks.as_ref().map(|checks| flow_list(checks.iter().map(String::as_str))));
    put(Key::Review, task.review.then(|| "true".to_owned()));
    put(Key::Script, list(&task.script));
    out.push_str("---\n");
    for (heading, prose) in [
        ("Description", &task.description),
        ("Acceptance criteria", &task.acceptance),
        ("Outstanding questions", &task.questions),
    ] {
        out.push_str(&format!("\n## {heading}\n\n"));
        match prose.trim() {
            "" if heading == "Outstanding questions" => out.push_str("None at this time.\n"),
            "" => {}
            text => out.push_str(&section(text)),
        }
    }
    out
}

/// Prose that ends its own code fences and holds nothing that makes a task file invalid.
fn section(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 1);
    for line in markdown::lines(text, 1, 0) {
        if !line.fenced && markdown::is_conflict(line.text) {
            out.push(' ');
        }
        out.push_str(&line.text.replace('\0', "\u{fffd}"));
        out.push('\n');
    }
    if let Some(fence) = markdown::open_fence(&out) {
        out.push_str(&fence);
        out.push('\n');
    }
    out
}
