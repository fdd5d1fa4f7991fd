//! What an attempt changed that the project's rules hold for a person's yes: removed tests and files by pattern.

use super::project::ProjectCtx;
use crate::domain::Oid;
use crate::domain::policy::Protect;
use crate::domain::safe;
use crate::git::collect::Collected;
use crate::git::odb::{ChangeKind, ChangedFile, Odb, OdbError};
use crate::text::test_loss::{self, FileChange};
use gix::glob::{Pattern, pattern::Case, wildmatch};

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
        let mut out = by_pattern(&changed, &protect.paths);
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

/// Patterns mean what they mean in `.gitignore`, see gitignore(5): a name matches at any depth, a folder all that it holds.
fn by_pattern(changed: &[ChangedFile], patterns: &[String]) -> Vec<String> {
    let patterns: Vec<_> = patterns.iter().filter_map(|p| Pattern::from_bytes_without_negation(p.as_bytes())).collect();
    let held = |path: &[u8]| {
        let ends = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at).chain([path.len()]);
        ends.into_iter().any(|end| {
            let part = &path[..end];
            let name = part.iter().rposition(|b| *b == b'/').map(|at| at + 1);
            let is_dir = Some(end < path.len());
            let mode = wildmatch::Mode::NO_MATCH_SLASH_LITERAL;
            patterns.iter().any(|p| p.matches_repo_relative_path(part.into(), name, is_dir, Case::Sensitive, mode))
        })
    };
    let touches =
        |file: &ChangedFile| held(&file.path) || matches!(&file.kind, ChangeKind::Renamed { from } if held(from));
    changed.iter().filter(|f| touches(f)).map(|f| format!("changes {}", safe::bytes(&f.path))).collect()
}

fn lost_tests(odb: &Odb, base: &Oid, tip: &Oid, changed: &[ChangedFile]) -> Result<Vec<String>, OdbError> {
    let mut texts = Vec::new();
    let mut read_yet = 0;
    // That a file was removed is seen without reading it, however many there are.
    for file in changed.iter().filter(|f| !f.gitlink) {
        let counted = test_loss::is_counted(&file.path) && read_yet < FILES;
        read_yet += usize::from(counted);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_gitignore() {
        let held = |path: &str, patterns: &[&str]| {
            let file = ChangedFile { path: path.into(), kind: ChangeKind::Modified, gitlink: false };
            let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
            !by_pattern(&[file], &patterns).is_empty()
        };
        for (path, pattern) in [
            ("Cargo.lock", "*.lock"),
            ("a/b/Cargo.lock", "*.lock"),
            (".github/workflows/ci.yml", ".github/"),
            (".github/workflows/ci.yml", ".github"),
            ("ci/deep/build.yml", "ci/**"),
            ("a/ci/build.yml", "**/ci/*.yml"),
            ("Makefile", "/Makefile"),
            ("x/secret/y", "secret"),
        ] {
            assert!(held(path, &["other", pattern]), "{path} {pattern}");
        }
        for (path, pattern) in [
            ("a/Makefile", "/Makefile"),
            ("ci/deep/build.yml", "ci/*.yml"),
            ("github", ".github/"),
            ("lock", "*.lock"),
            ("a", "a/"),
        ] {
            assert!(!held(path, &[pattern]), "{path} {pattern}");
        }
    }
}
