//! The rules. `Board::turn(event, now)` takes everything that can happen and gathers asks, `Board::settle(now)` works out
//! what follows from how things stand; both are pure, so that a whole night can be played in a test in milliseconds.
//!
//! `advance` moves one attempt by answers (`children`: the ends of its programs, `verdicts`: of its agent, `ending`: its own),
//! `schedule`, `merge`, `target` and `publish` are level rules over all tasks,
//! `deadline` knows the clocks, `recover` what a start does to saved phases, and `explain` says why.

#![warn(clippy::wildcard_enum_match_arm)]

pub mod advance;
pub mod ask;
pub mod board;
mod breaker;
mod children;
pub mod deadline;
mod ending;
pub mod event;
pub mod explain;
mod facts;
mod habits;
pub mod merge;
pub mod orders;
pub mod publish;
pub mod recover;
pub mod requests;
pub mod schedule;
pub mod target;
pub mod verdicts;

pub use ask::{Ask, ProjectAsk, Reply, TaskAsk};
pub use board::{Board, Project, Task};
pub use event::{Answer, Event, Request, SideAnswer};
