//! The data directory around the partitions: lock, text files, topics' files, checkpoints.

use std::path::{Path, PathBuf};
use std::rc::Rc;

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

/// A topic as its file in `topics/` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicFile {
    /// The topic's name.
    pub name: String,
    /// Number of partitions.
    pub partitions: u32,
    /// Config overrides, as they stand: name and value.
    pub configs: Vec<(String, String)>,
}

/// What a start found in the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Whether the broker was stopped in order (clean-shutdown was there; it is gone from the disk by now).
    pub is_clean: bool,
    /// The topics, each with all its partition directories; what was half created or half deleted is finished. Sorted by name.
    pub topics: Vec<TopicFile>,
}

/// The data directory, locked.
#[derive(Debug)]
pub struct DataDir<F: Fs> { root: PathBuf, fs: F }

impl<F: Fs> DataDir<F> {
    /// Creates the directory where it is missing and takes its lock. Changes nothing else.
    ///
    /// # Errors
    /// One line for the operator that says what to do: another broker owns it, no permission, no directory.
    pub fn lock(fs: F, root: &Path) -> Result<Self, String> { todo!() }
    /// Everything of a start but the logs: broker.properties, clean-shutdown (removed and synced), spare, topics' files, checkpoints.
    ///
    /// # Errors
    /// One line for the operator: a newer format, a file that cannot be read, a full disk.
    pub fn start(&mut self) -> Result<Found, String> { todo!() }
    /// The checkpoints, as [`DataDir::start`] read them.
    pub fn checkpoints(&self) -> Rc<Checkpoints<F>> { todo!() }
    /// A directory `<topic>-<n>` that belongs to no topic and holds a .log that is not empty, in the way of CREATE.
    ///
    /// # Errors
    /// What the system says.
    pub fn stranger(&self, topic: &str) -> Result<Option<PathBuf>, Error> { todo!() }
    /// Writes a topic's file, then its directories, each synced: all is durable when this returns.
    ///
    /// # Errors
    /// What the system says. What was made is taken back as far as that goes; what stays does not hinder another try.
    pub fn create_topic(&self, topic: &TopicFile) -> Result<(), Error> { todo!() }
    /// The first step of a deletion, durable when this returns: the topic's file says deleted=true.
    ///
    /// # Errors
    /// What the system says; the topic is then still there.
    pub fn mark_deleted(&self, topic: &TopicFile) -> Result<(), Error> { todo!() }
    /// The rest of a deletion: directories with all their files, checkpoint lines, the topic's file.
    ///
    /// # Errors
    /// What the system says; a start finishes it, and so does another call.
    pub fn remove_deleted(&self, topic: &TopicFile) -> Result<(), Error> { todo!() }
    /// Writes clean-shutdown: the last step of an orderly stop.
    ///
    /// # Errors
    /// What the system says.
    pub fn mark_clean(&self) -> Result<(), Error> { todo!() }
}
