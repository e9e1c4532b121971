//! Committed offsets on their way to `__consumer_offsets` and back: what a flush writes, what a start reads, what is forgotten.

#![forbid(unsafe_code)]

use crate::api::{ApiError, CrcMode, Now, PartitionKey, Payload, Run, quoted};
use crate::clock::Clock;
use crate::fs::Fs;
use crate::record::{Records, StoredRecord};
use crate::storage::Error;

use super::Broker;
use super::configs::{Config, Overrides};
use super::groups::offsets::{self, TOPIC};
use super::groups::{Commit, Pending};

/// Bytes that a start reads at a time.
const LOAD_BYTES: u64 = 1024 * 1024;

/// What became of an append so far.
type Appended = Result<Run, ApiError>;

/// What a flush appended, to be decided when it was written.
#[derive(Debug)]
pub(super) struct Written {
    forgotten: Vec<(Box<[u8]>, Appended)>,
    commits: Vec<(Pending, Option<Appended>)>,
}

impl<F: Fs> Broker<F> {
    /// Appends what this turn commits and forgets. What becomes of it is known after the flush.
    pub(super) fn write_commits(&mut self, clock: &dyn Clock) -> Option<Written> {
        self.groups.begin_flush();
        if !self.groups.has_any() {
            return None;
        }
        let now = clock.now();
        self.groups.set_time(now.wall_ms);
        if !self.groups.has_writes(now.mono) {
            return None;
        }
        let (keys, pending) = self.groups.take_writes(now.mono);
        let mut written = Written {
            forgotten: Vec::new(),
            commits: Vec::new(),
        };
        for key in keys {
            let appended = self.append_commit(&key, None, now);
            written.forgotten.push((key, appended));
        }
        for pending in pending {
            let share = pending.place.and_then(|(id, partition)| {
                let share = self.groups.get(id)?;
                Some(offsets::key(&share.group, &share.topic, partition))
            });
            let appended = share.map(|key| {
                let value = offsets::value(pending.offset, pending.lost);
                self.append_commit(&key, Some(&value), now)
            });
            written.commits.push((pending, appended));
        }
        Some(written)
    }

    fn append_commit(&mut self, key: &[u8], value: Option<&str>, now: Now) -> Appended {
        if self.space.is_watched() && self.dirty.is_empty() {
            self.check_space(now)?;
        }
        let to = self.offsets_partition(now)?;
        let payload = Payload::Record {
            timestamp: None,
            key: Some(key),
            value: value.map(str::as_bytes),
            headers: &[],
        };
        self.append_to(to, 0, &payload, now)
    }

    /// The partition that holds committed offsets; the topic is made where it is missing.
    fn offsets_partition(&mut self, now: Now) -> Result<PartitionKey, ApiError> {
        let id = match self.topics.find(TOPIC.as_bytes()) {
            Some(id) => id,
            None => self.create(TOPIC, 1, Overrides::of_topic(offsets::CONFIGS)?, now)?,
        };
        let topic = self.topics.get(id);
        let first = topic.and_then(|topic| topic.partitions.first().copied());
        first.ok_or_else(super::errors::topic_is_gone)
    }

    /// After the flush: what is committed is in force, what is not is as it was before.
    pub(super) fn decide_commits(&mut self, written: Written, clock: &dyn Clock) {
        let mono = clock.now().mono;
        for (key, appended) in written.forgotten {
            if let Some(error) = self.error_of(appended) {
                log::warn!("a committed offset is not forgotten on the disk yet: {error}");
                self.groups.forget_later(key, mono);
            }
        }
        for (pending, appended) in written.commits {
            let error = appended.and_then(|appended| self.error_of(appended));
            self.groups.decide(&pending, error);
        }
    }

    fn error_of(&self, appended: Appended) -> Option<ApiError> {
        match appended {
            Err(error) => Some(error),
            Ok(run) => {
                let verdict = self.verdict(&run);
                let is_good = run.first_offset < verdict.good_below;
                (!is_good).then(|| verdict.error.clone()).flatten()
            }
        }
    }

    /// Reads what was committed. Offsets of topics that are gone are forgotten; one beyond the end of its log goes back to the end.
    pub(super) fn load_commits(&mut self, now: Now) {
        let id = self.topics.find(TOPIC.as_bytes());
        let Some(topic) = id.and_then(|id| self.topics.get(id)) else {
            return;
        };
        // Until all are read there is no time: a group was last used when it committed last, not when the broker starts.
        for key in topic.partitions.clone() {
            self.load_partition(key, now);
        }
        self.groups.set_time(now.wall_ms);
        let (mut lost, mut count) = (Vec::new(), 0);
        for (id, share) in self.groups.iter() {
            let topic = self.topics.find(share.topic.as_bytes());
            let topic = topic.and_then(|id| self.topics.get(id));
            for (&number, commit) in &share.commits {
                count += 1;
                let place = usize::try_from(number).unwrap_or(usize::MAX);
                let key = topic.and_then(|topic| topic.partitions.get(place));
                let log = key.and_then(|&key| self.partitions.get(key));
                let end = log.map(|partition| partition.log.high_watermark());
                if end.is_none_or(|end| commit.offset > end) {
                    lost.push((id, number, end));
                }
            }
        }
        for (id, number, end) in lost {
            match end {
                Some(end) => self.groups.set_lost(id, number, end),
                None => self.groups.forget_commit(id, number),
            }
        }
        self.groups.drop_unused();
        log::info!("opened groups={} commits={count}", self.groups.len());
    }

    fn load_partition(&mut self, key: PartitionKey, now: Now) {
        let Some(partition) = self.partitions.get_mut(key) else {
            return;
        };
        let mut offset = partition.log.log_start_offset();
        let end = partition.log.high_watermark();
        let mut records = Records::new();
        while offset < end {
            records.clear();
            let Some(partition) = self.partitions.get_mut(key) else {
                return;
            };
            let read =
                partition
                    .log
                    .read(offset, u64::MAX, LOAD_BYTES, CrcMode::Check, &mut records);
            let next = match read {
                Ok(outcome) => outcome.next_offset,
                Err(Error::Corrupt(damage)) => {
                    log::error!(
                        "{TOPIC} is damaged at offset {offset}: commits before {} are lost",
                        damage.next
                    );
                    self.stats.corrupt_records += 1;
                    damage.next
                }
                Err(error) => {
                    log::error!("committed offsets could not be read: {error}");
                    return;
                }
            };
            for record in records.iter() {
                self.load_record(&record, now);
            }
            if next <= offset {
                return;
            }
            offset = next;
        }
    }

    fn load_record(&mut self, stored: &StoredRecord<'_>, now: Now) {
        let record = &stored.record;
        let key = record.key.and_then(offsets::parse_key);
        let value = record.value.map(offsets::parse_value);
        let (Some((group, topic, partition)), None | Some(Some(_))) = (key, value) else {
            log::warn!(
                "{TOPIC} has a record at offset {} that is no commit",
                stored.offset
            );
            return;
        };
        let Some(Some((offset, lost))) = value else {
            if let Some(id) = self.groups.find(group, topic) {
                self.groups.remove(id, partition);
            }
            return;
        };
        match self.groups.share(group, topic, now.mono) {
            Ok(id) => self.groups.set(
                id,
                partition,
                Commit {
                    offset,
                    lost,
                    at_ms: record.timestamp,
                },
            ),
            Err(error) => log::error!("a committed offset is left out: {error}"),
        }
    }

    /// Forgets the groups that nobody uses any more.
    pub(super) fn expire_groups(&mut self, now: Now) {
        let minutes = self.in_force(None).value(Config::OffsetsRetentionMinutes);
        self.groups.set_time(now.wall_ms);
        let retention_ms = minutes.saturating_mul(60_000);
        for name in self.groups.expire(retention_ms, now.mono) {
            log::info!(
                "forgot group={}, unused for minutes={minutes}",
                quoted(&name)
            );
        }
    }
}
