//! What to start. Every queued task passes the same row of gates each time; the first one that holds it is also the answer
//! to "why is it not running".

use super::board::{Board, Mode, Project, Target, Task};
use super::facts::ProfileHold;
use crate::domain::phase::{Again, Phase, WaitFor};
use crate::domain::plan::Plan;
use crate::domain::status::{Outcome, Reason, ReasonClass};
use crate::domain::task::WishStatus;
use crate::domain::{Mono, Now, ProjectId, TaskId, TaskPath};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Differences between calendar and clock that are no sleep.
const RESET_SLACK: Duration = Duration::from_secs(5);

/// What keeps a queued task from starting.
#[derive(Debug, Clone, PartialEq)]
pub enum Hold {
    Planning,
    Aborted,
    Paused,
    /// The daemon is ending, or no daemon runs.
    NotWorking,
    NotRead,
    NoConfiguration,
    /// It runs no agent itself: it is done when these are.
    Parent {
        open: usize,
    },
    Cycle(Vec<TaskPath>),
    Missing(TaskPath),
    /// A need that is still on its way.
    Needs(TaskPath),
    /// A need that failed or is blocked: this task cannot start until that one is revived.
    Doomed {
        need: TaskPath,
        why: String,
    },
    Elsewhere(String),
    Until {
        at: Mono,
        why: String,
    },
    CannotRun(Reason),
    /// Until a person says go on.
    Halted(String),
    Target(String),
    Baseline(Reason),
    /// The baseline is being checked.
    BaselineRunning,
    Profile {
        name: String,
        why: String,
        until: Option<Mono>,
    },
    ProfileSlots {
        name: String,
        slots: u32,
    },
    ProjectSlots(u32),
    Slots(u32),
}

impl Hold {
    /// True for holds that pass by themselves: the night is not over while one is there.
    pub fn passes(&self) -> bool {
        match self {
            Self::Until { .. }
            | Self::Elsewhere(_)
            | Self::BaselineRunning
            | Self::Slots(_)
            | Self::ProjectSlots(_)
            | Self::ProfileSlots { .. }
            | Self::NotRead => true,
            Self::Profile { until, .. } => until.is_some(),
            Self::Planning
            | Self::Aborted
            | Self::Paused
            | Self::NotWorking
            | Self::NoConfiguration
            | Self::Parent { .. }
            | Self::Cycle(_)
            | Self::Missing(_)
            | Self::Needs(_)
            | Self::Doomed { .. }
            | Self::CannotRun(_)
            | Self::Halted(_)
            | Self::Target(_)
            | Self::Baseline(_) => false,
        }
    }
}

/// Slots in use, counted once per settling.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    all: u32,
    projects: BTreeMap<ProjectId, u32>,
    profiles: BTreeMap<(ProjectId, String), u32>,
}

impl Counts {
    pub fn of(board: &Board) -> Self {
        let mut counts = Self::default();
        for task in board.tasks.values().filter(|t| t.phase.holds_slot()) {
            counts.add(task);
        }
        counts
    }

    fn add(&mut self, task: &Task) {
        self.all += 1;
        *self.projects.entry(task.id.project.clone()).or_default() += 1;
        if let Some(plan) = &task.plan {
            *self.profiles.entry((task.id.project.clone(), plan.profile_name.clone())).or_default() += 1;
        }
    }

    fn project(&self, id: &ProjectId) -> u32 {
        self.projects.get(id).copied().unwrap_or(0)
    }

    fn profile(&self, id: &ProjectId, name: &str) -> u32 {
        self.profiles.get(&(id.clone(), name.to_owned())).copied().unwrap_or(0)
    }
}

/// How a need stands.
pub enum Need {
    Met,
    OnItsWay,
    Failed(String),
    Missing,
}

/// How the task at `path` stands as a need of another.
pub fn need(board: &Board, project: &ProjectId, path: &TaskPath) -> Need {
    let id = TaskId { project: project.clone(), path: path.clone() };
    if let Some(task) = board.tasks.get(&id) {
        if let Phase::Waiting { on: WaitFor::Block { reason } } = &task.phase {
            return Need::Failed(format!("blocked, {}", first_line(reason)));
        }
        return Need::OnItsWay;
    }
    match board.ended.get(&id).map(|e| &e.outcome) {
        // What it contains may have come while it was at work: it is done when that is.
        Some(outcome) if outcome.satisfies() && children(board, &id).1 > 0 => Need::OnItsWay,
        Some(outcome) if outcome.satisfies() => Need::Met,
        Some(Outcome::Failed { reason }) => Need::Failed(format!("failed, {}", first_line(reason))),
        Some(Outcome::NoChanges) => Need::Failed("ended without changes".into()),
        Some(_) => Need::Failed("aborted".into()),
        None => Need::Missing,
    }
}

/// A reason without the output that it quotes.
fn first_line(reason: &Reason) -> &str {
    reason.text.lines().next().unwrap_or_default()
}

/// Sub-tasks of `path`: how many there are, how many of them are open, and one that failed.
pub fn children(board: &Board, id: &TaskId) -> (usize, usize, Option<TaskPath>) {
    let (from, to) = id.path.bounds_below();
    let bound = |path| TaskId { project: id.project.clone(), path };
    let range = bound(from)..bound(to);
    let direct = |path: &TaskPath| path.parent().as_ref() == Some(&id.path);
    let mut open = 0;
    let mut failed = None;
    let mut all = 0;
    for (child, task) in board.tasks.range(range.clone()).filter(|(c, _)| direct(&c.path)) {
        all += 1;
        open += 1;
        if matches!(task.phase, Phase::Waiting { on: WaitFor::Block { .. } }) {
            failed.get_or_insert_with(|| child.path.clone());
        }
    }
    for (child, ended) in board.ended.range(range).filter(|(c, _)| direct(&c.path)) {
        all += 1;
        if !ended.outcome.satisfies() {
            failed.get_or_insert_with(|| child.path.clone());
        }
    }
    (all, open, failed)
}

/// The first thing that keeps a queued task from starting for its own sake: its wish, its graph, its plan.
pub fn own_hold(board: &Board, task: &Task, project: &Project) -> Result<Plan, Hold> {
    if task.wish.wish.is_some() {
        return Err(Hold::Aborted);
    }
    if task.wish.status == WishStatus::Planning {
        return Err(Hold::Planning);
    }
    if let Some(above) = ended_above(board, &task.id) {
        let text = format!("it belongs to {above}, which is over");
        return Err(Hold::CannotRun(Reason::new(ReasonClass::DependencyFailed, text)));
    }
    if let Some(cycle) = project.cycles.iter().find(|c| c.contains(&task.id.path)) {
        return Err(Hold::Cycle(cycle.clone()));
    }
    for path in project.graph.needs(&task.id.path) {
        match need(board, &task.id.project, path) {
            Need::Met => {}
            Need::Missing => return Err(Hold::Missing(path.clone())),
            Need::Failed(why) => return Err(Hold::Doomed { need: path.clone(), why }),
            Need::OnItsWay => {
                return Err(match doom(board, project, &task.id.project, path) {
                    Some((need, why)) => Hold::Doomed { need, why },
                    None => Hold::Needs(path.clone()),
                });
            }
        }
    }
    let (all, open, _) = children(board, &task.id);
    if all > 0 {
        return Err(Hold::Parent { open });
    }
    let policy = project.policy.as_ref().ok_or(Hold::NoConfiguration)?;
    Plan::settle(&task.wish, policy).map_err(Hold::CannotRun)
}

/// A task that contains this one and ended without being done: its needs are no longer known, and nobody waits for it.
fn ended_above(board: &Board, id: &TaskId) -> Option<TaskPath> {
    let mut at = id.path.parent();
    while let Some(path) = at {
        let key = TaskId { project: id.project.clone(), path: path.clone() };
        if board.ended.get(&key).is_some_and(|e| !e.outcome.satisfies()) {
            return Some(path);
        }
        at = path.parent();
    }
    None
}

/// The failed task that a queued need itself waits for, however far down; each is looked at once.
fn doom(board: &Board, project: &Project, id: &ProjectId, path: &TaskPath) -> Option<(TaskPath, String)> {
    let mut open = vec![path.clone()];
    let mut seen = BTreeSet::new();
    while let Some(path) = open.pop() {
        let key = TaskId { project: id.clone(), path };
        let path = &key.path;
        let Some(task) = board.tasks.get(&key) else { continue };
        if task.phase != Phase::Queued || !seen.insert(path.clone()) {
            continue;
        }
        if let Some(above) = ended_above(board, &key) {
            return Some((path.clone(), format!("belongs to {above}, which is over")));
        }
        if project.cycles.iter().any(|c| c.contains(path)) {
            return Some((path.clone(), "is on a dependency cycle".into()));
        }
        if let (_, _, Some(child)) = children(board, &key) {
            return Some((child, "did not succeed".into()));
        }
        if task.wish.wish.is_some() || task.wish.status == WishStatus::Planning {
            return Some((path.clone(), "is not queued".into()));
        }
        let from = open.len();
        for next in project.graph.needs(path).chain(project.graph.children(path)) {
            match need(board, id, next) {
                Need::Failed(why) => return Some((next.clone(), why)),
                Need::Missing => return Some((next.clone(), "not there".into())),
                Need::Met => {}
                Need::OnItsWay => open.push(next.clone()),
            }
        }
        // The first that is named is looked at first.
        open[from..].reverse();
    }
    None
}

/// All gates for a queued task. `Ok` is the plan it would start with.
pub fn gate(board: &Board, task: &Task, counts: &Counts, now: Now) -> Result<Plan, Hold> {
    let project = board.projects.get(&task.id.project).ok_or(Hold::NoConfiguration)?;
    let plan = own_hold(board, task, project)?;
    if board.paused || project.paused {
        return Err(Hold::Paused);
    }
    if board.mode != Some(Mode::Working) {
        return Err(Hold::NotWorking);
    }
    if !project.read {
        return Err(Hold::NotRead);
    }
    if let Some(at) = task.not_before.filter(|at| *at > now.mono) {
        return Err(match &task.elsewhere {
            Some(by) => Hold::Elsewhere(by.clone()),
            None => Hold::Until { at, why: "waits before it is tried again".into() },
        });
    }
    profile_gate(project, &plan, now)?;
    tree_gate(project)?;
    slot_gate(board, task, project, &plan, counts)?;
    Ok(plan)
}

/// Whether the target branch and the base's checks allow a start.
fn tree_gate(project: &Project) -> Result<(), Hold> {
    if let Some(what) = &project.halted {
        return Err(Hold::Halted(what.clone()));
    }
    let tree = match &project.target {
        Target::Ready { tree, .. } => tree,
        Target::Blocked { reason, .. } => return Err(Hold::Target(reason.text.clone())),
        Target::Unknown | Target::Preparing { .. } | Target::Joining { .. } => return Err(Hold::BaselineRunning),
    };
    if project.is_green(tree) {
        return Ok(());
    }
    match super::target::baseline_of(project, tree) {
        Some(super::board::Baseline { red: Some(reason), .. }) => Err(Hold::Baseline(reason.clone())),
        Some(_) => Ok(()),
        None => Err(Hold::BaselineRunning),
    }
}

/// The profile's own state.
fn profile_gate(project: &Project, plan: &Plan, now: Now) -> Result<(), Hold> {
    let name = &plan.profile_name;
    if let Some(hold) = project.holds.get(name) {
        let over = hold.until.is_some_and(|at| at <= now.mono);
        // After a hold one task goes first; the rest follow when it has done well.
        if !over || hold.trial {
            return Err(Hold::Profile { name: name.clone(), why: hold.in_short().to_owned(), until: hold.until });
        }
    }
    Ok(())
}

/// Slots of the profile, the project and the daemon.
fn slot_gate(board: &Board, task: &Task, project: &Project, plan: &Plan, counts: &Counts) -> Result<(), Hold> {
    let name = &plan.profile_name;
    let policy = project.policy.as_ref().ok_or(Hold::NoConfiguration)?;
    if counts.profile(&task.id.project, name) >= plan.profile.slots {
        return Err(Hold::ProfileSlots { name: name.clone(), slots: plan.profile.slots });
    }
    if counts.project(&task.id.project) >= policy.slots {
        return Err(Hold::ProjectSlots(policy.slots));
    }
    if counts.all >= board.slots {
        return Err(Hold::Slots(board.slots));
    }
    Ok(())
}

/// Starts what may start, and lets agents that were held go on.
pub(super) fn levels(board: &mut Board, now: Now) {
    finish_parents(board, now);
    if board.mode != Some(Mode::Working) {
        return;
    }
    let mut counts = Counts::of(board);
    free_trials(board, &counts);
    resume_held(board, &mut counts, now);
    if counts.all >= board.slots {
        return;
    }
    let mut ready: Vec<(i64, usize, TaskId)> = Vec::new();
    for task in board.tasks.values().filter(|t| t.phase == Phase::Queued) {
        if gate(board, task, &counts, now).is_ok() {
            let order = board.projects.get(&task.id.project).and_then(|p| p.order.get(&task.id.path)).copied();
            ready.push((-i64::from(task.wish.priority), order.unwrap_or(usize::MAX), task.id.clone()));
        }
    }
    ready.sort();
    for (_, _, id) in fair(ready, &counts) {
        let Some(task) = board.tasks.get(&id) else { continue };
        // The counts moved on with each start, so every task passes the gates once more.
        let Ok(plan) = gate(board, task, &counts, now) else { continue };
        mark_trial(board, &id.project, &plan.profile_name);
        let Some(task) = board.task_mut(&id) else { continue };
        task.plan = Some(plan);
        task.elsewhere = None;
        task.not_before = None;
        counts.add(task);
        super::publish::night_begins(board, now);
        super::advance::enter(board, &id, Phase::Claiming, "all gates are open", now);
        if let Some(task) = board.task_mut(&id) {
            task.claimed = task.epoch;
        }
        if counts.all >= board.slots {
            break;
        }
    }
}

/// Takes turns between projects, each in its own order, so that a long queue starves no short one. What a project has at
/// work already counts as turns taken.
fn fair(ready: Vec<(i64, usize, TaskId)>, counts: &Counts) -> Vec<(i64, usize, TaskId)> {
    let mut turn = counts.projects.clone();
    let mut dealt: Vec<(u32, (i64, usize, TaskId))> = ready
        .into_iter()
        .map(|item| {
            let n = turn.entry(item.2.project.clone()).or_default();
            *n += 1;
            (*n, item)
        })
        .collect();
    dealt.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    dealt.into_iter().map(|(_, item)| item).collect()
}

fn mark_trial(board: &mut Board, project: &ProjectId, profile: &str) {
    if board.projects.get(project).is_some_and(|p| p.holds.contains_key(profile))
        && let Some(hold) = board.project_mut(project).holds.get_mut(profile)
    {
        hold.trial = true;
    }
}

/// A limit is reset by the calendar, and the clock of holds stands still while the machine sleeps: what is over by the
/// calendar is over. A calendar that was set back makes no hold longer.
pub(super) fn resets(board: &mut Board, now: Now) {
    let sooner = |hold: &ProfileHold| {
        let left = hold.until_wall?.since(now.wall);
        hold.until.filter(|until| *until > now.mono.after(left + RESET_SLACK)).map(|_| now.mono.after(left))
    };
    let due: Vec<(ProjectId, String, Mono)> = board
        .projects
        .iter()
        .flat_map(|(id, p)| p.holds.iter().filter_map(move |(name, h)| Some((id.clone(), name.clone(), sooner(h)?))))
        .collect();
    for (id, name, until) in due {
        if let Some(hold) = board.project_mut(&id).holds.get_mut(&name) {
            hold.until = Some(until);
        }
    }
}

/// A trial that ended without an answer (aborted, failed for reasons of its own) leaves the profile for the next to try.
fn free_trials(board: &mut Board, counts: &Counts) {
    let stale: Vec<(ProjectId, String)> = board
        .projects
        .iter()
        .flat_map(|(id, p)| p.holds.iter().filter(|(_, h)| h.trial).map(move |(name, _)| (id.clone(), name.clone())))
        .filter(|(id, name)| counts.profile(id, name) == 0)
        .collect();
    for (id, name) in stale {
        if let Some(hold) = board.project_mut(&id).holds.get_mut(&name) {
            hold.trial = false;
        }
    }
}

/// Agents whose profile was held go on in their own worktree and session.
fn resume_held(board: &mut Board, counts: &mut Counts, now: Now) {
    let held: Vec<TaskId> = board
        .tasks
        .values()
        .filter(|t| t.phase == Phase::Backoff { again: Again::Run } && t.not_before.is_none_or(|at| at <= now.mono))
        .map(|t| t.id.clone())
        .collect();
    for id in held {
        let Some(task) = board.tasks.get(&id) else { continue };
        let Some(project) = board.projects.get(&id.project) else { continue };
        let Some(plan) = task.plan.clone() else { continue };
        let open = profile_gate(project, &plan, now).and_then(|()| slot_gate(board, task, project, &plan, counts));
        if board.paused || project.paused || open.is_err() {
            continue;
        }
        mark_trial(board, &id.project, &plan.profile_name);
        // What it was held for may have been mended in the configuration.
        let policy = board.projects.get(&id.project).and_then(|p| p.policy.as_ref());
        let profile = policy.and_then(|p| p.agents.get(&plan.profile_name)).cloned();
        if let Some(task) = board.task_mut(&id) {
            task.not_before = None;
            if let (Some(plan), Some(profile)) = (&mut task.plan, profile) {
                plan.profile = profile;
            }
            counts.add(task);
        }
        super::publish::night_begins(board, now);
        super::advance::enter(board, &id, Phase::Running, "its agent may be used again", now);
    }
}

/// A parent is done when all its sub-tasks are.
fn finish_parents(board: &mut Board, now: Now) {
    let parents: Vec<TaskId> = board
        .tasks
        .values()
        .filter(|t| t.phase == Phase::Queued && t.wish.status == WishStatus::Queued && t.wish.wish.is_none())
        .filter(|t| board.projects.get(&t.id.project).is_some_and(|p| p.read))
        .filter(|t| {
            let (all, open, failed) = children(board, &t.id);
            all > 0 && open == 0 && failed.is_none()
        })
        .map(|t| t.id.clone())
        .collect();
    for id in parents {
        super::ending::conclude_parent(board, &id, now);
    }
}

/// The reason class that goes with a hold, for reports and boards; `None` for a task that simply waits its turn.
pub fn reason_of(hold: &Hold) -> Option<Reason> {
    Some(match hold {
        Hold::Cycle(cycle) => Reason::new(ReasonClass::DependencyCycle, show_cycle(cycle)),
        Hold::Missing(path) => Reason::new(ReasonClass::DependencyMissing, format!("needs {path}, which is not there")),
        Hold::Doomed { need, why } => Reason::new(ReasonClass::DependencyFailed, format!("needs {need} ({why})")),
        Hold::CannotRun(reason) | Hold::Baseline(reason) => reason.clone(),
        Hold::Planning
        | Hold::Aborted
        | Hold::Paused
        | Hold::NotWorking
        | Hold::NotRead
        | Hold::NoConfiguration
        | Hold::Parent { .. }
        | Hold::Needs(_)
        | Hold::Elsewhere(_)
        | Hold::Until { .. }
        | Hold::Halted(_)
        | Hold::Target(_)
        | Hold::BaselineRunning
        | Hold::Profile { .. }
        | Hold::ProfileSlots { .. }
        | Hold::ProjectSlots(_)
        | Hold::Slots(_) => return None,
    })
}

/// `a needs b needs a`.
pub fn show_cycle(cycle: &[TaskPath]) -> String {
    let mut words: Vec<&str> = cycle.iter().map(TaskPath::as_str).collect();
    words.extend(cycle.first().map(TaskPath::as_str));
    words.join(" needs ")
}
