//! Words to the service manager that started us, where one did (sd_notify(3)): that the daemon is ready, that it ends,
//! and, from the loop that does the work, that it lives. Without a manager nothing is said and nobody is woken for it.

use crate::domain::{Mono, Now};
use sd_notify::NotifyState;
use std::time::Duration;

/// The sign of life that the manager waits for.
#[derive(Debug)]
pub(super) struct Watchdog {
    every: Option<Duration>,
    due: Mono,
}

impl Watchdog {
    /// As the manager asked for it: twice as often as it takes us for dead.
    pub(super) fn from_manager() -> Self {
        Self { every: sd_notify::watchdog_enabled().map(|limit| limit / 2), due: Mono::default() }
    }

    /// Time until the next sign.
    pub(super) fn wait(&self, now: Now) -> Option<Duration> {
        self.every.map(|_| self.due.since(now.mono))
    }

    /// Gives the sign where it is due. To be called by the loop alone, after its work.
    pub(super) fn lives(&mut self, now: Now) {
        if let Some(every) = self.every
            && self.due <= now.mono
        {
            self.due = now.mono.after(every);
            say(&[NotifyState::Watchdog]);
        }
    }
}

/// The daemon has looked around and works.
pub(super) fn ready(projects: usize) {
    let s = if projects == 1 { "" } else { "s" };
    say(&[NotifyState::Ready, NotifyState::Status(&format!("watching {projects} project{s}"))]);
}

/// The daemon is about to end.
pub(super) fn stopping() {
    say(&[NotifyState::Stopping]);
}

fn say(state: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(state) {
        tracing::warn!("the service manager cannot be told: {e}");
    }
}
