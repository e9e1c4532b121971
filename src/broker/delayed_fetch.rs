//! Readers that wait: parked READ, FETCH and SYNC, and tails.
//!
//! Waiting costs nothing: a deadline stands in an ordered set, and a partition whose high watermark moves is put on a queue
//! with a cursor, from which its waiters are named one at a time, over as many turns of the loop as that takes. Nobody
//! else is looked at. What a waiter then finds is not decided here: this module knows no log.

#![forbid(unsafe_code)]

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use crate::api::{ApiError, ConnectionId, CrcMode, PartitionKey};

/// A place in a partition that a reader goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) key: PartitionKey,
    /// The partition's number in its topic.
    pub(super) number: u32,
    pub(super) offset: i64,
}

/// What a connection waits for.
#[derive(Debug)]
pub(super) enum Wait {
    /// One answer.
    Parked(Parked),
    /// TAIL, until it is stopped.
    Tail(Tail),
    /// CONSUME, until it is stopped: these partitions, for now.
    Consume(Vec<PartitionKey>),
}

/// A request whose one answer comes later.
#[derive(Debug, Clone, Copy)]
pub(super) enum Parked {
    /// READ, until there is a record.
    Read {
        at: Position,
        max_records: u64,
        crc: CrcMode,
    },
    /// FETCH, until there are so many bytes.
    Fetch {
        at: Position,
        max_bytes: u64,
        min_bytes: u64,
    },
    /// SYNC, until there were more flushes than these.
    Sync { flushes: u64 },
}

/// A tail: where it is in each partition, and whose turn it is.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) positions: Vec<Position>,
    /// The place in `positions` that is looked at first.
    pub(super) turn: usize,
    /// Whether it follows every partition of its topic, those to come included.
    pub(super) is_of_all: bool,
}

impl Tail {
    /// The first partition, from the one whose turn it is on, of which `has_more` is true.
    pub(super) fn next(&self, has_more: impl Fn(&Position) -> bool) -> Option<(usize, Position)> {
        let places = (self.turn..self.positions.len()).chain(0..self.turn);
        places
            .filter_map(|place| Some((place, *self.positions.get(place)?)))
            .find(|(_, position)| has_more(position))
    }

    /// Goes on in one partition, and gives the turn to the one behind it.
    pub(super) fn advance(&mut self, place: usize, offset: i64) {
        if let Some(position) = self.positions.get_mut(place) {
            position.offset = offset;
        }
        self.turn = if place + 1 < self.positions.len() {
            place + 1
        } else {
            0
        };
    }
}

/// A connection that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) wait: Wait,
    /// When it gets what there is, by the monotonic clock.
    pub(super) deadline: Option<Duration>,
    /// Why it must end, whatever it waits for.
    pub(super) ended: Option<ApiError>,
    /// Whether it stands in `ready`.
    is_ready: bool,
}

impl Waiter {
    fn keys(&self) -> Vec<PartitionKey> {
        match &self.wait {
            Wait::Parked(Parked::Read { at, .. } | Parked::Fetch { at, .. }) => vec![at.key],
            Wait::Parked(Parked::Sync { .. }) => Vec::new(),
            Wait::Tail(tail) => tail.positions.iter().map(|position| position.key).collect(),
            Wait::Consume(keys) => keys.clone(),
        }
    }
}

/// All connections that wait.
#[derive(Debug, Default)]
pub(super) struct DelayedFetches {
    waiters: HashMap<ConnectionId, Waiter>,
    by_partition: BTreeSet<(PartitionKey, ConnectionId)>,
    deadlines: BTreeSet<(Duration, ConnectionId)>,
    /// Connections that can go on, each once.
    ready: VecDeque<ConnectionId>,
    /// Partitions whose waiters can go on, with the waiter last named. At most two of a partition: one begun, one not.
    woken: VecDeque<(PartitionKey, Option<ConnectionId>)>,
}

impl DelayedFetches {
    /// Lets a connection wait; whatever it waited for before is forgotten.
    pub(super) fn park(
        &mut self,
        connection: ConnectionId,
        wait: Wait,
        deadline: Option<Duration>,
    ) {
        self.remove(connection);
        let waiter = Waiter {
            wait,
            deadline,
            ended: None,
            is_ready: false,
        };
        self.by_partition
            .extend(waiter.keys().into_iter().map(|key| (key, connection)));
        self.deadlines
            .extend(deadline.map(|deadline| (deadline, connection)));
        self.waiters.insert(connection, waiter);
    }

    /// Ends the waiting of a connection and gives what it waited for.
    pub(super) fn remove(&mut self, connection: ConnectionId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&connection)?;
        for key in waiter.keys() {
            self.by_partition.remove(&(key, connection));
        }
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, connection));
        }
        Some(waiter)
    }

    /// A consumer has these partitions from here on.
    pub(super) fn set_partitions(&mut self, connection: ConnectionId, keys: Vec<PartitionKey>) {
        let Some(waiter) = self.waiters.get_mut(&connection) else {
            return;
        };
        for key in waiter.keys() {
            self.by_partition.remove(&(key, connection));
        }
        self.by_partition
            .extend(keys.iter().map(|&key| (key, connection)));
        waiter.wait = Wait::Consume(keys);
    }

    /// The time of a connection is over then, and no more when it was to be.
    pub(super) fn set_deadline(&mut self, connection: ConnectionId, deadline: Option<Duration>) {
        let Some(waiter) = self.waiters.get_mut(&connection) else {
            return;
        };
        if waiter.deadline == deadline {
            return;
        }
        let before = std::mem::replace(&mut waiter.deadline, deadline);
        if let Some(before) = before {
            self.deadlines.remove(&(before, connection));
        }
        self.deadlines
            .extend(deadline.map(|deadline| (deadline, connection)));
    }

    /// What a connection waits for.
    pub(super) fn get(&self, connection: ConnectionId) -> Option<&Waiter> {
        self.waiters.get(&connection)
    }

    /// What a connection waits for, to be moved on; its partitions stay as they are.
    pub(super) fn get_mut(&mut self, connection: ConnectionId) -> Option<&mut Waiter> {
        self.waiters.get_mut(&connection)
    }

    /// Whether anybody waits for the partition.
    fn has_waiters(&self, key: PartitionKey) -> bool {
        self.waiter_after(key, None).is_some()
    }

    fn waiter_after(&self, key: PartitionKey, last: Option<ConnectionId>) -> Option<ConnectionId> {
        let from = match last {
            None => Bound::Included((key, ConnectionId(0))),
            Some(last) => Bound::Excluded((key, last)),
        };
        let (found, connection) = self.by_partition.range((from, Bound::Unbounded)).next()?;
        (*found == key).then_some(*connection)
    }

    /// The partition's high watermark moved.
    pub(super) fn wake(&mut self, key: PartitionKey) {
        if self.has_waiters(key) && !self.woken.contains(&(key, None)) {
            self.woken.push_back((key, None));
        }
    }

    /// One connection can go on.
    pub(super) fn wake_one(&mut self, connection: ConnectionId) {
        if let Some(waiter) = self.waiters.get_mut(&connection)
            && !waiter.is_ready
        {
            waiter.is_ready = true;
            self.ready.push_back(connection);
        }
    }

    /// A topic has more partitions, from these positions on: the tails of all its partitions, found by one that it had, follow them too.
    pub(super) fn add_partitions(&mut self, known: PartitionKey, more: &[Position]) {
        let mut last = None;
        while let Some(connection) = self.waiter_after(known, last) {
            last = Some(connection);
            if let Some(Waiter {
                wait: Wait::Tail(tail),
                ..
            }) = self.waiters.get_mut(&connection)
                && tail.is_of_all
            {
                tail.positions.extend_from_slice(more);
                self.by_partition
                    .extend(more.iter().map(|position| (position.key, connection)));
            }
        }
    }

    /// The partition is gone: everybody who waits for it ends with the error. Its key may be given anew.
    pub(super) fn end(&mut self, key: PartitionKey, error: &ApiError) {
        self.woken.retain(|(woken, _)| *woken != key);
        while let Some(connection) = self.waiter_after(key, None) {
            self.by_partition.remove(&(key, connection));
            if let Some(waiter) = self.waiters.get_mut(&connection) {
                waiter.ended.get_or_insert_with(|| error.clone());
                for other in waiter.keys() {
                    self.by_partition.remove(&(other, connection));
                }
            }
            self.wake_one(connection);
        }
    }

    /// One connection ends with the error, whatever it waits for.
    pub(super) fn end_one(&mut self, connection: ConnectionId, error: ApiError) {
        self.set_deadline(connection, None);
        let Some(waiter) = self.waiters.get_mut(&connection) else {
            return;
        };
        waiter.ended.get_or_insert(error);
        for key in waiter.keys() {
            self.by_partition.remove(&(key, connection));
        }
        self.wake_one(connection);
    }

    /// A connection that can go on or whose time is over.
    pub(super) fn next_ready(&mut self, mono: Duration) -> Option<ConnectionId> {
        while let Some(connection) = self.ready.pop_front() {
            if let Some(waiter) = self.waiters.get_mut(&connection) {
                waiter.is_ready = false;
                return Some(connection);
            }
        }
        if let Some(&(deadline, connection)) = self.deadlines.first()
            && deadline <= mono
        {
            self.deadlines.pop_first();
            return Some(connection);
        }
        while let Some((key, last)) = self.woken.pop_front() {
            if let Some(connection) = self.waiter_after(key, last) {
                self.woken.push_front((key, Some(connection)));
                return Some(connection);
            }
        }
        None
    }

    /// When [`DelayedFetches::next_ready`] names somebody at the latest; zero for at once.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        if self.ready.is_empty() && self.woken.is_empty() {
            self.deadlines.first().map(|&(deadline, _)| deadline)
        } else {
            Some(Duration::ZERO)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ErrorCode;

    const A: PartitionKey = PartitionKey(1);
    const B: PartitionKey = PartitionKey(2);

    fn read(key: PartitionKey) -> Wait {
        let at = Position {
            key,
            number: 0,
            offset: 0,
        };
        Wait::Parked(Parked::Read {
            at,
            max_records: 1,
            crc: CrcMode::Check,
        })
    }

    fn tail(keys: &[PartitionKey]) -> Wait {
        let positions = keys.iter().map(|&key| Position {
            key,
            number: key.0,
            offset: 0,
        });
        Wait::Tail(Tail {
            positions: positions.collect(),
            turn: 0,
            is_of_all: false,
        })
    }

    fn named(delayed: &mut DelayedFetches, mono: Duration) -> Vec<u64> {
        std::iter::from_fn(|| delayed.next_ready(mono))
            .map(|connection| connection.0)
            .collect()
    }

    const LATER: Option<Duration> = Some(Duration::from_secs(10));

    #[test]
    fn only_waiters_of_a_partition_that_moved_are_named_and_each_once() {
        let mut delayed = DelayedFetches::default();
        delayed.park(ConnectionId(5), read(A), LATER);
        delayed.park(ConnectionId(6), read(B), LATER);
        delayed.park(ConnectionId(7), tail(&[A, B]), None);
        assert_eq!(named(&mut delayed, Duration::ZERO), [] as [u64; 0]);
        assert_eq!(delayed.next_deadline(), LATER);
        delayed.wake(A);
        delayed.wake(A);
        assert_eq!(delayed.next_deadline(), Some(Duration::ZERO));
        assert_eq!(named(&mut delayed, Duration::ZERO), [5, 7]);
        delayed.wake(PartitionKey(9));
        assert_eq!(named(&mut delayed, Duration::ZERO), [] as [u64; 0]);
    }

    #[test]
    fn waking_goes_on_where_a_slice_ended_and_a_second_wake_names_all_again() {
        let mut delayed = DelayedFetches::default();
        for connection in 0..4 {
            delayed.park(ConnectionId(connection), tail(&[A]), None);
        }
        delayed.wake(A);
        assert_eq!(delayed.next_ready(Duration::ZERO), Some(ConnectionId(0)));
        assert_eq!(delayed.next_ready(Duration::ZERO), Some(ConnectionId(1)));
        delayed.remove(ConnectionId(2));
        delayed.wake(A);
        delayed.wake(A);
        assert_eq!(named(&mut delayed, Duration::ZERO), [3, 0, 1, 3]);
    }

    #[test]
    fn a_deadline_names_a_connection_once_when_it_is_reached() {
        let mut delayed = DelayedFetches::default();
        for (connection, secs) in [(1, 3), (2, 1), (3, 2)] {
            delayed.park(
                ConnectionId(connection),
                read(A),
                Some(Duration::from_secs(secs)),
            );
        }
        assert_eq!(delayed.next_deadline(), Some(Duration::from_secs(1)));
        assert_eq!(
            named(&mut delayed, Duration::from_millis(999)),
            [] as [u64; 0]
        );
        assert_eq!(named(&mut delayed, Duration::from_secs(2)), [2, 3]);
        assert_eq!(delayed.next_deadline(), Some(Duration::from_secs(3)));
        delayed.remove(ConnectionId(1));
        assert_eq!(
            delayed.next_deadline(),
            None,
            "a connection that left leaves nothing"
        );
        assert!(delayed.by_partition.len() == 2 && delayed.deadlines.is_empty());
    }

    #[test]
    fn the_end_of_a_partition_ends_its_waiters_and_frees_its_key() {
        let mut delayed = DelayedFetches::default();
        delayed.park(ConnectionId(1), tail(&[A, B]), None);
        delayed.park(ConnectionId(2), read(A), LATER);
        delayed.park(ConnectionId(3), read(PartitionKey(3)), LATER);
        delayed.wake(A);
        let gone = ApiError::new(ErrorCode::UnknownTopic, "gone");
        delayed.end(A, &gone);
        delayed.end(B, &gone);
        assert_eq!(named(&mut delayed, Duration::ZERO), [1, 2]);
        let ended = delayed
            .get(ConnectionId(1))
            .and_then(|waiter| waiter.ended.clone());
        assert_eq!(ended, Some(gone));
        assert!(
            delayed
                .get(ConnectionId(3))
                .is_some_and(|waiter| waiter.ended.is_none())
        );
        delayed.park(ConnectionId(4), read(A), LATER);
        delayed.wake(A);
        assert_eq!(
            named(&mut delayed, Duration::ZERO),
            [4],
            "old waiters are off the key"
        );
    }

    #[test]
    fn a_tail_of_many_partitions_takes_them_in_turn() {
        let Wait::Tail(mut tail) = tail(&[A, B, PartitionKey(3)]) else {
            return;
        };
        let mut order = Vec::new();
        for _ in 0..5 {
            let (place, position) = tail.next(|p| p.key != B).expect("two have more");
            order.push(position.key.0);
            tail.advance(place, position.offset + 1);
        }
        assert_eq!(order, [1, 3, 1, 3, 1]);
        assert_eq!(tail.next(|_| false), None);
        assert_eq!(
            tail.positions.iter().map(|p| p.offset).collect::<Vec<_>>(),
            [3, 0, 2]
        );
    }
}
