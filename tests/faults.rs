//! Operation N fails, for N = 0, 1, 2 ... until a run finishes untouched: over every way in which the engine changes files.
//!
//! A fault comes once or from there on, as an error before or after the deed, as a full disk, as a short or a torn write. Afterwards
//! what was acknowledged is there, live, after a kill, and (what was durable) after power cuts; what was refused is not, while the process lives.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod world;

use std::collections::BTreeMap;

use mini_broker::fs::Fs;
use mini_broker::fs::fault::{Fault, FaultFs, FaultKind};
use mini_broker::fs::mem::MemFs;
use mini_broker::storage::{FsyncPolicy, LogConfig};
use world::{Faulty, Rec, World, check_files, chooser, read_all, small_config};

const NOW: i64 = 1_767_225_600_000;
const POLICIES: [FsyncPolicy; 2] = [FsyncPolicy::Always, FsyncPolicy::Never];

/// One run, and what is known of it.
struct Run {
    fs: Faulty,
    fsync: FsyncPolicy,
    config: LogConfig,
    world: Option<World>,
    /// Answered with OK.
    acknowledged: BTreeMap<i64, Rec>,
    pending: BTreeMap<i64, Rec>,
    attempts: BTreeMap<i64, Vec<Rec>>,
    durable: i64,
    count: i64,
    /// An fsync or a cut failed: only what is durable is sure to outlive the process.
    is_uncertain: bool,
}

impl Run {
    fn new(fsync: FsyncPolicy) -> Self {
        Self {
            fs: FaultFs::new(MemFs::new()),
            fsync,
            config: small_config(),
            world: None,
            acknowledged: BTreeMap::new(),
            pending: BTreeMap::new(),
            attempts: BTreeMap::new(),
            durable: 0,
            count: 0,
            is_uncertain: false,
        }
    }

    fn start(&mut self) {
        self.world = World::start(&self.fs, self.fsync, self.config, NOW).ok();
        self.is_uncertain |= self.world.is_none();
    }

    fn record(&mut self) -> Rec {
        self.count += 1;
        Rec::new(NOW + self.count, format!("{:060}", self.count).as_bytes())
    }

    fn append(&mut self, count: usize) {
        for _ in 0..count {
            let record = self.record();
            let Some(world) = self.world.as_mut() else {
                return;
            };
            let offset = world.log.log_end_offset();
            self.attempts
                .entry(offset)
                .or_default()
                .push(record.clone());
            if world.log.append(&record.borrow(), NOW).is_ok() {
                self.pending.insert(offset, record);
            }
            self.settle();
        }
    }

    fn batch(&mut self, count: usize) {
        let records: Vec<Rec> = (0..count).map(|_| self.record()).collect();
        let Some(world) = self.world.as_mut() else {
            return;
        };
        let first = world.log.log_end_offset();
        for (offset, record) in (first..).zip(&records) {
            self.attempts
                .entry(offset)
                .or_default()
                .push(record.clone());
        }
        if world
            .log
            .append_batch(records.iter().map(Rec::borrow), NOW)
            .is_ok()
        {
            self.pending.extend((first..).zip(records));
        } else {
            assert!(
                world.log.log_end_offset() <= first,
                "a part of a refused batch stayed"
            );
        }
        self.settle();
    }

    /// What the log gave up is no longer pending.
    fn settle(&mut self) {
        let log = &self.world.as_ref().unwrap().log;
        let end = log.log_end_offset();
        self.pending.retain(|offset, _| *offset < end);
        self.is_uncertain |= log.is_read_only();
        // After a start that could not sync, the log itself is not sure of what was durable before.
        assert!(
            log.durable_offset() >= self.durable || self.is_uncertain,
            "the durable end went back"
        );
        self.durable = self.durable.max(log.durable_offset());
    }

    fn flush(&mut self) {
        let Some(world) = self.world.as_mut() else {
            return;
        };
        let result = world.flush();
        let good = world.log.high_watermark();
        assert!(self.fsync != FsyncPolicy::Always || good <= world.log.durable_offset());
        let _ = world.dir.checkpoints().write_recovery_point();
        self.settle();
        let pending = std::mem::take(&mut self.pending);
        assert!(result.is_err() || pending.keys().all(|offset| *offset < good));
        self.acknowledged
            .extend(pending.into_iter().filter(|(offset, _)| *offset < good));
    }

    fn put(&mut self, count: usize) {
        self.append(count);
        self.flush();
    }

    fn stop(&mut self) {
        if let Some(world) = self.world.take() {
            self.durable = self.durable.max(world.log.durable_offset());
            self.is_uncertain |= world.stop().is_err();
        }
    }

    fn kill(&mut self) {
        self.world = None;
        self.pending.clear();
        self.fs = FaultFs::new(self.fs.inner().kill());
    }

    fn background(&mut self) {
        if let Some(world) = self.world.as_mut() {
            while world.log.background() {}
            self.settle();
        }
    }

    // What must hold afterwards.

    /// While the process lives: readers see what was acknowledged and nothing else, and with the cause gone appends come back.
    fn check_live(&mut self) {
        let Some(world) = self.world.as_mut() else {
            return;
        };
        let (found, damage) = read_all(&mut world.log);
        assert!(damage.is_empty(), "{damage:?}");
        // A start that could not sync shows only what it knows to be durable.
        let end = if world.log.is_read_only() {
            world.log.high_watermark()
        } else {
            i64::MAX
        };
        let expected = self.acknowledged.range(..end);
        assert!(
            found
                .iter()
                .map(|(offset, record)| (offset, record))
                .eq(expected),
            "{found:?}"
        );
        if !world.log.is_read_only() {
            let before = self.acknowledged.len();
            self.put(1);
            assert_eq!(
                self.acknowledged.len(),
                before + 1,
                "appends come back by themselves"
            );
        }
    }

    /// After a start over `disk`: everything below `floor` is there, and nothing that nobody ever appended.
    fn check_disk(&self, disk: MemFs, floor: i64, is_cut: bool) {
        let fs = FaultFs::new(disk);
        let mut world = World::start(&fs, self.fsync, self.config, NOW).unwrap();
        let (found, damage) = read_all(&mut world.log);
        assert!(
            damage.iter().all(|d| d.next > floor),
            "{damage:?} below {floor}"
        );
        let found: BTreeMap<i64, Rec> = found.into_iter().collect();
        for (offset, record) in self.acknowledged.range(..floor) {
            assert_eq!(
                found.get(offset),
                Some(record),
                "offset {offset} below {floor}"
            );
        }
        for (offset, record) in &found {
            assert!(
                self.attempts[offset].contains(record),
                "offset {offset}: {record:?}"
            );
        }
        assert!(world.log.log_end_offset() >= floor);
        check_times(&mut world, &found);
        let end = world.log.log_end_offset();
        let record = Rec::new(NOW, b"after");
        world.put(std::slice::from_ref(&record), NOW);
        assert_eq!(read_all(&mut world.log).0.last(), Some(&(end, record)));
        // What a start found it has made durable, the names of segments included.
        let again = FaultFs::new(fs.inner().crash(&mut |_| 0));
        let mut again = World::start(&again, self.fsync, self.config, NOW).unwrap();
        let offsets: Vec<i64> = read_all(&mut again.log)
            .0
            .into_iter()
            .map(|(o, _)| o)
            .collect();
        let expected = found.keys().copied().chain([end]);
        let expected = expected.filter(|o| *o < end || self.fsync == FsyncPolicy::Always);
        assert_eq!(
            offsets,
            expected.collect::<Vec<_>>(),
            "after another power cut"
        );
        // A power cut may leave a sealed segment empty that nobody had synced.
        let is_whole = self.fsync == FsyncPolicy::Always || !is_cut;
        if damage.is_empty() && is_whole {
            world.stop().unwrap();
            check_files(&fs);
        }
    }

    fn check(mut self) {
        self.fs.disarm();
        self.check_live();
        let end = self
            .acknowledged
            .last_key_value()
            .map_or(0, |(offset, _)| offset + 1);
        let floor = if self.is_uncertain { self.durable } else { end };
        self.check_disk(self.fs.inner().kill(), floor, false);
        for seed in 0..4 {
            self.check_disk(
                self.fs.inner().crash(&mut chooser(seed)),
                self.durable,
                true,
            );
        }
    }
}

/// A time leads to the first record at or after it.
fn check_times(world: &mut World, found: &BTreeMap<i64, Rec>) {
    for record in found.values() {
        let first = found
            .iter()
            .find(|(_, other)| other.timestamp >= record.timestamp);
        let first = first.map(|(offset, record)| (*offset, record.timestamp));
        assert_eq!(world.log.offset_at_time(record.timestamp).unwrap(), first);
    }
}

/// Runs `build`, then `act` with every fault at every operation of it.
fn at_every_operation(build: fn(&mut Run), act: fn(&mut Run)) {
    for fsync in POLICIES {
        for (kind, from_then_on) in [
            (FaultKind::Io, false),
            (FaultKind::Io, true),
            (FaultKind::NoSpace, false),
            (FaultKind::NoSpace, true),
            (FaultKind::IoAfter, false),
            (FaultKind::Short(7), false),
            (FaultKind::Torn(7), false),
        ] {
            let fault = Fault {
                at: 0,
                from_then_on,
                kind,
                reads: false,
            };
            every_place(fsync, fault, build, act);
        }
    }
}

fn every_place(fsync: FsyncPolicy, fault: Fault, build: fn(&mut Run), act: fn(&mut Run)) {
    for at in 0.. {
        let fault = Fault { at, ..fault };
        let mut run = Run::new(fsync);
        run.start();
        build(&mut run);
        run.fs.arm(fault);
        let told = Told { fsync, fault };
        act(&mut run);
        let is_over = run.fs.struck() == 0;
        run.check();
        drop(told);
        if is_over {
            return;
        }
        assert!(at < 1000, "the run never ends");
    }
}

/// Names the fault of a run that fails.
struct Told {
    fsync: FsyncPolicy,
    fault: Fault,
}

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("under {:?} with {:?}", self.fsync, self.fault);
        }
    }
}

#[test]
fn appends() {
    at_every_operation(
        |run| run.put(3),
        |run| {
            run.put(2);
            run.put(1);
            run.append(2);
            run.put(1);
        },
    );
}

#[test]
fn a_roll() {
    at_every_operation(
        |run| run.put(9),
        |run| {
            run.put(1);
            run.put(2);
            run.background();
        },
    );
}

#[test]
fn a_roll_for_an_index_that_is_full() {
    at_every_operation(
        |run| {
            run.config.segment_index_bytes = 24;
            run.world.as_mut().unwrap().log.set_config(run.config);
            run.put(9);
        },
        |run| run.put(8),
    );
}

#[test]
fn a_roll_behind_a_cut() {
    at_every_operation(
        |run| run.put(5),
        |run| {
            run.put(1);
            run.config.segment_bytes = 14;
            run.world.as_mut().unwrap().log.set_config(run.config);
            run.put(2);
        },
    );
}

#[test]
fn a_batch_that_goes_back_behind_a_roll_before_another() {
    at_every_operation(
        |run| run.put(7),
        |run| {
            run.batch(9);
            run.flush();
            run.config.segment_bytes = 14;
            run.world.as_mut().unwrap().log.set_config(run.config);
            run.put(1);
        },
    );
}

#[test]
fn a_start_that_makes_a_denser_index() {
    at_every_operation(
        |run| {
            run.config.index_interval_bytes = 100_000;
            run.world.as_mut().unwrap().log.set_config(run.config);
            run.put(25);
            run.stop();
            run.start();
            run.config.index_interval_bytes = 1;
            run.kill();
            run.fs
                .remove_file(&world::file("00000000000000000020.index"))
                .unwrap();
        },
        |run| {
            run.start();
            run.put(1);
        },
    );
}

#[test]
fn a_batch_within_a_segment() {
    at_every_operation(
        |run| run.put(2),
        |run| {
            run.batch(3);
            run.flush();
        },
    );
}

#[test]
fn a_batch_across_segments() {
    at_every_operation(
        |run| run.put(7),
        |run| {
            run.append(1);
            run.batch(25);
            run.flush();
            run.put(1);
        },
    );
}

#[test]
fn many_rolls_and_their_background_syncs() {
    at_every_operation(
        |run| run.put(2),
        |run| {
            for _ in 0..3 {
                run.put(9);
            }
            run.background();
        },
    );
}

#[test]
fn a_first_start() {
    at_every_operation(Run::kill, |run| {
        run.start();
        run.put(1);
    });
}

#[test]
fn a_start_after_a_kill() {
    at_every_operation(
        |run| {
            run.put(25);
            run.kill();
        },
        |run| {
            run.start();
            run.put(2);
        },
    );
}

#[test]
fn a_start_after_an_orderly_stop() {
    at_every_operation(
        |run| {
            run.put(25);
            run.stop();
            run.kill();
        },
        |run| {
            run.start();
            run.put(2);
        },
    );
}

#[test]
fn an_orderly_stop() {
    at_every_operation(
        |run| run.put(25),
        |run| {
            run.append(2);
            run.flush();
            run.stop();
        },
    );
}

/// A batch that is refused behind a roll has its part in a segment that was synced whole: the cut must be durable, too, or a power cut brings
/// back what was refused.
#[test]
fn a_power_cut_brings_back_no_part_of_a_refused_batch() {
    let mut refused = 0;
    for at in 0.. {
        let mut run = Run::new(FsyncPolicy::Always);
        run.start();
        run.put(1);
        run.fs.arm(Fault {
            at,
            from_then_on: false,
            kind: FaultKind::NoSpace,
            reads: false,
        });
        let records: Vec<Rec> = (0..30).map(|_| run.record()).collect();
        let log = &mut run.world.as_mut().unwrap().log;
        let result = log.append_batch(records.iter().map(Rec::borrow), NOW);
        let is_read_only = log.is_read_only();
        if run.fs.struck() == 0 {
            break;
        }
        run.fs.disarm();
        if result.is_ok() || is_read_only {
            continue;
        }
        refused += 1;
        let fs = FaultFs::new(run.fs.inner().crash(&mut |_| 0));
        let mut world = World::start(&fs, FsyncPolicy::Always, run.config, NOW).unwrap();
        let (found, damage) = read_all(&mut world.log);
        assert_eq!((found.len(), damage.len()), (1, 0), "fault at {at}");
    }
    assert!(refused > 0);
}
