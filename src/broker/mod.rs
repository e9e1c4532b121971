//! The broker: topics and partitions, the durability point of a turn, readers that wait.
//!
//! It is handed requests and the time, and hands back responses; it knows neither protocols nor sockets.

#![forbid(unsafe_code)]

pub mod configs;
mod partitioner;

use std::path::PathBuf;

use crate::api::{ApiError, ConnectionId, Now, Payload, Request, Response, Run, TailEvent, Target, Verdict};
use crate::clock::Clock;
use crate::fs::Fs;
use crate::storage::FsyncPolicy;

/// What a broker is started with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The data directory; created where it is missing.
    pub data_dir: PathBuf,
    /// When appends are durable.
    pub fsync: FsyncPolicy,
    /// `--config name=value`, checked when the broker opens.
    pub configs: Vec<(String, String)>,
    /// `--max-topics`.
    pub max_topics: u32,
    /// `--max-partitions`, all topics together.
    pub max_partitions: u32,
    /// `--max-fetch-bytes`: the most that one READ or FETCH gives.
    pub max_fetch_bytes: u64,
    /// `--max-batch-bytes`.
    pub max_batch_bytes: u64,
}

/// What became of a request that was not an append.
#[derive(Debug)]
pub enum Outcome {
    /// The answer.
    Reply(Response),
    /// The answer comes later through [`Broker::next_ready`]: the connection decodes nothing until then.
    Parked,
    /// A tail has begun: this is its answer; events come through [`Broker::next_ready`].
    Streaming(Response),
}

/// What a connection that was ready gets.
#[derive(Debug)]
pub enum Resumed {
    /// The answer to the parked request; the connection decodes on.
    Reply(Response),
    /// A tail's news; more may be there: ask again while the peer's backlog has room.
    Event(TailEvent),
    /// The tail ended with this answer (topic deleted, overtaken by retention).
    Ended(Response),
    /// Nothing now; the connection is heard of again when something is there.
    Waiting,
}

/// The broker.
#[derive(Debug)]
pub struct Broker<F: Fs> { fs: F }

impl<F: Fs> Broker<F> {
    /// Locks the data directory and opens every partition in it. `bind` is called once the lock is held and before anything is changed: where it
    /// fails (the port is in use), the start changes nothing.
    ///
    /// # Errors
    /// One line for the operator that says what to do.
    pub fn open(fs: F, settings: Settings, clock: &dyn Clock, bind: impl FnOnce() -> Result<(), String>) -> Result<Self, String> { todo!() }
    /// Appends; the fate of the run is known after [`Broker::flush`]. A run of 1 (or a batch's), for the caller to join to the one before.
    ///
    /// # Errors
    /// Refused, nothing stored.
    pub fn append(&mut self, target: Target<'_>, payload: &Payload<'_>, now: Now) -> Result<Run, ApiError> { todo!() }
    /// Any other request. The caller has no undecided append of this connection.
    pub fn handle(&mut self, connection: ConnectionId, request: &Request<'_>, now: Now) -> Outcome { todo!() }
    /// The durability point: writes every partition that was appended to, syncs as the policy says, publishes.
    pub fn flush(&mut self, clock: &dyn Clock) { todo!() }
    /// What the flush decided for the run; asked between the flush and [`Broker::end_turn`].
    pub fn verdict(&self, run: &Run) -> &Verdict { todo!() }
    /// Forgets the verdicts of this turn.
    pub fn end_turn(&mut self) { todo!() }
    /// A connection whose parked request or tail can go on: records came, its time is over, its topic was deleted. A connection is named once
    /// for each such change, in slices: the caller goes on with the next turn where a budget ends.
    pub fn next_ready(&mut self, now: Now) -> Option<ConnectionId> { todo!() }
    /// Goes on with the parked request or tail of a connection.
    pub fn resume(&mut self, connection: ConnectionId, now: Now) -> Resumed { todo!() }
    /// The next partition, number and offset that the tail of a connection would read, for sharing what was encoded already.
    pub fn tail_position(&self, connection: ConnectionId) -> Option<(crate::api::PartitionKey, u32, i64)> { todo!() }
    /// Moves a tail past what it was given from a shared encoding; `payload_bytes` is what its records carried, for STATS (0 for damage).
    pub fn skip_tail(&mut self, connection: ConnectionId, partition: u32, next_offset: i64, payload_bytes: u64) { todo!() }
    /// Ends whatever the connection waits for.
    pub fn forget(&mut self, connection: ConnectionId) { todo!() }
    /// When [`Broker::next_ready`], [`Broker::tick`] or a due sync wants to be called at the latest, by the monotonic clock; `None` for no hurry.
    pub fn next_deadline(&self) -> Option<std::time::Duration> { todo!() }
    /// One bounded slice of background work: syncs that are due, checkpoints, sealed segments to sync, files to shorten and unlink.
    pub fn tick(&mut self, clock: &dyn Clock) { todo!() }
    /// Syncs and closes every partition, then writes clean-shutdown.
    ///
    /// # Errors
    /// One line; no marker was written then, and the process exits with 1.
    pub fn close(&mut self, clock: &dyn Clock) -> Result<(), String> { todo!() }
    /// Tells how many connections there are now, for STATS.
    pub fn set_connections(&mut self, connections: u64) { todo!() }
    /// Counts errors that were answered without asking the broker (an unknown verb, a line too long), for STATS.
    pub fn add_errors(&mut self, errors: u64) { todo!() }
    /// What it was started with.
    pub fn settings(&self) -> &Settings { todo!() }
}
