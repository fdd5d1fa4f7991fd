//! Who is asking: a person, or something that a run of ours has started. What descends from a shim has no person's verbs,
//! whatever it says of itself; without a fence this guards against mistakes, not against malice.

use crate::process::RUN_VAR;

/// How far up a process's parents are followed.
const DEPTH: usize = 64;

/// The run that the process `pid` belongs to, by its own environment or that of a process above it, or by a shim above it.
/// `None` for a person's process. Where `/proc` cannot be read the environment of this process is all there is to go by.
pub fn run_of(pid: i32) -> Option<String> {
    let mut at = pid;
    for _ in 0..DEPTH {
        if at <= 1 {
            return None;
        }
        if let Some(run) = variable(at) {
            return Some(run);
        }
        if is_shim(at) {
            return Some("a run".into());
        }
        at = parent(at)?;
    }
    None
}

fn variable(pid: i32) -> Option<String> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
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

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name stands in brackets and may hold anything, brackets too.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
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
}
