//! A piece of a log file in memory, moved along by whoever scans it.

#![forbid(unsafe_code)]

use std::fmt;
use std::io;

use crate::format::{DecodeError, EntryHead, Layout};
use crate::fs::ReadAt;

/// Bytes asked for a head at first; layout 1 may ask for more where a key is long.
const HEAD_GUESS_BYTES: u64 = 64;

/// Bytes that [`Window::peek`] gives: as many as hold magic, layout and offset in every layout.
pub const PEEK_BYTES: usize = 32;

/// A window over the first `limit` bytes of a file. It never shows what lies beyond the limit.
pub struct Window<'f> {
    file: &'f dyn ReadAt,
    limit: u64,
    /// Position of the first byte held.
    start: u64,
    /// The buffer; the first `filled` bytes are the file's.
    buffer: Vec<u8>,
    filled: usize,
    /// Bytes read at once at the least.
    chunk: usize,
    /// Bytes read from the file so far.
    read_bytes: u64,
}

impl fmt::Debug for Window<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("limit", &self.limit)
            .field("start", &self.start)
            .field("filled", &self.filled)
            .finish_non_exhaustive()
    }
}

impl<'f> Window<'f> {
    /// A window that reads `chunk` bytes at once, into `buffer` (whose content does not matter).
    #[must_use]
    pub fn new(file: &'f dyn ReadAt, limit: u64, chunk: usize, buffer: Vec<u8>) -> Self {
        Self {
            file,
            limit,
            start: 0,
            buffer,
            filled: 0,
            chunk,
            read_bytes: 0,
        }
    }

    /// From here on it reads so many bytes at once, or what is asked for where that is more.
    pub(super) fn read_at_least(&mut self, chunk: u64) {
        self.chunk = usize::try_from(chunk).unwrap_or(usize::MAX);
    }

    /// Gives the buffer back, for the next window.
    #[must_use]
    pub fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }

    /// Where the window's file ends for its user.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes read from the file so far.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// The bytes from `position` on: `len` of them, or as many as there are before the limit.
    ///
    /// # Errors
    /// What the system says; `UnexpectedEof` where the file is shorter than the limit.
    pub fn slice(&mut self, position: u64, len: u64) -> io::Result<&[u8]> {
        let len = len.min(self.limit.saturating_sub(position));
        if len == 0 {
            return Ok(&[]);
        }
        let is_held = position >= self.start && position + len <= self.start + self.filled as u64;
        if !is_held {
            self.load(position, len)?;
        }
        let from = usize::try_from(position - self.start).unwrap_or(usize::MAX);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.buffer
            .get(from..)
            .and_then(|rest| rest.get(..len))
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Up to 32 bytes at `position`, copied out without moving the window: for looking into places that are far apart.
    ///
    /// # Errors
    /// What the system says.
    pub fn peek(&self, position: u64) -> io::Result<([u8; PEEK_BYTES], usize)> {
        let mut bytes = [0; PEEK_BYTES];
        let len = self.limit.saturating_sub(position).min(PEEK_BYTES as u64);
        let len = usize::try_from(len).unwrap_or(PEEK_BYTES);
        let filled = match bytes.get_mut(..len) {
            Some(space) => self.file.read_at(space, position)?,
            None => 0,
        };
        Ok((bytes, filled))
    }

    fn load(&mut self, position: u64, len: u64) -> io::Result<()> {
        let wanted = len
            .max(self.chunk as u64)
            .min(self.limit.saturating_sub(position));
        let wanted = usize::try_from(wanted).map_err(|_| io::ErrorKind::OutOfMemory)?;
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        self.filled = 0;
        self.start = position;
        if let Some(space) = self.buffer.get_mut(..wanted) {
            self.filled = self.file.read_at(space, position)?;
        }
        self.read_bytes += self.filled as u64;
        Ok(())
    }

    /// The head of the entry at `position`. `Incomplete` means that the limit cuts it short.
    ///
    /// # Errors
    /// What the system says.
    pub fn head(
        &mut self,
        layout: Layout,
        position: u64,
    ) -> io::Result<Result<EntryHead, DecodeError>> {
        let mut len = HEAD_GUESS_BYTES;
        loop {
            let bytes = self.slice(position, len)?;
            match layout.head(bytes) {
                Err(DecodeError::Incomplete(needed)) if bytes.len() as u64 == len => {
                    len = needed.max(len + 1);
                }
                other => return Ok(other),
            }
        }
    }
}
