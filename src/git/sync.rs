//! Bringing many new files to disk for the price of one. On file systems with one sequential journal, the sync of a file
//! made after them brings all their names and sizes along, once their data was handed to the disk (git's own way, too);
//! on all others, and where that cannot be told, each file is synced by itself.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Syncs new files, their names included, all of one file system; `beside` is a folder on it that may be written. What is
/// not there is passed over: it was packed meanwhile, and packs are synced by whoever writes them.
pub(super) fn new_files(paths: impl IntoIterator<Item = PathBuf>, beside: &Path) -> Result<(), (PathBuf, io::Error)> {
    let mut files = Vec::new();
    for path in paths {
        match File::open(&path) {
            Ok(file) => {
                begin(&file);
                files.push((path, file));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err((path, e)),
        }
    }
    let together = files.len() > 1 && files.iter().all(|(_, file)| has_one_journal(file));
    for (path, file) in &files {
        let done = if together { finish(file) } else { file.sync_all() };
        done.map_err(|e| (path.clone(), e))?;
    }
    if together { barrier(beside).map_err(|e| (beside.to_owned(), e)) } else { Ok(()) }
}

/// Syncs a file that was just made or renamed; true where its name is on disk with it, else its folder is to be synced.
pub(super) fn renamed(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    file.sync_all()?;
    Ok(has_one_journal(&file))
}

/// Makes, syncs and removes a file. One of the files before may be an old one, whose sync would write no journal.
fn barrier(folder: &Path) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    // Git takes away what is left under such a name.
    let path = folder.join(format!("tmp_obj_sync_{}_{n}", std::process::id()));
    let done = File::create(&path)?.sync_all();
    let _ = std::fs::remove_file(&path);
    done
}

/// ext4 and XFS: what was changed earlier is in the journal before what was changed later, and a sync writes the journal
/// up to the file's own change. Btrfs keeps a log for each file and is not among them.
#[cfg(target_os = "linux")]
fn has_one_journal(file: &File) -> bool {
    use nix::sys::statfs::{EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, fstatfs};
    fstatfs(file).is_ok_and(|fs| [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC].contains(&fs.filesystem_type()))
}

#[cfg(not(target_os = "linux"))]
fn has_one_journal(_: &File) -> bool {
    false
}

/// Starts writing, so that the disk works while others are opened. A failure costs speed alone.
#[cfg(target_os = "linux")]
fn begin(file: &File) {
    let _ = range(file, libc::SYNC_FILE_RANGE_WRITE);
}

#[cfg(not(target_os = "linux"))]
fn begin(_: &File) {}

/// Waits until the data is with the disk; names and sizes are still to follow with a sync.
#[cfg(target_os = "linux")]
fn finish(file: &File) -> io::Result<()> {
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    range(file, all).or_else(|_| file.sync_all())
}

#[cfg(not(target_os = "linux"))]
fn finish(file: &File) -> io::Result<()> {
    file.sync_all()
}

#[cfg(target_os = "linux")]
fn range(file: &File, how: libc::c_uint) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    // SAFETY: the descriptor is open for the length of the call, which touches no memory of ours.
    let done = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, how) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
