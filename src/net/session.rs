//! What a connection says and what it is told: protocol state without a socket.
//!
//! A session is handed bytes and makes requests of them, in order, until it must wait: for the flush that decides its
//! appends, for the broker (a long poll), for its peer to read what is owed. Its replies keep the order of its requests
//! because nothing is decoded while an earlier request has no answer; appends are the exception, which are answered all
//! together after the flush.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::api::{ApiError, ConnectionId, Now, Request, Response, Run};
use crate::broker::{Broker, Outcome};
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
    /// For records to push, or a line that ends that.
    Tailing,
    /// For the peer to take what is owed; then the connection is closed.
    Closing,
}

/// One connection's protocol state.
#[derive(Debug)]
pub(super) struct Session {
    id: ConnectionId,
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
}

impl Session {
    pub(super) fn new(id: ConnectionId, codec: Box<LineCodec>, backlog_bytes_max: u64) -> Self {
        Self {
            id,
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
        }
    }

    pub(super) fn id(&self) -> ConnectionId {
        self.id
    }

    pub(super) fn codec(&self) -> &LineCodec {
        &self.codec
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
        self.settle();
    }

    /// Goes on with what is pending.
    pub(super) fn go_on<F: Fs>(&mut self, turn: &mut Turn<'_, F>) {
        let mut input = std::mem::take(&mut self.input);
        input.go_on(|bytes| self.decode(bytes, turn));
        self.input = input;
        self.settle();
    }

    /// The peer will send no more: whole requests are answered, a part of one is dropped.
    pub(super) fn end_of_input(&mut self) {
        self.is_ended = true;
        self.settle();
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
    pub(super) fn decided<F: Fs>(&mut self, append: &Append, broker: &Broker<F>) {
        match append {
            Append::Run(run) => self
                .codec
                .encode_run(run, broker.verdict(run), &mut self.outbox),
            Append::Refused(error) => self.codec.encode_refused(error, &mut self.outbox),
        }
        self.note_owed();
        self.undecided -= 1;
        if self.undecided > 0 {
            return;
        }
        self.undecided_records = 0;
        match self.state {
            State::BeforeRequest => self.state = State::Open,
            State::BeforeReply => {
                self.state = State::Open;
                self.reply_own();
            }
            State::Open | State::Parked | State::Tailing | State::Closing => {}
        }
        self.settle();
    }

    /// Answers the parked request, or ends the tail with this.
    pub(super) fn answered(&mut self, response: &Response) {
        self.answer(response);
        self.settle();
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
                    match turn.broker.append(target, &payload, turn.now) {
                        Ok(run) => self.appended(run, turn.undecided),
                        Err(error) => self.refused(error, turn.undecided),
                    }
                    done += used;
                }
                Decoded::Request { request, used } => {
                    if self.undecided > 0 {
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

    fn ask<F: Fs>(&mut self, request: &Request<'_>, turn: &mut Turn<'_, F>) {
        let is_explain = matches!(request, Request::Explain(..));
        let start = if is_explain {
            turn.clock.now().mono
        } else {
            Duration::ZERO
        };
        match turn.broker.handle(self.id, request, turn.now) {
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

    /// After an end of input, a session that has answered everything is closing.
    fn settle(&mut self) {
        let is_idle = self.state == State::Open && self.is_starved && self.undecided == 0;
        if self.is_ended && is_idle {
            self.state = State::Closing;
        }
        if self.state == State::Closing && !self.input.is_empty() {
            self.input = Input::default();
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
mod tests {
    use super::*;
    use crate::broker::{Resumed, Settings};
    use crate::clock::ManualClock;
    use crate::fs::mem::MemFs;
    use crate::protocol::line::Limits;

    /// A session, and the loop around it by hand.
    struct Bench {
        broker: Broker<MemFs>,
        clock: ManualClock,
        undecided: Vec<Undecided>,
        buffer: ReadBuffer,
        session: Session,
    }

    impl Bench {
        fn new(backlog_bytes_max: u64) -> Self {
            let clock = ManualClock::new(Now::default());
            let settings = Settings::new("/data");
            let broker = Broker::open(MemFs::new(), settings, &clock, || Ok(())).unwrap();
            let codec = Box::new(LineCodec::new(Limits::new(1 << 20)));
            Self {
                broker,
                clock,
                undecided: Vec::new(),
                buffer: ReadBuffer::new(),
                session: Session::new(ConnectionId(1), codec, backlog_bytes_max),
            }
        }

        fn turn(&mut self, work: impl FnOnce(&mut Session, &mut ReadBuffer, &mut Turn<'_, MemFs>)) {
            let mut turn = Turn {
                broker: &mut self.broker,
                clock: &self.clock,
                now: self.clock.now(),
                read_budget: 0,
                bytes_read: 0,
                undecided: &mut self.undecided,
            };
            work(&mut self.session, &mut self.buffer, &mut turn);
        }

        fn receive(&mut self, text: &str) {
            self.turn(|session, buffer, turn| {
                buffer.room()[..text.len()].copy_from_slice(text.as_bytes());
                session.receive(buffer, text.len(), turn);
            });
        }

        fn go_on(&mut self) {
            self.turn(|session, _, turn| session.go_on(turn));
        }

        fn flush(&mut self) {
            self.broker.flush(&self.clock);
            for Undecided { append, .. } in self.undecided.drain(..) {
                self.session.decided(&append, &self.broker);
            }
            self.broker.end_turn();
        }

        /// Takes everything that is owed.
        fn sent(&mut self) -> String {
            let bytes = self.session.outbox().take_all().unwrap();
            self.session.note_sent();
            String::from_utf8(bytes).unwrap()
        }
    }

    #[test]
    fn appends_in_a_row_are_one_run_and_are_answered_after_the_flush() {
        let mut bench = Bench::new(20 * REPLY_BYTES_MAX);
        bench.receive(&"PUT t x\n".repeat(20));
        assert_eq!(bench.undecided.len(), 1);
        assert_eq!(bench.sent(), "", "nothing is answered before the flush");
        bench.flush();
        assert!(bench.sent().ends_with("OK 0 18\nOK 0 19\n"));
    }

    #[test]
    fn answers_to_come_count_as_owed() {
        let mut bench = Bench::new(4 * REPLY_BYTES_MAX);
        bench.receive(&"PUT t x\n".repeat(7));
        let decoded: u32 = bench
            .undecided
            .iter()
            .map(|undecided| match &undecided.append {
                Append::Run(run) => run.count,
                Append::Refused(_) => 1,
            })
            .sum();
        assert_eq!(decoded, 5, "one more than fits, as with any reply");
        bench.flush();
        bench.go_on();
        bench.flush();
        assert!(bench.sent().ends_with("OK 0 5\nOK 0 6\n"));
    }

    #[test]
    fn refusals_and_batches_keep_their_place_between_appends() {
        let mut bench = Bench::new(1000);
        let batch = "BATCH t 1 8\n\0\0\0\0\0\0\0\0\n";
        bench.receive(&format!(
            "PUT t a\nPUT t/9 b\n{batch}PUT t c\nNONSENSE\nPUT t d\n"
        ));
        assert!(!bench.session.can_go_on() && !bench.session.wants_input());
        bench.flush();
        assert!(
            bench.session.can_go_on(),
            "what is behind the codec's own reply is pending"
        );
        bench.go_on();
        bench.flush();
        let replies = bench.sent();
        let words: Vec<&str> = replies
            .lines()
            .map(|line| line.split_once(' ').map_or(line, |(_, rest)| rest))
            .map(|rest| rest.strip_prefix("UNKNOWN").map_or(rest, |_| "refused"))
            .collect();
        assert_eq!(words, ["0 0", "refused", "0 1 1", "0 2", "refused", "0 3"]);
    }

    #[test]
    fn a_request_behind_an_append_waits_for_the_flush_and_then_sees_it() {
        let mut bench = Bench::new(1000);
        bench.receive("PUT t x\nOFFSETS t\nPUT t y\n");
        assert!(!bench.session.can_go_on(), "it waits for the flush");
        bench.flush();
        assert_eq!(bench.sent(), "OK 0 0\n");
        bench.go_on();
        assert_eq!(bench.sent(), "OK 1\n0\t0\t1\n");
        bench.flush();
        assert_eq!(bench.sent(), "OK 0 1\n");
    }

    #[test]
    fn at_the_backlog_limit_it_decodes_and_above_it_not_until_half_is_sent() {
        let pong = "OK PONG\n".len() as u64;
        let mut bench = Bench::new(4 * pong);
        bench.receive(&"PING\n".repeat(6));
        assert_eq!(
            bench.session.backlog(),
            5 * pong,
            "n + 1 stops it, n does not"
        );
        assert!(!bench.session.can_go_on() && !bench.session.wants_input());
        for (left, goes_on) in [(3, false), (2, true)] {
            let owed = bench.session.outbox().take_all().unwrap();
            let left = &owed[..usize::try_from(left * pong).unwrap()];
            bench.session.outbox().tail_mut().extend_from_slice(left);
            bench.session.note_sent();
            assert_eq!(
                bench.session.can_go_on(),
                goes_on,
                "{} bytes left",
                left.len()
            );
        }
        bench.go_on();
        assert_eq!(bench.session.backlog(), 3 * pong);
        assert!(bench.session.wants_input());
    }

    #[test]
    fn a_parked_session_decodes_nothing_until_it_is_answered() {
        let mut bench = Bench::new(1000);
        bench.receive("CREATE t\nREAD t 0 wait=5 as=value\nPING\n");
        bench.flush();
        assert!(bench.session.is_waiting() && !bench.session.can_go_on());
        assert_eq!(bench.sent(), "OK\n");
        let mono = Duration::from_millis(5);
        bench.clock.set(Now { wall_ms: 5, mono });
        let now = bench.clock.now();
        assert_eq!(bench.broker.next_ready(now), Some(ConnectionId(1)));
        let Resumed::Reply(response) = bench.broker.resume(ConnectionId(1), now) else {
            panic!("its time is over");
        };
        bench.session.answered(&response);
        assert!(bench.session.can_go_on());
        bench.go_on();
        assert_eq!(bench.sent(), "OK 0 0 0 0\nOK PONG\n");
    }

    #[test]
    fn the_end_of_input_closes_when_every_whole_line_is_answered() {
        let mut bench = Bench::new(1000);
        bench.receive("PUT t x\nPING\nPUT t y");
        bench.session.end_of_input();
        assert!(!bench.session.is_closing(), "answers are due");
        bench.flush();
        bench.go_on();
        assert!(bench.session.is_closing());
        assert_eq!(bench.sent(), "OK 0 0\nOK PONG\n");
        assert!(
            bench.session.input.is_empty(),
            "half a line holds no memory"
        );
    }

    #[test]
    fn an_idle_connection_takes_less_than_a_kibibyte() {
        let own = size_of::<super::super::connection::Connection>() + size_of::<LineCodec>();
        assert!(own < 512, "{own} bytes");
    }
}
