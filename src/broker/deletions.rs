//! Deleting big files without stopping the loop.
//!
//! Unlinking a file frees all its blocks at once, which takes a file system long for a gigabyte. So DELETE opens a big
//! file before it removes the name; while the handle is held, the file is shortened a slice at a time, and the
//! last slice is what closing it frees. Nobody is cut off: a file waits until no range of its topic is being sent. So many are held
//! at a time; those beyond keep their names until it is their turn.
//!
//! Segments that retention or compaction took out have the name `.deleted` until their delay is over; then they go, a big one in the
//! same way. A stop does not wait for them, since a start removes what is left.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::Duration;

use crate::clock::Clock;
use crate::fs::{File, Fs, OpenMode};
use crate::storage::data_dir::{BIG_BYTES, Deletion};

use super::Broker;

/// Bytes that one slice frees: some tenths of a millisecond of the file system's time, more where it must wait for pages that are being written.
const SLICE_BYTES: u64 = BIG_BYTES;

/// While clients were heard of in the last so long, work that can wait rests after a slice: a process that is never idle waits for its
/// processor like any other, and clients with it.
pub(super) const BUSY_TIME: Duration = Duration::from_millis(20);

/// So many times as long as a slice took.
const RESTS: u32 = 4;

/// Handles held at most: descriptors that clients do not have.
const FILES_MAX: usize = 256;

/// Names of big files that one turn removes at most.
const NAMES_PER_TURN: usize = 64;

/// How long until files that are still being sent are looked at again.
const HELD_RETRY: Duration = Duration::from_millis(100);

/// A file without a name that goes away in slices.
#[derive(Debug)]
pub(super) struct BigFile<F: Fs> {
    file: F::File,
    len: u64,
    /// Files of its topic that were lent.
    lent: Rc<Vec<Weak<F::File>>>,
}

/// A deleted topic whose files are being removed.
#[derive(Debug)]
pub(super) struct Removal<F: Fs> {
    pub(super) deletion: Deletion,
    /// Files of the topic that were lent.
    pub(super) lent: Rc<Vec<Weak<F::File>>>,
}

/// All files that go away in slices.
#[derive(Debug)]
pub(super) struct Deletions<F: Fs> {
    files: VecDeque<BigFile<F>>,
    /// [`FILES_MAX`]; tests do with less.
    pub(super) files_max: usize,
    /// When the next slice is due, by the monotonic clock.
    due: Duration,
    /// Nothing is done before this.
    resting_until: Duration,
    /// Files that have a name until a time, and a number to tell those of one time apart.
    doomed: BTreeMap<(Duration, u64), Doomed<F>>,
    /// Whose each of their names is: a segment that is cleaned twice leaves the same name twice, and the first file loses it.
    owners: HashMap<PathBuf, u64>,
    serial: u64,
}

/// The files of a segment that was taken out.
#[derive(Debug)]
struct Doomed<F: Fs> {
    paths: Vec<PathBuf>,
    /// Its .log, once for each handle that a reader may still send from.
    lent: Vec<Weak<F::File>>,
}

impl<F: Fs> Deletions<F> {
    pub(super) fn new() -> Self {
        Self {
            files: VecDeque::new(),
            files_max: FILES_MAX,
            due: Duration::ZERO,
            resting_until: Duration::ZERO,
            doomed: BTreeMap::new(),
            owners: HashMap::new(),
            serial: 0,
        }
    }

    /// Files that go at a time.
    pub(super) fn doom(&mut self, paths: Vec<PathBuf>, lent: Vec<Weak<F::File>>, due: Duration) {
        self.serial += 1;
        for path in &paths {
            self.owners.insert(path.clone(), self.serial);
        }
        self.doomed
            .insert((due, self.serial), Doomed { paths, lent });
    }

    /// Somebody else removes what is in that directory.
    pub(super) fn forget(&mut self, directory: &Path) {
        self.doomed.retain(|_, doomed| {
            let path = doomed.paths.first();
            path.is_some_and(|path| path.parent() != Some(directory))
        });
        self.owners
            .retain(|path, _| path.parent() != Some(directory));
    }

    /// Files that wait for their end.
    pub(super) fn waiting(&self) -> usize {
        let named = self.doomed.values().map(|doomed| doomed.paths.len());
        self.files.len() + named.sum::<usize>()
    }

    /// Whether so many files are held that the next ones of a topic have to wait, with their names.
    pub(super) fn are_many(&self) -> bool {
        self.files.len() >= self.files_max
    }

    /// Removes the names of some big files of a deleted topic and keeps them open, as far as there is room. One that cannot be kept open goes
    /// in one piece.
    pub(super) fn take_big_files(&mut self, fs: &F, removal: &mut Removal<F>) {
        for _ in 0..NAMES_PER_TURN {
            if self.are_many() {
                return;
            }
            let Some((path, len)) = removal.deletion.take_big_file() else {
                return;
            };
            let file = fs.open(&path, OpenMode::Write);
            if fs.remove_file(&path).is_err() {
                removal.deletion.give_back(path);
                continue;
            }
            self.files.extend(file.ok().map(|file| BigFile {
                file,
                len,
                lent: Rc::clone(&removal.lent),
            }));
            self.due = Duration::ZERO;
        }
    }

    /// When [`Deletions::work`] has something to do; `None` for never.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let nameless = (!self.files.is_empty()).then_some(self.due);
        let named = self.doomed.first_key_value().map(|((due, _), _)| *due);
        let due = nameless.into_iter().chain(named).min();
        due.map(|due| due.max(self.resting_until))
    }

    /// Does nothing for some time.
    pub(super) fn rest(&mut self, until: Duration) {
        self.resting_until = until;
    }

    /// Frees one slice of one file that nobody sends from, or removes one segment's files.
    pub(super) fn work(&mut self, fs: &F, mono: Duration) {
        if self.files.is_empty() || mono < self.due {
            return self.end_doomed(fs, mono);
        }
        let is_free = |file: &BigFile<F>| !are_held(&file.lent);
        let Some(place) = self.files.iter().position(is_free) else {
            self.due = mono + HELD_RETRY;
            return;
        };
        let Some(mut big) = self.files.remove(place) else {
            return;
        };
        big.len = big.len.saturating_sub(SLICE_BYTES);
        match big.file.set_len(big.len) {
            Ok(()) if big.len > SLICE_BYTES => self.files.push_front(big),
            Ok(()) => {}
            Err(error) => {
                log::warn!("a deleted file could not be shortened, it goes in one piece: {error}");
            }
        }
    }

    /// Removes the files of one segment whose time has come, or one slice of a big one.
    fn end_doomed(&mut self, fs: &F, mono: Duration) {
        let Some(entry) = self.doomed.first_entry() else {
            return;
        };
        let (due, serial) = *entry.key();
        if due > mono {
            return;
        }
        let mut doomed = entry.remove();
        while let Some(path) = doomed.paths.pop() {
            if self.owners.get(&path) != Some(&serial) {
                continue;
            }
            match end_file(fs, &path, are_held(&doomed.lent)) {
                Ok(End::Gone) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => log::warn!("{} stays until the next start: {error}", path.display()),
                Ok(end) => {
                    // It keeps its number, and so its names.
                    let due = match end {
                        End::Held => mono + HELD_RETRY,
                        End::Shortened | End::Gone => due,
                    };
                    doomed.paths.push(path);
                    self.doomed.insert((due, serial), doomed);
                    return;
                }
            }
            self.owners.remove(&path);
        }
    }
}

impl<F: Fs> Broker<F> {
    /// A slice of the removal of big files, if one is due, and a rest behind it while clients are there.
    pub(super) fn deletion_slice(&mut self, clock: &dyn Clock) {
        let started = clock.now().mono;
        let due = self.deletions.next_deadline();
        if due.is_none_or(|due| due > started) {
            return;
        }
        self.deletions.work(&self.fs, started);
        let now = clock.now().mono;
        if now.saturating_sub(self.last_heard) < BUSY_TIME {
            let rest = now.saturating_sub(started).saturating_mul(RESTS);
            self.deletions.rest(now.saturating_add(rest));
        }
    }
}

/// Whether a reader still sends from any of them.
fn are_held<T>(lent: &[Weak<T>]) -> bool {
    lent.iter().any(|file| file.strong_count() > 0)
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Gone,
    Shortened,
    /// It is big, and somebody sends from it.
    Held,
}

fn end_file<F: Fs>(fs: &F, path: &Path, is_lent: bool) -> io::Result<End> {
    if path.to_string_lossy().contains(".log") {
        let file = fs.open(path, OpenMode::Write)?;
        let len = file.len()?;
        if len > SLICE_BYTES && is_lent {
            return Ok(End::Held);
        }
        // What cannot be shortened goes in one piece.
        if len > SLICE_BYTES && file.set_len(len - SLICE_BYTES).is_ok() {
            return Ok(End::Shortened);
        }
    }
    fs.remove_file(path)?;
    Ok(End::Gone)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::fs::mem::MemFs;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_name_that_is_left_twice_is_that_of_the_second_file() {
        let fs = MemFs::new();
        let path = Path::new("/a.log.deleted");
        let mut deletions = Deletions::<MemFs>::new();
        let log = |len| {
            let _ = fs.remove_file(path);
            let file = Rc::new(fs.open(path, OpenMode::CreateNew).unwrap());
            file.set_len(len).unwrap();
            file
        };
        let first = log(3 * SLICE_BYTES);
        let lent = vec![Rc::downgrade(&first)];
        deletions.doom(vec![path.to_owned()], lent, SECOND);
        let second = log(2 * SLICE_BYTES);
        let lent = vec![Rc::downgrade(&second)];
        deletions.doom(vec![path.to_owned()], lent, 2 * SECOND);
        drop(first);
        deletions.work(&fs, SECOND);
        deletions.work(&fs, SECOND);
        assert_eq!(second.len().unwrap(), 2 * SLICE_BYTES, "it is being sent");
        assert_eq!(deletions.next_deadline(), Some(2 * SECOND));
        drop(second);
        for _ in 0..3 {
            deletions.work(&fs, 2 * SECOND);
        }
        assert!(!fs.exists(path).unwrap());
        assert_eq!(deletions.next_deadline(), None);
        assert!(deletions.owners.is_empty());
    }
}
