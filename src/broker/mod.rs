//! The broker: topics and partitions, the durability point of a turn, readers that wait.
//!
//! It is handed requests and the time, and hands back responses; it knows neither protocols nor sockets. A turn of the
//! event loop uses it in this order:
//!
//! 1. [`Broker::append`] for each append, [`Broker::handle`] for anything else that was read;
//! 2. [`Broker::flush`], in every turn: the durability point, shared by all appends of the turn;
//! 3. [`Broker::verdict`] for each run of appends and [`Broker::commit_error`] for each commit, then [`Broker::end_turn`];
//! 4. [`Broker::next_ready`] and [`Broker::resume`] for readers that waited, [`Broker::tick`] for background work;
//! 5. [`Broker::sent`] for what a consumer without acknowledgements was sent;
//! 6. sleep until [`Broker::next_deadline`] at the latest.
//!
//! No OK overtakes its fsync because 2 comes before 3; no reader sees a record before that because a log shows only what
//! a flush published.

#![forbid(unsafe_code)]

mod admin;
mod appends;
mod cleaning;
mod commits;
pub mod configs;
mod consumers;
mod delayed_fetch;
mod deletions;
mod errors;
mod groups;
mod housekeeping;
mod lifecycle;
mod partition;
mod partitioner;
mod reads;
mod route;
mod space;
mod start;
mod stats;
mod sync_rounds;
mod sync_together;
mod topics;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use crate::api::{
    ApiError, ConnectionId, ErrorCode, Now, PartitionKey, Request, Response, TailEvent,
};
use crate::fs::Fs;
use crate::storage::data_dir::{DataDir, Deletion};
use crate::storage::{FsyncPolicy, LogContext};

use cleaning::Cleaner;
use configs::Overrides;
use delayed_fetch::DelayedFetches;
use deletions::{Deletions, Removal};
use groups::{Groups, Leave};
use housekeeping::Retention;
use partition::Partitions;
use route::LastTarget;
use space::Space;
use stats::Stats;
use sync_rounds::SyncRounds;
use sync_together::TogetherSync;
use topics::Topics;

pub use groups::Ticket;

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
    /// `--min-free-bytes`: appends are refused while the disk has less; 0 for no such limit.
    pub min_free_bytes: u64,
    /// `--retention-total-bytes`, all topics together; 0 for no limit.
    pub retention_total_bytes: u64,
}

/// What became of a request that was not an append.
#[derive(Debug)]
pub enum Outcome {
    /// The answer.
    Reply(Response),
    /// The answer comes later through [`Broker::next_ready`]: the connection decodes nothing until then.
    Parked,
    /// A tail or a CONSUME has begun: this is its answer; events come through [`Broker::next_ready`].
    Streaming(Response),
    /// An ACK or COMMIT: the flush decides, and [`Broker::commit_error`] says so.
    Commit(Result<Ticket, ApiError>),
}

/// What a connection that was ready gets.
#[derive(Debug)]
pub enum Resumed {
    /// The answer to the parked request; the connection decodes on.
    Reply(Response),
    /// A tail's news; more may be there: ask again while the peer's backlog has room.
    Event(TailEvent),
    /// The tail or CONSUME ended with this answer (topic deleted, overtaken by retention, its place lost).
    Ended(Response),
    /// Nothing now; the connection is heard of again when something is there.
    Waiting,
}

/// The broker.
#[derive(Debug)]
pub struct Broker<F: Fs> {
    fs: F,
    settings: Settings,
    data_dir: DataDir<F>,
    context: Rc<LogContext<F>>,
    /// What `--config` said.
    defaults: Overrides,
    topics: Topics,
    /// What a topic's end makes void.
    last: Option<LastTarget>,
    partitions: Partitions<F>,
    /// The number of this turn of the loop.
    turn: u64,
    /// When a client was last heard of, by the monotonic clock.
    last_heard: Duration,
    /// Partitions that this turn tried to append to, once each.
    dirty: Vec<PartitionKey>,
    /// When partitions with unsynced records must be synced.
    syncs: BTreeSet<(Duration, PartitionKey)>,
    sync_rounds: SyncRounds,
    together: TogetherSync,
    /// What the first failed fsync was told with; SYNC answers it from then on.
    failed_sync: Option<ApiError>,
    /// Partitions whose durable end moved since the last checkpoint, once each.
    moved: Vec<PartitionKey>,
    /// When recovery-point is replaced next, where something moved.
    checkpoint_due: Option<Duration>,
    /// Partitions with sealed segments that are not synced yet, once each.
    background: VecDeque<PartitionKey>,
    delayed: DelayedFetches,
    groups: Groups,
    deletions: Deletions<F>,
    retention: Retention,
    cleaner: Cleaner<F>,
    space: Space,
    /// Deleted topics whose files are being removed.
    deleting: VecDeque<Removal<F>>,
    /// Deleted topics of which files are left that could not be removed.
    unfinished_deletions: Vec<Deletion>,
    /// Topics of which a failed creation may have left files.
    unfinished_creations: Vec<String>,
    stats: Stats,
}

impl<F: Fs> Broker<F> {
    /// Any request but an append. The caller has no undecided append of this connection.
    pub fn handle(&mut self, connection: ConnectionId, request: &Request<'_>, now: Now) -> Outcome {
        let reply = Outcome::Reply;
        self.last_heard = now.mono;
        let outcome = match request {
            Request::Append(..) => Err(ApiError::new(
                ErrorCode::BadArgument,
                "an append is answered by the flush of its turn, not here",
            )),
            Request::Read {
                target,
                from,
                max_records,
                wait,
                crc,
            } => self.read(
                connection,
                *target,
                *from,
                (*max_records, *crc),
                (*wait, now),
            ),
            Request::Fetch {
                target,
                from,
                max_bytes,
                min_bytes,
                wait,
            } => self.fetch(
                connection,
                *target,
                *from,
                (*max_bytes, *min_bytes),
                (*wait, now),
            ),
            Request::Tail(from) => self.tail(connection, *from, now),
            Request::Stop => {
                self.stop(connection);
                Ok(reply(Response::Done))
            }
            Request::Consume(_)
            | Request::Ack { .. }
            | Request::Commit { .. }
            | Request::Committed { .. }
            | Request::Groups => self.handle_group(connection, request, now),
            Request::Offsets(target) => self.offsets(*target).map(reply),
            Request::At(target, time) => self.at(*target, *time, now).map(reply),
            Request::Explain(target, from) => self.explain(*target, *from, now).map(reply),
            Request::Create {
                topic,
                partitions,
                configs,
            } => self
                .create_topic(topic, *partitions, configs, now)
                .map(|()| reply(Response::Done)),
            Request::Delete(topic) => self.delete_topic(topic).map(|()| reply(Response::Done)),
            Request::Alter { topic, configs } => self.alter_topic(topic, configs, now).map(reply),
            Request::Partitions(topic, count) => self.add_partitions(topic, *count, now).map(reply),
            Request::Trim(target, offset) => self.trim(*target, *offset).map(reply),
            Request::Topics => Ok(reply(self.list_topics())),
            Request::Describe(topic) => self.describe_topic(topic).map(reply),
            Request::Segments(target) => self.segments(*target).map(reply),
            Request::Sync => {
                self.park_sync(connection);
                Ok(Outcome::Parked)
            }
            Request::Stats => Ok(reply(self.stats(now))),
        };
        outcome.unwrap_or_else(|error| reply(self.refusal(error)))
    }

    /// A request about consumer groups.
    fn handle_group(
        &mut self,
        connection: ConnectionId,
        request: &Request<'_>,
        now: Now,
    ) -> Result<Outcome, ApiError> {
        match *request {
            Request::Consume(ref consume) => self.consume(connection, consume, now),
            Request::Ack { partition, offset } => {
                let ticket = self.acknowledge(connection, partition, offset, now);
                Ok(Outcome::Commit(self.counted(ticket)))
            }
            Request::Commit {
                group,
                target,
                offset,
            } => {
                let ticket = self.commit(group, target, offset, now);
                Ok(Outcome::Commit(self.counted(ticket)))
            }
            Request::Committed { group, target } => {
                self.committed(group, target).map(Outcome::Reply)
            }
            _ => Ok(Outcome::Reply(Response::Groups(self.groups.list()))),
        }
    }

    /// An error as a response, counted.
    fn refusal(&mut self, error: ApiError) -> Response {
        self.stats.errors += 1;
        Response::Error(error)
    }

    /// A result whose error is counted.
    fn counted<T>(&mut self, result: Result<T, ApiError>) -> Result<T, ApiError> {
        self.stats.errors += u64::from(result.is_err());
        result
    }

    /// Topic and number of a partition, for messages.
    fn place(&self, key: PartitionKey) -> (&str, u32) {
        let partition = self.partitions.get(key);
        let topic = partition.and_then(|partition| self.topics.get(partition.topic));
        let name = topic.map_or("a deleted topic", |topic| &topic.name);
        (name, partition.map_or(0, |partition| partition.number))
    }

    /// A connection whose parked request or tail can go on: records came, its time is over, its topic was deleted. A connection is named once
    /// for each such change, in slices: the caller goes on with the next turn where a budget ends.
    pub fn next_ready(&mut self, now: Now) -> Option<ConnectionId> {
        let connection = self.delayed.next_ready(now.mono)?;
        if self.groups.has_members() {
            self.check_ack_wait(connection, now);
        }
        Some(connection)
    }

    /// The connection is gone: ends whatever it waits for.
    pub fn forget(&mut self, connection: ConnectionId) {
        self.delayed.remove(connection);
        self.leave(connection, Leave::Gone);
        self.groups.forget_name(connection);
    }

    /// The connection wants no more of what it waits for; what it was sent is on its way.
    pub fn stop(&mut self, connection: ConnectionId) {
        self.delayed.remove(connection);
        self.leave(connection, Leave::Stopped);
    }

    /// When [`Broker::flush`], [`Broker::next_ready`] or [`Broker::tick`] wants to be called at the latest, by the monotonic clock: zero for
    /// at once, `None` for no hurry.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let is_urgent = !self.dirty.is_empty()
            || self.sync_rounds.is_wanted()
            || !self.background.is_empty()
            || self.is_delete_due()
            || self.groups.is_urgent();
        [
            is_urgent.then_some(Duration::ZERO),
            self.delayed.next_deadline(),
            self.syncs.first().map(|&(due, _)| due),
            self.checkpoint_due,
            self.deletions.next_deadline(),
            Some(self.retention.next_deadline()),
            self.cleaner.next_deadline(),
            self.groups.forgotten_due(),
            self.groups.expiry_due(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Tells how many connections there are now, for STATS.
    pub fn set_connections(&mut self, connections: u64) {
        self.stats.connections = connections;
    }

    /// Counts errors that were answered without asking the broker (an unknown verb, a line too long), for STATS.
    pub fn add_errors(&mut self, errors: u64) {
        self.stats.errors += errors;
    }

    /// What it was started with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}
