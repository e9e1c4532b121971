//! What consumers ask and are given: CONSUME, ACK, COMMIT, COMMITTED, and the records of the partitions that they have.

#![forbid(unsafe_code)]

use crate::api::{
    ApiError, CommitAnswer, CommittedInfo, ConnectionId, Consume, CrcMode, ErrorCode, Now,
    OffsetSpec, Response, StartAt, TailEvent, Target, quoted,
};
use crate::fs::Fs;
use crate::record::Records;
use crate::storage::{Error, Log};

use super::delayed_fetch::Wait;
use super::groups::{Acknowledged, Leave, Member, Next, ShareId, Ticket, check_name};
use super::reads::TAIL_BYTES;
use super::{Broker, Outcome, Resumed, errors};

impl<F: Fs> Broker<F> {
    /// Tells what a connection that may consume is called, for COMMITTED.
    pub fn introduce(&mut self, connection: ConnectionId, name: &str) {
        self.groups.introduce(connection, name);
    }

    /// CONSUME.
    pub(super) fn consume(
        &mut self,
        connection: ConnectionId,
        consume: &Consume<'_>,
        now: Now,
    ) -> Result<Outcome, ApiError> {
        check_name(consume.group)?;
        let topic = self.topic_name(consume.topic)?;
        self.groups.set_time(now.wall_ms);
        let share = self.groups.share(consume.group, &topic, now.mono)?;
        self.delayed
            .park(connection, Wait::Consume(Vec::new()), None);
        self.groups.join(connection, share, consume);
        self.rebalance(share);
        self.delayed.wake_one(connection);
        Ok(Outcome::Streaming(Response::Consuming))
    }

    fn topic_name(&self, name: &[u8]) -> Result<String, ApiError> {
        let id = self.find_topic(name)?;
        let topic = self.topics.get(id);
        topic
            .map(|topic| topic.name.to_string())
            .ok_or_else(|| errors::unknown_topic(name))
    }

    /// Takes a consumer out of its group, if it is in one.
    pub(super) fn leave(&mut self, connection: ConnectionId, how: Leave) {
        if !self.groups.has_members() {
            return;
        }
        if let Some(share) = self.groups.leave(connection, how, self.turn) {
            self.rebalance(share);
        }
    }

    /// Shares the partitions of a topic anew in a group of which somebody came or went, or of which there are more.
    fn rebalance(&mut self, share: ShareId) {
        let topic = self.groups.get(share).map(|share| &share.topic);
        let id = topic.and_then(|topic| self.topics.find(topic.as_bytes()));
        let topic = id.and_then(|id| self.topics.get(id));
        let keys = topic.map(|topic| topic.partitions.as_slice());
        let keys = keys.unwrap_or_default();
        for connection in self.groups.rebalance(share, keys, self.turn) {
            if let Some(member) = self.groups.member(connection) {
                let deadline = member.deadline();
                self.delayed.set_partitions(connection, member.keys());
                self.delayed.set_deadline(connection, deadline);
                self.delayed.wake_one(connection);
            }
        }
    }

    /// A topic has more partitions.
    pub(super) fn share_anew(&mut self, topic: &str) {
        for share in self.groups.of_topic(topic) {
            self.rebalance(share);
        }
    }

    /// A topic is deleted: its consumers end, what was committed of it is forgotten.
    pub(super) fn end_consumers(&mut self, topic: &str) {
        for share in self.groups.of_topic(topic) {
            for connection in self.groups.drop_share(share) {
                self.delayed
                    .end_one(connection, errors::topic_deleted(topic));
            }
        }
    }

    /// ACK.
    pub(super) fn acknowledge(
        &mut self,
        connection: ConnectionId,
        partition: u32,
        offset: i64,
        now: Now,
    ) -> Result<Ticket, ApiError> {
        let below = offset.saturating_add(1);
        let Some(member) = self.groups.member_mut(connection) else {
            return Err(not_assigned(format!(
                "partition {partition} is not this connection's: it consumes nothing"
            )));
        };
        let share = member.share;
        let was_full = member.room() == 0;
        let done = member.acknowledge(partition, below, now.mono);
        let is_woken = was_full && member.room() > 0;
        let deadline = member.deadline();
        self.delayed.set_deadline(connection, deadline);
        if is_woken {
            self.delayed.wake_one(connection);
        }
        let committed = self.groups.get(share).and_then(|share| {
            let commit = share.commits.get(&partition);
            commit.map(|commit| commit.offset)
        });
        let pending = match done {
            Acknowledged::NotHeld => {
                let member = self.groups.member(connection);
                let has = member.map_or_else(String::new, Member::numbers);
                return Err(not_assigned(format!(
                    "partition {partition} is not this connection's; it has {has}"
                )));
            }
            // Nothing was sent yet, and nothing has to be.
            Acknowledged::NotSent(None) if committed.is_some_and(|offset| below <= offset) => None,
            Acknowledged::NotSent(None) => {
                return Err(not_assigned(format!(
                    "nothing of partition {partition} was sent since this connection has it"
                )));
            }
            Acknowledged::NotSent(Some(position)) => {
                return Err(not_sent(partition, offset, position));
            }
            Acknowledged::Nothing => self.groups.pending(share, partition),
            Acknowledged::Commit(below) => {
                let pending = self.groups.commit(share, partition, below);
                Some(pending.inspect_err(|_| self.groups.take_back(share, partition))?)
            }
        };
        Ok(Ticket {
            pending,
            answer: CommitAnswer::Done,
        })
    }

    /// COMMIT.
    pub(super) fn commit(
        &mut self,
        group: &[u8],
        target: Target<'_>,
        offset: OffsetSpec,
        now: Now,
    ) -> Result<Ticket, ApiError> {
        check_name(group)?;
        let (key, partition) = self.find_partition(target)?;
        let offset = self.offset_of(key, offset, now)?;
        self.check_range(key, offset)?;
        let topic = self.topic_name(target.topic)?;
        self.groups.set_time(now.wall_ms);
        let share = self.groups.share(group, &topic, now.mono)?;
        let pending = Some(self.groups.commit(share, partition, offset)?);
        let answer = if self.groups.contest(share, partition) {
            CommitAnswer::Held
        } else {
            CommitAnswer::Done
        };
        Ok(Ticket { pending, answer })
    }

    /// What the flush said to an ACK or COMMIT; `None` where it is committed. Asked between the flush and [`Broker::end_turn`].
    #[must_use]
    pub fn commit_error(&self, ticket: Ticket) -> Option<&ApiError> {
        self.groups.decided(ticket)
    }

    /// COMMITTED.
    pub(super) fn committed(&self, group: &[u8], target: Target<'_>) -> Result<Response, ApiError> {
        check_name(group)?;
        if self.groups.is_unknown(group) {
            return Err(ApiError::new(
                ErrorCode::UnknownGroup,
                format!(
                    "there is no group {}; CONSUME or COMMIT makes one, GROUPS lists them",
                    quoted(group)
                ),
            ));
        }
        let topic = self.topic_name(target.topic)?;
        let keys = if target.partition.is_some() {
            vec![self.find_partition(target)?.0]
        } else {
            let id = self.find_topic(target.topic)?;
            let topic = self.topics.get(id);
            topic
                .map(|topic| topic.partitions.clone())
                .unwrap_or_default()
        };
        let id = self.groups.find(group, &topic);
        let share = id.and_then(|id| self.groups.get(id));
        let rows = keys.into_iter().filter_map(|key| {
            let partition = self.partitions.get(key)?;
            let number = partition.number;
            let commit = share.and_then(|share| share.commits.get(&number));
            let committed = commit.map(|commit| commit.offset);
            let latest = partition.log.high_watermark();
            let earliest = partition.log.log_start_offset();
            let from = committed.unwrap_or(earliest).max(earliest);
            let owner = id.and_then(|id| self.groups.owner_name(id, number));
            Some(CommittedInfo {
                partition: number,
                committed,
                latest,
                lag: u64::try_from(latest.saturating_sub(from)).unwrap_or(0),
                owner: owner.map(Into::into),
            })
        });
        Ok(Response::Committed(rows.collect()))
    }

    /// A consumer whose time to acknowledge something is over loses its place.
    pub(super) fn check_ack_wait(&mut self, connection: ConnectionId, now: Now) {
        let Some(member) = self.groups.member(connection) else {
            return;
        };
        if member.deadline().is_none_or(|deadline| deadline > now.mono) {
            return;
        }
        let waited = member.ack_wait().as_millis();
        let had = member.numbers();
        let error = not_assigned(format!(
            "the CONSUME is over: nothing was acknowledged for ack_wait={waited} ms, so the place is lost; it had {had}"
        ));
        self.delayed.end_one(connection, error);
        self.leave(connection, Leave::Gone);
    }

    /// Whether what a connection is sent commits itself, once [`Broker::sent`] says that it was written.
    #[must_use]
    pub fn commits_sent(&self, connection: ConnectionId) -> bool {
        use crate::api::AckMode::Auto;
        let member = self.groups.member(connection);
        member.is_some_and(|member| member.ack == Auto)
    }

    /// Records of a partition were written to the socket of such a connection, up to and without that offset.
    pub fn sent(&mut self, connection: ConnectionId, partition: u32, next_offset: i64, now: Now) {
        // Where it has lost the partition since, this was committed when it did.
        let offset = next_offset.saturating_sub(1);
        if let Err(error) = self.acknowledge(connection, partition, offset, now) {
            log::debug!(
                "connection={} what was sent is not committed: {error}",
                connection.0
            );
        }
    }

    /// Whether a consumer is to be told of its partitions, or of its end: that does not wait for room in its backlog, because others
    /// wait for it.
    #[must_use]
    pub fn has_notice(&self, connection: ConnectionId) -> bool {
        let waiter = self.delayed.get(connection);
        let ends = waiter.is_some_and(|waiter| {
            matches!(waiter.wait, Wait::Consume(_)) && waiter.ended.is_some()
        });
        ends || self.groups.is_untold(connection)
    }

    /// Goes on with a CONSUME.
    pub(super) fn resume_consumer(&mut self, connection: ConnectionId, now: Now) -> Resumed {
        if let Some(numbers) = self.groups.tell(connection, self.turn) {
            return Resumed::Event(TailEvent::Assigned(numbers));
        }
        while let Some(next) = self.next_of(connection) {
            let step = match next.position {
                Some(offset) => self.give(connection, next, offset, now),
                None => self.begin(connection, next),
            };
            match step {
                Ok(Step::Give(event)) => return Resumed::Event(event),
                Ok(Step::LookOn) => {}
                Ok(Step::Wait) => break,
                Err(error) => {
                    self.leave(connection, Leave::Gone);
                    return self.end_tail(connection, error);
                }
            }
        }
        Resumed::Waiting
    }

    /// The partition that a consumer is given something of next.
    fn next_of(&self, connection: ConnectionId) -> Option<Next> {
        self.groups.next(connection, self.turn, |held| {
            let log = self
                .partitions
                .get(held.key)
                .map(|partition| &partition.log);
            let end = log.map_or(i64::MIN, Log::high_watermark);
            held.position.is_none_or(|position| position < end)
        })
    }

    /// Finds where a consumer begins in a partition that is new to it.
    fn begin(&mut self, connection: ConnectionId, next: Next) -> Result<Step, ApiError> {
        let log = &self.written(next.key)?.log;
        let (earliest, latest) = (log.log_start_offset(), log.high_watermark());
        let Some(member) = self.groups.member(connection) else {
            return Ok(Step::Wait);
        };
        let (share, from) = (member.share, member.from);
        let commit = self.groups.get(share).and_then(|share| {
            let commit = share.commits.get(&next.number);
            commit.copied()
        });
        let wanted = match commit {
            Some(commit) => commit.lost.unwrap_or(commit.offset),
            None => self.groups.start_of(
                share,
                next.number,
                match from {
                    StartAt::Earliest => earliest,
                    StartAt::Latest => latest,
                },
            ),
        };
        let found = match commit {
            Some(commit) if commit.lost.is_some() => commit.offset,
            _ => wanted,
        };
        let to = found.clamp(earliest, latest);
        if let Some(member) = self.groups.member_mut(connection) {
            member.begin(next.place, to);
        }
        if to == wanted {
            return Ok(Step::LookOn);
        }
        if wanted > to && commit.is_some() {
            // Otherwise records that come would fall below what is committed, and never be delivered.
            drop(self.groups.commit(share, next.number, to));
        }
        Ok(Step::Give(self.reset(next, wanted, to)))
    }

    fn reset(&self, next: Next, from: i64, to: i64) -> TailEvent {
        let (topic, partition) = self.place(next.key);
        log::warn!(
            "a consumer of topic={topic} partition={partition} goes on at {to}, offset {from} is gone"
        );
        TailEvent::Reset {
            partition,
            from,
            to,
        }
    }

    /// Gives a consumer what a partition has from that offset on.
    fn give(
        &mut self,
        connection: ConnectionId,
        next: Next,
        offset: i64,
        now: Now,
    ) -> Result<Step, ApiError> {
        let Some(member) = self.groups.member_mut(connection) else {
            return Ok(Step::Wait);
        };
        let room = member.room();
        if room == 0 {
            let told = member.tell_full();
            return Ok(told.map_or(Step::Wait, |count| Step::Give(TailEvent::Inflight(count))));
        }
        let mut records = Records::new();
        let log = &mut self.written(next.key)?.log;
        let read = log.read(offset, room, TAIL_BYTES, CrcMode::Check, &mut records);
        let (position, event) = match read {
            Ok(outcome) if records.is_empty() => (outcome.next_offset, None),
            Ok(outcome) => {
                self.count_out(records.len(), records.payload_bytes());
                if let Some(member) = self.groups.member_mut(connection) {
                    member.sent(next.place, &records, outcome.next_offset, now.mono);
                    let deadline = member.deadline();
                    self.delayed.set_deadline(connection, deadline);
                }
                let partition = next.number;
                return Ok(Step::Give(TailEvent::Records { partition, records }));
            }
            Err(Error::Corrupt(damage)) if damage.next > offset => {
                self.stats.corrupt_records += 1;
                let event = TailEvent::Corrupt {
                    partition: next.number,
                    offset,
                    next: damage.next,
                };
                (damage.next, Some(event))
            }
            Err(Error::OutOfRange { earliest, .. }) if earliest > offset => {
                (earliest, Some(self.reset(next, offset, earliest)))
            }
            Err(error) => return Err(self.explain_error(next.key, &error)),
        };
        if let Some(member) = self.groups.member_mut(connection) {
            member.skip(next.place, position);
        }
        Ok(match event {
            Some(event) => Step::Give(event),
            None if position > offset => Step::LookOn,
            None => Step::Wait,
        })
    }
}

/// What comes of a look at a consumer's partition.
#[derive(Debug)]
enum Step {
    Give(TailEvent),
    LookOn,
    Wait,
}

fn not_assigned(words: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::NotAssigned, words)
}

fn not_sent(partition: u32, offset: i64, position: i64) -> ApiError {
    let sent = match position.saturating_sub(1) {
        last if last >= 0 => format!("{last} is the last offset that can be"),
        _ => "nothing of it was sent yet".to_owned(),
    };
    ApiError::new(
        ErrorCode::BadArgument,
        format!("offset {offset} of partition {partition} cannot be acknowledged; {sent}"),
    )
}
