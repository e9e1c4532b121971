//! The consumer, with assigned partitions.

use std::fs;
use std::time::Duration;

use mini_broker::client::{
    Admin, Consumer, ConsumerOptions, Error, ErrorCode, Message, OffsetSpec, Producer, Reset,
    TimeSpec,
};
use mini_broker::testing::Broker;

use crate::PATIENCE;

/// A broker with `records` records in each of `partitions` partitions: timestamps 1000, 1001 and so on, values of 100 bytes.
fn filled(partitions: u32, records: i64) -> Broker {
    let broker = Broker::start();
    fill(&broker, partitions, records);
    broker
}

fn fill(broker: &Broker, partitions: u32, records: i64) {
    let mut admin = Admin::connect(broker.addr()).unwrap();
    let keep = [("retention.ms", "-1")];
    admin.create("t", Some(partitions), &keep).unwrap();
    let producer = Producer::connect(broker.addr()).unwrap();
    for n in 0..records {
        for partition in 0..partitions {
            let value = format!("{n:0100}");
            let message = Message::to("t").partition(partition).value(&value);
            producer.send(&message.timestamp(1000 + n)).unwrap();
        }
    }
    producer.close().unwrap();
}

fn offsets(consumer: &mut Consumer) -> Vec<(u32, i64)> {
    let records = consumer.poll(PATIENCE).unwrap();
    records.iter().map(|r| (r.partition, r.offset)).collect()
}

fn first(consumer: &mut Consumer) -> i64 {
    offsets(consumer)[0].1
}

#[test]
fn a_seek_goes_to_offsets_ends_and_times() {
    let broker = filled(1, 1000);
    let mut consumer = Consumer::connect(broker.addr()).unwrap();
    consumer.assign("t", &[0], OffsetSpec::Earliest).unwrap();
    assert_eq!(consumer.position("t", 0), None);
    assert_eq!(first(&mut consumer), 0);
    for (to, expected) in [
        (OffsetSpec::Offset(500), 500),
        (OffsetSpec::Earliest, 0),
        (OffsetSpec::Last(3), 997),
        (OffsetSpec::Time(TimeSpec::At(1600)), 600),
        (OffsetSpec::Offset(7), 7),
    ] {
        consumer.seek("t", 0, to).unwrap();
        assert_eq!(first(&mut consumer), expected, "{to:?}");
    }
    consumer.seek("t", 0, OffsetSpec::Latest).unwrap();
    assert!(consumer.poll(Duration::ZERO).unwrap().is_empty());
    assert_eq!(consumer.position("t", 0), Some(1000));
    assert!(matches!(
        consumer.seek("t", 1, OffsetSpec::Latest),
        Err(Error::Usage(_))
    ));
    assert!(matches!(
        consumer.seek("t", 0, OffsetSpec::Offset(-1)),
        Err(Error::Usage(_))
    ));
}

#[test]
fn partitions_take_turns_and_each_is_in_order() {
    let broker = filled(3, 300);
    let options = ConsumerOptions {
        fetch_bytes: 2000,
        ..ConsumerOptions::default()
    };
    let mut consumer = Consumer::with_options(broker.addr(), options).unwrap();
    consumer.assign_all("t", OffsetSpec::Earliest).unwrap();
    let mut next = [0_i64; 3];
    while next.iter().sum::<i64>() < 900 {
        for (partition, offset) in offsets(&mut consumer) {
            let partition = usize::try_from(partition).unwrap();
            assert_eq!(offset, next[partition]);
            next[partition] += 1;
        }
        let spread = next.iter().max().unwrap() - next.iter().min().unwrap();
        assert!(spread <= 60, "one partition is far behind: {next:?}");
    }
    assert!(consumer.poll(Duration::ZERO).unwrap().is_empty());
}

#[test]
fn what_comes_later_is_seen_in_whichever_partition_it_is() {
    let broker = filled(3, 0);
    let producer = Producer::connect(broker.addr()).unwrap();
    for partitions in [&[0_u32][..], &[0, 1, 2]] {
        let mut consumer = Consumer::connect(broker.addr()).unwrap();
        consumer
            .assign("t", partitions, OffsetSpec::Latest)
            .unwrap();
        assert!(consumer.poll(Duration::from_millis(20)).unwrap().is_empty());
        for &partition in partitions {
            let message = Message::to("t").partition(partition).value("late");
            let placed = producer.send(&message).unwrap().wait().unwrap();
            assert_eq!(offsets(&mut consumer), [(partition, placed.offset)]);
        }
    }
}

#[test]
fn a_paused_partition_gives_nothing_and_loses_nothing() {
    let broker = filled(2, 100);
    let options = ConsumerOptions {
        fetch_bytes: 2000,
        ..ConsumerOptions::default()
    };
    let mut consumer = Consumer::with_options(broker.addr(), options).unwrap();
    consumer.assign_all("t", OffsetSpec::Earliest).unwrap();
    let mut next = [0_i64; 2];
    let mut read = |consumer: &mut Consumer, partition: usize| {
        loop {
            let records = consumer.poll(Duration::ZERO).unwrap();
            if records.is_empty() {
                return;
            }
            for record in records.iter() {
                let from = usize::try_from(record.partition).unwrap();
                assert_eq!(from, partition);
                assert_eq!(record.offset, next[from]);
                next[from] += 1;
            }
        }
    };
    consumer.pause("t", 0).unwrap();
    read(&mut consumer, 1);
    consumer.resume("t", 0).unwrap();
    consumer.pause("t", 1).unwrap();
    read(&mut consumer, 0);
    assert_eq!(next, [100, 100]);
}

#[test]
fn a_consumer_that_is_overtaken_says_so_and_goes_on() {
    let broker = filled(1, 100);
    let mut admin = Admin::connect(broker.addr()).unwrap();
    for reset in [Reset::Nearest, Reset::Fail] {
        let options = ConsumerOptions {
            reset,
            ..ConsumerOptions::default()
        };
        let mut consumer = Consumer::with_options(broker.addr(), options).unwrap();
        consumer.assign("t", &[0], OffsetSpec::Offset(10)).unwrap();
        assert_eq!(admin.trim("t", 0, 40).unwrap(), (40, 100));
        let error = consumer.poll(PATIENCE).unwrap_err();
        if reset == Reset::Fail {
            assert!(error.is_refusal(ErrorCode::OffsetOutOfRange), "{error}");
            assert!(consumer.poll(PATIENCE).is_err(), "and again");
            consumer.seek("t", 0, OffsetSpec::Earliest).unwrap();
        } else {
            assert!(error.is_skip());
            assert!(
                matches!(
                    error,
                    Error::Reset {
                        from: 10,
                        to: 40,
                        ..
                    }
                ),
                "{error}"
            );
        }
        assert_eq!(first(&mut consumer), 40);
    }
    let mut consumer = Consumer::connect(broker.addr()).unwrap();
    consumer.assign("t", &[0], OffsetSpec::Offset(200)).unwrap();
    let error = consumer.poll(PATIENCE).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Reset {
                from: 200,
                to: 100,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn damage_is_told_once_and_reading_goes_on_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let start = || Broker::builder().directory(&data).start().unwrap();
    let broker = start();
    fill(&broker, 1, 100);
    broker.stop().unwrap();
    let log = data.join("t-0").join("00000000000000000000.log");
    let mut bytes = fs::read(&log).unwrap();
    // Records of 136 bytes: the last byte of the value of number 50.
    assert_eq!(bytes.len(), 100 * 136);
    bytes[51 * 136 - 1] ^= 1;
    fs::write(&log, bytes).unwrap();
    let broker = start();
    let mut consumer = Consumer::connect(broker.addr()).unwrap();
    consumer.assign("t", &[0], OffsetSpec::Earliest).unwrap();
    let mut found = Vec::new();
    let mut skips = Vec::new();
    while found.len() < 99 {
        match consumer.poll(PATIENCE) {
            Ok(records) => found.extend(records.iter().map(|record| record.offset)),
            Err(error @ Error::Corrupt { .. }) => skips.push(error.to_string()),
            Err(error) => panic!("{error}"),
        }
    }
    let expected: Vec<i64> = (0..100).filter(|n| *n != 50).collect();
    assert_eq!(found, expected);
    assert_eq!(skips, ["t/0 is damaged: offsets 50 to 50 cannot be read"]);
}

#[test]
fn a_broker_that_went_away_and_came_back_is_read_on() {
    let dir = tempfile::tempdir().unwrap();
    let start = |listen: &str| {
        let builder = Broker::builder().directory(dir.path().join("data"));
        builder.start_on(listen).unwrap()
    };
    let broker = start("127.0.0.1:0");
    let address = broker.addr().to_owned();
    fill(&broker, 1, 100);
    let options = ConsumerOptions {
        fetch_bytes: 2000,
        ..ConsumerOptions::default()
    };
    let mut consumer = Consumer::with_options(&address, options).unwrap();
    consumer.assign("t", &[0], OffsetSpec::Earliest).unwrap();
    let mut found = offsets(&mut consumer);
    broker.stop().unwrap();
    // What was on its way already may still be read.
    let error = loop {
        match consumer.poll(PATIENCE) {
            Ok(records) => found.extend(records.iter().map(|r| (r.partition, r.offset))),
            Err(error) => break error,
        }
    };
    assert!(error.is_retryable(), "{error}");
    let broker = start(&address);
    while found.len() < 100 {
        found.extend(offsets(&mut consumer));
    }
    let expected: Vec<(u32, i64)> = (0..100).map(|n| (0, n)).collect();
    assert_eq!(found, expected);
    drop(broker);
}

#[test]
fn records_stay_as_they_are_while_they_are_held() {
    let broker = filled(1, 1000);
    let options = ConsumerOptions {
        fetch_bytes: 5000,
        ..ConsumerOptions::default()
    };
    let mut consumer = Consumer::with_options(broker.addr(), options).unwrap();
    consumer.assign("t", &[0], OffsetSpec::Earliest).unwrap();
    let mut held = Vec::new();
    while held.len() < 10 {
        held.push(consumer.poll(PATIENCE).unwrap());
    }
    let held = held.iter().flat_map(mini_broker::client::Records::iter);
    for (next, record) in (0_i64..).zip(held) {
        assert_eq!(record.offset, next);
        assert_eq!(record.value, Some(format!("{next:0100}").as_bytes()));
    }
}

#[test]
fn a_topic_that_is_deleted_or_was_never_there_is_an_error() {
    let broker = filled(1, 1);
    let mut consumer = Consumer::connect(broker.addr()).unwrap();
    consumer.assign("none", &[0], OffsetSpec::Earliest).unwrap();
    let error = consumer.poll(PATIENCE).unwrap_err();
    assert!(error.is_refusal(ErrorCode::UnknownTopic), "{error}");
    consumer.unassign().unwrap();
    assert!(consumer.assignment().is_empty());
    assert!(consumer.poll(Duration::ZERO).unwrap().is_empty());
    consumer.assign("t", &[7], OffsetSpec::Earliest).unwrap();
    let error = consumer.poll(PATIENCE).unwrap_err();
    assert!(error.is_refusal(ErrorCode::UnknownPartition), "{error}");
}
