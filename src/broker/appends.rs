//! Appends and the durability point: what is appended in a turn of the loop is undecided until the flush.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::api::{ApiError, Batch, Now, PartitionKey, Payload, Run, Target, Verdict};
use crate::clock::Clock;
use crate::fs::Fs;
use crate::record::{PlainRecord, Record};
use crate::storage::{Error, FsyncPolicy};

use super::partition::{Before, Failure};
use super::route::Route;
use super::{Broker, errors};

/// Partitions that one tick syncs at most, while each takes no time; [`TICK_TIME`] bounds slow ones.
const TICK_SYNCS: usize = 64;

/// After so long a tick leaves what else is due to the next turn.
const TICK_TIME: Duration = Duration::from_millis(5);

/// recovery-point is replaced at most once in so long.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

impl<F: Fs> Broker<F> {
    /// As [`Broker::append_many`] of one payload.
    ///
    /// # Errors
    /// Refused, nothing stored.
    pub fn append(
        &mut self,
        target: Target<'_>,
        payload: &Payload<'_>,
        now: Now,
    ) -> Result<Run, ApiError> {
        let (run, error) = self.append_many(target, payload, std::iter::empty(), now);
        run.ok_or_else(|| error.unwrap_or_else(errors::topic_is_gone))
    }

    /// Appends a payload and, one after the other, more records to the same target; the fate of the run is known after
    /// [`Broker::flush`]. Returns the run of what was appended, and why the one behind it was refused: of that nothing is stored, and no more
    /// is taken from the iterator. Nothing is taken behind a batch, nor behind a record whose partition its key or the moment chooses.
    #[inline]
    pub fn append_many<'p>(
        &mut self,
        target: Target<'_>,
        first: &Payload<'p>,
        more: impl Iterator<Item = PlainRecord<'p>>,
        now: Now,
    ) -> (Option<Run>, Option<ApiError>) {
        let (run, error) = match self.begin_append(target, first, now) {
            Ok(route) => self.append_run(route, first, more, now),
            Err(error) => (None, Some(error)),
        };
        self.stats.errors += u64::from(error.is_some());
        (run, error)
    }

    /// Finds the partition, and makes it ready for this turn's appends.
    #[inline]
    fn begin_append(
        &mut self,
        target: Target<'_>,
        payload: &Payload<'_>,
        now: Now,
    ) -> Result<Route, ApiError> {
        if self.space.is_watched() && self.dirty.is_empty() {
            self.check_space(now)?;
        }
        let route = self.route(target, payload, now)?;
        self.make_ready(route.key, now)?;
        Ok(route)
    }

    /// Appends to that partition, whose number is that.
    pub(super) fn append_to(
        &mut self,
        key: PartitionKey,
        number: u32,
        payload: &Payload<'_>,
        now: Now,
    ) -> Result<Run, ApiError> {
        self.make_ready(key, now)?;
        let route = Route {
            key,
            number,
            is_fixed: true,
        };
        let (run, error) = self.append_run(route, payload, std::iter::empty(), now);
        run.ok_or_else(|| error.unwrap_or_else(errors::topic_is_gone))
    }

    /// Makes a partition ready for this turn's appends.
    ///
    /// # Errors
    /// Where it takes none.
    #[inline]
    fn make_ready(&mut self, key: PartitionKey, now: Now) -> Result<(), ApiError> {
        let partition = self
            .partitions
            .get_mut(key)
            .ok_or_else(errors::topic_is_gone)?;
        if !partition.is_dirty {
            if self.dirty.is_empty() {
                self.last_heard = now.mono;
                // Text files must be writable when the disk is full: without room for them nothing is taken.
                let spare = self.data_dir.ensure_spare();
                spare.map_err(|error| errors::of_system(&error))?;
            }
            partition.begin_turn();
            self.dirty.push(key);
        }
        match &partition.failure {
            Some(failure) => Err(failure.error.clone()),
            None => Ok(()),
        }
    }

    /// Appends to a partition that is ready for it.
    #[inline]
    fn append_run<'p>(
        &mut self,
        route: Route,
        first: &Payload<'p>,
        more: impl Iterator<Item = PlainRecord<'p>>,
        now: Now,
    ) -> (Option<Run>, Option<ApiError>) {
        let Some(partition) = self.partitions.get_mut(route.key) else {
            return (None, None);
        };
        let run = |first_offset, count, is_batch| Run {
            key: route.key,
            partition: route.number,
            first_offset,
            count,
            is_batch,
        };
        let first = match *first {
            Payload::Record {
                timestamp,
                key,
                value,
                headers,
            } => Record {
                timestamp: timestamp.unwrap_or(now.wall_ms),
                key,
                value,
                headers,
            },
            Payload::Batch(batch) => {
                return match self.append_batch(route.key, &batch, now) {
                    Ok(first_offset) => (Some(run(first_offset, batch.count, true)), None),
                    Err(error) => (None, Some(error)),
                };
            }
        };
        let first_offset = partition.log.log_end_offset();
        let (count, refused) = if route.is_fixed {
            let more = more.map(|PlainRecord { key, value }| Record {
                timestamp: now.wall_ms,
                key,
                value,
                headers: &[],
            });
            let records = std::iter::once(first).chain(more);
            partition.log.append_many(records, now.wall_ms)
        } else {
            match partition.log.append(&first, now.wall_ms) {
                Ok(_) => (1, None),
                Err(error) => (0, Some(error)),
            }
        };
        let run = (count > 0).then(|| run(first_offset, count, false));
        if let Some(run) = &run {
            partition.turn_end = first_offset + i64::from(run.count);
        }
        (
            run,
            refused.map(|error| self.refuse_append(route.key, &error)),
        )
    }

    /// Appends a batch; returns its first offset.
    fn append_batch(
        &mut self,
        key: PartitionKey,
        batch: &Batch<'_>,
        now: Now,
    ) -> Result<i64, ApiError> {
        let max = self.settings.max_batch_bytes;
        if u64::try_from(batch.bytes.len()).is_ok_and(|bytes| bytes > max) {
            return Err(errors::batch_too_large(batch.bytes.len(), max));
        }
        let Some(partition) = self.partitions.get_mut(key) else {
            return Err(errors::topic_is_gone());
        };
        let records = batch.records(now.wall_ms);
        match partition.log.append_batch(records, now.wall_ms) {
            Ok((first_offset, last_offset)) => {
                partition.turn_end = last_offset + 1;
                Ok(first_offset)
            }
            Err(error) => Err(self.refuse_append(key, &error)),
        }
    }

    /// The answer to an append that the engine refused. Where the system was at fault, the rest of the turn is refused too.
    #[cold]
    fn refuse_append(&mut self, key: PartitionKey, error: &Error) -> ApiError {
        match error {
            Error::Io { .. } => self.fail_turn(key, error),
            Error::OutOfRange { .. }
            | Error::Corrupt(_)
            | Error::TooLarge { .. }
            | Error::Unstorable(_)
            | Error::NoKey
            | Error::FutureTimestamp { .. }
            | Error::ReadOnly
            | Error::Exhausted => self.explain_error(key, error),
        }
    }

    /// A write failed in the middle of a turn: what was buffered is gone, and to keep the offsets in runs unambiguous no later append of the
    /// turn is taken. Returns what the peers are told.
    #[cold]
    pub(super) fn fail_turn(&mut self, key: PartitionKey, error: &Error) -> ApiError {
        let answer = self.explain_error(key, error);
        let (topic, number) = self.place(key);
        log::error!("appends fail on topic={topic} partition={number}: {error}");
        let Some(partition) = self.partitions.get_mut(key) else {
            return answer;
        };
        let good_below = partition.log.written_offset();
        let is_read_only = partition.log.is_read_only();
        let failure = Failure {
            good_below,
            error: answer,
        };
        let answer = partition
            .failure
            .get_or_insert_with(|| Box::new(failure))
            .error
            .clone();
        if is_read_only {
            let (topic, number) = self.place(key);
            let lost = errors::of_sync(error, topic, number);
            self.failed_sync.get_or_insert(lost);
        }
        answer
    }

    /// The durability point: writes every partition that was appended to, syncs as the policy says, publishes. To be called in every
    /// turn, appends or not.
    pub fn flush(&mut self, clock: &dyn Clock) {
        let written = self.write_commits(clock);
        if !self.dirty.is_empty() {
            let mut dirty = std::mem::take(&mut self.dirty);
            self.sync_together(&dirty, clock);
            for key in dirty.drain(..) {
                self.flush_partition(key, clock);
            }
            // Its memory is used again in the next turn.
            self.dirty = dirty;
        }
        if let Some(written) = written {
            self.decide_commits(written, clock);
        }
        if self.sync_rounds.is_wanted() {
            self.sync_slice(clock);
        }
    }

    fn flush_partition(&mut self, key: PartitionKey, clock: &dyn Clock) {
        let Some(partition) = self.partitions.get_mut(key) else {
            return;
        };
        if let Some(error) = partition.log.write().err() {
            self.fail_turn(key, &error);
        }
        if self.must_sync(key) {
            self.sync(key, clock);
        } else {
            self.schedule_sync(key, clock.now().mono);
        }
        self.publish(key);
        let Some(partition) = self.partitions.get_mut(key) else {
            return;
        };
        partition.is_dirty = false;
        let end = partition.log.log_end_offset();
        let verdict = match partition.failure.take() {
            None => Verdict {
                good_below: end,
                error: None,
            },
            Some(failure) => Verdict {
                good_below: failure.good_below,
                error: Some(failure.error),
            },
        };
        let good_end = verdict
            .good_below
            .clamp(partition.turn_start, partition.turn_end);
        self.stats.records_in += u64::try_from(good_end - partition.turn_start).unwrap_or(0);
        self.stats.bytes_in += partition.log.bytes().saturating_sub(partition.bytes_before);
        self.stats.errors += u64::try_from(partition.turn_end - good_end).unwrap_or(0);
        if partition.log.has_background() && !partition.has_background {
            partition.has_background = true;
            self.background.push_back(key);
        }
        self.partitions.decide(key, verdict);
    }

    /// Whether this flush syncs the partition.
    fn must_sync(&self, key: PartitionKey) -> bool {
        let Some(partition) = self.partitions.get(key) else {
            return false;
        };
        let Some(topic) = self.topics.get(partition.topic) else {
            return false;
        };
        let log = &partition.log;
        if self.settings.fsync == FsyncPolicy::Always {
            return true;
        }
        let unsynced = log.written_offset().saturating_sub(log.durable_offset());
        unsynced >= topic.flush.messages || topic.flush.after.is_some_and(|after| after.is_zero())
    }

    /// Sets when the partition is synced, where its first unsynced record asks for it.
    pub(super) fn schedule_sync(&mut self, key: PartitionKey, mono: Duration) {
        let Some(partition) = self.partitions.get_mut(key) else {
            return;
        };
        if partition.sync_due.is_some() || !partition.log.is_dirty() {
            return;
        }
        let every = match self.settings.fsync {
            FsyncPolicy::EveryMs(ms) => Some(Duration::from_millis(u64::from(ms))),
            FsyncPolicy::Always | FsyncPolicy::Never => None,
        };
        let own = self
            .topics
            .get(partition.topic)
            .and_then(|topic| topic.flush.after);
        if let Some(after) = every.into_iter().chain(own).min() {
            let due = mono.saturating_add(after);
            partition.sync_due = Some(due);
            self.syncs.insert((due, key));
        }
    }

    /// Makes everything that the partition holds durable. A failure is final: the partition is read-only from then on, and
    /// what this turn appended past the durable end is lost to its clients.
    pub(super) fn sync(&mut self, key: PartitionKey, clock: &dyn Clock) {
        let Some(partition) = self.partitions.get_mut(key) else {
            return;
        };
        if let Some(due) = partition.sync_due.take() {
            self.syncs.remove(&(due, key));
        }
        if !partition.log.is_dirty() && !partition.log.is_read_only() {
            return;
        }
        let durable = partition.log.durable_offset();
        let started = clock.now().mono;
        let result = partition.log.sync();
        let took = clock.now().mono.saturating_sub(started);
        let is_moved = partition.log.durable_offset() > durable;
        if let Err(error) = result {
            self.fail_sync(key, &error);
        } else {
            self.together.note_single(took);
            self.stats.fsyncs += 1;
            self.stats.fsync_max = self.stats.fsync_max.max(took);
        }
        if is_moved {
            self.note_moved(key, started);
        }
    }

    #[cold]
    pub(super) fn fail_sync(&mut self, key: PartitionKey, error: &Error) {
        let (topic, number) = self.place(key);
        let answer = errors::of_sync(error, topic, number);
        if !matches!(error, Error::ReadOnly) {
            log::error!("topic={topic} partition={number} is read-only from now on: {error}");
        }
        self.failed_sync.get_or_insert_with(|| answer.clone());
        let Some(partition) = self.partitions.get_mut(key) else {
            return;
        };
        let durable = partition.log.durable_offset();
        let before = partition.failure.take();
        if partition.is_dirty && (before.is_some() || partition.turn_end > partition.turn_start) {
            // The first error is what later appends of the turn were told; what it left good may be bad now.
            let failure = before.map_or(
                Failure {
                    good_below: durable,
                    error: answer,
                },
                |before| Failure {
                    good_below: before.good_below.min(durable),
                    error: before.error,
                },
            );
            partition.failure = Some(Box::new(failure));
        }
    }

    /// Lets readers see what the policy allows, and wakes those who wait for it.
    pub(super) fn publish(&mut self, key: PartitionKey) {
        let Some(partition) = self.partitions.get_mut(key) else {
            return;
        };
        let before = partition.log.high_watermark();
        partition.log.publish();
        if partition.log.high_watermark() > before {
            self.delayed.wake(key);
        }
    }

    /// The partition's durable end moved: a checkpoint is due.
    pub(super) fn note_moved(&mut self, key: PartitionKey, mono: Duration) {
        let Some(partition) = self.partitions.get_mut(key) else {
            return;
        };
        if !partition.is_moved {
            partition.is_moved = true;
            self.moved.push(key);
        }
        self.checkpoint_due
            .get_or_insert(mono.saturating_add(CHECKPOINT_INTERVAL));
    }

    /// What SYNC answers.
    pub(super) fn sync_result(&self) -> Result<(), ApiError> {
        self.failed_sync.clone().map_or(Ok(()), Err)
    }

    /// What the flush decided for the run; asked between the flush and [`Broker::end_turn`].
    #[must_use]
    pub fn verdict(&self, run: &Run) -> &Verdict {
        self.partitions.verdict(run.key)
    }

    /// Forgets the verdicts of this turn.
    pub fn end_turn(&mut self) {
        self.turn += 1;
        self.partitions.end_turn();
        for connection in self.groups.take_opening() {
            self.delayed.wake_one(connection);
        }
    }

    /// One bounded slice of background work: syncs that are due, checkpoints, sealed segments to sync, files to shorten and unlink.
    pub fn tick(&mut self, clock: &dyn Clock) {
        let started = clock.now().mono;
        for _ in 0..TICK_SYNCS {
            let now = clock.now().mono;
            match self.syncs.first() {
                Some(&(due, key)) if due <= now && now.saturating_sub(started) < TICK_TIME => {
                    self.sync(key, clock);
                    self.publish(key);
                }
                Some(_) | None => break,
            }
        }
        if self.groups.expiry_due().is_some_and(|due| due <= started) {
            self.expire_groups(clock.now());
        }
        if self.checkpoint_due.is_some_and(|due| due <= started) {
            self.checkpoint(started);
        }
        if let Some(key) = self.background.pop_front() {
            self.sync_sealed(key, started);
        }
        self.deletion_slice(clock);
        if self.is_delete_due() {
            self.delete_slice();
        }
        if !self.retention_slice(clock) {
            self.cleaning_slice(clock);
        }
    }

    /// What the loop must know after work on a log that was no append: it may have rolled, synced, published, or failed.
    pub(super) fn note_work(&mut self, key: PartitionKey, before: Before, mono: Duration) {
        let Some(partition) = self.partitions.get_mut(key) else {
            return;
        };
        let log = &partition.log;
        if log.has_background() && !partition.has_background {
            partition.has_background = true;
            self.background.push_back(key);
        }
        let is_moved = log.durable_offset() > before.durable;
        let is_news = log.high_watermark() > before.high_watermark
            || log.log_start_offset() > before.earliest;
        let has_failed = log.is_read_only() && !before.is_read_only;
        if is_moved {
            self.note_moved(key, mono);
        }
        if is_news {
            self.delayed.wake(key);
        }
        if has_failed {
            self.fail_sync(key, &Error::ReadOnly);
        }
    }

    /// Syncs one sealed segment of a partition.
    fn sync_sealed(&mut self, key: PartitionKey, mono: Duration) {
        let Some(partition) = self.partitions.get_mut(key) else {
            return;
        };
        let durable = partition.log.durable_offset();
        let has_more = partition.log.background();
        partition.has_background = has_more;
        if has_more {
            self.background.push_back(key);
        }
        if partition.log.durable_offset() > durable {
            self.stats.fsyncs += 1;
            self.note_moved(key, mono);
        } else if partition.log.is_read_only() {
            self.fail_sync(key, &Error::ReadOnly);
        }
    }

    /// Replaces recovery-point. Where that fails the old one stays, whose lower values are still true, and the next second tries again.
    pub(super) fn checkpoint(&mut self, mono: Duration) {
        for key in std::mem::take(&mut self.moved) {
            let Some(partition) = self.partitions.get_mut(key) else {
                continue;
            };
            partition.is_moved = false;
            let (number, durable) = (partition.number, partition.log.durable_offset());
            if let Some(topic) = self.topics.get(partition.topic) {
                self.context
                    .checkpoints
                    .set_recovery_point(&topic.name, number, durable);
            }
        }
        self.checkpoint_due = None;
        if let Err(error) = self.context.checkpoints.write_recovery_point() {
            log::warn!(
                "recovery-point could not be replaced, a start after a crash scans more: {error}"
            );
            self.checkpoint_due = Some(mono.saturating_add(CHECKPOINT_INTERVAL));
        }
    }
}
