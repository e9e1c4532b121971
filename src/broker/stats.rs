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
    /// Records given to READ, FETCH and TAIL.
    pub(super) records_out: u64,
    /// Their bytes: payload for READ and TAIL, as they are stored for FETCH.
    pub(super) bytes_out: u64,
    /// Syncs of a partition that the broker asked for.
    pub(super) fsyncs: u64,
    /// The longest of them.
    pub(super) fsync_max: Duration,
    /// Requests answered with an error.
    pub(super) errors: u64,
    /// Damaged stretches met, by the start and by readers.
    pub(super) corrupt_records: u64,
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
            ("groups", 0),
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
        ])
    }
}
