//! One partition's log: appending, rolling, syncing, publishing.
//!
//! An append encodes into the write buffer; [`Log::write`] puts the buffer and the index rows gathered with it into the
//! files; [`Log::sync`] makes that durable; [`Log::publish`] shows it to readers. Three marks follow each other: what is
//! published is never ahead of what is written, and under `always` never ahead of what is durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;

use crate::format::Layout;
use crate::fs::{File, Fs, OpenMode};
use crate::record::Record;

use super::active::{Active, Extent};
use super::append_times::AppendTimes;
use super::context::LogContext;
use super::names::segment_file;
use super::recovery::PendingCut;
use super::sparse_index::SparseIndex;
use super::offset_index::OffsetRow;
use super::time_index::TimeRow;
use super::{Error, FsyncPolicy, TimestampType};

/// The write buffer is written when it holds so many bytes.
const WRITE_BUFFER_BYTES: usize = 256 * 1024;
/// How many bytes of the active segment are written before the kernel is asked to put them on the disk, where no fsync does.
const WRITEBACK_BYTES: u64 = 8 * 1024 * 1024;
/// How many sealed segments may wait for their sync before a roll does it.
const UNSYNCED_SEGMENTS_MAX: usize = 4;

/// The topic configs that the engine acts on; read at the moment of each decision, so that a change counts at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogConfig {
    /// `segment.bytes`, at most 2^31 - 1.
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

impl Default for LogConfig {
    /// Kafka's defaults, and record version 2.
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 3_600_000,
            segment_index_bytes: 10 * 1024 * 1024,
            index_interval_bytes: 4096,
            max_message_bytes: 1_048_588,
            record_version: Layout::V2,
            timestamp_type: TimestampType::CreateTime,
            timestamp_after_max_ms: 3_600_000,
        }
    }
}

/// A place in a log: an offset, and where the entry with it starts or will start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) offset: i64,
    pub(super) base: i64,
    pub(super) position: u64,
}

/// A sealed segment, as the floor map holds it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sealed {
    /// Bytes of its .log.
    pub(super) bytes: u64,
}

/// A sealed segment whose bytes were not synced at the roll. It holds the handles that they were written through, since closing one would lose
/// the error of a failed writeback.
#[derive(Debug)]
pub(super) struct Unsynced<F: Fs> {
    log: Rc<F::File>,
    index: SparseIndex<F::File, OffsetRow>,
    time: SparseIndex<F::File, TimeRow>,
    /// The base of the segment behind it.
    next_base: i64,
}

/// One partition.
#[derive(Debug)]
pub struct Log<F: Fs> {
    pub(super) context: Rc<LogContext<F>>,
    /// Names this log in the broker's cache of open segments.
    pub(super) id: u64,
    pub(super) topic: String,
    pub(super) partition: u32,
    pub(super) dir: PathBuf,
    pub(super) config: LogConfig,
    /// The floor map: base offset to segment, the active one excepted.
    pub(super) sealed: BTreeMap<i64, Sealed>,
    pub(super) active: Active<F>,
    pub(super) log_start: i64,
    pub(super) next_offset: i64,
    pub(super) written: Mark,
    pub(super) durable: Mark,
    pub(super) published: Mark,
    /// Entries encoded and not written.
    pub(super) buffer: Vec<u8>,
    /// Bytes of a log file under a reader's eyes, kept from read to read.
    pub(super) scratch: Vec<u8>,
    pub(super) unsynced: VecDeque<Unsynced<F>>,
    pub(super) append_times: AppendTimes,
    /// Segments beside which a .torn file stands.
    pub(super) torn: BTreeSet<i64>,
    /// Segments whose indexes were rebuilt since the start because they misled a lookup.
    pub(super) mended: BTreeSet<i64>,
    /// A torn tail that there was no room to put aside.
    pub(super) pending_cut: Option<PendingCut>,
    pub(super) is_read_only: bool,
    pub(super) is_damaged: bool,
}

/// What a batch that rolls goes back to when it fails.
struct Savepoint {
    base: i64,
    extent: Extent,
    layout: Layout,
    must_roll: bool,
    next_offset: i64,
}

impl<F: Fs> Log<F> {
    /// Replaces the configs; the next decision uses them.
    pub fn set_config(&mut self, config: LogConfig) {
        self.config = config;
    }

    /// The configs in force.
    pub fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Appends one record to the write buffer and returns its offset. `record.timestamp` is what the producer said or the
    /// caller's clock; under `LogAppendTime` it is replaced by `now_ms`. Rolls first where a rule says so.
    ///
    /// # Errors
    /// The record is then not in the log. After an `Io` error everything that was appended and not written is gone, too:
    /// [`Log::log_end_offset`] is back at [`Log::written_offset`], and the caller answers for those appends.
    pub fn append(&mut self, record: &Record<'_>, now_ms: i64) -> Result<i64, Error> {
        let (record, bytes) = self.admit(record, now_ms)?;
        let offset = self.next_offset;
        if self.active.must_roll_for(offset, record.timestamp, bytes, &self.config) {
            self.write()?;
            self.roll(now_ms, true)?;
        }
        self.encode(&record, bytes, now_ms)?;
        if self.buffer.len() >= WRITE_BUFFER_BYTES {
            self.write()?;
        }
        Ok(offset)
    }

    /// Appends records as one: all or none, contiguous, visible together. Returns first and last offset.
    ///
    /// # Errors
    /// As [`Log::append`]; none of the records is in the log then, and segments they opened are gone.
    ///
    /// # Panics
    /// Where there is no record at all.
    pub fn append_batch<'a>(
        &mut self,
        records: impl Iterator<Item = Record<'a>> + Clone,
        now_ms: i64,
    ) -> Result<(i64, i64), Error> {
        let mut total = 0;
        let mut count = 0_i64;
        let mut latest = i64::MIN;
        for record in records.clone() {
            let (record, bytes) = self.admit(&record, now_ms)?;
            total += u64::from(bytes);
            latest = latest.max(record.timestamp);
            count += 1;
        }
        assert!(count > 0, "a batch holds at least one record");
        let first = self.next_offset;
        let last = first.checked_add(count).ok_or(Error::Exhausted)? - 1;
        if self.buffer.len() as u64 + total > WRITE_BUFFER_BYTES as u64 {
            self.write()?;
        }
        let sum = u32::try_from(total).unwrap_or(u32::MAX);
        let rows_max = total / u64::from(self.config.index_interval_bytes.max(1)) + 2;
        let fits = !self.active.must_roll_for(last, latest, sum, &self.config)
            && self.active.has_room_for_rows(rows_max);
        if fits {
            for record in records {
                let (record, bytes) = self.admit(&record, now_ms)?;
                self.encode(&record, bytes, now_ms)?;
            }
            if self.buffer.len() >= WRITE_BUFFER_BYTES {
                self.write()?;
            }
        } else {
            self.write()?;
            self.append_in_steps(records, now_ms)?;
        }
        Ok((first, last))
    }

    /// Appends a batch that may open segments; on an error those are removed, and the one it began in is active again.
    fn append_in_steps<'a>(
        &mut self,
        records: impl Iterator<Item = Record<'a>>,
        now_ms: i64,
    ) -> Result<(), Error> {
        let savepoint = Savepoint {
            base: self.active.base,
            extent: self.active.written,
            layout: self.active.layout,
            must_roll: self.active.must_roll,
            next_offset: self.next_offset,
        };
        let mut steps = records.map(|record| self.append_step(&record, now_ms));
        let result = steps.find(Result::is_err).unwrap_or(Ok(()));
        drop(steps);
        let result = result.and_then(|()| self.write());
        match &result {
            Ok(()) => {
                if self.active.base != savepoint.base {
                    self.after_rolls();
                }
            }
            Err(_) => self.go_back(&savepoint, now_ms),
        }
        result
    }

    fn append_step(&mut self, record: &Record<'_>, now_ms: i64) -> Result<(), Error> {
        let (record, bytes) = self.admit(record, now_ms)?;
        if self.active.must_roll_for(self.next_offset, record.timestamp, bytes, &self.config) {
            self.write()?;
            self.roll(now_ms, false)?;
        }
        self.encode(&record, bytes, now_ms)?;
        if self.buffer.len() >= WRITE_BUFFER_BYTES {
            self.write()?;
        }
        Ok(())
    }

    /// Checks whether a record may be stored; gives it with the timestamp it will have, and its stored size.
    #[inline]
    fn admit<'r>(&mut self, record: &Record<'r>, now_ms: i64) -> Result<(Record<'r>, u32), Error> {
        if self.is_read_only {
            return Err(Error::ReadOnly);
        }
        if self.pending_cut.is_some() {
            self.cut_pending(now_ms)?;
        }
        let payload = record.payload_bytes();
        if payload > self.config.max_message_bytes as usize {
            return Err(Error::TooLarge { bytes: payload, max: self.config.max_message_bytes as usize });
        }
        let mut record = *record;
        match self.config.timestamp_type {
            TimestampType::LogAppendTime => record.timestamp = now_ms,
            TimestampType::CreateTime => {
                let latest = now_ms.saturating_add(self.config.timestamp_after_max_ms);
                if record.timestamp > latest {
                    return Err(Error::FutureTimestamp { timestamp: record.timestamp, latest });
                }
            }
        }
        let bytes = self.config.record_version.encoded_len(&record).map_err(Error::Unstorable)?;
        if self.next_offset == i64::MAX {
            return Err(Error::Exhausted);
        }
        Ok((record, bytes))
    }

    /// Puts a record that was admitted into the write buffer, as the next of the active segment.
    #[inline]
    fn encode(&mut self, record: &Record<'_>, bytes: u32, now_ms: i64) -> Result<(), Error> {
        if self.buffer.capacity() == 0 {
            self.buffer = self.context.take_buffer();
        }
        if self.active.now.bytes == 0 {
            self.active.layout = self.config.record_version;
        }
        let offset = self.next_offset;
        let layout = self.active.layout;
        layout.encode(offset, record, &mut self.buffer).map_err(Error::Unstorable)?;
        self.active.note(offset, record.timestamp, bytes, self.config.index_interval_bytes);
        self.active.last_append_ms = now_ms;
        self.next_offset += 1;
        Ok(())
    }

    /// Writes the buffer to the files. Cheap where it is empty.
    ///
    /// # Errors
    /// What was in the buffer is gone, and the log end offset is back at [`Log::written_offset`].
    pub fn write(&mut self) -> Result<(), Error> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.active.write(&buffer);
        buffer.clear();
        self.context.give_buffer(buffer);
        match result {
            Ok(()) => {
                self.written = Mark {
                    offset: self.next_offset,
                    base: self.active.base,
                    position: self.active.written.bytes,
                };
                self.start_writeback();
                Ok(())
            }
            Err(source) => {
                self.next_offset = self.written.offset;
                if let Err(error) = self.active.revert() {
                    self.turn_read_only("cut back a failed write", &error);
                }
                let path = segment_file(&self.dir, self.active.base, "log");
                Err(Error::Io { operation: "write", path, source })
            }
        }
    }

    fn start_writeback(&mut self) {
        if self.context.fsync == FsyncPolicy::Always {
            return;
        }
        let (from, to) = (self.active.writeback_from, self.active.written.bytes);
        if to - from >= WRITEBACK_BYTES {
            self.active.log.start_writeback(from, to - from);
            self.active.writeback_from = to;
        }
    }

    /// Writes the buffer and makes everything appended durable: one fdatasync for the log where something is unsynced.
    ///
    /// # Errors
    /// From a failed fdatasync on, the partition is read-only.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.write()?;
        if self.is_read_only {
            return Err(Error::ReadOnly);
        }
        while !self.unsynced.is_empty() {
            self.sync_oldest()?;
        }
        if self.durable == self.written && !self.active.is_cut {
            return Ok(());
        }
        self.sync_active()?;
        self.context.checkpoints.set_recovery_point(&self.topic, self.partition, self.durable.offset);
        Ok(())
    }

    fn sync_active(&mut self) -> Result<(), Error> {
        let result = self.active.log.sync_data();
        self.active.writeback_from = self.active.written.bytes;
        self.synced(result)?;
        self.active.is_cut = false;
        self.durable = self.written;
        Ok(())
    }

    fn synced(&mut self, result: std::io::Result<()>) -> Result<(), Error> {
        result.map_err(|source| {
            self.turn_read_only("fdatasync", &source);
            let path = segment_file(&self.dir, self.active.base, "log");
            Error::Io { operation: "fdatasync", path, source }
        })
    }

    pub(super) fn turn_read_only(&mut self, operation: &str, error: &std::io::Error) {
        self.is_read_only = true;
        log::error!(
            "{}/{} is read-only until a restart: {operation} failed: {error}",
            self.topic,
            self.partition
        );
    }

    /// Lets readers see what is written (and, under `always`, durable). The loop calls it after the flush of a turn.
    pub fn publish(&mut self) {
        self.published = match self.context.fsync {
            FsyncPolicy::Always => self.durable,
            FsyncPolicy::EveryMs(_) | FsyncPolicy::Never => self.written,
        };
    }

    /// A slice of background work: syncs one sealed segment whose bytes were not synced at its roll. Returns whether more is left.
    /// From a failed fdatasync on, the partition is read-only.
    pub fn background(&mut self) -> bool {
        if let Err(error) = self.sync_oldest() {
            log::error!("{}/{}: {error}", self.topic, self.partition);
        }
        !self.unsynced.is_empty()
    }

    fn sync_oldest(&mut self) -> Result<(), Error> {
        let Some(segment) = self.unsynced.pop_front() else { return Ok(()) };
        if self.is_read_only {
            return Ok(());
        }
        self.synced(segment.log.sync_data())?;
        self.sync_indexes(&segment.index, &segment.time);
        let mark = Mark { offset: segment.next_base, base: segment.next_base, position: 0 };
        if mark.offset > self.durable.offset {
            self.durable = mark;
            self.context.checkpoints.set_recovery_point(&self.topic, self.partition, mark.offset);
        }
        Ok(())
    }

    /// Syncs the indexes of a sealed segment; one that fails is removed, so that it is rebuilt from the log.
    fn sync_indexes(
        &self,
        index: &SparseIndex<F::File, OffsetRow>,
        time: &SparseIndex<F::File, TimeRow>,
    ) {
        for (path, result) in [(index.path(), index.sync()), (time.path(), time.sync())] {
            if let Err(error) = result {
                log::error!("fdatasync of {} failed: {error}; it will be rebuilt", path.display());
                if let Err(error) = self.context.fs.remove_file(path) {
                    log::error!("{} cannot be removed: {error}", path.display());
                }
            }
        }
    }

    /// Seals the active segment and opens a new one for the next offset. Everything is written before. With `is_final` the roll is
    /// recorded at once; within a batch that is left to [`Log::after_rolls`].
    ///
    /// # Errors
    /// The segment that was active still is.
    pub(super) fn roll(&mut self, now_ms: i64, is_final: bool) -> Result<(), Error> {
        let base = self.active.base;
        let extent = self.active.written;
        if base == self.next_offset {
            // Empty: it is the new segment already.
            return Ok(());
        }
        let path = segment_file(&self.dir, base, "log");
        let is_unsynced = self.durable != self.written || self.active.is_cut;
        if self.context.fsync == FsyncPolicy::Always && is_unsynced {
            self.sync_active()?;
        }
        let created = self
            .active
            .trim()
            .map_err(Error::io("seal", &path))
            .and_then(|()| self.create_segment(now_ms));
        let mut active = match created {
            Ok(active) => active,
            Err(error) => {
                if let Err(error) = self.active.cut_back(extent, &self.config) {
                    self.turn_read_only("reopen the active segment after a failed roll", &error);
                }
                return Err(error);
            }
        };
        std::mem::swap(&mut self.active, &mut active);
        log::info!(
            "{}/{} rolled: segment={base} bytes={} next={}",
            self.topic, self.partition, extent.bytes, self.next_offset
        );
        self.sealed.insert(base, Sealed { bytes: extent.bytes });
        self.append_times.insert(base, active.last_append_ms);
        self.written =
            Mark { offset: self.next_offset, base: self.active.base, position: 0 };
        if self.context.fsync == FsyncPolicy::Always {
            self.sync_indexes(&active.index, &active.time);
            self.durable = self.written;
        } else {
            let Active { log, index, time, .. } = active;
            self.unsynced.push_back(Unsynced { log, index, time, next_base: self.next_offset });
        }
        if is_final {
            self.after_rolls();
        }
        Ok(())
    }

    /// Records rolls: the times of last appends, the recovery point. A failure is no harm: both may lag behind.
    fn after_rolls(&mut self) {
        if let Err(error) = self.append_times.write(&self.context, &self.dir) {
            log::warn!("{}/{}: {error}", self.topic, self.partition);
        }
        if self.context.fsync == FsyncPolicy::Always {
            let checkpoints = &self.context.checkpoints;
            checkpoints.set_recovery_point(&self.topic, self.partition, self.durable.offset);
            if let Err(error) = checkpoints.write_recovery_point() {
                log::warn!("{error}");
            }
        } else if self.unsynced.len() > UNSYNCED_SEGMENTS_MAX {
            self.background();
        }
    }

    fn create_segment(&mut self, now_ms: i64) -> Result<Active<F>, Error> {
        let base = self.next_offset;
        let fs = &self.context.fs;
        let path = segment_file(&self.dir, base, "log");
        let result = Active::create(fs, &self.dir, base, &self.config, now_ms)
            .map_err(Error::io("create", &path))
            .and_then(|active| {
                fs.sync_dir(&self.dir).map_err(Error::io("fsync", &self.dir))?;
                Ok(active)
            });
        if result.is_err()
            && let Err(error) = self.remove_segment(base)
        {
            self.turn_read_only("remove a segment that could not be opened", &error);
        }
        result
    }

    /// Removes the files of a segment that came to nothing, as far as they exist. Where that fails no record may be appended any
    /// more: the next start would take the segment for a real one.
    fn remove_segment(&self, base: i64) -> std::io::Result<()> {
        for suffix in ["log", "index", "timeindex"] {
            match self.context.fs.remove_file(&segment_file(&self.dir, base, suffix)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Undoes a batch: the segments it opened go, youngest first, and the one it began in is active again, cut back.
    fn go_back(&mut self, savepoint: &Savepoint, now_ms: i64) {
        self.buffer.clear();
        self.next_offset = savepoint.next_offset;
        let result = self.reopen_savepoint(savepoint, now_ms);
        if let Err(error) = result {
            self.turn_read_only("going back behind a failed batch", &error);
        }
        let mark = Mark {
            offset: savepoint.next_offset,
            base: savepoint.base,
            position: savepoint.extent.bytes,
        };
        self.written = mark;
        if self.durable.offset >= mark.offset {
            self.durable = mark;
        }
    }

    fn reopen_savepoint(&mut self, savepoint: &Savepoint, now_ms: i64) -> std::io::Result<()> {
        if self.active.base == savepoint.base {
            return self.active.cut_back(savepoint.extent, &self.config);
        }
        let mut handle = None;
        while self.unsynced.back().is_some_and(|segment| segment.next_base > savepoint.base) {
            // The last one popped is the segment that the batch began in: its handle may know of a failed writeback.
            handle = self.unsynced.pop_back().map(|segment| segment.log);
        }
        let fs = &self.context.fs;
        let log = match handle {
            Some(log) => log,
            None => Rc::new(fs.open(&segment_file(&self.dir, savepoint.base, "log"), OpenMode::Write)?),
        };
        log.set_len(savepoint.extent.bytes)?;
        let last_append_ms = self.append_times.remove(savepoint.base).unwrap_or(now_ms);
        let active = Active::open(
            fs,
            &self.dir,
            savepoint.base,
            log,
            &self.config,
            savepoint.extent,
            savepoint.layout,
            last_append_ms,
        )?;
        let youngest = std::mem::replace(&mut self.active, active).base;
        self.active.must_roll = savepoint.must_roll;
        self.active.is_cut = true;
        let opened = self.sealed.split_off(&savepoint.base);
        self.context.handles.forget(self.id, savepoint.base);
        for base in opened.into_keys().filter(|base| *base > savepoint.base).chain([youngest]).rev() {
            self.context.handles.forget(self.id, base);
            self.append_times.remove(base);
            self.remove_segment(base)?;
        }
        self.context.fs.sync_dir(&self.dir)
    }

    /// Writes, syncs, trims the indexes. Afterwards the recovery point in the checkpoints equals the log end.
    ///
    /// # Errors
    /// What failed first; the stop is then not clean.
    pub fn close(&mut self) -> Result<(), Error> {
        self.write()?;
        self.sync()?;
        let path = segment_file(&self.dir, self.active.base, "index");
        self.active.trim().map_err(Error::io("trim", &path))?;
        self.sync_indexes(&self.active.index, &self.active.time);
        self.context.handles.forget_log(self.id);
        self.context.checkpoints.set_recovery_point(&self.topic, self.partition, self.next_offset);
        Ok(())
    }

    /// Whether there are appended records that [`Log::sync`] would have to make durable.
    pub fn is_dirty(&self) -> bool {
        !self.buffer.is_empty() || self.durable != self.written
    }

    /// Whether sealed segments wait for [`Log::background`].
    pub fn has_background(&self) -> bool {
        !self.unsynced.is_empty()
    }

    /// Whether the partition takes no appends.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Whether damage was met in it, at the start or by a read.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// The first offset that readers may ask for.
    pub fn log_start_offset(&self) -> i64 {
        self.log_start
    }

    /// The next offset to be given, buffered records included.
    pub fn log_end_offset(&self) -> i64 {
        self.next_offset
    }

    /// The end of what is written to the files.
    pub fn written_offset(&self) -> i64 {
        self.written.offset
    }

    /// The end of what is durable.
    pub fn durable_offset(&self) -> i64 {
        self.durable.offset
    }

    /// The next offset that a reader may reach.
    pub fn high_watermark(&self) -> i64 {
        self.published.offset
    }

    /// Bytes of all .log files.
    pub fn bytes(&self) -> u64 {
        self.sealed.values().map(|segment| segment.bytes).sum::<u64>() + self.active.written.bytes
    }

    /// Number of segments.
    pub fn segment_count(&self) -> usize {
        self.sealed.len() + 1
    }
}

impl<F: Fs> Drop for Log<F> {
    fn drop(&mut self) {
        self.context.handles.forget_log(self.id);
    }
}
