//! How long a start takes: of an empty directory, and of one with many partitions after a clean stop and after a kill.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::options::Verb;
use super::requests::{Block, Shape};
use super::{TOPIC, pipeline};
use crate::support::broker::{Broker, Client};
use crate::support::cleanup::TempDir;
use crate::support::{Result, process};

/// Bytes of a segment: small, so that many of them can be built.
const SEGMENT_BYTES: usize = 16 * 1024;
/// Bytes of a value.
const VALUE_BYTES: usize = 1_000;
/// Records that fill a segment: each has 36 bytes around its value.
const RECORDS_PER_SEGMENT: usize = SEGMENT_BYTES / (VALUE_BYTES + 36);

/// A start on an empty directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmptyStart {
    /// From the start of the process to its ready line.
    pub(crate) ready_after: Duration,
    /// Resident memory of the idle broker, bytes.
    pub(crate) resident_bytes: u64,
}

/// Measures a start on an empty directory.
///
/// # Errors
/// Where the broker does not come up.
pub(crate) fn empty(parent: Option<&Path>) -> Result<EmptyStart> {
    let directory = TempDir::new(parent)?;
    let broker = Broker::start(&directory.path().join("data"), "always", &[])?;
    let resident_bytes = process::resident_bytes(broker.pid());
    Ok(EmptyStart {
        ready_after: broker.ready_after,
        resident_bytes,
    })
}

/// A data directory with many partitions.
#[derive(Debug)]
pub(crate) struct ManyPartitions {
    directory: TempDir,
    partitions: u32,
    /// Bytes of all its .log files.
    pub(crate) log_bytes: u64,
}

/// A restart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Restart {
    /// From the start of the process to its ready line.
    pub(crate) ready_after: Duration,
    /// Bytes that the start read, as the kernel counts them (mappings are not in it).
    pub(crate) read_bytes: u64,
}

impl ManyPartitions {
    /// Writes so many partitions of so many segments, and stops the broker in order. They are written in memory, where there
    /// is such a directory, and copied to the disk: ten thousand rolls with their syncs are not what is measured.
    ///
    /// # Errors
    /// Where the broker does not do it.
    pub(crate) fn build(parent: Option<&Path>, partitions: u32, segments: u32) -> Result<Self> {
        let directory = TempDir::new(parent)?;
        let memory = Path::new("/dev/shm");
        let built = if memory.is_dir() {
            TempDir::new(Some(memory))?
        } else {
            TempDir::new(parent)?
        };
        let data = built.path().join("data");
        let broker = Broker::start(&data, "never", &[])?;
        let mut client = Client::connect(broker.addr)?;
        client.call(format!(
            "CREATE {TOPIC} partitions={partitions} segment.bytes={SEGMENT_BYTES}"
        ))?;
        let shape = Shape {
            verb: Verb::Produce,
            size: VALUE_BYTES,
            batch: 1,
            partitions,
        };
        let per_partition = u64::try_from(RECORDS_PER_SEGMENT)? * u64::from(segments);
        pipeline::run(&pipeline::Plan {
            name: "many partitions",
            addr: broker.addr,
            block: Rc::new(Block::new(&shape, 1)),
            requests: per_partition * u64::from(partitions),
            records_each: 1,
            connections: 1,
            depth: 10_000,
            rate: None,
        })?;
        broker.terminate()?;
        let log_bytes = copy(&data, &directory.path().join("data"))?;
        Ok(Self {
            directory,
            partitions,
            log_bytes,
        })
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Starts on what an orderly stop left, and stops in order again.
    ///
    /// # Errors
    /// Where the broker does not come up.
    pub(crate) fn after_clean_stop(&self) -> Result<Restart> {
        let broker = Broker::start(&self.data(), "never", &[])?;
        let restart = restarted(&broker);
        broker.terminate()?;
        Ok(restart)
    }

    /// Writes a record to every partition, kills the broker and starts it again.
    ///
    /// # Errors
    /// Where the broker does not come up.
    pub(crate) fn after_kill(&self) -> Result<Restart> {
        let broker = Broker::start(&self.data(), "never", &[])?;
        let mut client = Client::connect(broker.addr)?;
        for partition in 0..self.partitions {
            client.call(format!("PUT {TOPIC}/{partition} one more"))?;
        }
        broker.kill();
        let broker = Broker::start(&self.data(), "never", &[])?;
        let restart = restarted(&broker);
        broker.terminate()?;
        Ok(restart)
    }
}

fn restarted(broker: &Broker) -> Restart {
    Restart {
        ready_after: broker.ready_after,
        read_bytes: process::read_bytes(broker.pid()),
    }
}

/// Copies a directory; returns the bytes of the .log files in it.
fn copy(from: &Path, to: &Path) -> Result<u64> {
    std::fs::create_dir_all(to)?;
    let mut log_bytes = 0;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            log_bytes += copy(&entry.path(), &target)?;
        } else {
            let bytes = std::fs::copy(entry.path(), &target)?;
            if target.extension().is_some_and(|e| e == "log") {
                log_bytes += bytes;
            }
        }
    }
    Ok(log_bytes)
}
