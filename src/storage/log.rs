//! One partition's log: appending, rolling, syncing, publishing.
//!
//! An append encodes into the write buffer; [`Log::write`] puts the buffer and the index rows gathered with it into the
//! files; [`Log::sync`] makes that durable; [`Log::publish`] shows it to readers. Three marks follow each other: what is
//! published is never ahead of what is written, and under `always` never ahead of what is durable.

#![forbid(unsafe_code)]

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use crate::fs::{File, Fs};

use super::active::Active;
use super::append_times::AppendTimes;
use super::cleaned::Cleaned;
use super::context::LogContext;
use super::floor_map::FloorMap;
use super::lent::Lent;
use super::names::segment_file;
use super::offset_index::OffsetRow;
use super::sparse_index::SparseIndex;
use super::time_index::TimeRow;
use super::torn::PendingCut;
use super::{Error, FsyncPolicy, LogConfig};

/// The write buffer is written when it holds so many bytes.
pub(super) const WRITE_BUFFER_BYTES: usize = 384 * 1024;
/// How many bytes of the active segment are written before the kernel is asked to put them on the disk, where no fsync does.
pub(super) const WRITEBACK_BYTES: u64 = 8 * 1024 * 1024;

/// What the kernel writes out as one.
const PAGE_BYTES: u64 = 4096;

/// A place in a log: an offset, and where the entry with it starts or will start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) offset: i64,
    pub(super) base: i64,
    pub(super) position: u64,
}

/// A sealed segment whose bytes were not synced at the roll. It holds the handles that they were written through, since closing one would lose
/// the error of a failed writeback.
#[derive(Debug)]
pub(super) struct Unsynced<F: Fs> {
    pub(super) log: Rc<F::File>,
    pub(super) index: SparseIndex<F::File, OffsetRow>,
    pub(super) time: SparseIndex<F::File, TimeRow>,
    pub(super) base: i64,
    /// The base of the segment behind it.
    pub(super) next_base: i64,
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
    pub(super) sealed: FloorMap,
    pub(super) active: Active<F>,
    pub(super) earliest: i64,
    pub(super) next_offset: i64,
    pub(super) written: Mark,
    pub(super) durable: Mark,
    pub(super) published: Mark,
    /// Entries encoded and not written; [`Log::write`] seals them.
    pub(super) buffer: Vec<u8>,
    /// Bytes of a log file under a reader's eyes, kept from read to read.
    pub(super) scratch: Vec<u8>,
    pub(super) unsynced: VecDeque<Unsynced<F>>,
    pub(super) append_times: AppendTimes,
    /// Segments beside which a .torn file stands.
    pub(super) torn: BTreeSet<i64>,
    /// Files of sealed segments that pieces were given out of, as far as somebody still holds them.
    pub(super) lent: Lent<F::File>,
    /// Segments whose indexes were rebuilt since the start because they misled a lookup.
    pub(super) mended: BTreeSet<i64>,
    /// How far compaction has come.
    pub(super) cleaned: Cleaned,
    /// A torn tail that there was no room to put aside.
    pub(super) pending_cut: Option<PendingCut>,
    pub(super) is_read_only: bool,
    pub(super) is_damaged: bool,
    /// Compaction met damage: it does not try again until a restart.
    pub(super) is_uncleanable: bool,
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

    /// Writes the buffer to the files. Cheap where it is empty.
    ///
    /// # Errors
    /// What was in the buffer is gone, and the log end offset is back at [`Log::written_offset`].
    pub fn write(&mut self) -> Result<(), Error> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        self.active.layout.seal(&mut buffer);
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
                Err(Error::Io {
                    operation: "write",
                    path,
                    source,
                })
            }
        }
    }

    /// [`Log::write`] in the middle of a turn, because the buffer is full. Under `always` the disk begins with what is written, so that the fdatasync
    /// at the turn's end has less to wait for.
    pub(super) fn spill(&mut self) -> Result<(), Error> {
        self.write()?;
        if self.context.fsync == FsyncPolicy::Always {
            // The last page will be written to again.
            let to = self.active.written.bytes / PAGE_BYTES * PAGE_BYTES;
            let from = self.active.writeback_from;
            if to > from {
                self.active.log.start_writeback(from, to - from);
                self.active.writeback_from = to;
            }
        }
        Ok(())
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
        if self.durable == self.written {
            return Ok(());
        }
        self.sync_active()?;
        self.note_durable();
        Ok(())
    }

    /// To be called when the file system was synced as a whole after [`Log::write`]: everything written is durable then. A failed write is told to
    /// the handle of its file, which is asked here.
    ///
    /// # Errors
    /// As [`Log::sync`].
    pub fn synced_with_all(&mut self) -> Result<(), Error> {
        let has_more = !self.buffer.is_empty() || !self.unsynced.is_empty();
        if self.is_read_only || has_more || self.durable == self.written {
            return self.sync();
        }
        let from = if self.durable.base == self.active.base {
            self.durable.position
        } else {
            0
        };
        let len = self.written.position.saturating_sub(from);
        let result = self.active.log.finish_writeback(from, len);
        self.conclude_sync(result)?;
        self.note_durable();
        Ok(())
    }

    /// A sync of the whole file system failed: what this partition has written since its last may be lost, and a later sync would not say so.
    /// The partition is read-only from here on. Returns the error that a sync of its own would have given.
    pub fn sync_failed(&mut self, error: &std::io::Error) -> Error {
        if self.is_read_only {
            return Error::ReadOnly;
        }
        self.turn_read_only("syncfs", error);
        let source = std::io::Error::new(error.kind(), error.to_string());
        Error::io("syncfs", &self.dir)(source)
    }

    fn note_durable(&self) {
        let (topic, offset) = (&self.topic, self.durable.offset);
        let checkpoints = &self.context.checkpoints;
        checkpoints.set_recovery_point(topic, self.partition, offset);
    }

    pub(super) fn sync_active(&mut self) -> Result<(), Error> {
        let result = self.active.log.sync_data();
        self.conclude_sync(result)
    }

    fn conclude_sync(&mut self, result: std::io::Result<()>) -> Result<(), Error> {
        self.active.writeback_from = self.active.written.bytes;
        self.synced(result)?;
        self.durable = self.written;
        Ok(())
    }

    pub(super) fn synced(&mut self, result: std::io::Result<()>) -> Result<(), Error> {
        result.map_err(|source| {
            self.turn_read_only("fdatasync", &source);
            let path = segment_file(&self.dir, self.active.base, "log");
            Error::Io {
                operation: "fdatasync",
                path,
                source,
            }
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
        let mark = match self.context.fsync {
            FsyncPolicy::Always => self.durable,
            FsyncPolicy::EveryMs(_) | FsyncPolicy::Never => self.written,
        };
        // What readers have seen stays visible, whatever failed since.
        if mark.offset >= self.published.offset {
            self.published = mark;
        }
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
        let Some(segment) = self.unsynced.pop_front() else {
            return Ok(());
        };
        if self.is_read_only {
            return Ok(());
        }
        self.synced(segment.log.sync_data())?;
        self.sync_indexes(&segment.index, &segment.time);
        let mark = Mark {
            offset: segment.next_base,
            base: segment.next_base,
            position: 0,
        };
        if mark.offset > self.durable.offset {
            self.durable = mark;
            self.context
                .checkpoints
                .set_recovery_point(&self.topic, self.partition, mark.offset);
        }
        Ok(())
    }

    /// Syncs the indexes of a sealed segment; one that fails is removed, so that it is rebuilt from the log.
    pub(super) fn sync_indexes(
        &self,
        index: &SparseIndex<F::File, OffsetRow>,
        time: &SparseIndex<F::File, TimeRow>,
    ) {
        for (path, result) in [(index.path(), index.sync()), (time.path(), time.sync())] {
            if let Err(error) = result {
                log::error!(
                    "fdatasync of {} failed: {error}; it will be rebuilt",
                    path.display()
                );
                let fs = &self.context.fs;
                if let Err(error) = fs.remove_file(path).and_then(|()| fs.sync_dir(&self.dir)) {
                    log::error!("{} cannot be removed: {error}", path.display());
                }
            }
        }
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
        self.context
            .checkpoints
            .set_recovery_point(&self.topic, self.partition, self.next_offset);
        Ok(())
    }

    /// Handles of files that readers were given pieces of, for who drops the log: those that are still held then are being sent from.
    pub fn take_lent(&mut self) -> Vec<Weak<F::File>> {
        self.lent.take_all()
    }

    /// The directory of its files.
    pub fn dir(&self) -> &Path {
        &self.dir
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
        self.earliest
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
        self.sealed.bytes() + self.active.written.bytes
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
