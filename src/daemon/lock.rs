//! One daemon for all of a user's projects: a lock file, held for as long as the ring turns, whoever turns it. The holder
//! writes its pid and what it is into the file, so that the next one can name it. The file is never removed: a lock on a
//! removed file is held by two.

#![expect(clippy::disallowed_methods, reason = "the lock is asked for again until a deadline: flock knows no timeout")]

use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long anybody waits for the lock.
pub const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

/// Why the lock is not ours.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{holder} holds {}", path.display())]
    Held { path: PathBuf, holder: String },
    #[error("the lock {} cannot be used", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

/// The proof that this process alone turns the ring.
#[derive(Debug)]
pub struct Ours {
    _file: Flock<File>,
    anchor: Anchor,
}

impl Ours {
    /// The lock file: whoever removes or moves it lets another process lock another one.
    pub fn anchor(&self) -> &Anchor {
        &self.anchor
    }
}

/// A file that stays where it is for as long as we live. When it goes, so did the folder around it.
#[derive(Debug, Clone)]
pub struct Anchor {
    path: PathBuf,
    id: (u64, u64),
}

impl Anchor {
    pub fn of(path: &Path) -> std::io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: file_id(path)? })
    }

    /// Whether it is still that file. One that cannot be looked at for another reason than its absence is taken to be.
    pub fn is_there(&self) -> bool {
        match file_id(&self.path) {
            Ok(id) => id == self.id,
            Err(e) => !matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn file_id(path: &Path) -> std::io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    path.metadata().map(|m| (m.dev(), m.ino()))
}

/// Takes the lock at once or not at all.
pub fn try_take(path: &Path, what: &str) -> Result<Ours, LockError> {
    take_within(path, what, Duration::ZERO)
}

/// Takes the lock within `patience`.
pub fn take_within(path: &Path, what: &str, patience: Duration) -> Result<Ours, LockError> {
    let io = |source| LockError::Io { path: path.to_owned(), source };
    let until = Instant::now() + patience;
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path).map_err(io)?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut held) => {
                held.set_len(0).map_err(io)?;
                held.rewind().map_err(io)?;
                write!(held, "{what} (pid {})", std::process::id()).map_err(io)?;
                return Ok(Ours { _file: held, anchor: Anchor::of(path).map_err(io)? });
            }
            Err((back, nix::errno::Errno::EWOULDBLOCK)) => {
                file = back;
                if Instant::now() >= until {
                    let mut holder = String::new();
                    let _ = file.rewind();
                    let _ = file.read_to_string(&mut holder);
                    let holder = if holder.is_empty() { "another process".into() } else { holder };
                    return Err(LockError::Held { path: path.to_owned(), holder });
                }
                // Nothing tells of a lock that is given back; this wait is short and bounded.
                std::thread::park_timeout(LOOK);
            }
            Err((_, errno)) => return Err(io(errno.into())),
        }
    }
}

/// Who holds the lock now, for messages.
pub fn holder(path: &Path) -> Option<String> {
    match try_take(path, "a look") {
        Err(LockError::Held { holder, .. }) => Some(holder),
        Ok(_) | Err(LockError::Io { .. }) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_one_is_told_who_was_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = try_take(&path, "the daemon").unwrap();
        let Err(LockError::Held { holder, .. }) = try_take(&path, "another") else { panic!("two holders") };
        assert_eq!(holder, format!("the daemon (pid {})", std::process::id()));
        drop(first);
        let second = try_take(&path, "another").unwrap();
        assert!(second.anchor().is_there());
        std::fs::rename(&path, dir.path().join("away")).unwrap();
        assert!(!second.anchor().is_there());
        let third = try_take(&path, "a third").unwrap();
        assert!(third.anchor().is_there() && !second.anchor().is_there());
    }
}
