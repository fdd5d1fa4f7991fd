//! What leaves for the person's repository: the branch with the finished work, as it grows, and on their word the base.

use super::project::ProjectCtx;
use crate::decide::event::SideAnswer;
use crate::domain::Oid;
use crate::git::{deliver, land};

/// Brings the branch `into` in the person's repository to `tip`. What was delivered last is noted beside the mirror: the next delivery moves the branch only from there.
pub(super) async fn to_user(ctx: &ProjectCtx, into: &str, tip: Oid) -> SideAnswer {
    let file = ctx.data.join("delivered");
    let note = |tips: &[&Oid]| {
        let line: Vec<&str> = std::iter::once(into).chain(tips.iter().map(|t| t.as_str())).collect();
        crate::config::files::write_whole(&file, format!("{}\n", line.join(" ")).as_bytes())
    };
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let mut words = text.split_whitespace();
    let ours: Vec<Oid> =
        if words.next() == Some(into) { words.filter_map(|w| Oid::parse(w).ok()).collect() } else { vec![] };
    let there = match ctx.mirror.user_tip(&format!("refs/heads/{into}")).await {
        Ok(there) => there,
        Err(e) => return SideAnswer::NotDelivered { tip, why: super::chain(&e) },
    };
    // Two stand there after a crash between the move and its note. A branch that the person deleted is made anew.
    let old = there.as_ref().and_then(|there| ours.iter().find(|o| *o == there).or(ours.first()));
    let done = async {
        note(&old.into_iter().chain([&tip]).collect::<Vec<_>>()).map_err(|e| super::chain(&e))?;
        let done = deliver::deliver(&ctx.mirror, into, &tip, old).await.map_err(|e| super::chain(&e))?;
        let now = match done {
            deliver::Delivered::Done | deliver::Delivered::Already => Some(&tip),
            deliver::Delivered::CheckedOut { .. } | deliver::Delivered::MovedThere { .. } => old,
        };
        note(&now.into_iter().collect::<Vec<_>>()).map_err(|e| super::chain(&e))?;
        Ok::<_, String>(done)
    };
    match done.await {
        Ok(deliver::Delivered::Done | deliver::Delivered::Already) => SideAnswer::Delivered { tip },
        Ok(deliver::Delivered::CheckedOut { at }) => {
            let why = format!("{into} is checked out in {}; it is left there as it is", at.display());
            SideAnswer::NotDelivered { tip, why }
        }
        Ok(deliver::Delivered::MovedThere { now }) => {
            let now = now.map_or_else(|| "gone".into(), |o| o.short().to_owned());
            let why = format!(
                "{into} was moved in your repository (to {now}) and is left as it is; delete it there to have it made anew"
            );
            SideAnswer::NotDelivered { tip, why }
        }
        Err(why) => SideAnswer::NotDelivered { tip, why },
    }
}

/// Moves the person's base forward to `tip`, where that is all there is to do.
pub(super) async fn land(ctx: &ProjectCtx, base: &str, tip: &Oid) -> SideAnswer {
    let refused = |why: String| SideAnswer::LandRefused { why };
    match land::land(&ctx.mirror, base, tip).await {
        Ok(land::Landed::Forward { at, .. }) => {
            let how = at.map_or_else(
                || "fast-forward".into(),
                |at| format!("fast-forward, and the checkout in {}", at.display()),
            );
            SideAnswer::Landed { base: base.to_owned(), tip: tip.clone(), how }
        }
        Ok(land::Landed::Already) => {
            SideAnswer::Landed { base: base.to_owned(), tip: tip.clone(), how: "it was there already".into() }
        }
        Ok(land::Landed::NotForward { base: at }) => {
            refused(format!("{base} has moved on to {} meanwhile; try again", at.short()))
        }
        Ok(land::Landed::Dirty { at, files }) => {
            let names: Vec<String> = files.iter().take(5).map(|f| crate::domain::safe::bytes(f)).collect();
            refused(format!(
                "{} has uncommitted changes ({}); commit or stash them first",
                at.display(),
                names.join(", ")
            ))
        }
        Ok(land::Landed::Busy { at, what }) => refused(format!("{} cannot be updated now: {what}", at.display())),
        Ok(land::Landed::Refused { at, text }) => refused(format!("git did not update {}: {text}", at.display())),
        Err(e) => refused(super::chain(&e)),
    }
}
