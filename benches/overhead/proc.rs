//! What the kernel says of a process: its memory, its time on a processor and how often it woke up.

use std::path::PathBuf;

/// All threads together.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Usage {
    pub rss_kb: u64,
    /// User and system time, in milliseconds.
    pub cpu_ms: u64,
    /// Voluntary context switches: each is a wait that ended.
    pub wakes: u64,
    pub threads: usize,
}

/// `None` where there is no /proc, or no such process.
pub(crate) fn usage(pid: i32) -> Option<Usage> {
    let root = PathBuf::from(format!("/proc/{pid}"));
    let mut usage =
        Usage { rss_kb: field(&std::fs::read_to_string(root.join("status")).ok()?, "VmRSS:")?, ..Usage::default() };
    let stat = std::fs::read_to_string(root.join("stat")).ok()?;
    // After the name, which may hold anything, in brackets.
    let rest: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = rest.get(11)?.parse::<u64>().ok()? + rest.get(12)?.parse::<u64>().ok()?;
    // A tick is a hundredth of a second on every Linux there is.
    usage.cpu_ms = ticks * 10;
    for task in std::fs::read_dir(root.join("task")).ok()?.flatten() {
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else { continue };
        usage.wakes += field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
        usage.threads += 1;
    }
    Some(usage)
}

fn field(status: &str, name: &str) -> Option<u64> {
    status.lines().find_map(|l| l.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}
