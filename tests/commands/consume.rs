//! consume.

use std::fs;
use std::io::Write as _;

use mini_broker::client::{Admin, Message, Producer};
use mini_broker::testing::Broker;

use crate::{printed, run, run_with_input, spawn};

/// `records` records in each of `partitions` partitions of `t`: values like `0-7`, a second apart from 2026-01-01T00:00:00Z on.
fn filled(partitions: u32, records: i64) -> Broker {
    let broker = Broker::start();
    let keep = [("retention.ms", "-1")];
    let mut admin = Admin::connect(broker.addr()).unwrap();
    admin.create("t", Some(partitions), &keep).unwrap();
    let producer = Producer::connect(broker.addr()).unwrap();
    for n in 0..records {
        for partition in 0..partitions {
            let value = format!("{partition}-{n}");
            let message = Message::to("t").partition(partition).value(&value);
            producer
                .send(&message.timestamp(START_MS + 1000 * n))
                .unwrap();
        }
    }
    producer.close().unwrap();
    broker
}

/// 2026-01-01T00:00:00Z.
const START_MS: i64 = 1_767_225_600_000;

/// The values from one to before another.
fn values(partition: u32, range: std::ops::Range<i64>) -> String {
    range.fold(String::new(), |text, n| {
        text + &format!("{partition}-{n}\n")
    })
}

#[test]
fn from_and_to_take_every_form_of_an_offset() {
    let broker = filled(1, 100);
    let at = |seconds: i64| format!("@{}", START_MS + 1000 * seconds);
    for (args, range) in [
        (&[][..], 0..100),
        (&["--from", "40"], 40..100),
        (&["--from", "earliest", "--to", "3"], 0..3),
        (&["--from", "-5"], 95..100),
        (&["--last", "5"], 95..100),
        (&["--last", "500"], 0..100),
        (&["--from", "-5", "--to", "-2"], 95..98),
        (&["--from", "latest"], 0..0),
        (&["--to", "earliest"], 0..0),
        (&["--from", "5", "--to", "1000"], 5..100),
        (&["--from", "50", "--to", "40"], 0..0),
        (&["--from", &at(10), "--to", &at(20)], 10..20),
        (
            &[
                "--from",
                "@2026-01-01T00:00:30Z",
                "--to",
                "@2026-01-01T00:00:35.5Z",
            ],
            30..36,
        ),
        (&["--from", "@-1s"], 0..0),
        (&["--from", "90", "--to", "@-1s"], 90..100),
        (&["--count", "3", "--from", "7"], 7..10),
        (&["--count", "1000"], 0..100),
    ] {
        for target in ["t", "t/0"] {
            let all = [&["consume", target][..], args].concat();
            assert_eq!(
                run(&broker, &all).good(),
                values(0, range.clone()),
                "{all:?}"
            );
        }
    }
    let ended = run(&broker, &["consume", "t", "--from", "101"]);
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("OFFSET_OUT_OF_RANGE"), "{}", ended.err);
}

#[test]
fn every_partition_is_read_in_order_and_forms_say_which() {
    let broker = filled(3, 50);
    let out = run(&broker, &["consume", "t", "--as", "tsv"]).good();
    for partition in 0..3 {
        let prefix = format!("{partition}\t");
        let found: Vec<&str> = out
            .lines()
            .filter(|line| line.starts_with(&prefix))
            .collect();
        let expected: Vec<String> = (0..50)
            .map(|n| {
                format!(
                    "{partition}\t{n}\t{}\t\\N\t{partition}-{n}",
                    START_MS + 1000 * n
                )
            })
            .collect();
        assert_eq!(found, expected);
    }
    let out = run(&broker, &["consume", "t/2", "--as", "tsv", "--count", "1"]).good();
    assert_eq!(out, format!("0\t{START_MS}\t\\N\t2-0\n"));
    let out = run(&broker, &["consume", "t/2", "--json", "--count", "1"]).good();
    assert_eq!(
        out,
        format!(
            "{{\"partition\":2,\"offset\":0,\"timestamp\":{START_MS},\"key\":null,\"value\":\"2-0\"}}\n"
        )
    );
    assert_eq!(
        run(&broker, &["consume", "t", "--last", "2"])
            .good()
            .lines()
            .count(),
        6
    );
    let ended = run(&broker, &["consume", "t", "--from", "5"]);
    assert!(
        ended.code == 2 && ended.err.contains("name the one, as in t/0"),
        "{ended:?}"
    );
    let ended = run(&broker, &["consume", "t/3"]);
    assert!(
        ended.code == 1 && ended.err.contains("only 0 to 2"),
        "{ended:?}"
    );
    let ended = run(&broker, &["consume", "none"]);
    assert!(
        ended.code == 1 && ended.err.contains("UNKNOWN_TOPIC"),
        "{ended:?}"
    );
}

#[test]
fn follow_waits_for_a_topic_and_goes_on_with_what_comes() {
    let broker = Broker::start();
    let mut child = spawn(&broker, &["consume", "later", "--follow", "--count", "3"]);
    run_with_input(&broker, &["produce", "later"], b"one\n").good();
    assert_eq!(printed(&mut child, 4), "one\n");
    run_with_input(&broker, &["produce", "later"], b"two\nthree\nfour\n").good();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"two\nthree\n");
    let mut child = spawn(
        &broker,
        &["consume", "later/0", "--follow", "--from", "3", "--to", "5"],
    );
    assert_eq!(printed(&mut child, 5), "four\n");
    run_with_input(&broker, &["produce", "later"], b"five\nsix\n").good();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stdout),
        (Some(0), b"five\n".to_vec())
    );
}

#[test]
fn a_time_out_is_exit_code_1_and_what_came_before_is_printed() {
    let broker = filled(1, 2);
    for topic in ["t", "none"] {
        let ended = run(&broker, &["consume", topic, "--follow", "--timeout", "100"]);
        assert_eq!(ended.code, 1);
        assert_eq!(ended.err, "mini-broker: nothing came for 100 ms\n");
        assert_eq!(ended.text(), if topic == "t" { "0-0\n0-1\n" } else { "" });
    }
}

#[test]
fn a_reader_that_goes_away_is_a_quiet_end() {
    let broker = filled(1, 10);
    run_with_input(
        &broker,
        &["produce", "many"],
        "value\n".repeat(200_000).as_bytes(),
    )
    .good();
    for args in [
        &["consume", "many"][..],
        &["consume", "t", "--follow"],
        &["topics", "list"],
    ] {
        let mut child = spawn(&broker, args);
        drop(child.stdout.take());
        if args.contains(&"--follow") {
            child.stdin.take().unwrap().flush().unwrap();
            run_with_input(&broker, &["produce", "t"], b"more\n").good();
        }
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn damage_is_told_and_the_rest_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let start = || Broker::builder().directory(&data).start().unwrap();
    let broker = start();
    run_with_input(&broker, &["produce", "t"], b"aaaa\nbbbb\ncccc\n").good();
    broker.stop().unwrap();
    let log = data.join("t-0").join("00000000000000000000.log");
    let mut bytes = fs::read(&log).unwrap();
    let record = bytes.len() / 3;
    bytes[2 * record - 1] ^= 1;
    fs::write(&log, bytes).unwrap();
    let broker = start();
    let ended = run(&broker, &["consume", "t"]);
    assert_eq!((ended.code, ended.text().as_str()), (1, "aaaa\ncccc\n"));
    assert_eq!(
        ended.err,
        "mini-broker: t/0 is damaged: offsets 1 to 1 cannot be read\n"
    );
}

#[test]
fn nobody_at_the_address_is_one_clear_line() {
    let broker = Broker::start();
    let address = broker.addr().to_owned();
    broker.stop().unwrap();
    for args in [
        &["consume", "t"][..],
        &["produce", "t"],
        &["topics", "list"],
        &["groups", "list"],
    ] {
        let output = std::process::Command::new(crate::BINARY)
            .args(args)
            .args(["--connect", &address])
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(
            err.starts_with(&format!("mini-broker: cannot connect to {address}: ")),
            "{err}"
        );
        assert!(
            err.contains("--connect names another") && err.lines().count() == 1,
            "{err}"
        );
    }
}
