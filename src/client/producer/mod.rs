//! The producer: records in, batches out, a handle for each record.
//!
//! `send` copies a record into the open batch of its partition and returns. A batch leaves when it is full, when it has waited for
//! `linger`, or when somebody waits for it. Batches are pipelined over one connection, at most `in_flight` of them at a time.
//!
//! What is stored is stored in the order of `send`, for each partition. Where a batch is refused for a reason that passes (the disk is
//! full) or the connection is lost, it and everything behind it are sent again in that order, until `delivery_timeout` is over. So a record
//! is stored at least once: one whose answer was lost with the connection, or that was stored behind one that was refused, is stored
//! twice, and its handle names the later place.

#![forbid(unsafe_code)]

mod batch;
mod flight;
mod message;
mod receipt;
mod sender;
mod state;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::addr::Address;
use crate::api::ErrorCode;

pub use message::Message;
pub use receipt::{Delivery, Placed};

use super::wire::{Connection, numbers, topic_word};
use super::{Admin, Error};
use receipt::Receipt;
use state::{State, Taken};

/// How a producer works. `Default` is right for most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// A batch leaves with about so many bytes; a larger record has one of its own. 64 KiB.
    pub batch_bytes: usize,
    /// A batch that is not full leaves after so long. 5 ms.
    pub linger: Duration,
    /// Batches that wait for their answer at most; at least 1. 32.
    pub in_flight: usize,
    /// `send` waits while records of so many bytes are not answered. 16 MiB.
    pub buffer_bytes: usize,
    /// A record that is not stored after so long has failed. 2 minutes.
    pub delivery_timeout: Duration,
    /// The wait before something is sent again; it doubles while the broker is out of reach. 100 ms.
    pub backoff: Duration,
    /// The partitions of a topic are counted again after so long. 1 minute.
    pub refresh: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            batch_bytes: 64 * 1024,
            linger: Duration::from_millis(5),
            in_flight: 32,
            buffer_bytes: 16 << 20,
            delivery_timeout: Duration::from_mins(2),
            backoff: Duration::from_millis(100),
            refresh: Duration::from_mins(1),
        }
    }
}

/// The most that a batch may have where nothing else is said: a broker takes 16 MiB, and lines and lengths come to that.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// What the threads of a producer share.
#[derive(Debug)]
struct Shared {
    address: Address,
    state: Mutex<State>,
    /// The sender waits here.
    work: Condvar,
    /// Those who send wait here.
    room: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the batch that somebody waits for.
    fn hurry(&self, receipt: &Arc<Receipt>) {
        if self.lock().hurry(receipt) {
            self.work.notify_one();
        }
    }

    /// Wakes those who wait for room, once half of it is free: one by one they would wake for every batch.
    fn note_room(&self, state: &mut State) {
        if state.room_is_wanted && state.buffered <= state.options.buffer_bytes / 2 {
            state.room_is_wanted = false;
            self.room.notify_all();
        }
    }
}

/// Sends records to a broker. It may be shared between threads.
///
/// ```
/// use mini_broker::client::{Message, Producer};
///
/// let broker = mini_broker::testing::Broker::start();
/// let producer = Producer::connect(broker.addr())?;
/// let first = producer.send(&Message::to("orders").key("anna").value("shoes"))?;
/// for number in 0..1000 {
///     producer.send(&Message::to("orders").value(&format!("order {number}")))?;
/// }
/// assert_eq!(first.wait()?.offset, 0);
/// producer.close()?; // every record is stored, or this says why not
/// # Ok::<(), mini_broker::client::Error>(())
/// ```
#[derive(Debug)]
pub struct Producer {
    shared: Arc<Shared>,
    /// Looks topics up.
    admin: Mutex<Admin>,
    sender: Option<JoinHandle<()>>,
}

impl Producer {
    /// Connects to `host:port` or `unix:PATH`.
    ///
    /// # Errors
    /// [`Error::Usage`] where that is no address, [`Error::Connect`] where nobody listens there.
    pub fn connect(address: &str) -> Result<Self, Error> {
        Self::with_options(address, Options::default())
    }

    /// As [`Producer::connect`], with options.
    ///
    /// # Errors
    /// As [`Producer::connect`], and [`Error::Usage`] for options that no producer could work with.
    pub fn with_options(address: &str, options: Options) -> Result<Self, Error> {
        if options.in_flight == 0 || options.buffer_bytes == 0 {
            return Err(Error::Usage(
                "in_flight and buffer_bytes of a producer are at least 1".to_owned(),
            ));
        }
        if !(1..=BATCH_BYTES_MAX).contains(&options.batch_bytes) {
            return Err(Error::Usage(format!(
                "batch_bytes of a producer is from 1 to {BATCH_BYTES_MAX}, not {}",
                options.batch_bytes
            )));
        }
        let address: Address = address.parse().map_err(Error::Usage)?;
        let connection = Connection::open(&address)?;
        let shared = Arc::new(Shared {
            address: address.clone(),
            state: Mutex::new(State::new(options)),
            work: Condvar::new(),
            room: Condvar::new(),
        });
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || sender::run(&shared, connection))
        };
        Ok(Self {
            shared,
            admin: Mutex::new(Admin::lazy(address)),
            sender: Some(sender),
        })
    }

    /// Takes a record. It waits where too much is under way already, and where the topic was not heard of before: then it is looked up, and
    /// the first record creates it if the broker allows that.
    ///
    /// # Errors
    /// Why the record was not taken: an unknown topic or partition, something that no record can have, or [`Error::TimedOut`] where
    /// there was no room, or no broker, for `delivery_timeout`.
    pub fn send(&self, message: &Message<'_>) -> Result<Delivery, Error> {
        message.check()?;
        let mut state = self.shared.lock();
        loop {
            let (taken, is_news) = state.take(message, &self.shared);
            if is_news {
                self.shared.work.notify_one();
            }
            match taken {
                Taken::Done(delivery) => return Ok(delivery),
                Taken::Refused(error) => return Err(error),
                Taken::Full => state = self.wait_for_room(state)?,
                Taken::Unknown => {
                    drop(state);
                    if let Some(delivery) = self.discover(message)? {
                        return Ok(delivery);
                    }
                    state = self.shared.lock();
                }
            }
        }
    }

    fn wait_for_room<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
    ) -> Result<MutexGuard<'s, State>, Error> {
        let timeout = state.options.delivery_timeout;
        let until = Instant::now() + timeout;
        state.room_is_wanted = true;
        while state.room_is_wanted {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut {
                    after: timeout,
                    last: None,
                });
            }
            let woken = self.shared.room.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state)
    }

    /// Looks a topic up. Where there is none, this record is the first, and what became of it is returned.
    fn discover(&self, message: &Message<'_>) -> Result<Option<Delivery>, Error> {
        topic_word(message.topic)?;
        let mut admin = self.admin.lock().unwrap_or_else(PoisonError::into_inner);
        let options = self.shared.lock().options;
        let until = Instant::now() + options.delivery_timeout;
        loop {
            // Another thread may have been here before.
            if self.shared.lock().knows(message.topic, message.partition) {
                return Ok(None);
            }
            let error = match self.look_up(&mut admin, message) {
                Err(error) if error.is_retryable() => error,
                result => return result,
            };
            let now = Instant::now();
            if now + options.backoff > until {
                return Err(Error::TimedOut {
                    after: options.delivery_timeout,
                    last: Some(Box::new(error)),
                });
            }
            thread::sleep(options.backoff);
        }
    }

    fn look_up(&self, admin: &mut Admin, message: &Message<'_>) -> Result<Option<Delivery>, Error> {
        let mut first = None;
        let partitions = match admin.offsets(message.topic) {
            Err(error) if error.is_refusal(ErrorCode::UnknownTopic) => {
                first = Some(self.first_record(admin, message)?);
                admin.offsets(message.topic)?.len()
            }
            result => result?.len(),
        };
        let partitions = u32::try_from(partitions).unwrap_or(u32::MAX);
        let now = Instant::now();
        self.shared.lock().learn(message.topic, partitions, now);
        match (first, message.partition) {
            (None, Some(partition)) if partition >= partitions => Err(Error::Usage(format!(
                "topic {} has {partitions} partitions: {partition} is not one of 0 to {}",
                message.topic,
                partitions.saturating_sub(1)
            ))),
            (first, _) => Ok(first),
        }
    }

    /// Writes the first record of a topic by itself: only then is it known how many partitions the broker gave it.
    fn first_record(&self, admin: &mut Admin, message: &Message<'_>) -> Result<Delivery, Error> {
        let target = match message.partition {
            Some(partition) => format!("{}/{partition}", message.topic),
            None => message.topic.to_owned(),
        };
        let mut request = Vec::new();
        message.put_request(&target, &mut request);
        let placed = admin.with(|connection| {
            connection.send(&request)?;
            let reply = connection.reply()?;
            let [partition, offset] = numbers(&reply)?;
            let partition = u32::try_from(partition).map_err(|_| Error::unexpected(&reply))?;
            Ok(Placed { partition, offset })
        })?;
        let receipt = Arc::new(Receipt::new(Arc::clone(&self.shared), usize::MAX));
        receipt.seal(1);
        receipt.decide(0, 1, Ok(placed));
        Ok(Delivery::new(receipt, 0))
    }

    /// Waits until every record that was taken before is stored or has failed.
    ///
    /// # Errors
    /// The first failure of any record since the last flush, whether or not somebody looked at its handle.
    pub fn flush(&self) -> Result<(), Error> {
        let receipts = self.shared.lock().seal_all();
        self.shared.work.notify_one();
        for receipt in receipts {
            receipt.wait_all();
        }
        match self.shared.lock().take_failure() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Flushes and ends. Dropping a producer does the same, and a failure is then seen by nobody but the log.
    ///
    /// # Errors
    /// As [`Producer::flush`].
    pub fn close(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(sender) = self.sender.take() else {
            return Ok(());
        };
        let flushed = self.flush();
        self.shared.lock().is_closing = true;
        self.shared.work.notify_one();
        if sender.join().is_err() {
            log::error!("the thread of a producer panicked");
        }
        flushed
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            log::warn!("a producer ended with records that are not stored: {error}");
        }
    }
}
