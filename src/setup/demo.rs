//! `overnight demo`: a night in small on real input. Makes a small project (a to-do list in POSIX shell, with tests) in a
//! folder of its own, queues eight tasks that depend on each other, fail once, conflict, hang and ask, and leaves it to the
//! caller to run the true daemon on it. Needs git and a shell, nothing else.

use crate::config::{self, Approvals, FILE, Places};
use crate::daemon::chain;
use crate::domain::task::WishStatus;
use crate::git::Git;
use crate::protocol::ErrorKind;
use crate::setup::init::{InitOptions, SetupError, init};
use crate::text::task_file::{NewTask, create};
use std::path::{Path, PathBuf};

/// What `demo` is told.
#[derive(Debug, Clone, Default)]
pub struct DemoOptions {
    /// Profile that works on the tasks; the built-in script agent where nothing is said.
    pub agent: Option<String>,
    /// Where to make it; a new folder among the temporary ones where nothing is said.
    pub dir: Option<PathBuf>,
}

/// A demonstration that is ready to run.
#[derive(Debug, Clone)]
pub struct Demo {
    /// A home of its own: it meets no other daemon of this user.
    pub places: Places,
    pub dir: PathBuf,
    pub code: PathBuf,
    pub state: PathBuf,
    pub tasks: usize,
}

/// One task of the demonstration.
struct Job {
    slug: &'static str,
    title: &'static str,
    needs: &'static [&'static str],
    attempts: u32,
    text: &'static str,
    accept: &'static str,
    script: &'static [&'static str],
}

/// Makes project, state repo and tasks.
pub fn prepare(options: &DemoOptions) -> Result<Demo, SetupError> {
    let failed = |e: &dyn std::error::Error| SetupError::new(ErrorKind::Failed, chain(e));
    let dir = match &options.dir {
        Some(dir) => std::path::absolute(dir).map_err(|e| failed(&e))?,
        None => fresh_folder().map_err(|e| failed(&e))?,
    };
    if dir.join("todo").exists() {
        let text = format!("{} has a demo in it already", dir.display());
        return Err(SetupError::new(ErrorKind::Usage, text).hint("remove it, or name another folder with --dir"));
    }
    let code = dir.join("todo");
    write_project(&code).map_err(|e| failed(&e))?;
    let agent = options.agent.clone().unwrap_or_else(|| "script".into());
    let file = code.join(FILE);
    let bytes = configuration(&agent).into_bytes();
    std::fs::write(&file, &bytes).map_err(|e| failed(&e))?;
    block_on(commit(&code))?;
    let places = Places::under(&dir.join("home"));
    init(&InitOptions { repo: code.clone(), name: None, base: None, state: None, places: places.clone() })?;
    let parsed = config::parse(&file, &bytes).map_err(|e| SetupError::new(ErrorKind::Unexpected, e.to_string()))?;
    // It was written here and now, by this program.
    Approvals::new(places.data.clone()).approve(&parsed.name, &bytes).map_err(|e| failed(&e))?;
    let state = dir.join("todo-state");
    for job in JOBS {
        let folder = state.join("tasks").join(job.slug);
        std::fs::create_dir_all(&folder).map_err(|e| failed(&e))?;
        std::fs::write(folder.join("README.md"), task(job, &agent)).map_err(|e| failed(&e))?;
    }
    Ok(Demo { places, dir, code, state, tasks: JOBS.len() })
}

fn block_on<T>(work: impl Future<Output = Result<T, SetupError>>) -> Result<T, SetupError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| SetupError::new(ErrorKind::Unexpected, format!("the runtime could not be started: {e}")))?
        .block_on(work)
}

/// A folder that nobody else has, in the user's cache rather than a temporary place: it may run for a while.
fn fresh_folder() -> std::io::Result<PathBuf> {
    let base = directories::ProjectDirs::from("", "", "overnight")
        .map_or_else(|| PathBuf::from("/tmp"), |d| d.cache_dir().to_owned())
        .join("demo");
    std::fs::create_dir_all(&base)?;
    for n in 1..10_000 {
        let dir = base.join(n.to_string());
        match std::fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(std::io::Error::other(format!("{} is full of demos", base.display())))
}

async fn commit(code: &Path) -> Result<(), SetupError> {
    let git = async |args: &[&str]| {
        let run = Git::at(code).args(args).identity("Demo", "demo@localhost").run().await;
        run.map(|_| ()).map_err(|e| SetupError::new(ErrorKind::Failed, chain(&e)))
    };
    git(&["init", "-q", "-b", "main"]).await?;
    git(&["add", "-A"]).await?;
    git(&["commit", "-q", "-m", "A to-do list, begun"]).await
}

fn write_project(code: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    for (path, text, run) in FILES {
        let at = code.join(path);
        if let Some(folder) = at.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&at, text)?;
        if *run {
            std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

fn configuration(agent: &str) -> String {
    // A real agent thinks for longer than a script that hangs should be waited for.
    let (silence, first) = if agent == "script" { ("4s", "4s") } else { ("5m", "2m") };
    format!(
        "# The demonstration's configuration.\n\n[project]\nname = \"todo\"\nbase = \"main\"\nagent = \"{agent}\"\nslots = 4\n\
         attempts = 3\n\n[limits]\nwall = \"10m\"\nno_progress = \"{silence}\"\nfirst_event = \"{first}\"\nkill_grace = \"1s\"\n\n\
         [agents]\nscript = true\n\n[[checks]]\nname = \"test\"\nrun = [\"sh\", \"tests/run.sh\"]\ntimeout = \"1m\"\n"
    )
}

fn task(job: &Job, agent: &str) -> String {
    let script = agent == "script";
    create(&NewTask {
        title: job.title.into(),
        status: WishStatus::Queued,
        depends_on: job.needs.iter().map(|n| (*n).to_owned()).collect(),
        attempts: (job.attempts > 0).then_some(job.attempts),
        script: if script { job.script.iter().map(|s| (*s).to_owned()).collect() } else { vec![] },
        description: job.text.into(),
        acceptance: job.accept.into(),
        ..NewTask::default()
    })
}

/// The project: path, text, whether it is a program.
const FILES: &[(&str, &str, bool)] = &[
    ("README.md", "# todo\n\nA to-do list in a file.\n\nGreeting: Hello.\n", false),
    (
        "todo",
        "#!/bin/sh\n# A to-do list in a file. Usage: todo add TEXT | todo list | todo done N\nset -eu\nhere=$(dirname \"$0\")\n\
         for part in \"$here\"/lib/*.sh; do . \"$part\"; done\ncase ${1-} in\n  help) echo 'usage: todo add|list' ;;\n\
         *) echo 'usage: todo add|list' >&2; exit 2 ;;\nesac\n",
        true,
    ),
    ("lib/common.sh", "# Where the list is kept.\ntodo_file() { echo \"${TODO_FILE:-$HOME/.todo}\"; }\n", false),
    (
        "tests/run.sh",
        "#!/bin/sh\n# Runs every tests/*.test.sh in a fresh folder and says which failed.\nset -u\ncd \"$(dirname \"$0\")/..\" || exit 1\n\
         failed=0\nfor test in tests/*.test.sh; do\n  dir=$(mktemp -d)\n  if out=$(TODO_FILE=$dir/list sh \"$test\" 2>&1); then\n\
         \x20   echo \"ok   $test\"\n  else\n    failed=1; echo \"FAIL $test\"; echo \"$out\"\n  fi\n  rm -r \"$dir\"\ndone\n\
         exit $failed\n",
        true,
    ),
    ("tests/help.test.sh", "./todo help | grep -q usage\n", false),
];

/// The tasks: a diamond (storage; add and list; done), one that fails its check first, two that want the same line, one
/// that hangs, one that asks.
const JOBS: &[Job] = &[
    Job {
        slug: "storage",
        title: "Keep the list in a file",
        needs: &[],
        attempts: 0,
        text: "Write `lib/storage.sh` with two functions: `todo_append TEXT` adds a line to the file that `todo_file` names, \
               `todo_lines` prints all lines (nothing when there is no file).",
        accept: "- `tests/storage.test.sh` covers both",
        script: &[
            "printf '%s\\n' '# Lines of the list.' 'todo_append() { printf \"%s\\\\n\" \"$*\" >>\"$(todo_file)\"; }' 'todo_lines() { cat \"$(todo_file)\" 2>/dev/null || true; }' > lib/storage.sh",
            "printf '%s\\n' '. lib/common.sh; . lib/storage.sh' 'test -z \"$(todo_lines)\"' 'todo_append milk' 'test \"$(todo_lines)\" = milk' > tests/storage.test.sh",
        ],
    },
    Job {
        slug: "add-command",
        title: "Add an entry: todo add TEXT",
        needs: &["storage"],
        attempts: 0,
        text: "`lib/add.sh` defines `cmd_add`, and `todo add TEXT` calls it. An empty text is refused with exit 2.",
        accept: "- `tests/add.test.sh` covers both",
        // Wrong at first: the check fails, the failure goes back, the second attempt mends it.
        script: &[
            "printf '%s\\n' './todo add milk' 'grep -qx milk \"$TODO_FILE\"' 'if ./todo add 2>/dev/null; then exit 1; fi' > tests/add.test.sh",
            "if [ \"$OVERNIGHT_ATTEMPT\" = 1 ]; then printf '%s\\n' 'cmd_add() { todo_append \"$*\"; }' > lib/add.sh; else printf '%s\\n' 'cmd_add() { [ -n \"$*\" ] || { echo \"add what?\" >&2; exit 2; }; todo_append \"$*\"; }' > lib/add.sh; fi",
            "grep -q cmd_add todo || sed -i.bak 's/^  help)/  add) shift; cmd_add \"$@\" ;;\\n  help)/' todo; rm -f todo.bak",
        ],
    },
    Job {
        slug: "list-command",
        title: "Show the list: todo list",
        needs: &["storage"],
        attempts: 0,
        text: "`lib/list.sh` defines `cmd_list`, which prints the entries numbered from 1.",
        accept: "- `tests/list.test.sh` covers it",
        script: &[
            "printf '%s\\n' 'cmd_list() { todo_lines | awk '\"'\"'{ print NR \". \" $0 }'\"'\"'; }' > lib/list.sh",
            "printf '%s\\n' '. lib/common.sh; . lib/storage.sh; . lib/list.sh' 'todo_append milk; todo_append tea' 'test \"$(cmd_list)\" = \"1. milk\n2. tea\"' > tests/list.test.sh",
        ],
    },
    Job {
        slug: "whole-program",
        title: "Wire everything into one program and test it as a user would",
        needs: &["add-command", "list-command"],
        attempts: 0,
        text: "`todo list` calls `cmd_list`. A test adds two entries with the program itself and lists them.",
        accept: "- `tests/whole.test.sh` covers it",
        script: &[
            "sed -i.bak 's/^  help)/  list) cmd_list ;;\\n  help)/' todo; rm -f todo.bak",
            "printf '%s\\n' './todo add milk; ./todo add tea' 'test \"$(./todo list | tail -n 1)\" = \"2. tea\"' > tests/whole.test.sh",
        ],
    },
    Job {
        slug: "greet-formally",
        title: "Greet formally",
        needs: &[],
        attempts: 0,
        text: "In README.md the greeting shall read: `Greeting: Good evening.`",
        accept: "- the line is there",
        script: &["sed -i.bak 's/^Greeting:.*/Greeting: Good evening./' README.md; rm -f README.md.bak"],
    },
    Job {
        slug: "greet-warmly",
        title: "Greet warmly",
        needs: &[],
        attempts: 0,
        text: "In README.md the greeting shall read: `Greeting: Hi there!`",
        accept: "- the line is there",
        // A little later than the other, so that the one that conflicts is always the same.
        script: &["sleep 1", "sed -i.bak 's/^Greeting:.*/Greeting: Hi there!/' README.md; rm -f README.md.bak"],
    },
    Job {
        slug: "never-ends",
        title: "Find the last digit of pi",
        needs: &[],
        attempts: 1,
        text: "Compute pi until the last digit is found. (It is meant to hang: the supervisor stops it.) Do this by running \
               `sleep 100000` in the foreground and nothing else.",
        accept: "- none",
        script: &["echo 'computing…'; sleep 100000"],
    },
    Job {
        slug: "choose-licence",
        title: "Add a licence",
        needs: &[],
        attempts: 0,
        text: "Nobody has said which licence this project has. Do not choose one yourself: change nothing and end with the \
               question which one it shall be.",
        accept: "- none until that is answered",
        // What it is told comes on standard input; an answer goes on from there.
        script: &[
            "if grep 'The answer:' > LICENSE; then :; else rm LICENSE; echo 'QUESTION: Which licence shall it have, MIT or Apache-2.0?'; fi",
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_and_tasks_are_valid() {
        for agent in ["script", "claude"] {
            let config = config::parse(Path::new(FILE), configuration(agent).as_bytes()).unwrap();
            assert_eq!(config.policy.agent, agent);
            for job in JOBS {
                let path = crate::domain::TaskPath::parse(job.slug).unwrap();
                let text = task(job, agent);
                let wish = crate::text::task_file::read(text.as_bytes(), &path, &|_| true).unwrap();
                crate::domain::plan::Plan::settle(&wish, &config.policy).unwrap();
            }
        }
    }
}
