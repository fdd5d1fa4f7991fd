//! Ask → call. Each ask is handed to the hand that does it, off the loop; its answer comes back as an event under the same
//! name. Asks of one task are done in the order they were given; long ones (a child's run) do not hold up the others.

#![expect(clippy::disallowed_methods, reason = "there is no event for room on a disk")]

use super::guard::guarded;
use super::project::{ProjectCtx, lock};
use super::state_worker::StateOp;
use super::{Shared, delivery};
use crate::decide::Event;
use crate::decide::ask::{Ask, NoticeKind, ProjectAsk, TaskAsk};
use crate::decide::event::{Answer, SideAnswer, Theirs, Work, Worktree};
use crate::domain::policy::Protect;
use crate::domain::status::{Reason, ReasonClass};
use crate::domain::{Epoch, Oid, ProjectId, TaskId};
use crate::git::collect::{self, Collected, CommitRules};
use crate::git::merge::{self, Candidate};
use crate::git::pool::Lease;
use crate::git::rescue;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Between two looks for room on a full disk.
const ROOM: Duration = Duration::from_secs(5);
/// Files of one attempt that are listed by name.
const FILES: usize = 300;

/// Keeps asks of one task in their order.
#[derive(Default)]
pub(super) struct Order {
    last: HashMap<TaskId, oneshot::Receiver<()>>,
}

impl Order {
    /// A place behind what was asked of this task before.
    fn take(&mut self, task: &TaskId) -> (Option<oneshot::Receiver<()>>, oneshot::Sender<()>) {
        let (done, after) = oneshot::channel();
        // Places that are over are forgotten now and then, so that the map does not grow with the night.
        if self.last.len() > 4096 {
            self.last.retain(|_, r| r.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Empty));
        }
        (self.last.insert(task.clone(), after), done)
    }
}

/// Hands one ask out. Replies and the exit are the loop's own business.
pub(super) fn dispatch(shared: &Arc<Shared>, order: &mut Order, ask: Ask) {
    match ask {
        Ask::Task { task, epoch, what } => match shared.project(&task.project) {
            Some(ctx) => task_ask(shared, &ctx, order, task, epoch, what),
            // Whatever keeps it from being opened is no failure of its tasks: they are asked for again at the next start.
            None => tracing::warn!(project = %task.project, task = %task.path, "the project is not open"),
        },
        Ask::Project { project, epoch, what } => match shared.project(&project) {
            Some(ctx) => project_ask(shared, &ctx, epoch, what),
            None => {
                let answer = SideAnswer::Failed { why: format!("project {project} is not open") };
                shared.send(Event::Side { project, epoch, answer });
            }
        },
        Ask::Notice { project, task, kind, text } => notice(&project, task.as_ref(), kind, &text),
        Ask::EndOrphan { run } => {
            let shared = shared.clone();
            tokio::spawn(async move { super::runs::end_orphan(&shared, &run).await });
        }
        Ask::Reply { .. } | Ask::Exit => {}
    }
}

fn notice(project: &ProjectId, task: Option<&crate::domain::TaskPath>, kind: NoticeKind, text: &str) {
    let task = task.map(ToString::to_string).unwrap_or_default();
    let text = crate::domain::safe::line(text);
    match kind {
        NoticeKind::NightDone => {
            tracing::info!(%project, task, "{text}");
            crate::host::give_memory_back();
        }
        NoticeKind::NeedsYou | NoticeKind::ProfileUnusable | NoticeKind::BaseRed | NoticeKind::Alarm => {
            tracing::warn!(%project, task, kind = ?kind, "{text}");
        }
    }
}

fn task_ask(shared: &Arc<Shared>, ctx: &Arc<ProjectCtx>, order: &mut Order, task: TaskId, epoch: Epoch, what: TaskAsk) {
    let op = match what {
        TaskAsk::Claim { program } => {
            // Nothing was asked of anybody: the task stays queued and is looked at again.
            let why_not = shared.disk_full().map(|why| Answer::ClaimUnknown { why });
            let missing = || program.and_then(|program| shared.missing(&program));
            match why_not.or_else(|| missing().map(|why| Answer::NoProgram { why })) {
                None => StateOp::Claim { task, epoch },
                Some(answer) => return shared.send(Event::Answer { task, epoch, answer }),
            }
        }
        TaskAsk::Conclude(record) => StateOp::Record { task, epoch, record, conclude: true },
        TaskAsk::Publish(record) => StateOp::Record { task, epoch, record, conclude: false },
        other => {
            let (before, done) = order.take(&task);
            let (shared, ctx) = (shared.clone(), ctx.clone());
            tokio::spawn(async move {
                if let Some(before) = before {
                    // An error only means that it is over already.
                    let _ = before.await;
                }
                if let TaskAsk::Run(order) = other {
                    drop(done);
                    super::runs::run_task(&shared, &ctx, &task, epoch, *order).await;
                } else {
                    if let Some(answer) = answered(&shared, &ctx, &task, epoch, other).await {
                        shared.send(Event::Answer { task, epoch, answer });
                    }
                    drop(done);
                }
            });
            return;
        }
    };
    let _ = ctx.ops.send(op);
}

/// The answer of the hand that an ask is for, where it has one. What fails while the disk is full is done again when there
/// is room: it is nobody's failure, however long that takes.
async fn answered(
    shared: &Arc<Shared>,
    ctx: &Arc<ProjectCtx>,
    task: &TaskId,
    epoch: Epoch,
    what: TaskAsk,
) -> Option<Answer> {
    // To end something must not wait until others have done their work.
    let at_once = matches!(what, TaskAsk::Stop { .. } | TaskAsk::StopBackground);
    let silent = at_once || matches!(what, TaskAsk::StartBackground { .. });
    loop {
        let place = if at_once { None } else { shared.hands.acquire().await.ok() };
        let answer = match guarded(task_hand(shared, ctx, task, epoch, what.clone())).await {
            Ok(answer) => answer,
            Err(_) if silent => None,
            Err(why) => Some(Answer::Failed { why }),
        };
        drop(place);
        match answer {
            Some(Answer::Failed { why }) if shared.disk_full().is_some() => {
                tracing::warn!(%task, "it waits for room on the disk: {}", crate::domain::safe::line(&why));
                while shared.disk_full().is_some() {
                    tokio::time::sleep(ROOM).await;
                }
            }
            answer => return answer,
        }
    }
}

/// The asks that are done in one go.
async fn task_hand(
    shared: &Arc<Shared>,
    ctx: &Arc<ProjectCtx>,
    task: &TaskId,
    epoch: Epoch,
    what: TaskAsk,
) -> Option<Answer> {
    Some(match what {
        TaskAsk::MakeWorktree { branch, base } => make_worktree(ctx, task, epoch, &branch, &base).await,
        TaskAsk::WriteBrief(brief) => match super::briefs::write(ctx, task, &brief).await {
            Ok(()) => Answer::Briefed,
            Err(why) => Answer::Failed { why },
        },
        TaskAsk::Collect { worktree, message, max_file, protect } => {
            let rules = CommitRules { max_file };
            collect(ctx, task, &worktree, &message, rules, protect).await
        }
        TaskAsk::TryMerge { tip, onto, message, into, trailer } => {
            let epoch = trailer.rsplit('@').next().and_then(|n| n.parse().ok()).map_or(epoch, Epoch);
            try_merge(ctx, task, epoch, &tip, &onto, &message, &into).await
        }
        TaskAsk::Move { into, new, old } => match move_branch(ctx, &into, &new, &old).await {
            Ok(None) => Answer::Moved,
            Ok(Some(now)) => Answer::Overtaken { now },
            Err(why) => Answer::Failed { why },
        },
        TaskAsk::Rescue { branch, attempt, .. } => rescue_work(ctx, task, &branch, attempt).await,
        TaskAsk::GiveBack { branch } => give_back(ctx, task, epoch, &branch).await,
        TaskAsk::Stop { run, stage } => {
            super::runs::stop(shared, &run, stage).await;
            // Whoever stops a run also waits for its end; after a restart nobody does yet.
            super::runs::follow_if_unfollowed(shared, ctx, task, &run);
            return None;
        }
        TaskAsk::StartBackground { worktree, steps } => {
            super::background::start(shared, ctx, task, epoch, &worktree, steps);
            return None;
        }
        TaskAsk::StopBackground => {
            super::background::stop(shared, task).await;
            return None;
        }
        TaskAsk::Claim { .. } | TaskAsk::Run(_) | TaskAsk::Conclude(_) | TaskAsk::Publish(_) => return None,
    })
}

async fn make_worktree(ctx: &ProjectCtx, task: &TaskId, epoch: Epoch, branch: &str, base: &Oid) -> Answer {
    // A lease of an earlier try of this very ask: nothing ran in it; it goes back and comes anew.
    if ctx.lease(branch).is_some()
        && let Answer::Failed { why } = give_back(ctx, task, epoch, branch).await
    {
        return Answer::Failed { why };
    }
    match ctx.pool.take(branch, base).await {
        Ok(lease) => {
            let path = lease.path().to_string_lossy().into_owned();
            lock(&ctx.leases).insert(branch.to_owned(), lease);
            Answer::WorktreeReady {
                worktree: Worktree { path, branch: branch.to_owned(), base: base.clone(), theirs: theirs(ctx).await },
            }
        }
        Err(e) => Answer::Failed { why: super::chain(&e) },
    }
}

/// Where the person's own branches stand; unknown where they cannot be read now.
async fn theirs(ctx: &ProjectCtx) -> Theirs {
    let tip = async |name: &str| ctx.mirror.user_tip(name).await.ok().flatten();
    let base = match ctx.policy() {
        Some(policy) => tip(&format!("refs/heads/{}", policy.base)).await,
        None => None,
    };
    Theirs { head: tip("HEAD").await, base }
}

/// What an agent that left its worktree's branch may have done in the person's repository: moves since it began. A person who
/// worked there meanwhile is told all the same; better once too often than a stranger's commit in what is merged.
async fn strayed(ctx: &ProjectCtx, before: &Theirs) -> Option<String> {
    let now = theirs(ctx).await;
    let moved = |was: &Option<Oid>, is: &Option<Oid>| match (was, is) {
        (Some(was), Some(is)) if was != is => Some(format!("from {} to {}", was.short(), is.short())),
        _ => None,
    };
    let moved = moved(&before.base, &now.base)
        .map(|how| format!("your base branch moved {how}"))
        .or_else(|| moved(&before.head, &now.head).map(|how| format!("your checkout's HEAD moved {how}")))?;
    Some(format!("{moved}, and its own git link or branch was tampered with: the commit may be the agent's"))
}

async fn collect(
    ctx: &ProjectCtx,
    task: &TaskId,
    worktree: &Worktree,
    message: &str,
    rules: CommitRules,
    protect: Protect,
) -> Answer {
    let Some(lease) = ctx.lease(&worktree.branch) else {
        return Answer::Failed { why: format!("the worktree of {} is not known", worktree.branch) };
    };
    let leftovers = lock(&ctx.leftovers).get(&worktree.branch).cloned().unwrap_or_default();
    match collect::collect(&lease, message, &ctx.who(), rules, &leftovers).await {
        Ok(collected) => match smuggled(ctx, task, &lease, &collected) {
            Ok(None) => match super::protect::found(ctx, lease.base(), &collected, protect).await {
                Ok(protected) => Answer::Collected { work: work(ctx, &lease, collected, protected) },
                Err(why) => Answer::Failed { why },
            },
            Ok(Some(reason)) => Answer::Refused { reason, strayed: None },
            Err(why) => Answer::Failed { why },
        },
        Err(collect::CollectError::WrongBranch { branch, found, .. }) => {
            let text = format!("its work is not on {branch} as it was handed out: {found}");
            let strayed = strayed(ctx, &worktree.theirs).await;
            Answer::Refused { reason: Reason::new(ReasonClass::WrongBranch, text), strayed }
        }
        Err(collect::CollectError::Worktree(e)) => {
            let text = format!("its worktree was tampered with: {}", super::chain(&e));
            let strayed = strayed(ctx, &worktree.theirs).await;
            Answer::Refused { reason: Reason::new(ReasonClass::Policy, text), strayed }
        }
        Err(e) => Answer::Failed { why: super::chain(&e) },
    }
}

/// What must not be merged with this task: commits of another unmerged task, an unfinished operation, repositories inside.
fn smuggled(ctx: &ProjectCtx, task: &TaskId, lease: &Lease, collected: &Collected) -> Result<Option<Reason>, String> {
    if let Some(what) = collected.unfinished {
        let text = format!("it left {what} unfinished in its worktree");
        return Ok(Some(Reason::new(ReasonClass::WrongBranch, text)));
    }
    if let Some(path) = collected.stray_gitlinks.first() {
        let text = format!("it committed the repository {} without its content", crate::domain::safe::bytes(path));
        return Ok(Some(Reason::new(ReasonClass::Policy, text)));
    }
    let mine = task.path.branch();
    let others: Vec<(String, Oid)> = lock(&ctx.leases)
        .keys()
        .filter(|branch| **branch != mine)
        .filter_map(|branch| Some((branch.clone(), ctx.mirror.branch_tip(branch).ok()??)))
        .collect();
    let known = [lease.base().clone()];
    match collect::foreign(&ctx.mirror, &collected.tip, &known, &others) {
        Ok(foreign) => Ok(foreign.first().map(|(branch, commits)| {
            let text = format!("it holds {} commits of {branch}, which is not merged", commits.len());
            Reason::new(ReasonClass::WrongBranch, text)
        })),
        Err(e) => Err(super::chain(&e)),
    }
}

fn work(ctx: &ProjectCtx, lease: &Lease, collected: Collected, protected: Vec<String>) -> Work {
    let base_tree = tree_of(ctx, lease.base()).unwrap_or_else(|| collected.tree.clone());
    Work {
        base_tree,
        changed: collected.changed.len(),
        files: collected.changed.iter().take(FILES).map(|c| crate::domain::safe::bytes(&c.path)).collect(),
        left_out: collected
            .left_out
            .iter()
            .take(FILES)
            .map(|l| format!("{} ({})", crate::domain::safe::bytes(&l.path), l.why))
            .collect(),
        protected,
        tip: collected.tip,
        tree: collected.tree,
    }
}

/// A commit's tree.
pub(super) fn tree_of(ctx: &ProjectCtx, commit: &Oid) -> Option<Oid> {
    ctx.mirror.odb().ok()?.info(commit).ok().map(|c| c.tree)
}

async fn try_merge(
    ctx: &ProjectCtx,
    task: &TaskId,
    epoch: Epoch,
    tip: &Oid,
    onto: &Oid,
    message: &str,
    into: &str,
) -> Answer {
    match ctx.mirror.branch_tip(into) {
        Ok(Some(now)) if now != *onto => return Answer::Overtaken { now },
        Ok(Some(_)) => {}
        Ok(None) => return Answer::Failed { why: format!("the branch {into} is gone") },
        Err(e) => return Answer::Failed { why: super::chain(&e) },
    }
    let who = ctx.who();
    let lease = ctx.lease(&task.path.branch());
    let candidate = Candidate {
        target: onto,
        work: tip,
        message,
        committer: &who,
        task: &task.path,
        epoch,
        since: lease.as_ref().map(Lease::base),
    };
    match merge::try_merge(&ctx.mirror, candidate).await {
        Ok(merge::Merged::Clean { commit, tree }) => Answer::Merged { commit, tree, onto: onto.clone() },
        Ok(merge::Merged::AlreadyIn { commit }) => Answer::AlreadyIn { commit },
        Ok(merge::Merged::Conflict { files }) => {
            Answer::Conflict { files: files.iter().take(FILES).map(|f| crate::domain::safe::bytes(f)).collect() }
        }
        Ok(merge::Merged::Error { text }) => Answer::Failed { why: text },
        Err(e) => Answer::Failed { why: super::chain(&e) },
    }
}

/// `None` when it moved, else where it stands.
async fn move_branch(ctx: &ProjectCtx, into: &str, new: &Oid, old: &Oid) -> Result<Option<Oid>, String> {
    // Done before a crash took the answer.
    if ctx.mirror.branch_tip(into).ok().flatten().as_ref() == Some(new) {
        return Ok(None);
    }
    match merge::move_branch(&ctx.mirror, into, new, Some(old)).await {
        Ok(merge::Moved::Moved) => Ok(None),
        Ok(merge::Moved::Overtaken { now: Some(now) }) => Ok(Some(now)),
        Ok(merge::Moved::Overtaken { now: None }) => Err(format!("the branch {into} is gone")),
        Err(e) => Err(super::chain(&e)),
    }
}

async fn rescue_work(ctx: &ProjectCtx, task: &TaskId, branch: &str, attempt: u32) -> Answer {
    let into = ctx.policy().map(|p| p.merge.into);
    let seen_on = into.and_then(|into| ctx.mirror.branch_tip(&into).ok().flatten());
    let done = match ctx.lease(branch) {
        Some(lease) => rescue::rescue(&lease, &task.path, attempt, seen_on.as_ref()).await,
        None => rescue::rescue_branch(&ctx.mirror, branch, &task.path, attempt),
    };
    match done {
        Ok(proof) => {
            for (name, commit) in proof.refs() {
                tracing::info!(project = %ctx.id, task = %task.path, "kept {} as {name}", commit.short());
            }
            lock(&ctx.proofs).insert(branch.to_owned(), proof);
            Answer::Rescued
        }
        Err(e) => Answer::Failed { why: super::chain(&e) },
    }
}

async fn give_back(ctx: &ProjectCtx, task: &TaskId, epoch: Epoch, branch: &str) -> Answer {
    let Some(lease) = ctx.lease(branch) else { return Answer::GivenBack };
    let proof = lock(&ctx.proofs).remove(branch).filter(|p| p.place() == Some(lease.path()));
    let proof = match proof {
        Some(proof) => proof,
        None => {
            let attempt = u32::try_from(epoch.0).unwrap_or(u32::MAX);
            if let Answer::Failed { why } = rescue_work(ctx, task, branch, attempt).await {
                return Answer::Failed { why };
            }
            match lock(&ctx.proofs).remove(branch) {
                Some(proof) => proof,
                None => return Answer::Failed { why: "its work could not be kept".into() },
            }
        }
    };
    match ctx.pool.give_back(lease, &proof).await {
        Ok(()) => {
            lock(&ctx.leases).remove(branch);
            lock(&ctx.leftovers).remove(branch);
            Answer::GivenBack
        }
        Err(crate::git::pool::PoolError::SetAside { n, reason }) => {
            // The pool keeps it apart and tries again; nothing more can be done for this task.
            tracing::error!(project = %ctx.id, task = %task.path, worktree = n, "a worktree was set aside: {reason}");
            lock(&ctx.leases).remove(branch);
            Answer::GivenBack
        }
        Err(e) => Answer::Failed { why: super::chain(&e) },
    }
}

fn project_ask(shared: &Arc<Shared>, ctx: &Arc<ProjectCtx>, epoch: Epoch, what: ProjectAsk) {
    let op = match what {
        ProjectAsk::Edit { id, path, edit, retry } => StateOp::Edit { epoch, id, path, edit, retry },
        // The loop has added the rows; an ask without them is answered there.
        ProjectAsk::PublishBoard => return,
        other => {
            let (shared, ctx) = (shared.clone(), ctx.clone());
            tokio::spawn(async move {
                let long = matches!(other, ProjectAsk::RunCheck(_) | ProjectAsk::StopCheck { .. });
                let _place = if long { None } else { shared.hands.acquire().await.ok() };
                let silent = matches!(other, ProjectAsk::StopCheck { .. });
                let answer = match guarded(project_hand(&shared, &ctx, epoch, other)).await {
                    Ok(answer) => answer,
                    Err(_) if silent => None,
                    Err(why) => Some(SideAnswer::Failed { why }),
                };
                if let Some(answer) = answer {
                    shared.send(Event::Side { project: ctx.id.clone(), epoch, answer });
                }
            });
            return;
        }
    };
    let _ = ctx.ops.send(op);
}

async fn project_hand(
    shared: &Arc<Shared>,
    ctx: &Arc<ProjectCtx>,
    epoch: Epoch,
    what: ProjectAsk,
) -> Option<SideAnswer> {
    let failed = |why: String| SideAnswer::Failed { why };
    Some(match what {
        ProjectAsk::PrepareTarget { base, into } => {
            super::target::prepare(ctx, &base, &into).await.unwrap_or_else(failed)
        }
        ProjectAsk::RunCheck(order) => {
            super::runs::run_side(shared, ctx, epoch, *order).await;
            return None;
        }
        ProjectAsk::StopCheck { run, stage } => {
            super::runs::stop(shared, &run, stage).await;
            return None;
        }
        ProjectAsk::MoveTarget { into, new, old } => match move_branch(ctx, &into, &new, &old).await {
            Ok(None) => SideAnswer::TargetMoved,
            Ok(Some(_)) => SideAnswer::TargetOvertaken,
            Err(why) => failed(why),
        },
        ProjectAsk::Deliver { into, tip } => delivery::to_user(ctx, &into, tip).await,
        ProjectAsk::Land { base, into: _, tip } => delivery::land(ctx, &base, &tip).await,
        ProjectAsk::Edit { .. } | ProjectAsk::PublishBoard => return None,
    })
}
