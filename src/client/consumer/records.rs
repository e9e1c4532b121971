//! What a poll gives: records that lie in the buffer they came in, decoded as they are looked at.

#![forbid(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use crate::format::{self, DecodeError, Header, Layout};
use crate::record::Record;

/// Buffers that are kept for the next polls: one in use, one that the program still holds, one that is filled.
const SPARES_MAX: usize = 4;

/// A record that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetched<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// Its partition.
    pub partition: u32,
    /// Its offset.
    pub offset: i64,
    /// Milliseconds since 1970-01-01 UTC.
    pub timestamp: i64,
    /// `None` is null, which is not the empty key.
    pub key: Option<&'a [u8]>,
    /// `None` is null: a tombstone where the topic is compacted.
    pub value: Option<&'a [u8]>,
    /// Its headers in the record layout's own encoding; [`Fetched::headers`] has them one by one.
    pub header_block: &'a [u8],
}

impl<'a> Fetched<'a> {
    /// What a producer would have to send for the same again.
    pub(super) fn record(&self) -> Record<'a> {
        Record {
            timestamp: self.timestamp,
            key: self.key,
            value: self.value,
            headers: self.header_block,
        }
    }

    /// Its headers, name and value.
    pub fn headers(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        format::headers(self.header_block)
    }
}

/// Records of one partition, one behind another as they are stored.
#[derive(Debug, Clone)]
struct Run {
    partition: u32,
    bytes: Range<usize>,
    count: usize,
}

/// A buffer of stored records that were checked.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// May be longer than what is in use: the rest is from before.
    bytes: Vec<u8>,
    runs: Vec<Run>,
}

impl Chunk {
    /// The buffer, for so many bytes of records.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
    }

    /// Checks the records in the first `len` bytes of the buffer and takes those that are good. Returns the offset of the last
    /// of them, and what is wrong with the next, if something is.
    pub(super) fn check(&mut self, partition: u32, len: usize) -> (Option<i64>, Option<String>) {
        let (mut at, mut count, mut last) = (0, 0, None);
        let mut wrong = None;
        while at < len {
            let rest = self.bytes.get(at..len).unwrap_or_default();
            match Layout::of(rest).and_then(|layout| layout.decode(rest)) {
                Ok((head, _)) => {
                    at += head.length as usize;
                    count += 1;
                    last = Some(head.last_offset);
                }
                Err(DecodeError::Incomplete(_)) => {
                    wrong = Some("it is cut short".to_owned());
                    break;
                }
                Err(DecodeError::Corrupt(reason)) => {
                    wrong = Some(reason.to_string());
                    break;
                }
            }
        }
        self.runs.push(Run {
            partition,
            bytes: 0..at,
            count,
        });
        (last, wrong)
    }

    /// Appends a record. Only to a chunk that is not filled by [`Chunk::check`].
    pub(super) fn push(&mut self, partition: u32, offset: i64, record: &Record<'_>) {
        let start = self.runs.last().map_or(0, |run| run.bytes.end);
        self.bytes.truncate(start);
        if format::v2::encode(offset, record, &mut self.bytes).is_err() {
            // It came in a line, so it is far shorter than what the layout holds.
            return;
        }
        let end = self.bytes.len();
        match self.runs.last_mut() {
            Some(run) if run.partition == partition => {
                run.bytes.end = end;
                run.count += 1;
            }
            Some(_) | None => self.runs.push(Run {
                partition,
                bytes: start..end,
                count: 1,
            }),
        }
    }
}

/// Buffers that are used again once nobody reads them any more.
#[derive(Debug, Default)]
pub(super) struct Pool {
    chunks: Vec<Arc<Chunk>>,
}

impl Pool {
    /// An empty chunk.
    pub(super) fn take(&mut self) -> Chunk {
        let free = self
            .chunks
            .iter()
            .position(|chunk| Arc::strong_count(chunk) == 1);
        let chunk = free.and_then(|at| Arc::into_inner(self.chunks.swap_remove(at)));
        let mut chunk = chunk.unwrap_or_default();
        chunk.clear();
        chunk
    }

    /// Makes records of a chunk, and remembers it.
    pub(super) fn share(&mut self, topic: &Arc<str>, chunk: Chunk) -> Records {
        let chunk = Arc::new(chunk);
        if self.chunks.len() < SPARES_MAX {
            self.chunks.push(Arc::clone(&chunk));
        }
        Records {
            topic: Arc::clone(topic),
            chunk,
        }
    }

    /// Takes back what was not filled.
    pub(super) fn give_back(&mut self, chunk: Chunk) {
        if self.chunks.len() < SPARES_MAX {
            self.chunks.push(Arc::new(chunk));
        }
    }
}

/// Records of one topic, in order for each partition. They are not copied: they lie in the buffer that they were received in, which a
/// consumer uses again once these are dropped.
#[derive(Debug, Clone)]
pub struct Records {
    topic: Arc<str>,
    chunk: Arc<Chunk>,
}

impl Records {
    pub(super) fn none() -> Self {
        Self {
            topic: Arc::from(""),
            chunk: Arc::default(),
        }
    }

    /// The records.
    pub fn iter(&self) -> impl Iterator<Item = Fetched<'_>> {
        self.chunk.runs.iter().flat_map(|run| Stored {
            topic: &self.topic,
            partition: run.partition,
            rest: self.chunk.bytes.get(run.bytes.clone()).unwrap_or_default(),
        })
    }

    /// How many records there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunk.runs.iter().map(|run| run.count).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the records have as they are stored.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        self.chunk.runs.iter().map(|run| run.bytes.len()).sum()
    }
}

/// Stored records one behind another, each checked before.
#[derive(Debug)]
struct Stored<'a> {
    topic: &'a str,
    partition: u32,
    rest: &'a [u8],
}

impl<'a> Iterator for Stored<'a> {
    type Item = Fetched<'a>;

    fn next(&mut self) -> Option<Fetched<'a>> {
        let layout = Layout::of(self.rest).ok()?;
        let (head, stored) = layout.decode_again(self.rest).ok()?;
        self.rest = self.rest.get(head.length as usize..).unwrap_or_default();
        let Record {
            timestamp,
            key,
            value,
            headers,
        } = stored.record;
        Some(Fetched {
            topic: self.topic,
            partition: self.partition,
            offset: stored.offset,
            timestamp,
            key,
            value,
            header_block: headers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(value: &[u8]) -> Record<'_> {
        Record {
            timestamp: 5,
            key: None,
            value: Some(value),
            headers: b"",
        }
    }

    #[test]
    fn stored_records_of_both_layouts_come_back_and_damage_ends_them() {
        let mut pool = Pool::default();
        let mut chunk = pool.take();
        let buffer = chunk.buffer();
        for (offset, layout) in (3..).zip([Layout::V1, Layout::V2, Layout::V2]) {
            assert!(layout.encode(offset, &record(b"v"), buffer).is_ok());
        }
        let len = buffer.len();
        buffer.extend_from_slice(b"from before");
        if let Some(byte) = buffer.get_mut(len - 1) {
            *byte ^= 1;
        }
        let (last, wrong) = chunk.check(2, len);
        assert_eq!(last, Some(4));
        assert!(wrong.is_some_and(|wrong| wrong.contains("crc")));
        let records = pool.share(&Arc::from("t"), chunk);
        let found: Vec<_> = records
            .iter()
            .map(|r| (r.partition, r.offset, r.value))
            .collect();
        assert_eq!(found, [(2, 3, Some(&b"v"[..])), (2, 4, Some(b"v"))]);
        assert_eq!(records.len(), 2);
    }

    #[test]
    fn a_buffer_is_used_again_once_its_records_are_dropped() {
        let mut pool = Pool::default();
        let mut chunk = pool.take();
        chunk.push(0, 7, &record(b"one"));
        chunk.push(1, 9, &record(b"two"));
        let records = pool.share(&Arc::from("t"), chunk);
        let found: Vec<_> = records.iter().map(|r| (r.partition, r.offset)).collect();
        assert_eq!(found, [(0, 7), (1, 9)]);
        assert!(pool.take().buffer().is_empty(), "the other one is in use");
        drop(records);
        assert!(!pool.take().buffer().is_empty());
    }
}
