//! Two and more at once: daemons, starts, cancels, clients, another hand on the database, a machine that stands still.

use crate::rig::{BIN, Rig, Setup, lines_of, marked, signal, text};
use overnight::client;
use overnight::protocol::{Reply, Request};
use overnight::text::task_file::NewTask;
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);
const WORKER: &str = r#"cat >/dev/null
echo "$OVERNIGHT_TASK $OVERNIGHT_RUN" >> "$HOME/../spawns"
while [ ! -e "$HOME/../go" ]; do echo beat; sleep 0.1; done
echo done > "$OVERNIGHT_TASK.txt"
echo finished"#;

fn worker_rig() -> Rig {
    let rig = Rig::new();
    let bin = rig.script("worker", WORKER);
    let rest = format!("[agents.worker]\nkind = \"custom\"\nbin = \"{}\"\n", bin.display());
    rig.write_config(&rig.config(&Setup { rest, ..Setup::default() }));
    rig.approve();
    rig
}

fn let_go(rig: &Rig) {
    std::fs::write(rig.root().join("go"), "").unwrap();
}

/// A bare remote of the rig's state repo, and the rig set up to use it.
fn with_remote(rig: &Rig) -> PathBuf {
    let remote = rig.root().join("state-remote.git");
    rig.git(rig.root(), &["clone", "-q", "--bare", "state", remote.to_str().unwrap()]);
    rig.git(&remote, &["config", "core.logAllRefUpdates", "always"]);
    rig.git(&rig.state(), &["remote", "add", "origin", remote.to_str().unwrap()]);
    rig.git(&rig.state(), &["fetch", "-q", "origin"]);
    rig.git(&rig.state(), &["branch", "-q", "--set-upstream-to=origin/main", "main"]);
    remote
}

/// CON-CLAIM-RACE: two daemons of two homes share one state remote whose hook is slow at random. Every task runs once.
#[test]
fn two_daemons_share_a_queue_and_run_every_task_once() {
    const TASKS: usize = 16;
    let one = Rig::new();
    let remote = with_remote(&one);
    let hook = remote.join("hooks/pre-receive");
    std::fs::write(&hook, "#!/bin/sh\nsleep 0.$(( $(od -An -N1 -tu1 /dev/urandom) % 3 ))\n").unwrap();
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    let two = Rig::with(&Setup { state_remote: Some(remote.clone()), ..Setup::default() });
    let shared = one.root().join("shared");
    let names: Vec<String> = (0..TASKS).map(|n| format!("t{n}")).collect();
    for name in &names {
        let run = format!("echo \"$OVERNIGHT_TASK $HOME\" >> {}", shared.display());
        let wait = format!("while [ ! -e {}.go ]; do sleep 0.05; done", shared.display());
        let task = NewTask {
            script: vec![run, wait, "echo x > \"$OVERNIGHT_TASK.txt\"".into()],
            checks: Some(vec![]),
            ..NewTask::default()
        };
        one.task_file(name, task);
    }
    one.git(&one.state(), &["add", "-A"]);
    one.git(&one.state(), &["commit", "-q", "-m", "Queue"]);
    one.git(&one.state(), &["push", "-q", "origin", "main"]);
    let (_a, _b) = (one.start(), two.start());
    let lines = || std::fs::read_to_string(&shared).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    let hosts =
        |lines: &[String]| lines.iter().filter_map(|l| Some(l.split(' ').nth(1)?.to_owned())).collect::<BTreeSet<_>>();
    // Neither has places for all of them.
    one.wait_for("both are at work", SOON, || hosts(&lines()).len() == 2);
    std::fs::write(one.root().join("shared.go"), "").unwrap();
    one.wait_for("all tasks have run", Duration::from_secs(60), || lines().len() >= TASKS);
    let concluded = || {
        let all = names.iter().filter(|n| {
            let name = format!("main:tasks/{n}/state.json");
            let out = one.command("git").current_dir(&remote).args(["show", &name]).output().unwrap();
            String::from_utf8_lossy(&out.stdout).contains("\"completed\"")
        });
        all.count()
    };
    one.wait_for("all is concluded at the remote", Duration::from_secs(60), || concluded() == TASKS);
    let ran: Vec<String> = lines();
    let tasks: BTreeSet<&str> = ran.iter().filter_map(|l| l.split(' ').next()).collect();
    assert_eq!((ran.len(), tasks.len()), (TASKS, TASKS), "{ran:?}\n{}\n{}", one.log(), two.log());
    // Every move of the branch went forward.
    let moves = one.git(&remote, &["reflog", "show", "--format=%H", "main"]);
    let moves: Vec<&str> = moves.lines().collect();
    assert!(moves.len() > TASKS / 2, "{moves:?}");
    for pair in moves.windows(2) {
        one.git(&remote, &["merge-base", "--is-ancestor", pair[1], pair[0]]);
    }
    let claims = one.git(&remote, &["for-each-ref", "refs/overnight/claims"]);
    assert_eq!(claims, "", "claims are left");
    one.end_checks();
    two.end_checks();
}

/// GIT-CRED-PROMPT: a remote that asks for a password. Nobody is asked, nothing hangs, local work that needs no push
/// goes on being told, and it is said.
#[test]
fn a_remote_that_asks_for_a_password_is_said_and_asks_nobody() {
    let rig = Rig::new();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in server.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(
                b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            );
        }
    });
    let ask = rig.script("ask", "echo asked >> \"$HOME/../asked\"; sleep 600");
    for name in ["SSH_ASKPASS", "GIT_ASKPASS"] {
        rig.set_env(name, ask.to_str().unwrap());
    }
    rig.set_env("SSH_ASKPASS_REQUIRE", "force");
    rig.set_env("DISPLAY", ":9");
    rig.git(&rig.state(), &["remote", "add", "origin", &format!("http://127.0.0.1:{port}/x.git")]);
    rig.task("t1", &["echo x > x.txt"]);
    let _daemon = rig.start();
    rig.wait_for("the trouble is said", SOON, || rig.log().contains("the state remote"));
    let begun = Instant::now();
    let status = rig.ok(&["status"]);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    // Nothing is started without a claim, and the claim is at the remote.
    assert!(status.contains("state remote cannot be used"), "{status}");
    assert_ne!(rig.word("t1"), "completed");
    assert!(!rig.root().join("asked").exists(), "somebody was asked");
    // Each try ends by itself; none is left when the daemon is gone.
    rig.wait_for("no try is under way", SOON, || {
        !rig.processes().iter().any(|(_, line)| line.contains("git-remote-http"))
    });
    rig.end_checks();
}

/// DB-BUSY-LOST: another process holds the database's write lock time and again. No change of state is lost.
#[test]
fn a_database_that_is_held_by_another_loses_nothing() {
    let rig = worker_rig();
    for n in 0..4 {
        rig.agent_task(&format!("t{n}"), "worker");
    }
    let _daemon = rig.start();
    rig.wait_for("the agents have started", SOON, || rig.lines("spawns").len() == 4);
    let (stop, held) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let db = rig.data().join("board.db");
        let (stop, held) = (&stop, &held);
        scope.spawn(move || {
            use sqlx::Connection as _;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut c = sqlx::SqliteConnection::connect(&format!("sqlite:{}", db.display())).await.unwrap();
                while !stop.load(Ordering::Relaxed) {
                    if sqlx::query("BEGIN IMMEDIATE").execute(&mut c).await.is_ok() {
                        held.store(true, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(800));
                        let _ = sqlx::query("COMMIT").execute(&mut c).await;
                    }
                    std::thread::sleep(Duration::from_millis(200));
                }
            });
        });
        rig.wait_for("the database is held", SOON, || held.load(Ordering::Relaxed));
        assert_eq!(rig.run(&["cancel", "t0"]).code, 0);
        assert_eq!(rig.run(&["cancel", "t1"]).code, 0);
        let_go(&rig);
        let begun = Instant::now();
        rig.ok(&["status"]);
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
        for (slug, word) in [("t0", "aborted"), ("t1", "aborted"), ("t2", "completed"), ("t3", "completed")] {
            rig.until_word(slug, word, Duration::from_secs(30));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(rig.lines("spawns").len(), 4);
    rig.end_checks();
}

/// CR-SOCKET-STALE a, b, c, g: what lies at the socket's place.
#[test]
fn a_stale_socket_is_replaced_and_anything_else_is_left() {
    let rig = Rig::new();
    let socket = rig.places.socket();
    // g: no folder at all; then a: the socket of a daemon that was killed.
    let _ = std::fs::remove_dir_all(&rig.places.runtime);
    rig.start().kill();
    assert!(socket.symlink_metadata().unwrap().file_type().is_socket());
    assert_eq!(rig.places.runtime.metadata().unwrap().mode() & 0o777, 0o700);
    rig.start().kill();
    // b: a file; c: a link to one.
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "mine").unwrap();
    assert_eq!(rig.spawn_daemon().ended().code(), Some(2));
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "mine");
    let other = rig.root().join("other");
    std::fs::rename(&socket, &other).unwrap();
    std::os::unix::fs::symlink(&other, &socket).unwrap();
    assert_eq!(rig.spawn_daemon().ended().code(), Some(2));
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
    assert!(socket.symlink_metadata().unwrap().file_type().is_symlink());
    std::fs::remove_file(&socket).unwrap();
    let _daemon = rig.start();
    rig.end_checks();
}

/// CR-SOCKET-STALE d: a daemon that stands still is not pushed aside. Its socket stays, and it serves when it goes on.
#[test]
fn a_daemon_that_stands_still_keeps_its_place() {
    let rig = Rig::new();
    let first = rig.start();
    first.signal("STOP");
    let inode = rig.places.socket().metadata().unwrap().ino();
    let mut second = rig.spawn_daemon();
    assert_eq!(second.ended().code(), Some(4), "{}", rig.log());
    assert_eq!(rig.places.socket().metadata().unwrap().ino(), inode);
    first.signal("CONT");
    assert!(client::lives(&rig.places, Duration::from_secs(5)));
    rig.end_checks();
}

/// CR-SOCKET-STALE e: ten starts at one instant leave one daemon, and every caller is told well.
#[test]
fn ten_starts_at_once_leave_one_daemon() {
    let rig = Rig::new();
    rig.remember();
    let codes: Vec<(i32, String)> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..10).map(|_| scope.spawn(|| rig.run(&["start"]))).collect();
        all.into_iter().map(|t| t.join().unwrap()).map(|d| (d.code, d.err)).collect()
    });
    assert!(codes.iter().all(|(code, _)| *code == 0), "{codes:?}");
    rig.wait_for("one daemon is left", SOON, || {
        let all = marked(rig.root().to_str().unwrap());
        all.iter().filter(|(_, line)| line.contains("__daemon")).count() == 1
    });
    rig.end_checks();
}

/// CR-SOCKET-STALE f: a home whose path is too long for a socket: client and daemon agree on a short one.
#[test]
fn a_home_with_a_long_path_works() {
    let rig = Rig::new();
    let long = rig.root().join("l".repeat(150));
    std::fs::create_dir_all(&long).unwrap();
    let mut c = rig.command(BIN);
    c.env("OVERNIGHT_HOME", &long).arg("__daemon");
    let mut daemon = rig.spawn(c);
    let places = overnight::config::Places::under(&long);
    rig.wait_for("it answers", SOON, || client::lives(&places, Duration::from_millis(500)));
    let stop = rig.command(BIN).env("OVERNIGHT_HOME", &long).arg("stop").output().unwrap();
    assert!(stop.status.success(), "{stop:?}");
    daemon.ended();
    let _ = std::fs::remove_dir_all(places.socket().parent().unwrap());
}

/// CON-CANCEL-RACE: a cancel in every phase ends the task once, its work kept, nothing of it left.
#[test]
fn a_cancel_in_every_phase_ends_the_task_once() {
    let rig = Rig::with(&Setup { slots: 8, ..Setup::default() });
    let mut config = std::fs::read_to_string(rig.code().join("overnight.toml")).unwrap();
    config = config.replacen(
        "[[checks]]",
        "[[checks]]\nname = \"slow\"\nrun = \"[ ! -e slow-check ] || sleep 1\"\n\n[[checks]]",
        1,
    );
    config.push_str("[[chain.before]]\nname = \"b\"\nrun = \"[ $OVERNIGHT_TASK != before ] || sleep 20\"\n");
    config.push_str("[[chain.after]]\nname = \"a\"\nrun = \"[ ! -e slow-after ] || sleep 20\"\n");
    rig.write_config(&config);
    rig.approve();
    rig.ok(&["pause"]);
    rig.task("queued", &["echo x > queued.txt"]);
    rig.task("before", &["echo x > before.txt"]);
    rig.task("running", &["echo x > running.txt; sleep 20"]);
    rig.task("checking", &["echo x > slow-check"]);
    rig.task("after", &["echo x > slow-after"]);
    rig.task("done", &["echo x > done.txt"]);
    let _daemon = rig.start();
    rig.until("queued is known", SOON, |s| lines_of(s).len() == 6);
    rig.ok(&["cancel", "queued"]);
    // No night has begun, so the status does not list it any more.
    rig.wait_for("queued is aborted", SOON, || rig.show("queued")["line"]["status"] == "aborted");
    rig.ok(&["resume"]);
    for phase in ["before", "running", "checking", "after"] {
        rig.until_phase(phase, phase, SOON);
        rig.ok(&["cancel", phase]);
        // Again at once: a clean answer, nothing new.
        let again = rig.run(&["cancel", phase]);
        assert!([0, 4].contains(&again.code), "{again:?}");
    }
    for phase in ["before", "running", "checking", "after"] {
        rig.until_word(phase, "aborted", SOON);
        assert_eq!(rig.merges_of(phase), 0);
    }
    assert!(rig.is_kept("running.txt", "x\n"));
    rig.until_word("done", "completed", SOON);
    let late = rig.run(&["cancel", "done"]);
    assert_eq!(late.code, 4, "{late:?}");
    assert_eq!(rig.word("done"), "completed");
    rig.end_checks();
}

/// CON-CANCEL-RACE: a cancel at random instants, and a restart with it: aborted or merged, never half, never again.
#[test]
fn cancels_at_random_instants_end_each_task_once() {
    const TASKS: u64 = 12;
    let rig = Rig::with(&Setup { slots: 8, ..Setup::default() });
    for n in 0..TASKS {
        rig.task(&format!("t{n}"), &[&format!("echo t{n} > t{n}.txt")]);
    }
    let daemon = rig.start();
    rig.until("all are known", SOON, |s| lines_of(s).len() == usize::try_from(TASKS).unwrap());
    std::thread::scope(|scope| {
        for n in 0..TASKS {
            let rig = &rig;
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(n * 211 % 1500));
                let done = rig.run(&["cancel", &format!("t{n}")]);
                assert!([0, 4].contains(&done.code), "{done:?}");
            });
        }
    });
    daemon.kill();
    let _daemon = rig.start();
    rig.until_settled(0, SOON);
    for n in 0..TASKS {
        let slug = format!("t{n}");
        // What ended before the restart is no longer among the open ones; the record tells.
        let name = format!("refs/heads/main:tasks/{slug}/state.json");
        let state = rig.git(&rig.state_clone(), &["show", &name]);
        let merged = rig.merges_of(&slug);
        assert!(
            state.contains("\"aborted\"") && merged == 0 || state.contains("\"completed\"") && merged == 1,
            "{slug}: {merged} {state}\n{}",
            rig.log()
        );
        assert_eq!(rig.on_target(&format!("{slug}.txt")).is_some(), merged == 1);
    }
    rig.end_checks();
}

/// CON-CANCEL-RACE: twenty cancels at once for one task; one does it, all get a clean answer.
#[test]
fn twenty_cancels_at_once_get_clean_answers() {
    let rig = worker_rig();
    rig.agent_task("t1", "worker");
    let _daemon = rig.start();
    rig.wait_for("the agent has started", SOON, || !rig.lines("spawns").is_empty());
    let codes: Vec<i32> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..20).map(|_| scope.spawn(|| rig.run(&["cancel", "t1"]).code)).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(codes.contains(&0) && codes.iter().all(|c| [0, 4].contains(c)), "{codes:?}");
    rig.until_word("t1", "aborted", SOON);
    assert_eq!(rig.lines("spawns").len(), 1);
    rig.end_checks();
}

/// TIME-SUSPEND: daemon and agents stand still for longer than the limit of silence, then all go on: nobody is blamed.
#[test]
fn a_machine_that_stood_still_blames_nobody() {
    let rig = worker_rig();
    let config = std::fs::read_to_string(rig.code().join("overnight.toml")).unwrap();
    rig.write_config(&config.replace("no_progress = \"10s\"", "no_progress = \"3s\""));
    rig.approve();
    // Each command that begins is progress; what a program prints is none.
    let mut script = vec!["echo \"$OVERNIGHT_TASK\" >> \"$HOME/../spawns\""];
    script.resize(150, "[ -e \"$HOME/../go\" ] || sleep 0.1");
    script.push("echo x > \"$OVERNIGHT_TASK.txt\"");
    rig.task("t1", &script);
    rig.task("t2", &script);
    let daemon = rig.start();
    rig.wait_for("the agents have started", SOON, || rig.lines("spawns").len() == 2);
    let still: Vec<i32> = marked(rig.root().to_str().unwrap()).into_iter().map(|(pid, _)| pid).collect();
    still.iter().for_each(|pid| signal(*pid, "STOP"));
    // Longer than the limits of silence that are set here.
    std::thread::sleep(Duration::from_secs(5));
    still.iter().rev().for_each(|pid| signal(*pid, "CONT"));
    // And the daemon alone, while its agents go on.
    std::thread::sleep(Duration::from_millis(500));
    daemon.signal("STOP");
    std::thread::sleep(Duration::from_secs(4));
    daemon.signal("CONT");
    // It looks at what is due before the agents go on.
    rig.status();
    let_go(&rig);
    for slug in ["t1", "t2"] {
        rig.until_word(slug, "completed", SOON);
        assert_eq!(rig.line(slug).unwrap()["attempt"], 1, "{}", rig.log());
    }
    assert_eq!(rig.lines("spawns").len(), 2, "{:?}", rig.lines("spawns"));
    rig.end_checks();
}

/// B11: INT in a foreground run ends all agents; what was at work can go on, and the exit says that it was not done.
#[test]
fn an_interrupt_ends_the_run_and_its_agents() {
    let rig = worker_rig();
    rig.agent_task("t1", "worker");
    let mut c = rig.command(BIN);
    c.arg("run");
    let mut run = rig.spawn(c);
    rig.wait_for("the agent has started", SOON, || !rig.lines("spawns").is_empty());
    run.signal("INT");
    let status = run.ended();
    assert_eq!(status.code(), Some(1), "{status}");
    assert_eq!(rig.processes(), vec![]);
    let_go(&rig);
    let _daemon = rig.start();
    rig.until_word("t1", "completed", SOON);
    assert_eq!(rig.line("t1").unwrap()["attempt"], 1);
    rig.end_checks();
}

/// SEC-SOCKET-PERM in part: what arrives at the socket hurts nobody.
#[test]
fn hostile_bytes_on_the_socket_hurt_nobody() {
    let rig = worker_rig();
    rig.agent_task("t1", "worker");
    let daemon = rig.start();
    rig.wait_for("the agent has started", SOON, || !rig.lines("spawns").is_empty());
    let socket = rig.places.socket();
    assert_eq!(socket.metadata().unwrap().mode() & 0o777, 0o600);
    let open = || {
        let stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    };
    let answer = |bytes: &[u8]| {
        let mut stream = open();
        // It may hang up in the middle.
        let _ = stream.write_all(bytes);
        let mut out = Vec::new();
        let _ = stream.take(1 << 20).read_to_end(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    };
    // 100 MB without a line's end, written until the other side hangs up.
    let mut stream = open();
    let chunk = vec![b'a'; 1 << 20];
    let written = (0..100).take_while(|_| stream.write_all(&chunk).is_ok()).count();
    assert!(written < 100, "it took 100 MB");
    drop(stream);
    let deep = format!("{}{}\n", "[".repeat(100_000), "]".repeat(100_000));
    for bad in [
        &b"\n"[..],
        b"{}\n",
        b"null\n",
        b"\xff\xfe\x00\n",
        b"{\"v\":1,\"request\":{\"verb\":\"nonsense\"}}\n",
        b"{\"v\":\"x\",\"request\":4}\n",
        b"{\"v\":99,\"request\":{\"verb\":\"later\"}}\n",
        b"{\"v\":1,\"request\":{\"verb\":\"abort\",\"project\":\"code\",\"path\":\"../../x\\u001b[31m\"}}\n",
        deep.as_bytes(),
    ] {
        let said = answer(bad);
        assert!(said.len() < 10_000 && (said.contains("rror") || said.is_empty()), "{said}");
        assert!(!said.contains('\u{1b}'), "{said}");
    }
    // Half a message, and then silence; many of them.
    let mut idle = Vec::new();
    for _ in 0..1000 {
        let Ok(mut stream) = UnixStream::connect(&socket) else { break };
        stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        let _ = stream.write_all(b"{\"v\":1,");
        idle.push(stream);
    }
    // Refused while others hold all places, and then one of the few that wait for one of them.
    let refused = client::call(&rig.places, &Request::Status { project: None }).unwrap();
    assert!(matches!(&refused, Reply::Error(failure) if failure.message.contains("too many")), "{refused:?}");
    drop(idle);
    let answered = |reply| matches!(reply, Ok(Reply::Pong { .. }));
    rig.wait_for("it answers again", SOON, || answered(client::ping(&rig.places, Duration::from_secs(10))));
    let peak = daemon.memory_kib("VmHWM");
    assert!(peak < 200 * 1024, "{peak} KiB");
    let_go(&rig);
    rig.until_word("t1", "completed", SOON);
    rig.end_checks();
}

/// A service manager is told that the daemon is ready, that its loop lives, and that it ends; of a loop that stands still it
/// hears nothing.
#[test]
fn a_service_manager_hears_of_the_loop_that_works() {
    let rig = Rig::new();
    let socket = rig.root().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let hears = |within: Duration| {
        manager.set_read_timeout(Some(within)).unwrap();
        let mut bytes = [0; 4096];
        let n = manager.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..n]).into_owned())
    };
    rig.set_env("NOTIFY_SOCKET", socket.to_str().unwrap());
    rig.set_env("WATCHDOG_USEC", "400000");
    // Nothing of it reaches what is run.
    rig.task("t1", &["env > env.txt"]);
    let mut daemon = rig.start();
    let ready = hears(SOON).unwrap();
    assert!(ready.contains("READY=1") && ready.contains("STATUS=watching 1 project"), "{ready}");
    for _ in 0..4 {
        assert_eq!(hears(SOON).unwrap().trim(), "WATCHDOG=1");
    }
    rig.until_word("t1", "completed", SOON);
    let env = rig.on_target("env.txt").unwrap();
    assert!(!env.contains("NOTIFY_SOCKET") && !env.contains("WATCHDOG"), "{env}");
    daemon.signal("STOP");
    // What was on its way is heard first.
    while hears(Duration::from_millis(300)).is_some() {}
    assert_eq!(hears(Duration::from_secs(2)), None, "it stands still and says that it lives");
    daemon.signal("CONT");
    assert_eq!(hears(SOON).unwrap().trim(), "WATCHDOG=1");
    daemon.signal("TERM");
    daemon.ended();
    let mut last = String::new();
    while let Some(word) = hears(Duration::from_millis(300)) {
        last = word;
    }
    assert_eq!(last.trim(), "STOPPING=1");
    rig.end_checks();
}

/// WATCH-OVERFLOW: the watch's queue overflows while the daemon stands still; what was queued meanwhile is found.
#[test]
fn an_overflow_of_the_watch_finds_what_came_meanwhile() {
    let rig = Rig::new();
    rig.task("t1", &["echo x > t1.txt"]);
    let daemon = rig.start();
    rig.until_word("t1", "completed", SOON);
    let before = daemon.memory_kib("VmRSS");
    daemon.signal("STOP");
    let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let events: usize = limit.trim().parse().unwrap();
    let flood = rig.state().join("tasks/t1");
    for n in 0..(events / 2 + 1000).min(60_000) {
        let file = flood.join(format!("flood-{}", n % 7));
        std::fs::write(&file, "").unwrap();
        std::fs::remove_file(&file).unwrap();
    }
    rig.task("t9", &["echo x > t9.txt"]);
    daemon.signal("CONT");
    rig.until_word("t9", "completed", SOON);
    assert!(daemon.memory_kib("VmRSS") < before + 50 * 1024);
    rig.end_checks();
}

/// RES-INOTIFY-LIMIT: without a single inotify instance the daemon polls, and says so.
#[test]
fn without_inotify_the_daemon_polls_and_says_so() {
    let rig = Rig::new();
    let enter = rig.script("no-inotify", "echo 0 > /proc/sys/user/max_inotify_instances || exit 77\nexec \"$@\"");
    let probe = rig.command("unshare").args(["-Ur", enter.to_str().unwrap(), "true"]).output();
    if !probe.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: user namespaces are not to be had here");
        return;
    }
    rig.task("t1", &["echo x > t1.txt"]);
    let mut daemon = rig.start_under(&["unshare", "-Ur", enter.to_str().unwrap()]);
    rig.until_word("t1", "completed", SOON);
    assert_eq!(text(&rig.status()["sources"]), "polling");
    rig.task("t2", &["echo x > t2.txt"]);
    rig.until_word("t2", "completed", SOON);
    let log = rig.log();
    let told = log.matches("max_user_instances").count();
    assert_eq!(told, 1, "{log}");
    // From in there it cannot look into us, and who cannot be looked into may not tell it to stop.
    daemon.signal("TERM");
    daemon.ended();
    rig.end_checks();
}
