//! Compaction: the last record of each key stays, with its offset, its bytes and its place among the others.
//!
//! A round has two passes, both done in slices so that the event loop never waits for one: the first notes the last offset of each
//! key from the first dirty offset on, as far as its memory reaches; the second copies every sealed segment below that point to a
//! `.cleaned` file, leaving out what the map knows a later record for, and replaces the segment (or several small neighbours) by it. The
//! active segment is never cleaned.
//!
//! Kafka's `Cleaner` and `LogCleanerManager` are the source of the rules.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::rc::Weak;

use crate::format::Layout;
use crate::fs::Fs;

use super::Error;
use super::chunk::{Chunk, Place};
use super::cleaner_copy::{Group, Output};
use super::log::Log;
use super::names::segment_file;
use super::offset_map::OffsetMap;

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
    pub(super) map: OffsetMap,
    /// The first offset that the map may speak of.
    pub(super) dirty: i64,
    /// The map speaks of offsets below this.
    pub(super) end: i64,
    /// Tombstones below this offset may go.
    pub(super) tombstones_end: i64,
    pub(super) pass: Pass<F>,
    pub(super) chunk: Chunk,
    pub(super) stats: CleanStats,
}

#[derive(Debug)]
pub(super) enum Pass<F: Fs> {
    /// The first: up to (not including) the segment with this base.
    Map { at: Place, until: i64 },
    /// The second: the next group begins with the first segment at or above this base.
    Group { from: i64 },
    /// The second, within a group.
    Copy { at: Place, group: Box<Group<F>> },
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
        // No more keys than entries, and no more entries than offsets.
        let offsets = until.saturating_sub(dirty).unsigned_abs();
        let map = OffsetMap::new(map_bytes, offsets.min(dirtiness.bytes / ENTRY_BYTES_MIN))
            .map_err(Error::io("allocation for", &self.dir))?;
        Ok(Some(Cleaning {
            map,
            dirty,
            end: dirty,
            tombstones_end,
            pass: Pass::Map {
                at: Place::start(base),
                until,
            },
            chunk: Chunk::default(),
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
            Pass::Copy { .. } => self.group_slice(cleaning, budget_bytes, now_ms),
        };
        if let Err(error) = &result {
            self.is_uncleanable |= matches!(error, Error::Corrupt(_));
            log::error!("{}/{} is not cleaned: {error}", self.topic, self.partition);
            self.drop_output(cleaning);
        }
        result
    }

    /// Removes what a round that is given up has written.
    pub fn drop_output(&mut self, cleaning: &mut Cleaning<F>) {
        let pass = std::mem::replace(&mut cleaning.pass, Pass::Group { from: i64::MAX });
        if let Pass::Copy { group, .. } = pass {
            self.drop_group(&group);
        }
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
        let Cleaning {
            map, dirty, chunk, ..
        } = cleaning;
        let mut at = at;
        self.read_chunk(at, budget_bytes, chunk, map)?;
        let mut is_full = false;
        for seen in &chunk.seen {
            let offset = seen.head.last_offset;
            if let Some(key) = seen.key.filter(|_| offset >= *dirty)
                && !map.note(key, offset)
            {
                is_full = true;
                break;
            }
            at.pass(&seen.head);
        }
        let is_over = chunk.is_end && !is_full;
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
        let output =
            Output::create(&self.context.fs, &path, first).map_err(Error::io("create", &path))?;
        cleaning.pass = Pass::Copy {
            at: Place::start(first),
            group: Box::new(Group::new(sources, output)),
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
}
