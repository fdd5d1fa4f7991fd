//! What can go wrong with the databases, one variant for each operation. A full disk and a locked database stand apart
//! whatever was being done, because the daemon answers to them: it holds admission and tries again.

use sqlx::migrate::MigrateError;
use std::io;
use std::path::PathBuf;

/// Why a database could not be opened, read or written. The cause is the error's source.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("could not create {}", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("could not open {}", path.display())]
    Open { path: PathBuf, source: sqlx::Error },
    /// The file has been set aside; the next `open` makes a new one.
    #[error("{} is damaged ({why}); it was moved to {}", path.display(), moved_to.display())]
    Damaged { path: PathBuf, moved_to: PathBuf, why: String },
    #[error("{} is damaged ({why}) and could not be moved aside", path.display())]
    SetAside { path: PathBuf, why: String, source: io::Error },
    #[error(
        "{} was written by a newer version of this program (schema {found}, this one knows {known}); {}",
        path.display(), copy_hint(copy.as_ref())
    )]
    Newer { path: PathBuf, found: i64, known: i64, copy: Option<PathBuf> },
    #[error(
        "{} was made by another version of schema {version} than this program has (it knows up to {known}); {}",
        path.display(), copy_hint(copy.as_ref())
    )]
    Changed { path: PathBuf, version: i64, known: i64, copy: Option<PathBuf> },
    #[error(
        "{} says it has schema {version} (this program knows {known}) but lacks {missing}; {}",
        path.display(), copy_hint(copy.as_ref())
    )]
    Incomplete { path: PathBuf, version: i64, known: i64, missing: String, copy: Option<PathBuf> },
    #[error("could not copy {} to {} before its migration", path.display(), copy.display())]
    Copy { path: PathBuf, copy: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    /// Nothing was changed.
    #[error("could not bring {} from schema {from} to {to}; it is as it was", path.display())]
    Migrate { path: PathBuf, from: i64, to: i64, source: MigrateError },
    #[error("could not load the board")]
    Load { source: sqlx::Error },
    #[error("could not save the board")]
    Save { source: sqlx::Error },
    #[error("could not record a run")]
    RecordRun { source: sqlx::Error },
    #[error("could not read the journal")]
    Journal { source: sqlx::Error },
    #[error("could not read the history")]
    History { source: sqlx::Error },
    #[error("could not add up the usage")]
    Usage { source: sqlx::Error },
    #[error("could not drop old journal lines")]
    Prune { source: sqlx::Error },
    #[error("could not read the heartbeats")]
    Beats { source: sqlx::Error },
    #[error("the heartbeat writer is gone")]
    BeatsGone,
    #[error("could not {what}: the disk is full or does not take writes")]
    Full { what: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("could not {what}: another process keeps the database locked")]
    Busy { what: &'static str, source: sqlx::Error },
}

impl StoreError {
    /// True when the database itself is broken: close it and open it again, which sets it aside.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::SetAside { .. } => true,
            Self::Load { source }
            | Self::Save { source }
            | Self::RecordRun { source }
            | Self::Journal { source }
            | Self::History { source }
            | Self::Usage { source }
            | Self::Prune { source }
            | Self::Beats { source }
            | Self::Open { source, .. } => Kind::of(source) == Kind::Damaged,
            Self::Create { .. }
            | Self::Newer { .. }
            | Self::Changed { .. }
            | Self::Incomplete { .. }
            | Self::Copy { .. }
            | Self::Migrate { .. }
            | Self::BeatsGone
            | Self::Full { .. }
            | Self::Busy { .. } => false,
        }
    }
}

fn copy_hint(copy: Option<&PathBuf>) -> String {
    match copy {
        Some(copy) => format!("the copy made before its last migration is {}", copy.display()),
        None => "there is no copy beside it".into(),
    }
}

/// The kinds of failure that are answered differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Busy,
    Full,
    Damaged,
    Other,
}

impl Kind {
    /// Reads SQLite's result code (<https://www.sqlite.org/rescode.html>), which sqlx gives as text.
    pub(super) fn of(error: &sqlx::Error) -> Self {
        if let sqlx::Error::Io(error) = error {
            return if is_full(error) { Self::Full } else { Self::Other };
        }
        let code = error.as_database_error().and_then(|e| e.code()).and_then(|code| code.parse::<i32>().ok());
        // The file was moved away or deleted under the connection.
        if code == Some(1032) {
            return Self::Damaged;
        }
        match code.map(|code| code & 0xff) {
            Some(5 | 6) => Self::Busy,
            Some(10 | 13) => Self::Full,
            Some(11 | 26) => Self::Damaged,
            _ => Self::Other,
        }
    }

    /// The same for a migration's error.
    pub(super) fn of_migration(error: &MigrateError) -> Self {
        match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => Self::of(error),
            _ => Self::Other,
        }
    }
}

/// True when the system says that there is no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Turns sqlx's error into ours: `Busy` and `Full` by their own variants, the rest by `other`.
pub(super) fn told_apart(
    what: &'static str,
    source: sqlx::Error,
    other: impl FnOnce(sqlx::Error) -> StoreError,
) -> StoreError {
    match Kind::of(&source) {
        Kind::Busy => StoreError::Busy { what, source },
        Kind::Full => StoreError::Full { what, source: source.into() },
        Kind::Damaged | Kind::Other => other(source),
    }
}
