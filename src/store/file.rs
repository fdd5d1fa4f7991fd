//! Opening a database file: private from its first moment, checked, and brought to the schema that this program knows,
//! in one transaction and with a copy made first. A file that is newer or not what it says is refused, a damaged one is
//! set aside.

#![expect(clippy::disallowed_methods, reason = "the switch to WAL cannot be waited for by SQLite itself")]

use super::error::{Kind, StoreError, is_full, told_apart};
use sqlx::migrate::{Migrate, MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Row, SqliteConnection};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long SQLite itself waits for another process's lock.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a locked database is tried again at open; each try may wait for `BUSY_TIMEOUT`.
const OPEN_TRIES: u32 = 6;
/// Larger files are checked only in the tables that a start rests on: reading everything would hold the start up.
const CHECK_WHOLE: u64 = 128 << 20;

/// A database file and the schema it shall have.
#[derive(Debug, Clone, Copy)]
pub struct Database<'a> {
    /// The file; its folder exists.
    pub path: &'a Path,
    /// All migrations that this program knows.
    pub migrations: &'a Migrator,
    /// True: synchronous FULL, and a copy before a migration. False: NORMAL, and no copy.
    pub durable: bool,
}

/// Why opening failed, before a damaged file was moved.
enum Trouble {
    Damage(String),
    Other(StoreError),
}

impl Database<'_> {
    /// Opens the file, making or migrating it where needed. Waits up to half a minute for another process.
    ///
    /// # Errors
    /// `Damaged` once the file has been set aside; `Newer`, `Changed` and `Incomplete` leave it untouched.
    pub async fn open(&self) -> Result<SqliteConnection, StoreError> {
        create_private(self.path)?;
        match self.try_open().await {
            Ok(conn) => Ok(conn),
            Err(Trouble::Other(error)) => Err(error),
            Err(Trouble::Damage(why)) => {
                let path = self.path.to_owned();
                match set_aside(self.path) {
                    Ok(moved_to) => Err(StoreError::Damaged { path, moved_to, why }),
                    Err(source) => Err(StoreError::SetAside { path, why, source }),
                }
            }
        }
    }

    /// How later connections to the same file are made.
    pub fn options(&self) -> SqliteConnectOptions {
        let synchronous = if self.durable { SqliteSynchronous::Full } else { SqliteSynchronous::Normal };
        SqliteConnectOptions::new()
            .filename(self.path)
            .create_if_missing(false)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(synchronous)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT)
            // A burst must not leave a large log behind for good.
            .pragma("journal_size_limit", "16777216")
            .disable_statement_logging()
    }

    async fn try_open(&self) -> Result<SqliteConnection, Trouble> {
        let mut conn = self.connect().await?;
        self.check(&mut conn).await?;
        if !self.pending(&mut conn).await?.is_empty() {
            conn = self.migrate(conn).await?;
        }
        Ok(conn)
    }

    async fn connect(&self) -> Result<SqliteConnection, Trouble> {
        let mut tries = 0;
        loop {
            match self.options().connect().await {
                Ok(conn) => return Ok(conn),
                // The switch to WAL cannot be waited for by SQLite itself.
                Err(error) if Kind::of(&error) == Kind::Busy && tries < OPEN_TRIES * 10 => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => return Err(self.trouble(error)),
            }
        }
    }

    async fn check(&self, conn: &mut SqliteConnection) -> Result<(), Trouble> {
        let size = fs::metadata(self.path).map_or(0, |m| m.len());
        let checks: &[&'static str] = if size <= CHECK_WHOLE {
            &["PRAGMA quick_check(1)"]
        } else {
            &[
                "PRAGMA quick_check('sqlite_schema')",
                "PRAGMA quick_check('tasks')",
                "PRAGMA quick_check('ended')",
                "PRAGMA quick_check('projects')",
                "PRAGMA quick_check('globals')",
            ]
        };
        for check in checks {
            let said: Option<String> =
                sqlx::query_scalar(*check).fetch_optional(&mut *conn).await.map_err(|e| self.trouble(e))?;
            match said {
                Some(said) if said != "ok" => return Err(Trouble::Damage(said)),
                _ => {}
            }
        }
        Ok(())
    }

    /// The versions that have not been applied yet; an error where the file is not what its record says.
    async fn pending(&self, conn: &mut SqliteConnection) -> Result<Vec<i64>, Trouble> {
        let applied = self.applied(conn).await?;
        let known = self.migrations.iter().map(|m| m.version).max().unwrap_or(0);
        let last = applied.last().map_or(0, |(version, _)| *version);
        if last > known {
            let copy = self.copy_for(known);
            return Err(Trouble::Other(StoreError::Newer { path: self.path.into(), found: last, known, copy }));
        }
        for (version, checksum) in &applied {
            if !self.migrations.iter().any(|m| m.version == *version && *m.checksum == **checksum) {
                let (path, version, copy) = (self.path.into(), *version, self.copy_for(version - 1));
                return Err(Trouble::Other(StoreError::Changed { path, version, known, copy }));
            }
        }
        if last > 0 {
            let there = schema(conn).await.map_err(|e| self.trouble(e))?;
            let missing: Vec<String> = self.expected(last).await?.difference(&there).cloned().collect();
            if !missing.is_empty() {
                let (path, missing, copy) = (self.path.into(), missing.join(", "), self.copy_for(last));
                return Err(Trouble::Other(StoreError::Incomplete { path, version: last, known, missing, copy }));
            }
        }
        let applied: BTreeSet<i64> = applied.into_iter().map(|(version, _)| version).collect();
        Ok(self.migrations.iter().map(|m| m.version).filter(|v| !applied.contains(v)).collect())
    }

    async fn applied(&self, conn: &mut SqliteConnection) -> Result<Vec<(i64, Vec<u8>)>, Trouble> {
        let table: Option<i64> = sqlx::query_scalar("SELECT 1 FROM sqlite_schema WHERE name = '_sqlx_migrations'")
            .fetch_optional(&mut *conn)
            .await
            .map_err(|e| self.trouble(e))?;
        if table.is_none() {
            return Ok(Vec::new());
        }
        let applied = conn.list_applied_migrations("_sqlx_migrations").await;
        let applied = applied.map_err(|e| self.migration_trouble(e, 0, 0))?;
        Ok(applied.into_iter().map(|m| (m.version, m.checksum.into_owned())).collect())
    }

    /// What a database of this version consists of, found out by making one in memory.
    async fn expected(&self, version: i64) -> Result<BTreeSet<String>, Trouble> {
        let options = SqliteConnectOptions::new().in_memory(true).disable_statement_logging();
        let mut conn = options.connect().await.map_err(|e| self.trouble(e))?;
        // `run` and `run_to` are not `Send` for every lifetime; this is what they call.
        self.migrations
            .run_direct(Some(version), &mut conn, false)
            .await
            .map_err(|e| self.migration_trouble(e, 0, version))?;
        let expected = schema(&mut conn).await.map_err(|e| self.trouble(e))?;
        let _ = conn.close().await;
        Ok(expected)
    }

    /// Applies all pending migrations in one transaction. Whoever comes second waits and finds nothing left to do.
    async fn migrate(&self, mut conn: SqliteConnection) -> Result<SqliteConnection, Trouble> {
        let mut tries = 0;
        let mut lock = loop {
            match conn.begin_with("BEGIN IMMEDIATE").await {
                Ok(lock) => break lock,
                Err(error) if Kind::of(&error) == Kind::Busy && tries + 1 < OPEN_TRIES => tries += 1,
                Err(error) => return Err(self.trouble(error)),
            }
        };
        let pending = self.pending(&mut lock).await?;
        if let (Some(first), Some(to)) = (pending.first().copied(), pending.last().copied()) {
            let fresh = self.applied(&mut lock).await?.is_empty();
            if self.durable && !fresh {
                // The lock is held: the copy is exactly what gets migrated.
                self.copy(first).await?;
            }
            self.migrations
                .run_direct(None, &mut *lock, false)
                .await
                .map_err(|e| self.migration_trouble(e, first - 1, to))?;
        }
        lock.commit().await.map_err(|e| self.trouble(e))?;
        Ok(conn)
    }

    /// Copies the database through a second connection, under a name that appears only when the copy is on disk.
    async fn copy(&self, version: i64) -> Result<(), Trouble> {
        let copy = self.copy_name(version);
        let part = with_suffix(&copy, ".part");
        let failed = |source: Box<dyn std::error::Error + Send + Sync>, full: bool| {
            let _ = fs::remove_file(&part);
            Trouble::Other(if full {
                StoreError::Full { what: "copy the database before its migration", source }
            } else {
                StoreError::Copy { path: self.path.into(), copy: copy.clone(), source }
            })
        };
        let io_failed = |e: io::Error| {
            let full = is_full(&e);
            failed(e.into(), full)
        };
        let sql_failed = |e: sqlx::Error| {
            let full = Kind::of(&e) == Kind::Full;
            failed(e.into(), full)
        };
        match fs::remove_file(&part) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(io_failed(e)),
            _ => create_private(&part).map_err(Trouble::Other)?,
        }
        let mut reader = self.options().connect().await.map_err(sql_failed)?;
        let name = part.to_string_lossy().into_owned();
        sqlx::query("VACUUM INTO ?1").bind(name).execute(&mut reader).await.map_err(sql_failed)?;
        let _ = reader.close().await;
        fs::File::open(&part).and_then(|file| file.sync_all()).map_err(io_failed)?;
        fs::rename(&part, &copy).map_err(io_failed)?;
        sync_folder(&copy).map_err(io_failed)
    }

    fn copy_name(&self, version: i64) -> PathBuf {
        with_suffix(self.path, &format!(".before-{version:04}"))
    }

    /// The copy that holds schema `version`, or else the nearest older one.
    fn copy_for(&self, version: i64) -> Option<PathBuf> {
        (1..=version + 1).rev().map(|v| self.copy_name(v)).find(|copy| copy.exists())
    }

    fn trouble(&self, error: sqlx::Error) -> Trouble {
        match Kind::of(&error) {
            Kind::Damaged => Trouble::Damage(error.to_string()),
            _ => Trouble::Other(told_apart("open the database", error, |source| StoreError::Open {
                path: self.path.into(),
                source,
            })),
        }
    }

    fn migration_trouble(&self, error: MigrateError, from: i64, to: i64) -> Trouble {
        match (Kind::of_migration(&error), error) {
            (Kind::Damaged, error) => Trouble::Damage(error.to_string()),
            (Kind::Full, error) => {
                Trouble::Other(StoreError::Full { what: "migrate the database", source: error.into() })
            }
            (_, source) => Trouble::Other(StoreError::Migrate { path: self.path.into(), from, to, source }),
        }
    }
}

/// Makes an empty file with mode 0600, or takes group and others off an existing one. An existing file is not opened:
/// closing it would drop the locks that this process holds on it through SQLite.
fn create_private(path: &Path) -> Result<(), StoreError> {
    let failed = |source: io::Error| {
        if is_full(&source) {
            StoreError::Full { what: "create a database", source: source.into() }
        } else {
            StoreError::Create { path: path.into(), source }
        }
    };
    let new = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path);
    match new {
        Ok(_) => sync_folder(path).map_err(failed),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let mode = fs::metadata(path).map_err(failed)?.permissions().mode();
            if mode & 0o077 != 0 {
                fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
            }
            Ok(())
        }
        Err(e) => Err(failed(e)),
    }
}

/// Renames a database and its log to the first free `<name>.damaged-<n>`. The log goes first: left behind, it would be
/// played into the new database.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let free = (1_u32..).map(|n| with_suffix(path, &format!(".damaged-{n}")));
    let aside = free.into_iter().find(|p| !p.exists()).unwrap_or_else(|| with_suffix(path, ".damaged"));
    for suffix in ["-wal", "-shm", ""] {
        match fs::rename(with_suffix(path, suffix), with_suffix(&aside, suffix)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    sync_folder(path)?;
    Ok(aside)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => fs::File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

/// Every table with its columns, and every index, one line each.
async fn schema(conn: &mut SqliteConnection) -> Result<BTreeSet<String>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT m.type || ' ' || m.name || coalesce('.' || c.name, '') FROM sqlite_schema m
         LEFT JOIN pragma_table_info(m.name) c ON m.type = 'table'
         WHERE m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND m.name <> '_sqlx_migrations'",
    )
    .fetch_all(conn)
    .await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}
