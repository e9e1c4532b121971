//! Repairing a partition that no broker has open: damage is moved aside, so that reading passes over it without an error.
//!
//! No byte of a log is lost: what is undamaged goes into a new log, what is not into `.damaged` files beside it, and only
//! then does the new log take the old one's place, by the way that compaction replaces segments. Indexes are rebuilt.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::format::EntryHead;
use crate::fs::{File, Fs, OpenMode};

use super::cleaned::Cleaned;
use super::context::LogContext;
use super::names::{FileKind, SEGMENT_SUFFIXES, file_kind, segment_file};
use super::offset_index::{OffsetRow, OffsetRows};
use super::rebuild::{RowBuilder, SCAN_CHUNK_BYTES, read_rows, sealed_indexes, write_rows};
use super::sealed::{SealedFiles, SealedName};
use super::sparse_index::SparseIndex;
use super::time_index::TimeRow;
use super::torn::{copy, create_beside};
use super::walk::{Bounds, Step, Walk, detect_layout};
use super::window::Window;
use super::{Error, replace};

/// The interval of a rebuilt index.
const INTERVAL_BYTES: u32 = 4096;

/// A stretch of a log that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedRange {
    /// Where it starts, bytes.
    pub position: u64,
    /// Where it ends, bytes.
    pub end: u64,
    /// The first offset lost.
    pub offset: i64,
    /// The first offset behind it.
    pub next_offset: i64,
}

/// What is to be done with a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentPlan {
    /// The offset in its name.
    pub base: i64,
    /// The base of the one behind it; `i64::MAX` for the last.
    upper: i64,
    /// Bytes of its .log.
    size: u64,
    /// What is to be moved aside.
    pub damaged: Vec<DamagedRange>,
    /// Whether its indexes are to be rebuilt.
    pub indexes_are_wrong: bool,
    /// One past the last good offset.
    end: i64,
}

/// What is to be done with a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionPlan {
    /// Segments with something to be done.
    pub segments: Vec<SegmentPlan>,
    /// Names of `.torn` files: while one stands beside a segment, the offsets that it lost are reported to readers.
    pub torn: Vec<(i64, String)>,
    /// A replacement of segments was interrupted: it is finished first, and the plan made anew ([`finish_interrupted`]).
    pub is_interrupted: bool,
    /// The log ends before what was durable: an empty segment with this name says where offsets go on.
    pub goes_on_at: Option<i64>,
}

impl PartitionPlan {
    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
            && self.torn.is_empty()
            && self.goes_on_at.is_none()
            && !self.is_interrupted
    }
}

/// Finishes a replacement of segments that a crash interrupted, as the next start of a broker would: only then is it known what is to be
/// repaired. The caller holds the data directory's lock.
///
/// # Errors
/// `Io`.
pub fn finish_interrupted<F: Fs>(fs: &F, dir: &Path) -> Result<(), Error> {
    replace::finish_all(fs, dir)
}

/// Looks a partition's directory through. Offsets below `floor` (the recovery point or the log start) were durable once. Changes nothing.
///
/// # Errors
/// `Io`.
pub fn plan<F: Fs>(fs: &F, dir: &Path, floor: i64) -> Result<PartitionPlan, Error> {
    let mut plan = PartitionPlan::default();
    let mut logs = BTreeMap::new();
    for entry in fs.read_dir(dir).map_err(Error::io("read", dir))? {
        let name = entry.name.to_string_lossy().into_owned();
        match file_kind(&name) {
            FileKind::Log(base) if !entry.is_dir => {
                logs.insert(base, entry.len);
            }
            FileKind::Torn(base) => plan.torn.push((base, name)),
            FileKind::Replace(_) => plan.is_interrupted = true,
            FileKind::Log(_)
            | FileKind::Index(_)
            | FileKind::TimeIndex(_)
            | FileKind::AppendTimes
            | FileKind::Cleaned
            | FileKind::Damaged(_)
            | FileKind::Leftover
            | FileKind::Unknown => {}
        }
    }
    plan.torn.sort_unstable();
    let uppers = logs.keys().copied().skip(1).chain([i64::MAX]);
    let mut log_end = floor;
    for ((&base, &size), upper) in logs.iter().zip(uppers) {
        let path = segment_file(dir, base, "log");
        let segment = plan_segment(fs, dir, base, upper, size).map_err(Error::io("read", &path))?;
        log_end = segment.end;
        if !segment.damaged.is_empty() || segment.indexes_are_wrong {
            plan.segments.push(segment);
        }
    }
    plan.goes_on_at = (log_end < floor).then_some(floor);
    Ok(plan)
}

fn plan_segment<F: Fs>(
    fs: &F,
    dir: &Path,
    base: i64,
    upper: i64,
    size: u64,
) -> io::Result<SegmentPlan> {
    let name = SealedName {
        dir,
        base,
        upper,
        size,
        interval: INTERVAL_BYTES,
    };
    let rows = read_rows::<F>(fs, &segment_file(dir, base, "index"))?;
    let log = fs.open(&segment_file(dir, base, "log"), OpenMode::Read)?;
    let mut window = Window::new(&log, size, SCAN_CHUNK_BYTES, Vec::new());
    let mut plan = SegmentPlan {
        base,
        upper,
        size,
        damaged: Vec::new(),
        indexes_are_wrong: !indexes_pass(fs, &name, upper == i64::MAX)?,
        end: base,
    };
    let mut check = RowCheck::new(fs, &name, rows)?;
    plan.look_through(&mut window, &mut check)?;
    plan.indexes_are_wrong |= check.is_wrong();
    Ok(plan)
}

/// Whether the indexes pass the check of every open. That of a segment that was active when its broker was killed has unused room behind its rows,
/// which is no fault.
fn indexes_pass<F: Fs>(fs: &F, name: &SealedName<'_>, is_last: bool) -> io::Result<bool> {
    if is_last {
        if name.size == 0 {
            return Ok(true);
        }
        let exists = |suffix| fs.exists(&segment_file(name.dir, name.base, suffix));
        return Ok(exists("index")? && exists("timeindex")?);
    }
    Ok(SealedFiles::open_checked(fs, name)?.is_some())
}

/// Compares the rows of both indexes with a log, entry by entry.
struct RowCheck {
    offset_rows: Vec<OffsetRow>,
    time_rows: Vec<TimeRow>,
    offsets_met: usize,
    times_met: usize,
    largest: Option<i64>,
}

impl RowCheck {
    fn new<F: Fs>(fs: &F, name: &SealedName<'_>, rows: Vec<OffsetRow>) -> io::Result<Self> {
        let path = segment_file(name.dir, name.base, "timeindex");
        let time_rows = match SparseIndex::<F::File, TimeRow>::open_unsure(fs, &path) {
            Ok(index) => {
                let rising = index.rising_rows();
                (0..rising).filter_map(|number| index.get(number)).collect()
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Self {
            offset_rows: rows,
            time_rows,
            offsets_met: 0,
            times_met: 0,
            largest: None,
        })
    }

    fn note(&mut self, base: i64, position: u64, head: &EntryHead) {
        let Ok(relative) = u32::try_from(head.last_offset - base) else {
            return;
        };
        self.largest = self.largest.max(Some(head.max_timestamp));
        let is_met =
            |row: OffsetRow| u64::from(row.position) == position && row.relative == relative;
        if self.offset_rows.row(self.offsets_met).is_some_and(is_met) {
            self.offsets_met += 1;
        }
        let row = TimeRow {
            timestamp: head.max_timestamp,
            relative,
        };
        if self.largest == Some(head.max_timestamp)
            && self.time_rows.get(self.times_met) == Some(&row)
        {
            self.times_met += 1;
        }
    }

    /// Whether a row stands for nothing. Unused rows are zeros.
    fn is_wrong(&self) -> bool {
        let unmet = self.offset_rows.get(self.offsets_met..).unwrap_or_default();
        let is_used = |row: &OffsetRow| {
            *row != OffsetRow {
                relative: 0,
                position: 0,
            }
        };
        unmet.iter().any(is_used) || self.times_met < self.time_rows.len()
    }
}

/// Does what a plan says. The caller holds the data directory's lock. Gives the names of the files that hold what was moved aside.
///
/// # Errors
/// `Io`; what is not done yet can be planned and done anew.
pub fn apply<F: Fs>(
    context: &LogContext<F>,
    dir: &Path,
    plan: &PartitionPlan,
) -> Result<Vec<PathBuf>, Error> {
    let mut aside = Vec::new();
    for segment in &plan.segments {
        let path = segment_file(dir, segment.base, "log");
        if segment.damaged.is_empty() {
            let name = segment.name(dir);
            sealed_indexes(&context.fs, &name).map_err(Error::io("rebuild indexes", &path))?;
            continue;
        }
        move_aside(&context.fs, dir, segment, &mut aside)
            .map_err(Error::io("move damage aside", &path))?;
        replace_segment(context, dir, segment)?;
    }
    let fs = &context.fs;
    let cleaned = Cleaned::read(fs, dir);
    if !cleaned.is_there() {
        // From here on a missing offset is no loss that a reader is to be told of.
        cleaned.write(context, dir)?;
    }
    if let Some(base) = plan.goes_on_at {
        let path = segment_file(dir, base, "log");
        fs.open(&path, OpenMode::CreateOrKeep)
            .map_err(Error::io("create", &path))?;
        fs.sync_dir(dir).map_err(Error::io("fsync", dir))?;
    }
    for (base, name) in &plan.torn {
        let from = dir.join(name);
        let to = free_name(fs, dir, *base).map_err(Error::io("look-up", &from))?;
        fs.rename(&from, &to).map_err(Error::io("rename", &from))?;
        aside.push(to);
    }
    fs.sync_dir(dir).map_err(Error::io("fsync", dir))?;
    Ok(aside)
}

impl SegmentPlan {
    /// Walks through the log: notes what is damaged, and compares the indexes' rows with the rest.
    fn look_through(&mut self, window: &mut Window<'_>, check: &mut RowCheck) -> io::Result<()> {
        let (base, upper) = (self.base, self.upper);
        let Some(layout) = detect_layout(window, base, upper, &check.offset_rows)? else {
            if self.size > 0 {
                let (position, end) = (0, self.size);
                self.damaged.push(DamagedRange {
                    position,
                    end,
                    offset: base,
                    next_offset: upper,
                });
            }
            return Ok(());
        };
        let mut walk = Walk::new(
            Bounds {
                base,
                upper,
                layout,
            },
            0,
            base,
        );
        loop {
            match walk.step(window, &check.offset_rows)? {
                Step::Entry { position, head } => {
                    check.note(base, position, &head);
                    self.end = head.last_offset + 1;
                }
                Step::Damage {
                    position,
                    offset,
                    next_offset,
                    next_position: end,
                    ..
                } => {
                    self.damaged.push(DamagedRange {
                        position,
                        end,
                        offset,
                        next_offset,
                    });
                }
                Step::End => return Ok(()),
            }
        }
    }

    fn name<'n>(&self, dir: &'n Path) -> SealedName<'n> {
        SealedName {
            dir,
            base: self.base,
            upper: self.upper,
            size: self.size,
            interval: INTERVAL_BYTES,
        }
    }
}

/// The first name `<base>.damaged`, `.damaged.1` and so on that is free.
fn free_name<F: Fs>(fs: &F, dir: &Path, base: i64) -> io::Result<PathBuf> {
    let mut path = segment_file(dir, base, "damaged");
    let mut number = 0;
    while fs.exists(&path)? {
        number += 1;
        path = segment_file(dir, base, &format!("damaged.{number}"));
    }
    Ok(path)
}

/// Copies every damaged stretch to a file of its own, durably.
fn move_aside<F: Fs>(
    fs: &F,
    dir: &Path,
    segment: &SegmentPlan,
    aside: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let log = fs.open(&segment_file(dir, segment.base, "log"), OpenMode::Read)?;
    for range in &segment.damaged {
        let (path, file) = create_beside(fs, dir, segment.base, "damaged")?;
        if copy(&log, &file, range.position..range.end)? < range.end - range.position {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.sync_data()?;
        aside.push(path);
    }
    fs.sync_dir(dir)
}

/// Writes the undamaged entries anew, and puts them in the segment's place.
fn replace_segment<F: Fs>(
    context: &LogContext<F>,
    dir: &Path,
    segment: &SegmentPlan,
) -> Result<(), Error> {
    let fs = &context.fs;
    let base = segment.base;
    let path = segment_file(dir, base, "log.cleaned");
    write_undamaged(fs, dir, segment).map_err(Error::io("write", &path))?;
    fs.sync_dir(dir).map_err(Error::io("fsync", dir))?;
    if let Err(error) = replace::announce(context, dir, &[(base, segment.size)]) {
        replace::withdraw(fs, dir, base).map_err(Error::io("removal", &path))?;
        return Err(error);
    }
    for old in replace::finish(fs, dir, &[base])? {
        fs.remove_file(&old).map_err(Error::io("removal", &old))?;
    }
    Ok(())
}

fn write_undamaged<F: Fs>(fs: &F, dir: &Path, segment: &SegmentPlan) -> io::Result<()> {
    let base = segment.base;
    let rows = read_rows::<F>(fs, &segment_file(dir, base, "index"))?;
    let log = fs.open(&segment_file(dir, base, "log"), OpenMode::Read)?;
    let path = |suffix: &str| segment_file(dir, base, &format!("{suffix}.cleaned"));
    let [log_suffix, index_suffix, time_suffix] = SEGMENT_SUFFIXES;
    let output = fs.open(&path(log_suffix), OpenMode::CreateOrKeep)?;
    output.set_len(0)?;
    let mut builder = RowBuilder::default();
    let mut window = Window::new(&log, segment.size, SCAN_CHUNK_BYTES, Vec::new());
    let (mut buffer, mut written) = (Vec::new(), 0);
    if let Some(layout) = detect_layout(&mut window, base, segment.upper, &rows)? {
        let mut walk = Walk::new(
            Bounds {
                base,
                upper: segment.upper,
                layout,
            },
            0,
            base,
        );
        loop {
            match walk.step(&mut window, &rows)? {
                Step::Entry { position, head } => {
                    let at = written + buffer.len() as u64;
                    builder.note(base, at, &head, INTERVAL_BYTES, false);
                    let entry = window.slice(position, u64::from(head.length))?;
                    buffer.extend_from_slice(entry);
                    if buffer.len() >= SCAN_CHUNK_BYTES {
                        output.write_all_at(&buffer, written)?;
                        written += buffer.len() as u64;
                        buffer.clear();
                    }
                }
                Step::Damage { .. } => {}
                Step::End => break,
            }
        }
    }
    output.write_all_at(&buffer, written)?;
    output.sync_data()?;
    builder.note_time();
    write_rows(fs, &path(index_suffix), &builder.offset_rows)?;
    write_rows(fs, &path(time_suffix), &builder.time_rows)
}
