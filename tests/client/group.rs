//! The consumer in a group.

use std::collections::BTreeSet;
use std::time::Duration;

use mini_broker::client::{
    Admin, Consumer, Error, ErrorCode, GroupOptions, Message, OffsetSpec, Producer, StartAt,
};
use mini_broker::testing::Broker;

use crate::PATIENCE;

fn filled(partitions: u32, records: u32) -> Broker {
    let broker = Broker::start();
    let mut admin = Admin::connect(broker.addr()).unwrap();
    admin.create("t", Some(partitions), &[]).unwrap();
    add(&broker, partitions, records);
    broker
}

fn add(broker: &Broker, partitions: u32, records: u32) {
    let producer = Producer::connect(broker.addr()).unwrap();
    for n in 0..records {
        for partition in 0..partitions {
            let value = format!("{n}");
            producer
                .send(&Message::to("t").partition(partition).value(&value))
                .unwrap();
        }
    }
    producer.close().unwrap();
}

fn join(broker: &Broker) -> Consumer {
    Consumer::in_group(broker.addr(), "g", "t", GroupOptions::default()).unwrap()
}

/// Partition and offset of what a poll gives.
fn poll(consumer: &mut Consumer) -> Vec<(u32, i64)> {
    let records = consumer.poll(PATIENCE).unwrap();
    records.iter().map(|r| (r.partition, r.offset)).collect()
}

fn committed(broker: &Broker) -> Vec<Option<i64>> {
    let rows = Admin::connect(broker.addr())
        .unwrap()
        .committed("g", "t")
        .unwrap();
    rows.iter().map(|row| row.offset).collect()
}

#[test]
fn what_was_polled_is_committed_and_the_next_one_goes_on_there() {
    let broker = filled(1, 10);
    let mut consumer = join(&broker);
    let mut found = Vec::new();
    while found.len() < 10 {
        found.extend(poll(&mut consumer));
    }
    assert_eq!(found, (0..10).map(|n| (0, n)).collect::<Vec<_>>());
    assert_eq!(consumer.assignment(), [("t".to_owned(), 0)]);
    assert_eq!(consumer.position("t", 0), Some(10));
    consumer.commit().unwrap();
    assert_eq!(committed(&broker), [Some(10)]);
    consumer.commit().expect("nothing more to commit");
    drop(consumer);
    add(&broker, 1, 1);
    assert_eq!(poll(&mut join(&broker)), [(0, 10)]);
}

#[test]
fn a_poll_commits_what_the_polls_before_it_gave_and_nothing_else() {
    let broker = filled(1, 10);
    let mut consumer = join(&broker);
    let first = poll(&mut consumer);
    let last = first.last().unwrap().1;
    drop(consumer);
    let again = poll(&mut join(&broker));
    assert_eq!(again[0], (0, 0), "the first poll committed nothing");
    let mut consumer = join(&broker);
    assert_eq!(poll(&mut consumer)[0], (0, 0));
    assert!(consumer.poll(Duration::from_millis(1)).unwrap().len() <= 10);
    // An answer to a request behind the acknowledgement says that it was seen.
    consumer.commit().unwrap();
    assert!(committed(&broker)[0].unwrap() > last);
}

#[test]
fn without_auto_commit_only_a_commit_commits() {
    let broker = filled(2, 10);
    let options = GroupOptions {
        auto_commit: false,
        ..GroupOptions::default()
    };
    let mut consumer = Consumer::in_group(broker.addr(), "g", "t", options).unwrap();
    let mut found = BTreeSet::new();
    while found.len() < 20 {
        found.extend(poll(&mut consumer));
    }
    assert!(consumer.poll(Duration::from_millis(10)).unwrap().is_empty());
    consumer.commit_offset("t", 1, 4).unwrap();
    assert_eq!(committed(&broker), [None, Some(4)]);
    drop(consumer);
    let mut consumer = join(&broker);
    let mut again = BTreeSet::new();
    while again.len() < 16 {
        again.extend(poll(&mut consumer));
    }
    let expected: BTreeSet<(u32, i64)> = found
        .into_iter()
        .filter(|&(partition, offset)| partition == 0 || offset >= 4)
        .collect();
    assert_eq!(again, expected);
}

#[test]
fn records_that_come_while_a_commit_is_waited_for_are_neither_lost_nor_committed() {
    let broker = filled(1, 500);
    let options = GroupOptions {
        max_inflight: 3,
        ..GroupOptions::default()
    };
    let mut consumer = Consumer::in_group(broker.addr(), "g", "t", options).unwrap();
    let mut found = Vec::new();
    while found.len() < 500 {
        found.extend(poll(&mut consumer));
        // Each one makes room for records, which come together with its answer or behind it.
        consumer.commit().unwrap();
        let last = found.last().unwrap().1;
        assert_eq!(committed(&broker), [Some(last + 1)]);
    }
    assert_eq!(found, (0..500).map(|n| (0, n)).collect::<Vec<_>>());
}

#[test]
fn two_share_the_partitions_and_one_that_goes_leaves_them_to_the_other() {
    let broker = filled(3, 0);
    let (mut one, mut two) = (join(&broker), join(&broker));
    assert!(one.poll(Duration::from_millis(20)).unwrap().is_empty());
    assert!(two.poll(Duration::from_millis(20)).unwrap().is_empty());
    let mut sizes = [one.assignment().len(), two.assignment().len()];
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 2]);
    drop(two);
    add(&broker, 3, 1);
    let mut found = BTreeSet::new();
    while found.len() < 3 {
        found.extend(poll(&mut one));
    }
    assert_eq!(one.assignment().len(), 3);
    let rows = Admin::connect(broker.addr())
        .unwrap()
        .committed("g", "t")
        .unwrap();
    assert!(rows.iter().all(|row| row.owner.is_some()));
    let groups = Admin::connect(broker.addr()).unwrap().groups().unwrap();
    assert_eq!(
        (groups[0].name.as_str(), groups[0].members, groups[0].topics),
        ("g", 1, 1)
    );
}

#[test]
fn every_byte_null_timestamp_and_header_arrives() {
    let broker = filled(1, 0);
    let every: Vec<u8> = (0..=255).collect();
    let producer = Producer::connect(broker.addr()).unwrap();
    let message = Message::to("t").key(&every).timestamp(1_000_000_000_000);
    let message = message
        .header("h", Some(&every))
        .header("\u{d55c}\"\\", None);
    producer.send(&message).unwrap();
    producer
        .send(&Message::to("t").value("a\\n\u{d55c}\n"))
        .unwrap();
    producer.close().unwrap();
    let mut consumer = join(&broker);
    let mut found = Vec::new();
    while found.len() < 2 {
        for record in consumer.poll(PATIENCE).unwrap().iter() {
            let headers: Vec<_> = record
                .headers()
                .map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec)))
                .collect();
            found.push((
                record.timestamp,
                record.key.map(<[u8]>::to_vec),
                record.value.map(<[u8]>::to_vec),
                headers,
            ));
        }
    }
    let headers = vec![
        (b"h".to_vec(), Some(every.clone())),
        ("\u{d55c}\"\\".as_bytes().to_vec(), None),
    ];
    assert_eq!(found[0], (1_000_000_000_000, Some(every), None, headers));
    assert_eq!(found[1].2.as_deref(), Some("a\\n\u{d55c}\n".as_bytes()));
}

#[test]
fn a_place_that_is_gone_is_told_and_consumption_goes_on() {
    let broker = filled(1, 10);
    let mut admin = Admin::connect(broker.addr()).unwrap();
    admin.commit("g", "t", 0, OffsetSpec::Offset(2)).unwrap();
    admin.trim("t", 0, 6).unwrap();
    let mut consumer = join(&broker);
    let error = consumer.poll(PATIENCE).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Reset {
                partition: 0,
                from: 2,
                to: 6,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(poll(&mut consumer)[0], (0, 6));
}

#[test]
fn a_consumer_joins_again_after_its_broker_came_back() {
    let dir = tempfile::tempdir().unwrap();
    let start = |listen: &str| {
        let builder = Broker::builder().directory(dir.path().join("data"));
        builder.start_on(listen).unwrap()
    };
    let broker = start("127.0.0.1:0");
    let address = broker.addr().to_owned();
    Admin::connect(&address)
        .unwrap()
        .create("t", None, &[])
        .unwrap();
    add(&broker, 1, 10);
    let mut consumer = join(&broker);
    let mut found = Vec::new();
    while found.len() < 10 {
        found.extend(poll(&mut consumer));
    }
    consumer.commit().unwrap();
    broker.stop().unwrap();
    let error = consumer.poll(PATIENCE).unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let broker = start(&address);
    add(&broker, 1, 1);
    assert_eq!(poll(&mut consumer), [(0, 10)]);
    drop(consumer);
}

#[test]
fn what_is_the_groups_business_is_refused_and_so_is_an_unknown_topic() {
    let broker = filled(1, 5);
    let options = GroupOptions {
        start: StartAt::Latest,
        ..GroupOptions::default()
    };
    let mut consumer = Consumer::in_group(broker.addr(), "g", "t", options).unwrap();
    assert!(consumer.poll(Duration::from_millis(20)).unwrap().is_empty());
    for refused in [
        consumer.assign("t", &[0], OffsetSpec::Earliest),
        consumer.seek("t", 0, OffsetSpec::Earliest),
        consumer.pause("t", 0),
        consumer.resume("t", 0),
        consumer.unassign(),
        consumer.commit_to("h"),
        consumer.commit_offset("other", 0, 1),
    ] {
        assert!(matches!(refused, Err(Error::Usage(_))), "{refused:?}");
    }
    let join = |group: &str, topic: &str| {
        Consumer::in_group(broker.addr(), group, topic, GroupOptions::default()).unwrap_err()
    };
    assert!(join("g", "none").is_refusal(ErrorCode::UnknownTopic));
    assert!(matches!(join("a b", "t"), Error::Usage(_)));
    assert!(matches!(join("g", "a/0"), Error::Usage(_)));
}

#[test]
fn assigned_partitions_commit_to_a_group_by_hand_and_with_the_polls() {
    let broker = filled(1, 10);
    let options = mini_broker::client::ConsumerOptions {
        auto_commit_interval: Duration::ZERO,
        ..mini_broker::client::ConsumerOptions::default()
    };
    let mut consumer = Consumer::with_options(broker.addr(), options).unwrap();
    assert!(matches!(consumer.commit(), Err(Error::Usage(_))));
    consumer.commit_to("g").unwrap();
    consumer.assign("t", &[0], OffsetSpec::Earliest).unwrap();
    assert_eq!(poll(&mut consumer).last(), Some(&(0, 9)));
    let mut admin = Admin::connect(broker.addr()).unwrap();
    let error = admin.committed("g", "t").unwrap_err();
    assert!(
        error.is_refusal(ErrorCode::UnknownGroup),
        "nothing is committed yet: {error}"
    );
    assert!(consumer.poll(Duration::ZERO).unwrap().is_empty());
    assert_eq!(
        committed(&broker),
        [Some(10)],
        "the second poll committed the first"
    );
    consumer.commit_offset("t", 0, 5).unwrap();
    assert_eq!(committed(&broker), [Some(5)], "by hand, and also back");
    consumer.seek("t", 0, OffsetSpec::Offset(8)).unwrap();
    consumer.commit().unwrap();
    assert_eq!(committed(&broker), [Some(8)]);
}
