//! The databases of one data folder: `board.db` holds what this daemon is doing and what became of it, and survives a
//! power cut; `beats.db` holds signs of life and may be lost. Each has one writing connection.
//!
//! `board` loads and saves the board in one transaction per batch of turns, `journal` and `history` answer for the past,
//! `runs` counts what was used, `heartbeat` groups the signs of life. `file` opens, checks and migrates, `link` is one
//! connection that heals, `error` tells a full disk and a locked database from the rest.

mod board;
mod error;
pub mod file;
mod heartbeat;
mod history;
mod journal;
mod link;
mod runs;

pub use board::Saved;
pub use error::StoreError;
pub use heartbeat::Beat;
pub use history::HistoryRow;
pub use journal::{JournalFilter, JournalRow, KEPT_ALWAYS, Keep};
pub use runs::{By, Run, UsageFilter};

use crate::decide::Board;
use crate::decide::board::Changes;
use crate::domain::Now;
use file::Database;
use heartbeat::Beats;
use link::Link;
use sqlx::migrate::Migrator;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use tokio::sync::Mutex;

/// The schema of `board.db`.
pub static BOARD: Migrator = sqlx::migrate!("migrations/board");
/// The schema of `beats.db`.
pub static BEATS: Migrator = sqlx::migrate!("migrations/beats");

/// The open databases of one data folder. Only the holder of the folder's lock opens them.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    writer: Mutex<Link>,
    reader: Mutex<Link>,
    beats: Beats,
}

impl Store {
    /// Opens `board.db` and `beats.db` in `data_dir`, which exists; makes or migrates them where needed.
    ///
    /// # Errors
    /// `Damaged` after `board.db` was set aside: open again for a new one, and rebuild the board. `Newer`, `Changed` and
    /// `Incomplete` leave everything untouched. Trouble with `beats.db` is mended by making it anew.
    pub async fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let path = data_dir.join("board.db");
        let board = Database { path: &path, migrations: &BOARD, durable: true };
        let conn = board.open().await?;
        let beats = Beats::open(&data_dir.join("beats.db")).await?;
        Ok(Self {
            writer: Mutex::new(writer(&board, conn)),
            reader: Mutex::new(reader(&board)),
            path: path.clone(),
            beats,
        })
    }

    /// After an error that `is_damage`: opens `board.db` anew, set aside and made afresh where it is damaged, and saves the
    /// whole board in it. What the old one knew beside the board (journal, history) stays in it.
    pub async fn renew(&self, boot_id: &str, whole: &Board, now: Now) -> Result<(), StoreError> {
        let board = Database { path: &self.path, migrations: &BOARD, durable: true };
        let mut links = (self.writer.lock().await, self.reader.lock().await);
        links.0.close().await;
        links.1.close().await;
        let conn = match board.open().await {
            Err(StoreError::Damaged { .. }) => board.open().await?,
            opened => opened?,
        };
        *links.0 = writer(&board, conn);
        *links.1 = reader(&board);
        drop(links);
        let changes = Changes {
            ended: whole.ended.iter().map(|(id, one)| (id, Some(one), None)).collect(),
            paused: Some(whole.paused),
            night: Some(&whole.night),
            ..Changes::default()
        };
        self.save(&changes, &[], None, now).await?;
        self.save_boot(boot_id, whole).await
    }

    /// Writes what is still in memory and closes the files.
    pub async fn close(self) {
        self.beats.close().await;
        self.reader.into_inner().close().await;
        self.writer.into_inner().close().await;
    }

    /// Takes one sign of life; it is written with others within some 30 ms. Never waits, and drops the sign where the
    /// writer cannot follow.
    pub fn beat(&self, beat: Beat) {
        self.beats.take(beat);
    }

    /// The last sign of life of every run, those just taken included.
    pub async fn beats(&self) -> Result<Vec<Beat>, StoreError> {
        self.beats.latest().await
    }

    /// Forgets all signs of life older than `before`.
    pub async fn prune_beats(&self, before: crate::domain::Wall) -> Result<(), StoreError> {
        self.beats.prune(before).await
    }
}

fn writer(board: &Database<'_>, conn: sqlx::SqliteConnection) -> Link {
    Link::new(board.options(), Some(conn))
}

fn reader(board: &Database<'_>) -> Link {
    Link::new(board.options().pragma("query_only", "on"), None)
}

/// Text for a TEXT column. SQLite's own functions and tools end text at the first NUL byte; the sign for NUL stands in its
/// place, so that it is seen and nothing behind it is lost.
fn text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{2400}")) } else { Cow::Borrowed(text) }
}

/// A count as SQLite holds it; what does not fit is cut at the largest number.
fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A count read back; a negative one was never written by us.
fn count(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

/// A value that a row holds in a shape of another version.
fn decode(error: impl std::error::Error + Send + Sync + 'static) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(error))
}

/// A value as JSON, which escapes NUL.
fn json(value: &impl serde::Serialize) -> Result<String, sqlx::Error> {
    serde_json::to_string(value).map_err(|e| sqlx::Error::Encode(Box::new(e)))
}
