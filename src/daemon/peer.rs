//! Who is asking: a person, or something that a run of ours has started. What descends from a shim has no person's verbs,
//! whatever it says of itself; without a fence this guards against mistakes, not against malice.

use crate::process::RUN_VAR;

/// How far up a process's parents are followed.
const DEPTH: usize = 64;

/// What a process is called that cannot be looked into.
const UNKNOWN: &str = "a process that cannot be told from a run";

/// The run that the process `pid` belongs to, by its own environment or that of a process above it, or by a shim above it.
/// `None` for a person's process. One that is gone, or that hides its environment, counts as a run's: whoever asks waits
/// for the answer. Processes above it may be another user's and unreadable (a login, `sudo`): they carry no mark of ours,
/// and what stands above them is looked at all the same.
///
/// Where there is no `/proc` at all nothing can be told, and everybody counts as a person.
pub fn run_of(pid: i32) -> Option<String> {
    if !std::path::Path::new("/proc/self/stat").exists() {
        return None;
    }
    let unknown = || Some(UNKNOWN.to_owned());
    let (mut at, mut below) = (pid, None);
    for _ in 0..DEPTH {
        match environ(at) {
            Ok(environ) => {
                if let Some(run) = mark(&environ) {
                    return Some(run);
                }
            }
            Err(_) if below.is_none() => return unknown(),
            Err(_) => {}
        }
        if is_shim(at) {
            return Some("a run".into());
        }
        match (stat(at), below) {
            // Nobody waits for the answer any more.
            (Some(('Z' | 'X', _)) | None, None) => return unknown(),
            (Some((_, parent)), _) if parent <= 1 => return None,
            (Some((_, parent)), _) => (at, below) = (parent, Some(at)),
            // It ended meanwhile, and the one below has another parent; or it is another user's and wholly hidden.
            (None, Some(child)) => match stat(child) {
                Some((_, parent)) if parent <= 1 || parent == at => return None,
                Some((_, parent)) => at = parent,
                None => return unknown(),
            },
        }
    }
    unknown()
}

fn environ(pid: i32) -> std::io::Result<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/environ"))
}

fn mark(environ: &[u8]) -> Option<String> {
    let prefix = format!("{RUN_VAR}=");
    environ
        .split(|b| *b == 0)
        .find_map(|entry| entry.strip_prefix(prefix.as_bytes()))
        .map(|run| String::from_utf8_lossy(run).into_owned())
}

fn is_shim(pid: i32) -> bool {
    let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let mut words = line.split(|b| *b == 0);
    words.next() == Some(b"overnight") && matches!(words.next(), Some(b"__shim" | b"__stage"))
}

/// State and parent of a process.
fn stat(pid: i32) -> Option<(char, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name stands in brackets and may hold anything, brackets too.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_the_mark_and_what_it_starts_belong_to_a_run() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 30 & echo $!; wait"])
            .env(RUN_VAR, "p.t.1")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        let inner: i32 = line.trim().parse().unwrap();
        let outer = i32::try_from(child.id()).unwrap();
        assert_eq!((run_of(outer).as_deref(), run_of(inner).as_deref()), (Some("p.t.1"), Some("p.t.1")));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(inner), nix::sys::signal::Signal::SIGKILL).unwrap();
        child.wait().unwrap();
    }
    #[test]
    fn a_process_that_is_gone_or_ended_counts_as_a_runs_and_a_persons_does_not() {
        let mut child = std::process::Command::new("sleep").arg("30").env_clear().spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let ours = i32::try_from(std::process::id()).unwrap();
        assert_eq!((run_of(ours), run_of(pid)), (None, None));
        child.kill().unwrap();
        while stat(pid).is_some_and(|(state, _)| state != 'Z') {
            std::thread::yield_now();
        }
        assert_eq!(run_of(pid).as_deref(), Some(UNKNOWN), "ended, and nobody has looked yet");
        child.wait().unwrap();
        for gone in [pid, 0, -1] {
            assert_eq!(run_of(gone).as_deref(), Some(UNKNOWN), "{gone}");
        }
    }
}
