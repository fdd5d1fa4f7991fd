//! The target branch and the trees below everything: bringing the target up to date with the base, running the checks once
//! on what the tasks start from, letting the user's repository have the branch, and landing it.
//!
//! ```text
//! Unknown ▶ Preparing ▶ Ready ◀───────┐
//!                │         (green)    │
//!                ├──▶ Joining ── check, move
//!                └──▶ Blocked (until it is looked at again)
//! ```

use super::ask::{NoticeKind, ProjectAsk, Reply};
use super::board::{Baseline, Board, CheckPurpose, Mode, Project, Target, TreeCheck};
use super::event::{RequestId, SideAnswer};
use super::orders;
use crate::domain::chain::{CheckVerdict, judge_check, was_cut_off};
use crate::domain::phase::{Again, Child, Phase, StopStage};
use crate::domain::policy::Policy;
use crate::domain::status::{Reason, ReasonClass};
use crate::domain::task::WishStatus;
use crate::domain::verdict::{Exit, RunEnd};
use crate::domain::{Epoch, Mono, Now, Oid, ProjectId};
use std::time::Duration;

/// How long a target that cannot be used is left before it is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// Between two deliveries while merges follow each other.
const DELIVER_PACE: Duration = Duration::from_secs(2);
/// How often a check that could not be carried through is started anew.
const CHECK_TRIES: u32 = 3;

/// The baseline that was made for this tree under the present configuration.
pub fn baseline_of<'a>(project: &'a Project, tree: &Oid) -> Option<&'a Baseline> {
    let policy = project.policy.as_ref()?;
    project.baseline.as_ref().filter(|b| b.tree == *tree && b.policy == policy.hash)
}

pub(super) fn levels(board: &mut Board, now: Now) {
    let ids: Vec<ProjectId> = board.projects.keys().cloned().collect();
    for id in ids {
        let landing = board.projects.get(&id).is_some_and(|p| p.land.is_some());
        if board.mode == Some(Mode::Working) || (board.mode == Some(Mode::Serving) && landing) {
            prepare(board, &id, now);
            baseline(board, &id, now);
            join(board, &id, now);
            deliver(board, &id, now);
            wake(board, &id, now);
        }
        if matches!(board.mode, Some(Mode::Working | Mode::Serving)) {
            land(board, &id, now);
        }
    }
}

/// Whether something would use the target if it were ready: a landing, a delivery that is to be tried again, or a task.
fn wanted(board: &Board, id: &ProjectId, project: &Project) -> bool {
    if project.land.is_some() || (project.undelivered.is_some() && project.delivered.is_none()) {
        return true;
    }
    if board.paused || project.paused || !project.read {
        return false;
    }
    let mine = |t: &&super::board::Task| t.id.project == *id;
    board.tasks.values().filter(mine).any(|t| {
        if t.phase == Phase::Queued {
            return t.wish.status == WishStatus::Queued && super::schedule::own_hold(board, t, project).is_ok();
        }
        matches!(t.phase, Phase::MergeQueued | Phase::Preparing | Phase::Backoff { .. })
    })
}

/// What the daemon relies on was moved behind its back: nothing is started, merged or joined until a person has looked.
pub(super) fn halt(board: &mut Board, id: &ProjectId, what: String, now: Now) {
    board.note_project(id, "halted", &what, now);
    board.notify(id, None, NoticeKind::Alarm, format!("{what}; `overnight resume` goes on"));
    // The first to tell was nearest to it.
    let halted = board.project_mut(id).halted.get_or_insert(what).clone();
    let project = board.project_mut(id);
    if matches!(project.target, Target::Joining { .. }) {
        project.target = Target::Unknown;
    }
    if let Some(request) = project.land.filter(|_| project.landing.is_none()) {
        let why = format!("{halted}; `overnight resume` goes on");
        answer_land(board, id, request, Reply::Refused { why });
    }
}

/// Tasks that were claimed while the target was looked at get their worktrees once it is there.
fn wake(board: &mut Board, id: &ProjectId, now: Now) {
    let ready = |p: &Project| p.halted.is_none() && p.tip().is_some();
    if board.mode != Some(Mode::Working) || !board.projects.get(id).is_some_and(ready) {
        return;
    }
    // One whose worktree could not be made has tries behind it, and a pause of its own.
    let waits = |t: &&super::board::Task| {
        t.id.project == *id && t.phase == Phase::Backoff { again: Again::Prepare } && t.tries == 0
    };
    let waiting: Vec<_> = board.tasks.values().filter(waits).map(|t| t.id.clone()).collect();
    for task in waiting {
        super::advance::enter(board, &task, Phase::Preparing, "the target branch is there", now);
    }
}

fn prepare(board: &mut Board, id: &ProjectId, now: Now) {
    let Some(project) = board.projects.get(id).filter(|p| p.halted.is_none()) else { return };
    let Some(policy) = project.policy.clone() else { return };
    match &project.target {
        Target::Unknown => {}
        Target::Blocked { until, .. } if *until <= now.mono => {}
        Target::Blocked { .. } | Target::Preparing { .. } | Target::Joining { .. } | Target::Ready { .. } => return,
    }
    // A train that is under way keeps its ground; the target is looked at when it has passed.
    if train(board, id) || !wanted(board, id, project) {
        return;
    }
    let epoch = board.ask_project(id, ProjectAsk::PrepareTarget { base: policy.base, into: policy.merge.into });
    board.project_mut(id).target = Target::Preparing { epoch };
}

/// True while a task of the project is merging, or a check of its merged tree has not ended yet.
pub(super) fn train(board: &Board, id: &ProjectId) -> bool {
    let merging = |phase: &Phase| {
        matches!(phase, Phase::Merging { .. }) || matches!(phase.child(), Some(Child::MergeCheck { .. }))
    };
    board.tasks.values().any(|t| t.id.project == *id && merging(&t.phase))
}

/// Starts the checks on the tree that tasks start from, where nobody knows yet whether they pass.
fn baseline(board: &mut Board, id: &ProjectId, now: Now) {
    let Some(project) = board.projects.get(id) else { return };
    let Target::Ready { tip, tree, .. } = &project.target else { return };
    if project.check.is_some() || project.is_green(tree) || baseline_of(project, tree).is_some() || train(board, id) {
        return;
    }
    if !wanted(board, id, project) {
        return;
    }
    let (commit, tree) = (tip.clone(), tree.clone());
    start_check(board, id, CheckPurpose::Baseline, commit, tree, 0, 0, now);
}

#[expect(clippy::too_many_arguments, reason = "the facts of one check; a struct for one caller would only rename them")]
fn start_check(
    board: &mut Board,
    id: &ProjectId,
    purpose: CheckPurpose,
    commit: Oid,
    tree: Oid,
    n: usize,
    tries: u32,
    now: Now,
) {
    let project = board.project_mut(id);
    project.epoch = project.epoch.next();
    let epoch = project.epoch;
    project.check =
        Some(TreeCheck { purpose, commit, tree, n, epoch, since: now.mono, stop: None, tries, void: false });
    ask_check(board, id);
}

/// Hands out the running check's ask, at its start or once more after a restart.
pub(super) fn ask_check(board: &mut Board, id: &ProjectId) {
    let Some(project) = board.projects.get(id) else { return };
    let Some(check) = &project.check else { return };
    if let Some(order) = orders::tree_check_order(id, project, check) {
        let epoch = check.epoch;
        board.asks.push(super::ask::Ask::Project {
            project: id.clone(),
            epoch,
            what: ProjectAsk::RunCheck(Box::new(order)),
        });
    }
}

/// Checks what joins base and target, then moves the target there.
fn join(board: &mut Board, id: &ProjectId, now: Now) {
    let Some(project) = board.projects.get(id) else { return };
    let Target::Joining { commit, tree, onto, epoch, .. } = &project.target else { return };
    // A check that runs already has the integration worktree, whatever it is for.
    if project.check.is_some() || *epoch != Epoch(0) {
        return;
    }
    if !project.is_green(tree) {
        let (commit, tree) = (commit.clone(), tree.clone());
        return start_check(board, id, CheckPurpose::Join, commit, tree, 0, 0, now);
    }
    let Some(into) = project.policy.as_ref().map(|p| p.merge.into.clone()) else { return };
    let what = ProjectAsk::MoveTarget { into, new: commit.clone(), old: onto.clone() };
    let moving = board.ask_project(id, what);
    if let Target::Joining { epoch, .. } = &mut board.project_mut(id).target {
        *epoch = moving;
    }
}

fn deliver(board: &mut Board, id: &ProjectId, now: Now) {
    let Some(project) = board.projects.get(id) else { return };
    let Some(tip) = project.tip().cloned() else { return };
    if project.delivered.as_ref() == Some(&tip) || project.delivering.is_some() {
        return;
    }
    // While the train moves one delivery brings several merges: the next tip is about to come, and with it this turn.
    let recent = project.delivered_at.is_some_and(|at| now.mono < at.after(DELIVER_PACE));
    let merges = |t: &super::board::Task| t.id.project == *id && matches!(t.phase, Phase::Merging { .. });
    if recent && board.tasks.values().any(merges) {
        return;
    }
    let Some(into) = project.policy.as_ref().map(|p| p.merge.into.clone()) else { return };
    let epoch = board.ask_project(id, ProjectAsk::Deliver { into, tip });
    board.project_soft(id).delivering = Some(epoch);
}

/// Carries a landing on as far as it can go now.
fn land(board: &mut Board, id: &ProjectId, _now: Now) {
    let Some(project) = board.projects.get(id) else { return };
    let Some(request) = project.land else { return };
    if project.landing.is_some() {
        return;
    }
    if project.policy.is_none() {
        return answer_land(
            board,
            id,
            request,
            Reply::Refused { why: "the project has no approved configuration".into() },
        );
    }
    match &project.target {
        Target::Ready { tip, base, .. } if tip == base => {
            let text = "nothing to land: the base holds everything already".into();
            answer_land(board, id, request, Reply::Done { text });
        }
        // What lands has passed its checks as it lands; where nobody knows yet, they run now.
        Target::Ready { tree, .. } if !project.is_green(tree) => {
            let Some(red) = baseline_of(project, tree).and_then(|b| b.red.clone()) else { return };
            let why = format!("{}\nNothing was landed. Mend it, then `overnight resume` and land again.", red.text);
            answer_land(board, id, request, Reply::Refused { why });
        }
        Target::Ready { tip, .. } => {
            let Some(policy) = &project.policy else { return };
            let what =
                ProjectAsk::Land { base: policy.base.clone(), into: policy.merge.into.clone(), tip: tip.clone() };
            let epoch = board.ask_project(id, what);
            board.project_soft(id).landing = Some(epoch);
        }
        Target::Blocked { reason, .. } => {
            let why = reason.text.clone();
            answer_land(board, id, request, Reply::Refused { why });
        }
        Target::Unknown | Target::Preparing { .. } | Target::Joining { .. } => {}
    }
}

fn answer_land(board: &mut Board, id: &ProjectId, request: RequestId, reply: Reply) {
    let project = board.project_soft(id);
    project.land = None;
    project.landing = None;
    board.asks.push(super::ask::Ask::Reply { id: request, reply });
}

/// The answer to one of the project's own asks.
#[expect(clippy::wildcard_enum_match_arm, reason = "the answer to another ask is none to this one")]
pub(super) fn answered(board: &mut Board, id: &ProjectId, epoch: Epoch, answer: SideAnswer, now: Now) {
    let Some(project) = board.projects.get(id) else { return };
    let preparing = matches!(&project.target, Target::Preparing { epoch: e } if *e == epoch);
    let joining = matches!(&project.target, Target::Joining { epoch: e, .. } if *e == epoch);
    match answer {
        SideAnswer::TargetReady { tip, base, tree } if preparing => {
            board.clear_notice(id, None, NoticeKind::Alarm);
            board.project_mut(id).target = Target::Ready { tip, base, tree };
        }
        SideAnswer::TargetNeedsMerge { tree, .. } if preparing && project.red_join(&tree).is_some() => {
            // That very tree is known to be red; only another base, target or configuration can change that.
            if let Some(reason) = project.red_join(&tree).cloned() {
                block(board, id, reason, now);
            }
        }
        SideAnswer::TargetNeedsMerge { commit, tree, onto, base } if preparing => {
            board.project_mut(id).target = Target::Joining { epoch: Epoch(0), commit, tree, onto, base };
        }
        SideAnswer::TargetBlocked { reason } if preparing => block(board, id, reason, now),
        SideAnswer::Failed { why } if preparing || joining => {
            block(board, id, Reason::new(ReasonClass::Infra, why), now)
        }
        SideAnswer::TargetMoved if joining => {
            if let Target::Joining { commit, tree, base, .. } = project.target.clone() {
                board.note_project(id, "target", format!("base joined in {}", commit.short()), now);
                board.project_mut(id).target = Target::Ready { tip: commit, base, tree };
            }
        }
        SideAnswer::TargetOvertaken if joining => board.project_mut(id).target = Target::Unknown,
        SideAnswer::RunEnded { run: _, end } => check_ended(board, id, epoch, &end, now),
        SideAnswer::Delivered { tip } => delivered(board, id, epoch, tip, None, now),
        SideAnswer::NotDelivered { tip, why } => delivered(board, id, epoch, tip, Some(why), now),
        SideAnswer::Landed { base, tip, how } if project.landing == Some(epoch) => {
            let Some(request) = project.land else { return };
            board.note_project(id, "landed", format!("{base} is now {} ({how})", tip.short()), now);
            // The base moved: look at both again before the next start.
            board.project_mut(id).target = Target::Unknown;
            answer_land(board, id, request, Reply::Done { text: format!("{base} is now at {} ({how})", tip.short()) });
        }
        SideAnswer::LandRefused { why } | SideAnswer::Failed { why } if project.landing == Some(epoch) => {
            if let Some(request) = project.land {
                answer_land(board, id, request, Reply::Refused { why });
            }
        }
        SideAnswer::Failed { why } if project.delivering == Some(epoch) => {
            let tip = project.tip().cloned();
            if let Some(tip) = tip {
                delivered(board, id, epoch, tip, Some(why), now);
            }
        }
        other => super::publish::answered(board, id, epoch, other, now),
    }
}

fn block(board: &mut Board, id: &ProjectId, reason: Reason, now: Now) {
    board.note_project(id, "target", format!("target cannot be used: {reason}"), now);
    board.notify(id, None, NoticeKind::Alarm, reason.text.clone());
    board.project_mut(id).target = Target::Blocked { reason, until: now.mono.after(LOOK_AGAIN) };
}

fn delivered(board: &mut Board, id: &ProjectId, epoch: Epoch, tip: Oid, why: Option<String>, now: Now) {
    if board.projects.get(id).and_then(|p| p.delivering) != Some(epoch) {
        return;
    }
    if let Some(why) = &why {
        board.note_project(id, "not_delivered", why, now);
    }
    let project = board.project_mut(id);
    project.undelivered = why;
    project.delivering = None;
    project.delivered = Some(tip);
    project.delivered_at = Some(now.mono);
}

/// One check of a tree is over: the next one, or the verdict on the tree.
fn check_ended(board: &mut Board, id: &ProjectId, epoch: Epoch, end: &RunEnd, now: Now) {
    let Some(project) = board.projects.get(id) else { return };
    let Some(check) = project.check.clone().filter(|c| c.epoch == epoch) else { return };
    if check.void {
        board.project_mut(id).check = None;
        return;
    }
    let Some(policy) = project.policy.clone() else { return };
    let Some(one) = policy.checks.get(check.n) else {
        board.project_mut(id).check = None;
        return;
    };
    if let Exit::NeverStarted { why } = &end.exit {
        // It says nothing of the tree; whatever kept it from beginning is given time to pass.
        let text = format!("check {} could not begin ({})", one.name, last_lines(why, 1));
        board.project_mut(id).check = None;
        return block(board, id, Reason::new(ReasonClass::Infra, text), now);
    }
    let lost = check.stop.is_none() && was_cut_off(&end.exit, check.tries);
    if lost && check.tries < CHECK_TRIES {
        return start_check(board, id, check.purpose, check.commit, check.tree, check.n, check.tries + 1, now);
    }
    let red = match judge_check(one, end, check.stop.is_some()) {
        CheckVerdict::Pass | CheckVerdict::Skipped if check.n + 1 < policy.checks.len() => {
            return start_check(board, id, check.purpose, check.commit, check.tree, check.n + 1, 0, now);
        }
        CheckVerdict::Pass | CheckVerdict::Skipped => None,
        CheckVerdict::Fail { why } => Some(format!("check {} fails ({why})", one.name)),
        CheckVerdict::CouldNotRun { why } => Some(format!("check {} could not run ({why})", one.name)),
    };
    let project = board.project_mut(id);
    project.check = None;
    if red.is_none() {
        project.record_green(&check.tree, &policy.hash);
    }
    let red = red.map(|what| format!("{what}\n{}", last_lines(&end.tail, 12)));
    match (check.purpose, red) {
        (CheckPurpose::Baseline, red) => judged_as_it_stands(board, id, check.tree, red, &policy, now),
        (CheckPurpose::Join, Some(what)) => {
            let text = format!("base and merged work together: {what}");
            let reason = Reason::new(ReasonClass::MergeRed, text);
            let red = Some(reason.clone());
            project.joined_red = Some(Baseline { tree: check.tree, policy: policy.hash, red, until: None });
            block(board, id, reason, now);
        }
        (CheckPurpose::Join, None) => {}
    }
}

/// All checks of the tree that tasks start from are over; `red` says what failed.
fn judged_as_it_stands(board: &mut Board, id: &ProjectId, tree: Oid, red: Option<String>, policy: &Policy, now: Now) {
    let project = board.project_mut(id);
    // What tasks start from is the target branch, which may be ahead of the base.
    let own = matches!(&project.target, Target::Ready { tip, base, .. } if tip == base);
    let text = red.map(|what| {
        let (name, how) =
            if own { (&policy.base, "red before any task") } else { (&policy.merge.into, "red as it stands") };
        format!("{name} is {how}: {what}")
    });
    let red = text.clone().map(|text| Reason::new(ReasonClass::ValidationFailed, text));
    project.baseline = Some(Baseline { tree, policy: policy.hash.clone(), red, until: None });
    match text {
        Some(text) => {
            board.note_project(id, "base_red", text.clone(), now);
            board.notify(id, None, NoticeKind::BaseRed, text);
        }
        None => {
            board.note_project(id, "base_green", "all checks pass on the base", now);
            board.clear_notice(id, None, NoticeKind::BaseRed);
        }
    }
}

/// The last `n` lines of a text.
pub(super) fn last_lines(text: &str, n: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(n)..].join("\n")
}

/// Instants that matter for a project.
pub(super) fn wakes(project: &Project) -> impl Iterator<Item = Mono> + '_ {
    let blocked = match &project.target {
        Target::Blocked { until, .. } => Some(*until),
        Target::Unknown | Target::Preparing { .. } | Target::Joining { .. } | Target::Ready { .. } => None,
    };
    let check = project.check.as_ref().and_then(|c| Some(check_due(project, c)?.0));
    let board = project.board_due.filter(|_| project.board_busy.is_none());
    blocked.into_iter().chain(check).chain(board)
}

fn check_due(project: &Project, check: &TreeCheck) -> Option<(Mono, Option<StopStage>)> {
    let policy = project.policy.as_ref()?;
    let grace = policy.limits.kill_grace;
    Some(match check.stop {
        None => (check.since.after(policy.checks.get(check.n)?.timeout), Some(StopStage::Term)),
        Some((StopStage::Term, at)) => (at.after(grace), Some(StopStage::Kill)),
        Some((StopStage::Kill, at)) => (at.after(grace * 2 + Duration::from_secs(5)), None),
    })
}

/// Ends checks of trees that have used up their time; lets a blocked target be looked at again.
pub(super) fn deadlines(board: &mut Board, now: Now) {
    let ids: Vec<ProjectId> = board.projects.keys().cloned().collect();
    for id in ids {
        let Some(project) = board.projects.get(&id) else { continue };
        if matches!(&project.target, Target::Blocked { until, .. } if *until <= now.mono) {
            board.project_mut(&id).target = Target::Unknown;
            continue;
        }
        let Some(check) = project.check.clone() else { continue };
        let Some((at, next)) = check_due(project, &check) else { continue };
        if at > now.mono {
            continue;
        }
        match next {
            Some(stage) => {
                let run = orders::tree_check_run(&id, &check);
                if let Some(check) = &mut board.project_mut(&id).check {
                    check.stop = Some((stage, now.mono));
                }
                let what = ProjectAsk::StopCheck { run, stage };
                board.asks.push(super::ask::Ask::Project { project: id.clone(), epoch: check.epoch, what });
            }
            None => {
                let end = RunEnd {
                    exit: Exit::Lost,
                    took: now.mono.since(check.since),
                    survivors: vec![],
                    tail: "the check's processes could not be ended".into(),
                    bytes: 0,
                    cut: 0,
                };
                check_ended(board, &id, check.epoch, &end, now);
            }
        }
    }
}

/// The branch moved to `tip` by a task's merge.
pub(super) fn moved(board: &mut Board, id: &ProjectId, tip: Oid, tree: Oid) {
    if let Target::Ready { tip: at, tree: of, .. } = &mut board.project_mut(id).target {
        *at = tip;
        *of = tree;
    }
}

/// Whether a merge may start: the target is ready and nothing else moves it.
pub(super) fn open_for_merges(project: &Project) -> bool {
    project.halted.is_none()
        && matches!(project.target, Target::Ready { .. })
        && project.check.is_none()
        && project.land.is_none()
}
