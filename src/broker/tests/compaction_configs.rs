//! What each config of segments and of compaction does, as Kafka's documentation has it. docs/testing.md says where the others are shown.

use super::*;

const BACKOFF: Duration = Duration::from_secs(15);

fn rig(configs: &[(&str, &str)]) -> Rig {
    let base = [("segment.bytes", "600"), ("log.initial.task.delay.ms", "0")];
    Rig::with(Settings {
        configs: base
            .iter()
            .chain(configs)
            .map(|&(name, value)| (name.into(), value.into()))
            .collect(),
        ..settings(FsyncPolicy::Always)
    })
}

fn fill(rig: &mut Rig, topic: &str, count: usize) {
    for n in 0..count {
        rig.put_keyed(topic, &format!("k{}", n % 3), Some("------------------"));
    }
}

fn count(rig: &mut Rig, topic: &str) -> usize {
    match rig.reply(&read(topic, OffsetSpec::Earliest, 0)) {
        Response::Records { records, .. } => records.iter().count(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_a_topic_whose_policy_says_so_is_compacted() {
    let mut rig = rig(&[]);
    rig.create("kept", 1, &[]);
    rig.create("one", 1, &[("cleanup.policy", "compact")]);
    rig.create("two", 1, &[("cleanup.policy", "compact,delete")]);
    for topic in ["kept", "one", "two"] {
        fill(&mut rig, topic, 60);
    }
    rig.later(BACKOFF);
    assert_eq!(count(&mut rig, "kept"), 60);
    assert!(count(&mut rig, "one") < 30);
    assert!(count(&mut rig, "two") < 30);
    // A week later what may be deleted by time is, and no more.
    rig.later(Duration::from_hours(8 * 24));
    assert_eq!(count(&mut rig, "kept"), 0);
    assert_eq!(count(&mut rig, "two"), 0);
    assert!(count(&mut rig, "one") >= 3);
}

#[test]
fn a_log_waits_until_enough_of_it_is_dirty() {
    let mut rig = rig(&[("cleanup.policy", "compact")]);
    rig.create("a", 1, &[("min.cleanable.dirty.ratio", "0.9")]);
    for n in 0..80 {
        rig.put_keyed("a", &format!("only {n}"), Some("------------------"));
    }
    rig.later(BACKOFF);
    let runs = rig.stat("cleaner_runs_total");
    assert!(
        runs >= 1,
        "a log that was never cleaned is dirty as a whole"
    );
    for n in 0..20 {
        rig.put_keyed("a", &format!("only {n}"), Some("------------------"));
    }
    rig.later(BACKOFF);
    assert_eq!(
        rig.stat("cleaner_runs_total"),
        runs,
        "a fifth is not enough"
    );
    assert_eq!(count(&mut rig, "a"), 100);
    rig.alter("a", &[("min.cleanable.dirty.ratio", "0.05")]);
    rig.later(BACKOFF);
    assert!(rig.stat("cleaner_runs_total") > runs);
    assert!(count(&mut rig, "a") < 100);
}

#[test]
fn a_young_record_is_not_compacted() {
    let mut rig = rig(&[("cleanup.policy", "compact")]);
    rig.create("a", 1, &[("min.compaction.lag.ms", "60000")]);
    fill(&mut rig, "a", 60);
    rig.later(BACKOFF);
    assert_eq!(count(&mut rig, "a"), 60, "nothing is a minute old");
    rig.later(Duration::from_secs(50));
    assert!(count(&mut rig, "a") < 30);
}

#[test]
fn a_record_that_waited_long_enough_is_compacted_whatever_the_ratio() {
    let mut rig = rig(&[
        ("cleanup.policy", "compact"),
        ("min.cleanable.dirty.ratio", "1"),
    ]);
    rig.create("a", 1, &[]);
    fill(&mut rig, "a", 60);
    rig.later(BACKOFF);
    assert_eq!(count(&mut rig, "a"), 60, "no part is over all of it");
    rig.alter("a", &[("max.compaction.lag.ms", "60000")]);
    rig.later(BACKOFF);
    assert_eq!(count(&mut rig, "a"), 60, "half a minute old");
    // The active segment, too, is sealed by then.
    rig.later(Duration::from_mins(11));
    rig.later(BACKOFF);
    assert_eq!(count(&mut rig, "a"), 3);
}

#[test]
fn a_small_map_takes_more_rounds_to_the_same_end() {
    for (bytes, least) in [("1024", 3), ("134217728", 1)] {
        let mut rig = rig(&[
            ("cleanup.policy", "compact"),
            ("min.cleanable.dirty.ratio", "0"),
            ("log.cleaner.dedupe.buffer.size", bytes),
        ]);
        rig.create("a", 1, &[]);
        for n in 0..300 {
            rig.put_keyed("a", &format!("key {}", n % 150), Some("----------"));
        }
        for n in 0..30 {
            rig.put_keyed("a", "last", Some(&format!("---------- {n}")));
        }
        rig.later(BACKOFF);
        let left = count(&mut rig, "a");
        assert!((151..=165).contains(&left), "{left} under {bytes}");
        assert!(rig.stat("cleaner_runs_total") >= least);
    }
}

#[test]
fn compaction_rests_for_its_backoff_where_nothing_is_due() {
    let mut rig = rig(&[
        ("cleanup.policy", "compact"),
        ("log.cleaner.backoff.ms", "120000"),
    ]);
    rig.create("a", 1, &[]);
    rig.settle();
    fill(&mut rig, "a", 60);
    rig.later(Duration::from_secs(119));
    assert_eq!(count(&mut rig, "a"), 60);
    rig.later(Duration::from_secs(2));
    assert!(count(&mut rig, "a") < 30);
}

#[test]
fn a_stop_after_any_slice_of_a_round_loses_nothing_and_the_next_start_goes_on() {
    for slices in 0.. {
        let mut rig = rig(&[("cleanup.policy", "compact"), ("file.delete.delay.ms", "0")]);
        rig.create("a", 1, &[]);
        fill(&mut rig, "a", 60);
        rig.pass(BACKOFF);
        for _ in 0..slices {
            rig.turn();
            rig.broker.tick(&rig.clock);
        }
        let is_over = rig.stat("cleaner_records_before_total") > 0;
        let mut rig = rig.restarted();
        for suffix in [".cleaned", ".replace", ".deleted"] {
            assert_eq!(rig.files("/data/a-0", suffix), [""; 0], "after {slices}");
        }
        assert_eq!(rig.offsets("a"), [(0, 0, 60)]);
        rig.later(BACKOFF);
        let left = count(&mut rig, "a");
        assert!((3..30).contains(&left), "{left} after {slices}");
        let last = |rig: &mut Rig| match rig.reply(&read("a", OffsetSpec::Offset(57), 0)) {
            Response::Records { records, .. } => records.iter().map(|r| r.offset).collect(),
            other => panic!("{other:?}"),
        };
        let last: Vec<i64> = last(&mut rig);
        assert_eq!(last, [57, 58, 59], "after {slices}");
        if is_over {
            assert!(slices > 10, "{slices}");
            break;
        }
    }
}

/// Base, bytes and index entries of each segment.
fn shape(rig: &mut Rig, topic: &str) -> Vec<(i64, u64, u64)> {
    match rig.reply(&Request::Segments(target_of(topic))) {
        Response::Segments(lines) => lines
            .iter()
            .map(|line| (line.base_offset, line.bytes, line.index_entries))
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_sizes_of_segments_and_indexes_are_as_told() {
    let mut rig = rig(&[]);
    // An entry of this value has 36 + 64 bytes.
    let value = "-".repeat(64);
    for (topic, config, expected) in [
        (
            "bytes",
            ("segment.bytes", "300"),
            vec![(0, 300, 1), (3, 300, 1), (6, 100, 1)],
        ),
        (
            "least",
            ("segment.bytes", "14"),
            (0..7).map(|n| (n, 100, 1)).collect(),
        ),
        (
            "every",
            ("index.interval.bytes", "0"),
            vec![(0, 600, 6), (6, 100, 1)],
        ),
        (
            "third",
            ("index.interval.bytes", "250"),
            vec![(0, 600, 2), (6, 100, 1)],
        ),
    ] {
        rig.create(topic, 1, &[config]);
        for _ in 0..7 {
            rig.put(topic, &value);
        }
        assert_eq!(shape(&mut rig, topic), expected, "{topic}");
    }
    // Room for two rows of 12 bytes: an index that is full ends its segment.
    let configs = [("segment.index.bytes", "24"), ("index.interval.bytes", "0")];
    rig.create("full", 1, &configs);
    for _ in 0..7 {
        rig.put("full", &value);
    }
    let shape = shape(&mut rig, "full");
    assert!(shape.len() > 2, "{shape:?}");
    assert!(shape.iter().all(|(_, _, rows)| *rows <= 3), "{shape:?}");
}
