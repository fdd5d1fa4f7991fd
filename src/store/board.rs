//! The board's rows: read once at start, and saved after each batch of turns in one transaction together with the journal
//! lines and the history of the tasks that ended. Either all of a batch is on disk or nothing of it.

use super::error::{StoreError, told_apart};
use super::link::Link;
use super::{Store, int, json, text};
use crate::decide::board::{Board, Changes, JournalLine, Night, Project, Task};
use crate::decide::event::Concluded;
use crate::domain::{Now, ProjectId, TaskId, TaskPath};
use futures::TryStreamExt;
use serde::de::DeserializeOwned;
use sqlx::{Row, SqliteConnection};
use std::ops::Range;

/// How often a save that finds the database locked is tried; each try waits up to five seconds.
const SAVE_TRIES: u32 = 2;

/// What was on disk.
#[derive(Debug, Default)]
pub struct Saved {
    pub tasks: Vec<Task>,
    pub ended: Vec<(TaskId, Concluded)>,
    pub projects: Vec<(ProjectId, Project)>,
    pub paused: bool,
    pub night: Option<Night>,
    /// The boot that the stamps of the monotonic clock in all rows belong to, as given to `save_boot`.
    pub boot_id: Option<String>,
    /// Rows that are there but cannot be read, each with the reason; they stay in the database. Quotes hostile text.
    pub unreadable: Vec<String>,
}

impl Store {
    /// Reads everything that `Board::load` needs.
    pub async fn load(&self) -> Result<Saved, StoreError> {
        let mut link = self.writer.lock().await;
        match load(&mut link).await {
            Ok(saved) => Ok(saved),
            Err(error) => {
                link.failed(&error).await;
                Err(told_apart("load the board", error, |source| StoreError::Load { source }))
            }
        }
    }

    /// Saves one batch of turns. The result is the range of sequence numbers that the journal lines got.
    ///
    /// `night` is the number that tasks ending now are filed under. Waits up to ten seconds where another process holds
    /// the database. A dropped future saves all or nothing; nothing to save
    /// costs nothing.
    ///
    /// # Errors
    /// `Busy` and `Full` are worth another try; after any error nothing was saved.
    pub async fn save(
        &self,
        changes: &Changes<'_>,
        journal: &[JournalLine],
        night: Option<u64>,
        now: Now,
    ) -> Result<Range<u64>, StoreError> {
        if changes.is_empty() && journal.is_empty() {
            return Ok(0..0);
        }
        let mut link = self.writer.lock().await;
        let mut tries = 0;
        loop {
            tries += 1;
            match save(&mut link, changes, journal, night, now).await {
                Ok(range) => return Ok(range),
                Err(error) => {
                    if link.failed(&error).await && tries < SAVE_TRIES {
                        continue;
                    }
                    return Err(told_apart("save the board", error, |source| StoreError::Save { source }));
                }
            }
        }
    }

    /// Saves every row of the board, and the boot that its stamps of the monotonic clock belong to, in one transaction.
    /// To be called once after `Event::Started` found another boot: were only the boot's id saved, rows with stamps of
    /// the boot before would pass for present ones at the next start.
    pub async fn save_boot(&self, boot_id: &str, board: &Board) -> Result<(), StoreError> {
        let mut link = self.writer.lock().await;
        let mut tries = 0;
        loop {
            tries += 1;
            match save_boot(&mut link, boot_id, board).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    if link.failed(&error).await && tries < SAVE_TRIES {
                        continue;
                    }
                    return Err(told_apart("save the board", error, |source| StoreError::Save { source }));
                }
            }
        }
    }
}

async fn load(link: &mut Link) -> Result<Saved, sqlx::Error> {
    let conn = link.idle().await?;
    let mut saved = Saved::default();
    load_tasks(conn, &mut saved).await?;
    load_ended(conn, &mut saved).await?;
    load_projects(conn, &mut saved).await?;
    let rows = sqlx::query("SELECT name, value FROM globals").fetch_all(conn).await?;
    for row in rows {
        let (name, value): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        let what = format!("global {name}");
        match name.as_str() {
            "paused" => saved.paused = read(&what, &value, &mut saved.unreadable).unwrap_or(false),
            "night" => saved.night = read(&what, &value, &mut saved.unreadable).flatten(),
            "boot_id" => saved.boot_id = read(&what, &value, &mut saved.unreadable),
            _ => saved.unreadable.push(format!("{what}: not known to this version")),
        }
    }
    Ok(saved)
}

async fn load_tasks(conn: &mut SqliteConnection, saved: &mut Saved) -> Result<(), sqlx::Error> {
    let mut rows = sqlx::query("SELECT project, path, body FROM tasks ORDER BY project, path").fetch(conn);
    while let Some(row) = rows.try_next().await? {
        let (project, path): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
        let what = format!("task {project}:{path}");
        let Some(task) = read::<Task>(&what, row.try_get(2)?, &mut saved.unreadable) else { continue };
        if task.id.project.as_str() == project && task.id.path.as_str() == path {
            saved.tasks.push(task);
        } else {
            saved.unreadable.push(format!("{what}: the row holds {}", task.id));
        }
    }
    Ok(())
}

async fn load_ended(conn: &mut SqliteConnection, saved: &mut Saved) -> Result<(), sqlx::Error> {
    let mut rows = sqlx::query("SELECT project, path, body FROM ended ORDER BY project, path").fetch(conn);
    while let Some(row) = rows.try_next().await? {
        let (project, path): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
        let what = format!("ended task {project}:{path}");
        let Some(ended) = read(&what, row.try_get(2)?, &mut saved.unreadable) else { continue };
        match (ProjectId::parse(project), TaskPath::parse(path)) {
            (Ok(project), Ok(path)) => saved.ended.push((TaskId { project, path }, ended)),
            (Err(e), _) | (_, Err(e)) => saved.unreadable.push(format!("{what}: {e}")),
        }
    }
    Ok(())
}

async fn load_projects(conn: &mut SqliteConnection, saved: &mut Saved) -> Result<(), sqlx::Error> {
    let rows = sqlx::query("SELECT id, body FROM projects ORDER BY id").fetch_all(conn).await?;
    for row in rows {
        let id: &str = row.try_get(0)?;
        let what = format!("project {id}");
        let Some(project) = read(&what, row.try_get(1)?, &mut saved.unreadable) else { continue };
        match ProjectId::parse(id) {
            Ok(id) => saved.projects.push((id, project)),
            Err(e) => saved.unreadable.push(format!("{what}: {e}")),
        }
    }
    Ok(())
}

fn read<T: DeserializeOwned>(what: &str, body: &str, unreadable: &mut Vec<String>) -> Option<T> {
    serde_json::from_str(body).map_err(|e| unreadable.push(format!("{what}: {e}"))).ok()
}

async fn save(
    link: &mut Link,
    changes: &Changes<'_>,
    journal: &[JournalLine],
    night: Option<u64>,
    now: Now,
) -> Result<Range<u64>, sqlx::Error> {
    let conn = link.begin().await?;
    put_tasks(conn, changes.tasks.iter().filter_map(|(_, task)| *task)).await?;
    for (id, _) in changes.tasks.iter().filter(|(_, task)| task.is_none()) {
        drop_task(conn, id).await?;
    }
    for (id, ended, task) in &changes.ended {
        put_ended(conn, id, *ended).await?;
        if let (Some(ended), Some(task)) = (ended, task) {
            super::history::put(conn, task, ended, night, now).await?;
        }
    }
    for (id, project) in &changes.projects {
        put_project(conn, id, *project).await?;
    }
    if let Some(paused) = changes.paused {
        put_global(conn, "paused", &json(&paused)?).await?;
    }
    if let Some(night) = changes.night {
        put_night(conn, night.as_ref()).await?;
    }
    let range = super::journal::put(conn, journal).await?;
    link.commit().await?;
    Ok(range)
}

async fn save_boot(link: &mut Link, boot_id: &str, board: &Board) -> Result<(), sqlx::Error> {
    let conn = link.begin().await?;
    put_tasks(conn, board.tasks.values()).await?;
    for (id, project) in &board.projects {
        put_project(conn, id, Some(project)).await?;
    }
    put_global(conn, "boot_id", &json(&boot_id)?).await?;
    link.commit().await
}

/// All rows in one statement: each statement is a turn of the connection's thread.
async fn put_tasks(conn: &mut SqliteConnection, tasks: impl Iterator<Item = &Task>) -> Result<(), sqlx::Error> {
    let mut rows = Vec::new();
    for task in tasks {
        rows.push((&task.id.project, &task.id.path, int(task.epoch.0), task.phase.word(), json(task)?));
    }
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO tasks (project, path, epoch, phase, body)
         SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(?1) WHERE true
         ON CONFLICT (project, path) DO UPDATE SET
             epoch = excluded.epoch, phase = excluded.phase, body = excluded.body",
    )
    .bind(json(&rows)?)
    .execute(conn)
    .await
    .map(drop)
}

async fn drop_task(conn: &mut SqliteConnection, id: &TaskId) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM tasks WHERE project = ?1 AND path = ?2")
        .bind(id.project.as_str())
        .bind(id.path.as_str())
        .execute(conn)
        .await
        .map(drop)
}

async fn put_ended(conn: &mut SqliteConnection, id: &TaskId, ended: Option<&Concluded>) -> Result<(), sqlx::Error> {
    let query = match ended {
        Some(ended) => sqlx::query(
            "INSERT INTO ended (project, path, epoch, body) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (project, path) DO UPDATE SET epoch = excluded.epoch, body = excluded.body",
        )
        .bind(id.project.as_str())
        .bind(id.path.as_str())
        .bind(int(ended.epoch.0))
        .bind(json(ended)?),
        None => sqlx::query("DELETE FROM ended WHERE project = ?1 AND path = ?2")
            .bind(id.project.as_str())
            .bind(id.path.as_str()),
    };
    query.execute(conn).await.map(drop)
}

async fn put_project(
    conn: &mut SqliteConnection,
    id: &ProjectId,
    project: Option<&Project>,
) -> Result<(), sqlx::Error> {
    let query = match project {
        Some(project) => sqlx::query(
            "INSERT INTO projects (id, body) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET body = excluded.body",
        )
        .bind(id.as_str())
        .bind(json(project)?),
        None => sqlx::query("DELETE FROM projects WHERE id = ?1").bind(id.as_str()),
    };
    query.execute(conn).await.map(drop)
}

async fn put_global(conn: &mut SqliteConnection, name: &'static str, value: &str) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO globals (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    )
    .bind(name)
    .bind(text(value))
    .execute(conn)
    .await
    .map(drop)
}

/// The present night, and its row among all nights.
async fn put_night(conn: &mut SqliteConnection, night: Option<&Night>) -> Result<(), sqlx::Error> {
    put_global(conn, "night", &json(&night)?).await?;
    let Some(night) = night else { return Ok(()) };
    sqlx::query(
        "INSERT INTO nights (number, started, ended) VALUES (?1, ?2, ?3)
         ON CONFLICT (number) DO UPDATE SET started = excluded.started, ended = excluded.ended",
    )
    .bind(int(night.number))
    .bind(night.started.0)
    .bind(night.ended.map(|at| at.0))
    .execute(conn)
    .await
    .map(drop)
}
