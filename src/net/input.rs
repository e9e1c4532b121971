//! Where received bytes stand until they are requests.
//!
//! The loop has one read buffer for all connections, and requests are decoded straight out of it. What is left of a request
//! that has only come in part is copied to the connection, and back in front of the next bytes, if that is the smaller
//! copy; else the new bytes are copied to it. So all copies together are linear in the bytes received, whatever their
//! pieces, and a connection with nothing pending holds no buffer.

#![forbid(unsafe_code)]

/// How many bytes one read takes at most.
pub(super) const READ_BYTES: usize = 256 * 1024;

/// Room for a remainder in front of what is read.
const HEADROOM: usize = 64 * 1024;

/// A connection with nothing pending keeps a buffer of at most so many bytes.
const KEPT_BYTES_MAX: usize = 256;

/// A connection with something pending keeps a buffer of at most so many times that.
const KEPT_FACTOR_MAX: usize = 8;

/// The loop's read buffer. Its pages are real only once they were read into.
#[derive(Debug)]
pub(super) struct ReadBuffer(Box<[u8]>);

impl ReadBuffer {
    pub(super) fn new() -> Self {
        Self(vec![0; HEADROOM + READ_BYTES].into_boxed_slice())
    }

    /// Where to read to.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.0.get_mut(HEADROOM..).unwrap_or_default()
    }

    /// The `len` bytes read last.
    fn received(&self, len: usize) -> &[u8] {
        self.0.get(HEADROOM..HEADROOM + len).unwrap_or_default()
    }

    /// The `len` bytes read last with `before` in front of them; `None` where that has no room.
    fn joined(&mut self, before: &[u8], len: usize) -> Option<&[u8]> {
        let start = HEADROOM.checked_sub(before.len())?;
        self.0.get_mut(start..HEADROOM)?.copy_from_slice(before);
        self.0.get(start..HEADROOM + len)
    }
}

/// The bytes of a connection that are no whole request yet, or wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    /// Bytes at the front that are done with.
    done: usize,
}

impl Input {
    /// What is pending.
    pub(super) fn pending(&self) -> &[u8] {
        self.bytes.get(self.done..).unwrap_or_default()
    }

    /// Whether nothing is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.len() == self.done
    }

    /// Shows `decode` what was pending, with the `len` bytes that were just read behind it, and keeps what it does not use.
    pub(super) fn take_in(
        &mut self,
        buffer: &mut ReadBuffer,
        len: usize,
        decode: impl FnOnce(&[u8]) -> usize,
    ) {
        let pending = self.pending().len();
        if pending <= len.min(HEADROOM)
            && let Some(all) = buffer.joined(self.bytes.get(self.done..).unwrap_or_default(), len)
        {
            let used = decode(all);
            self.replace(all.get(used..).unwrap_or_default());
        } else {
            self.bytes.drain(..self.done);
            self.done = 0;
            self.bytes.extend_from_slice(buffer.received(len));
            self.go_on(decode);
        }
    }

    /// Shows `decode` what is pending, and keeps what it does not use.
    pub(super) fn go_on(&mut self, decode: impl FnOnce(&[u8]) -> usize) {
        self.done += decode(self.pending());
        if self.bytes.capacity() > kept_bytes_max(self.pending().len()) {
            self.bytes = self.pending().to_vec();
            self.done = 0;
        }
    }

    fn replace(&mut self, pending: &[u8]) {
        self.done = 0;
        if self.bytes.capacity() > kept_bytes_max(pending.len()) {
            self.bytes = pending.to_vec();
        } else {
            self.bytes.clear();
            self.bytes.extend_from_slice(pending);
        }
    }
}

/// How large a buffer is kept for so many pending bytes.
fn kept_bytes_max(pending: usize) -> usize {
    (KEPT_FACTOR_MAX * pending).max(KEPT_BYTES_MAX)
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;

    fn receive(input: &mut Input, buffer: &mut ReadBuffer, bytes: &[u8], used: usize) -> Vec<u8> {
        buffer.room()[..bytes.len()].copy_from_slice(bytes);
        let mut seen = Vec::new();
        input.take_in(buffer, bytes.len(), |all| {
            seen = all.to_vec();
            used
        });
        seen
    }

    #[test]
    fn what_is_not_used_is_there_again_in_front() {
        let (mut input, mut buffer) = (Input::default(), ReadBuffer::new());
        assert_eq!(receive(&mut input, &mut buffer, b"abcdef", 4), b"abcdef");
        assert_eq!(input.pending(), b"ef");
        assert_eq!(
            receive(&mut input, &mut buffer, b"g", 1),
            b"efg",
            "more pending than new"
        );
        assert_eq!(
            receive(&mut input, &mut buffer, b"hij", 0),
            b"fghij",
            "more new than pending"
        );
        input.go_on(|all| {
            assert_eq!(all, b"fghij");
            5
        });
        assert!(input.is_empty());
    }

    #[test]
    fn more_than_the_headroom_is_gathered_and_released() {
        let (mut input, mut buffer) = (Input::default(), ReadBuffer::new());
        let piece = vec![7; READ_BYTES];
        for count in 1..=4 {
            let seen = receive(&mut input, &mut buffer, &piece, 0);
            assert_eq!(seen.len(), count * READ_BYTES);
        }
        let rest = input.pending().len() - 3;
        input.go_on(|_| rest);
        assert_eq!(receive(&mut input, &mut buffer, &[8], 3), [7, 7, 7, 8]);
        assert_eq!(input.pending(), [8]);
        input.go_on(<[u8]>::len);
        assert!(
            input.bytes.capacity() <= KEPT_BYTES_MAX,
            "an idle connection holds no buffer"
        );
    }
}
