//! Topics, offsets and groups: one request, one answer.

#![forbid(unsafe_code)]

use crate::addr::Address;
use crate::api::{
    ConfigSource, ErrorCode, OffsetSpec, PartitionHealth, PartitionInfo, TimeSpec, TopicInfo,
};

use super::Error;
use super::wire::{Connection, number_of, numbers, text_of, topic_word, word};

/// A config of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicConfig {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Where that comes from.
    pub source: ConfigSource,
}

/// What DESCRIBE tells of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Every config.
    pub configs: Vec<TopicConfig>,
    /// Every partition, in the order of their numbers.
    pub partitions: Vec<PartitionInfo>,
}

/// Where a partition begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionOffsets {
    /// Its number.
    pub partition: u32,
    /// The log start offset.
    pub earliest: i64,
    /// The high watermark: the offset of the next record that a reader will see.
    pub latest: i64,
}

/// How far a group is with a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The partition's number.
    pub partition: u32,
    /// The next offset that the group wants; `None` where nothing is committed.
    pub offset: Option<i64>,
    /// The high watermark.
    pub latest: i64,
    /// Records between the two (from the earliest where nothing is committed).
    pub lag: i64,
    /// The address of the consumer that holds the partition, where one does.
    pub owner: Option<String>,
}

/// A consumer group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupInfo {
    /// Its name.
    pub name: String,
    /// Connections that consume in it.
    pub members: u32,
    /// Topics that it consumes or has committed offsets of.
    pub topics: u32,
}

/// A connection for what an administrator asks. A lost one is made again by the next request.
///
/// ```
/// use mini_broker::client::Admin;
///
/// let broker = mini_broker::testing::Broker::start();
/// let mut admin = Admin::connect(broker.addr())?;
/// admin.create("orders", Some(3), &[("retention.ms", "-1")])?;
/// assert_eq!(admin.offsets("orders")?.len(), 3);
/// # Ok::<(), mini_broker::client::Error>(())
/// ```
#[derive(Debug)]
pub struct Admin {
    address: Address,
    /// `None` after it was lost.
    connection: Option<Connection>,
}

impl Admin {
    /// Connects to `host:port` or `unix:PATH`.
    ///
    /// # Errors
    /// [`Error::Usage`] where that is no address, [`Error::Connect`] where nobody listens there.
    pub fn connect(address: &str) -> Result<Self, Error> {
        let address: Address = address.parse().map_err(Error::Usage)?;
        let mut admin = Self::lazy(address);
        admin.open()?;
        Ok(admin)
    }

    /// One that connects when it is needed.
    pub(super) fn lazy(address: Address) -> Self {
        Self {
            address,
            connection: None,
        }
    }

    fn open(&mut self) -> Result<&mut Connection, Error> {
        if self.connection.is_none() {
            self.connection = Some(Connection::open(&self.address)?);
        }
        self.connection.as_mut().ok_or(Error::Closed)
    }

    /// Asks over a connection; one that fails is not used again.
    pub(super) fn with<T>(
        &mut self,
        ask: impl FnOnce(&mut Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let result = ask(self.open()?);
        let is_sound = matches!(&result, Ok(_) | Err(Error::Refused(_) | Error::Usage(_)));
        if !is_sound {
            self.connection = None;
        }
        result
    }

    fn done(&mut self, line: &str) -> Result<(), Error> {
        self.with(|connection| connection.ask(line)).map(drop)
    }

    /// Creates a topic, with `num.partitions` partitions of the broker's where none are given.
    ///
    /// # Errors
    /// `TOPIC_EXISTS`, `INVALID_TOPIC`, `INVALID_CONFIG`, or the broker cannot be reached.
    pub fn create(
        &mut self,
        topic: &str,
        partitions: Option<u32>,
        configs: &[(&str, &str)],
    ) -> Result<(), Error> {
        let mut line = format!("CREATE {}", topic_word(topic)?);
        if let Some(partitions) = partitions {
            line += " partitions=";
            line += &partitions.to_string();
        }
        line += &config_words(configs)?;
        self.done(&line)
    }

    /// Deletes a topic with all that is in it.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, or the broker cannot be reached.
    pub fn delete(&mut self, topic: &str) -> Result<(), Error> {
        self.done(&format!("DELETE {}", topic_word(topic)?))
    }

    /// Changes configs of a topic; the value `default` takes the topic's own away.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, `INVALID_CONFIG`, or the broker cannot be reached.
    pub fn alter(&mut self, topic: &str, configs: &[(&str, &str)]) -> Result<(), Error> {
        let line = format!("ALTER {}{}", topic_word(topic)?, config_words(configs)?);
        self.done(&line)
    }

    /// Gives a topic more partitions: `count` in all.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, `BAD_ARGUMENT` where that would not be more, or the broker cannot be reached.
    pub fn partitions(&mut self, topic: &str, count: u32) -> Result<(), Error> {
        self.done(&format!("PARTITIONS {} {count}", topic_word(topic)?))
    }

    /// Makes the records below an offset go; returns the earliest and the latest offset then.
    ///
    /// # Errors
    /// `OFFSET_OUT_OF_RANGE`, an unknown partition, or the broker cannot be reached.
    pub fn trim(&mut self, topic: &str, partition: u32, offset: i64) -> Result<(i64, i64), Error> {
        let line = format!("TRIM {}/{partition} {offset}", topic_word(topic)?);
        let reply = self.with(|connection| connection.ask(&line))?;
        let [earliest, latest] = numbers(&reply)?;
        Ok((earliest, latest))
    }

    /// Every topic, the broker's own too.
    ///
    /// # Errors
    /// The broker cannot be reached.
    pub fn topics(&mut self) -> Result<Vec<TopicInfo>, Error> {
        self.with(|connection| {
            connection.list("TOPICS", |fields| {
                let [name, partitions, records, bytes] = fields else {
                    return None;
                };
                Some(TopicInfo {
                    name: text_of(name)?,
                    partitions: number_of(partitions)?,
                    records: number_of(records)?,
                    bytes: number_of(bytes)?,
                })
            })
        })
    }

    /// Configs and partitions of a topic.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, or the broker cannot be reached.
    pub fn describe(&mut self, topic: &str) -> Result<Description, Error> {
        let line = format!("DESCRIBE {}", topic_word(topic)?);
        let rows = self.with(|connection| connection.list(&line, described))?;
        let mut description = Description {
            configs: Vec::new(),
            partitions: Vec::new(),
        };
        for row in rows {
            match row {
                Described::Config(config) => description.configs.push(config),
                Described::Partition(partition) => description.partitions.push(partition),
            }
        }
        Ok(description)
    }

    /// Where the partitions of a topic begin and end, in the order of their numbers.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, or the broker cannot be reached.
    pub fn offsets(&mut self, topic: &str) -> Result<Vec<PartitionOffsets>, Error> {
        let line = format!("OFFSETS {}", topic_word(topic)?);
        self.with(|connection| {
            connection.list(&line, |fields| {
                let [partition, earliest, latest] = fields else {
                    return None;
                };
                Some(PartitionOffsets {
                    partition: number_of(partition)?,
                    earliest: number_of(earliest)?,
                    latest: number_of(latest)?,
                })
            })
        })
    }

    /// Offset and timestamp of the first record at or after a time; `None` where there is none.
    ///
    /// # Errors
    /// An unknown partition, or the broker cannot be reached.
    pub fn at(
        &mut self,
        topic: &str,
        partition: u32,
        time: TimeSpec,
    ) -> Result<Option<(i64, i64)>, Error> {
        let line = format!(
            "AT {}/{partition} {}",
            topic_word(topic)?,
            time_words(time)?
        );
        let reply = self.with(|connection| connection.ask(&line))?;
        let [offset, timestamp] = numbers(&reply)?;
        Ok((offset >= 0).then_some((offset, timestamp)))
    }

    /// The offset, as a number, that is meant: one that compaction removed becomes the next there is.
    ///
    /// # Errors
    /// `OFFSET_OUT_OF_RANGE`, an unknown partition, or the broker cannot be reached.
    pub fn resolve(
        &mut self,
        topic: &str,
        partition: u32,
        offset: OffsetSpec,
    ) -> Result<i64, Error> {
        let line = format!(
            "FETCH {}/{partition} {} max_bytes=1",
            topic_word(topic)?,
            offset_words(offset)?
        );
        self.with(|connection| {
            let reply = match connection.ask(&line) {
                Err(error) if error.is_refusal(ErrorCode::Corrupt) => {
                    return corrupt_range(&error).map(|(offset, _)| offset).ok_or(error);
                }
                other => other?,
            };
            let [bytes, first] = numbers(&reply)?;
            let bytes = usize::try_from(bytes).map_err(|_| Error::unexpected(&reply))?;
            connection.body(bytes, &mut Vec::new())?;
            Ok(first)
        })
    }

    /// How far a group is with the partitions of a topic.
    ///
    /// # Errors
    /// `UNKNOWN_GROUP`, `UNKNOWN_TOPIC`, or the broker cannot be reached.
    pub fn committed(&mut self, group: &str, topic: &str) -> Result<Vec<Committed>, Error> {
        let line = format!("COMMITTED {} {}", word("group", group)?, topic_word(topic)?);
        self.with(|connection| {
            connection.list(&line, |fields| {
                let [partition, committed, latest, lag, owner] = fields else {
                    return None;
                };
                let offset: i64 = number_of(committed)?;
                let owner = text_of(owner)?;
                Some(Committed {
                    partition: number_of(partition)?,
                    offset: (offset >= 0).then_some(offset),
                    latest: number_of(latest)?,
                    lag: number_of(lag)?,
                    owner: (owner != "-").then_some(owner),
                })
            })
        })
    }

    /// Commits the next offset that a group wants of a partition; it may go back. While a consumer holds the partition, its next
    /// acknowledgement wins.
    ///
    /// # Errors
    /// `OFFSET_OUT_OF_RANGE` beyond the log end, an unknown partition, or the broker cannot be reached.
    pub fn commit(
        &mut self,
        group: &str,
        topic: &str,
        partition: u32,
        next_offset: OffsetSpec,
    ) -> Result<(), Error> {
        self.done(&format!(
            "COMMIT {} {}/{partition} {}",
            word("group", group)?,
            topic_word(topic)?,
            offset_words(next_offset)?
        ))
    }

    /// Every group.
    ///
    /// # Errors
    /// The broker cannot be reached.
    pub fn groups(&mut self) -> Result<Vec<GroupInfo>, Error> {
        self.with(|connection| {
            connection.list("GROUPS", |fields| {
                let [name, members, topics] = fields else {
                    return None;
                };
                Some(GroupInfo {
                    name: text_of(name)?,
                    members: number_of(members)?,
                    topics: number_of(topics)?,
                })
            })
        })
    }

    /// The broker's counters, by name.
    ///
    /// # Errors
    /// The broker cannot be reached.
    pub fn stats(&mut self) -> Result<Vec<(String, u64)>, Error> {
        self.with(|connection| {
            connection.list("STATS", |fields| {
                let [name, value] = fields else {
                    return None;
                };
                Some((text_of(name)?, number_of(value)?))
            })
        })
    }
}

/// ` name=value` for each.
fn config_words(configs: &[(&str, &str)]) -> Result<String, Error> {
    let mut words = String::new();
    for (name, value) in configs {
        words.push(' ');
        words += word("config", name)?;
        words.push('=');
        words += word("value of a config", value)?;
    }
    Ok(words)
}

/// An offset as a request names it.
pub(super) fn offset_words(offset: OffsetSpec) -> Result<String, Error> {
    Ok(match offset {
        OffsetSpec::Offset(offset) if offset < 0 => {
            return Err(Error::Usage(format!("{offset} is no offset: 0 or more")));
        }
        OffsetSpec::Offset(offset) => offset.to_string(),
        OffsetSpec::Earliest => "earliest".to_owned(),
        // The last none begin where the last end.
        OffsetSpec::Latest | OffsetSpec::Last(0) => "latest".to_owned(),
        OffsetSpec::Last(count) => format!("-{count}"),
        OffsetSpec::Time(time) => format!("@{}", time_words(time)?),
    })
}

fn time_words(time: TimeSpec) -> Result<String, Error> {
    match time {
        TimeSpec::At(ms) if ms >= 0 => Ok(ms.to_string()),
        TimeSpec::At(ms) => rfc3339(ms),
        // Seconds are the smallest unit of the wire; a record a little older does no harm, one left out would.
        TimeSpec::Ago(ms) if ms >= 0 => {
            let seconds = ms / 1000 + i64::from(ms % 1000 > 0);
            Ok(format!("-{seconds}s"))
        }
        TimeSpec::Ago(ms) => Err(Error::Usage(format!(
            "{ms} ms ago would be in the future: name the time itself"
        ))),
    }
}

/// Times before 1970 have no plain number.
fn rfc3339(ms: i64) -> Result<String, Error> {
    let out_of_range = || Error::Usage(format!("{ms} ms is no time that can be written"));
    let nanos = i128::from(ms) * 1_000_000;
    time::OffsetDateTime::from_unix_timestamp_nanos(nanos)
        .map_err(|_| out_of_range())?
        .format(&time::format_description::well_known::Rfc3339)
        .map_err(|_| out_of_range())
}

/// The `offset=` and `next=` of a CORRUPT.
pub(super) fn corrupt_range(error: &Error) -> Option<(i64, i64)> {
    let Error::Refused(refusal) = error else {
        return None;
    };
    let field = |name: &str| {
        let words = refusal.message.split(' ');
        words
            .filter_map(|word| word.strip_prefix(name))
            .find_map(|value| value.parse().ok())
    };
    Some((field("offset=")?, field("next=")?))
}

enum Described {
    Config(TopicConfig),
    Partition(PartitionInfo),
}

fn described(fields: &[Vec<u8>]) -> Option<Described> {
    match fields {
        [kind, name, value, source] if kind == b"config" => Some(Described::Config(TopicConfig {
            name: text_of(name)?,
            value: text_of(value)?,
            source: match source.as_slice() {
                b"topic" => ConfigSource::Topic,
                b"broker" => ConfigSource::Broker,
                b"default" => ConfigSource::Default,
                _ => return None,
            },
        })),
        [kind, number, earliest, latest, bytes, segments, health] if kind == b"partition" => {
            Some(Described::Partition(PartitionInfo {
                partition: number_of(number)?,
                earliest: number_of(earliest)?,
                latest: number_of(latest)?,
                bytes: number_of(bytes)?,
                segments: number_of(segments)?,
                health: match health.as_slice() {
                    b"ok" => PartitionHealth::Ok,
                    b"read_only" => PartitionHealth::ReadOnly,
                    b"damaged" => PartitionHealth::Damaged,
                    _ => return None,
                },
            }))
        }
        _ => None,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_named_as_the_protocol_names_them() {
        for (offset, words) in [
            (OffsetSpec::Offset(7), "7"),
            (OffsetSpec::Earliest, "earliest"),
            (OffsetSpec::Latest, "latest"),
            (OffsetSpec::Last(3), "-3"),
            (OffsetSpec::Last(0), "latest"),
            (OffsetSpec::Time(TimeSpec::At(5)), "@5"),
            (
                OffsetSpec::Time(TimeSpec::At(-1)),
                "@1969-12-31T23:59:59.999Z",
            ),
            (OffsetSpec::Time(TimeSpec::Ago(1001)), "@-2s"),
        ] {
            assert_eq!(offset_words(offset).unwrap(), words);
        }
        for wrong in [
            OffsetSpec::Offset(-1),
            OffsetSpec::Time(TimeSpec::Ago(-1)),
            OffsetSpec::Time(TimeSpec::At(i64::MIN)),
        ] {
            assert!(offset_words(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn damage_names_its_range() {
        let error = Error::refused(
            b"ERR CORRUPT orders/0 offset=12 position=900 next=15 segment=00000000000000000000.log",
        );
        assert_eq!(corrupt_range(&error), Some((12, 15)));
        assert_eq!(
            corrupt_range(&Error::refused(b"ERR CORRUPT orders/0")),
            None
        );
    }
}
