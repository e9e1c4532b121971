//! Topics that go: step by step, so that a loop that calls for the steps goes on between them.

#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};

use crate::fs::{File, Fs, OpenMode};
use crate::storage::Error;
use crate::storage::names::{FileKind, entry_kind};

use super::checkpoints::remove_if_there;
use super::topic_files::{DELETED, Found};
use super::{DataDir, TOPICS, parse_partition_dir, read_text};

/// A deletion that is under way: [`DataDir::delete_step`] goes on with it.
#[derive(Debug)]
pub struct Deletion {
    topic: String,
    dirs: Vec<PathBuf>,
    files: Vec<PathBuf>,
    /// Logs of more than [`BIG_BYTES`], and their lengths.
    big_files: Vec<(PathBuf, u64)>,
}

impl Deletion {
    /// Leaves one of the logs of more than [`BIG_BYTES`] to the caller, with its length; `None` once there are no more.
    pub fn take_big_file(&mut self) -> Option<(PathBuf, u64)> {
        self.big_files.pop()
    }

    /// Takes a file back that the caller could not remove: [`DataDir::delete_step`] tries again, and tells why.
    pub fn give_back(&mut self, path: PathBuf) {
        self.files.push(path);
    }

    /// Whether there are more of them.
    #[must_use]
    pub fn has_big_files(&self) -> bool {
        !self.big_files.is_empty()
    }

    /// The topic that goes.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }
}

/// Files of more than so many bytes take the file system noticeable time to remove.
pub const BIG_BYTES: u64 = 1 << 20;

/// How much of a big file one step of a deletion takes: unlinking a gigabyte at once would stop the caller's loop.
const SHORTEN_BYTES: u64 = 64 << 20;

/// Whether a file of a partition is a log, in whatever state of clean-up.
fn is_log(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".log") || name.contains(".log.")
}

impl<F: Fs> DataDir<F> {
    /// Deletes a topic whole. All its logs are closed.
    ///
    /// # Errors
    /// What the system says; once its file says so the topic is gone, and the next start finishes the rest.
    pub fn delete_topic(&self, topic: &str) -> Result<(), Error> {
        self.finish(&mut self.mark_deleted(topic)?)
    }

    /// The first part of a deletion: from here on the topic is gone, also after a crash, though its files are there. The name can be used again
    /// once [`DataDir::delete_step`] is done.
    ///
    /// # Errors
    /// What the system says.
    pub fn mark_deleted(&self, topic: &str) -> Result<Deletion, Error> {
        let path = self.topic_path(topic);
        let text = read_text(&self.fs, &path).map_err(Error::io("read", &path))?;
        // Directories beyond its partitions are strangers, and stay. A creation that came to nothing may have left no file.
        let partitions = match text.and_then(|text| Found::parse(topic, &text)) {
            Some(Found::Topic(topic)) => Some(topic.partitions),
            Some(Found::Deleted(_, partitions)) => partitions,
            None => Some(0),
        };
        let mut text = format!("{}={}\n", DELETED.0, DELETED.1);
        if let Some(partitions) = partitions {
            text = format!("{text}partitions={partitions}\n");
        }
        self.checkpoints.replace_text(&path, &text)?;
        self.deletion(topic, partitions)
    }

    /// Goes on with a deletion by one bounded step; returns whether it is done. Nothing may still send from the topic's files: big ones are
    /// shortened slice by slice.
    ///
    /// # Errors
    /// What the system says; the step can be tried again.
    pub fn delete_step(&self, deletion: &mut Deletion) -> Result<bool, Error> {
        if let Some(path) = deletion.files.last() {
            remove_if_there(&self.fs, path)?;
            deletion.files.pop();
            return Ok(false);
        }
        if let Some((path, _)) = deletion.big_files.last() {
            if !self.shorten(path)? {
                remove_if_there(&self.fs, path)?;
                deletion.big_files.pop();
            }
            return Ok(false);
        }
        for dir in &deletion.dirs {
            self.remove_partition_dir(dir)?;
        }
        self.sync_root()?;
        self.checkpoints.forget_topic(&deletion.topic);
        self.checkpoints.write_recovery_point()?;
        self.checkpoints.write_log_start()?;
        remove_if_there(&self.fs, &self.topic_path(&deletion.topic))?;
        self.sync(&self.root.join(TOPICS))?;
        Ok(true)
    }

    pub(super) fn finish(&self, deletion: &mut Deletion) -> Result<(), Error> {
        while !self.delete_step(deletion)? {}
        Ok(())
    }

    /// Everything of a topic that is marked as deleted; where its number of partitions is not known, every directory of its name.
    pub(super) fn deletion(&self, topic: &str, partitions: Option<u32>) -> Result<Deletion, Error> {
        let mut deletion = Deletion {
            topic: topic.to_owned(),
            dirs: Vec::new(),
            files: Vec::new(),
            big_files: Vec::new(),
        };
        for entry in self.list(&self.root)? {
            let name = entry.name.to_str().and_then(parse_partition_dir);
            let is_of_topic = name.is_some_and(|(of, number)| {
                of == topic && partitions.is_none_or(|partitions| number < partitions)
            });
            if !entry.is_dir || !is_of_topic {
                continue;
            }
            let dir = self.root.join(&entry.name);
            for file in self.list(&dir)? {
                let path = dir.join(&file.name);
                match entry_kind(&file) {
                    FileKind::Unknown => {}
                    // The room of an index beyond its rows takes no blocks.
                    _ if file.len > BIG_BYTES && is_log(&path) => {
                        deletion.big_files.push((path, file.len));
                    }
                    _ => deletion.files.push(path),
                }
            }
            deletion.dirs.push(dir);
        }
        Ok(deletion)
    }

    /// Takes a slice off a file that is too big to be unlinked at once; returns whether it did.
    fn shorten(&self, path: &Path) -> Result<bool, Error> {
        let file = match self.fs.open(path, OpenMode::Write) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(Error::io("open", path)(e)),
        };
        let len = file.len().map_err(Error::io("fstat", path))?;
        if len <= SHORTEN_BYTES {
            return Ok(false);
        }
        file.set_len(len - SHORTEN_BYTES)
            .map_err(Error::io("truncate", path))?;
        Ok(true)
    }

    pub(super) fn remove_partition_dir(&self, dir: &Path) -> Result<(), Error> {
        match self.fs.remove_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {
                log::warn!(
                    "{} stays: it holds files that are not the broker's",
                    dir.display()
                );
                Ok(())
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("removal", dir)(e)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
