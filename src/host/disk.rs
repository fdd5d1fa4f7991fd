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
}
