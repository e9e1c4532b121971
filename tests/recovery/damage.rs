//! Damage byte by byte, and what is done with what is cut.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn strangers_and_sealed_damage_are_left_as_they_are() {
    let fs = build(End::Kill, small_config());
    put_file(&fs, &file("foo.log"), b"not ours");
    flip_value(&fs, 5);
    break_frame(&fs, 14);
    let before: Vec<_> = [
        "foo.log",
        "00000000000000000000.log",
        "00000000000000000012.log",
    ]
    .map(|name| content(&fs, name))
    .into();
    drop(start(&fs));
    let after: Vec<_> = [
        "foo.log",
        "00000000000000000000.log",
        "00000000000000000012.log",
    ]
    .map(|name| content(&fs, name))
    .into();
    assert_eq!(before, after);
}

#[test]
fn a_fetch_ends_before_a_stale_entry_behind_a_sealed_segment() {
    let fs = build(End::Clean, small_config());
    let mut stale = Vec::new();
    let other = Rec::new(NOW, b"stale");
    Layout::V2.encode(24, &other.borrow(), &mut stale).unwrap();
    append_bytes(&fs, "00000000000000000012.log", &stale);
    let mut log = start(&fs).log;
    for (from, entries) in [(12, 12), (17, 7), (23, 1)] {
        let fetched = log.fetch(from, 1 << 20).unwrap();
        let bytes = fetched.range.map(|range| range.len);
        assert_eq!((bytes, fetched.next_offset), (Some(entries * 80), 24));
    }
}

#[test]
fn every_truncation_of_the_last_entry_costs_that_entry_alone() {
    for len in 5 * ENTRY..6 * ENTRY {
        let fs = build(End::Kill, small_config());
        cut_log(&fs, ACTIVE, len);
        check(
            &format!("cut at {len}"),
            &fs,
            &Expect::cut(29, len - 5 * ENTRY),
        );
    }
}

#[test]
fn every_length_of_zeros_behind_the_end_is_cut() {
    for zeros in 1..=60_u64 {
        let fs = build(End::Kill, small_config());
        append_bytes(&fs, ACTIVE, &vec![0; usize::try_from(zeros).unwrap()]);
        let torn = vec![("00000000000000000024.torn", zeros)];
        check(
            &format!("{zeros} zeros"),
            &fs,
            &Expect {
                torn,
                ..Expect::all()
            },
        );
    }
}

#[test]
fn every_flipped_byte_of_the_last_entry_is_cut_and_of_one_before_it_kept() {
    for at in 0..ENTRY {
        let fs = build(End::Kill, small_config());
        flip(&fs, ACTIVE, 5 * ENTRY + at, 0x41);
        check(
            &format!("byte {at} of the last"),
            &fs,
            &Expect::cut(29, ENTRY),
        );

        let fs = build(End::Kill, small_config());
        flip(&fs, ACTIVE, 3 * ENTRY + at, 0x41);
        check(
            &format!("byte {at} of offset 27"),
            &fs,
            &Expect::damaged(27, 28),
        );
    }
}

#[test]
fn behind_damage_the_next_append_opens_a_segment() {
    let fs = build(End::Kill, small_config());
    flip_value(&fs, 26);
    let mut world = start(&fs);
    let before = content(&fs, ACTIVE);
    world.put(&[record(30)], NOW);
    assert_eq!(content(&fs, ACTIVE), before);
    assert!(names(&fs).contains(&"00000000000000000030.log".to_owned()));
}

#[test]
fn torn_files_are_numbered_and_never_replaced() {
    let mut fs = build(End::Kill, small_config());
    for _ in 0..3 {
        append_bytes(&fs, ACTIVE, b"torn");
        drop(start(&fs));
        fs = kill(&fs);
    }
    let torn: Vec<_> = names(&fs)
        .into_iter()
        .filter(|name| name.contains("torn"))
        .collect();
    let expected = [".torn", ".torn.1", ".torn.2"].map(|end| format!("00000000000000000024{end}"));
    assert_eq!(torn, expected);
    assert!(torn.iter().all(|name| content(&fs, name) == b"torn"));
}

#[test]
fn a_torn_file_is_durable_before_the_log_is_cut() {
    for at in 0..40 {
        let fs = build(End::Kill, small_config());
        append_bytes(&fs, ACTIVE, b"a torn end");
        let fault = mini_broker::fs::fault::Fault {
            at,
            from_then_on: true,
            kind: mini_broker::fs::fault::FaultKind::Io,
            reads: false,
        };
        fs.arm(fault);
        let result = World::start(&fs, FsyncPolicy::Always, small_config(), NOW).map(drop);
        for seed in 0..8 {
            let disk = FaultFs::new(fs.inner().crash(&mut world::chooser(seed)));
            let is_whole = content(&disk, ACTIVE).ends_with(b"a torn end");
            let is_aside = names(&disk)
                .iter()
                .any(|name| name.contains(".torn") && content(&disk, name) == b"a torn end");
            assert!(
                is_whole || is_aside,
                "operation {at}, seed {seed}: {result:?}"
            );
            check_kept(&disk);
        }
    }
}

fn check_kept(fs: &Faulty) {
    let mut world = start(fs);
    let (found, damage) = read_all(&mut world.log);
    assert_eq!((found.len(), damage.len()), (30, 0));
}

#[test]
fn without_room_for_the_torn_end_nothing_is_cut_and_appends_wait() {
    let fs = build(End::Kill, small_config());
    append_bytes(&fs, ACTIVE, &vec![7; 100_000]);
    let mut world = start(&fs);
    world.stop().unwrap();
    // The same again, with a disk that is full from the start on.
    let fs = build(End::Kill, small_config());
    append_bytes(&fs, ACTIVE, &vec![7; 100_000]);
    fs.inner()
        .set_capacity(Some(fs.inner().used_bytes() + 4096));
    world = start(&fs);
    assert_eq!(content(&fs, ACTIVE).len(), 100_480, "nothing is cut");
    let (found, damage) = read_all(&mut world.log);
    assert_eq!(
        (found.len(), damage.len()),
        (30, 0),
        "what comes before is served"
    );
    for _ in 0..2 {
        let error = world.log.append(&record(30).borrow(), NOW).unwrap_err();
        assert!(error.is_disk_full(), "{error}");
    }
    assert!(!world.log.is_read_only());
    fs.inner().set_capacity(None);
    world.put(&[record(30)], NOW + 1000);
    assert_eq!(content(&fs, "00000000000000000024.torn").len(), 100_000);
    let fs = kill(&fs);
    assert_eq!(read_all(&mut start(&fs).log).0.len(), 31);
}

#[test]
fn a_payload_that_holds_entries_is_never_taken_for_them() {
    // Each value holds a whole entry with an offset that would be possible.
    let nested = |offset: i64| {
        let mut value = Vec::new();
        Layout::V2
            .encode(offset + 1, &Rec::new(5, b"inner").borrow(), &mut value)
            .unwrap();
        Rec::new(NOW, &value)
    };
    for is_indexed in [true, false] {
        let fs = FaultFs::new(MemFs::new());
        let mut world = start(&fs);
        for offset in 0..6 {
            world.put(&[nested(offset)], NOW);
        }
        drop(world);
        let fs = kill(&fs);
        let name = "00000000000000000000.log";
        // The first entry loses its frame, so that the next bytes with a magic are the ones in its value.
        flip(&fs, name, 0, 0xff);
        if !is_indexed {
            remove(&fs, &["00000000000000000000.index"]);
        }
        let mut world = start(&fs);
        let (found, _) = read_all(&mut world.log);
        assert!(
            found
                .iter()
                .all(|(offset, found)| *found == nested(*offset)),
            "{found:?}"
        );
        assert_eq!(found.is_empty(), !is_indexed);
    }
}

#[test]
fn version_1_entries_are_good_by_what_follows_them() {
    let config = LogConfig {
        record_version: Layout::V1,
        ..small_config()
    };
    let build = || {
        let fs = FaultFs::new(MemFs::new());
        let mut world = World::start(&fs, FsyncPolicy::Always, config, NOW).unwrap();
        for offset in 0..10 {
            world.put(&[record(offset)], NOW);
        }
        drop(world);
        kill(&fs)
    };
    let name = "00000000000000000000.log";
    let entry = 22 + 44;
    let found = |fs: &Faulty| {
        let mut world = World::start(fs, FsyncPolicy::Always, config, NOW).unwrap();
        let (found, damage) = read_all(&mut world.log);
        let damage: Vec<_> = damage.iter().map(|d| (d.offset, d.next)).collect();
        (
            found
                .into_iter()
                .map(|(offset, _)| offset)
                .collect::<Vec<_>>(),
            damage,
        )
    };
    assert_eq!(found(&build()), ((0..10).collect(), vec![]));

    let fs = build();
    append_bytes(&fs, name, b"\xCA\xFE\x00\x00");
    assert_eq!(
        found(&fs),
        ((0..10).collect(), vec![]),
        "the beginning of an entry is cut alone"
    );

    let fs = build();
    append_bytes(&fs, name, &[0; 40]);
    assert_eq!(
        found(&fs),
        ((0..9).collect(), vec![]),
        "garbage takes the entry before it along"
    );

    let fs = build();
    // The length of a value in the middle: the entry behind it is not met, so this one is bad.
    patch(&fs, name, 3 * entry + 20, &[0, 45]);
    let (offsets, damage) = found(&fs);
    assert!(
        !offsets.contains(&3) && offsets.contains(&2) && offsets.contains(&9),
        "{offsets:?}"
    );
    assert_eq!(damage.first().map(|d| d.0), Some(3));

    let fs = build();
    patch(&fs, name, 4 * entry + 2, &[0x7f]);
    let (offsets, _) = found(&fs);
    assert!(
        !offsets.contains(&4) && offsets.contains(&9),
        "an offset beyond those behind it: {offsets:?}"
    );
}
