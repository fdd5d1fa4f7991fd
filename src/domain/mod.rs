//! The words of the program: ids, tasks, phases, plans, policies. Pure values with their own rules and nothing else;
//! every floor above speaks in them.

#![warn(clippy::wildcard_enum_match_arm)]

pub mod chain;
pub mod follow;
pub mod graph;
pub mod id;
pub mod lease;
pub mod phase;
pub mod plan;
pub mod policy;
pub mod safe;
pub mod status;
pub mod task;
pub mod time;
pub mod verdict;

pub use id::{Epoch, Oid, ProjectId, RunId, Slug, TaskId, TaskPath};
pub use time::{Mono, Now, Wall};
