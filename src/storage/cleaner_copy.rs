//! The second pass of compaction: what stays of some neighbouring segments is copied to one, which takes their place.
//!
//! Each slice ends after a bounded number of bytes or after one step of what makes the copy durable, so that no turn of the loop waits
//! for more than a few syncs that have little left to do.

#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};

use crate::format::EntryHead;
use crate::fs::{File, Fs, OpenMode};

use super::chunk::Place;
use super::cleaner::{CleanProgress, Cleaning, Pass, Replaced};
use super::floor_map::Sealed;
use super::log::Log;
use super::names::{SEGMENT_SUFFIXES, segment_file};
use super::rebuild::{RowBuilder, write_rows_unsynced};
use super::{Error, replace};

/// Bytes that a cleaned segment gathers before it writes.
const OUTPUT_BUFFER_BYTES: usize = 256 * 1024;
/// Bytes that the kernel is asked to put on the disk at once, and that a slice waits for.
const WRITEBACK_BYTES: u64 = 1024 * 1024;

/// Neighbours that become one segment.
#[derive(Debug)]
pub(super) struct Group<F: Fs> {
    /// Base and bytes of each, as they were when the group began.
    sources: Vec<(i64, u64)>,
    output: Output<F>,
    stage: Stage,
}

/// What a group's next slice does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Copies what stays.
    Copy,
    /// Waits for the output, a piece at a time; from here on.
    Settle(u64),
    /// Writes the offset index.
    Index,
    /// Writes the time index.
    TimeIndex,
    /// Syncs the files and their names: with their bytes on the disk already, that is one commit of the file system's journal.
    Sync,
    /// Announces the replacement and does it.
    Replace,
    /// The cleaned segment has its name; the announcement is to be taken away.
    Conclude,
}

/// A cleaned segment being written.
#[derive(Debug)]
pub(super) struct Output<F: Fs> {
    base: i64,
    log: F::File,
    written: u64,
    writeback_from: u64,
    buffer: Vec<u8>,
    rows: RowBuilder,
    /// Its index files, which are to be synced.
    indexes: Vec<(&'static str, F::File)>,
}

impl<F: Fs> Output<F> {
    /// Begins a segment in a file that is made empty.
    pub(super) fn create(fs: &F, path: &Path, base: i64) -> io::Result<Self> {
        let log = fs.open(path, OpenMode::CreateOrKeep)?;
        log.set_len(0)?;
        Ok(Self {
            base,
            log,
            written: 0,
            writeback_from: 0,
            buffer: Vec::with_capacity(OUTPUT_BUFFER_BYTES),
            rows: RowBuilder::default(),
            indexes: Vec::new(),
        })
    }

    fn bytes(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Takes note of an entry that stands `ahead` bytes behind what was pushed so far.
    fn note(&mut self, ahead: usize, head: &EntryHead, interval: u32) {
        let position = self.bytes() + ahead as u64;
        self.rows.note(self.base, position, head, interval, false);
    }

    /// Takes entries as they stand.
    fn push(&mut self, entries: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(entries);
        if self.buffer.len() >= OUTPUT_BUFFER_BYTES {
            self.write()
        } else {
            Ok(())
        }
    }

    fn write(&mut self) -> io::Result<()> {
        self.log.write_all_at(&self.buffer, self.written)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        // So that the sync at the end has little left to wait for.
        if self.written - self.writeback_from >= WRITEBACK_BYTES {
            let len = self.written - self.writeback_from;
            self.log.start_writeback(self.writeback_from, len);
            self.writeback_from = self.written;
        }
        Ok(())
    }
}

impl<F: Fs> Group<F> {
    pub(super) fn new(sources: Vec<(i64, u64)>, output: Output<F>) -> Self {
        Self {
            sources,
            output,
            stage: Stage::Copy,
        }
    }

    /// The name of the last segment.
    fn last(&self) -> i64 {
        let last = self.sources.last();
        last.map_or(self.output.base, |(base, _)| *base)
    }

    fn source_bytes(&self) -> u64 {
        self.sources.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl<F: Fs> Log<F> {
    /// Removes what a group has written, or completes it where its segment has its place already.
    pub(super) fn drop_group(&mut self, group: &Group<F>) {
        if self.is_read_only {
            return;
        }
        if group.stage == Stage::Conclude {
            if let Err(error) = self.conclude(group) {
                log::error!("{}/{}: {error}", self.topic, self.partition);
            }
            return;
        }
        for suffix in SEGMENT_SUFFIXES {
            let path = segment_file(&self.dir, group.output.base, &format!("{suffix}.cleaned"));
            match self.context.fs.remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    log::warn!("{} cannot be removed: {error}", path.display());
                }
                _ => {}
            }
        }
    }

    /// One slice of the second pass within a group.
    pub(super) fn group_slice(
        &mut self,
        cleaning: &mut Cleaning<F>,
        budget_bytes: u64,
        now_ms: i64,
    ) -> Result<CleanProgress<F::File>, Error> {
        let Pass::Copy { group, .. } = &mut cleaning.pass else {
            return Ok(CleanProgress::More);
        };
        let is_there = |(base, bytes): &(i64, u64)| {
            let segment = self.sealed.get(base);
            segment.is_some_and(|segment| segment.bytes == *bytes)
        };
        if group.stage != Stage::Conclude && !group.sources.iter().all(is_there) {
            self.drop_output(cleaning);
            return Ok(CleanProgress::Aborted);
        }
        match group.stage {
            Stage::Copy => self.copy_slice(cleaning, budget_bytes),
            Stage::Replace => {
                let files = self.replace(group, now_ms)?;
                group.stage = Stage::Conclude;
                let stats = &mut cleaning.stats;
                stats.bytes_before += group.source_bytes();
                stats.bytes_after += group.output.bytes();
                let bases = group.sources.iter().map(|(base, _)| *base);
                let lent = bases.flat_map(|base| self.lent.take(base)).collect();
                Ok(CleanProgress::Replaced(Replaced { files, lent }))
            }
            Stage::Conclude => {
                self.conclude(group)?;
                let from = group.last() + 1;
                cleaning.pass = Pass::Group { from };
                Ok(CleanProgress::More)
            }
            Stage::Settle(_) | Stage::Index | Stage::TimeIndex | Stage::Sync => {
                group.stage = self.make_durable(group)?;
                Ok(CleanProgress::More)
            }
        }
    }

    /// One step of what must be on the disk before a replacement is announced; gives the next.
    fn make_durable(&mut self, group: &mut Group<F>) -> Result<Stage, Error> {
        let Group { output, stage, .. } = group;
        let base = output.base;
        let path = |suffix: &str| segment_file(&self.dir, base, &format!("{suffix}.cleaned"));
        let fs = &self.context.fs;
        match *stage {
            Stage::Settle(from) if from < output.written => {
                let to = output.written.min(from + WRITEBACK_BYTES);
                let waited = output.log.finish_writeback(from, to - from);
                waited.map_err(Error::io("writeback", &path("log")))?;
                Ok(Stage::Settle(to))
            }
            Stage::Settle(_) => Ok(Stage::Index),
            Stage::Index => {
                output.rows.note_time();
                let index = write_rows_unsynced(fs, &path("index"), &output.rows.offset_rows)
                    .map_err(Error::io("write", &path("index")))?;
                output
                    .indexes
                    .push(("index", settled::<F>(index, &path("index"))?));
                Ok(Stage::TimeIndex)
            }
            Stage::TimeIndex => {
                let index = write_rows_unsynced(fs, &path("timeindex"), &output.rows.time_rows)
                    .map_err(Error::io("write", &path("timeindex")))?;
                let index = settled::<F>(index, &path("timeindex"))?;
                output.indexes.push(("timeindex", index));
                Ok(Stage::Sync)
            }
            Stage::Sync => {
                let synced = output.log.sync_data();
                synced.map_err(Error::io("fdatasync", &path("log")))?;
                for (suffix, index) in output.indexes.drain(..) {
                    let synced = index.sync_data();
                    synced.map_err(Error::io("fdatasync", &path(suffix)))?;
                }
                fs.sync_dir(&self.dir)
                    .map_err(Error::io("fsync", &self.dir))?;
                if !self.cleaned.is_there() {
                    // Whatever the policy becomes: from here on a missing offset is no loss.
                    self.cleaned.mark();
                    self.cleaned.write(&self.context, &self.dir)?;
                }
                Ok(Stage::Replace)
            }
            Stage::Copy | Stage::Replace | Stage::Conclude => Ok(*stage),
        }
    }

    fn copy_slice(
        &mut self,
        cleaning: &mut Cleaning<F>,
        budget_bytes: u64,
    ) -> Result<CleanProgress<F::File>, Error> {
        let Cleaning {
            map,
            dirty: _,
            end,
            tombstones_end,
            pass,
            chunk,
            stats,
        } = cleaning;
        let Pass::Copy { at, group } = pass else {
            return Ok(CleanProgress::More);
        };
        self.read_chunk(*at, budget_bytes, chunk, map)?;
        let (interval, log_start) = (self.config.index_interval_bytes, self.earliest);
        let output = &mut group.output;
        // Neighbours that stay are copied in one piece.
        let (mut run, mut position, mut kept) = (0..0, 0, 0);
        for seen in &chunk.seen {
            let offset = seen.head.last_offset;
            let next = position + seen.head.length as usize;
            let is_last = || {
                seen.key
                    .is_some_and(|key| map.get(key).is_none_or(|last| last <= offset))
            };
            let may_go = seen.is_tombstone && offset < *tombstones_end;
            if offset >= *end || offset >= log_start && !may_go && is_last() {
                if run.end != position {
                    output
                        .push(chunk.bytes.get(run).unwrap_or_default())
                        .map_err(Error::io("write", &self.dir))?;
                    run = position..position;
                }
                output.note(run.len(), &seen.head, interval);
                run.end = next;
                kept += 1;
            }
            at.pass(&seen.head);
            position = next;
        }
        output
            .push(chunk.bytes.get(run).unwrap_or_default())
            .map_err(Error::io("write", &self.dir))?;
        stats.records_before += chunk.seen.len() as u64;
        stats.records_after += kept;
        if !chunk.is_end {
            return Ok(CleanProgress::More);
        }
        if let Some((next, _)) = group.sources.iter().find(|(base, _)| *base > at.base) {
            *at = Place::start(*next);
            return Ok(CleanProgress::More);
        }
        output.write().map_err(Error::io("write", &self.dir))?;
        let copied = output.bytes();
        if group.sources.len() == 1 && copied == group.source_bytes() {
            // Nothing went: the segment is as good as its copy.
            stats.bytes_before += copied;
            stats.bytes_after += copied;
            let from = group.last() + 1;
            self.drop_output(cleaning);
            cleaning.pass = Pass::Group { from };
            return Ok(CleanProgress::More);
        }
        group.stage = Stage::Settle(0);
        Ok(CleanProgress::More)
    }

    /// Puts a cleaned segment, which is durable, in the place of its sources.
    fn replace(&mut self, group: &Group<F>, now_ms: i64) -> Result<Vec<PathBuf>, Error> {
        let base = group.output.base;
        let fs = &self.context.fs;
        if let Err(error) = replace::announce(&self.context, &self.dir, &group.sources) {
            if let Err(error) = replace::withdraw(fs, &self.dir, base) {
                self.turn_read_only("take back the announcement of a replacement", &error);
            }
            return Err(error);
        }
        // From here on the cleaned files are the truth, whatever fails.
        let bases: Vec<i64> = group.sources.iter().map(|(base, _)| *base).collect();
        let replaced = match replace::rename_all(fs, &self.dir, &bases) {
            Ok(replaced) => replaced,
            Err(error) => {
                // Half the names are the old, half the new: only a start can tell them apart.
                let words = io::Error::other(error.to_string());
                self.turn_read_only("replace cleaned segments", &words);
                return Err(error);
            }
        };
        let mut last_append_ms = None;
        for base in &bases {
            self.sealed.remove(*base);
            self.context.handles.forget(self.id, *base);
            self.mended.remove(base);
            last_append_ms = last_append_ms.max(self.append_times.remove(*base));
        }
        self.unsynced
            .retain(|segment| !bases.contains(&segment.base));
        self.sealed.insert(base, Sealed::new(group.output.bytes()));
        self.append_times
            .insert(base, last_append_ms.unwrap_or(now_ms));
        Ok(replaced)
    }

    /// Takes the announcement away, durably: a later `.cleaned` file of that name must not be taken for what it announces.
    fn conclude(&mut self, group: &Group<F>) -> Result<(), Error> {
        if let Err(error) = replace::conclude(&self.context.fs, &self.dir, group.output.base) {
            let words = io::Error::other(error.to_string());
            self.turn_read_only("replace cleaned segments", &words);
            return Err(error);
        }
        // The time of one segment alone is what it was.
        if group.sources.len() > 1
            && let Err(error) = self.append_times.write(&self.context, &self.dir)
        {
            log::warn!("{}/{}: {error}", self.topic, self.partition);
        }
        Ok(())
    }
}

/// The file, its bytes on the disk.
fn settled<F: Fs>(file: F::File, path: &Path) -> Result<F::File, Error> {
    file.len()
        .and_then(|len| file.finish_writeback(0, len))
        .map_err(Error::io("writeback", path))?;
    Ok(file)
}
