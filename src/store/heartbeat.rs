//! Signs of life, the last one of each run. They come several times a second from every agent, so they are gathered for
//! some milliseconds, only the newest of a run is kept, and a group is one commit by a task of its own; losing some, or
//! the whole file, does no harm.

#![expect(clippy::disallowed_methods, reason = "beats are gathered for a moment; no rule sees this clock")]

use super::error::{Kind, StoreError, told_apart};
use super::file::{Database, set_aside};
use super::link::Link;
use super::{BEATS, count, int};
use crate::domain::time::Wall;
use crate::domain::{ProjectId, RunId, TaskId, TaskPath};
use sqlx::{Connection, Row, SqliteConnection};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How long a group is gathered.
const WINDOW: Duration = Duration::from_millis(30);
/// Orders that wait for the writer; more signs of life are dropped.
const QUEUE: usize = 8192;

/// A sign of life of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    pub run: RunId,
    pub task: TaskId,
    pub at: Wall,
    pub last_output: Wall,
    pub last_progress: Wall,
    /// Output so far.
    pub bytes: u64,
    /// Processor time of the whole tree.
    pub cpu_ms: u64,
    /// Resident memory of the whole tree, in bytes.
    pub rss: u64,
}

/// The way to the writer.
#[derive(Debug)]
pub(super) struct Beats {
    orders: mpsc::Sender<Order>,
}

#[derive(Debug)]
enum Order {
    Beat(Box<Beat>),
    Latest(oneshot::Sender<Result<Vec<Beat>, sqlx::Error>>),
    Prune(Wall, oneshot::Sender<Result<(), sqlx::Error>>),
    Close(oneshot::Sender<()>),
}

impl Beats {
    /// Opens the file; one that is damaged, or not ours to read, is renamed aside and made anew.
    pub(super) async fn open(path: &Path) -> Result<Self, StoreError> {
        let conn = open(path).await?;
        let options = Database { path, migrations: &BEATS, durable: false }.options();
        let (orders, received) = mpsc::channel(QUEUE);
        let writer = Writer { path: path.to_owned(), link: Link::new(options, Some(conn)), failing: false };
        tokio::spawn(writer.run(received));
        Ok(Self { orders })
    }

    pub(super) fn take(&self, beat: Beat) {
        // The next one says the same, later.
        let _ = self.orders.try_send(Order::Beat(Box::new(beat)));
    }

    pub(super) async fn latest(&self) -> Result<Vec<Beat>, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.orders.send(Order::Latest(answer)).await.map_err(|_| StoreError::BeatsGone)?;
        told(answered.await)
    }

    pub(super) async fn prune(&self, before: Wall) -> Result<(), StoreError> {
        let (answer, answered) = oneshot::channel();
        self.orders.send(Order::Prune(before, answer)).await.map_err(|_| StoreError::BeatsGone)?;
        told(answered.await)
    }

    pub(super) async fn close(self) {
        let (answer, answered) = oneshot::channel();
        if self.orders.send(Order::Close(answer)).await.is_ok() {
            let _ = answered.await;
        }
    }
}

fn told<T>(answer: Result<Result<T, sqlx::Error>, oneshot::error::RecvError>) -> Result<T, StoreError> {
    match answer {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(told_apart("read the heartbeats", error, |source| StoreError::Beats { source })),
        Err(_) => Err(StoreError::BeatsGone),
    }
}

async fn open(path: &Path) -> Result<SqliteConnection, StoreError> {
    let database = Database { path, migrations: &BEATS, durable: false };
    match database.open().await {
        Err(StoreError::Damaged { .. }) => {}
        Err(
            StoreError::Newer { .. }
            | StoreError::Changed { .. }
            | StoreError::Incomplete { .. }
            | StoreError::Migrate { .. },
        ) => {
            let failed = |source| StoreError::SetAside { path: path.into(), why: "of another version".into(), source };
            set_aside(path).map_err(failed)?;
        }
        other => return other,
    }
    database.open().await
}

struct Writer {
    path: PathBuf,
    link: Link,
    /// Said once per outage.
    failing: bool,
}

impl Writer {
    async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut group = BTreeMap::new();
        loop {
            let order = gather(&mut orders, &mut group).await;
            if !group.is_empty() {
                self.write(&std::mem::take(&mut group)).await;
            }
            match order {
                Gathered::Window => {}
                Gathered::Order(Order::Latest(answer)) => drop(answer.send(self.latest().await)),
                Gathered::Order(Order::Prune(before, answer)) => drop(answer.send(self.prune(before).await)),
                Gathered::Order(Order::Close(answer)) => {
                    self.link.close().await;
                    let _ = answer.send(());
                    return;
                }
                Gathered::Order(Order::Beat(beat)) => drop(group.insert(beat.run.clone(), *beat)),
                Gathered::End => return self.link.close().await,
            }
        }
    }

    async fn write(&mut self, group: &BTreeMap<RunId, Beat>) {
        match write(&mut self.link, group).await {
            Ok(()) => self.failing = false,
            Err(error) => {
                self.link.failed(&error).await;
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(%error, "heartbeats cannot be written for now");
                }
                if Kind::of(&error) == Kind::Damaged {
                    self.renew().await;
                }
            }
        }
    }

    /// A new file in place of a broken one.
    async fn renew(&mut self) {
        self.link.close().await;
        if set_aside(&self.path).is_err() {
            return;
        }
        if let Ok(conn) = open(&self.path).await {
            // Only its schema was wanted: the link connects anew by itself.
            let _ = conn.close().await;
        }
    }

    async fn latest(&mut self) -> Result<Vec<Beat>, sqlx::Error> {
        let read = latest(&mut self.link).await;
        if let Err(error) = &read {
            self.link.failed(error).await;
        }
        read
    }

    async fn prune(&mut self, before: Wall) -> Result<(), sqlx::Error> {
        let conn = self.link.idle().await?;
        let done = sqlx::query("DELETE FROM beats WHERE at < ?1").bind(before.0).execute(conn).await;
        if let Err(error) = &done {
            self.link.failed(error).await;
        }
        done.map(drop)
    }
}

enum Gathered {
    Window,
    Order(Order),
    End,
}

/// Waits for a sign of life, then gathers for the length of the window. Ends early for every other order.
async fn gather(orders: &mut mpsc::Receiver<Order>, group: &mut BTreeMap<RunId, Beat>) -> Gathered {
    match orders.recv().await {
        Some(Order::Beat(beat)) => drop(group.insert(beat.run.clone(), *beat)),
        Some(order) => return Gathered::Order(order),
        None => return Gathered::End,
    }
    let window = tokio::time::sleep(WINDOW);
    tokio::pin!(window);
    loop {
        tokio::select! {
            biased;
            () = &mut window => return Gathered::Window,
            order = orders.recv() => match order {
                Some(Order::Beat(beat)) => drop(group.insert(beat.run.clone(), *beat)),
                Some(order) => return Gathered::Order(order),
                None => return Gathered::End,
            },
        }
    }
}

/// One statement for the whole group: each statement is a turn of the connection's thread.
async fn write(link: &mut Link, group: &BTreeMap<RunId, Beat>) -> Result<(), sqlx::Error> {
    let rows: Vec<_> = group
        .values()
        .map(|b| {
            let names = (b.run.as_str(), b.task.project.as_str(), b.task.path.as_str());
            (names.0, names.1, names.2, b.at, b.last_output, b.last_progress, int(b.bytes), int(b.cpu_ms), int(b.rss))
        })
        .collect();
    let conn = link.idle().await?;
    sqlx::query(
        "INSERT INTO beats (run, project, path, at, last_output, last_progress, bytes, cpu_ms, rss)
         SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
             value ->> 8 FROM json_each(?1) WHERE true
         ON CONFLICT (run) DO UPDATE SET at = excluded.at, last_output = excluded.last_output,
             last_progress = excluded.last_progress, bytes = excluded.bytes, cpu_ms = excluded.cpu_ms,
             rss = excluded.rss",
    )
    .bind(super::json(&rows)?)
    .execute(conn)
    .await
    .map(drop)
}

async fn latest(link: &mut Link) -> Result<Vec<Beat>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT run, project, path, at, last_output, last_progress, bytes, cpu_ms, rss FROM beats ORDER BY run",
    )
    .fetch_all(link.idle().await?)
    .await?;
    let mut beats = Vec::with_capacity(rows.len());
    for row in rows {
        let names =
            (RunId::from_folder(row.try_get(0)?), ProjectId::parse(row.try_get(1)?), TaskPath::parse(row.try_get(2)?));
        // A name of another version's rules says nothing to this one.
        let (Some(run), Ok(project), Ok(path)) = names else { continue };
        beats.push(Beat {
            run,
            task: TaskId { project, path },
            at: Wall(row.try_get(3)?),
            last_output: Wall(row.try_get(4)?),
            last_progress: Wall(row.try_get(5)?),
            bytes: count(row.try_get(6)?),
            cpu_ms: count(row.try_get(7)?),
            rss: count(row.try_get(8)?),
        });
    }
    Ok(beats)
}
