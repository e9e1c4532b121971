//! One log file, entry by entry, and its indexes held against it.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use crate::format::{DecodeError, EntryHead, LAYOUT_BYTES, Layout};
use crate::fs::{File, Fs, OpenMode};
use crate::record::StoredRecord;
use crate::storage::OffsetRow;
use crate::storage::names::{FileKind, file_kind, segment_file};
use crate::storage::walk::{Bounds, Step, Walk, detect_layout};
use crate::storage::window::Window;

use super::Error;
use super::index_check::Checks;
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

    /// Takes note of damage behind which reading goes on there, if anywhere.
    fn skip(&mut self, next_offset: Option<i64>) {
        match next_offset {
            Some(next) => self.end_offset = next,
            None => self.is_end_damaged = true,
        }
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
            | FileKind::Damaged(_)
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
        let checks = Checks::new(offsets.as_ref(), times.as_ref(), self.base);
        let summary = Summary {
            end_offset: self.base.unwrap_or(0),
            ..Summary::default()
        };
        let mut window = Window::new(&file, len, CHUNK_BYTES, Vec::new());
        let Some(bounds) = self.bounds(&mut window, offset_rows)? else {
            return self.check_without_layout(len, summary, checks, sink);
        };
        let mut pass = Pass {
            path: &self.path,
            bounds,
            window,
            checks,
            summary,
            sink,
        };
        let mut walk = Walk::new(bounds, 0, bounds.base);
        loop {
            let expected = walk.expected();
            match walk
                .step(&mut pass.window, offset_rows)
                .map_err(Error::read(&self.path))?
            {
                Step::End => break,
                Step::Entry { position, head } => pass.entry(position, &head, expected)?,
                Step::Damage {
                    position,
                    next_position,
                    next_offset,
                    error,
                    ..
                } => {
                    let is_torn = self.upper.is_none()
                        && next_position == pass.window.limit()
                        && matches!(error, DecodeError::Incomplete(_));
                    if is_torn
                        && self.is_being_written(&file, &bounds, position, expected, pause)?
                    {
                        break;
                    }
                    let next_offset = Some(next_offset).filter(|next| *next != i64::MAX);
                    let offset = expected;
                    pass.damage(Damage {
                        offset,
                        position,
                        next_offset,
                        next_position,
                        error,
                        is_torn,
                    })?;
                }
            }
        }
        let Pass {
            window,
            checks,
            mut summary,
            ..
        } = pass;
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
            Err(error) if error.kind() == std::io::ErrorKind::IsADirectory => Ok(Some(Rows {
                rows: Vec::new(),
                faults: vec![RowFault {
                    row: 0,
                    what: "it is a directory; the next start renames it and makes the index anew"
                        .to_owned(),
                }],
            })),
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
                error: DecodeError::Incomplete(LAYOUT_BYTES as u64),
                is_torn: self.upper.is_none() && len < LAYOUT_BYTES as u64,
            };
            summary.skip(self.upper);
            sink(Event::Damage {
                damage,
                stored: None,
            })?;
        }
        checks.finish(len, self.upper.is_none(), &mut summary);
        Ok(summary)
    }
}

/// A walk through a log, and what is noted on the way.
struct Pass<'p> {
    path: &'p Path,
    bounds: Bounds,
    window: Window<'p>,
    checks: Checks<'p>,
    summary: Summary,
    sink: &'p mut dyn FnMut(Event<'_>) -> Result<(), Error>,
}

impl Pass<'_> {
    /// A good entry, whose offsets are at least `expected`.
    fn entry(&mut self, position: u64, head: &EntryHead, expected: i64) -> Result<(), Error> {
        let layout = self.bounds.layout;
        self.summary.records += 1;
        self.summary.has_gaps |= head.first_offset > expected;
        self.summary.end_offset = head.last_offset.saturating_add(1);
        self.summary.bytes = position + u64::from(head.length);
        self.checks.entry(position, head);
        let bytes = self.window.slice(position, u64::from(head.length));
        let bytes = bytes.map_err(Error::read(self.path))?;
        match layout.decode(bytes) {
            Ok((_, stored)) => (self.sink)(Event::Record {
                position,
                layout,
                stored,
            }),
            // The walk has decoded these very bytes.
            Err(_) => Ok(()),
        }
    }

    /// A stretch that cannot be read. Where its frames hold from end to end, its entries are told apart; their offsets are counted on, since
    /// nothing that a damaged entry says of itself can be trusted.
    fn damage(&mut self, stretch: Damage) -> Result<(), Error> {
        self.checks.damage(stretch.position, stretch.next_position);
        self.summary.bytes = stretch.next_position;
        self.summary.skip(stretch.next_offset);
        let ends = self.frame_ends(stretch.position, stretch.next_position)?;
        let mut part = stretch;
        let is_framed = ends.is_some();
        for end in ends.unwrap_or_else(|| vec![stretch.next_position]) {
            part.next_position = end;
            let is_last = end == stretch.next_position;
            part.next_offset = if is_last {
                stretch.next_offset
            } else {
                Some(part.offset + 1)
            };
            // Without frames there are no fields, and the stretch may be as long as the file.
            let len = if is_framed { end - part.position } else { 0 };
            let bytes = self
                .window
                .slice(part.position, len)
                .map_err(Error::read(self.path))?;
            let fields = self.bounds.layout.decode_lenient(bytes);
            let stored = fields.ok().map(|(_, stored)| stored);
            (self.sink)(Event::Damage {
                damage: part,
                stored,
            })?;
            self.summary.damaged += 1;
            part.position = end;
            part.offset = part.offset.saturating_add(1);
            let next = self
                .bounds
                .good_entry(&mut self.window, part.position, part.offset);
            part.error = next
                .map_err(Error::read(self.path))?
                .err()
                .unwrap_or(part.error);
        }
        Ok(())
    }

    /// Where each frame between two positions ends; `None` where they do not hold all the way.
    fn frame_ends(&mut self, mut position: u64, end: u64) -> Result<Option<Vec<u64>>, Error> {
        let mut ends = Vec::new();
        while position < end {
            let head = self
                .window
                .head(self.bounds.layout, position)
                .map_err(Error::read(self.path))?;
            let Ok(head) = head else { return Ok(None) };
            position += u64::from(head.length);
            ends.push(position);
        }
        Ok(Some(ends).filter(|_| position == end))
    }
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
            | FileKind::Damaged(_)
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
