//! The daemon: the loop that turns the board, the hands that do what it asks, and the sources of news. The same ring is
//! turned in the CLI's own process when no daemon runs, under the same lock, starting nothing.

#![expect(clippy::disallowed_methods, reason = "how long ago a full disk was seen concerns this hand alone")]

mod background;
mod backlog;
mod briefs;
mod claims;
mod delivery;
mod guard;
mod hands;
pub mod lock;
pub mod logs;
mod manager;
pub mod peer;
pub mod project;
mod projects;
mod protect;
mod records;
mod retention;
mod runs;
mod serving;
pub mod socket;
mod sources;
mod start;
mod state_folder;
pub mod state_worker;
mod target;
mod turn;
mod views;
mod wishes;
mod words;

use crate::config::{Places, Registry};
use crate::decide::Event;
use crate::decide::ask::{Program, RunOrder};
use crate::domain::verdict::{AgentReport, RunEnd};
use crate::domain::{Epoch, ProjectId, RunId, TaskId, Wall};
use crate::process::Runs;
use crate::store::{Beat, Run, Store};
use project::{ProjectCtx, lock};
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, RwLock};
use tokio::sync::{mpsc, watch};

pub use serving::serve;

/// How the daemon is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// Detached: until it is told to end.
    Background,
    /// On a terminal or in a script. `until_idle` ends when nothing is left to do by itself; the exit code tells whether
    /// all tasks (of `project`, where one is named) were merged.
    Foreground { until_idle: bool, project: Option<ProjectId>, verbose: bool },
}

/// Threads of the runtime, and how many of them hands may hold up at once.
const THREADS: usize = 12;
const HANDS: usize = 8;

/// The runtime that the ring and its hands need.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()
}

/// Runs the daemon in this process. Call it before other threads exist.
pub fn run(places: &Places, how: How) -> ExitCode {
    start::run(places, &how)
}

/// What the hands share.
pub struct Shared {
    pub places: Places,
    pub runs: Runs,
    pub store: Arc<Store>,
    events: mpsc::UnboundedSender<Event>,
    projects: RwLock<BTreeMap<ProjectId, Arc<ProjectCtx>>>,
    pub background: Mutex<BTreeMap<TaskId, Vec<RunId>>>,
    followed: Mutex<BTreeSet<RunId>>,
    /// The daemon's own environment, as far as children may get any of it.
    env: BTreeMap<String, String>,
    pub is_root: bool,
    /// Identifies this data folder in claims.
    pub id: String,
    /// Machine and user, for people.
    pub owner: String,
    /// Changes when the daemon ends.
    pub closed: watch::Sender<bool>,
    /// Places for hands that work in this process, where git, files and locks may hold up their thread: fewer than the
    /// runtime has threads, so that the socket, the clocks and those who follow runs always find one.
    pub hands: tokio::sync::Semaphore,
    /// When the disk was last seen full.
    full_seen: Mutex<Option<std::time::Instant>>,
    /// Number of the present night, for the history.
    pub night: Mutex<Option<u64>>,
}

/// Where toolchains keep what they have: every child gets these beside `agent::EVERY_CHILD`; an agent's profile and the
/// project's configuration add to them by name.
const TOOLCHAINS: [&str; 5] = ["CARGO_HOME", "RUSTUP_HOME", "GOPATH", "GOCACHE", "JAVA_HOME"];

impl Shared {
    /// Sends an event to the ring; one that is gone needs none.
    pub fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    pub fn project(&self, id: &ProjectId) -> Option<Arc<ProjectCtx>> {
        self.projects.read().unwrap_or_else(std::sync::PoisonError::into_inner).get(id).cloned()
    }

    pub fn all_projects(&self) -> Vec<Arc<ProjectCtx>> {
        self.projects.read().unwrap_or_else(std::sync::PoisonError::into_inner).values().cloned().collect()
    }

    fn put_project(&self, ctx: Arc<ProjectCtx>) {
        self.projects.write().unwrap_or_else(std::sync::PoisonError::into_inner).insert(ctx.id.clone(), ctx);
    }

    fn take_project(&self, id: &ProjectId) {
        self.projects.write().unwrap_or_else(std::sync::PoisonError::into_inner).remove(id);
    }

    /// A clean environment: what every child gets, and the variables named, where the daemon has them.
    pub fn base_env(&self, names: &[String]) -> BTreeMap<String, String> {
        let mut env = runs::pass(names, &self.env);
        for name in crate::agent::EVERY_CHILD.iter().chain(&TOOLCHAINS) {
            if let Some(value) = self.env.get(*name) {
                env.insert((*name).to_owned(), value.clone());
            }
        }
        env.entry("PATH".into()).or_insert_with(|| "/usr/local/bin:/usr/bin:/bin".into());
        env.entry("LANG".into()).or_insert_with(|| "C.UTF-8".into());
        env.insert("TERM".into(), "dumb".into());
        // Git of agents and checks never opens an editor or asks for a password: nobody is there.
        env.insert("GIT_TERMINAL_PROMPT".into(), "0".into());
        env.insert("GIT_EDITOR".into(), "true".into());
        env
    }

    /// What a run's failure is laid to when the disk was seen full at or after `since`, or by its shim while no daemon was
    /// there. A full disk also keeps a run's end from being recorded, so that it often has room again when the end is read.
    pub fn disk_was_full(&self, run: &RunId, since: std::time::Instant) -> Option<String> {
        self.disk_full().or_else(|| {
            let seen = lock(&self.full_seen).is_some_and(|at| at >= since) || self.runs.disk_was_full(run);
            seen.then(|| "the disk was full while it ran".to_owned())
        })
    }

    /// What is said while the disk of the data folder has too little room to start anything. One that cannot be looked
    /// at holds nothing.
    pub fn disk_full(&self) -> Option<String> {
        let space = crate::host::disk::space(&self.places.data).ok().filter(crate::host::disk::Space::is_full)?;
        *lock(&self.full_seen) = Some(std::time::Instant::now());
        let (at, free) = (self.places.data.display(), space.free >> 20);
        Some(format!("the disk of {at} is full ({free} MB left): nothing new is started until there is room"))
    }

    /// Why a program cannot be run, where that is known before it is tried: it is nowhere. One with a path of its own that
    /// begins in the worktree is only found there.
    pub fn missing(&self, program: &str) -> Option<String> {
        let named = std::path::Path::new(program);
        if program.contains('/') {
            let gone = named.is_absolute() && matches!(named.try_exists(), Ok(false));
            return gone.then(|| format!("cannot run {program:?}: there is no such file"));
        }
        let env = self.base_env(&[]);
        let path = env.get("PATH").map_or("", String::as_str);
        let found = std::env::split_paths(path).any(|folder| folder.join(program).is_file());
        (!found).then(|| format!("cannot run {program:?}: it is in no folder of PATH\nlooked in {path}"))
    }

    /// Marks a run as followed for as long as the mark lives.
    fn followed(self: &Shared, run: &RunId) -> Followed<'_> {
        lock(&self.followed).insert(run.clone());
        Followed { shared: self, run: run.clone() }
    }

    /// All runs that are followed now.
    fn all_followed(&self) -> Vec<RunId> {
        lock(&self.followed).iter().cloned().collect()
    }

    fn is_followed(&self, run: &RunId) -> bool {
        lock(&self.followed).contains(run)
    }

    /// One sign of life, for the database of heartbeats.
    fn beat(&self, run: &RunId, task: &TaskId, beat: &crate::process::Beat) {
        let at = beat.at;
        self.disk_full();
        let since = |ms: Option<u64>| {
            let ago = ms.map_or(0, |ms| beat.boottime_ms.saturating_sub(ms));
            Wall(at.0.saturating_sub(i64::try_from(ago).unwrap_or(0)))
        };
        self.store.beat(Beat {
            run: run.clone(),
            task: task.clone(),
            at,
            last_output: since(beat.last_output_ms),
            last_progress: since(beat.last_output_ms),
            bytes: beat.bytes,
            cpu_ms: beat.cpu_ms,
            rss: beat.rss_bytes,
        });
    }

    /// A run's end, for the history and the sums; losing it costs a line in a report.
    fn record_run(
        self: &Arc<Self>,
        task: &TaskId,
        epoch: Epoch,
        order: &RunOrder,
        end: &RunEnd,
        agent: Option<&AgentReport>,
    ) {
        let now = crate::host::clock::now().wall;
        let took = i64::try_from(end.took.as_millis()).unwrap_or(0);
        let (kind, model) = match &order.program {
            Program::Agent { profile, model, .. } => ("agent", model.clone().or_else(|| profile.model.clone())),
            Program::Command { .. } => ("command", None),
        };
        let run = Run {
            run: order.run.clone(),
            project: task.project.clone(),
            task: Some(task.path.clone()),
            epoch,
            kind,
            night: *lock(&self.night),
            started: Wall(now.0.saturating_sub(took)),
            ended: Some(now),
            exit: Some(end.exit.clone()),
            verdict: runs::verdict_word(agent),
            usage: runs::usage_of(agent),
            profile: match &order.program {
                Program::Agent { profile, .. } => Some(profile.kind.word().to_owned()),
                Program::Command { .. } => None,
            },
            model,
            cli_version: None,
        };
        let shared = self.clone();
        tokio::spawn(async move {
            if let Err(e) = shared.store.record_run(&run).await {
                tracing::warn!(run = %run.run, "its end could not be noted: {}", chain(&e));
            }
        });
    }
}

/// The mark of a run that somebody follows.
struct Followed<'a> {
    shared: &'a Shared,
    run: RunId,
}

impl Drop for Followed<'_> {
    fn drop(&mut self) {
        lock(&self.shared.followed).remove(&self.run);
    }
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(cause) = at {
        let words = cause.to_string();
        // A transparent variant shows its cause's text as its own.
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        at = cause.source();
    }
    text
}

/// The projects that this user has.
fn registry(places: &Places) -> Registry {
    Registry::new(places.data.clone())
}
