//! topics.

use mini_broker::testing::Broker;

use crate::{run, run_with_input};

#[test]
fn topics_are_created_altered_described_listed_and_deleted() {
    let broker = Broker::start();
    let create = [
        "topics",
        "create",
        "orders",
        "--partitions",
        "2",
        "--config",
        "segment.bytes=5000",
    ];
    assert_eq!(run(&broker, &create).good(), "");
    let ended = run(&broker, &create);
    assert!(
        ended.code == 1 && ended.err.contains("TOPIC_EXISTS"),
        "{ended:?}"
    );
    run(&broker, &[&create[..], &["--if-not-exists"]].concat()).good();
    run_with_input(&broker, &["produce", "orders/1"], b"v\n").good();
    run(
        &broker,
        &[
            "topics",
            "alter",
            "orders",
            "--partitions",
            "3",
            "--config",
            "segment.bytes=default",
        ],
    )
    .good();
    assert_eq!(
        run(&broker, &["topics", "list"]).good(),
        "orders\t3\t1\t37\n"
    );
    assert_eq!(
        run(&broker, &["topics", "list", "--json"]).good(),
        "{\"topic\":\"orders\",\"partitions\":3,\"records\":1,\"bytes\":37}\n"
    );
    let ended = run(
        &broker,
        &["topics", "alter", "orders", "--config", "segment.bytes=1"],
    );
    assert!(
        ended.code == 2 && ended.err.contains("INVALID_CONFIG"),
        "{ended:?}"
    );
    run(&broker, &["topics", "delete", "orders"]).good();
    let ended = run(&broker, &["topics", "delete", "orders"]);
    assert!(
        ended.code == 1 && ended.err.contains("UNKNOWN_TOPIC"),
        "{ended:?}"
    );
    run(&broker, &["topics", "delete", "orders", "--if-exists"]).good();
    let ended = run(&broker, &["topics", "create", "__x", "--if-not-exists"]);
    assert!(
        ended.code == 1 && ended.err.contains("INVALID_TOPIC"),
        "{ended:?}"
    );
}

#[test]
fn a_description_has_configs_and_partitions() {
    let broker = Broker::start();
    run(
        &broker,
        &["topics", "create", "orders", "--partitions", "2"],
    )
    .good();
    run_with_input(&broker, &["produce", "orders/1"], b"v\n").good();
    let described = run(&broker, &["topics", "describe", "orders"]).good();
    assert!(
        described.contains("config\tsegment.bytes\t1073741824\tdefault\n"),
        "{described}"
    );
    assert!(
        described.contains("partition\t1\t0\t1\t37\t1\tok\n"),
        "{described}"
    );
    let described = run(&broker, &["topics", "describe", "orders", "--json"]).good();
    for line in described.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    assert!(described.contains(
        "{\"partition\":1,\"earliest\":0,\"latest\":1,\"bytes\":37,\"segments\":1,\"health\":\"ok\"}\n"
    ), "{described}");
}
