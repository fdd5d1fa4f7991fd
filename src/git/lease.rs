//! A worktree in somebody's hands: the lease that an attempt holds on one worktree of the pool, and what an inventory
//! finds under each number after a start.

use super::worktree::Worktree;
use crate::domain::Oid;
use std::path::{Path, PathBuf};

/// A worktree lent to one attempt.
#[derive(Debug, Clone)]
pub struct Lease {
    pub(super) worktree: Worktree,
    pub(super) n: u32,
    pub(super) branch: String,
    pub(super) base: Oid,
    pub(super) nonce: String,
}

impl Lease {
    /// The folder.
    pub fn path(&self) -> &Path {
        self.worktree.path()
    }

    /// The worktree's own git dir.
    pub fn git_dir(&self) -> &Path {
        self.worktree.git_dir()
    }

    /// The number that the pool knows it by.
    pub fn number(&self) -> u32 {
        self.n
    }

    /// The branch that the attempt works on, without `refs/heads/`.
    pub fn branch(&self) -> &str {
        &self.branch
    }

    /// The commit that the attempt started from.
    pub fn base(&self) -> &Oid {
        &self.base
    }
}

/// What the inventory found under one number.
#[derive(Debug, Clone)]
pub enum Found {
    /// Ready to be lent.
    Idle { n: u32 },
    /// Lent when the daemon ended; adopt it, or rescue it and give it back.
    Leased(Box<Lease>),
    /// Lent, but changed so that git cannot be run in it; its files are still there to be rescued.
    Broken { lease: Box<Lease>, why: String },
    /// Registered, but its folder is gone; the registration was dropped and its commit kept.
    Missing { n: u32, kept: Option<Oid> },
    /// Could not be removed earlier.
    Aside { n: u32, reason: String },
    /// Not ours; left alone, the number stays unused.
    Foreign { path: PathBuf },
}
