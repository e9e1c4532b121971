//! The lines that a producer sends by the million, read in one pass.
//!
//! Only the plainest form of each is known here: capitals, single spaces, no options, nothing wrong, all of it there. Whatever
//! looks different in the least is left, untouched, to the full parser, so that there is one place that knows the
//! language and one that says what is wrong; a test compares the two. It is worth a file: with it, a pipelined PRODUCE is decoded in
//! a third of the time.
#![forbid(unsafe_code)]

use std::slice::Iter;

use memchr::memchr;

use crate::api::{Payload, Target};

use super::Limits;

/// Digits that are read without a check for overflow.
const DIGITS_MAX: usize = 9;

/// A request that is whole and right.
pub(super) struct Append<'a> {
    /// Where it goes.
    pub(super) target: Target<'a>,
    /// The record.
    pub(super) payload: Payload<'a>,
    /// Bytes of line, payload and LF.
    pub(super) used: usize,
}

/// A PRODUCE or PUT in its plainest form at the front of the input.
#[inline]
pub(super) fn append<'a>(input: &'a [u8], limits: &Limits) -> Option<Append<'a>> {
    match input.first_chunk::<4>()? {
        b"PROD" => produce(input, limits),
        b"PUT " => put(input, limits),
        _ => None,
    }
}

#[inline]
fn produce<'a>(input: &'a [u8], limits: &Limits) -> Option<Append<'a>> {
    let mut bytes = input.strip_prefix(b"PRODUCE ")?.iter();
    let (target, b' ') = target(&mut bytes)? else {
        return None;
    };
    let (key, b' ') = length(&mut bytes)? else {
        return None;
    };
    let (value, b'\n') = length(&mut bytes)? else {
        return None;
    };
    let size = key.unwrap_or(0) + value.unwrap_or(0);
    let rest = bytes.as_slice();
    let line_bytes = input.len() - rest.len();
    if size > limits.record_bytes_max || line_bytes > limits.line_bytes_max {
        return None;
    }
    let (body, &[b'\n', ..]) = rest.split_at_checked(size)? else {
        return None;
    };
    let (key_bytes, value_bytes) = body.split_at_checked(key.unwrap_or(0))?;
    let payload = Payload::Record {
        timestamp: None,
        key: key.map(|_| key_bytes),
        value: value.map(|_| value_bytes),
        headers: &[],
    };
    Some(Append {
        target,
        payload,
        used: line_bytes + size + 1,
    })
}

#[inline]
fn put<'a>(input: &'a [u8], limits: &Limits) -> Option<Append<'a>> {
    let mut bytes = input.get(4..)?.iter();
    let (target, end) = target(&mut bytes)?;
    let mut rest = bytes.as_slice();
    let key = match end {
        b' ' => None,
        b':' => {
            let space = rest
                .iter()
                .position(|&byte| byte == b' ' || byte == b'\n')?;
            let (key, &[b' ', ref tail @ ..]) = rest.split_at_checked(space)? else {
                return None;
            };
            rest = tail;
            Some(key)
        }
        _ => return None,
    };
    let (value, _) = rest.split_at_checked(memchr(b'\n', rest)?)?;
    let used = input.len() - rest.len() + value.len() + 1;
    let value = value.strip_suffix(b"\r").unwrap_or(value);
    if used > limits.line_bytes_max {
        return None;
    }
    let payload = Payload::Record {
        timestamp: None,
        key,
        value: Some(value),
        headers: &[],
    };
    Some(Append {
        target,
        payload,
        used,
    })
}

/// A target, and the byte behind it.
#[inline]
fn target<'a>(bytes: &mut Iter<'a, u8>) -> Option<(Target<'a>, u8)> {
    let from = bytes.as_slice();
    let mut end = *bytes.next()?;
    while end > b' ' && !matches!(end, b'/' | b':' | 0x7f..) {
        end = *bytes.next()?;
    }
    let len = from.len() - bytes.as_slice().len() - 1;
    let topic = from.get(..len)?;
    if topic.is_empty() {
        return None;
    }
    if end != b'/' {
        return Some((
            Target {
                topic,
                partition: None,
            },
            end,
        ));
    }
    let (number, end) = digits(bytes)?;
    Some((
        Target {
            topic,
            partition: Some(number),
        },
        end,
    ))
}

/// A length, `None` for -1, and the byte behind it.
#[inline]
fn length(bytes: &mut Iter<'_, u8>) -> Option<(Option<usize>, u8)> {
    if let Some(tail) = bytes.as_slice().strip_prefix(b"-1") {
        *bytes = tail.iter();
        return Some((None, *bytes.next()?));
    }
    let (number, end) = digits(bytes)?;
    Some((Some(usize::try_from(number).ok()?), end))
}

/// A plain number of at most [`DIGITS_MAX`] digits, and the byte behind it.
#[inline]
fn digits(bytes: &mut Iter<'_, u8>) -> Option<(u32, u8)> {
    let mut number = 0;
    for count in 0..=DIGITS_MAX {
        let byte = *bytes.next()?;
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return (count > 0).then_some((number, byte));
        }
        if count < DIGITS_MAX {
            number = number * 10 + u32::from(digit);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Request;
    use crate::protocol::line::LineCodec;
    use crate::protocol::{Codec, Decoded};

    /// What a codec behind its first line says, with its other eye closed if there is a space in front.
    fn decode(input: &[u8]) -> String {
        let mut codec = LineCodec::new(Limits {
            line_bytes_max: 40,
            record_bytes_max: 9,
            batch_bytes_max: 9,
        });
        assert!(matches!(codec.decode(b"\n"), Decoded::Skip { used: 1 }));
        match codec.decode(input) {
            Decoded::Request {
                request: Request::Append(target, payload),
                ..
            } => {
                format!("{target:?} {payload:?}")
            }
            other => format!("{other:?} {}", codec.is_closing()),
        }
    }

    #[test]
    fn what_it_takes_reads_as_by_the_full_parser() {
        let lines = [
            &b"PRODUCE a/0 -1 3\nabc\n"[..],
            b"PRODUCE a 1 2\nabc\n",
            b"PRODUCE a 0 -1\n\n",
            b"PRODUCE a/00000000000000000 007 00\n1234567\n",
            b"PRODUCE a/999999999 4 5\n123456789\n",
            b"PUT a b\n",
            b"PUT a/1 b c \r\n",
            b"PUT a: b\n",
            b"PUT a/1:k:/\t\xff v\xff\n",
            b"PUT a \n",
        ];
        for line in lines {
            let full = [b" ", line].concat();
            assert_eq!(decode(line), decode(&full), "{}", line.escape_ascii());
            assert!(decode(line).contains("Record"), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn what_is_unusual_is_left_to_the_full_parser() {
        let limits = Limits {
            line_bytes_max: 40,
            record_bytes_max: 9,
            batch_bytes_max: 9,
        };
        let lines = [
            &b"PRODUCE a/0 -1 3\nabc"[..],
            b"PRODUCE a/0 -1 3\nabcd",
            b"PRODUCE a/ -1 3\nabc\n",
            b"PRODUCE a/x -1 3\nabc\n",
            b"PRODUCE a/0000000001 -1 3\nabc\n",
            b"PRODUCE a/1 -2 3\nabc\n",
            b"PRODUCE a/1 +1 3\nabc\n",
            b"PRODUCE a/1 -1  3\nabc\n",
            b"PRODUCE  a/1 -1 3\nabc\n",
            b"PRODUCE a:1 -1 3\nabc\n",
            b"PRODUCE a\t -1 3\nabc\n",
            b"PRODUCE a -1 3 \nabc\n",
            b"PRODUCE a -1 3\r\nabc\n",
            b"PRODUCE a -1 3 ts=1\nabc\n",
            b"PRODUCE a -1 9999999999\nabc\n",
            b"PRODUCE a 5 5\n1234567890\n",
            b"PRODUCE aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa -1 3\nabc\n",
            b"PRODUCE a -1\n",
            b"PUT a",
            b"PUT a\n",
            b"PUT a b",
            b"PUT  b\n",
            b"PUT :k b\n",
            b"PUT a:k\nb\n",
            b"PUT a/x b\n",
            b"PUT a\x7f b\n",
            b"PUT \xffa b\n",
            b"PUT a bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\n",
            b"PUTa b\n",
            b"put a b\n",
        ];
        for line in lines {
            assert!(append(line, &limits).is_none(), "{}", line.escape_ascii());
        }
    }
}
