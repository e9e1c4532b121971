//! A file system in memory that can lose power.
//!
//! It keeps, for every file and directory, what a process sees and what is certain to be on the disk. [`MemFs::crash`] gives the file
//! system as a disk could hold it after a power cut: of everything that was not synced, any subset of 4 KiB pages, of lengths and of
//! directory operations. [`MemFs::kill`] gives it as it is after the end of the process alone: whole. Both leave the old one
//! untouched and independent, so files that are still open there cannot disturb the new one.
//!
//! What is harsher here than on most disks: syncing a file does not make its name durable; a directory that is not synced in its
//! parent is lost with all in it; a page may be kept while the length that covers it is not, and the other way round; what a
//! failed fsync was to write reads as new until [`File::drop_cache`] or a crash brings the old bytes back, and no later fsync
//! writes it.

#![forbid(unsafe_code)]

mod crash;
mod node;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use self::node::{FileNode, PAGE_BYTES};
use super::fault::LoseDirty;
use super::{DirEntry, File, Fs, Map, OpenMode, ReadAt};

/// A file system in memory. Clones are handles to the same one.
#[derive(Clone)]
pub struct MemFs {
    state: Rc<State>,
}

/// An open file of a [`MemFs`].
pub struct MemFile {
    state: Rc<State>,
    file: SharedFile,
    is_writable: bool,
}

/// A mapping of such a file: it reads what the file holds at the moment.
pub struct MemMap {
    file: SharedFile,
    len: usize,
}

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub struct MemLock {
    fs: MemFs,
    path: PathBuf,
}

struct State {
    root: SharedDir,
    /// Operations on directories that are not known to be on the disk, oldest first.
    pending: RefCell<Vec<DirOperation>>,
    locks: RefCell<BTreeSet<PathBuf>>,
    capacity: Cell<Option<u64>>,
    bytes_read: Cell<u64>,
    cold_answers: Cell<u32>,
}

type SharedFile = Rc<RefCell<FileNode>>;
type SharedDir = Rc<RefCell<DirNode>>;
type Names = BTreeMap<OsString, Node>;

#[derive(Clone)]
enum Node {
    File(SharedFile),
    Dir(SharedDir),
}

#[derive(Default)]
struct DirNode {
    live: Names,
    durable: Names,
}

/// What one operation does, kept or lost as one until a sync of one of its directories takes a part of it.
type DirOperation = Vec<Effect>;

#[derive(Clone)]
struct Effect {
    dir: SharedDir,
    name: OsString,
    /// What the name stands for afterwards; `None`: nothing.
    node: Option<Node>,
}

/// What [`Fs::free_bytes`] says where no capacity is set.
const UNBOUNDED_BYTES: u64 = 1 << 40;

impl Default for MemFs {
    fn default() -> Self {
        Self::new()
    }
}

impl MemFs {
    /// An empty file system with a root directory.
    #[must_use]
    pub fn new() -> Self {
        Self::with_root(SharedDir::default(), Vec::new(), None)
    }

    fn with_root(root: SharedDir, pending: Vec<DirOperation>, capacity: Option<u64>) -> Self {
        Self {
            state: Rc::new(State {
                root,
                pending: RefCell::new(pending),
                locks: RefCell::default(),
                capacity: Cell::new(capacity),
                bytes_read: Cell::new(0),
                cold_answers: Cell::new(0),
            }),
        }
    }

    /// Bounds what all files together may take, in bytes, counted in whole pages of 4 KiB; holes and names take none. `None`: no bound. What
    /// is there already stays.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.capacity.set(bytes);
    }

    /// Bytes that all files together take: whole pages.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        pages_below(&self.state.root) * PAGE_BYTES
    }

    /// Bytes that were read from files so far; rows copied from mappings do not count.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.state.bytes_read.get()
    }

    /// Lets the next `answers` questions whether bytes are resident be answered with no.
    pub fn set_cold(&self, answers: u32) {
        self.state.cold_answers.set(answers);
    }

    /// Writes some of what is not synced to the disk, as a system does at any time by itself: later changes to the same pages and lengths
    /// then leave these versions behind, not only the last synced ones. `choose` as in [`MemFs::crash`].
    pub fn write_back(&self, choose: &mut dyn FnMut(u64) -> u64) {
        write_back_below(&self.state.root, choose);
    }

    fn dir(&self, path: &Path) -> io::Result<SharedDir> {
        let mut dir = Rc::clone(&self.state.root);
        for part in path.components() {
            let name = match part {
                Component::RootDir | Component::CurDir => continue,
                Component::Normal(name) => name,
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(ErrorKind::InvalidInput.into());
                }
            };
            let next = match dir.borrow().live.get(name) {
                Some(Node::Dir(next)) => Rc::clone(next),
                Some(Node::File(_)) => return Err(ErrorKind::NotADirectory.into()),
                None => return Err(ErrorKind::NotFound.into()),
            };
            dir = next;
        }
        Ok(dir)
    }

    /// The directory that holds the last name of a path, and that name.
    fn split(&self, path: &Path) -> io::Result<(SharedDir, OsString)> {
        let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
        Ok((
            self.dir(path.parent().unwrap_or(Path::new("")))?,
            name.to_owned(),
        ))
    }

    /// Does an operation for those who look, and notes it as not yet on the disk.
    fn apply(&self, operation: DirOperation) {
        for effect in &operation {
            set_name(
                &mut effect.dir.borrow_mut().live,
                &effect.name,
                effect.node.as_ref(),
            );
        }
        self.state.pending.borrow_mut().push(operation);
    }

    fn handle(&self, file: SharedFile, is_writable: bool) -> MemFile {
        MemFile {
            state: Rc::clone(&self.state),
            file,
            is_writable,
        }
    }
}

impl State {
    /// Pages that can still be taken.
    fn room(&self) -> u64 {
        self.capacity.get().map_or(u64::MAX, |capacity| {
            (capacity / PAGE_BYTES).saturating_sub(pages_below(&self.root))
        })
    }
}

fn set_name(names: &mut Names, name: &OsString, node: Option<&Node>) {
    match node {
        Some(node) => names.insert(name.clone(), node.clone()),
        None => names.remove(name),
    };
}

fn pages_below(dir: &SharedDir) -> u64 {
    let pages = |node: &Node| match node {
        Node::File(file) => file.borrow().pages(),
        Node::Dir(dir) => pages_below(dir),
    };
    dir.borrow().live.values().map(pages).sum()
}

fn write_back_below(dir: &SharedDir, choose: &mut dyn FnMut(u64) -> u64) {
    for node in dir.borrow().live.values() {
        match node {
            Node::File(file) => file.borrow_mut().write_back(choose),
            Node::Dir(dir) => write_back_below(dir, choose),
        }
    }
}

/// Syncs every file below a directory, but no name.
fn sync_below(dir: &SharedDir) {
    for node in dir.borrow().live.values() {
        match node {
            Node::File(file) => file.borrow_mut().sync(),
            Node::Dir(dir) => sync_below(dir),
        }
    }
}

impl Fs for MemFs {
    type File = MemFile;
    type Lock = MemLock;

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<MemFile> {
        let (dir, name) = self.split(path)?;
        let found = dir.borrow().live.get(&name).cloned();
        let is_writable = mode != OpenMode::Read;
        match (found, mode) {
            (Some(_), OpenMode::CreateNew) => Err(ErrorKind::AlreadyExists.into()),
            (Some(Node::Dir(_)), _) => Err(ErrorKind::IsADirectory.into()),
            (Some(Node::File(file)), _) => Ok(self.handle(file, is_writable)),
            (None, OpenMode::Read | OpenMode::Write) => Err(ErrorKind::NotFound.into()),
            (None, OpenMode::CreateOrKeep | OpenMode::CreateNew) => {
                let file = SharedFile::default();
                let node = Some(Node::File(Rc::clone(&file)));
                self.apply(vec![Effect { dir, name, node }]);
                Ok(self.handle(file, is_writable))
            }
        }
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let dir = self.dir(path)?;
        let dir = dir.borrow();
        let entries = dir.live.iter().map(|(name, node)| {
            let (is_dir, len) = match node {
                Node::Dir(_) => (true, 0),
                Node::File(file) => (false, file.borrow().len()),
            };
            DirEntry {
                name: name.clone(),
                is_dir,
                len,
            }
        });
        Ok(entries.collect())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.split(path)?;
        if dir.borrow().live.contains_key(&name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let node = Some(Node::Dir(SharedDir::default()));
        self.apply(vec![Effect { dir, name, node }]);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.split(path)?;
        match dir.borrow().live.get(&name) {
            None => return Err(ErrorKind::NotFound.into()),
            Some(Node::File(_)) => return Err(ErrorKind::NotADirectory.into()),
            Some(Node::Dir(gone)) if gone.borrow().live.is_empty() => {}
            Some(Node::Dir(_)) => return Err(ErrorKind::DirectoryNotEmpty.into()),
        }
        self.apply(vec![Effect {
            dir,
            name,
            node: None,
        }]);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.split(path)?;
        match dir.borrow().live.get(&name) {
            None => return Err(ErrorKind::NotFound.into()),
            Some(Node::Dir(_)) => return Err(ErrorKind::IsADirectory.into()),
            Some(Node::File(_)) => {}
        }
        self.apply(vec![Effect {
            dir,
            name,
            node: None,
        }]);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_dir, from_name) = self.split(from)?;
        let (to_dir, to_name) = self.split(to)?;
        let node = from_dir
            .borrow()
            .live
            .get(&from_name)
            .cloned()
            .ok_or(ErrorKind::NotFound)?;
        match (to_dir.borrow().live.get(&to_name), &node) {
            (None, _) | (Some(Node::File(_)), Node::File(_)) => {}
            (Some(Node::Dir(_)), _) => return Err(ErrorKind::IsADirectory.into()),
            (Some(Node::File(_)), Node::Dir(_)) => return Err(ErrorKind::NotADirectory.into()),
        }
        if Rc::ptr_eq(&from_dir, &to_dir) && from_name == to_name {
            return Ok(());
        }
        self.apply(vec![
            Effect {
                dir: from_dir,
                name: from_name,
                node: None,
            },
            Effect {
                dir: to_dir,
                name: to_name,
                node: Some(node),
            },
        ]);
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let dir = self.dir(path)?;
        let mut pending = self.state.pending.borrow_mut();
        for operation in pending.iter_mut() {
            operation.retain(|effect| {
                let is_here = Rc::ptr_eq(&effect.dir, &dir);
                if is_here {
                    let names = &mut dir.borrow_mut().durable;
                    set_name(names, &effect.name, effect.node.as_ref());
                }
                !is_here
            });
        }
        pending.retain(|operation| !operation.is_empty());
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.split(path) {
            Ok((dir, name)) => Ok(dir.borrow().live.contains_key(&name)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            // Only the root has no last name.
            Err(_) if path.file_name().is_none() => Ok(self.dir(path).is_ok()),
            Err(e) => Err(e),
        }
    }

    fn lock(&self, path: &Path) -> io::Result<MemLock> {
        self.open(path, OpenMode::CreateOrKeep)?;
        if !self.state.locks.borrow_mut().insert(path.to_owned()) {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(MemLock {
            fs: self.clone(),
            path: path.to_owned(),
        })
    }

    fn sync_all(&self, _: &Path) -> io::Result<()> {
        // Names would be synced by it, too; nobody may count on that.
        sync_below(&self.state.root);
        Ok(())
    }

    fn write_out(&self, _: &Path) {
        // It promises nothing, and here nothing is the harshest.
    }

    fn is_same_file_system(&self, _: &Path, _: &Path) -> io::Result<bool> {
        Ok(true)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        if !self.exists(path)? {
            return Err(ErrorKind::NotFound.into());
        }
        Ok(match self.state.capacity.get() {
            None => UNBOUNDED_BYTES,
            Some(_) => self.state.room() * PAGE_BYTES,
        })
    }
}

impl Drop for MemLock {
    fn drop(&mut self) {
        self.fs.state.locks.borrow_mut().remove(&self.path);
    }
}

impl MemFile {
    fn check_writable(&self) -> io::Result<()> {
        if self.is_writable {
            Ok(())
        } else {
            Err(ErrorKind::PermissionDenied.into())
        }
    }
}

impl ReadAt for MemFile {
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        let n = self.file.borrow().read(buf, position);
        self.state
            .bytes_read
            .set(self.state.bytes_read.get() + n as u64);
        Ok(n)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_resident(&self, _position: u64, _len: u64) -> io::Result<bool> {
        let cold = self.state.cold_answers.get();
        self.state.cold_answers.set(cold.saturating_sub(1));
        Ok(cold == 0)
    }
}

impl File for MemFile {
    type Map = MemMap;

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.borrow().len())
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize> {
        self.check_writable()?;
        let room = self.state.room();
        match self.file.borrow_mut().write(bytes, position, room) {
            0 if !bytes.is_empty() => Err(ErrorKind::StorageFull.into()),
            n => Ok(n),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        self.file.borrow_mut().set_len(len);
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let room = self.state.room();
        let is_done = self.file.borrow_mut().allocate(len, room);
        if is_done {
            Ok(())
        } else {
            Err(ErrorKind::StorageFull.into())
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.borrow_mut().sync();
        Ok(())
    }

    fn start_writeback(&self, _position: u64, _len: u64) {}

    fn drop_cache(&self) {
        self.file.borrow_mut().drop_cache();
    }

    fn map(&self, len: u64) -> io::Result<MemMap> {
        let mut file = self.file.borrow_mut();
        if len == 0 || len > file.len() {
            return Err(ErrorKind::InvalidInput.into());
        }
        file.add_map(len);
        let len = usize::try_from(len).map_err(|_| ErrorKind::InvalidInput)?;
        Ok(MemMap {
            file: Rc::clone(&self.file),
            len,
        })
    }
}

impl LoseDirty for MemFile {
    fn lose_dirty(&self) {
        self.file.borrow_mut().lose_dirty();
    }
}

impl Map for MemMap {
    fn len(&self) -> usize {
        self.len
    }

    fn row<const N: usize>(&self, position: usize) -> Option<[u8; N]> {
        position.checked_add(N).filter(|&end| end <= self.len)?;
        let mut row = [0; N];
        self.file.borrow().read(&mut row, position as u64);
        Some(row)
    }
}

impl Drop for MemMap {
    fn drop(&mut self) {
        self.file.borrow_mut().remove_map(self.len as u64);
    }
}

impl fmt::Debug for MemFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemFs")
            .field("used_bytes", &self.used_bytes())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for MemFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemFile")
            .field("len", &self.file.borrow().len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for MemMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemMap")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
