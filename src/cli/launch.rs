//! Starting the daemon as a process of its own, detached from the terminal, and waiting until it answers.

#![expect(
    clippy::disallowed_methods,
    reason = "the daemon is this program's own file, and is asked until it answers or has ended"
)]

use super::context::{Context, file_error};
use crate::client;
use crate::config::files::private_folder;
use crate::error::CliError;
use crate::protocol::{ErrorKind, Reply};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What the daemon prints beside its log: refusals to start, and the last words of a crash.
const OUTPUT: &str = "daemon.out";
/// How long a new daemon may take until it answers.
const PATIENCE: Duration = Duration::from_secs(10);
/// Lines of its output that an error shows.
const TAIL: usize = 8;

/// Starts the daemon and returns its pid once it answers.
pub(super) fn detached(cx: &Context) -> Result<u32, CliError> {
    cx.places.prepare().map_err(|e| file_error(&e))?;
    let logs = cx.places.logs();
    private_folder(&logs).map_err(|e| file_error(&e))?;
    let path = logs.join(OUTPUT);
    let failed = |what: &str, e: &std::io::Error| {
        let mut error = CliError::new(ErrorKind::Failed, what);
        error.causes.push(e.to_string());
        error
    };
    let output = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let mut output = output.map_err(|e| failed("could not open the daemon's output file", &e))?;
    let from = output.seek(SeekFrom::End(0)).unwrap_or(0);
    let errors = output.try_clone().map_err(|e| failed("could not open the daemon's output file", &e))?;
    let program = std::env::current_exe().map_err(|e| failed("could not find this program's own file", &e))?;
    // No process flags: it is spawned without a fork, and makes a session of its own as its first act.
    let spawned = Command::new(program)
        .arg("__daemon")
        .current_dir(&cx.places.data)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn();
    let mut child = spawned.map_err(|e| failed("could not start the daemon", &e))?;
    let end = Instant::now() + PATIENCE;
    loop {
        if let Ok(Reply::Pong { pid, .. }) = client::ping(&cx.places, Duration::from_millis(500)) {
            return Ok(pid);
        }
        let ended = child.try_wait().map_err(|e| failed("could not watch the daemon start", &e))?;
        if let Some(status) = ended {
            return Err(told("the daemon ended as it started", &format!("{status}"), &path, from));
        }
        if Instant::now() >= end {
            let why = format!("process {} is there; it may still be reading a large project", child.id());
            return Err(told("the daemon does not answer yet", &why, &path, from));
        }
        std::thread::sleep(Duration::from_millis(25));
    }
}

fn told(what: &str, cause: &str, output: &Path, from: u64) -> CliError {
    let mut error = CliError::new(ErrorKind::Failed, what);
    error.causes.push(cause.to_owned());
    error.causes.extend(tail(output, from));
    error.hint("`overnight logs` shows its log, `overnight doctor` looks for the cause")
}

/// The last lines that were printed since `from`.
fn tail(path: &Path, from: u64) -> Vec<String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(from))?;
        file.take(64 << 10).read_to_end(&mut bytes)
    });
    if read.is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL)..].iter().map(|line| (*line).to_owned()).collect()
}
