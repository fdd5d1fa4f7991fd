//! Talking to the state remote: one push, one fetch, and what became of it. Whether a push won, lost, or is unknown is
//! read from its porcelain status and from the refs read back, never from words that a person would read; the words only
//! name the cause of a trouble, for people.

use super::state_repo::{MAIN, ORIGIN_MAIN, Result, SEEN_CLAIMS, StateError, StateRepo};
use super::{Git, GitError, Output};
use crate::domain::Oid;
use crate::domain::lease::CLAIM_REFS;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Why a remote did not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TroubleKind {
    /// No answer, or none that is git's.
    Unreachable,
    /// It did not answer within the time limit.
    TimedOut,
    /// It asked for a login that nobody gave, or did not take the one it got.
    AuthNeeded,
    /// It may be read but not written.
    ReadOnly,
    /// It was asked and said no, again and again, with nothing else having changed: a hook or a rule there.
    Refused,
}

/// A remote that did not do what it was asked, with its own words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub kind: TroubleKind,
    /// What git and the remote printed, cut at 2000 characters. Hostile text: escape before showing.
    pub text: String,
}

/// What a remote has, as of now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Its `main`; `None` when it has none yet.
    pub main: Option<Oid>,
}

/// Status of one ref in `git push --porcelain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flag {
    /// Moved, made, or deleted as asked.
    Done,
    /// The remote has this value already.
    Same,
    /// Refused, or without an answer: only reading back tells.
    Unclear,
}

/// What one push printed.
pub(super) struct Pushed {
    /// By the ref's name at the remote. A ref that is missing has an unknown outcome.
    pub(super) flags: BTreeMap<String, Flag>,
    /// The cause, should it turn out that nothing was done.
    pub(super) trouble: Trouble,
}

/// One ref to be moved by a push.
pub(super) struct RefMove {
    pub(super) name: String,
    /// `None` deletes it.
    pub(super) to: Option<Oid>,
    pub(super) guard: Guard,
}

/// When a ref may be moved.
pub(super) enum Guard {
    /// Only forward.
    FastForward,
    /// Only from this value; `None` is "does not exist".
    From(Option<Oid>),
}

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Makes a mark when git asks for a login that no helper of the user's has, or throws away one that was refused.
const ASKED_HELPER: &str = "credential.helper=!f() { case \"$1\" in get|erase) : > \"$OVERNIGHT_ASKED\";; esac; }; f";

impl StateRepo {
    /// Fetches `main` and all claims of the remote. What it has goes to `refs/remotes/origin/main` and
    /// `refs/overnight/seen/`; our own `main` stays.
    ///
    /// The outer result is ours, the inner one the remote's.
    pub async fn fetch(&self) -> Result<Result<Fetched, Trouble>> {
        let _one = self.gate.lock().await;
        self.fetch_gated().await
    }

    pub(super) async fn fetch_gated(&self) -> Result<Result<Fetched, Trouble>> {
        let claims = format!("+{CLAIM_REFS}*:{SEEN_CLAIMS}*");
        let both = self.fetch_specs(&[&format!("+{MAIN}:{ORIGIN_MAIN}"), &claims]).await?;
        let Err(trouble) = both else {
            return Ok(Ok(Fetched { main: self.ref_value(ORIGIN_MAIN)? }));
        };
        if matches!(trouble.kind, TroubleKind::TimedOut | TroubleKind::AuthNeeded) {
            return Ok(Err(trouble));
        }
        // A remote without a main fails the same way as one that cannot be reached. So ask for what it has.
        let asked = self.network(["ls-remote", "origin", MAIN]).await?;
        match asked {
            Ok(out) if out.stdout.is_empty() => {
                Ok(self.fetch_specs(&[&claims]).await?.map(|()| Fetched { main: None }))
            }
            Ok(_) => Ok(Err(trouble)),
            Err(trouble) => Ok(Err(trouble)),
        }
    }

    async fn fetch_specs(&self, specs: &[&str]) -> Result<Result<(), Trouble>> {
        let words = ["fetch", "-q", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--prune"];
        let command = self.base().args(self.synced()).args(words).arg("origin").args(specs);
        Ok(self.ask(command).await?.map(|_| ()))
    }

    async fn network<const N: usize>(&self, args: [&str; N]) -> Result<Result<Output, Trouble>> {
        self.ask(self.base().args(args)).await
    }

    fn base(&self) -> Git {
        Git::bare(&self.at).network().limit(self.tries.limit).args(["-c", ASKED_HELPER])
    }

    /// Runs a command that talks to the remote; any failure of it is the remote's.
    async fn ask(&self, command: Git) -> Result<Result<Output, Trouble>> {
        let mark = Mark::new(&self.at);
        match command.env("OVERNIGHT_ASKED", &mark.0).output().await {
            Ok(out) if out.code == Some(0) => Ok(Ok(out)),
            Ok(out) => Ok(Err(self.trouble(&out, mark.made()))),
            Err(GitError::TimedOut { limit, .. }) => Ok(Err(timed_out(limit))),
            Err(other) => Err(other.into()),
        }
    }

    /// Pushes `moves` in one go. With `atomic` the remote does all or none.
    pub(super) async fn push(&self, moves: &[RefMove], atomic: bool) -> Result<Pushed> {
        let mark = Mark::new(&self.at);
        let mut command = self.base().args(["push", "--porcelain", "--no-verify", "--no-signed"]);
        if atomic {
            command = command.arg("--atomic");
        }
        for to in moves {
            if let Guard::From(old) = &to.guard {
                let old = old.as_ref().map_or("", Oid::as_str);
                command = command.arg(format!("--force-with-lease={}:{old}", to.name));
            }
        }
        command = command.arg("origin");
        for to in moves {
            command = command.arg(format!("{}:{}", to.to.as_ref().map_or("", Oid::as_str), to.name));
        }
        match command.env("OVERNIGHT_ASKED", &mark.0).output().await {
            Ok(out) => Ok(Pushed { flags: porcelain(&out.stdout), trouble: self.trouble(&out, mark.made()) }),
            Err(GitError::TimedOut { limit, .. }) => Ok(Pushed { flags: BTreeMap::new(), trouble: timed_out(limit) }),
            Err(other) => Err(StateError::Git(other)),
        }
    }

    fn trouble(&self, out: &Output, asked: bool) -> Trouble {
        let mut text = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        text.truncate(text.char_indices().nth(2000).map_or(text.len(), |(i, _)| i));
        // ssh and curl do not translate these.
        let kind = if asked || text.contains("Permission denied (") || text.contains("Host key verification failed") {
            TroubleKind::AuthNeeded
        } else if self.is_closed_folder() || text.contains("returned error: 403") || text.contains("read only") {
            TroubleKind::ReadOnly
        } else if porcelain(&out.stdout).is_empty() {
            TroubleKind::Unreachable
        } else {
            TroubleKind::Refused
        };
        Trouble { kind, text }
    }

    /// True for a remote that is a folder here which may be read but not written.
    fn is_closed_folder(&self) -> bool {
        use nix::unistd::{AccessFlags, access};
        let Some(remote) = self.remote() else { return false };
        let folder = PathBuf::from(remote.strip_prefix("file://").unwrap_or(remote));
        [folder.join("objects"), folder.join(".git/objects")]
            .iter()
            .any(|at| access(at, AccessFlags::R_OK).is_ok() && access(at, AccessFlags::W_OK).is_err())
    }
}

fn timed_out(limit: Duration) -> Trouble {
    Trouble { kind: TroubleKind::TimedOut, text: format!("no answer within {} s", limit.as_secs_f32()) }
}

/// A file that appears when a login was asked for; gone with the value.
struct Mark(PathBuf);

impl Mark {
    fn new(at: &std::path::Path) -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(at.join(format!("overnight-asked-{}-{n}", std::process::id())))
    }

    fn made(&self) -> bool {
        self.0.exists()
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reads `git push --porcelain`: `<flag> TAB <from>:<to> TAB <words>` per ref (git-push(1), OUTPUT).
fn porcelain(stdout: &[u8]) -> BTreeMap<String, Flag> {
    let mut flags = BTreeMap::new();
    for line in stdout.split(|b| *b == b'\n') {
        let [flag, b'\t', rest @ ..] = line else { continue };
        let refs = rest.split(|b| *b == b'\t').next().unwrap_or_default();
        let Some(colon) = refs.iter().rposition(|b| *b == b':') else { continue };
        let flag = match flag {
            b' ' | b'+' | b'-' | b'*' => Flag::Done,
            b'=' => Flag::Same,
            _ => Flag::Unclear,
        };
        flags.insert(String::from_utf8_lossy(&refs[colon + 1..]).into_owned(), flag);
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_flag_counts_whatever_language_the_words_are_in() {
        let printed = "To /x\n*\tabc:refs/overnight/claims/1\t[neue Referenz]\n\
                       !\tabc:refs/overnight/claims/2\t[zurückgewiesen] (veraltete Informationen)\n\
                       =\tabc:refs/overnight/claims/3\t[aktuell]\n-\t:refs/overnight/claims/4\t[gelöscht]\n \
                       \tabc:refs/heads/main\t1..2\n+\ta:refs/x\t1...2 (Aktualisierung erzwungen)\nFertig\n";
        let flags = porcelain(printed.as_bytes());
        assert_eq!(flags["refs/overnight/claims/1"], Flag::Done);
        assert_eq!(flags["refs/overnight/claims/2"], Flag::Unclear);
        assert_eq!(flags["refs/overnight/claims/3"], Flag::Same);
        assert_eq!(flags["refs/overnight/claims/4"], Flag::Done);
        assert_eq!(flags["refs/heads/main"], Flag::Done);
        assert_eq!(flags.len(), 6);
    }
}
