//! Tests of the broker over the in-memory file system, with clocks that stand still until they are set.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

mod admin;
mod appends;
mod cleaning;
mod compaction_configs;
mod durability;
mod groups;
mod readers;
mod retention;
mod sim;
mod space;
mod start;
mod topics;

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::api::{CrcMode, OffsetSpec, Payload, Run, TailFrom, Target, Verdict};
use crate::clock::{Clock, ManualClock};
use crate::fs::fault::{Fault, FaultFs, FaultKind};
use crate::fs::mem::MemFs;

type TestFs = FaultFs<MemFs>;

const ALICE: ConnectionId = ConnectionId(1);
const BOB: ConnectionId = ConnectionId(2);
const CAROL: ConnectionId = ConnectionId(3);

/// A broker with its surroundings.
#[derive(Debug)]
struct Rig {
    mem: MemFs,
    fs: TestFs,
    clock: ManualClock,
    settings: Settings,
    broker: Broker<TestFs>,
}

fn settings(fsync: FsyncPolicy) -> Settings {
    Settings {
        fsync,
        ..Settings::new("/data")
    }
}

impl Rig {
    fn new(fsync: FsyncPolicy) -> Self {
        Self::with(settings(fsync))
    }

    fn with(settings: Settings) -> Self {
        Self::start(MemFs::new(), settings).expect("a new directory opens")
    }

    fn start(mem: MemFs, settings: Settings) -> Result<Self, String> {
        let fs = FaultFs::new(mem.clone());
        let clock = ManualClock::new(Now {
            wall_ms: 1_000_000,
            mono: Duration::from_secs(100),
        });
        let broker = Broker::open(fs.clone(), settings.clone(), &clock, || Ok(()))?;
        Ok(Self {
            mem,
            fs,
            clock,
            settings,
            broker,
        })
    }

    /// The same directory after a kill: everything written is kept.
    fn killed(&self) -> Self {
        Self::start(self.mem.kill(), self.settings.clone()).expect("it opens after a kill")
    }

    /// The same directory after a power cut that kept nothing but what was synced.
    fn crashed(&self) -> Self {
        Self::start(self.mem.crash(&mut |_| 0), self.settings.clone())
            .expect("it opens after a crash")
    }

    /// The same directory after an orderly stop.
    fn restarted(mut self) -> Self {
        self.broker.close(&self.clock).expect("an orderly stop");
        Self::start(self.mem.kill(), self.settings.clone()).expect("it opens after a stop")
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    fn pass(&self, time: Duration) {
        let now = self.now();
        let wall_ms = now.wall_ms + i64::try_from(time.as_millis()).unwrap();
        self.clock.set(Now {
            wall_ms,
            mono: now.mono + time,
        });
    }

    fn append(&mut self, target: &str, key: Option<&str>, value: &str) -> Result<Run, ApiError> {
        let payload = Payload::Record {
            timestamp: None,
            key: key.map(str::as_bytes),
            value: Some(value.as_bytes()),
            headers: &[],
        };
        let now = self.now();
        self.broker.append(target_of(target), &payload, now)
    }

    fn flush(&mut self) {
        self.broker.flush(&self.clock);
    }

    /// The flush and the end of a turn without runs.
    fn turn(&mut self) {
        self.flush();
        self.broker.end_turn();
    }

    /// One append in a turn of its own: partition and offset.
    fn put(&mut self, target: &str, value: &str) -> (u32, i64) {
        let run = self.append(target, None, value).expect("appended");
        self.flush();
        let verdict = self.broker.verdict(&run).clone();
        assert_eq!(verdict.error, None);
        assert!(run.first_offset < verdict.good_below);
        self.broker.end_turn();
        (run.partition, run.first_offset)
    }

    fn handle(&mut self, connection: ConnectionId, request: &Request<'_>) -> Outcome {
        let now = self.now();
        self.broker.handle(connection, request, now)
    }

    fn reply(&mut self, request: &Request<'_>) -> Response {
        match self.handle(ALICE, request) {
            Outcome::Reply(response) => response,
            other => panic!("{request:?} was not answered: {other:?}"),
        }
    }

    fn error(&mut self, request: &Request<'_>) -> ApiError {
        match self.reply(request) {
            Response::Error(error) => error,
            other => panic!("{request:?} was not refused: {other:?}"),
        }
    }

    fn create(&mut self, topic: &str, partitions: u32, configs: &[(&str, &str)]) {
        let response = self.reply(&create(topic, Some(partitions), configs));
        assert!(matches!(response, Response::Done), "{response:?}");
    }

    fn sync(&mut self) -> Response {
        assert!(matches!(
            self.handle(CAROL, &Request::Sync),
            Outcome::Parked
        ));
        self.turn();
        assert_eq!(self.next(), Some(CAROL));
        match self.resume(CAROL) {
            Resumed::Reply(response) => response,
            other => panic!("SYNC is not answered: {other:?}"),
        }
    }

    /// Turns until nothing is due now.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            if self
                .broker
                .next_deadline()
                .is_none_or(|due| due > self.now().mono)
            {
                return;
            }
            self.turn();
            self.broker.tick(&self.clock);
        }
        panic!("it never comes to rest: {:?}", self.broker.next_deadline());
    }

    /// Some time later, and everything due by then done.
    fn later(&mut self, time: Duration) {
        self.pass(time);
        self.settle();
    }

    /// One record with a key in a turn of its own; no value is a tombstone. Its offset.
    fn put_keyed(&mut self, target: &str, key: &str, value: Option<&str>) -> i64 {
        let payload = Payload::Record {
            timestamp: None,
            key: Some(key.as_bytes()),
            value: value.map(str::as_bytes),
            headers: &[],
        };
        let now = self.now();
        let run = self
            .broker
            .append(target_of(target), &payload, now)
            .expect("appended");
        self.turn();
        run.first_offset
    }

    fn alter(&mut self, topic: &str, configs: &[(&str, &str)]) -> Response {
        self.reply(&Request::Alter {
            topic: topic.as_bytes(),
            configs: configs.to_vec(),
        })
    }

    fn trim(&mut self, target: &str, offset: i64) -> Response {
        self.reply(&Request::Trim(target_of(target), offset))
    }

    fn segments(&mut self, target: &str) -> Vec<i64> {
        match self.reply(&Request::Segments(target_of(target))) {
            Response::Segments(lines) => lines.iter().map(|line| line.base_offset).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Names in a directory that end like this.
    fn files(&self, directory: &str, end: &str) -> Vec<String> {
        let entries = self.mem.read_dir(Path::new(directory)).unwrap();
        let names = entries
            .into_iter()
            .map(|entry| entry.name.into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.ends_with(end)).collect();
        names.sort();
        names
    }

    /// When the broker wants a tick, the next retention pass left aside.
    fn deadline(&self) -> Option<Duration> {
        let pass = self.broker.retention.next_deadline();
        self.broker.next_deadline().filter(|&due| due != pass)
    }

    fn next(&mut self) -> Option<ConnectionId> {
        let now = self.now();
        self.broker.next_ready(now)
    }

    /// All connections that can go on.
    fn ready(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.next())
            .map(|connection| connection.0)
            .collect()
    }

    fn resume(&mut self, connection: ConnectionId) -> Resumed {
        let now = self.now();
        self.broker.resume(connection, now)
    }

    /// Values from the earliest on, all that readers may see.
    fn values(&mut self, target: &str) -> Vec<String> {
        values(&self.reply(&read(target, OffsetSpec::Earliest, 0)))
    }

    fn offsets(&mut self, target: &str) -> Vec<(u32, i64, i64)> {
        match self.reply(&Request::Offsets(target_of(target))) {
            Response::Offsets(lines) => lines,
            other => panic!("{other:?}"),
        }
    }

    fn stat(&mut self, name: &str) -> u64 {
        match self.reply(&Request::Stats) {
            Response::Stats(lines) => lines
                .iter()
                .find(|line| line.0 == name)
                .map(|line| line.1)
                .expect("there is such a line"),
            other => panic!("{other:?}"),
        }
    }

    fn topic_names(&mut self) -> Vec<String> {
        match self.reply(&Request::Topics) {
            Response::Topics(lines) => lines.into_iter().map(|line| line.name).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn fail_at(&self, at: u64, kind: FaultKind) {
        self.fs.arm(Fault {
            at,
            from_then_on: false,
            kind,
            reads: false,
        });
    }

    fn fail_always(&self, kind: FaultKind) {
        self.fs.arm(Fault {
            at: 0,
            from_then_on: true,
            kind,
            reads: false,
        });
    }
}

fn target_of(target: &str) -> Target<'_> {
    match target.split_once('/') {
        Some((topic, partition)) => Target {
            topic: topic.as_bytes(),
            partition: Some(partition.parse().unwrap()),
        },
        None => Target {
            topic: target.as_bytes(),
            partition: None,
        },
    }
}

fn create<'a>(
    topic: &'a str,
    partitions: Option<u32>,
    configs: &[(&'a str, &'a str)],
) -> Request<'a> {
    Request::Create {
        topic: topic.as_bytes(),
        partitions,
        configs: configs.to_vec(),
    }
}

fn read(target: &str, from: OffsetSpec, wait_ms: u64) -> Request<'_> {
    Request::Read {
        target: target_of(target),
        from,
        max_records: 1_000_000,
        wait: Duration::from_millis(wait_ms),
        crc: CrcMode::Check,
    }
}

fn fetch(target: &str, from: i64, (max_bytes, min_bytes): (u64, u64), wait_ms: u64) -> Request<'_> {
    Request::Fetch {
        target: target_of(target),
        from: OffsetSpec::Offset(from),
        max_bytes,
        min_bytes,
        wait: Duration::from_millis(wait_ms),
    }
}

fn tail(target: &str, from: OffsetSpec) -> Request<'_> {
    Request::Tail(TailFrom::One(target_of(target), from))
}

fn values(response: &Response) -> Vec<String> {
    match response {
        Response::Records { records, .. } => records
            .iter()
            .map(|r| String::from_utf8_lossy(r.record.value.unwrap_or(b"null")).into_owned())
            .collect(),
        other => panic!("not records: {other:?}"),
    }
}

fn event_values(resumed: &Resumed) -> (u32, Vec<String>) {
    match resumed {
        Resumed::Event(TailEvent::Records { partition, records }) => {
            let text = |value: Option<&[u8]>| {
                String::from_utf8_lossy(value.unwrap_or(b"null")).into_owned()
            };
            (
                *partition,
                records.iter().map(|r| text(r.record.value)).collect(),
            )
        }
        other => panic!("no records: {other:?}"),
    }
}

fn is_good(verdict: &Verdict, offset: i64) -> bool {
    assert!(
        verdict.error.is_some() || offset < verdict.good_below,
        "a bad one has a reason"
    );
    offset < verdict.good_below
}
