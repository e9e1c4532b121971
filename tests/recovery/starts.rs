//! Where a start begins, how far it looks, and what it never takes back.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn the_next_offset_never_goes_back() {
    // All segments gone: the recovery point speaks.
    let fs = build(End::Clean, small_config());
    for name in names(&fs) {
        remove(&fs, &[&name]);
    }
    let mut world = start(&fs);
    assert_eq!(
        (world.log.log_start_offset(), world.log.log_end_offset()),
        (30, 30)
    );
    world.put(&[record(30)], NOW);
    assert_eq!(names(&fs)[0], "00000000000000000030.index");

    // The directory gone as well.
    let fs = build(End::Clean, small_config());
    for name in names(&fs) {
        remove(&fs, &[&name]);
    }
    fs.remove_dir(Path::new(world::DIR)).unwrap();
    assert_eq!(start(&fs).log.log_end_offset(), 30);

    // The log start beyond everything.
    let fs = build(End::Clean, small_config());
    put_file(&fs, Path::new("/data/log-start-offset"), b"t 0 50\n");
    let mut world = start(&fs);
    assert_eq!(
        (world.log.log_start_offset(), world.log.log_end_offset()),
        (50, 50)
    );
    world.put(&[record(50)], NOW);
    let fs = kill(&fs);
    assert_eq!(read_all(&mut start(&fs).log).0, [(50, record(50))]);

    // A good entry in what is cut.
    let fs = build(End::Kill, small_config());
    break_frame(&fs, 28);
    let world = start(&fs);
    assert_eq!(
        world.log.log_end_offset(),
        28,
        "no row leads on to 29, so nobody knows of it"
    );
}

#[test]
fn a_log_start_within_a_segment_hides_what_is_below() {
    let fs = build(End::Clean, small_config());
    put_file(&fs, Path::new("/data/log-start-offset"), b"t 0 17\n");
    let mut world = start(&fs);
    assert_eq!(world.log.log_start_offset(), 17);
    let below = world
        .log
        .read(16, 1, 1, CrcMode::Check, &mut Records::new());
    assert!(
        matches!(
            below,
            Err(Error::OutOfRange {
                earliest: 17,
                latest: 30,
                ..
            })
        ),
        "{below:?}"
    );
    assert_eq!(read_all(&mut world.log).0.len(), 13);
    assert_eq!(world.log.offset_at_time(NOW).unwrap(), Some((17, NOW + 17)));
}

#[test]
fn the_last_offsets_are_given_and_then_refused() {
    let fs = FaultFs::new(MemFs::new());
    drop(start(&fs));
    for name in names(&fs) {
        remove(&fs, &[&name]);
    }
    let text = format!("t 0 {}\n", i64::MAX - 2);
    put_file(&fs, Path::new("/data/recovery-point"), text.as_bytes());
    let mut world = start(&kill(&fs));
    world.put(&[record(0), record(1)], NOW);
    let error = world.log.append(&record(2).borrow(), NOW).unwrap_err();
    assert!(matches!(error, Error::Exhausted), "{error}");
    assert_eq!(world.log.log_end_offset(), i64::MAX);
    assert_eq!(read_all(&mut world.log).0.len(), 2);
}

#[test]
fn only_tails_are_scanned() {
    let config = LogConfig {
        segment_bytes: 1_000_000,
        index_interval_bytes: 4096,
        ..small_config()
    };
    let big = |end: End| {
        let fs = FaultFs::new(MemFs::new());
        let mut world = World::start(&fs, FsyncPolicy::Always, config, NOW).unwrap();
        let records: Vec<_> = (0..30_000).map(record).collect();
        world.put(&records, NOW);
        if end != End::Kill {
            world.dir.checkpoints().write_recovery_point().unwrap();
        }
        world.put(&[record(30_000), record(30_001)], NOW);
        if end == End::Clean {
            world.stop().unwrap();
        }
        FaultFs::new(fs.inner().kill())
    };
    for (end, max) in [
        (End::Clean, 200_000),
        (End::Noted, 300_000),
        (End::Kill, 1_500_000),
    ] {
        let fs = big(end);
        let world = World::start(&fs, FsyncPolicy::Always, config, NOW).unwrap();
        assert_eq!(world.log.log_end_offset(), 30_002);
        let (scanned, read) = (world.report.scanned_bytes, fs.inner().bytes_read());
        assert!(
            read < max,
            "{end:?}: {read} bytes read of 2.4 million, {scanned} scanned"
        );
        assert!(
            (scanned > 400_000) == (end == End::Kill),
            "{end:?}: {scanned}"
        );
    }
    let fs = big(End::Kill);
    fs.remove_file(Path::new("/data/recovery-point")).unwrap();
    let world = World::start(&fs, FsyncPolicy::Always, config, NOW).unwrap();
    assert!(
        world.report.scanned_bytes >= 2_400_000,
        "without a recovery point all is scanned"
    );
}

/// The room that an index is given is a hole of megabytes, and a broker may have thousands of partitions.
#[test]
fn a_start_after_a_kill_reads_no_unused_room_of_an_index() {
    let config = LogConfig {
        segment_bytes: 16 * 1024,
        segment_index_bytes: 10 * 1024 * 1024,
        index_interval_bytes: 4096,
        ..small_config()
    };
    let fs = FaultFs::new(MemFs::new());
    let mut world = World::start(&fs, FsyncPolicy::Never, config, NOW).unwrap();
    let records: Vec<_> = (0..2000).map(record).collect();
    world.put(&records, NOW);
    world.stop().unwrap();
    let mut world = World::start(&fs, FsyncPolicy::Never, config, NOW).unwrap();
    world.put(&[record(2000)], NOW);
    drop(world);
    let fs = FaultFs::new(fs.inner().kill());
    let mut world = World::start(&fs, FsyncPolicy::Never, config, NOW).unwrap();
    let read = fs.inner().bytes_read();
    assert!(world.log.bytes() > 150_000, "{} bytes", world.log.bytes());
    assert!(read < 40_000, "{read} bytes read");
    assert_eq!(read_all(&mut world.log).0.len(), 2001);
}

#[test]
fn a_clean_start_does_not_grow_with_the_number_of_segments() {
    let config = LogConfig {
        segment_bytes: 14,
        segment_index_bytes: 24,
        ..small_config()
    };
    let fs = FaultFs::new(MemFs::new());
    let mut world = World::start(&fs, FsyncPolicy::Never, config, NOW).unwrap();
    for offset in 0..2000 {
        world.put(&[record(offset)], NOW);
    }
    world.stop().unwrap();
    let fs = kill(&fs);
    let before = fs.inner().bytes_read();
    let mut world = World::start(&fs, FsyncPolicy::Never, config, NOW).unwrap();
    assert_eq!(world.log.segment_count(), 2000);
    // The list of append times grows, the log's files are not opened.
    let times = content(&fs, "append-times").len() as u64;
    let read = fs.inner().bytes_read() - before;
    assert!(read < 3 * times + 20_000, "{read} bytes");
    assert_eq!(read_all(&mut world.log).0.len(), 2000);

    // What a sealed segment holds is looked up once.
    let late = NOW + 10_000;
    let mut read_by = |ask: &mut dyn FnMut(&mut World)| {
        let before = fs.inner().bytes_read();
        ask(&mut world);
        fs.inner().bytes_read() - before
    };
    let mut at = |world: &mut World| assert_eq!(world.log.offset_at_time(late).unwrap(), None);
    assert!(read_by(&mut at) > 100_000);
    assert!(read_by(&mut at) < 1_000);
    let mut segments = |world: &mut World| assert_eq!(world.log.segments().unwrap().len(), 2000);
    assert!(read_by(&mut segments) > 100_000);
    assert!(read_by(&mut segments) < 1_000);
}

#[test]
fn stops_and_starts_change_nothing() {
    let fs = build(End::Clean, small_config());
    let files = |fs: &Faulty| -> Vec<_> {
        names(fs)
            .into_iter()
            .map(|name| (content(fs, &name), name))
            .collect()
    };
    let before = files(&fs);
    for _ in 0..3 {
        start(&fs).stop().unwrap();
    }
    assert_eq!(files(&fs), before);
}

#[test]
fn a_first_record_alone_survives_every_kind_of_restart() {
    for end in [End::Kill, End::Noted, End::Clean] {
        let fs = FaultFs::new(MemFs::new());
        let mut world = start(&fs);
        world.put(&[record(0)], NOW);
        match end {
            End::Kill => drop(world),
            End::Noted => world.dir.checkpoints().write_recovery_point().unwrap(),
            End::Clean => world.stop().unwrap(),
        }
        let fs = kill(&fs);
        let mut world = start(&fs);
        assert_eq!(read_all(&mut world.log).0, [(0, record(0))], "{end:?}");
        assert_eq!(world.log.offset_at_time(NOW).unwrap(), Some((0, NOW)));
        world.put(&[record(1)], NOW);
        assert_eq!(
            (world.log.segment_count(), world.log.log_end_offset()),
            (1, 2)
        );
    }
}

#[test]
fn a_failed_fsync_is_final_and_the_next_start_believes_the_disk() {
    let fs = FaultFs::new(MemFs::new());
    let mut world = start(&fs);
    world.put(&[record(0)], NOW);
    world.log.append(&record(1).borrow(), NOW).unwrap();
    world.log.write().unwrap();
    fs.arm(mini_broker::fs::fault::Fault {
        at: 0,
        from_then_on: false,
        kind: mini_broker::fs::fault::FaultKind::Io,
        reads: false,
    });
    assert!(world.flush().is_err());
    for _ in 0..3 {
        assert!(matches!(
            world.log.append(&record(2).borrow(), NOW),
            Err(Error::ReadOnly)
        ));
        assert!(world.log.sync().is_err(), "no later sync reports success");
    }
    assert_eq!(
        read_all(&mut world.log).0,
        [(0, record(0))],
        "what is durable is served"
    );
    assert!(world.stop().is_err());
    let fs = kill(&fs);
    let mut world = start(&fs);
    assert!(!world.is_clean);
    assert_eq!(
        read_all(&mut world.log).0,
        [(0, record(0))],
        "what memory alone held is gone"
    );
    world.put(&[record(1)], NOW);
}
