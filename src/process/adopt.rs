//! What a start of the daemon finds in the runs folder, and what becomes of it: live runs to follow, ended ones, runs
//! that were ordered and never started, and runs whose shim is gone without a word, which are settled here. Only a
//! held lock says that a shim lives; a process is ours by proof (see `tree`), never by its number.

use super::folder::{Folder, Lock};
use super::transcript;
use super::tree::{Mark, Session, Sweep, ms_per_tick};
use super::{ProcessError, Runs, folder_name, system};
use crate::domain::RunId;
use crate::domain::verdict::{Exit, RunEnd};
use std::io;
use std::time::Duration;

/// Between TERM and KILL for what a lost run left.
const GRACE: Duration = Duration::from_secs(2);
/// Prefix of folders on their way out; no run id begins with it.
const REMOVED: &str = ".removed.";

/// A run folder and what it says.
#[derive(Debug)]
pub struct Found {
    pub run: RunId,
    pub state: State,
}

#[derive(Debug)]
pub enum State {
    /// A shim holds it: follow it.
    Live,
    Ended(RunEnd),
    /// Its shim was gone without a record; what was left of it has been ended, and it counts as lost.
    Dead(RunEnd),
    /// Ordered, and no shim ever took it. It may be spawned, or stopped, which settles it.
    NeverStarted,
    /// Its documents cannot be read (damaged, or of a newer version). Nothing was touched.
    Unreadable(String),
}

impl Runs {
    /// Looks at every run folder, and settles those whose shim is gone; that may block for some seconds each.
    pub fn inventory(&self) -> Result<Vec<Found>, ProcessError> {
        let root = &self.inner.root;
        let error = |source| ProcessError::List { path: root.clone(), source };
        self.reap();
        let mut found = self.end_gone(None);
        for entry in std::fs::read_dir(root).map_err(error)? {
            let entry = entry.map_err(error)?;
            // A link is none of ours, wherever it leads.
            if !entry.file_type().is_ok_and(|t| t.is_dir()) {
                continue;
            }
            let Some(name) = entry.file_name().to_str().and_then(RunId::from_folder) else { continue };
            found.extend(look(&Folder::at(entry.path()), name));
        }
        found.sort_by(|a, b| a.run.cmp(&b.run));
        Ok(found)
    }

    /// Deletes the folder of a run that has ended and whose shim is gone.
    pub fn remove(&self, run: &RunId) -> Result<(), ProcessError> {
        let folder = self.folder_of(run);
        if !folder.has_spec() && !folder.is_started() {
            return Err(ProcessError::Unknown { run: run.clone() });
        }
        let error = |source| ProcessError::Remove { run: run.clone(), source };
        self.reap();
        if !std::fs::symlink_metadata(folder.path()).map_err(error)?.is_dir() {
            return Err(error(io::ErrorKind::NotADirectory.into()));
        }
        let lock = folder.lock().map_err(error)?;
        if lock.is_none() || folder.exit().map_err(error)?.is_none() {
            return Err(ProcessError::NotEnded { run: run.clone() });
        }
        // Out of the way at once, whole: half a folder would be taken for a lost run.
        let gone = self.inner.root.join(format!("{REMOVED}{}", folder_name(run)));
        let _ = std::fs::remove_dir_all(&gone);
        std::fs::rename(folder.path(), &gone).map_err(error)?;
        std::fs::remove_dir_all(&gone).map_err(error)
    }

    /// Finishes removals that were cut short, and forgets stops of runs that were never spawned.
    pub(super) fn sweep_removed(&self) {
        for entry in std::fs::read_dir(&self.inner.root).into_iter().flatten().flatten() {
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
            let folder = Folder::at(entry.path());
            let is_run = is_dir && RunId::from_folder(&name).is_some();
            let never = is_run && folder.stop().is_some() && !folder.has_spec() && !folder.is_started();
            if never || name.starts_with(REMOVED) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// `None` for a folder without an order: it was about to be made, and nothing can have come of it.
fn look(folder: &Folder, name: RunId) -> Option<Found> {
    let unreadable = |e: io::Error| State::Unreadable(e.to_string());
    let run = match folder.spec() {
        Ok(Some(spec)) if folder_name(&spec.run) == name.as_str() => spec.run,
        Ok(Some(spec)) => {
            let state = State::Unreadable(format!("it holds the order of run {}", spec.run));
            return Some(Found { run: name, state });
        }
        Ok(None) => return None,
        Err(e) => return Some(Found { run: name, state: unreadable(e) }),
    };
    let state = match (folder.exit(), folder.lock()) {
        (Err(e), _) | (Ok(None), Err(e)) => unreadable(e),
        (Ok(Some(end)), _) => State::Ended(end),
        (Ok(None), Ok(None)) => State::Live,
        (Ok(None), Ok(Some(_))) if !folder.is_started() => State::NeverStarted,
        (Ok(None), Ok(Some(lock))) => match settle_locked(folder, Exit::Lost, &lock) {
            Ok((end, true)) => State::Dead(end),
            Ok((end, false)) => State::Ended(end),
            Err(e) => unreadable(e),
        },
    };
    Some(Found { run, state })
}

/// Settles a run that no shim holds: ends what is left of it and writes its end, `exit` if it was never started or
/// `Lost`. Does nothing while the lock is held.
pub(super) fn settle(folder: &Folder, exit: Exit) -> io::Result<Option<RunEnd>> {
    match folder.lock()? {
        Some(lock) => settle_locked(folder, exit, &lock).map(|(end, _)| Some(end)),
        None => Ok(None),
    }
}

/// Gives the end, and whether it was written here and now.
fn settle_locked(folder: &Folder, exit: Exit, _lock: &Lock) -> io::Result<(RunEnd, bool)> {
    // The shim may have ended well between the caller's look and the lock.
    if let Some(end) = folder.exit()? {
        return Ok((end, false));
    }
    // From here on no shim that comes late starts anything.
    let exit = if folder.start()? { exit } else { Exit::Lost };
    let survivors = match mark(folder)? {
        Some(mark) => Sweep::gentle(mark, GRACE).run(),
        None => Vec::new(),
    };
    let (bytes, cut, tail) = transcript::summary(folder.path())?;
    let end = RunEnd { exit, took: took(folder), survivors, tail, bytes, cut };
    folder.write_exit(&end, false)?;
    Ok((end, true))
}

/// By what the lost run's processes are known; `None` when there can be none.
fn mark(folder: &Folder) -> io::Result<Option<Mark>> {
    let Some(spec) = folder.spec()? else { return Ok(None) };
    let boot = system::boot_id()?;
    let record = folder.record()?;
    if record.as_ref().is_some_and(|r| r.boot_id != boot) {
        return Ok(None);
    }
    let session = record.map(|r| {
        let seen = folder.beat().map_or(r.at_ms, |b| b.boottime_ms.max(r.at_ms));
        Session { id: r.session, start: r.child.start, until: seen / ms_per_tick() }
    });
    Ok(Some(Mark { key: spec.key, shim: None, session }))
}

/// As far as the folder tells: from the record to the last sign of life.
fn took(folder: &Folder) -> Duration {
    let record = folder.record().ok().flatten().map(|r| r.at_ms);
    let beat = folder.beat().map(|b| b.boottime_ms);
    Duration::from_millis(beat.unwrap_or(0).saturating_sub(record.or(beat).unwrap_or(0)))
}
