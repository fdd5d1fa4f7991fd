//! The board: all open tasks with their facts, and what one turn does to them. Nothing here reads a clock, a file or a
//! random number; everything comes in as an event and goes out as asks, journal lines and changed rows.

use super::ask::{Ask, NoticeKind, ProjectAsk, TaskAsk};
use super::event::{Concluded, Event, RequestId};
use crate::domain::time::millis;
use crate::domain::{Epoch, Mono, Now, ProjectId, TaskId, TaskPath, Wall};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use super::facts::{
    Baseline, CheckPurpose, Failure, MergeTry, Night, ProfileHold, Project, RunFacts, Target, Task, TreeCheck,
};

/// How long the board may go without a turn while something runs. A longer silence was a gap: the machine slept or the
/// daemon was stopped, and no clock ran.
pub const PULSE: Duration = Duration::from_secs(5);
/// How much later than asked a turn may come before it is told as a gap.
pub const GAP: Duration = Duration::from_secs(5);
/// How much later it may come before the clocks are moved on by it.
const LATE: Duration = Duration::from_millis(250);
/// What output that came in a gap may take to arrive.
const CATCH_UP: Duration = Duration::from_secs(1);

/// What one turn wants saved beside the rows.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalLine {
    pub at: Wall,
    pub project: Option<ProjectId>,
    pub task: Option<TaskPath>,
    pub epoch: Epoch,
    /// One word, for filters.
    pub kind: &'static str,
    pub text: String,
}

/// All that is going on.
#[derive(Debug, Clone, Default)]
pub struct Board {
    pub projects: BTreeMap<ProjectId, Project>,
    pub tasks: BTreeMap<TaskId, Task>,
    /// Tasks that are over, as far as others need to know.
    pub ended: BTreeMap<TaskId, Concluded>,
    pub paused: bool,
    pub night: Option<Night>,
    /// Agents at once over all projects; 0 before `Started`.
    pub slots: u32,
    /// `None` before `Started`.
    pub mode: Option<Mode>,
    /// New tasks and projects begin after it, see `Started::used`.
    pub(super) used: Epoch,
    pub(super) asks: Vec<Ask>,
    pub(super) journal: Vec<JournalLine>,
    /// Rows as they were before the turns that are not saved yet.
    undo: Undo,
    pub(super) last_turn: Option<Mono>,
    pub(super) promised: Option<Mono>,
    /// Requests that wait for an answer of a hand.
    pub(super) settling: Vec<RequestId>,
    pub(super) stop_reply: Option<RequestId>,
    pub(super) noticed: BTreeSet<(ProjectId, Option<TaskPath>, NoticeKind)>,
}

/// How the ring is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A daemon that works.
    Working,
    /// A request served without a daemon: nothing is started.
    Serving,
    /// Ending; agents go on under their shims.
    Leaving,
    /// Ending once every agent has been stopped.
    Stopping,
}

#[derive(Debug, Clone, Default)]
struct Undo {
    tasks: BTreeMap<TaskId, Option<Task>>,
    ended: BTreeMap<TaskId, Option<Concluded>>,
    projects: BTreeMap<ProjectId, Option<Project>>,
    globals: Option<(bool, Option<Night>)>,
    /// As they were before a soft change that came first; these are never saved, but they roll back.
    soft_tasks: BTreeMap<TaskId, Task>,
    soft_projects: BTreeMap<ProjectId, Project>,
    /// What the board itself remembers between turns.
    memory: Option<Memory>,
}

/// What lives as long as the daemon and is in no row.
#[derive(Debug, Clone, Default)]
struct Memory {
    mode: Option<Mode>,
    last_turn: Option<Mono>,
    promised: Option<Mono>,
    settling: Vec<RequestId>,
    stop_reply: Option<RequestId>,
    noticed: BTreeSet<(ProjectId, Option<TaskPath>, NoticeKind)>,
}

/// The rows that the turns since the last save have changed.
#[derive(Debug, Default)]
pub struct Changes<'a> {
    /// `None` for a task that left the board.
    pub tasks: Vec<(&'a TaskId, Option<&'a Task>)>,
    /// Tasks that ended (with their last facts, for the history) or came back (`None`).
    pub ended: Vec<(&'a TaskId, Option<&'a Concluded>, Option<&'a Task>)>,
    pub projects: Vec<(&'a ProjectId, Option<&'a Project>)>,
    pub paused: Option<bool>,
    pub night: Option<&'a Option<Night>>,
}

impl Changes<'_> {
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
            && self.ended.is_empty()
            && self.projects.is_empty()
            && self.paused.is_none()
            && self.night.is_none()
    }
}

impl Board {
    /// The board as it was saved. It does nothing before `Event::Started`.
    pub fn load(
        tasks: impl IntoIterator<Item = Task>,
        ended: impl IntoIterator<Item = (TaskId, Concluded)>,
        projects: impl IntoIterator<Item = (ProjectId, Project)>,
        paused: bool,
        night: Option<Night>,
    ) -> Self {
        Self {
            tasks: tasks.into_iter().map(|t| (t.id.clone(), t)).collect(),
            ended: ended.into_iter().collect(),
            projects: projects.into_iter().collect(),
            paused,
            night,
            ..Self::default()
        }
    }

    /// Handles one event. Asks gather until `take_asks`; they may be handed out only after the changes were saved.
    pub fn turn(&mut self, event: Event, now: Now) {
        self.remember();
        self.notice_gap(now);
        super::advance::handle(self, event, now);
    }

    /// Everything that follows from how things stand, whatever changed: once per batch of events.
    pub fn settle(&mut self, now: Now) {
        if self.mode.is_none() {
            return;
        }
        super::schedule::resets(self, now);
        super::deadline::apply(self, now);
        super::requests::levels(self, now);
        super::target::levels(self, now);
        super::merge::levels(self, now);
        super::schedule::levels(self, now);
        super::publish::levels(self, now);
        super::publish::night(self, now);
        self.promised = self.next_wake(now);
    }

    /// When the board wants a turn at the latest, if nothing happens before.
    pub fn next_wake(&self, now: Now) -> Option<Mono> {
        super::deadline::next_wake(self, now)
    }

    /// The asks of the turns since the last call. Call it after the save.
    pub fn take_asks(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.asks)
    }

    pub fn take_journal(&mut self) -> Vec<JournalLine> {
        std::mem::take(&mut self.journal)
    }

    pub fn journal(&self) -> &[JournalLine] {
        &self.journal
    }

    /// The rows that changed since the last `saved`.
    pub fn changes(&self) -> Changes<'_> {
        Changes {
            tasks: self
                .undo
                .tasks
                .iter()
                .filter(|(id, old)| self.tasks.get(*id) != old.as_ref())
                .map(|(id, _)| (id, self.tasks.get(id)))
                .collect(),
            ended: self
                .undo
                .ended
                .keys()
                .map(|id| (id, self.ended.get(id), self.undo.tasks.get(id).and_then(Option::as_ref)))
                .collect(),
            projects: self.undo.projects.keys().map(|id| (id, self.projects.get(id))).collect(),
            paused: self.undo.globals.as_ref().map(|_| self.paused),
            night: self.undo.globals.as_ref().map(|_| &self.night),
        }
    }

    /// The changes are on disk.
    pub fn saved(&mut self) {
        self.undo = Undo::default();
    }

    /// The save failed: everything is as it was before the turns since the last save, and nothing may be handed out.
    /// The caller keeps the events and tries again.
    pub fn roll_back(&mut self) {
        let undo = std::mem::take(&mut self.undo);
        for (id, old) in undo.tasks {
            match old {
                Some(task) => drop(self.tasks.insert(id, task)),
                None => drop(self.tasks.remove(&id)),
            }
        }
        for (id, old) in undo.ended {
            match old {
                Some(one) => drop(self.ended.insert(id, one)),
                None => drop(self.ended.remove(&id)),
            }
        }
        for (id, old) in undo.projects {
            match old {
                Some(project) => drop(self.projects.insert(id, project)),
                None => drop(self.projects.remove(&id)),
            }
        }
        // A soft change that came first knows the older value.
        self.tasks.extend(undo.soft_tasks);
        self.projects.extend(undo.soft_projects);
        if let Some((paused, night)) = undo.globals {
            self.paused = paused;
            self.night = night;
        }
        if let Some(memory) = undo.memory {
            self.mode = memory.mode;
            self.last_turn = memory.last_turn;
            self.promised = memory.promised;
            self.settling = memory.settling;
            self.stop_reply = memory.stop_reply;
            self.noticed = memory.noticed;
        }
        self.asks.clear();
        self.journal.clear();
    }

    fn remember(&mut self) {
        self.undo.memory.get_or_insert_with(|| Memory {
            mode: self.mode,
            last_turn: self.last_turn,
            promised: self.promised,
            settling: self.settling.clone(),
            stop_reply: self.stop_reply,
            noticed: self.noticed.clone(),
        });
    }

    /// A task to be changed; its row is saved with the next batch.
    pub(super) fn task_mut(&mut self, id: &TaskId) -> Option<&mut Task> {
        let task = self.tasks.get_mut(id)?;
        self.undo.tasks.entry(id.clone()).or_insert_with(|| Some(task.clone()));
        Some(task)
    }

    /// A task whose change is not worth a save: facts that a restart finds out again.
    pub(super) fn task_soft(&mut self, id: &TaskId) -> Option<&mut Task> {
        let task = self.tasks.get_mut(id)?;
        if !self.undo.tasks.contains_key(id) {
            self.undo.soft_tasks.entry(id.clone()).or_insert_with(|| task.clone());
        }
        Some(task)
    }

    pub(super) fn put_task(&mut self, task: Task) {
        let old = self.tasks.get(&task.id).cloned();
        self.undo.tasks.entry(task.id.clone()).or_insert(old);
        self.tasks.insert(task.id.clone(), task);
    }

    pub(super) fn drop_task(&mut self, id: &TaskId) {
        if let Some(task) = self.tasks.remove(id) {
            self.undo.tasks.entry(id.clone()).or_insert(Some(task));
        }
    }

    pub(super) fn put_ended(&mut self, id: &TaskId, ended: Option<Concluded>) {
        let old = self.ended.get(id).cloned();
        self.undo.ended.entry(id.clone()).or_insert(old);
        match ended {
            Some(one) => drop(self.ended.insert(id.clone(), one)),
            None => drop(self.ended.remove(id)),
        }
    }

    pub(super) fn project_mut(&mut self, id: &ProjectId) -> &mut Project {
        let project = self.projects.entry(id.clone()).or_default();
        self.undo.projects.entry(id.clone()).or_insert_with(|| Some(project.clone()));
        project
    }

    /// A project whose change is not worth a save.
    pub(super) fn project_soft(&mut self, id: &ProjectId) -> &mut Project {
        let project = self.projects.entry(id.clone()).or_default();
        if !self.undo.projects.contains_key(id) {
            self.undo.soft_projects.entry(id.clone()).or_insert_with(|| project.clone());
        }
        project
    }

    pub(super) fn touch_globals(&mut self) {
        if self.undo.globals.is_none() {
            self.undo.globals = Some((self.paused, self.night.clone()));
        }
    }

    pub(super) fn ask_task(&mut self, task: &TaskId, epoch: Epoch, what: TaskAsk) {
        self.asks.push(Ask::Task { task: task.clone(), epoch, what });
    }

    /// Asks something of a project's hands under a new epoch of the project.
    pub(super) fn ask_project(&mut self, id: &ProjectId, what: ProjectAsk) -> Epoch {
        let project = self.project_mut(id);
        project.epoch = project.epoch.next();
        let epoch = project.epoch;
        self.asks.push(Ask::Project { project: id.clone(), epoch, what });
        epoch
    }

    pub(super) fn note(&mut self, task: &TaskId, epoch: Epoch, kind: &'static str, text: impl Into<String>, now: Now) {
        self.journal.push(JournalLine {
            at: now.wall,
            project: Some(task.project.clone()),
            task: Some(task.path.clone()),
            epoch,
            kind,
            text: text.into(),
        });
    }

    pub(super) fn note_project(&mut self, id: &ProjectId, kind: &'static str, text: impl Into<String>, now: Now) {
        let epoch = self.projects.get(id).map_or(Epoch(0), |p| p.epoch);
        self.journal.push(JournalLine {
            at: now.wall,
            project: Some(id.clone()),
            task: None,
            epoch,
            kind,
            text: text.into(),
        });
    }

    /// A line about the board as a whole.
    pub(super) fn note_all(&mut self, kind: &'static str, text: impl Into<String>, now: Now) {
        let text = text.into();
        self.journal.push(JournalLine { at: now.wall, project: None, task: None, epoch: Epoch(0), kind, text });
    }

    /// One notice per cause; `clear_notice` allows the next.
    pub(super) fn notify(&mut self, project: &ProjectId, task: Option<&TaskPath>, kind: NoticeKind, text: String) {
        if self.noticed.insert((project.clone(), task.cloned(), kind)) {
            self.asks.push(Ask::Notice { project: project.clone(), task: task.cloned(), kind, text });
        }
    }

    pub(super) fn clear_notice(&mut self, project: &ProjectId, task: Option<&TaskPath>, kind: NoticeKind) {
        self.noticed.remove(&(project.clone(), task.cloned(), kind));
    }

    /// Shifts every running clock by a gap in which nothing ran: a sleeping machine is no hanging agent.
    fn notice_gap(&mut self, now: Now) {
        let expected = match (self.promised, self.last_turn) {
            (Some(promised), Some(last)) => promised.max(last),
            _ => {
                self.last_turn = Some(now.mono);
                return;
            }
        };
        self.last_turn = Some(now.mono);
        let gap = now.mono.since(expected);
        if gap <= LATE {
            return;
        }
        // A moment more: what was printed meanwhile is only now being read, and may start a clock afresh.
        self.shift(gap.saturating_add(CATCH_UP));
        if gap <= GAP {
            return;
        }
        let slept = crate::domain::time::human(gap);
        self.note_all("gap", format!("nothing ran for about {slept}; all clocks were moved on by it"), now);
    }

    fn shift(&mut self, gap: Duration) {
        let move_on = |stamp: &mut Mono| stamp.0 = stamp.0.saturating_add(millis(gap));
        let ids: Vec<TaskId> =
            self.tasks.iter().filter(|(_, t)| t.phase.is_active()).map(|(id, _)| id.clone()).collect();
        for id in ids {
            let Some(task) = self.task_soft(&id) else { continue };
            move_on(&mut task.since);
            if let Some(run) = &mut task.run {
                move_on(&mut run.started);
                move_on(&mut run.last_output);
                move_on(&mut run.last_progress);
                if let Some(result) = &mut run.result {
                    move_on(result);
                }
            }
        }
        let ids: Vec<ProjectId> =
            self.projects.iter().filter(|(_, p)| p.check.is_some()).map(|(id, _)| id.clone()).collect();
        for id in ids {
            if let Some(check) = &mut self.project_soft(&id).check {
                move_on(&mut check.since);
                if let Some((_, at)) = &mut check.stop {
                    move_on(at);
                }
            }
        }
    }
}
