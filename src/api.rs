//! The vocabulary that protocols and the broker share: requests, responses, error codes, file ranges.
//!
//! A codec turns bytes into a [`Request`] that borrows from the connection's input buffer, and a [`Response`] into
//! bytes; the broker sees only these values. What one protocol alone needs (how a record is printed, what HELP
//! says) is not here.

#![forbid(unsafe_code)]

mod groups;
mod listings;

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use crate::fs::ReadAt;
use crate::record::{PlainRecord, Record, Records};

pub use groups::{
    AckMode, CommitAnswer, CommittedInfo, Consume, GroupInfo, INFLIGHT_MAX, StartAt, TailEvent,
};
pub use listings::{
    ConfigSource, Explanation, IndexStep, PartitionHealth, PartitionInfo, RecordState, SegmentInfo,
    TopicInfo,
};

/// The time, as the event loop read it once for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Now {
    /// The wall clock, milliseconds since 1970-01-01 UTC; may jump either way.
    pub wall_ms: i64,
    /// The monotonic clock, from an arbitrary start.
    pub mono: Duration,
}

/// A connection, as the broker knows it: an opaque number that is not used again while anything remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// A partition, as runs and verdicts name it: an opaque number that is valid until the end of the turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionKey(pub u32);

/// `topic` or `topic/partition`. The bytes are the peer's: the broker checks the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'a> {
    /// The topic's name as it came.
    pub topic: &'a [u8],
    /// The partition, where one was named.
    pub partition: Option<u32>,
}

/// A point in a partition, as a reader names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetSpec {
    /// That offset.
    Offset(i64),
    /// The log start offset.
    Earliest,
    /// The high watermark.
    Latest,
    /// The last n records, n at least 1; all where there are fewer.
    Last(u64),
    /// The first record at or after that time; the latest where there is none.
    Time(TimeSpec),
}

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeSpec {
    /// Milliseconds since 1970-01-01 UTC.
    At(i64),
    /// So many milliseconds before the broker's clock.
    Ago(i64),
}

/// Whether a reader wants records whose checksum is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CrcMode {
    /// Stop before them (CORRUPT where the read begins there).
    #[default]
    Check,
    /// Deliver them, marked, while their fields still hold together.
    Skip,
}

/// The payloads of a BATCH, whole and checked by the codec.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Number of payloads, at least 1.
    pub count: u32,
    /// The payloads, each: keyLen i32, key, valueLen i32, value, big-endian; they add up exactly.
    pub bytes: &'a [u8],
    /// Whether any of them has a key.
    pub has_key: bool,
}

impl<'a> Batch<'a> {
    /// Checks that `bytes` holds exactly `count` payloads.
    ///
    /// Returns `None` where lengths are below -1, or do not add up, or `count` is 0.
    #[must_use]
    pub fn parse(count: u32, bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut has_key = false;
        for _ in 0..count {
            let (key, _, tail) = split_payload(rest)?;
            has_key |= key.is_some();
            rest = tail;
        }
        (count > 0 && rest.is_empty()).then_some(Self {
            count,
            bytes,
            has_key,
        })
    }

    /// The payloads as records, with one timestamp for all.
    pub fn records(&self, timestamp: i64) -> impl Iterator<Item = Record<'a>> + Clone + use<'a> {
        let mut rest = self.bytes;
        (0..self.count).map_while(move |_| {
            let (key, value, tail) = split_payload(rest)?;
            rest = tail;
            Some(Record {
                timestamp,
                key,
                value,
                headers: &[],
            })
        })
    }
}

type Fields<'a> = (Option<&'a [u8]>, Option<&'a [u8]>, &'a [u8]);

fn split_payload(bytes: &[u8]) -> Option<Fields<'_>> {
    let (key, rest) = split_field(bytes)?;
    let (value, rest) = split_field(rest)?;
    Some((key, value, rest))
}

fn split_field(bytes: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    match i32::from_be_bytes(*len) {
        -1 => Some((None, rest)),
        len => {
            let (field, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
            Some((Some(field), rest))
        }
    }
}

/// What is appended.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// One record. A timestamp of `None` is the broker's clock.
    Record {
        /// The producer's timestamp in milliseconds, where it sent one.
        timestamp: Option<i64>,
        /// See [`Record::key`].
        key: Option<&'a [u8]>,
        /// See [`Record::value`].
        value: Option<&'a [u8]>,
        /// See [`Record::headers`].
        headers: &'a [u8],
    },
    /// Many records with contiguous offsets, all or nothing.
    Batch(Batch<'a>),
}

impl<'a> From<PlainRecord<'a>> for Payload<'a> {
    fn from(plain: PlainRecord<'a>) -> Self {
        Self::Record {
            timestamp: None,
            key: plain.key,
            value: plain.value,
            headers: &[],
        }
    }
}

/// Which partitions a tail follows, and from where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailFrom<'a> {
    /// One partition.
    One(Target<'a>, OffsetSpec),
    /// Every partition of a topic; never `OffsetSpec::Offset`.
    All(&'a [u8], OffsetSpec),
}

/// One request. A codec answers by itself what needs no broker (PING, HELP, VERSION, QUIT).
#[derive(Debug, Clone)]
pub enum Request<'a> {
    /// PUT, PRODUCE, BATCH. Without a partition in the target: the key chooses by murmur2, or one partition is stuck
    /// to for a run of records. [`Broker::append`](crate::broker::Broker::append) takes it without the enum around it.
    Append(Target<'a>, Payload<'a>),
    /// READ: records, decoded.
    Read {
        /// The partition.
        target: Target<'a>,
        /// From where.
        from: OffsetSpec,
        /// At most so many records, at least 1.
        max_records: u64,
        /// How long to wait for the first record; zero for not at all.
        wait: Duration,
        /// What to do with a wrong checksum.
        crc: CrcMode,
    },
    /// FETCH: stored bytes.
    Fetch {
        /// The partition.
        target: Target<'a>,
        /// From where.
        from: OffsetSpec,
        /// At most so many bytes, but at least one record; at least 1. The broker caps it at its own limit.
        max_bytes: u64,
        /// Wait until so many bytes are there.
        min_bytes: u64,
        /// How long to wait for them; zero for not at all.
        wait: Duration,
    },
    /// TAIL: records as they come, until [`Request::Stop`].
    Tail(TailFrom<'a>),
    /// Ends a tail or a CONSUME; harmless without one.
    Stop,
    /// CONSUME: a share of a topic's records as they come, until [`Request::Stop`].
    Consume(Consume<'a>),
    /// ACK: everything up to and including that offset is done with.
    Ack {
        /// A partition that the connection has.
        partition: u32,
        /// The offset of a record that it was sent.
        offset: i64,
    },
    /// COMMIT: where a group is to go on in a partition.
    Commit {
        /// The group's name.
        group: &'a [u8],
        /// The partition.
        target: Target<'a>,
        /// The next offset to be read.
        offset: OffsetSpec,
    },
    /// COMMITTED: where a group stands in a topic.
    Committed {
        /// The group's name.
        group: &'a [u8],
        /// The topic, or one partition of it.
        target: Target<'a>,
    },
    /// GROUPS.
    Groups,
    /// OFFSETS.
    Offsets(Target<'a>),
    /// AT: the first record at or after a time.
    At(Target<'a>, TimeSpec),
    /// EXPLAIN: the whole way of a lookup.
    Explain(Target<'a>, OffsetSpec),
    /// CREATE.
    Create {
        /// The topic's name.
        topic: &'a [u8],
        /// How many partitions; `num.partitions` if left out.
        partitions: Option<u32>,
        /// Config overrides as they came, each name once.
        configs: Vec<(&'a str, &'a str)>,
    },
    /// DELETE.
    Delete(&'a [u8]),
    /// ALTER.
    Alter {
        /// The topic's name.
        topic: &'a [u8],
        /// Configs as they came, each name once; the word `default` takes the topic's own value away.
        configs: Vec<(&'a str, &'a str)>,
    },
    /// PARTITIONS: the topic, and how many it is to have.
    Partitions(&'a [u8], u32),
    /// TRIM: records below that offset go.
    Trim(Target<'a>, i64),
    /// TOPICS.
    Topics,
    /// DESCRIBE.
    Describe(&'a [u8]),
    /// SEGMENTS.
    Segments(Target<'a>),
    /// SYNC.
    Sync,
    /// STATS.
    Stats,
}

/// The only error that crosses between protocol and engine. The names are the line protocol's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// No such verb.
    UnknownVerb,
    /// A field that is missing, too many, or not what it should be.
    BadArgument,
    /// A line over the limit; the connection closes.
    LineTooLong,
    /// Bytes that cannot be told into requests; the connection closes.
    Framing,
    /// No such topic.
    UnknownTopic,
    /// The topic has no such partition.
    UnknownPartition,
    /// The topic has several partitions and none was named.
    AmbiguousPartition,
    /// CREATE of what is there.
    TopicExists,
    /// A name that no topic may have.
    InvalidTopic,
    /// A config that is unknown or out of range.
    InvalidConfig,
    /// Below the earliest or above the latest offset.
    OffsetOutOfRange,
    /// Over `max.message.bytes`, or a batch over `--max-batch-bytes`.
    MessageTooLarge,
    /// A record that this partition cannot store.
    InvalidRecord,
    /// A timestamp too far in the future.
    InvalidTimestamp,
    /// A damaged record.
    Corrupt,
    /// No space; nothing was written.
    DiskFull,
    /// Any other failure of the disk.
    Storage,
    /// The partition takes no appends since an fsync failed.
    ReadOnly,
    /// The connection limit is reached.
    TooManyConnections,
    /// A group that nobody ever used.
    UnknownGroup,
    /// A partition that the connection does not have, or has no more.
    NotAssigned,
}

impl ErrorCode {
    /// The word on the wire.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::UnknownVerb => "UNKNOWN_VERB",
            Self::BadArgument => "BAD_ARGUMENT",
            Self::LineTooLong => "LINE_TOO_LONG",
            Self::Framing => "FRAMING",
            Self::UnknownTopic => "UNKNOWN_TOPIC",
            Self::UnknownPartition => "UNKNOWN_PARTITION",
            Self::AmbiguousPartition => "AMBIGUOUS_PARTITION",
            Self::TopicExists => "TOPIC_EXISTS",
            Self::InvalidTopic => "INVALID_TOPIC",
            Self::InvalidConfig => "INVALID_CONFIG",
            Self::OffsetOutOfRange => "OFFSET_OUT_OF_RANGE",
            Self::MessageTooLarge => "MESSAGE_TOO_LARGE",
            Self::InvalidRecord => "INVALID_RECORD",
            Self::InvalidTimestamp => "INVALID_TIMESTAMP",
            Self::Corrupt => "CORRUPT",
            Self::DiskFull => "DISK_FULL",
            Self::Storage => "STORAGE",
            Self::ReadOnly => "READ_ONLY",
            Self::TooManyConnections => "TOO_MANY_CONNECTIONS",
            Self::UnknownGroup => "UNKNOWN_GROUP",
            Self::NotAssigned => "NOT_ASSIGNED",
        }
    }
}

/// An error for a peer: a code for its program, words for its person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// The code.
    pub code: ErrorCode,
    /// What was wrong with what value and what would be right. One line; values that came from outside went through
    /// [`quoted`].
    pub message: String,
}

impl ApiError {
    /// An error from its parts.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code.word(), self.message)
    }
}

impl std::error::Error for ApiError {}

/// How many bytes of a value from outside a message quotes.
pub const QUOTED_BYTES_MAX: usize = 80;

/// A value from outside as a message quotes it: cut at [`QUOTED_BYTES_MAX`] bytes (with `...` behind), then escaped with
/// [`escape`].
#[must_use]
pub fn quoted(value: &[u8]) -> String {
    let mut out = Vec::new();
    escape(value.get(..QUOTED_BYTES_MAX).unwrap_or(value), &mut out);
    if value.len() > QUOTED_BYTES_MAX {
        out.extend_from_slice(b"...");
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Appends text with the escapes of `PostgreSQL`'s COPY text form: a backslash, tab, LF and CR get their letter; a byte that is
/// not part of a printable UTF-8 character becomes `\\x` and two lower-case hex digits.
pub fn escape(value: &[u8], out: &mut Vec<u8>) {
    for chunk in value.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => out.extend_from_slice(b"\\\\"),
                '\t' => out.extend_from_slice(b"\\t"),
                '\n' => out.extend_from_slice(b"\\n"),
                '\r' => out.extend_from_slice(b"\\r"),
                c => {
                    let mut utf8 = [0; 4];
                    let bytes = c.encode_utf8(&mut utf8).as_bytes();
                    if c.is_control() {
                        for &byte in bytes {
                            escape_hex(byte, out);
                        }
                    } else {
                        out.extend_from_slice(bytes);
                    }
                }
            }
        }
        chunk
            .invalid()
            .iter()
            .for_each(|&byte| escape_hex(byte, out));
    }
}

fn escape_hex(byte: u8, out: &mut Vec<u8>) {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).map_or(b'0', |c| c as u8);
    out.extend_from_slice(&[b'\\', b'x', digit(byte >> 4), digit(byte & 15)]);
}

/// A run of appended records of one partition whose fate the flush decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Where they went.
    pub key: PartitionKey,
    /// The partition's number in its topic.
    pub partition: u32,
    /// The first record's offset.
    pub first_offset: i64,
    /// How many records, at least 1.
    pub count: u32,
    /// Whether they are one BATCH (answered once) or single records (answered each).
    pub is_batch: bool,
}

/// What a flush decided on a partition's runs of this turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Records below this offset are stored as the fsync policy promises.
    pub good_below: i64,
    /// What to answer for the others.
    pub error: Option<ApiError>,
}

/// A piece of a file that is owed to a peer; it keeps the file open.
#[derive(Debug, Clone)]
pub struct FileRange {
    /// The file.
    pub file: Rc<dyn ReadAt>,
    /// Where the piece starts, bytes.
    pub position: u64,
    /// Its length, bytes.
    pub len: u64,
}

/// What the broker answers. Owned: it may wait for its turn to be encoded.
#[derive(Debug)]
pub enum Response {
    /// READ.
    Records {
        /// The partition's number.
        partition: u32,
        /// What was read.
        records: Records,
        /// Where to read on.
        next_offset: i64,
        /// The high watermark.
        high_watermark: i64,
    },
    /// FETCH.
    Fetched {
        /// The stored bytes; `None` where there is nothing.
        range: Option<FileRange>,
        /// Offset of the first record in it.
        first_offset: i64,
        /// Where to fetch on.
        next_offset: i64,
        /// The high watermark.
        high_watermark: i64,
    },
    /// TAIL has begun, at that offset (`None`: of all partitions). [`TailEvent`]s follow.
    Tailing(Option<i64>),
    /// CONSUME has begun. [`TailEvent`]s follow.
    Consuming,
    /// COMMITTED.
    Committed(Vec<CommittedInfo>),
    /// GROUPS.
    Groups(Vec<GroupInfo>),
    /// OFFSETS: partition, earliest, latest.
    Offsets(Vec<(u32, i64, i64)>),
    /// AT: offset and timestamp.
    At(Option<(i64, i64)>),
    /// EXPLAIN.
    Explained {
        /// The partition's number.
        partition: u32,
        /// The way.
        explanation: Box<Explanation>,
    },
    /// TOPICS.
    Topics(Vec<TopicInfo>),
    /// DESCRIBE.
    Described {
        /// Every config: name, value, where it comes from.
        configs: Vec<(&'static str, String, ConfigSource)>,
        /// Every partition.
        partitions: Vec<PartitionInfo>,
    },
    /// SEGMENTS.
    Segments(Vec<SegmentInfo>),
    /// STATS.
    Stats(Vec<(&'static str, u64)>),
    /// TRIM: where the partition begins and ends now.
    Trimmed {
        /// The log start offset.
        earliest: i64,
        /// The high watermark.
        latest: i64,
    },
    /// CREATE, DELETE, ALTER, PARTITIONS, SYNC, STOP.
    Done,
    /// Refused, whatever it was.
    Error(ApiError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_follow_the_copy_text_form() {
        let mut out = Vec::new();
        escape("a\\\t\n\r\u{1}\u{7f}한\u{85}".as_bytes(), &mut out);
        escape(&[0xff, b'z', 0xe2, 0x82], &mut out);
        let text = String::from_utf8(out).unwrap_or_default();
        assert_eq!(text, "a\\\\\\t\\n\\r\\x01\\x7f한\\xc2\\x85\\xffz\\xe2\\x82");
    }

    #[test]
    fn quotes_are_cut_at_80_bytes() {
        assert_eq!(quoted(&[b'x'; 80]).len(), 80);
        assert_eq!(quoted(&[b'x'; 81]), format!("{}...", "x".repeat(80)));
    }

    #[test]
    fn batches_add_up_or_are_refused() {
        let one = [0, 0, 0, 1, b'k', 0, 0, 0, 2, b'v', b'w'];
        let null = [255, 255, 255, 255, 255, 255, 255, 255];
        let bytes = [one.as_slice(), &null].concat();
        let batch = Batch::parse(2, &bytes).expect("it adds up");
        assert!(batch.has_key);
        let records: Vec<_> = batch
            .records(5)
            .map(|r| (r.timestamp, r.key, r.value))
            .collect();
        assert_eq!(
            records,
            [(5, Some(&b"k"[..]), Some(&b"vw"[..])), (5, None, None)]
        );
        assert!(Batch::parse(0, &[]).is_none());
        assert!(Batch::parse(1, &bytes).is_none(), "bytes left over");
        assert!(Batch::parse(3, &bytes).is_none(), "a payload missing");
        assert!(Batch::parse(1, &[255, 255, 255, 254]).is_none(), "below -1");
    }
}
