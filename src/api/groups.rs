//! Consumer groups, and what is pushed to those who listen.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::record::Records;

/// The largest `max_inflight` of a consumer: what it is sent and does not acknowledge is remembered.
pub const INFLIGHT_MAX: u64 = 10_000_000;

/// Where a consumer begins in a partition of which its group has committed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartAt {
    /// At the log start.
    #[default]
    Earliest,
    /// At the high watermark.
    Latest,
}

/// Who says that a record is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AckMode {
    /// The consumer, with ACK: at least once.
    #[default]
    Manual,
    /// The broker, of everything that was written to the socket: at most once.
    Auto,
}

/// A CONSUME.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Consume<'a> {
    /// The group's name.
    pub group: &'a [u8],
    /// The topic's name.
    pub topic: &'a [u8],
    /// Where to begin where nothing is committed.
    pub from: StartAt,
    /// Who acknowledges.
    pub ack: AckMode,
    /// At most so many records without an acknowledgement, 1 to [`INFLIGHT_MAX`].
    pub max_inflight: u64,
    /// A consumer that has records and acknowledges none for so long loses its place.
    pub ack_wait: Option<Duration>,
}

/// The good answer to an ACK or COMMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitAnswer {
    /// It is committed.
    Done,
    /// It is committed, and the next ACK of the partition's consumer wins over it.
    Held,
}

/// A line of COMMITTED.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedInfo {
    /// The partition's number.
    pub partition: u32,
    /// The committed offset.
    pub committed: Option<i64>,
    /// The high watermark.
    pub latest: i64,
    /// Offsets from the committed one (the earliest where there is none) to the latest.
    pub lag: u64,
    /// Who has the partition, as its connection is called.
    pub owner: Option<Box<str>>,
}

/// A line of GROUPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupInfo {
    /// The group's name.
    pub group: Box<[u8]>,
    /// Connections that consume in it.
    pub members: u64,
    /// Topics in which it has consumers or committed offsets.
    pub topics: u64,
}

/// What is pushed to a tail or a consumer.
#[derive(Debug)]
pub enum TailEvent {
    /// Records, in order.
    Records {
        /// The partition's number.
        partition: u32,
        /// At least one.
        records: Records,
    },
    /// Damage: nothing readable from `offset` up to `next`; the tail goes on there.
    Corrupt {
        /// The partition's number.
        partition: u32,
        /// The first offset lost.
        offset: i64,
        /// The first offset after the damage.
        next: i64,
    },
    /// The partitions that a consumer has from here on, ascending.
    Assigned(Vec<u32>),
    /// A consumer's place in a partition is not there any more; it goes on at another.
    Reset {
        /// The partition's number.
        partition: u32,
        /// Where it would have gone on.
        from: i64,
        /// Where it goes on.
        to: i64,
    },
    /// So many records are out without an acknowledgement: the rest waits for one.
    Inflight(u64),
}
