//! A whole data directory, partition by partition, without its lock.
//!
//! The text files are read before the logs: they then promise no more than the logs hold, also while a broker runs. What goes away
//! in between (a topic that is deleted, a segment that expires) is no damage.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use crate::fs::Fs;
use crate::storage::data_dir::{
    FORMAT, Found, Offsets, PropertiesFault, is_topic_name, parse_partition_dir, parse_properties,
    partition_dir_name, read_checkpoint, read_text,
};
use crate::storage::names::{FileKind, file_kind, segment_file};

use super::Error;
use super::rows::RowFault;
use super::segment::{Damage, Event, Segment, Summary, bases};

/// Something that is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The topic; `None` where it concerns them all.
    pub topic: Option<String>,
    /// The partition; `None` where it concerns the topic.
    pub partition: Option<u32>,
    /// The file's (or directory's) name within the partition's directory, or within the data directory.
    pub file: String,
    /// What is wrong.
    pub what: What,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A damaged entry or stretch of a log.
    Damage(Damage),
    /// Records that a log once held are not in it.
    Lost {
        /// The first offset lost.
        offset: i64,
        /// Where the log ends, bytes.
        position: u64,
        /// Where reading goes on.
        next_offset: i64,
    },
    /// A row of an index, or the index as a whole. A start rebuilds it from the log.
    Row(RowFault),
    /// A file or directory that is missing or cannot be understood; a sentence.
    File(String),
}

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Partitions.
    pub partitions: u64,
    /// Segments.
    pub segments: u64,
    /// Undamaged records.
    pub records: u64,
    /// Bytes of logs.
    pub bytes: u64,
    /// Findings.
    pub damaged: u64,
}

/// A topic's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Topic {
    partitions: u32,
    is_compacted: bool,
    is_deleted: bool,
}

/// What became of reading one.
enum TopicText {
    /// It is not there, or not any more.
    Gone,
    Found(Topic),
    Damaged,
}

/// A check in progress.
struct Check<'c, F: Fs> {
    fs: &'c F,
    root: &'c Path,
    pause: &'c dyn Fn(),
    sink: &'c mut dyn FnMut(&Finding) -> Result<(), Error>,
    totals: Totals,
    recovery_points: Offsets,
    topics: BTreeMap<String, Topic>,
}

/// Checks everything in the data directory `root`, and tells `sink` what is damaged. `pause` waits a moment, for a broker to finish what it
/// is writing.
///
/// # Errors
/// Where it is no data directory, or of a newer format, or cannot be read; or the sink says so.
pub fn check<F: Fs>(
    fs: &F,
    root: &Path,
    pause: &dyn Fn(),
    sink: &mut dyn FnMut(&Finding) -> Result<(), Error>,
) -> Result<Totals, Error> {
    let mut check = Check {
        fs,
        root,
        pause,
        sink,
        totals: Totals::default(),
        recovery_points: Offsets::new(),
        topics: BTreeMap::new(),
    };
    check.properties()?;
    check.recovery_points()?;
    check.topics()?;
    check.partitions()?;
    Ok(check.totals)
}

impl<F: Fs> Check<'_, F> {
    fn found(
        &mut self,
        topic: Option<(&str, Option<u32>)>,
        file: &str,
        what: What,
    ) -> Result<(), Error> {
        self.totals.damaged += 1;
        (self.sink)(&Finding {
            topic: topic.map(|(topic, _)| topic.to_owned()),
            partition: topic.and_then(|(_, partition)| partition),
            file: file.to_owned(),
            what,
        })
    }

    fn properties(&mut self) -> Result<(), Error> {
        const NAME: &str = "broker.properties";
        let entries = self
            .fs
            .read_dir(self.root)
            .map_err(Error::read(self.root))?;
        let has = |name: &str| entries.iter().any(|entry| entry.name == name);
        if !has(NAME) && !has("topics") {
            return Err(Error::Unfit(format!(
                "{} is no data directory: there is no broker.properties in it; \
                 name the directory that the broker was started with (--data-dir)",
                self.root.display()
            )));
        }
        let path = self.root.join(NAME);
        let what = match read_text(self.fs, &path) {
            Ok(Some(text)) => match parse_properties(&text) {
                Ok(_) => return Ok(()),
                Err(PropertiesFault::OtherFormat(format)) if format > FORMAT => {
                    return Err(Error::Unfit(format!(
                        "{} has format {format}, this program knows format {FORMAT}: use the newer one that made it",
                        self.root.display()
                    )));
                }
                Err(fault) => fault.to_string(),
            },
            Ok(None) => "it is missing or empty; the next start makes it anew".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                format!("{error}; restore it, or no broker starts")
            }
            Err(error) => return Err(Error::read(&path)(error)),
        };
        self.found(None, NAME, What::File(what))
    }

    fn recovery_points(&mut self) -> Result<(), Error> {
        for name in ["recovery-point", "log-start-offset"] {
            match read_checkpoint(self.fs, &self.root.join(name)) {
                Ok(offsets) if name == "recovery-point" => self.recovery_points = offsets,
                Ok(_) => {}
                Err(words) => {
                    let what = format!("{words}; all of it counts as 0");
                    self.found(None, name, What::File(what))?;
                }
            }
        }
        Ok(())
    }

    fn topics(&mut self) -> Result<(), Error> {
        let dir = self.root.join("topics");
        let entries = match self.fs.read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            entries => entries.map_err(Error::read(&dir))?,
        };
        let mut names: Vec<String> = entries
            .into_iter()
            .filter(|entry| !entry.is_dir)
            .filter_map(|entry| entry.name.into_string().ok())
            .filter(|name| is_topic_name(name))
            .collect();
        names.sort_unstable();
        for name in names {
            match self.topic(&name)? {
                TopicText::Gone => {}
                TopicText::Found(topic) => {
                    self.topics.insert(name, topic);
                }
                TopicText::Damaged => {
                    let what = "it has no line partitions=<n>; the topic is not served".to_owned();
                    let file = format!("topics/{name}");
                    self.found(Some((&name, None)), &file, What::File(what))?;
                }
            }
        }
        Ok(())
    }

    /// Reads a topic's file.
    fn topic(&self, name: &str) -> Result<TopicText, Error> {
        let path = self.root.join("topics").join(name);
        match read_text(self.fs, &path) {
            Ok(text) => Ok(text
                .and_then(|text| Found::parse(name, &text))
                .map_or(TopicText::Damaged, |found| TopicText::Found(found.into()))),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(TopicText::Damaged),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(TopicText::Gone),
            Err(error) => Err(Error::read(&path)(error)),
        }
    }

    fn partitions(&mut self) -> Result<(), Error> {
        let entries = self
            .fs
            .read_dir(self.root)
            .map_err(Error::read(self.root))?;
        let mut partitions: BTreeSet<(String, u32)> = entries
            .iter()
            .filter(|entry| entry.is_dir)
            .filter_map(|entry| parse_partition_dir(entry.name.to_str()?))
            .map(|(topic, partition)| (topic.to_owned(), partition))
            .collect();
        for (name, topic) in &self.topics {
            partitions.extend((0..topic.partitions).map(|partition| (name.clone(), partition)));
        }
        for (topic, partition) in partitions {
            if self
                .topics
                .get(&topic)
                .is_some_and(|topic| topic.is_deleted)
            {
                continue;
            }
            self.partition(&topic, partition)?;
        }
        Ok(())
    }

    fn partition(&mut self, topic: &str, partition: u32) -> Result<(), Error> {
        let name = partition_dir_name(topic, partition);
        let dir = self.root.join(&name);
        let recovery_point = self
            .recovery_points
            .get(topic)
            .and_then(|partitions| partitions.get(&partition))
            .copied();
        let bases = match bases(self.fs, &dir) {
            Ok(bases) => bases,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Gone with its topic since its name was read, or never there.
                if recovery_point.is_some_and(|point| point > 0) && !self.is_being_deleted(topic)? {
                    let what =
                        "the partition's directory is gone, and with it its records".to_owned();
                    self.found(Some((topic, Some(partition))), &name, What::File(what))?;
                }
                return Ok(());
            }
            Err(error) => return Err(Error::read(&dir)(error)),
        };
        self.totals.partitions += 1;
        if bases.is_empty() {
            return self.emptied(topic, partition, recovery_point.unwrap_or(0));
        }
        let marks = Marks::of(self.fs, &dir)?;
        let mut may_have_gaps = marks.was_cleaned || self.may_have_gaps(topic);
        let mut lost = Vec::new();
        for (number, &base) in bases.iter().enumerate() {
            let upper = bases.get(number + 1).copied();
            let path = segment_file(&dir, base, "log");
            let segment = Segment {
                path,
                base: Some(base),
                upper,
            };
            let Some(summary) = self.segment((topic, partition), &segment)? else {
                continue;
            };
            may_have_gaps |= summary.has_gaps;
            let end = match upper {
                Some(upper) => Some(upper),
                None => recovery_point.filter(|_| !summary.is_end_damaged),
            };
            if let Some(next_offset) = end.filter(|end| *end > summary.end_offset) {
                let (offset, position) = (summary.end_offset, summary.bytes);
                let is_sure = upper.is_none() || marks.torn.contains(&base);
                lost.push((
                    base,
                    is_sure,
                    What::Lost {
                        offset,
                        position,
                        next_offset,
                    },
                ));
            }
        }
        for (base, is_sure, what) in lost {
            if is_sure || !may_have_gaps {
                self.found(
                    Some((topic, Some(partition))),
                    &format!("{base:020}.log"),
                    what,
                )?;
            }
        }
        Ok(())
    }

    /// A partition without a segment: a start goes on at its recovery point, and what was below it is gone.
    fn emptied(&mut self, topic: &str, partition: u32, recovery_point: i64) -> Result<(), Error> {
        if recovery_point == 0 || self.is_being_deleted(topic)? {
            return Ok(());
        }
        let what = format!(
            "no segment is left of it, and with them the records below offset {recovery_point} are gone"
        );
        let name = partition_dir_name(topic, partition);
        self.found(Some((topic, Some(partition))), &name, What::File(what))
    }

    /// Whether missing offsets are no loss: compaction removes records.
    fn may_have_gaps(&self, topic: &str) -> bool {
        self.topics
            .get(topic)
            .is_none_or(|topic| topic.is_compacted)
    }

    fn is_being_deleted(&self, topic: &str) -> Result<bool, Error> {
        Ok(match self.topic(topic)? {
            TopicText::Gone => true,
            TopicText::Found(topic) => topic.is_deleted,
            TopicText::Damaged => false,
        })
    }

    /// Checks a segment; `None` where it has gone since the directory was read.
    fn segment(
        &mut self,
        (topic, partition): (&str, u32),
        segment: &Segment,
    ) -> Result<Option<Summary>, Error> {
        let Some((mut damages, mut summary)) = self.look(segment)? else {
            return Ok(None);
        };
        // A broker writes a log and its indexes one after another, rolls, trims and cleans: what is wrong only for a moment is not
        // wrong.
        if !damages.is_empty() || summary.has_faults() {
            (self.pause)();
            let Some((still, again)) = self.look(&Segment::of_file(self.fs, &segment.path)?)?
            else {
                return Ok(None);
            };
            damages = still;
            summary.keep_faults_of(&again);
            summary = Summary {
                offset_faults: summary.offset_faults,
                time_faults: summary.time_faults,
                ..again
            };
        }
        self.totals.segments += 1;
        self.totals.records += summary.records;
        self.totals.bytes += summary.bytes;
        let place = Some((topic, Some(partition)));
        for damage in damages {
            self.found(place, &file_name(&segment.path), What::Damage(damage))?;
        }
        let faults = [
            ("index", &summary.offset_faults),
            ("timeindex", &summary.time_faults),
        ];
        for (suffix, faults) in faults {
            let file = file_name(&segment.path.with_extension(suffix));
            for fault in faults {
                self.found(place, &file, What::Row(fault.clone()))?;
            }
        }
        Ok(Some(summary))
    }

    fn look(&self, segment: &Segment) -> Result<Option<(Vec<Damage>, Summary)>, Error> {
        let mut damages = Vec::new();
        let checked = segment.check(self.fs, self.pause, &mut |event| {
            if let Event::Damage { damage, .. } = event {
                damages.push(damage);
            }
            Ok(())
        });
        match checked {
            Ok(summary) => Ok(Some((damages, summary))),
            Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// What the other files of a partition's directory tell.
#[derive(Debug, Default)]
struct Marks {
    /// Segments that a `.torn` file stands beside.
    torn: BTreeSet<i64>,
    /// Whether compaction was here.
    was_cleaned: bool,
}

impl Marks {
    fn of<F: Fs>(fs: &F, dir: &Path) -> Result<Self, Error> {
        let mut marks = Self::default();
        for entry in fs.read_dir(dir).map_err(Error::read(dir))? {
            match file_kind(&entry.name.to_string_lossy()) {
                FileKind::Torn(base) => {
                    marks.torn.insert(base);
                }
                FileKind::Cleaned => marks.was_cleaned = true,
                FileKind::Log(_)
                | FileKind::Index(_)
                | FileKind::TimeIndex(_)
                | FileKind::AppendTimes
                | FileKind::Replace(_)
                | FileKind::Damaged(_)
                | FileKind::Leftover
                | FileKind::Unknown => {}
            }
        }
        Ok(marks)
    }
}

impl From<Found> for Topic {
    fn from(found: Found) -> Self {
        match found {
            Found::Topic(file) => Self {
                partitions: file.partitions,
                is_compacted: file
                    .configs
                    .iter()
                    .any(|(name, policy)| name == "cleanup.policy" && policy.contains("compact")),
                is_deleted: false,
            },
            Found::Deleted(_, partitions) => Self {
                partitions: partitions.unwrap_or(0),
                is_compacted: false,
                is_deleted: true,
            },
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
