//! Codecs: from a connection's bytes to requests, and from responses to bytes.
//!
//! A codec sees neither files nor topics, and the broker sees no protocol: both know only [`crate::api`]. A
//! connection's first byte chooses its codec.

pub mod line;

use crate::api::{ApiError, Request, Response, Run, TailEvent, Verdict};
use crate::outbox::Outbox;

/// What a codec made of the bytes at the front of the input.
#[derive(Debug)]
pub enum Decoded<'a> {
    /// They are only a part of a request: read on. The codec remembers how far it has looked, so that a long request that comes byte by
    /// byte is not scanned from its start each time; all that is not consumed must be there again, at the front, in the next call.
    NeedMore,
    /// A request for the broker; `used` bytes are done with. If it is not an [`Request::Append`], exactly one
    /// response (or the begin of a tail) is encoded before the next call of `decode`.
    Request {
        /// What is asked.
        request: Request<'a>,
        /// Bytes at the front that belong to it.
        used: usize,
    },
    /// Bytes that need no answer (an empty line, a comment, a refused payload being read past).
    Skip {
        /// Bytes at the front to drop; at least 1.
        used: usize,
    },
    /// A request that the codec answers by itself, in its turn: call [`Codec::encode_own`] when everything before it is answered.
    Reply {
        /// Bytes at the front that belong to it.
        used: usize,
        /// Whether the connection is closed after the reply.
        then_close: bool,
    },
}

/// One protocol's side of a connection; holds the connection's protocol state.
pub trait Codec: std::fmt::Debug {
    /// Looks at the front of `input`. While a tail runs (from the encoding of [`Response::Tailing`] to that of `Done` or `Error`), any
    /// line that is not empty decodes as [`Request::Stop`]; after the STOP of a QUIT comes a `Reply` that closes.
    fn decode<'a>(&mut self, input: &'a [u8]) -> Decoded<'a>;

    /// Encodes the codec's own reply, of the `Decoded::Reply` that came last.
    fn encode_own(&mut self, out: &mut Outbox);

    /// Encodes the answers to a run of appends once its fate is known: in order, OK for each record below `good_below`, the error for the
    /// others; a BATCH has one answer.
    fn encode_run(&mut self, run: &Run, verdict: &Verdict, out: &mut Outbox);

    /// Encodes the answer to an append that was refused at once.
    fn encode_refused(&mut self, error: &ApiError, out: &mut Outbox);

    /// Encodes the response to the last request that was not an append, in the form it asked for.
    fn encode(&mut self, response: &Response, out: &mut Outbox);

    /// Encodes what a tail pushes, in the form that the TAIL asked for.
    fn encode_tail(&mut self, event: &TailEvent, out: &mut Outbox);

    /// A small number that is the same for two tails whose lines look the same, so that they may share them; `None` where they may not.
    fn tail_form(&self) -> Option<u8>;

    /// What to send to a client that is not let in (too many connections), before it is closed.
    fn encode_error_and_close(&mut self, error: &ApiError, out: &mut Outbox);
}
