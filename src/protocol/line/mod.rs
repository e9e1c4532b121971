//! The line protocol: what a person types into nc, and a program pipelines (docs/protocol.md).
//!
//! One request is one line, save that PRODUCE and BATCH have counted bytes behind theirs. [`LineCodec`] looks for the
//! LF once, remembers how far it looked, and builds a request that borrows from the input when all of it is there; nothing is
//! copied and, while the line is right, nothing is allocated. A payload that is refused by its line alone is
//! read past as it comes and never buffered.
//!
//! In reading order: `verbs` (the table), `lexer` (fields and options), `offsets`, `parse` and `group_verbs` (lines to requests), `payload` (counted
//! requests), `fast` (the plainest of them), `forms` (records), `replies`, `runs` (the many OKs of a pipelined producer).
#![forbid(unsafe_code)]

mod fast;
mod forms;
mod group_verbs;
mod http;
mod lexer;
pub mod offsets;
mod parse;
mod payload;
mod replies;
mod runs;
pub mod verbs;

pub use payload::payload_bytes;

use memchr::memchr;

use crate::api::{
    ApiError, CommitAnswer, ErrorCode, Request, Response, Run, TailEvent, Verdict, quoted,
};
use crate::json::integer;
use crate::outbox::Outbox;
use crate::record::PlainRecord;

pub use self::forms::Form;
use self::lexer::{bad, check_clean, next_field};
use self::parse::{Command, Remember, Then};
use self::payload::{Head, framing};
use self::replies::Own;
use self::verbs::{Kind, Verb};
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
        Self {
            line_bytes_max: LINE_BYTES_MAX,
            record_bytes_max: batch_bytes_max,
            batch_bytes_max,
        }
    }

    /// The most bytes that have to be in the input at once for one request to be decoded: line, CR, LF, payload, LF.
    #[must_use]
    pub fn input_bytes_max(&self) -> usize {
        let payload = self.record_bytes_max.max(self.batch_bytes_max);
        self.line_bytes_max
            .saturating_add(3)
            .saturating_add(payload)
    }
}

/// The codec of one connection.
#[derive(Debug)]
pub struct LineCodec {
    limits: Limits,
    mode: Mode,
    /// Bytes at the front of the input in which no LF is.
    scanned: usize,
    /// Bytes without which nothing new can be said about the front of the input.
    needed: usize,
    /// The reply that `encode_own` is to write.
    own: Own,
    /// How the last request wants its reply.
    remember: Remember,
    /// Whether a CONSUME runs, whatever is read meanwhile.
    is_consuming: bool,
    /// The first byte of a connection that does not speak lines.
    foreign: Option<u8>,
    /// Bytes of verb and target of the request that was decoded last, where [`fast`] read it; else 0.
    named: usize,
}

/// What the next bytes are.
#[derive(Debug)]
enum Mode {
    /// The first line of the connection.
    First,
    /// A line, and what follows it.
    Lines,
    /// A line, which ends the tail that runs.
    Tail,
    /// A line of those that a CONSUME allows; whether the last of them ends the connection with it.
    Consume { closes: bool },
    /// Nothing, until the answer to the Stop is encoded.
    Stopping(AfterStop),
    /// A payload that is read past: bytes left before its LF, and what is answered then, if anything.
    Discard {
        left: u64,
        error: Option<Box<ApiError>>,
    },
    /// Nothing: the connection ends.
    Closing,
}

/// What becomes of a connection whose tail was ended by a line.
#[derive(Debug, Clone, Copy)]
enum AfterStop {
    Lines,
    /// The line was a PRODUCE or BATCH: its payload is not taken for requests.
    Discard(u64),
    /// The line was a QUIT.
    Close,
}

impl LineCodec {
    /// A codec for a connection that has sent nothing yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            mode: Mode::First,
            scanned: 0,
            needed: 1,
            own: Own::Nothing,
            remember: Remember::default(),
            is_consuming: false,
            foreign: None,
            named: 0,
        }
    }

    /// The first byte of a connection that was refused because of it; told once.
    #[inline]
    pub fn take_foreign_byte(&mut self) -> Option<u8> {
        self.foreign.take()
    }

    /// The front is done with; what follows is looked at afresh.
    #[inline]
    fn consume(&mut self) {
        self.scanned = 0;
        self.needed = 1;
    }

    #[inline]
    fn line<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        let Some(lf) = memchr(b'\n', input.get(self.scanned..).unwrap_or_default()) else {
            return self.no_line_yet(input);
        };
        let end = self.scanned + lf;
        let line = input.get(..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > self.limits.line_bytes_max {
            return self.line_too_long(input);
        }
        match self.mode {
            Mode::Lines => self.request(line, input, end),
            Mode::First => {
                self.mode = Mode::Lines;
                if http::is_request(line) {
                    return self.close_with(Own::Static(http::REPLY), input);
                }
                self.request(line, input, end)
            }
            Mode::Consume { .. } => self.while_consuming(line, input, end + 1),
            Mode::Tail | Mode::Stopping(_) | Mode::Discard { .. } | Mode::Closing => {
                self.stop(line, end + 1)
            }
        }
    }

    /// The request of a whole line, the LF of which is at `end`.
    #[inline]
    fn request<'a>(&mut self, line: &'a [u8], input: &'a [u8], end: usize) -> Decoded<'a> {
        let used = end + 1;
        let mut rest = line;
        let Some(word) = next_field(&mut rest) else {
            self.consume();
            return Decoded::Skip { used };
        };
        match word {
            b"PRODUCE" => self.counted(Kind::Produce, rest, input, end),
            b"BATCH" => self.counted(Kind::Batch, rest, input, end),
            b"PUT" => {
                self.consume();
                match parse::put(rest) {
                    Ok((target, payload)) => Decoded::Request {
                        request: Request::Append(target, payload),
                        used,
                    },
                    Err(error) => self.reply(Own::Error(error), used),
                }
            }
            [b'#', ..] => {
                self.consume();
                Decoded::Skip { used }
            }
            _ => match check_clean(word).and_then(|()| verbs::find(word)) {
                Ok(verb) if matches!(verb.kind, Kind::Produce | Kind::Batch) => {
                    self.counted(verb.kind, rest, input, end)
                }
                Ok(verb) => self.plain(verb, rest, used),
                Err(error) => {
                    self.consume();
                    self.reply(Own::Error(error), used)
                }
            },
        }
    }

    /// A verb that has nothing behind its line.
    fn plain<'a>(&mut self, verb: &'static Verb, rest: &'a [u8], used: usize) -> Decoded<'a> {
        self.consume();
        match parse::command(verb, rest) {
            Ok(Command::Broker(request, remember)) => {
                if !self.is_consuming {
                    self.remember = remember;
                }
                Decoded::Request { request, used }
            }
            Ok(Command::Own(own, then)) => {
                if then == Then::Close {
                    self.mode = Mode::Closing;
                }
                self.reply(own, used)
            }
            Err(error) => self.reply(Own::Error(error), used),
        }
    }

    /// A PRODUCE or BATCH, as soon as its payload and the LF behind it are there.
    #[inline]
    fn counted<'a>(
        &mut self,
        kind: Kind,
        rest: &'a [u8],
        input: &'a [u8],
        end: usize,
    ) -> Decoded<'a> {
        let used = end + 1;
        let counted = match payload::head(kind, rest, &self.limits) {
            Head::Good(counted) => counted,
            Head::Refused(left, error) => {
                self.consume();
                self.mode = Mode::Discard {
                    left,
                    error: Some(Box::new(error)),
                };
                return Decoded::Skip { used };
            }
            Head::Broken(error) => return self.close_with(Own::Error(error), input),
        };
        let behind = input.get(used..).unwrap_or_default();
        let Some((body, &[terminator, ..])) = behind.split_at_checked(counted.bytes) else {
            // The line is known to end there, so the next call finds its LF with one look.
            self.scanned = end;
            self.needed = used + counted.bytes + 1;
            return Decoded::NeedMore;
        };
        if terminator != b'\n' {
            return self.close_with(Own::Error(no_lf(counted.bytes as u64)), input);
        }
        match counted.payload(body) {
            Ok(payload) => {
                self.consume();
                let used = used + counted.bytes + 1;
                Decoded::Request {
                    request: Request::Append(counted.target, payload),
                    used,
                }
            }
            Err(error) if error.code == ErrorCode::Framing => {
                self.close_with(Own::Error(error), input)
            }
            Err(error) => {
                self.consume();
                self.reply(Own::Error(error), used + counted.bytes + 1)
            }
        }
    }

    /// A line while a tail runs.
    #[cold]
    fn stop<'a>(&mut self, line: &'a [u8], used: usize) -> Decoded<'a> {
        self.consume();
        let mut rest = line;
        let Some(word) = next_field(&mut rest) else {
            return Decoded::Skip { used };
        };
        let after = match verbs::find(word).map(|verb| verb.kind) {
            Ok(Kind::Quit) => AfterStop::Close,
            Ok(kind @ (Kind::Produce | Kind::Batch)) => {
                payload::announced(kind, rest, &self.limits)
                    .map_or(AfterStop::Lines, AfterStop::Discard)
            }
            Ok(_) | Err(_) => AfterStop::Lines,
        };
        self.mode = Mode::Stopping(after);
        Decoded::Request {
            request: Request::Stop,
            used,
        }
    }

    /// A line while a CONSUME runs.
    fn while_consuming<'a>(&mut self, line: &'a [u8], input: &'a [u8], used: usize) -> Decoded<'a> {
        self.consume();
        let mut rest = line;
        let word = next_field(&mut rest).filter(|word| !word.starts_with(b"#"));
        let Some(word) = word else {
            return Decoded::Skip { used };
        };
        let refused = bad(format!(
            "'{}' has to wait: while a CONSUME runs there are ACK, STOP, PING and QUIT; STOP ends it",
            quoted(word)
        ));
        let Ok(verb) = verbs::find(word) else {
            return self.reply(Own::Error(refused), used);
        };
        match verb.kind {
            Kind::Ack | Kind::Ping => self.plain(verb, rest, used),
            Kind::Stop | Kind::Quit => match parse::command(verb, rest) {
                Ok(_) => {
                    let closes = verb.kind == Kind::Quit;
                    self.mode = Mode::Consume { closes };
                    Decoded::Request {
                        request: Request::Stop,
                        used,
                    }
                }
                Err(error) => self.reply(Own::Error(error), used),
            },
            Kind::Produce | Kind::Batch => {
                let left = match payload::head(verb.kind, rest, &self.limits) {
                    Head::Good(counted) => counted.bytes as u64,
                    Head::Refused(left, _) => left,
                    Head::Broken(error) => return self.close_with(Own::Error(error), input),
                };
                self.mode = Mode::Discard {
                    left,
                    error: Some(Box::new(refused)),
                };
                Decoded::Skip { used }
            }
            _ => self.reply(Own::Error(refused), used),
        }
    }

    /// Goes on behind the answer that ended a tail or a CONSUME; `is_asked` where it answers the line that did.
    fn stopped(&mut self, is_asked: bool) {
        self.is_consuming = false;
        self.mode = match std::mem::replace(&mut self.mode, Mode::Lines) {
            Mode::Consume { closes: true } if is_asked => Mode::Closing,
            Mode::Tail | Mode::Consume { .. } | Mode::Stopping(AfterStop::Lines) => Mode::Lines,
            Mode::Stopping(AfterStop::Discard(left)) => Mode::Discard { left, error: None },
            Mode::Stopping(AfterStop::Close) => Mode::Closing,
            mode @ (Mode::First | Mode::Lines | Mode::Discard { .. } | Mode::Closing) => mode,
        };
    }

    #[cold]
    fn first<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        match input.first() {
            Some(&byte)
                if (byte < b' ' && !matches!(byte, b'\n' | b'\r' | b'\t')) || byte > 0x7f =>
            {
                self.foreign = Some(byte);
                let error = framing(format!(
                    "the first byte is {byte:#04x}; this port speaks lines of text, so HELP and Enter would be right"
                ));
                self.close_with(Own::Error(error), input)
            }
            _ => self.line(input),
        }
    }

    #[cold]
    fn discard<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        let Mode::Discard { left, error } = &mut self.mode else {
            return Decoded::NeedMore;
        };
        if *left > 0 {
            let used = usize::try_from(*left)
                .unwrap_or(usize::MAX)
                .min(input.len());
            *left -= used as u64;
            return Decoded::Skip { used };
        }
        if input.first() != Some(&b'\n') {
            return self.close_with(Own::Error(no_lf_refused()), input);
        }
        let error = error.take();
        self.mode = if self.is_consuming {
            Mode::Consume { closes: false }
        } else {
            Mode::Lines
        };
        match error {
            Some(error) => self.reply(Own::Error(*error), 1),
            None => Decoded::Skip { used: 1 },
        }
    }

    #[cold]
    fn no_line_yet<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        let max = self.limits.line_bytes_max;
        // One byte more may be the CR that does not count.
        if input.len() > max + 1 || input.get(max).is_some_and(|&byte| byte != b'\r') {
            return self.line_too_long(input);
        }
        self.scanned = input.len();
        self.needed = input.len() + 1;
        Decoded::NeedMore
    }

    #[cold]
    fn line_too_long<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        let error = ApiError::new(
            ErrorCode::LineTooLong,
            format!(
                "a line has at most {} bytes; PRODUCE takes longer values; the connection is closed",
                self.limits.line_bytes_max
            ),
        );
        self.close_with(Own::Error(error), input)
    }

    #[inline]
    fn reply<'a>(&mut self, own: Own, used: usize) -> Decoded<'a> {
        self.own = own;
        Decoded::Reply { used }
    }

    /// Refuses everything from here on.
    #[cold]
    fn close_with<'a>(&mut self, own: Own, input: &'a [u8]) -> Decoded<'a> {
        self.consume();
        self.mode = Mode::Closing;
        self.reply(own, input.len())
    }
}

impl Codec for LineCodec {
    #[inline]
    fn decode<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        self.named = 0;
        if input.len() < self.needed {
            return Decoded::NeedMore;
        }
        match self.mode {
            // A front that was looked at before is not looked at from its start again.
            Mode::Lines if self.scanned == 0 => {
                if let Some(append) = fast::append(input, &self.limits) {
                    self.named = append.named;
                    return Decoded::Request {
                        request: Request::Append(append.target, append.record.into()),
                        used: append.used,
                    };
                }
                self.line(input)
            }
            Mode::Lines | Mode::Tail | Mode::Consume { .. } => self.line(input),
            Mode::First => self.first(input),
            Mode::Discard { .. } => self.discard(input),
            Mode::Stopping(_) => Decoded::NeedMore,
            Mode::Closing => Decoded::Skip { used: input.len() },
        }
    }

    #[inline]
    fn again<'a>(&self, before: &[u8], input: &'a [u8]) -> Option<(PlainRecord<'a>, usize)> {
        if self.named == 0 {
            return None;
        }
        fast::again(input, before.get(..self.named)?, &self.limits)
    }

    fn own_is_error(&self) -> bool {
        matches!(self.own, Own::Error(_))
    }

    fn encode_own(&mut self, out: &mut Outbox) {
        std::mem::take(&mut self.own).write(out.tail_mut());
    }

    fn encode_run(&mut self, run: &Run, verdict: &Verdict, out: &mut Outbox) {
        let out = out.tail_mut();
        let end = run.first_offset.saturating_add(i64::from(run.count));
        let good = end.min(verdict.good_below).max(run.first_offset);
        let refused = if run.is_batch {
            if good == end {
                out.extend_from_slice(b"OK");
                for number in [
                    i64::from(run.partition),
                    run.first_offset,
                    end.saturating_sub(1),
                ] {
                    out.push(b' ');
                    integer(number, out);
                }
                out.push(b'\n');
            }
            i64::from(good < end)
        } else {
            runs::answers(run.partition, run.first_offset, good, out);
            end.saturating_sub(good)
        };
        if refused > 0 {
            let unknown = ApiError::new(ErrorCode::Storage, "the record could not be stored");
            let error = verdict.error.as_ref().unwrap_or(&unknown);
            (0..refused).for_each(|_| replies::write_error(error, out));
        }
    }

    fn encode_refused(&mut self, error: &ApiError, out: &mut Outbox) {
        replies::write_error(error, out.tail_mut());
    }

    fn encode_commit(&mut self, result: Result<CommitAnswer, &ApiError>, out: &mut Outbox) {
        match result {
            Ok(answer) => replies::write_commit(answer, out.tail_mut()),
            Err(error) => replies::write_error(error, out.tail_mut()),
        }
    }

    fn encode(&mut self, response: &Response, out: &mut Outbox) {
        replies::write_response(response, &self.remember, out);
        match response {
            Response::Tailing(_) => self.mode = Mode::Tail,
            Response::Consuming => {
                self.mode = Mode::Consume { closes: false };
                self.is_consuming = true;
            }
            other => self.stopped(matches!(other, Response::Done)),
        }
    }

    fn encode_tail(&self, event: &TailEvent, out: &mut Vec<u8>) {
        replies::write_event(event, &self.remember, out);
    }

    fn tail_form(&self) -> Option<u8> {
        let form = match self.remember.form {
            Form::Tsv => 0,
            Form::Json => 1,
            Form::Value => 2,
        };
        let runs = self.is_consuming || matches!(self.mode, Mode::Tail);
        runs.then_some(form + 3 * u8::from(self.remember.with_partition))
    }

    fn is_consuming(&self) -> bool {
        self.is_consuming
    }

    fn encode_rejection(&mut self, error: &ApiError, out: &mut Outbox) {
        replies::write_error(error, out.tail_mut());
        self.mode = Mode::Closing;
    }

    fn is_closing(&self) -> bool {
        matches!(self.mode, Mode::Closing) && matches!(self.own, Own::Nothing)
    }
}

#[cold]
fn no_lf(bytes: u64) -> ApiError {
    framing(format!(
        "behind the payload of {bytes} bytes there is no LF"
    ))
}

#[cold]
fn no_lf_refused() -> ApiError {
    framing("behind the payload, which was refused, there is no LF")
}
