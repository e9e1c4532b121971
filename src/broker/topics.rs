//! The registry of topics, and what creates and deletes them.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::{
    ApiError, ConfigSource, ErrorCode, Now, PartitionHealth, PartitionInfo, PartitionKey, Payload,
    Response, Target, TopicInfo, Verdict, quoted,
};
use crate::fs::Fs;
use crate::record::Record;
use crate::storage::data_dir::{CreateError, Deletion, PARTITIONS_MAX, TopicFile};
use crate::storage::{Error, Log, LogConfig, StartFrom, TimestampType};

use super::configs::{InForce, Overrides};
use super::partition::{Partition, Ranges};
use super::partitioner::Sticky;
use super::{Broker, errors, partitioner};

/// The longest name.
const NAME_BYTES_MAX: usize = 249;

/// A topic, as its partitions know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TopicId(usize);

/// A topic.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: Box<str>,
    pub(super) overrides: Overrides,
    /// Keys of its partitions, by number.
    pub(super) partitions: Vec<PartitionKey>,
    pub(super) sticky: Sticky,
    pub(super) flush: FlushRule,
}

impl Topic {
    pub(super) fn partition_count(&self) -> u32 {
        u32::try_from(self.partitions.len()).unwrap_or(u32::MAX)
    }
}

/// `flush.messages` and `flush.ms`.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlushRule {
    /// So many unsynced records force a sync.
    pub(super) messages: i64,
    /// A first unsynced record so old forces a sync; `None` for never.
    pub(super) after: Option<Duration>,
}

impl FlushRule {
    fn new(in_force: InForce<'_>) -> Self {
        use super::configs::Config::{FlushMessages, FlushMs};
        let ms = in_force.value(FlushMs);
        let after = (ms < i64::MAX).then(|| Duration::from_millis(ms.unsigned_abs()));
        Self {
            messages: in_force.value(FlushMessages),
            after,
        }
    }
}

/// All topics.
#[derive(Debug, Default)]
pub(super) struct Topics {
    by_name: BTreeMap<Box<[u8]>, TopicId>,
    slots: slab::Slab<Topic>,
    /// The topic last appended to: a producer mostly stays with one.
    last: Option<TopicId>,
}

impl Topics {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, id: TopicId) -> Option<&Topic> {
        self.slots.get(id.0)
    }

    pub(super) fn get_mut(&mut self, id: TopicId) -> Option<&mut Topic> {
        self.slots.get_mut(id.0)
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<TopicId> {
        self.by_name.get(name).copied()
    }

    /// The topic last appended to, where that is its name.
    #[inline]
    pub(super) fn last_named(&self, name: &[u8]) -> Option<TopicId> {
        let last = self.last?;
        let topic = self.get(last)?;
        (topic.name.as_bytes() == name).then_some(last)
    }

    pub(super) fn set_last(&mut self, id: TopicId) {
        self.last = Some(id);
    }

    /// In the order of their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Topic> {
        self.by_name.values().filter_map(|&id| self.get(id))
    }

    fn insert(&mut self, topic: Topic) -> TopicId {
        let name = topic.name.as_bytes().into();
        let id = TopicId(self.slots.insert(topic));
        self.by_name.insert(name, id);
        id
    }

    fn remove(&mut self, id: TopicId) -> Option<Topic> {
        let topic = self.slots.try_remove(id.0)?;
        self.by_name.remove(topic.name.as_bytes());
        if self.last == Some(id) {
            self.last = None;
        }
        Some(topic)
    }
}

/// The name, where a topic may have it.
pub(super) fn check_name(name: &[u8]) -> Result<&str, ApiError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let words = match std::str::from_utf8(name) {
        _ if name.is_empty() => "is empty".to_owned(),
        _ if name.len() > NAME_BYTES_MAX => format!("has {} bytes", name.len()),
        Ok("." | "..") => "is a directory's".to_owned(),
        Ok(good) if name.iter().copied().all(is_allowed) => return Ok(good),
        Ok(_) | Err(_) => "has other characters".to_owned(),
    };
    Err(ApiError::new(
        ErrorCode::InvalidTopic,
        format!(
            "topic name {} {words}; allowed are 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ - but not . or ..",
            quoted(name)
        ),
    ))
}

/// The name, where a client may write to, create or delete such a topic.
pub(super) fn check_own_name(name: &[u8]) -> Result<&str, ApiError> {
    let name = check_name(name)?;
    if name.starts_with("__") {
        return Err(ApiError::new(
            ErrorCode::InvalidTopic,
            format!(
                "{name} belongs to the broker, as all names do that begin with __; choose another"
            ),
        ));
    }
    Ok(name)
}

impl<F: Fs> Broker<F> {
    /// The configs in force for a topic with these overrides.
    pub(super) fn in_force<'a>(&'a self, overrides: Option<&'a Overrides>) -> InForce<'a> {
        InForce {
            broker: &self.defaults,
            topic: overrides,
        }
    }

    /// The topic of a request that reads.
    pub(super) fn find_topic(&self, name: &[u8]) -> Result<TopicId, ApiError> {
        match self.topics.find(name) {
            Some(id) => Ok(id),
            None => Err(check_name(name)
                .err()
                .unwrap_or_else(|| errors::unknown_topic(name))),
        }
    }

    /// The partition of a request that reads, and its number.
    pub(super) fn find_partition(
        &self,
        target: Target<'_>,
    ) -> Result<(PartitionKey, u32), ApiError> {
        let id = self.find_topic(target.topic)?;
        let topic = self
            .topics
            .get(id)
            .ok_or_else(|| errors::unknown_topic(target.topic))?;
        match (target.partition, topic.partitions.as_slice()) {
            (Some(number), keys) => keys
                .get(usize::try_from(number).unwrap_or(usize::MAX))
                .map(|&key| (key, number))
                .ok_or_else(|| {
                    errors::unknown_partition(&topic.name, number, topic.partition_count())
                }),
            (None, &[key]) => Ok((key, 0)),
            (None, _) => Err(errors::ambiguous_partition(
                &topic.name,
                topic.partition_count(),
            )),
        }
    }

    /// The topic of an append that is not the one of the append before: made where it is missing, and then remembered.
    #[cold]
    pub(super) fn find_or_create(
        &mut self,
        target: Target<'_>,
        payload: &Payload<'_>,
        now: Now,
    ) -> Result<TopicId, ApiError> {
        let name = check_own_name(target.topic)?;
        let id = match self.topics.find(target.topic) {
            Some(id) => id,
            None if self.in_force(None).creates_topics() => {
                self.check_first_append(name, target.partition, payload, now)?;
                let partitions = self.in_force(None).partitions();
                self.create(name, partitions, Overrides::default(), now)?
            }
            None => return Err(errors::unknown_topic(target.topic)),
        };
        self.topics.set_last(id);
        Ok(id)
    }

    /// What the first append to a topic would fail with, so that a request that fails creates nothing.
    fn check_first_append(
        &self,
        name: &str,
        partition: Option<u32>,
        payload: &Payload<'_>,
        now: Now,
    ) -> Result<(), ApiError> {
        let partitions = self.in_force(None).partitions();
        if let Some(number) = partition.filter(|&number| number >= partitions) {
            return Err(ApiError::new(
                ErrorCode::UnknownPartition,
                format!(
                    "{name}/{number} does not exist; a new topic gets {partitions} partitions (num.partitions), CREATE {name} partitions=<n> makes more"
                ),
            ));
        }
        let config = self.in_force(None).log_config();
        let number = partition.unwrap_or(0);
        let refuse = |error: Error| errors::of_partition(&error, name, number);
        match payload {
            Payload::Record {
                timestamp,
                key,
                value,
                headers,
            } => {
                let timestamp = timestamp.unwrap_or(now.wall_ms);
                let record = Record {
                    timestamp,
                    key: *key,
                    value: *value,
                    headers,
                };
                check_record(&record, &config, now).map_err(refuse)
            }
            Payload::Batch(batch) => {
                if partition.is_none() && batch.has_key && partitions > 1 {
                    return Err(errors::ambiguous_partition(name, partitions));
                }
                let mut records = batch.records(now.wall_ms);
                records
                    .try_for_each(|record| check_record(&record, &config, now))
                    .map_err(refuse)
            }
        }
    }

    /// CREATE.
    pub(super) fn create_topic(
        &mut self,
        name: &[u8],
        partitions: Option<u32>,
        configs: &[(&str, &str)],
        now: Now,
    ) -> Result<(), ApiError> {
        let name = check_own_name(name)?;
        if self.topics.find(name.as_bytes()).is_some() {
            return Err(ApiError::new(
                ErrorCode::TopicExists,
                format!("topic {name} is there already; DESCRIBE {name} shows it"),
            ));
        }
        let overrides = Overrides::of_topic(configs.iter().copied())?;
        let partitions = partitions.unwrap_or_else(|| self.in_force(None).partitions());
        self.create(name, partitions, overrides, now).map(|_| ())
    }

    fn create(
        &mut self,
        name: &str,
        partitions: u32,
        overrides: Overrides,
        now: Now,
    ) -> Result<TopicId, ApiError> {
        self.check_limits(name, partitions)?;
        self.finish_deletion(name)?;
        let configs = overrides
            .iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let file = TopicFile {
            name: name.to_owned(),
            partitions,
            configs,
        };
        self.data_dir
            .create_topic(&file)
            .map_err(|error| match error {
                CreateError::Stranger(_) => ApiError::new(ErrorCode::Storage, error.to_string()),
                CreateError::Storage(error) => errors::of_system(&error),
            })?;
        let opened = self.open_topic(
            name,
            partitions,
            overrides,
            StartFrom { is_clean: true },
            now,
        );
        if opened.is_err() {
            // A topic that cannot be opened must not come up at the next start either.
            if let Err(error) = self.data_dir.delete_topic(name) {
                log::warn!(
                    "topic={name} was not created, and its files could not be removed: {error}"
                );
            }
        }
        let id = opened.map_err(|error| errors::of_system(&error))?;
        log::info!("created topic={name} partitions={partitions}");
        Ok(id)
    }

    fn check_limits(&self, name: &str, partitions: u32) -> Result<(), ApiError> {
        let refuse = |words: String| Err(ApiError::new(ErrorCode::BadArgument, words));
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            return refuse(format!(
                "{name} cannot have {partitions} partitions; 1 to {PARTITIONS_MAX} are possible"
            ));
        }
        let max_topics = self.settings.max_topics;
        if self.topics.len() >= usize::try_from(max_topics).unwrap_or(usize::MAX) {
            return refuse(format!(
                "{name} would be one topic too many: --max-topics is {max_topics}; delete one or start with more"
            ));
        }
        let max_partitions = self.settings.max_partitions;
        let left = max_partitions.saturating_sub(self.partitions.len());
        if partitions > left {
            return refuse(format!(
                "{name} with partitions={partitions} would be too many: --max-partitions is {max_partitions}, {left} are left"
            ));
        }
        Ok(())
    }

    /// Opens all logs of a topic whose directories are there, and registers it. On an error nothing is registered.
    pub(super) fn open_topic(
        &mut self,
        name: &str,
        partitions: u32,
        overrides: Overrides,
        start: StartFrom,
        now: Now,
    ) -> Result<TopicId, Error> {
        let in_force = self.in_force(Some(&overrides));
        let (config, flush) = (in_force.log_config(), FlushRule::new(in_force));
        let mut logs = Vec::new();
        for number in 0..partitions {
            let root = &self.settings.data_dir;
            let (log, report) = Log::open(
                &self.context,
                root,
                name,
                number,
                config,
                start,
                now.wall_ms,
            )?;
            self.stats.corrupt_records += report.damaged;
            logs.push(log);
        }
        let topic = Topic {
            name: name.into(),
            overrides,
            partitions: Vec::new(),
            sticky: Sticky::default(),
            flush,
        };
        let id = self.topics.insert(topic);
        let keys = (0..)
            .zip(logs)
            .map(|(number, log)| self.partitions.insert(Partition::new(log, id, number)));
        let keys = keys.collect();
        if let Some(topic) = self.topics.get_mut(id) {
            topic.partitions = keys;
        }
        Ok(id)
    }

    /// DELETE. From the moment that the deletion is marked on the disk the topic is gone, whatever fails later.
    pub(super) fn delete_topic(&mut self, name: &[u8]) -> Result<(), ApiError> {
        check_own_name(name)?;
        let id = self.find_topic(name)?;
        let Some(topic) = self.topics.get(id) else {
            return Err(errors::unknown_topic(name));
        };
        let name = topic.name.to_string();
        let deletion = self
            .data_dir
            .mark_deleted(&name)
            .map_err(|error| errors::of_system(&error))?;
        let mut big_files = Vec::new();
        for number in 0..topic.partition_count() {
            let directory = self.data_dir.partition_dir(&name, number);
            self.deletions
                .unlink_big_logs(&self.fs, &directory, &mut big_files);
        }
        self.last = None;
        let keys = self
            .topics
            .remove(id)
            .map(|topic| topic.partitions)
            .unwrap_or_default();
        let ranges = keys
            .into_iter()
            .filter_map(|key| self.drop_partition(key, &name));
        let ranges = ranges.collect();
        self.deletions.add(big_files, ranges);
        if let Err(error) = self.remove_files(deletion) {
            log::warn!(
                "topic={name} is deleted, but files of it remain until the next start: {error}"
            );
        }
        log::info!("deleted topic={name}");
        Ok(())
    }

    /// The rest of a deletion, in one go: what is big has lost its name already. Where it fails, it can be tried again.
    fn remove_files(&mut self, mut deletion: Deletion) -> Result<(), Error> {
        loop {
            match self.data_dir.delete_step(&mut deletion) {
                Ok(false) => {}
                Ok(true) => return Ok(()),
                Err(error) => {
                    self.unfinished_deletions.push(deletion);
                    return Err(error);
                }
            }
        }
    }

    /// Forgets a partition of a deleted topic: its appends of this turn get their verdict, its readers an error. What
    /// was given out of its files is returned.
    fn drop_partition(&mut self, key: PartitionKey, topic: &str) -> Option<Ranges> {
        let partition = self.partitions.remove(key)?;
        if let Some(due) = partition.sync_due {
            self.syncs.remove(&(due, key));
        }
        // They were appended, and then deleted with all others: nothing is left to be synced for them.
        let verdict = match partition.failure {
            None => Verdict {
                good_below: i64::MAX,
                error: None,
            },
            Some(failure) => Verdict {
                good_below: failure.good_below,
                error: Some(failure.error),
            },
        };
        self.partitions.decide(key, verdict);
        self.delayed.end(key, &errors::topic_deleted(topic));
        Some(partition.ranges)
    }

    /// Finishes a deletion of that name that failed half-way, so that the name is free.
    fn finish_deletion(&mut self, name: &str) -> Result<(), ApiError> {
        let place = self
            .unfinished_deletions
            .iter()
            .position(|deletion| deletion.topic() == name);
        match place.map(|place| self.unfinished_deletions.swap_remove(place)) {
            Some(deletion) => self
                .remove_files(deletion)
                .map_err(|error| errors::of_system(&error)),
            None => Ok(()),
        }
    }

    /// TOPICS.
    pub(super) fn list_topics(&self) -> Response {
        let info = |topic: &Topic| {
            let mut info = TopicInfo {
                name: topic.name.to_string(),
                partitions: topic.partition_count(),
                records: 0,
                bytes: 0,
            };
            for partition in topic
                .partitions
                .iter()
                .filter_map(|&key| self.partitions.get(key))
            {
                let log = &partition.log;
                info.records += log.high_watermark().abs_diff(log.log_start_offset());
                info.bytes += log.bytes();
            }
            info
        };
        Response::Topics(self.topics.iter().map(info).collect())
    }

    /// DESCRIBE.
    pub(super) fn describe_topic(&self, name: &[u8]) -> Result<Response, ApiError> {
        let id = self.find_topic(name)?;
        let topic = self
            .topics
            .get(id)
            .ok_or_else(|| errors::unknown_topic(name))?;
        let configs: Vec<(_, _, ConfigSource)> = self.in_force(Some(&topic.overrides)).describe();
        let info = |partition: &Partition<F>| {
            let log = &partition.log;
            PartitionInfo {
                partition: partition.number,
                earliest: log.log_start_offset(),
                latest: log.high_watermark(),
                bytes: log.bytes(),
                segments: u64::try_from(log.segment_count()).unwrap_or(u64::MAX),
                health: if log.is_read_only() {
                    PartitionHealth::ReadOnly
                } else if log.is_damaged() {
                    PartitionHealth::Damaged
                } else {
                    PartitionHealth::Ok
                },
            }
        };
        let partitions = topic
            .partitions
            .iter()
            .filter_map(|&key| self.partitions.get(key));
        Ok(Response::Described {
            configs,
            partitions: partitions.map(info).collect(),
        })
    }

    /// The partition that a record or batch without one goes to, of several.
    pub(super) fn choose_partition(
        &mut self,
        id: TopicId,
        payload: &Payload<'_>,
    ) -> Result<u32, ApiError> {
        let Some(topic) = self.topics.slots.get_mut(id.0) else {
            return Ok(0);
        };
        let count = topic.partition_count();
        let (records, bytes) = match payload {
            Payload::Record { key: Some(key), .. } => {
                return Ok(partitioner::partition_of(key, count));
            }
            Payload::Batch(batch) if batch.has_key => {
                return Err(errors::ambiguous_partition(&topic.name, count));
            }
            Payload::Record {
                key: None,
                value,
                headers,
                ..
            } => (1, value.map_or(0, <[u8]>::len) + headers.len()),
            Payload::Batch(batch) => (u64::from(batch.count), batch.bytes.len()),
        };
        let (keys, partitions) = (&topic.partitions, &self.partitions);
        let is_open = |number: u32| {
            let key = usize::try_from(number)
                .ok()
                .and_then(|number| keys.get(number));
            let partition = key.and_then(|&key| partitions.get(key));
            partition.is_some_and(|p| p.failure.is_none() && !p.log.is_read_only())
        };
        let number = topic.sticky.choose(self.turn, count, is_open);
        topic
            .sticky
            .count(records, u64::try_from(bytes).unwrap_or(u64::MAX));
        Ok(number)
    }
}

/// What [`Log::append`] would refuse of a record whatever the log holds.
fn check_record(record: &Record<'_>, config: &LogConfig, now: Now) -> Result<(), Error> {
    let bytes = record.payload_bytes();
    let max = usize::try_from(config.max_message_bytes).unwrap_or(usize::MAX);
    if bytes > max {
        return Err(Error::TooLarge { bytes, max });
    }
    config
        .record_version
        .encoded_len(record)
        .map_err(Error::Unstorable)?;
    let latest = now.wall_ms.saturating_add(config.timestamp_after_max_ms);
    if config.timestamp_type == TimestampType::CreateTime && record.timestamp > latest {
        return Err(Error::FutureTimestamp {
            timestamp: record.timestamp,
            latest,
        });
    }
    Ok(())
}
