//! The world of one simulated night: what the hands would do, as plain data, and the rules that must hold after each step.

mod act;
mod make;

use crate::model::{self, Disk, loaded};
use crate::rng::Rng;
use make::{policy, wishes};
use overnight::decide::ask::{Ask, Place, Program, ProjectAsk, Record, Reply, RunOrder, TaskAsk};
use overnight::decide::board::Target;
use overnight::decide::event::{Concluded, Progress, RequestId, Started, WishEdit, WishNews, Work, Worktree};
use overnight::decide::{Answer, Board, Event, Request, SideAnswer, Task, explain, publish};
use overnight::domain::chain::{Chain, Check, Command, OnFailure, Step, When};
use overnight::domain::lease::Held;
use overnight::domain::phase::{Phase, StopCause, StopStage, WaitFor};
use overnight::domain::policy::{AgentKind, Limits, MergePolicy, Policy, Profile};
use overnight::domain::task::{Wish, WishStatus};
use overnight::domain::verdict::{AgentEvent, AgentReport, Exit, RunEnd, Survivor, Usage, Verdict};
use overnight::domain::{Epoch, Mono, Now, Oid, ProjectId, RunId, TaskId, TaskPath, Wall};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SLOTS: u32 = 3;
/// Until then the world is allowed to be bad.
const TROUBLE: u64 = 4 * 3600 * 1000;
const STEPS: u64 = 60_000;

/// A child program as the shim would have it.
struct Run {
    task: Option<TaskId>,
    agent: bool,
    healthy: bool,
    live: bool,
    ends: Option<u64>,
    next_beat: Option<u64>,
    ignores_term: bool,
    /// Nothing can end it; the rules must settle the task without it.
    immortal: bool,
    end: RunEnd,
    report: Option<AgentReport>,
    /// The daemon waits for its end.
    followed: bool,
    /// What it does to the worktree when it ends by itself.
    effect: Effect,
    check_of: Option<(Oid, bool)>,
    /// It has the integration worktree, of which there is one.
    integration: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Effect {
    None,
    Good,
    Bad,
}

#[derive(Debug, Default, Clone)]
pub struct Totals {
    nights: u64,
    merged: u64,
    failed: u64,
    aborted: u64,
    blocked: u64,
    doomed: u64,
    crashes: u64,
    reboots: u64,
    gaps: u64,
    adopted: u64,
    kills: u64,
    gave_up: u64,
    sent_back: u64,
    held: u64,
    overtaken: u64,
    conflicts: u64,
    joined: u64,
    base_red: u64,
    landed: u64,
    questions: u64,
    retried: u64,
    orphans: u64,
    stale: u64,
    parents: u64,
    lost_claims: u64,
    claims_gone: u64,
}

impl Totals {
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.fields_mut().into_iter().zip(other.clone().fields_mut()) {
            *mine += *theirs;
        }
    }

    fn fields_mut(&mut self) -> Vec<&mut u64> {
        vec![
            &mut self.nights,
            &mut self.merged,
            &mut self.failed,
            &mut self.aborted,
            &mut self.blocked,
            &mut self.doomed,
            &mut self.crashes,
            &mut self.reboots,
            &mut self.gaps,
            &mut self.adopted,
            &mut self.kills,
            &mut self.gave_up,
            &mut self.sent_back,
            &mut self.held,
            &mut self.overtaken,
            &mut self.conflicts,
            &mut self.joined,
            &mut self.base_red,
            &mut self.landed,
            &mut self.questions,
            &mut self.retried,
            &mut self.orphans,
            &mut self.stale,
            &mut self.parents,
            &mut self.lost_claims,
            &mut self.claims_gone,
        ]
    }

    pub fn reached(&self) -> Vec<(&'static str, u64)> {
        let mut me = self.clone();
        let names = [
            "nights",
            "merged",
            "failed",
            "aborted",
            "blocked",
            "doomed",
            "crashes",
            "reboots",
            "gaps",
            "adopted",
            "kills",
            "gave_up",
            "sent_back",
            "held",
            "overtaken",
            "conflicts",
            "joined",
            "base_red",
            "landed",
            "questions",
            "retried",
            "orphans",
            "stale",
            "parents",
            "lost_claims",
            "claims_gone",
        ];
        names.into_iter().zip(me.fields_mut().into_iter().map(|n| *n)).collect()
    }
}

pub struct Finished {
    pub totals: Totals,
    /// One line per turn, for comparing and for looking at a failure.
    pub trace: Vec<String>,
}

pub struct World {
    rng: Rng,
    mono: u64,
    wall: i64,
    seq: u64,
    board: Board,
    disk: Disk,
    /// Answers and news under way to the daemon, by time.
    queue: BTreeMap<(u64, u64), Event>,
    runs: BTreeMap<RunId, Run>,
    /// Who holds each claim: `true` is us.
    claims: BTreeMap<TaskPath, bool>,
    wishes: BTreeMap<TaskPath, Wish>,
    concluded: BTreeMap<TaskPath, Concluded>,
    /// Each conclusion, to see that none is made twice.
    conclusions: BTreeSet<(TaskPath, u32, String)>,
    worktrees: BTreeMap<TaskPath, (Worktree, BTreeSet<TaskPath>)>,
    /// Content of each task's worktree: tree, good or bad, changed at all.
    content: BTreeMap<TaskPath, (Oid, Effect)>,
    good: BTreeMap<Oid, bool>,
    green: BTreeSet<Oid>,
    commit_tree: BTreeMap<Oid, Oid>,
    tip: Oid,
    base: Oid,
    merged: Vec<TaskPath>,
    /// The last red check of each commit, per check count.
    passed: BTreeMap<Oid, u64>,
    policy: Policy,
    project: ProjectId,
    requests: u64,
    fresh: u64,
    totals: Totals,
    trace: Vec<String>,
    traced: bool,
    exited: bool,
}

fn oid(n: u64) -> Oid {
    Oid::parse(&format!("{n:040x}")).unwrap()
}

fn end(exit: Exit) -> RunEnd {
    RunEnd { exit, took: Duration::from_secs(1), survivors: vec![], tail: "…".into(), bytes: 10, cut: 0 }
}

impl World {
    /// Plays one night. When a rule is broken it plays it once more with a trace, and panics with the last turns: writing
    /// down what nobody reads would take half of the time.
    pub fn night(seed: u64) -> Finished {
        let mut world = Self::new(seed, false);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.play())) {
            Ok(()) => Finished { totals: world.totals, trace: world.trace },
            Err(_) => Self::traced(seed),
        }
    }

    pub fn traced(seed: u64) -> Finished {
        let mut world = Self::new(seed, true);
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.play()));
        if let Err(cause) = played {
            let last = std::env::var("SIM_TRACE").ok().and_then(|n| n.parse().ok()).unwrap_or(25);
            let from = world.trace.len().saturating_sub(last);
            eprintln!("seed {seed}, last turns:\n{}", world.trace[from..].join("\n"));
            std::panic::resume_unwind(cause);
        }
        Finished { totals: world.totals, trace: world.trace }
    }

    fn new(seed: u64, traced: bool) -> Self {
        let mut rng = Rng::new(seed);
        let policy = policy(&mut rng);
        let wishes = wishes(&mut rng);
        let (tree, tip) = (oid(1), oid(2));
        let red_base = rng.chance(4);
        let mut world = Self {
            rng,
            mono: 1_000_000,
            wall: 1_700_000_000_000,
            seq: 0,
            board: Board::default(),
            disk: Disk::default(),
            queue: BTreeMap::new(),
            runs: BTreeMap::new(),
            claims: BTreeMap::new(),
            wishes,
            concluded: BTreeMap::new(),
            conclusions: BTreeSet::new(),
            worktrees: BTreeMap::new(),
            content: BTreeMap::new(),
            good: BTreeMap::from([(tree.clone(), !red_base)]),
            green: BTreeSet::new(),
            commit_tree: BTreeMap::from([(tip.clone(), tree)]),
            tip: tip.clone(),
            base: tip,
            merged: vec![],
            passed: BTreeMap::new(),
            policy,
            project: ProjectId::parse("p").unwrap(),
            requests: 0,
            fresh: 100,
            totals: Totals { nights: 1, ..Totals::default() },
            trace: vec![],
            traced,
            exited: false,
        };
        if world.rng.chance(20) {
            let paths: Vec<TaskPath> = world.wishes.keys().cloned().collect();
            let n = world.rng.below(paths.len() as u64) as usize;
            world.claims.insert(paths[n].clone(), false);
        }
        world.start(true);
        world
    }

    fn play(&mut self) {
        let mut calm = false;
        for _ in 0..STEPS {
            if !self.trouble() && !calm {
                calm = true;
                self.claims.retain(|_, ours| *ours);
                for commit in [&self.base, &self.tip] {
                    self.good.insert(self.commit_tree[commit].clone(), true);
                }
                self.request(Request::Resume { project: None });
            }
            self.mischief();
            if !self.step() {
                if calm && !self.exited && publish::is_idle(&self.board, self.now()) && !self.prompt_people() {
                    return self.morning();
                }
                // Nothing happens by itself: let the troubled hours pass.
                self.mono += 600_000;
                self.wall += 600_000;
                if self.board.mode.is_none() || self.exited {
                    self.start(false);
                } else {
                    self.turn(Event::Wake);
                }
            }
        }
        let open: Vec<String> = self
            .board
            .tasks
            .values()
            .map(|t| format!("{} {:?}: {}", t.id.path, t.phase, explain::why(&self.board, t, self.now())))
            .collect();
        panic!(
            "the night does not end: {open:#?} target {:?}",
            self.board.projects.values().map(|p| &p.target).collect::<Vec<_>>()
        );
    }

    fn trouble(&self) -> bool {
        self.mono < 1_000_000 + TROUBLE
    }

    fn now(&self) -> Now {
        Now { mono: Mono(self.mono), wall: Wall(self.wall) }
    }

    /// Moves to the next thing that happens; false when nothing will.
    fn step(&mut self) -> bool {
        let queued = self.queue.keys().next().map(|(at, _)| *at);
        let ends = self.runs.values().filter(|r| r.live).filter_map(|r| r.ends).min();
        let beats = self.runs.values().filter(|r| r.live && r.followed).filter_map(|r| r.next_beat).min();
        let wake = self.board.next_wake(self.now()).map(|m| m.0);
        let Some(at) = [queued, ends, beats, wake].into_iter().flatten().min() else { return false };
        let by = at.saturating_sub(self.mono);
        self.mono += by;
        self.wall += by as i64;
        self.end_runs();
        self.beat_runs();
        let due: Vec<(u64, u64)> = self.queue.range(..=(self.mono, u64::MAX)).map(|(k, _)| *k).collect();
        if due.is_empty() {
            self.turn(Event::Wake);
        }
        for key in due {
            if let Some(event) = self.queue.remove(&key) {
                let twice =
                    self.trouble() && self.rng.chance(5) && matches!(event, Event::Answer { .. } | Event::Side { .. });
                let again = twice.then(|| event.clone());
                self.turn(event);
                if let Some(event) = again {
                    self.totals.stale += 1;
                    self.turn(event);
                }
            }
        }
        true
    }

    fn end_runs(&mut self) {
        let over: Vec<RunId> = self
            .runs
            .iter()
            .filter(|(_, r)| r.live && r.ends.is_some_and(|at| at <= self.mono))
            .map(|(id, _)| id.clone())
            .collect();
        for id in over {
            let (task, effect, followed) = {
                let run = self.runs.get_mut(&id).unwrap();
                run.live = false;
                (run.task.clone(), run.effect, run.followed)
            };
            if let (Some(task), true) = (&task, effect != Effect::None) {
                self.fresh += 1;
                let tree = oid(self.fresh);
                self.good.insert(tree.clone(), effect == Effect::Good);
                self.content.insert(task.path.clone(), (tree, effect));
            }
            if let Some((tree, true)) = self.runs[&id].check_of.clone() {
                *self.passed.entry(tree).or_default() += 1;
            }
            if followed {
                self.report_end(&id, 0);
            }
        }
    }

    fn report_end(&mut self, id: &RunId, delay: u64) {
        let run = &self.runs[id];
        let epoch = id.epoch().unwrap();
        let event = match &run.task {
            Some(task) => Event::Answer {
                task: task.clone(),
                epoch,
                answer: Answer::RunEnded { run: id.clone(), end: run.end.clone(), agent: run.report.clone() },
            },
            None => Event::Side {
                project: self.project.clone(),
                epoch,
                answer: SideAnswer::RunEnded { run: id.clone(), end: run.end.clone() },
            },
        };
        self.post(delay, event);
    }

    fn beat_runs(&mut self) {
        let due: Vec<RunId> = self
            .runs
            .iter()
            .filter(|(_, r)| r.live && r.followed && r.next_beat.is_some_and(|at| at <= self.mono))
            .map(|(id, _)| id.clone())
            .collect();
        for id in due {
            let mono = self.mono;
            let run = self.runs.get_mut(&id).unwrap();
            run.next_beat = Some(mono + 30_000);
            let (Some(task), Some(epoch)) = (run.task.clone(), id.epoch()) else { continue };
            let events = vec![AgentEvent::ToolEnd { tool: "edit".into(), ok: true }];
            let progress = Progress { bytes: mono, events, touched: false };
            self.post(0, Event::Progress { task, epoch, progress });
        }
    }

    fn trace(&mut self, line: impl FnOnce(&Self) -> String) {
        if self.traced {
            let line = line(self);
            self.trace.push(line);
        }
    }

    fn post(&mut self, delay: u64, event: Event) {
        self.seq += 1;
        self.queue.insert((self.mono + delay, self.seq), event);
    }

    /// One turn as the daemon takes it, with a crash at one of its three places now and then.
    fn turn(&mut self, event: Event) {
        if self.board.mode.is_none() && !matches!(event, Event::Started(_)) {
            return;
        }
        let shown = match &event {
            _ if !self.traced => String::new(),
            Event::Started(s) => format!("Started {} runs, same boot {}", s.runs.len(), s.same_boot),
            Event::Configured { .. } => "Configured".into(),
            Event::Wishes { news, .. } => format!("Wishes {}", news.wishes.len()),
            other => format!("{other:?}"),
        };
        self.trace(|world| format!("{} {shown}", world.mono));
        let now = self.now();
        self.board.turn(event, now);
        self.board.settle(now);
        if self.trouble() && self.rng.chance(1) && self.rng.chance(60) {
            return self.crash("before the save");
        }
        if self.trouble() && self.rng.chance(1) {
            // The disk is full for a moment: everything must be as if the turn had not been.
            self.board.roll_back();
            self.check_disk();
            return self.crash("after a save that failed");
        }
        self.save();
        let asks = self.board.take_asks();
        for line in self.board.take_journal() {
            self.totals.base_red += u64::from(line.kind == "base_red");
            self.trace(|_| {
                let task = line.task.map_or_else(String::new, |t| t.to_string());
                format!("    {task} {}: {}", line.kind, line.text)
            });
        }
        if self.trouble() && self.rng.chance(1) && self.rng.chance(60) {
            return self.crash("between save and act");
        }
        for ask in asks {
            self.act(ask);
        }
        self.check();
        if self.trouble() && self.rng.chance(1) && self.rng.chance(60) {
            self.crash("after the act");
        }
    }

    fn save(&mut self) {
        self.disk.save(self.board.changes());
        self.board.saved();
        if self.rng.chance(3) {
            self.check_disk();
        }
    }

    /// Save then load gives the same board, soft facts aside.
    fn check_disk(&self) {
        assert_eq!(self.board.tasks.len(), self.disk.tasks.len(), "a task row is missing or left over");
        for (id, task) in &self.board.tasks {
            let saved: Task = loaded(&self.disk.tasks[id]);
            assert_eq!((&saved.phase, saved.epoch, saved.attempts), (&task.phase, task.epoch, task.attempts), "{id}");
            assert_eq!((&saved.held, &saved.worktree, &saved.end), (&task.held, &task.worktree, &task.end), "{id}");
        }
        assert_eq!(self.board.ended.len(), self.disk.ended.len());
    }

    fn crash(&mut self, place: &str) {
        self.totals.crashes += 1;
        self.trace(|world| format!("{} -- crash {place}", world.mono));
        self.queue.clear();
        for run in self.runs.values_mut() {
            run.followed = false;
        }
        self.board = Board::default();
        let down = self.rng.below(120_000);
        self.mono += down;
        self.wall += down as i64;
        // What runs goes on running while nobody looks.
        self.end_runs();
        self.start(false);
    }

    fn start(&mut self, first: bool) {
        self.exited = false;
        let reboot = !first && self.trouble() && self.rng.chance(15);
        if reboot {
            self.totals.reboots += 1;
            self.mono = 1_000_000 + (self.mono - 1_000_000).max(1);
            for run in self.runs.values_mut().filter(|r| r.live) {
                run.live = false;
                run.end = end(Exit::Lost);
                run.report = None;
            }
        }
        self.board = self.disk.load();
        let runs = self.runs.iter().filter(|(_, r)| !r.followed).map(|(id, _)| id.clone()).collect();
        let started = Started { same_boot: !reboot, only_serve: false, runs, slots: SLOTS, used: Epoch(0) };
        self.turn(Event::Started(started));
        if self.board.mode.is_none() {
            return;
        }
        self.turn(Event::Configured { project: self.project.clone(), policy: Box::new(self.policy.clone()) });
        let news = WishNews {
            whole: true,
            wishes: self.wishes.iter().map(|(p, w)| (p.clone(), Some(w.clone()))).collect(),
            invalid: vec![],
            concluded: self.concluded.clone(),
        };
        self.turn(Event::Wishes { project: self.project.clone(), news });
    }

    fn request(&mut self, request: Request) {
        self.requests += 1;
        self.turn(Event::Request { id: RequestId(self.requests), request });
    }

    /// People, clocks and other machines.
    fn mischief(&mut self) {
        if !self.trouble() {
            return;
        }
        let roll = self.rng.below(1000);
        let path = self.any_task();
        match roll {
            0..2 => self.edit(path, WishEdit::Abort),
            2..8 => self.edit(path, WishEdit::Retry),
            8..14 => self.edit(path, WishEdit::Answer("yes".into())),
            14..20 => self.edit(path, WishEdit::Approve),
            20..22 => self.request(Request::Pause { project: None }),
            22..30 => self.request(Request::Resume { project: None }),
            30..32 => self.gap(),
            32..34 => self.move_base(),
            34..36 => self.request(Request::Land { project: self.project.clone() }),
            36 => {
                let stop = self.rng.chance(50);
                self.request(Request::Stop { stop_agents: stop });
            }
            39..42 => self.take_over(path),
            37..39 => {
                let (fresh, tree) = (self.fresh + 1, self.fresh + 2);
                self.fresh += 2;
                // Somebody moves the target branch under us.
                self.good.insert(oid(tree), true);
                self.commit_tree.insert(oid(fresh), oid(tree));
                self.tip = oid(fresh);
            }
            _ => {}
        }
    }

    /// Another machine takes a claim of ours over, for a while; the renewal finds it out.
    fn take_over(&mut self, path: TaskPath) {
        let task = TaskId { project: self.project.clone(), path };
        let Some(epoch) = self.board.tasks.get(&task).filter(|t| t.held.is_some()).map(|t| t.epoch) else { return };
        if self.claims.get(&task.path) == Some(&true) {
            self.totals.claims_gone += 1;
            self.claims.insert(task.path.clone(), false);
            self.post(100, Event::Answer { task, epoch, answer: Answer::ClaimGone });
        }
    }

    fn edit(&mut self, path: TaskPath, edit: WishEdit) {
        self.request(Request::Edit { project: self.project.clone(), path, edit });
    }

    fn any_task(&mut self) -> TaskPath {
        let n = self.rng.below(self.wishes.len() as u64) as usize;
        self.wishes.keys().nth(n).unwrap().clone()
    }

    /// The machine sleeps, or everything is stopped: no clock of the world runs.
    fn gap(&mut self) {
        self.totals.gaps += 1;
        let gap = 60_000 + self.rng.below(7_200_000);
        self.mono += gap;
        self.wall += gap as i64;
        for run in self.runs.values_mut() {
            run.ends = run.ends.map(|at| at + gap);
            run.next_beat = run.next_beat.map(|at| at + gap);
        }
        let late: Vec<_> = std::mem::take(&mut self.queue).into_iter().collect();
        self.queue.extend(late.into_iter().map(|((at, seq), event)| ((at + gap, seq), event)));
        self.turn(Event::Wake);
    }

    fn move_base(&mut self) {
        self.fresh += 2;
        self.base = oid(self.fresh);
        self.good.insert(oid(self.fresh - 1), true);
        self.commit_tree.insert(self.base.clone(), oid(self.fresh - 1));
    }

    /// In the morning people answer and approve; true when that moved something.
    fn prompt_people(&mut self) -> bool {
        let waiting: Vec<(TaskPath, WishEdit)> = self
            .board
            .tasks
            .values()
            .filter_map(|t| match &t.phase {
                Phase::Waiting { on: WaitFor::Question } => Some((t.id.path.clone(), WishEdit::Answer("yes".into()))),
                Phase::Waiting { on: WaitFor::Review } => Some((t.id.path.clone(), WishEdit::Approve)),
                _ => None,
            })
            .collect();
        for (path, edit) in &waiting {
            self.edit(path.clone(), edit.clone());
        }
        // A base that was mended while its old check still ran is looked at once more.
        let red = self.board.projects.values().any(|p| p.baseline.as_ref().is_some_and(|b| b.red.is_some()));
        // So is a login that was missing when an agent of the troubled hours ended.
        let held = self.board.projects.values().any(|p| p.holds.values().any(|h| h.until.is_none()));
        let halted = self.board.projects.values().any(|p| p.halted.is_some());
        if red || held || halted {
            self.request(Request::Resume { project: None });
        }
        red || held || halted || !waiting.is_empty()
    }

    /// Everything is merged or explained, and nothing is left lying about.
    fn morning(&mut self) {
        for (id, run) in &self.runs {
            assert!(!run.live || run.immortal, "{id} is alive in the morning");
        }
        for task in self.board.tasks.values() {
            let why = explain::why(&self.board, task, self.now());
            assert!(!why.is_empty(), "{} is not explained", task.id);
            match &task.phase {
                Phase::Waiting { .. } => self.totals.blocked += 1,
                Phase::Queued => {
                    let planned = task.wish.status == WishStatus::Planning || task.wish.wish.is_some();
                    let reason = explain::queued_reason(&self.board, task);
                    assert!(planned || reason.is_some(), "{} stays queued without a reason: {why}", task.id);
                    self.totals.doomed += u64::from(reason.is_some());
                }
                Phase::Backoff { .. } => panic!("{} is still held: {why}", task.id),
                phase => panic!("{} ends the night in {phase:?}", task.id),
            }
        }
        for (path, ours) in &self.claims {
            let id = TaskId { project: self.project.clone(), path: path.clone() };
            let waits = self.board.tasks.get(&id).is_some_and(|t| matches!(t.phase, Phase::Waiting { .. }));
            assert!(!ours || waits, "the claim of {path} was never given back");
        }
        for path in self.worktrees.keys() {
            let id = TaskId { project: self.project.clone(), path: path.clone() };
            let waits = self.board.tasks.get(&id).is_some_and(|t| matches!(t.phase, Phase::Waiting { .. }));
            assert!(waits, "the worktree of {path} was never given back");
        }
        for ended in self.board.ended.values() {
            match ended.outcome.status() {
                overnight::domain::status::Status::Completed => self.totals.merged += 1,
                overnight::domain::status::Status::Aborted => self.totals.aborted += 1,
                _ => self.totals.failed += 1,
            }
            self.totals.parents += u64::from(ended.outcome == overnight::domain::status::Outcome::ChildrenDone);
        }
    }

    /// What must hold after every step.
    fn check(&mut self) {
        let live = self.runs.values().filter(|r| r.live && r.agent && !r.immortal).count();
        assert!(live <= SLOTS as usize, "{live} agents are alive with {SLOTS} slots");
        let holding = self.board.tasks.values().filter(|t| t.phase.holds_slot()).count();
        assert!(holding <= SLOTS as usize, "{holding} slots are in use");
        let merging = self.board.tasks.values().filter(|t| matches!(t.phase, Phase::Merging { .. })).count();
        assert!(merging <= 1, "two tasks merge at once");
        for task in self.board.tasks.values() {
            if let Some(plan) = &task.plan {
                assert!(
                    task.attempts <= plan.attempts,
                    "{} has used {} of {} attempts",
                    task.id,
                    task.attempts,
                    plan.attempts
                );
            }
            let needs_tree = matches!(
                task.phase,
                Phase::Briefing
                    | Phase::Before { .. }
                    | Phase::Running
                    | Phase::Checking { .. }
                    | Phase::After { .. }
                    | Phase::Collecting { .. }
            );
            assert!(!needs_tree || task.worktree.is_some(), "{} works without a worktree", task.id);
            assert!(!needs_tree || task.held.is_some(), "{} works without a claim", task.id);
            if let Phase::Stopping { cause, .. } = task.phase {
                let run = task.run.as_ref().and_then(|r| self.runs.get(&RunId::new(&task.id, r.epoch)));
                let healthy = run.is_some_and(|r| r.healthy);
                let silent = matches!(cause, StopCause::NoProgress | StopCause::NoFirstEvent);
                assert!(!(healthy && silent), "{} was stopped as silent although it made progress", task.id);
            }
        }
        let alive = self.board.tasks.values().any(|t| t.phase.child().is_some());
        assert!(!alive || self.board.next_wake(self.now()).is_some(), "a child runs and nobody will look at it");
    }
}
