//! What is kept of the past, and for how long: run folders of ended tasks by age and number, the journal by the store's own
//! formula. Looked at once, at the daemon's start.
//!
//! At most `RUNS` run folders of ended tasks stay, and none older than `AGE`; those of open tasks always stay. A folder
//! holds at most its transcript's cap (`[limits] transcript`) and some kilobytes. The prompt that a run was given as a file
//! goes with it.

#![expect(clippy::disallowed_methods, reason = "the age of files is theirs by the wall clock")]

use super::{Shared, chain};
use crate::decide::Board;
use crate::domain::RunId;
use crate::store::Keep;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Run folders of ended tasks that stay.
const RUNS: usize = 2000;
/// How long one stays.
const AGE: Duration = Duration::from_secs(14 * 86_400);

/// A prompt's file is there a moment before its run's folder is.
const START: Duration = Duration::from_secs(3600);

/// Forgets what is past its time, off the loop. `over` are the runs that have ended.
pub(super) fn prune(shared: &Arc<Shared>, board: &Board, over: Vec<RunId>) {
    let open: BTreeSet<String> = board.tasks.keys().map(|id| format!("{}.{}.", id.project, id.path.dotted())).collect();
    let briefs: Vec<PathBuf> = board.projects.keys().map(|id| shared.places.project(id).join("briefs")).collect();
    let shared = shared.clone();
    tokio::spawn(async move {
        let now = crate::host::clock::now();
        if let Err(e) = shared.store.prune(&Keep::default(), now.wall).await {
            tracing::warn!("old journal lines stay for now: {}", chain(&e));
        }
        let removed = tokio::task::spawn_blocking(move || {
            let old = past_their_time(&shared, &open, over);
            let count = old.len();
            for run in old {
                if let Err(e) = shared.runs.remove(&run) {
                    tracing::warn!(%run, "{}", chain(&e));
                }
            }
            for folder in briefs {
                drop_prompts(&folder, &shared.places.runs());
            }
            count
        });
        if let Ok(count @ 1..) = removed.await {
            tracing::info!(count, "old run folders were removed");
        }
    });
}

fn past_their_time(shared: &Shared, open: &BTreeSet<String>, over: Vec<RunId>) -> Vec<RunId> {
    let age = |run: &RunId| age(&shared.places.runs().join(run.as_str()));
    let is_open = |run: &RunId| open.iter().any(|prefix| run.as_str().starts_with(prefix.as_str()));
    let mut ended: Vec<(Duration, RunId)> =
        over.into_iter().filter(|run| !is_open(run)).map(|run| (age(&run), run)).collect();
    ended.sort();
    ended.into_iter().enumerate().filter(|(n, (age, _))| *n >= RUNS || *age > AGE).map(|(_, (_, run))| run).collect()
}

/// Time since the last change; none where that cannot be told.
fn age(path: &Path) -> Duration {
    let changed = path.metadata().and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
    SystemTime::now().duration_since(changed).unwrap_or_default()
}

/// Removes the prompts in `briefs` whose run has no folder in `runs` any more.
fn drop_prompts(briefs: &Path, runs: &Path) {
    for entry in std::fs::read_dir(briefs).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let Some(run) = name.to_str().and_then(|n| n.strip_suffix(".prompt")) else { continue };
        let is_over = matches!(runs.join(run).try_exists(), Ok(false)) && age(&path) > START;
        if is_over && let Err(e) = std::fs::remove_file(&path) {
            tracing::warn!("{} stays for now: {e}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_goes_with_its_runs_folder() {
        let top = tempfile::tempdir().unwrap();
        let (briefs, runs) = (top.path().join("briefs"), top.path().join("runs"));
        for folder in [&briefs, &runs.join("p.a.1.agent")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let old = SystemTime::now() - START * 2;
        for (name, is_old) in
            [("p.a.1.agent.prompt", true), ("p.b.1.agent.prompt", true), ("p.c.1.agent.prompt", false), ("b.md", true)]
        {
            let file = std::fs::File::create(briefs.join(name)).unwrap();
            if is_old {
                file.set_modified(old).unwrap();
            }
        }
        drop_prompts(&briefs, &runs);
        let mut left: Vec<_> = std::fs::read_dir(&briefs).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["b.md", "p.a.1.agent.prompt", "p.c.1.agent.prompt"]);
    }
}
