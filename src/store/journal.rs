//! The journal: one line for each thing that happened, numbered without gaps going back. It is appended to by the save of
//! the board only; here it is read, and its oldest lines are dropped.

use super::error::{StoreError, told_apart};
use super::{Store, count, int, json, text};
use crate::decide::board::JournalLine;
use crate::domain::{Epoch, ProjectId, TaskPath, Wall};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite, SqliteConnection};
use std::ops::Range;

/// Lines that are never dropped for their age: a clock that jumps ahead must not empty the journal.
pub const KEPT_ALWAYS: u64 = 10_000;
/// Lines dropped in one transaction, so that a save never waits long.
const PRUNE_SLICE: u64 = 5_000;

/// A line as it was read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRow {
    /// Rises with each line, from 1; never used again.
    pub seq: u64,
    pub at: Wall,
    pub project: Option<ProjectId>,
    pub task: Option<TaskPath>,
    pub epoch: Epoch,
    pub kind: String,
    /// May quote hostile text; a NUL shows as `␀`.
    pub text: String,
}

/// Which lines to read.
#[derive(Debug, Clone, Default)]
pub struct JournalFilter {
    pub project: Option<ProjectId>,
    pub task: Option<TaskPath>,
    /// Only lines after this one; 0 is all.
    pub since_seq: u64,
    /// Any of these; empty is all.
    pub kinds: Vec<String>,
    /// At most so many; 0 is no limit.
    pub limit: usize,
    /// With a limit, the newest lines instead of the oldest. The order is by number either way.
    pub tail: bool,
}

/// How much of the past stays, see `Store::prune`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    pub journal_rows: u64,
    pub journal_days: u32,
    /// Ended tasks and runs; `None` keeps them for ever.
    pub history_days: Option<u32>,
}

impl Default for Keep {
    fn default() -> Self {
        Self { journal_rows: 1_000_000, journal_days: 90, history_days: None }
    }
}

impl Store {
    /// Reads lines in the order they were written.
    pub async fn journal(&self, filter: &JournalFilter) -> Result<Vec<JournalRow>, StoreError> {
        let mut link = self.reader.lock().await;
        let read = async {
            let mut query = select(filter)?;
            let rows = query.build().fetch_all(link.idle().await?).await?;
            let mut rows = rows.iter().map(row).collect::<Result<Vec<_>, _>>()?;
            if filter.tail {
                rows.reverse();
            }
            Ok(rows)
        };
        let read = read.await;
        self.told(link, read, "read the journal", |source| StoreError::Journal { source }).await
    }

    /// The number of the newest line; 0 where there is none.
    pub async fn last_seq(&self) -> Result<u64, StoreError> {
        let mut link = self.reader.lock().await;
        let read = async {
            let last: Option<i64> =
                sqlx::query_scalar("SELECT max(seq) FROM journal").fetch_one(link.idle().await?).await?;
            Ok(last.map_or(0, count))
        };
        let read = read.await;
        self.told(link, read, "read the journal", |source| StoreError::Journal { source }).await
    }

    /// Drops old lines and says how many. With `last` the newest line's number, line `n` goes when
    ///
    /// - `n <= last - journal_rows`, or
    /// - `n <= last - KEPT_ALWAYS` and it and all lines before it are older than `journal_days`.
    ///
    /// The newest line always stays, so that numbers are never used again. Ended tasks and runs go when they ended more
    /// than `history_days` ago. The file does not shrink; its free pages are used again.
    pub async fn prune(&self, keep: &Keep, now: Wall) -> Result<u64, StoreError> {
        let last = self.last_seq().await?;
        let by_rows = last.saturating_sub(keep.journal_rows.max(1));
        let by_age = self.first_young(keep.journal_days, now, last).await?.min(last.saturating_sub(KEPT_ALWAYS));
        let until = by_rows.max(by_age);
        let mut dropped = 0;
        loop {
            let slice = self
                .drop_rows(
                    "DELETE FROM journal WHERE seq IN (SELECT seq FROM journal WHERE seq <= ?1 ORDER BY seq LIMIT ?2)",
                    int(until),
                    PRUNE_SLICE,
                )
                .await?;
            dropped += slice;
            if slice < PRUNE_SLICE {
                break;
            }
        }
        if let Some(days) = keep.history_days {
            let before = before(now, days);
            self.drop_rows("DELETE FROM history WHERE ended < ?1", before, 0).await?;
            self.drop_rows("DELETE FROM runs WHERE ended < ?1", before, 0).await?;
        }
        Ok(dropped)
    }

    /// The number up to which every line is too old.
    async fn first_young(&self, days: u32, now: Wall, last: u64) -> Result<u64, StoreError> {
        let mut link = self.reader.lock().await;
        let read = async {
            let first: Option<i64> = sqlx::query_scalar("SELECT seq FROM journal WHERE at >= ?1 ORDER BY seq LIMIT 1")
                .bind(before(now, days))
                .fetch_optional(link.idle().await?)
                .await?;
            Ok(first.map_or(last, |seq| count(seq).saturating_sub(1)))
        };
        let read = read.await;
        self.told(link, read, "read the journal", |source| StoreError::Journal { source }).await
    }

    async fn drop_rows(&self, sql: &'static str, bound: i64, limit: u64) -> Result<u64, StoreError> {
        let mut link = self.writer.lock().await;
        let done = async {
            let mut query = sqlx::query(sql).bind(bound);
            if limit > 0 {
                query = query.bind(int(limit));
            }
            Ok(query.execute(link.idle().await?).await?.rows_affected())
        };
        let done = done.await;
        self.told(link, done, "drop old journal lines", |source| StoreError::Prune { source }).await
    }

    /// Ends an operation on a connection: a failure mends the connection and gets its name.
    pub(super) async fn told<T>(
        &self,
        mut link: tokio::sync::MutexGuard<'_, super::link::Link>,
        result: Result<T, sqlx::Error>,
        what: &'static str,
        other: impl FnOnce(sqlx::Error) -> StoreError,
    ) -> Result<T, StoreError> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => {
                link.failed(&error).await;
                Err(told_apart(what, error, other))
            }
        }
    }
}

/// Appends lines inside the save's transaction, all in one statement: each statement is a turn of the connection's thread.
pub(super) async fn put(conn: &mut SqliteConnection, lines: &[JournalLine]) -> Result<Range<u64>, sqlx::Error> {
    if lines.is_empty() {
        return Ok(0..0);
    }
    let rows: Vec<_> =
        lines.iter().map(|l| (l.at, &l.project, &l.task, int(l.epoch.0), l.kind, text(&l.text))).collect();
    let done = sqlx::query(
        "INSERT INTO journal (at, project, task, epoch, kind, text)
         SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each(?1)",
    )
    .bind(json(&rows)?)
    .execute(conn)
    .await?;
    // One statement numbers its rows without gaps.
    let end = count(done.last_insert_rowid()) + 1;
    Ok(end.saturating_sub(done.rows_affected())..end)
}

fn select(filter: &JournalFilter) -> Result<QueryBuilder<Sqlite>, sqlx::Error> {
    let mut query = QueryBuilder::new("SELECT seq, at, project, task, epoch, kind, text FROM journal WHERE seq > ");
    query.push_bind(int(filter.since_seq));
    if let Some(project) = &filter.project {
        query.push(" AND project = ").push_bind(project.as_str().to_owned());
    }
    if let Some(task) = &filter.task {
        query.push(" AND task = ").push_bind(task.as_str().to_owned());
    }
    if !filter.kinds.is_empty() {
        query.push(" AND kind IN (SELECT value FROM json_each(").push_bind(json(&filter.kinds)?).push("))");
    }
    query.push(if filter.tail { " ORDER BY seq DESC" } else { " ORDER BY seq" });
    if filter.limit > 0 {
        query.push(" LIMIT ").push_bind(i64::try_from(filter.limit).unwrap_or(i64::MAX));
    }
    Ok(query)
}

fn row(row: &SqliteRow) -> Result<JournalRow, sqlx::Error> {
    // Names of another version's rules are left out rather than the line.
    let project: Option<&str> = row.try_get(2)?;
    let task: Option<&str> = row.try_get(3)?;
    Ok(JournalRow {
        seq: count(row.try_get(0)?),
        at: Wall(row.try_get(1)?),
        project: project.and_then(|p| ProjectId::parse(p).ok()),
        task: task.and_then(|t| TaskPath::parse(t).ok()),
        epoch: Epoch(count(row.try_get(4)?)),
        kind: row.try_get(5)?,
        text: row.try_get(6)?,
    })
}

fn before(now: Wall, days: u32) -> i64 {
    now.0.saturating_sub(i64::from(days) * 86_400_000)
}
