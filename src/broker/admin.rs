//! What changes a topic that is there: ALTER, PARTITIONS, TRIM.

#![forbid(unsafe_code)]

use crate::api::{ApiError, ErrorCode, Now, Response, Target};
use crate::fs::Fs;
use crate::storage::StartFrom;
use crate::storage::data_dir::{CreateError, TopicFile};

use super::configs::Overrides;
use super::delayed_fetch::Position;
use super::lifecycle::{Growth, topic_file};
use super::partition::Partition;
use super::topics::{FlushRule, TopicId, check_own_name};
use super::{Broker, errors};

impl<F: Fs> Broker<F> {
    /// ALTER: checked, on the disk, then in force.
    pub(super) fn alter_topic(
        &mut self,
        name: &[u8],
        configs: &[(&str, &str)],
        now: Now,
    ) -> Result<Response, ApiError> {
        check_own_name(name)?;
        let id = self.find_topic(name)?;
        let Some(topic) = self.topics.get(id) else {
            return Err(errors::unknown_topic(name));
        };
        let overrides = topic.overrides.altered(configs)?;
        self.in_force(Some(&overrides)).check()?;
        let count = topic.partition_count();
        let old = topic_file(&topic.name, count, &topic.overrides);
        let new = topic_file(&topic.name, count, &overrides);
        if let Err(error) = self.data_dir.write_topic(&new) {
            self.take_back_change(id, &old);
            return Err(errors::of_system(&error));
        }
        self.abort_cleaning(id);
        self.put_in_force(id, overrides, now);
        log::info!("altered topic={}", new.name);
        Ok(Response::Done)
    }

    /// Lets a topic and its logs act on new configs.
    fn put_in_force(&mut self, id: TopicId, overrides: Overrides, now: Now) {
        let in_force = self.in_force(Some(&overrides));
        let (config, flush) = (in_force.log_config(), FlushRule::new(in_force));
        let Some(topic) = self.topics.get_mut(id) else {
            return;
        };
        (topic.overrides, topic.flush) = (overrides, flush);
        topic.is_doubtful = false;
        if config.cleanup.compacts() {
            self.cleaner.wake(now.mono);
        }
        for key in topic.partitions.clone() {
            self.cleaner.release(key);
            self.retention.ask(key);
            let Some(partition) = self.partitions.get_mut(key) else {
                continue;
            };
            partition.log.set_config(config);
            if let Some(due) = partition.sync_due.take() {
                self.syncs.remove(&(due, key));
                self.schedule_sync(key, now.mono);
            }
        }
    }

    /// PARTITIONS.
    pub(super) fn add_partitions(
        &mut self,
        name: &[u8],
        count: u32,
        now: Now,
    ) -> Result<Response, ApiError> {
        check_own_name(name)?;
        let id = self.find_topic(name)?;
        let Some(topic) = self.topics.get(id) else {
            return Err(errors::unknown_topic(name));
        };
        let from = topic.partition_count();
        let name = topic.name.to_string();
        if count <= from {
            return Err(ApiError::new(
                ErrorCode::BadArgument,
                format!(
                    "{name} has {from} partitions already, and cannot have {count}: they never get fewer; {} or more would be",
                    from + 1
                ),
            ));
        }
        self.check_limits(&name, count, Growth::PartitionsFrom(from))?;
        let overrides = topic.overrides.clone();
        let old = topic_file(&name, from, &overrides);
        let new = TopicFile {
            partitions: count,
            ..old.clone()
        };
        let made = match self.data_dir.add_partitions(&new, from) {
            Ok(()) => {
                let config = self.in_force(Some(&overrides)).log_config();
                let start = StartFrom { is_clean: true };
                self.open_logs(&name, from..count, config, start, now)
                    .map_err(|error| errors::of_system(&error))
            }
            Err(CreateError::Storage(error)) => Err(errors::of_system(&error)),
            Err(CreateError::Refused(error)) => return Err(errors::of_system(&error)),
            Err(error @ (CreateError::Stranger(_) | CreateError::Damaged(_))) => {
                return Err(ApiError::new(ErrorCode::Storage, error.to_string()));
            }
        };
        let logs = made.inspect_err(|_| self.take_back_change(id, &old))?;
        let mut positions = Vec::new();
        for (number, log) in (from..).zip(logs) {
            let offset = log.log_start_offset();
            let key = self.partitions.insert(Partition::new(log, id, number));
            positions.push(Position {
                key,
                number,
                offset,
            });
        }
        // A write without a partition may go elsewhere from now on.
        self.last = None;
        if let Some(topic) = self.topics.get_mut(id) {
            topic.is_doubtful = false;
            let known = topic.partitions.first().copied();
            topic
                .partitions
                .extend(positions.iter().map(|position| position.key));
            if let Some(known) = known {
                self.delayed.add_partitions(known, &positions);
            }
        }
        self.share_anew(&name);
        log::info!("topic={name} has partitions={count}, before {from}");
        Ok(Response::Done)
    }

    /// A change failed, so the topic stays as it was, and its file must not come up otherwise at the next start.
    fn take_back_change(&mut self, id: TopicId, old: &TopicFile) {
        let result = self.data_dir.write_topic(old);
        if let Err(error) = &result {
            log::error!(
                "topic={} takes no appends until its file is restored: {error}",
                old.name
            );
        }
        // The next append looks at the topic again.
        self.last = None;
        if let Some(topic) = self.topics.get_mut(id) {
            topic.is_doubtful |= result.is_err();
        }
    }

    /// TRIM.
    pub(super) fn trim(&mut self, target: Target<'_>, offset: i64) -> Result<Response, ApiError> {
        check_own_name(target.topic)?;
        let (key, _) = self.find_partition(target)?;
        let log = &mut self.written(key)?.log;
        let before = log.log_start_offset();
        let trimmed = log.trim(offset);
        let (earliest, latest) = (log.log_start_offset(), log.high_watermark());
        trimmed.map_err(|error| self.explain_error(key, &error))?;
        if earliest > before {
            // Who stands below it hears of it; files that hold nothing else go soon.
            self.delayed.wake(key);
            self.retention.ask(key);
            let (topic, partition) = self.place(key);
            log::info!("trimmed topic={topic} partition={partition} earliest={earliest}");
        }
        Ok(Response::Trimmed { earliest, latest })
    }
}
