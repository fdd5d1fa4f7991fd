//! One connection that heals. A transaction that was left open (its future was dropped, or SQLite ended it by itself on a
//! full disk) never leaks into the next one, and a connection that failed is made anew.

use super::error::Kind;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};

/// A connection, with what is needed to make it again.
#[derive(Debug)]
pub(super) struct Link {
    options: SqliteConnectOptions,
    conn: Option<SqliteConnection>,
    /// A transaction was begun and its end has not been seen.
    begun: bool,
}

impl Link {
    pub(super) fn new(options: SqliteConnectOptions, conn: Option<SqliteConnection>) -> Self {
        Self { options, conn, begun: false }
    }

    /// The connection, outside a transaction.
    pub(super) async fn idle(&mut self) -> Result<&mut SqliteConnection, sqlx::Error> {
        if std::mem::take(&mut self.begun) {
            // Closing rolls back.
            self.conn = None;
        }
        let conn = match self.conn.take() {
            Some(conn) => conn,
            None => self.options.connect().await?,
        };
        Ok(self.conn.insert(conn))
    }

    /// Begins a transaction that holds the write lock from its first moment. Not through sqlx's own transactions:
    /// their depth counter stays behind when SQLite rolls back by itself.
    pub(super) async fn begin(&mut self) -> Result<&mut SqliteConnection, sqlx::Error> {
        self.idle().await?;
        self.begun = true;
        let conn = self.conn.as_mut().ok_or(sqlx::Error::WorkerCrashed)?;
        sqlx::query("BEGIN IMMEDIATE").execute(&mut *conn).await?;
        Ok(conn)
    }

    pub(super) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        let conn = self.conn.as_mut().ok_or(sqlx::Error::WorkerCrashed)?;
        sqlx::query("COMMIT").execute(conn).await?;
        self.begun = false;
        Ok(())
    }

    /// After a failure: the transaction is rolled back. True when a lock was all that was in the way.
    pub(super) async fn failed(&mut self, error: &sqlx::Error) -> bool {
        let busy = Kind::of(error) == Kind::Busy;
        if let Some(mut conn) = self.conn.take() {
            if std::mem::take(&mut self.begun) {
                // Fails where SQLite has rolled back already or the transaction never began.
                let _ = sqlx::query("ROLLBACK").execute(&mut conn).await;
            }
            if busy {
                self.conn = Some(conn);
            }
        }
        busy
    }

    pub(super) async fn close(&mut self) {
        if let Some(conn) = self.conn.take() {
            let _ = conn.close().await;
        }
    }
}
