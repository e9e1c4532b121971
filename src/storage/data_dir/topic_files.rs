//! Topics on the disk: their files, their partitions' directories, and what a start finishes of both.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::fs::{DirEntry, Fs};
use crate::storage::Error;
use crate::storage::names::{FileKind, entry_kind};

use super::checkpoints::{LOG_START, RECOVERY_POINT, SPARE, TMP, remove_if_there};
use super::{DataDir, PARTITIONS_MAX, TOPICS, is_topic_name, parse_partition_dir};
use super::{partition_dir_name, properties, read_text};

/// What the file of a topic says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicFile {
    /// The topic's name, which is the file's.
    pub name: String,
    /// How many partitions it has, 1 to [`PARTITIONS_MAX`].
    pub partitions: u32,
    /// Its config overrides, name and value as they stand there.
    pub configs: Vec<(String, String)>,
}

/// What a start found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The topics, by name; each partition's directory exists.
    pub topics: Vec<TopicFile>,
    /// Partitions that had been written to and whose directory was gone: they start anew after the offsets they had.
    pub lost: Vec<(String, u32)>,
    /// Directories and files in the data directory that belong to no topic, left alone.
    pub strangers: Vec<PathBuf>,
}

/// Why a topic was not created.
#[derive(Debug)]
pub enum CreateError {
    /// A directory of that name is there, belongs to no topic, and holds records.
    Stranger(PathBuf),
    /// Its file is there though the topic is not: the file is damaged.
    Damaged(PathBuf),
    /// Refused before anything was changed.
    Refused(Error),
    /// The system refused something half-way; what had been made was taken back as far as possible.
    Storage(Error),
}

/// The line that says that a topic is being deleted.
pub(super) const DELETED: (&str, &str) = ("deleted", "true");

impl<F: Fs> DataDir<F> {
    /// The directory of a partition.
    #[must_use]
    pub fn partition_dir(&self, topic: &str, partition: u32) -> PathBuf {
        self.root.join(partition_dir_name(topic, partition))
    }

    /// Reads all topics and finishes what an interrupted CREATE or DELETE left: makes missing directories (as damage, which [`Loaded::lost`]
    /// names, where the recovery point has a line), removes those of deleted topics. What belongs to no topic is named in the log.
    ///
    /// # Errors
    /// What the system says.
    pub fn load_topics(&self) -> Result<Loaded, Error> {
        let mut loaded = Loaded::default();
        let mut topics = BTreeMap::new();
        let dir = self.root.join(TOPICS);
        for entry in self.list(&dir)? {
            match self.read_topic(&dir, &entry)? {
                Some(Found::Topic(topic)) => {
                    topics.insert(topic.name.clone(), topic);
                }
                Some(Found::Deleted(name, partitions)) => {
                    self.finish(&mut self.deletion(&name, partitions)?)?;
                }
                None => loaded.strangers.push(dir.join(&entry.name)),
            }
        }
        if !topics.is_empty() && self.checkpoints.has_no_recovery_point() {
            log::info!(
                "no recovery point is known: every log in {} is looked at from its start",
                self.root.display()
            );
        }
        self.name_strangers(&topics, &mut loaded)?;
        for topic in topics.values() {
            self.make_missing_dirs(topic, &mut loaded)?;
        }
        loaded.topics = topics.into_values().collect();
        Ok(loaded)
    }

    /// Creates a topic: its file, then its directories, durable when this returns.
    ///
    /// # Errors
    /// As [`CreateError`] says. The caller knows that there is no such topic.
    pub fn create_topic(&self, topic: &TopicFile) -> Result<(), CreateError> {
        let path = self.topic_path(&topic.name);
        match self.fs.exists(&path) {
            Ok(false) => {}
            Ok(true) => return Err(CreateError::Damaged(path)),
            Err(e) => return Err(CreateError::Refused(Error::io("look-up", &path)(e))),
        }
        let mut is_new = Vec::new();
        for partition in 0..topic.partitions {
            is_new.push(self.clear_stranger(&self.partition_dir(&topic.name, partition))?);
        }
        let made = self.write_new_topic(topic, &is_new);
        if made.is_err() {
            self.undo_create(topic, &is_new);
        }
        made.map_err(CreateError::Storage)
    }

    /// Gives a topic more partitions, from number `from` on, as its new file says: the file, then the directories, durable when this returns.
    ///
    /// # Errors
    /// As [`CreateError`] says; the topic's file is then the old or the new one, and [`DataDir::write_topic`] of the old one takes it back.
    pub fn add_partitions(&self, topic: &TopicFile, from: u32) -> Result<(), CreateError> {
        let mut is_new = vec![false; usize::try_from(from).unwrap_or(usize::MAX)];
        for partition in from..topic.partitions {
            is_new.push(self.clear_stranger(&self.partition_dir(&topic.name, partition))?);
        }
        // Lines of partitions that once had these numbers must not speak for these.
        self.checkpoints.forget_partitions(&topic.name, from);
        self.checkpoints
            .write_recovery_point()
            .and_then(|()| self.checkpoints.write_log_start())
            .and_then(|()| self.write_topic(topic))
            .and_then(|()| self.make_dirs(&self.new_dirs(topic, &is_new)))
            // A directory that was there already may not be durable either.
            .and_then(|()| self.sync_root())
            .map_err(CreateError::Storage)
    }

    /// Replaces a topic's file: after its configs or its number of partitions changed.
    ///
    /// # Errors
    /// What the system says; the file is then the old or the new one.
    pub fn write_topic(&self, topic: &TopicFile) -> Result<(), Error> {
        self.checkpoints
            .replace_text(&self.topic_path(&topic.name), &topic.text())
    }

    fn read_topic(&self, dir: &Path, entry: &DirEntry) -> Result<Option<Found>, Error> {
        let path = dir.join(&entry.name);
        let Some(name) = entry
            .name
            .to_str()
            .filter(|name| is_topic_name(name) && !entry.is_dir)
        else {
            log::warn!("{} is no topic and is left alone", path.display());
            return Ok(None);
        };
        let found = match read_text(&self.fs, &path) {
            Ok(text) => text.and_then(|text| Found::parse(name, &text)),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => None,
            Err(e) => return Err(Error::io("read", &path)(e)),
        };
        if found.is_none() {
            log::error!(
                "{} is damaged: it has no line partitions=<n>; the topic is not served until that line is back",
                path.display()
            );
        }
        Ok(found)
    }

    fn name_strangers(
        &self,
        topics: &BTreeMap<String, TopicFile>,
        loaded: &mut Loaded,
    ) -> Result<(), Error> {
        for entry in self.list(&self.root)? {
            let name = entry.name.to_str();
            let is_known = match name.and_then(parse_partition_dir) {
                Some((topic, partition)) if entry.is_dir => topics
                    .get(topic)
                    .is_some_and(|topic| partition < topic.partitions),
                _ => name.is_some_and(|name| OURS.contains(&name)),
            };
            if !is_known {
                let path = self.root.join(&entry.name);
                log::warn!("{} belongs to no topic and is left alone", path.display());
                loaded.strangers.push(path);
            }
        }
        Ok(())
    }

    fn make_missing_dirs(&self, topic: &TopicFile, loaded: &mut Loaded) -> Result<(), Error> {
        let mut made = Vec::new();
        for partition in 0..topic.partitions {
            let dir = self.partition_dir(&topic.name, partition);
            if self.fs.exists(&dir).map_err(Error::io("look-up", &dir))? {
                continue;
            }
            if let Some(point) = self.checkpoints.recovery_point(&topic.name, partition) {
                log::error!(
                    "topic={} partition={partition}: {} is missing though it held records below offset {point}; they are lost, and the partition goes on there",
                    topic.name,
                    dir.display()
                );
                loaded.lost.push((topic.name.clone(), partition));
            }
            made.push(dir);
        }
        self.make_dirs(&made)
    }

    /// Makes directories and makes them durable.
    fn make_dirs(&self, dirs: &[PathBuf]) -> Result<(), Error> {
        for dir in dirs {
            self.fs
                .create_dir(dir)
                .map_err(Error::io("creation", dir))?;
            self.sync(dir)?;
        }
        if dirs.is_empty() {
            Ok(())
        } else {
            self.sync_root()
        }
    }

    fn write_new_topic(&self, topic: &TopicFile, is_new: &[bool]) -> Result<(), Error> {
        // Lines of a topic that once had the name must not speak for this one.
        self.checkpoints.forget_topic(&topic.name);
        self.checkpoints.write_recovery_point()?;
        self.checkpoints.write_log_start()?;
        self.write_topic(topic)?;
        self.make_dirs(&self.new_dirs(topic, is_new))?;
        // A directory that was there already may not be durable either.
        if is_new.contains(&false) {
            self.sync_root()
        } else {
            Ok(())
        }
    }

    fn new_dirs(&self, topic: &TopicFile, is_new: &[bool]) -> Vec<PathBuf> {
        let numbered = (0..topic.partitions)
            .zip(is_new)
            .filter(|(_, is_new)| **is_new);
        numbered
            .map(|(partition, _)| self.partition_dir(&topic.name, partition))
            .collect()
    }

    /// Takes back what a failed creation made; what cannot be taken back, the next start finishes.
    fn undo_create(&self, topic: &TopicFile, is_new: &[bool]) {
        let undo = || -> Result<(), Error> {
            remove_if_there(&self.fs, &self.topic_path(&topic.name))?;
            self.sync(&self.root.join(TOPICS))?;
            for dir in self.new_dirs(topic, is_new) {
                self.remove_partition_dir(&dir)?;
            }
            self.sync_root()
        };
        if let Err(e) = undo() {
            log::error!(
                "topic={}: its creation failed and could not be taken back: {e}",
                topic.name
            );
        }
    }

    /// Makes sure that no records lie where a partition is to be: removes empty segments. Returns whether there is no such directory.
    fn clear_stranger(&self, dir: &Path) -> Result<bool, CreateError> {
        let refused = |operation| move |e| CreateError::Refused(Error::io(operation, dir)(e));
        if !self.fs.exists(dir).map_err(refused("look-up"))? {
            return Ok(true);
        }
        let files = self.fs.read_dir(dir).map_err(refused("listing"))?;
        let holds_records = |file: &DirEntry| {
            file.len > 0 && matches!(entry_kind(file), FileKind::Log(_) | FileKind::Leftover)
        };
        if files.iter().any(holds_records) {
            return Err(CreateError::Stranger(dir.to_owned()));
        }
        let is_kept = |file: &DirEntry| {
            matches!(
                entry_kind(file),
                FileKind::Torn(_) | FileKind::Damaged(_) | FileKind::Unknown
            )
        };
        for file in files.iter().filter(|file| !is_kept(file)) {
            remove_if_there(&self.fs, &dir.join(&file.name)).map_err(CreateError::Refused)?;
        }
        self.fs.sync_dir(dir).map_err(refused("fsync"))?;
        Ok(false)
    }

    pub(super) fn topic_path(&self, topic: &str) -> PathBuf {
        self.root.join(TOPICS).join(topic)
    }

    pub(super) fn list(&self, dir: &Path) -> Result<Vec<DirEntry>, Error> {
        let mut entries = self.fs.read_dir(dir).map_err(Error::io("listing", dir))?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    pub(super) fn sync(&self, dir: &Path) -> Result<(), Error> {
        self.fs.sync_dir(dir).map_err(Error::io("fsync", dir))
    }
}

/// Names in the data directory that are the broker's own.
const OURS: [&str; 8] = [
    super::LOCK,
    super::PROPERTIES,
    super::CLEAN_SHUTDOWN,
    super::TOPICS,
    RECOVERY_POINT,
    LOG_START,
    SPARE,
    TMP,
];

/// What the text of a topic's file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// There is such a topic.
    Topic(TopicFile),
    /// It is being deleted: its name, and how many partitions it had.
    Deleted(String, Option<u32>),
}

/// The topics of a data directory, by name, without its lock and without changing anything: what is deleted or makes no sense is left
/// out.
///
/// # Errors
/// What the system says.
pub fn topics_of<F: Fs>(fs: &F, root: &Path) -> Result<Vec<TopicFile>, Error> {
    let dir = root.join(TOPICS);
    let mut topics = Vec::new();
    for entry in fs.read_dir(&dir).map_err(Error::io("read", &dir))? {
        let name = entry.name.to_string_lossy().into_owned();
        if entry.is_dir || !is_topic_name(&name) {
            continue;
        }
        let path = dir.join(&name);
        match read_text(fs, &path) {
            Ok(Some(text)) => {
                if let Some(Found::Topic(topic)) = Found::parse(&name, &text) {
                    topics.push(topic);
                }
            }
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
            Err(error) => return Err(Error::io("read", &path)(error)),
        }
    }
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(topics)
}

impl Found {
    /// Reads a topic's file, for the broker and for whoever checks it; `None` where it is damaged.
    #[must_use]
    pub fn parse(name: &str, text: &str) -> Option<Self> {
        let mut partitions = None;
        let mut configs = Vec::new();
        for (config, value) in properties(text) {
            if config == "partitions" {
                partitions = value.parse().ok();
            } else {
                configs.push((config.to_owned(), value.to_owned()));
            }
        }
        if properties(text).any(|line| line == DELETED) {
            return Some(Self::Deleted(name.to_owned(), partitions));
        }
        let partitions = partitions.filter(|n| (1..=PARTITIONS_MAX).contains(n))?;
        Some(Self::Topic(TopicFile {
            name: name.to_owned(),
            partitions,
            configs,
        }))
    }
}

impl TopicFile {
    fn text(&self) -> String {
        let mut text = format!("partitions={}\n", self.partitions);
        for (name, value) in &self.configs {
            text.extend([name, "=", value, "\n"]);
        }
        text
    }
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stranger(dir) => write!(
                f,
                "{} holds records of no topic that is known; move it away, or choose another name",
                dir.display()
            ),
            Self::Damaged(file) => write!(
                f,
                "{} is damaged, so its topic is not served: put its line partitions=<n> back and restart, or move the file away",
                file.display()
            ),
            Self::Refused(e) | Self::Storage(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for CreateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Stranger(_) | Self::Damaged(_) => None,
            Self::Refused(e) | Self::Storage(e) => Some(e),
        }
    }
}
