//! Names of things. A task path, a project name and an object id are checked here once; everything built from them
//! (folders, refs, branches, run ids) can then be built without another check.

use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// Longest slug, in bytes.
pub const SLUG_MAX: usize = 64;
/// Longest task path (slugs joined by `/`), in bytes.
pub const PATH_MAX: usize = 200;

/// Why a name was refused. The text names the rule, so that it can be shown to a person as it stands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("a slug may not be empty")]
    EmptySlug,
    #[error("slug {0:?} is longer than {SLUG_MAX} bytes")]
    LongSlug(String),
    #[error("slug {0:?} may hold only a-z, 0-9 and '-', and starts with a letter or digit")]
    BadSlug(String),
    #[error("the slug \"lock\" is refused: git keeps names that end in .lock for itself")]
    Lock,
    #[error("task path {0:?} is longer than {PATH_MAX} bytes")]
    LongPath(String),
    #[error("{0:?} is no git object id")]
    BadOid(String),
}

/// One part of a task path: `[a-z0-9][a-z0-9-]*`, up to 64 bytes, never `lock`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Slug(String);

impl Slug {
    /// Checks `text` against the rule for slugs.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        check_slug(text)?;
        Ok(Self(text.to_owned()))
    }

    /// A slug made from free text such as a title: lower case, runs of other characters become one `-`, cut at 64
    /// bytes on a word where that is possible. `None` when nothing is left.
    pub fn from_title(title: &str) -> Option<Self> {
        let mut out = String::new();
        for c in title.chars() {
            let c = c.to_ascii_lowercase();
            if c.is_ascii_alphanumeric() {
                out.push(c);
            } else if !out.is_empty() && !out.ends_with('-') {
                out.push('-');
            }
        }
        if out.len() > SLUG_MAX {
            out.truncate(SLUG_MAX);
            if let Some(cut) = out.rfind('-').filter(|cut| *cut > SLUG_MAX / 2) {
                out.truncate(cut);
            }
        }
        let out = out.trim_matches('-');
        if out == "lock" {
            return Self::parse("lock-task").ok();
        }
        Self::parse(out).ok()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_slug(text: &str) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::EmptySlug);
    }
    if text.len() > SLUG_MAX {
        return Err(IdError::LongSlug(text.chars().take(80).collect()));
    }
    let ok = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    if !ok(text.as_bytes()[0]) || !text.bytes().all(|b| ok(b) || b == b'-') {
        return Err(IdError::BadSlug(text.to_owned()));
    }
    if text == "lock" {
        return Err(IdError::Lock);
    }
    Ok(())
}

/// Where a task stands below `tasks/`: slugs joined by `/`, up to 200 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct TaskPath(String);

impl TaskPath {
    /// Checks every part of `text`.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if text.len() > PATH_MAX {
            return Err(IdError::LongPath(text.chars().take(80).collect()));
        }
        for part in text.split('/') {
            check_slug(part)?;
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The parts, from the root down.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The last part.
    pub fn slug(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The task that contains this one, if any.
    pub fn parent(&self) -> Option<Self> {
        self.0.rfind('/').map(|cut| Self(self.0[..cut].to_owned()))
    }

    /// The path one level below, refused when it grows too long.
    pub fn child(&self, slug: &Slug) -> Result<Self, IdError> {
        Self::parse(&format!("{}/{}", self.0, slug.as_str()))
    }

    /// True for every task below `other`, not for `other` itself.
    pub fn is_below(&self, other: &Self) -> bool {
        self.0.len() > other.0.len() + 1 && self.0.starts_with(&other.0) && self.0.as_bytes()[other.0.len()] == b'/'
    }

    /// Bounds of everything below this path in an ordered map: `from..to`. Neither is a legal path.
    pub fn bounds_below(&self) -> (Self, Self) {
        (Self(format!("{}/", self.0)), Self(format!("{}0", self.0)))
    }

    /// The path with `.` for `/`. Slugs hold no dots, so this is one to one, and it is a legal ref part and file name.
    pub fn dotted(&self) -> String {
        self.0.replace('/', ".")
    }

    /// The branch an attempt works on.
    pub fn branch(&self) -> String {
        format!("overnight-task/{}", self.dotted())
    }

    /// Resolves a reference found in this task's file: `./x` and `../x` are relative to this task's own folder's
    /// parent (`./x` is a sibling), one slug is a sibling where `exists` knows it, else a path from the root.
    pub fn resolve(&self, reference: &str, exists: impl Fn(&Self) -> bool) -> Result<Self, IdError> {
        let mut base: Vec<&str> = self.parts().collect();
        base.pop();
        if reference.starts_with("./") || reference.starts_with("../") {
            let mut rest = reference;
            if let Some(after) = rest.strip_prefix("./") {
                rest = after;
            }
            while let Some(after) = rest.strip_prefix("../") {
                if base.pop().is_none() {
                    return Err(IdError::BadSlug(reference.to_owned()));
                }
                rest = after;
            }
            base.extend(rest.split('/'));
            return Self::parse(&base.join("/"));
        }
        let from_root = Self::parse(reference)?;
        if !reference.contains('/') && !base.is_empty() {
            base.push(reference);
            let sibling = Self::parse(&base.join("/"))?;
            if exists(&sibling) {
                return Ok(sibling);
            }
        }
        Ok(from_root)
    }
}

/// A project's name among this user's projects; a slug.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ProjectId(String);

impl ProjectId {
    pub fn parse(text: &str) -> Result<Self, IdError> {
        check_slug(text)?;
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One task of one project: the key of everything on the board.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    pub project: ProjectId,
    pub path: TaskPath,
}

/// Numbers the entries into phases of one task, rising for ever. An answer with an older epoch is stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// One child program: `<project>.<path with dots>.<epoch>[.<what>]`. A spawn is idempotent by this name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(String);

impl RunId {
    /// The run that the phase entry `epoch` of `task` asks for.
    pub fn new(task: &TaskId, epoch: Epoch) -> Self {
        Self(format!("{}.{}.{}", task.project.as_str(), task.path.dotted(), epoch.0))
    }

    /// A side run of a project (its baseline), which belongs to no task. `_` is in no slug, so it meets no task's run.
    pub fn of_project(project: &ProjectId, what: &str, epoch: Epoch) -> Self {
        Self(format!("{}._{}.{}", project.as_str(), what, epoch.0))
    }

    /// A run beside the one that `epoch` asks for; `what` is a slug. Its last part is no number, so it is nobody's phase.
    pub fn side(task: &TaskId, epoch: Epoch, what: &str) -> Self {
        Self(format!("{}.{}.{}.{what}", task.project.as_str(), task.path.dotted(), epoch.0))
    }

    /// Takes a run folder's name as it is; `None` for names that no run of ours can have.
    pub fn from_folder(name: &str) -> Option<Self> {
        let ok = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'_');
        (!name.is_empty() && !name.starts_with('.') && name.bytes().all(ok)).then(|| Self(name.to_owned()))
    }

    /// The epoch that this run belongs to.
    pub fn epoch(&self) -> Option<Epoch> {
        self.0.rsplit('.').next()?.parse().ok().map(Epoch)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A git object id in hexadecimal: 40 digits (SHA-1) or 64 (SHA-256).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Oid(String);

impl Oid {
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let hex = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if hex && matches!(text.len(), 40 | 64) {
            Ok(Self(text.to_owned()))
        } else {
            Err(IdError::BadOid(text.chars().take(80).collect()))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first ten digits, for people.
    pub fn short(&self) -> &str {
        &self.0[..10]
    }
}

macro_rules! checked_text {
    ($($name:ident => $parse:path),* $(,)?) => { $(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                $parse(&String::deserialize(d)?).map_err(serde::de::Error::custom)
            }
        }
    )* };
}
checked_text!(Slug => Slug::parse, TaskPath => TaskPath::parse, ProjectId => ProjectId::parse, Oid => Oid::parse);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.project, self.path)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_paths_are_refused_before_anything_is_built_from_them() {
        let long = "a".repeat(65);
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "/etc/x",
            "a//b",
            "a/../b",
            "-rf",
            "a b",
            "A",
            "é",
            "a\u{202e}b",
            "a\nb",
            "a\0b",
            "lock",
            "a/lock",
            ".git",
            "a.lock",
            "@",
            "HEAD",
            "CON",
            " ",
            "a/",
            &long,
        ] {
            assert!(TaskPath::parse(bad).is_err(), "{bad:?} was taken");
        }
        assert!(TaskPath::parse(&vec!["abcdefghi"; 21].join("/")).is_err(), "over 200 bytes");
        for good in ["a", "a/b", "a/b/c", "0-x", "locks", "a-"] {
            assert!(TaskPath::parse(good).is_ok(), "{good:?} was refused");
        }
    }

    #[test]
    fn a_title_becomes_a_slug() {
        let slug = |t| Slug::from_title(t).map(|s| s.0);
        assert_eq!(slug("Add a /health endpoint!").as_deref(), Some("add-a-health-endpoint"));
        assert_eq!(slug("$(touch x)").as_deref(), Some("touch-x"));
        assert_eq!(slug("lock").as_deref(), Some("lock-task"));
        assert_eq!(slug("???"), None);
        assert!(slug(&"word ".repeat(40)).is_some_and(|s| s.len() <= SLUG_MAX && s.ends_with("word")));
    }

    #[test]
    fn references_resolve_as_sibling_relative_or_from_the_root() {
        let p = |t| TaskPath::parse(t).unwrap();
        let me = p("a/b");
        assert_eq!(me.resolve("./c", |_| false), Ok(p("a/c")));
        assert_eq!(me.resolve("../x", |_| false), Ok(p("x")));
        assert_eq!(me.resolve("c", |t| t.as_str() == "a/c"), Ok(p("a/c")));
        assert_eq!(me.resolve("c", |_| false), Ok(p("c")));
        assert_eq!(me.resolve("x/y", |_| true), Ok(p("x/y")));
        assert!(me.resolve("../../../x", |_| true).is_err());
    }

    #[test]
    fn below_means_strictly_below() {
        let p = |t| TaskPath::parse(t).unwrap();
        assert!(p("a/b").is_below(&p("a")));
        assert!(!p("a").is_below(&p("a")));
        assert!(!p("ab/c").is_below(&p("a")));
    }
}
