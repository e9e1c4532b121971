//! Rolling: sealing the active segment and opening the next; and going back behind a batch whose rolls came to nothing.

#![forbid(unsafe_code)]

use std::io;
use std::rc::Rc;

use crate::format::Layout;
use crate::fs::{File, Fs, OpenMode};

use super::active::{Active, Extent};
use super::floor_map::Sealed;
use super::log::{Log, Mark, Unsynced};
use super::names::{SEGMENT_SUFFIXES, segment_file};
use super::{Error, FsyncPolicy};

/// How many sealed segments may wait for their sync before a roll does it.
const UNSYNCED_SEGMENTS_MAX: usize = 4;

/// What a batch that rolls goes back to when it fails.
#[derive(Debug)]
pub(super) struct Savepoint {
    base: i64,
    extent: Extent,
    layout: Layout,
    must_roll: bool,
    next_offset: i64,
}

impl Savepoint {
    /// The base of the segment that was active.
    pub(super) fn base(&self) -> i64 {
        self.base
    }
}

impl<F: Fs> Log<F> {
    /// Where the log stands now. Everything is written before.
    pub(super) fn savepoint(&self) -> Savepoint {
        Savepoint {
            base: self.active.base,
            extent: self.active.written,
            layout: self.active.layout,
            must_roll: self.active.must_roll,
            next_offset: self.next_offset,
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
        if self.context.fsync == FsyncPolicy::Always && self.durable != self.written {
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
            self.topic,
            self.partition,
            extent.bytes,
            self.next_offset
        );
        self.sealed.insert(base, Sealed::new(extent.bytes));
        self.append_times.insert(base, active.last_append_ms);
        self.written = Mark {
            offset: self.next_offset,
            base: self.active.base,
            position: 0,
        };
        if self.context.fsync == FsyncPolicy::Always {
            self.sync_indexes(&active.index, &active.time);
            self.durable = self.written;
        } else {
            let Active {
                log, index, time, ..
            } = active;
            self.unsynced.push_back(Unsynced {
                log,
                index,
                time,
                base,
                next_base: self.next_offset,
            });
        }
        if is_final {
            self.after_rolls();
        }
        Ok(())
    }

    /// Records rolls: the times of last appends, the recovery point. A failure is no harm: both may lag behind.
    pub(super) fn after_rolls(&mut self) {
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
                fs.sync_dir(&self.dir)
                    .map_err(Error::io("fsync", &self.dir))?;
                Ok(active)
            });
        // Until the removal is durable, a power cut brings the empty segment back, and with it a log that ends there.
        if result.is_err()
            && let Err(error) = self
                .remove_segment(base)
                .and_then(|()| self.context.fs.sync_dir(&self.dir))
        {
            self.turn_read_only("remove a segment that could not be opened", &error);
        }
        result
    }

    /// Removes the files of a segment that came to nothing, as far as they exist. Where that fails no record may be appended any
    /// more: the next start would take the segment for a real one.
    fn remove_segment(&self, base: i64) -> io::Result<()> {
        for suffix in SEGMENT_SUFFIXES {
            match self
                .context
                .fs
                .remove_file(&segment_file(&self.dir, base, suffix))
            {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Undoes a batch: the segments it opened go, youngest first, and the one it began in is active again, cut back.
    pub(super) fn go_back(&mut self, savepoint: &Savepoint, now_ms: i64) {
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

    fn reopen_savepoint(&mut self, savepoint: &Savepoint, now_ms: i64) -> io::Result<()> {
        if self.active.base == savepoint.base {
            return self.active.cut_back(savepoint.extent, &self.config);
        }
        let mut handle = None;
        while self
            .unsynced
            .back()
            .is_some_and(|segment| segment.next_base > savepoint.base)
        {
            // The last one popped is the segment that the batch began in: its handle may know of a failed writeback.
            handle = self.unsynced.pop_back().map(|segment| segment.log);
        }
        let fs = &self.context.fs;
        let log = match handle {
            Some(log) => log,
            None => Rc::new(fs.open(
                &segment_file(&self.dir, savepoint.base, "log"),
                OpenMode::Write,
            )?),
        };
        log.set_len(savepoint.extent.bytes)?;
        log.sync_data()?;
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
        self.context.handles.forget(self.id, savepoint.base);
        self.sealed.remove(savepoint.base);
        let opened: Vec<i64> = self
            .sealed
            .range(savepoint.base..)
            .map(|(base, _)| *base)
            .collect();
        for base in opened.into_iter().chain([youngest]).rev() {
            self.sealed.remove(base);
            self.context.handles.forget(self.id, base);
            self.append_times.remove(base);
            self.remove_segment(base)?;
        }
        self.context.fs.sync_dir(&self.dir)
    }
}
