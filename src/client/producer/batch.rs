//! Records of one partition on their way: an open batch that takes more, and one that is sent as it stands.
//!
//! Plain records share one BATCH; those with a timestamp or headers are counted PRODUCEs one behind another. Room for the line of a
//! BATCH is kept in front of its payload, so that the request leaves in one write.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Instant;

use super::message::Message;
use super::receipt::Receipt;

/// Room for `BATCH <topic>/<partition> <count> <bytes>` and an LF, with a topic of 249 bytes.
const LINE_ROOM: usize = 320;

/// How the records of a batch are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One BATCH, answered once.
    Plain,
    /// A PRODUCE for each, answered each.
    Counted,
}

/// A batch that takes records.
#[derive(Debug)]
pub(super) struct Open {
    kind: Kind,
    bytes: Vec<u8>,
    /// Where each PRODUCE ends; empty for a BATCH.
    ends: Vec<usize>,
    count: u32,
    pub(super) receipt: Arc<Receipt>,
    pub(super) opened: Instant,
}

/// A batch that is sent, perhaps several times.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) kind: Kind,
    /// Shared with the thread that writes it.
    bytes: Arc<Vec<u8>>,
    /// Where the request begins.
    start: usize,
    /// Where each PRODUCE ends; empty for a BATCH.
    ends: Vec<usize>,
    /// Index of its first record in the receipt.
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) receipt: Arc<Receipt>,
    /// When its first record came.
    pub(super) opened: Instant,
    /// What it holds of the producer's memory.
    pub(super) size: usize,
}

/// Bytes to write: shared with the batch that may have to be sent again.
#[derive(Debug)]
pub(super) struct Outgoing {
    bytes: Arc<Vec<u8>>,
    start: usize,
}

impl Outgoing {
    /// The request, or several.
    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// Bytes that belong to no batch.
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self {
            bytes: Arc::new(bytes),
            start: 0,
        }
    }
}

impl Open {
    /// An empty one, in a buffer that may have been used before.
    pub(super) fn new(kind: Kind, mut bytes: Vec<u8>, receipt: Arc<Receipt>, now: Instant) -> Self {
        bytes.clear();
        bytes.resize(LINE_ROOM, 0);
        Self {
            kind,
            bytes,
            ends: Vec::new(),
            count: 0,
            receipt,
            opened: now,
        }
    }

    /// Whether a record of that kind and size may join, so that the batch stays within `bytes_max`.
    pub(super) fn takes(&self, kind: Kind, bytes: usize, bytes_max: usize) -> bool {
        self.kind == kind && (self.count == 0 || self.bytes.len() + bytes <= bytes_max)
    }

    /// Whether it is so full that it may leave.
    pub(super) fn is_full(&self, bytes_max: usize) -> bool {
        self.bytes.len() >= bytes_max
    }

    /// Takes a record; returns its index, and by how much the batch has grown.
    pub(super) fn push(&mut self, message: &Message<'_>, target: &str) -> (u32, usize) {
        let before = self.bytes.len();
        match self.kind {
            Kind::Plain => message.put_payload(&mut self.bytes),
            Kind::Counted => {
                message.put_request(target, &mut self.bytes);
                self.ends.push(self.bytes.len());
            }
        }
        self.count += 1;
        (self.count - 1, self.bytes.len() - before)
    }

    /// Ends it.
    pub(super) fn seal(self, target: &str) -> Batch {
        self.receipt.seal(self.count);
        let mut batch = Batch {
            kind: self.kind,
            bytes: Arc::default(),
            start: LINE_ROOM,
            ends: self.ends,
            first: 0,
            count: self.count,
            receipt: self.receipt,
            opened: self.opened,
            size: self.bytes.len() - LINE_ROOM,
        };
        batch.finish(self.bytes, target);
        batch
    }
}

impl Batch {
    /// Takes the bytes, with the line of a BATCH in the room before them.
    fn finish(&mut self, mut bytes: Vec<u8>, target: &str) {
        if self.kind == Kind::Plain {
            let line = format!("BATCH {target} {} {}\n", self.count, self.size);
            // The name of a topic that the broker knows is short enough.
            if let Some(start) = LINE_ROOM.checked_sub(line.len()) {
                self.start = start;
                if let Some(room) = bytes.get_mut(start..LINE_ROOM) {
                    room.copy_from_slice(line.as_bytes());
                }
            }
            bytes.push(b'\n');
        }
        self.bytes = Arc::new(bytes);
    }

    pub(super) fn outgoing(&self) -> Outgoing {
        Outgoing {
            bytes: Arc::clone(&self.bytes),
            start: self.start,
        }
    }

    /// Its buffer, for the next one, where nobody else holds it.
    pub(super) fn into_buffer(self) -> Option<Vec<u8>> {
        Arc::try_unwrap(self.bytes).ok()
    }

    /// Leaves out the first records, which are decided; `None` where that is all of them. Only of counted ones.
    pub(super) fn without_first(mut self, decided: u32) -> Option<Self> {
        if decided >= self.count {
            return None;
        }
        if let Some(last) = decided.checked_sub(1) {
            let passed = usize::try_from(decided).unwrap_or(usize::MAX);
            self.start = usize::try_from(last)
                .ok()
                .and_then(|last| self.ends.get(last).copied())
                .unwrap_or(self.start);
            self.ends.drain(..passed.min(self.ends.len()));
            self.first += decided;
            self.count -= decided;
        }
        Some(self)
    }

    /// Its records, each in a BATCH of its own. Only of plain ones.
    pub(super) fn split(self, target: &str) -> Vec<Self> {
        let end = LINE_ROOM + self.size;
        let mut rest = self.bytes.get(LINE_ROOM..end).unwrap_or_default();
        let mut parts = Vec::new();
        for index in 0..self.count {
            let len = payload_len(rest).unwrap_or(rest.len());
            let (payload, behind) = rest.split_at_checked(len).unwrap_or((rest, &[]));
            rest = behind;
            let mut bytes = vec![0; LINE_ROOM];
            bytes.extend_from_slice(payload);
            let mut part = Self {
                kind: Kind::Plain,
                bytes: Arc::default(),
                start: LINE_ROOM,
                ends: Vec::new(),
                first: self.first + index,
                count: 1,
                receipt: Arc::clone(&self.receipt),
                opened: self.opened,
                size: payload.len(),
            };
            part.finish(bytes, target);
            parts.push(part);
        }
        parts
    }
}

/// Bytes of the payload at the start: two fields, each with its length.
fn payload_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    for _ in 0..2 {
        let (len, _) = bytes.get(at..)?.split_first_chunk::<4>()?;
        at += 4 + usize::try_from(i32::from_be_bytes(*len)).unwrap_or(0);
    }
    Some(at)
}
