//! ALTER and PARTITIONS: what they refuse, what is in force at once, what a failure or a crash leaves.

use super::*;
use crate::api::ConfigSource;

fn config(rig: &mut Rig, topic: &str, name: &str) -> (String, ConfigSource) {
    match rig.reply(&Request::Describe(topic.as_bytes())) {
        Response::Described { configs, .. } => configs
            .into_iter()
            .find(|line| line.0 == name)
            .map(|line| (line.1, line.2))
            .unwrap(),
        other => panic!("{other:?}"),
    }
}

fn partitions(topic: &str, count: u32) -> Request<'_> {
    Request::Partitions(topic.as_bytes(), count)
}

#[test]
fn alter_is_in_force_at_once_and_after_a_crash() {
    let mut rig = Rig::new(FsyncPolicy::Always);
    rig.create("a", 1, &[("flush.ms", "5")]);
    rig.put("a", "as long as it likes");
    let done = rig.alter("a", &[("max.message.bytes", "3"), ("flush.ms", "default")]);
    assert!(matches!(done, Response::Done));
    let error = rig.append("a", None, "four").unwrap_err();
    assert_eq!(error.code, ErrorCode::MessageTooLarge);
    rig.turn();
    let mut rig = rig.crashed();
    assert_eq!(
        config(&mut rig, "a", "max.message.bytes"),
        ("3".into(), ConfigSource::Topic)
    );
    assert_eq!(config(&mut rig, "a", "flush.ms").1, ConfigSource::Default);
    assert!(rig.append("a", None, "four").is_err());
}

#[test]
fn alter_takes_all_or_nothing() {
    let mut rig = Rig::with(Settings {
        configs: vec![("max.compaction.lag.ms".into(), "100".into())],
        ..settings(FsyncPolicy::Always)
    });
    rig.create("a", 1, &[]);
    for (configs, code) in [
        (
            &[("segment.bytes", "100"), ("segment.ms", "x")][..],
            ErrorCode::InvalidConfig,
        ),
        (
            &[("segment.bytes", "100"), ("num.partitions", "2")],
            ErrorCode::InvalidConfig,
        ),
        (
            &[("segment.bytes", "100"), ("min.compaction.lag.ms", "101")],
            ErrorCode::InvalidConfig,
        ),
        (&[("segment.bytes", "Default")], ErrorCode::InvalidConfig),
    ] {
        let error = rig.error(&Request::Alter {
            topic: b"a",
            configs: configs.to_vec(),
        });
        assert_eq!(error.code, code, "{configs:?}");
    }
    assert_eq!(
        config(&mut rig, "a", "segment.bytes").1,
        ConfigSource::Default
    );
    for (topic, code) in [
        (&b"__a"[..], ErrorCode::InvalidTopic),
        (b"b", ErrorCode::UnknownTopic),
    ] {
        let configs = vec![("segment.bytes", "100")];
        assert_eq!(rig.error(&Request::Alter { topic, configs }).code, code);
    }
    let error = rig.error(&create("c", None, &[("min.compaction.lag.ms", "101")]));
    assert_eq!(error.code, ErrorCode::InvalidConfig);
    assert!(
        error.message.contains("min.compaction.lag.ms=101"),
        "{error}"
    );
}

#[test]
fn a_shorter_flush_interval_counts_for_what_waits_already() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.create("a", 1, &[("flush.ms", "20000")]);
    rig.put("a", "x");
    let now = rig.now().mono;
    assert_eq!(rig.deadline(), Some(now + Duration::from_secs(20)));
    rig.alter("a", &[("flush.ms", "10")]);
    rig.settle();
    assert_eq!(rig.deadline(), Some(now + Duration::from_millis(10)));
    rig.alter("a", &[("flush.ms", "default")]);
    rig.settle();
    assert_eq!(rig.deadline(), None);
}

#[test]
fn alter_at_every_fault_and_crash_gives_the_old_or_the_new() {
    for kind in [FaultKind::Io, FaultKind::IoAfter, FaultKind::NoSpace] {
        for from_then_on in [false, true] {
            for at in 0.. {
                let mut rig = Rig::new(FsyncPolicy::Always);
                rig.create("a", 1, &[]);
                rig.put("a", "x");
                rig.fs.arm(Fault {
                    at,
                    from_then_on,
                    kind,
                    reads: false,
                });
                let response = rig.alter("a", &[("segment.bytes", "100")]);
                let struck = rig.fs.struck();
                rig.fs.disarm();
                let is_done = matches!(response, Response::Done);
                let source = if is_done {
                    ConfigSource::Topic
                } else {
                    ConfigSource::Default
                };
                assert_eq!(config(&mut rig, "a", "segment.bytes").1, source);
                let mut crashed =
                    Rig::start(rig.mem.crash(&mut |_| 0), rig.settings.clone()).unwrap();
                assert_eq!(crashed.values("a"), ["x"]);
                if is_done {
                    assert_eq!(config(&mut crashed, "a", "segment.bytes").1, source);
                }
                rig.put("a", "y");
                let mut after = rig.killed();
                assert_eq!(
                    config(&mut after, "a", "segment.bytes").1,
                    source,
                    "{kind:?} {at}"
                );
                if struck == 0 {
                    assert!(is_done && at > 2);
                    break;
                }
            }
        }
    }
}

#[test]
fn partitions_only_grow_and_keep_to_the_limits() {
    let mut rig = Rig::with(Settings {
        max_partitions: 5,
        ..settings(FsyncPolicy::Always)
    });
    rig.create("a", 2, &[]);
    for (topic, count, code) in [
        ("a", 2, ErrorCode::BadArgument),
        ("a", 1, ErrorCode::BadArgument),
        ("a", 6, ErrorCode::BadArgument),
        ("a", u32::MAX, ErrorCode::BadArgument),
        ("b", 3, ErrorCode::UnknownTopic),
        ("__b", 3, ErrorCode::InvalidTopic),
    ] {
        assert_eq!(
            rig.error(&partitions(topic, count)).code,
            code,
            "{topic} {count}"
        );
    }
    assert!(matches!(rig.reply(&partitions("a", 5)), Response::Done));
    assert_eq!(rig.put("a/4", "x"), (4, 0));
    assert_eq!(rig.offsets("a").len(), 5);
    let mut after = rig.crashed();
    assert_eq!(after.offsets("a").len(), 5);
    assert_eq!(after.values("a/4"), ["x"]);
}

#[test]
fn a_write_without_a_partition_uses_the_new_ones() {
    let mut rig = Rig::new(FsyncPolicy::Always);
    rig.create("a", 1, &[]);
    assert_eq!(rig.put("a", "x"), (0, 0));
    rig.reply(&partitions("a", 3));
    let mut used = std::collections::BTreeSet::new();
    for n in 0..50 {
        let run = rig.append("a", Some(&n.to_string()), "x").unwrap();
        used.insert(run.partition);
        rig.turn();
    }
    assert_eq!(used.len(), 3);
}

#[test]
fn a_tail_of_all_partitions_gets_the_new_ones_from_their_start() {
    let mut rig = Rig::new(FsyncPolicy::Always);
    rig.create("a", 1, &[]);
    rig.handle(BOB, &Request::Tail(TailFrom::All(b"a", OffsetSpec::Latest)));
    rig.handle(CAROL, &tail("a/0", OffsetSpec::Latest));
    rig.reply(&partitions("a", 3));
    rig.put("a/2", "x");
    assert_eq!(rig.ready(), [2]);
    assert_eq!(event_values(&rig.resume(BOB)), (2, vec!["x".into()]));
    assert!(matches!(rig.resume(BOB), Resumed::Waiting));
    rig.put("a/0", "y");
    assert_eq!(rig.ready(), [2, 3]);
    assert_eq!(event_values(&rig.resume(BOB)), (0, vec!["y".into()]));
    rig.reply(&Request::Delete(b"a"));
    assert_eq!(rig.ready(), [2, 3]);
    assert!(matches!(rig.resume(BOB), Resumed::Ended(_)));
    assert!(matches!(rig.resume(CAROL), Resumed::Ended(_)));
    rig.create("a", 3, &[]);
    rig.put("a/2", "z");
    assert_eq!(rig.ready(), [] as [u64; 0], "nothing is left of them");
}

#[test]
fn partitions_at_every_fault_and_crash_are_as_before_or_all_there() {
    for kind in [FaultKind::Io, FaultKind::IoAfter, FaultKind::NoSpace] {
        for from_then_on in [false, true] {
            for at in 0.. {
                let mut rig = Rig::new(FsyncPolicy::Always);
                rig.create("a", 1, &[]);
                rig.put("a", "x");
                rig.fs.arm(Fault {
                    at,
                    from_then_on,
                    kind,
                    reads: false,
                });
                let response = rig.reply(&partitions("a", 3));
                let struck = rig.fs.struck();
                rig.fs.disarm();
                let is_done = matches!(response, Response::Done);
                assert_eq!(rig.offsets("a").len(), if is_done { 3 } else { 1 });
                let mut crashed =
                    Rig::start(rig.mem.crash(&mut |_| 0), rig.settings.clone()).unwrap();
                let count = crashed.offsets("a").len();
                assert!(
                    count == 3 || (count == 1 && !is_done),
                    "{kind:?} {at}: {count}"
                );
                assert_eq!(crashed.values("a/0"), ["x"]);
                rig.put("a/0", "y");
                if !is_done {
                    assert_eq!(rig.killed().offsets("a").len(), 1, "{kind:?} {at}");
                    assert!(
                        matches!(rig.reply(&partitions("a", 2)), Response::Done),
                        "again"
                    );
                }
                assert_eq!(rig.put("a/1", "z"), (1, 0));
                assert_eq!(rig.crashed().values("a/1"), ["z"]);
                if struck == 0 {
                    assert!(is_done && at > 5);
                    break;
                }
            }
        }
    }
}

#[test]
fn a_record_without_a_key_creates_no_topic_that_would_be_compacted() {
    let mut rig = Rig::with(Settings {
        configs: vec![("cleanup.policy".into(), "compact".into())],
        ..settings(FsyncPolicy::Always)
    });
    let error = rig.append("a", None, "x").unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidRecord);
    assert_eq!(rig.topic_names(), [] as [&str; 0]);
    rig.append("a", Some("k"), "x").unwrap();
    rig.turn();
    assert_eq!(
        rig.append("a", None, "x").unwrap_err().code,
        ErrorCode::InvalidRecord
    );
    rig.alter("a", &[("cleanup.policy", "delete")]);
    rig.append("a", None, "x").unwrap();
}
