//! The administrator.

use mini_broker::client::{
    Admin, ConfigSource, Error, ErrorCode, Message, OffsetSpec, PartitionHealth, Producer, TimeSpec,
};
use mini_broker::testing::Broker;

#[test]
fn topics_live_from_create_to_delete() {
    let broker = Broker::start();
    let mut admin = Admin::connect(broker.addr()).unwrap();
    admin
        .create("orders", Some(2), &[("retention.ms", "-1")])
        .unwrap();
    let error = admin.create("orders", None, &[]).unwrap_err();
    assert!(error.is_refusal(ErrorCode::TopicExists), "{error}");
    admin
        .alter(
            "orders",
            &[("segment.bytes", "5000"), ("retention.ms", "default")],
        )
        .unwrap();
    admin.partitions("orders", 3).unwrap();
    let described = admin.describe("orders").unwrap();
    let config = |name: &str| described.configs.iter().find(|c| c.name == name).unwrap();
    assert_eq!(config("segment.bytes").value, "5000");
    assert_eq!(config("segment.bytes").source, ConfigSource::Topic);
    assert_eq!(config("retention.ms").source, ConfigSource::Default);
    assert_eq!(described.partitions.len(), 3);
    assert!(
        described
            .partitions
            .iter()
            .all(|p| p.health == PartitionHealth::Ok)
    );
    let topics = admin.topics().unwrap();
    let orders = topics.iter().find(|topic| topic.name == "orders").unwrap();
    assert_eq!((orders.partitions, orders.records), (3, 0));
    admin.delete("orders").unwrap();
    let error = admin.delete("orders").unwrap_err();
    assert!(error.is_refusal(ErrorCode::UnknownTopic), "{error}");
    for wrong in ["a b", "", "a\nDELETE b"] {
        assert!(matches!(admin.delete(wrong), Err(Error::Usage(_))));
        assert!(matches!(
            admin.create("t", None, &[("segment.bytes", wrong)]),
            Err(Error::Usage(_))
        ));
    }
    assert!(
        admin
            .topics()
            .unwrap()
            .iter()
            .all(|topic| topic.name != "t")
    );
}

#[test]
fn offsets_and_times_are_found() {
    let broker = Broker::start();
    let mut admin = Admin::connect(broker.addr()).unwrap();
    // The records are of 1970.
    let keep = [("retention.ms", "-1")];
    admin.create("t", None, &keep).unwrap();
    let producer = Producer::connect(broker.addr()).unwrap();
    for n in 0..10 {
        let message = Message::to("t").value("v").timestamp(1000 + 10 * n);
        producer.send(&message).unwrap();
    }
    producer.close().unwrap();
    assert_eq!(
        admin.at("t", 0, TimeSpec::At(1045)).unwrap(),
        Some((5, 1050))
    );
    assert_eq!(admin.at("t", 0, TimeSpec::At(5000)).unwrap(), None);
    assert_eq!(admin.at("t", 0, TimeSpec::At(-5)).unwrap(), Some((0, 1000)));
    for (offset, expected) in [
        (OffsetSpec::Offset(4), 4),
        (OffsetSpec::Earliest, 0),
        (OffsetSpec::Latest, 10),
        (OffsetSpec::Last(3), 7),
        (OffsetSpec::Last(30), 0),
        (OffsetSpec::Time(TimeSpec::At(1045)), 5),
        (OffsetSpec::Time(TimeSpec::At(5000)), 10),
        (OffsetSpec::Time(TimeSpec::Ago(1000)), 10),
    ] {
        assert_eq!(
            admin.resolve("t", 0, offset).unwrap(),
            expected,
            "{offset:?}"
        );
    }
    assert_eq!(admin.trim("t", 0, 6).unwrap(), (6, 10));
    let ends = admin.offsets("t").unwrap();
    assert_eq!((ends[0].earliest, ends[0].latest), (6, 10));
    let error = admin.resolve("t", 0, OffsetSpec::Offset(2)).unwrap_err();
    assert!(error.is_refusal(ErrorCode::OffsetOutOfRange), "{error}");
    let stats = admin.stats().unwrap();
    assert!(stats.contains(&("records_in_total".to_owned(), 10)));
}

#[test]
fn a_lost_connection_is_made_again_by_the_next_request() {
    let dir = tempfile::tempdir().unwrap();
    let start = |listen: &str| {
        let builder = Broker::builder().directory(dir.path().join("data"));
        builder.start_on(listen).unwrap()
    };
    let broker = start("127.0.0.1:0");
    let address = broker.addr().to_owned();
    let mut admin = Admin::connect(&address).unwrap();
    admin.create("t", None, &[]).unwrap();
    broker.stop().unwrap();
    assert!(admin.topics().unwrap_err().is_retryable());
    assert!(admin.topics().unwrap_err().is_retryable());
    let _broker = start(&address);
    assert_eq!(admin.offsets("t").unwrap().len(), 1);
}

#[test]
fn it_works_over_a_unix_socket_and_from_a_directory_that_goes_away() {
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("unix:{}", dir.path().join("s").display());
    let broker = Broker::builder().temporary().start_on(&listen).unwrap();
    assert_eq!(broker.addr(), listen);
    let producer = Producer::connect(&listen).unwrap();
    producer
        .send(&Message::to("t").value("v"))
        .unwrap()
        .wait()
        .unwrap();
    drop(producer);
    assert_eq!(crate::values(&listen, "t", 0), ["v"]);
    broker.stop().unwrap();
}

#[test]
fn a_broker_that_cannot_start_says_why() {
    let error = Broker::builder()
        .config("no.such.name", "1")
        .start()
        .unwrap_err();
    assert!(error.contains("no.such.name"), "{error}");
    let broker = Broker::start();
    let error = Broker::builder().start_on(broker.addr()).unwrap_err();
    assert!(error.contains("another process has that port"), "{error}");
}
