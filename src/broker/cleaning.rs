//! Compaction: one round at a time, of the dirtiest partition that is due, a bounded slice a turn.
//!
//! What cannot be cleaned (damage, an error of the disk) is quarantined until a restart or an ALTER of its topic: it must not keep
//! the others from being cleaned. A full disk is no such error; it is tried again after a rest.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::time::Duration;

use crate::api::{Now, PartitionKey};
use crate::clock::Clock;
use crate::fs::Fs;
use crate::storage::Error;
use crate::storage::cleaner::{CleanProgress, Cleaning};

use super::Broker;
use super::configs::{Config, InForce};
use super::deletions::BUSY_TIME;
use super::partition::Before;
use super::topics::TopicId;

/// Bytes that a slice reads.
const SLICE_BYTES: u64 = 128 * 1024;

/// Looking for what is due goes on in the next turn after so long, ...
const CHOOSE_TIME: Duration = Duration::from_millis(1);

/// ... and after so many partitions.
const CHOOSE_LOOKS: usize = 64;

/// The shortest rest, so that a backoff of 0 does not keep the loop awake.
const REST_MIN: Duration = Duration::from_millis(10);

/// The cleaner.
#[derive(Debug)]
pub(super) struct Cleaner<F: Fs> {
    state: State<F>,
    /// Partitions that are not cleaned until a restart.
    quarantined: BTreeSet<PartitionKey>,
}

#[derive(Debug)]
enum State<F: Fs> {
    /// Nothing is due; when to look again. `None`: no topic is compacted.
    Resting(Option<Duration>),
    /// Looking for the dirtiest partition.
    Choosing {
        left: Vec<PartitionKey>,
        best: Option<(f64, PartitionKey)>,
    },
    /// A round, and when its next slice is due.
    Running(PartitionKey, Box<Cleaning<F>>, Duration),
}

impl<F: Fs> Cleaner<F> {
    pub(super) fn new() -> Self {
        Self {
            state: State::Resting(None),
            quarantined: BTreeSet::new(),
        }
    }

    /// When there is something to do; `None` for never.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        match &self.state {
            State::Resting(due) => *due,
            State::Choosing { .. } => Some(Duration::ZERO),
            State::Running(_, _, due) => Some(*due),
        }
    }

    /// A topic is compacted from now on.
    pub(super) fn wake(&mut self, mono: Duration) {
        if let State::Resting(due) = &mut self.state {
            *due = Some(due.map_or(mono, |due| due.min(mono)));
        }
    }

    /// The partition is gone.
    pub(super) fn forget(&mut self, key: PartitionKey) {
        self.quarantined.remove(&key);
    }

    /// The partition's configs changed: whatever kept it from being cleaned is forgotten.
    pub(super) fn release(&mut self, key: PartitionKey) {
        self.quarantined.remove(&key);
    }

    /// Whether a round goes on.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running(..))
    }

    /// How many partitions are not cleaned.
    pub(super) fn quarantined(&self) -> usize {
        self.quarantined.len()
    }
}

impl<F: Fs> Broker<F> {
    /// One slice of compaction.
    pub(super) fn cleaning_slice(&mut self, clock: &dyn Clock) {
        let started = clock.now();
        match &self.cleaner.state {
            State::Resting(due) if due.is_none_or(|due| due > started.mono) => {}
            State::Resting(_) => self.begin_choosing(),
            State::Choosing { .. } => self.choose(clock),
            State::Running(_, _, due) if *due > started.mono => {}
            &State::Running(key, ..) => {
                self.clean(key, started);
                self.pause(clock, started.mono);
            }
        }
    }

    fn begin_choosing(&mut self) {
        let defaults = &self.defaults;
        let left = self.topics.keys(|topic| {
            let in_force = InForce {
                broker: defaults,
                topic: Some(&topic.overrides),
            };
            in_force.log_config().cleanup.compacts()
        });
        self.cleaner.state = if left.is_empty() {
            State::Resting(None)
        } else {
            State::Choosing { left, best: None }
        };
    }

    fn rest(&mut self, mono: Duration) {
        let backoff = self.in_force(None).time(Config::CleanerBackoffMs);
        let due = mono.saturating_add(backoff.max(REST_MIN));
        self.cleaner.state = State::Resting(Some(due));
    }

    /// Looks at some partitions; after the last, begins a round with the dirtiest.
    fn choose(&mut self, clock: &dyn Clock) {
        let started = clock.now();
        for _ in 0..CHOOSE_LOOKS {
            let State::Choosing { left, best } = &mut self.cleaner.state else {
                return;
            };
            let Some(key) = left.pop() else {
                let best = *best;
                return self.begin_round(best, started);
            };
            if self.cleaner.quarantined.contains(&key) {
                continue;
            }
            let Some(partition) = self.partitions.get_mut(key) else {
                continue;
            };
            match partition.log.dirtiness(started.wall_ms) {
                Ok(Some(found)) if found.is_due => {
                    if best.is_none_or(|(ratio, _)| found.ratio > ratio) {
                        *best = Some((found.ratio, key));
                    }
                }
                Ok(_) => {}
                Err(error) => self.quarantine(key, &error),
            }
            if clock.now().mono.saturating_sub(started.mono) >= CHOOSE_TIME {
                return;
            }
        }
    }

    fn begin_round(&mut self, best: Option<(f64, PartitionKey)>, now: Now) {
        let map_bytes = self
            .in_force(None)
            .value(Config::CleanerDedupeBufferSize)
            .unsigned_abs();
        let Some((_, key)) = best else {
            return self.rest(now.mono);
        };
        let begun = self
            .partitions
            .get_mut(key)
            .map_or(Ok(None), |p| p.log.start_cleaning(map_bytes, now.wall_ms));
        match begun {
            Ok(Some(cleaning)) => {
                self.stats.cleaner_runs += 1;
                self.cleaner.state = State::Running(key, Box::new(cleaning), Duration::ZERO);
            }
            Ok(None) => self.rest(now.mono),
            Err(error) => self.fail_round(key, &error, now.mono),
        }
    }

    /// Sets when the next slice of a round is due.
    fn pause(&mut self, clock: &dyn Clock, started: Duration) {
        let State::Running(_, _, due) = &mut self.cleaner.state else {
            return;
        };
        let now = clock.now().mono;
        *due = if now.saturating_sub(self.last_heard) < BUSY_TIME {
            now.saturating_add(now.saturating_sub(started))
        } else {
            Duration::ZERO
        };
    }

    /// A slice of a round.
    fn clean(&mut self, key: PartitionKey, now: Now) {
        let State::Running(_, cleaning, _) = &mut self.cleaner.state else {
            return;
        };
        let Some(partition) = self.partitions.get_mut(key) else {
            return self.begin_choosing();
        };
        let before = Before::of(&partition.log);
        let progress = partition
            .log
            .clean_slice(cleaning, SLICE_BYTES, now.wall_ms);
        self.note_work(key, before, now.mono);
        self.stats.cleaner_slices += 1;
        match progress {
            Ok(CleanProgress::More) => {}
            Ok(CleanProgress::Replaced(replaced)) => {
                let due = now.mono.saturating_add(self.delete_delay(key));
                self.deletions.doom(replaced.files, replaced.lent, due);
            }
            Ok(CleanProgress::Done(done)) => {
                let stats = &mut self.stats;
                stats.cleaner_records_before += done.records_before;
                stats.cleaner_records_after += done.records_after;
                stats.cleaner_bytes_before += done.bytes_before;
                stats.cleaner_bytes_after += done.bytes_after;
                if done.records_before > 0 {
                    self.begin_choosing();
                } else {
                    // Nothing was there to be done: not again at once.
                    self.rest(now.mono);
                }
            }
            Ok(CleanProgress::Aborted) => self.rest(now.mono),
            Err(error) => self.fail_round(key, &error, now.mono),
        }
    }

    fn fail_round(&mut self, key: PartitionKey, error: &Error, mono: Duration) {
        if !error.is_disk_full() {
            self.quarantine(key, error);
        }
        self.rest(mono);
    }

    fn quarantine(&mut self, key: PartitionKey, error: &Error) {
        self.cleaner.quarantined.insert(key);
        let (topic, number) = self.place(key);
        log::error!(
            "topic={topic} partition={number} is not cleaned until a restart or an ALTER: {error}"
        );
    }

    /// Gives up a round in one of the topic's partitions.
    pub(super) fn abort_cleaning(&mut self, id: TopicId) {
        let State::Running(key, cleaning, _) = &mut self.cleaner.state else {
            return;
        };
        let Some(partition) = self.partitions.get_mut(*key).filter(|p| p.topic == id) else {
            return;
        };
        partition.log.drop_output(cleaning);
        self.begin_choosing();
    }
}
