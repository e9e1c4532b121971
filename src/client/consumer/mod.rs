//! The consumer: partitions that the program chose, or a share of a topic in a group.

#![forbid(unsafe_code)]

mod assigned;
mod group;
mod records;

use std::time::{Duration, Instant};

use crate::addr::Address;
use crate::api::{OffsetSpec, StartAt};

pub use records::{Fetched, Records};

use super::Error;
use super::wire::{topic_word, word};
use assigned::Assigned;
use group::Member;

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

/// How a consumer in a group works. `Default` is right for most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupOptions {
    /// Where to begin in a partition of which the group has committed nothing. At the earliest.
    pub start: StartAt,
    /// Records that are sent and not committed at most, at least 1. 1,000.
    pub max_inflight: u32,
    /// A consumer that has records and commits none for so long loses its place. Never, if nothing else is said.
    pub ack_wait: Option<Duration>,
    /// Whether a poll commits what the polls before it gave. It does, if nothing else is said: so each record comes at least once.
    pub auto_commit: bool,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            start: StartAt::Earliest,
            max_inflight: 1000,
            ack_wait: None,
            auto_commit: true,
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
    source: Source,
}

#[derive(Debug)]
enum Source {
    Assigned(Box<Chosen>),
    Group {
        member: Box<Member>,
        options: GroupOptions,
        /// Records that came while a commit was waited for.
        waiting: Option<Records>,
    },
}

/// Partitions that the program chose, and where commits go.
#[derive(Debug)]
struct Chosen {
    options: Options,
    assigned: Assigned,
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
            source: Source::Assigned(Box::new(Chosen {
                options,
                assigned: Assigned::connect(address, options)?,
                group: None,
                committed: Instant::now(),
            })),
        })
    }

    /// Takes a share of a topic: its partitions are spread over the consumers of the group, and each goes on where the group is.
    ///
    /// A program that does not poll is sent no more than `max_inflight` records: that is how it pauses.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is no address, group, topic or option; an unknown topic; or the broker cannot be reached.
    pub fn in_group(
        address: &str,
        group: &str,
        topic: &str,
        options: GroupOptions,
    ) -> Result<Self, Error> {
        let address: Address = address.parse().map_err(Error::Usage)?;
        let (group, topic) = (word("group", group)?, topic_word(topic)?);
        Ok(Self {
            source: Source::Group {
                member: Box::new(Member::join(address, group, topic, options)?),
                options,
                waiting: None,
            },
        })
    }

    fn chosen(&mut self) -> Result<&mut Chosen, Error> {
        match &mut self.source {
            Source::Assigned(chosen) => Ok(chosen),
            Source::Group { .. } => Err(Error::Usage(
                "this consumer is in a group: what it reads, and from where, is the group's business".to_owned(),
            )),
        }
    }

    /// Reads these partitions too, from there on. One that is assigned already begins anew.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is no topic or offset, and in a group. Whether the partitions exist is seen by the first poll.
    pub fn assign(
        &mut self,
        topic: &str,
        partitions: &[u32],
        from: OffsetSpec,
    ) -> Result<(), Error> {
        topic_word(topic)?;
        super::admin::offset_words(from)?;
        self.chosen()?.assigned.assign(topic, partitions, from);
        Ok(())
    }

    /// Reads every partition that a topic has now, from there on.
    ///
    /// # Errors
    /// As [`Consumer::assign`]; an unknown topic, or the broker cannot be reached.
    pub fn assign_all(&mut self, topic: &str, from: OffsetSpec) -> Result<(), Error> {
        let offsets = self.chosen()?.assigned.admin().offsets(topic)?;
        let partitions: Vec<u32> = offsets.iter().map(|ends| ends.partition).collect();
        self.assign(topic, &partitions, from)
    }

    /// Reads nothing any more.
    ///
    /// # Errors
    /// [`Error::Usage`] in a group, which is left by dropping the consumer.
    pub fn unassign(&mut self) -> Result<(), Error> {
        self.chosen()?.assigned.unassign();
        Ok(())
    }

    /// Names the group that commits of assigned partitions go to. Nobody else is kept from reading them.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is no group, and in a group.
    pub fn commit_to(&mut self, group: &str) -> Result<(), Error> {
        self.chosen()?.group = Some(word("group", group)?.to_owned());
        Ok(())
    }

    /// What is read: topic and partition. In a group, as far as the polls heard.
    #[must_use]
    pub fn assignment(&self) -> Vec<(String, u32)> {
        match &self.source {
            Source::Assigned(chosen) => {
                let assignment = chosen.assigned.assignment();
                assignment
                    .map(|(topic, partition)| (topic.to_owned(), partition))
                    .collect()
            }
            Source::Group { member, .. } => {
                let partitions = member.assigned().iter();
                partitions
                    .map(|partition| (member.topic().to_owned(), *partition))
                    .collect()
            }
        }
    }

    /// The next offset of a partition that a poll will give; `None` before the first poll found where it is.
    #[must_use]
    pub fn position(&self, topic: &str, partition: u32) -> Option<i64> {
        match &self.source {
            Source::Assigned(chosen) => chosen
                .assigned
                .positions()
                .find(|(name, number, _)| (*name, *number) == (topic, partition))
                .map(|(_, _, offset)| offset),
            Source::Group { member, .. } if member.topic() == topic => member.position(partition),
            Source::Group { .. } => None,
        }
    }

    /// The next records; none after `timeout`, where none came. Of assigned partitions, those that have something take turns, and a poll
    /// gives records of one of them as they lie in the log.
    ///
    /// # Errors
    /// See [`Consumer`].
    pub fn poll(&mut self, timeout: Duration) -> Result<Records, Error> {
        match &mut self.source {
            Source::Assigned(chosen) => {
                let is_due = chosen.group.is_some()
                    && chosen.options.auto_commit
                    && chosen.committed.elapsed() >= chosen.options.auto_commit_interval;
                if is_due {
                    chosen.commit()?;
                }
                chosen.assigned.poll(timeout)
            }
            Source::Group {
                member,
                options,
                waiting,
            } => {
                // What waits was given by no poll yet, so there is nothing to commit.
                if let Some(records) = waiting.take() {
                    return Ok(records);
                }
                if options.auto_commit {
                    member.acknowledge()?;
                }
                member.poll(timeout)
            }
        }
    }

    /// Commits everything that the polls gave (of assigned partitions: their [positions](Consumer::position), so a seek counts, too), and waits
    /// until the broker has it.
    ///
    /// # Errors
    /// [`Error::Usage`] where there is no group, or why the broker refused.
    pub fn commit(&mut self) -> Result<(), Error> {
        match &mut self.source {
            Source::Assigned(chosen) => chosen.commit(),
            Source::Group {
                waiting: Some(_), ..
            } => Ok(()),
            Source::Group {
                member, waiting, ..
            } => member.commit(waiting),
        }
    }

    /// Commits that a partition is done with up to `next`, the next offset that is wanted, and waits until the broker has it.
    ///
    /// # Errors
    /// [`Error::Usage`] where there is no group, or why the broker refused.
    pub fn commit_offset(&mut self, topic: &str, partition: u32, next: i64) -> Result<(), Error> {
        match &mut self.source {
            Source::Assigned(chosen) => chosen.commit_one(topic, partition, next),
            Source::Group {
                member, waiting, ..
            } if member.topic() == topic => member.commit_one(partition, next, waiting),
            Source::Group { member, .. } => Err(Error::Usage(format!(
                "this consumer reads {} and not {topic}",
                member.topic()
            ))),
        }
    }

    /// The next poll goes on there.
    ///
    /// # Errors
    /// [`Error::Usage`] where the partition is not assigned, that is no offset, or in a group.
    pub fn seek(&mut self, topic: &str, partition: u32, to: OffsetSpec) -> Result<(), Error> {
        self.chosen()?.assigned.seek(topic, partition, to)
    }

    /// Polls give nothing of that partition until [`Consumer::resume`].
    ///
    /// # Errors
    /// [`Error::Usage`] where the partition is not assigned, or in a group.
    pub fn pause(&mut self, topic: &str, partition: u32) -> Result<(), Error> {
        self.chosen()?.assigned.set_paused(topic, partition, true)
    }

    /// Ends a pause.
    ///
    /// # Errors
    /// [`Error::Usage`] where the partition is not assigned, or in a group.
    pub fn resume(&mut self, topic: &str, partition: u32) -> Result<(), Error> {
        self.chosen()?.assigned.set_paused(topic, partition, false)
    }
}

impl Chosen {
    fn commit(&mut self) -> Result<(), Error> {
        let group = self.group.clone().ok_or_else(no_group)?;
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

    fn commit_one(&mut self, topic: &str, partition: u32, next: i64) -> Result<(), Error> {
        let group = self.group.as_ref().ok_or_else(no_group)?;
        let next = OffsetSpec::Offset(next);
        self.assigned.admin().commit(group, topic, partition, next)
    }
}

fn no_group() -> Error {
    Error::Usage("this consumer has no group to commit to: commit_to names one".to_owned())
}
