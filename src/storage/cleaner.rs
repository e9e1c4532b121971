//! Compaction: the last record of each key stays, with its offset, its bytes and its place among the others.
//!
//! A round has two passes, both done in slices so that the event loop never waits for one: the first notes the last offset of each
//! key from the first dirty offset on, as far as its memory reaches; the second copies every sealed segment below that point to a
//! `.cleaned` file, leaving out what the map knows a later record for, and replaces the segment (or several small neighbours) by it. The
//! active segment is never cleaned.
//!
//! Kafka's `Cleaner` and `LogCleanerManager` are the source of the rules.

#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;
use std::rc::{Rc, Weak};

use crate::format::{EntryHead, Layout};
use crate::fs::{File, Fs, OpenMode};
use crate::record::Record;

use super::floor_map::Sealed;
use super::log::{Log, WRITEBACK_BYTES};
use super::lookup::View;
use super::names::{SEGMENT_SUFFIXES, segment_file};
use super::offset_map::OffsetMap;
use super::rebuild::{RowBuilder, SCAN_CHUNK_BYTES, write_rows};
use super::walk::{Step, Walk};
use super::window::Window;
use super::{Error, replace};

/// Bytes that a cleaned segment gathers before it writes.
const OUTPUT_BUFFER_BYTES: usize = 256 * 1024;
/// The smallest entry: what the number of dirty records is estimated by.
const ENTRY_BYTES_MIN: u64 = 22;

/// What a round did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CleanStats {
    /// Records looked at in the second pass.
    pub records_before: u64,
    /// Records kept.
    pub records_after: u64,
    /// Bytes of the segments that were replaced.
    pub bytes_before: u64,
    /// Bytes of those that took their place.
    pub bytes_after: u64,
}

/// Segments that were replaced.
#[derive(Debug)]
pub struct Replaced<T> {
    /// Their files, under the names they have now.
    pub files: Vec<PathBuf>,
    /// Their .log files, as in [`Retired::lent`](super::retention::Retired::lent).
    pub lent: Vec<Weak<T>>,
}

/// What a slice of a round came to.
#[derive(Debug)]
pub enum CleanProgress<T> {
    /// More is to be done.
    More,
    /// A group was replaced; these files are to be removed, when the caller says.
    Replaced(Replaced<T>),
    /// The round is over.
    Done(CleanStats),
    /// The round was given up: its segments went, or its topic's policy changed. Nothing is changed.
    Aborted,
}

/// A round in progress.
#[derive(Debug)]
pub struct Cleaning<F: Fs> {
    map: OffsetMap,
    /// The first offset that the map may speak of.
    dirty: i64,
    /// The map speaks of offsets below this.
    end: i64,
    /// Tombstones below this offset may go.
    tombstones_end: i64,
    pass: Pass<F>,
    buffer: Vec<u8>,
    stats: CleanStats,
}

/// Where a walk through a segment stands between slices.
#[derive(Debug, Clone, Copy)]
struct Place {
    base: i64,
    position: u64,
    expected: i64,
}

impl Place {
    fn start(base: i64) -> Self {
        Self {
            base,
            position: 0,
            expected: base,
        }
    }
}

#[derive(Debug)]
enum Pass<F: Fs> {
    /// The first: up to (not including) the segment with this base.
    Map { at: Place, until: i64 },
    /// The second: the next group begins with the first segment at or above this base.
    Group { from: i64 },
    /// The second, within a group.
    Copy { at: Place, group: Group<F> },
}

/// Neighbours that become one segment.
#[derive(Debug)]
struct Group<F: Fs> {
    /// Base and bytes of each, as they were when the group began.
    sources: Vec<(i64, u64)>,
    output: Output<F>,
    /// Whether the manifest is on the disk.
    is_announced: bool,
}

/// A cleaned segment being written.
#[derive(Debug)]
struct Output<F: Fs> {
    base: i64,
    log: F::File,
    written: u64,
    writeback_from: u64,
    buffer: Vec<u8>,
    rows: RowBuilder,
}

impl<F: Fs> Output<F> {
    fn bytes(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn push(&mut self, entry: &[u8], head: &EntryHead, interval: u32) -> io::Result<()> {
        self.rows
            .note(self.base, self.bytes(), head, interval, false);
        self.buffer.extend_from_slice(entry);
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

impl<F: Fs> Log<F> {
    /// Begins a round with a key map of at most `map_bytes`; `None` where there is nothing to clean.
    ///
    /// # Errors
    /// `Io`.
    pub fn start_cleaning(
        &mut self,
        map_bytes: u64,
        now_ms: i64,
    ) -> Result<Option<Cleaning<F>>, Error> {
        let Some(dirtiness) = self.dirtiness(now_ms)? else {
            return Ok(None);
        };
        let dirty = self.first_dirty();
        let until = self.uncleanable(dirty, now_ms)?;
        let base = self.floor_base(dirty);
        log::info!(
            "{}/{} cleaning: from={dirty} to={until} dirty_bytes={}",
            self.topic,
            self.partition,
            dirtiness.bytes
        );
        // A segment that keeps its torn end is not rewritten, and may hold what a tombstone deletes.
        let tombstones_end = if self.torn.is_empty() {
            self.cleaned
                .tombstones_end(now_ms, self.config.delete_retention_ms)
        } else {
            0
        };
        Ok(Some(Cleaning {
            map: OffsetMap::new(map_bytes, dirtiness.bytes / ENTRY_BYTES_MIN),
            dirty,
            end: dirty,
            tombstones_end,
            pass: Pass::Map {
                at: Place::start(base),
                until,
            },
            buffer: Vec::new(),
            stats: CleanStats::default(),
        }))
    }

    /// Goes on with a round for about `budget_bytes` of reading. After an error the round is over: its files are removed, and damage keeps the log
    /// from being cleaned until a restart.
    ///
    /// # Errors
    /// `Io`; `Corrupt` where a source is damaged.
    pub fn clean_slice(
        &mut self,
        cleaning: &mut Cleaning<F>,
        budget_bytes: u64,
        now_ms: i64,
    ) -> Result<CleanProgress<F::File>, Error> {
        if !self.config.cleanup.compacts() {
            self.drop_output(cleaning);
            return Ok(CleanProgress::Aborted);
        }
        let result = match &cleaning.pass {
            Pass::Map { .. } => self.map_slice(cleaning, budget_bytes),
            Pass::Group { from } => {
                let from = *from;
                self.next_group(cleaning, from, now_ms)
            }
            Pass::Copy { .. } => self.copy_slice(cleaning, budget_bytes, now_ms),
        };
        if let Err(error) = &result {
            self.is_uncleanable |= matches!(error, Error::Corrupt(_));
            log::error!("{}/{} is not cleaned: {error}", self.topic, self.partition);
            self.drop_output(cleaning);
        }
        result
    }

    /// Removes what a round that is given up has written.
    pub fn drop_output(&self, cleaning: &mut Cleaning<F>) {
        if let Pass::Copy { group, .. } = &cleaning.pass
            && !group.is_announced
            && !self.is_read_only
        {
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
        cleaning.pass = Pass::Group { from: i64::MAX };
    }

    fn map_slice(
        &mut self,
        cleaning: &mut Cleaning<F>,
        budget_bytes: u64,
    ) -> Result<CleanProgress<F::File>, Error> {
        let Pass::Map { at, until } = cleaning.pass else {
            return Ok(CleanProgress::More);
        };
        if !self.sealed.contains_key(&at.base) {
            cleaning.pass = Pass::Group { from: i64::MAX };
            return Ok(CleanProgress::Aborted);
        }
        let next = self.next_base(at.base).unwrap_or(until);
        let (map, dirty) = (&mut cleaning.map, cleaning.dirty);
        let mut is_full = false;
        let buffer = std::mem::take(&mut cleaning.buffer);
        let (at, is_over, buffer) =
            self.walk_source(at, budget_bytes, buffer, |record, head, _| {
                let Some(key) = record.key.filter(|_| head.last_offset >= dirty) else {
                    return Ok(true);
                };
                is_full = map.is_full() && map.get(key).is_none();
                if !is_full {
                    map.put(key, head.last_offset);
                }
                Ok(!is_full)
            })?;
        cleaning.buffer = buffer;
        cleaning.end = if is_over { next } else { at.expected };
        cleaning.pass = if is_full || is_over && next >= until {
            Pass::Group { from: i64::MIN }
        } else if is_over {
            Pass::Map {
                at: Place::start(next),
                until,
            }
        } else {
            Pass::Map { at, until }
        };
        Ok(CleanProgress::More)
    }

    /// Walks through a source from `at` on until `look` says false or the budget is used; gives where it stands, and whether the source's
    /// end is reached.
    fn walk_source(
        &mut self,
        mut at: Place,
        budget_bytes: u64,
        buffer: Vec<u8>,
        mut look: impl FnMut(&Record<'_>, &EntryHead, &[u8]) -> io::Result<bool>,
    ) -> Result<(Place, bool, Vec<u8>), Error> {
        let (is_over, buffer, damage) = self.with_view(at.base, |view: &View<'_, F>, _| {
            let log = Rc::clone(view.log);
            let mut window = Window::new(&*log, view.limit, SCAN_CHUNK_BYTES, buffer);
            let mut walk = Walk::new(view.bounds, at.position, at.expected);
            let mut damage = None;
            let end = at.position.saturating_add(budget_bytes);
            let mut is_over = false;
            while at.position < end {
                let (position, head) = match walk.step(&mut window, view.index)? {
                    Step::Entry { position, head } => (position, head),
                    Step::Damage {
                        position,
                        offset,
                        next_offset,
                        ..
                    } => {
                        damage = Some((position, offset, next_offset));
                        break;
                    }
                    Step::End => {
                        is_over = true;
                        break;
                    }
                };
                let entry = window.slice(position, u64::from(head.length))?;
                let goes_on = match view.bounds.layout.decode_lenient(entry) {
                    Ok((head, stored)) => look(&stored.record, &head, entry)?,
                    Err(_) => false,
                };
                if !goes_on {
                    break;
                }
                at.position = position + u64::from(head.length);
                at.expected = walk.expected();
            }
            is_over |= at.position >= view.limit;
            Ok((is_over, window.into_buffer(), damage))
        })?;
        match damage {
            Some((position, offset, next)) => Err(self.damage(at.base, position, offset, next)),
            None => Ok((at, is_over, buffer)),
        }
    }

    /// Begins the next group, or ends the round.
    fn next_group(
        &mut self,
        cleaning: &mut Cleaning<F>,
        from: i64,
        now_ms: i64,
    ) -> Result<CleanProgress<F::File>, Error> {
        if from == i64::MAX {
            return Ok(CleanProgress::Aborted);
        }
        let mut bases = self.sealed.range(from..cleaning.end).map(|(base, _)| *base);
        // What stands beside a torn end keeps its own end, by which readers know of the loss.
        let Some(first) = bases.find(|base| !self.torn.contains(base)) else {
            self.cleaned
                .note(cleaning.end, now_ms, self.config.delete_retention_ms);
            self.cleaned.write(&self.context, &self.dir)?;
            let stats = cleaning.stats;
            log::info!(
                "{}/{} cleaned: to={} records={}->{} bytes={}->{} keys={}",
                self.topic,
                self.partition,
                cleaning.end,
                stats.records_before,
                stats.records_after,
                stats.bytes_before,
                stats.bytes_after,
                cleaning.map.len()
            );
            return Ok(CleanProgress::Done(stats));
        };
        let sources = self.group_from(first, cleaning.end)?;
        let path = segment_file(&self.dir, first, "log.cleaned");
        let create = || {
            let log = self.context.fs.open(&path, OpenMode::CreateOrKeep)?;
            log.set_len(0)?;
            Ok(log)
        };
        let log = create().map_err(Error::io("create", &path))?;
        let output = Output {
            base: first,
            log,
            written: 0,
            writeback_from: 0,
            buffer: Vec::with_capacity(OUTPUT_BUFFER_BYTES),
            rows: RowBuilder::default(),
        };
        cleaning.pass = Pass::Copy {
            at: Place::start(first),
            group: Group {
                sources,
                output,
                is_announced: false,
            },
        };
        Ok(CleanProgress::More)
    }

    /// The segments from `first` on that may become one: together within `segment.bytes` and 31 bits of offsets, of one layout.
    fn group_from(&mut self, first: i64, end: i64) -> Result<Vec<(i64, u64)>, Error> {
        let layout = self.layout_of(first)?;
        let candidates: Vec<(i64, u64)> = self
            .sealed
            .range(first..end)
            .map(|(base, segment)| (*base, segment.bytes))
            .collect();
        let mut sources: Vec<(i64, u64)> = Vec::new();
        let mut bytes = 0;
        let rows_max = u64::from(self.config.segment_index_bytes) / 12;
        for (base, size) in candidates {
            bytes += size;
            let upper = self.next_base(base).unwrap_or(self.active.base);
            let rows = bytes / u64::from(self.config.index_interval_bytes.max(1)) + 2;
            let fits = bytes <= u64::from(self.config.segment_bytes)
                && i32::try_from(upper - 1 - first).is_ok()
                && rows < rows_max
                && !self.torn.contains(&base)
                && (size == 0 || self.layout_of(base)? == layout);
            if !sources.is_empty() && !fits {
                break;
            }
            sources.push((base, size));
        }
        Ok(sources)
    }

    fn layout_of(&mut self, base: i64) -> Result<Layout, Error> {
        self.with_view(base, |view, _| Ok(view.bounds.layout))
    }

    fn copy_slice(
        &mut self,
        cleaning: &mut Cleaning<F>,
        budget_bytes: u64,
        now_ms: i64,
    ) -> Result<CleanProgress<F::File>, Error> {
        let Cleaning {
            map,
            dirty: _,
            end,
            tombstones_end,
            pass,
            buffer,
            stats,
        } = cleaning;
        let Pass::Copy { at, group } = pass else {
            return Ok(CleanProgress::More);
        };
        let is_there = |(base, bytes): &(i64, u64)| {
            self.sealed
                .get(base)
                .is_some_and(|segment| segment.bytes == *bytes)
        };
        if !group.sources.iter().all(is_there) {
            self.drop_output(cleaning);
            return Ok(CleanProgress::Aborted);
        }
        let interval = self.config.index_interval_bytes;
        let log_start = self.earliest;
        let output = &mut group.output;
        let look = |record: &Record<'_>, head: &EntryHead, entry: &[u8]| {
            stats.records_before += 1;
            let offset = head.last_offset;
            let is_last = record
                .key
                .is_some_and(|key| map.get(key).is_none_or(|last| last <= offset));
            let may_go = record.value.is_none() && offset < *tombstones_end;
            let stays = offset >= *end || offset >= log_start && is_last && !may_go;
            if stays {
                stats.records_after += 1;
                output.push(entry, head, interval)?;
            }
            Ok(true)
        };
        let taken = std::mem::take(buffer);
        let (place, is_over, given) = self.walk_source(*at, budget_bytes, taken, look)?;
        *buffer = given;
        *at = place;
        if !is_over {
            return Ok(CleanProgress::More);
        }
        let next = group.sources.iter().find(|(base, _)| *base > place.base);
        if let Some((next, _)) = next {
            *at = Place::start(*next);
            return Ok(CleanProgress::More);
        }
        stats.bytes_before += group.sources.iter().map(|(_, bytes)| bytes).sum::<u64>();
        stats.bytes_after += group.output.bytes();
        let last = group.sources.last().map_or(place.base, |(base, _)| *base);
        let files = self.replace(group, now_ms)?;
        let bases: Vec<i64> = group.sources.iter().map(|(base, _)| *base).collect();
        let lent = bases
            .into_iter()
            .flat_map(|base| self.lent.take(base))
            .collect();
        cleaning.pass = Pass::Group { from: last + 1 };
        Ok(CleanProgress::Replaced(Replaced { files, lent }))
    }

    /// Makes a cleaned segment durable and puts it in the place of its sources.
    fn replace(&mut self, group: &mut Group<F>, now_ms: i64) -> Result<Vec<PathBuf>, Error> {
        let output = &mut group.output;
        let base = output.base;
        let path = |suffix: &str| segment_file(&self.dir, base, &format!("{suffix}.cleaned"));
        output.write().map_err(Error::io("write", &path("log")))?;
        output
            .log
            .sync_data()
            .map_err(Error::io("fdatasync", &path("log")))?;
        output.rows.note_time();
        let fs = &self.context.fs;
        write_rows(fs, &path("index"), &output.rows.offset_rows)
            .and_then(|()| write_rows(fs, &path("timeindex"), &output.rows.time_rows))
            .map_err(Error::io("write", &path("index")))?;
        fs.sync_dir(&self.dir)
            .map_err(Error::io("fsync", &self.dir))?;
        if !self.cleaned.is_there() {
            // Whatever the policy becomes: from here on a missing offset is no loss.
            self.cleaned.mark();
            self.cleaned.write(&self.context, &self.dir)?;
        }
        if let Err(error) = replace::announce(&self.context, &self.dir, &group.sources) {
            if let Err(error) = replace::withdraw(fs, &self.dir, base) {
                self.turn_read_only("take back the announcement of a replacement", &error);
            }
            return Err(error);
        }
        let bases: Vec<i64> = group.sources.iter().map(|(base, _)| *base).collect();
        // From here on the cleaned files are the truth, whatever fails.
        group.is_announced = true;
        let replaced = match replace::finish(fs, &self.dir, &bases) {
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
        self.sealed.insert(base, Sealed::new(output.bytes()));
        self.append_times
            .insert(base, last_append_ms.unwrap_or(now_ms));
        if let Err(error) = self.append_times.write(&self.context, &self.dir) {
            log::warn!("{}/{}: {error}", self.topic, self.partition);
        }
        Ok(replaced)
    }
}
