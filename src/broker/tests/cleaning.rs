//! Compaction through the broker: with readers and tails at the same time, with DELETE and ALTER in the middle, slice by slice.

use std::collections::BTreeMap;

use super::*;
use crate::fs::{File, OpenMode};

const DAY: Duration = Duration::from_hours(24);

fn rig(configs: &[(&str, &str)]) -> Rig {
    let always = [
        ("cleanup.policy", "compact"),
        ("segment.bytes", "600"),
        ("min.cleanable.dirty.ratio", "0.1"),
        ("file.delete.delay.ms", "1000"),
    ];
    let named: BTreeMap<_, _> = always.iter().chain(configs).copied().collect();
    Rig::with(Settings {
        configs: named
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
        ..settings(FsyncPolicy::Always)
    })
}

/// Puts `count` records over `keys` keys.
fn fill(rig: &mut Rig, target: &str, count: usize, keys: usize) {
    for n in 0..count {
        rig.put_keyed(target, &format!("k{}", n % keys), Some(&format!("{n}")));
    }
}

/// Offset, key and value of all records.
fn records(rig: &mut Rig, target: &str) -> Vec<(i64, String, Option<String>)> {
    match rig.reply(&read(target, OffsetSpec::Earliest, 0)) {
        Response::Records { records, .. } => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            records
                .iter()
                .map(|r| {
                    (
                        r.offset,
                        text(r.record.key.unwrap()),
                        r.record.value.map(text),
                    )
                })
                .collect()
        }
        other => panic!("{other:?}"),
    }
}

fn last_of_each(
    records: &[(i64, String, Option<String>)],
) -> BTreeMap<String, (i64, Option<String>)> {
    let pairs = records.iter().cloned();
    pairs
        .map(|(offset, key, value)| (key, (offset, value)))
        .collect()
}

const BACKOFF: Duration = Duration::from_secs(15);

#[test]
fn the_last_value_of_each_key_stays_at_its_offset() {
    let mut rig = rig(&[]);
    rig.create("a", 1, &[]);
    fill(&mut rig, "a", 100, 5);
    let before = records(&mut rig, "a");
    rig.later(BACKOFF);
    let after = records(&mut rig, "a");
    assert!(after.len() < 30, "{}", after.len());
    assert_eq!(last_of_each(&before), last_of_each(&after));
    assert!(after.iter().all(|record| before.contains(record)));
    assert_eq!(rig.offsets("a"), [(0, 0, 100)]);
    let first = after[0].0;
    assert!(first > 0);
    match rig.reply(&read("a", OffsetSpec::Offset(1), 0)) {
        Response::Records { records, .. } => {
            assert_eq!(records.iter().next().unwrap().offset, first);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(rig.stat("cleaner_is_running"), 0);
    assert!(rig.stat("cleaner_records_before_total") > rig.stat("cleaner_records_after_total"));
    assert!(rig.stat("cleaner_bytes_before_total") > rig.stat("cleaner_bytes_after_total"));
    assert!(rig.stat("cleaner_runs_total") >= 1);
    rig.later(Duration::from_secs(2));
    assert_eq!(rig.files("/data/a-0", ".deleted"), [""; 0]);
    assert_eq!(records(&mut rig.crashed(), "a"), after);
}

#[test]
fn tombstones_go_after_their_time_and_the_key_does_not_come_back() {
    let mut rig = rig(&[("delete.retention.ms", "86400000")]);
    rig.create("a", 1, &[]);
    fill(&mut rig, "a", 30, 3);
    rig.put_keyed("a", "k1", None);
    fill(&mut rig, "a", 20, 1);
    rig.later(BACKOFF);
    let is_there = |rig: &mut Rig| records(rig, "a").iter().any(|(_, key, _)| key == "k1");
    assert_eq!(last_of_each(&records(&mut rig, "a"))["k1"].1, None);
    rig.pass(DAY + BACKOFF);
    fill(&mut rig, "a", 60, 1);
    rig.later(BACKOFF);
    assert!(!is_there(&mut rig));
    assert!(!is_there(&mut rig.crashed()));
}

#[test]
fn readers_and_tails_go_on_while_a_topic_is_cleaned() {
    let mut rig = rig(&[]);
    rig.create("a", 1, &[]);
    fill(&mut rig, "a", 300, 7);
    rig.handle(BOB, &tail("a", OffsetSpec::Earliest));
    rig.handle(CAROL, &tail("a", OffsetSpec::Latest));
    let Response::Fetched {
        range: Some(range),
        first_offset,
        next_offset,
        ..
    } = rig.reply(&fetch("a", 0, (500, 1), 0))
    else {
        panic!("records are there")
    };
    let mut stored = vec![0; usize::try_from(range.len).unwrap()];
    range.file.read_at(&mut stored, range.position).unwrap();
    let (mut model, mut seen, mut news) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for (key, (_, value)) in last_of_each(&records(&mut rig, "a")) {
        model.insert(key, value.unwrap());
    }
    rig.pass(BACKOFF);
    for n in 0..400 {
        let (key, value) = (format!("k{}", n % 9), format!("new {n}"));
        rig.put_keyed("a", &key, Some(&value));
        model.insert(key, value);
        rig.broker.tick(&rig.clock);
        rig.pass(Duration::from_millis(60));
        for connection in rig.ready() {
            let connection = ConnectionId(connection);
            while let Resumed::Event(TailEvent::Records { records, .. }) = rig.resume(connection) {
                for record in records.iter() {
                    let text =
                        |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap()).into_owned();
                    let (key, value) = (text(record.record.key), text(record.record.value));
                    if connection == BOB {
                        seen.insert(key, value);
                    } else {
                        news.push(value);
                    }
                }
            }
        }
        let read: BTreeMap<_, _> = last_of_each(&records(&mut rig, "a"))
            .into_iter()
            .map(|(key, (_, value))| (key, value.unwrap()))
            .collect();
        assert_eq!(read, model, "after {n}");
    }
    assert_eq!(seen, model, "a tail from the earliest ends with the same");
    assert_eq!(news.len(), 400, "one from the latest missed nothing");
    assert!(rig.stat("cleaner_runs_total") > 1);
    rig.later(BACKOFF);
    let segments = rig.segments("a").len();
    assert!(segments < 45, "{segments} of about 60");
    let mut again = stored.clone();
    range.file.read_at(&mut again, range.position).unwrap();
    assert!(
        again == stored && first_offset == 0 && next_offset > 0,
        "a reader in the middle finishes"
    );
}

#[test]
fn a_slice_is_bounded_and_the_dirtiest_goes_first() {
    let mut rig = rig(&[
        ("segment.bytes", "1000000"),
        ("log.retention.check.interval.ms", "1"),
    ]);
    for topic in ["a", "b"] {
        rig.create(topic, 1, &[]);
    }
    let value = "-".repeat(2000);
    for n in 0..1200 {
        rig.put_keyed("a", &format!("{}", n % 10), Some(&value));
        if n % 2 == 0 {
            rig.put_keyed("b", &format!("{}", n % 10), Some(&value));
        }
    }
    rig.pass(BACKOFF);
    let mut slices = 0;
    while rig.broker.next_deadline() <= Some(rig.now().mono) {
        rig.turn();
        let before = rig.mem.bytes_read();
        rig.broker.tick(&rig.clock);
        let read = rig.mem.bytes_read() - before;
        assert!(read < 800_000, "{read} bytes in a slice");
        slices += 1;
    }
    assert!(slices > 20, "{slices}");
    assert_eq!(rig.stat("uncleanable_partitions"), 0);
}

#[test]
fn delete_and_alter_end_a_round() {
    for is_delete in [true, false] {
        let mut rig = rig(&[]);
        rig.create("a", 1, &[]);
        fill(&mut rig, "a", 200, 5);
        let before = records(&mut rig, "a");
        rig.pass(BACKOFF);
        while rig.files("/data/a-0", ".cleaned").is_empty() {
            rig.turn();
            rig.broker.tick(&rig.clock);
        }
        assert_eq!(rig.stat("cleaner_is_running"), 1);
        if is_delete {
            assert!(matches!(rig.reply(&Request::Delete(b"a")), Response::Done));
            assert!(!rig.mem.exists(Path::new("/data/a-0")).unwrap());
            rig.create("a", 1, &[]);
            rig.settle();
            assert_eq!(records(&mut rig, "a"), []);
            assert_eq!(rig.put_keyed("a", "k", Some("v")), 0);
        } else {
            rig.alter("a", &[("cleanup.policy", "delete"), ("retention.ms", "-1")]);
            assert_eq!(rig.files("/data/a-0", ".cleaned"), [""; 0]);
            rig.settle();
            rig.later(BACKOFF);
            assert_eq!(last_of_each(&records(&mut rig, "a")), last_of_each(&before));
            assert_eq!(rig.stat("cleaner_is_running"), 0);
            assert_eq!(rig.deadline(), None, "it sleeps");
        }
    }
}

#[test]
fn damage_is_quarantined_and_others_are_cleaned() {
    let mut rig = rig(&[]);
    for topic in ["a", "b"] {
        rig.create(topic, 1, &[]);
        fill(&mut rig, topic, 100, 5);
    }
    let path = Path::new("/data/a-0/00000000000000000000.log");
    let file = rig.mem.open(path, OpenMode::Write).unwrap();
    file.write_all_at(&[0xff; 60], 100).unwrap();
    rig.later(BACKOFF);
    assert_eq!(rig.stat("uncleanable_partitions"), 1);
    assert_eq!(rig.files("/data/a-0", ".cleaned"), [""; 0]);
    assert!(records(&mut rig, "b").len() < 40);
    rig.later(BACKOFF);
    rig.reply(&Request::Delete(b"a"));
    assert_eq!(rig.stat("uncleanable_partitions"), 0);
}

#[test]
fn a_full_disk_is_no_reason_for_ever() {
    let mut rig = rig(&[]);
    rig.create("a", 1, &[]);
    fill(&mut rig, "a", 100, 5);
    rig.pass(BACKOFF);
    while rig.files("/data/a-0", ".cleaned").is_empty() {
        rig.turn();
        rig.broker.tick(&rig.clock);
    }
    rig.fail_always(FaultKind::NoSpace);
    rig.settle();
    rig.fs.disarm();
    assert_eq!(rig.stat("uncleanable_partitions"), 0);
    assert_eq!(records(&mut rig, "a").len(), 100);
    rig.later(BACKOFF);
    assert!(records(&mut rig, "a").len() < 40);
}

#[test]
fn cleaning_survives_a_crash_and_a_fault_at_every_operation() {
    for is_crash in [true, false] {
        for at in 0.. {
            let mut rig = rig(&[("file.delete.delay.ms", "0")]);
            rig.create("a", 1, &[]);
            fill(&mut rig, "a", 40, 3);
            let before = last_of_each(&records(&mut rig, "a"));
            rig.fs.arm(Fault {
                at,
                from_then_on: is_crash,
                kind: FaultKind::Io,
                reads: false,
            });
            rig.later(BACKOFF);
            let struck = rig.fs.struck();
            rig.fs.disarm();
            if !is_crash {
                assert_eq!(
                    last_of_each(&records(&mut rig, "a")),
                    before,
                    "operation {at}"
                );
            }
            let mut after = if is_crash {
                rig.crashed()
            } else {
                rig.killed()
            };
            assert_eq!(
                last_of_each(&records(&mut after, "a")),
                before,
                "operation {at}"
            );
            assert_eq!(after.offsets("a"), [(0, 0, 40)]);
            after.later(BACKOFF);
            assert_eq!(
                last_of_each(&records(&mut after, "a")),
                before,
                "operation {at}"
            );
            if struck == 0 {
                assert!(at > 10);
                break;
            }
        }
    }
}

#[test]
fn an_idle_compacted_topic_costs_a_look_now_and_then() {
    let mut rig = rig(&[("log.cleaner.backoff.ms", "0")]);
    assert_eq!(rig.deadline(), None, "nothing is compacted");
    rig.create("a", 1, &[]);
    rig.settle();
    let due = rig.deadline().expect("it looks again");
    assert!(due >= rig.now().mono + Duration::from_millis(10), "{due:?}");
}
