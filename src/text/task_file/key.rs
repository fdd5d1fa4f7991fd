//! The keys of the front matter, and what somebody may have meant who wrote another one. A slip of the pen must not be
//! passed over: a task whose `depend_on` is ignored starts too early.

/// A key with a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Title,
    Status,
    DependsOn,
    Priority,
    Agent,
    Model,
    Requester,
    Labels,
    Attempts,
    Timeout,
    Checks,
    Review,
    Approved,
    Wish,
    Retry,
    Script,
}

/// A key without a meaning here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// As written; hostile text.
    pub key: String,
    /// Line in the file, from 1.
    pub line: u32,
}

impl Key {
    /// In the order in which new files show them.
    pub const ALL: &'static [Self] = &[
        Self::Title,
        Self::Status,
        Self::DependsOn,
        Self::Priority,
        Self::Agent,
        Self::Model,
        Self::Requester,
        Self::Labels,
        Self::Attempts,
        Self::Timeout,
        Self::Checks,
        Self::Review,
        Self::Approved,
        Self::Wish,
        Self::Retry,
        Self::Script,
    ];

    /// The key as files have it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Title => "title",
            Self::Status => "status",
            Self::DependsOn => "depends_on",
            Self::Priority => "priority",
            Self::Agent => "agent",
            Self::Model => "model",
            Self::Requester => "requester",
            Self::Labels => "labels",
            Self::Attempts => "attempts",
            Self::Timeout => "timeout",
            Self::Checks => "checks",
            Self::Review => "review",
            Self::Approved => "approved",
            Self::Wish => "wish",
            Self::Retry => "retry",
            Self::Script => "script",
        }
    }

    /// The key that is exactly `word`.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|key| key.word() == word)
    }
}

/// Words of other tools for what would be lost without a trace.
const SYNONYMS: &[(&str, Key)] = &[
    ("after", Key::DependsOn),
    ("blocked_by", Key::DependsOn),
    ("dependencies", Key::DependsOn),
    ("depends", Key::DependsOn),
    ("deps", Key::DependsOn),
    ("needs", Key::DependsOn),
    ("requires", Key::DependsOn),
    ("max_attempts", Key::Attempts),
    ("tries", Key::Attempts),
    ("prio", Key::Priority),
    ("time_limit", Key::Timeout),
    ("commands", Key::Script),
];

/// Words of their own that only look like a slip.
const OWN: &[&str] = &["mode", "reviewer", "requested", "wishes"];

/// The known key that `word`, which is none, was most likely meant to be.
pub(super) fn near(word: &str) -> Option<Key> {
    // Longer than any key with its slips; also keeps the comparison below small.
    if word.len() > 32 {
        return None;
    }
    let plain = word.trim().to_lowercase().replace(['-', ' '], "_");
    if OWN.contains(&plain.as_str()) {
        return None;
    }
    if let Some((_, key)) = SYNONYMS.iter().find(|(other, _)| *other == plain) {
        return Some(*key);
    }
    Key::ALL
        .iter()
        .map(|key| (distance(&plain, key.word()), *key))
        .filter(|(far, key)| *far <= if key.word().len() > 5 { 2 } else { 1 })
        .min_by_key(|(far, _)| *far)
        .map(|(_, key)| key)
}

/// Insertions, deletions, changes and swaps of neighbours that lead from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut best = change.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_told_from_other_words() {
        for (slip, key) in [
            ("depend_on", Key::DependsOn),
            ("depends-on", Key::DependsOn),
            ("Depends On", Key::DependsOn),
            ("dependencies", Key::DependsOn),
            ("Title", Key::Title),
            ("tilte", Key::Title),
            ("state", Key::Status),
            ("label", Key::Labels),
            ("time-out", Key::Timeout),
            ("check", Key::Checks),
        ] {
            assert_eq!(near(slip), Some(key), "{slip}");
        }
        for other in ["created", "assignee", "summary", "branch", "parent", "reviewer", "mode", "id", "tags", "🦀", ""]
        {
            assert_eq!(near(other), None, "{other}");
        }
    }

    #[test]
    fn every_key_is_its_own_word() {
        assert!(Key::ALL.iter().all(|key| Key::parse(key.word()) == Some(*key)));
    }
}
