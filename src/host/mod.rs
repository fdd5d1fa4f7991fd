//! The machine we run on: its clocks, its disks and its name. Plain readings; what they mean is for the rules.

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

/// Gives memory that is free again back to the system, after something large was read.
pub fn give_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator's own function, safe to call from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
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
    fn an_owner_is_a_user_at_a_machine() {
        assert!(owner().contains('@'));
    }
}
