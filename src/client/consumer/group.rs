//! A share of a topic in a group: CONSUME with ACK, on a connection of its own.
//!
//! Records come as JSON, which alone carries headers, and are put into the stored layout again, so that a program sees one kind of
//! records. Answers to ACK come between them, in order.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::addr::Address;
use crate::api::{ErrorCode, StartAt};
use crate::record::Record;

use super::super::wire::{Connection, REPLY_TIMEOUT, is_timeout, number_of};
use super::super::{Error, Message};
use super::GroupOptions;
use super::records::{Chunk, Pool, Records};

/// A poll gives so many records at most: what is more stays in the socket and at the broker.
const POLL_RECORDS_MAX: usize = 10_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Member {
    address: Address,
    group: String,
    topic: Arc<str>,
    options: GroupOptions,
    /// `None` after it was lost.
    connection: Option<Connection>,
    assigned: Vec<u32>,
    /// What the polls gave and is not acknowledged: the last offset of each partition.
    pending: BTreeMap<u32, i64>,
    /// Answers to ACK that did not come yet.
    owed: usize,
    /// What is to be told with the next polls.
    skips: VecDeque<Error>,
    /// The next offset of each partition that polls gave something of.
    positions: BTreeMap<u32, i64>,
    pool: Pool,
}

/// A line that the broker sent.
#[derive(Debug)]
enum Line {
    Record(u32, i64),
    Acknowledged,
    Refused(Error),
    Assigned(Vec<u32>),
    Skip(Error),
    /// About what matters to nobody here.
    Other,
}

impl Member {
    pub(super) fn join(
        address: Address,
        group: &str,
        topic: &str,
        options: GroupOptions,
    ) -> Result<Self, Error> {
        let mut member = Self {
            address,
            group: group.to_owned(),
            topic: Arc::from(topic),
            options,
            connection: None,
            assigned: Vec::new(),
            pending: BTreeMap::new(),
            owed: 0,
            skips: VecDeque::new(),
            positions: BTreeMap::new(),
            pool: Pool::default(),
        };
        member.open()?;
        Ok(member)
    }

    fn open(&mut self) -> Result<(), Error> {
        if self.connection.is_some() {
            return Ok(());
        }
        let mut connection = Connection::open(&self.address)?;
        let from = match self.options.start {
            StartAt::Earliest => "earliest",
            StartAt::Latest => "latest",
        };
        let mut line = format!(
            "CONSUME {} {} from={from} as=json max_inflight={}",
            self.group, self.topic, self.options.max_inflight
        );
        if let Some(wait) = self.options.ack_wait {
            line += " ack_wait=";
            line += &wait.as_millis().max(1).to_string();
        }
        connection.ask(&line)?;
        self.connection = Some(connection);
        self.assigned.clear();
        // Of what was not acknowledged, another may have it by now; it comes again.
        self.pending.clear();
        self.owed = 0;
        Ok(())
    }

    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    pub(super) fn assigned(&self) -> &[u32] {
        &self.assigned
    }

    /// The next offset of a partition, as far as polls gave any.
    pub(super) fn position(&self, partition: u32) -> Option<i64> {
        self.positions.get(&partition).copied()
    }

    /// Acknowledges what the polls gave; the answers are read with the next poll.
    pub(super) fn acknowledge(&mut self) -> Result<(), Error> {
        let mut lines = String::new();
        for (partition, offset) in std::mem::take(&mut self.pending) {
            lines += "ACK ";
            lines += &partition.to_string();
            lines.push(' ');
            lines += &offset.to_string();
            lines.push('\n');
            self.owed += 1;
        }
        let sent = match &mut self.connection {
            Some(connection) => connection.send(lines.as_bytes()),
            None => Ok(()),
        };
        self.noted(sent)
    }

    /// Acknowledges, and waits until that is committed. Records that come meanwhile go to `waiting`, which is empty.
    pub(super) fn commit(&mut self, waiting: &mut Option<Records>) -> Result<(), Error> {
        self.acknowledge()?;
        self.wait_for_answers(waiting)
    }

    /// Acknowledges what is below `next`, and waits until that is committed. What waits already is added to.
    pub(super) fn commit_one(
        &mut self,
        partition: u32,
        next: i64,
        waiting: &mut Option<Records>,
    ) -> Result<(), Error> {
        self.owed += 1;
        let line = format!("ACK {partition} {}\n", next - 1);
        let sent = match &mut self.connection {
            Some(connection) => connection.send(line.as_bytes()),
            None => Ok(()),
        };
        self.noted(sent)?;
        self.wait_for_answers(waiting)
    }

    fn wait_for_answers(&mut self, waiting: &mut Option<Records>) -> Result<(), Error> {
        let mut chunk = self.pool.take();
        for record in waiting.iter().flat_map(Records::iter) {
            chunk.push(record.partition, record.offset, &record.record());
        }
        let until = Instant::now() + REPLY_TIMEOUT;
        let mut result = Ok(());
        while self.owed > 0 && result.is_ok() {
            result = match self.next_line(until, &mut chunk) {
                Ok(Came::Nothing) => Err(Error::TimedOut {
                    after: REPLY_TIMEOUT,
                    last: None,
                }),
                other => other.map(drop),
            };
        }
        let records = self.pool.share(&self.topic, chunk);
        *waiting = Some(records).filter(|records| !records.is_empty());
        self.noted(result)
    }

    pub(super) fn poll(&mut self, timeout: Duration) -> Result<Records, Error> {
        self.open()?;
        let result = self.try_poll(timeout);
        self.noted(result)
    }

    /// Whatever ends the conversation ends the connection: the next poll begins anew.
    fn noted<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if matches!(&result, Err(error) if !error.is_skip()) {
            self.connection = None;
        }
        result
    }

    fn try_poll(&mut self, timeout: Duration) -> Result<Records, Error> {
        let until = Instant::now()
            .checked_add(timeout)
            .unwrap_or_else(|| Instant::now() + Duration::from_hours(1));
        let mut chunk = self.pool.take();
        let mut count = 0;
        loop {
            if let Some(skip) = self.skips.pop_front() {
                if count == 0 {
                    self.pool.give_back(chunk);
                    return Err(skip);
                }
                self.skips.push_front(skip);
                break;
            }
            // With records at hand, only what came already joins them.
            let wait = if count > 0 { Instant::now() } else { until };
            match self.next_line(wait, &mut chunk)? {
                Came::Record => count += 1,
                Came::Other => {}
                Came::Nothing => break,
            }
            if count >= POLL_RECORDS_MAX {
                break;
            }
        }
        Ok(self.pool.share(&self.topic, chunk))
    }

    /// Takes the next line, where one comes in time.
    fn next_line(&mut self, until: Instant, chunk: &mut Chunk) -> Result<Came, Error> {
        let Some(connection) = &mut self.connection else {
            return Ok(Came::Nothing);
        };
        let left = until.saturating_duration_since(Instant::now());
        if !connection.has_line() {
            if left.is_zero() {
                return Ok(Came::Nothing);
            }
            connection.set_timeout(left)?;
        }
        let line = match connection.line() {
            Ok(line) => line,
            Err(error) if is_timeout(&error) => return Ok(Came::Nothing),
            Err(error) => return Err(error),
        };
        match read(line, &self.topic, chunk)? {
            Line::Record(partition, offset) => {
                self.pending.insert(partition, offset);
                self.positions.insert(partition, offset + 1);
                return Ok(Came::Record);
            }
            Line::Acknowledged => self.owed = self.owed.saturating_sub(1),
            Line::Refused(error) => {
                // A partition moved while its ACK was on the way: whoever has it now gets the records again.
                if self.owed == 0 || !is_of_a_partition(&error) {
                    return Err(error);
                }
                self.owed -= 1;
            }
            Line::Assigned(partitions) => {
                let is_ours = |partition: &u32| partitions.contains(partition);
                self.pending.retain(|partition, _| is_ours(partition));
                self.positions.retain(|partition, _| is_ours(partition));
                self.assigned = partitions;
            }
            Line::Skip(error) => self.skips.push_back(error),
            Line::Other => {}
        }
        Ok(Came::Other)
    }
}

/// What a wait for a line gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    Record,
    Other,
    /// The time was over.
    Nothing,
}

/// Whether an ACK was refused for the sake of its partition, and the CONSUME goes on.
fn is_of_a_partition(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal)
        if refusal.is(ErrorCode::NotAssigned) && refusal.message.starts_with("partition "))
}

/// Understands a line; a record goes into the chunk.
fn read(line: &[u8], topic: &Arc<str>, chunk: &mut Chunk) -> Result<Line, Error> {
    match line.first() {
        Some(b'{') => {
            let fields: Fields<'_> =
                serde_json::from_slice(line).map_err(|_| Error::unexpected(line))?;
            fields.put(chunk).ok_or_else(|| Error::unexpected(line))?;
            Ok(Line::Record(fields.partition, fields.offset))
        }
        Some(b'#') => about(line, topic).ok_or_else(|| Error::unexpected(line)),
        _ if line.starts_with(b"ERR ") => Ok(Line::Refused(Error::refused(line))),
        _ if line == b"OK" || line.starts_with(b"OK ") => Ok(Line::Acknowledged),
        _ => Err(Error::unexpected(line)),
    }
}

/// A line that begins with `#`; `None` where it is not as it should be.
fn about(line: &[u8], topic: &Arc<str>) -> Option<Line> {
    let text = std::str::from_utf8(line).ok()?;
    let words: Vec<&str> = text.split(' ').collect();
    let number = |at: usize| words.get(at)?.parse::<i64>().ok();
    let partition = || number_of(words.get(2)?.as_bytes());
    match *words.get(1)? {
        "assigned" => {
            let list = words.get(2)?;
            let numbers = list.split(',').filter(|number| *number != "-");
            let numbers: Option<Vec<u32>> = numbers.map(|n| n.parse().ok()).collect();
            Some(Line::Assigned(numbers?))
        }
        "reset" => Some(Line::Skip(Error::Reset {
            topic: topic.to_string(),
            partition: partition()?,
            from: number(3)?,
            to: number(4)?,
        })),
        "corrupt" => Some(Line::Skip(Error::Corrupt {
            topic: topic.to_string(),
            partition: partition()?,
            offset: number(3)?,
            next: number(4)?,
        })),
        _ => Some(Line::Other),
    }
}

/// A record as it stands in a line. A string without escapes is not copied.
#[derive(Debug, Deserialize)]
struct Fields<'a> {
    partition: u32,
    offset: i64,
    timestamp: i64,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    key_base64: Option<Cow<'a, str>>,
    value: Option<Cow<'a, str>>,
    value_base64: Option<Cow<'a, str>>,
    #[serde(default)]
    headers: Vec<Vec<Option<String>>>,
}

impl Fields<'_> {
    /// Appends it to a chunk; `None` where it does not hold together.
    fn put(&self, chunk: &mut Chunk) -> Option<()> {
        let key = bytes(self.key.as_deref(), self.key_base64.as_deref())?;
        let value = bytes(self.value.as_deref(), self.value_base64.as_deref())?;
        let mut headers = Message::to("");
        for fields in &self.headers {
            let field = |at: usize| fields.get(at).and_then(Option::as_deref);
            let value = bytes(field(1), field(2))?;
            headers = headers.header(field(0)?, value.as_deref());
        }
        let headers = headers.into_headers();
        let record = Record {
            timestamp: self.timestamp,
            key: key.as_deref(),
            value: value.as_deref(),
            headers: &headers,
        };
        chunk.push(self.partition, self.offset, &record);
        Some(())
    }
}

type Bytes<'a> = Option<Cow<'a, [u8]>>;

/// Text as it stands, or bytes in base64, or null; the outer `None` is for what is neither.
fn bytes<'a>(text: Option<&'a str>, base64: Option<&str>) -> Option<Bytes<'a>> {
    match base64 {
        Some(base64) => Some(Some(Cow::Owned(STANDARD.decode(base64).ok()?))),
        None => Some(text.map(|text| Cow::Borrowed(text.as_bytes()))),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn line(text: &str, chunk: &mut Chunk) -> Result<Line, Error> {
        read(text.as_bytes(), &Arc::from("t"), chunk)
    }

    #[test]
    fn records_keep_every_byte_null_and_header() {
        let mut pool = Pool::default();
        let mut chunk = pool.take();
        for text in [
            r#"{"partition":1,"offset":7,"timestamp":-5,"key":"k\n","value":null}"#,
            r#"{"partition":1,"offset":9,"timestamp":0,"key":null,"value_base64":"/wA=","headers":[["a","x"],["b",null],["c",null,"/w=="]]}"#,
        ] {
            assert!(matches!(line(text, &mut chunk), Ok(Line::Record(1, 7 | 9))));
        }
        let records = pool.share(&Arc::from("t"), chunk);
        let records: Vec<_> = records.iter().collect();
        let [first, second] = records.as_slice() else {
            panic!("two records");
        };
        assert_eq!((first.offset, first.timestamp), (7, -5));
        assert_eq!((first.key, first.value), (Some(&b"k\n"[..]), None));
        assert_eq!((second.key, second.value), (None, Some(&[0xff, 0][..])));
        let headers: Vec<_> = second.headers().collect();
        assert_eq!(
            headers,
            [
                (&b"a"[..], Some(&b"x"[..])),
                (b"b", None),
                (b"c", Some(&[0xff]))
            ]
        );
    }

    #[test]
    fn other_lines_are_told_apart() {
        let mut chunk = Chunk::default();
        let mut of = |text: &str| line(text, &mut chunk);
        assert!(matches!(of("OK"), Ok(Line::Acknowledged)));
        assert!(matches!(of("# assigned 0,2").unwrap(), Line::Assigned(p) if p == [0, 2]));
        assert!(matches!(of("# assigned -").unwrap(), Line::Assigned(p) if p.is_empty()));
        assert!(matches!(
            of("# reset 1 3 8").unwrap(),
            Line::Skip(Error::Reset {
                partition: 1,
                from: 3,
                to: 8,
                ..
            })
        ));
        assert!(matches!(
            of("# corrupt 1 3 8").unwrap(),
            Line::Skip(Error::Corrupt {
                partition: 1,
                offset: 3,
                next: 8,
                ..
            })
        ));
        assert!(matches!(of("# inflight 1000"), Ok(Line::Other)));
        assert!(matches!(of("# of a later version"), Ok(Line::Other)));
        let Ok(Line::Refused(error)) = of("ERR NOT_ASSIGNED partition 7 is not yours") else {
            panic!("a refusal");
        };
        assert!(is_of_a_partition(&error));
        for wrong in ["", "0\t1", "{", "{}", "# reset 1 x", "OKAY"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
