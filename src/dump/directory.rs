//! A whole data directory, partition by partition, without its lock.
//!
//! The text files are read before the logs: they then promise no more than the logs hold, also while a broker runs. What goes away
//! in between (a topic that is deleted, a segment that expires) is no damage.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use crate::fs::{Fs, read_file};
use crate::storage::data_dir::{FORMAT, is_topic_name, parse_partition_dir, partition_dir_name};
use crate::storage::names::{FileKind, file_kind, segment_file};

use super::Error;
use super::rows::RowFault;
use super::segment::{Damage, Event, Segment, Summary, bases};

/// The largest text file that is read.
const TEXT_BYTES_MAX: usize = 64 << 20;

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

/// A check in progress.
struct Check<'c, F: Fs> {
    fs: &'c F,
    root: &'c Path,
    pause: &'c dyn Fn(),
    sink: &'c mut dyn FnMut(&Finding) -> Result<(), Error>,
    totals: Totals,
    recovery_points: BTreeMap<(String, u32), i64>,
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
        recovery_points: BTreeMap::new(),
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

    /// The text of a file; `Ok(None)` where there is none, or none that can be read as text (which is then said).
    fn text(&mut self, name: &str) -> Result<Option<String>, Error> {
        let path = self.root.join(name);
        match read_file(self.fs, &path, TEXT_BYTES_MAX).map(String::from_utf8) {
            Ok(Ok(text)) => Ok(Some(text)),
            Ok(Err(_)) => {
                self.found(None, name, What::File("it is not text".to_owned()))?;
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::read(&path)(error)),
        }
    }

    fn properties(&mut self) -> Result<(), Error> {
        let entries = self
            .fs
            .read_dir(self.root)
            .map_err(Error::read(self.root))?;
        let has = |name: &str| entries.iter().any(|entry| entry.name == name);
        if !has("broker.properties") && !has("topics") {
            return Err(Error::Unfit(format!(
                "{} is no data directory: there is no broker.properties in it; \
                 name the directory that the broker was started with (--data-dir)",
                self.root.display()
            )));
        }
        let Some(text) = self.text("broker.properties")? else {
            let what = "it is missing or unreadable; the next start makes it anew".to_owned();
            return self.found(None, "broker.properties", What::File(what));
        };
        match value(&text, "format").and_then(|format| format.parse::<u32>().ok()) {
            Some(FORMAT) => Ok(()),
            Some(format) if format > FORMAT => Err(Error::Unfit(format!(
                "{} has format {format}, this program knows format {FORMAT}: use the newer one that made it",
                self.root.display()
            ))),
            _ => {
                let what = format!("it has no line format={FORMAT}");
                self.found(None, "broker.properties", What::File(what))
            }
        }
    }

    fn recovery_points(&mut self) -> Result<(), Error> {
        for name in ["recovery-point", "log-start-offset"] {
            let Some(text) = self.text(name)? else {
                continue;
            };
            match text
                .lines()
                .map(table_line)
                .collect::<Option<BTreeMap<_, _>>>()
            {
                Some(table) if name == "recovery-point" => self.recovery_points = table,
                Some(_) => {}
                None => {
                    let what = "a line is not <topic> <partition> <offset>; all of it counts as 0"
                        .to_owned();
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
            let file = format!("topics/{name}");
            let Some(text) = self.text(&file)? else {
                continue;
            };
            if let Some(topic) = Topic::parse(&text) {
                self.topics.insert(name, topic);
            } else {
                let what = "it has no line partitions=<n>; the topic is not served".to_owned();
                self.found(Some((&name, None)), &file, What::File(what))?;
            }
        }
        Ok(())
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
            .get(&(topic.to_owned(), partition))
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

    /// Whether missing offsets are no loss: compaction removes records.
    fn may_have_gaps(&self, topic: &str) -> bool {
        self.topics
            .get(topic)
            .is_none_or(|topic| topic.is_compacted)
    }

    fn is_being_deleted(&self, topic: &str) -> Result<bool, Error> {
        let path = self.root.join("topics").join(topic);
        match read_file(self.fs, &path, TEXT_BYTES_MAX) {
            Ok(bytes) => {
                Ok(Topic::parse(&String::from_utf8_lossy(&bytes)).is_some_and(|t| t.is_deleted))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(Error::read(&path)(error)),
        }
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

impl Topic {
    fn parse(text: &str) -> Option<Self> {
        let is_deleted = value(text, "deleted") == Some("true");
        let partitions = value(text, "partitions").and_then(|text| text.parse().ok());
        let is_compacted =
            value(text, "cleanup.policy").is_some_and(|policy| policy.contains("compact"));
        match partitions {
            Some(partitions) if partitions > 0 => Some(Self {
                partitions,
                is_compacted,
                is_deleted,
            }),
            _ => is_deleted.then_some(Self {
                partitions: 0,
                is_compacted,
                is_deleted,
            }),
        }
    }
}

/// The value of the line `name=value`.
fn value<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

/// A line `<topic> <partition> <offset>`.
fn table_line(line: &str) -> Option<((String, u32), i64)> {
    let mut fields = line.split(' ');
    let (topic, partition, offset) = (fields.next()?, fields.next()?, fields.next()?);
    let entry = (
        (topic.to_owned(), partition.parse().ok()?),
        offset.parse().ok()?,
    );
    (fields.next().is_none() && is_topic_name(topic)).then_some(entry)
}
