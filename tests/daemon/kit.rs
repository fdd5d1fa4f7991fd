//! What the cases about work and safety share on top of the rig: a user's unhelpful git configuration, a daemon that lives
//! with its rig, the facts of a task once it has settled, and pictures of folders to compare.

use crate::rig::{Daemon, Done, Rig, Setup, brief};
use serde_json::Value;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for a level, on a machine that has much else to do.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Keys that change what git prints or does, as users have them.
const UNHELPFUL: &str = "[core]\n quotePath = true\n editor = /bin/false\n pager = /bin/false\n[color]\n ui = always\n\
    [diff]\n noprefix = true\n renames = copies\n external = /bin/false\n\
    [status]\n showUntrackedFiles = no\n relativePaths = true\n[branch]\n autoSetupMerge = always\n\
    [column]\n ui = always\n[log]\n showSignature = true\n[merge]\n ff = only\n autoStash = true\n\
    [i18n]\n logOutputEncoding = latin1\n[fetch]\n prune = true\n[init]\n defaultBranch = other\n";

pub(crate) struct Kit {
    // Ends before the rig is taken away.
    daemon: std::cell::RefCell<Option<Daemon>>,
    rig: Rig,
}

impl Deref for Kit {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl Kit {
    pub(crate) fn new() -> Self {
        Self::with(Setup::default())
    }

    /// A rig whose configuration also holds `rest`.
    pub(crate) fn rest(rest: &str) -> Self {
        Self::with(Setup { rest: rest.into(), ..Setup::default() })
    }

    pub(crate) fn with(setup: Setup) -> Self {
        Self { daemon: None.into(), rig: Rig::with(&setup) }
    }

    /// The user's git is configured against every expectation.
    pub(crate) fn unhelpful(&self, more: &str) {
        write(
            &self.home().join(".gitconfig"),
            &format!("[user]\n name = Ada\n email = ada@example.org\n{UNHELPFUL}{more}"),
        );
    }

    /// Commits files to the person's checkout, before the daemon runs or during the night.
    pub(crate) fn commit(&self, files: &[(&str, &str)]) -> String {
        for (path, text) in files {
            write(&self.code().join(path), text);
        }
        self.git(&self.code(), &["add", "-A"]);
        self.git(&self.code(), &["commit", "-q", "-m", "Change by hand"]);
        self.remember();
        self.git(&self.code(), &["rev-parse", "HEAD"])
    }

    /// Starts the daemon; it lives as long as the kit, or until it is stopped.
    pub(crate) fn up(&self) -> i32 {
        let daemon = self.rig.start();
        let pid = daemon.pid;
        *self.daemon.borrow_mut() = Some(daemon);
        pid
    }

    /// Ends the daemon as a person does.
    pub(crate) fn down(&self) {
        self.ok(&["stop"]);
        if let Some(mut daemon) = self.daemon.borrow_mut().take() {
            daemon.ended();
        }
    }

    /// The end checks.
    pub(crate) fn close(self) {
        self.down();
        self.rig.end_checks();
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let mut all = args.to_vec();
        all.push("--json");
        let text = self.ok(&all);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("no JSON ({e}): {text}"))
    }

    /// Saves the file of a task, whatever it holds.
    pub(crate) fn wish(&self, path: &str, text: &str) {
        write(&self.wish_file(path), text);
    }

    pub(crate) fn wish_file(&self, path: &str) -> PathBuf {
        self.state().join("tasks").join(path).join("README.md")
    }

    /// Saves a script task with more lines of front matter.
    pub(crate) fn script_task(&self, path: &str, front: &str, script: &[&str]) {
        self.wish(path, &task_text(path, front, script));
    }

    /// The facts of a task; null where there is none (yet).
    pub(crate) fn facts(&self, path: &str) -> Value {
        let done = self.run(&["show", path, "--json"]);
        serde_json::from_str(&done.out).unwrap_or_default()
    }

    /// Waits until `look` finds something.
    #[track_caller]
    pub(crate) fn wait<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + LONG;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < end, "{what}: not within {LONG:?}\n{}\n{}", brief(&self.status()), self.log());
            std::thread::sleep(Duration::from_millis(40));
        }
    }

    /// The facts of a task once it is over or waits for a person.
    #[track_caller]
    pub(crate) fn settled(&self, path: &str) -> Value {
        self.wait(&format!("{path} settles"), || {
            let facts = self.facts(path);
            let over = ["completed", "failed", "aborted", "blocked"].contains(&word(&facts));
            let still = ["ended", "waiting"].contains(&facts["line"]["phase"].as_str().unwrap_or_default());
            (over && still).then_some(facts)
        })
    }

    /// Waits for the task to be merged. One that waits for a person is waited for: its answer may be on its way.
    #[track_caller]
    pub(crate) fn merged_task(&self, path: &str) -> Value {
        let mut last = Value::Null;
        self.wait(&format!("{path} is merged"), || {
            last = self.facts(path);
            assert!(!["failed", "aborted"].contains(&word(&last)), "{path}: {}\n{}", last["line"], self.log());
            (word(&last) == "completed" && last["line"]["phase"] == "ended").then(|| last.clone())
        })
    }

    /// Agent runs of a task that were started, as their run folders tell.
    pub(crate) fn agent_runs(&self, path: &str) -> usize {
        let runs = self.facts(path)["runs"].as_array().cloned().unwrap_or_default();
        let kind = |run: &Value| {
            let folder = self.data().join("runs").join(run.as_str().unwrap_or_default());
            std::fs::read_to_string(folder.join("kind"))
        };
        runs.iter().filter(|run| kind(run).is_ok_and(|k| k != "command")).count()
    }

    /// Lists of refs, in the person's repository or elsewhere.
    pub(crate) fn refs(&self, at: &Path, pattern: &str) -> Vec<String> {
        let text = self.git(at, &["for-each-ref", "--format=%(refname)", pattern]);
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn project(&self) -> Value {
        self.status()["projects"][0].clone()
    }

    /// Runs git and gives what it came to.
    pub(crate) fn try_git(&self, at: &Path, args: &[&str]) -> Done {
        let output = self.command("git").current_dir(at).args(args).output().unwrap();
        Done {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// The public status of a task's facts.
pub(crate) fn word(facts: &Value) -> &str {
    facts["line"]["status"].as_str().unwrap_or("none")
}

/// The class of the reason of a task's facts.
pub(crate) fn class(facts: &Value) -> &str {
    facts["line"]["reason"]["class"].as_str().unwrap_or("none")
}

/// The sentence of the reason.
pub(crate) fn reason(facts: &Value) -> &str {
    facts["line"]["reason"]["text"].as_str().unwrap_or("none")
}

pub(crate) fn task_text(title: &str, front: &str, script: &[&str]) -> String {
    let script: Vec<String> = script.iter().map(|s| serde_json::to_string(s).unwrap()).collect();
    let title = serde_json::to_string(title).unwrap();
    format!("---\ntitle: {title}\nstatus: queued\n{front}script: [{}]\n---\n\nDo it.\n", script.join(", "))
}

pub(crate) fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

pub(crate) fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// Files (and links) below `root` whose name fits; links are not followed.
pub(crate) fn find(root: &Path, fits: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                open.push(entry.path());
            } else if fits(&entry.file_name().to_string_lossy()) {
                found.push(entry.path());
            }
        }
    }
    found
}

/// Every file below `root` with its bytes.
pub(crate) fn picture(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = find(root, &|_| true);
    all.sort();
    all.into_iter().map(|path| (path.clone(), std::fs::read(&path).unwrap_or_default())).collect()
}
