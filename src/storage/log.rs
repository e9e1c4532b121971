//! One partition's log.

use std::path::PathBuf;
use std::rc::Rc;

use crate::api::{CrcMode, Explanation, FileRange, SegmentInfo};
use crate::format::Layout;
use crate::fs::Fs;
use crate::record::{Record, Records};

use super::data_dir::Checkpoints;
use super::{Error, FsyncPolicy, TimestampType};

/// The topic configs that the engine acts on; read at the moment of each decision, so that a change counts at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogConfig {
    /// `segment.bytes`.
    pub segment_bytes: u32,
    /// `segment.ms`.
    pub segment_ms: i64,
    /// `segment.index.bytes`.
    pub segment_index_bytes: u32,
    /// `index.interval.bytes`.
    pub index_interval_bytes: u32,
    /// `max.message.bytes`: key, value and headers of one record.
    pub max_message_bytes: u32,
    /// `record.version`: the layout of new segments.
    pub record_version: Layout,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.after.max.ms`.
    pub timestamp_after_max_ms: i64,
}

/// What the logs of one broker share.
#[derive(Debug)]
pub struct LogContext<F: Fs> {
    /// The file system.
    pub fs: F,
    /// The broker's policy.
    pub fsync: FsyncPolicy,
    /// recovery-point and log-start-offset of the data directory.
    pub checkpoints: Rc<Checkpoints<F>>,
}

/// What a start knows of a partition before it looks into its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartFrom {
    /// Whether the broker was stopped in order (clean-shutdown was there).
    pub is_clean: bool,
}

/// What a start found and did; the log lines were written already.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Bytes of .log files that were scanned.
    pub scanned_bytes: u64,
    /// Bytes cut off into .torn files.
    pub torn_bytes: u64,
    /// Indexes rebuilt.
    pub rebuilt_indexes: u64,
    /// Damaged stretches met.
    pub damaged: u64,
}

/// What [`Log::read`] gave beside the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadOutcome {
    /// Where to read on: the offset after the last record given, past removed ones.
    pub next_offset: i64,
}

/// What [`Log::fetch`] found.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// The bytes; `None` where nothing is there yet.
    pub range: Option<FileRange>,
    /// Offset of the first record in it.
    pub first_offset: i64,
    /// Where to fetch on.
    pub next_offset: i64,
}

/// One partition.
#[derive(Debug)]
pub struct Log<F: Fs> {
    context: Rc<LogContext<F>>,
}

impl<F: Fs> Log<F> {
    /// Opens the partition whose directory `<topic>-<partition>` exists, recovering it where the stop was not clean
    /// (docs/format.md, "Start"). An empty directory becomes a log with one empty segment, named after the greater of recovery point and log start.
    ///
    /// # Errors
    /// Where the system refuses; never because of what the files hold.
    pub fn open(context: Rc<LogContext<F>>, data_dir: PathBuf, topic: &str, partition: u32, config: LogConfig, start: StartFrom, now_ms: i64) -> Result<(Self, OpenReport), Error> { todo!() }
    /// Replaces the configs; the next decision uses them.
    pub fn set_config(&mut self, config: LogConfig) { todo!() }
    /// The configs in force.
    pub fn config(&self) -> &LogConfig { todo!() }
    /// Appends one record to the write buffer and returns its offset. `record.timestamp` is what the producer said or the caller's
    /// clock; under `LogAppendTime` it is replaced by `now_ms`. Rolls first where a rule says so; writes the buffer first where it is full.
    ///
    /// # Errors
    /// The record is then not in the log. After an `Io` error everything that was appended and not written is gone, too:
    /// [`Log::log_end_offset`] has gone back to what is written, and the caller answers for those appends ([`Log::written_offset`]).
    pub fn append(&mut self, record: &Record<'_>, now_ms: i64) -> Result<i64, Error> { todo!() }
    /// Appends records as one: all or none, contiguous, visible together. Returns first and last offset. At least one record.
    ///
    /// # Errors
    /// As [`Log::append`]; none of the records is in the log, and segments they opened are gone.
    pub fn append_batch<'a>(&mut self, records: impl Iterator<Item = Record<'a>> + Clone, now_ms: i64) -> Result<(i64, i64), Error> { todo!() }
    /// Writes the buffer to the files. Cheap where it is empty.
    ///
    /// # Errors
    /// What was in the buffer is gone, and the log end offset is back at [`Log::written_offset`].
    pub fn write(&mut self) -> Result<(), Error> { todo!() }
    /// Writes the buffer and makes everything appended durable: one fdatasync for the log where something is unsynced.
    ///
    /// # Errors
    /// From a failed fdatasync on, the partition is read-only.
    pub fn sync(&mut self) -> Result<(), Error> { todo!() }
    /// Lets readers see what is written (and, under `always`, durable). The loop calls it after the flush of a turn.
    pub fn publish(&mut self) { todo!() }
    /// Whether there are appended records that [`Log::sync`] would have to make durable.
    pub fn is_dirty(&self) -> bool { todo!() }
    /// Whether the partition takes appends.
    pub fn is_read_only(&self) -> bool { todo!() }
    /// Whether damage was met in it, at the start or by a read.
    pub fn is_damaged(&self) -> bool { todo!() }
    /// The first offset that readers may ask for.
    pub fn log_start_offset(&self) -> i64 { todo!() }
    /// The next offset to be given, buffered records included.
    pub fn log_end_offset(&self) -> i64 { todo!() }
    /// The end of what is written to the files.
    pub fn written_offset(&self) -> i64 { todo!() }
    /// The end of what is durable.
    pub fn durable_offset(&self) -> i64 { todo!() }
    /// The next offset that a reader may reach.
    pub fn high_watermark(&self) -> i64 { todo!() }
    /// Bytes of all .log files.
    pub fn bytes(&self) -> u64 { todo!() }
    /// Number of segments.
    pub fn segment_count(&self) -> usize { todo!() }
    /// Appends records from `offset` on to `out`, at most `max_records` and about `max_bytes` of payload, at least one where one is there.
    /// `offset == high_watermark` gives none.
    ///
    /// # Errors
    /// `OutOfRange`; `Corrupt` where the read begins at damage; `Io`.
    pub fn read(&mut self, offset: i64, max_records: u64, max_bytes: u64, crc: CrcMode, out: &mut Records) -> Result<ReadOutcome, Error> { todo!() }
    /// The stored bytes from `offset` on, at most `max_bytes` but at least one record; the first record is checked.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub fn fetch(&mut self, offset: i64, max_bytes: u64) -> Result<Fetched, Error> { todo!() }
    /// Offset and timestamp of the first record (by offset, not below the log start, below the high watermark) whose timestamp is at least that.
    ///
    /// # Errors
    /// `Io`. Damaged records are passed over.
    pub fn offset_at_time(&mut self, timestamp: i64) -> Result<Option<(i64, i64)>, Error> { todo!() }
    /// The whole way of a lookup.
    ///
    /// # Errors
    /// `OutOfRange` (also at the high watermark itself); `Io`.
    pub fn explain(&mut self, offset: i64) -> Result<Explanation, Error> { todo!() }
    /// What SEGMENTS shows.
    ///
    /// # Errors
    /// `Io`.
    pub fn segments(&mut self) -> Result<Vec<SegmentInfo>, Error> { todo!() }
    /// A bounded slice of background work: under `never` and `<n>ms`, syncs one sealed segment that is not yet. Returns whether more is left.
    pub fn background(&mut self) -> bool { todo!() }
    /// Writes, syncs, trims the indexes. Afterwards the recovery point in the checkpoints equals the log end.
    ///
    /// # Errors
    /// What failed first; the stop is then not clean.
    pub fn close(&mut self) -> Result<(), Error> { todo!() }
}
