//! The run folder: its files and documents, and how they are written so that a reader, a crash or a power cut finds each
//! of them whole or not at all. `docs/run-folder.md` is the contract; daemons and shims of different versions meet here.

use super::system;
use crate::domain::time::ms;
use crate::domain::verdict::RunEnd;
use crate::domain::{RunId, Wall};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Version of the run-folder format. A reader takes documents up to its own version.
pub(super) const VERSION: u32 = 1;

/// What a shim is to run, written before the shim starts and never changed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Spec {
    pub(super) version: u32,
    pub(super) run: RunId,
    pub(super) key: String,
    pub(super) argv: Vec<String>,
    pub(super) cwd: PathBuf,
    /// The child's whole environment.
    pub(super) env: BTreeMap<String, String>,
    pub(super) stdin: Stdin,
    /// Bytes that the transcript may take.
    pub(super) transcript_cap: u64,
    pub(super) alive_until: Limit,
    #[serde(with = "ms")]
    pub(super) kill_grace: Duration,
    #[serde(with = "ms")]
    pub(super) drain_grace: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stdin {
    Null,
    /// The file `stdin` of the folder.
    File,
}

/// The dead-man limit: an instant of one boot, time asleep included. In another boot it has passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limit {
    pub(super) boot_id: String,
    pub(super) at_ms: u64,
}

/// A process of one boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) start: u64,
}

/// Written into `started`: whose run it is from now on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Started {
    pub(super) version: u32,
    pub(super) boot_id: String,
    pub(super) shim: Process,
}

/// Written and synced before the child may execute.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) version: u32,
    pub(super) boot_id: String,
    pub(super) shim: Process,
    pub(super) child: Process,
    /// Session and process group of the child; both are its pid.
    pub(super) session: i32,
    /// Control group of the run, where it has one of its own.
    pub(super) cgroup: Option<String>,
    /// Boot-time clock.
    pub(super) at_ms: u64,
}

/// Signs of life of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    pub version: u32,
    /// When it was written: wall clock, for people, and milliseconds since the machine's start, time asleep included.
    pub at: Wall,
    pub boottime_ms: u64,
    /// When output last came, on the second clock; `None` when none has come yet.
    pub last_output_ms: Option<u64>,
    /// Output of both streams so far.
    pub bytes: u64,
    /// What the tree of processes has used and uses; taken every few seconds.
    pub cpu_ms: u64,
    pub rss_bytes: u64,
    pub processes: u32,
}

/// How to stop. Each is asked for on its own; the time between them is the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// TERM to the whole tree, stopped processes continued.
    Term,
    /// KILL until nothing is left.
    Kill,
}

#[derive(Debug, Serialize, Deserialize)]
struct StopDoc {
    version: u32,
    how: Stop,
}

#[derive(Debug, Serialize, Deserialize)]
struct ExitDoc {
    version: u32,
    #[serde(flatten)]
    end: RunEnd,
    /// The disk was seen full while it ran: the likely cause of whatever it ended with.
    #[serde(default)]
    disk_full: bool,
}

/// Any document: just its version.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// One run folder.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    path: PathBuf,
}

/// The run's lock, held by its shim for life, or by a daemon that settles or removes the run. Close-on-exec, as all files
/// that std opens: no child inherits it.
#[derive(Debug)]
pub(super) struct Lock {
    _held: nix::fcntl::Flock<File>,
}

impl Folder {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether the folder was deleted; trouble with looking at it says nothing.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.path.symlink_metadata(), Err(e) if e.kind() == io::ErrorKind::NotFound)
    }

    /// Makes the folder with its temporary folder, and the documents that a shim needs, unless they are there.
    pub(super) fn prepare(&self, spec: &Spec, stdin: Option<&[u8]>) -> io::Result<()> {
        make_dir(&self.path)?;
        make_dir(&self.file("tmp"))?;
        if self.has_spec() {
            return Ok(());
        }
        if let Some(bytes) = stdin {
            self.write("stdin", bytes, How::Once)?;
        }
        self.write("spec.json", &serde_json::to_vec(spec)?, How::Once)?;
        sync_dir(self.path.parent().unwrap_or(&self.path))
    }

    /// A wish to stop for a run that is still to be spawned; the folder waits for it.
    pub(super) fn forestall(&self, how: Stop) -> io::Result<()> {
        make_dir(&self.path)?;
        self.write_stop(how)
    }

    /// Whether the run was ever spawned.
    pub(super) fn has_spec(&self) -> bool {
        self.file("spec.json").exists()
    }

    pub(super) fn spec(&self) -> io::Result<Option<Spec>> {
        self.read_json("spec.json")
    }

    pub(super) fn stdin(&self) -> io::Result<File> {
        File::open(self.file("stdin"))
    }

    pub(super) fn is_started(&self) -> bool {
        self.file("started").exists()
    }

    /// Makes `started`; false when the run was started before.
    pub(super) fn start(&self) -> io::Result<bool> {
        let mut file = match new_file().create_new(true).open(self.file("started")) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            Err(e) => return Err(e),
        };
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        let shim = Process { pid, start: system::start_time(pid).unwrap_or(0) };
        let doc = Started { version: VERSION, boot_id: system::boot_id()?, shim };
        file.write_all(&serde_json::to_vec(&doc)?)?;
        file.sync_all()?;
        sync_dir(&self.path)?;
        Ok(true)
    }

    /// `None` while there is none, or it is not whole (yet).
    pub(super) fn started(&self) -> Option<Started> {
        self.read_json("started").ok().flatten()
    }

    pub(super) fn write_record(&self, record: &Record) -> io::Result<()> {
        self.write_json("record.json", record, How::Synced)
    }

    pub(super) fn record(&self) -> io::Result<Option<Record>> {
        self.read_json("record.json")
    }

    /// The limit that holds now: as extended, or as first ordered.
    pub(super) fn limit(&self, spec: &Spec) -> Limit {
        self.read_json("alive_until").ok().flatten().unwrap_or_else(|| spec.alive_until.clone())
    }

    pub(super) fn write_limit(&self, limit: &Limit) -> io::Result<()> {
        self.write_json("alive_until", limit, How::Plain)
    }

    pub(super) fn write_beat(&self, beat: &Beat) -> io::Result<()> {
        self.write_json("beat", beat, How::Plain)
    }

    pub(super) fn beat(&self) -> Option<Beat> {
        self.read_json("beat").ok().flatten()
    }

    /// Tells two beats apart without reading them.
    pub(super) fn beat_mark(&self) -> Option<(SystemTime, u64)> {
        let meta = std::fs::metadata(self.file("beat")).ok()?;
        Some((meta.modified().ok()?, meta.ino()))
    }

    /// Asks for a stop. A Term after a Kill changes nothing.
    pub(super) fn write_stop(&self, how: Stop) -> io::Result<()> {
        if self.stop() >= Some(how) {
            return Ok(());
        }
        self.write_json("stop", &StopDoc { version: VERSION, how }, How::Synced)
    }

    pub(super) fn stop(&self) -> Option<Stop> {
        self.read_json::<StopDoc>("stop").ok().flatten().map(|d| d.how)
    }

    pub(super) fn write_exit(&self, end: &RunEnd, disk_full: bool) -> io::Result<()> {
        self.write_json("exit.json", &ExitDoc { version: VERSION, end: end.clone(), disk_full }, How::Synced)
    }

    pub(super) fn disk_was_full(&self) -> bool {
        self.read_json::<ExitDoc>("exit.json").ok().flatten().is_some_and(|d| d.disk_full)
    }

    pub(super) fn exit(&self) -> io::Result<Option<RunEnd>> {
        Ok(self.read_json::<ExitDoc>("exit.json")?.map(|d| d.end))
    }

    /// The log of the shim itself; empty unless something went wrong.
    pub(super) fn shim_log(&self) -> io::Result<File> {
        new_file().append(true).create(true).open(self.file("shim.log"))
    }

    pub(super) fn shim_words(&self) -> String {
        let text = std::fs::read(self.file("shim.log")).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(1000)..]).trim().to_owned()
    }

    /// Takes the lock; `None` while another holds it.
    pub(super) fn lock(&self) -> io::Result<Option<Lock>> {
        let file = new_file().write(true).create(true).truncate(false).open(self.file("lock"))?;
        match nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock) {
            Ok(held) => Ok(Some(Lock { _held: held })),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, e)) => Err(e.into()),
        }
    }

    /// `None` when there is no such file; an error when it is from a newer version or unreadable.
    fn read_json<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        let bytes = match std::fs::read(self.file(name)) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        if let Ok(doc) = serde_json::from_slice::<Versioned>(&bytes)
            && doc.version > VERSION
        {
            let text = format!("{name} has format version {}, this program knows {VERSION}", doc.version);
            return Err(io::Error::other(text));
        }
        Ok(Some(serde_json::from_slice(&bytes)?))
    }

    fn write_json<T: Serialize>(&self, name: &str, doc: &T, how: How) -> io::Result<()> {
        self.write(name, &serde_json::to_vec(doc)?, how)
    }

    /// Whole or not at all: a temporary file that takes its name when it is complete.
    fn write(&self, name: &str, bytes: &[u8], how: How) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // No other writer, of this process or another, has the same temporary file.
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let tmp = self.file(&format!(".{name}.{}.{n}", std::process::id()));
        let done = self.write_by(name, &tmp, bytes, how);
        if done.is_err() {
            let _ = std::fs::remove_file(&tmp);
        }
        done
    }

    fn write_by(&self, name: &str, tmp: &Path, bytes: &[u8], how: How) -> io::Result<()> {
        let mut file = new_file().create_new(true).open(tmp)?;
        file.write_all(bytes)?;
        if how == How::Plain {
            return std::fs::rename(tmp, self.file(name));
        }
        file.sync_all()?;
        if how == How::Once {
            // A link is refused where the name is taken: the first one stays.
            match std::fs::hard_link(tmp, self.file(name)) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(_) => std::fs::rename(tmp, self.file(name))?,
                Ok(()) => {}
            }
            let _ = std::fs::remove_file(tmp);
            return Ok(());
        }
        std::fs::rename(tmp, self.file(name))?;
        sync_dir(&self.path)
    }
}

/// How a document is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// May be lost in a power cut.
    Plain,
    /// On disk before we go on.
    Synced,
    /// Its bytes are on disk before it has its name, and the first one written stays for ever. The name itself comes to
    /// disk with `started`: without that nothing was started, and all is written anew.
    Once,
}

impl Limit {
    pub(super) fn in_this_boot(at_ms: u64) -> io::Result<Self> {
        Ok(Self { boot_id: system::boot_id()?, at_ms })
    }

    /// Time left; zero when it has passed, or belongs to another boot.
    pub(super) fn left(&self, boot_id: &str) -> Duration {
        if self.boot_id == boot_id {
            Duration::from_millis(self.at_ms.saturating_sub(system::boottime_ms()))
        } else {
            Duration::ZERO
        }
    }
}

fn new_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

pub(super) fn make_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
