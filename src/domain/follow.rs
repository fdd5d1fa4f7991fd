//! What an agent is told when it goes on with a task that it has begun.

use super::id::RunId;
use serde::{Deserialize, Serialize};

/// A message that follows the brief.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Follow {
    /// The message as it is.
    Said(String),
    /// A check did not pass. The message is made when the agent is started, with what the check printed.
    Failed(Box<FailedCheck>),
}

impl From<String> for Follow {
    fn from(text: String) -> Self {
        Self::Said(text)
    }
}

/// A check that did not pass, and where its output is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedCheck {
    pub check: String,
    /// As a person would type it.
    pub command: String,
    /// How it ended, in words.
    pub ended: String,
    /// The run of the check; its transcript has the whole output, as long as its folder is kept.
    pub run: RunId,
    /// The end of the output; hostile text.
    pub tail: String,
    /// Bytes of output in all.
    pub bytes: u64,
    /// Attempts left, the one that begins included.
    pub left: u32,
}
