//! One machine in small for one test: a home, a code repository with a check, its state repo, and the true program run
//! as a person runs it. Everything lies in one temporary folder, whose name is the mark that no process may still carry
//! when the test ends. Nothing here sleeps and hopes: levels are waited for, with a limit.

use overnight::client;
use overnight::config::Places;
use overnight::domain::ProjectId;
use overnight::domain::task::WishStatus;
use overnight::protocol::{Reply, Request};
use overnight::text::task_file::{NewTask, create};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The binary under test.
pub(crate) const BIN: &str = env!("CARGO_BIN_EXE_overnight");
/// The project's name in every rig.
pub(crate) const PROJECT: &str = "code";
/// Between two looks at a level.
const LOOK: Duration = Duration::from_millis(30);
/// How long a daemon may take until it answers, or to end.
const LIFE: Duration = Duration::from_secs(15);

/// What differs from rig to rig.
pub(crate) struct Setup {
    pub(crate) slots: u32,
    pub(crate) attempts: u32,
    /// Lines of `[limits]`.
    pub(crate) limits: &'static str,
    /// Tables behind it: `[agents.NAME]`, `[chain.…]`, more `[[checks]]`. The check `test` (`sh test.sh`) is always there.
    pub(crate) rest: String,
    /// Clones of this rig's state repo have a remote: a bare repository that another rig made.
    pub(crate) state_remote: Option<PathBuf>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            slots: 4,
            attempts: 2,
            limits: "wall = \"30s\"\nno_progress = \"10s\"\nfirst_event = \"10s\"\nexit_grace = \"1s\"\nkill_grace = \"1s\"",
            rest: String::new(),
            state_remote: None,
        }
    }
}

/// The rig. Dropping it ends what is left of it, and shows the daemon's log when the test has failed.
pub(crate) struct Rig {
    root: PathBuf,
    pub(crate) places: Places,
    /// The checkout as it was when `remember` was called last.
    before: Mutex<Option<String>>,
    /// More variables for every command of the rig, the daemon's among them.
    env: Mutex<BTreeMap<String, String>>,
    _dir: TempDir,
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A daemon that the test started as its own child.
pub(crate) struct Daemon {
    pub(crate) pid: i32,
    child: Child,
}

impl Rig {
    /// A project with the usual settings.
    pub(crate) fn new() -> Self {
        Self::with(&Setup::default())
    }

    /// A project whose configuration also holds `rest`.
    pub(crate) fn with_config(rest: &str) -> Self {
        Self::with(&Setup { rest: rest.into(), ..Setup::default() })
    }

    pub(crate) fn with(setup: &Setup) -> Self {
        let dir = tempfile::Builder::new().prefix("overnight-rig-").tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let places = Places::under(&root.join("on"));
        let rig = Self { root, places, before: Mutex::default(), env: Mutex::default(), _dir: dir };
        for folder in [rig.home(), rig.code(), rig.bin()] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(rig.home().join(".gitconfig"), "[user]\nname = Ada\nemail = ada@example.org\n").unwrap();
        rig.git(&rig.code(), &["init", "-q", "-b", "main"]);
        std::fs::write(rig.code().join("a.txt"), "one\n").unwrap();
        // Passes unless a task leaves a file `bad` behind.
        std::fs::write(rig.code().join("test.sh"), "if [ -e bad ]; then echo 'bad is there'; exit 1; fi\n").unwrap();
        rig.write_config(&rig.config(setup));
        rig.git(&rig.code(), &["add", "-A"]);
        rig.git(&rig.code(), &["commit", "-q", "-m", "Begin"]);
        if let Some(remote) = &setup.state_remote {
            let (remote, state) = (remote.to_str().unwrap(), rig.state());
            rig.git(&rig.root, &["clone", "-q", remote, state.to_str().unwrap()]);
        }
        rig.ok(&["init"]);
        rig.approve();
        rig
    }

    /// The whole `overnight.toml` for `setup`.
    pub(crate) fn config(&self, setup: &Setup) -> String {
        format!(
            "[project]\nname = \"{PROJECT}\"\nbase = \"main\"\nstate = \"../state\"\nagent = \"script\"\nslots = {}\n\
             attempts = {}\n\n[limits]\n{}\n\n[agents]\nscript = true\n\n[[checks]]\nname = \"test\"\n\
             run = [\"sh\", \"test.sh\"]\ntimeout = \"20s\"\n\n{}\n",
            setup.slots, setup.attempts, setup.limits, setup.rest
        )
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The person's checkout of the code.
    pub(crate) fn code(&self) -> PathBuf {
        self.root.join("code")
    }

    /// The person's folder of the state repo.
    pub(crate) fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    /// First on every command's `PATH`.
    pub(crate) fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// The daemon's data folder.
    pub(crate) fn data(&self) -> PathBuf {
        self.places.data.clone()
    }

    /// The daemon's own bare repository of the code.
    pub(crate) fn mirror(&self) -> PathBuf {
        self.data().join("projects").join(PROJECT).join("code.git")
    }

    /// The daemon's own clone of the state repo.
    pub(crate) fn state_clone(&self) -> PathBuf {
        self.data().join("projects").join(PROJECT).join("state.git")
    }

    /// Sets a variable for every later command, a daemon's too.
    pub(crate) fn set_env(&self, name: &str, value: &str) {
        self.env.lock().unwrap().insert(name.into(), value.into());
    }

    pub(crate) fn unset_env(&self, name: &str) {
        self.env.lock().unwrap().remove(name);
    }

    /// Writes an executable script to `bin/NAME` and gives its path.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.bin().join(name);
        let text = if text.starts_with("#!") { text.to_owned() } else { format!("#!/bin/sh\n{text}\n") };
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Replaces `overnight.toml`; nothing is approved.
    pub(crate) fn write_config(&self, text: &str) {
        std::fs::write(self.code().join("overnight.toml"), text).unwrap();
    }

    /// Approves `overnight.toml` as it is, by its hash.
    pub(crate) fn approve(&self) {
        let bytes = std::fs::read(self.code().join("overnight.toml")).unwrap();
        self.ok(&["config", "approve", "--hash", &overnight::config::hash(&bytes)]);
    }

    /// A command of the rig: a clean environment, the code folder, standard input empty.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut c = Command::new(program);
        let path = format!("{}:{}", self.bin().display(), std::env::var("PATH").unwrap());
        c.env_clear().env("PATH", path).env("HOME", self.home()).env("OVERNIGHT_HOME", self.root.join("on"));
        c.env("GIT_CONFIG_NOSYSTEM", "1").env("LANG", "C.UTF-8").env("RIG_ID", &self.root).env("NO_COLOR", "1");
        c.envs(self.env.lock().unwrap().iter());
        c.current_dir(self.code()).stdin(Stdio::null());
        c
    }

    /// Runs the program, whatever it comes to.
    pub(crate) fn run(&self, args: &[&str]) -> Done {
        let output = self.command(BIN).args(args).output().unwrap();
        Done {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs the program, which must succeed; gives its standard output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let done = self.run(args);
        assert_eq!(done.code, 0, "overnight {args:?}: {done:?}");
        done.out
    }

    /// Runs git in `at`, which must succeed; gives its standard output without the last line end.
    pub(crate) fn git(&self, at: &Path, args: &[&str]) -> String {
        let output = self.command("git").env_remove("GIT_DIR").current_dir(at).args(args).output().unwrap();
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Queues a task of the script agent by saving its file in the state folder, as an editor would.
    pub(crate) fn task(&self, slug: &str, script: &[&str]) {
        let script = script.iter().map(|s| (*s).to_owned()).collect();
        self.task_file(slug, NewTask { script, ..NewTask::default() });
    }

    /// Queues a task of the agent `agent`.
    pub(crate) fn agent_task(&self, slug: &str, agent: &str) {
        self.task_file(slug, NewTask { agent: Some(agent.into()), ..NewTask::default() });
    }

    /// Saves a task file; title and text are made up where there are none.
    pub(crate) fn task_file(&self, slug: &str, task: NewTask) {
        let folder = self.state().join("tasks").join(slug);
        let mut task = NewTask { status: WishStatus::Queued, ..task };
        if task.title.is_empty() {
            task.title = format!("Do {slug}");
        }
        if task.description.is_empty() {
            task.description = format!("What {slug} is about.");
        }
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("README.md"), create(&task)).unwrap();
    }

    /// Starts the daemon as a child and waits until it answers.
    pub(crate) fn start(&self) -> Daemon {
        self.wait_for_daemon(self.spawn_daemon())
    }

    /// The same with a standard input of its own.
    pub(crate) fn start_with_stdin(&self, stdin: impl Into<Stdio>) -> Daemon {
        let mut c = self.command(BIN);
        c.arg("__daemon").stdin(stdin);
        self.wait_for_daemon(self.spawn(c))
    }

    /// The same through other programs, each of which executes its arguments in its own place.
    pub(crate) fn start_under(&self, words: &[&str]) -> Daemon {
        let mut c = self.command(words[0]);
        c.args(&words[1..]).args([BIN, "__daemon"]);
        self.wait_for_daemon(self.spawn(c))
    }

    /// Starts the daemon as a child and does not wait. The checkout is remembered at the first start.
    pub(crate) fn spawn_daemon(&self) -> Daemon {
        let mut c = self.command(BIN);
        c.arg("__daemon");
        self.spawn(c)
    }

    /// Starts a command that is, or becomes, a daemon.
    pub(crate) fn spawn(&self, mut c: Command) -> Daemon {
        if self.before.lock().unwrap().is_none() {
            self.remember();
        }
        std::fs::create_dir_all(self.places.logs()).unwrap();
        let out = std::fs::OpenOptions::new().create(true).append(true).open(self.places.logs().join("daemon.out"));
        let out = out.unwrap();
        let child = c.stdout(out.try_clone().unwrap()).stderr(out).spawn().unwrap();
        Daemon { pid: i32::try_from(child.id()).unwrap(), child }
    }

    fn wait_for_daemon(&self, mut daemon: Daemon) -> Daemon {
        let end = Instant::now() + LIFE;
        loop {
            if let Ok(Reply::Pong { pid, .. }) = client::ping(&self.places, Duration::from_millis(500))
                && i32::try_from(pid).unwrap() == daemon.pid
            {
                return daemon;
            }
            if let Some(status) = daemon.child.try_wait().unwrap() {
                panic!("the daemon ended as it started: {status}\n{}", self.log());
            }
            assert!(Instant::now() < end, "the daemon does not answer\n{}", self.log());
            std::thread::sleep(LOOK);
        }
    }

    /// How everything stands, as the running daemon tells it.
    pub(crate) fn status(&self) -> Value {
        match client::call(&self.places, &Request::Status { project: None }) {
            Ok(Reply::Status(view)) => serde_json::to_value(view).unwrap(),
            other => {
                panic!("no status: {other:?}\n{}", self.log())
            }
        }
    }

    /// One task as `show` tells it.
    pub(crate) fn show(&self, slug: &str) -> Value {
        let project = ProjectId::parse(PROJECT).unwrap();
        let path = overnight::domain::TaskPath::parse(slug).unwrap();
        match client::call(&self.places, &Request::Show { project, path }) {
            Ok(Reply::Task(view)) => serde_json::to_value(view).unwrap(),
            other => panic!("{slug} cannot be shown: {other:?}\n{}", self.log()),
        }
    }

    /// The task's line of the status, if it has one.
    pub(crate) fn line(&self, slug: &str) -> Option<Value> {
        line_of(&self.status(), slug)
    }

    /// The public word for how the task stands; empty where it is not known (yet).
    pub(crate) fn word(&self, slug: &str) -> String {
        self.line(slug).map(|l| text(&l["status"])).unwrap_or_default()
    }

    /// Waits until `level` holds of the status.
    pub(crate) fn until(&self, what: &str, limit: Duration, level: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + limit;
        loop {
            let status = self.status();
            if level(&status) {
                return status;
            }
            assert!(Instant::now() < end, "{what}: not within {limit:?}\n{}\n{}", brief(&status), self.log());
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until the task has this status; with a final one, until it is cleaned up and over.
    pub(crate) fn until_word(&self, slug: &str, word: &str, limit: Duration) -> Value {
        let over = ["completed", "failed", "aborted"].contains(&word);
        self.until(&format!("{slug} is {word}"), limit, |status| {
            line_of(status, slug).is_some_and(|l| l["status"] == word && (!over || l["phase"] == "ended"))
        })
    }

    /// Waits until the task is in this phase.
    pub(crate) fn until_phase(&self, slug: &str, phase: &str, limit: Duration) -> Value {
        self.until(&format!("{slug} is in {phase}"), limit, |status| {
            line_of(status, slug).is_some_and(|l| l["phase"] == phase)
        })
    }

    /// Waits until `tasks` tasks are known and none of them goes on by itself.
    pub(crate) fn until_settled(&self, tasks: usize, limit: Duration) -> Value {
        self.until(&format!("{tasks} tasks have settled"), limit, |status| {
            let lines = lines_of(status);
            lines.len() >= tasks
                && lines.iter().all(|l| {
                    let word = text(&l["status"]);
                    l["phase"] == "ended" || ["blocked", "planning"].contains(&word.as_str())
                })
        })
    }

    /// Waits for anything else of the world outside.
    pub(crate) fn wait_for(&self, what: &str, limit: Duration, level: impl Fn() -> bool) {
        let end = Instant::now() + limit;
        while !level() {
            assert!(Instant::now() < end, "{what}: not within {limit:?}\n{}", self.log());
            std::thread::sleep(LOOK);
        }
    }

    /// Commits that the integration branch has and the base has not, one line each: hash and subject.
    pub(crate) fn merged(&self) -> Vec<String> {
        let range = ["log", "--first-parent", "--format=%H %s%n%(trailers:key=Overnight-Task)", "main..overnight/main"];
        let text = self.git(&self.mirror(), &with_refs(&range));
        text.lines().filter(|l| !l.trim().is_empty()).map(str::to_owned).collect()
    }

    /// How often the task's work was merged: the trailers that name it on the integration branch.
    pub(crate) fn merges_of(&self, slug: &str) -> usize {
        let key = format!("Overnight-Task: {slug}@");
        self.merged().iter().filter(|l| l.starts_with(&key)).count()
    }

    /// The content of a file on the integration branch.
    pub(crate) fn on_target(&self, file: &str) -> Option<String> {
        let name = format!("refs/heads/overnight/main:{file}");
        let output = self.command("git").current_dir(self.mirror()).args(["show", &name]).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Whether some ref of the mirror, or a worktree on disk, still has `file` with this content.
    pub(crate) fn is_kept(&self, file: &str, content: &str) -> bool {
        let refs = self.git(&self.mirror(), &["for-each-ref", "--format=%(refname)"]);
        let in_refs = refs.lines().any(|name| {
            let object = format!("{name}:{file}");
            let output = self.command("git").current_dir(self.mirror()).args(["show", &object]).output().unwrap();
            output.status.success() && output.stdout == content.as_bytes()
        });
        let trees = self.data().join("projects").join(PROJECT).join("wt");
        in_refs
            || std::fs::read_dir(trees).is_ok_and(|all| {
                all.flatten().any(|tree| std::fs::read(tree.path().join(file)).is_ok_and(|c| c == content.as_bytes()))
            })
    }

    /// Remembers the checkout: what the end checks compare with. Call it again after a person changes something.
    pub(crate) fn remember(&self) {
        *self.before.lock().unwrap() = Some(self.checkout());
    }

    /// Everything of the checkout that is the person's own, as text.
    fn checkout(&self) -> String {
        let code = self.code();
        let mut out = String::new();
        for args in [
            &["symbolic-ref", "-q", "HEAD"][..],
            &["rev-parse", "HEAD"],
            &["ls-files", "-s", "-v"],
            &["status", "--porcelain=v1", "--ignored"],
            &["stash", "list"],
            &["worktree", "list", "--porcelain"],
            &["for-each-ref", "--exclude=refs/heads/overnight/**", "--exclude=refs/overnight/**"],
        ] {
            let _ = writeln!(out, "git {args:?}\n{}", self.git(&code, args));
        }
        let _ = writeln!(out, "{}", std::fs::read_to_string(code.join(".git/config")).unwrap());
        let mut hooks: Vec<_> = std::fs::read_dir(code.join(".git/hooks"))
            .map(|d| d.flatten().map(|e| e.file_name()).collect())
            .unwrap_or_default();
        hooks.sort();
        let _ = writeln!(out, "{hooks:?}");
        out
    }

    /// Processes of this rig, by the mark in their environment: pid and command line. The daemons' own are left out.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        marked(self.root.to_str().unwrap()).into_iter().filter(|(_, line)| !line.contains("__daemon")).collect()
    }

    /// Agents that are alive: processes of the script `bin/NAME` whose parent is no process of it, so that a shell just
    /// before it executes something counts once.
    pub(crate) fn agents(&self, name: &str) -> Vec<i32> {
        let script = self.bin().join(name);
        let mark = script.to_str().unwrap();
        let is_one = |pid: i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(mark.len()).any(|w| w == mark.as_bytes())
        };
        let all = marked(self.root.to_str().unwrap()).into_iter().filter(|(_, line)| line.contains(mark));
        all.map(|(pid, _)| pid).filter(|pid| !parent(*pid).is_some_and(is_one)).collect()
    }

    /// The shims that are alive.
    pub(crate) fn shims(&self) -> Vec<i32> {
        let runs = self.places.runs();
        let mark = format!("__shim {}", runs.display());
        marked(&mark.replace(' ', "\0")).into_iter().map(|(pid, _)| pid).collect()
    }

    /// The lines of a file that agents write to, beside the home folder.
    pub(crate) fn lines(&self, file: &str) -> Vec<String> {
        std::fs::read_to_string(self.root.join(file)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// The end checks of every test. The daemon, if one runs, is stopped first, with its agents.
    pub(crate) fn end_checks(&self) {
        self.run(&["stop"]);
        let end = Instant::now() + Duration::from_secs(20);
        let mut left = marked(self.root.to_str().unwrap());
        while !left.is_empty() && Instant::now() < end {
            std::thread::sleep(LOOK);
            left = marked(self.root.to_str().unwrap());
        }
        assert!(left.is_empty(), "processes are left: {left:?}\n{}", self.log());
        for repo in [self.code(), self.state(), self.mirror(), self.state_clone()] {
            self.git(&repo, &["fsck", "--connectivity-only", "--no-dangling"]);
            let git = if repo.join(".git").exists() { repo.join(".git") } else { repo.clone() };
            let mut locks = Vec::new();
            find(&git, &mut |path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if name.ends_with(".lock") || name == "MERGE_HEAD" || name.starts_with("rebase-") {
                    locks.push(path.to_owned());
                }
            });
            assert!(locks.is_empty(), "left behind: {locks:?}");
        }
        if let Some(before) = self.before.lock().unwrap().as_ref() {
            let now = self.checkout();
            assert_eq!(*before, now, "the person's checkout was changed");
        }
        let log = self.log();
        assert!(!log.contains("panicked at"), "{log}");
        assert!(log.len() < 5 << 20, "{} bytes of log", log.len());
    }

    /// The daemon's log and what it printed.
    pub(crate) fn log(&self) -> String {
        let mut out = String::new();
        find(&self.places.logs(), &mut |path| {
            if let Ok(mut file) = std::fs::File::open(path) {
                let mut bytes = Vec::new();
                let _ = file.read_to_end(&mut bytes);
                let _ = writeln!(out, "--- {}\n{}", path.display(), String::from_utf8_lossy(&bytes));
            }
        });
        out
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // What carries this rig's own mark was started by it, and nobody else will end it.
        for _ in 0..100 {
            let left = marked(self.root.to_str().unwrap());
            if left.is_empty() {
                break;
            }
            for (pid, _) in left {
                signal(pid, "KILL");
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Daemon {
    /// `kill -9`, and its end.
    pub(crate) fn kill(mut self) {
        signal(self.pid, "KILL");
        self.child.wait().unwrap();
    }

    /// Sends it a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid, name);
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let end = Instant::now() + LIFE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the daemon {} does not end", self.pid);
            std::thread::sleep(LOOK);
        }
    }

    pub(crate) fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// A line of `/proc/PID/status` in KiB, as `VmHWM` (the largest resident set so far).
    pub(crate) fn memory_kib(&self, key: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find(|l| l.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal(self.pid, "KILL");
            let _ = self.child.wait();
        }
    }
}

/// Sends a signal by name to one process; one that is gone is no matter.
pub(crate) fn signal(pid: i32, name: &str) {
    let signal: nix::sys::signal::Signal = format!("SIG{name}").parse().unwrap();
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

/// Processes with `mark` in their environment or command line, other than zombies: pid and command line.
pub(crate) fn marked(mark: &str) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let Ok(environ) = std::fs::read(entry.path().join("environ")) else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let holds = |bytes: &[u8]| bytes.windows(mark.len()).any(|w| w == mark.as_bytes());
        // A shim has an empty environment and names its run folder.
        if holds(&environ) || holds(&line) {
            let line: Vec<u8> = line.into_iter().map(|b| if b == 0 { b' ' } else { b }).collect();
            found.push((pid, String::from_utf8_lossy(&line).into_owned()));
        }
    }
    found
}

/// The parent of a process.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// All task lines of a status.
pub(crate) fn lines_of(status: &Value) -> Vec<Value> {
    let projects = status["projects"].as_array().cloned().unwrap_or_default();
    projects.iter().flat_map(|p| p["tasks"].as_array().cloned().unwrap_or_default()).collect()
}

pub(crate) fn line_of(status: &Value, slug: &str) -> Option<Value> {
    lines_of(status).into_iter().find(|l| l["path"] == slug)
}

/// A JSON string's text; empty for anything else.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A status in a line per task, for failures.
pub(crate) fn brief(status: &Value) -> String {
    let mut out = format!("daemon {} alarms {}\n", status["daemon"], status["alarms"]);
    for line in lines_of(status) {
        let _ = writeln!(
            out,
            "{} {} {} attempt {} {}",
            line["path"], line["status"], line["phase"], line["attempt"], line["why"]
        );
    }
    for project in status["projects"].as_array().into_iter().flatten() {
        let _ = writeln!(out, "alarms {} invalid {}", project["alarms"], project["invalid"]);
    }
    out
}

/// The integration branch's refs by their full names, since a mirror has no `main` of its own.
fn with_refs<'a>(args: &[&'a str]) -> Vec<&'a str> {
    args.iter()
        .map(|a| if *a == "main..overnight/main" { "refs/remotes/user/main..refs/heads/overnight/main" } else { a })
        .collect()
}

/// Calls `see` for every file and folder below `at`, links not followed.
fn find(at: &Path, see: &mut dyn FnMut(&Path)) {
    let Ok(entries) = std::fs::read_dir(at) else { return };
    for entry in entries.flatten() {
        see(&entry.path());
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            find(&entry.path(), see);
        }
    }
}
