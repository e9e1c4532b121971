//! groups, and consume --group.

use mini_broker::testing::Broker;

use crate::{printed, run, run_with_input, spawn};

/// A topic `t` of two partitions with the values 0 to 9, five in each.
fn filled() -> Broker {
    let broker = Broker::start();
    run(&broker, &["topics", "create", "t", "--partitions", "2"]).good();
    for partition in ["t/0", "t/1"] {
        run_with_input(&broker, &["produce", partition], b"0\n1\n2\n3\n4\n").good();
    }
    broker
}

#[test]
fn a_group_is_consumed_to_its_end_described_and_reset() {
    let broker = filled();
    let consume = ["consume", "t", "--group", "g"];
    assert_eq!(run(&broker, &consume).good().lines().count(), 10);
    assert_eq!(run(&broker, &consume).good(), "", "it has everything");
    assert_eq!(run(&broker, &["groups", "list"]).good(), "g\t0\t1\n");
    assert_eq!(
        run(&broker, &["groups", "list", "--json"]).good(),
        "{\"group\":\"g\",\"members\":0,\"topics\":1}\n"
    );
    assert_eq!(
        run(&broker, &["groups", "describe", "g"]).good(),
        "t\t0\t5\t5\t0\t-\nt\t1\t5\t5\t0\t-\n"
    );
    let reset = ["groups", "reset", "g", "--topic", "t"];
    let with = |more: &[&str]| run(&broker, &[&reset[..], more].concat());
    assert_eq!(
        with(&["--to-earliest", "--dry-run"]).good(),
        "t\t0\t5\t0\nt\t1\t5\t0\n"
    );
    assert_eq!(run(&broker, &consume).good(), "", "nothing was changed");
    assert_eq!(
        with(&["--to-offset", "3"]).good(),
        "t\t0\t5\t3\nt\t1\t5\t3\n"
    );
    assert_eq!(run(&broker, &consume).good().lines().count(), 4);
    assert_eq!(
        with(&["--to-time", "-1h", "--json"]).good().lines().next(),
        Some("{\"topic\":\"t\",\"partition\":0,\"from\":5,\"to\":0}")
    );
    assert_eq!(with(&["--to-latest"]).good(), "t\t0\t0\t5\nt\t1\t0\t5\n");
    let one = ["groups", "reset", "g", "--topic", "t/1", "--to-earliest"];
    assert_eq!(run(&broker, &one).good(), "t\t1\t5\t0\n");
    let ended = with(&["--to-offset", "6"]);
    assert!(
        ended.code == 1 && ended.err.contains("OFFSET_OUT_OF_RANGE"),
        "{ended:?}"
    );
    assert_eq!(
        run(
            &broker,
            &["groups", "describe", "g", "--topic", "t", "--json"]
        )
        .good(),
        "{\"topic\":\"t\",\"partition\":0,\"committed\":5,\"latest\":5,\"lag\":0,\"owner\":null}\n\
         {\"topic\":\"t\",\"partition\":1,\"committed\":0,\"latest\":5,\"lag\":5,\"owner\":null}\n"
    );
}

#[test]
fn a_reset_is_refused_while_somebody_consumes_and_where_nobody_ever_did() {
    let broker = filled();
    let mut child = spawn(&broker, &["consume", "t", "--group", "g", "--follow"]);
    printed(&mut child, 20);
    let reset = ["groups", "reset", "g", "--topic", "t", "--to-earliest"];
    let ended = run(&broker, &reset);
    assert!(
        ended.code == 1 && ended.err.contains("--force"),
        "{ended:?}"
    );
    assert_eq!(run(&broker, &[&reset[..], &["--dry-run"]].concat()).code, 0);
    run(&broker, &[&reset[..], &["--force"]].concat()).good();
    child.kill().unwrap();
    child.wait().unwrap();
    let other = ["groups", "reset", "typo", "--topic", "t", "--to-latest"];
    let ended = run(&broker, &other);
    assert!(
        ended.code == 1 && ended.err.contains("UNKNOWN_GROUP"),
        "{ended:?}"
    );
    assert_eq!(
        run(&broker, &[&other[..], &["--force"]].concat()).good(),
        "t\t0\t-\t5\nt\t1\t-\t5\n"
    );
    let ended = run(&broker, &["groups", "describe", "nobody"]);
    assert!(
        ended.code == 1 && ended.err.contains("UNKNOWN_GROUP"),
        "{ended:?}"
    );
}

#[test]
fn a_count_commits_what_was_printed_and_no_more() {
    let broker = Broker::start();
    run_with_input(&broker, &["produce", "t"], b"a\nb\nc\nd\ne\n").good();
    let consume = ["consume", "t", "--group", "g"];
    let some = [&consume[..], &["--count", "2"]].concat();
    assert_eq!(run(&broker, &some).good(), "a\nb\n");
    assert_eq!(run(&broker, &some).good(), "c\nd\n");
    assert_eq!(run(&broker, &consume).good(), "e\n");
    let late = ["consume", "t", "--group", "late", "--from", "latest"];
    assert_eq!(run(&broker, &late).good(), "");
    let ended = run(
        &broker,
        &[&late[..], &["--follow", "--timeout", "50"]].concat(),
    );
    assert!(
        ended.code == 1 && ended.err.contains("nothing came for 50 ms"),
        "{ended:?}"
    );
    let ended = run(&broker, &["consume", "t", "--group", "g", "--from", "3"]);
    assert!(
        ended.code == 2 && ended.err.contains("groups reset"),
        "{ended:?}"
    );
}
