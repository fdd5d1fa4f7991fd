//! Whole nights in small: the true program with scripted agents, real git and real SQLite, in a temporary folder each.

#![expect(
    clippy::disallowed_methods,
    reason = "tests play the user and the machine: they start programs, wait with limits and read the environment"
)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod concurrency;
mod crash;
mod disk;
mod files;
mod home;
mod kit;
mod processes;
mod projects;
#[allow(dead_code, reason = "a tool box: whether every tool is taken depends on the tests beside it")]
mod rig;
mod safety;
mod work;
