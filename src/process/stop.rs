//! Stopping a run. The wish is a file in the run folder, so that it reaches a shim that is only just starting, or that
//! no signal reaches; a signal to the verified shim makes it act at once. Where no shim is left, the run is settled here.

use super::folder::Stop;
use super::{ProcessError, Runs, adopt, system};
use crate::domain::RunId;
use crate::domain::verdict::Exit;

impl Runs {
    /// Asks for the end of a run's whole tree. Asking again for the same changes nothing, `Kill` after `Term` does, and
    /// `Term` after `Kill` does not; how long to wait in between is the caller's business. Returns at once while a shim
    /// lives; else it ends what is left and settles the run, which may block for some seconds. A run that is not spawned yet
    /// ends when it is.
    pub fn stop(&self, run: &RunId, how: Stop) -> Result<(), ProcessError> {
        let folder = self.folder_of(run);
        let error = |source| ProcessError::Stop { run: run.clone(), source };
        if !folder.has_spec() {
            folder.forestall(how).map_err(error)?;
            if !folder.has_spec() {
                return Ok(());
            }
            // It was spawned just now.
        }
        if folder.exit().map_err(error)?.is_some() {
            return Ok(());
        }
        let wish = folder.write_stop(how);
        // A shim takes TERM for a wish that could not be written, as on a full disk.
        let signal = if wish.is_ok() { libc::SIGUSR1 } else { libc::SIGTERM };
        let boot = system::boot_id().map_err(error)?;
        if let Some(started) = folder.started().filter(|s| s.boot_id == boot)
            && system::signal(started.shim.pid, started.shim.start, signal)
        {
            return if how == Stop::Term { Ok(()) } else { wish.map_err(error) };
        }
        wish.map_err(error)?;
        // No shim, or none yet: then the lock tells, and whoever holds it reads the wish.
        let exit = match how {
            _ if folder.is_started() => Exit::Lost,
            Stop::Term => Exit::Signalled { signal: libc::SIGTERM },
            Stop::Kill => Exit::Signalled { signal: libc::SIGKILL },
        };
        adopt::settle(&folder, exit).map_err(error)?;
        self.reap();
        Ok(())
    }
}
