//! What the local user approved. The bytes are kept by their hash in the data folder and that copy is what runs; the
//! file in the repository is only ever a proposal that differs from it or not.

use super::files::{FileError, private_folder, read_whole, write_whole};
use crate::domain::ProjectId;
use crate::domain::safe::shown;
use gix::diff::blob::{Algorithm, Diff, InternedInput};
use std::fmt;
use std::path::{Path, PathBuf};

/// Lines shown around a difference.
const CONTEXT: usize = 3;

/// The approved copies of all projects.
#[derive(Debug, Clone)]
pub struct Approvals {
    /// The data folder; copies are in `projects/<id>/approved/`.
    data: PathBuf,
}

/// The copy that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approved {
    /// `sha256:…` of the bytes.
    pub hash: String,
    pub bytes: Vec<u8>,
}

/// How the file in the repository stands to the approved copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    Same,
    /// It differs; the lines lead from the approved copy to the file.
    Changed {
        diff: Vec<DiffLine>,
    },
    /// Nothing was ever approved.
    Never,
}

/// One line of a readable difference. `Display` makes it safe for a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiffLine {
    /// The lines that follow start at these numbers (before, after), from 1.
    At(usize, usize),
    Same(String),
    Removed(String),
    Added(String),
}

impl fmt::Display for DiffLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(before, after) => write!(f, "@@ -{before} +{after} @@"),
            Self::Same(text) => write!(f, " {}", shown(text)),
            Self::Removed(text) => write!(f, "-{}", shown(text)),
            Self::Added(text) => write!(f, "+{}", shown(text)),
        }
    }
}

impl Approvals {
    /// Approvals under the data folder `data`.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self { data: data.into() }
    }

    /// Makes `bytes` what runs for `project`; returns their hash. Whether they are a sound configuration is for the
    /// caller to have checked.
    pub fn approve(&self, project: &ProjectId, bytes: &[u8]) -> Result<String, FileError> {
        let folder = self.folder(project);
        private_folder(&folder)?;
        let hash = super::hash(bytes);
        // The copy first: the name in `current` must never lead nowhere.
        write_whole(&copy(&folder, &hash), bytes)?;
        write_whole(&folder.join("current"), format!("{hash}\n").as_bytes())?;
        Ok(hash)
    }

    /// What runs for `project`; `None` when nothing was approved. A copy that does not have its hash is an error and
    /// never runs.
    pub fn approved(&self, project: &ProjectId) -> Result<Option<Approved>, FileError> {
        let folder = self.folder(project);
        let current = folder.join("current");
        let Some(name) = read_whole(&current)? else { return Ok(None) };
        let hash = String::from_utf8_lossy(&name).trim_end().to_owned();
        let digits = hash.strip_prefix("sha256:").unwrap_or_default();
        if digits.len() != 64 || !digits.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()) {
            return Err(FileError::Damaged { path: current, why: "it holds no sha256 name".into() });
        }
        let path = copy(&folder, &hash);
        match read_whole(&path)? {
            None => Err(FileError::Damaged { path, why: "the approved copy is gone".into() }),
            Some(bytes) if super::hash(&bytes) != hash => {
                Err(FileError::Damaged { path, why: "its content is not what was approved".into() })
            }
            Some(bytes) => Ok(Some(Approved { hash, bytes })),
        }
    }

    /// How `bytes` (the file as it is now) stand to the approved copy.
    pub fn status(&self, project: &ProjectId, bytes: &[u8]) -> Result<Status, FileError> {
        Ok(match self.approved(project)? {
            None => Status::Never,
            Some(approved) if approved.bytes == bytes => Status::Same,
            Some(approved) => Status::Changed { diff: diff(&approved.bytes, bytes) },
        })
    }

    fn folder(&self, project: &ProjectId) -> PathBuf {
        self.data.join("projects").join(project.as_str()).join("approved")
    }
}

fn copy(folder: &Path, hash: &str) -> PathBuf {
    folder.join(format!("{}.toml", hash.replace(':', "-")))
}

/// The lines that lead from `before` to `after`, with some context.
pub fn diff(before: &[u8], after: &[u8]) -> Vec<DiffLine> {
    let (before, after) = (String::from_utf8_lossy(before), String::from_utf8_lossy(after));
    let (before, after): (Vec<&str>, Vec<&str>) = (lines(&before), lines(&after));
    let mut input: InternedInput<&str> = InternedInput::default();
    input.update_before(before.iter().copied());
    input.update_after(after.iter().copied());
    let diff = Diff::compute(Algorithm::Myers, &input);
    let hunks: Vec<_> = diff.hunks().collect();
    let mut out = Vec::new();
    // Up to where the lines of `before` were shown.
    let mut done = 0;
    for (i, hunk) in hunks.iter().enumerate() {
        let (start, end) = (hunk.before.start as usize, hunk.before.end as usize);
        let (new_start, new_end) = (hunk.after.start as usize, hunk.after.end as usize);
        let lead = start.saturating_sub(CONTEXT).max(done);
        if lead > done || i == 0 {
            out.push(DiffLine::At(lead + 1, new_start - (start - lead) + 1));
        }
        out.extend(before[lead..start].iter().map(|l| DiffLine::Same((*l).to_owned())));
        out.extend(before[start..end].iter().map(|l| DiffLine::Removed((*l).to_owned())));
        out.extend(after[new_start..new_end].iter().map(|l| DiffLine::Added((*l).to_owned())));
        let next = hunks.get(i + 1).map_or(before.len(), |next| next.before.start as usize);
        done = next.min(end + CONTEXT);
        out.extend(before[end..done].iter().map(|l| DiffLine::Same((*l).to_owned())));
    }
    out
}

/// Lines without their end; a missing final one is said, since the bytes differ by it.
fn lines(text: &str) -> Vec<&str> {
    let mut out: Vec<_> = text.split('\n').collect();
    if out.last() == Some(&"") {
        out.pop();
    } else {
        out.push("(no line end at the end of the file)");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    fn setup() -> (tempfile::TempDir, Approvals, ProjectId) {
        let top = tempfile::tempdir().unwrap();
        let approvals = Approvals::new(top.path().join("data"));
        (top, approvals, ProjectId::parse("p").unwrap())
    }

    fn text(lines: &[DiffLine]) -> String {
        lines.iter().map(|l| format!("{l}\n")).collect()
    }

    #[test]
    fn what_was_approved_is_what_comes_back() {
        let (top, approvals, p) = setup();
        assert_eq!(approvals.approved(&p).unwrap(), None);
        assert_eq!(approvals.status(&p, b"x").unwrap(), Status::Never);
        let hash = approvals.approve(&p, b"a\nb\n").unwrap();
        assert_eq!(hash, crate::config::hash(b"a\nb\n"));
        assert_eq!(approvals.approved(&p).unwrap(), Some(Approved { hash, bytes: b"a\nb\n".to_vec() }));
        assert_eq!(approvals.status(&p, b"a\nb\n").unwrap(), Status::Same);
        approvals.approve(&p, b"c\n").unwrap();
        assert_eq!(approvals.approved(&p).unwrap().unwrap().bytes, b"c\n");
        let folder = top.path().join("data/projects/p/approved");
        assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        for file in std::fs::read_dir(&folder).unwrap() {
            assert_eq!(file.unwrap().metadata().unwrap().mode() & 0o777, 0o600);
        }
        assert_eq!(approvals.approved(&ProjectId::parse("q").unwrap()).unwrap(), None);
    }

    #[test]
    fn a_changed_or_lost_copy_never_runs() {
        let (top, approvals, p) = setup();
        let hash = approvals.approve(&p, b"good").unwrap();
        let folder = top.path().join("data/projects/p/approved");
        std::fs::write(copy(&folder, &hash), b"evil").unwrap();
        assert!(matches!(approvals.approved(&p), Err(FileError::Damaged { .. })));
        assert!(approvals.status(&p, b"evil").is_err());
        std::fs::remove_file(copy(&folder, &hash)).unwrap();
        assert!(matches!(approvals.approved(&p), Err(FileError::Damaged { .. })));
        for name in ["", "sha256:../../x", "sha256:AB", "md5:x"] {
            std::fs::write(folder.join("current"), name).unwrap();
            assert!(matches!(approvals.approved(&p), Err(FileError::Damaged { .. })), "{name:?}");
        }
        approvals.approve(&p, b"good").unwrap();
        assert!(approvals.approved(&p).unwrap().is_some(), "approving again mends it");
    }

    #[test]
    fn differences_read_like_a_patch_and_cannot_drive_a_terminal() {
        let before: String = (1..=20).map(|i| format!("l{i}\n")).collect();
        let after = before.replace("l5\n", "l5\x1b[2Kx\r\n").replace("l18\n", "").replace("l7\n", "l7\nnew\n");
        assert_eq!(
            text(&diff(before.as_bytes(), after.as_bytes())),
            "@@ -2 +2 @@\n l2\n l3\n l4\n-l5\n+l5\\u{1b}[2Kx\\r\n l6\n l7\n+new\n l8\n l9\n l10\n\
             @@ -15 +16 @@\n l15\n l16\n l17\n-l18\n l19\n l20\n"
        );
        assert_eq!(text(&diff(b"a\n", b"a")), "@@ -1 +1 @@\n a\n+(no line end at the end of the file)\n");
        assert_eq!(text(&diff(b"", b"a\n")), "@@ -1 +1 @@\n+a\n");
        assert!(diff(b"a\n", b"a\n").is_empty());
    }
}
