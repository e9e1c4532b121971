//! An index is a cache: whatever is wrong with it, every answer is the same.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn a_full_disk_and_no_index_stop_no_start_and_no_reader() {
    for end in [End::Kill, End::Noted, End::Clean] {
        let fs = build(end, small_config());
        if end == End::Kill {
            fs.remove_file(Path::new("/data/recovery-point")).unwrap();
        }
        for name in names(&fs)
            .into_iter()
            .filter(|name| name.ends_with("index"))
        {
            remove(&fs, &[&name]);
        }
        fs.inner().set_capacity(Some(fs.inner().used_bytes()));
        let mut world = start(&fs);
        fs.inner().set_capacity(Some(0));
        assert_eq!(read_all(&mut world.log).0.len(), 30, "{end:?}");
        for offset in 0..COUNT {
            let found = world.log.offset_at_time(NOW + offset).unwrap();
            assert_eq!(found, Some((offset, NOW + offset)), "{end:?}");
        }
        let error = world
            .log
            .append(&record(30).borrow(), NOW)
            .map(|_| world.flush());
        assert!(
            matches!(error, Err(_) | Ok(Err(_))),
            "{end:?}: there is no room"
        );
        fs.inner().set_capacity(None);
        world.put(&[record(30)], NOW);
        world.stop().unwrap();
        assert_eq!(read_all(&mut start(&kill(&fs)).log).0.len(), 31, "{end:?}");
    }
}

#[test]
fn rebuilt_indexes_are_the_ones_that_were_written() {
    for end in [End::Clean, End::Kill] {
        let fs = build(end, small_config());
        start(&fs).stop().unwrap();
        let indexes: Vec<_> = names(&fs)
            .into_iter()
            .filter(|name| name.ends_with("index"))
            .collect();
        let before: Vec<_> = indexes.iter().map(|name| content(&fs, name)).collect();
        remove(&fs, &indexes.iter().map(String::as_str).collect::<Vec<_>>());
        let mut world = start(&fs);
        // Sealed ones are rebuilt when somebody asks.
        read_all(&mut world.log);
        world.stop().unwrap();
        let after: Vec<_> = indexes.iter().map(|name| content(&fs, name)).collect();
        assert_eq!(after, before, "{end:?}");
        assert_eq!(
            before.iter().map(Vec::len).collect::<Vec<_>>(),
            [48, 84, 48, 84, 24, 48]
        );
    }
}

/// Puts a row of garbage in the place of each row of an index in turn, and asks `check` each time.
fn with_garbage_rows(name: &str, row: usize, garbage: &[&[u8]], check: impl Fn(&mut World, &str)) {
    for is_sealed in [true, false] {
        with_garbage_rows_in(is_sealed, name, row, garbage, &check);
    }
}

fn with_garbage_rows_in(
    is_sealed: bool,
    name: &str,
    row: usize,
    garbage: &[&[u8]],
    check: &impl Fn(&mut World, &str),
) {
    let config = LogConfig {
        segment_bytes: 100_000,
        index_interval_bytes: 1,
        ..small_config()
    };
    let fs = FaultFs::new(MemFs::new());
    let mut world = World::start(&fs, FsyncPolicy::Always, config, NOW).unwrap();
    (0..COUNT).for_each(|offset| world.put(&[record(offset)], NOW));
    if is_sealed {
        world.log.set_config(small_config());
        world.put(&[record(COUNT)], NOW);
    }
    world.stop().unwrap();
    let rows = content(&fs, name).len() / row;
    assert_eq!(rows, 30);
    for number in 0..rows {
        for garbage in garbage {
            let fs = kill(&fs);
            patch(&fs, name, (number * row) as u64, garbage);
            check(&mut start(&fs), &format!("row {number} is {garbage:?}"));
        }
    }
}

#[test]
fn a_garbage_row_among_sound_ones_misleads_no_lookup() {
    let garbage: [&[u8]; 4] = [
        &[0; 8],
        &[0, 0, 0, 1, 0, 0, 0, 1],
        &[0, 0, 0, 29, 0, 0, 9, 0],
        &[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff],
    ];
    with_garbage_rows("00000000000000000000.index", 8, &garbage, |world, what| {
        for offset in 0..COUNT {
            let mut out = Records::new();
            world
                .log
                .read(offset, 1, 1, CrcMode::Check, &mut out)
                .unwrap();
            let found: Vec<i64> = out.iter().map(|stored| stored.offset).collect();
            assert_eq!(found, [offset], "{what}");
            let fetched = world.log.fetch(offset, 1).unwrap();
            assert_eq!(fetched.first_offset, offset, "{what}");
            let found = world.log.offset_at_time(NOW + offset).unwrap();
            assert_eq!(found, Some((offset, NOW + offset)), "{what}");
        }
    });
}

#[test]
fn a_garbage_row_among_times_misleads_no_lookup() {
    let row = |timestamp: i64, relative: u32| {
        [timestamp.to_be_bytes().as_slice(), &relative.to_be_bytes()].concat()
    };
    let garbage = [
        row(0, 0),
        row(i64::MIN, 3),
        row(i64::MAX, 7),
        row(NOW + 3, 25),
        row(NOW + 25, 3),
    ];
    let garbage: Vec<&[u8]> = garbage.iter().map(Vec::as_slice).collect();
    with_garbage_rows(
        "00000000000000000000.timeindex",
        12,
        &garbage,
        |world, what| {
            for offset in 0..COUNT {
                let found = world.log.offset_at_time(NOW + offset).unwrap();
                assert_eq!(found, Some((offset, NOW + offset)), "{what}");
            }
        },
    );
}

#[test]
fn a_rebuild_keeps_the_rows_that_lead_past_damage() {
    let fs = build(End::Clean, small_config());
    break_frame(&fs, 4);
    // Something that no open accepts, so that the index is rebuilt; by itself it would get one row for all.
    let name = "00000000000000000000.index";
    append_bytes(&fs, name, &[0; 8]);
    let sparse = LogConfig {
        index_interval_bytes: 100_000,
        ..small_config()
    };
    for _ in 0..2 {
        let mut world = World::start(&fs, FsyncPolicy::Always, sparse, NOW).unwrap();
        let (found, damage) = read_all(&mut world.log);
        assert_eq!((found.len(), damage.len()), (28, 1));
        assert_eq!((damage[0].offset, damage[0].next), (4, 6));
        world.stop().unwrap();
    }
    assert!(content(&fs, name).len() < 48, "it was rebuilt");

    let fs = build(End::Kill, small_config());
    break_frame(&fs, 26);
    for _ in 0..3 {
        let mut world = World::start(&fs, FsyncPolicy::Always, sparse, NOW).unwrap();
        let (found, damage) = read_all(&mut world.log);
        assert_eq!(
            (found.len(), damage[0].offset, damage[0].next),
            (28, 26, 28)
        );
    }
}

#[test]
fn many_short_lives_leave_no_thinner_index() {
    let fs = FaultFs::new(MemFs::new());
    let config = LogConfig {
        segment_bytes: 100_000,
        index_interval_bytes: 300,
        ..small_config()
    };
    for offset in 0..100 {
        let mut world = World::start(&fs, FsyncPolicy::Always, config, NOW).unwrap();
        assert_eq!(world.log.log_end_offset(), offset);
        world.put(&[record(offset)], NOW);
        if offset % 2 == 0 {
            world.stop().unwrap();
        }
    }
    let mut world = World::start(&fs, FsyncPolicy::Always, config, NOW).unwrap();
    assert_eq!(world.log.segment_count(), 1, "no restart rolls");
    for offset in 0..100 {
        let scanned = world.log.explain(offset).unwrap().scanned_bytes;
        assert!(scanned < 300 + ENTRY, "offset {offset}: {scanned}");
    }
}

#[test]
fn an_empty_log_is_one_empty_segment_whatever_is_missing() {
    for missing in [".index", ".timeindex", ".log"] {
        let fs = FaultFs::new(MemFs::new());
        start(&fs).stop().unwrap();
        remove(&fs, &[&format!("00000000000000000000{missing}")]);
        let mut world = start(&fs);
        assert_eq!(
            (world.log.segment_count(), world.log.log_end_offset()),
            (1, 0),
            "{missing}"
        );
        world.put(&[record(0)], NOW);
        assert_eq!(names(&fs).len(), 3);
    }
}

#[test]
fn full_indexes_roll_and_leave_room_for_the_last_time() {
    let sizes = [24, 36, 48, 100];
    let cases = sizes
        .iter()
        .flat_map(|bytes| [1, 150].map(|interval| (*bytes, interval)));
    for (bytes, index_interval_bytes) in cases {
        let config = LogConfig {
            segment_bytes: 100_000,
            segment_index_bytes: bytes,
            index_interval_bytes,
            ..small_config()
        };
        let fs = FaultFs::new(MemFs::new());
        let mut world = World::start(&fs, FsyncPolicy::Always, config, NOW).unwrap();
        for offset in 0..40 {
            world.put(&[record(offset)], NOW);
        }
        assert!(world.log.segment_count() > 1, "{bytes}");
        for offset in 0..40 {
            let found = world.log.offset_at_time(NOW + offset).unwrap();
            assert_eq!(found, Some((offset, NOW + offset)), "{bytes}");
        }
        world.stop().unwrap();
        for name in names(&fs)
            .into_iter()
            .filter(|name| name.ends_with("index"))
        {
            let row = if name.ends_with(".timeindex") { 12 } else { 8 };
            let len = content(&fs, &name).len();
            assert!(
                len % row == 0 && len <= bytes as usize && len > 0,
                "{name}: {len} of {bytes}"
            );
        }
        assert_eq!(
            read_all(
                &mut World::start(&fs, FsyncPolicy::Always, config, NOW)
                    .unwrap()
                    .log
            )
            .0
            .len(),
            40
        );
    }
}

#[test]
fn times_between_segments_and_behind_all_are_found_or_not() {
    let fs = build(End::Clean, small_config());
    let mut world = start(&fs);
    for (time, expected) in [
        (i64::MIN, Some(0)),
        (NOW, Some(0)),
        (NOW + 11, Some(11)),
        (NOW + 12, Some(12)),
        (NOW + 29, Some(29)),
        (NOW + 30, None),
        (i64::MAX, None),
    ] {
        let found = world.log.offset_at_time(time).unwrap();
        assert_eq!(found.map(|(offset, _)| offset), expected, "{time}");
    }
}
