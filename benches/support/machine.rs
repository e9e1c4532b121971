//! What a measurement was made on.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use super::Result;

/// One line: processor, cores, memory, kernel, and the file system of `directory`.
pub(crate) fn describe(directory: &Path) -> String {
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".into());
    let cores = available_parallelism().map_or(1, std::num::NonZero::get);
    let memory_kib: u64 = field("/proc/meminfo", "MemTotal")
        .and_then(|v| v.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.trim().split('-').next().unwrap_or_default();
    format!(
        "{cpu}, {cores} cores, {} GiB, Linux {kernel}, {}",
        memory_kib / (1 << 20),
        file_system(directory)
    )
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The type of the file system that holds `directory`: the mount with the longest prefix of its path.
fn file_system(directory: &Path) -> String {
    let path = directory
        .canonicalize()
        .unwrap_or_else(|_| directory.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (mount, kind) = (fields.next()?, fields.next()?);
            path.starts_with(mount)
                .then(|| (mount.len(), kind.to_owned()))
        })
        .max()
        .map_or_else(|| "unknown file system".into(), |(_, kind)| kind)
}

/// Where temporary data goes: as told, or beside cargo's other output, which is on a real disk (/tmp may be memory).
pub(crate) fn data_parent(told: Option<&Path>) -> PathBuf {
    told.map_or_else(
        || PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
        Path::to_owned,
    )
}

/// So much memory is touched at most.
const TOUCHED_BYTES_MAX: u64 = 2 << 30;

/// Has so much memory touched, by writing a file of that size and removing it. The memory of a virtual machine that its host
/// has yet to provide costs several times more at the first touch, and would be charged to whoever runs first.
///
/// # Errors
/// What the system says.
pub(crate) fn touch_memory(directory: &Path, bytes: u64) -> Result<()> {
    let path = directory.join("touched");
    let mut file = File::create(&path)?;
    let block = vec![1; 1 << 20];
    for _ in 0..bytes.min(TOUCHED_BYTES_MAX) >> 20 {
        file.write_all(&block)?;
    }
    std::fs::remove_file(&path)?;
    Ok(())
}
