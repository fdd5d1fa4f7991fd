//! Claims: who may work on a task. A claim is a ref of its own at the claim authority; this is what the ref says.

use super::id::{Epoch, TaskPath};
use super::time::{Mono, Wall};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// Folder of claim refs at the authority.
pub const CLAIM_REFS: &str = "refs/overnight/claims/";

/// The contents of a claim ref: the message of a commit with an empty tree, as one JSON line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub version: u32,
    pub task: TaskPath,
    /// The task's epoch when it was claimed.
    pub epoch: Epoch,
    /// Makes two equal claims differ, so that a push that changes nothing is told from one that won.
    pub nonce: String,
    /// Machine and daemon, for people.
    pub owner: String,
    /// Identifies the daemon's data folder: claims with our own id are ours to settle after a restart.
    pub daemon: String,
    /// Wall time, for people; others judge expiry by their own clock since they last saw the ref change.
    pub expires: Option<Wall>,
}

/// Name of the ref that guards `path`: a hash, so that nested paths never collide as files and folders.
pub fn claim_ref(path: &TaskPath) -> String {
    let mut name = String::from(CLAIM_REFS);
    for byte in &Sha256::digest(path.as_str().as_bytes())[..16] {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// A claim that we hold, as SQLite remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub nonce: String,
    /// The commit that the ref points to: the expected old value of every later update.
    pub commit: super::Oid,
    /// When it must be renewed at the latest; `None` with a single host.
    pub renew_by: Option<Mono>,
}
