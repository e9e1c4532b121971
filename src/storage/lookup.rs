//! From an offset to the entry that holds it: the floor of the segments, a lower bound over the index, a short scan.
//!
//! The fast way reads heads from the index row's entry on. At anything odd (a row that does not meet its entry, a head that cannot
//! be, a checksum that is wrong) it starts over from a row that holds, with a [`Walk`] that checks everything and
//! passes damage. So an index makes lookups fast and never wrong.

#![forbid(unsafe_code)]

use std::io;
use std::rc::Rc;

use crate::api::{CrcMode, IndexStep};
use crate::format::EntryHead;
use crate::fs::Fs;

use super::floor_map::Known;
use super::log::Log;
use super::names::segment_file;
use super::offset_index::OffsetIndex;
use super::sealed::{SealedFiles, SealedName};
use super::time_index::TimeIndex;
use super::walk::{Bounds, Step, Walk};
use super::window::Window;
use super::{Damage, Error};

/// Bytes that a lookup reads at once: an interval, and something behind it.
pub(super) const LOOKUP_CHUNK_BYTES: usize = 8 * 1024;

/// Below this interval no lookup is called misled: the interval may have been made smaller after the segment was written.
const INTERVAL_DEFAULT_BYTES: u32 = 4096;

/// A segment as a reader may see it.
pub(super) struct View<'a, F: Fs> {
    pub(super) bounds: Bounds,
    /// Bytes of the log that readers may see.
    pub(super) limit: u64,
    pub(super) log: &'a Rc<F::File>,
    pub(super) index: &'a OffsetIndex<F::File>,
    pub(super) time: &'a TimeIndex<F::File>,
    /// A lookup that scans so many bytes was misled.
    interval: u64,
}

/// An entry that a lookup found, and the way to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) position: u64,
    pub(super) head: EntryHead,
    /// False only where a wrong checksum was asked to be passed over.
    pub(super) crc_ok: bool,
}

/// How a lookup went.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Trail {
    pub(super) step: Option<IndexStep>,
    /// Bytes from the row's entry (or the segment's start) to what was found.
    pub(super) scanned_bytes: u64,
    /// Entries passed over.
    pub(super) passed_over: u64,
    /// The index did not do what an index does: it should be rebuilt.
    pub(super) index_is_odd: bool,
}

/// Where a lookup ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Located {
    /// The first entry whose last offset is at least the one looked for.
    Found(Found),
    /// The offset lies in damage.
    Damaged {
        position: u64,
        offset: i64,
        next: i64,
    },
    /// The segment has no such entry.
    PastEnd,
}

impl<F: Fs> View<'_, F> {
    /// Finds the first entry at or above `offset`.
    pub(super) fn locate(
        &self,
        window: &mut Window<'_>,
        offset: i64,
        crc: CrcMode,
    ) -> io::Result<(Located, Trail)> {
        let relative = u32::try_from(offset - self.bounds.base).unwrap_or(u32::MAX);
        let (above, probes) = self.index.partition_point(|row| row.relative <= relative);
        let mut trail = Trail::default();
        let start = self.start(window, above, relative, probes, &mut trail)?;
        if let Some(found) = self.scan(window, start, offset, &mut trail)? {
            return Ok((found, trail));
        }
        self.walk(window, start, offset, crc, &mut trail)
            .map(|located| (located, trail))
    }

    /// The entry that the scan starts at: that of the last row before number `above` that is met, or the segment's first.
    /// Gives its position and the lowest offset it may have. A row beyond `relative` is passed over: garbage among the rows may have led the
    /// search astray.
    fn start(
        &self,
        window: &mut Window<'_>,
        above: usize,
        relative: u32,
        probes: u32,
        trail: &mut Trail,
    ) -> io::Result<(u64, i64)> {
        for number in (0..above).rev() {
            let Some(row) = self.index.get(number) else {
                continue;
            };
            let position = u64::from(row.position);
            let offset = self.bounds.base + i64::from(row.relative);
            let is_met = position < self.limit
                && row.relative <= relative
                && self
                    .bounds
                    .good_head(window, position, self.bounds.base)?
                    .is_ok_and(|head| head.last_offset == offset);
            if is_met {
                trail.step = Some(IndexStep {
                    entry: number as u64 + 1,
                    entries: self.index.len() as u64,
                    relative_offset: row.relative,
                    position: row.position,
                    probes,
                });
                // A later layout's entry may begin below its last offset.
                return Ok((position, self.bounds.base));
            }
            trail.index_is_odd = true;
        }
        Ok((0, self.bounds.base))
    }

    /// The fast way; `None` where something is odd.
    fn scan(
        &self,
        window: &mut Window<'_>,
        (start, mut at_least): (u64, i64),
        offset: i64,
        trail: &mut Trail,
    ) -> io::Result<Option<Located>> {
        let mut position = start;
        let mut passed = 0;
        while position < self.limit {
            let Ok(head) = self.bounds.good_head(window, position, at_least)? else {
                return Ok(None);
            };
            if head.last_offset >= offset {
                let entry = self.bounds.good_entry(window, position, at_least)?;
                trail.scanned_bytes = position - start;
                trail.passed_over = passed;
                trail.index_is_odd |= trail.scanned_bytes >= self.interval;
                return Ok(entry.ok().map(|(head, _)| {
                    Located::Found(Found {
                        position,
                        head,
                        crc_ok: true,
                    })
                }));
            }
            position += u64::from(head.length);
            at_least = head.last_offset + 1;
            passed += 1;
        }
        Ok(Some(Located::PastEnd))
    }

    /// The careful way.
    fn walk(
        &self,
        window: &mut Window<'_>,
        (start, expected): (u64, i64),
        offset: i64,
        crc: CrcMode,
        trail: &mut Trail,
    ) -> io::Result<Located> {
        let mut walk = Walk::new(self.bounds, start, expected);
        trail.passed_over = 0;
        loop {
            match walk.step(window, self.index)? {
                Step::Entry { position, head } if head.last_offset >= offset => {
                    trail.scanned_bytes = position - start;
                    return Ok(Located::Found(Found {
                        position,
                        head,
                        crc_ok: true,
                    }));
                }
                Step::Entry { .. } => trail.passed_over += 1,
                Step::Damage {
                    position,
                    offset: first,
                    next_offset,
                    next_position,
                    ..
                } => {
                    if next_offset <= offset {
                        continue;
                    }
                    trail.scanned_bytes = position - start;
                    if crc == CrcMode::Skip
                        && let Some(found) =
                            self.lenient(window, position..next_position, first, offset)?
                    {
                        return Ok(Located::Found(found));
                    }
                    let offset = first.max(offset);
                    return Ok(Located::Damaged {
                        position,
                        offset,
                        next: next_offset,
                    });
                }
                Step::End => return Ok(Located::PastEnd),
            }
        }
    }

    /// The first entry at or above `offset` in a damaged stretch whose fields hold together though its checksum is wrong.
    pub(super) fn lenient(
        &self,
        window: &mut Window<'_>,
        stretch: std::ops::Range<u64>,
        mut at_least: i64,
        offset: i64,
    ) -> io::Result<Option<Found>> {
        let mut position = stretch.start;
        while position < stretch.end {
            let Ok(head) = self.bounds.good_head(window, position, at_least)? else {
                return Ok(None);
            };
            let bytes = window.slice(position, u64::from(head.length))?;
            match self.bounds.layout.decode_lenient(bytes) {
                Ok((head, record)) if head.last_offset >= offset => {
                    return Ok(Some(Found {
                        position,
                        head,
                        crc_ok: record.crc_ok,
                    }));
                }
                Ok(_) => {}
                Err(_) => return Ok(None),
            }
            position += u64::from(head.length);
            at_least = head.last_offset + 1;
        }
        Ok(None)
    }

    /// The offset after the segment's last good entry, found from its last index row that is met.
    pub(super) fn end_offset(&self, window: &mut Window<'_>) -> io::Result<i64> {
        let mut trail = Trail::default();
        let (start, expected) = self.start(window, self.index.len(), u32::MAX, 0, &mut trail)?;
        let mut walk = Walk::new(self.bounds, start, expected);
        let mut end = self.bounds.base;
        loop {
            match walk.step(window, self.index)? {
                Step::Entry { head, .. } => end = head.last_offset + 1,
                Step::Damage { .. } => {}
                Step::End => return Ok(end),
            }
        }
    }
}

impl<F: Fs> Log<F> {
    /// The base of the segment that holds `offset` or would.
    pub(super) fn floor_base(&self, offset: i64) -> i64 {
        if offset >= self.active.base {
            return self.active.base;
        }
        let floor = self.sealed.range(..=offset).next_back();
        floor
            .or_else(|| self.sealed.first_key_value())
            .map_or(self.active.base, |(base, _)| *base)
    }

    /// The base of the segment behind one.
    pub(super) fn next_base(&self, base: i64) -> Option<i64> {
        if base == self.active.base {
            return None;
        }
        let next = self.sealed.range(base + 1..).next();
        Some(next.map_or(self.active.base, |(base, _)| *base))
    }

    /// Shows a segment to `look`, with a window over its log.
    pub(super) fn with_view<T>(
        &mut self,
        base: i64,
        look: impl FnOnce(&View<'_, F>, &mut Window<'_>) -> io::Result<T>,
    ) -> Result<T, Error> {
        let buffer = std::mem::take(&mut self.scratch);
        let (result, buffer) = self.look(base, buffer, look);
        // One large entry does not keep its memory.
        if buffer.capacity() <= 16 * LOOKUP_CHUNK_BYTES {
            self.scratch = buffer;
        }
        result.map_err(Error::io("read", &segment_file(&self.dir, base, "log")))
    }

    fn look<T>(
        &self,
        base: i64,
        buffer: Vec<u8>,
        look: impl FnOnce(&View<'_, F>, &mut Window<'_>) -> io::Result<T>,
    ) -> (io::Result<T>, Vec<u8>) {
        let sealed;
        let (log, index, time, layout, bytes) = if base == self.active.base {
            let active = &self.active;
            (
                &active.log,
                &active.index,
                &active.time,
                active.layout,
                active.written.bytes,
            )
        } else {
            match self.open_sealed(base) {
                Ok((files, bytes)) => sealed = (files, bytes),
                Err(error) => return (Err(error), buffer),
            }
            let files = &*sealed.0;
            (
                &files.log,
                &files.index,
                &files.time,
                files.layout,
                sealed.1,
            )
        };
        let is_last_seen = base == self.published.base;
        let upper = if is_last_seen {
            self.published.offset
        } else {
            self.next_base(base).unwrap_or(self.written.offset)
        };
        let limit = if is_last_seen {
            self.published.position
        } else {
            bytes
        };
        let interval = u64::from(self.config.index_interval_bytes.max(INTERVAL_DEFAULT_BYTES));
        let view = View {
            bounds: Bounds {
                base,
                upper,
                layout,
            },
            limit,
            log,
            index,
            time,
            interval,
        };
        let mut window = Window::new(&**log, limit, LOOKUP_CHUNK_BYTES, buffer);
        let result = look(&view, &mut window);
        (result, window.into_buffer())
    }

    fn sealed_name(&self, base: i64) -> SealedName<'_> {
        SealedName {
            dir: &self.dir,
            base,
            upper: self.next_base(base).unwrap_or(self.next_offset),
            size: self.sealed.get(&base).map_or(0, |segment| segment.bytes),
            interval: self.config.index_interval_bytes,
        }
    }

    fn open_sealed(&self, base: i64) -> io::Result<(Rc<SealedFiles<F>>, u64)> {
        let name = self.sealed_name(base);
        let open = || SealedFiles::open(&self.context.fs, &name);
        Ok((self.context.handles.get(self.id, base, open)?, name.size))
    }

    /// Rebuilds the indexes of a sealed segment that misled a lookup, and has the next lookup open them anew.
    /// Says whether it did; a segment's are rebuilt once.
    pub(super) fn mend_index(&mut self, base: i64) -> bool {
        if base == self.active.base || !self.mended.insert(base) {
            return false;
        }
        self.context.handles.forget(self.id, base);
        if let Some(known) = self.sealed.known_mut(base) {
            *known = Known::default();
        }
        let result = SealedFiles::rebuild(&self.context.fs, &self.sealed_name(base));
        if let Err(error) = &result {
            log::error!(
                "{}/{}: index of segment {base}: {error}",
                self.topic,
                self.partition
            );
        }
        result.is_ok()
    }

    /// Looks a segment up; where its index misled the lookup, the index is rebuilt and the lookup done again.
    pub(super) fn locate_in(
        &mut self,
        base: i64,
        offset: i64,
        crc: CrcMode,
    ) -> Result<(Located, Trail), Error> {
        let (located, trail) =
            self.with_view(base, |view, window| view.locate(window, offset, crc))?;
        if trail.index_is_odd && self.mend_index(base) {
            return self.with_view(base, |view, window| view.locate(window, offset, crc));
        }
        Ok((located, trail))
    }

    /// Finds the first entry at or above `offset`, in its segment or a later one, and gives the segment's base.
    ///
    /// # Errors
    /// `Corrupt` where the offset lies in damage; `Io`.
    pub(super) fn locate(
        &mut self,
        asked: i64,
        crc: CrcMode,
    ) -> Result<Option<(i64, Found)>, Error> {
        let mut offset = asked;
        let mut base = self.floor_base(offset);
        loop {
            let (located, _) = self.locate_in(base, offset, crc)?;
            match located {
                Located::Found(found) => return Ok(Some((base, found))),
                Located::Damaged { position, next, .. } => {
                    return Err(self.damage(base, position, asked, next));
                }
                Located::PastEnd => {}
            }
            let next = self.next_base(base).filter(|_| base != self.published.base);
            let gap_end = next.unwrap_or(self.published.offset);
            if let Err(Error::Corrupt(damage)) = self.check_gap(base, offset, gap_end) {
                return Err(Error::Corrupt(Damage {
                    offset: asked,
                    ..damage
                }));
            }
            let Some(next) = next else { return Ok(None) };
            base = next;
            offset = offset.max(next);
        }
    }

    /// Whether offsets between a segment's end and what follows it, if there are any, were lost.
    pub(super) fn may_lack_records(&self, base: i64) -> bool {
        let may_have_gaps = self.config.cleanup.compacts() || self.cleaned.is_there();
        self.torn.contains(&base) || base != self.published.base && !may_have_gaps
    }

    /// An offset past the end of a segment and below the next base was lost, where nothing removes records (no compaction, no repair), or a
    /// .torn file stands beside the segment.
    pub(super) fn check_gap(&mut self, base: i64, offset: i64, next: i64) -> Result<(), Error> {
        if offset < next && self.may_lack_records(base) {
            let bytes = self.sealed.get(&base).map(|segment| segment.bytes);
            let position = bytes.unwrap_or(self.active.written.bytes);
            return Err(self.damage(base, position, offset, next));
        }
        Ok(())
    }

    pub(super) fn damage(&mut self, segment: i64, position: u64, offset: i64, next: i64) -> Error {
        self.is_damaged = true;
        Error::Corrupt(Damage {
            offset,
            position,
            next,
            segment,
        })
    }
}
