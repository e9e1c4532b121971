//! What a connection says and what it is told: protocol state without a socket.
//!
//! A session is handed bytes and makes requests of them, in order, until it must wait: for the flush that decides its
//! appends, for the broker (a long poll), for its peer to read what is owed. Its replies keep the order of its requests
//! because nothing is decoded while an earlier request has no answer; appends are the exception, which are answered all
//! together after the flush.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::Duration;

use crate::api::{ApiError, ConnectionId, Now, Payload, Request, Response, Run, Target};
use crate::broker::{Broker, Outcome, Ticket};
use crate::clock::Clock;
use crate::fs::Fs;
use crate::outbox::Outbox;
use crate::protocol::line::LineCodec;
use crate::protocol::{Codec, Decoded};

use super::input::{Input, ReadBuffer};

/// What the answer to an append may take, an error's words included: it counts as owed before it is known.
const REPLY_BYTES_MAX: u64 = 256;

/// What a turn of the loop lends to a session.
#[derive(Debug)]
pub(super) struct Turn<'a, F: Fs> {
    pub(super) broker: &'a mut Broker<F>,
    pub(super) clock: &'a dyn Clock,
    pub(super) now: Now,
    /// How many bytes each connection may read, about.
    pub(super) read_budget: usize,
    /// Bytes read by now, of all connections.
    pub(super) bytes_read: usize,
    /// What awaits the flush, of all connections.
    pub(super) undecided: &'a mut Vec<Undecided>,
}

/// An append of this turn that is not answered yet.
#[derive(Debug)]
pub(super) struct Undecided {
    pub(super) connection: ConnectionId,
    pub(super) append: Append,
}

/// What became of it.
#[derive(Debug)]
pub(super) enum Append {
    /// The flush decides.
    Run(Run),
    /// It was refused, but others before it are undecided.
    Refused(ApiError),
    /// An ACK or COMMIT.
    Commit(Result<Ticket, ApiError>),
}

/// Records that commit themselves once they are sent.
#[derive(Debug)]
struct Receipt {
    /// How many bytes will have been sent by then, of all.
    at: u64,
    partition: u32,
    next_offset: i64,
}

/// What a session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// For bytes.
    Open,
    /// For the flush: the request at the front of the input is not an append.
    BeforeRequest,
    /// For the flush: then the codec has a reply of its own.
    BeforeReply,
    /// For the broker to answer.
    Parked,
    /// For records to push, or a line that ends that or (in a CONSUME) says something to it.
    Tailing,
    /// For the peer to take what is owed; then the connection is closed.
    Closing,
}

/// One connection's protocol state.
#[derive(Debug)]
pub(super) struct Session {
    id: ConnectionId,
    /// What the peer is called.
    peer: Box<str>,
    /// The one protocol so far. A second makes this an enum, which the first byte chooses; a trait object would cost 5 ns a record.
    codec: Box<LineCodec>,
    input: Input,
    outbox: Outbox,
    /// With more bytes owed, nothing is decoded until half of them are sent.
    backlog_bytes_max: u64,
    state: State,
    /// Whether what is pending is only a part of a request.
    is_starved: bool,
    /// Whether so much is owed that nothing is decoded.
    is_full: bool,
    /// Whether the peer will send no more.
    is_ended: bool,
    /// Runs of appends of this turn, and refusals behind them, without an answer.
    undecided: u32,
    /// The answers that they will get.
    undecided_records: u64,
    /// In the order in which they are sent.
    receipts: VecDeque<Receipt>,
}

impl Session {
    pub(super) fn new(
        id: ConnectionId,
        peer: Box<str>,
        codec: Box<LineCodec>,
        backlog_bytes_max: u64,
    ) -> Self {
        Self {
            id,
            peer,
            codec,
            input: Input::default(),
            outbox: Outbox::new(),
            backlog_bytes_max,
            state: State::Open,
            is_starved: true,
            is_full: false,
            is_ended: false,
            undecided: 0,
            undecided_records: 0,
            receipts: VecDeque::new(),
        }
    }

    pub(super) fn id(&self) -> ConnectionId {
        self.id
    }

    pub(super) fn codec(&self) -> &LineCodec {
        &self.codec
    }

    /// The first byte of a connection that was refused because of it; told once.
    pub(super) fn take_foreign_byte(&mut self) -> Option<u8> {
        self.codec.take_foreign_byte()
    }

    pub(super) fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Bytes owed to the peer.
    pub(super) fn backlog(&self) -> u64 {
        self.outbox.len()
    }

    /// Whether appends of this turn have no answer yet.
    pub(super) fn is_undecided(&self) -> bool {
        self.undecided > 0
    }

    pub(super) fn is_tailing(&self) -> bool {
        self.state == State::Tailing
    }

    /// Whether it waits for [`Session::resume`].
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Parked | State::Tailing)
    }

    /// Whether nothing is decoded any more, and the connection ends with what is owed.
    pub(super) fn is_closing(&self) -> bool {
        self.state == State::Closing
    }

    /// Whether the peer has ended its side.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether bytes from the socket are of use now.
    pub(super) fn wants_input(&self) -> bool {
        self.is_starved && self.decodes()
    }

    /// Whether it can go on with what is pending.
    pub(super) fn can_go_on(&self) -> bool {
        !self.is_starved && self.decodes()
    }

    fn decodes(&self) -> bool {
        let may_come = self.outbox.len() + self.undecided_records * REPLY_BYTES_MAX;
        matches!(self.state, State::Open | State::Tailing)
            && !self.is_full
            && (self.undecided_records == 0 || may_come <= self.backlog_bytes_max)
    }

    /// Looks at what is owed, after more was: above the limit nothing more is decoded.
    fn note_owed(&mut self) {
        self.is_full |= self.outbox.len() > self.backlog_bytes_max;
    }

    /// Looks at what is owed, after some was sent: from half the limit on it decodes again.
    pub(super) fn note_sent(&mut self) {
        self.is_full &= self.outbox.len() > self.backlog_bytes_max / 2;
    }

    /// Takes the `len` bytes that were read last.
    pub(super) fn receive<F: Fs>(
        &mut self,
        buffer: &mut ReadBuffer,
        len: usize,
        turn: &mut Turn<'_, F>,
    ) {
        let mut input = std::mem::take(&mut self.input);
        input.take_in(buffer, len, |bytes| self.decode(bytes, turn));
        self.input = input;
        self.settle(turn.broker);
    }

    /// Goes on with what is pending.
    pub(super) fn go_on<F: Fs>(&mut self, turn: &mut Turn<'_, F>) {
        let mut input = std::mem::take(&mut self.input);
        input.go_on(|bytes| self.decode(bytes, turn));
        self.input = input;
        self.settle(turn.broker);
    }

    /// The peer will send no more: whole requests are answered, a part of one is dropped.
    pub(super) fn end_of_input<F: Fs>(&mut self, broker: &mut Broker<F>) {
        self.is_ended = true;
        self.settle(broker);
    }

    /// Tells the peer why it is not let in.
    pub(super) fn reject(&mut self, error: &ApiError) {
        self.codec.encode_rejection(error, &mut self.outbox);
        self.finish();
    }

    /// Nothing more is decoded; what is owed is still sent.
    pub(super) fn finish(&mut self) {
        self.state = State::Closing;
        self.input = Input::default();
    }

    /// Answers an append, now that the flush is over.
    pub(super) fn decided<F: Fs>(&mut self, append: &Append, broker: &mut Broker<F>) {
        match append {
            Append::Run(run) => self
                .codec
                .encode_run(run, broker.verdict(run), &mut self.outbox),
            Append::Refused(error) => self.codec.encode_refused(error, &mut self.outbox),
            Append::Commit(commit) => {
                let result = match commit {
                    Ok(ticket) => broker.commit_error(*ticket).map_or(Ok(ticket.answer), Err),
                    Err(error) => Err(error),
                };
                self.codec.encode_commit(result, &mut self.outbox);
            }
        }
        self.note_owed();
        self.undecided -= 1;
        if self.undecided > 0 {
            return;
        }
        self.undecided_records = 0;
        match self.state {
            State::BeforeRequest => self.state = self.between_requests(),
            State::BeforeReply => {
                self.state = self.between_requests();
                self.reply_own();
            }
            State::Open | State::Parked | State::Tailing | State::Closing => {}
        }
        self.settle(broker);
    }

    /// Where it stands while no request waits.
    fn between_requests(&self) -> State {
        if self.codec.is_consuming() {
            State::Tailing
        } else {
            State::Open
        }
    }

    /// Answers the parked request, or ends the tail with this.
    pub(super) fn answered<F: Fs>(&mut self, response: &Response, broker: &mut Broker<F>) {
        self.answer(response);
        self.settle(broker);
    }

    /// What is owed by now ends with records of that partition that commit themselves once they are sent.
    pub(super) fn owe_receipt(&mut self, partition: u32, next_offset: i64) {
        self.receipts.push_back(Receipt {
            at: self.outbox.sent_total() + self.outbox.len(),
            partition,
            next_offset,
        });
    }

    /// The next partition of which such records were sent, and the offset behind them.
    pub(super) fn next_receipt(&mut self) -> Option<(u32, i64)> {
        let sent = self.outbox.sent_total();
        let receipt = self.receipts.pop_front_if(|receipt| receipt.at <= sent)?;
        Some((receipt.partition, receipt.next_offset))
    }

    /// Decodes and executes requests at the front of `bytes`; returns how many bytes are done with.
    fn decode<F: Fs>(&mut self, bytes: &[u8], turn: &mut Turn<'_, F>) -> usize {
        let mut done = 0;
        self.is_starved = false;
        while self.decodes() {
            let pending = bytes.get(done..).unwrap_or_default();
            if pending.is_empty() {
                self.is_starved = true;
                break;
            }
            match self.codec.decode(pending) {
                Decoded::Request {
                    request: Request::Append(target, payload),
                    used,
                } => {
                    let following = pending.get(used..).unwrap_or_default();
                    done += used + self.append(target, payload, (pending, following), turn);
                }
                Decoded::Request { request, used } => {
                    let goes_on =
                        matches!(request, Request::Ack { .. }) && self.codec.is_consuming();
                    if self.undecided > 0 && !goes_on {
                        // Not done with: it is decoded once more after the flush.
                        self.state = State::BeforeRequest;
                        break;
                    }
                    self.ask(&request, turn);
                    done += used;
                }
                Decoded::Skip { used } => done += used,
                Decoded::Reply { used } => {
                    done += used;
                    turn.broker.add_errors(u64::from(self.codec.own_is_error()));
                    if self.undecided > 0 {
                        self.state = State::BeforeReply;
                    } else {
                        self.reply_own();
                    }
                }
                Decoded::NeedMore => {
                    self.is_starved = true;
                    break;
                }
            }
        }
        done
    }

    /// Executes an append, and those to the same target that follow it; `bytes` begin with the first, and with what is behind that.
    /// Returns how many bytes belong to the others.
    fn append<F: Fs>(
        &mut self,
        target: Target<'_>,
        first: Payload<'_>,
        (before, following): (&[u8], &[u8]),
        turn: &mut Turn<'_, F>,
    ) -> usize {
        let may_come = self.outbox.len() + self.undecided_records * REPLY_BYTES_MAX;
        let mut room = self.backlog_bytes_max.saturating_sub(may_come) / REPLY_BYTES_MAX;
        let codec = &self.codec;
        let mut done = 0;
        let mut rest = following;
        let more = std::iter::from_fn(|| {
            room = room.checked_sub(1)?;
            let (record, used) = codec.again(before, rest)?;
            rest = rest.get(used..)?;
            done += used;
            Some(record)
        });
        let (run, error) = turn.broker.append_many(target, &first, more, turn.now);
        if let Some(run) = run {
            self.appended(run, turn.undecided);
        }
        if let Some(error) = error {
            self.refused(error, turn.undecided);
        }
        done
    }

    fn appended(&mut self, run: Run, undecided: &mut Vec<Undecided>) {
        self.undecided_records += if run.is_batch {
            1
        } else {
            u64::from(run.count)
        };
        if let Some(Undecided {
            connection,
            append: Append::Run(last),
        }) = undecided.last_mut()
            && *connection == self.id
            && continues(last, &run)
            && let Some(count) = last.count.checked_add(run.count)
        {
            last.count = count;
            return;
        }
        self.undecided += 1;
        undecided.push(Undecided {
            connection: self.id,
            append: Append::Run(run),
        });
    }

    fn refused(&mut self, error: ApiError, undecided: &mut Vec<Undecided>) {
        if self.undecided == 0 {
            self.codec.encode_refused(&error, &mut self.outbox);
            self.note_owed();
            return;
        }
        self.undecided += 1;
        self.undecided_records += 1;
        undecided.push(Undecided {
            connection: self.id,
            append: Append::Refused(error),
        });
    }

    fn committing(&mut self, commit: Result<Ticket, ApiError>, undecided: &mut Vec<Undecided>) {
        self.undecided += 1;
        self.undecided_records += 1;
        undecided.push(Undecided {
            connection: self.id,
            append: Append::Commit(commit),
        });
    }

    fn ask<F: Fs>(&mut self, request: &Request<'_>, turn: &mut Turn<'_, F>) {
        let is_explain = matches!(request, Request::Explain(..));
        let start = if is_explain {
            turn.clock.now().mono
        } else {
            Duration::ZERO
        };
        if matches!(request, Request::Consume(_)) {
            turn.broker.introduce(self.id, &self.peer);
        }
        match turn.broker.handle(self.id, request, turn.now) {
            Outcome::Commit(commit) => self.committing(commit, turn.undecided),
            Outcome::Reply(mut response) => {
                if let Response::Explained { explanation, .. } = &mut response {
                    explanation.took = turn.clock.now().mono.saturating_sub(start);
                }
                self.answer(&response);
            }
            Outcome::Parked => self.state = State::Parked,
            Outcome::Streaming(response) => {
                self.answer(&response);
                self.state = State::Tailing;
            }
        }
    }

    fn answer(&mut self, response: &Response) {
        self.codec.encode(response, &mut self.outbox);
        self.receipts.clear();
        self.note_owed();
        self.state = if self.codec.is_closing() {
            State::Closing
        } else {
            State::Open
        };
    }

    fn reply_own(&mut self) {
        self.codec.encode_own(&mut self.outbox);
        self.note_owed();
        if self.codec.is_closing() {
            self.state = State::Closing;
        }
    }

    /// After an end of input, a session that has answered everything is closing; a CONSUME ends as by STOP.
    fn settle<F: Fs>(&mut self, broker: &mut Broker<F>) {
        if self.is_ended && self.is_starved && self.undecided == 0 {
            if self.state == State::Tailing && self.codec.is_consuming() {
                broker.stop(self.id);
                self.answer(&Response::Done);
            }
            if self.state == State::Open {
                self.state = State::Closing;
            }
        }
        if self.state == State::Closing {
            // Its partitions are for others at once, not when it has taken what it is owed.
            if self.codec.is_consuming() {
                broker.stop(self.id);
            }
            if !self.input.is_empty() {
                self.input = Input::default();
            }
        }
    }
}

/// Whether the records of `run` follow those of `last`, so that one run says both.
fn continues(last: &Run, run: &Run) -> bool {
    last.key == run.key
        && !last.is_batch
        && !run.is_batch
        && last.first_offset.checked_add(i64::from(last.count)) == Some(run.first_offset)
}

#[cfg(test)]
#[expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]
mod tests;
