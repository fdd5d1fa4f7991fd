//! How much room is left where we write. A night that fills the disk takes everyone's work down with it, so new starts
//! are held before that.

use super::HostError;
use std::path::Path;

/// Room on the file system of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes that this user may still write, and bytes in all.
    pub free: u64,
    pub total: u64,
    /// Files that may still be made; `None` on file systems that do not count them.
    pub free_files: Option<u64>,
}

/// Less free room than this is too little to start anything on, and the likely cause of whatever fails meanwhile.
const FLOOR: u64 = 256 << 20;
/// Small disks have a smaller floor: this part of them.
const FLOOR_PART: u64 = 50;
/// So many files must still be possible to make.
const FLOOR_FILES: u64 = 200;

impl Space {
    /// True when there is too little room to start anything.
    pub fn is_full(&self) -> bool {
        self.free < FLOOR.min(self.total / FLOOR_PART) || self.free_files.is_some_and(|n| n < FLOOR_FILES)
    }
}

/// The room at `path`.
pub fn space(path: &Path) -> Result<Space, HostError> {
    let s =
        nix::sys::statvfs::statvfs(path).map_err(|e| HostError::Disk { path: path.to_owned(), source: e.into() })?;
    #[allow(clippy::useless_conversion, reason = "the fields are narrower on macOS")]
    let (unit, blocks, free) = (u64::from(s.fragment_size()), u64::from(s.blocks()), u64::from(s.blocks_available()));
    #[allow(clippy::useless_conversion, reason = "the fields are narrower on macOS")]
    let (files, free_files) = (u64::from(s.files()), u64::from(s.files_available()));
    Ok(Space {
        free: unit.saturating_mul(free),
        total: unit.saturating_mul(blocks),
        free_files: (files > 0).then_some(free_files),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_read_and_a_missing_path_is_no_empty_disk() {
        let s = space(Path::new("/")).unwrap();
        assert!(s.total >= s.free && s.total > 0);
        assert!(space(Path::new("/no/such/place")).is_err());
    }

    #[test]
    fn the_floor_is_a_part_of_a_small_disk_and_no_more_than_it_takes_of_a_large_one() {
        let s = |free, total, files| Space { free, total, free_files: files }.is_full();
        assert!(s(0, 48 << 20, None) && !s(1 << 20, 48 << 20, None));
        assert!(s(255 << 20, 1 << 40, None) && !s(257 << 20, 1 << 40, None));
        assert!(s(1 << 40, 2 << 40, Some(10)) && !s(1 << 40, 2 << 40, Some(10_000)));
    }
}
