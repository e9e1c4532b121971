//! produce.

use std::fmt::Write as _;

use mini_broker::client::{Message, Producer};
use mini_broker::testing::Broker;

use crate::{run, run_with_input};

#[test]
fn each_line_is_a_value_as_it_stands() {
    let broker = Broker::start();
    let input = b"one\n\n\ttwo \\n\r\n\xff\nlast without an end";
    assert_eq!(run_with_input(&broker, &["produce", "t"], input).good(), "");
    let ended = run(&broker, &["consume", "t"]);
    assert_eq!(ended.code, 0);
    assert_eq!(ended.out, [&input[..], b"\n"].concat());
}

#[test]
fn a_key_ends_at_the_first_separator_and_a_line_without_one_is_named() {
    let broker = Broker::start();
    let args = ["produce", "t/0", "--key-separator", "::"];
    run_with_input(&broker, &args, b"a::1::2\n::empty\nb::\n").good();
    let tsv = run(&broker, &["consume", "t/0", "--as", "tsv"]).good();
    let fields: Vec<(&str, &str)> = tsv
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            (fields[2], fields[3])
        })
        .collect();
    assert_eq!(fields, [("a", "1::2"), ("", "empty"), ("b", "")]);
    let ended = run_with_input(&broker, &args, b"c::3\nnone:here\nd::4\n");
    assert_eq!(ended.code, 1);
    assert_eq!(
        ended.err,
        "mini-broker: line 2 has no '::' behind a key: 'none:here'; 1 records were produced\n"
    );
    assert_eq!(run(&broker, &["consume", "t", "--last", "1"]).good(), "3\n");
}

#[test]
fn whole_files_are_values() {
    let broker = Broker::start();
    let dir = tempfile::tempdir().unwrap();
    let every: Vec<u8> = (0..=255).collect();
    let paths = ["a", "b"].map(|name| dir.path().join(name));
    std::fs::write(&paths[0], &every).unwrap();
    std::fs::write(&paths[1], "").unwrap();
    let names = paths.each_ref().map(|path| path.to_str().unwrap());
    run(&broker, &["produce", "t", "--file", names[0], names[1]]).good();
    let ended = run(&broker, &["consume", "t"]);
    assert_eq!(ended.out, [&every[..], b"\n\n"].concat());
    let ended = run(
        &broker,
        &["produce", "t", "--file", names[0], "/no/such/file"],
    );
    assert_eq!(ended.code, 1);
    assert!(
        ended.err.contains("cannot read /no/such/file"),
        "{}",
        ended.err
    );
    assert!(
        ended.err.contains("1 records were produced"),
        "{}",
        ended.err
    );
}

/// Records with everything that a record can have.
fn fill(broker: &Broker) {
    run(
        broker,
        &[
            "topics",
            "create",
            "from",
            "--partitions",
            "3",
            "--config",
            "retention.ms=-1",
        ],
    )
    .good();
    let every: Vec<u8> = (0..=255).collect();
    let producer = Producer::connect(broker.addr()).unwrap();
    for byte in 0..=255_u8 {
        let bytes = [b'x', byte, b'y'];
        let message = Message::to("from").key(&bytes).value(&bytes);
        producer.send(&message).unwrap();
    }
    let plain = Message::to("from").partition(2).timestamp(-5);
    for message in [
        plain.clone(),
        plain.clone().key(""),
        plain.clone().value(""),
        plain.clone().key(&every).value(&every),
        plain.clone().header("", None).header("\"", Some(b"\\ \n")),
        plain
            .clone()
            .value("v")
            .header("h", Some(&every))
            .header("h", Some(b"")),
        plain.timestamp(i64::MIN),
    ] {
        producer.send(&message).unwrap();
    }
    producer.close().unwrap();
}

#[test]
fn json_carries_a_topic_to_another_broker_with_nothing_lost() {
    let (from, to) = (Broker::start(), Broker::start());
    fill(&from);
    let args = [
        "topics",
        "create",
        "to",
        "--partitions",
        "3",
        "--config",
        "retention.ms=-1",
    ];
    run(&to, &args).good();
    let lines = run(&from, &["consume", "from", "--as", "json"]).good();
    assert_eq!(lines.lines().count(), 263);
    run_with_input(&to, &["produce", "to", "--json"], lines.as_bytes()).good();
    for partition in 0..3 {
        let before = run(&from, &["consume", &format!("from/{partition}"), "--json"]).good();
        let after = run(&to, &["consume", &format!("to/{partition}"), "--json"]).good();
        assert!(!before.is_empty());
        assert_eq!(before, after);
    }
}

#[test]
fn a_line_that_is_no_record_is_named_and_so_is_one_that_is_refused() {
    let broker = Broker::start();
    let input = b"{\"value\":\"v\"}\n{\"valu\":\"v\"}\n";
    let ended = run_with_input(&broker, &["produce", "t", "--json"], input);
    assert_eq!(ended.code, 1);
    assert!(
        ended
            .err
            .starts_with("mini-broker: line 2 is no record in JSON (unknown field `valu`"),
        "{}",
        ended.err
    );
    assert_eq!(ended.err.lines().count(), 1);
    run(
        &broker,
        &[
            "topics",
            "create",
            "small",
            "--config",
            "max.message.bytes=10",
        ],
    )
    .good();
    let mut input = String::new();
    for n in 1..=3000 {
        let value = if n == 2000 { "12345678901" } else { "v" };
        writeln!(input, "{value}").unwrap();
    }
    let ended = run_with_input(&broker, &["produce", "small"], input.as_bytes());
    assert_eq!(ended.code, 1);
    assert!(
        ended
            .err
            .starts_with("mini-broker: line 2000: MESSAGE_TOO_LARGE "),
        "{}",
        ended.err
    );
    let ended = run_with_input(
        &broker,
        &["produce", "small", "--json"],
        b"{\"partition\":4}\n",
    );
    assert_eq!(ended.code, 1);
    assert!(
        ended
            .err
            .contains("line 1: topic small has 1 partitions: 4 is not one"),
        "{}",
        ended.err
    );
}

#[test]
fn what_is_typed_wrongly_is_a_usage_error() {
    let broker = Broker::start();
    for (args, words) in [
        (&["produce"][..], "TOPIC"),
        (&["produce", "a b"], "not the name of a topic"),
        (&["produce", "a/x"], "not the number of a partition"),
        (&["produce", "a", "--key-separator", ""], "--key-separator"),
        (
            &["produce", "a", "--json", "--key-separator", ":"],
            "cannot be used with",
        ),
        (
            &["produce", "a", "--json", "--file", "f"],
            "cannot be used with",
        ),
        (&["consume", "a", "--from", "x"], "is not an offset"),
        (&["consume", "a", "--to", "@x"], "is not a time"),
        (&["consume", "a", "--last", "0"], "--last"),
        (&["consume", "a", "--count", "0"], "--count"),
        (
            &["consume", "a", "--last", "1", "--from", "1"],
            "cannot be used with",
        ),
        (&["consume", "a", "--as", "xml"], "one of tsv, json, value"),
        (
            &["consume", "a", "--json", "--as", "tsv"],
            "cannot be used with",
        ),
        (&["consume", "a/0", "--group", "g"], "name none"),
        (&["topics"], "topics"),
        (&["topics", "alter", "a"], "--partitions"),
        (&["topics", "create", "a", "--config", "x"], "name=value"),
        (&["groups", "reset", "g", "--topic", "t"], "--to-earliest"),
        (
            &[
                "groups",
                "reset",
                "g",
                "--topic",
                "t",
                "--to-earliest",
                "--to-latest",
            ],
            "cannot be used with",
        ),
    ] {
        let ended = run(&broker, args);
        assert!(
            ended.code == 2 && ended.err.contains(words),
            "{args:?}: {ended:?}"
        );
        assert_eq!(ended.err.lines().count(), 1, "{args:?}: {}", ended.err);
    }
}
