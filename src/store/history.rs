//! What became of tasks: one row for each life of a task that ended, in columns, so that reports need not look into the
//! board's own rows. Written by the save that ends the task, read for mornings, reports and `why`.

use super::error::StoreError;
use super::{Store, count, decode, int, json, text};
use crate::decide::board::{Night, Task};
use crate::decide::event::Concluded;
use crate::domain::status::Outcome;
use crate::domain::verdict::UsageSum;
use crate::domain::{Epoch, Now, ProjectId, TaskId, TaskPath, Wall};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

const COLUMNS: &str =
    "SELECT project, path, epoch, retry, night, title, outcome, status, reason_class, reason, question,
    attempts, runs, input, output, cached, cost, partial, agent, model, queued, started, ended, branch, target,
    merge_commit, tip, files, changed, left_out FROM history";

/// One life of a task, from its wish to its end. Texts may be hostile; a NUL in them shows as `␀`.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryRow {
    pub task: TaskId,
    /// The epoch of its end.
    pub epoch: Epoch,
    pub retry: u32,
    /// The night it ended in.
    pub night: Option<u64>,
    pub title: String,
    /// `merged`, `children_done`, `no_changes`, `failed` or `aborted`.
    pub outcome: String,
    /// The public status word.
    pub status: String,
    /// Class and text of the reason it failed for.
    pub reason: Option<(String, String)>,
    pub question: Option<String>,
    pub attempts: u32,
    pub usage: UsageSum,
    /// Name of the profile.
    pub agent: Option<String>,
    pub model: Option<String>,
    pub queued: Wall,
    pub started: Option<Wall>,
    pub ended: Wall,
    pub branch: Option<String>,
    /// The branch that received, or would have received, the work.
    pub target: Option<String>,
    pub merge_commit: Option<String>,
    /// The tip of the task's own branch.
    pub tip: Option<String>,
    /// Changed files, at most a few hundred of them, and how many there are.
    pub files: Vec<String>,
    pub changed: u64,
    pub left_out: Vec<String>,
}

impl Store {
    /// The tasks that ended in a night, in the order they ended.
    pub async fn night(&self, number: u64) -> Result<Vec<HistoryRow>, StoreError> {
        self.history(" WHERE night = ?1 ORDER BY ended, id", [Bind::Int(int(number))]).await
    }

    /// The tasks that ended at or after an instant, in the order they ended.
    pub async fn ended_since(&self, since: Wall) -> Result<Vec<HistoryRow>, StoreError> {
        self.history(" WHERE ended >= ?1 ORDER BY ended, id", [Bind::Int(since.0)]).await
    }

    /// All lives of one task, oldest first.
    pub async fn task_history(&self, id: &TaskId) -> Result<Vec<HistoryRow>, StoreError> {
        let names = [Bind::Text(id.project.as_str()), Bind::Text(id.path.as_str())];
        self.history(" WHERE project = ?1 AND path = ?2 ORDER BY epoch", names).await
    }

    /// All nights, oldest first.
    pub async fn nights(&self) -> Result<Vec<Night>, StoreError> {
        let mut link = self.reader.lock().await;
        let read = async {
            let sql = "SELECT number, started, ended FROM nights ORDER BY number";
            let rows = sqlx::query(sql).fetch_all(link.idle().await?).await?;
            let night = |row: &SqliteRow| {
                let ended: Option<i64> = row.try_get(2)?;
                Ok(Night { number: count(row.try_get(0)?), started: Wall(row.try_get(1)?), ended: ended.map(Wall) })
            };
            rows.iter().map(night).collect()
        };
        let read = read.await;
        self.told(link, read, "read the history", |source| StoreError::History { source }).await
    }

    async fn history<const N: usize>(&self, rest: &str, binds: [Bind<'_>; N]) -> Result<Vec<HistoryRow>, StoreError> {
        let mut link = self.reader.lock().await;
        let read = async {
            // `rest` is one of the constants above.
            let mut query = sqlx::query(sqlx::AssertSqlSafe(format!("{COLUMNS}{rest}")));
            for bind in binds {
                query = match bind {
                    Bind::Int(n) => query.bind(n),
                    Bind::Text(t) => query.bind(t.to_owned()),
                };
            }
            let rows = query.fetch_all(link.idle().await?).await?;
            rows.iter().map(row).collect()
        };
        let read = read.await;
        self.told(link, read, "read the history", |source| StoreError::History { source }).await
    }
}

enum Bind<'a> {
    Int(i64),
    Text(&'a str),
}

/// Files a task that ended, with its facts as they were at the last save before.
pub(super) async fn put(
    conn: &mut SqliteConnection,
    task: &Task,
    ended: &Concluded,
    night: Option<u64>,
    now: Now,
) -> Result<(), sqlx::Error> {
    let commit = if let Outcome::Merged { commit } = &ended.outcome { Some(commit) } else { None };
    let reason = ended.outcome.reason();
    let (work, plan) = (task.work.as_ref(), task.plan.as_ref());
    sqlx::query(
        "INSERT OR REPLACE INTO history (project, path, epoch, retry, night, title, outcome, status, reason_class,
             reason, question, attempts, runs, input, output, cached, cost, partial, agent, model, queued, started,
             ended, branch, target, merge_commit, tip, files, changed, left_out)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,
             ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30)",
    )
    .bind(task.id.project.as_str())
    .bind(task.id.path.as_str())
    .bind(int(ended.epoch.0))
    .bind(i64::from(ended.retry))
    .bind(night.map(int))
    .bind(text(task.title()))
    .bind(ended.outcome.word())
    .bind(ended.outcome.status().word())
    .bind(reason.as_ref().map(|r| r.class.word()))
    .bind(reason.as_ref().map(|r| text(&r.text)))
    .bind(task.question.as_deref().map(text))
    .bind(i64::from(task.attempts))
    .bind(i64::from(task.usage.runs))
    .bind(int(task.usage.input))
    .bind(int(task.usage.output))
    .bind(int(task.usage.cached))
    .bind(task.usage.cost)
    .bind(task.usage.partial)
    .bind(plan.map(|p| p.profile_name.as_str()).or(task.wish.agent.as_deref()).map(text))
    .bind(plan.and_then(|p| p.model.as_deref()).or(task.wish.model.as_deref()).map(text))
    .bind(task.queued.0)
    .bind(task.started.map(|at| at.0))
    .bind(now.wall.0)
    .bind(task.worktree.as_ref().map(|w| text(&w.branch)))
    .bind(plan.map(|p| text(&p.into)))
    .bind(commit.map(|c| c.as_str()))
    .bind(work.map(|w| w.tip.as_str()))
    .bind(json(&work.map_or(&[][..], |w| &w.files[..]))?)
    .bind(work.map_or(0, |w| i64::try_from(w.changed).unwrap_or(i64::MAX)))
    .bind(json(&work.map_or(&[][..], |w| &w.left_out[..]))?)
    .execute(conn)
    .await
    .map(drop)
}

fn row(row: &SqliteRow) -> Result<HistoryRow, sqlx::Error> {
    let small = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
    let list = |text: &str| serde_json::from_str::<Vec<String>>(text).map_err(decode);
    let reason: (Option<String>, Option<String>) = (row.try_get("reason_class")?, row.try_get("reason")?);
    let night: Option<i64> = row.try_get("night")?;
    let started: Option<i64> = row.try_get("started")?;
    Ok(HistoryRow {
        task: TaskId {
            project: ProjectId::parse(row.try_get("project")?).map_err(decode)?,
            path: TaskPath::parse(row.try_get("path")?).map_err(decode)?,
        },
        epoch: Epoch(count(row.try_get("epoch")?)),
        retry: small(row.try_get("retry")?),
        night: night.map(count),
        title: row.try_get("title")?,
        outcome: row.try_get("outcome")?,
        status: row.try_get("status")?,
        reason: reason.0.map(|class| (class, reason.1.unwrap_or_default())),
        question: row.try_get("question")?,
        attempts: small(row.try_get("attempts")?),
        usage: UsageSum {
            input: count(row.try_get("input")?),
            output: count(row.try_get("output")?),
            cached: count(row.try_get("cached")?),
            cost: row.try_get("cost")?,
            partial: row.try_get("partial")?,
            runs: small(row.try_get("runs")?),
        },
        agent: row.try_get("agent")?,
        model: row.try_get("model")?,
        queued: Wall(row.try_get("queued")?),
        started: started.map(Wall),
        ended: Wall(row.try_get("ended")?),
        branch: row.try_get("branch")?,
        target: row.try_get("target")?,
        merge_commit: row.try_get("merge_commit")?,
        tip: row.try_get("tip")?,
        files: list(row.try_get("files")?)?,
        changed: count(row.try_get("changed")?),
        left_out: list(row.try_get("left_out")?)?,
    })
}
