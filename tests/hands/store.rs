//! The databases against a real disk: what is saved is read back, whole batches or nothing survive a kill, a locked
//! database loses nothing, and a damaged or full one is said for what it is. Some tests start this binary again as a
//! second process.

use overnight::decide::board::{Board, Changes, JournalLine, Night, Project, Task};
use overnight::decide::event::{Concluded, Work, Worktree};
use overnight::domain::status::{Outcome, Reason, ReasonClass};
use overnight::domain::task::Wish;
use overnight::domain::verdict::{Exit, Usage, UsageSum};
use overnight::domain::{Epoch, Mono, Now, Oid, ProjectId, RunId, TaskId, TaskPath, Wall};
use overnight::store::file::Database;
use overnight::store::{BOARD, Beat, By, JournalFilter, KEPT_ALWAYS, Keep, Run, Store, StoreError, UsageFilter};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection as _, SqliteConnection};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

fn id(path: &str) -> TaskId {
    TaskId { project: ProjectId::parse("p").unwrap(), path: TaskPath::parse(path).unwrap() }
}

fn now(n: i64) -> Now {
    Now { mono: Mono(u64::try_from(n).unwrap()), wall: Wall(n) }
}

fn task(path: &str, n: i32) -> Task {
    let wish = Wish { title: format!("title of {path}"), priority: n, body: "words ".repeat(200), ..Wish::default() };
    Task::new(id(path), wish, Epoch(u64::try_from(n).unwrap()), now(i64::from(n)))
}

fn line(text: &str, task: Option<&str>, kind: &'static str, at: i64) -> JournalLine {
    JournalLine {
        at: Wall(at),
        project: Some(id("a").project),
        task: task.map(|t| id(t).path),
        epoch: Epoch(7),
        kind,
        text: text.into(),
    }
}

fn oid(c: char) -> Oid {
    Oid::parse(&c.to_string().repeat(40)).unwrap()
}

fn upserts<'a>(tasks: &'a [Task]) -> Changes<'a> {
    Changes { tasks: tasks.iter().map(|t| (&t.id, Some(t))).collect(), ..Changes::default() }
}

async fn raw(dir: &Path, file: &str) -> SqliteConnection {
    SqliteConnectOptions::new().filename(dir.join(file)).connect().await.unwrap()
}

/// Starts this test binary again for one job in `dir`.
fn helper(job: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::helper_process", "--ignored", "--nocapture"])
        .env("STORE_TEST_JOB", job)
        .env("STORE_TEST_DIR", dir)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits for something with a limit.
async fn until(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what} did not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn assert_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test]
async fn what_was_saved_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let store = assert_send(Store::open(dir.path())).await.unwrap();
    let (tasks, project) =
        ([task("a", 1), task("a/b", 2), task("c", 3)], Project { paused: true, ..Default::default() });
    let ended = Concluded { outcome: Outcome::Aborted, epoch: Epoch(9), retry: 1 };
    let (over, night) = (id("over"), Some(Night { number: 3, started: Wall(5), ended: None }));
    let mut changes = upserts(&tasks);
    changes.ended = vec![(&over, Some(&ended), None)];
    changes.projects = vec![(&over.project, Some(&project))];
    changes.paused = Some(true);
    changes.night = Some(&night);
    let lines = [line("one", Some("a"), "start", 1), line("two", None, "note", 2)];
    assert_eq!(assert_send(store.save(&changes, &lines, Some(3), now(9))).await.unwrap(), 1..3);
    assert_eq!(store.save(&Changes::default(), &lines[..1], None, now(9)).await.unwrap(), 3..4);
    let gone = Changes { tasks: vec![(&tasks[2].id, None)], ..Changes::default() };
    assert_eq!(store.save(&gone, &[], None, now(10)).await.unwrap(), 0..0);
    store.close().await;

    let store = Store::open(dir.path()).await.unwrap();
    let saved = assert_send(store.load()).await.unwrap();
    assert_eq!(saved.tasks, tasks[..2]);
    assert_eq!(saved.ended, [(over.clone(), ended)]);
    assert_eq!(saved.projects, [(over.project.clone(), project)]);
    assert_eq!((saved.paused, &saved.night, &saved.boot_id), (true, &night, &None));
    assert_eq!(saved.unreadable, Vec::<String>::new());
    assert_eq!(store.nights().await.unwrap(), [night.clone().unwrap()]);
    // The stamps of all rows and the boot they belong to change together.
    let mut board = Board::load(saved.tasks, saved.ended, saved.projects, saved.paused, saved.night);
    for task in board.tasks.values_mut() {
        task.since = Mono(77);
    }
    assert_send(store.save_boot("boot-1", &board)).await.unwrap();
    let saved = store.load().await.unwrap();
    assert_eq!(saved.boot_id.as_deref(), Some("boot-1"));
    assert!(saved.tasks.iter().all(|t| t.since == Mono(77)));
}

#[tokio::test]
async fn a_row_of_another_shape_is_said_and_the_rest_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).await.unwrap();
    store.save(&upserts(&[task("a", 1), task("b", 1), task("c", 1)]), &[], None, now(1)).await.unwrap();
    let mut conn = raw(dir.path(), "board.db").await;
    for sql in [
        "UPDATE tasks SET body = '{\"new\": 1}' WHERE path = 'a'",
        "UPDATE tasks SET path = 'x' WHERE path = 'b'",
        "INSERT INTO ended VALUES ('p', 'Not A Path', 1, '{\"outcome\":{\"outcome\":\"aborted\"},\"epoch\":1,\"retry\":0}')",
        "INSERT INTO globals VALUES ('future', '1')",
        "INSERT INTO globals VALUES ('night', 'nonsense')",
    ] {
        sqlx::query(sql).execute(&mut conn).await.unwrap();
    }
    let saved = store.load().await.unwrap();
    assert_eq!(saved.tasks.iter().map(|t| t.id.path.as_str()).collect::<Vec<_>>(), ["c"]);
    assert_eq!(saved.unreadable.len(), 5, "{:?}", saved.unreadable);
    assert!(saved.unreadable[0].starts_with("task p:a: missing field"), "{:?}", saved.unreadable);
}

fn ended_task(path: &str) -> Task {
    Task {
        attempts: 2,
        started: Some(Wall(20)),
        question: Some("which\0one?".into()),
        usage: UsageSum { input: 10, output: 5, cached: 3, cost: 0.5, partial: true, runs: 2 },
        worktree: Some(Worktree {
            path: "/w".into(),
            branch: "overnight-task/x".into(),
            base: oid('b'),
            theirs: Default::default(),
        }),
        work: Some(Work {
            tip: oid('c'),
            tree: oid('d'),
            base_tree: oid('e'),
            files: vec!["src/a.rs".into(), "b\0c".into()],
            changed: 700,
            left_out: vec![".env".into()],
            protected: vec!["changes a".into()],
        }),
        ..task(path, 4)
    }
}

#[tokio::test]
async fn the_last_facts_of_a_task_are_filed_with_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).await.unwrap();
    let outcomes = [
        ("a", Outcome::Merged { commit: oid('f') }),
        ("b", Outcome::Failed { reason: Reason::new(ReasonClass::Stalled, "no\0progress") }),
        ("c", Outcome::NoChanges),
    ];
    for (n, (path, outcome)) in (0_i64..).zip(outcomes) {
        let (task, concluded) = (ended_task(path), Concluded { outcome, epoch: Epoch(8), retry: 0 });
        let change = Changes {
            tasks: vec![(&task.id, None)],
            ended: vec![(&task.id, Some(&concluded), Some(&task))],
            ..Changes::default()
        };
        store.save(&change, &[], Some(2), now(100 + n)).await.unwrap();
        // The same once more, as after a commit whose answer was lost, files it once.
        store.save(&change, &[], Some(2), now(100 + n)).await.unwrap();
    }
    // A conclusion that was only read in the state repo is no history of ours.
    let elsewhere = Concluded { outcome: Outcome::Aborted, epoch: Epoch(1), retry: 0 };
    let other = id("z");
    let read = Changes { ended: vec![(&other, Some(&elsewhere), None)], ..Changes::default() };
    store.save(&read, &[], Some(2), now(1)).await.unwrap();

    let rows = store.night(2).await.unwrap();
    assert_eq!(rows.len(), 3);
    let row = &rows[0];
    assert_eq!((row.outcome.as_str(), row.status.as_str(), &row.reason), ("merged", "completed", &None));
    assert_eq!(row.merge_commit.as_deref(), Some(oid('f').as_str()));
    assert_eq!(row.question.as_deref(), Some("which\u{2400}one?"));
    assert_eq!(row.usage, ended_task("a").usage);
    assert_eq!((row.queued, row.started, row.ended), (Wall(4), Some(Wall(20)), Wall(100)));
    assert_eq!((row.files.clone(), row.changed), (vec!["src/a.rs".into(), "b\0c".into()], 700));
    assert_eq!(row.left_out, [".env"]);
    assert_eq!(row.branch.as_deref(), Some("overnight-task/x"));
    assert_eq!(rows[1].reason, Some(("stalled".into(), "no\u{2400}progress".into())));
    assert_eq!(rows[2].outcome, "no_changes");
    assert_eq!(store.task_history(&id("b")).await.unwrap(), rows[1..2]);
    assert_eq!(store.ended_since(Wall(101)).await.unwrap(), rows[1..]);
    assert_eq!(store.night(1).await.unwrap(), []);
}

#[tokio::test]
async fn the_journal_answers_by_task_kind_and_number_and_keeps_nul_bytes_visible() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).await.unwrap();
    let lines: Vec<_> = (0..10)
        .map(|n| line(&format!("a\0b {n}"), (n % 2 == 0).then_some("t"), if n % 3 == 0 { "x" } else { "y" }, n))
        .collect();
    store.save(&Changes::default(), &lines, None, now(1)).await.unwrap();
    let seqs = async |filter: JournalFilter| -> Vec<u64> {
        store.journal(&filter).await.unwrap().iter().map(|r| r.seq).collect()
    };
    let all = JournalFilter::default;
    assert_eq!(seqs(all()).await, (1..11).collect::<Vec<_>>());
    assert_eq!(seqs(JournalFilter { task: Some(id("t").path), ..all() }).await, [1, 3, 5, 7, 9]);
    assert_eq!(seqs(JournalFilter { kinds: vec!["x".into(), "no".into()], ..all() }).await, [1, 4, 7, 10]);
    assert_eq!(seqs(JournalFilter { since_seq: 8, ..all() }).await, [9, 10]);
    assert_eq!(seqs(JournalFilter { limit: 2, ..all() }).await, [1, 2]);
    assert_eq!(seqs(JournalFilter { limit: 2, tail: true, ..all() }).await, [9, 10]);
    assert_eq!(seqs(JournalFilter { project: ProjectId::parse("q").ok(), ..all() }).await, [] as [u64; 0]);
    assert_eq!(store.last_seq().await.unwrap(), 10);
    let row = &store.journal(&all()).await.unwrap()[0];
    assert_eq!(row.text, "a\u{2400}b 0");
    // SQLite's own functions see all of it, too.
    let mut conn = raw(dir.path(), "board.db").await;
    let length: i64 =
        sqlx::query_scalar("SELECT length(text) FROM journal LIMIT 1").fetch_one(&mut conn).await.unwrap();
    assert_eq!(length, 5);
    // A body with NUL comes back as it was.
    let mut odd = task("n", 1);
    odd.wish.body = "x\0y".into();
    store.save(&upserts(std::slice::from_ref(&odd)), &[], None, now(1)).await.unwrap();
    assert_eq!(store.load().await.unwrap().tasks, [odd]);
}

#[tokio::test]
async fn old_lines_go_and_a_clock_that_jumps_does_not_empty_the_journal() {
    const DAY: i64 = 86_400_000;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).await.unwrap();
    let total = i64::try_from(KEPT_ALWAYS).unwrap() + 6_000;
    let lines: Vec<_> = (0..total).map(|n| line("x", None, "k", if n < 5_500 { DAY } else { 10 * DAY })).collect();
    store.save(&Changes::default(), &lines, None, now(1)).await.unwrap();
    let keep = Keep { journal_rows: 1 << 30, journal_days: 5, history_days: Some(1) };
    assert_eq!(store.prune(&keep, Wall(10 * DAY)).await.unwrap(), 5_500);
    assert_eq!(store.prune(&keep, Wall(40_000 * DAY)).await.unwrap(), 500, "all but those kept always");
    assert_eq!(store.prune(&Keep { journal_rows: 0, ..keep }, Wall(10 * DAY)).await.unwrap(), KEPT_ALWAYS - 1);
    let last = u64::try_from(total).unwrap();
    assert_eq!(store.last_seq().await.unwrap(), last);
    assert_eq!(store.save(&Changes::default(), &lines[..1], None, now(1)).await.unwrap(), last + 1..last + 2);
}

#[tokio::test]
async fn usage_is_added_up_and_unknown_stays_partial() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).await.unwrap();
    let run = |path: &str, n: u64, agent: &str, cost: Option<f64>| Run {
        run: RunId::new(&id(path), Epoch(n)),
        project: id(path).project,
        task: Some(id(path).path),
        epoch: Epoch(n),
        kind: "agent",
        night: Some(1),
        started: Wall(i64::try_from(n).unwrap() * 43_200_000),
        ended: None,
        exit: None,
        verdict: None,
        usage: Usage { input: n, output: 1, cached: 0, cost, turns: 1, known: true },
        profile: Some(agent.into()),
        model: None,
        cli_version: Some("1.2.3".into()),
    };
    for one in [run("a", 1, "claude", Some(0.25)), run("a", 2, "codex", None), run("b", 3, "claude", Some(0.5))] {
        store.record_run(&Run { usage: Usage::default(), ..one.clone() }).await.unwrap();
        let end = Run { ended: Some(Wall(9)), exit: Some(Exit::Exited { code: 0 }), verdict: Some("finished"), ..one };
        store.record_run(&end).await.unwrap();
    }
    store.record_run(&Run { kind: "check", ..run("b", 4, "claude", None) }).await.unwrap();
    let usage = async |by, filter: &UsageFilter| -> Vec<(String, u64, f64, bool, u32)> {
        let sums = store.usage_by(by, filter).await.unwrap();
        sums.into_iter().map(|(key, s)| (key, s.input, s.cost, s.partial, s.runs)).collect()
    };
    let all = UsageFilter::default();
    assert_eq!(usage(By::Agent, &all).await, [("claude".into(), 4, 0.75, false, 2), ("codex".into(), 2, 0.0, true, 1)]);
    assert_eq!(usage(By::Task, &all).await, [("p:a".into(), 3, 0.25, true, 2), ("p:b".into(), 3, 0.5, false, 1)]);
    assert_eq!(usage(By::Model, &all).await, [(String::new(), 6, 0.75, true, 3)]);
    let days = usage(By::Day, &all).await;
    assert_eq!(days.iter().map(|d| (d.0.as_str(), d.4)).collect::<Vec<_>>(), [("1970-01-01", 1), ("1970-01-02", 2)]);
    let east =
        UsageFilter { utc_offset: 12 * 60, since: Some(Wall(43_200_000)), until: Some(Wall(129_600_000)), ..all };
    assert_eq!(
        usage(By::Day, &east).await.iter().map(|d| (d.0.as_str(), d.4)).collect::<Vec<_>>(),
        [("1970-01-02", 2)]
    );
}

#[tokio::test]
async fn the_files_are_private_from_the_first_moment() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).await.unwrap();
    store.save(&upserts(&[task("a", 1)]), &[], None, now(1)).await.unwrap();
    store.beats().await.unwrap();
    let modes = || {
        let files = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
        files.map(|p| (p.clone(), p.metadata().unwrap().permissions().mode() & 0o777)).collect::<Vec<_>>()
    };
    assert!(modes().len() >= 6, "both databases with log and index: {:?}", modes());
    assert!(modes().iter().all(|(_, mode)| *mode == 0o600), "{:?}", modes());
    store.close().await;
    std::fs::set_permissions(dir.path().join("board.db"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let _store = Store::open(dir.path()).await.unwrap();
    assert!(modes().iter().all(|(_, mode)| *mode == 0o600), "{:?}", modes());
}

#[tokio::test]
async fn what_must_survive_a_power_cut_is_synced() {
    let dir = tempfile::tempdir().unwrap();
    for (durable, level) in [(true, 2), (false, 1)] {
        let path = dir.path().join(format!("{durable}.db"));
        let database = Database { path: &path, migrations: &BOARD, durable };
        let first = database.open().await.unwrap();
        for mut conn in [first, database.options().connect().await.unwrap()] {
            let found: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut conn).await.unwrap();
            assert_eq!(found, level);
            let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut conn).await.unwrap();
            let keys: i64 = sqlx::query_scalar("PRAGMA foreign_keys").fetch_one(&mut conn).await.unwrap();
            let busy: i64 = sqlx::query_scalar("PRAGMA busy_timeout").fetch_one(&mut conn).await.unwrap();
            assert_eq!((mode.as_str(), keys, busy), ("wal", 1, 5000));
        }
    }
}

#[tokio::test]
async fn a_damaged_database_is_set_aside_and_the_next_open_makes_a_new_one() {
    for (n, harm) in ["no database", "middle", "cut"].into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("board.db");
        let store = Store::open(dir.path()).await.unwrap();
        let tasks: Vec<_> = (0..100).map(|n| task(&format!("t{n}"), 1)).collect();
        store.save(&upserts(&tasks), &[], None, now(1)).await.unwrap();
        store.close().await;
        let mut bytes = std::fs::read(&path).unwrap();
        match n {
            0 => bytes[..16].copy_from_slice(b"0123456789abcdef"),
            1 => {
                for page in 2..bytes.len() / 4096 {
                    bytes[page * 4096..page * 4096 + 64].fill(0xff);
                }
            }
            _ => bytes.truncate(bytes.len() / 2),
        }
        std::fs::write(&path, &bytes).unwrap();
        std::fs::write(dir.path().join("board.db-wal"), b"left behind").unwrap();
        let error = Store::open(dir.path()).await.err().unwrap();
        assert!(error.is_damage());
        let StoreError::Damaged { moved_to, .. } = &error else { panic!("{harm}: {error:?}") };
        assert_eq!(moved_to.file_name().unwrap(), "board.db.damaged-1");
        assert_eq!(std::fs::metadata(moved_to).unwrap().len(), bytes.len() as u64, "{harm}");
        assert!(!path.exists());
        let store = Store::open(dir.path()).await.unwrap();
        assert_eq!(store.load().await.unwrap().tasks, []);
        store.save(&upserts(&tasks), &[], None, now(1)).await.unwrap();
    }
}

#[tokio::test]
async fn a_database_that_breaks_under_its_store_is_replaced_by_the_whole_board() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("board.db");
    let store = Store::open(dir.path()).await.unwrap();
    let tasks: Vec<_> = (0..100).map(|n| task(&format!("t{n}"), 1)).collect();
    store.save(&upserts(&tasks), &[], None, now(1)).await.unwrap();
    let concluded = Concluded { outcome: Outcome::Aborted, epoch: Epoch(3), retry: 0 };
    let board = Board::load(tasks.clone(), vec![(id("over"), concluded.clone())], vec![], true, None);
    // All of it in the one file, and all but its head spoiled.
    let mut other = SqliteConnectOptions::new().filename(&path).connect().await.unwrap();
    sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut other).await.unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096..].fill(b'#');
    std::fs::write(&path, &bytes).unwrap();
    sqlx::query("PRAGMA user_version = 7").execute(&mut other).await.unwrap();
    other.close().await.unwrap();
    let error = store.save(&upserts(&tasks[..1]), &[], None, now(2)).await.unwrap_err();
    assert!(error.is_damage(), "{error:?}");
    store.renew("boot-1", &board, now(2)).await.unwrap();
    assert!(dir.path().join("board.db.damaged-1").exists());
    store.save(&upserts(&[task("late", 1)]), &[], None, now(3)).await.unwrap();
    store.close().await;
    let saved = Store::open(dir.path()).await.unwrap().load().await.unwrap();
    assert_eq!(saved.ended, [(id("over"), concluded)]);
    assert_eq!((saved.tasks.len(), saved.paused, saved.boot_id.as_deref()), (101, true, Some("boot-1")));
}

#[tokio::test]
async fn a_save_that_was_given_up_leaves_no_half_batch_and_no_open_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).await.unwrap();
    for round in 1..40 {
        let tasks: Vec<_> = (0..60).map(|n| task(&format!("t{n}"), round)).collect();
        let changes = upserts(&tasks);
        let given = Duration::from_micros(u64::try_from(round).unwrap() * 150);
        let _ = tokio::time::timeout(given, store.save(&changes, &[], None, now(1))).await;
        let saved = store.load().await.unwrap();
        let first = saved.tasks.first().map(|t| t.wish.priority);
        assert!(saved.tasks.iter().all(|t| Some(t.wish.priority) == first), "half a batch in round {round}");
        store.save(&changes, &[], None, now(1)).await.unwrap();
    }
}

/// Helper jobs run in a process of their own; started by the tests below.
#[tokio::test]
#[ignore = "only as a second process of other tests"]
async fn helper_process() {
    let (Ok(job), Ok(dir)) = (std::env::var("STORE_TEST_JOB"), std::env::var("STORE_TEST_DIR")) else { return };
    let dir = Path::new(&dir);
    match job.as_str() {
        "hold" => hold(dir).await,
        "save" => save_for_ever(dir).await,
        "full" => fill(dir).await,
        other => panic!("no job {other}"),
    }
}

/// Takes the write lock for 800 ms again and again.
async fn hold(dir: &Path) {
    let mut conn = SqliteConnectOptions::new()
        .filename(dir.join("board.db"))
        .busy_timeout(Duration::from_secs(30))
        .connect()
        .await
        .unwrap();
    sqlx::query("CREATE TABLE IF NOT EXISTS harmless (n INTEGER)").execute(&mut conn).await.unwrap();
    for n in 0..1000 {
        sqlx::query("BEGIN IMMEDIATE").execute(&mut conn).await.unwrap();
        sqlx::query("INSERT INTO harmless VALUES (1)").execute(&mut conn).await.unwrap();
        std::fs::write(dir.join("held"), n.to_string()).unwrap();
        tokio::time::sleep(Duration::from_millis(800)).await;
        sqlx::query("COMMIT").execute(&mut conn).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn another_process_that_locks_the_database_delays_saves_and_loses_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).await.unwrap();
    let mut holder = helper("hold", dir.path());
    until("the lock", || dir.path().join("held").exists()).await;
    let mut slowest = Duration::ZERO;
    let start = Instant::now();
    let mut n = 0;
    while start.elapsed() < Duration::from_secs(4) {
        n += 1;
        let one = Instant::now();
        store.save(&upserts(&[task("a", n)]), &[line("x", Some("a"), "k", 1)], None, now(1)).await.unwrap();
        slowest = slowest.max(one.elapsed());
        // Reading does not wait for the lock.
        assert_eq!(store.last_seq().await.unwrap(), u64::try_from(n).unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(slowest > Duration::from_millis(300), "no save ever met the lock");
    assert_eq!(store.load().await.unwrap().tasks[0].wish.priority, n);
    assert_eq!(store.journal(&JournalFilter::default()).await.unwrap().len(), usize::try_from(n).unwrap());
}

#[tokio::test]
async fn a_database_that_stays_locked_is_busy_and_the_next_save_works() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).await.unwrap();
    let mut conn = raw(dir.path(), "board.db").await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut conn).await.unwrap();
    let error = store.save(&upserts(&[task("a", 1)]), &[], None, now(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Busy { .. }), "{error:?}");
    sqlx::query("ROLLBACK").execute(&mut conn).await.unwrap();
    store.save(&upserts(&[task("a", 2)]), &[], None, now(1)).await.unwrap();
    assert_eq!(store.load().await.unwrap().tasks[0].wish.priority, 2);
}

const BATCH: usize = 20;

/// Saves one batch after the other; the number of the last one that was acknowledged stands in a file.
async fn save_for_ever(dir: &Path) {
    let store = Store::open(dir).await.unwrap();
    let from = store.load().await.unwrap().tasks.first().map_or(0, |t| t.wish.priority);
    for k in from + 1.. {
        let tasks: Vec<_> = (0..BATCH).map(|n| task(&format!("t{n}"), k)).collect();
        let gone = [ended_task(&format!("e{k}"))];
        let concluded = Concluded { outcome: Outcome::Aborted, epoch: Epoch(1), retry: 0 };
        let night = Some(Night { number: u64::try_from(k).unwrap(), started: Wall(1), ended: None });
        let mut changes = upserts(&tasks);
        changes.ended = vec![(&gone[0].id, Some(&concluded), Some(&gone[0]))];
        changes.night = Some(&night);
        let lines = vec![line(&k.to_string(), None, "k", 1); 3];
        store.save(&changes, &lines, Some(u64::try_from(k).unwrap()), now(1)).await.unwrap();
        std::fs::write(dir.join("acknowledged.new"), k.to_string()).unwrap();
        std::fs::rename(dir.join("acknowledged.new"), dir.join("acknowledged")).unwrap();
    }
}

#[tokio::test]
async fn a_kill_at_any_moment_leaves_whole_batches() {
    let dir = tempfile::tempdir().unwrap();
    let acknowledged =
        || std::fs::read_to_string(dir.path().join("acknowledged")).unwrap_or_default().parse().unwrap_or(0);
    for round in 0..12_u64 {
        let before: i32 = acknowledged();
        let mut child = helper("save", dir.path());
        until("a save", || acknowledged() > before).await;
        tokio::time::sleep(Duration::from_micros(round * 1_700)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        let store = Store::open(dir.path()).await.unwrap();
        let saved = store.load().await.unwrap();
        let k = saved.tasks[0].wish.priority;
        assert!(k >= acknowledged(), "batch {} was acknowledged and is gone: {k}", acknowledged());
        let n = usize::try_from(k).unwrap();
        assert_eq!(saved.tasks.len(), BATCH);
        assert!(saved.tasks.iter().all(|t| t.wish.priority == k), "mixed batches in round {round}");
        assert_eq!(saved.ended.len(), n);
        assert_eq!(saved.night.as_ref().map(|n| n.number), u64::try_from(k).ok());
        assert_eq!(store.night(u64::try_from(k).unwrap()).await.unwrap().len(), 1);
        let journal = store.journal(&JournalFilter::default()).await.unwrap();
        assert_eq!((journal.len(), journal.last().map(|r| r.text.clone())), (3 * n, Some(k.to_string())));
        store.close().await;
    }
}

/// Saves on a small file system until it is full, makes room, and goes on.
async fn fill(dir: &Path) {
    let store = Store::open(dir).await.unwrap();
    store.save(&upserts(&[task("a", 1)]), &[], None, now(1)).await.unwrap();
    let filler = dir.join("filler");
    let mut bytes = 8 << 20;
    while bytes > 256 {
        // Whatever fits.
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&filler).unwrap();
        if std::io::Write::write_all(&mut file, &vec![1; bytes]).is_err() {
            bytes /= 2;
        }
    }
    let big: Vec<_> = (0..500).map(|n| task(&format!("t{n}"), 2)).collect();
    for _ in 0..3 {
        let error = store.save(&upserts(&big), &[line("x", None, "k", 1)], None, now(1)).await.unwrap_err();
        assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    }
    assert_eq!(store.load().await.unwrap().tasks.len(), 1);
    std::fs::remove_file(&filler).unwrap();
    assert_eq!(store.save(&upserts(&big), &[line("x", None, "k", 1)], None, now(1)).await.unwrap(), 1..2);
    assert_eq!(store.load().await.unwrap().tasks.len(), 501);
    store.close().await;
    let store = Store::open(dir).await.unwrap();
    assert_eq!(store.load().await.unwrap().tasks.len(), 501);
    std::fs::write(dir.join("passed"), "").unwrap();
    // The mark goes with the file system; the exit code is what counts.
}

#[test]
fn a_full_disk_is_said_and_saving_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=6m,mode=700 tmpfs \"$STORE_TEST_DIR\" || exit 77; \"$@\"; code=$?; \
                  test -e \"$STORE_TEST_DIR/passed\" && exit $code; exit 78";
    let done = Command::new("unshare")
        .args(["-Urm", "sh", "-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "store::helper_process", "--ignored", "--nocapture"])
        .env("STORE_TEST_JOB", "full")
        .env("STORE_TEST_DIR", dir.path())
        .output();
    match done.as_ref().map(|d| d.status.code()) {
        Ok(Some(0)) => {}
        Ok(Some(1 | 77)) if done.as_ref().is_ok_and(|d| d.stdout.is_empty()) => {
            eprintln!("skipped: no file system of its own may be mounted here");
        }
        Err(_) => eprintln!("skipped: no unshare here"),
        _ => panic!("{done:?}"),
    }
}

fn beat(n: usize, at: i64) -> Beat {
    Beat {
        run: RunId::new(&id(&format!("t{n}")), Epoch(1)),
        task: id(&format!("t{n}")),
        at: Wall(at),
        last_output: Wall(at - 1),
        last_progress: Wall(at - 2),
        bytes: u64::MAX,
        cpu_ms: 5,
        rss: 6,
    }
}

#[tokio::test]
async fn the_newest_sign_of_life_of_each_run_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).await.unwrap();
    for at in 10..20 {
        for n in 0..5 {
            store.beat(beat(n, at));
        }
    }
    let beats = assert_send(store.beats()).await.unwrap();
    let expected: Vec<_> = (0..5).map(|n| Beat { bytes: u64::try_from(i64::MAX).unwrap(), ..beat(n, 19) }).collect();
    assert_eq!(beats, expected);
    store.beat(beat(9, 30));
    store.prune_beats(Wall(25)).await.unwrap();
    store.close().await;
    let store = Store::open(dir.path()).await.unwrap();
    assert_eq!(store.beats().await.unwrap().iter().map(|b| b.at.0).collect::<Vec<_>>(), [30]);
}

#[tokio::test]
async fn lost_or_foreign_heartbeats_never_stand_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("beats.db");
    for round in 0..3 {
        match round {
            0 => std::fs::write(&path, vec![7; 9000]).unwrap(),
            1 => {
                let mut conn = raw(dir.path(), "beats.db").await;
                sqlx::query("INSERT INTO _sqlx_migrations VALUES (99, 'x', 0, true, x'00', 1)")
                    .execute(&mut conn)
                    .await
                    .unwrap();
            }
            _ => {
                let mut conn = raw(dir.path(), "beats.db").await;
                sqlx::query("DROP TABLE beats").execute(&mut conn).await.unwrap();
            }
        }
        let store = Store::open(dir.path()).await.unwrap();
        store.beat(beat(1, 5));
        assert_eq!(store.beats().await.unwrap().len(), 1, "round {round}");
        store.close().await;
    }
}

#[allow(dead_code, reason = "for benches/hands.rs")]
fn percentile(sorted: &[Duration], p: usize) -> Duration {
    sorted[(sorted.len() * p / 100).min(sorted.len() - 1)]
}

/// Prints what saves, beats and a long past cost on this machine's disk: `cargo bench --bench hands store`.
#[allow(dead_code, reason = "for benches/hands.rs")]
pub(crate) async fn figures() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let store = Store::open(dir.path()).await.unwrap();
    for size in [1_usize, 10, 200] {
        let tasks: Vec<_> = (0..size).map(|n| task(&format!("t{n}"), 1)).collect();
        let start = Instant::now();
        let bytes: usize = tasks.iter().map(|t| serde_json::to_string(t).unwrap().len()).sum();
        println!("{size} tasks are {bytes} bytes of JSON, made in {:?}", start.elapsed());
        let mut took = Vec::new();
        for round in 0..200 {
            let tasks: Vec<_> = (0..size).map(|n| task(&format!("t{n}"), round)).collect();
            let lines: Vec<_> = (0..size).map(|n| line("something happened", Some(&format!("t{n}")), "k", 1)).collect();
            let start = Instant::now();
            store.save(&upserts(&tasks), &lines, Some(1), now(1)).await.unwrap();
            took.push(start.elapsed());
        }
        took.sort();
        println!("save of {size} tasks and lines: p50 {:?} p99 {:?}", percentile(&took, 50), percentile(&took, 99));
    }
    let cpu = || {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the struct is as large as the call needs.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
            usage.assume_init()
        };
        (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1_000_000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec
    };
    let (start, used) = (Instant::now(), cpu());
    for tick in 0..600_i64 {
        // 200 runs six times a second: one in ten milliseconds makes twelve.
        for n in 0..12_usize {
            let turn = usize::try_from(tick).unwrap() * 12 + n;
            store.beat(beat(turn % 200, tick));
        }
        tokio::time::sleep_until((start + Duration::from_millis(10) * u32::try_from(tick).unwrap()).into()).await;
    }
    let wall = start.elapsed();
    println!(
        "beats, 1200 a second for {wall:?}: {:.1} % of a core",
        (cpu() - used) as f64 / wall.as_micros() as f64 * 100.0
    );
    // A long past: one hundred thousand ended tasks.
    let ids: Vec<_> = (0..100_000).map(|n| id(&format!("e{n}"))).collect();
    let old = ended_task("old");
    let concluded = Concluded { outcome: Outcome::Merged { commit: oid('a') }, epoch: Epoch(3), retry: 0 };
    for part in ids.chunks(5_000) {
        let tasks: Vec<_> = part.iter().map(|id| Task { id: id.clone(), ..old.clone() }).collect();
        let ended = tasks.iter().map(|t| (&t.id, Some(&concluded), Some(t))).collect();
        store.save(&Changes { ended, ..Changes::default() }, &[], Some(1), now(1)).await.unwrap();
    }
    store.close().await;
    let start = Instant::now();
    let store = Store::open(dir.path()).await.unwrap();
    let opened = start.elapsed();
    let saved = store.load().await.unwrap();
    println!("open with 100,000 ended: {opened:?}, load {:?}: {} ended", start.elapsed() - opened, saved.ended.len());
    println!("board.db: {} MB", std::fs::metadata(dir.path().join("board.db")).unwrap().len() >> 20);
}
