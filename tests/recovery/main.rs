//! What a start makes of damage: a table of cases, and the cases that need more than a row.
//!
//! The log of the table: offsets 0 to 29, 80 bytes each, 12 in a segment (bases 0, 12, 24), an index row for every second entry.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod damage;
mod indexes;
mod starts;
mod table;
#[path = "../world/mod.rs"]
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
