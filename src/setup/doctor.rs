//! `overnight doctor`: what would spoil the night, and how to mend it. Looks only; every finding names what it rests on.

#![expect(clippy::disallowed_methods, reason = "git is asked for its version before anything relies on it")]

use crate::config::{Approvals, FILE, Places, Registry, Status, Surroundings};
use crate::daemon::{chain, lock};
use crate::domain::ProjectId;
use crate::domain::policy::AgentKind;
use std::path::Path;
use std::process::Command;

/// Free space below which a night is likely to end early, in bytes.
const DISK_LOW: u64 = 2 << 30;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Good,
    Warn,
    /// Nothing works until it is mended.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Clone)]
pub struct Finding {
    pub level: Level,
    pub text: String,
    pub mend: Option<String>,
}

fn finding(level: Level, text: impl Into<String>, mend: Option<&str>) -> Finding {
    Finding { level, text: text.into(), mend: mend.map(str::to_owned) }
}

/// Looks at the machine, and at one project or all.
pub fn doctor(places: &Places, project: Option<&ProjectId>) -> Vec<Finding> {
    let mut found = vec![git(), daemon(places), disk(&places.data)];
    found.extend(inotify());
    let registry = Registry::new(places.data.clone());
    match registry.list() {
        Ok(list) if list.is_empty() => {
            found.push(finding(Level::Warn, "no project yet", Some("overnight init, in a repository")));
        }
        Ok(list) => {
            for entry in list.iter().filter(|e| project.is_none_or(|p| *p == e.id)) {
                found.extend(look_at(places, entry));
            }
        }
        Err(e) => found.push(finding(Level::Bad, format!("the list of projects: {}", chain(&e)), None)),
    }
    found
}

fn git() -> Finding {
    match Command::new("git").arg("--version").output() {
        Ok(out) => {
            let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
            let numbers: Vec<u32> =
                text.split_whitespace().nth(2).unwrap_or("").split('.').filter_map(|n| n.parse().ok()).collect();
            if numbers.as_slice() < [2, 38].as_slice() {
                return finding(Level::Bad, format!("{text} is too old"), Some("install git 2.38 or newer"));
            }
            if numbers.as_slice() < [2, 41].as_slice() {
                let text = format!("{text} cannot merge in a repository with .gitattributes");
                return finding(Level::Warn, text, Some("install git 2.41 or newer where yours has some"));
            }
            finding(Level::Good, text, None)
        }
        Err(e) => finding(Level::Bad, format!("git cannot be run: {e}"), Some("install git, and put it on PATH")),
    }
}

fn daemon(places: &Places) -> Finding {
    match lock::holder(&places.lock()) {
        Some(holder) => finding(Level::Good, format!("{holder} is running"), None),
        None => finding(Level::Warn, "no daemon is running", Some("overnight start")),
    }
}

fn disk(at: &Path) -> Finding {
    match crate::host::disk::space(at) {
        Ok(space) if space.free < DISK_LOW => {
            let text = format!("{} MiB are free below {}", space.free >> 20, at.display());
            finding(Level::Warn, text, Some("make room: each running task has a worktree of its own"))
        }
        Ok(space) => finding(Level::Good, format!("{} GiB are free below {}", space.free >> 30, at.display()), None),
        Err(e) => finding(Level::Warn, format!("free space is not known: {}", chain(&e)), None),
    }
}

fn inotify() -> Option<Finding> {
    let read = |name: &str| -> Option<u64> {
        std::fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).ok()?.trim().parse().ok()
    };
    let watches = read("max_user_watches")?;
    (watches < 8192).then(|| {
        let text = format!("only {watches} inotify watches: new tasks are polled for when they run out");
        finding(Level::Warn, text, Some("sysctl fs.inotify.max_user_watches=524288"))
    })
}

fn look_at(places: &Places, entry: &crate::config::Project) -> Vec<Finding> {
    let id = &entry.id;
    let mut found = Vec::new();
    let file = entry.code.join(FILE);
    let Ok(bytes) = std::fs::read(&file) else {
        let text = format!("{id}: {} cannot be read", file.display());
        return vec![finding(Level::Bad, text, Some("overnight init, or overnight project remove"))];
    };
    let parsed = match crate::config::parse(&file, &bytes) {
        Ok(parsed) => parsed,
        Err(e) => return vec![finding(Level::Bad, format!("{id}: {e}"), Some("overnight config check"))],
    };
    match Approvals::new(places.data.clone()).status(id, &bytes) {
        Ok(Status::Same) => found.push(finding(Level::Good, format!("{id}: {FILE} is valid and approved"), None)),
        Ok(Status::Changed { .. }) => {
            let text = format!("{id}: {FILE} was changed since it was approved; the approved copy runs");
            found.push(finding(Level::Warn, text, Some("overnight config approve")));
        }
        Ok(Status::Never) => {
            let text = format!("{id}: {FILE} was never approved, so nothing runs");
            found.push(finding(Level::Bad, text, Some("overnight config approve")));
        }
        Err(e) => found.push(finding(Level::Bad, format!("{id}: {}", chain(&e)), Some("overnight config approve"))),
    }
    if !entry.state.join(".git").exists() {
        let text = format!("{id}: the state repo {} is gone", entry.state.display());
        found.push(finding(
            Level::Bad,
            text,
            Some("overnight init makes a new one; clone yours there if you have a remote"),
        ));
    }
    if parsed.policy.checks.is_empty() {
        let text = format!("{id}: no checks: nothing is tested before it is merged");
        found.push(finding(Level::Warn, text, Some("add [[checks]] to overnight.toml")));
    }
    found.push(agent(&parsed.policy, id, &parsed.policy.agent, Level::Bad));
    // A profile that nobody chose may be there for a task that names it.
    for name in parsed.policy.agents.keys().filter(|name| **name != parsed.policy.agent) {
        let one = agent(&parsed.policy, id, name, Level::Warn);
        found
            .extend((one.level != Level::Good && text_of(&bytes).contains(&format!("[agents.{name}]"))).then_some(one));
    }
    found
}

fn text_of(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Whether a program can be started from this environment.
fn is_here(bin: &str) -> bool {
    let path = Surroundings::from_env().path;
    let named = Path::new(bin);
    named.is_absolute() && named.exists() || std::env::split_paths(&path).any(|folder| folder.join(bin).is_file())
}

/// What a person should know of a project before its tasks start: that its agent is not there, or that nothing is tested.
pub fn before_start(policy: &crate::domain::policy::Policy) -> Vec<String> {
    let mut said = Vec::new();
    let name = &policy.agent;
    if let Some(profile) = policy.agents.get(name)
        && profile.kind != AgentKind::Script
        && !is_here(&profile.bin)
    {
        said.push(format!("agent {name} ({}) is not on PATH here; `overnight doctor` says what to do", profile.bin));
    }
    if policy.checks.is_empty() {
        said.push("no checks: what is finished is merged untested".into());
    }
    said
}

/// Whether an agent of the project can be started from this environment; `level` where it cannot.
fn agent(policy: &crate::domain::policy::Policy, id: &ProjectId, name: &str, level: Level) -> Finding {
    let Some(profile) = policy.agents.get(name) else {
        return finding(
            Level::Bad,
            format!("{id}: agent {name} is not configured"),
            Some("set `agent` in overnight.toml"),
        );
    };
    if profile.kind == AgentKind::Script {
        return finding(Level::Good, format!("{id}: agent {name} needs no program"), None);
    }
    if is_here(&profile.bin) {
        return finding(Level::Good, format!("{id}: agent {name} is {}", profile.bin), None);
    }
    let text = format!("{id}: agent {name} ({}) is not on PATH here", profile.bin);
    let mend = format!("install it, or overnight config set agents.{name}.bin PATH; then overnight restart");
    finding(level, text, Some(&mend))
}
