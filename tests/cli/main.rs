//! The command line as a person meets it: the real binary against a daemon whose replies are written down here, and
//! without one. Exit codes, what goes to which stream, what is sent, and that nothing from outside acts on a terminal.

#![expect(
    clippy::disallowed_methods,
    reason = "tests play the user and the machine: they start programs, wait with limits and read the environment"
)]
#![expect(clippy::unwrap_used, reason = "a test that cannot set up its bench has failed")]

mod bench;
mod config;
mod help;
mod hostile;
mod verbs;
