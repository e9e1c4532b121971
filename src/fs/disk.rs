//! The real file system.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fs::{self, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::sys::{self, Advice, RawMap};

use super::fault::LoseDirty;
use super::{DirEntry, File, Fs, Map, OpenMode, ReadAt};

/// The file system of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskFs;

/// A file of it.
#[derive(Debug)]
pub struct DiskFile {
    file: fs::File,
    coming: Cell<Coming>,
}

/// What was asked for last.
#[derive(Debug, Clone, Copy, Default)]
struct Coming {
    start: u64,
    end: u64,
    /// How often it was found missing since.
    missed: u32,
}

impl Coming {
    fn contains(self, position: u64) -> bool {
        (self.start..self.end).contains(&position)
    }
}

/// A mapping of such a file.
#[derive(Debug)]
pub struct DiskMap {
    map: RawMap,
}

/// A lock on a file: held by the open file, so the system takes it back when the process dies.
#[derive(Debug)]
pub struct DiskLock {
    _file: fs::File,
}

/// How far apart [`ReadAt::is_resident`] probes: one byte in each step, and the last. Pages come into memory in read-ahead windows of
/// this size or more, and mostly leave it in order of age, so a probe speaks for its neighbours; an answer for every page would cost as
/// much as the read.
const PROBE_BYTES: u64 = 64 * 1024;

/// The steps where the pages are on their way: they come one by one.
const PAGE_BYTES: u64 = 4096;

/// What was asked for and is missing so often is asked for again: the memory may have been wanted for something else.
const MISSES: u32 = 64;

impl Fs for DiskFs {
    type File = DiskFile;
    type Lock = DiskLock;

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<DiskFile> {
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => &mut options,
            OpenMode::Write => options.write(true),
            OpenMode::CreateOrKeep => options.write(true).create(true),
            OpenMode::CreateNew => options.write(true).create_new(true),
        };
        Ok(DiskFile {
            file: options.open(path)?,
            coming: Cell::default(),
        })
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let metadata = match fs::metadata(entry.path()) {
                Ok(metadata) => metadata,
                // A link that leads nowhere is a name all the same; a file removed meanwhile is none.
                Err(e) if e.kind() == io::ErrorKind::NotFound => match entry.metadata() {
                    Ok(metadata) => metadata,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                    Err(e) => return Err(e),
                },
                Err(e) => return Err(e),
            };
            let is_dir = metadata.is_dir();
            let len = if is_dir { 0 } else { metadata.len() };
            entries.push(DirEntry {
                name: entry.file_name(),
                is_dir,
                len,
            });
        }
        Ok(entries)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn lock(&self, path: &Path) -> io::Result<DiskLock> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(DiskLock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        sys::sync_filesystem(fs::File::open(path)?.as_fd())
    }

    fn is_same_file_system(&self, path: &Path, other: &Path) -> io::Result<bool> {
        Ok(fs::metadata(path)?.dev() == fs::metadata(other)?.dev())
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        sys::free_bytes(path)
    }
}

impl ReadAt for DiskFile {
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, position + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn is_resident(&self, position: u64, len: u64) -> io::Result<bool> {
        let end = position.saturating_add(len);
        let (mut at, mut last) = (position, position);
        while at < end {
            if !sys::is_byte_resident(self.file.as_fd(), at)? {
                // A probe that was there spoke for what is behind it, which this one belies.
                return self.ask_for(last, end).map(|()| false);
            }
            last = at;
            let is_coming = self.coming.get().contains(at);
            let step = if is_coming { PAGE_BYTES } else { PROBE_BYTES };
            at = next_probe(at, end, step);
        }
        Ok(true)
    }
}

/// The probe after the one at `at`: a step on, but the last byte before the end.
fn next_probe(at: u64, end: u64, step: u64) -> u64 {
    if at + 1 == end {
        end
    } else {
        (at + step).min(end - 1)
    }
}

impl DiskFile {
    /// Asks for a range unless it is on its way.
    fn ask_for(&self, at: u64, end: u64) -> io::Result<()> {
        let mut coming = self.coming.get();
        if !coming.contains(at) || coming.end < end || coming.missed >= MISSES {
            if coming.end == 0 {
                // From here on it is said what is wanted; what the system would read ahead by itself stands in front of it in the disk's queue.
                sys::advise(self.file.as_fd(), 0, 0, Advice::Random)?;
            }
            self.read_ahead(at, end)?;
            (coming.start, coming.end, coming.missed) = (at, end, 0);
        }
        coming.missed += 1;
        self.coming.set(coming);
        Ok(())
    }

    /// Asks for the range in steps, since the kernel cuts one request at its read-ahead window and forgets the rest.
    fn read_ahead(&self, mut at: u64, end: u64) -> io::Result<()> {
        while at < end {
            let len = PROBE_BYTES.min(end - at);
            sys::advise(self.file.as_fd(), at, len, Advice::WillNeed)?;
            at += len;
        }
        Ok(())
    }
}

impl File for DiskFile {
    type Map = DiskMap;

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize> {
        self.file.write_at(bytes, position)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        sys::allocate(self.file.as_fd(), len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn start_writeback(&self, position: u64, len: u64) {
        if let Err(e) = sys::start_writeback(self.file.as_fd(), position, len) {
            // An error of the write itself comes back from the next fdatasync; this call is only a wish.
            log::debug!("sync_file_range position={position} len={len} failed: {e}");
        }
    }

    fn finish_writeback(&self, position: u64, len: u64) -> io::Result<()> {
        match sys::finish_writeback(self.file.as_fd(), position, len) {
            // Not every file system and sandbox has the call.
            Err(e) if is_missing_call(&e) => self.file.sync_data(),
            result => result,
        }
    }

    fn drop_cache(&self) {
        if let Err(e) = sys::advise(self.file.as_fd(), 0, 0, Advice::DontNeed) {
            log::debug!("posix_fadvise failed: {e}");
        }
    }

    fn map(&self, len: u64) -> io::Result<DiskMap> {
        Ok(DiskMap {
            map: RawMap::new(&self.file, len)?,
        })
    }
}

/// Whether a call was refused as such, and not for what it was to do.
fn is_missing_call(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput
    )
}

impl Map for DiskMap {
    fn len(&self) -> usize {
        self.map.len()
    }

    fn row<const N: usize>(&self, position: usize) -> Option<[u8; N]> {
        self.map.row(position)
    }
}

impl LoseDirty for DiskFile {
    /// A real disk cannot be made to lose anything.
    fn lose_dirty(&self) {}
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn it_passes_the_conformance_tests() {
        let dir = tempfile::tempdir().unwrap();
        crate::fs::conformance::check(&DiskFs, dir.path());
    }

    #[test]
    fn what_was_just_written_is_resident_and_so_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = DiskFs
            .open(&dir.path().join("f"), OpenMode::CreateNew)
            .unwrap();
        file.write_all_at(&vec![7; 300_000], 0).unwrap();
        assert!(file.is_resident(0, 300_000).unwrap());
        assert!(file.is_resident(5, 0).unwrap());
        assert!(file.is_resident(1_000_000, 10).unwrap(), "behind the end");
    }

    #[test]
    fn what_left_the_cache_comes_back_when_it_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let file = DiskFs
            .open(&dir.path().join("f"), OpenMode::CreateNew)
            .unwrap();
        file.write_all_at(&vec![7; 3 << 20], 0).unwrap();
        file.sync_data().unwrap();
        file.drop_cache();
        // A file system in memory says yes at once; on a disk each question brings the answer nearer.
        let mut asked = 0_u64;
        while !file.is_resident(4096, 2 << 20).unwrap() {
            asked += 1;
            assert!(asked < 10_000_000, "read-ahead never came");
        }
    }

    #[test]
    fn probes_go_step_by_step_and_end_with_the_last_byte() {
        let mut at = 10;
        let mut probes = Vec::new();
        while at < 10 + 2 * PROBE_BYTES + 5 {
            probes.push(at);
            at = next_probe(at, 10 + 2 * PROBE_BYTES + 5, PROBE_BYTES);
        }
        assert_eq!(
            probes,
            [
                10,
                10 + PROBE_BYTES,
                10 + 2 * PROBE_BYTES,
                14 + 2 * PROBE_BYTES
            ]
        );
    }

    #[test]
    fn a_dangling_link_is_listed_and_opened_files_have_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
        let names = DiskFs.read_dir(dir.path()).unwrap();
        assert_eq!(names.len(), 1);
        let file = DiskFs
            .open(&dir.path().join("f"), OpenMode::CreateNew)
            .unwrap();
        assert!(file.fd().is_some());
    }
}
