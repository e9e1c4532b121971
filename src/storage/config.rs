//! The topic configs that the engine acts on.

#![forbid(unsafe_code)]

use crate::format::Layout;

use super::{CleanupPolicy, TimestampType};

/// The topic configs that the engine acts on; read at the moment of each decision, so that a change counts at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogConfig {
    /// `segment.bytes`, at most 2^31 - 1.
    pub segment_bytes: u32,
    /// `segment.ms`.
    pub segment_ms: i64,
    /// `segment.index.bytes`.
    pub segment_index_bytes: u32,
    /// `index.interval.bytes`.
    pub index_interval_bytes: u32,
    /// `max.message.bytes`: key, value and headers of one record.
    pub max_message_bytes: u32,
    /// `record.version`: the layout of new segments.
    pub record_version: Layout,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.after.max.ms`.
    pub timestamp_after_max_ms: i64,
    /// `cleanup.policy`.
    pub cleanup: CleanupPolicy,
    /// `retention.ms`; -1 for no limit.
    pub retention_ms: i64,
    /// `retention.bytes`; -1 for no limit.
    pub retention_bytes: i64,
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
    /// `min.cleanable.dirty.ratio`, from 0 to 1.
    pub min_cleanable_dirty_ratio: f64,
    /// `min.compaction.lag.ms`.
    pub min_compaction_lag_ms: i64,
    /// `max.compaction.lag.ms`.
    pub max_compaction_lag_ms: i64,
}

impl LogConfig {
    /// `segment.ms`, or less where a compacted topic must be cleaned sooner.
    #[must_use]
    pub fn segment_ms_in_force(&self) -> i64 {
        if self.cleanup.compacts() {
            self.segment_ms.min(self.max_compaction_lag_ms)
        } else {
            self.segment_ms
        }
    }
}

impl Default for LogConfig {
    /// Kafka's defaults, and record version 2.
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 3_600_000,
            segment_index_bytes: 10 * 1024 * 1024,
            index_interval_bytes: 4096,
            max_message_bytes: 1_048_588,
            record_version: Layout::V2,
            timestamp_type: TimestampType::CreateTime,
            timestamp_after_max_ms: 3_600_000,
            cleanup: CleanupPolicy::Delete,
            retention_ms: 7 * 24 * 3_600_000,
            retention_bytes: -1,
            delete_retention_ms: 24 * 3_600_000,
            min_cleanable_dirty_ratio: 0.5,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
        }
    }
}
