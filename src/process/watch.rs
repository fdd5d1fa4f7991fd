//! Following a run: its output, its signs of life and its end, out of the run folder alone, so that it makes no
//! difference whether this daemon or an earlier one started it.
//!
//! ```text
//! waiting ──started──▶ live ──exit.json──▶ rest of the output ──▶ end
//!    │ no shim            │ shim gone, no exit.json
//!    └────────────────────┴──▶ settle (adopt) ──▶ end
//! ```

#![expect(clippy::disallowed_methods, reason = "following a run has deadlines of its own; no rule sees this clock")]

use super::folder::Folder;
use super::transcript::{Piece, Reader};
use super::{Beat, ProcessError, Runs, Stream, system};
use crate::domain::RunId;
use crate::domain::verdict::{Exit, RunEnd};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

/// Between two looks at the folder while output comes, and while none does. Only live runs are looked at.
const BUSY: Duration = Duration::from_millis(100);
const QUIET: Duration = Duration::from_millis(250);
const STARTING: Duration = Duration::from_millis(20);
/// How long a run without a shim may take to show one.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long an ended run's shim may take to be gone.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);
const BEAT_EVERY: Duration = Duration::from_secs(1);
const PIECE: usize = 64 * 1024;

/// What following a run shows.
#[derive(Debug)]
pub enum Seen<'a> {
    /// Bytes as they came, cut anywhere; `at` counts all bytes before them, `ms` is the run's age.
    Output { stream: Stream, at: u64, ms: u64, bytes: &'a [u8] },
    /// So many bytes are no longer there.
    Gap { at: u64, bytes: u64 },
    /// At most once a second.
    Beat(&'a Beat),
}

/// Where it is shown. It is called on the task that follows, so it must not block.
pub type Sink<'a> = Box<dyn FnMut(Seen<'_>) + Send + 'a>;

impl Runs {
    /// Shows all output of a run from its first byte on, live, then gives its end. Exactly one follower per run sees to
    /// it that a lost one is settled. Dropping the future stops following and touches nothing.
    pub async fn follow(&self, run: &RunId, sink: Sink<'_>) -> Result<RunEnd, ProcessError> {
        let folder = self.known(run)?;
        let mut follower = Follower {
            runs: self,
            run,
            reader: Reader::new(folder.path(), 0),
            folder,
            sink,
            shim: None,
            beat_mark: None,
            next_beat: Instant::now(),
        };
        follower.follow().await
    }
}

struct Follower<'a> {
    runs: &'a Runs,
    run: &'a RunId,
    folder: Folder,
    reader: Reader,
    sink: Sink<'a>,
    /// Becomes readable when the shim ends.
    shim: Option<AsyncFd<OwnedFd>>,
    beat_mark: Option<(SystemTime, u64)>,
    next_beat: Instant,
}

impl Follower<'_> {
    async fn follow(&mut self) -> Result<RunEnd, ProcessError> {
        self.wait_for_start().await?;
        loop {
            // Looked for before the output is read: what comes before the end is stored before it.
            let end = self.folder.exit().map_err(|e| self.error(e))?;
            let grew = self.show_output().await.map_err(|e| self.error(e))?;
            self.show_beat();
            if let Some(end) = end {
                self.wait_until_gone().await;
                return Ok(end);
            }
            if self.is_shim_gone(if grew { BUSY } else { QUIET }).await {
                self.settle(Exit::Lost).await?;
                // Somebody else may be settling it just now.
                sleep_until(Instant::now() + STARTING).await;
            }
        }
    }

    fn error(&self, source: io::Error) -> ProcessError {
        ProcessError::Follow { run: self.run.clone(), source }
    }

    /// Until the shim has taken the run. One that ended before, or never came, is a start that failed, and it is settled
    /// as such so that it never comes later either.
    async fn wait_for_start(&mut self) -> Result<(), ProcessError> {
        let limit = Instant::now() + START_LIMIT;
        loop {
            if self.folder.is_started() {
                return Ok(());
            }
            let ended = self.own_shim_ended();
            if let Some(status) = ended.filter(|_| !self.folder.is_started()) {
                let why = format!("its shim ended at once ({status}): {}", self.folder.shim_words());
                return self.settle(Exit::NeverStarted { why }).await;
            }
            if Instant::now() >= limit {
                return self.settle(Exit::NeverStarted { why: "no shim came to start it".into() }).await;
            }
            sleep_until(Instant::now() + STARTING).await;
        }
    }

    fn own_shim_ended(&self) -> Option<std::process::ExitStatus> {
        self.runs.children().get_mut(self.run)?.try_wait().ok().flatten()
    }

    async fn show_output(&mut self) -> io::Result<bool> {
        let mut grew = false;
        while let Some(piece) = self.reader.read(PIECE)? {
            match &piece {
                Piece::Bytes { stream, at, ms, data } => {
                    (self.sink)(Seen::Output { stream: *stream, at: *at, ms: *ms, bytes: data });
                }
                Piece::Gap { at, bytes } => (self.sink)(Seen::Gap { at: *at, bytes: *bytes }),
            }
            grew = true;
            tokio::task::consume_budget().await;
        }
        Ok(grew)
    }

    fn show_beat(&mut self) {
        let now = Instant::now();
        if now < self.next_beat {
            return;
        }
        let mark = self.folder.beat_mark();
        if mark == self.beat_mark {
            return;
        }
        if let Some(beat) = self.folder.beat() {
            self.beat_mark = mark;
            self.next_beat = now + BEAT_EVERY;
            (self.sink)(Seen::Beat(&beat));
        }
    }

    /// Waits up to `limit`; true as soon as the shim is known to be gone.
    async fn is_shim_gone(&mut self, limit: Duration) -> bool {
        if self.shim.is_none() {
            self.shim = self.open_shim();
        }
        let until = Instant::now() + limit;
        match &self.shim {
            Some(fd) => {
                let gone = tokio::select! {
                    ready = fd.readable() => ready.is_ok(),
                    () = sleep_until(until) => false,
                };
                if gone {
                    self.runs.reap();
                }
                gone
            }
            None => {
                sleep_until(until).await;
                // A free lock says the shim is gone; the one who settles takes it and looks once more.
                self.runs.reap();
                matches!(self.folder.lock(), Ok(Some(_)))
            }
        }
    }

    fn open_shim(&self) -> Option<AsyncFd<OwnedFd>> {
        let started = self.folder.started()?;
        if started.boot_id != system::boot_id().ok()? {
            return None;
        }
        let fd = system::pidfd(started.shim.pid, started.shim.start)?;
        system::watch(fd).ok()
    }

    async fn wait_until_gone(&mut self) {
        let limit = Instant::now() + LEAVE_LIMIT;
        while Instant::now() < limit {
            if matches!(self.folder.lock(), Ok(Some(_))) {
                break;
            }
            if self.is_shim_gone(STARTING).await {
                break;
            }
        }
        self.runs.reap();
    }

    /// Ends what the lost run left and writes its end; both block.
    async fn settle(&mut self, exit: Exit) -> Result<(), ProcessError> {
        let folder = self.folder.clone();
        let settled = tokio::task::spawn_blocking(move || super::adopt::settle(&folder, exit)).await;
        settled
            .map_err(io::Error::other)
            .and_then(|r| r.map(|_| ()))
            .map_err(|source| ProcessError::Settle { run: self.run.clone(), source })
    }
}
