//! Removing folders that an agent had in hand. Nothing is followed out of the root: links are removed, never their
//! targets, a mounted file system stops the removal, and folders without write permission are opened first. Each removal
//! is one log line with the absolute real path.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Why a folder was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("{} is no plain name inside {}", name.display(), root.display())]
    Outside { root: PathBuf, name: PathBuf },
    #[error("the real place of {} is {}", root.display(), real.display())]
    Moved { root: PathBuf, real: PathBuf },
    #[error("{} is a mount point inside what should be removed", .0.display())]
    Mounted(PathBuf),
    #[error("could not remove {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Removes `root/name`, whatever it is. `root` must be its own real path, so no link on the way can lead elsewhere.
/// True where there was something.
pub fn remove(root: &Path, name: &OsStr) -> Result<bool, RemoveError> {
    let plain = Path::new(name).components().count() == 1
        && matches!(Path::new(name).components().next(), Some(std::path::Component::Normal(n)) if n == name);
    if !plain {
        return Err(RemoveError::Outside { root: root.into(), name: name.into() });
    }
    let real = root.canonicalize().map_err(|source| RemoveError::Io { path: root.into(), source })?;
    if real != root {
        return Err(RemoveError::Moved { root: root.into(), real });
    }
    let path = root.join(name);
    let fail = |source| RemoveError::Io { path: path.clone(), source };
    let meta = match path.symlink_metadata() {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(fail(e)),
    };
    if meta.is_dir() {
        if let Some(mount) = mount_below(&path) {
            return Err(RemoveError::Mounted(mount));
        }
        // The standard library opens each folder relative to its parent and follows no link.
        if std::fs::remove_dir_all(&path).is_err() {
            open_up(&path);
            std::fs::remove_dir_all(&path).map_err(fail)?;
        }
    } else {
        std::fs::remove_file(&path).map_err(fail)?;
    }
    tracing::info!(path = %path.display(), "removed");
    Ok(true)
}

/// Gives the owner read, write and search permission on `top` and all folders below it; links are not followed.
pub fn open_up(top: &Path) {
    let mut todo = vec![top.to_owned()];
    while let Some(dir) = todo.pop() {
        let Ok(meta) = dir.symlink_metadata() else { continue };
        if !meta.is_dir() {
            continue;
        }
        if meta.permissions().mode() & 0o700 != 0o700 {
            let mode = meta.permissions().mode() | 0o700;
            let _ = std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode));
        }
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                todo.push(entry.path());
            }
        }
    }
}

/// Removes what git neither lists nor cleans: pipes, sockets and devices, and folders that hold nothing. `.git` is passed
/// over, links are not followed.
pub fn sweep(top: &Path) -> io::Result<()> {
    let mut folders = vec![top.to_owned()];
    let mut next = 0;
    while let Some(folder) = folders.get(next).cloned() {
        next += 1;
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if entry.file_name() != ".git" {
                    folders.push(entry.path());
                }
            } else if !kind.is_file() && !kind.is_symlink() {
                std::fs::remove_file(entry.path())?;
            }
        }
    }
    // What holds something is not removed, and the deepest come first.
    for folder in folders[1..].iter().rev() {
        match std::fs::remove_dir(folder) {
            Err(e) if e.kind() != io::ErrorKind::DirectoryNotEmpty => return Err(e),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// A mount point at or below `path`, where the system tells. Removing through it would empty another file system.
pub fn mount_below(path: &Path) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let points = table.split(|b| *b == b'\n').filter_map(|line| line.split(|b| *b == b' ').nth(4));
    points.map(|raw| PathBuf::from(OsStr::from_bytes(&unescape(raw)))).find(|point| point.starts_with(path))
}

/// Undoes the octal escapes of the mount table.
fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((&first, after)) = rest.split_first() {
        let octal = (first == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        if let Some(byte) = octal {
            out.push(byte);
            rest = &after[3..];
        } else {
            out.push(first);
            rest = after;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_removed_and_never_their_targets() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let (root, precious) = (top.join("root"), top.join("precious"));
        std::fs::create_dir_all(root.join("a/ro/x")).unwrap();
        std::fs::create_dir(&precious).unwrap();
        std::fs::write(precious.join("f"), "keep").unwrap();
        std::fs::write(root.join("a/ro/x/y"), "").unwrap();
        std::os::unix::fs::symlink(&precious, root.join("a/data")).unwrap();
        std::os::unix::fs::symlink(&precious, root.join("b")).unwrap();
        std::fs::set_permissions(root.join("a/ro"), std::fs::Permissions::from_mode(0o555)).unwrap();
        assert!(remove(&root, OsStr::new("a")).unwrap());
        assert!(remove(&root, OsStr::new("b")).unwrap());
        assert!(!remove(&root, OsStr::new("b")).unwrap());
        assert_eq!(std::fs::read_to_string(precious.join("f")).unwrap(), "keep");
        for name in ["..", ".", "a/b", "", "/etc"] {
            assert!(matches!(remove(&root, OsStr::new(name)), Err(RemoveError::Outside { .. })), "{name}");
        }
        std::os::unix::fs::symlink(&precious, top.join("linked")).unwrap();
        assert!(matches!(remove(&top.join("linked"), OsStr::new("f")), Err(RemoveError::Moved { .. })));
        assert!(precious.join("f").exists());
    }

    #[test]
    fn the_mount_table_is_read_with_its_escapes() {
        assert_eq!(unescape(br"/a\040b\134c"), b"/a b\\c");
        assert!(mount_below(Path::new("/proc")).is_some_and(|p| p.starts_with("/proc")));
    }
}
