//! Crashes and restarts: whatever is killed at whatever moment, every task settles once and its work is merged once.

use crate::rig::{Rig, Setup, lines_of, signal, text};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);

/// An agent that works until it is told to end: it says so, beats, and ends well when `go` is there.
const WORKER: &str = r#"cat >/dev/null
echo "$OVERNIGHT_TASK $OVERNIGHT_RUN $$" >> "$HOME/../spawns"
while [ ! -e "$HOME/../go" ]; do echo beat; echo b >> "$HOME/../beat"; sleep 0.1; done
echo done > "$OVERNIGHT_TASK.txt"
echo finished"#;

fn worker_rig() -> Rig {
    let rig = Rig::with_config("");
    let bin = rig.script("worker", WORKER);
    let rest = format!("[agents.worker]\nkind = \"custom\"\nbin = \"{}\"\n", bin.display());
    rig.write_config(&rig.config(&Setup { rest, ..Setup::default() }));
    rig.approve();
    rig
}

fn let_go(rig: &Rig) {
    std::fs::write(rig.root().join("go"), "").unwrap();
}

/// The rig itself works: one task goes through and every end check holds.
#[test]
fn a_plain_task_is_merged_and_nothing_is_left() {
    let rig = Rig::new();
    rig.task("hello", &["echo hello > hello.txt"]);
    let _daemon = rig.start();
    rig.until_word("hello", "completed", SOON);
    assert_eq!(rig.on_target("hello.txt").as_deref(), Some("hello\n"));
    assert_eq!(rig.merges_of("hello"), 1, "{:?}", rig.merged());
    rig.end_checks();
}

/// The run's folder is deleted: while its agent lives and a daemon runs, while none runs, and when the agent was ended
/// meanwhile too. Whoever comes next comes alone, as a run of its own, and nothing is charged.
#[test]
fn a_deleted_run_folder_never_makes_two_agents() {
    let rig = worker_rig();
    rig.agent_task("t1", "worker");
    let mut daemon = Some(rig.start());
    let (stop, most) = (AtomicBool::new(false), AtomicUsize::new(0));
    let runs = rig.data().join("runs");
    let folder = || {
        let mut all: Vec<_> = std::fs::read_dir(&runs).unwrap().flatten().map(|e| e.path()).collect();
        all.retain(|p| p.join("beat").exists() && !p.join("exit.json").exists());
        all.pop()
    };
    let _daemon = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                most.fetch_max(rig.agents("worker").len(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        for n in 1..=3 {
            rig.wait_for("an agent works", SOON, || rig.lines("spawns").len() == n && folder().is_some());
            let folder = folder().unwrap();
            let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
            rig.wait_for("its sign of life is saved", SOON, || has_beat(&rig, &name));
            if n > 1 {
                daemon.take().unwrap().kill();
            }
            std::fs::remove_dir_all(&folder).unwrap();
            if n == 3 {
                rig.agents("worker").into_iter().for_each(|pid| signal(pid, "KILL"));
                rig.wait_for("nothing lives", SOON, || rig.agents("worker").is_empty());
            }
            if n > 1 {
                daemon = Some(rig.start());
            }
        }
        rig.wait_for("one more agent works", SOON, || rig.lines("spawns").len() == 4);
        stop.store(true, Ordering::Relaxed);
        daemon
    });
    assert_eq!(most.load(Ordering::Relaxed), 1, "agents at once");
    let_go(&rig);
    let status = rig.until_word("t1", "completed", SOON);
    assert_eq!(lines_of(&status)[0]["attempt"], 1, "{status}");
    let events = rig.ok(&["events", "--task", "t1"]);
    assert_eq!(events.matches("interrupted (lost without a record)").count(), 3, "{events}");
    rig.end_checks();
}

/// Whether the database of signs of life has one of this run.
fn has_beat(rig: &Rig, run: &str) -> bool {
    use sqlx::Connection as _;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let file = rig.data().join("beats.db");
        let mut c = sqlx::SqliteConnection::connect(&format!("sqlite:{}", file.display())).await.unwrap();
        let found = sqlx::query("SELECT 1 FROM beats WHERE run = ?1").bind(run).fetch_optional(&mut c).await.unwrap();
        found.is_some()
    })
}

/// The database breaks, or is deleted, while an agent works: the board goes into another one, and nothing is lost by it.
#[test]
fn a_database_that_breaks_while_the_daemon_runs_costs_nothing() {
    for deleted in [false, true] {
        let rig = worker_rig();
        rig.agent_task("t1", "worker");
        rig.task("t2", &["echo t2 > t2.txt"]);
        let daemon = rig.start();
        rig.wait_for("the agent has started", SOON, || !rig.lines("spawns").is_empty());
        rig.until_word("t2", "completed", SOON);
        for name in ["board.db-wal", "board.db-shm", "board.db"] {
            let file = rig.data().join(name);
            if deleted {
                let _ = std::fs::remove_file(&file);
            } else if name != "board.db-shm" {
                let length = usize::try_from(file.metadata().unwrap().len()).unwrap();
                std::fs::write(&file, vec![b'#'; length]).unwrap();
            }
        }
        rig.ok(&["pause"]);
        rig.ok(&["add", "t3", "--script", "echo t3 > t3.txt"]);
        let_go(&rig);
        rig.until_word("t1", "completed", SOON);
        rig.ok(&["resume"]);
        rig.until_word("t3", "completed", SOON);
        daemon.kill();
        let _daemon = rig.start();
        for slug in ["t1", "t2", "t3"] {
            // Known from the state repo by now, if not from the database.
            rig.wait_for("it is known as done", SOON, || rig.run(&["task", "status", slug]).out.contains("completed"));
            assert_eq!(rig.merges_of(slug), 1);
        }
        if !deleted {
            let alarms = rig.status()["alarms"].to_string();
            assert!(alarms.contains("the database was damaged and is replaced"), "{alarms}");
        }
        assert_eq!(rig.lines("spawns").len(), 1, "{:?}", rig.lines("spawns"));
        rig.end_checks();
    }
}

/// CR-TWO-AGENTS: the daemon is killed three times while its agent lives; there is never a second one.
#[test]
fn a_killed_daemon_takes_up_its_agent_and_never_starts_a_second() {
    let rig = worker_rig();
    rig.agent_task("t1", "worker");
    let mut daemon = rig.start();
    rig.wait_for("the agent has started", SOON, || !rig.lines("spawns").is_empty());
    let (stop, most) = (AtomicBool::new(false), AtomicUsize::new(0));
    let _daemon = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                most.fetch_max(rig.agents("worker").len(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        for _ in 0..3 {
            daemon.kill();
            let beats = rig.lines("beat").len();
            daemon = rig.start();
            rig.until_phase("t1", "running", SOON);
            rig.wait_for("the agent goes on", SOON, || rig.lines("beat").len() > beats + 3);
        }
        stop.store(true, Ordering::Relaxed);
        daemon
    });
    assert_eq!(most.load(Ordering::Relaxed), 1, "agents at once");
    assert_eq!(rig.lines("spawns").len(), 1, "{:?}", rig.lines("spawns"));
    let_go(&rig);
    let status = rig.until_word("t1", "completed", SOON);
    assert_eq!(lines_of(&status)[0]["attempt"], 1, "{status}");
    assert_eq!(rig.merges_of("t1"), 1);
    rig.end_checks();
}

/// A run that goes on is none that is lost: not when its brief is gone at the next start, and not when its folder cannot be
/// read for a while.
#[test]
fn a_run_that_cannot_be_followed_for_now_is_not_taken_for_lost() {
    let rig = worker_rig();
    rig.agent_task("t1", "worker");
    let daemon = rig.start();
    rig.wait_for("the agent has started", SOON, || !rig.lines("spawns").is_empty());
    daemon.kill();
    std::fs::remove_dir_all(rig.mirror().with_file_name("briefs")).unwrap();
    let runs: Vec<_> = std::fs::read_dir(rig.data().join("runs")).unwrap().flatten().map(|e| e.path()).collect();
    // What cannot be read as an end is none.
    let agents = runs.iter().filter(|r| r.join("started").exists() && !r.join("exit.json").exists());
    let in_the_way: Vec<_> = agents.map(|run| run.join("exit.json")).collect();
    assert_eq!(in_the_way.len(), 1, "{runs:?}");
    std::fs::create_dir(&in_the_way[0]).unwrap();
    let _daemon = rig.start();
    rig.wait_for("it is said", SOON, || rig.log().contains("cannot be followed for now"));
    rig.until_phase("t1", "running", SOON);
    std::fs::remove_dir(&in_the_way[0]).unwrap();
    let_go(&rig);
    let status = rig.until_word("t1", "completed", SOON);
    assert_eq!(lines_of(&status)[0]["attempt"], 1, "{status}");
    assert_eq!(rig.lines("spawns").len(), 1, "{:?}", rig.lines("spawns"));
    rig.end_checks();
}

/// TERM leaves agents running; the next start takes them up.
#[test]
fn term_leaves_agents_running_and_the_next_start_adopts_them() {
    let rig = worker_rig();
    rig.agent_task("t1", "worker");
    rig.agent_task("t2", "worker");
    let mut daemon = rig.start();
    rig.wait_for("both agents have started", SOON, || rig.lines("spawns").len() == 2);
    daemon.signal("TERM");
    assert!(daemon.ended().success());
    assert_eq!(rig.agents("worker").len(), 2);
    // One ends while nobody looks, the other goes on.
    let _daemon = rig.start();
    rig.until_phase("t1", "running", SOON);
    let_go(&rig);
    rig.until_word("t1", "completed", SOON);
    rig.until_word("t2", "completed", SOON);
    assert_eq!(rig.lines("spawns").len(), 2, "{:?}", rig.lines("spawns"));
    rig.end_checks();
}

/// An agent that ends while no daemon runs is settled by the next one, from what it left.
#[test]
fn an_agent_that_ends_without_a_daemon_is_settled_by_the_next() {
    let rig = worker_rig();
    rig.agent_task("t1", "worker");
    let daemon = rig.start();
    rig.wait_for("the agent has started", SOON, || !rig.lines("spawns").is_empty());
    daemon.kill();
    let_go(&rig);
    rig.wait_for("the agent and its shim have ended", SOON, || rig.processes().is_empty());
    let _daemon = rig.start();
    rig.until_word("t1", "completed", SOON);
    assert_eq!(rig.lines("spawns").len(), 1);
    assert_eq!(rig.merges_of("t1"), 1);
    rig.end_checks();
}

/// `stop` ends the agents; their tasks keep their place and their attempts, and go on at the next start.
#[test]
fn stop_with_agents_then_start_resumes() {
    let rig = worker_rig();
    rig.agent_task("t1", "worker");
    let mut daemon = rig.start();
    rig.wait_for("the agent has started", SOON, || !rig.lines("spawns").is_empty());
    rig.ok(&["stop"]);
    daemon.ended();
    assert_eq!(rig.processes(), vec![]);
    assert!(!rig.root().join("go").exists());
    let _daemon = rig.start();
    rig.wait_for("it runs again", SOON, || rig.lines("spawns").len() == 2);
    let_go(&rig);
    let status = rig.until_word("t1", "completed", SOON);
    assert_eq!(lines_of(&status)[0]["attempt"], 1, "the stop spent an attempt: {status}");
    rig.end_checks();
}

/// `restart` with an agent running: a new daemon, the same agent.
#[test]
fn restart_keeps_agents() {
    let rig = worker_rig();
    rig.agent_task("t1", "worker");
    let mut daemon = rig.start();
    rig.wait_for("the agent has started", SOON, || !rig.lines("spawns").is_empty());
    rig.ok(&["restart"]);
    daemon.ended();
    rig.until_phase("t1", "running", SOON);
    let_go(&rig);
    rig.until_word("t1", "completed", SOON);
    assert_eq!(rig.lines("spawns").len(), 1);
    rig.end_checks();
}

/// CFG-RELOAD-BAD in part: HUP with a file that is not sound, or sound and not approved, keeps what was approved.
#[test]
fn a_broken_configuration_is_said_and_the_old_one_stays() {
    let rig = worker_rig();
    let good = std::fs::read_to_string(rig.code().join("overnight.toml")).unwrap();
    rig.agent_task("t1", "worker");
    let daemon = rig.start();
    rig.wait_for("the agent has started", SOON, || !rig.lines("spawns").is_empty());
    for broken in [
        "",
        "[project]\nname = \"code",
        "[project]\nname = \"code\"\nbase = \"main\"\nslots = \"four\"\n",
        &good.replace("slots = 4", "slots = 1000000000"),
    ] {
        rig.write_config(broken);
        daemon.signal("HUP");
        rig.until("the alarm tells of the file", SOON, |s| s["alarms"].to_string().contains("not valid"));
    }
    rig.write_config(&good.replace("slots = 4", "slots = 1"));
    daemon.signal("HUP");
    rig.until("the alarm tells of the approval", SOON, |s| s["alarms"].to_string().contains("not approved"));
    // Still four slots: a second one starts beside the first.
    rig.agent_task("t2", "worker");
    rig.wait_for("the second agent has started", SOON, || rig.lines("spawns").len() == 2);
    rig.write_config(&good);
    daemon.signal("HUP");
    rig.until("the alarm is gone", SOON, |s| s["alarms"] == serde_json::json!([]));
    let_go(&rig);
    rig.until_word("t1", "completed", SOON);
    rig.until_word("t2", "completed", SOON);
    rig.end_checks();
}

/// The database is deleted between two starts: what was done is not done again, what ran goes on or runs anew, what
/// waits for a person still waits.
#[test]
fn without_its_database_nothing_is_lost_or_done_twice() {
    let rig = worker_rig();
    rig.task("done", &["echo \"$OVERNIGHT_TASK $OVERNIGHT_RUN\" >> \"$HOME/../spawns\"", "echo x > done.txt"]);
    rig.task(
        "asks",
        &["echo \"$OVERNIGHT_TASK $OVERNIGHT_RUN\" >> \"$HOME/../spawns\"", "echo 'QUESTION: Which one?'"],
    );
    rig.agent_task("runs", "worker");
    let daemon = rig.start();
    rig.until_word("done", "completed", SOON);
    rig.until_word("asks", "blocked", SOON);
    rig.wait_for("the agent has started", SOON, || rig.lines("spawns").iter().any(|l| l.starts_with("runs ")));
    daemon.kill();
    for name in std::fs::read_dir(rig.data()).unwrap().flatten().map(|e| e.path()) {
        let file = name.file_name().unwrap().to_string_lossy().into_owned();
        if file.starts_with("board.db") || file.starts_with("beats.db") {
            std::fs::remove_file(name).unwrap();
        }
    }
    rig.task("later", &["echo y > later.txt"]);
    let _daemon = rig.start();
    let_go(&rig);
    rig.until_word("runs", "completed", SOON);
    rig.until_word("later", "completed", SOON);
    rig.until_word("asks", "blocked", SOON);
    let count = |slug: &str| rig.lines("spawns").iter().filter(|l| l.starts_with(&format!("{slug} "))).count();
    assert_eq!(count("done"), 1);
    // What it asked is lost with the database, so it is asked again; its old run is not taken for a new one.
    assert_eq!(count("asks"), 2);
    assert!(count("runs") <= 2);
    for slug in ["done", "runs", "later"] {
        assert_eq!(rig.merges_of(slug), 1, "{slug}: {:?}", rig.merged());
    }
    rig.end_checks();
}

/// CR-PHANTOM-RUNNING: everything is killed, and the machine has started anew since.
#[test]
fn after_a_reboot_every_record_is_settled_once() {
    let rig = worker_rig();
    rig.task("done", &["echo x > done.txt"]);
    rig.agent_task("r1", "worker");
    rig.agent_task("r2", "worker");
    let daemon = rig.start();
    rig.until_word("done", "completed", SOON);
    rig.wait_for("the agents have started", SOON, || rig.lines("spawns").len() == 2);
    daemon.kill();
    end_all(&rig);
    another_boot(&rig);
    let _ = std::fs::remove_file(rig.places.socket());
    let_go(&rig);
    let daemon = rig.start();
    rig.until_word("r1", "completed", SOON);
    rig.until_word("r2", "completed", SOON);
    assert_eq!(rig.lines("spawns").len(), 4, "{:?}", rig.lines("spawns"));
    for slug in ["done", "r1", "r2"] {
        assert_eq!(rig.merges_of(slug), 1);
    }
    // A second restart changes nothing more.
    let before = stable(&rig);
    daemon.kill();
    let _daemon = rig.start();
    rig.until_settled(0, SOON);
    assert_eq!(stable(&rig), before);
    rig.end_checks();
}

/// CR-FLOCK-INHERIT: an agent has its three streams and nothing of the daemon's; a new daemon gets the lock at once.
#[test]
fn children_inherit_no_descriptor() {
    let rig = worker_rig();
    rig.script("worker", &format!("ls -l /proc/$$/fd > \"$HOME/../fds\"\n{WORKER}"));
    rig.write_config(&format!(
        "{}\n[[chain.before]]\nname = \"fds\"\nrun = \"ls -l /proc/$$/fd > $HOME/../fds-step\"\n",
        std::fs::read_to_string(rig.code().join("overnight.toml")).unwrap()
    ));
    rig.approve();
    rig.agent_task("t1", "worker");
    let daemon = rig.start();
    rig.wait_for("the agent has started", SOON, || !rig.lines("spawns").is_empty());
    for file in ["fds", "fds-step"] {
        let fds: Vec<String> = rig.lines(file).into_iter().filter(|l| l.contains(" -> ")).collect();
        // A shell holds its script open, and its own output while a command of it writes elsewhere.
        let strange = |l: &&String| ["socket:", "anon_inode", ".db", ".lock", "/logs/"].iter().any(|s| l.contains(s));
        assert_eq!(fds.iter().filter(strange).count(), 0, "{fds:?}");
        assert!((3..=5).contains(&fds.len()), "{fds:?}");
    }
    daemon.kill();
    let begun = Instant::now();
    let _daemon = rig.start();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let_go(&rig);
    rig.until_word("t1", "completed", SOON);
    rig.end_checks();
}

/// Kills at random instants: the daemon, shims, agents, all of them, with a new boot now and then. Seeds, so that a bad
/// night can be had again: `OVERNIGHT_TEST_SEED` starts from another one.
#[test]
fn kills_at_random_instants_a() {
    random_nights(0..2);
}

#[test]
fn kills_at_random_instants_b() {
    random_nights(2..4);
}

#[test]
fn kills_at_random_instants_c() {
    random_nights(4..6);
}

#[test]
fn kills_at_random_instants_d() {
    random_nights(6..8);
}

fn random_nights(rounds: std::ops::Range<u64>) {
    let base: u64 = std::env::var("OVERNIGHT_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    for round in rounds {
        let seed = base.wrapping_mul(1000) + round;
        let outcome = std::panic::catch_unwind(|| random_night(seed));
        if let Err(panic) = outcome {
            eprintln!("in the night of seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// A night in small: a diamond, of which one side fails its check at first, a question, and one that stands alone.
fn random_night(seed: u64) {
    let mut dice = Dice(seed);
    let rig = Rig::with(&Setup { attempts: 9, ..Setup::default() });
    let note = "echo \"$OVERNIGHT_TASK $OVERNIGHT_RUN\" >> \"$HOME/../spawns\"";
    rig.task("base", &[note, "echo base > base.txt"]);
    let after = |slug: &str, needs: &[&str], script: &[&str]| {
        let task = overnight::text::task_file::NewTask {
            script: script.iter().map(|s| (*s).to_owned()).collect(),
            depends_on: needs.iter().map(|s| (*s).to_owned()).collect(),
            ..Default::default()
        };
        rig.task_file(slug, task);
    };
    after("left", &["base"], &[note, "test -e base.txt || exit 9", "echo left > left.txt"]);
    let fails_first = "if [ \"$OVERNIGHT_ATTEMPT\" = 1 ]; then echo bad > bad; else rm -f bad; fi";
    after("right", &["base"], &[note, "echo right > right.txt", fails_first]);
    after("top", &["left", "right"], &[note, "cat left.txt right.txt > top.txt"]);
    rig.task("alone", &[note, "sleep 0.3", "echo alone > alone.txt"]);
    rig.task("asks", &[note, "echo 'QUESTION: Which one?'"]);
    let mut daemon = Some(rig.start());
    for _ in 0..=dice.below(2) {
        std::thread::sleep(Duration::from_millis(dice.below(1200)));
        let what = dice.below(4);
        if (what == 0 || what == 3)
            && let Some(one) = daemon.take()
        {
            one.kill();
        }
        if what == 1 || what == 3 {
            rig.shims().into_iter().for_each(|pid| signal(pid, "KILL"));
        }
        if what == 2 || what == 3 {
            // Agents, steps, checks: everything under a shim that is no shim itself.
            let shims = rig.shims();
            let below = |pid: &i32| crate::rig::parent(*pid).is_some_and(|p| shims.contains(&p));
            rig.processes().into_iter().map(|(pid, _)| pid).filter(below).for_each(|pid| signal(pid, "KILL"));
        }
        if what == 3 && dice.below(2) == 0 {
            end_all(&rig);
            another_boot(&rig);
        }
        if daemon.is_none() {
            daemon = Some(rig.start());
        }
    }
    rig.until_settled(6, Duration::from_secs(25));
    for slug in ["base", "left", "right", "top", "alone"] {
        assert_eq!(rig.word(slug), "completed", "{slug} {:?}\n{}", rig.line(slug), rig.log());
        assert_eq!(rig.merges_of(slug), 1, "{slug}: {:?}\n{}", rig.merged(), rig.log());
    }
    assert_eq!(rig.word("asks"), "blocked");
    let tree = rig.git(&rig.mirror(), &["ls-tree", "-r", "--name-only", "refs/heads/overnight/main"]);
    let want = ["a.txt", "alone.txt", "base.txt", "left.txt", "overnight.toml", "right.txt", "test.sh", "top.txt"];
    assert_eq!(tree.lines().collect::<Vec<_>>(), want);
    assert_eq!(rig.on_target("top.txt").as_deref(), Some("left\nright\n"));
    let runs: Vec<String> = rig.lines("spawns");
    assert_eq!(runs.len(), runs.iter().collect::<BTreeSet<_>>().len(), "a run was started twice: {runs:?}");
    rig.end_checks();
}

/// Ends every process of the rig but the test itself, as a power cut does.
fn end_all(rig: &Rig) {
    rig.wait_for("all processes have ended", SOON, || {
        let left = crate::rig::marked(rig.root().to_str().unwrap());
        left.iter().for_each(|(pid, _)| signal(*pid, "KILL"));
        left.is_empty()
    });
}

/// Makes what is on disk come from another start of the machine.
fn another_boot(rig: &Rig) {
    let now = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let now = now.trim();
    let other = "00000000-1111-4222-8333-444444444444";
    for run in std::fs::read_dir(rig.places.runs()).unwrap().flatten() {
        for file in std::fs::read_dir(run.path()).into_iter().flatten().flatten() {
            let small = file.metadata().is_ok_and(|m| m.is_file() && m.len() < 1 << 20);
            if let (true, Ok(text)) = (small, std::fs::read_to_string(file.path()))
                && text.contains(now)
            {
                std::fs::write(file.path(), text.replace(now, other)).unwrap();
            }
        }
    }
    sql(&rig.data().join("board.db"), &format!("UPDATE globals SET value = '\"{other}\"' WHERE name = 'boot_id'"));
}

fn sql(db: &Path, text: &str) {
    use sqlx::Connection as _;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut c = sqlx::SqliteConnection::connect(&format!("sqlite:{}", db.display())).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(text.to_owned())).execute(&mut c).await.unwrap();
        c.close().await.unwrap();
    });
}

/// What of the status must not change by a restart.
fn stable(rig: &Rig) -> Vec<(String, String, String)> {
    let mut all: Vec<_> = lines_of(&rig.status())
        .iter()
        .map(|l| (text(&l["path"]), text(&l["status"]), l["attempt"].to_string()))
        .collect();
    all.sort();
    all
}

/// A small generator, the same everywhere.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// A daemon whose data folder is gone ends by itself, and touches nothing of what another makes under that name.
#[test]
fn without_its_data_folder_the_daemon_ends() {
    let rig = Rig::new();
    let mut daemon = rig.start();
    // It may write a file into a folder that is just being emptied: whoever wants it gone asks again.
    rig.wait_for("the folder is gone", SOON, || {
        let _ = std::fs::remove_dir_all(rig.data());
        !rig.data().exists()
    });
    assert_eq!(daemon.ended().code(), Some(10));
    // Moved away: it ends with the next thing that it would do, and leaves the socket to the one that came after it.
    let mut first = rig.start();
    std::fs::rename(rig.data(), rig.data().with_extension("away")).unwrap();
    let mut other = rig.start();
    first.signal("HUP");
    assert_eq!(first.ended().code(), Some(10));
    // It answers: the socket is there.
    rig.status();
    other.signal("TERM");
    other.ended();
}
