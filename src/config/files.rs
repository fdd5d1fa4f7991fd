//! Files of our own: folders and files for this user only, written whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What went wrong with one of our own files.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("could not make the folder {}", path.display())]
    MakeFolder { path: PathBuf, source: io::Error },
    #[error("could not read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("could not write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("could not lock {}", path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("{} is not safe to use: {why}", path.display())]
    Unsafe { path: PathBuf, why: String },
    #[error("{} is damaged: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
}

/// Makes `path` and what is missing above it (mode 0700, whatever the umask) and checks that it is ours alone.
pub fn private_folder(path: &Path) -> Result<(), FileError> {
    let error = |source| FileError::MakeFolder { path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(error)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        // A umask that takes the owner's bits would leave a folder that nobody can use.
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(error)?,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(error(e)),
    }
    check_private(path)?;
    let mode = fs::symlink_metadata(path).map_err(error)?.mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(error)?;
    }
    Ok(())
}

/// Refuses a folder that is a link, somebody else's, or writable by others: what they put there would be believed.
pub fn check_private(path: &Path) -> Result<(), FileError> {
    let refused = |why: String| Err(FileError::Unsafe { path: path.to_owned(), why });
    let meta = fs::symlink_metadata(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    if !meta.is_dir() {
        return refused("it is no folder".into());
    }
    let me = nix::unistd::geteuid().as_raw();
    if meta.uid() != me {
        return refused(format!("it belongs to user {}, not to {me}", meta.uid()));
    }
    if meta.mode() & 0o022 != 0 {
        return refused(format!("others may write to it (mode {:o})", meta.mode() & 0o777));
    }
    Ok(())
}

/// Writes `path` (mode 0600) so that it holds, after any interruption, either what it held before or all of `bytes`.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let error = |source| FileError::Write { path: path.to_owned(), source };
    let folder = path.parent().ok_or_else(|| error(io::ErrorKind::InvalidInput.into()))?;
    let name = path.file_name().ok_or_else(|| error(io::ErrorKind::InvalidInput.into()))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}-{}.new", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let temporary = folder.join(temporary);
    let written = (|| {
        // One that is there already is left from a process of the same id that was ended in this place.
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(folder)?.sync_all()
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(error)
}

/// The content of `path`; `None` when it does not exist.
pub fn read_whole(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FileError::Read { path: path.to_owned(), source }),
    }
}

/// Held while a file is read, changed and written back; other processes of this user wait.
#[derive(Debug)]
pub struct Locked {
    _file: File,
}

impl Locked {
    /// Waits for the lock file at `path`, made when missing. Ends with the value or its process.
    pub fn wait(path: &Path) -> Result<Self, FileError> {
        let error = |source| FileError::Lock { path: path.to_owned(), source };
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).map_err(error)?;
        file.lock().map_err(error)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn folders_and_files_are_for_this_user_only() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("a/b");
        private_folder(&folder).unwrap();
        private_folder(&folder).unwrap();
        assert_eq!((mode(&folder), mode(&top.path().join("a"))), (0o700, 0o700));
        let file = folder.join("f");
        write_whole(&file, b"one").unwrap();
        write_whole(&file, b"two").unwrap();
        assert_eq!((read_whole(&file).unwrap().unwrap(), mode(&file)), (b"two".to_vec(), 0o600));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing temporary is left");
        assert_eq!(read_whole(&folder.join("none")).unwrap(), None);
    }

    #[test]
    fn readable_by_others_is_tightened_and_writable_by_others_refused() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("a");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        private_folder(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
        for loose in [0o770, 0o707, 0o777] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(loose)).unwrap();
            assert!(matches!(private_folder(&folder), Err(FileError::Unsafe { .. })), "{loose:o}");
        }
        let link = top.path().join("link");
        std::os::unix::fs::symlink(top.path(), &link).unwrap();
        assert!(matches!(private_folder(&link), Err(FileError::Unsafe { .. })));
    }

    #[test]
    fn a_failed_write_leaves_the_old_content() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("target");
        fs::create_dir(&folder).unwrap();
        assert!(write_whole(&folder, b"x").is_err(), "a folder is in the way");
        assert_eq!(fs::read_dir(top.path()).unwrap().count(), 1);
    }
}
