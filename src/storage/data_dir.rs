//! The data directory around the partitions: lock, text files, topics' files, checkpoints.

use std::path::{Path, PathBuf};

use crate::fs::Fs;
use super::Error;

/// The checkpoint files recovery-point and log-start-offset: in memory, and on the disk when told.
#[derive(Debug)]
pub struct Checkpoints<F: Fs> { fs: F }

impl<F: Fs> Checkpoints<F> {
    /// The offset below which everything is durable; `None` where the file has no line for the partition (or could not be read).
    pub fn recovery_point(&self, topic: &str, partition: u32) -> Option<i64> { todo!() }
    /// Moves it in memory, never back. [`Checkpoints::write_recovery_point`] puts it on the disk.
    pub fn set_recovery_point(&self, topic: &str, partition: u32, offset: i64) { todo!() }
    /// Replaces the file where something moved since it was written. A failure leaves the old file, whose lower values stay true.
    ///
    /// # Errors
    /// What the system says.
    pub fn write_recovery_point(&self) -> Result<(), Error> { todo!() }
    /// The log start offset; 0 where the file has no line for the partition.
    pub fn log_start(&self, topic: &str, partition: u32) -> i64 { todo!() }
    /// Replaces a text file of the data directory whole: `tmp`, fsync, rename, fsync of both directories. Where there is no room, `spare` goes first.
    ///
    /// # Errors
    /// What the system says.
    pub fn replace_text(&self, path: &Path, text: &str) -> Result<(), Error> { todo!() }
}

/// The data directory, locked.
#[derive(Debug)]
pub struct DataDir<F: Fs> { root: PathBuf, fs: F }
