//! What is under way: requests that the broker owes an answer to, and what its answers mean.

#![forbid(unsafe_code)]

use std::time::Instant;

use crate::api::ErrorCode;

use super::super::Error;
use super::super::wire::numbers;
use super::batch::{Batch, Kind, Outgoing};
use super::receipt::Placed;
use super::state::State;

/// What the broker owes an answer to.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) what: Asked,
    /// Answers that came.
    answered: u32,
}

#[derive(Debug)]
pub(super) enum Asked {
    Batch {
        queue: usize,
        batch: Batch,
        /// What of it is to be sent again.
        again: Option<Again>,
    },
    Partitions {
        topic: usize,
        /// Lines still to come, once the head is there.
        lines: Option<u32>,
        count: u32,
    },
}

/// What of a batch is to be sent again.
#[derive(Debug, Clone, Copy)]
pub(super) enum Again {
    /// From that record on.
    From(u32),
    /// All of it, each record by itself: the broker refused all for the sake of one.
    Apart,
}

impl State {
    /// What may be written now, at most about so many bytes; it is under way from here on.
    pub(super) fn next_outgoing(&mut self, bytes_max: usize, out: &mut Vec<Outgoing>) {
        let mut bytes = 0;
        while bytes < bytes_max && self.in_flight.len() < self.options.in_flight {
            if let Some(topic) = self.to_count.pop_front() {
                let name = self.topics.get(topic).map_or("", |topic| &topic.name);
                out.push(Outgoing::of(format!("OFFSETS {name}\n").into_bytes()));
                self.in_flight.push_back(InFlight {
                    what: Asked::Partitions {
                        topic,
                        lines: None,
                        count: 0,
                    },
                    answered: 0,
                });
                continue;
            }
            let Some(at) = self.ready.pop_front() else {
                return;
            };
            let Some(queue) = self.queues.get_mut(at) else {
                continue;
            };
            if !queue.again.is_empty() {
                continue;
            }
            let Some(batch) = queue.sealed.pop_front() else {
                continue;
            };
            queue.in_flight += 1;
            out.push(batch.outgoing());
            bytes += batch.size;
            self.in_flight.push_back(InFlight {
                what: Asked::Batch {
                    queue: at,
                    batch,
                    again: None,
                },
                answered: 0,
            });
        }
    }

    /// Whether an answer is waited for.
    pub(super) fn is_owed(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Takes a line that the broker sent.
    ///
    /// # Errors
    /// It is no answer to what was asked.
    pub(super) fn answer(&mut self, line: &[u8], now: Instant) -> Result<(), Error> {
        let Some(mut entry) = self.in_flight.pop_front() else {
            return Err(if line.starts_with(b"ERR ") {
                Error::refused(line)
            } else {
                Error::unexpected(line)
            });
        };
        let is_over = match &mut entry.what {
            Asked::Batch { queue, .. } => {
                let must_wait = self
                    .queues
                    .get(*queue)
                    .is_some_and(|queue| !queue.again.is_empty());
                self.batch_answer(&mut entry, must_wait, line)
            }
            Asked::Partitions { .. } => Ok(partitions_answer(&mut entry, line)),
        };
        match is_over {
            Ok(true) => {
                self.answers += 1;
                self.over(entry.what, now);
                Ok(())
            }
            Ok(false) => {
                self.in_flight.push_front(entry);
                Ok(())
            }
            Err(error) => {
                self.in_flight.push_front(entry);
                Err(error)
            }
        }
    }

    /// Takes an answer to a batch; returns whether it was the last.
    fn batch_answer(
        &mut self,
        entry: &mut InFlight,
        must_wait: bool,
        line: &[u8],
    ) -> Result<bool, Error> {
        let Asked::Batch {
            queue,
            batch,
            again,
        } = &mut entry.what
        else {
            return Ok(true);
        };
        let index = entry.answered;
        let (records, answers) = match batch.kind {
            Kind::Plain => (batch.count, 1),
            Kind::Counted => (1, batch.count),
        };
        entry.answered += 1;
        let is_last = entry.answered == answers;
        if must_wait && again.is_none() {
            // One before it is sent again, so this one is too, whatever became of it.
            *again = Some(Again::From(0));
        }
        if again.is_some() {
            return Ok(is_last);
        }
        if line.starts_with(b"ERR ") {
            let error = Error::refused(line);
            if error.is_retryable() {
                *again = Some(Again::From(index));
                if let Some(queue) = self.queues.get_mut(*queue) {
                    queue.backs_off = true;
                }
                self.trouble = Some(error);
            } else if is_of_one_record(&error) && records > 1 {
                *again = Some(Again::Apart);
            } else {
                self.failure.get_or_insert_with(|| error.clone());
                let queue = *queue;
                batch
                    .receipt
                    .decide(batch.first + index, records, Err(error.clone()));
                self.doubt(queue, &error);
            }
            return Ok(is_last);
        }
        let [partition, offset] = numbers(line)?;
        let partition = u32::try_from(partition).map_err(|_| Error::unexpected(line))?;
        let placed = Placed { partition, offset };
        batch
            .receipt
            .decide(batch.first + index, records, Ok(placed));
        Ok(is_last)
    }

    /// The broker does not know a topic or a partition that was known: it is looked up again.
    fn doubt(&mut self, queue: usize, error: &Error) {
        let is_gone = error.is_refusal(ErrorCode::UnknownTopic)
            || error.is_refusal(ErrorCode::UnknownPartition);
        let topic = self.queues.get(queue).map(|queue| queue.topic);
        if is_gone && let Some(topic) = topic.and_then(|topic| self.topics.get_mut(topic)) {
            topic.is_known = false;
        }
    }

    /// Every answer to something came.
    fn over(&mut self, what: Asked, now: Instant) {
        match what {
            Asked::Partitions { topic, count, .. } => self.set_partitions(topic, count, now),
            Asked::Batch {
                queue: at,
                batch,
                again,
            } => {
                if let Some(queue) = self.queues.get_mut(at) {
                    queue.in_flight -= 1;
                }
                match again {
                    None => self.finish(batch),
                    Some(again) => self.send_again(at, batch, again),
                }
                self.hold(at, now);
            }
        }
    }

    fn send_again(&mut self, at: usize, batch: Batch, again: Again) {
        let Some(queue) = self.queues.get_mut(at) else {
            return;
        };
        match again {
            Again::From(from) => queue.again.extend(batch.without_first(from)),
            Again::Apart => queue.again.extend(batch.split(&queue.target)),
        }
    }

    /// Once nothing of a queue is under way any more, what is to be sent again waits for its time.
    fn hold(&mut self, at: usize, now: Instant) {
        let Some(queue) = self.queues.get_mut(at) else {
            return;
        };
        if queue.again.is_empty() || queue.in_flight > 0 {
            return;
        }
        if std::mem::take(&mut queue.backs_off) {
            self.held.push_back((now + self.options.backoff, at));
        } else {
            self.release(at, now);
        }
    }

    /// The connection is gone: everything that was under way is sent again, in order.
    pub(super) fn requeue(&mut self, error: &Error, now: Instant) {
        self.trouble = Some(error.clone());
        for entry in std::mem::take(&mut self.in_flight) {
            match entry.what {
                Asked::Partitions { topic, .. } => {
                    if let Some(topic) = self.topics.get_mut(topic) {
                        topic.is_being_counted = false;
                    }
                }
                Asked::Batch {
                    queue: at,
                    batch,
                    again,
                } => {
                    let decided = match (batch.kind, again) {
                        (Kind::Plain, _) => 0,
                        (Kind::Counted, Some(Again::From(from))) => from,
                        (Kind::Counted, _) => entry.answered,
                    };
                    if let Some(queue) = self.queues.get_mut(at) {
                        queue.in_flight -= 1;
                        queue.again.extend(batch.without_first(decided));
                    }
                }
            }
        }
        self.held.clear();
        self.ready.clear();
        for at in 0..self.queues.len() {
            self.release(at, now);
        }
    }
}

/// Refusals of a whole BATCH for the sake of one record in it.
fn is_of_one_record(error: &Error) -> bool {
    error.is_refusal(ErrorCode::MessageTooLarge) || error.is_refusal(ErrorCode::InvalidRecord)
}

/// Takes a line of OFFSETS; returns whether it was the last.
fn partitions_answer(entry: &mut InFlight, line: &[u8]) -> bool {
    let Asked::Partitions { lines, count, .. } = &mut entry.what else {
        return true;
    };
    if let Some(left) = lines {
        *left -= 1;
    } else {
        // An ERR: the topic is gone, and looked up again by the next record.
        let found = numbers(line).map_or(0, |[n]: [i64; 1]| n);
        *count = u32::try_from(found).unwrap_or(0);
        *lines = Some(*count);
    }
    *lines == Some(0)
}
