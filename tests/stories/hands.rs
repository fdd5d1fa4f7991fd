//! The hands of a story: every ask is carried out at once and well, but agents, which wait for the story to end them, and
//! whatever the story has taken over with `by-hand`.

use crate::line::Line;
use crate::model;
use crate::play::{Run, Story};
use overnight::decide::ask::{Ask, Place, Program, ProjectAsk, RunOrder, TaskAsk};
use overnight::decide::event::{Concluded, WishNews, Work, Worktree};
use overnight::decide::{Answer, Event, SideAnswer};
use overnight::domain::lease::Held;
use overnight::domain::phase::StopStage;
use overnight::domain::status::{Reason, ReasonClass};
use overnight::domain::verdict::{AgentReport, Exit, RunEnd, Usage, Verdict};
use overnight::domain::{Epoch, Oid, ProjectId, RunId, TaskId, Wall};
use std::time::Duration;

impl Story {
    /// Carries an ask out; the answer joins the queue.
    pub fn act(&mut self, ask: Ask) {
        match ask {
            Ask::Task { task, epoch, what } => {
                self.asked.insert(task.clone(), epoch);
                self.act_task(&task, epoch, what);
            }
            Ask::Project { project, epoch, what } => {
                self.side_asked.insert(project.clone(), epoch);
                self.act_project(&project, epoch, what);
            }
            Ask::Exit => self.running = false,
            Ask::EndOrphan { run } => drop(self.runs.remove(&run)),
            Ask::Reply { .. } | Ask::Notice { .. } => {}
        }
    }

    fn act_task(&mut self, task: &TaskId, epoch: Epoch, what: TaskAsk) {
        let (kind, answer) = match what {
            TaskAsk::Claim { .. } => ("claim", Answer::ClaimWon { held: self.held() }),
            TaskAsk::MakeWorktree { branch, base } => {
                self.trees.remove(task);
                let worktree = Worktree { path: format!("/w/{}", task.path), branch, base, theirs: Default::default() };
                ("worktree", Answer::WorktreeReady { worktree })
            }
            TaskAsk::WriteBrief(_) => ("brief", Answer::Briefed),
            TaskAsk::Run(order) => return self.run(&task.project, Some(task), *order),
            TaskAsk::Stop { run, stage } => return self.stop(&run, stage),
            TaskAsk::Collect { .. } => ("collect", self.collected(task, &Line::parse("collected").unwrap())),
            TaskAsk::TryMerge { onto, .. } => ("merge", self.merged(task, onto)),
            TaskAsk::Move { new, .. } => {
                self.tips.insert(task.project.clone(), new);
                ("move", Answer::Moved)
            }
            TaskAsk::Rescue { .. } => ("rescue", Answer::Rescued),
            TaskAsk::Conclude(record) => {
                if let Some(outcome) = &record.outcome {
                    let concluded = Concluded { outcome: outcome.clone(), epoch, retry: record.retry };
                    self.concluded.insert(task.clone(), concluded);
                }
                ("conclude", Answer::Concluded)
            }
            TaskAsk::GiveBack { .. } => ("giveback", Answer::GivenBack),
            TaskAsk::Publish(_) => ("publish", Answer::Published),
            TaskAsk::StartBackground { .. } | TaskAsk::StopBackground => return,
        };
        if !self.by_hand.contains(kind) {
            self.queue.push_back(Event::Answer { task: task.clone(), epoch, answer });
        }
    }

    fn held(&mut self) -> Held {
        Held { nonce: "n".into(), commit: self.fresh(), renew_by: None }
    }

    fn merged(&mut self, task: &TaskId, onto: Oid) -> Answer {
        let (commit, tree) = (self.fresh(), self.fresh());
        self.last_merge.insert(task.clone(), commit.clone());
        Answer::Merged { commit, tree, onto }
    }

    pub fn collected(&mut self, task: &TaskId, line: &Line) -> Answer {
        let base_tree = self.named("base");
        let tree = match line.get("tree") {
            Some(name) => self.named(name),
            None => self.trees.get(task).cloned().unwrap_or_else(|| base_tree.clone()),
        };
        self.trees.insert(task.clone(), tree.clone());
        let changed = usize::from(tree != base_tree);
        let tip = self.named("work");
        let protected = self.protected.get(task).cloned().into_iter().collect();
        let files = vec!["f.rs".into()];
        Answer::Collected { work: Work { tip, tree, base_tree, files, changed, left_out: vec![], protected } }
    }

    fn run(&mut self, project: &ProjectId, task: Option<&TaskId>, order: RunOrder) {
        let agent = matches!(order.program, Program::Agent { .. });
        if let Some(known) = self.runs.get_mut(&order.run) {
            known.followed = true;
            let over = known.over.is_some();
            self.say(format!("  (adopted: {})", if over { "it ended meanwhile" } else { "it still runs" }));
            if over {
                self.report(&order.run);
            }
            return;
        }
        if let (true, Some(task)) = (agent, task) {
            let twin = self.runs.values().any(|r| r.agent && r.over.is_none() && r.task.as_ref() == Some(task));
            if twin {
                self.say("  !! another agent of this task is alive".into());
            }
        }
        let kind = match (&order.place, task) {
            _ if agent => "agent",
            (Place::Integration(_), None) => "baseline",
            (Place::Integration(_), Some(_)) => "mergecheck",
            (Place::Worktree(_), _) if self.is_check(project, &order) => "check",
            (Place::Worktree(_), _) => "step",
        };
        let run = Run {
            project: project.clone(),
            task: task.cloned(),
            agent,
            over: None,
            followed: true,
            ignores: vec![],
            result: false,
        };
        self.runs.insert(order.run.clone(), run);
        if !agent && !self.by_hand.contains(kind) {
            self.end(&order.run, end(Exit::Exited { code: 0 }, ""), None);
        }
    }

    fn is_check(&self, project: &ProjectId, order: &RunOrder) -> bool {
        let Program::Command { name, .. } = &order.program else { return false };
        self.policies.get(project).is_some_and(|p| p.checks.iter().any(|c| &c.name == name))
    }

    fn stop(&mut self, id: &RunId, stage: StopStage) {
        let Some(run) = self.runs.get_mut(id) else { return };
        run.followed = true;
        if run.over.is_some() {
            return self.report(id);
        }
        let word = if stage == StopStage::Term { "term" } else { "kill" };
        if run.ignores.iter().any(|i| i == word) {
            return;
        }
        let signal = if stage == StopStage::Term { 15 } else { 9 };
        let verdict = if run.result { Verdict::Finished } else { Verdict::Stopped };
        let report = run.agent.then(|| report(verdict, Some("s1"), None));
        self.end(id, end(Exit::Signalled { signal }, ""), report);
    }

    /// The run is over; its end is told when somebody follows it.
    pub fn end(&mut self, id: &RunId, end: RunEnd, report: Option<AgentReport>) {
        let run = self.runs.get_mut(id).unwrap_or_else(|| panic!("no run {id}"));
        run.over = Some((end, report));
        if run.followed && self.running {
            self.report(id);
        }
    }

    fn report(&mut self, id: &RunId) {
        let run = &self.runs[id];
        let (end, agent) = run.over.clone().unwrap();
        let epoch = id.epoch().unwrap();
        let event = match run.task.clone() {
            Some(task) => Event::Answer { task, epoch, answer: Answer::RunEnded { run: id.clone(), end, agent } },
            None => Event::Side {
                project: run.project.clone(),
                epoch,
                answer: SideAnswer::RunEnded { run: id.clone(), end },
            },
        };
        self.queue.push_back(event);
    }

    /// `ends a finished [same|nothing] [asks=…]`, `ends a exit=1 [tail=…]`, `ends a lost|dead-man|never-started|limited|login|error|…`.
    pub fn ends(&mut self, line: &Line) {
        let who = line.word(0).to_owned();
        let mut found = self.runs.iter().filter(|(_, r)| r.over.is_none());
        let found = match who.strip_prefix('@') {
            Some(project) => found.rfind(|(_, r)| r.task.is_none() && r.project.as_str() == project),
            None => {
                let id = self.id(&who);
                found.rfind(|(_, r)| r.task.as_ref() == Some(&id))
            }
        };
        let (id, run) =
            found.map(|(id, r)| (id.clone(), (r.agent, r.task.clone()))).unwrap_or_else(|| panic!("no run of {who}"));
        let session = line.get("session").unwrap_or("s1").to_owned();
        let said = |v| Some(report(v, Some(&session), line.get("asks")));
        let message = line.get("says").unwrap_or("oops").to_owned();
        let until = line.time("until").map(|d| Wall(self.wall + i64::try_from(d.as_millis()).unwrap()));
        let code = line.number("exit").unwrap_or(0);
        let signal = line.number("signal").map(|signal| Exit::Signalled { signal });
        let exit = signal.unwrap_or(Exit::Exited { code });
        let (exit, verdict) = match line.words.get(1).map_or("", String::as_str) {
            "lost" => (Exit::Lost, None),
            "dead-man" => (Exit::DeadMan, None),
            "never-started" => (Exit::NeverStarted { why: message }, None),
            "spawn-failed" => (Exit::SpawnFailed { error: message }, None),
            "finished" => (exit, said(Verdict::Finished)),
            "limited" => (exit, said(Verdict::RateLimited { until })),
            "login" => (exit, said(Verdict::LoginNeeded { message })),
            "error" => (exit, said(Verdict::Failed { message })),
            "session-lost" => (exit, said(Verdict::SessionLost)),
            "" => (exit, None),
            other => panic!("ends … {other}?"),
        };
        if let (Some(task), true) = (run.1, run.0 && line.has("finished")) {
            match line.get("protected") {
                Some(what) => self.protected.insert(task.clone(), what.to_owned()),
                None => self.protected.remove(&task),
            };
            if line.has("nothing") {
                self.trees.remove(&task);
            } else if !line.has("same") && line.get("asks").is_none() {
                let tree = self.fresh();
                self.trees.insert(task, tree);
            }
        }
        let over = end(exit, line.get("tail").unwrap_or(""));
        self.end(&id, over, verdict);
    }

    fn act_project(&mut self, project: &ProjectId, epoch: Epoch, what: ProjectAsk) {
        let (kind, answer) = match what {
            ProjectAsk::PrepareTarget { .. } => ("target", self.target_ready(project)),
            ProjectAsk::RunCheck(order) => return self.run(project, None, *order),
            ProjectAsk::StopCheck { run, stage } => return self.stop(&run, stage),
            ProjectAsk::MoveTarget { new, .. } => {
                self.tips.insert(project.clone(), new);
                ("move", SideAnswer::TargetMoved)
            }
            ProjectAsk::Deliver { tip, .. } => ("deliver", SideAnswer::Delivered { tip }),
            ProjectAsk::Land { tip, base, .. } => {
                self.bases.insert(project.clone(), tip.clone());
                ("land", SideAnswer::Landed { base, tip, how: "fast-forward".into() })
            }
            ProjectAsk::Edit { id, path, edit, retry } => {
                let task = TaskId { project: project.clone(), path };
                model::edit(self.wishes.entry(task.clone()).or_default(), &edit, retry);
                self.side(project, epoch, SideAnswer::Edited { id });
                return self.news(&task);
            }
            ProjectAsk::PublishBoard => ("board", SideAnswer::BoardPublished),
        };
        if !self.by_hand.contains(kind) {
            self.side(project, epoch, answer);
        }
    }

    pub fn side(&mut self, project: &ProjectId, epoch: Epoch, answer: SideAnswer) {
        self.queue.push_back(Event::Side { project: project.clone(), epoch, answer });
    }

    pub fn target_ready(&mut self, project: &ProjectId) -> SideAnswer {
        let first = self.named("tip");
        let tip = self.tips.entry(project.clone()).or_insert_with(|| first.clone()).clone();
        let base = self.bases.entry(project.clone()).or_insert(first).clone();
        // The tree of a tip is one thing however often it is looked at.
        let tree = self.named(&format!("tree of {tip}"));
        SideAnswer::TargetReady { tip, base, tree }
    }

    /// The state repo's news about one task.
    pub fn news(&mut self, task: &TaskId) {
        let mut news = WishNews::default();
        news.wishes.insert(task.path.clone(), self.wishes.get(task).cloned());
        self.queue.push_back(Event::Wishes { project: task.project.clone(), news });
    }

    /// `answer a won`, `answer @p ready`, …: what a hand that the story has taken over says.
    pub fn answer(&mut self, line: &Line) {
        let who = line.word(0).to_owned();
        let what = line.word(1);
        let why = line.words.get(2).cloned().unwrap_or_else(|| "no luck".into());
        let epoch = line.number("epoch").map(Epoch);
        if let Some(project) = who.strip_prefix('@') {
            let project = ProjectId::parse(project).unwrap();
            let epoch = epoch.unwrap_or(self.side_asked[&project]);
            let answer = self.side_answer(&project, what, why);
            return self.side(&project, epoch, answer);
        }
        let task = self.id(&who);
        let epoch = epoch.unwrap_or(self.asked[&task]);
        let answer = match what {
            "won" => Answer::ClaimWon { held: self.held() },
            "lost" => Answer::ClaimLost { by: "other".into() },
            "unknown" => Answer::ClaimUnknown { why },
            "no-program" => Answer::NoProgram { why },
            "gone" => Answer::ClaimGone,
            "worktree" => {
                let base = self.named("tip");
                let worktree =
                    Worktree { path: "/w".into(), branch: task.path.branch(), base, theirs: Default::default() };
                Answer::WorktreeReady { worktree }
            }
            "briefed" => Answer::Briefed,
            "collected" => self.collected(&task, line),
            "refused" => Answer::Refused {
                reason: Reason::new(ReasonClass::WrongBranch, why),
                strayed: line.get("strayed").map(str::to_owned),
            },
            "merged" => {
                let onto = self.tips[&task.project].clone();
                self.merged(&task, onto)
            }
            "in" => Answer::AlreadyIn { commit: self.named("tip") },
            "conflict" => Answer::Conflict { files: line.words[2..].to_vec() },
            "moved" => {
                self.tips.insert(task.project.clone(), self.last_merge[&task].clone());
                Answer::Moved
            }
            "overtaken" => {
                let now = self.fresh();
                self.tips.insert(task.project.clone(), now.clone());
                Answer::Overtaken { now }
            }
            "rescued" => Answer::Rescued,
            "concluded" => Answer::Concluded,
            "givenback" => Answer::GivenBack,
            "published" => Answer::Published,
            "failed" => Answer::Failed { why },
            other => panic!("answer … {other}?"),
        };
        self.queue.push_back(Event::Answer { task, epoch, answer });
    }

    fn side_answer(&mut self, project: &ProjectId, what: &str, why: String) -> SideAnswer {
        match what {
            "ready" => self.target_ready(project),
            "needs-merge" => {
                let (commit, tree, base) = (self.fresh(), self.fresh(), self.fresh());
                let onto = self.tips.get(project).cloned().unwrap_or_else(|| self.named("tip"));
                self.bases.insert(project.clone(), base.clone());
                SideAnswer::TargetNeedsMerge { commit, tree, onto, base }
            }
            "blocked" => SideAnswer::TargetBlocked { reason: Reason::new(ReasonClass::Infra, why) },
            "moved" => SideAnswer::TargetMoved,
            "overtaken" => SideAnswer::TargetOvertaken,
            "not-delivered" => SideAnswer::NotDelivered { tip: self.tips[project].clone(), why },
            "delivered" => SideAnswer::Delivered { tip: self.tips[project].clone() },
            "land-refused" => SideAnswer::LandRefused { why },
            "landed" => {
                let tip = self.tips[project].clone();
                self.bases.insert(project.clone(), tip.clone());
                SideAnswer::Landed { base: "main".into(), tip, how: "fast-forward".into() }
            }
            "failed" => SideAnswer::Failed { why },
            other => panic!("answer @{project} {other}?"),
        }
    }
}

fn end(exit: Exit, tail: &str) -> RunEnd {
    RunEnd { exit, took: Duration::from_secs(60), survivors: vec![], tail: tail.into(), bytes: 1, cut: 0 }
}

fn report(verdict: Verdict, session: Option<&str>, asks: Option<&str>) -> AgentReport {
    AgentReport {
        verdict,
        session: session.map(Into::into),
        text: String::new(),
        asks: asks.map(Into::into),
        usage: Usage::default(),
        session_total: None,
    }
}
