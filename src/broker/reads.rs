//! What readers are answered: READ, FETCH, TAIL and the lookups, at once or when they were waited for.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::api::{
    ApiError, ConnectionId, CrcMode, ErrorCode, Now, OffsetSpec, PartitionKey, Response, TailEvent,
    TailFrom, Target, TimeSpec,
};
use crate::fs::Fs;
use crate::record::Records;
use crate::storage::{Error, Fetched};

use super::delayed_fetch::{Parked, Position, Tail, Wait, Waiter};
use super::partition::Partition;
use super::{Broker, Outcome, Resumed, errors};

/// Payload bytes of one tail event: what a peer's backlog can grow beyond its bound.
pub(super) const TAIL_BYTES: u64 = 64 * 1024;

/// Ranges that a FETCH with `min_bytes` adds up at most.
const MIN_BYTES_RANGES: usize = 64;

impl<F: Fs> Broker<F> {
    /// The partition, its buffer written, so that what is looked up is what the files hold.
    pub(super) fn written(&mut self, key: PartitionKey) -> Result<&mut Partition<F>, ApiError> {
        let error = match self.partitions.get_mut(key) {
            None => {
                return Err(ApiError::new(
                    ErrorCode::UnknownTopic,
                    "the topic was deleted",
                ));
            }
            Some(partition) if partition.is_dirty => partition.log.write().err(),
            Some(_) => None,
        };
        if let Some(error) = error {
            self.fail_turn(key, &error);
        }
        self.partitions
            .get_mut(key)
            .ok_or_else(|| ApiError::new(ErrorCode::UnknownTopic, "the topic was deleted"))
    }

    /// An engine's error in the peer's words; damage is counted.
    pub(super) fn explain_error(&mut self, key: PartitionKey, error: &Error) -> ApiError {
        if let Error::Corrupt(_) = error {
            self.stats.corrupt_records += 1;
        }
        let (topic, number) = self.place(key);
        errors::of_partition(error, topic, number)
    }

    /// The offset that a reader means.
    pub(super) fn offset_of(
        &mut self,
        key: PartitionKey,
        spec: OffsetSpec,
        now: Now,
    ) -> Result<i64, ApiError> {
        let log = &mut self.written(key)?.log;
        let (earliest, latest) = (log.log_start_offset(), log.high_watermark());
        let found = match spec {
            OffsetSpec::Offset(offset) => Ok(offset),
            OffsetSpec::Earliest => Ok(earliest),
            OffsetSpec::Latest => Ok(latest),
            OffsetSpec::Last(n) => Ok(latest.saturating_sub_unsigned(n).max(earliest)),
            OffsetSpec::Time(time) => {
                let found = log.offset_at_time(timestamp_of(time, now));
                found.map(|found| found.map_or(latest, |(offset, _)| offset))
            }
        };
        found.map_err(|error| self.explain_error(key, &error))
    }

    /// READ.
    pub(super) fn read(
        &mut self,
        connection: ConnectionId,
        target: Target<'_>,
        from: OffsetSpec,
        (max_records, crc): (u64, CrcMode),
        (wait, now): (Duration, Now),
    ) -> Result<Outcome, ApiError> {
        let (key, number) = self.find_partition(target)?;
        let at = Position {
            key,
            number,
            offset: self.offset_of(key, from, now)?,
        };
        let mut parked = Parked::Read {
            at,
            max_records,
            crc,
        };
        Ok(match self.try_answer(&mut parked, wait.is_zero())? {
            Some(response) => Outcome::Reply(response),
            None => self.park(connection, parked, now.mono.saturating_add(wait)),
        })
    }

    /// FETCH.
    pub(super) fn fetch(
        &mut self,
        connection: ConnectionId,
        target: Target<'_>,
        from: OffsetSpec,
        (max_bytes, min_bytes): (u64, u64),
        (wait, now): (Duration, Now),
    ) -> Result<Outcome, ApiError> {
        let (key, number) = self.find_partition(target)?;
        let at = Position {
            key,
            number,
            offset: self.offset_of(key, from, now)?,
        };
        let max_bytes = max_bytes.min(self.settings.max_fetch_bytes);
        let mut parked = Parked::Fetch {
            at,
            max_bytes,
            min_bytes: min_bytes.max(1),
        };
        Ok(match self.try_answer(&mut parked, wait.is_zero())? {
            Some(response) => Outcome::Reply(response),
            None => self.park(connection, parked, now.mono.saturating_add(wait)),
        })
    }

    fn park(&mut self, connection: ConnectionId, parked: Parked, deadline: Duration) -> Outcome {
        self.delayed
            .park(connection, Wait::Parked(parked), Some(deadline));
        Outcome::Parked
    }

    /// The answer to what is waited for; `None` where there is not enough yet and the time is not over.
    fn try_answer(
        &mut self,
        parked: &mut Parked,
        is_over: bool,
    ) -> Result<Option<Response>, ApiError> {
        match parked {
            Parked::Read {
                at,
                max_records,
                crc,
            } => self.try_read(at, *max_records, *crc, is_over),
            Parked::Fetch {
                at,
                max_bytes,
                min_bytes,
            } => self.try_fetch(*at, *max_bytes, *min_bytes, is_over),
            Parked::Sync { round } => self.try_sync(*round),
        }
    }

    fn try_read(
        &mut self,
        at: &mut Position,
        max_records: u64,
        crc: CrcMode,
        is_over: bool,
    ) -> Result<Option<Response>, ApiError> {
        let max_bytes = self.settings.max_fetch_bytes;
        let mut records = Records::new();
        let log = &mut self.written(at.key)?.log;
        let outcome = log.read(at.offset, max_records, max_bytes, crc, &mut records);
        let high_watermark = log.high_watermark();
        let outcome = outcome.map_err(|error| self.explain_error(at.key, &error))?;
        if records.is_empty() && !is_over {
            // Only removed offsets were left: what is waited for lies behind them.
            at.offset = outcome.next_offset;
            return Ok(None);
        }
        self.count_out(records.len(), records.payload_bytes());
        Ok(Some(Response::Records {
            partition: at.number,
            records,
            next_offset: outcome.next_offset,
            high_watermark,
        }))
    }

    fn try_fetch(
        &mut self,
        at: Position,
        max_bytes: u64,
        min_bytes: u64,
        is_over: bool,
    ) -> Result<Option<Response>, ApiError> {
        let partition = self.written(at.key)?;
        let high_watermark = partition.log.high_watermark();
        let fetched = partition.log.fetch(at.offset, max_bytes);
        let is_enough = match &fetched {
            Ok(_) | Err(_) if is_over => true,
            Ok(fetched) => has_bytes(partition, fetched, max_bytes, min_bytes),
            Err(_) => true,
        };
        let fetched = fetched.map_err(|error| self.explain_error(at.key, &error))?;
        if !is_enough {
            return Ok(None);
        }
        let Fetched {
            range,
            first_offset,
            next_offset,
        } = fetched;
        if let Some(range) = &range {
            self.stats.records_out += next_offset.abs_diff(first_offset);
            self.stats.bytes_out += range.len;
        }
        Ok(Some(Response::Fetched {
            range,
            first_offset,
            next_offset,
            high_watermark,
        }))
    }

    /// SYNC, once its round is over.
    fn try_sync(&self, round: u64) -> Result<Option<Response>, ApiError> {
        if self.sync_rounds.is_over(round) {
            self.sync_result().map(|()| Some(Response::Done))
        } else {
            Ok(None)
        }
    }

    /// TAIL.
    pub(super) fn tail(
        &mut self,
        connection: ConnectionId,
        from: TailFrom<'_>,
        now: Now,
    ) -> Result<Outcome, ApiError> {
        let mut positions = Vec::new();
        let is_of_all = matches!(from, TailFrom::All(..));
        let begin = match from {
            TailFrom::One(target, spec) => {
                let (key, number) = self.find_partition(target)?;
                let offset = self.offset_of(key, spec, now)?;
                self.check_range(key, offset)?;
                positions.push(Position {
                    key,
                    number,
                    offset,
                });
                Some(offset)
            }
            TailFrom::All(topic, spec) => {
                let id = self.find_topic(topic)?;
                let keys = self.topics.get(id).map(|topic| topic.partitions.clone());
                for (number, key) in (0..).zip(keys.unwrap_or_default()) {
                    let offset = self.offset_of(key, spec, now)?;
                    self.check_range(key, offset)?;
                    positions.push(Position {
                        key,
                        number,
                        offset,
                    });
                }
                None
            }
        };
        let tail = Tail::new(positions, is_of_all);
        self.delayed.park(connection, Wait::Tail(tail), None);
        if self.tail_position(connection).is_some() {
            self.delayed.wake_one(connection);
        }
        Ok(Outcome::Streaming(Response::Tailing(begin)))
    }

    pub(super) fn check_range(&mut self, key: PartitionKey, offset: i64) -> Result<(), ApiError> {
        let log = &self.written(key)?.log;
        let (earliest, latest) = (log.log_start_offset(), log.high_watermark());
        if (earliest..=latest).contains(&offset) {
            return Ok(());
        }
        Err(self.explain_error(
            key,
            &Error::OutOfRange {
                offset,
                earliest,
                latest,
            },
        ))
    }

    /// The next partition, number and offset that the tail of a connection would read, for sharing what was encoded already.
    #[must_use]
    pub fn tail_position(&mut self, connection: ConnectionId) -> Option<(PartitionKey, u32, i64)> {
        let partitions = &self.partitions;
        let waiter = self.delayed.get_mut(connection)?;
        let Wait::Tail(tail) = &mut waiter.wait else {
            return None;
        };
        if waiter.ended.is_some() {
            return None;
        }
        let has_more = |position: &Position| {
            let partition = partitions.get(position.key);
            partition.is_some_and(|partition| position.offset < partition.log.high_watermark())
        };
        let (_, at) = tail.next(has_more)?;
        Some((at.key, at.number, at.offset))
    }

    /// Moves a tail past what it was given from a shared encoding; `payload_bytes` is what its records carried, for STATS (0 for damage).
    pub fn skip_tail(
        &mut self,
        connection: ConnectionId,
        partition: u32,
        next_offset: i64,
        payload_bytes: u64,
    ) {
        let Some(Waiter {
            wait: Wait::Tail(tail),
            ..
        }) = self.delayed.get_mut(connection)
        else {
            return;
        };
        if let Some(from) = tail.advance(partition, next_offset)
            && payload_bytes > 0
        {
            self.stats.records_out += next_offset.abs_diff(from);
            self.stats.bytes_out += payload_bytes;
        }
    }

    /// Goes on with the parked request or tail of a connection.
    pub fn resume(&mut self, connection: ConnectionId, now: Now) -> Resumed {
        let Some(waiter) = self.delayed.get_mut(connection) else {
            return Resumed::Waiting;
        };
        let is_over = waiter.deadline.is_some_and(|deadline| deadline <= now.mono);
        match (&waiter.wait, waiter.ended.take()) {
            (Wait::Tail(_) | Wait::Consume(_), Some(error)) => self.end_tail(connection, error),
            (Wait::Tail(_), None) => self.resume_tail(connection),
            (Wait::Consume(_), None) => self.resume_consumer(connection, now),
            (Wait::Parked(_), Some(error)) => {
                self.delayed.remove(connection);
                Resumed::Reply(self.refusal(error))
            }
            (&Wait::Parked(parked), None) => self.resume_parked(connection, parked, is_over),
        }
    }

    fn resume_parked(
        &mut self,
        connection: ConnectionId,
        mut parked: Parked,
        is_over: bool,
    ) -> Resumed {
        let response = match self.try_answer(&mut parked, is_over) {
            Ok(Some(response)) => response,
            Err(error) => self.refusal(error),
            Ok(None) => {
                if let Some(waiter) = self.delayed.get_mut(connection) {
                    waiter.wait = Wait::Parked(parked);
                }
                return Resumed::Waiting;
            }
        };
        self.delayed.remove(connection);
        Resumed::Reply(response)
    }

    fn resume_tail(&mut self, connection: ConnectionId) -> Resumed {
        while let Some((key, number, offset)) = self.tail_position(connection) {
            let mut records = Records::new();
            let read = match self.written(key) {
                Ok(partition) => {
                    partition
                        .log
                        .read(offset, u64::MAX, TAIL_BYTES, CrcMode::Check, &mut records)
                }
                Err(error) => return self.end_tail(connection, error),
            };
            match read {
                Ok(outcome) => {
                    self.advance_tail(connection, number, outcome.next_offset);
                    if !records.is_empty() {
                        self.count_out(records.len(), records.payload_bytes());
                        return Resumed::Event(TailEvent::Records {
                            partition: number,
                            records,
                        });
                    }
                    if outcome.next_offset <= offset {
                        break;
                    }
                    // Only removed offsets were there: look on.
                }
                Err(Error::Corrupt(damage)) if damage.next > offset => {
                    self.stats.corrupt_records += 1;
                    self.advance_tail(connection, number, damage.next);
                    let next = damage.next;
                    return Resumed::Event(TailEvent::Corrupt {
                        partition: number,
                        offset,
                        next,
                    });
                }
                Err(error) => {
                    let error = self.explain_error(key, &error);
                    return self.end_tail(connection, error);
                }
            }
        }
        Resumed::Waiting
    }

    fn advance_tail(&mut self, connection: ConnectionId, number: u32, next_offset: i64) {
        self.skip_tail(connection, number, next_offset, 0);
    }

    pub(super) fn end_tail(&mut self, connection: ConnectionId, error: ApiError) -> Resumed {
        self.delayed.remove(connection);
        Resumed::Ended(self.refusal(error))
    }

    pub(super) fn count_out(&mut self, records: usize, bytes: usize) {
        self.stats.records_out += u64::try_from(records).unwrap_or(u64::MAX);
        self.stats.bytes_out += u64::try_from(bytes).unwrap_or(u64::MAX);
    }

    /// OFFSETS.
    pub(super) fn offsets(&mut self, target: Target<'_>) -> Result<Response, ApiError> {
        let keys = if target.partition.is_some() {
            vec![self.find_partition(target)?.0]
        } else {
            let id = self.find_topic(target.topic)?;
            self.topics
                .get(id)
                .map(|topic| topic.partitions.clone())
                .unwrap_or_default()
        };
        let partitions = keys.into_iter().filter_map(|key| self.partitions.get(key));
        let line = |p: &Partition<F>| (p.number, p.log.log_start_offset(), p.log.high_watermark());
        Ok(Response::Offsets(partitions.map(line).collect()))
    }

    /// AT.
    pub(super) fn at(
        &mut self,
        target: Target<'_>,
        time: TimeSpec,
        now: Now,
    ) -> Result<Response, ApiError> {
        let (key, _) = self.find_partition(target)?;
        let found = self
            .written(key)?
            .log
            .offset_at_time(timestamp_of(time, now));
        found
            .map(Response::At)
            .map_err(|error| self.explain_error(key, &error))
    }

    /// EXPLAIN.
    pub(super) fn explain(
        &mut self,
        target: Target<'_>,
        from: OffsetSpec,
        now: Now,
    ) -> Result<Response, ApiError> {
        let (key, partition) = self.find_partition(target)?;
        let offset = self.offset_of(key, from, now)?;
        let found = self.written(key)?.log.explain(offset);
        found
            .map(|explanation| Response::Explained {
                partition,
                explanation: Box::new(explanation),
            })
            .map_err(|error| self.explain_error(key, &error))
    }

    /// SEGMENTS.
    pub(super) fn segments(&mut self, target: Target<'_>) -> Result<Response, ApiError> {
        let (key, _) = self.find_partition(target)?;
        let found = self.written(key)?.log.segments();
        found
            .map(Response::Segments)
            .map_err(|error| self.explain_error(key, &error))
    }
}

fn timestamp_of(time: TimeSpec, now: Now) -> i64 {
    match time {
        TimeSpec::At(ms) => ms,
        TimeSpec::Ago(ms) => now.wall_ms.saturating_sub(ms),
    }
}

/// Whether a FETCH has so many bytes before it: in the range found, or in those behind it (a range ends at a segment's end).
fn has_bytes<F: Fs>(
    partition: &mut Partition<F>,
    first: &Fetched,
    max_bytes: u64,
    min_bytes: u64,
) -> bool {
    let wanted = min_bytes.min(max_bytes);
    let high_watermark = partition.log.high_watermark();
    let Some(range) = &first.range else {
        return false;
    };
    let (mut bytes, mut next_offset) = (range.len, first.next_offset);
    for _ in 0..MIN_BYTES_RANGES {
        if bytes >= wanted || next_offset >= high_watermark {
            break;
        }
        match partition.log.fetch(next_offset, max_bytes) {
            Ok(Fetched {
                range: Some(range),
                next_offset: next,
                ..
            }) => {
                bytes += range.len;
                next_offset = next;
            }
            // What cannot be read is not waited for.
            Ok(Fetched { range: None, .. }) | Err(_) => return true,
        }
    }
    bytes >= wanted || next_offset < high_watermark
}
