//! What is owed to a peer: bytes, shared bytes and pieces of files, in order.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::api::FileRange;

/// One piece of what is owed.
#[derive(Debug)]
enum Chunk {
    Bytes(Vec<u8>),
    Shared(Rc<[u8]>),
    File(FileRange),
}

/// What is owed to one peer. Codecs append; the event loop takes from the front as the socket has room.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Pieces that a file or shared piece came behind.
    sealed: VecDeque<Chunk>,
    /// Bytes at the end, still growing.
    tail: Vec<u8>,
    /// Bytes of the front piece that were written already.
    written: usize,
    /// Bytes owed in all `sealed` pieces, `written` ones included.
    sealed_bytes: u64,
}

impl Outbox {
    /// An empty outbox.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The growing end: appending to it owes those bytes.
    pub fn tail_mut(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// Owes bytes that others are owed, too.
    pub fn push_shared(&mut self, bytes: Rc<[u8]>) {
        self.push(bytes.len() as u64, Chunk::Shared(bytes));
    }

    /// Owes a piece of a file.
    pub fn push_file(&mut self, range: FileRange) {
        self.push(range.len, Chunk::File(range));
    }

    /// Bytes owed.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.sealed_bytes + self.tail.len() as u64 - self.written as u64
    }

    /// Whether nothing is owed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn push(&mut self, len: u64, chunk: Chunk) {
        if len == 0 {
            return;
        }
        if !self.tail.is_empty() {
            let tail = std::mem::take(&mut self.tail);
            self.sealed_bytes += tail.len() as u64;
            self.sealed.push_back(Chunk::Bytes(tail));
        }
        self.sealed_bytes += len;
        self.sealed.push_back(chunk);
    }
}
