//! Under `always`, where a turn wrote to many partitions: one sync of the whole file system in place of an fdatasync for each.
//!
//! A disk's flush is then paid once and not once for each file: a thousand partitions cost a tenth. But the file system may hold much that
//! is not ours, and that is waited for as well. So both ways are timed, and where the one call took longer than single ones would
//! have, it rests for some turns, longer each time.

#![forbid(unsafe_code)]

use std::io;
use std::time::Duration;

use crate::api::PartitionKey;
use crate::clock::Clock;
use crate::fs::Fs;
use crate::storage::FsyncPolicy;

use super::Broker;

/// Partitions from which on one call is cheaper, if nobody else writes to the file system.
pub(super) const TOGETHER_MIN: usize = 8;

/// Turns of the first rest, and of the longest.
const REST_TURNS: (u32, u32) = (1, 1024);

/// What one fdatasync is taken to need before the first was timed.
const SINGLE_GUESS: Duration = Duration::from_micros(100);

/// Which way is the shorter.
#[derive(Debug)]
pub(super) struct TogetherSync {
    /// What one fdatasync took, the last ones counting most.
    single: Duration,
    /// Turns before the one call is tried again.
    resting: u32,
    /// How many it will be the next time.
    next_rest: u32,
}

impl Default for TogetherSync {
    fn default() -> Self {
        Self {
            single: SINGLE_GUESS,
            resting: 0,
            next_rest: REST_TURNS.0,
        }
    }
}

impl TogetherSync {
    /// Takes note of what one fdatasync took.
    pub(super) fn note_single(&mut self, took: Duration) {
        self.single = (self.single * 7 + took) / 8;
    }

    /// Whether so many partitions are to be synced by one call in this turn.
    fn is_wanted(&mut self, partitions: usize) -> bool {
        if partitions < TOGETHER_MIN {
            return false;
        }
        let is_rested = self.resting == 0;
        self.resting = self.resting.saturating_sub(1);
        is_rested
    }

    /// Takes note of what the one call took for so many.
    fn note_together(&mut self, partitions: usize, took: Duration) {
        let singly = self
            .single
            .saturating_mul(u32::try_from(partitions).unwrap_or(u32::MAX));
        if took > singly {
            self.rest();
        } else {
            self.next_rest = REST_TURNS.0;
        }
    }

    fn rest(&mut self) {
        self.resting = self.next_rest;
        self.next_rest = (self.next_rest * 2).min(REST_TURNS.1);
    }
}

impl<F: Fs> Broker<F> {
    /// Writes and syncs the partitions of this turn together, if that is the shorter way. What is left to do of them, all of them if
    /// not, is done partition by partition behind it.
    pub(super) fn sync_together(&mut self, dirty: &[PartitionKey], clock: &dyn Clock) {
        if self.settings.fsync != FsyncPolicy::Always || !self.together.is_wanted(dirty.len()) {
            return;
        }
        let mut written = Vec::with_capacity(dirty.len());
        for &key in dirty {
            let Some(partition) = self.partitions.get_mut(key) else {
                continue;
            };
            match partition.log.write() {
                Ok(()) if partition.is_on_the_disk_of(&self.fs, &self.settings.data_dir) => {
                    written.push((key, partition.log.durable_offset()));
                }
                Ok(()) => {}
                Err(error) => {
                    self.fail_turn(key, &error);
                }
            }
        }
        let started = clock.now().mono;
        if let Err(error) = self.fs.sync_all(&self.settings.data_dir) {
            if error.kind() == io::ErrorKind::Unsupported {
                self.together.rest();
                return;
            }
            // It does not say whose bytes were lost, and a later sync of them may succeed.
            for &key in dirty {
                if let Some(partition) = self.partitions.get_mut(key) {
                    let error = partition.log.sync_failed(&error);
                    self.fail_sync(key, &error);
                }
            }
            return;
        }
        let took = clock.now().mono.saturating_sub(started);
        self.together.note_together(written.len(), took);
        self.stats.fsyncs += 1;
        self.stats.fsync_max = self.stats.fsync_max.max(took);
        for (key, durable) in written {
            let Some(partition) = self.partitions.get_mut(key) else {
                continue;
            };
            if let Err(error) = partition.log.synced_with_all() {
                self.fail_sync(key, &error);
            } else if partition.log.durable_offset() > durable {
                self.note_moved(key, started);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn few_partitions_are_synced_one_by_one() {
        let mut together = TogetherSync::default();
        assert!(!together.is_wanted(TOGETHER_MIN - 1));
        assert!(together.is_wanted(TOGETHER_MIN));
    }

    #[test]
    fn what_took_longer_rests_longer_each_time() {
        let mut together = TogetherSync::default();
        for _ in 0..100 {
            together.note_single(MS);
        }
        together.note_together(10, 9 * MS);
        assert!(together.is_wanted(10), "it was the shorter way");
        for rest in [1, 2, 4] {
            together.note_together(10, 11 * MS);
            let turns = (0..1000).take_while(|_| !together.is_wanted(10)).count();
            assert_eq!(turns, rest);
        }
        together.note_together(10, MS);
        together.note_together(10, 11 * MS);
        assert_eq!((0..1000).take_while(|_| !together.is_wanted(10)).count(), 1);
        for _ in 0..20 {
            together.rest();
        }
        assert_eq!(together.resting, REST_TURNS.1);
    }
}
