//! The indexes of a segment, held against its log as a walk goes by.
#![forbid(unsafe_code)]

use crate::format::EntryHead;
use crate::storage::{OffsetRow, TimeRow};

use super::rows::{RowFault, Rows};
use super::segment::Summary;

/// Both indexes of a segment, held against its log as the walk goes by.
pub(super) struct Checks<'r> {
    base: i64,
    offsets: Option<&'r Rows<OffsetRow>>,
    times: Option<&'r Rows<TimeRow>>,
    /// Rows that the walk has gone by.
    offset_row: usize,
    time_row: usize,
    entries: u64,
    /// The largest timestamp so far; unknown below it once there was damage.
    max_timestamp: Option<i64>,
    has_damage: bool,
    offset_faults: Vec<RowFault>,
    time_faults: Vec<RowFault>,
}

impl<'r> Checks<'r> {
    pub(super) fn new(
        offsets: Option<&'r Rows<OffsetRow>>,
        times: Option<&'r Rows<TimeRow>>,
        base: Option<i64>,
    ) -> Self {
        Self {
            base: base.unwrap_or(0),
            offsets,
            times,
            offset_row: 0,
            time_row: 0,
            entries: 0,
            max_timestamp: None,
            has_damage: false,
            offset_faults: offsets.map_or_else(Vec::new, |rows| rows.faults.clone()),
            time_faults: times.map_or_else(Vec::new, |rows| rows.faults.clone()),
        }
    }

    pub(super) fn entry(&mut self, position: u64, head: &EntryHead) {
        self.entries += 1;
        while let Some(row) = self
            .offsets
            .and_then(|rows| rows.rows.get(self.offset_row))
            .copied()
        {
            if u64::from(row.position) > position {
                break;
            }
            let names = self.base.saturating_add(i64::from(row.relative));
            if u64::from(row.position) < position {
                self.offset_fault(format!(
                    "points to position {}, where no entry starts",
                    row.position
                ));
            } else if names != head.last_offset {
                let found = head.last_offset;
                self.offset_fault(format!(
                    "names offset {names} for the entry at position {position}, which has offset {found}"
                ));
            }
            self.offset_row += 1;
        }
        self.max_timestamp = self.max_timestamp.max(Some(head.max_timestamp));
        let relative = head.last_offset.saturating_sub(self.base);
        while let Some(row) = self
            .times
            .and_then(|rows| rows.rows.get(self.time_row))
            .copied()
        {
            if i64::from(row.relative) > relative {
                break;
            }
            self.check_time(row, relative, head.max_timestamp);
            self.time_row += 1;
        }
    }

    fn check_time(&mut self, row: TimeRow, relative: i64, timestamp: i64) {
        let largest = self.max_timestamp.unwrap_or(i64::MIN);
        if i64::from(row.relative) < relative {
            if !self.has_damage {
                let offset = self.base.saturating_add(i64::from(row.relative));
                self.time_fault(format!("names offset {offset}, which is not there"));
            }
        } else if row.timestamp != timestamp {
            self.time_fault(format!(
                "has timestamp {}, its record has {timestamp}",
                row.timestamp
            ));
        } else if largest > row.timestamp {
            self.time_fault(format!(
                "has timestamp {}, an earlier record has {largest}",
                row.timestamp
            ));
        }
    }

    /// Rows that point into damage say nothing that could be checked.
    pub(super) fn damage(&mut self, position: u64, next_position: u64) {
        self.has_damage = true;
        while let Some(row) = self.offsets.and_then(|rows| rows.rows.get(self.offset_row)) {
            if u64::from(row.position) >= next_position {
                break;
            }
            if u64::from(row.position) < position {
                self.offset_fault(format!(
                    "points to position {}, where no entry starts",
                    row.position
                ));
            }
            self.offset_row += 1;
        }
    }

    pub(super) fn finish(mut self, limit: u64, is_last: bool, summary: &mut Summary) {
        if self.entries > 0 {
            self.check_ends(limit, is_last);
        } else if !self.has_damage && limit == 0 {
            let rows = self.offsets.map_or(&[][..], |rows| &rows.rows);
            if rows
                .iter()
                .any(|row| row.relative != 0 || row.position != 0)
            {
                self.offset_fault("points into a log that is empty".to_owned());
            }
        }
        for faults in [&mut self.offset_faults, &mut self.time_faults] {
            faults.sort_by_key(|fault| fault.row);
            // One word on a row is enough.
            faults.dedup_by_key(|fault| fault.row);
        }
        summary.offset_faults = self.offset_faults;
        summary.time_faults = self.time_faults;
    }

    fn check_ends(&mut self, limit: u64, is_last: bool) {
        let whole = |what: &str| RowFault {
            row: 0,
            what: what.to_owned(),
        };
        match self.offsets {
            None => self.offset_faults.push(whole("is missing")),
            Some(rows) if rows.rows.is_empty() => self.offset_faults.push(whole("has no row")),
            Some(_) => {}
        }
        match self.times {
            None => self.time_faults.push(whole("is missing")),
            Some(rows) if rows.rows.is_empty() => self.time_faults.push(whole("has no row")),
            Some(_) => {}
        }
        while let Some(row) = self.offsets.and_then(|rows| rows.rows.get(self.offset_row)) {
            self.offset_fault(format!(
                "points to position {}, the log has {limit} bytes",
                row.position
            ));
            self.offset_row += 1;
        }
        while let Some(row) = self.times.and_then(|rows| rows.rows.get(self.time_row)) {
            if !self.has_damage {
                let offset = self.base.saturating_add(i64::from(row.relative));
                self.time_fault(format!("names offset {offset}, which is not there"));
            }
            self.time_row += 1;
        }
        let last_timestamp = self
            .times
            .and_then(|rows| rows.rows.last())
            .map(|row| row.timestamp);
        let largest = self.max_timestamp;
        // The last row of an active segment's time index is only written when it is sealed.
        if let (Some(last), Some(largest)) = (last_timestamp, largest)
            && !is_last
            && largest > last
            && self.time_faults.is_empty()
        {
            let what = format!("its last row has timestamp {last}, the log goes up to {largest}");
            self.time_faults.push(RowFault { row: 0, what });
        }
    }

    fn offset_fault(&mut self, what: String) {
        self.offset_faults.push(RowFault {
            row: self.offset_row + 1,
            what,
        });
    }

    fn time_fault(&mut self, what: String) {
        self.time_faults.push(RowFault {
            row: self.time_row + 1,
            what,
        });
    }
}
