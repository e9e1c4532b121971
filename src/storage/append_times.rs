//! When each sealed segment was last appended to, by the broker's clock: what retention by time will ask.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::Path;

use crate::fs::{Fs, read_file};

use super::Error;
use super::context::LogContext;
use super::names::APPEND_TIMES;

/// No file of ours is larger: 26 bytes for each of two million segments.
const FILE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The text file `append-times` of a partition: a line `<base> <ms>` for each sealed segment.
#[derive(Debug, Default)]
pub(super) struct AppendTimes {
    by_base: BTreeMap<i64, i64>,
}

impl AppendTimes {
    /// Reads the file; what is missing or makes no sense is unknown, which is no error.
    pub(super) fn read<F: Fs>(fs: &F, dir: &Path) -> Self {
        let text = read_file(fs, &dir.join(APPEND_TIMES), FILE_BYTES_MAX).unwrap_or_default();
        let by_base = String::from_utf8_lossy(&text)
            .lines()
            .filter_map(|line| {
                let (base, ms) = line.split_once(' ')?;
                Some((base.parse().ok()?, ms.parse().ok()?))
            })
            .collect();
        Self { by_base }
    }

    pub(super) fn get(&self, base: i64) -> Option<i64> {
        self.by_base.get(&base).copied()
    }

    pub(super) fn insert(&mut self, base: i64, ms: i64) {
        self.by_base.insert(base, ms);
    }

    pub(super) fn remove(&mut self, base: i64) -> Option<i64> {
        self.by_base.remove(&base)
    }

    /// Replaces the file.
    pub(super) fn write<F: Fs>(&self, context: &LogContext<F>, dir: &Path) -> Result<(), Error> {
        let lines = self
            .by_base
            .iter()
            .map(|(base, ms)| format!("{base} {ms}\n"));
        context
            .checkpoints
            .replace_text(&dir.join(APPEND_TIMES), &lines.collect::<String>())
    }
}
