//! What an agent does over and over. The same call again and again, with nothing changed in between, gets nowhere however
//! well each ends: such a run is stopped as looping. Many calls that have changed one file only may be a rabbit hole,
//! which is said and stops nobody.

use crate::domain::Mono;
use crate::domain::verdict::AgentEvent;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// A loop that is younger may be a wait for something short.
const LOOP_TIME: Duration = Duration::from_secs(60);
/// So many calls for one changed file are worth a word.
const HOLE_CALLS: u32 = 25;
/// Names under which the CLIs change files.
const EDITS: [&str; 6] = ["Edit", "MultiEdit", "Write", "NotebookEdit", "edit", "apply_patch"];

/// Names under which the CLIs wait for something that they have started; who waits asks the same again and again.
const WAITS: [&str; 5] = ["BashOutput", "TaskOutput", "Monitor", "wait", "write_stdin"];

/// What one run has called so far; calls are kept as hashes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Habits {
    /// The last call and when it was made, and the one before it.
    last: [Option<(u64, Mono)>; 2],
    /// Calls in a row that were the same as the one before the one before them: one thing repeated, or two in turn.
    repeated: u32,
    /// When the first of those that are repeated was made.
    since: Option<Mono>,
    calls: u32,
    /// Files that were changed by a call.
    edited: BTreeSet<u64>,
    told: bool,
}

/// Something worth an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Noticed {
    Loop { calls: u32 },
    RabbitHole { calls: u32 },
}

impl Habits {
    /// Something was changed meanwhile: whatever is repeated has a reason.
    pub(super) fn changed(&mut self) {
        self.repeated = 0;
        self.last = [None, None];
    }

    /// Takes in one event; `limit` is the number of repeated calls that make a loop (0: none do).
    pub(super) fn saw(&mut self, event: &AgentEvent, limit: u32, now: Mono) -> Option<Noticed> {
        let AgentEvent::ToolBegin { tool, what } = event else { return None };
        if WAITS.contains(&tool.as_str()) || what.starts_with("sleep ") {
            return None;
        }
        let call = hash(&(tool, what));
        self.calls = self.calls.saturating_add(1);
        if EDITS.contains(&tool.as_str()) {
            self.edited.insert(hash(what));
        }
        if what.is_empty() {
            // Of what it was about nothing is told, so it cannot be told from another.
            self.changed();
        }
        match self.last[1].filter(|(before, _)| *before == call) {
            Some((_, at)) => {
                self.since = self.since.filter(|_| self.repeated > 0).or(Some(at));
                self.repeated += 1;
            }
            None => self.repeated = 0,
        }
        self.last = [Some((call, now)).filter(|_| !what.is_empty()), self.last[0]];
        // The two that the others repeat count too.
        let calls = self.repeated + 2;
        let long = self.since.is_some_and(|since| now.since(since) >= LOOP_TIME);
        if limit > 0 && self.repeated > 0 && calls >= limit && long {
            return Some(Noticed::Loop { calls });
        }
        if self.calls >= HOLE_CALLS && self.edited.len() == 1 && !self.told {
            self.told = true;
            return Some(Noticed::RabbitHole { calls: self.calls });
        }
        None
    }
}

/// The same for the same value in every run of this program, which is all that it is compared with.
fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tool: &str, what: &str) -> AgentEvent {
        AgentEvent::ToolBegin { tool: tool.into(), what: what.into() }
    }

    fn at(seconds: u64) -> Mono {
        Mono::default().after(Duration::from_secs(seconds))
    }

    /// The seconds at which a loop was seen, one call every `pace` seconds.
    fn loops(calls: &[AgentEvent], pace: u64) -> Vec<u64> {
        let mut habits = Habits::default();
        let times = (0..).map(|n| n * pace);
        let seen = times.zip(calls).filter(|(t, c)| matches!(habits.saw(c, 10, at(*t)), Some(Noticed::Loop { .. })));
        seen.map(|(t, _)| t).collect()
    }

    #[test]
    fn the_same_call_over_and_over_is_a_loop_and_so_are_two_in_turn() {
        let same: Vec<_> = (0..10).map(|_| call("Bash", "make")).collect();
        assert_eq!(loops(&same, 7), [63], "the tenth, when a minute has passed");
        assert_eq!(loops(&same, 6), [0; 0], "not yet a minute");
        let turns: Vec<_> = (0..12).map(|n| call("Read", if n % 2 == 0 { "a" } else { "b" })).collect();
        assert_eq!(loops(&turns, 7), [63, 70, 77]);
        let healthy: Vec<_> = (0..40).map(|n| call("Read", ["a", "b", "c"][n % 3])).collect();
        assert_eq!(loops(&healthy, 60), [0; 0]);
    }

    #[test]
    fn a_change_in_between_is_a_reason_to_try_again() {
        let mut habits = Habits::default();
        for n in 0..30 {
            assert_eq!(habits.saw(&call("Bash", "make"), 10, at(n * 60)), None);
            if n % 5 == 4 {
                habits.changed();
            }
        }
        let wait = |n| if n % 2 == 0 { call("BashOutput", "b1") } else { call("Bash", "sleep 60; tail log") };
        assert_eq!(loops(&(0..40).map(wait).collect::<Vec<_>>(), 60), [0; 0], "it waits for a build");
        let untold: Vec<_> = (0..40).map(|_| call("mcp__browser__click", "")).collect();
        assert_eq!(loops(&untold, 60), [0; 0], "who knows where it clicks");
        let mut off = Habits::default();
        assert!((0..99).all(|n| off.saw(&call("Bash", "make"), 0, at(n * 60)).is_none()), "0 turns it off");
    }

    #[test]
    fn a_rabbit_hole_is_told_once() {
        let mut habits = Habits::default();
        let mut told = Vec::new();
        for n in 0..60u64 {
            let event = if n == 3 { call("Edit", "a.rs") } else { call("Bash", &format!("try {n}")) };
            if let Some(noticed) = habits.saw(&event, 10, at(n)) {
                told.push((n, noticed));
            }
        }
        assert_eq!(told, [(24, Noticed::RabbitHole { calls: 25 })]);
    }
}
