//! Reading the clocks: the one that stands still while the machine sleeps (for limits), the one that does not (for the
//! dead-man limit and for noticing a sleep), and the wall clock (for people).

use super::HostError;
use crate::domain::{Mono, Now, Wall};
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Both clocks that the rules know.
pub fn now() -> Now {
    #[cfg(target_os = "linux")]
    let awake = ClockId::CLOCK_MONOTONIC;
    // On macOS CLOCK_MONOTONIC goes on in sleep, this one does not.
    #[cfg(not(target_os = "linux"))]
    let awake = ClockId::from_raw(libc::CLOCK_UPTIME_RAW);
    // These clocks exist on every system we run on, so a failed reading cannot happen.
    let mono = read(awake).unwrap_or_default();
    let wall = read(ClockId::CLOCK_REALTIME).unwrap_or_default();
    Now { mono: Mono(millis(mono)), wall: Wall(i64::try_from(millis(wall)).unwrap_or(i64::MAX)) }
}

/// Time since the machine's start, time asleep included.
pub fn boottime() -> Result<Duration, HostError> {
    #[cfg(target_os = "linux")]
    let clock = ClockId::CLOCK_BOOTTIME;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::CLOCK_MONOTONIC;
    read(clock)
}

/// Names this start of the machine; process numbers, start times and both clocks above mean something within it only.
#[cfg(target_os = "linux")]
pub fn boot_id() -> Result<String, HostError> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(HostError::BootId)?;
    Ok(text.trim().to_owned())
}

#[cfg(not(target_os = "linux"))]
pub fn boot_id() -> Result<String, HostError> {
    let mut buf = [0u8; 64];
    let mut len = buf.len();
    let name = c"kern.bootsessionuuid";
    // SAFETY: the buffer and its length belong together, and the name ends in NUL.
    let rc =
        unsafe { libc::sysctlbyname(name.as_ptr(), buf.as_mut_ptr().cast(), &raw mut len, std::ptr::null_mut(), 0) };
    if rc != 0 {
        return Err(HostError::BootId(std::io::Error::last_os_error()));
    }
    Ok(String::from_utf8_lossy(&buf[..len]).trim_end_matches('\0').to_owned())
}

fn read(clock: ClockId) -> Result<Duration, HostError> {
    let t = clock_gettime(clock).map_err(|e| HostError::Clock(e.into()))?;
    Ok(Duration::from(t))
}

fn millis(d: Duration) -> u64 {
    crate::domain::time::millis(d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_forward() {
        let (a, boot) = (now(), boottime().unwrap());
        let b = now();
        assert!(b.mono >= a.mono && a.wall.0 > 1_600_000_000_000);
        assert!(millis(boot) >= a.mono.0, "time asleep is never negative");
        assert!(!boot_id().unwrap().is_empty());
    }
}
