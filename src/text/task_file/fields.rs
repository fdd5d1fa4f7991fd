//! From entries of the front matter to the wish. Every key is judged, also after a fault, so that a person sees all
//! that is wrong with a file at once.

use super::front::{Entry, Fault, Front, Value};
use super::key::{Key, near};
use crate::domain::TaskPath;
use crate::domain::status::Status;
use crate::domain::task::{Wish, WishStatus, WishVerb};
use crate::domain::time::parse_duration;
use std::time::Duration;

/// How often an agent may be asked to run, at most.
const ATTEMPTS_MAX: u32 = 20;
/// Longest name of an agent, model, requester, label or check, in bytes.
const NAME_MAX: usize = 200;
/// The most items of a list.
const ITEMS_MAX: usize = 1000;

/// Entries on their way to a wish, and what was wrong with them.
pub(super) struct Fields {
    entries: Vec<Entry>,
    pub faults: Vec<Fault>,
}

impl Fields {
    /// Refuses doubled keys and keys that are most likely misspelt.
    pub(super) fn new(front: Front) -> Self {
        let mut faults = Vec::new();
        for (n, entry) in front.entries.iter().enumerate() {
            if front.entries[..n].iter().any(|e| e.key == entry.key) {
                faults
                    .push(Fault::new(entry.place.start, format!("the key {:?} stands here a second time", entry.key)));
            }
            if Key::parse(&entry.key).is_none()
                && let Some(key) = near(&entry.key)
            {
                let reason = format!("unknown key {:?}: did you mean `{}`?", entry.key, key.word());
                faults.push(Fault::new(entry.place.start, reason));
            }
        }
        Self { entries: front.entries, faults }
    }

    /// All fields but the body; the title is empty where none is given.
    pub(super) fn wish(&mut self, path: &TaskPath, exists: &dyn Fn(&TaskPath) -> bool) -> Wish {
        Wish {
            title: self.text(Key::Title).map(|(text, _)| text).filter(|t| !t.trim().is_empty()).unwrap_or_default(),
            status: self.status(),
            depends_on: self.depends_on(path, exists),
            priority: self.number(Key::Priority, i32::MIN, i32::MAX).unwrap_or(0),
            agent: self.name(Key::Agent),
            model: self.name(Key::Model),
            requester: self.name(Key::Requester),
            labels: self.names(Key::Labels).unwrap_or_default(),
            attempts: self.number(Key::Attempts, 1, ATTEMPTS_MAX),
            timeout: self.timeout(),
            checks: self.names(Key::Checks),
            review: self.flag(Key::Review),
            approved: self.number(Key::Approved, 0, u32::MAX),
            wish: self.verb(),
            retry: self.number(Key::Retry, 0, u32::MAX).unwrap_or(0),
            script: self.script(),
            body: String::new(),
        }
    }

    fn status(&mut self) -> WishStatus {
        let Some((text, at)) = self.text(Key::Status) else { return WishStatus::Planning };
        match text.trim().to_lowercase().as_str() {
            "planning" => WishStatus::Planning,
            "queued" => WishStatus::Queued,
            word => {
                let hint = match Status::parse(word) {
                    Some(_) => "what became of a task is not told here; write `planning` or `queued`",
                    None => "write `planning` or `queued`",
                };
                self.fault(at, format!("the status {text:?} is no wish: {hint}"));
                WishStatus::Planning
            }
        }
    }

    fn depends_on(&mut self, path: &TaskPath, exists: &dyn Fn(&TaskPath) -> bool) -> Vec<TaskPath> {
        let mut needs = Vec::new();
        for (text, at) in self.list(Key::DependsOn).unwrap_or_default() {
            if text == "None" {
                continue;
            }
            if text.contains("://") {
                self.fault(at, format!("{text:?} is a task of another project, which cannot be waited for"));
                continue;
            }
            match path.resolve(&text, exists) {
                Ok(need) => needs.push(need),
                Err(error) => self.fault(at, format!("{text:?} names no task: {error}")),
            }
        }
        needs.sort();
        needs.dedup();
        needs
    }

    fn timeout(&mut self) -> Option<Duration> {
        let (text, at) = self.text(Key::Timeout)?;
        match parse_duration(&text) {
            Ok(timeout) if !timeout.is_zero() => return Some(timeout),
            Ok(_) => self.fault(at, "a timeout of no time at all".to_owned()),
            Err(error) => self.fault(at, error),
        }
        None
    }

    fn verb(&mut self) -> Option<WishVerb> {
        let (text, at) = self.text(Key::Wish)?;
        if text.trim() == "abort" {
            return Some(WishVerb::Abort);
        }
        self.fault(at, format!("the wish {text:?} is unknown; there is `abort`"));
        None
    }

    fn flag(&mut self, key: Key) -> Option<bool> {
        let (text, at) = self.text(key)?;
        match text.trim().to_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => {
                self.fault(at, format!("`{}` is true or false, not {text:?}", key.word()));
                None
            }
        }
    }

    fn number<N>(&mut self, key: Key, min: N, max: N) -> Option<N>
    where
        N: std::str::FromStr + PartialOrd + std::fmt::Display,
    {
        let (text, at) = self.text(key)?;
        match text.trim().parse::<N>() {
            Ok(number) if number >= min && number <= max => Some(number),
            _ => {
                self.fault(at, format!("`{}` is a whole number from {min} to {max}, not {text:?}", key.word()));
                None
            }
        }
    }

    /// A list of commands, or one command.
    fn script(&mut self) -> Vec<String> {
        match self.take(Key::Script).map(|e| e.value) {
            Some(Value::Text { text, .. }) => vec![text],
            _ => self.list(Key::Script).unwrap_or_default().into_iter().map(|(text, _)| text).collect(),
        }
    }

    /// A name that becomes an argument somewhere.
    fn name(&mut self, key: Key) -> Option<String> {
        let (text, at) = self.text(key)?;
        let name = text.trim().to_owned();
        self.judge_name(key, &name, at);
        Some(name).filter(|n| !n.is_empty())
    }

    fn names(&mut self, key: Key) -> Option<Vec<String>> {
        let list = self.list(key)?;
        list.iter().for_each(|(name, at)| self.judge_name(key, name, *at));
        Some(list.into_iter().map(|(name, _)| name).collect())
    }

    fn judge_name(&mut self, key: Key, name: &str, at: usize) {
        if name.starts_with('-') || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            let rule = format!("no `-` at its start, no control characters, up to {NAME_MAX} bytes");
            self.fault(at, format!("`{}` may not be {:?}: {rule}", key.word(), crate::domain::safe::cut(name, 80)));
        }
    }

    /// The items of a list, or of one text with commas, with their places; blank ones in a text are left out.
    fn list(&mut self, key: Key) -> Option<Vec<(String, usize)>> {
        let Entry { value, span, .. } = self.take(key)?;
        let mut items: Vec<(String, usize)> = match value {
            Value::Null => return None,
            Value::Text { text, .. } => {
                let parts = text.split([',', '\n']).map(str::trim).filter(|part| !part.is_empty());
                parts.map(|part| (part.to_owned(), span.start)).collect()
            }
            Value::List { items, .. } => {
                let mut kept = Vec::new();
                for item in items {
                    match item.text {
                        Some(text) if !text.trim().is_empty() && key == Key::Script => {
                            kept.push((text, item.span.start))
                        }
                        Some(text) if !text.trim().is_empty() => kept.push((text.trim().to_owned(), item.span.start)),
                        _ => self.fault(item.span.start, format!("an empty item in `{}`", key.word())),
                    }
                }
                kept
            }
            Value::Nested => {
                self.fault(span.start, format!("`{}` is a list of words", key.word()));
                return None;
            }
        };
        if items.len() > ITEMS_MAX {
            self.fault(span.start, format!("`{}` has more than {ITEMS_MAX} items", key.word()));
            items.truncate(ITEMS_MAX);
        }
        if let Some((_, at)) = items.iter().find(|(text, _)| text.contains('\0')) {
            self.fault(*at, format!("a NUL character in `{}`", key.word()));
        }
        Some(items)
    }

    fn text(&mut self, key: Key) -> Option<(String, usize)> {
        let Entry { value, span, .. } = self.take(key)?;
        match value {
            Value::Null => None,
            Value::Text { text, .. } if text.contains('\0') => {
                self.fault(span.start, format!("a NUL character in `{}`", key.word()));
                None
            }
            Value::Text { text, .. } => Some((text, span.start)),
            Value::List { .. } | Value::Nested => {
                self.fault(span.start, format!("`{}` is one word or text, no collection", key.word()));
                None
            }
        }
    }

    fn take(&self, key: Key) -> Option<Entry> {
        self.entries.iter().find(|e| e.key == key.word()).cloned()
    }

    fn fault(&mut self, at: usize, reason: String) {
        self.faults.push(Fault::new(at, reason));
    }
}
