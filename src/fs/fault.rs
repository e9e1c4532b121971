//! A file system that fails, shortens or tears an operation of the one it wraps.
//!
//! Operations that change something are counted (on request those that only look, too); the fault strikes the Nth, once or from there on.
//! A test runs the same steps for N = 0, 1, 2 ... until a run finishes with nothing struck.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::rc::Rc;

use super::{DirEntry, File, Fs, OpenMode, ReadAt};

/// What a file does when its fsync failed.
pub trait LoseDirty {
    /// Counts what is dirty as written, though it is not: from now on no fsync writes it, it still reads as new, and a crash gives
    /// the old. Where that cannot be had, does nothing.
    fn lose_dirty(&self);
}

/// How an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Does nothing and answers EIO. A failed fsync loses what it was to write ([`LoseDirty`]).
    Io,
    /// Does nothing and answers ENOSPC. A failed fsync loses what it was to write.
    NoSpace,
    /// Does it, and answers EIO all the same.
    IoAfter,
    /// A write takes so many bytes (at least one) and says so; any other operation succeeds.
    Short(usize),
    /// A write takes so many bytes (fewer than given), which reach the disk, and answers EIO; any other operation fails as with
    /// [`FaultKind::Io`].
    Torn(usize),
}

/// A fault to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Which operation it strikes, counted from 0 at [`FaultFs::arm`].
    pub at: u64,
    /// Whether it strikes all that follow as well.
    pub from_then_on: bool,
    /// What happens.
    pub kind: FaultKind,
    /// Whether operations that only look are counted and struck, too.
    pub reads: bool,
}

/// The failing file system. Clones share the fault and the count.
#[derive(Debug, Clone)]
pub struct FaultFs<F> {
    inner: F,
    plan: Rc<Plan>,
}

/// An open file of it.
#[derive(Debug)]
pub struct FaultFile<T> {
    inner: T,
    plan: Rc<Plan>,
}

#[derive(Debug, Default)]
struct Plan {
    fault: Cell<Option<Fault>>,
    operations: Cell<u64>,
    struck: Cell<u64>,
}

impl<F> FaultFs<F> {
    /// Wraps a file system; nothing fails yet.
    pub fn new(inner: F) -> Self {
        Self {
            inner,
            plan: Rc::default(),
        }
    }

    /// Sets the fault and starts to count from 0.
    pub fn arm(&self, fault: Fault) {
        self.plan.fault.set(Some(fault));
        self.plan.operations.set(0);
        self.plan.struck.set(0);
    }

    /// Lets everything succeed again; the counts stay.
    pub fn disarm(&self) {
        self.plan.fault.set(None);
    }

    /// How many operations were counted since [`FaultFs::arm`].
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.plan.operations.get()
    }

    /// How many operations were struck since [`FaultFs::arm`].
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.plan.struck.get()
    }

    /// The file system below.
    pub fn inner(&self) -> &F {
        &self.inner
    }
}

/// What is done to an operation.
#[derive(Clone, Copy)]
enum Strike {
    No,
    Fail(i32),
    FailAfter,
    Short(usize),
    Torn(usize),
}

impl Plan {
    fn change(&self) -> Strike {
        self.count(false)
    }

    fn look(&self) -> io::Result<()> {
        match self.count(true) {
            Strike::No | Strike::Short(_) => Ok(()),
            Strike::Fail(code) => Err(io::Error::from_raw_os_error(code)),
            Strike::FailAfter | Strike::Torn(_) => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    fn count(&self, only_looks: bool) -> Strike {
        let fault = self.fault.get();
        if only_looks && !fault.is_some_and(|fault| fault.reads) {
            return Strike::No;
        }
        let number = self.operations.get();
        self.operations.set(number + 1);
        let Some(fault) = fault else {
            return Strike::No;
        };
        if number != fault.at && !(fault.from_then_on && number > fault.at) {
            return Strike::No;
        }
        self.struck.set(self.struck.get() + 1);
        match fault.kind {
            FaultKind::Io => Strike::Fail(libc::EIO),
            FaultKind::NoSpace => Strike::Fail(libc::ENOSPC),
            FaultKind::IoAfter => Strike::FailAfter,
            FaultKind::Short(n) => Strike::Short(n),
            FaultKind::Torn(n) => Strike::Torn(n),
        }
    }

    /// Does an operation that is no write, as the plan has it.
    fn run<T>(&self, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.change() {
            Strike::No | Strike::Short(_) => operation(),
            Strike::Fail(code) => Err(io::Error::from_raw_os_error(code)),
            Strike::Torn(_) => Err(io::Error::from_raw_os_error(libc::EIO)),
            Strike::FailAfter => {
                operation()?;
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
        }
    }
}

impl<F: Fs> Fs for FaultFs<F>
where
    F::File: LoseDirty,
{
    type File = FaultFile<F::File>;
    type Lock = F::Lock;

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Self::File> {
        let creates = match mode {
            OpenMode::Read | OpenMode::Write => false,
            OpenMode::CreateOrKeep => !self.inner.exists(path)?,
            OpenMode::CreateNew => true,
        };
        let inner = if creates {
            self.plan.run(|| self.inner.open(path, mode))?
        } else {
            self.plan.look()?;
            self.inner.open(path, mode)?
        };
        Ok(FaultFile {
            inner,
            plan: Rc::clone(&self.plan),
        })
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.plan.look()?;
        self.inner.read_dir(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.plan.run(|| self.inner.create_dir(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.plan.run(|| self.inner.remove_dir(path))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.plan.run(|| self.inner.remove_file(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.plan.run(|| self.inner.rename(from, to))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.plan.run(|| self.inner.sync_dir(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.plan.look()?;
        self.inner.exists(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Self::Lock> {
        self.plan.look()?;
        self.inner.lock(path)
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        self.plan.run(|| self.inner.sync_all(path))
    }

    fn write_out(&self, path: &Path) {
        self.inner.write_out(path);
    }

    fn is_same_file_system(&self, path: &Path, other: &Path) -> io::Result<bool> {
        self.plan.look()?;
        self.inner.is_same_file_system(path, other)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.plan.look()?;
        self.inner.free_bytes(path)
    }
}

impl<T: ReadAt> ReadAt for FaultFile<T> {
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.plan.look()?;
        self.inner.read_at(buf, position)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn is_resident(&self, position: u64, len: u64) -> io::Result<bool> {
        self.plan.look()?;
        self.inner.is_resident(position, len)
    }
}

impl<F: File + LoseDirty> FaultFile<F> {
    /// A sync, which fails as a whole: what is dirty is lost.
    fn sync(&self, inner: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match self.plan.change() {
            Strike::No | Strike::Short(_) => inner(),
            Strike::Fail(code) => {
                self.inner.lose_dirty();
                Err(io::Error::from_raw_os_error(code))
            }
            Strike::Torn(_) => {
                self.inner.lose_dirty();
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
            Strike::FailAfter => {
                inner()?;
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
        }
    }
}

impl<T: File + LoseDirty> File for FaultFile<T> {
    type Map = T::Map;

    fn len(&self) -> io::Result<u64> {
        self.plan.look()?;
        self.inner.len()
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize> {
        let part = |n: usize| bytes.get(..n).unwrap_or(bytes);
        match self.plan.change() {
            Strike::No => self.inner.write_at(bytes, position),
            Strike::Fail(code) => Err(io::Error::from_raw_os_error(code)),
            Strike::FailAfter => {
                self.inner.write_all_at(bytes, position)?;
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
            Strike::Short(n) => self.inner.write_at(part(n.max(1)), position),
            Strike::Torn(n) => {
                self.inner
                    .write_all_at(part(n.min(bytes.len().saturating_sub(1))), position)?;
                self.inner.sync_data()?;
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.plan.run(|| self.inner.set_len(len))
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.plan.run(|| self.inner.allocate(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(|| self.inner.sync_data())
    }

    fn finish_writeback(&self, position: u64, len: u64) -> io::Result<()> {
        self.sync(|| self.inner.finish_writeback(position, len))
    }

    fn start_writeback(&self, position: u64, len: u64) {
        self.inner.start_writeback(position, len);
    }

    fn drop_cache(&self) {
        self.inner.drop_cache();
    }

    fn map(&self, len: u64) -> io::Result<Self::Map> {
        self.plan.look()?;
        self.inner.map(len)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::super::mem::{MemFile, MemFs};
    use super::*;

    fn setup() -> (MemFs, FaultFs<MemFs>, FaultFile<MemFile>) {
        let memory = MemFs::new();
        let fs = FaultFs::new(memory.clone());
        let file = fs.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
        (memory, fs, file)
    }

    fn fault(at: u64, kind: FaultKind) -> Fault {
        Fault {
            at,
            from_then_on: false,
            kind,
            reads: false,
        }
    }

    fn content(file: &FaultFile<MemFile>) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn it_passes_the_conformance_tests_while_nothing_is_armed() {
        crate::fs::conformance::check(&FaultFs::new(MemFs::new()), Path::new("/"));
    }

    #[test]
    fn the_nth_change_fails_once_and_reads_do_not_count() {
        let (_, fs, file) = setup();
        fs.arm(fault(1, FaultKind::NoSpace));
        file.write_all_at(b"ab", 0).unwrap();
        assert_eq!(content(&file), b"ab");
        let error = file.write_all_at(b"cd", 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(content(&file), b"ab");
        file.write_all_at(b"cd", 0).unwrap();
        assert_eq!((fs.operations(), fs.struck()), (3, 1));
    }

    #[test]
    fn from_there_on_everything_fails_until_it_is_disarmed() {
        let (_, fs, file) = setup();
        fs.arm(Fault {
            from_then_on: true,
            ..fault(0, FaultKind::Io)
        });
        assert!(file.set_len(3).is_err());
        assert!(file.allocate(3).is_err());
        assert!(fs.create_dir(Path::new("/d")).is_err());
        assert!(fs.rename(Path::new("/f"), Path::new("/g")).is_err());
        assert!(fs.remove_file(Path::new("/f")).is_err());
        assert!(fs.sync_dir(Path::new("/")).is_err());
        assert!(fs.open(Path::new("/new"), OpenMode::CreateOrKeep).is_err());
        fs.open(Path::new("/f"), OpenMode::CreateOrKeep).unwrap();
        assert_eq!(fs.struck(), 7);
        fs.disarm();
        file.set_len(3).unwrap();
    }

    #[test]
    fn reads_count_where_they_are_asked_to() {
        let (_, fs, file) = setup();
        fs.arm(Fault {
            reads: true,
            ..fault(1, FaultKind::Io)
        });
        assert!(file.is_resident(0, 1).is_ok());
        assert!(file.read_at(&mut [0], 0).is_err());
        file.read_at(&mut [0], 0).unwrap();
    }

    #[test]
    fn a_short_write_says_so_and_the_rest_goes_through() {
        let (_, fs, file) = setup();
        fs.arm(fault(0, FaultKind::Short(3)));
        file.write_all_at(b"abcdef", 0).unwrap();
        assert_eq!(
            (content(&file).as_slice(), fs.operations()),
            (&b"abcdef"[..], 2)
        );
        fs.arm(fault(0, FaultKind::Short(0)));
        assert_eq!(file.write_at(b"xy", 0).unwrap(), 1);
    }

    #[test]
    fn a_torn_write_leaves_a_part_and_an_error() {
        let (_, fs, file) = setup();
        fs.arm(fault(0, FaultKind::Torn(9)));
        assert!(file.write_all_at(b"abcdef", 0).is_err());
        assert_eq!(content(&file), b"abcde");
    }

    #[test]
    fn an_operation_may_be_done_and_reported_as_failed() {
        let (memory, fs, _) = setup();
        fs.arm(fault(0, FaultKind::IoAfter));
        assert!(fs.create_dir(Path::new("/d")).is_err());
        assert!(memory.exists(Path::new("/d")).unwrap());
    }

    #[test]
    fn after_a_failed_fsync_a_later_one_saves_nothing_of_it() {
        let (memory, fs, file) = setup();
        fs.sync_dir(Path::new("/")).unwrap();
        file.write_all_at(b"old", 0).unwrap();
        file.sync_data().unwrap();
        file.write_all_at(b"new", 0).unwrap();
        fs.arm(fault(0, FaultKind::Io));
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        assert_eq!(content(&file), b"new", "it reads as new");
        for choice in 0..6 {
            let disk = FaultFs::new(memory.crash(&mut |n| choice % n));
            assert_eq!(
                content(&disk.open(Path::new("/f"), OpenMode::Read).unwrap()),
                b"old"
            );
        }
        file.drop_cache();
        assert_eq!(content(&file), b"old", "the disk never had the new bytes");
    }
}
