//! The scan of one segment at a start that was not clean: what of it is good, and the index rows it has.

#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;

use crate::format::Layout;
use crate::fs::{File, Fs, OpenMode};

use super::names::segment_file;
use super::offset_index::{OffsetIndex, OffsetRow, OffsetRows};
use super::rebuild::{self, OldRows, RowBuilder, SCAN_CHUNK_BYTES};
use super::sealed::SealedName;
use super::sparse_index::{Row, SparseIndex};
use super::time_index::{TimeIndex, TimeRow};
use super::walk::{Bounds, Step, Walk, detect_layout};
use super::window::Window;

/// Bytes that a look at one place reads at once: a head, or a small entry.
const LOOK_CHUNK_BYTES: usize = 512;
/// Bytes that a look at many heads in a row reads at once.
const HEADS_CHUNK_BYTES: u64 = 8 * 1024;

/// What is scanned, and how.
pub(super) struct Scan<'s, F: Fs> {
    pub(super) fs: &'s F,
    pub(super) name: SealedName<'s>,
    pub(super) recovery_point: i64,
    /// Whether no segment follows: its end may be torn.
    pub(super) is_last: bool,
    /// The layout of a segment that holds no entry.
    pub(super) new_layout: Layout,
}

/// A stretch that the scan could not read, for the operator.
#[derive(Debug)]
pub(super) struct ScanDamage {
    pub(super) offset: i64,
    pub(super) position: u64,
    pub(super) next: i64,
    pub(super) what: String,
}

/// What a scan found.
#[derive(Debug)]
pub(super) struct Scanned {
    pub(super) layout: Layout,
    /// One past the last good offset.
    pub(super) end: i64,
    /// Where the last segment's torn end begins.
    pub(super) torn_from: Option<u64>,
    /// One past the highest good offset behind `torn_from`; 0 where there is none.
    pub(super) cut_end: i64,
    pub(super) damaged: Vec<ScanDamage>,
    /// Damage beyond the recovery point that a good entry follows: nothing is cut, and the next append rolls.
    pub(super) has_damage_to_keep: bool,
    pub(super) first_timestamp: Option<i64>,
    pub(super) max_timestamp: Option<TimeRow>,
    pub(super) read_bytes: u64,
    /// Rows of the files that stay, and those behind them.
    offset_rows_kept: usize,
    time_rows_kept: usize,
    builder: RowBuilder,
}

/// Where a scan starts: an offset row that holds, and the rows before it that stay.
#[derive(Debug, Clone, Copy, Default)]
struct Start {
    /// The row the scan starts at; `None` for the segment's start.
    row: Option<OffsetRow>,
    offset_rows: usize,
    time_rows: usize,
    time_row: Option<TimeRow>,
}

impl<F: Fs> Scan<'_, F> {
    pub(super) fn run(&self, log: &F::File) -> io::Result<Scanned> {
        let path = |suffix| segment_file(self.name.dir, self.name.base, suffix);
        let index = optional(SparseIndex::open_unsure(self.fs, &path("index")))?;
        let time = optional(SparseIndex::open_unsure(self.fs, &path("timeindex")))?;
        let no_rows = Vec::new();
        let rows: &dyn OffsetRows = match &index {
            Some(index) => index,
            None => &no_rows,
        };
        // Looks into places that are far apart; the walk reads ahead through another.
        let mut window = Window::new(log, self.name.size, LOOK_CHUNK_BYTES, Vec::new());
        let (base, upper) = (self.name.base, self.name.upper);
        let layout = detect_layout(&mut window, base, upper, rows)?.unwrap_or(self.new_layout);
        let bounds = Bounds {
            base,
            upper,
            layout,
        };
        let first = window.head(layout, 0)?.ok();
        let mut start = Start::default();
        if let Some(index) = &index {
            start = self.start(&bounds, index, &mut window)?;
        }
        let mut builder = RowBuilder::after(start.row, None);
        if let (Some(index), Some(row)) = (&index, start.row) {
            builder = prepare_times(&bounds, index, time.as_ref(), row, &mut start, &mut window)?;
        }
        let looked = window.read_bytes();
        let mut window = Window::new(log, self.name.size, SCAN_CHUNK_BYTES, window.into_buffer());
        let mut scanned = self.walk(bounds, rows, start, builder, &mut window)?;
        scanned.first_timestamp = first.map(|head| head.max_timestamp);
        scanned.read_bytes = looked + window.read_bytes();
        Ok(scanned)
    }

    /// The last row at or below the recovery point, among those that rise, that meets its entry.
    fn start(
        &self,
        bounds: &Bounds,
        index: &OffsetIndex<F::File>,
        window: &mut Window<'_>,
    ) -> io::Result<Start> {
        let rising = index.rising_rows();
        let is_durable =
            |row: OffsetRow| bounds.base + i64::from(row.relative) <= self.recovery_point;
        let (mut low, mut high) = (0, rising);
        while low < high {
            let middle = low + (high - low) / 2;
            if index.get(middle).is_some_and(is_durable) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        for number in (0..low).rev() {
            if let Some(row) = index.get(number)
                && bounds.is_met(window, row, bounds.base)?
            {
                return Ok(Start {
                    row: Some(row),
                    offset_rows: number + 1,
                    ..Start::default()
                });
            }
        }
        Ok(Start::default())
    }

    fn walk(
        &self,
        bounds: Bounds,
        rows: &dyn OffsetRows,
        start: Start,
        builder: RowBuilder,
        window: &mut Window<'_>,
    ) -> io::Result<Scanned> {
        let base = bounds.base;
        let mut scanned = Scanned {
            layout: bounds.layout,
            end: base,
            torn_from: None,
            cut_end: 0,
            damaged: Vec::new(),
            has_damage_to_keep: false,
            first_timestamp: None,
            max_timestamp: None,
            read_bytes: 0,
            offset_rows_kept: start.offset_rows,
            time_rows_kept: start.time_rows,
            builder,
        };
        let mut old = OldRows::new(rows);
        let from = start.row.map_or(0, |row| u64::from(row.position));
        let mut walk = Walk::new(bounds, from, base);
        loop {
            match walk.step(window, rows)? {
                Step::Entry { position, head } => {
                    let is_kept = old.has(base, position, &head);
                    let interval = self.name.interval;
                    scanned
                        .builder
                        .note(base, position, &head, interval, is_kept);
                    scanned.end = head.last_offset + 1;
                }
                Step::Damage {
                    position,
                    next_position,
                    ..
                } if self.is_last && next_position >= window.limit() => {
                    scanned.torn_from = Some(position);
                    scanned.cut_end = good_end(&bounds, window, position)?;
                    break;
                }
                Step::Damage {
                    position,
                    offset,
                    next_offset,
                    error,
                    ..
                } => {
                    old.damage_was_met();
                    scanned.has_damage_to_keep |= self.is_last && next_offset > self.recovery_point;
                    let what = format!("{error:?}");
                    scanned.damaged.push(ScanDamage {
                        offset,
                        position,
                        next: next_offset,
                        what,
                    });
                }
                Step::End => break,
            }
        }
        if !self.is_last {
            scanned.builder.note_time();
        }
        scanned.max_timestamp = scanned.builder.max_timestamp;
        Ok(scanned)
    }
}

fn optional<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(index) => Ok(Some(index)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Decides which rows of the time index stay, and makes those that may be missing up to the row that the scan starts at. Of the time
/// index's rows only those up to there count; what lies behind the last of them is looked at again, heads only.
fn prepare_times<F: File>(
    bounds: &Bounds,
    index: &OffsetIndex<F>,
    time: Option<&TimeIndex<F>>,
    row: OffsetRow,
    start: &mut Start,
    window: &mut Window<'_>,
) -> io::Result<RowBuilder> {
    let rising = time.map_or(0, SparseIndex::rising_rows);
    let mut kept = (0..rising)
        .rev()
        .find(|number| {
            let row_at = time.and_then(|time| time.get(*number));
            row_at.is_some_and(|time_row| time_row.relative <= row.relative)
        })
        .map_or(0, |number| number + 1);
    loop {
        let last = kept
            .checked_sub(1)
            .and_then(|number| time.and_then(|time| time.get(number)));
        if let Some(builder) = times_between(bounds, index, start.offset_rows, last, row, window)? {
            start.time_rows = kept;
            start.time_row = last;
            return Ok(builder);
        }
        kept = 0;
    }
}

/// A builder that holds the time rows between `last` and the scan's start; `None` where `last` names no such record.
fn times_between<F: File>(
    bounds: &Bounds,
    index: &OffsetIndex<F>,
    rows: usize,
    last: Option<TimeRow>,
    row: OffsetRow,
    window: &mut Window<'_>,
) -> io::Result<Option<RowBuilder>> {
    // Only the rows that rise up to `row` say anything: unused ones of zeros may follow.
    let stands_before = |number: &usize| {
        let relative = index.get(*number).map(|row| row.relative);
        last.zip(relative)
            .is_some_and(|(last, relative)| relative <= last.relative)
    };
    let mut number = (0..rows).rev().find(stands_before).unwrap_or(0);
    let mut position = index.get(number).map_or(0, |row| u64::from(row.position));
    if number == 0 {
        position = 0;
    }
    let mut builder = RowBuilder::after(Some(row), last);
    let mut is_named = last.is_none();
    let mut at_least = bounds.base;
    let span = u64::from(row.position).saturating_sub(position);
    window.read_at_least(span.min(HEADS_CHUNK_BYTES));
    while position < u64::from(row.position) {
        // Damage down there is not this scan's business; it ends what can be known of times.
        let Ok(head) = bounds.good_head(window, position, at_least)? else {
            break;
        };
        let relative = u32::try_from(head.last_offset - bounds.base).unwrap_or(u32::MAX);
        is_named |= last
            .is_some_and(|last| last.relative == relative && last.timestamp == head.max_timestamp);
        builder.note_max(relative, head.max_timestamp);
        if index
            .get(number)
            .is_some_and(|row| u64::from(row.position) == position)
        {
            number += 1;
            builder.note_time();
        }
        position += u64::from(head.length);
        at_least = head.last_offset + 1;
    }
    window.read_at_least(LOOK_CHUNK_BYTES as u64);
    if last.is_some_and(|last| last.relative == row.relative) {
        let head = bounds.good_head(window, u64::from(row.position), bounds.base)?;
        is_named =
            head.is_ok_and(|head| last.is_some_and(|last| last.timestamp == head.max_timestamp));
    } else if let Ok(head) = bounds.good_head(window, u64::from(row.position), bounds.base)? {
        builder.note_max(row.relative, head.max_timestamp);
        builder.note_time();
    }
    Ok(is_named.then_some(builder))
}

/// One past the highest offset of an undamaged entry that frames lead to from `position` on; 0 where there is none.
fn good_end(bounds: &Bounds, window: &mut Window<'_>, position: u64) -> io::Result<i64> {
    let mut position = position;
    let mut end = 0;
    while position < window.limit() {
        let Ok(head) = window.head(bounds.layout, position)? else {
            break;
        };
        if bounds.good_entry(window, position, bounds.base)?.is_ok() {
            end = end.max(head.last_offset + 1);
        }
        position += u64::from(head.length);
    }
    Ok(end)
}

impl Scanned {
    /// Rows of the offset index.
    pub(super) fn offset_rows(&self) -> usize {
        self.offset_rows_kept + self.builder.offset_rows.len()
    }

    /// Rows of the time index.
    pub(super) fn time_rows(&self) -> usize {
        self.time_rows_kept + self.builder.time_rows.len()
    }

    /// Rows of both indexes that were there and stay.
    pub(super) fn kept_rows(&self) -> (usize, usize) {
        (self.offset_rows_kept, self.time_rows_kept)
    }

    /// Brings the index files to the rows that the scan found, where they are not so already; says whether anything but an unused
    /// tail was changed.
    pub(super) fn write_rows<F: Fs>(&self, fs: &F, name: &SealedName<'_>) -> io::Result<bool> {
        let path = |suffix| segment_file(name.dir, name.base, suffix);
        let is_sealed = name.upper != i64::MAX;
        let offsets = Change::of(
            fs,
            path("index"),
            self.offset_rows_kept,
            &self.builder.offset_rows,
        )?;
        if !offsets.missing.is_empty() {
            rebuild::cut_index::<F, TimeRow>(fs, &path("timeindex"), self.time_rows_kept)?;
        }
        let is_changed = offsets.make(fs, is_sealed)?;
        let times = Change::of(
            fs,
            path("timeindex"),
            self.time_rows_kept,
            &self.builder.time_rows,
        )?;
        Ok(times.make(fs, is_sealed)? || is_changed)
    }
}

/// What makes an index file one of its first `kept` rows and some more. Rows that are there already are not written: a full disk does not
/// stop a start.
struct Change<'r, R> {
    path: PathBuf,
    /// Rows of the file that stay.
    kept: usize,
    missing: &'r [R],
    /// Whether more than unused room goes.
    cuts_rows: bool,
}

impl<'r, R: Row> Change<'r, R> {
    fn of<F: Fs>(fs: &F, path: PathBuf, kept: usize, rows: &'r [R]) -> io::Result<Self> {
        let old = optional(SparseIndex::<F::File, R>::open_unsure(fs, &path))?;
        let row = |number| old.as_ref().and_then(|old| old.get(number));
        let is_there = |(number, wanted): &(usize, &R)| row(*number) == Some(**wanted);
        let same = (kept..).zip(rows).take_while(is_there).count();
        let kept = kept + same;
        let next = row(kept);
        let before = kept.checked_sub(1).and_then(row);
        let cuts_rows =
            next.is_some_and(|next| before.is_none_or(|before| next.rises_above(&before)));
        Ok(Self {
            path,
            kept,
            missing: rows.get(same..).unwrap_or_default(),
            cuts_rows,
        })
    }

    /// Does it; says whether anything but unused room was changed.
    fn make<F: Fs>(&self, fs: &F, is_sealed: bool) -> io::Result<bool> {
        let file = fs.open(&self.path, OpenMode::CreateOrKeep)?;
        let len = (self.kept * R::BYTES) as u64;
        if file.len()? != len {
            file.set_len(len)?;
        }
        let mut bytes = Vec::with_capacity(self.missing.len() * R::BYTES);
        for row in self.missing {
            row.encode(&mut bytes);
        }
        file.write_all_at(&bytes, len)?;
        let is_changed = !self.missing.is_empty() || self.cuts_rows;
        // Where nothing changed, that of the active segment is synced when it is sealed. Where something did, the two indexes were
        // written together, and a power cut must not leave one of them.
        if is_sealed || is_changed {
            file.sync_data()?;
        }
        Ok(is_changed)
    }
}
