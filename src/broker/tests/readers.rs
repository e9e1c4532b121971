//! READ, FETCH and TAIL, at once and after a wait.

use super::*;
use crate::api::TimeSpec;

fn fetched(response: &Response) -> (u64, i64, i64, i64) {
    match response {
        Response::Fetched {
            range,
            first_offset,
            next_offset,
            high_watermark,
        } => (
            range.as_ref().map_or(0, |range| range.len),
            *first_offset,
            *next_offset,
            *high_watermark,
        ),
        other => panic!("{other:?}"),
    }
}

fn rig_with(values: &[&str]) -> Rig {
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.create("a", 1, &[]);
    for value in values {
        rig.put("a", value);
    }
    rig
}

#[test]
fn every_form_of_an_offset_finds_its_place() {
    let mut rig = rig_with(&[]);
    for i in 0..5 {
        rig.put("a", &i.to_string());
        rig.pass(Duration::from_millis(10));
    }
    let start = rig.now().wall_ms - 50;
    for (spec, first) in [
        (OffsetSpec::Offset(3), Some("3")),
        (OffsetSpec::Earliest, Some("0")),
        (OffsetSpec::Latest, None),
        (OffsetSpec::Last(1), Some("4")),
        (OffsetSpec::Last(99), Some("0")),
        (OffsetSpec::Time(TimeSpec::At(start + 10)), Some("1")),
        (OffsetSpec::Time(TimeSpec::At(start + 11)), Some("2")),
        (OffsetSpec::Time(TimeSpec::At(start + 41)), None),
        (OffsetSpec::Time(TimeSpec::Ago(10)), Some("4")),
        (OffsetSpec::Time(TimeSpec::Ago(i64::MAX)), Some("0")),
    ] {
        let got = values(&rig.reply(&read("a", spec, 0)));
        assert_eq!(got.first().map(String::as_str), first, "{spec:?}");
    }
    let at = |rig: &mut Rig, time| match rig.reply(&Request::At(target_of("a"), time)) {
        Response::At(found) => found,
        other => panic!("{other:?}"),
    };
    assert_eq!(at(&mut rig, TimeSpec::At(start + 5)), Some((1, start + 10)));
    assert_eq!(at(&mut rig, TimeSpec::At(start + 500)), None);
}

#[test]
fn an_offset_out_of_range_is_refused_with_both_ends() {
    let mut rig = rig_with(&["x", "y"]);
    for request in [
        read("a", OffsetSpec::Offset(3), 0),
        read("a", OffsetSpec::Offset(3), 1_000),
        fetch("a", 3, (100, 1), 0),
        tail("a", OffsetSpec::Offset(3)),
        Request::Explain(target_of("a"), OffsetSpec::Latest),
    ] {
        let error = rig.error(&request);
        assert_eq!(error.code, ErrorCode::OffsetOutOfRange, "{request:?}");
        assert!(error.message.contains("earliest 0 to latest 2"), "{error}");
    }
    assert_eq!(rig.stat("errors_total"), 5);
}

#[test]
fn targets_that_are_none_are_refused_by_kind() {
    let mut rig = rig_with(&["x"]);
    rig.create("two", 2, &[]);
    for (target, code) in [
        ("b", ErrorCode::UnknownTopic),
        ("a/1", ErrorCode::UnknownPartition),
        ("two", ErrorCode::AmbiguousPartition),
        ("a b", ErrorCode::InvalidTopic),
    ] {
        assert_eq!(
            rig.error(&read(target, OffsetSpec::Earliest, 0)).code,
            code,
            "{target}"
        );
    }
    assert_eq!(rig.offsets("two"), [(0, 0, 0), (1, 0, 0)]);
    assert_eq!(rig.offsets("two/1"), [(1, 0, 0)]);
}

#[test]
fn a_read_gives_at_most_max_records_and_the_fetch_limit_but_one() {
    let mut rig = Rig::with(Settings {
        max_fetch_bytes: 82,
        ..settings(FsyncPolicy::Never)
    });
    rig.create("a", 1, &[]);
    for value in [
        "12345",
        "12345",
        "1",
        "longer than all the others, longer than the limit of this READ",
    ] {
        rig.put("a", value);
    }
    let read_from = |rig: &mut Rig, offset| {
        let response = rig.reply(&read("a", OffsetSpec::Offset(offset), 0));
        match &response {
            Response::Records { next_offset, .. } => (values(&response).len(), *next_offset),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        read_from(&mut rig, 0),
        (2, 2),
        "two of 41 bytes as they are stored"
    );
    assert_eq!(
        read_from(&mut rig, 3),
        (1, 4),
        "one record comes, however large"
    );
    let one = Request::Read {
        target: target_of("a"),
        from: OffsetSpec::Earliest,
        max_records: 1,
        wait: Duration::ZERO,
        crc: CrcMode::Check,
    };
    assert_eq!(values(&rig.reply(&one)), ["12345"]);
    let (bytes, first, next, _) = fetched(&rig.reply(&fetch("a", 0, (1 << 20, 1), 0)));
    assert_eq!(
        (first, next),
        (0, 2),
        "max_bytes is capped: two records fit"
    );
    assert_eq!(bytes, 2 * (36 + 5));
}

#[test]
fn a_read_waits_for_a_record_or_its_time() {
    let mut rig = rig_with(&["x"]);
    assert!(matches!(
        rig.handle(ALICE, &read("a", OffsetSpec::Latest, 500)),
        Outcome::Parked
    ));
    assert!(matches!(
        rig.handle(BOB, &read("a", OffsetSpec::Latest, 300)),
        Outcome::Parked
    ));
    let start = rig.now().mono;
    assert_eq!(rig.deadline(), Some(start + Duration::from_millis(300)));
    rig.pass(Duration::from_millis(300));
    assert_eq!(rig.ready(), [2]);
    let Resumed::Reply(response) = rig.resume(BOB) else {
        panic!("its time is over")
    };
    assert!(matches!(
        &response,
        Response::Records {
            next_offset: 1,
            high_watermark: 1,
            ..
        }
    ));
    assert_eq!(values(&response), [] as [&str; 0]);
    rig.put("a", "y");
    assert_eq!(rig.ready(), [1]);
    assert!(matches!(rig.resume(ALICE), Resumed::Reply(r) if values(&r) == ["y"]));
    assert_eq!(rig.deadline(), None);
}

#[test]
fn a_fetch_waits_for_its_min_bytes() {
    let mut rig = rig_with(&["x"]);
    let entry = 36 + 1;
    assert!(matches!(
        rig.handle(ALICE, &fetch("a", 0, (1_000, 3 * entry), 500)),
        Outcome::Parked
    ));
    rig.put("a", "y");
    assert_eq!(rig.ready(), [1]);
    assert!(
        matches!(rig.resume(ALICE), Resumed::Waiting),
        "one byte is missing at least"
    );
    rig.put("a", "z");
    assert_eq!(rig.ready(), [1]);
    let Resumed::Reply(response) = rig.resume(ALICE) else {
        panic!("enough is there")
    };
    assert_eq!(fetched(&response), (3 * entry, 0, 3, 3));
    assert!(matches!(
        rig.handle(ALICE, &fetch("a", 0, (1_000, 4 * entry), 500)),
        Outcome::Parked
    ));
    rig.pass(Duration::from_millis(500));
    assert_eq!(rig.ready(), [1]);
    let Resumed::Reply(response) = rig.resume(ALICE) else {
        panic!("its time is over")
    };
    assert_eq!(fetched(&response), (3 * entry, 0, 3, 3), "what there is");
    let Outcome::Reply(response) = rig.handle(ALICE, &fetch("a", 0, (entry, 9 * entry), 500))
    else {
        panic!("more than max_bytes cannot be waited for")
    };
    assert_eq!(fetched(&response), (entry, 0, 1, 3));
    assert_eq!(
        fetched(&rig.reply(&fetch("a", 3, (100, 1), 0))),
        (0, 3, 3, 3),
        "nothing there"
    );
}

#[test]
fn min_bytes_count_over_segments() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.create("a", 1, &[("segment.bytes", "14")]);
    for value in ["x", "y", "z"] {
        rig.put("a", value);
    }
    let entry = 36 + 1;
    let Outcome::Reply(response) = rig.handle(ALICE, &fetch("a", 0, (1_000, 3 * entry), 500))
    else {
        panic!("three segments hold enough together")
    };
    assert_eq!(fetched(&response), (entry, 0, 1, 3));
    assert!(matches!(
        rig.handle(ALICE, &fetch("a", 0, (1_000, 3 * entry + 1), 500)),
        Outcome::Parked
    ));
}

#[test]
fn a_tail_gives_what_is_there_then_what_comes() {
    let mut rig = rig_with(&["x", "y"]);
    let Outcome::Streaming(Response::Tailing(Some(0))) =
        rig.handle(ALICE, &tail("a", OffsetSpec::Earliest))
    else {
        panic!("it begins at 0")
    };
    assert_eq!(rig.ready(), [1]);
    assert_eq!(
        rig.broker
            .tail_position(ALICE)
            .map(|(_, number, offset)| (number, offset)),
        Some((0, 0))
    );
    assert_eq!(
        event_values(&rig.resume(ALICE)),
        (0, vec!["x".into(), "y".into()])
    );
    assert_eq!(rig.broker.tail_position(ALICE), None);
    assert!(matches!(rig.resume(ALICE), Resumed::Waiting));
    assert_eq!(rig.ready(), [] as [u64; 0]);
    rig.put("a", "z");
    assert_eq!(rig.ready(), [1]);
    assert_eq!(event_values(&rig.resume(ALICE)).1, ["z"]);
    assert_eq!(rig.stat("records_out_total"), 3);
    assert!(matches!(rig.reply(&Request::Stop), Response::Done));
    rig.put("a", "after");
    assert_eq!(rig.ready(), [] as [u64; 0]);
    assert!(
        matches!(rig.reply(&Request::Stop), Response::Done),
        "also when nothing streams"
    );
}

#[test]
fn a_tail_of_all_partitions_and_a_shared_encoding() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.create("a", 3, &[]);
    rig.put("a/2", "old");
    let all = Request::Tail(TailFrom::All(b"a", OffsetSpec::Latest));
    assert!(matches!(
        rig.handle(ALICE, &all),
        Outcome::Streaming(Response::Tailing(None))
    ));
    rig.append("a/0", None, "x").unwrap();
    rig.append("a/2", None, "y").unwrap();
    rig.turn();
    assert_eq!(rig.next(), Some(ALICE));
    let (_, number, offset) = rig.broker.tail_position(ALICE).unwrap();
    assert_eq!((number, offset), (0, 0));
    rig.broker.skip_tail(ALICE, 0, 1, 1);
    assert_eq!(rig.stat("records_out_total"), 1, "what was shared counts");
    assert!(matches!(rig.resume(ALICE), Resumed::Waiting));
    assert_eq!(rig.next(), Some(ALICE), "for the other partition");
    assert_eq!(event_values(&rig.resume(ALICE)), (2, vec!["y".into()]));
    assert!(matches!(rig.resume(ALICE), Resumed::Waiting));
}

#[test]
fn a_tail_comes_in_bounded_events() {
    let mut rig = rig_with(&[]);
    let value = "x".repeat(30_000);
    for _ in 0..7 {
        rig.append("a", None, &value).unwrap();
    }
    rig.turn();
    rig.handle(ALICE, &tail("a", OffsetSpec::Earliest));
    let mut sizes = Vec::new();
    while let resumed @ Resumed::Event(_) = rig.resume(ALICE) {
        sizes.push(event_values(&resumed).1.len());
    }
    assert_eq!(sizes.iter().sum::<usize>(), 7);
    assert!(
        sizes.iter().all(|&size| size <= 3),
        "about 64 KiB each: {sizes:?}"
    );
}

#[test]
fn waiting_readers_of_a_deleted_topic_are_told() {
    let mut rig = rig_with(&["x"]);
    rig.create("b", 2, &[]);
    let all = Request::Tail(TailFrom::All(b"b", OffsetSpec::Latest));
    rig.handle(ALICE, &all);
    assert!(matches!(
        rig.handle(BOB, &read("b/0", OffsetSpec::Latest, 500)),
        Outcome::Parked
    ));
    assert!(matches!(
        rig.handle(CAROL, &fetch("a", 1, (10, 1), 500)),
        Outcome::Parked
    ));
    assert!(matches!(
        rig.handle(ConnectionId(9), &Request::Delete(b"b")),
        Outcome::Reply(Response::Done)
    ));
    assert_eq!(rig.ready(), [1, 2]);
    assert!(
        matches!(rig.resume(ALICE), Resumed::Ended(Response::Error(e)) if e.code == ErrorCode::UnknownTopic)
    );
    assert!(
        matches!(rig.resume(BOB), Resumed::Reply(Response::Error(e)) if e.code == ErrorCode::UnknownTopic)
    );
    rig.create("b", 2, &[]);
    rig.put("b/0", "new");
    rig.put("a", "y");
    assert_eq!(
        rig.ready(),
        [3],
        "the old readers are off, the others are not"
    );
}

#[test]
fn a_connection_that_leaves_leaves_nothing() {
    let mut rig = rig_with(&[]);
    rig.handle(ALICE, &tail("a", OffsetSpec::Latest));
    rig.handle(BOB, &read("a", OffsetSpec::Latest, 500));
    rig.handle(CAROL, &Request::Sync);
    for connection in [ALICE, BOB, CAROL] {
        rig.broker.forget(connection);
    }
    rig.put("a", "x");
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.ready(), [] as [u64; 0]);
    assert!(matches!(rig.resume(ALICE), Resumed::Waiting));
    rig.broker.tick(&rig.clock);
    assert_eq!(rig.deadline(), None);
}

#[test]
fn damage_is_named_and_stepped_over() {
    let mut rig = rig_with(&["x", "y", "z"]);
    rig.sync();
    let entry = 36 + 1;
    let path = Path::new("/data/a-0/00000000000000000000.log");
    let file = rig.mem.open(path, crate::fs::OpenMode::Write).unwrap();
    crate::fs::File::write_all_at(&file, b"?", 2 * entry - 1).unwrap();
    let error = rig.error(&read("a", OffsetSpec::Offset(1), 0));
    assert_eq!(error.code, ErrorCode::Corrupt);
    assert_eq!(
        error.message,
        "a/0 offset=1 position=37 next=2 segment=00000000000000000000.log"
    );
    assert_eq!(
        values(&rig.reply(&read("a", OffsetSpec::Offset(0), 0))),
        ["x"]
    );
    rig.handle(BOB, &tail("a", OffsetSpec::Earliest));
    assert_eq!(event_values(&rig.resume(BOB)).1, ["x"]);
    assert!(matches!(
        rig.resume(BOB),
        Resumed::Event(TailEvent::Corrupt {
            partition: 0,
            offset: 1,
            next: 2
        })
    ));
    assert_eq!(event_values(&rig.resume(BOB)).1, ["z"]);
    assert!(matches!(rig.resume(BOB), Resumed::Waiting));
    assert_eq!(rig.stat("corrupt_records_total"), 2);
}

#[test]
fn ten_thousand_tails_are_named_in_slices_and_only_when_their_partition_moves() {
    let mut rig = rig_with(&[]);
    rig.create("b", 1, &[]);
    for connection in 0..10_000 {
        let topic = if connection % 2 == 0 { "a" } else { "b" };
        rig.handle(ConnectionId(connection), &tail(topic, OffsetSpec::Latest));
    }
    rig.put("a", "x");
    let first: Vec<_> = (0..100).filter_map(|_| rig.next()).collect();
    assert_eq!(first.len(), 100);
    assert_eq!(
        rig.deadline(),
        Some(Duration::ZERO),
        "the rest wants a turn"
    );
    let rest = rig.ready();
    assert_eq!(first.len() + rest.len(), 5_000);
    assert!(rest.iter().all(|connection| connection % 2 == 0));
}
