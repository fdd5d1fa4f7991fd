//! The facts: what is known of a task, of a project and of a night. They are saved as they stand; whatever can be worked
//! out from them is worked out anew each time and not kept.

use super::ask::LogEntry;
use super::event::{RequestId, Work, Worktree};
use super::habits::Habits;
use crate::domain::follow::Follow;
use crate::domain::graph::Graph;
use crate::domain::lease::Held;
use crate::domain::phase::{Phase, StopStage};
use crate::domain::plan::Plan;
use crate::domain::policy::Policy;
use crate::domain::status::{AttemptEnd, Reason};
use crate::domain::task::{Invalid, Wish};
use crate::domain::verdict::{Usage, UsageSum};
use crate::domain::{Epoch, Mono, Now, Oid, TaskId, TaskPath, Wall, time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// An open task and all facts about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    pub id: TaskId,
    pub wish: Wish,
    pub phase: Phase,
    /// Number of the present phase entry.
    pub epoch: Epoch,
    /// When the present phase was entered.
    pub since: Mono,
    pub since_wall: Wall,
    pub queued: Wall,
    /// First claim of this life.
    pub started: Option<Wall>,
    /// Generation of `retry` that this life answers to.
    pub retry: u32,
    /// Agent runs charged to the task in this life.
    pub attempts: u32,
    /// Tries of the present ask that failed for reasons outside the task.
    pub tries: u32,
    pub not_before: Option<Mono>,
    pub plan: Option<Plan>,
    pub held: Option<Held>,
    /// The epoch in which it was claimed: what its merge is known by.
    pub claimed: Epoch,
    /// Somebody else's claim was seen.
    pub elsewhere: Option<String>,
    pub worktree: Option<Worktree>,
    /// A worktree was asked for in this attempt, whether or not the answer came.
    pub prepared: bool,
    pub run: Option<RunFacts>,
    pub session: Option<String>,
    pub session_total: Option<Usage>,
    /// What the agent is told next, beyond the brief.
    pub follow: Option<Follow>,
    pub failure: Option<Failure>,
    pub work: Option<Work>,
    pub question: Option<String>,
    pub answer: Option<String>,
    pub merge: Option<MergeTry>,
    /// How this attempt ends, once that is settled.
    pub end: Option<AttemptEnd>,
    pub usage: UsageSum,
    /// Background steps run beside the agent.
    pub background: bool,
    /// Transitions not yet published.
    pub log: Vec<LogEntry>,
    /// The claim's nonce and epoch of the last record that was acknowledged, to tell whether the state repo is behind.
    pub published: Option<Told>,
    /// A record under way.
    pub publishing: Option<Told>,
}

/// What a record said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    pub epoch: Epoch,
    /// That a person is waited for.
    pub waits: bool,
}

/// Facts about the child that is alive, by the clock that stands still in sleep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFacts {
    /// The epoch that names the run: it stays while the task goes through `Stopping`.
    pub epoch: Epoch,
    pub started: Mono,
    /// When this daemon took it up, where an earlier one had started it.
    pub taken_up: Option<Mono>,
    pub last_output: Mono,
    pub last_progress: Mono,
    pub bytes: u64,
    pub first_event: bool,
    pub result: Option<Mono>,
    /// What it does, in a few words; hostile text.
    pub doing: String,
    #[serde(default)]
    pub habits: Habits,
}

/// The last failed check, to see whether the agent gets anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub what: String,
    pub tree: Option<Oid>,
    pub reason: Reason,
}

impl Failure {
    /// How an earlier try ended, for the brief: whatever comes now is compared with nothing of it.
    pub(super) fn of_earlier(reason: Reason) -> Self {
        Self { what: "last try".into(), tree: None, reason }
    }
}

/// A merge under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeTry {
    pub commit: Oid,
    pub tree: Oid,
    pub onto: Oid,
}

/// One project: its rules, its target branch, and what is known of its trees.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Project {
    pub policy: Option<Policy>,
    pub paused: bool,
    pub epoch: Epoch,
    pub target: Target,
    /// The check of a tree that belongs to no task.
    pub check: Option<TreeCheck>,
    /// What the last baseline said; the tree it was made for is in it.
    pub baseline: Option<Baseline>,
    /// The last join of base and merged work that was red, so that the same is not tried again and again.
    pub joined_red: Option<Baseline>,
    /// Trees on which all approved checks passed, with the hash of the configuration, newest last.
    pub green: Vec<(Oid, String)>,
    /// The tip that the user's repository has, or was refused.
    pub delivered: Option<Oid>,
    /// Why their branch stays behind.
    pub undelivered: Option<String>,
    pub invalid: Vec<Invalid>,
    /// Why nothing is started or merged until a person says go on.
    pub halted: Option<String>,
    #[serde(skip)]
    pub delivering: Option<Epoch>,
    #[serde(skip)]
    pub delivered_at: Option<Mono>,
    #[serde(skip)]
    pub land: Option<RequestId>,
    /// Base, tip and form of the branch the user may land, while a landing runs.
    #[serde(skip)]
    pub landing: Option<Epoch>,
    #[serde(skip)]
    pub board_due: Option<Mono>,
    #[serde(skip)]
    pub board_busy: Option<Epoch>,
    /// Whether the state repo has been read since the start.
    #[serde(skip)]
    pub read: bool,
    #[serde(skip)]
    pub graph: Graph,
    #[serde(skip)]
    pub order: BTreeMap<TaskPath, usize>,
    #[serde(skip)]
    pub cycles: Vec<Vec<TaskPath>>,
    /// Holds on profiles, by name.
    pub holds: BTreeMap<String, ProfileHold>,
    /// Runs in a row that failed, by profile.
    #[serde(default)]
    pub failing: BTreeMap<String, u32>,
}

/// Where the target branch stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "target")]
pub enum Target {
    /// Not looked at since the night began.
    #[default]
    Unknown,
    Preparing {
        epoch: Epoch,
    },
    /// The base went on; this commit joins both and is being checked or moved to.
    Joining {
        epoch: Epoch,
        commit: Oid,
        tree: Oid,
        onto: Oid,
        base: Oid,
    },
    Ready {
        tip: Oid,
        base: Oid,
        /// Tree of `tip` when it was looked at, for the baseline.
        tree: Oid,
    },
    Blocked {
        reason: Reason,
        /// When to look again.
        until: Mono,
    },
}

/// Checks on one commit in the integration worktree, outside any task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeCheck {
    pub purpose: CheckPurpose,
    pub commit: Oid,
    pub tree: Oid,
    pub n: usize,
    pub epoch: Epoch,
    pub since: Mono,
    pub stop: Option<(StopStage, Mono)>,
    pub tries: u32,
    /// The configuration it was made for is gone: only its end is waited for, since it still has the worktree.
    #[serde(default)]
    pub void: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckPurpose {
    Baseline,
    Join,
}

/// What the checks say of the base before any task touched it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    pub tree: Oid,
    pub policy: String,
    /// `None` is green.
    pub red: Option<Reason>,
    pub until: Option<Mono>,
}

/// A profile that is not used for now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfileHold {
    pub why: String,
    /// One word for the cause.
    pub word: String,
    /// `None` until a person mends it.
    pub until: Option<Mono>,
    pub until_wall: Option<Wall>,
    /// How often in a row, for the back-off.
    pub times: u32,
    /// A trial is under way or allowed.
    pub trial: bool,
}

impl ProfileHold {
    /// A hold for `wait`; until a person mends it where that is `None`.
    pub(super) fn new(word: &str, why: &str, wait: Option<Duration>, times: u32, now: Now) -> Self {
        let wall = |wait| Wall(now.wall.0.saturating_add(i64::try_from(time::millis(wait)).unwrap_or(i64::MAX)));
        Self {
            why: why.to_owned(),
            word: word.to_owned(),
            until: wait.map(|wait| now.mono.after(wait)),
            until_wall: wait.map(wall),
            times,
            trial: false,
        }
    }

    /// Why, in a line; what may follow it is for the log.
    pub fn in_short(&self) -> &str {
        self.why.lines().next().unwrap_or_default()
    }
}

/// From the first start after idle until idle again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Night {
    pub number: u64,
    pub started: Wall,
    pub ended: Option<Wall>,
}

impl Task {
    /// Whether a person has to say yes before the merge. The wish as it stands decides: a person may ask for a review while
    /// the agent works, or say yes beforehand; where it says nothing, what the work did.
    pub fn needs_review(&self) -> bool {
        if self.wish.approved.is_some_and(|of| of >= self.retry.max(self.wish.retry)) {
            return false;
        }
        self.wish.review.unwrap_or_else(|| self.work.as_ref().is_some_and(|w| !w.protected.is_empty()))
    }

    /// A task that has just been wished.
    pub fn new(id: TaskId, wish: Wish, epoch: Epoch, now: Now) -> Self {
        Self {
            retry: wish.retry,
            id,
            wish,
            phase: Phase::Queued,
            epoch,
            since: now.mono,
            since_wall: now.wall,
            queued: now.wall,
            started: None,
            attempts: 0,
            tries: 0,
            not_before: None,
            plan: None,
            held: None,
            claimed: epoch,
            elsewhere: None,
            worktree: None,
            prepared: false,
            run: None,
            session: None,
            session_total: None,
            follow: None,
            failure: None,
            work: None,
            question: None,
            answer: None,
            merge: None,
            end: None,
            usage: UsageSum::default(),
            background: false,
            log: Vec::new(),
            published: None,
            publishing: None,
        }
    }

    /// Its title, or its slug where it has none.
    pub fn title(&self) -> &str {
        if self.wish.title.is_empty() { self.id.path.slug() } else { &self.wish.title }
    }
}

impl Project {
    /// True when all approved checks have passed on this tree.
    pub fn is_green(&self, tree: &Oid) -> bool {
        let Some(policy) = &self.policy else { return false };
        policy.checks.is_empty() || self.green.iter().any(|(t, hash)| t == tree && *hash == policy.hash)
    }

    /// Why this join of base and merged work is known to be red, under the present configuration.
    pub(super) fn red_join(&self, tree: &Oid) -> Option<&Reason> {
        let policy = self.policy.as_ref()?;
        self.joined_red.as_ref().filter(|j| j.tree == *tree && j.policy == policy.hash)?.red.as_ref()
    }

    /// All checks of the configuration `policy` have passed on this tree.
    pub(super) fn record_green(&mut self, tree: &Oid, policy: &str) {
        let row = (tree.clone(), policy.to_owned());
        self.green.retain(|r| *r != row);
        self.green.push(row);
        // Old ones only save a check run; sixty-four are more than one train ever looks back.
        if self.green.len() > 64 {
            self.green.remove(0);
        }
    }

    /// The tip of the target branch, when it is known and holds the base.
    pub fn tip(&self) -> Option<&Oid> {
        match &self.target {
            Target::Ready { tip, .. } => Some(tip),
            Target::Unknown | Target::Preparing { .. } | Target::Joining { .. } | Target::Blocked { .. } => None,
        }
    }
}
