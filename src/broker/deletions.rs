//! Deleting big files without stopping the loop.
//!
//! Unlinking a file frees all its blocks at once, which takes a file system long for a gigabyte. So DELETE opens a big
//! .log before it removes the name; while the handle is held, the file is shortened a slice at a time, and the
//! last slice is what closing it frees. Nobody is cut off: a file waits until no range of its topic is being sent.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::fs::{File, Fs, OpenMode};

use super::partition::Ranges;

/// Bytes that one slice frees.
const SLICE_BYTES: u64 = 64 << 20;

/// Handles held at most; files beyond are removed in one go rather than taking descriptors from clients.
const FILES_MAX: usize = 256;

/// How long until files that are still being sent are looked at again.
const HELD_RETRY: Duration = Duration::from_millis(100);

/// A file without a name that goes away in slices.
#[derive(Debug)]
pub(super) struct BigFile<F: Fs> {
    file: F::File,
    len: u64,
    held_by: Rc<Vec<Ranges>>,
}

/// All files that go away in slices.
#[derive(Debug)]
pub(super) struct Deletions<F: Fs> {
    files: VecDeque<BigFile<F>>,
    /// When the next slice is due, by the monotonic clock.
    due: Duration,
}

impl<F: Fs> Deletions<F> {
    pub(super) fn new() -> Self {
        Self {
            files: VecDeque::new(),
            due: Duration::ZERO,
        }
    }

    /// Removes the names of the big .log files in a directory that is being deleted, and keeps them open. One that cannot be
    /// kept open goes in one piece.
    pub(super) fn unlink_big_logs(
        &self,
        fs: &F,
        directory: &Path,
        files: &mut Vec<(F::File, u64)>,
    ) {
        for entry in fs.read_dir(directory).unwrap_or_default() {
            let path = directory.join(&entry.name);
            if path.extension() != Some(OsStr::new("log")) || entry.len <= SLICE_BYTES {
                continue;
            }
            if self.files.len() + files.len() < FILES_MAX {
                files.extend(
                    fs.open(&path, OpenMode::Write)
                        .ok()
                        .map(|file| (file, entry.len)),
                );
            }
            if let Err(error) = fs.remove_file(&path) {
                log::warn!("{} could not be removed yet: {error}", path.display());
            }
        }
    }

    /// Takes over files whose names are gone, and what was given out of them.
    pub(super) fn add(&mut self, files: Vec<(F::File, u64)>, ranges: Vec<Ranges>) {
        let held_by = Rc::new(ranges);
        self.files
            .extend(files.into_iter().map(|(file, len)| BigFile {
                file,
                len,
                held_by: Rc::clone(&held_by),
            }));
        self.due = Duration::ZERO;
    }

    /// When [`Deletions::work`] has something to do; `None` for never.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        (!self.files.is_empty()).then_some(self.due)
    }

    /// Frees one slice of one file that nobody sends from.
    pub(super) fn work(&mut self, mono: Duration) {
        if self.files.is_empty() || mono < self.due {
            return;
        }
        let is_free = |file: &BigFile<F>| !file.held_by.iter().any(Ranges::are_held);
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
}
