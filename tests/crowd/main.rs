//! A crowd of consumers that come, stall, die and return, against a model, over a broker whose clock and disk are simulated.
//!
//! One seed is one history. After every step the model knows what each group has committed, who was told of which
//! partition, and what was delivered; what the broker does must agree: nobody is given a record of a partition that another believes
//! to have, records of a partition come in order, whoever gets a partition goes on exactly at what is committed (so a record
//! comes twice only where it was not acknowledged), and in the end every record was delivered.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod check;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fastrand::Rng;
use mini_broker::api::{
    AckMode, ConnectionId, Consume, ErrorCode, Now, OffsetSpec, Payload, Request, Response,
    StartAt, Target,
};
use mini_broker::broker::{Broker, Outcome, Settings, Ticket};
use mini_broker::clock::{Clock, ManualClock};
use mini_broker::fs::mem::MemFs;
use mini_broker::storage::FsyncPolicy;

const TOPIC: &[u8] = b"t";
/// Those with acknowledgements, and one without.
const GROUPS: [&[u8]; 3] = [b"red", b"blue", b"auto"];
const AUTO: usize = 2;
const CONSUMERS_MAX: usize = 6;
const ACK_WAIT: Duration = Duration::from_millis(500);

/// What a consumer holds of a partition, as it was told.
#[derive(Debug, Clone, Default)]
struct Stint {
    /// The next offset that it must be given, once it was given one.
    next: Option<i64>,
    /// What it was given and has not acknowledged.
    out: Vec<i64>,
    /// What it has acknowledged, as a next offset.
    acked: Option<i64>,
    /// Whether a COMMIT of somebody else came since.
    is_contested: bool,
    /// How long the history of commits was when it was told.
    since: usize,
}

#[derive(Debug)]
struct Consumer {
    id: ConnectionId,
    group: usize,
    max_inflight: u64,
    has_ack_wait: bool,
    stints: BTreeMap<u32, Stint>,
    /// It takes nothing from its socket.
    is_stalled: bool,
    /// It was named while it was stalled.
    is_held: bool,
    /// Records of an automatic one that are not written to its socket yet.
    unwritten: Vec<(u32, Vec<i64>)>,
}

/// A partition, as a group sees it.
#[derive(Debug, Clone)]
struct Place {
    /// What was committed, one after the other; the last is in force.
    committed: Vec<Option<i64>>,
    delivered: BTreeSet<i64>,
    /// Of an automatic group, since the last start of the broker.
    written: BTreeSet<i64>,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            committed: vec![None],
            delivered: BTreeSet::new(),
            written: BTreeSet::new(),
        }
    }
}

/// A commit of this turn: where, and what is in force if it is written.
type Tentative = (usize, u32, i64, Ticket);

struct World {
    rng: Rng,
    mem: MemFs,
    settings: Settings,
    clock: ManualClock,
    broker: Broker<MemFs>,
    consumers: Vec<Consumer>,
    next_id: u64,
    /// Records of each partition.
    ends: Vec<i64>,
    starts: Vec<i64>,
    places: [BTreeMap<u32, Place>; GROUPS.len()],
    tentative: Vec<Tentative>,
    dying: Vec<Consumer>,
    /// How many turns there were.
    turns: u64,
    /// The turn in which whoever had a partition of a group before was told that it is gone, or went.
    released: BTreeMap<(usize, u32), u64>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    delivered: u64,
    again: u64,
    moves: u64,
    resets: u64,
    lost_places: u64,
    kills: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mem = MemFs::new();
        let settings = Settings {
            fsync: if rng.bool() {
                FsyncPolicy::Always
            } else {
                FsyncPolicy::Never
            },
            configs: vec![("log.cleaner.backoff.ms".to_owned(), "10".to_owned())],
            ..Settings::new("/data")
        };
        let clock = ManualClock::new(Now {
            wall_ms: 1_000_000,
            mono: Duration::from_secs(1),
        });
        let broker = Broker::open(mem.clone(), settings.clone(), &clock, || Ok(())).unwrap();
        let mut world = Self {
            rng,
            mem,
            settings,
            clock,
            broker,
            consumers: Vec::new(),
            next_id: 1,
            ends: Vec::new(),
            starts: Vec::new(),
            places: Default::default(),
            tentative: Vec::new(),
            dying: Vec::new(),
            turns: 0,
            released: BTreeMap::new(),
            counts: Counts::default(),
        };
        let partitions = world.rng.u32(1..5);
        world.ends = vec![0; partitions as usize];
        world.starts.clone_from(&world.ends);
        let create = Request::Create {
            topic: TOPIC,
            partitions: Some(partitions),
            configs: Vec::new(),
        };
        world.done(&create);
        world
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    fn ask(&mut self, id: u64, request: &Request<'_>) -> Outcome {
        let now = self.now();
        self.broker.handle(ConnectionId(id), request, now)
    }

    fn done(&mut self, request: &Request<'_>) {
        let outcome = self.ask(0, request);
        assert!(
            matches!(
                outcome,
                Outcome::Reply(Response::Done | Response::Trimmed { .. })
            ),
            "{request:?}: {outcome:?}"
        );
    }

    fn partitions(&self) -> u32 {
        u32::try_from(self.ends.len()).unwrap()
    }

    fn some_partition(&mut self) -> u32 {
        self.rng.u32(0..self.partitions())
    }

    fn some_consumer(&mut self) -> Option<usize> {
        (!self.consumers.is_empty()).then(|| self.rng.usize(0..self.consumers.len()))
    }

    fn place(&mut self, group: usize, partition: u32) -> &mut Place {
        self.places[group].entry(partition).or_default()
    }

    // What happens.

    fn append(&mut self) {
        let partition = self.some_partition();
        for _ in 0..self.rng.u32(1..6) {
            let target = Target {
                topic: TOPIC,
                partition: Some(partition),
            };
            let payload = Payload::Record {
                timestamp: None,
                key: None,
                value: Some(b"value"),
                headers: &[],
            };
            let run = self.broker.append(target, &payload, self.now()).unwrap();
            let end = &mut self.ends[partition as usize];
            assert_eq!(run.first_offset, *end);
            *end += 1;
        }
    }

    fn join(&mut self, group: usize) {
        if self.consumers.len() >= CONSUMERS_MAX {
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        let has_ack_wait = group != AUTO && self.rng.u8(0..4) == 0;
        let max_inflight = if group == AUTO {
            1000
        } else {
            self.rng.u64(1..8)
        };
        let consume = Consume {
            group: GROUPS[group],
            topic: TOPIC,
            from: StartAt::Earliest,
            ack: if group == AUTO {
                AckMode::Auto
            } else {
                AckMode::Manual
            },
            max_inflight,
            ack_wait: has_ack_wait.then_some(ACK_WAIT),
        };
        self.broker
            .introduce(ConnectionId(id), &format!("consumer {id}"));
        let outcome = self.ask(id, &Request::Consume(consume));
        assert!(
            matches!(outcome, Outcome::Streaming(Response::Consuming)),
            "{outcome:?}"
        );
        self.consumers.push(Consumer {
            id: ConnectionId(id),
            group,
            max_inflight,
            has_ack_wait,
            stints: BTreeMap::new(),
            is_stalled: false,
            is_held: false,
            unwritten: Vec::new(),
        });
    }

    /// Acknowledges some of what one consumer was given; now and then what it was not.
    fn acknowledge(&mut self, at: usize) {
        let partition = self.some_partition();
        let consumer = &self.consumers[at];
        if consumer.group == AUTO {
            return;
        }
        let (id, group) = (consumer.id.0, consumer.group);
        let stint = consumer.stints.get(&partition).cloned();
        let offset = match &stint {
            Some(stint) if !stint.out.is_empty() => stint.out[self.rng.usize(0..stint.out.len())],
            Some(Stint {
                next: Some(next), ..
            }) => *next,
            Some(_) => return,
            None => 0,
        };
        let is_sent = stint
            .as_ref()
            .is_some_and(|stint| stint.next.is_some_and(|next| offset < next));
        let outcome = self.ask(id, &Request::Ack { partition, offset });
        let Outcome::Commit(result) = outcome else {
            panic!("{outcome:?}");
        };
        match result {
            Ok(ticket) => {
                if !is_sent {
                    // Nothing changes, because it is below what is committed.
                    let committed = self.place(group, partition).committed.last().unwrap();
                    assert!(committed.is_some_and(|committed| offset < committed));
                    return;
                }
                let stint = self.consumers[at].stints.get_mut(&partition).unwrap();
                stint.out.retain(|&out| out > offset);
                let below = offset + 1;
                if stint.is_contested || stint.acked.is_none_or(|acked| below > acked) {
                    let acked = stint.acked.unwrap_or(below).max(below);
                    stint.acked = Some(acked);
                    stint.is_contested = false;
                    self.tentative.push((group, partition, acked, ticket));
                }
            }
            // It may have lost the partition in this turn, and is told at its end.
            Err(error) if error.code == ErrorCode::NotAssigned => {}
            Err(error) => {
                assert_eq!(error.code, ErrorCode::BadArgument, "{error}");
                assert!(!is_sent, "{offset} was sent: {error}");
            }
        }
    }

    fn commit(&mut self) {
        let (group, partition) = (self.rng.usize(0..AUTO), self.some_partition());
        let committed = *self.place(group, partition).committed.last().unwrap();
        let start = self.starts[partition as usize];
        let Some(offset) = committed.filter(|offset| *offset >= start) else {
            return;
        };
        let offset = self.rng.i64(start..=offset);
        let target = Target {
            topic: TOPIC,
            partition: Some(partition),
        };
        let request = Request::Commit {
            group: GROUPS[group],
            target,
            offset: OffsetSpec::Offset(offset),
        };
        let Outcome::Commit(Ok(ticket)) = self.ask(0, &request) else {
            panic!("a COMMIT from {start} on is refused");
        };
        for consumer in &mut self.consumers {
            if consumer.group == group
                && let Some(stint) = consumer.stints.get_mut(&partition)
            {
                stint.is_contested = true;
            }
        }
        self.tentative.push((group, partition, offset, ticket));
    }

    fn trim(&mut self) {
        let partition = self.some_partition();
        let (start, end) = (
            self.starts[partition as usize],
            self.ends[partition as usize],
        );
        let offset = self.rng.i64(start..=end);
        // What this turn appended is not to be trimmed before it is there.
        self.flush();
        let target = Target {
            topic: TOPIC,
            partition: Some(partition),
        };
        self.done(&Request::Trim(target, offset));
        self.starts[partition as usize] = offset;
        self.end_turn();
    }

    fn grow(&mut self) {
        if self.ends.len() < 7 {
            self.ends.push(0);
            self.starts.push(0);
            self.done(&Request::Partitions(TOPIC, self.partitions()));
        }
    }

    /// What a consumer had is free.
    fn release(&mut self, consumer: &Consumer) {
        for &partition in consumer.stints.keys() {
            self.released
                .insert((consumer.group, partition), self.turns);
        }
    }

    fn stop(&mut self, at: usize) {
        let consumer = self.consumers.remove(at);
        self.release(&consumer);
        let outcome = self.ask(consumer.id.0, &Request::Stop);
        assert!(matches!(outcome, Outcome::Reply(Response::Done)));
        // What it was sent before the OK still reaches it.
        for (partition, offsets) in consumer.unwritten {
            self.written(partition, &offsets);
        }
    }

    fn act(&mut self) {
        let at = self.some_consumer();
        match (self.rng.u8(0..40), at) {
            (0..10, _) => self.append(),
            (10..13, _) => {
                let group = self.rng.usize(0..GROUPS.len());
                self.join(group);
            }
            (13..28, Some(at)) => self.acknowledge(at),
            (28..31, Some(at)) => self.consumers[at].is_stalled ^= true,
            (31..32, Some(at)) => self.stop(at),
            (32..34, Some(at)) => {
                let consumer = self.consumers.remove(at);
                self.dying.push(consumer);
            }
            (34..35, _) => self.commit(),
            (35..36, _) if self.rng.u8(0..10) == 0 => self.trim(),
            (36..37, _) if self.rng.u8(0..5) == 0 => self.grow(),
            (37.., _) => {
                let ms = self.rng.u64(0..400);
                self.pass(ms);
            }
            _ => {}
        }
    }

    fn pass(&self, ms: u64) {
        let now = self.now();
        self.clock.set(Now {
            wall_ms: now.wall_ms + i64::try_from(ms).unwrap(),
            mono: now.mono + Duration::from_millis(ms),
        });
    }

    // A turn, in the order of the loop.

    fn flush(&mut self) {
        self.broker.flush(&self.clock);
        for (group, partition, offset, ticket) in std::mem::take(&mut self.tentative) {
            assert_eq!(self.broker.commit_error(ticket), None);
            self.place(group, partition).committed.push(Some(offset));
        }
    }

    fn end_turn(&mut self) {
        self.hand_out();
        self.broker.tick(&self.clock);
        self.broker.end_turn();
        self.output();
        for consumer in std::mem::take(&mut self.dying) {
            self.broker.forget(consumer.id);
            self.release(&consumer);
        }
        self.turns += 1;
    }

    fn turn(&mut self) {
        self.flush();
        self.end_turn();
    }

    fn hand_out(&mut self) {
        let mut ready = Vec::new();
        for consumer in &mut self.consumers {
            if !consumer.is_stalled && std::mem::take(&mut consumer.is_held) {
                ready.push(consumer.id);
            }
        }
        for id in ready {
            self.resume(id);
        }
        while let Some(id) = self.broker.next_ready(self.now()) {
            self.resume(id);
        }
    }

    fn output(&mut self) {
        for at in 0..self.consumers.len() {
            if self.consumers[at].is_stalled {
                continue;
            }
            let id = self.consumers[at].id;
            for (partition, offsets) in std::mem::take(&mut self.consumers[at].unwritten) {
                self.written(partition, &offsets);
                let next = offsets.last().unwrap() + 1;
                let now = self.now();
                self.broker.sent(id, partition, next, now);
            }
        }
    }

    /// The process is killed or, under `always`, the power cut; what was appended in this turn was not answered.
    fn kill(&mut self) {
        self.counts.kills += 1;
        let is_flushed = self.rng.bool();
        if is_flushed {
            self.flush();
        }
        let mem = if self.settings.fsync == FsyncPolicy::Always && self.rng.bool() {
            self.mem.crash(&mut |below| self.rng.u64(0..below.max(1)))
        } else {
            self.mem.kill()
        };
        self.consumers.clear();
        self.tentative.clear();
        self.dying.clear();
        self.released.clear();
        self.mem = mem;
        self.broker = Broker::open(self.mem.clone(), self.settings.clone(), &self.clock, || {
            Ok(())
        })
        .unwrap();
        let target = Target {
            topic: TOPIC,
            partition: None,
        };
        let Outcome::Reply(Response::Offsets(lines)) = self.ask(0, &Request::Offsets(target))
        else {
            panic!("OFFSETS is not answered");
        };
        for (partition, earliest, latest) in lines {
            let (start, end) = (
                &mut self.starts[partition as usize],
                &mut self.ends[partition as usize],
            );
            assert!(latest <= *end && (!is_flushed || latest == *end));
            (*start, *end) = (earliest, latest);
            for places in &mut self.places {
                let place = places.entry(partition).or_default();
                place.written.clear();
                place.delivered.retain(|offset| *offset < latest);
            }
        }
        self.check_committed();
    }

    /// The crowd goes home, and one consumer of each group takes what is left.
    fn finish(&mut self) {
        while !self.consumers.is_empty() {
            self.stop(0);
        }
        self.turn();
        for group in 0..GROUPS.len() {
            self.join(group);
        }
        for _ in 0..20_000 {
            self.turn();
            self.check_committed();
            let is_over = (0..GROUPS.len()).all(|group| self.is_complete(group));
            if is_over {
                return;
            }
            for at in 0..self.consumers.len() {
                self.consumers[at].is_stalled = false;
                self.acknowledge(at);
            }
        }
        panic!("not everything is delivered of {:?}", self.ends);
    }
}

fn run(seed: u64) -> Counts {
    println!("SEED={seed}");
    let mut world = World::new(seed);
    for _ in 0..400 {
        for _ in 0..world.rng.u8(0..5) {
            world.act();
        }
        if world.rng.u16(0..150) == 0 {
            world.kill();
        } else {
            world.turn();
        }
    }
    world.finish();
    world.counts
}

#[test]
fn a_crowd_gets_every_record_in_order_and_nobody_what_another_has() {
    if let Ok(seed) = std::env::var("SEED") {
        println!("{:?}", run(seed.parse().expect("SEED is a number")));
        return;
    }
    let first = fastrand::u64(..);
    let mut all = Counts::default();
    for seed in (0..25).chain((0..25).map(|n| first.wrapping_add(n))) {
        let counts = run(seed);
        all.delivered += counts.delivered;
        all.again += counts.again;
        all.moves += counts.moves;
        all.resets += counts.resets;
        all.lost_places += counts.lost_places;
        all.kills += counts.kills;
    }
    println!("{all:?}");
    assert!(
        all.again > 0 && all.moves > 0 && all.resets > 0 && all.lost_places > 0 && all.kills > 0,
        "something never happened: {all:?}"
    );
}
