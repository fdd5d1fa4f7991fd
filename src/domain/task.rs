//! What somebody wants done: the wish, as read from a task's README, with all references resolved.

use super::id::TaskPath;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Whether a task may be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WishStatus {
    /// Written down, not to be started yet.
    #[default]
    Planning,
    /// To be done.
    Queued,
}

/// What a person asks of a task that is already under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WishVerb {
    /// Stop it, keep its work under a rescue ref, and do not start it again.
    Abort,
}

/// The front matter and prose of `tasks/<path>/README.md`. Written by people and by verbs on their behalf; the daemon
/// only reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Wish {
    pub title: String,
    pub status: WishStatus,
    /// Resolved paths, sorted, without duplicates.
    pub depends_on: Vec<TaskPath>,
    /// Larger first; 0 where nothing is said.
    pub priority: i32,
    /// The profile that shall work on it; the project's default where nothing is said.
    pub agent: Option<String>,
    pub model: Option<String>,
    pub requester: Option<String>,
    pub labels: Vec<String>,
    /// How often the agent may run, the first time included.
    pub attempts: Option<u32>,
    /// Wall time of one agent run.
    #[serde(with = "opt_ms")]
    pub timeout: Option<Duration>,
    /// Names of checks from `overnight.toml`; `None` is all of them.
    pub checks: Option<Vec<String>>,
    /// Wait for a person before merging: yes, no (also where the project's rules would have it), or as the rules say.
    pub review: Option<bool>,
    /// A person's yes to the work of the generation `retry` that is named here; it says nothing of another try's.
    pub approved: Option<u32>,
    pub wish: Option<WishVerb>,
    /// Generation: one more than the last observed one asks for a new try.
    pub retry: u32,
    /// Commands of the built-in script agent, run one after the other.
    pub script: Vec<String>,
    /// Everything below the front matter, as it stands.
    pub body: String,
}

/// Why a task file is not used. Listed with the task; the others go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invalid {
    /// The path as found, which may be no legal task path; escape before showing.
    pub place: String,
    /// Line in the file, from 1, where one can be named.
    pub line: Option<u32>,
    pub reason: String,
}

/// All wishes of one project as read from one commit of the state repo.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WishSet {
    pub wishes: BTreeMap<TaskPath, Wish>,
    pub invalid: Vec<Invalid>,
}

mod opt_ms {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(d: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        d.map(crate::domain::time::millis).serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(d)?.map(Duration::from_millis))
    }
}
