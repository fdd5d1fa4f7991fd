//! The shim: one small single-threaded process per run. It starts the child, feeds it, stores what it prints, watches the
//! dead-man limit, ends what the child leaves behind and writes how it ended. It needs nobody and outlives the daemon.
//!
//! ```text
//!  lock, `started` ──▶ stage at the gate ──▶ record on disk ──▶ exec ──▶ running ──▶ child gone ──▶ drain
//!        │ taken: leave                                            │        │ stop, limit             │
//!        ▼                                                         ▼        ▼                         ▼
//!      exit                                          spawn failed ───────────────▶ exit.json ◀── sweep, drain
//! ```

#![expect(
    clippy::disallowed_methods,
    reason = "this is where children are started, and their shim keeps deadlines of its own"
)]

use super::folder::{Beat, Folder, Lock, Process, Record, Spec, Stdin, Stop, VERSION};
use super::transcript::Writer;
use super::tree::{self, Sweep};
use super::{own_binary, system};
use crate::domain::Wall;
use crate::domain::verdict::{Exit, RunEnd};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::ChildStderr;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use tokio_process_stream::ProcessChunkStream;

/// For what is still in the pipes when all writers have been ended.
const LAST_DRAIN: Duration = Duration::from_millis(500);
/// Grace between TERM and KILL for what the child left behind; it had its own time before.
const SURVIVOR_GRACE: Duration = Duration::from_secs(2);
/// How long a full disk is waited for with the exit record in hand.
const EXIT_TRIES: u32 = 600;

/// Entry point of `overnight __shim <run folder>`.
pub fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    system::shed_descriptors(false);
    let _ = nix::unistd::setsid();
    system::ignore(&[libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGPIPE]);
    system::become_subreaper();
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let Some(path) = args.next() else {
        return ExitCode::FAILURE;
    };
    match enter(Path::new(&path)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // Standard error is `shim.log`.
            eprintln!("shim of {}: {e}", path.display());
            ExitCode::FAILURE
        }
    }
}

fn enter(path: &Path) -> io::Result<()> {
    let folder = Folder::at(path.to_owned());
    let spec = folder.spec()?.ok_or_else(|| io::Error::other("there is no spec.json"))?;
    // One thread for all: the kernel's "die with parent" means the thread that made the child.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::new()?;
        let Some(lock) = claim(&folder).await? else { return Ok(()) };
        let mut shim = Shim::new(folder, spec, signals)?;
        let exit = match shim.start() {
            Ok(None) => shim.serve().await,
            Ok(Some(exit)) => exit,
            Err(why) => Exit::NeverStarted { why },
        };
        shim.finish(exit).await?;
        drop(lock);
        Ok(())
    })
}

/// The lock and then `started`: who has both runs the child, once and for all. A daemon that looks at the folder may hold
/// the lock for a moment.
async fn claim(folder: &Folder) -> io::Result<Option<Lock>> {
    for _ in 0..200 {
        if folder.is_started() {
            return Ok(None);
        }
        if let Some(lock) = folder.lock()? {
            return Ok(folder.start()?.then_some(lock));
        }
        pause(Duration::from_millis(25)).await;
    }
    Err(io::Error::other("the lock is held and nothing was started"))
}

pub(super) struct Signals {
    pub(super) look: Signal,
    pub(super) term: Signal,
    pub(super) child: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            look: signal(SignalKind::user_defined1())?,
            term: signal(SignalKind::terminate())?,
            child: signal(SignalKind::child())?,
        })
    }
}

pub(super) struct Shim {
    pub(super) folder: Folder,
    pub(super) spec: Spec,
    pub(super) signals: Signals,
    pub(super) boot_id: String,
    pub(super) born: Instant,
    pub(super) log: Writer,
    pub(super) child: Option<Child>,
    /// The strongest stop that was asked for and acted on.
    pub(super) stopped: Option<Stop>,
    pub(super) dead_man: bool,
    /// The disk of the run folder was seen full.
    pub(super) disk_full: bool,
    /// Looks in a row that found no run folder.
    pub(super) gone: u32,
    /// When TERM turns to KILL: after the dead-man limit only.
    pub(super) kill_at: Option<Instant>,
    pub(super) killing: Option<Sweep>,
    /// Killing is over and the child still lives.
    pub(super) unkillable: bool,
    pub(super) next_look: Instant,
    pub(super) last_output: Option<u64>,
    pub(super) beat: Beat,
    pub(super) next_beat: Instant,
    pub(super) next_measure: Instant,
}

pub(super) struct Child {
    pub(super) pid: i32,
    pub(super) start: u64,
    /// Standard output, and the child itself.
    pub(super) out: Option<ProcessChunkStream>,
    pub(super) err: Option<ChildStderr>,
    /// Exec closes it; words on it say why there was no exec.
    pub(super) errors: Option<OwnedFd>,
    pub(super) words: Vec<u8>,
    pub(super) status: Option<ExitStatus>,
}

impl Shim {
    fn new(folder: Folder, spec: Spec, signals: Signals) -> io::Result<Self> {
        let now = Instant::now();
        let log = Writer::new(folder.path(), spec.transcript_cap);
        let beat = Beat {
            version: VERSION,
            at: Wall(0),
            boottime_ms: 0,
            last_output_ms: None,
            bytes: 0,
            cpu_ms: 0,
            rss_bytes: 0,
            processes: 0,
        };
        Ok(Self {
            folder,
            spec,
            signals,
            boot_id: system::boot_id()?,
            born: now,
            log,
            child: None,
            stopped: None,
            dead_man: false,
            disk_full: false,
            gone: 0,
            kill_at: None,
            killing: None,
            unkillable: false,
            next_look: now,
            last_output: None,
            beat,
            next_beat: now,
            next_measure: now,
        })
    }

    /// Everything up to the open gate. Gives an exit when the run is over before it began, an error in words when it
    /// cannot be started.
    fn start(&mut self) -> Result<Option<Exit>, String> {
        if let Some(exit) = self.forestalled() {
            return Ok(Some(exit));
        }
        let (gate, errors) = self.spawn_stage().map_err(|e| format!("the second stage could not be started: {e}"))?;
        let Some(child) = &mut self.child else { return Err("the second stage ended at once".into()) };
        child.errors = Some(errors);
        self.save_record().map_err(|e| format!("its record could not be saved: {e}"))?;
        if let Some(exit) = self.forestalled() {
            return Ok(Some(exit));
        }
        // A stage that is gone is seen by its end.
        let _ = nix::unistd::write(&gate, b"x");
        Ok(None)
    }

    /// A stop or the limit that came before the child was executed.
    fn forestalled(&self) -> Option<Exit> {
        match self.folder.stop() {
            Some(Stop::Term) => return Some(Exit::Signalled { signal: libc::SIGTERM }),
            Some(Stop::Kill) => return Some(Exit::Signalled { signal: libc::SIGKILL }),
            None => {}
        }
        self.folder.limit(&self.spec).left(&self.boot_id).is_zero().then_some(Exit::DeadMan)
    }

    fn spawn_stage(&mut self) -> io::Result<(OwnedFd, OwnedFd)> {
        let (gate_end, gate) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let (errors, errors_end) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        system::keep_over_exec(&gate_end)?;
        system::keep_over_exec(&errors_end)?;
        let number = |fd: &OwnedFd| fd.as_raw_fd().to_string();
        let stdin = match self.spec.stdin {
            Stdin::Null => Stdio::null(),
            // The file itself and no pipe: nobody needs to feed it, its end is its end, and a child that closes it early
            // breaks nothing.
            Stdin::File => self.folder.stdin()?.into(),
        };
        let mut command = tokio::process::Command::new(own_binary()?);
        command.arg0("overnight").arg("__stage").arg(self.folder.path());
        command.arg(std::process::id().to_string()).arg(number(&gate_end)).arg(number(&errors_end));
        command.env_clear().env(tree::RUN_VAR, self.spec.run.as_str()).env(tree::KEY_VAR, &self.spec.key);
        command.current_dir("/").stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).unwrap_or(0);
        // The chunk stream looks at standard error first, as long as there is any: a flood there would hold up standard
        // output for ever. So it gets standard output alone, and the two are read in turn.
        let err = child.stderr.take();
        let out = Some(ProcessChunkStream::from(child));
        let start = system::start_time(pid).unwrap_or(0);
        self.child = Some(Child { pid, start, out, err, errors: None, words: Vec::new(), status: None });
        Ok((gate, errors))
    }

    fn save_record(&self) -> io::Result<()> {
        let Some(child) = &self.child else { return Ok(()) };
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        self.folder.write_record(&Record {
            version: VERSION,
            boot_id: self.boot_id.clone(),
            shim: Process { pid, start: system::start_time(pid).unwrap_or(0) },
            child: Process { pid: child.pid, start: child.start },
            session: child.pid,
            cgroup: None,
            at_ms: system::boottime_ms(),
        })
    }

    /// Ends what is left, takes the last output, and puts the end on disk.
    async fn finish(&mut self, exit: Exit) -> io::Result<()> {
        let took = self.born.elapsed();
        let mut survivors = Vec::new();
        if self.child.is_some() {
            survivors = self.sweep(&exit).await;
            let drained = Instant::now() + LAST_DRAIN;
            while self.is_printing() && Instant::now() < drained {
                self.turn(Some(drained)).await;
            }
        }
        let _ = self.log.sync();
        let end = RunEnd { exit, took, survivors, tail: self.log.tail(), bytes: self.log.bytes(), cut: self.log.cut() };
        let mut tries = 0;
        self.disk_full |= crate::host::disk::space(self.folder.path()).is_ok_and(|s| s.is_full());
        while let Err(e) = self.folder.write_exit(&end, self.disk_full) {
            self.disk_full |= is_full(&e);
            tries += 1;
            if tries >= EXIT_TRIES || self.folder.is_gone() {
                return Err(e);
            }
            pause(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    async fn sweep(&mut self, exit: &Exit) -> Vec<crate::domain::verdict::Survivor> {
        if let Some(sweep) = self.killing.take().filter(|_| self.unkillable) {
            return sweep.survivors().into_iter().filter(|s| !s.ended).collect();
        }
        let mut sweep = Sweep::gentle(self.mark(), self.spec.kill_grace.min(SURVIVOR_GRACE));
        let never_ran = self.status().is_none() || matches!(exit, Exit::SpawnFailed { .. } | Exit::NeverStarted { .. });
        while let Some(wait) = {
            if never_ran || self.stopped == Some(Stop::Kill) {
                sweep.hurry();
            }
            sweep.step()
        } {
            self.turn(Some(Instant::now() + wait)).await;
        }
        self.look_after_children();
        // A second stage that was held at the gate is no survivor of a child.
        if never_ran { Vec::new() } else { sweep.survivors() }
    }
}

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

async fn pause(time: Duration) {
    sleep_until(Instant::now() + time).await;
}
