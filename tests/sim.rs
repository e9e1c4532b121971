//! Random histories of one partition against a model: appends, batches, every kind of read, rolls, faults, full disks, kills, power
//! cuts, clock jumps, damaged indexes.
//!
//! Each history has a seed of its own, which a failure prints with the last steps; `SEED=<n> cargo test --test sim` runs only that one.
//! `HISTORIES=<n>` runs so many fresh ones for each policy.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod world;

use std::collections::BTreeMap;

use fastrand::Rng;
use mini_broker::api::{CrcMode, RecordState};
use mini_broker::format::Layout;
use mini_broker::fs::fault::{Fault, FaultFs, FaultKind};
use mini_broker::fs::mem::MemFs;
use mini_broker::fs::{File, Fs, OpenMode};
use mini_broker::record::Records;
use mini_broker::storage::{Error, FsyncPolicy, LogConfig, TimestampType};
use world::{DIR, Faulty, Rec, World, check_files, chooser, file, names, read_all};

/// Histories of the fixed seeds, for each policy.
const FIXED: u64 = 400;
/// Histories of the fresh seed, for each policy.
const FRESH: u64 = 150;

#[test]
fn histories_under_always_keep_the_promises() {
    run_many(FsyncPolicy::Always);
}

#[test]
fn histories_under_every_ms_keep_the_promises() {
    run_many(FsyncPolicy::EveryMs(5));
}

#[test]
fn histories_under_never_keep_the_promises() {
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

/// What must be in the log, and what may be.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a reason of its own to expect less"
)]
struct Model {
    /// What was acknowledged, or seen by a reader after a start.
    records: BTreeMap<i64, Rec>,
    /// Appended in this turn.
    pending: BTreeMap<i64, Rec>,
    /// Everything that was ever given an offset, whatever became of it: what may come back where nothing durable was.
    attempts: BTreeMap<i64, Vec<Rec>>,
    /// Offsets that a start found lost: from, to.
    holes: Vec<(i64, i64)>,
    /// Everything below is durable.
    durable: i64,
    /// An fsync failed, or a cut: what is not durable may be lost or come back.
    is_uncertain: bool,
    log_start: i64,
    /// Entries without a checksum were written: what a power cut makes of them above the durable end, nobody can tell.
    has_v1: bool,
    /// A power cut or a failed fsync may have left a sealed segment that ends early, or stale bytes in one.
    is_rough: bool,
    /// Rows are missing that no check in passing can miss, so lookups may scan more.
    has_damaged_index: bool,
    entry_bytes_max: u64,
    interval_max: u64,
}

impl Model {
    fn attempt(&mut self, offset: i64, record: &Rec) {
        self.attempts
            .entry(offset)
            .or_default()
            .push(record.clone());
    }

    /// The first record at or above `offset` and below `end`.
    fn next(&self, offset: i64, end: i64) -> Option<(i64, &Rec)> {
        if offset >= end {
            return None;
        }
        self.records
            .range(offset..end)
            .next()
            .map(|(offset, record)| (*offset, record))
    }

    /// The damage that a read from `offset` meets before any record.
    fn hole_at(&self, offset: i64) -> Option<(i64, i64)> {
        let hole = self.holes.iter().copied().find(|(_, to)| offset < *to)?;
        self.next(offset, hole.0).is_none().then_some(hole)
    }
}

/// Records by offset; times, and what was found for each.
type Answers = (Vec<(i64, Rec)>, Vec<(i64, Option<(i64, i64)>)>);

struct History {
    rng: Rng,
    fsync: FsyncPolicy,
    fs: Faulty,
    world: Option<World>,
    config: LogConfig,
    now_ms: i64,
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
            let from = self.steps.len().saturating_sub(40);
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
            config,
            now_ms: 1_767_225_600_000,
            model: Model::default(),
            trace: Trace {
                seed,
                fsync,
                steps: Vec::new(),
            },
            rng,
        };
        history.start();
        let steps = history.rng.usize(5..80);
        for _ in 0..steps {
            history.step();
        }
        history.end_turn();
        history.check_all();
    }

    fn note(&mut self, step: String) {
        self.trace.steps.push(step);
    }

    fn world(&mut self) -> &mut World {
        self.world.as_mut().unwrap()
    }

    fn step(&mut self) {
        match self.rng.u32(..100) {
            0..22 => self.append(),
            22..32 => self.batch(),
            32..50 => self.end_turn(),
            50..62 => self.read(),
            62..70 => self.fetch(),
            70..75 => self.look_up_time(),
            75..81 => self.explain(),
            81..84 => self.now_ms += self.rng.i64(-5000..20_000),
            84..86 => self.change_config(),
            86..88 => self.background(),
            88..90 => self.arm_fault(),
            90..92 => self.change_capacity(),
            92..93 => self.fs.inner().write_back(&mut chooser(self.rng.u64(..))),
            93..96 => self.kill(),
            96..98 => self.crash(),
            _ => self.stop(),
        }
        self.check_marks();
    }

    // What changes the log.

    fn append(&mut self) {
        let record = self.random_record();
        let now_ms = self.now_ms;
        let before = self.world().log.log_end_offset();
        let result = self.world().log.append(&record.borrow(), now_ms);
        let record = self.as_stored(record);
        self.note(format!(
            "append at {before}: {} bytes -> {result:?}",
            record.borrow().payload_bytes()
        ));
        self.model.attempt(before, &record);
        match result {
            Ok(offset) => {
                assert_eq!(offset, before);
                self.model.pending.insert(offset, record);
            }
            Err(error) => self.after_error(&error),
        }
    }

    fn batch(&mut self) {
        let count = self.rng.usize(1..12);
        let records: Vec<Rec> = (0..count).map(|_| self.random_record()).collect();
        let now_ms = self.now_ms;
        let before = self.world().log.log_end_offset();
        let result = self
            .world()
            .log
            .append_batch(records.iter().map(Rec::borrow), now_ms);
        self.note(format!("batch of {count} at {before} -> {result:?}"));
        let records: Vec<Rec> = records
            .into_iter()
            .map(|record| self.as_stored(record))
            .collect();
        for (offset, record) in (before..).zip(&records) {
            self.model.attempt(offset, record);
        }
        match result {
            Ok((first, last)) => {
                assert_eq!(
                    (first, last - first + 1),
                    (before, i64::try_from(count).unwrap())
                );
                self.model.pending.extend((first..).zip(records));
            }
            Err(error) => {
                assert!(
                    self.world().log.log_end_offset() <= before,
                    "a part of it stayed"
                );
                self.after_error(&error);
            }
        }
    }

    fn after_error(&mut self, error: &Error) {
        let faults_possible = self.fs.struck() > 0 || self.is_bounded();
        let log = &self.world.as_ref().unwrap().log;
        match error {
            Error::Io { .. } => assert!(faults_possible, "{error}"),
            Error::ReadOnly => assert!(log.is_read_only()),
            Error::TooLarge { .. } | Error::Unstorable(_) | Error::FutureTimestamp { .. } => {}
            Error::OutOfRange { .. } | Error::Corrupt(_) | Error::NoKey | Error::Exhausted => {
                panic!("an append answers {error}")
            }
        }
        let end = log.log_end_offset();
        self.model.is_uncertain |= log.is_read_only();
        self.model.pending.retain(|offset, _| *offset < end);
    }

    fn end_turn(&mut self) {
        let Some(world) = self.world.as_mut() else {
            return;
        };
        let result = world.flush();
        let log = &world.log;
        let good = match self.fsync {
            FsyncPolicy::Always => log.durable_offset(),
            FsyncPolicy::EveryMs(_) | FsyncPolicy::Never => log.written_offset(),
        };
        assert_eq!(log.high_watermark(), good, "readers see what is good");
        let pending = std::mem::take(&mut self.model.pending);
        self.model
            .records
            .extend(pending.into_iter().filter(|(offset, _)| *offset < good));
        self.model.is_uncertain |= log.is_read_only();
        self.note(format!("end of turn: good below {good}, {result:?}"));
        if let Err(error) = result {
            assert!(
                self.fs.struck() > 0 || self.is_bounded() || self.model.is_uncertain,
                "{error}"
            );
        }
        if self.rng.u32(..4) == 0 {
            let _ = self.world().dir.checkpoints().write_recovery_point();
        }
    }

    fn background(&mut self) {
        let is_sync = self.rng.bool();
        let log = &mut self.world().log;
        let result = if is_sync {
            log.sync()
        } else {
            log.background();
            Ok(())
        };
        self.model.is_uncertain |= self.world().log.is_read_only();
        let end = self.world().log.log_end_offset();
        self.model.pending.retain(|offset, _| *offset < end);
        self.note(format!("sync={is_sync}: {result:?}"));
    }

    fn change_config(&mut self) {
        self.config = random_config(&mut self.rng);
        let config = self.config;
        self.note(format!("{config:?}"));
        self.world().log.set_config(config);
        self.note_config();
    }

    fn note_config(&mut self) {
        self.model.has_v1 |= self.config.record_version == Layout::V1;
        let interval = u64::from(self.config.index_interval_bytes);
        self.model.interval_max = self.model.interval_max.max(interval);
    }

    fn arm_fault(&mut self) {
        let kinds = [
            FaultKind::Io,
            FaultKind::NoSpace,
            FaultKind::IoAfter,
            FaultKind::Short(self.rng.usize(..60)),
            FaultKind::Torn(self.rng.usize(..60)),
        ];
        let fault = Fault {
            at: self.rng.u64(..12),
            from_then_on: self.rng.u32(..3) == 0,
            kind: kinds[self.rng.usize(..kinds.len())],
            reads: false,
        };
        self.note(format!("{fault:?}"));
        self.fs.arm(fault);
    }

    fn is_bounded(&self) -> bool {
        self.fs.free_bytes(std::path::Path::new("/")).unwrap() < 1 << 39
    }

    fn change_capacity(&mut self) {
        let fs = self.fs.inner();
        let capacity = self
            .rng
            .bool()
            .then(|| fs.used_bytes() + self.rng.u64(..20_000));
        fs.set_capacity(capacity);
        self.note(format!("capacity {capacity:?}"));
    }

    // Ends and starts.

    /// Notes what is certain before the process ends.
    fn before_end(&mut self) -> i64 {
        let log = &self.world.as_ref().unwrap().log;
        self.model.is_uncertain |= log.is_read_only();
        self.model.durable = self.model.durable.max(log.durable_offset());
        log.written_offset()
    }

    fn kill(&mut self) {
        let written = self.before_end();
        self.note(format!("kill, written {written}"));
        let fs = self.fs.inner().kill();
        // Pending records that were written are in the files, too.
        let pending = std::mem::take(&mut self.model.pending);
        self.model
            .records
            .extend(pending.into_iter().filter(|(offset, _)| *offset < written));
        let is_rough = self.model.is_uncertain;
        let floor = if is_rough {
            self.model.durable
        } else {
            written
        };
        self.restart(fs, floor, is_rough);
    }

    fn crash(&mut self) {
        self.before_end();
        let seed = self.rng.u64(..);
        self.note(format!("crash, durable {}", self.model.durable));
        let fs = self.fs.inner().crash(&mut chooser(seed));
        let floor = self.model.durable;
        self.restart(fs, floor, true);
    }

    fn stop(&mut self) {
        self.end_turn();
        let written = self.before_end();
        self.fs.disarm();
        self.fs.inner().set_capacity(None);
        let world = self.world.take().unwrap();
        let was_read_only = world.log.is_read_only();
        let result = world.stop();
        self.note(format!("stop: {result:?}"));
        assert_eq!(result.is_err(), was_read_only, "{result:?}");
        let fs = if self.rng.bool() {
            self.fs.inner().kill()
        } else {
            self.fs.inner().crash(&mut chooser(self.rng.u64(..)))
        };
        let floor = if was_read_only {
            self.model.durable
        } else {
            written
        };
        self.restart(fs, floor, was_read_only);
    }

    /// Starts over another file system, in which everything below `floor` must be.
    fn restart(&mut self, fs: MemFs, floor: i64, is_rough: bool) {
        self.world = None;
        fs.set_capacity(None);
        self.fs = FaultFs::new(fs);
        self.model.pending.clear();
        self.damage_indexes();
        let loses = self.rng.u32(..6) == 0 && self.start_with_faults();
        let floor = if loses { self.model.durable } else { floor };
        let is_rough = is_rough || loses;
        if self.rng.u32(..3) == 0 {
            self.config = random_config(&mut self.rng);
        }
        self.start();
        self.compare_after_start(floor, is_rough);
        if self.rng.u32(..4) == 0 {
            // What a start kept it has made durable: a second power cut takes nothing.
            self.world = None;
            let fs = self.fs.inner().crash(&mut chooser(self.rng.u64(..)));
            self.fs = FaultFs::new(fs);
            self.note("second crash".to_owned());
            let end = self.model.durable;
            self.start();
            self.compare_after_start(end, true);
        }
    }

    /// An index is a cache: whatever happens to it, no answer changes.
    fn damage_indexes(&mut self) {
        // Behind damage only the rows lead on, so there they are more than a cache.
        if self.rng.u32(..4) != 0 || !self.model.holes.is_empty() {
            return;
        }
        for name in names(&self.fs) {
            if !name.ends_with("index") || self.rng.bool() {
                continue;
            }
            let path = file(&name);
            match self.rng.u32(..4) {
                0 => self.fs.remove_file(&path).unwrap(),
                1 => {
                    // Whole rows that are missing at the end of a time index, no check in passing can miss.
                    let len = self.rng.u64(..5) * 12 + self.rng.u64(1..12);
                    let index = self.fs.open(&path, OpenMode::Write).unwrap();
                    index.set_len(len).unwrap();
                }
                _ => {
                    let noise: Vec<u8> = (0..self.rng.usize(1..30))
                        .map(|_| self.rng.u8(..))
                        .collect();
                    let at = self.rng.u64(..100);
                    self.fs
                        .open(&path, OpenMode::Write)
                        .unwrap()
                        .write_all_at(&noise, at)
                        .unwrap();
                }
            }
            self.note(format!("damaged {name}"));
            self.model.has_damaged_index = true;
        }
    }

    /// A start that meets a fault; then a kill, or a power cut. Returns whether what was not durable may be lost.
    fn start_with_faults(&mut self) -> bool {
        self.arm_fault();
        let now_ms = self.now_ms;
        let result = World::start(&self.fs, self.fsync, self.config, now_ms);
        self.note(format!(
            "start with a fault: {:?}",
            result.as_ref().map(|_| ())
        ));
        drop(result);
        self.fs.disarm();
        // A failed fsync loses what a kill alone would keep.
        let is_struck = self.fs.struck() > 0;
        let is_cut_off = self.rng.bool();
        let fs = if is_cut_off {
            self.fs.inner().crash(&mut chooser(self.rng.u64(..)))
        } else {
            self.fs.inner().kill()
        };
        self.fs = FaultFs::new(fs);
        is_cut_off || is_struck
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
        self.note_config();
    }

    /// After a start: everything below `floor` is there; anything else that is there was written at its offset at some time.
    fn compare_after_start(&mut self, floor: i64, is_rough: bool) {
        let may_be_rough = self.fsync != FsyncPolicy::Always || self.model.has_v1;
        self.model.is_rough |= is_rough && may_be_rough;
        // An entry without a checksum counts as good by what follows it, so garbage behind the last durable one takes that with it.
        let floor = floor - i64::from(is_rough && self.model.has_v1);
        let log = &mut self.world.as_mut().unwrap().log;
        let end = log.log_end_offset();
        assert!(!log.is_read_only());
        assert_eq!(
            (log.high_watermark(), log.durable_offset()),
            (end, end),
            "all kept is durable"
        );
        assert!(
            end >= floor,
            "the next offset went back: {end} below {floor}"
        );
        assert!(
            log.log_start_offset() >= self.model.log_start,
            "the log start went back"
        );
        self.model.log_start = log.log_start_offset();
        let (found, damage) = read_all(log);
        let found: BTreeMap<i64, Rec> = found.into_iter().collect();
        for (offset, record) in self.model.records.range(..floor) {
            assert_eq!(
                found.get(offset),
                Some(record),
                "offset {offset} below {floor}"
            );
        }
        for (offset, record) in found.range(floor..) {
            let may_be = self
                .model
                .attempts
                .get(offset)
                .is_some_and(|all| all.contains(record));
            assert!(
                may_be || (is_rough && self.model.has_v1),
                "offset {offset}: {record:?}"
            );
        }
        for hole in &damage {
            let is_known = self
                .model
                .holes
                .iter()
                .any(|(from, to)| *from <= hole.offset && hole.next <= *to);
            assert!(is_known || hole.next > floor, "{hole:?} below {floor}");
        }
        self.model.holes = damage.iter().map(|hole| (hole.offset, hole.next)).collect();
        self.model.records = found;
        self.model.durable = end;
        self.model.is_uncertain = false;
    }

    // What reads the log.

    fn range(&mut self) -> (i64, i64) {
        let log = &self.world().log;
        (log.log_start_offset(), log.high_watermark())
    }

    fn random_offset(&mut self) -> i64 {
        let (earliest, latest) = self.range();
        self.rng.i64(earliest..=latest)
    }

    fn read(&mut self) {
        let (earliest, latest) = self.range();
        if self.rng.u32(..10) == 0 {
            for offset in [earliest - 1, latest + 1, i64::MIN, i64::MAX] {
                let result =
                    self.world()
                        .log
                        .read(offset, 1, 1, CrcMode::Check, &mut Records::new());
                assert!(
                    matches!(result, Err(Error::OutOfRange { .. })),
                    "{offset}: {result:?}"
                );
            }
        }
        let offset = self.random_offset();
        let max = self.rng.u64(1..20);
        let mut out = Records::new();
        let result = self
            .world()
            .log
            .read(offset, max, 1 << 30, CrcMode::Check, &mut out);
        let found: Vec<_> = out
            .iter()
            .map(|r| (r.offset, Rec::from(&r.record)))
            .collect();
        self.note(format!("read {max} from {offset}: {result:?}"));
        self.check_read(
            offset,
            latest,
            max,
            &result.map(|outcome| outcome.next_offset),
            &found,
        );
    }

    fn check_read(
        &self,
        offset: i64,
        latest: i64,
        max: u64,
        result: &Result<i64, Error>,
        found: &[(i64, Rec)],
    ) {
        let next = match (self.model.hole_at(offset), result) {
            (None, Ok(next)) => *next,
            // Of a damaged entry whose frame holds, only its own offset is sure to be lost.
            (Some((from, _)), Ok(next)) if offset > from => *next,
            (Some((from, to)), Err(Error::Corrupt(damage))) => {
                assert!(damage.offset >= offset);
                assert!(damage.next == to || offset > from, "{damage:?} up to {to}");
                return;
            }
            (hole, result) => panic!("read at {offset}, hole {hole:?}: {result:?}"),
        };
        let end = self
            .model
            .holes
            .iter()
            .map(|(from, _)| *from)
            .filter(|from| *from > offset)
            .min();
        let end = end.unwrap_or(latest).min(latest);
        let expected: Vec<_> = self
            .model
            .records
            .range(offset..end)
            .take(usize::try_from(max).unwrap())
            .map(|(offset, record)| (*offset, record.clone()))
            .collect();
        // A stretch of damage that costs no offset still ends a read.
        let is_short =
            !self.model.holes.is_empty() && !found.is_empty() && found.len() < expected.len();
        let expected = expected
            .get(..found.len())
            .filter(|_| is_short)
            .unwrap_or(&expected);
        assert_eq!(found, expected, "read {max} from {offset}");
        let expected = if (found.len() as u64) < max && !is_short {
            end
        } else {
            found[found.len() - 1].0 + 1
        };
        let last = found.last().map_or(offset, |(offset, _)| offset + 1);
        assert!(
            (last..=expected).contains(&next),
            "read from {offset}: next {next}, not {expected}"
        );
        assert!(
            next > offset || offset == latest,
            "a read at {offset} does not move on"
        );
    }

    fn fetch(&mut self) {
        let (_, latest) = self.range();
        let offset = self.random_offset();
        let max = self.rng.u64(1..3000);
        let result = self.world().log.fetch(offset, max);
        self.note(format!(
            "fetch {max} from {offset}: {:?}",
            result.as_ref().map(|f| f.next_offset)
        ));
        let fetched = match (self.model.hole_at(offset), result) {
            (None, Ok(fetched)) => fetched,
            (Some((from, _)), Ok(fetched)) if offset > from => fetched,
            (Some((from, to)), Err(Error::Corrupt(damage))) => {
                assert!(damage.offset >= offset);
                assert!(damage.next == to || offset > from, "{damage:?} up to {to}");
                return;
            }
            (hole, result) => panic!("fetch at {offset}, hole {hole:?}: {result:?}"),
        };
        let next = self.model.next(offset, latest);
        let Some(range) = fetched.range else {
            assert_eq!((next, fetched.next_offset), (None, latest));
            return;
        };
        let mut bytes = vec![0; usize::try_from(range.len).unwrap()];
        assert_eq!(
            range.file.read_at(&mut bytes, range.position).unwrap(),
            bytes.len()
        );
        let layout = Layout::of(&bytes).unwrap();
        let first = next.map(|(offset, _)| offset).unwrap();
        assert_eq!(fetched.first_offset, first);
        let mut rest = &bytes[..];
        let mut count = 0;
        let mut at_least = first;
        while !rest.is_empty() {
            // Only the first is checked on the way: what follows may be damaged.
            let decoded = layout.decode(rest).ok();
            let is_damaged = decoded.is_none_or(|(_, stored)| {
                let holes = self.model.holes.iter();
                holes
                    .clone()
                    .any(|(from, to)| (*from..*to).contains(&stored.offset))
            });
            let Some((head, stored)) = decoded.filter(|_| !is_damaged) else {
                assert!(count > 0 && !self.model.holes.is_empty());
                return;
            };
            assert!(head.last_offset < latest, "beyond the high watermark");
            let (expected, record) = self.model.next(at_least, latest).unwrap();
            assert_eq!(
                (stored.offset, &Rec::from(&stored.record)),
                (expected, record)
            );
            at_least = expected + 1;
            rest = &rest[head.length as usize..];
            count += 1;
        }
        assert!(
            count == 1 || range.len <= max,
            "{count} records in {} of {max} bytes",
            range.len
        );
        if self.model.holes.is_empty() {
            let following = self
                .model
                .next(at_least, latest)
                .map_or(latest, |(offset, _)| offset);
            let next = fetched.next_offset;
            assert!(
                (at_least..=following).contains(&next),
                "next {next}, not {following}"
            );
        }
    }

    fn look_up_time(&mut self) {
        let (earliest, latest) = self.range();
        let timestamp = if self.rng.bool() {
            self.random_timestamp()
        } else {
            let offset = self.random_offset();
            let found = self
                .model
                .next(offset, latest)
                .map(|(_, record)| record.timestamp);
            found.unwrap_or(0).saturating_add(self.rng.i64(-1..=1))
        };
        let found = self.world().log.offset_at_time(timestamp).unwrap();
        self.note(format!("time {timestamp}: {found:?}"));
        let expected = self
            .model
            .records
            .range(earliest..latest)
            .find(|(_, record)| record.timestamp >= timestamp)
            .map(|(offset, record)| (*offset, record.timestamp));
        assert_eq!(found, expected, "the first record at or after {timestamp}");
    }

    fn explain(&mut self) {
        let (_, latest) = self.range();
        let offset = self.random_offset();
        let result = self.world().log.explain(offset);
        let next = self
            .model
            .next(offset, latest)
            .map(|(offset, record)| (offset, record.timestamp));
        let hole = self.model.hole_at(offset);
        self.note(format!(
            "explain {offset}: {:?}",
            result.as_ref().map(|e| (e.segment, e.position))
        ));
        // A record of layout 1 has no checksum that could be right.
        let is_whole = |state| matches!(state, RecordState::Good | RecordState::NoCrc);
        let explanation = match (result, hole, next) {
            (Ok(explanation), None, Some(_)) => explanation,
            (Ok(_), Some((from, _)), _) if offset > from => return,
            (Err(Error::OutOfRange { .. }), Some((from, _)), None) if offset > from => return,
            (Ok(explanation), Some(_), _) => {
                assert!(!is_whole(explanation.state), "{explanation:?}");
                return;
            }
            (Err(Error::OutOfRange { .. }), None, None) => return,
            (result, _, _) => panic!("explain {offset}, hole {hole:?}, next {next:?}: {result:?}"),
        };
        assert!(is_whole(explanation.state), "{explanation:?}");
        assert_eq!(Some((explanation.offset, explanation.timestamp)), next);
        let scanned_max = self.model.interval_max + self.model.entry_bytes_max;
        let has_rows = !self.model.has_damaged_index && !self.world().log.is_read_only();
        if self.model.holes.is_empty() && has_rows {
            let scanned = explanation.scanned_bytes;
            assert!(
                scanned < scanned_max,
                "a lookup scans {scanned} of at most {scanned_max} bytes"
            );
        }
    }

    // What holds at all times.

    fn check_marks(&mut self) {
        let Some(world) = self.world.as_ref() else {
            return;
        };
        let log = &world.log;
        let (start, end) = (log.log_start_offset(), log.log_end_offset());
        let (written, durable, seen) = (
            log.written_offset(),
            log.durable_offset(),
            log.high_watermark(),
        );
        assert!(start <= seen && seen <= written && written <= end && durable <= written);
        if self.fsync == FsyncPolicy::Always {
            assert!(seen <= durable);
        }
        assert!(durable >= self.model.durable, "the durable end went back");
        self.model.durable = durable;
        assert!(start >= self.model.log_start);
    }

    fn check_all(&mut self) {
        self.fs.disarm();
        self.fs.inner().set_capacity(None);
        let (earliest, latest) = self.range();
        for offset in earliest..=latest {
            let mut out = Records::new();
            let result = self
                .world()
                .log
                .read(offset, 1, 1, CrcMode::Check, &mut out);
            let found: Vec<_> = out
                .iter()
                .map(|r| (r.offset, Rec::from(&r.record)))
                .collect();
            self.check_read(offset, latest, 1, &result.map(|o| o.next_offset), &found);
        }
        self.check_names();
        let record = Rec::new(self.now_ms, b"last");
        let now_ms = self.now_ms;
        if !self.world().log.is_read_only() {
            // Whatever went wrong before: with the cause gone, appends come back by themselves.
            self.world().log.append(&record.borrow(), now_ms).unwrap();
            self.world().flush().unwrap();
            self.check_rebuild();
        }
    }

    /// The files are sound byte by byte, and without any index every answer is the same.
    fn check_rebuild(&mut self) {
        if !self.model.holes.is_empty() {
            return;
        }
        let before = self.answers();
        self.world.take().unwrap().stop().unwrap();
        // What could not be rebuilt before, for want of room, is rebuilt now.
        self.start();
        self.compare_answers(&before);
        self.world.take().unwrap().stop().unwrap();
        // An index that was damaged and not yet asked for is still so.
        if !self.model.is_rough && !self.model.has_damaged_index {
            check_files(&self.fs);
        }
        for name in names(&self.fs) {
            if name.ends_with("index") {
                self.fs.remove_file(&file(&name)).unwrap();
            }
        }
        self.start();
        self.compare_answers(&before);
    }

    fn compare_answers(&mut self, before: &Answers) {
        let (records, found) = self.answers();
        assert_eq!(records, before.0);
        for (found, before) in found.iter().zip(&before.1) {
            assert_eq!(found, before, "a time is answered otherwise");
        }
    }

    /// Every record, and what every timestamp near one leads to.
    fn answers(&mut self) -> Answers {
        let log = &mut self.world.as_mut().unwrap().log;
        let (records, damage) = read_all(log);
        assert!(damage.is_empty());
        let mut times: Vec<i64> = records.iter().map(|(_, record)| record.timestamp).collect();
        times.extend([i64::MIN, i64::MAX]);
        times.extend(times.clone().iter().map(|time| time.saturating_add(1)));
        let found = times
            .iter()
            .map(|time| (*time, log.offset_at_time(*time).unwrap()))
            .collect();
        (records, found)
    }

    /// Bases rise and equal the file names; no segment is empty but the last.
    fn check_names(&mut self) {
        let segments = self.world().log.segments().unwrap();
        let mut logs: Vec<String> = names(&self.fs)
            .into_iter()
            .filter(|name| name.strip_suffix(".log").is_some())
            .collect();
        logs.sort();
        let expected: Vec<String> = segments
            .iter()
            .map(|segment| format!("{:020}.log", segment.base_offset))
            .collect();
        if !self.world().log.is_read_only() {
            assert_eq!(logs, expected, "in {DIR}");
        }
    }

    // Random input.

    fn random_timestamp(&mut self) -> i64 {
        match self.rng.u32(..12) {
            0 => self.rng.i64(..),
            1 => [i64::MIN, i64::MAX, 0, -1][self.rng.usize(..4)],
            _ => self.now_ms + self.rng.i64(-3000..3000),
        }
    }

    fn random_record(&mut self) -> Rec {
        let len = match self.rng.u32(..20) {
            0 => self.rng.usize(..9000),
            1..6 => self.rng.usize(..400),
            _ => self.rng.usize(..40),
        };
        let bytes = |rng: &mut Rng, len: usize| -> Vec<u8> {
            match rng.u32(..8) {
                // A payload that looks like entries must not be taken for one.
                0 => {
                    let mut bytes = Vec::new();
                    let inner = Rec::new(5, b"inner");
                    while bytes.len() < len {
                        let offset = rng.i64(..1000);
                        let layout = if rng.bool() { Layout::V1 } else { Layout::V2 };
                        layout
                            .encode(offset.abs(), &inner.borrow(), &mut bytes)
                            .unwrap();
                    }
                    bytes.truncate(len);
                    bytes
                }
                1 => vec![0; len],
                _ => (0..len).map(|_| rng.u8(..)).collect(),
            }
        };
        let timestamp = self.random_timestamp();
        let key = self.rng.bool().then(|| {
            let len = self.rng.usize(..20);
            bytes(&mut self.rng, len)
        });
        let value = (self.rng.u32(..10) > 0).then(|| bytes(&mut self.rng, len));
        let has_headers = self.config.record_version == Layout::V2 && self.rng.u32(..8) == 0;
        let headers = if has_headers {
            b"\x00\x01\x00\x00\x00\x01h\xff\xff\xff\xff".to_vec()
        } else {
            vec![]
        };
        Rec {
            timestamp,
            key,
            value,
            headers,
        }
    }

    fn as_stored(&mut self, mut record: Rec) -> Rec {
        if self.config.timestamp_type == TimestampType::LogAppendTime {
            record.timestamp = self.now_ms;
        }
        let bytes = 36 + record.borrow().payload_bytes() as u64;
        self.model.entry_bytes_max = self.model.entry_bytes_max.max(bytes);
        record
    }
}

fn random_config(rng: &mut Rng) -> LogConfig {
    let pick = |rng: &mut Rng, from: &[u32]| from[rng.usize(..from.len())];
    LogConfig {
        segment_bytes: pick(rng, &[14, 200, 1000, 5000, 20_000, 100_000]),
        segment_ms: i64::from(pick(rng, &[1, 2000, 10_000, 1_000_000])),
        segment_index_bytes: pick(rng, &[24, 36, 100, 1000, 8192]),
        index_interval_bytes: pick(rng, &[1, 50, 300, 4096]),
        max_message_bytes: pick(rng, &[300, 10_000, 10_000]),
        record_version: if rng.u32(..6) == 0 {
            Layout::V1
        } else {
            Layout::V2
        },
        timestamp_type: if rng.u32(..6) == 0 {
            TimestampType::LogAppendTime
        } else {
            TimestampType::CreateTime
        },
        timestamp_after_max_ms: if rng.u32(..4) == 0 { 1000 } else { i64::MAX },
        ..LogConfig::default()
    }
}
