//! Random histories of a broker against a model: what was acknowledged is there, what was deleted is not.
//!
//! `SEED=<n>` replays one history, `HISTORIES=<n>` runs so many; a failure prints its seed.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A topic as its clients know it.
#[derive(Debug, Default)]
struct Known {
    /// Acknowledged records, by partition and offset.
    records: BTreeMap<(u32, i64), String>,
    /// TRIM was asked for up to these offsets, by partition, whatever it answered.
    trimmed: BTreeMap<u32, i64>,
    /// It was compacted or had its records expire at times: records below its end may be gone.
    is_lossy: bool,
    /// A DELETE failed after the last acknowledged record: a restart may bring either.
    maybe_gone: bool,
}

impl Known {
    /// Reads an acknowledged record: it is there as it was, unless it may be gone.
    fn check(&self, rig: &mut Rig, name: &str, (partition, offset): (u32, i64), value: &str) {
        let target = format!("{name}/{partition}");
        let trimmed = self.trimmed.get(&partition).copied().unwrap_or(0);
        let may_be_gone = self.is_lossy || offset < trimmed;
        match rig.reply(&read(&target, OffsetSpec::Offset(offset), 0)) {
            Response::Records { records, .. } => match records.iter().next() {
                Some(found) if found.offset == offset => {
                    assert_eq!(
                        found.record.value,
                        Some(value.as_bytes()),
                        "{target} at {offset}"
                    );
                }
                Some(found) => {
                    assert!(may_be_gone && found.offset > offset, "{target} at {offset}");
                }
                None => assert!(may_be_gone, "{target} at {offset}"),
            },
            Response::Error(error) => {
                assert!(
                    may_be_gone && error.code == ErrorCode::OffsetOutOfRange,
                    "{target} at {offset}: {error}"
                );
                let (_, earliest, latest) = rig.offsets(&target)[0];
                assert!(
                    offset < earliest && earliest <= latest,
                    "{target} at {offset}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[derive(Debug)]
struct History {
    random: fastrand::Rng,
    rig: Rig,
    topics: BTreeMap<String, Known>,
    /// Topics that a failed request may have created.
    maybe_there: BTreeSet<String>,
    serial: u32,
    /// Whether to tell what happens.
    is_loud: bool,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let fsync = match random.u32(..4) {
            0 => FsyncPolicy::Never,
            1 => FsyncPolicy::EveryMs(50),
            _ => FsyncPolicy::Always,
        };
        let configs = [
            ("num.partitions", "2"),
            ("segment.bytes", "400"),
            ("segment.index.bytes", "80"),
            ("min.cleanable.dirty.ratio", "0.2"),
            ("file.delete.delay.ms", "500"),
            ("log.initial.task.delay.ms", "100"),
            ("log.retention.check.interval.ms", "900"),
            ("log.cleaner.backoff.ms", "300"),
        ];
        let configs = configs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec();
        let rig = Rig::with(Settings {
            configs,
            ..settings(fsync)
        });
        Self {
            random,
            rig,
            topics: BTreeMap::new(),
            maybe_there: BTreeSet::new(),
            serial: 0,
            is_loud: std::env::var("SEED").is_ok(),
        }
    }

    fn tell(&self, what: std::fmt::Arguments<'_>) {
        if self.is_loud {
            println!("{what} [{} operations struck]", self.rig.fs.struck());
        }
    }

    fn name(&mut self) -> String {
        self.random.choice(NAMES).unwrap().to_owned()
    }

    fn run(&mut self) {
        for _ in 0..40 {
            self.turn();
            if self.random.u32(..8) == 0 {
                self.restart();
            }
        }
        self.restart();
    }

    fn turn(&mut self) {
        // Without an fsync before the OK, a failed one may lose what was acknowledged: that is what the policy says.
        if self.rig.settings.fsync == FsyncPolicy::Always && self.random.u32(..3) == 0 {
            let kinds = [
                FaultKind::Io,
                FaultKind::NoSpace,
                FaultKind::IoAfter,
                FaultKind::Torn(11),
                FaultKind::Short(5),
            ];
            self.rig.fs.arm(Fault {
                at: self.random.u64(..40),
                from_then_on: self.random.bool(),
                kind: *self.random.choice(&kinds).unwrap(),
                reads: false,
            });
        }
        self.tell(format_args!("turn"));
        let mut undecided = Vec::new();
        for _ in 0..self.random.u32(..10) {
            match self.random.u32(..16) {
                0 => self.create(),
                1 => self.delete(),
                2 => self.read_something(),
                3 => self.trim(),
                4 => self.alter(),
                5 => self.add_partitions(),
                _ => undecided.extend(self.append()),
            }
        }
        self.rig.flush();
        for (name, run, value) in undecided {
            self.tell(format_args!(
                "{name} {run:?}: {:?}",
                self.rig.broker.verdict(&run)
            ));
            if is_good(self.rig.broker.verdict(&run), run.first_offset)
                // A record of a topic that was deleted in the turn is acknowledged, and gone with it.
                && let Some(known) = self.topics.get_mut(&name)
                && self.rig.broker.partitions.get(run.key).is_some()
            {
                known.maybe_gone = false;
                let before = known
                    .records
                    .insert((run.partition, run.first_offset), value);
                assert_eq!(before, None, "an acknowledged offset was given again");
            }
        }
        self.rig.broker.end_turn();
        self.rig.pass(Duration::from_millis(self.random.u64(..700)));
        for _ in 0..self.random.u32(1..12) {
            self.rig.broker.tick(&self.rig.clock);
        }
        if self.random.bool() {
            self.rig.fs.disarm();
        }
    }

    fn append(&mut self) -> Option<(String, Run, String)> {
        let name = self.name();
        self.serial += 1;
        let value = format!("{} {}", self.serial, "-".repeat(self.random.usize(..120)));
        let target = if self.random.bool() {
            name.clone()
        } else {
            format!("{name}/{}", self.random.u32(..3))
        };
        let key =
            (self.random.u32(..4) > 0).then_some(["one key", "other key"][self.random.usize(..2)]);
        let appended = self.rig.append(&target, key, &value);
        self.tell(format_args!("append {target} {} {appended:?}", self.serial));
        let Ok(run) = appended else {
            self.note_failed_creation(name);
            return None;
        };
        self.topics.entry(name.clone()).or_default();
        self.maybe_there.remove(&name);
        Some((name, run, value))
    }

    fn note_failed_creation(&mut self, name: String) {
        if self.rig.broker.topics.find(name.as_bytes()).is_some() {
            // It was made, and only the append was refused.
            self.topics.entry(name).or_default();
        } else {
            self.maybe_there.insert(name);
        }
    }

    fn create(&mut self) {
        let name = self.name();
        let partitions = self.random.u32(1..4);
        let response = self.rig.reply(&create(&name, Some(partitions), &[]));
        self.tell(format_args!("create {name} {partitions}: {response:?}"));
        match response {
            Response::Done => {
                self.maybe_there.remove(&name);
                let before = self.topics.insert(name, Known::default());
                assert!(before.is_none(), "created twice");
            }
            _ => self.note_failed_creation(name),
        }
    }

    fn delete(&mut self) {
        let name = self.name();
        let response = self.rig.reply(&Request::Delete(name.as_bytes()));
        self.tell(format_args!("delete {name}: {response:?}"));
        match (response, self.topics.get_mut(&name)) {
            (Response::Done, Some(_)) => drop(self.topics.remove(&name)),
            (Response::Done, None) => panic!("{name} was not there"),
            (_, Some(known)) => known.maybe_gone = true,
            (_, None) => {}
        }
    }

    fn trim(&mut self) {
        let name = self.name();
        let partition = self.random.u32(..2);
        let offset = self.random.i64(..30);
        let target = format!("{name}/{partition}");
        let response = self.rig.trim(&target, offset);
        self.tell(format_args!("trim {target} {offset}: {response:?}"));
        let Some(known) = self.topics.get_mut(&name) else {
            return;
        };
        let is_refused = matches!(
            &response,
            Response::Error(error) if matches!(error.code, ErrorCode::OffsetOutOfRange | ErrorCode::UnknownPartition)
        );
        if !is_refused {
            let below = known.trimmed.entry(partition).or_default();
            *below = offset.max(*below);
        }
        if let Response::Trimmed { earliest, latest } = response {
            assert!(earliest >= offset && latest >= earliest, "{target}");
        }
    }

    fn alter(&mut self) {
        let name = self.name();
        let configs = [
            [("cleanup.policy", "compact")],
            [("cleanup.policy", "default")],
            [("retention.ms", "2000")],
            [("retention.bytes", "1000")],
            [("retention.ms", "default")],
            [("segment.ms", "1000")],
        ];
        let config = self.random.choice(&configs).unwrap();
        let response = self.rig.alter(&name, config);
        self.tell(format_args!("alter {name} {config:?}: {response:?}"));
        if let Some(known) = self.topics.get_mut(&name) {
            known.is_lossy = true;
        }
    }

    fn add_partitions(&mut self) {
        let name = self.name();
        let count = self.random.u32(1..5);
        let response = self.rig.reply(&Request::Partitions(name.as_bytes(), count));
        self.tell(format_args!("partitions {name} {count}: {response:?}"));
    }

    fn read_something(&mut self) {
        let name = self.name();
        if let Some(known) = self.topics.get(&name)
            && let Some((at, value)) = known.records.iter().next_back()
        {
            known.check(&mut self.rig, &name, *at, value);
        }
    }

    fn restart(&mut self) {
        self.rig.fs.disarm();
        let is_always = self.rig.settings.fsync == FsyncPolicy::Always;
        let random = &mut self.random;
        let mem = match random.u32(..3) {
            0 if is_always => self.rig.mem.crash(&mut |n| random.u64(..n)),
            1 => {
                // It may fail: an fsync failed before.
                let _ = self.rig.broker.close(&self.rig.clock);
                self.rig.mem.kill()
            }
            _ => self.rig.mem.kill(),
        };
        self.tell(format_args!("restart"));
        self.rig = Rig::start(mem, self.rig.settings.clone()).expect("it opens");
        self.check();
    }

    fn check(&mut self) {
        let there: BTreeSet<String> = self.rig.topic_names().into_iter().collect();
        self.topics
            .retain(|name, known| !known.maybe_gone || there.contains(name));
        for name in &there {
            let is_allowed = self.topics.contains_key(name) || self.maybe_there.contains(name);
            assert!(is_allowed, "{name} came from nowhere");
            self.topics.entry(name.clone()).or_default().maybe_gone = false;
        }
        self.maybe_there.clear();
        for (name, known) in &self.topics {
            assert!(there.contains(name), "{name} is lost");
            for (at, value) in &known.records {
                known.check(&mut self.rig, name, *at, value);
            }
        }
    }
}

#[test]
fn random_histories_keep_what_was_acknowledged() {
    let from_environment = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text: String| text.parse::<u64>().ok())
    };
    let seeds: Vec<u64> = match from_environment("SEED") {
        Some(seed) => vec![seed],
        None => (0..from_environment("HISTORIES").unwrap_or(150))
            .chain([fastrand::u64(..)])
            .collect(),
    };
    for seed in seeds {
        let result = std::panic::catch_unwind(|| History::new(seed).run());
        assert!(result.is_ok(), "the history of SEED={seed} failed");
    }
}
