//! What an attempt changed that the project's rules hold for a person's yes: removed tests and files by pattern.

use super::project::ProjectCtx;
use crate::domain::Oid;
use crate::domain::policy::Protect;
use crate::domain::safe;
use crate::git::collect::Collected;
use crate::git::odb::{ChangeKind, ChangedFile, Odb, OdbError};
use crate::text::test_loss::{self, FileChange};
use std::os::unix::ffi::OsStrExt as _;

/// Files that are named at most.
const NAMED: usize = 10;
/// Larger files are not searched for tests, in bytes, and no more than so many.
const FILE: usize = 1 << 20;
const FILES: usize = 1000;

/// Ends of a sentence about the work ("removes the test file a"), escaped for showing. Reading many files takes its time,
/// so it is done off the loop.
pub(super) async fn found(
    ctx: &ProjectCtx,
    base: &Oid,
    collected: &Collected,
    protect: Protect,
) -> Result<Vec<String>, String> {
    let mirror = ctx.mirror.clone();
    let (base, tip, changed) = (base.clone(), collected.tip.clone(), collected.changed.clone());
    let work = move || {
        let mut out = by_pattern(&changed, &protect.paths)?;
        if protect.tests && !changed.is_empty() {
            let odb = mirror.odb().map_err(|e| super::chain(&e))?;
            out.extend(lost_tests(&odb, &base, &tip, &changed).map_err(|e| super::chain(&e))?);
        }
        let more = out.len().saturating_sub(NAMED);
        out.truncate(NAMED);
        if more > 0 {
            out.push(format!("does so {more} times more"));
        }
        Ok(out)
    };
    tokio::task::spawn_blocking(work).await.map_err(|e| super::chain(&e))?
}

fn by_pattern(changed: &[ChangedFile], patterns: &[String]) -> Result<Vec<String>, String> {
    let mut set = globset::GlobSetBuilder::new();
    for pattern in patterns {
        let glob = globset::GlobBuilder::new(pattern).literal_separator(true).build();
        set.add(glob.map_err(|e| super::chain(&e))?);
    }
    let set = set.build().map_err(|e| super::chain(&e))?;
    let held = |path: &[u8]| set.is_match(std::ffi::OsStr::from_bytes(path));
    let touches =
        |file: &ChangedFile| held(&file.path) || matches!(&file.kind, ChangeKind::Renamed { from } if held(from));
    Ok(changed.iter().filter(|f| touches(f)).map(|f| format!("changes {}", safe::bytes(&f.path))).collect())
}

fn lost_tests(odb: &Odb, base: &Oid, tip: &Oid, changed: &[ChangedFile]) -> Result<Vec<String>, OdbError> {
    let mut texts = Vec::new();
    for file in changed.iter().filter(|f| !f.gitlink).take(FILES) {
        let counted = test_loss::is_counted(&file.path);
        let read = |commit: &Oid, path: &[u8]| -> Result<Option<Vec<u8>>, OdbError> {
            let blob = if counted { odb.blob_at(commit, path)? } else { None };
            Ok(blob.filter(|b| b.len() <= FILE))
        };
        let old = if let ChangeKind::Renamed { from } = &file.kind { from } else { &file.path };
        texts.push((file, read(base, old)?, read(tip, &file.path)?));
    }
    let changes: Vec<_> = texts
        .iter()
        .map(|(file, before, after)| FileChange {
            path: &file.path,
            removed: file.kind == ChangeKind::Deleted,
            added: file.kind == ChangeKind::Added,
            before: before.as_deref(),
            after: after.as_deref(),
        })
        .collect();
    Ok(test_loss::lost(&changes))
}
