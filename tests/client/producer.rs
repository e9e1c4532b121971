//! The producer: batches, order, failures.

use std::time::Duration;

use mini_broker::client::{
    Admin, Consumer, Delivery, Error, ErrorCode, Message, OffsetSpec, Producer, ProducerOptions,
};
use mini_broker::murmur2::partition_of;
use mini_broker::testing::Broker;

use crate::scripted::{Answer, Scripted};
use crate::{PATIENCE, values};

fn stat(address: &str, name: &str) -> u64 {
    let stats = Admin::connect(address).unwrap().stats().unwrap();
    stats.iter().find(|(found, _)| found == name).unwrap().1
}

#[test]
fn records_are_stored_in_order_and_handles_name_their_places() {
    let broker = Broker::start();
    let producer = Producer::connect(broker.addr()).unwrap();
    let handles: Vec<Delivery> = (0..10_000)
        .map(|n| {
            let value = format!("v{n}");
            producer.send(&Message::to("t").value(&value)).unwrap()
        })
        .collect();
    producer.flush().unwrap();
    for (n, handle) in handles.iter().enumerate() {
        let placed = handle.peek().expect("a flush decides all").unwrap();
        assert_eq!(
            (placed.partition, placed.offset),
            (0, i64::try_from(n).unwrap())
        );
    }
    producer.close().unwrap();
    let expected: Vec<String> = (0..10_000).map(|n| format!("v{n}")).collect();
    assert_eq!(values(broker.addr(), "t", 0), expected);
}

#[test]
fn whoever_waits_for_a_record_does_not_wait_for_the_linger() {
    let broker = Broker::start();
    let options = ProducerOptions {
        linger: Duration::from_hours(1),
        ..ProducerOptions::default()
    };
    let producer = Producer::with_options(broker.addr(), options).unwrap();
    for offset in 0..3 {
        let handle = producer.send(&Message::to("t").value("v")).unwrap();
        assert_eq!(handle.wait().unwrap().offset, offset);
    }
    let handle = producer.send(&Message::to("t").value("v")).unwrap();
    assert!(handle.peek().is_none(), "nobody waits, so it lingers");
    drop(producer);
    assert_eq!(handle.peek().unwrap().unwrap().offset, 3, "a drop flushes");
}

#[test]
fn a_batch_that_is_not_full_leaves_after_the_linger() {
    let broker = Broker::start();
    let producer = Producer::connect(broker.addr()).unwrap();
    producer.send(&Message::to("t").value("creates")).unwrap();
    producer.send(&Message::to("t").value("lingers")).unwrap();
    let mut consumer = Consumer::connect(broker.addr()).unwrap();
    consumer.assign("t", &[0], OffsetSpec::Offset(1)).unwrap();
    assert_eq!(consumer.poll(PATIENCE).unwrap().len(), 1);
}

#[test]
fn keys_choose_partitions_as_the_broker_chooses_them() {
    let broker = Broker::builder()
        .config("num.partitions", "5")
        .start()
        .unwrap();
    let producer = Producer::connect(broker.addr()).unwrap();
    let mut handles = Vec::new();
    for n in 0..200 {
        let key = format!("key-{n}");
        let handle = producer
            .send(&Message::to("t").key(&key).value("v"))
            .unwrap();
        handles.push((key, handle));
    }
    for (key, handle) in handles {
        let partition = handle.wait().unwrap().partition;
        assert_eq!(partition, partition_of(key.as_bytes(), 5), "{key}");
    }
    let handle = producer
        .send(&Message::to("t").key("x").partition(4))
        .unwrap();
    assert_eq!(handle.wait().unwrap().partition, 4, "a named one wins");
    let error = producer.send(&Message::to("t").partition(5)).unwrap_err();
    assert!(matches!(error, Error::Usage(_)), "{error}");
}

#[test]
fn records_without_a_key_use_every_partition_a_batch_at_a_time() {
    let broker = Broker::start();
    let mut admin = Admin::connect(broker.addr()).unwrap();
    admin.create("t", Some(3), &[]).unwrap();
    let options = ProducerOptions {
        batch_bytes: 1000,
        ..ProducerOptions::default()
    };
    let producer = Producer::with_options(broker.addr(), options).unwrap();
    for _ in 0..300 {
        producer
            .send(&Message::to("t").value(&[b'v'; 100]))
            .unwrap();
    }
    producer.close().unwrap();
    let offsets = admin.offsets("t").unwrap();
    for ends in &offsets {
        assert!(ends.latest >= 60, "{offsets:?}");
    }
    assert_eq!(offsets.iter().map(|ends| ends.latest).sum::<i64>(), 300);
}

#[test]
fn timestamps_headers_nulls_and_any_byte_arrive() {
    let broker = Broker::start();
    let producer = Producer::connect(broker.addr()).unwrap();
    let every: Vec<u8> = (0..=255).collect();
    producer.send(&Message::to("t").value("plain")).unwrap();
    let message = Message::to("t")
        .key(&every)
        .timestamp(-5)
        .header("one", Some(&every))
        .header("two", None);
    producer.send(&message).unwrap();
    producer
        .send(&Message::to("t").key("").value(&every))
        .unwrap();
    producer.send(&Message::to("t")).unwrap();
    producer.close().unwrap();

    let mut consumer = Consumer::connect(broker.addr()).unwrap();
    consumer.assign("t", &[0], OffsetSpec::Offset(1)).unwrap();
    let records = consumer.poll(PATIENCE).unwrap();
    let records: Vec<_> = records.iter().collect();
    assert_eq!(records.len(), 3);
    assert_eq!((records[0].key, records[0].value), (Some(&every[..]), None));
    assert_eq!(records[0].timestamp, -5);
    let headers: Vec<_> = records[0].headers().collect();
    assert_eq!(headers, [(&b"one"[..], Some(&every[..])), (b"two", None)]);
    assert_eq!(
        (records[1].key, records[1].value),
        (Some(&b""[..]), Some(&every[..]))
    );
    assert_eq!((records[2].key, records[2].value), (None, None));
}

#[test]
fn a_topic_that_is_not_there_is_created_only_where_the_broker_allows_it() {
    let strict = Broker::builder()
        .config("auto.create.topics.enable", "false")
        .start()
        .unwrap();
    let producer = Producer::connect(strict.addr()).unwrap();
    let error = producer.send(&Message::to("t").value("v")).unwrap_err();
    assert!(error.is_refusal(ErrorCode::UnknownTopic) && !error.is_retryable());
    Admin::connect(strict.addr())
        .unwrap()
        .create("t", Some(2), &[])
        .unwrap();
    let handle = producer.send(&Message::to("t").value("v")).unwrap();
    handle.wait().expect("it is there now");
    for wrong in ["", "a b", "a/0", "a:k", "a\nDELETE t"] {
        let error = producer.send(&Message::to(wrong).value("v")).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{wrong:?}: {error}");
    }
}

#[test]
fn partitions_that_are_added_are_used_after_a_while() {
    let broker = Broker::start();
    let mut admin = Admin::connect(broker.addr()).unwrap();
    admin.create("t", Some(1), &[]).unwrap();
    let options = ProducerOptions {
        refresh: Duration::ZERO,
        ..ProducerOptions::default()
    };
    let producer = Producer::with_options(broker.addr(), options).unwrap();
    producer
        .send(&Message::to("t").value("v"))
        .unwrap()
        .wait()
        .unwrap();
    admin.partitions("t", 4).unwrap();
    // The batch that finds the number stale asks anew, and the next has it.
    for _ in 0..2 {
        producer
            .send(&Message::to("t").value("v"))
            .unwrap()
            .wait()
            .unwrap();
    }
    producer.flush().unwrap();
    let key = (0..100)
        .map(|n| format!("k{n}"))
        .find(|key| partition_of(key.as_bytes(), 4) == 3);
    let placed = producer
        .send(&Message::to("t").key(&key.unwrap()))
        .unwrap()
        .wait();
    assert_eq!(placed.unwrap().partition, 3);
}

#[test]
fn one_record_that_is_refused_takes_no_other_with_it() {
    let broker = Broker::start();
    let mut admin = Admin::connect(broker.addr()).unwrap();
    admin
        .create("t", None, &[("max.message.bytes", "100")])
        .unwrap();
    let producer = Producer::connect(broker.addr()).unwrap();
    let mut handles = Vec::new();
    for n in 0..50 {
        let value = if n == 20 {
            "x".repeat(101)
        } else {
            format!("v{n}")
        };
        let message = Message::to("t").value(&value);
        // Every other round has a timestamp, so that both ways of sending are seen.
        handles.push(producer.send(&message).unwrap());
        handles.push(producer.send(&message.timestamp(7)).unwrap());
    }
    let error = producer.flush().expect_err("two were too large");
    assert!(error.is_refusal(ErrorCode::MessageTooLarge), "{error}");
    producer.flush().expect("that was said once");
    for (i, handle) in handles.iter().enumerate() {
        assert_eq!(handle.peek().unwrap().is_err(), i / 2 == 20, "{i}");
    }
    let expected: Vec<String> = (0..100)
        .filter(|i| i / 2 != 20)
        .map(|i| format!("v{}", i / 2))
        .collect();
    assert_eq!(values(broker.addr(), "t", 0), expected);
}

#[test]
fn a_lost_broker_is_found_again_and_nothing_is_lost_or_out_of_order() {
    let dir = tempfile::tempdir().unwrap();
    let start = |listen: &str| {
        let builder = Broker::builder().directory(dir.path().join("data"));
        builder.start_on(listen).unwrap()
    };
    let mut broker = start("127.0.0.1:0");
    let address = broker.addr().to_owned();
    let options = ProducerOptions {
        batch_bytes: 500,
        backoff: Duration::from_millis(5),
        ..ProducerOptions::default()
    };
    let producer = Producer::with_options(&address, options).unwrap();
    for n in 0..3000 {
        producer
            .send(&Message::to("t").value(&format!("{n:05}")))
            .unwrap();
        if n % 1000 == 700 {
            broker.stop().unwrap();
            // While nobody is there, records are taken all the same.
            producer
                .send(&Message::to("t").value(&format!("{n:05}")))
                .unwrap();
            broker = start(&address);
        }
    }
    producer.close().unwrap();
    let mut found = values(&address, "t", 0);
    let mut last = String::new();
    found.retain(|value| {
        let is_new = *value > last;
        if is_new {
            last.clone_from(value);
        }
        is_new
    });
    let expected: Vec<String> = (0..3000).map(|n| format!("{n:05}")).collect();
    assert_eq!(found, expected, "duplicates apart, all in order");
}

#[test]
fn a_refusal_that_passes_is_tried_again_with_all_that_is_behind_it() {
    let full = Answer::Say("ERR DISK_FULL no space");
    let answers = vec![Answer::Store, full, Answer::Store, Answer::Store];
    let scripted = Scripted::start(answers);
    let options = ProducerOptions {
        batch_bytes: 1,
        backoff: Duration::from_millis(5),
        ..ProducerOptions::default()
    };
    let producer = Producer::with_options(&scripted.address, options).unwrap();
    let handles: Vec<Delivery> = ["a", "b", "c", "d", "e"]
        .iter()
        .map(|value| producer.send(&Message::to("t").value(value)).unwrap())
        .collect();
    producer.close().expect("it passed");
    let stored = scripted.stored();
    for (handle, value) in handles.iter().zip(["a", "b", "c", "d", "e"]) {
        let offset = usize::try_from(handle.peek().unwrap().unwrap().offset).unwrap();
        assert_eq!(stored[offset], value);
    }
    let places: Vec<usize> = handles
        .iter()
        .map(|handle| usize::try_from(handle.peek().unwrap().unwrap().offset).unwrap())
        .collect();
    assert!(places.is_sorted(), "{stored:?} {places:?}");
}

#[test]
fn a_refusal_in_the_middle_of_counted_records_repeats_none_before_it() {
    let full = Answer::Say("ERR DISK_FULL no space");
    let bad = Answer::Say("ERR INVALID_TIMESTAMP too far ahead");
    let scripted = Scripted::start(vec![Answer::Store, bad, full.clone(), full]);
    let options = ProducerOptions {
        linger: Duration::from_hours(1),
        backoff: Duration::from_millis(5),
        ..ProducerOptions::default()
    };
    let producer = Producer::with_options(&scripted.address, options).unwrap();
    let handles: Vec<Delivery> = ["a", "b", "c", "d"]
        .iter()
        .map(|value| {
            producer
                .send(&Message::to("t").value(value).timestamp(1))
                .unwrap()
        })
        .collect();
    let error = producer.close().expect_err("one is refused for good");
    assert!(error.is_refusal(ErrorCode::InvalidTimestamp), "{error}");
    assert_eq!(scripted.stored(), ["a", "c", "d"]);
    let offsets: Vec<Option<i64>> = handles
        .iter()
        .map(|handle| handle.peek().unwrap().ok().map(|placed| placed.offset))
        .collect();
    assert_eq!(offsets, [Some(0), None, Some(1), Some(2)]);
}

#[test]
fn an_answer_that_is_lost_makes_a_duplicate_and_no_gap() {
    let scripted = Scripted::start(vec![Answer::Store, Answer::StoreAndHangUp]);
    let options = ProducerOptions {
        batch_bytes: 1,
        in_flight: 1,
        backoff: Duration::from_millis(5),
        ..ProducerOptions::default()
    };
    let producer = Producer::with_options(&scripted.address, options).unwrap();
    for value in ["a", "b", "c"] {
        producer.send(&Message::to("t").value(value)).unwrap();
    }
    producer.close().unwrap();
    assert_eq!(scripted.stored(), ["a", "b", "b", "c"]);
}

#[test]
fn what_cannot_be_delivered_in_time_fails_and_says_what_was_in_the_way() {
    let broker = Broker::start();
    let options = ProducerOptions {
        delivery_timeout: Duration::from_millis(50),
        backoff: Duration::from_millis(5),
        ..ProducerOptions::default()
    };
    let producer = Producer::with_options(broker.addr(), options).unwrap();
    producer.send(&Message::to("t").value("v")).unwrap();
    broker.stop().unwrap();
    let handle = producer.send(&Message::to("t").value("v")).unwrap();
    let error = handle.wait().unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(
        matches!(error, Error::TimedOut { last: Some(_), .. }),
        "{error}"
    );
    assert!(producer.close().is_err());
}

#[test]
fn many_threads_share_a_producer() {
    let broker = Broker::start();
    let producer = Producer::connect(broker.addr()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let producer = &producer;
            scope.spawn(move || {
                for n in 0..500 {
                    let value = format!("{thread} {n:03}");
                    producer.send(&Message::to("t").value(&value)).unwrap();
                }
            });
        }
    });
    producer.close().unwrap();
    let found = values(broker.addr(), "t", 0);
    assert_eq!(found.len(), 2000);
    for thread in 0..4 {
        let prefix = format!("{thread} ");
        let own: Vec<&String> = found.iter().filter(|v| v.starts_with(&prefix)).collect();
        assert!(own.len() == 500 && own.is_sorted());
    }
}

#[test]
fn a_small_buffer_holds_the_program_back_and_loses_nothing() {
    let broker = Broker::start();
    let options = ProducerOptions {
        buffer_bytes: 2000,
        batch_bytes: 500,
        ..ProducerOptions::default()
    };
    let producer = Producer::with_options(broker.addr(), options).unwrap();
    for _ in 0..500 {
        producer
            .send(&Message::to("t").value(&[b'v'; 100]))
            .unwrap();
    }
    // One that is larger than the buffer is taken when the buffer is empty.
    producer
        .send(&Message::to("t").value(&vec![b'v'; 50_000]))
        .unwrap();
    producer.close().unwrap();
    assert_eq!(values(broker.addr(), "t", 0).len(), 501);
    assert!(
        stat(broker.addr(), "errors_total") <= 1,
        "the look-up of a new topic"
    );
}

#[test]
fn options_that_cannot_work_are_refused() {
    let broker = Broker::start();
    for options in [
        ProducerOptions {
            in_flight: 0,
            ..ProducerOptions::default()
        },
        ProducerOptions {
            batch_bytes: 0,
            ..ProducerOptions::default()
        },
        ProducerOptions {
            batch_bytes: (8 << 20) + 1,
            ..ProducerOptions::default()
        },
        ProducerOptions {
            buffer_bytes: 0,
            ..ProducerOptions::default()
        },
    ] {
        let refused = Producer::with_options(broker.addr(), options);
        assert!(matches!(refused, Err(Error::Usage(_))), "{options:?}");
    }
    assert!(matches!(Producer::connect("nowhere"), Err(Error::Usage(_))));
}
