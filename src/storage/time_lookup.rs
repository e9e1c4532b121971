//! From a time to the first record at or after it.

#![forbid(unsafe_code)]

use std::io;

use crate::fs::Fs;

use super::Error;
use super::log::Log;
use super::lookup::View;
use super::offset_index::OffsetRow;
use super::time_index::TimeRow;
use super::walk::{Step, Walk};
use super::window::Window;

impl<F: Fs> Log<F> {
    /// Offset and timestamp of the first record (by offset, from the log start to the high watermark) whose timestamp is at least
    /// `timestamp`. Segments whose largest timestamp is lower are passed over by their time index.
    ///
    /// # Errors
    /// `Io`. Damaged records are passed over.
    pub fn offset_at_time(&mut self, timestamp: i64) -> Result<Option<(i64, i64)>, Error> {
        if self.earliest >= self.published.offset {
            return Ok(None);
        }
        let log_start = self.earliest;
        let mut base = self.floor_base(log_start);
        loop {
            if self.is_earlier(base, timestamp)?
                && let Some(next) = self.next_base(base)
            {
                base = next;
                continue;
            }
            let is_active = base == self.active.base;
            let Answer { found, is_odd } = self.with_view(base, |view, window| {
                find_time(view, window, timestamp, log_start, is_active)
            })?;
            if is_odd {
                self.mend_index(base);
            }
            if found.is_some() || base == self.published.base {
                return Ok(found);
            }
            let Some(next) = self.next_base(base) else {
                return Ok(None);
            };
            base = next;
        }
    }
}

impl<F: Fs> Log<F> {
    /// Whether all records of a sealed segment are before a time.
    fn is_earlier(&mut self, base: i64, timestamp: i64) -> Result<bool, Error> {
        if base == self.active.base || base == self.published.base {
            return Ok(false);
        }
        let largest = self.largest_timestamp(base)?;
        Ok(largest.is_some_and(|largest| largest < timestamp))
    }

    /// The largest timestamp of a sealed segment, by its time index: looked up once, then remembered. `None` where it has no record, or its
    /// index could not be had.
    pub(super) fn largest_timestamp(&mut self, base: i64) -> Result<Option<i64>, Error> {
        let known = self.sealed.get(&base).map(|segment| segment.known);
        if let Some(largest) = known.and_then(|known| known.largest_timestamp) {
            return Ok(Some(largest));
        }
        let largest = self.with_view(base, |view, _| {
            Ok(view.time.last().map(|row| row.timestamp))
        })?;
        if let Some(known) = self.sealed.known_mut(base) {
            known.largest_timestamp = largest;
        }
        Ok(largest)
    }
}

/// What a segment has to say of a time.
struct Answer {
    /// Offset and timestamp of the record.
    found: Option<(i64, i64)>,
    /// The time index named what the log does not have.
    is_odd: bool,
}

/// The first record of a segment at or after a time, and not below the log start.
///
/// Every record later than time row i lies behind that row's offset, and a row is added with the offset row that comes next; so the
/// first record at or after the time lies between the offset row below the first time row that is late enough, and that row's record.
/// That row and the one before it are checked against the log: garbage among the rows may have led the search astray, and then the
/// whole segment is looked at.
fn find_time<F: Fs>(
    view: &View<'_, F>,
    window: &mut Window<'_>,
    timestamp: i64,
    log_start: i64,
    is_active: bool,
) -> io::Result<Answer> {
    let (number, _) = view.time.partition_point(|row| row.timestamp < timestamp);
    let row = view.time.get(number);
    // Only an active segment may hold something later than its last time row, and one whose index could not be had.
    if row.is_none() && !is_active && view.time.len() > 0 {
        return Ok(Answer {
            found: None,
            is_odd: false,
        });
    }
    let mut is_odd = false;
    let before = number
        .checked_sub(1)
        .and_then(|number| view.time.get(number));
    for row in [before, row].into_iter().flatten() {
        if view.bounds.base + i64::from(row.relative) >= view.bounds.upper {
            // It stands for a record that readers do not see yet.
            continue;
        }
        is_odd |= !is_named(view, window, row)?;
    }
    let below = match row {
        _ if is_odd => 0,
        Some(row) => row.relative,
        None => u32::MAX,
    };
    let from_start = u32::try_from(log_start - view.bounds.base).unwrap_or(0);
    let start = start_below(view, window, below, from_start)?;
    let mut walk = Walk::new(view.bounds, start, view.bounds.base);
    loop {
        match walk.step(window, view.index)? {
            Step::Entry { head, .. } => {
                if head.max_timestamp >= timestamp && head.first_offset >= log_start {
                    let found = Some((head.first_offset, head.max_timestamp));
                    return Ok(Answer { found, is_odd });
                }
            }
            Step::Damage { .. } => {}
            Step::End => {
                return Ok(Answer {
                    found: None,
                    is_odd,
                });
            }
        }
    }
}

/// The position of the last entry that a row leads to, with a row below `below` or not above `from_start`; 0 where there is none.
fn start_below<F: Fs>(
    view: &View<'_, F>,
    window: &mut Window<'_>,
    below: u32,
    from_start: u32,
) -> io::Result<u64> {
    let is_before = |row: &OffsetRow| row.relative < below || row.relative <= from_start;
    let (rows, _) = view.index.partition_point(is_before);
    for number in (0..rows).rev() {
        if let Some(row) = view.index.get(number).filter(is_before)
            && u64::from(row.position) < view.limit
            && view.bounds.is_met(window, row, view.bounds.base)?
        {
            return Ok(u64::from(row.position));
        }
    }
    Ok(0)
}

/// Whether the record that a time row names is there with the row's timestamp.
fn is_named<F: Fs>(view: &View<'_, F>, window: &mut Window<'_>, row: TimeRow) -> io::Result<bool> {
    let offset = view.bounds.base + i64::from(row.relative);
    let mut position = start_below(view, window, row.relative, 0)?;
    let mut at_least = view.bounds.base;
    while position < view.limit {
        let Ok(head) = view.bounds.good_head(window, position, at_least)? else {
            return Ok(false);
        };
        if head.last_offset >= offset {
            return Ok(head.last_offset == offset && head.max_timestamp == row.timestamp);
        }
        position += u64::from(head.length);
        at_least = head.last_offset + 1;
    }
    Ok(false)
}
