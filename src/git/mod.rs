//! Running git. Everything that reaches a git binary goes through `Git`: a fixed environment (no variable of the
//! caller's, no pager, editor, prompt, hooks, fsmonitor, signing), arguments never through a shell, and a time limit after
//! which git and its helpers are ended.
//!
//! The code side (`mirror`, `worktree`, `pool`, `merge`, `rescue`) and the state side (`state_repo`, `claim_ref`) build on
//! it. Reading and writing objects and refs is done in process with gix where no network and no worktree takes part.

#![expect(
    clippy::disallowed_methods,
    reason = "this is where git is called: its command, its environment, and its patience with locks"
)]

pub mod claim_ref;
pub mod collect;
pub mod deliver;
pub mod folder;
mod folder_repair;
pub mod folder_update;
pub mod land;
pub mod lease;
pub mod merge;
pub mod mirror;
mod nested;
mod notes;
pub mod odb;
pub mod pool;
pub mod remove;
pub mod rescue;
pub mod seal;
mod source;
pub mod stale_locks;
pub mod state_absorb;
pub mod state_commit;
pub mod state_publish;
pub mod state_remote;
pub mod state_repo;
pub mod state_tree;
pub mod status;
mod sync;
pub mod worktree;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;

/// How long a local git command may take.
pub const LOCAL_LIMIT: Duration = Duration::from_secs(300);
/// How long one exchange with a remote may take.
pub const NETWORK_LIMIT: Duration = Duration::from_secs(120);

/// How long a command waits for a lock that somebody else holds.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);

/// A git command that did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("git could not be started")]
    Spawn(#[source] std::io::Error),
    #[error("git {command} did not end within {} s and was stopped", limit.as_secs())]
    TimedOut { command: String, limit: Duration },
    #[error("git {command} failed ({status}): {stderr}")]
    Failed { command: String, status: String, code: Option<i32>, stderr: String },
    #[error("could not talk to git {command}")]
    Io {
        command: String,
        #[source]
        source: std::io::Error,
    },
}

impl GitError {
    /// True where another process held a lock file: the same command may succeed a moment later. Our locale is fixed, so
    /// git's wording is too.
    pub fn is_lock(&self) -> bool {
        let Self::Failed { stderr, .. } = self else { return false };
        // Git says "cannot lock ref" too where the ref holds another commit than the one that it was to hold, or exists
        // where it was not to, or not where it was: to wait changes nothing about that.
        let lost = ["but expected ", "reference already exists", "unable to resolve reference"];
        if lost.iter().any(|t| stderr.contains(t)) {
            return false;
        }
        ["could not lock config file", ".lock': File exists", "Unable to create '", "cannot lock ref"]
            .iter()
            .any(|t| stderr.contains(t))
    }

    /// What git said, for a person.
    pub fn text(&self) -> String {
        match self {
            Self::Failed { stderr, .. } if !stderr.is_empty() => stderr.clone(),
            other => other.to_string(),
        }
    }
}

/// Name and mail that stand in a commit of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    pub name: String,
    pub mail: String,
}

/// Runs work that blocks (files, objects) outside the async threads.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)
}

/// One git command under construction.
#[derive(Debug, Clone)]
pub struct Git {
    at: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    stdin: Option<Vec<u8>>,
    limit: Duration,
    network: bool,
}

/// What a git command printed.
#[derive(Debug, Clone)]
pub struct Output {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub code: Option<i32>,
}

impl Output {
    /// Standard output as text without the final line end; git's plumbing prints UTF-8 or escapes.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches('\n').to_owned()
    }

    /// NUL-separated records, as printed under `-z`.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.stdout.split(|b| *b == 0).filter(|r| !r.is_empty())
    }
}

/// Settings that no repository or user configuration may change for our own commands.
const FIXED_CONFIG: &[(&str, &str)] = &[
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("core.quotePath", "false"),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("advice.detachedHead", "false"),
    ("color.ui", "false"),
    ("log.showSignature", "false"),
    ("status.showUntrackedFiles", "all"),
    ("branch.autoSetupMerge", "false"),
    ("protocol.ext.allow", "never"),
    ("submodule.recurse", "false"),
    ("core.askPass", ""),
];

/// Variables that say how the network is reached: agents with keys, keyrings of credential helpers, proxies.
const FOR_NETWORK: &[&str] = &[
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "DBUS_SESSION_BUS_ADDRESS",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
];
/// Variables by which a user names the ssh that git is to use.
const SSH: &[&str] = &["GIT_SSH_COMMAND", "GIT_SSH", "GIT_SSH_VARIANT"];

impl Git {
    /// A command that runs in `at` (a worktree or a bare repository).
    pub fn at(at: impl AsRef<Path>) -> Self {
        Self {
            at: at.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            stdin: None,
            limit: LOCAL_LIMIT,
            network: false,
        }
    }

    /// A command on exactly this git dir, whatever the folder's own `.git` says.
    pub fn bare(git_dir: impl AsRef<Path>) -> Self {
        let git_dir = git_dir.as_ref();
        Self::at(git_dir).env("GIT_DIR", git_dir)
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Author and committer of what this command commits.
    pub fn identity(self, name: &str, mail: &str) -> Self {
        self.env("GIT_AUTHOR_NAME", name)
            .env("GIT_AUTHOR_EMAIL", mail)
            .env("GIT_COMMITTER_NAME", name)
            .env("GIT_COMMITTER_EMAIL", mail)
    }

    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// For push and fetch: the user's own configuration with its credential and ssh helpers acts, prompts do not.
    pub fn network(mut self) -> Self {
        self.network = true;
        self.limit = NETWORK_LIMIT;
        self
    }

    /// The command's words, for errors and logs: the first two arguments behind the settings.
    fn words(&self) -> String {
        let mut rest = &self.args[..];
        while let [flag, _, behind @ ..] = rest
            && flag == "-c"
        {
            rest = behind;
        }
        let words: Vec<_> = rest.iter().take(2).map(|a| a.to_string_lossy()).collect();
        words.join(" ")
    }

    /// Runs it and gives whatever it answered, failed or not.
    pub async fn output(self) -> Result<Output, GitError> {
        let command = self.words();
        let mut built = self.command();
        if self.network && !self.has_ssh_of_its_own().await {
            built.env("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=20");
        }
        let mut child = built.spawn().map_err(GitError::Spawn)?;
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        let input = self.stdin;
        let mut pipe = child.stdin.take();
        let feed = async move {
            if let (Some(mut pipe), Some(bytes)) = (pipe.take(), input) {
                // Git may end without reading all of it; its own answer tells why.
                let _ = pipe.write_all(&bytes).await;
            }
        };
        let done = async { tokio::join!(feed, child.wait_with_output()).1 };
        match tokio::time::timeout(self.limit, done).await {
            Ok(Ok(out)) => Ok(Output { stdout: out.stdout, stderr: out.stderr, code: out.status.code() }),
            Ok(Err(source)) => Err(GitError::Io { command, source }),
            Err(_) => {
                if let Some(group) = group {
                    // The whole group: transport helpers are git's children.
                    let _ =
                        nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group), nix::sys::signal::Signal::SIGKILL);
                }
                Err(GitError::TimedOut { command, limit: self.limit })
            }
        }
    }

    /// Runs it and takes any other status than 0 as an error.
    pub async fn run(self) -> Result<Output, GitError> {
        let command = self.words();
        let out = self.output().await?;
        if out.code == Some(0) {
            return Ok(out);
        }
        let status = out.code.map_or_else(|| "ended by a signal".into(), |c| format!("exit {c}"));
        let mut stderr = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        stderr.truncate(stderr.char_indices().nth(2000).map_or(stderr.len(), |(i, _)| i));
        Err(GitError::Failed { command, status, code: out.code, stderr })
    }

    /// Like `run`, and tries again for up to 20 s while somebody else holds a lock that the command needs.
    pub async fn run_patiently(self) -> Result<Output, GitError> {
        let mut pause = Duration::from_millis(10);
        let mut waited = Duration::ZERO;
        loop {
            match self.clone().run().await {
                Err(e) if e.is_lock() && waited < LOCK_PATIENCE => {
                    // Spread by a few random milliseconds: equal waiters would meet again.
                    let mut spread = [0_u8; 1];
                    let _ = getrandom::fill(&mut spread);
                    let nap = pause + Duration::from_millis(u64::from(spread[0] % 16));
                    tokio::time::sleep(nap).await;
                    waited += nap;
                    pause = (pause * 2).min(Duration::from_millis(500));
                }
                other => return other,
            }
        }
    }

    /// Whether the user named an ssh by a variable or in the configuration that this command reads: it has their keys and
    /// their way through, so nothing of ours goes before it.
    async fn has_ssh_of_its_own(&self) -> bool {
        let given = |key: &&str| std::env::var_os(key).is_some() || self.env.iter().any(|(k, _)| k == key);
        if SSH.iter().any(given) {
            return true;
        }
        let mut ask = Self::at(&self.at).args(["config", "--get", "core.sshCommand"]);
        ask.env.clone_from(&self.env);
        Box::pin(ask.output()).await.is_ok_and(|out| out.code == Some(0))
    }

    fn command(&self) -> tokio::process::Command {
        // With its full path: std looks a bare name up on a PATH that it was given only after a fork, and a fork copies the
        // page tables of all that the daemon holds in memory.
        let mut c = tokio::process::Command::new(program());
        c.current_dir(&self.at).kill_on_drop(true).process_group(0);
        c.stdin(if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        c.stdout(Stdio::piped()).stderr(Stdio::piped());
        c.env_clear();
        for key in
            ["PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH"]
        {
            if let Some(value) = std::env::var_os(key) {
                c.env(key, value);
            }
        }
        if self.network {
            for key in FOR_NETWORK.iter().chain(SSH) {
                if let Some(value) = std::env::var_os(key) {
                    c.env(key, value);
                }
            }
        }
        c.env("LC_ALL", "C.UTF-8")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "")
            .env("SSH_ASKPASS", "")
            .env("SSH_ASKPASS_REQUIRE", "never")
            .env("GIT_EDITOR", "false")
            .env("GIT_PAGER", "cat")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_ADVICE", "0");
        for (key, value) in FIXED_CONFIG {
            c.arg("-c").arg(format!("{key}={value}"));
        }
        for (key, value) in &self.env {
            c.env(key, value);
        }
        c.args(&self.args);
        c
    }
}

/// Where git is, as the PATH says now; the bare name where it is nowhere, for the error that says so.
fn program() -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let runs = |at: &PathBuf| at.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A relative entry would be another folder in each repository.
    let folders = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join("git")).find(runs).unwrap_or_else(|| "git".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hostile_variables_and_configuration_do_not_reach_git() {
        let dir = tempfile::tempdir().unwrap();
        Git::at(dir.path()).args(["init", "-q", "-b", "main"]).run().await.unwrap();
        Git::at(dir.path()).args(["config", "core.hooksPath", "evil"]).run().await.unwrap();
        let hooks = Git::at(dir.path()).args(["config", "core.hooksPath"]).run().await.unwrap();
        assert_eq!(hooks.text(), "/dev/null");
    }

    #[test]
    fn a_command_is_named_by_its_words_and_not_by_its_settings() {
        let settings = ["-c", "core.fsync=reference", "-c", "a.b=c"];
        assert_eq!(
            Git::at("/").args(settings).args(["update-ref", "--no-deref", "-m"]).words(),
            "update-ref --no-deref"
        );
        assert_eq!(Git::at("/").arg("status").words(), "status");
        assert_eq!(Git::at("/").args(["-c", "a.b=c"]).words(), "");
    }

    #[tokio::test]
    async fn a_ref_that_moved_is_no_lock_to_wait_for() {
        let dir = tempfile::tempdir().unwrap();
        let git = |args: &[&str]| Git::at(dir.path()).identity("a", "a@b").args(args);
        git(&["init", "-q", "-b", "main"]).run().await.unwrap();
        git(&["commit", "-q", "--allow-empty", "-m", "one"]).run().await.unwrap();
        git(&["commit", "-q", "--allow-empty", "-m", "two"]).run().await.unwrap();
        let (none, gone) = ("0".repeat(40), "1".repeat(40));
        for (name, old) in [("main", &*gone), ("main", "main~1"), ("main", &none), ("other", &gone)] {
            let name = format!("refs/heads/{name}");
            let lost = git(&["update-ref", &name, "HEAD", old]).run().await.unwrap_err();
            assert!(!lost.is_lock(), "{lost}");
        }
        std::fs::write(dir.path().join(".git/refs/heads/main.lock"), "").unwrap();
        assert!(git(&["update-ref", "refs/heads/main", "HEAD~1"]).run().await.unwrap_err().is_lock());
    }

    #[tokio::test]
    async fn the_users_own_ssh_goes_before_ours() {
        let dir = tempfile::tempdir().unwrap();
        Git::at(dir.path()).args(["init", "-q"]).run().await.unwrap();
        let shown = async || {
            let show = ["-c", "alias.show-ssh=!echo ${GIT_SSH_COMMAND-none}", "show-ssh"];
            Git::at(dir.path()).args(show).network().run().await.unwrap().text()
        };
        assert!(shown().await.contains("BatchMode=yes"));
        Git::at(dir.path()).args(["config", "core.sshCommand", "ssh -i key"]).run().await.unwrap();
        assert_eq!(shown().await, "none");
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let hang = Git::at(dir.path()).args(["-c", "alias.hang=!sleep 600", "hang"]).limit(Duration::from_millis(200));
        assert!(matches!(hang.run().await, Err(GitError::TimedOut { .. })));
    }
}
