//! The hands of the simulated world: what each ask does to it and what comes back, late or not at all.

use super::*;

impl World {
    pub(super) fn act(&mut self, ask: Ask) {
        match ask {
            Ask::Task { task, epoch, what } => self.act_task(&task, epoch, what),
            Ask::Project { project: _, epoch, what } => self.act_project(epoch, what),
            Ask::Reply { reply: Reply::Done { text }, .. } if text.starts_with("main is now") => {
                self.totals.landed += 1
            }
            Ask::Reply { .. } | Ask::Notice { .. } => {}
            Ask::EndOrphan { run } => {
                self.totals.orphans += 1;
                self.runs.remove(&run).expect("an orphan that never was");
            }
            Ask::Exit => {
                self.exited = true;
                self.trace(|_| "    -- exit".into());
                self.board = Board::default();
                self.queue.clear();
                for run in self.runs.values_mut() {
                    run.followed = false;
                }
            }
        }
    }

    fn delay(&mut self) -> u64 {
        if self.trouble() && self.rng.chance(5) { self.rng.below(90_000) } else { self.rng.below(400) }
    }

    fn answer(&mut self, task: &TaskId, epoch: Epoch, answer: Answer) {
        let delay = self.delay();
        self.post(delay, Event::Answer { task: task.clone(), epoch, answer });
    }

    fn bad(&mut self, percent: u64) -> bool {
        self.trouble() && self.rng.chance(percent)
    }

    fn act_task(&mut self, task: &TaskId, epoch: Epoch, what: TaskAsk) {
        let path = task.path.clone();
        let flaky = !matches!(what, TaskAsk::Run(_) | TaskAsk::Stop { .. } | TaskAsk::Publish(_));
        if flaky && self.bad(4) {
            return self.answer(task, epoch, Answer::Failed { why: "the disk hiccups".into() });
        }
        let answer = match what {
            TaskAsk::Claim { .. } => self.claim(&path, epoch),
            TaskAsk::MakeWorktree { branch, base } => self.make_worktree(&path, branch, base),
            TaskAsk::WriteBrief(_) => Answer::Briefed,
            TaskAsk::Run(order) => return self.run(Some(task), *order),
            TaskAsk::Stop { run, stage } => return self.stop(&run, stage),
            TaskAsk::Collect { worktree, .. } => self.collect(&path, &worktree),
            TaskAsk::TryMerge { tip: _, onto, .. } => {
                assert!(!self.board.tasks[task].needs_review(), "{path} is merged without the yes that it needs");
                self.try_merge(&path, &onto)
            }
            TaskAsk::Move { new, old, .. } => self.move_target(&path, new, &old),
            TaskAsk::Rescue { .. } => Answer::Rescued,
            TaskAsk::Conclude(record) => self.conclude(&path, &record),
            TaskAsk::GiveBack { .. } => {
                self.worktrees.remove(&path);
                self.content.remove(&path);
                Answer::GivenBack
            }
            TaskAsk::Publish(_) => Answer::Published,
            TaskAsk::StartBackground { .. } | TaskAsk::StopBackground => return,
        };
        self.answer(task, epoch, answer);
    }

    fn claim(&mut self, path: &TaskPath, epoch: Epoch) -> Answer {
        let unclear = self.bad(4);
        match self.claims.get(path) {
            Some(false) => {
                self.totals.lost_claims += 1;
                Answer::ClaimLost { by: "other".into() }
            }
            _ => {
                if !unclear || self.rng.chance(50) {
                    self.claims.insert(path.clone(), true);
                }
                if unclear {
                    return Answer::ClaimUnknown { why: "no answer".into() };
                }
                Answer::ClaimWon { held: Held { nonce: format!("n{}", epoch.0), commit: oid(9), renew_by: None } }
            }
        }
    }

    fn make_worktree(&mut self, path: &TaskPath, branch: String, base: Oid) -> Answer {
        // A claim that another took over meanwhile is found out at the next exchange; until then it is held in good faith.
        assert!(self.claims.contains_key(path), "{path} gets a worktree without a claim");
        let merged: BTreeSet<TaskPath> = self.merged.iter().cloned().collect();
        let worktree = Worktree { path: format!("/wt/{path}"), branch, base, theirs: Default::default() };
        self.worktrees.insert(path.clone(), (worktree.clone(), merged));
        self.content.remove(path);
        Answer::WorktreeReady { worktree }
    }

    /// Everything the task needs, as the wishes say.
    fn needs(&self, path: &TaskPath) -> BTreeSet<TaskPath> {
        let mut needs = BTreeSet::new();
        let mut at = Some(path.clone());
        while let Some(here) = at {
            needs.extend(self.wishes[&here].depends_on.iter().cloned());
            at = here.parent();
        }
        needs
    }

    fn is_done(&self, path: &TaskPath, merged: &BTreeSet<TaskPath>) -> bool {
        let children: Vec<&TaskPath> = self.wishes.keys().filter(|p| p.parent().as_ref() == Some(path)).collect();
        merged.contains(path) || (!children.is_empty() && children.iter().all(|c| self.is_done(c, merged)))
    }

    fn run(&mut self, task: Option<&TaskId>, order: RunOrder) {
        if let Some(run) = self.runs.get_mut(&order.run) {
            // Started before: it is followed to its end, never started again.
            assert!(!run.followed || run.live, "{} is asked for again after its end was told", order.run);
            run.followed = true;
            let (live, agent) = (run.live, run.agent);
            self.totals.adopted += u64::from(live && agent);
            if !live {
                self.report_end(&order.run.clone(), 1);
            }
            return;
        }
        let agent = matches!(order.program, Program::Agent { .. });
        if let (Some(task), true) = (task, agent) {
            let twin = self.runs.values().any(|r| r.live && r.agent && !r.immortal && r.task.as_ref() == Some(task));
            assert!(!twin, "a second agent of {task} is started beside the first");
            let (_, merged) = &self.worktrees[&task.path];
            for need in self.needs(&task.path) {
                assert!(self.is_done(&need, merged), "{task} runs on a base without {need}");
            }
            self.totals.sent_back += u64::from(
                matches!(&order.program, Program::Agent { prompt, .. } if *prompt != overnight::decide::ask::Prompt::Brief),
            );
        }
        let run = match &order.place {
            Place::Integration(commit) => {
                let other = self.runs.iter().find(|(_, r)| r.live && r.integration);
                assert!(other.is_none(), "{} joins {:?} in the integration worktree", order.run, other.map(|o| o.0));
                self.check_run(task, commit)
            }
            Place::Worktree(_) if agent => self.agent_run(task),
            Place::Worktree(_) => self.step_run(task),
        };
        self.runs.insert(order.run, run);
    }

    fn plain(&mut self, task: Option<&TaskId>, agent: bool) -> Run {
        let ends = self.mono + 500 + self.rng.below(if agent { 600_000 } else { 60_000 });
        Run {
            task: task.cloned(),
            agent,
            healthy: false,
            live: true,
            ends: Some(ends),
            next_beat: None,
            ignores_term: self.rng.chance(10),
            immortal: false,
            end: end(Exit::Exited { code: 0 }),
            report: None,
            followed: true,
            effect: Effect::None,
            check_of: None,
            integration: false,
        }
    }

    fn check_run(&mut self, task: Option<&TaskId>, commit: &Oid) -> Run {
        let mut run = self.plain(task, false);
        run.integration = true;
        let good = self.good.get(&self.commit_tree[commit]).copied().unwrap_or(true);
        if self.bad(3) {
            run.end = end(Exit::Lost);
        } else if self.bad(3) {
            run.end = end(Exit::NeverStarted { why: "no space left".into() });
        } else if self.bad(3) {
            run.ends = None;
        } else if !good {
            run.end = end(Exit::Exited { code: 1 });
        } else {
            run.check_of = Some((self.commit_tree[commit].clone(), true));
        }
        run
    }

    fn step_run(&mut self, task: Option<&TaskId>) -> Run {
        let mut run = self.plain(task, false);
        let checking =
            task.and_then(|t| self.board.tasks.get(t)).is_some_and(|t| matches!(t.phase, Phase::Checking { .. }));
        let bad = task.is_some_and(|t| self.content.get(&t.path).is_some_and(|(_, e)| *e == Effect::Bad));
        if self.bad(3) {
            run.end = end(Exit::Lost);
        } else if self.bad(2) {
            run.ends = None;
        } else if checking && bad || !checking && self.bad(5) {
            let code = if self.rng.chance(30) { 75 } else { 1 };
            run.end = end(Exit::Exited { code: if checking { 1 } else { code } });
        }
        run
    }

    fn agent_run(&mut self, task: Option<&TaskId>) -> Run {
        let mut run = self.plain(task, true);
        let report = |verdict, asks: Option<&str>| AgentReport {
            verdict,
            session: Some("s".into()),
            text: String::new(),
            asks: asks.map(Into::into),
            usage: Usage::default(),
            session_total: None,
        };
        run.healthy = true;
        run.next_beat = Some(self.mono + 1_000);
        run.effect = if self.rng.chance(70) { Effect::Good } else { Effect::Bad };
        run.report = Some(report(Verdict::Finished, None));
        let roll = if self.trouble() { self.rng.below(100) } else { 99 };
        match roll {
            0..4 => run.ends = None,
            4..8 => {
                (run.healthy, run.next_beat, run.ends) = (false, None, None);
                run.ignores_term = self.rng.chance(50);
                run.immortal = self.rng.chance(20);
            }
            8..12 => run.effect = Effect::None,
            12..16 => {
                run.effect = Effect::None;
                run.report = Some(report(Verdict::Finished, Some("which one?")));
            }
            16..20 => {
                self.totals.held += 1;
                run.effect = Effect::None;
                run.ends = Some(self.mono + 900);
                run.report = Some(report(Verdict::RateLimited { until: None }, None));
            }
            20..23 => {
                let until = Some(Wall(self.wall + 1_200_000));
                run.report = Some(report(Verdict::UsageLimit { until }, None));
            }
            23 => run.report = Some(report(Verdict::LoginNeeded { message: "log in".into() }, None)),
            24..26 => (run.end, run.report) = (end(Exit::Lost), None),
            26 => (run.end, run.report) = (end(Exit::NeverStarted { why: "no memory".into() }), None),
            27..30 => (run.end, run.report) = (end(Exit::DeadMan), None),
            30..34 => {
                run.end = end(Exit::Exited { code: 7 });
                run.report = Some(report(Verdict::Failed { message: "oops".into() }, None));
            }
            34..36 => run.end.survivors.push(Survivor { pid: 4, command: "dev server".into(), ended: true }),
            _ => {}
        }
        run
    }

    fn stop(&mut self, id: &RunId, stage: StopStage) {
        let trouble = self.trouble();
        let at = self.mono + 50 + self.rng.below(1000);
        let Some(run) = self.runs.get_mut(id) else { return };
        run.followed = true;
        if !run.live {
            return self.report_end(&id.clone(), 1);
        }
        self.totals.kills += u64::from(stage == StopStage::Kill);
        self.totals.gave_up += u64::from(stage == StopStage::Kill && run.immortal && trouble);
        if run.immortal || (run.ignores_term && stage == StopStage::Term) {
            return;
        }
        run.ends = Some(run.ends.map_or(at, |e| e.min(at)));
        run.end = end(Exit::Signalled { signal: 15 });
        run.effect = Effect::None;
        run.check_of = None;
        if let Some(report) = &mut run.report {
            report.verdict = Verdict::Stopped;
        }
    }

    fn collect(&mut self, path: &TaskPath, worktree: &Worktree) -> Answer {
        let (held, _) = &self.worktrees[path];
        assert_eq!(held, worktree, "{path} collects another worktree than it was given");
        let base_tree = self.commit_tree[&worktree.base].clone();
        if self.bad(1) {
            let reason =
                overnight::domain::status::Reason::new(overnight::domain::status::ReasonClass::WrongBranch, "moved");
            let strayed = self.bad(20).then(|| "your base branch moved".into());
            return Answer::Refused { reason, strayed };
        }
        let tree = self.content.get(path).map_or(base_tree.clone(), |(tree, _)| tree.clone());
        let changed = usize::from(tree != base_tree);
        let protected = if self.bad(3) { vec!["changes f".into()] } else { vec![] };
        Answer::Collected {
            work: Work { tip: oid(3), tree, base_tree, files: vec!["f".into()], changed, left_out: vec![], protected },
        }
    }

    fn try_merge(&mut self, path: &TaskPath, onto: &Oid) -> Answer {
        if *onto != self.tip {
            self.totals.overtaken += 1;
            return Answer::Overtaken { now: self.tip.clone() };
        }
        if self.merged.contains(path) {
            return Answer::AlreadyIn { commit: self.tip.clone() };
        }
        if self.rng.chance(5) {
            self.totals.conflicts += 1;
            return Answer::Conflict { files: vec!["f".into()] };
        }
        self.fresh += 2;
        let (commit, tree) = (oid(self.fresh), oid(self.fresh - 1));
        let good = self.content.get(path).is_none_or(|(_, e)| *e != Effect::Bad) && !self.rng.chance(4);
        self.good.insert(tree.clone(), good);
        self.commit_tree.insert(commit.clone(), tree.clone());
        Answer::Merged { commit, tree, onto: onto.clone() }
    }

    fn move_target(&mut self, path: &TaskPath, new: Oid, old: &Oid) -> Answer {
        if self.tip == new {
            return Answer::Moved;
        }
        if self.tip != *old {
            self.totals.overtaken += 1;
            return Answer::Overtaken { now: self.tip.clone() };
        }
        self.assert_green(&new);
        for need in self.needs(path) {
            let merged: BTreeSet<TaskPath> = self.merged.iter().cloned().collect();
            assert!(self.is_done(&need, &merged), "{path} is merged before {need}");
        }
        assert!(!self.merged.contains(path), "{path} is merged twice");
        self.merged.push(path.clone());
        self.tip = new;
        Answer::Moved
    }

    /// The branch moves only to a tree on which every check has passed.
    fn assert_green(&self, commit: &Oid) {
        let tree = &self.commit_tree[commit];
        let passed = self.passed.get(tree).copied().unwrap_or(0);
        assert!(passed >= self.policy.checks.len() as u64, "the target moves to a tree with {passed} green checks");
        assert!(self.policy.checks.is_empty() || self.good[tree], "the target moves to a red tree");
    }

    fn conclude(&mut self, path: &TaskPath, record: &Record) -> Answer {
        if self.claims.get(path) == Some(&false) {
            return Answer::ClaimGone;
        }
        self.claims.remove(path);
        if let Some(outcome) = &record.outcome {
            let new = self.conclusions.insert((path.clone(), record.retry, format!("{outcome:?}")));
            let earlier = self.concluded.get(path).is_some_and(|c| c.retry == record.retry && c.outcome != *outcome);
            assert!(!earlier, "{path} is concluded twice, and differently");
            let _ = new;
            let epoch = record.log.last().map_or(Epoch(0), |e| e.epoch);
            self.concluded.insert(path.clone(), Concluded { outcome: outcome.clone(), epoch, retry: record.retry });
        }
        Answer::Concluded
    }

    fn act_project(&mut self, epoch: Epoch, what: ProjectAsk) {
        let answer = match what {
            ProjectAsk::PrepareTarget { .. } => self.prepare_target(),
            ProjectAsk::RunCheck(order) => return self.run(None, *order),
            ProjectAsk::StopCheck { run, stage } => return self.stop(&run, stage),
            ProjectAsk::MoveTarget { new, old, .. } if self.tip == old || self.tip == new => {
                self.assert_green(&new);
                self.totals.joined += 1;
                self.tip = new;
                SideAnswer::TargetMoved
            }
            ProjectAsk::MoveTarget { .. } => SideAnswer::TargetOvertaken,
            ProjectAsk::Deliver { tip, .. } if self.bad(10) => {
                SideAnswer::NotDelivered { tip, why: "checked out".into() }
            }
            ProjectAsk::Deliver { tip, .. } => SideAnswer::Delivered { tip },
            ProjectAsk::Land { .. } if self.bad(20) => SideAnswer::LandRefused { why: "dirty".into() },
            ProjectAsk::Land { tip, .. } => {
                self.base = tip.clone();
                SideAnswer::Landed { base: "main".into(), tip, how: "fast-forward".into() }
            }
            ProjectAsk::Edit { id, path, edit, retry } => {
                model::edit(self.wishes.get_mut(&path).unwrap(), &edit, retry);
                let mut news = WishNews::default();
                news.wishes.insert(path.clone(), self.wishes.get(&path).cloned());
                self.totals.retried += u64::from(edit == WishEdit::Retry);
                self.totals.questions += u64::from(matches!(edit, WishEdit::Answer(_)));
                self.post(5, Event::Wishes { project: self.project.clone(), news });
                SideAnswer::Edited { id }
            }
            ProjectAsk::PublishBoard => SideAnswer::BoardPublished,
        };
        let delay = self.delay();
        self.post(delay, Event::Side { project: self.project.clone(), epoch, answer });
    }

    fn prepare_target(&mut self) -> SideAnswer {
        if self.bad(5) {
            return SideAnswer::Failed { why: "the repository is locked".into() };
        }
        let joined = self.base == oid(2) || self.tip == self.base || self.green.contains(&self.base);
        if joined {
            let tree = self.commit_tree[&self.tip].clone();
            return SideAnswer::TargetReady { tip: self.tip.clone(), base: self.base.clone(), tree };
        }
        self.fresh += 2;
        let (commit, tree) = (oid(self.fresh), oid(self.fresh - 1));
        self.good.insert(tree.clone(), true);
        self.commit_tree.insert(commit.clone(), tree.clone());
        // From here on the model takes the base as joined, whether or not this very candidate lands.
        self.green.insert(self.base.clone());
        if matches!(self.board.projects[&self.project].target, Target::Joining { .. }) {
            panic!("the target is prepared while it is being joined");
        }
        SideAnswer::TargetNeedsMerge { commit, tree, onto: self.tip.clone(), base: self.base.clone() }
    }
}
