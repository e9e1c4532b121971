//! The log engine as its users see it: what goes in comes out, at every offset and every time, whatever rolled in between.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_wrap,
    reason = "a test may panic, and its numbers are small"
)]

use std::path::Path;
use std::rc::Rc;

use mini_broker::api::CrcMode;
use mini_broker::format::Layout;
use mini_broker::fs::mem::MemFs;
use mini_broker::fs::{Fs, OpenMode, ReadAt};
use mini_broker::record::{Record, Records};
use mini_broker::storage::data_dir::DataDir;
use mini_broker::storage::{
    Error, FsyncPolicy, Log, LogConfig, LogContext, StartFrom, TimestampType,
};

struct Bench {
    _data_dir: DataDir<MemFs>,
    log: Log<MemFs>,
}

fn open(fs: &MemFs, fsync: FsyncPolicy, config: LogConfig, is_clean: bool) -> Bench {
    let root = Path::new("/data");
    let mut data_dir = DataDir::lock(fs.clone(), root).unwrap();
    data_dir.begin().unwrap();
    let dir = root.join("t-0");
    if !fs.exists(&dir).unwrap() {
        fs.create_dir(&dir).unwrap();
    }
    let context = Rc::new(LogContext::new(
        fs.clone(),
        fsync,
        Rc::clone(data_dir.checkpoints()),
    ));
    let (log, _) = Log::open(&context, root, "t", 0, config, StartFrom { is_clean }, 0).unwrap();
    Bench {
        _data_dir: data_dir,
        log,
    }
}

fn small() -> LogConfig {
    LogConfig {
        segment_bytes: 1000,
        index_interval_bytes: 100,
        segment_index_bytes: 240,
        ..LogConfig::default()
    }
}

fn value(offset: i64) -> Vec<u8> {
    vec![b'a' + u8::try_from(offset % 26).unwrap(); usize::try_from(offset * 7 % 90).unwrap()]
}

/// Timestamps that go up and down.
fn timestamp(offset: i64) -> i64 {
    (offset * 37 % 101) - 50 + offset / 3
}

fn fill(log: &mut Log<MemFs>, count: i64) {
    for offset in log.log_end_offset()..log.log_end_offset() + count {
        let value = value(offset);
        let key = offset.to_string();
        let record = Record {
            timestamp: timestamp(offset),
            key: (offset % 3 != 0).then_some(key.as_bytes()),
            value: (offset % 11 != 0).then_some(&value[..]),
            headers: &[],
        };
        assert_eq!(log.append(&record, 1_000_000).unwrap(), offset);
    }
    log.sync().unwrap();
    log.publish();
}

fn check(log: &mut Log<MemFs>, count: i64) {
    assert_eq!(log.high_watermark(), count);
    for offset in 0..count {
        let mut records = Records::new();
        let outcome = log
            .read(offset, 5, 1 << 20, CrcMode::Check, &mut records)
            .unwrap();
        assert_eq!(
            outcome.next_offset,
            (offset + 5).min(count),
            "offset {offset}"
        );
        for (stored, expected) in records.iter().zip(offset..) {
            assert_eq!(stored.offset, expected);
            assert_eq!(stored.record.timestamp, timestamp(expected));
            let wanted = (expected % 11 != 0).then(|| value(expected));
            assert_eq!(stored.record.value, wanted.as_deref(), "offset {expected}");
        }
        let explanation = log.explain(offset).unwrap();
        assert_eq!(explanation.offset, offset);
        assert!(explanation.scanned_bytes < 100, "{explanation:?}");
        for max_bytes in [1, 100, 250, 1 << 20] {
            check_fetch(log, offset, max_bytes);
        }
    }
    let times: Vec<i64> = (0..count).map(timestamp).collect();
    for time in -60..count / 3 + 60 {
        let expected = times
            .iter()
            .position(|t| *t >= time)
            .map(|o| (o as i64, times[o]));
        assert_eq!(log.offset_at_time(time).unwrap(), expected, "time {time}");
    }
}

fn check_fetch(log: &mut Log<MemFs>, offset: i64, max_bytes: u64) {
    let fetched = log.fetch(offset, max_bytes).unwrap();
    let range = fetched.range.unwrap();
    assert_eq!(fetched.first_offset, offset);
    let mut bytes = vec![0; usize::try_from(range.len).unwrap()];
    assert_eq!(
        range.file.read_at(&mut bytes, range.position).unwrap(),
        bytes.len()
    );
    let mut rest = &bytes[..];
    let mut next = offset;
    while !rest.is_empty() {
        let layout = Layout::of(rest).unwrap();
        let (head, _) = layout.decode(rest).unwrap();
        assert_eq!(head.first_offset, next);
        next += 1;
        rest = &rest[head.length as usize..];
    }
    assert_eq!(fetched.next_offset, next);
    assert!(range.len <= max_bytes || next == offset + 1, "{range:?}");
}

#[test]
fn every_record_is_found_again_in_both_layouts_and_after_a_clean_stop() {
    for layout in [Layout::V1, Layout::V2] {
        let fs = MemFs::new();
        let config = LogConfig {
            record_version: layout,
            ..small()
        };
        let mut bench = open(&fs, FsyncPolicy::Always, config, false);
        fill(&mut bench.log, 100);
        check(&mut bench.log, 100);
        assert!(bench.log.segment_count() > 5);
        bench.log.close().unwrap();
        drop(bench);
        let mut bench = open(&fs, FsyncPolicy::Always, config, true);
        check(&mut bench.log, 100);
        fill(&mut bench.log, 50);
        check(&mut bench.log, 150);
    }
}

#[test]
fn every_record_is_found_again_after_a_kill() {
    for layout in [Layout::V1, Layout::V2] {
        let mut fs = MemFs::new();
        let config = LogConfig {
            record_version: layout,
            ..small()
        };
        for round in 1..=6 {
            let mut bench = open(&fs, FsyncPolicy::Never, config, false);
            fill(&mut bench.log, 20);
            check(&mut bench.log, 20 * round);
            fs = fs.kill();
        }
    }
}

#[test]
fn a_batch_over_many_segments_is_contiguous() {
    let fs = MemFs::new();
    let mut bench = open(&fs, FsyncPolicy::Always, small(), false);
    fill(&mut bench.log, 3);
    let values: Vec<Vec<u8>> = (3..80).map(value).collect();
    let records = values.iter().zip(3..).map(|(value, offset)| Record {
        timestamp: timestamp(offset),
        key: None,
        value: (offset % 11 != 0).then_some(&value[..]),
        headers: &[],
    });
    assert_eq!(bench.log.append_batch(records, 1_000_000).unwrap(), (3, 79));
    assert_eq!(bench.log.high_watermark(), 3, "not before the flush");
    bench.log.sync().unwrap();
    bench.log.publish();
    check(&mut bench.log, 80);
}

/// Every file of a directory, by name.
fn files(fs: &MemFs, dir: &str) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs
        .read_dir(Path::new(dir))
        .unwrap()
        .into_iter()
        .map(|entry| {
            let file = fs
                .open(&Path::new(dir).join(&entry.name), OpenMode::Read)
                .unwrap();
            let mut bytes = vec![0; usize::try_from(entry.len).unwrap()];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
            (entry.name.to_string_lossy().into_owned(), bytes)
        })
        .collect();
    files.sort();
    files
}

#[test]
fn many_at_once_are_stored_as_one_by_one() {
    let configs = [
        small(),
        LogConfig {
            index_interval_bytes: 1,
            ..small()
        },
        LogConfig {
            segment_bytes: 100_000,
            segment_ms: 40,
            record_version: Layout::V1,
            ..small()
        },
        LogConfig {
            timestamp_type: TimestampType::LogAppendTime,
            ..small()
        },
        LogConfig {
            max_message_bytes: 70,
            segment_bytes: 1_000_000,
            segment_index_bytes: 1_000_000,
            ..small()
        },
    ];
    for (case, config) in configs.into_iter().enumerate() {
        let values: Vec<Vec<u8>> = (0..4000).map(value).collect();
        // Runs of one time, of several lengths, and times that differ from neighbour to neighbour.
        let time = |at: i64| {
            if at % 500 < 100 {
                timestamp(at)
            } else {
                at / 37
            }
        };
        let records = values.iter().zip(0..).map(|(value, at)| Record {
            timestamp: time(at),
            key: (at % 3 == 0).then_some(&b"key"[..]),
            value: (at % 11 != 0).then_some(&value[..]),
            headers: &[],
        });
        let (one, many) = (MemFs::new(), MemFs::new());
        let mut single = open(&one, FsyncPolicy::Never, config, false).log;
        let refused = records
            .clone()
            .filter(|record| single.append(record, 1_000).is_err())
            .count();
        single.write().unwrap();
        let mut several = open(&many, FsyncPolicy::Never, config, false).log;
        let (mut rest, mut refused_of_many, mut taken) = (records.clone(), 0, 0);
        loop {
            // In groups, as turns of the loop would make them.
            let (count, error) = several.append_many(rest.by_ref().take(701), 1_000);
            refused_of_many += usize::from(error.is_some());
            taken += usize::try_from(count).unwrap() + usize::from(error.is_some());
            if count == 0 && error.is_none() {
                break;
            }
        }
        several.write().unwrap();
        assert_eq!(taken, 4000, "config {case}");
        assert_eq!(refused_of_many, refused, "config {case}");
        assert_eq!(several.log_end_offset(), single.log_end_offset());
        assert!(
            files(&one, "/data/t-0") == files(&many, "/data/t-0"),
            "config {case}"
        );
    }
}

#[test]
fn offsets_outside_are_refused_and_the_end_is_empty() {
    let fs = MemFs::new();
    let mut bench = open(&fs, FsyncPolicy::Always, small(), false);
    fill(&mut bench.log, 10);
    let mut records = Records::new();
    for offset in [-1, 11, i64::MAX, i64::MIN] {
        let error = bench
            .log
            .read(offset, 1, 1, CrcMode::Check, &mut records)
            .unwrap_err();
        assert!(
            matches!(
                error,
                Error::OutOfRange {
                    earliest: 0,
                    latest: 10,
                    ..
                }
            ),
            "{error}"
        );
    }
    assert_eq!(
        bench
            .log
            .read(10, 1, 1, CrcMode::Check, &mut records)
            .unwrap()
            .next_offset,
        10
    );
    assert!(records.is_empty());
    assert!(bench.log.fetch(10, 1).unwrap().range.is_none());
    assert!(matches!(
        bench.log.explain(10),
        Err(Error::OutOfRange { .. })
    ));
}
