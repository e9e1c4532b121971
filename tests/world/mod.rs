//! What the tests of the engine share: a data directory in memory with one partition, and its records as owned values.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic_in_result_fn,
    reason = "each test uses a part of it, and may panic"
)]

use std::path::{Path, PathBuf};
use std::rc::Rc;

use mini_broker::api::CrcMode;
use mini_broker::format::Layout;
use mini_broker::fs::fault::FaultFs;
use mini_broker::fs::mem::MemFs;
use mini_broker::fs::{File, Fs, OpenMode, read_file};
use mini_broker::record::{Record, Records};
use mini_broker::storage::data_dir::{DataDir, TopicFile};
use mini_broker::storage::{
    Damage, Error, FsyncPolicy, Log, LogConfig, LogContext, OpenReport, StartFrom, TimestampType,
};

pub type Faulty = FaultFs<MemFs>;

pub const ROOT: &str = "/data";
pub const TOPIC: &str = "t";
/// The directory of the partition.
pub const DIR: &str = "/data/t-0";

/// A record, owned.
#[derive(Clone, PartialEq, Eq)]
pub struct Rec {
    pub timestamp: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<u8>,
}

/// Short: lengths, and a number that tells contents apart.
impl std::fmt::Debug for Rec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fields = [
            self.key.as_deref(),
            self.value.as_deref(),
            Some(self.headers.as_slice()),
        ];
        let lens = fields.map(|field| field.map(<[u8]>::len));
        let sum = crc32fast::hash(&fields.map(Option::unwrap_or_default).concat());
        write!(f, "[at {} {lens:?} {sum:08x}]", self.timestamp)
    }
}

impl Rec {
    pub fn new(timestamp: i64, value: &[u8]) -> Self {
        Self {
            timestamp,
            key: None,
            value: Some(value.to_vec()),
            headers: Vec::new(),
        }
    }

    pub fn borrow(&self) -> Record<'_> {
        Record {
            timestamp: self.timestamp,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            headers: &self.headers,
        }
    }

    pub fn from(record: &Record<'_>) -> Self {
        Self {
            timestamp: record.timestamp,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: record.headers.to_vec(),
        }
    }
}

/// A started broker's storage with one partition, without the broker.
#[derive(Debug)]
pub struct World {
    pub log: Log<Faulty>,
    pub report: OpenReport,
    pub is_clean: bool,
    pub context: Rc<LogContext<Faulty>>,
    pub dir: DataDir<Faulty>,
}

/// Small segments and indexes, so that a few records reach every rule.
pub fn small_config() -> LogConfig {
    LogConfig {
        segment_bytes: 1000,
        segment_ms: 1_000_000,
        segment_index_bytes: 4096,
        index_interval_bytes: 100,
        max_message_bytes: 100_000,
        record_version: Layout::V2,
        timestamp_type: TimestampType::CreateTime,
        timestamp_after_max_ms: i64::MAX,
        ..LogConfig::default()
    }
}

impl World {
    /// A whole start, in the order in which the broker does it.
    pub fn start(
        fs: &Faulty,
        fsync: FsyncPolicy,
        config: LogConfig,
        now_ms: i64,
    ) -> Result<Self, Error> {
        let mut dir = DataDir::lock(fs.clone(), Path::new(ROOT))?;
        let is_clean = dir.begin()?;
        let loaded = dir.load_topics()?;
        dir.ensure_spare()?;
        if loaded.topics.is_empty() {
            let topic = TopicFile {
                name: TOPIC.to_owned(),
                partitions: 1,
                configs: Vec::new(),
            };
            dir.create_topic(&topic).map_err(|e| match e {
                mini_broker::storage::data_dir::CreateError::Refused(e)
                | mini_broker::storage::data_dir::CreateError::Storage(e) => e,
                e @ (mini_broker::storage::data_dir::CreateError::Stranger(_)
                | mini_broker::storage::data_dir::CreateError::Damaged(_)) => panic!("{e}"),
            })?;
        }
        let context = Rc::new(LogContext::new(
            fs.clone(),
            fsync,
            Rc::clone(dir.checkpoints()),
        ));
        let (log, report) = Log::open(
            &context,
            Path::new(ROOT),
            TOPIC,
            0,
            config,
            StartFrom { is_clean },
            now_ms,
        )?;
        dir.checkpoints().write_recovery_point()?;
        Ok(Self {
            log,
            report,
            is_clean,
            context,
            dir,
        })
    }

    /// The end of a turn, as the broker does it: write, sync where the policy asks for it, publish.
    pub fn flush(&mut self) -> Result<(), Error> {
        // What is written is kept, so it is synced also where the rest could not be written.
        let written = self.log.write();
        let synced = match self.context.fsync {
            FsyncPolicy::Always => self.log.sync(),
            FsyncPolicy::EveryMs(_) | FsyncPolicy::Never => Ok(()),
        };
        let result = written.and(synced);
        self.log.publish();
        result
    }

    /// An orderly stop.
    pub fn stop(mut self) -> Result<(), Error> {
        self.log.close()?;
        self.dir.checkpoints().write_recovery_point()?;
        self.dir.write_clean_marker()
    }

    /// Appends records and flushes.
    pub fn put(&mut self, records: &[Rec], now_ms: i64) {
        for record in records {
            self.log.append(&record.borrow(), now_ms).unwrap();
        }
        self.flush().unwrap();
    }
}

/// Everything that can be read from the log start on, and the damage in between.
pub fn read_all(log: &mut Log<Faulty>) -> (Vec<(i64, Rec)>, Vec<Damage>) {
    let mut found = Vec::new();
    let mut damage = Vec::new();
    let mut offset = log.log_start_offset();
    while offset < log.high_watermark() {
        let mut out = Records::new();
        match log.read(offset, 1000, 1 << 20, CrcMode::Check, &mut out) {
            Ok(outcome) => {
                found.extend(
                    out.iter()
                        .map(|stored| (stored.offset, Rec::from(&stored.record))),
                );
                assert!(
                    outcome.next_offset > offset,
                    "a read at {offset} goes on at {outcome:?}"
                );
                offset = outcome.next_offset;
            }
            Err(Error::Corrupt(d)) => {
                assert_eq!(d.offset, offset, "damage is told from the offset asked for");
                assert!(d.next > offset, "{d:?} at {offset}");
                offset = d.next;
                damage.push(d);
            }
            Err(error) => panic!("read at {offset}: {error}"),
        }
    }
    (found, damage)
}

/// A path in the partition's directory.
pub fn file(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

/// The whole content of a file in the partition's directory.
pub fn content<F: Fs>(fs: &F, name: &str) -> Vec<u8> {
    read_file(fs, &file(name), 1 << 24).unwrap()
}

/// Replaces a file whole and makes it durable.
pub fn put_file<F: Fs>(fs: &F, path: &Path, bytes: &[u8]) {
    let file = fs.open(path, OpenMode::CreateOrKeep).unwrap();
    file.set_len(0).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
    fs.sync_dir(path.parent().unwrap()).unwrap();
}

/// Names in the partition's directory.
pub fn names<F: Fs>(fs: &F) -> Vec<String> {
    let entries = fs.read_dir(Path::new(DIR)).unwrap();
    entries
        .into_iter()
        .map(|entry| entry.name.into_string().unwrap())
        .collect()
}

/// Choices of a power cut from a seed.
pub fn chooser(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    move |n| rng.u64(..n)
}

/// An entry of a `.log`: offset, position, timestamp.
type Entry = (i64, u64, i64);

/// The entries of a `.log`, all of them whole.
fn entries(name: &str, bytes: &[u8]) -> Vec<Entry> {
    let mut found = Vec::new();
    let Ok(layout) = Layout::of(bytes) else {
        assert!(bytes.is_empty(), "{name} does not begin with an entry");
        return found;
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        let position = (bytes.len() - rest.len()) as u64;
        let (head, stored) = layout
            .decode(rest)
            .unwrap_or_else(|e| panic!("{name} at {position}: {e:?}"));
        found.push((head.last_offset, position, stored.record.timestamp));
        rest = rest.get(head.length as usize..).unwrap();
    }
    found
}

fn rows<const N: usize>(name: &str, bytes: &[u8]) -> Vec<[u8; N]> {
    let (rows, rest) = bytes.as_chunks::<N>();
    assert!(rest.is_empty(), "{name} ends within a row");
    rows.to_vec()
}

/// Checks the files of an undamaged log after an orderly stop, byte by byte: names, entries, rows of both indexes.
pub fn check_files<F: Fs>(fs: &F) {
    let mut logs: Vec<String> = names(fs)
        .into_iter()
        .filter(|name| name.strip_suffix(".log").is_some())
        .collect();
    logs.sort();
    let mut before: Option<i64> = None;
    for (number, name) in logs.iter().enumerate() {
        let base: i64 = name.trim_end_matches(".log").parse().unwrap();
        let entries = entries(name, &content(fs, name));
        assert!(
            before < Some(base),
            "{name} begins within the segment before it"
        );
        for (offset, _, _) in &entries {
            assert!(
                before < Some(*offset) && *offset >= base,
                "offset {offset} in {name}"
            );
            before = Some(*offset);
        }
        let is_last = number + 1 == logs.len();
        assert!(!entries.is_empty() || is_last, "{name} is sealed and empty");
        // One whose sync failed is removed, and made again when somebody asks for it.
        let has_indexes = ["index", "timeindex"]
            .iter()
            .all(|suffix| fs.exists(&file(&format!("{base:020}.{suffix}"))).unwrap());
        if has_indexes {
            check_index(fs, base, &entries);
            check_time_index(fs, base, &entries);
        }
    }
}

fn check_index<F: Fs>(fs: &F, base: i64, entries: &[Entry]) {
    let name = format!("{base:020}.index");
    let rows = rows::<8>(&name, &content(fs, &name));
    let mut last = None;
    for row in &rows {
        let [r0, r1, r2, r3, p0, p1, p2, p3] = *row;
        let offset = base + i64::from(u32::from_be_bytes([r0, r1, r2, r3]));
        let position = u64::from(u32::from_be_bytes([p0, p1, p2, p3]));
        assert!(last < Some((offset, position)), "{name} does not rise");
        let is_start = entries
            .iter()
            .any(|(o, p, _)| (*o, *p) == (offset, position));
        assert!(
            is_start,
            "{name}: {offset} at {position} is no entry's start"
        );
        last = Some((offset, position));
    }
    assert_eq!(
        rows.is_empty(),
        entries.is_empty(),
        "{name}: the first entry has a row"
    );
}

fn check_time_index<F: Fs>(fs: &F, base: i64, entries: &[Entry]) {
    let name = format!("{base:020}.timeindex");
    let rows = rows::<12>(&name, &content(fs, &name));
    let mut last = None;
    for row in &rows {
        let [t0, t1, t2, t3, t4, t5, t6, t7, r0, r1, r2, r3] = *row;
        let timestamp = i64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
        let offset = base + i64::from(u32::from_be_bytes([r0, r1, r2, r3]));
        assert!(
            last.is_none_or(|(t, o)| t < timestamp && o < offset),
            "{name} does not rise"
        );
        let is_named = entries
            .iter()
            .any(|(o, _, t)| (*o, *t) == (offset, timestamp));
        assert!(is_named, "{name}: {offset} does not carry {timestamp}");
        let is_later = |(o, _, t): &Entry| *t > timestamp && *o <= offset;
        assert!(
            !entries.iter().any(is_later),
            "{name}: something before {offset} is later"
        );
        last = Some((timestamp, offset));
    }
    let max = entries.iter().map(|(_, _, t)| *t).max();
    assert_eq!(
        last.map(|(t, _)| t),
        max,
        "{name}: its last row is the largest timestamp"
    );
}
