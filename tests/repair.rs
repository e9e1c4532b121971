//! Repairing a partition: reading passes over what was damaged, nothing else is lost, and no byte of a log is.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::path::Path;
use std::rc::Rc;

use mini_broker::api::CrcMode;
use mini_broker::fs::fault::{Fault, FaultFs, FaultKind};
use mini_broker::fs::mem::MemFs;
use mini_broker::fs::{File, Fs, OpenMode, read_file};
use mini_broker::record::{Record, Records};
use mini_broker::storage::data_dir::DataDir;
use mini_broker::storage::repair::{apply, finish_interrupted, plan};
use mini_broker::storage::{Error, FsyncPolicy, Log, LogConfig, LogContext, StartFrom};

const DIR: &str = "/data/t-0";

fn context<F: Fs>(fs: &F) -> Result<(DataDir<F>, Rc<LogContext<F>>), Error> {
    let mut data_dir = DataDir::lock(fs.clone(), Path::new("/data"))?;
    data_dir.begin()?;
    let checkpoints = Rc::clone(data_dir.checkpoints());
    let context = Rc::new(LogContext::new(
        fs.clone(),
        FsyncPolicy::Always,
        checkpoints,
    ));
    Ok((data_dir, context))
}

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 2000,
        index_interval_bytes: 200,
        segment_index_bytes: 4096,
        ..LogConfig::default()
    }
}

fn open<F: Fs>(context: &Rc<LogContext<F>>) -> Log<F> {
    let start = StartFrom { is_clean: false };
    Log::open(context, Path::new("/data"), "t", 0, config(), start, 0)
        .unwrap()
        .0
}

/// 100 records in several segments, their last synced, and the process killed.
fn build() -> MemFs {
    let fs = MemFs::new();
    let (data_dir, context) = context(&fs).unwrap();
    fs.create_dir(Path::new(DIR)).unwrap();
    let mut log = open(&context);
    for offset in 0..100_i64 {
        let value = [u8::try_from(offset).unwrap(); 60];
        let record = Record {
            timestamp: offset % 17,
            key: None,
            value: Some(&value),
            headers: &[],
        };
        log.append(&record, 1000).unwrap();
    }
    log.sync().unwrap();
    context.checkpoints.write_recovery_point().unwrap();
    drop((log, data_dir, context));
    fs.kill()
}

/// The offsets that a reader gets who reads all, where it meets no error.
fn offsets<F: Fs>(log: &mut Log<F>) -> Result<Vec<i64>, Error> {
    let mut all = Vec::new();
    let mut offset = log.log_start_offset();
    while offset < log.high_watermark() {
        let mut records = Records::new();
        offset = log
            .read(offset, 9, 1 << 20, CrcMode::Check, &mut records)?
            .next_offset;
        all.extend(records.iter().map(|record| record.offset));
    }
    Ok(all)
}

fn damage(fs: &MemFs, name: &str, position: u64, bytes: &[u8]) {
    let file = fs
        .open(&Path::new(DIR).join(name), OpenMode::Write)
        .unwrap();
    file.write_all_at(bytes, position).unwrap();
    file.sync_data().unwrap();
}

fn files(fs: &MemFs) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs
        .read_dir(Path::new(DIR))
        .unwrap()
        .into_iter()
        .map(|entry| {
            let bytes = read_file(fs, &Path::new(DIR).join(&entry.name), 1 << 20).unwrap();
            (entry.name.into_string().unwrap(), bytes)
        })
        .collect();
    files.sort();
    files
}

fn repair<F: Fs>(fs: &F) -> Result<(), Error> {
    let (_data_dir, context) = context(fs)?;
    let floor = context.checkpoints.recovery_point("t", 0).unwrap_or(0);
    finish_interrupted(fs, Path::new(DIR))?;
    let plan = plan(fs, Path::new(DIR), floor)?;
    apply(&context, Path::new(DIR), &plan)?;
    Ok(())
}

/// Damages of 96-byte entries, 20 to a segment: name, what is done, and the offsets lost.
type Case = (&'static str, fn(&MemFs), &'static [i64]);

const CASES: [Case; 6] = [
    ("nothing", |_| {}, &[]),
    (
        "a flipped bit in a sealed segment",
        |fs| damage(fs, "00000000000000000000.log", 5 * 96 + 50, b"x"),
        &[5],
    ),
    (
        "zeros over entries, first and last of the log",
        |fs| {
            damage(fs, "00000000000000000020.log", 10, &[0; 100]);
            damage(fs, "00000000000000000080.log", 19 * 96 + 40, b"x");
        },
        &[20, 21, 22, 99],
    ),
    (
        "an index of garbage",
        |fs| damage(fs, "00000000000000000040.index", 0, &[7; 24]),
        &[],
    ),
    (
        "a time index of garbage",
        |fs| damage(fs, "00000000000000000060.timeindex", 0, &[7; 24]),
        &[],
    ),
    (
        "the end of the log is gone",
        |fs| {
            let path = Path::new(DIR).join("00000000000000000080.log");
            let file = fs.open(&path, OpenMode::Write).unwrap();
            file.set_len(17 * 96 + 3).unwrap();
        },
        &[97, 98, 99],
    ),
];

#[test]
fn reading_passes_over_what_was_damaged() {
    for (name, harm, lost) in CASES {
        let fs = build();
        harm(&fs);
        repair(&fs).unwrap();
        let after = files(&fs);
        repair(&fs).unwrap();
        assert_eq!(
            files(&fs).len(),
            after.len(),
            "{name}: a second repair finds nothing"
        );
        let fs = fs.kill();
        let (_data_dir, context) = context(&fs).unwrap();
        let mut log = open(&context);
        let expected: Vec<i64> = (0..100).filter(|offset| !lost.contains(offset)).collect();
        assert_eq!(offsets(&mut log).unwrap(), expected, "{name}");
        assert_eq!(
            log.log_end_offset(),
            100,
            "{name}: offsets go on where they were"
        );
        assert!(!log.is_damaged(), "{name}");
    }
}

#[test]
fn every_byte_is_in_the_new_log_or_beside_it() {
    let fs = build();
    damage(&fs, "00000000000000000000.log", 5 * 96 + 50, b"x");
    damage(&fs, "00000000000000000000.log", 9 * 96, &[0; 200]);
    let whole = |fs: &MemFs, wanted: &str| -> Vec<u8> {
        let files = files(fs).into_iter();
        let of = files
            .filter(|(name, _)| name.starts_with("00000000000000000000") && name.contains(wanted));
        of.flat_map(|(_, bytes)| bytes).collect()
    };
    let before = whole(&fs, ".log");
    repair(&fs).unwrap();
    let mut after = whole(&fs, ".log");
    after.extend(whole(&fs, ".damaged"));
    let sorted = |mut bytes: Vec<u8>| {
        bytes.sort_unstable();
        bytes
    };
    assert_eq!(sorted(before), sorted(after));
    assert!(!whole(&fs, ".damaged").is_empty());
}

#[test]
fn a_plan_alone_changes_nothing() {
    let fs = build();
    damage(&fs, "00000000000000000000.log", 5 * 96 + 50, b"x");
    let before = files(&fs);
    let plan = plan(&fs, Path::new(DIR), 100).unwrap();
    assert_eq!(plan.segments.len(), 1);
    assert_eq!(
        (
            plan.segments[0].damaged[0].offset,
            plan.segments[0].damaged[0].next_offset
        ),
        (5, 6)
    );
    assert_eq!(files(&fs), before);
}

#[test]
fn a_repair_that_is_cut_short_at_any_operation_can_be_done_again() {
    for at in 0.. {
        let fs = build();
        damage(&fs, "00000000000000000020.log", 10, &[0; 100]);
        let faulty = FaultFs::new(fs.clone());
        faulty.arm(Fault {
            at,
            from_then_on: true,
            kind: FaultKind::Io,
            reads: false,
        });
        let result = repair(&faulty);
        let is_struck = faulty.struck() > 0;
        assert!(is_struck || result.is_ok());
        let mut random = fastrand::Rng::with_seed(at);
        let fs = fs.crash(&mut |below| random.u64(..below));
        repair(&fs).unwrap();
        let (_data_dir, context) = context(&fs).unwrap();
        let expected: Vec<i64> = (0..100)
            .filter(|offset| !(20..23).contains(offset))
            .collect();
        assert_eq!(
            offsets(&mut open(&context)).unwrap(),
            expected,
            "fault at {at}"
        );
        if !is_struck {
            assert!(at > 10);
            break;
        }
    }
}
