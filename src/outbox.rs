//! What is owed to a peer: bytes, shared bytes and pieces of files, in order.
//!
//! All bytes of one peer stand in one growing buffer; a shared piece or a file range is a cut in it. So replies that come one
//! after another leave in one send, and a FETCH costs no allocation for its header. The discarded alternative, a queue of
//! pieces with a buffer each, allocates for every header and sends each by itself.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use crate::api::FileRange;
use crate::sys;

/// A shared piece of at most so many bytes is copied: that costs less than the send of its own that it would need.
const SHARED_COPY_BYTES_MAX: usize = 8 * 1024;

/// Sent bytes at the front of the buffer are dropped when they are so many, and more than those behind them.
const COMPACT_BYTES_MIN: usize = 64 * 1024;

/// The most that is read at once from a file that has no descriptor for sendfile.
const COPY_BYTES: usize = 64 * 1024;

/// A buffer of more than so many bytes is not kept for the next peer.
const SPARE_BYTES_MAX: usize = 256 * 1024;

/// A drained outbox keeps room for so many cuts.
const IDLE_CUTS_MAX: usize = 8;

/// How many buffers are kept for the next peers.
const SPARES_MAX: usize = 16;

/// How far [`Outbox::write_to`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is owed any more.
    Drained,
    /// The socket is full: a writable event comes.
    Blocked,
    /// The budget is used up: no event comes.
    Budget,
    /// What comes next is not in memory; read-ahead was asked for.
    Cold,
}

/// What to do with a file range that is not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColdReads {
    /// Stop before it.
    Wait,
    /// Send it, though the disk holds the caller up.
    Force,
}

/// What stands at a cut.
#[derive(Debug)]
enum Piece {
    Shared { bytes: Rc<[u8]>, sent: usize },
    File(FileRange),
}

/// A piece that is owed between two bytes of the buffer.
#[derive(Debug)]
struct Cut {
    /// The index in the buffer of the first byte that is owed after the piece.
    at: usize,
    piece: Piece,
}

/// What is owed to one peer. Codecs append; the event loop takes from the front as the socket has room.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// Bytes at the front of `bytes` that were sent; never past the first cut.
    sent: usize,
    cuts: VecDeque<Cut>,
    /// Bytes still owed of all pieces.
    piece_bytes: u64,
}

impl Outbox {
    /// An empty outbox.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The growing end: appending to it owes those bytes. Only append.
    pub fn tail_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Owes bytes that others are owed, too.
    pub fn push_shared(&mut self, bytes: Rc<[u8]>) {
        if bytes.len() <= SHARED_COPY_BYTES_MAX {
            self.bytes.extend_from_slice(&bytes);
        } else {
            self.push(bytes.len() as u64, Piece::Shared { bytes, sent: 0 });
        }
    }

    /// Owes a piece of a file.
    pub fn push_file(&mut self, range: FileRange) {
        if range.len > 0 {
            self.push(range.len, Piece::File(range));
        }
    }

    /// Bytes owed.
    #[must_use]
    pub fn len(&self) -> u64 {
        (self.bytes.len() - self.sent) as u64 + self.piece_bytes
    }

    /// Whether nothing is owed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == self.sent && self.cuts.is_empty()
    }

    /// Sends from the front, at most about `budget` bytes.
    ///
    /// # Errors
    /// What the socket or the file says; `UnexpectedEof` where a file is shorter than its range. The peer cannot be served
    /// any further then.
    pub fn write_to(
        &mut self,
        socket: BorrowedFd<'_>,
        budget: usize,
        cold: ColdReads,
    ) -> io::Result<Progress> {
        let progress = self.send_front(socket, budget, cold);
        self.compact();
        progress
    }

    fn send_front(
        &mut self,
        socket: BorrowedFd<'_>,
        budget: usize,
        cold: ColdReads,
    ) -> io::Result<Progress> {
        let mut left = budget;
        // Whether the file range behind the bytes in front was found in memory already.
        let mut is_warm = cold == ColdReads::Force;
        while !self.is_empty() {
            if left == 0 {
                return Ok(Progress::Budget);
            }
            let bytes_end = self.cuts.front().map_or(self.bytes.len(), |cut| cut.at);
            if self.sent < bytes_end {
                is_warm = is_warm || self.is_front_warm(left)?;
                let more = !self.cuts.is_empty() && is_warm;
                let owed = self.bytes.get(self.sent..bytes_end).unwrap_or_default();
                let given = owed.get(..left).unwrap_or(owed);
                let Some(sent) = room(sys::send(socket, given, more))? else {
                    return Ok(Progress::Blocked);
                };
                self.sent += sent;
                left -= sent;
                if sent < given.len() {
                    return Ok(Progress::Blocked);
                }
                continue;
            }
            if !is_warm && !self.is_front_warm(left)? {
                return Ok(Progress::Cold);
            }
            is_warm = cold == ColdReads::Force;
            match self.send_piece(socket, left)? {
                Some(sent) => left -= sent,
                None => return Ok(Progress::Blocked),
            }
        }
        Ok(Progress::Drained)
    }

    /// Gives the growing end the memory of a spare buffer, where it has none of its own.
    pub fn adopt(&mut self, spares: &mut Vec<Vec<u8>>) {
        if self.bytes.capacity() == 0
            && let Some(spare) = spares.pop()
        {
            self.bytes = spare;
        }
    }

    /// Gives the memory of a drained outbox back: a peer to whom nothing is owed holds no buffer.
    pub fn release(&mut self, spares: &mut Vec<Vec<u8>>) {
        if !self.is_empty() {
            return;
        }
        let mut spare = std::mem::take(&mut self.bytes);
        self.sent = 0;
        if self.cuts.capacity() > IDLE_CUTS_MAX {
            self.cuts = VecDeque::new();
        }
        if spares.len() < SPARES_MAX && (1..=SPARE_BYTES_MAX).contains(&spare.capacity()) {
            spare.clear();
            spares.push(spare);
        }
    }

    /// Takes out everything as bytes: what a socket would have got.
    ///
    /// # Errors
    /// What reading a file range says; `UnexpectedEof` where the file is shorter.
    pub fn take_all(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut from = self.sent;
        for cut in &self.cuts {
            all.extend_from_slice(self.bytes.get(from..cut.at).unwrap_or_default());
            from = cut.at;
            match &cut.piece {
                Piece::Shared { bytes, sent } => {
                    all.extend_from_slice(bytes.get(*sent..).unwrap_or_default());
                }
                Piece::File(range) => {
                    let start = all.len();
                    let len = usize::try_from(range.len).map_err(io::Error::other)?;
                    all.resize(start + len, 0);
                    let room = all.get_mut(start..).unwrap_or_default();
                    if range.file.read_at(room, range.position)? < len {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
        all.extend_from_slice(self.bytes.get(from..).unwrap_or_default());
        *self = Self::new();
        Ok(all)
    }

    fn push(&mut self, len: u64, piece: Piece) {
        self.cuts.push_back(Cut {
            at: self.bytes.len(),
            piece,
        });
        self.piece_bytes += len;
    }

    /// Whether the piece that comes next can be sent without waiting for a disk.
    fn is_front_warm(&self, budget: usize) -> io::Result<bool> {
        match self.cuts.front() {
            Some(Cut {
                piece: Piece::File(range),
                ..
            }) => range
                .file
                .is_resident(range.position, range.len.min(budget as u64)),
            Some(Cut {
                piece: Piece::Shared { .. },
                ..
            })
            | None => Ok(true),
        }
    }

    /// Sends some of the piece in front; `None` where the socket is full.
    fn send_piece(&mut self, socket: BorrowedFd<'_>, budget: usize) -> io::Result<Option<usize>> {
        let is_last = self.cuts.len() == 1 && self.bytes.len() == self.sent;
        let Some(Cut { piece, .. }) = self.cuts.front_mut() else {
            return Ok(Some(0));
        };
        let (sent, is_done) = match piece {
            Piece::Shared {
                bytes,
                sent: before,
            } => {
                let owed = bytes.get(*before..).unwrap_or_default();
                let given = owed.get(..budget).unwrap_or(owed);
                let more = given.len() == owed.len() && !is_last;
                let Some(sent) = room(sys::send(socket, given, more))? else {
                    return Ok(None);
                };
                *before += sent;
                (sent, *before == bytes.len())
            }
            Piece::File(range) => {
                let given = usize::try_from(range.len).unwrap_or(usize::MAX).min(budget);
                let Some(sent) = room(send_range(socket, range, given))? else {
                    return Ok(None);
                };
                if sent == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                range.position += sent as u64;
                range.len -= sent as u64;
                (sent, range.len == 0)
            }
        };
        self.piece_bytes -= sent as u64;
        if is_done {
            self.cuts.pop_front();
        }
        Ok(Some(sent))
    }

    /// Drops sent bytes where that is cheap for what it gains.
    fn compact(&mut self) {
        if self.is_empty() {
            self.bytes.clear();
        } else if self.sent >= COMPACT_BYTES_MIN && self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            for cut in &mut self.cuts {
                cut.at -= self.sent;
            }
        } else {
            return;
        }
        self.sent = 0;
    }
}

/// Sends some bytes of a file: by sendfile where it has a descriptor, else by a copy.
fn send_range(socket: BorrowedFd<'_>, range: &FileRange, len: usize) -> io::Result<usize> {
    if let Some(file) = range.file.fd() {
        return sys::sendfile(socket, file, range.position, len);
    }
    let mut copy = vec![0; len.min(COPY_BYTES)];
    let read = range.file.read_at(&mut copy, range.position)?;
    sys::send(socket, copy.get(..read).unwrap_or_default(), false)
}

/// `None` where a socket has no room.
fn room(sent: io::Result<usize>) -> io::Result<Option<usize>> {
    match sent {
        Ok(sent) => Ok(Some(sent)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}
