//! The line protocol: what a person types into nc, and a program pipelines (docs/protocol.md).
#![forbid(unsafe_code)]

use crate::api::{ApiError, Response, Run, TailEvent, Verdict};
use crate::outbox::Outbox;

use super::{Codec, Decoded};

/// The longest line in bytes, without its LF and one CR before that.
pub const LINE_BYTES_MAX: usize = 65_536;

/// What a connection may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest line, bytes without its LF and one CR before that: [`LINE_BYTES_MAX`].
    pub line_bytes_max: usize,
    /// The largest payload of a PRODUCE: key, value and headers. A larger one is refused and read past without being buffered.
    pub record_bytes_max: usize,
    /// The largest payload of a BATCH (`--max-batch-bytes`); a larger one is refused in the same way.
    pub batch_bytes_max: usize,
}

impl Limits {
    /// The limits of a broker with that `--max-batch-bytes`.
    #[must_use]
    pub fn new(batch_bytes_max: usize) -> Self {
        Self { line_bytes_max: LINE_BYTES_MAX, record_bytes_max: batch_bytes_max, batch_bytes_max }
    }

    /// The most bytes that have to be in the input at once for one request to be decoded: line, CR, LF, payload, LF.
    #[must_use]
    pub fn input_bytes_max(&self) -> usize {
        self.line_bytes_max + 3 + self.record_bytes_max.max(self.batch_bytes_max)
    }
}

/// The codec of one connection.
#[derive(Debug)]
pub struct LineCodec {
    limits: Limits,
}

impl LineCodec {
    /// A codec for a connection that has sent nothing yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits }
    }
}

impl Codec for LineCodec {
    fn decode<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> { todo!("{:?} {input:?}", self.limits) }
    fn encode_own(&mut self, _out: &mut Outbox) { todo!() }
    fn encode_run(&mut self, _run: &Run, _verdict: &Verdict, _out: &mut Outbox) { todo!() }
    fn encode_refused(&mut self, _error: &ApiError, _out: &mut Outbox) { todo!() }
    fn encode(&mut self, _response: &Response, _out: &mut Outbox) { todo!() }
    fn encode_tail(&self, _event: &TailEvent, _out: &mut Vec<u8>) { todo!() }
    fn tail_form(&self) -> Option<u8> { todo!() }
    fn encode_rejection(&mut self, _error: &ApiError, _out: &mut Outbox) { todo!() }
    fn is_closing(&self) -> bool { todo!() }
}
