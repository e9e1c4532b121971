//! The figures of STATS.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::api::{Now, Response};
use crate::fs::Fs;

use super::Broker;

/// What is counted as it happens. Sums start at 0 with the process.
#[derive(Debug, Default)]
pub(super) struct Stats {
    /// The monotonic clock at the start.
    pub(super) started: Duration,
    /// Connections now, as the loop told.
    pub(super) connections: u64,
    /// Records appended for good.
    pub(super) records_in: u64,
    /// Bytes of them as they are stored.
    pub(super) bytes_in: u64,
    /// Records given to READ, FETCH, TAIL and CONSUME.
    pub(super) records_out: u64,
    /// Their bytes: payload for READ, TAIL and CONSUME, as they are stored for FETCH.
    pub(super) bytes_out: u64,
    /// Syncs of a partition that the broker asked for.
    pub(super) fsyncs: u64,
    /// The longest of them.
    pub(super) fsync_max: Duration,
    /// Requests answered with an error.
    pub(super) errors: u64,
    /// Damaged stretches met, by the start and by readers.
    pub(super) corrupt_records: u64,
    /// Segments that retention took out.
    pub(super) retired_segments: u64,
    /// Their bytes.
    pub(super) retired_bytes: u64,
    /// Rounds of compaction begun.
    pub(super) cleaner_runs: u64,
    /// Slices of them.
    pub(super) cleaner_slices: u64,
    /// Records that finished rounds looked at.
    pub(super) cleaner_records_before: u64,
    /// Records that they kept.
    pub(super) cleaner_records_after: u64,
    /// Bytes of segments that they replaced.
    pub(super) cleaner_bytes_before: u64,
    /// Bytes of those that took their place.
    pub(super) cleaner_bytes_after: u64,
}

impl<F: Fs> Broker<F> {
    /// STATS.
    pub(super) fn stats(&self, now: Now) -> Response {
        let stats = &self.stats;
        let uptime = now.mono.saturating_sub(stats.started);
        let read_only = self
            .partitions
            .iter()
            .filter(|p| p.log.is_read_only())
            .count();
        let free = self.fs.free_bytes(&self.settings.data_dir).unwrap_or(0);
        let small = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let whole = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        Response::Stats(vec![
            ("uptime_ms", whole(uptime.as_millis())),
            ("connections", stats.connections),
            ("topics", small(self.topics.len())),
            ("partitions", u64::from(self.partitions.len())),
            ("groups", small(self.groups.len())),
            ("records_in_total", stats.records_in),
            ("bytes_in_total", stats.bytes_in),
            ("records_out_total", stats.records_out),
            ("bytes_out_total", stats.bytes_out),
            ("fsyncs_total", stats.fsyncs),
            ("fsync_max_us", whole(stats.fsync_max.as_micros())),
            ("errors_total", stats.errors),
            ("corrupt_records_total", stats.corrupt_records),
            ("read_only_partitions", small(read_only)),
            ("disk_free_bytes", free),
            ("retention_segments_total", stats.retired_segments),
            ("retention_bytes_total", stats.retired_bytes),
            ("deleted_files_waiting", small(self.deletions.waiting())),
            ("cleaner_is_running", u64::from(self.cleaner.is_running())),
            ("cleaner_runs_total", stats.cleaner_runs),
            ("cleaner_slices_total", stats.cleaner_slices),
            ("cleaner_records_before_total", stats.cleaner_records_before),
            ("cleaner_records_after_total", stats.cleaner_records_after),
            ("cleaner_bytes_before_total", stats.cleaner_bytes_before),
            ("cleaner_bytes_after_total", stats.cleaner_bytes_after),
            ("uncleanable_partitions", small(self.cleaner.quarantined())),
        ])
    }
}
