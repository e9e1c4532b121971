//! The one table of config names: what each takes, its range, its default, and where it may be set.
//!
//! A value is kept as one `i64` whatever its kind (a word is its place in the list of words), so that overrides, broker
//! defaults and built-in defaults are found by one rule: topic, then `--config`, then the table. A name that Kafka has and
//! that comes with a later version is refused with words that say so: nothing is accepted and ignored.

#![forbid(unsafe_code)]

use crate::api::{ApiError, ConfigSource, ErrorCode, quoted};
use crate::format::Layout;
use crate::storage::{LogConfig, TimestampType};

/// A config that this broker acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Config {
    /// `cleanup.policy`: only `delete` so far.
    CleanupPolicy,
    /// `flush.messages`: unsynced records of a partition that force a sync.
    FlushMessages,
    /// `flush.ms`: age of the first unsynced record that forces a sync.
    FlushMs,
    /// `index.interval.bytes`.
    IndexIntervalBytes,
    /// `max.message.bytes`.
    MaxMessageBytes,
    /// `message.timestamp.after.max.ms`.
    TimestampAfterMaxMs,
    /// `message.timestamp.type`.
    TimestampType,
    /// `record.version`.
    RecordVersion,
    /// `segment.bytes`.
    SegmentBytes,
    /// `segment.index.bytes`.
    SegmentIndexBytes,
    /// `segment.ms`.
    SegmentMs,
    /// `auto.create.topics.enable`.
    AutoCreateTopicsEnable,
    /// `num.partitions`.
    NumPartitions,
}

/// Where a config may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// On a topic, and with `--config` as the default of topics.
    Topic,
    /// With `--config` only.
    Broker,
}

/// What a config takes.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A plain number in this range.
    Number { min: i64, max: i64 },
    /// One of these words; the value is its place in the list.
    Word(&'static [&'static str]),
}

/// A line of the table.
#[derive(Debug)]
struct Entry {
    config: Config,
    name: &'static str,
    scope: Scope,
    kind: Kind,
    default: i64,
}

const INT_MAX: i64 = i32::MAX as i64;
const WEEK_MS: i64 = 7 * 24 * 3_600_000;
const TIMESTAMP_TYPES: &[&str] = &["CreateTime", "LogAppendTime"];
const FALSE_TRUE: &[&str] = &["false", "true"];

const fn number(config: Config, name: &'static str, min: i64, max: i64, default: i64) -> Entry {
    Entry {
        config,
        name,
        scope: Scope::Topic,
        kind: Kind::Number { min, max },
        default,
    }
}

/// Every config there is, sorted by name within its scope; the order is that of [`Config`].
const TABLE: [Entry; 13] = [
    Entry {
        config: Config::CleanupPolicy,
        name: "cleanup.policy",
        scope: Scope::Topic,
        kind: Kind::Word(&["delete"]),
        default: 0,
    },
    number(
        Config::FlushMessages,
        "flush.messages",
        1,
        i64::MAX,
        i64::MAX,
    ),
    number(Config::FlushMs, "flush.ms", 0, i64::MAX, i64::MAX),
    number(
        Config::IndexIntervalBytes,
        "index.interval.bytes",
        0,
        INT_MAX,
        4096,
    ),
    number(
        Config::MaxMessageBytes,
        "max.message.bytes",
        0,
        INT_MAX,
        1_048_588,
    ),
    number(
        Config::TimestampAfterMaxMs,
        "message.timestamp.after.max.ms",
        0,
        i64::MAX,
        3_600_000,
    ),
    Entry {
        config: Config::TimestampType,
        name: "message.timestamp.type",
        scope: Scope::Topic,
        kind: Kind::Word(TIMESTAMP_TYPES),
        default: 0,
    },
    number(Config::RecordVersion, "record.version", 1, 2, 2),
    number(Config::SegmentBytes, "segment.bytes", 14, INT_MAX, 1 << 30),
    number(
        Config::SegmentIndexBytes,
        "segment.index.bytes",
        24,
        INT_MAX,
        10 << 20,
    ),
    number(Config::SegmentMs, "segment.ms", 1, i64::MAX, WEEK_MS),
    Entry {
        config: Config::AutoCreateTopicsEnable,
        name: "auto.create.topics.enable",
        scope: Scope::Broker,
        kind: Kind::Word(FALSE_TRUE),
        default: 1,
    },
    Entry {
        config: Config::NumPartitions,
        name: "num.partitions",
        scope: Scope::Broker,
        kind: Kind::Number {
            min: 1,
            max: INT_MAX,
        },
        default: 1,
    },
];

/// Names that the protocol has and that come with later versions.
const LATER: [&str; 12] = [
    "delete.retention.ms",
    "file.delete.delay.ms",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.initial.task.delay.ms",
    "log.retention.check.interval.ms",
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "offsets.retention.minutes",
    "retention.bytes",
    "retention.ms",
];

impl Kind {
    /// The value that the text means; `None` where it is none of this kind.
    fn parse(self, text: &str) -> Option<i64> {
        match self {
            Self::Number { min, max } => {
                let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                let value = text.parse().ok().filter(|_| is_plain)?;
                (min..=max).contains(&value).then_some(value)
            }
            Self::Word(words) => {
                let place = words.iter().position(|&word| word == text)?;
                i64::try_from(place).ok()
            }
        }
    }

    /// The text that means the value.
    fn show(self, value: i64) -> String {
        match self {
            Self::Number { .. } => value.to_string(),
            Self::Word(words) => {
                let word = usize::try_from(value)
                    .ok()
                    .and_then(|place| words.get(place));
                word.map(ToString::to_string).unwrap_or_default()
            }
        }
    }

    /// What is allowed, for a person.
    fn allowed(self) -> String {
        match self {
            Self::Number { min, max } => format!("a plain number from {min} to {max}"),
            Self::Word(words) => words.join(" or "),
        }
    }
}

/// Values that were set: the overrides of a topic, or what `--config` said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    values: Vec<(Config, i64)>,
}

impl Overrides {
    /// Reads what CREATE (or a topic's file) says.
    ///
    /// # Errors
    /// `INVALID_CONFIG` that names what is allowed.
    pub fn of_topic<'a>(
        configs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ApiError> {
        Self::parse(configs, Scope::Topic)
    }

    /// Reads what `--config` says.
    ///
    /// # Errors
    /// `INVALID_CONFIG` that names what is allowed.
    pub fn of_broker<'a>(
        configs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ApiError> {
        Self::parse(configs, Scope::Broker)
    }

    fn parse<'a>(
        configs: impl IntoIterator<Item = (&'a str, &'a str)>,
        place: Scope,
    ) -> Result<Self, ApiError> {
        let mut overrides = Self::default();
        for (name, text) in configs {
            let entry = find(name, place)?;
            let value = entry.kind.parse(text).ok_or_else(|| {
                refuse(format!(
                    "{name}={} is not allowed; {name} takes {}",
                    quoted(text.as_bytes()),
                    entry.kind.allowed()
                ))
            })?;
            if overrides.value(entry.config).is_some() {
                return Err(refuse(format!("{name} is given twice; give it once")));
            }
            overrides.values.push((entry.config, value));
        }
        Ok(overrides)
    }

    /// Takes in others; none is in both.
    pub(super) fn add(&mut self, others: Self) {
        self.values.extend(others.values);
    }

    fn value(&self, config: Config) -> Option<i64> {
        self.values
            .iter()
            .find(|(set, _)| *set == config)
            .map(|&(_, value)| value)
    }

    /// Names and values, as a topic's file holds them.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, String)> {
        TABLE.iter().filter_map(|entry| {
            self.value(entry.config)
                .map(|value| (entry.name, entry.kind.show(value)))
        })
    }
}

/// What is in force for a topic, or for the broker itself where there are no overrides of a topic.
#[derive(Debug, Clone, Copy)]
pub struct InForce<'a> {
    /// What `--config` said.
    pub broker: &'a Overrides,
    /// The topic's own.
    pub topic: Option<&'a Overrides>,
}

impl InForce<'_> {
    fn get(&self, entry: &Entry) -> (i64, ConfigSource) {
        if let Some(value) = self.topic.and_then(|topic| topic.value(entry.config)) {
            (value, ConfigSource::Topic)
        } else if let Some(value) = self.broker.value(entry.config) {
            (value, ConfigSource::Broker)
        } else {
            (entry.default, ConfigSource::Default)
        }
    }

    /// The value of a config.
    #[must_use]
    pub fn value(&self, config: Config) -> i64 {
        TABLE
            .iter()
            .find(|entry| entry.config == config)
            .map_or(0, |entry| self.get(entry).0)
    }

    /// Every config of a topic: name, value, where it comes from; sorted by name.
    #[must_use]
    pub fn describe(&self) -> Vec<(&'static str, String, ConfigSource)> {
        TABLE
            .iter()
            .filter(|entry| entry.scope == Scope::Topic)
            .map(|entry| {
                let (value, source) = self.get(entry);
                (entry.name, entry.kind.show(value), source)
            })
            .collect()
    }

    /// Whether a write to a topic that is missing creates it.
    #[must_use]
    pub fn creates_topics(&self) -> bool {
        self.value(Config::AutoCreateTopicsEnable) == 1
    }

    /// How many partitions a topic gets where nothing is said.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.small(Config::NumPartitions)
    }

    /// What the engine acts on.
    #[must_use]
    pub fn log_config(&self) -> LogConfig {
        LogConfig {
            segment_bytes: self.small(Config::SegmentBytes),
            segment_ms: self.value(Config::SegmentMs),
            segment_index_bytes: self.small(Config::SegmentIndexBytes),
            index_interval_bytes: self.small(Config::IndexIntervalBytes),
            max_message_bytes: self.small(Config::MaxMessageBytes),
            record_version: if self.value(Config::RecordVersion) == 1 {
                Layout::V1
            } else {
                Layout::V2
            },
            timestamp_type: if self.value(Config::TimestampType) == 0 {
                TimestampType::CreateTime
            } else {
                TimestampType::LogAppendTime
            },
            timestamp_after_max_ms: self.value(Config::TimestampAfterMaxMs),
            ..LogConfig::default()
        }
    }

    /// A value whose range fits 31 bits.
    fn small(&self, config: Config) -> u32 {
        u32::try_from(self.value(config)).unwrap_or(u32::MAX)
    }
}

fn find(name: &str, place: Scope) -> Result<&'static Entry, ApiError> {
    let shown = quoted(name.as_bytes());
    if LATER.contains(&name) {
        return Err(refuse(format!(
            "{shown} comes with a later version of this broker, which would ignore it; leave it out"
        )));
    }
    let Some(entry) = TABLE.iter().find(|entry| entry.name == name) else {
        return Err(refuse(format!(
            "{shown} is no config; there are {}",
            names(place)
        )));
    };
    match (entry.scope, place) {
        (Scope::Broker, Scope::Topic) => Err(refuse(format!(
            "{shown} belongs to the broker: give it with --config at the start; a topic takes {}",
            names(place)
        ))),
        (Scope::Topic, Scope::Topic | Scope::Broker) | (Scope::Broker, Scope::Broker) => Ok(entry),
    }
}

fn names(place: Scope) -> String {
    let names: Vec<_> = TABLE
        .iter()
        .filter(|entry| entry.scope == Scope::Topic || place == Scope::Broker)
        .map(|entry| entry.name)
        .collect();
    names.join(", ")
}

fn refuse(message: String) -> ApiError {
    ApiError::new(ErrorCode::InvalidConfig, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str, value: &str) -> Result<Overrides, ApiError> {
        Overrides::of_topic([(name, value)])
    }

    fn broker(name: &str, value: &str) -> Result<Overrides, ApiError> {
        Overrides::of_broker([(name, value)])
    }

    #[test]
    fn the_table_is_in_the_order_of_the_enum_and_of_the_names() {
        for (place, entry) in TABLE.iter().enumerate() {
            assert_eq!(entry.config as usize, place, "{}", entry.name);
            if let Kind::Number { min, max } = entry.kind {
                assert!((min..=max).contains(&entry.default), "{}", entry.name);
            }
        }
        for scope in [Scope::Topic, Scope::Broker] {
            let names = TABLE
                .iter()
                .filter(|entry| entry.scope == scope)
                .map(|entry| entry.name);
            assert!(names.is_sorted(), "{scope:?}");
        }
    }

    #[test]
    fn each_number_is_taken_at_its_ends_and_refused_beyond_them() {
        for entry in &TABLE {
            let Kind::Number { min, max } = entry.kind else {
                continue;
            };
            for good in [min, max] {
                let overrides = broker(entry.name, &good.to_string()).expect("in range");
                assert_eq!(overrides.value(entry.config), Some(good));
            }
            for bad in [i128::from(min) - 1, i128::from(max) + 1] {
                let error = broker(entry.name, &bad.to_string()).expect_err("out of range");
                assert_eq!(error.code, ErrorCode::InvalidConfig);
                assert!(
                    error.message.contains(&format!("from {min} to {max}")),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn values_that_are_none_are_refused_by_name() {
        for (name, value) in [
            ("segment.bytes", ""),
            ("segment.bytes", "+100"),
            ("segment.bytes", "-1"),
            ("segment.bytes", "1e6"),
            ("segment.bytes", " 100"),
            ("segment.bytes", "0x10"),
            ("record.version", "3"),
            ("record.version", "0"),
            ("message.timestamp.type", "createtime"),
            ("message.timestamp.type", ""),
            ("cleanup.policy", "compact"),
            ("cleanup.policy", "compact,delete"),
            ("segment.byte", "100"),
            ("", "1"),
            ("retention.ms", "1000"),
            ("num.partitions", "3"),
            ("auto.create.topics.enable", "true"),
        ] {
            let error = topic(name, value).expect_err(name);
            assert_eq!(error.code, ErrorCode::InvalidConfig, "{name}={value}");
            assert!(error.message.contains(name), "{error}");
        }
        let error = topic("segment.byte", "100").expect_err("unknown");
        assert!(
            error.message.contains("segment.bytes"),
            "names what is allowed: {error}"
        );
        let error = topic("retention.ms", "1000").expect_err("later");
        assert!(error.message.contains("later version"), "{error}");
        let twice = Overrides::of_broker([("flush.ms", "1"), ("flush.ms", "1")]);
        assert!(twice.expect_err("twice").message.contains("twice"));
    }

    #[test]
    fn a_topic_comes_before_the_broker_and_the_broker_before_the_default() {
        let broker = Overrides::of_broker([
            ("segment.bytes", "1000"),
            ("record.version", "1"),
            ("num.partitions", "3"),
        ])
        .expect("good");
        let own = Overrides::of_topic([
            ("segment.bytes", "0500"),
            ("message.timestamp.type", "LogAppendTime"),
        ])
        .expect("good");
        let in_force = InForce {
            broker: &broker,
            topic: Some(&own),
        };
        let config = in_force.log_config();
        assert_eq!(config.segment_bytes, 500);
        assert_eq!(config.record_version, Layout::V1);
        assert_eq!(config.timestamp_type, TimestampType::LogAppendTime);
        assert_eq!(config.max_message_bytes, 1_048_588);
        assert_eq!(
            (in_force.partitions(), in_force.creates_topics()),
            (3, true)
        );
        let lines = in_force.describe();
        let line = |name| {
            lines
                .iter()
                .find(|line| line.0 == name)
                .map(|l| (l.1.as_str(), l.2))
        };
        assert_eq!(line("segment.bytes"), Some(("500", ConfigSource::Topic)));
        assert_eq!(line("record.version"), Some(("1", ConfigSource::Broker)));
        assert_eq!(
            line("segment.ms"),
            Some(("604800000", ConfigSource::Default))
        );
        assert_eq!(
            line("cleanup.policy"),
            Some(("delete", ConfigSource::Default))
        );
        assert_eq!(line("num.partitions"), None, "not a topic's");
        let back = Overrides::of_topic(own.iter().map(|(n, v)| (n, v.leak() as &str)));
        assert_eq!(
            back.map(|o| o.iter().count()),
            Ok(2),
            "what is written can be read"
        );
    }
}
