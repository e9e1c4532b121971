//! Partitions that a program chose itself, read with FETCH.
//!
//! The next request is sent as soon as the head of a reply names the offset to go on at, so the broker sends while the records before
//! are decoded. Partitions that have something take turns. When all are read to their end, one of them is waited at, in short
//! slices, and one OFFSETS tells between the slices where else something came; a single partition is waited at for as long as it takes.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::addr::Address;
use crate::api::{ErrorCode, OffsetSpec};

use super::super::admin::{corrupt_range, offset_words};
use super::super::wire::{Connection, REPLY_TIMEOUT, numbers};
use super::super::{Admin, Error};
use super::records::{Pool, Records};
use super::{Options, Reset};

/// The longest that a FETCH waits at the broker: a consumer that is gone is noticed by then.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// The first slice of waiting at one of several partitions; each one is twice as long as the one before ...
const SLICE_MIN: Duration = Duration::from_millis(1);
/// ... up to this.
const SLICE_MAX: Duration = Duration::from_millis(50);

/// A partition that is read.
#[derive(Debug)]
struct Slot {
    topic: Arc<str>,
    partition: u32,
    /// Where the next poll goes on.
    position: OffsetSpec,
    is_paused: bool,
    /// Whether it was read to its end.
    is_idle: bool,
}

/// A FETCH whose reply did not come yet.
#[derive(Debug)]
struct Asked {
    slot: usize,
    from: OffsetSpec,
    /// Which assignment the slot is of.
    generation: u64,
    wait: Duration,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Assigned {
    address: Address,
    options: Options,
    connection: Option<Connection>,
    admin: Admin,
    slots: Vec<Slot>,
    generation: u64,
    /// The slot whose turn it was last.
    last: usize,
    asked: VecDeque<Asked>,
    slice: Duration,
    pool: Pool,
}

impl Assigned {
    pub(super) fn connect(address: Address, options: Options) -> Result<Self, Error> {
        Ok(Self {
            connection: Some(Connection::open(&address)?),
            admin: Admin::lazy(address.clone()),
            address,
            options,
            slots: Vec::new(),
            generation: 0,
            last: 0,
            asked: VecDeque::new(),
            slice: SLICE_MIN,
            pool: Pool::default(),
        })
    }

    pub(super) fn admin(&mut self) -> &mut Admin {
        &mut self.admin
    }

    pub(super) fn assign(&mut self, topic: &str, partitions: &[u32], from: OffsetSpec) {
        let topic: Arc<str> = Arc::from(topic);
        for &partition in partitions {
            self.slots
                .retain(|slot| slot.partition != partition || slot.topic != topic);
            self.slots.push(Slot {
                topic: Arc::clone(&topic),
                partition,
                position: from,
                is_paused: false,
                is_idle: false,
            });
        }
        // What was asked for is of slots that may have moved.
        self.generation += 1;
    }

    pub(super) fn unassign(&mut self) {
        self.slots.clear();
        self.generation += 1;
    }

    pub(super) fn assignment(&self) -> impl Iterator<Item = (&str, u32)> {
        self.slots.iter().map(|slot| (&*slot.topic, slot.partition))
    }

    fn slot(&mut self, topic: &str, partition: u32) -> Result<&mut Slot, Error> {
        let found = self
            .slots
            .iter_mut()
            .find(|slot| slot.partition == partition && *slot.topic == *topic);
        found.ok_or_else(|| {
            Error::Usage(format!(
                "{topic}/{partition} is not assigned to this consumer: assign it first"
            ))
        })
    }

    pub(super) fn seek(
        &mut self,
        topic: &str,
        partition: u32,
        to: OffsetSpec,
    ) -> Result<(), Error> {
        offset_words(to)?;
        let slot = self.slot(topic, partition)?;
        slot.position = to;
        slot.is_idle = false;
        Ok(())
    }

    pub(super) fn set_paused(
        &mut self,
        topic: &str,
        partition: u32,
        is_paused: bool,
    ) -> Result<(), Error> {
        let slot = self.slot(topic, partition)?;
        slot.is_paused = is_paused;
        slot.is_idle = false;
        Ok(())
    }

    /// Where the partitions are that were read from.
    pub(super) fn positions(&self) -> impl Iterator<Item = (&str, u32, i64)> {
        self.slots.iter().filter_map(|slot| match slot.position {
            OffsetSpec::Offset(offset) => Some((&*slot.topic, slot.partition, offset)),
            OffsetSpec::Earliest
            | OffsetSpec::Latest
            | OffsetSpec::Last(_)
            | OffsetSpec::Time(_) => None,
        })
    }

    pub(super) fn poll(&mut self, timeout: Duration) -> Result<Records, Error> {
        let result = self.try_poll(timeout);
        let is_broken = matches!(
            result,
            Err(Error::Connect { .. } | Error::Lost { .. } | Error::Protocol(_))
        );
        if is_broken {
            self.connection = None;
            self.asked.clear();
        }
        result
    }

    fn try_poll(&mut self, timeout: Duration) -> Result<Records, Error> {
        let until = Instant::now().checked_add(timeout);
        loop {
            let left = match until {
                Some(until) => until.saturating_duration_since(Instant::now()),
                None => WAIT_MAX,
            };
            if self.asked.is_empty() && !self.ask_first(left)? {
                if left.is_zero() {
                    return Ok(Records::none());
                }
                // Everything is paused, or nothing assigned.
                thread::sleep(left.min(SLICE_MAX));
                continue;
            }
            let Some(asked) = self.asked.pop_front() else {
                continue;
            };
            if let Some(records) = self.reply(&asked)? {
                self.slice = SLICE_MIN;
                return Ok(records);
            }
            if self.asked.is_empty() && left.is_zero() && self.next_slot(false).is_none() {
                return Ok(Records::none());
            }
        }
    }

    /// Asks for more where nothing is asked for. False where there is nothing to ask for, or no time to wait for it.
    fn ask_first(&mut self, left: Duration) -> Result<bool, Error> {
        if let Some(slot) = self.next_slot(false) {
            return self.ask(slot, Duration::ZERO).map(|()| true);
        }
        let Some(slot) = self.next_slot(true) else {
            return Ok(false);
        };
        let active = self.slots.iter().filter(|slot| !slot.is_paused).count();
        if active == 1 {
            return self.ask(slot, left.min(WAIT_MAX)).map(|()| true);
        }
        self.look_for_news()?;
        if let Some(slot) = self.next_slot(false) {
            return self.ask(slot, Duration::ZERO).map(|()| true);
        }
        if left.is_zero() {
            return Ok(false);
        }
        let slice = self.slice.min(left);
        self.slice = (self.slice * 2).min(SLICE_MAX);
        self.ask(slot, slice).map(|()| true)
    }

    /// The slot whose turn it is, of those that are not paused: the idle ones, or those that may have something.
    fn next_slot(&self, is_idle: bool) -> Option<usize> {
        let count = self.slots.len();
        (1..=count)
            .map(|step| (self.last + step) % count)
            .find(|&at| {
                self.slots
                    .get(at)
                    .is_some_and(|slot| !slot.is_paused && slot.is_idle == is_idle)
            })
    }

    /// Sees which of the idle partitions have something.
    fn look_for_news(&mut self) -> Result<(), Error> {
        let mut topics: Vec<Arc<str>> = Vec::new();
        for slot in self.slots.iter().filter(|slot| !slot.is_paused) {
            if !topics.contains(&slot.topic) {
                topics.push(Arc::clone(&slot.topic));
            }
        }
        for topic in topics {
            let offsets = self.admin.offsets(&topic)?;
            for slot in self.slots.iter_mut().filter(|slot| slot.topic == topic) {
                let latest = offsets
                    .iter()
                    .find(|found| found.partition == slot.partition)
                    .map(|found| OffsetSpec::Offset(found.latest));
                // One that is gone is asked for too, and refused then.
                slot.is_idle &= latest == Some(slot.position);
            }
        }
        Ok(())
    }

    fn ask(&mut self, at: usize, wait: Duration) -> Result<(), Error> {
        self.ask_from(at, None, wait)
    }

    /// Sends a FETCH, from the slot's position where no other offset is given.
    fn ask_from(&mut self, at: usize, from: Option<i64>, wait: Duration) -> Result<(), Error> {
        let Some(slot) = self.slots.get(at) else {
            return Ok(());
        };
        let from = from.map_or(slot.position, OffsetSpec::Offset);
        let mut line = format!(
            "FETCH {}/{} {} max_bytes={}",
            slot.topic,
            slot.partition,
            offset_words(from)?,
            self.options.fetch_bytes
        );
        if !wait.is_zero() {
            // A wait of no whole millisecond would be none.
            line += " wait=";
            line += &wait.as_millis().max(1).to_string();
        }
        line.push('\n');
        if self.connection.is_none() {
            self.connection = Some(Connection::open(&self.address)?);
        }
        if let Some(connection) = &mut self.connection {
            connection.send(line.as_bytes())?;
        }
        self.last = at;
        self.asked.push_back(Asked {
            slot: at,
            from,
            generation: self.generation,
            wait,
        });
        Ok(())
    }

    /// Whether a reply is of no use any more.
    fn is_stale(&self, asked: &Asked) -> bool {
        asked.generation != self.generation
            || self
                .slots
                .get(asked.slot)
                .is_none_or(|slot| slot.is_paused || slot.position != asked.from)
    }

    /// Reads the reply to a FETCH; `None` where nothing is there, or nobody wants it any more.
    fn reply(&mut self, asked: &Asked) -> Result<Option<Records>, Error> {
        let Some(connection) = &mut self.connection else {
            return Ok(None);
        };
        connection.set_timeout(asked.wait + REPLY_TIMEOUT)?;
        let head = match connection.reply() {
            Ok(head) => head,
            Err(error @ Error::Refused(_)) if self.is_stale(asked) => {
                log::debug!("a fetch that is of no use any more was refused: {error}");
                return Ok(None);
            }
            Err(error @ Error::Refused(_)) => return Err(self.refused(asked, error)),
            Err(error) => return Err(error),
        };
        let [bytes, first, next, latest] = numbers(&head)?;
        let len = usize::try_from(bytes).map_err(|_| Error::unexpected(&head))?;
        let is_stale = self.is_stale(asked);
        if !is_stale && let Some(slot) = self.slots.get_mut(asked.slot) {
            slot.is_idle = next >= latest;
            if len == 0 {
                slot.position = OffsetSpec::Offset(next);
            } else {
                self.ask_ahead(asked.slot, next)?;
            }
        }
        if len == 0 {
            return Ok(None);
        }
        let mut chunk = self.pool.take();
        if let Some(connection) = &mut self.connection {
            connection.body(len, chunk.buffer())?;
        }
        if is_stale {
            self.pool.give_back(chunk);
            return Ok(None);
        }
        let Some(slot) = self.slots.get_mut(asked.slot) else {
            return Ok(None);
        };
        let (last, wrong) = chunk.check(slot.partition, len);
        match (last, wrong) {
            (Some(_), None) => slot.position = OffsetSpec::Offset(next),
            // The next fetch begins at the bad one, and the broker says how far the damage goes.
            (Some(last), Some(_)) => {
                slot.position = OffsetSpec::Offset(last + 1);
                slot.is_idle = false;
            }
            (None, wrong) => {
                return Err(Error::Protocol(format!(
                    "the record at offset {first} of {}/{} came damaged: {}",
                    slot.topic,
                    slot.partition,
                    wrong.unwrap_or_default()
                )));
            }
        }
        let topic = Arc::clone(&slot.topic);
        Ok(Some(self.pool.share(&topic, chunk)))
    }

    /// Asks for what comes next, while a reply is still being read.
    fn ask_ahead(&mut self, current: usize, next: i64) -> Result<(), Error> {
        if !self.asked.is_empty() {
            return Ok(());
        }
        match self.next_slot(false) {
            Some(at) if at == current => self.ask_from(at, Some(next), Duration::ZERO),
            Some(at) => self.ask(at, Duration::ZERO),
            None => Ok(()),
        }
    }

    /// What a refusal of a FETCH means for a consumer.
    fn refused(&mut self, asked: &Asked, error: Error) -> Error {
        let Some(slot) = self.slots.get_mut(asked.slot) else {
            return error;
        };
        if error.is_refusal(ErrorCode::Corrupt)
            && let Some((offset, next)) = corrupt_range(&error)
        {
            slot.position = OffsetSpec::Offset(next);
            return Error::Corrupt {
                topic: slot.topic.to_string(),
                partition: slot.partition,
                offset,
                next,
            };
        }
        if let OffsetSpec::Offset(from) = slot.position
            && error.is_refusal(ErrorCode::OffsetOutOfRange)
            && self.options.reset == Reset::Nearest
        {
            return match self.reset(asked.slot, from) {
                Ok(reset) => reset,
                Err(error) => error,
            };
        }
        error
    }

    /// Moves a slot to the end of the partition that is nearer, and says so.
    fn reset(&mut self, at: usize, from: i64) -> Result<Error, Error> {
        let Some(slot) = self.slots.get_mut(at) else {
            return Err(Error::Closed);
        };
        let offsets = self.admin.offsets(&slot.topic)?;
        let ends = offsets.iter().find(|ends| ends.partition == slot.partition);
        let ends =
            ends.ok_or_else(|| Error::Usage(format!("{}/{} is gone", slot.topic, slot.partition)))?;
        let to = from.clamp(ends.earliest, ends.latest.max(ends.earliest));
        slot.position = OffsetSpec::Offset(to);
        slot.is_idle = false;
        Ok(Error::Reset {
            topic: slot.topic.to_string(),
            partition: slot.partition,
            from,
            to,
        })
    }
}
