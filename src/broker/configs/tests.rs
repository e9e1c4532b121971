//! What the configs take, and whose value counts.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use super::table::Kind;
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
        ("cleanup.policy", "compact, delete"),
        ("cleanup.policy", "compact,compact"),
        ("cleanup.policy", ""),
        ("segment.byte", "100"),
        ("", "1"),
        ("retention.ms", "-2"),
        ("retention.ms", "-01"),
        ("retention.bytes", "-"),
        ("file.delete.delay.ms", "-1"),
        ("min.cleanable.dirty.ratio", "1.01"),
        ("min.cleanable.dirty.ratio", "-0.1"),
        ("min.cleanable.dirty.ratio", ".5"),
        ("min.cleanable.dirty.ratio", "1e-1"),
        ("min.cleanable.dirty.ratio", "NaN"),
        ("max.compaction.lag.ms", "0"),
        ("log.cleaner.backoff.ms", "5"),
        ("offsets.retention.minutes", "5"),
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
    let error = topic("offsets.retention.minutes", "1").expect_err("the broker's");
    assert!(error.message.contains("belongs to the broker"), "{error}");
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

#[test]
fn cleanup_and_retention_mean_what_they_say() {
    let nothing = Overrides::default();
    let config = |name, value| {
        let own = topic(name, value).expect("good");
        InForce {
            broker: &nothing,
            topic: Some(&own),
        }
        .log_config()
    };
    let log_config = InForce {
        broker: &nothing,
        topic: None,
    }
    .log_config();
    assert_eq!(log_config, LogConfig::default(), "one set of defaults");
    for (text, policy) in [
        ("delete", CleanupPolicy::Delete),
        ("compact", CleanupPolicy::Compact),
        ("compact,delete", CleanupPolicy::CompactDelete),
        ("delete,compact", CleanupPolicy::CompactDelete),
    ] {
        assert_eq!(config("cleanup.policy", text).cleanup, policy);
    }
    assert_eq!(config("retention.ms", "-1").retention_ms, -1);
    assert_eq!(config("retention.bytes", "7").retention_bytes, 7);
    for (text, ratio) in [("0", 0.0), ("1", 1.0), ("1.0", 1.0), ("0.25", 0.25)] {
        let config = config("min.cleanable.dirty.ratio", text);
        assert!((config.min_cleanable_dirty_ratio - ratio).abs() < 1e-12);
    }
}

#[test]
fn alter_sets_replaces_and_takes_away() {
    let own = Overrides::of_topic([("segment.bytes", "100"), ("flush.ms", "5")]).expect("good");
    let altered = own.altered(&[
        ("segment.bytes", "200"),
        ("flush.ms", "default"),
        ("retention.ms", "-1"),
    ]);
    let lines: Vec<_> = altered.expect("good").iter().collect();
    assert_eq!(
        lines,
        [
            ("retention.ms", "-1".to_owned()),
            ("segment.bytes", "200".to_owned())
        ]
    );
    for bad in [
        [("flush.ms", "1"), ("flush.ms", "default")].as_slice(),
        &[("flush.ms", "Default")],
        &[("flush.minutes", "default")],
        &[("num.partitions", "default")],
    ] {
        let error = own.altered(bad).expect_err("refused");
        assert_eq!(error.code, ErrorCode::InvalidConfig);
    }
}

#[test]
fn the_least_lag_is_not_over_the_most() {
    let broker = broker("max.compaction.lag.ms", "10").expect("good");
    let check = |lag| {
        let own = topic("min.compaction.lag.ms", lag).expect("good");
        InForce {
            broker: &broker,
            topic: Some(&own),
        }
        .check()
    };
    assert_eq!(check("10"), Ok(()));
    let error = check("11").expect_err("over");
    assert!(
        error.message.contains("min.compaction.lag.ms=11"),
        "{error}"
    );
    assert!(
        error.message.contains("max.compaction.lag.ms=10"),
        "{error}"
    );
}
