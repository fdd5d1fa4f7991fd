//! Where news comes from: the person's folder of the state repo (watched, with a poll behind it for lost events), the state
//! remote (polled), and signals. A watch that cannot be had is said once and polled for instead.

#![expect(clippy::disallowed_methods, reason = "saves that come together are gathered for a moment")]

use super::Shared;
use super::lock::Anchor;
use super::project::{ProjectCtx, lock};
use super::state_worker::StateOp;
use crate::decide::Event;
use notify::{RecursiveMode, Watcher as _};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;

/// What people write in a task's folder.
const WISH: &str = "README.md";
/// The poll behind the watch, and the pace without one.
const POLL: Duration = Duration::from_secs(30);
const POLL_UNWATCHED: Duration = Duration::from_secs(5);
/// Saves that come together are read together.
const SETTLE: Duration = Duration::from_millis(25);
/// Folders watched at most, by a share of what the system lets one user watch; more are polled for.
const FOLDERS: usize = 50_000;
const SHARE: usize = 4;

/// Watches one project until the daemon ends. Gives whether it is watched.
pub(super) fn watch(shared: &Arc<Shared>, ctx: &Arc<ProjectCtx>) -> bool {
    let (wake, mut wakes) = mpsc::channel::<()>(1);
    let touched = Arc::new(Mutex::new(Touched::default()));
    let watcher = match start_watch(&ctx.state_folder, wake, touched.clone()) {
        Ok(watcher) => Some(watcher),
        Err(why) => {
            tracing::warn!(project = %ctx.id, "{why}; polling every {} s instead", POLL_UNWATCHED.as_secs());
            None
        }
    };
    let watched = watcher.is_some();
    let (ops, closed, ctx) = (ctx.ops.clone(), shared.closed.subscribe(), ctx.clone());
    tokio::spawn(async move {
        let mut closed = closed;
        let mut watcher = watcher;
        let pace = if watched { POLL } else { POLL_UNWATCHED };
        let mut poll = tokio::time::interval(pace);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        poll.tick().await;
        loop {
            tokio::select! {
                _ = closed.changed() => return,
                Some(()) = wakes.recv() => {
                    tokio::time::sleep(SETTLE).await;
                    while wakes.try_recv().is_ok() {}
                    let touched = std::mem::take(&mut *lock(&touched));
                    if let Some(op) = touched.op(&ctx.state_folder, watcher.as_mut()) {
                        let _ = ops.send(op);
                    }
                }
                _ = poll.tick() => {
                    let op = if ctx.state.remote().is_some() { StateOp::Fetch } else { StateOp::Look { whole: false } };
                    let _ = ops.send(op);
                }
            }
        }
    });
    watched
}

/// Asks the remote often while there is one: other machines queue work there.
pub(super) fn poll_remote(shared: &Arc<Shared>, ctx: &Arc<ProjectCtx>, pace: Duration) {
    if ctx.state.remote().is_none() {
        return;
    }
    let (ops, mut closed) = (ctx.ops.clone(), shared.closed.subscribe());
    tokio::spawn(async move {
        let mut poll = tokio::time::interval(pace);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = closed.changed() => return,
                _ = poll.tick() => drop(ops.send(StateOp::Fetch)),
            }
        }
    });
}

/// A watch on the folders of tasks and on the branch, never on what the daemon itself reads all the time.
fn start_watch(
    folder: &Path,
    wake: mpsc::Sender<()>,
    touched: Arc<Mutex<Touched>>,
) -> Result<notify::RecommendedWatcher, String> {
    let words = |e: notify::Error| match &e.kind {
        // inotify says "no space left on device" when it means watches.
        notify::ErrorKind::MaxFilesWatch => "no inotify watches are left (see fs.inotify.max_user_watches)".to_owned(),
        notify::ErrorKind::Io(io) if io.raw_os_error() == Some(28) => {
            "no inotify watches are left (see fs.inotify.max_user_watches)".to_owned()
        }
        notify::ErrorKind::Io(io) if io.raw_os_error() == Some(24) => {
            "no inotify instances are left (see fs.inotify.max_user_instances)".to_owned()
        }
        _ => format!("the state folder cannot be watched: {e}"),
    };
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        {
            let mut touched = lock(&touched);
            match event {
                // Our own reads are events too; they say nothing new.
                Ok(event) if event.kind.is_access() => return,
                Ok(event) if !event.need_rescan() => touched.paths.extend(event.paths),
                Ok(_) | Err(_) => touched.lost = true,
            }
        }
        // A full channel holds a wake-up already.
        let _ = wake.try_send(());
    })
    .map_err(words)?;
    let git = folder.join(".git");
    for place in [folder.join("tasks"), git.clone(), git.join("refs/heads")] {
        if place.is_dir() {
            watcher.watch(&place, RecursiveMode::NonRecursive).map_err(words)?;
        }
    }
    let below = folders_below(&folder.join("tasks"));
    if below.len() > most_folders() {
        return Err(format!("{} task folders are more than are watched", below.len()));
    }
    for place in below {
        watcher.watch(&place, RecursiveMode::NonRecursive).map_err(words)?;
    }
    Ok(watcher)
}

/// What the watch saw since it was last asked.
#[derive(Default)]
struct Touched {
    paths: BTreeSet<PathBuf>,
    /// Events were lost: anything may have changed.
    lost: bool,
}

impl Touched {
    /// What to look at. New folders are watched from now on, and looked at as a whole: a file that was written right
    /// after its folder was made loses its event.
    fn op(self, folder: &Path, mut watcher: Option<&mut notify::RecommendedWatcher>) -> Option<StateOp> {
        let mut watch = |place: &Path| {
            if let Some(watcher) = &mut watcher {
                // Watching twice is no second watch; one that cannot be had is covered by the poll.
                let _ = watcher.watch(place, RecursiveMode::NonRecursive);
            }
        };
        let tasks = folder.join("tasks");
        if self.lost || self.paths.contains(&tasks) {
            folders_below(&tasks).iter().for_each(|place| watch(place));
            return Some(StateOp::Look { whole: false });
        }
        let mut files = BTreeSet::new();
        let mut branches = false;
        for path in self.paths {
            branches |= !path.starts_with(&tasks);
            if path.starts_with(&tasks) && path.is_dir() {
                let mut below = folders_below(&path);
                below.push(path);
                for place in below {
                    watch(&place);
                    files.extend(from_top(folder, &place.join(WISH)));
                }
            } else if path.starts_with(&tasks) && path.file_name().is_some_and(|name| name == WISH) {
                // Everything else there is written by the daemon.
                files.extend(from_top(folder, &path));
            }
        }
        (branches || !files.is_empty()).then_some(StateOp::Touched(files))
    }
}

fn from_top(folder: &Path, path: &Path) -> Option<Vec<u8>> {
    Some(path.strip_prefix(folder).ok()?.as_os_str().as_bytes().to_vec())
}

/// How many folders are watched at most.
fn most_folders() -> usize {
    let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").ok();
    limit.and_then(|text| text.trim().parse::<usize>().ok()).map_or(FOLDERS, |limit| FOLDERS.min(limit / SHARE))
}

/// All folders below, links not followed.
fn folders_below(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                open.push(entry.path());
                found.push(entry.path());
            }
        }
        if found.len() > FOLDERS * 2 {
            return found;
        }
    }
    found
}

/// Wakes the loop, which looks whether they are still there, when an anchor is touched. `None` without a watch.
pub(super) fn watch_anchors(shared: &Arc<Shared>, anchors: &[Anchor]) -> Option<notify::RecommendedWatcher> {
    let shared = shared.clone();
    let touched = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|e| !e.kind.is_access()) {
            shared.send(Event::Wake);
        }
    };
    let mut watcher = notify::recommended_watcher(touched).ok()?;
    for anchor in anchors {
        watcher.watch(anchor.path(), RecursiveMode::NonRecursive).ok()?;
    }
    Some(watcher)
}

/// Signals as events: TERM leaves agents running, INT (in the foreground) stops them, HUP reads the configuration afresh.
pub(super) fn signals(
    shared: &Arc<Shared>,
    foreground: bool,
    reload: mpsc::UnboundedSender<()>,
) -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let shared = shared.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            match signal {
                SIGHUP => drop(reload.send(())),
                SIGINT => shared.send(Event::Terminate { stop_agents: foreground }),
                _ => shared.send(Event::Terminate { stop_agents: false }),
            }
        }
    })?;
    Ok(())
}
