//! Which processes belong to a run, and ending them. A process is ours by proof only: it descends from the run's shim, it
//! carries the run's key in its environment, or it is in the session that the run's child made. It is signalled through
//! a handle checked against its start time, never by number alone, and never by name.
//!
//! ```text
//! Patience ──▶ Term ──▶ Kill ──▶ done
//!     └───────────┴── nothing left ──▲
//! ```

#![expect(
    clippy::disallowed_methods,
    reason = "a tree is ended by deadlines, and strangers' processes end without telling us"
)]

use super::system;
use crate::domain::verdict::Survivor;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Variable that names the run; on every process of a run.
pub const RUN_VAR: &str = "OVERNIGHT_RUN";
/// Variable with the run's random key. The id alone is no proof: another daemon of this machine may use the same one.
pub const KEY_VAR: &str = "OVERNIGHT_RUN_KEY";

/// How long what is left may take to end by itself before it counts as left behind.
const PATIENCE: Duration = Duration::from_millis(150);
/// How long killing goes on before what still lives is named as unkillable.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// How long one bout of killing direct children may hold up the reading of output.
const CASCADE: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How many survivors an exit record names.
const NAMED: usize = 50;
const COMMAND_MAX: usize = 300;

/// One process as /proc shows it.
#[derive(Debug, Clone)]
pub(super) struct Proc {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// Clock ticks since the machine's start.
    pub(super) start: u64,
    pub(super) zombie: bool,
    pub(super) cpu_ms: u64,
    pub(super) rss: u64,
}

/// By what the processes of one run are known.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    pub(super) key: String,
    /// The living shim: all that descends from it belongs to the run.
    pub(super) shim: Option<i32>,
    pub(super) session: Option<Session>,
}

/// The session of the run's child. While the number was surely the run's (until `until`), whatever was born in it is
/// the run's.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) id: i32,
    /// Start time of the child, in ticks.
    pub(super) start: u64,
    /// Last instant at which the shim was seen alive, in ticks.
    pub(super) until: u64,
}

impl Proc {
    #[cfg(target_os = "linux")]
    pub(super) fn read(pid: i32) -> Option<Self> {
        let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The command stands in parentheses and may hold any byte, so the last one counts.
        let at = text.iter().rposition(|b| *b == b')')?;
        let rest = std::str::from_utf8(text.get(at + 2..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |i: usize| fields.get(i).and_then(|f| f.parse::<i64>().ok());
        let id = |i: usize| number(i).and_then(|n| i32::try_from(n).ok());
        let count = |i: usize| number(i).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        Some(Self {
            pid,
            parent: id(1)?,
            group: id(2)?,
            session: id(3)?,
            start: u64::try_from(number(19)?).ok()?,
            // A leader that ended while its threads go on looks like a zombie, too.
            zombie: matches!(*fields.first()?, "Z" | "X" | "x") && count(17) <= 1,
            cpu_ms: (count(11) + count(12) + count(13) + count(14)) * ms_per_tick(),
            rss: count(21) * page_size(),
        })
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn read(pid: i32) -> Option<Self> {
        let start = system::start_time(pid)?;
        Some(Self { pid, parent: 0, group: 0, session: 0, start, zombie: false, cpu_ms: 0, rss: 0 })
    }

    pub(super) fn all() -> Vec<Self> {
        let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        names.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter_map(Self::read).collect()
    }

    fn has_key(&self, key: &str) -> bool {
        let wanted = format!("{KEY_VAR}={key}");
        let Ok(environ) = std::fs::read(format!("/proc/{}/environ", self.pid)) else { return false };
        environ.split(|b| *b == 0).any(|v| v == wanted.as_bytes())
    }

    /// The words of one of the process's files that end each with a zero byte, as `environ` and `cmdline` do; none where
    /// it cannot be read.
    pub(super) fn words(&self, file: &str) -> Vec<String> {
        let bytes = std::fs::read(format!("/proc/{}/{file}", self.pid)).unwrap_or_default();
        bytes.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    /// The command line for people, cut to a few hundred bytes.
    fn command(&self) -> String {
        let mut line = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        if line.is_empty() {
            line = std::fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        }
        line.truncate(COMMAND_MAX);
        let text = String::from_utf8_lossy(&line).replace('\0', " ");
        text.trim_end().to_owned()
    }

    pub(super) fn signal(&self, signal: i32) -> bool {
        system::signal(self.pid, self.start, signal)
    }
}

fn page_size() -> u64 {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|s| u64::try_from(s).ok()).unwrap_or(4096)
}

/// Milliseconds of one tick of the process clock.
pub(super) fn ms_per_tick() -> u64 {
    let hz = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    1000 / u64::try_from(hz).ok().filter(|hz| (1..=1000).contains(hz)).unwrap_or(100)
}

impl Mark {
    /// The living processes of the run; neither this process, nor those it descends from, nor the shim.
    pub(super) fn members(&self) -> Vec<Proc> {
        let all = Proc::all();
        let by_pid: BTreeMap<i32, &Proc> = all.iter().map(|p| (p.pid, p)).collect();
        let mut spared = BTreeSet::from([0, 1]);
        spared.extend(self.shim);
        let mut me = i32::try_from(std::process::id()).unwrap_or(0);
        while me > 1 && spared.insert(me) {
            me = by_pid.get(&me).map_or(0, |p| p.parent);
        }
        let mut ours: BTreeSet<i32> = BTreeSet::new();
        ours.extend(all.iter().filter(|p| !spared.contains(&p.pid) && self.proven(p)).map(|p| p.pid));
        // A session that holds one of ours is ours as a whole: nobody can join a session that exists.
        if let Some(session) = &self.session
            && all.iter().any(|p| ours.contains(&p.pid) && p.session == session.id)
        {
            ours.extend(all.iter().filter(|p| p.session == session.id || p.group == session.id).map(|p| p.pid));
        }
        self.add_descendants(&all, &mut ours);
        all.into_iter().filter(|p| ours.contains(&p.pid) && !spared.contains(&p.pid) && !p.zombie).collect()
    }

    fn proven(&self, p: &Proc) -> bool {
        let born_inside = self.session.as_ref().is_some_and(|s| {
            let inside = p.session == s.id || p.group == s.id || p.pid == s.id;
            inside && (s.start..=s.until).contains(&p.start) && (p.pid != s.id || p.start == s.start)
        });
        born_inside || p.has_key(&self.key)
    }

    fn add_descendants(&self, all: &[Proc], ours: &mut BTreeSet<i32>) {
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for p in all {
            children.entry(p.parent).or_default().push(p.pid);
        }
        let mut open: Vec<i32> = ours.iter().copied().chain(self.shim).collect();
        while let Some(pid) = open.pop() {
            for child in children.get(&pid).into_iter().flatten() {
                if ours.insert(*child) {
                    open.push(*child);
                }
            }
        }
    }

    /// True in the run's shim.
    fn is_own(&self) -> bool {
        self.shim.is_some_and(|shim| i32::try_from(std::process::id()) == Ok(shim))
    }

    /// True for a process that is in the child's own group now.
    fn is_session_of(&self, p: &Proc) -> bool {
        let id = self.session.as_ref().map_or(0, |s| s.id);
        id > 1 && Proc::read(p.pid).is_some_and(|now| now.start == p.start && now.group == id && now.session == id)
    }

    /// Kills this process's direct children, and those that become so, for a moment or until there are none. A child's
    /// number is taken until we reap it, so no other process can be hit.
    fn cascade(&self) {
        let child = self.session.as_ref().map_or(0, |s| s.id);
        let until = Instant::now() + CASCADE;
        while Instant::now() < until {
            let children = own_children();
            for pid in &children {
                system::signal_child(*pid);
            }
            let ended = children.iter().filter(|pid| **pid == child || system::reap(**pid)).count();
            if ended == children.len() {
                return;
            }
        }
    }

    /// TERM to all, and CONT so that a stopped process can act on it.
    pub(super) fn terminate(&self) {
        for p in self.members() {
            p.signal(libc::SIGTERM);
            p.signal(libc::SIGCONT);
        }
    }
}

/// The direct children of this (single-threaded) process.
pub(super) fn own_children() -> Vec<i32> {
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    children_of(me).unwrap_or_else(|| Proc::all().into_iter().filter(|p| p.parent == me).map(|p| p.pid).collect())
}

/// The direct children of `pid`, or `None` where the kernel keeps no such list.
fn children_of(pid: i32) -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let text = std::fs::read_to_string(task.path().join("children")).ok()?;
        children.extend(text.split_ascii_whitespace().filter_map(|n| n.parse::<i32>().ok()));
    }
    Some(children)
}

/// What the tree below this process uses now: processor time (ms), memory (bytes), processes. Walks the tree alone, as
/// many shims looking through the whole machine every few seconds would be felt.
pub(super) fn usage() -> (u64, u64, u32) {
    let (mut cpu, mut rss, mut count) = (0, 0, 0);
    let mut open = own_children();
    let mut seen = BTreeSet::new();
    while let Some(pid) = open.pop() {
        if !seen.insert(pid) || seen.len() > 10_000 {
            continue;
        }
        if let Some(p) = Proc::read(pid) {
            cpu += p.cpu_ms;
            rss += p.rss;
            count += u32::from(!p.zombie);
            open.extend(children_of(pid).unwrap_or_default());
        }
    }
    (cpu, rss, count)
}

#[derive(Debug)]
enum Phase {
    Patience,
    Term,
    Kill,
}

/// Ends what belongs to a run, step by step, so that whoever drives it can go on reading output meanwhile.
#[derive(Debug)]
pub(super) struct Sweep {
    mark: Mark,
    phase: Phase,
    until: Instant,
    grace: Duration,
    /// By pid and start time.
    named: BTreeMap<(i32, u64), Survivor>,
    left: BTreeSet<(i32, u64)>,
}

impl Sweep {
    /// Waits a moment, asks (TERM) for `grace`, then kills.
    pub(super) fn gentle(mark: Mark, grace: Duration) -> Self {
        let until = Instant::now() + PATIENCE;
        Self { mark, phase: Phase::Patience, until, grace, named: BTreeMap::new(), left: BTreeSet::new() }
    }

    /// Kills at once.
    pub(super) fn kill(mark: Mark) -> Self {
        let mut sweep = Self::gentle(mark, Duration::ZERO);
        sweep.hurry();
        sweep
    }

    /// Goes over to killing.
    pub(super) fn hurry(&mut self) {
        if !matches!(self.phase, Phase::Kill) {
            self.phase = Phase::Kill;
            self.until = Instant::now() + KILL_LIMIT;
        }
    }

    /// One look and one act. `None`: nothing is left, or nothing more can be done; else when to look again.
    pub(super) fn step(&mut self) -> Option<Duration> {
        let mut members = self.mark.members();
        let late = Instant::now() >= self.until;
        let given_up = late && matches!(self.phase, Phase::Kill);
        match self.phase {
            Phase::Patience if late && !members.is_empty() => {
                self.note(&members);
                self.mark.terminate();
                self.phase = Phase::Term;
                self.until = Instant::now() + self.grace;
            }
            Phase::Term => {
                self.note(&members);
                if late {
                    self.hurry();
                }
            }
            Phase::Kill => {
                self.note(&members);
                members = self.freeze_and_kill(members);
            }
            Phase::Patience => {}
        }
        self.left = members.iter().map(|p| (p.pid, p.start)).collect();
        (!members.is_empty() && !given_up).then_some(LOOK_EVERY)
    }

    /// Ends all of it at once. In the shim everything left comes to be its direct child as its parents die, so killing
    /// those over and over reaches even what forks faster than /proc can be read. Elsewhere what is there is stopped,
    /// group by group, until a look finds nothing that still moves, so that nothing is born behind our back.
    fn freeze_and_kill(&mut self, mut members: Vec<Proc>) -> Vec<Proc> {
        if self.mark.is_own() {
            self.mark.cascade();
            members = self.mark.members();
        }
        let mut frozen = BTreeSet::new();
        for _ in 0..20 {
            let moving: Vec<_> = members.iter().filter(|p| frozen.insert((p.pid, p.start))).collect();
            if moving.is_empty() {
                break;
            }
            for p in moving {
                // A stopped process keeps its group's number taken, and a signal to a group reaches those just forking.
                if p.signal(libc::SIGSTOP) && self.mark.is_session_of(p) {
                    system::signal_group(p.group, libc::SIGSTOP);
                }
            }
            members = self.mark.members();
            self.note(&members);
        }
        for p in &members {
            p.signal(libc::SIGKILL);
        }
        members
    }

    fn note(&mut self, members: &[Proc]) {
        for p in members {
            if self.named.len() < NAMED {
                self.named.entry((p.pid, p.start)).or_insert_with(|| Survivor {
                    pid: p.pid,
                    command: p.command(),
                    ended: true,
                });
            }
        }
    }

    /// Whom it found, and which of them still live.
    pub(super) fn survivors(self) -> Vec<Survivor> {
        let left = self.left;
        self.named.into_iter().map(|(key, s)| Survivor { ended: !left.contains(&key), ..s }).collect()
    }

    /// Drives it to its end; blocks for up to the grace and some seconds.
    pub(super) fn run(mut self) -> Vec<Survivor> {
        while let Some(wait) = self.step() {
            std::thread::sleep(wait);
        }
        self.survivors()
    }
}
