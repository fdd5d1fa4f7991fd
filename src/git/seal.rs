//! The sealed copy of what decides how git behaves in the mirror: its configuration, `info/`, `hooks/`, alternates and
//! HEAD. Every worktree can write these, so they are compared with a copy outside the git dir before any git of ours
//! runs there; what was changed, added or removed is put back and named.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// What an agent had done to one sealed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tamper {
    Changed,
    Added,
    Removed,
}

/// A sealed file that was put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Relative to the git dir.
    pub path: PathBuf,
    pub tamper: Tamper,
}

/// Single files that are sealed; `shallow` must stay absent, since it cuts history for everybody.
const FILES: &[&str] = &[
    "config",
    "config.worktree",
    "HEAD",
    "shallow",
    "commondir",
    "objects/info/alternates",
    "objects/info/http-alternates",
];
/// Folders that are sealed with all that is in them.
const FOLDERS: &[&str] = &["info", "hooks"];

/// Copies the present state to `seal`, replacing an earlier copy.
pub fn make(git_dir: &Path, seal: &Path) -> io::Result<()> {
    if seal.exists() {
        std::fs::remove_dir_all(seal)?;
    }
    std::fs::create_dir_all(seal)?;
    for (path, found) in read(git_dir)? {
        if let Found::File(bytes) = found {
            write(&seal.join(path), &bytes)?;
        }
    }
    Ok(())
}

/// Compares and restores. A few small reads where nothing was touched.
pub fn verify(git_dir: &Path, seal: &Path) -> io::Result<Vec<Restored>> {
    let sealed = read(seal)?;
    if sealed.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the mirror's sealed copy is missing"));
    }
    let mut restored = Vec::new();
    for folder in FOLDERS {
        // A link or file in the folder's place would lead the restoring astray.
        let path = git_dir.join(folder);
        if path.symlink_metadata().is_ok_and(|m| !m.is_dir()) {
            std::fs::remove_file(&path)?;
            restored.push(Restored { path: folder.into(), tamper: Tamper::Changed });
        }
    }
    let live = read(git_dir)?;
    for path in live.keys().filter(|p| !sealed.contains_key(*p)) {
        clear(&git_dir.join(path))?;
        restored.push(Restored { path: path.clone(), tamper: Tamper::Added });
    }
    for (path, want) in &sealed {
        let tamper = match live.get(path) {
            Some(have) if have == want => continue,
            Some(_) => Tamper::Changed,
            None => Tamper::Removed,
        };
        if let Found::File(bytes) = want {
            if live.get(path).is_some_and(|f| *f == Found::Other) {
                clear(&git_dir.join(path))?;
            }
            write(&git_dir.join(path), bytes)?;
            restored.push(Restored { path: path.clone(), tamper });
        }
    }
    Ok(restored)
}

#[derive(PartialEq, Eq)]
enum Found {
    File(Vec<u8>),
    /// A link, a folder below a sealed folder, or something special.
    Other,
}

fn read(top: &Path) -> io::Result<BTreeMap<PathBuf, Found>> {
    let mut out = BTreeMap::new();
    let mut take = |relative: PathBuf| -> io::Result<()> {
        let path = top.join(&relative);
        match path.symlink_metadata() {
            Ok(m) if m.is_file() => out.insert(relative, Found::File(std::fs::read(path)?)),
            Ok(_) => out.insert(relative, Found::Other),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        Ok(())
    };
    for file in FILES {
        take(PathBuf::from(file))?;
    }
    for folder in FOLDERS {
        match std::fs::read_dir(top.join(folder)) {
            Ok(entries) => {
                for entry in entries {
                    let name = entry?.file_name();
                    // Written by git itself for dumb transports.
                    if *folder == "info" && name == "refs" {
                        continue;
                    }
                    take(Path::new(folder).join(name))?;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(out)
}

fn clear(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(m) if m.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Writes beside and renames, so that no git ever reads half a file.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".overnight-new");
    let beside = path.with_file_name(name);
    clear(&beside)?;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&beside)?;
    file.write_all(bytes)?;
    drop(file);
    std::fs::rename(&beside, path)
}
