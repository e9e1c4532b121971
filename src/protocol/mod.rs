//! Codecs: from a connection's bytes to requests, and from responses to bytes.
//!
//! A codec sees neither files nor topics, and the broker sees no protocol: both know only [`crate::api`]. A
//! connection's first byte chooses its codec.
//!
//! What the event loop does with one:
//!
//! 1. [`Codec::decode`] at the front of the input, again and again until it says `NeedMore`. An append goes to the broker at
//!    once and stays undecided until the flush; before anything else (`Request` or `Reply`) is executed or answered,
//!    the undecided appends of the connection are decided, and their runs encoded.
//! 2. One `encode` call for each `Request` and each `Reply`, in the order they were decoded.
//! 3. After each of those calls: where [`Codec::is_closing`], nothing more is decoded (and a tail ended), what is owed is sent,
//!    and the connection is closed.

#![forbid(unsafe_code)]

pub mod line;

use std::fmt::Debug;

use crate::api::{ApiError, CommitAnswer, Request, Response, Run, TailEvent, Verdict};
use crate::outbox::Outbox;
use crate::record::PlainRecord;

/// What a codec made of the bytes at the front of the input.
#[derive(Debug)]
pub enum Decoded<'a> {
    /// They are only a part of a request: read on. The codec remembers how far it has looked, so that a long request that comes byte by
    /// byte is not scanned from its start each time; all that is not consumed must be there again, at the front, in the next call.
    NeedMore,
    /// A request for the broker. If it is not a [`Request::Append`], exactly one response is encoded before the next call of `decode`.
    Request {
        /// What is asked.
        request: Request<'a>,
        /// Bytes at the front that belong to it.
        used: usize,
    },
    /// Bytes that need no answer, or whose answer comes later (an empty line, a comment, a part of a refused payload).
    Skip {
        /// Bytes at the front to drop; at least 1.
        used: usize,
    },
    /// A request that the codec answers by itself: call [`Codec::encode_own`] when everything before it is answered, and before
    /// the next call of `decode`.
    Reply {
        /// Bytes at the front that belong to it.
        used: usize,
    },
}

/// One protocol's side of a connection; holds the connection's protocol state.
pub trait Codec: Debug {
    /// Looks at the front of `input`. While a tail runs (from the encoding of [`Response::Tailing`] to that of any other response), any
    /// line that is not empty decodes as [`Request::Stop`]. While a CONSUME runs (from the encoding of [`Response::Consuming`] to that of any
    /// other response), what decodes is [`Request::Ack`], [`Request::Stop`], and replies of the codec's own; a `Stop` may be decoded once more
    /// where the caller did not execute it.
    ///
    /// A request that is no append may have to wait for the flush of appends before it; it is then not done with, and the same bytes are decoded again.
    /// That must give the same request: what a codec remembers of one that it decoded must not change what it decodes next.
    fn decode<'a>(&mut self, input: &'a [u8]) -> Decoded<'a>;

    /// One more append to the target of the append that `decode` gave last, where the front of `input` shows at a glance that it
    /// is one; `before` begins with that request's bytes. Returns what is appended and how many bytes belong to it. `None` says nothing:
    /// `decode` is asked then. A codec that has no shorter way need not have this.
    fn again<'a>(&self, before: &[u8], input: &'a [u8]) -> Option<(PlainRecord<'a>, usize)> {
        let _ = (before, input);
        None
    }

    /// Whether the codec's own reply, of the [`Decoded::Reply`] that came last, is an error: STATS counts those, too.
    fn own_is_error(&self) -> bool;

    /// Encodes the codec's own reply, of the [`Decoded::Reply`] that came last.
    fn encode_own(&mut self, out: &mut Outbox);

    /// Encodes the answers to a run of appends once its fate is known: in order, OK for each record below `good_below`, the error for the
    /// others; a BATCH has one answer.
    fn encode_run(&mut self, run: &Run, verdict: &Verdict, out: &mut Outbox);

    /// Encodes the answer to an append that was refused at once.
    fn encode_refused(&mut self, error: &ApiError, out: &mut Outbox);

    /// Encodes the answer to an ACK or COMMIT once its fate is known; a CONSUME goes on.
    fn encode_commit(&mut self, result: Result<CommitAnswer, &ApiError>, out: &mut Outbox);

    /// Encodes the response to the last other request that was not an append, in the form it asked for; also what ends a tail or a CONSUME.
    fn encode(&mut self, response: &Response, out: &mut Outbox);

    /// Appends what a tail or CONSUME pushes, in the form that was asked for. Two codecs with the same [`Codec::tail_form`] append
    /// the same bytes for the same event.
    fn encode_tail(&self, event: &TailEvent, out: &mut Vec<u8>);

    /// A small number for how the running tail's lines look; `None` where none runs.
    fn tail_form(&self) -> Option<u8>;

    /// Whether a CONSUME runs.
    fn is_consuming(&self) -> bool;

    /// Encodes what a client is told that is not let in (too many connections); the caller closes.
    fn encode_rejection(&mut self, error: &ApiError, out: &mut Outbox);

    /// Whether the connection ends with what is encoded by now.
    fn is_closing(&self) -> bool;
}
