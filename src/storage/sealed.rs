//! The files of a sealed segment, opened on first use and kept while few others were used since.
//!
//! A broker with 20,000 segments must not need 20,000 descriptors and 40,000 mappings: the [`Handles`] cache, shared by all logs
//! of a broker, holds a bounded number. An entry that falls out while a reader holds it stays open until that reader is done.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::rc::Rc;

use crate::format::Layout;
use crate::fs::{Fs, OpenMode};

use super::names::segment_file;
use super::offset_index::{OffsetIndex, OffsetRow};
use super::rebuild;
use super::sparse_index::SparseIndex;
use super::time_index::TimeIndex;
use super::walk::{Bounds, detect_layout};
use super::window::Window;

/// How many sealed segments are open at once, at the most, when nobody reads them.
pub(super) const OPEN_SEALED_MAX: usize = 128;

/// Bytes that checks of a sealed segment read at once.
const CHECK_CHUNK_BYTES: usize = 8 * 1024;

/// A sealed segment, open.
#[derive(Debug)]
pub(super) struct SealedFiles<F: Fs> {
    pub(super) log: Rc<F::File>,
    pub(super) index: OffsetIndex<F::File>,
    pub(super) time: TimeIndex<F::File>,
    pub(super) layout: Layout,
}

/// What names a sealed segment to [`SealedFiles::open`].
#[derive(Debug, Clone, Copy)]
pub(super) struct SealedName<'a> {
    pub(super) dir: &'a Path,
    pub(super) base: i64,
    pub(super) upper: i64,
    /// Bytes of its .log.
    pub(super) size: u64,
    /// The interval of a rebuilt index.
    pub(super) interval: u32,
}

impl<F: Fs> SealedFiles<F> {
    /// Opens the files and checks the indexes in a time that does not grow with the segment; an index that does not pass is rebuilt from the log
    /// first. Where that fails (on a full disk, say) lookups scan: an index makes answers fast, it is not needed for them.
    pub(super) fn open(fs: &F, name: &SealedName<'_>) -> io::Result<Self> {
        if let Some(files) = Self::open_checked(fs, name)? {
            return Ok(files);
        }
        Self::rebuild(fs, name).or_else(|error| {
            let path = segment_file(name.dir, name.base, "log");
            log::error!(
                "indexes of {} cannot be rebuilt, lookups scan: {error}",
                path.display()
            );
            Self::without_indexes(fs, name)
        })
    }

    fn without_indexes(fs: &F, name: &SealedName<'_>) -> io::Result<Self> {
        let path = |suffix| segment_file(name.dir, name.base, suffix);
        let log = fs.open(&path("log"), OpenMode::Read)?;
        let index = (SparseIndex::empty(&path("index")), false);
        let layout = Self::layout(&log, name, &index)?.unwrap_or(Layout::V2);
        let time = SparseIndex::empty(&path("timeindex"));
        Ok(Self {
            log: Rc::new(log),
            index: index.0,
            time,
            layout,
        })
    }

    /// Rebuilds both indexes from the log, and opens the files.
    pub(super) fn rebuild(fs: &F, name: &SealedName<'_>) -> io::Result<Self> {
        let path = segment_file(name.dir, name.base, "log");
        log::warn!(
            "indexes of {} are missing or wrong: rebuilding them",
            path.display()
        );
        rebuild::sealed_indexes(fs, name)?;
        let (log, index, time) = Self::open_files(fs, name)?;
        let layout = Self::layout(&log, name, &index)?.unwrap_or(Layout::V2);
        Ok(Self {
            log: Rc::new(log),
            index: index.0,
            time: time.0,
            layout,
        })
    }

    fn layout(
        log: &F::File,
        name: &SealedName<'_>,
        index: &(OffsetIndex<F::File>, bool),
    ) -> io::Result<Option<Layout>> {
        let mut window = Window::new(log, name.size, CHECK_CHUNK_BYTES, Vec::new());
        detect_layout(&mut window, name.base, name.upper, &index.0)
    }

    #[expect(
        clippy::type_complexity,
        reason = "each index beside whether its size is odd"
    )]
    fn open_files(
        fs: &F,
        name: &SealedName<'_>,
    ) -> io::Result<(
        F::File,
        (OffsetIndex<F::File>, bool),
        (TimeIndex<F::File>, bool),
    )> {
        let path = |suffix| segment_file(name.dir, name.base, suffix);
        let log = fs.open(&path("log"), OpenMode::Read)?;
        let index = SparseIndex::open_sealed(fs, &path("index"))?;
        let time = SparseIndex::open_sealed(fs, &path("timeindex"))?;
        Ok((log, index, time))
    }

    /// The files, or `None` where an index is missing or does not pass.
    pub(super) fn open_checked(fs: &F, name: &SealedName<'_>) -> io::Result<Option<Self>> {
        let (log, index, time) = match Self::open_files(fs, name) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let layout = Self::layout(&log, name, &index)?;
        let has_rows = index.0.len() + time.0.len() > 0;
        let files = |layout| Self {
            log: Rc::new(log),
            index: index.0,
            time: time.0,
            layout,
        };
        if index.1 || time.1 {
            return Ok(None);
        }
        let Some(layout) = layout else {
            // No entry at all: there can be no row. Or none that is good: the rows have nothing to say.
            return Ok((name.size > 0 || !has_rows).then(|| files(Layout::V2)));
        };
        let files = files(layout);
        Ok(files.passes(name)?.then_some(files))
    }

    fn passes(&self, name: &SealedName<'_>) -> io::Result<bool> {
        let bounds = Bounds {
            base: name.base,
            upper: name.upper,
            layout: self.layout,
        };
        let mut window = Window::new(&*self.log, name.size, CHECK_CHUNK_BYTES, Vec::new());
        let (Some(first), Some(last)) = (self.index.get(0), self.index.last()) else {
            return Ok(false);
        };
        let rises = self.index.len() == 1 || last.may_follow(&first);
        if !rises || !bounds.is_met(&mut window, last, name.base)? {
            return Ok(false);
        }
        self.time_passes(&bounds, last, &mut window)
    }

    /// Checks the time index against the log: its last row is the record it names, and nothing from the last offset row on is later than it.
    fn time_passes(
        &self,
        bounds: &Bounds,
        last_row: OffsetRow,
        window: &mut Window<'_>,
    ) -> io::Result<bool> {
        let (Some(first), Some(last)) = (self.time.get(0), self.time.last()) else {
            return Ok(false);
        };
        // All of them: a row out of its place would lead a lookup astray, and nothing that it meets would show it.
        if self.time.rising_rows() < self.time.len() || !last.may_follow(&first) && last != first {
            return Ok(false);
        }
        let (below, _) = self
            .index
            .partition_point(|row| row.relative < last.relative);
        let from = below
            .checked_sub(1)
            .and_then(|number| self.index.get(number));
        let mut is_named = false;
        for (start, is_tail) in [
            (from.map_or(0, |row| row.position), false),
            (last_row.position, true),
        ] {
            let mut position = u64::from(start);
            let mut at_least = bounds.base;
            // Damage ends the look: what lies behind it cannot speak against the row.
            while let Ok(head) = bounds.good_head(window, position, at_least)? {
                let relative = head.last_offset - bounds.base;
                if head.max_timestamp > last.timestamp {
                    return Ok(false);
                }
                is_named |=
                    relative == i64::from(last.relative) && head.max_timestamp == last.timestamp;
                position += u64::from(head.length);
                at_least = head.last_offset + 1;
                if position >= window.limit() || (!is_tail && relative >= i64::from(last.relative))
                {
                    break;
                }
            }
        }
        Ok(is_named)
    }
}

#[derive(Debug)]
struct Held<F: Fs> {
    files: Rc<SealedFiles<F>>,
    used: u64,
}

/// The sealed segments that are open, of all logs of a broker, least recently used out first.
#[derive(Debug)]
pub(super) struct Handles<F: Fs> {
    held: RefCell<HashMap<(u64, i64), Held<F>>>,
    uses: RefCell<u64>,
}

impl<F: Fs> Handles<F> {
    pub(super) fn new() -> Self {
        Self {
            held: RefCell::new(HashMap::new()),
            uses: RefCell::new(0),
        }
    }

    /// The files of segment `base` of log `log`; `open` is called where they are not held.
    pub(super) fn get(
        &self,
        log: u64,
        base: i64,
        open: impl FnOnce() -> io::Result<SealedFiles<F>>,
    ) -> io::Result<Rc<SealedFiles<F>>> {
        let use_number = self.uses.replace_with(|uses| *uses + 1);
        if let Some(held) = self.held.borrow_mut().get_mut(&(log, base)) {
            held.used = use_number;
            return Ok(Rc::clone(&held.files));
        }
        let files = Rc::new(open()?);
        let mut held = self.held.borrow_mut();
        if held.len() >= OPEN_SEALED_MAX {
            let oldest = held
                .iter()
                .min_by_key(|(_, held)| held.used)
                .map(|(key, _)| *key);
            oldest.and_then(|key| held.remove(&key));
        }
        held.insert(
            (log, base),
            Held {
                files: Rc::clone(&files),
                used: use_number,
            },
        );
        Ok(files)
    }

    /// Forgets one segment of a log.
    pub(super) fn forget(&self, log: u64, base: i64) {
        self.held.borrow_mut().remove(&(log, base));
    }

    /// Forgets every segment of a log.
    pub(super) fn forget_log(&self, log: u64) {
        self.held.borrow_mut().retain(|(of, _), _| *of != log);
    }
}
