//! A file of rows of one size, sparse over a log, that rise: what the offset index and the time index share.
//!
//! An active index is preallocated (a hole, not blocks) to its capacity and mapped read-only once; rows are gathered by
//! [`SparseIndex::push`] and written with one pwrite, since a store into a sparse mapping on a full disk is a signal and not
//! an error. Lookups read the mapping. A sealed index is as long as its rows and has no open file behind its mapping.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use crate::fs::{File, Fs, Map, OpenMode};

/// One row.
pub(super) trait Row: Copy + std::fmt::Debug + PartialEq {
    /// Its size in the file.
    const BYTES: usize;

    /// Copies row `number` out of a mapping.
    fn read<M: Map>(map: &M, number: usize) -> Option<Self>;

    /// Appends its bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// Whether `self` may stand directly behind `before`.
    fn rises_above(&self, before: &Self) -> bool;
}

/// An index file, open.
#[derive(Debug)]
pub(super) struct SparseIndex<F: File, R: Row> {
    path: PathBuf,
    /// The file, while it may be written.
    file: Option<F>,
    map: Option<F::Map>,
    /// Where the file may have holes: a look into one through a mapping takes a block of a full tmpfs, or ends the process.
    chunks: Option<Chunks<F>>,
    /// Rows in the file.
    rows: usize,
    /// Rows that fit.
    capacity: usize,
    /// The last row, gathered ones included.
    last: Option<R>,
    /// Gathered rows, encoded.
    pending: Vec<u8>,
    row: PhantomData<R>,
}

impl<F: File, R: Row> SparseIndex<F, R> {
    /// Opens the index of an active segment, creating it where it is missing: the first `rows` rows are kept, room for
    /// `capacity_bytes` is preallocated, all of it is mapped.
    pub(super) fn open_active<S: Fs<File = F>>(
        fs: &S,
        path: &Path,
        rows: usize,
        capacity_bytes: u32,
    ) -> io::Result<Self> {
        let file = fs.open(path, OpenMode::CreateOrKeep)?;
        let mut index = Self {
            path: path.to_owned(),
            file: Some(file),
            map: None,
            chunks: None,
            rows,
            capacity: 0,
            last: None,
            pending: Vec::new(),
            row: PhantomData,
        };
        index.activate(rows, capacity_bytes)?;
        Ok(index)
    }

    /// Opens the index of a sealed segment for lookups; a missing file is a `NotFound` error. Beside it: whether the file ends with
    /// a part of a row, which is ignored, or with unused room, and then no row is given.
    pub(super) fn open_sealed<S: Fs<File = F>>(fs: &S, path: &Path) -> io::Result<(Self, bool)> {
        let file = fs.open(path, OpenMode::Read)?;
        let len = file.len()?;
        let mut last = vec![0; R::BYTES];
        let last_at = (len / R::BYTES as u64).saturating_sub(1) * R::BYTES as u64;
        file.read_at(&mut last, last_at)?;
        if last_at > 0 && last.iter().all(|byte| *byte == 0) {
            // Unused room, and maybe a hole: never to be mapped.
            return Ok((Self::empty(path), true));
        }
        let map = if len == 0 { None } else { Some(file.map(len)?) };
        let rows = map.as_ref().map_or(0, Map::len) / R::BYTES;
        let is_odd = len % R::BYTES as u64 != 0;
        let mut index = Self {
            path: path.to_owned(),
            file: None,
            map,
            chunks: None,
            rows,
            capacity: rows,
            last: None,
            pending: Vec::new(),
            row: PhantomData,
        };
        index.last = index.last_written();
        Ok((index, is_odd))
    }

    /// Opens an index file that a killed broker may have left with unused room, for looking at its rows. They are read and not mapped, and
    /// only those that are asked for: [`SparseIndex::last`] gives none.
    pub(super) fn open_unsure<S: Fs<File = F>>(fs: &S, path: &Path) -> io::Result<Self> {
        let file = fs.open(path, OpenMode::Read)?;
        let rows = usize::try_from(file.len()?).unwrap_or(usize::MAX) / R::BYTES;
        let mut index = Self::empty(path);
        index.rows = rows;
        index.capacity = rows;
        index.chunks = Some(Chunks {
            file,
            held: RefCell::default(),
        });
        Ok(index)
    }

    /// An index without a row and without a file.
    pub(super) fn empty(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            file: None,
            map: None,
            chunks: None,
            rows: 0,
            capacity: 0,
            last: None,
            pending: Vec::new(),
            row: PhantomData,
        }
    }

    /// Makes the file one of `rows` rows followed by unused room, and maps it. Where the room cannot be had, the rows can still be looked up.
    pub(super) fn activate(&mut self, rows: usize, capacity_bytes: u32) -> io::Result<()> {
        self.map = None;
        self.pending.clear();
        let capacity = (capacity_bytes as usize / R::BYTES).max(rows + 2);
        let Some(file) = &self.file else {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        };
        let kept = (rows * R::BYTES) as u64;
        let len = (capacity * R::BYTES) as u64;
        let grown = file
            .len()
            .and_then(|old| {
                if old == kept {
                    Ok(())
                } else {
                    file.set_len(kept)
                }
            })
            .and_then(|()| file.set_len(len))
            .and_then(|()| file.map(len));
        let (map, capacity, result) = match grown {
            Ok(map) => (Some(map), capacity, Ok(())),
            Err(error) if rows > 0 => (file.map(kept).ok(), rows, Err(error)),
            Err(error) => (None, rows, Err(error)),
        };
        self.map = map;
        self.rows = rows;
        self.capacity = capacity;
        self.last = self.last_written();
        result
    }

    /// The file's path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Rows that lookups see.
    pub(super) fn len(&self) -> usize {
        self.rows
    }

    /// Row `number`, from 0; `None` beyond the last.
    pub(super) fn get(&self, number: usize) -> Option<R> {
        if number >= self.rows {
            return None;
        }
        match (&self.map, &self.chunks) {
            (Some(map), _) => R::read(map, number),
            (None, Some(chunks)) => chunks.row(number),
            (None, None) => None,
        }
    }

    /// The last row, gathered ones included.
    pub(super) fn last(&self) -> Option<R> {
        self.last
    }

    /// Whether fewer than `reserve` + 1 rows fit behind what is there.
    pub(super) fn is_full(&self, reserve: usize) -> bool {
        self.rows + self.pending.len() / R::BYTES + reserve >= self.capacity
    }

    /// Gathers a row. The caller has asked [`SparseIndex::is_full`].
    pub(super) fn push(&mut self, row: R) {
        debug_assert!(
            self.last.is_none_or(|last| row.rises_above(&last)),
            "{row:?}"
        );
        row.encode(&mut self.pending);
        self.last = Some(row);
    }

    /// Writes the gathered rows; lookups see them after [`SparseIndex::commit`].
    pub(super) fn write_pending(&self) -> io::Result<()> {
        match &self.file {
            Some(file) if !self.pending.is_empty() => {
                file.write_all_at(&self.pending, (self.rows * R::BYTES) as u64)
            }
            _ => Ok(()),
        }
    }

    /// Shows lookups what [`SparseIndex::write_pending`] wrote.
    pub(super) fn commit(&mut self) {
        self.rows += self.pending.len() / R::BYTES;
        self.pending.clear();
    }

    /// Forgets the gathered rows.
    pub(super) fn drop_pending(&mut self) {
        self.pending.clear();
        self.last = self.last_written();
    }

    /// Unmaps the file and cuts it to its rows.
    pub(super) fn trim(&mut self) -> io::Result<()> {
        self.map = None;
        match &self.file {
            Some(file) => file.set_len((self.rows * R::BYTES) as u64),
            None => Ok(()),
        }
    }

    /// fdatasync.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }

    /// The number of rows for which `is_before` holds (they are the first ones), and how many rows were looked at.
    pub(super) fn partition_point(&self, is_before: impl Fn(&R) -> bool) -> (usize, u32) {
        let (mut low, mut high, mut probes) = (0, self.rows, 0);
        while low < high {
            let middle = low + (high - low) / 2;
            probes += 1;
            if self.get(middle).is_some_and(|row| is_before(&row)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low, probes)
    }

    /// How many rows from the first on rise.
    pub(super) fn rising_rows(&self) -> usize {
        let mut before: Option<R> = None;
        for number in 0..self.rows {
            match self.get(number) {
                Some(row) if before.is_none_or(|before| row.rises_above(&before)) => {
                    before = Some(row);
                }
                _ => return number,
            }
        }
        self.rows
    }

    fn last_written(&self) -> Option<R> {
        self.rows.checked_sub(1).and_then(|number| self.get(number))
    }
}

/// Rows of a file that is read a piece at a time.
#[derive(Debug)]
struct Chunks<F> {
    file: F,
    held: RefCell<Chunk>,
}

/// Some rows, as they stand in the file.
#[derive(Debug, Default)]
struct Chunk {
    /// The number of the first.
    first: usize,
    bytes: Vec<u8>,
}

/// Rows that are read at once: few, since a start after a kill looks at the first rows of every partition's active segment.
const CHUNK_ROWS: usize = 256;

impl<F: File> Chunks<F> {
    /// Row `number`; `None` where the system does not give it.
    fn row<R: Row>(&self, number: usize) -> Option<R> {
        let first = number / CHUNK_ROWS * CHUNK_ROWS;
        let mut held = self.held.borrow_mut();
        if held.bytes.is_empty() || held.first != first {
            held.bytes.resize(CHUNK_ROWS * R::BYTES, 0);
            let position = (first * R::BYTES) as u64;
            let filled = self.file.read_at(&mut held.bytes, position).unwrap_or(0);
            held.bytes.truncate(filled);
            held.first = first;
        }
        R::read(&*held, number - first)
    }
}

impl Map for Chunk {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn row<const N: usize>(&self, position: usize) -> Option<[u8; N]> {
        self.bytes.get(position..)?.first_chunk().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::offset_index::OffsetRow;
    use super::*;
    use crate::fs::mem::MemFs;

    fn index_of(rows: usize) -> SparseIndex<<MemFs as Fs>::File, OffsetRow> {
        let fs = MemFs::new();
        let path = Path::new("/i.index");
        let mut index = SparseIndex::open_active(&fs, path, 0, 8 * 4096).expect("open");
        for n in 0..u32::try_from(rows).expect("small") {
            index.push(OffsetRow {
                relative: 3 * n + 2,
                position: 10 * n,
            });
        }
        index.write_pending().expect("write");
        index.commit();
        index
    }

    #[test]
    fn lower_bounds_agree_with_a_sorted_list() {
        for rows in [0, 1, 2, 3, 7, 8, 9, 255, 3000] {
            let index = index_of(rows);
            for target in 0..u32::try_from(3 * rows + 6).expect("small") {
                let (point, probes) = index.partition_point(|row| row.relative <= target);
                let expected = (0..rows).filter(|n| 3 * n + 2 <= target as usize).count();
                assert_eq!(point, expected, "{rows} rows, target {target}");
                assert!(probes <= rows.checked_ilog2().map_or(0, |log| log + 1));
            }
        }
    }

    #[test]
    fn gathered_rows_are_seen_after_the_commit_and_gone_after_a_drop() {
        let mut index = index_of(2);
        index.push(OffsetRow {
            relative: 100,
            position: 100,
        });
        assert_eq!(
            (index.len(), index.last().map(|r| r.relative)),
            (2, Some(100))
        );
        index.drop_pending();
        assert_eq!(
            (index.len(), index.last().map(|r| r.relative)),
            (2, Some(5))
        );
    }

    #[test]
    fn trimmed_and_activated_again_it_keeps_its_rows_and_takes_more() {
        let mut index = index_of(5);
        index.trim().expect("trim");
        index.activate(3, 80).expect("activate");
        assert_eq!(
            (index.len(), index.last().map(|r| r.relative)),
            (3, Some(8))
        );
        assert_eq!(index.get(3), None);
        for n in 3..10 {
            assert!(!index.is_full(0));
            index.push(OffsetRow {
                relative: 100 + n,
                position: 100 + n,
            });
        }
        assert!(index.is_full(0));
    }
}
