//! What a producer's threads share: queues of batches, one for each partition, and what is under way.
//!
//! A queue is in order: batches leave from its front, and what has to be sent again comes back to its front with everything that
//! left behind it. While something of a queue is to be sent again, nothing more of it leaves until all that is under way has been
//! answered. So a record is never stored before one that was handed over earlier to the same partition and is stored later; it may be
//! stored twice.

#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::murmur2::partition_of;

use super::super::Error;
use super::batch::{Batch, Kind, Open};
use super::flight::{Asked, InFlight};
use super::message::Message;
use super::receipt::{Delivery, Receipt};
use super::{Options, Shared};

/// Buffers that are kept for the next batches.
const SPARES_MAX: usize = 64;

/// A topic as far as it is known.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: String,
    /// False where the next record has to look it up.
    pub(super) is_known: bool,
    /// The queues of its partitions, by number.
    pub(super) queues: Vec<usize>,
    /// Partitions that keys and turns choose from.
    pub(super) active: u32,
    /// The partition that records without a key stick to.
    pub(super) sticky: u32,
    /// When its partitions were counted.
    pub(super) counted: Instant,
    pub(super) is_being_counted: bool,
}

/// What is on its way to one partition.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) topic: usize,
    pub(super) partition: u32,
    /// `topic/partition`.
    pub(super) target: String,
    pub(super) open: Option<Open>,
    /// Tells the batches that were opened here apart.
    pub(super) serial: u64,
    pub(super) sealed: VecDeque<Batch>,
    pub(super) in_flight: usize,
    /// What is to be sent again, in order; nothing else leaves while it is not empty.
    pub(super) again: VecDeque<Batch>,
    /// Whether that has to wait before it leaves.
    pub(super) backs_off: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct State {
    pub(super) options: Options,
    pub(super) topics: Vec<Topic>,
    by_name: HashMap<String, usize>,
    /// The topic of the last record: most programs write many to one.
    last: usize,
    pub(super) queues: Vec<Queue>,
    /// A queue for each sealed batch that may leave.
    pub(super) ready: VecDeque<usize>,
    /// Open batches in the order in which their time comes.
    opened: VecDeque<(Instant, usize, u64)>,
    /// Topics whose partitions are to be counted.
    pub(super) to_count: VecDeque<usize>,
    pub(super) in_flight: VecDeque<InFlight>,
    /// Queues with something to send again once that time has come.
    pub(super) held: VecDeque<(Instant, usize)>,
    /// Bytes of records that are not decided.
    pub(super) buffered: usize,
    /// Whether a thread waits for room.
    pub(super) room_is_wanted: bool,
    /// The first record that failed since the last flush.
    pub(super) failure: Option<Error>,
    /// What was in the way last.
    pub(super) trouble: Option<Error>,
    pub(super) is_closing: bool,
    /// Why the connection is of no use any more.
    pub(super) broken: Option<Error>,
    /// Answers since the connection was made.
    pub(super) answers: u64,
    spares: Vec<Vec<u8>>,
}

/// What a record needs before it can be taken.
#[derive(Debug)]
pub(super) enum Taken {
    Done(Delivery),
    /// Its topic has to be looked up.
    Unknown,
    /// Others have to leave first.
    Full,
    Refused(Error),
}

impl State {
    pub(super) fn new(options: Options) -> Self {
        Self {
            options,
            topics: Vec::new(),
            by_name: HashMap::new(),
            last: 0,
            queues: Vec::new(),
            ready: VecDeque::new(),
            opened: VecDeque::new(),
            to_count: VecDeque::new(),
            in_flight: VecDeque::new(),
            held: VecDeque::new(),
            buffered: 0,
            room_is_wanted: false,
            failure: None,
            trouble: None,
            is_closing: false,
            broken: None,
            answers: 0,
            spares: Vec::new(),
        }
    }

    /// The topic, where it is known.
    fn topic(&mut self, name: &str) -> Option<usize> {
        let is_last = self
            .topics
            .get(self.last)
            .is_some_and(|topic| topic.name == name);
        if !is_last {
            self.last = *self.by_name.get(name)?;
        }
        let is_known = self.topics.get(self.last)?.is_known;
        is_known.then_some(self.last)
    }

    pub(super) fn knows(&mut self, name: &str, partition: Option<u32>) -> bool {
        let topic = self.topic(name);
        topic
            .and_then(|topic| self.topics.get(topic))
            .is_some_and(|topic| partition.is_none_or(|partition| partition < topic.active))
    }

    /// Takes down how many partitions a topic has.
    pub(super) fn learn(&mut self, name: &str, partitions: u32, now: Instant) {
        let topic = self.by_name.get(name).copied().unwrap_or_else(|| {
            self.topics.push(Topic {
                name: name.to_owned(),
                is_known: false,
                queues: Vec::new(),
                active: 0,
                sticky: 0,
                counted: now,
                is_being_counted: false,
            });
            let topic = self.topics.len() - 1;
            self.by_name.insert(name.to_owned(), topic);
            topic
        });
        self.set_partitions(topic, partitions, now);
    }

    pub(super) fn set_partitions(&mut self, at: usize, partitions: u32, now: Instant) {
        let Some(topic) = self.topics.get_mut(at) else {
            return;
        };
        topic.is_known = partitions > 0;
        topic.active = partitions;
        topic.counted = now;
        topic.is_being_counted = false;
        topic.sticky %= partitions.max(1);
        for partition in u32::try_from(topic.queues.len()).unwrap_or(u32::MAX)..partitions {
            topic.queues.push(self.queues.len());
            self.queues.push(Queue {
                topic: at,
                partition,
                target: format!("{}/{partition}", topic.name),
                open: None,
                serial: 0,
                sealed: VecDeque::new(),
                in_flight: 0,
                again: VecDeque::new(),
                backs_off: false,
            });
        }
    }

    /// Takes a record into an open batch. Returns whether the sender has something new to do beside.
    pub(super) fn take(&mut self, message: &Message<'_>, shared: &Arc<Shared>) -> (Taken, bool) {
        if self.is_closing {
            return (Taken::Refused(Error::Closed), false);
        }
        let Some(topic) = self.topic(message.topic) else {
            return (Taken::Unknown, false);
        };
        if self.buffered >= self.options.buffer_bytes {
            return (Taken::Full, false);
        }
        let Some(queue) = self.queue_of(topic, message) else {
            return (Taken::Unknown, false);
        };
        let (kind, bytes) = (
            if message.is_plain() {
                Kind::Plain
            } else {
                Kind::Counted
            },
            message.payload_bytes(),
        );
        let batch_bytes = self.options.batch_bytes;
        let mut is_news = false;
        let open = self.queues.get(queue).and_then(|queue| queue.open.as_ref());
        if open.is_some_and(|open| !open.takes(kind, bytes, batch_bytes)) {
            self.seal(queue);
            is_news = true;
        }
        let mut fresh = None;
        if self
            .queues
            .get(queue)
            .is_none_or(|queue| queue.open.is_none())
        {
            fresh = Some(self.open(queue, kind, shared));
            // With others open before it, the sender wakes in time anyway.
            is_news |= self.opened.len() == 1;
        }
        let Some(Queue { open, target, .. }) = self.queues.get_mut(queue) else {
            return (Taken::Unknown, false);
        };
        let open = match fresh {
            Some(fresh) => open.insert(fresh),
            None => match open {
                Some(open) => open,
                None => return (Taken::Unknown, false),
            },
        };
        let (index, grown) = open.push(message, target);
        let delivery = Delivery::new(Arc::clone(&open.receipt), index);
        let is_full = open.is_full(batch_bytes);
        self.buffered += grown;
        if is_full {
            self.seal(queue);
        }
        (Taken::Done(delivery), is_news || is_full)
    }

    /// The queue that a record belongs to; `None` where it names a partition that is not known.
    fn queue_of(&self, topic: usize, message: &Message<'_>) -> Option<usize> {
        let topic = self.topics.get(topic)?;
        let partition = match (message.partition, message.key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => partition_of(key, topic.active),
            (None, None) => topic.sticky,
        };
        if partition >= topic.active {
            return None;
        }
        topic.queues.get(usize::try_from(partition).ok()?).copied()
    }

    fn open(&mut self, queue: usize, kind: Kind, shared: &Arc<Shared>) -> Open {
        let now = Instant::now();
        let spare = self.spares.pop();
        let room = self.options.batch_bytes + self.options.batch_bytes / 8;
        let bytes = spare.unwrap_or_else(|| Vec::with_capacity(room));
        let receipt = Arc::new(Receipt::new(Arc::clone(shared), queue));
        if let Some(entry) = self.queues.get_mut(queue) {
            entry.serial += 1;
            let due = now + self.options.linger;
            self.opened.push_back((due, queue, entry.serial));
            let topic = entry.topic;
            if let Some(topic_entry) = self.topics.get_mut(topic)
                && !topic_entry.is_being_counted
                && topic_entry.counted + self.options.refresh < now
            {
                topic_entry.is_being_counted = true;
                self.to_count.push_back(topic);
            }
        }
        Open::new(kind, bytes, receipt, now)
    }

    /// Ends the open batch of a queue. Records without a key go on with another partition.
    fn seal(&mut self, at: usize) {
        let Some(queue) = self.queues.get_mut(at) else {
            return;
        };
        let Some(open) = queue.open.take() else {
            return;
        };
        let batch = open.seal(&queue.target);
        queue.sealed.push_back(batch);
        self.ready.push_back(at);
        let (topic, partition) = (queue.topic, queue.partition);
        if let Some(topic) = self.topics.get_mut(topic)
            && topic.sticky == partition
        {
            topic.sticky = (partition + 1) % topic.active.max(1);
        }
    }

    /// Ends the batch that the receipt is for, where it is open.
    pub(super) fn hurry(&mut self, receipt: &Arc<Receipt>) -> bool {
        let at = receipt.queue;
        let open = self.queues.get(at).and_then(|queue| queue.open.as_ref());
        let is_open = open.is_some_and(|open| Arc::ptr_eq(&open.receipt, receipt));
        if is_open {
            self.seal(at);
        }
        is_open
    }

    /// Ends every open batch; the receipts of all that is not decided.
    pub(super) fn seal_all(&mut self) -> Vec<Arc<Receipt>> {
        for at in 0..self.queues.len() {
            self.seal(at);
        }
        let flying = self.in_flight.iter().filter_map(|entry| match &entry.what {
            Asked::Batch { batch, .. } => Some(batch),
            Asked::Partitions { .. } => None,
        });
        let waiting = self
            .queues
            .iter()
            .flat_map(|queue| queue.again.iter().chain(&queue.sealed));
        flying
            .chain(waiting)
            .map(|batch| Arc::clone(&batch.receipt))
            .collect()
    }

    /// The first failure since this was asked last.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Whether anything waits to be sent.
    pub(super) fn has_work(&self) -> bool {
        self.buffered > 0
    }

    /// Ends the open batches whose time has come, lets go those that waited to be sent again; returns when the next is due.
    pub(super) fn advance(&mut self, now: Instant) -> Option<Instant> {
        while let Some(&(due, queue, serial)) = self.opened.front() {
            let is_open = self
                .queues
                .get(queue)
                .is_some_and(|queue| queue.serial == serial && queue.open.is_some());
            if is_open && due > now {
                break;
            }
            self.opened.pop_front();
            if is_open {
                self.seal(queue);
            }
        }
        while let Some(&(due, queue)) = self.held.front()
            && due <= now
        {
            self.held.pop_front();
            self.release(queue, now);
        }
        let opened = self.opened.front().map(|(due, ..)| *due);
        let held = self.held.front().map(|(due, _)| *due);
        opened.into_iter().chain(held).min()
    }

    /// Puts what is to be sent again before what was not sent yet.
    pub(super) fn release(&mut self, at: usize, now: Instant) {
        let Some(queue) = self.queues.get_mut(at) else {
            return;
        };
        while let Some(batch) = queue.again.pop_back() {
            queue.sealed.push_front(batch);
        }
        self.expire(at, now);
        let waiting = self.queues.get(at).map_or(0, |queue| queue.sealed.len());
        // Those that are named already are as many too many, which does no harm.
        self.ready.extend(std::iter::repeat_n(at, waiting));
    }

    /// Gives up the batches at the front of a queue whose time is over.
    fn expire(&mut self, at: usize, now: Instant) {
        let timeout = self.options.delivery_timeout;
        let error = Error::TimedOut {
            after: timeout,
            last: self.trouble.clone().map(Box::new),
        };
        while let Some(queue) = self.queues.get_mut(at)
            && let Some(front) = queue.sealed.front()
            && front.opened + timeout <= now
            && let Some(batch) = queue.sealed.pop_front()
        {
            self.fail(batch, &error);
        }
    }

    fn fail(&mut self, batch: Batch, error: &Error) {
        self.failure.get_or_insert_with(|| error.clone());
        batch
            .receipt
            .decide(batch.first, batch.count, Err(error.clone()));
        self.finish(batch);
    }

    /// Gives back what a batch holds.
    pub(super) fn finish(&mut self, batch: Batch) {
        self.buffered -= batch.size.min(self.buffered);
        let bytes_max = 2 * self.options.batch_bytes;
        if self.spares.len() < SPARES_MAX
            && let Some(buffer) = batch.into_buffer()
            && buffer.capacity() <= bytes_max
        {
            self.spares.push(buffer);
        }
    }

    /// Gives up what has waited too long for a connection.
    pub(super) fn expire_all(&mut self, error: &Error, now: Instant) {
        self.trouble = Some(error.clone());
        self.advance(now);
        for at in 0..self.queues.len() {
            self.expire(at, now);
        }
    }
}
