//! Readers that waited and now get something: long polls and tails.
//!
//! Waking many goes in slices: a turn hands out so much and the rest waits for the next turn. What was encoded for one tail is
//! given as it is to others that stand at the same offset and print in the same form.

#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use crate::api::{ConnectionId, Now, PartitionKey, TailEvent};
use crate::broker::{Broker, Resumed};
use crate::fs::Fs;
use crate::protocol::Codec;

use super::connection::{Connection, Stage};
use super::table::Table;

/// How many answers and events are handed out in one turn at most: to those that wake, and as many to those that a budget stopped or that were
/// held.
const EVENTS_PER_TURN: usize = 512;

/// About how many bytes of them.
const BYTES_PER_TURN: u64 = 512 * 1024;

/// A tail that owes its peer more than so many bytes waits until half of them are sent; `--max-backlog-bytes` may be less.
const TAIL_BACKLOG_BYTES: u64 = 256 * 1024;

/// What can be shared: the partition, the offset where it begins, the form.
type SharedKey = (PartitionKey, i64, u8);

/// Lines that several tails get.
#[derive(Debug)]
struct Lines {
    bytes: Rc<[u8]>,
    end: End,
}

/// Where an event ends.
#[derive(Debug, Clone, Copy)]
struct End {
    partition: u32,
    next_offset: i64,
    /// What its records carried.
    payload_bytes: u64,
}

/// Readers that have something to get.
#[derive(Debug)]
pub(super) struct Tails {
    /// A tail that owes more is held.
    backlog_bytes_max: u64,
    /// Those that a budget stopped.
    pending: VecDeque<ConnectionId>,
    /// What was encoded in this turn.
    shared: HashMap<SharedKey, Lines>,
    encoding: Vec<u8>,
    /// Whether the broker may know of more that are ready.
    is_unfinished: bool,
}

/// What a turn may still hand out.
#[derive(Debug)]
struct Budget {
    events: usize,
    bytes: u64,
}

impl Budget {
    fn of_turn() -> Self {
        Self {
            events: EVENTS_PER_TURN,
            bytes: BYTES_PER_TURN,
        }
    }

    fn is_spent(&self) -> bool {
        self.events == 0 || self.bytes == 0
    }

    fn spend(&mut self, bytes: u64) {
        self.events = self.events.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Whether a connection that was resumed may have more to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Waits,
    HasMore,
}

impl Tails {
    pub(super) fn new(backlog_bytes_max: u64) -> Self {
        Self {
            backlog_bytes_max: backlog_bytes_max.min(TAIL_BACKLOG_BYTES),
            pending: VecDeque::new(),
            shared: HashMap::new(),
            encoding: Vec::new(),
            is_unfinished: false,
        }
    }

    /// Whether a budget stopped the last slice.
    pub(super) fn is_unfinished(&self) -> bool {
        self.is_unfinished || !self.pending.is_empty()
    }

    /// Looks at a tail of which some was sent: at half the limit it goes on.
    pub(super) fn note_sent(&mut self, connection: &mut Connection) {
        if connection.is_held && connection.session.backlog() <= self.backlog_bytes_max / 2 {
            connection.is_held = false;
            self.pending.push_back(connection.session.id());
        }
    }

    /// One turn's slice: hands out what is there.
    pub(super) fn hand_out<F: Fs>(&mut self, broker: &mut Broker<F>, table: &mut Table, now: Now) {
        // Each kind has its own budget: tails that are far behind must not keep a long poll from its deadline.
        let mut budget = Budget::of_turn();
        let behind = self.pending.len();
        self.is_unfinished = true;
        while !budget.is_spent() {
            let Some(id) = broker.next_ready(now) else {
                self.is_unfinished = false;
                break;
            };
            self.resume(id, broker, table, now, &mut budget);
        }
        let mut budget = Budget::of_turn();
        for _ in 0..behind {
            let Some(id) = self.pending.pop_front() else {
                break;
            };
            self.resume(id, broker, table, now, &mut budget);
        }
        // Partition keys and offsets mean the same only within a turn.
        self.shared.clear();
    }

    fn resume<F: Fs>(
        &mut self,
        id: ConnectionId,
        broker: &mut Broker<F>,
        table: &mut Table,
        now: Now,
        budget: &mut Budget,
    ) {
        let Some((slot, connection)) = table.find(id) else {
            return;
        };
        while connection.session.is_waiting() && connection.stage == Stage::Serving {
            if connection.session.is_tailing()
                && connection.session.backlog() > self.backlog_bytes_max
                && !broker.has_notice(id)
            {
                connection.is_held = true;
                break;
            }
            if budget.is_spent() {
                self.pending.push_back(id);
                break;
            }
            if self.give(connection, broker, now, budget) == Then::Waits {
                break;
            }
        }
        table.attend(slot);
    }

    /// Gives one connection one thing.
    fn give<F: Fs>(
        &mut self,
        connection: &mut Connection,
        broker: &mut Broker<F>,
        now: Now,
        budget: &mut Budget,
    ) -> Then {
        let session = &mut connection.session;
        let id = session.id();
        let before = session.backlog();
        let key = session.codec().tail_form().and_then(|form| {
            let (key, _, offset) = broker.tail_position(id)?;
            Some((key, offset, form))
        });
        if let Some(lines) = key.and_then(|key| self.shared.get(&key)) {
            session.outbox().push_shared(Rc::clone(&lines.bytes));
            let End {
                partition,
                next_offset,
                payload_bytes,
            } = lines.end;
            broker.skip_tail(id, partition, next_offset, payload_bytes);
            budget.spend(lines.bytes.len() as u64);
            return Then::HasMore;
        }
        match broker.resume(id, now) {
            Resumed::Waiting => {
                budget.spend(0);
                return Then::Waits;
            }
            Resumed::Reply(response) | Resumed::Ended(response) => {
                session.answered(&response, broker);
            }
            Resumed::Event(event) => {
                self.encoding.clear();
                session.codec().encode_tail(&event, &mut self.encoding);
                let bytes: Rc<[u8]> = Rc::from(self.encoding.as_slice());
                session.outbox().push_shared(Rc::clone(&bytes));
                let commits_itself = broker.commits_sent(id);
                let end = if key.is_some() || commits_itself {
                    end_of(&event)
                } else {
                    None
                };
                if let Some((key, end)) = key.zip(end) {
                    self.shared.insert(key, Lines { bytes, end });
                } else if let Some(end) = end {
                    session.owe_receipt(end.partition, end.next_offset);
                }
            }
        }
        budget.spend(session.backlog() - before);
        Then::HasMore
    }
}

/// Where an event ends, if it is about a piece of a partition.
fn end_of(event: &TailEvent) -> Option<End> {
    match event {
        TailEvent::Records { partition, records } => Some(End {
            partition: *partition,
            next_offset: records
                .iter()
                .last()
                .map_or(0, |last| last.offset.saturating_add(1)),
            payload_bytes: records.payload_bytes() as u64,
        }),
        TailEvent::Corrupt {
            partition, next, ..
        } => Some(End {
            partition: *partition,
            next_offset: *next,
            payload_bytes: 0,
        }),
        TailEvent::Assigned(_) | TailEvent::Reset { .. } | TailEvent::Inflight(_) => None,
    }
}
