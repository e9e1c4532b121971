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

/// How far a range that is not in memory is asked for at once.
const READ_AHEAD_BYTES: u64 = 1 << 20;

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
    /// Bytes that were ever sent.
    sent_total: u64,
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

    /// Bytes that were sent since it was made.
    #[must_use]
    pub fn sent_total(&self) -> u64 {
        self.sent_total
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
        let before = self.len();
        let progress = self.send_front(socket, budget, cold);
        self.sent_total += before - self.len();
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
            }) => {
                let near = range.len.min(budget as u64);
                let is_warm = range.file.is_resident(range.position, near)?;
                let far = range.len.min(READ_AHEAD_BYTES);
                if !is_warm && far > near {
                    // Asks for what comes behind it, so that the disk works on while this is sent.
                    range.file.is_resident(range.position, far)?;
                }
                Ok(is_warm)
            }
            Some(_) | None => Ok(true),
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

#[cfg(test)]
#[expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]
mod tests {
    use std::cell::Cell;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::fs::ReadAt;

    /// A file that is bytes, with or without a descriptor beside it, in memory or not yet.
    #[derive(Debug)]
    struct Stored {
        bytes: Vec<u8>,
        file: Option<std::fs::File>,
        is_resident: Cell<bool>,
    }

    impl ReadAt for Stored {
        fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
            let bytes = self
                .bytes
                .get(usize::try_from(position).unwrap()..)
                .unwrap_or_default();
            let len = bytes.len().min(buf.len());
            buf[..len].copy_from_slice(&bytes[..len]);
            Ok(len)
        }

        fn fd(&self) -> Option<BorrowedFd<'_>> {
            self.file.as_ref().map(AsFd::as_fd)
        }

        fn is_resident(&self, _position: u64, _len: u64) -> io::Result<bool> {
            Ok(self.is_resident.get())
        }
    }

    fn stored(bytes: &[u8], with_descriptor: bool) -> Rc<Stored> {
        let file = with_descriptor.then(|| {
            let mut file = tempfile::tempfile().unwrap();
            io::Write::write_all(&mut file, bytes).unwrap();
            file
        });
        Rc::new(Stored {
            bytes: bytes.to_vec(),
            file,
            is_resident: Cell::new(true),
        })
    }

    fn range(file: Rc<Stored>, position: u64, len: u64) -> FileRange {
        FileRange {
            file,
            position,
            len,
        }
    }

    fn pair() -> (UnixStream, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        (near, far)
    }

    /// Takes what has arrived.
    fn arrived(far: &mut UnixStream, into: &mut Vec<u8>) {
        if let Err(e) = far.read_to_end(into) {
            assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn pieces_arrive_in_order_whatever_the_budget() {
        let pattern: Vec<u8> = (0..100_000_u32)
            .map(|n| n.to_le_bytes()[usize::from(n % 3 == 0)])
            .collect();
        for with_descriptor in [false, true] {
            for budget in [1000, 4096, 70_000, 1 << 30] {
                let mut outbox = Outbox::new();
                outbox.tail_mut().extend_from_slice(b"OK 1\n");
                outbox.push_file(range(stored(&pattern, with_descriptor), 10, 90_000));
                outbox.tail_mut().extend_from_slice(b"OK 2\n");
                outbox.push_shared(Rc::from(&pattern[..20_000]));
                outbox.push_shared(Rc::from(&b"small"[..]));
                outbox.push_file(range(stored(&pattern, with_descriptor), 0, 1));
                outbox.push_file(range(stored(&pattern, with_descriptor), 0, 0));
                outbox.tail_mut().extend_from_slice(&pattern);
                let expected = [
                    b"OK 1\n",
                    &pattern[10..90_010],
                    b"OK 2\n",
                    &pattern[..20_000],
                    b"small",
                    &pattern[..1],
                    &pattern,
                ]
                .concat();
                assert_eq!(outbox.len(), expected.len() as u64);

                let (near, mut far) = pair();
                let mut got = Vec::new();
                loop {
                    let before = outbox.len();
                    let progress = outbox
                        .write_to(near.as_fd(), budget, ColdReads::Wait)
                        .unwrap();
                    assert!(before - outbox.len() <= budget as u64);
                    arrived(&mut far, &mut got);
                    assert_eq!(outbox.len(), (expected.len() - got.len()) as u64);
                    if progress == Progress::Drained {
                        break;
                    }
                }
                assert!(outbox.is_empty());
                assert!(got == expected, "budget {budget}: the bytes differ");
            }
        }
    }

    #[test]
    fn a_full_socket_stops_it_and_it_goes_on_where_it_was() {
        let (near, mut far) = pair();
        let mut outbox = Outbox::new();
        let bytes: Vec<u8> = (0..2_000_000_u32).map(|n| n.to_be_bytes()[3]).collect();
        outbox.tail_mut().extend_from_slice(&bytes);
        let mut got = Vec::new();
        let mut stops = 0;
        while outbox
            .write_to(near.as_fd(), usize::MAX, ColdReads::Wait)
            .unwrap()
            == Progress::Blocked
        {
            stops += 1;
            arrived(&mut far, &mut got);
            assert!(outbox.bytes.len() <= bytes.len() && outbox.sent <= outbox.bytes.len());
        }
        arrived(&mut far, &mut got);
        assert!(stops > 0, "the socket was never full");
        assert!(got == bytes, "the bytes differ");
    }

    #[test]
    fn a_range_that_is_not_in_memory_waits_and_what_is_before_it_does_not() {
        let (near, mut far) = pair();
        let file = stored(b"cold", true);
        file.is_resident.set(false);
        let mut outbox = Outbox::new();
        outbox.tail_mut().extend_from_slice(b"header ");
        outbox.push_file(range(Rc::clone(&file), 0, 4));
        let mut got = Vec::new();
        assert_eq!(
            outbox.write_to(near.as_fd(), 100, ColdReads::Wait).unwrap(),
            Progress::Cold
        );
        arrived(&mut far, &mut got);
        assert_eq!(got, b"header ");
        assert_eq!(
            outbox.write_to(near.as_fd(), 100, ColdReads::Wait).unwrap(),
            Progress::Cold
        );
        file.is_resident.set(true);
        assert_eq!(
            outbox.write_to(near.as_fd(), 100, ColdReads::Wait).unwrap(),
            Progress::Drained
        );
        file.is_resident.set(false);
        outbox.push_file(range(file, 1, 3));
        assert_eq!(
            outbox
                .write_to(near.as_fd(), 100, ColdReads::Force)
                .unwrap(),
            Progress::Drained
        );
        arrived(&mut far, &mut got);
        assert_eq!(got, b"header coldold");
    }

    #[test]
    fn a_file_shorter_than_its_range_is_an_error_and_no_endless_loop() {
        for with_descriptor in [false, true] {
            let (near, _far) = pair();
            let mut outbox = Outbox::new();
            outbox.push_file(range(stored(b"1234", with_descriptor), 2, 10));
            let error = outbox
                .write_to(near.as_fd(), 100, ColdReads::Wait)
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn a_slow_peer_does_not_make_the_buffer_grow() {
        let (near, mut far) = pair();
        let mut outbox = Outbox::new();
        let mut got = Vec::new();
        for _ in 0..1000 {
            outbox.tail_mut().extend_from_slice(&[7; 10_000]);
            outbox.push_file(range(stored(b"12", true), 0, 2));
            // A little is always owed, so the outbox is never drained.
            while outbox.len() > 10_000 {
                let over = usize::try_from(outbox.len() - 10_000).unwrap();
                outbox
                    .write_to(near.as_fd(), over, ColdReads::Wait)
                    .unwrap();
                arrived(&mut far, &mut got);
            }
        }
        assert!(
            outbox.bytes.len() < 3 * COMPACT_BYTES_MIN,
            "{} bytes held",
            outbox.bytes.len()
        );
        assert_eq!(got.len() as u64 + outbox.len(), 1000 * 10_002);
    }

    #[test]
    fn a_drained_outbox_holds_no_buffer() {
        let mut spares = Vec::new();
        let mut outbox = Outbox::new();
        outbox.tail_mut().extend_from_slice(&[0; 1000]);
        outbox.release(&mut spares);
        assert_eq!(
            (outbox.len(), spares.len()),
            (1000, 0),
            "what is owed stays"
        );
        assert_eq!(outbox.take_all().unwrap().len(), 1000);
        outbox.tail_mut().reserve(5000);
        outbox.release(&mut spares);
        assert_eq!((outbox.bytes.capacity(), spares.len()), (0, 1));
        outbox.adopt(&mut spares);
        assert!(outbox.bytes.capacity() >= 5000 && spares.is_empty());
        outbox.tail_mut().reserve(2 * SPARE_BYTES_MAX);
        outbox.release(&mut spares);
        assert!(
            spares.is_empty(),
            "a large buffer is given back to the system"
        );
    }
}
