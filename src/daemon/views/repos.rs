//! What the repositories say: what landing would bring, and what is kept of attempts that were not merged.

use super::super::chain;
use super::super::project::ProjectCtx;
use super::super::turn::Ring;
use super::{key, unknown_project};
use crate::domain::{Oid, TaskId, TaskPath};
use crate::git::{land, rescue};
use crate::protocol::reply::{ErrorKind, Failure};
use crate::protocol::view::{DiffView, FileLine, RescueView};
use crate::protocol::{Reply, Request};
use futures::future::{self, BoxFuture, FutureExt as _};

/// The answer to what is asked of a repository. It may take git's own time, so it is worked out beside the ring, from what
/// the board says now.
pub(in super::super) fn answer(ring: &Ring, request: &Request) -> Option<BoxFuture<'static, Reply>> {
    let (Request::Diff { project, .. } | Request::Rescues { project, .. } | Request::Undo { project, .. }) = request
    else {
        return None;
    };
    let Some(ctx) = ring.shared.project(project) else {
        return Some(future::ready(unknown_project(project)).boxed());
    };
    Some(match request.clone() {
        Request::Diff { path: None, patch, .. } => async move { diff(&ctx, patch).await }.boxed(),
        Request::Diff { path: Some(path), patch, project } => {
            let task = key(&project, &path);
            let open = ring.board.tasks.get(&task);
            let known = open.is_some() || ring.board.ended.contains_key(&task);
            let began = open.and_then(|t| Some(t.worktree.as_ref()?.base.clone()));
            async move { task_diff(&ctx, &task, known, began, patch).await }.boxed()
        }
        Request::Undo { path, attempt, .. } => async move { undo(&ctx, &path, attempt).await }.boxed(),
        Request::Rescues { path, .. } => async move { Reply::Rescues { rescues: rescues(&ctx, &path) } }.boxed(),
        _ => return None,
    })
}

pub(super) fn rescues(ctx: &ProjectCtx, path: &TaskPath) -> Vec<RescueView> {
    let kept = rescue::rescues(&ctx.mirror, path).unwrap_or_default();
    kept.into_iter()
        .map(|k| {
            let attempt =
                k.name.rsplit('/').next().and_then(|n| n.split(['-', '.']).next()).and_then(|n| n.parse().ok());
            RescueView { name: k.name, commit: k.commit, attempt }
        })
        .collect()
}

async fn diff(ctx: &ProjectCtx, patch: bool) -> Reply {
    let Some(policy) = ctx.policy() else {
        return Reply::error(ErrorKind::WrongState, "the project has no approved configuration");
    };
    match diff_of(ctx, &policy.base, &policy.merge.into, patch).await {
        Ok(view) => Reply::Diff(view),
        Err(e) => Reply::error(ErrorKind::Failed, e),
    }
}

async fn diff_of(ctx: &ProjectCtx, base: &str, into: &str, patch: bool) -> Result<DiffView, String> {
    let words = |e: &dyn std::error::Error| chain(e);
    ctx.mirror.refresh().await.map_err(|e| words(&e))?;
    let from = ctx.mirror.base_tip(base).map_err(|e| words(&e))?;
    let empty = || DiffView { base: base.to_owned(), into: into.to_owned(), files: vec![], patch: None };
    let Some(tip) = ctx.mirror.branch_tip(into).map_err(|e| words(&e))? else { return Ok(empty()) };
    let (from, tip) = land::would_land(&ctx.mirror, &from, &tip).await.map_err(|e| words(&e))?;
    let (files, patch) = changes(ctx, &from, &tip, patch).await?;
    Ok(DiffView { files, patch, ..empty() })
}

/// What one task's branch holds beside what it started from.
async fn task_diff(ctx: &ProjectCtx, task: &TaskId, known: bool, began: Option<Oid>, patch: bool) -> Reply {
    let branch = task.path.branch();
    let tip = match ctx.mirror.branch_tip(&branch) {
        Ok(Some(tip)) => tip,
        Ok(None) if known => {
            let text = format!("{} has no branch: it has not begun, or it is over and its branch is gone", task.path);
            return Reply::Error(Failure {
                kind: ErrorKind::WrongState,
                message: text,
                hint: Some(format!("`overnight rescues {}` shows what is kept of it", task.path)),
            });
        }
        Ok(None) => return super::not_found(task),
        Err(e) => return Reply::error(ErrorKind::Failed, chain(&e)),
    };
    match task_diff_of(ctx, &tip, began, patch).await {
        Ok((base, (files, patch))) => {
            Reply::Diff(DiffView { base: base.short().to_owned(), into: branch, files, patch })
        }
        Err(e) => Reply::error(ErrorKind::Failed, e),
    }
}

async fn task_diff_of(ctx: &ProjectCtx, tip: &Oid, began: Option<Oid>, patch: bool) -> Result<(Oid, Changes), String> {
    // Where it meets the target: what was merged into its branch meanwhile is not its own.
    let into = ctx.policy().map(|policy| policy.merge.into);
    let met = || -> Result<Option<Oid>, Box<dyn std::error::Error>> {
        let Some(into) = &into else { return Ok(None) };
        let Some(target) = ctx.mirror.branch_tip(into)? else { return Ok(None) };
        Ok(ctx.mirror.odb()?.merge_base(&target, tip)?)
    };
    let met = met().map_err(|e| chain(e.as_ref()))?.filter(|met| met != tip);
    let base = met.or(began).unwrap_or_else(|| tip.clone());
    let changes = changes(ctx, &base, tip, patch).await?;
    Ok((base, changes))
}

type Changes = (Vec<FileLine>, Option<String>);

async fn changes(ctx: &ProjectCtx, from: &Oid, tip: &Oid, patch: bool) -> Result<Changes, String> {
    let words = |e: &dyn std::error::Error| chain(e);
    let stat = land::diff_stat(&ctx.mirror, from, tip).await.map_err(|e| words(&e))?;
    let files = stat
        .into_iter()
        .map(|f| FileLine {
            path: crate::domain::safe::bytes(&f.path),
            added: f.lines.map(|l| l.0),
            removed: f.lines.map(|l| l.1),
        })
        .collect();
    let patch = if patch {
        let bytes = land::diff_patch(&ctx.mirror, from, tip).await.map_err(|e| words(&e))?;
        Some(String::from_utf8_lossy(&bytes[..bytes.len().min(2 << 20)]).into_owned())
    } else {
        None
    };
    Ok((files, patch))
}

/// The attempt of a rescue ref, and how much of it the ref holds: what was left uncommitted stands on top of its branch, and
/// other commits and repositories inside are only parts.
fn place(path: &TaskPath, name: &str) -> Option<(u32, u8)> {
    let (_, rest) = name.split_once(&format!("/{}/", path.dotted()))?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let what = rest[end..].split('.').next().unwrap_or_default();
    let rank = match what {
        "-left" => 2,
        "" => 1,
        _ => 0,
    };
    Some((rest[..end].parse().ok()?, rank))
}

async fn undo(ctx: &ProjectCtx, path: &TaskPath, attempt: Option<u32>) -> Reply {
    let kept = rescue::rescues(&ctx.mirror, path).unwrap_or_default();
    let number = |name: &str| place(path, name).map(|(number, _)| number);
    let fits = |k: &&rescue::Kept| attempt.is_none() || number(&k.name) == attempt;
    let wanted = kept.iter().filter(fits).max_by_key(|k| place(path, &k.name));
    let Some(kept) = wanted else {
        let mut numbers: Vec<u32> = kept.iter().filter_map(|k| number(&k.name)).collect();
        numbers.dedup();
        if let (Some(attempt), false) = (attempt, numbers.is_empty()) {
            let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
            let text = format!("attempt {attempt} of {path} is not kept; kept is attempt {}", numbers.join(", "));
            let hint = Some(format!("`overnight rescues {path}` shows them"));
            return Reply::Error(Failure { kind: ErrorKind::NotFound, message: text, hint });
        }
        let hint = Some(format!("`overnight show {path}` says what became of it"));
        return Reply::Error(Failure {
            kind: ErrorKind::NotFound,
            message: format!("nothing is kept of {path} beside what was merged"),
            hint,
        });
    };
    let branch = format!("overnight/undo/{}-{}", path.dotted(), kept.commit.short());
    match crate::git::deliver::deliver(&ctx.mirror, &branch, &kept.commit, None).await {
        Ok(crate::git::deliver::Delivered::Done | crate::git::deliver::Delivered::Already) => {
            Reply::Done { text: format!("{} is back as branch {branch} in {}", kept.name, ctx.code.display()) }
        }
        Ok(other) => Reply::error(ErrorKind::Failed, format!("branch {branch} could not be made: {other}")),
        Err(e) => Reply::error(ErrorKind::Failed, chain(&e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_is_brought_back_whole() {
        let path = TaskPath::parse("a/b").unwrap();
        let mut names = [
            "refs/overnight/rescue/a.b/9-left",
            "refs/overnight/rescue/a.b/10",
            "refs/overnight/rescue/a.b/10-left.2",
            "refs/overnight/rescue/a.b/10-other",
            "refs/overnight/rescue/a.b/10-nested-1/heads/main",
        ];
        names.sort_by_key(|name| place(&path, name));
        assert_eq!(names.last(), Some(&"refs/overnight/rescue/a.b/10-left.2"));
        assert_eq!(place(&path, "refs/overnight/rescue/a.b/10-nested-1/heads/main"), Some((10, 0)));
        assert_eq!(place(&path, "refs/overnight/rescue/other/1"), None);
    }
}
