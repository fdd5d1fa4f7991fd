//! Real children under real shims. Every run has an id of its own that its processes carry, so each test can say that
//! nothing of it is left; levels are waited for with a limit.

use overnight::domain::RunId;
use overnight::domain::verdict::{Exit, RunEnd};
use overnight::process::{Found, ProcessError, RunOrder, Runs, Seen, State, Stop, Stream};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SHIM: &str = env!("CARGO_BIN_EXE_overnight");
const LIMIT: Duration = Duration::from_secs(20);

struct Rig {
    dir: tempfile::TempDir,
    runs: Runs,
    id: String,
}

/// Everything that following a run showed.
#[derive(Default, Clone)]
struct Shown {
    out: Vec<u8>,
    err: Vec<u8>,
    order: Vec<Stream>,
    gaps: u64,
    beats: u32,
    at: u64,
}

impl Rig {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let dir = tempfile::tempdir().unwrap();
        let runs = Runs::open(&dir.path().join("runs"), PathBuf::from(SHIM)).unwrap();
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = format!("rig-{}-{n}.t", std::process::id());
        Self { dir, runs, id }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, n: u32) -> RunId {
        RunId::from_folder(&format!("{}.{n}", self.id)).unwrap()
    }

    fn folder(&self, n: u32) -> PathBuf {
        self.path("runs").join(self.run(n).as_str())
    }

    fn order(&self, n: u32, argv: &[&str]) -> RunOrder {
        let path = std::env::var("PATH").unwrap();
        RunOrder {
            run: self.run(n),
            argv: argv.iter().map(|a| (*a).to_owned()).collect(),
            cwd: self.dir.path().to_owned(),
            env: BTreeMap::from([("PATH".into(), path)]),
            stdin: None,
            transcript_cap: 64 << 20,
            alive_until_ms: Runs::boottime_ms() + 600_000,
            kill_grace: Duration::from_millis(500),
            drain_grace: Duration::from_millis(500),
        }
    }

    fn sh(&self, n: u32, script: &str) -> RunOrder {
        self.order(n, &["/bin/sh", "-c", script])
    }

    fn python(&self, n: u32, script: &str) -> RunOrder {
        self.order(n, &["python3", "-c", script])
    }

    async fn end(&self, n: u32) -> (RunEnd, Shown) {
        follow(&self.runs, &self.run(n)).await
    }

    async fn go(&self, order: &RunOrder) -> (RunEnd, Shown) {
        self.runs.spawn(order).unwrap();
        follow(&self.runs, &order.run).await
    }

    fn state(&self, n: u32) -> State {
        let mut found = self.runs.inventory().unwrap();
        let at = found.iter().position(|f| f.run == self.run(n)).unwrap();
        let Found { state, .. } = found.swap_remove(at);
        state
    }

    fn shim_pid(&self, n: u32) -> i32 {
        let record = std::fs::read(self.folder(n).join("record.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        i32::try_from(record["shim"]["pid"].as_i64().unwrap()).unwrap()
    }

    /// Processes that carry any run id of this rig.
    fn left(&self) -> Vec<i32> {
        carrying(&format!("OVERNIGHT_RUN={}.", self.id))
    }

    fn assert_nothing_left(&self) {
        let limit = Instant::now() + Duration::from_secs(15);
        while !self.left().is_empty() {
            let left: Vec<_> = self.left().into_iter().map(describe).collect();
            assert!(Instant::now() < limit, "left behind: {left:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for pid in self.left() {
            kill(pid, libc::SIGKILL);
        }
    }
}

fn carrying(what: &str) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|b| *b == 0).any(|v| v.starts_with(what.as_bytes()))
    })
    .collect()
}

fn describe(pid: i32) -> String {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    String::from_utf8_lossy(&[read("cmdline"), read("stat")].concat()).replace('\0', " ")
}

fn kill(pid: i32, signal: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::try_from(signal).unwrap()).ok();
}

fn wait(what: &str, level: impl Fn() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !level() {
        assert!(Instant::now() < limit, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn wait_for(path: &Path) -> String {
    wait(&path.display().to_string(), || std::fs::read_to_string(path).is_ok_and(|t| t.ends_with('\n')));
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

async fn follow(runs: &Runs, run: &RunId) -> (RunEnd, Shown) {
    let shown = Arc::new(Mutex::new(Shown::default()));
    let end = follow_into(runs, run, &shown).await;
    let shown = shown.lock().unwrap().clone();
    (end, shown)
}

async fn follow_into(runs: &Runs, run: &RunId, shown: &Arc<Mutex<Shown>>) -> RunEnd {
    let into = Arc::clone(shown);
    let sink = Box::new(move |seen: Seen<'_>| {
        let mut s = into.lock().unwrap();
        match seen {
            Seen::Output { stream, at, bytes, .. } => {
                assert_eq!(at, s.at, "positions are exact");
                s.at += bytes.len() as u64;
                if stream == Stream::Out { &mut s.out } else { &mut s.err }.extend_from_slice(bytes);
                s.order.push(stream);
            }
            Seen::Gap { at, bytes } => {
                assert_eq!(at, s.at);
                s.at += bytes;
                s.gaps += bytes;
            }
            Seen::Beat(_) => s.beats += 1,
        }
    });
    tokio::time::timeout(LIMIT * 2, runs.follow(run, sink)).await.expect("the run never ended").unwrap()
}

fn code(end: &RunEnd) -> i32 {
    match end.exit {
        Exit::Exited { code } => code,
        ref other => panic!("{other:?}; {}", end.tail),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_exit_code_environment_and_folder() {
    let rig = Rig::new();
    let order = rig.sh(1, "env; pwd; echo oops >&2; exit 7");
    let (end, shown) = rig.go(&order).await;
    assert_eq!(code(&end), 7);
    let out = String::from_utf8(shown.out).unwrap();
    let mut names: Vec<_> = out.lines().filter_map(|l| l.split_once('=')).map(|(k, _)| k).collect();
    names.retain(|n| !["PWD", "OLDPWD", "SHLVL", "_"].contains(n));
    names.sort_unstable();
    assert_eq!(names, ["OVERNIGHT_RUN", "OVERNIGHT_RUN_KEY", "PATH"]);
    assert!(out.lines().any(|l| Path::new(l) == rig.dir.path()));
    assert_eq!(shown.err, b"oops\n");
    assert_eq!((end.bytes, end.cut, end.survivors.len()), (shown.at, 0, 0));
    assert!(end.tail.contains("oops"));
    use std::os::unix::fs::PermissionsExt as _;
    for entry in std::fs::read_dir(rig.folder(1)).unwrap().flatten() {
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if entry.path().is_dir() { 0o700 } else { 0o600 }, "{:?}", entry.path());
    }
    assert!(matches!(rig.state(1), State::Ended(e) if e == end));
    rig.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_starts_once_however_often_it_is_spawned() {
    let rig = Rig::new();
    let order = rig.sh(1, "echo started >> count; sleep 0.3");
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let runs = Runs::open(&rig.path("runs"), PathBuf::from(SHIM)).unwrap();
                runs.spawn(&order).unwrap();
                runs.spawn(&order).unwrap();
            });
        }
    });
    wait_for(&rig.path("count"));
    let second = std::process::Command::new(SHIM).arg("__shim").arg(rig.folder(1)).status().unwrap();
    assert!(second.success());
    let (end, _) = rig.go(&order).await;
    assert_eq!(code(&end), 0);
    let third = std::process::Command::new(SHIM).arg("__shim").arg(rig.folder(1)).status().unwrap();
    assert!(third.success());
    assert_eq!(std::fs::read_to_string(rig.path("count")).unwrap(), "started\n");
    rig.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_comes_before_the_start_is_kept() {
    let rig = Rig::new();
    let order = rig.sh(1, "echo started >> count");
    rig.runs.stop(&order.run, Stop::Term).unwrap();
    assert!(rig.runs.is_over(&order.run).unwrap());
    let (end, _) = rig.go(&order).await;
    assert_eq!(end.exit, Exit::Signalled { signal: libc::SIGTERM });
    assert!(!rig.path("count").exists());
    // One whose run never came is forgotten at the next opening.
    let other = rig.sh(2, "true");
    rig.runs.stop(&other.run, Stop::Kill).unwrap();
    assert!(rig.folder(2).exists());
    Runs::open(&rig.path("runs"), PathBuf::from(SHIM)).unwrap();
    assert!(!rig.folder(2).exists() && rig.folder(1).exists());
    rig.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grandchild_that_holds_the_pipes_does_not_hold_up_the_end() {
    let rig = Rig::new();
    let begun = Instant::now();
    let (end, shown) = rig.go(&rig.sh(1, "(sleep 30.601 &); echo done; exit 0")).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!((code(&end), shown.out.as_slice()), (0, b"done\n".as_slice()));
    assert_eq!(end.survivors.len(), 1);
    assert!(end.survivors[0].command == "sleep 30.601" && end.survivors[0].ended);
    rig.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn helpers_that_leave_session_group_and_name_are_ended_and_strangers_are_not() {
    let rig = Rig::new();
    let mut stranger = std::process::Command::new("setsid")
        .args(["sleep", "30.602"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let script = r#"
setsid sh -c 'while [ $((i=i+1)) -lt 500 ]; do date >> beat; sleep 0.05; done' &
( setsid sh -c '(exec sleep 30.603 <&- >&- 2>&-) &' ) &
python3 -c 'import os; os.execvp("sleep", ["sshd", "30.604"])' &
setsid env -i /bin/sleep 30.605 &
setsid sh -c 'trap "" TERM; echo ready > trapped; for i in 1 2; do sleep 30.606; done' &
while [ ! -s beat ] || [ ! -s trapped ]; do sleep 0.02; done
exit 0"#;
    let (end, _) = rig.go(&rig.sh(1, script)).await;
    assert_eq!(code(&end), 0);
    rig.assert_nothing_left();
    assert!(end.survivors.len() >= 5 && end.survivors.iter().all(|s| s.ended), "{:?}", end.survivors);
    assert!(end.survivors.iter().any(|s| s.command == "sshd 30.604"));
    assert!(end.survivors.iter().any(|s| s.command == "/bin/sleep 30.605"));
    let size = std::fs::metadata(rig.path("beat")).unwrap().len();
    // Many times the pace of one that lives.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(std::fs::metadata(rig.path("beat")).unwrap().len(), size);
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn term_is_asked_once_and_kill_ends_what_ignores_it() {
    let rig = Rig::new();
    let order =
        rig.sh(1, "trap 'echo term >> terms' TERM; echo up > up; while [ $((i=i+1)) -lt 500 ]; do sleep 0.05; done");
    rig.runs.spawn(&order).unwrap();
    wait_for(&rig.path("up"));
    for _ in 0..5 {
        rig.runs.stop(&order.run, Stop::Term).unwrap();
    }
    wait_for(&rig.path("terms"));
    rig.runs.stop(&order.run, Stop::Term).unwrap();
    let early = tokio::time::timeout(Duration::from_millis(400), rig.end(1)).await;
    assert!(early.is_err(), "TERM alone does not kill");
    assert_eq!(std::fs::read_to_string(rig.path("terms")).unwrap(), "term\n");
    rig.runs.stop(&order.run, Stop::Kill).unwrap();
    let (end, _) = rig.end(1).await;
    assert_eq!(end.exit, Exit::Signalled { signal: libc::SIGKILL });
    rig.runs.stop(&order.run, Stop::Kill).unwrap();
    rig.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_process_is_continued_with_its_term() {
    let rig = Rig::new();
    let order = rig.sh(1, "trap 'exit 3' TERM; echo up > up; kill -STOP $$; exit 4");
    rig.runs.spawn(&order).unwrap();
    wait_for(&rig.path("up"));
    let record = std::fs::read(rig.folder(1).join("record.json")).unwrap();
    let child = serde_json::from_slice::<serde_json::Value>(&record).unwrap()["child"]["pid"].as_i64().unwrap();
    let stat = format!("/proc/{child}/stat");
    wait("it stopped", || std::fs::read_to_string(&stat).is_ok_and(|t| t.contains(") T ")));
    rig.runs.stop(&order.run, Stop::Term).unwrap();
    assert_eq!(code(&rig.end(1).await.0), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn term_to_the_shim_itself_is_passed_on_and_the_end_recorded() {
    let rig = Rig::new();
    let order = rig.sh(1, "trap 'exit 3' TERM; echo up > up; for i in 1 2 3 4 5 6 7 8 9; do sleep 1; done");
    rig.runs.spawn(&order).unwrap();
    wait_for(&rig.path("up"));
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGUSR1, libc::SIGTERM] {
        kill(rig.shim_pid(1), signal);
    }
    assert_eq!(code(&rig.end(1).await.0), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_cuts_the_drain_and_the_grace_short() {
    let rig = Rig::new();
    let mut order =
        rig.sh(1, "setsid sh -c 'trap \"\" TERM; echo up > up; sleep 30.620' & while [ ! -s up ]; do sleep 0.01; done");
    (order.drain_grace, order.kill_grace) = (Duration::from_secs(30), Duration::from_secs(30));
    rig.runs.spawn(&order).unwrap();
    wait_for(&rig.path("up"));
    // The leader ends meanwhile, and the drain begins; a kill before that is answered no later.
    std::thread::sleep(Duration::from_millis(100));
    rig.runs.stop(&order.run, Stop::Kill).unwrap();
    let begun = Instant::now();
    rig.end(1).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    rig.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_dies_and_a_storm_of_forks_does_not_outlive_it() {
    let rig = Rig::new();
    for n in 1..=4 {
        // It ends by itself after a while: a storm that gets away must not take the machine.
        let storm = "import os,time\nend = time.time() + 8\nfor _ in range(1000):\n time.sleep(0.003)\n if time.time() > end: os._exit(0)\n if os.fork(): os._exit(0)\n \
             if os.fork() == 0: os.execvp('sleep', ['sleep', '30.607'])";
        let script = format!(
            "sh -c 'trap \"\" TERM INT HUP; for i in 1 2; do sleep 30.608; done' & python3 -c \"{storm}\" & echo up > up{n}; wait"
        );
        let order = rig.sh(n, &script);
        rig.runs.spawn(&order).unwrap();
        wait_for(&rig.path(&format!("up{n}")));
        wait("the storm is up", || rig.left().len() > 10);
        match n {
            1 | 2 => rig.runs.stop(&order.run, Stop::Term).unwrap(),
            3 => rig.runs.stop(&order.run, Stop::Kill).unwrap(),
            // Without its shim the storm has to be ended from outside.
            _ => kill(rig.shim_pid(n), libc::SIGKILL),
        }
        let (end, _) = rig.end(n).await;
        assert!(if n == 4 { end.exit == Exit::Lost } else { matches!(end.exit, Exit::Signalled { .. }) }, "{end:?}");
        assert!(end.survivors.iter().all(|s| s.ended), "{:?}", end.survivors);
        assert!(rig.left().is_empty(), "{:?}", rig.left());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_input_ends() {
    let rig = Rig::new();
    let (end, shown) = rig.go(&rig.sh(1, "cat; echo eof; readlink /proc/$$/fd/0")).await;
    assert_eq!((code(&end), shown.out.as_slice()), (0, b"eof\n/dev/null\n".as_slice()));

    let brief: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let mut order = rig.python(2, "import sys,hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())");
    order.stdin = Some(brief.clone());
    let (end, shown) = rig.go(&order).await;
    use sha2::Digest as _;
    let expected: String = sha2::Sha256::digest(&brief).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!((code(&end), String::from_utf8(shown.out).unwrap().trim()), (0, expected.as_str()));

    let mut order = rig.sh(3, "head -c 10 > /dev/null; exec 0<&-; sleep 0.2; echo on");
    order.stdin = Some(brief);
    let (end, shown) = rig.go(&order).await;
    assert_eq!((code(&end), shown.out.as_slice()), (0, b"on\n".as_slice()));
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_megabytes_on_one_line_take_bounded_memory_and_the_last_line_is_seen() {
    let rig = Rig::new();
    let script = "import sys,os\nw=sys.stdout.buffer\nw.write(b'{\"first\":1}\\n')\nfor _ in range(50): w.write(b'a'*1048576)\nw.write(b'\\n{\"result\":2}\\n')\nw.flush()\n\
         print(open('/proc/%d/status' % os.getppid()).read(), file=sys.stderr)";
    let mut order = rig.python(1, script);
    order.transcript_cap = 4 << 20;
    let begun = Instant::now();
    let (end, shown) = rig.go(&order).await;
    assert_eq!(code(&end), 0);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let line = 12 + 50 * 1_048_576 + 1 + 13;
    assert_eq!(shown.out.len() as u64 + shown.gaps, line as u64);
    assert!(shown.out.starts_with(b"{\"first\":1}\naaa") && shown.out.ends_with(b"a\n{\"result\":2}\n"));
    assert_eq!(end.bytes, shown.at);
    assert!(end.cut > 40 << 20 && end.tail.contains("{\"result\":2}"));
    let status = String::from_utf8(shown.err).unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB");
    assert!(peak.parse::<u64>().unwrap() < 40_000, "the shim took {peak} kB");
    assert!(status.lines().any(|l| l == "Threads:\t1"), "children must come from the shim's only thread");
    let stored: u64 = std::fs::read_dir(rig.folder(1))
        .unwrap()
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("out."))
        .map(|e| e.metadata().unwrap().len())
        .sum();
    assert!(stored <= 4 << 20, "{stored} stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_kept_as_they_are() {
    let rig = Rig::new();
    let script = r"
import sys,time
w=sys.stdout.buffer
w.write(b'ok1\n\xff\xfe\x97 \xc3\na\x00b\r\n\r 12%\r 13%\xf0\x9f'); w.flush(); time.sleep(0.2)
w.write(b'\x98\x80' + '\u20ac'.encode('utf-16') + b'\x0c\x1b[2J'); w.flush()
for i in range(100000): w.write(b'\r %d%%' % i)
w.write(b'ok2'); w.flush()";
    let (end, shown) = rig.go(&rig.python(1, script)).await;
    assert_eq!(code(&end), 0);
    let mut expected =
        b"ok1\n\xff\xfe\x97 \xc3\na\x00b\r\n\r 12%\r 13%\xf0\x9f\x98\x80\xff\xfe\xac\x20\x0c\x1b[2J".to_vec();
    for i in 0..100_000 {
        expected.extend(format!("\r {i}%").bytes());
    }
    expected.extend(b"ok2");
    assert!(shown.out == expected, "{} bytes of {}", shown.out.len(), expected.len());
    assert_eq!(end.bytes, expected.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_in_any_order_or_closed_early_do_not_end_or_block_a_run() {
    let rig = Rig::new();
    let flood = "import sys\nsys.stderr.buffer.write(b'e'*10485760)\nsys.stderr.flush()\nprint('out')";
    let closed = "exec >&-; echo a >&2; sleep 0.4; echo b >&2; exec 2>&-; sleep 0.4; exit 5";
    let turns = "import os\nfor i in range(1000):\n os.write(1, b'o%d\\n' % i); os.write(2, b'e%d\\n' % i)";
    for order in [rig.python(1, flood), rig.sh(2, closed), rig.python(3, turns)] {
        rig.runs.spawn(&order).unwrap();
    }
    let (end, shown) = rig.end(1).await;
    assert_eq!((code(&end), shown.out.as_slice(), shown.err.len()), (0, b"out\n".as_slice(), 10_485_760));
    let (end, shown) = rig.end(2).await;
    assert_eq!((code(&end), shown.err.as_slice()), (5, b"a\nb\n".as_slice()));
    assert!(end.took >= Duration::from_millis(800), "{:?}", end.took);
    let (end, shown) = rig.end(3).await;
    let lines = |name: &str| (0..1000).map(|i| format!("{name}{i}\n")).collect::<String>().into_bytes();
    assert_eq!(code(&end), 0);
    assert!(shown.out == lines("o") && shown.err == lines("e"));
    let slow =
        "import os,time\nfor i in range(3):\n os.write(1, b'o'); time.sleep(0.15); os.write(2, b'e'); time.sleep(0.15)";
    let (_, shown) = rig.go(&rig.python(4, slow)).await;
    assert_eq!(shown.order, [Stream::Out, Stream::Err].repeat(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_on_one_stream_does_not_starve_the_other() {
    let rig = Rig::new();
    let script = "yes e >&2 & echo out; echo up > up; wait";
    let mut order = rig.sh(1, script);
    order.transcript_cap = 1 << 20;
    rig.runs.spawn(&order).unwrap();
    let shown = Arc::new(Mutex::new(Shown::default()));
    let follower = {
        let (runs, run, shown) = (rig.runs.clone(), rig.run(1), Arc::clone(&shown));
        tokio::spawn(async move { follow_into(&runs, &run, &shown).await })
    };
    wait("standard output came through", || shown.lock().unwrap().out == b"out\n");
    rig.runs.stop(&rig.run(1), Stop::Kill).unwrap();
    let end = follower.await.unwrap();
    assert_eq!(end.exit, Exit::Signalled { signal: libc::SIGKILL });
    rig.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_child_inherits_nothing_odd() {
    let rig = Rig::new();
    // A daemon started in the oddest way: the shim comes out of it by exec.
    let wrapper = rig.path("odd");
    let text = format!(
        "#!/usr/bin/env python3\nimport os,sys,signal,resource\n\
         for s in (signal.SIGINT,signal.SIGHUP,signal.SIGPIPE,signal.SIGCHLD): signal.signal(s, signal.SIG_IGN)\n\
         signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD])\n\
         os.nice(5); os.umask(0)\n\
         resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,)*2)\n\
         os.set_inheritable(os.open('/etc/passwd', os.O_RDONLY), True)\n\
         os.execv('{SHIM}', ['overnight'] + sys.argv[1:])\n"
    );
    std::fs::write(&wrapper, text).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o700)).unwrap();
    // An env in the interpreter line needs a PATH, which the shim's empty environment does not have.
    let python =
        std::process::Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let python = String::from_utf8(python.stdout).unwrap();
    let text = std::fs::read_to_string(&wrapper).unwrap().replace("/usr/bin/env python3", python.trim());
    std::fs::write(&wrapper, text).unwrap();
    let runs = Runs::open(&rig.path("runs"), wrapper).unwrap();
    let script = "ls -l /proc/$$/fd >&2; ls -C /proc/$$/fd; grep -E 'Sig(Blk|Ign)' /proc/self/status; umask; \
         cut -d' ' -f19 /proc/$$/stat; ulimit -S -c; cat /proc/self/oom_score_adj; yes | head -1; echo up > up; \
         sleep 30.609 & wait; exit 9";
    let order = rig.sh(1, script);
    runs.spawn(&order).unwrap();
    wait_for(&rig.path("up"));
    runs.stop(&order.run, Stop::Term).unwrap();
    let (end, shown) = follow(&runs, &order.run).await;
    assert_eq!(end.exit, Exit::Signalled { signal: libc::SIGTERM }, "{}", end.tail);
    let out = String::from_utf8(shown.out).unwrap();
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["0", "1", "2"],
        "{}",
        String::from_utf8_lossy(&shown.err)
    );
    assert!(lines[1].ends_with("0000000000000000") && lines[2].ends_with("0000000000000000"), "{out}");
    assert_eq!((lines[3], lines[4], lines[5], lines[7]), ("0022", "0", "0", "y"));
    assert!(lines[6].parse::<i32>().unwrap() >= 300, "{out}");
    let order = rig.sh(2, "exit 7");
    runs.spawn(&order).unwrap();
    assert_eq!(code(&follow(&runs, &order.run).await.0), 7, "exit codes are right though SIGCHLD was ignored");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_executed_says_why() {
    let rig = Rig::new();
    use std::os::unix::fs::PermissionsExt as _;
    let file = |name: &str, text: &str, mode| {
        std::fs::write(rig.path(name), text).unwrap();
        std::fs::set_permissions(rig.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
        rig.path(name).to_str().unwrap().to_owned()
    };
    let lost = file("lost", "#!/no/such/interp -x\n", 0o755);
    let shut = file("shut", "#!/bin/sh\n", 0o644);
    let bare = file("bare", "hello\n", 0o755);
    let huge = "x".repeat(200_000);
    let mut nowhere = rig.sh(6, "true");
    nowhere.cwd = rig.path("gone");
    let mut nul = rig.sh(7, "true");
    nul.argv.push("a\0b".into());
    let cases = [
        (rig.order(1, &["no-such-program"]), "\"no-such-program\": it is in no folder of PATH\n", "looked in /"),
        (rig.order(2, &[&lost]), "No such file", "\"/no/such/interp\" is not"),
        (rig.order(3, &[&shut]), "Permission denied", ""),
        (rig.order(4, &[&bare]), "Exec format error", "#! line"),
        (rig.order(5, &["echo", &huge]), "Argument list too long", "the longest 200000"),
        (nowhere, "cannot enter", "gone"),
        (nul, "NUL", ""),
        (rig.order(8, &[]), "cannot run", ""),
    ];
    for (order, one, two) in &cases {
        let (end, shown) = rig.go(order).await;
        let Exit::SpawnFailed { error } = &end.exit else { panic!("{:?} for {:?}", end.exit, order.argv.first()) };
        assert!(error.contains(one) && error.contains(two), "{error}");
        assert_eq!((shown.at, end.survivors.len()), (0, 0));
    }
    let mut relative = rig.order(9, &["./tool"]);
    file("tool", "#!/bin/sh\necho mine\n", 0o755);
    relative.env.clear();
    assert_eq!(rig.go(&relative).await.1.out, b"mine\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_shim_takes_the_child_along_and_the_rest_is_ended_at_the_next_look() {
    let rig = Rig::new();
    let order =
        rig.sh(1, "setsid sleep 30.611 & env -i /bin/sleep 30.612 & echo $! > bare; echo printed; sleep 30.613");
    rig.runs.spawn(&order).unwrap();
    let bare: i32 = wait_for(&rig.path("bare")).parse().unwrap();
    wait("the beat saw the output", || rig.runs.beat(&rig.run(1)).is_some_and(|b| b.bytes > 0));
    assert!(matches!(rig.state(1), State::Live));
    let record = std::fs::read(rig.folder(1).join("record.json")).unwrap();
    let child = serde_json::from_slice::<serde_json::Value>(&record).unwrap()["child"]["pid"].as_i64().unwrap();
    kill(rig.shim_pid(1), libc::SIGKILL);
    wait("the child is gone with its shim", || !Path::new(&format!("/proc/{child}/environ")).exists());
    wait("the shim is gone", || !matches!(rig.state(1), State::Live));
    let State::Ended(end) = rig.state(1) else { panic!() };
    assert_eq!(end.exit, Exit::Lost);
    assert!(end.tail.contains("printed") && end.bytes == 8, "{end:?}");
    assert!(end.survivors.iter().any(|s| s.command == "sleep 30.611" && s.ended), "{:?}", end.survivors);
    assert!(end.survivors.iter().any(|s| s.pid == bare), "known by its session alone: {:?}", end.survivors);
    rig.assert_nothing_left();
    let (again, shown) = rig.end(1).await;
    assert_eq!((again, shown.out.as_slice()), (end, b"printed\n".as_slice()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_settles_a_run_whose_shim_is_killed() {
    let rig = Rig::new();
    let order = rig.sh(1, "setsid sleep 30.614 & echo up > up; sleep 30.615");
    rig.runs.spawn(&order).unwrap();
    wait_for(&rig.path("up"));
    let shim = rig.shim_pid(1);
    let follower = {
        let (runs, run) = (rig.runs.clone(), rig.run(1));
        tokio::spawn(async move { follow(&runs, &run).await })
    };
    kill(shim, libc::SIGKILL);
    assert_eq!(follower.await.unwrap().0.exit, Exit::Lost);
    rig.assert_nothing_left();
    assert!(!Path::new(&format!("/proc/{shim}")).exists(), "reaped");
}

/// Not a test of its own: the daemon's side of the next one, in a process that can be killed.
#[tokio::test(flavor = "multi_thread")]
async fn daemon_side() {
    let Some(root) = std::env::var_os("TEST_DAEMON_ROOT") else { return };
    let runs = Runs::open(Path::new(&root), PathBuf::from(SHIM)).unwrap();
    let order: BTreeMap<String, String> = serde_json::from_str(&std::env::var("TEST_DAEMON_ORDER").unwrap()).unwrap();
    let order = RunOrder {
        run: RunId::from_folder(&order["run"]).unwrap(),
        argv: vec!["/bin/sh".into(), "-c".into(), order["script"].clone()],
        cwd: PathBuf::from(&order["cwd"]),
        env: BTreeMap::from([("PATH".into(), std::env::var("PATH").unwrap())]),
        stdin: None,
        transcript_cap: 1 << 20,
        alive_until_ms: Runs::boottime_ms() + order["alive"].parse::<u64>().unwrap(),
        kill_grace: Duration::from_millis(300),
        drain_grace: Duration::from_millis(500),
    };
    runs.spawn(&order).unwrap();
    let _ = runs.follow(&order.run, Box::new(|_| {})).await;
}

fn spawn_by_other_daemon(rig: &Rig, script: &str, alive_ms: u64) -> std::process::Child {
    let order = serde_json::json!({
        "run": rig.run(1), "script": script, "cwd": rig.dir.path(), "alive": alive_ms.to_string(),
    });
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process::daemon_side"])
        .env("TEST_DAEMON_ROOT", rig.path("runs"))
        .env("TEST_DAEMON_ORDER", order.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_outlives_its_daemon_and_the_next_one_sees_all_of_it() {
    let rig = Rig::new();
    let script = "echo one; echo up > up; while [ ! -e go ]; do sleep 0.02; done; echo two; exit 6";
    let mut daemon = spawn_by_other_daemon(&rig, script, 60_000);
    wait_for(&rig.path("up"));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert!(matches!(rig.state(1), State::Live));
    assert!(matches!(rig.runs.remove(&rig.run(1)), Err(ProcessError::NotEnded { .. })));
    std::fs::write(rig.path("go"), "").unwrap();
    let (end, shown) = rig.end(1).await;
    assert_eq!((code(&end), shown.out.as_slice()), (6, b"one\ntwo\n".as_slice()));
    rig.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dead_mans_limit_acts_without_a_daemon() {
    let rig = Rig::new();
    let script = "trap 'echo term > terms' TERM; echo up > up; while [ $((i=i+1)) -lt 500 ]; do sleep 0.05; done";
    let mut daemon = spawn_by_other_daemon(&rig, script, 1500);
    wait_for(&rig.path("up"));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    wait("the shim wrote the end by itself", || rig.folder(1).join("exit.json").exists());
    wait_for(&rig.path("terms"));
    let State::Ended(end) = rig.state(1) else { panic!() };
    assert_eq!(end.exit, Exit::DeadMan);
    assert!(end.took >= Duration::from_millis(1200) && end.took < Duration::from_secs(20), "{:?}", end.took);
    rig.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dead_mans_limit_can_be_moved() {
    let rig = Rig::new();
    let mut order = rig.sh(1, "sleep 2; echo through");
    order.alive_until_ms = Runs::boottime_ms() + 1000;
    rig.runs.spawn(&order).unwrap();
    rig.runs.extend(&order.run, Runs::boottime_ms() + 60_000).unwrap();
    let (end, shown) = rig.end(1).await;
    assert_eq!((code(&end), shown.out.as_slice()), (0, b"through\n".as_slice()));
    assert!(shown.beats >= 1);

    let order = rig.sh(2, "echo up > up; sleep 30.616");
    rig.runs.spawn(&order).unwrap();
    wait_for(&rig.path("up"));
    rig.runs.extend(&order.run, 0).unwrap();
    assert_eq!(rig.end(2).await.0.exit, Exit::DeadMan);

    let mut order = rig.sh(3, "echo ran > ran");
    order.alive_until_ms = 0;
    assert_eq!(rig.go(&order).await.0.exit, Exit::DeadMan);
    assert!(!rig.path("ran").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_never_started_is_told_and_a_stop_keeps_it_from_ever_starting() {
    let rig = Rig::new();
    let idle = Runs::open(&rig.path("runs"), PathBuf::from("/bin/true")).unwrap();
    let order = rig.sh(1, "echo ran > ran");
    idle.spawn(&order).unwrap();
    assert!(matches!(rig.state(1), State::NeverStarted));
    rig.runs.stop(&order.run, Stop::Term).unwrap();
    assert!(std::process::Command::new(SHIM).arg("__shim").arg(rig.folder(1)).status().unwrap().success());
    assert_eq!(rig.end(1).await.0.exit, Exit::Signalled { signal: libc::SIGTERM });
    assert!(!rig.path("ran").exists());

    // A shim that ends before it takes the run: said at once, and settled.
    let order = rig.sh(2, "echo ran > ran");
    idle.spawn(&order).unwrap();
    let (end, _) = follow(&idle, &order.run).await;
    assert!(matches!(&end.exit, Exit::NeverStarted { why } if why.contains("exit status: 0")), "{:?}", end.exit);
    assert!(matches!(rig.state(2), State::Ended(_)));

    // One that does start is idempotent by name.
    let order = rig.sh(3, "echo ran > ran");
    idle.spawn(&order).unwrap();
    assert!(matches!(rig.state(3), State::NeverStarted));
    assert_eq!(code(&rig.go(&order).await.0), 0);
    assert!(rig.path("ran").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_and_kills_at_any_point_of_a_start_leave_nothing_and_start_nothing_twice() {
    let rig = Rig::new();
    for n in 1..=24u32 {
        let order = rig.sh(n, &format!("echo ran >> ran{n}; sleep 30.617"));
        rig.runs.spawn(&order).unwrap();
        std::thread::sleep(Duration::from_micros(u64::from(n) * 400));
        if n % 3 == 0 {
            rig.runs.stop(&order.run, Stop::Kill).unwrap();
        } else {
            let folder = format!("__shim\0{}", rig.folder(n).display());
            // One look through /proc can miss a stage that is just taking over from the one before.
            let mut killed = false;
            while !rig.runs.has_ended(&order.run) {
                let shims = shims(&folder);
                if shims.is_empty() && killed {
                    break;
                }
                for pid in shims {
                    if n % 3 == 1 {
                        for child in carrying(&format!("OVERNIGHT_RUN={}", order.run)) {
                            kill(child, libc::SIGKILL);
                        }
                    }
                    kill(pid, libc::SIGKILL);
                    killed = true;
                }
            }
        }
        let (end, _) = rig.end(n).await;
        let lost = matches!(end.exit, Exit::Lost | Exit::Signalled { .. } | Exit::NeverStarted { .. });
        assert!(lost, "{n}: {:?}", end.exit);
        rig.runs.spawn(&order).unwrap();
        assert!(matches!(rig.state(n), State::Ended(_)));
        let ran = std::fs::read_to_string(rig.path(&format!("ran{n}"))).unwrap_or_default();
        assert!(ran.len() <= 4, "{n} ran more than once");
    }
    rig.assert_nothing_left();
}

/// Somebody clears the data folder while runs live: nothing is started beside what still lives, which is ended first.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_folder_is_deleted_is_ended_and_never_started_anew() {
    let rig = Rig::new();
    let beside = |n: u32| {
        let mut order = rig.sh(n, &format!("trap '' TERM; (setsid sleep 300.{n} &); echo $$ >> ran{n}; sleep 300.{n}"));
        order.env.insert("TMPDIR".into(), rig.runs.tmp(&order.run).to_string_lossy().into_owned());
        order
    };
    let left = |n: u32| carrying(&format!("OVERNIGHT_RUN={}", rig.run(n)));
    let orders: Vec<RunOrder> = (1..=4).map(beside).collect();
    for (n, order) in (1..).zip(&orders) {
        rig.runs.spawn(order).unwrap();
        wait_for(&rig.path(&format!("ran{n}")));
    }
    // By itself: its shim sees that the folder is gone.
    std::fs::remove_dir_all(rig.folder(1)).unwrap();
    wait("its shim ends it", || left(1).is_empty());
    // While it is followed.
    std::fs::remove_dir_all(rig.folder(2)).unwrap();
    assert!(rig.runs.follow(&rig.run(2), Box::new(|_| {})).await.is_err());
    assert!(rig.runs.is_over(&rig.run(2)).unwrap());
    assert_eq!(left(2), Vec::<i32>::new());
    // With nobody left to see it: the next start does. A program has made its temporary folder anew.
    kill(rig.shim_pid(3), libc::SIGKILL);
    std::fs::remove_dir_all(rig.folder(3)).unwrap();
    std::fs::create_dir_all(rig.runs.tmp(&rig.run(3))).unwrap();
    assert!(matches!(rig.state(3), State::Dead(end) if end.exit == Exit::Lost && end.survivors.len() >= 2));
    assert_eq!(left(3), Vec::<i32>::new());
    for n in [2, 3] {
        rig.runs.spawn(&orders[n as usize - 1]).unwrap();
        assert!(rig.runs.is_started(&rig.run(n)) && rig.runs.is_over(&rig.run(n)).unwrap());
        assert_eq!(std::fs::read_to_string(rig.path(&format!("ran{n}"))).unwrap().lines().count(), 1);
        rig.runs.remove(&rig.run(n)).unwrap();
    }
    // One that began and of which nothing is there.
    rig.runs.settle_missing(&rig.run(5));
    rig.runs.settle_missing(&rig.run(4));
    rig.runs.spawn(&beside(5)).unwrap();
    assert!(rig.runs.is_over(&rig.run(5)).unwrap() && !rig.path("ran5").exists());
    // Another run is none of theirs.
    assert!(!left(4).is_empty() && matches!(rig.state(4), State::Live));
    rig.runs.stop(&rig.run(4), Stop::Kill).unwrap();
    rig.end(4).await;
    rig.assert_nothing_left();
}

fn shims(cmdline: &str) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| String::from_utf8_lossy(&c).contains(cmdline))
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_ended_runs_are_removed_and_never_through_a_link() {
    let rig = Rig::new();
    let order = rig.sh(1, "echo x");
    rig.go(&order).await;
    std::fs::create_dir(rig.path("treasure")).unwrap();
    std::fs::write(rig.path("treasure/gold"), "1").unwrap();
    std::os::unix::fs::symlink(rig.path("treasure"), rig.folder(1).join("tmp/link")).unwrap();
    std::os::unix::fs::symlink(rig.folder(1), rig.folder(2)).unwrap();
    assert!(matches!(rig.runs.remove(&rig.run(2)), Err(ProcessError::Remove { .. })));
    assert_eq!(rig.runs.inventory().unwrap().len(), 1);
    rig.runs.remove(&rig.run(1)).unwrap();
    assert!(!rig.folder(1).exists() && rig.path("treasure/gold").exists());
    assert!(matches!(rig.runs.remove(&rig.run(1)), Err(ProcessError::Unknown { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_another_boot_are_settled_and_nobody_is_touched_for_them() {
    let rig = Rig::new();
    let order = rig.sh(1, "setsid sleep 30.618 & echo up > up; exec sleep 30.619");
    rig.runs.spawn(&order).unwrap();
    wait_for(&rig.path("up"));
    kill(rig.shim_pid(1), libc::SIGKILL);
    for name in ["record.json", "started"] {
        let path = rig.folder(1).join(name);
        let mut doc: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        doc["boot_id"] = "another".into();
        std::fs::write(&path, doc.to_string()).unwrap();
    }
    wait("settled", || !matches!(rig.state(1), State::Live));
    assert!(matches!(rig.state(1), State::Ended(RunEnd { exit: Exit::Lost, .. })));
    assert_eq!(rig.left().len(), 1, "numbers of another boot mean nobody");
    let newer =
        std::fs::read_to_string(rig.folder(1).join("spec.json")).unwrap().replace("\"version\":1", "\"version\":99");
    std::fs::write(rig.folder(1).join("spec.json"), newer).unwrap();
    assert!(matches!(rig.state(1), State::Unreadable(why) if why.contains("99")));
}
