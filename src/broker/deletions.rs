//! Deleting big files without stopping the loop.
//!
//! Unlinking a file frees all its blocks at once, which takes a file system long for a gigabyte. So DELETE opens a big
//! .log first and removes only its name; while the handle is held, the file is shortened a slice at a time, and the
//! last slice is what closing it frees. Nobody is cut off: a file waits until no range of its topic is being sent.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::fs::{File, Fs, OpenMode};
use crate::storage::data_dir::TopicFile;

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

    /// Opens the big .log files of a topic that is about to be deleted. One that cannot be opened is left out: it is then removed in
    /// one go.
    pub(super) fn open_big_logs(
        &self,
        fs: &F,
        root: &Path,
        topic: &TopicFile,
    ) -> Vec<(F::File, u64)> {
        let mut files = Vec::new();
        for number in 0..topic.partitions {
            let directory = root.join(format!("{}-{number}", topic.name));
            for entry in fs.read_dir(&directory).unwrap_or_default() {
                let path = directory.join(&entry.name);
                let is_big_log =
                    path.extension() == Some(OsStr::new("log")) && entry.len > SLICE_BYTES;
                if is_big_log && self.files.len() + files.len() < FILES_MAX {
                    files.extend(
                        fs.open(&path, OpenMode::Write)
                            .ok()
                            .map(|file| (file, entry.len)),
                    );
                }
            }
        }
        files
    }

    /// Takes over files whose names are about to go, and what was given out of them.
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
