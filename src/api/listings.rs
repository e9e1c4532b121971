//! Lines of replies that list something.

#![forbid(unsafe_code)]

use std::time::Duration;

/// A line of TOPICS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name.
    pub name: String,
    /// Number of partitions.
    pub partitions: u32,
    /// Records stored, all partitions.
    pub records: u64,
    /// Bytes of all .log files.
    pub bytes: u64,
}

/// Where a config's value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigSource {
    /// An override of the topic's own.
    Topic,
    /// `--config` of the broker.
    Broker,
    /// Built in.
    Default,
}

/// How a partition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionHealth {
    /// Nothing known against it.
    Ok,
    /// An fsync failed: reads go on, appends do not.
    ReadOnly,
    /// It holds damaged records.
    Damaged,
}

/// A partition line of DESCRIBE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionInfo {
    /// Its number.
    pub partition: u32,
    /// The log start offset.
    pub earliest: i64,
    /// The high watermark.
    pub latest: i64,
    /// Bytes of its .log files.
    pub bytes: u64,
    /// Number of segments.
    pub segments: u64,
    /// Its state.
    pub health: PartitionHealth,
}

/// A line of SEGMENTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The offset in its name.
    pub base_offset: i64,
    /// Bytes of its .log.
    pub bytes: u64,
    /// Records in it.
    pub records: u64,
    /// Rows of its .index.
    pub index_entries: u64,
    /// Timestamp of its first record.
    pub first_timestamp: Option<i64>,
    /// Timestamp of its last record.
    pub last_timestamp: Option<i64>,
}

/// The index row that a lookup came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexStep {
    /// Its number, from 1.
    pub entry: u64,
    /// How many rows there are.
    pub entries: u64,
    /// The row's offset less the segment's base.
    pub relative_offset: u32,
    /// The row's position, bytes.
    pub position: u32,
    /// Rows looked at by the binary search.
    pub probes: u32,
}

/// What stands where a lookup ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordState {
    /// Whole, and its checksum right.
    Good,
    /// Whole, of layout 1, which has no checksum.
    NoCrc,
    /// Its checksum is wrong, its fields hold together.
    BadCrc,
    /// It cannot be told where it ends.
    Damaged,
}

/// The whole way of a lookup, as EXPLAIN shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Base offset of the segment that the floor map gave.
    pub segment: i64,
    /// How many segments there are.
    pub segments: u64,
    /// Base offsets of the first and the last.
    pub bases: (i64, i64),
    /// The index row; `None` where the scan starts at the segment's start for want of one.
    pub index: Option<IndexStep>,
    /// Bytes scanned from there.
    pub scanned_bytes: u64,
    /// Records passed over.
    pub passed_over: u64,
    /// Offset of the record found: the next one where the offset itself was removed.
    pub offset: i64,
    /// Where it starts, bytes.
    pub position: u64,
    /// Its length, bytes (0 where that cannot be told).
    pub bytes: u64,
    /// Its timestamp in milliseconds (0 where that cannot be told).
    pub timestamp: i64,
    /// Whether it is whole.
    pub state: RecordState,
    /// How long the lookup took; whoever holds the clock fills it in.
    pub took: Duration,
}
