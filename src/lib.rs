//! Overnight: a supervisor daemon for unattended work by coding agents.
//!
//! ```text
//!    faces ──Request──▶ daemon ──Event──▶ decide ──Ask──▶ daemon ──call──▶ hands
//!      ▲                                    │                                │
//!      └────────── view (latest state) ◀────┴───────── Event (answer) ◀──────┘
//! ```
//!
//! The modules stand in floor order: each uses only those above it in this list.

pub mod domain;

pub mod agent;
pub mod decide;
pub mod protocol;
pub mod text;

pub mod git;
pub mod host;
pub mod process;
pub mod store;

pub mod config;
pub mod logging;

pub mod daemon;
pub mod setup;

pub mod error;

pub mod client;

pub mod cli;
