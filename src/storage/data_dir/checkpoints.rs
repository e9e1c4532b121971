//! recovery-point and log-start-offset, and the way in which every text file of the data directory is replaced.

#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use crate::fs::{File, Fs, OpenMode};
use crate::storage::Error;

use super::{is_topic_name, read_text};

pub(super) const RECOVERY_POINT: &str = "recovery-point";
pub(super) const LOG_START: &str = "log-start-offset";
pub(super) const TMP: &str = "tmp";
pub(super) const SPARE: &str = "spare";
const SPARE_BYTES: u64 = 64 * 1024;

/// The checkpoint files recovery-point and log-start-offset: in memory, and on the disk when told.
#[derive(Debug)]
pub struct Checkpoints<F: Fs> {
    fs: F,
    root: PathBuf,
    recovery: RefCell<Table>,
    start: RefCell<Table>,
    has_spare: Cell<bool>,
}

/// One of the files.
#[derive(Debug, Default)]
struct Table {
    offsets: Offsets,
    /// Whether something moved since it was written.
    is_dirty: bool,
}

impl<F: Fs> Checkpoints<F> {
    /// Reads both files; one that is missing, empty or cannot be read counts as 0 everywhere; the last is logged.
    #[must_use]
    pub fn load(fs: F, root: &Path) -> Self {
        let recovery = RefCell::new(load_table(&fs, &root.join(RECOVERY_POINT)));
        let start = RefCell::new(load_table(&fs, &root.join(LOG_START)));
        Self {
            fs,
            root: root.to_owned(),
            recovery,
            start,
            has_spare: Cell::new(false),
        }
    }

    /// The offset below which everything is durable; `None` where the file has no line for the partition (or could not be read).
    pub fn recovery_point(&self, topic: &str, partition: u32) -> Option<i64> {
        self.recovery.borrow().get(topic, partition)
    }

    /// Whether no partition has a recovery point.
    pub(super) fn has_no_recovery_point(&self) -> bool {
        self.recovery.borrow().offsets.is_empty()
    }

    /// Moves it in memory, never back. [`Checkpoints::write_recovery_point`] puts it on the disk.
    pub fn set_recovery_point(&self, topic: &str, partition: u32, offset: i64) {
        self.recovery.borrow_mut().raise(topic, partition, offset);
    }

    /// Replaces the file where something moved since it was written. A failure leaves the old file, whose lower values stay true.
    ///
    /// # Errors
    /// What the system says.
    pub fn write_recovery_point(&self) -> Result<(), Error> {
        self.write_table(&self.recovery, RECOVERY_POINT)
    }

    /// The log start offset; 0 where the file has no line for the partition.
    pub fn log_start(&self, topic: &str, partition: u32) -> i64 {
        self.start.borrow().get(topic, partition).unwrap_or(0)
    }

    /// Moves it in memory, never back. [`Checkpoints::write_log_start`] puts it on the disk.
    pub fn set_log_start(&self, topic: &str, partition: u32, offset: i64) {
        self.start.borrow_mut().raise(topic, partition, offset);
    }

    /// Moves it, never back, on the disk too.
    ///
    /// # Errors
    /// What the system says; it has not moved then, though a start before the next write of the file may find that it has.
    pub fn move_log_start(&self, topic: &str, partition: u32, offset: i64) -> Result<(), Error> {
        let before = self.log_start(topic, partition);
        self.set_log_start(topic, partition, offset);
        let result = self.write_log_start();
        if result.is_err() {
            let mut table = self.start.borrow_mut();
            if let Some(partitions) = table.offsets.get_mut(topic) {
                partitions.insert(partition, before);
            }
            table.is_dirty = true;
        }
        result
    }

    /// As [`Checkpoints::write_recovery_point`].
    ///
    /// # Errors
    /// What the system says.
    pub fn write_log_start(&self) -> Result<(), Error> {
        self.write_table(&self.start, LOG_START)
    }

    /// Takes a topic's lines away in memory; the next writes of both files leave them out.
    pub fn forget_topic(&self, topic: &str) {
        for table in [&self.recovery, &self.start] {
            let mut table = table.borrow_mut();
            table.is_dirty |= table.offsets.remove(topic).is_some();
        }
    }

    /// Takes the lines of a topic's partitions from one on away, as [`Checkpoints::forget_topic`] does of all.
    pub(super) fn forget_partitions(&self, topic: &str, from: u32) {
        for table in [&self.recovery, &self.start] {
            let mut table = table.borrow_mut();
            if let Some(partitions) = table.offsets.get_mut(topic) {
                let gone = partitions.split_off(&from);
                table.is_dirty |= !gone.is_empty();
            }
        }
    }

    /// Replaces a text file of the data directory whole: `tmp`, fsync, rename, fsync of both directories. Where there is no room, `spare` goes first.
    ///
    /// # Errors
    /// What the system says; the file is then the old or the new one.
    pub fn replace_text(&self, path: &Path, text: &str) -> Result<(), Error> {
        match self.try_replace(path, text) {
            Err(e) if e.is_disk_full() => {
                self.remove_spare()?;
                self.try_replace(path, text)
            }
            result => result,
        }
    }

    /// See [`super::DataDir::ensure_spare`].
    ///
    /// # Errors
    /// See there.
    pub fn ensure_spare(&self) -> Result<(), Error> {
        if self.has_spare.get() {
            return Ok(());
        }
        let path = self.root.join(SPARE);
        let spare = self
            .fs
            .open(&path, OpenMode::CreateOrKeep)
            .map_err(Error::io("creation", &path))?;
        spare
            .allocate(SPARE_BYTES)
            .map_err(Error::io("allocation", &path))?;
        // Not synced: a spare that a power cut takes is made again by the next start.
        self.has_spare.set(true);
        Ok(())
    }

    /// Removes what an interrupted replacement left.
    pub(super) fn remove_tmp(&self) -> Result<(), Error> {
        remove_if_there(&self.fs, &self.root.join(TMP)).map(drop)
    }

    fn remove_spare(&self) -> Result<(), Error> {
        self.has_spare.set(false);
        if remove_if_there(&self.fs, &self.root.join(SPARE))? {
            log::warn!("the disk is full: spare was removed to make room for a text file");
        }
        Ok(())
    }

    fn try_replace(&self, path: &Path, text: &str) -> Result<(), Error> {
        let tmp = self.root.join(TMP);
        // Never write into a file that may also have its final name, as after a crash between the two directories' syncs.
        self.remove_tmp()?;
        let written = self.write_tmp(&tmp, text).and_then(|()| {
            self.fs
                .rename(&tmp, path)
                .map_err(Error::io("rename", path))
        });
        if let Err(e) = written {
            if let Err(e) = self.remove_tmp() {
                log::warn!("{e}");
            }
            return Err(e);
        }
        let dir = path.parent().unwrap_or(&self.root);
        self.sync_dir(dir)?;
        if dir != self.root {
            self.sync_dir(&self.root)?;
        }
        Ok(())
    }

    fn write_tmp(&self, tmp: &Path, text: &str) -> Result<(), Error> {
        let file = self
            .fs
            .open(tmp, OpenMode::CreateNew)
            .map_err(Error::io("creation", tmp))?;
        file.write_all_at(text.as_bytes(), 0)
            .map_err(Error::io("write", tmp))?;
        file.sync_data().map_err(Error::io("fdatasync", tmp))
    }

    fn write_table(&self, table: &RefCell<Table>, name: &str) -> Result<(), Error> {
        if !table.borrow().is_dirty {
            return Ok(());
        }
        let text = table.borrow().text();
        self.replace_text(&self.root.join(name), &text)?;
        table.borrow_mut().is_dirty = false;
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), Error> {
        self.fs.sync_dir(dir).map_err(Error::io("fsync", dir))
    }
}

impl Table {
    fn get(&self, topic: &str, partition: u32) -> Option<i64> {
        self.offsets.get(topic)?.get(&partition).copied()
    }

    fn raise(&mut self, topic: &str, partition: u32, offset: i64) {
        if let Some(found) = self
            .offsets
            .get_mut(topic)
            .and_then(|partitions| partitions.get_mut(&partition))
        {
            self.is_dirty |= offset > *found;
            *found = offset.max(*found);
            return;
        }
        self.offsets
            .entry(topic.to_owned())
            .or_default()
            .insert(partition, offset);
        self.is_dirty = true;
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (topic, partitions) in &self.offsets {
            for (partition, offset) in partitions {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{topic} {partition} {offset}");
            }
        }
        text
    }
}

/// What recovery-point and log-start-offset say: offsets by topic and partition.
pub type Offsets = BTreeMap<String, BTreeMap<u32, i64>>;

/// Reads recovery-point or log-start-offset, for the broker and for whoever checks it. One that is missing or empty has no lines.
///
/// # Errors
/// Why it cannot be read; it then counts as 0 everywhere.
pub fn read_checkpoint<F: Fs>(fs: &F, path: &Path) -> Result<Offsets, String> {
    let text = read_text(fs, path).map_err(|error| error.to_string())?;
    text.map_or_else(|| Ok(Offsets::new()), |text| parse(&text))
}

/// Nothing but what [`Table::text`] writes is understood, with the LF of its last line.
fn parse(text: &str) -> Result<Offsets, String> {
    let lines = text
        .strip_suffix('\n')
        .ok_or("its last line has no LF: the file was cut")?;
    let mut offsets = Offsets::new();
    for (line, number) in lines.split('\n').zip(1..) {
        let (topic, partition, offset) = parse_line(line)
            .ok_or_else(|| format!("line {number} is not <topic> <partition> <offset>"))?;
        let partitions = offsets.entry(topic.to_owned()).or_default();
        partitions.insert(partition, offset);
    }
    Ok(offsets)
}

fn parse_line(line: &str) -> Option<(&str, u32, i64)> {
    let mut fields = line.split(' ');
    let (topic, partition, offset) = (fields.next()?, fields.next()?, fields.next()?);
    let offset = offset.parse().ok().filter(|&offset| offset >= 0)?;
    let is_line = fields.next().is_none() && is_topic_name(topic);
    is_line.then_some((topic, partition.parse().ok()?, offset))
}

fn load_table<F: Fs>(fs: &F, path: &Path) -> Table {
    let offsets = read_checkpoint(fs, path).unwrap_or_else(|words| {
        log::error!(
            "{} cannot be read and counts as 0 everywhere: {words}",
            path.display()
        );
        Offsets::new()
    });
    Table {
        offsets,
        is_dirty: false,
    }
}

/// Removes a file; returns whether there was one.
pub(super) fn remove_if_there<F: Fs>(fs: &F, path: &Path) -> Result<bool, Error> {
    match fs.remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("removal", path)(e)),
    }
}
