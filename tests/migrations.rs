//! Databases of every age: released migrations never change, each is run over data, and a database that is newer, altered
//! or not what it says is refused with its versions and its copy named. A kill in the middle leaves the old or the new.

#![expect(
    clippy::disallowed_methods,
    reason = "tests play the user and the machine: they start programs, wait with limits and read the environment"
)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use overnight::store::file::Database;
use overnight::store::{BEATS, BOARD, Store, StoreError};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqlSafeStr, SqliteConnection};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Released migrations and the beginnings of their SHA-384. A new one is added here; a line here never changes.
const RELEASED: &[(&str, i64, &str)] =
    &[("board", 1, "a80361f8ad04e67b7ee610b2"), ("beats", 1, "98b7638719b9c81a97ab5167")];

#[test]
fn released_migrations_never_change() {
    let found: Vec<(&str, i64, String)> = [("board", &BOARD), ("beats", &BEATS)]
        .into_iter()
        .flat_map(|(name, all)| all.iter().map(move |m| (name, m.version, m)))
        .map(|(name, version, m)| (name, version, m.checksum[..12].iter().map(|b| format!("{b:02x}")).collect()))
        .collect();
    let released: Vec<_> = RELEASED.iter().map(|(name, version, sum)| (*name, *version, (*sum).to_owned())).collect();
    assert_eq!(found, released, "a released migration was edited, or a new one is not pinned yet");
}

#[tokio::test]
async fn the_two_databases_share_no_table_name() {
    let mut names = Vec::new();
    for all in [&BOARD, &BEATS] {
        let mut conn = SqliteConnectOptions::new().in_memory(true).connect().await.unwrap();
        all.run(&mut conn).await.unwrap();
        let sql = "SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite%' AND name <> '_sqlx_migrations'";
        let found: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut conn).await.unwrap();
        names.push(found.into_iter().collect::<BTreeSet<_>>());
    }
    assert_eq!(names[0].intersection(&names[1]).collect::<Vec<_>>(), [] as [&String; 0]);
}

/// The released board migrations and more of the future.
fn with_more(more: &[(i64, &'static str)]) -> Migrator {
    let simple = |(version, sql): &(i64, &'static str)| {
        Migration::new(*version, "more".into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(BOARD.iter().cloned().chain(more.iter().map(simple)).collect())
}

const SECOND: (i64, &str) = (2, "ALTER TABLE tasks ADD COLUMN lane TEXT; CREATE TABLE lanes (name TEXT) STRICT;");

async fn raw(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).connect().await.unwrap()
}

async fn execute(path: &Path, sql: &'static str) {
    let mut conn = raw(path).await;
    sqlx::raw_sql(sql).execute(&mut conn).await.unwrap();
    conn.close().await.unwrap();
}

/// The schema as text, to compare whole.
async fn dump(path: &Path) -> String {
    let mut conn = raw(path).await;
    let sql = "SELECT coalesce(group_concat(sql, char(10)), '') FROM (SELECT sql FROM sqlite_schema ORDER BY name)";
    let dump = sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap();
    conn.close().await.unwrap();
    dump
}

/// A database of the first schema with rows in it, as its version wrote them.
async fn first(dir: &Path) -> PathBuf {
    let path = dir.join("board.db");
    let one = Migrator::with_migrations(BOARD.iter().filter(|m| m.version == 1).cloned().collect());
    Database { path: &path, migrations: &one, durable: true }.open().await.unwrap().close().await.unwrap();
    execute(
        &path,
        r#"INSERT INTO ended VALUES ('p', 'a', 3, '{"outcome":{"outcome":"aborted"},"epoch":3,"retry":0}');
           INSERT INTO globals VALUES ('paused', 'true');
           INSERT INTO globals VALUES ('night', '{"number":4,"started":5,"ended":null}');
           INSERT INTO nights VALUES (4, 5, NULL);
           INSERT INTO journal (at, project, task, epoch, kind, text) VALUES (1, 'p', 'a', 3, 'end', 'aborted');
           INSERT INTO history (project, path, epoch, retry, night, title, outcome, status, attempts, runs, input,
               output, cached, cost, partial, queued, ended, files, changed, left_out)
               VALUES ('p', 'a', 3, 0, 4, 'A', 'aborted', 'aborted', 1, 1, 1, 1, 1, 0.5, 0, 1, 9, '[]', 0, '[]');"#,
    )
    .await;
    path
}

#[tokio::test]
async fn an_old_database_is_brought_up_and_its_rows_are_read() {
    let dir = tempfile::tempdir().unwrap();
    first(dir.path()).await;
    let store = Store::open(dir.path()).await.unwrap();
    let saved = store.load().await.unwrap();
    assert_eq!(saved.unreadable, Vec::<String>::new());
    assert_eq!((saved.ended.len(), saved.paused, saved.night.map(|n| n.number)), (1, true, Some(4)));
    assert_eq!((store.last_seq().await.unwrap(), store.night(4).await.unwrap().len()), (1, 1));
}

#[tokio::test]
async fn a_copy_is_made_before_a_migration() {
    let dir = tempfile::tempdir().unwrap();
    let path = first(dir.path()).await;
    let old = dump(&path).await;
    // What an interrupted copy left behind.
    std::fs::write(dir.path().join("board.db.before-0002.part"), "half").unwrap();
    let more = with_more(&[SECOND]);
    let mut conn = Database { path: &path, migrations: &more, durable: true }.open().await.unwrap();
    let count: i64 =
        sqlx::query_scalar("SELECT count(*) FROM history WHERE path = 'a'").fetch_one(&mut conn).await.unwrap();
    assert_eq!(count, 1);
    conn.close().await.unwrap();
    assert_ne!(dump(&path).await, old);
    let copy = dir.path().join("board.db.before-0002");
    assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(dump(&copy).await, old);
    // The copy is a whole database of its version.
    std::fs::rename(&copy, &path).unwrap();
    let store = Store::open(dir.path()).await.unwrap();
    assert_eq!(store.load().await.unwrap().ended.len(), 1);
    assert!(!dir.path().join("board.db.before-0002.part").exists());
}

#[tokio::test]
async fn a_newer_database_is_refused_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let path = first(dir.path()).await;
    let more = with_more(&[SECOND]);
    Database { path: &path, migrations: &more, durable: true }.open().await.unwrap().close().await.unwrap();
    let before = (dump(&path).await, std::fs::read(&path).unwrap());
    let error = Store::open(dir.path()).await.err().unwrap();
    assert!(matches!(error, StoreError::Newer { found: 2, known: 1, copy: Some(_), .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("schema 2") && said.contains("knows 1") && said.contains("board.db.before-0002"), "{said}");
    assert_eq!((dump(&path).await, std::fs::read(&path).unwrap()), before);
    std::fs::remove_file(dir.path().join("board.db.before-0002")).unwrap();
    let error = Store::open(dir.path()).await.err().unwrap();
    assert!(error.to_string().contains("no copy"), "{error}");
}

#[tokio::test]
async fn an_altered_migration_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = first(dir.path()).await;
    execute(&path, "UPDATE _sqlx_migrations SET checksum = x'00'").await;
    let error = Store::open(dir.path()).await.err().unwrap();
    assert!(matches!(error, StoreError::Changed { version: 1, known: 1, copy: None, .. }), "{error:?}");
    assert!(error.to_string().contains("schema 1"), "{error}");
}

#[tokio::test]
async fn a_recorded_migration_whose_tables_are_missing_is_refused() {
    for (harm, missing) in [
        ("DROP TABLE history", "table history"),
        ("DROP INDEX journal_task", "index journal_task"),
        ("ALTER TABLE runs DROP COLUMN cli_version", "table runs.cli_version"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = first(dir.path()).await;
        execute(&path, harm).await;
        let error = Store::open(dir.path()).await.err().unwrap();
        assert!(matches!(error, StoreError::Incomplete { version: 1, .. }), "{error:?}");
        assert!(error.to_string().contains(missing), "{error}");
    }
    // More than is expected is no harm.
    let dir = tempfile::tempdir().unwrap();
    let path = first(dir.path()).await;
    execute(&path, "CREATE TABLE somebodys (n)").await;
    Store::open(dir.path()).await.unwrap();
}

#[tokio::test]
async fn a_migration_that_fails_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = first(dir.path()).await;
    let old = dump(&path).await;
    let more = with_more(&[SECOND, (3, "CREATE TABLE third (n); INSERT INTO nowhere VALUES (1);")]);
    let error = Database { path: &path, migrations: &more, durable: true }.open().await.unwrap_err();
    assert!(matches!(error, StoreError::Migrate { from: 1, to: 3, .. }), "{error:?}");
    assert_eq!(dump(&path).await, old);
    Store::open(dir.path()).await.unwrap();
}

const HEAVY: &str =
    "CREATE TABLE heavy AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
    SELECT i, hex(randomblob(100)) AS text FROM n;";

fn heavy() -> Migrator {
    with_more(&[SECOND, (3, HEAVY), (4, "CREATE INDEX heavy_text ON heavy (text);")])
}

fn helper(dir: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_process", "--ignored"])
        .env("MIGRATION_TEST_DIR", dir)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test]
#[ignore = "only as a second process of other tests"]
async fn helper_process() {
    let Ok(dir) = std::env::var("MIGRATION_TEST_DIR") else { return };
    let path = Path::new(&dir).join("board.db");
    std::fs::write(Path::new(&dir).join("going"), "").unwrap();
    Database { path: &path, migrations: &heavy(), durable: true }.open().await.unwrap().close().await.unwrap();
}

async fn version(path: &Path) -> i64 {
    let mut conn = raw(path).await;
    sqlx::query_scalar("SELECT max(version) FROM _sqlx_migrations").fetch_one(&mut conn).await.unwrap()
}

#[tokio::test]
async fn a_kill_during_a_migration_leaves_the_old_or_the_new() {
    let (mut old, mut new) = (0, 0);
    for round in 0..14 {
        let dir = tempfile::tempdir().unwrap();
        let path = first(dir.path()).await;
        let before = dump(&path).await;
        let mut child = helper(dir.path());
        for _ in 0..5000 {
            if dir.path().join("going").exists() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(round * 12)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        match version(&path).await {
            1 => {
                old += 1;
                assert_eq!(dump(&path).await, before, "mixed in round {round}");
            }
            4 => new += 1,
            other => panic!("stopped half way, at {other}"),
        }
        // The next start finishes it, over whatever was left.
        Database { path: &path, migrations: &heavy(), durable: true }.open().await.unwrap().close().await.unwrap();
        assert_eq!(version(&path).await, 4);
        assert_eq!(version(&dir.path().join("board.db.before-0002")).await, 1);
    }
    assert!(old > 0, "no kill came in time");
    eprintln!("{old} times old, {new} times new");
}

#[tokio::test]
async fn of_two_that_open_an_old_database_one_migrates_and_the_other_waits() {
    for fresh in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("board.db");
        if !fresh {
            first(dir.path()).await;
        }
        let mut children: Vec<_> = (0..4).map(|_| helper(dir.path())).collect();
        for child in &mut children {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(version(&path).await, 4);
        if !fresh {
            // The copy is of the old one, whoever came second.
            assert_eq!(version(&dir.path().join("board.db.before-0002")).await, 1);
        }
    }
}
