//! What readers ask of a log: records, stored bytes, the way of a lookup, what segments there are.

#![forbid(unsafe_code)]

use std::io;
use std::rc::Rc;

use crate::api::{CrcMode, Explanation, FileRange, RecordState, SegmentInfo};
use crate::format::{EntryHead, Layout};
use crate::fs::{Fs, ReadAt};
use crate::record::{Records, StoredRecord};

use super::log::Log;
use super::lookup::{Found, LOOKUP_CHUNK_BYTES, Located, Trail, View};
use super::offset_index::OffsetRow;
use super::window::Window;
use super::{Error, Fetched, ReadOutcome};

/// Fetches of fewer bytes are not worth a look ahead.
const LOOK_AHEAD_BYTES: u64 = 64 * 1024;

/// What a read has given so far, and may give.
struct Give<'o> {
    out: &'o mut Records,
    /// The length of `out` when the read is full.
    records_max: u64,
    /// Stored bytes that may still be given: heads count, or a read of empty records would have no end.
    bytes_left: u64,
    crc: CrcMode,
    next_offset: i64,
}

impl Give<'_> {
    fn is_full(&self) -> bool {
        self.out.len() as u64 >= self.records_max || self.bytes_left == 0
    }

    fn push(&mut self, record: &StoredRecord<'_>, head: &EntryHead) {
        self.out.push(record);
        self.bytes_left = self.bytes_left.saturating_sub(u64::from(head.length));
        self.next_offset = head.last_offset + 1;
    }
}

/// Why a read of a segment ended.
enum Ended {
    /// The reader has enough, or damage is next.
    Here,
    /// At the end of what the segment has.
    AtLimit,
}

impl<F: Fs> Log<F> {
    fn check_range(&self, offset: i64) -> Result<(), Error> {
        let (earliest, latest) = (self.earliest, self.published.offset);
        if offset < earliest || offset > latest {
            return Err(Error::OutOfRange {
                offset,
                earliest,
                latest,
            });
        }
        Ok(())
    }

    /// Appends records from `offset` on to `out`: at most `max_records`, and none more once `max_bytes` as they are stored were read; at least one where
    /// one is there. `offset == high_watermark` gives none.
    ///
    /// # Errors
    /// `OutOfRange`; `Corrupt` where the read begins at damage; `Io`.
    pub fn read(
        &mut self,
        offset: i64,
        max_records: u64,
        max_bytes: u64,
        crc: CrcMode,
        out: &mut Records,
    ) -> Result<ReadOutcome, Error> {
        self.check_range(offset)?;
        let records_max = (out.len() as u64).saturating_add(max_records.max(1));
        let mut give = Give {
            out,
            records_max,
            bytes_left: max_bytes.max(1),
            crc,
            next_offset: offset,
        };
        let latest = self.published.offset;
        while give.next_offset < latest {
            let from = give.next_offset;
            let (base, found) = match self.locate(from, crc) {
                Ok(Some(found)) => found,
                Ok(None) => {
                    give.next_offset = latest;
                    break;
                }
                Err(Error::Corrupt(_)) if from > offset => break,
                Err(error) => return Err(error),
            };
            if from > offset && u64::from(found.head.length) > give.bytes_left {
                break;
            }
            let ended = self.with_view(base, |view, window| {
                read_from(view, window, &found, &mut give)
            })?;
            match ended {
                Ended::Here => break,
                Ended::AtLimit if give.is_full() => break,
                Ended::AtLimit => {}
            }
        }
        Ok(ReadOutcome {
            next_offset: give.next_offset,
        })
    }

    /// The stored bytes from `offset` on, at most `max_bytes` but at least one record; the first record is checked, the rest is not
    /// looked at. One fetch ends with its segment.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub fn fetch(&mut self, offset: i64, max_bytes: u64) -> Result<Fetched, Error> {
        self.check_range(offset)?;
        let latest = self.published.offset;
        let nothing = |next_offset| Fetched {
            range: None,
            first_offset: offset,
            next_offset,
        };
        if offset == latest {
            return Ok(nothing(latest));
        }
        let Some((base, found)) = self.locate(offset, CrcMode::Check)? else {
            return Ok(nothing(latest));
        };
        let has_gap = self.may_lack_records(base);
        let is_exact = base == self.published.base;
        let (file, end, next_offset) = self.with_view(base, |view, window| {
            let (end, next) = fetch_end(view, window, &found, max_bytes, is_exact)?;
            let next = match next {
                Some(next) => next,
                None if has_gap => view.end_offset(window)?,
                None => view.bounds.upper,
            };
            if max_bytes >= LOOK_AHEAD_BYTES {
                look_ahead(view, end, max_bytes);
            }
            Ok((Rc::clone(view.log), end, next))
        })?;
        self.lent.remember(base, &file);
        let file: Rc<dyn ReadAt> = file;
        let range = FileRange {
            file,
            position: found.position,
            len: end - found.position,
        };
        Ok(Fetched {
            range: Some(range),
            first_offset: found.head.first_offset,
            next_offset,
        })
    }

    /// The whole way of a lookup.
    ///
    /// # Errors
    /// `OutOfRange` (also at the high watermark itself); `Io`.
    pub fn explain(&mut self, offset: i64) -> Result<Explanation, Error> {
        self.check_range(offset)?;
        let (earliest, latest) = (self.earliest, self.published.offset);
        let out_of_range = || Error::OutOfRange {
            offset,
            earliest,
            latest,
        };
        if offset == latest {
            return Err(out_of_range());
        }
        let mut base = self.floor_base(offset);
        let first = self
            .sealed
            .first_key_value()
            .map_or(self.active.base, |(base, _)| *base);
        loop {
            let (located, trail) = self.locate_in(base, offset.max(base), CrcMode::Check)?;
            let mut explanation = Explanation {
                segment: base,
                segments: self.segment_count() as u64,
                bases: (first, self.active.base),
                index: trail.step,
                scanned_bytes: trail.scanned_bytes,
                passed_over: trail.passed_over,
                offset,
                position: 0,
                bytes: 0,
                timestamp: 0,
                state: RecordState::Damaged,
                took: std::time::Duration::ZERO,
            };
            match located {
                Located::Found(found) => {
                    let state = match self.with_view(base, |view, _| Ok(view.bounds.layout))? {
                        Layout::V1 => RecordState::NoCrc,
                        Layout::V2 => RecordState::Good,
                    };
                    explanation.fill(&found, state);
                    return Ok(explanation);
                }
                Located::Damaged {
                    position,
                    offset,
                    next,
                } => {
                    self.is_damaged = true;
                    explanation.position = position;
                    self.explain_damage(base, position, offset, next, &mut explanation)?;
                    return Ok(explanation);
                }
                Located::PastEnd => {}
            }
            let next = self.next_base(base).filter(|_| base != self.published.base);
            let gap_end = next.unwrap_or(self.published.offset);
            if let Err(Error::Corrupt(damage)) = self.check_gap(base, offset.max(base), gap_end) {
                explanation.position = damage.position;
                return Ok(explanation);
            }
            let Some(next) = next else {
                return Err(out_of_range());
            };
            base = next;
        }
    }

    fn explain_damage(
        &mut self,
        base: i64,
        position: u64,
        offset: i64,
        next: i64,
        explanation: &mut Explanation,
    ) -> Result<(), Error> {
        let found = self.with_view(base, |view, window| {
            view.lenient(window, position..view.limit, view.bounds.base, offset)
        })?;
        if let Some(found) = found.filter(|found| !found.crc_ok && found.head.first_offset < next) {
            explanation.fill(&found, RecordState::BadCrc);
        }
        Ok(())
    }

    /// What SEGMENTS shows. A sealed segment is looked into once, then remembered.
    ///
    /// # Errors
    /// `Io`.
    pub fn segments(&mut self) -> Result<Vec<SegmentInfo>, Error> {
        let bases: Vec<i64> = self
            .sealed
            .keys()
            .copied()
            .chain([self.active.base])
            .collect();
        bases
            .into_iter()
            .map(|base| self.segment_info(base))
            .collect()
    }

    fn segment_info(&mut self, base: i64) -> Result<SegmentInfo, Error> {
        let known = self.sealed.get(&base).map(|segment| segment.known);
        if let Some(info) = known.and_then(|known| known.info) {
            return Ok(info);
        }
        let info = self.with_view(base, segment_info)?;
        // Of the one that readers see a part of, the rest is to come.
        if base != self.published.base
            && let Some(known) = self.sealed.known_mut(base)
        {
            known.info = Some(info);
        }
        Ok(info)
    }
}

impl Explanation {
    fn fill(&mut self, found: &Found, state: RecordState) {
        self.offset = found.head.first_offset;
        self.position = found.position;
        self.bytes = u64::from(found.head.length);
        self.timestamp = found.head.max_timestamp;
        self.state = state;
    }
}

/// Gives records of one segment, from one that was found on.
fn read_from<F: Fs>(
    view: &View<'_, F>,
    window: &mut Window<'_>,
    found: &Found,
    give: &mut Give<'_>,
) -> io::Result<Ended> {
    let bytes = window.slice(found.position, u64::from(found.head.length))?;
    let Ok((head, mut record)) = view.bounds.layout.decode_lenient(bytes) else {
        return Ok(Ended::Here);
    };
    record.crc_ok = found.crc_ok;
    give.push(&record, &head);
    let mut position = found.position + u64::from(head.length);
    while position < view.limit {
        if give.is_full() {
            return Ok(Ended::Here);
        }
        match view.bounds.good_entry(window, position, give.next_offset)? {
            Ok((head, _)) if u64::from(head.length) > give.bytes_left => return Ok(Ended::Here),
            Ok((head, record)) => {
                give.push(&record, &head);
                position += u64::from(head.length);
            }
            Err(_) if give.crc == CrcMode::Check => return Ok(Ended::Here),
            // The next lookup finds what can be delivered.
            Err(_) => return Ok(Ended::AtLimit),
        }
    }
    Ok(Ended::AtLimit)
}

/// Where a fetch ends, and the offset of the entry there: `None` at the segment's end. `is_exact` says that the view's limit is surely an
/// entry's end.
fn fetch_end<F: Fs>(
    view: &View<'_, F>,
    window: &mut Window<'_>,
    found: &Found,
    max_bytes: u64,
    is_exact: bool,
) -> io::Result<(u64, Option<i64>)> {
    let start = found.position;
    let end_max = start.saturating_add(max_bytes);
    if view.limit <= end_max {
        return if is_exact {
            Ok((view.limit, None))
        } else {
            whole_rest(view, window, found)
        };
    }
    let row = last_row(view, end_max);
    if let Some(row) = row.filter(|row| u64::from(row.position) > start) {
        let position = u64::from(row.position);
        let offset = view.bounds.base + i64::from(row.relative);
        if let Ok(head) = view
            .bounds
            .good_head(window, position, found.head.last_offset + 1)?
            && head.last_offset == offset
        {
            return Ok((position, Some(head.first_offset)));
        }
    }
    let mut position = start + u64::from(found.head.length);
    let mut last = found.head.last_offset;
    while position < view.limit {
        let Ok(head) = view.bounds.good_head(window, position, last + 1)? else {
            return Ok((position, Some(last + 1)));
        };
        if position + u64::from(head.length) > end_max {
            return Ok((position, Some(head.first_offset)));
        }
        position += u64::from(head.length);
        last = head.last_offset;
    }
    Ok((view.limit, None))
}

/// The last row of an index at or before a position.
fn last_row<F: Fs>(view: &View<'_, F>, position_max: u64) -> Option<OffsetRow> {
    let (beyond, _) = view
        .index
        .partition_point(|row| u64::from(row.position) <= position_max);
    view.index.get(beyond.checked_sub(1)?)
}

/// Asks for the head at which the fetch after this one will end, if that is not in memory: who catches up from the disk asks next for what
/// follows, and the lookup of its end would hold the loop up behind all that was asked for before.
fn look_ahead<F: Fs>(view: &View<'_, F>, end: u64, max_bytes: u64) {
    let row = last_row(view, end.saturating_add(max_bytes));
    if let Some(position) = row.map(|row| u64::from(row.position))
        && position > end
    {
        // Where the system does not tell, the next fetch will.
        let len = (LOOKUP_CHUNK_BYTES as u64).min(view.limit.saturating_sub(position));
        let _ = view.log.is_resident(position, len);
    }
}

/// The end of a fetch of all that is left of a segment. The last heads are looked at: behind the entries of a sealed segment there may be bytes of
/// a cut that a power cut took back, and entries among them have offsets that are elsewhere now.
fn whole_rest<F: Fs>(
    view: &View<'_, F>,
    window: &mut Window<'_>,
    found: &Found,
) -> io::Result<(u64, Option<i64>)> {
    let mut position = found.position + u64::from(found.head.length);
    let mut last = found.head.last_offset;
    if let Some(row) = last_row(view, view.limit.saturating_sub(1))
        && u64::from(row.position) > position
        && let Ok(head) = view
            .bounds
            .good_head(window, u64::from(row.position), last + 1)?
        && head.last_offset == view.bounds.base + i64::from(row.relative)
    {
        position = u64::from(row.position) + u64::from(head.length);
        last = head.last_offset;
    }
    while position < view.limit {
        let Ok(head) = view.bounds.good_head(window, position, last + 1)? else {
            return Ok((position, Some(last + 1)));
        };
        position += u64::from(head.length);
        last = head.last_offset;
    }
    Ok((view.limit, None))
}

fn segment_info<F: Fs>(view: &View<'_, F>, window: &mut Window<'_>) -> io::Result<SegmentInfo> {
    let base = view.bounds.base;
    let end = view.end_offset(window)?;
    let mut at = |offset| -> io::Result<Option<i64>> {
        let (located, _): (Located, Trail) = view.locate(window, offset, CrcMode::Check)?;
        Ok(match located {
            Located::Found(found) => Some(found.head.max_timestamp),
            Located::Damaged { .. } | Located::PastEnd => None,
        })
    };
    Ok(SegmentInfo {
        base_offset: base,
        bytes: view.limit,
        records: u64::try_from(end - base).unwrap_or(0),
        index_entries: view.index.len() as u64,
        first_timestamp: at(base)?,
        last_timestamp: if end > base { at(end - 1)? } else { None },
    })
}
