//! The lines that a producer sends by the million, read in one pass.
//!
//! Only the plainest form of each is known here: capitals, single spaces, no options, nothing wrong, all of it there. Whatever
//! looks different in the least is left, untouched, to the full parser, so that there is one place that knows the
//! language and one that says what is wrong; a test compares the two. It is worth a file: with it, a pipelined PRODUCE is decoded in
//! a third of the time.
#![forbid(unsafe_code)]

use std::slice::Iter;

use memchr::memchr;

use crate::api::Target;
use crate::record::PlainRecord;

use super::Limits;

/// Digits that are read without a check for overflow.
const DIGITS_MAX: usize = 9;

/// A request that is whole and right.
pub(super) struct Append<'a> {
    /// Where it goes.
    pub(super) target: Target<'a>,
    /// The record.
    pub(super) record: PlainRecord<'a>,
    /// Bytes of verb and target.
    pub(super) named: usize,
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

/// What [`append`] would find at the front of the input, where that begins with the same verb and target as the request
/// before; `named` is those bytes of it.
#[inline]
pub(super) fn again<'a>(
    input: &'a [u8],
    named: &[u8],
    limits: &Limits,
) -> Option<(PlainRecord<'a>, usize)> {
    let rest = input.strip_prefix(named)?;
    let behind = match named.get(1)? {
        b'R' => produced(rest, named.len(), limits),
        b'U' => put_behind(rest, named.len(), limits),
        _ => None,
    };
    behind.map(|(record, used)| (record, named.len() + used))
}

#[inline]
fn produce<'a>(input: &'a [u8], limits: &Limits) -> Option<Append<'a>> {
    let mut bytes = input.strip_prefix(b"PRODUCE ")?.iter();
    let target = target(&mut bytes)?;
    whole(input, bytes.as_slice(), target, limits, produced)
}

#[inline]
fn put<'a>(input: &'a [u8], limits: &Limits) -> Option<Append<'a>> {
    let mut bytes = input.strip_prefix(b"PUT ")?.iter();
    let target = target(&mut bytes)?;
    whole(input, bytes.as_slice(), target, limits, put_behind)
}

/// What stands behind a target: a record, and the bytes up to its end.
type Behind<'a> = Option<(PlainRecord<'a>, usize)>;

/// The request of which verb and target were read, and `rest` not.
#[inline]
fn whole<'a>(
    input: &'a [u8],
    rest: &'a [u8],
    target: Target<'a>,
    limits: &Limits,
    behind: impl FnOnce(&'a [u8], usize, &Limits) -> Behind<'a>,
) -> Option<Append<'a>> {
    let named = input.len() - rest.len();
    let (record, used) = behind(rest, named, limits)?;
    Some(Append {
        target,
        record,
        named,
        used: named + used,
    })
}

/// The rest of a PRODUCE, of which `named` bytes stood before.
#[inline]
fn produced<'a>(rest: &'a [u8], named: usize, limits: &Limits) -> Behind<'a> {
    let mut bytes = rest.strip_prefix(b" ")?.iter();
    let (key, b' ') = length(&mut bytes)? else {
        return None;
    };
    let (value, b'\n') = length(&mut bytes)? else {
        return None;
    };
    let size = key.unwrap_or(0) + value.unwrap_or(0);
    let payload = bytes.as_slice();
    let line_bytes = rest.len() - payload.len();
    if size > limits.record_bytes_max || named + line_bytes > limits.line_bytes_max {
        return None;
    }
    let (body, &[b'\n', ..]) = payload.split_at_checked(size)? else {
        return None;
    };
    let (key_bytes, value_bytes) = body.split_at_checked(key.unwrap_or(0))?;
    let record = PlainRecord {
        key: key.map(|_| key_bytes),
        value: value.map(|_| value_bytes),
    };
    Some((record, line_bytes + size + 1))
}

/// The rest of a PUT, of which `named` bytes stood before.
#[inline]
fn put_behind<'a>(behind: &'a [u8], named: usize, limits: &Limits) -> Behind<'a> {
    let (&end, mut rest) = behind.split_first()?;
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
    let used = behind.len() - rest.len() + value.len() + 1;
    let value = value.strip_suffix(b"\r").unwrap_or(value);
    if named + used > limits.line_bytes_max {
        return None;
    }
    let value = Some(value);
    Some((PlainRecord { key, value }, used))
}

/// A target; the byte behind it stays.
#[inline]
fn target<'a>(bytes: &mut Iter<'a, u8>) -> Option<Target<'a>> {
    let from = bytes.as_slice();
    let len = from
        .iter()
        .position(|&byte| byte <= b' ' || matches!(byte, b'/' | b':' | 0x7f..))?;
    let (topic, rest) = from.split_at_checked(len)?;
    if topic.is_empty() {
        return None;
    }
    *bytes = rest.iter();
    let partition = match rest.strip_prefix(b"/") {
        None => None,
        Some(number) => {
            let mut number = number.iter();
            let (partition, _) = digits(&mut number)?;
            // The byte behind the digits was taken, too.
            let taken = rest.len() - number.as_slice().len() - 1;
            *bytes = rest.get(taken..)?.iter();
            Some(partition)
        }
    };
    Some(Target { topic, partition })
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
    fn what_comes_again_reads_as_the_first_time() {
        let limits = Limits {
            line_bytes_max: 40,
            record_bytes_max: 9,
            batch_bytes_max: 9,
        };
        let lines = [
            &b"PRODUCE a/0 -1 3\nabc\n"[..],
            b"PRODUCE a/0 1 9\nkabcdefgh\nrest",
            b"PRODUCE a/0 1 8\nkabcdefgh\nrest",
            b"PRODUCE a/0 1 9\nkabcdefghi\n",
            b"PRODUCE a/0 5 5\n1234567890\n",
            b"PRODUCE a/0 -1 3 ts=1\nabc\n",
            b"PRODUCE a/0  -1 3\nabc\n",
            b"PRODUCE a/00 -1 3\nabc\n",
            b"PRODUCE a/0 -1 0000000000000000000000000000003\nabc\n",
            b"PRODUCE a/1 -1 3\nabc\n",
            b"PRODUCE a -1 3\nabc\n",
            b"PRODUCE ab -1 3\nabc\n",
            b"PUT a v\n",
            b"PUT a \n",
            b"PUT a:key v\r\n",
            b"PUT a\n",
            b"PUT a/0 v\n",
            b"PUT a/0:k v w\n",
            b"PUT ab v\n",
            b"PUT a vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv\n",
            b"PUT a v",
        ];
        let mut found = 0;
        for before in lines {
            let Some(first) = append(before, &limits) else {
                continue;
            };
            let named = before.get(..first.named).unwrap_or_default();
            for line in lines {
                let whole = append(line, &limits)
                    .filter(|again| line.get(..again.named) == Some(named))
                    .map(|again| (again.record, again.used));
                let again = again(line, named, &limits);
                assert_eq!(
                    again,
                    whole,
                    "{} behind {}",
                    line.escape_ascii(),
                    before.escape_ascii()
                );
                found += usize::from(again.is_some());
            }
        }
        assert!(found > 10, "{found}");
    }

    #[test]
    fn a_request_that_the_full_parser_read_has_no_like() {
        let mut codec = LineCodec::new(Limits::new(100));
        assert!(matches!(codec.decode(b"\n"), Decoded::Skip { used: 1 }));
        let fast = b"PRODUCE a/0 -1 1\nx\n";
        assert!(matches!(codec.decode(fast), Decoded::Request { .. }));
        assert!(codec.again(fast, fast).is_some());
        // It comes in two parts; the target of the next is its target's beginning.
        let (long, short) = (b"PRODUCE abc/0 -1 1\nx\n", b"PRODUCE abc -1 1\nx\n");
        assert!(matches!(codec.decode(&long[..19]), Decoded::NeedMore));
        assert!(matches!(codec.decode(long), Decoded::Request { .. }));
        assert!(codec.again(long, short).is_none());
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
