//! The few system calls that have no safe wrapper: start times, signals to a process that is surely the one
//! meant, and what a process must shed before it becomes a shim or a child. All `unsafe` of this module is here.

use crate::domain::time::millis;
use crate::host::clock;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

/// Milliseconds since the machine's start, time asleep included.
pub(super) fn boottime_ms() -> u64 {
    clock::boottime().map_or(0, millis)
}

/// Names this start of the machine.
pub(super) fn boot_id() -> io::Result<String> {
    clock::boot_id().map_err(io::Error::other)
}

/// When `pid` started, in an opaque unit: with the boot id it tells a process from a later one of the same number.
/// `None` when there is none. Unit on Linux: clock ticks since the machine's start.
#[cfg(target_os = "linux")]
pub(super) fn start_time(pid: i32) -> Option<u64> {
    super::tree::Proc::read(pid).map(|p| p.start)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn start_time(pid: i32) -> Option<u64> {
    let mut info: libc::proc_bsdinfo = unsafe { std::mem::zeroed() };
    let size = i32::try_from(size_of::<libc::proc_bsdinfo>()).unwrap_or(0);
    // SAFETY: the buffer is as long as we say.
    let got = unsafe { libc::proc_pidinfo(pid, libc::PROC_PIDTBSDINFO, 0, (&raw mut info).cast(), size) };
    (got == size).then(|| info.pbi_start_tvsec * 1_000_000 + info.pbi_start_tvusec)
}

/// A handle on exactly the process `pid` that started at `start`; `None` when that one is gone. It becomes readable when
/// the process ends.
#[cfg(target_os = "linux")]
pub(super) fn pidfd(pid: i32, start: u64) -> Option<OwnedFd> {
    if pid <= 0 {
        return None;
    }
    // SAFETY: pidfd_open takes no pointers; what it gives is a new descriptor (close-on-exec) that nobody else owns.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // The number is held by the handle from here on, so what we read now is about the process it holds.
    (start_time(pid) == Some(start)).then_some(fd)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn pidfd(_pid: i32, _start: u64) -> Option<OwnedFd> {
    None
}

/// Waits for a handle to become readable on the current runtime.
pub(super) fn watch(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by the value that watches it, so it stays open and itself until both go.
    unsafe { tokio::io::unix::AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) }
        .map_err(io::Error::from)
}

/// Sends `signal` to the process `pid` that started at `start`, never to another one that got its number since.
pub(super) fn signal(pid: i32, start: u64, signal: i32) -> bool {
    #[cfg(target_os = "linux")]
    {
        let Some(fd) = pidfd(pid, start) else { return false };
        // SAFETY: no siginfo is passed.
        let rc = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0)
        };
        rc == 0
    }
    #[cfg(not(target_os = "linux"))]
    {
        // SAFETY: kill takes no pointers.
        pid > 1 && start_time(pid) == Some(start) && unsafe { libc::kill(pid, signal) } == 0
    }
}

/// How our child `pid` ended, without reaping it, so that its number stays taken. `None` while it runs.
pub(super) fn peek_end(pid: i32) -> Option<std::process::ExitStatus> {
    use std::os::unix::process::ExitStatusExt as _;
    let id = u32::try_from(pid).ok()?;
    // SAFETY: an all-zero siginfo is valid, and waitid fills it in.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let rc = unsafe { libc::waitid(libc::P_PID, id, &raw mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) };
    // SAFETY: waitid succeeded, so the fields of a SIGCHLD are the valid ones.
    let (who, what) = unsafe { (info.si_pid(), info.si_status()) };
    if rc != 0 || who != pid {
        return None;
    }
    let raw = match info.si_code {
        libc::CLD_EXITED => (what & 0xff) << 8,
        libc::CLD_DUMPED => what | 0x80,
        _ => what,
    };
    Some(std::process::ExitStatus::from_raw(raw))
}

/// Reaps the child `pid` if it has ended; true when there is no such child any more.
pub(super) fn reap(pid: i32) -> bool {
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    !matches!(waitpid(nix::unistd::Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive))
}

/// Kills a direct child that was not reaped yet.
pub(super) fn signal_child(pid: i32) {
    if pid > 1 {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
    }
}

/// Signals a process group, never our own.
pub(super) fn signal_group(group: i32, signal: i32) {
    if group > 1 && group != nix::unistd::getpgrp().as_raw() {
        // SAFETY: killpg takes no pointers.
        unsafe { libc::killpg(group, signal) };
    }
}

/// Processor time of all children reaped so far, in milliseconds.
pub(super) fn reaped_cpu_ms() -> u64 {
    use nix::sys::time::TimeValLike as _;
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN);
    usage.ok().and_then(|u| (u.user_time() + u.system_time()).num_milliseconds().try_into().ok()).unwrap_or(0)
}

/// Makes this process the reaper of all that its descendants orphan.
pub(super) fn become_subreaper() {
    #[cfg(target_os = "linux")]
    // SAFETY: this prctl takes plain numbers.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    }
}

/// Asks the kernel to kill this process when the thread that made it ends. It stays over exec (but not of set-user-id
/// programs) and is not handed on to children.
pub(super) fn die_with_parent() {
    #[cfg(target_os = "linux")]
    // SAFETY: this prctl takes plain numbers.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
    }
}

/// Closes (or, for the second stage, marks close-on-exec) every descriptor from 3 up: whoever started us may have leaked
/// some, and a lock or a socket held by an agent outlives its owner.
pub(super) fn shed_descriptors(only_mark: bool) {
    #[cfg(target_os = "linux")]
    {
        let flags = if only_mark { libc::CLOSE_RANGE_CLOEXEC } else { 0 };
        // SAFETY: called before anything in this process owns a descriptor above 2, or only marking them.
        if unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, flags) } == 0 {
            return;
        }
    }
    for fd in open_descriptors() {
        // SAFETY: as above; closing a number that is no descriptor fails harmlessly.
        unsafe {
            if only_mark {
                libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
            } else {
                libc::close(fd);
            }
        }
    }
}

fn open_descriptors() -> Vec<RawFd> {
    let names = std::fs::read_dir("/dev/fd").into_iter().flatten().flatten();
    let fds: Vec<RawFd> = names.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(|fd| *fd > 2).collect();
    fds
}

/// Lets children started from now on inherit `fd`.
pub(super) fn keep_over_exec(fd: &OwnedFd) -> io::Result<()> {
    nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))?;
    Ok(())
}

/// Takes over a descriptor that our parent passed by number.
pub(super) fn adopt_descriptor(fd: RawFd) -> Option<File> {
    // SAFETY: the number came from our parent, which opened it for us; it is checked to be open, and taken once.
    (fd > 2 && unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0).then(|| unsafe { File::from_raw_fd(fd) })
}

/// Default action for every signal, and none blocked: an ignored SIGPIPE or a blocked SIGTERM would be handed on.
pub(super) fn default_signals() {
    for signal in 1..=64 {
        // SAFETY: SIG_DFL is no handler of ours; numbers that may not be changed fail harmlessly.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        // The C library keeps two signals for itself and refuses to touch them, but hands on what it was given.
        #[cfg(target_os = "linux")]
        {
            let action = [0u64; 8];
            // SAFETY: an all-zero record, longer than the kernel's, is the default action.
            unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), std::ptr::null::<u64>(), 8usize) };
        }
    }
    let _ = nix::sys::signal::sigprocmask(
        nix::sys::signal::SigmaskHow::SIG_SETMASK,
        Some(&nix::sys::signal::SigSet::empty()),
        None,
    );
}

/// Ignores what must not end a shim, until its handlers are in place.
pub(super) fn ignore(signals: &[i32]) {
    for signal in signals {
        // SAFETY: SIG_IGN is no handler of ours.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

/// Priority and limits as in a fresh login, where we may: no lowered priority, no core files, and the first to go when
/// memory runs out.
pub(super) fn default_limits() {
    // SAFETY: plain numbers. Raising the priority back may be refused, which is fine.
    unsafe {
        if libc::getpriority(libc::PRIO_PROCESS, 0) > 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        }
    }
    if let Ok((_, hard)) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_CORE) {
        let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, hard);
    }
    #[cfg(target_os = "linux")]
    {
        let path = "/proc/self/oom_score_adj";
        let now: i32 = std::fs::read_to_string(path).ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0);
        let _ = std::fs::write(path, (now.max(0) + 300).min(1000).to_string());
    }
}
