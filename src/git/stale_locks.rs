//! Lock files that a killed process left in a bare repository of ours. Git and gix take a lock file for a living holder
//! and fail for ever; nothing in the file tells. So it is looked at twice: one that has not changed meanwhile belongs to
//! nobody, since refs are locked for moments only.

#![expect(clippy::disallowed_methods, reason = "a lock is stale when it does not change for a while")]

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longer than any living process holds a lock on refs.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// What stays the same while nobody touches a file.
#[derive(PartialEq, Eq)]
struct Stamp {
    inode: u64,
    changed: (i64, i64),
    size: u64,
}

/// Removes locks on refs and configuration in `git_dir` that do not change within `patience`; gives them. Returns at once
/// where there are none, and blocks for `patience` where there are. Locks of worktrees are not looked at: an agent's
/// commit may hold one for as long as its hooks run.
pub fn clear(git_dir: &Path, patience: Duration) -> io::Result<Vec<PathBuf>> {
    let found: Vec<_> = locks(git_dir)?.into_iter().filter_map(|p| stamp(&p).map(|s| (p, s))).collect();
    if found.is_empty() {
        return Ok(Vec::new());
    }
    std::thread::sleep(patience);
    let mut cleared = Vec::new();
    for (path, before) in found {
        if stamp(&path).is_some_and(|now| now == before) {
            std::fs::remove_file(&path)?;
            tracing::warn!(path = %path.display(), "a lock that a killed process had left was removed");
            cleared.push(path);
        }
    }
    Ok(cleared)
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = path.symlink_metadata().ok()?;
    Some(Stamp { inode: meta.ino(), changed: (meta.mtime(), meta.mtime_nsec()), size: meta.size() })
}

fn locks(git_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found: Vec<_> = ["packed-refs.lock", "HEAD.lock", "config.lock"].map(|n| git_dir.join(n)).into();
    let mut folders = vec![git_dir.join("refs")];
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            // An empty folder of refs may be removed by whoever deletes the last ref in it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else if entry.path().extension().is_some_and(|end| end == "lock") {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_locks_that_nobody_touches_go() {
        let dir = tempfile::tempdir().unwrap();
        let refs = dir.path().join("refs/heads/overnight");
        std::fs::create_dir_all(&refs).unwrap();
        assert_eq!(clear(dir.path(), Duration::from_secs(60)).unwrap(), Vec::<PathBuf>::new());
        let (dead, alive) = (dir.path().join("packed-refs.lock"), refs.join("main.lock"));
        std::fs::write(&dead, "").unwrap();
        std::fs::write(refs.join("main"), "").unwrap();
        std::fs::write(&alive, "").unwrap();
        let cleared = std::thread::scope(|scope| {
            let all = scope.spawn(|| clear(dir.path(), Duration::from_millis(600)).unwrap());
            std::thread::sleep(Duration::from_millis(200));
            std::fs::write(&alive, "somebody writes").unwrap();
            all.join().unwrap()
        });
        assert_eq!(cleared, std::slice::from_ref(&dead));
        assert!(!dead.exists() && alive.exists() && refs.join("main").exists());
    }
}
