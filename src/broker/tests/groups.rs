//! Consumers where the disk or the power fails, and what the topic of committed offsets does.

use super::*;
use crate::api::{AckMode, CommitAnswer, Consume, StartAt};

const CONSUME: Consume<'_> = Consume {
    group: b"g",
    topic: b"t",
    from: StartAt::Earliest,
    ack: AckMode::Manual,
    max_inflight: 1000,
    ack_wait: None,
};

fn consume(rig: &mut Rig, connection: ConnectionId) {
    let outcome = rig.handle(connection, &Request::Consume(CONSUME));
    assert!(matches!(outcome, Outcome::Streaming(Response::Consuming)));
}

/// A turn; the news of one connection in it.
fn news(rig: &mut Rig, connection: ConnectionId) -> Vec<TailEvent> {
    let mut events = Vec::new();
    rig.flush();
    while let Some(ready) = rig.next() {
        loop {
            match rig.resume(ready) {
                Resumed::Event(event) if ready == connection => events.push(event),
                Resumed::Event(_) => {}
                _ => break,
            }
        }
    }
    rig.broker.end_turn();
    events
}

fn offsets_of(event: &TailEvent) -> Vec<i64> {
    match event {
        TailEvent::Records { records, .. } => records.iter().map(|record| record.offset).collect(),
        other => panic!("no records: {other:?}"),
    }
}

/// An ACK or COMMIT in a turn of its own.
fn commit(rig: &mut Rig, request: &Request<'_>) -> Result<CommitAnswer, ApiError> {
    let Outcome::Commit(ticket) = rig.handle(ALICE, request) else {
        panic!("{request:?} is no commit");
    };
    let ticket = ticket?;
    rig.flush();
    let error = rig.broker.commit_error(ticket).cloned();
    rig.broker.end_turn();
    error.map_or(Ok(ticket.answer), Err)
}

fn ack(rig: &mut Rig, offset: i64) -> Result<CommitAnswer, ApiError> {
    let partition = 0;
    commit(rig, &Request::Ack { partition, offset })
}

fn commit_at(rig: &mut Rig, group: &str, offset: i64) {
    let request = Request::Commit {
        group: group.as_bytes(),
        target: target_of("t"),
        offset: OffsetSpec::Offset(offset),
    };
    assert_eq!(commit(rig, &request), Ok(CommitAnswer::Done));
}

fn committed(rig: &mut Rig) -> Option<i64> {
    let request = Request::Committed {
        group: b"g",
        target: target_of("t"),
    };
    match rig.reply(&request) {
        Response::Committed(rows) => rows[0].committed,
        other => panic!("{other:?}"),
    }
}

fn rig_with(fsync: FsyncPolicy, records: usize) -> Rig {
    let mut rig = Rig::new(fsync);
    rig.create("t", 1, &[]);
    for n in 0..records {
        rig.put("t", &n.to_string());
    }
    rig
}

#[test]
fn an_ack_that_cannot_be_written_is_refused_and_can_be_sent_again() {
    let mut rig = rig_with(FsyncPolicy::Always, 3);
    consume(&mut rig, ALICE);
    assert_eq!(news(&mut rig, ALICE).len(), 2);
    assert_eq!(ack(&mut rig, 0), Ok(CommitAnswer::Done));
    rig.fail_at(0, FaultKind::NoSpace);
    let error = ack(&mut rig, 1).expect_err("the disk is full");
    assert_eq!(error.code, ErrorCode::DiskFull);
    assert_eq!(committed(&mut rig), Some(1), "it does not advance");
    assert_eq!(ack(&mut rig, 1), Ok(CommitAnswer::Done));
    assert_eq!(committed(&mut rig), Some(2));
    assert_eq!(
        committed(&mut rig.crashed()),
        Some(2),
        "OK means on the disk"
    );
}

#[test]
fn many_acks_of_a_turn_are_one_record() {
    let mut rig = rig_with(FsyncPolicy::Always, 50);
    consume(&mut rig, ALICE);
    news(&mut rig, ALICE);
    let before = rig.stat("fsyncs_total");
    for offset in 0..50 {
        let outcome = rig.handle(
            ALICE,
            &Request::Ack {
                partition: 0,
                offset,
            },
        );
        assert!(matches!(outcome, Outcome::Commit(Ok(_))));
    }
    rig.turn();
    assert_eq!(rig.offsets("__consumer_offsets"), [(0, 0, 1)]);
    assert_eq!(rig.stat("fsyncs_total"), before + 1);
    assert_eq!(rig.values("__consumer_offsets"), ["50"]);
}

#[test]
fn an_offset_whose_log_lost_its_end_goes_back_and_says_so_even_after_a_second_start() {
    let mut rig = rig_with(FsyncPolicy::Never, 2);
    rig.sync();
    for n in 2..5 {
        rig.put("t", &n.to_string());
    }
    commit_at(&mut rig, "g", 5);
    commit_at(&mut rig, "other", 1);
    // Only the commits are on the disk when the power goes.
    let key = rig.broker.topics.find(b"__consumer_offsets");
    let key = rig.broker.topics.get(key.unwrap()).unwrap().partitions[0];
    rig.broker
        .partitions
        .get_mut(key)
        .unwrap()
        .log
        .sync()
        .unwrap();
    let mut rig = rig.crashed();
    assert_eq!(rig.offsets("t"), [(0, 0, 2)]);
    rig.turn();
    let mut rig = rig.killed();
    for n in 0..4 {
        rig.put("t", &format!("new {n}"));
    }
    assert_eq!(committed(&mut rig), Some(2));
    consume(&mut rig, ALICE);
    let events = news(&mut rig, ALICE);
    assert!(
        matches!(
            events[1],
            TailEvent::Reset {
                partition: 0,
                from: 5,
                to: 2
            }
        ),
        "{events:?}"
    );
    assert_eq!(
        offsets_of(&events[2]),
        [2, 3, 4, 5],
        "nothing that is new is left out"
    );
    assert_eq!(ack(&mut rig, 3), Ok(CommitAnswer::Done));
    assert_eq!(committed(&mut rig), Some(4));
    rig.broker.stop(ALICE);
    rig.turn();
    consume(&mut rig, BOB);
    let events = news(&mut rig, BOB);
    assert_eq!(offsets_of(&events[1]), [4, 5], "it is told once");
}

#[test]
fn what_a_deleted_topic_had_committed_is_forgotten_though_the_disk_is_full_for_a_while() {
    let mut rig = rig_with(FsyncPolicy::Always, 3);
    commit_at(&mut rig, "g", 3);
    let response = rig.reply(&Request::Delete(b"t"));
    assert!(matches!(response, Response::Done));
    rig.fail_always(FaultKind::NoSpace);
    rig.turn();
    rig.fs.disarm();
    rig.pass(Duration::from_secs(2));
    rig.turn();
    assert_eq!(rig.offsets("__consumer_offsets"), [(0, 0, 2)]);
    let mut rig = rig.crashed();
    assert_eq!(rig.stat("groups"), 0);
    rig.create("t", 1, &[]);
    rig.put("t", "x");
    consume(&mut rig, ALICE);
    assert_eq!(offsets_of(&news(&mut rig, ALICE)[1]), [0]);
}

#[test]
fn a_group_is_as_old_as_its_last_commit_however_often_the_broker_starts() {
    let mut rig = rig_with(FsyncPolicy::Always, 3);
    let start = rig.now();
    rig.clock.set(Now {
        wall_ms: start.wall_ms - 1_000_000,
        ..start
    });
    commit_at(&mut rig, "g", 3);
    let mut rig = rig.restarted();
    assert_eq!(rig.now(), start);
    let week = Duration::from_hours(7 * 24);
    rig.later(week.checked_sub(Duration::from_mins(20)).unwrap());
    assert_eq!(rig.stat("groups"), 1);
    rig.later(Duration::from_secs(400));
    assert_eq!(rig.stat("groups"), 0, "a week and 200 s after its commit");
}

#[test]
fn a_partition_that_comes_back_untold_brings_its_time_to_acknowledge_with_it() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.create("t", 2, &[]);
    rig.put("t/1", "x");
    let request = Request::Consume(Consume {
        ack_wait: Some(Duration::from_secs(5)),
        ..CONSUME
    });
    for connection in [ALICE, BOB] {
        let outcome = rig.handle(connection, &request);
        assert!(matches!(outcome, Outcome::Streaming(Response::Consuming)));
        if connection == ALICE {
            assert_eq!(news(&mut rig, ALICE).len(), 2);
            rig.pass(Duration::from_secs(2));
        }
    }
    rig.broker.forget(BOB);
    assert!(
        matches!(&*news(&mut rig, ALICE), [TailEvent::Assigned(numbers)] if **numbers == [0, 1])
    );
    let due = rig.now().mono + Duration::from_secs(3);
    let member = rig.broker.groups.member(ALICE).expect("it consumes");
    assert_eq!(member.deadline(), Some(due));
}

#[test]
fn committed_offsets_are_compacted_like_any_other_records() {
    let mut rig = rig_with(FsyncPolicy::Never, 3);
    let group = "g".repeat(249);
    for n in 0..9000 {
        commit_at(&mut rig, &group, n % 4);
    }
    commit_at(&mut rig, "g", 2);
    assert!(rig.segments("__consumer_offsets").len() > 2);
    rig.later(Duration::from_mins(1));
    let bytes = |rig: &mut Rig| match rig.reply(&Request::Topics) {
        Response::Topics(topics) => topics[0].bytes,
        other => panic!("{other:?}"),
    };
    assert!(bytes(&mut rig) < 1_200_000, "{} bytes", bytes(&mut rig));
    let mut rig = rig.killed();
    assert_eq!(committed(&mut rig), Some(2));
    assert_eq!(rig.stat("groups"), 2);
}

#[test]
fn no_topic_for_commits_is_there_before_the_first_and_no_limit_keeps_it_out() {
    let mut rig = Rig::with(Settings {
        max_topics: 1,
        max_partitions: 1,
        ..settings(FsyncPolicy::Always)
    });
    assert_eq!(rig.topic_names(), [] as [&str; 0]);
    rig.create("t", 1, &[]);
    rig.put("t", "x");
    commit_at(&mut rig, "g", 1);
    assert_eq!(rig.topic_names(), ["__consumer_offsets", "t"]);
    assert_eq!(committed(&mut rig.crashed()), Some(1));
}
