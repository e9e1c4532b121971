//! The file seam: the handful of file-system calls that the engine makes.
//!
//! The seam wraps files, not "storage": what a record, a segment or an index is, stays above it. Three
//! implementations: [`disk::DiskFs`] (the real one), [`mem::MemFs`] (in memory, can crash) and
//! [`fault::FaultFs`] (wraps another; fails, shortens or tears the Nth operation). Engine and broker are generic
//! over [`Fs`]; what leaves them is not: a file range holds an `Rc<dyn ReadAt>`.
//!
//! Paths are given whole; an implementation resolves none of them against a working directory of its own.

#![forbid(unsafe_code)]

#[cfg(test)]
mod conformance;
pub mod disk;
pub mod fault;
pub mod mem;
pub mod memory;

use std::ffi::OsString;
use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// Reading at a position, without a cursor: the part of a file that may outlive the engine's interest in it.
pub trait ReadAt: Debug {
    /// Reads up to `buf.len()` bytes at `position`; fewer only at the end of the file (implementations loop over
    /// short and interrupted reads). Returns the number of bytes read.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize>;

    /// The descriptor that sendfile can take, where there is one.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether reading these bytes would not wait for the disk. Where the answer is no, read-ahead of the range was
    /// asked for, so that the answer turns to yes soon. A file system that cannot tell answers yes.
    ///
    /// # Errors
    /// What the system says.
    fn is_resident(&self, position: u64, len: u64) -> io::Result<bool>;
}

/// An open file.
pub trait File: ReadAt + Sized + 'static {
    /// A read-only mapping of such a file.
    type Map: Map;

    /// The file's length in bytes.
    ///
    /// # Errors
    /// What the system says.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file holds no byte.
    ///
    /// # Errors
    /// What the system says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Writes some bytes at `position` and returns how many: possibly fewer than given, never 0 for a non-empty
    /// `bytes` without an error. A gap before `position` reads as zeros.
    ///
    /// # Errors
    /// What the system says; nothing is promised about how much was written.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize>;

    /// Writes all bytes at `position`.
    ///
    /// # Errors
    /// The first error met; bytes before it may have been written, so the caller cuts back.
    fn write_all_at(&self, mut bytes: &[u8], mut position: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, position) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    bytes = bytes.get(n..).unwrap_or_default();
                    position += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Cuts or extends (with a hole that reads as zeros) to `len` bytes. The caller holds no mapping over what goes.
    ///
    /// # Errors
    /// What the system says.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Allocates the first `len` bytes for real, so that writing them later cannot run out of space.
    ///
    /// # Errors
    /// What the system says; in particular when there is no room.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// fdatasync: content and length are on the disk when this returns.
    ///
    /// # Errors
    /// What the system says. A failure is final for the file: what was dirty may be lost though a later call succeeds.
    fn sync_data(&self) -> io::Result<()>;

    /// Asks for the range to be written out without waiting for it (`sync_file_range`); promises nothing.
    fn start_writeback(&self, position: u64, len: u64);

    /// Waits until what was written to the range is out of memory (`sync_file_range`): a part of what [`File::sync_data`] waits for, and no
    /// promise without it.
    ///
    /// # Errors
    /// As [`File::sync_data`].
    fn finish_writeback(&self, position: u64, len: u64) -> io::Result<()> {
        // A file that has nothing to wait for.
        let _ = (position, len);
        Ok(())
    }

    /// Drops the clean pages of the file from memory, so that reads come from the disk; promises nothing.
    fn drop_cache(&self);

    /// Maps the first `len` bytes (at least 1, at most the file's length) read-only and shared.
    ///
    /// # Errors
    /// What the system says.
    fn map(&self, len: u64) -> io::Result<Self::Map>;
}

/// A read-only mapping, from which rows are copied out: a slice over a file that is being written would be
/// undefined behaviour.
pub trait Map: Debug + 'static {
    /// Bytes mapped.
    fn len(&self) -> usize;

    /// Whether nothing is mapped.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `N` bytes out at `position`; `None` where they are not all mapped.
    fn row<const N: usize>(&self, position: usize) -> Option<[u8; N]>;
}

/// How a file is opened. All but `Read` can also be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, for reading only.
    Read,
    /// An existing file, for reading and writing.
    Write,
    /// Created where it is missing, kept as it is where it is not.
    CreateOrKeep,
    /// Created; one that exists is an `AlreadyExists` error.
    CreateNew,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The last part of its path.
    pub name: OsString,
    /// Whether it is a directory (a symbolic link is followed).
    pub is_dir: bool,
    /// Bytes of a file; 0 for a directory.
    pub len: u64,
}

/// A file system. Cloning gives another handle to the same one.
pub trait Fs: Clone + Debug + 'static {
    /// Its open files.
    type File: File;
    /// A lock on a file that is held until it is dropped (or the process dies).
    type Lock: Debug;

    /// Opens a file.
    ///
    /// # Errors
    /// What the system says.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Self::File>;

    /// What is in a directory, in no order.
    ///
    /// # Errors
    /// What the system says.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>>;

    /// Creates one directory; its parent exists.
    ///
    /// # Errors
    /// What the system says, `AlreadyExists` included.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// What the system says.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes a file; open handles stay usable.
    ///
    /// # Errors
    /// What the system says.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Renames a file within the file system, replacing `to` in one step. On the disk it is only after [`Fs::sync_dir`] of
    /// both directories.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// fsync of a directory: the names in it are on the disk when this returns.
    ///
    /// # Errors
    /// What the system says.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Whether something of that name exists.
    ///
    /// # Errors
    /// What the system says, "not found" excepted.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Takes an exclusive lock on the file, creating it where it is missing; an error of kind `WouldBlock` where another
    /// holder has it. Nothing else changes.
    ///
    /// # Errors
    /// What the system says.
    fn lock(&self, path: &Path) -> io::Result<Self::Lock>;

    /// `syncfs`: what was written to any file of the file system that holds `path` is on the disk when this returns, as after
    /// [`File::sync_data`] of each, but for a file whose own [`File::finish_writeback`] then tells of a failure: not every kernel tells of it here.
    ///
    /// # Errors
    /// What the system says; nothing is promised then.
    fn sync_all(&self, path: &Path) -> io::Result<()>;

    /// As [`Fs::sync_all`], as a wish: nothing is promised.
    fn write_out(&self, path: &Path) {
        if let Err(error) = self.sync_all(path) {
            log::warn!("syncfs of {} failed: {error}", path.display());
        }
    }

    /// Whether both are on the file system that a [`Fs::sync_all`] of either reaches.
    ///
    /// # Errors
    /// What the system says.
    fn is_same_file_system(&self, path: &Path, other: &Path) -> io::Result<bool>;

    /// Bytes that a process without privileges can still write on the file system that holds `path`.
    ///
    /// # Errors
    /// What the system says.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// Renames a directory that has the name of a file of ours, and says so in the log: to that name with `.directory` behind it, and a number where that
/// is taken. It is never removed, whatever is in it.
///
/// # Errors
/// What the system says.
pub fn move_directory_aside<F: Fs>(fs: &F, path: &Path) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".directory");
    let mut free = PathBuf::from(&aside);
    for number in 1_u32.. {
        if !fs.exists(&free)? {
            break;
        }
        let mut numbered = aside.clone();
        numbered.push(format!(".{number}"));
        free = numbered.into();
    }
    fs.rename(path, &free)?;
    log::warn!(
        "{} is a directory, where the broker has a file: it is now {}",
        path.display(),
        free.display()
    );
    Ok(())
}

/// Reads a whole file of at most `max_bytes` bytes; a larger one is an `InvalidData` error.
///
/// # Errors
/// What the system says.
pub fn read_file<F: Fs>(fs: &F, path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    let file = fs.open(path, OpenMode::Read)?;
    let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
    if len > max_bytes {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{} has {len} bytes, more than the {max_bytes} that it may have",
                path.display()
            ),
        ));
    }
    let mut bytes = vec![0; len];
    let n = file.read_at(&mut bytes, 0)?;
    bytes.truncate(n);
    Ok(bytes)
}
