//! Start, orderly stop, and what a start refuses.

use super::*;
use crate::fs::{File as _, OpenMode};

#[test]
fn a_stop_writes_the_marker_and_a_start_finds_everything() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.create("a", 2, &[]);
    rig.put("a/0", "x");
    rig.append("a/1", None, "not flushed yet").unwrap();
    let mut after = rig.restarted();
    assert_eq!(after.values("a/0"), ["x"]);
    assert_eq!(after.values("a/1"), ["not flushed yet"]);
    assert_eq!(after.put("a/0", "y"), (0, 1));
    assert!(
        !after.mem.exists(Path::new("/data/clean-shutdown")).unwrap(),
        "removed first"
    );
}

#[test]
fn a_second_broker_is_refused_and_told_what_to_do() {
    let rig = Rig::new(FsyncPolicy::Never);
    let error =
        Rig::start(rig.mem.clone(), settings(FsyncPolicy::Never)).expect_err("it is locked");
    assert!(
        error.contains("another broker") && !error.contains('\n'),
        "{error}"
    );
}

#[test]
fn a_bind_that_fails_changes_nothing() {
    let mut rig = Rig::new(FsyncPolicy::Never);
    rig.create("a", 1, &[]);
    rig.broker.close(&rig.clock).unwrap();
    let mem = rig.mem.kill();
    let error = Broker::open(
        mem.clone(),
        settings(FsyncPolicy::Never),
        &rig.clock,
        || {
            assert!(
                mem.lock(Path::new("/data/LOCK")).is_err(),
                "the lock is held"
            );
            Err("port in use".into())
        },
    );
    assert_eq!(error.expect_err("refused"), "port in use");
    assert!(mem.exists(Path::new("/data/clean-shutdown")).unwrap());
}

#[test]
fn a_config_that_is_none_stops_the_start_before_anything() {
    let mem = MemFs::new();
    let configs = vec![("segment.bytes".into(), "1".into())];
    let error = Rig::start(
        mem.clone(),
        Settings {
            configs,
            ..settings(FsyncPolicy::Never)
        },
    );
    assert!(error.expect_err("refused").contains("14"));
    assert!(!mem.exists(Path::new("/data")).unwrap());
}

#[test]
fn a_stop_that_cannot_write_is_no_clean_stop() {
    for at in 0.. {
        let mut rig = Rig::new(FsyncPolicy::Never);
        rig.create("a", 1, &[]);
        rig.put("a", "x");
        rig.fail_at(at, FaultKind::IoAfter);
        let closed = rig.broker.close(&rig.clock);
        let is_over = rig.fs.struck() == 0;
        let marked = rig.mem.exists(Path::new("/data/clean-shutdown")).unwrap();
        assert!(closed.is_ok() || is_over || !marked || at > 3, "at {at}");
        rig.fs.disarm();
        assert_eq!(rig.killed().values("a"), ["x"], "at {at}");
        if closed.is_ok() {
            assert_eq!(
                rig.crashed().values("a"),
                ["x"],
                "a clean stop is durable, at {at}"
            );
        }
        if is_over {
            assert!(closed.is_ok());
            break;
        }
    }
}

#[test]
fn stats_has_every_name_and_counts() {
    let mut rig = Rig::new(FsyncPolicy::Always);
    rig.mem.set_capacity(Some(100 << 20));
    rig.create("a", 3, &[]);
    rig.put("a/0", "x");
    rig.values("a/0");
    rig.broker.set_connections(7);
    rig.broker.add_errors(2);
    rig.pass(Duration::from_millis(1_234));
    for (name, value) in [
        ("uptime_ms", 1_234),
        ("connections", 7),
        ("topics", 1),
        ("partitions", 3),
        ("groups", 0),
        ("records_in_total", 1),
        ("bytes_in_total", 37),
        ("records_out_total", 1),
        ("bytes_out_total", 1),
        ("fsyncs_total", 1),
        ("fsync_max_us", 0),
        ("errors_total", 2),
        ("corrupt_records_total", 0),
        ("read_only_partitions", 0),
    ] {
        assert_eq!(rig.stat(name), value, "{name}");
    }
    assert!((1..=100 << 20).contains(&rig.stat("disk_free_bytes")));
}

/// Measures, by hand: `cargo test --release --lib start_costs -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement, not a claim"]
fn start_costs() {
    const PARTITIONS: u32 = 1_000;
    let dir = tempfile::tempdir().unwrap();
    let clock = crate::clock::SystemClock::new();
    let settings = Settings {
        fsync: FsyncPolicy::Never,
        ..Settings::new(dir.path().join("data"))
    };
    let open =
        || Broker::open(crate::fs::disk::DiskFs, settings.clone(), &clock, || Ok(())).unwrap();
    let mut broker = open();
    broker.handle(
        ALICE,
        &create("a", Some(PARTITIONS), &[("segment.bytes", "14")]),
        clock.now(),
    );
    let payload = Payload::Record {
        timestamp: None,
        key: None,
        value: Some(b"v"),
        headers: &[],
    };
    for partition in 0..PARTITIONS {
        let target = Target {
            topic: b"a",
            partition: Some(partition),
        };
        for _ in 0..10 {
            broker.append(target, &payload, clock.now()).unwrap();
        }
    }
    let mut stages = Vec::new();
    let mut stage = |what: &'static str, work: &mut dyn FnMut()| {
        let started = clock.now().mono;
        work();
        stages.push((what, clock.now().mono.saturating_sub(started)));
    };
    let mut broker = Some(broker);
    stage("stop", &mut || {
        broker.take().unwrap().close(&clock).unwrap();
    });
    stage("start after a clean stop", &mut || broker = Some(open()));
    broker = None;
    stage("start after a kill", &mut || broker = Some(open()));
    for (what, took) in stages {
        println!("{what}: {:.1} ms", took.as_secs_f64() * 1e3);
    }
}

#[test]
fn create_of_a_topic_whose_file_is_damaged_says_so_and_harms_nothing() {
    let mut rig = Rig::new(FsyncPolicy::Always);
    rig.create("a", 1, &[]);
    rig.put("a", "x");
    let path = Path::new("/data/topics/a");
    let text = crate::fs::read_file(&rig.mem, path, 1000).unwrap();
    let file = rig.mem.open(path, OpenMode::Write).unwrap();
    file.write_all_at(b"#", 0).unwrap();
    let mut after = rig.killed();
    let error = after.error(&create("a", Some(1), &[]));
    assert_eq!(error.code, ErrorCode::Storage);
    assert!(
        error.message.contains("/data/topics/a is damaged"),
        "{error}"
    );
    let file = after.mem.open(path, OpenMode::Write).unwrap();
    file.write_all_at(&text, 0).unwrap();
    assert_eq!(after.killed().values("a"), ["x"]);
}
