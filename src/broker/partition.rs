//! Partitions as the broker holds them: a log, and what this turn of the loop appended to it.
//!
//! A partition's key is its place in a table. Keys go into runs, so one that was freed is given anew only after the turn.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use crate::api::{ApiError, ErrorCode, PartitionKey, Verdict};
use crate::fs::Fs;
use crate::storage::Log;

use super::topics::TopicId;

/// Why appends of this turn are lost.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    /// What is below was appended before and is not touched by it.
    pub(super) good_below: i64,
    pub(super) error: ApiError,
}

/// A partition that is open.
#[derive(Debug)]
pub(super) struct Partition<F: Fs> {
    pub(super) log: Log<F>,
    pub(super) topic: TopicId,
    /// Its number in the topic.
    pub(super) number: u32,
    /// Whether this turn tried to append to it: it is then on the turn's list.
    pub(super) is_dirty: bool,
    /// Where this turn's appends begin.
    pub(super) turn_start: i64,
    /// Where they would end if none had failed.
    pub(super) turn_end: i64,
    /// [`Log::bytes`] before the turn.
    pub(super) bytes_before: u64,
    /// The first write failure of this turn; every later append of the turn gets the same.
    pub(super) failure: Option<Box<Failure>>,
    /// When what is unsynced must be synced, by the monotonic clock; the same stands in the broker's ordered set.
    pub(super) sync_due: Option<Duration>,
    /// Whether its durable end moved since the last checkpoint: it is then on that list.
    pub(super) is_moved: bool,
    /// Whether the broker's list of background work has it.
    pub(super) has_background: bool,
    /// Whether its directory is on the data directory's file system, once that was asked.
    shares_file_system: Option<bool>,
}

impl<F: Fs> Partition<F> {
    pub(super) fn new(log: Log<F>, topic: TopicId, number: u32) -> Self {
        Self {
            log,
            topic,
            number,
            is_dirty: false,
            turn_start: 0,
            turn_end: 0,
            bytes_before: 0,
            failure: None,
            sync_due: None,
            is_moved: false,
            has_background: false,
            shares_file_system: None,
        }
    }

    /// Whether a sync of the data directory's file system reaches it: its directory may be a link to another disk.
    pub(super) fn is_on_the_disk_of(&mut self, fs: &F, data_dir: &Path) -> bool {
        *self.shares_file_system.get_or_insert_with(|| {
            fs.is_same_file_system(self.log.dir(), data_dir)
                .unwrap_or(false)
        })
    }

    /// Remembers how the log stood before the first append of a turn.
    pub(super) fn begin_turn(&mut self) {
        self.is_dirty = true;
        self.turn_start = self.log.log_end_offset();
        self.turn_end = self.turn_start;
        self.bytes_before = self.log.bytes();
    }
}

/// How a log stood before some work on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    pub(super) earliest: i64,
    pub(super) durable: i64,
    pub(super) high_watermark: i64,
    pub(super) is_read_only: bool,
}

impl Before {
    pub(super) fn of<F: Fs>(log: &Log<F>) -> Self {
        Self {
            earliest: log.log_start_offset(),
            durable: log.durable_offset(),
            high_watermark: log.high_watermark(),
            is_read_only: log.is_read_only(),
        }
    }
}

/// All partitions, by key, and the verdicts of this turn.
#[derive(Debug)]
pub(super) struct Partitions<F: Fs> {
    slots: Vec<Option<Partition<F>>>,
    verdicts: Vec<Verdict>,
    /// Keys to be given anew.
    free: Vec<PartitionKey>,
    /// Keys that are free from the end of the turn on.
    freed: Vec<PartitionKey>,
    /// The verdict of a key that never was.
    undecided: Verdict,
    len: u32,
}

impl<F: Fs> Partitions<F> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            verdicts: Vec::new(),
            free: Vec::new(),
            freed: Vec::new(),
            undecided: undecided(),
            len: 0,
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn get(&self, key: PartitionKey) -> Option<&Partition<F>> {
        self.slots.get(index(key))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, key: PartitionKey) -> Option<&mut Partition<F>> {
        self.slots.get_mut(index(key))?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Partition<F>> {
        self.slots.iter().flatten()
    }

    /// The keys of all that are there.
    pub(super) fn keys(&self) -> Vec<PartitionKey> {
        self.keys_of(|_| true).into()
    }

    /// The keys of those that are wanted.
    pub(super) fn keys_of(
        &self,
        is_wanted: impl Fn(&Partition<F>) -> bool,
    ) -> VecDeque<PartitionKey> {
        (0..)
            .zip(&self.slots)
            .filter(|(_, slot)| slot.as_ref().is_some_and(&is_wanted))
            .map(|(i, _)| PartitionKey(i))
            .collect()
    }

    pub(super) fn insert(&mut self, partition: Partition<F>) -> PartitionKey {
        self.len += 1;
        let key = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.verdicts.push(undecided());
            PartitionKey(u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX))
        });
        if let Some(slot) = self.slots.get_mut(index(key)) {
            *slot = Some(partition);
        }
        key
    }

    /// Takes a partition out; its key stays taken until [`Partitions::end_turn`].
    pub(super) fn remove(&mut self, key: PartitionKey) -> Option<Partition<F>> {
        let partition = self.slots.get_mut(index(key))?.take()?;
        self.len -= 1;
        self.freed.push(key);
        Some(partition)
    }

    pub(super) fn decide(&mut self, key: PartitionKey, verdict: Verdict) {
        if let Some(slot) = self.verdicts.get_mut(index(key)) {
            *slot = verdict;
        }
    }

    pub(super) fn verdict(&self, key: PartitionKey) -> &Verdict {
        self.verdicts.get(index(key)).unwrap_or(&self.undecided)
    }

    /// Frees the keys of partitions that are gone. Verdicts stay until the next flush of their partition replaces them.
    pub(super) fn end_turn(&mut self) {
        for key in self.freed.drain(..) {
            if let Some(verdict) = self.verdicts.get_mut(index(key)) {
                *verdict = undecided();
            }
            self.free.push(key);
        }
    }
}

fn index(key: PartitionKey) -> usize {
    // A key is a place in a table of at most 2^32 slots; usize has 64 bits wherever this runs.
    usize::try_from(key.0).unwrap_or(usize::MAX)
}

/// The verdict on a run that no flush has seen: nobody can promise anything about it.
fn undecided() -> Verdict {
    let error = ApiError::new(ErrorCode::Storage, "the append was not flushed");
    Verdict {
        good_below: i64::MIN,
        error: Some(error),
    }
}
