//! One log file, entry by entry, and its indexes held against it.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use crate::format::{DecodeError, EntryHead, Layout};
use crate::fs::{File, Fs, OpenMode};
use crate::record::StoredRecord;
use crate::storage::names::{FileKind, file_kind, segment_file};
use crate::storage::walk::{Bounds, Step, Walk, detect_layout};
use crate::storage::window::Window;
use crate::storage::{OffsetRow, TimeRow};

use super::Error;
use super::rows::{RowFault, Rows, offset_rows, time_rows};

/// Bytes of a log read at once.
const CHUNK_BYTES: usize = 256 * 1024;

/// How often a log whose end is cut short is looked at again before it counts as torn: a broker may be writing it.
const LOOKS_AT_END: u32 = 5;

/// A segment, as its file names say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its log file.
    pub path: PathBuf,
    /// The offset in its name; `None` where it has another name than a broker gives.
    pub base: Option<i64>,
    /// Offsets in it are below this: the next segment's base, `None` where there is none.
    pub upper: Option<i64>,
}

/// What a walk comes by.
#[derive(Debug)]
pub enum Event<'e> {
    /// A whole and undamaged entry.
    Record {
        /// Where it starts, bytes.
        position: u64,
        /// Its layout: [`Layout::V1`] has no checksum that could have been checked.
        layout: Layout,
        /// What is in it.
        stored: StoredRecord<'e>,
    },
    /// An entry that is damaged, or bytes that are none.
    Damage {
        /// The damage.
        damage: Damage,
        /// What the fields say, where they hold together.
        stored: Option<StoredRecord<'e>>,
    },
}

/// A damaged entry, or a stretch of bytes that cannot be told into entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// The first offset lost.
    pub offset: i64,
    /// Where it starts, bytes.
    pub position: u64,
    /// Where reading goes on; `None` where nothing readable follows in this segment or a later one.
    pub next_offset: Option<i64>,
    /// Where what follows starts, bytes.
    pub next_position: u64,
    /// What is wrong.
    pub error: DecodeError,
    /// Whether it is only the end of the last segment that is cut short, as a killed broker may leave it; the next start cuts it off.
    pub is_torn: bool,
}

/// What a walk found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Undamaged entries.
    pub records: u64,
    /// Bytes walked.
    pub bytes: u64,
    /// One past the last offset, lost ones included.
    pub end_offset: i64,
    /// Whether the last segment's end is damaged, so that nothing tells how many offsets were lost with it.
    pub is_end_damaged: bool,
    /// Damaged entries and stretches.
    pub damaged: u64,
    /// Whether offsets are missing between two entries, as compaction leaves it.
    pub has_gaps: bool,
    /// Faults of the offset index.
    pub offset_faults: Vec<RowFault>,
    /// Faults of the time index.
    pub time_faults: Vec<RowFault>,
}

impl Summary {
    /// Whether anything is wrong with an index.
    #[must_use]
    pub fn has_faults(&self) -> bool {
        !(self.offset_faults.is_empty() && self.time_faults.is_empty())
    }

    /// Drops the faults that another look did not find.
    pub fn keep_faults_of(&mut self, again: &Self) {
        self.offset_faults
            .retain(|fault| again.offset_faults.contains(fault));
        self.time_faults
            .retain(|fault| again.time_faults.contains(fault));
    }
}

/// An index's rows; `Ok(None)` where there is no such file.
type Found<R> = Option<Rows<R>>;

impl Segment {
    /// The segment of a log or index file, with the next one's base from the directory it is in.
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub fn of_file<F: Fs>(fs: &F, path: &Path) -> Result<Self, Error> {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let base = match file_kind(&name.unwrap_or_default()) {
            FileKind::Log(base) | FileKind::Index(base) | FileKind::TimeIndex(base) => Some(base),
            FileKind::Torn(_)
            | FileKind::AppendTimes
            | FileKind::Cleaned
            | FileKind::Replace(_)
            | FileKind::Leftover
            | FileKind::Unknown => None,
        };
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let path = match base {
            Some(base) => segment_file(dir, base, "log"),
            None => path.to_owned(),
        };
        let upper = match base {
            Some(base) => bases(fs, dir)
                .map_err(Error::read(dir))?
                .into_iter()
                .find(|other| *other > base),
            None => None,
        };
        Ok(Self { path, base, upper })
    }

    /// Goes through the log, telling `sink` what it comes by, and holds the indexes against it. `pause` waits a moment, for a
    /// broker to finish what it is writing.
    ///
    /// # Errors
    /// Where the log cannot be read, or the sink says so.
    pub fn check<F: Fs>(
        &self,
        fs: &F,
        pause: &dyn Fn(),
        sink: &mut dyn FnMut(Event<'_>) -> Result<(), Error>,
    ) -> Result<Summary, Error> {
        // The indexes first: what they point at is then in the log, also while a broker appends.
        let offsets = self.rows(fs, "index", offset_rows)?;
        let times = self.rows(fs, "timeindex", time_rows)?;
        let file = fs
            .open(&self.path, OpenMode::Read)
            .map_err(Error::read(&self.path))?;
        let len = file.len().map_err(Error::read(&self.path))?;
        let no_rows = Vec::new();
        let offset_rows = offsets.as_ref().map_or(&no_rows, |rows| &rows.rows);
        let mut checks = Checks::new(offsets.as_ref(), times.as_ref(), self.base);
        let mut summary = Summary {
            end_offset: self.base.unwrap_or(0),
            ..Summary::default()
        };
        let mut window = Window::new(&file, len, CHUNK_BYTES, Vec::new());
        let Some(bounds) = self.bounds(&mut window, offset_rows)? else {
            return self.check_without_layout(len, summary, checks, sink);
        };
        let mut walk = Walk::new(bounds, 0, bounds.base);
        loop {
            let start = walk.expected();
            match walk
                .step(&mut window, offset_rows)
                .map_err(Error::read(&self.path))?
            {
                Step::End => break,
                Step::Entry { position, head } => {
                    summary.records += 1;
                    summary.has_gaps |= head.first_offset > start;
                    checks.entry(position, &head);
                    let bytes = window.slice(position, u64::from(head.length));
                    let bytes = bytes.map_err(Error::read(&self.path))?;
                    if let Ok((_, stored)) = bounds.layout.decode(bytes) {
                        sink(Event::Record {
                            position,
                            layout: bounds.layout,
                            stored,
                        })?;
                    }
                    summary.end_offset = walk.expected();
                    summary.bytes = position + u64::from(head.length);
                }
                Step::Damage {
                    position,
                    next_position,
                    error,
                    ..
                } => {
                    let is_cut = self.upper.is_none()
                        && next_position == window.limit()
                        && matches!(error, DecodeError::Incomplete(_));
                    if is_cut && self.is_being_written(&file, &bounds, position, start, pause)? {
                        summary.bytes = position;
                        break;
                    }
                    summary.bytes = next_position;
                    let stretch = Stretch {
                        bounds,
                        position,
                        offset: start,
                        next_position,
                        next_offset: Some(walk.expected()).filter(|next| *next != i64::MAX),
                        is_torn: is_cut,
                    };
                    checks.damage(position, next_position);
                    match stretch.next_offset {
                        Some(next) => summary.end_offset = next,
                        None => summary.is_end_damaged = true,
                    }
                    summary.damaged += self.report(&mut window, &stretch, error, sink)?;
                }
            }
        }
        checks.finish(window.limit(), self.upper.is_none(), &mut summary);
        Ok(summary)
    }

    /// Whether the entry that the end of the log cuts short is whole after a while.
    fn is_being_written<F: File>(
        &self,
        file: &F,
        bounds: &Bounds,
        position: u64,
        expected: i64,
        pause: &dyn Fn(),
    ) -> Result<bool, Error> {
        for _ in 0..LOOKS_AT_END {
            pause();
            let len = file.len().map_err(Error::read(&self.path))?;
            let mut window = Window::new(file, len, CHUNK_BYTES, Vec::new());
            let entry = bounds.good_entry(&mut window, position, expected);
            if entry.map_err(Error::read(&self.path))?.is_ok() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn rows<F: Fs, R>(
        &self,
        fs: &F,
        suffix: &str,
        read: fn(&F::File) -> std::io::Result<Rows<R>>,
    ) -> Result<Found<R>, Error> {
        let (Some(base), Some(dir)) = (self.base, self.path.parent()) else {
            return Ok(None);
        };
        let path = segment_file(dir, base, suffix);
        match fs.open(&path, OpenMode::Read).and_then(|file| read(&file)) {
            Ok(rows) => Ok(Some(rows)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::read(&path)(error)),
        }
    }

    /// The layout and the range of offsets; `None` where there is no entry, not even one that looks like one.
    fn bounds(
        &self,
        window: &mut Window<'_>,
        rows: &Vec<OffsetRow>,
    ) -> Result<Option<Bounds>, Error> {
        let upper = self.upper.unwrap_or(i64::MAX);
        // A file with a name of its own has offsets of its own: they count from its first.
        let base = match self.base {
            Some(base) => base,
            None => first_offset(window).map_err(Error::read(&self.path))?,
        };
        let layout = detect_layout(window, base, upper, rows).map_err(Error::read(&self.path))?;
        Ok(layout.map(|layout| Bounds {
            base,
            upper,
            layout,
        }))
    }

    /// A log in which nothing looks like an entry.
    fn check_without_layout(
        &self,
        len: u64,
        mut summary: Summary,
        checks: Checks<'_>,
        sink: &mut dyn FnMut(Event<'_>) -> Result<(), Error>,
    ) -> Result<Summary, Error> {
        summary.bytes = len;
        if len > 0 {
            summary.damaged = 1;
            let damage = Damage {
                offset: summary.end_offset,
                position: 0,
                next_offset: self.upper,
                next_position: len,
                error: DecodeError::Incomplete(crate::format::LAYOUT_BYTES as u64),
                is_torn: false,
            };
            sink(Event::Damage {
                damage,
                stored: None,
            })?;
        }
        checks.finish(len, self.upper.is_none(), &mut summary);
        Ok(summary)
    }

    /// Tells the entries of a damaged stretch apart as far as their frames hold; says how many parts there were. Their offsets are counted
    /// on, since nothing that a damaged entry says of itself can be trusted.
    fn report(
        &self,
        window: &mut Window<'_>,
        stretch: &Stretch,
        mut error: DecodeError,
        sink: &mut dyn FnMut(Event<'_>) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let mut parts = 0;
        let Stretch {
            bounds,
            mut position,
            mut offset,
            ..
        } = *stretch;
        while position < stretch.next_position {
            let head = window
                .head(bounds.layout, position)
                .map_err(Error::read(&self.path))?;
            let end = head.map(|head| position + u64::from(head.length));
            let part = match (head, end) {
                (Ok(head), Ok(end)) if end <= stretch.next_position => Some((head, end)),
                _ => None,
            };
            let next_position = part.map_or(stretch.next_position, |(_, end)| end);
            let is_last = next_position == stretch.next_position;
            let damage = Damage {
                offset,
                position,
                next_offset: if is_last {
                    stretch.next_offset
                } else {
                    Some(offset + 1)
                },
                next_position,
                error,
                is_torn: stretch.is_torn,
            };
            let bytes = window.slice(position, part.map_or(0, |(head, _)| u64::from(head.length)));
            let bytes = bytes.map_err(Error::read(&self.path))?;
            let stored = bounds
                .layout
                .decode_lenient(bytes)
                .ok()
                .map(|(_, stored)| stored);
            sink(Event::Damage { damage, stored })?;
            parts += 1;
            position = next_position;
            offset = offset.saturating_add(1);
            let next = bounds
                .good_entry(window, position, offset)
                .map_err(Error::read(&self.path))?;
            error = next.err().unwrap_or(error);
        }
        Ok(parts)
    }
}

/// A stretch that the walk could not read.
struct Stretch {
    bounds: Bounds,
    position: u64,
    offset: i64,
    next_position: u64,
    next_offset: Option<i64>,
    is_torn: bool,
}

/// Base offsets of the logs in a directory, rising.
pub(super) fn bases<F: Fs>(fs: &F, dir: &Path) -> std::io::Result<Vec<i64>> {
    let mut bases: Vec<i64> = fs
        .read_dir(dir)?
        .iter()
        .filter(|entry| !entry.is_dir)
        .filter_map(|entry| match file_kind(&entry.name.to_string_lossy()) {
            FileKind::Log(base) => Some(base),
            FileKind::Index(_)
            | FileKind::TimeIndex(_)
            | FileKind::Torn(_)
            | FileKind::AppendTimes
            | FileKind::Cleaned
            | FileKind::Replace(_)
            | FileKind::Leftover
            | FileKind::Unknown => None,
        })
        .collect();
    bases.sort_unstable();
    Ok(bases)
}

/// The offset that the file's first bytes name, 0 where they name none.
fn first_offset(window: &mut Window<'_>) -> std::io::Result<i64> {
    let (bytes, filled) = window.peek(0)?;
    let Ok(layout) = Layout::of(bytes.get(..filled).unwrap_or_default()) else {
        return Ok(0);
    };
    Ok(window.head(layout, 0)?.map_or(0, |head| head.first_offset))
}

/// Both indexes of a segment, held against its log as the walk goes by.
struct Checks<'r> {
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
    fn new(
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

    fn entry(&mut self, position: u64, head: &EntryHead) {
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
    fn damage(&mut self, position: u64, next_position: u64) {
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

    fn finish(mut self, limit: u64, is_last: bool, summary: &mut Summary) {
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
