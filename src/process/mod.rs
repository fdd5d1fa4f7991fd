//! Child programs: agents, chain steps and checks, each under a shim of its own that outlives the daemon. `Runs` starts
//! them once by name, follows them wherever they were started from, stops them, and settles what a crash left behind.
//!
//! ```text
//! Runs ──writes──▶ spec.json alive_until stop ──▶ shim ──▶ child and all its descendants
//!   ▲                                              │
//!   └──reads── started record.json beat out.* exit.json (the run folder, docs/run-folder.md)
//! ```

#![expect(clippy::disallowed_methods, reason = "this is where shims are started")]

mod adopt;
mod folder;
mod gone;
mod serve;
pub mod shim;
pub mod stage;
mod stop;
mod system;
mod transcript;
mod tree;
mod watch;

pub use adopt::{Found, State};
pub use folder::{Beat, Stop};
pub use transcript::{Piece, Reader, Stream};
pub use tree::{KEY_VAR, RUN_VAR};
pub use watch::{Seen, Sink};

use crate::domain::RunId;
use folder::{Folder, Limit, Spec, Stdin, VERSION};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest run id that is a folder's name as it is; longer ones are cut and told apart by a hash.
const NAME_MAX: usize = 200;

/// Something about a run that could not be done. The run id is in every text; the cause is the source.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("the folder of runs {} cannot be used", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("the order of run {run} could not be written")]
    Order { run: RunId, source: io::Error },
    #[error("the shim of run {run} could not be started")]
    Spawn { run: RunId, source: io::Error },
    #[error("the time of run {run} could not be extended")]
    Extend { run: RunId, source: io::Error },
    #[error("run {run} could not be followed")]
    Follow { run: RunId, source: io::Error },
    #[error("run {run} could not be stopped")]
    Stop { run: RunId, source: io::Error },
    #[error("run {run} could not be settled")]
    Settle { run: RunId, source: io::Error },
    #[error("the runs in {} could not be listed", path.display())]
    List { path: PathBuf, source: io::Error },
    #[error("run {run} could not be removed")]
    Remove { run: RunId, source: io::Error },
    #[error("run {run} has not ended and is kept")]
    NotEnded { run: RunId },
    #[error("there is no run {run}")]
    Unknown { run: RunId },
}

/// What to run.
#[derive(Debug, Clone)]
pub struct RunOrder {
    pub run: RunId,
    /// Program and arguments, executed as they are; a program without `/` is looked up in `env`'s PATH.
    pub argv: Vec<String>,
    pub cwd: PathBuf,
    /// The child's whole environment; `OVERNIGHT_RUN` and `OVERNIGHT_RUN_KEY` are added.
    pub env: BTreeMap<String, String>,
    /// Standard input up to its end; `None` is /dev/null.
    pub stdin: Option<Vec<u8>>,
    /// Bytes that the stored transcript may take (at least 64 KiB).
    pub transcript_cap: u64,
    /// Dead-man limit on the boot-time clock (`Runs::boottime_ms`).
    pub alive_until_ms: u64,
    /// Between TERM and KILL when the dead-man limit acts.
    pub kill_grace: Duration,
    /// How long output is still read when the child is gone and others hold its pipes.
    pub drain_grace: Duration,
}

/// All runs of this data folder.
#[derive(Debug, Clone)]
pub struct Runs {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    binary: PathBuf,
    /// Shims that are our children, until they are reaped.
    children: Mutex<HashMap<RunId, Child>>,
}

/// The path by which this program starts itself again. On Linux it is a magic link that the new process resolves as the
/// very file this one runs, also when that was replaced or deleted since: after an update, a daemon and its shims are
/// of one version until the daemon is restarted.
pub fn own_binary() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}

impl Runs {
    /// The runs below `root` (made if missing); `binary` is this program (`own_binary`).
    pub fn open(root: &Path, binary: PathBuf) -> Result<Self, ProcessError> {
        let error = |source| ProcessError::Open { path: root.to_owned(), source };
        folder::make_dir(root).map_err(error)?;
        // Shims do not run where we do.
        let root = root.canonicalize().map_err(error)?;
        let runs = Self { inner: Arc::new(Inner { root, binary, children: Mutex::default() }) };
        runs.sweep_removed();
        Ok(runs)
    }

    /// Milliseconds since the machine's start, time asleep included: the clock of `alive_until_ms`.
    pub fn boottime_ms() -> u64 {
        system::boottime_ms()
    }

    /// Starts a run, once: of any number of calls with the same run id, whatever their order says and whichever daemon
    /// makes them, one child comes. Returns when the shim is on its way; how the start went is for `follow` to tell.
    pub fn spawn(&self, order: &RunOrder) -> Result<(), ProcessError> {
        self.reap();
        let folder = self.folder_of(&order.run);
        let spec = spec(order).map_err(|source| ProcessError::Order { run: order.run.clone(), source })?;
        folder
            .prepare(&spec, order.stdin.as_deref())
            .map_err(|source| ProcessError::Order { run: order.run.clone(), source })?;
        let mut children = self.children();
        let on_its_way = children.get_mut(&order.run).is_some_and(|c| matches!(c.try_wait(), Ok(None)));
        if on_its_way || folder.is_started() {
            return Ok(());
        }
        let child = self.spawn_shim(&folder);
        let child = child.map_err(|source| ProcessError::Spawn { run: order.run.clone(), source })?;
        children.insert(order.run.clone(), child);
        Ok(())
    }

    /// Whether a shim has taken this run, at whatever time.
    pub fn is_started(&self, run: &RunId) -> bool {
        self.folder_of(run).is_started()
    }

    /// Whether nothing of a run lives or will: nobody holds its lock. What lives of one whose folder was deleted is ended
    /// first, which may block for some seconds. An error says that it cannot be told now.
    pub fn is_over(&self, run: &RunId) -> Result<bool, ProcessError> {
        let folder = self.folder_of(run);
        if !folder.is_started() {
            if folder.has_spec() {
                return Ok(false);
            }
            self.end_gone(Some(run));
            return Ok(!self.is_gone_alive(run));
        }
        let lock = folder.lock().map_err(|source| ProcessError::Follow { run: run.clone(), source })?;
        Ok(lock.is_some())
    }

    /// Whether the run's end is on record.
    pub fn has_ended(&self, run: &RunId) -> bool {
        self.path_of(run).join("exit.json").exists()
    }

    /// Whether the disk was full while a run that has ended ran, as its shim saw it.
    pub fn disk_was_full(&self, run: &RunId) -> bool {
        self.folder_of(run).disk_was_full()
    }

    /// Moves the dead-man limit of a run; the shim sees it within a second.
    pub fn extend(&self, run: &RunId, alive_until_ms: u64) -> Result<(), ProcessError> {
        let folder = self.known(run)?;
        Limit::in_this_boot(alive_until_ms)
            .and_then(|limit| folder.write_limit(&limit))
            .map_err(|source| ProcessError::Extend { run: run.clone(), source })
    }

    /// The run's own temporary folder, for its environment's TMPDIR; it is there from `spawn` on.
    pub fn tmp(&self, run: &RunId) -> PathBuf {
        self.path_of(run).join("tmp")
    }

    /// The transcript from position `from` on.
    pub fn transcript(&self, run: &RunId, from: u64) -> Reader {
        Reader::new(&self.path_of(run), from)
    }

    /// The beginning and the end of what a run printed, at most `each` bytes of both, and how many bytes of the `total`
    /// are missing between them.
    pub fn ends_of(&self, run: &RunId, total: u64, each: usize) -> io::Result<(Vec<u8>, u64, Vec<u8>)> {
        transcript::ends_of(&self.path_of(run), total, each)
    }

    /// The last signs of life.
    pub fn beat(&self, run: &RunId) -> Option<Beat> {
        self.folder_of(run).beat()
    }

    fn path_of(&self, run: &RunId) -> PathBuf {
        self.inner.root.join(folder_name(run))
    }

    fn folder_of(&self, run: &RunId) -> Folder {
        Folder::at(self.path_of(run))
    }

    fn known(&self, run: &RunId) -> Result<Folder, ProcessError> {
        let folder = self.folder_of(run);
        if folder.has_spec() { Ok(folder) } else { Err(ProcessError::Unknown { run: run.clone() }) }
    }

    /// No process flag, no hook between fork and exec: so the standard library takes posix_spawn, which costs the same
    /// however large the daemon is. The shim leaves our session by itself.
    fn spawn_shim(&self, folder: &Folder) -> io::Result<Child> {
        let mut command = std::process::Command::new(&self.inner.binary);
        command.arg0("overnight").arg("__shim").arg(folder.path()).env_clear().current_dir("/");
        command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null()).stderr(folder.shim_log()?);
        command.spawn()
    }

    fn children(&self) -> MutexGuard<'_, HashMap<RunId, Child>> {
        self.inner.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reaps shims that have ended. How one ended that took no run is kept for its follower.
    fn reap(&self) {
        self.children().retain(|run, child| matches!(child.try_wait(), Ok(None)) || !self.folder_of(run).is_started());
    }
}

fn spec(order: &RunOrder) -> io::Result<Spec> {
    let mut random = [0u8; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let mut key = String::new();
    for byte in random {
        let _ = write!(key, "{byte:02x}");
    }
    let mut env = order.env.clone();
    env.insert(RUN_VAR.into(), order.run.as_str().into());
    env.insert(KEY_VAR.into(), key.clone());
    Ok(Spec {
        version: VERSION,
        run: order.run.clone(),
        key,
        argv: order.argv.clone(),
        cwd: order.cwd.clone(),
        env,
        stdin: if order.stdin.is_some() { Stdin::File } else { Stdin::Null },
        transcript_cap: order.transcript_cap,
        alive_until: Limit::in_this_boot(order.alive_until_ms)?,
        kill_grace: order.kill_grace,
        drain_grace: order.drain_grace,
    })
}

/// A run's folder: its id, or, as file names end at 255 bytes, the head of a long id and a hash of the whole.
fn folder_name(run: &RunId) -> String {
    let id = run.as_str();
    if id.len() <= NAME_MAX {
        return id.to_owned();
    }
    let mut name = format!("{}__", &id[..NAME_MAX - 34]);
    for byte in &Sha256::digest(id.as_bytes())[..16] {
        let _ = write!(name, "{byte:02x}");
    }
    name
}
