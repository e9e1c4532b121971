//! From a time to the first record at or after it.

#![forbid(unsafe_code)]

use std::io;

use crate::fs::Fs;

use super::Error;
use super::log::Log;
use super::lookup::View;
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
            let is_active = base == self.active.base;
            let found = self.with_view(base, |view, window| {
                find_time(view, window, timestamp, log_start, is_active)
            })?;
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

/// The first record of a segment at or after a time, and not below the log start.
///
/// Every record later than time row i lies behind that row's offset, and a row is added with the offset row that comes next; so the
/// first record at or after the time lies between the offset row below the first time row that is late enough, and that row's record.
fn find_time<F: Fs>(
    view: &View<'_, F>,
    window: &mut Window<'_>,
    timestamp: i64,
    log_start: i64,
    is_active: bool,
) -> io::Result<Option<(i64, i64)>> {
    let (number, _) = view.time.partition_point(|row| row.timestamp < timestamp);
    let below = match view.time.get(number) {
        Some(row) => {
            view.index
                .partition_point(|offset| offset.relative < row.relative)
                .0
        }
        // Only an active segment may hold something later than its last time row, and one whose index could not be had.
        None if is_active || view.time.len() == 0 => view.index.len(),
        None => return Ok(None),
    };
    let from_start = u32::try_from(log_start - view.bounds.base).map_or(0, |relative| {
        view.index.partition_point(|row| row.relative <= relative).0
    });
    let bounds = view.bounds;
    let mut start = (0, bounds.base);
    for number in (0..below.max(from_start)).rev() {
        if let Some(row) = view.index.get(number)
            && u64::from(row.position) < view.limit
            && bounds.is_met(window, row, bounds.base)?
        {
            start = (u64::from(row.position), bounds.base);
            break;
        }
    }
    let mut walk = Walk::new(bounds, start.0, start.1);
    loop {
        match walk.step(window, view.index)? {
            Step::Entry { head, .. } => {
                if head.max_timestamp >= timestamp && head.first_offset >= log_start {
                    return Ok(Some((head.first_offset, head.max_timestamp)));
                }
            }
            Step::Damage { .. } => {}
            Step::End => return Ok(None),
        }
    }
}
