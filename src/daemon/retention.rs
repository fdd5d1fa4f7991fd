//! What is kept of the past, and for how long: run folders of ended tasks by age and number, the journal by the store's own
//! formula. Looked at once, at the daemon's start.
//!
//! At most `RUNS` run folders of ended tasks stay, and none older than `AGE`; those of open tasks always stay. A folder
//! holds at most its transcript's cap (`[limits] transcript`) and some kilobytes.

#![expect(clippy::disallowed_methods, reason = "the age of files is theirs by the wall clock")]

use super::{Shared, chain};
use crate::decide::Board;
use crate::domain::RunId;
use crate::store::Keep;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Run folders of ended tasks that stay.
const RUNS: usize = 2000;
/// How long one stays.
const AGE: Duration = Duration::from_secs(14 * 86_400);

/// Forgets what is past its time, off the loop. `over` are the runs that have ended.
pub(super) fn prune(shared: &Arc<Shared>, board: &Board, over: Vec<RunId>) {
    let open: BTreeSet<String> = board.tasks.keys().map(|id| format!("{}.{}.", id.project, id.path.dotted())).collect();
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
            count
        });
        if let Ok(count @ 1..) = removed.await {
            tracing::info!(count, "old run folders were removed");
        }
    });
}

fn past_their_time(shared: &Shared, open: &BTreeSet<String>, over: Vec<RunId>) -> Vec<RunId> {
    let age = |run: &RunId| {
        let folder = shared.places.runs().join(run.as_str());
        let changed = folder.metadata().and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
        SystemTime::now().duration_since(changed).unwrap_or_default()
    };
    let is_open = |run: &RunId| open.iter().any(|prefix| run.as_str().starts_with(prefix.as_str()));
    let mut ended: Vec<(Duration, RunId)> =
        over.into_iter().filter(|run| !is_open(run)).map(|run| (age(&run), run)).collect();
    ended.sort();
    ended.into_iter().enumerate().filter(|(n, (age, _))| *n >= RUNS || *age > AGE).map(|(_, (_, run))| run).collect()
}
