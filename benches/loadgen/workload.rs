//! A workload on a broker, and the same on the floor.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::floor::{Floor, Task};
use super::options::{Mode, Options, Verb};
use super::recorder::Recorded;
use super::requests::{Block, Shape, Values};
use super::roundtrip::ReplyEnd;
use super::{TOPIC, fetch, pipeline, roundtrip, tail};
use crate::support::broker::{Broker, Client};
use crate::support::cleanup::TempDir;
use crate::support::process::cpu_time;
use crate::support::{Result, machine, units};

/// A file of the floor is no longer than this: it must stay in memory.
const FLOOR_FILE_BYTES_MAX: u64 = 1 << 30;
/// Bytes that layout 2 adds to a value.
const RECORD_OVERHEAD_BYTES: u64 = 36;

/// What is done, to whomever.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    /// What is measured.
    pub(crate) mode: Mode,
    /// The requests.
    pub(crate) shape: Shape,
    /// Records of a run.
    pub(crate) records: u64,
    /// Connections.
    pub(crate) connections: u32,
    /// Requests in flight on each.
    pub(crate) depth: u64,
    /// The broker's policy.
    pub(crate) fsync: String,
    /// Records a second, in an open loop.
    pub(crate) rate: Option<f64>,
    /// Bytes of a FETCH at most.
    pub(crate) fetch_bytes: usize,
    /// Whether fetched records are decoded.
    pub(crate) decode: bool,
    /// Whether the topic may be there before, and stays.
    pub(crate) keep: bool,
}

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Whose run, and which: the row's name.
    pub(crate) name: String,
    /// Counts and latencies.
    pub(crate) recorded: Recorded,
    /// Bytes of values.
    pub(crate) value_bytes: u64,
    /// Bytes that went over the socket in the measured direction.
    pub(crate) wire_bytes: f64,
    /// Processor time of the server; `None` where it is not ours.
    pub(crate) cpu: Option<Duration>,
}

impl Outcome {
    /// Records a second.
    pub(crate) fn records_per_s(&self) -> f64 {
        units::float(self.recorded.records) / self.recorded.elapsed.as_secs_f64().max(1e-9)
    }

    /// Microseconds of the server's processor time for a record.
    pub(crate) fn cpu_us_per_record(&self) -> Option<f64> {
        Some(self.cpu?.as_secs_f64() * 1e6 / units::float(self.recorded.records.max(1)))
    }

    /// Nanoseconds of the server's processor time for a byte on the socket.
    pub(crate) fn cpu_ns_per_byte(&self) -> Option<f64> {
        Some(self.cpu?.as_secs_f64() * 1e9 / self.wire_bytes.max(1.0))
    }

    /// A latency in microseconds; quantile 1 is the longest.
    pub(crate) fn latency_us(&self, quantile: f64) -> f64 {
        units::float(self.recorded.latencies.value_at_quantile(quantile)) / 1e3
    }
}

impl Workload {
    /// What the options say.
    pub(crate) fn from_options(options: &Options, mode: Mode) -> Self {
        Self {
            mode,
            shape: Shape {
                verb: options.verb,
                size: options.size,
                batch: options.batch,
                partitions: options.partitions,
            },
            records: options.records(),
            connections: options.connections,
            depth: options.depth,
            fsync: options.fsync.clone(),
            rate: options.rate,
            fetch_bytes: options.fetch_bytes,
            decode: options.decode,
            keep: options.keep,
        }
    }

    /// One line: the parameters.
    pub(crate) fn describe(&self) -> String {
        let Shape {
            verb,
            size,
            batch,
            partitions,
        } = self.shape;
        let verb = match verb {
            Verb::Batch => format!("BATCH of {batch}"),
            Verb::Put | Verb::Produce => verb.word().to_owned(),
        };
        let Self {
            mode,
            records,
            connections,
            depth,
            fsync,
            rate,
            fetch_bytes,
            ..
        } = self;
        let what = match mode {
            Mode::Produce => format!("{verb}, {depth} requests in flight"),
            Mode::Fetch if self.decode => format!("FETCH of {fetch_bytes} bytes, decoded"),
            Mode::Fetch => format!("FETCH of {fetch_bytes} bytes"),
            Mode::Both => {
                format!("{verb}, {depth} requests in flight, and FETCH of {fetch_bytes} bytes")
            }
            Mode::Latency => format!("{verb}, one at a time"),
            Mode::Tail => "PUT to TAIL".to_owned(),
        };
        let rate = rate.map_or_else(String::new, |rate| {
            format!(", open loop of {} records/s", units::grouped(rate))
        });
        format!(
            "{what}{rate}; {} records of {size} bytes, {connections} connection{}, {partitions} partition{}, fsync {fsync}",
            units::grouped(units::float(*records)),
            if *connections == 1 { "" } else { "s" },
            if partitions == 1 { "" } else { "s" },
        )
    }

    /// Runs it on a broker that is started for it, in a directory inside `parent`.
    ///
    /// # Errors
    /// What went wrong, as a sentence.
    pub(crate) fn on_own_broker(&self, parent: Option<&Path>) -> Result<Vec<Outcome>> {
        let directory = TempDir::new(parent)?;
        self.touch_memory(directory.path())?;
        let broker = Broker::start(&directory.path().join("data"), &self.fsync, &[])?;
        self.on_broker(broker.addr, Some(broker.pid()))
    }

    /// Runs it on a broker that runs; its topic must not exist, and is deleted afterwards, unless it is to be kept.
    ///
    /// # Errors
    /// What went wrong, as a sentence.
    pub(crate) fn on_broker(&self, addr: SocketAddr, pid: Option<u32>) -> Result<Vec<Outcome>> {
        let mut client = Client::connect(addr)?;
        let create = format!("CREATE {TOPIC} partitions={}", self.shape.partitions);
        if let Err(error) = client.call(create) {
            let is_there = error.to_string().contains("ERR TOPIC_EXISTS");
            if !(self.keep && is_there) {
                return Err(error);
            }
        }
        let outcomes = match self.mode {
            Mode::Produce => vec![self.produce("broker", addr, pid)?],
            Mode::Fetch => {
                if !self.keep {
                    self.fill(addr)?;
                }
                vec![self.fetch("broker", addr, pid, false)?]
            }
            Mode::Both => self.both(addr, pid)?,
            Mode::Latency if self.connections > 1 => {
                vec![
                    Self {
                        depth: 1,
                        ..self.clone()
                    }
                    .produce("broker", addr, pid)?,
                ]
            }
            Mode::Latency => vec![self.one_at_a_time("broker", addr, pid, ReplyEnd::Line)?],
            Mode::Tail => {
                let rate = self.rate.unwrap_or(1_000.0);
                let before = pid.map(cpu_time);
                let recorded = tail::run(addr, self.records, self.shape.size, rate)?;
                vec![self.outcome("broker", recorded, pid, before, self.wire_bytes())]
            }
        };
        if !self.keep {
            client.call(format!("DELETE {TOPIC}"))?;
        }
        Ok(outcomes)
    }

    /// Runs the same on the floor; nothing for what has none.
    ///
    /// # Errors
    /// What went wrong, as a sentence.
    pub(crate) fn on_floor(&self, parent: Option<&Path>) -> Result<Vec<Outcome>> {
        let directory = TempDir::new(parent)?;
        self.touch_memory(directory.path())?;
        let file = directory.path().join("floor");
        // One connection and one partition: a floor has nothing to choose.
        let shape = Shape {
            partitions: 1,
            ..self.shape
        };
        let one = Self {
            shape,
            connections: 1,
            ..self.clone()
        };
        let request = shape.request(0, &mut Values::new(0));
        match self.mode {
            Mode::Produce | Mode::Both => {
                let reply = match shape.verb {
                    Verb::Put | Verb::Produce => "OK 0 1234567\n".to_owned(),
                    Verb::Batch => "OK 0 1234567 1234666\n".to_owned(),
                };
                let sync = self.fsync == "always";
                let request_bytes = request.len() as u64;
                let floor = Floor::start(&Task::Produce {
                    file,
                    request_bytes,
                    reply,
                    sync,
                })?;
                Ok(vec![one.produce("floor", floor.addr, Some(floor.pid()))?])
            }
            Mode::Fetch => {
                let record_bytes = shape.size as u64 + RECORD_OVERHEAD_BYTES;
                let chunk_bytes = (self.fetch_bytes as u64 / record_bytes).max(1) * record_bytes;
                let file_bytes = (self.records * record_bytes)
                    .clamp(chunk_bytes, FLOOR_FILE_BYTES_MAX.max(chunk_bytes));
                let task = Task::Fetch {
                    file,
                    file_bytes,
                    chunk_bytes,
                    record_bytes,
                };
                let floor = Floor::start(&task)?;
                Ok(vec![one.fetch(
                    "floor",
                    floor.addr,
                    Some(floor.pid()),
                    false,
                )?])
            }
            Mode::Latency if self.connections == 1 => {
                let floor = Floor::start(&Task::Echo)?;
                Ok(vec![one.one_at_a_time(
                    "echo",
                    floor.addr,
                    Some(floor.pid()),
                    ReplyEnd::SameLength,
                )?])
            }
            Mode::Latency | Mode::Tail => Ok(Vec::new()),
        }
    }

    /// Before a run that fills the page cache.
    fn touch_memory(&self, directory: &Path) -> Result<()> {
        match self.mode {
            Mode::Produce | Mode::Fetch | Mode::Both => {
                let record_bytes = self.shape.size as u64 + RECORD_OVERHEAD_BYTES;
                machine::touch_memory(directory, self.records * record_bytes)
            }
            Mode::Latency | Mode::Tail => Ok(()),
        }
    }

    fn produce(&self, who: &str, addr: SocketAddr, pid: Option<u32>) -> Result<Outcome> {
        let block = Rc::new(Block::new(&self.shape, 1));
        let records_each = self.shape.records_per_request();
        let requests = self.records.div_ceil(records_each);
        let wire_bytes = block.request_bytes() * units::float(requests);
        let plan = pipeline::Plan {
            name: who,
            addr,
            block,
            requests,
            records_each,
            connections: self.connections,
            depth: self.depth,
            rate: self.rate.map(|rate| rate / units::float(records_each)),
        };
        let before = pid.map(cpu_time);
        let recorded = pipeline::run(&plan)?;
        Ok(self.outcome(who, recorded, pid, before, wire_bytes))
    }

    /// Writes the records that are then fetched.
    fn fill(&self, addr: SocketAddr) -> Result<()> {
        let shape = Shape {
            verb: Verb::Batch,
            batch: 100,
            ..self.shape
        };
        let depth = 64;
        Self {
            shape,
            depth,
            rate: None,
            connections: 1,
            ..self.clone()
        }
        .produce("fill", addr, None)?;
        Ok(())
    }

    fn fetch(
        &self,
        who: &str,
        addr: SocketAddr,
        pid: Option<u32>,
        follow: bool,
    ) -> Result<Outcome> {
        let plan = fetch::Plan {
            name: who,
            addr,
            // The first time over the records brings them into memory, if they were not there.
            records: if follow || self.keep {
                self.records
            } else {
                self.records * 2
            },
            connections: self.connections,
            partitions: self.shape.partitions,
            fetch_bytes: self.fetch_bytes,
            follow,
            decode: self.decode && who != "floor",
        };
        let before = pid.map(cpu_time);
        let fetched = fetch::run(&plan)?;
        Ok(self.outcome(
            who,
            fetched.recorded,
            pid,
            before,
            units::float(fetched.bytes),
        ))
    }

    /// Writers in one thread, readers that follow them in another. The processor time is the broker's for both, and stands
    /// with the writers.
    fn both(&self, addr: SocketAddr, pid: Option<u32>) -> Result<Vec<Outcome>> {
        let reader = Self {
            connections: self.shape.partitions,
            ..self.clone()
        };
        let reading = std::thread::spawn(move || {
            reader
                .fetch("broker, fetch", addr, None, true)
                .map_err(|e| e.to_string())
        });
        let produced = self.produce("broker, produce", addr, pid)?;
        let fetched = reading.join().map_err(|_| "the reader panicked")??;
        Ok(vec![produced, fetched])
    }

    fn one_at_a_time(
        &self,
        who: &str,
        addr: SocketAddr,
        pid: Option<u32>,
        end: ReplyEnd,
    ) -> Result<Outcome> {
        let request = self.shape.request(0, &mut Values::new(1));
        let records_each = self.shape.records_per_request();
        let times = self.records.div_ceil(records_each);
        let before = pid.map(cpu_time);
        let recorded = roundtrip::run(who, addr, &request, end, times, records_each)?;
        Ok(self.outcome(
            who,
            recorded,
            pid,
            before,
            units::float(request.len() as u64 * times),
        ))
    }

    fn wire_bytes(&self) -> f64 {
        units::float(self.records * self.shape.size as u64)
    }

    fn outcome(
        &self,
        who: &str,
        recorded: Recorded,
        pid: Option<u32>,
        before: Option<Duration>,
        wire_bytes: f64,
    ) -> Outcome {
        let value_bytes = recorded.records * self.shape.size as u64;
        let cpu = pid
            .map(cpu_time)
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before));
        Outcome {
            name: who.to_owned(),
            recorded,
            value_bytes,
            wire_bytes,
            cpu,
        }
    }
}
