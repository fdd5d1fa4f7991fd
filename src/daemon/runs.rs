//! Runs: from an order to a child under its shim, its output folded into progress, and its end reported with the adapter's
//! verdict. A run that an earlier daemon started is followed in the same way.

#![expect(
    clippy::disallowed_methods,
    reason = "how often a run's progress is passed on concerns this hand alone; no rule sees this clock"
)]

use super::guard::guarded;
use super::project::ProjectCtx;
use super::{Shared, briefs};
use crate::agent::{self, Launch, Reader};
use crate::decide::Event;
use crate::decide::ask::{CHECK, Place, Program, RunOrder};
use crate::decide::event::{Answer, Progress, SideAnswer};
use crate::domain::phase::StopStage;
use crate::domain::verdict::{AgentEvent, AgentReport, Exit, RunEnd, Usage, Verdict};
use crate::domain::{Epoch, RunId, TaskId};
use crate::process::{self, Runs, Seen, Stop};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Between two progress events of one run.
const COALESCE: Duration = Duration::from_millis(250);
/// Between two looks at a worktree for signs of work.
const TOUCH_EVERY: Duration = Duration::from_secs(4);
/// Events of one progress report at most; the rest is in the transcript.
const EVENTS: usize = 50;
const DRAIN: Duration = Duration::from_secs(2);

/// Starts the child of a task's phase (or finds it started) and reports its end.
pub(super) async fn run_task(
    shared: &Arc<Shared>,
    ctx: &Arc<ProjectCtx>,
    task: &TaskId,
    epoch: Epoch,
    order: RunOrder,
) {
    let run = order.run.clone();
    let began = Instant::now();
    // From before its start on: a stop that comes meanwhile has somebody who tells of the end.
    let mark = shared.followed(&run);
    let done = guarded(async {
        match start(shared, ctx, &order, &task.path.dotted()).await {
            Ok(()) => follow(shared, task, epoch, &order).await,
            Err(not) => not.told(&run),
        }
    });
    let (end, agent) = match done.await {
        Ok(done) => done,
        Err(why) => after_fault(shared, &run, why).await,
    };
    drop(mark);
    let (end, agent) = unless_full(shared, &run, began, end, agent);
    note_leftovers(ctx, task, &order).await;
    shared.record_run(task, epoch, &order, &end, agent.as_ref());
    shared.send(Event::Answer { task: task.clone(), epoch, answer: Answer::RunEnded { run, end, agent } });
}

/// The end of a run whose hand had a fault: it may live all the same.
async fn after_fault(shared: &Shared, run: &RunId, why: String) -> (RunEnd, Option<AgentReport>) {
    if shared.runs.is_started(run) {
        return (follow_quietly(shared, run).await, None);
    }
    NotStarted::World(why).told(run)
}

/// A run's end as it is told: where the disk was full, that is the likely cause of whatever it ended with, so it is charged
/// to nobody and tried again.
fn unless_full(
    shared: &Shared,
    run: &RunId,
    began: Instant,
    end: RunEnd,
    agent: Option<AgentReport>,
) -> (RunEnd, Option<AgentReport>) {
    match shared.disk_was_full(run, began) {
        Some(why) if !end.ok() => NotStarted::World(why).told(run),
        Some(_) | None => (end, agent),
    }
}

/// After a check of a task's own tree: what it wrote there is remembered as no work of the agent's.
async fn note_leftovers(ctx: &ProjectCtx, task: &TaskId, order: &RunOrder) {
    if !matches!(order.place, Place::Worktree(_)) || !order.values.contains_key(CHECK) {
        return;
    }
    let branch = task.path.branch();
    let Some(lease) = ctx.lease(&branch) else { return };
    // One that cannot be looked at is found out, and said, when its work is collected.
    if let Ok(left) = crate::git::collect::leftovers(&lease).await {
        super::project::lock(&ctx.leftovers).insert(branch, left);
    }
}

/// A check of a tree that belongs to no task.
pub(super) async fn run_side(shared: &Arc<Shared>, ctx: &Arc<ProjectCtx>, epoch: Epoch, order: RunOrder) {
    let run = order.run.clone();
    let _mark = shared.followed(&run);
    let began = Instant::now();
    let done = guarded(async {
        match start(shared, ctx, &order, "").await {
            Ok(()) => follow_quietly(shared, &run).await,
            Err(not) => not.told(&run).0,
        }
    });
    let end = match done.await {
        Ok(end) => end,
        Err(why) => after_fault(shared, &run, why).await.0,
    };
    let (end, _) = unless_full(shared, &run, began, end, None);
    shared.send(Event::Side { project: ctx.id.clone(), epoch, answer: SideAnswer::RunEnded { run, end } });
}

/// Why a run was not started.
enum NotStarted {
    /// By the task or its profile: no command line can be made.
    Unfit(Verdict),
    /// By the world around (a full disk, a folder that is gone): nobody's fault, and it may pass.
    World(String),
}

impl NotStarted {
    /// The run's end, as if it had been one.
    fn told(self, run: &RunId) -> (RunEnd, Option<AgentReport>) {
        let (exit, agent) = match self {
            Self::Unfit(verdict) => {
                let error = verdict.message().unwrap_or_else(|| verdict.word()).to_owned();
                let agent = AgentReport {
                    verdict,
                    session: None,
                    text: String::new(),
                    asks: None,
                    usage: Usage::default(),
                    session_total: None,
                };
                (Exit::SpawnFailed { error }, Some(agent))
            }
            Self::World(why) => {
                tracing::error!(%run, "it could not begin: {}", crate::domain::safe::line(&why));
                (Exit::NeverStarted { why }, None)
            }
        };
        (RunEnd { exit, took: Duration::ZERO, survivors: vec![], tail: String::new(), bytes: 0, cut: 0 }, agent)
    }
}

impl From<String> for NotStarted {
    fn from(why: String) -> Self {
        Self::World(why)
    }
}

/// Whether nothing of a run lives or will. Ending what a deleted folder left behind takes its time.
pub(super) async fn is_over(shared: &Shared, run: &RunId) -> bool {
    let (runs, run) = (shared.runs.clone(), run.clone());
    let is_over = tokio::task::spawn_blocking(move || runs.is_over(&run).unwrap_or(false)).await;
    is_over.unwrap_or(false)
}

/// Ends the processes of a run. What a lost run left takes its time, and that on a thread of its own.
pub(super) async fn stop(shared: &Shared, run: &RunId, stage: StopStage) {
    let how = match stage {
        StopStage::Term => Stop::Term,
        StopStage::Kill => Stop::Kill,
    };
    let (runs, name) = (shared.runs.clone(), run.clone());
    match tokio::task::spawn_blocking(move || runs.stop(&name, how)).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tracing::error!(%run, "{}", super::chain(&e)),
        Err(e) => tracing::error!(%run, "it could not be stopped: {e}"),
    }
}

/// After a restart a run may be stopped before anybody follows it.
pub(super) fn follow_if_unfollowed(shared: &Arc<Shared>, ctx: &Arc<ProjectCtx>, task: &TaskId, run: &RunId) {
    if shared.is_followed(run) {
        return;
    }
    let (shared, _ctx, task, run) = (shared.clone(), ctx.clone(), task.clone(), run.clone());
    tokio::spawn(async move {
        let Some(epoch) = run.epoch() else { return };
        let mark = shared.followed(&run);
        let end = follow_quietly(&shared, &run).await;
        drop(mark);
        shared.send(Event::Answer { task, epoch, answer: Answer::RunEnded { run, end, agent: None } });
    });
}

/// A run that belongs to no phase: it is ended, settled and forgotten.
pub(super) async fn end_orphan(shared: &Arc<Shared>, run: &RunId) {
    tracing::warn!(%run, "a run that nothing waits for is ended");
    stop(shared, run, StopStage::Term).await;
    let soft = tokio::time::timeout(Duration::from_secs(10), shared.runs.follow(run, Box::new(|_| {}))).await;
    if soft.is_err() {
        stop(shared, run, StopStage::Kill).await;
        let _ = tokio::time::timeout(Duration::from_secs(20), shared.runs.follow(run, Box::new(|_| {}))).await;
    }
}

/// Writes the order's folder and starts its shim, unless that was done before: then nothing is needed, and nothing may go
/// wrong with it (a brief that is gone, a full disk), for the child may be alive.
async fn start(shared: &Shared, ctx: &ProjectCtx, order: &RunOrder, dotted: &str) -> Result<(), NotStarted> {
    if shared.runs.is_started(&order.run) {
        return Ok(());
    }
    let cwd = match &order.place {
        Place::Worktree(path) => PathBuf::from(path),
        Place::Integration(commit) => {
            let tree = crate::git::worktree::integration(&ctx.mirror, &ctx.integration(), commit).await;
            tree.map_err(|e| super::chain(&e))?.path().to_owned()
        }
    };
    let tmp = shared.runs.tmp(&order.run);
    let mut env = shared.base_env(&order.env_pass);
    env.insert("TMPDIR".into(), tmp.to_string_lossy().into_owned());
    let (argv, stdin) = match &order.program {
        Program::Command { argv, .. } => (argv.clone(), None),
        Program::Agent { .. } => {
            let line = agent_line(shared, ctx, order, dotted, &tmp)?;
            env.extend(shared.base_env(&line.env_pass));
            env.extend(line.env);
            env.extend(ctx.author_env());
            (line.argv, line.stdin)
        }
    };
    env.extend(order.values.iter().map(|(k, v)| (k.clone(), v.clone())));
    let run = process::RunOrder {
        run: order.run.clone(),
        argv,
        cwd,
        env,
        stdin,
        transcript_cap: order.transcript,
        alive_until_ms: Runs::boottime_ms().saturating_add(crate::domain::time::millis(order.alive_for)),
        kill_grace: order.kill_grace,
        drain_grace: DRAIN,
    };
    shared.runs.spawn(&run).map_err(|e| super::chain(&e))?;
    // For whoever reads the transcript later; without it the output is shown as it is.
    let kind = match &order.program {
        Program::Agent { profile, .. } => profile.kind.word(),
        Program::Command { .. } => "command",
    };
    let _ = std::fs::write(shared.places.runs().join(order.run.as_str()).join("kind"), kind);
    Ok(())
}

/// What reads an agent's output.
fn reader_of(order: &RunOrder) -> Option<Reader> {
    match &order.program {
        Program::Command { .. } => None,
        Program::Agent { profile, session, session_total, .. } => {
            let total = session.as_ref().and(*session_total);
            Some(Reader::new(profile.kind, profile, total))
        }
    }
}

fn agent_line(
    shared: &Shared,
    ctx: &ProjectCtx,
    order: &RunOrder,
    dotted: &str,
    tmp: &Path,
) -> Result<agent::CommandLine, NotStarted> {
    let Program::Agent { profile, model, session, prompt, script, .. } = &order.program else {
        return Err(NotStarted::World("the order is for no agent".into()));
    };
    let text = briefs::text(&shared.runs, &ctx.brief(dotted), prompt, session.is_some())?;
    let prompt_file = ctx.data.join("briefs").join(format!("{}.prompt", order.run));
    if profile.prompt_by == crate::domain::policy::PromptBy::File {
        crate::config::files::write_whole(&prompt_file, text.as_bytes()).map_err(|e| super::chain(&e))?;
    }
    let attempt = order.values.get("OVERNIGHT_ATTEMPT").and_then(|n| n.parse().ok()).unwrap_or(1);
    let launch = Launch {
        profile,
        model: model.as_deref(),
        prompt: &text,
        prompt_file: prompt_file.to_str(),
        session: session.as_deref(),
        attempt,
        script,
        is_root: shared.is_root,
        tmp_dir: tmp.to_str().unwrap_or("/tmp"),
    };
    agent::command(&launch).map_err(|e| NotStarted::Unfit(e.verdict(profile)))
}

/// Trouble with following a run (out of descriptors, a disk that does not answer) is no end of it: as long as it may live
/// it is followed again, from its first byte on, and nobody is told that it is over.
struct Patience {
    pause: Duration,
}

impl Patience {
    fn new() -> Self {
        Self { pause: Duration::from_secs(1) }
    }

    /// Why the run is taken for lost; `None` after a pause, when it is to be followed again.
    async fn lost(&mut self, shared: &Shared, run: &RunId, error: process::ProcessError) -> Option<RunEnd> {
        let error = super::chain(&error);
        if is_over(shared, run).await {
            tracing::error!(%run, "{error}");
            let exit = Exit::Lost;
            return Some(RunEnd { exit, took: Duration::ZERO, survivors: vec![], tail: error, bytes: 0, cut: 0 });
        }
        if self.pause == Self::new().pause {
            tracing::error!(%run, "it cannot be followed for now: {error}");
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(Duration::from_secs(30));
        None
    }
}

async fn follow_quietly(shared: &Shared, run: &RunId) -> RunEnd {
    let mut patience = Patience::new();
    loop {
        match shared.runs.follow(run, Box::new(|_| {})).await {
            Ok(end) => return end,
            Err(e) => {
                if let Some(lost) = patience.lost(shared, run, e).await {
                    return lost;
                }
            }
        }
    }
}

/// Follows a run to its end, sending what its output comes to.
async fn follow(shared: &Arc<Shared>, task: &TaskId, epoch: Epoch, order: &RunOrder) -> (RunEnd, Option<AgentReport>) {
    let mut patience = Patience::new();
    loop {
        let mut fold = Fold {
            shared: shared.clone(),
            task: task.clone(),
            epoch,
            run: order.run.clone(),
            reader: reader_of(order),
            events: Vec::new(),
            bytes: 0,
            sent: Instant::now(),
            looked: Instant::now(),
            touched: None,
            worktree: match &order.place {
                Place::Worktree(path) => Some(PathBuf::from(path)),
                Place::Integration(_) => None,
            },
        };
        let end = shared.runs.follow(&order.run, Box::new(|seen| fold.see(&seen))).await;
        fold.send(true);
        match end {
            Ok(end) => {
                let report = fold.reader.take().map(|reader| reader.finish(&end));
                return (end, report);
            }
            Err(e) => {
                if let Some(lost) = patience.lost(shared, &order.run, e).await {
                    return (lost, None);
                }
            }
        }
    }
}

/// Output on its way to progress events.
struct Fold {
    shared: Arc<Shared>,
    task: TaskId,
    epoch: Epoch,
    run: RunId,
    reader: Option<Reader>,
    events: Vec<AgentEvent>,
    bytes: u64,
    sent: Instant,
    looked: Instant,
    touched: Option<SystemTime>,
    worktree: Option<PathBuf>,
}

impl Fold {
    fn see(&mut self, seen: &Seen<'_>) {
        match seen {
            Seen::Output { stream, at, bytes, .. } => {
                self.bytes = at + bytes.len() as u64;
                if let Some(reader) = &mut self.reader {
                    let stream = match stream {
                        process::Stream::Out => agent::Stream::Out,
                        process::Stream::Err => agent::Stream::Err,
                    };
                    let from = self.events.len();
                    reader.feed(stream, bytes, &mut self.events);
                    let urgent = self.events[from..]
                        .iter()
                        .any(|e| matches!(e, AgentEvent::Session { .. } | AgentEvent::Result { .. }));
                    self.send(urgent);
                }
            }
            Seen::Gap { at, bytes } => {
                self.bytes = at + bytes;
                if let Some(reader) = &mut self.reader {
                    reader.gap();
                }
            }
            Seen::Beat(beat) => {
                self.shared.beat(&self.run, &self.task, beat);
                self.send(false);
            }
        }
    }

    fn send(&mut self, now: bool) {
        if !now && self.sent.elapsed() < COALESCE {
            return;
        }
        let touched = self.look();
        if self.events.is_empty() && !touched && !now {
            return;
        }
        self.sent = Instant::now();
        let mut events = std::mem::take(&mut self.events);
        if events.len() > EVENTS {
            // Keep the news of the session and the result, and the latest of the rest.
            let cut = events.len() - EVENTS;
            let keep = |e: &AgentEvent| matches!(e, AgentEvent::Session { .. } | AgentEvent::Result { .. });
            events = events.into_iter().enumerate().filter(|(i, e)| *i >= cut || keep(e)).map(|(_, e)| e).collect();
        }
        let progress = Progress { bytes: self.bytes, events, touched };
        self.shared.send(Event::Progress { task: self.task.clone(), epoch: self.epoch, progress });
    }

    /// Whether files of the worktree have changed since the last look: work that the output need not tell of.
    fn look(&mut self) -> bool {
        let Some(worktree) = &self.worktree else { return false };
        if self.reader.is_none() || self.looked.elapsed() < TOUCH_EVERY {
            return false;
        }
        self.looked = Instant::now();
        let newest = newest_below(worktree);
        let moved = self.touched.is_some() && newest > self.touched;
        self.touched = newest.max(self.touched);
        moved
    }
}

/// The latest change among the first few thousand files, `.git` left out.
fn newest_below(root: &Path) -> Option<SystemTime> {
    let mut newest = None;
    let mut folders = vec![root.to_owned()];
    let mut left = 3000;
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            left -= 1;
            if left == 0 {
                return newest;
            }
            let name = entry.file_name();
            let Ok(meta) = entry.path().symlink_metadata() else { continue };
            newest = newest.max(meta.modified().ok());
            if meta.is_dir() && name != ".git" && name != "node_modules" && name != "target" {
                folders.push(entry.path());
            }
        }
    }
    newest
}

/// What a run used, for the history; nothing for plain commands.
pub(super) fn usage_of(agent: Option<&AgentReport>) -> Usage {
    agent.map(|a| a.usage).unwrap_or_default()
}

/// The verdict's word, where an adapter gave one.
pub(super) fn verdict_word(agent: Option<&AgentReport>) -> Option<&'static str> {
    agent.map(|a| &a.verdict).map(Verdict::word)
}

/// Variables by name, from the daemon's own environment.
pub(super) fn pass(names: &[String], from: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    names.iter().filter_map(|n| from.get(n).map(|v| (n.clone(), v.clone()))).collect()
}
