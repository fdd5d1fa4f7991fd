//! Bringing the target branch up to date with the base, in the mirror: made, moved on, joined, or begun anew when the base
//! has taken its content in by another way (a squashed pull request).

use super::hands::tree_of;
use super::project::ProjectCtx;
use crate::decide::event::SideAnswer;
use crate::domain::status::{Reason, ReasonClass};
use crate::domain::{Oid, TaskPath};
use crate::git::{land, merge, rescue};

/// Looks at both branches and does what can be done without a check.
pub(super) async fn prepare(ctx: &ProjectCtx, base: &str, into: &str) -> Result<SideAnswer, String> {
    let words = |e: &dyn std::error::Error| super::chain(e);
    ctx.mirror.refresh().await.map_err(|e| words(&e))?;
    for restored in ctx.mirror.take_restored() {
        tracing::warn!(project = %ctx.id, "{} of the mirror was changed from outside and is restored", restored.path.display());
    }
    let base_tip = match ctx.mirror.base_tip(base) {
        Ok(tip) => tip,
        Err(e) => {
            return Ok(blocked(ReasonClass::Infra, format!("the base branch {base} cannot be used: {}", words(&e))));
        }
    };
    let Some(tip) = ctx.mirror.branch_tip(into).map_err(|e| words(&e))? else {
        return move_to(ctx, into, &base_tip, None, &base_tip).await;
    };
    let (behind, ahead) = {
        let odb = ctx.mirror.odb().map_err(|e| words(&e))?;
        let behind = odb.is_ancestor(&tip, &base_tip).map_err(|e| words(&e))?;
        (behind, odb.is_ancestor(&base_tip, &tip).map_err(|e| words(&e))?)
    };
    if ahead {
        return ready(ctx, tip, base_tip);
    }
    if behind {
        return move_to(ctx, into, &base_tip, Some(&tip), &base_tip).await;
    }
    if land::squashed(&ctx.mirror, &base_tip, &tip).await.map_err(|e| words(&e))? {
        // Its content is in the base already, in other commits: the old tip is kept and the branch begins anew.
        if let Ok(task) = TaskPath::parse("integration") {
            rescue::rescue_branch(&ctx.mirror, into, &task, 0).map_err(|e| words(&e))?;
        }
        tracing::info!(project = %ctx.id, "{base} holds what {into} held; {into} begins anew from it");
        return move_to(ctx, into, &base_tip, Some(&tip), &base_tip).await;
    }
    let message = format!("Merge {base} into {into}\n");
    match merge::try_merge_base(&ctx.mirror, &tip, &base_tip, &message, &ctx.who()).await.map_err(|e| words(&e))? {
        merge::Merged::Clean { commit, tree } => {
            Ok(SideAnswer::TargetNeedsMerge { commit, tree, onto: tip, base: base_tip })
        }
        merge::Merged::AlreadyIn { .. } => ready(ctx, tip, base_tip),
        merge::Merged::Conflict { files } => {
            let names: Vec<String> = files.iter().take(8).map(|f| crate::domain::safe::bytes(f)).collect();
            let text = format!("{base} moved on and conflicts with {into} in {}", names.join(", "));
            Ok(blocked(ReasonClass::MergeConflict, text))
        }
        merge::Merged::Error { text } => Ok(blocked(ReasonClass::MergeError, text)),
    }
}

async fn move_to(ctx: &ProjectCtx, into: &str, new: &Oid, old: Option<&Oid>, base: &Oid) -> Result<SideAnswer, String> {
    match merge::move_branch(&ctx.mirror, into, new, old).await {
        Ok(merge::Moved::Moved) => ready(ctx, new.clone(), base.clone()),
        Ok(merge::Moved::Overtaken { .. }) => Err(format!("{into} was moved while it was looked at")),
        Err(e) => Err(super::chain(&e)),
    }
}

fn ready(ctx: &ProjectCtx, tip: Oid, base: Oid) -> Result<SideAnswer, String> {
    let tree = tree_of(ctx, &tip).ok_or_else(|| format!("commit {} cannot be read", tip.short()))?;
    Ok(SideAnswer::TargetReady { tip, base, tree })
}

fn blocked(class: ReasonClass, text: String) -> SideAnswer {
    SideAnswer::TargetBlocked { reason: Reason::new(class, text) }
}
