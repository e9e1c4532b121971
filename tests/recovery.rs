//! What a start makes of damage: a table of cases (name, how the broker ended, what was damaged, what is expected), then the cases that
//! need more than a row.
//!
//! The log of the table: offsets 0 to 29, 80 bytes each, 12 in a segment (bases 0, 12, 24), an index row for every second entry.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod world;

use std::path::Path;

use mini_broker::api::CrcMode;
use mini_broker::format::Layout;
use mini_broker::fs::fault::FaultFs;
use mini_broker::fs::mem::MemFs;
use mini_broker::fs::{File, Fs, OpenMode};
use mini_broker::record::Records;
use mini_broker::storage::{Error, FsyncPolicy, LogConfig};
use world::{Faulty, Rec, World, content, file, names, put_file, read_all, small_config};

const NOW: i64 = 1_767_225_600_000;
const COUNT: i64 = 30;
const ENTRY: u64 = 80;

/// How the broker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Killed; recovery-point says 24, as the last roll left it.
    Kill,
    /// Killed after recovery-point was written: it says 30.
    Noted,
    /// Stopped in order.
    Clean,
}

/// What a start must find; everything not named here must be as it was.
struct Expect {
    /// Offsets that cannot be read any more.
    lost: Vec<i64>,
    /// Damage that a reader is told: offset, next.
    damage: Vec<(i64, i64)>,
    /// The next offset.
    end: i64,
    /// Names and bytes of the .torn files.
    torn: Vec<(&'static str, u64)>,
}

impl Expect {
    fn all() -> Self {
        Self {
            lost: Vec::new(),
            damage: Vec::new(),
            end: COUNT,
            torn: Vec::new(),
        }
    }

    fn damaged(from: i64, next: i64) -> Self {
        Self {
            lost: (from..next).collect(),
            damage: vec![(from, next)],
            ..Self::all()
        }
    }

    fn cut(from: i64, torn: u64) -> Self {
        let torn = if torn > 0 {
            vec![("00000000000000000024.torn", torn)]
        } else {
            vec![]
        };
        Self {
            lost: (from..COUNT).collect(),
            end: from,
            torn,
            ..Self::all()
        }
    }

    /// The end was durable: it is put aside, and the next offset stays.
    fn gap(from: i64, torn: u64) -> Self {
        let torn = vec![("00000000000000000024.torn", torn)];
        Self {
            torn,
            ..Self::damaged(from, COUNT)
        }
    }
}

fn record(offset: i64) -> Rec {
    Rec::new(NOW + offset, format!("{offset:044}").as_bytes())
}

fn build(end: End, config: LogConfig) -> Faulty {
    let fs = FaultFs::new(MemFs::new());
    let mut world = World::start(&fs, FsyncPolicy::Always, config, NOW).unwrap();
    for offset in 0..COUNT {
        world.put(&[record(offset)], NOW + offset);
    }
    match end {
        End::Kill => {}
        End::Noted => world.dir.checkpoints().write_recovery_point().unwrap(),
        End::Clean => world.stop().unwrap(),
    }
    FaultFs::new(fs.inner().kill())
}

fn start(fs: &Faulty) -> World {
    World::start(fs, FsyncPolicy::Always, small_config(), NOW).unwrap()
}

fn kill(fs: &Faulty) -> Faulty {
    FaultFs::new(fs.inner().kill())
}

/// The file and the position of an offset.
fn place(offset: i64) -> (String, u64) {
    let base = offset / 12 * 12;
    (
        format!("{base:020}.log"),
        u64::try_from(offset - base).unwrap() * ENTRY,
    )
}

fn patch(fs: &Faulty, name: &str, at: u64, bytes: &[u8]) {
    let file = fs.open(&file(name), OpenMode::Write).unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.sync_data().unwrap();
}

fn flip(fs: &Faulty, name: &str, at: u64, mask: u8) {
    let byte = content(fs, name)[usize::try_from(at).unwrap()];
    patch(fs, name, at, &[byte ^ mask]);
}

/// Flips bits in the value of an entry: its frame holds.
fn flip_value(fs: &Faulty, offset: i64) {
    let (name, at) = place(offset);
    flip(fs, &name, at + 50, 0x10);
}

/// Breaks the magic of an entry: its frame does not hold.
fn break_frame(fs: &Faulty, offset: i64) {
    let (name, at) = place(offset);
    flip(fs, &name, at, 0xff);
}

fn cut_log(fs: &Faulty, name: &str, len: u64) {
    let file = fs.open(&file(name), OpenMode::Write).unwrap();
    file.set_len(len).unwrap();
    file.sync_data().unwrap();
}

fn append_bytes(fs: &Faulty, name: &str, bytes: &[u8]) {
    let at = content(fs, name).len() as u64;
    patch(fs, name, at, bytes);
}

fn remove(fs: &Faulty, names: &[&str]) {
    for name in names {
        fs.remove_file(&file(name)).unwrap();
    }
}

const ACTIVE: &str = "00000000000000000024.log";
const ACTIVE_INDEX: &str = "00000000000000000024.index";

/// Compares what is there with what is expected, over several starts, and then appends.
fn check(name: &str, fs: &Faulty, expect: &Expect) {
    let mut fs = kill(fs);
    for round in ["first", "second", "third"] {
        let mut world = start(&fs);
        check_content(&format!("{name}, {round} start"), &mut world, &fs, expect);
        fs = kill(&fs);
    }
    let mut world = start(&fs);
    let next = record(world.log.log_end_offset());
    assert_eq!(world.log.log_end_offset(), expect.end, "{name}");
    world.put(std::slice::from_ref(&next), NOW);
    let (found, _) = read_all(&mut world.log);
    assert_eq!(
        found.last(),
        Some(&(expect.end, next)),
        "{name}: the appended record"
    );
    world.stop().unwrap();
    let fs = kill(&fs);
    let mut world = start(&fs);
    let (found, damage) = read_all(&mut world.log);
    assert_eq!(
        found.len(),
        usize::try_from(COUNT + 1).unwrap() - expect.lost.len(),
        "{name}"
    );
    let damage: Vec<_> = damage.iter().map(|d| (d.offset, d.next)).collect();
    assert_eq!(damage, expect.damage, "{name}: after an orderly stop");
}

fn check_content(name: &str, world: &mut World, fs: &Faulty, expect: &Expect) {
    let (found, damage) = read_all(&mut world.log);
    let damage: Vec<_> = damage.iter().map(|d| (d.offset, d.next)).collect();
    assert_eq!(damage, expect.damage, "{name}: damage");
    let expected: Vec<_> = (0..COUNT)
        .filter(|offset| !expect.lost.contains(offset))
        .map(|offset| (offset, record(offset)))
        .collect();
    assert_eq!(found, expected, "{name}: records");
    assert_eq!(
        world.log.log_end_offset(),
        expect.end,
        "{name}: next offset"
    );
    assert!(!world.log.is_read_only(), "{name}");
    let torn: Vec<_> = names(fs)
        .into_iter()
        .filter(|name| name.contains(".torn"))
        .map(|name| {
            let len = content(fs, &name).len() as u64;
            (name, len)
        })
        .collect();
    let expected: Vec<_> = expect
        .torn
        .iter()
        .map(|(name, len)| ((*name).to_owned(), *len))
        .collect();
    assert_eq!(torn, expected, "{name}: torn files");
}

type Damage = fn(&Faulty) -> Expect;

/// The table.
const CASES: &[(&str, End, Damage)] = &[
    ("nothing", End::Kill, |_| Expect::all()),
    ("nothing, noted", End::Noted, |_| Expect::all()),
    ("nothing, clean", End::Clean, |_| Expect::all()),
    // The end of the last segment, beyond the recovery point.
    ("a flipped bit in the last value", End::Kill, |fs| {
        flip_value(fs, 29);
        Expect::cut(29, ENTRY)
    }),
    ("a broken frame at the end", End::Kill, |fs| {
        break_frame(fs, 29);
        Expect::cut(29, ENTRY)
    }),
    ("zeros behind the end", End::Kill, |fs| {
        append_bytes(fs, ACTIVE, &[0; 10_000]);
        Expect {
            torn: vec![("00000000000000000024.torn", 10_000)],
            ..Expect::all()
        }
    }),
    (
        "a magic and a length that claims two gigabytes",
        End::Kill,
        |fs| {
            append_bytes(
                fs,
                ACTIVE,
                b"\xCA\xFE\x82\x00\x00\x00\x00\x7f\xff\xff\x00 and no more",
            );
            Expect {
                torn: vec![("00000000000000000024.torn", 23)],
                ..Expect::all()
            }
        },
    ),
    (
        "a copy of an earlier entry behind the end",
        End::Kill,
        |fs| {
            let copy = content(fs, ACTIVE)[..80].to_vec();
            append_bytes(fs, ACTIVE, &copy);
            Expect {
                torn: vec![("00000000000000000024.torn", ENTRY)],
                ..Expect::all()
            }
        },
    ),
    ("garbage behind a clean end", End::Clean, |fs| {
        append_bytes(fs, ACTIVE, b"garbage");
        Expect {
            torn: vec![("00000000000000000024.torn", 7)],
            ..Expect::all()
        }
    }),
    (
        "the last segment lost beyond the recovery point",
        End::Kill,
        |fs| {
            cut_log(fs, ACTIVE, 0);
            Expect::cut(24, 0)
        },
    ),
    // Damage in the last segment that good entries follow.
    ("a flipped bit in the middle", End::Kill, |fs| {
        flip_value(fs, 26);
        Expect::damaged(26, 27)
    }),
    ("two flipped bits in a row", End::Kill, |fs| {
        flip_value(fs, 26);
        flip_value(fs, 27);
        Expect::damaged(26, 28)
    }),
    (
        "a broken frame that a row of the index leads over",
        End::Kill,
        |fs| {
            break_frame(fs, 26);
            Expect::damaged(26, 28)
        },
    ),
    ("a length of two gigabytes in the middle", End::Kill, |fs| {
        let (name, at) = place(26);
        patch(fs, &name, at + 7, &0x7fff_ff00_u32.to_be_bytes());
        Expect::damaged(26, 28)
    }),
    ("zeros in the middle", End::Kill, |fs| {
        let (name, at) = place(25);
        patch(fs, &name, at, &[0; 160]);
        Expect::damaged(25, 28)
    }),
    ("a broken frame and no index to lead on", End::Kill, |fs| {
        break_frame(fs, 26);
        remove(fs, &[ACTIVE_INDEX]);
        Expect::cut(26, 4 * ENTRY)
    }),
    ("a flipped bit and no index", End::Kill, |fs| {
        flip_value(fs, 26);
        remove(fs, &[ACTIVE_INDEX]);
        Expect::damaged(26, 27)
    }),
    // Below the recovery point nothing is cut.
    ("a flipped bit below the recovery point", End::Noted, |fs| {
        flip_value(fs, 26);
        Expect::damaged(26, 27)
    }),
    (
        "a broken frame below the recovery point",
        End::Noted,
        |fs| {
            break_frame(fs, 26);
            Expect::damaged(26, 28)
        },
    ),
    ("a flipped bit in the middle, clean", End::Clean, |fs| {
        flip_value(fs, 26);
        Expect::damaged(26, 27)
    }),
    // A log that ends below its recovery point.
    ("the last durable value flipped", End::Noted, |fs| {
        flip_value(fs, 29);
        Expect::gap(29, ENTRY)
    }),
    ("cut within a durable entry", End::Noted, |fs| {
        cut_log(fs, ACTIVE, 4 * ENTRY + 11);
        Expect::gap(28, 11)
    }),
    ("cut between durable entries", End::Noted, |fs| {
        cut_log(fs, ACTIVE, 4 * ENTRY);
        Expect::gap(28, 0)
    }),
    ("the last segment emptied", End::Noted, |fs| {
        cut_log(fs, ACTIVE, 0);
        Expect::gap(24, 0)
    }),
    ("the last clean value flipped", End::Clean, |fs| {
        flip_value(fs, 29);
        Expect::gap(29, ENTRY)
    }),
    ("cut within a clean entry", End::Clean, |fs| {
        cut_log(fs, ACTIVE, 5 * ENTRY + 79);
        Expect::gap(29, 79)
    }),
    ("a clean last segment emptied", End::Clean, |fs| {
        cut_log(fs, ACTIVE, 0);
        Expect::gap(24, 0)
    }),
    // Sealed segments.
    ("a flipped bit in a sealed segment", End::Clean, |fs| {
        flip_value(fs, 5);
        Expect::damaged(5, 6)
    }),
    ("a broken frame before a row", End::Kill, |fs| {
        break_frame(fs, 5);
        Expect::damaged(5, 6)
    }),
    ("a broken frame at a row", End::Kill, |fs| {
        break_frame(fs, 4);
        Expect::damaged(4, 6)
    }),
    (
        "a broken frame at the end of a sealed segment",
        End::Clean,
        |fs| {
            break_frame(fs, 11);
            Expect::damaged(11, 12)
        },
    ),
    (
        "the last value of a sealed segment flipped",
        End::Clean,
        |fs| {
            flip_value(fs, 23);
            Expect::damaged(23, 24)
        },
    ),
    (
        "the first entry of a sealed segment broken",
        End::Clean,
        |fs| {
            break_frame(fs, 12);
            Expect::damaged(12, 14)
        },
    ),
    (
        "the layout byte of the first entry says version 1",
        End::Clean,
        |fs| {
            let (name, at) = place(12);
            patch(fs, &name, at + 2, &[0]);
            Expect::damaged(12, 14)
        },
    ),
    ("a sealed segment cut within an entry", End::Clean, |fs| {
        cut_log(fs, "00000000000000000012.log", 10 * ENTRY + 3);
        Expect::damaged(22, 24)
    }),
    (
        "an entry of the next segment behind a sealed one",
        End::Clean,
        |fs| {
            let mut stale = Vec::new();
            let other = Rec::new(NOW, b"stale");
            Layout::V2.encode(24, &other.borrow(), &mut stale).unwrap();
            append_bytes(fs, "00000000000000000012.log", &stale);
            Expect::all()
        },
    ),
    (
        "a broken frame and no index in a sealed segment",
        End::Clean,
        |fs| {
            break_frame(fs, 5);
            remove(fs, &["00000000000000000000.index"]);
            Expect::damaged(5, 12)
        },
    ),
    (
        "damage in every segment, and no recovery point",
        End::Kill,
        |fs| {
            fs.remove_file(Path::new("/data/recovery-point")).unwrap();
            for offset in [3, 15, 27] {
                flip_value(fs, offset);
            }
            let damage = vec![(3, 4), (15, 16), (27, 28)];
            Expect {
                lost: vec![3, 15, 27],
                damage,
                ..Expect::all()
            }
        },
    ),
    // Indexes are a cache.
    ("no index at all", End::Clean, |fs| {
        let indexes: Vec<_> = names(fs)
            .into_iter()
            .filter(|name| name.ends_with("index"))
            .collect();
        for name in &indexes {
            remove(fs, &[name]);
        }
        Expect::all()
    }),
    ("indexes without a byte", End::Clean, |fs| {
        for name in names(fs).into_iter().filter(|name| name.ends_with("index")) {
            cut_log(fs, &name, 0);
        }
        Expect::all()
    }),
    ("indexes of zeros", End::Kill, |fs| {
        for name in names(fs).into_iter().filter(|name| name.ends_with("index")) {
            let len = content(fs, &name).len();
            put_file(fs, &file(&name), &vec![0; len]);
        }
        Expect::all()
    }),
    ("indexes of garbage", End::Kill, |fs| {
        for name in names(fs).into_iter().filter(|name| name.ends_with("index")) {
            put_file(fs, &file(&name), &[0x5a; 601]);
        }
        Expect::all()
    }),
    ("rows of a sealed index swapped", End::Clean, |fs| {
        let name = "00000000000000000000.index";
        let mut rows = content(fs, name);
        let (left, right) = rows.split_at_mut(16);
        left[8..16].swap_with_slice(&mut right[..8]);
        put_file(fs, &file(name), &rows);
        Expect::all()
    }),
    ("the index of another segment", End::Clean, |fs| {
        let rows = content(fs, "00000000000000000012.index");
        put_file(fs, &file("00000000000000000000.index"), &rows[8..]);
        put_file(fs, &file("00000000000000000000.timeindex"), b"");
        Expect::all()
    }),
    ("a row that points behind the end", End::Clean, |fs| {
        let name = "00000000000000000000.index";
        append_bytes(fs, name, &[0, 0, 0, 11, 0x7f, 0xff, 0xff, 0xff]);
        Expect::all()
    }),
    // Text files.
    ("no recovery point", End::Kill, |fs| {
        fs.remove_file(Path::new("/data/recovery-point")).unwrap();
        Expect::all()
    }),
    ("half a recovery point", End::Noted, |fs| {
        put_file(fs, Path::new("/data/recovery-point"), b"t 0 3");
        Expect::all()
    }),
    ("text files without a byte", End::Noted, |fs| {
        for name in [
            "recovery-point",
            "log-start-offset",
            "t-0/append-times",
            "broker.properties",
        ] {
            put_file(fs, &Path::new("/data").join(name), b"");
        }
        Expect::all()
    }),
    ("text files of garbage", End::Noted, |fs| {
        for name in ["recovery-point", "log-start-offset", "t-0/append-times"] {
            put_file(
                fs,
                &Path::new("/data").join(name),
                b"\xff\xfe garbage\n\n0 0 0 0\n",
            );
        }
        Expect::all()
    }),
    // Strangers and leftovers.
    ("strangers", End::Kill, |fs| {
        for name in [
            "foo.log",
            "123.log",
            "00000000000000000000.log.bak",
            "-0000000000000000001.log",
        ] {
            put_file(fs, &file(name), b"not ours");
        }
        fs.create_dir(&file("00000000000000000099.log")).unwrap();
        fs.create_dir(&file("sub")).unwrap();
        Expect::all()
    }),
    ("an index without its log", End::Kill, |fs| {
        put_file(fs, &file("00000000000000000042.index"), &[1; 16]);
        put_file(fs, &file("00000000000000000042.timeindex"), &[1; 24]);
        Expect::all()
    }),
];

#[test]
fn every_row_of_the_table() {
    for (name, end, damage) in CASES {
        let fs = build(*end, small_config());
        let expect = damage(&fs);
        check(&format!("{name} ({end:?})"), &fs, &expect);
    }
}

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
