//! What waits while the board cannot be saved (a full disk, a database that is held): facts stay for the next try, in
//! their order; whoever asks for something is told at once that it cannot be had, and an end is an end all the same, for
//! a daemon that cannot save loses no more by ending than by a kill.

use super::turn::Ring;
use crate::decide::event::{Event, Request};
use crate::domain::{Mono, Now};
use crate::process::Stop;
use crate::protocol::{ErrorKind, Failure, Reply};
use std::collections::VecDeque;
use std::time::Duration;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// Events of turns that could not be saved, and those that came since.
#[derive(Default)]
pub(super) struct Backlog {
    events: VecDeque<Event>,
    /// When saving is tried again; none while it works.
    retry_at: Option<Mono>,
    why: String,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.retry_at.is_none()
    }

    /// Up to `most` events for the next try.
    pub(super) fn take(&mut self, most: usize) -> Vec<Event> {
        let batch: Vec<Event> = self.events.drain(..self.events.len().min(most)).collect();
        if batch.is_empty() { vec![Event::Wake] } else { batch }
    }

    /// Time until the next try.
    pub(super) fn wait(&self, now: Now) -> Option<Duration> {
        self.retry_at.map(|at| at.since(now.mono))
    }

    /// A turn was saved: the rest is due at once.
    pub(super) fn saved(&mut self, now: Now) {
        self.retry_at = (!self.events.is_empty()).then_some(now.mono);
    }
}

impl Ring {
    /// The database is broken: the board goes whole into another one, for nothing of it is known by the database alone.
    pub(super) async fn renew_store(&mut self) {
        match self.shared.store.renew(&self.boot, &self.board, crate::host::clock::now()).await {
            Ok(()) => {
                tracing::error!("the database was broken; the board is saved in a new one, and work goes on");
                self.alarms.insert("history", super::start::REPLACED.to_owned());
            }
            Err(e) => tracing::error!("the database is broken, and no other could be made: {}", super::chain(&e)),
        }
    }

    /// A turn could not be saved; it is as if it had not been.
    pub(super) fn not_saved(&mut self, batch: Vec<Event>, why: &str, now: Now) {
        self.backlog.retry_at = Some(now.mono.after(PAUSE));
        why.clone_into(&mut self.backlog.why);
        let kept: Vec<Event> = batch.into_iter().filter_map(|event| self.turned_away(event)).collect();
        for event in kept.into_iter().rev() {
            self.backlog.events.push_front(event);
        }
    }

    /// What comes while the last turn waits to be saved.
    pub(super) fn put_off(&mut self, event: Event) {
        if let Some(event) = self.turned_away(event) {
            self.backlog.events.push_back(event);
        }
    }

    /// Answers what cannot wait, and gives back what can.
    fn turned_away(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Wake => None,
            Event::Terminate { stop_agents } => {
                self.leave(stop_agents);
                None
            }
            Event::Request { id, request } => {
                if let Request::Stop { stop_agents } = request {
                    self.leave(stop_agents);
                }
                let replies = self.waiting.remove(&id)?;
                let why = &self.backlog.why;
                let reply = if self.exit {
                    Reply::Done { text: format!("stopped; the last of what happened is not on record: {why}") }
                } else {
                    let hint = Some("mend that, and ask again; what runs goes on".to_owned());
                    Reply::Error(Failure {
                        kind: ErrorKind::Failed,
                        message: format!("nothing was changed: {why}"),
                        hint,
                    })
                };
                let _ = replies.try_send(reply);
                None
            }
            event => Some(event),
        }
    }

    /// Ends without a word in the board. Agents that are to end are asked to; what they leave is taken up at the next start.
    fn leave(&mut self, stop_agents: bool) {
        if stop_agents {
            for run in self.shared.all_followed() {
                if let Err(e) = self.shared.runs.stop(&run, Stop::Term) {
                    tracing::error!(%run, "{}", super::chain(&e));
                }
            }
        }
        self.exit = true;
    }
}
