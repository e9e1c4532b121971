//! Readers that wait: parked READ, FETCH and SYNC, and tails.
//!
//! Waiting costs nothing: a deadline stands in an ordered set, and a partition whose high watermark moves is put on a queue
//! with a cursor, from which its waiters are named one at a time, over as many turns of the loop as that takes. Nobody
//! else is looked at. What a waiter then finds is not decided here: this module knows no log.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
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
    /// SYNC, until this round is over.
    Sync { round: u64 },
}

/// A tail: where it is in each partition, and which of them may have something for it. A partition without news costs it nothing.
#[derive(Debug)]
pub(super) struct Tail {
    followed: Vec<Followed>,
    /// Places in `followed` that may have records to give, each once; the one in front is served next.
    news: VecDeque<usize>,
    /// Whether it follows every partition of its topic, those to come included.
    is_of_all: bool,
}

/// A partition that a tail follows.
#[derive(Debug)]
struct Followed {
    position: Position,
    /// Whether it stands in `news`.
    has_news: bool,
}

impl Tail {
    /// A tail that looks at each of these once, and then at those it is told of.
    pub(super) fn new(positions: Vec<Position>, is_of_all: bool) -> Self {
        let mut tail = Self {
            followed: Vec::with_capacity(positions.len()),
            news: VecDeque::new(),
            is_of_all,
        };
        for position in positions {
            tail.follow(position);
        }
        tail
    }

    /// Follows one more, and gives its place.
    fn follow(&mut self, position: Position) -> usize {
        let place = self.followed.len();
        self.followed.push(Followed {
            position,
            has_news: true,
        });
        self.news.push_back(place);
        place
    }

    /// There may be something at this place.
    fn note_news(&mut self, place: usize) {
        if let Some(followed) = self.followed.get_mut(place)
            && !followed.has_news
        {
            followed.has_news = true;
            self.news.push_back(place);
        }
    }

    /// The place and position that are served next: the first with news of which `has_more` is true. Those before it have no news any more.
    pub(super) fn next(
        &mut self,
        has_more: impl Fn(&Position) -> bool,
    ) -> Option<(usize, Position)> {
        while let Some(&place) = self.news.front() {
            if let Some(followed) = self.followed.get_mut(place) {
                if has_more(&followed.position) {
                    return Some((place, followed.position));
                }
                followed.has_news = false;
            }
            self.news.pop_front();
        }
        None
    }

    /// Goes on in the partition of that number, and gives the turn to the next with news. Returns where it was; `None` where it does not
    /// follow it.
    pub(super) fn advance(&mut self, number: u32, offset: i64) -> Option<i64> {
        // Partitions are followed in the order of their numbers, or one alone.
        let place = usize::try_from(number)
            .unwrap_or(usize::MAX)
            .min(self.followed.len().saturating_sub(1));
        let position = &mut self.followed.get_mut(place)?.position;
        if position.number != number {
            return None;
        }
        let before = std::mem::replace(&mut position.offset, offset);
        if self.news.front() == Some(&place) {
            self.news.rotate_left(1);
        }
        Some(before)
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
    /// What it waits for, each beside its place in a tail.
    fn keys(&self) -> Vec<(PartitionKey, usize)> {
        match &self.wait {
            Wait::Parked(Parked::Read { at, .. } | Parked::Fetch { at, .. }) => vec![(at.key, 0)],
            Wait::Parked(Parked::Sync { .. }) => Vec::new(),
            Wait::Tail(tail) => {
                let keys = tail.followed.iter().map(|followed| followed.position.key);
                keys.zip(0..).collect()
            }
            Wait::Consume(keys) => keys.iter().map(|&key| (key, 0)).collect(),
        }
    }
}

/// All connections that wait.
#[derive(Debug, Default)]
pub(super) struct DelayedFetches {
    waiters: HashMap<ConnectionId, Waiter>,
    /// Who waits for a partition, and its place where that is a tail.
    by_partition: BTreeMap<(PartitionKey, ConnectionId), usize>,
    deadlines: BTreeSet<(Duration, ConnectionId)>,
    /// Connections that can go on, each once.
    ready: VecDeque<ConnectionId>,
    /// Partitions whose waiters can go on, each once.
    woken: VecDeque<PartitionKey>,
    /// The same.
    is_woken: HashSet<PartitionKey>,
    /// A partition whose waiters are being named, and the one last named.
    begun: Option<(PartitionKey, ConnectionId)>,
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
        let keys = waiter.keys().into_iter();
        self.by_partition
            .extend(keys.map(|(key, place)| ((key, connection), place)));
        self.deadlines
            .extend(deadline.map(|deadline| (deadline, connection)));
        self.waiters.insert(connection, waiter);
    }

    /// Ends the waiting of a connection and gives what it waited for.
    pub(super) fn remove(&mut self, connection: ConnectionId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&connection)?;
        for (key, _) in waiter.keys() {
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
        for (key, _) in waiter.keys() {
            self.by_partition.remove(&(key, connection));
        }
        self.by_partition
            .extend(keys.iter().map(|&key| ((key, connection), 0)));
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

    fn waiter_after(
        &self,
        key: PartitionKey,
        last: Option<ConnectionId>,
    ) -> Option<(ConnectionId, usize)> {
        let from = match last {
            None => Bound::Included((key, ConnectionId(0))),
            Some(last) => Bound::Excluded((key, last)),
        };
        let next = self.by_partition.range((from, Bound::Unbounded)).next();
        let (&(found, connection), &place) = next?;
        (found == key).then_some((connection, place))
    }

    /// The partition's high watermark moved.
    pub(super) fn wake(&mut self, key: PartitionKey) {
        if self.has_waiters(key) && self.is_woken.insert(key) {
            self.woken.push_back(key);
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
        while let Some((connection, _)) = self.waiter_after(known, last) {
            last = Some(connection);
            if let Some(Waiter {
                wait: Wait::Tail(tail),
                ..
            }) = self.waiters.get_mut(&connection)
                && tail.is_of_all
            {
                for &position in more {
                    let place = tail.follow(position);
                    self.by_partition.insert((position.key, connection), place);
                }
            }
        }
    }

    /// The partition is gone: everybody who waits for it ends with the error. Its key may be given anew.
    pub(super) fn end(&mut self, key: PartitionKey, error: &ApiError) {
        if self.is_woken.remove(&key) {
            self.woken.retain(|woken| *woken != key);
        }
        self.begun = self.begun.filter(|(begun, _)| *begun != key);
        while let Some((connection, _)) = self.waiter_after(key, None) {
            self.by_partition.remove(&(key, connection));
            if let Some(waiter) = self.waiters.get_mut(&connection) {
                waiter.ended.get_or_insert_with(|| error.clone());
                for (other, _) in waiter.keys() {
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
        for (key, _) in waiter.keys() {
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
        self.next_woken()
    }

    fn next_woken(&mut self) -> Option<ConnectionId> {
        loop {
            let (key, last) = match self.begun.take() {
                Some((key, last)) => (key, Some(last)),
                None => (self.woken.pop_front()?, None),
            };
            if last.is_none() {
                self.is_woken.remove(&key);
            }
            let Some((connection, place)) = self.waiter_after(key, last) else {
                continue;
            };
            self.begun = Some((key, connection));
            if let Some(Waiter {
                wait: Wait::Tail(tail),
                ..
            }) = self.waiters.get_mut(&connection)
            {
                tail.note_news(place);
            }
            return Some(connection);
        }
    }

    /// When [`DelayedFetches::next_ready`] names somebody at the latest; zero for at once.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        if self.ready.is_empty() && self.woken.is_empty() && self.begun.is_none() {
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
        Wait::Tail(Tail::new(positions.collect(), false))
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
            .get_mut(ConnectionId(1))
            .and_then(|waiter| waiter.ended.clone());
        assert_eq!(ended, Some(gone));
        assert!(
            delayed
                .get_mut(ConnectionId(3))
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

    /// A tail of partitions 0 to 2.
    fn tail_of_three() -> Tail {
        let positions = (0..3).map(|number| Position {
            key: PartitionKey(number),
            number,
            offset: 0,
        });
        Tail::new(positions.collect(), false)
    }

    #[test]
    fn a_tail_of_many_partitions_takes_them_in_turn() {
        let mut tail = tail_of_three();
        let mut order = Vec::new();
        for _ in 0..5 {
            let (_, position) = tail.next(|p| p.number != 1).expect("two have more");
            order.push(position.number);
            let before = tail.advance(position.number, position.offset + 1);
            assert_eq!(before, Some(position.offset));
        }
        assert_eq!(order, [0, 2, 0, 2, 0]);
        assert_eq!(tail.next(|_| false), None);
        let offsets = tail.followed.iter().map(|f| f.position.offset);
        assert_eq!(offsets.collect::<Vec<_>>(), [3, 0, 2]);
        assert_eq!(tail.advance(3, 9), None);
    }

    #[test]
    fn a_tail_looks_only_at_partitions_with_news() {
        let mut tail = tail_of_three();
        let looks = std::cell::Cell::new(0);
        let look = |has_more: bool| {
            looks.set(looks.get() + 1);
            has_more
        };
        assert_eq!(tail.next(|_| look(false)), None);
        assert_eq!(tail.next(|_| look(true)), None);
        assert_eq!(looks.get(), 3, "each once, and none without news");
        tail.note_news(1);
        tail.note_news(1);
        let next = tail.next(|_| look(true)).map(|(place, _)| place);
        assert_eq!((next, looks.get()), (Some(1), 4));
    }

    #[test]
    fn a_tail_is_named_with_the_partition_that_moved() {
        let mut delayed = DelayedFetches::default();
        delayed.park(ConnectionId(1), tail(&[A, B]), None);
        let next = |delayed: &mut DelayedFetches| {
            let Some(Waiter {
                wait: Wait::Tail(tail),
                ..
            }) = delayed.get_mut(ConnectionId(1))
            else {
                return None;
            };
            let next = tail.next(|position| position.offset == 0);
            let (place, position) = next?;
            tail.followed.get_mut(place)?.position.offset = 1;
            Some(position.key)
        };
        assert_eq!(next(&mut delayed), Some(A));
        assert_eq!(next(&mut delayed), Some(B));
        assert_eq!(next(&mut delayed), None);
        delayed.wake(B);
        assert_eq!(named(&mut delayed, Duration::ZERO), [1]);
        if let Some(Waiter {
            wait: Wait::Tail(tail),
            ..
        }) = delayed.get_mut(ConnectionId(1))
        {
            assert_eq!(tail.news, [1]);
        }
    }
}
