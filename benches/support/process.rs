//! What the kernel accounts to a process.
#![forbid(unsafe_code)]

use std::fs;
use std::time::Duration;

/// Time that all threads of a process spent on a processor, in user and kernel mode, to the nanosecond where the kernel
/// tells it (`schedstat`), else in clock ticks. Zero for a process that is gone.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Duration::ZERO;
    };
    let total: Option<u64> = tasks
        .flatten()
        .map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        })
        .sum();
    total.map_or_else(|| cpu_ticks(pid), Duration::from_nanos)
}

/// utime and stime of /proc/<pid>/stat, in ticks of 10 ms.
fn cpu_ticks(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}

/// Resident memory of a process, bytes.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    text.lines()
        .find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .split_whitespace()
                .next()?
                .parse::<u64>()
                .ok()
        })
        .map_or(0, |kib| kib * 1024)
}

/// Bytes that a process asked for with read and its kin, from files and sockets.
pub(crate) fn read_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("rchar:")?.trim().parse().ok())
        .unwrap_or(0)
}
