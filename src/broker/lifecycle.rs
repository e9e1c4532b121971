//! What creates and deletes topics, on the disk and in the registry.
//!
//! Both can fail half-way. A creation that fails leaves no topic, and its name can be tried again; a deletion that fails
//! before it is marked on the disk leaves the topic as it was, and one that fails later leaves files for another try.

#![forbid(unsafe_code)]

use std::ops::Range;
use std::rc::{Rc, Weak};

use crate::api::{ApiError, ErrorCode, Now, PartitionKey, Payload, Verdict};
use crate::fs::Fs;
use crate::record::Record;
use crate::storage::data_dir::{CreateError, Deletion, PARTITIONS_MAX, TopicFile};
use crate::storage::{Error, Log, LogConfig, StartFrom, TimestampType};

use super::configs::Overrides;
use super::deletions::Removal;
use super::partition::{Failure, Partition};
use super::partitioner::Sticky;
use super::topics::{FlushRule, Topic, TopicId, check_own_name, is_internal};
use super::{Broker, errors};

/// Files of a deleted topic that one slice removes at most.
pub(super) const DELETE_STEPS: usize = 64;

/// What is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// A topic.
    Topic,
    /// The partitions of a topic from this number on.
    PartitionsFrom(u32),
}

impl<F: Fs> Broker<F> {
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
        self.in_force(Some(&overrides)).check()?;
        let partitions = partitions.unwrap_or_else(|| self.in_force(None).partitions());
        self.create(name, partitions, overrides, now).map(|_| ())
    }

    pub(super) fn create(
        &mut self,
        name: &str,
        partitions: u32,
        overrides: Overrides,
        now: Now,
    ) -> Result<TopicId, ApiError> {
        self.check_limits(name, partitions, Growth::Topic)?;
        self.free_name(name)
            .map_err(|error| errors::of_system(&error))?;
        let file = topic_file(name, partitions, &overrides);
        if let Err(error) = self.data_dir.create_topic(&file) {
            return Err(match error {
                CreateError::Stranger(_) | CreateError::Damaged(_) => {
                    ApiError::new(ErrorCode::Storage, error.to_string())
                }
                CreateError::Refused(error) => errors::of_system(&error),
                CreateError::Storage(error) => {
                    self.unfinished_creations.push(name.to_owned());
                    errors::of_system(&error)
                }
            });
        }
        let opened = self.open_topic(
            name,
            partitions,
            overrides,
            StartFrom { is_clean: true },
            now,
        );
        if opened.is_err() {
            // A topic that cannot be opened must not come up at the next start either.
            self.unfinished_creations.push(name.to_owned());
            if let Err(error) = self.free_name(name) {
                log::warn!(
                    "topic={name} was not created, and its files could not be removed: {error}"
                );
            }
        }
        let id = opened.map_err(|error| errors::of_system(&error))?;
        log::info!("created topic={name} partitions={partitions}");
        Ok(id)
    }

    /// Whether a topic may have so many partitions.
    pub(super) fn check_limits(
        &self,
        name: &str,
        partitions: u32,
        growth: Growth,
    ) -> Result<(), ApiError> {
        let refuse = |words: String| Err(ApiError::new(ErrorCode::BadArgument, words));
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            return refuse(format!(
                "{name} cannot have {partitions} partitions; 1 to {PARTITIONS_MAX} are possible"
            ));
        }
        if is_internal(name) {
            // What the broker needs for itself does not depend on how many topics others have.
            return Ok(());
        }
        let max_topics = self.settings.max_topics;
        if growth == Growth::Topic
            && self.topics.len() >= usize::try_from(max_topics).unwrap_or(usize::MAX)
        {
            return refuse(format!(
                "{name} would be one topic too many: --max-topics is {max_topics}; delete one or start with more"
            ));
        }
        let more = match growth {
            Growth::Topic => partitions,
            Growth::PartitionsFrom(from) => partitions.saturating_sub(from),
        };
        let max_partitions = self.settings.max_partitions;
        let left = max_partitions.saturating_sub(self.partitions.len());
        if more > left {
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
        let logs = self.open_logs(name, 0..partitions, config, start, now)?;
        if config.cleanup.compacts() {
            self.cleaner.wake(now.mono);
        }
        let topic = Topic {
            name: name.into(),
            overrides,
            partitions: Vec::new(),
            sticky: Sticky::default(),
            flush,
            is_doubtful: false,
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

    /// Opens the logs of partitions whose directories are there.
    pub(super) fn open_logs(
        &mut self,
        name: &str,
        numbers: Range<u32>,
        config: LogConfig,
        start: StartFrom,
        now: Now,
    ) -> Result<Vec<Log<F>>, Error> {
        let mut logs = Vec::new();
        for number in numbers {
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
        Ok(logs)
    }

    /// What the first append to a topic would fail with, so that a request that fails creates nothing.
    pub(super) fn check_first_append(
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
                    "{name}/{number} does not exist: num.partitions={partitions} is what a new topic gets; CREATE {name} partitions=<n> makes more"
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

    /// DELETE. From the moment that the deletion is marked on the disk the topic is gone, whatever fails later.
    pub(super) fn delete_topic(&mut self, name: &[u8]) -> Result<(), ApiError> {
        check_own_name(name)?;
        let id = self.find_topic(name)?;
        let Some(topic) = self.topics.get(id) else {
            return Err(errors::unknown_topic(name));
        };
        let file = topic_file(&topic.name, topic.partition_count(), &topic.overrides);
        let name = file.name.clone();
        self.abort_cleaning(id);
        let deletion = match self.data_dir.mark_deleted(&name) {
            Ok(deletion) => deletion,
            Err(error) => {
                self.take_back_deletion(id, &file);
                return Err(errors::of_system(&error));
            }
        };
        for number in 0..file.partitions {
            let directory = self.data_dir.partition_dir(&name, number);
            self.deletions.forget(&directory);
        }
        self.last = None;
        self.end_consumers(&name);
        let keys = self
            .topics
            .remove(id)
            .map(|topic| topic.partitions)
            .unwrap_or_default();
        let lent = keys
            .into_iter()
            .flat_map(|key| self.drop_partition(key, &name));
        let lent = Rc::new(lent.collect());
        self.deleting.push_back(Removal { deletion, lent });
        self.delete_slice();
        log::info!("deleted topic={name}");
        Ok(())
    }

    /// Goes on with the removal of a deleted topic's files, a bounded number of them: first the big ones lose their names. Where it fails, it
    /// can be tried again.
    pub(super) fn delete_slice(&mut self) {
        let Some(mut removal) = self.deleting.pop_front() else {
            return;
        };
        self.deletions.take_big_files(&self.fs, &mut removal);
        for _ in 0..DELETE_STEPS {
            if removal.deletion.has_big_files() {
                break;
            }
            match self.data_dir.delete_step(&mut removal.deletion) {
                Ok(false) => {}
                Ok(true) => return,
                Err(error) => {
                    log::warn!(
                        "topic={} is deleted, but files of it remain until the next start: {error}",
                        removal.deletion.topic()
                    );
                    self.unfinished_deletions.push(removal.deletion);
                    return;
                }
            }
        }
        self.deleting.push_front(removal);
    }

    /// Whether [`Broker::delete_slice`] has something to do.
    pub(super) fn is_delete_due(&self) -> bool {
        self.deleting
            .front()
            .is_some_and(|removal| !removal.deletion.has_big_files() || !self.deletions.are_many())
    }

    /// The rest of a deletion, in one go: its name is wanted again. Where it fails, it can be tried again.
    fn remove_files(&mut self, mut deletion: Deletion) -> Result<(), Error> {
        // Somebody may still send from the big ones, so they must not be shortened.
        while let Some((path, _)) = deletion.take_big_file() {
            if self.fs.remove_file(&path).is_err() {
                deletion.give_back(path);
            }
        }
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
    /// was lent of its files is returned.
    fn drop_partition(&mut self, key: PartitionKey, topic: &str) -> Vec<Weak<F::File>> {
        let Some(mut partition) = self.partitions.remove(key) else {
            return Vec::new();
        };
        self.cleaner.forget(key);
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
        partition.log.take_lent()
    }

    /// A deletion failed before its end was known, so the topic stays: whatever its file says now, it must not say that it is deleted,
    /// or the next start would remove what is acknowledged from here on.
    fn take_back_deletion(&mut self, id: TopicId, file: &TopicFile) {
        let result = self.data_dir.write_topic(file);
        if let Err(error) = &result {
            log::error!(
                "topic={} takes no appends until its file is restored: {error}",
                file.name
            );
        }
        // The next append looks at the topic again.
        self.last = None;
        let Some(topic) = self.topics.get_mut(id) else {
            return;
        };
        topic.is_doubtful = result.is_err();
        let Err(error) = result else { return };
        let error = errors::of_system(&error);
        // Nor may what this turn appended before be acknowledged.
        for key in topic.partitions.clone() {
            if let Some(partition) = self.partitions.get_mut(key)
                && partition.is_dirty
            {
                let good_below = partition.turn_start;
                partition.failure = Some(Box::new(Failure {
                    good_below,
                    error: error.clone(),
                }));
            }
        }
    }

    /// Restores the file of a topic whose deletion or change failed.
    ///
    /// # Errors
    /// The topic then takes no appends.
    #[cold]
    pub(super) fn restore_topic(&mut self, id: TopicId) -> Result<(), ApiError> {
        let Some(topic) = self.topics.get_mut(id) else {
            return Ok(());
        };
        let file = topic_file(&topic.name, topic.partition_count(), &topic.overrides);
        self.data_dir
            .write_topic(&file)
            .map_err(|error| errors::of_system(&error))?;
        topic.is_doubtful = false;
        Ok(())
    }

    /// Finishes what a failed creation or deletion left of a topic of that name.
    pub(super) fn free_name(&mut self, name: &str) -> Result<(), Error> {
        let is_of_name = |deletion: &Deletion| deletion.topic() == name;
        let mut removals = self.deleting.iter();
        if let Some(place) = removals.position(|removal| is_of_name(&removal.deletion))
            && let Some(removal) = self.deleting.remove(place)
        {
            self.remove_files(removal.deletion)?;
        }
        let place = self.unfinished_deletions.iter().position(is_of_name);
        if let Some(place) = place {
            let deletion = self.unfinished_deletions.swap_remove(place);
            self.remove_files(deletion)?;
        }
        if self
            .unfinished_creations
            .iter()
            .any(|unfinished| unfinished == name)
        {
            self.data_dir.delete_topic(name)?;
            self.unfinished_creations
                .retain(|unfinished| unfinished != name);
        }
        Ok(())
    }
}

pub(super) fn topic_file(name: &str, partitions: u32, overrides: &Overrides) -> TopicFile {
    let configs = overrides
        .iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    TopicFile {
        name: name.to_owned(),
        partitions,
        configs,
    }
}

/// What [`Log::append`] would refuse of a record whatever the log holds.
fn check_record(record: &Record<'_>, config: &LogConfig, now: Now) -> Result<(), Error> {
    let bytes = record.payload_bytes();
    let max = usize::try_from(config.max_message_bytes).unwrap_or(usize::MAX);
    if bytes > max {
        return Err(Error::TooLarge { bytes, max });
    }
    if config.cleanup.compacts() && record.key.is_none() {
        return Err(Error::NoKey);
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
