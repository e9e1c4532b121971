//! What can go wrong in the engine, with the place it went wrong at.

#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::format::EncodeError;

/// A stretch of offsets that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The offset asked for: it is lost, or nothing stands between it and what is.
    pub offset: i64,
    /// Where the damage starts in the segment, bytes.
    pub position: u64,
    /// Where reading goes on.
    pub next: i64,
    /// Base offset of the segment.
    pub segment: i64,
}

/// An error of the log engine.
#[derive(Debug)]
pub enum Error {
    /// The system refused an operation.
    Io {
        /// What was tried: "write", "fdatasync" ...
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The offset is below the log start or above the end that readers may see.
    OutOfRange {
        /// The offset asked for.
        offset: i64,
        /// The log start offset.
        earliest: i64,
        /// The high watermark.
        latest: i64,
    },
    /// The read begins at damage.
    Corrupt(Damage),
    /// The record's key, value and headers are larger than `max.message.bytes`.
    TooLarge {
        /// Bytes given.
        bytes: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The record does not fit the partition's record version.
    Unstorable(EncodeError),
    /// A record without a key, where compaction keeps the last one of each key.
    NoKey,
    /// The timestamp is too far in the future.
    FutureTimestamp {
        /// The record's, milliseconds.
        timestamp: i64,
        /// The largest that is taken now, milliseconds.
        latest: i64,
    },
    /// No append is taken: an fsync failed, or a log could not be cut back.
    ReadOnly,
    /// The offsets are used up.
    Exhausted,
}

impl Error {
    /// Wraps a system error with what was tried on which file.
    pub fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            operation,
            path,
            source,
        }
    }

    /// Whether the file system was full.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        ))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io {
                operation,
                path,
                source,
            } => {
                write!(f, "{operation} of {} failed: {source}", path.display())
            }
            Self::OutOfRange {
                offset,
                earliest,
                latest,
            } => {
                write!(
                    f,
                    "offset {offset} is not between earliest {earliest} and latest {latest}"
                )
            }
            Self::Corrupt(damage) => write!(
                f,
                "damage at position {} of segment {:020}: offset {} cannot be read, reading goes on at {}",
                damage.position, damage.segment, damage.offset, damage.next
            ),
            Self::TooLarge { bytes, max } => {
                write!(
                    f,
                    "the record has {bytes} bytes, max.message.bytes is {max}"
                )
            }
            Self::Unstorable(reason) => write!(f, "{reason}"),
            Self::NoKey => f.write_str("the topic is compacted, so a record needs a key"),
            Self::FutureTimestamp { timestamp, latest } => write!(
                f,
                "timestamp {timestamp} is later than {latest}, the broker's clock plus message.timestamp.after.max.ms"
            ),
            Self::ReadOnly => f.write_str(
                "the partition is read-only since a write to its disk failed; restart the broker",
            ),
            Self::Exhausted => f.write_str("the partition has no offset left to give"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::OutOfRange { .. }
            | Self::Corrupt(_)
            | Self::TooLarge { .. }
            | Self::Unstorable(_)
            | Self::FutureTimestamp { .. }
            | Self::NoKey
            | Self::ReadOnly
            | Self::Exhausted => None,
        }
    }
}
