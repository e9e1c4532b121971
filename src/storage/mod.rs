//! The log engine: a partition is a [`Log`], a row of append-only segments.
//!
//! An offset is found by the floor of the segments' base offsets, a lower bound over the mapped sparse index, and a scan of
//! less than one interval. The engine takes bytes and the time as a value, and never sees a socket or a clock.
//!
//! Its rules, each with a test:
//!
//! 1. Base offsets rise strictly and equal the file names.
//! 2. Every segment but the last is sealed and trimmed; under `fsync=always` synced before the next exists.
//! 3. Index rows rise strictly and each is an entry's start.
//! 4. A lookup passes over less than `index.interval.bytes` plus one entry.
//! 5. `read(o)`, for every o from log start to log end, gives the first existing record at or above o.
//! 6. Timestamps in the time index never fall.
//! 7. The active segment is never deleted; log start and log end never go back.
//! 8. No record that was acknowledged as durable is lost by a crash after any operation.
//! 9. Append is all or nothing; on an error the log is cut back; if that fails too, or an fsync fails, the partition is
//!    read-only.
//! 10. A fresh rebuild of all indexes gives the same answers.

#![forbid(unsafe_code)]

mod active;
mod append;
mod append_times;
mod chunk;
mod cleaned;
pub mod cleaner;
mod cleaner_copy;
mod config;
mod context;
pub mod data_dir;
mod dirtiness;
mod error;
mod floor_map;
mod key_hash;
mod lent;
mod log;
mod lookup;
pub mod names;
mod offset_index;
mod offset_map;
mod reader;
mod rebuild;
mod recovery;
pub mod repair;
mod replace;
pub mod retention;
mod roll;
mod scan;
mod sealed;
mod sparse_index;
mod time_index;
mod time_lookup;
mod torn;
pub mod walk;
pub mod window;

pub use config::LogConfig;
pub use context::LogContext;
pub use dirtiness::Dirtiness;
pub use error::{Damage, Error};
pub use log::Log;
pub use offset_index::{OffsetRow, OffsetRows};
pub use time_index::TimeRow;

use crate::api::FileRange;

/// What a start knows of a partition before it looks into its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartFrom {
    /// Whether the broker was stopped in order (clean-shutdown was there).
    pub is_clean: bool,
}

/// What a start found and did; the log lines were written already.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Bytes of .log files that were scanned.
    pub scanned_bytes: u64,
    /// Bytes cut off into .torn files.
    pub torn_bytes: u64,
    /// Segments whose indexes were rebuilt.
    pub rebuilt_indexes: u64,
    /// Damaged stretches met.
    pub damaged: u64,
}

/// What [`Log::read`] gave beside the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadOutcome {
    /// Where to read on: the offset after the last record given, past removed ones.
    pub next_offset: i64,
}

/// What [`Log::fetch`] found.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// The bytes; `None` where nothing is there yet.
    pub range: Option<FileRange>,
    /// Offset of the first record in it.
    pub first_offset: i64,
    /// Where to fetch on.
    pub next_offset: i64,
}

/// When appended records are made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsyncPolicy {
    /// Before they are acknowledged or read.
    Always,
    /// At most so many milliseconds after they were acknowledged.
    EveryMs(u32),
    /// When the system decides.
    Never,
}

/// Whose timestamp a record carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's (`CreateTime`).
    CreateTime,
    /// The broker's clock at the append (`LogAppendTime`).
    LogAppendTime,
}

/// What happens to old data: `cleanup.policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleanupPolicy {
    /// Segments go by time and size.
    Delete,
    /// The last record of each key stays.
    Compact,
    /// Both.
    CompactDelete,
}

impl CleanupPolicy {
    /// Whether segments go by time and size.
    #[must_use]
    pub fn deletes(self) -> bool {
        matches!(self, Self::Delete | Self::CompactDelete)
    }

    /// Whether the last record of each key stays.
    #[must_use]
    pub fn compacts(self) -> bool {
        matches!(self, Self::Compact | Self::CompactDelete)
    }
}
