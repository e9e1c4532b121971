//! The consumer: partitions that the program chose, or a share of a topic in a group.

#![forbid(unsafe_code)]

mod assigned;
mod records;

use std::time::{Duration, Instant};

use crate::addr::Address;
use crate::api::OffsetSpec;

pub use records::{Fetched, Records};

use super::Error;
use super::wire::{topic_word, word};
use assigned::Assigned;

/// What becomes of a consumer whose place in a partition does not exist any more: retention or TRIM overtook it, or the log lost its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reset {
    /// It goes on at the nearest offset there is, and the poll says so with [`Error::Reset`].
    #[default]
    Nearest,
    /// Every poll fails with `OFFSET_OUT_OF_RANGE` until the program seeks.
    Fail,
}

/// How a consumer works. `Default` is right for most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// A poll gives records of about so many bytes at most. 1 MiB.
    pub fetch_bytes: u64,
    /// See [`Reset`].
    pub reset: Reset,
    /// Whether a poll commits what the polls before it gave, where there is a group. It does, if nothing else is said.
    pub auto_commit: bool,
    /// With assigned partitions: so long after the commit before. 5 s.
    pub auto_commit_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fetch_bytes: 1 << 20,
            reset: Reset::Nearest,
            auto_commit: true,
            auto_commit_interval: Duration::from_secs(5),
        }
    }
}

/// The most that `fetch_bytes` may be: places in a buffer are counted with 32 bits, and a broker has its own limit far below.
const FETCH_BYTES_MAX: u64 = 1 << 30;

/// Reads records.
///
/// A poll that fails with an error that [is a skip](Error::is_skip), damage or a reset, tells once what is not delivered, and the next
/// poll goes on behind it. After one that [is retryable](Error::is_retryable), the next poll connects again and goes on where the
/// consumer was.
///
/// ```
/// use std::time::Duration;
/// use mini_broker::client::{Consumer, Message, OffsetSpec, Producer};
///
/// let broker = mini_broker::testing::Broker::start();
/// let producer = Producer::connect(broker.addr())?;
/// producer.send(&Message::to("orders").key("anna").value("shoes"))?;
/// producer.flush()?;
///
/// let mut consumer = Consumer::connect(broker.addr())?;
/// consumer.assign("orders", &[0], OffsetSpec::Earliest)?;
/// for record in consumer.poll(Duration::from_secs(1))?.iter() {
///     assert_eq!((record.offset, record.value), (0, Some(&b"shoes"[..])));
/// }
/// # Ok::<(), mini_broker::client::Error>(())
/// ```
#[derive(Debug)]
pub struct Consumer {
    options: Options,
    assigned: Assigned,
    /// Where commits go.
    group: Option<String>,
    committed: Instant,
}

impl Consumer {
    /// Connects to `host:port` or `unix:PATH`. [`Consumer::assign`] says what is read.
    ///
    /// # Errors
    /// [`Error::Usage`] where that is no address, [`Error::Connect`] where nobody listens there.
    pub fn connect(address: &str) -> Result<Self, Error> {
        Self::with_options(address, Options::default())
    }

    /// As [`Consumer::connect`], with options.
    ///
    /// # Errors
    /// As [`Consumer::connect`], and [`Error::Usage`] for options that no consumer could work with.
    pub fn with_options(address: &str, options: Options) -> Result<Self, Error> {
        if !(1..=FETCH_BYTES_MAX).contains(&options.fetch_bytes) {
            return Err(Error::Usage(format!(
                "fetch_bytes of a consumer is from 1 to {FETCH_BYTES_MAX}, not {}",
                options.fetch_bytes
            )));
        }
        let address: Address = address.parse().map_err(Error::Usage)?;
        Ok(Self {
            options,
            assigned: Assigned::connect(address, options)?,
            group: None,
            committed: Instant::now(),
        })
    }

    /// Reads these partitions too, from there on. One that is assigned already begins anew.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is no topic or offset. Whether the partitions exist is seen by the first poll.
    pub fn assign(
        &mut self,
        topic: &str,
        partitions: &[u32],
        from: OffsetSpec,
    ) -> Result<(), Error> {
        topic_word(topic)?;
        super::admin::offset_words(from)?;
        self.assigned.assign(topic, partitions, from);
        Ok(())
    }

    /// Reads every partition that a topic has now, from there on.
    ///
    /// # Errors
    /// As [`Consumer::assign`]; an unknown topic, or the broker cannot be reached.
    pub fn assign_all(&mut self, topic: &str, from: OffsetSpec) -> Result<(), Error> {
        let offsets = self.assigned.admin().offsets(topic)?;
        let partitions: Vec<u32> = offsets.iter().map(|ends| ends.partition).collect();
        self.assign(topic, &partitions, from)
    }

    /// Reads nothing any more.
    pub fn unassign(&mut self) {
        self.assigned.unassign();
    }

    /// Names the group that commits of assigned partitions go to. Nobody else is kept from reading them.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is no group.
    pub fn commit_to(&mut self, group: &str) -> Result<(), Error> {
        self.group = Some(word("group", group)?.to_owned());
        Ok(())
    }

    /// What is read: topic and partition.
    #[must_use]
    pub fn assignment(&self) -> Vec<(String, u32)> {
        let assignment = self.assigned.assignment();
        assignment
            .map(|(topic, partition)| (topic.to_owned(), partition))
            .collect()
    }

    /// The next offset of a partition that a poll will give; `None` before the first poll found where it is.
    #[must_use]
    pub fn position(&self, topic: &str, partition: u32) -> Option<i64> {
        self.assigned
            .positions()
            .find(|(name, number, _)| (*name, *number) == (topic, partition))
            .map(|(_, _, offset)| offset)
    }

    /// The next records, of one partition, as they lie in the log; none after `timeout`, where none came. Partitions that have something take
    /// turns.
    ///
    /// # Errors
    /// See [`Consumer`].
    pub fn poll(&mut self, timeout: Duration) -> Result<Records, Error> {
        let is_due = self.group.is_some()
            && self.options.auto_commit
            && self.committed.elapsed() >= self.options.auto_commit_interval;
        if is_due {
            self.commit()?;
        }
        self.assigned.poll(timeout)
    }

    /// Commits everything that the polls gave.
    ///
    /// # Errors
    /// [`Error::Usage`] where no group was named, or why the broker refused.
    pub fn commit(&mut self) -> Result<(), Error> {
        let Some(group) = self.group.clone() else {
            return Err(Error::Usage(
                "this consumer has no group to commit to: commit_to names one".to_owned(),
            ));
        };
        let positions: Vec<(String, u32, i64)> = self
            .assigned
            .positions()
            .map(|(topic, partition, offset)| (topic.to_owned(), partition, offset))
            .collect();
        for (topic, partition, offset) in positions {
            let next = OffsetSpec::Offset(offset);
            self.assigned
                .admin()
                .commit(&group, &topic, partition, next)?;
        }
        self.committed = Instant::now();
        Ok(())
    }

    /// The next poll goes on there.
    ///
    /// # Errors
    /// [`Error::Usage`] where the partition is not assigned, or that is no offset.
    pub fn seek(&mut self, topic: &str, partition: u32, to: OffsetSpec) -> Result<(), Error> {
        self.assigned.seek(topic, partition, to)
    }

    /// Polls give nothing of that partition until [`Consumer::resume`].
    ///
    /// # Errors
    /// [`Error::Usage`] where the partition is not assigned.
    pub fn pause(&mut self, topic: &str, partition: u32) -> Result<(), Error> {
        self.assigned.set_paused(topic, partition, true)
    }

    /// Ends a pause.
    ///
    /// # Errors
    /// [`Error::Usage`] where the partition is not assigned.
    pub fn resume(&mut self, topic: &str, partition: u32) -> Result<(), Error> {
        self.assigned.set_paused(topic, partition, false)
    }
}
