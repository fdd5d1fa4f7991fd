//! Changing single keys of the front matter and no other byte: comments, order, quotes, line ends and the body stay as
//! people wrote them. Every change is read back before it is handed out, so an unusual way of writing is refused
//! instead of being damaged.

use super::front::{self, Entry, Front, Item};
use super::key::Key;
use super::{dialect, line_at, parts, text_of};
use crate::domain::safe;
use std::ops::Range;

/// What a key shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Text(String),
    List(Vec<String>),
    Number(i64),
    Flag(bool),
    /// The key goes.
    Remove,
}

/// Why a file was not edited. Lines count from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("the file cannot be read{}: {reason}", on_line(*line))]
    Unreadable { line: Option<u32>, reason: String },
    #[error("the key `{key}` stands twice, the second time on line {line}")]
    Doubled { key: &'static str, line: u32 },
    #[error("the key `{key}` cannot be changed without touching more, see line {line}: change it by hand")]
    Unusual { key: &'static str, line: u32 },
    #[error("`{key}` may not hold a NUL character")]
    Nul { key: &'static str },
}

/// The file with `changes` made in order. A key that already has the value is not touched; a new key comes last. A file
/// without front matter gets one, which then also carries what the file said in another way (its dependencies, its
/// status), as that is prose from then on.
pub fn edit(bytes: &[u8], changes: &[(Key, Value)]) -> Result<Vec<u8>, EditError> {
    let text = text_of(bytes).map_err(|(line, reason)| EditError::Unreadable { line, reason })?;
    let (layout, front) = read(text)?;
    if let Some((key, _)) = changes.iter().find(|(_, value)| has_nul(value)) {
        return Err(EditError::Nul { key: key.word() });
    }
    let mut text = text.to_owned();
    if front.is_none() {
        let said = dialect::front(&text, layout.body);
        let known = |key: Key| said.entries.iter().find(|e| e.key == key.word());
        if changes.iter().all(|(key, value)| known(*key).map_or(*value == Value::Remove, |e| same(value, &e.value))) {
            return Ok(bytes.to_vec());
        }
        text.insert_str(layout.body, &carried(&said, eol(&text)));
    }
    for (key, value) in changes {
        text = change(text, *key, value)?;
    }
    Ok(text.into_bytes())
}

fn read(text: &str) -> Result<(front::Layout, Option<Front>), EditError> {
    parts(text).map_err(|fault| EditError::Unreadable {
        line: Some(line_at(text, fault.at)),
        reason: safe::line(&fault.reason),
    })
}

/// Front matter that says what the document said in prose.
fn carried(said: &Front, eol: &str) -> String {
    let mut out = format!("---{eol}");
    for entry in &said.entries {
        let value = match &entry.value {
            front::Value::Text { text, .. } => scalar(text),
            front::Value::List { items, .. } => flow_list(items.iter().filter_map(|i| i.text.as_deref())),
            front::Value::Null | front::Value::Nested => continue,
        };
        out.push_str(&format!("{}: {value}{eol}", entry.key));
    }
    out.push_str(&format!("---{eol}"));
    out
}

fn change(text: String, key: Key, value: &Value) -> Result<String, EditError> {
    let (layout, front) = read(&text)?;
    let (Some(yaml), Some(front)) = (layout.yaml, front) else { return Ok(text) };
    let mut entries = front.entries.iter().filter(|e| e.key == key.word());
    let entry = entries.next();
    if let Some(second) = entries.next() {
        return Err(EditError::Doubled { key: key.word(), line: line_at(&text, second.place.start) });
    }
    let (place, new) = match (entry, value) {
        (None, Value::Remove) => return Ok(text),
        (Some(entry), value) if same(value, &entry.value) => return Ok(text),
        (Some(entry), Value::Remove) => (whole_lines(&text, entry), String::new()),
        (Some(entry), value) => replacement(&text, entry, value),
        (None, value) => {
            let indent = front.entries.first().map_or("", |e| before_on_line(&text, e.place.start));
            (yaml.end..yaml.end, format!("{indent}{}: {}{}", key.word(), inline(value), eol(&text)))
        }
    };
    let changed = format!("{}{new}{}", &text[..place.start], &text[place.end..]);
    let unusual = || EditError::Unusual { key: key.word(), line: line_at(&text, place.start) };
    if front.flow || !is_sound(&text, &changed, key, value) {
        return Err(unusual());
    }
    Ok(changed)
}

/// Which bytes give way to what, for a key that has another value.
fn replacement(text: &str, entry: &Entry, value: &Value) -> (Range<usize>, String) {
    let colon = entry.place.end + text[entry.place.end..].find(':').map_or(0, |at| at + 1);
    if let (Value::List(new), front::Value::List { items, flow: false }) = (value, &entry.value)
        && !new.is_empty()
    {
        return block_list(text, &entry.span, items, new);
    }
    let new = inline(value);
    if entry.span.is_empty() || entry.span.start < colon {
        return (colon..colon, format!(" {new}"));
    }
    let key_line = line_end(text, colon);
    if entry.span.start <= key_line {
        return (entry.span.clone(), new);
    }
    // The value begins on a later line; a comment behind the key stays behind the new value.
    (colon..entry.span.end, format!(" {new}{}", text[colon..key_line].trim_end()))
}

/// One item a line, as before. Items that are only added leave the others, and their comments, alone.
fn block_list(text: &str, span: &Range<usize>, old: &[Item], new: &[String]) -> (Range<usize>, String) {
    let line = |item: &String| format!("- {}", scalar(item));
    let indent = before_on_line(text, span.start);
    let eol = eol(text);
    let kept = old.len() <= new.len() && old.iter().zip(new).all(|(item, new)| item.text.as_ref() == Some(new));
    if kept {
        let at = line_end(text, span.end);
        let added = new[old.len()..].iter().map(|item| format!("{eol}{indent}{}", line(item))).collect();
        return (at..at, added);
    }
    let lines: Vec<String> = new.iter().map(line).collect();
    (span.clone(), lines.join(&format!("{eol}{indent}")))
}

/// The lines that a key and its value take up, their line ends included.
fn whole_lines(text: &str, entry: &Entry) -> Range<usize> {
    let start = entry.place.start - before_on_line(text, entry.place.start).len();
    let end = line_end(text, entry.span.end.max(entry.place.end));
    start..end + text[end..].find('\n').map_or(0, |at| at + 1)
}

/// True when `after` differs from `before` in `key` alone and gives it `value`.
fn is_sound(before: &str, after: &str, key: Key, value: &Value) -> bool {
    let others = |text: &str| -> Option<(Vec<String>, Vec<front::Value>, usize)> {
        let (layout, front) = parts(text).ok()?;
        let (mine, others): (Vec<_>, Vec<_>) = front?.entries.into_iter().partition(|e| e.key == key.word());
        let raw = |e: &Entry| text[e.place.start..e.span.end.max(e.place.end)].to_owned();
        Some((others.iter().map(raw).collect(), mine.into_iter().map(|e| e.value).collect(), layout.body))
    };
    match (others(before), others(after)) {
        (Some((rest, _, body)), Some((rest_after, mine, body_after))) => {
            let set = match (value, mine.as_slice()) {
                (Value::Remove, []) => true,
                (value, [one]) => same(value, one),
                _ => false,
            };
            set && rest == rest_after && before[body..] == after[body_after..]
        }
        _ => false,
    }
}

/// True when the file already says `wanted`, in whatever way.
fn same(wanted: &Value, found: &front::Value) -> bool {
    match (wanted, found) {
        (Value::Text(wanted), front::Value::Text { text, .. }) => wanted == text,
        (Value::Number(wanted), front::Value::Text { text, .. }) => text.trim().parse() == Ok(*wanted),
        (Value::Flag(wanted), front::Value::Text { text, .. }) => {
            let words = if *wanted { ["true", "yes", "on"] } else { ["false", "no", "off"] };
            words.contains(&text.trim().to_lowercase().as_str())
        }
        (Value::List(wanted), front::Value::List { items, .. }) => {
            wanted.iter().map(Some).eq(items.iter().map(|item| item.text.as_ref()))
        }
        (Value::List(wanted), front::Value::Text { text, .. }) => {
            wanted.iter().map(String::as_str).eq(text.split(',').map(str::trim))
        }
        _ => false,
    }
}

/// The value on one line.
fn inline(value: &Value) -> String {
    match value {
        Value::Text(text) => scalar(text),
        Value::List(items) => flow_list(items.iter().map(String::as_str)),
        Value::Number(number) => number.to_string(),
        Value::Flag(flag) => flag.to_string(),
        Value::Remove => String::new(),
    }
}

pub(super) fn flow_list<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let items: Vec<String> = items.map(scalar).collect();
    format!("[{}]", items.join(", "))
}

/// Text as YAML on one line: as it stands where every YAML reader takes it for this very text, else in double quotes.
pub(super) fn scalar(text: &str) -> String {
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '_' | '-' | '.' | '/' | '@' | '+' | '(' | ')');
    let numeric = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | '_' | '-' | '+' | 'x' | 'o' | 'X' | 'O');
    let special = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"];
    let plain = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && !text.ends_with(' ')
        && text.chars().all(word)
        && !(text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(numeric))
        && !special.contains(&text.to_ascii_lowercase().as_str());
    if plain { text.to_owned() } else { quoted(text) }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{fffe}' | '\u{ffff}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c if safe::is_unsafe(c) && u32::from(c) > 0xffff => out.push_str(&format!("\\U{:08x}", u32::from(c))),
            c if safe::is_unsafe(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn has_nul(value: &Value) -> bool {
    match value {
        Value::Text(text) => text.contains('\0'),
        Value::List(items) => items.iter().any(|item| item.contains('\0')),
        Value::Number(_) | Value::Flag(_) | Value::Remove => false,
    }
}

/// What stands on the line of `at` before it.
fn before_on_line(text: &str, at: usize) -> &str {
    &text[text[..at].rfind('\n').map_or(0, |n| n + 1)..at]
}

/// Where the line of `at` ends, its line end not included.
fn line_end(text: &str, at: usize) -> usize {
    let end = at + text[at..].find('\n').unwrap_or(text.len() - at);
    if text[at..end].ends_with('\r') { end - 1 } else { end }
}

/// The line end that the file uses first.
fn eol(text: &str) -> &'static str {
    let first = text.split_inclusive('\n').next().unwrap_or("");
    if first.ends_with("\r\n") { "\r\n" } else { "\n" }
}

fn on_line(line: Option<u32>) -> String {
    line.map(|line| format!(" (line {line})")).unwrap_or_default()
}
