//! The registry of topics: names, lookup, what is shown of them.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::{
    ApiError, ConfigSource, ErrorCode, Now, PartitionHealth, PartitionInfo, PartitionKey, Payload,
    Response, Target, TopicInfo, quoted,
};
use crate::fs::Fs;
use crate::murmur2;

use super::configs::{InForce, Overrides};
use super::partition::Partition;
use super::partitioner::Sticky;
use super::{Broker, errors};

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
    /// A deletion or a change failed in a way that may have left the topic's file otherwise: nothing is taken until the file is as it was.
    pub(super) is_doubtful: bool,
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
    pub(super) fn new(in_force: InForce<'_>) -> Self {
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

    /// Those whose file may say that they are deleted.
    pub(super) fn doubtful(&self) -> Vec<TopicId> {
        let doubtful = self.slots.iter().filter(|(_, topic)| topic.is_doubtful);
        doubtful.map(|(id, _)| TopicId(id)).collect()
    }

    /// The partitions of all topics that are wanted.
    pub(super) fn keys(&self, is_wanted: impl Fn(&Topic) -> bool) -> Vec<PartitionKey> {
        let topics = self.iter().filter(|topic| is_wanted(topic));
        topics
            .flat_map(|topic| topic.partitions.iter().copied())
            .collect()
    }

    /// In the order of their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Topic> {
        self.by_name.values().filter_map(|&id| self.get(id))
    }

    pub(super) fn insert(&mut self, topic: Topic) -> TopicId {
        let name = topic.name.as_bytes().into();
        let id = TopicId(self.slots.insert(topic));
        self.by_name.insert(name, id);
        id
    }

    pub(super) fn remove(&mut self, id: TopicId) -> Option<Topic> {
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

/// Whether a topic of that name belongs to the broker.
pub(super) fn is_internal(name: &str) -> bool {
    name.starts_with("__")
}

/// The name, where a client may write to, create or delete such a topic.
pub(super) fn check_own_name(name: &[u8]) -> Result<&str, ApiError> {
    let name = check_name(name)?;
    if is_internal(name) {
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
                return Ok(murmur2::partition_of(key, count));
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
