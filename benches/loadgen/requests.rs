//! The bytes of requests, made once: a block that is written over and over.
#![forbid(unsafe_code)]

use super::options::Verb;

/// Bytes of a block, about: it stays in the processor's cache, and a single write takes much of it.
const BLOCK_BYTES: usize = 512 * 1024;

/// What to write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// The verb.
    pub(crate) verb: Verb,
    /// Bytes of a value.
    pub(crate) size: usize,
    /// Records of a BATCH.
    pub(crate) batch: u32,
    /// Partitions, taken in turn.
    pub(crate) partitions: u32,
}

impl Shape {
    /// Records that one request carries.
    pub(crate) fn records_per_request(&self) -> u64 {
        match self.verb {
            Verb::Put | Verb::Produce => 1,
            Verb::Batch => u64::from(self.batch),
        }
    }

    /// The request for a partition, whole.
    pub(crate) fn request(&self, partition: u32, values: &mut Values) -> Vec<u8> {
        let Self {
            verb, size, batch, ..
        } = *self;
        let topic = super::TOPIC;
        let mut out = Vec::new();
        match verb {
            Verb::Put => {
                out.extend_from_slice(format!("PUT {topic}/{partition} ").as_bytes());
                values.append(size, &mut out);
            }
            Verb::Produce => {
                out.extend_from_slice(
                    format!("PRODUCE {topic}/{partition} -1 {size}\n").as_bytes(),
                );
                values.append(size, &mut out);
            }
            Verb::Batch => {
                let bytes = batch as usize * (8 + size);
                out.extend_from_slice(
                    format!("BATCH {topic}/{partition} {batch} {bytes}\n").as_bytes(),
                );
                for _ in 0..batch {
                    out.extend_from_slice(&(-1_i32).to_be_bytes());
                    out.extend_from_slice(&u32::try_from(size).unwrap_or(u32::MAX).to_be_bytes());
                    values.append(size, &mut out);
                }
            }
        }
        out.push(b'\n');
        out
    }
}

/// Values: printable text without an LF, so that PUT can carry it, and without a pattern that repeats from one to the next.
#[derive(Debug)]
pub(crate) struct Values {
    random: fastrand::Rng,
}

impl Values {
    /// The same values for the same seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Appends one value of `size` bytes.
    pub(crate) fn append(&mut self, size: usize, out: &mut Vec<u8>) {
        out.extend(std::iter::repeat_with(|| self.random.alphanumeric() as u8).take(size));
    }
}

/// Requests one behind another.
#[derive(Debug)]
pub(crate) struct Block {
    /// Their bytes.
    pub(crate) bytes: Vec<u8>,
    /// Where each ends.
    pub(crate) ends: Vec<usize>,
}

impl Block {
    /// A block in which every partition has the same number of requests.
    pub(crate) fn new(shape: &Shape, seed: u64) -> Self {
        let mut values = Values::new(seed);
        let mut block = Self {
            bytes: Vec::new(),
            ends: Vec::new(),
        };
        while block.bytes.len() < BLOCK_BYTES {
            for partition in 0..shape.partitions {
                block
                    .bytes
                    .extend_from_slice(&shape.request(partition, &mut values));
                block.ends.push(block.bytes.len());
            }
        }
        block
    }

    /// Bytes of a request, on average.
    pub(crate) fn request_bytes(&self) -> f64 {
        self.bytes.len() as f64 / self.ends.len() as f64
    }
}

/// A place in the endless repetition of a block.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    /// Bytes of the block already written.
    at: usize,
    /// Whole requests written, all rounds.
    pub(crate) requests: u64,
}

impl Cursor {
    /// What to write next so that no more than `limit` whole requests are written in all.
    pub(crate) fn slice<'a>(&self, block: &'a Block, limit: u64) -> &'a [u8] {
        let count = block.ends.len() as u64;
        let in_round = self.requests % count;
        let allowed = in_round + limit.saturating_sub(self.requests).min(count - in_round);
        let end = match usize::try_from(allowed)
            .unwrap_or(usize::MAX)
            .checked_sub(1)
        {
            Some(last) => block.ends[last],
            None => 0,
        };
        // A request that is written in part has `at` beyond the last whole one, never beyond an end that is allowed.
        &block.bytes[self.at.min(end)..end]
    }

    /// Moves by the bytes that a write took; returns how many requests it completed.
    pub(crate) fn advance(&mut self, block: &Block, bytes: usize) -> u64 {
        let count = block.ends.len() as u64;
        let first = usize::try_from(self.requests % count).unwrap_or(0);
        self.at += bytes;
        let done = block.ends[first..].partition_point(|&end| end <= self.at) as u64;
        self.requests += done;
        if self.at == block.bytes.len() {
            self.at = 0;
        }
        done
    }
}
