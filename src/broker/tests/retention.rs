//! Retention through the broker's own requests: each rule, the order, the files, the readers in the middle.

use super::*;
use crate::fs::{File, OpenMode};

const HOUR: Duration = Duration::from_hours(1);

/// A rig whose passes come every second from the first second on.
fn rig(configs: &[(&str, &str)]) -> Rig {
    let always = [
        ("log.initial.task.delay.ms", "1000"),
        ("log.retention.check.interval.ms", "1000"),
        ("message.timestamp.after.max.ms", "9223372036854775807"),
    ];
    let configs = always.iter().chain(configs);
    Rig::with(Settings {
        configs: configs
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect(),
        ..settings(FsyncPolicy::Always)
    })
}

fn second() -> Duration {
    Duration::from_secs(1)
}

/// So many records, one in each segment.
fn fill(rig: &mut Rig, target: &str, count: usize) {
    for n in 0..count {
        rig.put(target, &format!("{n}"));
    }
}

#[test]
fn a_small_idle_topic_expires_whole_and_its_offsets_go_on() {
    let mut rig = rig(&[("retention.ms", "3600000"), ("segment.ms", "600000")]);
    rig.create("a", 1, &[]);
    fill(&mut rig, "a", 3);
    rig.later(HOUR / 2);
    assert_eq!(rig.values("a").len(), 3, "it only rolled");
    assert_eq!(rig.segments("a"), [0, 3]);
    rig.later(HOUR);
    assert_eq!(rig.offsets("a"), [(0, 3, 3)]);
    assert_eq!(rig.segments("a"), [3]);
    assert_eq!(rig.put("a", "next"), (0, 3));
    let mut after = rig.crashed();
    assert_eq!(after.offsets("a"), [(0, 3, 4)]);
    assert_eq!(after.values("a"), ["next"]);
}

#[test]
fn an_active_segment_that_is_due_by_time_goes_without_an_idle_roll() {
    let mut rig = rig(&[("retention.ms", "1000")]);
    rig.create("a", 1, &[]);
    fill(&mut rig, "a", 3);
    rig.later(second());
    assert_eq!(
        rig.offsets("a"),
        [(0, 0, 3)],
        "as old as the limit: not over it"
    );
    rig.later(second());
    assert_eq!(rig.offsets("a"), [(0, 3, 3)]);
    assert_eq!(rig.put("a", "next"), (0, 3));
}

#[test]
fn a_record_from_the_future_pins_nothing() {
    let mut rig = rig(&[("retention.ms", "1000"), ("segment.bytes", "14")]);
    rig.create("a", 1, &[]);
    let now = rig.now();
    let payload = Payload::Record {
        timestamp: Some(i64::MAX),
        key: None,
        value: Some(b"from the future"),
        headers: &[],
    };
    rig.broker.append(target_of("a"), &payload, now).unwrap();
    rig.turn();
    fill(&mut rig, "a", 2);
    let mut rig = rig.restarted();
    rig.later(second() * 2);
    assert_eq!(rig.offsets("a"), [(0, 3, 3)]);
}

#[test]
fn size_keeps_at_least_its_limit() {
    let mut rig = rig(&[("segment.bytes", "14"), ("retention.ms", "-1")]);
    rig.create("a", 1, &[]);
    fill(&mut rig, "a", 5);
    let Response::Segments(lines) = rig.reply(&Request::Segments(target_of("a"))) else {
        panic!("segments are listed")
    };
    let each = lines[0].bytes;
    let limit = (3 * each).to_string();
    assert!(matches!(
        rig.alter("a", &[("retention.bytes", &limit)]),
        Response::Done
    ));
    rig.settle();
    assert_eq!(rig.segments("a"), [2, 3, 4], "equal is not over");
    let limit = (3 * each - 1).to_string();
    rig.alter("a", &[("retention.bytes", &limit)]);
    rig.settle();
    assert_eq!(rig.segments("a"), [2, 3, 4], "never less than the limit");
    rig.alter("a", &[("retention.bytes", "0")]);
    rig.later(second());
    assert_eq!(rig.offsets("a"), [(0, 5, 5)]);
    assert_eq!(rig.put("a", "next"), (0, 5));
    assert_eq!(rig.stat("retention_segments_total"), 5);
}

#[test]
fn the_first_pass_waits_and_an_idle_broker_sleeps_between_two() {
    let mut rig = rig(&[("segment.bytes", "14"), ("retention.bytes", "0")]);
    rig.create("a", 1, &[]);
    fill(&mut rig, "a", 3);
    rig.later(Duration::from_millis(999));
    assert_eq!(rig.segments("a").len(), 3);
    rig.later(Duration::from_millis(1));
    assert_eq!(rig.segments("a"), [3]);
    rig.later(second());
    rig.later(Duration::from_mins(2));
    assert_eq!(
        rig.broker.next_deadline(),
        Some(rig.now().mono + second()),
        "only the next pass is ahead"
    );
}

#[test]
fn trim_moves_the_start_at_once_and_the_files_go_soon() {
    let mut rig = rig(&[("segment.bytes", "14"), ("file.delete.delay.ms", "5000")]);
    rig.create("a", 2, &[]);
    fill(&mut rig, "a/0", 4);
    let trimmed = |response| match response {
        Response::Trimmed { earliest, latest } => (earliest, latest),
        other => panic!("{other:?}"),
    };
    assert_eq!(trimmed(rig.trim("a/0", 2)), (2, 4));
    assert_eq!(rig.values("a/0"), ["2", "3"]);
    assert_eq!(
        rig.error(&read("a/0", OffsetSpec::Offset(1), 0)).code,
        ErrorCode::OffsetOutOfRange
    );
    assert_eq!(trimmed(rig.trim("a/0", 1)), (2, 4), "never back");
    rig.settle();
    assert_eq!(rig.segments("a/0"), [2, 3]);
    assert_eq!(rig.files("/data/a-0", ".deleted").len(), 6);
    assert_eq!(rig.stat("deleted_files_waiting"), 6);
    rig.later(Duration::from_millis(4999));
    assert_eq!(rig.files("/data/a-0", ".deleted").len(), 6);
    rig.later(Duration::from_millis(1));
    assert_eq!(rig.files("/data/a-0", ".deleted"), [""; 0]);
    assert_eq!(trimmed(rig.trim("a/0", 4)), (4, 4));
    let error = rig.error(&Request::Trim(target_of("a/0"), 5));
    assert_eq!(error.code, ErrorCode::OffsetOutOfRange);
    assert!(error.message.contains("earliest 4") && error.message.contains("latest 4"));
    for (target, code) in [
        ("a", ErrorCode::AmbiguousPartition),
        ("a/2", ErrorCode::UnknownPartition),
        ("b", ErrorCode::UnknownTopic),
        ("__b", ErrorCode::InvalidTopic),
    ] {
        assert_eq!(rig.error(&Request::Trim(target_of(target), 0)).code, code);
    }
    let mut after = rig.crashed();
    assert_eq!(after.offsets("a/0"), [(0, 4, 4)], "it is durable");
    assert_eq!(after.put("a/0", "next"), (0, 4));
}

#[test]
fn who_is_overtaken_is_told_and_who_stands_at_the_end_is_not() {
    let mut rig = rig(&[]);
    rig.create("a", 1, &[]);
    fill(&mut rig, "a", 3);
    rig.handle(BOB, &tail("a", OffsetSpec::Offset(1)));
    rig.handle(CAROL, &tail("a", OffsetSpec::Latest));
    let waiting = ConnectionId(9);
    assert!(matches!(
        rig.handle(waiting, &fetch("a", 0, (1_000_000, 100_000), 60_000)),
        Outcome::Parked
    ));
    rig.ready();
    rig.trim("a", 3);
    for connection in rig.ready() {
        match (connection, rig.resume(ConnectionId(connection))) {
            (2, Resumed::Ended(Response::Error(error)))
            | (9, Resumed::Reply(Response::Error(error))) => {
                assert_eq!(error.code, ErrorCode::OffsetOutOfRange);
            }
            (3, Resumed::Waiting) => {}
            other => panic!("{other:?}"),
        }
    }
    rig.put("a", "next");
    assert_eq!(rig.ready(), [3], "the others are gone");
    assert_eq!(event_values(&rig.resume(CAROL)).1, ["next"]);
}

#[test]
fn a_trim_that_fails_moves_nothing_now_or_later() {
    for at in 0.. {
        let mut rig = rig(&[]);
        rig.create("a", 1, &[]);
        rig.create("b", 1, &[]);
        fill(&mut rig, "a", 3);
        fill(&mut rig, "b", 3);
        rig.fail_at(at, FaultKind::Io);
        let response = rig.trim("a", 2);
        rig.fs.disarm();
        if rig.fs.struck() == 0 {
            assert!(matches!(response, Response::Trimmed { .. }) && at > 3);
            return;
        }
        if matches!(response, Response::Error(_)) {
            assert_eq!(rig.offsets("a"), [(0, 0, 3)]);
            assert!(matches!(rig.trim("b", 1), Response::Trimmed { .. }));
            let mut after = rig.killed();
            assert_eq!(after.offsets("a"), [(0, 0, 3)], "operation {at}");
            assert_eq!(after.offsets("b"), [(0, 1, 3)]);
        }
    }
}

#[test]
fn the_oldest_segments_of_all_topics_go_over_the_total() {
    let mut rig = rig(&[("segment.bytes", "14"), ("retention.ms", "-1")]);
    for topic in ["a", "b"] {
        rig.create(topic, 1, &[]);
    }
    for n in 0..4 {
        for topic in ["a", "b"] {
            rig.put(topic, &n.to_string());
            rig.pass(Duration::from_millis(1));
        }
    }
    let each = match rig.reply(&Request::Segments(target_of("a"))) {
        Response::Segments(lines) => lines[0].bytes,
        other => panic!("{other:?}"),
    };
    rig.broker.settings.retention_total_bytes = 5 * each;
    rig.later(second());
    assert_eq!(rig.segments("a"), [2, 3], "a0 b0 a1 went");
    assert_eq!(rig.segments("b"), [1, 2, 3]);
    rig.broker.settings.retention_total_bytes = 1;
    rig.later(second());
    assert_eq!(
        (rig.values("a"), rig.values("b")),
        (vec!["3".into()], vec!["3".into()])
    );
    rig.later(second());
    assert_eq!(rig.offsets("a"), [(0, 3, 4)], "the active one stays");
}

#[test]
fn a_delay_of_nothing_works_and_a_stop_waits_for_no_file() {
    let mut rig = rig(&[
        ("segment.bytes", "14"),
        ("retention.bytes", "0"),
        ("file.delete.delay.ms", "0"),
    ]);
    rig.create("a", 1, &[]);
    rig.create("b", 1, &[("file.delete.delay.ms", "60000")]);
    fill(&mut rig, "a", 3);
    fill(&mut rig, "b", 3);
    rig.later(second());
    assert_eq!(rig.files("/data/a-0", ".deleted"), [""; 0]);
    assert_eq!(rig.files("/data/b-0", ".deleted").len(), 9);
    let mut after = rig.restarted();
    assert_eq!(
        after.files("/data/b-0", ".deleted"),
        [""; 0],
        "a start removes them"
    );
    assert_eq!(after.offsets("b"), [(0, 3, 3)]);
}

#[test]
fn a_big_file_is_shortened_in_slices_and_only_when_nobody_sends_from_it() {
    for is_active in [false, true] {
        shorten_while_it_is_sent(is_active);
    }
}

/// The segment is sent from, from a time on at which it is sealed or still the active one.
fn shorten_while_it_is_sent(is_active: bool) {
    let mut rig = rig(&[("segment.bytes", "14"), ("file.delete.delay.ms", "10")]);
    rig.create("a", 1, &[]);
    fill(&mut rig, "a", if is_active { 1 } else { 2 });
    let Response::Fetched {
        range: Some(range), ..
    } = rig.reply(&fetch("a", 0, (100, 1), 0))
    else {
        panic!("a record is there")
    };
    if is_active {
        fill(&mut rig, "a", 1);
    }
    rig.trim("a", 1);
    rig.settle();
    let path = Path::new("/data/a-0/00000000000000000000.log.deleted");
    let file = rig.mem.open(path, OpenMode::Write).unwrap();
    file.set_len(4 << 20).unwrap();
    rig.later(Duration::from_millis(10));
    assert_eq!(file.len().unwrap(), 4 << 20, "it is being sent");
    let mut byte = [0];
    assert_eq!(range.file.read_at(&mut byte, range.position).unwrap(), 1);
    assert_eq!(
        rig.deadline(),
        Some(rig.now().mono + Duration::from_millis(100))
    );
    drop(range);
    rig.pass(Duration::from_millis(100));
    let mut sizes = Vec::new();
    while rig.stat("deleted_files_waiting") > 0 {
        rig.turn();
        rig.broker.tick(&rig.clock);
        sizes.push(file.len().unwrap() >> 20);
    }
    assert_eq!(sizes, [3, 2, 1, 1]);
    assert!(!rig.mem.exists(path).unwrap());
}

#[test]
fn a_topic_made_anew_is_not_hurt_by_files_of_the_old_one() {
    let mut rig = rig(&[("segment.bytes", "14"), ("file.delete.delay.ms", "5000")]);
    for _ in 0..2 {
        rig.create("a", 1, &[]);
        fill(&mut rig, "a", 3);
        rig.trim("a", 1);
        rig.settle();
        assert_eq!(rig.files("/data/a-0", ".deleted").len(), 3);
        rig.pass(Duration::from_secs(3));
        if rig.values("a").len() == 2 && rig.stat("topics") == 1 {
            assert!(matches!(rig.reply(&Request::Delete(b"a")), Response::Done));
        }
        rig.settle();
    }
    rig.create("a", 1, &[]);
    fill(&mut rig, "a", 3);
    rig.trim("a", 1);
    rig.later(Duration::from_secs(4));
    assert_eq!(
        rig.files("/data/a-0", ".deleted").len(),
        3,
        "their own delay counts"
    );
}

#[test]
fn a_slice_takes_out_a_few_segments_and_leaves_the_rest_to_the_next() {
    let mut rig = rig(&[("segment.bytes", "14"), ("retention.bytes", "0")]);
    rig.create("a", 1, &[]);
    fill(&mut rig, "a", 50);
    rig.pass(second());
    let mut before = rig.segments("a").len();
    while rig.broker.next_deadline() <= Some(rig.now().mono) {
        rig.turn();
        rig.broker.tick(&rig.clock);
        let now = rig.segments("a").len();
        assert!(before <= now + 5, "{before} to {now} in one slice");
        before = now;
    }
    assert_eq!(rig.segments("a"), [50]);
}

#[test]
fn retention_survives_a_crash_and_a_fault_at_every_operation() {
    for is_crash in [true, false] {
        for at in 0.. {
            let mut rig = rig(&[("segment.bytes", "14"), ("file.delete.delay.ms", "0")]);
            rig.create("a", 1, &[]);
            fill(&mut rig, "a", 4);
            rig.alter("a", &[("retention.bytes", "60")]);
            rig.fs.arm(Fault {
                at,
                from_then_on: is_crash,
                kind: FaultKind::Io,
                reads: false,
            });
            rig.later(second());
            let struck = rig.fs.struck();
            rig.fs.disarm();
            let mut after = if is_crash {
                rig.crashed()
            } else {
                rig.killed()
            };
            let values = after.values("a");
            let all = ["0", "1", "2", "3"];
            assert!(all.ends_with(&values.iter().map(String::as_str).collect::<Vec<_>>()));
            assert!(values.contains(&"3".to_owned()), "operation {at}");
            assert_eq!(after.put("a", "next"), (0, 4));
            if struck == 0 {
                assert!(at > 3);
                break;
            }
        }
    }
}

/// Counts how often it is asked, which a pass does once for each partition it looks at; each question takes so long.
#[derive(Debug)]
struct CountingClock {
    asked: std::cell::Cell<u32>,
    now: std::cell::Cell<Now>,
    step: Duration,
}

impl Clock for CountingClock {
    fn now(&self) -> Now {
        self.asked.set(self.asked.get() + 1);
        let mut now = self.now.get();
        now.mono += self.step;
        self.now.set(now);
        now
    }
}

#[test]
fn a_pass_over_twenty_thousand_partitions_is_many_short_slices() {
    let mut rig = Rig::with(Settings {
        max_partitions: 30_000,
        ..settings(FsyncPolicy::Never)
    });
    for number in 0..20 {
        rig.create(&format!("t{number}"), 1000, &[]);
    }
    rig.settle();
    // By count, and where each look takes long by time.
    for (step, looks_max) in [(Duration::ZERO, 80), (Duration::from_millis(1), 10)] {
        rig.pass(Duration::from_secs(400));
        let clock = CountingClock {
            asked: std::cell::Cell::new(0),
            now: std::cell::Cell::new(rig.now()),
            step,
        };
        let (mut slices, due) = (0, rig.broker.retention.next_deadline());
        assert!(due <= rig.now().mono, "a pass is due");
        loop {
            clock.asked.set(0);
            rig.broker.tick(&clock);
            assert!(clock.asked.get() < looks_max, "{} looks", clock.asked.get());
            if rig.broker.retention.next_deadline() > Duration::ZERO {
                break;
            }
            slices += 1;
        }
        assert!(slices >= 20_000 / looks_max, "{slices} slices");
    }
}
