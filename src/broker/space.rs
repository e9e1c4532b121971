//! `--min-free-bytes`: appends stop before the disk is full, so that what makes room still has some.
//!
//! Asking the file system costs a system call, so its answer is used for a while, or until half of the room it left is used.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::api::{ApiError, ErrorCode, Now};
use crate::fs::Fs;

use super::Broker;

/// How long an answer is used.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// What is known of the free space.
#[derive(Debug)]
pub(super) struct Space {
    /// Below this appends are refused; 0 for no such limit.
    min_free: u64,
    /// What the file system said, when, and how much had been appended by then.
    sample: Option<Sample>,
    is_refusing: bool,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    free: u64,
    at: Duration,
    appended: u64,
}

impl Space {
    pub(super) fn new(min_free: u64) -> Self {
        Self {
            min_free,
            sample: None,
            is_refusing: false,
        }
    }

    /// Whether there is a limit at all.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.min_free > 0
    }

    /// The last answer, where it still counts; `appended` is a sum of bytes.
    fn known(&self, appended: u64, mono: Duration) -> Option<u64> {
        let sample = self.sample?;
        let since = appended.saturating_sub(sample.appended);
        let slack = sample.free.saturating_sub(self.min_free);
        let is_fresh = mono.saturating_sub(sample.at) < SAMPLE_INTERVAL;
        // Others write, too, and records are not all that takes room: so half of it, and then it is asked again.
        (is_fresh && (since == 0 || since <= slack / 2)).then_some(sample.free)
    }
}

impl<F: Fs> Broker<F> {
    /// Whether there is room for appends.
    ///
    /// # Errors
    /// `DISK_FULL`.
    pub(super) fn check_space(&mut self, now: Now) -> Result<(), ApiError> {
        let appended = self.stats.bytes_in;
        let free = self.space.known(appended, now.mono).unwrap_or_else(|| {
            // An error is no sign of a full disk; the write that follows tells.
            let free = self.fs.free_bytes(&self.settings.data_dir);
            let free = free.unwrap_or(u64::MAX);
            self.space.sample = Some(Sample {
                free,
                at: now.mono,
                appended,
            });
            free
        });
        let min_free = self.space.min_free;
        let is_full = free < min_free;
        if is_full != self.space.is_refusing {
            self.space.is_refusing = is_full;
            if is_full {
                log::warn!("appends are refused: free_bytes={free} min_free_bytes={min_free}");
            } else {
                log::info!("appends are taken again: free_bytes={free}");
            }
        }
        if !is_full {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorCode::DiskFull,
            format!(
                "{free} bytes are free and --min-free-bytes is {min_free}; nothing was stored, free some space and send it again"
            ),
        ))
    }
}
