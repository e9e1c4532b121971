//! Topics: names, limits, creation, deletion, configs.

use super::super::lifecycle::DELETE_STEPS;
use super::*;
use crate::api::ConfigSource;
use crate::fs::{File, OpenMode};

#[test]
fn names_follow_the_rules_for_every_request_that_would_write() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    let long = "x".repeat(249);
    for good in ["a", "A.b_c-9", "...", "_a", &long, "a-1", "1"] {
        rig.create(good, 1, &[]);
        rig.put(good, "x");
    }
    let too_long = "x".repeat(250);
    for bad in [
        "", ".", "..", "a b", "a/b", "ü", "a\u{1}", "__own", &too_long,
    ] {
        let error = rig.error(&create(bad, Some(1), &[]));
        assert_eq!(error.code, ErrorCode::InvalidTopic, "{bad}");
        assert_eq!(
            rig.error(&Request::Delete(bad.as_bytes())).code,
            ErrorCode::InvalidTopic,
            "{bad}"
        );
        let target = Target {
            topic: bad.as_bytes(),
            partition: None,
        };
        let payload = Payload::Record {
            timestamp: None,
            key: None,
            value: None,
            headers: &[],
        };
        let now = rig.now();
        let error = rig.broker.append(target, &payload, now).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidTopic, "{bad}");
    }
    assert_eq!(rig.topic_names().len(), 7);
}

#[test]
fn a_write_creates_its_topic_only_where_it_then_succeeds() {
    let mut rig = Rig::with(Settings {
        configs: vec![
            ("num.partitions".into(), "2".into()),
            ("max.message.bytes".into(), "5".into()),
            ("record.version".into(), "1".into()),
        ],
        ..settings(FsyncPolicy::Always)
    });
    assert_eq!(
        rig.append("new/2", None, "x").unwrap_err().code,
        ErrorCode::UnknownPartition
    );
    assert_eq!(
        rig.append("new", None, "sixsix").unwrap_err().code,
        ErrorCode::MessageTooLarge
    );
    let now = rig.now();
    let mut send = |timestamp, headers: &[u8]| {
        let payload = Payload::Record {
            timestamp,
            key: None,
            value: None,
            headers,
        };
        rig.broker
            .append(target_of("new"), &payload, now)
            .unwrap_err()
            .code
    };
    assert_eq!(send(Some(i64::MAX), b""), ErrorCode::InvalidTimestamp);
    assert_eq!(send(None, b"\0\x01"), ErrorCode::InvalidRecord);
    assert_eq!(rig.topic_names(), [] as [&str; 0]);
    assert!(!rig.mem.exists(Path::new("/data/new-0")).unwrap());
    let run = rig.append("new/1", None, "x").unwrap();
    rig.flush();
    assert!(is_good(rig.broker.verdict(&run), 0));
    rig.broker.end_turn();
    assert_eq!(rig.offsets("new"), [(0, 0, 0), (1, 0, 1)]);
    assert_eq!(
        rig.crashed().values("new/1"),
        ["x"],
        "the topic is as durable as its record"
    );
}

#[test]
fn without_auto_create_an_unknown_topic_stays_unknown() {
    let mut rig = Rig::with(Settings {
        configs: vec![("auto.create.topics.enable".into(), "false".into())],
        ..settings(FsyncPolicy::Never)
    });
    let error = rig.append("new", None, "x").unwrap_err();
    assert_eq!(error.code, ErrorCode::UnknownTopic);
    assert!(error.message.contains("CREATE new"), "{error}");
}

#[test]
fn limits_of_topics_and_partitions_hold_at_n_and_name_their_flag() {
    let mut rig = Rig::with(Settings {
        max_topics: 2,
        max_partitions: 5,
        ..settings(FsyncPolicy::Never)
    });
    rig.create("a", 2, &[]);
    let error = rig.error(&create("b", Some(4), &[]));
    assert!(
        error.message.contains("--max-partitions is 5, 3 are left"),
        "{error}"
    );
    rig.create("b", 3, &[]);
    let error = rig.error(&create("c", Some(1), &[]));
    assert!(error.message.contains("--max-topics is 2"), "{error}");
    assert!(rig.append("c", None, "x").is_err(), "not by a write either");
    assert!(matches!(rig.reply(&Request::Delete(b"a")), Response::Done));
    rig.create("c", 2, &[]);
    assert_eq!(rig.topic_names(), ["b", "c"]);
    assert_eq!(
        rig.error(&create("d", Some(0), &[])).code,
        ErrorCode::BadArgument
    );
}

#[test]
fn topics_are_listed_by_name_with_records_and_bytes() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    for topic in ["b", "a", "B", "a.b"] {
        rig.create(topic, 2, &[]);
    }
    rig.put("a/0", "x");
    rig.put("a/1", "y");
    let Response::Topics(lines) = rig.reply(&Request::Topics) else {
        panic!("no topics")
    };
    let shown: Vec<_> = lines
        .iter()
        .map(|t| (t.name.as_str(), t.partitions, t.records, t.bytes))
        .collect();
    assert_eq!(
        shown,
        [
            ("B", 2, 0, 0),
            ("a", 2, 2, 74),
            ("a.b", 2, 0, 0),
            ("b", 2, 0, 0)
        ]
    );
}

#[test]
fn create_checks_configs_and_describe_shows_every_one() {
    let mut rig = Rig::with(Settings {
        configs: vec![("segment.ms".into(), "1000".into())],
        ..settings(FsyncPolicy::Never)
    });
    for (name, value) in [
        ("segment.bytes", "13"),
        ("segment.bytes", ""),
        ("retention.ms", "-2"),
        ("num.partitions", "1"),
        ("nonsense", "1"),
    ] {
        let error = rig.error(&create("a", None, &[(name, value)]));
        assert_eq!(error.code, ErrorCode::InvalidConfig, "{name}={value}");
    }
    assert_eq!(rig.topic_names(), [] as [&str; 0]);
    rig.create(
        "a",
        1,
        &[("segment.bytes", "14"), ("cleanup.policy", "delete")],
    );
    let described = |rig: &mut Rig| match rig.reply(&Request::Describe(b"a")) {
        Response::Described {
            configs,
            partitions,
        } => (configs, partitions),
        other => panic!("{other:?}"),
    };
    let before = described(&mut rig);
    let line = |name| {
        before
            .0
            .iter()
            .find(|l| l.0 == name)
            .map(|l| (l.1.as_str(), l.2))
    };
    assert_eq!(line("segment.bytes"), Some(("14", ConfigSource::Topic)));
    assert_eq!(line("segment.ms"), Some(("1000", ConfigSource::Broker)));
    assert_eq!(
        line("flush.ms"),
        Some(("9223372036854775807", ConfigSource::Default))
    );
    assert_eq!((before.0.len(), before.1.len()), (18, 1));
    assert_eq!(
        rig.error(&create("a", None, &[])).code,
        ErrorCode::TopicExists
    );
    assert_eq!(
        described(&mut rig.restarted()),
        before,
        "overrides are stored"
    );
}

#[test]
fn a_deletion_gives_appends_of_its_turn_their_verdict_and_the_name_back() {
    let mut rig = Rig::new(FsyncPolicy::Always);
    rig.create("a", 1, &[]);
    rig.put("a", "old");
    let old = rig.append("a", None, "undecided").unwrap();
    assert!(matches!(rig.reply(&Request::Delete(b"a")), Response::Done));
    let new = rig.append("a", None, "new").unwrap();
    assert_ne!(old.key, new.key, "a key is not given anew within the turn");
    assert_eq!(new.first_offset, 0);
    rig.flush();
    assert!(is_good(rig.broker.verdict(&old), old.first_offset));
    assert!(is_good(rig.broker.verdict(&new), new.first_offset));
    rig.broker.end_turn();
    assert_eq!(rig.values("a"), ["new"]);
    assert_eq!(rig.killed().values("a"), ["new"]);
    assert_eq!(rig.crashed().values("a"), ["new"]);
    assert_eq!(
        rig.error(&Request::Delete(b"b")).code,
        ErrorCode::UnknownTopic
    );
}

#[test]
fn a_crash_at_any_operation_of_create_and_delete_leaves_all_or_nothing() {
    for at in 0.. {
        let mut rig = Rig::new(FsyncPolicy::Always);
        rig.create("keep", 1, &[]);
        rig.put("keep", "x");
        rig.create("old", 2, &[]);
        rig.put("old/1", "y");
        rig.fs.arm(Fault {
            at,
            from_then_on: true,
            kind: FaultKind::Io,
            reads: false,
        });
        let deleted = matches!(rig.reply(&Request::Delete(b"old")), Response::Done);
        let created = matches!(rig.reply(&create("new", Some(2), &[])), Response::Done);
        let is_over = rig.fs.struck() == 0;
        for (label, mut after) in [("crash", rig.crashed()), ("kill", rig.killed())] {
            let names = after.topic_names();
            assert!(names.contains(&"keep".into()), "{label} at {at}");
            assert!(
                !deleted || !names.contains(&"old".into()),
                "{label} at {at}: {names:?}"
            );
            assert!(
                !created || names.contains(&"new".into()),
                "{label} at {at}: {names:?}"
            );
            if names.contains(&"old".into()) {
                assert_eq!(after.values("old/1"), ["y"], "{label} at {at}");
            }
            assert_eq!(after.values("keep"), ["x"]);
            if names.contains(&"new".into()) {
                assert_eq!(after.put("new/1", "z"), (1, 0), "{label} at {at}");
            } else {
                after.create("new", 2, &[]);
            }
        }
        if is_over {
            assert!(at > 10);
            break;
        }
    }
}

fn try_put(rig: &mut Rig, target: &str, value: &str) -> bool {
    let run = rig.append(target, None, value);
    rig.flush();
    let is_stored = run.is_ok_and(|run| is_good(rig.broker.verdict(&run), run.first_offset));
    rig.broker.end_turn();
    is_stored
}

#[test]
fn a_create_or_delete_that_fails_once_can_be_tried_again() {
    for at in 0.. {
        let mut rig = Rig::new(FsyncPolicy::Always);
        rig.create("old", 2, &[]);
        rig.put("old/1", "y");
        rig.fail_at(at, FaultKind::NoSpace);
        if !matches!(rig.reply(&create("new", Some(2), &[])), Response::Done) {
            assert_eq!(rig.topic_names(), ["old"], "at {at}");
            rig.create("new", 2, &[]);
        }
        if !try_put(&mut rig, "new/0", "x") {
            if rig.stat("read_only_partitions") == 1 {
                // The fault struck the fdatasync: that is final.
                continue;
            }
            assert!(try_put(&mut rig, "new/0", "x"), "the second time, at {at}");
        }
        if !matches!(rig.reply(&Request::Delete(b"old")), Response::Done) {
            assert_eq!(rig.values("old/1"), ["y"], "at {at}");
            assert!(matches!(
                rig.reply(&Request::Delete(b"old")),
                Response::Done
            ));
        }
        let is_over = rig.fs.struck() == 0;
        rig.fs.disarm();
        rig.create("old", 1, &[]);
        assert_eq!(rig.values("old"), [] as [&str; 0], "at {at}");
        let mut after = rig.restarted();
        assert_eq!(after.topic_names(), ["new", "old"], "at {at}");
        assert_eq!(after.values("new/0"), ["x"]);
        if is_over {
            break;
        }
    }
}

#[test]
fn a_stranger_with_records_is_in_the_way_by_name() {
    let mem = MemFs::new();
    for path in ["/data", "/data/a-0", "/data/b-0"] {
        mem.create_dir(Path::new(path)).unwrap();
    }
    let log = |dir: &str| format!("/data/{dir}/00000000000000000000.log");
    let file = mem
        .open(Path::new(&log("a-0")), OpenMode::CreateNew)
        .unwrap();
    file.write_all_at(b"records", 0).unwrap();
    mem.open(Path::new(&log("b-0")), OpenMode::CreateNew)
        .unwrap();
    let mut rig = Rig::start(mem, settings(FsyncPolicy::Never)).unwrap();
    let error = rig.error(&create("a", Some(1), &[]));
    assert!(error.message.contains("/data/a-0"), "{error}");
    assert!(rig.append("a", None, "x").is_err());
    rig.create("b", 1, &[]);
    assert_eq!(rig.put("b", "x"), (0, 0));
}

#[test]
fn a_big_log_is_shortened_in_slices_once_nobody_sends_from_it() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.create("a", 1, &[]);
    rig.put("a", "x");
    let Response::Fetched {
        range: Some(range), ..
    } = rig.reply(&fetch("a", 0, (100, 1), 0))
    else {
        panic!("a record is there")
    };
    let path = Path::new("/data/a-0/00000000000000000000.log");
    let file = rig.mem.open(path, OpenMode::Write).unwrap();
    file.set_len(4 << 20).unwrap();
    assert!(matches!(rig.reply(&Request::Delete(b"a")), Response::Done));
    assert!(
        !rig.mem.exists(Path::new("/data/a-0")).unwrap(),
        "the names go at once"
    );
    rig.turn();
    rig.broker.tick(&rig.clock);
    assert_eq!(file.len().unwrap(), 4 << 20, "a range is still being sent");
    let mut byte = [0];
    assert_eq!(range.file.read_at(&mut byte, range.position).unwrap(), 1);
    assert_eq!(
        rig.deadline(),
        Some(rig.now().mono + Duration::from_millis(100))
    );
    drop(range);
    rig.pass(Duration::from_millis(100));
    let rest = rig.now().mono + Duration::from_millis(5);
    rig.broker.deletions.rest(rest);
    assert_eq!(rig.deadline(), Some(rest));
    rig.broker.tick(&rig.clock);
    assert_eq!(file.len().unwrap(), 4 << 20, "it rests");
    rig.pass(Duration::from_millis(5));
    let mut sizes = Vec::new();
    while rig.deadline().is_some() {
        rig.broker.tick(&rig.clock);
        sizes.push(file.len().unwrap() >> 20);
    }
    assert_eq!(sizes, [3, 2, 1]);
}

#[test]
fn more_big_files_than_may_be_held_wait_for_their_turn_with_their_names() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.broker.deletions.files_max = 4;
    let logs = |rig: &Rig| {
        let exists = rig.mem.exists(Path::new("/data/a-0")).unwrap();
        if exists {
            rig.files("/data/a-0", "").len()
        } else {
            0
        }
    };
    for is_named_again in [false, true] {
        rig.create("a", 1, &[]);
        rig.put("a", "x");
        let Response::Fetched {
            range: Some(range), ..
        } = rig.reply(&fetch("a", 0, (100, 1), 0))
        else {
            panic!("a record is there")
        };
        let path = |base: u64| PathBuf::from(format!("/data/a-0/{base:020}.log"));
        let files: Vec<_> = (0..10)
            .map(|base| rig.mem.open(&path(base), OpenMode::CreateOrKeep).unwrap())
            .collect();
        for file in &files {
            file.set_len(2 << 20).unwrap();
        }
        assert!(matches!(rig.reply(&Request::Delete(b"a")), Response::Done));
        assert_eq!(logs(&rig), 6 + 2, "and two indexes");
        let retry = rig.now().mono + Duration::from_millis(100);
        rig.broker.tick(&rig.clock);
        assert_eq!(rig.deadline(), Some(retry), "it does not spin meanwhile");
        assert_eq!(logs(&rig), 6 + 2);
        if is_named_again {
            rig.create("a", 1, &[]);
            assert_eq!(rig.values("a"), [] as [String; 0]);
        }
        let lens = || files.iter().map(|file| file.len().unwrap()).sum::<u64>();
        assert_eq!(lens(), 20 << 20, "a range is still being sent");
        drop(range);
        rig.pass(Duration::from_millis(100));
        while rig.deadline().is_some() {
            rig.broker.tick(&rig.clock);
        }
        let freed = if is_named_again { 4 } else { 10 };
        assert_eq!(lens(), (20 - freed) << 20);
        assert_eq!(logs(&rig), if is_named_again { 3 } else { 0 });
    }
}

#[test]
fn the_files_of_a_deleted_topic_go_over_turns_and_its_name_can_be_taken_meanwhile() {
    let partitions = u32::try_from(DELETE_STEPS).unwrap();
    let mut rig = Rig::new(FsyncPolicy::Always);
    let dirs = |rig: &Rig| {
        rig.files("/data", "")
            .iter()
            .filter(|name| name.starts_with("a-"))
            .count()
    };
    for is_named_again in [false, true] {
        rig.create("a", partitions, &[]);
        rig.put("a/0", "x");
        assert!(matches!(rig.reply(&Request::Delete(b"a")), Response::Done));
        assert!(dirs(&rig) > 0, "each partition has three files");
        assert_eq!(rig.deadline(), Some(Duration::ZERO));
        let gone = rig.error(&read("a/0", OffsetSpec::Earliest, 0));
        assert_eq!(gone.code, ErrorCode::UnknownTopic);
        if is_named_again {
            rig.create("a", 1, &[]);
            assert_eq!(rig.values("a"), [] as [String; 0]);
            assert_eq!(dirs(&rig), 1);
        } else {
            rig.settle();
            assert_eq!(dirs(&rig), 0);
        }
    }
    assert!(matches!(rig.reply(&Request::Delete(b"a")), Response::Done));
    rig.create("b", partitions, &[]);
    assert!(matches!(rig.reply(&Request::Delete(b"b")), Response::Done));
    let rig = rig.restarted();
    assert_eq!(
        rig.files("/data/topics", ""),
        [] as [String; 0],
        "a start finishes it"
    );
}
