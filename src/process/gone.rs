//! Runs whose folder was deleted while they lived. Nothing can be known of them any more and no wish reaches them, so they
//! are ended, before anything takes their place: a second agent beside the first would be worse than a lost one. What is
//! left of them is found by the place that they were started with: a shim by its command line, its children by TMPDIR.

use super::adopt::{Found, State};
use super::folder::{Folder, make_dir};
use super::tree::{KEY_VAR, Mark, Proc, RUN_VAR, Sweep};
use super::{Runs, folder_name};
use crate::domain::RunId;
use crate::domain::verdict::{Exit, RunEnd, Survivor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Between TERM and KILL.
const GRACE: Duration = Duration::from_secs(2);
/// Looks for what came up while the last was ended.
const LOOKS: u32 = 5;

/// What lives of one run.
#[derive(Debug, Default)]
struct Left {
    run: Option<String>,
    key: Option<String>,
    shim: Option<Proc>,
}

impl Runs {
    /// Ends what lives of runs without a folder (of `only` that run, where one is given), and gives each the end that it
    /// can have, so that it is never started anew. Blocks for some seconds where there is any.
    pub(super) fn end_gone(&self, only: Option<&RunId>) -> Vec<Found> {
        let mut ended: BTreeMap<RunId, Vec<Survivor>> = BTreeMap::new();
        let mut alive = self.look_for_gone(only);
        for _ in 0..LOOKS {
            if alive.is_empty() {
                break;
            }
            for (run, left) in alive {
                // No process has such a key: then all that descends from the shim goes.
                let key = left.key.unwrap_or_else(|| format!("none of {run}"));
                let shim = left.shim.as_ref().map(|p| p.pid);
                let survivors = Sweep::gentle(Mark { key, shim, session: None }, GRACE).run();
                if let Some(shim) = left.shim {
                    shim.signal(libc::SIGKILL);
                }
                ended.entry(run).or_default().extend(survivors);
            }
            alive = self.look_for_gone(only);
        }
        self.reap();
        ended.retain(|run, _| !alive.contains_key(run));
        ended.into_iter().map(|(run, survivors)| self.bury(run, survivors)).collect()
    }

    /// Whether anything lives of a run without a folder.
    pub(super) fn is_gone_alive(&self, run: &RunId) -> bool {
        !self.look_for_gone(Some(run)).is_empty()
    }

    /// Gives a run that is known to have begun, and of which nothing is there any more, its end. One with a folder is left
    /// alone.
    pub fn settle_missing(&self, run: &RunId) {
        let folder = self.folder_of(run);
        if !folder.has_spec() && !folder.is_started() {
            self.bury(run.clone(), Vec::new());
        }
    }

    fn bury(&self, run: RunId, survivors: Vec<Survivor>) -> Found {
        let tail = "its run folder was deleted before its end was known".to_owned();
        let end = RunEnd { exit: Exit::Lost, took: Duration::ZERO, survivors, tail, bytes: 0, cut: 0 };
        let folder = self.folder_of(&run);
        let written = make_dir(folder.path())
            .and_then(|()| folder.start().map(|_| ()))
            .and_then(|()| folder.write_exit(&end, false));
        let state = match written {
            Ok(()) => State::Dead(end),
            Err(e) => State::Unreadable(e.to_string()),
        };
        Found { run, state }
    }

    fn look_for_gone(&self, only: Option<&RunId>) -> BTreeMap<RunId, Left> {
        let mut all: BTreeMap<PathBuf, Left> = BTreeMap::new();
        let is_ours = |path: &Path| path.parent() == Some(&*self.inner.root);
        for p in Proc::all().into_iter().filter(|p| !p.zombie) {
            let args = p.words("cmdline");
            if let [_, what, path, ..] = &args[..]
                && what == "__shim"
                && is_ours(Path::new(path))
            {
                all.entry(path.into()).or_default().shim = Some(p);
                continue;
            }
            let env = p.words("environ");
            let value = |name: &str| env.iter().find_map(|v| v.strip_prefix(name)?.strip_prefix('='));
            let (Some(run), Some(tmp)) = (value(RUN_VAR), value("TMPDIR")) else { continue };
            if let Some(path) = Path::new(tmp).parent().filter(|path| is_ours(path)) {
                let left = all.entry(path.to_owned()).or_default();
                left.run = Some(run.to_owned());
                left.key = value(KEY_VAR).map(str::to_owned).or(left.key.take());
            }
        }
        let mut gone = BTreeMap::new();
        for (path, left) in all {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let run = RunId::from_folder(left.run.as_deref().unwrap_or(name));
            // A program may have made its temporary folder anew, so it is the order that counts.
            let is_gone = !Folder::at(path.clone()).has_spec();
            let Some(run) = run.filter(|run| is_gone && folder_name(run) == name) else { continue };
            if only.is_none_or(|only| *only == run) {
                gone.insert(run, left);
            }
        }
        gone
    }
}
