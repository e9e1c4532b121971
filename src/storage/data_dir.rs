//! The data directory around the partitions: lock, text files, topics' files, checkpoints.
//!
//! A start calls, in this order: [`DataDir::lock`] (changes nothing but that the directory and LOCK exist) and whatever else may fail
//! (the listeners; before it where [`DataDir::is_claimed`] says no), [`DataDir::begin`] (takes the clean-shutdown marker away before anything is written), [`DataDir::load_topics`]
//! (finishes what it finds half done), [`DataDir::ensure_spare`], and opens the logs. A stop calls
//! [`DataDir::write_clean_marker`] last. docs/format.md has the files.
//!
//! A text file is replaced whole or not at all, so one that cannot be read is damage from outside: a checkpoint then counts as
//! absent (its lower values are always true), a topic's file leaves its directories to be named as strangers, and only broker.properties
//! stops a start.

#![forbid(unsafe_code)]

mod checkpoints;
mod deletion;
mod topic_files;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::fs::{Fs, OpenMode, move_directory_aside, read_file};

use super::Error;

pub use checkpoints::{Checkpoints, Offsets, read_checkpoint};
pub use deletion::{BIG_BYTES, Deletion};
pub use topic_files::{CreateError, Found, Loaded, TopicFile, topics_of};

/// The only format that this program reads and writes.
pub const FORMAT: u32 = 1;

/// The largest partition number plus one: with the largest, the directory of a topic with the longest name still has a name of 255 bytes.
pub const PARTITIONS_MAX: u32 = 100_000;

/// The largest text file that is read: far above what the most partitions need.
pub(super) const TEXT_BYTES_MAX: usize = 64 << 20;

const LOCK: &str = "LOCK";
const PROPERTIES: &str = "broker.properties";
const CLEAN_SHUTDOWN: &str = "clean-shutdown";
const TOPICS: &str = "topics";

/// The data directory, locked until this is dropped.
#[derive(Debug)]
pub struct DataDir<F: Fs> {
    root: PathBuf,
    fs: F,
    identity: Option<Identity>,
    checkpoints: Rc<Checkpoints<F>>,
    _lock: F::Lock,
}

/// Who the broker is, from broker.properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `broker.id`.
    pub broker_id: i32,
    /// `cluster.id`: 16 random bytes in base64url, made once.
    pub cluster_id: String,
}

impl<F: Fs> DataDir<F> {
    /// Whether a broker has, or once had, the directory: there is a LOCK in it.
    ///
    /// # Errors
    /// What the system says.
    pub fn is_claimed(fs: &F, root: &Path) -> Result<bool, Error> {
        let path = root.join(LOCK);
        match fs.exists(&path) {
            // The root is no directory: taking the lock says so.
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => Ok(true),
            result => result.map_err(Error::io("look-up", &path)),
        }
    }

    /// Locks the directory, and reads what is known without writing. A missing directory is created (its parent exists), and so is LOCK; nothing
    /// else changes.
    ///
    /// # Errors
    /// Where another broker owns the directory, or its format is newer, in words that say what to do; and what the system says.
    pub fn lock(fs: F, root: &Path) -> Result<Self, Error> {
        match fs.create_dir(root) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::io("creation", root)(e));
            }
            Ok(()) | Err(_) => {}
        }
        let path = root.join(LOCK);
        let lock = fs.lock(&path).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => Error::io("lock", &path)(io::Error::new(
                io::ErrorKind::WouldBlock,
                format!(
                    "another broker owns {}; stop it, or start this one with another --data-dir",
                    root.display()
                ),
            )),
            _ => Error::io("lock", &path)(e),
        })?;
        let identity = read_identity(&fs, &root.join(PROPERTIES))?;
        let checkpoints = Rc::new(Checkpoints::load(fs.clone(), root));
        Ok(Self {
            root: root.to_owned(),
            fs,
            identity,
            checkpoints,
            _lock: lock,
        })
    }

    /// Begins to change the directory: removes the clean-shutdown marker and makes that durable first, then makes broker.properties and topics/
    /// where they are missing. Returns whether the marker was there.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin(&mut self) -> Result<bool, Error> {
        self.move_directories_aside()?;
        let marker = self.root.join(CLEAN_SHUTDOWN);
        let is_clean = self
            .fs
            .exists(&marker)
            .map_err(Error::io("look-up", &marker))?;
        if is_clean {
            self.fs
                .remove_file(&marker)
                .map_err(Error::io("removal", &marker))?;
            self.sync_root()?;
        }
        self.checkpoints.remove_tmp()?;
        let topics = self.root.join(TOPICS);
        match self.fs.create_dir(&topics) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            // Where the properties are made as well, their sync of the directory serves both.
            Ok(()) if self.identity.is_none() => {}
            result => {
                result.map_err(Error::io("creation", &topics))?;
                self.sync_root()?;
            }
        }
        if self.identity.is_none() {
            self.sync_parent()?;
            let identity = Identity {
                broker_id: 0,
                cluster_id: new_cluster_id()?,
            };
            let text = format!(
                "format={FORMAT}\nbroker.id={}\ncluster.id={}\n",
                identity.broker_id, identity.cluster_id
            );
            self.checkpoints
                .replace_text(&self.root.join(PROPERTIES), &text)?;
            self.identity = Some(identity);
        } else if !is_clean {
            // What a killed process renamed and did not sync is found now: what is found must stay.
            self.fs
                .sync_dir(&topics)
                .map_err(Error::io("fsync", &topics))?;
            self.sync_root()?;
        }
        Ok(is_clean)
    }

    /// A directory that has the name of a text file would be in the way of every one that is written.
    fn move_directories_aside(&self) -> Result<(), Error> {
        const NAMES: [&str; 5] = [
            CLEAN_SHUTDOWN,
            checkpoints::RECOVERY_POINT,
            checkpoints::LOG_START,
            checkpoints::SPARE,
            checkpoints::TMP,
        ];
        let read = self.fs.read_dir(&self.root);
        for entry in read.map_err(Error::io("read", &self.root))? {
            let is_ours = entry
                .name
                .to_str()
                .is_some_and(|name| NAMES.contains(&name));
            if entry.is_dir && is_ours {
                let path = self.root.join(&entry.name);
                move_directory_aside(&self.fs, &path).map_err(Error::io("rename", &path))?;
            }
        }
        Ok(())
    }

    /// The checkpoints, which the logs share.
    #[must_use]
    pub fn checkpoints(&self) -> &Rc<Checkpoints<F>> {
        &self.checkpoints
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Who the broker is; `None` before [`DataDir::begin`] in a new directory.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Makes the 64 KiB that text files can fall back on when the disk is full, where they are missing. Cheap where they are there. To be called
    /// at a start and before appends are taken.
    ///
    /// # Errors
    /// What the system says; `StorageFull` means that appends have to wait.
    pub fn ensure_spare(&self) -> Result<(), Error> {
        self.checkpoints.ensure_spare()
    }

    /// Writes the marker of an orderly stop: the last thing that a stop does.
    ///
    /// # Errors
    /// What the system says.
    pub fn write_clean_marker(&self) -> Result<(), Error> {
        let marker = self.root.join(CLEAN_SHUTDOWN);
        self.fs
            .open(&marker, OpenMode::CreateOrKeep)
            .map(drop)
            .map_err(Error::io("creation", &marker))?;
        self.sync_root()
    }

    /// Bytes that can still be written.
    ///
    /// # Errors
    /// What the system says.
    pub fn free_bytes(&self) -> Result<u64, Error> {
        self.fs
            .free_bytes(&self.root)
            .map_err(Error::io("statvfs", &self.root))
    }

    /// Asks the system to write out everything that it holds of the file system, in one go: before a start that syncs many files one after
    /// another. Promises nothing.
    pub fn write_out(&self) {
        self.fs.write_out(&self.root);
    }

    /// Makes the name of a new data directory itself durable.
    fn sync_parent(&self) -> Result<(), Error> {
        let parent = match self.root.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => return Ok(()),
        };
        match self.fs.sync_dir(parent) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                log::warn!(
                    "{} cannot be synced ({e}), so a power cut now may lose the new {}",
                    parent.display(),
                    self.root.display()
                );
                Ok(())
            }
            result => result.map_err(Error::io("fsync", parent)),
        }
    }

    fn sync_root(&self) -> Result<(), Error> {
        self.fs
            .sync_dir(&self.root)
            .map_err(Error::io("fsync", &self.root))
    }
}

/// `<topic>-<partition>`.
#[must_use]
pub fn partition_dir_name(topic: &str, partition: u32) -> String {
    format!("{topic}-{partition}")
}

/// Topic and partition of a directory's name: the last dash splits; the number is plain and canonical.
#[must_use]
pub fn parse_partition_dir(name: &str) -> Option<(&str, u32)> {
    let (topic, digits) = name.rsplit_once('-')?;
    let partition: u32 = digits.parse().ok()?;
    (is_topic_name(topic) && partition < PARTITIONS_MAX && partition.to_string() == digits)
        .then_some((topic, partition))
}

/// Whether a topic may have that name: 1 to 249 of `A-Z a-z 0-9 . _ -`, and not `.` or `..`.
#[must_use]
pub fn is_topic_name(name: &str) -> bool {
    (1..=249).contains(&name.len())
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// Reads a text file of the data directory; `None` where it is missing or empty.
///
/// # Errors
/// What the system says; `InvalidData` where it is no UTF-8 or larger than any of ours.
pub fn read_text<F: Fs>(fs: &F, path: &Path) -> io::Result<Option<String>> {
    let bytes = match read_file(fs, path, TEXT_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let text = String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// The `name=value` lines of a text; others are passed over.
fn properties(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
}

/// Why broker.properties is not to be gone by. Displayed, it says what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropertiesFault {
    /// It was written by another version.
    OtherFormat(u32),
    /// It names no format.
    NoFormat,
    /// `broker.id` is no number.
    BrokerId,
}

impl fmt::Display for PropertiesFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherFormat(format) => write!(
                f,
                "it says format={format}, and this mini-broker knows only format={FORMAT}; start the version that wrote it, or give another --data-dir"
            ),
            Self::NoFormat => write!(
                f,
                "it has no line format={FORMAT}; is this the data directory of a mini-broker? If so, restore the file, else give another --data-dir"
            ),
            Self::BrokerId => f.write_str("broker.id is no number; restore the file"),
        }
    }
}

/// Reads the text of broker.properties, for the broker and for whoever checks it.
///
/// # Errors
/// Why it is not to be gone by.
pub fn parse_properties(text: &str) -> Result<Identity, PropertiesFault> {
    let value = |name: &str| {
        properties(text)
            .find(|(n, _)| n.trim() == name)
            .map(|(_, value)| value.trim())
    };
    match value("format").map(str::parse::<u32>) {
        Some(Ok(FORMAT)) => {}
        Some(Ok(format)) => return Err(PropertiesFault::OtherFormat(format)),
        Some(Err(_)) | None => return Err(PropertiesFault::NoFormat),
    }
    Ok(Identity {
        broker_id: value("broker.id")
            .map_or(Ok(0), str::parse)
            .map_err(|_| PropertiesFault::BrokerId)?,
        cluster_id: value("cluster.id").unwrap_or_default().to_owned(),
    })
}

fn read_identity<F: Fs>(fs: &F, path: &Path) -> Result<Option<Identity>, Error> {
    let Some(text) = read_text(fs, path).map_err(Error::io("read", path))? else {
        return Ok(None);
    };
    let refused = |fault: PropertiesFault| {
        Error::io("check", path)(io::Error::new(
            io::ErrorKind::InvalidData,
            fault.to_string(),
        ))
    };
    parse_properties(&text).map(Some).map_err(refused)
}

fn new_cluster_id() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| {
        Error::io("getrandom", Path::new("cluster.id"))(io::Error::other(e.to_string()))
    })?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

#[cfg(test)]
mod tests;
