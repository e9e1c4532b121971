//! What a policy promises, and what is left of it when the disk fails.

use super::super::sync_rounds::ROUND_SYNCS;
use super::super::sync_together::TOGETHER_MIN;
use super::*;

#[test]
fn under_always_no_reader_sees_a_record_before_the_flush() {
    let mut rig = Rig::new(FsyncPolicy::Always);
    rig.create("a", 1, &[]);
    assert!(matches!(
        rig.handle(BOB, &read("a", OffsetSpec::Offset(0), 1_000)),
        Outcome::Parked
    ));
    rig.append("a", None, "x").unwrap();
    assert_eq!(rig.values("a"), [] as [&str; 0]);
    assert_eq!(rig.offsets("a"), [(0, 0, 0)]);
    assert_eq!(rig.ready(), [] as [u64; 0]);
    rig.turn();
    assert_eq!(rig.ready(), [2]);
    assert!(matches!(rig.resume(BOB), Resumed::Reply(response) if values(&response) == ["x"]));
    assert_eq!(
        rig.crashed().values("a"),
        ["x"],
        "what is acknowledged and seen is durable"
    );
}

/// A rig with one good record, and a second one whose fdatasync failed in the flush.
fn rig_with_failed_fsync() -> (Rig, Run) {
    for at in 0..20 {
        let mut rig = Rig::new(FsyncPolicy::Always);
        rig.create("a", 1, &[]);
        rig.put("a", "good");
        let run = rig.append("a", None, "lost").unwrap();
        rig.fail_at(at, FaultKind::Io);
        rig.flush();
        rig.fs.disarm();
        if rig.stat("read_only_partitions") == 1 {
            return (rig, run);
        }
    }
    panic!("no operation of the flush was an fdatasync");
}

#[test]
fn a_failed_fsync_is_final() {
    let (mut rig, run) = rig_with_failed_fsync();
    let verdict = rig.broker.verdict(&run).clone();
    assert_eq!(verdict.good_below, 1);
    assert_eq!(
        verdict.error.map(|error| error.code),
        Some(ErrorCode::Storage)
    );
    rig.broker.end_turn();
    assert_eq!(rig.values("a"), ["good"], "readers see nothing of it");
    let error = rig.append("a", None, "x").unwrap_err();
    assert_eq!(error.code, ErrorCode::ReadOnly);
    assert!(
        error.message.contains("a/0") && error.message.contains("restart"),
        "{error}"
    );
    for _ in 0..2 {
        assert!(matches!(rig.sync(), Response::Error(e) if e.code == ErrorCode::Storage));
    }
    assert!(matches!(rig.reply(&Request::Delete(b"a")), Response::Done));
    rig.put("b", "other topics go on");
    assert!(
        matches!(rig.sync(), Response::Error(e) if e.code == ErrorCode::Storage),
        "from then on"
    );
    assert!(
        rig.broker.close(&rig.clock).is_err(),
        "the stop is not clean"
    );
    assert!(!rig.mem.exists(Path::new("/data/clean-shutdown")).unwrap());
}

#[test]
fn under_never_nothing_is_synced_and_a_kill_loses_nothing() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.create("a", 1, &[]);
    for value in ["x", "y"] {
        rig.put("a", value);
    }
    assert_eq!(rig.stat("fsyncs_total"), 0);
    assert_eq!(rig.deadline(), None, "no hurry");
    assert_eq!(rig.values("a"), ["x", "y"]);
    assert_eq!(rig.killed().values("a"), ["x", "y"]);
    assert_eq!(rig.crashed().values("a"), [] as [&str; 0]);
}

#[test]
fn under_an_interval_a_record_is_durable_once_it_is_over() {
    let mut rig = Rig::new(FsyncPolicy::EveryMs(100));
    rig.create("a", 2, &[]);
    rig.put("a/0", "x");
    let due = rig.now().mono + Duration::from_millis(100);
    assert_eq!(rig.deadline(), Some(due));
    rig.pass(Duration::from_millis(60));
    rig.put("a/0", "y");
    rig.put("a/1", "z");
    assert_eq!(
        rig.deadline(),
        Some(due),
        "the first unsynced record counts"
    );
    rig.pass(Duration::from_millis(39));
    rig.broker.tick(&rig.clock);
    assert_eq!(rig.crashed().values("a/0"), [] as [&str; 0]);
    rig.pass(Duration::from_millis(1));
    rig.broker.tick(&rig.clock);
    let mut after = rig.crashed();
    assert_eq!(after.values("a/0"), ["x", "y"]);
    assert_eq!(after.values("a/1"), [] as [&str; 0], "its own is not over");
    assert_eq!(rig.deadline(), Some(due + Duration::from_millis(60)));
    rig.pass(Duration::from_millis(60));
    rig.broker.tick(&rig.clock);
    assert_eq!(rig.crashed().values("a/1"), ["z"]);
    assert_eq!(rig.stat("fsyncs_total"), 2);
}

#[test]
fn flush_messages_and_flush_ms_of_a_topic_force_syncs() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.create("count", 1, &[("flush.messages", "3")]);
    rig.create("time", 1, &[("flush.ms", "50")]);
    rig.create("at-once", 1, &[("flush.ms", "0")]);
    rig.put("at-once", "x");
    assert_eq!(rig.crashed().values("at-once"), ["x"]);
    for value in ["1", "2"] {
        rig.put("count", value);
    }
    assert_eq!(rig.crashed().values("count"), [] as [&str; 0]);
    rig.put("count", "3");
    assert_eq!(rig.crashed().values("count"), ["1", "2", "3"]);
    rig.put("time", "x");
    assert_eq!(rig.crashed().values("time"), [] as [&str; 0]);
    rig.pass(Duration::from_millis(50));
    rig.broker.tick(&rig.clock);
    assert_eq!(rig.crashed().values("time"), ["x"]);
}

#[test]
fn sync_makes_everything_durable_and_is_shared() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.create("a", 1, &[]);
    rig.put("a", "x");
    rig.append("a", None, "same turn").unwrap();
    assert!(matches!(rig.handle(ALICE, &Request::Sync), Outcome::Parked));
    assert!(matches!(rig.handle(BOB, &Request::Sync), Outcome::Parked));
    assert_eq!(rig.deadline(), Some(Duration::ZERO), "a flush is wanted");
    assert_eq!(rig.ready(), [] as [u64; 0]);
    rig.turn();
    assert!(
        matches!(rig.handle(CAROL, &Request::Sync), Outcome::Parked),
        "after the flush"
    );
    assert_eq!(rig.ready(), [1, 2]);
    for connection in [ALICE, BOB] {
        assert!(matches!(
            rig.resume(connection),
            Resumed::Reply(Response::Done)
        ));
    }
    assert_eq!(rig.stat("fsyncs_total"), 1);
    assert_eq!(rig.crashed().values("a"), ["x", "same turn"]);
    rig.turn();
    assert_eq!(rig.ready(), [3]);
    assert!(matches!(rig.resume(CAROL), Resumed::Reply(Response::Done)));
}

#[test]
fn a_sync_of_many_partitions_goes_over_turns_and_one_that_comes_meanwhile_waits_for_the_next() {
    let partitions = u32::try_from(ROUND_SYNCS * 2 + 1).unwrap();
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.create("a", partitions, &[]);
    for partition in 0..partitions {
        rig.put(&format!("a/{partition}"), "x");
    }
    assert!(matches!(rig.handle(ALICE, &Request::Sync), Outcome::Parked));
    rig.turn();
    assert_eq!(rig.ready(), [] as [u64; 0], "a part is left");
    assert_eq!(rig.deadline(), Some(Duration::ZERO));
    rig.put("a/0", "behind the round's back");
    assert_eq!(rig.ready(), [] as [u64; 0]);
    assert!(matches!(rig.handle(BOB, &Request::Sync), Outcome::Parked));
    rig.turn();
    assert_eq!(rig.ready(), [1]);
    assert!(matches!(rig.resume(ALICE), Resumed::Reply(Response::Done)));
    assert!(matches!(rig.resume(BOB), Resumed::Waiting));
    rig.turn();
    assert_eq!(rig.ready(), [2]);
    assert!(matches!(rig.resume(BOB), Resumed::Reply(Response::Done)));
    let mut crashed = rig.crashed();
    assert_eq!(crashed.values("a/0"), ["x", "behind the round's back"]);
    let last = format!("a/{}", partitions - 1);
    assert_eq!(crashed.values(&last), ["x"]);
}

#[test]
fn recovery_point_is_replaced_at_most_once_a_second_and_exactly_at_a_stop() {
    let path = Path::new("/data/recovery-point");
    let text = |rig: &Rig| {
        crate::fs::read_file(&rig.mem, path, 1 << 20)
            .map_or(String::new(), |bytes| String::from_utf8(bytes).unwrap())
    };
    let mut rig = Rig::new(FsyncPolicy::Always);
    rig.create("a", 1, &[]);
    rig.put("a", "x");
    let due = rig.now().mono + Duration::from_secs(1);
    assert_eq!(rig.deadline(), Some(due));
    rig.put("a", "y");
    rig.broker.tick(&rig.clock);
    assert!(!text(&rig).contains("a 0 2"));
    rig.pass(Duration::from_secs(1));
    rig.broker.tick(&rig.clock);
    assert!(text(&rig).contains("a 0 2"), "{}", text(&rig));
    assert_eq!(rig.deadline(), None, "nothing moves, nothing is due");
    rig.put("a", "z");
    rig.broker.close(&rig.clock).unwrap();
    assert!(text(&rig).contains("a 0 3"));
}

#[test]
fn a_recovery_point_that_could_not_be_replaced_is_tried_again_each_second() {
    let mut rig = Rig::new(FsyncPolicy::Always);
    rig.create("a", 1, &[]);
    rig.put("a", "x");
    rig.fs.arm(Fault {
        at: 0,
        from_then_on: true,
        kind: FaultKind::NoSpace,
        reads: false,
    });
    for _ in 0..2 {
        rig.pass(Duration::from_secs(1));
        rig.broker.tick(&rig.clock);
        let next = rig.now().mono + Duration::from_secs(1);
        assert_eq!(rig.deadline(), Some(next), "no append moves it again");
    }
    rig.fs.disarm();
    rig.pass(Duration::from_secs(1));
    rig.broker.tick(&rig.clock);
    assert_eq!(rig.deadline(), None);
    let text = crate::fs::read_file(&rig.mem, Path::new("/data/recovery-point"), 1 << 20).unwrap();
    assert!(String::from_utf8(text).unwrap().contains("a 0 1"));
}

#[test]
fn under_never_sealed_segments_are_synced_in_the_background_and_then_durable() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.create("a", 1, &[("segment.bytes", "14")]);
    for value in ["x", "y", "z"] {
        rig.put("a", value);
    }
    assert_eq!(rig.stat("fsyncs_total"), 0, "nothing in the turn itself");
    let mut ticks = 0;
    while rig.deadline() == Some(Duration::ZERO) {
        rig.broker.tick(&rig.clock);
        ticks += 1;
    }
    assert_eq!(
        (ticks, rig.stat("fsyncs_total")),
        (2, 2),
        "one segment a tick"
    );
    assert_eq!(
        rig.crashed().values("a"),
        ["x", "y"],
        "the active segment is not synced"
    );
}

/// One run of a script under a fault at the Nth operation: what was acknowledged must be there after the harshest
/// crash, what was refused must not be taken for acknowledged, and offsets stay unambiguous.
fn run_with_fault(at: u64, kind: FaultKind, from_then_on: bool) -> bool {
    let mut rig = Rig::new(FsyncPolicy::Always);
    rig.create(
        "a",
        2,
        &[("segment.bytes", "300"), ("segment.index.bytes", "240")],
    );
    rig.put("a/0", "before");
    let mut acknowledged = vec![(0, 0, "before".to_owned())];
    rig.fs.arm(Fault {
        at,
        from_then_on,
        kind,
        reads: false,
    });
    for turn in 0..4 {
        let mut runs = Vec::new();
        for i in 0..6 {
            let value = format!("turn {turn} record {i} {}", "-".repeat(i * 7));
            let partition = i % 2;
            if let Ok(run) = rig.append(&format!("a/{partition}"), None, &value) {
                runs.push((run, value));
            }
        }
        rig.flush();
        let mut seen = std::collections::BTreeSet::new();
        for (run, value) in runs {
            if is_good(rig.broker.verdict(&run), run.first_offset) {
                assert!(
                    seen.insert((run.partition, run.first_offset)),
                    "an offset given twice"
                );
                acknowledged.push((run.partition, run.first_offset, value));
            }
        }
        rig.broker.end_turn();
        rig.pass(Duration::from_millis(600));
        rig.broker.tick(&rig.clock);
    }
    let struck = rig.fs.struck() > 0;
    rig.fs.disarm();
    let held = |rig: &mut Rig, label: &str| {
        for (partition, offset, value) in &acknowledged {
            let target = format!("a/{partition}");
            let got = rig.reply(&read(&target, OffsetSpec::Offset(*offset), 0));
            assert_eq!(
                values(&got).first(),
                Some(value),
                "{label}, fault {kind:?} at {at}"
            );
        }
    };
    held(&mut rig, "alive");
    held(&mut rig.crashed(), "crashed");
    held(&mut rig.killed(), "killed");
    struck
}

#[test]
fn what_is_acknowledged_survives_a_fault_at_any_operation_and_the_crash_after_it() {
    for kind in [
        FaultKind::Io,
        FaultKind::NoSpace,
        FaultKind::IoAfter,
        FaultKind::Short(7),
        FaultKind::Torn(9),
    ] {
        for from_then_on in [false, true] {
            let mut at = 0;
            while run_with_fault(at, kind, from_then_on) {
                at += 1;
            }
            assert!(at > 20, "the script has operations to strike");
        }
    }
}

/// A turn that appends one record to each of many partitions, and the runs of it.
fn append_to_many(rig: &mut Rig, partitions: u32) -> Vec<Run> {
    (0..partitions)
        .map(|number| rig.append(&format!("a/{number}"), None, "x").unwrap())
        .collect()
}

#[test]
fn many_partitions_of_a_turn_are_durable_by_one_sync() {
    let partitions = u32::try_from(TOGETHER_MIN).unwrap();
    let mut rig = Rig::new(FsyncPolicy::Always);
    rig.create("a", partitions, &[]);
    let fsyncs = rig.stat("fsyncs_total");
    let runs = append_to_many(&mut rig, partitions);
    rig.flush();
    for run in &runs {
        assert_eq!(rig.broker.verdict(run).error, None);
    }
    rig.broker.end_turn();
    assert_eq!(rig.stat("fsyncs_total") - fsyncs, 1);
    let mut after = rig.crashed();
    for number in 0..partitions {
        assert_eq!(after.values(&format!("a/{number}")), ["x"]);
    }
}

/// FORMAT, rule 9.
#[test]
fn a_failed_sync_of_many_counts_for_each_of_them() {
    let partitions = u32::try_from(TOGETHER_MIN).unwrap();
    let mut counts = Vec::new();
    for at in 0.. {
        let mut rig = Rig::new(FsyncPolicy::Always);
        rig.create("a", partitions + 1, &[]);
        let runs = append_to_many(&mut rig, partitions);
        rig.fail_at(at, FaultKind::Io);
        rig.flush();
        if rig.fs.struck() == 0 {
            break;
        }
        rig.fs.disarm();
        let is_bad = |run: &&Run| rig.broker.verdict(run).good_below <= run.first_offset;
        let failed: Vec<u32> = runs
            .iter()
            .filter(is_bad)
            .map(|run| run.partition)
            .collect();
        rig.broker.end_turn();
        counts.push(failed.len());
        if failed.len() > 1 {
            for number in failed {
                let error = rig.append(&format!("a/{number}"), None, "y").unwrap_err();
                assert_eq!(error.code, ErrorCode::ReadOnly);
            }
        }
        assert_eq!(rig.put(&format!("a/{partitions}"), "x").1, 0);
    }
    counts.retain(|&count| count > 1);
    assert_eq!(counts, [TOGETHER_MIN], "one call is the sync");
}

#[test]
fn a_failure_while_many_are_synced_loses_nothing_that_was_acknowledged() {
    let partitions = u32::try_from(TOGETHER_MIN).unwrap() + 1;
    for kind in [FaultKind::Io, FaultKind::IoAfter, FaultKind::Torn(5)] {
        for from_then_on in [false, true] {
            for at in 0.. {
                let mut rig = Rig::new(FsyncPolicy::Always);
                // Some of the records open a segment.
                rig.create("a", partitions, &[("segment.bytes", "14")]);
                append_to_many(&mut rig, partitions);
                rig.turn();
                let runs = append_to_many(&mut rig, partitions);
                rig.fs.arm(Fault {
                    at,
                    from_then_on,
                    kind,
                    reads: false,
                });
                rig.flush();
                let struck = rig.fs.struck();
                rig.fs.disarm();
                let mut after = rig.crashed();
                for run in &runs {
                    let verdict = rig.broker.verdict(run);
                    let is_good = run.first_offset < verdict.good_below;
                    let values = after.values(&format!("a/{}", run.partition));
                    assert!(
                        values.len() == 2 || values.len() == 1 && !is_good,
                        "{kind:?} at {at}: {values:?}, {verdict:?}"
                    );
                }
                if struck == 0 {
                    break;
                }
            }
        }
    }
}
