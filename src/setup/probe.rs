//! Asking a program for its version, with a limit: an agent's CLI may start slowly, wait for a login or print a page.

#![expect(clippy::disallowed_methods, reason = "programs are asked for their version, with a limit")]

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Most of the answer that is read, in bytes.
const MAX_ANSWER: u64 = 4096;

/// The version that `bin --version` prints; `None` when it prints none within `limit`. It is ended in any case, with
/// what it started.
pub(super) fn version(bin: &Path, path_var: &str, limit: Duration) -> Option<String> {
    let mut child = Command::new(bin)
        .arg("--version")
        .env("PATH", path_var)
        // Not in the repository: what stands there must not choose which program answers.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .ok()?;
    let stdout = child.stdout.take();
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answer = Vec::new();
        if let Some(stdout) = stdout {
            let _ = stdout.take(MAX_ANSWER).read_to_end(&mut answer);
        }
        let _ = send.send(answer);
    });
    let answer = receive.recv_timeout(limit);
    // Before the wait, so that the group's number cannot be somebody else's yet.
    if let Ok(id) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
    }
    let _ = child.wait();
    find(&String::from_utf8_lossy(&answer.ok()?))
}

/// The first word of the text that looks like a version.
fn find(text: &str) -> Option<String> {
    let sound = |word: &&str| {
        word.starts_with(|c: char| c.is_ascii_digit())
            && word.contains('.')
            && word.len() <= 40
            && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+' | '_'))
    };
    let words = text.split_whitespace().map(|word| word.trim_start_matches('v').trim_end_matches([',', ')']));
    words.into_iter().find(sound).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::testing::program;
    use std::time::Instant;

    #[test]
    fn versions_are_found_in_what_is_printed() {
        for (text, version) in [
            ("2.1.332 (Claude Code)", Some("2.1.332")),
            ("codex-cli 0.50.0-alpha.1", Some("0.50.0-alpha.1")),
            ("tool version v1.2\n", Some("1.2")),
            ("please log in", None),
            ("1.2\x1b[2J", None),
            ("", None),
        ] {
            assert_eq!(find(text).as_deref(), version, "{text:?}");
        }
    }

    #[test]
    fn a_program_that_hangs_floods_or_fails_costs_no_more_than_the_limit() {
        let top = tempfile::tempdir().unwrap();
        let ask = |text: &str, limit| {
            let agent = top.path().join("agent");
            program(&agent, text);
            version(&agent, "/usr/bin:/bin", limit)
        };
        let long = Duration::from_secs(30);
        assert_eq!(ask("echo agent 1.2.3", long).as_deref(), Some("1.2.3"));
        assert_eq!(ask("exit 3", long), None);
        let start = Instant::now();
        assert_eq!(ask("sleep 60 & sleep 60", Duration::from_millis(200)), None);
        assert_eq!(ask("exec yes 1.0", long).as_deref(), Some("1.0"));
        assert!(start.elapsed() < Duration::from_secs(20));
        assert_eq!(version(Path::new("/nowhere/agent"), "", long), None);
    }
}
