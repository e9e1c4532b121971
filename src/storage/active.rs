//! The active segment: the one that is appended to.
//!
//! Entries and index rows are gathered (the entries in the log's write buffer, the rows in the indexes) and written
//! together; [`Active::revert`] brings the segment back to what is written.

#![forbid(unsafe_code)]

use std::io;
use std::path::Path;
use std::rc::Rc;

use crate::format::Layout;
use crate::fs::{File, Fs, OpenMode};

use super::LogConfig;
use super::names::segment_file;
use super::offset_index::{OffsetIndex, OffsetRow};
use super::sparse_index::SparseIndex;
use super::time_index::{TimeIndex, TimeRow};

/// Where a segment stands: what a failed write goes back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Extent {
    /// Bytes of entries.
    pub(super) bytes: u64,
    /// The first entry's timestamp.
    pub(super) first_timestamp: Option<i64>,
    /// The largest timestamp and the record that carries it.
    pub(super) max_timestamp: Option<TimeRow>,
    /// Rows of the offset index.
    pub(super) offset_rows: usize,
    /// Rows of the time index.
    pub(super) time_rows: usize,
}

/// Where the next entries may stand, as far as nothing else has to be looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// An entry that starts here or behind gets an index row.
    pub(super) row_due: u64,
    /// They end here at the latest.
    pub(super) end: u64,
    /// The last offset.
    pub(super) offset_max: i64,
}

#[derive(Debug)]
pub(super) struct Active<F: Fs> {
    pub(super) base: i64,
    pub(super) log: Rc<F::File>,
    pub(super) index: OffsetIndex<F::File>,
    pub(super) time: TimeIndex<F::File>,
    /// The layout of its entries; of those to come where it is empty.
    pub(super) layout: Layout,
    /// With what is in the write buffer.
    pub(super) now: Extent,
    /// Without it.
    pub(super) written: Extent,
    /// Milliseconds of the broker's clock at the last append.
    pub(super) last_append_ms: i64,
    /// The next append rolls, whatever the rules say: there is damage behind which nothing may be appended.
    pub(super) must_roll: bool,
    /// Where writeback was asked for up to, bytes.
    pub(super) writeback_from: u64,
}

impl<F: Fs> Active<F> {
    /// Creates the three files of a new segment. Stale files of the name (a segment that could not be removed) are emptied.
    pub(super) fn create(
        fs: &F,
        dir: &Path,
        base: i64,
        config: &LogConfig,
        now_ms: i64,
    ) -> io::Result<Self> {
        let log = fs.open(&segment_file(dir, base, "log"), OpenMode::CreateOrKeep)?;
        if !log.is_empty()? {
            log.set_len(0)?;
        }
        let log = Rc::new(log);
        Self::open(
            fs,
            dir,
            base,
            log,
            config,
            Extent::default(),
            config.record_version,
            now_ms,
        )
    }

    /// Opens the indexes beside a log whose extent is known.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of a segment, each of its own type"
    )]
    pub(super) fn open(
        fs: &F,
        dir: &Path,
        base: i64,
        log: Rc<F::File>,
        config: &LogConfig,
        extent: Extent,
        layout: Layout,
        last_append_ms: i64,
    ) -> io::Result<Self> {
        let capacity = config.segment_index_bytes;
        let index_path = segment_file(dir, base, "index");
        let index = SparseIndex::open_active(fs, &index_path, extent.offset_rows, capacity)?;
        let time_path = segment_file(dir, base, "timeindex");
        let time = SparseIndex::open_active(fs, &time_path, extent.time_rows, capacity)?;
        Ok(Self {
            base,
            log,
            index,
            time,
            layout,
            now: extent,
            written: extent,
            last_append_ms,
            must_roll: false,
            writeback_from: extent.bytes,
        })
    }

    /// Takes note of an entry that was put into the write buffer.
    pub(super) fn note(&mut self, offset: i64, timestamp: i64, bytes: u32, interval: u32) {
        // The roll rules keep both within 31 bits.
        let relative = u32::try_from(offset - self.base).unwrap_or(u32::MAX);
        let position = self.now.bytes;
        if self
            .now
            .max_timestamp
            .is_none_or(|max| timestamp > max.timestamp)
        {
            self.now.max_timestamp = Some(TimeRow {
                timestamp,
                relative,
            });
        }
        if position == 0 {
            self.now.first_timestamp = Some(timestamp);
        }
        if self.index.wants(position, interval) {
            let position = u32::try_from(position).unwrap_or(u32::MAX);
            self.index.push(OffsetRow { relative, position });
            self.now.offset_rows += 1;
            self.note_time();
        }
        self.now.bytes += u64::from(bytes);
    }

    /// Makes a time row for the largest timestamp, where it has none.
    fn note_time(&mut self) {
        if let Some(max) = self.now.max_timestamp
            && self.time.last().is_none_or(|last| max.may_follow(&last))
        {
            self.time.push(max);
            self.now.time_rows += 1;
        }
    }

    /// Writes entries and gathered rows; lookups see them.
    pub(super) fn write(&mut self, entries: &[u8]) -> io::Result<()> {
        self.log.write_all_at(entries, self.written.bytes)?;
        self.index.write_pending()?;
        self.time.write_pending()?;
        self.index.commit();
        self.time.commit();
        self.written = self.now;
        Ok(())
    }

    /// Goes back to what is written, and cuts what a failed write may have left behind it.
    pub(super) fn revert(&mut self) -> io::Result<()> {
        self.index.drop_pending();
        self.time.drop_pending();
        self.now = self.written;
        if self.log.len()? > self.written.bytes {
            self.log.set_len(self.written.bytes)?;
            // A cut that a power cut undoes would bring rubbish back behind what is durable.
            self.log.sync_data()?;
        }
        Ok(())
    }

    /// Goes back to an earlier extent, after entries behind it were written or the indexes were trimmed.
    pub(super) fn cut_back(&mut self, extent: Extent, config: &LogConfig) -> io::Result<()> {
        self.written = extent;
        let cut = self.revert();
        let capacity = config.segment_index_bytes;
        let offsets = self.index.activate(extent.offset_rows, capacity);
        let times = self.time.activate(extent.time_rows, capacity);
        cut.and(offsets).and(times)?;
        self.writeback_from = self.writeback_from.min(extent.bytes);
        Ok(())
    }

    /// Writes the last time row and cuts the index files to their rows. Everything is written before.
    pub(super) fn trim(&mut self) -> io::Result<()> {
        self.note_time();
        self.write(&[])?;
        self.index.trim()?;
        self.time.trim()
    }

    /// Whether an entry has to go into a new segment.
    pub(super) fn must_roll_for(
        &self,
        offset: i64,
        timestamp: i64,
        bytes: u32,
        config: &LogConfig,
    ) -> bool {
        let age = |first: i64| timestamp.saturating_sub(first);
        if self.now.bytes == 0 {
            return offset != self.base && (self.must_roll || self.is_beyond_range(offset));
        }
        self.must_roll
            || self.now.bytes + u64::from(bytes) > u64::from(config.segment_bytes)
            || self
                .now
                .first_timestamp
                .is_some_and(|first| age(first) >= config.segment_ms_in_force())
            || self.index.is_full(0)
            || self.time.is_full(1)
            || self.is_beyond_range(offset)
            || self.layout != config.record_version
    }

    /// How far entries with the last one's timestamp may go without a row and without a roll; `None` where the very next one may need
    /// either.
    #[inline]
    pub(super) fn window(&self, config: &LogConfig) -> Option<Window> {
        let is_ending = self.must_roll
            || self.index.is_full(0)
            || self.time.is_full(1)
            || self.layout != config.record_version;
        let last = self.index.last().filter(|_| !is_ending)?;
        Some(Window {
            row_due: u64::from(last.position) + u64::from(config.index_interval_bytes).max(1),
            end: u64::from(config.segment_bytes),
            offset_max: self
                .base
                .saturating_add(i64::from(i32::MAX))
                .min(i64::MAX - 1),
        })
    }

    fn is_beyond_range(&self, offset: i64) -> bool {
        i32::try_from(offset - self.base).is_err()
    }

    /// Whether so many rows more fit into both indexes, and the last time row behind them.
    pub(super) fn has_room_for_rows(&self, rows: u64) -> bool {
        usize::try_from(rows).is_ok_and(|rows| {
            !self.index.is_full(rows) && !self.time.is_full(rows.saturating_add(1))
        })
    }
}
