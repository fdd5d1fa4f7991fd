//! What a person would write in a shell instead: for each task a worktree, the agent's commands, a merge, and the worktree
//! removed. No state, no checks, nothing kept when something goes wrong: the floor to compare with.

use crate::home::{self, Shape};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// One task. Merges take turns, and so do changes of git's list of worktrees: two at once read each other's halves.
const TASK: &str = r#"
set -e
b=$1
flock ../list.lock git worktree add -q -b "$b" "../wt-$b" main
(cd "../wt-$b" && echo "$b" >"made-$b" && git add "made-$b" && git commit -q -m "$b")
flock ../merge.lock git merge -q --no-ff --no-edit "$b"
flock ../list.lock sh -c 'git worktree remove "../wt-$1" && git branch -q -d "$1"' sh "$b"
"#;

pub(crate) struct Shell {
    code: PathBuf,
    slots: u32,
    _dir: tempfile::TempDir,
}

impl Shell {
    pub(crate) fn new(shape: Shape) -> Self {
        let dir = tempfile::Builder::new().prefix("overnight-bench").tempdir().unwrap();
        let code = dir.path().canonicalize().unwrap().join("code");
        home::make_code(&code, shape);
        std::fs::write(dir.path().join("task.sh"), TASK).unwrap();
        Self { code, slots: shape.slots, _dir: dir }
    }

    /// Does all of `names`; the time a task.
    pub(crate) fn work(&self, names: &[String]) -> Duration {
        let start = Instant::now();
        let lines = names.join("\n");
        let slots = self.slots;
        let all = format!("printf '%s\\n' \"$1\" | xargs -P {slots} -n 1 sh ../task.sh");
        home::run("sh", &["-c", &all, "sh", &lines], &self.code);
        start.elapsed() / u32::try_from(names.len()).unwrap()
    }
}
