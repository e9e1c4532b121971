//! Index rows from a log: what a rebuild, a recovery and an append have in common.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::io;

use crate::format::EntryHead;
use crate::fs::{File, Fs, OpenMode};

use super::names::segment_file;
use super::offset_index::{OffsetRow, OffsetRows};
use super::sealed::SealedName;
use super::sparse_index::{Row, SparseIndex};
use super::time_index::TimeRow;
use super::walk::{Bounds, Step, Walk, detect_layout};
use super::window::Window;

/// Bytes that a scan of a whole segment reads at once.
pub(super) const SCAN_CHUNK_BYTES: usize = 256 * 1024;

/// The rows that entries get, in the order of the log.
#[derive(Debug, Default)]
pub(super) struct RowBuilder {
    pub(super) offset_rows: Vec<OffsetRow>,
    pub(super) time_rows: Vec<TimeRow>,
    /// The rows before the first of `offset_rows` and `time_rows`.
    last_offset_row: Option<OffsetRow>,
    last_time_row: Option<TimeRow>,
    /// The largest timestamp so far, and the record that carries it.
    pub(super) max_timestamp: Option<TimeRow>,
}

impl RowBuilder {
    /// A builder that goes on behind rows that are there already.
    pub(super) fn after(offset_row: Option<OffsetRow>, time_row: Option<TimeRow>) -> Self {
        Self {
            last_offset_row: offset_row,
            last_time_row: time_row,
            max_timestamp: time_row,
            ..Self::default()
        }
    }

    /// Takes note of an entry; with `is_kept` it gets a row however near the last one is. Rows that already stand for it, or for one
    /// behind it, are not made again.
    pub(super) fn note(
        &mut self,
        base: i64,
        position: u64,
        head: &EntryHead,
        interval: u32,
        is_kept: bool,
    ) {
        let (Ok(relative), Ok(position)) = (
            u32::try_from(head.last_offset - base),
            u32::try_from(position),
        ) else {
            return;
        };
        self.note_max(relative, head.max_timestamp);
        let is_due = self.last_offset_row.is_none_or(|last| {
            relative > last.relative
                && position > last.position
                && (is_kept || position - last.position >= interval)
        });
        if is_due {
            let row = OffsetRow { relative, position };
            self.offset_rows.push(row);
            self.last_offset_row = Some(row);
            self.note_time();
        }
    }

    /// Takes note of a timestamp alone.
    pub(super) fn note_max(&mut self, relative: u32, timestamp: i64) {
        if self
            .max_timestamp
            .is_none_or(|max| timestamp > max.timestamp)
        {
            self.max_timestamp = Some(TimeRow {
                timestamp,
                relative,
            });
        }
    }

    /// Makes the last time row, where the largest timestamp has none.
    pub(super) fn note_time(&mut self) {
        if let Some(max) = self.max_timestamp
            && self.last_time_row.is_none_or(|last| max.may_follow(&last))
        {
            self.time_rows.push(max);
            self.last_time_row = Some(max);
        }
    }
}

/// Writes the index files of a sealed segment anew, from its log. Where the log is damaged, rows of the old index lead on.
pub(super) fn sealed_indexes<F: Fs>(fs: &F, name: &SealedName<'_>) -> io::Result<()> {
    let path = |suffix| segment_file(name.dir, name.base, suffix);
    let old_rows = read_rows::<F>(fs, &path("index"))?;
    let log = fs.open(&path("log"), OpenMode::Read)?;
    let mut window = Window::new(&log, name.size, SCAN_CHUNK_BYTES, Vec::new());
    let mut builder = RowBuilder::default();
    if let Some(layout) = detect_layout(&mut window, name.base, name.upper, &old_rows)? {
        let bounds = Bounds {
            base: name.base,
            upper: name.upper,
            layout,
        };
        let mut walk = Walk::new(bounds, 0, name.base);
        let mut old = OldRows::new(&old_rows);
        loop {
            match walk.step(&mut window, &old_rows)? {
                Step::Entry { position, head } => {
                    let is_kept = old.has(name.base, position, &head);
                    builder.note(name.base, position, &head, name.interval, is_kept);
                }
                Step::Damage { .. } => old.damage_was_met(),
                Step::End => break,
            }
        }
    }
    builder.note_time();
    cut_index::<F, TimeRow>(fs, &path("timeindex"), 0)?;
    write_rows(fs, &path("index"), &builder.offset_rows)?;
    write_rows(fs, &path("timeindex"), &builder.time_rows)
}

/// The rows of an index that is being rebuilt. Once damage was met, those that meet an entry are kept: without them the next
/// walk would not find its way past the damage.
pub(super) struct OldRows<'r> {
    rows: &'r dyn OffsetRows,
    by_place: Option<HashSet<(u32, u32)>>,
}

impl<'r> OldRows<'r> {
    pub(super) fn new(rows: &'r dyn OffsetRows) -> Self {
        Self {
            rows,
            by_place: None,
        }
    }

    pub(super) fn damage_was_met(&mut self) {
        let rows = self.rows;
        self.by_place.get_or_insert_with(|| {
            let rows = (0..rows.row_count()).filter_map(|number| rows.row(number));
            rows.map(|row| (row.relative, row.position)).collect()
        });
    }

    /// Whether a row of the old index that is to be kept stands for the entry.
    pub(super) fn has(&self, base: i64, position: u64, head: &EntryHead) -> bool {
        let Some(by_place) = &self.by_place else {
            return false;
        };
        match (
            u32::try_from(head.last_offset - base),
            u32::try_from(position),
        ) {
            (Ok(relative), Ok(position)) => by_place.contains(&(relative, position)),
            _ => false,
        }
    }
}

/// The rows of an index file, whatever they are; none where the file is missing.
pub(super) fn read_rows<F: Fs>(fs: &F, path: &std::path::Path) -> io::Result<Vec<OffsetRow>> {
    match SparseIndex::<F::File, OffsetRow>::open_unsure(fs, path) {
        Ok(index) => Ok((0..index.len())
            .filter_map(|number| index.get(number))
            .collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Cuts an index file to its first `rows` rows, durably. A time index is cut so before its offset index changes: a lookup of a time
/// relies on both having been written together, and would not see that they were not.
pub(super) fn cut_index<F: Fs, R: Row>(
    fs: &F,
    path: &std::path::Path,
    rows: usize,
) -> io::Result<()> {
    let file = fs.open(path, OpenMode::CreateOrKeep)?;
    let len = (rows * R::BYTES) as u64;
    if file.len()? > len {
        file.set_len(len)?;
    }
    // Also where it is short enough, and where it had to be made: it may be so only in memory.
    file.sync_data()?;
    path.parent().map_or(Ok(()), |dir| fs.sync_dir(dir))
}

/// Replaces the rows of an index file. Cut short by a crash, the file does not pass the next open's check.
pub(super) fn write_rows<F: Fs, R: Row>(
    fs: &F,
    path: &std::path::Path,
    rows: &[R],
) -> io::Result<()> {
    write_rows_unsynced(fs, path, rows)?.sync_data()
}

/// As [`write_rows`], but whoever called syncs the file that is given back.
pub(super) fn write_rows_unsynced<F: Fs, R: Row>(
    fs: &F,
    path: &std::path::Path,
    rows: &[R],
) -> io::Result<F::File> {
    let file = fs.open(path, OpenMode::CreateOrKeep)?;
    file.set_len(0)?;
    let mut bytes = Vec::with_capacity(rows.len() * R::BYTES);
    for row in rows {
        row.encode(&mut bytes);
    }
    file.write_all_at(&bytes, 0)?;
    Ok(file)
}
