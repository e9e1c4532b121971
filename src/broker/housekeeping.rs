//! Retention: passes over all partitions, a bounded slice a turn, that take out segments whose time is over.
//!
//! A pass begins every `log.retention.check.interval.ms`; TRIM and ALTER ask for a look at single partitions before that. When every
//! partition was looked at, the limit of the whole broker is: the oldest sealed segment of all topics goes until what is left is
//! within it.

#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::api::{Now, PartitionKey};
use crate::clock::Clock;
use crate::fs::Fs;
use crate::storage::retention::Retired;
use crate::storage::{Error, Log};

use super::Broker;
use super::configs::{Config, InForce};
use super::partition::Before;
use super::topics::is_internal;

/// A slice ends after so long, ...
const SLICE_TIME: Duration = Duration::from_millis(2);

/// ... and after so many looks at a partition.
const SLICE_LOOKS: usize = 64;

/// Segments that a slice takes out at most: each costs an fsync of a directory.
const SLICE_RETIREMENTS: usize = 4;

/// What became of a look at a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// A segment went; there may be more.
    Retired,
    /// Nothing is to go.
    Nothing,
}

/// Where retention stands.
#[derive(Debug)]
pub(super) struct Retention {
    /// When the next pass begins.
    due: Duration,
    /// Partitions to look at.
    left: VecDeque<PartitionKey>,
    /// Whether the broker's own limit comes after them.
    is_pass: bool,
    total: Option<Total>,
    /// Segments and bytes that this pass took out.
    retired: (u64, u64),
}

/// The broker's own limit being applied.
#[derive(Debug)]
struct Total {
    /// Partitions whose oldest segment is to be looked at.
    left: Vec<PartitionKey>,
    /// The times of the oldest segments, oldest first.
    oldest: BinaryHeap<Reverse<(i64, PartitionKey)>>,
}

impl Retention {
    pub(super) fn new(due: Duration) -> Self {
        Self {
            due,
            left: VecDeque::new(),
            is_pass: false,
            total: None,
            retired: (0, 0),
        }
    }

    /// Has a partition looked at soon.
    pub(super) fn ask(&mut self, key: PartitionKey) {
        if self.left.back() != Some(&key) {
            self.left.push_back(key);
        }
    }

    fn is_idle(&self) -> bool {
        self.left.is_empty() && self.total.is_none() && !self.is_pass
    }

    pub(super) fn next_deadline(&self) -> Duration {
        if self.is_idle() {
            self.due
        } else {
            Duration::ZERO
        }
    }
}

impl<F: Fs> Broker<F> {
    /// One slice of retention; returns whether there was something to do.
    pub(super) fn retention_slice(&mut self, clock: &dyn Clock) -> bool {
        let started = clock.now();
        if self.retention.due <= started.mono && self.retention.is_idle() {
            self.begin_pass(started);
        }
        if self.retention.is_idle() {
            return false;
        }
        let mut retirements = 0;
        for _ in 0..SLICE_LOOKS {
            if clock.now().mono.saturating_sub(started.mono) >= SLICE_TIME
                || retirements >= SLICE_RETIREMENTS
            {
                return true;
            }
            let look = match self.retention.left.front() {
                Some(&key) => self.look_at(key, started),
                None => match self.look_at_total(started) {
                    Some(look) => look,
                    None => break,
                },
            };
            retirements += usize::from(look == Look::Retired);
        }
        true
    }

    fn begin_pass(&mut self, now: Now) {
        let interval = self.in_force(None).time(Config::RetentionCheckIntervalMs);
        let retention = &mut self.retention;
        retention.due = now.mono.saturating_add(interval);
        retention.left = self.partitions.keys().into();
        retention.is_pass = true;
        log::debug!("retention looks at partitions={}", retention.left.len());
    }

    /// Applies a partition's own rules once.
    fn look_at(&mut self, key: PartitionKey, now: Now) -> Look {
        let look = self.retire(key, now, |log| log.retire_due(now.wall_ms));
        if look == Look::Nothing {
            self.retention.left.pop_front();
        }
        look
    }

    /// Goes on with the broker's own limit; `None` at the end of the pass.
    fn look_at_total(&mut self, now: Now) -> Option<Look> {
        let Some(total) = &mut self.retention.total else {
            if !self.retention.is_pass || !self.is_over_total() {
                self.end_pass();
                return None;
            }
            let left = self.topics.keys(|topic| !is_internal(&topic.name));
            self.retention.total = Some(Total {
                left,
                oldest: BinaryHeap::new(),
            });
            return Some(Look::Nothing);
        };
        if let Some(key) = total.left.pop() {
            let time = self.oldest_time(key);
            if let (Some(time), Some(total)) = (time, &mut self.retention.total) {
                total.oldest.push(Reverse((time, key)));
            }
            return Some(Look::Nothing);
        }
        let oldest = total.oldest.pop();
        let Some(Reverse((time, key))) = oldest.filter(|_| self.is_over_total()) else {
            self.end_pass();
            return None;
        };
        // The partition may have changed since the time was taken.
        let is_oldest = self.oldest_time(key) == Some(time);
        let look = if is_oldest {
            self.retire(key, now, Log::retire_oldest)
        } else {
            Look::Nothing
        };
        if is_oldest && look == Look::Nothing {
            // It cannot be retired; asking again would be endless.
            return Some(look);
        }
        let next = self.oldest_time(key);
        if let (Some(time), Some(total)) = (next, &mut self.retention.total) {
            total.oldest.push(Reverse((time, key)));
        }
        Some(look)
    }

    fn end_pass(&mut self) {
        let retention = &mut self.retention;
        retention.is_pass = false;
        retention.total = None;
        let (segments, bytes) = std::mem::take(&mut retention.retired);
        if segments > 0 {
            let left: u64 = self.partitions.iter().map(|p| p.log.bytes()).sum();
            log::info!(
                "retention took out segments={segments} bytes={bytes}, before {} now {left}",
                left.saturating_add(bytes)
            );
        }
    }

    fn is_over_total(&self) -> bool {
        let limit = self.settings.retention_total_bytes;
        limit > 0 && self.partitions.iter().map(|p| p.log.bytes()).sum::<u64>() > limit
    }

    /// The age of a partition's oldest sealed segment counts from here. One that nobody knows the time of goes first.
    fn oldest_time(&mut self, key: PartitionKey) -> Option<i64> {
        let log = &mut self.partitions.get_mut(key)?.log;
        if log.is_read_only() {
            return None;
        }
        match log.oldest_sealed() {
            Ok(facts) => facts.map(|facts| facts.time().unwrap_or(i64::MIN)),
            Err(error) => {
                let (topic, number) = self.place(key);
                log::error!("retention fails on topic={topic} partition={number}: {error}");
                None
            }
        }
    }

    /// Lets the engine take a segment out, and sees to what follows.
    fn retire(
        &mut self,
        key: PartitionKey,
        now: Now,
        how: impl FnOnce(&mut Log<F>) -> Result<Option<Retired<F::File>>, Error>,
    ) -> Look {
        let Some(partition) = self.partitions.get_mut(key).filter(|p| !p.is_dirty) else {
            return Look::Nothing;
        };
        let before = Before::of(&partition.log);
        let result = how(&mut partition.log);
        self.note_work(key, before, now.mono);
        match result {
            Ok(Some(retired)) => {
                self.stats.retired_segments += 1;
                self.stats.retired_bytes += retired.bytes;
                self.retention.retired.0 += 1;
                self.retention.retired.1 += retired.bytes;
                let due = now.mono.saturating_add(self.delete_delay(key));
                self.deletions.doom(retired.files, retired.lent, due);
                Look::Retired
            }
            Ok(None) => Look::Nothing,
            Err(error) => {
                let (topic, number) = self.place(key);
                log::error!("retention fails on topic={topic} partition={number}: {error}");
                Look::Nothing
            }
        }
    }

    /// `file.delete.delay.ms` of the partition's topic.
    pub(super) fn delete_delay(&self, key: PartitionKey) -> Duration {
        let topic = self.partitions.get(key).map(|partition| partition.topic);
        let topic = topic.and_then(|id| self.topics.get(id));
        let in_force = InForce {
            broker: &self.defaults,
            topic: topic.map(|topic| &topic.overrides),
        };
        in_force.time(Config::FileDeleteDelayMs)
    }
}
