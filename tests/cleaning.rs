//! Retention and compaction of one log: what stays is equal before and after, byte for byte, and a crash at any operation leaves
//! the old or the new.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use mini_broker::api::CrcMode;
use mini_broker::fs::Fs;
use mini_broker::fs::fault::{Fault, FaultFs, FaultKind};
use mini_broker::fs::mem::MemFs;
use mini_broker::record::{Record, Records};
use mini_broker::storage::cleaner::CleanProgress;
use mini_broker::storage::data_dir::DataDir;
use mini_broker::storage::retention::Reason;
use mini_broker::storage::{
    CleanupPolicy, Error, FsyncPolicy, Log, LogConfig, LogContext, StartFrom,
};

type Value = Option<Vec<u8>>;

struct Opened<F: Fs> {
    _data_dir: DataDir<F>,
    log: Log<F>,
}

fn open<F: Fs>(fs: &F, config: LogConfig) -> Result<Opened<F>, Error> {
    let root = Path::new("/data");
    let mut data_dir = DataDir::lock(fs.clone(), root)?;
    data_dir.begin()?;
    let dir = root.join("t-0");
    if !fs.exists(&dir).unwrap() {
        fs.create_dir(&dir).map_err(Error::io("create", &dir))?;
        fs.sync_dir(root).map_err(Error::io("fsync", root))?;
    }
    let checkpoints = Rc::clone(data_dir.checkpoints());
    let context = Rc::new(LogContext::new(
        fs.clone(),
        FsyncPolicy::Always,
        checkpoints,
    ));
    let (log, _) = Log::open(
        &context,
        root,
        "t",
        0,
        config,
        StartFrom { is_clean: false },
        0,
    )?;
    Ok(Opened {
        _data_dir: data_dir,
        log,
    })
}

fn compacted() -> LogConfig {
    LogConfig {
        segment_bytes: 600,
        index_interval_bytes: 100,
        segment_index_bytes: 2400,
        cleanup: CleanupPolicy::Compact,
        delete_retention_ms: 1000,
        min_cleanable_dirty_ratio: 0.0,
        ..LogConfig::default()
    }
}

fn put<F: Fs>(log: &mut Log<F>, key: u8, value: Option<&[u8]>, now_ms: i64) -> Result<(), Error> {
    let record = Record {
        timestamp: now_ms,
        key: Some(&[key]),
        value,
        headers: &[],
    };
    log.append(&record, now_ms)?;
    log.sync()?;
    log.publish();
    Ok(())
}

/// Every record there is: offset, key, value.
fn all<F: Fs>(log: &mut Log<F>) -> Vec<(i64, u8, Value)> {
    let mut out = Vec::new();
    let mut offset = log.log_start_offset();
    while offset < log.high_watermark() {
        let mut records = Records::new();
        let outcome = log
            .read(offset, 7, 1 << 20, CrcMode::Check, &mut records)
            .unwrap();
        assert!(outcome.next_offset > offset);
        offset = outcome.next_offset;
        out.extend(records.iter().map(|stored| {
            let record = stored.record;
            (
                stored.offset,
                record.key.unwrap()[0],
                record.value.map(<[u8]>::to_vec),
            )
        }));
    }
    assert!(out.is_sorted_by(|a, b| a.0 < b.0), "offsets rise");
    out
}

fn last_values(records: &[(i64, u8, Value)]) -> BTreeMap<u8, Vec<u8>> {
    let mut map = BTreeMap::new();
    for (_, key, value) in records {
        match value {
            Some(value) => map.insert(*key, value.clone()),
            None => map.remove(key),
        };
    }
    map
}

fn clean<F: Fs>(log: &mut Log<F>, map_bytes: u64, now_ms: i64) -> Result<(), Error> {
    let Some(mut cleaning) = log.start_cleaning(map_bytes, now_ms)? else {
        return Ok(());
    };
    loop {
        match log.clean_slice(&mut cleaning, 150, now_ms)? {
            CleanProgress::More => {}
            CleanProgress::Replaced(replaced) => assert!(!replaced.files.is_empty()),
            CleanProgress::Done(stats) => {
                assert!(stats.records_after <= stats.records_before);
                return Ok(());
            }
            CleanProgress::Aborted => panic!("nothing aborts it"),
        }
    }
}

fn fill<F: Fs>(log: &mut Log<F>, random: &mut fastrand::Rng, count: u32, now_ms: i64) {
    for _ in 0..count {
        let value: Vec<u8> = (0..random.usize(0..60)).map(|_| random.u8(..)).collect();
        let value = (random.u8(..5) > 0).then_some(&value[..]);
        put(log, random.u8(..12), value, now_ms).unwrap();
    }
}

fn seed() -> u64 {
    let given = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    seed
}

#[test]
fn compaction_keeps_the_last_value_of_each_key_and_every_offset() {
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..30 {
        let fs = MemFs::new();
        let mut log = open(&fs, compacted()).unwrap().log;
        let mut now_ms = 0;
        for _ in 0..random.u32(1..6) {
            let count = random.u32(..120);
            fill(&mut log, &mut random, count, now_ms);
            let before = all(&mut log);
            let end = log.log_end_offset();
            // From two keys at a time to all of them.
            clean(&mut log, random.u64(72..600), now_ms).unwrap();
            let after = all(&mut log);
            assert_eq!(last_values(&before), last_values(&after));
            assert_eq!(log.log_end_offset(), end, "the log end never moves");
            assert!(
                after.iter().all(|record| before.contains(record)),
                "survivors are equal"
            );
            now_ms += 700;
        }
    }
}

#[test]
fn after_enough_rounds_only_last_records_stay_and_tombstones_go() {
    let fs = MemFs::new();
    let mut log = open(&fs, compacted()).unwrap().log;
    let mut random = fastrand::Rng::with_seed(7);
    fill(&mut log, &mut random, 200, 0);
    for key in 0..12 {
        put(&mut log, key, None, 0).unwrap();
    }
    fill_other_key(&mut log);
    clean(&mut log, 1 << 20, 0).unwrap();
    let tombstones = |log: &mut Log<MemFs>| all(log).iter().filter(|r| r.2.is_none()).count();
    assert_eq!(tombstones(&mut log), 12, "they stay a while");
    fill_other_key(&mut log);
    clean(&mut log, 1 << 20, 999).unwrap();
    assert_eq!(tombstones(&mut log), 12, "still");
    fill_other_key(&mut log);
    clean(&mut log, 1 << 20, 1000).unwrap();
    assert_eq!(tombstones(&mut log), 0);
    for _ in 0..10 {
        fill_other_key(&mut log);
        clean(&mut log, 1 << 20, 1000).unwrap();
    }
    let count = log.segment_count();
    assert!(count <= 6, "small neighbours become one: {count} segments");
}

/// Enough of one key, so that a segment rolls and something is dirty.
fn fill_other_key<F: Fs>(log: &mut Log<F>) {
    for _ in 0..20 {
        put(log, 99, Some(&[1; 50]), 0).unwrap();
    }
}

#[test]
fn a_record_without_a_key_is_refused() {
    let fs = MemFs::new();
    let mut log = open(&fs, compacted()).unwrap().log;
    let record = Record {
        timestamp: 0,
        key: None,
        value: Some(b"v"),
        headers: &[],
    };
    assert!(matches!(log.append(&record, 0), Err(Error::NoKey)));
    assert_eq!(log.log_end_offset(), 0);
}

#[test]
fn a_fault_and_a_crash_at_any_operation_of_a_cleaning_loses_nothing() {
    let seed = seed();
    for (kind, from_then_on) in [
        (FaultKind::Io, true),
        (FaultKind::NoSpace, false),
        (FaultKind::IoAfter, true),
    ] {
        for at in 0.. {
            let mut random = fastrand::Rng::with_seed(seed);
            let disk = MemFs::new();
            let fs = FaultFs::new(disk.clone());
            let mut opened = open(&fs, compacted()).unwrap();
            fill(&mut opened.log, &mut random, 80, 0);
            clean(&mut opened.log, 1 << 20, 0).unwrap();
            fill(&mut opened.log, &mut random, 60, 0);
            let before = all(&mut opened.log);
            let end = opened.log.log_end_offset();
            fs.arm(Fault {
                at,
                from_then_on,
                kind,
                reads: false,
            });
            let result = clean(&mut opened.log, 1 << 20, 2000);
            let is_struck = fs.struck() > 0;
            assert!(is_struck || result.is_ok(), "{kind:?} {at}: {result:?}");
            fs.disarm();
            drop(opened);
            let mut choose = |below: u64| random.u64(..below);
            let disk = if at % 2 == 0 {
                disk.crash(&mut choose)
            } else {
                disk.kill()
            };
            let mut opened = open(&disk, compacted()).unwrap();
            let after = all(&mut opened.log);
            assert_eq!(
                last_values(&before),
                last_values(&after),
                "{kind:?} at {at}"
            );
            assert_eq!(opened.log.log_end_offset(), end, "{kind:?} at {at}");
            assert!(!opened.log.is_damaged(), "{kind:?} at {at}");
            clean(&mut opened.log, 1 << 20, 4000).unwrap();
            assert_eq!(last_values(&before), last_values(&all(&mut opened.log)));
            if !is_struck {
                assert!(at > 10, "the sweep went through something");
                break;
            }
        }
    }
}

#[test]
fn an_idle_log_expires_whole_and_its_offsets_go_on() {
    let config = LogConfig {
        segment_ms: 1000,
        retention_ms: 5000,
        cleanup: CleanupPolicy::Delete,
        ..compacted()
    };
    let fs = MemFs::new();
    let mut opened = open(&fs, config).unwrap();
    let log = &mut opened.log;
    fill(log, &mut fastrand::Rng::with_seed(1), 50, 0);
    assert!(log.retire_due(999).unwrap().is_none());
    assert!(
        log.retire_due(1000).unwrap().is_none(),
        "sealed, not yet old"
    );
    assert!(
        log.retire_due(5000).unwrap().is_none(),
        "exactly as old as it may be"
    );
    let mut retired = 0;
    while let Some(segment) = log.retire_due(5001).unwrap() {
        assert_eq!(segment.reason, Reason::Time);
        assert_eq!(segment.files.len(), 3);
        retired += 1;
    }
    assert!(retired > 2);
    assert_eq!(
        (
            log.log_start_offset(),
            log.log_end_offset(),
            log.segment_count()
        ),
        (50, 50, 1)
    );
    put(log, 1, None, 6000).unwrap();
    assert_eq!(all(log), [(50, 1, None)]);
    drop(opened);
    let mut opened = open(&fs.kill(), config).unwrap();
    assert_eq!(all(&mut opened.log), [(50, 1, None)]);
}

#[test]
fn trimmed_records_are_gone_at_once_and_stay_gone() {
    let config = LogConfig {
        cleanup: CleanupPolicy::Delete,
        ..compacted()
    };
    let fs = MemFs::new();
    let mut opened = open(&fs, config).unwrap();
    fill(&mut opened.log, &mut fastrand::Rng::with_seed(1), 50, 0);
    assert!(matches!(opened.log.trim(51), Err(Error::OutOfRange { .. })));
    opened.log.trim(33).unwrap();
    opened.log.trim(10).unwrap();
    assert_eq!(opened.log.log_start_offset(), 33);
    let mut records = Records::new();
    let error = opened
        .log
        .read(32, 1, 1, CrcMode::Check, &mut records)
        .unwrap_err();
    assert!(matches!(error, Error::OutOfRange { earliest: 33, .. }));
    while let Some(segment) = opened.log.retire_due(0).unwrap() {
        assert_eq!(segment.reason, Reason::LogStart);
    }
    let kept = all(&mut opened.log);
    assert_eq!(kept[0].0, 33);
    drop(opened);
    let mut opened = open(&fs.kill(), config).unwrap();
    assert_eq!(all(&mut opened.log), kept);
}
