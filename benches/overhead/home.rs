//! A home of its own for one measurement: a code repository of so many files, a state repo with so many other tasks, a
//! daemon, and the journal as it comes.

use overnight::client;
use overnight::config::{self, Approvals, Places};
use overnight::domain::task::WishStatus;
use overnight::protocol::view::EventLine;
use overnight::protocol::{Reply, Request};
use overnight::setup::init::{InitOptions, init};
use overnight::text::task_file::{NewTask, create};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// Longer than anything here may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a home is made like.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Files of the code repository.
    pub files: usize,
    pub slots: u32,
    /// Tasks on the board that nobody works on.
    pub planning: usize,
    /// Whether the state repo has a remote (a bare repository at a path).
    pub remote: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { files: 100, slots: 1, planning: 0, remote: false }
    }
}

pub(crate) struct Home {
    pub places: Places,
    pub dir: PathBuf,
    pub code: PathBuf,
    pub state: PathBuf,
    pub remote: PathBuf,
    pub pid: i32,
    journal: Option<client::Stream>,
    seen: BTreeSet<String>,
    _dir: tempfile::TempDir,
}

/// When a task came where, in milliseconds since 1970.
#[derive(Default, Clone, Copy)]
pub(crate) struct Times {
    pub saved: i64,
    pub claiming: i64,
    pub merged: i64,
    pub ended: i64,
}

impl Home {
    /// Everything up to a daemon that has read the state repo and rests.
    pub(crate) fn new(shape: Shape) -> Self {
        let dir = tempfile::Builder::new().prefix("overnight-bench").tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        let (code, state, remote) = (at.join("code"), at.join("bench-state"), at.join("remote.git"));
        make_code(&code, shape);
        let places = Places::under(&at.join("home"));
        let options = InitOptions { repo: code.clone(), name: None, base: None, state: None, places: places.clone() };
        if let Err(e) = init(&options) {
            panic!("init: {}", e.message);
        }
        let bytes = std::fs::read(code.join(config::FILE)).unwrap();
        let parsed = config::parse(&code.join(config::FILE), &bytes).unwrap();
        Approvals::new(places.data.clone()).approve(&parsed.name, &bytes).unwrap();
        if shape.planning > 0 {
            for n in 0..shape.planning {
                save(&state, &format!("later-{n}"), &task(&format!("Later {n}"), WishStatus::Planning, &[]));
            }
            git(&state, &["add", "-A"]);
            git(&state, &["commit", "-q", "-m", "Plans"]);
        }
        if shape.remote {
            std::fs::create_dir(&remote).unwrap();
            git(&remote, &["init", "-q", "--bare", "-b", "main"]);
            // Counts what came in, one line a push.
            let hook = remote.join("hooks/post-receive");
            std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
            std::fs::write(&hook, "#!/bin/sh\necho push >>\"$(dirname \"$0\")/../pushes\"\ncat >/dev/null\n").unwrap();
            run("chmod", &["+x", hook.to_str().unwrap()], &remote);
            git(&state, &["remote", "add", "origin", remote.to_str().unwrap()]);
            git(&state, &["push", "-q", "origin", "main"]);
        }
        let mut home =
            Self { places, dir: at, code, state, remote, pid: 0, journal: None, seen: BTreeSet::new(), _dir: dir };
        home.start();
        home
    }

    fn start(&mut self) {
        self.cli(&["start"]);
        let Ok(Reply::Pong { pid, .. }) = client::ping(&self.places, PATIENCE) else { panic!("no daemon") };
        self.pid = i32::try_from(pid).unwrap();
        let request = Request::Events { project: None, path: None, since: None, limit: 1, follow: true };
        self.journal = Some(client::follow(&self.places, &request).unwrap());
    }

    /// Runs the command line; it must succeed.
    pub(crate) fn cli(&self, args: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_overnight"));
        command.args(args).current_dir(&self.code).env("OVERNIGHT_HOME", self.dir.join("home"));
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env_remove("OVERNIGHT_RUN");
        let out = command.output().unwrap();
        assert!(out.status.success(), "overnight {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    /// Saves queued tasks with these scripts in the person's folder and waits until all are over.
    pub(crate) fn work(&mut self, tasks: &[(String, Vec<String>)]) -> BTreeMap<String, Times> {
        let mut times = BTreeMap::new();
        for (name, script) in tasks {
            let text = task(name, WishStatus::Queued, script);
            times.insert(name.clone(), Times { saved: now_ms(), ..Times::default() });
            save(&self.state, name, &text);
        }
        let end = Instant::now() + PATIENCE;
        while times.values().any(|t| t.ended == 0) {
            let line = self.next(end);
            let Some(time) = line.task.as_ref().and_then(|t| times.get_mut(&t.to_string())) else { continue };
            match (line.kind.as_str(), line.text.as_str()) {
                ("claiming", _) if time.claiming == 0 => time.claiming = line.at.0,
                ("cleaning", "merged") => time.merged = line.at.0,
                ("ended", _) => time.ended = line.at.0,
                _ => {}
            }
            assert!(line.kind != "ended" || time.merged > 0, "{line:?}");
        }
        self.seen.extend(times.keys().cloned());
        times
    }

    fn next(&mut self, end: Instant) -> EventLine {
        let journal = self.journal.as_mut().unwrap();
        loop {
            match journal.next(end.saturating_duration_since(Instant::now())).unwrap() {
                Some(Reply::Event(line)) => return line,
                Some(_) => {}
                None => panic!("the daemon closed its journal"),
            }
        }
    }

    /// How often the daemon's remote was pushed to.
    pub(crate) fn pushes(&self) -> usize {
        std::fs::read_to_string(self.remote.join("pushes")).map_or(0, |t| t.lines().count())
    }

    /// Commits on the state repo's main line.
    pub(crate) fn commits(&self) -> usize {
        git(&self.remote, &["rev-list", "--count", "main"]).trim().parse().unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_overnight"));
        command.args(["stop"]).current_dir(&self.code).env("OVERNIGHT_HOME", self.dir.join("home"));
        // What is left of it is a temporary folder.
        let _ = command.output();
    }
}

/// A repository of `files` small files with a configuration in it.
pub(crate) fn make_code(code: &Path, shape: Shape) {
    std::fs::create_dir_all(code).unwrap();
    git(code, &["init", "-q", "-b", "main"]);
    git(code, &["config", "user.name", "Bench"]);
    git(code, &["config", "user.email", "bench@localhost"]);
    for n in 0..shape.files {
        let folder = code.join(format!("src/part-{}", n / 50));
        std::fs::create_dir_all(&folder).unwrap();
        let mut text = String::new();
        for line in 0..40 {
            let _ = writeln!(text, "line {line} of file {n}: some words that are as long as a line of code is");
        }
        std::fs::write(folder.join(format!("file-{n}.txt")), text).unwrap();
    }
    let config = format!(
        "[project]\nname = \"bench\"\nbase = \"main\"\nagent = \"script\"\nslots = {}\nattempts = 1\n\n[agents]\nscript = true\n",
        shape.slots
    );
    std::fs::write(code.join(config::FILE), config).unwrap();
    git(code, &["add", "-A"]);
    git(code, &["commit", "-q", "-m", "Begin"]);
}

fn task(title: &str, status: WishStatus, script: &[String]) -> String {
    create(&NewTask { title: title.into(), status, script: script.to_vec(), ..NewTask::default() })
}

fn save(state: &Path, name: &str, text: &str) {
    let folder = state.join("tasks").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("README.md"), text).unwrap();
}

pub(crate) fn git(at: &Path, args: &[&str]) -> String {
    run("git", args, at)
}

pub(crate) fn run(program: &str, args: &[&str], at: &Path) -> String {
    let out = Command::new(program)
        .args(args)
        .current_dir(at)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "Bench")))
        .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "bench@localhost")))
        .output()
        .unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}
