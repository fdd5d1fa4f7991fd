//! A task's `README.md`: optional YAML front matter between two `---` lines, then Markdown. Reading it gives the wish
//! or every reason why there is none, each with its line; editing it changes single keys and keeps all other bytes.
//!
//! A document without front matter may say the same in the ways of other tools (`## Dependencies`, `**Depends on:**`,
//! `**Status:**`); with front matter these are prose.

mod create;
mod dialect;
mod edit;
mod fields;
mod front;
mod key;
mod set;

pub use create::{NewTask, create};
pub use edit::{EditError, Value, edit};
pub use key::{Key, UnknownKey};
pub use set::{EntryKind, FileEntry, Place, classify, read_all};

use super::markdown;
use crate::domain::TaskPath;
use crate::domain::safe;
use crate::domain::task::{Invalid, Wish};
use fields::Fields;
use front::{Fault, Front, Layout};

/// How many faults of one file are told.
const FAULTS_MAX: usize = 50;
/// Larger task files are refused unread, in bytes.
pub const SIZE_MAX: usize = 1024 * 1024;

/// Reads the task file of `path`. `exists` says which task paths there are, so that a bare name can mean a sibling.
pub fn read(bytes: &[u8], path: &TaskPath, exists: &dyn Fn(&TaskPath) -> bool) -> Result<Wish, Vec<Invalid>> {
    let invalid = |line, reason| Invalid { place: path.to_string(), line, reason };
    let text = text_of(bytes).map_err(|fault| vec![invalid(fault.0, fault.1)])?;
    let told = |faults: Vec<Fault>| {
        let mut faults = faults;
        faults.sort_by_key(|f| f.at);
        faults.truncate(FAULTS_MAX);
        faults.into_iter().map(|f| invalid(Some(line_at(text, f.at)), safe::line(&f.reason))).collect()
    };
    let (layout, front) = parts(text).map_err(|fault| told(vec![fault]))?;
    let mut fields = match front {
        Some(front) => Fields::new(front),
        None => Fields::new(dialect::front(text, layout.body)),
    };
    let body = &text[layout.body..];
    let mut wish = fields.wish(path, exists);
    if wish.title.is_empty() {
        wish.title = dialect::title(body).unwrap_or_else(|| path.slug().replace('-', " "));
    }
    if fields.faults.is_empty() {
        body.clone_into(&mut wish.body);
        Ok(wish)
    } else {
        Err(told(fields.faults))
    }
}

/// Keys of the front matter that mean nothing here and are no slip of the pen either, with their lines. Empty for files
/// that cannot be read; `read` says why.
pub fn unknown_keys(bytes: &[u8]) -> Vec<UnknownKey> {
    let Ok(text) = text_of(bytes) else { return Vec::new() };
    let Ok((_, Some(front))) = parts(text) else { return Vec::new() };
    let unknown = front.entries.iter().filter(|e| Key::parse(&e.key).is_none() && key::near(&e.key).is_none());
    unknown.map(|e| UnknownKey { key: e.key.clone(), line: line_at(text, e.place.start) }).collect()
}

/// The file as text, or line and reason why it is none.
fn text_of(bytes: &[u8]) -> Result<&str, (Option<u32>, String)> {
    if bytes.len() > SIZE_MAX {
        return Err((None, format!("{} bytes are more than the {SIZE_MAX} that a task file may have", bytes.len())));
    }
    let line = |at: usize| Some(count_lines(&bytes[..at]));
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let at = e.valid_up_to();
        (line(at), format!("not UTF-8: byte {:#04x} at offset {at}", bytes.get(at).copied().unwrap_or(0)))
    })?;
    match text.find('\0') {
        Some(at) => Err((line(at), format!("a NUL byte at offset {at}"))),
        None => Ok(text),
    }
}

/// Finds and reads the front matter. Conflict markers are looked for first: what they break is said badly by YAML.
fn parts(text: &str) -> Result<(Layout, Option<Front>), Fault> {
    let layout = front::layout(text);
    let body = layout.as_ref().map_or(text.len(), |l| l.body);
    let in_front = markdown::lines(&text[..body], 1, 0).find(|l| markdown::is_conflict(l.text));
    let in_body = || markdown::lines(&text[body..], 1, body).find(|l| !l.fenced && markdown::is_conflict(l.text));
    if let Some(line) = in_front.or_else(in_body) {
        return Err(Fault::new(line.at, "conflict markers of a merge: resolve them first"));
    }
    let layout = layout?;
    let front = layout.yaml.as_ref().map(|yaml| front::parse(text, yaml)).transpose()?;
    Ok((layout, front))
}

fn line_at(text: &str, at: usize) -> u32 {
    count_lines(&text.as_bytes()[..at.min(text.len())])
}

/// The number of the line that comes after `before`.
fn count_lines(before: &[u8]) -> u32 {
    u32::try_from(before.iter().filter(|b| **b == b'\n').count()).map_or(u32::MAX, |n| n.saturating_add(1))
}

#[cfg(test)]
mod tests;
