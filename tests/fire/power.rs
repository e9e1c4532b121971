//! A power cut on a real disk: a broker process whose file system writes down what was synced, and afterwards every file loses what was not.
//!
//! The broker is this program again, with the real event loop over [`RecordingFs`]. Its journal is written before each write and after each sync, so where a
//! kill falls between the two, more is taken away than a disk would. What a cut takes is drawn by chance for each file: everything since its last
//! sync, or a part of it, or nothing (a disk may have written by itself); a file whose name was not yet synced may be gone. What it does not do is
//! give back a file that was removed or replaced, or lose pages in any order: `src/fs/mem.rs` does, for `tests/sim.rs`.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use mini_broker::api::Now;
use mini_broker::broker::{Broker, Settings};
use mini_broker::clock::{Clock, SystemClock};
use mini_broker::fs::disk::{DiskFile, DiskFs};
use mini_broker::fs::{DirEntry, File, Fs, OpenMode, ReadAt};
use mini_broker::net::{self, EventLoop, Limits};
use mini_broker::protocol::line;

/// Where the dirty part of each file begins, and the file to which all of it is told.
#[derive(Debug)]
struct Journal {
    file: std::fs::File,
    dirty: RefCell<HashMap<u64, u64>>,
    /// How long each file is that was written to.
    lengths: RefCell<HashMap<u64, u64>>,
}

impl Journal {
    fn tell(&self, line: &str) {
        (&self.file)
            .write_all(line.as_bytes())
            .expect("the journal can be written");
    }

    /// Before bytes change from `position` on.
    fn dirty(&self, inode: u64, position: u64) {
        let mut dirty = self.dirty.borrow_mut();
        if dirty.get(&inode).is_none_or(|from| position < *from) {
            dirty.insert(inode, position);
            self.tell(&format!("W {inode} {position}\n"));
        }
    }

    /// After bytes were written up to `end`.
    fn written(&self, inode: u64, end: u64) {
        let mut lengths = self.lengths.borrow_mut();
        let len = lengths.entry(inode).or_default();
        *len = end.max(*len);
    }

    /// After everything was synced.
    fn synced_all(&self) {
        let lengths = self.lengths.borrow();
        for (inode, _) in self.dirty.borrow_mut().drain() {
            let len = lengths.get(&inode).copied().unwrap_or(0);
            self.tell(&format!("S {inode} {len}\n"));
        }
    }
}

/// The disk, with a journal.
#[derive(Debug, Clone)]
pub(crate) struct RecordingFs {
    journal: Rc<Journal>,
}

/// A file of it.
#[derive(Debug)]
pub(crate) struct RecordingFile {
    inner: DiskFile,
    inode: u64,
    journal: Rc<Journal>,
}

impl RecordingFs {
    fn new(journal: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(journal)?;
        let journal = Journal {
            file,
            dirty: RefCell::default(),
            lengths: RefCell::default(),
        };
        Ok(Self {
            journal: Rc::new(journal),
        })
    }
}

impl Fs for RecordingFs {
    type File = RecordingFile;
    type Lock = <DiskFs as Fs>::Lock;

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<RecordingFile> {
        let was_there = path.exists();
        let inner = DiskFs.open(path, mode)?;
        let inode = std::fs::metadata(path)?.ino();
        if !was_there {
            self.journal.dirty.borrow_mut().remove(&inode);
            self.journal.lengths.borrow_mut().remove(&inode);
            self.journal
                .tell(&format!("N {inode} {}\n", path.display()));
        }
        self.journal.written(inode, inner.len()?);
        Ok(RecordingFile {
            inner,
            inode,
            journal: Rc::clone(&self.journal),
        })
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        DiskFs.read_dir(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        DiskFs.create_dir(path)?;
        self.journal.tell(&format!("M {}\n", path.display()));
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        DiskFs.remove_dir(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        DiskFs.remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        DiskFs.rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        DiskFs.sync_dir(path)?;
        self.journal.tell(&format!("D {}\n", path.display()));
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        DiskFs.exists(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Self::Lock> {
        DiskFs.lock(path)
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        DiskFs.sync_all(path)?;
        self.journal.synced_all();
        Ok(())
    }

    fn write_out(&self, path: &Path) {
        DiskFs.write_out(path);
    }

    fn is_same_file_system(&self, path: &Path, other: &Path) -> io::Result<bool> {
        DiskFs.is_same_file_system(path, other)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        DiskFs.free_bytes(path)
    }
}

impl ReadAt for RecordingFile {
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.inner.read_at(buf, position)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn is_resident(&self, position: u64, len: u64) -> io::Result<bool> {
        self.inner.is_resident(position, len)
    }
}

impl File for RecordingFile {
    type Map = <DiskFile as File>::Map;

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize> {
        self.journal.dirty(self.inode, position);
        let written = self.inner.write_at(bytes, position)?;
        self.journal.written(self.inode, position + written as u64);
        Ok(written)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)?;
        self.journal.lengths.borrow_mut().insert(self.inode, len);
        self.journal.tell(&format!("T {} {len}\n", self.inode));
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.inner.allocate(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()?;
        self.journal.dirty.borrow_mut().remove(&self.inode);
        self.journal
            .tell(&format!("S {} {}\n", self.inode, self.inner.len()?));
        Ok(())
    }

    fn start_writeback(&self, position: u64, len: u64) {
        self.inner.start_writeback(position, len);
    }

    fn drop_cache(&self) {
        self.inner.drop_cache();
    }

    fn map(&self, len: u64) -> io::Result<Self::Map> {
        self.inner.map(len)
    }
}

/// The system's clocks, the wall clock shifted by as many milliseconds as a file says: whoever holds the file steps the clock.
#[derive(Debug)]
struct SteppedClock {
    system: SystemClock,
    shift: Option<std::fs::File>,
}

impl Clock for SteppedClock {
    fn now(&self) -> Now {
        let mut now = self.system.now();
        if let Some(file) = &self.shift {
            let mut bytes = [0; 20];
            let n = file.read_at(&mut bytes, 0).unwrap_or(0);
            let text = String::from_utf8_lossy(&bytes[..n]).trim().to_owned();
            now.wall_ms += text.parse::<i64>().unwrap_or(0);
        }
        now
    }
}

/// What the broker process is told.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Recorded {
    #[arg(long)]
    listen: String,
    #[arg(long)]
    data_dir: PathBuf,
    #[arg(long)]
    fsync: String,
    #[arg(long, value_parser = mini_broker::config::parse_config)]
    config: Vec<(String, String)>,
    #[arg(long)]
    journal: PathBuf,
    #[arg(long)]
    clock: Option<PathBuf>,
}

/// Serves until it is killed.
pub(crate) fn serve(args: &Recorded) -> Result<(), String> {
    let text = |e: io::Error| e.to_string();
    let fs = RecordingFs::new(&args.journal).map_err(text)?;
    let shift = args
        .clock
        .as_ref()
        .map(std::fs::File::open)
        .transpose()
        .map_err(text)?;
    let clock = Box::new(SteppedClock {
        system: SystemClock::new(),
        shift,
    });
    let settings = Settings {
        fsync: args.fsync.parse()?,
        configs: args.config.clone(),
        ..Settings::new(&args.data_dir)
    };
    let mut listeners = Vec::new();
    let broker = Broker::open(fs, settings, &*clock, || {
        listeners.push(net::bind(&args.listen.parse()?)?);
        Ok(())
    })?;
    let address = listeners[0].address().to_string();
    let limits = Limits {
        max_connections: 1000,
        max_backlog_bytes: 4 << 20,
        read_budget: net::READ_BUDGET,
        line: line::Limits::new(16 << 20),
        max_descriptors: 10_000,
    };
    // Nobody stops it in order.
    let (_stop, stopped) = UnixStream::pair().map_err(text)?;
    let serving = EventLoop::new(broker, listeners, stopped, clock, limits).map_err(text)?;
    println!(
        "mini-broker test ready on {address}, data in {}",
        args.data_dir.display()
    );
    serving.run()
}

/// What a journal says of the end.
#[derive(Debug, Default)]
struct Durable {
    /// Length at the last sync.
    synced: HashMap<u64, u64>,
    /// Where bytes have changed since, at the lowest.
    dirty: HashMap<u64, u64>,
    /// Names that no sync of their directory covers.
    names: HashSet<PathBuf>,
}

impl Durable {
    fn read(journal: &str) -> Self {
        let mut durable = Self::default();
        for line in journal.lines() {
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
            let inode = first.parse().unwrap_or(0);
            let number = second.parse::<u64>().unwrap_or(0);
            match kind {
                "N" => {
                    durable.synced.insert(inode, 0);
                    durable.dirty.remove(&inode);
                    durable.names.insert(second.into());
                }
                "M" => {
                    durable.names.insert(rest.into());
                }
                "S" => {
                    durable.synced.insert(inode, number);
                    durable.dirty.remove(&inode);
                }
                "T" => {
                    if let Some(synced) = durable.synced.get_mut(&inode) {
                        *synced = number.min(*synced);
                    }
                }
                "W" => {
                    let from = durable.dirty.entry(inode).or_insert(number);
                    *from = number.min(*from);
                }
                "D" => durable
                    .names
                    .retain(|name| name.parent() != Some(Path::new(rest))),
                // The last line of a process that was killed.
                _ => {}
            }
        }
        durable
    }

    /// A file's length, and what of it was dirty, at the cut.
    fn cut(&self, path: &Path, random: &mut fastrand::Rng) -> io::Result<u64> {
        let metadata = std::fs::metadata(path)?;
        let len = metadata.len();
        let synced = self.synced.get(&metadata.ino()).copied();
        let dirty = self.dirty.get(&metadata.ino()).copied();
        // One that this process did not open was durable before; one without an entry of its own length grows from where it was dirty.
        let Some(durable) = synced.or(dirty).map(|at| at.min(len)) else {
            return Ok(0);
        };
        let keep = match random.u8(..4) {
            0 => len,
            1 => durable + random.u64(..=len - durable),
            _ => durable,
        };
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(keep)?;
        if let Some(from) = dirty.filter(|from| *from < durable && keep == durable) {
            // Rows in space that was allocated before: they are zeros again.
            let zeros =
                vec![0; usize::try_from(durable - from).expect("files of a test are small")];
            file.write_all_at(&zeros, from)?;
        }
        Ok(len - keep)
    }
}

/// Cuts the power of a data directory whose broker was killed, and forgets the journal. Returns the bytes that were taken away.
pub(crate) fn cut(data_dir: &Path, journal: &Path, random: &mut fastrand::Rng) -> u64 {
    let durable = Durable::read(&String::from_utf8_lossy(&std::fs::read(journal).unwrap()));
    for name in &durable.names {
        if name.exists() && random.bool() {
            let _ = std::fs::remove_dir_all(name).or_else(|_| std::fs::remove_file(name));
        }
    }
    let (mut taken, mut directories) = (0, vec![data_dir.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                taken += durable.cut(&path, random).unwrap();
            }
        }
    }
    std::fs::remove_file(journal).unwrap();
    taken
}
