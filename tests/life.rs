//! Random histories of what becomes of old records: retention, TRIM, compaction a slice at a time, policies that change in the middle of a
//! round, faults, kills and power cuts at any point of it, against a model of every record that was acknowledged.
//!
//! Each history has a seed of its own, which a failure prints with the last steps; `SEED=<n> cargo test --test life` runs only that one.
//! `HISTORIES=<n>` runs so many fresh ones for each policy of syncing.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod world;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;

use fastrand::Rng;
use mini_broker::api::CrcMode;
use mini_broker::format::Layout;
use mini_broker::fs::Fs;
use mini_broker::fs::fault::{Fault, FaultFs, FaultKind};
use mini_broker::fs::mem::MemFs;
use mini_broker::record::Records;
use mini_broker::storage::cleaner::{CleanProgress, Cleaning};
use mini_broker::storage::retention::{Reason, SegmentFacts, due};
use mini_broker::storage::{CleanupPolicy, Error, FsyncPolicy, LogConfig};
use world::{Faulty, Rec, World, chooser, names, read_all};

/// Histories of the fixed seeds, for each policy.
const FIXED: u64 = 250;
/// Histories of the fresh seed, for each policy.
const FRESH: u64 = 100;

#[test]
fn old_records_go_as_promised_under_always() {
    run_many(FsyncPolicy::Always);
}

#[test]
fn old_records_go_as_promised_under_every_ms() {
    run_many(FsyncPolicy::EveryMs(5));
}

#[test]
fn old_records_go_as_promised_under_never() {
    run_many(FsyncPolicy::Never);
}

fn run_many(fsync: FsyncPolicy) {
    if let Ok(seed) = std::env::var("SEED") {
        return History::run(seed.parse().unwrap(), fsync);
    }
    (0..FIXED).for_each(|seed| History::run(seed, fsync));
    let fresh = fastrand::u64(..1 << 32) << 16;
    println!("fresh seeds from {fresh} on");
    let count = std::env::var("HISTORIES").map_or(FRESH, |count| count.parse().unwrap());
    (fresh..fresh + count).for_each(|seed| History::run(seed, fsync));
}

/// What was acknowledged, and where the log may begin.
#[derive(Debug, Default)]
struct Model {
    /// Every record that was ever acknowledged and not lost in a power cut, removed or not.
    records: BTreeMap<i64, Rec>,
    /// The log start was told to be here at the least, ...
    start_min: i64,
    /// ... and may be here at the most: something was tried that met a fault.
    start_max: i64,
    /// Compaction has had a chance at records without a key.
    was_compacted: bool,
}

impl Model {
    /// The last value of each key from an offset on, as a reader of everything would have it; a deleted key has none.
    fn last_values<'r>(
        records: impl Iterator<Item = (&'r i64, &'r Rec)>,
    ) -> BTreeMap<Vec<u8>, &'r Rec> {
        let mut last = BTreeMap::new();
        for (_, record) in records {
            let Some(key) = record.key.clone() else {
                continue;
            };
            match record.value {
                Some(_) => last.insert(key, record),
                None => last.remove(&key),
            };
        }
        last
    }

    /// Whether compaction may have removed the record at `offset`.
    fn may_be_compacted(&self, offset: i64, record: &Rec) -> bool {
        let has_later = || {
            let mut later = self.records.range(offset + 1..);
            later.any(|(_, other)| other.key == record.key)
        };
        self.was_compacted && (record.key.is_none() || record.value.is_none() || has_later())
    }
}

struct History {
    rng: Rng,
    fsync: FsyncPolicy,
    fs: Faulty,
    world: Option<World>,
    cleaning: Option<Cleaning<Faulty>>,
    /// Files that were taken out and are to be removed.
    doomed: Vec<PathBuf>,
    config: LogConfig,
    now_ms: i64,
    /// A fault was armed since the last start.
    was_faulty: bool,
    /// A power cut took what was not durable out of the middle: the history ends there, for what follows is in `tests/sim.rs`.
    is_damaged: bool,
    model: Model,
    trace: Trace,
}

/// The steps so far; printed when the history fails.
struct Trace {
    seed: u64,
    fsync: FsyncPolicy,
    steps: Vec<String>,
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let from = self.steps.len().saturating_sub(60);
            println!("SEED={} under {:?}, the last steps:", self.seed, self.fsync);
            self.steps[from..]
                .iter()
                .for_each(|step| println!("  {step}"));
        }
    }
}

impl History {
    fn run(seed: u64, fsync: FsyncPolicy) {
        let mut rng = Rng::with_seed(seed);
        let config = random_config(&mut rng);
        let mut history = Self {
            fsync,
            fs: FaultFs::new(MemFs::new()),
            world: None,
            cleaning: None,
            doomed: Vec::new(),
            config,
            now_ms: 1_767_225_600_000,
            was_faulty: false,
            is_damaged: false,
            model: Model::default(),
            trace: Trace {
                seed,
                fsync,
                steps: Vec::new(),
            },
            rng,
        };
        history.start();
        for _ in 0..history.rng.usize(20..150) {
            history.step();
            if history.is_damaged {
                return;
            }
        }
        history.check();
        history.stop();
    }

    fn note(&mut self, step: String) {
        self.trace.steps.push(step);
    }

    fn world(&mut self) -> &mut World {
        self.world.as_mut().unwrap()
    }

    fn step(&mut self) {
        match self.rng.u32(..100) {
            0..35 => self.append(),
            35..60 => self.clean(),
            60..68 => self.retire(),
            68..71 => self.trim(),
            71..76 => self.now_ms += self.rng.i64(0..1500),
            76..80 => self.change_config(),
            80..83 => self.remove_doomed(),
            83..86 => drop(self.world().log.background()),
            86..90 => self.check(),
            90..92 => self.fs.inner().write_back(&mut chooser(self.rng.u64(..))),
            92..95 => self.kill(),
            95..98 => self.crash(),
            _ => self.stop(),
        }
        let log = &self.world.as_ref().unwrap().log;
        if log.is_read_only() {
            // Only a start goes on from here.
            self.kill();
        }
    }

    /// Some records and the end of a turn.
    fn append(&mut self) {
        for _ in 0..self.rng.usize(1..25) {
            let len = self.rng.usize(..60);
            let value = (self.rng.u32(..5) > 0).then(|| vec![self.rng.u8(..); len]);
            let is_keyed = self.config.cleanup.compacts() || self.rng.u32(..4) > 0;
            let record = Rec {
                timestamp: self.now_ms - self.rng.i64(0..2000),
                key: is_keyed.then(|| vec![b'k', self.rng.u8(..14)]),
                value,
                headers: Vec::new(),
            };
            let now_ms = self.now_ms;
            let log = &mut self.world.as_mut().unwrap().log;
            let offset = log.append(&record.borrow(), now_ms).unwrap();
            self.model.records.insert(offset, record);
        }
        self.world().flush().unwrap();
        let end = self.world().log.log_end_offset();
        self.note(format!("append up to {end}"));
    }

    /// Goes on with a round, or begins one; often with a fault.
    fn clean(&mut self) {
        let is_faulty = self.arm();
        for _ in 0..self.rng.usize(1..30) {
            let (now_ms, log) = (self.now_ms, &mut self.world.as_mut().unwrap().log);
            let Some(cleaning) = &mut self.cleaning else {
                let map_bytes = self.rng.u64(72..500);
                let begun = log.start_cleaning(map_bytes, now_ms);
                assert!(is_faulty || begun.is_ok(), "{begun:?}");
                self.cleaning = begun.unwrap_or_default();
                if self.cleaning.is_none() {
                    break;
                }
                self.model.was_compacted = true;
                self.note("a round begins".to_owned());
                continue;
            };
            let progress = log.clean_slice(cleaning, self.rng.u64(1..400), now_ms);
            let is_read_only = log.is_read_only();
            self.note(format!("clean: {progress:?}"));
            match progress {
                Ok(CleanProgress::More) => continue,
                Ok(CleanProgress::Replaced(replaced)) => {
                    self.doomed.extend(replaced.files);
                    continue;
                }
                Ok(CleanProgress::Done(stats)) => {
                    assert!(stats.records_after <= stats.records_before);
                    assert!(stats.bytes_after <= stats.bytes_before);
                }
                Ok(CleanProgress::Aborted) => {}
                Err(error) => {
                    assert!(self.fs.struck() > 0 || is_read_only, "{error}");
                    assert!(matches!(error, Error::Io { .. }), "{error}");
                }
            }
            self.cleaning = None;
            break;
        }
        self.fs.disarm();
    }

    /// Passes of retention, each retirement checked against the rules.
    fn retire(&mut self) {
        let is_faulty = self.arm();
        for _ in 0..self.rng.usize(1..6) {
            let (now_ms, config) = (self.now_ms, self.config);
            let log = &mut self.world.as_mut().unwrap().log;
            let (bytes, before) = (log.bytes(), log.log_start_offset());
            let result = log.retire_due(now_ms);
            let after = log.log_start_offset();
            self.note(format!(
                "retire at {now_ms}: {before} to {after} {:?}",
                result.as_ref().map(|r| r.as_ref().map(|r| r.reason))
            ));
            match result {
                Ok(Some(retired)) => {
                    self.check_retired(retired.base, after, retired.bytes, bytes, retired.reason);
                    assert!(config.cleanup.deletes() || retired.reason == Reason::LogStart);
                    self.doomed.extend(retired.files);
                    self.model.start_min = self.model.start_min.max(after);
                    self.model.start_max = self.model.start_max.max(after);
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(is_faulty && self.fs.struck() > 0, "{error}");
                    // The start has moved, and stays where it is unless a restart forgets it.
                    self.model.start_max = self.model.start_max.max(after);
                    break;
                }
            }
        }
        self.fs.disarm();
    }

    /// A segment went: was its time over, by what the model knows?
    fn check_retired(&self, base: i64, after: i64, bytes: u64, total: u64, reason: Reason) {
        let records = self.model.records.range(base..after);
        let oldest = SegmentFacts {
            base,
            next_base: after,
            bytes,
            // No record in it was appended later than now, and none is younger than this.
            largest_timestamp: records.map(|(_, record)| record.timestamp).max(),
            last_append_ms: None,
        };
        match reason {
            Reason::LogStart => assert!(after <= self.model.start_max.max(self.model.start_min)),
            Reason::Size => {
                let kept = u64::try_from(self.config.retention_bytes).unwrap();
                assert!(total - bytes >= kept, "{bytes} of {total} went");
            }
            Reason::Time => {
                // Compaction may have removed the youngest: then the others decide.
                let is_due = |facts: &SegmentFacts| {
                    due(facts, total, 0, &self.config, self.now_ms) == Some(Reason::Time)
                };
                assert!(
                    is_due(&oldest) || self.model.was_compacted || bytes == 0,
                    "{oldest:?}"
                );
            }
            Reason::TotalSize => panic!("nobody asked for it"),
        }
    }

    fn trim(&mut self) {
        let is_faulty = self.arm();
        let log = &mut self.world.as_mut().unwrap().log;
        let (from, to) = (log.log_start_offset(), log.high_watermark());
        let offset = self.rng.i64(from..=to);
        let result = log.trim(offset);
        self.note(format!("trim {offset}: {result:?}"));
        self.model.start_max = self.model.start_max.max(offset);
        match result {
            Ok(()) => self.model.start_min = self.model.start_min.max(offset),
            Err(error) => assert!(is_faulty && self.fs.struck() > 0, "{error}"),
        }
        self.fs.disarm();
    }

    fn change_config(&mut self) {
        self.config = LogConfig {
            record_version: self.config.record_version,
            ..random_config(&mut self.rng)
        };
        let config = self.config;
        self.note(format!("{config:?}"));
        self.world().log.set_config(config);
        let now_ms = self.now_ms;
        let log = &mut self.world.as_mut().unwrap().log;
        if let Some(cleaning) = self
            .cleaning
            .as_mut()
            .filter(|_| !config.cleanup.compacts())
        {
            let progress = log.clean_slice(cleaning, 400, now_ms).unwrap();
            assert!(matches!(progress, CleanProgress::Aborted), "{progress:?}");
            let has_rest = names(&self.fs)
                .iter()
                .any(|name| name.ends_with(".cleaned"));
            assert!(
                !has_rest || self.was_faulty,
                "a round that is given up leaves nothing"
            );
            self.cleaning = None;
        }
    }

    fn remove_doomed(&mut self) {
        for path in self.doomed.drain(..) {
            // A segment and the one that replaced it have one name, so it may be gone.
            match self.fs.remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => panic!("{error}"),
                _ => {}
            }
        }
    }

    /// Sometimes arms a fault.
    fn arm(&mut self) -> bool {
        if self.rng.u32(..4) > 0 {
            return false;
        }
        let kinds = [
            FaultKind::Io,
            FaultKind::NoSpace,
            FaultKind::IoAfter,
            FaultKind::Short(self.rng.usize(..60)),
            FaultKind::Torn(self.rng.usize(..60)),
        ];
        let fault = Fault {
            at: self.rng.u64(..25),
            from_then_on: self.rng.u32(..3) == 0,
            kind: kinds[self.rng.usize(..kinds.len())],
            reads: false,
        };
        self.note(format!("{fault:?}"));
        self.fs.arm(fault);
        self.was_faulty = true;
        true
    }

    // Ends and starts.

    fn kill(&mut self) {
        self.note("kill".to_owned());
        let log = &self.world.as_ref().unwrap().log;
        let durable = log.durable_offset();
        let floor = if log.is_read_only() {
            durable
        } else {
            log.written_offset()
        };
        let fs = self.fs.inner().kill();
        self.restart(fs, floor, durable);
    }

    fn crash(&mut self) {
        if self.config.record_version == Layout::V1 {
            // What a power cut makes of entries without a checksum nobody can tell.
            return self.kill();
        }
        let floor = self.world().log.durable_offset();
        self.note(format!("crash, durable {floor}"));
        let fs = self.fs.inner().crash(&mut chooser(self.rng.u64(..)));
        self.restart(fs, floor, floor);
    }

    fn stop(&mut self) {
        let world = self.world.take().unwrap();
        let end = world.log.log_end_offset();
        self.note(format!("stop at {end}"));
        world.stop().unwrap();
        let fs = if self.rng.bool() {
            self.fs.inner().kill()
        } else {
            self.fs.inner().crash(&mut chooser(self.rng.u64(..)))
        };
        self.restart(fs, end, end);
    }

    /// Starts over another file system, in which everything below `floor` must be that was not removed, and be durable below `durable`.
    fn restart(&mut self, fs: MemFs, floor: i64, durable: i64) {
        self.world = None;
        self.cleaning = None;
        self.doomed.clear();
        self.fs = FaultFs::new(fs);
        let mut floor = floor;
        if self.config.record_version == Layout::V2 && self.arm() {
            // A start that meets a fault and dies of it costs what was not durable at most.
            let result = World::start(&self.fs, self.fsync, self.config, self.now_ms);
            self.note(format!("a start with a fault: {:?}", result.map(drop)));
            self.fs.disarm();
            if self.fs.struck() > 0 {
                floor = durable;
            }
            let fs = self.fs.inner().kill();
            self.fs = FaultFs::new(fs);
        }
        self.was_faulty = false;
        self.start();
        let log = &self.world.as_ref().unwrap().log;
        let end = log.log_end_offset();
        assert!(end >= floor, "the log ends at {end}, {floor} was promised");
        self.model.records.split_off(&end);
        // What was not durable may be gone, with or without a word: where records may be removed, a gap tells nothing.
        let (found, damage) = read_all(&mut self.world().log);
        let found: BTreeMap<i64, Rec> = found.into_iter().collect();
        let before = self.model.records.len();
        let model = &mut self.model.records;
        model.retain(|offset, _| *offset < floor || found.contains_key(offset));
        self.is_damaged = model.len() < before;
        for hole in damage {
            self.note(format!("{hole:?}"));
            assert!(self.is_damaged && hole.next > floor, "damage below {floor}");
        }
        self.check();
    }

    fn start(&mut self) {
        let world = World::start(&self.fs, self.fsync, self.config, self.now_ms).unwrap();
        self.trace.steps.push(format!(
            "start: clean={} {:?} start={} end={}",
            world.is_clean,
            world.report,
            world.log.log_start_offset(),
            world.log.log_end_offset()
        ));
        self.world = Some(world);
        let unfinished = |name: &String| {
            [".cleaned", ".deleted", ".replace"]
                .iter()
                .any(|suffix| name.ends_with(suffix))
        };
        let names = names(&self.fs);
        assert!(
            !names.iter().any(unfinished),
            "a start clears up: {names:?}"
        );
    }

    // What holds at all times.

    fn check(&mut self) {
        let log = &mut self.world.as_mut().unwrap().log;
        let (start, end) = (log.log_start_offset(), log.high_watermark());
        let (found, damage) = read_all(log);
        assert!(damage.is_empty() || self.is_damaged, "{damage:?}");
        let model = &self.model;
        assert!(
            (model.start_min..=model.start_max).contains(&start),
            "the log begins at {start}, not from {} to {}",
            model.start_min,
            model.start_max
        );
        let found: BTreeMap<i64, Rec> = found.into_iter().collect();
        for (offset, record) in &found {
            assert_eq!(model.records.get(offset), Some(record), "offset {offset}");
        }
        for (offset, record) in model.records.range(start..end) {
            let is_there = found.contains_key(offset);
            assert!(
                is_there || model.may_be_compacted(*offset, record),
                "offset {offset} is gone: {record:?}"
            );
        }
        assert_eq!(
            Model::last_values(found.iter()),
            Model::last_values(model.records.range(start..end)),
            "the last value of each key"
        );
        if !self.is_damaged {
            self.check_lookups(start, end, &found);
        }
    }

    /// A read and a search for a time give the next record that there is.
    fn check_lookups(&mut self, start: i64, end: i64, found: &BTreeMap<i64, Rec>) {
        let log = &mut self.world.as_mut().unwrap().log;
        for _ in 0..5 {
            let offset = self.rng.i64(start..=end);
            let mut out = Records::new();
            let outcome = log.read(offset, 1, 1, CrcMode::Check, &mut out).unwrap();
            let read = out.iter().map(|stored| stored.offset).next();
            let expected = found.range(offset..).map(|(offset, _)| *offset).next();
            assert_eq!(read, expected, "a read at {offset}");
            assert!(outcome.next_offset > read.unwrap_or(end - 1));
            let time = self.now_ms - self.rng.i64(0..4000);
            let expected = found
                .iter()
                .find(|(_, record)| record.timestamp >= time)
                .map(|(offset, record)| (*offset, record.timestamp));
            assert_eq!(log.offset_at_time(time).unwrap(), expected, "time {time}");
        }
    }
}

fn random_config(rng: &mut Rng) -> LogConfig {
    let policies = [
        CleanupPolicy::Compact,
        CleanupPolicy::Compact,
        CleanupPolicy::CompactDelete,
        CleanupPolicy::Delete,
    ];
    let mut pick = |from: &[i64]| from[rng.usize(..from.len())];
    let segment_ms = pick(&[300, 2000, 1_000_000]);
    let retention_ms = pick(&[-1, 0, 1000, 5000]);
    let retention_bytes = pick(&[-1, -1, 0, 1500]);
    let delete_retention_ms = pick(&[0, 500, 3000]);
    let min_compaction_lag_ms = pick(&[0, 0, 1000]);
    let max_compaction_lag_ms = pick(&[2000, i64::MAX]);
    LogConfig {
        segment_bytes: [100, 300, 600, 2000][rng.usize(..4)],
        segment_ms,
        segment_index_bytes: [60, 300, 2400][rng.usize(..3)],
        index_interval_bytes: [1, 100, 1000][rng.usize(..3)],
        record_version: if rng.u32(..5) == 0 {
            Layout::V1
        } else {
            Layout::V2
        },
        cleanup: policies[rng.usize(..policies.len())],
        retention_ms,
        retention_bytes,
        delete_retention_ms,
        min_cleanable_dirty_ratio: 0.0,
        min_compaction_lag_ms,
        max_compaction_lag_ms,
        ..LogConfig::default()
    }
}
