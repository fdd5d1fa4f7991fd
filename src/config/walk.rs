//! Reading typed values out of a TOML document while keeping count: where each stands, which keys were asked for, and
//! everything that is wrong. Keys nobody asked for are problems at the end, with the nearest known key as a hint.

use super::Problem;
use crate::domain::time::parse_duration;
use std::cell::RefCell;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Bytes `start..end` of the document.
pub(super) type Span = Range<usize>;

/// Problems that are told of one file; a file with more is no configuration.
const MAX_PROBLEMS: usize = 100;

/// The document's text and what was found wrong with it so far.
pub(super) struct Doc<'a> {
    text: &'a str,
    /// Where each line starts.
    lines: Vec<usize>,
    problems: RefCell<Vec<Found>>,
}

/// A problem at byte `at`.
struct Found {
    at: usize,
    key: String,
    text: String,
    help: Option<String>,
}

/// One table of the document being read.
pub(super) struct Section<'a, 'i> {
    pub(super) doc: &'a Doc<'a>,
    table: &'a DeTable<'i>,
    /// `checks[2]`; empty for the whole document.
    pub(super) path: String,
    pub(super) span: Span,
    asked: RefCell<Vec<&'static str>>,
}

/// A value with its key and place.
#[derive(Clone)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) key: String,
    pub(super) span: Span,
}

impl<T> At<T> {
    fn with<U>(&self, value: U) -> At<U> {
        At { value, key: self.key.clone(), span: self.span.clone() }
    }
}

type Raw<'a, 'i> = At<&'a Spanned<DeValue<'i>>>;

impl<'a> Doc<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect();
        Self { text, lines, problems: RefCell::default() }
    }

    /// Notes a problem at byte `at`.
    pub(super) fn problem(&self, at: usize, key: &str, text: impl Into<String>, help: Option<String>) {
        self.problems.borrow_mut().push(Found { at, key: key.to_owned(), text: text.into(), help });
    }

    /// Notes a problem with a value that was read.
    pub(super) fn bad<T>(&self, at: &At<T>, text: impl Into<String>, help: Option<&str>) {
        self.problem(at.span.start, &at.key, text, help.map(str::to_owned));
    }

    /// The line of byte `at`, from 1.
    pub(super) fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }

    /// The first problems in the order of their places.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut found = self.problems.take();
        found.sort_by_key(|found| found.at);
        let more = found.len().saturating_sub(MAX_PROBLEMS);
        found.truncate(MAX_PROBLEMS);
        let mut out: Vec<_> = found
            .into_iter()
            .map(|Found { at, key, text, help }| {
                let (line, column) = self.place(at);
                Problem { line, column, key, text, help }
            })
            .collect();
        if more > 0 {
            let text = format!("and {more} problems more");
            out.push(Problem { line: 0, column: 0, key: String::new(), text, help: None });
        }
        out
    }

    /// Line and column (in characters) of byte `at`, from 1.
    pub(super) fn place(&self, at: usize) -> (usize, usize) {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let line = self.line(at);
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        (line, self.text[start..at].chars().count() + 1)
    }
}

impl<'a, 'i> Section<'a, 'i> {
    pub(super) fn new(doc: &'a Doc<'a>, path: String, table: &'a DeTable<'i>, span: Span) -> Self {
        Self { doc, table, path, span, asked: RefCell::default() }
    }

    /// The full name of `key` in this table.
    pub(super) fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// True when `key` is written here.
    pub(super) fn has(&self, key: &'static str) -> bool {
        self.raw(key).is_some()
    }

    /// True when `key` is written here and is a table.
    pub(super) fn is_table(&self, key: &'static str) -> bool {
        self.raw(key).is_some_and(|raw| raw.value.as_ref().is_table())
    }

    /// Where `key` stands, or else this table.
    pub(super) fn key_place(&self, key: &str) -> usize {
        self.table.get_key_value(key).map_or(self.span.start, |(key, _)| key.span().start)
    }

    fn raw(&self, key: &'static str) -> Option<Raw<'a, 'i>> {
        if !self.asked.borrow().contains(&key) {
            self.asked.borrow_mut().push(key);
        }
        let value = self.table.get(key)?;
        Some(At { value, key: self.name(key), span: value.span() })
    }

    fn typed<T>(&self, key: &'static str, what: &str, get: impl FnOnce(&'a DeValue<'i>) -> Option<T>) -> Option<At<T>> {
        let raw = self.raw(key)?;
        typed(self.doc, &raw, what, get)
    }

    /// Says that `key` is missing, at the head of this table.
    pub(super) fn missing(&self, key: &str, help: &str) {
        self.doc.problem(self.span.start, &self.name(key), "is missing", Some(help.to_owned()));
    }

    pub(super) fn boolean(&self, key: &'static str) -> Option<At<bool>> {
        self.typed(key, "true or false", |v| v.as_bool())
    }

    /// Text over any number of lines.
    pub(super) fn text(&self, key: &'static str) -> Option<At<String>> {
        let at = self.typed(key, "a string", |v| v.as_str().map(str::to_owned))?;
        sound_text(self.doc, at)
    }

    /// Text on one line, not empty.
    pub(super) fn line(&self, key: &'static str) -> Option<At<String>> {
        sound_line(self.doc, self.text(key)?)
    }

    /// A list of strings.
    pub(super) fn lines(&self, key: &'static str) -> Option<At<Vec<At<String>>>> {
        let raw = self.raw(key)?;
        strings(self.doc, &raw)
    }

    /// A whole number within `range`.
    pub(super) fn number(&self, key: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let raw = self.raw(key)?;
        let at = integer(self.doc, &raw)?;
        match u32::try_from(at.value).ok().filter(|n| range.contains(n)) {
            Some(n) => Some(n),
            None => {
                let text = format!("{} is outside {} to {}", at.value, range.start(), range.end());
                self.doc.bad(&at, text, None);
                None
            }
        }
    }

    /// A duration such as `"30m"`, at least `least`.
    pub(super) fn duration(&self, key: &'static str, least: Duration) -> Option<Duration> {
        let raw = self.raw(key)?;
        let help = "write a whole number and a unit in quotes, as in \"90s\", \"30m\" or \"2h\"";
        let Some(text) = raw.value.as_ref().as_str() else {
            let found = raw.value.as_ref().type_str();
            self.doc.bad(&raw, format!("a duration is expected, found {}", article(found)), Some(help));
            return None;
        };
        match parse_duration(text) {
            Ok(d) if d < least => {
                let text = format!("{text:?} is shorter than {}", crate::domain::time::human(least));
                self.doc.bad(&raw, text, None);
                None
            }
            Ok(d) => Some(d),
            Err(why) => {
                self.doc.bad(&raw, why, None);
                None
            }
        }
    }

    /// A size such as `"64MB"` in bytes, within `range`; a bare number is bytes.
    pub(super) fn size(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let raw = self.raw(key)?;
        let size = match raw.value.as_ref() {
            DeValue::Integer(_) => u64::try_from(integer(self.doc, &raw)?.value).ok(),
            DeValue::String(text) => parse_size(text),
            other => {
                let text = format!("a size is expected, found {}", article(other.type_str()));
                self.doc.bad(&raw, text, Some("as in \"64MB\""));
                return None;
            }
        };
        match size {
            None => self.doc.bad(&raw, "is no size", Some("as in \"64MB\", \"512KB\" or \"1GB\"")),
            Some(size) if !range.contains(&size) => {
                let text = format!("is outside {} to {} bytes", range.start(), range.end());
                self.doc.bad(&raw, text, None);
            }
            Some(size) => return Some(size),
        }
        None
    }

    /// One of `words`.
    pub(super) fn word<T: Copy>(&self, key: &'static str, words: &[(&'static str, T)]) -> Option<At<T>> {
        let at = self.typed(key, "a string", |v| v.as_str())?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == at.value) {
            return Some(at.with(*value));
        }
        let list: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        let text = format!("{:?} is not one of {}", at.value, list.join(", "));
        let help = nearest(at.value, words.iter().map(|(w, _)| *w)).map(|w| format!("did you mean {w:?}?"));
        self.doc.problem(at.span.start, &at.key, text, help);
        None
    }

    /// A table; absent ones are `None`.
    pub(super) fn table(&self, key: &'static str) -> Option<Section<'a, 'i>> {
        let at = self.typed(key, "a table", |v| v.as_table())?;
        Some(Section::new(self.doc, at.key, at.value, at.span))
    }

    /// An array of tables (`[[key]]`); absent is empty.
    pub(super) fn tables(&self, key: &'static str) -> Vec<Section<'a, 'i>> {
        let Some(at) = self.typed(key, "an array of tables", |v| v.as_array()) else { return Vec::new() };
        let mut out = Vec::new();
        for (i, item) in at.value.iter().enumerate() {
            let raw = At { value: item, key: format!("{}[{}]", at.key, i + 1), span: item.span() };
            if let Some(table) = typed(self.doc, &raw, "a table", |v| v.as_table()) {
                out.push(Section::new(self.doc, table.key, table.value, table.span));
            }
        }
        out
    }

    /// A string or a list of strings, as it stands.
    pub(super) fn string_or_list(&self, key: &'static str) -> Option<Either> {
        let raw = self.raw(key)?;
        match raw.value.as_ref() {
            DeValue::String(_) => self.text(key).map(Either::One),
            DeValue::Array(_) => strings(self.doc, &raw).map(Either::Many),
            other => {
                let text = format!("a string or a list of strings is expected, found {}", article(other.type_str()));
                self.doc.bad(&raw, text, None);
                None
            }
        }
    }

    /// Every pair of strings in the table, in the order of the keys.
    pub(super) fn pairs(&self) -> Vec<(String, At<String>)> {
        let mut out = Vec::new();
        for (key, value) in self.table {
            let raw = At { value, key: self.name(key.as_ref()), span: value.span() };
            let text = typed(self.doc, &raw, "a string", |v| v.as_str().map(str::to_owned));
            if let Some(text) = text.and_then(|t| sound_text(self.doc, t)) {
                out.push((key.as_ref().to_string(), At { span: key.span(), ..text }));
            }
        }
        out
    }

    /// Every table in this table whose key was not asked for: name, place of the key, content.
    pub(super) fn others(&self) -> Vec<(At<String>, Section<'a, 'i>)> {
        let mut out = Vec::new();
        for (key, value) in self.table {
            let name = key.as_ref();
            if self.asked.borrow().iter().any(|a| *a == name.as_ref()) {
                continue;
            }
            if let Some(table) = value.as_ref().as_table() {
                let at = At { value: name.to_string(), key: self.name(name), span: key.span() };
                out.push((at, Section::new(self.doc, self.name(name), table, value.span())));
            } else {
                self.unknown(key);
            }
        }
        out
    }

    /// Reports every key that was not asked for.
    pub(super) fn finish(&self) {
        for key in self.table.keys() {
            if !self.asked.borrow().iter().any(|a| *a == key.as_ref().as_ref()) {
                self.unknown(key);
            }
        }
    }

    fn unknown(&self, key: &Spanned<std::borrow::Cow<'_, str>>) {
        let asked = self.asked.borrow();
        let help = match nearest(key.as_ref(), asked.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known here: {}", asked.join(", ")),
        };
        self.doc.problem(key.span().start, &self.name(key.as_ref()), "unknown key", Some(help));
    }
}

/// A string or a list.
pub(super) enum Either {
    One(At<String>),
    Many(At<Vec<At<String>>>),
}

fn typed<'a, 'i, T>(
    doc: &Doc<'_>,
    raw: &Raw<'a, 'i>,
    what: &str,
    get: impl FnOnce(&'a DeValue<'i>) -> Option<T>,
) -> Option<At<T>> {
    match get(raw.value.as_ref()) {
        Some(value) => Some(raw.with(value)),
        None => {
            let found = article(raw.value.as_ref().type_str());
            doc.bad(raw, format!("{what} is expected, found {found}"), None);
            None
        }
    }
}

fn integer(doc: &Doc<'_>, raw: &Raw<'_, '_>) -> Option<At<i64>> {
    let number = typed(doc, raw, "a whole number", |v| v.as_integer())?;
    match i64::from_str_radix(number.value.as_str(), number.value.radix()) {
        Ok(n) => Some(raw.with(n)),
        Err(_) => {
            doc.bad(raw, "is too large a number", None);
            None
        }
    }
}

fn strings(doc: &Doc<'_>, raw: &Raw<'_, '_>) -> Option<At<Vec<At<String>>>> {
    let array = typed(doc, raw, "a list of strings", |v| v.as_array())?;
    let mut out = Vec::new();
    let mut sound = true;
    for item in array.value.iter() {
        let one = At { value: item, key: raw.key.clone(), span: item.span() };
        let text = typed(doc, &one, "a string", |v| v.as_str().map(str::to_owned));
        match text.and_then(|t| sound_text(doc, t)) {
            Some(text) => out.push(text),
            None => sound = false,
        }
    }
    sound.then(|| raw.with(out))
}

fn sound_text(doc: &Doc<'_>, at: At<String>) -> Option<At<String>> {
    if at.value.contains('\0') {
        doc.bad(&at, "holds a NUL character", None);
        return None;
    }
    Some(at)
}

fn sound_line(doc: &Doc<'_>, at: At<String>) -> Option<At<String>> {
    if at.value.trim().is_empty() {
        doc.bad(&at, "is empty", None);
    } else if at.value.chars().any(crate::domain::safe::is_unsafe) {
        doc.bad(&at, "holds a line end or another control character", None);
    } else {
        return Some(at);
    }
    None
}

/// Bytes of `64MB`, `512 KiB`, `1g`, `100`: powers of 1024.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The word among `known` that `word` was probably meant to be.
pub(super) fn nearest<'w>(word: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    if word.len() > 64 {
        return None;
    }
    let limit = (word.chars().count() / 3).clamp(1, 3);
    known.map(|k| (distance(word, k), k)).filter(|(d, _)| *d <= limit).min_by_key(|(d, _)| *d).map(|(_, k)| k)
}

/// Edits (insert, delete, replace, swap of neighbours) from `a` to `b`.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.to_lowercase().replace('-', "_").chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => {
                    let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                        best = best.min(rows[i - 2][j - 2] + 1);
                    }
                    best
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

fn article(kind: &str) -> String {
    let an = matches!(kind.as_bytes().first(), Some(b'a' | b'e' | b'i' | b'o' | b'u'));
    format!("{} {kind}", if an { "an" } else { "a" })
}
