//! The machine we run on: its clocks, its disks, its name, and which process is which. Plain readings; what they mean is
//! for the rules.

pub mod clock;
pub mod disk;

use std::io;
use std::path::PathBuf;

/// A reading that could not be taken. Unknown is not zero: nothing may be concluded from it.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("the clock could not be read")]
    Clock(#[source] io::Error),
    #[error("the id of the machine's start could not be read")]
    BootId(#[source] io::Error),
    #[error("the free space at {} could not be read", path.display())]
    Disk { path: PathBuf, source: io::Error },
}

/// When `pid` started, in a unit of its own: together with the boot id it tells a process from a later one with the same
/// number. `None` when there is no such process.
#[cfg(target_os = "linux")]
pub fn start_time(pid: i32) -> Option<u64> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The command in parentheses may hold any byte. Field 22, see proc_pid_stat(5).
    let at = text.iter().rposition(|b| *b == b')')?;
    std::str::from_utf8(text.get(at + 1..)?).ok()?.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(not(target_os = "linux"))]
pub fn start_time(pid: i32) -> Option<u64> {
    // SAFETY: an all-zero record is valid, and the call fills in at most the size we give.
    let mut info: libc::proc_bsdinfo = unsafe { std::mem::zeroed() };
    let size = i32::try_from(size_of::<libc::proc_bsdinfo>()).unwrap_or(0);
    let got = unsafe { libc::proc_pidinfo(pid, libc::PROC_PIDTBSDINFO, 0, (&raw mut info).cast(), size) };
    (got == size).then(|| info.pbi_start_tvsec * 1_000_000 + info.pbi_start_tvusec)
}

/// The machine's name, for people.
pub fn machine() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|n| n.into_string().ok());
    name.filter(|n| !n.is_empty()).unwrap_or_else(|| "localhost".into())
}

/// The user's name, or number where it has none.
pub fn user() -> String {
    let uid = nix::unistd::geteuid();
    nix::unistd::User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |u| u.name)
}

/// Who we are in claims and messages: `user@machine`.
pub fn owner() -> String {
    format!("{}@{}", user(), machine())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_one_that_does_not_exist() {
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(start_time(me).is_some_and(|t| t > 0 && Some(t) == start_time(me)));
        assert_eq!(start_time(i32::MAX), None);
        assert!(owner().contains('@'));
    }
}
