//! Child programs and what they used: a row at each start, completed at its end, and sums over them by task, agent, model
//! or day. A run that told no tokens or no price makes its sum partial, never zero.

use super::error::StoreError;
use super::{Store, count, int, json, text};
use crate::domain::verdict::{Exit, Usage, UsageSum};
use crate::domain::{Epoch, ProjectId, RunId, TaskPath, Wall};
use sqlx::{QueryBuilder, Row, Sqlite};

/// One child program.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub run: RunId,
    pub project: ProjectId,
    /// `None` for a side run of the project.
    pub task: Option<TaskPath>,
    pub epoch: Epoch,
    /// `agent`, `before`, `check`, …: one word. Only agents count in the usage.
    pub kind: &'static str,
    pub night: Option<u64>,
    pub started: Wall,
    /// This and what follows is known at the end only.
    pub ended: Option<Wall>,
    pub exit: Option<Exit>,
    /// One word, as `Verdict::word` says it.
    pub verdict: Option<&'static str>,
    pub usage: Usage,
    pub profile: Option<String>,
    pub model: Option<String>,
    pub cli_version: Option<String>,
}

/// What a sum is made over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// `project:path`.
    Task,
    /// The profile's name.
    Agent,
    Model,
    /// `2026-11-30`, the day a run started on.
    Day,
}

/// Which runs are added up.
#[derive(Debug, Clone, Default)]
pub struct UsageFilter {
    pub project: Option<ProjectId>,
    /// Started at or after.
    pub since: Option<Wall>,
    /// Started before.
    pub until: Option<Wall>,
    /// Local time less UTC, in minutes: where days begin.
    pub utc_offset: i32,
}

impl Store {
    /// Writes a run, in place of what was known of it: once at its start, once at its end.
    pub async fn record_run(&self, run: &Run) -> Result<(), StoreError> {
        let mut link = self.writer.lock().await;
        let done = async { put(run, link.idle().await?).await };
        let done = done.await;
        self.told(link, done, "record a run", |source| StoreError::RecordRun { source }).await
    }

    /// Tokens and money of all agent runs, by key, in the order of the keys. Runs that name no agent or model stand under
    /// an empty key.
    pub async fn usage_by(&self, by: By, filter: &UsageFilter) -> Result<Vec<(String, UsageSum)>, StoreError> {
        let mut link = self.reader.lock().await;
        let read = async {
            let rows = usage_query(by, filter).build().fetch_all(link.idle().await?).await?;
            let mut sums = Vec::with_capacity(rows.len());
            for row in rows {
                let sum = UsageSum {
                    input: count(row.try_get(1)?),
                    output: count(row.try_get(2)?),
                    cached: count(row.try_get(3)?),
                    cost: row.try_get(4)?,
                    partial: row.try_get(5)?,
                    runs: u32::try_from(row.try_get::<i64, _>(6)?).unwrap_or(u32::MAX),
                };
                sums.push((row.try_get(0)?, sum));
            }
            Ok(sums)
        };
        let read = read.await;
        self.told(link, read, "add up the usage", |source| StoreError::Usage { source }).await
    }
}

async fn put(run: &Run, conn: &mut sqlx::SqliteConnection) -> Result<(), sqlx::Error> {
    let exit = run.exit.as_ref().map(json).transpose()?;
    sqlx::query(
        "INSERT OR REPLACE INTO runs (run, project, path, epoch, kind, night, started, ended, exit, verdict, input,
             output, cached, cost, turns, known, profile, model, cli_version)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
    )
    .bind(run.run.as_str())
    .bind(run.project.as_str())
    .bind(run.task.as_ref().map(TaskPath::as_str))
    .bind(int(run.epoch.0))
    .bind(run.kind)
    .bind(run.night.map(int))
    .bind(run.started.0)
    .bind(run.ended.map(|at| at.0))
    .bind(exit)
    .bind(run.verdict)
    .bind(int(run.usage.input))
    .bind(int(run.usage.output))
    .bind(int(run.usage.cached))
    .bind(run.usage.cost)
    .bind(i64::from(run.usage.turns))
    .bind(run.usage.known)
    .bind(run.profile.as_deref().map(text))
    .bind(run.model.as_deref().map(text))
    .bind(run.cli_version.as_deref().map(text))
    .execute(conn)
    .await
    .map(drop)
}

fn usage_query(by: By, filter: &UsageFilter) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("SELECT ");
    match by {
        By::Task => query.push("project || ':' || coalesce(path, '')"),
        By::Agent => query.push("coalesce(profile, '')"),
        By::Model => query.push("coalesce(model, '')"),
        By::Day => {
            query.push("date(started / 1000 + ").push_bind(i64::from(filter.utc_offset) * 60).push(", 'unixepoch')")
        }
    };
    // A run that has not ended has told nothing yet and counts as partial, too. Sums are made as REAL: they cannot
    // overflow, and are exact up to 2^53.
    query.push(
        " AS key, CAST(total(input) AS INTEGER), CAST(total(output) AS INTEGER), CAST(total(cached) AS INTEGER),
         total(cost), max(known = 0 OR cost IS NULL), count(*) FROM runs WHERE kind = 'agent'",
    );
    if let Some(project) = &filter.project {
        query.push(" AND project = ").push_bind(project.as_str().to_owned());
    }
    if let Some(since) = filter.since {
        query.push(" AND started >= ").push_bind(since.0);
    }
    if let Some(until) = filter.until {
        query.push(" AND started < ").push_bind(until.0);
    }
    query.push(" GROUP BY key ORDER BY key");
    query
}
