//! What task documents of other tools say in prose: a title in the first heading, `## Dependencies` with a list or
//! `None`, and bold lines such as `**Depends on:** a, b` and `**Status:** queued`. It is brought into the form of front
//! matter, so that the same rules read both.

use super::front::{Entry, Front, Item, Value};
use super::key::Key;
use crate::domain::status::Status;
use crate::text::markdown::{self, Line};
use std::ops::Range;

/// The title in the first heading of level one, without `Task:`.
pub(super) fn title(body: &str) -> Option<String> {
    markdown::lines(body, 1, 0)
        .filter(|line| !line.fenced)
        .find_map(|line| markdown::heading(line.text).filter(|(level, _)| *level == 1))
        .map(|(_, text)| text.strip_prefix("Task:").unwrap_or(text).trim().to_owned())
        .filter(|title| !title.is_empty())
}

/// The entries that a document without front matter holds in its own way; their places are in `text`.
pub(super) fn front(text: &str, body: usize) -> Front {
    let mut needs: Vec<Item> = Vec::new();
    let mut needs_at = None;
    let mut status = None;
    let mut in_needs = false;
    for line in markdown::lines(&text[body..], 1, body).filter(|line| !line.fenced) {
        if let Some((_, heading)) = markdown::heading(line.text) {
            in_needs = heading.eq_ignore_ascii_case("dependencies");
        } else if let Some(value) = bold(&line, "Depends on:") {
            needs_at.get_or_insert(value.clone());
            needs.extend(inline(text, &value));
        } else if let Some(value) = bold(&line, "Status:") {
            status.get_or_insert(value);
        } else if in_needs && let Some(item) = bullet(&line) {
            needs_at.get_or_insert(item.clone());
            needs.extend(reference(text, &item));
        }
    }
    let mut entries = Vec::new();
    if let Some(value) = status.and_then(|at| wish_status(text, &at)) {
        entries.push(value);
    }
    if let Some(at) = needs_at.filter(|_| !needs.is_empty()) {
        let key = Key::DependsOn.word().to_owned();
        let value = Value::List { items: needs, flow: true };
        entries.push(Entry { key, place: at.clone(), value, span: at });
    }
    Front { entries, flow: false }
}

/// Where the value of a line `**Name** value` stands; the line may be a list item.
fn bold(line: &Line<'_>, name: &str) -> Option<Range<usize>> {
    let start = line.text.trim_start().trim_start_matches(['-', '*', '+', ' ']);
    let (head, value) = start.split_once("**")?;
    head.eq_ignore_ascii_case(name).then(|| place(line, value))
}

/// Where the text of a list item stands.
fn bullet(line: &Line<'_>) -> Option<Range<usize>> {
    let text = line.text.trim_start();
    let item = ["- ", "* ", "+ "].iter().find_map(|mark| text.strip_prefix(mark))?;
    Some(place(line, item))
}

/// The place in the file of `rest`, the last part of `line`, without the blanks around it.
fn place(line: &Line<'_>, rest: &str) -> Range<usize> {
    let start = line.at + line.text.len() - rest.trim_start().len();
    start..start + rest.trim().len()
}

/// References in one line, separated by commas.
fn inline(text: &str, at: &Range<usize>) -> Vec<Item> {
    let mut start = at.start;
    let mut items = Vec::new();
    for part in text[at.clone()].split(',') {
        items.extend(reference(text, &(start..start + part.len())));
        start += part.len() + 1;
    }
    items
}

/// One reference: a name, in backticks, or as a link's text; a remark may follow after a dash, a bracket or a comment.
fn reference(text: &str, at: &Range<usize>) -> Option<Item> {
    let raw = text[at.clone()].trim();
    let name = match raw.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, _)) => name,
        None => match raw.split_once(char::is_whitespace) {
            Some((name, remark)) if remark.trim_start().starts_with(['—', '–', '-', '(', '<']) => name,
            _ => raw,
        },
    };
    let name = name.trim().trim_matches('`').trim_end_matches('/');
    let none = matches!(name, "" | "—" | "–" | "-") || name.trim_end_matches('.').eq_ignore_ascii_case("none");
    (!none).then(|| Item { text: Some(name.to_owned()), span: at.clone() })
}

/// `queued` and `planning` are wishes. The other words are history, told by a tool that keeps it in the document: such a
/// task is not started. What looks like a word of ours misspelt is handed on as it is, to be refused.
fn wish_status(text: &str, at: &Range<usize>) -> Option<Entry> {
    let word = |c: char| c.is_ascii_alphabetic() || c == '_';
    let first = text[at.clone()].split(|c| !word(c)).find(|part| !part.is_empty())?.to_lowercase();
    let known = matches!(Status::parse(&first), Some(Status::Queued | Status::Planning));
    let misspelt = Status::parse(&first).is_none() && first.starts_with("que");
    (known || misspelt).then(|| Entry {
        key: Key::Status.word().to_owned(),
        place: at.clone(),
        value: Value::Text { text: first, block: false },
        span: at.clone(),
    })
}
