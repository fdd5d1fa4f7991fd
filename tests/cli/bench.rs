//! A home of its own for each test, the binary in it, and a daemon that answers as the test says.

use overnight::config::{Approvals, Places, Registry, read};
use overnight::domain::{ProjectId, TaskPath};
use overnight::protocol::view::{StatusView, TaskLine, TaskView};
use overnight::protocol::{Call, ErrorKind, Failure, Reply, Request, frame};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

/// A user's home with one project `p`, approved.
pub(crate) struct Bench {
    top: tempfile::TempDir,
    pub(crate) places: Places,
    pub(crate) code: PathBuf,
    pub(crate) asked: Arc<Mutex<Vec<Request>>>,
}

pub(crate) const CONFIG: &str =
    "[project]\nname = \"p\"\nbase = \"main\"\nstate = \"../p-state\"\n\n[[checks]]\nname = \"test\"\nrun = \"true\"\n";

impl Bench {
    pub(crate) fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        let at = top.path().canonicalize().unwrap();
        let places = Places::under(&at.join("home"));
        places.prepare().unwrap();
        let code = at.join("p");
        std::fs::create_dir(&code).unwrap();
        std::fs::create_dir(at.join("p-state")).unwrap();
        std::fs::write(code.join("overnight.toml"), CONFIG).unwrap();
        let id = ProjectId::parse("p").unwrap();
        Registry::new(&places.data).add(id.clone(), &code, &at.join("p-state")).unwrap();
        let bytes = read(&code.join("overnight.toml")).unwrap();
        Approvals::new(&places.data).approve(&id, &bytes).unwrap();
        Self { top, places, code, asked: Arc::default() }
    }

    /// Answers every request from now on.
    pub(crate) fn daemon(&self, answer: impl Fn(&Request) -> Reply + Send + 'static) {
        let listener = UnixListener::bind(self.places.socket()).unwrap();
        let asked = self.asked.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                let mut line = Vec::new();
                BufReader::new(socket.try_clone().unwrap()).read_until(b'\n', &mut line).unwrap();
                let call: Call = frame::read(&line).unwrap();
                let reply = answer(&call.request);
                asked.lock().unwrap().push(call.request);
                let _ = socket.write_all(&frame::write(&reply));
            }
        });
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_overnight"));
        command.args(args).current_dir(&self.code).env_clear().env("OVERNIGHT_HOME", self.top.path().join("home"));
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Done {
        Done::from(self.command(args).output().unwrap())
    }

    pub(crate) fn asked(&self) -> Vec<Request> {
        self.asked.lock().unwrap().clone()
    }
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

pub(crate) fn path(text: &str) -> TaskPath {
    TaskPath::parse(text).unwrap()
}

pub(crate) fn not_found(path: &TaskPath) -> Reply {
    Reply::Error(Failure { kind: ErrorKind::NotFound, message: format!("task {path}"), hint: None })
}

/// One task line from the little that a test says of it.
pub(crate) fn line(path: &str, text: &str) -> TaskLine {
    serde_json::from_value(serde_json::json!({
        "path": path, "title": text, "status": "in_progress", "phase": "running", "agent": text, "for_ms": 1000,
        "attempt": 1, "attempts": 3, "doing": text, "why": text, "reason": null,
        "last_output_ms": null, "last_progress_ms": null,
    }))
    .unwrap()
}

pub(crate) fn status(tasks: Vec<TaskLine>) -> StatusView {
    serde_json::from_value(serde_json::json!({
        "daemon": "working", "alarms": [], "paused": false, "slots": 2, "night": null, "sources": "watching",
        "projects": [{
            "project": "p", "code": "/c", "state": "/s", "base": "main", "into": "overnight/main", "tip": null,
            "paused": false, "alarms": [], "usage": {}, "invalid": [], "cycles": [], "tasks": tasks,
            "counts": { "planning": 0, "queued": 1, "running": 1, "merging": 0, "needs_you": 0, "doomed": 0,
                "merged": 0, "failed": 0, "aborted": 0 },
        }],
    }))
    .unwrap()
}

pub(crate) fn view(path: &str, text: &str) -> TaskView {
    serde_json::from_value(serde_json::json!({
        "project": "p", "line": line(path, text), "depends_on": [], "requester": text, "labels": [text], "priority": 0,
        "branch": text, "base": null, "worktree": text, "merged": null, "session": null, "question": text,
        "files": [text], "left_out": [], "usage": {}, "queued": null, "started": null, "ended": null, "runs": [],
        "rescues": [], "journal": [], "body": text,
    }))
    .unwrap()
}
