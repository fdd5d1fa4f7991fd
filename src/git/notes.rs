//! What the pool knows of each numbered worktree, one short file per number in a folder beside the pool's root. No git
//! command and no worktree leads there, so a note says what we did and not what an agent would have us believe.

use super::seal;
use crate::domain::Oid;
use std::io;
use std::path::{Path, PathBuf};

/// The note on one number.
#[derive(Debug)]
pub(super) enum Note {
    /// Ready to be lent, at this commit where known.
    Idle(Option<Oid>),
    Leased {
        branch: String,
        base: Oid,
        /// Tells this lending from every other of the same worktree.
        nonce: String,
    },
    /// To be removed, and why that failed.
    Aside(String),
}

/// The folder of notes.
#[derive(Debug, Clone)]
pub(super) struct Notes(PathBuf);

impl Notes {
    /// The notes of the pool at `root`, in `<root>.notes`.
    pub(super) fn beside(root: &Path) -> io::Result<Self> {
        let mut name = root.file_name().unwrap_or_default().to_owned();
        name.push(".notes");
        let folder = root.with_file_name(name);
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    pub(super) fn place(&self, n: u32) -> PathBuf {
        self.0.join(n.to_string())
    }

    pub(super) fn write(&self, n: u32, note: &Note) -> io::Result<()> {
        let text = match note {
            Note::Idle(at) => format!("idle {}\n", at.as_ref().map_or("-", Oid::as_str)),
            Note::Leased { branch, base, nonce } => format!("leased {base} {nonce} {branch}\n"),
            Note::Aside(reason) => format!("aside {}\n", reason.replace('\n', " ")),
        };
        seal::write(&self.place(n), text.as_bytes())
    }

    /// `None` where there is no note, or none that can be read: then what the number holds is unknown.
    pub(super) fn read(&self, n: u32) -> Option<Note> {
        let text = std::fs::read_to_string(self.place(n)).ok()?;
        let (word, rest) = text.trim_end().split_once(' ')?;
        match word {
            "idle" => Some(Note::Idle(Oid::parse(rest).ok())),
            "aside" => Some(Note::Aside(rest.to_owned())),
            "leased" => {
                let mut parts = rest.splitn(3, ' ');
                let (base, nonce, branch) = (parts.next()?, parts.next()?.to_owned(), parts.next()?.to_owned());
                Some(Note::Leased { branch, base: Oid::parse(base).ok()?, nonce })
            }
            _ => None,
        }
    }

    pub(super) fn forget(&self, n: u32) {
        let _ = std::fs::remove_file(self.place(n));
    }
}
