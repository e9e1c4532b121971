//! The counted requests, PRODUCE and BATCH: their lines, and what is done about a payload.
//!
//! As long as the lengths of such a line are sound, its payload is never taken for requests: whatever else is wrong, it is read
//! past. Where they are not, the bytes behind the line cannot be told into requests any more, and the connection ends.
#![forbid(unsafe_code)]

use crate::api::{ApiError, Batch, ErrorCode, Payload, Target, quoted};
use crate::format::check_headers;

use super::Limits;
use super::lexer::{Args, bad, next_field, number, plain, target};
use super::verbs::{self, Kind, of};

/// The largest length that a line may name.
const LENGTH_MAX: u64 = i32::MAX as u64;

/// What the line of a counted request says.
#[derive(Debug)]
pub(super) enum Head<'a> {
    /// It is right; that payload follows.
    Good(Counted<'a>),
    /// It is refused; so many bytes and an LF follow, to be read past.
    Refused(u64, ApiError),
    /// It cannot be told what follows.
    Broken(ApiError),
}

/// The payload that a line announces.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted<'a> {
    /// Where it goes.
    pub(super) target: Target<'a>,
    /// Its bytes, without the LF.
    pub(super) bytes: usize,
    shape: Shape,
}

/// How the bytes of a payload are divided.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Record {
        timestamp: Option<i64>,
        key: Option<usize>,
        value: Option<usize>,
    },
    Batch {
        count: u32,
    },
}

impl<'a> Counted<'a> {
    /// The request's payload, from exactly [`Counted::bytes`] bytes.
    ///
    /// # Errors
    /// `FRAMING` where a batch does not add up, `BAD_ARGUMENT` where header bytes do not.
    #[inline]
    pub(super) fn payload(&self, bytes: &'a [u8]) -> Result<Payload<'a>, ApiError> {
        match self.shape {
            Shape::Record {
                timestamp,
                key,
                value,
            } => {
                let (key, rest) = split(bytes, key);
                let (value, headers) = split(rest, value);
                Ok(Payload::Record {
                    timestamp,
                    key,
                    value,
                    headers: checked_headers(headers)?,
                })
            }
            Shape::Batch { count } => match Batch::parse(count, bytes) {
                Some(batch) => Ok(Payload::Batch(batch)),
                None => Err(framing(format!(
                    "the {} bytes of the BATCH are not {count} payloads (keyLen i32, key, valueLen i32, value, \
                     big-endian)",
                    bytes.len()
                ))),
            },
        }
    }
}

#[inline]
fn split(bytes: &[u8], len: Option<usize>) -> (Option<&[u8]>, &[u8]) {
    match len.and_then(|len| bytes.split_at_checked(len)) {
        Some((field, rest)) => (Some(field), rest),
        None => (None, bytes),
    }
}

/// A header block, without the one that counts none.
fn checked_headers(block: &[u8]) -> Result<&[u8], ApiError> {
    if block.is_empty() || block == [0, 0] {
        return Ok(&[]);
    }
    if check_headers(block) {
        return Ok(block);
    }
    Err(bad(format!(
        "the {} header bytes do not add up: count u16, then for each nameLen i32, name (UTF-8), valueLen i32, \
         value, big-endian",
        block.len()
    )))
}

/// Reads the line of a PRODUCE or BATCH, `rest` being what follows the verb.
#[inline]
pub(super) fn head<'a>(kind: Kind, rest: &'a [u8], limits: &Limits) -> Head<'a> {
    if kind == Kind::Batch {
        batch(rest, limits)
    } else {
        produce(rest, limits)
    }
}

/// How many payload bytes follow a line, where that can be told.
pub(super) fn announced(kind: Kind, rest: &[u8], limits: &Limits) -> Option<u64> {
    match head(kind, rest, limits) {
        Head::Good(counted) => Some(counted.bytes as u64),
        Head::Refused(bytes, _) => Some(bytes),
        Head::Broken(_) => None,
    }
}

fn produce<'a>(rest: &'a [u8], limits: &Limits) -> Head<'a> {
    let mut fields = rest;
    let (Some(to), Some(key), Some(value)) = (
        next_field(&mut fields),
        next_field(&mut fields),
        next_field(&mut fields),
    ) else {
        return Head::Broken(framing(format!(
            "a length is missing; usage: {}",
            of(Kind::Produce).usage
        )));
    };
    let (key, value) = match (length("key", key), length("value", value)) {
        (Ok(key), Ok(value)) => (key, value),
        (Err(error), _) | (_, Err(error)) => return Head::Broken(error),
    };
    let mut bytes = key.unwrap_or(0) + value.unwrap_or(0);
    let mut timestamp = None;
    let mut refused = None;
    if !fields.is_empty() {
        match options(fields) {
            Ok((headers, parsed)) => {
                bytes += headers;
                match parsed {
                    Ok(parsed) => timestamp = parsed,
                    Err(error) => refused = Some(error),
                }
            }
            Err(error) => return Head::Broken(error),
        }
    }
    if let Some(error) = refused {
        return Head::Refused(bytes, error);
    }
    let shape = |key: Option<u64>, value: Option<u64>| Shape::Record {
        timestamp,
        key: key.and_then(|len| len.try_into().ok()),
        value: value.and_then(|len| len.try_into().ok()),
    };
    finish(
        to,
        bytes,
        limits.record_bytes_max,
        "record",
        shape(key, value),
    )
}

fn batch<'a>(rest: &'a [u8], limits: &Limits) -> Head<'a> {
    let mut fields = rest;
    let (Some(to), Some(count), Some(bytes)) = (
        next_field(&mut fields),
        next_field(&mut fields),
        next_field(&mut fields),
    ) else {
        return Head::Broken(framing(format!(
            "a length is missing; usage: {}",
            of(Kind::Batch).usage
        )));
    };
    let bytes = match length("payload", bytes) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            return Head::Broken(framing("the payload's length is -1; a BATCH has a payload"));
        }
        Err(error) => return Head::Broken(error),
    };
    match Args::new(of(Kind::Batch), fields)
        .end()
        .and_then(|()| number("the count", count, 1))
    {
        Ok(count) => finish(
            to,
            bytes,
            limits.batch_bytes_max,
            "batch",
            Shape::Batch { count },
        ),
        Err(error) => Head::Refused(bytes, error),
    }
}

#[inline]
fn finish<'a>(to: &'a [u8], bytes: u64, max: usize, what: &str, shape: Shape) -> Head<'a> {
    match (target(to), usize::try_from(bytes)) {
        (Ok(target), Ok(size)) if size <= max => Head::Good(Counted {
            target,
            bytes: size,
            shape,
        }),
        (Err(error), _) => Head::Refused(bytes, error),
        (Ok(_), _) => Head::Refused(
            bytes,
            ApiError::new(
                ErrorCode::MessageTooLarge,
                format!(
                    "the {what} has {bytes} bytes; at most {max} are taken (--max-batch-bytes)"
                ),
            ),
        ),
    }
}

/// The options of a PRODUCE: the bytes of its headers, and its timestamp or what is wrong with anything but a length.
///
/// # Errors
/// `FRAMING` where the length of the headers cannot be told.
fn options(fields: &[u8]) -> Result<(u64, Result<Option<i64>, ApiError>), ApiError> {
    let headers = headers_length(fields)?;
    let mut args = Args::new(of(Kind::Produce), fields);
    let mut timestamp = None;
    loop {
        match args.option() {
            Ok(Some(("ts", value))) => {
                let Some(ts) = signed(value) else {
                    let error = format!("ts '{}' is not a signed 64-bit number", quoted(value));
                    return Ok((headers, Err(bad(error))));
                };
                timestamp = Some(ts);
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok((headers, Ok(timestamp))),
            Err(error) => return Ok((headers, Err(error))),
        }
    }
}

/// The length that the one `headers=` option names; 0 without one.
fn headers_length(mut fields: &[u8]) -> Result<u64, ApiError> {
    let mut found = None;
    while let Some(field) = next_field(&mut fields) {
        let Some(value) = field.strip_prefix(b"headers=") else {
            continue;
        };
        match length("headers", value)? {
            Some(length) if found.is_none() => found = Some(length),
            Some(_) => return Err(framing("headers= came twice; once would be right")),
            None => {
                return Err(framing(
                    "headers=-1: headers are not null; 0 or none of it is no headers",
                ));
            }
        }
    }
    Ok(found.unwrap_or(0))
}

/// A length on a line: `Some(None)` for -1.
#[inline]
fn length(what: &str, field: &[u8]) -> Result<Option<u64>, ApiError> {
    match plain(field) {
        Some(length) if length <= LENGTH_MAX => Ok(Some(length)),
        None if field == b"-1" => Ok(None),
        _ => Err(bad_length(what, field)),
    }
}

#[cold]
fn bad_length(what: &str, field: &[u8]) -> ApiError {
    framing(format!(
        "the {what}'s length '{}' is not -1 or a plain number up to {LENGTH_MAX}",
        quoted(field)
    ))
}

/// A signed 64-bit number: digits, with a minus before them where it is negative.
fn signed(field: &[u8]) -> Option<i64> {
    match field.split_first() {
        Some((b'-', digits)) => i64::try_from(-i128::from(plain(digits)?)).ok(),
        _ => i64::try_from(plain(field)?).ok(),
    }
}

/// How many payload bytes follow that line, the LF behind them not counted: for clients that send lines a person typed. `None` where no
/// payload follows, or where that cannot be told.
#[must_use]
pub fn payload_bytes(line: &[u8]) -> Option<u64> {
    let mut rest = line;
    let verb = next_field(&mut rest).and_then(|word| verbs::find(word).ok())?;
    if !matches!(verb.kind, Kind::Produce | Kind::Batch) {
        return None;
    }
    announced(verb.kind, rest, &Limits::new(usize::MAX))
}

/// A [`ErrorCode::Framing`] with those words, and what follows from it.
#[cold]
pub(super) fn framing(message: impl AsRef<str>) -> ApiError {
    ApiError::new(
        ErrorCode::Framing,
        format!("{}; the connection is closed", message.as_ref()),
    )
}
