//! The one table of config names: what each takes, its range, its default, and where it may be set.
//!
//! A value is kept as one `i64` whatever its kind (a word is its place in the list of words), so that overrides, broker
//! defaults and built-in defaults are found by one rule: topic, then `--config`, then the table. Nothing is accepted and ignored.

#![forbid(unsafe_code)]

mod table;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::time::Duration;

use crate::api::{ApiError, ConfigSource, ErrorCode, quoted};
use crate::format::Layout;
use crate::storage::{CleanupPolicy, LogConfig, TimestampType};

pub use table::Config;
use table::{Entry, Scope, TABLE};

/// What ALTER says for a value that goes away.
const DEFAULT: &str = "default";

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

    /// These overrides with what ALTER says: a value replaces one, the word `default` takes it away.
    ///
    /// # Errors
    /// `INVALID_CONFIG` that names what is allowed.
    pub(super) fn altered(&self, configs: &[(&str, &str)]) -> Result<Self, ApiError> {
        let mut names = HashSet::new();
        let mut altered = self.clone();
        let mut set = Vec::new();
        for &(name, text) in configs {
            let entry = find(name, Scope::Topic)?;
            if !names.insert(name) {
                return Err(refuse(format!("{name} is given twice; give it once")));
            }
            altered.values.retain(|(config, _)| *config != entry.config);
            if text != DEFAULT {
                set.push((name, text));
            }
        }
        altered.add(Self::of_topic(set)?);
        Ok(altered)
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
            cleanup: match self.value(Config::CleanupPolicy) {
                0 => CleanupPolicy::Delete,
                1 => CleanupPolicy::Compact,
                _ => CleanupPolicy::CompactDelete,
            },
            retention_ms: self.value(Config::RetentionMs),
            retention_bytes: self.value(Config::RetentionBytes),
            delete_retention_ms: self.value(Config::DeleteRetentionMs),
            min_cleanable_dirty_ratio: f64::from_bits(
                self.value(Config::MinCleanableDirtyRatio).cast_unsigned(),
            ),
            min_compaction_lag_ms: self.value(Config::MinCompactionLagMs),
            max_compaction_lag_ms: self.value(Config::MaxCompactionLagMs),
        }
    }

    /// A config that counts milliseconds.
    pub(super) fn time(&self, config: Config) -> Duration {
        Duration::from_millis(self.value(config).unsigned_abs())
    }

    /// Whether values that are each allowed go together.
    ///
    /// # Errors
    /// `INVALID_CONFIG` that names both.
    pub fn check(&self) -> Result<(), ApiError> {
        let (min, max) = (
            self.value(Config::MinCompactionLagMs),
            self.value(Config::MaxCompactionLagMs),
        );
        if min <= max {
            return Ok(());
        }
        Err(refuse(format!(
            "min.compaction.lag.ms={min} is more than max.compaction.lag.ms={max}; the least must not be over the most"
        )))
    }

    /// A value whose range fits 31 bits.
    fn small(&self, config: Config) -> u32 {
        u32::try_from(self.value(config)).unwrap_or(u32::MAX)
    }
}

fn find(name: &str, place: Scope) -> Result<&'static Entry, ApiError> {
    let shown = quoted(name.as_bytes());
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
