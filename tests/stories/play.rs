//! Plays a story: each line becomes an event or moves the clock, and whatever follows from it is carried out before the
//! next line is read.

use crate::line::Line;
use crate::model::Disk;
use crate::shown;
use overnight::decide::event::{Concluded, Progress, RequestId, Started, WishEdit, WishNews};
use overnight::decide::{Board, Event, Request, explain, publish};
use overnight::domain::chain::{Chain, Check, Command, OnFailure, Step, When};
use overnight::domain::policy::{AgentKind, Limits, MergePolicy, Policy, Profile, Protect};
use overnight::domain::task::{Wish, WishStatus};
use overnight::domain::verdict::{AgentEvent, AgentReport, RunEnd};
use overnight::domain::{Epoch, Mono, Now, Oid, ProjectId, RunId, TaskId, TaskPath, Wall, time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// A child program as its shim would have it.
pub struct Run {
    pub project: ProjectId,
    pub task: Option<TaskId>,
    pub agent: bool,
    pub over: Option<(RunEnd, Option<AgentReport>)>,
    pub followed: bool,
    pub ignores: Vec<String>,
    /// It has said that its turn is over.
    pub result: bool,
}

#[derive(Default)]
pub struct Story {
    out: String,
    board: Board,
    disk: Disk,
    /// Nothing can be saved.
    disk_full: bool,
    pub running: bool,
    mono: u64,
    pub wall: i64,
    slots: u32,
    boots: u64,
    pub queue: VecDeque<Event>,
    pub by_hand: BTreeSet<String>,
    pub runs: BTreeMap<RunId, Run>,
    busy: BTreeSet<String>,
    pub policies: BTreeMap<ProjectId, Policy>,
    pub wishes: BTreeMap<TaskId, Wish>,
    pub concluded: BTreeMap<TaskId, Concluded>,
    pub asked: BTreeMap<TaskId, Epoch>,
    pub side_asked: BTreeMap<ProjectId, Epoch>,
    pub trees: BTreeMap<TaskId, Oid>,
    /// What a task's work did that needs a person's yes.
    pub protected: BTreeMap<TaskId, String>,
    pub tips: BTreeMap<ProjectId, Oid>,
    pub bases: BTreeMap<ProjectId, Oid>,
    pub last_merge: BTreeMap<TaskId, Oid>,
    names: BTreeMap<String, u64>,
    requests: u64,
    last: Option<Event>,
}

impl Story {
    pub fn play(text: &str) -> String {
        let mut story = Self { mono: 1_000_000, wall: 1_700_000_000_000, slots: 4, ..Self::default() };
        for raw in text.lines() {
            let Some(line) = Line::parse(raw) else {
                story.say(raw.trim().to_owned());
                continue;
            };
            story.say(format!("> {}", raw.trim()));
            story.tell(&line);
            story.drain();
        }
        story.out
    }

    pub fn say(&mut self, line: String) {
        self.out.push_str(&line);
        self.out.push('\n');
    }

    /// `a` is a task of the project `p`, `q:a` one of `q`.
    pub fn id(&self, text: &str) -> TaskId {
        let (project, path) = text.split_once(':').unwrap_or(("p", text));
        TaskId { project: ProjectId::parse(project).unwrap(), path: TaskPath::parse(path).unwrap() }
    }

    /// The same name is the same object.
    pub fn named(&mut self, name: &str) -> Oid {
        let next = self.names.len() as u64 + 1;
        let n = *self.names.entry(name.to_owned()).or_insert(next);
        Oid::parse(&format!("{n:010x}{:030x}", 0)).unwrap()
    }

    pub fn fresh(&mut self) -> Oid {
        self.named(&format!("object {}", self.names.len()))
    }

    fn now(&self) -> Now {
        Now { mono: Mono(self.mono), wall: Wall(self.wall) }
    }

    fn pass(&mut self, by: Duration) {
        self.mono += time::millis(by);
        self.wall += i64::try_from(time::millis(by)).unwrap();
    }

    fn tell(&mut self, line: &Line) {
        match line.verb.as_str() {
            "project" => self.project(line),
            "wish" => self.wish(line),
            "unwish" => {
                let id = self.id(line.word(0));
                self.wishes.remove(&id);
                self.news(&id);
            }
            "start" => self.start(line, true),
            "restart" => self.start(line, true),
            "reboot" => self.start(line, false),
            "by-hand" => self.by_hand.extend(line.words.iter().cloned()),
            "auto" => self.by_hand.retain(|k| !line.has(k)),
            "answer" => self.answer(line),
            "again" => self.queue.extend(self.last.clone()),
            "ends" => self.ends(line),
            "ignores" => self.ignores(line),
            "busy" => self.busy.extend(line.words.iter().cloned()),
            "quiet" => self.busy.retain(|k| !line.has(k)),
            "says" => self.says(line),
            "tick" => self.tick(time::parse_duration(line.word(0)).unwrap()),
            "sleep" => {
                self.pass(time::parse_duration(line.word(0)).unwrap());
                self.queue.push_back(Event::Wake);
            }
            "suspend" => {
                self.wall += i64::try_from(time::millis(time::parse_duration(line.word(0)).unwrap())).unwrap();
            }
            "disk" => self.disk_full = line.has("full"),
            "terminate" => self.queue.push_back(Event::Terminate { stop_agents: line.has("agents") }),
            "show" => self.show(),
            _ => self.request(line),
        }
    }

    fn request(&mut self, line: &Line) {
        let project = line.words.iter().find_map(|w| w.strip_prefix('@')).map(|w| ProjectId::parse(w).unwrap());
        let edit = |edit| {
            let id = self.id(line.word(0));
            Request::Edit { project: id.project, path: id.path, edit }
        };
        let request = match line.verb.as_str() {
            "abort" => edit(WishEdit::Abort),
            "retry" => edit(WishEdit::Retry),
            "approve" => edit(WishEdit::Approve),
            "enqueue" => edit(WishEdit::Enqueue),
            "create" => edit(WishEdit::Create { text: line.word(0).to_owned() }),
            "reply" => edit(WishEdit::Answer(line.word(1).to_owned())),
            "priority" => edit(WishEdit::Priority(line.word(1).parse().unwrap())),
            "pause" => Request::Pause { project },
            "resume" => Request::Resume { project },
            "land" => Request::Land { project: project.unwrap_or_else(|| ProjectId::parse("p").unwrap()) },
            "stop" => Request::Stop { stop_agents: line.has("agents") },
            "settle" => Request::Settle,
            other => panic!("no story knows the word {other:?}"),
        };
        self.requests += 1;
        self.queue.push_back(Event::Request { id: RequestId(self.requests), request });
    }

    fn project(&mut self, line: &Line) {
        let name = line.words.first().map_or("p", String::as_str);
        let id = ProjectId::parse(name).unwrap();
        let before = self.policies.get(&id).cloned();
        let policy = policy(line, before.as_ref());
        self.policies.insert(id.clone(), policy.clone());
        self.queue.push_back(Event::Configured { project: id, policy: Box::new(policy) });
    }

    fn wish(&mut self, line: &Line) {
        let id = self.id(line.word(0));
        let old = self.wishes.get(&id).cloned().unwrap_or(Wish { status: WishStatus::Queued, ..Wish::default() });
        let path = |text: &String| TaskPath::parse(text).unwrap();
        let wish = Wish {
            status: if line.has("planning") { WishStatus::Planning } else { WishStatus::Queued },
            depends_on: line.list("needs").map_or(old.depends_on.clone(), |l| l.iter().map(path).collect()),
            priority: line.number("priority").unwrap_or(old.priority),
            attempts: line.number("attempts").or(old.attempts),
            checks: line.list("checks").or(old.checks.clone()),
            retry: line.number("retry").unwrap_or(old.retry),
            agent: line.get("agent").map(str::to_owned).or(old.agent.clone()),
            review: if line.has("review") { Some(true) } else { old.review },
            wish: if line.has("abort") { Some(overnight::domain::task::WishVerb::Abort) } else { old.wish },
            body: line.get("body").unwrap_or(&old.body).to_owned(),
            ..old
        };
        self.wishes.insert(id.clone(), wish);
        if self.running {
            self.news(&id);
        }
    }

    fn start(&mut self, line: &Line, same_boot: bool) {
        self.slots = line.number("slots").unwrap_or(self.slots);
        self.queue.clear();
        self.boots += u64::from(!same_boot);
        if !same_boot {
            self.mono = 5_000 * self.boots;
            for run in self.runs.values_mut().filter(|r| r.over.is_none()) {
                let exit = overnight::domain::verdict::Exit::Lost;
                let end =
                    RunEnd { exit, took: Duration::ZERO, survivors: vec![], tail: String::new(), bytes: 0, cut: 0 };
                run.over = Some((end, None));
            }
        }
        for run in self.runs.values_mut() {
            run.followed = false;
        }
        self.board = self.disk.load();
        self.running = true;
        // Folders of runs that were settled are gone.
        let open: BTreeSet<RunId> = self
            .board
            .tasks
            .values()
            .filter_map(|t| Some(RunId::new(&t.id, t.run.as_ref()?.epoch)))
            .chain(self.runs.iter().filter(|(_, r)| r.over.is_none() || r.task.is_none()).map(|(id, _)| id.clone()))
            .collect();
        self.runs.retain(|id, _| open.contains(id));
        let runs = self.runs.keys().cloned().collect();
        let only_serve = line.has("serving");
        self.event(Event::Started(Started {
            same_boot,
            only_serve,
            runs,
            slots: self.slots,
            used: Epoch(line.number("used").unwrap_or(0)),
        }));
        for (project, policy) in self.policies.clone() {
            self.event(Event::Configured { project, policy: Box::new(policy) });
        }
        for project in self.policies.keys().cloned().collect::<Vec<_>>() {
            let mine = |id: &&TaskId| id.project == project;
            let wishes =
                self.wishes.iter().filter(|(id, _)| mine(id)).map(|(id, w)| (id.path.clone(), Some(w.clone())));
            let concluded =
                self.concluded.iter().filter(|(id, _)| mine(id)).map(|(id, c)| (id.path.clone(), c.clone()));
            let news =
                WishNews { whole: true, wishes: wishes.collect(), invalid: vec![], concluded: concluded.collect() };
            self.event(Event::Wishes { project, news });
        }
    }

    fn ignores(&mut self, line: &Line) {
        let who = line.word(0);
        let task = (!who.starts_with('@')).then(|| self.id(who));
        for run in self.runs.values_mut().filter(|r| r.task == task && r.over.is_none()) {
            run.ignores.extend(line.words[1..].iter().cloned());
        }
    }

    fn says(&mut self, line: &Line) {
        let event = match line.word(1) {
            "tool" => AgentEvent::ToolEnd { tool: "edit".into(), ok: true },
            tool @ ("Bash" | "Edit") => AgentEvent::ToolBegin { tool: tool.into(), what: line.word(2).into() },
            "text" => AgentEvent::Text { text: "hm".into() },
            "result" => AgentEvent::Result { ok: true },
            "session" => AgentEvent::Session { id: line.word(2).into(), model: None },
            "retry" => AgentEvent::Retry { reason: "overloaded".into() },
            other => panic!("says … {other}?"),
        };
        let id = self.id(line.word(0));
        for _ in 0..line.number("times").unwrap_or(1) {
            self.progress(&id, event.clone());
        }
    }

    fn progress(&mut self, id: &TaskId, event: AgentEvent) {
        let live = self.runs.iter().rfind(|(_, r)| r.task.as_ref() == Some(id) && r.over.is_none() && r.followed);
        let Some(epoch) = live.and_then(|(run, _)| run.epoch()) else { return };
        let over = matches!(event, AgentEvent::Result { .. });
        for (_, run) in self.runs.iter_mut().filter(|(r, _)| **r == RunId::new(id, epoch)) {
            run.result |= over;
        }
        let progress = Progress { bytes: self.mono, events: vec![event], touched: false };
        self.queue.push_back(Event::Progress { task: id.clone(), epoch, progress });
    }

    /// Lets time pass from one promised instant to the next.
    fn tick(&mut self, by: Duration) {
        let until = self.mono + time::millis(by);
        while self.mono < until {
            let wake = self.board.next_wake(self.now()).filter(|_| self.running);
            let next = wake.map_or(until, |w| w.0.clamp(self.mono + 1, until));
            self.pass(Duration::from_millis(next - self.mono));
            if !self.running {
                continue;
            }
            for task in self.busy.clone() {
                let id = self.id(&task);
                self.progress(&id, AgentEvent::ToolEnd { tool: "edit".into(), ok: true });
            }
            self.queue.push_back(Event::Wake);
            self.drain();
        }
    }

    fn drain(&mut self) {
        while let Some(event) = self.queue.pop_front() {
            if self.running {
                if !self.event(event.clone()) {
                    // Nothing was saved: the event stays and is tried again when the disk takes it.
                    self.queue.push_front(event);
                    return;
                }
                self.last = Some(event);
            }
        }
    }

    /// One turn of the ring; false when it could not be saved.
    fn event(&mut self, event: Event) -> bool {
        let now = self.now();
        self.board.turn(event, now);
        self.board.settle(now);
        if self.disk_full {
            self.board.roll_back();
            self.say("  (not saved, rolled back)".into());
            return false;
        }
        self.disk.save(self.board.changes());
        self.board.saved();
        for line in self.board.take_journal() {
            self.say(shown::journal(&line));
        }
        for ask in self.board.take_asks() {
            let dull = ["publish board", "deliver"].iter().any(|w| shown::ask(&ask).contains(w));
            let dull = dull && !self.by_hand.contains("board") && !self.by_hand.contains("deliver");
            if !dull {
                self.say(shown::ask(&ask));
            }
            self.act(ask);
        }
        true
    }

    fn show(&mut self) {
        let now = self.now();
        let mut lines = Vec::new();
        for task in self.board.tasks.values() {
            let name = shown::name(&task.id.project, Some(task.id.path.as_str()));
            let (status, why) = (explain::status(&self.board, task), explain::why(&self.board, task, now));
            lines.push(format!("  {name}  {status}  {}", shown::short(&why)));
        }
        for (id, ended) in &self.board.ended {
            let name = shown::name(&id.project, Some(id.path.as_str()));
            lines.push(format!("  {name}  {}  over: {}", ended.outcome.status(), shown::outcome(&ended.outcome)));
        }
        lines.sort();
        let idle = if publish::is_idle(&self.board, now) { "idle" } else { "busy" };
        lines.push(format!("  {idle}"));
        lines.into_iter().for_each(|line| self.say(line));
    }
}

/// `name`, `name:retry`, `name:log`, `name:success`, `name:failure`.
fn step(text: &str) -> Step {
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or(text);
    let words: Vec<&str> = parts.collect();
    Step {
        name: name.into(),
        run: (!words.contains(&"agent")).then(|| Command::Shell(name.into())),
        prompt: words.contains(&"agent").then(|| format!("do {name}")),
        timeout: Duration::from_secs(300),
        on_failure: match words.as_slice() {
            w if w.contains(&"retry") => OnFailure::Retry,
            w if w.contains(&"log") => OnFailure::Log,
            _ => OnFailure::Stop,
        },
        when: match words.as_slice() {
            w if w.contains(&"success") => When::Success,
            w if w.contains(&"failure") => When::Failure,
            _ => When::Always,
        },
    }
}

fn policy(line: &Line, before: Option<&Policy>) -> Policy {
    let s = Duration::from_secs;
    let check =
        |name: &String| Check { name: name.clone(), run: Command::Shell(format!("just {name}")), timeout: s(600) };
    let steps = |key: &str| line.list(key).unwrap_or_default().iter().map(|t| step(t)).collect();
    let profile = |slots: u32| Profile { slots, ..Profile::bare(AgentKind::Claude) };
    let number = before.map_or(1, |p| p.hash.len() - 5);
    let agents = [("claude", line.number("profile").unwrap_or(8)), ("codex", 8)];
    Policy {
        hash: format!("sha256:{}", "x".repeat(number)),
        base: "main".into(),
        slots: line.number("slots").unwrap_or(8),
        attempts: line.number("attempts").unwrap_or(2),
        agent: "claude".into(),
        agents: agents.into_iter().map(|(name, slots)| (name.to_owned(), profile(slots))).collect(),
        limits: Limits {
            wall: line.time("wall").unwrap_or(s(3600)),
            no_progress: line.time("no-progress").unwrap_or(s(1200)),
            first_event: s(180),
            exit_grace: s(10),
            kill_grace: s(10),
            transcript: 1 << 20,
            repeats: line.number("repeats").unwrap_or(10),
        },
        checks: line.list("checks").unwrap_or_default().iter().map(check).collect(),
        chain: Chain {
            before: steps("before"),
            after: steps("after"),
            background: steps("background"),
            finally: steps("finally"),
        },
        merge: MergePolicy {
            into: line.get("into").unwrap_or("overnight/main").into(),
            checks: line.get("merge-checks") != Some("off"),
        },
        script_allowed: false,
        committer: ("o".into(), "o@example.invalid".into()),
        brief_budget: 1000,
        max_file: 1000,
        protect: Protect::default(),
        env_pass: vec![],
    }
}
